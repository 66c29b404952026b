"""Shared access signatures: of the account, of a queue, with and without stored policies."""

from __future__ import annotations

import base64
import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.storage import queue as queue_sdk
from azure.storage.queue import (
    AccessPolicy,
    AccountSasPermissions,
    QueueSasPermissions,
    Services,
    generate_account_sas,
    generate_queue_sas,
)

from tests.e2e.azure_python.covers import covers
from tests.e2e.azure_python.refusals import refused
from tests.e2e.identity import now

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.e2e.azure_python.sdk import Client, Sdk

EVERYTHING: Final = "rwdlacup"
FAR: Final = "2099-01-01T00:00:00Z"
PERMISSION: Final = "AuthorizationPermissionMismatch"
RESOURCE: Final = "AuthorizationResourceTypeMismatch"
NEVER: Final = "AuthorizationFailure"
_UNTYPED: Final[Any] = queue_sdk  # some class methods of the SDK have no types


class _Case:
    """A queue with one message made with the account's key, and what can be tried on it."""

    def __init__(self, sdk: Sdk, owner: Client, message: Any) -> None:
        self.sdk = sdk
        self.owner = owner
        self.name: str = owner.queue_name
        self.message = message

    @classmethod
    async def make(cls, sdk: Sdk) -> _Case:
        owner = await sdk.new_queue()
        return cls(sdk, owner, await owner.send_message("x", visibility_timeout=600))

    def queue_sas(self, **options: Any) -> str:
        """Return a signature on the queue, good for everything unless *options* say otherwise."""
        given = {"permission": "raup", "expiry": FAR} | options
        endpoint = self.sdk.endpoint
        return generate_queue_sas(endpoint.account, self.name, endpoint.key, **given)

    def account_sas(self, **options: Any) -> str:
        """Return a signature on the account, good for everything unless *options* say otherwise."""
        given = {"resource_types": "sco", "permission": EVERYTHING, "expiry": FAR} | options
        return generate_account_sas(self.sdk.endpoint.account, self.sdk.endpoint.key, **given)

    def attempts(self, signature: str) -> dict[str, Callable[[], Awaitable[Any]]]:
        """Return one call of each operation, made with *signature*."""
        queue = self.sdk.queue(self.name, signature)
        service = self.sdk.service(signature)
        sent = self.message
        return {
            "peek": queue.peek_messages,
            "metadata": queue.get_queue_properties,
            "send": lambda: queue.send_message("y", visibility_timeout=600),
            "receive": lambda: queue.receive_message(visibility_timeout=1),
            "update": lambda: queue.update_message(sent, visibility_timeout=600),
            "delete": lambda: queue.delete_message(sent.id, sent.pop_receipt),
            "clear": queue.clear_messages,
            "set metadata": lambda: queue.set_queue_metadata({"a": "1"}),
            "get acl": queue.get_queue_access_policy,
            "set acl": lambda: queue.set_queue_access_policy({}),
            "list": lambda: service.list_queues(results_per_page=1).by_page().first(),
            "get properties": service.get_service_properties,
            "delete queue": queue.delete_queue,
        }

    async def outcome(self, signature: str, operation: str) -> str:
        """Return ``ok`` or the code of the error."""
        return await _outcome(self.attempts(signature)[operation])


async def _outcome(call: Callable[[], Awaitable[Any]]) -> str:
    try:
        await call()
    except HttpResponseError as error:
        assert error.status_code in {400, 403}  # noqa: PT017 - not what is being tested
        code = getattr(error, "error_code", None)
        return str(getattr(code, "value", code))
    return "ok"


@covers("generate_queue_sas", "QueueSasPermissions", "QueueSasPermissions.read")
@covers("QueueSasPermissions.add", "QueueSasPermissions.update", "QueueSasPermissions.process")
@pytest.mark.parametrize(
    ("permissions", "allowed"),
    [
        (QueueSasPermissions(read=True), ["peek", "metadata"]),
        (QueueSasPermissions(add=True), ["send"]),
        (QueueSasPermissions(update=True), ["update"]),
        (QueueSasPermissions(process=True), ["receive", "delete"]),
        (QueueSasPermissions.from_string("au"), ["send", "update"]),
    ],
    ids=str,
)
async def test_permissions_of_a_queue_signature(
    sdk: Sdk, permissions: QueueSasPermissions, allowed: list[str]
) -> None:
    """Each letter opens what the table of the service says, and nothing else."""
    case = await _Case.make(sdk)
    signature = case.queue_sas(permission=permissions)
    within_reach = ["peek", "metadata", "send", "receive", "update", "delete"]
    assert {name: await case.outcome(signature, name) for name in within_reach} == {
        name: "ok" if name in allowed else PERMISSION for name in within_reach
    }


