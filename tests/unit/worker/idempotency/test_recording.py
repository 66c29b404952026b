"""An effect that happened is recorded although the history does not answer at once."""

from __future__ import annotations

import asyncio
import errno
import pickle
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from leasehold.worker.idempotency import (
    Fenced,
    Holder,
    MemoryProcessed,
    NotRecorded,
    Once,
    SqliteProcessed,
)
from leasehold.worker.idempotency.history import may_pass
from tests.unit.worker.idempotency.support import Told

DOWN = ConnectionError("the history is down")


class Failing(MemoryProcessed):
    """A history that fails at its first records, each in its own way."""

    def __init__(self, *errors: Exception, and_then: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.errors = list(errors)
        self.and_then = and_then
        self.asked = 0

    def finish(self, key: str, holder: Holder, result: str | None) -> None:
        self.asked += 1
        if self.errors:
            error = self.errors.pop(0)
            self.and_then()
            raise error
        super().finish(key, holder, result)


class Waits:
    """Time that takes none, but for what a test lets pass."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waited_s: list[float] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        assert timeout_s is not None
        self.waited_s.append(timeout_s)
        self.now_s += timeout_s


def is_done(store: MemoryProcessed) -> bool:
    """Tell whether the next delivery skips the body."""
    with Once(store)(Told(fence=9)) as run:
        return not run.first


def test_record_is_tried_again_until_the_history_answers() -> None:
    """The handler succeeds, and the message is skipped when it comes again."""
    store, time = Failing(*[DOWN] * 4), Waits()
    assert Once(store, time=time).call(Told(), lambda: "receipt") == "receipt"
    assert store.asked == 5
    assert time.waited_s == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert Once(store).call(Told(fence=2), lambda: "again") == "receipt"


def test_tries_end_and_the_error_says_what_happened() -> None:
    """After record_s the handler fails with an error that does not hide that the effect is done."""
    store, time = Failing(*[DOWN] * 99), Waits()
    with pytest.raises(NotRecorded, match="has happened") as caught:
        Once(store, time=time, record_s=5).call(Told(), lambda: "receipt")
    assert "ConnectionError: the history is down" in str(caught.value)
    assert caught.value.__cause__ is DOWN
    assert sum(time.waited_s) <= 5
    assert max(time.waited_s) <= 2
    store.errors.clear()
    assert not is_done(store)


def test_record_s_of_nothing_is_one_try() -> None:
    """Who wants no second try gets none."""
    store, time = Failing(DOWN), Waits()
    with pytest.raises(NotRecorded):
        Once(store, time=time, record_s=0).call(Told(), lambda: 1)
    assert (store.asked, time.waited_s) == (1, [])


def test_negative_record_s_is_refused() -> None:
    """A time to try that cannot be is an error at once, not when a record fails."""
    with pytest.raises(ValueError, match="record_s"):
        Once(MemoryProcessed(), record_s=-1)


def test_slow_tries_count() -> None:
    """What a try takes until it fails is part of the time: nothing begins when it is over."""
    time = Waits()
    store = Failing(*[DOWN] * 9, and_then=lambda: setattr(time, "now_s", time.now_s + 20))
    with pytest.raises(NotRecorded):
        Once(store, time=time, record_s=30).call(Told(), lambda: 1)
    assert store.asked == 2


@pytest.mark.parametrize("error", [RuntimeError("no such table"), PermissionError("not yours")])
def test_lasting_error_is_not_tried_again(error: Exception) -> None:
    """What another try cannot mend fails the handler at once, with the same honest error."""
    store, time = Failing(error), Waits()
    with pytest.raises(NotRecorded) as caught:
        Once(store, time=time).call(Told(), lambda: 1)
    assert caught.value.__cause__ is error
    assert store.asked == 1


def test_newer_delivery_that_came_between_is_told() -> None:
    """Who is overtaken while trying to record stops at once, and its result is not kept."""
    store = Failing(DOWN)
    store.and_then = lambda: overtake(store)
    with pytest.raises(Fenced):
        Once(store, time=Waits()).call(Told(), lambda: "old")
    assert Once(store).call(Told(fence=3), lambda: "third") == "new"


def overtake(store: Failing) -> None:
    store.and_then = lambda: None
    assert Once(store).call(Told(fence=2), lambda: "new") == "new"


def test_failed_body_is_not_recorded() -> None:
    """A body that raises is set free as before, and nothing is tried."""
    store = Failing(DOWN)

    def fail() -> None:
        raise ValueError("no money")

    with pytest.raises(ValueError, match="no money"):
        Once(store, time=Waits()).call(Told(), fail)
    assert store.asked == 0


def test_it_can_be_sent_to_another_process() -> None:
    """The error keeps its parts when it is pickled."""
    again = pickle.loads(pickle.dumps(NotRecorded("orders/m1", "TimeoutError: late")))
    assert (again.key, again.why) == ("orders/m1", "TimeoutError: late")
    assert "orders/m1" in str(again)


# --- asynchronous ----------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have asynchronous pauses take no time; gives their lengths."""
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await real(0)

    have_it_sleep(monkeypatch, sleep)
    return slept


def have_it_sleep(
    monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], Awaitable[None]]
) -> None:
    """Give the module an asyncio with another sleep; other threads of the process keep theirs."""
    view = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    monkeypatch.setattr("leasehold.worker.idempotency.once.asyncio", view)


