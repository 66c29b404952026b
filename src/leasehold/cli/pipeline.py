"""``leasehold pipeline``: stages on Spark executors."""

from __future__ import annotations

import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from leasehold.cli.output import Screen, clean, counted, facts, length, number
from leasehold.cli.remote import ExitCode, LocalCommand, refuse
from leasehold.cli.root import OrderedGroup
from leasehold.cli.values import Length, Pair
from leasehold.cli.worker import MERMAID, TRACING, RunCommand, logging_lines
from leasehold.cli.worker_setup import NotFound, QueueOpener, find
from leasehold.spark.pipeline.backlog import Backlog
from leasehold.spark.pipeline.report import Report, check_path
from leasehold.spark.pipeline.run import (
    Pipeline,
    PipelineFailed,
    PipelineRun,
)
from leasehold.spark.pipeline.settings import RunSettings
from leasehold.spark.session import EVERYWHERE, LOCAL, NoJava, open_session
from leasehold.worker.adapters import Capabilities, QueueError, QueueMissing, Unreachable
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.retry_policy import PoisonRule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PIPELINE: Final = click.argument("pipeline", metavar="MODULE:PIPELINE")
_RUN_EPILOG: Final = """\b
Exit codes:
  0    the queue is empty, or SIGTERM or Ctrl+C stopped the run
  1    the queue does not exist, or the run failed
  2    a mistake on the command line
  3    no Leasehold server, or no other service, answers at the address
  130  a second Ctrl+C or SIGTERM, which does not wait for messages in work
"""


@click.group("pipeline", cls=OrderedGroup)
def pipeline() -> None:
    """Run the stages of a pipeline on Spark executors."""


@pipeline.command("run", cls=RunCommand, epilog=_RUN_EPILOG)
@_PIPELINE
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    metavar="MASTER",
    help="Spark master, such as local[2] or spark://host:7077.",
)
@click.option(
    "--conf",
    "conf",
    multiple=True,
    type=Pair(),
    metavar="NAME=VALUE",
    help="Spark setting. Can be repeated.",
)
@click.option(
    "--queue",
    metavar="QUEUE",
    help="Name of the queue, or an address such as azure:///orders. Default: the pipeline's queue.",
)
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of Spark tasks. Default: as many as Spark runs at once.",
)
@click.option(
    "--at-once",
    type=click.IntRange(min=1, max=10_000),
    metavar="N",
    help="Number of messages that each task works on at once. Default: 8, or more while they are "
    "very short.",
)
@click.option(
    "--lease",
    "lease_s",
    type=Length(),
    default="30s",
    show_default=True,
    help="Length of each lease. It is renewed while a stage works.",
)
@click.option(
    "--lease-as-set",
    is_flag=True,
    help="Use the lease that the server has set for the message, its type or its queue.",
)
@click.option(
    "--max-failures",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    help="Bury a message at this number of failures.",
)
@click.option(
    "--continuous", is_flag=True, help="Continue until stopped, even when the queue is empty."
)
@click.option(
    "--grace",
    "grace_s",
    type=Length(),
    default="30s",
    show_default=True,
    help="Time for messages in work after the first signal.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Write the outcome of each message to this file: .parquet, .json, .jsonl or .ndjson.",
)
@click.option(
    "--each",
    type=click.Choice(["message", "delivery", "expired"]),
    default="message",
    show_default=True,
    help="Rows of the report.",
)
@click.option(
    "--progress/--no-progress",
    default=True,
    help="Show progress: bars on a terminal, otherwise a line every ten seconds. Default: on.",
)
@TRACING
def run_pipeline(given: dict[str, Any], **options: Any) -> None:
    """Work on the messages of a queue on Spark executors, and report the result.

    The pipeline is a leasehold.spark.pipeline.Pipeline. Its module is searched in the current
    directory first, and sent to the executors with the modules there that it uses.

    With --json each line of the output is an object with the progress, the last line with the
    result.

    Example: leasehold pipeline run video:pipeline --master 'local[2]'

    Example: leasehold pipeline run video:pipeline --master spark://cluster:7077 --report all.json
    """
    sys.exit(run(PipelineOptions(**options), given))


@pipeline.command("describe", cls=LocalCommand)
@_PIPELINE
@MERMAID
def describe_pipeline(pipeline: str, mermaid: bool, as_json: bool, no_color: bool) -> None:
    """Describe the stages of a pipeline.

    Example: leasehold pipeline describe video:pipeline
    """
    sys.exit(describe(Screen(as_json=as_json, no_color=no_color), pipeline, mermaid=mermaid))


# --- pipeline run ------------------------------------------------------------------------------
#
# ``leasehold pipeline run``: find the pipeline, start Spark, let it work, say what was done.


