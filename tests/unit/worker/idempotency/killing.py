"""Processes that are killed at chosen moments, run by the tests in a process that has no threads.

``python -m tests.unit.worker.idempotency.killing NAME ARGUMENT...`` runs one function; what it
finds wrong it raises.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leasehold.worker.idempotency import History, Once, SqliteProcessed
from tests.unit.worker.idempotency.support import Told, holder


def in_child(act: Callable[[], object]) -> bool:
    """Run *act* in a fork; return whether it was killed. Any other end but 0 is an error."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert is_killed or status == 0, f"the child ended with {status}"
    return is_killed


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_around_the_record(path: str, effects: str) -> None:
    """Killed before the effect, between effect and record, after the record, or not at all."""
    Path(effects).touch()

    def deliver(number: int, fence: int, death: str) -> None:
        once = Once(SqliteProcessed(path), wait_s=0)
        with once(Told(str(number), fence)) as run:
            if death == "before":
                die()
            if run.first:
                with Path(effects).open("a") as file:
                    file.write(f"{number} {fence}\n")
            if death == "between":
                die()
        if death == "after":
            die()

    rounds = {"before": [2], "between": [1, 2], "after": [1], "never": [1]}
    deaths = list(rounds) * 15
    for number, death in enumerate(deaths):
        killed = in_child(lambda number=number, death=death: deliver(number, 1, death))  # type: ignore[misc]
        assert killed is (death != "never")
        deliver(number, 2, "never")
    done = [tuple(map(int, line.split())) for line in Path(effects).read_text().splitlines()]
    for number, death in enumerate(deaths):
        assert [fence for each, fence in done if each == number] == rounds[death], (number, death)
    link = sqlite3.connect(path)
    assert link.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    found = link.execute("SELECT count(*), sum(done) FROM leasehold_processed").fetchone()
    assert found == (len(deaths), len(deaths)), found


def kill_in_sqlite_transactions(path: str) -> None:
    """See :func:`_kill_in_transactions`."""
    _kill_in_transactions(lambda: sqlite3.connect(path), rounds=60)


def kill_in_postgres_transactions(conninfo: str) -> None:
    """See :func:`_kill_in_transactions`."""
    import psycopg  # noqa: PLC0415 - optional

    _kill_in_transactions(lambda: psycopg.connect(conninfo), rounds=20)


def _kill_in_transactions(connect: Callable[[], Any], rounds: int) -> None:
    """Killed anywhere around a transaction, each effect is there once after the next delivery."""
    once = Once(history=History(table="killed_history"))
    link = connect()
    once.history.create(link)
    link.execute("CREATE TABLE killed_effect (number INTEGER)")
    link.commit()
    link.close()

    def deliver(number: int, fence: int, death: int | None) -> None:
        link = connect()
        with once.in_transaction(link, Told(str(number), fence)) as run:
            if death == 0:
                die()
            if run.first:
                link.execute(f"INSERT INTO killed_effect VALUES ({number})")
                run.result = fence
            if death == 1:
                die()
        if death == 2:
            die()
        link.close()

    for number in range(rounds):
        assert in_child(lambda number=number: deliver(number, 1, number % 3))  # type: ignore[misc]
        deliver(number, 2, None)
    link = connect()
    count = "SELECT count(*), count(DISTINCT number) FROM killed_effect"
    assert link.execute(count).fetchone() == (rounds, rounds)
    results = "SELECT result, count(*) FROM killed_history GROUP BY result ORDER BY result"
    found = [tuple(row) for row in link.execute(results).fetchall()]
    assert found == [("1", rounds // 3), ("2", rounds - rounds // 3)], found


def share_a_file(path: str) -> None:
    """Processes that write at the same time, over a store that was opened before the fork."""
    store = SqliteProcessed(path)
    assert store.look("k0") is None
    inherited = store._file._connection
    reading, writing = os.pipe()
    children = []
    for name in "abc":
        child = os.fork()
        if child:
            children.append(child)
            continue
        code = 1
        try:
            os.close(writing)
            # Ends when the parent lets all of them go.
            os.read(reading, 1)
            for number in range(40):
                me = holder(source=f"q/{name}", run=f"{name}{number}")
                if store.begin(f"k{number}", me) is None:
                    store.finish(f"k{number}", me, f'"{name}"')
            assert store._file._connection is not inherited, "that is the parent's"
            store.close()
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    for number in range(40):
        entry = store.look(f"k{number}")
        assert entry is not None
        assert entry.is_done
        assert entry.result == f'"{entry.source[2:]}"'
    store.close()
    link = sqlite3.connect(path)
    assert link.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def fork_a_postgres_store(conninfo: str, table: str) -> None:
    """A child opens connections of its own, and the parent's stay as they are."""
    from leasehold.worker.idempotency import PostgresProcessed  # noqa: PLC0415 - optional

    store = PostgresProcessed(conninfo, table=table)
    me = holder()
    store.begin("k", me)
    assert not in_child(lambda: store.finish("k", me, "7"))
    entry = store.look("k")
    assert entry is not None
    assert entry.result == "7"
    store.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
