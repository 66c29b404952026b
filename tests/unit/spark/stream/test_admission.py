"""How much a micro-batch takes: the decisions alone."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

from leasehold.client.models import ClaimInfo, Counts
from leasehold.spark.options import read_options
from leasehold.spark.stream import consumer, reader
from tests.unit.spark.stream.driving import parsed


def counts(visible: int, oldest_age_s: float | None = None) -> Counts:
    """Return counts of a queue of which only these matter."""
    others: dict[str, Any] = dict.fromkeys(("leased", "delayed", "deferred", "poisoned"), 0)
    ages = {} if oldest_age_s is None else {"visible": oldest_age_s}
    return Counts(at_ms=0, visible=visible, total=visible, oldest_age_s=ages, **others)


@pytest.mark.parametrize(
    ("limit", "messages", "size"),
    [
        (ReadMaxRows(7), 7, 1 << 20),
        (ReadMaxRows(5_000_000), 1_000_000, 1 << 20),
        (ReadMaxBytes(99), 500, 99),
        (ReadAllAvailable(), 1_000_000, 1 << 20),
    ],
)
def test_limits(limit: ReadLimit, messages: int, size: int) -> None:
    """What Spark asks for counts, within what a claim can hold."""
    options = parsed(maxMessagesPerTrigger="500", maxBytesPerTrigger="1m")
    assert reader.most_messages(limit, options) == messages
    assert reader.most_bytes(limit, options) == size


@pytest.mark.parametrize(
    ("there", "due"),
    [
        (counts(10), True),
        (counts(9, 59.9), False),
        (counts(9, 60), True),
        (counts(0), False),
    ],
)
def test_due(there: Counts, due: bool) -> None:
    """Enough messages, or one that has waited long enough; never for nothing."""
    assert consumer.is_due(there, 10, 60) is due


@pytest.mark.parametrize(
    ("rows", "given", "processors", "parts"),
    [
        (1, None, 8, 1),
        (5_001, None, 8, 2),
        (1_000_000, None, 8, 8),
        (1_000_000, None, 1, 2),
        (1_000_000, None, 64, 16),
        (1, 5, 1, 5),
        (0, None, 4, 1),
    ],
)
def test_parts(rows: int, given: int | None, processors: int, parts: int) -> None:
    """By rows and processors, unless the user says how many."""
    assert consumer.part_count(rows, given, processors) == parts


@pytest.mark.parametrize(
    ("size", "given", "full"),
    [(10, {}, True), (9, {}, False), (3, {"maxBytesPerTrigger": 9}, True)],
)
def test_full(size: int, given: dict[str, int], full: bool) -> None:
    """A claim that has all it may have is a sign of more; one ended by bytes may be."""
    claim = ClaimInfo(number=1, state="open", size=size, limit=10, max_bytes=1_000)
    assert consumer.is_full(claim, read_options({"queueName": "orders", **given})) is full


@pytest.mark.parametrize(
    ("limit", "given", "most"),
    [
        (ReadMaxRows(10), {}, 256 << 20),
        (ReadMaxRows(10), {"maxBytesPerTrigger": "1g"}, 1 << 30),
        (ReadAllAvailable(), {}, None),
        (ReadAllAvailable(), {"maxBytesPerTrigger": "1g"}, 1 << 30),
        (ReadMaxBytes(77), {}, 77),
    ],
)
def test_bytes(limit: ReadLimit, given: dict[str, str], most: int | None) -> None:
    """A micro-batch is bounded by bytes unless Spark wants all that there is."""
    assert reader.most_bytes(limit, read_options({"queueName": "orders", **given})) == most


def test_a_scope_is_used_up_by_new_claims_only() -> None:
    """A claim that held its messages at the beginning does not count against what was visible."""
    scope = consumer.Scope(10, held=[4])
    assert scope.most(4, 6) == 6
    scope.take(4, 6)
    assert scope.most(5, 6) == 6
    scope.take(5, 6)
    assert scope.most(6, 6) == 4
    scope.take(6, 4)
    assert scope.most(7, 6) == 0
