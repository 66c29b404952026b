"""``leasehold pipeline``, as far as it needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leasehold.cli import main
from leasehold.cli.pipeline import ATTEMPTS, master_with_attempts
from leasehold.spark.pipeline import Report, RunSettings
from leasehold.spark.pipeline import run as runs
from leasehold.spark.pipeline.report import Expired, Spool
from leasehold.testing import InProcessServer
from tests.unit.cli.worker_support import PREFIX, clean_modules

MODULE = f"{PREFIX}films"
_TEXT = """
from leasehold.spark.pipeline import Pipeline

def scan(message, state):
    return state

pipeline = Pipeline("films").stage("scan", scan, retries=2).stage("ship", scan, batch="arrow")
nameless = Pipeline().stage("scan", scan)
empty = Pipeline("films")
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be in a folder with a module of the user's."""
    (tmp_path / f"{MODULE}.py").write_text(_TEXT)
    monkeypatch.chdir(tmp_path)
    with clean_modules():
        yield


def run(*arguments: str) -> Result:
    """Run ``leasehold pipeline``."""
    env = {"AZURE_STORAGE_CONNECTION_STRING": None, "COLUMNS": "120"}
    return CliRunner().invoke(main, ["pipeline", *arguments], env=env)


def test_a_pipeline_is_described() -> None:
    """In words, as a drawing, and for scripts."""
    assert "1. scan" in run("describe", f"{MODULE}:pipeline").output
    assert "flowchart" in run("describe", f"{MODULE}:pipeline", "--mermaid").output
    said = json.loads(run("describe", f"{MODULE}:pipeline", "--json").output)
    assert said["stages"] == ["scan", "ship"]
    assert said["queue"] == "films"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((f"{MODULE}:scan",), "no pipeline"),
        ((f"{MODULE}:missing",), "has no missing"),
        ((f"{MODULE}:empty",), "no stage"),
        ((f"{MODULE}:nameless",), "give --queue"),
        ((f"{MODULE}:pipeline", "--report", "all.xls"), ".parquet"),
        ((f"{MODULE}:pipeline", "--lease", "8d"), "--lease"),
        ((f"{MODULE}:pipeline", "--send-key"), "executors"),
        ((f"{MODULE}:pipeline", "--conf", "spark"), "NAME=VALUE"),
    ],
)
def test_mistakes_are_said_before_spark_is_started(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting Spark takes seconds; none of them is lost for a wrong word."""
    monkeypatch.setattr("leasehold.cli.pipeline.open_session", _no_spark)
    result = run("run", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def _no_spark(*_: object) -> None:
    raise AssertionError("Spark was started")


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("local", f"local[1,{ATTEMPTS}]"),
        ("local[2]", f"local[2,{ATTEMPTS}]"),
        ("local[*]", f"local[*,{ATTEMPTS}]"),
        ("local[2,3]", "local[2,3]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_a_task_that_fails_is_tried_again_on_one_machine_too(given: str, made: str) -> None:
    """Spark's ``local[2]`` gives up a job with its first failed task."""
    assert master_with_attempts(given) == made


class _FakeSpark:
    """Stands for a session that is never used."""

    stopped = 0

    def stop(self) -> None:
        _FakeSpark.stopped += 1


def _fake_run(
    totals: dict[str, object], monkeypatch: pytest.MonkeyPatch, *gone: Expired
) -> list[RunSettings]:
    """Have runs end at once, and keep their settings."""
    seen: list[RunSettings] = []

    def finish(self: runs.PipelineRun) -> Report:
        seen.append(self._settings)
        return Report(Spool(), totals, gone)

    monkeypatch.setattr("leasehold.cli.pipeline.open_session", lambda *_: _FakeSpark())
    monkeypatch.setattr(runs.PipelineRun, "run", finish)
    return seen


_TOTALS: dict[str, object] = {
    "done": 1200,
    "poisoned": 1,
    "failed": 2,
    "given_back": 0,
    "lost": 0,
    "resumed": 3,
    "seconds": 12.5,
}


def test_options_become_settings_of_the_run_and_the_sums_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The report is written, and Spark is stopped."""
    seen = _fake_run(_TOTALS, monkeypatch)
    before = _FakeSpark.stopped
    with InProcessServer() as server, server.client() as client:
        client.queue("more-films").create()
        result = run(
            *("run", f"{MODULE}:pipeline", "--queue", "more-films", "--master", "local[2]"),
            *("--tasks", "3", "--at-once", "9", "--lease", "2m", "--max-failures", "7"),
            "--lease-as-set",
            *(
                "--continuous",
                "--grace",
                "5s",
                "--report",
                "all.json",
                "--no-progress",
                "--tracing",
            ),
            *("--connection-string", server.connection_string),
        )
    assert result.exit_code == 0, result.output
    [settings] = seen
    assert settings.spec(None).queue == "more-films"
    assert (settings.tasks, settings.at_once, settings.grace_s) == (3, 9, 5)
    assert settings.leases().visibility_timeout_s == 120
    assert settings.lease_as_set
    assert settings.poison.max_failures == 7
    assert settings.continuous
    assert settings.tracing
    assert settings.show is None
    assert "1,200" in result.output
    # What is piped is not padded.
    assert [line for line in result.output.splitlines() if line != line.rstrip()] == []
    assert "ends    when it is stopped" in result.stderr
    assert (tmp_path / "all.json").read_text() == ""
    assert _FakeSpark.stopped == before + 1


@pytest.mark.parametrize(
    ("count", "names", "told"),
    [
        (
            1200,
            [f"{number}.mp4" for number in range(7)],
            "1,200 messages of the queue: 0.mp4, 1.mp4, 2.mp4, 3.mp4, 4.mp4 and 1,195 more",
        ),
        (5, list("abcde"), "5 messages of the queue: a, b, c, d, e"),
        (1, [""], "1 message of the queue: id-0"),
        (0, [], None),
        (None, [], None),
    ],
)
def test_what_expired_meanwhile_is_told(
    monkeypatch: pytest.MonkeyPatch, count: int | None, names: list[str], told: str | None
) -> None:
    """How many, and the first few by what their bodies say; nothing where none expired."""
    gone = [Expired(f"id-{number}", name, 0, 1, 0) for number, name in enumerate(names)]
    _fake_run({**_TOTALS, "expired": count}, monkeypatch, *gone)
    with InProcessServer() as server, server.client() as client:
        client.queue("films").create()
        where = ("--connection-string", server.connection_string)
        result = run("run", f"{MODULE}:pipeline", "--no-progress", *where)
    assert result.exit_code == 0, result.output
    lines = [line.split(maxsplit=1) for line in result.stdout.splitlines() if line]
    shown = [line[1] for line in lines if line[0] == "expired"]
    assert shown == ([] if told is None else [told])


def test_a_server_that_does_not_answer_has_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with all commands; so has a queue that is not there. Spark is not started for either."""
    monkeypatch.setattr("leasehold.cli.pipeline.open_session", _no_spark)
    with InProcessServer() as server:
        missing = run(
            *("run", f"{MODULE}:pipeline", "--connection-string", server.connection_string),
            "--json",
        )
    assert missing.exit_code == 1
    assert "leasehold queue create films" in missing.output
    nobody = run("run", f"{MODULE}:pipeline", "--url", "http://127.0.0.1:9")
    assert nobody.exit_code == 3
