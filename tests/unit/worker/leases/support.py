"""A manager of leases, a queue in memory and time, all moved by the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MEMORY, MemoryQueue
from leasehold.worker.adapters.protocol import Delivery, Lease, Outgoing, QueueError, Renewed
from leasehold.worker.leases import Held, LeaseHooks, LeaseManager, LeaseSettings, Loss
from tests.patience import PATIENCE_S

START_S = 1000.0
THIRTY = LeaseSettings(
    visibility_timeout_s=30,
    timer_interval_s=5,
    message_minimal_life_s=10,
    message_timeout_s=120,
    call_timeout_s=6,
)
"""The lengths that the seeds start with."""
ONE_BY_ONE = replace(MEMORY, max_settle=1)
"""A service without batches."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that renews."""

    at_s: float
    leases: tuple[Lease, ...]
    visibility_timeout_s: int
    timeout_s: float | None


class Queue(MemoryQueue):
    """A queue in memory that keeps the requests that renew; strict unless a test wants another.

    Strict: a receipt dies with its lease, and with the next one.
    """

    def __init__(self, time: ManualTime, name: str = "work", **options: Any) -> None:
        super().__init__(name, time=time, **{"strict": True, **options})
        self._moments = time
        self.sent: list[Sent] = []
        self.before_renew: Callable[[], object] | None = None
        """Called in each request that renews, before it is carried out."""

    def renew(
        self, leases: Sequence[Lease], visibility_timeout_s: int, *, timeout_s: float | None = None
    ) -> list[Renewed | QueueError]:
        now_s = self._moments.monotonic_s()
        self.sent.append(Sent(now_s, tuple(leases), visibility_timeout_s, timeout_s))
        if self.before_renew is not None:
            self.before_renew()
        return super().renew(leases, visibility_timeout_s, timeout_s=timeout_s)

    @property
    def moments_s(self) -> list[float]:
        """When renewals were sent, seconds after the start."""
        return [sent.at_s - START_S for sent in self.sent]


@dataclass
class Told(LeaseHooks):
    """Hooks that keep what they are told."""

    batches: list[int] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    losses: list[tuple[str, str]] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    ends: list[BaseException] = field(default_factory=list)

    def renewed(self, helds: Sequence[Held], took_s: float) -> None:
        self.batches.append(len(helds))
        self.took_s.append(took_s)

    def failed(self, helds: Sequence[Held], error: Exception) -> None:
        self.failures.append(error)

    def lost(self, held: Held, loss: Loss) -> None:
        self.losses.append((held.delivery.message_id, loss.kind))

    def late(self, lag_s: float) -> None:
        self.lags_s.append(lag_s)

    def stopped(self, error: BaseException) -> None:
        self.ends.append(error)


class NoDice:
    """Dice that always fall alike: renewals are sent at their latest moment."""

    def random(self) -> float:
        return 0.0


class Bench:
    """A manager, a queue and time."""

    def __init__(self, settings: LeaseSettings = THIRTY, **options: Any) -> None:
        self.time = ManualTime(START_S)
        self.told = Told()
        self.manager = LeaseManager(settings, time=self.time, hooks=self.told, **options)
        self.manager._random = NoDice()  # type: ignore[assignment]
        self.queue = Queue(self.time)
        self.losses: list[Loss] = []

    def receive(self, count: int = 1, queue: Queue | None = None) -> list[Delivery]:
        """Put messages and receive them."""
        queue = queue or self.queue
        queue.put([Outgoing(body=str(number)) for number in range(count)])
        lease_s = self.manager.settings.visibility_timeout_s
        found: list[Delivery] = []
        while len(found) < count:
            found += queue.receive(count - len(found), visibility_timeout_s=lease_s)
        return found

    def keep(self, count: int = 1, queue: Queue | None = None) -> list[Held]:
        """Put messages, receive them and keep their leases."""
        queue = queue or self.queue
        asked_at_s = self.time.monotonic_s()
        helds = [
            self.manager.keep(queue, delivery, asked_at_s=asked_at_s)
            for delivery in self.receive(count, queue)
        ]
        for held in helds:
            held.on_loss(self.losses.append)
        return helds

    def keep_one(self, queue: Queue | None = None) -> Held:
        """Put a message, receive it and keep its lease."""
        (held,) = self.keep(1, queue)
        return held

    def complete(self, held: Held) -> bool:
        """Complete a message as a worker does."""
        (result,) = self.queue.complete([held.begin_settling()])
        return held.settled(result, completing=True)

    @property
    def threads(self) -> list[threading.Thread]:
        """The manager's threads that run."""
        every = [self.manager._timer, *self.manager._pool._threads]
        return [thread for thread in every if thread.is_alive()]

    def close(self) -> None:
        """Stop the threads."""
        self.manager.close()


class Aside:
    """A call that is made in a thread of its own, and waits by the test's time.

    Args:
        call: What it does.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self._result: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._result.append(call())
        except Exception as error:  # noqa: BLE001 - raised again by result()
            self._result.append(error)

    @property
    def is_over(self) -> bool:
        """Whether it has returned or raised."""
        return bool(self._result)

    def result(self) -> Any:
        """Wait for its end; return what it returned, or raise what it raised."""
        self._thread.join(PATIENCE_S)
        assert self._result, "it does not end"
        if isinstance(self._result[0], Exception):
            raise self._result[0]
        return self._result[0]
