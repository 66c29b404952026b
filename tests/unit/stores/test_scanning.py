"""Going over the rows of a SQLite store: two plans, short pages, and where a look ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.admin import JobKind, JobState
from leasehold.domain.command import AnyCommand
from leasehold.domain.filters import EVERYTHING, MessageFilter
from leasehold.domain.model import Lease, MessageState, Outcome
from leasehold.stores.sql import scanning
from leasehold.stores.sqlite import SqliteStore

NOW_MS = 1_767_225_600_000
A, B = "queue-a", "queue-b"


class Tried:
    """A store with two queues, and shorthand for asking it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SqliteStore(folder, cache_mib=2)
        for queue in (A, B):
            self.ask(c.CreateQueue("a", queue, {}))
        self._drawn = 0

    def ask(self, command: AnyCommand) -> Any:
        (result,) = self.store.execute([command], now_ms=NOW_MS)
        self.store.commit()
        return result

    def put(self, queue: str, number: int, priority: int = 8) -> list[Lease]:
        batch = []
        for _ in range(number):
            self._drawn += 1
            body = f"{self._drawn}".encode()
            entropy = self._drawn.to_bytes(10, "big")
            batch.append(c.Put("a", queue, body, 0, None, entropy, priority=priority))
        results = self.store.execute(batch, now_ms=NOW_MS)
        self.store.commit()
        return [result for result in results if isinstance(result, Lease)]

    def bury(self, queue: str, number: int) -> list[int]:
        leases = self.put(queue, number)
        for lease in leases:
            named = ("a", queue, lease.message.message_id, lease.receipt)
            released = self.ask(c.Release(*named, Outcome.BURIED))
            assert isinstance(released, c.Released)
        return [int(lease.message.body) for lease in leases]

    def pages(self, queue: str, limit: int, **wanted: Any) -> list[list[int]]:
        """Return the numbers on all pages."""
        pages: list[list[int]] = []
        after: str | None = ""
        while after is not None:
            assert len(pages) < 200, "the listing does not end"
            page = self.ask(o.Inspect("a", queue, MessageFilter(**wanted), after, limit))
            assert isinstance(page, o.MessagePage)
            assert len(page.messages) <= limit
            pages.append([int(seen.message.body) for seen in page.messages])
            after = page.next_after
        return pages

    def listed(self, queue: str, limit: int, **wanted: Any) -> list[int]:
        return [number for page in self.pages(queue, limit, **wanted) for number in page]

    def run(self, kind: JobKind, limit: int = 100, **plan: Any) -> o.Job:
        """Carry a job out to the end."""
        self.ask(o.StartJob("a", A, "job", o.JobPlan(kind=kind, **plan)))
        return self.finish(limit)

    def finish(self, limit: int = 100) -> o.Job:
        for _ in range(200):
            job = self.ask(o.StepJob("job", limit))
            assert isinstance(job, o.Job)
            if job.state is JobState.DONE:
                return job
        raise AssertionError("the job does not end")


@pytest.fixture(params=["sorted", "row by row"])
def tried(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tried]:
    """A store that goes by the one or the other plan, and soon has looked at enough."""
    if request.param == "row by row":
        monkeypatch.setattr(scanning, "SORTED_UP_TO", -1)
    monkeypatch.setattr(scanning, "CHUNK_ROWS", 5)
    monkeypatch.setattr(scanning, "MAX_CHUNKS", 3)
    monkeypatch.setattr(scanning, "OTHERS_ROWS", 7)
    made = Tried(tmp_path)
    yield made
    made.store.close()


def mixed(tried: Tried) -> list[int]:
    """Put messages of two queues between each other; return the numbers of the first."""
    mine = []
    for size in (1, 3, 40, 2, 9):
        mine += [int(lease.message.body) for lease in tried.put(A, size, priority=1 + size % 4)]
        tried.put(B, size * 2)
    return mine


@pytest.mark.parametrize("limit", [1, 4, 5, 6, 1000])
def test_each_plan_lists_each_message_once_in_order(tried: Tried, limit: int) -> None:
    """Across chunks, budgets, priorities and the rows of other queues."""
    mine = mixed(tried)
    assert tried.listed(A, limit) == mine
    poison = tried.bury(A, 12)
    tried.bury(B, 3)
    assert tried.listed(A, limit) == mine + poison


@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_invisible_messages_are_found_by_each_plan(tried: Tried, limit: int) -> None:
    """A listing of what is leased or deferred finds those and no others."""
    mixed(tried)
    leases = tried.ask(c.Receive("a", A, 20, 60))
    assert isinstance(leases, tuple)
    numbers = sorted(int(lease.message.body) for lease in leases if isinstance(lease, Lease))
    states = frozenset({MessageState.LEASED, MessageState.DEFERRED})
    assert len(numbers) == 20
    assert tried.listed(A, limit, states=states) == numbers


