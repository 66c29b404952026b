"""Fenced writes to tables of the user: the rule, the names, the check."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from leasehold.testing import ManualClock
from leasehold.worker.errors import LeaseLost
from leasehold.worker.idempotency import Fenced, FencedTable, FenceLedger, Written
from tests.unit.worker.idempotency.support import Told

ODD = 'odd "na.me%s :x ?'


@pytest.fixture(params=["sqlite", "postgres"])
def link(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A connection, with tables that go with it."""
    if request.param == "sqlite":
        connection: Any = sqlite3.connect(":memory:")
    else:
        import psycopg  # noqa: PLC0415 - optional

        connection = psycopg.connect(request.getfixturevalue("postgres"))
    connection.execute("CREATE TEMPORARY TABLE video (id TEXT PRIMARY KEY, url TEXT, fence BIGINT)")
    quoted = ODD.replace('"', '""')
    columns = f'"a%" TEXT, b INTEGER, "{quoted}" TEXT, "fe:nce" BIGINT, UNIQUE ("a%", b)'
    connection.execute(f'CREATE TEMPORARY TABLE "{quoted}" ({columns})')
    connection.commit()
    yield connection
    connection.close()


def _rows(link: Any, sql: str = "SELECT id, url, fence FROM video") -> list[tuple[Any, ...]]:
    return [tuple(row) for row in link.execute(sql).fetchall()]


@pytest.mark.parametrize(
    ("before", "fence", "strict", "expected"),
    [
        (None, 1, False, Written.APPLIED),
        (None, 1, True, Written.APPLIED),
        (4, 5, False, Written.APPLIED),
        (4, 5, True, Written.APPLIED),
        (5, 5, False, Written.APPLIED),
        (5, 5, True, Written.REPEATED),
        (6, 5, False, None),
        (6, 5, True, None),
    ],
)
@pytest.mark.parametrize("form", ["update", "upsert"])
def test_rule(
    link: Any, form: str, before: int | None, fence: int, strict: bool, expected: Written | None
) -> None:
    """Older or no fence in the row: written. The same: unless once per lease. Newer: Fenced."""
    link.execute(f"INSERT INTO video VALUES ('v', 'old', {'NULL' if before is None else before})")
    table = FencedTable("video", once_per_lease=strict)
    write = getattr(table, form)
    if expected is None:
        with pytest.raises(Fenced) as caught:
            write(link, "v", {"url": "new"}, fence=fence)
        assert (caught.value.fence, caught.value.newest) == (5, 6)
    else:
        assert write(link, "v", {"url": "new"}, fence=fence) is expected
    is_written = expected is Written.APPLIED
    assert _rows(link) == [("v", "new", fence) if is_written else ("v", "old", before)]


def test_row_that_is_not_there(link: Any) -> None:
    """An update finds nothing and says so; an upsert inserts."""
    table = FencedTable("video")
    assert table.update(link, "v", {"url": "u"}, fence=3) is Written.NO_ROW
    assert table.upsert(link, "v", {"url": "u"}, fence=3) is Written.APPLIED
    assert _rows(link) == [("v", "u", 3)]


def test_written_is_true_if_it_was_applied() -> None:
    """Only APPLIED counts as true."""
    assert [bool(each) for each in Written] == [True, False, False]


def test_fence_alone(link: Any) -> None:
    """A write without other columns moves the fence."""
    table = FencedTable("video")
    assert table.upsert(link, "v", {}, fence=3)
    assert table.update(link, "v", {}, fence=4)
    with pytest.raises(LeaseLost):
        table.update(link, "v", {}, fence=3)
    assert _rows(link) == [("v", None, 4)]


def test_odd_names_and_values(link: Any) -> None:
    """Names with quotes, dots, percent signs and marks are quoted, values are never SQL."""
    table = FencedTable([ODD], ["a%", "b"], "fe:nce")
    table.check(link, [ODD])
    evil = "x'; DROP TABLE video; --"
    assert table.upsert(link, (evil, 1), {ODD: evil}, fence=1)
    assert table.update(link, (evil, 1), {ODD: "%s ? :x"}, fence=2)
    with pytest.raises(Fenced):
        table.upsert(link, (evil, 1), {ODD: "old"}, fence=1)
    quoted = ODD.replace('"', '""')
    assert _rows(link, f'SELECT * FROM "{quoted}"') == [(evil, 1, "%s ? :x", 2)]
    assert _rows(link) == []


