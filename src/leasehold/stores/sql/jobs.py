"""Purges and redrives in a database: each step, and what it moved, is part of one transaction."""

from __future__ import annotations

import json
from typing import Final

from leasehold.domain import commands as c
from leasehold.domain import oversight as o
from leasehold.domain.cursors import read_place
from leasehold.domain.errors import JobNotFound
from leasehold.domain.events import EventType
from leasehold.domain.ids import id_from_blob, row_key_of
from leasehold.domain.jobs import (
    EXPIRED_CANARY,
    JOB_SCAN,
    KEPT_MS,
    after_canaries,
    after_step,
    begin,
    is_over,
    most_to_move,
    stop,
)
from leasehold.domain.matching import matches
from leasehold.domain.types import Message
from leasehold.domain.visibility import after_redrive
from leasehold.stores.plain_json import from_plain, to_plain
from leasehold.stores.sql.catalog import Entry
from leasehold.stores.sql.oversight import OversightVerbs
from leasehold.stores.sql.rows import Kept, message_of, rewrite, uncount
from leasehold.stores.sql.scanning import Step
from leasehold.stores.sql.state import State

BY_PURGE: Final = "purge"


class JobVerbs:
    """Each method carries out one command; refusals are raised."""

    def __init__(self, state: State, oversight: OversightVerbs) -> None:
        self._state = state
        self._scanner = oversight.scanner

    def start(self, command: o.StartJob, now_ms: int) -> c.Result:
        """Begin a job, and forget those that were over long ago."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        redrive = command.plan.kind is o.JobKind.REDRIVE
        source = state.catalog.poison_of(entry) if redrive else entry
        job = begin(
            command,
            expected=source.message_count if source else 0,
            end=state.last_row_key,
            now_ms=now_ms,
        )
        state.cursor.execute(state.sql["forget_jobs"], (now_ms - KEPT_MS,))
        return self._keep(job)

    def step(self, command: o.StepJob, now_ms: int) -> c.Result:
        """Carry a job on."""
        job = self._get(command.job_id)
        if is_over(job):
            return job
        entry = self._state.catalog.find(job.account, job.queue)
        if entry is None:
            return self._keep(stop(job, now_ms, "The queue was deleted."))
        if job.state is o.JobState.CANARY:
            return self._keep(after_canaries(job, self._canaries(job), now_ms))
        return self._keep(self._walk(entry, job, command.limit, now_ms))

    def _canaries(self, job: o.Job) -> dict[str, str | None]:
        """Return the canaries that are not done: why they are poison again, None if not."""
        keys = [row_key_of(message_id) for message_id in job.canaries]
        found: dict[str, str | None] = {}
        for row in self._state.fetch("rows_of_keys", (json.dumps(keys),)):
            if self._state.catalog.of_partition(row[14]) is None:
                continue  # of a queue that was cleared
            if row[-1]:
                found[id_from_blob(row[1])] = EXPIRED_CANARY
                continue
            poisoning = message_of(row).detail.poisoning
            found[id_from_blob(row[1])] = poisoning.reason if poisoning else None
        return {message_id: found[message_id] for message_id in job.canaries if message_id in found}

    def _walk(self, entry: Entry, job: o.Job, limit: int, now_ms: int) -> o.Job:
        plan = job.plan
        examined, matched = 0, 0
        moved: list[str] = []
        limit = most_to_move(job, limit)
        reached = job.cursor
        finished = True
        place = read_place(job.cursor)
        for step in self._scanner.walk(entry, place, plan.filter, now_ms, job.end):
            if step is None:
                finished = False
                break
            if step.seen is not None and not step.retired:
                if matched == limit or examined == JOB_SCAN:
                    finished = False
                    break
                examined += 1
                if matches(step.seen.message, step.seen.state, plan.filter, now_ms):
                    matched += 1
                    if not plan.dry_run and self._move(entry, job, step, now_ms):
                        moved.append(step.seen.message.message_id)
            reached = str(step.place)
        return after_step(
            job,
            cursor=reached,
            examined=examined,
            matched=matched,
            moved=moved,
            finished=finished,
            now_ms=now_ms,
        )

    def _move(self, entry: Entry, job: o.Job, step: Step, now_ms: int) -> bool:
        """Purge or redrive one message; False if there is nowhere to redrive it to."""
        state = self._state
        seen = step.seen
        assert seen is not None
        message: Message = seen.message
        source = state.catalog.poison_of(entry) if step.place.poison else entry
        assert source is not None
        if job.plan.kind is o.JobKind.PURGE:
            state.cursor.execute(state.sql["remove"], (step.place.row_key,))
            uncount(state, source, message.visible_at_ms, message.phase, step.held)
            state.log.add(EventType.REMOVED, source, message, BY_PURGE)
            return True
        poisoning = message.detail.poisoning
        name = job.plan.target or (poisoning.queue if poisoning else job.queue)
        target = state.catalog.find(job.account, name)
        if target is None:
            return False
        redriven = after_redrive(message, now_ms)
        rewrite(state, Kept(source, step.place.row_key, message, step.held), redriven, target)
        state.log.add(EventType.REDRIVEN, source, redriven, None, target.queue.name)
        return True

    def stop(self, command: o.StopJob, now_ms: int) -> c.Result:
        """Stop a job where it is."""
        job = self._get(command.job_id, command.account)
        return job if is_over(job) else self._keep(stop(job, now_ms, "An operator stopped it."))

    def get(self, command: o.GetJob, _now_ms: int) -> c.Result:
        """Look at a job."""
        return self._get(command.job_id, command.account)

    def list(self, command: o.ListJobs, _now_ms: int) -> c.Result:
        """List jobs, the newest first."""
        bounds = (command.account, command.queue, command.limit)
        rows = self._state.fetch("list_jobs", bounds)
        return tuple(from_plain(o.Job, json.loads(content)) for (content,) in rows)

    def _get(self, job_id: str, account: str | None = None) -> o.Job:
        rows = self._state.fetch("get_job", (job_id,))
        if not rows:
            raise JobNotFound
        job = from_plain(o.Job, json.loads(rows[0][0]))
        if account not in {None, job.account}:
            raise JobNotFound
        return job

    def _keep(self, job: o.Job) -> o.Job:
        bounds = (
            job.job_id,
            job.account,
            job.queue,
            is_over(job),
            job.created_at_ms,
            job.updated_at_ms,
            json.dumps(to_plain(job)),
        )
        self._state.cursor.execute(self._state.sql["keep_job"], bounds)
        return job