@pytest.mark.differs_on_azurite("has other codes for what is beyond a queue's signature")
async def test_what_no_queue_signature_opens(sdk: Sdk) -> None:
    """Everything about queues themselves, whatever the letters."""
    case = await _Case.make(sdk)
    signature = case.queue_sas()
    beyond = ["clear", "set metadata", "get acl", "set acl", "delete queue"]
    assert {name: await case.outcome(signature, name) for name in beyond} == dict.fromkeys(
        beyond, NEVER
    )
    # A signature on a queue is no signature on the account.
    for name in ("list", "get properties"):
        assert await case.outcome(signature, name) in {NEVER, "AuthenticationFailed"}
    other = sdk.queue(sdk.new_name(), case.queue_sas())
    with refused(403):
        await other.create_queue()


async def test_a_queue_signature_is_for_one_queue(sdk: Sdk) -> None:
    """On another queue it is a wrong signature."""
    case, other = await _Case.make(sdk), await _Case.make(sdk)
    signature = case.queue_sas()
    assert await case.outcome(signature, "peek") == "ok"
    with refused(403, "AuthenticationFailed", ClientAuthenticationError):
        await sdk.queue(other.name, signature).peek_messages()


@covers("generate_account_sas", "AccountSasPermissions", "ResourceTypes", "Services")
@covers("ResourceTypes.service", "ResourceTypes.container", "ResourceTypes.object")
@covers(*[f"AccountSasPermissions.{name}" for name in AccountSasPermissions.__annotations__])
@pytest.mark.parametrize(
    ("types", "permissions", "expected"),
    [
        ("sco", EVERYTHING, {"list": "ok", "set metadata": "ok", "send": "ok", "clear": "ok"}),
        ("s", "l", {"list": "ok", "get properties": PERMISSION, "metadata": RESOURCE}),
        ("s", "r", {"list": PERMISSION, "get properties": "ok", "peek": RESOURCE}),
        ("c", "r", {"metadata": "ok", "set metadata": PERMISSION, "peek": RESOURCE}),
        ("c", "w", {"metadata": PERMISSION, "set metadata": "ok", "list": RESOURCE}),
        ("c", "d", {"send": RESOURCE, "set metadata": PERMISSION, "delete queue": "ok"}),
        ("o", "r", {"peek": "ok", "receive": PERMISSION, "metadata": RESOURCE}),
        ("o", "a", {"send": "ok", "peek": PERMISSION, "receive": PERMISSION}),
        ("o", "p", {"receive": "ok", "send": PERMISSION}),
        ("sco", "rwdlacu", {"receive": PERMISSION, "clear": "ok"}),
    ],
)
async def test_permissions_of_an_account_signature(
    sdk: Sdk, types: str, permissions: str, expected: dict[str, str]
) -> None:
    """Resource type and letter must both fit the operation."""
    case = await _Case.make(sdk)
    signature = case.account_sas(
        resource_types=_UNTYPED.ResourceTypes.from_string(types),
        permission=_UNTYPED.AccountSasPermissions.from_string(permissions),
        services=Services(queue=True),
    )
    assert {name: await case.outcome(signature, name) for name in expected} == expected


@pytest.mark.differs_on_azurite("wants resource type c for changes of messages")
@pytest.mark.parametrize(
    ("permissions", "expected"),
    [
        ("u", {"update": "ok", "receive": PERMISSION, "delete": PERMISSION}),
        ("p", {"update": PERMISSION, "delete": "ok"}),
        ("d", {"delete": PERMISSION, "clear": "ok", "delete queue": RESOURCE}),
    ],
)
async def test_an_account_signature_for_messages(
    sdk: Sdk, permissions: str, expected: dict[str, str]
) -> None:
    """Type ``o`` is for messages, also for changing and deleting them."""
    case = await _Case.make(sdk)
    signature = case.account_sas(resource_types="o", permission=permissions)
    assert {name: await case.outcome(signature, name) for name in expected} == expected


