"""The page on MNS names every operation, error and range that is there."""

from __future__ import annotations

from typing import Final

from leasehold.domain.limits import MNS
from leasehold.domain.queue_settings import MnsAttributes, QueueSettings
from leasehold.http.mns.call import Operation
from leasehold.http.mns.errors import CODES
from leasehold.http.mns.messages import MAX_BYTES, MAX_ENTRIES
from leasehold.http.mns.queues import MAX_RESULTS, RANGES
from tests.docs.pages import code, read, rows, section

PAGE: Final = read("reference/mns-conformance.md")


def test_every_operation() -> None:
    """Each has its row."""
    listed = {code(row[0])[0] for row in rows(section(PAGE, "## Operations")) if code(row[0])}
    assert listed == set(Operation)


def test_every_code() -> None:
    """Each has its row with its status, and those never sent are apart."""
    text = section(PAGE, "## Errors")
    listed = {code(row[0])[0]: int(row[1]) for row in rows(text) if code(row[0])}
    assert listed == {name: meaning.status for name, meaning in CODES.items()}
    assert set(code(text.rpartition("never sent")[2])) & set(CODES) == set()


def test_every_attribute() -> None:
    """Each has its range and its default."""
    listed = {code(row[0])[0]: row for row in rows(section(PAGE, "## Attributes")) if code(row[0])}
    attributes, settings = MnsAttributes(), QueueSettings()
    defaults = {
        "DelaySeconds": attributes.delay_s,
        "MaximumMessageSize": MNS.body_bytes,
        "MessageRetentionPeriod": attributes.time_to_live_s,
        "VisibilityTimeout": settings.visibility_timeout_s,
        "PollingWaitSeconds": attributes.wait_s,
    }
    assert set(listed) == {*RANGES, "LoggingEnabled"}
    for name, (low, high) in RANGES.items():
        assert listed[name][1].startswith(f"{low:,} to {high:,} "), name
        assert listed[name][2] == f"{defaults[name]:,}", name


def test_limits() -> None:
    """The numbers of the page are those of the code."""
    for number in (MAX_ENTRIES, MAX_RESULTS, MAX_BYTES, MNS.body_bytes):
        assert f"{number:,}" in PAGE
