"""Contract: claims are extended, lapse, are reopened, and lose members."""

from __future__ import annotations

from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain.claims import ClaimState
from leasehold.domain.errors import ClaimBroken, ClaimLapsed
from leasehold.domain.model import NO_DETAIL, Detail, MessageState
from leasehold.domain.queue_settings import GroupOrder, GroupSettings

from .conftest import ACCOUNT, QUEUE, STREAM, Asker

BODIES = [b"0", b"1", b"2", b"3", b"4"]


# --- extending and lapsing ---------------------------------------------------------------------


def test_an_extension_moves_the_end(claimer: Asker) -> None:
    """Of the claim, and so of all its members."""
    claimer.claim(1, 5, 30)
    for _ in range(3):
        claimer.clock.advance(s=20)
        claim = claimer.extend(1, 30)
        assert claim.until_ms == claimer.clock.now_ms() + 30_000
        assert claimer.received() == []
    assert claim.extensions == 3
    assert {each.visible_at_ms for each in claimer.read_claim()} == {claim.until_ms}
    assert {each.renewals for each in claimer.read_claim()} == {0}


def test_an_extension_can_shorten(claimer: Asker) -> None:
    """The end is so far from now as was said last."""
    claimer.claim(1, 5, 3_600)
    assert claimer.extend(1, 5).until_ms == claimer.clock.now_ms() + 5_000
    claimer.clock.advance(s=5)
    assert claimer.received() == BODIES


def test_a_parked_claim_stays_hidden_and_readable(claimer: Asker) -> None:
    """Until the end of the replay window; opening it again makes it an open one."""
    claimer.claim(1, 5, 30)
    parked = claimer.extend(1, 600, park=True)
    assert parked.state is ClaimState.PARKED
    claimer.clock.advance(s=599)
    assert claimer.claimed() == BODIES
    assert claimer.received() == []
    opened = claimer.open(1, lease_s=10)
    assert (opened.claim.state, opened.replayed) == (ClaimState.OPEN, True)
    claimer.clock.advance(s=10)
    assert claimer.received() == BODIES


def test_a_claim_that_nobody_extends_lapses(claimer: Asker) -> None:
    """Its members look like lapsed leases; the claim cannot be read any more."""
    claimer.claim(1, 2, 30, holder="driver")
    claimer.clock.advance(ms=29_999)
    assert claimer.split() == (3, 2, 0, 0, 0)
    assert claimer.stream().claims[0].state is ClaimState.OPEN
    claimer.clock.advance(ms=1)
    refused = claimer.read_claim()
    assert isinstance(refused, ClaimLapsed)
    assert refused.until_ms == claimer.clock.now_ms()
    assert claimer.stream().claims[0].state is ClaimState.LAPSED
    assert claimer.split() == (5, 0, 0, 0, 0)
    assert claimer.counts().claimed == 0
    assert claimer.bodies() == [b"2", b"3", b"4", b"0", b"1"]
    assert {seen.under for seen in claimer.inspect().messages} == {None}


def test_a_claim_that_lapsed_and_lost_nobody_is_reopened(claimer: Asker) -> None:
    """By opening it, by extending it, by parking it; each time it hides its members again."""
    claimer.claim(1, 5, 30)
    for state in (ClaimState.OPEN, ClaimState.OPEN, ClaimState.PARKED):
        claimer.clock.advance(s=100)
        assert isinstance(claimer.read_claim(), ClaimLapsed)
        if claimer.stream().claims[0].extensions == 0:
            claim = claimer.claim(1, lease_s=30)
        else:
            claim = claimer.extend(1, 30, park=state is ClaimState.PARKED)
        assert (claim.state, claim.lost) == (state, 0)
        assert claimer.claimed() == BODIES
        assert claimer.received() == []
    (member, *_) = claimer.read_claim()
    assert (member.dequeue_count, member.fence, member.detail.lapses) == (1, 1, 0)


