"""Bearer tokens: whose are taken, and what they open."""

from __future__ import annotations

import asyncio
import json
import math
from base64 import urlsafe_b64encode
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from leasehold.auth.bearer import (
    BearerToken,
    BearerVerifier,
    IssuersVerifier,
)
from leasehold.auth.types import (
    BadToken,
)
from tests.unit.auth.issuer import (
    AUDIENCE,
    ISSUER,
    claims,
    ec_key,
    jwk_of,
    nameless,
    rsa_key,
    token,
)
from tests.unit.auth.support import (
    HOUR_MS,
    NAME,
    NOON_MS,
)

from .bearer_support import (
    CONFIG,
    carrying,
    check,
    signed_by_hand,
    verify,
)


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


@pytest.mark.parametrize(
    "text",
    [
        signed_by_hand({"alg": "none", "kid": "main"}, json.dumps(claims()).encode(), None),
        signed_by_hand({"alg": "None", "kid": "main"}, json.dumps(claims()).encode(), None),
        signed_by_hand({"alg": "HS256", "kid": "main"}, json.dumps(claims()).encode(), _pem()),
        signed_by_hand({"alg": "HS256", "kid": "main"}, json.dumps(claims()).encode(), b""),
        signed_by_hand({"alg": "RS256", "kid": "main"}, json.dumps(claims()).encode(), b"x"),
        signed_by_hand({"alg": "ES256", "kid": "main"}, json.dumps(claims()).encode(), b"x"),
        signed_by_hand({"kid": "main"}, json.dumps(claims()).encode(), b"x"),
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


@pytest.mark.parametrize("key_id", ["other", ""])
def test_a_key_that_is_named_must_be_known(key_id: str) -> None:
    """A token that names a key which is not in the set was signed with another one."""
    with pytest.raises(BadToken, match="unknown key"):
        verify(token(key_id=key_id))


@pytest.mark.parametrize("key_id", [None, "main"])
@pytest.mark.parametrize(
    "keys",
    [
        [nameless(rsa_key())],
        [nameless(rsa_key("other")), nameless(ec_key()), nameless(rsa_key())],
        [jwk_of(rsa_key("other"), "other"), nameless(rsa_key())],
        [jwk_of(rsa_key("other"), "other"), jwk_of(rsa_key())],
    ],
    ids=["one", "several", "beside a named one", "all named"],
)
def test_keys_and_tokens_without_ids(key_id: str | None, keys: list[dict[str, Any]]) -> None:
    """An id is a hint: without it the keys are tried, those that have none at least."""
    config = replace(CONFIG, key_set={"keys": keys})
    assert verify(token(key_id=key_id), config)
    with pytest.raises(BadToken, match="signature"):
        verify(token(key=rsa_key("third"), key_id=key_id), config)


def test_a_named_key_is_not_tried_for_another_name() -> None:
    """Only keys without an id are, where a token names one that is not there."""
    config = replace(CONFIG, key_set={"keys": [jwk_of(rsa_key()), nameless(rsa_key("other"))]})
    with pytest.raises(BadToken, match="signature"):
        verify(token(key_id="elsewhere"), config)


def test_not_every_key_of_a_large_set_is_tried() -> None:
    """A token without an id costs so many checks at most, however many keys an issuer has."""
    many = [jwk_of(ec_key(), f"{number}") for number in range(16)]
    config = replace(CONFIG, key_set={"keys": [*many, jwk_of(rsa_key())]})
    with pytest.raises(BadToken, match="signature"):
        verify(token(key_id=None), config)
    assert verify(token(), config)


_SECOND = "https://second.example.net/"


def _two_issuers() -> IssuersVerifier:
    second = replace(
        CONFIG,
        issuers=frozenset((_SECOND,)),
        key_set={"keys": [jwk_of(rsa_key("second"))]},
    )
    return IssuersVerifier([BearerVerifier(CONFIG), BearerVerifier(second)])


def test_several_issuers() -> None:
    """Each has its own keys, even where they are called the same."""
    verifier = _two_issuers()

    def use(text: str) -> BearerToken:
        return asyncio.run(verifier.verify(text, account=NAME, now_ms=NOON_MS))

    second = token(claims(iss=_SECOND, tid=None), key=rsa_key("second"))
    for _ in range(2):
        assert use(token()).tenant_id == "directory"
        assert use(second).tenant_id == _SECOND
    with pytest.raises(BadToken, match="signature"):
        use(token(claims(iss=_SECOND)))
    with pytest.raises(BadToken, match="signature"):
        use(token(key=rsa_key("second")))
    with pytest.raises(BadToken, match="another issuer"):
        use(token(claims(iss="https://third.example.net/")))
    with pytest.raises(BadToken, match="another issuer"):
        use(token(claims(iss=None)))


@pytest.mark.parametrize("text", ["", "a.b.c", "é", "x" * 16_385, "e30.e30."])
def test_no_token_of_any_issuer(text: str) -> None:
    """Whatever it is, it is refused."""
    with pytest.raises(BadToken):
        asyncio.run(_two_issuers().verify(text, account=NAME, now_ms=NOON_MS))


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
        {"kid": "main"},
        "main",
    ],
)
def test_keys_that_are_not_used(entry: Any) -> None:
    """Keys for other uses, short, secret, private or broken ones verify nothing."""
    config = replace(CONFIG, key_set={"keys": [entry]})
    with pytest.raises(BadToken, match="unknown key"):
        verify(token(), config)
    # They do not spoil the set for the others either.
    assert verify(token(), replace(CONFIG, key_set={"keys": [entry, jwk_of(rsa_key())]}))


@pytest.mark.parametrize("key_set", [{}, {"keys": None}, {"keys": "main"}, {"keys": []}])
def test_key_sets_without_keys(key_set: dict[str, Any]) -> None:
    """A set of another form holds no keys."""
    with pytest.raises(BadToken, match="unknown key"):
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
        ({"oid": 7}, "subject"),
        ({"oid": ""}, "subject"),
        ({"oid": "a\nb"}, "subject"),
        ({"oid": None}, "subject"),
        ({"tid": 7}, "subject"),
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
