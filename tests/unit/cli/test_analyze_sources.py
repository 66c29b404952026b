"""What ``leasehold analyze`` reads, what it refuses to, and what it refuses to apply."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from leasehold.advisor.summaries import LogSummary, save
from leasehold.cli import analyze_input, main
from leasehold.cli.analyze_input import Source, check, reason_of
from leasehold.domain.events import EVENT_FORMAT
from leasehold.events.names import file_of, folder_of
from leasehold.events.parquet import METADATA, SCHEMA
from leasehold.testing import InProcessServer
from tests.unit.advisor.support import full_log, full_queue
from tests.unit.cli.support import ID, Shell
from tests.unit.cli.test_analyze import a_queue

DAY_MS = 86_400_000


def old_file(path: Path) -> str:
    """Write a summary as the version wrote it that did not keep the account."""
    save(full_log(), path)
    plain = json.loads(path.read_text())
    del plain["summary"]["accounts"]
    for queue in plain["summary"]["queues"]:
        queue["late_seen"] = True
        for work in queue["works"]:
            del work["unrenewed"]
    path.write_text(json.dumps(plain))
    return str(path)


def written(path: Path, summary: LogSummary) -> str:
    """Save a summary and return where it is."""
    save(summary, path)
    return str(path)


def applied(shell: Shell, file: str, *arguments: str) -> Any:
    """Try to apply a summary to the queue media."""
    shell.server.on("GET", "/queues/media", a_queue("media"))
    shell.server.on("PATCH", "/queues/media", a_queue("media"))
    return shell("analyze", "--summary", file, "--apply", "--yes", "--queue", "media", *arguments)


def as_shop(folder: Path) -> tuple[str, ...]:
    """Return the options of a connection of another account."""
    key = folder / "key"
    key.write_text("c2VjcmV0")
    return ("--account", "shop", "--key-file", str(key))


def said(result: Any) -> str:
    """Return what was printed, however its lines were broken."""
    return " ".join(result.output.replace("│", " ").split())


def test_a_summary_of_another_account_is_not_applied(shell: Shell, tmp_path: Path) -> None:
    """Its queue of the same name is another queue; the flag for old ones changes nothing."""
    other = written(tmp_path / "a.json", replace(full_log(), accounts=("shop",)))
    for flag in ((), ("--allow-old",)):
        result = applied(shell, other, *flag)
        assert result.exit_code == 2
        assert "is of the account shop, and not of devstoreaccount1" in said(result)
    assert "PATCH /queues/media" not in shell.server.asked


def test_of_several_accounts_that_of_the_connection_is_applied(
    shell: Shell, tmp_path: Path
) -> None:
    """Its queues go by their own names again."""
    media = full_queue()
    both = replace(
        full_log(),
        accounts=("devstoreaccount1", "shop"),
        queues=tuple(
            replace(media, queue=f"{each}/media") for each in ("devstoreaccount1", "shop")
        ),
    )
    file = written(tmp_path / "both.json", both)
    assert applied(shell, file).exit_code == 0
    assert shell.server.asked.count("PATCH /queues/media") == 1
    only = shell("analyze", "--summary", file, *as_shop(tmp_path), "--json")
    assert [each["queue"] for each in json.loads(only.output)["queues"]] == ["media"]
    other = written(tmp_path / "other.json", full_log())
    result = shell("analyze", "--summary", other, *as_shop(tmp_path))
    assert "is of the account devstoreaccount1, and not of shop" in said(result)


def test_an_old_summary_is_not_applied_unless_told(shell: Shell, tmp_path: Path) -> None:
    """After seven days the work may be another; what has no account may be anybody's."""
    log = full_log()
    late = replace(log, until_ms=log.until_ms - 8 * DAY_MS)
    stale = written(tmp_path / "stale.json", late)
    refused = applied(shell, stale)
    assert refused.exit_code == 2
    assert "ends 8 days ago" in said(refused)
    unknown = old_file(tmp_path / "old.json")
    refused = applied(shell, unknown)
    assert refused.exit_code == 2
    assert "does not say of which account" in said(refused)
    assert "PATCH /queues/media" not in shell.server.asked
    for file in (stale, unknown):
        assert applied(shell, file, "--allow-old").exit_code == 0
    assert shell.server.asked.count("PATCH /queues/media") == 2
    # To look at it needs no flag.
    assert shell("analyze", "--summary", unknown).exit_code == 0


def test_events_that_nobody_counted_are_not_told_as_none(shell: Shell, tmp_path: Path) -> None:
    """Lifecycle tables do not say how many they were made of."""
    file = written(tmp_path / "tables.json", replace(full_log(), events=0))
    result = shell("analyze", "--summary", file)
    assert "0 events" not in result.output
    assert "From 2025-12-25T00:00:00Z to 2026-01-01T00:00:00Z" in said(result)


