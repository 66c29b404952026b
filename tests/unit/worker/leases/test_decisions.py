"""The check of one message, row by row, and what the answer to a renewal means."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from leasehold.worker.adapters.protocol import (
    BodyTooLarge,
    Denied,
    LeaseGone,
    NotSupported,
    QueueMissing,
    Renewed,
    Unreachable,
)
from leasehold.worker.leases import HeldState
from leasehold.worker.leases.decisions import (
    Action,
    Verdict,
    call_timeout_s,
    decide,
    is_ambiguous,
    judge,
    look_again_s,
    retry_s,
)
from tests.unit.worker.leases.support import THIRTY


@dataclass(frozen=True)
class Entry:
    """A message received at 0, with a lease until 30."""

    state: HeldState = HeldState.HELD
    is_in_flight: bool = False
    registered_s: float = 0
    deadline_s: float = 30
    early_s: float = 0
    expires_s: float = math.inf
    longest_s: float = math.inf


ENTRY = Entry()
FLYING = replace(ENTRY, is_in_flight=True)
OVERDUE_S = 1000


@pytest.mark.parametrize("state", [state for state in HeldState if state is not HeldState.HELD])
def test_row_1_settled_or_over(state: HeldState) -> None:
    """What is being settled, or over in any way, is left alone, however late it is."""
    assert decide(replace(ENTRY, state=state), OVERDUE_S, THIRTY) is Action.NOTHING


@pytest.mark.parametrize("now_s", [0, 20, 29.9, 30.9])
def test_row_2_in_flight(now_s: float) -> None:
    """What is in flight is skipped, until its deadline is well past."""
    assert decide(FLYING, now_s, THIRTY) is Action.SKIP


def test_row_2_does_not_hide_bad_news() -> None:
    """A request that hangs beyond the deadline and the lag allowed is waited for no longer."""
    assert decide(FLYING, 30 + THIRTY.allowed_lag_s, THIRTY) is Action.LOSE


@pytest.mark.parametrize(("now_s", "expected"), [(119.9, Action.NOTHING), (120, Action.ABANDON)])
def test_row_3_longer_than_message_timeout(now_s: float, expected: Action) -> None:
    """After message_timeout_s since the receive it is abandoned, however good its lease is."""
    assert decide(replace(ENTRY, deadline_s=500), now_s, THIRTY) is expected


def test_row_3_comes_before_row_4() -> None:
    """What is both too old and lapsed is abandoned."""
    assert decide(ENTRY, 120, THIRTY) is Action.ABANDON


@pytest.mark.parametrize(("now_s", "expected"), [(29.9, Action.RENEW), (30, Action.LOSE)])
def test_row_4_deadline(now_s: float, expected: Action) -> None:
    """At the deadline it is lost, and nothing is sent."""
    assert decide(ENTRY, now_s, THIRTY) is expected


@pytest.mark.parametrize(("now_s", "expected"), [(0, Action.NOTHING), (14.9, Action.NOTHING)])
def test_row_5_enough_left(now_s: float, expected: Action) -> None:
    """Nothing is done while more is left than the timer's interval and the minimal life."""
    assert decide(ENTRY, now_s, THIRTY) is expected


@pytest.mark.parametrize("now_s", [15, 20, 29])
def test_row_6_renew(now_s: float) -> None:
    """Then it is renewed."""
    assert decide(ENTRY, now_s, THIRTY) is Action.RENEW


def test_the_first_published_rule_alone_would_lose_it() -> None:
    """Timer 20, life 5: a check at 20 s finds 10 s left; at the next the lease would be over."""
    slow = replace(THIRTY, timer_interval_s=20, message_minimal_life_s=5, call_timeout_s=3)
    assert slow.problems() == []
    assert decide(ENTRY, 20, slow) is Action.RENEW


def test_rows_5_and_6_spread() -> None:
    """Some are renewed earlier than others."""
    early = replace(ENTRY, early_s=3)
    assert [decide(early, now_s, THIRTY) for now_s in (11.9, 12)] == [Action.NOTHING, Action.RENEW]


@pytest.mark.parametrize("early_s", [0, 1.5])
@pytest.mark.parametrize("deadline_s", [30, 115, 500])
def test_when_to_look_again(deadline_s: float, early_s: float) -> None:
    """At the moment to look again there is something to do, and just before there is not."""
    entry = replace(ENTRY, deadline_s=deadline_s, early_s=early_s)
    moment_s = look_again_s(entry, THIRTY, 0)
    assert decide(entry, moment_s - 0.01, THIRTY) is Action.NOTHING
    assert decide(entry, moment_s, THIRTY) is not Action.NOTHING


# --- answers ---------------------------------------------------------------------------------


def test_row_6a_renewed() -> None:
    """A new receipt is good news."""
    assert judge(Renewed("r2")) is Verdict.RENEWED


@pytest.mark.parametrize("error", [LeaseGone("gone"), QueueMissing("no queue")])
def test_row_6b_gone(error: Exception) -> None:
    """Neither the message nor the queue comes back."""
    assert judge(error) is Verdict.LOST


@pytest.mark.parametrize("error", [Unreachable("503"), KeyError("a fault of the SDK")])
def test_row_6c_not_now(error: Exception) -> None:
    """What is not an answer is tried again, whatever it is."""
    assert judge(error) is Verdict.RETRY


@pytest.mark.parametrize("error", [Denied("403"), NotSupported("no"), BodyTooLarge("large")])
def test_row_6d_never(error: Exception) -> None:
    """What will never be granted is not tried again."""
    assert judge(error) is Verdict.DENIED


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Unreachable("no route", outcome_unknown=False), False),
        (Unreachable("no answer"), True),
        (ValueError("a fault of the SDK"), True),
    ],
)
def test_row_6c_ambiguous(error: Exception, *, expected: bool) -> None:
    """Only what was surely not sent has surely not changed the receipt."""
    assert is_ambiguous(error) is expected


@pytest.mark.parametrize(("dice", "expected_s"), [(0, 22.5), (1, 25)])
def test_row_6c_retries_before_the_next_tick(dice: float, expected_s: float) -> None:
    """A retry comes with jitter, not later than the timer's interval."""
    assert retry_s(Unreachable("503"), 20, 30, THIRTY, dice) == expected_s


def test_row_6c_retries_until_the_deadline() -> None:
    """The last look is at the deadline itself, so that the loss is known at once."""
    assert retry_s(Unreachable("503"), 29, 30, THIRTY, 0.5) == 30


@pytest.mark.parametrize(("asked_s", "expected_s"), [(1, 22.5), (4, 24), (60, 25)])
def test_row_6c_services_may_ask_for_time(asked_s: float, expected_s: float) -> None:
    """A service that asks to be left alone is, for up to half of what is left."""
    error = Unreachable("429", retry_after_s=asked_s)
    assert retry_s(error, 20, 30, THIRTY, 0) == expected_s


@pytest.mark.parametrize(("now_s", "expected_s"), [(15, 6), (26, 4), (29.99, 0.05)])
def test_no_request_outlives_its_lease(now_s: float, expected_s: float) -> None:
    """A request may take call_timeout_s, or what is left of the lease if that is less."""
    assert call_timeout_s(now_s, 30, THIRTY) == expected_s
