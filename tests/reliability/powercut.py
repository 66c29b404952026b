"""Power cuts without a power switch: record what reaches the disk, then replay any prefix of it.

A VFS records every write, truncation, deletion and sync that the store makes. A crash state is
built from the operations up to some point: what had been synced is there, and of the rest nothing,
everything, a random subset, or blocks torn at 512 bytes. The store must come up from each of them
in exactly the state after the last batch it had acknowledged, or after the one then under way.

Names follow one of two rules. Where they are ordered, as in a file system with a journal such as
ext4, a name is there as soon as it is given. Where they are strict, what was done to the names in a
folder since it was last synced is lost, all of it or from some point on, in each folder by itself.
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

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.filters import MessageFilter
from leasehold.domain.model import NO_DETAIL, Detail, Lease, MessageState, Outcome
from leasehold.server.startup import DataLock
from leasehold.stores.sqlite import SqliteStore, connection

from .recording import RECORD, VFS_NAME, Operation, RecordingVfs, recording

SECTOR = 512
Damage = Literal["none", "all", "subset", "torn"]
DAMAGES: tuple[Damage, ...] = ("none", "all", "subset", "torn")
DATA = "made/by/us"
"""Where the store is, so that folders are made for it."""


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


def _empty() -> str:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        store = SqliteStore(Path(folder))
        digest = snapshot(store)
        store.close()
    return digest


EMPTY = _empty()
"""Digest of a store that was just made."""


@dataclass
class Workload:
    """Random batches on one store."""

    seed: int
    batches: int
    leases: list[Lease] = field(default_factory=list)
    jobs: int = 0

    def commands(self, rng: random.Random) -> Iterator[AnyCommand]:
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

    def _job(self, rng: random.Random) -> Iterator[AnyCommand]:
        """Start a redrive or a purge of what is poison, and go a step or two."""
        self.jobs += 1
        states = frozenset({MessageState.POISONED})
        plan = o.JobPlan(kind=rng.choice(list(o.JobKind)), filter=MessageFilter(states=states))
        yield o.StartJob("a", "queue", f"job{self.jobs}", plan)
        for _ in range(rng.choice([1, 2])):
            yield o.StepJob(f"job{self.jobs}", 1)

    def record(self) -> list[Operation]:
        """Play the batches and return what reached the disk, with the acknowledgements."""
        rng = random.Random(self.seed)
        folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="leasehold-cut-"))
        with recording(folder) as record:
            store = SqliteStore(folder / DATA, cache_mib=1, vfs=VFS_NAME, reserve_bytes=4096)
            now_ms = 1_767_225_600_000
            try:
                self._play(store, [c.CreateQueue("a", "queue", {})], now_ms)
                for _ in range(self.batches):
                    now_ms += rng.choice([1, 500, 40_000])
                    self._play(store, list(self.commands(rng)), now_ms)
                return list(record)
            finally:
                store.close()
                check_complete(record, folder)
                shutil.rmtree(folder)

    def _play(self, store: SqliteStore, batch: list[AnyCommand], now_ms: int) -> None:
        results = store.execute(batch, now_ms=now_ms)
        store.commit()
        for result in results:
            if isinstance(result, Lease):
                self.leases.append(result)
            elif isinstance(result, tuple):
                self.leases += [lease for lease in result if isinstance(lease, Lease)]
        RECORD.append(Operation("ack", snapshot=snapshot(store)))


Tree = dict[str, "int | None"]
"""What is in all folders, by path: the number of a file, or None for a folder."""


def crash(
    record: list[Operation],
    until: int,
    damage: Damage,
    rng: random.Random,
    *,
    strict: bool = False,
) -> dict[str, bytearray | None]:
    """Return what a power cut just before operation *until* may have left.

    Args:
        record: All operations.
        until: How many of them were made.
        damage: What became of contents that were not synced.
        rng: Chooses where there is a choice.
        strict: Whether names are lost that were not synced with their folder.

    Returns:
        The content of each file by its path, None for a folder.
    """
    names = Names()
    done = [(index, op, names.apply(op)) for index, op in enumerate(record[:until])]
    synced = {number: index for index, op, number in done if op.kind == "sync"}
    contents: dict[int, bytearray] = {}
    for index, operation, number in done:
        if number is None:
            continue
        content = contents.setdefault(number, bytearray())
        durable = index < synced.get(number, -1)
        if operation.kind == "write":
            data = operation.data if durable else _damaged(operation.data, damage, rng)
            if len(content) < operation.offset and data:
                content.extend(bytes(operation.offset - len(content)))
            content[operation.offset : operation.offset + len(data)] = data
        elif operation.kind == "truncate" and (durable or damage == "all" or rng.random() < 0.5):
            content.extend(bytes(max(0, operation.offset - len(content))))
            del content[operation.offset :]
    found = names.after_a_cut(rng) if strict else names.now
    return {
        path: None if number is None else contents.setdefault(number, bytearray())
        for path, number in found.items()
    }


class Names:
    """The names in all folders, as they are and as they would be after a power cut."""

    def __init__(self) -> None:
        self.now: Tree = {}
        self._durable: Tree = {}
        self._pending: list[tuple[frozenset[str], dict[str, int | None], frozenset[str]]] = []
        """Folders, names that were given in them, and names that were taken away."""
        self._files = 0

    def apply(self, operation: Operation) -> int | None:
        """Do what was done; return the number of the file that it was done to, if it was one."""
        path, kind = operation.path, operation.kind
        if kind == "create":
            self._change({path: self._new_file()})
        elif kind == "mkdir":
            self._change({path: None})
        elif kind == "rename":
            moved = self.now[path] if path in self.now else self._new_file()
            self._change({operation.to: moved}, frozenset({path}))
        elif kind == "delete":
            self._change({}, frozenset({path}))
        elif kind == "sync-folder":
            self._sync(path)
        return self.now.get(path)

    def _new_file(self) -> int:
        self._files += 1
        return self._files

    def _change(self, given: dict[str, int | None], taken: frozenset[str] = frozenset()) -> None:
        _rename(self.now, given, taken)
        folders = frozenset(map(_folder_of, (*given, *taken)))
        self._pending.append((folders, given, taken))

    def _sync(self, folder: str) -> None:
        for change in [each for each in self._pending if folder in each[0]]:
            _rename(self._durable, *change[1:])
            self._pending.remove(change)

    def after_a_cut(self, rng: random.Random) -> Tree:
        """Return the names that are left, of those that lie in folders that are left."""
        left = dict(self._durable)
        kept = {folder: rng.choice([0, 0, 1, 2, 4]) for folder in {"", *_folders(self.now)}}
        for folders, given, taken in self._pending:
            for folder in folders:
                kept[folder] -= 1
            if all(kept[folder] >= 0 for folder in folders):
                _rename(left, given, taken)
        return {path: what for path, what in left.items() if _is_reached(path, left)}


def _rename(tree: Tree, given: dict[str, int | None], taken: frozenset[str]) -> None:
    for path in taken:
        tree.pop(path, None)
    tree.update(given)


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _folders(tree: Tree) -> list[str]:
    return [path for path, what in tree.items() if what is None]


def _is_reached(path: str, tree: Tree) -> bool:
    folder = _folder_of(path)
    return not folder or (folder in tree and _is_reached(folder, tree))


def lay_out(found: dict[str, bytearray | None], folder: Path) -> None:
    """Make these files and folders, in place of what is there."""
    shutil.rmtree(folder)
    folder.mkdir()
    for path, content in sorted(found.items()):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


def check_complete(record: list[Operation], folder: Path) -> None:
    """Make sure that nothing escaped the recorder: all of it makes what is there."""
    made = crash(record, len(record), "all", random.Random())
    there = {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }
    assert made == there


def _damaged(data: bytes, damage: Damage, rng: random.Random) -> bytes:
    """Return what of an unsynced write is there after the cut."""
    if damage == "all" or (damage in {"subset", "torn"} and rng.random() < 0.5):
        return data
    if damage == "torn":
        return data[: rng.randrange(0, len(data) + 1) // SECTOR * SECTOR]
    return b""


def recovered(found: dict[str, bytearray | None], folder: Path) -> str:
    """Open the store on what was left; return the digest of what it holds, or what went wrong."""
    lay_out(found, folder)
    try:
        with DataLock(folder / DATA):
            store = SqliteStore(folder / DATA, cache_mib=1)
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
        acknowledged = [EMPTY, *(op.snapshot for op in record[:until] if op.kind == "ack")][-1]
        following = next((op.snapshot for op in record[until:] if op.kind == "ack"), None)
        self.states += 1
        if found == acknowledged:
            self.after_acknowledged += 1
        elif found == following:
            self.after_next += 1
        else:
            self.violations.append(f"{where}, operation {until}: {found}")


def replay(
    seeds: range,
    states_per_workload: int,
    batches: int = 25,
    *,
    strict: bool = False,
    until_found: bool = False,
) -> Verdict:
    """Record one workload per seed and check that many crash states of each.

    With *until_found* the first violation is enough.
    """
    vfs = RecordingVfs()
    outcome = Verdict()
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="leasehold-cut-"))
    try:
        for seed in seeds:
            record = Workload(seed, batches).record()
            rng = random.Random(seed)
            # Most faults of this kind show right after a sync or an acknowledgement.
            hot = [i + 1 for i, op in enumerate(record) if op.kind in {"ack", "sync"}]
            for number in range(states_per_workload):
                until = rng.choice(hot) if number % 2 else rng.randrange(1, len(record) + 1)
                damage = rng.choice(DAMAGES)
                found = recovered(crash(record, until, damage, rng, strict=strict), folder)
                outcome.judge(record, until, found, f"seed {seed}, {damage}")
                if until_found and outcome.violations:
                    return outcome
    finally:
        shutil.rmtree(folder)
        vfs.unregister()
    return outcome


def replay_births(*, strict: bool, tries: int = 1, until_found: bool = False) -> Verdict:
    """Stop the first start, and the first batch, before each operation.

    Args:
        strict: Cut the power where names are strict; if not, end the process there.
        tries: States for each operation.
        until_found: Whether the first violation is enough.
    """
    vfs = RecordingVfs()
    outcome = Verdict()
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="leasehold-cut-"))
    rng = random.Random(0)
    try:
        record = Workload(0, 1).record()
        for until in range(len(record) + 1):
            for _ in range(tries):
                damage = rng.choice(DAMAGES) if strict else "all"
                found = recovered(crash(record, until, damage, rng, strict=strict), folder)
                what = record[until] if until < len(record) else None
                where = f"{what.kind} {what.path}, {damage}" if what else "at the end"
                outcome.judge(record, until, found, where)
                if until_found and outcome.violations:
                    return outcome
    finally:
        shutil.rmtree(folder)
        vfs.unregister()
    return outcome


def frequent_checkpoints(monkeypatch: Any, *, synchronous: int = 2) -> None:
    """Make checkpoints part of short workloads, and choose how often SQLite syncs."""
    pragmas = connection._PRAGMAS | {"wal_autocheckpoint": 20, "synchronous": synchronous}
    monkeypatch.setattr(connection, "_PRAGMAS", pragmas)