def test_queues_of_several_accounts_are_named_either_way(shell: Shell, tmp_path: Path) -> None:
    """With their account, or without for those of all accounts."""
    rare = full_log().queues[1]
    names = ("one/rare", "two/rare", "two/other")
    log = replace(full_log(), queues=tuple(replace(rare, queue=each) for each in names))
    file = written(tmp_path / "log.json", replace(log, accounts=("one", "two")))

    def found(*queues: str) -> list[str]:
        chosen = [word for each in queues for word in ("--queue", each)]
        result = shell("analyze", "--summary", file, "--json", *chosen)
        return [each["queue"] for each in json.loads(result.output)["queues"]]

    assert found("rare") == ["one/rare", "two/rare"]
    assert found("two/rare") == ["two/rare"]
    assert found("one/rare", "other") == ["one/rare", "two/other"]
    missing = shell("analyze", "--summary", file, "--queue", "one/other")
    assert "There is nothing in this log of: one/other." in said(missing)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--summary", "FILE", "--since", "1d"), "--since excludes --summary"),
        (("--summary", "FILE", "--until", "1d"), "--until excludes --summary"),
        (("--summary", "FILE", "--details", "FILE"), "--details excludes --summary"),
        (("--allow-old",), "--allow-old needs --summary and --apply"),
        (("--undo", "--report", "here"), "--report excludes --undo"),
        (("--undo", "--floor", "1s"), "--floor excludes --undo"),
        (("--undo", "--log", "."), "--log excludes --undo"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    shell: Shell, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    """Whoever gives one believes that it counts; only what is typed is refused, not defaults."""
    file = written(tmp_path / "log.json", full_log())
    result = shell("analyze", *(file if each == "FILE" else each for each in arguments))
    assert result.exit_code == 2
    assert told in said(result)


def source_of(**members: Any) -> Source:
    """Return a source that is read from nowhere but what is given."""
    known: dict[str, Any] = {
        "log": None,
        "tables": None,
        "details": None,
        "account": None,
        "queues": (),
        "since_ms": 0,
        "until_ms": 3_600_000,
        "cores": None,
        "memory": "1g",
    }
    return Source(**known | members)


def refusal(**members: Any) -> str:
    """Return why a source is refused before Spark starts."""
    with pytest.raises(click.ClickException) as caught:
        check(source_of(**members))
    return caught.value.message


def test_details_need_their_columns(tmp_path: Path) -> None:
    """Without the message, or with nothing about it, they would change nothing."""
    path = tmp_path / "details.parquet"
    for columns in ({"id": [ID], "error_type": ["E"]}, {"message_id": [ID], "kind": ["k"]}):
        pq.write_table(pa.table(columns), path)
        assert "must have the column message_id" in refusal(details=path)
    pq.write_table(pa.table({"message_id": [ID], "error_type": ["E"]}), path)
    check(source_of(details=path))
    path.write_text("no Parquet")
    assert "cannot be read" in refusal(details=path)


def test_a_log_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """This one could misunderstand it; and what is damaged is named."""
    path = tmp_path / folder_of(0) / file_of(1, 2)
    path.parent.mkdir(parents=True)
    newer = {**METADATA, b"leasehold.format": str(EVENT_FORMAT + 1).encode()}
    for metadata in (METADATA, newer):
        pq.write_table(SCHEMA.with_metadata(metadata).empty_table(), path)
        if metadata is METADATA:
            check(source_of(log=tmp_path))
    assert f"has format {EVENT_FORMAT + 1}" in refusal(log=tmp_path)
    path.write_bytes(b"torn")
    assert path.name in refusal(log=tmp_path)


@pytest.mark.parametrize("state", [None, "{", "[]", "{}", '{"format": 1, "names": [], "more": 1}'])
def test_a_folder_without_tables_is_told(tmp_path: Path, state: str | None) -> None:
    """An empty one, and one whose state is torn or somebody else's."""
    if state is not None:
        (tmp_path / "_leasehold_tables.json").write_text(state)
    assert str(tmp_path) in refusal(tables=tmp_path)


def test_tables_of_a_newer_version_are_told(tmp_path: Path) -> None:
    """With both numbers."""
    (tmp_path / "_leasehold_tables.json").write_text('{"format": 99, "names": []}')
    assert "has format 99" in refusal(tables=tmp_path)


def test_of_a_java_error_the_file_is_told() -> None:
    """And no line of its stack."""
    file = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a.parquet."
    error = Exception(f"An error occurred while calling o72.collect.\n: org.Spark: {file}\n\tat x")
    assert reason_of(error) == file
    assert reason_of(ValueError("one\n\ttwo")) == "one"


@pytest.mark.parametrize("with_queue", [True, False])
def test_a_servers_log_ends_by_its_own_clock(
    monkeypatch: pytest.MonkeyPatch, *, with_queue: bool
) -> None:
    """A virtual clock stands years away from the machine's; all events are before the end."""
    seen: list[Source] = []

    def read(_screen: object, _given: object, source: Source) -> LogSummary:
        seen.append(source)
        return full_log()

    monkeypatch.setattr(analyze_input, "read", read)
    with InProcessServer(start_ms=1_556_668_800_000) as server, server.client() as own:
        queue = own.queue("media")
        queue.create()
        queue.put("film")
        server.advance(3600.5)
        (message,) = queue.receive()
        queue.complete(message)
        if not with_queue:
            own.delete_queue("media")
        line = ("--connection-string", server.connection_string)
        result = CliRunner().invoke(main, ["analyze", *line])
        newest_ms = max(each.at_ms for each in own.events())
        now_ms = server.now_ms()
    assert result.exit_code == 0, result.output
    (source,) = seen
    assert newest_ms <= source.until_ms
    assert abs(source.until_ms - now_ms) <= 1000
    assert source.since_ms == source.until_ms - 7 * DAY_MS


@pytest.mark.long
def test_a_report_says_nothing_of_matplotlibs_caches(tmp_path: Path) -> None:
    """Where it can write none, it would warn before the advice is shown."""
    nowhere = tmp_path / "file"
    nowhere.touch()
    env = os.environ | {"MPLCONFIGDIR": str(nowhere / "cache")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, *arguments)
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True)

    alone = run("-c", "import matplotlib; matplotlib.get_cachedir()")
    assert "atplotlib" in alone.stderr
    summary = written(tmp_path / "summary.json", full_log())
    words = ("analyze", "--summary", summary, "--report", str(tmp_path / "report"))
    done = run("-m", "leasehold.cli", *words)
    assert (tmp_path / "report" / "report.html").exists()
    assert "atplotlib" not in done.stderr
