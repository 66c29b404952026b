"""Leases kept by a process of its own, by the time of the machine."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from leasehold.testing import ManualTime
from leasehold.worker.adapters.protocol import Delivery, LeaseGone, Saved, Unreachable
from leasehold.worker.leases import (
    AlreadySettled,
    Held,
    HeldState,
    LeaseLearner,
    LeaseLost,
    LeaseSettings,
    Loss,
    RenewerStopped,
    process,
)
from leasehold.worker.leases._renewer import Drop
from leasehold.worker.leases.process import ProcessLeaseManager
from leasehold.worker.timing import ScaledTime
from tests.patience import PATIENCE_S
from tests.unit.worker.leases import orphaned
from tests.unit.worker.leases.file_queue import FileQueue
from tests.unit.worker.leases.support import Aside, Queue, Told

LEASE_S = 6
"""A machine that is busy gets to a renewal within half of it."""


class Site:
    """A queue in a file, and managers for it."""

    def __init__(self, folder: Path) -> None:
        self.queue = FileQueue(folder / "queue")
        self.told = Told()
        self.losses: list[Loss] = []
        self.managers: list[ProcessLeaseManager] = []
        self._news = threading.Condition()

    def manager(self, lease_s: int = LEASE_S, **options: Any) -> ProcessLeaseManager:
        """Start a manager; it is closed after the test."""
        told = self.told

        def tell(name: str) -> Callable[..., None]:
            hook = getattr(type(told), name)

            def called(*arguments: object) -> None:
                hook(told, *arguments)
                self.note()

            return called

        for name in ("renewed", "failed", "lost", "stopped"):
            setattr(told, name, tell(name))
        made = ProcessLeaseManager(LeaseSettings.of(lease_s), hooks=told, **options)
        made._random = _NoDice()  # type: ignore[assignment]
        self.managers.append(made)
        return made

    def keep(self, manager: ProcessLeaseManager, count: int = 1, **options: Any) -> list[Held]:
        """Receive messages and keep them."""
        asked_at_s = manager._now_s()
        lease_s = manager.settings.visibility_timeout_s
        helds = [
            manager.keep(self.queue, each, asked_at_s=asked_at_s)  # type: ignore[arg-type]
            for each in self.queue.receive(count, lease_s, **options)
        ]
        for held in helds:
            held.on_loss(self.losses.append)
        return helds

    def complete(self, held: Held) -> bool:
        """Complete a message as a worker does."""
        return held.settled(self.queue.complete(held.begin_settling()), completing=True)

    def note(self) -> None:
        """Something has happened."""
        with self._news:
            self._news.notify_all()

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait until hooks have told enough."""
        with self._news:
            assert self._news.wait_for(reached, PATIENCE_S)


class _NoDice:
    def random(self) -> float:
        return 0.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A queue, and managers that are closed after the test."""
    made = Site(tmp_path)
    yield made
    for manager in made.managers:
        manager.close()
        assert manager._process.returncode is not None
        assert not manager._reader.is_alive()


@pytest.mark.long
def test_leases_are_kept_over_their_ends(site: Site) -> None:
    """The other process renews; the newest receipt is there for the completion."""
    manager = site.manager()
    helds = site.keep(manager, 5)
    site.until(lambda: all(held.renewals >= 1 for held in helds))
    assert {pid for _, _, pid in site.queue.renewals()} == {manager._process.pid}
    assert manager.counts.renewals >= 5
    assert all(held.deadline_s > held.registered_s + LEASE_S for held in helds)
    assert all(site.complete(held) for held in helds)
    assert (site.losses, manager.held, manager._by_key) == ([], 0, {})


@pytest.mark.long
def test_a_handler_that_holds_the_interpreter(site: Site) -> None:
    """Longer than a lease no thread of this process runs: nothing is lost."""
    manager = site.manager()
    (held,) = site.keep(manager)
    hold_the_interpreter(1.6 * LEASE_S)
    held.check()
    assert site.complete(held)
    assert site.losses == []
    assert len(site.queue.renewals()) >= 2


@pytest.mark.slow
def test_a_handler_that_holds_the_interpreter_for_long(site: Site) -> None:
    """Six leases, thirty messages."""
    manager = site.manager()
    helds = site.keep(manager, 30)
    hold_the_interpreter(6 * LEASE_S)
    assert all(site.complete(held) for held in helds)
    assert site.losses == []


def hold_the_interpreter(seconds: float) -> None:
    """Wait without letting any other thread run, as some libraries do."""
    library = ctypes.PyDLL(None)  # unlike CDLL it keeps the lock
    end_s = time.monotonic() + seconds
    library.usleep(int(seconds * 1_000_000))
    assert time.monotonic() >= end_s


@pytest.mark.parametrize("way", ["alone", pytest.param("fork", marks=pytest.mark.slow)])
def test_the_worker_is_killed(tmp_path: Path, way: str) -> None:
    """Its renewer ends by itself and renews nothing more, whoever holds the pipe open."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.worker.leases.orphaned", str(tmp_path / "queue"), way],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert worker.stdout is not None
    renewer, forked = map(int, worker.stdout.readline().split())
    watched = os.pidfd_open(renewer)
    try:
        worker.kill()
        worker.wait()
        queue = FileQueue(tmp_path / "queue")
        assert select.select([watched], [], [], PATIENCE_S)[0], "the renewer does not end"
        died_s = time.monotonic()
        assert all(at_s <= died_s for at_s, _, _ in queue.renewals())
        ends_s = _last_end_s(queue)
        assert ends_s <= died_s + orphaned.LEASE_S
    finally:
        os.close(watched)
        worker.stdout.close()
        if forked:
            os.kill(forked, signal.SIGKILL)


