"""Times, lengths of time and numbers as people read them."""

from __future__ import annotations

import pytest

from leasehold.domain.model import NEVER_MS
from leasehold.domain.wording import count_of, enumeration, length_of, quote, time_of, times_of


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (-5, "less than 1 s"),
        (999, "less than 1 s"),
        (1_000, "1 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (61_500, "1 min 1 s"),
        (3_600_000, "1 h"),
        (3_659_999, "1 h"),
        (11_520_000, "3 h 12 min"),
        (86_400_000, "1 d"),
        (90_061_000, "1 d 1 h"),
        (86_460_000, "1 d"),
    ],
)
def test_a_length_is_told_in_two_units(length_ms: int, text: str) -> None:
    """A length of time has its two largest units, and no unit that is nothing."""
    assert length_of(length_ms) == text


def test_moments_are_told_to_the_second() -> None:
    """A moment is ISO 8601 in UTC; what lies outside of time is brought inside."""
    assert time_of(1_795_262_400_999) == "2026-11-21T12:00:00Z"
    assert time_of(NEVER_MS + 5_000) == "9999-12-31T23:59:59Z"
    assert time_of(-1) == "1970-01-01T00:00:00Z"


def test_numbers_bend_their_nouns() -> None:
    """One message, two messages, no messages; once, twice, three times."""
    assert [count_of(number, "message") for number in (0, 1, 2)] == [
        "0 messages",
        "1 message",
        "2 messages",
    ]
    assert count_of(2, "entry", "entries") == "2 entries"
    assert [times_of(number) for number in (1, 2, 3)] == ["once", "twice", "3 times"]


def test_parts_are_listed() -> None:
    """The last part is joined with a word."""
    assert enumeration(["a"]) == "a"
    assert enumeration(["a", "b"]) == "a and b"
    assert enumeration(["a", "b", "c"]) == "a, b and c"


def test_a_quotation_is_one_line_and_not_long() -> None:
    """Somebody's words keep to one line, and 120 characters."""
    assert quote("no\n such\torder") == '"no such order"'
    assert quote("x" * 120) == f'"{"x" * 120}"'
    assert quote("x" * 121) == f'"{"x" * 117}..."'
