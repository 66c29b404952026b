"""Bearer tokens, and the delegation keys that their bearers can ask for."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.storage.queue import (
    AccessPolicy,
    QueueSasPermissions,
    UserDelegationKey,
    generate_queue_sas,
)

from tests.e2e.azure_python.covers import covers
from tests.e2e.azure_python.refusals import refused
from tests.e2e.identity import TENANT, USER, now

if TYPE_CHECKING:
    from tests.e2e.azure_python.sdk import Client, Sdk
    from tests.e2e.identity import IdentityProvider

HOUR = dt.timedelta(hours=1)


async def test_a_token_opens_queues_and_messages(tls_sdk: Sdk, token: str) -> None:
    """All that a contributor of queue data may do."""
    sdk = tls_sdk
    service = sdk.service(sdk.token_credential(token))
    queue = await service.create_queue(sdk.new_name(), {"a": "1"})
    await queue.set_queue_metadata({"b": "2"})
    assert (await queue.get_queue_properties()).metadata == {"b": "2"}
    listed = await service.list_queues(name_starts_with=queue.queue_name).all()
    assert [q.name for q in listed] == [queue.queue_name]
    await queue.send_message("x")
    assert [m.content for m in await queue.peek_messages()] == ["x"]
    received = await queue.receive_message()
    updated = await queue.update_message(received, visibility_timeout=60)
    await queue.delete_message(updated)
    await queue.clear_messages()
    await service.get_service_properties()
    await service.delete_queue(queue.queue_name)


@covers("QueueClient.__init__:audience", "QueueServiceClient.__init__:audience")
async def test_the_client_asks_for_a_token_of_the_right_audience(tls_sdk: Sdk, token: str) -> None:
    """That of all storage, or the one it is told."""
    sdk = tls_sdk
    await sdk.new_queue()
    for client_class, arguments in ((sdk.QueueClient, ["some"]), (sdk.QueueServiceClient, [])):
        for audience, scope in (
            (None, "https://storage.azure.com/.default"),
            ("https://queues.example/", "https://queues.example/.default"),
        ):
            credential = sdk.token_credential(token)
            client = client_class(
                sdk.endpoint.url, *arguments, credential=credential, audience=audience
            )
            if arguments:
                with pytest.raises(HttpResponseError, match="QueueNotFound"):
                    await client.peek_messages()
            else:
                await client.list_queues(results_per_page=1).by_page().first()
            assert credential.requests[0] == ((scope,), None)


async def test_keys_and_signatures_work_over_https_too(tls_sdk: Sdk) -> None:
    """Including signatures that are for https only."""
    sdk = tls_sdk
    queue = await sdk.new_queue()
    await queue.send_message("x")
    signature = generate_queue_sas(
        sdk.endpoint.account,
        queue.queue_name,
        sdk.endpoint.key,
        permission="r",
        expiry=now() + HOUR,
        protocol="https",
    )
    peeked = await sdk.queue(queue.queue_name, signature).peek_messages()
    assert [m.content for m in peeked] == ["x"]


async def test_a_token_opens_the_stored_policies(
    tls_sdk: Sdk, identity: IdentityProvider, token: str
) -> None:
    """With a role of the account; that of its messages is not enough."""
    sdk = tls_sdk
    queue = await sdk.new_queue()
    bearer = sdk.queue(queue.queue_name, sdk.token_credential(token))
    await bearer.set_queue_access_policy({"readers": AccessPolicy(permission="r")})
    policies = await bearer.get_queue_access_policy()
    assert {name: policy.permission for name, policy in policies.items()} == {"readers": "r"}
    lesser = identity.token(roles=["Storage Queue Data Contributor"])
    with refused(403, "AuthorizationPermissionMismatch"):
        await sdk.queue(queue.queue_name, sdk.token_credential(lesser)).get_queue_access_policy()


@pytest.mark.parametrize(
    ("roles", "allowed", "forbidden"),
    [
        (["Storage Queue Data Reader"], ["peek", "list"], ["send", "receive"]),
        (["Storage Queue Data Message Sender"], ["send"], ["peek", "receive", "list"]),
        (["Storage Queue Data Message Processor"], ["peek", "receive"], ["send"]),
        ([], [], ["peek", "send", "receive", "list"]),
    ],
)
async def test_roles(
    tls_sdk: Sdk,
    identity: IdentityProvider,
    roles: list[str],
    allowed: list[str],
    forbidden: list[str],
) -> None:
    """A token opens what its roles allow, and nothing else."""
    sdk = tls_sdk
    queue = await sdk.new_queue()
    credential = sdk.token_credential(identity.token(roles=roles))
    bearer, service = sdk.queue(queue.queue_name, credential), sdk.service(credential)
    calls: dict[str, Any] = {
        "peek": bearer.peek_messages,
        "send": lambda: bearer.send_message("x"),
        "receive": bearer.receive_message,
        "list": lambda: service.list_queues(results_per_page=1).by_page().first(),
    }
    for name in allowed:
        await calls[name]()
    for name in forbidden:
        with refused(403, "AuthorizationPermissionMismatch"):
            await calls[name]()


@pytest.mark.parametrize(
    "flaw",
    [
        {"exp": 1_700_000_000},
        {"nbf": 4_102_444_800},
        {"aud": "https://vault.azure.net"},
        {"iss": "https://stranger.example/"},
        {"forged": True},
    ],
    ids=lambda flaw: next(iter(flaw)),
)
async def test_a_bad_token_is_refused(
    tls_sdk: Sdk, identity: IdentityProvider, flaw: dict[str, Any]
) -> None:
    """Expired, not yet valid, for somebody else, by somebody else, or forged."""
    credential = tls_sdk.token_credential(identity.token(**flaw))
    with refused(401, "InvalidAuthenticationInfo", ClientAuthenticationError):
        await tls_sdk.service(credential).list_queues().all()


async def test_the_challenge_leads_to_a_better_token(
    tls_sdk: Sdk, identity: IdentityProvider, token: str
) -> None:
    """A refused client asks again, for the scope and the tenant that the server names."""
    credential = tls_sdk.token_credential(identity.token(exp=1_700_000_000), token)
    await tls_sdk.service(credential).list_queues(results_per_page=1).by_page().first()
    assert len(credential.requests) == 2
    scopes, tenant = credential.requests[1]
    assert scopes == ("https://storage.azure.com/.default",)
    assert tenant


async def test_tokens_are_not_sent_in_the_clear(sdk: Sdk) -> None:
    """The client refuses by itself."""
    with pytest.raises(ValueError, match="HTTPS"):
        sdk.service(sdk.token_credential("token"))


async def _delegation_key(sdk: Sdk, token: str, **options: Any) -> UserDelegationKey:
    service = sdk.service(sdk.token_credential(token))
    times = {"start": now() - dt.timedelta(minutes=5), "expiry": now() + HOUR}
    key: UserDelegationKey = await service.get_user_delegation_key(**times | options)
    return key


def _signed(sdk: Sdk, queue: Client, key: UserDelegationKey, **options: Any) -> Client:
    """Return a client of *queue* that presents a signature made with a delegation key."""
    given: dict[str, Any] = {"permission": QueueSasPermissions(read=True), "expiry": now() + HOUR}
    given |= options
    signature = generate_queue_sas(
        sdk.endpoint.account, queue.queue_name, user_delegation_key=key, **given
    )
    return sdk.queue(queue.queue_name, signature)


@covers(
    "QueueServiceClient.get_user_delegation_key:expiry,start,timeout",
    "UserDelegationKey",
    *[f"UserDelegationKey.{name}" for name in UserDelegationKey.__annotations__],
)
async def test_a_delegation_key(tls_sdk: Sdk, token: str) -> None:
    """It says whose it is, what for and for how long."""
    start, expiry = now() - HOUR, now() + HOUR
    key = await _delegation_key(tls_sdk, token, start=start, expiry=expiry, timeout=30)
    assert isinstance(key, UserDelegationKey)
    assert (key.signed_oid, key.signed_tid) == (USER, TENANT)
    assert key.signed_service == "q"
    assert str(key.signed_version) >= "2026-02-06"
    assert dt.datetime.fromisoformat(str(key.signed_start)) == start
    assert dt.datetime.fromisoformat(str(key.signed_expiry)) == expiry
    assert key.signed_delegated_user_tid is None
    assert len(str(key.value)) >= 40


async def test_a_delegation_key_without_a_start(tls_sdk: Sdk, token: str) -> None:
    """The client wants one, if only the present."""
    service = tls_sdk.service(tls_sdk.token_credential(token))
    with pytest.raises(AttributeError):
        await service.get_user_delegation_key(expiry=now() + HOUR)


async def test_signatures_made_with_a_delegation_key(tls_sdk: Sdk, token: str) -> None:
    """They open what they say, like those made with the account's key."""
    sdk = tls_sdk
    queue = await sdk.new_queue()
    await queue.send_message("x")
    key = await _delegation_key(sdk, token)
    signed = _signed(sdk, queue, key, ip="127.0.0.1", protocol="https")
    assert [m.content for m in await signed.peek_messages()] == ["x"]
    with refused(403, "AuthorizationPermissionMismatch"):
        await signed.receive_message()
    worker = _signed(sdk, queue, key, permission="raup")
    received = await worker.receive_message()
    updated = await worker.update_message(received, content="y", visibility_timeout=60)
    await worker.delete_message(updated)
    await worker.send_message("z")


