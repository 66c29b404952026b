"""Contract: what operators change about many messages, and who did what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain import sessions as s
from leasehold.domain import transactions as sg
from leasehold.domain.admin import JobChange, JobKind
from leasehold.domain.errors import MessageNotLeased, SessionNotFound, VisibilityPastExpiry
from leasehold.domain.events import Event, EventType
from leasehold.domain.filters import MessageFilter
from leasehold.domain.model import NEVER_MS, AccessPolicy, MessageState
from leasehold.domain.queue_settings import Adapted, Adaptive, QueueSettings

from .conftest import ACCOUNT, POISON, QUEUE, STREAM, Asker

ANA = "console:ana"


def figures(job: o.Job) -> tuple[str, int, int]:
    """Return the state of a job and how many it has found and moved."""
    return str(job.state), job.matched, job.moved


def told(events: list[Event]) -> list[tuple[str, str | None, str | None]]:
    """Return types, reasons and actors."""
    return [(event.type.name, event.reason, event.actor) for event in events]


# --- jobs --------------------------------------------------------------------------------------


def test_amend_what_waits(asker: Asker) -> None:
    """A job changes what no worker has, and what is leased only by force."""
    for body in ("a", "b", "c"):
        asker.put(body)
    leased = asker.receive_one()
    change = JobChange(delay_s=60, priority=2)
    assert figures(asker.run_job(JobKind.AMEND, change=change, dry_run=True)) == ("done", 2, 0)
    assert figures(asker.run_job(JobKind.AMEND, job_id="j2", change=change)) == ("done", 2, 2)
    seen = asker.inspect().messages
    assert [each.state for each in seen].count(MessageState.DELAYED) == 2
    assert sorted(each.message.priority for each in seen) == [2, 2, 8]
    assert asker.find(leased).state is MessageState.LEASED
    forced = JobChange(priority=1, force=True)
    assert figures(asker.run_job(JobKind.AMEND, job_id="j3", change=forced)) == ("done", 3, 3)
    assert asker.find(leased).state is MessageState.VISIBLE
    assert asker.complete(leased).__class__.__name__ == "LeaseLost"


def test_amend_what_is_poisoned(asker: Asker) -> None:
    """Poisoned messages are changed where the filter asks for them, and stay where they are."""
    asker.put("good")
    asker.bury("bad")
    poisoned = MessageFilter(states=frozenset({MessageState.POISONED}))
    change = JobChange(priority=1)
    assert asker.run_job(JobKind.AMEND, filter=poisoned, change=change).moved == 1
    assert asker.count(POISON) == 1
    by_state = {each.state: each.message.priority for each in asker.inspect().messages}
    assert by_state == {MessageState.VISIBLE: 8, MessageState.POISONED: 1}


def test_what_would_come_back_too_late_stays(asker: Asker) -> None:
    """A message that would expire before it is visible counts as found and not as changed."""
    asker.put("short", time_to_live_s=30)
    asker.put("long")
    job = asker.run_job(JobKind.AMEND, change=JobChange(delay_s=60))
    assert figures(job) == ("done", 2, 1)


def test_take_back_by_holder(asker: Asker) -> None:
    """A job ends the leases of one holder: their receipts are dead."""
    for body in ("a", "b", "c"):
        asker.put(body)
    mine = asker.ask(c.Receive(ACCOUNT, QUEUE, 2, 30, "hung"))
    [other] = asker.ask(c.Receive(ACCOUNT, QUEUE, 1, 30, "fine"))
    change = JobChange(reason="it hangs")
    wanted = MessageFilter(holder="hung")
    after = asker.last_seq()
    assert asker.run_job(JobKind.END_LEASE, filter=wanted, change=change).moved == 2
    assert {asker.complete(each).__class__.__name__ for each in mine} == {"LeaseLost"}
    assert asker.complete(other) == c.DONE
    ended = [each for each in asker.events(after) if each.type is EventType.LEASE_ENDED]
    assert [(each.reason, each.error) for each in ended] == [("operator", "it hangs")] * 2


def test_extend_many(asker: Asker) -> None:
    """Leases get more time, and the receipts of their holders stay good."""
    asker.put("a")
    asker.put("b")
    lease = asker.receive_one(10)
    change = JobChange(visibility_timeout_s=100)
    assert figures(asker.run_job(JobKind.EXTEND_LEASE, change=change)) == ("done", 1, 1)
    asker.clock.advance(s=50)
    assert asker.find(lease).state is MessageState.LEASED
    assert asker.complete(lease) == c.DONE


def test_members_of_claims_are_not_extended(asker: Asker) -> None:
    """Their stream says how long they are hidden."""
    lease = asker.put("a")
    asker.attach()
    asker.claim()
    change = JobChange(visibility_timeout_s=100)
    assert figures(asker.run_job(JobKind.EXTEND_LEASE, change=change)) == ("done", 1, 0)
    command = o.ExtendLease(ACCOUNT, QUEUE, lease.message.message_id, 100)
    assert isinstance(asker.ask(command), MessageNotLeased)


# --- one lease ---------------------------------------------------------------------------------


def test_extend_a_lease(asker: Asker) -> None:
    """The end moves, also to earlier; the receipt stays good, and the event tells who did it."""
    lease = asker.put("a", time_to_live_s=1_000)
    command = o.ExtendLease(ACCOUNT, QUEUE, lease.message.message_id, 100, ANA)
    assert isinstance(asker.ask(command), MessageNotLeased)
    held = asker.receive_one(10)
    after = asker.last_seq()
    seen = asker.ask(command)
    assert seen.message.visible_at_ms == asker.clock.now_ms() + 100_000
    assert seen.state is MessageState.LEASED
    assert told(asker.events(after)) == [("RENEWED", "operator", ANA)]
    past = replace(command, visibility_timeout_s=1_000)
    assert isinstance(asker.ask(past), VisibilityPastExpiry)
    asker.ask(replace(command, visibility_timeout_s=5))
    asker.clock.advance(s=4)
    assert asker.receive() == ()
    assert asker.renew(held, 20).message.visible_at_ms == asker.clock.now_ms() + 20_000


# --- who did it --------------------------------------------------------------------------------


def test_actors_of_messages(asker: Asker) -> None:
    """What is done without a receipt names who asked; what workers do names nobody."""
    after = asker.last_seq()
    first = asker.put("a")
    asker.ask(o.Amend(ACCOUNT, QUEUE, first.message.message_id, priority=1, actor=ANA))
    lease = asker.receive_one()
    asker.ask(s.RequestCancel(ACCOUNT, QUEUE, lease.message.message_id, "why", ANA))
    asker.ask(o.EndLease(ACCOUNT, QUEUE, lease.message.message_id, actor=ANA))
    asker.ask(o.Remove(ACCOUNT, QUEUE, lease.message.message_id, actor=ANA))
    [put] = asker.ask(c.Batch((asker.put_command("b"),), actor=ANA))
    asker.complete(asker.receive_one())
    assert told(asker.events(after)) == [
        ("PUT", None, None),
        ("AMENDED", None, ANA),
        ("RECEIVED", None, None),
        ("CANCEL_ASKED", "why", ANA),
        ("LEASE_ENDED", "operator", ANA),
        ("REMOVED", "operator", ANA),
        ("PUT", None, ANA),
        ("RECEIVED", None, None),
        ("COMPLETED", None, None),
    ]
    assert put.message.body == b"b"


@pytest.mark.parametrize("kind", [JobKind.PURGE, JobKind.AMEND])
def test_actors_of_jobs(asker: Asker, kind: JobKind) -> None:
    """Every step of a job names who started it."""
    for number in range(3):
        asker.put(str(number))
    after = asker.last_seq()
    plan = o.JobPlan(kind=kind, change=JobChange(delay_s=5))
    job = asker.ask(o.StartJob(ACCOUNT, QUEUE, "job", plan, ANA))
    assert job.actor == ANA
    for _ in range(4):
        asker.step(1)
    asker.put("later")
    actors = [event.actor for event in asker.events(after)]
    assert actors == [ANA, ANA, ANA, None]


def test_events_of_settings(asker: Asker) -> None:
    """A change of settings, metadata or policies is an event that says what; none is none."""
    settings = asker.ask(c.GetQueue(ACCOUNT, QUEUE)).queue.settings
    after = asker.last_seq()
    changed = replace(settings, visibility_timeout_s=77, adaptive=Adaptive(floor_s=2, cap_s=90))
    for _ in range(2):
        asker.ask(c.SetQueueSettings(ACCOUNT, QUEUE, changed, ANA))
    again = replace(changed, adaptive=Adaptive(floor_s=3, cap_s=90))
    asker.ask(c.SetQueueSettings(ACCOUNT, QUEUE, again, ANA))
    asker.ask(c.SetQueueMetadata(ACCOUNT, QUEUE, {"team": "secret"}, ANA))
    policy = AccessPolicy(policy_id="p", permission="r")
    asker.ask(c.SetQueuePolicies(ACCOUNT, QUEUE, (policy,), ANA))
    asker.ask(c.SetAdapted(ACCOUNT, QUEUE, Adapted(visibility_timeout_s=9, because="x", at_ms=1)))
    found = told(asker.events(after))
    assert [(kind, actor) for kind, _, actor in found] == [
        *[("QUEUE_UPDATED", ANA)] * 4,
        ("QUEUE_UPDATED", "server"),
    ]
    first = f"visibility_timeout_s: {settings.visibility_timeout_s} -> 77; adaptive: null -> "
    assert (found[0][1] or "").startswith(first)
    assert found[1][1] == "adaptive.floor_s: 2 -> 3"
    assert found[2][1] == "metadata.team"
    assert found[3][1] == "access policies"
    assert '"visibility_timeout_s": 9' in (found[4][1] or "")


def test_events_of_pauses(asker: Asker) -> None:
    """A pause says why and until when, and what ends it is an event of its own."""
    after = asker.last_seq()
    settings = asker.ask(c.GetQueue(ACCOUNT, QUEUE)).queue.settings
    paused = replace(settings, paused_until_ms=NEVER_MS, pause_reason="broken")
    shorter = replace(paused, paused_until_ms=5_000)
    for each in (paused, shorter, settings):
        asker.ask(c.SetQueueSettings(ACCOUNT, QUEUE, each, ANA))
    events = asker.events(after)
    assert told(events) == [
        ("QUEUE_PAUSED", "broken", ANA),
        ("QUEUE_PAUSED", "broken", ANA),
        ("QUEUE_RESUMED", None, ANA),
    ]
    assert [event.visible_at_ms for event in events] == [None, 5_000, None]


def test_turning_the_log_off_is_the_last_event(asker: Asker) -> None:
    """Both ends of the time without a log are in it."""
    settings = asker.ask(c.GetQueue(ACCOUNT, QUEUE)).queue.settings
    after = asker.last_seq()
    silent = replace(settings, event_log=False)
    asker.ask(c.SetQueueSettings(ACCOUNT, QUEUE, silent, ANA))
    asker.ask(c.SetQueueSettings(ACCOUNT, QUEUE, replace(silent, visibility_timeout_s=9), ANA))
    asker.ask(c.SetQueueSettings(ACCOUNT, QUEUE, QueueSettings(), ANA))
    reasons = [event.reason for event in asker.events(after)]
    assert reasons[0] == "event_log: true -> false"
    assert len(reasons) == 2
    assert "event_log: false -> true" in (reasons[1] or "")


def test_actors_of_queues(asker: Asker) -> None:
    """Who makes, empties and deletes a queue is told."""
    after = asker.last_seq()
    asker.ask(c.CreateQueue(ACCOUNT, "new", {}, actor=ANA))
    asker.ask(c.Clear(ACCOUNT, "new", ANA))
    asker.ask(c.DeleteQueue(ACCOUNT, "new", ANA))
    assert told(asker.events(after)) == [
        ("QUEUE_CREATED", None, ANA),
        ("QUEUE_CLEARED", None, ANA),
        ("QUEUE_DELETED", None, ANA),
    ]


def test_actors_of_what_is_given_back_published_and_ended(asker: Asker) -> None:
    """What an operator does by hand to claims, staged messages and sessions is told as well."""
    asker.put("a")
    token = asker.attach().token
    asker.claim(limit=1)
    session = asker.open_session()
    asker.stage("b", name="tuesday")
    asker.stage("c", name="monday")
    after = asker.last_seq()
    asker.ask(cl.GiveBackClaim(ACCOUNT, QUEUE, STREAM, token, 1, ANA))
    asker.ask(sg.Publish(ACCOUNT, "monday", None, ANA))
    asker.ask(sg.Discard(ACCOUNT, "tuesday", None, ANA))
    asker.ask(s.EndSession(ACCOUNT, session.session_id, "by hand", ANA))
    found = {(event.type.name, event.actor) for event in asker.events(after)}
    assert found == {
        ("UNCLAIMED", ANA),
        ("PUBLISHED", ANA),
        ("DISCARDED", ANA),
        ("SESSION_ENDED", ANA),
    }


def test_actors_of_what_leaves_no_event_of_a_message(asker: Asker) -> None:
    """A stream without claims is deleted, a job is stopped: the queue's events tell who did it."""
    asker.put("a")
    asker.attach()
    asker.start_job(o.JobKind.PURGE)
    after = asker.last_seq()
    asker.ask(cl.DeleteStream(ACCOUNT, QUEUE, STREAM, ANA))
    for _ in range(2):  # of what is over already nothing more is told
        asker.ask(o.StopJob(ACCOUNT, "job", ANA))
    assert told(asker.events(after)) == [
        ("QUEUE_UPDATED", f"stream {STREAM} deleted", ANA),
        ("QUEUE_UPDATED", "job job stopped", ANA),
    ]
    asker.attach()
    after = asker.last_seq()
    asker.ask(cl.DeleteStream(ACCOUNT, QUEUE, STREAM))
    assert asker.events(after) == []


