"""Reading what a client sends: the query, JSON, and values with limits."""

from __future__ import annotations

import asyncio
import binascii
import difflib
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec

from leasehold.auth.sas import FIELD_NAMES
from leasehold.auth.types import Pairs
from leasehold.domain.commands import REMOVE_SAVED
from leasehold.domain.errors import InvalidQueueName
from leasehold.domain.limits import MAX_SAVED_BYTES, NATIVE, check_queue_name
from leasehold.http.native.call import Call
from leasehold.http.native.errors import (
    Refused,
    invalid,
    out_of_range,
    problem,
    problem_of,
    shown,
    too_large,
)
from leasehold.wire.flows import MAX_PUBLISHED
from leasehold.wire.messages import MAX_PROPERTIES_BYTES
from leasehold.wire.parts import MAX_NAME, MAX_TEXT, NUMBERS, AnyJson, WithBody

_T = TypeVar("_T")

MAX_SINGLE_BYTES: Final = 1024 * 1024
"""Largest body of a request that is no batch. Read JSON takes some 40 times its bytes."""
_LONGEST_NAME: Final = 64
"""No member or parameter has a name of so many characters."""
_READERS_DEPTH: Final = 200
"""How much deeper than here a reader of what was saved may be in its stack."""
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PLACE: Final = re.compile(r" - at `(?:key in )?(?P<path>[^`]*)`$")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`")
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*)`")
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?")
_SWITCHES: Final = {"true": True, "false": False}


# --- the address ---------------------------------------------------------------------------------


def percent_decode(text: str, what: str) -> str:
    """Decode ``%XX`` once.

    Raises:
        Refused: It is not well-formed, or not UTF-8.
    """
    if not text.isascii() or _BROKEN_ESCAPE.search(text):
        raise invalid(None, f"The percent-encoding of {what} is broken.")
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise invalid(None, f"The percent-encoding of {what} is not that of UTF-8.") from None


def read_query(raw: str) -> Pairs:
    """Return names and values in the order sent, decoded once; ``+`` is a space.

    Raises:
        Refused: Its percent-encoding is broken.
    """
    if not raw:
        return ()
    if "%" not in raw and "+" not in raw and raw.isascii():
        parts = [part.partition("=") for part in raw.split("&") if part]
        return tuple([(name, value) for name, _, value in parts])
    pairs = []
    for part in raw.replace("+", " ").split("&"):
        if part:
            name, _, value = part.partition("=")
            pairs.append((percent_decode(name, "the query"), percent_decode(value, "the query")))
    return tuple(pairs)


def read_params(pairs: Pairs, allowed: frozenset[str]) -> Mapping[str, str]:
    """Return the parameters that are not those of a signature.

    Raises:
        Refused: One is repeated, or the call does not know it.
    """
    params: dict[str, str] = {}
    for name, value in pairs:
        if name in FIELD_NAMES:
            continue
        if name not in allowed:
            there = shown(name)
            raise invalid(
                there, f"This call has no query parameter `{there}`.{_near(name, allowed)}"
            )
        if name in params:
            raise invalid(name, f"The query parameter `{name}` is there twice.")
        params[name] = value
    return params


def _near(name: str, known: Iterable[str]) -> str:
    if len(name) > _LONGEST_NAME:
        return ""  # to compare a name of megabytes takes seconds, and much memory
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean `{near[0]}`?" if near else ""


def param_int(call: Call, name: str, bounds: tuple[int, int]) -> int | None:
    """Read a parameter that is a whole number; None if it is not there."""
    text = call.params.get(name)
    if not text:
        return None
    if _WHOLE.fullmatch(text) is None:
        raise invalid(name, f"`{name}` must be a whole number.", value=text)
    return within(name, int(text), bounds)


def param_number(call: Call, name: str, bounds: tuple[float, float]) -> float | None:
    """Read a parameter that is a number; None if it is not there."""
    text = call.params.get(name)
    if not text:
        return None
    if _DECIMAL.fullmatch(text) is None:
        raise invalid(name, f"`{name}` must be a number such as 30 or 0.5.", value=text)
    return within(name, float(text), bounds)


def param_switch(call: Call, name: str, *, default: bool) -> bool:
    """Read a parameter that is ``true`` or ``false``."""
    text = call.params.get(name)
    if not text:
        return default
    if text not in _SWITCHES:
        raise invalid(name, f"`{name}` must be true or false.", value=text)
    return _SWITCHES[text]