def test_schema_and_table(link: Any) -> None:
    """A table can be named with its schema."""
    schema = "temp" if isinstance(link, sqlite3.Connection) else "pg_temp"
    table = FencedTable(f"{schema}.video")
    assert table.upsert(link, "v", {"url": "u"}, fence=1)
    assert table.update(link, "v", {"url": "u"}, fence=2)
    table.check(link)


@pytest.mark.parametrize(
    ("table", "key", "fence", "columns", "error", "text"),
    [
        ("nowhere", "id", "fence", [], LookupError, "no table nowhere"),
        ("video", "id", "fens", [], LookupError, "no column fens"),
        ("video", "id", "fence", ["url", "uri"], LookupError, "no column uri"),
        ("video", "id", "url", [], ValueError, "url is text"),
        ("video", "url", "fence", [], ValueError, "url is not a unique key"),
        ("video", ["id", "url"], "fence", [], ValueError, "id, url is not a unique key"),
    ],
)
def test_check_finds_what_is_wrong(
    link: Any,
    table: str,
    key: str | list[str],
    fence: str,
    columns: list[str],
    error: type[Exception],
    text: str,
) -> None:
    """A table that is missing, a column that is, a fence that is text, a key that is none."""
    link.execute("SELECT 1")
    with pytest.raises(error, match=f"(?i){text}"):
        FencedTable(table, key, fence).check(link, columns)


def test_check_passes_what_is_right(link: Any) -> None:
    """A primary key and a unique index will do."""
    FencedTable("video").check(link, ["url"])
    schema = "temp." if _is_sqlite(link) else ""
    link.execute(f"CREATE UNIQUE INDEX {schema}by_url ON video (url)")
    FencedTable("video", "url").check(link)


def _is_sqlite(link: Any) -> bool:
    return isinstance(link, sqlite3.Connection)


def test_check_wants_room_for_a_fence(link: Any) -> None:
    """32 bits are too few where columns have a size."""
    link.execute("CREATE TEMPORARY TABLE small (id TEXT PRIMARY KEY, fence INTEGER)")
    table = FencedTable("small")
    if _is_sqlite(link):
        table.check(link)
        return
    with pytest.raises(ValueError, match="needs a BIGINT"):
        table.check(link)


def test_unknown_column_is_an_error_and_no_text(link: Any) -> None:
    """SQLite would take a quoted name that it does not know for a text, and find it older."""
    link.execute("INSERT INTO video VALUES ('v', 'old', 9)")
    with pytest.raises(Exception, match="fens"):
        FencedTable("video", fence="fens").update(link, "v", {"url": "new"}, fence=1)
    link.rollback()
    with pytest.raises(Exception, match="ids"):
        FencedTable("video", key="ids").update(link, "v", {"url": "new"}, fence=10)
    link.rollback()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("", "id", "fence"), "name"),
        (([], "id", "fence"), "name"),
        (("a..b", "id", "fence"), "name"),
        (("a\0", "id", "fence"), "name"),
        (("a", [], "fence"), "one column"),
        (("a", "fence", "fence"), "another"),
        (("a", ["id", "id"], "fence"), "one column"),
    ],
)
def test_bad_shapes(arguments: tuple[Any, ...], text: str) -> None:
    """What cannot be a fenced table is refused when it is described."""
    with pytest.raises(ValueError, match=text):
        FencedTable(*arguments)


def test_bad_writes(link: Any) -> None:
    """Key and fence are not set beside themselves, keys have all parts, fences have bounds."""
    table = FencedTable("video")
    for key, values, fence in (
        ("v", {"id": "w"}, 1),
        ("v", {"fence": 9}, 1),
        (("v", "w"), {}, 1),
        ("v", {}, -1),
        ("v", {"a\0": 1}, 1),
    ):
        with pytest.raises(ValueError, match=r"key|fence|name"):
            table.update(link, key, values, fence=fence)


def test_statements_for_other_means() -> None:
    """The SQL can be had for connections that are not known here."""
    table = FencedTable("media.video")
    update = table.update_statement("postgresql", "v", {"url": "u"}, fence=7)
    assert update.values == ("u", 7, "v", 7)
    assert update.sql == (
        'UPDATE "media"."video" SET "url" = %s, "fence" = %s WHERE "video"."id" = %s '
        'AND ("video"."fence" IS NULL OR "video"."fence" <= %s)'
    )
    strict = FencedTable("video", once_per_lease=True)
    upsert = strict.upsert_statement("sqlite", "v", {"url": "u"}, fence=7)
    assert upsert.values == ("v", "u", 7)
    assert upsert.sql == (
        'INSERT INTO "video" ("id", "url", "fence") VALUES (?, ?, ?) ON CONFLICT ("id") '
        'DO UPDATE SET "url" = excluded."url", "fence" = excluded."fence" '
        'WHERE "video"."fence" IS NULL OR "video"."fence" < excluded."fence"'
    )


