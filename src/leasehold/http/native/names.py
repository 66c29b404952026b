"""Names and numbers in paths, and lists of names: what they may be."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from leasehold.http.native.call import Call
from leasehold.http.native.problems import invalid, out_of_range
from leasehold.http.native.reading import MAX_SINGLE_BYTES, explain_invalid, within

NUMBERS: Final = (1, 2**53)
"""Of tokens and claims; readers of JSON may not hold larger ones exactly."""
MAX_NAME: Final = 256
MAX_PUBLISHED: Final = 1_000
"""Names of transactions in one request."""

# Clients shorten paths that have a part of one or two dots, and would ask for something else.
_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:~-]{1,256}")
_WHOLE: Final = re.compile(r"[0-9]{1,19}")
_NAMES: Final = msgspec.json.Decoder(list[str] | None)


def checked_name(field: str, name: str) -> str:
    """Return the name of a stream or a transaction.

    Raises:
        Refused: Neither can be called so.
    """
    if _NAME.fullmatch(name) is None:
        raise invalid(
            field,
            f"`{field}` is 1 to {MAX_NAME} of A-Z, a-z, 0-9 and `. _ : ~ -`, and not `.` or `..`.",
            value=name,
        )
    return name


def number_of(call: Call) -> int:
    """Return the number of the claim in the path.

    Raises:
        Refused: It is no whole number, or outside NUMBERS.
    """
    text = call.number
    if _WHOLE.fullmatch(text) is None:
        raise invalid("number", "The number of a claim is a whole number.", value=text)
    return within("number", int(text), NUMBERS)


def published_names(raw: msgspec.Raw) -> tuple[str, ...]:
    """Return the names of transactions in the member ``publish``.

    Raises:
        Refused: It is no list of names, or of too many.
    """
    content = bytes(raw)
    if not content:
        return ()
    if len(content) > MAX_SINGLE_BYTES:
        raise _too_many(MAX_PUBLISHED + 1)
    try:
        names = _NAMES.decode(content) or []
    except msgspec.ValidationError as error:
        raise explain_invalid(error, root="$.publish") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise invalid("$.publish", "`publish` cannot be read as JSON.") from None
    if len(names) > MAX_PUBLISHED:
        raise _too_many(len(names))
    return tuple(checked_name(f"$.publish[{number}]", name) for number, name in enumerate(names))


def _too_many(number: int) -> Exception:
    return out_of_range(
        "$.publish", number, (0, MAX_PUBLISHED), "The figures are names: publish fewer at once."
    )
