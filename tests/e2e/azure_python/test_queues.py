"""Queues: create, delete, list, metadata, access policies."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import (
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.storage.queue import AccessPolicy, QueueProperties, QueueSasPermissions

from tests.e2e.azure_python.covers import covers
from tests.e2e.azure_python.refusals import refused

if TYPE_CHECKING:
    from tests.e2e.azure_python.sdk import Sdk


@covers(
    "QueueClient.create_queue",
    "QueueClient.get_queue_properties",
    "QueueClient.queue_name",
    "QueueProperties",
    "QueueProperties.name",
    "QueueProperties.metadata",
    "QueueProperties.approximate_message_count",
)
async def test_a_new_queue_is_empty(sdk: Sdk) -> None:
    """A queue made without metadata has none, and no messages."""
    queue = sdk.queue(sdk.new_name())
    await queue.create_queue()
    properties = await queue.get_queue_properties()
    assert isinstance(properties, QueueProperties)
    assert properties.name == queue.queue_name
    assert properties.metadata == {}
    assert properties.approximate_message_count == 0


@covers("QueueClient.create_queue:metadata")
async def test_metadata_is_kept_as_given(sdk: Sdk) -> None:
    """Names keep their case, values their spaces."""
    queue = sdk.queue(sdk.new_name())
    given = {"Colour": "dark  blue", "size_2": "9", "_x": "a=b&c"}
    await queue.create_queue(metadata=given)
    assert (await queue.get_queue_properties()).metadata == given


async def test_metadata_are_signed_in_an_order_of_their_own(sdk: Sdk) -> None:
    """The SDK sorts names like a dictionary for people; underscores, digits and case matter."""
    queue = sdk.queue(sdk.new_name())
    names = ["_", "_a", "a", "a_", "a__b", "a_b", "a1", "a1b", "a10", "a9", "aBc2", "ab", "abc"]
    names += ["ab_c", "A_d", "Z", "z_", "z0", "zz", "meta", "me_ta", "me1ta"]
    given = {name: f"value of {name}" for name in names}
    await queue.create_queue(metadata=given)
    await queue.set_queue_metadata(given)
    assert (await queue.get_queue_properties()).metadata == given


async def test_creating_the_same_queue_again_answers_204(sdk: Sdk) -> None:
    """The service says 204; the Python SDK makes an error of it."""
    queue = sdk.queue(sdk.new_name())
    await queue.create_queue(metadata={"a": "1"})
    with refused(204, "QueueAlreadyExists", ResourceExistsError):
        await queue.create_queue(metadata={"A": "1"})  # names compare without case


@pytest.mark.parametrize("metadata", [None, {"a": "2"}, {"a": "1", "b": "1"}])
async def test_creating_a_queue_with_other_metadata_conflicts(
    sdk: Sdk, metadata: dict[str, str] | None
) -> None:
    """None at all is other metadata too; the queue keeps what it has."""
    queue = sdk.queue(sdk.new_name())
    await queue.create_queue(metadata={"a": "1"})
    with refused(409, "QueueAlreadyExists", ResourceExistsError):
        await queue.create_queue(metadata=metadata)
    assert (await queue.get_queue_properties()).metadata == {"a": "1"}


@covers("QueueClient.delete_queue")
async def test_a_deleted_queue_is_gone(sdk: Sdk) -> None:
    """Nothing can be done with it, not even deleting it again."""
    queue = await sdk.new_queue()
    await queue.delete_queue()
    for call in (queue.get_queue_properties, queue.delete_queue, queue.receive_message):
        with refused(404, "QueueNotFound", ResourceNotFoundError):
            await call()


async def test_a_deleted_queue_can_be_made_again_empty(sdk: Sdk) -> None:
    """The new queue has nothing of the old one."""
    queue = await sdk.new_queue()
    await queue.send_message("old")
    await queue.set_queue_metadata({"old": "yes"})
    await queue.delete_queue()
    await queue.create_queue()
    assert (await queue.get_queue_properties()).metadata == {}
    assert await queue.receive_message() is None


async def test_every_call_on_a_missing_queue_says_so(sdk: Sdk) -> None:
    """Code QueueNotFound, class ResourceNotFoundError, for whatever is asked."""
    queue = sdk.queue(sdk.new_name())
    calls = {
        "properties": queue.get_queue_properties(),
        "metadata": queue.set_queue_metadata({"a": "1"}),
        "get policies": queue.get_queue_access_policy(),
        "set policies": queue.set_queue_access_policy({}),
        "send": queue.send_message("x"),
        "receive": queue.receive_message(),
        "receive many": queue.receive_messages().all(),
        "peek": queue.peek_messages(),
        "update": queue.update_message(str(uuid.uuid4()), "AgAAAAMAAAAAAAAA", visibility_timeout=1),
        "delete message": queue.delete_message(str(uuid.uuid4()), "AgAAAAMAAAAAAAAA"),
        "clear": queue.clear_messages(),
        "delete": queue.delete_queue(),
    }
    answers = await asyncio.gather(*calls.values(), return_exceptions=True)
    seen = {
        name: (type(answer), getattr(answer, "error_code", None))
        for name, answer in zip(calls, answers, strict=True)
    }
    assert seen == dict.fromkeys(calls, (ResourceNotFoundError, "QueueNotFound"))


@covers("QueueClient.set_queue_metadata:metadata")
async def test_setting_metadata_replaces_the_whole_set(sdk: Sdk) -> None:
    """What is not in the new set is gone, and an empty set clears."""
    queue = sdk.queue(sdk.new_name())
    await queue.create_queue(metadata={"a": "1", "b": "2"})
    answer = await queue.set_queue_metadata({"b": "3", "c": "4"})
    assert {"request_id", "version", "date"} <= set(answer)
    assert (await queue.get_queue_properties()).metadata == {"b": "3", "c": "4"}
    await queue.set_queue_metadata()
    assert (await queue.get_queue_properties()).metadata == {}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ab", "OutOfRangeInput"),
        ("a" * 64, "OutOfRangeInput"),
        ("Upper-case", "InvalidResourceName"),
        ("double--dash", "InvalidResourceName"),
        ("-dash-first", "InvalidResourceName"),
        ("dash-last-", "InvalidResourceName"),
        ("under_score", "InvalidResourceName"),
        ("spa ce", "InvalidResourceName"),
        ("umlaut-ü", "InvalidResourceName"),
    ],
)
async def test_a_bad_queue_name_is_refused(sdk: Sdk, name: str, code: str) -> None:
    """3 to 63 of a-z, 0-9 and single inner dashes."""
    with refused(400, code):
        await sdk.queue(name).create_queue()


@pytest.mark.parametrize("length", [3, 63])
async def test_the_shortest_and_the_longest_name_work(sdk: Sdk, length: int) -> None:
    """Both ends of the range are allowed."""
    name = uuid.uuid4().hex + uuid.uuid4().hex
    queue = sdk.queue(name[:length])
    await queue.create_queue()
    assert (await queue.get_queue_properties()).name == name[:length]


@covers(
    "QueueServiceClient.create_queue:name,metadata", "QueueServiceClient.get_queue_client:queue"
)
async def test_the_service_client_makes_queue_clients(sdk: Sdk) -> None:
    """By creating a queue, by its name, or by its properties."""
    service, name = sdk.service(), sdk.new_name()
    created = await service.create_queue(name, {"a": "1"})
    await created.send_message("hello")
    [listed] = await service.list_queues(name_starts_with=name).all()
    for queue in (service.get_queue_client(name), service.get_queue_client(listed)):
        assert queue.queue_name == name
        [message] = await queue.peek_messages()
        assert message.content == "hello"


@covers("QueueServiceClient.delete_queue:queue")
async def test_the_service_client_deletes_queues(sdk: Sdk) -> None:
    """By name or by properties."""
    service, name = sdk.service(), sdk.new_name()
    await service.create_queue(name)
    await service.delete_queue(name)
    await service.create_queue(name)
    [listed] = await service.list_queues(name_starts_with=name).all()
    await service.delete_queue(listed)
    assert await service.list_queues(name_starts_with=name).all() == []


@pytest.mark.differs_on_azurite("lists pages by age and then never ends", run=False)
@covers("QueueServiceClient.list_queues:name_starts_with,include_metadata,results_per_page")
async def test_queues_are_listed_in_order_page_by_page(sdk: Sdk) -> None:
    """Pages follow each other without a gap, by name; others' queues do not show."""
    service, prefix = sdk.service(), sdk.new_name()[:40]
    names = [f"{prefix}-{i:02}" for i in range(7)]
    await asyncio.gather(*(service.create_queue(n, {"n": n[-2:]}) for n in reversed(names)))

    everything = await service.list_queues(name_starts_with=prefix).all()
    assert [q.name for q in everything] == names
    assert [q.metadata for q in everything] == [None] * 7
    assert isinstance(everything[0], QueueProperties)

    with_metadata = await service.list_queues(prefix, include_metadata=True).all()
    assert [q.metadata for q in with_metadata] == [{"n": f"{i:02}"} for i in range(7)]

    paged = service.list_queues(name_starts_with=prefix, results_per_page=3)
    pages = [[q.name for q in page] async for page in paged.by_page()]
    assert pages == [names[:3], names[3:6], names[6:]]


