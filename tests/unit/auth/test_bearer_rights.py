"""What bearer tokens allow, and where their keys come from."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import jwt
import pytest

from leasehold.auth.authenticator import Authenticator, CredentialKind, Grant
from leasehold.auth.bearer import (
    COOLDOWN_MS,
    REFRESH_MS,
    BearerToken,
    BearerVerifier,
    SigningKeys,
)
from leasehold.auth.delegation import DelegationRequest, issue_user_delegation_key
from leasehold.auth.sas import SasTerms, make_service_sas, make_user_delegation_sas
from leasehold.auth.types import (
    BadSignature,
    BadToken,
    MalformedCredentials,
    NotAllowed,
    Operation,
    PermissionMissing,
    UnknownAccount,
)
from tests.unit.auth.issuer import claims, jwk_of, nameless, rsa_key, token
from tests.unit.auth.support import (
    ACCOUNT,
    ACCOUNTS,
    HOUR_MS,
    KEY,
    NAME,
    NOON_MS,
    no_policies,
    target,
)

from .bearer_support import (
    CONFIG,
    carrying,
    check,
    signed_by_hand,
    verify,
)


class _Endpoint:
    """Stands for the issuer's key set on the network."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: list[Any] = [jwk_of(rsa_key())]
        self.failure: Exception | None = None
        self.fetches = 0
        monkeypatch.setattr(jwt.PyJWKClient, "fetch_data", lambda client: self.fetch(client.uri))

    def fetch(self, url: str) -> dict[str, Any]:
        """Answer one fetch."""
        assert url == "https://login.example.net/keys"
        self.fetches += 1
        if self.failure is not None:
            raise self.failure
        return {"keys": self.keys}


_FETCHING = replace(CONFIG, key_set=None, key_set_url="https://login.example.net/keys")


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> _Endpoint:
    """Answer fetches of the key set without a network."""
    return _Endpoint(monkeypatch)


def test_keys_are_fetched_once(endpoint: _Endpoint) -> None:
    """The first token makes the keys be fetched; many at once wait for the same fetch."""
    verifier = BearerVerifier(_FETCHING)

    async def many() -> None:
        tokens = [token(claims(oid=f"user {number}")) for number in range(5)]
        await asyncio.gather(
            *(verifier.verify(text, account=NAME, now_ms=NOON_MS) for text in tokens)
        )

    asyncio.run(many())
    assert endpoint.fetches == 1
    assert verifier.keys.last_failure is None


def test_rotated_keys_are_followed(endpoint: _Endpoint) -> None:
    """A new key is fetched when a token names it; a withdrawn one is refused after a while."""
    verifier = BearerVerifier(_FETCHING)
    new = token(key=rsa_key("new"), key_id="new")

    def use(text: str, after_ms: int) -> BearerToken:
        return asyncio.run(verifier.verify(text, account=NAME, now_ms=NOON_MS + after_ms))

    assert use(token(), 0)
    endpoint.keys = [jwk_of(rsa_key("new"), "new")]
    # Known and cached until the keys are fetched again.
    assert use(token(), COOLDOWN_MS - 1)
    with pytest.raises(BadToken, match="unknown key"):
        use(new, COOLDOWN_MS - 1)
    assert endpoint.fetches == 1
    assert use(new, COOLDOWN_MS)
    assert endpoint.fetches == 2
    with pytest.raises(BadToken, match="unknown key"):
        use(token(), COOLDOWN_MS + 1)


def test_a_new_key_without_a_name_is_followed(endpoint: _Endpoint) -> None:
    """Where nothing names the keys, a signature that none of them made has them fetched anew."""
    verifier = BearerVerifier(_FETCHING)
    endpoint.keys = [nameless(rsa_key())]

    def use(text: str, after_ms: int) -> BearerToken:
        return asyncio.run(verifier.verify(text, account=NAME, now_ms=NOON_MS + after_ms))

    assert use(token(key_id=None), 0)
    new = token(key=rsa_key("new"), key_id=None)
    endpoint.keys = [nameless(rsa_key("new"))]
    with pytest.raises(BadToken, match="signature"):
        use(new, COOLDOWN_MS - 1)
    assert endpoint.fetches == 1
    assert use(new, COOLDOWN_MS)
    assert endpoint.fetches == 2


