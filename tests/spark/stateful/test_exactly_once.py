"""The stateful examples on a real Spark: each result once, whatever fails on the way."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from examples.stateful import __main__ as example
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from leasehold.client import Client, QueueHandle
from leasehold.client.errors import StreamNotFound
from leasehold.testing import InProcessServer

PATIENCE_S: Final = 900
"""A start takes seconds, and minutes on a machine with much else to do."""
KILLS: Final = 2
MINUTE_MS: Final = 60_000
DAY: Final = "2026-02-03"
PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"


def at(minute: int, day: str = DAY) -> str:
    """Return a time of a day, as bodies have it."""
    return f"{day}T{minute // 60:02}:{minute % 60:02}:00Z"


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of a server whose clock stands still: no lease ends by itself."""
    with InProcessServer() as server, server.client() as made:
        os.environ["QUEUES"] = server.connection_string
        for name in ("clicks", "visits", "orders", "payments"):
            made.queue(name).create()
        yield made
        del os.environ["QUEUES"]


def put(queue: QueueHandle, *bodies: dict[str, Any]) -> None:
    queue.put_many([json.dumps(body) for body in bodies])


# --- in this process ------------------------------------------------------------------------------


@pytest.mark.long
def test_a_batch_that_is_repeated_finds_the_state_as_it_was(
    spark: SparkSession, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query fails when its second micro-batch is written: no pair is lost, none is told twice."""
    # Python workers of this session are older than the variable.
    monkeypatch.setattr(example, "CONNECTION", {"connectionString": os.environ["QUEUES"]})
    orders, paid = client.queue("orders"), client.queue("payments")
    table = tmp_path / "table"
    failing = [1]

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{table}/batch={number}")
        if number in failing:
            failing.remove(number)
            raise RuntimeError("the driver dies here")

    def run() -> None:
        query = example.payments(spark).writeStream.foreachBatch(write)
        query.option("checkpointLocation", str(tmp_path / "c")).trigger(
            availableNow=True
        ).start().awaitTermination(PATIENCE_S)

    spark.conf.set(PROVIDER, example.ROCKSDB)
    try:
        put(orders, *({"order_id": str(n), "amount": n, "at": at(n)} for n in range(4)))
        run()
        put(paid, *({"order_id": str(n), "amount": n, "at": at(n + 5)} for n in range(3)))
        with pytest.raises(StreamingQueryException, match="the driver dies here"):
            run()
        run()
    finally:
        spark.conf.unset(PROVIDER)
    rows = spark.read.parquet(str(table)).collect()
    assert sorted((row.order_id, row.status) for row in rows) == [
        (str(number), "paid") for number in range(3)
    ]
    assert orders.counts().total + paid.counts().total == 0


# --- in a process that is killed ------------------------------------------------------------------


def unique(client: Client, part: int) -> Counter[str]:
    """Send ten clicks, each three times, of which half came in the part before."""
    ids = [f"click-{number}" for number in range(5 * part, 5 * part + 10)]
    put(client.queue("clicks"), *({"id": each, "page": "/"} for each in ids * 3))
    return Counter(json.dumps({"id": each, "page": "/"}) for each in ids[0 if not part else 5 :])


def sessions(client: Client, part: int) -> Counter[str]:
    """Send a session for each of five users; the last part ends all."""
    first = part * 60
    times = [first, first + 10, first + 20]
    for minute in times:
        put(
            client.queue("visits"),
            *({"user": f"user-{number}", "at": at(minute)} for number in range(5)),
        )
    if part == KILLS:
        put(client.queue("visits"), {"user": "last", "at": at(0, "2026-02-05")})
    begin_ms = 1_770_076_800_000 + first * MINUTE_MS  # 2026-02-03
    told = {"first_ms": begin_ms, "last_ms": begin_ms + 20 * MINUTE_MS, "events": 3}
    return Counter(json.dumps({"user": f"user-{number}", **told}) for number in range(5))


def payments(client: Client, part: int) -> Counter[str]:
    """Send ten orders and the payments of nine; the last part has the time pass."""
    ids = [f"{part}-{number}" for number in range(10)]
    orders, paid = client.queue("orders"), client.queue("payments")
    put(orders, *({"order_id": each, "amount": 5, "at": at(part)} for each in ids))
    put(paid, *({"order_id": each, "amount": 5, "at": at(part + 1)} for each in ids[1:]))
    if part == KILLS:
        for queue, name in ((orders, "late-order"), (paid, "late-payment")):
            put(queue, {"order_id": name, "amount": 1, "at": at(0, "2026-02-05")})
    told = [{"order_id": each, "status": "paid", "ordered": 5.0, "paid": 5.0} for each in ids[1:]]
    unpaid = {"order_id": ids[0], "status": "unpaid", "ordered": 5.0}
    return Counter(json.dumps(each) for each in (*told, unpaid))


SENDING: Final[dict[str, tuple[Callable[[Client, int], Counter[str]], tuple[str, ...]]]] = {
    "unique": (unique, ("clicks",)),
    "sessions": (sessions, ("visits",)),
    "payments": (payments, ("orders", "payments")),
}


class Supervised:
    """A driver that is started again when it ends by itself, as a supervisor would.

    On a machine with too much to do, Spark gives a Python worker up that does not answer in time.
    """

    RESTARTS: Final = 5

    def __init__(self, *command: str) -> None:
        self._command = command
        self._left = self.RESTARTS
        self._process = self._begin()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds that the driver brings about."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, what
            if self._process.poll() is not None:
                assert self._left, "the driver ends again and again"
                self._left -= 1
                self._process = self._begin()
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it with its Java and its Python workers, as a power cut would."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            for each in (root, *root.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        self._process.wait()

    def _begin(self) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "DRIVER_MEMORY": "512m"}
        return subprocess.Popen(self._command, env=environ, cwd=Path(__file__).parents[3])


def last_claim(queue: QueueHandle) -> int:
    """Return the number of the last claim of the example's stream."""
    try:
        stream = queue.stream("stateful").get()
    except StreamNotFound:
        return 0
    return max([stream.last_settled, *(claim.number for claim in stream.claims)])


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE_S)
@pytest.mark.parametrize("name", SENDING)
def test_a_driver_that_is_killed_in_every_batch(client: Client, tmp_path: Path, name: str) -> None:
    """Again and again in the middle of a micro-batch: the results are those of a run in peace."""
    send, queues = SENDING[name]
    results = client.queue(f"{name}-results")
    results.create()
    command = (sys.executable, "-m", "examples.stateful", name, str(tmp_path / "checkpoint"))
    expected: Counter[str] = Counter()

    def leased() -> int:
        return sum(client.queue(each).counts().leased for each in queues)

    def told() -> Counter[str]:
        return Counter(message.text for message in results.inspect())

    def begun() -> int:
        """Return how many micro-batches have begun, of all queues together."""
        return sum(last_claim(client.queue(each)) for each in queues)

    def more_than(before: int) -> Callable[[], bool]:
        return lambda: begun() > before

    for part in range(KILLS):
        expected += send(client, part)
        before = begun()
        driver = Supervised(*command)
        try:
            driver.until(more_than(before), "no micro-batch begins")
        finally:
            driver.kill()
    expected += send(client, KILLS)
    driver = Supervised(*command)
    try:
        driver.until(
            lambda: told().total() >= expected.total() and not leased(), "results are missing"
        )
    finally:
        driver.kill()
    assert told() == expected
    assert sum(client.queue(each).counts().total for each in queues) == 0
