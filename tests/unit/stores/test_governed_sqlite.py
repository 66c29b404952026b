"""What SQLite keeps in memory about queues that are governed: after undone batches and restarts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import StoreFull
from leasehold.domain.filters import EVERYTHING, MessageFilter
from leasehold.domain.model import Detail, ErrorReport, Lease, Outcome, Progress
from leasehold.domain.queue_settings import (
    Adapted,
    Adaptive,
    Backoff,
    FailurePolicy,
    QueueSettings,
)
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock

QUEUE, POISON, OTHER = "queue", "queue-poison", "other"
POLICY = FailurePolicy(
    max_failures=2, backoff=Backoff(initial_s=30, jitter=0), poison_time_to_live_s=600
)
SETTINGS = QueueSettings(
    visibility_timeout_s=20,
    failure_policy=POLICY,
    priority_ageing_s=60,
    adaptive=Adaptive(),
)
BAD = c.CreateQueue("a", "\ud800", {})
"""Breaks its batch: SQLite cannot take the name."""


@dataclass
class Tried:
    """A store that can be opened again."""

    folder: Path
    clock: ManualClock
    store: SqliteStore
    drawn: int = 0

    def ask_all(self, *commands: AnyCommand) -> list[Any]:
        results = self.store.execute(commands, now_ms=self.clock.now_ms())
        self.store.commit()
        return results

    def ask(self, command: AnyCommand) -> Any:
        return self.ask_all(command)[0]

    def put(self, body: str, **fields: Any) -> c.Put:
        self.drawn += 1
        settings: dict[str, Any] = {"queue": QUEUE, "delay_s": 0, "time_to_live_s": 3600}
        return c.Put(
            "a", body=body.encode(), entropy=self.drawn.to_bytes(10, "big"), **(settings | fields)
        )

    def reopen(self) -> None:
        self.store.close()
        self.store = SqliteStore(self.folder, cache_mib=2)

    def picture(self) -> list[Any]:
        """Return all that can be seen of the store."""
        seen: list[Any] = sorted(self.store.message_counts())
        for queue in (QUEUE, POISON, OTHER):
            seen += self.ask_all(
                c.GetQueue("a", queue, with_counts=True),
                o.Inspect("a", queue, EVERYTHING, "", 1000),
                o.NextDue("a", queue),
                c.Peek("a", queue, 100),
            )
            seen.append(self.store.find_queue("a", queue))
        seen += self.ask_all(o.ListJobs("a"), o.ListJobs(None))
        return [type(each) if isinstance(each, Exception) else each for each in seen]


@pytest.fixture
def tried(tmp_path: Path) -> Iterator[Tried]:
    """A store with messages in every state, priorities, keys, poison and a job."""
    made = Tried(tmp_path, ManualClock(), SqliteStore(tmp_path, cache_mib=2))
    made.ask_all(c.CreateQueue("a", QUEUE, {"m": "1"}, SETTINGS), c.CreateQueue("a", OTHER, {}))
    made.ask(c.SetAdapted("a", QUEUE, Adapted(visibility_timeout_s=25, because="b", at_ms=1)))
    detail = Detail(properties={"p": "ü"}, message_type="t", dedup_key="known")
    made.ask_all(
        made.put("leased"),
        made.put("deferred"),
        made.put("poison"),
        made.put("keyed", detail=detail, priority=3),
        made.put("delayed", delay_s=100, priority=16),
        made.put("short", time_to_live_s=5),
    )
    for lease in of_names(made.ask(receive(6)), "deferred", "poison"):
        outcome = Outcome.BURIED if lease.message.body == b"poison" else Outcome.FAILED
        made.ask(release(lease, outcome))
    made.clock.advance(s=5)
    made.ask_all(*(made.put(f"visible {n}", priority=1 + n) for n in range(4)))
    purge = o.JobPlan(kind=o.JobKind.PURGE, filter=MessageFilter(text="nothing"))
    made.ask_all(o.StartJob("a", QUEUE, "job", purge), o.StepJob("job", 2))
    yield made
    made.store.close()


def receive(limit: int, queue: str = QUEUE) -> c.Receive:
    return c.Receive("a", queue, limit, 60, "w1")


def release(lease: Lease, outcome: Outcome) -> c.Release:
    error = ErrorReport(text="no such codec", type="CodecError")
    return c.Release("a", QUEUE, lease.message.message_id, lease.receipt, outcome, None, error)


def of_names(leases: tuple[Lease, ...], *names: str) -> list[Lease]:
    return [lease for lease in leases if lease.message.body.decode() in names]


def everything_at_once(tried: Tried, lease: Lease) -> list[AnyCommand]:
    """Return a batch that changes all there is, and looks at it meanwhile."""
    message_id = lease.message.message_id
    progress = Progress(at_ms=1, fraction=0.5)
    renew = c.Renew("a", QUEUE, message_id, lease.receipt, 90, b"new", progress)
    look: list[AnyCommand] = [o.CountMessages("a", QUEUE), o.NextDue("a", QUEUE)]
    seen = tried.ask(o.Inspect("a", QUEUE, EVERYTHING, "", 1000))
    delayed = next(each for each in seen.messages if each.message.body == b"delayed")
    return [
        renew,
        *look,
        tried.put("new", detail=Detail(dedup_key="new"), priority=7, delay_s=9),
        tried.put("elsewhere", queue=OTHER, priority=2),
        *look,
        receive(3),
        receive(1, OTHER),
        *look,
        o.EndLease("a", QUEUE, message_id, 3, "stuck"),
        o.Amend("a", QUEUE, delayed.message.message_id, priority=5, delay_s=1, body=b"late"),
        *look,
        c.SetQueueSettings("a", OTHER, QueueSettings(paused_until_ms=5)),
        o.StartJob("a", QUEUE, "again", o.JobPlan(kind=o.JobKind.REDRIVE)),
        o.StepJob("again", 10),
        o.CountMessages("a", POISON),
        c.RetireExpired(100),
        *look,
        o.StartJob("a", QUEUE, "purge", o.JobPlan(kind=o.JobKind.PURGE)),
        o.StepJob("purge", 2),
        c.Clear("a", OTHER),
        c.DeleteQueue("a", POISON),
        *look,
    ]


@pytest.mark.parametrize("counted", [False, True])
def test_an_undone_batch_leaves_nothing_behind(tried: Tried, counted: bool) -> None:
    """What broke half-way did not happen, in memory as on disk, whatever was in the batch."""
    (lease,) = of_names(tried.ask(receive(1)), "visible 0")
    if counted:
        tried.picture()
    with pytest.raises(UnicodeEncodeError):
        tried.store.execute([*everything_at_once(tried, lease), BAD], now_ms=tried.clock.now_ms())
    after = tried.picture()
    tried.reopen()
    assert tried.picture() == after
    assert tried.ask(o.CountMessages("a", QUEUE))[:5] == (3, 3, 1, 1, 1)
    assert isinstance(tried.ask(tried.put("new", detail=Detail(dedup_key="new"))), Lease)
    assert tried.ask(release(lease, Outcome.RETURNED)).poisoned is None


def test_a_batch_after_an_undone_one_does_what_it_would_have_done(
    tried: Tried, tmp_path: Path
) -> None:
    """A store that had to undo a batch and one that has just been opened answer the same."""
    (lease,) = of_names(tried.ask(receive(1)), "visible 0")
    before = tried.picture()
    commands = everything_at_once(tried, lease)
    with pytest.raises(UnicodeEncodeError):
        tried.store.execute([*commands, BAD], now_ms=tried.clock.now_ms())
    assert tried.picture() == before
    answers = tried.store.execute(commands, now_ms=tried.clock.now_ms())
    tried.store._roll_back()
    tried.reopen()
    again = tried.store.execute(commands, now_ms=tried.clock.now_ms())
    tried.store.commit()
    assert [shape(each) for each in answers] == [shape(each) for each in again]
    assert not any(isinstance(each, Exception) for each in again)


def shape(answer: Any) -> str:
    """Return an answer without what is drawn anew: ids and receipts, by the row's key."""
    if isinstance(answer, Lease):
        return repr(answer.message._replace(message_id=""))
    if isinstance(answer, o.Job):
        return f"{answer.state} {answer.matched} {answer.moved} {answer.expected}"
    if isinstance(answer, tuple) and answer and isinstance(answer[0], Lease):
        return repr([shape(each) for each in answer])
    return repr(answer)