ATTEMPTS: Final = 20
"""How often Spark tries a task: one more for each executor that dies under it."""
_NAMED: Final = 5
"""Expired messages that are named on the screen; the report has them all."""
_NAME_CHARS: Final = 40
_LOCAL: Final = re.compile(r"local(\[(\d+|\*)\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """The options of the command; see its help."""

    pipeline: str
    master: str
    conf: tuple[tuple[str, str], ...]
    queue: str | None
    tasks: int | None
    at_once: int | None
    lease_s: int
    lease_as_set: bool
    max_failures: int
    continuous: bool
    grace_s: float
    report: str | None
    each: str
    progress: bool
    tracing: bool


def run(options: PipelineOptions, given: Mapping[str, Any]) -> int:
    """Run a pipeline to its end; return the exit code.

    Args:
        options: The options.
        given: The connection and output options that all commands share.
    """
    screen = Screen(as_json=given["as_json"], no_color=given["no_color"])
    try:
        pipeline, settings = _prepared(options, given, screen)
    except (NotFound, ValueError) as error:
        return refuse(screen, str(error))
    if not screen.as_json:
        _print_plan(screen, pipeline, settings, options)
    try:
        _look(settings.spec(None))
        with logging_lines(), _spark(options) as spark:
            made = PipelineRun(pipeline, spark, settings)
            report = made.run()
            return _tell(screen, options, report, was_hurried=made.was_hurried)
    except QueueMissing:
        name = settings.spec(None).queue
        text = f"There is no queue `{name}`. Create it: leasehold queue create {name}"
        return refuse(screen, text, ExitCode.REFUSED, "queue-missing")
    except Unreachable as error:
        return refuse(screen, str(error), ExitCode.NO_CONNECTION, "no-connection")
    except (QueueError, PipelineFailed, NoJava) as error:
        return refuse(screen, str(error), ExitCode.REFUSED, "pipeline")


def describe(screen: Screen, text: str, *, mermaid: bool) -> int:
    """Print the stages of a pipeline and return the exit code."""
    try:
        pipeline = find_pipeline(text)
        shown = pipeline.describe("mermaid" if mermaid else "text")
    except (NotFound, ValueError) as error:
        return refuse(screen, str(error))
    if screen.as_json:
        screen.document({"pipeline": text, "queue": pipeline.queue, "stages": pipeline.names})
    else:
        for line in shown.splitlines():
            screen.row(Text(line))
    return ExitCode.DONE


def find_pipeline(text: str) -> Pipeline:
    """Return the pipeline that *text* names.

    Raises:
        NotFound: See there.
    """
    found = find(text)
    if isinstance(found, Pipeline):
        return found
    raise NotFound(
        f"{text} is of the type {type(found).__name__}, and no pipeline "
        "(leasehold.spark.pipeline.Pipeline)"
    )


def master_with_attempts(master: str) -> str:
    """Return a master under which a failed task is tried again: ``local[2]`` tries only once."""
    found = _LOCAL.fullmatch(master)
    return master if found is None else f"local[{found[2] or 1},{ATTEMPTS}]"


# --- inside --------------------------------------------------------------------------------------


def _prepared(
    options: PipelineOptions, given: Mapping[str, Any], screen: Screen
) -> tuple[Pipeline, RunSettings]:
    pipeline = find_pipeline(options.pipeline)
    pipeline.stages()
    if options.report is not None:
        check_path(options.report)
    name = options.queue or pipeline.queue
    if name is None:
        raise NotFound(f"{options.pipeline} names no queue: give --queue")
    queue, capabilities = _queue(name, given)
    settings = RunSettings(
        queue=queue,
        continuous=options.continuous,
        tasks=options.tasks,
        at_once=options.at_once,
        lease=options.lease_s,
        lease_as_set=options.lease_as_set,
        poison=PoisonRule(max_failures=options.max_failures),
        grace_s=options.grace_s,
        show=("json" if screen.as_json else "auto") if options.progress else None,
        tracing=options.tracing,
    )
    problems = settings.leases().problems(capabilities)
    if problems:
        raise ValueError("; ".join(f"--lease: {each}" for each in problems))
    return pipeline, settings


def _queue(name: str, given: Mapping[str, Any]) -> tuple[QueueSpec, Capabilities]:
    """Return the queue in the form that executors can open, and what its service can do."""
    for option in ("send_key", "ca_file"):
        if given[option]:
            raise click.UsageError(
                f"--{option.replace('_', '-')} cannot be handed on to executors: use a connection "
                "string."
            )
    opener = QueueOpener(given, azure=False, mns=None)
    client = opener.open(name).client
    client.close()
    spec: QueueSpec = client.spec  # type: ignore[attr-defined]  # what the opener opens has one
    return spec, client.capabilities


def _look(queue: QueueSpec) -> None:
    """Make sure that there is such a queue, before Spark takes its time to begin.

    Raises:
        QueueError: There is none, or it cannot be reached.
    """
    with Backlog(queue) as backlog:
        backlog.look()


@contextmanager
def _spark(options: PipelineOptions) -> Iterator[SparkSession]:
    """Start Spark, with the user's modules on its executors; stop it at the end."""
    is_local = options.master.startswith("local")
    conf: dict[str, object] = {**(LOCAL if is_local else EVERYWHERE)}
    conf |= {"spark.task.maxFailures": ATTEMPTS, **dict(options.conf)}
    name = f"leasehold-{options.pipeline}"
    spark = open_session(master_with_attempts(options.master), name, conf)
    own = own_modules(Path.cwd())
    try:
        with tempfile.TemporaryDirectory(prefix="leasehold-") if own else nullcontext() as folder:
            if folder is not None and _LOCAL.fullmatch(options.master) is None:
                archive = packed(own, Path(folder) / "leasehold-pipeline.zip")
                spark.sparkContext.addPyFile(str(archive))
            yield spark
    finally:
        spark.stop()


def _print_plan(
    screen: Screen, pipeline: Pipeline, settings: RunSettings, options: PipelineOptions
) -> None:
    lease = settings.leases()
    rows = [
        ("queue", clean(settings.spec(None).queue)),
        ("stages", ", then ".join(pipeline.names)),
        ("spark", clean(options.master)),
        ("lease", f"{length(lease.visibility_timeout_s)}, renewed while a stage works"),
        ("ends", "when it is stopped" if options.continuous else "when the queue is empty"),
    ]
    screen.plan(f"Pipeline {pipeline.name}", facts(rows, indent=2))


def _tell(screen: Screen, options: PipelineOptions, report: Report, *, was_hurried: bool) -> int:
    if options.report is not None:
        report.write(options.report, each=options.each)
    if not screen.as_json:
        totals = report.totals
        rows = [
            ("done", number(totals["done"])),
            ("poisoned", number(totals["poisoned"])),
            ("failed", counted(totals["failed"], "delivery", "deliveries")),
            ("given back", counted(totals["given_back"], "delivery", "deliveries")),
            ("lost", counted(totals["lost"], "delivery", "deliveries")),
            ("resumed", counted(totals["resumed"], "delivery", "deliveries")),
            *_expired_row(report),
            ("took", length(totals["seconds"])),
        ]
        screen.show(facts(rows))
        if options.report is not None:
            screen.hint(f"Wrote {options.report}.")
    report.close()
    return ExitCode.INTERRUPTED if was_hurried else ExitCode.DONE


def _expired_row(report: Report) -> list[tuple[str, str]]:
    """Tell what expired during the run, if anything did: how many, and some by name."""
    count = report.totals.get("expired")
    if not count:
        return []
    named = report.expired().slice(0, _NAMED).to_pylist()
    names = ", ".join(clean(each["text"])[:_NAME_CHARS] or each["message_id"] for each in named)
    more = f" and {number(count - len(named))} more" if count > len(named) else ""
    return [("expired", f"{counted(count, 'message')} of the queue: {names}{more}")]


# --- shipping ----------------------------------------------------------------------------------
#
# Brings modules of the user's folder to executors that would not find them.


_NOT_OURS: Final = ("site-packages", "dist-packages")
_LEFT_OUT: Final = frozenset({"__pycache__"})


def own_modules(folder: Path, modules: Mapping[str, ModuleType] | None = None) -> list[Path]:
    """Return the files and packages of *folder* that are imported, without what is installed.

    Args:
        folder: Whose modules are the user's own.
        modules: Those that are imported; None: of this process.
    """
    root = folder.resolve()
    found: dict[Path, None] = {}
    for name, module in list((sys.modules if modules is None else modules).items()):
        top = name.partition(".")[0]
        file = getattr(module, "__file__", None)
        if not file or top in {"leasehold", "__main__"}:
            continue
        path = Path(file).resolve()
        if not path.is_relative_to(root) or any(part in _NOT_OURS for part in path.parts):
            continue
        package, alone = root / top, root / f"{top}.py"
        if package.is_dir() and path.is_relative_to(package):
            found[package] = None
        elif path == alone:
            found[alone] = None
    return list(found)


def packed(paths: Iterable[Path], target: Path) -> Path:
    """Write files and packages into an archive that Python can import from, and return it."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            files = [path] if path.is_file() else sorted(path.rglob("*"))
            for file in files:
                if file.is_file() and not _LEFT_OUT.intersection(file.parts):
                    archive.write(file, file.relative_to(path.parent))
    return target