def test_forged_tokens_without_a_key_id_cause_no_load(endpoint: _Endpoint) -> None:
    """A thousand of them do not cause a thousand fetches either."""
    verifier = BearerVerifier(_FETCHING)
    endpoint.keys = [nameless(rsa_key())]

    async def attack() -> None:
        for number in range(1_000):
            forged = signed_by_hand({"alg": "RS256"}, b"%d" % number, b"x")
            with pytest.raises(BadToken):
                await verifier.verify(forged, account=NAME, now_ms=NOON_MS + number)

    asyncio.run(attack())
    assert endpoint.fetches == 1


def test_a_fetched_set_without_keys_is_a_failure(endpoint: _Endpoint) -> None:
    """What is no use is told like an issuer that cannot be reached."""
    verifier = BearerVerifier(_FETCHING)
    endpoint.keys = []
    with pytest.raises(BadToken, match="unknown key"):
        asyncio.run(verifier.verify(token(), account=NAME, now_ms=NOON_MS))
    assert verifier.keys.last_failure == "The key set contains no usable key."


def test_withdrawn_key_without_a_new_one(endpoint: _Endpoint) -> None:
    """Even if nobody shows a new key the set is read again from time to time."""
    verifier = BearerVerifier(_FETCHING)

    def use(after_ms: int) -> BearerToken:
        return asyncio.run(verifier.verify(token(), account=NAME, now_ms=NOON_MS + after_ms))

    assert use(0)
    endpoint.keys = [jwk_of(rsa_key("new"), "new")]
    assert use(REFRESH_MS - 1)
    with pytest.raises(BadToken, match="unknown key"):
        use(REFRESH_MS)


def test_forged_key_ids_cause_no_load(endpoint: _Endpoint) -> None:
    """A thousand tokens with invented key ids do not cause a thousand fetches."""
    verifier = BearerVerifier(_FETCHING)

    async def attack() -> None:
        for number in range(1_000):
            header = {"alg": "RS256", "kid": f"invented {number}"}
            forged = signed_by_hand(header, b"{}", b"x")
            with pytest.raises(BadToken):
                await verifier.verify(forged, account=NAME, now_ms=NOON_MS + number)

    asyncio.run(attack())
    assert endpoint.fetches == 1


@pytest.mark.parametrize(
    "failure",
    [jwt.PyJWKClientConnectionError("no answer"), ValueError("no JSON"), OSError("no network")],
)
def test_outage_of_the_issuer(endpoint: _Endpoint, failure: Exception) -> None:
    """While the keys cannot be fetched the known ones stay good, and it is tried again."""
    verifier = BearerVerifier(_FETCHING)

    def use(after_ms: int) -> BearerToken:
        return asyncio.run(verifier.verify(token(), account=NAME, now_ms=NOON_MS + after_ms))

    endpoint.failure = failure
    with pytest.raises(BadToken, match="unknown key"):
        use(0)
    assert verifier.keys.last_failure == str(failure)
    endpoint.failure = None
    assert use(COOLDOWN_MS)
    assert verifier.keys.last_failure is None
    endpoint.failure = failure
    assert use(COOLDOWN_MS + REFRESH_MS)
    assert verifier.keys.last_failure == str(failure)


