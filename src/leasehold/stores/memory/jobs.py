"""Purges and redrives in memory."""

from __future__ import annotations

from leasehold.domain import commands as c
from leasehold.domain import oversight as o
from leasehold.domain.cursors import Place, read_place
from leasehold.domain.errors import JobNotFound
from leasehold.domain.event_log import PURGE
from leasehold.domain.events import EventType
from leasehold.domain.jobs import (
    EXPIRED_CANARY,
    JOB_SCAN,
    after_canaries,
    after_step,
    begin,
    is_kept,
    is_over,
    most_to_move,
    stop,
)
from leasehold.domain.matching import matches
from leasehold.domain.visibility import after_redrive
from leasehold.stores.memory.oversight import OversightVerbs
from leasehold.stores.memory.shelves import Shelf, Shelves


class JobVerbs:
    """Each method carries out one command; refusals are raised."""

    def __init__(self, shelves: Shelves, oversight: OversightVerbs) -> None:
        self._shelves = shelves
        self._oversight = oversight

    def start(self, command: o.StartJob) -> c.Result:
        """Begin a job, and forget those that were over long ago."""
        shelves = self._shelves
        shelf = shelves.get(command.account, command.queue)
        redrive = command.plan.kind is o.JobKind.REDRIVE
        source = shelves.poison_of(shelf) if redrive else shelf
        job = begin(
            command,
            expected=len(source.rows) if source else 0,
            end=shelves.last_row_key,
            now_ms=shelves.now_ms,
        )
        shelves.jobs = {
            job_id: each for job_id, each in shelves.jobs.items() if is_kept(each, shelves.now_ms)
        }
        shelves.jobs[job.job_id] = job
        return job

    def step(self, command: o.StepJob) -> c.Result:
        """Carry a job on."""
        shelves = self._shelves
        job = self._get(command.job_id)
        if is_over(job):
            return job
        shelf = shelves.queues.get((job.account, job.queue))
        if shelf is None:
            job = stop(job, shelves.now_ms, "The queue was deleted.")
        elif job.state is o.JobState.CANARY:
            job = after_canaries(job, self._canaries(job), shelves.now_ms)
        else:
            job = self._walk(shelf, job, command.limit)
        shelves.jobs[job.job_id] = job
        return job

    def _canaries(self, job: o.Job) -> dict[str, str | None]:
        """Return the canaries that are not done: why they are poison again, None if not."""
        states: dict[str, str | None] = {}
        for _, _, message in self._shelves.everything():
            if message.message_id in job.canaries:
                poisoning = message.detail.poisoning
                states[message.message_id] = poisoning.reason if poisoning else None
        for shelf in self._shelves.queues.values():
            for message in shelf.retired.values():
                if message.message_id in job.canaries:
                    states[message.message_id] = EXPIRED_CANARY
        return states

    def _walk(self, shelf: Shelf, job: o.Job, limit: int) -> o.Job:
        plan = job.plan
        examined, matched = 0, 0
        moved: list[str] = []
        limit = most_to_move(job, limit)
        place = read_place(job.cursor)
        finished = True
        for at, seen in list(self._oversight.walk(shelf, place, plan.filter, apart=False)):
            if at.row_key > job.end:
                continue
            if matched == limit or examined == JOB_SCAN:
                finished = False
                break
            place = at
            examined += 1
            if matches(seen.message, seen.state, plan.filter, self._shelves.now_ms):
                matched += 1
                if not plan.dry_run and self._move(shelf, job, at, seen):
                    moved.append(seen.message.message_id)
        return after_step(
            job,
            cursor=str(place),
            examined=examined,
            matched=matched,
            moved=moved,
            finished=finished,
            now_ms=self._shelves.now_ms,
        )

    def _move(self, shelf: Shelf, job: o.Job, at: Place, seen: o.Seen) -> bool:
        """Purge or redrive one message; False if there is nowhere to redrive it to."""
        shelves = self._shelves
        source = shelves.poison_of(shelf) if at.poison else shelf
        assert source is not None
        if job.plan.kind is o.JobKind.PURGE:
            shelves.take(source, at.row_key)
            shelves.note(EventType.REMOVED, source, seen.message, PURGE)
            return True
        poisoning = seen.message.detail.poisoning
        name = job.plan.target or (poisoning.queue if poisoning else job.queue)
        target = shelves.queues.get((job.account, name))
        if target is None:
            return False
        shelves.take(source, at.row_key)
        redriven = after_redrive(seen.message, shelves.now_ms)
        target.rows[at.row_key] = redriven
        shelves.note(EventType.REDRIVEN, source, redriven, target=target.queue.name)
        return True

    def stop(self, command: o.StopJob) -> c.Result:
        """Stop a job where it is."""
        job = self._get(command.job_id, command.account)
        if not is_over(job):
            job = stop(job, self._shelves.now_ms, "An operator stopped it.")
            self._shelves.jobs[job.job_id] = job
        return job

    def get(self, command: o.GetJob) -> c.Result:
        """Look at a job."""
        return self._get(command.job_id, command.account)

    def list(self, command: o.ListJobs) -> c.Result:
        """List jobs, the newest first."""
        found = [
            job
            for job in self._shelves.jobs.values()
            if (job.account == command.account if command.account else not is_over(job))
            and command.queue in {None, job.queue}
        ]
        found.sort(key=lambda job: (-job.created_at_ms, job.job_id))
        return tuple(found[: command.limit])

    def _get(self, job_id: str, account: str | None = None) -> o.Job:
        job = self._shelves.jobs.get(job_id)
        if job is None or account not in {None, job.account}:
            raise JobNotFound
        return job
