"""The load on queues in PostgreSQL: whole batches, sent, received and deleted by their ids.

It speaks libpq's own calls with prepared statements and parameters made beforehand, one thread to
a connection (libpq waits without the interpreter's lock), and looks at no column but the id: what
is measured is PostgreSQL and not its driver.
"""

from __future__ import annotations

import resource
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns
from typing import Final

import psycopg
from psycopg.pq import ExecStatus, abc

from benchmarks.load.dialects import DELETE, GET, LEASE_S, PUT, VERBS, make_body
from benchmarks.load.job import Job
from benchmarks.load.process import ServerProcesses
from benchmarks.load.workloads import LoadFailed
from benchmarks.records import LIFECYCLE, Latency, Measured, Phase

_TEXT: Final = 25
_JSONB: Final = 3802
"""Types of PostgreSQL by number, as in its catalogue ``pg_type``."""
_BINARY: Final = 1
_AS_TEXT: Final = 0
_DRAIN: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One way to keep a queue in PostgreSQL; the first column that it receives is the id."""

    create: str
    send: str
    """Takes an array of bodies."""
    receive: str
    """Takes the length of the lease in seconds and the number of messages."""
    delete: str
    """Takes an array of ids; returns a row for each message deleted."""
    table: str
    element: int
    """Type of a body."""

    def bodies(self, body: bytes, count: int) -> bytes:
        """Return an array of *count* bodies, in PostgreSQL's binary format."""
        # A jsonb travels as one byte, the version of its format, and its text.
        item = b'\x01"' + body + b'"' if self.element == _JSONB else body
        head = struct.pack("!iiIii", 1, 0, self.element, count, 1)
        return head + (struct.pack("!i", len(item)) + item) * count


PGMQ: Final = Queue(
    create="SELECT pgmq.create('bench')",
    send="SELECT pgmq.send_batch('bench', $1::jsonb[])",
    receive="SELECT * FROM pgmq.read('bench', $1::integer, $2::integer)",
    delete="SELECT pgmq.delete('bench', $1::bigint[])",
    table="pgmq.q_bench",
    element=_JSONB,
)
SKIP_LOCKED: Final = Queue(
    create="""
        CREATE TABLE IF NOT EXISTS bench (
            id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
            visible_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            deliveries integer NOT NULL DEFAULT 0,
            sent_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            body text NOT NULL
        );
        CREATE INDEX IF NOT EXISTS bench_visible_at ON bench (visible_at)
    """,
    send="INSERT INTO bench (body) SELECT unnest($1::text[]) RETURNING id",
    receive="""
        WITH claimed AS (
            SELECT id FROM bench WHERE visible_at <= clock_timestamp()
            ORDER BY id LIMIT $2::integer FOR UPDATE SKIP LOCKED
        )
        UPDATE bench SET
            visible_at = clock_timestamp() + make_interval(secs => $1::integer),
            deliveries = deliveries + 1
        FROM claimed WHERE bench.id = claimed.id
        RETURNING bench.*
    """,
    delete="DELETE FROM bench WHERE id = ANY($1::bigint[]) RETURNING id",
    table="bench",
    element=_TEXT,
)
QUEUES: Final = {"pgmq": PGMQ, "skip-locked": SKIP_LOCKED}


class Client:
    """One connection with its statements prepared; each statement is a transaction."""

    def __init__(self, job: Job, queue: Queue) -> None:
        self._link = psycopg.connect(job.conninfo, autocommit=True)
        self._libpq: abc.PGconn = self._link.pgconn
        for name, text in zip(VERBS, (queue.send, queue.receive, queue.delete), strict=True):
            done = self._libpq.prepare(name.encode(), text.encode())
            if done.status != ExecStatus.COMMAND_OK:
                raise LoadFailed(f"{name} cannot be prepared: {done.get_error_message()}")
        self._batch = job.batch
        self._bodies = [queue.bodies(make_body(job.body_bytes), job.batch)]
        self._limits = _limits(job.batch)
        self.latencies: tuple[list[int], list[int], list[int]] = ([], [], [])
        self.cycles: list[int] = []
        self.completed = 0
        self.empty = 0

    def cycle(self) -> None:
        """Send a batch, receive one, delete that one."""
        began = perf_counter_ns()
        sent = self._run(PUT, self._bodies, _BINARY).ntuples
        if sent != self._batch:
            raise LoadFailed(f"{sent} of {self._batch} messages were sent")
        while not (ids := self._receive(self._limits)):
            self.empty += 1
        self._delete(ids)
        self.cycles.append(perf_counter_ns() - began)

    def drain(self) -> None:
        """Receive and delete whatever is there."""
        limits = _limits(_DRAIN)
        while ids := self._receive(limits):
            self._delete(ids)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _receive(self, limits: Sequence[bytes]) -> list[bytes]:
        found = self._run(GET, limits, _AS_TEXT)
        return [found.get_value(row, 0) or b"" for row in range(found.ntuples)]

    def _delete(self, ids: list[bytes]) -> None:
        deleted = self._run(DELETE, [b"{" + b",".join(ids) + b"}"], _AS_TEXT).ntuples
        if deleted != len(ids):
            raise LoadFailed(f"{deleted} of {len(ids)} messages were deleted")
        self.completed += deleted

    def _run(self, verb: int, values: Sequence[bytes], form: int) -> abc.PGresult:
        began = perf_counter_ns()
        found = self._libpq.exec_prepared(VERBS[verb].encode(), values, [form] * len(values))
        self.latencies[verb].append(perf_counter_ns() - began)
        if found.status != ExecStatus.TUPLES_OK:
            raise LoadFailed(f"unexpected answer to {VERBS[verb]}: {found.get_error_message()}")
        return found


