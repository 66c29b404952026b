"""The simulator against the real server: the same messages, work and deaths, played by both.

``python -m benchmarks.simulator_replay [--messages 1500] [--out FILE]``

The server runs in this process on a virtual clock. A driver puts each message when the simulator
has it arrive, and its workers take as long, renew as they should, and die when they do there. What
the simulator predicts is compared with what the server's answers came to.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.single import Record, print_bars
from leasehold.advisor.attempts import Floats
from leasehold.advisor.simulate import (
    Crew,
    Handling,
    Load,
    Outage,
    Outcome,
    Renewal,
    Shape,
    arrivals,
    draw_lengths,
    lives,
    simulate,
)
from leasehold.client import LeaseLost, QueueHandle
from leasehold.client.errors import MessageNotFound
from leasehold.client.models import ReceivedMessage
from leasehold.domain.queue_settings import LapsedReceipts
from leasehold.testing import InProcessServer

SEED: Final = 20_061
MESSAGES: Final = 1_500
LOAD: Final = 0.6
"""Share of the workers that first deliveries keep busy."""
CREW: Final = Crew(workers=8, crash_rate=1 / 600, restart_s=10.0)
WORKS: Final[Mapping[str, tuple[Shape, ...]]] = {
    "log-normal 20 s, sigma 0.8": (Shape(name="lognormal", first=20.0, second=0.8),),
    "exponential 35 s": (Shape(name="exponential", first=35.0),),
    "85 % 8 s, 15 % 60 s": (
        Shape(name="lognormal", first=8.0, second=0.5, share=0.85),
        Shape(name="lognormal", first=60.0, second=0.5, share=0.15),
    ),
}
SETTINGS: Final[Mapping[str, Handling]] = {
    "30 s": Handling(timeout_s=30.0),
    "30 s, strict receipts": Handling(timeout_s=30.0, lapsed_receipts=LapsedReceipts.STRICT),
    "300 s": Handling(timeout_s=300.0),
    "20 s, renewed every 10 s": Handling(
        timeout_s=20.0, renewal=Renewal(every_s=10.0, guard_s=5.0)
    ),
    "120 s, doubling": Handling(timeout_s=120.0, growth=2.0),
    "batches of 4, 120 s, outage": Handling(timeout_s=120.0, batch=4),
}
OUTAGE: Final = Outage(600.0, 900.0)
COMPARED: Final = (
    "done",
    "redeliveries",
    "wasted",
    "wasted_work_s",
    "crashes",
    "renewals",
    "recovery_mean_s",
    "recovery_worst_s",
    "wait_mean_s",
)
OUT: Final = Path(__file__).parent / "results" / "simulator_replay.json"
BARS: Final = {"worst_difference": ("<=", 0.10)}
_SLACK: Final = {"redeliveries": 3.0, "wasted": 3.0, "renewals": 3.0, "crashes": 3.0}
"""Differences of so few are not counted as shares."""


@dataclass
class Replayed:
    """What came of a replay; the members are named as those of an outcome of the simulator."""

    done: int = 0
    redeliveries: int = 0
    wasted: int = 0
    wasted_work_s: float = 0.0
    crashes: int = 0
    renewals: int = 0
    recoveries: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Return what is compared."""
        told = {name: float(getattr(self, name)) for name in COMPARED[:6]}
        return told | {
            "recovery_mean_s": float(np.mean(self.recoveries)) if self.recoveries else 0.0,
            "recovery_worst_s": max(self.recoveries, default=0.0),
            "wait_mean_s": float(np.mean(self.waits)) if self.waits else 0.0,
        }


@dataclass
class _Held:
    """A message that a worker has."""

    number: int
    message: ReceivedMessage
    began_ms: int
    ends_ms: int


