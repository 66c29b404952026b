"""Values of the domain as JSON, the way every SQL store keeps them.

Only what differs from the default is written, so that most messages have no detail at all and a
new field needs no migration. Unknown members are ignored: a newer version may have written them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from leasehold.domain.queue_settings import DEFAULT_SETTINGS, QueueSettings
from leasehold.domain.types import NO_DETAIL, Detail

_T = TypeVar("_T")


def detail_to_json(detail: Detail) -> str | None:
    """Return what is kept of a message's detail, None if there is nothing."""
    if detail is NO_DETAIL:
        return None
    plain = to_plain(detail)
    return json.dumps(plain, separators=(",", ":")) if plain else None


def detail_from_json(text: str | None) -> Detail:
    """Reverse :func:`detail_to_json`."""
    return NO_DETAIL if text is None else from_plain(Detail, json.loads(text))


def settings_to_json(settings: QueueSettings) -> str:
    """Return a queue's settings as kept."""
    return json.dumps(to_plain(settings), separators=(",", ":"))


def settings_from_json(text: str) -> QueueSettings:
    """Reverse :func:`settings_to_json`."""
    return DEFAULT_SETTINGS if text == "{}" else from_plain(QueueSettings, json.loads(text))


def to_plain(value: Any) -> Any:
    """Return a dataclass as what JSON knows, without the fields that have their default."""
    if dataclasses.is_dataclass(value):
        return {
            name: to_plain(each)
            for name, default in _defaults(value.__class__)
            if (each := getattr(value, name)) != default
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset):
        return sorted(to_plain(each) for each in value)
    if isinstance(value, tuple):
        return [to_plain(each) for each in value]
    return value


def from_plain(kind: Callable[..., _T], plain: Any) -> _T:
    """Reverse :func:`to_plain` for a dataclass of this kind."""
    readers = _readers(kind)
    return kind(**{name: readers[name](each) for name, each in plain.items() if name in readers})


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the names of a dataclass's fields and their defaults; MISSING equals nothing."""
    return tuple(
        (
            each.name,
            each.default if each.default_factory is dataclasses.MISSING else each.default_factory(),
        )
        for each in dataclasses.fields(kind)
    )


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
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        return lambda plain: from_plain(kind, plain)
    return lambda plain: plain
