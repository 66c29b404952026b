"""``leasehold simulate``: try settings of a queue before making them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from rich.console import RenderableType
from rich.text import Text

from leasehold.advisor import Advice, Attempt, Basis, Lengths, Prices, Question, advise
from leasehold.advisor.attempts import Floats
from leasehold.advisor.costs import FIXED, Growth
from leasehold.advisor.simulate import (
    Crew,
    Handling,
    Load,
    Outage,
    Outcome,
    PopOrder,
    Renewal,
    Shape,
    arrivals,
    draw_lengths,
    replayed,
)
from leasehold.advisor.simulate import simulate as simulated
from leasehold.cli.output import (
    Column,
    Listing,
    Screen,
    counted,
    number,
    per_second,
    rough,
    sections,
)
from leasehold.cli.remote import LocalCommand
from leasehold.cli.values import FRACTIONAL, GUARD
from leasehold.domain.queue_settings import LapsedReceipts
from leasehold.extras import install

_POOL: Final = 200_000
"""Lengths drawn from a log, by weight, from which messages take theirs."""
ADVISED_FROM: Final = 2_000
"""Attempts drawn to base advice on."""
MOST_MESSAGES: Final = 5_000_000
_COLUMNS: Final = (
    Column("SETTING", cut=True, least=14),
    Column("DONE", right=True, drop=4),
    Column("REDELIVERED", right=True),
    Column("WASTED", right=True),
    Column("WASTED WORK", right=True, drop=5),
    Column("RENEWALS", right=True, drop=6),
    Column("RECOVERY", right=True, drop=7),
    Column("WORST", right=True),
    Column("WAIT P99", right=True, drop=8),
    Column("BACKLOG", right=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    name: str
    handling: Handling
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where the lengths of work come from, and what advice goes by."""

    told: str
    lengths: Floats
    attempts: list[Attempt]
    redrawn: Floats | None


def play(screen: Screen, given: Mapping[str, Any]) -> None:
    """Play all settings and print how they compare.

    Raises:
        click.UsageError: What was given does not go together.
    """
    random = np.random.default_rng(given["seed"])
    source, came = _source(given, random)
    load = Load(arrivals_s=came, lengths_s=source.lengths, redrawn=source.redrawn)
    crew = Crew(
        workers=given["workers"],
        crash_rate=given["crash_rate"],
        restart_s=given["restart_s"],
        outages=given["outages"],
    )
    advice = _advice(given, source) if given["with_advice"] else None
    settings = list(_settings(given, advice))
    played = []
    with screen.progress() as progress:
        bar = progress.add_task("Playing", total=len(settings), note="")
        for name, handling in settings:
            outcome = simulated(load, handling, crew, lasts_s=given["lasts_s"], seed=given["seed"])
            played.append(_Played(name=name, handling=handling, outcome=outcome))
            progress.advance(bar)
    if screen.as_json:
        screen.document(_document(given, source, advice, played))
        return
    screen.show(_page(given, source, advice, played))


def _source(given: Mapping[str, Any], random: np.random.Generator) -> tuple[_Source, Floats]:
    shapes: tuple[Shape, ...] = given["works"]
    file: Path | None = given["log"]
    if bool(shapes) == (file is not None):
        raise click.UsageError(
            "The length of work is missing. Type: --work DISTRIBUTION, or --log FILE"
        )
    drawn: Floats | None = None
    if file is not None:
        try:
            attempts = read_attempts(file)
            drawn = replayed(attempts, random, _POOL)
        except (ValueError, OSError) as error:
            raise click.UsageError(f"{file} cannot be used: {error}.") from None
        told = f"{counted(len(attempts), 'attempt')} of {file.name}"
    else:
        sample = draw_lengths(shapes, random, ADVISED_FROM)
        attempts = [Attempt(float(each), finished=True) for each in sample]
        told = " + ".join(_told(each) for each in shapes)
    mean = float(np.mean(drawn if drawn is not None else [each.seconds for each in attempts]))
    rate = given["per_s"] or given["load"] * given["workers"] / mean
    if rate * given["lasts_s"] > MOST_MESSAGES:
        raise click.UsageError(
            f"This would simulate {rate * given['lasts_s']:,.0f} messages; the limit "
            f"is {MOST_MESSAGES:,}. Shorten --for, or lower --per-second."
        )
    came = arrivals(random, rate, given["lasts_s"])
    many = len(came)

    def lengths() -> Floats:
        if drawn is None:
            return draw_lengths(shapes, random, many)
        return random.choice(drawn, size=many)

    first = lengths()
    redrawn = lengths() if given["redrawn"] else None
    return _Source(told=told, lengths=first, attempts=attempts, redrawn=redrawn), came


