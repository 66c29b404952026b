"""How a setting describes itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass
from enum import StrEnum
from typing import Any, Final

_META: Final = "leasehold"


class Kind(StrEnum):
    """How a setting is written."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    SWITCH = "true or false"
    PATH = "path"
    STORE_URL = "address of a database"
    LIST = "list of text"
    ACCOUNTS = "table of accounts"
    ACCESS_KEYS = "table of access keys"
    ACCOUNT_STORES = "table of addresses of databases"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What a setting says of itself."""

    kind: Kind
    group: str
    """Heading it stands under in the reference."""
    meaning: str
    unit: str = ""
    bounds: tuple[float, float] | None = None
    """Smallest and largest value allowed."""
    choices: tuple[str, ...] = ()
    special: str = ""
    """Values with a meaning of their own, and how this setting and others depend on each other."""


def about(kind: Kind, group: str, meaning: str, **more: Any) -> Mapping[str, Meta]:
    """Return the metadata of a dataclass field that is a setting."""
    return {_META: Meta(kind=kind, group=group, meaning=meaning, **more)}


def meta_of(setting: Field[Any]) -> Meta:
    """Return what was given to :func:`about`."""
    meta = setting.metadata[_META]
    assert isinstance(meta, Meta)
    return meta


def bounds_text(meta: Meta) -> str:
    """Return the allowed values in words; empty if anything goes."""
    if meta.choices:
        return ", ".join(meta.choices[:-1]) + f" or {meta.choices[-1]}"
    if meta.bounds is None:
        return ""
    low, high = meta.bounds
    return f"{low:,} to {high:,}"
