"""Where progress is kept when a queue service has no place for it."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol, Self

from leasehold.clock import Clock, SystemClock
from leasehold.worker.adapters.fallbacks import request_timeout_s
from leasehold.worker.adapters.protocol import (
    Around,
    Capabilities,
    Delivery,
    Lease,
    LeaseGone,
    QueueClient,
    QueueError,
    Renewed,
    Saved,
)

KEPT_S: Final = 15 * 24 * 3600
"""Longer than MNS keeps a message (https://www.alibabacloud.com/help/en/mns/): 15 days."""
_BUSY_S: Final = 10.0
_MOST_PARAMETERS: Final = 500
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS progress (
    queue TEXT NOT NULL,
    message_id TEXT NOT NULL,
    fence INTEGER NOT NULL,
    saved TEXT NOT NULL,
    kept_at_ms INTEGER NOT NULL,
    PRIMARY KEY (queue, message_id)
) WITHOUT ROWID
"""
_KEEP: Final = """
INSERT INTO progress (queue, message_id, fence, saved, kept_at_ms) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (queue, message_id) DO UPDATE
SET fence = excluded.fence, saved = excluded.saved, kept_at_ms = excluded.kept_at_ms
WHERE excluded.fence >= progress.fence
"""


class ProgressStore(Protocol):
    """Progress by queue and message id; may be used by several threads at once."""

    def load(self, queue: str, message_ids: Sequence[str]) -> Mapping[str, Saved]:
        """Return what is kept, by message id."""
        ...

    def keep(self, queue: str, message_id: str, saved: Saved, fence: int) -> bool:
        """Keep *saved* in place of what was kept.

        Args:
            queue: Name of the queue.
            message_id: Id of the message.
            saved: The progress.
            fence: Rises with each delivery of the message.

        Returns: False if a worker with a higher fence has kept something already: nothing changed.

        Raises:
            TypeError: The state is not what JSON can say.
        """
        ...

    def forget(self, queue: str, message_ids: Sequence[str]) -> None:
        """Drop what is kept for messages that are gone."""
        ...


class MemoryProgress:
    """Keeps progress in memory: for tests, and for work that may begin anew after a restart."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def load(self, queue: str, message_ids: Sequence[str]) -> dict[str, Saved]:
        """See :class:`ProgressStore`."""
        found = {each: self._kept.get((queue, each)) for each in message_ids}
        return {each: _read(kept[1]) for each, kept in found.items() if kept is not None}

    def keep(self, queue: str, message_id: str, saved: Saved, fence: int) -> bool:
        """See :class:`ProgressStore`."""
        text = _written(saved)
        with self._lock:
            kept = self._kept.get((queue, message_id))
            if kept is not None and kept[0] > fence:
                return False
            self._kept[queue, message_id] = (fence, text)
            return True

    def forget(self, queue: str, message_ids: Sequence[str]) -> None:
        """See :class:`ProgressStore`."""
        with self._lock:
            for each in message_ids:
                self._kept.pop((queue, each), None)


class SqliteProgress:
    """Keeps progress in a SQLite file that all workers of one machine can share.

    What was kept survives the loss of power: each change is on disk before the call returns. What
    is left of messages that expired in their queue is dropped when the store is opened.

    Args:
        path: Of the file, which is created if need be; not on a network file system.
        keep_s: How long progress is kept after it was saved, in seconds; longer than messages can
            live.
        clock: For that.
    """

    def __init__(
        self, path: str | Path, *, keep_s: float = KEPT_S, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._base = sqlite3.connect(
            path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = FULL")
            self._base.execute(_SCHEMA)
            self.sweep()
        except BaseException:
            self._base.close()
            raise

    def load(self, queue: str, message_ids: Sequence[str]) -> dict[str, Saved]:
        """See :class:`ProgressStore`."""
        found: dict[str, Saved] = {}
        for some in _slices(message_ids):
            marks = ",".join("?" * len(some))
            sql = f"SELECT message_id, saved FROM progress WHERE queue = ? AND message_id IN ({marks})"  # noqa: S608, E501 - only question marks are put in
            with self._lock:
                rows = self._base.execute(sql, (queue, *some)).fetchall()
            found.update((message_id, _read(text)) for message_id, text in rows)
        return found

    def keep(self, queue: str, message_id: str, saved: Saved, fence: int) -> bool:
        """See :class:`ProgressStore`."""
        row = (queue, message_id, fence, _written(saved), self._clock.now_ms())
        with self._lock:
            return self._base.execute(_KEEP, row).rowcount > 0

    def forget(self, queue: str, message_ids: Sequence[str]) -> None:
        """See :class:`ProgressStore`."""
        for some in _slices(message_ids):
            marks = ",".join("?" * len(some))
            sql = f"DELETE FROM progress WHERE queue = ? AND message_id IN ({marks})"  # noqa: S608 - as above
            with self._lock:
                self._base.execute(sql, (queue, *some))

    def sweep(self) -> int:
        """Drop what was saved longer ago than it is to be kept; return how many there were."""
        before_ms = self._clock.now_ms() - int(self._keep_s * 1000)
        with self._lock:
            sql = "DELETE FROM progress WHERE kept_at_ms < ?"
            return self._base.execute(sql, (before_ms,)).rowcount

    def close(self) -> None:
        """Close the file."""
        with self._lock, suppress(sqlite3.Error):
            self._base.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _slices(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[at : at + _MOST_PARAMETERS] for at in range(0, len(ids), _MOST_PARAMETERS)]


def _written(saved: Saved) -> str:
    try:
        return json.dumps([saved.stage, saved.state, saved.fraction], allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"a state must be representable in JSON: {error}") from error


def _read(text: str) -> Saved:
    stage, state, fraction = json.loads(text)
    return Saved(stage=stage, state=state, fraction=fraction)


# --- keeping -----------------------------------------------------------------------------------
#
# Progress for a service that keeps none: beside the queue, in a store of the worker's own.


_log: Final = logging.getLogger("leasehold.worker.stages")


class KeepsProgress(Around):
    """A queue client that keeps progress in a store, for a service that cannot (MNS).

    It can also go around a client that keeps progress by itself, to have more room for it: what
    that client has kept is then used for messages of which the store knows nothing.

    Args:
        client: The queue.
        store: That all workers of the queue share; it is not closed with the client.
    """

    def __init__(self, client: QueueClient, store: ProgressStore) -> None:
        super().__init__(client)
        self._store = store

    @property
    def capabilities(self) -> Capabilities:
        """Those of the service, and progress beside the body."""
        return replace(self.client.capabilities, saves="beside", forwards=False)

    def _received(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Return messages with what is kept for them."""
        # Also at a first delivery by its count: one that was given back is not always counted.
        kept = self._store.load(self.name, [each.message_id for each in deliveries])
        return [
            replace(each, saved=kept[each.message_id]) if each.message_id in kept else each
            for each in deliveries
        ]

    def save(
        self, delivery: Delivery, receipt: str, saved: Saved, visibility_timeout_s: int
    ) -> Renewed:
        """Keep *saved*, and renew the lease.

        Raises:
            LeaseGone: Nothing was saved.
            QueueError: The lease could not be renewed; *saved* is kept if it still exists.
            TypeError: The state is not what JSON can say.
        """
        message_id, fence = delivery.message_id, delivery.fence
        before = self._store.load(self.name, [message_id]).get(message_id, Saved())
        # First the store: if that fails, the receipt in hand is still the newest.
        if not self._store.keep(self.name, message_id, saved, fence):
            raise LeaseGone("a later receiver of the message has saved progress")
        timeout_s = request_timeout_s(visibility_timeout_s)
        [renewed] = self.client.renew(
            [Lease(message_id, receipt)], visibility_timeout_s, timeout_s=timeout_s
        )
        if isinstance(renewed, LeaseGone):
            self._store.keep(self.name, message_id, before, fence)
        if isinstance(renewed, QueueError):
            raise renewed
        return renewed

    def _completed(self, message_ids: Sequence[str]) -> None:
        """Drop what is kept for messages whose work is done."""
        try:
            self._store.forget(self.name, message_ids)
        except Exception:  # noqa: BLE001 - the messages are gone all the same; the rest is swept
            _log.warning("progress_not_forgotten", exc_info=True, extra={"queue": self.name})

    def _buried(self, message_id: str) -> None:
        """Drop what is kept for a message in the poison queue."""
        self._completed([message_id])
