"""The check of an event log for tests that have the events at hand."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final

from leasehold.domain.events import Event
from leasehold.events.check import FIELDS, Checker, Report, Row

NO_GRACE_MS: Final = 10**12
"""Random work sweeps when it likes, so that leases may go on for long after their session."""
_get = attrgetter(*FIELDS)


def row_of_event(event: Event) -> Row:
    """Return an event of a store as the checker takes it."""
    return Row._make(_get(event))


def checked(rows: Iterable[Row], **how: Any) -> Report:
    """Return what is found in a log."""
    checker = Checker(**how)
    checker.feed(rows)
    return checker.end()
