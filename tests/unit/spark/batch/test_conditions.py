"""What of the event log is wanted: options, Spark's filters, and what they leave out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from leasehold.events.parquet import MOMENT, SCHEMA
from leasehold.spark.batch.events import Condition, of_filters, of_options, span, together
from leasehold.spark.options import BadOption, read_options

AT_MS = 1_790_000_000_123
AT = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=AT_MS)
JUST_AFTER = AT + timedelta(microseconds=1)

MOMENTS = pa.table({"happened_at": pa.array([AT_MS - 1, AT_MS, AT_MS + 1], MOMENT)})


def kept(table: pa.Table, *filters: Filter) -> list[dict[str, Any]]:
    taken, left = of_filters(filters)
    assert left == []
    rows: list[dict[str, Any]] = table.filter(together(taken)).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        (EqualTo(("happened_at",), AT), 1),
        (GreaterThan(("happened_at",), AT), 1),
        (GreaterThanOrEqual(("happened_at",), AT), 2),
        (LessThan(("happened_at",), AT), 1),
        (LessThanOrEqual(("happened_at",), AT), 2),
        (GreaterThan(("happened_at",), JUST_AFTER), 1),
        (GreaterThanOrEqual(("happened_at",), JUST_AFTER), 1),
        (LessThan(("happened_at",), JUST_AFTER), 2),
        (LessThanOrEqual(("happened_at",), JUST_AFTER), 2),
        (In(("happened_at",), (AT, None)), 1),
    ],
)
def test_moments_are_compared_as_spark_would(condition: Filter, count: int) -> None:
    """Spark counts in microseconds and the log in milliseconds: no event changes sides."""
    assert len(kept(MOMENTS, condition)) == count


def test_text_numbers_and_nulls() -> None:
    """Columns of text and numbers are compared; a null fits nothing but being null."""
    table = pa.table(
        {
            "type": pa.array(["put", "received", "put"]),
            "dequeue_count": pa.array([0, 1, None], pa.int32()),
        }
    )
    assert len(kept(table, EqualTo(("type",), "put"))) == 2
    assert len(kept(table, In(("dequeue_count",), (0, None)))) == 1
    assert len(kept(table, LessThan(("dequeue_count",), 5))) == 2
    assert len(kept(table, IsNull(("dequeue_count",)))) == 1
    assert len(kept(table, IsNotNull(("dequeue_count",)), EqualTo(("type",), "put"))) == 1


@pytest.mark.parametrize(
    "given",
    [
        Not(EqualTo(("type",), "put")),
        StringStartsWith(("type",), "p"),
        EqualTo(("elsewhere",), 1),
        EqualTo(("type", "member"), "put"),
        EqualTo(("type",), 1),
        EqualTo(("seq",), "1"),
        EqualTo(("seq",), True),
        EqualTo(("happened_at",), JUST_AFTER),
        EqualTo(("happened_at",), datetime(2026, 1, 1)),  # noqa: DTZ001 - without a zone
        GreaterThan(("happened_at",), datetime(2026, 1, 1)),  # noqa: DTZ001 - as above
        In(("happened_at",), (AT, JUST_AFTER)),
    ],
)
def test_other_filters_are_left_to_spark(given: Filter) -> None:
    """A filter that is not evaluated here exactly is given back, the same object."""
    taken, left = of_filters([given])
    assert taken == ()
    assert left == [given]
    assert left[0] is given


def test_every_comparison_can_be_evaluated() -> None:
    """There is an expression for every column of the log."""
    for field in SCHEMA:
        value = "a" if field.type == pa.string() else 1
        table = SCHEMA.empty_table()
        for sign in ("=", ">", ">=", "<", "<="):
            assert table.filter(Condition(field.name, sign, value).expression).num_rows == 0
        assert table.filter(Condition(field.name, "in", (value,)).expression).num_rows == 0


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], (None, None)),
        ([Condition("seq", "=", 5)], (5, 5)),
        ([Condition("seq", ">", 5), Condition("seq", "<", 9)], (6, 8)),
        ([Condition("seq", ">=", 5), Condition("seq", "<=", 9)], (5, 9)),
        ([Condition("seq", ">=", 5), Condition("seq", ">=", 7)], (7, None)),
        ([Condition("seq", "in", (4, 2, 9)), Condition("seq", "<", 5)], (2, 4)),
        ([Condition("seq", "not null"), Condition("place", "=", 1)], (None, None)),
        ([Condition("seq", "in", ())], (None, None)),
    ],
)
def test_span(conditions: list[Condition], expected: tuple[int | None, int | None]) -> None:
    """Conditions on one column narrow what has to be read of it."""
    assert span(conditions, "seq") == expected


def test_options_are_conditions() -> None:
    """Queue, number and times by option; a time without a zone is UTC."""
    zoned = AT.astimezone(timezone(timedelta(hours=2))).isoformat()
    options = read_options(
        {
            "read": "events",
            "queueName": "orders",
            "startingSeq": "7",
            "startingTime": zoned,
            "endingTime": "2026-11-22",
        }
    )
    midnight_ms = int(datetime(2026, 11, 22, tzinfo=UTC).timestamp() * 1000)
    assert of_options(options) == (
        Condition("queue", "=", "orders"),
        Condition("seq", ">", 7),
        Condition("happened_at", ">=", AT_MS),
        Condition("happened_at", "<", midnight_ms),
    )


def test_time_that_is_none() -> None:
    """A time that cannot be read is refused with an example."""
    with pytest.raises(BadOption, match="startingTime: 'yesterday' is not a time such as"):
        of_options(read_options({"read": "events", "startingTime": "yesterday"}))