async def acall(once: Once, result: str) -> Any:
    async def work() -> str:
        return result

    return await once.acall(Told(), work)


def test_asynchronous_record_is_tried_again(quick: list[float]) -> None:
    """async with goes on as with does."""
    store = Failing(DOWN, DOWN)
    once = Once(store)
    assert asyncio.run(acall(once, "receipt")) == "receipt"
    assert quick == pytest.approx([0.1, 0.2])
    assert is_done(store)
    once.close()


def test_asynchronous_tries_end(quick: list[float]) -> None:
    """After record_s it says so."""
    store = Failing(DOWN)
    once = Once(store, record_s=0)
    with pytest.raises(NotRecorded):
        asyncio.run(acall(once, "receipt"))
    assert quick == []
    once.close()


@pytest.mark.parametrize("left", [(), (DOWN,)])
def test_cancelled_while_it_waits_to_try_again(
    left: Sequence[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that is cancelled between two tries makes a last one; if that fails, the log says so.

    It ends as cancelled either way.
    """
    store = Failing(DOWN, *left)
    once = Once(store)

    async def main() -> None:
        waits = asyncio.Event()

        async def sleep(_: float) -> None:
            waits.set()
            await asyncio.Event().wait()

        have_it_sleep(monkeypatch, sleep)
        task = asyncio.create_task(acall(once, "receipt"))
        await waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    monkeypatch.undo()
    assert store.asked == 2
    assert is_done(store) is not bool(left)
    assert any("has happened" in each.message for each in caplog.records) is bool(left)
    once.close()


def test_cancelled_while_the_last_try_fails(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody hears the error of a task that is cancelled meanwhile, so the log has it."""
    asked, answer = threading.Event(), threading.Event()

    def hold_up() -> None:
        asked.set()
        answer.wait()

    store = Failing(DOWN, and_then=hold_up)
    once = Once(store, record_s=0)

    async def main() -> None:
        task = asyncio.create_task(acall(once, "receipt"))
        await asyncio.to_thread(asked.wait)
        task.cancel()
        await asyncio.sleep(0)
        answer.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert store.asked == 1
    assert sum("has happened" in each.message for each in caplog.records) == 1
    once.close()


# --- which errors may pass -------------------------------------------------------------------


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("of the test")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (OSError(errno.ENOSPC, "full"), True),
        (FileNotFoundError(), False),
        (PermissionError(), False),
        (ValueError(), False),
    ],
)
def test_errors_of_the_machine(error: Exception, *, expected: bool) -> None:
    """Connections, deadlines and disks recover; what is missing or forbidden stays so."""
    assert may_pass(error) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError(), True),
        (sqlite_error(sqlite3.SQLITE_BUSY), True),
        (sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT), True),
        (sqlite_error(sqlite3.SQLITE_FULL), True),
        (sqlite_error(sqlite3.SQLITE_IOERR), True),
        (sqlite_error(sqlite3.SQLITE_ERROR), False),
        (sqlite3.DatabaseError("malformed"), False),
        (ValueError("was closed"), False),
    ],
)
def test_errors_of_sqlite(error: Exception, *, expected: bool) -> None:
    """Other writers and the disk may let it through later; a file that is broken will not."""
    assert SqliteProcessed("unused.db").may_pass(error) is expected


def test_errors_of_postgresql() -> None:
    """A restart or a failover passes; a table that is not there does not come."""
    psycopg = pytest.importorskip("psycopg")
    from leasehold.worker.idempotency import PostgresProcessed  # noqa: PLC0415 - optional

    passing = (
        psycopg.OperationalError("server closed the connection"),
        psycopg.errors.AdminShutdown(),
        psycopg.errors.ReadOnlySqlTransaction(),
        ConnectionError(),
    )
    lasting = (psycopg.errors.UndefinedTable(), psycopg.errors.InsufficientPrivilege())
    store = PostgresProcessed()
    assert all(store.may_pass(error) for error in passing)
    assert not any(store.may_pass(error) for error in lasting)


def test_errors_of_redis() -> None:
    """A restart or a failover passes, and replicas that lag; a wrong password does not."""
    redis = pytest.importorskip("redis")
    from leasehold.worker.idempotency import RedisProcessed  # noqa: PLC0415 - optional

    passing = (
        redis.ConnectionError(),
        redis.TimeoutError(),
        redis.BusyLoadingError(),
        redis.ReadOnlyError(),
        TimeoutError(),
    )
    lasting = (redis.AuthenticationError(), redis.ResponseError("wrong type"), ValueError())
    store = RedisProcessed("redis://nowhere.invalid")
    assert all(store.may_pass(error) for error in passing)
    assert not any(store.may_pass(error) for error in lasting)
