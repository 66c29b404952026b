"""Failing: attempts, waits between them, and when a message is given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.domain.failures import (
    backoff_ms,
    close_attempt,
    exhausted_on_receive,
    exhausted_on_release,
    has_lapsed,
    last_error,
    release_reason,
)
from leasehold.domain.model import (
    MAX_ATTEMPTS,
    Attempt,
    Detail,
    ErrorReport,
    Message,
    Outcome,
    Phase,
    Progress,
)
from leasehold.domain.queue_settings import Backoff, BackoffKind, FailurePolicy

LEASED_MS = 1_000
ENDED_MS = 9_000
LEASED = Message(
    message_id="id",
    body=b"work",
    inserted_at_ms=0,
    expires_at_ms=1_000_000,
    visible_at_ms=31_000,
    dequeue_count=3,
    fence=7,
    phase=Phase.LEASED,
    since_ms=LEASED_MS,
    visible_since_ms=500,
    renewals=2,
    holder="worker-7",
    detail=Detail(
        message_type="order",
        progress=Progress(at_ms=2_000, fraction=0.5),
        failures=1,
        interruptions=1,
    ),
)


@pytest.mark.parametrize(
    ("kind", "waits_s"),
    [
        (BackoffKind.FIXED, [4, 4, 4, 4, 4]),
        (BackoffKind.LINEAR, [4, 8, 12, 16, 20]),
        (BackoffKind.EXPONENTIAL, [4, 12, 36, 60, 60]),
    ],
)
def test_the_wait_grows_by_its_kind(kind: BackoffKind, waits_s: list[int]) -> None:
    """The wait is the same, rises by the first one, or by the factor, up to the cap."""
    backoff = Backoff(kind=kind, initial_s=4, factor=3, cap_s=60, jitter=0)
    waits = [backoff_ms(backoff, failures, 0.9) for failures in range(1, 6)]
    assert waits == [1000 * wait for wait in waits_s]


def test_linear_growth_is_capped() -> None:
    """A linear wait stops at the cap, and is never shorter than the first one."""
    backoff = Backoff(kind=BackoffKind.LINEAR, initial_s=4, cap_s=10, jitter=0)
    assert backoff_ms(backoff, 3, 0.5) == 10_000
    assert backoff_ms(backoff, 0, 0.5) == 4_000


@pytest.mark.parametrize(("dice", "wait_ms"), [(0.0, 8_000), (0.5, 10_000), (1.0, 12_000)])
def test_jitter_is_a_share_either_way(dice: float, wait_ms: int) -> None:
    """A jitter of 0.2 spreads a wait of 10 s from 8 s to 12 s, beyond the cap if need be."""
    assert backoff_ms(Backoff(initial_s=10, cap_s=10, jitter=0.2), 1, dice) == wait_ms


def test_a_wait_of_nothing_stays_nothing() -> None:
    """Exponential growth from 0 is 0, also where the factor alone would overflow."""
    assert backoff_ms(Backoff(initial_s=0), 100_000, 1.0) == 0


@given(
    kind=st.sampled_from(BackoffKind),
    initial_s=st.floats(0, 604_800),
    factor=st.floats(1, 10),
    cap_s=st.floats(0, 604_800),
    jitter=st.floats(0, 1),
    failures=st.integers(-1, 10**400),
    dice=st.floats(0, 1),
)
def test_no_count_of_failures_is_too_large(
    kind: BackoffKind,
    initial_s: float,
    factor: float,
    cap_s: float,
    jitter: float,
    failures: int,
    dice: float,
) -> None:
    """Whatever is set and however often it failed, the wait is from 0 to twice the cap."""
    backoff = Backoff(kind=kind, initial_s=initial_s, factor=factor, cap_s=cap_s, jitter=jitter)
    assert 0 <= backoff_ms(backoff, failures, dice) <= 2_000 * cap_s + 1


def counted(
    dequeue_count: int = 0, failures: int = 0, interruptions: int = 0, lapses: int = 0
) -> Message:
    detail = Detail(failures=failures, interruptions=interruptions, lapses=lapses)
    return LEASED._replace(dequeue_count=dequeue_count, detail=detail)


@pytest.mark.parametrize(
    ("message", "policy", "reason"),
    [
        (counted(2), FailurePolicy(max_deliveries=3), None),
        (counted(3), FailurePolicy(max_deliveries=3), "max_deliveries"),
        (counted(3, interruptions=1), FailurePolicy(max_deliveries=3), None),
        (counted(4, interruptions=1), FailurePolicy(max_deliveries=3), "max_deliveries"),
        (counted(9, failures=1), FailurePolicy(max_failures=2), None),
        (counted(9, failures=2), FailurePolicy(max_failures=2), "max_failures"),
        (counted(9, interruptions=1), FailurePolicy(max_interruptions=2), None),
        (counted(9, interruptions=2), FailurePolicy(max_interruptions=2), "max_interruptions"),
        (counted(9, lapses=1), FailurePolicy(max_lapses=2), None),
        (counted(9, lapses=2), FailurePolicy(max_lapses=2), "max_lapses"),
        (counted(99, 99, 99, 99), FailurePolicy(), None),
    ],
)
def test_each_budget_is_counted_by_itself(
    message: Message, policy: FailurePolicy, reason: str | None
) -> None:
    """A message is given up when one budget is used up; interruptions are not deliveries."""
    assert exhausted_on_receive(message, policy) == reason
    assert exhausted_on_release(message, policy, Outcome.FAILED) == reason


def test_a_buried_message_goes_whatever_the_budgets_say() -> None:
    """A worker may bury a message of a queue that has no policy at all."""
    assert exhausted_on_release(counted(1), FailurePolicy(), Outcome.BURIED) == "buried"
    assert release_reason(counted(1), None, Outcome.BURIED) == "buried"
    assert release_reason(counted(99, failures=99), None, Outcome.FAILED) is None
    assert release_reason(counted(1), FailurePolicy(max_deliveries=1), Outcome.FAILED) == (
        "max_deliveries"
    )


def test_a_message_whose_lease_an_operator_ended_stays() -> None:
    """Ending a lease by hand does not move the message away at once."""
    assert exhausted_on_release(counted(9), FailurePolicy(max_deliveries=1), Outcome.ENDED) is None


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [
        (Outcome.FAILED, (2, 1, 0)),
        (Outcome.INTERRUPTED, (1, 2, 0)),
        (Outcome.LAPSED, (1, 1, 1)),
        (Outcome.RETURNED, (1, 1, 0)),
        (Outcome.ENDED, (1, 1, 0)),
        (Outcome.BURIED, (1, 1, 0)),
    ],
)
def test_an_attempt_is_written_down_once(outcome: Outcome, counts: tuple[int, int, int]) -> None:
    """Closing an attempt notes it, raises the one counter it belongs to, and ends progress."""
    error = ErrorReport(text="no such order", type="KeyError")
    closed = close_attempt(LEASED, outcome, ENDED_MS, error)
    detail = closed.detail
    assert detail.attempts == (
        Attempt(
            number=3,
            leased_at_ms=LEASED_MS,
            ended_at_ms=ENDED_MS,
            outcome=outcome,
            holder="worker-7",
            renewals=2,
            error=error,
            fence=7,
        ),
    )
    assert (detail.failures, detail.interruptions, detail.lapses) == counts
    assert detail.progress is None
    assert closed._replace(detail=LEASED.detail) == LEASED
    assert detail.message_type == "order"


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.DELAYED, Phase.DEFERRED])
def test_without_a_lease_there_is_no_attempt(phase: Phase) -> None:
    """A sender who gives a message back has not tried it."""
    message = LEASED._replace(phase=phase)
    assert close_attempt(message, Outcome.RETURNED, ENDED_MS, None) == message


def test_the_first_and_the_latest_attempts_are_kept() -> None:
    """However often a message fails, its history stays short, without losing how it began."""
    message = LEASED
    for number in range(1, 51):
        message = close_attempt(
            message._replace(dequeue_count=number), Outcome.FAILED, ENDED_MS, None
        )
        assert len(message.detail.attempts) == min(number, MAX_ATTEMPTS)
    numbers = [attempt.number for attempt in message.detail.attempts]
    assert numbers == [1, *range(50 - MAX_ATTEMPTS + 2, 51)]


@pytest.mark.parametrize(
    ("phase", "now_ms", "lapsed"),
    [
        (Phase.LEASED, 31_000, True),
        (Phase.LEASED, 30_999, False),
        (Phase.DEFERRED, 31_000, False),
        (Phase.WAITING, 31_000, False),
        (Phase.DELAYED, 31_000, False),
    ],
)
def test_only_a_lease_can_lapse(phase: Phase, now_ms: int, lapsed: bool) -> None:
    """A lease lapses at its end; the end of a delay is no lapse."""
    assert has_lapsed(LEASED._replace(phase=phase), now_ms) is lapsed


def test_the_last_error_is_the_latest_with_a_report() -> None:
    """An attempt that ended without a report does not hide the error before it."""
    assert last_error(LEASED) is None
    first = close_attempt(LEASED, Outcome.FAILED, 1, ErrorReport(text="first"))
    second = close_attempt(first, Outcome.FAILED, 2, ErrorReport(text="second"))
    found = last_error(close_attempt(second, Outcome.LAPSED, 3, None))
    assert found is not None
    assert (found.ended_at_ms, found.error) == (2, ErrorReport(text="second"))
