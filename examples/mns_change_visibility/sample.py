"""The sample's story: workers that take longer than the timeout, and one that is stuck."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from examples.mns_change_visibility.manager import Manager, SampleSettings
from mns.queue import Message, QueueMeta

from leasehold.worker.adapters.mns import MnsQueue
from leasehold.worker.leases import Held, Loss

STUCK: Final = "the one that gets stuck"
WORKERS: Final = 3
_WAIT_S: Final = 1


@dataclass(slots=True)
class Outcome:
    """What happened; the lock is for all of it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    deliveries: dict[str, list[int]] = field(default_factory=dict)
    """Dequeue counts by message."""
    deleted: dict[str, int] = field(default_factory=dict)
    """How often each was deleted."""
    refused: list[str] = field(default_factory=list)
    """Messages whose delete came too late."""
    losses: dict[str, str] = field(default_factory=dict)
    """Why the manager gave a message up, by message."""
    stuck_for_s: float = 0.0
    """From the first delivery of the stuck message to the next one."""
    changes: int = 0


class Story:
    """Plays the sample once.

    Args:
        queue: The official SDK's object for a queue that may be made and deleted.
        settings: Of the sample.
        jobs: Messages that are worked on for longer than their visibility timeout.
        tell: Where to say what happens.
    """

    def __init__(
        self, queue: Any, settings: SampleSettings, jobs: int, tell: Callable[[str], None]
    ) -> None:
        self.outcome = Outcome()
        self._queue = queue
        self._settings = settings
        self._jobs = [f"job {number}" for number in range(1, jobs + 1)]
        self._tell = tell
        self._began_s = time.monotonic()
        self._work_s = settings.queue_message_visibility_timeout * 1.7
        self._stuck_since_s: float | None = None
        self._released = threading.Event()
        self._telling = threading.Lock()
        self._over = threading.Event()

    def play(self, give_up_s: float) -> Outcome:
        """Make the queue, send, work, and delete the queue."""
        meta = QueueMeta()
        meta.set_visibilitytimeout(self._settings.queue_message_visibility_timeout)
        self._queue.create(meta)
        try:
            for body in (STUCK, *self._jobs):
                self._queue.send_message(Message(body))
            self._work(give_up_s)
        finally:
            self._queue.delete()
        return self.outcome

    def _work(self, give_up_s: float) -> None:
        client = MnsQueue(self._queue)
        with Manager(client, self._settings) as manager:
            workers = [
                threading.Thread(target=self._run, args=(manager,), name=f"worker-{number}")
                for number in range(1, WORKERS + 1)
            ]
            for worker in workers:
                worker.start()
            self._over.wait(give_up_s)
            self._over.set()
            self._released.set()  # the stuck worker comes back to life, long too late
            for worker in workers:
                worker.join()
            self.outcome.changes = manager.changes
        client.close()

    def _run(self, manager: Manager) -> None:
        while not self._over.is_set():
            message = manager.receive(_WAIT_S)
            if message is not None:
                self._handle(manager, message)

    def _handle(self, manager: Manager, message: Held) -> None:
        body, count = message.delivery.body.decode(), message.delivery.dequeue_count
        self._say(f"got {body!r}, delivery {count}")
        with self.outcome.lock:
            self.outcome.deliveries.setdefault(body, []).append(count)
        message.on_loss(lambda loss: self._lost(body, loss))
        if body != STUCK:
            time.sleep(self._work_s)  # longer than the visibility timeout
        elif count == 1:
            self._stuck_since_s = time.monotonic()
            self._released.wait()
        elif self._stuck_since_s is not None:
            self.outcome.stuck_for_s = time.monotonic() - self._stuck_since_s
        self._finish(manager, message, body)

    def _finish(self, manager: Manager, message: Held, body: str) -> None:
        is_deleted = manager.delete_message(message)
        self._say(f"deleted {body!r}" if is_deleted else f"may not delete {body!r}: too late")
        with self.outcome.lock:
            if is_deleted:
                self.outcome.deleted[body] = self.outcome.deleted.get(body, 0) + 1
            else:
                self.outcome.refused.append(body)
            if set(self.outcome.deleted) == {STUCK, *self._jobs}:
                self._over.set()

    def _lost(self, body: str, loss: Loss) -> None:
        self._say(f"the manager gives up {body!r}: {loss.kind}")
        with self.outcome.lock:
            self.outcome.losses[body] = loss.kind

    def _say(self, text: str) -> None:
        passed_s = time.monotonic() - self._began_s
        name = threading.current_thread().name
        with self._telling:
            self._tell(f"{passed_s:5.1f} s  {name:12}  {text}")


def checks(outcome: Outcome, settings: SampleSettings, jobs: int) -> dict[str, bool]:
    """Return what must hold at the end, and whether it does."""
    normal = {body: counts for body, counts in outcome.deliveries.items() if body != STUCK}
    latest_s = settings.message_timeout + settings.queue_message_visibility_timeout
    return {
        "every job was delivered once, although it took longer than the timeout": len(normal)
        == jobs
        and all(counts == [1] for counts in normal.values()),
        "every message was deleted once": len(outcome.deleted) == jobs + 1
        and set(outcome.deleted.values()) == {1},
        "visibility was changed meanwhile": outcome.changes >= jobs,
        "the stuck worker's message was given up": outcome.losses.get(STUCK) == "timed out",
        "another worker got it, soon after the message timeout": outcome.deliveries.get(STUCK)
        == [1, 2]
        and settings.message_timeout < outcome.stuck_for_s < latest_s + 2,
        "the stuck worker could not delete it in the end": outcome.refused == [STUCK],
    }
