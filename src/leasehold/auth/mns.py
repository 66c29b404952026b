"""Signatures of Alibaba's Message Service (MNS): pure functions from a request to a signature.

Version 2 (HMAC-SHA1) is what every SDK sends by default; version 4 (HMAC-SHA256) is what the newest
Java SDK can be told to send. Neither covers the body, only its ``Content-MD5`` if there is one.

Sources: MNS, "Signature method" for version 2; the signer of the Java SDK 2.0 for version 4.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from leasehold.auth.sharedkey import MAX_SKEW_MS, parse_http_date
from leasehold.auth.types import (
    Account,
    BadSignature,
    MalformedCredentials,
    NoCredentials,
    NotAllowed,
    UnknownAccount,
    format_iso_time,
)

_V2: Final = "MNS "
_SIGNED: Final = "x-mns-"
_SIGNED_CHARS: Final = len(_SIGNED)
_SIGNED_IN_V4: Final = frozenset({"content-type", "content-md5"})
_SERVICE: Final = "mns"
_SCOPE_PARTS: Final = 5


class _Flavour(NamedTuple):
    """The words of version 4, which a private cloud has of its own."""

    algorithm: str
    key_prefix: str
    terminator: str


_FLAVOURS: Final[Mapping[str, _Flavour]] = {
    each.algorithm: each
    for each in (
        _Flavour("MNS4-HMAC-SHA256", "aliyun_v4", "aliyun_v4_request"),
        _Flavour("APSARA-MNS4-HMAC-SHA256", "apsara_v4", "apsara_v4_request"),
    )
}


class MnsRequest(NamedTuple):
    """The parts of a request that are signed."""

    method: str
    path: str
    """As sent, still percent-encoded."""
    query: str
    """As sent, without the question mark."""
    headers: Mapping[str, str]
    """Lower-case names."""


class MnsHeader(NamedTuple):
    """An ``Authorization`` header taken apart."""

    key_id: str
    signature: str
    algorithm: str = ""
    """Of version 4; empty for version 2."""
    day: str = ""
    """``yyyymmdd``, in version 4."""
    region: str = ""
    """In version 4; anything."""


def parse_authorization(header: str) -> MnsHeader:
    """Take an ``Authorization`` header apart.

    Raises:
        MalformedCredentials: It is neither of version 2 nor of version 4.
    """
    if header.startswith(_V2):
        key_id, colon, signature = header[len(_V2) :].partition(":")
        if colon and key_id and signature:
            return MnsHeader(key_id, signature)
        raise MalformedCredentials("The Authorization header is not 'MNS AccessKeyId:Signature'.")
    algorithm, _, rest = header.partition(" ")
    flavour = _FLAVOURS.get(algorithm)
    if flavour is None:
        raise MalformedCredentials("The scheme of the Authorization header is unknown.")
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    scope = fields.get("Credential", "").rsplit("/", _SCOPE_PARTS - 1)
    signature = fields.get("Signature", "")
    if (
        len(scope) != _SCOPE_PARTS
        or not (scope[0] and signature)
        or scope[3:] != [_SERVICE, flavour.terminator]
    ):
        raise MalformedCredentials("The Authorization header has no complete Credential.")
    return MnsHeader(scope[0], signature, algorithm, scope[1], scope[2])


def date_of(headers: Mapping[str, str]) -> str | None:
    """Return the date that a request was signed with; ``x-mns-date`` stands in for ``Date``."""
    return headers.get("x-mns-date") or headers.get("date") or None


def is_signed_by(
    request: MnsRequest, header: MnsHeader, secrets: tuple[bytes, ...], date_ms: int
) -> bool:
    """Tell whether one of *secrets* has signed.

    Args:
        request: As it arrived.
        header: Its Authorization header.
        secrets: Of the key it names; an empty one signs nothing.
        date_ms: Its date, Unix milliseconds; for version 4.
    """
    given = header.signature.encode("utf-8", "surrogatepass")
    if header.algorithm:
        text = string_to_sign_v4(request, header, date_ms)
        return any(
            secret and hmac.compare_digest(sign_v4(secret, header, text).encode("ascii"), given)
            for secret in secrets
        )
    text = string_to_sign_v2(request)
    for secret in secrets:
        if secret and hmac.compare_digest(sign_v2(secret, text), given):
            return True
    return any(
        secret and hmac.compare_digest(sign_v2(secret, text), given)
        for text in _other_spellings(request)
        for secret in secrets
    )


def string_to_sign(request: MnsRequest, header: MnsHeader, date_ms: int) -> str:
    """Return what a client signs for a request, in the version of its header."""
    if header.algorithm:
        return string_to_sign_v4(request, header, date_ms)
    return string_to_sign_v2(request)


# --- version 2 -----------------------------------------------------------------------------------


def sign_v2(secret: bytes, text: str) -> bytes:
    """Return the base64 form of the HMAC-SHA1 of *text*."""
    mac = _keyed(secret).copy()
    # Headers are decoded as Latin-1, and clients sign what they sent as UTF-8.
    mac.update(text.encode("utf-8", "surrogatepass"))
    return b2a_base64(mac.digest(), newline=False)


# Taking in the key is half of the work.
@lru_cache(maxsize=256)
def _keyed(secret: bytes) -> hmac.HMAC:
    return hmac.new(secret, digestmod="sha1")


def string_to_sign_v2(request: MnsRequest) -> str:
    """Return what most clients sign: the target as it was sent."""
    path, query = request.path, request.query
    return _assemble(request, f"{path}?{query}" if query else path)


def _assemble(request: MnsRequest, target: str, *, fold: bool = False) -> str:
    headers = request.headers
    names = sorted([name for name in headers if name[:_SIGNED_CHARS] == _SIGNED])
    if fold:
        signed = "".join([f"{name}:{' '.join(headers[name].split())}\n" for name in names])
    else:
        signed = "".join([f"{name}:{headers[name]}\n" for name in names])
    get = headers.get
    return (
        f"{request.method}\n{get('content-md5', '')}\n{get('content-type', '')}\n"
        f"{date_of(headers) or ''}\n{signed}{target}"
    )


def _other_spellings(request: MnsRequest) -> Iterator[str]:
    """Yield what a genuine client may have signed instead.

    The .NET SDK signs names and values of the query before they are encoded, sorted by name, and
    folds blanks within headers, as does the Go SDK.
    """
    path, query = request.path, request.query
    sent = f"{path}?{query}" if query else path
    yield _assemble(request, sent, fold=True)
    if query:
        pairs = _decoded(query)
        plain = unquote(path)
        # Or a value could pass for two or for a name, or a path for one with a query.
        if "?" not in plain and not any(
            "&" in name or "=" in name or "&" in value for name, value in pairs
        ):
            text = "&".join(sorted(f"{name}={value}" for name, value in pairs))
            yield _assemble(request, f"{plain}?{text}")
            yield _assemble(request, f"{plain}?{text}", fold=True)


def _decoded(query: str) -> list[tuple[str, str]]:
    pairs = [part.partition("=")[::2] for part in query.split("&")] if query else []
    return [(unquote(name), unquote(value)) for name, value in pairs]


# --- version 4 -----------------------------------------------------------------------------------


def sign_v4(secret: bytes, header: MnsHeader, text: str) -> str:
    """Return the hexadecimal form of the HMAC-SHA256 of *text* under the day's key."""
    flavour = _FLAVOURS[header.algorithm]
    key = flavour.key_prefix.encode("ascii") + secret
    for part in (header.day, header.region, _SERVICE, flavour.terminator):
        key = hmac.digest(key, part.encode("utf-8", "surrogatepass"), "sha256")
    return hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256").hex()


