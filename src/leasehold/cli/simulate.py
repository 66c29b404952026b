"""``leasehold simulate``: try settings of a queue before making them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from leasehold.cli.output import Screen
from leasehold.cli.simulate_run import Away, Work, play
from leasehold.cli.values import FRACTIONAL
from leasehold.cli.worker import LocalCommand

_EPILOG: Final = """\b
Names of work, and their numbers (seconds, or 90s, 5m, 2h where a length is meant):
  constant:LENGTH          always the same
  exponential:MEAN
  lognormal:MEDIAN,SIGMA
  pareto:LEAST,EXPONENT
  uniform:LEAST,MOST

\b
Exit codes:
  0    done
  2    a mistake in the command line, or a file that cannot be used
"""


@click.command("simulate", cls=LocalCommand, epilog=_EPILOG)
@click.option(
    "--work",
    "works",
    type=Work(),
    multiple=True,
    help="How long work takes. Several make a mixture, each with its share.",
)
@click.option(
    "--log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Attempts in place of --work: Parquet, a JSON list, or one JSON object a line, each with "
    "seconds, finished and perhaps weight.",
)
@click.option(
    "--timeout",
    "timeouts",
    type=FRACTIONAL,
    multiple=True,
    default=("30",),
    show_default=True,
    help="Visibility timeout to try. May be given several times.",
)
@click.option(
    "--growth",
    type=click.FloatRange(min=1),
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="Each delivery of a message has a timeout so many times that of the one before.",
)
@click.option(
    "--renew", "renew_s", type=FRACTIONAL, help="Renew leases every so long. Default: never."
)
@click.option(
    "--guard",
    "guard_s",
    type=FRACTIONAL,
    default="5",
    show_default=True,
    help="How long before its end a lease is renewed.",
)
@click.option(
    "--detect",
    "detect_s",
    type=FRACTIONAL,
    help="With sessions: how soon the leases of a dead worker end. Default: when they run out.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 1_000),
    default=1,
    show_default=True,
    help="Messages that a worker receives at once.",
)
@click.option("--skip-late", is_flag=True, help="Workers pass over what would likely be late.")
@click.option(
    "--order",
    type=click.Choice(["visible", "id"]),
    default="visible",
    show_default=True,
    help="What is received first: what has been visible for longest, or what was put first.",
)
@click.option(
    "--lapsed-receipts",
    type=click.Choice(["until-retaken", "strict"]),
    default="until-retaken",
    show_default=True,
    help="Whether a receipt still works when its lease is over and no other worker has it.",
)
@click.option(
    "--max-deliveries",
    type=click.IntRange(min=1),
    help="After so many a message is set aside. Default: never.",
)
@click.option("--redrawn", is_flag=True, help="Each attempt at a message takes a time of its own.")
@click.option(
    "--workers",
    type=click.IntRange(1, 10_000),
    default=8,
    show_default=True,
    help="Each works on one message at a time.",
)
@click.option(
    "--load",
    type=click.FloatRange(min=0, min_open=True),
    default=0.7,
    show_default=True,
    metavar="SHARE",
    help="Messages come so often that this share of the workers is busy.",
)
@click.option(
    "--per-second",
    "per_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="RATE",
    help="Messages put per second, in place of --load.",
)
@click.option(
    "--for",
    "lasts_s",
    type=FRACTIONAL,
    default="2h",
    show_default=True,
    help="How long to play.",
)
@click.option(
    "--crash-every",
    "crash_every_s",
    type=FRACTIONAL,
    help="How much work there is between two crashes of a worker. Default: none crashes.",
)
@click.option(
    "--restart",
    "restart_s",
    type=FRACTIONAL,
    default="10",
    show_default=True,
    help="How soon a crashed worker is back.",
)
@click.option(
    "--outage",
    "outages",
    type=Away(),
    multiple=True,
    help="When no worker receives, as 10m-12m. May be given several times.",
)
@click.option(
    "--duplicate-cost",
    "duplicate_s",
    type=FRACTIONAL,
    help="For the advice: what work done twice costs, as seconds that a message waits. Default: "
    "60, or five times the mean work.",
)
@click.option(
    "--advice/--no-advice",
    "with_advice",
    default=True,
    show_default=True,
    help="Play what would be advised as well.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of chance.")
def simulate(*, as_json: bool, no_color: bool, crash_every_s: float | None, **given: Any) -> None:
    """Try settings of a queue before making them.

    It plays messages, leases and workers event by event, for work of a made-up kind or as a log
    has it. The same messages come for each setting. No server is asked.

    Example: leasehold simulate --work lognormal:20,0.8 --crash-every 1h --timeout 30 --timeout 5m

    Example: leasehold simulate --log attempts.parquet --timeout 30 --outage 10m-12m --batch 32
    """
    screen = Screen(as_json=as_json, no_color=no_color)
    if not given["lasts_s"] > 0:
        raise click.UsageError("--for must be above 0.")
    if crash_every_s is not None and not crash_every_s > 0:
        raise click.UsageError("--crash-every must be above 0.")
    if any(each <= 0 for each in given["timeouts"]):
        raise click.UsageError("--timeout must be above 0.")
    for name in ("guard_s", "renew_s"):
        if given[name] is not None and given[name] <= 0:
            raise click.UsageError(f"--{name[:-2]} must be above 0.")
    rate = 0.0 if crash_every_s is None else 1 / crash_every_s
    play(screen, {**given, "crash_rate": rate})