class Replay:
    """Plays a load against a real server.

    Args:
        server: On a virtual clock.
        queue: New, with the settings that are to be tried.
        load: Arrivals and lengths in whole milliseconds.
        handling: How workers lease and renew; timeouts in whole seconds.
        crew: Who works.
        lasts_s: When to stop.
        seed: Of the deaths.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what a replay depends on
        self,
        server: InProcessServer,
        queue: QueueHandle,
        load: Load,
        handling: Handling,
        crew: Crew,
        lasts_s: float,
        seed: int,
    ) -> None:
        self._server, self._queue, self._handling, self._crew = server, queue, handling, crew
        self._lengths_ms = np.rint(1000 * load.lengths_s).astype(int).tolist()
        self._lives: dict[int, Floats] = {}
        self._seed = seed
        self._start_ms = server.now_ms()
        self._end_ms = self._start_ms + int(1000 * lasts_s)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._idle = list(range(crew.workers))
        self._numbers: dict[str, int] = {}
        self._put_ms: list[int] = []
        self.found = Replayed()
        for at_s in load.arrivals_s.tolist():
            self._at(self._start_ms + round(1000 * at_s), self._put)

    def run(self) -> Replayed:
        """Play it to the end."""
        while self._events and self._events[0][0] < self._end_ms:
            at_ms, _, do = heapq.heappop(self._events)
            wait_ms = at_ms - self._server.now_ms()
            if wait_ms > 0:
                self._server.advance(wait_ms / 1000)
            do()
        return self.found

    def _at(self, at_ms: int, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_ms, next(self._order), do))

    def _put(self) -> None:
        message = self._queue.put(b"")
        self._numbers[message.id] = len(self._put_ms)
        self._put_ms.append(self._server.now_ms())
        self._ask()

    def _ask(self) -> None:
        """Let those ask who are idle, until one gets nothing."""
        now_ms = self._server.now_ms()
        for outage in self._crew.outages:
            start_ms, end_ms = (self._start_ms + int(1000 * each) for each in outage)
            if start_ms <= now_ms < end_ms:
                self._at(end_ms, self._ask)
                return
        while self._idle:
            got = self._queue.receive(self._handling.batch)
            if not got:
                return
            worker = self._idle.pop()
            held = [self._hold(message, now_ms) for message in got]
            self._next(worker, held[::-1])

    def _hold(self, message: ReceivedMessage, now_ms: int) -> _Held:
        self.found.redeliveries += message.dequeue_count > 1
        lease_s = self._handling.lease_s(message.dequeue_count)
        if self._handling.growth > 1 and message.dequeue_count > 1:
            # As those workers do that ask for more at a further delivery.
            message = self._queue.renew(message, int(lease_s))
        self._at(message.visible_at_ms + 1, self._ask)
        number = self._numbers[message.id]
        return _Held(number, message, now_ms, message.visible_at_ms)

    def _next(self, worker: int, held: list[_Held]) -> None:
        if not held:
            self._idle.append(worker)
            self._ask()
            return
        now_ms, lease = self._server.now_ms(), held[-1]
        length_ms = self._lengths_ms[lease.number]
        life_ms = self._life_ms(lease)
        until_ms = now_ms + min(length_ms, life_ms)
        if self._handling.renewal is not None:
            for each in held:
                self._renew(each, until_ms)
        if life_ms < length_ms:
            self._at(until_ms, partial(self._die, worker, held, life_ms))
        else:
            self._at(until_ms, partial(self._finish, worker, held, length_ms))

    def _life_ms(self, lease: _Held) -> int:
        delivery = lease.message.dequeue_count
        if delivery not in self._lives:
            self._lives[delivery] = lives(self._seed, delivery, len(self._lengths_ms))
        return int(1000 * self._lives[delivery][lease.number] / self._crew.crash_rate)

    def _renew(self, lease: _Held, until_ms: int) -> None:
        """Renew when it is due, again and again, while its worker is busy."""
        renewal = self._handling.renewal
        assert renewal is not None
        due_ms = max(lease.ends_ms - int(1000 * renewal.guard_s), self._server.now_ms())
        if due_ms >= until_ms or due_ms >= lease.ends_ms:
            return

        def renew() -> None:
            lease.message = self._queue.renew(lease.message, int(renewal.every_s + renewal.guard_s))
            lease.ends_ms = lease.message.visible_at_ms
            self.found.renewals += 1
            self._at(lease.ends_ms + 1, self._ask)
            self._renew(lease, until_ms)

        self._at(due_ms, renew)

    def _finish(self, worker: int, held: list[_Held], length_ms: int) -> None:
        lease = held.pop()
        try:
            self._queue.complete(lease.message)
        except (LeaseLost, MessageNotFound):
            self.found.wasted += 1
            self.found.wasted_work_s += length_ms / 1000
        else:
            self.found.done += 1
            waited_ms = self._server.now_ms() - self._put_ms[lease.number]
            self.found.waits.append(waited_ms / 1000)
        self._next(worker, held)

    def _die(self, worker: int, held: list[_Held], life_ms: int) -> None:
        now_ms = self._server.now_ms()
        self.found.crashes += 1
        self.found.wasted_work_s += life_ms / 1000
        left = [(each.ends_ms - now_ms) / 1000 for each in held if each.ends_ms > now_ms]
        self.found.recoveries += left
        self._at(now_ms + int(1000 * self._crew.restart_s), partial(self._next, worker, []))


def made(work: str, messages: int, seed: int = SEED) -> tuple[Load, float]:
    """Return a load in whole milliseconds, and how long to play it, seconds."""
    random = np.random.default_rng(seed)
    shapes = WORKS[work]
    mean = float(draw_lengths(shapes, random, 20_000).mean())
    lasts_s = math.ceil(messages * mean / (CREW.workers * LOAD))
    came = arrivals(random, messages / lasts_s, lasts_s)
    lengths = draw_lengths(shapes, random, len(came))
    return Load(arrivals_s=np.round(came, 3), lengths_s=np.round(lengths, 3)), lasts_s + 1_800.0


def both(work: str, setting: str, messages: int) -> tuple[Outcome, dict[str, float]]:
    """Play a load by both, and return what came of it."""
    load, lasts_s = made(work, messages)
    handling = SETTINGS[setting]
    crew = replace(CREW, outages=(OUTAGE,)) if "outage" in setting else CREW
    predicted = simulate(load, handling, crew, lasts_s=lasts_s, seed=SEED)
    with InProcessServer() as server, server.client() as client:
        queue = client.queue("replayed")
        queue.create(
            settings={
                "visibility_timeout_s": int(handling.timeout_s),
                "lapsed_receipts": handling.lapsed_receipts.value,
                "event_log": False,
            }
        )
        found = Replay(server, queue, load, handling, crew, lasts_s, SEED).run()
    return predicted, found.figures()


def differences(predicted: Outcome, seen: Mapping[str, float]) -> dict[str, float]:
    """Return by how much the simulator is off, as shares of what the server came to."""
    found = {}
    for name in COMPARED:
        told, true = float(getattr(predicted, name)), seen[name]
        if abs(told - true) <= _SLACK.get(name, 0.0):
            found[name] = 0.0
        else:
            found[name] = abs(told - true) / max(true, 1e-9)
    return found


def rows(messages: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of all cases."""
    for work in WORKS:
        for setting in SETTINGS:
            predicted, seen = both(work, setting, messages)
            off = differences(predicted, seen)
            told = {name: float(getattr(predicted, name)) for name in COMPARED}
            yield {
                "work": work,
                "setting": setting,
                "messages": predicted.arrived,
                "simulated": told,
                "server": seen,
                "worst_difference": max(off.values()),
                "worst_figure": max(off, key=off.__getitem__),
            }


def main() -> None:
    """Play, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    record = Record("simulator_replay")
    found = []
    for each in rows(chosen.messages):
        found.append(each)
        pairs = "  ".join(
            f"{name} {each['simulated'][name]:.5g}/{each['server'][name]:.5g}" for name in COMPARED
        )
        print(f"{each['work']:28} {each['setting']:28} {pairs}", flush=True)
    summary = {"worst_difference": max(each["worst_difference"] for each in found)}
    print_bars(summary, BARS, digits=4)
    record.write(chosen.out, {"seed": SEED, "summary": summary, "rows": found})


if __name__ == "__main__":
    main()