def string_to_sign_v4(request: MnsRequest, header: MnsHeader, date_ms: int) -> str:
    """Return what the Java SDK signs; *date_ms* is cut to the second."""
    moment = datetime.fromtimestamp(date_ms // 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    terminator = _FLAVOURS[header.algorithm].terminator
    scope = f"{header.day}/{header.region}/{_SERVICE}/{terminator}"
    return f"{header.algorithm}\n{moment}\n{scope}\n{canonical_request(request)}"


def canonical_request(request: MnsRequest) -> str:
    """Return the request in the form of version 4."""
    headers = request.headers
    names = [name for name in headers if name in _SIGNED_IN_V4 or name.startswith(_SIGNED)]
    signed = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(names))
    path = _encoded(unquote(request.path), safe="/")
    return f"{request.method}\n{path}\n{_canonical_query(request.query)}\n{signed}\n"


def _canonical_query(query: str) -> str:
    pairs = [(_encoded(name.lower()), _encoded(value)) for name, value in _decoded(query)]
    return "&".join(f"{name}={value}" if value else name for name, value in sorted(pairs))


def _encoded(text: str, safe: str = "") -> str:
    # quote leaves letters, digits and "_.-~" as they are, which RFC 3986 calls unreserved.
    return quote(text, safe=safe, errors="surrogatepass")


