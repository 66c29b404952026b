"""Run one job: its JSON on the standard input, the result's JSON on the standard output.

The exit status is 1, with the reason in ``error``, when the server did not answer as it should.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import uvloop

from benchmarks.load import admin, compiled, mns, native, probes
from benchmarks.load.dialects import VERBS, Dialect, make_dialect
from benchmarks.load.job import Job
from benchmarks.load.process import ServerProcesses
from benchmarks.load.workloads import (
    Connection,
    Cycle,
    Deletes,
    Gets,
    LoadFailed,
    Puts,
    Workload,
)
from benchmarks.records import LIFECYCLE, Latency, Measured, Phase
from leasehold.clock import SystemClock

_TICK_S = 5


class Generator:
    """Carries out one job on its connections."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._dialect = _dialect_of(job)
        self._server = ServerProcesses(job.server_pids)
        self._connections: list[Connection] = []
        self._shared: list[bytes] = []

    async def run(self) -> Measured:
        """Measure.

        Raises:
            LoadFailed: A wrong answer, none at all, or messages left over or missing.
        """
        job = self._job
        admin.create_queue(job)
        before = admin.count_messages(job)
        ticking = asyncio.create_task(self._tick())
        gc.disable()  # only flat lists grow here
        try:
            phases = await self._phases()
        except LoadFailed:
            if not job.until_killed:
                raise
            return Measured(phases=(), waiting_before=before, waiting_after=None, memory=None)
        finally:
            ticking.cancel()
        after = admin.count_messages(job)
        added = sum(phase.operations for phase in phases) if job.workload == "fill" else 0
        if before is not None and after != before + added and not job.is_shared:
            raise LoadFailed(f"{before + added} messages should be waiting, and {after} are")
        return Measured(
            phases=phases,
            waiting_before=before,
            waiting_after=after,
            memory=self._server.memory(),
        )

    async def _connect(self) -> None:
        """Open all connections, or those again that an idle time-out has closed."""
        loop = asyncio.get_running_loop()
        live = [connection for connection in self._connections if not connection.closed]
        while len(live) < self._job.connections:
            held = [] if self._dialect.leases_are_bound else self._shared
            connection = Connection(self._dialect, held)
            await loop.create_connection(lambda it=connection: it, "127.0.0.1", self._job.port)  # type: ignore[misc]
            live.append(connection)
        self._connections = live

    async def _tick(self) -> None:
        clock = SystemClock()
        while True:
            self._dialect.tick(clock.now_ms())
            await asyncio.sleep(_TICK_S)

    async def _phases(self) -> tuple[Phase, ...]:
        job, dialect = self._job, self._dialect
        await asyncio.sleep(0)  # the first tick
        if job.workload == "cycle":
            if program := compiled.program() if compiled.can_drive(job) else None:
                return (await asyncio.to_thread(self._compiled, program),)
            if job.warmup_s:
                await self._measure("cycle", Cycle(dialect), job.warmup_s)
            return (await self._measure("cycle", Cycle(dialect), job.duration_s),)
        if job.workload == "batches":
            assert isinstance(dialect, native.Native)
            if job.warmup_s:
                await self._measure_batches(dialect, job.warmup_s)
            return (await self._measure_batches(dialect, job.duration_s),)
        if job.workload == "fill":
            return (await self._measure("put", Puts(dialect, job.count), None),)
        puts = await self._measure("put", Puts(dialect, job.count), job.duration_s)
        gets = await self._measure("get", Gets(dialect, puts.operations, job.batch), None)
        return puts, gets, await self._measure("delete", Deletes(dialect), None)

    def _compiled(self, program: Path) -> Phase:
        job, dialect, cpu_s = self._job, self._dialect, self._server.cpu_s
        if job.warmup_s:
            compiled.cycle(program, job, dialect, job.warmup_s, cpu_s)
        return compiled.cycle(program, job, dialect, job.duration_s, cpu_s)

    async def _measure_batches(self, dialect: native.Native, duration_s: float) -> Phase:
        work = native.Batches(dialect, self._job.batch)
        phase = await self._measure(LIFECYCLE, work, duration_s)
        native.drain(self._job, work.owed)
        return phase

    async def _measure(self, name: str, work: Workload, duration_s: float | None) -> Phase:
        await self._connect()
        server_s, own, began = self._server.cpu_s(), _own_usage(), perf_counter()
        await work.run(self._connections, duration_s, self._job.timeout_s)
        seconds = perf_counter() - began
        user_s, kernel_s = (end - start for end, start in zip(_own_usage(), own, strict=True))
        server_s = self._server.cpu_s() - server_s
        requests = sum(map(len, work.latencies))
        whole = LIFECYCLE if name == LIFECYCLE else "cycle"
        latencies = dict(zip((*VERBS, whole), (*work.latencies, work.cycles), strict=True))
        return Phase(
            name=name,
            operations=work.messages if name in {"get", LIFECYCLE} else requests - work.empty_gets,
            requests=requests,
            seconds=round(seconds, 6),
            latencies={verb: Latency.of(taken) for verb, taken in latencies.items() if taken},
            server_cpu_s=round(server_s, 6),
            generator_cpu_s=round(user_s + kernel_s, 6),
            generator_kernel_s=round(kernel_s, 6),
            empty_gets=work.empty_gets,
        )


def _dialect_of(job: Job) -> Dialect:
    if job.dialect == "native":
        return native.Native(job)
    return mns.Mns(job) if job.dialect == "mns" else make_dialect(job)


def _own_usage() -> tuple[float, float]:
    """Return the CPU seconds this process has used, its own and the kernel's."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def _measure(job: Job) -> Measured:
    """Return what came of *job*."""
    if job.workload in probes.PROBES:
        return probes.run(job)
    if job.conninfo:
        # Its driver is needed for nothing else, and may be missing.
        from benchmarks.load import postgres  # noqa: PLC0415

        return postgres.run(job)
    return uvloop.run(Generator(job).run())


def main() -> int:
    """Run the job on the standard input; return the exit status."""
    job = Job.from_json(sys.stdin.read())
    try:
        measured = _measure(job)
    except (LoadFailed, OSError) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        return 1
    print(json.dumps(asdict(measured)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
