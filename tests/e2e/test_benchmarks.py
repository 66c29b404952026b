"""The benchmark harness runs and reads its own results; nothing here looks at how fast."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from benchmarks.figures import Bar
from benchmarks.load import compiled
from benchmarks.load.dialects import make_dialect
from benchmarks.load.job import EMULATOR_KEY, Job
from benchmarks.load.signing import Hmac, string_to_sign
from benchmarks.load.workloads import LoadFailed
from benchmarks.records import (
    COMPUTED,
    Latency,
    Measured,
    Memory,
    Phase,
    Restart,
    Run,
    Sample,
    SubjectInfo,
)
from benchmarks.single import Record, print_bars
from benchmarks.summary import CYCLE, bars, warnings
from benchmarks.workspace import REPOSITORY, environment

_JOB = Job(workload="cycle", dialect="azure", port=1)


@pytest.fixture(scope="session")
def on_azurite() -> bool:
    """Keep the server of the other end-to-end tests from being started for these."""
    return False


def _harness(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the result file of a smoke run."""
    folder = tmp_path_factory.mktemp("benchmarks")
    out = folder / "smoke.json"
    work = str(folder / "work")
    done = _harness("run", "--suite", "smoke", "--out", str(out), "--work", work)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert [path.name for path in (folder / "work").glob("run-*")] == []
    return out


@pytest.mark.long
def test_smoke_measures_every_subject_or_says_why_not(smoke: Path) -> None:
    """Each subject of each case has a sample per round, or is reported as absent."""
    result: dict[str, Any] = json.loads(smoke.read_text())
    assert not result["aborted"]
    assert not result["failures"]
    absent = {info["name"] for info in result["subjects"] if info["absent"]}
    assert not absent & {"leasehold", "leasehold-1k", "noop"}
    measured = {(sample["case"], sample["subject"]) for sample in result["samples"]}
    for case in result["cases"]:
        for subject in set(case["subjects"]) - absent:
            assert (case["name"], subject) in measured


@pytest.mark.long
def test_smoke_result_is_complete(smoke: Path) -> None:
    """The file holds machine, source, raw rounds, medians and verdicts."""
    result = json.loads(smoke.read_text())
    assert result["machine"]["fsync_us"]["p99"] >= result["machine"]["fsync_us"]["p50"] > 0
    assert {"commit", "dirty", "version"} <= result["source"].keys()
    for sample in result["samples"]:
        for phase in sample["measured"]["phases"]:
            assert phase["operations"] > 0
            assert phase["seconds"] > 0
            counts = [latency["count"] for latency in phase["latencies"].values()]
            assert min(counts) > 0
    waiting = {
        sample["subject"]: sample["measured"]["waiting_after"] for sample in result["samples"]
    }
    assert waiting["leasehold"] == 0
    assert waiting["leasehold-1k"] == 1000
    assert {restart["subject"] for restart in result["restarts"]} == {"leasehold-1k"}
    assert len(result["summary"]) > 0
    assert len(result["bars"]) > 0


@pytest.mark.long
def test_a_result_survives_being_read(smoke: Path) -> None:
    """Reading a file and writing it again loses nothing."""
    raw = json.loads(smoke.read_text())
    again = json.loads(json.dumps(asdict(Run.from_dict(raw))))
    assert again == {key: value for key, value in raw.items() if key not in COMPUTED}


@pytest.mark.long
def test_show_and_compare(smoke: Path) -> None:
    """Both commands print tables for a result."""
    shown = _harness("show", str(smoke))
    assert shown.returncode == 0, shown.stderr
    assert "cycle against the no-op" in shown.stdout
    held = _harness("bars", str(smoke))
    assert (held.returncode, held.stdout) == (0, ""), held.stderr  # nothing that was promised
    compared = _harness("compare", str(smoke), str(smoke))
    assert compared.returncode == 0, compared.stderr
    assert "cycle/8/sas" in compared.stdout


def test_bars_of_programs_that_stand_by_themselves(tmp_path: Path) -> None:
    """Each writes down what it was held against, and all are shown together."""
    out = tmp_path / "one.json"
    promised = {"rows_per_s": (">=", 100.0), "wait_ms": ("<=", 5.0)}
    found = print_bars({"rows_per_s": 99.0, "wait_ms": 5.0, "more": 1.0}, promised, 1)
    Record("one").write(out, {"rounds": 3}, found)
    assert [bar.passed for bar in found] == [False, True]
    shown = _harness("bars", str(out))
    assert shown.returncode == 0, shown.stderr
    assert "FALLS SHORT" in shown.stdout
    assert ">= 100" in shown.stdout


def test_show_refuses_another_file(tmp_path: Path) -> None:
    """A file that is no result gives a clear error."""
    other = tmp_path / "other.json"
    other.write_text('{"format": 99}')
    shown = _harness("show", str(other))
    assert shown.returncode == 1
    assert "not a benchmark result" in shown.stderr