def test_a_claim_whose_members_others_took_is_broken(claimer: Asker) -> None:
    """It can be read only by those who accept the loss, and then without what was lost."""
    claimer.claim(1, 3, 30)
    claimer.clock.advance(s=30)
    claimer.receive(4, lease_s=3_600)
    assert claimer.stream().claims[0].state is ClaimState.BROKEN
    for refused in (claimer.open(1), claimer.extend(1), claimer.read_claim()):
        assert isinstance(refused, ClaimBroken)
        assert (refused.size, refused.lost) == (3, 2)
    opened = claimer.open(1, accept_loss=True)
    assert (opened.claim.state, opened.claim.lost) == (ClaimState.OPEN, 2)
    assert (opened.claim.remaining, opened.replayed) == (1, True)
    assert claimer.claimed() == [b"2"]
    assert claimer.extend(1, 60).state is ClaimState.OPEN
    assert claimer.claimed(parts=2, part=1) == [b"2"]
    claimer.clock.advance(s=60)
    assert claimer.claim(1).lost == 2  # lapsed once more, and lost nobody since


def test_a_claim_that_has_lost_all_can_still_be_accepted(claimer: Asker) -> None:
    """It has no members then."""
    claimer.claim(1, 2, 30)
    claimer.clock.advance(s=30)
    claimer.receive(5, lease_s=3_600)
    assert isinstance(claimer.open(1), ClaimBroken)
    opened = claimer.open(1, accept_loss=True)
    assert (opened.claim.size, opened.claim.lost, opened.claim.remaining) == (2, 2, 0)
    assert claimer.read_claim() == []
    claimer.ask(c.Clear(ACCOUNT, QUEUE))
    assert claimer.read_claim() == []  # no more is lost than before
    assert claimer.settle(1) == cl.Settled(last_settled=1, lost=2)


def test_accepting_a_loss_is_no_licence_for_the_next(claimer: Asker) -> None:
    """A further loss has to be accepted anew."""
    claimer.claim(1, 3, 30)
    claimer.clock.advance(s=30)
    claimer.receive(3, lease_s=3_600)
    assert claimer.open(1, lease_s=30, accept_loss=True).claim.lost == 1
    claimer.clock.advance(s=30)
    claimer.receive(1, lease_s=3_600)
    for refused in (claimer.open(1), claimer.extend(1), claimer.read_claim()):
        assert isinstance(refused, ClaimBroken)
        assert (refused.size, refused.lost) == (3, 2)


def test_accepting_no_loss_changes_nothing(claimer: Asker) -> None:
    """Where there was none."""
    claimer.claim(1, 3)
    assert claimer.open(1, accept_loss=True).claim.lost == 0
    assert claimer.claimed() == BODIES[:3]


def test_a_new_claim_takes_members_of_a_lapsed_one(claimer: Asker) -> None:
    """Their lapse is noted, and the older claim is broken."""
    claimer.claim(1, 2, 30)
    claimer.clock.advance(s=30)
    claimer.claim(2, 5)
    assert claimer.claimed(2) == [b"2", b"3", b"4", b"0", b"1"]
    older, newer = claimer.stream().claims
    assert (older.state, older.lost, newer.size) == (ClaimState.BROKEN, 2, 5)
    taken = [each for each in claimer.read_claim(2) if each.body in {b"0", b"1"}]
    assert [each.detail.lapses for each in taken] == [1, 1]


def test_a_lapse_stays_when_the_clock_goes_back(claimer: Asker) -> None:
    """It was seen, so others may have acted on it; reopening makes it good."""
    claimer.claim(1, 5, 30)
    claimer.clock.advance(s=30)
    assert claimer.stream().claims[0].state is ClaimState.LAPSED
    claimer.clock.advance(s=-20)
    assert isinstance(claimer.read_claim(), ClaimLapsed)
    assert claimer.split() == (0, 5, 0, 0, 0)
    assert claimer.counts().claimed == 0
    assert claimer.claim(1, lease_s=60).state is ClaimState.OPEN
    assert claimer.counts().claimed == 5


def test_a_claim_lapses_before_the_first_command_of_a_batch(claimer: Asker) -> None:
    """Whatever the batch begins with."""
    claimer.claim(1, 5, 30)
    claimer.clock.advance(s=30)
    received, extended = claimer.batch(
        c.Receive(ACCOUNT, QUEUE, 1, 30), cl.ExtendClaim(ACCOUNT, QUEUE, STREAM, 1, 1, 30)
    )
    assert len(received) == 1  # type: ignore[arg-type]
    assert isinstance(extended, ClaimBroken)


