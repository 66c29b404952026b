"""The part ``history`` of the proof: what it runs, and how much of it."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.reliability.disks import mounted

from proof.history import postgres
from proof.history.adapters import Restart, System
from proof.history.campaign import Campaign
from proof.history.checker import Verdict
from proof.history.crash_states import crash_states
from proof.history.faults import ClockStepWhileDown, Fault, Kill, faults_for
from proof.history.leasehold import Leasehold
from proof.history.shim import Shim
from proof.history.shim import is_available as can_compile
from proof.history.soak import soak
from proof.history.written import EXPLAINED, FAULTS, missed
from proof.report import Check, Order

_MEMORY: Final = Path("/dev/shm")  # records there are on no disk that faults are done to
_DISK_MIB: Final = 64
_CONTROL_S: Final = (2.5, 10.0, 40.0)
"""How long a control goes on: no longer than it takes to find something."""
_SHORT_QUIET_S: Final = (0.02, 0.25)

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
    soak_hours: float


SHORT: Final = Amounts(
    planted=5,
    seconds=25,
    kills=25,
    crash_states=3_000,
    database_seconds=15,
    failovers=3,
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
    soak_hours=24,
)
"""The release tier."""


def prove(order: Order, amounts: Amounts | None = None, seed: int = 1) -> Iterator[Check]:
    """Run all parts; see ``proof/__main__.py``."""
    wanted = amounts or (LONG if order.long else SHORT)
    yield _written()
    runs = _Runs(order.folder, seed)
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
        yield from _crash_states(seed, wanted.crash_states)
    if postgres.is_available():
        if wanted.database_seconds:
            yield runs.database(wanted.database_seconds)
        if wanted.failovers:
            yield runs.lagging_standby()
            yield runs.failovers(wanted.failovers)
    if wanted.soak_hours:
        yield _soak(seed, wanted.soak_hours)


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
        with (
            self._folders() as (data, records),
            postgres.pair_of_databases(data / "data") as (system, pair),
        ):
            campaign = self._campaign(system, lambda _: [postgres.LaggingFailover(pair)], records)
            verdict = campaign.run(faults=1)
        return Check(
            name="finds a standby that lags",
            passed=bool(verdict.found["lost"]),
            said=_row(verdict),
        )

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
        with self._folders() as (data, records), ExitStack() as stack:
            mount = None
            if os.geteuid() == 0:  # else nothing small enough to fill can be made
                mount = stack.enter_context(mounted(data / "disk", size_mib=_DISK_MIB))
            shim = Shim(data / "shim", (mount or data) / "data") if can_compile() else None
            system = Leasehold((mount or data) / "data", shim=shim)

            def faults(_: System) -> list[Fault]:
                return faults_for(system, relays=system.relays, shim=shim, mount=mount)

            campaign = self._campaign(system, faults, records)
            return self._told("all faults, SQLite", campaign, records, seconds=seconds)

    def kills(self, count: int) -> Check:
        """Kill a server on SQLite so often."""
        with self._folders() as (data, records):
            system = Leasehold(data / "data")
            campaign = self._campaign(system, lambda _: [Kill(system)], records)
            campaign.quiet_s = _SHORT_QUIET_S
            return self._told("kills, SQLite", campaign, records, faults=count, silence="kill")

    def database(self, seconds: float) -> Check:
        """Do everything to two servers on PostgreSQL, and to that."""
        with (
            self._folders() as (data, records),
            postgres.shared_database(data / "data") as (system, relays, cluster),
        ):

            def faults(_: System) -> list[Fault]:
                return postgres.faults_of_database(system, relays, cluster)

            campaign = self._campaign(system, faults, records)
            return self._told("all faults, PostgreSQL", campaign, records, seconds=seconds)

    def failovers(self, count: int) -> Check:
        """Kill a primary so often, and promote its synchronous standby."""
        with (
            self._folders() as (data, records),
            postgres.pair_of_databases(data / "data") as (system, pair),
        ):
            campaign = self._campaign(system, lambda _: [postgres.Failover(pair)], records)
            return self._told("failovers", campaign, records, faults=count, silence="failover")

    def _campaign(
        self,
        system: System,
        faults: Callable[[System], Sequence[Fault]],
        records: Path,
        clients: int = 4,
    ) -> Campaign:
        return Campaign(
            system=system, faults_of=faults, folder=records, seed=self._seed, clients=clients
        )

    @contextmanager
    def _folders(self) -> Iterator[tuple[Path, Path]]:
        with (
            tempfile.TemporaryDirectory(prefix="lhproof") as data,
            tempfile.TemporaryDirectory(prefix="lhproof", dir=_MEMORY) as records,
        ):
            yield Path(data), Path(records)

    def _told(
        self, name: str, campaign: Campaign, records: Path, *, silence: str = "", **run: Any
    ) -> Check:
        """Run a campaign, and keep its records if it finds something or does not end well."""
        since_s = time.monotonic()
        try:
            verdict = campaign.run(**run)
        except BaseException:
            self._keep(name, records)
            raise
        said = f"{_done(campaign.done)}; {_row(verdict)}"
        figures: dict[str, Any] = {
            **verdict.figures,
            **verdict.row(),
            "done": dict(campaign.done),
            "seconds": round(time.monotonic() - since_s, 1),
            "seed": self._seed,
        }
        if silence:
            silences_s = campaign.silences_s(silence)
            figures["silence_s"] = {
                "median": round(statistics.median(silences_s), 2),
                "longest": round(max(silences_s), 2),
            }
            said += f"; silent for {figures['silence_s']['median']} s in the middle, "
            said += f"{figures['silence_s']['longest']} s at most"
        if verdict.violations:
            kept = self._keep(name, records)
            (kept / "verdict.txt").write_text(verdict.told())
            said += f"; seed {self._seed}, records in {kept}\n{verdict.told()}"
        passed = not verdict.violations and verdict.figures["completes"] > 0
        return Check(name=name, passed=passed, said=said, figures=figures)

    def _keep(self, name: str, records: Path) -> Path:
        kept = self._folder / f"{name.replace(', ', '-').replace(' ', '-')}-{self._seed}"
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


def _soak(seed: int, hours: float) -> Check:
    verdict, done = soak(seed, hours)
    said = f"{hours:g} h; {_done(done)}; {_row(verdict)}"
    if verdict.violations:
        said += f"; seed {seed}\n{verdict.told()}"
    figures = {**verdict.figures, **verdict.row(), "hours": hours, "seed": seed}
    return Check(name="soak", passed=not verdict.violations, said=said, figures=figures)


def _done(done: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(done.items()))


def _row(verdict: Verdict) -> str:
    counts = {name: count for name, count in verdict.row().items() if count}
    calls = f"{verdict.figures['calls']} calls, {verdict.figures['unknown']} unknown"
    found = ", ".join(f"{name} {count}" for name, count in counts.items())
    return f"{calls}; {found or 'zero in every column'}"
