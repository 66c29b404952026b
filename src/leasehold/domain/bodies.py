"""Large bodies: kept outside the store of messages, which knows only where they are.

A body is written to the body store before the command that puts it is carried out, and removed
after the last row that names it is gone. A store of messages notes, in the transaction in which a
row with a :class:`~leasehold.domain.types.BodyRef` is removed or gets another body, that the old
key is garbage; the commands here let the engine collect it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ReadBodyGarbage:
    """List up to *limit* keys of bodies whose rows are gone. Answer: :class:`BodyKeys`.

    In any order; they stay listed until they are forgotten. A key that a row refers to (again, or
    still) is never among them.
    """

    limit: int


@dataclass(frozen=True, slots=True)
class ForgetBodyGarbage:
    """Forget keys whose bodies have been removed. Answer: Done; unknown keys do not matter."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownBodies:
    """Tell which of some keys a row refers to. Answer: :class:`BodyKeys`.

    Rows that are staged, claimed, poisoned, retired, or cleared and not reaped yet count as well:
    whatever will become garbage in time.
    """

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BodyKeys:
    """Names within the body store."""

    keys: tuple[str, ...]


BodyCommand: TypeAlias = ReadBodyGarbage | ForgetBodyGarbage | KnownBodies
BodyResult: TypeAlias = BodyKeys
