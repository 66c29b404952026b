"""Stages on tables: what they get, and what becomes of what they return."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pytest

from leasehold.spark.pipeline.batch_stage import BatchForm, BatchStage, Given, read_result
from leasehold.worker.errors import Poison, Retry
from leasehold.worker.stages.declared import StageMessage
from tests.patience import PATIENCE_S


class Fake:
    """As much of a message as a table shows."""

    def __init__(self, number: int) -> None:
        self.id = f"m{number}"
        self.body = f"film {number}".encode()
        self.type = None
        self.dequeue_count = 1
        self.fence = number
        self.inserted_at_ms = 1000 * number


def fake(number: int) -> StageMessage:
    """Return a message."""
    return cast("StageMessage", Fake(number))


def given(*states: Any) -> list[Given]:
    """Return messages with these states."""
    return [Given(fake(number), state) for number, state in enumerate(states)]


def test_a_table_has_the_messages_with_their_states() -> None:
    """Bodies are bytes, times are times, states are JSON in Arrow."""
    seen: list[pa.Table] = []
    stage = BatchStage(seen.append, "arrow", 10)
    assert stage(fake(3), {"frame": 1}) == {"frame": 1}
    [row] = seen[0].to_pylist()
    assert (row["message_id"], row["body"], row["fence"]) == ("m3", b"film 3", 3)
    assert row["inserted_at"].timestamp() == 3
    assert json.loads(row["state"]) == {"frame": 1}


def test_pandas_gets_states_as_objects() -> None:
    """What the stage before returned is what the frame holds."""

    def grow(frame: Any) -> Any:
        frame["state"] = [{**state, "seen": True} for state in frame["state"]]
        return frame[["message_id", "state"]]

    assert BatchStage(grow, "pandas", 10)(fake(1), {"n": 2}) == {"n": 2, "seen": True}


@pytest.mark.parametrize(
    "returned",
    [
        pa.table({"state": ['{"w": 1}', '{"w": 2}']}),
        pa.table({"w": [1, 2]}),
        pa.RecordBatch.from_pydict({"message_id": ["m1", "m0"], "w": [2, 1]}),
        pa.table({"state": pa.array([{"w": 1}, {"w": 2}])}),
        pa.array([{"w": 1}, {"w": 2}]),
        pd.DataFrame({"w": [1, 2]}),
        pd.DataFrame({"message_id": ["m1", "m0"], "state": [{"w": 2}, {"w": 1}]}),
        pd.Series([{"w": 1}, {"w": 2}]),
    ],
    ids=["json", "columns", "by id", "structs", "array", "frame", "frame by id", "series"],
)
def test_states_come_back_in_many_forms(returned: Any) -> None:
    """In the order of the messages or by id, as one column or as several."""
    assert read_result(returned, given(None, None)) == [{"w": 1}, {"w": 2}]


def test_numbers_are_those_that_json_can_say() -> None:
    """Neither numpy's numbers nor NaN go into a state."""
    frame = pd.DataFrame({"a": [1.5, float("nan")], "n": pd.Series([1, 2], dtype="int64")})
    states = read_result(frame, given(None, None))
    assert json.loads(json.dumps(states, allow_nan=False)) == [
        {"a": 1.5, "n": 1},
        {"a": None, "n": 2},
    ]


def test_nothing_returned_leaves_the_states_as_they_are() -> None:
    """A stage may have effects only; so may one whose table has nothing but ids and verdicts."""
    assert read_result(None, given(1, {"a": 2})) == [1, {"a": 2}]
    only_ids = pa.table({"message_id": ["m0", "m1"], "poison": [None, None]})
    assert read_result(only_ids, given(1, {"a": 2})) == [1, {"a": 2}]


def test_single_rows_can_be_set_aside_or_tried_again() -> None:
    """The columns poison and retry hold the reasons."""
    frame = pd.DataFrame(
        {
            "state": [1, 2, 3],
            "poison": [None, "no film", float("nan")],
            "retry": ["busy", None, ""],
        }
    )
    first, second, third = read_result(frame, given(0, 0, 0))
    assert isinstance(first, Retry)
    assert isinstance(second, Poison)
    assert second.reason == "no film"
    assert third == 3


def test_rows_that_are_missing_are_an_error() -> None:
    """Nobody's state becomes that of another."""
    with pytest.raises(ValueError, match="2 messages and returned 1 row"):
        read_result(pa.table({"state": [1]}), given(0, 0))
    with pytest.raises(ValueError, match="no row for message m1"):
        read_result(pa.table({"message_id": ["m0"], "state": [1]}), given(0, 0))
    with pytest.raises(TypeError, match="returns a table"):
        read_result([1, 2], given(0, 0))


@pytest.mark.parametrize("form", ["arrow", "pandas"])
def test_one_bad_message_does_not_cost_the_others(form: BatchForm) -> None:
    """After an error halves are tried by themselves, until the bad one is alone."""
    sizes: list[int] = []

    def run(table: Any) -> Any:
        bodies = [
            bytes(each)
            for each in (table["body"].to_pylist() if form == "arrow" else table["body"])
        ]
        sizes.append(len(bodies))
        if b"film 5" in bodies:
            raise OSError("cannot read film 5")
        return pa.table({"n": [1] * len(bodies)})

    stage = BatchStage(run, form, 8)
    many = [Given(fake(number), None) for number in range(8)]
    results = stage._serve(many)
    assert [number for number, each in enumerate(results) if isinstance(each, OSError)] == [5]
    assert [each for each in results if not isinstance(each, OSError)] == [{"n": 1}] * 7
    assert sizes == [8, 4, 4, 2, 1, 1, 2]


def test_messages_that_come_together_are_one_batch() -> None:
    """While one call is under way the next batch comes together."""
    begun, go_on, sizes = threading.Event(), threading.Event(), []

    def run(table: pa.Table) -> None:
        sizes.append(table.num_rows)
        begun.set()
        assert go_on.wait(PATIENCE_S)

    stage = BatchStage(run, "arrow", 100)
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(stage, fake(0), 0)
        assert begun.wait(PATIENCE_S)
        rest = [pool.submit(stage, fake(number), number) for number in range(1, 6)]
        while len(stage._gathering._waiting) < 5:
            threading.Event().wait(0.001)
        go_on.set()
        assert [each.result(PATIENCE_S) for each in (first, *rest)] == [0, 1, 2, 3, 4, 5]
    assert sizes == [1, 5]