def _told(shape: Shape) -> str:
    second = f",{shape.second:g}" if shape.second else ""
    share = f"{shape.share:g}*" if shape.share != 1 else ""
    return f"{share}{shape.name}:{shape.first:g}{second}"


def _advice(given: Mapping[str, Any], source: _Source) -> Advice:
    """Advise as if the crashes of a long time had been seen."""
    work_s = 1e9
    question = Question(
        prices=Prices(duplicate=given["duplicate_s"]),
        guard_s=given["guard_s"],
        half_life=None,
        growth=_growth(given),
        lengths=Lengths.OF_ATTEMPT if given["redrawn"] else Lengths.OF_MESSAGE,
    )
    crashes = given["crash_rate"] * work_s
    return advise(source.attempts, crashes=crashes, work_s=work_s, question=question)


def _growth(given: Mapping[str, Any]) -> Growth:
    """Return how timeouts grow; what would be advised is for such workers as are played."""
    return Growth(factor=given["growth"], tries=given["max_deliveries"] or FIXED.tries)


def _settings(given: Mapping[str, Any], advice: Advice | None) -> Iterable[tuple[str, Handling]]:
    base = Handling(
        timeout_s=1.0,
        growth=given["growth"],
        batch=given["batch"],
        detect_s=given["detect_s"],
        skip_late=given["skip_late"],
        order=PopOrder(given["order"]),
        lapsed_receipts=LapsedReceipts(given["lapsed_receipts"]),
        max_deliveries=given["max_deliveries"],
    )
    every = given["renew_s"]
    renewal = None if every is None else Renewal(every_s=every, guard_s=given["guard_s"])
    for timeout in given["timeouts"]:
        if renewal is not None and timeout <= renewal.guard_s:
            raise click.UsageError(
                "--timeout must be longer than --guard where leases are renewed."
            )
        name = f"{timeout:g} s" + ("" if renewal is None else f", renewed every {every:g} s")
        yield name, replace(base, timeout_s=timeout, renewal=renewal)
    if advice is None or advice.basis is not Basis.MODEL:
        return
    growth = _growth(given)
    yield (
        f"advice: {advice.timeout_s} s"
        + (f", times {growth.factor:g}" if growth.factor > 1 else ""),
        replace(base, timeout_s=float(advice.timeout_s)),
    )
    plan = advice.renewal
    if plan is not None:
        yield (
            f"advice: {plan.first_s:.0f} s, renewed every {plan.every_s:.0f} s",
            replace(
                base,
                timeout_s=plan.first_s,
                growth=1.0,
                renewal=Renewal(every_s=plan.every_s, guard_s=plan.guard_s),
            ),
        )


def _page(
    given: Mapping[str, Any], source: _Source, advice: Advice | None, played: list[_Played]
) -> RenderableType:
    first = played[0].outcome
    head = (
        f"{counted(first.arrived, 'message')} in {rough(given['lasts_s'])} for "
        f"{counted(given['workers'], 'worker')}; work: {source.told}; "
        f"{counted(first.crashes, 'crash', 'crashes')} with the first setting"
    )
    rows = [
        (
            each.name,
            number(each.outcome.done),
            number(each.outcome.redeliveries),
            f"{100 * each.outcome.wasted_share:.1f} %",
            rough(each.outcome.wasted_work_s),
            number(each.outcome.renewals),
            rough(each.outcome.recovery_mean_s),
            rough(each.outcome.recovery_worst_s),
            rough(each.outcome.wait_p99_s),
            number(each.outcome.backlog),
        )
        for each in played
    ]
    parts: list[tuple[str, RenderableType]] = [(head, Listing(_COLUMNS, rows))]
    if advice is not None:
        said = [advice.because]
        if advice.basis is Basis.MODEL and advice.as_good_s is not None:
            low, high = advice.as_good_s
            said.append(f"{low:.3g} to {high:.3g} s cost at most 5 % more, as estimated")
            said.append(f"at most {counted(advice.batch, 'message')} at once without renewal")
        parts.append(("Why", Text("; ".join(said) + ".")))
    end = f"messages done a second at the end: {per_second(first.per_s_at_end)}"
    parts.append(("With the first setting", Text(end + ".")))
    return sections(*parts)


