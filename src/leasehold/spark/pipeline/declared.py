"""What people write: the stages of a pipeline, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from leasehold.worker.stages import StageHooks, Stages
from leasehold.worker.stages.declared import Migration, Older, StageTimeout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from leasehold.spark.pipeline.batch_stage import BatchForm
    from leasehold.spark.pipeline.report import Report
    from leasehold.spark.pipeline.running import PipelineRun

MOST_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """One stage."""

    name: str
    run: Callable[..., Any]
    batch: BatchForm | None
    rows: int
    settings: Mapping[str, Any] = field(default_factory=dict)


class Pipeline:
    """Stages for the messages of a queue, to be run on Spark executors.

    ::

        pipeline = (
            Pipeline("videos")
            .stage("scan", scan, timeout_s=60, retries=2)
            .stage("encode", encode, weight=8)
            .stage("index", index, batch="pandas")
        )
        report = pipeline.run(spark)

    A stage is a function of a message and the state, as those of
    :class:`leasehold.worker.stages.Stages`; what it returns is saved with the message before the
    next one begins. With *batch* it is a function of a table. The functions travel to the executors
    as Spark's own do: what is in a module must be importable there.

    Args:
        queue: Name of the queue, or an address that
            :class:`~leasehold.worker.adapters.specs.QueueSpec` reads; it can be given to the run
            instead.
        version: Of the pipeline; saved with the stage from 2 on.
        renamed: New names of stages by those under which they may be saved.
        older: What becomes of progress of an older version that no :meth:`migration` brings up to
            this one: "restart", "keep" or "poison".
        name: For people; None: that of the queue.
    """

    def __init__(
        self,
        queue: str | None = None,
        *,
        version: int = 1,
        renamed: Mapping[str, str] | None = None,
        older: Older = "restart",
        name: str | None = None,
    ) -> None:
        self.queue = queue
        self.name = name or queue or "pipeline"
        self._version = version
        self._renamed = dict(renamed or {})
        self._older: Older = older
        self._declared: list[_Declared] = []
        self._migrations: dict[int, Migration] = {}

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}: {', '.join(each.name for each in self._declared)}>"

    def stage(  # noqa: PLR0913 - keyword-only, and each is a setting of its own
        self,
        name: str,
        run: Callable[..., Any],
        *,
        batch: BatchForm | None = None,
        rows: int = 256,
        when: Callable[[Any, Any], bool] | None = None,
        retries: int = 0,
        retry_delay_s: float = 0,
        exhausted: Literal["fail", "poison"] = "fail",
        timeout_s: StageTimeout = None,
        must_save: bool = False,
        weight: float = 1,
    ) -> Self:
        """Add a stage, and return the pipeline.

        Args:
            name: Under which it is saved: letters, digits, ``_``, ``.``, ``-``.
            run: The function, of a message and a state, ordinary or ``async``; with *batch* of a
                table.
            batch: ``arrow`` or ``pandas``: the function gets many messages at once; see
                :mod:`leasehold.spark.pipeline.batch_stage` for the columns.
            rows: Messages of such a call at most, 1 to 10,000. A task has no more of them at once
                than its ``at_once``.
            when: Of the message and the state: whether to do the stage.
            retries: How often it is tried again at once.
            retry_delay_s: Seconds before each of these.
            exhausted: After the last of them: "fail" has the whole message tried again, "poison"
                sets it aside.
            timeout_s: Seconds for one attempt; see ``Stages.stage``.
            must_save: Do not go on when it cannot be saved that the stage is done.
            weight: How much of the whole work it is, for people.

        Raises:
            ValueError: A setting is out of its range, or the name is taken.
        """
        if batch not in {None, "arrow", "pandas"}:
            raise ValueError(f"stage {name!r}: batch is {batch!r}; it must be 'arrow' or 'pandas'")
        if not 1 <= rows <= MOST_ROWS:
            raise ValueError(f"stage {name!r}: rows is {rows}; it must be 1 to {MOST_ROWS:,}")
        settings = {
            "when": when,
            "retries": retries,
            "retry_delay_s": retry_delay_s,
            "exhausted": exhausted,
            "timeout_s": timeout_s,
            "must_save": must_save,
            "weight": weight,
        }
        made = _Declared(name=name, run=run, batch=batch, rows=rows, settings=settings)
        # Declared once here, so that what is wrong is said at once and not by an executor.
        self._made([*self._declared, made], ())
        self._declared.append(made)
        return self

    def migration(self, from_version: int, migrate: Migration) -> Self:
        """Add a function that brings progress to the version after *from_version*.

        It takes the saved stage and state, and returns those of the next version.
        """
        if from_version in self._migrations:
            raise ValueError(f"there is a migration from version {from_version} already")
        self._migrations[from_version] = migrate
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stages, in order."""
        return tuple(each.name for each in self._declared)

    @property
    def batch_rows(self) -> int:
        """Messages that the largest batch of a stage has; 0: no stage works on batches."""
        return max((each.rows for each in self._declared if each.batch), default=0)

    def stages(self, hooks: Iterable[StageHooks] = ()) -> Stages:
        """Return the handler for a worker; each process needs its own.

        Raises:
            ValueError: There is no stage, or a name or a version leads nowhere.
        """
        made = self._made(self._declared, hooks)
        for version, migrate in self._migrations.items():
            made.migration(version)(migrate)
        _ = made.layout
        return made

    def describe(self, form: Literal["text", "mermaid"] = "text") -> str:
        """Return the sequence for people, or as a flowchart in the language of Mermaid."""
        return self.stages().describe(form)

    def start(self, spark: SparkSession, **settings: Any) -> PipelineRun:
        """Begin to work the queue off on the executors of *spark*, and return the run.

        Args:
            spark: The session.
            **settings: Those of :class:`leasehold.spark.pipeline.RunSettings`.

        Raises:
            ValueError: A setting is wrong.
            QueueError: The queue is not there, or cannot be reached.
        """
        from leasehold.spark.pipeline.running import PipelineRun, RunSettings  # noqa: PLC0415

        return PipelineRun(self, spark, RunSettings(**settings)).start()

    def run(self, spark: SparkSession, **settings: Any) -> Report:
        """Work the queue off on the executors of *spark*, and return what was done.

        It shows how it is going unless ``show=None``. SIGINT and SIGTERM stop it gracefully. The
        rest is as for :meth:`start`.

        Raises:
            PipelineFailed: It could not go on.
        """
        from leasehold.spark.pipeline.running import PipelineRun, RunSettings  # noqa: PLC0415

        return PipelineRun(self, spark, RunSettings(**settings)).run()

    def _made(self, declared: Iterable[_Declared], hooks: Iterable[StageHooks]) -> Stages:
        made = Stages(
            version=self._version, renamed=self._renamed, older=self._older, hooks=tuple(hooks)
        )
        for each in declared:
            run = each.run
            if each.batch is not None:
                from leasehold.spark.pipeline.batch_stage import BatchStage  # noqa: PLC0415 - Arrow

                run = BatchStage(each.run, each.batch, each.rows)
            made.stage(each.name, **each.settings)(run)
        return made
