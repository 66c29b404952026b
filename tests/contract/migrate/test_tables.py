"""What is moved is all that there is: no table, column or value of a store can be forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasehold.stores.migrate.ends import TABLES, Kind
from leasehold.stores.migrate.marks import ARRIVED, AWAY, MARK

from .support import Place, worked_on

SQLITE_TYPES = {
    "INTEGER": {Kind.NUMBER, Kind.SMALL, Kind.SWITCH},
    "TEXT": {Kind.TEXT},
    "BLOB": {Kind.BYTES},
}
POSTGRES_TYPES = {
    "bigint": {Kind.NUMBER},
    "smallint": {Kind.SMALL},
    "boolean": {Kind.SWITCH},
    "text": {Kind.TEXT},
    "bytea": {Kind.BYTES},
}
OF_ONE_DATABASE = {
    "meta": "its values are moved one by one",
    "body_segment": "bodies move as if each stood by itself",
    "format": "which migrations were made here",
    "change": "what servers agree on",
    "waiting": "which servers wait here",
    "server": "which servers there are",
    "agreed": "when servers last agreed on the time here",
    "counted": "made anew from the counts of the queues",
    "session_heard": "heartbeats of live sessions begin anew",
    "session_sign": "the same for their messages",
}
"""Tables that stay, and why that is right."""
MADE = {("postgres", "queue", "message_count")}
"""Columns that a database has in another form."""

MOVED_VALUES = {
    *("receipt_key", "epoch", "retired_until_ms", "last_seen_ms"),  # as they are
    *("last_partition", "last_token", "row_keys_reserved"),  # raised to what was used
}
OWN_VALUES = {
    *("mark", "last_mark"),  # of the folder, not of what is in it
    *("event_bytes", "event_bytes_seq"),  # added up anew
    "retired_counted",  # of counts that each store makes itself
    "row_keys_after",  # of blocks that servers have taken
}


def columns(place: Place) -> dict[str, dict[str, str]]:
    """Return the columns of every table of a store that is there, with their types."""
    found: dict[str, dict[str, str]] = {}
    end = place.end()
    try:
        if place.kind == "sqlite":
            rows = end.execute(  # type: ignore[attr-defined]
                "SELECT m.name, c.name, c.type FROM sqlite_schema m, pragma_table_info(m.name) c"
                " WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite%'"
            )
        else:
            rows = end.execute(  # type: ignore[attr-defined]
                "SELECT table_name::text, column_name::text, data_type::text"
                " FROM information_schema.columns WHERE table_schema = current_schema()"
            )
    finally:
        end.close()
    for table, column, kind in rows:
        found.setdefault(table, {})[column] = kind
    return found


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_column_is_moved(tmp_path: Path, kind: str) -> None:
    """The tables of a store are those that move, each with all of its columns and their types."""
    place = Place(kind, tmp_path, "a")
    place.open().close()
    actual = columns(place)
    assert set(actual) - set(OF_ONE_DATABASE) == {table.name for table in TABLES}
    types = SQLITE_TYPES if kind == "sqlite" else POSTGRES_TYPES
    for table in TABLES:
        named = {
            column: its_kind
            for column, its_kind in zip(table.columns, table.kinds, strict=True)
            if (kind, table.name, column) not in MADE
        }
        assert set(actual[table.name]) == set(named), table.name
        for column, its_kind in named.items():
            assert its_kind in types[actual[table.name][column]], f"{table.name}.{column}"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_value_is_cared_for(tmp_path: Path, kind: str) -> None:
    """What a store keeps under names is moved, or known to be its own."""
    place = Place(kind, tmp_path, "a")
    asker, _ = worked_on(place)
    asker.store.close()
    end = place.end()
    names = {name for name in end.meta() if not name.startswith((ARRIVED, AWAY, MARK))}
    end.close()
    assert names <= MOVED_VALUES | OWN_VALUES
    assert {"receipt_key", "epoch", "last_partition", "last_token"} <= names
