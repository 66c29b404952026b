"""Power cuts without a power switch: record what reaches the disk, then replay any prefix of it.

A VFS records every write, truncation, deletion and sync that the store makes. A crash state is
built from the operations up to some point: what had been synced is there, and of the rest nothing,
everything, a random subset, or blocks torn at 512 bytes. The store must come up from each of them
in exactly the state after the last batch it had acknowledged, or after the one then under way.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import apsw

from leasehold.domain import commands as c
from leasehold.domain import oversight as o
from leasehold.domain.types import NO_DETAIL, Detail, Lease, MessageState, Outcome
from leasehold.stores.sqlite import SqliteStore, connection

VFS_NAME = "leasehold-recorder"
SECTOR = 512
Damage = Literal["none", "all", "subset", "torn"]
DAMAGES: tuple[Damage, ...] = ("none", "all", "subset", "torn")


@dataclass(slots=True)
class Operation:
    """One thing that happened: ``write``, ``truncate``, ``delete``, ``sync`` or ``ack``."""

    kind: str
    name: str = ""
    offset: int = 0
    data: bytes = b""
    snapshot: str = ""
    """For ``ack``: digest of all messages after the acknowledged batch."""


RECORD: list[Operation] = []


class RecordingFile(apsw.VFSFile):
    """A file that tells what is done to it."""

    def __init__(self, name: Any, flags: Any) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else (name or "temporary")
        self._name = Path(path).name
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - SQLite's name
        RECORD.append(Operation("write", self._name, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        RECORD.append(Operation("truncate", self._name, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        RECORD.append(Operation("sync", self._name))
        super().xSync(flags)


class RecordingVfs(apsw.VFS):
    """The operating system's file system, recorded."""

    def __init__(self) -> None:
        super().__init__(VFS_NAME, "")

    def xOpen(self, name: Any, flags: Any) -> RecordingFile:  # noqa: N802
        return RecordingFile(name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        RECORD.append(Operation("delete", Path(filename).name))
        super().xDelete(filename, syncdir)


def snapshot(store: SqliteStore) -> str:
    """Digest everything a client could notice."""
    cursor = store._state.cursor
    rows = [
        *cursor.execute("SELECT * FROM message ORDER BY row_key"),
        *cursor.execute("SELECT account, name, partition, metadata, message_count FROM queue"),
        *cursor.execute("SELECT * FROM dedup_key"),
        *cursor.execute("SELECT * FROM job"),
    ]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


@dataclass
class Workload:
    """Random batches on one store."""

    seed: int
    batches: int
    leases: list[Lease] = field(default_factory=list)
    jobs: int = 0

    def commands(self, rng: random.Random) -> Iterator[c.Command]:
        for _ in range(rng.choice([1, 1, 2, 8])):
            draw = rng.random()
            if draw < 0.5 or not self.leases:
                size = rng.choice([0, 10, 700, 3000, 20_000])
                body = rng.randbytes(size)
                key = Detail(dedup_key=f"{rng.randrange(20)}") if draw < 0.1 else NO_DETAIL
                delay_s = rng.choice([0, 0, 60])
                yield c.Put("a", "queue", body, delay_s, None, rng.randbytes(10), key)
            elif draw < 0.7:
                yield c.Receive("a", "queue", rng.choice([1, 4]), 30)
            else:
                lease = self.leases.pop(rng.randrange(len(self.leases)))
                message_id = lease.message.message_id
                if draw < 0.8:
                    progress = rng.choice([None, rng.randbytes(500)])
                    yield c.Renew("a", "queue", message_id, lease.receipt, 60, progress)
                elif draw < 0.9:
                    yield c.Complete("a", "queue", message_id, lease.receipt)
                elif draw < 0.96:
                    outcome = rng.choice([Outcome.FAILED, Outcome.BURIED])
                    yield c.Release("a", "queue", message_id, lease.receipt, outcome)
                elif draw < 0.99:
                    yield from self._job(rng)
                else:
                    yield c.Clear("a", "queue")

    def _job(self, rng: random.Random) -> Iterator[c.Command]:
        """Start a redrive or a purge of what is poison, and go a step or two."""
        self.jobs += 1
        states = frozenset({MessageState.POISONED})
        plan = o.JobPlan(kind=rng.choice(list(o.JobKind)), filter=o.MessageFilter(states=states))
        yield o.StartJob("a", "queue", f"job{self.jobs}", plan)
        for _ in range(rng.choice([1, 2])):
            yield o.StepJob(f"job{self.jobs}", 1)

    def record(self) -> list[Operation]:
        """Play the batches and return what reached the disk, with the acknowledgements."""
        rng = random.Random(self.seed)
        RECORD.clear()
        folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="leasehold-cut-"))
        store = SqliteStore(folder, cache_mib=1, vfs=VFS_NAME)
        now_ms = 1_767_225_600_000
        try:
            self._play(store, [c.CreateQueue("a", "queue", {})], now_ms)
            for _ in range(self.batches):
                now_ms += rng.choice([1, 500, 40_000])
                self._play(store, list(self.commands(rng)), now_ms)
            return list(RECORD)
        finally:
            store.close()
            shutil.rmtree(folder)

    def _play(self, store: SqliteStore, batch: list[c.Command], now_ms: int) -> None:
        results = store.execute(batch, now_ms=now_ms)
        store.commit()
        for result in results:
            if isinstance(result, Lease):
                self.leases.append(result)
            elif isinstance(result, tuple):
                self.leases += [lease for lease in result if isinstance(lease, Lease)]
        RECORD.append(Operation("ack", snapshot=snapshot(store)))


