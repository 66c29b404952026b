"""Times in headers and signatures."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.auth.sharedkey import format_http_date, parse_http_date
from leasehold.auth.types import format_iso_time, parse_iso_time

_AT_MS = int(datetime(2026, 11, 21, 0, 17, 51, tzinfo=UTC).timestamp()) * 1000


def test_http_date_is_read() -> None:
    """An RFC 1123 date is the second it names."""
    assert parse_http_date("Sat, 21 Nov 2026 00:17:51 GMT") == _AT_MS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-21T00:17:51Z",
        "Sat, 21 Nov 2026 00:17:51 UTC",
        "Sat, 21 Nov 2026 00:17:51 gmt",
        "Sat  21 Nov 2026 00:17:51 GMT",
        "Sat, 21-Nov-2026 00:17:51 GMT",
        "Sat, 31 Feb 2026 00:17:51 GMT",
        "Sat, 21 Nov 2026 24:17:51 GMT",
        "Sat, 21 Nov 2026 00:60:51 GMT",
        "Sat, 21 Nov 2026 00:17:60 GMT",
        "Sat, 21 Now 2026 00:17:51 GMT",
        "Xyz, 21 Nov 2026 00:17:51 GMT",
        "Sat, +1 Nov 2026 00:17:51 GMT",
        "Sat,  1 Nov 2026 00:17:51 GMT",
        "Sat, 2\u0661 Nov 2026 00:17:51 GMT",
        "Sat, 21 Nov 2026 00:17:51 GMT ",
        "Sat, 21 Nov 0000 00:17:51 GMT",
    ],
)
def test_anything_else_is_no_http_date(text: str) -> None:
    """Other forms, and days that do not exist, are not dates."""
    assert parse_http_date(text) is None


@given(st.integers(min_value=0, max_value=253_402_300_799))
def test_both_notations_are_read_back(at_s: int) -> None:
    """What is written is read back to the second."""
    assert parse_http_date(format_http_date(at_s * 1000 + 999)) == at_s * 1000
    assert parse_iso_time(format_iso_time(at_s * 1000 + 999)) == at_s * 1000


@pytest.mark.parametrize(
    ("text", "after_midnight_ms"),
    [
        ("2026-11-21", 0),
        ("2026-11-21T00:17Z", 1_020_000),
        ("2026-11-21T00:17:51Z", 1_071_000),
        ("2026-11-21T00:17:51.1234567Z", 1_071_123),
        ("2026-11-21T00:17:51.9Z", 1_071_900),
        ("2026-11-21T02:17+02:00", 1_020_000),
        ("2026-11-20T18:47:51-05:30", 1_071_000),
    ],
)
def test_iso_times_in_all_forms(text: str, after_midnight_ms: int) -> None:
    """Dates, minutes, seconds and fractions are read, in UTC or with an offset."""
    midnight_ms = int(datetime(2026, 11, 21, tzinfo=UTC).timestamp()) * 1000
    assert parse_iso_time(text) == midnight_ms + after_midnight_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11",
        "2026-11-21Z",
        "2026-11-21T00:17",
        "2026-11-21T00:17:51",
        "2026-11-21 00:17:51Z",
        "2026-11-21T00Z",
        "2026-11-21t00:17:51z",
        "2026-11-21T24:00:00Z",
        "2026-02-30",
        "0000-01-01",
        "2026-11-21T00:17:51.Z",
        "2026-11-21T00:17:51+24:00",
        "2026-11-21T00:17:51+01:60",
        "2026-11-21T00:17:51+0100",
        "2026-11-21T00:17:51Z\n",
        "\u0662026-11-21",
        "2026-11-21T00:17:51Z" + " " * 40,
    ],
)
def test_anything_else_is_no_iso_time(text: str) -> None:
    """A time without its zone, or in another form, is not a time."""
    assert parse_iso_time(text) is None


def test_offset_at_the_end_of_the_calendar() -> None:
    """An offset may reach beyond the years that the calendar has."""
    assert parse_iso_time("0001-01-01T00:00+10:00") == -62_135_596_800_000 - 36_000_000
