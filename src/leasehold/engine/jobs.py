"""Carries purges and redrives on, step by step, beside everything else.

The store keeps the jobs: those that were running when the server ended go on when it starts. Of
many servers on one store, the one that leads carries on the jobs of all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from leasehold.clock import LoopTimers, Timers
from leasehold.domain import admin as o
from leasehold.domain.admin import is_over
from leasehold.domain.command import Perform
from leasehold.domain.errors import (
    JobNotFound,
    LeaseholdError,
    Stopping,
    StoreFailed,
    Unavailable,
)

STEP_MESSAGES: Final = 250
"""Messages that one step may move, some five milliseconds' worth."""
_RATED_STEPS_PER_S: Final = 10
_CANARY_LOOK_S: Final = 0.5
_RETRY_S: Final = 1.0
_LOOK_S: Final = 0.2
"""Between two looks at a job that another server carries on and that a client here waits for."""
_MOST_TRIES: Final = 10
"""Unexpected errors, one after the other, that stop a job."""

_log = structlog.get_logger(__name__)


class JobRunner:
    """Runs all jobs of one engine.

    Args:
        perform: The engine's.
        sleep: Waits so many seconds; tests pass another.
        timers: What ends waits for a job; None for the loop's.
        leads: Whether this server is the one that carries jobs on.
    """

    def __init__(
        self,
        perform: Perform,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        timers: Timers | None = None,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._perform = perform
        self._sleep = sleep
        self._timers = timers or LoopTimers()
        self._leads = leads
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def resume(self) -> None:
        """Go on with the jobs that are running, and that this server does not carry on yet."""
        if not self._leads():
            return
        try:
            jobs = await self._perform(o.ListJobs(None, limit=100_000))
        except LeaseholdError as error:
            _log.warning("job.not_resumed", reason=str(error))
            return
        for job in jobs:
            self.run(job)

    def run(self, job: o.Job) -> None:
        """Carry a job on in the background, if it is for this server to do."""
        if is_over(job) or job.job_id in self._tasks or not self._leads():
            return
        task = asyncio.create_task(self._run(job), name=f"job-{job.job_id}")
        self._tasks[job.job_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.job_id, None))

    async def wait(self, account: str, job_id: str, wait_s: float) -> o.Job:
        """Return a job once it is over, or as it is after *wait_s* seconds.

        Raises:
            JobNotFound: There is no such job.
        """
        task = self._tasks.get(job_id)
        if task is None and not self._leads():
            await self._watch(account, job_id, wait_s)
        elif task is not None:
            patience = asyncio.get_running_loop().create_future()
            timer = self._timers.call_later(wait_s, patience.cancel)
            try:
                await asyncio.wait([task, patience], return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                patience.cancel()
        return await self._perform(o.GetJob(account, job_id))

    async def _watch(self, account: str, job_id: str, wait_s: float) -> None:
        """Return once a job is over that another server carries on, or after so many seconds."""
        looks = int(wait_s / _LOOK_S)
        for _ in range(looks):
            job = await self._perform(o.GetJob(account, job_id))
            if is_over(job):
                return
            await self._sleep(_LOOK_S)

    async def stop(self) -> None:
        """Let go of all jobs; the store knows how far they are."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: o.Job) -> None:
        unforeseen = 0
        while not is_over(job):
            if not self._leads():
                return  # whoever leads now has found it
            try:
                job = await self._step(job)
                unforeseen = 0
            except (JobNotFound, Stopping, StoreFailed):
                return
            except LeaseholdError as error:  # a full disk, for example: it may pass
                _log.warning("job.delayed", job_id=job.job_id, reason=str(error))
                unforeseen += not isinstance(error, Unavailable)
                if unforeseen == _MOST_TRIES:
                    with contextlib.suppress(LeaseholdError):
                        await self._perform(o.StopJob(job.account, job.job_id))
                    return
                await self._sleep(_RETRY_S)
        _log.info(
            "job.over",
            job_id=job.job_id,
            kind=job.plan.kind.value,
            state=job.state.value,
            matched=job.matched,
            moved=job.moved,
        )

    async def _step(self, job: o.Job) -> o.Job:
        rate_per_s = job.plan.rate_per_s
        limit = STEP_MESSAGES
        if rate_per_s is not None:
            limit = max(1, min(limit, int(rate_per_s / _RATED_STEPS_PER_S)))
        stepped = await self._perform(o.StepJob(job.job_id, limit))
        if stepped.state is o.JobState.CANARY:
            await self._sleep(_CANARY_LOOK_S)
        elif rate_per_s is not None and not is_over(stepped):
            await self._sleep((stepped.moved - job.moved) / rate_per_s)
        else:
            await self._sleep(0)  # others first: a step holds the store for some milliseconds
        return stepped
