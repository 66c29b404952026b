"""What became of each message, as tables and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from leasehold.client.models import Event
from leasehold.spark.pipeline.backlog import WHY, completed_by
from leasehold.spark.pipeline.report import Report, Spool, StageRun, check_path
from leasehold.worker.adapters.specs import QueueSpec
from tests.unit.spark.pipeline.support import row, who


@pytest.fixture
def report() -> Iterator[Report]:
    """Two messages, one of which was resumed on another executor after a crash."""
    spool = Spool()
    first, second = who("a", "vm:1", task=0), who("b", "vm:2", task=1)
    lost = row("m1", outcome="lost", reason="the session is lost")
    done = row("m1", delivery=2, resumed_at="encode", stages=[StageRun("encode", 20_000, 2.0)])
    # The later delivery is known first.
    spool.add(second, [done])
    spool.add(first, [lost, row("m2", outcome="poisoned", reason="no film")])
    made = Report(spool, {"done": 1, "poisoned": 1})
    yield made
    made.close()


def test_a_message_is_what_its_last_delivery_was(report: Report) -> None:
    """It has the stages of all, and names all executors."""
    rows = {each["message_id"]: each for each in report.messages().to_pylist()}
    assert len(rows) == 2
    assert (rows["m1"]["outcome"], rows["m1"]["attempts"], rows["m1"]["reason"]) == (
        "done",
        2,
        None,
    )
    assert [each["stage"] for each in rows["m1"]["stages"]] == ["scan", "encode"]
    assert rows["m1"]["executors"] == ["vm:1", "vm:2"]
    assert rows["m1"]["executor"] == "vm:2"
    assert (rows["m2"]["outcome"], rows["m2"]["reason"]) == ("poisoned", "no film")
    assert rows["m1"]["began_at"].timestamp() == 10


def test_deliveries_are_rows_of_their_own(report: Report) -> None:
    """Where each began, where it ran, and how it ended."""
    rows = report.deliveries().to_pylist()
    assert [(each["message_id"], each["delivery"], each["outcome"]) for each in rows] == [
        ("m1", 2, "done"),
        ("m1", 1, "lost"),
        ("m2", 1, "poisoned"),
    ]
    assert [each["resumed_at"] for each in rows] == ["encode", None, None]
    assert [each["task"] for each in rows] == [1, 0, 0]


def test_it_is_written_as_parquet_and_as_lines_of_json(report: Report, tmp_path: Path) -> None:
    """By the suffix; both have the same rows."""
    report.write(tmp_path / "all.parquet")
    report.write(tmp_path / "all.jsonl")
    report.write(tmp_path / "each.json", each="delivery")
    assert pq.read_table(tmp_path / "all.parquet").equals(report.messages())
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [line["message_id"] for line in lines] == report.messages()["message_id"].to_pylist()
    assert lines[0]["began_at"].startswith("1970-01-01T00:00:10")
    assert len((tmp_path / "each.json").read_text().splitlines()) == 3


def test_other_forms_are_refused_before_anything_is_done(report: Report, tmp_path: Path) -> None:
    """A run of hours must not end with a mistake in a file name."""
    with pytest.raises(ValueError, match=r"\.json, \.jsonl, \.ndjson, \.parquet"):
        check_path("all.xls")
    with pytest.raises(ValueError, match="is written as"):
        report.write(tmp_path / "all.csv")
    with pytest.raises(ValueError, match="'message', 'delivery' or 'expired'"):
        report.write(tmp_path / "all.json", each="stage")


def test_rows_can_be_read_while_others_come() -> None:
    """Reading sees what was there when it began, and disturbs nobody who writes."""
    spool = Spool()
    spool.add(who(), [row("m1"), row("m2")])
    reading = spool.read()
    assert next(reading)[1].message_id == "m1"
    spool.add(who(), [row("m3")])
    assert [each.message_id for _, each in reading] == ["m2"]
    assert [each.message_id for _, each in spool.read()] == ["m1", "m2", "m3"]
    assert spool.rows == 3
    spool.close()


def test_what_a_dead_task_has_completed_is_found_in_the_event_log() -> None:
    """Only completions of that queue by that task, and none that is known already."""
    dead = who("dead")

    def event(number: int, **more: object) -> Event:
        members: dict[str, object] = {
            "seq": number,
            "place": 0,
            "at_ms": 5000,
            "type": "completed",
            "queue": "films",
            "message_id": f"m{number}",
            "holder": "films 0.0 dead@vm:7:abc",
            "dequeue_count": 2,
            "since_ms": 4000,
        }
        return Event(**(members | more))  # type: ignore[arg-type]  # by name

    events = [
        event(1),
        event(2),
        event(3, type="received"),
        event(4, queue="books"),
        event(5, holder="films 1.0 alive@vm:8:abc"),
        event(6, holder=None),
    ]
    found = list(completed_by(events, QueueSpec("leasehold", "films"), [dead], {"m2"}))
    [(by, made)] = found
    assert by is dead
    assert (made.message_id, made.outcome, made.delivery, made.reason) == ("m1", "done", 2, WHY)
    assert (made.began_at_ms, made.ended_at_ms) == (4000, 5000)
