"""``leasehold spark``: what helps with Spark on one machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from leasehold.cli.remote import Session, remote, tell_checks
from leasehold.cli.root import OrderedGroup
from leasehold.spark.doctor import (
    Finding,
    check_program,
    check_server,
    check_spark,
    gather_server,
    gather_spark,
)


@click.group("spark", cls=OrderedGroup)
def group() -> None:
    """Run a small Spark cluster on this machine for experiments."""


@group.command()
@click.option(
    "--workers",
    type=click.IntRange(1, 16),
    default=2,
    show_default=True,
    help="Number of workers. Each is a process, with its own address where the system allows it.",
)
@click.option(
    "--cores",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of tasks that each worker runs at once.",
)
@click.option(
    "--memory",
    default="1g",
    show_default=True,
    metavar="SIZE",
    help="Memory of each worker for its executors.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=7077,
    show_default=True,
    help="Port of the master; 0 takes a free one.",
)
@click.option(
    "--web-port",
    type=click.IntRange(0, 65_535),
    default=0,
    show_default=True,
    help="Port of the master's web page; 0 takes a free one.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Folder for logs and files of applications. Default: a temporary one.",
)
def cluster(folder: str | None, **numbers: Any) -> None:
    """Run a Spark master and workers on this machine, until Ctrl+C.

    They come from PySpark's package and listen on this machine only. Users who reach them can run
    programs as you: use the cluster for experiments only.
    """
    # Late: --help needs nothing of Spark.
    from leasehold.spark import cluster as clusters  # noqa: PLC0415

    place = None if folder is None else Path(folder)
    sys.exit(clusters.run(clusters.ClusterSettings(**numbers), place))


# --- doctor ------------------------------------------------------------------------------------
#
# ``leasehold doctor``: what is wrong, what it means, what to do about it.


_PATIENCE_S: Final = 10.0


@remote("doctor")
@click.option(
    "--spark", is_flag=True, help="Also check Java, Python and libraries for Spark on this machine."
)
@click.option(
    "--conf",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Spark setting of your program. Can be repeated.",
)
@click.option(
    "--program",
    "programs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also check this Python program for calls that fail with queues, without running it. "
    "Can be repeated.",
)
@click.option("--no-server", is_flag=True, help="Check no server.")
def doctor(
    session: Session,
    spark: bool,
    settings: tuple[str, ...],
    programs: tuple[Path, ...],
    no_server: bool,
) -> None:
    """Find common problems, explain them, and suggest fixes.

    It checks the server: answer, storage, version, clock. With --spark also Java, Python and the
    libraries for Spark on this machine. Nothing is changed.

    The exit code is that of the worst result: 0 for all checks passed, 4 for a warning, 1 for an
    error.

    Example: leasehold doctor --spark --program job.py
    """
    findings: list[Finding] = []
    if not no_server:
        with session.web(_PATIENCE_S) as web:
            facts = gather_server(session.client, web, lambda: session.now_ms)
        findings += check_server(facts)
    if spark or settings:
        findings += _look_at_spark(settings)
    for path in programs:
        findings += check_program(str(path), path.read_text(encoding="utf-8"))
    checks = [{**asdict(each), "level": each.level.name.lower()} for each in findings]
    raise click.exceptions.Exit(tell_checks(session.screen, "findings", checks))


def _look_at_spark(settings: Iterable[str]) -> list[Finding]:
    given = {}
    for each in settings:
        name, equals, value = each.partition("=")
        if not equals:
            raise click.UsageError(f"--conf {each}: write NAME=VALUE.")
        given[name] = value
    return check_spark(gather_spark(os.environ, given))
