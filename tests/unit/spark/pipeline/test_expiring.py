"""What expired during a run: counted, listed by name, and told."""

from __future__ import annotations

import json
from pathlib import Path

from leasehold.spark.pipeline.backlog import expired_since, server_time_ms
from leasehold.spark.pipeline.report import Report, Spool
from leasehold.testing import InProcessServer
from leasehold.worker.adapters.specs import QueueSpec


def test_what_expired_since_the_start_is_listed(tmp_path: Path) -> None:
    """Swept or not, with how its body begins; what expired before the run, or lives, is not."""
    with InProcessServer() as server, server.client() as client:
        queue = client.queue("films")
        queue.create()
        queue.put("before", time_to_live_s=10)
        server.advance(10)
        spec = QueueSpec("leasehold", "films", server.connection_string)
        began_ms = server_time_ms(spec)
        tried = queue.put("02harvest.mp4", time_to_live_s=20)
        queue.put("x" * 500, time_to_live_s=30)
        queue.put("lives")
        queue.receive(visibility_timeout_s=5)
        server.advance(60)
        found = expired_since(spec, began_ms)
    assert found.number == 2
    assert [each.text for each in found.listed] == ["02harvest.mp4", "x" * 200]
    first = found.listed[0]
    assert (first.message_id, first.attempts) == (tried.id, 1)
    report = Report(Spool(), {"expired": found.number}, found.listed)
    assert report.expired().column("text").to_pylist() == ["02harvest.mp4", "x" * 200]
    report.write(tmp_path / "gone.json", each="expired")
    report.close()
    rows = [json.loads(line) for line in (tmp_path / "gone.json").read_text().splitlines()]
    assert [row["message_id"] for row in rows] == [each.message_id for each in found.listed]


def test_a_queue_that_cannot_be_asked_tells_nothing() -> None:
    """Azure's service does not know what expired; nor does a server that is away."""
    elsewhere = QueueSpec("azure", "films", "UseDevelopmentStorage=true")
    assert server_time_ms(elsewhere) is None
    assert expired_since(elsewhere, None).number is None
    away = "AccountName=a;AccountKey=a2V5;QueueEndpoint=http://127.0.0.1:9/a;"
    assert server_time_ms(QueueSpec("leasehold", "films", away)) is None
    assert expired_since(QueueSpec("leasehold", "films", away), 1).number is None
