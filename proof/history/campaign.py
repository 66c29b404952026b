"""A campaign: clients at work, faults one after the other and at once, a drain, and a verdict."""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from leasehold.clock import SystemClock
from proof.history.adapters import Connector, Queue, Refused, Restart, System, Unknown
from proof.history.checker import Verdict, check
from proof.history.client import LONGEST_S, Caller, Job, work
from proof.history.faults import Fault, wait
from proof.history.records import (
    Barrier,
    ClockReading,
    Drained,
    Ended,
    FaultRecord,
    History,
    Outcome,
    Recorder,
)

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["proof.history.client", "proof.history.leasehold"])
_STOP_S: Final = 30.0
_DRAIN_S: Final = 60.0
_DRAIN_LEASE_S: Final = 60
_PAGE: Final = 32
_QUIET_S: Final = (0.05, 0.6)
"""Between two faults."""
_CLIENT_KILLED: Final = "client killed"
_AT_ONCE: Final = 0.3
"""How often a second fault begins before the first has ended."""
_SHAKE_CLIENTS: Final = 0.15
"""How often a client is killed, between two faults."""


@dataclass(slots=True, kw_only=True)
class Campaign:
    """One run.

    Args:
        system: Is started and stopped here.
        faults_of: Returns what may be done to it, once it was started.
        folder: For the records; empty, and not on the disk that faults are done to.
        seed: Of all that is random: the clients' schedules and the faults.
        clients: How many at once.
    """

    system: System
    faults_of: Callable[[System], Sequence[Fault]]
    folder: Path
    seed: int
    clients: int = 4
    queues: Sequence[str] = ("one", "two")
    ordered: Sequence[str] = ("groups",)
    least_pause_s: float = 0.0
    """Between two calls of a client."""
    quiet_s: tuple[float, float] = _QUIET_S
    """Between two faults, at least and at most."""
    history: History = field(default_factory=History)
    """What was on record in the end."""
    done: Counter[str] = field(default_factory=Counter)
    """How often each fault was done."""
    _processes: dict[str, Any] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)
    _offset_s: float = 0.0
    _farthest_s: float = 0.0

    def run(
        self, *, seconds: float = float("inf"), faults: float = float("inf"), drain: bool = True
    ) -> Verdict:
        """Go on for so long, or for so many faults, whichever is over first; drain and check.

        Without *drain* nothing can be found to be lost.

        Raises:
            RuntimeError: A process did not do what it was told to; the records are kept.
        """
        clock, rng = SystemClock(), random.Random(f"{self.seed}/faults")
        recorder = Recorder(self.folder / "campaign.jsonl")
        recorder.add(ClockReading(time.monotonic(), clock.wall_drift_s()))
        self.system.start(self.queues, self.ordered if self.system.promise.ordered else ())
        try:
            for number in range(self.clients):
                self._begin_client(number)
            end_s = time.monotonic() + seconds
            possible = self.faults_of(self.system)
            while time.monotonic() < end_s and self._faults_done() < faults:
                time.sleep(rng.uniform(*self.quiet_s))
                if possible:
                    self._do(rng.choice(possible), possible, rng, recorder)
                recorder.add(ClockReading(time.monotonic(), clock.wall_drift_s()))
                if rng.random() < _SHAKE_CLIENTS:
                    self._kill_client(rng, recorder)
            self._end_clients(recorder)
            if drain:
                begun_s = time.monotonic()
                self.system.kill()
                self._note("last kill", begun_s, recorder, self.system.restart())
                self._drain(recorder)
            recorder.add(ClockReading(time.monotonic(), clock.wall_drift_s()))
        finally:
            for process in self._processes.values():
                process.kill()
            self.system.stop()
            recorder.close()
        self.history = History.read(self.folder)
        return check(self.history, self.system.promise)

    def _faults_done(self) -> int:
        return self.done.total() - self.done[_CLIENT_KILLED]

    def silences_s(self, name: str) -> list[float]:
        """Return for each fault of a name the longest time in it without a call that was done.

        It is over with the first one after the fault. The clients' own pauses are in it.
        """
        done_s = sorted(each.completed_s for each in self.history.operations if each.is_ok)
        silences_s = []
        for fault in self.history.faults:
            first, after = (bisect_left(done_s, at_s) for at_s in (fault.begun_s, fault.ended_s))
            if fault.name == name and after < len(done_s):
                moments_s = [fault.begun_s, *done_s[first : after + 1]]
                silences_s.append(max(late - early for early, late in pairwise(moments_s)))
        return silences_s

    def _do(
        self,
        fault: Fault,
        possible: Sequence[Fault],
        rng: random.Random,
        recorder: Recorder,
    ) -> None:
        """Do a fault, and now and then another one while it lasts."""
        begun_s = time.monotonic()
        detail = fault.start(rng)
        others = [each for each in possible if each is not fault and not each.is_alone]
        if others and not fault.is_alone and rng.random() < _AT_ONCE:
            self._do(rng.choice(others), (), rng, recorder)
        wait(fault, rng)
        restart = fault.stop()
        self.done[fault.name] += 1
        self._note(fault.name, begun_s, recorder, restart, detail)

    def _note(
        self, name: str, begun_s: float, recorder: Recorder, restart: Restart, detail: str = ""
    ) -> None:
        """Write down a fault that is over."""
        recorder.add(
            FaultRecord(
                name=name,
                begun_s=begun_s,
                ended_s=time.monotonic(),
                detail=detail,
                step_s=restart.moved_s,
            )
        )
        if restart.barrier_s is not None:
            recorder.add(Barrier(restart.barrier_s))
        self._offset_s += restart.moved_s
        self._farthest_s = max(self._farthest_s, self._offset_s)

    # Clients

    def _begin_client(self, number: int) -> None:
        name = f"c{number}-{next(self._numbers)}"
        job = Job(
            name=name,
            connector=self.system.connector(number),
            promise=self.system.promise,
            queues=self.queues,
            ordered=self.ordered if self.system.promise.ordered else (),
            folder=self.folder,
            seed=self.seed,
            least_pause_s=self.least_pause_s,
        )
        process = _CONTEXT.Process(target=work, args=(job,), name=name, daemon=True)
        process.start()
        self._processes[name] = process

    def _kill_client(self, rng: random.Random, recorder: Recorder) -> None:
        name = rng.choice(list(self._processes))
        process = self._processes.pop(name)
        process.kill()
        process.join()
        recorder.add(Ended(name, time.monotonic()))
        self.done[_CLIENT_KILLED] += 1
        self._begin_client(int(name[1:].partition("-")[0]))

    def _end_clients(self, recorder: Recorder) -> None:
        for process in self._processes.values():
            process.terminate()
        for name, process in self._processes.items():
            process.join(_STOP_S)
            if process.exitcode is None:
                raise RuntimeError(f"client {name} does not end; its record is in {self.folder}")
            recorder.add(Ended(name, time.monotonic()))
            if process.exitcode not in {0, -signal.SIGTERM}:  # it may have just begun
                raise RuntimeError(f"client {name} has failed; its record is in {self.folder}")
        self._processes.clear()

    # The end

    def _drain(self, recorder: Recorder) -> None:
        """Receive and complete until all leases are over and nothing comes any more.

        Raises:
            RuntimeError: The system does not answer, so nobody can tell what it still has.
        """
        drain = Recorder(self.folder / "drain.jsonl")
        numbers = count(1)
        names = (*self.queues, *(self.ordered if self.system.promise.ordered else ()))
        connector = self.system.connector(0)
        lines = [
            _Line(Caller("drain", name, drain, lambda: next(numbers)), connector, name)
            for name in names
        ]
        since_s = time.monotonic()
        # What was hidden by a clock that was ahead stays hidden for so much longer.
        free_s = since_s + LONGEST_S + self._farthest_s - self._offset_s
        free_s += self.system.promise.margin_s
        try:
            while True:
                begun_s = time.monotonic()
                looks = [line.look() for line in lines]
                is_answered = None not in looks
                taken = sum(look.taken for look in looks if look is not None)
                counted = sum(look.counted for look in looks if look is not None)
                is_sure = is_answered and (not counted or self.system.promise.prompt)
                if not taken and begun_s > free_s and is_sure:
                    break
                if begun_s > since_s + _DRAIN_S:
                    if not is_answered:
                        raise RuntimeError("the queues are not drained: a call has no answer")
                    break
                time.sleep(0.05)
            recorder.add(Drained(time.monotonic()))
        finally:
            for line in lines:
                line.close()
            drain.close()


