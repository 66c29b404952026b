"""Fill a store with waiting messages, past the server: ten million puts over HTTP take too long.

The messages are what ten million clients would have put: written through the store's own commands,
with a finite time to live, so that every index has its entry.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.load.dialects import make_body
from benchmarks.load.job import EMULATOR_ACCOUNT
from benchmarks.workspace import Workspace, disk_bytes
from leasehold.clock import SystemClock
from leasehold.domain.command import AnyCommand
from leasehold.domain.commands import CreateQueue, Put
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.model import ENTROPY_BYTES
from leasehold.stores import sqlite
from leasehold.stores.base import Store

Progress = Callable[[int], None]

_BATCH: Final = 10_000
_TIME_TO_LIVE_S: Final = 2**31 - 1
_AGE_MS: Final = 3_600_000
"""The oldest message is this old: nothing may lie in the future when the server starts."""
_ROW_BYTES: Final = 400
"""Generous allowance for a row beside its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """What to fill a store with: visible messages, in the queue ``bench`` at first."""

    messages: int
    body_bytes: int
    progress: Progress
    """Called with the number of messages written so far."""
    queues: int = 1
    """With more than one, half of the messages are in ``bench``, and the rest is spread evenly over
    the others, which are called ``bench-1`` and so on."""

    def names(self) -> list[str]:
        """Return the names of the queues."""
        return ["bench", *(f"bench-{number}" for number in range(1, self.queues))]

    def parts(self) -> Iterator[tuple[str, int]]:
        """Yield which queue gets how many messages, in batches."""
        names, left = self.names(), self.messages
        others = names[1:]
        share = left // 2 // len(others) if others else 0
        first = left - share * len(others)
        for name, wanted in [("bench", first), *((name, share) for name in others)]:
            for done in range(0, wanted, _BATCH):
                yield name, min(_BATCH, wanted - done)

    def estimate_bytes(self) -> int:
        """Return a generous estimate of what the store takes on disk."""
        return self.messages * (self.body_bytes + _ROW_BYTES) + 100_000_000


class NoRoom(Exception):
    """The disk cannot take the store."""


def cached_store(workspace: Workspace, fill: Fill) -> tuple[Path, Mapping[str, float]]:
    """Return a folder with a filled store, made now unless an earlier run has left it.

    The folder's name holds a digest of the migrations, so that a store of another format is never
    taken for one of this format; such a one is removed.

    Returns:
        The folder, and what is known of the filling: messages, body_bytes, seconds, disk_bytes.

    Raises:
        NoRoom: The disk cannot take it.
    """
    among = f"in{fill.queues}-" if fill.queues > 1 else ""
    stem = f"sqlite-{fill.messages}x{fill.body_bytes}-{among}"
    folder = workspace.fills / f"{stem}{format_digest()}"
    note = folder.with_suffix(".json")
    if not note.exists():
        for old in workspace.fills.glob(f"{stem}*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        need = fill.estimate_bytes()
        if shutil.disk_usage(workspace.root).free < need:
            raise NoRoom(
                f"{fill.messages:,} messages of {fill.body_bytes} bytes need {need / 1e9:.0f} GB"
            )
        began = time.perf_counter()
        store = sqlite.SqliteStore(folder)
        try:
            fill_store(store, fill)
        finally:
            store.close()
        os.sync()
        facts = {
            "messages": fill.messages,
            "body_bytes": fill.body_bytes,
            "seconds": round(time.perf_counter() - began, 1),
            "disk_bytes": disk_bytes(folder),
        }
        note.write_text(json.dumps(facts))
    found: Mapping[str, float] = json.loads(note.read_text())
    return folder, found


def forget_store(folder: Path) -> None:
    """Note that the cached store in *folder* was taken away."""
    folder.with_suffix(".json").unlink(missing_ok=True)


def fill_store(store: Store, fill: Fill) -> None:
    """Put the messages, one millisecond to a batch."""
    body = make_body(fill.body_bytes)
    now_ms = SystemClock().now_ms() - _AGE_MS
    names = fill.names()
    for start in range(0, len(names), _BATCH):
        some = names[start : start + _BATCH]
        _do(store, [CreateQueue(EMULATOR_ACCOUNT, name, {}) for name in some], now_ms)
    written = 0
    batch: list[AnyCommand] = []
    for name, size in fill.parts():
        entropy = os.urandom(ENTROPY_BYTES * size)
        batch += [
            Put(
                EMULATOR_ACCOUNT,
                name,
                body,
                0,
                _TIME_TO_LIVE_S,
                entropy[at : at + ENTROPY_BYTES],
            )
            for at in range(0, len(entropy), ENTROPY_BYTES)
        ]
        written += size
        if len(batch) >= _BATCH or written == fill.messages:
            now_ms += 1
            _do(store, batch, now_ms)
            batch = []
            fill.progress(written)


def _do(store: Store, batch: Sequence[AnyCommand], now_ms: int) -> None:
    for result in store.execute(batch, now_ms=now_ms):
        if isinstance(result, LeaseholdError):
            raise result
    store.commit()


def format_digest() -> str:
    """Return eight characters that stand for the store's format."""
    digest = hashlib.sha256()
    for path in sorted(Path(sqlite.__file__).parent.glob("migrations/*.sql")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]
