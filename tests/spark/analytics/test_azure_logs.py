"""Diagnostic logs of Azure Queue Storage as attempts and messages."""

from __future__ import annotations

import json
from datetime import date
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
from pyspark.sql import Row, SparkSession

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
            "properties": {
                "accountName": other.pop("account", "acme"),
                "userAgentHeader": "azsdk-python",
            },
            **other,
        }
    )


LOG: Final = [
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

again = partial(line, account="again")
_OTHERS = "https://acme.queue.core.windows.net/messages/messages"
_EMULATED = "http://127.0.0.1:10001/acme/messages/messages"
AGAIN: Final = [
    # Its worker dies after a renewal, and the same machine gets it two hours later.
    again(0, "GetMessages", "?visibilitytimeout=30"),
    again(20, "UpdateMessage", "/m1?popreceipt=a&visibilitytimeout=30", 204),
    again(0, "GetMessages", "?visibilitytimeout=30", hour=11),
    again(5, "DeleteMessage", "/m1?popreceipt=b", 204, hour=11),
    # Others are received meanwhile, while its lease goes on.
    again(60, "GetMessages", "?visibilitytimeout=30", caller="10.0.0.2:7000"),
    again(
        80, "UpdateMessage", "/m2?popreceipt=c&visibilitytimeout=30", 204, caller="10.0.0.2:7000"
    ),
    again(90, "GetMessages", "?visibilitytimeout=30", caller="10.0.0.2:7000"),
    again(95, "DeleteMessage", "/m2?popreceipt=d", 204, caller="10.0.0.2:7000"),
    # Its lease was over when others were received, and the delete is refused for that.
    again(200, "GetMessages", "?visibilitytimeout=10", caller="10.0.0.3:7000"),
    again(
        205, "UpdateMessage", "/m3?popreceipt=e&visibilitytimeout=10", 204, caller="10.0.0.3:7000"
    ),
    again(220, "GetMessages", "?visibilitytimeout=10", caller="10.0.0.3:7000"),
    again(225, "DeleteMessage", "/m3?popreceipt=f", 404, caller="10.0.0.3:7000", said="Gone"),
    # A queue of that name; and a request that was sent twice, with two signatures of its receipt.
    again(0, "GetMessages", "", base=_OTHERS, hour=1),
    again(5, "UpdateMessage", "/m4?popreceipt=g&visibilitytimeout=30", 204, base=_OTHERS, hour=1),
    again(5, "UpdateMessage", "/m4?popreceipt=G&visibilitytimeout=30", 204, base=_OTHERS, hour=1),
    again(7, "DeleteMessage", "/m4", 204, base=_OTHERS, hour=1),
    again(20, "GetMessages", "", base=_EMULATED, hour=1),
    again(29, "DeleteMessage", "/m5", 204, base=_EMULATED, hour=1),
]


class Told(NamedTuple):
    """What became of the messages of one account."""

    attempts: list[Row]
    messages: list[Row]


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    """Return the rows of both accounts, told at once, where the day is another one than in UTC."""
    folder = tmp_path_factory.mktemp("logs")
    (folder / "PT1H.json").write_text("\n".join([*LOG, *LOG[:4], "not json", *AGAIN]))
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        found = tables(read_lines(spark, str(folder)))
        attempts, messages = found.attempts.collect(), found.messages.collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    attempts.sort(key=lambda row: (row.message_id, row.leased_at_ms))
    messages.sort(key=lambda row: row.message_id)
    return {
        account: Told(
            [row for row in attempts if row.account == account],
            [row for row in messages if row.account == account],
        )
        for account in ("acme", "again")
    }


@pytest.mark.long
def test_attempts_are_told_by_what_holders_did(told: dict[str, Told]) -> None:
    """Receives are matched by caller; a delete refused is a late completion."""
    attempts, messages = told["acme"]
    assert [
        (row.message_id, row.attempt, row.outcome, row.seconds, row.lease_s, row.renewals)
        for row in attempts
    ] == [
        ("m1", 1, "completed", 40.0, 45.0, 1),
        ("m2", 1, "completed_late", 85.0, 20.0, 0),
        ("m2", 2, "completed", 10.0, 30.0, 0),
        ("m3", 1, "returned", 4.0, 40.0, 0),
        ("m3", 2, "completed_late", 8.0, 5.0, 0),
    ]
    assert [row.reason for row in attempts] == [None, "refused", None, None, None]
    assert {row.queue for row in attempts} == {"orders"}
    assert [(row.message_id, row.outcome, row.deliveries) for row in messages] == [
        ("m1", "completed", 1),
        ("m2", "completed", 2),
        ("m3", "completed", 2),
    ]


@pytest.mark.long
def test_what_was_received_after_its_lease_is_another_attempt(told: dict[str, Told]) -> None:
    """A holder may have a message twice. Days are those of UTC; a queue may be named messages."""
    attempts, messages = told["again"]
    assert [
        (row.queue, row.message_id, row.attempt, row.outcome, row.seconds, row.renewals)
        for row in attempts
    ] == [
        ("orders", "m1", 1, "open", None, 1),
        ("orders", "m1", 2, "completed", 5.0, 0),
        ("orders", "m2", 1, "completed", 35.0, 1),
        ("orders", "m3", 1, "completed_late", 25.0, 1),
        ("messages", "m4", 1, "completed", 7.0, 1),
        ("messages", "m5", 1, "completed", 9.0, 0),
    ]
    assert {row.day for row in (*attempts, *messages)} == {date(2026, 11, 21)}
