"""Contract: what is given back leaves its claim in steps, and large claims are opened in steps."""

from __future__ import annotations

from collections import Counter

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain.claims import ClaimState
from leasehold.domain.errors import ClaimNotFound, ClaimOutOfTurn, StreamNotFound
from leasehold.domain.model import Lease, MessageState, Outcome, Phase

from .conftest import ACCOUNT, QUEUE, STREAM, Asker
from .random_work import replayed_and_live

BODIES = [b"0", b"1", b"2", b"3", b"4"]


@pytest.fixture
def slow(claimer: Asker, monkeypatch: pytest.MonkeyPatch) -> Asker:
    """A store that dissolves two members at a time, with five messages and a stream."""
    monkeypatch.setattr(cl, "FOLD_STEP", 2)
    return claimer


def assert_log_is_exact(asker: Asker) -> None:
    replayed, live = replayed_and_live(asker)
    assert replayed == live


# --- claims that hide their members ------------------------------------------------------------


def test_a_claim_is_given_back_in_steps(slow: Asker) -> None:
    """The first members are visible at once, the others when their step comes."""
    slow.claim(1, 5, 30)
    assert slow.give_claim_back(1) == cl.Dissolving(3)
    assert slow.stream().claims == ()
    assert slow.bodies() == BODIES[:2]
    assert slow.split() == (2, 3, 0, 0, 0)
    assert slow.counts().claimed == 3
    seen = slow.inspect(states=["leased"]).messages
    assert [each.under for each in seen] == [f"{STREAM}/1"] * 3
    assert_log_is_exact(slow)
    assert slow.ask(cl.LapseClaims(2)) == c.Swept(2)
    assert slow.split() == (4, 1, 0, 0, 0)
    assert slow.ask(cl.LapseClaims(2)) == c.Swept(1)
    assert slow.ask(cl.LapseClaims(2)) == c.Swept(0)
    assert slow.split() == (5, 0, 0, 0, 0)
    leases = slow.receive(5)
    assert [lease.message.body for lease in leases] == BODIES
    assert {lease.message.dequeue_count for lease in leases} == {2}
    outcomes = [attempt.outcome for lease in leases for attempt in lease.message.detail.attempts]
    assert outcomes == [Outcome.RETURNED] * 5
    assert_log_is_exact(slow)


def test_its_number_is_free_at_once(slow: Asker) -> None:
    """A new claim of that number has nothing to do with the members that are left."""
    slow.claim(1, 5, 30)
    slow.give_claim_back(1)
    for refused in (slow.read_claim(), slow.extend(1), slow.give_claim_back(1)):
        assert isinstance(refused, ClaimNotFound)
    assert isinstance(slow.open(2), ClaimOutOfTurn)
    assert isinstance(slow.settle(1), ClaimOutOfTurn)
    assert slow.claim(1, 5, 60).size == 2
    assert slow.claimed(1) == BODIES[:2]
    assert slow.ask(cl.LapseClaims(2)) == c.Swept(2)
    assert slow.ask(cl.LapseClaims(2)) == c.Swept(1)
    assert slow.bodies() == BODIES[2:]
    assert slow.settle(1).completed == 2
    assert slow.count() == 3
    assert_log_is_exact(slow)


def test_what_is_left_neither_lapses_nor_expires(slow: Asker) -> None:
    """Whatever the time is: it is visible as soon as its step comes."""
    slow.put("short", time_to_live_s=60)
    slow.claim(1, 6, 30)
    slow.give_claim_back(1)
    after = slow.last_seq()
    slow.clock.advance(s=100)
    assert slow.ask(c.RetireExpired(100)) == c.Swept(0)
    assert slow.split() == (2, 4, 0, 0, 0)
    assert slow.ask(cl.LapseClaims(100)) == c.Swept(4)
    assert slow.ask(c.RetireExpired(100)) == c.Swept(1)
    assert slow.split() == (5, 0, 0, 0, 0)
    kinds = Counter(event.type.name for event in slow.events(after))
    assert kinds == {"UNCLAIMED": 4, "EXPIRED": 1}