async def test_a_listing_goes_on_from_a_continuation_token(sdk: Sdk) -> None:
    """The token of one client's page works in another client; the page tells what was asked."""
    service, prefix = sdk.service(), sdk.new_name()[:40]
    names = [f"{prefix}-{i}" for i in range(5)]
    for name in names:
        await service.create_queue(name)

    pages = service.list_queues(name_starts_with=prefix, results_per_page=2).by_page()
    assert [q.name for q in await pages.first()] == names[:2]
    assert pages.service_endpoint.rstrip("/") == sdk.endpoint.url
    assert pages.prefix == prefix
    assert pages.results_per_page == 2
    assert pages.location_mode == "primary"

    rest = sdk.service().list_queues(name_starts_with=prefix).by_page(pages.continuation_token)
    assert [q.name for q in await rest.first()] == names[2:]
    assert not rest.continuation_token


async def test_a_prefix_that_no_queue_has_lists_nothing(sdk: Sdk) -> None:
    """An empty list, not an error, whatever characters it has."""
    for prefix in (sdk.new_name(), "a b", "a+b", "a/b", "a&b=c", "%41", "ä€😀", "a?b#c", "a;b,c"):
        assert await sdk.service().list_queues(name_starts_with=prefix).all() == []


@pytest.mark.differs_on_azurite("answers a bare 400")
@pytest.mark.parametrize("results_per_page", [0, -1])
async def test_a_page_size_out_of_range_is_refused(sdk: Sdk, results_per_page: int) -> None:
    """A page has at least one queue."""
    with refused(400, "OutOfRangeQueryParameterValue"):
        await sdk.service().list_queues(results_per_page=results_per_page).all()


