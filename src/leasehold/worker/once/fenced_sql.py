"""The statements of fenced writes, for tables and columns of the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leasehold.worker.once.links import Statement
from leasehold.worker.once.rules import check_fence_number
from leasehold.worker.once.sql import Dialect, quote_identifier


class Shape:
    """What a fenced table looks like. See :class:`~leasehold.worker.once.fencing.FencedTable`."""

    def __init__(
        self, table: str | Sequence[str], key: str | Sequence[str], fence: str, *, strict: bool
    ) -> None:
        self.table = table.split(".") if isinstance(table, str) else list(table)
        self.keys = [key] if isinstance(key, str) else list(key)
        self.fence = fence
        self._than = "<" if strict else "<="
        for name in (*self.table, *self.keys, fence):
            quote_identifier(name)
        if not self.table:
            raise ValueError("the table needs a name")
        if not self.keys or len({*self.keys, fence}) != len(self.keys) + 1:
            raise ValueError("the key needs one column or more, and the fence another one")

    def update(
        self, dialect: Dialect, key: Any, values: Mapping[str, Any], fence: int
    ) -> Statement:
        """Return an UPDATE that changes one row, or none if the fence is too old."""
        self._check(values, fence)
        names = _Names(dialect, self.table)
        sets = ", ".join(f"{names.plain(column)} = {names.mark}" for column in values)
        fenced = f"{names.plain(self.fence)} = {names.mark}"
        guard = names.of_table(self.fence)
        text = (
            f"UPDATE {names.table} SET {sets}{', ' if sets else ''}{fenced} "  # noqa: S608 - names are quoted, values bound
            f"WHERE {self._key_equals(names)} "
            f"AND ({guard} IS NULL OR {guard} {self._than} {names.mark})"
        )
        return Statement(text, (*values.values(), fence, *self._key_values(key), fence))

    def upsert(
        self, dialect: Dialect, key: Any, values: Mapping[str, Any], fence: int
    ) -> Statement:
        """Return an INSERT that becomes an UPDATE where there is a row."""
        self._check(values, fence)
        names = _Names(dialect, self.table)
        columns = [names.plain(column) for column in (*self.keys, *values, self.fence)]
        sets = [f"{column} = excluded.{column}" for column in columns[len(self.keys) :]]
        guard = names.of_table(self.fence)
        text = (
            f"INSERT INTO {names.table} ({', '.join(columns)}) "  # noqa: S608 - names are quoted, values bound
            f"VALUES ({', '.join([names.mark] * len(columns))}) "
            f"ON CONFLICT ({', '.join(columns[: len(self.keys)])}) DO UPDATE SET {', '.join(sets)} "
            f"WHERE {guard} IS NULL OR {guard} {self._than} excluded.{names.plain(self.fence)}"
        )
        return Statement(text, (*self._key_values(key), *values.values(), fence))

    def look(self, dialect: Dialect, key: Any) -> Statement:
        """Return a SELECT of the fence of a row."""
        names = _Names(dialect, self.table)
        text = (
            f"SELECT {names.of_table(self.fence)} FROM {names.table} "  # noqa: S608 - names are quoted, values bound
            f"WHERE {self._key_equals(names)}"
        )
        return Statement(text, self._key_values(key))

    def _key_equals(self, names: _Names) -> str:
        return " AND ".join(f"{names.of_table(column)} = {names.mark}" for column in self.keys)

    def _key_values(self, key: Any) -> tuple[Any, ...]:
        values = tuple(key) if isinstance(key, tuple | list) else (key,)
        if len(values) != len(self.keys):
            raise ValueError(f"the key has {len(self.keys)} columns, and {len(values)} were given")
        return values

    def _check(self, values: Mapping[str, Any], fence: int) -> None:
        check_fence_number(fence)
        for column in values:
            if column in self.keys or column == self.fence:
                raise ValueError(f"{column} is the key or the fence, and not to be set beside them")


class _Names:
    """Names of one table, quoted for one dialect."""

    def __init__(self, dialect: Dialect, table: Sequence[str]) -> None:
        self._doubles_percent = dialect == "postgresql"
        self.mark = "%s" if dialect == "postgresql" else "?"
        self.table = ".".join(map(self.plain, table))
        self._last = self.plain(table[-1])

    def plain(self, name: str) -> str:
        """Return a column as it stands in lists."""
        quoted = quote_identifier(name)
        return quoted.replace("%", "%%") if self._doubles_percent else quoted

    def of_table(self, column: str) -> str:
        """Return a column as it stands in expressions.

        With its table: SQLite takes a quoted name alone that it does not know for a text.
        """
        return f"{self._last}.{self.plain(column)}"
