"""Progress beside a queue that keeps none."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leasehold.testing import ManualClock, ManualTime
from leasehold.testing.memory_queue import MEMORY, MemoryQueue
from leasehold.worker.adapters import Fault, Lease, LeaseGone, Outgoing, Release, Saved, Unreachable
from leasehold.worker.stages import (
    KeepsProgress,
    MemoryProgress,
    ProgressStore,
    SqliteProgress,
    Stages,
)
from tests.unit.worker.stages.support import Bench, Died

SAVED = Saved(stage="encode", state={"frame": 7, "ä": [None, True]}, fraction=0.5)
LATER = Saved(stage="compress")


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProgressStore]:
    if request.param == "memory":
        yield MemoryProgress()
        return
    with SqliteProgress(tmp_path / "progress.db") as made:
        yield made


@pytest.fixture
def queue() -> MemoryQueue:
    """A queue like one of MNS: no progress, no fences, receipts that die with their lease."""
    lacking = replace(MEMORY, service="mns", saves="no", fences=False, counts_returns=True)
    return MemoryQueue("videos", time=ManualTime(), strict=True, capabilities=lacking)


def test_what_is_kept_is_loaded(store: ProgressStore) -> None:
    """Progress comes back by queue and message; nothing is known of others."""
    assert store.keep("q", "a", SAVED, 1)
    assert store.keep("q", "b", Saved(), 1)
    assert store.load("q", ["a", "b", "c"]) == {"a": SAVED, "b": Saved()}
    assert store.load("other", ["a"]) == {}
    assert store.load("q", []) == {}


def test_the_same_holder_and_later_ones_replace_it(store: ProgressStore) -> None:
    """Each save takes the place of the one before."""
    store.keep("q", "a", SAVED, 1)
    assert store.keep("q", "a", Saved(), 1)
    assert store.keep("q", "a", LATER, 2)
    assert store.load("q", ["a"]) == {"a": LATER}


def test_an_earlier_holder_cannot_replace_it(store: ProgressStore) -> None:
    """Whoever lost the message does not overwrite what its next holder has saved."""
    store.keep("q", "a", LATER, 2)
    assert not store.keep("q", "a", SAVED, 1)
    assert store.load("q", ["a"]) == {"a": LATER}


def test_what_is_forgotten_is_gone(store: ProgressStore) -> None:
    """Only what is named is dropped; to name what is not there does no harm."""
    for each in ("a", "b"):
        store.keep("q", each, SAVED, 1)
    store.forget("q", ["a", "c"])
    store.forget("other", ["b"])
    store.forget("q", [])
    assert store.load("q", ["a", "b"]) == {"b": SAVED}


def test_many_at_once(store: ProgressStore) -> None:
    """More messages than a statement has parameters are no matter."""
    ids = [str(each) for each in range(1200)]
    store.keep("q", ids[-1], SAVED, 1)
    assert store.load("q", ids) == {ids[-1]: SAVED}
    store.forget("q", ids)
    assert store.load("q", ids) == {}


@pytest.mark.parametrize("state", [{1, 2}, float("inf")])
def test_what_json_cannot_say_is_refused(store: ProgressStore, state: Any) -> None:
    """The error comes at once, not when somebody reads it."""
    with pytest.raises(TypeError, match="JSON"):
        store.keep("q", "a", Saved(state=state), 1)
    assert store.load("q", ["a"]) == {}


def test_the_file_is_shared_and_outlives_its_users(tmp_path: Path) -> None:
    """Two workers see the same; what was kept is there after both have gone."""
    path = tmp_path / "progress.db"
    with SqliteProgress(path) as one, SqliteProgress(path) as other:
        one.keep("q", "a", SAVED, 1)
        assert other.load("q", ["a"]) == {"a": SAVED}
    with SqliteProgress(path) as again:
        assert again.load("q", ["a"]) == {"a": SAVED}


def test_what_nobody_completed_is_swept(tmp_path: Path) -> None:
    """Progress of messages that expired in their queue goes when the store is opened."""
    clock = ManualClock()
    path = tmp_path / "progress.db"
    with SqliteProgress(path, keep_s=100, clock=clock) as store:
        store.keep("q", "old", SAVED, 1)
        clock.advance(s=60)
        store.keep("q", "new", SAVED, 1)
        clock.advance(s=60)
        assert store.load("q", ["old", "new"]).keys() == {"old", "new"}
    with SqliteProgress(path, keep_s=100, clock=clock) as store:
        assert store.load("q", ["old", "new"]).keys() == {"new"}
        assert store.sweep() == 0


def test_a_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    """The store does not begin with something that it did not write."""
    path = tmp_path / "progress.db"
    path.write_text("something else, and long enough to be seen as a database" * 20)
    with pytest.raises(sqlite3.DatabaseError):
        SqliteProgress(path)


def test_a_pipeline_resumes_without_the_service(store: ProgressStore, queue: MemoryQueue) -> None:
    """On a service that keeps no progress, the store lets the next holder go on."""
    bench = Bench(KeepsProgress(queue, store), queue._time)  # type: ignore[arg-type]
    log: list[str] = []
    pipeline = Stages()
    pipeline.stage("a")(lambda message, state: log.append("a"))

    @pipeline.stage("b")
    def b(message: Any, state: Any) -> None:
        log.append("b")
        if message.dequeue_count == 1:
            message.checkpoint({"frame": 3})
            raise Died
        assert state == {"frame": 3}

    pipeline.check_queue(bench.client)
    with pytest.raises(Died):
        pipeline(bench.receive())
    message = bench.receive()
    pipeline(message)
    assert log == ["a", "b", "b"]
    assert store.load("videos", [message.id]) != {}
    bench.complete(message)
    assert store.load("videos", [message.id]) == {}


def test_a_save_renews_the_lease(store: ProgressStore, queue: MemoryQueue) -> None:
    """The receipt is replaced, as by any service that saves."""
    client = KeepsProgress(queue, store)
    client.put([Outgoing(body="x")])
    [delivery] = client.receive(1, visibility_timeout_s=30)
    renewed = client.save(delivery, delivery.receipt, SAVED, 60)
    assert renewed.receipt != delivery.receipt
    [result] = client.complete([Lease(delivery.message_id, renewed.receipt)])
    assert result is None


def test_a_save_leaves_time_to_renew_its_lease(store: ProgressStore, queue: MemoryQueue) -> None:
    """A service that does not answer is waited for during a part of the lease only."""
    asked = []

    class Recording(MemoryQueue):
        def renew(self, *args: Any, timeout_s: float | None = None) -> list[Any]:
            asked.append(timeout_s)
            return super().renew(*args, timeout_s=timeout_s)

    client = KeepsProgress(Recording("videos", capabilities=queue.capabilities), store)
    client.put([Outgoing(body="x")])
    [delivery] = client.receive(1, visibility_timeout_s=30)
    client.save(delivery, delivery.receipt, SAVED, 12)
    assert asked == [4]


def test_a_lost_lease_saves_nothing(store: ProgressStore, queue: MemoryQueue) -> None:
    """Neither once the lease has ended, nor after the next holder has saved."""
    client = KeepsProgress(queue, store)
    time: ManualTime = queue._time  # type: ignore[assignment]
    client.put([Outgoing(body="x")])
    [first] = client.receive(1, visibility_timeout_s=30)
    receipt = client.save(first, first.receipt, SAVED, 30).receipt
    time.advance(31)
    with pytest.raises(LeaseGone):
        client.save(first, receipt, LATER, 30)
    [second] = client.receive(1, visibility_timeout_s=30)
    assert second.saved == SAVED
    client.save(second, second.receipt, LATER, 30)
    with pytest.raises(LeaseGone, match="later"):
        client.save(first, receipt, SAVED, 30)
    assert store.load("videos", [first.message_id]) == {first.message_id: LATER}


def test_an_answer_that_did_not_come_keeps_the_progress(
    store: ProgressStore, queue: MemoryQueue
) -> None:
    """A renewal of which nobody knows whether it was done does not undo what was kept."""

    class Silent(MemoryQueue):
        def renew(self, *_: Any, **__: Any) -> list[Any]:
            return [Unreachable("no answer")]

    client = KeepsProgress(Silent("videos", capabilities=queue.capabilities), store)
    client.put([Outgoing(body="x")])
    [delivery] = client.receive(1, visibility_timeout_s=30)
    with pytest.raises(Unreachable):
        client.save(delivery, delivery.receipt, SAVED, 30)
    assert store.load("videos", [delivery.message_id]) == {delivery.message_id: SAVED}


def test_a_message_given_back_keeps_its_progress(store: ProgressStore, queue: MemoryQueue) -> None:
    """Whoever receives it next goes on; what is buried leaves nothing behind."""
    client = KeepsProgress(queue, store)
    client.put([Outgoing(body="x")])
    [delivery] = client.receive(1, visibility_timeout_s=30)
    receipt = client.save(delivery, delivery.receipt, SAVED, 30).receipt
    client.release([Release(lease=Lease(delivery.message_id, receipt), outcome="returned")])
    [again] = client.receive(1, visibility_timeout_s=30)
    assert again.saved == SAVED
    client.bury(again, again.receipt, Fault(text="broken"))
    assert store.load("videos", [again.message_id]) == {}


def test_a_failing_store_does_not_undo_a_completion(queue: MemoryQueue) -> None:
    """A message is completed although what was kept for it could not be dropped."""

    class Broken(MemoryProgress):
        def forget(self, queue: str, message_ids: Any) -> None:
            raise OSError

    client = KeepsProgress(queue, Broken())
    client.put([Outgoing(body="x")])
    [delivery] = client.receive(1, visibility_timeout_s=30)
    assert client.complete([delivery.lease]) == [None]


def test_a_client_around_another_is_that_client(queue: MemoryQueue) -> None:
    """What is not about progress is passed on, also what only that client has."""
    client = KeepsProgress(queue, MemoryProgress())
    assert client.name == "videos"
    assert client.capabilities == replace(queue.capabilities, saves="beside")
    assert client.calls is queue.calls
    client.create()
    client.put([Outgoing(body="x")])
    assert client.depth() == queue.depth()
    [delivery] = client.receive(1, visibility_timeout_s=30)
    [renewed] = client.renew([delivery.lease], 60)
    assert renewed.receipt != delivery.receipt  # type: ignore[union-attr]
    session = client.open_session("me", 15)
    assert not session.is_lost
    client.close()
    assert "KeepsProgress(" in repr(client)
