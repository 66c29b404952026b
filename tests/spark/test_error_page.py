"""The page of errors shows the texts that Spark shows, each from an attempt that is made here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession

from leasehold.client import Client
from leasehold.spark import register
from leasehold.testing import InProcessServer
from tests.docs.pages import DOCS, blocks

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PAGE: Final = DOCS / "howto" / "spark-errors.md"
NOT_TRIED: Final = {
    *("data-source-not-found", "format-not-loaded", "no-module", "version-mismatch"),
    *("connect-back", "no-java", "versions", "how-to-read"),
}
"""Sections on other surroundings than those of a test; ``test_ordinary_session`` has the first."""


class Attempts:
    """What goes wrong, under the name of its section."""

    def __init__(self, spark: SparkSession, server: InProcessServer, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.place = {"connectionString": server.connection_string}
        self.down = {"connectionString": re.sub(r":\d+/", ":1/", server.connection_string)}
        key = re.search(r"AccountKey=(..)", server.connection_string)
        assert key is not None
        self.refused = {"connectionString": server.connection_string.replace(key[1], "AA", 1)}

    def read(self, **options: str) -> None:
        """Read once."""
        self.spark.read.format("leasehold").options(**{**self.place, **options}).load().collect()

    def stream(self, checkpoint: str, schema: str | None = None, **options: str) -> None:
        """Take what is there."""
        reading = self.spark.readStream.format("leasehold").options(**{**self.place, **options})
        frame = (reading if schema is None else reading.schema(schema)).load()
        writing = frame.writeStream.format("noop").trigger(availableNow=True)
        query = writing.option("checkpointLocation", str(self.folder / checkpoint)).start()
        query.awaitTermination()

    def taken(self) -> None:
        """Start a query twice."""
        reading = self.spark.readStream.format("leasehold").options(
            **self.place, queueName="orders", streamId="t", waitSeconds="0"
        )

        def started(checkpoint: str) -> Any:
            place = str(self.folder / checkpoint)
            return (
                reading.load()
                .writeStream.format("noop")
                .option("checkpointLocation", place)
                .trigger(processingTime="100 milliseconds")
                .start()
            )

        first = started("t1")
        first.processAllAvailable()
        reading = reading.option("allowNewCheckpoint", "true")
        second = started("t2")
        try:
            first.awaitTermination()
        finally:
            second.stop()

    def write(self, frame: DataFrame, mode: str | None = "append", **options: str) -> None:
        """Send a table."""
        writing = frame.write.format("leasehold").options(**{**self.place, **options})
        (writing if mode is None else writing.mode(mode)).save()

    def by_section(self) -> dict[str, list[Callable[[], None]]]:
        """Return the attempts, for each block of a section one."""
        spark, orders = self.spark, {"queueName": "orders"}
        stream = {**orders, "streamId": "d"}
        body = spark.range(1).selectExpr("string(id) AS body")

        def restarted() -> None:
            self.stream("d", **stream)
            self.stream("elsewhere", **stream)

        return {
            "misspelled-option": [
                lambda: self.read(**orders, raed="snapshot"),
                lambda: self.stream("x", **stream, maxMessagesPerTrigger="many"),
            ],
            "batch-read": [lambda: self.read(**orders)],
            "missing-stream-id": [lambda: self.stream("x", **orders)],
            "missing-queue": [lambda: self.stream("x", queueName="nosuch", streamId="x")],
            "server-down": [lambda: self.stream("x", **self.down, **stream, retryPatience="1s")],
            "wrong-key": [
                lambda: self.stream("x", **self.refused, **stream),
                lambda: self.stream("x", **stream, connectionString="nonsense"),
            ],
            "wrong-columns": [
                lambda: self.write(spark.range(1).selectExpr("id AS body"), **orders),
                lambda: self.write(spark.range(1), **orders),
                lambda: self.stream("x", "text STRING", **stream),
                lambda: self.stream("x", **stream, format="json"),
            ],
            "bad-record": [
                lambda: self.stream(
                    "bad",
                    "id BIGINT",
                    queueName="bad",
                    streamId="bad",
                    format="json",
                    onBadRecord="fail",
                )
            ],
            "save-mode": [lambda: self.write(body, None, **orders)],
            "direct-query": [lambda: spark.sql("SELECT * FROM leasehold.`orders`").show()],
            "new-checkpoint": [restarted],
            "other-checkpoint": [lambda: self.stream("d", **orders, streamId="d2")],
            "stream-taken": [self.taken],
        }


@pytest.fixture
def attempts(spark: SparkSession, tmp_path: Path) -> Iterator[Attempts]:
    """A server with two queues that have messages."""
    with InProcessServer() as server:
        with Client.from_connection_string(server.connection_string) as client:
            for name in ("orders", "bad"):
                client.queue(name).create()
                client.queue(name).put_many(["no JSON", "nor this"])
        yield Attempts(register(spark), server, tmp_path)


def sections() -> dict[str, list[str]]:
    """Return the texts of errors that the page shows, under the anchors of its sections."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    found: dict[str, list[str]] = {}
    for block in blocks(PAGE):
        heads = [line for line in lines[: block.line] if line.startswith("## ")]
        if block.language == "text":
            found.setdefault(heads[-1].partition("{ #")[2].strip(" }"), []).append(block.text)
    return found


def test_the_page_shows_what_users_see(attempts: Attempts, subtests: pytest.Subtests) -> None:
    """Three dots stand for what differs; the text begins in the first lines of the error."""
    tried, shown = attempts.by_section(), sections()
    assert set(tried) | NOT_TRIED == set(shown)
    for name, calls in tried.items():
        for number, (call, text) in enumerate(zip(calls, shown[name], strict=True)):
            with subtests.test(f"{name} {number}"):
                with pytest.raises(Exception, match=r".+") as error:
                    call()
                pattern = re.escape(" ".join(text.split())).replace(re.escape("..."), ".*")
                whole = str(error.value)
                assert re.search(pattern, " ".join(whole.split())), whole
                assert whole.partition("leasehold.")[0].count("\n") <= 1, whole