# --- mns keys ----------------------------------------------------------------------------------
#
# Who has signed a request of MNS: access keys, and the accounts that they open.


class DateProblem(StrEnum):
    """What is wrong with the date of a request."""

    MISSING = "missing"
    INVALID = "invalid"
    SKEWED = "skewed"


class BadDate(BadSignature):
    """The request carries no date, one that is none, or one that is too far off."""

    def __init__(self, problem: DateProblem, detail: str) -> None:
        super().__init__(detail)
        self.problem = problem


class AccessKey(NamedTuple):
    """What an AccessKeyId stands for."""

    account: str
    secrets: tuple[bytes, ...]
    """Each signs as well as the other; the bytes of the AccessKeySecret's text."""


def keys_of_accounts(accounts: Iterable[Account]) -> dict[str, AccessKey]:
    """Return the access keys that accounts have by themselves.

    The id is the account's name, the secret is one of its keys in base64, as in a connection
    string.
    """
    return {
        each.name: AccessKey(each.name, tuple(b64encode(key) for key in each.keys if key))
        for each in accounts
    }


class MnsAuthenticator:
    """Checks requests against access keys.

    Args:
        keys: By AccessKeyId; read at each request.
    """

    def __init__(self, keys: Mapping[str, AccessKey]) -> None:
        self._keys = keys

    def check(self, request: MnsRequest, *, now_ms: int, named: str = "") -> str:
        """Return the account that a request is signed for.

        A security token is taken as sent: the service does not sign it either.

        Args:
            request: As it arrived.
            now_ms: The time, Unix milliseconds.
            named: The account that the host names; empty for none. It is looked at last: who has
                signed nothing must not find out whose an AccessKeyId is.

        Raises:
            NoCredentials: It is not signed.
            MalformedCredentials: The Authorization header is of another form.
            BadDate: The date is missing, is none, or is more than 15 minutes off.
            UnknownAccount: There is no such access key.
            BadSignature: It was signed with another secret, or is not what was signed.
            NotAllowed: It is a key of another account than the one named.
        """
        authorization = request.headers.get("authorization")
        if not authorization:
            raise NoCredentials("The request has no Authorization header.")
        header = parse_authorization(authorization)
        date_ms = _checked_date(request.headers, now_ms)
        key = self._keys.get(header.key_id)
        if key is None:
            raise UnknownAccount("The AccessKeyId does not exist.")
        if header.algorithm and header.day != format_iso_time(date_ms)[:10].replace("-", ""):
            raise BadSignature("The date in the Credential is not the day of the Date header.")
        if not is_signed_by(request, header, key.secrets, date_ms):
            text = string_to_sign(request, header, date_ms)
            raise BadSignature(f"The signature is not that of this string to sign: '{text}'")
        if named and named != key.account:
            raise NotAllowed
        return key.account


def _checked_date(headers: Mapping[str, str], now_ms: int) -> int:
    text = date_of(headers)
    if text is None:
        raise BadDate(DateProblem.MISSING, "The request has neither Date nor x-mns-date.")
    date_ms = parse_http_date(text)
    if date_ms is None:
        raise BadDate(DateProblem.INVALID, "The date is not one of RFC 1123 in GMT.")
    if not -MAX_SKEW_MS <= now_ms - date_ms <= MAX_SKEW_MS:
        raise BadDate(DateProblem.SKEWED, "The date is more than 15 minutes off.")
    return date_ms
