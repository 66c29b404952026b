"""What the verbs ask of a cursor; that of apsw is one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol


class Rows(Protocol):
    """What a statement has found, each row once."""

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows that are left."""
        ...


class Reading(Protocol):
    """A cursor that reads while others write."""

    def execute(self, query: str, bounds: Any = ..., /) -> Any:
        """Run a statement."""
        ...

    def close(self) -> None:
        """Read no more."""
        ...


class Connection(Protocol):
    """What a cursor is of."""

    def cursor(self) -> Reading:
        """Return another cursor."""
        ...

    def changes(self) -> int:
        """Return how many rows the last statement changed."""
        ...


class Cursor(Protocol):
    """Runs statements."""

    @property
    def connection(self) -> Any:
        """What it is of: a :class:`Connection`."""
        ...

    def execute(self, query: str, bounds: Any = ..., /) -> Rows:
        """Run a statement."""
        ...

    def executemany(self, query: str, many: Iterable[Any], /) -> Rows:
        """Run a statement for each of many bounds; its rows are those of all."""
        ...