def run(job: Job) -> Measured:
    """Measure whole batches on ``job.connections`` connections.

    Raises:
        LoadFailed: PostgreSQL refused a statement, or messages are left over or missing.
    """
    queue = QUEUES[job.dialect]
    try:
        with psycopg.connect(job.conninfo, autocommit=True) as link:
            link.execute(queue.create)
            before = _count(link, queue)
            if job.warmup_s:
                _measure(job, queue, job.warmup_s)
            # Each round begins on a table without dead rows, and with statistics.
            link.execute(f"VACUUM ANALYZE {queue.table}")
            link.execute("CHECKPOINT")
            phase = _measure(job, queue, job.duration_s)
            after = _count(link, queue)
    except psycopg.Error as error:
        raise LoadFailed(f"PostgreSQL: {error}") from error
    if after != before:
        raise LoadFailed(f"{before} messages should be waiting, and {after} are")
    # Its processes share most of their memory, so a sum of them says nothing.
    return Measured(phases=(phase,), waiting_before=before, waiting_after=after, memory=None)


def _count(link: psycopg.Connection[tuple[int]], queue: Queue) -> int:
    row = link.execute(f"SELECT count(*) FROM {queue.table}").fetchone()
    assert row is not None
    return row[0]


def _measure(job: Job, queue: Queue, duration_s: float) -> Phase:
    clients = [Client(job, queue) for _ in range(job.connections)]
    # PostgreSQL's first process and its children, among them the backends of these connections.
    server = ServerProcesses(job.server_pids, leave_out="autovacuum worker")
    server_s, own, began = server.cpu_s(), _own_usage(), perf_counter()
    _work(clients, duration_s)
    seconds = perf_counter() - began
    user_s, kernel_s = (end - start for end, start in zip(_own_usage(), own, strict=True))
    server_s = server.cpu_s() - server_s
    completed = sum(client.completed for client in clients)
    taken = [[one for client in clients for one in client.latencies[verb]] for verb in range(3)]
    taken.append([one for client in clients for one in client.cycles])
    clients[0].drain()
    for client in clients:
        client.close()
    return Phase(
        name=LIFECYCLE,
        operations=completed,
        requests=sum(map(len, taken[:-1])),
        seconds=round(seconds, 6),
        latencies={
            verb: Latency.of(each) for verb, each in zip((*VERBS, LIFECYCLE), taken, strict=True)
        },
        server_cpu_s=round(server_s, 6),
        generator_cpu_s=round(user_s + kernel_s, 6),
        generator_kernel_s=round(kernel_s, 6),
        empty_gets=sum(client.empty for client in clients),
    )


def _work(clients: list[Client], duration_s: float) -> None:
    """Let each client go on for so long, in a thread of its own.

    Raises:
        LoadFailed: One of them failed.
    """
    failures: list[Exception] = []
    stopping = threading.Event()

    def work(client: Client) -> None:
        try:
            client.cycle()
            while not stopping.is_set():
                client.cycle()
        except Exception as error:  # noqa: BLE001 - it is raised again by the thread that waits
            failures.append(error)
            stopping.set()

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    stopping.wait(duration_s)
    stopping.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _limits(count: int) -> list[bytes]:
    return [str(LEASE_S).encode(), str(count).encode()]


def _own_usage() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime
