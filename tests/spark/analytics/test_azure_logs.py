"""Diagnostic logs of Azure Queue Storage as attempts and messages."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from leasehold.advisor.tables.azure_logs import read_lines, tables

_BASE = "https://acme.queue.core.windows.net:443/orders/messages"


def line(second: int, operation: str, rest: str, status: int = 200, **other: Any) -> str:
    """Return a line as Azure writes it."""
    caller = other.pop("caller", "10.0.0.1:5001")
    return json.dumps(
        {
            "time": f"2026-11-21T{other.pop('hour', 9):02}:{second // 60:02}:{second % 60:02}Z",
            "category": "StorageWrite",
            "operationName": operation,
            "statusCode": status,
            "statusText": other.pop("said", "Success"),
            "callerIpAddress": caller,
            "uri": other.pop("base", _BASE) + rest,
            "properties": {"accountName": "acme", "userAgentHeader": "azsdk-python"},
            **other,
        }
    )


LOG = [
    line(0, "PutMessage", "?sig=XXXXX", 201),
    # In time, with a renewal, on another connection.
    line(10, "GetMessages", "?numofmessages=2&visibilitytimeout=20"),
    line(25, "UpdateMessage", "/m1?popreceipt=a&visibilitytimeout=30", 204),
    line(50, "DeleteMessage", "/m1?popreceipt=b", 204, caller="10.0.0.1:5002"),
    # Too late, after another worker had it; that one was in time.
    line(95, "DeleteMessage", "/m2?popreceipt=c", 404, said="MessageNotFound"),
    line(60, "GetMessages", "", caller="10.0.0.2:7000"),
    line(70, "DeleteMessage", "/m2?popreceipt=d", 204, caller="10.0.0.2:7000"),
    # Given back, and taken again.
    line(100, "GetMessages", "?visibilitytimeout=40"),
    line(104, "UpdateMessage", "/m3?popreceipt=e&visibilitytimeout=0", 204),
    line(110, "GetMessages", "?visibilitytimeout=5"),
    line(118, "DeleteMessage", "/m3?popreceipt=f", 204),
]


@pytest.mark.long
def test_attempts_are_told_by_what_holders_did(spark: SparkSession, tmp_path: Path) -> None:
    """Receives are matched by caller; a delete refused is a late completion."""
    (tmp_path / "PT1H.json").write_text("\n".join([*LOG, *LOG[:4], "not json"]))
    found = tables(read_lines(spark, str(tmp_path)))
    rows = found.attempts.orderBy("message_id", "leased_at_ms").collect()
    told = [
        (row.message_id, row.attempt, row.outcome, row.seconds, row.lease_s, row.renewals)
        for row in rows
    ]
    assert told == [
        ("m1", 1, "completed", 40.0, 45.0, 1),
        ("m2", 1, "completed_late", 85.0, 20.0, 0),
        ("m2", 2, "completed", 10.0, 30.0, 0),
        ("m3", 1, "returned", 4.0, 40.0, 0),
        ("m3", 2, "completed_late", 8.0, 5.0, 0),
    ]
    assert [row.reason for row in rows] == [None, "refused", None, None, None]
    assert {row.queue for row in rows} == {"orders"}
    messages = found.messages.orderBy("message_id").collect()
    assert [(row.message_id, row.outcome, row.deliveries) for row in messages] == [
        ("m1", "completed", 1),
        ("m2", "completed", 2),
        ("m3", "completed", 2),
    ]


_OTHERS = "https://acme.queue.core.windows.net/messages/messages"
_EMULATED = "http://127.0.0.1:10001/acme/messages/messages"
AGAIN = [
    # Its worker dies after a renewal, and the same machine gets it two hours later.
    line(0, "GetMessages", "?visibilitytimeout=30"),
    line(20, "UpdateMessage", "/m1?popreceipt=a&visibilitytimeout=30", 204),
    line(0, "GetMessages", "?visibilitytimeout=30", hour=11),
    line(5, "DeleteMessage", "/m1?popreceipt=b", 204, hour=11),
    # Others are received meanwhile, while its lease goes on.
    line(60, "GetMessages", "?visibilitytimeout=30", caller="10.0.0.2:7000"),
    line(80, "UpdateMessage", "/m2?popreceipt=c&visibilitytimeout=30", 204, caller="10.0.0.2:7000"),
    line(90, "GetMessages", "?visibilitytimeout=30", caller="10.0.0.2:7000"),
    line(95, "DeleteMessage", "/m2?popreceipt=d", 204, caller="10.0.0.2:7000"),
    # Its lease was over when others were received, and the delete is refused for that.
    line(200, "GetMessages", "?visibilitytimeout=10", caller="10.0.0.3:7000"),
    line(
        205, "UpdateMessage", "/m3?popreceipt=e&visibilitytimeout=10", 204, caller="10.0.0.3:7000"
    ),
    line(220, "GetMessages", "?visibilitytimeout=10", caller="10.0.0.3:7000"),
    line(225, "DeleteMessage", "/m3?popreceipt=f", 404, caller="10.0.0.3:7000", said="Gone"),
    # A queue of that name; and a request that was sent twice, with two signatures of its receipt.
    line(0, "GetMessages", "", base=_OTHERS, hour=1),
    line(5, "UpdateMessage", "/m4?popreceipt=g&visibilitytimeout=30", 204, base=_OTHERS, hour=1),
    line(5, "UpdateMessage", "/m4?popreceipt=G&visibilitytimeout=30", 204, base=_OTHERS, hour=1),
    line(7, "DeleteMessage", "/m4", 204, base=_OTHERS, hour=1),
    line(20, "GetMessages", "", base=_EMULATED, hour=1),
    line(29, "DeleteMessage", "/m5", 204, base=_EMULATED, hour=1),
]


def test_what_was_received_after_its_lease_is_another_attempt(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A holder may have a message twice. Days are those of UTC; a queue may be named messages."""
    (tmp_path / "PT1H.json").write_text("\n".join(AGAIN))
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        found = tables(read_lines(spark, str(tmp_path)))
        rows = found.attempts.orderBy("message_id", "leased_at_ms").collect()
        days = {row.day for table in found for row in table.select("day").distinct().collect()}
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    told = [
        (row.queue, row.message_id, row.attempt, row.outcome, row.seconds, row.renewals)
        for row in rows
    ]
    assert told == [
        ("orders", "m1", 1, "open", None, 1),
        ("orders", "m1", 2, "completed", 5.0, 0),
        ("orders", "m2", 1, "completed", 35.0, 1),
        ("orders", "m3", 1, "completed_late", 25.0, 1),
        ("messages", "m4", 1, "completed", 7.0, 1),
        ("messages", "m5", 1, "completed", 9.0, 0),
    ]
    assert days == {date(2026, 11, 21)}
