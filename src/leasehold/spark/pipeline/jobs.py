"""The Spark jobs of a run, and what the driver's Java knows of the cluster that they run on.

A run begins with one job of as many tasks as the cluster can run at once. Executors that come later
get tasks in further jobs; those that go are not waited for.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from leasehold.domain.wording import count_of
from leasehold.spark.pipeline.channel import TaskResult
from leasehold.spark.pipeline.report import StageFigures
from leasehold.spark.pipeline.task import RESULT, Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_log: Final = logging.getLogger("leasehold.spark.pipeline")
_POOL: Final = "spark.scheduler.pool"
_MOST_TASKS: Final = 10_000
"""Of one stage of Spark that are looked through for the executor of a task."""
_ENDLESS: Final = 2**31 - 1
"""What Spark takes for no limit."""


class Resources(NamedTuple):
    """What a task needs, for Spark's resource profiles; None: as the session says."""

    cores: int | None = None
    gpus: float | None = None
    memory: str | None = None
    """Of the executor, as Spark writes it: ``4g``."""

    def joined(self, other: Resources) -> Resources:
        """Return what is enough for both."""
        pairs = ((self.cores, other.cores), (self.gpus, other.gpus))
        cores, gpus = (max((each for each in pair if each), default=None) for pair in pairs)
        memories = [each for each in (self.memory, other.memory) if each is not None]
        memory = max(memories, key=mebibytes, default=None)
        return Resources(None if cores is None else int(cores), gpus, memory)


def mebibytes(text: str) -> float:
    """Return an amount of memory in MiB, of text as Spark writes it: ``512m``, ``4g``.

    Raises:
        ValueError: It is no such text.
    """
    found = _MEMORY.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"memory is {text!r}; a whole number and k, m, g or t, such as '4g'")
    return float(int(found[1]) * _UNITS[found[2]])


def needed(stage: str, cores: int | None, gpus: float | None, memory: str | None) -> Resources:
    """Return what a stage asks for.

    Raises:
        ValueError: That makes no sense.
    """
    if (cores is not None and cores < 1) or (gpus is not None and not gpus > 0):
        raise ValueError(f"stage {stage!r}: cores is {cores}, gpus {gpus}; from 1, and above 0")
    if memory is not None:
        mebibytes(memory)
    return Resources(cores, gpus, memory)


_MEMORY: Final = re.compile(r"(\d+)([kmgt])b?")
_UNITS: Final = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}


