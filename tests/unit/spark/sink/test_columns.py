"""Which tables can be sent, and what becomes of their rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from leasehold.spark.claimed_rows import BadColumns
from leasehold.spark.options import write_options
from leasehold.spark.sink import Rows
from tests.unit.spark.sink.tables import table_of


def rows_of(ddl: str, **options: str) -> Rows:
    return Rows.of(write_options({"queueName": "orders", **options}), table_of(ddl))


def sent(rows: Rows, **columns: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = rows.messages(pa.RecordBatch.from_pydict(columns)).to_pydict()
    return found


def test_body_alone_is_a_message() -> None:
    """A table with a column body can be sent; text stays text."""
    assert sent(rows_of("body string"), body=["one"]) == {"body": ["one"]}


@pytest.mark.parametrize(
    ("ddl", "text"),
    [
        ("queue string", r"column body is missing.*to_json\(struct\(\*\)\) AS body"),
        ("body binary, priorty int", "no priorty. Did you mean priority?"),
        ("body binary, amount int", r"no amount\..*to_json\(struct\(\*\)\) AS body"),
        ("body bigint", "column body is bigint, and has to be binary or string"),
        ("body binary, delay_s double", "delay_s is double, and has to be a whole number"),
        ("body binary, properties map<string,int>", "has to be map<string,string>"),
        ("body binary, BODY binary", "same name"),
        ("body void", "column body is void"),
        ("body binary, group_id bigint", "column group_id is bigint, and has to be string"),
    ],
)
def test_tables_that_cannot_be_sent(ddl: str, text: str) -> None:
    """A column that is unknown, missing or of a wrong type is named, with what would do."""
    with pytest.raises(BadColumns, match=text):
        rows_of(ddl)


def test_some_queue_has_to_be_named() -> None:
    """Without the option the rows have to name their queue."""
    options = write_options({})
    with pytest.raises(BadColumns, match="name the queue"):
        Rows.of(options, table_of("body binary"))
    assert Rows.of(options, table_of("body binary, queue string")).names == (
        "body",
        "queue",
    )


def test_keys_are_sent_along() -> None:
    """A row may have a deduplication key, which is text."""
    rows = rows_of("body string, Dedup_Key string")
    batch = pa.RecordBatch.from_pydict({"body": ["a", "b"], "Dedup_Key": ["k", None]})
    assert rows.messages(batch).to_pydict() == {"body": ["a", "b"], "dedup_key": ["k", None]}
    with pytest.raises(BadColumns, match="dedup_key is bigint, and has to be string"):
        rows_of("body string, dedup_key bigint")


def test_options_fill_in_what_rows_do_not_say() -> None:
    """Options are for rows without a value, whether the column is missing or the value null."""
    rows = rows_of("Body string, PRIORITY tinyint", delay="5s", timeToLive="1h", priority="3")
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["a", "b"]), pa.array([None, 1], pa.int8())], names=["Body", "PRIORITY"]
    )
    assert rows.messages(batch).to_pydict() == {
        "body": ["a", "b"],
        "delay_s": [5, 5],
        "time_to_live_s": [3600, 3600],
        "priority": [3, 1],
    }


def test_columns_of_nulls_say_nothing() -> None:
    """A column without a type, as NULL AS queue has it, is left out."""
    rows = rows_of("body string, queue void, priority void", priority="2")
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["a"]), pa.nulls(1), pa.nulls(1)], names=["body", "queue", "priority"]
    )
    assert rows.messages(batch).to_pydict() == {"body": ["a"], "priority": [2]}


def test_row_without_body_is_refused() -> None:
    """A null body is a mistake of the query, and said so before anything is staged."""
    with pytest.raises(BadColumns, match="null for its body"):
        sent(rows_of("body string"), body=["one", None])


def test_names_of_groups() -> None:
    """A row may name its group, as text of 1 to 128 characters; null is no group."""
    rows = rows_of("body string, group_id string")
    named = ["a", None, "\u00fc" * 128]
    assert sent(rows, body=["1", "2", "3"], group_id=named)["group_id"] == named
    for bad, shown in (("b" * 129, "129 characters, 'bbb"), ("", "0 characters, ''")):
        with pytest.raises(BadColumns, match=f"group_id of {shown}.*1 to 128: null for no group"):
            sent(rows, body=["1", "2"], group_id=["a", bad])
    assert "group_id" not in sent(
        rows_of("body string, group_id void"), body=["1"], group_id=[None]
    )
