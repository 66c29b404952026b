"""The query of a request: decoded once, then read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, TypeAlias

from leasehold.domain.limits import check_range
from leasehold.http.azure.errors import Fault, invalid_parameter
from leasehold.http.percent import percent_decode

Pairs: TypeAlias = tuple[tuple[str, str], ...]
Params: TypeAlias = Mapping[str, str]

_INTEGER_CHARS: Final = 19
"""More digits than a 64-bit number has; what is longer is not parsed at all."""
_MAX_TIMEOUT_S: Final = 30
_REMEMBERED_CHARS: Final = 256
"""Longer values are not remembered, which bounds the memory of the cache."""
_REMEMBERED_QUERY_CHARS: Final = 1024
_RECEIPT: Final = "popreceipt="


def parse_query(raw: str) -> tuple[Pairs, dict[str, str]]:
    """Take a query string apart.

    Returns:
        The names and values in the order sent, and the same by lower-case name. The values of a
        repeated name are joined with a comma, so that none of them is silently preferred.

    Raises:
        Fault: The query is not ASCII, or its percent-encoding is broken.
    """
    if not raw:
        return (), {}
    if len(raw) > _REMEMBERED_QUERY_CHARS:
        return _parse(raw)
    at = raw.find(_RECEIPT)
    if at < 0:
        pairs, params = _parse_before(raw)
        return pairs, params.copy()
    end = raw.find("&", at)
    if at or end < 0:
        return _parse(raw)
    # A receipt is of one use, and what stands behind it of many.
    pairs, params = _parse_before(raw[end + 1 :])
    ((name, receipt),), _ = _parse(raw[:end])
    if "popreceipt" in params or not receipt:
        return _parse(raw)
    return ((name, receipt), *pairs), {"popreceipt": receipt, **params}


def _parse(raw: str) -> tuple[Pairs, dict[str, str]]:
    if "%" in raw or "+" in raw or not raw.isascii():
        pairs = _decoded_pairs(raw)
    else:
        pairs = [
            (name, value)
            for name, _, value in [part.partition("=") for part in raw.split("&")]
            if name or value
        ]
    params = {name.lower(): value for name, value in pairs}
    if len(params) != len(pairs):
        params = {}
        for name, value in pairs:
            key = name.lower()
            params[key] = f"{params[key]},{value}" if key in params else value
    return tuple(pairs), params


# A client sends the same signature with each request, and asks for messages in the same words.
_parse_before = lru_cache(maxsize=1024)(_parse)


def _decoded_pairs(raw: str) -> list[tuple[str, str]]:
    pairs = []
    try:
        for part in raw.replace("+", " ").split("&"):
            name, _, value = part.partition("=")
            if name or value:
                pairs.append((_decoded(name), _decoded(value)))
    except ValueError:
        raise Fault("RequestUrlFailedToParse") from None
    return pairs


def _decoded(text: str) -> str:
    if "%" not in text:
        if not text.isascii():
            raise ValueError(text)
        return text
    return _decoded_before(text) if len(text) <= _REMEMBERED_CHARS else percent_decode(text)


# A client sends the same signature, times and permissions with each request.
_decoded_before = lru_cache(maxsize=4096)(percent_decode)


def whole_number(name: str, text: str) -> int:
    """Read a parameter that must be ASCII digits with an optional minus sign.

    Raises:
        Fault: It is something else; ``int`` would take underscores, spaces and foreign digits.
    """
    digits = text[1:] if text[:1] == "-" else text
    if len(digits) <= _INTEGER_CHARS and digits.isascii() and digits.isdigit():
        return int(text)
    raise invalid_parameter(name, text, "Failed to parse the value as a whole number.")


def optional_integer(params: Params, name: str, default: int, bounds: tuple[int, int]) -> int:
    """Read an integer parameter within *bounds*; absent or empty gives *default*.

    Raises:
        Fault: It is not a whole number.
        OutOfRange: It is outside the bounds.
    """
    text = params.get(name)
    if not text:
        return default
    value = whole_number(name, text)
    check_range(name, value, bounds)
    return value


def required(params: Params, name: str) -> str:
    """Read a parameter that must be there.

    Raises:
        Fault: It is absent or empty.
    """
    text = params.get(name)
    if not text:
        raise Fault("MissingRequiredQueryParameter", (("QueryParameterName", name),))
    return text


def required_integer(params: Params, name: str, bounds: tuple[int, int]) -> int:
    """Read an integer parameter that must be there, within *bounds*.

    Raises:
        Fault: It is absent, empty or not a whole number.
        OutOfRange: It is outside the bounds.
    """
    value = whole_number(name, required(params, name))
    check_range(name, value, bounds)
    return value


def timeout_s(params: Params) -> int:
    """Return how long the client is willing to wait, at most 30 seconds (the default as well).

    Raises:
        Fault: The timeout is not a whole number, or negative.
    """
    text = params.get("timeout")
    if not text:
        return _MAX_TIMEOUT_S
    value = whole_number("timeout", text)
    if value < 0:
        raise invalid_parameter("timeout", text, "The value must not be negative.")
    return min(value, _MAX_TIMEOUT_S)
