"""Contract: how many messages are in which state, all at one instant."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain.errors import QueueNotFound
from leasehold.domain.model import Lease, Outcome

from .conftest import ACCOUNT, POISON, QUEUE, Asker


def since_s(asker: Asker, queue: str = QUEUE) -> dict[str, float]:
    """Return for how long the longest-standing message is in each state."""
    now_ms = asker.clock.now_ms()
    since = asker.counts(queue).since
    return {str(state): (now_ms - at_ms) / 1000 for state, at_ms in since.items()}


def test_an_empty_queue_counts_nothing(asker: Asker) -> None:
    """No message, no state, no age."""
    assert asker.counts() == o.Counts(0, 0, 0, 0, 0, {})
    assert isinstance(asker.ask(o.CountMessages(ACCOUNT, "no")), QueueNotFound)


def test_every_state_is_counted(asker: Asker) -> None:
    """Each message in the one state that it is in."""
    for _ in range(3):
        asker.put()
    _, deferred = asker.receive(2, lease_s=3600)
    asker.release(deferred, delay_s=3600)
    asker.put(time_to_live_s=5)
    asker.clock.advance(s=5)
    asker.put(delay_s=3600)
    asker.bury("bad")
    assert asker.split() == (1, 1, 1, 1, 1)
    assert asker.counts().expired == 1
    assert asker.counts().total == 4


def test_counts_follow_time_to_the_millisecond(asker: Asker) -> None:
    """States change because time passes; nobody writes anything."""
    start_ms = asker.clock.now_ms()
    asker.clock.advance(ms=450)
    asker.put(delay_s=2)
    asker.put()
    asker.receive(lease_s=1)
    asker.put()
    asker.release(asker.receive_one(), delay_s=2)
    moments = {
        450: (0, 1, 1, 1, 0),
        1_000: (0, 1, 1, 1, 0),
        1_449: (0, 1, 1, 1, 0),
        1_450: (1, 0, 1, 1, 0),
        2_449: (1, 0, 1, 1, 0),
        2_450: (3, 0, 0, 0, 0),
        9_000: (3, 0, 0, 0, 0),
    }
    for at_ms, expected in moments.items():
        asker.clock.advance(ms=start_ms + at_ms - asker.clock.now_ms())
        assert asker.split() == expected, at_ms


@pytest.mark.parametrize("state", ["visible", "leased", "delayed", "deferred"])
@pytest.mark.parametrize("swept", [False, True])
def test_an_expired_message_is_counted_as_expired(asker: Asker, state: str, swept: bool) -> None:
    """And as nothing else, from its very millisecond on, whether the sweep has come by or not."""
    asker.put(time_to_live_s=10, delay_s=9 if state == "delayed" else 0)
    asker.put(delay_s=20)
    asker.clock.advance(s=5)
    if state in {"leased", "deferred"}:
        lease = asker.receive_one(lease_s=60)
        if state == "deferred":
            asker.release(lease, delay_s=4)
    before = Counter(delayed=1) + Counter([state])
    assert Counter({str(key): value for key, value in split_of(asker).items()}) == before
    asker.clock.advance(ms=4_999)
    assert (asker.counts().total, asker.counts().expired) == (2, 0)
    asker.clock.advance(ms=1)
    if swept:
        assert asker.ask(c.RetireExpired(10)) == c.Swept(1)
    assert asker.split() == (0, 0, 1, 0, 0)
    assert asker.counts().expired == 1
    assert since_s(asker) == {"delayed": 10}
    asker.clock.advance(s=60)
    assert asker.split() == (1, 0, 0, 0, 0)


def split_of(asker: Asker) -> dict[str, int]:
    """Return the counts by state."""
    counts = asker.counts()
    return {name: getattr(counts, name) for name in ("visible", "leased", "delayed", "deferred")}


def test_expired_messages_count_until_their_rows_are_removed(asker: Asker) -> None:
    """Those set aside by the sweep too, in whichever order they are counted, swept and removed."""
    for ttl_s in (10, 10, 20, 30):
        asker.put(time_to_live_s=ttl_s, priority=1 if ttl_s == 20 else 8)
    asker.clock.advance(s=10)
    asker.ask(c.RetireExpired(1))
    assert asker.counts().expired == 2
    asker.ask(c.RetireExpired(10))
    assert asker.counts().expired == 2
    asker.clock.advance(s=10)
    asker.ask(c.RetireExpired(10))
    assert (asker.counts().total, asker.counts().expired) == (1, 3)
    assert asker.ask(c.RemoveRetired(asker.clock.now_ms(), 10)) == c.Swept(2)
    assert asker.counts().expired == 1
    assert len(asker.inspected(states=["expired"])) == 1


def test_a_member_of_a_lapsed_claim_that_expires_is_counted_as_expired(claimer: Asker) -> None:
    """Not while the claim hides it; then as any other, swept or not."""
    claimer.put("short", time_to_live_s=20)
    claimer.claim(lease_s=30)
    claimer.clock.advance(s=25)
    assert (claimer.counts().leased, claimer.counts().expired) == (6, 0)
    claimer.clock.advance(s=5)
    claimer.ask(cl.LapseClaims())
    assert (claimer.counts().visible, claimer.counts().expired) == (5, 1)
    assert claimer.inspected(states=["expired"]) == [(b"short", "expired")]
    claimer.ask(c.RetireExpired(10))
    assert (claimer.counts().visible, claimer.counts().expired) == (5, 1)


def test_a_cleared_queue_has_no_expired_messages(asker: Asker) -> None:
    """Those set aside are gone with the others, and what expires later is counted anew."""
    asker.put(time_to_live_s=1)
    asker.clock.advance(s=1)
    asker.ask(c.RetireExpired(10))
    assert asker.counts().expired == 1
    asker.ask(c.Clear(ACCOUNT, QUEUE))
    assert asker.counts().expired == 0
    asker.put(time_to_live_s=1)
    asker.clock.advance(s=1)
    asker.ask(c.RetireExpired(10))
    assert asker.counts().expired == 1


def test_expired_messages_are_counted_in_their_own_queue(asker: Asker) -> None:
    """Not in another, nor in one of the same name that was deleted before."""
    asker.create("other")
    asker.put(time_to_live_s=1)
    asker.put(time_to_live_s=1, queue="other")
    asker.clock.advance(s=1)
    asker.ask(c.RetireExpired(10))
    assert (asker.counts().expired, asker.counts("other").expired) == (1, 1)
    asker.ask(c.DeleteQueue(ACCOUNT, QUEUE))
    asker.create()
    assert (asker.counts().expired, asker.counts("other").expired) == (0, 1)


def test_expired_poison_is_in_no_count(asker: Asker) -> None:
    """Messages in the poison queue count in whatever state they are there, but expired.

    They are among the expired ones of the poison queue itself.
    """
    asker.limit_failures(poison_time_to_live_s=100)
    for index in range(4):
        asker.bury(f"{index}")
    asker.receive(queue=POISON)
    assert asker.counts().poisoned == 4
    asker.clock.advance(s=50)
    asker.bury("later")
    asker.clock.advance(s=50)
    assert asker.counts().poisoned == 1
    asker.ask(c.RetireExpired(2))
    assert asker.counts().poisoned == 1
    asker.ask(c.RetireExpired(10))
    assert asker.counts().poisoned == 1
    assert (asker.counts().expired, asker.counts(POISON).expired) == (0, 4)


def test_a_clock_set_back_counts_as_that_time_would(asker: Asker) -> None:
    """What was visible is invisible again, and what had expired is there again."""
    asker.clock.advance(s=100)
    asker.put("short", time_to_live_s=50)
    asker.put("plain")
    lease = asker.receive_one(lease_s=10)
    assert asker.split() == (1, 1, 0, 0, 0)
    asker.clock.advance(s=60)
    assert asker.split() == (1, 0, 0, 0, 0)
    asker.clock.advance(s=-55)
    assert asker.split() == (1, 1, 0, 0, 0)
    asker.clock.advance(s=-50)
    assert asker.split() == (0, 1, 1, 0, 0)
    assert asker.complete(lease) == c.DONE
    assert asker.split() == (0, 0, 1, 0, 0)
    asker.clock.advance(s=1000)
    assert asker.split() == (1, 0, 0, 0, 0)


def test_what_the_sweep_retired_stays_expired(asker: Asker) -> None:
    """Also with the clock set back to when it was alive, for whoever counts, lists or looks."""
    asker.put(time_to_live_s=10)
    late = asker.put(time_to_live_s=10, delay_s=5)
    asker.clock.advance(s=10)
    asker.ask(c.RetireExpired(10))
    asker.clock.advance(s=-9)
    assert asker.split() == (0, 0, 0, 0, 0)
    assert asker.counts().expired == 2
    assert asker.count() == 0
    assert [state for _, state in asker.inspected()] == ["expired", "expired"]
    assert len(asker.inspected(states=["expired"])) == 2
    assert asker.find(late).state == "expired"


def test_counts_of_one_batch_are_of_its_instant(asker: Asker) -> None:
    """Each sees what the commands before it did."""
    put = asker.put_command()
    count = o.CountMessages(ACCOUNT, QUEUE)
    results = asker.batch(
        count, put, count, c.Receive(ACCOUNT, QUEUE, 1, 30), count, c.Clear(ACCOUNT, QUEUE), count
    )
    seen = [result[:2] for result in results if isinstance(result, o.Counts)]
    assert seen == [(0, 0), (1, 0), (0, 1), (0, 0)]


def test_counts_come_with_the_queue_when_asked_for(asker: Asker) -> None:
    """The same ones."""
    asker.put(delay_s=5)
    asker.put()
    info = asker.ask(c.GetQueue(ACCOUNT, QUEUE, with_counts=True))
    assert info.counts == asker.counts()
    assert asker.ask(c.GetQueue(ACCOUNT, QUEUE)).counts is None


# --- since when --------------------------------------------------------------------------------


def test_since_is_when_the_longest_standing_message_entered_the_state(asker: Asker) -> None:
    """Put, became visible, received, or given back; the newer ones do not matter."""
    asker.put("delayed", delay_s=100)
    asker.clock.advance(s=1)
    asker.put("delayed", delay_s=100)
    asker.put("visible later", delay_s=2)
    asker.clock.advance(s=4)
    assert since_s(asker) == {"delayed": 5, "visible": 2}
    asker.put("visible")
    asker.receive_one(lease_s=60)
    asker.clock.advance(s=1)
    assert since_s(asker) == {"delayed": 6, "visible": 1, "leased": 1}
    asker.release(asker.receive_one(), delay_s=60)
    asker.clock.advance(s=1)
    assert since_s(asker) == {"delayed": 7, "leased": 2, "deferred": 1}


def test_a_renewal_does_not_begin_a_lease_anew(asker: Asker) -> None:
    """What counts is since when the holder has it."""
    asker.put()
    lease = asker.receive_one(lease_s=30)
    for _ in range(4):
        asker.clock.advance(s=20)
        lease = asker.renew(lease, 30)
    assert since_s(asker) == {"leased": 80}


def test_since_passes_over_what_has_left_the_state(asker: Asker) -> None:
    """Leases that ran out, were completed, or whose message expired are none."""
    asker.put("expires", time_to_live_s=30)
    for name in ("lapses", "completed", "stays"):
        asker.put(name)
    asker.receive(1, lease_s=3600)
    asker.clock.advance(s=1)
    asker.receive(1, lease_s=5)
    asker.clock.advance(s=1)
    completed = asker.receive_one(lease_s=3600)
    asker.clock.advance(s=1)
    asker.receive(1, lease_s=3600)
    assert since_s(asker) == {"leased": 3}
    asker.clock.advance(s=27)
    assert since_s(asker) == {"leased": 28, "visible": 24}
    asker.complete(completed)
    assert since_s(asker) == {"leased": 27, "visible": 24}


def test_since_with_the_clock_set_back(asker: Asker) -> None:
    """Whatever was found out at a later time is found out again."""
    asker.put(delay_s=10)
    asker.put()
    asker.clock.advance(s=5)
    asker.receive_one(lease_s=10)
    asker.clock.advance(s=20)
    assert since_s(asker) == {"visible": 15}
    asker.clock.advance(s=-18)
    assert since_s(asker) == {"leased": 2, "delayed": 7}


def test_since_is_found_behind_very_many_lapses(asker: Asker) -> None:
    """However many older leases have run out, the oldest one that holds is found."""
    asker.batch(*(asker.put_command(time_to_live_s=None) for _ in range(500)))
    asker.receive(500, lease_s=1)
    asker.clock.advance(s=10)
    asker.put("held", priority=1)
    asker.receive_one(lease_s=60)
    asker.clock.advance(s=1)
    assert asker.split() == (500, 1, 0, 0, 0)
    assert since_s(asker) == {"visible": 10, "leased": 1}


# --- all together ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_those_of_a_listing_whatever_happens(asker: Asker, seed: int) -> None:
    """Counted by a walk over all messages or told at once, the numbers are the same."""
    rng = random.Random(seed)
    asker.limit_failures(max_failures=2, poison_time_to_live_s=30)
    held: list[Lease] = []
    for _ in range(150):
        draw = rng.random()
        if draw < 0.35:
            delay_s = rng.choice([0, 0, 1, 7])
            ttl_s = rng.choice([8, 40, None])
            held.append(
                asker.put(delay_s=delay_s, time_to_live_s=ttl_s, priority=rng.choice([1, 8]))
            )
        elif draw < 0.6:
            held += asker.receive(rng.choice([1, 3]), lease_s=rng.choice([1, 5, 60]))
        elif draw < 0.9 and held:
            lease = held.pop(rng.randrange(len(held)))
            acts: list[Callable[[Lease], Any]] = [
                asker.complete,
                lambda lease: asker.release(lease, Outcome.FAILED),
                lambda lease: asker.release(lease, delay_s=3),
                lambda lease: asker.renew(lease, 5),
                lambda lease: asker.amend(lease, delay_s=4, priority=3, force=True),
                asker.end_lease,
                lambda lease: asker.remove(lease, force=True),
            ]
            rng.choice(acts)(lease)
        elif draw < 0.93:
            asker.ask(c.RetireExpired(2))
        elif draw < 0.95:
            asker.ask(c.RemoveRetired(asker.clock.now_ms() - 15_000, 3))
        asker.clock.advance(ms=rng.choice([0, 1, 333, 999, 1000, 2500, -700]))
        states = Counter(state for _, state in asker.inspected())
        counts = asker.counts()
        counted = {str(state): getattr(counts, state) for state in o.COUNTED_STATES}
        assert +Counter(counted) == states
        unseen = ["leased", "delayed", "deferred", "expired"]
        listed = Counter(state for _, state in asker.inspected(states=unseen))
        assert listed == Counter({state: states[state] for state in unseen if states[state]})
