"""Bearer tokens: JSON Web Tokens signed by an issuer the operator trusts.

This module alone needs PyJWT; import it only where bearer tokens are configured. The library
checks signatures, while times, issuer and audience are checked here, against the time passed in.

Sources: RFC 7519 (claims), RFC 7517 (key sets), RFC 8725 (what to be wary of).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import jwt

from leasehold.auth.roles import Recent
from leasehold.auth.types import BadToken
from leasehold.domain.model import NEVER_MS

REFRESH_MS: Final = 5 * 60 * 1000
"""Age at which a fetched key set is fetched again: the delay until a withdrawn key is refused."""
COOLDOWN_MS: Final = 30 * 1000
"""Shortest time between two attempts to fetch, so that forged key ids cause no load."""

_FETCH_TIMEOUT_S: Final = 5.0
_TOKEN_CHARS_MAX: Final = 16_384
_REMEMBERED_TOKENS: Final = 1_024
_LAST_S: Final = NEVER_MS // 1000
_RSA_BITS_MIN: Final = 2_048
_TRIED_KEYS_MAX: Final = 16
"""Keys that one token is tried with; each costs the server the check of a signature."""
# Times, issuer and audience are checked against what is passed in.
_NO_CLAIM_CHECKS: Final[Any] = {
    "verify_signature": True,
    **dict.fromkeys(
        (
            *("verify_exp", "verify_nbf", "verify_iat", "verify_aud"),
            *("verify_iss", "verify_sub", "verify_jti"),
        ),
        False,
    ),
}
# Asymmetric algorithms only: with any other the public key would be the secret.
_RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_EC_ALGORITHMS: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BearerConfig:
    """Whose tokens are taken, and what they are good for."""

    issuers: frozenset[str]
    """Values of ``iss`` that are trusted; compared exactly."""
    audiences: frozenset[str]
    """Values of ``aud`` that mean this server. ``{account}`` in one stands for the name of the
    account addressed, as in ``https://{account}.queue.example.net``."""
    key_set: Mapping[str, Any] | None = field(default=None, repr=False)
    """The issuer's public keys, a JSON Web Key Set; or None when they are fetched."""
    key_set_url: str | None = None
    """Where to fetch the keys, http or https; used when *key_set* is None."""
    accounts: frozenset[str] | None = None
    """Accounts that tokens may use; None for all."""
    roles_claim: str = "roles"
    """Claim that lists the roles; see :mod:`leasehold.auth.bearer`."""
    default_roles: frozenset[str] = frozenset()
    """Roles of a token that has no such claim at all."""
    leeway_s: int = 0
    """Seconds by which the issuer's clock may be off, 0 to 300."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BearerToken:
    """What a genuine token says. The token itself is not kept."""

    object_id: str
    """``oid``, or ``sub`` from issuers that have no such claim."""
    tenant_id: str
    """``tid``, or ``iss`` from issuers that have no such claim."""
    audiences: frozenset[str]
    roles: frozenset[str]
    starts_at_ms: float
    expires_at_ms: float


class SigningKey(NamedTuple):
    """A public key, and what it may have signed with."""

    key: Any
    algorithms: tuple[str, ...]


class _Keys(NamedTuple):
    named: Mapping[str, SigningKey]
    nameless: tuple[SigningKey, ...]


_NO_KEYS: Final = _Keys({}, ())


class SigningKeys:
    """The issuer's public keys, given or fetched; by id those that have one."""

    def __init__(self, key_set: Mapping[str, Any] | None, url: str | None) -> None:
        self._keys = _NO_KEYS if key_set is None else _usable_keys(key_set)
        self._client: jwt.PyJWKClient | None = None
        if key_set is None and url is not None:
            self._client = jwt.PyJWKClient(url, cache_jwk_set=False, timeout=_FETCH_TIMEOUT_S)
        self._lock = asyncio.Lock()
        self._attempted_at_ms: int | None = None
        self._loaded_at_ms: int | None = None
        self.generation = 0
        """Rises each time the keys are fetched."""
        self.last_failure: str | None = None
        """Why the last attempt to fetch failed; None when it did not."""

    def __len__(self) -> int:
        return len(self._keys.named) + len(self._keys.nameless)

    async def freshen(self, now_ms: int) -> None:
        """Fetch the keys if they are old or were never fetched."""
        if self._client is not None and (
            self._loaded_at_ms is None or now_ms - self._loaded_at_ms >= REFRESH_MS
        ):
            await self._load(self._client, now_ms)

    def candidates(self, key_id: str | None) -> tuple[SigningKey, ...]:
        """Return the keys that may have signed a token which names this one, or none.

        That is the key of the id; those without an id, if there is none of it; and for a token
        that names no key all of them, those without an id first (RFC 7515, section 4.1.4: an id is
        a hint).
        """
        keys = self._keys
        if key_id is None:
            return (*keys.nameless, *keys.named.values())[:_TRIED_KEYS_MAX]
        named = keys.named.get(key_id)
        return keys.nameless if named is None else (named,)

    def knows(self, key_id: str) -> bool:
        """Tell whether there is a key of this id."""
        return key_id in self._keys.named

    async def renewed(self, now_ms: int) -> bool:
        """Fetch the keys once more, if the last time is long ago; tell whether they are new."""
        before = self.generation
        if self._client is not None:
            await self._load(self._client, now_ms)
        return self.generation != before

    async def _load(self, client: jwt.PyJWKClient, now_ms: int) -> None:
        if len(self) and self._lock.locked():
            return  # another request is fetching; what is known will do until then
        async with self._lock:
            last_ms = self._attempted_at_ms
            if last_ms is not None and now_ms - last_ms < COOLDOWN_MS:
                return
            self._attempted_at_ms = now_ms
            try:
                document = await asyncio.to_thread(client.fetch_data)
            except (jwt.PyJWTError, ValueError, OSError) as failure:
                # The keys known so far stay good: an outage of the issuer is not ours.
                self.last_failure = str(failure)
                return
            self._keys = _usable_keys(document)
            self._loaded_at_ms = now_ms
            self.generation += 1
            self.last_failure = None if len(self) else "The key set contains no usable key."


