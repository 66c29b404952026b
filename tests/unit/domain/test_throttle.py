"""The token bucket that limits receives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.domain.model import NEVER_MS
from leasehold.domain.visibility import Bucket, allowance, next_token_ms, spend

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(("rate_per_s", "count"), [(50.0, 50), (2.5, 2), (1.0, 1), (0.01, 1)])
def test_a_new_bucket_holds_one_second(rate_per_s: float, count: int) -> None:
    """A queue that has given nothing yet may give one second's worth, and at least one."""
    assert allowance(None, rate_per_s, NOW_MS) == (count, Bucket(max(1.0, rate_per_s), NOW_MS))


def test_what_is_spent_comes_back_with_time() -> None:
    """Ten a second is one more every tenth of a second, and never more than ten at once."""
    count, bucket = allowance(None, 10.0, NOW_MS)
    bucket = spend(bucket, count)
    assert allowance(bucket, 10.0, NOW_MS)[0] == 0
    assert allowance(bucket, 10.0, NOW_MS + 99)[0] == 0
    assert allowance(bucket, 10.0, NOW_MS + 100)[0] == 1
    assert allowance(bucket, 10.0, NOW_MS + 60_000)[0] == 10


def test_many_small_refills_are_one_large_one() -> None:
    """Asking every millisecond does not lose a message to rounding."""
    bucket = Bucket(0.0, NOW_MS)
    for passed_ms in range(1, 10_001):
        count, bucket = allowance(bucket, 0.1, NOW_MS + passed_ms)
    assert count == 1


def test_a_clock_that_goes_back_refills_nothing() -> None:
    """Nothing is refilled for time that did not pass, and the new time counts from then on."""
    count, bucket = allowance(Bucket(0.0, NOW_MS), 1.0, NOW_MS - 3_600_000)
    assert count == 0
    assert allowance(bucket, 1.0, NOW_MS - 3_600_000 + 1_000)[0] == 1


def test_a_lower_rate_takes_effect_on_a_full_bucket() -> None:
    """A limit that is lowered does not leave the burst of the old one."""
    _, bucket = allowance(None, 100.0, NOW_MS)
    assert allowance(bucket, 2.0, NOW_MS)[0] == 2


def test_a_limit_of_almost_nothing_is_never() -> None:
    """A wait longer than time itself ends at the last moment there is."""
    assert next_token_ms(Bucket(0.0, NOW_MS), 5e-324, NOW_MS) == NEVER_MS


@given(
    tokens=st.floats(0, 1000),
    rate_per_s=st.floats(0.0001, 10_000),
    passed_ms=st.integers(-10_000, 10_000),
)
def test_the_next_message_may_go_when_it_is_said(
    tokens: float, rate_per_s: float, passed_ms: int
) -> None:
    """At the moment given one message may go, and a moment earlier none."""
    now_ms = NOW_MS + passed_ms
    bucket = Bucket(tokens, NOW_MS)
    count, refilled = allowance(bucket, rate_per_s, now_ms)
    at_ms = next_token_ms(bucket, rate_per_s, now_ms)
    assert (at_ms == now_ms) == (count > 0)
    assert allowance(refilled, rate_per_s, at_ms)[0] >= 1
    if at_ms > now_ms:
        assert allowance(refilled, rate_per_s, at_ms - 1)[0] == 0


@given(
    rate_per_s=st.floats(0.5, 1_000), gaps=st.lists(st.integers(0, 5_000), min_size=1, max_size=50)
)
def test_no_more_goes_than_the_rate_and_one_burst(rate_per_s: float, gaps: list[int]) -> None:
    """Over any time, no more is handed out than the rate allows and one second's worth."""
    now_ms, given_out, bucket = NOW_MS, 0, None
    for gap_ms in gaps:
        now_ms += gap_ms
        count, refilled = allowance(bucket, rate_per_s, now_ms)
        bucket = spend(refilled, count)
        given_out += count
    passed_s = (now_ms - NOW_MS) / 1000
    assert given_out <= passed_s * rate_per_s + max(1.0, rate_per_s) + 1e-6