def test_fetched_text_of_another_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that answers with some other JSON gives no keys."""
    monkeypatch.setattr(jwt.PyJWKClient, "fetch_data", lambda _client: ["no", "keys"])
    with pytest.raises(BadToken, match="unknown key"):
        verify(token(), _FETCHING)


def test_nobody_waits_for_a_refresh(endpoint: _Endpoint) -> None:
    """While one request fetches old keys anew, the others go on with the old ones."""
    keys = SigningKeys(None, _FETCHING.key_set_url)
    release = asyncio.Event()

    async def scene() -> None:
        await keys.freshen(NOON_MS)

        async def slow_fetch(_function: object) -> dict[str, Any]:
            await release.wait()
            return {"keys": [jwk_of(rsa_key())]}

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "to_thread", slow_fetch)
            fetching = asyncio.create_task(keys.freshen(NOON_MS + REFRESH_MS))
            await asyncio.sleep(0)
            await keys.freshen(NOON_MS + REFRESH_MS)
            assert keys.candidates("main")
            assert not fetching.done()
            release.set()
            await fetching

    asyncio.run(scene())
    assert keys.generation == 2


def test_key_set_needs_no_url() -> None:
    """Without any source of keys every token is refused."""
    with pytest.raises(BadToken, match="unknown key"):
        verify(token(), replace(CONFIG, key_set=None))


# What the authenticator makes of a token.


def test_grant_names_the_user() -> None:
    """The grant says who the token is of, and in which directory."""
    assert check(carrying(token())) == Grant(
        kind=CredentialKind.BEARER, account=NAME, object_id="user", tenant_id="directory"
    )


def test_synchronous_check_takes_no_tokens() -> None:
    """A token that comes the wrong way is refused, not overlooked."""
    authenticator = Authenticator(ACCOUNTS, no_policies, BearerVerifier(CONFIG))
    with pytest.raises(MalformedCredentials):
        authenticator.check(carrying(token()), target(), now_ms=NOON_MS)


def test_where_no_tokens_are_taken() -> None:
    """Without a configured issuer tokens are refused."""
    with pytest.raises(MalformedCredentials, match="not accepted"):
        check(carrying(token()), config=None)


def test_https_only() -> None:
    """A token on plain http may have been read by others, and is refused."""
    with pytest.raises(BadSignature, match="https"):
        check(carrying(token(), https=False))


def test_versions_before_tokens() -> None:
    """Versions before 2017-11-09 know no tokens."""
    assert check(carrying(token(), version="2017-11-09"))
    with pytest.raises(MalformedCredentials, match="2017-11-09"):
        check(carrying(token(), version="2017-07-29"))


def test_roles_open_operations() -> None:
    """An operation outside the roles lacks permission."""
    with pytest.raises(PermissionMissing):
        check(carrying(token()), Operation.PUT_MESSAGE)
    everything = token(claims(roles=["Storage Queue Data Contributor", "Owner"]))
    assert check(carrying(everything), Operation.GET_USER_DELEGATION_KEY)


@pytest.mark.parametrize("operation", [Operation.GET_QUEUE_ACL, Operation.SET_QUEUE_ACL])
def test_roles_open_stored_policies(operation: Operation) -> None:
    """Stored policies are open to the account's contributor, from version 2025-07-05 on."""
    account = token(claims(roles=["Storage Account Contributor"]))
    assert check(carrying(account, version="2025-07-05"), operation)
    with pytest.raises(NotAllowed):
        check(carrying(account, version="2025-07-04"), operation)
    data = token(claims(roles=["Storage Queue Data Contributor"]))
    with pytest.raises(PermissionMissing):
        check(carrying(data, version="2025-07-05"), operation)


def test_accounts_open_to_tokens() -> None:
    """Tokens may be kept out of accounts, and do not make accounts exist."""
    assert check(carrying(token()), account="other")
    config = replace(CONFIG, accounts=frozenset((NAME, "nowhere")))
    assert check(carrying(token()), config=config)
    with pytest.raises(NotAllowed):
        check(carrying(token()), config=config, account="other")
    with pytest.raises(UnknownAccount):
        check(carrying(token()), config=config, account="nowhere")


_TERMS = SasTerms(permission="a", expiry="2030-01-01")


def _for_one_user(presenter_id: str, delegated_tenant_id: str = "") -> str:
    wish = DelegationRequest(
        object_id="owner",
        tenant_id="directory",
        version="2026-10-06",
        expires_at_ms=NOON_MS + HOUR_MS,
        delegated_tenant_id=delegated_tenant_id,
    )
    key = issue_user_delegation_key(ACCOUNT, wish, now_ms=NOON_MS)
    return make_user_delegation_sas(NAME, key, "q1", _TERMS, presenter_id=presenter_id)


def test_signature_for_one_user() -> None:
    """The named user opens with it what it grants, whatever that user's own roles."""
    grant = check(carrying(token(), _for_one_user("user")), Operation.PUT_MESSAGE)
    assert (grant.kind, grant.object_id) == (CredentialKind.USER_DELEGATION_SAS, "owner")
    with pytest.raises(PermissionMissing):
        check(carrying(token(), _for_one_user("user")), Operation.PEEK_MESSAGES)


@pytest.mark.parametrize(
    ("presenter_id", "delegated_tenant_id", "good"),
    [
        ("user", "directory", True),
        ("user", "elsewhere", False),
        ("somebody", "", False),
        ("somebody", "directory", False),
    ],
)
def test_presenter_must_match(presenter_id: str, delegated_tenant_id: str, good: bool) -> None:
    """Both the user and the user's directory must be those the signature names."""
    arrived = carrying(token(), _for_one_user(presenter_id, delegated_tenant_id))
    if good:
        assert check(arrived, Operation.PUT_MESSAGE)
    else:
        with pytest.raises(BadSignature, match="different user"):
            check(arrived, Operation.PUT_MESSAGE)


def test_token_beside_a_signature_for_anybody() -> None:
    """Two credentials of which either would do are a contradiction."""
    with pytest.raises(MalformedCredentials, match="bound to a user"):
        check(carrying(token(), make_service_sas(NAME, KEY, "q1", _TERMS)), Operation.PUT_MESSAGE)
