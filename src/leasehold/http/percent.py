"""Percent-encoding, decoded strictly."""

from __future__ import annotations

from typing import Final

_HEX_DIGITS: Final = "0123456789ABCDEFabcdef"
_BYTE_OF: Final = {
    (high + low).encode(): bytes((int(high + low, 16),))
    for high in _HEX_DIGITS
    for low in _HEX_DIGITS
}


def percent_decode(text: str) -> str:
    """Decode ``%XX`` once.

    Raises:
        ValueError: A percent sign is not followed by two hexadecimal digits, the result is not
            UTF-8, or *text* itself is not ASCII.
    """
    first, *rest = text.encode("ascii").split(b"%")
    decoded = [first]
    for piece in rest:
        octet = _BYTE_OF.get(piece[:2])
        if octet is None:
            raise ValueError(text)
        decoded += (octet, piece[2:])
    return b"".join(decoded).decode("utf-8")
