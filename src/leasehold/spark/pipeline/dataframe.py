"""A pipeline as transformations of a DataFrame: for work that takes milliseconds for a message.

Each stage is a node of Spark's plan, over the messages of one claim in each micro-batch. A row that
fails is marked, passes the stages after it by, and is exempted when the claim is settled; so it
costs the others nothing. Nothing is saved between the stages of one query.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import pyarrow as pa

from leasehold.domain.wording import times_of
from leasehold.spark.pipeline.batch_stage import COLUMNS, Given, read_result
from leasehold.worker.adapters.protocol import Delivery, Fault, Saved
from leasehold.worker.errors import Poison, WorkerError
from leasehold.worker.message import Message
from leasehold.worker.outcomes import Bury, Give, fault_of, outcome_of, settlement_of
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.stages.declared import (
    Done,
    Goto,
    Layout,
    Stage,
    StageMessage,
    StageOverdue,
    StageSettings,
    as_json,
)
from leasehold.worker.stages.run import Durations, Watch, Watched
from leasehold.worker.timing import SystemTime

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from leasehold.spark.pipeline.batch_stage import BatchForm
    from leasehold.spark.pipeline.jobs import Resources

_MAX_DELAY_S: Final = 604_800
_ASYNC_AT_ONCE: Final = 64
_SKIPPED: Final = object()
_random: Final = random.SystemRandom()

MESSAGE: Final = {
    "claimed_id": "string",
    "message_id": "string",
    "body": "binary",
    "message_type": "string",
    "dequeue_count": "int",
    "fence": "bigint",
    "inserted_at": "timestamp",
    "expires_at": "timestamp",
    "traceparent": "string",
    "properties": "map<string,string>",
    "group_id": "string",
    "queue": "string",
    "claim": "bigint",
    "claim_token": "bigint",
}
"""Columns of messages that stages have. All but ``message_id`` and ``body`` are null where they are
not given. ``claimed_id`` is under which it is claimed, if that is another id than stages see."""
RESULT: Final = {
    "state": "string",
    "stage": "string",
    "outcome": "string",
    "delay_s": "int",
    "error": "string",
    "error_type": "string",
    "error_fingerprint": "string",
}
"""Columns that a pipeline adds: what the last stage has returned, as JSON; the stage that failed,
null for none; and what became of the message: done, failed, poisoned or returned."""
OUTCOMES: Final = {"failed": "failed", "poisoned": "buried", "returned": "returned"}
"""What becomes of a message in its queue, by its outcome here. All others are completed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredStage:
    """A stage as it was declared. It can be pickled as Spark pickles functions."""

    name: str
    run: Callable[..., Any]
    batch: BatchForm | None
    rows: int
    resources: Resources
    isolate: Literal["process"] | None
    settings: StageSettings

    def check(self, *, is_saved: bool) -> None:
        """Refuse settings that mean nothing in the form of queries.

        Args:
            is_saved: Whether the end of the stage is saved before the next one begins.

        Raises:
            ValueError: There is one; the text says what to do.
        """
        settings, where = self.settings, f"stage {self.name!r}: "
        if any(self.resources) or settings.get("queue"):
            raise ValueError(
                f"{where}cores, gpus, memory and queue mean nothing to a query: set the session's, "
                "or use run(), the form of workers"
            )
        if settings.get("retry_delay_s"):
            raise ValueError(
                f"{where}retry_delay_s would have the whole micro-batch wait. Leave it out: the "
                "rule for retries puts off a message that has failed; or use run(), the form of "
                "workers"
            )
        if self.isolate is not None:
            raise ValueError(
                f"{where}isolate would have a process for each message; use run(), the form of "
                "workers"
            )
        if self.batch is not None and settings.get("timeout_s") is not None:
            raise ValueError(
                f"{where}timeout_s has no meaning for a function of many messages, which cannot be "
                "stopped; use run(), the form of workers, or a function of one message"
            )
        if settings.get("must_save") and not is_saved:
            raise ValueError(
                f"{where}must_save: nothing is saved between the stages of one query. Put queues "
                'between them (between="queues"), or use run(), the form of workers'
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What becomes of messages that fail."""

    retries: RetryRule = field(default_factory=RetryRule)
    """How long one waits."""
    poison: PoisonRule = field(default_factory=PoisonRule)
    """When it is set aside. Failures are not known here, so that all deliveries count."""

    def fate(self, delivery: Delivery, error: BaseException) -> Fate:
        """Return what becomes of a message whose stage has raised *error*."""
        settlement = settlement_of(
            outcome_of(error, is_lost=False, asked=None),
            delivery,
            retries=self.retries,
            poison=self.poison,
            max_delay_s=_MAX_DELAY_S,
            jitter=_random.random(),
        )
        if isinstance(settlement, Bury):
            return Fate("poisoned", None, settlement.fault)
        if isinstance(settlement, Give) and settlement.outcome == "failed":
            return Fate("failed", settlement.delay_s, settlement.fault)
        return Fate("returned", None, fault_of(error))

    def refusal(self, delivery: Delivery) -> Fate | None:
        """Return what becomes of a message that no stage is to see; None: they may see it."""
        fault = self.poison.refusal(delivery) if self.poison.may_be_refused(delivery) else None
        return None if fault is None else Fate("poisoned", None, fault)


class Fate(NamedTuple):
    """What becomes of a message that is not done."""

    outcome: str
    delay_s: int | None
    fault: Fault | None


_UNREADABLE: Final = Fate(
    "poisoned", None, Fault(text="the body cannot be decoded", type="BadRecord")
)


# --- the plan ------------------------------------------------------------------------------------


def transformed(
    messages: DataFrame, stages: Sequence[DeclaredStage], rules: Rules, only: int | None = None
) -> DataFrame:
    """Return the messages with what the stages have made of them.

    Args:
        messages: With the columns ``message_id`` and ``body`` at least, of a stream or not.
        stages: In their order.
        rules: What becomes of messages that fail.
        only: Index of the one stage to be done; the column ``state`` of *messages* is what it gets.
            None: all of them.

    Raises:
        ValueError: A column is missing, or there is no stage.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as everybody calls it

    if not stages:
        raise ValueError("the pipeline has no stage")
    there = {name.lower() for name in messages.columns}
    if missing := [name for name in ("message_id", "body") if name not in there]:
        raise ValueError(f"the DataFrame has no column {missing[0]}: it is not one of messages")

    def column(name: str, kind: str) -> Column:
        value = F.col(name) if name in there else F.lit(None)
        return value.cast(kind).alias(name)

    first = only or 0
    beginning = {
        "state": F.lit("null") if only is None else F.col("state"),
        "stage": F.lit(stages[first].name),
    }
    frame = messages.select(
        *(column(name, kind) for name, kind in MESSAGE.items()),
        *(beginning.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in RESULT.items()),
    )
    schema = ", ".join(f"{name} {kind}" for name, kind in (MESSAGE | RESULT).items())
    for place in range(len(stages)) if only is None else [only]:
        rows = StageRows(tuple(stages), place, rules, has_queues=only is not None)
        frame = frame.mapInArrow(_function(rows), schema)
    return frame


def _function(rows: StageRows) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what Spark takes: a plain function, whose name its plans show."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return rows(batches)

    work.__name__ = "stage_" + re.sub(r"\W", "_", rows.stages[rows.place].name)
    return work


# --- on executors --------------------------------------------------------------------------------


@dataclass(slots=True)
class StageRows:
    """One stage, over record batches of the columns of MESSAGE and RESULT. It can be pickled."""

    stages: tuple[DeclaredStage, ...]
    place: int
    """Index of the stage."""
    rules: Rules
    has_queues: bool = False
    """Whether a queue is before each stage, so that a message may go back to an earlier one."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same rows, in the same order."""
        doing = _Doing(self)
        try:
            for batch in batches:
                yield doing.batch(batch)
        finally:
            doing.watch.close()


class _Unheld:
    """Stands for the lease of a message: the source keeps that of the whole claim."""

    deadline_s = float("inf")

    def check(self) -> None:
        """Do nothing: it is when the results are published that a lost claim is found out."""

    def extend(self, visibility_timeout_s: int) -> None:
        """Do nothing: the claim is extended as long as it takes."""

    def save(self, saved: Saved) -> None:
        """Do nothing: a message that fails begins anew with its stage."""


class _Id(NamedTuple):
    id: str


class _Messages:
    """The rows that a stage gets, as messages; made only as far as somebody looks at them."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows
        self.states = [json.loads(state) for state in rows.column("state").to_pylist()]

    @cached_property
    def _columns(self) -> list[dict[str, Any]]:
        return list(self.rows.select([*MESSAGE]).to_pylist())

    def delivery(self, row: int) -> Delivery:
        """Return what came from the queue."""
        given = self._columns[row]
        count, fence = given["dequeue_count"], given["fence"]
        return Delivery(
            queue=given["queue"] or "",
            message_id=given["message_id"],
            receipt="",
            body=given["body"] or b"",
            dequeue_count=1 if count is None else count,
            fence=1 if fence is None else fence,
            inserted_at_ms=_ms(given["inserted_at"]),
            expires_at_ms=_ms(given["expires_at"]),
            type=given["message_type"],
            properties=dict(given["properties"] or ()),
            traceparent=given["traceparent"],
            group_id=given["group_id"],
        )


def _ms(moment: Any) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


class _Doing:
    """A stage in one task."""

    def __init__(self, rows: StageRows) -> None:
        self._declared = declared = rows.stages[rows.place]
        self._place = rows.place
        self._rules = rows.rules
        self._has_queues = rows.has_queues
        names = tuple(each.name for each in rows.stages)
        self._layout = Layout(names=names, weights=(1.0,) * len(names))
        self._stage = Stage(name=declared.name, run=declared.run, **declared.settings)
        self._time = SystemTime()
        self._durations = Durations()
        self.watch = Watch(self._time)

    # --- rows ----------------------------------------------------------------------------------

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch after the stage."""
        columns = {name: batch.column(name).to_pylist() for name in RESULT}
        places = zip(columns["stage"], columns["outcome"], strict=True)
        here = [
            row
            for row, (stage, outcome) in enumerate(places)
            if outcome is None and stage == self._stage.name
        ]
        if not here:
            return batch
        own = batch if len(here) == batch.num_rows else batch.take(pa.array(here, pa.int64()))
        messages = _Messages(own)
        for place, (row, value) in enumerate(zip(here, self._values(messages), strict=True)):
            for name, after in self._after(messages, place, value).items():
                columns[name][row] = after
        arrays = [
            pa.array(columns[each.name], each.type) if each.name in columns else batch.column(at)
            for at, each in enumerate(batch.schema)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)

    def _after(self, messages: _Messages, row: int, value: Any) -> Mapping[str, Any]:
        """Return the columns of RESULT that change."""
        if not isinstance(value, Fate | Exception):
            try:
                return self._next(value)
            except Exception as error:  # noqa: BLE001 - such as of a state that JSON cannot say
                value = error
        fate = value
        if isinstance(value, Exception):
            fate = self._rules.fate(messages.delivery(row), value)
        fault = fate.fault
        return {
            "outcome": fate.outcome,
            "delay_s": fate.delay_s,
            "error": None if fault is None else fault.text,
            "error_type": None if fault is None else fault.type,
            "error_fingerprint": None if fault is None else fault.fingerprint,
        }

    def _next(self, value: Any) -> Mapping[str, Any]:
        if value is _SKIPPED:
            return self._at(self._place + 1)
        if isinstance(value, Done) or value is Done:
            return self._at(len(self._layout.names))
        if not isinstance(value, Goto):
            return {"state": json.dumps(as_json(value)), **self._at(self._place + 1)}
        place = self._layout.place(value.stage)
        if place <= self._place and not self._has_queues:
            raise Poison(
                f"stage {self._stage.name!r} leads back to {value.stage!r}, which one query cannot "
                'do: use between="queues", or the form of workers'
            )
        return {"state": json.dumps(as_json(value.state)), **self._at(place)}

    def _at(self, place: int) -> Mapping[str, Any]:
        names = self._layout.names
        if place < len(names):
            return {"stage": names[place]}
        return {"stage": None, "outcome": "done"}

    def _values(self, messages: _Messages) -> Sequence[Any]:
        """Return of each row what the stage returns or raises, or its fate."""
        decided = self._decided(messages)
        todo = [row for row in range(messages.rows.num_rows) if row not in decided]
        if self._declared.batch is not None:
            found = self._together(messages, todo)
        elif self._stage.is_async:
            found = asyncio.run(self._all(messages, todo))
        else:
            found = [self._now(messages, row) for row in todo]
        decided |= zip(todo, found, strict=True)
        return [decided[row] for row in range(len(decided))]

    def _decided(self, messages: _Messages) -> dict[int, Any]:
        """Return the rows with which the stage is not called, and what becomes of them."""
        found: dict[int, Any] = {}
        rows = messages.rows
        if rows.column("body").null_count:
            empty = rows.column("body").is_null().to_pylist()
            found |= {row: _UNREADABLE for row, is_empty in enumerate(empty) if is_empty}
        most = self._rules.poison.most_deliveries
        if self._place == 0 and most is not None:
            for row, count in enumerate(rows.column("dequeue_count").to_pylist()):
                fate = None
                if count is not None and count > most:
                    fate = self._rules.refusal(messages.delivery(row))
                if fate is not None:
                    found[row] = fate
        if self._stage.when is not None:
            self._skip(self._stage.when, messages, found)
        return found

    def _skip(
        self, when: Callable[[Any, Any], bool], messages: _Messages, found: dict[int, Any]
    ) -> None:
        for row in range(messages.rows.num_rows):
            if row in found:
                continue
            try:
                if not when(self._seen(messages, row), messages.states[row]):
                    found[row] = _SKIPPED
            except Exception as error:  # noqa: BLE001 - whatever the user's function raises
                found[row] = error

    # --- one by one ----------------------------------------------------------------------------

    def _seen(self, messages: _Messages, row: int) -> StageMessage:
        message = Message(messages.delivery(row), _Unheld(), self._time)
        resumed = self._place == 0 and message.dequeue_count > 1
        return StageMessage(
            message, self._layout, self._place, messages.states[row], resumed=resumed
        )

    async def _one(self, messages: _Messages, row: int) -> Any:
        """Return what the stage returns or raises; only an asynchronous one waits for anything."""
        stage, seen = self._stage, self._seen(messages, row)
        while True:
            watched = self._watched(seen)
            began_s = self._time.monotonic_s()
            try:
                returned = stage.run(seen, as_json(seen.state) if stage.retries else seen.state)
                if stage.is_async:
                    returned = await returned
            except WorkerError as error:
                return error  # the stage says itself what shall become of the message
            except Exception as error:  # noqa: BLE001 - whatever the user's function raises
                if seen.attempt > stage.retries or isinstance(error, StageOverdue):
                    return self._exhausted(error, seen.attempt)
            else:
                self._durations.add(stage.name, self._time.monotonic_s() - began_s)
                return returned
            finally:
                if watched is not None:
                    watched.end()
            seen.attempt += 1

    def _now(self, messages: _Messages, row: int) -> Any:
        """Do what :meth:`_one` does for a stage that waits for nothing."""
        try:
            self._one(messages, row).send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("an ordinary stage does not wait")

    async def _all(self, messages: _Messages, rows: Sequence[int]) -> list[Any]:
        """Do the stage for messages, some at a time."""
        room = asyncio.Semaphore(_ASYNC_AT_ONCE)

        async def one(row: int) -> Any:
            async with room:
                return await self._one(messages, row)

        return await asyncio.gather(*map(one, rows))

    def _watched(self, seen: StageMessage) -> Watched | None:
        limit = self._stage.timeout_s
        limit_s = self._durations.limit_s(self._stage.name) if isinstance(limit, str) else limit
        if limit_s is None:
            return None
        return self.watch.start(limit_s, lambda: seen.set_overdue(limit_s))

    def _exhausted(self, error: Exception, attempts: int) -> Exception:
        if self._stage.exhausted != "poison" or isinstance(error, StageOverdue):
            return error
        return Poison(f"stage {self._stage.name!r} failed {times_of(attempts)}: {error!r}")

    # --- many at once --------------------------------------------------------------------------

    def _together(self, messages: _Messages, rows: Sequence[int]) -> list[Any]:
        """Call the stage with tables of at most as many rows as it was declared with."""
        if not rows:
            return []
        table = pa.Table.from_batches([messages.rows.select(COLUMNS.names)]).cast(COLUMNS)
        if len(rows) < table.num_rows:
            table = table.take(pa.array(rows, pa.int64()))
        ids = table.column("message_id").to_pylist()
        given = [Given(_Id(of), messages.states[row]) for of, row in zip(ids, rows, strict=True)]
        found: list[Any] = []
        for start in range(0, len(given), self._declared.rows):
            end = start + self._declared.rows
            found += self._tried(table.slice(start, end - start), given[start:end])
        return found

    def _tried(self, table: pa.Table, given: Sequence[Given]) -> list[Any]:
        values = self._bisected(table, given)
        for _ in range(self._stage.retries):
            failed = [row for row, value in enumerate(values) if _is_failure(value)]
            if not failed:
                break
            again = self._bisected(table.take(pa.array(failed)), [given[row] for row in failed])
            for row, value in zip(failed, again, strict=True):
                values[row] = value
        attempts = self._stage.retries + 1
        return [self._exhausted(each, attempts) if _is_failure(each) else each for each in values]

    def _bisected(self, table: pa.Table, given: Sequence[Given]) -> list[Any]:
        """Call the stage; if it fails, with each half by itself, so that a bad row fails alone."""
        try:
            return read_result(self._declared.run(self._table(table)), given)
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises
            if len(given) == 1:
                return [error]
        middle = len(given) // 2
        return [
            *self._bisected(table.slice(0, middle), given[:middle]),
            *self._bisected(table.slice(middle), given[middle:]),
        ]

    def _table(self, table: pa.Table) -> Any:
        if self._declared.batch == "arrow":
            return table
        import pandas as pd  # noqa: PLC0415 - only who uses it needs it

        frame = table.to_pandas()
        states = [json.loads(state) for state in table.column("state").to_pylist()]
        frame["state"] = pd.Series(states, dtype=object)
        return frame


def _is_failure(value: Any) -> bool:
    return isinstance(value, Exception) and not isinstance(value, WorkerError)
