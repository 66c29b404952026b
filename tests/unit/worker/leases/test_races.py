"""Many threads settle, save and extend while renewals are under way and stand still anywhere."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MEMORY
from leasehold.testing.time import Gate
from leasehold.worker.adapters.protocol import (
    Delivery,
    Lease,
    LeaseGone,
    QueueError,
    Renewed,
    Saved,
    Unreachable,
)
from leasehold.worker.leases import AlreadySettled, Held, HeldState, LeaseSettings
from tests.unit.worker.leases.support import START_S, Aside, Bench, Queue

SETTINGS = LeaseSettings.of(12, message_timeout_s=100_000)


class Chaos(Queue):
    """A queue at which calls stand still before or after they are carried out, by dice.

    It knows of each message whether two calls that need its receipt are under way at once.
    """

    def __init__(self, time: ManualTime, seed: int, max_settle: int) -> None:
        super().__init__(time, capabilities=replace(MEMORY, max_settle=max_settle))
        self.dice = random.Random(seed)
        self.gates: list[Gate] = []
        self.clashes: list[str] = []
        self.gone: list[str] = []
        self.loses_answers = 0.0
        self._busy: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._old: set[Gate] = set()

    def _stand(self) -> None:
        with self._guard:
            gate = self._moments.gate() if self.dice.random() < 0.4 else None
            if gate is not None:
                self.gates.append(gate)
        if gate is not None:
            gate.wait()

    def let_go(self) -> None:
        """Open some of the gates, and all that were closed for two rounds."""
        with self._guard:
            old, self._old = self._old, set(self.gates)
            gates = [gate for gate in self.gates if gate in old or self.dice.random() < 0.6]
            self.gates = [gate for gate in self.gates if gate not in gates]
        for gate in gates:
            gate.open()

    @contextmanager
    def _use(self, message_ids: Iterable[str]) -> Iterator[None]:
        used = list(message_ids)
        with self._guard:
            self.clashes += [each for each in used if self._busy[each]]
            self._busy.update(used)
        self._stand()
        yield
        self._stand()
        with self._guard:
            self._busy.subtract(used)

    def _note(self, results: Iterable[object]) -> None:
        self.gone += [str(each) for each in results if isinstance(each, LeaseGone)]

    def renew(
        self, leases: Sequence[Lease], visibility_timeout_s: int, *, timeout_s: float | None = None
    ) -> list[Renewed | QueueError]:
        with self._use(lease.message_id for lease in leases):
            results = super().renew(leases, visibility_timeout_s, timeout_s=timeout_s)
        self._note(results)
        if self.dice.random() < self.loses_answers:
            raise Unreachable("the answer is lost")
        return results

    def complete(self, leases: Sequence[Lease], **options: Any) -> list[QueueError | None]:
        with self._use(lease.message_id for lease in leases):
            results = super().complete(leases, **options)
        self._note(results)
        return results

    def save(
        self, delivery: Delivery, receipt: str, saved: Saved, visibility_timeout_s: int
    ) -> Renewed:
        with self._use([delivery.message_id]):
            return super().save(delivery, receipt, saved, visibility_timeout_s)


def work(time: ManualTime, queue: Chaos, helds: list[Held], seed: int) -> None:
    """Do to each message what handlers do, at moments of its own, then complete it."""
    dice = random.Random(seed)
    pause = threading.Condition()
    for held in helds:
        for _ in range(dice.randrange(2, 6)):
            act = dice.randrange(3)
            if act == 0:
                held.save(Saved(fraction=dice.random()))
            elif act == 1:
                held.extend(dice.randrange(1, 20))
            else:
                with pause:
                    time.wait(pause, dice.randrange(1, 20))
        held.check()
        lease = held.begin_settling()
        (result,) = queue.complete([lease])
        assert held.settled(result, completing=True), result


@pytest.mark.parametrize("max_settle", [1, 5, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_ever_done_with_an_old_receipt(
    make_bench: Callable[..., Bench], seed: int, max_settle: int
) -> None:
    """With a queue that forgives nothing no call is refused, and no two use one receipt at once."""
    bench = make_bench(SETTINGS, parallel=8)
    queue = Chaos(bench.time, seed, max_settle)
    helds = bench.keep(24, queue)
    # Messages that are worked on one after the other; the later ones are renewed meanwhile.
    workers = [
        Aside(lambda part=part: work(bench.time, queue, helds[part::6], seed * 10 + part))  # type: ignore[misc]
        for part in range(6)
    ]
    rounds = 0
    while not all(worker.is_over for worker in workers):
        queue.let_go()
        bench.time.settle()
        bench.time.advance(0.5)
        rounds += 1
        assert rounds < 2000
    for worker in workers:
        worker.result()
    assert (queue.clashes, queue.gone, bench.losses) == ([], [], [])
    assert queue.depth().total == 0
    assert [held.state for held in helds] == [HeldState.DONE] * 24
    assert bench.manager.counts.renewals > 24
    assert bench.manager.held == 0
    _free(bench, queue)


@pytest.mark.parametrize("seed", range(4))
def test_lost_answers_lose_leases_and_nothing_else(
    make_bench: Callable[..., Bench], seed: int
) -> None:
    """Where answers get lost each message is either completed or given up, and that is known."""
    bench = make_bench(SETTINGS, parallel=8)
    queue = Chaos(bench.time, seed, 1)
    queue.loses_answers = 0.3
    helds = bench.keep(24, queue)

    def settle(part: list[Held]) -> None:
        pause = threading.Condition()
        for held in part:
            with pause:
                bench.time.wait(pause, 5)
            try:
                lease: Lease | None = held.begin_settling()
            except Exception:  # noqa: BLE001 - whatever it is, the state says it
                continue
            while lease is not None:
                (result,) = queue.complete([lease])
                held.settled(result, completing=True)
                lease = held.retry_lease()

    workers = [Aside(lambda part=part: settle(helds[part::6])) for part in range(6)]  # type: ignore[misc]
    for _ in range(400):
        queue.let_go()
        bench.time.settle()
        bench.time.advance(0.5)
        if all(worker.is_over for worker in workers):
            break
    for worker in workers:
        worker.result()
    done = [held for held in helds if held.state is HeldState.DONE]
    lost = [held for held in helds if held.state is HeldState.LOST]
    assert len(done) + len(lost) == 24
    assert lost
    assert queue.depth().total == len(lost)
    remembered = [bench.manager.was_done("work", held.delivery.message_id) for held in lost]
    finished = [held.result is not None for held in lost]
    assert remembered == finished
    _free(bench, queue)


def test_settling_while_everything_is_renewed(make_bench: Callable[..., Bench]) -> None:
    """A hundred messages in one request that is not answered: all settle with what it brings."""
    bench = make_bench()
    helds = bench.keep(100)
    gate = bench.queue.faults.hold(method="renew", after=True)
    bench.time.advance(15)
    settlers = [Aside(held.begin_settling) for held in helds]
    bench.time.settle(waiting=102)
    assert not any(settler.is_over for settler in settlers)
    gate.open()
    leases = [settler.result() for settler in settlers]
    assert bench.queue.complete(leases) == [None] * 100
    assert all(held.settled(None) for held in helds)


def test_two_saves_at_once(make_bench: Callable[..., Bench]) -> None:
    """The second waits for the first, and has its receipt."""
    bench = make_bench()
    held = bench.keep_one()
    gate = bench.queue.faults.hold(method="save")
    first = Aside(lambda: held.save(Saved(fraction=0.1)))
    bench.time.settle(waiting=2)
    second = Aside(lambda: held.save(Saved(fraction=0.2)))
    bench.time.settle(waiting=3)
    gate.open()
    first.result()
    second.result()
    assert bench.complete(held)


def test_a_save_does_not_wait_for_ever(make_bench: Callable[..., Bench]) -> None:
    """While a renewal is not answered nothing can be saved: the handler hears of it."""
    bench = make_bench()
    held = bench.keep_one()
    gate = bench.queue.faults.hold(method="renew")
    bench.time.advance(15)
    saving = Aside(lambda: held.save(Saved(fraction=0.1)))
    bench.time.settle(waiting=3)
    bench.time.advance(6)
    with pytest.raises(Unreachable, match="no response yet"):
        saving.result()
    gate.open()
    bench.time.settle()
    assert bench.complete(held)


def test_a_save_that_meets_a_settled_message(make_bench: Callable[..., Bench]) -> None:
    """A save that waited while the message was settled saves nothing."""
    bench = make_bench()
    held = bench.keep_one()
    gate = bench.queue.faults.hold(method="renew")
    bench.time.advance(15)
    saving = Aside(lambda: held.save(Saved(fraction=0.1)))
    bench.time.settle(waiting=3)
    settling = Aside(held.begin_settling)
    bench.time.settle(waiting=4)
    gate.open()
    with pytest.raises(AlreadySettled):
        saving.result()
    settling.result()
    assert bench.queue.calls["save"] == 0


def test_a_renewal_is_not_sent_beside_a_save(make_bench: Callable[..., Bench]) -> None:
    """The timer skips what the handler is just saving."""
    bench = make_bench()
    held = bench.keep_one()
    bench.time.advance(14)
    gate = bench.queue.faults.hold(method="save", after=True)
    saving = Aside(lambda: held.save(Saved(fraction=0.1)))
    bench.time.settle(waiting=2)
    bench.time.advance(3)
    assert bench.queue.sent == []
    assert bench.manager.counts.late_ticks == 1
    gate.open()
    saving.result()
    assert held.deadline_s == START_S + 14 + 30


def test_a_save_that_is_refused(make_bench: Callable[..., Bench]) -> None:
    """Gone is gone: the handler and whoever watches hear of it."""
    bench = make_bench()
    held = bench.keep_one()
    bench.queue.faults.refuse(held.delivery.message_id, LeaseGone("purged"))
    with pytest.raises(Exception, match="purged"):
        held.save(Saved(fraction=0.1))
    assert [loss.kind for loss in bench.losses] == ["gone"]
    assert bench.manager._wheel._slots == {}


def test_a_save_with_a_fault(make_bench: Callable[..., Bench]) -> None:
    """What cannot be said as JSON is the handler's fault; the lease is kept."""
    bench = make_bench()
    held = bench.keep_one()
    with pytest.raises(TypeError):
        held.save(Saved(state=object()))
    bench.time.advance(15)
    assert held.renewals == 1


def _free(bench: Bench, queue: Chaos) -> None:
    """Let go of all that stands at a gate, so that the threads can end."""
    queue.dice = _Never()  # type: ignore[assignment]
    for gate in queue.gates:
        gate.open()
    bench.time.settle()


class _Never:
    def random(self) -> float:
        return 1.0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)
