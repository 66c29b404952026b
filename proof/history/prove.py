"""The part ``history`` of the proof: what it runs, and how much of it."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.reliability.disks import mounted

from proof.bugs import planted
from proof.history import patroni, postgres
from proof.history.adapters import Restart, System
from proof.history.campaign import Campaign
from proof.history.checker import Verdict
from proof.history.crash_states import crash_states
from proof.history.faults import ClockStepWhileDown, Fault, Kill, faults_for
from proof.history.leasehold import Leasehold
from proof.history.shim import Shim
from proof.history.shim import is_available as can_compile
from proof.history.soak import Soak
from proof.history.written import EXPLAINED, FAULTS, missed
from proof.report import Check, Order, empty_folder

_MEMORY: Final = Path("/dev/shm")  # records there are on no disk that faults are done to
_DISK_MIB: Final = 64
_CONTROL_S: Final = (2.5, 10.0, 40.0)
"""How long a control goes on: no longer than it takes to find something."""
_SHORT_QUIET_S: Final = (0.02, 0.25)
_ROUND_S: Final = 300.0
_ROUND_FAULTS: Final = 500
"""A campaign is no longer than that."""
_Faults: TypeAlias = Callable[[System], Sequence[Fault]]

PLANTED: Final = {
    "two-leases": "doubled",
    "stale-complete": "stale",
    "early-delayed": "early",
    "lost-on-release": "lost",
    "complete-kept": "back",
    "count-off": "counts",
    "group-overtaken": "order",
    "early-lapse": "doubled",
    "receipt-kept": "stale",
    "lost-on-lapse": "lost",
}
"""Bugs of ``proof.bugs`` that show from outside, and the column that each must be found in."""
_SOAK_BUG: Final = "lost-on-release"
_SOAK_CONTROL_HOURS: Final = (0.5, 2.0, 8.0)
"""A control of the soak goes on no longer than it takes to find something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """How much of everything. 0 leaves a part out."""

    planted: int
    """Servers with a bug."""
    seconds: float
    """Of all faults on SQLite."""
    kills: int
    crash_states: int
    database_seconds: float
    """Of all faults on PostgreSQL."""
    failovers: int
    patroni: int
    """Of failovers that Patroni decides about."""
    soak_hours: float


SHORT: Final = Amounts(
    planted=5,
    seconds=25,
    kills=25,
    crash_states=3_000,
    database_seconds=15,
    failovers=3,
    patroni=0,
    soak_hours=3,
)
"""About three minutes on two cores."""
LONG: Final = Amounts(
    planted=len(PLANTED),
    seconds=3_600,
    kills=10_000,
    crash_states=1_000_000,
    database_seconds=1_800,
    failovers=500,
    patroni=50,
    soak_hours=24,
)
"""The release tier."""


def prove(order: Order, amounts: Amounts | None = None) -> Iterator[Check]:
    """Run all parts; see ``proof/__main__.py``."""
    wanted = amounts or (LONG if order.long else SHORT)
    yield _written()
    runs = _Runs(order.folder, order.seed)
    if can_compile() and wanted.planted:
        yield runs.lying_disk()
        yield runs.wrong_clock()
    for bug, column in list(PLANTED.items())[: wanted.planted]:
        yield runs.planted(bug, column)
    if wanted.seconds:
        yield runs.all_faults(wanted.seconds)
    if wanted.kills:
        yield runs.kills(wanted.kills)
    if wanted.crash_states:
        yield from _crash_states(order.seed, wanted.crash_states)
    if postgres.is_available():
        if wanted.database_seconds:
            yield runs.database(wanted.database_seconds)
        if wanted.failovers:
            yield runs.lagging_standby()
            yield runs.failovers(wanted.failovers)
    yield from _patroni(runs, wanted.patroni)
    if wanted.soak_hours:
        yield _soak_with_a_bug(order)
        yield _soak(order, wanted.soak_hours)


def _patroni(runs: _Runs, count: int) -> Iterator[Check]:
    if not count:
        return
    if absent := patroni.missing():
        yield Check(name="Patroni", passed=True, said=f"left out, not installed: {absent}")
        return
    yield runs.asynchronous_patroni()
    yield runs.patroni(count)