def test_lapsed_members_are_received_in_the_order_of_their_claim(asker: Asker) -> None:
    """Though all of them became visible at the same moment."""
    asker.put("2", delay_s=5)
    asker.put("1")
    asker.put("0", priority=1)
    asker.clock.advance(s=5)
    asker.attach()
    asker.claim(1, 5, 30)
    assert asker.claimed() == [b"0", b"1", b"2"]
    asker.clock.advance(s=30)
    assert asker.bodies() == [b"0", b"1", b"2"]
    assert asker.received(2) == [b"0", b"1"]
    assert asker.received(2) == [b"2"]


def test_a_claim_that_lapses_before_its_members_came(claimer: Asker) -> None:
    """With the clock set back, what it had can be received all the same, and counts so."""
    claimer.claim(1, 2, 30)
    claimer.clock.advance(s=-60)
    until_ms = claimer.extend(1, 1).until_ms
    claimer.clock.advance(s=1)
    counts = claimer.counts()
    assert (counts.visible, counts.since[MessageState.VISIBLE]) == (2, until_ms)
    assert claimer.received() == BODIES[:2]


def test_groups_of_a_claim_that_lapses_before_its_members_came(asker: Asker) -> None:
    """In a queue that has groups they come as well, those without a group too."""
    asker.attach()
    for body in BODIES[:4]:
        asker.put(body, detail=Detail(group_id="a") if body > b"1" else NO_DETAIL)
    asker.claim(1, 4, 30)
    asker.clock.advance(s=-60)
    asker.govern(groups=GroupSettings(order=GroupOrder.FIFO))
    asker.extend(1, 1)
    asker.clock.advance(s=1)
    assert sorted(asker.received()) == BODIES[:4]


def test_members_that_expired_before_their_claim_lapsed(asker: Asker) -> None:
    """They count as expired, once, also where the clock is set back behind the lapse."""
    asker.attach()
    asker.put(b"a", time_to_live_s=10)
    asker.put(b"b")
    asker.claim(1, 1, 60)
    asker.clock.advance(s=60)
    asker.ask(c.GetQueue(ACCOUNT, QUEUE))
    asker.clock.advance(s=-20)
    counts = asker.counts()
    assert (counts.visible, counts.leased, counts.expired) == (1, 0, 1)
    assert MessageState.LEASED not in counts.since


def test_groups_of_a_claim_that_was_cut_short(asker: Asker) -> None:
    """Receives have looked at the group before, and know until when it was claimed then."""
    asker.attach()
    asker.govern(groups=GroupSettings(order=GroupOrder.FIFO))
    asker.put(b"a", detail=Detail(group_id="a"))
    asker.claim(1, 1, 60)
    assert asker.received() == []
    asker.extend(1, 1)
    asker.clock.advance(s=1)
    assert asker.received() == [b"a"]


def test_members_of_groups_keep_their_places(asker: Asker) -> None:
    """What a lapsed claim had of a group comes in the order of the claim, not of the puts."""
    asker.attach()
    asker.govern(groups=GroupSettings(order=GroupOrder.NONE))
    for delay_s, group in ((2, "a"), (1, "a"), (2, None), (1, None)):
        asker.put(f"{group}{delay_s}", delay_s=delay_s, detail=Detail(group_id=group))
    asker.clock.advance(s=2)
    asker.claim(1, 4, 1)
    asker.clock.advance(s=1)
    received = asker.received()
    assert [body for body in received if body.startswith(b"a")] == [b"a1", b"a2"]
    assert [body for body in received if body.startswith(b"N")] == [b"None1", b"None2"]


def test_notes_of_a_claim_without_members_go_with_its_queue(claimer: Asker) -> None:
    """Where others have taken all that it had, clearing the queue ends what it noted as well."""
    claimer.claim(1, 1, 30)
    claimer.exempt(claimer.exemption(b"0"))
    claimer.clock.advance(s=30)
    assert len(claimer.received()) == len(BODIES)
    assert claimer.stream().claims[0].noted == 1
    claimer.ask(c.Clear(ACCOUNT, QUEUE))
    assert claimer.stream().claims[0].noted == 0
