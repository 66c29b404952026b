"""Workers by force on Azurite, through the official SDK, in the time of the machine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from leasehold.worker.adapters import Outgoing
from leasehold.worker.adapters.azure import AzureQueue
from tests.contract.queues.azurite import ON_AZURITE, Azurite
from tests.patience import PATIENCE_S
from tests.reliability.running import eventually
from tests.reliability.worker_campaign import QUEUE, Audit, WorkerProcess
from tests.reliability.worker_handlers import Rehearsal
from tests.reliability.worker_ledger import Accounts, Entry, Ledger, entries

LEASE_S: Final = 3
HANDLER_S: Final = 4
LOOK_S: Final = 0.2


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    """Azurite, or a reason why there is none."""
    with Azurite.started() as started:
        yield started


@dataclass
class Bench:
    """A queue of Azurite, and workers on it."""

    folder: Path
    azurite: Azurite
    queue: AzureQueue
    workers: list[WorkerProcess] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)

    def send(self, count: int) -> None:
        """Put so many messages."""
        names = [f"{number:05d}" for number in range(len(self.sent), len(self.sent) + count)]
        assert self.queue.put([Outgoing(body=name) for name in names]) == [None] * count
        self.sent += names

    def start(self, **rehearsal: Any) -> WorkerProcess:
        """Start a worker."""
        settings = {"concurrency": 4, "prefetch": 4, "handler_s": HANDLER_S, **rehearsal}
        worker = WorkerProcess(
            Rehearsal(
                worker=f"w{len(self.workers)}",
                queue=self.queue.name,
                connection=self.azurite.connection_string,
                service="azure",
                folder=str(self.folder),
                clock=None,
                lease_s=LEASE_S,
                **settings,
            ),
            None,
        )
        self.workers.append(worker)
        return worker

    def noted(self, what: str) -> list[Entry]:
        """Return what stands in the journals so far, of one kind."""
        return [entry for entry in entries(self.folder) if entry.what == what]

    def await_noted(self, what: str, count: int) -> None:
        """Wait until so many of a kind stand in the journals."""
        eventually(lambda: len(self.noted(what)) >= count, f"{count} times {what}", PATIENCE_S)

    def left(self) -> int:
        """Return how many messages there are."""
        return self.queue.depth().total or 0

    def finish(self) -> Audit:
        """Wait until the queue is empty, stop the workers, and account for everything."""
        end_s = time.monotonic() + PATIENCE_S
        while self.left():
            assert time.monotonic() < end_s, "the queue does not get empty"
            time.sleep(LOOK_S)
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.stop()
        return Audit(
            sent=tuple(self.sent),
            accounts=Accounts.of(self.folder),
            events=(),
            left=self.left(),
            queues=(QUEUE,),
        )


@pytest.fixture
def bench(azurite: Azurite, tmp_path: Path) -> Iterator[Bench]:
    """A new queue, and its ledger; workers are ended."""
    queue = AzureQueue.from_connection_string(azurite.connection_string, f"q{uuid4().hex}")
    queue.create()
    Ledger.create(tmp_path)
    made = Bench(tmp_path, azurite, queue)
    yield made
    for worker in made.workers:
        worker.end()
    queue.close()


@ON_AZURITE
def test_a_killed_worker_does_each_effect_once(bench: Bench) -> None:
    """Three workers, one of which is killed at work: nothing is lost or doubled."""
    bench.send(20)
    kinds: list[dict[str, Any]] = [
        {},
        {"runner": "asyncio", "handler": "afenced"},
        {"renewer": "process"},
    ]
    for kind in kinds:
        bench.start(**kind)
    victim = bench.workers[0]
    name = victim.rehearsal.worker
    eventually(
        lambda: any(entry.worker == name for entry in bench.noted("effect")),
        "the victim has done something",
        PATIENCE_S,
    )
    victim.kill()
    audit = bench.finish()
    assert audit.problems() == []
    again = [entry for entry in audit.accounts.noted("begun") if entry.dequeue_count > 1]
    assert again != []


@ON_AZURITE
def test_nothing_is_delivered_twice_without_kills(bench: Bench) -> None:
    """Work that takes longer than its lease, in hand and in the buffer, is delivered once."""
    bench.send(16)
    for _ in range(2):
        bench.start()
    audit = bench.finish()
    assert audit.problems() == []
    assert Counter(entry.dequeue_count for entry in audit.accounts.noted("begun")) == {1: 16}


@ON_AZURITE
def test_a_worker_that_was_stopped_past_its_lease(bench: Bench) -> None:
    """Its calls are refused by the service, and its writes by the fence."""
    bench.send(3)
    zombie = bench.start(handler="zombie", handler_s=600)
    bench.await_noted("waits", 3)
    zombie.freeze()
    heir = bench.start()
    bench.await_noted("begun", 6)
    zombie.thaw()
    bench.await_noted("tried effect", 3)
    audit = bench.finish()
    assert audit.problems() == []
    noted = Counter((entry.what, entry.told) for entry in audit.accounts.entries)
    for call in ("renew", "save", "release", "complete"):
        assert noted[f"tried {call}", "LeaseGone"] == 3, (call, noted)
    assert noted["tried write", "Fenced"] == 3
    settled = {entry.worker for entry in audit.accounts.noted("settled")}
    assert settled == {heir.rehearsal.worker}


@pytest.mark.slow
def test_a_worker_that_is_told_to_end(bench: Bench) -> None:
    """What waits in its buffer can be received at once, and what it works on is completed."""
    bench.send(8)
    worker = bench.start()
    bench.await_noted("begun", 4)
    worker.stop()
    assert bench.left() == 4
    assert len(bench.queue.receive(8, visibility_timeout_s=1)) == 4
    assert len(bench.noted("ended")) == 4
    bench.start()
    assert bench.finish().problems() == []


@ON_AZURITE
def test_without_renewals_messages_are_delivered_twice(bench: Bench) -> None:
    """Positive control: two workers that only think that they renew have the same message."""
    bench.send(4)
    for _ in range(2):
        bench.start(renews=False)
    bench.await_noted("begun", 4)
    eventually(
        lambda: any(entry.dequeue_count > 1 for entry in bench.noted("begun")),
        "a second delivery",
        PATIENCE_S,
    )