class _LyingPowerCut(Kill):
    """A power cut for a disk that has not kept what it confirmed since the one before."""

    def stop(self) -> Restart:
        """Begin to lie, and start again."""
        assert self.power is not None
        self.power.lie()
        return super().stop()


class _UnrecordedStep(ClockStepWhileDown):
    """A clock that is set back while nobody runs, of which the history is not told."""

    def start(self, rng: random.Random) -> str:
        """Kill and set it back."""
        del rng
        self.system.kill()
        self.shim.step_clock(-1.5)
        return ""

    def stop(self) -> Restart:
        """Start, and say nothing of the step."""
        return super().stop()._replace(moved_s=0.0)


def _written() -> Check:
    wrong = missed()
    said = f"{len(FAULTS)} broken rules found, {len(EXPLAINED)} explanations accepted"
    return Check(name="written histories", passed=not wrong, said="; ".join(wrong) or said)


class _Total:
    """What campaigns have come to together.

    Args:
        silence: The fault of which it is told how long clients then got no answer.
    """

    def __init__(self, silence: str) -> None:
        self.texts: list[str] = []
        """What was found, and where it is kept."""
        self.figures: dict[str, Any] = {}
        self._silence = silence
        self._silences_s: list[float] = []
        self._done: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()
        self._row: Counter[str] = Counter()

    def add(self, campaign: Campaign, verdict: Verdict) -> None:
        """Add one campaign."""
        self._done += campaign.done
        self._seen.update(verdict.figures)
        self._row.update({name: count for name, count in verdict.row().items() if count})
        self._silences_s += campaign.silences_s(self._silence)

    def check(self, name: str) -> Check:
        """Return the whole."""
        said = f"{_done(self._done)}; {_row(self._seen, self._row)}"
        self.figures |= {**self._seen, "done": dict(self._done), "found": dict(self._row)}
        if self._silences_s:
            middle_s, most_s = statistics.median(self._silences_s), max(self._silences_s)
            said += f"; silent for {middle_s:.2f} s in the middle, {most_s:.2f} s at most"
            self.figures["silence_s"] = {"median": middle_s, "longest": most_s}
        passed = not self.texts and self._seen["completes"] > 0
        return Check(
            name=name, passed=passed, said="\n".join([said, *self.texts]), figures=self.figures
        )


