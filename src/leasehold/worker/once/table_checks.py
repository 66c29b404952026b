"""Whether a table of the user is fit for fenced writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from leasehold.worker.once.fenced_sql import Shape
from leasehold.worker.once.links import Statement, Steps
from leasehold.worker.once.sql import Dialect, for_psycopg, quote_table, read_statements


def checking(dialect: Dialect, shape: Shape, columns: Sequence[str]) -> Steps[None]:
    """Look at the table; see :meth:`~leasehold.worker.once.fencing.FencedTable.check`."""
    statements = read_statements("table_checks.sql")
    name = ".".join(shape.table)
    values: dict[str, str | None]
    if dialect == "sqlite":
        schema = shape.table[-2] if len(shape.table) > 1 else None
        values = {"table": shape.table[-1], "schema": schema}
    else:
        values = {"table": quote_table(shape.table)}

    def statement(what: str) -> Statement:
        text = statements[f"{dialect}_{what}"]
        return Statement(for_psycopg(text) if dialect == "postgresql" else text, values)

    found = yield statement("columns")
    types: dict[str, str] = dict(found.rows)
    if not types:
        raise LookupError(f"there is no table {name}")
    missing = [column for column in (*shape.keys, shape.fence, *columns) if column not in types]
    if missing:
        raise LookupError(f"{name} has no column {', '.join(missing)}")
    _check_type(dialect, f"{name}.{shape.fence}", types[shape.fence])
    unique = yield statement("unique")
    if set(shape.keys) not in _keys_of(unique.rows):
        raise ValueError(f"{', '.join(shape.keys)} is no unique key of {name}")


def _check_type(dialect: Dialect, column: str, declared: str) -> None:
    """Refuse a fence that is compared as text, or that has no room for a large one."""
    fits = declared in {"bigint", "numeric"}
    if dialect == "sqlite":
        # What SQLite goes by itself (https://sqlite.org/datatype3.html, section 3.1).
        fits = "INT" in declared.upper()
    if not fits:
        raise ValueError(f"{column} is {declared or 'untyped'}; a fence needs a BIGINT")


def _keys_of(rows: Sequence[Any]) -> list[set[str]]:
    keys: dict[int, set[str]] = defaultdict(set)
    for number, column in rows:
        keys[number].add(column)
    return list(keys.values())
