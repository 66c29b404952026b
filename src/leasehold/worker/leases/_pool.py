"""The threads that send renewals: as many as needed, up to a bound, and fair to queues."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from leasehold.worker.leases.held import Held
from leasehold.worker.leases.settings import LeaseSettings
from leasehold.worker.pacing import start_thread
from leasehold.worker.queues.protocol import QueueClient
from leasehold.worker.timing import Time

_log: Final = logging.getLogger("leasehold.worker.leases")


@dataclass(frozen=True, slots=True)
class Batch:
    """Leases to be renewed by one request."""

    client: QueueClient
    settings: LeaseSettings
    helds: list[Held]
    lease_s: int
    """What is asked for."""


class _Lane:
    """What is to be sent to one queue."""

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.running = 0


class RenewalPool:
    """Serves batches by a bounded number of threads, which are started when they are needed.

    Args:
        parallel: Most threads.
        lock: Held by whoever calls :meth:`submit`; threads take it to look for work.
        time: By which they wait.
        serve: Sends one batch.
        failed: Called when *serve* raises, which is a fault of this library.
    """

    def __init__(
        self,
        parallel: int,
        lock: threading.Lock,
        time: Time,
        *,
        serve: Callable[[Batch], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._parallel = parallel
        self._time = time
        self._serve = serve
        self._failed = failed
        self._work = threading.Condition(lock)
        self._lanes: dict[int, _Lane] = {}
        self._threads: set[threading.Thread] = set()
        self._started = 0
        self._idle = 0
        self._waiting = 0
        self._closing = False
        self.clients = 1
        """How many queues there are leases of. Each but the busiest finds a thread free."""

    def submit(self, batch: Batch) -> None:
        """Have a batch sent. The caller holds the lock."""
        lane = self._lanes.setdefault(id(batch.client), _Lane())
        lane.batches.append(batch)
        self._waiting += 1
        self._work.notify()
        if self._waiting > self._idle and len(self._threads) < self._parallel:
            self._start_one()

    def close(self) -> None:
        """Send nothing more. The caller holds the lock."""
        self._closing = True
        self._lanes.clear()
        self._work.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for requests that are under way, *timeout_s* altogether or not much longer."""
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(timeout_s)
                if thread.is_alive():  # it ends with the process
                    timeout_s = 0

    def _start_one(self) -> None:
        name = f"leasehold-renew-{self._started}"
        self._started += 1
        try:
            self._threads.add(start_thread(name, self._time, self._run))
        except RuntimeError:
            if not self._threads:
                raise
            _log.warning("no more threads to renew leases with; %d go on", len(self._threads))

    def _run(self) -> None:
        try:
            while (found := self._next()) is not None:
                key, batch = found
                self._serve(batch)
                self._served(key)
        except BaseException as error:  # noqa: BLE001 - whatever it is, leases are not kept
            self._failed(error)

    def _next(self) -> tuple[int, Batch] | None:
        with self._work:
            while not self._closing:
                found = self._pick()
                if found is not None:
                    return found
                self._idle += 1
                self._time.wait(self._work, None)
                self._idle -= 1
            return None

    def _pick(self) -> tuple[int, Batch] | None:
        most = max(1, self._parallel - self.clients + 1)
        for key, lane in self._lanes.items():
            if lane.batches and lane.running < most:
                lane.running += 1
                self._waiting -= 1
                # Behind the others, for the next one who looks.
                self._lanes[key] = self._lanes.pop(key)
                return key, lane.batches.popleft()
        return None

    def _served(self, key: int) -> None:
        with self._work:
            lane = self._lanes.get(key)
            if lane is not None:
                lane.running -= 1
                if not lane.running and not lane.batches:
                    del self._lanes[key]
