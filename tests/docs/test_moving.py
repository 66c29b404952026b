"""The scripts that move messages from other queues, run against those queues where possible."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
import pytest
from kombu import Connection

from leasehold.client import Client, NewMessage, QueueHandle
from leasehold.testing import InProcessServer
from tests.docs.pages import DOCS, blocks
from tests.postgres import shared_cluster
from tests.unit.worker.idempotency.support import redis_server

COUNT: Final = 25
BATCH: Final = 10


def script(page: str, name: str) -> Callable[..., None]:
    """Return a function that a page shows."""
    path = DOCS / "howto" / page
    [text] = [b.text for b in blocks(path) if b.language == "py" and f"def {name}(" in b.text]
    namespace: dict[str, Any] = {"NewMessage": NewMessage}
    exec(compile(text, str(path), "exec"), namespace)
    return namespace[name]  # type: ignore[no-any-return]


@pytest.fixture
def queue() -> Iterator[QueueHandle]:
    """A queue without messages."""
    with (
        InProcessServer() as server,
        Client.from_connection_string(server.connection_string) as client,
    ):
        handle = client.queue("moved")
        handle.create()
        yield handle


class LostAnswer(Exception):
    """Stands for the end of the script right after a batch was stored."""


class DyingQueue:
    """A queue whose sender dies after the second batch."""

    def __init__(self, queue: QueueHandle) -> None:
        self.queue = queue
        self.batches = 0

    def put_many(self, messages: list[NewMessage], *, atomic: bool) -> None:
        """Send them, and die if it was the second time."""
        self.queue.put_many(messages, atomic=atomic)
        self.batches += 1
        if self.batches == 2:
            raise LostAnswer


def bodies(queue: QueueHandle) -> list[str]:
    """Return the bodies of all messages, in the order in which they are received."""
    return [message.text for message in queue.receive(1000)]


def test_items_of_a_redis_list(queue: QueueHandle) -> None:
    """All of them come, in order, equal ones too, and none twice after a crash."""
    redis = pytest.importorskip("redis")
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server in the PATH")
    move = script("from-redis-lists.md", "move_list")
    items = [f"job {number % 7}" for number in range(COUNT)]
    with redis_server() as url, redis.Redis.from_url(url) as store:
        for item in items:
            store.lpush("jobs", item)
        with pytest.raises(LostAnswer):
            move(store, "jobs", DyingQueue(queue), batch=BATCH)
        move(store, "jobs", queue, batch=BATCH)
        assert store.keys("jobs*") == [b"jobs:moved-batches"]
    assert bodies(queue) == items


def pgmq_script() -> Any:
    """Return the script that makes pgmq's functions, which its client brings."""
    return pytest.importorskip("pgmq.install").get_embedded_install_sql()


@pytest.fixture
def database() -> Iterator[psycopg.Connection[Any]]:
    """A database with pgmq's functions, which is dropped afterwards."""
    url = shared_cluster().url
    with psycopg.connect(url, autocommit=True) as housekeeping:
        housekeeping.execute("CREATE DATABASE moving")
        try:
            with psycopg.connect(url.replace("/postgres?", "/moving?")) as connection:
                connection.execute(pgmq_script())
                connection.commit()
                yield connection
        finally:
            housekeeping.execute("DROP DATABASE moving WITH (FORCE)")


def test_messages_of_pgmq(queue: QueueHandle, database: psycopg.Connection[Any]) -> None:
    """Bodies, headers, groups and delays come over, once after a crash, and none is left."""
    move = script("from-pgmq.md", "move_pgmq")
    database.execute("SELECT pgmq.create('orders')")
    send = "SELECT pgmq.send('orders', %s::jsonb, %s::jsonb, %s)"
    for number in range(COUNT):
        headers = {"x-pgmq-group": f"g{number % 2}", "attempt": number}
        body = json.dumps({"order": number})
        database.execute(send, [body, json.dumps(headers), 3600 if number == COUNT - 1 else 0])
    database.commit()
    with pytest.raises(LostAnswer):
        move(database, "orders", DyingQueue(queue), batch=BATCH)
    move(database, "orders", queue, batch=BATCH)
    [left] = database.execute("SELECT count(*) FROM pgmq.q_orders").fetchone() or [None]
    assert left == 0
    counts = queue.counts()
    assert (counts.visible, counts.delayed) == (COUNT - 1, 1)
    messages = queue.receive(1000)
    assert [message.json()["order"] for message in messages] == list(range(COUNT - 1))
    assert (messages[3].group_id, messages[3].properties["attempt"]) == ("g1", "3")


def test_calls_of_pgmq_are_named_as_its_client_names_them() -> None:
    """The left column of the table exists."""
    page = (DOCS / "howto" / "from-pgmq.md").read_text(encoding="utf-8")
    functions = pgmq_script()
    for name in (
        *("create", "create_partitioned", "create_unlogged", "drop_queue", "purge_queue", "send"),
        *("send_batch", "read", "read_with_poll", "pop", "set_vt", "delete", "archive", "metrics"),
        *("metrics_all", "read_grouped", "read_grouped_rr", "enable_notify_insert"),
        *("send_topic", "bind_topic"),
    ):
        assert f"`{name}" in page, name
        assert f"FUNCTION pgmq.{name}(" in functions or f'FUNCTION pgmq."{name}"(' in functions
    assert hasattr(pytest.importorskip("pgmq").PGMQueue, "read_with_poll")


def test_messages_of_rabbitmq(queue: QueueHandle) -> None:
    """Bodies, headers, types and priorities come over; acknowledged only when they are stored."""
    move = script("from-rabbitmq.md", "move_rabbitmq")
    with Connection("memory://") as connection:
        channel = connection.channel()
        channel.queue_declare("tasks")
        for number in range(COUNT):
            properties = {"message_id": f"m{number}", "type": "resize", "priority": number % 3}
            prepared = channel.prepare_message(
                f"task {number}", headers={"size": 5, "x-death": 1}, properties=properties
            )
            channel.basic_publish(prepared, exchange="", routing_key="tasks")
        with pytest.raises(LostAnswer):
            move("memory://", "tasks", DyingQueue(queue), batch=BATCH)
        move("memory://", "tasks", queue, batch=BATCH)
        assert channel.basic_get("tasks") is None
    messages = queue.receive(1000)
    assert sorted(m.text for m in messages) == sorted(f"task {n}" for n in range(COUNT))
    urgent = messages[0]
    assert (urgent.priority, urgent.type, urgent.properties) == (6, "resize", {"size": "5"})
