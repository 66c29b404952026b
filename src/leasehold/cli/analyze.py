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
  0    done
  1    refused by the server, or in part; the log cannot be read; or you said no
  2    a mistake in the command line, or no terminal to confirm at and no --yes
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
    "Default: what the server's database still has.",
)
@click.option(
    "--tables",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Read the lifecycle tables in this folder, in place of a log; leasehold.advisor.tables "
    "keeps them.",
)
@click.option(
    "--details",
    type=click.Path(exists=True, path_type=Path),
    metavar="PARQUET",
    help="What the log does not tell of messages, or should have told: message_id with "
    "message_type, error_type or error_fingerprint.",
)
@click.option(
    "--summary",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read a summary that --save has written, in place of a log. No Spark is needed then.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Only this queue. May be given several times. In a log of several accounts also "
    "ACCOUNT/QUEUE. Default: all.",
)
@click.option(
    "--since",
    type=When(),
    default="7d",
    show_default=True,
    help="From when on: a moment such as 2026-01-31T12:00, or how long ago. A summary has its own.",
)
@click.option("--until", type=When(), help="Up to when. Default: now. A summary has its own.")
@click.option(
    "--floor",
    "floor_s",
    type=LENGTH,
    default="1s",
    show_default=True,
    help="No timeout shorter than this is advised or set.",
)
@click.option(
    "--cap",
    "cap_s",
    type=LENGTH,
    default="12h",
    show_default=True,
    help="No timeout longer than this is advised or set.",
)
@click.option(
    "--growth",
    type=click.FloatRange(1, 10),
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="Your workers give each delivery of a message a timeout so many times that of the one "
    "before.",
)
@click.option(
    "--duplicate-cost",
    "duplicate_s",
    type=FRACTIONAL,
    help="What work done twice costs, as seconds that a message waits. Default: 60, or five times "
    "the mean work.",
)
@click.option(
    "--late-share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.01,
    show_default=True,
    metavar="SHARE",
    help="For the promise: share of the messages that may be worked on twice.",
)
@GUARD
@click.option(
    "--at-once",
    is_flag=True,
    help="Advise the best timeout and bounds, and not half or twice of today's at most.",
)
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write a page with plots there, and all figures as JSON and CSV.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write the summary of the log there, for --summary.",
)
@click.option("--apply", is_flag=True, help="Write the advice into the settings of the queues.")
@click.option(
    "--by-type",
    is_flag=True,
    help="With --apply: where a queue has several message types, write the advice for each as a "
    "timeout of that type.",
)
@click.option(
    "--undo",
    is_flag=True,
    help="Set the queues back to what they were before advice was applied, and do nothing else.",
)
@click.option("--dry-run", is_flag=True, help="With --apply or --undo: say what would be done.")
@click.option(
    "--allow-old",
    is_flag=True,
    help="With --summary and --apply: also apply a summary that ends more than 7 days ago, or does "
    "not say of which account it is.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processors that Spark uses. Default: all of this machine.",
)
@click.option(
    "--memory",
    default="1g",
    show_default=True,
    metavar="SIZE",
    help="Memory of Spark, as 2g.",
)
def analyze(session: Session, given: dict[str, Any], **options: Any) -> None:
    """Analyze the event log: better timeouts, and what goes wrong.

    For each queue and type of message: the visibility timeout or plan of renewal that costs least,
    what the log's messages would have met with it; queues that should be parted; when messages will
    expire; errors and workers that stand out. Spark reads the log.

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
        raise click.UsageError("Give --apply or --undo, not both.")
    if options["by_type"]:
        _check_by_type(options)
    if options["dry_run"] and not (options["apply"] or options["undo"]):
        raise click.UsageError("--dry-run goes with --apply or --undo.")
    if sum(options[name] is not None for name in ("log", "tables", "summary")) > 1:
        raise click.UsageError("Give one of --log, --tables and --summary.")
    if options["undo"]:
        _refuse(lambda name: name not in _UNDOING, "does not go with --undo")
    if options["summary"] is not None:
        _refuse(_OF_LOG.__contains__, "does not go with --summary, which has been made already")
    elif options["allow_old"]:
        raise click.UsageError("--allow-old goes with --summary and --apply.")
    _check_lengths(options)


def _check_lengths(options: dict[str, Any]) -> None:
    if options["floor_s"] > options["cap_s"] or options["floor_s"] < 1:
        raise click.UsageError("--floor must be 1 s or more, and no longer than --cap.")
    if options["cap_s"] > NATIVE.lease_s[1]:
        raise click.UsageError("--cap must be 7 days at most: no lease is longer.")
    if not options["guard_s"] > 0:
        raise click.UsageError("--guard must be above 0.")


def _check_by_type(options: dict[str, Any]) -> None:
    if not options["apply"]:
        raise click.UsageError("--by-type goes with --apply.")
    if options["details"] is not None:
        raise click.UsageError(
            "--by-type goes by the types that the server knows, and --details may name others."
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
