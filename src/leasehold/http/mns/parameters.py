"""The query of a request, and numbers in it or in a document: read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from leasehold.domain.limits import check_range
from leasehold.http.mns.errors import Fault, invalid_argument
from leasehold.http.percent import percent_decode

Params: TypeAlias = Mapping[str, str]

_INTEGER_CHARS: Final = 19
"""More digits than a 64-bit number has; what is longer is not parsed at all."""


def parse_query(raw: str) -> dict[str, str]:
    """Take a query string apart, by lower-case name: clients differ in the case.

    A plus stays a plus: clients send receipt handles as they are. The values of a repeated name are
    joined with a comma, so that none of them is silently preferred.

    Raises:
        Fault: It is not ASCII, or its percent-encoding is broken.
    """
    params: dict[str, str] = {}
    if not raw:
        return params
    try:
        for part in raw.split("&"):
            name, _, value = part.partition("=")
            if "%" in part or not part.isascii():
                name, value = percent_decode(name), percent_decode(value)
            key = name.lower()
            params[key] = f"{params[key]},{value}" if key in params else value
    except ValueError:
        raise Fault("InvalidQueryString") from None
    return params


def whole_number(name: str, text: str, bounds: tuple[int, int]) -> int:
    """Read a whole number.

    Raises:
        Fault: It is none.
        OutOfRange: It is outside *bounds*.
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(text) <= _INTEGER_CHARS):
        raise invalid_argument(f"The value of {name} must be a whole number.")
    value = int(text)
    check_range(name, value, bounds)
    return value
