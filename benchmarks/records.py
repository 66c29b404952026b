"""What a run leaves behind; these classes are the format of the JSON files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

FORMAT: Final = 1
COMPUTED: Final = frozenset({"summary", "bars", "warnings"})
"""What a file holds beside the fields of :class:`Run`, for readers without this package."""
LIFECYCLE: Final = "lifecycle"
"""The phase in which one operation is a message sent, received and completed."""
PAGE: Final = "page"
"""The phase in which one operation is a message shown, and one request a page."""
COUNTS: Final = "counts"
"""The phase in which each operation is an answer with a queue's counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long one verb took, microseconds, as its client saw it."""

    count: int
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float

    @classmethod
    def of(cls, samples_ns: Sequence[int]) -> Latency:
        """Return the percentiles (nearest rank) of *samples_ns*, which must not be empty."""
        ordered = sorted(samples_ns)
        count = len(ordered)

        def rank(percent: int) -> float:
            return round(ordered[-(-count * percent // 100) - 1] / 1000, 1)

        return cls(
            count=count,
            p50_us=rank(50),
            p90_us=rank(90),
            p99_us=rank(99),
            max_us=round(ordered[-1] / 1000, 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One kind of work, measured."""

    name: str
    """``cycle``, ``put``, ``get``, ``delete``, ``lifecycle``, ``page`` or ``counts``."""
    operations: int
    """Messages put, got and deleted; in a cycle each message counts three times, in a lifecycle
    once."""
    requests: int
    """Good answers: status 2xx, or beanstalkd's word for it. There are no others."""
    seconds: float
    latencies: Mapping[str, Latency]
    """By verb, and ``cycle`` or ``lifecycle`` for a whole one, of a batch."""
    server_cpu_s: float
    generator_cpu_s: float
    generator_kernel_s: float
    """The part of it spent in the kernel, which any generator must spend."""
    empty_gets: int = 0
    generator: str = "Python"
    """The language of the load generator: the C of ``cycle.c``, or Python."""

    @property
    def per_s(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds

    @property
    def server_us(self) -> float:
        """CPU time of the server per operation, microseconds."""
        return self.server_cpu_s / self.operations * 1e6 if self.operations else 0.0

    @property
    def generator_us(self) -> float:
        """CPU time of the generator per request, microseconds."""
        return self.generator_cpu_s / self.requests * 1e6 if self.requests else 0.0

    @property
    def generator_kernel_us(self) -> float:
        """CPU time of the generator in the kernel per request, microseconds."""
        return self.generator_kernel_s / self.requests * 1e6 if self.requests else 0.0

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Phase:
        """Return what ``dataclasses.asdict`` was given."""
        latencies = {verb: Latency(**value) for verb, value in raw["latencies"].items()}
        return cls(**{**raw, "latencies": latencies})


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of a server's processes, bytes."""

    resident: int
    anonymous: int
    """The part of it that is not a file's pages."""
    peak: int
    """Highest resident size since the server's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one load generator reports."""

    phases: tuple[Phase, ...]
    waiting_before: int | None
    """Messages the server says it holds; None where it cannot say."""
    waiting_after: int | None
    memory: Memory | None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Measured:
        """Return what ``dataclasses.asdict`` was given."""
        return cls(
            phases=tuple(Phase.from_dict(phase) for phase in raw["phases"]),
            waiting_before=raw["waiting_before"],
            waiting_after=raw["waiting_after"],
            memory=Memory(**raw["memory"]) if raw["memory"] else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One subject in one round of one case."""

    case: str
    subject: str
    round: int
    measured: Measured
    disk_bytes: int
    """What the subject's folder takes on disk afterwards."""

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Sample:
        """Return what ``dataclasses.asdict`` was given."""
        return cls(**{**raw, "measured": Measured.from_dict(raw["measured"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A peer that did not answer as it should, and was left out of the rest of a case."""

    case: str
    subject: str
    round: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One start after a kill -9 under load."""

    subject: str
    round: int
    cold: bool
    """Whether the store's files were first dropped from the page cache."""
    ready_s: float
    """From the start of the process until it said that it was ready."""
    answer_s: float
    """From the start of the process until the first message was shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectInfo:
    """A server of the run, or why it is absent."""

    name: str
    title: str
    waiting: int
    """Messages that wait in its queue throughout, beside those of the measurement."""
    absent: str | None = None
    """Why it was not measured."""
    version: str = ""
    command: str = ""
    fill: Mapping[str, float] = field(default_factory=dict)
    """How its messages got there: messages, body_bytes, seconds, disk_bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseInfo:
    """One thing to measure."""

    name: str
    workload: str
    auth: str
    connections: int
    batch: int
    subjects: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Run:
    """One run of a suite."""

    suite: str
    started: str
    """UTC, ISO 8601."""
    machine: Mapping[str, Any]
    source: Mapping[str, Any]
    options: Mapping[str, Any]
    finished: str = ""
    aborted: str = ""
    """Why the run ended early; empty when it did not."""
    subjects: list[SubjectInfo] = field(default_factory=list)
    cases: list[CaseInfo] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    crosschecks: dict[str, float] = field(default_factory=dict)
    """Figures of other tools, requests per second."""
    long_poll: list[Mapping[str, Any]] = field(default_factory=list)
    """What ``benchmarks.long_poll`` printed, one object a line; the name is in ``measure``."""
    format: int = FORMAT

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Run:
        """Return what ``dataclasses.asdict`` was given.

        Raises:
            ValueError: The file is of another format.
        """
        if raw.get("format") != FORMAT:
            raise ValueError(f"not a benchmark result of format {FORMAT}")
        fields = {key: value for key, value in raw.items() if key not in COMPUTED}
        return cls(
            **{
                **fields,
                "subjects": [SubjectInfo(**item) for item in raw["subjects"]],
                "cases": [
                    CaseInfo(**{**item, "subjects": tuple(item["subjects"])})
                    for item in raw["cases"]
                ],
                "samples": [Sample.from_dict(item) for item in raw["samples"]],
                "failures": [Failure(**item) for item in raw["failures"]],
                "restarts": [Restart(**item) for item in raw["restarts"]],
            }
        )
