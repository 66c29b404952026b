"""A process that sends, receives and completes batches of messages, as a user's program would.

``python -m benchmarks.load.batch_clients`` is told what to do by one line of JSON, answers
``ready`` after the warm-up, begins to measure at the next line, says what it has done, and ends at
the one after that. So many of them measure the same seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from benchmarks.load.dialects import LEASE_S, make_body
from benchmarks.load.job import EMULATOR_ACCOUNT, EMULATOR_KEY, Job
from benchmarks.load.workloads import LoadFailed

QUEUE: Final = "bench"
_CACHE_MIB: Final = 32
_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one process does."""

    kind: str
    """``embedded``: the engine and its SQLite store in this process, one task for each caller.
    ``leasehold``: Leasehold's client over HTTP. ``pgmq``: pgmq's own client for Python.
    ``pgmq-driver``: libpq without a client, which decodes nothing. The last three have a thread and
    a connection for each caller."""
    callers: int
    where: str
    """Folder, base URL, or conninfo."""
    seconds: float
    warmup_s: float
    batch: int = 100
    body_bytes: int = 1024

    def to_json(self) -> str:
        """Return the task as one line of JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Done:
    """What a process has done while it was measured."""

    messages: int
    """That were completed."""
    seconds: float
    cpu_s: float
    """Of the whole process, user and kernel."""


class _Caller(ABC):
    """Has a connection."""

    @abstractmethod
    def cycle(self) -> int:
        """Send a batch, receive one, complete that one; return how many messages were completed."""


class _LeaseholdCaller(_Caller):
    def __init__(self, task: Task) -> None:
        from leasehold.client import Client  # noqa: PLC0415 - each process needs one of them

        client = Client(task.where, EMULATOR_ACCOUNT, key=EMULATOR_KEY, send_key=True)
        self._queue = client.queue(QUEUE)
        self._bodies = [make_body(task.body_bytes).decode()] * task.batch
        self._batch = task.batch

    def cycle(self) -> int:
        sent = self._queue.put_many(self._bodies)
        if any(isinstance(each, Exception) for each in sent):
            raise LoadFailed(f"not all was sent: {sent}")
        while not (
            messages := self._queue.receive(self._batch, visibility_timeout_s=LEASE_S, wait_s=0)
        ):
            pass
        if any(self._queue.complete_many(messages)):
            raise LoadFailed("not all was completed")
        return len(messages)


class _PgmqCaller(_Caller):
    def __init__(self, task: Task) -> None:
        from pgmq import PGMQueue  # noqa: PLC0415 - an optional peer's client

        self._client = PGMQueue(
            conn_string=f"{task.where} password=none", pool_size=1, init_extension=False
        )
        self._messages: list[dict[str, Any]] = [
            {"body": make_body(task.body_bytes).decode()}
        ] * task.batch
        self._batch = task.batch

    def cycle(self) -> int:
        sent = self._client.send_batch(QUEUE, self._messages)
        if len(sent) != self._batch:
            raise LoadFailed(f"{len(sent)} of {self._batch} messages were sent")
        while not (messages := self._client.read_batch(QUEUE, LEASE_S, self._batch)):
            pass
        deleted = self._client.delete_batch(QUEUE, [message.msg_id for message in messages])
        if len(deleted) != len(messages):
            raise LoadFailed(f"{len(deleted)} of {len(messages)} messages were deleted")
        return len(deleted)


class _DriverCaller(_Caller):
    def __init__(self, task: Task) -> None:
        from benchmarks.load.postgres import PGMQ, Client  # noqa: PLC0415 - an optional driver

        job = Job(workload="batches", dialect="pgmq", port=0, conninfo=task.where, batch=task.batch)
        self._client = Client(job, PGMQ)

    def cycle(self) -> int:
        before = self._client.completed
        self._client.cycle()
        return self._client.completed - before


_CALLERS: Final[dict[str, Callable[[Task], _Caller]]] = {
    "leasehold": _LeaseholdCaller,
    "pgmq": _PgmqCaller,
    "pgmq-driver": _DriverCaller,
}


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _await_start() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def _report(done: Done) -> None:
    print(json.dumps(asdict(done)), flush=True)
    sys.stdin.readline()  # whoever measures still has to look at the backends of the connections


def run_threads(task: Task) -> None:
    """Let each caller go on in a thread of its own.

    Raises:
        LoadFailed: One of them failed.
    """
    callers = [_CALLERS[task.kind](task) for _ in range(task.callers)]
    _go_on(callers, task.warmup_s)
    _await_start()
    began, cpu_s = perf_counter(), _cpu_s()
    messages = _go_on(callers, task.seconds)
    _report(Done(messages, perf_counter() - began, _cpu_s() - cpu_s))
    del callers  # a pool that nobody holds closes its connections


def _go_on(callers: list[_Caller], seconds: float) -> int:
    totals = [0] * len(callers)
    failures: list[Exception] = []
    until = perf_counter() + seconds

    def work(number: int) -> None:
        try:
            while perf_counter() < until and not failures:
                totals[number] += callers[number].cycle()
        except Exception as error:  # noqa: BLE001 - it is raised again by the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(callers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise LoadFailed(f"{type(failures[0]).__name__}: {failures[0]}") from failures[0]
    return sum(totals)


async def run_embedded(task: Task) -> None:
    """Open the store and let each caller go on in a task of its own.

    Raises:
        LoadFailed: A message was refused.
    """
    from leasehold.clock import SystemClock  # noqa: PLC0415 - the other processes need none of it
    from leasehold.domain import commands as c  # noqa: PLC0415
    from leasehold.domain.model import ENTROPY_BYTES  # noqa: PLC0415
    from leasehold.engine import Engine, MaintenancePlan  # noqa: PLC0415
    from leasehold.stores.sqlite import SqliteStore  # noqa: PLC0415

    account = EMULATOR_ACCOUNT
    store = SqliteStore(Path(task.where), cache_mib=_CACHE_MIB)
    if not store.health().durable:
        raise LoadFailed("the store does not sync")
    engine = Engine(store, SystemClock(), plan=MaintenancePlan())
    await engine.start()
    await engine.perform(c.CreateQueue(account, QUEUE, {}))
    body = make_body(task.body_bytes)

    async def cycle() -> int:
        drawn = os.urandom(ENTROPY_BYTES * task.batch)
        puts = tuple(
            [
                c.Put(account, QUEUE, body, 0, None, drawn[at : at + ENTROPY_BYTES])
                for at in range(0, len(drawn), ENTROPY_BYTES)
            ]
        )
        sent = await engine.perform(c.Batch(puts))
        if any(isinstance(each, Exception) for each in sent):
            raise LoadFailed("not all was sent")
        leases = await engine.receive(c.Receive(account, QUEUE, task.batch, LEASE_S), _WAIT_S)
        if not leases:
            raise LoadFailed("there was nothing to receive")
        completes = tuple(
            [
                c.Complete(account, QUEUE, lease.message.message_id, lease.receipt)
                for lease in leases
            ]
        )
        done = await engine.perform(c.Batch(completes))
        if any(isinstance(each, Exception) for each in done):
            raise LoadFailed("not all was completed")
        return len(done)

    async def go_on(until: float) -> int:
        messages = 0
        while perf_counter() < until:
            messages += await cycle()
        return messages

    async def all_for(seconds: float) -> int:
        until = perf_counter() + seconds
        return sum(await asyncio.gather(*(go_on(until) for _ in range(task.callers))))

    await all_for(task.warmup_s)
    _await_start()
    began, cpu_s = perf_counter(), _cpu_s()
    messages = await all_for(task.seconds)
    _report(Done(messages, perf_counter() - began, _cpu_s() - cpu_s))
    await engine.stop()


def main() -> None:
    """Do what the first line of the standard input says."""
    task = Task(**json.loads(sys.stdin.readline()))
    if task.kind == "embedded":
        asyncio.run(run_embedded(task))
    else:
        run_threads(task)
    sys.stdout.flush()
    os._exit(0)  # pools and their threads have nothing left to say


if __name__ == "__main__":
    main()
