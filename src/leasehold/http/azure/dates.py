"""Times as the protocol writes them: RFC 1123 in most places, ISO 8601 in a few."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from time import gmtime
from typing import Final

from leasehold.auth.times import format_iso_time, parse_iso_time

_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION_DIGITS: Final = 7  # the service counts in units of 100 ns


@lru_cache(maxsize=8192)
def _rfc1123_of_second(second: int) -> bytes:
    # strftime would write the day and the month in the language of the process.
    t = gmtime(second)
    return (
        f"{_DAYS[t.tm_wday]}, {t.tm_mday:02} {_MONTHS[t.tm_mon - 1]} {t.tm_year:04} "
        f"{t.tm_hour:02}:{t.tm_min:02}:{t.tm_sec:02} GMT"
    ).encode("ascii")


def rfc1123(time_ms: int) -> bytes:
    """Write Unix milliseconds as RFC 1123 in GMT; the fraction of a second is dropped."""
    return _rfc1123_of_second(time_ms // 1000)


def iso8601(time_ms: int) -> str:
    """Write Unix milliseconds as ISO 8601 in UTC with seven fraction digits."""
    moment = _EPOCH + timedelta(milliseconds=time_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}0000Z"


def normal_iso8601(text: str) -> str:
    """Rewrite a time of a policy in UTC with seven fraction digits.

    Raises:
        ValueError: It is not of a form that :func:`~leasehold.auth.times.parse_iso_time` takes.
    """
    at_ms = parse_iso_time(text)
    if at_ms is None:
        raise ValueError(text)
    try:
        seconds = format_iso_time(at_ms)[:-1]
    except OverflowError:
        raise ValueError(text) from None
    fraction = text.partition(".")[2].rstrip("Z").partition("+")[0].partition("-")[0]
    return f"{seconds}.{fraction:0<{_FRACTION_DIGITS}.{_FRACTION_DIGITS}}Z"