class _Broken(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(500)
        self.send_header("Content-Length", "9")
        self.end_headers()
        self.wfile.write(b"broken so")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


@pytest.mark.parametrize("generator", ["C", "Python"])
def test_an_unexpected_answer_ends_the_job_and_is_shown(generator: str) -> None:
    """The generator does not go on after a wrong status, and its reason holds the body."""
    if generator == "C" and compiled.program() is None:
        pytest.skip("there is no C compiler")
    compiler = {} if generator == "C" else {"CC": "no-such-compiler"}
    with ThreadingHTTPServer(("127.0.0.1", 0), _Broken) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        job = Job(workload="cycle", dialect="noop", port=server.server_port, connections=2)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.load"],
            input=job.to_json(),
            cwd=REPOSITORY,
            env={**environment(), **compiler},
            capture_output=True,
            text=True,
            check=False,
        )
        server.shutdown()
        thread.join()
    assert done.returncode == 1
    reason = json.loads(done.stdout)["error"]
    assert "unexpected answer to put" in reason
    assert "broken so" in reason


@pytest.fixture(scope="module")
def program() -> Path:
    """Return the compiled generator."""
    found = compiled.program()
    if found is None:
        pytest.skip("there is no C compiler")
    return found


class _Conversation(threading.Thread):
    """Answers requests of one connection in turn, however they are cut; keeps what was asked."""

    def __init__(self, answers: Iterable[tuple[bytes, ...]]) -> None:
        super().__init__(daemon=True)
        self._answers = answers
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.asked: list[bytes] = []

    def run(self) -> None:
        connection, _ = self._listening.accept()
        with self._listening, connection:
            for pieces in self._answers:
                self.asked.append(connection.recv(1 << 16))
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(0.01)  # so that it comes by itself


_PUT_ANSWER = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"
_MESSAGE = b"<MessageId>" + b"a" * 36 + b"</MessageId><PopReceipt>AgAB+/x=</PopReceipt>"


