"""How a purge or a redrive goes on: pure functions from one state of a job to the next.

A job is kept by the store, and each step and what it moved are one transaction: a job that was cut
off goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from leasehold.domain.cursors import BEGINNING, Place
from leasehold.domain.oversight import Job, JobKind, JobState, StartJob
from leasehold.domain.types import MessageState

JOB_SCAN: Final = 1_000
"""Messages that one step may look at, some five milliseconds' worth."""
KEPT_MS: Final = 7 * 86_400_000
"""How long a job that is over can be looked at."""

EXPIRED_CANARY: Final = "it expired before it was completed"

_POISON: Final = Place(poison=True, row_key=0)
_OWN_STATES: Final = frozenset(MessageState) - {MessageState.POISONED}


def begin(command: StartJob, *, expected: int, end: int, now_ms: int) -> Job:
    """Return a job as it starts.

    A redrive takes what is poisoned and nothing else; a purge spares the poison queue unless the
    filter asks for that state.
    """
    plan = command.plan
    states = plan.filter.states
    if plan.kind is JobKind.REDRIVE:
        states = frozenset({MessageState.POISONED})
    elif states is None:
        states = _OWN_STATES
    return Job(
        job_id=command.job_id,
        account=command.account,
        queue=command.queue,
        plan=replace(plan, filter=replace(plan.filter, states=states)),
        state=JobState.RUNNING,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        expected=expected,
        cursor=str(_POISON if plan.kind is JobKind.REDRIVE else BEGINNING),
        end=end,
    )


def is_over(job: Job) -> bool:
    """Tell whether nothing more will happen."""
    return job.state in {JobState.DONE, JobState.STOPPED}


def is_kept(job: Job, now_ms: int) -> bool:
    """Tell whether a job is still to be shown."""
    return not is_over(job) or now_ms - job.updated_at_ms < KEPT_MS


def stop(job: Job, now_ms: int, note: str) -> Job:
    """Return the job stopped where it is."""
    return replace(job, state=JobState.STOPPED, updated_at_ms=now_ms, note=note)


def most_to_move(job: Job, limit: int) -> int:
    """Return how many messages the next step may take, of *limit*."""
    missing = job.plan.canary - job.moved
    return min(limit, missing) if missing > 0 and not job.plan.dry_run else limit


def after_step(  # noqa: PLR0913 - keyword-only: what one step has done
    job: Job,
    *,
    cursor: str,
    examined: int,
    matched: int,
    moved: Sequence[str],
    finished: bool,
    now_ms: int,
) -> Job:
    """Return the job after a step that moved the messages of these ids."""
    canaries = job.canaries
    state = JobState.DONE if finished else JobState.RUNNING
    if job.plan.canary > job.moved and not job.plan.dry_run:
        canaries = (*canaries, *moved)
        if canaries and (finished or len(canaries) >= job.plan.canary):
            state = JobState.CANARY
    return replace(
        job,
        state=state,
        updated_at_ms=now_ms,
        examined=job.examined + examined,
        matched=job.matched + matched,
        moved=job.moved + len(moved),
        cursor=cursor,
        canaries=canaries,
    )


def after_canaries(job: Job, present: Mapping[str, str | None], now_ms: int) -> Job:
    """Return the job after a look at its canaries.

    Args:
        job: The job, in the state CANARY.
        present: The canaries that are not completed: why they failed, None if they are waiting or
            being worked on.
        now_ms: The time, Unix milliseconds.
    """
    for message_id, reason in present.items():
        if reason is not None:
            return stop(job, now_ms, f"The canary {message_id} failed again: {reason}.")
    if present:
        return job
    return replace(job, state=JobState.RUNNING, canaries=(), updated_at_ms=now_ms)
