"""The history in the transaction of the effect: both happen, or neither."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold.testing import ManualClock
from leasehold.worker.errors import LeaseLost
from leasehold.worker.idempotency import (
    Busy,
    Fenced,
    History,
    Once,
    SqliteProcessed,
    UncheckedRun,
    UnstorableResult,
)
from tests.unit.worker.idempotency.support import Told

WINDOW_S = 600.0


class Database:
    """A database with an account, for one dialect."""

    def __init__(self, kind: str, where: str, table: str) -> None:
        self.kind = kind
        self.where = where
        self.account = f"account_{table}"
        self.clock = ManualClock()
        self.history = History(WINDOW_S, table=table, clock=self.clock)
        self.once = Once(history=self.history)
        with self.connect() as link:
            link.execute(f"CREATE TABLE {self.account} (balance INTEGER)")
            link.execute(f"INSERT INTO {self.account} VALUES (0)")
            self.history.create(link)
            link.commit()

    def connect(self) -> Any:
        if self.kind == "sqlite":
            return _Closing(sqlite3.connect(self.where, timeout=30))
        import psycopg  # noqa: PLC0415 - optional

        return psycopg.connect(self.where)

    def add(self, link: Any) -> None:
        link.execute(f"UPDATE {self.account} SET balance = balance + 1")

    def balance(self) -> int:
        with self.connect() as link:
            (found,) = link.execute(f"SELECT balance FROM {self.account}").fetchone()
        assert isinstance(found, int)
        return found


class _Closing(sqlite3.Connection):
    """Closed at the end of a with statement, as connections of psycopg are."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        connection.close()
        super().__init__(path, timeout=30)

    def __exit__(self, *args: object) -> Any:
        super().__exit__(*args)  # type: ignore[arg-type]
        self.close()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path, table: str) -> Iterator[Database]:
    if request.param == "sqlite":
        yield Database("sqlite", str(tmp_path / "bank.db"), table)
    else:
        yield Database("postgres", request.getfixturevalue("postgres"), table)


def test_effect_happens_once(database: Database) -> None:
    """A repeated delivery finds the record, and the result of the first."""
    results = []
    for fence in (1, 2, 3):
        with database.connect() as link:
            with database.once.in_transaction(link, Told(fence=fence)) as run:
                if run.first:
                    database.add(link)
                    run.result = {"fence": fence}
            results.append(run.result)
    assert database.balance() == 1
    assert results == [{"fence": 1}] * 3


def test_it_is_committed_at_the_end(database: Database) -> None:
    """Without an open transaction it is begun and committed here."""
    with database.connect() as link:
        with database.once.in_transaction(link, Told()) as run:
            assert run.first
            database.add(link)
        assert database.balance() == 1


def test_failure_takes_both_back(database: Database) -> None:
    """A body that raises leaves neither the effect nor the record."""
    with database.connect() as link:
        with pytest.raises(ValueError, match="no"):
            _fail(database, link, ValueError("no"))
        with database.once.in_transaction(link, Told(fence=2)) as run:
            assert run.first
    assert database.balance() == 0


def test_open_transaction_is_used_and_left_open(database: Database) -> None:
    """In a transaction of the caller everything waits for the caller's commit."""
    with database.connect() as link:
        link.execute(f"INSERT INTO {database.account} VALUES (5)")
        with database.once.in_transaction(link, Told()) as run:
            assert run.first
            database.add(link)
        assert database.balance() == 0
        link.rollback()
        with database.once.in_transaction(link, Told(fence=2)) as run:
            assert run.first, "the record was rolled back too"
            database.add(link)
    assert database.balance() == 1


def test_failure_in_an_open_transaction_takes_back_its_part(database: Database) -> None:
    """A caller that catches the error and commits does not commit half of it."""
    with database.connect() as link:
        link.execute(f"UPDATE {database.account} SET balance = 10")
        with pytest.raises(ValueError, match="no"):
            _fail(database, link, ValueError("no"))
        link.commit()
        assert database.balance() == 10
        with database.once.in_transaction(link, Told(fence=2)) as run:
            assert run.first


