"""Queues in memory, workers on them, and handlers that a test holds up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker.adapters import Delivery, Outgoing
from leasehold.worker.hooks import Hooks
from leasehold.worker.message import Message
from leasehold.worker.outcomes import Outcome
from leasehold.worker.timing import SystemTime, Time
from leasehold.worker.worker import GRACE_S, Worker
from tests.patience import PATIENCE_S


def filled(*bodies: str, name: str = "orders", **options: Any) -> MemoryQueue:
    """Return a queue with messages in it."""
    queue = MemoryQueue(name, **options)
    queue.put([Outgoing(body=body) for body in bodies])
    return queue


def left(queue: MemoryQueue) -> list[tuple[str, int]]:
    """Return of what is still in a queue the bodies, and how many deliveries count as a try."""
    found = []
    for each in queue.left():
        attempts = queue._find(each.message_id).detail.attempts
        uncounted = sum(attempt.outcome in {"returned", "interrupted"} for attempt in attempts)
        found.append((each.body.decode(), each.dequeue_count - uncounted))
    return found


def attempts_of(queue: MemoryQueue, message_id: str) -> list[str | None]:
    """Return how the deliveries of a message that is still in a queue have ended."""
    return [each.outcome for each in queue._find(message_id).detail.attempts]


def handle_all(handler: Any, queues: Any, **options: Any) -> Worker:
    """Have everything in queues handled that can be received, and return the worker."""
    worker = Worker(handler, queues, **{"concurrency": 2, **options})
    worker.run_until_idle(None if "time" in options else PATIENCE_S)
    return worker


class Held:
    """A handler that waits until the test lets it go on.

    Args:
        time: That the worker goes by, if a test moves it: then the handler looks twice a second
            whether it is to stop.
        stops: Whether it stops when it is told to.
    """

    def __init__(self, time: ManualTime | None = None, *, stops: bool = True) -> None:
        self.messages: list[Message] = []
        self._time: Time = time or SystemTime()
        self._look_s = 0.01 if time is None else 0.5
        self._stops = stops
        self._begun = threading.Semaphore(0)
        self._changed = threading.Condition()
        self._goes_on = False

    def __call__(self, message: Message) -> None:
        with self._changed:
            self.messages.append(message)
            self._begun.release()
            while not self._goes_on:
                self._time.wait(self._changed, self._look_s)
                if self._stops:
                    message.check()

    def wait_until_begun(self, count: int = 1) -> None:
        """Return when so many more messages have come."""
        for _ in range(count):
            if not self._begun.acquire(timeout=PATIENCE_S):
                raise TimeoutError("no message came to the handler")

    def go_on(self) -> None:
        """Let all that wait here come to their end."""
        with self._changed:
            self._goes_on = True
            self._changed.notify_all()


@contextmanager
def running(handler: Any, queues: Any, **options: Any) -> Iterator[Worker]:
    """Run a worker; at the end let the handler go on, and stop."""
    worker = Worker(handler, queues, **{"wait_s": 0, **options})
    worker.start()
    try:
        yield worker
    except BaseException:
        assert worker._threads is not None
        worker._threads.hurry()  # or a test that has failed would wait for time to pass
        raise
    finally:
        if isinstance(handler, Held):
            handler.go_on()
        worker.stop()


class Heard(Hooks):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.settlements: list[tuple[str, str]] = []
        self.losses: list[tuple[str, str]] = []
        self.outcomes: list[Outcome] = []
        self._changed = threading.Condition()

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        with self._changed:
            self.settlements.append((delivery.body.decode(), outcome.kind.value))
            self.outcomes.append(outcome)
            self._changed.notify_all()

    def lost(self, delivery: Delivery, why: str) -> None:
        with self._changed:
            self.losses.append((delivery.body.decode(), why))
            self._changed.notify_all()

    def wait_until(self, settled: int = 0, lost: int = 0) -> None:
        """Return when so many messages were settled and lost, all in all."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: len(self.settlements) >= settled and len(self.losses) >= lost, PATIENCE_S
            ):
                raise TimeoutError(f"settled {self.settlements}, lost {self.losses}")


def wait_for(event: threading.Event) -> None:
    """Wait for an event, but not for ever."""
    if not event.wait(PATIENCE_S):
        raise TimeoutError("it did not happen")


def stop_beside(worker: Worker, time: ManualTime, grace_s: float = GRACE_S) -> threading.Thread:
    """Stop a worker in another thread; return that when it waits for handlers."""
    thread = threading.Thread(target=worker.stop, args=(grace_s,), name="stops")
    thread.start()
    while thread not in time._waits:
        thread.join(0.001)
        if not thread.is_alive():
            raise RuntimeError("nothing was in work")
    return thread
