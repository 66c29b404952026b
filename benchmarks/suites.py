"""What there is to measure: which servers, which work, how often and how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.load.job import Auth, Workload

MILLION_10: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectPlan:
    """One server to start."""

    kind: str
    """``leasehold``, ``azurite``, ``beanstalkd``, ``pgmq``, ``skip-locked``, ``noop`` or
    ``noop-own``."""
    waiting: int = 0
    """Messages in the queue beforehand."""

    @property
    def name(self) -> str:
        """Short name, such as ``leasehold-10M``."""
        return f"{self.kind}-{_short(self.waiting)}" if self.waiting else self.kind

    @property
    def title(self) -> str:
        """Name for people."""
        title = {
            "noop": "no-op HTTP",
            "noop-own": "no-op HTTP, Leasehold's connections",
            "leasehold": "Leasehold",
            "azurite": "Azurite",
            "skip-locked": "PostgreSQL, SKIP LOCKED",
        }
        waiting = f", {self.waiting:,} waiting" if self.waiting else ""
        return title.get(self.kind, self.kind) + waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of work, done by each of some servers in turn."""

    workload: Workload
    connections: int
    subjects: tuple[SubjectPlan, ...]
    auth: Auth = "sas"
    batch: int = 1

    @property
    def name(self) -> str:
        """Short name, such as ``cycle/32/sas``."""
        batch = f"/by{self.batch}" if self.batch > 1 else ""
        return f"{self.workload}/{self.connections}/{self.auth}{batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Everything one run measures."""

    name: str
    about: str
    rounds: int
    duration_s: float
    """Of each cycle; the puts of phases take a third of it."""
    warmup_s: float
    cases: tuple[Case, ...]
    restarted: tuple[SubjectPlan, ...] = ()
    """Killed and started again at the end."""
    long_poll: bool = False
    """Whether ``benchmarks.long_poll`` runs at the end."""
    restarts: int = 0
    """How often each, with warm and with cold files."""
    installs: bool = True
    """Whether a missing peer may be installed."""

    def subjects(self) -> Iterator[SubjectPlan]:
        """Yield each server once, in the order of appearance."""
        seen = set()
        for group in (*(case.subjects for case in self.cases), self.restarted):
            for subject in group:
                if subject not in seen:
                    seen.add(subject)
                    yield subject


def _short(count: int) -> str:
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if count % unit == 0:
            return f"{count // unit}{letter}"
    return str(count)


_EMPTY = SubjectPlan(kind="leasehold")
_1K = SubjectPlan(kind="leasehold", waiting=1_000)
_100K = SubjectPlan(kind="leasehold", waiting=100_000)
_10M = SubjectPlan(kind="leasehold", waiting=MILLION_10)
_AZURITE = SubjectPlan(kind="azurite")
_AZURITE_5K = SubjectPlan(kind="azurite", waiting=5_000)
_BEANSTALKD = SubjectPlan(kind="beanstalkd")
_NOOP = SubjectPlan(kind="noop")
_NOOP_OWN = SubjectPlan(kind="noop-own")

_SMOKE = Suite(
    name="smoke",
    about="shows that the harness works; its figures mean nothing (15 s)",
    rounds=1,
    duration_s=0.3,
    warmup_s=0.0,
    cases=(
        Case(
            workload="cycle",
            connections=8,
            subjects=(_EMPTY, _1K, _AZURITE, _BEANSTALKD, _NOOP_OWN, _NOOP),
        ),
        Case(workload="cycle", connections=8, subjects=(_EMPTY, _NOOP), auth="sharedkey"),
        Case(workload="phases", connections=1, subjects=(_EMPTY, _BEANSTALKD, _NOOP)),
        Case(workload="phases", connections=8, subjects=(_EMPTY, _1K), batch=32),
    ),
    restarted=(_1K,),
    restarts=1,
    installs=False,
)

