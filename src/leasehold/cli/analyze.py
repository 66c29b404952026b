"""``leasehold analyze``: what the event log tells about timeouts, queues and workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from leasehold.cli.remote import CONNECTION, OUTPUT, RemoteCommand, Session
from leasehold.cli.values import FRACTIONAL, GUARD, LENGTH, When
from leasehold.domain.limits import NATIVE

_EPILOG: Final = """\b
Exit codes:
  0    success
  1    the server refused all or part; the log cannot be read; or you answered no
  2    a mistake on the command line, or confirmation needs a terminal or --yes
  3    no Leasehold server answers at the address
  130  Ctrl+C
"""
_SHARED: Final = frozenset(str(each.name) for each in (*CONNECTION, *OUTPUT))
_UNDOING: Final = _SHARED | {"undo", "queues", "dry_run", "yes"}
_OF_LOG: Final = frozenset({"details", "since", "until"})


class AnalyzeCommand(RemoteCommand):
    """A command that is handed a session, and what it was made of, for Spark."""

    def invoke(self, ctx: click.Context) -> Any:
        """See :class:`RemoteCommand`."""
        names = [str(each.name) for each in (*CONNECTION, *OUTPUT)]
        ctx.params["given"] = {name: ctx.params[name] for name in names}
        return super().invoke(ctx)


@click.command("analyze", cls=AnalyzeCommand, epilog=_EPILOG)
@click.option(
    "--log",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Read the exported event log in this folder (the server's setting events_folder). "
    "Default: the events in the server's database.",
)
@click.option(
    "--tables",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Read the lifecycle tables in this folder, instead of a log. leasehold.advisor.tables "
    "writes them.",
)
@click.option(
    "--details",
    type=click.Path(exists=True, path_type=Path),
    metavar="PARQUET",
    help="File with more facts about messages: message_id with message_type, error_type or "
    "error_fingerprint.",
)
@click.option(
    "--summary",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read a summary that --save wrote, instead of a log. This needs no Spark.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Select this queue; in a log of several accounts also ACCOUNT/QUEUE. Can be repeated. "
    "Default: all queues.",
)
@click.option(
    "--since",
    type=When(),
    default="7d",
    show_default=True,
    help="Begin of the time to analyze: 2026-01-31T12:00, or how long ago. Not with --summary.",
)
@click.option(
    "--until", type=When(), help="End of the time to analyze. Default: now. Not with --summary."
)
@click.option(
    "--floor",
    "floor_s",
    type=LENGTH,
    default="1s",
    show_default=True,
    help="Minimum timeout that is advised or set.",
)
@click.option(
    "--cap",
    "cap_s",
    type=LENGTH,
    default="12h",
    show_default=True,
    help="Maximum timeout that is advised or set.",
)
@click.option(
    "--growth",
    type=click.FloatRange(1, 10),
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="Factor by which your workers lengthen the timeout with each delivery of a message.",
)
@click.option(
    "--duplicate-cost",
    "duplicate_s",
    type=FRACTIONAL,
    help="Cost of work done twice, in seconds of waiting. Default: 60, or five times the mean "
    "work.",
)
@click.option(
    "--late-share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.01,
    show_default=True,
    metavar="SHARE",
    help="Accepted share of messages that are worked on twice, for the promise.",
)
@GUARD
@click.option(
    "--at-once",
    is_flag=True,
    help="Advise the best values, even below half or above twice of today's.",
)
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write a report to this folder: a page with plots, and all figures as JSON and CSV.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write a summary of the log to this file, for --summary.",
)
@click.option("--apply", is_flag=True, help="Apply the advice to the settings of the queues.")
@click.option(
    "--by-type",
    is_flag=True,
    help="With --apply: set a timeout per message type, where a queue has several.",
)
@click.option(
    "--undo",
    is_flag=True,
    help="Reset the queues to their settings before the last --apply, and do nothing else.",
)
@click.option(
    "--dry-run", is_flag=True, help="With --apply or --undo: show the changes, and make none."
)
@click.option(
    "--allow-old",
    is_flag=True,
    help="With --summary and --apply: apply even a summary that ends more than 7 days ago or "
    "names no account.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of processors for Spark. Default: all of this machine.",
)
@click.option(
    "--memory",
    default="1g",
    show_default=True,
    metavar="SIZE",
    help="Memory for Spark, such as 2g.",
)
def analyze(session: Session, given: dict[str, Any], **options: Any) -> None:
    """Analyze the event log for better timeouts and for problems.

    For each queue and type of message: the cheapest visibility timeout or renewal, and its effect
    on the messages in the log; queues to split; messages about to expire; errors and workers that
    stand out. Spark reads the log.

    Example: leasehold analyze --report weekly

    Example: leasehold analyze --log /data/events --since 30d --queue orders

    Example: leasehold analyze --apply --floor 10s --cap 30m --yes

    Example: leasehold analyze --apply --by-type --dry-run

    Example: leasehold analyze --undo --queue orders
    """
    _check(options)
    # Late: --help needs none of it.
    from leasehold.cli.analyze_run import AnalyzeOptions, run, undo  # noqa: PLC0415

    if options["undo"]:
        undo(session, options["queues"], dry_run=options["dry_run"], yes=options["yes"])
        return
    del options["undo"]
    run(session, given, AnalyzeOptions(**options))


def _check(options: dict[str, Any]) -> None:
    """Check what can be seen of a mistake before anything is read.

    Raises:
        click.UsageError: There is one.
    """
    if options["apply"] and options["undo"]:
        raise click.UsageError("--apply and --undo exclude each other. Type one of them.")
    if options["by_type"]:
        _check_by_type(options)
    if options["dry_run"] and not (options["apply"] or options["undo"]):
        raise click.UsageError("--dry-run needs --apply or --undo.")
    if sum(options[name] is not None for name in ("log", "tables", "summary")) > 1:
        raise click.UsageError(
            "--log, --tables and --summary exclude each other. Type one of them."
        )
    if options["undo"]:
        _refuse(lambda name: name not in _UNDOING, "excludes --undo")
    if options["summary"] is not None:
        _refuse(_OF_LOG.__contains__, "excludes --summary")
    elif options["allow_old"]:
        raise click.UsageError("--allow-old needs --summary and --apply.")
    _check_lengths(options)


def _check_lengths(options: dict[str, Any]) -> None:
    if options["floor_s"] > options["cap_s"] or options["floor_s"] < 1:
        raise click.UsageError("--floor must be from 1s to --cap.")
    if options["cap_s"] > NATIVE.lease_s[1]:
        raise click.UsageError("--cap must be at most 7d, the longest lease.")
    if not options["guard_s"] > 0:
        raise click.UsageError("--guard must be above 0.")


def _check_by_type(options: dict[str, Any]) -> None:
    if not options["apply"]:
        raise click.UsageError("--by-type needs --apply.")
    if options["details"] is not None:
        raise click.UsageError(
            "--by-type and --details exclude each other: the server does not know the types in "
            "--details."
        )


def _refuse(is_wrong: Callable[[str], bool], told: str) -> None:
    """Refuse options that would do nothing.

    Raises:
        click.UsageError: One was given in the command line.
    """
    context = click.get_current_context()
    for each in context.command.params:
        name = str(each.name)
        was_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if was_given and is_wrong(name):
            raise click.UsageError(f"{each.opts[-1]} {told}.")
