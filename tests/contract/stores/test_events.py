"""Contract: every change of state is one event, and the events give the live state."""

from __future__ import annotations

import random
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain import transactions as sg
from leasehold.domain.claims import Exemption
from leasehold.domain.events import Event, EventType, Replay
from leasehold.domain.limits import MAX_CLAIM
from leasehold.domain.model import Lease, Outcome, Phase

from .conftest import ACCOUNT, POISON, QUEUE, STREAM, Asker
from .random_work import RandomWork, replayed_and_live


def told(asker: Asker, after_seq: int) -> list[tuple[Any, ...]]:
    """Return type, queue, reason and target of the events since."""
    return [
        (str(event.type.name), event.queue, event.reason, event.target)
        for event in asker.events(after_seq)
    ]


def last_event(asker: Asker) -> Event:
    return asker.events()[-1]


# --- what becomes of messages ------------------------------------------------------------------


def test_what_workers_do(asker: Asker) -> None:
    """Put, received, renewed, given back, lapsed, completed."""
    after = asker.last_seq()
    asker.put()
    lease = asker.renew(asker.receive_one(), 60)
    asker.renew(lease, 0)
    asker.fail(asker.receive_one())
    asker.receive_one(lease_s=1)
    asker.clock.advance(s=1)
    lease = asker.receive_one()
    assert asker.complete(lease) == c.DONE
    assert told(asker, after) == [
        ("PUT", QUEUE, None, None),
        ("RECEIVED", QUEUE, None, None),
        ("RENEWED", QUEUE, None, None),
        ("RELEASED", QUEUE, "returned", None),
        ("RECEIVED", QUEUE, None, None),
        ("RELEASED", QUEUE, "failed", None),
        ("RECEIVED", QUEUE, None, None),
        ("LAPSED", QUEUE, None, None),
        ("RECEIVED", QUEUE, None, None),
        ("COMPLETED", QUEUE, None, None),
    ]
    completed = last_event(asker)
    assert (completed.fence, completed.visible_at_ms) == (
        lease.message.fence,
        lease.message.visible_at_ms,
    )


def test_a_sender_who_moves_the_delay_renews(asker: Asker) -> None:
    """Also to nothing: there was no lease to give back."""
    put = asker.put(delay_s=60)
    after = asker.last_seq()
    asker.renew(asker.renew(put, 5), 0)
    assert told(asker, after) == [("RENEWED", QUEUE, None, None)] * 2
    assert last_event(asker).phase == Phase.WAITING


def test_a_put_that_is_a_duplicate_is_no_event(asker: Asker) -> None:
    """Nothing was put."""
    key = c.Put(ACCOUNT, QUEUE, b"", 0, None, bytes(10)).detail
    command = asker.put_command(detail=type(key)(dedup_key="k"))
    asker.ask(command)
    after = asker.last_seq()
    assert isinstance(asker.ask(command), c.Duplicate)
    assert asker.events(after) == []


def test_poison(asker: Asker) -> None:
    """The event names the queue left, the poison queue, and why; so does the way back."""
    asker.limit_failures(max_failures=1, max_lapses=1)
    after = asker.last_seq()
    asker.put()
    asker.fail(asker.receive_one())
    asker.put()
    asker.receive_one(lease_s=1)
    asker.clock.advance(s=1)
    asker.receive()
    asker.bury("bad")
    events = told(asker, after)
    assert events.count(("QUEUE_CREATED", POISON, None, None)) == 1
    assert [each for each in events if each[0] in {"POISONED", "LAPSED"}] == [
        ("POISONED", QUEUE, "max_failures", POISON),
        ("LAPSED", QUEUE, None, None),
        ("POISONED", QUEUE, "max_lapses", POISON),
        ("POISONED", QUEUE, "buried", POISON),
    ]
    after = asker.last_seq()
    asker.run_job(o.JobKind.REDRIVE)
    assert told(asker, after) == [("REDRIVEN", POISON, None, QUEUE)] * 3