@pytest.mark.differs_on_azurite("answers AuthorizationPermissionMismatch")
async def test_no_account_signature_opens_the_stored_policies(sdk: Sdk) -> None:
    """Neither for reading nor for writing; keys alone do."""
    case = await _Case.make(sdk)
    signature = case.account_sas()
    for name in ("get acl", "set acl"):
        assert await case.outcome(signature, name) == NEVER


async def test_an_account_signature_creates_queues(sdk: Sdk) -> None:
    """With ``c`` for create or ``w`` for write."""
    case = await _Case.make(sdk)
    for permission, outcome in (("c", "ok"), ("w", "ok"), ("r", PERMISSION)):
        signature = case.account_sas(resource_types="c", permission=permission)
        queue = sdk.queue(sdk.new_name(), signature)
        assert await _outcome(queue.create_queue) == outcome


async def test_a_signature_for_other_services_is_no_use(sdk: Sdk) -> None:
    """``ss`` must name queues."""
    case = await _Case.make(sdk)
    signature = case.account_sas(services=Services(blob=True, fileshare=True))
    assert await case.outcome(signature, "peek") == "AuthorizationServiceMismatch"
    signature = case.account_sas(services="bqf")
    assert await case.outcome(signature, "peek") == "ok"


@pytest.mark.parametrize("kind", ["queue", "account"])
async def test_a_signature_has_its_time(sdk: Sdk, kind: str) -> None:
    """Before its start and after its end it is worth nothing."""
    case = await _Case.make(sdk)
    make = case.queue_sas if kind == "queue" else case.account_sas
    hour = dt.timedelta(hours=1)
    expected: dict[str, tuple[dict[str, Any], str]] = {
        "now": ({"start": now() - hour, "expiry": now() + hour}, "ok"),
        "text": ({"start": "2026-01-01", "expiry": "2099-12-31T23:59Z"}, "ok"),
        "no start": ({"expiry": now() + hour}, "ok"),
        "too late": ({"start": now() - 2 * hour, "expiry": now() - hour}, "AuthenticationFailed"),
        "too early": ({"start": now() + hour, "expiry": now() + 2 * hour}, "AuthenticationFailed"),
    }
    outcomes = {
        name: await case.outcome(make(**times), "peek") for name, (times, _) in expected.items()
    }
    assert outcomes == {name: outcome for name, (_, outcome) in expected.items()}


@pytest.mark.parametrize("kind", ["queue", "account"])
async def test_a_signature_for_https_only(sdk: Sdk, kind: str) -> None:
    """Over http it is refused; without the restriction both work."""
    case = await _Case.make(sdk)
    make = case.queue_sas if kind == "queue" else case.account_sas
    refused = make(protocol="https")
    assert await case.outcome(refused, "peek") == "AuthorizationProtocolMismatch"
    assert await case.outcome(make(protocol="https,http"), "peek") == "ok"


@pytest.mark.differs_on_azurite("ignores the address range")
@pytest.mark.parametrize("kind", ["queue", "account"])
async def test_a_signature_for_some_addresses(sdk: Sdk, kind: str) -> None:
    """One address, or a range with both its ends."""
    case = await _Case.make(sdk)
    make = case.queue_sas if kind == "queue" else case.account_sas
    for addresses in ("127.0.0.1", "127.0.0.0-127.0.0.1", "127.0.0.1-127.0.0.9"):
        assert await case.outcome(make(ip=addresses), "peek") == "ok"
    for addresses in ("127.0.0.2", "10.0.0.1-10.0.0.9"):
        outcome = await case.outcome(make(ip=addresses), "peek")
        assert outcome == "AuthorizationSourceIPMismatch"