# --- from the newest back ----------------------------------------------------------------------


def test_events_from_the_newest_back(asker: Asker) -> None:
    """They are those that are read forwards, the other way round, and of what is asked for."""
    asker.create("other")
    first = asker.put("a")
    asker.put("b", queue="other")
    asker.receive_one()
    everything = asker.events()
    tail = asker.ask(e.TailEvents(ACCOUNT, e.NEWEST))
    assert list(tail.events) == everything[::-1]
    assert tail.next_seq == 0
    assert tail.oldest_at_ms == everything[0].at_ms
    other = asker.ask(e.TailEvents(ACCOUNT, e.NEWEST, "other"))
    assert {event.queue for event in other.events} == {"other"}
    assert [event.type for event in other.events] == [EventType.PUT, EventType.QUEUE_CREATED]
    mine = asker.ask(e.TailEvents(ACCOUNT, e.NEWEST, message_id=first.message.message_id))
    assert [event.type for event in mine.events] == [EventType.RECEIVED, EventType.PUT]
    middle = everything[len(everything) // 2].seq
    part = asker.ask(e.TailEvents(ACCOUNT, middle))
    assert list(part.events) == [each for each in everything if each.seq <= middle][::-1]
    assert asker.ask(e.TailEvents("nobody", e.NEWEST)).events == ()


def test_a_look_back_is_bounded(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends after some batches, and another one goes on where it ended."""
    monkeypatch.setattr(e, "TAIL_BATCHES", 3)
    for number in range(8):
        asker.put(str(number))
    found, seq, looks = [], e.NEWEST, 0
    while seq:
        tail = asker.ask(e.TailEvents(ACCOUNT, seq))
        found += tail.events
        assert tail.next_seq < seq
        seq, looks = tail.next_seq, looks + 1
    assert found == asker.events()[::-1]
    if asker.store.health().kind != "memory":
        assert looks >= 3


def test_what_a_session_holds(asker: Asker) -> None:
    """Each lease with its queue, without its body, and the last sign of life."""
    session = asker.open_session("w1", 100, progress_timeout_s=60)
    for body in ("a", "b"):
        asker.put(body)
    leases = asker.receive_in(session, 2)
    began_ms = asker.clock.now_ms()
    asker.clock.advance(s=5)
    [first, second] = sorted(lease.message.message_id for lease in leases)
    asker.beat(session, progress={second: None})
    held = asker.ask(s.ListLeases(ACCOUNT, session.session_id))
    assert [(each.queue, each.message.message_id, each.message.body) for each in held] == [
        (QUEUE, first, b""),
        (QUEUE, second, b""),
    ]
    assert [each.last_sign_ms - began_ms for each in held] == [0, 5_000]
    assert len(asker.ask(s.ListLeases(ACCOUNT, session.session_id, 1))) == 1
    assert isinstance(asker.ask(s.ListLeases("nobody", session.session_id)), SessionNotFound)