def test_newest_of_many_wins(postgres: str, table: str) -> None:
    """Writers at the same moment, whatever their order: the newest fence is there in the end."""
    import psycopg  # noqa: PLC0415 - optional

    fenced = FencedTable(table)
    with psycopg.connect(postgres) as first:
        first.execute(f"CREATE TABLE {table} (id TEXT PRIMARY KEY, by INT, fence BIGINT)".encode())
    start = threading.Barrier(6)

    def write(fence: int) -> None:
        with psycopg.connect(postgres) as link:
            start.wait()
            for _ in range(10):
                with suppress(Fenced):
                    fenced.upsert(link, "v", {"by": fence}, fence=fence)
                link.commit()

    threads = [threading.Thread(target=write, args=(fence,)) for fence in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with psycopg.connect(postgres) as link:
        assert _rows(link, f"SELECT by, fence FROM {table}") == [(6, 6)]


def test_asynchronous_writes(postgres: str) -> None:
    """Over a psycopg.AsyncConnection the rule is the same."""
    import psycopg  # noqa: PLC0415 - optional

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(postgres) as link:
            await link.execute("CREATE TEMPORARY TABLE v (id TEXT PRIMARY KEY, fence BIGINT)")
            table = FencedTable("v")
            await table.acheck(link)
            assert await table.aupdate(link, "a", {}, fence=2) is Written.NO_ROW
            assert await table.aupsert(link, "a", {}, fence=2)
            with pytest.raises(Fenced):
                await table.aupdate(link, "a", {}, fence=1)

    asyncio.run(main())


def test_ledger_guards_a_whole_transaction(link: Any) -> None:
    """A late worker cannot enter, also where the rows it writes to are those of many messages."""
    ledger = FenceLedger()
    ledger.create(link)
    ledger.enter(link, Told(fence=1))
    ledger.enter(link, Told(fence=2))
    ledger.enter(link, Told(fence=2))
    ledger.enter(link, Told("other", fence=1))
    with pytest.raises(Fenced, match="fence 1 is too old; the newest fence is 2"):
        ledger.enter(link, Told(fence=1))
    link.rollback()


def test_ledger_needs_a_transaction(link: Any) -> None:
    """Where each statement commits by itself the check would guard nothing."""
    ledger = FenceLedger()
    ledger.create(link)
    link.commit()
    if _is_sqlite(link):
        link.isolation_level = None
    else:
        link.autocommit = True
    with pytest.raises(RuntimeError, match="open a transaction first"):
        ledger.enter(link, Told())
    link.execute("BEGIN")
    ledger.enter(link, Told())
    link.execute("ROLLBACK")


def test_ledger_forgets_after_the_window(link: Any) -> None:
    """Each use begins the window anew; rows whose window is over go as others come."""
    clock = ManualClock()
    ledger = FenceLedger(60, table="ledger_t", clock=clock)
    ledger.create(link)
    ledger.enter(link, Told(fence=5))
    clock.advance(s=40)
    ledger.enter(link, Told(fence=5))
    clock.advance(s=40)
    with pytest.raises(Fenced):
        ledger.enter(link, Told(fence=4))
    clock.advance(s=21)
    ledger.enter(link, Told(fence=1))
    clock.advance(s=61)
    ledger.enter(link, Told("other"))
    assert _rows(link, "SELECT name FROM ledger_t") == [("orders/other",)]
    assert ledger.sweep(link) == 0
    link.rollback()


def test_asynchronous_ledger(postgres: str, table: str) -> None:
    """Over a psycopg.AsyncConnection too."""
    import psycopg  # noqa: PLC0415 - optional

    ledger = FenceLedger(table=table)

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(postgres) as link:
            await ledger.acreate(link)
            await ledger.aenter(link, Told(fence=2))
            with pytest.raises(Fenced):
                await ledger.aenter(link, Told(fence=1))
            await link.rollback()

    asyncio.run(main())
