"""The promises of the native API, held against what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any, Final

from benchmarks.figures import Bar, Spread, rows, why_missing
from benchmarks.records import COUNTS, LIFECYCLE, PAGE, Phase, Run

_RATIO: Final = 2.0
_PAGE_MS: Final = 100.0
_COUNTS_MS: Final = 2.0
_IDLE_PERCENT: Final = 1.0
"""What counts as none: 5,000 connections that ask for nothing take as much."""
_WAITERS: Final = 5_000
_LARGE: Final = 10_000_000
_PAGE_CASE: Final = "inspect/1/bearer/by1000"
_SUBJECT: Final = "leasehold"
_WORKLOADS: Final = frozenset({"batches", "inspect", "counts"})


def covers(run: Run) -> bool:
    """Tell whether *run* measured the native API."""
    return any(case.workload in _WORKLOADS for case in run.cases)


def bars(run: Run) -> list[Bar]:
    """Hold *run* against the promises; a bar whose figures are missing says so."""
    return [_batches(run), _pages(run), _counts(run), *_long_polls(run)]


def _batches(run: Run) -> Bar:
    """Compare the best number of connections of each side."""
    name, promise = "batches of 100 against a queue in PostgreSQL", f">= {_RATIO:g}"
    best: dict[str, tuple[float, Spread, str]] = {}
    for row in rows(run):
        if row.phase == LIFECYCLE:
            best[row.subject] = max(
                best.get(row.subject, (0.0, row.per_s, row.case)),
                (row.per_s.median, row.per_s, row.case),
                key=lambda one: one[0],
            )
    peer = "pgmq" if "pgmq" in best else "skip-locked"
    missing = [subject for subject in (_SUBJECT, peer) if subject not in best]
    if missing:
        return _unmeasured(name, promise, why_missing(run, missing[0]))
    (own, spread, own_case), (other, other_spread, other_case) = best[_SUBJECT], best[peer]
    detail = (
        f"{own:,.0f} ({spread.low:,.0f} to {spread.high:,.0f}, {own_case}) / {other:,.0f} "
        f"({other_spread.low:,.0f} to {other_spread.high:,.0f}, {other_case}) lifecycles per "
        f"second; {peer}, each with its best number of connections"
    )
    value = own / other
    return Bar(name=name, bound=promise, value=value, passed=value >= _RATIO, detail=detail)


def _pages(run: Run) -> Bar:
    name = "page of 1,000 messages of 100,000, 5,000 leased: p99, ms"
    found = _phases(run, PAGE, {case.name for case in run.cases if case.name == _PAGE_CASE})
    if not found:
        return _unmeasured(name, f"< {_PAGE_MS:g}", why_missing(run, "leasehold-100k"))
    detail = f"{found[0].operations:,} messages in {found[0].requests} pages, each exactly once"
    return _p99(name, found, PAGE, _PAGE_MS, detail)


def _counts(run: Run) -> Bar:
    name = "counts with 10 M waiting: p99, ms"
    large = {info.name for info in run.subjects if info.waiting >= _LARGE and not info.absent}
    found = [
        phase
        for sample in run.samples
        if sample.subject in large
        for phase in sample.measured.phases
        if phase.name == COUNTS
    ]
    if not found:
        return _unmeasured(name, f"< {_COUNTS_MS:g}", why_missing(run, "leasehold-10M"))
    answers = sum(phase.requests for phase in found)
    return _p99(name, found, COUNTS, _COUNTS_MS, f"{answers:,} exact answers, one after another")


def _long_polls(run: Run) -> list[Bar]:
    """Judge how soon receivers that wait are told, and what they cost while they wait."""
    found = {one["measure"]: one for one in run.long_poll}
    return [
        _told("long poll: from a put to the waiting receiver, p99, ms", found.get("latency"), 10),
        _told("long poll: a delayed message after it is due, p99, ms", found.get("lateness"), 20),
        _idle([one for one in run.long_poll if one["measure"] == "idle"]),
    ]


def _told(name: str, line: Mapping[str, Any] | None, bound_ms: float) -> Bar:
    bound = f"< {bound_ms:g}"
    if line is None:
        return _unmeasured(name, bound, "not part of this run")
    value = line["p99_ms"]
    detail = f"{line['count']:,} messages, p50 {line['p50_ms']:.2f}, max {line['max_ms']:.2f}"
    return Bar(name=name, bound=bound, value=value, passed=value < bound_ms, detail=detail)


def _idle(lines: list[Mapping[str, Any]]) -> Bar:
    """Compare the processor time of a server with many waiters to that of one left alone."""
    name, bound = "long poll: 5,000 idle waiters, % of a core", f"< {_IDLE_PERCENT:g}"
    crowds = [line for line in lines if line["waiters"] >= _WAITERS]
    alone = [line for line in lines if not line["waiters"] and not line["connections"]]
    if not crowds or not alone:
        return _unmeasured(name, bound, "not part of this run")
    used = [_percent(line) for line in (crowds[0], alone[0])]
    value = used[0] - used[1]
    detail = f"{used[0]:.2f} with {crowds[0]['waiters']:,} waiters, {used[1]:.2f} without anybody"
    detail += "".join(
        f", {_percent(line):.2f} with {line['connections']:,} connections that ask for nothing"
        for line in lines
        if line["connections"] and not line["waiters"]
    )
    return Bar(name=name, bound=bound, value=value, passed=value < _IDLE_PERCENT, detail=detail)


def _percent(line: Mapping[str, Any]) -> float:
    used: float = line["cpu_s"] / line["seconds"] * 100
    return used


def _phases(run: Run, name: str, cases: set[str]) -> list[Phase]:
    return [
        phase
        for sample in run.samples
        if sample.case in cases
        for phase in sample.measured.phases
        if phase.name == name
    ]


def _p99(name: str, phases: list[Phase], verb: str, bound_ms: float, detail: str) -> Bar:
    """Return the verdict on the median over the rounds of each round's p99."""
    each = [phase.latencies[verb].p99_us / 1000 for phase in phases]
    middle = median(phase.latencies[verb].p50_us / 1000 for phase in phases)
    value = median(each)
    return Bar(
        name=name,
        bound=f"< {bound_ms:g}",
        value=value,
        passed=value < bound_ms,
        detail=f"{detail}; rounds {min(each):.2f} to {max(each):.2f}, p50 {middle:.2f}",
    )


def _unmeasured(name: str, bound: str, why: str) -> Bar:
    return Bar(name=name, bound=bound, value=None, passed=None, detail=why)