async def test_a_signature_ends_with_its_delegation_key(tls_sdk: Sdk, token: str) -> None:
    """Even if it says otherwise itself, and nobody can change the key's end."""
    sdk = tls_sdk
    queue = await sdk.new_queue()
    key = await _delegation_key(sdk, token)
    key.signed_expiry = "2099-01-01T00:00:00Z"
    with refused(403, "AuthenticationFailed", ClientAuthenticationError):
        await _signed(sdk, queue, key).peek_messages()


@covers("QueueServiceClient.get_user_delegation_key:delegated_user_tid")
async def test_a_signature_for_one_user_needs_that_user(
    tls_sdk: Sdk, identity: IdentityProvider, token: str
) -> None:
    """Who presents it must bring a token of his own."""
    sdk = tls_sdk
    queue = await sdk.new_queue()
    await queue.send_message("x")
    other_user, other_tenant = "33333333-3333-4333-8333-333333333333", "other-tenant"
    key = await _delegation_key(sdk, token, delegated_user_tid=other_tenant)
    assert key.signed_delegated_user_tid == other_tenant
    signature = generate_queue_sas(
        sdk.endpoint.account,
        queue.queue_name,
        user_delegation_key=key,
        user_delegation_oid=other_user,
        permission="r",
        expiry=now() + HOUR,
    )
    with pytest.raises(ClientAuthenticationError):
        await sdk.queue(queue.queue_name, signature).peek_messages()
    address = f"{sdk.endpoint.url}?{signature}"
    theirs = identity.token(oid=other_user, tid=other_tenant, roles=[])
    for bearer, works in ((theirs, True), (token, False)):
        credential = sdk.token_credential(bearer)
        presented = sdk.QueueClient(address, queue.queue_name, credential)
        if works:
            assert [m.content for m in await presented.peek_messages()] == ["x"]
        else:
            with pytest.raises(ClientAuthenticationError):
                await presented.peek_messages()


@pytest.mark.parametrize(
    ("start", "expiry"), [(-2, -1), (1, 1), (0, 8 * 24)], ids=["past", "empty", "too long"]
)
async def test_a_delegation_key_lasts_at_most_seven_days(
    tls_sdk: Sdk, token: str, start: int, expiry: int
) -> None:
    """And must not be over already."""
    with refused(400):
        await _delegation_key(
            tls_sdk, token, start=now() + start * HOUR, expiry=now() + expiry * HOUR
        )


async def test_only_bearers_of_tokens_get_delegation_keys(
    tls_sdk: Sdk, identity: IdentityProvider
) -> None:
    """Not those who have the account's key, and not those with lesser roles."""
    times = {"start": now(), "expiry": now() + HOUR}
    with refused(403):
        await tls_sdk.service().get_user_delegation_key(**times)
    reader = identity.token(roles=["Storage Queue Data Reader"])
    with refused(403):
        await _delegation_key(tls_sdk, reader)
