"""The part ``log`` of the proof: event logs against the rules, and the check against bugs."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from leasehold.events.check_input import check_all, files_in, rows_of_file
from proof.bugs import BUGS, planted
from proof.log import real, scenarios, synthetic, traces
from proof.report import Check, Order

NOT_IN_THE_LOG: Final = frozenset(
    {"lost-on-release", "lost-on-lapse", "exemption-lost", "count-off"}
)
"""Bugs whose log says what should have happened: the queues tell, compared with it."""
_SECONDS: Final = 20
_LONG_SECONDS: Final = 900
_EVENTS: Final = 1_000_000
_LONG_EVENTS: Final = 100_000_000
_RATE: Final = 50_000
"""Events a second that the check is to be capable of."""
_AT_ONCE: Final = 1_000_000
_CONTROL_EVENTS: Final = 50_000
_KEPT: Final = Path(__file__).resolve().parents[2] / "tests/proof/traces"


def prove(order: Order) -> Iterator[Check]:
    """Check logs of real servers, of servers with bugs, of the model, and a large one."""
    yield from _bugs()
    yield from _real(order)
    yield from _traces(order)
    yield _large(order)
    yield _spoilt_large(order)


def _bugs() -> Iterator[Check]:
    for work in dict.fromkeys(scenarios.WORK.values()):
        seen = scenarios.play(work)
        total = seen.with_queues.total
        yield Check(
            name=f"no bug, {work.__name__}",
            passed=not total and seen.log.consumed == seen.log.events > 0,
            said=f"{total} violations in {seen.log.events} events",
        )
    for name, bug in BUGS.items():
        with planted(name):
            seen = scenarios.play(scenarios.WORK[name])
        where = "its queues" if name in NOT_IN_THE_LOG else "its log"
        report = seen.with_queues if name in NOT_IN_THE_LOG else seen.log
        rules = ", ".join(map(str, report.found)) or "nothing"
        yield Check(name=name, passed=bool(report.total), said=f"{bug.meaning}: {where}: {rules}")


def _real(order: Order) -> Iterator[Check]:
    seconds = _LONG_SECONDS if order.long else _SECONDS
    kinds = {"SQLite": real.sqlite, "two servers on PostgreSQL": real.postgres}
    for kind, play in kinds.items():
        folder = order.folder / kind.split()[-1].lower()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for judged in play(folder, order.seed, seconds):
                report = judged.report
                yield Check(
                    name=f"{kind}, seed {order.seed}, {judged.how}",
                    passed=judged.code == 0 and report["consumed"] == report["events"] > 0,
                    said=f"{report['events']:,} events, {report['found'] or 'nothing wrong'}",
                    figures=report,
                )
            yield _spoilt_real(kind, folder)
        except FileNotFoundError as error:
            yield Check(name=kind, passed=False, said=str(error))


def _spoilt_real(kind: str, folder: Path) -> Check:
    """Have one delivery too many be found in what a server has exported."""
    synthetic.spoil(folder / "events", folder / "spoilt")
    judged = real.judge("spoilt", "--from", str(folder / "spoilt"))
    found = judged.report["found"]
    return Check(
        name=f"{kind}, one delivery counted twice",
        passed=judged.code == 1 and "exact-count" in found,
        said=f"{judged.report['events']:,} events, {found or 'nothing'}",
    )


def _spoilt_large(order: Order) -> Check:
    """Have the same be found in a made log that is read in parts."""
    synthetic.write(order.folder / "control", _CONTROL_EVENTS, order.seed)
    synthetic.spoil(order.folder / "control", order.folder / "spoilt")
    files = files_in(order.folder / "spoilt")
    report = check_all(lambda: map(rows_of_file, files), at_once=_CONTROL_EVENTS // 10)
    _remove(order.folder / "control")
    _remove(order.folder / "spoilt")
    found = ", ".join(map(str, report.found)) or "nothing"
    return Check(
        name="one delivery counted twice",
        passed="exact-count" in report.found,
        said=f"{report.events:,} events: {found}",
    )


def _traces(order: Order) -> Iterator[Check]:
    for name in ("accepted", "rejected"):
        packed = _KEPT / f"{name}.jsonl.gz"
        kept = order.folder / f"kept-{name}.jsonl"
        kept.write_bytes(gzip.decompress(packed.read_bytes()))
        yield _agreement(f"{name} by the model, as kept", kept)
    folder = order.folder / "traces"
    program = [sys.executable, "-m", "proof.model.traces", str(folder)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode:
        yield Check(name="traces of the model", passed=False, said=done.stderr[-300:])
        return
    for name in ("accepted", "rejected"):
        yield _agreement(f"{name} by the model", folder / f"{name}.jsonl")


def _agreement(name: str, path: Path) -> Check:
    """Say whether the checker judges traces as the model does."""
    found = list(traces.judge(path))
    wrong = [trace.name for trace in found if not trace.is_right]
    hidden = sum(not trace.visible_in_log for trace in found)
    said = f"{len(found)} traces, {hidden} of them not to be seen in a log; wrong: {wrong}"
    return Check(name=name, passed=bool(found) and not wrong, said=said)


def _large(order: Order) -> Check:
    folder = order.folder / "large"
    events = synthetic.write(folder, _LONG_EVENTS if order.long else _EVENTS, order.seed)
    files = files_in(folder)
    since_s = _worked_s()
    report = check_all(lambda: map(rows_of_file, files), at_once=_AT_ONCE)
    taken_s = _worked_s() - since_s
    _remove(folder)
    rate = events / taken_s
    return Check(
        name=f"{events:,} events",
        passed=not report.total and report.consumed == events,
        said=f"{rate:,.0f} a second of a core, of {_RATE:,} asked for; peak {_peak_mib()} MiB",
        figures={"events": events, "per_s": rate, "peak_mib": _peak_mib()},
    )


def _worked_s() -> float:
    """Return how long this process has had a processor: others may want it, too."""
    times = os.times()
    return times.user + times.system


def _remove(folder: Path) -> None:
    for path in files_in(folder):
        path.unlink()


def _peak_mib() -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (each for each in text.splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) // 1024