class BearerVerifier:
    """Checks bearer tokens of one configuration."""

    def __init__(self, config: BearerConfig) -> None:
        self.config = config
        self.keys = SigningKeys(config.key_set, config.key_set_url)
        # By digest, so that no token stays in memory.
        self._verified: Recent[bytes, tuple[int, BearerToken]] = Recent(_REMEMBERED_TOKENS)

    async def verify(self, text: str, *, account: str, now_ms: int) -> BearerToken:
        """Check a token.

        Args:
            text: The token, without the word Bearer.
            account: Name of the account addressed.
            now_ms: The time, Unix milliseconds.

        Raises:
            BadToken: It is not a token of a trusted issuer, for this server, for now.
        """
        if len(text) > _TOKEN_CHARS_MAX or not text.isascii():
            raise BadToken("The bearer token is not well-formed.")
        await self.keys.freshen(now_ms)
        digest = hashlib.sha256(text.encode("ascii")).digest()
        known = self._verified.get(digest)
        if known is not None and known[0] == self.keys.generation:
            token = known[1]
        else:
            token = self._read_claims(await self._verified_claims(text, now_ms))
            self._verified.keep(digest, (self.keys.generation, token))
        leeway_ms = self.config.leeway_s * 1000
        if now_ms >= token.expires_at_ms + leeway_ms:
            raise BadToken("The bearer token has expired.")
        if now_ms < token.starts_at_ms - leeway_ms:
            raise BadToken("The bearer token is not valid yet.")
        meant = {name.replace("{account}", account) for name in self.config.audiences}
        if token.audiences.isdisjoint(meant):
            raise BadToken("The bearer token is meant for another audience.")
        return token

    def may_use(self, account: str) -> bool:
        """Tell whether tokens are good for an account at all."""
        allowed = self.config.accounts
        return allowed is None or account in allowed

    async def _verified_claims(self, text: str, now_ms: int) -> Mapping[str, Any]:
        # The header is read before anything is verified; deeply nested JSON in it ends in
        # RecursionError in older releases of the library.
        try:
            key_id = jwt.get_unverified_header(text).get("kid")
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise BadToken("The bearer token is not well-formed.") from None
        candidates = self.keys.candidates(key_id)
        claims = _claims_signed_with(candidates, text)
        # A key that is named and known is the one; without, a new key may be the reason.
        is_certain = key_id is not None and self.keys.knows(key_id)
        if claims is None and not is_certain and await self.keys.renewed(now_ms):
            candidates = self.keys.candidates(key_id)
            claims = _claims_signed_with(candidates, text)
        if claims is not None:
            return claims
        if not candidates:
            raise BadToken("The bearer token is signed with an unknown key.")
        raise BadToken("The signature of the bearer token is invalid.")

    def _read_claims(self, claims: Mapping[str, Any]) -> BearerToken:
        issuer = claims.get("iss")
        if not isinstance(issuer, str) or issuer not in self.config.issuers:
            raise BadToken("The bearer token is from another issuer.")
        object_id = claims.get("oid", claims.get("sub"))
        tenant_id = claims.get("tid", issuer)
        for who in (object_id, tenant_id):
            # Both become fields of strings to sign, and may be logged.
            if not (isinstance(who, str) and who and who.isprintable()):
                raise BadToken("The bearer token does not identify its subject.")
        return BearerToken(
            object_id=object_id,
            tenant_id=tenant_id,
            audiences=_strings(claims.get("aud")),
            roles=_strings(claims.get(self.config.roles_claim, self.config.default_roles)),
            starts_at_ms=_moment(claims, "nbf") if "nbf" in claims else 0,
            expires_at_ms=_moment(claims, "exp"),
        )


