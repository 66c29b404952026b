"""What is staged in memory, and which claims are bound to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from leasehold.domain.claims import Bound
from leasehold.domain.types import Message

BoundTo: TypeAlias = tuple[str, str, int]
"""Queue, stream and number of a claim."""


class Row(NamedTuple):
    """A staged message, and the queue that it is for."""

    queue: str
    message: Message


@dataclass(slots=True)
class Part:
    """What one task has staged."""

    chunks: int = 0
    rows: dict[int, Row] = field(default_factory=dict)


@dataclass(slots=True)
class Box:
    """A transaction."""

    created_at_ms: int
    until_ms: int = 0
    published: int | None = None
    """How many rows were published; None while it is staged."""
    duplicates: int = 0
    """How many were dropped then, as their key had been used."""
    parts: dict[str, Part] = field(default_factory=dict)
    bound: dict[BoundTo, Bound] = field(default_factory=dict)
    """Claims that its publishing settles."""

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing left to publish or to settle."""
        return self.published is None and not self.parts and not self.bound


Boxes: TypeAlias = dict[tuple[str, str], Box]
"""All transactions by account and name."""
