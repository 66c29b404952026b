"""SharedKey and SharedKeyLite: signing a request with an account key.

Source: Azure Storage, "Authorize with Shared Key". The string to sign depends on the protocol
version and on details in which the official SDKs differ from each other, so a signature is
compared with every spelling of the request that a genuine client may have signed. All spellings
say the same about what is asked for.

Two limits of the scheme itself: names of query parameters are signed in lower case, so whoever
reads the query must not tell ``comp`` from ``Comp``; and SharedKeyLite covers no query parameter
but ``comp``.
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from leasehold.auth.types import (
    EPOCH,
    Account,
    BadSignature,
    MalformedCredentials,
    SignedRequest,
    Target,
)

MAX_SKEW_MS: Final = 15 * 60 * 1000
"""How far the date of a signed request may be off, either way."""

_SHARED_KEY: Final = "SharedKey "
_SHARED_KEY_LITE: Final = "SharedKeyLite "
_SECONDARY: Final = "-secondary"
_BLANKS: Final = " \t\r\n"

_ZERO_LENGTH_IS_EMPTY_SINCE: Final = "2015-02-21"
_EMPTY_HEADERS_SIGNED_SINCE: Final = "2016-05-31"

# The SDKs imitate the string order of the service's own platform: dash and apostrophe count only
# between names that are otherwise equal, and "_" comes before digits, digits before letters.
_CULTURE_ORDER: Final = "!#$%&*.^_`|~+0123456789abcdefghijklmnopqrstuvwxyz"
_CULTURE_FIRST: Final = str.maketrans(
    {**{char: chr(33 + rank) for rank, char in enumerate(_CULTURE_ORDER)}, "-": None, "'": None}
)
_CULTURE_THEN: Final = str.maketrans({**dict.fromkeys(_CULTURE_ORDER, "0"), "'": "2", "-": "3"})
_CULTURE_END: Final = "1"


class SharedKeyHeader(NamedTuple):
    """An ``Authorization`` header taken apart."""

    lite: bool
    account: str
    signature: str


def parse_authorization(header: str) -> SharedKeyHeader:
    """Take a SharedKey or SharedKeyLite header apart.

    Raises:
        MalformedCredentials: It is of another form.
    """
    if header[:10] == _SHARED_KEY:
        lite, rest = False, header[10:]
    elif header[:14] == _SHARED_KEY_LITE:
        lite, rest = True, header[14:]
    else:
        raise MalformedCredentials("The scheme of the Authorization header is unknown.")
    account, colon, signature = rest.partition(":")
    if not (colon and account and signature):
        raise MalformedCredentials("The Authorization header is not 'scheme account:signature'.")
    return SharedKeyHeader(lite, account, signature)


def sign(request: SignedRequest, account: str, key: bytes, *, lite: bool = False) -> str:
    """Return the ``Authorization`` header value for *request*, for clients and tests.

    Args:
        request: What will be sent, with ``x-ms-date`` and ``x-ms-version`` among its headers.
        account: Name of the account, without the ``-secondary`` suffix.
        key: The decoded account key.
        lite: Whether to sign in the SharedKeyLite form.
    """
    text = string_to_sign(request, account, lite=lite)
    scheme = _SHARED_KEY_LITE if lite else _SHARED_KEY
    return f"{scheme}{account}:{compute_signature(key, text).decode('ascii')}"


def compute_signature(key: bytes, text: str) -> bytes:
    """Return the base64 form of the HMAC-SHA256 of *text*."""
    # Text that was decoded leniently may hold surrogates; it must fail to match, not to encode.
    digest = hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256")
    return b2a_base64(digest, newline=False)


def string_to_sign(request: SignedRequest, account: str, *, lite: bool = False) -> str:
    """Return what a client signs for *request*.

    Raises:
        BadSignature: A query parameter could be read as another one once it is signed.
    """
    headers = _canonical_headers(request.headers, request.version)
    return _assemble(request, account, headers, request.path, lite=lite)


def check_shared_key(
    request: SignedRequest,
    target: Target,
    account: Account,
    header: SharedKeyHeader,
    *,
    now_ms: int,
) -> int:
    """Check a signed request.

    Args:
        request: The request as it arrived.
        target: Its account names the resource, whoever signed.
        account: Whose keys may have signed.
        header: The request's Authorization header.
        now_ms: The time, Unix milliseconds.

    Returns:
        Which key has signed: 0 for the first, 1 for the second.

    Raises:
        BadSignature: The signature, the date or the signer is not right. The detail shows the
            string to sign, as the service does, so that client authors can find their mistake.
    """
    _check_date(request.headers, now_ms)
    if header.account != target.account:
        raise BadSignature("The request is signed by a different account than the one addressed.")
    given = header.signature.encode("utf-8", "surrogatepass")
    usual = string_to_sign(request, target.account, lite=header.lite)
    number = _matching_key(account, usual, given)
    if number is not None:
        return number
    for text in _other_spellings(request, target, lite=header.lite):
        number = _matching_key(account, text, given)
        if number is not None:
            return number
    raise BadSignature(f"The signature is not that of this string to sign: '{usual}'")


def _matching_key(account: Account, text: str, given: bytes) -> int | None:
    for number, key in enumerate(account.keys):
        # An empty key would let everybody sign.
        if key and hmac.compare_digest(compute_signature(key, text), given):
            return number
    return None


def _check_date(headers: Mapping[str, str], now_ms: int) -> None:
    date = headers.get("x-ms-date")
    if date is None:
        date = headers.get("date", "")
    sent_ms = parse_http_date(date)
    if sent_ms is None:
        raise BadSignature("The request carries no date, or not one of RFC 1123 in GMT.")
    if not -MAX_SKEW_MS <= now_ms - sent_ms <= MAX_SKEW_MS:
        raise BadSignature(f"The request's date is more than 15 minutes off: '{date}'")


def _other_spellings(request: SignedRequest, target: Target, *, lite: bool) -> Iterator[str]:
    """Yield what a genuine client may have signed instead of the usual string."""
    by_bytes = _canonical_headers(request.headers, request.version)
    by_culture = _canonical_headers(request.headers, request.version, culture=True)
    if by_culture != by_bytes:
        yield _assemble(request, target.account, by_culture, request.path, lite=lite)
    stripped = _without_secondary(request.path, target)
    if stripped is not None:
        yield _assemble(request, target.account, by_bytes, stripped, lite=lite)
        if by_culture != by_bytes:
            yield _assemble(request, target.account, by_culture, stripped, lite=lite)


def _without_secondary(path: str, target: Target) -> str | None:
    """Return the path as clients sign it that know only the primary name, if that differs."""
    prefix = f"/{target.account}{_SECONDARY}"
    if not (target.secondary and f"{path}/".startswith(f"{prefix}/")):
        return None
    return f"/{target.account}{path[len(prefix) :]}"


def _assemble(request: SignedRequest, account: str, headers: str, path: str, *, lite: bool) -> str:
    get = request.headers.get
    date = "" if "x-ms-date" in request.headers else get("date", "")
    if lite:
        return (
            f"{request.method}\n{get('content-md5', '')}\n{get('content-type', '')}\n{date}\n"
            f"{headers}/{account}{path}{_canonical_comp(request.query)}"
        )
    length = get("content-length", "")
    if length == "0" and request.version >= _ZERO_LENGTH_IS_EMPTY_SINCE:
        length = ""
    return (
        f"{request.method}\n{get('content-encoding', '')}\n{get('content-language', '')}\n"
        f"{length}\n{get('content-md5', '')}\n{get('content-type', '')}\n{date}\n"
        f"{get('if-modified-since', '')}\n{get('if-match', '')}\n{get('if-none-match', '')}\n"
        f"{get('if-unmodified-since', '')}\n{get('range', '')}\n"
        f"{headers}/{account}{path}{_canonical_query(request.query)}"
    )


def _canonical_headers(headers: Mapping[str, str], version: str, *, culture: bool = False) -> str:
    """Return the ``x-ms-*`` headers, one a line, in one of the two orders.

    Blanks inside a value stay as they are. The specification folds runs of them, but no official
    SDK does, and folding would let an attacker change a value under its signature.
    """
    names = [name for name in headers if name[:5] == "x-ms-"]
    if culture:
        names.sort(key=_culture_key)
    else:
        names.sort()
    if version < _EMPTY_HEADERS_SIGNED_SINCE:
        names = [name for name in names if headers[name].strip(_BLANKS)]
    return "".join([f"{name}:{headers[name].strip(_BLANKS)}\n" for name in names])


def _culture_key(name: str) -> tuple[str, str]:
    return name.translate(_CULTURE_FIRST), name.translate(_CULTURE_THEN) + _CULTURE_END


def _canonical_comp(query: tuple[tuple[str, str], ...]) -> str:
    """Return the one parameter that SharedKeyLite signs.

    Raises:
        BadSignature: It stands there twice, and only one could be signed.
    """
    values = [value for name, value in query if name.lower() == "comp"]
    if len(values) > 1:
        raise BadSignature("The query parameter 'comp' is repeated.")
    return f"?comp={values[0]}" if values else ""


def _canonical_query(query: tuple[tuple[str, str], ...]) -> str:
    """Return the parameters sorted by name, a repeated one's values sorted and comma-joined.

    Raises:
        BadSignature: A line break, or a colon in a name, would let one parameter pass for two or
            for another one. No operation has a use for either.
    """
    if not query:
        return ""
    parts: list[str] = []
    last = None
    lines = 0
    for name, value in sorted([(name.lower(), value) for name, value in query]):
        if name == last:
            parts.append(f",{value}")
        else:
            if ":" in name:
                raise BadSignature("The name of a query parameter contains a colon.")
            parts.append(f"\n{name}:{value}")
            last = name
            lines += 1
    text = "".join(parts)
    if text.count("\n") != lines:
        raise BadSignature("A query parameter contains a line break.")
    return text


# --- dates -------------------------------------------------------------------------------------
#
# RFC 1123 in the ``Date`` and ``x-ms-date`` headers, as Unix milliseconds.


_HTTP_DATE_CHARS: Final = 29
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)
_MS: Final = timedelta(milliseconds=1)


def parse_http_date(text: str) -> int | None:
    """Return the moment an RFC 1123 date names, or None when it is not one.

    Only the fixed-length form in GMT counts (``Sat, 21 Nov 2026 00:17:51 GMT``), which RFC 9110
    section 5.6.7 asks of everyone who sends a date.
    """
    # The length is looked at first so that no client can fill the cache with long texts.
    return _parse_http_date(text) if len(text) == _HTTP_DATE_CHARS else None


# Clients send the same second many times over.
@lru_cache(maxsize=256)
def _parse_http_date(text: str) -> int | None:
    day, month, year = text[5:7], text[8:11], text[12:16]
    hour, minute, second = text[17:19], text[20:22], text[23:25]
    shape = text[3:5] + text[7] + text[11] + text[16] + text[19] + text[22] + text[25:]
    digits = day + year + hour + minute + second
    if shape != ",    :: GMT" or not (digits.isascii() and digits.isdigit()):
        return None
    if month not in _MONTHS or text[:3] not in _DAYS:
        return None
    try:
        moment = datetime(
            int(year),
            _MONTHS.index(month) + 1,
            int(day),
            int(hour),
            int(minute),
            int(second),
            tzinfo=UTC,
        )
    except ValueError:
        return None
    return (moment - EPOCH) // _MS


def format_http_date(at_ms: int) -> str:
    """Return *at_ms* as an RFC 1123 date in GMT, cut to the second."""
    at = EPOCH + timedelta(milliseconds=at_ms)
    day, month = _DAYS[at.weekday()], _MONTHS[at.month - 1]
    return f"{day}, {at.day:02} {month} {at.year:04} {at.hour:02}:{at.minute:02}:{at.second:02} GMT"