# --- JSON ----------------------------------------------------------------------------------------


def read_body(
    decoder: msgspec.json.Decoder[_T], call: Call, limit_bytes: int = MAX_SINGLE_BYTES
) -> _T:
    """Read the body of a request that is no batch; none at all counts as ``{}``.

    Raises:
        Refused: It is not JSON, not what the call takes, or larger than *limit_bytes*.
    """
    body = call.request.body
    if len(body) > limit_bytes:
        raise Refused(problem("request-too-large", limit=limit_bytes))
    return decode_body(decoder, body)


def decode_body(
    decoder: msgspec.json.Decoder[_T], body: bytes | msgspec.Raw, root: str = "$"
) -> _T:
    """Read a body of any size, or the part of one that is at *root*; none at all counts as ``{}``.

    Raises:
        Refused: It is not JSON, or not what the call takes.
    """
    try:
        return decoder.decode(body or b"{}")
    except msgspec.ValidationError as error:
        raise explain_invalid(error, known_members(decoder.type), root) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(root, f"The body cannot be read as JSON: {_reason(error)}.") from None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "a text is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)


def explain_invalid(
    error: msgspec.ValidationError, known: Iterable[str] = (), root: str = "$"
) -> Refused:
    """Return the refusal for what msgspec says, with *root* as the place of what it looked at."""
    text = str(error)
    place = _PLACE.search(text)
    path = root + (place["path"][1:] if place else "")
    text = _PLACE.sub("", text)
    unknown, missing = _UNKNOWN.fullmatch(text), _MISSING.fullmatch(text)
    if unknown is not None:
        name = shown(unknown["name"])
        detail = f"There is no member `{name}` in `{path}`.{_near(unknown['name'], known)}"
        return invalid(f"{path}.{name}", detail)
    if missing is not None:
        name = missing["name"]
        return invalid(f"{path}.{name}", f"The member `{name}` of `{path}` is missing.")
    return invalid(
        path, f"`{path}` is not of the right type: {shown(text[:1].lower() + text[1:])}."
    )


def known_members(kind: Any) -> set[str]:
    """Return the names of all members of a Struct and of those in it."""
    names: set[str] = set()
    waiting = [msgspec.inspect.type_info(kind)]
    while waiting:
        info: Any = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType):
            for member in info.fields:
                names.add(member.encode_name)
                waiting.append(member.type)
        elif isinstance(info, msgspec.inspect.Metadata):
            waiting.append(info.type)
        elif isinstance(info, msgspec.inspect.UnionType):
            waiting.extend(info.types)
        elif isinstance(info, msgspec.inspect.ListType):
            waiting.append(info.item_type)
    return names


# --- values --------------------------------------------------------------------------------------

_N = TypeVar("_N", int, float)


def within(field: str, value: _N, bounds: tuple[float, float]) -> _N:
    """Return *value*.

    Raises:
        Refused: It is outside *bounds*.
    """
    # Written so that a value that is no number is outside as well.
    if bounds[0] <= value <= bounds[1]:
        return value
    raise out_of_range(field, value, bounds)


def short_text(field: str, text: str | None, limit: int = MAX_TEXT) -> str | None:
    """Return *text*.

    Raises:
        Refused: It has more characters than *limit*, or none.
    """
    if text is not None and not 1 <= len(text) <= limit:
        raise out_of_range(
            field, len(text), (1, limit), f"The figures are characters: shorten `{field}`."
        )
    return text


def queue_name(field: str, name: str) -> str:
    """Return *name*.

    Raises:
        Refused: No queue can be called so.
    """
    try:
        check_queue_name(name)
    except InvalidQueueName as error:
        found = problem_of(error)
        found.field = field
        raise Refused(found) from None
    return name