_START = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
_EXPIRY = dt.datetime(2099, 6, 7, 8, 9, 10, tzinfo=dt.UTC)


def _instant(text: Any) -> dt.datetime:
    """Parse a time of a policy, which the service gives with seven digits of a second."""
    return dt.datetime.fromisoformat(str(text))


@covers(
    "QueueClient.set_queue_access_policy:signed_identifiers",
    "QueueClient.get_queue_access_policy",
    "AccessPolicy",
    "AccessPolicy.permission",
    "AccessPolicy.start",
    "AccessPolicy.expiry",
)
async def test_access_policies_are_kept(sdk: Sdk) -> None:
    """Permissions and times come back, however they were given."""
    queue = await sdk.new_queue()
    assert await queue.get_queue_access_policy() == {}
    await queue.set_queue_access_policy(
        {
            "objects": AccessPolicy(QueueSasPermissions(read=True, add=True), _EXPIRY, _START),
            "texts": AccessPolicy("raup", "2099-06-07T08:09:10Z", "2026-01-02T03:04:05Z"),
            "Mixed-Case_1": AccessPolicy(permission="p"),
        }
    )
    policies = await queue.get_queue_access_policy()
    assert list(policies) == ["objects", "texts", "Mixed-Case_1"]
    assert [policies[name].permission for name in policies] == ["ra", "raup", "p"]
    for name in ("objects", "texts"):
        assert _instant(policies[name].start) == _START
        assert _instant(policies[name].expiry) == _EXPIRY
    assert policies["Mixed-Case_1"].start is None
    assert policies["Mixed-Case_1"].expiry is None


async def test_setting_access_policies_replaces_all_of_them(sdk: Sdk) -> None:
    """An empty set clears."""
    queue = await sdk.new_queue()
    await queue.set_queue_access_policy({"one": AccessPolicy("r"), "two": AccessPolicy("a")})
    await queue.set_queue_access_policy({"three": AccessPolicy("u")})
    assert list(await queue.get_queue_access_policy()) == ["three"]
    await queue.set_queue_access_policy({})
    assert await queue.get_queue_access_policy() == {}


@pytest.mark.differs_on_azurite("answers a bare 400 if AccessPolicy is absent")
async def test_a_policy_may_be_empty(sdk: Sdk) -> None:
    """An identifier without a policy is kept; a token then has to bring everything itself."""
    queue = await sdk.new_queue()
    await queue.set_queue_access_policy({"empty": None, "blank": AccessPolicy()})
    policies = await queue.get_queue_access_policy()
    assert list(policies) == ["empty", "blank"]
    assert {policy.permission or None for policy in policies.values()} == {None}


async def test_five_access_policies_fit(sdk: Sdk) -> None:
    """The documented limit; the client itself stops at fifteen."""
    queue = await sdk.new_queue()
    five = {f"policy-{i}": AccessPolicy("r") for i in range(5)}
    await queue.set_queue_access_policy(five)
    assert list(await queue.get_queue_access_policy()) == list(five)
    with pytest.raises(ValueError, match="Too many access policies"):
        await queue.set_queue_access_policy({str(i): AccessPolicy("r") for i in range(16)})


async def test_a_policy_with_an_unknown_permission_is_refused(sdk: Sdk) -> None:
    """The policies then stay as they were."""
    queue = await sdk.new_queue()
    await queue.set_queue_access_policy({"good": AccessPolicy("r")})
    with refused(400, "InvalidXmlDocument"):
        await queue.set_queue_access_policy({"bad": AccessPolicy("rz")})
    assert list(await queue.get_queue_access_policy()) == ["good"]