async def test_a_changed_signature_is_refused(sdk: Sdk) -> None:
    """More letters, a later end, another key: all of it breaks the signature."""
    case = await _Case.make(sdk)
    good = case.queue_sas(permission="r")
    stranger = base64.b64encode(b"k" * 64).decode()
    forged = generate_queue_sas(
        sdk.endpoint.account, case.name, stranger, permission="r", expiry=FAR
    )
    for bad in (good.replace("sp=r", "sp=raup"), good.replace("2099", "2100"), forged):
        assert bad != good
        assert await case.outcome(bad, "peek") == "AuthenticationFailed"
    assert await case.outcome(good, "peek") == "ok"


async def test_a_stored_policy_can_give_everything(sdk: Sdk) -> None:
    """The signature then only names it."""
    case = await _Case.make(sdk)
    policy = AccessPolicy("r", FAR, "2026-01-01T00:00:00Z")
    await case.owner.set_queue_access_policy({"policy": policy})
    signature = case.queue_sas(policy_id="policy", permission=None, expiry=None)
    assert await case.outcome(signature, "peek") == "ok"
    assert await case.outcome(signature, "send") == PERMISSION


@pytest.mark.differs_on_azurite("takes nothing from a signature that names a policy")
async def test_a_stored_policy_gives_what_the_signature_leaves_out(sdk: Sdk) -> None:
    """Each field stands in one of them."""
    case = await _Case.make(sdk)
    await case.owner.set_queue_access_policy(
        {"permission": AccessPolicy("a"), "expiry": AccessPolicy(expiry=FAR)}
    )
    permission = case.queue_sas(policy_id="permission", permission=None)
    assert await case.outcome(permission, "send") == "ok"
    expiry = case.queue_sas(policy_id="expiry", permission="p", expiry=None)
    assert await case.outcome(expiry, "receive") == "ok"
    assert await case.outcome(expiry, "peek") == PERMISSION


async def test_a_stored_policy_can_be_changed_and_revoked(sdk: Sdk) -> None:
    """At once, for signatures already handed out."""
    case = await _Case.make(sdk)
    signature = case.queue_sas(policy_id="policy", permission=None, expiry=None)
    assert await case.outcome(signature, "peek") == "AuthenticationFailed"
    await case.owner.set_queue_access_policy({"policy": AccessPolicy("r", FAR)})
    assert await case.outcome(signature, "peek") == "ok"
    await case.owner.set_queue_access_policy({"policy": AccessPolicy("a", FAR)})
    assert await case.outcome(signature, "peek") == PERMISSION
    assert await case.outcome(signature, "send") == "ok"
    expired = AccessPolicy("r", "2026-01-02T00:00:00Z")
    await case.owner.set_queue_access_policy({"policy": expired})
    assert await case.outcome(signature, "peek") == "AuthenticationFailed"
    await case.owner.set_queue_access_policy({})
    assert await case.outcome(signature, "peek") == "AuthenticationFailed"


@pytest.mark.differs_on_azurite("answers 403 to a field in both places")
async def test_a_field_stands_in_the_policy_or_in_the_signature(sdk: Sdk) -> None:
    """Never in both, even if they agree."""
    case = await _Case.make(sdk)
    await case.owner.set_queue_access_policy({"policy": AccessPolicy("r", FAR)})
    with refused(400):
        await case.attempts(case.queue_sas(policy_id="policy", permission="r"))["peek"]()


async def test_a_signature_without_an_end_is_refused(sdk: Sdk) -> None:
    """Neither the signature nor its policy has one."""
    case = await _Case.make(sdk)
    await case.owner.set_queue_access_policy({"policy": AccessPolicy("r")})
    signature = case.queue_sas(policy_id="policy", permission=None, expiry=None)
    assert await case.outcome(signature, "peek") == "AuthenticationFailed"


async def test_the_string_to_sign_can_be_looked_at(sdk: Sdk) -> None:
    """The client's hook sees what it signs, for comparing with a refusal's details."""
    case = await _Case.make(sdk)
    seen: list[str] = []
    for signature in (
        case.queue_sas(sts_hook=seen.append),
        case.account_sas(sts_hook=seen.append),
    ):
        assert await case.outcome(signature, "peek") == "ok"
    assert f"/queue/{sdk.endpoint.account}/{case.name}" in seen[0]
    assert EVERYTHING in seen[1]
