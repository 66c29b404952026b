"""Values of the domain as JSON, the way every SQL store keeps them.

Only what differs from the default is written, so that most messages have no detail at all and a
new field needs no migration. Unknown members are ignored: a newer version may have written them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from leasehold.domain.model import NO_DETAIL, Detail
from leasehold.domain.queue_settings import DEFAULT_SETTINGS, QueueSettings

_T = TypeVar("_T")

_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode
_DECODE_DETAIL: Final = msgspec.json.Decoder(Detail).decode
"""Each redelivery reads a detail and writes one; this takes 4 us and not 19."""
_ENCODE_TEXT: Final = msgspec.json.Encoder().encode
_GROUP_ONLY: Final = '{"group_id":'
_NAME_AT: Final = len(_GROUP_ONLY) + 1
"""Most messages of groups have nothing else: such a detail is read in 1.7 us and not in 2.7, and
written without going over its fields."""
_BESIDE_GROUP: Final = attrgetter(
    *(each.name for each in dataclasses.fields(Detail) if each.name not in {"group_id", "saved"})
)
_NOTHING_BESIDE: Final = _BESIDE_GROUP(NO_DETAIL)


def detail_to_json(detail: Detail) -> str | None:
    """Return what is kept of a message's detail, None if there is nothing.

    What was saved is not in it.
    """
    if detail is NO_DETAIL:
        return None
    if detail.group_id is not None and _BESIDE_GROUP(detail) == _NOTHING_BESIDE:
        text = _ENCODE_TEXT(detail.group_id)
        if text.isascii():  # what is not is written as escapes; statements look for these
            return _GROUP_ONLY + text.decode() + "}"
    plain = to_plain(detail)
    plain.pop("saved", None)
    return _ENCODE(plain) if plain else None


def detail_from_json(text: str | None) -> Detail:
    """Reverse :func:`detail_to_json`."""
    if text is None:
        return NO_DETAIL
    if text.startswith(_GROUP_ONLY) and text.find('"', _NAME_AT) == len(text) - 2:
        name = text[_NAME_AT:-2]
        if "\\" not in name:
            return Detail(group_id=name)
    try:
        return _DECODE_DETAIL(text)
    except msgspec.MsgspecError:  # half of a character, for one, which Python's strings can hold
        return from_plain(Detail, json.loads(text))


class SentAlong(msgspec.Struct, gc=False):
    """What the event log says of what a sender sent along with a message."""

    message_type: str | None = None
    traceparent: str | None = None
    group_id: str | None = None


_DECODE_ALONG: Final = msgspec.json.Decoder(SentAlong).decode
"""The rest is passed over, which takes a quarter of the time."""


def along_in_json(text: str) -> SentAlong | Detail:
    """Return what was sent along out of a detail as kept."""
    try:
        return _DECODE_ALONG(text)
    except msgspec.MsgspecError:
        return detail_from_json(text)


def settings_to_json(settings: QueueSettings) -> str:
    """Return a queue's settings as kept."""
    return _ENCODE(to_plain(settings))


def settings_from_json(text: str) -> QueueSettings:
    """Reverse :func:`settings_to_json`."""
    return DEFAULT_SETTINGS if text == "{}" else from_plain(QueueSettings, json.loads(text))


def to_plain(value: Any) -> dict[str, Any]:
    """Return a dataclass as what JSON knows, without the fields that have their default."""
    plain = {}
    for name, default, write in _writers(value.__class__):
        each = getattr(value, name)
        if each != default:
            plain[name] = each if write is None or each is None else write(each)
    return plain


def from_plain(kind: Callable[..., _T], plain: Any) -> _T:
    """Reverse :func:`to_plain` for a dataclass of this kind."""
    readers = _readers(kind)
    return kind(**{name: readers[name](each) for name, each in plain.items() if name in readers})


_Write: TypeAlias = Callable[[Any], Any] | None
"""Makes a value into what JSON knows; None if it is that already."""


@cache
def _writers(kind: Any) -> tuple[tuple[str, Any, _Write], ...]:
    """Return name, default and writer of a dataclass's fields; MISSING equals nothing."""
    hints = get_type_hints(kind)
    return tuple(
        (
            each.name,
            each.default if each.default_factory is dataclasses.MISSING else each.default_factory(),
            _writer(hints[each.name]),
        )
        for each in dataclasses.fields(kind)
    )


def _writer(hint: Any) -> _Write:
    origin, inside = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        (hint,) = (each for each in inside if each is not NoneType)
        return _writer(hint)
    if origin in {tuple, frozenset}:
        arrange = sorted if origin is frozenset else list
        write = _writer(inside[0])
        return arrange if write is None else lambda values: arrange(map(write, values))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        write_each = _writer(inside[1])
        return dict if write_each is None else partial(_write_each, write_each)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return attrgetter("value")
    return to_plain if dataclasses.is_dataclass(hint) else None


def _write_each(write: Callable[[Any], Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: write(each) for name, each in values.items()}


@cache
def _readers(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: _reader(hints[each.name]) for each in dataclasses.fields(kind)}


def _reader(hint: Any) -> Any:
    """Return what makes a value of this type out of JSON."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        (hint,) = (each for each in inside if each is not NoneType)
        read = _reader(hint)
        return lambda plain: None if plain is None else read(plain)
    if origin in {tuple, frozenset}:
        read = _reader(inside[0])
        return lambda plain: origin(read(each) for each in plain)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        read = _reader(inside[1])
        return lambda plain: {name: read(each) for name, each in plain.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        return lambda plain: from_plain(kind, plain)
    return lambda plain: plain