class IssuersVerifier:
    """Checks bearer tokens of several issuers, each of which has its own keys.

    A token is checked by the verifier of the issuer that it names, and by no other: the keys of one
    issuer are no good for what says that it is of another (RFC 8725, section 3.8).
    """

    def __init__(self, verifiers: Sequence[BearerVerifier]) -> None:
        self.verifiers = tuple(verifiers)
        self._chosen: Recent[bytes, BearerVerifier] = Recent(_REMEMBERED_TOKENS)

    async def verify(self, text: str, *, account: str, now_ms: int) -> BearerToken:
        """See :meth:`BearerVerifier.verify`."""
        verifier = self._verifier_of(text)
        return await verifier.verify(text, account=account, now_ms=now_ms)

    def may_use(self, account: str) -> bool:
        """See :meth:`BearerVerifier.may_use`; the accounts are the same for all issuers."""
        return all(each.may_use(account) for each in self.verifiers)

    def _verifier_of(self, text: str) -> BearerVerifier:
        if len(text) > _TOKEN_CHARS_MAX or not text.isascii():
            raise BadToken("The bearer token is not well-formed.")
        digest = hashlib.sha256(text.encode("ascii")).digest()
        chosen = self._chosen.get(digest)
        if chosen is None:
            issuer = _unverified_issuer(text)
            chosen = next((each for each in self.verifiers if issuer in each.config.issuers), None)
            if chosen is None:
                raise BadToken("The bearer token is from another issuer.")
            self._chosen.keep(digest, chosen)
        return chosen


def _unverified_issuer(text: str) -> str | None:
    try:
        claims = jwt.decode(text, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise BadToken("The bearer token is not well-formed.") from None
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else None


def nonce_of(text: str) -> object:
    """Return the nonce in a token that was verified; None if it has none."""
    return jwt.decode(text, options={"verify_signature": False}).get("nonce")


def _claims_signed_with(keys: tuple[SigningKey, ...], text: str) -> Mapping[str, Any] | None:
    """Return what a token says, if one of *keys* has signed it."""
    for key in keys:
        try:
            return jwt.decode(text, key.key, algorithms=key.algorithms, options=_NO_CLAIM_CHECKS)
        except (jwt.PyJWTError, ValueError, RecursionError):
            continue
    return None


def _moment(claims: Mapping[str, Any], name: str) -> float:
    """Return a NumericDate claim as Unix milliseconds."""
    value = claims.get(name)
    # The comparison also refuses infinities and what is not a number.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LAST_S:
        raise BadToken(f"The bearer token's '{name}' is missing or not a number.")
    return value * 1000


def _strings(value: Any) -> frozenset[str]:
    """Return a claim that may be one string or several; anything else counts as none."""
    if isinstance(value, str):
        return frozenset((value,))
    if isinstance(value, list | frozenset):
        return frozenset(item for item in value if isinstance(item, str))
    return frozenset()


def _usable_keys(key_set: object) -> _Keys:
    """Return the keys of a set that may verify tokens; others are passed over."""
    named: dict[str, SigningKey] = {}
    nameless: list[SigningKey] = []
    # What was fetched may be any JSON.
    entries = key_set.get("keys") if isinstance(key_set, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        key = _usable_key(entry) if isinstance(entry, dict) else None
        if key is None:
            continue
        if isinstance(entry.get("kid"), str):
            named.setdefault(entry["kid"], key)
        elif "kid" not in entry and len(nameless) < _TRIED_KEYS_MAX:
            nameless.append(key)
    return _Keys(named, tuple(nameless))


def _usable_key(entry: dict[str, Any]) -> SigningKey | None:
    if entry.get("use", "sig") != "sig" or "d" in entry:
        return None
    algorithms: tuple[str, ...] = ()
    if entry.get("kty") == "RSA":
        algorithms = _RSA_ALGORITHMS
    elif entry.get("kty") == "EC" and entry.get("crv") in _EC_ALGORITHMS:
        algorithms = (_EC_ALGORITHMS[entry["crv"]],)
    if "alg" in entry:
        algorithms = tuple(name for name in algorithms if name == entry["alg"])
    if not algorithms:
        return None
    try:
        key = jwt.PyJWK(entry).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    return SigningKey(key, algorithms) if key.key_size >= _bits_min(entry) else None


def _bits_min(entry: Mapping[str, Any]) -> int:
    return _RSA_BITS_MIN if entry["kty"] == "RSA" else 0