_QUICK = Suite(
    name="quick",
    about="the bars that need no large backlog (3 min)",
    rounds=3,
    duration_s=2.0,
    warmup_s=0.3,
    cases=(
        Case(
            workload="cycle",
            connections=32,
            subjects=(_EMPTY, _BEANSTALKD, _NOOP_OWN, _NOOP, _100K, _AZURITE, _AZURITE_5K),
        ),
        Case(workload="cycle", connections=1, subjects=(_EMPTY, _BEANSTALKD, _NOOP_OWN, _NOOP)),
        Case(workload="cycle", connections=256, subjects=(_EMPTY, _BEANSTALKD, _NOOP_OWN, _NOOP)),
        Case(workload="cycle", connections=32, subjects=(_EMPTY, _NOOP), auth="sharedkey"),
        Case(workload="cycle", connections=256, subjects=(_EMPTY, _NOOP), auth="sharedkey"),
        Case(workload="phases", connections=32, subjects=(_EMPTY, _100K, _BEANSTALKD, _NOOP)),
        Case(workload="phases", connections=32, subjects=(_EMPTY, _100K), batch=32),
    ),
    restarted=(_EMPTY, _100K),
    restarts=3,
)

_BACKLOGS = (_EMPTY, _100K, _10M)

_BACKLOG = Suite(
    name="backlog",
    about="what waiting messages cost: 0, 100 thousand and 10 million (10 min, first time 15)",
    rounds=5,
    duration_s=5.0,
    warmup_s=1.0,
    cases=(
        Case(workload="cycle", connections=32, subjects=(*_BACKLOGS, _NOOP_OWN, _NOOP)),
        Case(workload="phases", connections=32, subjects=_BACKLOGS),
        Case(workload="phases", connections=32, subjects=_BACKLOGS, batch=32),
        Case(workload="cycle", connections=1, subjects=_BACKLOGS),
    ),
    restarted=_BACKLOGS,
    restarts=5,
)

_PEERS = (_BEANSTALKD, _NOOP_OWN, _NOOP, _AZURITE, _AZURITE_5K)

_FULL = Suite(
    name="full",
    about="everything (2 h)",
    rounds=5,
    duration_s=10.0,
    warmup_s=1.0,
    cases=(
        *(
            Case(workload="cycle", connections=connections, subjects=(*_BACKLOGS, *_PEERS))
            for connections in (1, 32, 256)
        ),
        *(
            Case(
                workload="cycle",
                connections=connections,
                subjects=(_EMPTY, _NOOP, _AZURITE),
                auth="sharedkey",
            )
            for connections in (1, 32, 256)
        ),
        *(
            Case(workload="phases", connections=connections, subjects=(*_BACKLOGS, *_PEERS))
            for connections in (1, 32, 256)
        ),
        Case(
            workload="phases",
            connections=32,
            subjects=(_EMPTY, _NOOP, _AZURITE),
            auth="sharedkey",
        ),
        *(
            Case(
                workload="phases",
                connections=connections,
                subjects=(*_BACKLOGS, _AZURITE, _AZURITE_5K),
                batch=32,
            )
            for connections in (1, 32)
        ),
    ),
    restarted=_BACKLOGS,
    restarts=5,
)

_PGMQ = SubjectPlan(kind="pgmq")
_SKIP_LOCKED = SubjectPlan(kind="skip-locked")

_NATIVE_SMOKE = Suite(
    name="native-smoke",
    about="shows that the harness works with the native API; its figures mean nothing (15 s)",
    rounds=1,
    duration_s=0.3,
    warmup_s=0.0,
    cases=(
        Case(
            workload="batches",
            connections=2,
            subjects=(_EMPTY, _SKIP_LOCKED),
            auth="bearer",
            batch=100,
        ),
        Case(workload="inspect", connections=1, subjects=(_1K,), auth="bearer", batch=100),
        Case(workload="counts", connections=1, subjects=(_1K,), auth="bearer"),
    ),
    installs=False,
)

_NATIVE = Suite(
    name="native",
    about="batches of the native API beside PostgreSQL, listing, counts, long polls (10 min)",
    rounds=5,
    duration_s=3.0,
    warmup_s=0.5,
    cases=(
        *(
            Case(
                workload="batches",
                connections=connections,
                subjects=(_EMPTY, _PGMQ, _SKIP_LOCKED),
                auth="bearer",
                batch=100,
            )
            for connections in (1, 2, 4, 8)
        ),
        Case(workload="inspect", connections=1, subjects=(_100K,), auth="bearer", batch=1_000),
        Case(workload="inspect", connections=1, subjects=(_100K,), auth="bearer", batch=100),
        Case(workload="counts", connections=1, subjects=(_100K, _10M), auth="bearer"),
    ),
    long_poll=True,
)

SUITES: Final = {
    suite.name: suite for suite in (_SMOKE, _QUICK, _BACKLOG, _FULL, _NATIVE_SMOKE, _NATIVE)
}