def test_the_compiled_generator_puts_gets_and_deletes(program: Path) -> None:
    """Answers come in pieces, in chunks and empty; the delete names what the get has brought."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_MESSAGE), _MESSAGE)
    talk = _Conversation(
        [
            (_PUT_ANSWER[:9], _PUT_ANSWER[9:]),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n<no/>",),
            (head, chunk[:20], chunk[20:]),
            (b"HTTP/1.1 204 No Content\r\n\r\n",),
        ]
    )
    talk.start()
    job = Job(workload="cycle", dialect="azure", port=talk.port, connections=1)
    dialect = make_dialect(job)
    phase = compiled.cycle(program, job, dialect, 0.0, lambda: 1.0)
    talk.join()
    handle = b"a" * 36 + b"AgAB+/x="
    one = dialect.get(1)
    assert talk.asked == [dialect.put(), one, one, dialect.delete(handle)]
    assert (phase.operations, phase.requests, phase.empty_gets) == (3, 4, 1)
    counts = {verb: latency.count for verb, latency in phase.latencies.items()}
    assert counts == {"put": 1, "get": 2, "delete": 1, "cycle": 1}
    assert phase.generator == "C"


def test_the_compiled_generator_speaks_to_beanstalkd(program: Path) -> None:
    """A protocol of lines, whose bodies may hold what ends a line."""
    talk = _Conversation(
        [(b"INSERTED 7\r\n",), (b"RESERVED 7 6\r\n", b"a\r\nb c\r\n"), (b"DELETED\r\n",)]
    )
    talk.start()
    job = Job(workload="cycle", dialect="beanstalkd", port=talk.port, connections=1)
    phase = compiled.cycle(program, job, make_dialect(job), 0.0, lambda: 1.0)
    talk.join()
    assert talk.asked[1:] == [b"reserve-with-timeout 0\r\n", b"delete 7\r\n"]
    assert phase.operations == 3


def test_a_server_that_goes_away_ends_the_compiled_generator(program: Path) -> None:
    """It says during what."""
    talk = _Conversation([(_PUT_ANSWER,)])
    talk.start()
    job = Job(workload="cycle", dialect="azure", port=talk.port, connections=1)
    with pytest.raises(LoadFailed, match=r"closed a connection during get|get: "):
        compiled.cycle(program, job, make_dialect(job), 0.0, lambda: 1.0)


def test_signature_equals_that_of_an_sdk() -> None:
    """A request recorded from an official SDK gets the signature the SDK gave it."""
    headers = [
        ("x-ms-client-request-id", "791898e2-0fcd-456b-a110-4aaf1215a8e4"),
        ("x-ms-date", "Sat, 21 Nov 2026 00:17:51 GMT"),
        ("x-ms-meta-foo", "Bar"),
        ("x-ms-version", "2026-04-06"),
    ]
    signed = string_to_sign("PUT", "/devstoreaccount1/q1", [("timeout", "30")], headers)
    code = Hmac(base64.b64decode(EMULATOR_KEY)).base64(signed.encode())
    assert code == b"6SX+gQuCZoAsFzgf/w2/D8qOws6v9x0Boktp7FNyzac="


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        (b"HTTP/1.1 201 Created\r\ncontent-length: 5\r\n\r\nhello", True),
        (b"HTTP/1.1 204 No Content\r\nserver: x\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", True),
    ],
)
def test_the_end_of_an_answer_is_found(answer: bytes, whole: bool) -> None:
    """Lengths, empty answers and chunks are told apart."""
    assert make_dialect(_JOB).reply_length(answer) == (len(answer) if whole else -1)


def test_handles_are_cut_out_of_an_answer() -> None:
    """Every message of a batch yields its id and receipt, and a delete escapes the receipt."""
    first, second = "a" * 36, "b" * 36
    answer = (
        f"<MessageId>{first}</MessageId><PopReceipt>AgAB+/x=</PopReceipt>"
        f"<MessageId>{second}</MessageId><PopReceipt>y</PopReceipt>"
    ).encode()
    dialect = make_dialect(_JOB)
    handles = dialect.handles(answer)
    assert handles == [first.encode() + b"AgAB+/x=", second.encode() + b"y"]
    assert f"/{first}?popreceipt=AgAB%2B%2Fx%3D&".encode() in dialect.delete(handles[0])


def _sample(subject: str, per_s: float, cpu_us: float = 50.0, case: str = CYCLE) -> Sample:
    operations = round(per_s)
    phase = Phase(
        name="cycle",
        operations=operations,
        requests=operations,
        seconds=1.0,
        latencies={"put": Latency.of([1000, 2000, 3000])},
        server_cpu_s=operations * cpu_us / 1e6,
        generator_cpu_s=0.1,
        generator_kernel_s=0.1,
    )
    memory = Memory(resident=100_000_000, anonymous=90_000_000, peak=110_000_000)
    measured = Measured(phases=(phase,), waiting_before=0, waiting_after=0, memory=memory)
    return Sample(case=case, subject=subject, round=1, measured=measured, disk_bytes=0)


def _verdicts(run: Run) -> dict[str, Bar]:
    return {bar.name: bar for bar in bars(run)}


def test_bars_compare_the_medians_of_one_run() -> None:
    """Each promise is computed from the right two subjects, and can fail."""
    run = Run(suite="x", started="", machine={}, source={}, options={})
    run.subjects = [SubjectInfo(name="leasehold-10M", title="", waiting=10_000_000)]
    run.samples = [
        _sample("leasehold", 13_000),
        _sample("leasehold-10M", 12_500, cpu_us=70.0),
        _sample("beanstalkd", 8_000),
        _sample("noop", 20_000),
        _sample("noop-own", 40_000),
        _sample("leasehold", 1_000, case="cycle/1/sas"),
        _sample("beanstalkd", 2_000, case="cycle/1/sas"),
    ]
    run.restarts = [
        Restart(subject="leasehold-10M", round=1, cold=cold, ready_s=0.5, answer_s=answer_s)
        for cold, answer_s in ((False, 0.6), (True, 2.5))
    ]
    found = _verdicts(run)
    assert found["cycle against beanstalkd with fsync"].value == pytest.approx(1.625)
    assert found["cycle against beanstalkd with fsync"].passed is True
    assert found["the same with one connection"].value == pytest.approx(0.5)
    assert found["the same with one connection"].passed is False
    assert found["cycle against the no-op on the same connections"].passed is False
    assert found["cycle against Azurite, 5,000 waiting"].passed is None
    assert found["CPU per operation, 10 M waiting against empty"].passed is False
    assert found["time per operation, 10 M waiting against empty"].passed is True
    assert found["resident memory with 10 M waiting, MB"].passed is True
    assert found["start after kill -9 with 10 M waiting, warm files, s"].passed is True
    assert found["start after kill -9 with 10 M waiting, cold files, s"].passed is False


def test_an_absent_peer_is_named_in_its_bar() -> None:
    """A bar that could not be measured says why."""
    run = Run(suite="x", started="", machine={}, source={}, options={})
    run.subjects = [SubjectInfo(name="beanstalkd", title="", waiting=0, absent="not installed")]
    run.samples = [_sample("leasehold", 10_000)]
    bar = _verdicts(run)["cycle against beanstalkd with fsync"]
    assert (bar.value, bar.passed, bar.detail) == (None, None, "not measured: not installed")


def test_a_starved_noop_and_a_drifting_disk_are_warned_of() -> None:
    """Signs that something else used the machine are reported with the result."""
    quiet = {"fsync_us": {"p50": 200.0}, "fsync_us_after": {"p50": 220.0}}
    busy = {"fsync_us": {"p50": 200.0}, "fsync_us_after": {"p50": 900.0}}
    run = Run(suite="x", started="", machine=quiet, source={}, options={"rounds": 3})
    run.samples = [_sample("noop", 40_000, cpu_us=25.0)]
    assert warnings(run) == []
    run.machine = busy
    run.samples = [_sample("noop", 20_000, cpu_us=25.0)]
    assert len(warnings(run)) == 2


def test_percentiles_are_by_nearest_rank() -> None:
    """The 99th of a hundred samples is the second highest, and the maximum is the highest."""
    latency = Latency.of([number * 1000 for number in range(1, 101)])
    expected = (100, 50.0, 90.0, 99.0, 100.0)
    assert (
        latency.count,
        latency.p50_us,
        latency.p90_us,
        latency.p99_us,
        latency.max_us,
    ) == expected