@pytest.mark.parametrize("where", ["execute", "commit"])
def test_a_disk_that_fills_up_undoes_the_move_to_the_poison_queue(tried: Tried, where: str) -> None:
    """The message is where it was, and counts are right; with room it goes its way."""
    leases = tried.ask(receive(2))
    before = tried.picture()
    connection = tried.store._connection
    pages = connection.pragma("page_count")
    commands: list[AnyCommand] = [release(lease, Outcome.BURIED) for lease in leases]
    if where == "execute":
        connection.pragma("max_page_count", pages)
        commands.append(tried.put("x" * 5_000_000))
        with pytest.raises(StoreFull):
            tried.store.execute(commands, now_ms=tried.clock.now_ms())
        connection.pragma("max_page_count", 2**31)
    else:
        tried.store.execute(commands, now_ms=tried.clock.now_ms())
        tried.store._roll_back()
    assert tried.picture() == before
    results = tried.ask_all(*commands[:2])
    assert [result.poisoned for result in results] == ["buried", "buried"]
    assert tried.ask(o.CountMessages("a", QUEUE)).poisoned == 3
    counted = {name: number for _, name, number in tried.store.message_counts()}
    assert counted[POISON] == 3


def test_a_restart_keeps_everything(tried: Tried) -> None:
    """Settings, states, attempts, priorities, poison and jobs; receipts and keys go on acting."""
    (lease,) = of_names(tried.ask(receive(1)), "visible 0")
    before = tried.picture()
    first = tried.ask(tried.put("again", detail=Detail(dedup_key="known")))
    assert isinstance(first, c.Duplicate)
    for _ in range(2):
        tried.reopen()
        assert tried.picture() == before
    assert tried.ask(tried.put("again", detail=Detail(dedup_key="known"))) == first
    assert tried.ask(o.StepJob("job", 100)).state is o.JobState.DONE
    done = c.Complete("a", QUEUE, lease.message.message_id, lease.receipt)
    assert tried.ask(done) == c.DONE


def test_counts_are_right_whenever_somebody_begins_to_count(tried: Tried) -> None:
    """From memory, read anew in the middle of a second, or after time has gone either way."""
    for move_ms in (0, 1, 499, 500, 60_000, -3_000, 120_000, -179_000):
        tried.clock.advance(ms=move_ms)
        kept = tried.picture()
        tried.reopen()
        assert tried.picture() == kept, move_ms
