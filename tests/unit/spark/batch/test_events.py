"""The event log as a table, from the server and from files, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, Not
from pyspark.sql.types import LongType, StringType, StructField, StructType

from leasehold.client import Client
from leasehold.spark.batch.events import events_reader
from leasehold.spark.options import BadOption, ReadOptions, read_options
from leasehold.spark.schemas import EVENTS, chosen
from leasehold.testing import InProcessServer
from tests.unit.spark.batch.conftest import ReadAll, Rows


@pytest.fixture(params=["pages", "files"])
def where(
    request: pytest.FixtureRequest, server: InProcessServer, busy: str, exported: Path
) -> dict[str, str]:
    """Return where to read the log: from the server, or from the files that it has exported."""
    if request.param == "pages":
        return {"connectionString": server.connection_string}
    server.advance(3_600)
    server.stop()
    assert any(exported.rglob("*.parquet"))
    return {"eventLog": str(exported)}


def given(where: dict[str, str], **more: str) -> ReadOptions:
    return read_options({**where, "read": "events", **more})


def read(where: dict[str, str], read_all: ReadAll, *filters: Any, **more: str) -> Rows:
    options = given(where, **more)
    schema = chosen(EVENTS, options.columns)
    reader = events_reader(options, schema)
    if filters:
        reader.pushFilters([*filters])
    rows = read_all(reader, schema)
    if "place" in schema.names:
        rows.sort(key=lambda row: (row["seq"], row["place"]))
    return rows


def types_of(rows: Rows) -> list[str]:
    return [row["type"] for row in rows]


BEGINNING = [
    "queue-created",
    *["put"] * 4,
    *["received"] * 4,
    "completed",
    "queue-created",
    "poisoned",
    "released",
    "renewed",
    "put",
    "put",
    "staged",
    "put",
]


def test_all_events(where: dict[str, str], read_all: ReadAll) -> None:
    """Every event is a row, in both places the same."""
    rows = read(where, read_all)
    assert sorted(types_of(rows)[: len(BEGINNING)]) == sorted(BEGINNING)
    leased = next(row for row in rows if row["type"] == "renewed")
    assert (leased["queue"], leased["holder"], leased["phase"]) == ("orders", "worker-1", "leased")
    assert leased["visible_at"] - leased["happened_at"] == timedelta(seconds=300)
    assert leased["account"] == "devstoreaccount1"
    assert leased["priority"] == 8
    assert rows[0]["message_id"] is None


def test_both_places_say_the_same(
    server: InProcessServer, busy: str, exported: Path, read_all: ReadAll
) -> None:
    """The server's log and its files give the same rows."""
    pages = read({"connectionString": server.connection_string}, read_all)
    server.stop()
    files = read({"eventLog": str(exported)}, read_all)
    assert pages == files[: len(pages)]
    assert len(pages) >= len(BEGINNING)


@pytest.mark.parametrize("parts", ["1", "3", "1000"])
def test_parts_have_each_event_once(where: dict[str, str], read_all: ReadAll, parts: str) -> None:
    """However the log is cut, each event is in one part."""
    assert read(where, read_all, numPartitions=parts) == read(where, read_all)


def test_columns_and_limit(where: dict[str, str], read_all: ReadAll) -> None:
    """Only the columns named are read, in their order, and no more rows than asked for."""
    rows = read(where, read_all, columns="type,seq", limit="5")
    assert [[*row] for row in rows] == [["type", "seq"]] * 5


def test_queue_and_number(where: dict[str, str], read_all: ReadAll) -> None:
    """One queue's events, and those behind a number."""
    whole = read(where, read_all)
    assert {row["queue"] for row in whole} == {"orders", "orders-poison"}
    own = read(where, read_all, queueName="orders-poison")
    assert own == [row for row in whole if row["queue"] == "orders-poison"]
    behind = read(where, read_all, startingSeq=str(whole[6]["seq"]))
    assert behind == [row for row in whole if row["seq"] > whole[6]["seq"]]


def test_times(where: dict[str, str], read_all: ReadAll) -> None:
    """The first moment is included, the last is not."""
    whole = read(where, read_all)
    late = max(row["happened_at"] for row in whole)
    early = min(row["happened_at"] for row in whole)
    assert early < late
    after = read(where, read_all, startingTime=late.isoformat())
    before = read(where, read_all, endingTime=late.isoformat())
    assert {row["happened_at"] for row in after} == {late}
    assert before + after == whole
    assert read(where, read_all, endingTime=early.isoformat()) == []
    assert read(where, read_all, startingTime="2100-01-01T00:00:00Z") == []


def test_filters(where: dict[str, str], read_all: ReadAll) -> None:
    """With pushdown, filters are applied where the events are."""
    whole = read(where, read_all)
    message_id = next(row["message_id"] for row in whole if row["type"] == "poisoned")
    of_message = read(where, read_all, EqualTo(("message_id",), message_id), pushdown="true")
    assert of_message == [row for row in whole if row["message_id"] == message_id]
    assert len(of_message) >= 3
    ends = read(
        where,
        read_all,
        In(("type",), ("completed", "released")),
        GreaterThan(("seq",), 1),
        columns="type",
        pushdown="true",
    )
    assert sorted(types_of(ends)) == ["completed", "released"]
    other = Not(EqualTo(("type",), "put"))
    reader = events_reader(given(where, pushdown="true"), chosen(EVENTS, given(where).columns))
    assert reader.pushFilters([other]) == [other]


def test_schema_of_the_user(where: dict[str, str], read_all: ReadAll) -> None:
    """A schema that the user gives chooses columns too, if it fits."""
    schema = StructType([StructField("type", StringType()), StructField("fence", LongType())])
    rows = read_all(events_reader(given(where), schema), schema)
    assert [*rows[0]] == ["type", "fence"]
    wrong = StructType([StructField("fence", StringType())])
    with pytest.raises(BadOption, match="column fence is bigint, and not string"):
        events_reader(given(where), wrong)
    with pytest.raises(BadOption, match="no column kind"):
        events_reader(given(where), StructType([StructField("kind", StringType())]))


def test_planning_is_a_few_requests(
    server: InProcessServer,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To find times in a long log takes few looks at it, and leads to the right part."""
    queue = client.queue("orders")
    queue.create()
    for _ in range(100):
        queue.put("x")
        server.advance(600)
    asked = []
    whole = Client.event_page

    def noted(self: Any, **arguments: int) -> Any:
        asked.append(arguments)
        return whole(self, **arguments)

    monkeypatch.setattr(Client, "event_page", noted)
    first = client.event_page(after=0, limit=1).events[0].at_ms
    begin = datetime.fromtimestamp(first / 1000, UTC) + timedelta(seconds=600 * 50)
    options = given(
        {"connectionString": server.connection_string},
        startingTime=begin.isoformat(),
        endingTime=(begin + timedelta(seconds=6_000)).isoformat(),
    )
    [part] = events_reader(options, chosen(EVENTS, options.columns)).partitions()
    assert len(asked) < 20
    assert 40 <= part.value.after <= 51
    assert 58 <= part.value.upto <= 65


def test_empty_log(tmp_path: Path, read_all: ReadAll) -> None:
    """A log without events is a table without rows; a folder that is not there is a mistake."""
    with InProcessServer() as server:
        assert read({"connectionString": server.connection_string}, read_all) == []
    assert read({"eventLog": str(tmp_path)}, read_all) == []
    options = given({"eventLog": str(tmp_path / "nowhere")})
    with pytest.raises(BadOption, match=r"there is no folder .*nowhere"):
        events_reader(options, chosen(EVENTS, options.columns)).partitions()