def _last_end_s(queue: FileQueue) -> float:
    with queue._open() as database:
        (ends_s,) = database.execute("SELECT max(ends_s) FROM messages").fetchone()
    return float(ends_s)


def test_the_renewer_is_killed(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """All leases are lost at once, loudly: nobody works on without."""
    manager = site.manager(30)
    first, second = site.keep(manager, 2)
    first.begin_settling()
    manager._process.kill()
    site.until(lambda: bool(site.told.ends))
    assert [loss.kind for loss in site.losses] == ["renewer"]
    assert (first.state, second.state) == (HeldState.SETTLING, HeldState.LOST)
    assert isinstance(manager.failure, RenewerStopped)
    assert caplog.records[0].levelname == "CRITICAL"
    with pytest.raises(RenewerStopped):
        site.keep(manager)
    assert first.settled(None)


@pytest.mark.slow
def test_the_renewer_hangs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it is silent, leases that are over are lost; if it stays so, it is given up."""
    monkeypatch.setattr(process, "_SILENT_BEATS", 8)
    manager = site.manager(1)
    (held,) = site.keep(manager)
    os.kill(manager._process.pid, signal.SIGSTOP)
    site.until(lambda: bool(site.told.ends))
    assert held.state is HeldState.LOST
    assert [loss.kind for loss in site.losses] == ["lapsed"]
    assert manager._process.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_the_renewer_hangs_and_reads_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up as well when nothing more can be said to it, whoever waits for that."""
    monkeypatch.setattr(process, "_SILENT_BEATS", 8)
    manager = site.manager(30)
    (held,) = site.keep(manager)
    os.kill(manager._process.pid, signal.SIGSTOP)

    def settle() -> None:
        with manager._lock:  # as whoever settles has it, and who reads needs it
            manager._send(*[Drop(0)] * 10_000)

    threading.Thread(target=settle, daemon=True).start()
    site.until(lambda: bool(site.told.ends))
    assert held.state is HeldState.LOST
    assert "does not answer" in str(manager.failure)


@pytest.mark.slow
def test_signals_for_the_worker(site: Site) -> None:
    """Who wants the worker to end signals both: leases are kept until the worker is done."""
    manager = site.manager()
    (held,) = site.keep(manager)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(manager._process.pid, number)
    site.until(lambda: held.renewals >= 2)
    assert site.complete(held)


def test_quick_work_asks_nobody(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is settled long before its renewal is settled without a word from the renewer."""
    manager = site.manager(30)
    sent: list[object] = []
    original = manager._send

    def send(*messages: Any) -> None:
        sent.extend(messages)
        original(*messages)

    monkeypatch.setattr(manager, "_send", send)
    (held,) = site.keep(manager)
    assert site.complete(held)
    assert [type(each).__name__ for each in sent] == ["Open", "Keep", "Drop"]


@pytest.mark.slow
def test_settling_waits_for_a_renewal_in_flight(site: Site, tmp_path: Path) -> None:
    """The renewer says when it has its answer, and which receipt is the newest."""
    hold = tmp_path / "hold"
    os.mkfifo(hold)
    manager = site.manager()
    (held,) = site.keep(manager)
    writer = hold.open("wb")  # returns when the renewal has come to it
    settling = Aside(held.begin_settling)
    hold.unlink()
    writer.close()
    lease = settling.result()
    assert lease.receipt == "1"
    assert held.settled(site.queue.complete(lease))


@pytest.mark.slow
def test_settling_does_not_wait_for_ever(site: Site, tmp_path: Path) -> None:
    """The known receipt is tried after call_timeout_s, and the newest once that is there."""
    hold = tmp_path / "hold"
    os.mkfifo(hold)
    manager = site.manager()
    (held,) = site.keep(manager)
    writer = hold.open("wb")
    lease = held.begin_settling()
    assert (lease.receipt, held.is_quiet) == ("0", False)
    assert not held.settled(LeaseGone("as if it had been carried out"))
    hold.unlink()
    writer.close()
    again = held.retry_lease()
    assert again is not None
    assert again.receipt == "1"
    assert held.settled(site.queue.complete(again))
    assert manager._by_key == {}


@pytest.mark.slow
def test_a_handler_renews_and_saves(site: Site) -> None:
    """The renewer goes on from the receipt and the deadline that this gave."""
    manager = site.manager()
    (held,) = site.keep(manager)
    held.save(Saved(stage="cut"))
    assert held.receipt == "1"
    held.extend(LEASE_S + 1)
    assert held.receipt == "2"
    site.until(lambda: held.renewals >= 4)
    lasting = [lease_s for _, lease_s, _ in site.queue.renewals()]
    own = [pid == os.getpid() for _, _, pid in site.queue.renewals()]
    assert lasting[:4] == [LEASE_S, LEASE_S + 1, LEASE_S, LEASE_S]
    assert own[:4] == [True, True, False, False]
    times_s = [at_s for at_s, _, _ in site.queue.renewals()]
    assert times_s[2] - times_s[1] > LEASE_S / 2
    assert site.complete(held)


@pytest.mark.slow
def test_a_save_that_gives_up_leaves_the_lease_kept(site: Site, tmp_path: Path) -> None:
    """While a renewal is not answered nothing is saved; afterwards renewals go on."""
    hold = tmp_path / "hold"
    os.mkfifo(hold)
    manager = site.manager()
    (held,) = site.keep(manager)
    writer = hold.open("wb")
    with pytest.raises(Unreachable, match="no response yet"):
        held.save(Saved(stage="cut"))
    hold.unlink()
    writer.close()
    site.until(lambda: held.renewals >= 2)
    assert site.complete(held)


@pytest.mark.slow
def test_losses_are_told(site: Site, tmp_path: Path) -> None:
    """What the renewer finds lost, this process hears of."""
    (tmp_path / "unreachable").touch()
    manager = site.manager(1)
    (held,) = site.keep(manager)
    site.until(lambda: bool(site.told.losses))
    assert [loss.kind for loss in site.losses] == ["lapsed"]
    assert str(site.told.failures[0]) == "nobody answers"
    assert manager.counts.failures >= 1
    with pytest.raises(LeaseLost, match="not renewed in time"):
        held.begin_settling()


@pytest.mark.long
def test_doubts_about_receipts_are_told(site: Site, tmp_path: Path) -> None:
    """After a renewal without an answer this process knows that there may be a newer receipt, and
    asks for it when the one it has is refused."""
    manager = site.manager()
    (tmp_path / "deaf").touch()
    (held,) = site.keep(manager)
    site.until(lambda: bool(site.told.failures))
    assert held.is_ambiguous
    lease = held.begin_settling()
    (tmp_path / "deaf").unlink()
    refused = site.queue.complete(lease)
    assert isinstance(refused, LeaseGone)
    assert not held.settled(refused, completing=True)
    newest = held.retry_lease()
    assert newest is not None
    assert site.queue.complete(newest) is None
    assert held.settled(None, completing=True)
    assert site.losses == []


@pytest.mark.long
def test_doubts_end_with_an_answer(site: Site, tmp_path: Path) -> None:
    """The next renewal that is answered brings the newest receipt."""
    manager = site.manager()
    (tmp_path / "deaf").touch()
    (held,) = site.keep(manager)
    site.until(lambda: held.is_ambiguous)
    (tmp_path / "deaf").unlink()
    site.until(lambda: held.renewals >= 1)
    assert not held.is_ambiguous
    assert site.complete(held)


@pytest.mark.slow
def test_refusals_are_told(site: Site, tmp_path: Path) -> None:
    """So is what the service will never do."""
    (tmp_path / "denied").touch()
    manager = site.manager(1)
    (held,) = site.keep(manager)
    site.until(lambda: bool(site.told.losses))
    assert held.state is HeldState.DENIED


@pytest.mark.slow
def test_wishes_of_operators_are_told(site: Site, tmp_path: Path) -> None:
    """The lease is kept all the same."""
    (tmp_path / "cancel").touch()
    manager = site.manager()
    (held,) = site.keep(manager)
    site.until(lambda: bool(site.told.losses))
    assert [(loss.kind, loss.text) for loss in site.losses] == [("cancelled", "wrong customer")]
    site.until(lambda: held.renewals >= 2)
    assert site.complete(held)


@pytest.mark.slow
def test_what_is_lost_here_is_not_renewed_there(site: Site) -> None:
    """A lost session ends renewals as well."""
    manager = site.manager()
    lost, kept = site.keep(manager, 2)
    lost.lose("the session is over")
    site.until(lambda: kept.renewals >= 1)
    assert site.queue.renewals(lost.delivery.message_id) == []


@pytest.mark.slow
def test_what_was_learned_reaches_the_renewer(site: Site) -> None:
    """The length of leases that this process has learned is what the other one asks for."""
    learner = LeaseLearner(floor_s=1, start_s=2)
    manager = site.manager(2, learner=learner)
    (held,) = site.keep(manager, kind="video")
    for _ in range(20):
        learner.handled("video", 40)
    site.until(lambda: held.renewals >= 1)
    site.until(lambda: held.deadline_s > time.monotonic() + 35)
    assert max(lease_s for _, lease_s, _ in site.queue.renewals()) >= 41
    assert learner.renewal_s > 0


@pytest.mark.slow
def test_scaled_time(site: Site) -> None:
    """Rehearsals run faster: twenty seconds of lease in one of the machine."""
    manager = site.manager(20, time=ScaledTime(20))
    (held,) = site.keep(manager)
    site.until(lambda: held.renewals >= 2)
    assert held.state is HeldState.HELD


def test_two_settlers(site: Site) -> None:
    """Of two, one gets the lease."""
    manager = site.manager(30)
    (held,) = site.keep(manager)
    held.begin_settling()
    with pytest.raises(AlreadySettled):
        held.begin_settling()
    assert held.settled(None)


def test_a_client_that_nobody_else_can_open(site: Site) -> None:
    """It is refused, with what to do about it."""
    manager, queue = site.manager(), Queue(ManualTime())
    unknown = Delivery(queue="q", message_id="m", receipt="r")
    with pytest.raises(TypeError, match="another process cannot open work"):
        manager.keep(queue, unknown, asked_at_s=manager._now_s())
    assert manager.held == 0


def test_a_queue_that_cannot_be_opened(site: Site, tmp_path: Path) -> None:
    """If the renewer cannot open it, it cannot keep leases, and says why."""
    manager = site.manager(30)
    site.queue = FileQueue(tmp_path / "queue", "broken")
    site.keep(manager)
    site.until(lambda: bool(site.told.ends))
    assert "no such queue can be opened" in str(manager.failure)


def test_queues_that_are_known_are_opened_first(site: Site, tmp_path: Path) -> None:
    """Before the manager is there, and once; others with their first message."""
    manager = site.manager(30, queues=[site.queue])
    assert (tmp_path / "opened").read_text() == "x"
    site.keep(manager, 2)
    other = FileQueue(tmp_path / "other")
    manager.keep(other, other.receive(1, 30)[0], asked_at_s=manager._now_s())  # type: ignore[arg-type]
    manager.close()
    assert (tmp_path / "opened").read_text() == "xx"


def test_a_known_queue_that_cannot_be_opened(tmp_path: Path) -> None:
    """The manager is not made, and says why."""
    queue = FileQueue(tmp_path / "queue", "broken")
    with pytest.raises(RenewerStopped, match="no such queue can be opened"):
        ProcessLeaseManager(LeaseSettings.of(30), queues=[queue])  # type: ignore[list-item]


def test_a_renewer_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager that could not keep leases is not made."""
    monkeypatch.setattr(process, "_CODE", "raise SystemExit(3)")
    with pytest.raises(RenewerStopped, match="did not start"):
        ProcessLeaseManager(LeaseSettings.of(30))
    with pytest.raises(ValueError, match="parallel is 0"):
        ProcessLeaseManager(LeaseSettings.of(30), parallel=0)


def test_nothing_is_left(site: Site) -> None:
    """After closing there is no process and no thread."""
    manager = site.manager(30)
    site.keep(manager, 3)
    child = psutil.Process(manager._process.pid)
    manager.close()
    assert not child.is_running()
    assert not [each.name for each in threading.enumerate() if "renewer" in each.name]
    manager.close()
