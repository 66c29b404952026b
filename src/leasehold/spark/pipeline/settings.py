"""How a pipeline is run: what people say once for a run, checked when they say it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final, NamedTuple

from msgspec import UNSET, UnsetType

from leasehold.spark.pipeline.dataframe import DeclaredStage
from leasehold.spark.pipeline.display import Show
from leasehold.spark.pipeline.jobs import Resources
from leasehold.spark.pipeline.report import PipelineListener
from leasehold.worker.adapters.specs import CONNECTION_VARIABLE, QueueSpec
from leasehold.worker.leases import LeaseSettings
from leasehold.worker.options import MAX_CONCURRENCY
from leasehold.worker.retry_policy import PoisonRule, RetryRule

LEAST_PROGRESS_S: Final = 0.1
_DEVELOPMENT: Final = "UseDevelopmentStorage=true"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How a pipeline is run. Its representation shows no secret."""

    queue: str | QueueSpec | None = None
    """Name of the queue, or an address, or a spec; None: that of the pipeline."""
    connection: str | UnsetType = field(default=UNSET, repr=False)
    """For a name: a connection string as the Azure SDKs take it. Without it: that of the driver's
    variable AZURE_STORAGE_CONNECTION_STRING, or the development server on this machine."""
    form: str | None = None
    """For a name: how progress is written into bodies, as the option of addresses says it:
    "1:scan,2:encode,3:(completed)" for two digits of state. None: it is kept beside them."""
    continuous: bool = False
    """Go on until the run is stopped. Otherwise it ends when nothing is visible, leased, or given
    back to be tried again, by whomever."""
    tasks: int | None = None
    """How many tasks of Spark, 1 or more. None: as many as the cluster has room for; executors that
    come later get tasks, and with dynamic allocation there are as many as the backlog needs."""
    at_once: int | None = None
    """Messages that each task works on at once, 1 to 10,000. None: 8, and 256 while messages take
    next to no time; twice the largest batch if a stage works on batches."""
    lease: LeaseSettings | int = 30
    """Whole seconds, or all settings of a worker's leases. They are renewed while work goes on."""
    lease_as_set: bool = False
    """Whether leases are as long as the producer of a message asked for, or as is set for its type
    or its queue; *lease* says the rest, which grows or shrinks with them. Only queues of Leasehold
    tell it."""
    prefetch: int | None = None
    """Messages that may wait in a task at most; None: what bridges the round trips."""
    retries: RetryRule = field(default_factory=RetryRule)
    """How long a message waits after it has failed."""
    poison: PoisonRule = field(default_factory=PoisonRule)
    """When it is set aside."""
    grace_s: float = 30.0
    """How long messages in work may go on when the run is stopped, in seconds, 0 or more."""
    hand_over_s: float = 60.0
    """How long an executor that is decommissioned or preempted may go on with a message until its
    next stage, ``check`` or ``checkpoint``, in seconds, 0 or more. What has not come to one by then
    is given back as it was saved last."""
    restarts: int = 10
    """How often the Spark job is begun anew when it has failed, 0 or more."""
    show: Show = "auto"
    """What :meth:`Pipeline.run` shows: "bars" (for terminals), "lines", "json" (one object a line,
    on standard output); "auto": bars on a terminal, otherwise lines; None: nothing."""
    results: bool = True
    """Have the event log keep what came of each message: the last state, and how long which stage
    took; read it with ``option("view", "results")``. Only queues of Leasehold do."""
    listeners: Sequence[PipelineListener] = ()
    """Are told how the run goes."""
    progress_s: float = 2.0
    """Seconds between two reports of progress to them, to ``recentProgress`` and to the pages of
    Spark, from 0.1."""
    tracing: bool = False
    """Have executors send spans of OpenTelemetry by OTLP. Needs the extra ``otel`` there, and
    OpenTelemetry's own variables."""
    host: str | None = None
    """At which executors reach this process; None: ``spark.driver.host``."""
    bind: str | None = None
    """At which it listens for them; None: ``spark.driver.bindAddress``, or the host."""

    def __post_init__(self) -> None:
        checks = (
            (self.tasks is not None and self.tasks < 1, f"tasks is {self.tasks}; from 1"),
            (
                self.at_once is not None and not 1 <= self.at_once <= MAX_CONCURRENCY,
                f"at_once is {self.at_once}; 1 to {MAX_CONCURRENCY:,}",
            ),
            (not self.grace_s >= 0, f"grace_s is {self.grace_s}; from 0"),
            (not self.hand_over_s >= 0, f"hand_over_s is {self.hand_over_s}; from 0"),
            (not self.progress_s >= LEAST_PROGRESS_S, f"progress_s is {self.progress_s}; from 0.1"),
            (self.restarts < 0, f"restarts is {self.restarts}; from 0"),
            (
                self.show not in {"auto", "bars", "lines", "json", None},
                f"show is {self.show!r}; auto, bars, lines, json or None",
            ),
        )
        wrong = [text for is_wrong, text in checks if is_wrong]
        if self.connection is None:
            wrong.append("connection is None; give a str, or leave it out for the environment's")
        if wrong:
            raise ValueError("; ".join(wrong))

    def spec(self, own: str | None) -> QueueSpec:
        """Return which queue it is; *own* is what the pipeline says.

        Raises:
            ValueError: There is none, or it is malformed.
        """
        queue = self.queue or own
        if queue is None:
            raise ValueError("which queue? Say Pipeline('videos'), or queue='videos' for the run")
        if isinstance(queue, QueueSpec):
            return queue
        if "://" in queue:
            return QueueSpec.parse(queue)
        # The executors need not have the driver's environment.
        connection = self.connection
        if connection is UNSET:
            connection = os.environ.get(CONNECTION_VARIABLE) or _DEVELOPMENT
        options = {} if self.form is None else {"form": self.form}
        return QueueSpec("leasehold", queue, connection, options)

    def leases(self) -> LeaseSettings:
        """Return the settings of leases."""
        return self.lease if isinstance(self.lease, LeaseSettings) else LeaseSettings.of(self.lease)


# --- stages --------------------------------------------------------------------------------------


class QueueStages(NamedTuple):
    """The stages whose messages wait in one queue."""

    names: tuple[str, ...]
    batch_rows: int
    """Messages that the largest batch of a stage has; 0: no stage works on batches."""
    resources: Resources
    """What is enough for each of them."""
    before: tuple[str, ...]
    """Other queues from which messages go on in this one."""
    queues: tuple[str, ...]
    """All those of the pipeline."""


def stages_in(declared: Sequence[DeclaredStage], own: str, queue: str) -> QueueStages:
    """Return the stages whose messages wait in *queue*.

    Args:
        declared: All of them.
        own: Queue in which messages begin.
        queue: One that no stage names takes the place of *own*.
    """
    here: list[DeclaredStage] = []
    queues: dict[str, None] = {}
    before: tuple[str, ...] = ()
    names = {each.settings.get("queue") for each in declared}
    for each in declared:
        name = each.settings.get("queue") or (own if queue in names else queue)
        queues[name] = None
        if name == queue:
            here.append(each)
            before = tuple(other for other in queues if other != queue)
    return QueueStages(
        names=tuple(each.name for each in here),
        batch_rows=max((each.rows for each in here if each.batch), default=0),
        resources=reduce(Resources.joined, (each.resources for each in here), Resources()),
        before=before,
        queues=tuple(queues),
    )