def _fail(database: Database, link: Any, error: BaseException) -> None:
    with database.once.in_transaction(link, Told()) as run:
        assert run.first
        database.add(link)
        raise error


def test_second_waits_for_the_commit_of_the_first(database: Database) -> None:
    """Of two at the same time, a zombie and the next holder, one has the effect."""
    begun = threading.Event()
    found: list[bool] = []

    def second() -> None:
        with database.connect() as link:
            begun.set()
            with database.once.in_transaction(link, Told(fence=2)) as run:
                found.append(run.first)
                if run.first:
                    database.add(link)

    thread = threading.Thread(target=second)
    with database.connect() as link, database.once.in_transaction(link, Told(fence=1)) as run:
        assert run.first
        database.add(link)
        thread.start()
        begun.wait()
        assert not found
    thread.join()
    assert found == [False]
    assert database.balance() == 1


def test_many_deliveries_at_once_have_one_effect(database: Database) -> None:
    """However many workers hold a message at the same moment, the effect is there once."""
    start = threading.Barrier(6)

    def work(fence: int) -> None:
        with database.connect() as link:
            start.wait()
            try:
                with database.once.in_transaction(link, Told(fence=fence)) as run:
                    if run.first:
                        database.add(link)
            except Fenced:
                pass

    threads = [threading.Thread(target=work, args=(fence,)) for fence in (1, 1, 2, 2, 3, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.balance() == 1


def test_zombie_after_success_is_fenced(database: Database) -> None:
    """An older delivery that comes after the newer one is told so."""
    with database.connect() as link:
        with database.once.in_transaction(link, Told(fence=2)) as run:
            assert run.first
        with pytest.raises(Fenced), database.once.in_transaction(link, Told(fence=1)):
            pytest.fail("the body ran")


def test_window_ends(database: Database) -> None:
    """A key that is forgotten is free, and goes away with others that come."""
    with database.connect() as link:
        for name in ("a", "b"):
            with database.once.in_transaction(link, Told(name)) as run:
                assert run.first
        database.clock.advance(s=WINDOW_S + 1)
        with database.once.in_transaction(link, Told("a", fence=2)) as run:
            assert run.first
        assert database.history.sweep(link) == 0, "the run above has swept"


def test_sweep_by_hand(database: Database) -> None:
    """With a step of 0 nothing is swept until somebody says so."""
    with database.connect() as link:
        for name in "abc":
            with database.once.in_transaction(link, Told(name)) as run:
                assert run.first
        database.clock.advance(s=WINDOW_S + 1)
        assert database.history.sweep(link, 2) == 2
        assert database.history.sweep(link, 2) == 1


def test_bad_result_takes_the_effect_back(database: Database) -> None:
    """Here an error at the end comes before the commit: nothing has happened."""
    with database.connect() as link:
        with pytest.raises(UnstorableResult):
            _end_with(database, link, object())
        with pytest.raises(UncheckedRun), database.once.in_transaction(link, Told()):
            database.add(link)
        with database.once.in_transaction(link, Told()) as run:
            assert run.first
    assert database.balance() == 0


def _end_with(database: Database, link: Any, result: Any) -> None:
    with database.once.in_transaction(link, Told()) as run:
        assert run.first
        database.add(link)
        run.result = result


def test_lost_message_does_not_begin(database: Database) -> None:
    """A message that is not held any more opens no transaction."""
    with database.connect() as link:
        with pytest.raises(LeaseLost), database.once.in_transaction(link, Told(is_lost=True)):
            pytest.fail("the body ran")
        assert database.once.in_transaction(link, Told()).__enter__().first
        link.rollback()


def test_missing_table_says_how_to_make_it(database: Database) -> None:
    """The error of the database comes with a hint."""
    once = Once(history=History(table="never_made"))
    with database.connect() as link, pytest.raises(Exception, match="never_made") as caught:
        once.in_transaction(link, Told()).__enter__()
    assert "history.create" in caught.value.__notes__[0]


def test_rows_of_any_shape(database: Database) -> None:
    """A connection that gives rows as mappings works too."""
    with database.connect() as link:
        if database.kind == "sqlite":
            link.row_factory = sqlite3.Row
        else:
            from psycopg.rows import dict_row  # noqa: PLC0415 - optional

            link.row_factory = dict_row
        for fence in (1, 2):
            with database.once.in_transaction(link, Told(fence=fence)) as run:
                assert run.first == (fence == 1)


def test_keys_and_steps(database: Database) -> None:
    """Keys, and steps of a message, are apart as in the other form."""
    done = []
    with database.connect() as link:
        for step, name, key in (("a", "1", None), ("b", "1", None), ("", "1", "k"), ("", "2", "k")):
            once = Once(step=step, history=database.history)
            with once.in_transaction(link, Told(name), key) as run:
                if run.first:
                    done.append((step, name, key))
    assert done == [("a", "1", None), ("b", "1", None), ("", "1", "k")]


def test_histories_of_both_forms_are_one(tmp_path: Path) -> None:
    """What SqliteProcessed holds or has done is seen from a transaction, and the other way."""
    path = tmp_path / "history.db"
    store = SqliteProcessed(path)
    once = Once(store)
    link = sqlite3.connect(path)
    once(Told("a"), "k").__enter__()
    with pytest.raises(Busy), once.in_transaction(link, Told("b"), "k"):
        pytest.fail("the body ran")
    with once.in_transaction(link, Told("a", fence=2), "k") as run:
        assert run.first, "a newer delivery takes over"
        run.result = 7
    assert once.call(Told("b"), lambda: 8, "k") == 7
    link.close()
    store.close()


def test_body_must_not_commit(tmp_path: Path, table: str) -> None:
    """A body that ends the transaction itself is found out."""
    database = Database("sqlite", str(tmp_path / "bank.db"), table)
    with database.connect() as link, pytest.raises(RuntimeError, match="ended the transaction"):
        _commit_inside(database, link)


def _commit_inside(database: Database, link: Any) -> None:
    with database.once.in_transaction(link, Told()) as run:
        assert run.first
        link.commit()


def test_connections_of_others_are_refused() -> None:
    """What is neither sqlite3 nor psycopg is named."""
    with pytest.raises(TypeError, match=r"psycopg 3 is needed, not builtins\.dict"):
        Once().in_transaction({}, Told())


def test_sqlite_is_not_asynchronous(tmp_path: Path) -> None:
    """async with over a connection that blocks is refused."""
    link = sqlite3.connect(tmp_path / "x.db")

    async def main() -> None:
        async with Once().in_transaction(link, Told()):
            pytest.fail("the body ran")

    with pytest.raises(TypeError, match="use with"):
        asyncio.run(main())
    link.close()


def test_asynchronous_postgres(postgres: str, table: str) -> None:
    """Over a psycopg.AsyncConnection everything is the same."""
    import psycopg  # noqa: PLC0415 - optional

    once = Once(history=History(table=table))

    async def charge(link: Any, fence: int, error: Exception | None = None) -> object:
        async with once.in_transaction(link, Told(fence=fence)) as run:
            if run.first:
                await link.execute(f"UPDATE effect_{table} SET done = done + 1")
                run.result = fence
                if error is not None:
                    raise error
        return run.result

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(postgres) as link:
            await once.history.acreate(link)
            await link.execute(f"CREATE TABLE effect_{table} AS SELECT 0 AS done".encode())
            await link.commit()
            with pytest.raises(ValueError, match="no"):
                await charge(link, 1, ValueError("no"))
            assert await charge(link, 2) == 2
            assert await charge(link, 3) == 2
            with pytest.raises(Fenced):
                await charge(link, 1)
            with pytest.raises(UncheckedRun):
                async with once.in_transaction(link, Told("other")):
                    pass
            assert await once.history.asweep(link) == 0
            cursor = await link.execute(f"SELECT done FROM effect_{table}".encode())
            assert await cursor.fetchone() == (1,)

    asyncio.run(main())