def _document(
    given: Mapping[str, Any], source: _Source, advice: Advice | None, played: list[_Played]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "work": source.told,
        "seconds": given["lasts_s"],
        "workers": given["workers"],
        "seed": given["seed"],
        "settings": [
            {
                "name": each.name,
                "timeout_s": each.handling.timeout_s,
                "growth": each.handling.growth,
                "renew_every_s": each.handling.renewal and each.handling.renewal.every_s,
                **each.outcome.to_json(),
            }
            for each in played
        ],
    }
    if advice is not None:
        plan = advice.renewal
        found["advice"] = {
            "basis": advice.basis.value,
            "because": advice.because,
            "timeout_s": advice.timeout_s,
            "batch": advice.batch,
            "as_good_s": advice.as_good_s,
            "renewal": plan
            and {
                "first_s": plan.first_s,
                "every_s": plan.every_s,
                "lease_s": plan.lease_s,
                "guard_s": plan.guard_s,
            },
        }
    return found


# --- simulate reading --------------------------------------------------------------------------
#
# Values and files that ``leasehold simulate`` reads.


_WORK: Final = re.compile(r"(?:([\d.]+)\*)?([a-z]+):([^,]+)(?:,([^,]+))?")
_INPUT_COLUMNS: Final = ("seconds", "finished", "weight")


class Work(click.ParamType[Shape]):
    """A distribution: ``lognormal:20,0.8``, perhaps with a share before it: ``0.9*constant:1``."""

    name = "work"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """See :class:`click.ParamType`."""
        del param, ctx
        return "[SHARE*]NAME:NUMBER[,NUMBER]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Shape:
        """See :class:`click.ParamType`."""
        if isinstance(value, Shape):
            return value
        found = _WORK.fullmatch(value.strip().lower())
        if found is None:
            self.fail(f"{value!r}: write it like lognormal:20,0.8 or 0.9*constant:1.", param, ctx)
        try:
            return Shape(
                name=found[2],
                first=FRACTIONAL.convert(found[3], param, ctx),
                second=FRACTIONAL.convert(found[4], param, ctx) if found[4] else 0.0,
                share=float(found[1] or 1.0),
            )
        except ValueError as error:
            self.fail(f"{value!r}: {error}.", param, ctx)


class Away(click.ParamType[Outage]):
    """A time in which no worker runs: ``10m-12m``."""

    name = "outage"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """See :class:`click.ParamType`."""
        del param, ctx
        return "FROM-TO"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Outage:
        """See :class:`click.ParamType`."""
        if isinstance(value, Outage):
            return value
        start, _, end = value.partition("-")
        away = Outage(
            FRACTIONAL.convert(start, param, ctx), FRACTIONAL.convert(end or "?", param, ctx)
        )
        if away.end_s <= away.start_s:
            self.fail(f"{value!r} ends before it begins.", param, ctx)
        return away


def read_attempts(path: Path) -> list[Attempt]:
    """Read attempts from a file: Parquet by its ending, else JSON: a list, or one object a line.

    Each has ``seconds`` and ``finished``, and may have ``weight``.

    Raises:
        ValueError: The file has something else in it, or nothing.
        OSError: It cannot be read.
    """
    rows = _parquet(path) if path.suffix == ".parquet" else _json(path)
    attempts = [_attempt(place, row) for place, row in enumerate(rows, start=1)]
    if not attempts:
        raise ValueError("there are no attempts in it")
    return attempts


def _attempt(place: int, row: object) -> Attempt:
    if not isinstance(row, Mapping):
        raise _wrong(place, "it is no object")
    seconds, finished, weight = (row.get(name) for name in _INPUT_COLUMNS)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise _wrong(place, "seconds must be a number, 0 or more")
    if not isinstance(finished, bool):
        raise _wrong(place, "finished must be true or false")
    weight = 1.0 if weight is None else weight
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight > 0:
        raise _wrong(place, "weight must be a number above 0")
    return Attempt(float(seconds), finished, float(weight))


def _wrong(place: int, text: str) -> ValueError:
    return ValueError(f"attempt {place}: {text}")


def _json(path: Path) -> Iterator[object]:
    text = path.read_text("utf-8").strip()
    if text.startswith("["):
        yield from json.loads(text)
        return
    for line in text.splitlines():
        if line.strip():
            yield json.loads(line)


