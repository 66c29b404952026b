"""``python -m benchmarks``: run a suite, show a result, compare two."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as ProgressBar

from benchmarks import report, workspace
from benchmarks.figures import Bar, rows
from benchmarks.machine import describe_machine, describe_source, measure_fsync
from benchmarks.peers.postgres import PostgresPlace, published_script
from benchmarks.records import Run
from benchmarks.runner import Aborted, Harness, Options, Progress
from benchmarks.suites import SUITES
from benchmarks.summary import bars, warnings
from leasehold.clock import SystemClock

RESULTS = Path(__file__).parent / "results"
_CLOCK = SystemClock()


@click.group()
def main() -> None:
    """Measure Leasehold beside its peers."""


@main.command()
@click.option("--suite", "suite_name", type=click.Choice(list(SUITES)), default="quick")
@click.option(
    "--out", type=click.Path(path_type=Path), help="File for the result; by default none."
)
@click.option("--rounds", type=click.IntRange(1), help="Instead of the suite's own number.")
@click.option("--seconds", type=click.FloatRange(0.1), help="Length of a cycle, likewise.")
@click.option(
    "--backlog-body",
    type=click.IntRange(1, 65_536),
    default=1024,
    show_default=True,
    help="Bytes in each message that waits in Leasehold's store beforehand.",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    default=workspace.DEFAULT,
    show_default=True,
    help="Folder for peers, filled stores and data; its disk is the one measured.",
)
@click.option(
    "--pgmq-sql",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="pgmq's published script (pgmq.sql); by default the one that its client brings.",
)
@click.option(
    "--pg-bin",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with initdb and postgres; by default that in the PATH, or Debian's newest.",
)
def run(  # noqa: PLR0913, PLR0917 - one parameter for each option
    suite_name: str,
    out: Path | None,
    rounds: int | None,
    seconds: float | None,
    backlog_body: int,
    work: Path,
    pgmq_sql: Path | None,
    pg_bin: Path | None,
) -> None:
    """Run a suite and write down every round of it."""
    signal.signal(signal.SIGTERM, _terminate)
    suite = SUITES[suite_name]
    suite = replace(suite, rounds=rounds or suite.rounds, duration_s=seconds or suite.duration_s)
    console = Console(stderr=True)
    space = workspace.Workspace.open(work)
    options = Options(
        backlog_body_bytes=backlog_body,
        postgres=PostgresPlace(bin=pg_bin, pgmq_sql=pgmq_sql or published_script()),
    )
    result = Run(
        suite=suite.name,
        started=_now(),
        machine=describe_machine(space.run),
        source=describe_source(),
        options={
            "rounds": suite.rounds,
            "duration_s": suite.duration_s,
            "warmup_s": suite.warmup_s,
            "backlog_body_bytes": backlog_body,
        },
    )
    try:
        with _progress_bar(console) as shown:
            Harness(suite, result, space, _progress(shown), options).measure()
    except (Aborted, KeyboardInterrupt) as error:
        result.aborted = str(error) or "interrupted"
    finally:
        result.finished = _now()
        result.machine = {**result.machine, "fsync_us_after": measure_fsync(space.run)}
        space.close()
        if out is not None:
            write(result, out)
    report.show_run(result, report.make_console())
    sys.exit(1 if result.aborted else 0)


@main.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True))
def show(file: Path) -> None:
    """Show a result as tables."""
    report.show_run(read(file), report.make_console())


@main.command()
@click.argument("before", type=click.Path(path_type=Path, exists=True))
@click.argument("after", type=click.Path(path_type=Path, exists=True))
def compare(before: Path, after: Path) -> None:
    """Show what changed from one result to another."""
    report.show_comparison(read(before), read(after), report.make_console())


@main.command("bars")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True))
def show_bars(files: tuple[Path, ...]) -> None:
    """Show what was promised beside what results say of it, by default those of the newest runs."""
    console = report.make_console()
    for file in files or sorted(RESULTS.glob("*.json")):
        content = json.loads(file.read_text())
        # Those of suites are what is promised today, whenever it was measured.
        found = (
            bars(read(file))
            if "samples" in content
            else [Bar(**each) for each in content.get("bars", ())]
        )
        if measured := [bar for bar in found if bar.passed is not None]:
            console.print(report.bars_table(measured, file.name))


@main.command()
def suites() -> None:
    """Say what the suites are."""
    for suite in SUITES.values():
        click.echo(f"{suite.name:8} {suite.about}")


def write(result: Run, out: Path) -> None:
    """Write *result* to *out*, with its medians and verdicts beside the raw rounds."""
    content = {
        **asdict(result),
        "summary": [asdict(row) for row in rows(result)],
        "bars": [asdict(bar) for bar in bars(result)],
        "warnings": warnings(result),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    fields = (f"{json.dumps(name)}: {_json_lines(value)}" for name, value in content.items())
    out.write_text("{\n" + ",\n".join(fields) + "\n}\n")


def _json_lines(value: Any) -> str:
    """Return *value* as JSON, a list with one line for each item."""
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n " + ",\n ".join(map(json.dumps, value)) + "\n]"


def read(file: Path) -> Run:
    """Return the run in *file*.

    Raises:
        click.ClickException: It is not a result of this harness.
    """
    try:
        return Run.from_dict(json.loads(file.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{file}: {error}") from error


def _progress_bar(console: Console) -> ProgressBar:
    return ProgressBar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def _progress(shown: ProgressBar) -> Progress:
    """Return what shows the harness's progress as bars on *shown*."""
    task = shown.add_task("preparing", total=None)
    fills: dict[str, TaskID] = {}
    started = False

    def step(text: str) -> None:
        nonlocal started
        shown.update(task, description=text, advance=1 if started else 0)
        started = True

    def fill(name: str, done: int, total: int) -> None:
        if name not in fills:
            fills[name] = shown.add_task(f"filling {name}", total=total)
        shown.update(fills[name], completed=done, visible=done < total)

    return Progress(
        say=shown.console.log,
        begin=lambda total: shown.update(task, total=total),
        step=step,
        fill=fill,
    )


def _now() -> str:
    return datetime.fromtimestamp(_CLOCK.now_ms() / 1000, UTC).isoformat(timespec="seconds")


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