class _Runs:
    """Runs of real servers, whose records are kept if something is found.

    Args:
        folder: Where to keep them.
        seed: Of all runs.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed

    def planted(self, bug: str, column: str) -> Check:
        """Have a server with a bug be found out; it has no other faults."""
        return self._finds(bug, column, lambda data: (Leasehold(data / "data", bug=bug), ()))

    def lying_disk(self) -> Check:
        """Have a disk that confirms what it has not kept be found out at a power cut."""

        def made(data: Path) -> tuple[System, Sequence[Fault]]:
            shim = Shim(data / "shim", data / "data")
            system = Leasehold(data / "data", shim=shim)
            return system, [_LyingPowerCut(system, power=shim, damage="none")]

        return self._finds("a lying disk", "lost", made)

    def wrong_clock(self) -> Check:
        """Have leases that end late, because a clock was set back, be found out."""

        def made(data: Path) -> tuple[System, Sequence[Fault]]:
            shim = Shim(data / "shim", data / "data")
            system = Leasehold(data / "data", shim=shim)
            return system, [_UnrecordedStep(system, shim)]

        return self._finds("a clock set back", "late", made)

    def lagging_standby(self) -> Check:
        """Have the promotion of a standby that had fallen behind be found out."""

        @contextmanager
        def opened(data: Path) -> Iterator[tuple[System, Sequence[Fault]]]:
            with postgres.pair_of_databases(data) as (system, pair):
                yield system, [postgres.LaggingFailover(pair)]

        return self._finds_lag("a standby that lags", opened)

    def asynchronous_patroni(self) -> Check:
        """Have it be found out that commits do not wait for a standby."""

        @contextmanager
        def opened(data: Path) -> Iterator[tuple[System, Sequence[Fault]]]:
            with patroni.patroni_databases(data, synchronous=False) as (system, cluster):
                yield system, [patroni.LaggingLeaderKilled(cluster)]

        return self._finds_lag("a Patroni without synchronous mode", opened)

    def _finds_lag(
        self,
        name: str,
        opened: Callable[[Path], AbstractContextManager[tuple[System, Sequence[Fault]]]],
    ) -> Check:
        """Have one failover to a standby that has not heard the last."""
        said, found = "", 0
        for quiet_s in _CONTROL_S:  # on a busy machine little is confirmed in a short time
            with self._folders() as (data, records), opened(data / "data") as (system, lagging):
                campaign = self._campaign(system, lambda _, these=lagging: these, records)  # type: ignore[misc]
                campaign.quiet_s = (quiet_s, quiet_s)
                verdict = campaign.run(faults=1)
            said, found = _row(verdict.figures, verdict.row()), len(verdict.found["lost"])
            if found:
                break
        return Check(name=f"finds {name}", passed=found > 0, said=said)

    def _finds(
        self,
        name: str,
        column: str,
        made: Callable[[Path], tuple[System, Sequence[Fault]]],
    ) -> Check:
        """Run until something is found; a busy machine may make few calls in a short time."""
        said = ""
        for seconds in _CONTROL_S:
            with self._folders() as (data, records):
                system, faults = made(data)
                campaign = self._campaign(system, lambda _, these=faults: these, records, 3)  # type: ignore[misc]
                if faults:
                    campaign.quiet_s = (seconds / 2, seconds / 2)
                verdict = campaign.run(seconds=seconds, drain=column == "lost")
            count = len(verdict.found[column])
            said = f"{column} {count} in {verdict.figures['calls']} calls"
            if count:
                break
        return Check(name=f"finds {name}", passed=count > 0, said=said)

    def all_faults(self, seconds: float) -> Check:
        """Do everything to a server on SQLite."""

        @contextmanager
        def opened(data: Path) -> Iterator[tuple[System, _Faults]]:
            with ExitStack() as stack:
                mount = None
                if os.geteuid() == 0:  # else nothing small enough to fill can be made
                    mount = stack.enter_context(mounted(data / "disk", size_mib=_DISK_MIB))
                shim = Shim(data / "shim", (mount or data) / "data") if can_compile() else None
                system = Leasehold((mount or data) / "data", shim=shim)
                yield (
                    system,
                    lambda _: faults_for(system, relays=system.relays, shim=shim, mount=mount),
                )

        return self._in_rounds("all faults, SQLite", opened, seconds=seconds)

    def kills(self, count: int) -> Check:
        """Kill a server on SQLite so often."""

        @contextmanager
        def opened(data: Path) -> Iterator[tuple[System, _Faults]]:
            system = Leasehold(data / "data")
            yield system, lambda _: [Kill(system)]

        return self._in_rounds("kills, SQLite", opened, faults=count, silence="kill")

    def database(self, seconds: float) -> Check:
        """Do everything to two servers on PostgreSQL, and to that."""

        @contextmanager
        def opened(data: Path) -> Iterator[tuple[System, _Faults]]:
            with postgres.shared_database(data / "data") as (system, relays, cluster):
                yield system, lambda _: postgres.faults_of_database(system, relays, cluster)

        return self._in_rounds("all faults, PostgreSQL", opened, seconds=seconds)

    def failovers(self, count: int) -> Check:
        """Kill a primary so often, and promote its synchronous standby."""

        @contextmanager
        def opened(data: Path) -> Iterator[tuple[System, _Faults]]:
            with postgres.pair_of_databases(data / "data") as (system, pair):
                yield system, lambda _: [postgres.Failover(pair)]

        return self._in_rounds("failovers", opened, faults=count, silence="failover")

    def patroni(self, count: int) -> Check:
        """Take the leader away so often, in several ways, and have Patroni choose another one."""

        @contextmanager
        def opened(data: Path) -> Iterator[tuple[System, _Faults]]:
            with patroni.patroni_databases(data / "data") as (system, cluster):
                yield system, lambda _: patroni.faults_of_patroni(cluster)

        return self._in_rounds("Patroni", opened, faults=count, silence="leader killed")

    def _campaign(
        self,
        system: System,
        faults: _Faults,
        records: Path,
        clients: int = 4,
        seed: int | None = None,
    ) -> Campaign:
        return Campaign(
            system=system,
            faults_of=faults,
            folder=records,
            seed=self._seed if seed is None else seed,
            clients=clients,
        )

    @contextmanager
    def _folders(self) -> Iterator[tuple[Path, Path]]:
        with (
            tempfile.TemporaryDirectory(prefix="lhproof") as data,
            tempfile.TemporaryDirectory(prefix="lhproof", dir=_MEMORY) as records,
        ):
            yield Path(data), Path(records)

    def _in_rounds(
        self,
        name: str,
        opened: Callable[[Path], AbstractContextManager[tuple[System, _Faults]]],
        *,
        seconds: float = 0,
        faults: int = 0,
        silence: str = "",
    ) -> Check:
        """Run campaigns, each on data of its own, until the amount is reached; keep what is wrong.

        A history is checked as a whole, in memory, so it may not go on for hours.
        """
        total, since_s, number = _Total(silence), time.monotonic(), 0
        while seconds > 0 or faults > 0:
            seed = self._seed + number
            with self._folders() as (data, records), opened(data) as (system, possible):
                campaign = self._campaign(system, possible, records, seed=seed)
                try:
                    if faults > 0:
                        campaign.quiet_s = _SHORT_QUIET_S
                        verdict = campaign.run(faults=min(faults, _ROUND_FAULTS))
                    else:
                        verdict = campaign.run(seconds=min(seconds, _ROUND_S))
                except BaseException:
                    self._keep(name, records, seed)
                    raise
                total.add(campaign, verdict)
                if verdict.violations:
                    kept = self._keep(name, records, seed)
                    (kept / "verdict.txt").write_text(verdict.told())
                    total.texts.append(f"seed {seed}, records in {kept}\n{verdict.told()}")
            seconds, faults, number = seconds - _ROUND_S, faults - _ROUND_FAULTS, number + 1
        total.figures |= {"seconds": round(time.monotonic() - since_s, 1), "seed": self._seed}
        return total.check(name)

    def _keep(self, name: str, records: Path, seed: int) -> Path:
        kept = self._folder / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(records, kept)
        return kept


def _crash_states(seed: int, states: int) -> Iterator[Check]:
    control = crash_states(seed, 300, synchronous=1)
    yield Check(
        name="finds a store that does not sync",
        passed=control.bad > 0,
        said=f"{control.bad} of {control.states} crash states",
    )
    found = crash_states(seed, states)
    yield Check(
        name="crash states",
        passed=not found.bad,
        said="\n".join([f"{found.bad} of {found.states} wrong", *found.violations]),
        figures={"states": found.states, "wrong": found.bad, "seed": seed},
    )


def _soak_with_a_bug(order: Order) -> Check:
    """Have a soak of a server with a bug find it."""
    column, said, count = PLANTED[_SOAK_BUG], "", 0
    for hours in _SOAK_CONTROL_HOURS:
        folder = empty_folder(order.folder / "soak-control")
        with planted(_SOAK_BUG):
            verdict = Soak(folder, order.seed).run(hours)
        shutil.rmtree(folder)
        count = len(verdict.found[column])
        said = f"{_SOAK_BUG}: {column} {count} in {verdict.figures['calls']} calls"
        if count:
            break
    return Check(name="finds a bug in a soak", passed=count > 0, said=said)


def _soak(order: Order, hours: float) -> Check:
    """Run a soak; the records, with its schedule of calls and faults, are kept if it fails."""
    folder = empty_folder(order.folder / "soak")
    run = Soak(folder, order.seed)
    verdict, done = run.run(hours), run.done
    said = f"{hours:g} h; {_done(done)}; {_row(verdict.figures, verdict.row())}"
    if verdict.violations:
        said += f"; seed {order.seed}, schedule in {folder / 'records'}\n{verdict.told()}"
    else:
        shutil.rmtree(folder)
    figures = {**verdict.figures, **verdict.row(), "hours": hours, "seed": order.seed}
    return Check(name="soak", passed=not verdict.violations, said=said, figures=figures)


def _done(done: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(done.items()))


def _row(seen: Mapping[str, int], row: Mapping[str, int | None]) -> str:
    calls = f"{seen['calls']} calls, {seen['unknown']} unknown"
    found = ", ".join(f"{name} {count}" for name, count in row.items() if count)
    return f"{calls}; {found or 'zero in every column'}"