def test_a_budget_that_is_spent_makes_a_short_page_that_goes_on(tried: Tried) -> None:
    """Who looks for a needle gets empty pages in between, and finds it."""
    mixed(tried)
    (needle,) = tried.put(A, 1)
    tried.put(B, 30)
    number = int(needle.message.body)
    pages = tried.pages(A, 10, text=str(number))
    assert len(pages) > 3
    assert [page for page in pages if page] == [[number]]


def test_a_page_goes_on_when_the_plan_changes(
    tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue may grow or shrink past the limit between two pages."""
    mine = mixed(tried)
    seen: list[int] = []
    after = ""
    for sorted_up_to in cycle((-1, 1_000)):
        monkeypatch.setattr(scanning, "SORTED_UP_TO", sorted_up_to)
        page = tried.ask(o.Inspect("a", A, EVERYTHING, after, 3))
        assert isinstance(page, o.MessagePage)
        seen += [int(each.message.body) for each in page.messages]
        if page.next_after is None:
            break
        after = page.next_after
    assert seen == mine


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_a_purge_by_each_plan_takes_what_it_should(tried: Tried, limit: int) -> None:
    """All of one queue, though its steps are short, and none of the other."""
    mine = mixed(tried)
    job = tried.run(JobKind.PURGE, limit)
    assert (job.matched, job.moved, job.examined) == (len(mine),) * 3
    assert tried.listed(A, 10) == []
    assert len(tried.listed(B, 10)) == 2 * len(mine)


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_a_redrive_by_each_plan_takes_what_it_should(tried: Tried, limit: int) -> None:
    """Each poisoned message once, and none that became poison after the start."""
    mixed(tried)
    tried.bury(A, 20)
    tried.bury(B, 5)
    job = tried.run(JobKind.REDRIVE, limit)
    assert (job.matched, job.moved, job.expected) == (20, 20, 20)
    assert len(tried.listed(A, 100)) == 55 + 20
    assert len(tried.listed(B, 100, states=frozenset({MessageState.POISONED}))) == 5


@pytest.mark.parametrize("kind", [JobKind.PURGE, JobKind.REDRIVE])
def test_a_job_ends_however_much_comes_after_it(tried: Tried, kind: JobKind) -> None:
    """More newer messages than one look may go over do not keep it from its end."""
    fill = tried.put if kind is JobKind.PURGE else tried.bury
    fill(A, 8)
    tried.ask(o.StartJob("a", A, "job", o.JobPlan(kind=kind)))
    fill(A, 60)
    job = tried.finish()
    assert (job.matched, job.moved) == (8, 8)


def test_a_job_looks_at_no_more_than_a_step_may(
    tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing matches, each step ends soon and the next one goes on."""
    monkeypatch.setattr("leasehold.stores.sql.admin.JOB_SCAN", 4)
    tried.put(A, 30)
    plan = o.JobPlan(kind=JobKind.PURGE, filter=MessageFilter(text="nothing"))
    tried.ask(o.StartJob("a", A, "job", plan))
    examined = 0
    for _ in range(30):
        job = tried.ask(o.StepJob("job", 100))
        assert isinstance(job, o.Job)
        assert job.examined - examined <= 4
        examined = job.examined
        if job.state is JobState.DONE:
            break
    assert (job.state, job.examined, job.moved) == (JobState.DONE, 30, 0)


def test_a_job_goes_on_after_a_restart(tried: Tried) -> None:
    """Its place is kept with what it has done."""
    tried.put(A, 20)
    tried.ask(o.StartJob("a", A, "job", o.JobPlan(kind=JobKind.PURGE)))
    tried.ask(o.StepJob("job", 6))
    tried.store.close()
    tried.store = SqliteStore(tried.folder, cache_mib=2)
    tried.put(A, 3)
    job = tried.finish(limit=6)
    assert (job.matched, job.moved, job.examined) == (20, 20, 20)
    assert len(tried.listed(A, 100)) == 3


def test_the_plans_use_their_indexes(tmp_path: Path) -> None:
    """Keys are found without reading rows, and rows by their keys."""
    store = SqliteStore(tmp_path)
    state = store._state
    expected = {
        "keys_by_visibility": ("COVERING INDEX message_by_visibility (partition=?)", 4),
        "invisible_keys": (
            "COVERING INDEX message_by_visibility (partition=? AND visible_at_ms>?)",
            6,
        ),
        "keys_by_age": ("INTEGER PRIMARY KEY (rowid>? AND rowid<?)", 3),
        "rows_of_keys": ("INTEGER PRIMARY KEY (rowid=?)", 1),
    }
    for name, (part, number) in expected.items():
        explain = "EXPLAIN QUERY PLAN " + state.sql[name]
        bounds = ("[1]", 1, 2, 3, 4, "[2]")[:number] if number != 3 else (1, 2, 3)
        plan = " ".join(str(row[3]) for row in state.cursor.execute(explain, bounds))
        assert part in plan
    store.close()
