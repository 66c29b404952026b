"""Bearer tokens: whose are taken, and what they open."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
from base64 import urlsafe_b64encode
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from leasehold.auth.authenticator import Authenticator, CredentialKind, Grant, is_bearer
from leasehold.auth.bearer import (
    COOLDOWN_MS,
    REFRESH_MS,
    BearerConfig,
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
    SignedRequest,
    UnknownAccount,
)
from tests.unit.auth.issuer import AUDIENCE, ISSUER, claims, ec_key, jwk_of, rsa_key, token
from tests.unit.auth.support import (
    ACCOUNT,
    ACCOUNTS,
    HOUR_MS,
    KEY,
    NAME,
    NOON_MS,
    no_policies,
    request,
    target,
)

CONFIG = BearerConfig(
    issuers=frozenset((ISSUER,)),
    audiences=frozenset((AUDIENCE,)),
    key_set={"keys": [jwk_of(rsa_key())]},
)


def verify(text: str, config: BearerConfig = CONFIG, *, now_ms: int = NOON_MS) -> BearerToken:
    """Check a token with a new verifier."""
    return asyncio.run(BearerVerifier(config).verify(text, account=NAME, now_ms=now_ms))


def carrying(text: str, query: str = "", **changes: Any) -> SignedRequest:
    """Return a request with a bearer token."""
    asked = request(query=query, headers={"authorization": f"Bearer {text}"})
    return replace(asked, **changes)


def check(
    arrived: SignedRequest,
    operation: Operation = Operation.PEEK_MESSAGES,
    *,
    config: BearerConfig | None = CONFIG,
    account: str = NAME,
) -> Grant:
    """Check a request with a bearer token as a dialect does."""
    bearer = None if config is None else BearerVerifier(config)
    authenticator = Authenticator(ACCOUNTS, no_policies, bearer)
    to = target(operation, account=account)
    return asyncio.run(authenticator.check_bearer(arrived, to, now_ms=NOON_MS))


def test_good_token() -> None:
    """A token of the issuer, for this server, for now, says who it is and in which roles."""
    assert verify(token()) == BearerToken(
        object_id="user",
        tenant_id="directory",
        audiences=frozenset((AUDIENCE,)),
        roles=frozenset(("Storage Queue Data Reader",)),
        starts_at_ms=NOON_MS,
        expires_at_ms=NOON_MS + HOUR_MS,
    )


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
def test_rsa_algorithms(algorithm: str) -> None:
    """A key set may leave the algorithm of an RSA key open, as that of Entra ID does."""
    assert verify(token(algorithm=algorithm))


@pytest.mark.parametrize(("curve", "algorithm"), [("P-256", "ES256"), ("P-384", "ES384")])
def test_ec_algorithms(curve: str, algorithm: str) -> None:
    """A key on a curve signs with the algorithm of that curve."""
    key = ec_key(curve)
    config = replace(CONFIG, key_set={"keys": [jwk_of(key)]})
    assert verify(token(key=key, algorithm=algorithm), config)


def _pem() -> bytes:
    public = rsa_key().public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _signed_by_hand(header: dict[str, Any], body: bytes, secret: bytes | None) -> str:
    parts = [json.dumps(header).encode(), body]
    text = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = b"" if secret is None else hmac.digest(secret, text, hashlib.sha256)
    return (text + b"." + urlsafe_b64encode(signature).rstrip(b"=")).decode()


@pytest.mark.parametrize(
    "text",
    [
        _signed_by_hand({"alg": "none", "kid": "main"}, json.dumps(claims()).encode(), None),
        _signed_by_hand({"alg": "None", "kid": "main"}, json.dumps(claims()).encode(), None),
        _signed_by_hand({"alg": "HS256", "kid": "main"}, json.dumps(claims()).encode(), _pem()),
        _signed_by_hand({"alg": "HS256", "kid": "main"}, json.dumps(claims()).encode(), b""),
        _signed_by_hand({"alg": "RS256", "kid": "main"}, json.dumps(claims()).encode(), b"x"),
        _signed_by_hand({"alg": "ES256", "kid": "main"}, json.dumps(claims()).encode(), b"x"),
        _signed_by_hand({"kid": "main"}, json.dumps(claims()).encode(), b"x"),
        token(key=rsa_key("other")),
    ],
    ids=["none", "None", "HS256 pem", "HS256 empty", "RS256", "ES256", "no alg", "other key"],
)
def test_tokens_signed_in_no_way_or_another(text: str) -> None:
    """No algorithm, a symmetric one, one of another type of key, another key: all refused."""
    with pytest.raises(BadToken, match="signature"):
        verify(text)


def test_algorithm_must_be_that_of_the_key() -> None:
    """A key set that names an algorithm for its key means it."""
    config = replace(CONFIG, key_set={"keys": [jwk_of(rsa_key(), alg="PS256")]})
    assert verify(token(algorithm="PS256"), config)
    with pytest.raises(BadToken, match="signature"):
        verify(token(algorithm="RS256"), config)


@pytest.mark.parametrize("key_id", [None, "other", ""])
def test_key_must_be_named_and_known(key_id: str | None) -> None:
    """A token names its key, and the key must be in the set."""
    with pytest.raises(BadToken, match="key that is not known"):
        verify(token(key_id=key_id))


@pytest.mark.parametrize(
    "entry",
    [
        jwk_of(rsa_key(), use="enc"),
        jwk_of(rsa_key(), alg="RSA-OAEP"),
        {**json.loads(RSAAlgorithm.to_jwk(rsa_key())), "kid": "main", "key_ops": ["verify"]},
        jwk_of(rsa_key("short", 1024)),
        jwk_of(ec_key("secp256k1")),
        {"kty": "oct", "k": "c2VjcmV0", "kid": "main"},
        {"kty": "RSA", "kid": "main"},
        {"kty": "RSA", "n": "?", "e": 3, "kid": "main"},
        {key: value for key, value in jwk_of(rsa_key()).items() if key != "kid"},
        {"kid": "main"},
        "main",
    ],
)
def test_keys_that_are_not_used(entry: Any) -> None:
    """Keys for other uses, short, secret, private, nameless or broken ones verify nothing."""
    config = replace(CONFIG, key_set={"keys": [entry]})
    with pytest.raises(BadToken, match="key that is not known"):
        verify(token(), config)
    # They do not spoil the set for the others either.
    assert verify(token(), replace(CONFIG, key_set={"keys": [entry, jwk_of(rsa_key())]}))


@pytest.mark.parametrize("key_set", [{}, {"keys": None}, {"keys": "main"}, {"keys": []}])
def test_key_sets_without_keys(key_set: dict[str, Any]) -> None:
    """A set of another form holds no keys."""
    with pytest.raises(BadToken, match="key that is not known"):
        verify(token(), replace(CONFIG, key_set=key_set))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iss": "https://login.example.net/other/v2.0"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "https://storage.example.net"}, "another audience"),
        ({"aud": ["a", 1]}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"exp": NOON_MS // 1000}, "expired"),
        ({"exp": None}, "'exp'"),
        ({"exp": "1900000000"}, "'exp'"),
        ({"exp": True}, "'exp'"),
        ({"exp": math.inf}, "'exp'"),
        ({"exp": math.nan}, "'exp'"),
        ({"exp": 10**400}, "'exp'"),
        ({"nbf": NOON_MS // 1000 + 1}, "not valid yet"),
        ({"nbf": "soon"}, "'nbf'"),
        ({"oid": 7}, "whose"),
        ({"oid": ""}, "whose"),
        ({"oid": "a\nb"}, "whose"),
        ({"oid": None}, "whose"),
        ({"tid": 7}, "whose"),
    ],
)
def test_claims_that_are_refused(change: dict[str, Any], message: str) -> None:
    """Another issuer or audience, another time, nobody: a genuine signature does not help."""
    with pytest.raises(BadToken, match=message):
        verify(token(claims(**change)))


def test_issuer_of_a_strange_type() -> None:
    """An issuer that is not text is none."""
    body = json.dumps(claims(iss=["x"])).encode()
    forged = jwt.api_jws.encode(body, rsa_key(), algorithm="RS256", headers={"kid": "main"})
    with pytest.raises(BadToken, match="another issuer"):
        verify(forged)


def test_window_and_leeway() -> None:
    """A token is good from nbf to exp; the leeway widens both ends."""
    assert verify(token(), now_ms=NOON_MS + HOUR_MS - 1)
    lenient = replace(CONFIG, leeway_s=60)
    assert verify(token(), lenient, now_ms=NOON_MS - 60_000)
    assert verify(token(), lenient, now_ms=NOON_MS + HOUR_MS + 59_999)
    for now_ms in (NOON_MS - 60_001, NOON_MS + HOUR_MS + 60_000):
        with pytest.raises(BadToken):
            verify(token(), lenient, now_ms=now_ms)
    assert verify(token(claims(nbf=None)), now_ms=0)


def test_subject_and_issuer_stand_in() -> None:
    """Issuers without oid and tid are known by sub and iss."""
    said = verify(token(claims(oid=None, tid=None, sub="somebody")))
    assert (said.object_id, said.tenant_id) == ("somebody", ISSUER)


def test_audience_of_one_account() -> None:
    """An audience may name the account, and then opens no other one."""
    config = replace(CONFIG, audiences=frozenset(("https://{account}.queue.example.net",)))
    text = token(claims(aud=["x", f"https://{NAME}.queue.example.net"]))
    assert verify(text, config)
    with pytest.raises(BadToken, match="audience"):
        check(carrying(text), config=config, account="other")


@pytest.mark.parametrize(
    ("said", "roles"),
    [
        ("Storage Queue Data Reader", {"Storage Queue Data Reader"}),
        (["a", "b", 1], {"a", "b"}),
        ([], set()),
        (7, set()),
        (None, {"default"}),
    ],
)
def test_roles_claim(said: Any, roles: set[str]) -> None:
    """Roles are one text or a list; the default counts only where the claim is missing."""
    config = replace(CONFIG, default_roles=frozenset(("default",)))
    assert verify(token(claims(roles=said)), config).roles == roles


def test_claim_of_another_name() -> None:
    """Which claim lists the roles can be chosen."""
    config = replace(CONFIG, roles_claim="wids")
    assert verify(token(claims(wids=["x"])), config).roles == {"x"}
    assert verify(token(), config).roles == set()


_NESTED = urlsafe_b64encode(b"[" * 10_000).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "..", "a.b.c", "é.b.c", "\ud800", "x" * 16_385, f"{_NESTED}.e30.e30"),
        "eyJhbGciOiJSUzI1NiIsImtpZCI6N30.e30.e30",
    ],
)
def test_texts_that_are_no_tokens(text: str) -> None:
    """Whatever stands behind the word Bearer, the answer is a refusal."""
    with pytest.raises(BadToken, match="not well-formed"):
        verify(text)


def test_every_changed_character_is_noticed() -> None:
    """A token changed anywhere is refused, also after the genuine one was seen."""
    text = token()
    verifier = BearerVerifier(CONFIG)

    async def attack() -> int:
        await verifier.verify(text, account=NAME, now_ms=NOON_MS)
        refused = 0
        for at in range(0, len(text) - 2, 3):
            forged = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
            try:
                await verifier.verify(forged, account=NAME, now_ms=NOON_MS)
            except BadToken:
                refused += 1
        return refused

    assert asyncio.run(attack()) == len(range(0, len(text) - 2, 3))


def test_time_and_audience_are_checked_each_time() -> None:
    """A token known to be genuine still expires, and is still for its audience only."""
    config = replace(CONFIG, audiences=frozenset(("https://{account}.example.net",)))
    verifier = BearerVerifier(config)
    text = token(claims(aud=f"https://{NAME}.example.net"))

    async def use(now_ms: int, account: str) -> BearerToken:
        return await verifier.verify(text, account=account, now_ms=now_ms)

    first = asyncio.run(use(NOON_MS, NAME))
    assert asyncio.run(use(NOON_MS, NAME)) is first
    with pytest.raises(BadToken, match="expired"):
        asyncio.run(use(NOON_MS + HOUR_MS, NAME))
    with pytest.raises(BadToken, match="audience"):
        asyncio.run(use(NOON_MS, "other"))


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
    with pytest.raises(BadToken, match="not known"):
        use(new, COOLDOWN_MS - 1)
    assert endpoint.fetches == 1
    assert use(new, COOLDOWN_MS)
    assert endpoint.fetches == 2
    with pytest.raises(BadToken, match="not known"):
        use(token(), COOLDOWN_MS + 1)


def test_withdrawn_key_without_a_new_one(endpoint: _Endpoint) -> None:
    """Even if nobody shows a new key the set is read again from time to time."""
    verifier = BearerVerifier(_FETCHING)

    def use(after_ms: int) -> BearerToken:
        return asyncio.run(verifier.verify(token(), account=NAME, now_ms=NOON_MS + after_ms))

    assert use(0)
    endpoint.keys = [jwk_of(rsa_key("new"), "new")]
    assert use(REFRESH_MS - 1)
    with pytest.raises(BadToken, match="not known"):
        use(REFRESH_MS)


def test_forged_key_ids_cause_no_load(endpoint: _Endpoint) -> None:
    """A thousand tokens with invented key ids do not cause a thousand fetches."""
    verifier = BearerVerifier(_FETCHING)

    async def attack() -> None:
        for number in range(1_000):
            header = {"alg": "RS256", "kid": f"invented {number}"}
            forged = _signed_by_hand(header, b"{}", b"x")
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
    with pytest.raises(BadToken, match="not known"):
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
    with pytest.raises(BadToken, match="not known"):
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
            assert await keys.find("main", NOON_MS + REFRESH_MS) is not None
            assert not fetching.done()
            release.set()
            await fetching

    asyncio.run(scene())
    assert keys.generation == 2


def test_key_set_needs_no_url() -> None:
    """Without any source of keys every token is refused."""
    with pytest.raises(BadToken, match="not known"):
        verify(token(), replace(CONFIG, key_set=None))


# What the authenticator makes of a token.


def test_grant_names_the_user() -> None:
    """The grant says who the token is of, and in which directory."""
    assert check(carrying(token())) == Grant(
        kind=CredentialKind.BEARER, account=NAME, object_id="user", tenant_id="directory"
    )


def test_which_requests_are_bearer() -> None:
    """The word Bearer is known in any case, and nothing else is."""
    for header in ("Bearer x", "bearer x", "BEARER x"):
        assert is_bearer(request(headers={"authorization": header}))
    for header in ("", "Bearer", "BearerX x", "SharedKey a:b"):
        assert not is_bearer(request(headers={"authorization": header}))
    assert not is_bearer(request())


def test_synchronous_check_takes_no_tokens() -> None:
    """A token that comes the wrong way is refused, not overlooked."""
    authenticator = Authenticator(ACCOUNTS, no_policies, BearerVerifier(CONFIG))
    with pytest.raises(MalformedCredentials):
        authenticator.check(carrying(token()), target(), now_ms=NOON_MS)


def test_where_no_tokens_are_taken() -> None:
    """Without a configured issuer tokens are refused."""
    with pytest.raises(MalformedCredentials, match="not taken"):
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
    """An operation outside the roles lacks permission; stored policies are never open."""
    with pytest.raises(PermissionMissing):
        check(carrying(token()), Operation.PUT_MESSAGE)
    everything = token(claims(roles=["Storage Queue Data Contributor", "Owner"]))
    assert check(carrying(everything), Operation.GET_USER_DELEGATION_KEY)
    for operation in (Operation.GET_QUEUE_ACL, Operation.SET_QUEUE_ACL):
        with pytest.raises(NotAllowed):
            check(carrying(everything), operation)


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
        with pytest.raises(BadSignature, match="another user"):
            check(arrived, Operation.PUT_MESSAGE)


def test_token_beside_a_signature_for_anybody() -> None:
    """Two credentials of which either would do are a contradiction."""
    with pytest.raises(MalformedCredentials, match="anybody"):
        check(carrying(token(), make_service_sas(NAME, KEY, "q1", _TERMS)), Operation.PUT_MESSAGE)
