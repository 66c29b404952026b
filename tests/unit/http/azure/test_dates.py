"""Times as the protocol writes them."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.auth.types import parse_iso_time
from leasehold.domain.model import NEVER_MS
from leasehold.http.azure.call import iso8601, normal_iso8601, rfc1123


@given(st.integers(0, NEVER_MS))
def test_rfc1123_is_what_the_library_writes(time_ms: int) -> None:
    """Every second up to the end of 9999 is written as RFC 1123 in GMT, fraction dropped."""
    moment = datetime(1970, 1, 1, tzinfo=UTC).fromtimestamp(time_ms // 1000, UTC)
    assert rfc1123(time_ms).decode() == format_datetime(moment, usegmt=True)


def test_never_is_the_last_second_of_9999() -> None:
    """A message that never expires shows the date that clients look for."""
    assert rfc1123(NEVER_MS) == b"Fri, 31 Dec 9999 23:59:59 GMT"


def test_iso8601_has_seven_fraction_digits() -> None:
    """Milliseconds are padded to units of 100 ns."""
    assert iso8601(1_767_225_600_042) == "2026-01-01T00:00:00.0420000Z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02", "2026-01-02T00:00:00.0000000Z"),
        ("2026-01-02T03:04Z", "2026-01-02T03:04:00.0000000Z"),
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.0000000Z"),
        ("2026-01-02T03:04:05.5Z", "2026-01-02T03:04:05.5000000Z"),
        ("2026-01-02T03:04:05.1234567Z", "2026-01-02T03:04:05.1234567Z"),
        ("2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05.1234567Z"),
        ("2026-01-02T03:04:05.25+02:00", "2026-01-02T01:04:05.2500000Z"),
        ("2026-01-02T03:04:05-03:30", "2026-01-02T06:34:05.0000000Z"),
    ],
)
def test_policy_times_are_rewritten(text: str, expected: str) -> None:
    """Every accepted form becomes UTC with seven fraction digits."""
    assert normal_iso8601(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-13-01",
        "2026-02-30T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:00:00",
        "2026-01-01 00:00:00Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "٢٠٢٦-01-01",
    ],
)
def test_other_policy_times_are_refused(text: str) -> None:
    """What is no time, or lies outside the calendar, is a ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011 - the text itself is the message
        normal_iso8601(text)


@given(st.text(max_size=30))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    """No text makes the rewriting fail in another way."""
    try:
        written = normal_iso8601(text)
    except ValueError:
        return
    assert normal_iso8601(written) == written
    assert parse_iso_time(written) == parse_iso_time(text)
