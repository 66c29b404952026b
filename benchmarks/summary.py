"""From medians to ratios and verdicts."""

from __future__ import annotations

from statistics import median
from typing import Final

from benchmarks import native_bars
from benchmarks.figures import Bar, Row, Spread, rows, why_missing
from benchmarks.records import Run

CYCLE: Final = "cycle/32/sas"
"""The case that most bars look at."""
_ALONE: Final = "cycle/1/sas"
_MEGABYTE: Final = 1_000_000
_LARGE: Final = 10_000_000
_MAX_BACKLOG_COST: Final = 1.05
_MAX_RESIDENT_MB: Final = 120
_BUSY: Final = 0.85
"""At 32 connections the no-op uses this much of a core and more, unless somebody else does."""
_FEW_ROUNDS: Final = 3
_FSYNC_DRIFT: Final = 2.0


def warnings(run: Run) -> list[str]:
    """Say what makes the figures of *run* less than trustworthy."""
    found = []
    for row in rows(run):
        if (row.case, row.subject) == (CYCLE, "noop"):
            share = row.server_us.median * row.per_s.median / 1e6
            if share < _BUSY:
                found.append(
                    f"the no-op got only {share:.0%} of a core in {CYCLE}: something else was "
                    f"using the machine, and the ratios of this run cannot be trusted"
                )
    syncs = [run.machine.get(name, {}).get("p50", 0.0) for name in ("fsync_us", "fsync_us_after")]
    if min(syncs) > 0 and max(syncs) / min(syncs) > _FSYNC_DRIFT:
        found.append(f"fsync took {syncs[0]:.0f} us before the run and {syncs[1]:.0f} us after it")
    if run.options.get("rounds", _FEW_ROUNDS) < _FEW_ROUNDS:
        found.append(f"fewer than {_FEW_ROUNDS} rounds: the spread is not known")
    return found


def bars(run: Run) -> list[Bar]:
    """Hold *run* against the promises; a bar whose figures are missing says so."""
    if native_bars.covers(run):
        return native_bars.bars(run)
    return _cycle_bars(run)


def _cycle_bars(run: Run) -> list[Bar]:
    found = {(row.case, row.subject, row.phase): row for row in rows(run)}
    large = [info for info in run.subjects if info.waiting >= _LARGE and not info.absent]
    name = large[0].name if large else "leasehold-10M"
    return [
        _ratio("cycle against beanstalkd with fsync", run, CYCLE, "beanstalkd", 1.5),
        _ratio("the same with one connection", run, _ALONE, "beanstalkd", 0.6),
        _ratio("cycle against Azurite, 5,000 waiting", run, CYCLE, "azurite-5k", 50.0),
        _ratio("cycle against the no-op on the same connections", run, CYCLE, "noop-own", 0.6),
        *_backlog_cost(found.get((CYCLE, "leasehold", "cycle")), found.get((CYCLE, name, "cycle"))),
        _memory(run, name),
        *(_restart(run, name, cold=cold) for cold in (False, True)),
    ]


def _ratio(name: str, run: Run, case: str, peer: str, bound: float) -> Bar:
    speeds = {row.subject: row.per_s for row in rows(run) if row.case == case}
    own, other = speeds.get("leasehold"), speeds.get(peer)
    promise = f">= {bound:g}"
    if own is None or other is None:
        missing = "leasehold" if own is None else peer
        return Bar(
            name=name, bound=promise, value=None, passed=None, detail=why_missing(run, missing)
        )
    value = own.median / other.median
    each = Spread.of(_paired(run, case, peer))
    detail = (
        f"{own.median:,.0f} / {other.median:,.0f} operations per second; "
        f"round by round {each.low:.2f} to {each.high:.2f}"
    )
    return Bar(name=name, bound=promise, value=value, passed=value >= bound, detail=detail)


def _paired(run: Run, case: str, peer: str) -> list[float]:
    """Return the ratio within each round in which both were measured."""
    speeds: dict[int, dict[str, float]] = {}
    for sample in run.samples:
        if sample.case == case:
            speeds.setdefault(sample.round, {})[sample.subject] = sample.measured.phases[0].per_s
    return [
        both["leasehold"] / both[peer]
        for both in speeds.values()
        if {"leasehold", peer} <= both.keys()
    ]


def _backlog_cost(empty: Row | None, full: Row | None) -> list[Bar]:
    names = (
        "CPU per operation, 10 M waiting against empty",
        "time per operation, 10 M waiting against empty",
    )
    promise = f"<= {_MAX_BACKLOG_COST:g}"
    if empty is None or full is None:
        return [
            Bar(name=name, bound=promise, value=None, passed=None, detail="not measured")
            for name in names
        ]
    cpu = full.server_us.median / empty.server_us.median
    wall = empty.per_s.median / full.per_s.median
    details = (
        f"{full.server_us.median:.1f} / {empty.server_us.median:.1f} microseconds",
        f"{full.per_s.median:,.0f} against {empty.per_s.median:,.0f} operations per second",
    )
    return [
        Bar(name=name, bound=promise, value=value, passed=value <= _MAX_BACKLOG_COST, detail=detail)
        for name, value, detail in zip(names, (cpu, wall), details, strict=True)
    ]


def _memory(run: Run, subject: str) -> Bar:
    name, promise = "resident memory with 10 M waiting, MB", f"< {_MAX_RESIDENT_MB}"
    peaks = [
        (memory.peak, memory.anonymous)
        for sample in run.samples
        if sample.subject == subject and (memory := sample.measured.memory)
    ]
    if not peaks:
        return Bar(
            name=name, bound=promise, value=None, passed=None, detail=why_missing(run, subject)
        )
    peak, anonymous = (max(values) / _MEGABYTE for values in zip(*peaks, strict=True))
    detail = f"highest ever; {anonymous:.0f} of it not pages of files"
    return Bar(name=name, bound=promise, value=peak, passed=peak < _MAX_RESIDENT_MB, detail=detail)


def _restart(run: Run, subject: str, *, cold: bool) -> Bar:
    name = f"start after kill -9 with 10 M waiting, {'cold' if cold else 'warm'} files, s"
    promise = "< 2"
    taken = [one for one in run.restarts if one.subject == subject and one.cold is cold]
    if not taken:
        return Bar(
            name=name, bound=promise, value=None, passed=None, detail=why_missing(run, subject)
        )
    answers = Spread.of(one.answer_s for one in taken)
    ready = median(one.ready_s for one in taken)
    detail = f"to the first message; {answers.low:.2f} to {answers.high:.2f}; ready at {ready:.2f}"
    return Bar(
        name=name,
        bound=promise,
        value=answers.median,
        passed=answers.median < 2,
        detail=detail,
    )