def test_an_opening_claim_is_given_back_in_steps(
    slow: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new claim of the number begins with nothing."""
    monkeypatch.setattr(cl, "CLAIM_STEP", 3)
    assert slow.claim(1, 4, 30, max_bytes=100).state is ClaimState.OPENING
    slow.clock.advance(s=1)
    assert slow.give_claim_back(1) == cl.Dissolving(1)
    assert slow.bodies() == [b"3", b"4", b"0", b"1"]
    again = slow.claim(1, 3, 60, max_bytes=2)
    assert (again.size, again.state) == (2, ClaimState.OPEN)


def test_members_received_before(slow: Asker) -> None:
    """They have their histories with them."""
    for lease in slow.receive(5):
        slow.fail(lease)
    slow.claim(1, 5, 30)
    slow.give_claim_back(1)
    slow.ask(cl.LapseClaims(100))
    for lease in slow.receive(5):
        outcomes = [attempt.outcome for attempt in lease.message.detail.attempts]
        assert outcomes == [Outcome.FAILED, Outcome.RETURNED]
        assert (lease.message.dequeue_count, lease.message.fence) == (3, 5)
    assert_log_is_exact(slow)


def test_an_operator_takes_what_is_left(slow: Asker) -> None:
    """Members can be removed, freed and amended before their step comes."""
    slow.claim(1, 5, 30)
    members = [Lease(message, "") for message in slow.read_claim()]
    slow.give_claim_back(1)
    slow.remove(members[2], force=True)
    slow.end_lease(members[3])
    assert slow.amend(members[4], force=True, priority=1).state is MessageState.VISIBLE
    assert slow.ask(cl.LapseClaims(100)) == c.Swept(0)
    assert slow.split() == (4, 0, 0, 0, 0)
    assert slow.count() == 4
    assert_log_is_exact(slow)


@pytest.mark.parametrize("lapsed", [False, True])
def test_clearing_and_deleting_take_what_is_left(slow: Asker, *, lapsed: bool) -> None:
    """Nothing remains to be dissolved."""
    for ruin in (c.Clear(ACCOUNT, QUEUE), c.DeleteQueue(ACCOUNT, QUEUE)):
        slow.batch(*(slow.put_command() for _ in range(5)))
        slow.claim(1, 5, 30)
        slow.clock.advance(s=30 * lapsed)
        assert isinstance(slow.give_claim_back(1), cl.Dissolving)
        assert slow.ask(ruin) == c.DONE
        assert slow.ask(cl.LapseClaims(100)) == c.Swept(0)
    slow.create()
    slow.put("new")
    slow.attach()
    assert slow.claim(1).size == 1
    assert slow.count() == 1
    assert_log_is_exact(slow)


def test_a_stream_is_deleted_at_once(slow: Asker) -> None:
    """The members of its claims follow in steps, the claims of a new stream are others."""
    slow.claim(1, 1)
    slow.claim(2, 3)
    delete = cl.DeleteStream(ACCOUNT, QUEUE, STREAM)
    assert slow.ask(delete) == cl.Dissolving(2)
    assert isinstance(slow.ask(delete), StreamNotFound)
    assert isinstance(slow.stream(), StreamNotFound)
    assert slow.attach().claims == ()
    assert slow.claim(1, 9).size == 3
    assert slow.ask(cl.LapseClaims(1)) == c.Swept(1)
    assert slow.ask(cl.LapseClaims(1)) == c.Swept(1)
    assert slow.bodies() == BODIES[2:4]
    assert slow.settle(1).completed == 3
    assert_log_is_exact(slow)


def test_the_oldest_go_first(slow: Asker) -> None:
    """Of several that were given back, whatever the order in which that was."""
    slow.claim(1, 2)
    slow.claim(2, 3)
    slow.ask(cl.DeleteStream(ACCOUNT, QUEUE, STREAM))
    slow.attach()
    slow.claim(1, 2)
    slow.give_claim_back(1)
    slow.ask(cl.LapseClaims(2))
    left = slow.inspect(states=["leased"]).messages
    assert [each.message.body for each in left] == [b"4"]


# --- claims that have lapsed -------------------------------------------------------------------


def test_a_lapsed_claim_is_given_back_in_steps(slow: Asker) -> None:
    """Its members could be received before, and can be all the while."""
    slow.claim(1, 4, 30)
    slow.clock.advance(s=40)
    assert slow.give_claim_back(1) == cl.Dissolving(2)
    assert slow.split() == (5, 0, 0, 0, 0)
    assert slow.bodies() == [b"4", b"2", b"3", b"0", b"1"]
    assert [lease.message.body for lease in slow.receive(2)] == [b"4", b"2"]
    assert slow.ask(cl.LapseClaims(100)) == c.Swept(1)
    assert slow.bodies() == [b"0", b"1", b"3"]
    assert_log_is_exact(slow)


def test_dissolving_with_the_clock_set_back(claimer: Asker) -> None:
    """What lapsed is invisible until the same moment once more, and counts as that."""
    claimer.claim(1, 5, 10)
    claimer.clock.advance(s=10)
    assert claimer.split() == (5, 0, 0, 0, 0)
    claimer.clock.advance(s=-5)
    assert claimer.split() == (0, 5, 0, 0, 0)
    assert claimer.give_claim_back(1) == c.DONE
    assert claimer.split() == (0, 5, 0, 0, 0)
    assert claimer.counts().since == {MessageState.LEASED: claimer.clock.now_ms() - 5_000}
    claimer.clock.advance(s=5)
    assert len(claimer.receive(5)) == 5
    assert claimer.split() == (0, 5, 0, 0, 0)


def test_too_many_lapsed_claims_may_wait(asker: Asker) -> None:
    """They are not dissolved while the clock is doubted; what was given back is."""
    asker.batch(*(asker.put_command() for _ in range(cl.MAX_LAPSED + 2)))
    asker.attach()
    for number in range(1, cl.MAX_LAPSED + 3):
        asker.claim(number, 1, 30)
    asker.clock.advance(s=30)
    assert asker.ask(cl.LapseClaims(100, fold=False)) == c.Swept(0)
    assert {claim.state for claim in asker.stream().claims} == {ClaimState.LAPSED}
    assert asker.ask(cl.LapseClaims(100)) == c.Swept(2)


# --- opening -----------------------------------------------------------------------------------


def test_messages_received_before_are_claimed_in_smaller_steps(
    claimer: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them has a history to be written; who opens the claim goes on as with others."""
    monkeypatch.setattr(cl, "AGAIN_STEP", 2)
    leases = claimer.receive(4)
    claimer.clock.advance(s=1)
    for lease in leases:
        claimer.release(lease)
    opened = claimer.open(1, 9)
    assert (opened.claim.state, opened.claim.size) == (ClaimState.OPENING, 3)
    opened = claimer.open(1, 9)
    assert (opened.claim.state, opened.claim.size) == (ClaimState.OPENING, 5)
    opened = claimer.open(1, 9)
    assert (opened.claim.state, opened.claim.size) == (ClaimState.OPEN, 5)
    assert claimer.claimed() == [b"4", *BODIES[:4]]
    assert [each.dequeue_count for each in claimer.read_claim()] == [1, 2, 2, 2, 2]
    assert claimer.settle(1).completed == 5
    settled = [event for event in claimer.events() if event.type.name == "SETTLED"]
    assert sorted(event.dequeue_count or 0 for event in settled) == [1, 2, 2, 2, 2]
    assert_log_is_exact(claimer)


def test_poison_behind_the_end_of_a_step_waits(
    claimer: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may not be delivered again goes its way in the step that comes to it."""
    monkeypatch.setattr(cl, "AGAIN_STEP", 1)
    first, second = claimer.receive(2)
    claimer.receive(3, lease_s=600)
    claimer.release(first)
    claimer.fail(second)
    claimer.limit_failures(max_failures=1)
    assert claimer.open(1, 9).claim.size == 1
    assert claimer.split()[4] == 0
    assert claimer.open(1, 9).claim.state is ClaimState.OPEN
    assert claimer.split()[4] == 1


def test_settling_with_exemptions_logs_the_others(claimer: Asker) -> None:
    """Each once, with what the log said of it when it was claimed."""
    claimer.release(claimer.receive_one())
    claimer.claim(1, 5)
    members = claimer.read_claim()
    after = claimer.last_seq()
    exempt = tuple(cl.Exemption(1, members[n].message_id, Outcome.FAILED) for n in (0, 2, 4))
    assert claimer.settle(1, exemptions=exempt).completed == 2
    settled = [event for event in claimer.events(after) if event.type.name == "SETTLED"]
    wanted = [members[1], members[3]]
    assert [event.message_id for event in settled] == [each.message_id for each in wanted]
    for event, member in zip(settled, wanted, strict=True):
        assert event.inserted_at_ms == member.inserted_at_ms
        assert (event.fence, event.phase) == (member.fence, Phase.LEASED)
    assert_log_is_exact(claimer)


def test_listing_what_is_left(slow: Asker) -> None:
    """By id, and by the state that it is in."""
    slow.claim(1, 5, 30)
    members = slow.read_claim()
    slow.give_claim_back(1)
    found = slow.ask(o.FindMessage(ACCOUNT, QUEUE, members[4].message_id))
    assert (found.state, found.under) == (MessageState.LEASED, f"{STREAM}/1")
    assert slow.due_ms() == 0