def test_what_operators_do(asker: Asker) -> None:
    """Amended, taken from its holder, removed, purged, asked to stop."""
    puts = [asker.put(f"{number}") for number in range(3)]
    after = asker.last_seq()
    asker.amend(puts[0], delay_s=60)
    asker.receive(1)
    asker.ask(s.RequestCancel(ACCOUNT, QUEUE, puts[1].message.message_id, "stop"))
    asker.end_lease(puts[1], reason="stuck")
    asker.remove(puts[1])
    asker.run_job(o.JobKind.PURGE)
    assert told(asker, after) == [
        ("AMENDED", QUEUE, None, None),
        ("RECEIVED", QUEUE, None, None),
        ("CANCEL_ASKED", QUEUE, "stop", None),
        ("LEASE_ENDED", QUEUE, "operator", None),
        ("REMOVED", QUEUE, "operator", None),
        ("REMOVED", QUEUE, "purge", None),
        ("REMOVED", QUEUE, "purge", None),
    ]


def test_a_complete_that_came_too_late(asker: Asker) -> None:
    """It tells how long the work took: the phase begins with the lapsed lease's start."""
    asker.put()
    start_ms = asker.clock.now_ms()
    late = asker.receive_one(lease_s=10)
    asker.clock.advance(s=15)
    lease = asker.receive_one(lease_s=60)
    asker.clock.advance(s=5)
    after = asker.last_seq()
    asker.complete(late)
    assert told(asker, after) == [("REFUSED", QUEUE, "superseded", None)]
    event = last_event(asker)
    assert (event.at_ms - start_ms, event.since_ms) == (20_000, start_ms)
    assert (event.fence, event.visible_at_ms) == (2, lease.message.visible_at_ms)
    asker.complete(asker.renew(lease, 60))
    after = asker.last_seq()
    asker.complete(late)
    assert asker.events(after) == []


def test_a_complete_after_a_lapse_under_the_strict_rule(asker: Asker) -> None:
    """The lease is still the last one."""
    asker.create_strict()
    asker.put()
    start_ms = asker.clock.now_ms()
    lease = asker.receive_one(lease_s=10)
    asker.clock.advance(s=10)
    after = asker.last_seq()
    asker.complete(lease)
    assert told(asker, after) == [("REFUSED", QUEUE, "lapsed", None)]
    assert last_event(asker).since_ms == start_ms


def test_a_mistake_is_no_event(asker: Asker) -> None:
    """A receipt of another message; renewals and releases that come too late."""
    asker.put()
    asker.put()
    one, other = asker.receive(2, lease_s=1)
    asker.clock.advance(s=1)
    asker.receive(2)
    after = asker.last_seq()
    named = (ACCOUNT, QUEUE, one.message.message_id)
    asker.ask(c.Complete(*named, other.receipt))
    asker.renew(one, 30)
    asker.release(one)
    assert asker.events(after) == []


def test_expiry(asker: Asker) -> None:
    """When the sweep notices; the message is as it was."""
    asker.put(time_to_live_s=5)
    lease = asker.receive_one(lease_s=60)
    asker.clock.advance(s=10)
    after = asker.last_seq()
    asker.ask(c.RetireExpired(10))
    asker.ask(c.RemoveRetired(asker.clock.now_ms(), 10))
    assert told(asker, after) == [("EXPIRED", QUEUE, None, None)]
    event = last_event(asker)
    assert (event.visible_at_ms, event.phase) == (lease.message.visible_at_ms, Phase.LEASED)


def test_queues(empty: Asker) -> None:
    """Created once, cleared, deleted; without a message."""
    empty.create()
    empty.create()
    empty.put()
    empty.ask(c.Clear(ACCOUNT, QUEUE))
    empty.ask(c.DeleteQueue(ACCOUNT, QUEUE))
    assert told(empty, 0) == [
        ("QUEUE_CREATED", QUEUE, None, None),
        ("PUT", QUEUE, None, None),
        ("QUEUE_CLEARED", QUEUE, None, None),
        ("QUEUE_DELETED", QUEUE, None, None),
    ]
    event = last_event(empty)
    assert event == Event(
        event.seq, 0, empty.clock.now_ms(), EventType.QUEUE_DELETED, ACCOUNT, QUEUE
    )


# --- sessions, staging, claims -----------------------------------------------------------------