def _parquet(path: Path) -> Iterator[object]:
    try:
        from pyarrow import parquet  # noqa: PLC0415 - only for such files
    except ModuleNotFoundError:
        raise ValueError(f"reading Parquet needs pyarrow: {install('arrow')}") from None
    names = set(parquet.read_schema(path).names) & set(_INPUT_COLUMNS)
    yield from parquet.read_table(path, columns=sorted(names)).to_pylist()


# --- the command -------------------------------------------------------------------------------


_EPILOG: Final = """\b
Distributions of work, with their parameters (lengths: seconds, or 90s, 5m, 2h):
  constant:LENGTH          always the same
  exponential:MEAN
  lognormal:MEDIAN,SIGMA
  pareto:LEAST,EXPONENT
  uniform:LEAST,MOST

\b
Exit codes:
  0    success
  2    a mistake on the command line, or a file that cannot be used
"""


@click.command("simulate", cls=LocalCommand, epilog=_EPILOG)
@click.option(
    "--work",
    "works",
    type=Work(),
    multiple=True,
    help="Distribution of the length of work. Several make a mixture, each with its share.",
)
@click.option(
    "--log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File of attempts, instead of --work: Parquet, a JSON list, or one JSON object per "
    "line, each with seconds, finished and optionally weight.",
)
@click.option(
    "--timeout",
    "timeouts",
    type=FRACTIONAL,
    multiple=True,
    default=("30",),
    show_default=True,
    help="Visibility timeout to simulate. Can be repeated.",
)
@click.option(
    "--growth",
    type=click.FloatRange(min=1),
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="Factor by which the timeout grows with each delivery of a message.",
)
@click.option(
    "--renew", "renew_s", type=FRACTIONAL, help="Renew leases at this interval. Default: never."
)
@GUARD
@click.option(
    "--detect",
    "detect_s",
    type=FRACTIONAL,
    help="With sessions: time until the leases of a dead worker end. Default: their own end.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 1_000),
    default=1,
    show_default=True,
    help="Number of messages that a worker receives at once.",
)
@click.option(
    "--skip-late", is_flag=True, help="Let workers skip messages that are likely to be late."
)
@click.option(
    "--order",
    type=click.Choice(["visible", "id"]),
    default="visible",
    show_default=True,
    help="Order of receives: longest visible first, or first put first.",
)
@click.option(
    "--lapsed-receipts",
    type=click.Choice(["until-retaken", "strict"]),
    default="until-retaken",
    show_default=True,
    help="Whether a receipt stays valid after its lease until another worker receives the message.",
)
@click.option(
    "--max-deliveries",
    type=click.IntRange(min=1),
    help="Bury a message after this number of deliveries. Default: never.",
)
@click.option("--redrawn", is_flag=True, help="Draw a new length of work for each attempt.")
@click.option(
    "--workers",
    type=click.IntRange(1, 10_000),
    default=8,
    show_default=True,
    help="Number of workers, each with one message at a time.",
)
@click.option(
    "--load",
    type=click.FloatRange(min=0, min_open=True),
    default=0.7,
    show_default=True,
    metavar="SHARE",
    help="Share of the workers that is busy, which sets the rate of messages.",
)
@click.option(
    "--per-second",
    "per_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="RATE",
    help="Messages put per second, instead of --load.",
)
@click.option(
    "--for",
    "lasts_s",
    type=FRACTIONAL,
    default="2h",
    show_default=True,
    help="Time to simulate.",
)
@click.option(
    "--crash-every",
    "crash_every_s",
    type=FRACTIONAL,
    help="Mean time of work between two crashes of a worker. Default: no crashes.",
)
@click.option(
    "--restart",
    "restart_s",
    type=FRACTIONAL,
    default="10",
    show_default=True,
    help="Time until a crashed worker is back.",
)
@click.option(
    "--outage",
    "outages",
    type=Away(),
    multiple=True,
    help="Time without any worker, such as 10m-12m. Can be repeated.",
)
@click.option(
    "--duplicate-cost",
    "duplicate_s",
    type=FRACTIONAL,
    help="Cost of work done twice, in seconds of waiting, for the advice. Default: 60, or five "
    "times the mean work.",
)
@click.option(
    "--advice/--no-advice",
    "with_advice",
    default=True,
    show_default=True,
    help="Simulate the advised settings as well.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of chance.")
def simulate(*, as_json: bool, no_color: bool, crash_every_s: float | None, **given: Any) -> None:
    """Simulate a queue with given settings.

    It simulates messages, leases and workers event by event, with a distribution of work or the
    work in a log. Each setting gets the same messages. No server is used.

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
