"""The rules of claims that no store shows by itself: steps, extensions, lapses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.domain import claims as rules
from leasehold.domain.claims import (
    AGAIN_STEP,
    CLAIM_STEP,
    MAX_LAPSED,
    Claim,
    ClaimState,
    Exemption,
    OpenClaim,
)
from leasehold.domain.errors import (
    ClaimBroken,
    ClaimLapsed,
    ClaimNotFound,
    LeaseholdError,
)
from leasehold.domain.events import EventType
from leasehold.domain.model import BodyRef, Detail, Message, Outcome, size_of

NOW = 1_000_000

CLAIM = Claim(
    account="coho",
    queue="videos",
    stream="nightly",
    number=3,
    state=ClaimState.OPEN,
    size=10,
    limit=100,
    opened_at_ms=NOW - 60_000,
    until_ms=NOW + 30_000,
    holder="driver",
)
OPENING = replace(CLAIM, state=ClaimState.OPENING)
BROKEN = replace(CLAIM, state=ClaimState.BROKEN, lost=2)
LAPSED = replace(CLAIM, state=ClaimState.LAPSED, until_ms=NOW)
WAITING = Message("id", b"work", NOW - 5, NOW + 5, NOW - 3, since_ms=NOW - 5)


@pytest.mark.parametrize(
    ("claim", "accepted", "error"),
    [
        (CLAIM, False, None),
        (replace(CLAIM, state=ClaimState.PARKED), False, None),
        (replace(CLAIM, lost=1), True, None),
        (replace(CLAIM, lost=1), False, ClaimBroken),
        (BROKEN, True, ClaimBroken),
        (LAPSED, True, ClaimLapsed),
        (OPENING, True, ClaimNotFound),
    ],
)
def test_reading(claim: Claim, accepted: bool, error: type[LeaseholdError] | None) -> None:
    """Only what is whole, or whose loss was accepted."""
    if error is None:
        rules.check_readable(claim, accepted)
    else:
        with pytest.raises(error):
            rules.check_readable(claim, accepted)


def test_a_claim_begins_without_members() -> None:
    """With what the first call said."""
    command = OpenClaim("coho", "videos", "nightly", 1, 3, 100, 30, "driver", 5_000)
    claim = rules.begin(command, NOW)
    expected = replace(OPENING, size=0, max_bytes=5_000, opened_at_ms=NOW)
    assert claim == expected


@pytest.mark.parametrize(
    ("limit", "taken", "full", "reached", "state"),
    [
        (100, 5, False, False, ClaimState.OPEN),
        (100, 5, True, False, ClaimState.OPENING),
        (15, 5, True, False, ClaimState.OPEN),
        (100, 5, True, True, ClaimState.OPEN),
        (100, 0, False, False, ClaimState.OPEN),
    ],
)
def test_steps(limit: int, taken: int, full: bool, reached: bool, state: ClaimState) -> None:
    """It stays open for more after a full step, while there is room."""
    claim = replace(OPENING, limit=limit)
    after = rules.after_step(claim, taken, full, reached, NOW, 60)
    expected = replace(claim, size=10 + taken, state=state, until_ms=NOW + 60_000)
    assert after == expected


def taken(claim: Claim, messages: list[tuple[int, int]], had_bytes: int = 0) -> rules.Step:
    """Take messages of these dequeue counts and sizes, as many as may be; return the step."""
    step = rules.Step(claim, had_bytes)
    for place, message in enumerate(messages, start=1):
        if not step.takes(*message):
            assert place == len(messages)
            break
    return step


def test_the_size_of_a_step() -> None:
    """As many as one step takes, or as the claim has room for; fewer of those received before."""
    large = replace(OPENING, limit=10**6)
    assert rules.Step(large, 0).room == CLAIM_STEP
    assert rules.Step(large, 0, 500).room == 500
    assert rules.Step(OPENING, 0).room == 90
    assert rules.Step(large, 0).is_full(CLAIM_STEP)
    assert rules.Step(large, 0, 500).is_full(500)
    assert not rules.Step(large, 0).is_full(CLAIM_STEP - 1)
    step = taken(large, [(0, 1), *[(1, 1)] * AGAIN_STEP])
    assert step.is_full(AGAIN_STEP + 1)
    step.begin()
    assert not step.is_full(AGAIN_STEP + 1)


def test_bytes() -> None:
    """Taking ends with the message that reaches the limit; one is taken always."""
    claim = replace(OPENING, size=0, max_bytes=50)
    assert taken(claim, [(0, 20), (0, 20), (0, 20)]).taken_bytes == 60
    assert taken(claim, [(0, 20), (0, 30)]).reaches_bytes
    assert taken(claim, [(0, 90)]).reaches_bytes
    assert taken(replace(claim, max_bytes=0), [(0, 90)]).reaches_bytes
    assert taken(replace(claim, size=1), [(0, 20)], had_bytes=40).reaches_bytes
    assert not taken(replace(claim, size=1), [(0, 9)], had_bytes=40).reaches_bytes
    assert not taken(replace(claim, max_bytes=None), [(0, 20), (0, 90)]).reaches_bytes
    ref = BodyRef(key="k", size_bytes=700, sha256="")
    assert size_of(WAITING) == 4
    assert size_of(WAITING._replace(body=b"", detail=Detail(body_ref=ref))) == 700


@pytest.mark.parametrize(
    "before", [CLAIM, LAPSED, replace(CLAIM, state=ClaimState.PARKED)], ids=lambda c: c.state
)
@pytest.mark.parametrize("park", [False, True])
def test_extensions(before: Claim, park: bool) -> None:
    """What had lapsed is open again, and what is parked can be opened."""
    after = rules.after_extension(before, NOW, 90, park)
    expected = replace(
        before,
        state=ClaimState.PARKED if park else ClaimState.OPEN,
        until_ms=NOW + 90_000,
        extensions=1,
    )
    assert after == expected
    lapsed = before.state is ClaimState.LAPSED
    event = EventType.CLAIM_REOPENED if lapsed else EventType.CLAIM_EXTENDED
    assert rules.extension_event(before) is event


def test_what_cannot_be_extended() -> None:
    """A broken claim, and one that nobody has seen."""
    with pytest.raises(ClaimBroken) as refused:
        rules.after_extension(BROKEN, NOW, 90, park=False)
    assert (refused.value.size, refused.value.lost) == (10, 2)
    with pytest.raises(ClaimNotFound):
        rules.after_extension(OPENING, NOW, 90, park=False)


def test_reopening() -> None:
    """A broken claim is open again for those who accept the loss."""
    with pytest.raises(ClaimBroken):
        rules.after_reopening(BROKEN, NOW, 90, accept_loss=False)
    after = rules.after_reopening(BROKEN, NOW, 90, accept_loss=True)
    assert (after.state, after.lost, after.extensions) == (ClaimState.OPEN, 2, 1)
    assert rules.after_reopening(CLAIM, NOW, 90, accept_loss=True).state is ClaimState.OPEN
    assert rules.extension_event(BROKEN) is EventType.CLAIM_REOPENED


def test_lapses_and_losses() -> None:
    """A loss breaks a claim whatever its state; a broken one stays so when it lapses."""
    for claim in (CLAIM, OPENING, LAPSED, BROKEN):
        lost = rules.after_loss(claim, 3)
        assert (lost.state, lost.lost) == (ClaimState.BROKEN, claim.lost + 3)
        assert lost.remaining == claim.remaining - 3
        assert rules.after_loss(claim, 0) is claim
    assert rules.after_lapse(CLAIM).state is ClaimState.LAPSED
    assert rules.after_lapse(BROKEN) is BROKEN


def test_dissolving() -> None:
    """The oldest, beyond those that are kept; those without members do not count."""
    claims = [replace(LAPSED, number=n, until_ms=NOW - n) for n in range(1, MAX_LAPSED + 3)]
    empty = replace(LAPSED, number=99, lost=10)
    chosen = rules.to_dissolve([empty, *claims])
    assert [claim.number for claim in chosen] == [MAX_LAPSED + 2, MAX_LAPSED + 1]
    assert rules.to_dissolve(claims[:MAX_LAPSED]) == []


def test_a_note_is_carried_out_in_any_case() -> None:
    """Without its delay if the message would be gone by then."""
    noted = Exemption(3, "id", Outcome.FAILED, delay_s=2)
    long = WAITING._replace(expires_at_ms=NOW + 2_001)
    assert rules.as_applied(noted, long, NOW) == noted
    assert rules.as_applied(noted, long, NOW + 1) == noted._replace(delay_s=0)
