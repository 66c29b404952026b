"""Contract: purges and redrives, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.admin import JobKind, JobState
from leasehold.domain.errors import JobNotFound, LeaseLost, QueueNotFound
from leasehold.domain.filters import MessageFilter
from leasehold.domain.model import NEVER_MS, Lease, MessageState, Outcome
from leasehold.domain.queue_settings import FailurePolicy

from .conftest import ACCOUNT, POISON, QUEUE, STEPS, Asker

PURGE, REDRIVE = JobKind.PURGE, JobKind.REDRIVE
WEEK_S = 7 * 86_400


def figures(job: o.Job) -> tuple[str, int, int]:
    """Return the state of a job and how many it has found and moved."""
    return str(job.state), job.matched, job.moved


def put_many(asker: Asker, number: int, **fields: Any) -> list[Lease]:
    """Put messages named by their number."""
    return list(asker.batch(*(asker.put_command(f"{n}", **fields) for n in range(number))))  # type: ignore[arg-type]


def bury_many(asker: Asker, number: int, queue: str = QUEUE) -> list[Lease]:
    """Put as many into the poison queue."""
    return [asker.bury(f"bad{index}", queue) for index in range(number)]


# --- how a job goes on -------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("kind", [PURGE, REDRIVE])
def test_a_job_goes_on_by_steps_until_it_is_done(asker: Asker, kind: JobKind, limit: int) -> None:
    """Each step moves no more than its limit, and the figures say how far it is."""
    if kind is PURGE:
        put_many(asker, 7)
    else:
        bury_many(asker, 7)
    job = asker.start_job(kind)
    assert (job.state, job.expected, job.moved) == (JobState.RUNNING, 7, 0)
    assert (job.queue, job.account, job.job_id) == (QUEUE, ACCOUNT, "job")
    assert job.created_at_ms == asker.clock.now_ms()
    for _ in range(STEPS):
        asker.clock.advance(s=1)
        before, job = job, asker.step(limit)
        assert job.moved - before.moved <= limit
        assert job.updated_at_ms == asker.clock.now_ms()
        assert asker.ask(o.GetJob(ACCOUNT, "job")) == job
        moved_from = QUEUE if kind is PURGE else POISON
        assert asker.count(moved_from) == 7 - job.moved
        if job.state is JobState.DONE:
            break
    assert figures(job) == ("done", 7, 7)
    assert job.examined == 7
    assert asker.step(limit) == job


@pytest.mark.parametrize("kind", [PURGE, REDRIVE])
def test_a_dry_run_only_counts(asker: Asker, kind: JobKind) -> None:
    """It finds what the job would move, and moves nothing."""
    put_many(asker, 3)
    bury_many(asker, 4)
    before = asker.inspect().messages
    job = asker.run_job(kind, dry_run=True, canary=1)
    assert figures(job) == ("done", 3 if kind is PURGE else 4, 0)
    assert asker.inspect().messages == before


@pytest.mark.parametrize("kind", [PURGE, REDRIVE])
def test_a_job_can_be_stopped(asker: Asker, kind: JobKind) -> None:
    """What it has done is done; it does no more, and says who stopped it."""
    put_many(asker, 5)
    bury_many(asker, 5)
    asker.start_job(kind)
    asker.step(limit=2)
    asker.clock.advance(s=1)
    job = asker.ask(o.StopJob(ACCOUNT, "job"))
    assert figures(job) == ("stopped", 2, 2)
    assert job.note
    assert asker.ask(o.StopJob(ACCOUNT, "job")) == job
    assert asker.step() == job
    left = (3, 5) if kind is PURGE else (7, 3)
    assert (asker.count(), asker.count(POISON)) == left


@pytest.mark.parametrize("kind", [PURGE, REDRIVE])
def test_a_job_leaves_alone_what_comes_after_it(asker: Asker, kind: JobKind) -> None:
    """A queue that is filled faster than a job goes does not keep it busy for ever."""
    target = "elsewhere"
    asker.create(target)
    plan: dict[str, Any] = {"target": target} if kind is REDRIVE else {}
    fill = put_many if kind is PURGE else bury_many
    fill(asker, 4)
    asker.start_job(kind, **plan)
    for _ in range(STEPS):
        job = asker.step(limit=1)
        if job.state is JobState.DONE:
            break
        fill(asker, 3)
    assert figures(job) == ("done", 4, 4)
    assert asker.count(QUEUE if kind is PURGE else POISON) >= 9


@pytest.mark.parametrize("kind", [PURGE, REDRIVE])
def test_a_job_on_an_empty_queue_is_done_at_once(asker: Asker, kind: JobKind) -> None:
    """One step sees that there is nothing."""
    assert asker.start_job(kind).expected == 0
    assert figures(asker.step()) == ("done", 0, 0)


@pytest.mark.parametrize("kind", [PURGE, REDRIVE])
@pytest.mark.parametrize("again", [False, True])
def test_a_job_ends_with_its_queue(asker: Asker, kind: JobKind, again: bool) -> None:
    """A deleted queue stops it; a new one of that name has nothing that it would touch."""
    put_many(asker, 3)
    bury_many(asker, 3)
    asker.start_job(kind)
    asker.step(limit=1)
    asker.ask(c.DeleteQueue(ACCOUNT, QUEUE))
    if again:
        asker.create()
        put_many(asker, 3)
        if kind is PURGE:
            assert figures(asker.step()) == ("done", 1, 1)
            assert asker.count() == 3
        return
    job = asker.step()
    assert figures(job) == ("stopped", 1, 1)
    assert job.note == "The queue was deleted."


def test_jobs_are_listed_the_newest_first(asker: Asker) -> None:
    """Of an account or of a queue; without an account those that run."""
    asker.create("audio")
    asker.create("videos", account="other")
    for index, queue in enumerate(("videos", "audio", "videos")):
        asker.start_job(PURGE, f"j{index}", queue=queue)
        asker.clock.advance(s=1)
    asker.ask(o.StartJob("other", "videos", "j3", o.JobPlan(kind=PURGE)))
    asker.step(job_id="j2")

    def listed(account: str | None, queue: str | None = None, limit: int = 100) -> list[str]:
        return [job.job_id for job in asker.ask(o.ListJobs(account, queue, limit))]

    assert listed(ACCOUNT) == ["j2", "j1", "j0"]
    assert listed(ACCOUNT, limit=2) == ["j2", "j1"]
    assert listed(ACCOUNT, "videos") == ["j2", "j0"]
    assert listed("other") == ["j3"]
    assert listed("nobody") == []
    assert listed(None) == ["j3", "j1", "j0"]


def test_jobs_of_others_and_unknown_ones_are_not_found(asker: Asker) -> None:
    """A job belongs to its account."""
    asker.start_job(PURGE)
    for command in (
        o.GetJob("other", "job"),
        o.StopJob("other", "job"),
        o.GetJob(ACCOUNT, "no"),
        o.StopJob(ACCOUNT, "no"),
        o.StepJob("no", 1),
    ):
        assert isinstance(asker.ask(command), JobNotFound)
    missing = o.StartJob(ACCOUNT, "missing", "x", o.JobPlan(kind=PURGE))
    assert isinstance(asker.ask(missing), QueueNotFound)
    assert isinstance(asker.ask(o.GetJob(ACCOUNT, "x")), JobNotFound)
    assert asker.step().state is JobState.DONE


def test_jobs_that_are_over_are_forgotten_after_a_week(asker: Asker) -> None:
    """When the next one begins; one that runs never is."""
    asker.start_job(PURGE, "runs")
    asker.run_job(PURGE, job_id="over")
    asker.clock.advance(ms=WEEK_S * 1000 - 1)
    asker.start_job(PURGE, "next")
    assert asker.ask(o.GetJob(ACCOUNT, "over")).state is JobState.DONE
    asker.clock.advance(ms=1)
    asker.start_job(PURGE, "after")
    assert isinstance(asker.ask(o.GetJob(ACCOUNT, "over")), JobNotFound)
    assert asker.ask(o.GetJob(ACCOUNT, "runs")).state is JobState.RUNNING


# --- purge -------------------------------------------------------------------------------------


def test_a_purge_takes_what_its_filter_means_and_nothing_else(asker: Asker) -> None:
    """By state, by age and by body; other queues are not touched."""
    asker.create("other")
    put_many(asker, 3, queue="other")
    old = put_many(asker, 4)
    asker.clock.advance(s=60)
    asker.put("young 1")
    asker.put("delayed 1", delay_s=600)
    job = asker.run_job(PURGE, filter=MessageFilter(min_age_s=60, text="1"))
    assert figures(job) == ("done", 1, 1)
    assert sorted(asker.bodies()) == [b"0", b"2", b"3", b"young 1"]
    job = asker.run_job(
        PURGE, job_id="2", filter=MessageFilter(states=frozenset({MessageState.DELAYED}))
    )
    assert figures(job) == ("done", 1, 1)
    assert asker.split() == (4, 0, 0, 0, 0)
    assert asker.count("other") == 3
    assert asker.complete(old[1]) != c.DONE
    assert asker.complete(old[0]) == c.DONE


def test_a_purge_ends_leases_and_spares_poison(asker: Asker) -> None:
    """Without a filter it takes all that is in the queue, whatever its state."""
    asker.bury("bad")
    put_many(asker, 3, priority=2)
    put_many(asker, 2, delay_s=60)
    asker.put(time_to_live_s=1)
    lease = asker.receive_one()
    asker.clock.advance(s=1)
    assert figures(asker.run_job(PURGE, limit=2)) == ("done", 6, 6)
    assert not isinstance(asker.complete(lease), c.Done)
    assert asker.split() == (0, 0, 0, 0, 1)
    assert asker.count() == 0
    assert asker.ask(c.RetireExpired(10)) == c.Swept(0)


def test_a_purge_takes_poison_when_it_is_asked_for(asker: Asker) -> None:
    """Only what failed in this queue, though others share the poison queue."""
    asker.create("audio")
    for queue in (QUEUE, "audio"):
        asker.govern(queue, failure_policy=FailurePolicy(poison_queue="aside"))
        bury_many(asker, 3, queue)
    put_many(asker, 2)
    job = asker.run_job(PURGE, filter=MessageFilter(states=frozenset({MessageState.POISONED})))
    assert figures(job) == ("done", 3, 3)
    assert asker.count() == 2
    assert len(asker.inspected(queue="audio", states=["poisoned"])) == 3


def test_a_purge_does_not_count_what_the_sweep_has_set_aside(asker: Asker) -> None:
    """Retired messages are gone already; expired ones that are not are purged."""
    put_many(asker, 2, time_to_live_s=5)
    asker.clock.advance(s=5)
    asker.ask(c.RetireExpired(1))
    assert figures(asker.run_job(PURGE)) == ("done", 1, 1)


# --- redrive -----------------------------------------------------------------------------------


def test_a_redriven_message_keeps_its_id_and_history(asker: Asker) -> None:
    """Body, properties and attempts come with it; its budgets and time to live begin anew."""
    asker.limit_failures(max_failures=2, poison_time_to_live_s=WEEK_S)
    put = asker.put("body", priority=3, time_to_live_s=1000)
    asker.clock.advance(s=600)
    for index in range(2):
        asker.fail(asker.receive_one(), f"error {index}")
    asker.clock.advance(s=3600)
    (poisoned,) = asker.inspect(states=["poisoned"]).messages

    assert figures(asker.run_job(REDRIVE)) == ("done", 1, 1)
    (seen,) = asker.inspect().messages
    now_ms = asker.clock.now_ms()
    assert (seen.queue, seen.state) == (QUEUE, MessageState.VISIBLE)
    message, before = seen.message, poisoned.message
    assert message.message_id == put.message.message_id
    assert (message.body, message.priority) == (b"body", 3)
    assert message.inserted_at_ms == put.message.inserted_at_ms
    assert message.detail.attempts == before.detail.attempts
    assert len(message.detail.attempts) == 2
    assert (message.visible_at_ms, message.expires_at_ms) == (now_ms, now_ms + 1_000_000)
    assert message.dequeue_count == 0
    assert (message.detail.failures, message.detail.redriven) == (0, 1)
    assert message.detail.poisoning is None
    assert asker.split() == (1, 0, 0, 0, 0)


def test_a_redriven_message_gets_all_its_tries_again(asker: Asker) -> None:
    """And when they are used up, it is poison again and can be redriven again."""
    asker.limit_failures(max_failures=2)
    asker.put()
    for round_number in range(3):
        assert asker.fail(asker.receive_one()).poisoned is None
        assert asker.fail(asker.receive_one()).poisoned == "max_failures"
        asker.run_job(REDRIVE, job_id=f"{round_number}")
    message = asker.inspect().messages[0].message
    assert message.detail.redriven == 3
    assert [attempt.number for attempt in message.detail.attempts] == [1, 2] * 3


def test_a_redriven_message_that_never_expired_never_does(asker: Asker) -> None:
    """It has the life that it was put with, not that of the poison queue."""
    asker.limit_failures(poison_time_to_live_s=60)
    asker.bury("bad", time_to_live_s=None)
    asker.run_job(REDRIVE)
    assert asker.inspect().messages[0].message.expires_at_ms == NEVER_MS


def test_a_redrive_takes_from_the_holder(asker: Asker) -> None:
    """Somebody who works on the poison queue loses the message to it."""
    asker.bury("bad")
    lease = asker.receive_one(queue=POISON)
    asker.run_job(REDRIVE)
    refused = asker.ask(asker.complete_command(lease, QUEUE))
    assert isinstance(refused, LeaseLost)
    assert asker.split() == (1, 0, 0, 0, 0)


def test_a_redrive_goes_by_its_filter(asker: Asker) -> None:
    """By reason and by what the error said; the rest stays poison."""
    asker.limit_failures(max_failures=1)
    asker.bury("buried")
    for text in ("timed out", "no such codec", "timed out again"):
        asker.put(text)
        asker.fail(asker.receive_one(), text)
    job = asker.run_job(REDRIVE, filter=MessageFilter(reason="max_failures", error="timed"))
    assert figures(job) == ("done", 2, 2)
    assert job.examined == 4
    assert asker.bodies() == [b"timed out", b"timed out again"]
    assert [body for body, _ in asker.inspected(states=["poisoned"])] == [
        b"buried",
        b"no such codec",
    ]


def test_a_redrive_takes_back_only_what_came_from_its_queue(asker: Asker) -> None:
    """Two queues may share a poison queue."""
    asker.create("audio")
    for queue in (QUEUE, "audio"):
        asker.govern(queue, failure_policy=FailurePolicy(poison_queue="aside"))
        bury_many(asker, 2, queue)
    assert figures(asker.run_job(REDRIVE)) == ("done", 2, 2)
    assert (asker.count(), asker.count("audio"), asker.count("aside")) == (2, 0, 2)


def test_a_redrive_takes_what_was_sent_to_the_poison_queue(asker: Asker) -> None:
    """What was put there by hand goes to the queue that is asked."""
    asker.bury("bad")
    asker.put("by hand", queue=POISON, time_to_live_s=100)
    assert figures(asker.run_job(REDRIVE)) == ("done", 2, 2)
    assert asker.bodies() == [b"bad", b"by hand"]
    assert asker.inspect().messages[1].message.expires_at_ms == asker.clock.now_ms() + 100_000


def test_a_redrive_can_have_another_target(asker: Asker) -> None:
    """All it moves goes there."""
    asker.create("repair")
    bury_many(asker, 3)
    assert figures(asker.run_job(REDRIVE, target="repair")) == ("done", 3, 3)
    assert asker.count() == 0
    assert asker.bodies() == []
    assert len(asker.received(queue="repair")) == 3


def test_a_redrive_to_nowhere_moves_nothing(asker: Asker) -> None:
    """A message stays poison as long as there is no queue to bring it to."""
    bury_many(asker, 3)
    assert figures(asker.run_job(REDRIVE, target="nowhere")) == ("done", 3, 0)
    assert asker.split() == (0, 0, 0, 0, 3)


def test_a_redrive_passes_over_expired_poison(asker: Asker) -> None:
    """What can no longer be received is not brought back to life."""
    asker.limit_failures(poison_time_to_live_s=10)
    asker.bury("old")
    asker.clock.advance(s=10)
    asker.bury("new")
    assert figures(asker.run_job(REDRIVE)) == ("done", 1, 1)
    assert asker.bodies() == [b"new"]


# --- canaries ----------------------------------------------------------------------------------


def test_canaries_go_first_and_the_others_wait(asker: Asker) -> None:
    """No step moves more until they have been completed."""
    bury_many(asker, 5)
    asker.start_job(REDRIVE, canary=2)
    job = asker.step()
    assert figures(job) == ("canary", 2, 2)
    assert len(job.canaries) == 2
    for _ in range(3):
        assert figures(asker.step()) == ("canary", 2, 2)
    one, two = asker.receive(5, lease_s=600)
    assert figures(asker.step()) == ("canary", 2, 2)
    asker.complete(one)
    assert figures(asker.step()) == ("canary", 2, 2)
    assert asker.split() == (0, 1, 0, 0, 3)
    asker.complete(two)
    assert figures(asker.step()) == ("running", 2, 2)
    assert figures(asker.step()) == ("done", 5, 5)
    assert asker.split() == (3, 0, 0, 0, 0)


def test_a_canary_that_fails_stops_the_job(asker: Asker) -> None:
    """The note names it and why it is poison again; the others are untouched."""
    asker.limit_failures(max_failures=1)
    bury_many(asker, 5)
    before = asker.inspect(states=["poisoned"]).messages[2:]
    asker.start_job(REDRIVE, canary=2)
    asker.step()
    asker.complete(asker.receive_one())
    canary = asker.receive_one()
    asker.fail(canary)
    job = asker.step()
    assert figures(job) == ("stopped", 2, 2)
    assert job.note is not None
    assert canary.message.message_id in job.note
    assert "max_failures" in job.note
    assert asker.step() == job
    assert asker.inspect(states=["poisoned"]).messages[1:] == before
    assert asker.split() == (0, 0, 0, 0, 4)


def test_a_canary_that_fails_but_may_try_again_is_waited_for(asker: Asker) -> None:
    """It has its budget like any other; only poison stops the job."""
    asker.limit_failures(max_failures=2)
    bury_many(asker, 2)
    asker.start_job(REDRIVE, canary=1)
    asker.step()
    assert asker.fail(asker.receive_one()).poisoned is None
    assert figures(asker.step()) == ("canary", 1, 1)
    asker.complete(asker.receive_one())
    asker.step()
    assert figures(asker.step()) == ("done", 2, 2)


def test_canaries_are_as_many_as_there_are(asker: Asker) -> None:
    """A job with fewer messages than canaries waits for all of them, and is done."""
    bury_many(asker, 2)
    asker.start_job(REDRIVE, canary=5)
    assert figures(asker.step(limit=1))[0] == "running"
    assert figures(asker.step()) == ("canary", 2, 2)
    for lease in asker.receive(2):
        asker.complete(lease)
    asker.step()
    assert figures(asker.step()) == ("done", 2, 2)


def test_a_canary_that_was_removed_is_not_waited_for(asker: Asker) -> None:
    """Whether an operator removed it or cleared its queue."""
    bad = bury_many(asker, 4)
    asker.start_job(REDRIVE, canary=2)
    asker.step()
    asker.remove(bad[0])
    assert asker.step().state is JobState.CANARY
    asker.ask(c.Clear(ACCOUNT, QUEUE))
    assert asker.step().state is JobState.RUNNING
    assert figures(asker.step()) == ("done", 4, 4)


def test_a_job_that_waits_for_canaries_can_be_stopped(asker: Asker) -> None:
    """What waits stays where it is."""
    bury_many(asker, 3)
    asker.start_job(REDRIVE, canary=1)
    asker.step()
    assert asker.ask(o.StopJob(ACCOUNT, "job")).state is JobState.STOPPED
    asker.complete(asker.receive_one())
    assert asker.step().state is JobState.STOPPED
    assert asker.counts().poisoned == 2


def test_canaries_in_the_target_are_watched_there(asker: Asker) -> None:
    """A canary that is poison again after another queue had it stops the job as well."""
    asker.create("repair")
    bury_many(asker, 3)
    asker.start_job(REDRIVE, canary=1, target="repair")
    asker.step()
    lease = asker.receive_one(queue="repair")
    asker.release(lease, Outcome.BURIED, queue="repair")
    assert figures(asker.step()) == ("stopped", 1, 1)


def test_jobs_side_by_side(asker: Asker) -> None:
    """Two jobs over the same messages move each message once."""
    bury_many(asker, 10)
    asker.start_job(REDRIVE, "one")
    asker.start_job(REDRIVE, "two")
    moved = 0
    for _ in range(STEPS):
        one, two = asker.step(2, "one"), asker.step(3, "two")
        moved = one.moved + two.moved
        if {one.state, two.state} == {JobState.DONE}:
            break
    assert moved == 10
    assert asker.split() == (10, 0, 0, 0, 0)