def test_sessions(asker: Asker) -> None:
    """How they begin and end, and what that does to leases."""
    asker.limit_failures(max_lapses=1)
    for number in range(4):
        asker.put(f"{number}")
    after = asker.last_seq()
    lost = asker.open_session("w1", 10)
    stuck = asker.open_session("w2", 3_600, progress_timeout_s=5)
    ended = asker.open_session("w3", 3_600)
    for session in (lost, stuck, ended):
        asker.receive_in(session)
    asker.ask(s.EndSession(ACCOUNT, ended.session_id, "deploy"))
    asker.limit_failures()
    asker.clock.advance(s=11)
    asker.lose()
    quiet = {EventType.RECEIVED, EventType.QUEUE_UPDATED}
    events = [event for event in asker.events(after) if event.type not in quiet]
    assert [(event.type.name, event.session, event.reason) for event in events] == [
        ("SESSION_STARTED", lost.session_id, None),
        ("SESSION_STARTED", stuck.session_id, None),
        ("SESSION_STARTED", ended.session_id, None),
        ("SESSION_ENDED", ended.session_id, "deploy"),
        ("LEASE_ENDED", ended.session_id, "session ended"),
        ("SESSION_LOST", lost.session_id, "no heartbeat for 10 s"),
        ("LEASE_ENDED", lost.session_id, "session lost"),
        ("LEASE_ENDED", stuck.session_id, "no progress"),
    ]
    assert [(events[place].holder, events[place].queue) for place in (0, 5)] == [("w1", None)] * 2
    assert asker.events(after)[-1].phase == Phase.DEFERRED


def test_a_lease_that_ends_with_its_session_may_be_poison(asker: Asker) -> None:
    """Then that is the event."""
    asker.limit_failures(max_lapses=1)
    asker.put()
    session = asker.open_session(timeout_s=10)
    asker.receive_in(session)
    asker.clock.advance(s=11)
    after = asker.last_seq()
    asker.lose()
    assert told(asker, after)[-1] == ("POISONED", QUEUE, "max_lapses", POISON)
    assert "LEASE_ENDED" not in [each[0] for each in told(asker, after)]


def test_staging(asker: Asker) -> None:
    """Staged, published, dropped; each event names the transaction."""
    after = asker.last_seq()
    asker.stage("a", part="1")
    asker.stage("b", part="2")
    asker.publish(parts=("1",))
    asker.stage("c", name="x")
    asker.discard("x")
    asker.stage("d", name="y", timeout_s=1)
    asker.clock.advance(s=1)
    asker.ask(sg.ExpireStaged(10))
    events = told(asker, after)
    assert sorted(events[2:4]) == [
        ("DISCARDED", QUEUE, None, "tx"),
        ("PUBLISHED", QUEUE, None, "tx"),
    ]
    assert events[:2] + events[4:] == [
        ("STAGED", QUEUE, None, "tx"),
        ("STAGED", QUEUE, None, "tx"),
        ("STAGED", QUEUE, None, "x"),
        ("DISCARDED", QUEUE, None, "x"),
        ("STAGED", QUEUE, None, "y"),
        ("DISCARDED", QUEUE, None, "y"),
    ]


def test_claims(claimer: Asker) -> None:
    """Opened, extended, lapsed, reopened, settled, given back; each names the claim."""
    after = claimer.last_seq()
    claim = claimer.claim(1, 1, 30, holder="driver")
    claimer.extend(1, 30)
    claimer.claim(1)
    claimer.extend(1, 30, park=True)
    claimer.clock.advance(s=30)
    claimer.claim(1, lease_s=30)
    claimer.settle(1)
    claimer.claim(2, 1)
    claimer.give_claim_back(2)
    first, second = f"{STREAM}/1", f"{STREAM}/2"
    assert told(claimer, after) == [
        ("CLAIMED", QUEUE, None, first),
        ("CLAIM_EXTENDED", QUEUE, None, first),
        ("CLAIM_EXTENDED", QUEUE, None, first),
        ("CLAIM_EXTENDED", QUEUE, None, first),
        ("CLAIM_LAPSED", QUEUE, None, first),
        ("CLAIM_REOPENED", QUEUE, None, first),
        ("SETTLED", QUEUE, None, first),
        ("CLAIMED", QUEUE, None, second),
        ("UNCLAIMED", QUEUE, None, second),
    ]
    claimed, extended = claimer.events(after)[:2]
    assert (claimed.visible_at_ms, claimed.fence, claimed.dequeue_count, claimed.holder) == (
        claim.until_ms,
        1,
        1,
        "driver",
    )
    assert (extended.visible_at_ms, extended.message_id, extended.holder) == (
        claim.until_ms,
        None,
        "driver",
    )
    settled, back = (claimer.events(after)[place] for place in (6, 8))
    assert settled.visible_at_ms == claimer.clock.now_ms() + 30_000
    assert (back.visible_at_ms, back.fence) == (claimer.clock.now_ms(), 2)


