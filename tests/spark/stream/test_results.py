"""Results of messages on a real Spark, as a stream and as a table."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from pyspark.sql import SparkSession

from leasehold.client import QueueHandle
from leasehold.client.models import Completion
from leasehold.spark.stream.releases import TELLS_START
from leasehold.testing import InProcessServer
from tests.spark.stream.conftest import Queries

STAGES = [
    {"stage": name, "began_at_ms": 1_767_225_600_000, "seconds": 0.5, "attempts": 1}
    | {"outcome": "done"}
    for name in ("scan", "encode")
]


def work(queue: QueueHandle, count: int) -> None:
    """Put messages, and complete three of four and bury the rest."""
    queue.put_many([str(number) for number in range(count)])
    for message in queue.receive(count):
        number = int(message.text)
        if number % 4 == 3:
            queue.bury(message, error="no codec")
        else:
            queue.complete_many(
                [Completion(message, {"stages": STAGES, "output": {"number": number}})]
            )


def test_a_stream_and_a_table(
    queries: Queries, spark: SparkSession, server: InProcessServer, queue: QueueHandle
) -> None:
    """Each outcome once, with its stages; a batch read has the same rows."""
    options = {"connectionString": server.connection_string, "view": "results"}
    options |= {"queueName": "orders"}
    results = spark.readStream.format("leasehold").options(**options, maxEventsPerTrigger="6")
    work(queue, 8)
    seen = queries.run(results.load())
    if not TELLS_START:  # one run takes one micro-batch
        seen += queries.run(results.load())
    rows = list(chain(*seen))
    assert [len(batch) for batch in seen] == [6, 2]
    assert Counter(row.outcome for row in rows) == {"done": 6, "poisoned": 2}
    assert len({row.message_id for row in rows}) == 8
    taken = [(each.stage, each.seconds) for row in rows for each in row.stages or ()]
    assert Counter(taken) == {("scan", 0.5): 6, ("encode", 0.5): 6}
    once = spark.read.format("leasehold").options(**options).load()
    assert sorted(once.collect()) == sorted(rows)
