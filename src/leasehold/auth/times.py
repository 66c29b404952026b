"""Times as they stand in requests and signatures, as Unix milliseconds.

Two notations exist: RFC 1123 in the ``Date`` and ``x-ms-date`` headers, and ISO 8601 in shared
access signatures, stored policies and delegation keys. Nothing here reads a clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

_HTTP_DATE_CHARS: Final = 29
_ISO_CHARS_MAX: Final = 40
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_ISO: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:T([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?"
    r"(?:Z|([+-])([0-9]{2}):([0-5][0-9])))?"
)
_OFFSET_HOURS_MAX: Final = 23


def parse_http_date(text: str) -> int | None:
    """Return the moment an RFC 1123 date names, or None when it is not one.

    Only the fixed-length form in GMT counts (``Sat, 21 Nov 2026 00:17:51 GMT``), which RFC 9110
    section 5.6.7 asks of everyone who sends a date.
    """
    # The length is looked at first so that nobody can fill the cache with long texts.
    return _parse_http_date(text) if len(text) == _HTTP_DATE_CHARS else None


# Clients send the same second many times over.
@lru_cache(maxsize=256)
def _parse_http_date(text: str) -> int | None:
    day, month, year = text[5:7], text[8:11], text[12:16]
    hour, minute, second = text[17:19], text[20:22], text[23:25]
    shape = text[3:5] + text[7] + text[11] + text[16] + text[19] + text[22] + text[25:]
    digits = day + year + hour + minute + second
    if shape != ",    :: GMT" or not (digits.isascii() and digits.isdigit()):
        return None
    if month not in _MONTHS or text[:3] not in _DAYS:
        return None
    try:
        moment = datetime(
            int(year),
            _MONTHS.index(month) + 1,
            int(day),
            int(hour),
            int(minute),
            int(second),
            tzinfo=UTC,
        )
    except ValueError:
        return None
    return (moment - _EPOCH) // _MS


def format_http_date(at_ms: int) -> str:
    """Return *at_ms* as an RFC 1123 date in GMT, cut to the second."""
    at = _EPOCH + timedelta(milliseconds=at_ms)
    day, month = _DAYS[at.weekday()], _MONTHS[at.month - 1]
    return f"{day}, {at.day:02} {month} {at.year:04} {at.hour:02}:{at.minute:02}:{at.second:02} GMT"


def parse_iso_time(text: str) -> int | None:
    """Return the moment an ISO 8601 time names, or None when it is not of a known form.

    The forms are ``YYYY-MM-DD`` (midnight UTC), ``YYYY-MM-DDThh:mmTZD`` and
    ``YYYY-MM-DDThh:mm:ssTZD``, the last also with up to nine digits of a second; TZD is ``Z`` or
    an offset such as ``+02:00``. Source: Azure Storage, "Create a service SAS", accepted formats.
    """
    return _parse_iso_time(text) if len(text) <= _ISO_CHARS_MAX else None


@lru_cache(maxsize=1024)
def _parse_iso_time(text: str) -> int | None:
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, off_hours, off_minutes = match.groups()
    try:
        moment = datetime(
            int(year),
            int(month),
            int(day),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            tzinfo=UTC,
        )
    except ValueError:
        return None
    at_ms = (moment - _EPOCH) // _MS + int((fraction or "").ljust(3, "0")[:3])
    if sign is None:
        return at_ms
    if int(off_hours) > _OFFSET_HOURS_MAX:
        return None
    offset_ms = (int(off_hours) * 60 + int(off_minutes)) * 60_000
    return at_ms - offset_ms if sign == "+" else at_ms + offset_ms


def format_iso_time(at_ms: int) -> str:
    """Return *at_ms* as ``YYYY-MM-DDThh:mm:ssZ``, cut to the second."""
    at = _EPOCH + timedelta(milliseconds=at_ms)
    return f"{at.year:04}-{at.month:02}-{at.day:02}T{at.hour:02}:{at.minute:02}:{at.second:02}Z"