def crash(
    record: list[Operation], until: int, damage: Damage, rng: random.Random
) -> dict[str, bytearray]:
    """Return the files as a power cut just before operation *until* may have left them."""
    synced = {
        operation.name: index
        for index, operation in enumerate(record[:until])
        if operation.kind == "sync"
    }
    files: dict[str, bytearray] = {}
    for index, operation in enumerate(record[:until]):
        content = files.setdefault(operation.name, bytearray()) if operation.name else bytearray()
        durable = index < synced.get(operation.name, -1)
        if operation.kind == "write":
            data = operation.data if durable else _damaged(operation.data, damage, rng)
            if len(content) < operation.offset and data:
                content.extend(bytes(operation.offset - len(content)))
            content[operation.offset : operation.offset + len(data)] = data
        elif operation.kind == "truncate":
            if durable or damage == "all" or rng.random() < 0.5:
                del content[operation.offset :]
        elif operation.kind == "delete":
            files.pop(operation.name, None)
    return files


def _damaged(data: bytes, damage: Damage, rng: random.Random) -> bytes:
    """Return what of an unsynced write is there after the cut."""
    if damage == "all" or (damage in {"subset", "torn"} and rng.random() < 0.5):
        return data
    if damage == "torn":
        return data[: rng.randrange(0, len(data) + 1) // SECTOR * SECTOR]
    return b""


def recovered(files: dict[str, bytearray], folder: Path) -> str:
    """Open the store on *files* and return the digest of what it holds, or what went wrong."""
    for old in folder.iterdir():
        old.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    try:
        store = SqliteStore(folder, cache_mib=1)
    except Exception as error:  # noqa: BLE001 - any failure to open is the finding
        return f"does not open: {error!r} {error.__cause__!r}"
    try:
        verdict = store._connection.pragma("integrity_check")
        return snapshot(store) if verdict == "ok" else f"corrupt: {verdict}"
    finally:
        store.close()


@dataclass
class Verdict:
    """What the crash states of one run came to."""

    states: int = 0
    after_acknowledged: int = 0
    after_next: int = 0
    violations: list[str] = field(default_factory=list)

    def judge(self, record: list[Operation], until: int, found: str, where: str) -> None:
        """Compare what was recovered with what it must be."""
        acknowledged = [op.snapshot for op in record[:until] if op.kind == "ack"][-1]
        following = next((op.snapshot for op in record[until:] if op.kind == "ack"), None)
        self.states += 1
        if found == acknowledged:
            self.after_acknowledged += 1
        elif found == following:
            self.after_next += 1
        else:
            self.violations.append(f"{where}, operation {until}: {found}")


def replay(seeds: range, states_per_workload: int, batches: int = 25) -> Verdict:
    """Record one workload per seed and check that many crash states of each."""
    vfs = RecordingVfs()
    outcome = Verdict()
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="leasehold-cut-"))
    try:
        for seed in seeds:
            record = Workload(seed, batches).record()
            rng = random.Random(seed)
            first = next(index for index, op in enumerate(record) if op.kind == "ack")
            # Most faults of this kind show right after a sync or an acknowledgement.
            hot = [i + 1 for i in range(first, len(record)) if record[i].kind in {"ack", "sync"}]
            for number in range(states_per_workload):
                until = rng.choice(hot) if number % 2 else rng.randrange(first + 1, len(record) + 1)
                damage = rng.choice(DAMAGES)
                found = recovered(crash(record, until, damage, rng), folder)
                outcome.judge(record, until, found, f"seed {seed}, {damage}")
    finally:
        shutil.rmtree(folder)
        vfs.unregister()
    return outcome


def frequent_checkpoints(monkeypatch: Any, *, synchronous: int = 2) -> None:
    """Make checkpoints part of short workloads, and choose how often SQLite syncs."""
    pragmas = connection._PRAGMAS | {"wal_autocheckpoint": 20, "synchronous": synchronous}
    monkeypatch.setattr(connection, "_PRAGMAS", pragmas)
