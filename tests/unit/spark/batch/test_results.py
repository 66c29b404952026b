"""The results of messages as a table, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, In

from leasehold.client import Client
from leasehold.client.models import Completion, ErrorReport
from leasehold.spark.batch.events import events_reader
from leasehold.spark.options import BadOption, read_options
from leasehold.spark.schemas import RESULTS, chosen
from leasehold.testing import InProcessServer
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.stages import Stages
from leasehold.worker.worker import Worker
from tests.unit.spark.batch.conftest import ReadAll, Rows

STAGE = {"stage": "scan", "began_at_ms": 1_767_225_600_000, "seconds": 2.5}
STAGE |= {"attempts": 2, "outcome": "done"}


def read(server: InProcessServer, read_all: ReadAll, *filters: Any, **more: str) -> Rows:
    options = read_options(
        {"connectionString": server.connection_string, "view": "results", **more}
    )
    schema = chosen(RESULTS, options.columns)
    reader = events_reader(options, schema)
    if filters:
        reader.pushFilters([*filters])
    rows = read_all(reader, schema)
    return sorted(rows, key=lambda row: (row["seq"], row["place"])) if "seq" in rows[0] else rows


@pytest.fixture
def ended(server: InProcessServer, client: Client) -> dict[str, str]:
    """Messages that ended in all ways; what they are called by their ids."""
    queue = client.queue("orders")
    queue.create()
    names = ["done", "plain", "odd", "poisoned", "cancelled", "removed", "expired", "waiting"]
    ids = {queue.put(name).id: name for name in names}
    taken = {each.text: each for each in queue.receive(5, holder="worker-1")}
    result = {"stages": [STAGE], "output": {"frames": 3}}
    queue.complete_many(
        [Completion(taken["done"], result), taken["plain"], Completion(taken["odd"], {"a": 1})]
    )
    queue.bury(taken["poisoned"], error=ErrorReport("no codec", "KeyError"))
    queue.bury(taken["cancelled"], error=ErrorReport("an operator", "Cancelled"))
    by_name = {name: id_ for id_, name in ids.items()}
    queue.remove(by_name["removed"])
    return ids


def test_each_outcome(server: InProcessServer, ended: dict[str, str], read_all: ReadAll) -> None:
    """A row for each message that has ended, with what is known of how."""
    rows = {ended[row["message_id"]]: row for row in read(server, read_all)}
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "done": "done",
        "plain": "done",
        "odd": "done",
        "poisoned": "poisoned",
        "cancelled": "cancelled",
        "removed": "removed",
    }
    done = rows["done"]
    assert done["stages"] == [
        {
            "stage": "scan",
            "began_at": datetime(2026, 1, 1, tzinfo=UTC),
            "seconds": 2.5,
            "attempts": 2,
            "outcome": "done",
        }
    ]
    assert (done["output"], done["output_bytes"]) == ('{"frames":3}', 12)
    assert (done["holder"], done["dequeue_count"], done["queue"]) == ("worker-1", 1, "orders")
    assert done["leased_at"] is not None
    assert (rows["plain"]["stages"], rows["plain"]["output"]) == (None, None)
    assert (rows["odd"]["stages"], rows["odd"]["output"]) == (None, '{"a":1}')
    poisoned = rows["poisoned"]
    assert (poisoned["reason"], poisoned["error_type"]) == ("buried", "KeyError")
    assert (poisoned["error"], poisoned["target"]) == ("no codec", "orders-poison")
    assert rows["removed"]["leased_at"] is None


def test_columns_and_filters(
    server: InProcessServer, ended: dict[str, str], read_all: ReadAll
) -> None:
    """Columns are chosen by name; what the log can filter is filtered there."""
    [row] = read(
        server,
        read_all,
        EqualTo(("error_type",), "KeyError"),
        pushdown="true",
        columns="outcome,output_bytes",
    )
    assert [*row] == ["outcome", "output_bytes"]
    assert row["outcome"] == "poisoned"
    options = read_options({"view": "results", "pushdown": "true", "queueName": "orders"})
    made = In(("outcome",), ("done",))
    reader = events_reader(options, RESULTS)
    assert reader.pushFilters([made]) == [made]
    with pytest.raises(BadOption, match=r"no column stage\. Did you mean stages"):
        chosen(RESULTS, ("stage",))


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"output": None, "stages": []}, ([], None, None)),
        ({"stages": [], "output_bytes": 20_000}, ([], None, 20_000)),
        ({"output": [1]}, (None, "[1]", 3)),
        ({"output": 1, "more": 2}, (None, '{"output":1,"more":2}', 21)),
        ({"stages": "three"}, (None, '{"stages":"three"}', 18)),
        ("text", (None, '"text"', 6)),
    ],
)
def test_results_of_every_form(
    server: InProcessServer, client: Client, read_all: ReadAll, result: Any, expected: Any
) -> None:
    """What is not of the form that pipelines give is shown whole."""
    queue = client.queue("orders")
    queue.create()
    queue.put("x")
    queue.complete(queue.receive(1)[0], result=result)
    [row] = read(server, read_all)
    assert (row["stages"], row["output"], row["output_bytes"]) == expected


def test_one_that_was_sent_on_has_its_end_in_the_other_queue(
    server: InProcessServer, client: Client, read_all: ReadAll
) -> None:
    """A row for it, with the stages of both queues and the id under which it was put."""
    films, gpu = client.queue("films"), client.queue("films-gpu")
    films.create()
    gpu.create()
    stages = Stages(results=True)
    stages.stage("scan")(lambda message, state: 1)
    stages.stage("encode", queue="films-gpu")(lambda message, state: state + 1)
    sent = films.put("x")
    for queue in (films, gpu):
        Worker(stages, NativeQueue(queue)).run_until_idle(30)
    [row] = read(server, read_all)
    assert (row["queue"], row["origin_id"], row["output"]) == ("films-gpu", sent.id, "2")
    assert [each["stage"] for each in row["stages"]] == ["scan", "encode"]