def test_what_becomes_of_members(claimer: Asker) -> None:
    """Exempted, taken after a lapse, taken by an operator, dissolved."""
    claimer.claim(1, 2, 30)
    member = claimer.read_claim()[0]
    after = claimer.last_seq()
    claimer.settle(1, exemptions=(Exemption(1, member.message_id, Outcome.FAILED),))
    assert told(claimer, after) == [
        ("RELEASED", QUEUE, "failed", None),
        ("SETTLED", QUEUE, None, f"{STREAM}/1"),
    ]
    claimer.claim(2, 1, 30)
    claimer.clock.advance(s=30)
    after = claimer.last_seq()
    claimer.receive(9)
    names = [event.type.name for event in claimer.events(after)]
    assert names.count("CLAIM_LAPSED") == names.count("LAPSED") == 1
    assert names.count("RECEIVED") == 4
    after = claimer.last_seq()
    claimer.give_claim_back(2)
    claimer.settle(1)
    assert claimer.events(after) == []


def test_a_broken_claim_lapses_too(claimer: Asker) -> None:
    """The event says until when it has hidden the members that were left."""
    claimer.claim(1, 2, 30)
    (member, _) = claimer.read_claim()
    claimer.remove(Lease(member, ""), force=True)
    after = claimer.last_seq()
    claimer.clock.advance(s=30)
    claimer.peek()
    assert told(claimer, after) == [("CLAIM_LAPSED", QUEUE, None, f"{STREAM}/1")]
    assert last_event(claimer).visible_at_ms == claimer.clock.now_ms()


def test_a_large_claim_is_extended_by_each_step(asker: Asker) -> None:
    """So that the log tells until when the members of the steps before are hidden."""
    asker.batch(*(asker.put_command() for _ in range(cl.CLAIM_STEP + 1)))
    asker.attach()
    asker.claim(1, MAX_CLAIM, 30)
    asker.clock.advance(s=5)
    after = asker.last_seq()
    asker.claim(1, 1, 30)
    assert sorted(told(asker, after)) == [
        ("CLAIMED", QUEUE, None, f"{STREAM}/1"),
        ("CLAIM_EXTENDED", QUEUE, None, f"{STREAM}/1"),
    ]


def test_dissolving(asker: Asker) -> None:
    """Each member leaves its claim, which stays in the log as it was in the queue."""
    asker.batch(*(asker.put_command() for _ in range(cl.MAX_LAPSED + 1)))
    asker.attach()
    for number in range(1, cl.MAX_LAPSED + 2):
        asker.claim(number, 1, 30)
    asker.clock.advance(s=30)
    asker.peek()
    after = asker.last_seq()
    asker.ask(cl.LapseClaims(10))
    assert told(asker, after) == [("UNCLAIMED", QUEUE, None, f"{STREAM}/1")]
    event = last_event(asker)
    assert (event.visible_at_ms, event.phase) == (asker.clock.now_ms(), Phase.LEASED)


# --- all together ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 3))]
)
def test_the_log_gives_the_live_state(asker: Asker, seed: int) -> None:
    """After some hundred random operations: replayed on the way, and at last from nothing."""
    work = RandomWork(asker, random.Random(seed), groups=True)
    replay, after_seq = Replay(), 0
    for _ in range(6):
        work.play(150)
        asker.peek()  # lets claims lapse that are due, so that the log stands still from here on
        last_seq = asker.last_seq()
        replayed, live = replayed_and_live(asker, replay, after_seq)
        assert replayed == live
        after_seq = last_seq
    whole, live = replayed_and_live(asker)
    assert whole == live
    kinds = {event.type for event in asker.events()}
    assert kinds >= set(EventType) - work.rare
