"""A pipeline, as people write it, and a run of it: a Spark job of long tasks, each a worker."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack

from leasehold.clock import SystemClock
from leasehold.spark.pipeline.backlog import (
    Backlog,
    Teller,
    expired_since,
    newest_event,
    server_time_ms,
    unreported,
)
from leasehold.spark.pipeline.batch_stage import BatchForm, BatchStage
from leasehold.spark.pipeline.channel import Collector, TaskResult
from leasehold.spark.pipeline.dataframe import DeclaredStage, Rules, transformed
from leasehold.spark.pipeline.display import display_for
from leasehold.spark.pipeline.jobs import Cluster, Jobs, first_line, needed
from leasehold.spark.pipeline.queries import StageQueries, StreamSettings, start_queries
from leasehold.spark.pipeline.report import Listeners, Progress, Report, Spool
from leasehold.spark.pipeline.settings import QueueStages, RunSettings, stages_in
from leasehold.spark.pipeline.task import FEW, Plan
from leasehold.worker.adapters import QueueError
from leasehold.worker.outcomes import Kind
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.stages import StageHooks, Stages
from leasehold.worker.stages.declared import Migration, Older, StageSettings
from leasehold.worker.stages.pipeline import SAVE_WITHIN_S
from leasehold.worker.timing import SystemTime
from leasehold.worker.worker import stopping_on_signals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_log: Final = logging.getLogger("leasehold.spark.pipeline")
_PATIENCE_S: Final = 20.0
"""Beyond the grace, before tasks that do not end are cancelled."""
_HURRY: Final = 2
_ROUND_S: Final = 0.25
"""From one look at the cluster to the next: so late at most an executor that goes is noticed."""
_IDLE_S: Final = 10.0
"""After so long without a message a task ends that the backlog does not need; only with dynamic
allocation."""


MOST_ROWS: Final = 10_000
_REMEMBERED: Final = 100
"""Reports of progress, as many as Spark keeps of a query."""


class PipelineFailed(RuntimeError):
    """A run could not go on; what it had in work is given back, or comes back by itself."""


class PipelineRun:
    """A run, from its start until it is over; made by :meth:`Pipeline.start`.

    Args:
        pipeline: What is run.
        spark: The session.
        settings: How.
    """

    def __init__(self, pipeline: Pipeline, spark: SparkSession, settings: RunSettings) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._settings = settings
        self._spec = settings.spec(pipeline.queue)
        self._time = SystemTime()
        self._clock = SystemClock()
        self._tag = f"leasehold-pipeline-{secrets.token_hex(8)}"
        self._spool = Spool()
        self._stack = ExitStack()
        self._here = pipeline.stages_in(self._spec.queue)
        is_whole = len(self._here.queues) == 1
        self._title = pipeline.name if is_whole else f"{pipeline.name}:{self._spec.queue}"
        self._backlog = Backlog(self._spec, self._here.before)
        self._collector: Collector | None = None
        self._plan: Plan
        self._cluster = Cluster(spark)
        self._profile = self._cluster.profile_for(self._here.resources)
        self._jobs = Jobs(
            spark,
            self._cluster,
            group=self._tag,
            title=f"pipeline {self._title}: {', '.join(self._here.names)}",
            profile=self._profile,
        )
        self._has_begun = False
        self._at_first = 0
        """Messages that were in the queue when it began."""
        self._recent: Progress | None = None
        self._idle_since: dict[str, float] = {}
        self._newest: int | None = None
        self._began_ms: int | None = None
        self._is_stopping = False
        self.was_hurried = False
        """Whether messages in work were not waited for when it was stopped."""
        self._failure: str | None = None
        self._over = threading.Event()
        self._ends = threading.Event()
        self._listeners = Listeners(settings.listeners, run_id=self._tag, name=pipeline.name)
        self._progress: deque[Progress] = deque(maxlen=_REMEMBERED)
        self._watcher = threading.Thread(target=self._watch, name="leasehold-progress", daemon=True)
        self._teller: Teller | None = None
        self._report: Report | None = None
        self._last: Progress

    def __repr__(self) -> str:
        state = "over" if self._over.is_set() else "running"
        return f"<PipelineRun {self._pipeline.name}, {state}>"

    # --- its life ----------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin.

        Raises:
            QueueError: The queue is not there, cannot be reached, or keeps no progress.
        """
        try:
            self._at_first = self._backlog.look().unsettled
            client = self._spec.open()
            try:
                self._pipeline.stages().check_queue(client)
            finally:
                client.close()
            self._newest = newest_event(self._spec)
            self._began_ms = server_time_ms(self._spec)
            self._prepare()
        except BaseException:
            self._close()
            self._spool.close()
            raise
        self._teller = Teller(self._spec, self._title, self._began_ms, self._looked)
        self._teller.start()
        self._listeners.started(self._spec.queue)
        self._watcher.start()
        threading.Thread(target=self._work, name="leasehold-pipeline", daemon=True).start()
        return self

    def run(self) -> Report:
        """Begin, show how it goes, and return what was done; see :meth:`Pipeline.run`."""
        display = display_for(self._settings.show, self._pipeline.name, self._pipeline.names)
        with stopping_on_signals(self._signalled):
            self.start()
            with display:
                while not self._over.wait(display.interval_s):
                    display.update(self.progress())
                report = self._report
                if report is not None:
                    display.end(self._last)
        return self.result()

    # --- as people know it from StreamingQuery -------------------------------------------------

    @property
    def id(self) -> str:
        """Of the run; also the job group of its Spark jobs."""
        return self._tag

    @property
    def name(self) -> str:
        """Of the pipeline."""
        return self._pipeline.name

    @property
    def isActive(self) -> bool:  # noqa: N802 - in Spark's spelling, here and below
        """Whether it has not come to its end."""
        return not self._over.is_set()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Wait until it is over.

        Args:
            timeout: Seconds at most; None: as long as it takes.

        Returns:
            With a timeout, whether it is over.

        Raises:
            PipelineFailed: It could not go on.
        """
        is_over = self._over.wait(timeout)
        if is_over and self._failure is not None:
            raise PipelineFailed(self._failure)
        return None if timeout is None else is_over

    @property
    def lastProgress(self) -> Progress | None:  # noqa: N802
        """The latest report of progress; None: there was none yet."""
        return self._progress[-1] if self._progress else None

    @property
    def recentProgress(self) -> list[Progress]:  # noqa: N802
        """The latest reports of progress, 100 at most, the oldest first."""
        return list(self._progress)

    def exception(self) -> PipelineFailed | None:
        """Return why it could not go on; None: there is no reason."""
        return None if self._failure is None else PipelineFailed(self._failure)

    def dataframe(self, *, each: str = "delivery") -> DataFrame:
        """Return what the tasks have told so far as a DataFrame; it does not change any more.

        Args:
            each: ``delivery``: a row for each delivery that has ended; ``message``: one for each
                message.
        """
        return Report(self._spool, {}).dataframe(self._spark, each=each)

    # --- its end -------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether it has come to its end."""
        return self._over.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over, *timeout_s* seconds at most; return whether it is."""
        return self._over.wait(timeout_s)

    def progress(self) -> Progress:
        """Return how it is doing."""
        if self._over.is_set():
            return self._last
        return self._looked()

    def results(self) -> DataFrame:
        """Return what has become of messages since it began: a batch read of the view results.

        It is of all queues of the pipeline.
        """
        place, queues = {"startingSeq": str(self._newest or 0)}, self._here.queues
        if len(queues) == 1:
            place["queueName"] = self._spec.queue
        if self._spec.connection:
            place["connectionString"] = self._spec.connection
        found = self._spark.read.format("leasehold").options(view="results", **place).load()
        return found if len(queues) == 1 else found.where(found["queue"].isin(*queues))

    def result(self) -> Report:
        """Wait until it is over, and return what was done.

        Raises:
            PipelineFailed: It could not go on.
        """
        self._over.wait()
        if self._failure is not None:
            raise PipelineFailed(self._failure)
        assert self._report is not None
        return self._report

    def stop(self, grace_s: float | None = None) -> None:
        """Have it stop, and return at once: tasks receive nothing more, and finish what they have.

        What is not done in time is told to stop, and given back with the progress it has saved.

        Args:
            grace_s: Seconds for messages in work; None: as the settings say.
        """
        grace_s = self._settings.grace_s if grace_s is None else grace_s
        self._is_stopping = True
        if self._collector is not None:
            self._collector.stop(grace_s)
        timer = threading.Timer(grace_s + _PATIENCE_S, self.cancel)
        timer.daemon = True
        timer.start()
        self._stack.callback(timer.cancel)

    def hurry(self) -> None:
        """Have it stop without waiting for messages in work."""
        self._is_stopping = self.was_hurried = True
        if self._collector is not None:
            self._collector.hurry()

    def cancel(self) -> None:
        """Have Spark end the tasks. Their messages come back when their sessions are lost."""
        self._is_stopping = True
        if not self._over.is_set():
            self._jobs.cancel()

    # --- inside ------------------------------------------------------------------------------

    def _prepare(self) -> None:
        settings, spark = self._settings, self._spark
        host = settings.host or spark.conf.get("spark.driver.host", "127.0.0.1")
        bind = settings.bind or spark.conf.get("spark.driver.bindAddress", host)
        assert host is not None
        assert bind is not None
        names = self._pipeline.names
        self._collector = collector = self._stack.enter_context(
            Collector(host, bind, stages=names, spool=self._spool, time=self._time)
        )
        collector.went = self._show
        if self._is_stopping:
            # A signal has come before there was anybody to tell.
            collector.stop(settings.grace_s)
        self._plan = Plan(
            name=self._pipeline.name,
            stage_names=names,
            make_stages=partial(self._pipeline.stages, results=settings.results),
            batch_rows=self._here.batch_rows,
            queue=self._spec,
            before=self._here.before,
            address=collector.address,
            drains=not settings.continuous,
            at_once=settings.at_once,
            lease=settings.leases(),
            lease_as_set=settings.lease_as_set,
            prefetch=settings.prefetch,
            retries=settings.retries,
            poison=settings.poison,
            grace_s=settings.grace_s,
            hand_over_s=settings.hand_over_s,
            tracing=settings.tracing,
        )

    @property
    def _listener(self) -> Collector:
        if self._collector is None:
            raise RuntimeError("the run has not begun")
        return self._collector

    def _looked(self) -> Progress:
        backlog = self._backlog.visible()
        self._recent = now = self._listener.progress(now_ms=self._clock.now_ms(), backlog=backlog)
        return now

    def _watch(self) -> None:
        """Look how it is doing from time to time, and have it known."""
        while not self._ends.wait(self._settings.progress_s):
            now = self._looked()
            self._progress.append(now)
            self._show()
            self._listeners.progress(now)

    def _show(self) -> None:
        listener = self._listener
        running = {job.number for job in self._jobs.running}
        on = {each.stage for each in listener.known() if each.job in running}
        self._cluster.show(listener.stages(), on)

    def _signalled(self, count: int) -> None:
        if count == 1:
            self.stop()
        elif count == _HURRY:
            self.hurry()
        else:
            self.cancel()

    def _work(self) -> None:
        """Have Spark do the work, as often as it takes; in a thread of its own."""
        try:
            self._follow()
        except BaseException as error:  # noqa: BLE001 - for whoever waits for the result
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            self._reconcile()
            self._last = self._looked()
            self._progress.append(self._last)
            expired = expired_since(self._spec, self._began_ms)
            totals = self._last.members() | {"expired": expired.number}
            self._report = Report(self._spool, totals, expired.listed)
            self._ends.set()
            self._watcher.join()
            self._listeners.terminated(self._last, self._failure)
            if self._teller is not None:
                state = "failed" if self._failure else "stopped" if self._is_stopping else "done"
                self._teller.end(state, self._failure, self._last)
            self._close()
            self._over.set()

    def _follow(self) -> None:
        """Keep as many tasks as there is room for, until all jobs are over."""
        jobs, failures = self._jobs, 0
        while True:
            for job in jobs.ended():
                if job.error is None:
                    self._take(job.results)
                elif not (self._is_stopping or jobs.is_cancelled):
                    failures += 1
                    self._failed(job.error, failures)
            if not self._is_stopping:
                self._fill()
            if not jobs.running:
                return
            self._release()
            if self._is_left_alone():
                jobs.cancel()
            jobs.wait(_ROUND_S)

    def _failed(self, error: Exception, failures: int) -> None:
        most = self._settings.restarts
        if failures > most:
            self._give_up(first_line(error))
        else:
            _log.warning(
                "the Spark job has failed, and is started again (%d of %d): %s",
                *(failures, most, first_line(error)),
            )

    def _give_up(self, why: str) -> None:
        """Have all tasks end, since it cannot go on."""
        self._failure = self._failure or why
        if not self._is_stopping:
            self.stop()

    def _fill(self) -> None:
        """Begin a job if there are fewer tasks than there is room for."""
        jobs, listener = self._jobs, self._listener
        there = sum(job.tasks - listener.over(job.number) for job in jobs.running)
        missing = self._wanted() - there
        if missing <= 0:
            return
        if self._has_begun and self._is_drained():
            return
        self._has_begun = True
        jobs.begin(self._plan, missing)

    def _wanted(self) -> int:
        """Return how many tasks there should be."""
        cluster = self._cluster
        if self._settings.tasks is not None:
            return self._settings.tasks
        if cluster.is_elastic:
            return self._needed()
        return (
            max(1, cluster.slots(self._profile) or 0) if cluster.is_there else cluster.parallelism()
        )

    def _needed(self) -> int:
        """Return how many tasks the backlog keeps busy; Spark takes executors for that many."""
        now = self._recent
        left = self._at_first if now is None else now.in_work + now.waiting + (now.backlog or 0)
        at_once = self._settings.at_once or max(FEW, 2 * self._here.batch_rows)
        needed = max(1, -(-left // at_once))
        most = self._cluster.most_tasks()
        return needed if most is None else min(needed, most)

    def _is_drained(self) -> bool:
        """Return whether a run that empties the queue has nothing left to do."""
        if self._settings.continuous:
            return False
        try:
            return self._backlog.is_drained()
        except QueueError:
            return False  # tasks find out what is wrong, and say so

    def _release(self) -> None:
        """Have tasks hand over whose executors go, and tasks end that have nothing to do."""
        listener, cluster = self._listener, self._cluster
        here = listener.connected()
        on = {each.link: cluster.executor_of(each.stage, each.spark_task) for each in here}
        leaving = cluster.leaving({each for each in on.values() if each is not None})
        for link, executor in on.items():
            if executor in leaving:
                _log.info("executor %s leaves, and hands over its work", executor)
                listener.leave(link)
        if cluster.is_elastic and self._settings.tasks is None:
            self._send_home(len(here) - self._needed())

    def _send_home(self, many: int) -> None:
        """End tasks that are idle for a while, so that Spark can let go of their executors."""
        now_s = self._time.monotonic_s()
        idle = {each.link for each in self._listener.idle()}
        self._idle_since = {link: self._idle_since.get(link, now_s) for link in idle}
        long = [link for link, since_s in self._idle_since.items() if now_s - since_s >= _IDLE_S]
        for link in long[: max(0, many)]:
            self._listener.leave(link)

    def _is_left_alone(self) -> bool:
        """Return whether tasks only wait for executors that went, and nothing is left for them."""
        if not self._listener.is_deserted or self._jobs.is_cancelled:
            return False
        if not (self._is_stopping or self._is_drained()):
            return False
        # Spark may still count tasks of an executor that it has not missed yet.
        return self._cluster.active_tasks(self._tag) == 0

    def _take(self, results: Iterable[TaskResult]) -> None:
        for left in results:
            self._listener.take(left)
            if left.failure is not None:
                self._give_up(left.failure)

    def _reconcile(self) -> None:
        """Add what dead tasks have completed and could not report any more."""
        dead = self._listener.vanished()
        if not dead or self._newest is None:
            return
        done = {row.message_id for _, row in self._spool.read() if row.outcome == Kind.DONE}
        for who, row in unreported(self._spec, self._newest, dead, done):
            self._listener.add(who, row)

    def _close(self) -> None:
        self._stack.close()
        self._backlog.close()


# --- declared -----------------------------------------------------------------------------------
#
# What people write: the stages of a pipeline, in their order.


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
        save_within_s: How long the end of a short stage may wait until it is saved, in seconds; see
            :class:`leasehold.worker.stages.Stages`.
        name: For people; None: that of the queue.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        queue: str | None = None,
        *,
        version: int = 1,
        renamed: Mapping[str, str] | None = None,
        older: Older = "restart",
        save_within_s: float = SAVE_WITHIN_S,
        name: str | None = None,
    ) -> None:
        self.queue = queue
        self.name = name or queue or "pipeline"
        self._version = version
        self._renamed = dict(renamed or {})
        self._older: Older = older
        self._save_within_s = save_within_s
        self._declared: list[DeclaredStage] = []
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
        cores: int | None = None,
        gpus: float | None = None,
        memory: str | None = None,
        isolate: Literal["process"] | None = None,
        **settings: Unpack[StageSettings],
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
            cores: Of the processor that a task should have for it, from 1; None: as the session
                says. A run takes the most of what the stages of its queue ask for.
            gpus: That a task should have for it, above 0; parts of one can be shared.
            memory: Of the executor, such as ``8g``.
            isolate: As for :meth:`leasehold.worker.stages.Stages.stage`; not with *batch*.
            **settings: Likewise: *when*, *retries*, *retry_delay_s*, *exhausted*, *timeout_s*,
                *must_save*, *weight*, *queue*.

        Raises:
            TypeError: There is no such setting.
            ValueError: A setting is out of its range, or the name is taken.
        """
        if batch not in {None, "arrow", "pandas"}:
            raise ValueError(f"stage {name!r}: batch is {batch!r}; it must be 'arrow' or 'pandas'")
        if not 1 <= rows <= MOST_ROWS:
            raise ValueError(f"stage {name!r}: rows is {rows}; it must be 1 to {MOST_ROWS:,}")
        if batch is not None and isolate is not None:
            raise ValueError(f"stage {name!r}: one that works on batches cannot be isolated")
        if not settings.get("queue") and self._declared:
            settings["queue"] = self._declared[-1].settings.get("queue")
        elif settings.get("queue") and self.queue is None:
            raise ValueError(f"stage {name!r}: it has a queue, so the pipeline must name its own")
        made = DeclaredStage(
            name=name,
            run=run,
            batch=batch,
            rows=rows,
            resources=needed(name, cores, gpus, memory),
            isolate=isolate,
            settings=settings,
        )
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

    def stages_in(self, queue: str) -> QueueStages:
        """Return the stages that are done in a queue; one that no stage names is the first."""
        own = queue if self.queue is None else RunSettings().spec(self.queue).queue
        return stages_in(self._declared, own, queue)

    def stages(self, hooks: Iterable[StageHooks] = (), *, results: bool = False) -> Stages:
        """Return the handler for a worker; each process needs its own.

        Args:
            hooks: Hear of what happens.
            results: Have the event log keep what came of each message.

        Raises:
            ValueError: There is no stage, or a name or a version leads nowhere.
        """
        made = self._made(self._declared, hooks, results=results)
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
        return PipelineRun(self, spark, RunSettings(**settings)).start()

    def run(self, spark: SparkSession, **settings: Any) -> Report:
        """Work the queue off on the executors of *spark*, and return what was done.

        It shows how it is going unless ``show=None``. SIGINT and SIGTERM stop it gracefully. The
        rest is as for :meth:`start`.

        Raises:
            PipelineFailed: It could not go on.
        """
        return PipelineRun(self, spark, RunSettings(**settings)).run()

    def transform(
        self,
        messages: DataFrame,
        *,
        retries: RetryRule | None = None,
        poison: PoisonRule | None = None,
    ) -> DataFrame:
        """Return messages with what the stages make of them, each stage a node of the plan.

        For ``df.transform(pipeline.transform)``. Nothing is settled; :meth:`stream` does that.

        Args:
            messages: With the columns ``message_id`` and ``body`` at least, of a stream or not.
            retries: How long a message that fails is to wait; None: as in ``RetryRule()``.
            poison: When it is to be set aside; None: as in ``PoisonRule()``.

        Raises:
            ValueError: A column is missing, or a stage has a setting without meaning here.
        """
        rules = Rules(retries=retries or RetryRule(), poison=poison or PoisonRule())
        return transformed(messages, self._table_stages(), rules).drop("claimed_id")

    def stream(self, spark: SparkSession, **settings: Any) -> StreamingQuery | StageQueries:
        """Begin to work the queue off as a streaming query, and return that.

        For work of milliseconds: the stages are transformations of one claim for each micro-batch.

        Args:
            spark: The session.
            **settings: Those of :class:`leasehold.spark.pipeline.StreamSettings`.

        Raises:
            ValueError: A setting is wrong, or a stage has one without meaning here.
        """
        made = StreamSettings(**settings)
        return start_queries(self.name, self.queue, self._table_stages(made), spark, made)

    def _table_stages(self, settings: StreamSettings | None = None) -> list[DeclaredStage]:
        for stage in self._declared:
            stage.check(is_saved=settings is not None and settings.between == "queues")
        return self._declared

    def _made(
        self,
        declared: Iterable[DeclaredStage],
        hooks: Iterable[StageHooks],
        *,
        results: bool = False,
    ) -> Stages:
        made = Stages(
            version=self._version,
            renamed=self._renamed,
            older=self._older,
            save_within_s=self._save_within_s,
            results=results,
            hooks=tuple(hooks),
        )
        for each in declared:
            run = each.run
            if each.batch is not None:
                run = BatchStage(each.run, each.batch, each.rows)
            made.stage(each.name, isolate=each.isolate, **each.settings)(run)
        return made