class Cluster:
    """What the driver knows of the executors. What Spark does not tell is None.

    Spark Connect tells nothing: there is no Java in this process. Some of it Spark tells only to
    its own code, so whatever fails here is noted in the log and costs no work.

    Args:
        spark: The session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = getattr(spark, "sparkContext", None)
        self._java: Any = None if self._context is None else self._context._jsc.sc()  # noqa: SLF001 - there is no other way to it
        self._executors: dict[tuple[int, int], str] = {}
        self._accumulators: dict[str, Any] = {}
        self._showing = threading.Lock()
        self._wishes = count()
        self._shown = -1
        self._has_failed: set[str] = set()

    @property
    def is_there(self) -> bool:
        """Whether anything is known at all."""
        return self._java is not None

    @property
    def is_elastic(self) -> bool:
        """Whether Spark takes and gives back executors by how many tasks there are."""
        return self._configured("spark.dynamicAllocation.enabled", "false") == "true"

    def most_tasks(self) -> int | None:
        """Return how many tasks there can be at once where executors are taken as needed.

        None: there is no limit, or it is unknown.
        """
        executors = int(self._configured("spark.dynamicAllocation.maxExecutors", str(_ENDLESS)))
        cores = int(self._configured("spark.executor.cores", "0"))
        if executors >= _ENDLESS or not cores:
            return None
        return executors * max(1, cores // int(self._configured("spark.task.cpus", "1")))

    def profile_for(self, needed: Resources) -> Any:
        """Return a resource profile for tasks; None: that of the session will do, or has to.

        Where executors are taken as needed, it is one for new executors. Elsewhere it can only say
        how much of the executors that are there a task takes, and memory is what they have. On
        ``local`` Spark has no profiles.
        """
        if needed == Resources():
            return None
        if self._context is None or self._context.master.startswith("local["):
            _log.warning(
                "this session has no resource profiles; cores, gpus and memory of stages have no "
                "effect"
            )
            return None
        from pyspark.resource import (  # noqa: PLC0415 - the rest needs none of it
            ExecutorResourceRequests,
            ResourceProfileBuilder,
            TaskResourceRequests,
        )

        tasks, builder = TaskResourceRequests(), ResourceProfileBuilder()
        tasks.cpus(needed.cores or int(self._configured("spark.task.cpus", "1")))
        if needed.gpus is not None:
            tasks.resource("gpu", needed.gpus)
        builder.require(tasks)
        if self.is_elastic:
            executors = ExecutorResourceRequests()
            cores = int(self._configured("spark.executor.cores", "1"))
            executors.cores(max(cores, needed.cores or 1))
            if needed.memory is not None:
                executors.memory(needed.memory)
            if needed.gpus is not None:
                script = self._configured("spark.executor.resource.gpu.discoveryScript", "")
                executors.resource("gpu", math.ceil(needed.gpus), script)
            builder.require(executors)
        elif needed.memory is not None:
            _log.warning(
                "without dynamic allocation executors have the memory that spark.executor.memory"
                " says; %s, which stages ask for, has no effect",
                needed.memory,
            )
        return builder.build

    def slots(self, profile: Any = None) -> int | None:
        """Return how many tasks the executors can run at once; those that leave do not count.

        Args:
            profile: Of the tasks; None: that of the session.
        """

        def ask() -> int:
            if profile is None:
                known = self._java.resourceProfileManager().defaultResourceProfile()
            else:
                known = profile._java_resource_profile  # noqa: SLF001 - as above
            return int(self._java.maxNumConcurrentTasks(known))

        return self._asked("slots", ask)

    def parallelism(self) -> int:
        """Return how many tasks Spark takes to be good, 1 or more."""
        return 1 if self._context is None else max(1, self._context.defaultParallelism)

    def pool(self) -> str | None:
        """Return in which pool of the scheduler the jobs of the calling thread run."""
        return None if self._context is None else self._context.getLocalProperty(_POOL)

    def executor_of(self, stage: int, task: int) -> str | None:
        """Return the id of the executor that runs a task.

        Args:
            stage: Spark's number of the stage.
            task: Spark's number of the attempt at the task.
        """
        if stage >= 0 and (stage, task) not in self._executors:
            self._asked("executors", lambda: self._find_executors(stage))
        return self._executors.get((stage, task))

    def leaving(self, executors: Iterable[str]) -> set[str]:
        """Return those of the executors that are being decommissioned."""

        def ask() -> set[str]:
            scheduler = self._java.taskScheduler()
            return {
                each
                for each in executors
                if scheduler.getExecutorDecommissionState(each).isDefined()
            }

        return self._asked("decommissions", ask) or set()

    def active_tasks(self, group: str) -> int | None:
        """Return how many tasks of a job group executors are running now."""

        def ask() -> int:
            tracker = self._context.statusTracker()
            infos = (
                tracker.getStageInfo(stage)
                for job in tracker.getJobIdsForGroup(group)
                if (found := tracker.getJobInfo(job)) is not None
                for stage in found.stageIds
            )
            return sum(each.numActiveTasks for each in infos if each is not None)

        return self._asked("active tasks", ask)

    def describe(self, group: str, text: str, pool: str | None) -> None:
        """Name the jobs that this thread begins from now on, for the pages of Spark."""
        if self._context is not None:
            self._context.setJobGroup(group, text, False)
            self._context.setLocalProperty(_POOL, pool)

    def show(self, stages: Mapping[str, StageFigures], on: Iterable[int]) -> None:
        """Put figures on the pages of Spark, as accumulators of its stages.

        Python's own accumulators have no names there, and arrive when a task ends. So these belong
        to the driver, which enters them as Spark enters those of tasks.

        Args:
            stages: The stages of the pipeline, in their order.
            on: Numbers of the stages of Spark that are to have them.
        """
        wish = next(self._wishes)
        with self._showing:
            # Of many that wait, one does it for all: what they have told is in the figures.
            if wish > self._shown:
                self._shown = next(self._wishes)
                self._asked("accumulators", lambda: self._show(stages, set(on)))

    # --- inside ------------------------------------------------------------------------------

    def _show(self, stages: Mapping[str, StageFigures], on: set[int]) -> None:
        option = self._context._jvm.scala.Option  # noqa: SLF001 - as above
        known = self._java.dagScheduler().stageIdToStage()
        found = [each.get() for number in on if (each := known.get(number)).isDefined()]
        for name, each in stages.items():
            for what, value in (
                ("messages done", each.done),
                ("messages failed", each.failed),
                ("seconds", round(each.seconds, 6)),
            ):
                accumulator = self._accumulator(f"{name}: {what}", value)
                info = accumulator.toInfo(option.apply(None), option.apply(accumulator.value()))
                for stage in found:
                    stage.latestInfo().accumulables().put(accumulator.id(), info)

    def _accumulator(self, name: str, value: float) -> Any:
        """Return the accumulator of that name, brought up to *value*."""
        made = self._accumulators.get(name)
        if made is None:
            is_whole = isinstance(value, int)
            make = self._java.longAccumulator if is_whole else self._java.doubleAccumulator
            made = self._accumulators[name] = make(name)
        made.add(value - made.value())
        return made

    def _configured(self, name: str, default: str) -> str:
        if self._context is None:
            return default
        return str(self._context.getConf().get(name, default))

    def _asked(self, what: str, ask: Callable[[], T]) -> T | None:
        if self._java is None:
            return None
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - of Java, of Spark, of another version of it
            level = logging.DEBUG if what in self._has_failed else logging.INFO
            self._has_failed.add(what)
            _log.log(level, "Spark does not say %s: %s", what, first_line(error))
            return None

    def _find_executors(self, stage: int) -> None:
        tasks = self._java.statusStore().taskList(stage, 0, _MOST_TASKS)
        for place in range(tasks.size()):
            each = tasks.apply(place)
            self._executors[stage, int(each.taskId())] = str(each.executorId())


class Job:
    """One Spark job of a run: so many tasks, each a worker."""

    def __init__(self, number: int, tasks: int) -> None:
        self.number = number
        """From 1."""
        self.tasks = tasks
        self.results: list[TaskResult] = []
        """What its tasks have returned; when it is over."""
        self.error: Exception | None = None
        """Why it has failed."""
        self.is_over = False


class Jobs:
    """Begins the jobs of a run, each in a thread of its own.

    Args:
        spark: The session.
        cluster: That it runs on.
        group: Job group and tag of all of them.
        title: What they are called on Spark's pages.
        profile: Of resources; None: that of the session.
    """

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        *,
        group: str,
        title: str,
        profile: Any = None,
    ) -> None:
        self._profile = profile
        self._spark = spark
        self._cluster = cluster
        self._pool = cluster.pool()
        self._group = group
        self._title = title
        self._changed = threading.Condition()
        self._running: list[Job] = []
        self._count = 0
        self.is_cancelled = False
        """Whether Spark was told to end those that run."""

    @property
    def running(self) -> tuple[Job, ...]:
        """Those that are not over, and those that :meth:`ended` has not given out."""
        return tuple(self._running)

    def begin(self, plan: Plan, tasks: int) -> Job:
        """Begin a job of so many tasks, and return it."""
        self.is_cancelled = False
        self._count += 1
        job = Job(self._count, tasks)
        self._running.append(job)
        more = "" if self._count == 1 else f" ({count_of(tasks, 'more task')})"
        threading.Thread(
            target=self._run,
            args=(job, plan, self._title + more),
            name=f"leasehold-job-{self._count}",
            daemon=True,
        ).start()
        return job

    def ended(self) -> list[Job]:
        """Return the jobs that have ended since this was asked last."""
        found = [each for each in self._running if each.is_over]
        for each in found:
            self._running.remove(each)
        return found

    def wait(self, timeout_s: float) -> None:
        """Wait until a job has ended, so many seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: any(job.is_over for job in self._running), timeout_s)

    def cancel(self) -> None:
        """Have Spark end the tasks."""
        self.is_cancelled = True
        self._spark.interruptTag(self._group)

    def _run(self, job: Job, plan: Plan, title: str) -> None:
        number = job.number

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return plan(batches, number)

        spark = self._spark
        try:
            spark.addTag(self._group)
            self._cluster.describe(self._group, title, self._pool)
            numbers = spark.range(0, job.tasks, 1, job.tasks)
            table = numbers.mapInArrow(work, RESULT, profile=self._profile).toArrow()
            job.results = [
                msgspec.json.decode(content, type=TaskResult)
                for content in table.column("content").to_pylist()
            ]
        except Exception as error:  # noqa: BLE001 - whatever Spark says; the run decides on it
            job.error = error
        finally:
            with self._changed:
                job.is_over = True
                self._changed.notify_all()


def first_line(error: BaseException) -> str:
    """Return what kind of error it is, and the first line of its text."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]
