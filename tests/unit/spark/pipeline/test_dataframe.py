"""Stages over record batches: what becomes of each row, without Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest

from leasehold.spark.pipeline.dataframe import (
    MESSAGE,
    RESULT,
    DeclaredStage,
    Rules,
    StageRows,
)
from leasehold.spark.pipeline.jobs import Resources
from leasehold.worker.errors import GiveBack, Poison, Retry
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.stages.declared import Done, Goto, StageSettings

TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
SCHEMA = pa.schema([(name, TYPES[kind]) for name, kind in (MESSAGE | RESULT).items()])
STEADY = Rules(retries=RetryRule(kind="fixed", initial_s=7, jitter=0))


def rows(*bodies: bytes | None, first: str = "one", **more: Any) -> pa.RecordBatch:
    """Return messages that are to begin with a stage."""
    made = [
        {
            "message_id": f"m{number}",
            "body": body,
            "dequeue_count": 1,
            "state": "null",
            "stage": first,
            **more,
        }
        for number, body in enumerate(bodies)
    ]
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


def stage(name: str, run: Callable[..., Any], **settings: Any) -> DeclaredStage:
    """Return a stage as the pipeline declares it."""
    batch, most = settings.pop("batch", None), settings.pop("rows", 256)
    given = cast("StageSettings", settings)
    resources = Resources()
    return DeclaredStage(
        name=name,
        run=run,
        batch=batch,
        rows=most,
        resources=resources,
        isolate=None,
        settings=given,
    )


def done(
    batch: pa.RecordBatch, *stages: DeclaredStage, rules: Rules = STEADY, has_queues: bool = False
) -> list[dict[str, Any]]:
    """Return the rows after all stages."""
    for place in range(len(stages)):
        work = StageRows(stages, place, rules, has_queues=has_queues)
        [batch] = work(iter([batch]))
        assert batch.schema == SCHEMA
    return list(batch.select([*RESULT]).to_pylist())


def outcomes(found: list[dict[str, Any]]) -> list[Any]:
    """Return outcomes, those that are done with their state."""
    return [
        json.loads(row["state"]) if row["outcome"] == "done" else row["outcome"] for row in found
    ]


def number(message: Any, _state: Any) -> int:
    """Return the number that is the body."""
    return int(message.body)


def test_what_a_function_raises_becomes_of_its_row_alone() -> None:
    """The others go on; a row that failed passes the stages after it by."""

    def one(message: Any, _state: Any) -> Any:
        if message.body == b"retry":
            raise Retry(delay_s=90, reason="later")
        if message.body == b"poison":
            raise Poison("bad")
        if message.body == b"back":
            raise GiveBack
        return number(message, None)

    def two(_message: Any, state: Any) -> Any:
        return state + 1

    bodies = (b"1", b"retry", b"poison", b"back", b"x", b"4", None)
    found = done(rows(*bodies), stage("one", one), stage("two", two))
    assert outcomes(found) == [2, "failed", "poisoned", "returned", "failed", 5, "poisoned"]
    assert [row["delay_s"] for row in found] == [None, 90, None, None, 7, None, None]
    assert [row["stage"] for row in found] == [None, "one", "one", "one", "one", None, "one"]
    assert [row["error"] for row in found][1:3] == ["later", "bad"]
    assert (found[4]["error_type"], found[6]["error_type"]) == ("ValueError", "BadRecord")
    assert found[4]["error_fingerprint"]


@pytest.mark.parametrize("form", ["arrow", "pandas"])
def test_one_bad_row_of_a_table_fails_alone(form: Any) -> None:
    """It is found by halves; verdicts of rows count as what functions raise."""
    sizes: list[int] = []

    def together(table: Any) -> Any:
        bodies = table["body"].to_pylist() if form == "arrow" else list(table["body"])
        sizes.append(len(bodies))
        if b"x" in bodies:
            raise ValueError("x")
        columns = {
            "state": [json.dumps(2 * int(body)) if body.isdigit() else None for body in bodies],
            "poison": ["bad" if body == b"p" else None for body in bodies],
            "retry": ["later" if body == b"r" else None for body in bodies],
        }
        if form == "arrow":
            return pa.table(columns)
        import pandas as pd  # noqa: PLC0415

        columns["state"] = [each and json.loads(each) for each in columns["state"]]
        return pd.DataFrame(columns)

    found = done(rows(b"1", b"p", b"x", b"r", b"5"), stage("one", together, batch=form, rows=4))
    assert outcomes(found) == [2, "poisoned", "failed", "failed", 10]
    assert sizes == [4, 2, 2, 1, 1, 1]
    assert [row["error"] for row in found] == [None, "bad", "x", "later", None]


@pytest.mark.parametrize("batch", [None, "arrow"])
@pytest.mark.parametrize("exhausted", ["fail", "poison"])
def test_retries_are_made_at_once_and_of_what_failed_only(batch: Any, exhausted: str) -> None:
    """After the last the message has failed, or is set aside if the stage says so."""
    seen: list[bytes] = []

    def each(message: Any, _state: Any) -> Any:
        seen.append(message.body)
        if message.body == b"x" or seen.count(message.body) <= int(message.body):
            raise ValueError("again")
        return "done"

    def all_of(table: Any) -> Any:
        bodies = table["body"].to_pylist()
        if len(bodies) > 1:
            raise ValueError("one at a time")
        return pa.table({"state": [json.dumps(each(type("M", (), {"body": bodies[0]}), None))]})

    run = each if batch is None else all_of
    made = stage("one", run, batch=batch, retries=2, exhausted=exhausted)
    found = done(rows(b"0", b"2", b"x"), made)
    last = {"fail": "failed", "poison": "poisoned"}[exhausted]
    assert outcomes(found) == ["done", "done", last]
    assert sorted(seen) == [b"0"] + [b"2"] * 3 + [b"x"] * 3
    assert ("failed 3 times" in found[2]["error"]) == (exhausted == "poison")


def test_failures_set_a_message_aside_in_the_end() -> None:
    """By the number of its deliveries; far above it, no stage sees it any more."""
    rules = Rules(poison=PoisonRule(max_failures=3, max_deliveries=5))
    seen: list[int] = []

    def fail(message: Any, _state: Any) -> None:
        seen.append(message.dequeue_count)
        raise ValueError("no")

    found = [
        done(rows(b"1", dequeue_count=count), stage("one", fail), rules=rules)[0]
        for count in (2, 3, 5, 6)
    ]
    assert [row["outcome"] for row in found] == ["failed", "poisoned", "poisoned", "poisoned"]
    assert seen == [2, 3, 5]
    assert found[3]["error_type"] == "TooManyDeliveries"


def test_a_stage_may_be_left_out_end_the_work_or_name_the_next() -> None:
    """As with workers; but one query does not lead back, if there are no queues between."""

    def one(message: Any, _state: Any) -> Any:
        return {b"d": Done(), b"g": Goto("three", "gone")}.get(message.body, "one")

    def two(message: Any, state: Any) -> Any:
        return Goto("one", state) if message.body == b"b" else f"{state} two"

    def three(_message: Any, state: Any) -> Any:
        return f"{state} three"

    stages = (
        stage("one", one),
        stage("two", two, when=lambda message, _state: message.body != b"w"),
        stage("three", three),
    )
    bodies = (b"1", b"d", b"g", b"w", b"b")
    found = done(rows(*bodies), *stages)
    assert outcomes(found) == ["one two three", None, "gone three", "one three", "poisoned"]
    assert "leads back to 'one'" in found[4]["error"]
    back = done(rows(*bodies), *stages[:2], has_queues=True)[4]
    assert (back["outcome"], back["stage"]) == (None, "one")


def test_asynchronous_functions_wait_together() -> None:
    """And each row has its own outcome."""
    together = asyncio.Barrier(3)

    async def one(message: Any, _state: Any) -> Any:
        await together.wait()
        return number(message, None)

    assert outcomes(done(rows(b"1", b"x", b"3"), stage("one", one))) == [1, "failed", 3]


def test_a_function_that_asks_is_told_that_its_time_is_over() -> None:
    """It is not tried again at once."""
    attempts: list[int] = []

    def one(message: Any, _state: Any) -> None:
        attempts.append(message.attempt)
        while True:
            message.check()

    [found] = done(rows(b"1"), stage("one", one, timeout_s=0.01, retries=3))
    assert (found["outcome"], attempts) == ("failed", [1])
    assert "took longer than 0.01 s" in found["error"]


def test_a_state_that_json_cannot_say_fails_its_row() -> None:
    """As with workers, where it cannot be saved."""

    def one(message: Any, _state: Any) -> Any:
        return object() if message.body == b"o" else {"n": 1}

    assert outcomes(done(rows(b"o", b"1"), stage("one", one))) == ["failed", {"n": 1}]