def read_properties(field: str, properties: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the properties of a message.

    Raises:
        Refused: Together they are larger than MAX_PROPERTIES_BYTES.
    """
    if not properties:
        return {}
    size = 0
    for name, value in properties.items():
        size += len(name.encode()) + len(value.encode())
    if size > MAX_PROPERTIES_BYTES:
        raise out_of_range(
            field,
            size,
            (0, MAX_PROPERTIES_BYTES),
            "The figures are the bytes of all names and values: shorten them, or put them in the "
            "body.",
        )
    return properties


def body_of(item: WithBody, prefix: str = "", limit_bytes: int = NATIVE.body_bytes) -> bytes | None:
    """Return the body that *item* brings, None if it brings none.

    Args:
        item: What may bring one.
        prefix: What goes before the name of a member in a refusal.
        limit_bytes: Largest body in bytes, 1 or more; ``puts.body_limit`` knows it.

    Raises:
        Refused: It brings two, one that is not base64, or one that is too large.
    """
    text, encoded = item.body, item.body_base64
    raw = bytes(item.json) if item.json else b""
    if raw == b"null":
        raw = b""
    if (text is not None) + (encoded is not None) + bool(raw) > 1:
        raise invalid(None, "There is more than one of `body`, `body_base64` and `json`.")
    if text is not None:
        name, body = "body", text.encode()
    elif encoded is not None:
        name, body = "body_base64", _decode_base64(prefix, encoded)
    elif raw:
        name, body = "json", _compact(prefix, raw)
    else:
        return None
    if len(body) > limit_bytes:
        raise too_large(prefix + name, len(body), limit_bytes)
    return body


def saved_of(field: str, raw: msgspec.Raw) -> str:
    """Return what a holder wants saved, without blanks; REMOVE_SAVED for ``null``.

    Raises:
        Refused: It cannot be read as JSON, also by readers deeper in their stack, or is too large.
    """
    text = bytes(raw)
    if text == b"null":
        return REMOVE_SAVED
    try:
        msgspec.json.decode(b"[" * _READERS_DEPTH + text + b"]" * _READERS_DEPTH)
        compact = msgspec.json.format(text, indent=-1).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(field, f"`{field}` cannot be read as JSON: {_reason(error)}.") from None
    size = len(compact.encode())
    if size > MAX_SAVED_BYTES:
        raise out_of_range(
            field,
            size,
            (0, MAX_SAVED_BYTES),
            "The figures are bytes of JSON without blanks: save less, or keep it elsewhere and "
            "save where it is.",
        )
    return compact


def _decode_base64(prefix: str, encoded: str) -> bytes:
    try:
        return b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"{prefix}body_base64", "`body_base64` is not base64.") from None


def _compact(prefix: str, raw: bytes) -> bytes:
    """Return JSON without the blanks around its parts; numbers stay as they were written."""
    try:
        raw.decode()
        return msgspec.json.format(raw, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = _reason(error)
        raise invalid(f"{prefix}json", f"`json` cannot be read as JSON: {reason}.") from None


# --- names -------------------------------------------------------------------------------------
#
# Names and numbers in paths, and lists of names: what they may be.


# Clients shorten paths that have a part of one or two dots, and would ask for something else.
_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:~-]{1,256}")
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,19}")
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
    if _WHOLE_NUMBER.fullmatch(text) is None:
        raise invalid("number", "The number of a claim is a whole number.", value=text)
    return within("number", int(text), NUMBERS)


def published_names(raw: AnyJson) -> tuple[str, ...]:
    """Return the names of transactions in the member ``publish``.

    Raises:
        Refused: It is no list of names, or of too many.
    """
    if not raw:
        return ()
    content = bytes(raw)
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


# --- apart -------------------------------------------------------------------------------------
#
# Large bodies are read on a thread, where they hold up no other requests.


_READING: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bodies")


async def apart(
    size: int, read: Callable[..., _T], *of: Any, at_once_bytes: int = MAX_SINGLE_BYTES
) -> _T:
    """Return ``read(*of)``; of more than *at_once_bytes* on the thread.

    One request after the other: each thread that works takes its share from the event loop.

    Args:
        size: Bytes of the body.
        read: What reads it. It must leave alone what the event loop uses meanwhile.
        of: What it is given.
        at_once_bytes: What can be read in a few milliseconds.
    """
    if size <= at_once_bytes:
        return read(*of)
    return await asyncio.get_running_loop().run_in_executor(_READING, read, *of)


# --- portions ----------------------------------------------------------------------------------
#
# Work on many things, in portions between which others have a turn of the event loop.


AT_ONCE: Final = 100
"""Things worked on in one turn; to show a message takes some twenty microseconds."""

_R = TypeVar("_R")


async def in_portions(work: Callable[[_T], _R], things: Sequence[_T]) -> list[_R]:
    """Return what *work* makes of each thing, in their order."""
    if len(things) <= AT_ONCE:
        return [work(each) for each in things]
    made: list[_R] = []
    for start in range(0, len(things), AT_ONCE):
        if start:
            await asyncio.sleep(0)
        made += [work(each) for each in things[start : start + AT_ONCE]]
    return made
