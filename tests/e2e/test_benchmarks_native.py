"""The benchmarks of the native API: their load, their checks, and PostgreSQL beside it.

A small server stands in for Leasehold, so that it can be made to answer wrongly.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from benchmarks.figures import Bar
from benchmarks.load.job import EMULATOR_KEY, Job
from benchmarks.load.native import Native
from benchmarks.peers.base import Absent, SubjectFailed
from benchmarks.peers.postgres import Pgmq, PostgresPlace, SkipLocked, prepare_script
from benchmarks.records import CaseInfo, Latency, Measured, Phase, Run, Sample, SubjectInfo
from benchmarks.summary import bars
from benchmarks.workspace import REPOSITORY, Workspace, environment

_BATCHES = Job(
    workload="batches", dialect="native", port=0, connections=2, batch=10, duration_s=0.1
)


@pytest.fixture(scope="session")
def on_azurite() -> bool:
    """Keep the server of the other end-to-end tests from being started for these."""
    return False


class _Queue:
    """One queue in memory, with one fault to choose."""

    def __init__(self, messages: int, fault: str) -> None:
        self.fault = fault
        self.lock = threading.Lock()
        self.last = 0
        self.visible: dict[str, dict[str, Any]] = {}
        self.leased: dict[str, dict[str, Any]] = {}
        self.put(messages)

    def put(self, count: int) -> list[dict[str, str]]:
        """Add so many messages."""
        ids = [f"{self.last + number:036}" for number in range(1, count + 1)]
        self.last += count
        self.visible.update((id_, {"id": id_, "dequeue_count": 0}) for id_ in ids)
        return [{"id": id_, "receipt": "r" + id_} for id_ in ids]

    def receive(self, count: int) -> list[dict[str, Any]]:
        """Lease so many messages; a fault brings one fewer than there are."""
        taken = []
        for id_ in list(self.visible)[: count - (self.fault == "short" and count > 1)]:
            message = self.visible.pop(id_)
            message["dequeue_count"] += 1
            self.leased[id_] = message
            taken.append({**message, "body": "x", "receipt": "r" + id_})
        return taken

    def end(self, items: list[dict[str, str]], *, complete: bool) -> tuple[list[Any], int]:
        """Complete or release messages."""
        results: list[Any] = []
        for item in items:
            assert item["receipt"] == "r" + item["id"]
            message = self.leased.pop(item["id"])
            if not complete:
                self.visible[item["id"]] = message
            results.append({"id": item["id"]})
        failed = 0
        if self.fault == "refused":
            results[-1], failed = {"error": {"code": "lease-lost"}}, 1
        return results, failed

    def counts(self) -> dict[str, Any]:
        """Count."""
        visible, leased = len(self.visible), len(self.leased)
        return {
            "visible": visible,
            "leased": leased,
            "delayed": 0,
            "deferred": 0,
            "poisoned": 0,
            "total": visible + leased,
            "exact": self.fault != "inexact",
        }

    def page(self, limit: int, after: str, state: str) -> dict[str, Any]:
        """Return one page of messages in the order of their ids."""
        views = [{**one, "state": "visible"} for one in self.visible.values()]
        views += [{**one, "state": "leased"} for one in self.leased.values()]
        views.sort(key=lambda view: view["id"])
        if self.fault == "hidden":
            del views[3]
        if self.fault == "counting":
            for message in self.leased.values():
                message["dequeue_count"] += 1
        kept = [one for one in views if one["id"] > after and state in {"", one["state"]}]
        page = kept[:limit]
        if self.fault == "twice" and after:
            page.insert(0, views[0])
        return {"messages": page, "next_after": page[-1]["id"] if len(kept) > limit else None}


def _handler(queue: _Queue) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            assert self.headers["Authorization"] == f"Bearer {EMULATOR_KEY}"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
            url = urlsplit(self.path)
            with queue.lock:
                answer = _act(queue, self.command, url.path, parse_qs(url.query), body)
            content = json.dumps(answer, separators=(",", ":")).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            pass

    return Handler


def _act(queue: _Queue, method: str, path: str, query: dict[str, list[str]], body: Any) -> Any:
    root = "/v1/accounts/devstoreaccount1/queues/bench"
    call = f"{method} {path.removeprefix(root)}"
    if call == "PUT ":
        return {"name": "bench"}
    if call == "GET /counts":
        return queue.counts()
    if call == "GET /messages":
        first = {name: values[0] for name, values in query.items()}
        return queue.page(int(first["limit"]), first.get("after", ""), first.get("state", ""))
    if call == "POST /messages":
        return {"results": queue.put(len(body["messages"])), "failed": 0}
    if call == "POST /messages/receive":
        return {"messages": queue.receive(body["max_messages"])}
    verb = call.removeprefix("POST /messages/")
    assert verb in {"complete", "release"}, call
    results, failed = queue.end(body["items"], complete=verb == "complete")
    return {"results": results, "failed": failed}


@contextmanager
def _serve(messages: int = 0, fault: str = "") -> Iterator[tuple[_Queue, int]]:
    queue = _Queue(messages, fault)
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(queue)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield queue, server.server_port
        server.shutdown()
        thread.join()


def _generate(job: Job) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load"],
        input=job.to_json(),
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_batches_count_whole_lives_of_messages() -> None:
    """Operations are messages completed, and the queue is left as it was found."""
    with _serve(messages=7) as (queue, port):
        result = _generate(replace(_BATCHES, port=port))
    assert len(queue.visible) == 7
    assert not queue.leased
    (phase,) = result["phases"]
    counts = {verb: latency["count"] for verb, latency in phase["latencies"].items()}
    assert counts.keys() == {"put", "get", "delete", "lifecycle"}
    assert phase["operations"] == counts["delete"] * 10
    assert phase["requests"] == counts["put"] + counts["get"] + counts["delete"]


def test_batches_complete_what_short_receives_left() -> None:
    """Messages that no receive brought in time are completed at the end, unmeasured."""
    with _serve(fault="short") as (queue, port):
        result = _generate(replace(_BATCHES, port=port))
    assert "error" not in result
    (phase,) = result["phases"]
    assert phase["operations"] == phase["latencies"]["delete"]["count"] * 9
    assert queue.counts()["total"] == 0


def test_a_refused_item_ends_the_batches() -> None:
    """An answer of 200 in which an item failed is a failure, and shown."""
    with _serve(fault="refused") as (_, port):
        result = _generate(replace(_BATCHES, port=port))
    assert "not every message was completed" in result["error"]
    assert "lease-lost" in result["error"]


def test_handles_are_items_of_a_completion() -> None:
    """Each message of an answer becomes the item that completes it, whatever else it holds."""
    dialect = Native(_BATCHES)
    messages = [
        {"id": "1", "body": "abc", "dequeue_count": 1, "fence": 9, "receipt": "x/+=="},
        {"id": "2", "body": "abc", "receipt": "y", "dedup_key": "k"},
    ]
    text = json.dumps({"messages": messages}, separators=(",", ":")).encode()
    handles = dialect.handles(b"HTTP/1.1 200 OK\r\n\r\n" + text)
    items = [{"id": "1", "receipt": "x/+=="}, {"id": "2", "receipt": "y"}]
    assert [json.loads(handle) for handle in handles] == items
    head, body = dialect.complete(handles).split(b"\r\n\r\n")
    assert json.loads(body) == {"items": items}
    assert f"Content-Length: {len(body)}".encode() in head
    assert dialect.handles(b'{"messages":[]}') == []


def _inspect(fault: str, **changes: Any) -> dict[str, Any]:
    job = replace(_BATCHES, workload="inspect", connections=1, batch=30, **changes)
    with _serve(messages=100, fault=fault) as (queue, port):
        result = _generate(replace(job, port=port))
    assert not queue.leased
    return result


def test_inspecting_shows_each_message_once() -> None:
    """One page of so many messages is one request, and the leases are given back."""
    (phase,) = _inspect("")["phases"]
    assert (phase["name"], phase["operations"], phase["requests"]) == ("page", 100, 4)
    assert phase["latencies"]["page"]["count"] == 4


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("twice", "shown twice"),
        ("hidden", "99 of 100 messages were shown"),
        ("counting", "not the same when looked at again"),
    ],
)
def test_a_wrong_page_is_found(fault: str, reason: str) -> None:
    """A message shown twice or not at all, or changed by being looked at, fails the measurement."""
    assert reason in _inspect(fault)["error"]


def test_counts_are_asked_for_and_must_be_exact() -> None:
    """Each answer is one operation; one that is not exact fails the measurement."""
    job = replace(_BATCHES, workload="counts", connections=1)
    with _serve(messages=20) as (_, port):
        (phase,) = _generate(replace(job, port=port))["phases"]
    assert phase["name"] == "counts"
    assert phase["operations"] == phase["requests"] == phase["latencies"]["counts"]["count"] > 0
    with _serve(messages=20, fault="inexact") as (_, port):
        assert "not exact" in _generate(replace(job, port=port))["error"]


def _phase(name: str, per_s: float, p99_us: float = 0.0) -> Phase:
    latency = Latency(count=1, p50_us=1.0, p90_us=1.0, p99_us=p99_us, max_us=p99_us)
    return Phase(
        name=name,
        operations=round(per_s),
        requests=100,
        seconds=1.0,
        latencies={name: latency},
        server_cpu_s=0.0,
        generator_cpu_s=0.0,
        generator_kernel_s=0.0,
    )


def _run(*samples: tuple[str, str, Phase]) -> Run:
    run = Run(suite="native", started="", machine={}, source={}, options={})
    for case, subject, phase in samples:
        workload = case.partition("/")[0]
        info = CaseInfo(
            name=case,
            workload=workload,
            auth="bearer",
            connections=1,
            batch=1,
            subjects=(subject,),
        )
        measured = Measured(phases=(phase,), waiting_before=0, waiting_after=0, memory=None)
        run.cases.append(info)
        run.samples.append(
            Sample(case=case, subject=subject, round=1, measured=measured, disk_bytes=0)
        )
    run.subjects = [SubjectInfo(name="leasehold-10M", title="", waiting=10_000_000)]
    return run


def _verdicts(run: Run) -> dict[str, Bar]:
    return {bar.name: bar for bar in bars(run)}


def test_the_bar_of_batches_takes_the_best_of_each_side() -> None:
    """The best number of connections of Leasehold is held against the best of pgmq."""
    one, four = "batches/1/bearer/by100", "batches/4/bearer/by100"
    run = _run(
        (one, "leasehold", _phase("lifecycle", 60_000)),
        (four, "leasehold", _phase("lifecycle", 50_000)),
        (one, "pgmq", _phase("lifecycle", 20_000)),
        (four, "pgmq", _phase("lifecycle", 40_000)),
        (one, "skip-locked", _phase("lifecycle", 10_000)),
    )
    bar = _verdicts(run)["batches of 100 against a queue in PostgreSQL"]
    assert (bar.value, bar.passed) == (1.5, False)
    assert "pgmq" in bar.detail
    run.samples = [sample for sample in run.samples if sample.subject != "pgmq"]
    bar = _verdicts(run)["batches of 100 against a queue in PostgreSQL"]
    assert (bar.value, bar.passed) == (6.0, True)
    assert "skip-locked" in bar.detail


def test_the_bars_of_pages_and_counts_are_the_median_p99() -> None:
    """Both look at the right case and subject, and can fail; a missing one says so."""
    run = _run(
        ("inspect/1/bearer/by1000", "leasehold-100k", _phase("page", 1, p99_us=120_000)),
        ("inspect/1/bearer/by100", "leasehold-100k", _phase("page", 1, p99_us=9_000)),
        ("counts/1/bearer", "leasehold-10M", _phase("counts", 1, p99_us=900)),
        ("counts/1/bearer", "leasehold-100k", _phase("counts", 1, p99_us=9_000)),
    )
    batches, pages, counts, *long_polls = bars(run)
    assert (batches.value, batches.detail) == (None, "not part of this run")
    assert (pages.value, pages.passed) == (120.0, False)
    assert (counts.value, counts.passed) == (0.9, True)
    assert [bar.value for bar in long_polls] == [None] * 3


def test_the_bars_of_long_polls_look_at_what_was_printed() -> None:
    """Each line of the measurement has its bar; waiters are compared to none."""
    run = _run(("counts/1/bearer", "leasehold-10M", _phase("counts", 1)))
    spread = {"count": 100, "p50_ms": 1.0, "max_ms": 30.0}
    idle = {"measure": "idle", "seconds": 20.0}
    run.long_poll = [
        {"measure": "latency", **spread, "p99_ms": 9.0},
        {"measure": "lateness", **spread, "p99_ms": 21.0},
        {**idle, "connections": 0, "waiters": 0, "cpu_s": 0.2},
        {**idle, "connections": 5_000, "waiters": 0, "cpu_s": 0.4},
        {**idle, "connections": 5_000, "waiters": 5_000, "cpu_s": 0.5},
    ]
    latency, lateness, waiters = bars(run)[-3:]
    assert (latency.value, latency.passed) == (9.0, True)
    assert (lateness.value, lateness.passed) == (21.0, False)
    assert waiters.value == pytest.approx(1.5)
    assert waiters.passed is False


def test_what_only_create_extension_understands_is_left_out() -> None:
    """The script of an extension runs by itself after psql's and the dump's lines are gone."""
    script = (
        '\\echo Use "CREATE EXTENSION pgmq" to load this file. \\quit\n'
        "CREATE TABLE pgmq.meta (queue_name varchar);\n"
        "SELECT pg_catalog.pg_extension_config_dump('pgmq.meta', '');\n"
        "SELECT 1;\n"
    )
    kept = prepare_script(script).splitlines()
    assert kept == [
        "CREATE SCHEMA IF NOT EXISTS pgmq;",
        "CREATE TABLE pgmq.meta (queue_name varchar);",
        "SELECT 1;",
    ]


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Workspace]:
    """A workspace for one test."""
    space = Workspace.open(tmp_path / "work")
    yield space
    space.close()


def test_missing_programs_and_files_are_named(space: Workspace, tmp_path: Path) -> None:
    """What is not there makes PostgreSQL absent, with a line that says what to do."""
    with pytest.raises(Absent, match="no initdb in"):
        SkipLocked("skip-locked", "", space, PostgresPlace(bin=tmp_path)).prepare()
    with pytest.raises(Absent, match="--pgmq-sql PATH"):
        Pgmq("pgmq", "", space, PostgresPlace()).prepare()


@contextmanager
def _postgres(subject: SkipLocked) -> Iterator[SkipLocked]:
    try:
        subject.prepare()
    except Absent as absent:
        pytest.skip(str(absent))
    try:
        subject.start()
        yield subject
    finally:
        subject.stop()


@pytest.mark.skipif(shutil.which("initdb") is None, reason="PostgreSQL is not installed")
def test_batches_in_postgres_leave_nothing(space: Workspace) -> None:
    """The cluster runs, whole batches pass through the table, and its data are gone at the end."""
    with _postgres(SkipLocked("skip-locked", "", space, PostgresPlace())) as subject:
        job = replace(
            _BATCHES,
            dialect="skip-locked",
            conninfo=subject.conninfo,
            server_pids=subject.pids,
        )
        result = _generate(job)
        folder = subject.folder
        assert folder.exists()
    assert not folder.exists()
    assert result["waiting_after"] == 0
    (phase,) = result["phases"]
    counts = {verb: latency["count"] for verb, latency in phase["latencies"].items()}
    assert phase["operations"] > 0
    assert counts["put"] == counts["delete"] == counts["lifecycle"]
    assert phase["server_cpu_s"] > 0


@pytest.mark.skipif(shutil.which("initdb") is None, reason="PostgreSQL is not installed")
def test_a_refused_script_is_reported(space: Workspace, tmp_path: Path) -> None:
    """SQL that PostgreSQL does not take fails the start, and says so."""
    script = tmp_path / "pgmq.sql"
    script.write_text("CREATE TABLE pgmq.meta (x nonsense);\n")
    subject = Pgmq("pgmq", "", space, PostgresPlace(pgmq_sql=script))
    with pytest.raises(SubjectFailed, match="nonsense"), _postgres(subject):
        pass
