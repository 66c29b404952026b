"""Purges and redrives, which the server carries on in the background."""

from __future__ import annotations

import os
from typing import Any, Final

import msgspec

from leasehold.domain.jobs import is_over
from leasehold.domain.oversight import GetJob, Job, JobKind, JobPlan, ListJobs, StartJob, StopJob
from leasehold.domain.queue_settings import poison_queue_of
from leasehold.http.messages import Response
from leasehold.http.native import shapes
from leasehold.http.native.call import Call
from leasehold.http.native.filters import filter_of_body
from leasehold.http.native.messages import MAX_WAIT_S
from leasehold.http.native.problems import invalid
from leasehold.http.native.queues import DEFAULT_PAGE, MAX_PAGE
from leasehold.http.native.reading import param_int, queue_name, read_body, within

MAX_CANARY: Final = 1_000
RATES_PER_S: Final = (0.001, 1_000_000)
_ID_BYTES: Final = 12

_PURGE: Final = msgspec.json.Decoder(shapes.PurgeRequest)
_REDRIVE: Final = msgspec.json.Decoder(shapes.RedriveRequest)
_NOTHING: Final = msgspec.json.Decoder(shapes.NoRequest)


def show_job(job: Job) -> dict[str, Any]:
    """Return a job as JSON shows it."""
    return {
        "job_id": job.job_id,
        "queue": job.queue,
        "kind": job.plan.kind,
        "state": job.state,
        "dry_run": job.plan.dry_run,
        "created_at_ms": job.created_at_ms,
        "updated_at_ms": job.updated_at_ms,
        "examined": job.examined,
        "matched": job.matched,
        "moved": job.moved,
        "expected": job.expected,
        "note": job.note,
    }


async def purge(call: Call) -> Response:
    """Remove the messages that a filter means."""
    request = read_body(_PURGE, call)
    plan = JobPlan(
        kind=JobKind.PURGE,
        filter=filter_of_body(request.filter),
        dry_run=bool(request.dry_run),
    )
    return await _start(call, plan, request.wait_s)


async def redrive(call: Call) -> Response:
    """Bring back poisoned messages that a filter means."""
    request = read_body(_REDRIVE, call)
    rate_per_s, canary, target = request.rate_per_s, request.canary or 0, request.target
    if rate_per_s is not None:
        within("$.rate_per_s", rate_per_s, RATES_PER_S)
    within("$.canary", canary, (0, MAX_CANARY))
    if target is not None:
        queue_name("$.target", target)
        queue = call.services.find_queue(call.account, call.queue)
        if queue is not None and target == poison_queue_of(queue.name, queue.settings):
            raise invalid("$.target", "The messages are in this queue already.", value=target)
    plan = JobPlan(
        kind=JobKind.REDRIVE,
        filter=filter_of_body(request.filter),
        dry_run=bool(request.dry_run),
        rate_per_s=rate_per_s,
        canary=canary,
        target=target,
    )
    return await _start(call, plan, request.wait_s)


async def _start(call: Call, plan: JobPlan, wait_s: float | None) -> Response:
    if wait_s is not None:
        within("$.wait_s", wait_s, (0, MAX_WAIT_S))
    command = StartJob(call.account, call.queue, os.urandom(_ID_BYTES).hex(), plan)
    job = await call.services.perform(command)
    assert isinstance(job, Job)
    if wait_s and not is_over(job):
        job = await call.services.wait_for_job(call.account, job.job_id, wait_s)
    place = f"/v1/accounts/{call.account}/jobs/{job.job_id}"
    location = (b"location", place.encode("ascii"))
    return call.reply(show_job(job), 200 if is_over(job) else 202, location)


async def list_jobs(call: Call) -> Response:
    """List jobs, the newest first."""
    limit = param_int(call, "limit", (1, MAX_PAGE)) or DEFAULT_PAGE
    queue = call.params.get("queue") or None
    jobs = await call.services.perform(ListJobs(call.account, queue, limit))
    assert isinstance(jobs, tuple)
    return call.reply({"jobs": [show_job(job) for job in jobs if isinstance(job, Job)]})


async def get(call: Call) -> Response:
    """Look at a job."""
    return _reply_job(call, await call.services.perform(GetJob(call.account, call.item)))


async def stop(call: Call) -> Response:
    """Stop a job where it is."""
    read_body(_NOTHING, call)
    return _reply_job(call, await call.services.perform(StopJob(call.account, call.item)))


def _reply_job(call: Call, job: object) -> Response:
    assert isinstance(job, Job)
    return call.reply(show_job(job))