class _Seen(NamedTuple):
    """What one look at a queue came to."""

    taken: int
    counted: int


class _Line:
    """A connection over which one queue is drained; made anew after a call without an answer."""

    def __init__(self, caller: Caller, connector: Connector, name: str) -> None:
        self._caller, self._connector, self._name = caller, connector, name
        self._queue: Queue | None = None

    def look(self) -> _Seen | None:
        """Take and complete what there is, and count what is left; None if a call has no answer."""
        try:
            queue = self._queue = self._queue or self._connector.open(self._name)
        except Unknown:
            return None
        taken = 0
        while True:
            answer = self._caller.receive(queue, _PAGE, _DRAIN_LEASE_S)
            if answer.outcome is Outcome.UNKNOWN or self._caller.is_busy:
                self.close()
                return None
            for each in answer.delivered:
                taken += 1
                self._caller.complete(queue, each)
            if not answer.delivered:
                break
        left = self._caller.count(queue)
        if left.outcome is Outcome.UNKNOWN or self._caller.is_busy:
            self.close()
            return None
        return _Seen(taken, left.count or 0)

    def close(self) -> None:
        """Close the connection, if there is one."""
        queue, self._queue = self._queue, None
        if queue is not None:
            with suppress(Unknown, Refused):
                queue.close()
