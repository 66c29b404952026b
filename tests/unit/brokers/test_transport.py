"""The transport on a server in this process, whose clock the test moves."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Message, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError
from kombu.transport import TRANSPORT_ALIASES

import leasehold.brokers.kombu
from leasehold.brokers.kombu.transport import client_for
from leasehold.client import Client
from leasehold.testing import InProcessServer
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """Give a server that all tests share; each has queues of its own."""
    with InProcessServer(clock="system") as made:
        yield made


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Name of the test, for queues of its own."""
    return f"{request.node.name.removeprefix('test_').replace('_', '-')}-"


def connect(server: InProcessServer, prefix: str, **options: Any) -> Connection:
    """Return a connection."""
    options |= {"connection_string": server.connection_string, "queue_name_prefix": prefix}
    return Connection("leasehold://", transport_options=options)


@pytest.fixture
def connection(server: InProcessServer, prefix: str) -> Iterator[Connection]:
    """Give a connection."""
    with connect(server, prefix) as made:
        yield made


def drain(connection: Connection, got: list[Message], count: int) -> list[Message]:
    """Take so many messages in all."""
    while len(got) < count:
        connection.drain_events(timeout=PATIENCE_S)
    return got


def test_the_scheme_is_known() -> None:
    """By the entry point, once kombu has loaded its serializers."""
    assert (
        TRANSPORT_ALIASES[leasehold.brokers.kombu.SCHEME]
        == "leasehold.brokers.kombu.transport:Transport"
    )
    encode, decode, _, _ = leasehold.brokers.kombu.SERIALIZER
    assert decode(encode({"a": 1})) == {"a": 1}


@pytest.mark.parametrize(
    ("url", "server_url", "account"),
    [
        ("leasehold://", "http://127.0.0.1:10001", "devstoreaccount1"),
        ("leasehold://host", "http://host:10001", "devstoreaccount1"),
        ("leasehold://shop:a2V5@host:7", "http://host:7", "shop"),
        ("leasehold+http://shop:a2V5@host:7", "http://host:7", "shop"),
        ("leasehold+https://shop:a2V5%2FQ%3D%3D@host", "https://host:10001", "shop"),
    ],
)
def test_addresses(
    monkeypatch: pytest.MonkeyPatch, url: str, server_url: str, account: str
) -> None:
    """What they lead to; the key is not shown."""
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    made = Connection(url)
    with client_for(made) as client:
        assert (client.url, client.account) == (server_url, account)
    assert "a2V5" not in made.as_uri()


def test_an_unreachable_server_is_an_operational_error(prefix: str) -> None:
    """When the connection is made, not later."""
    made = Connection("leasehold://127.0.0.1:9")
    with pytest.raises(OperationalError):
        made.ensure_connection(max_retries=1, interval_start=0)


def test_unacknowledged_messages_come_back_when_the_connection_is_closed(
    server: InProcessServer, client: Client, prefix: str
) -> None:
    """At once, and without counting as failed."""
    with connect(server, prefix) as first:
        queue = first.SimpleQueue("q")
        queue.put("a")
        queue.get(timeout=PATIENCE_S)
        assert client.queue(f"{prefix}q").counts().leased == 1
        queue.close()
    (found,) = client.queue(f"{prefix}q").inspect()
    assert (found.state, found.failures) == ("visible", 0)


def test_prefetch_bounds_what_is_leased(
    connection: Connection, client: Client, prefix: str
) -> None:
    """Over all queues of a channel."""
    queues = [Queue(name, routing_key=name) for name in ("one", "two")]
    channel = connection.channel()
    producer = Producer(channel)
    for queue in queues:
        for number in range(5):
            producer.publish(number, routing_key=queue.name, declare=[queue])
    got: list[Message] = []
    with Consumer(channel, queues, on_message=got.append, prefetch_count=3):
        drain(connection, got, 3)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.3)
        leased = [client.queue(prefix + each.name).counts().leased for each in queues]
        assert sum(leased) == 3
        for message in got:
            message.ack()
        drain(connection, got, 6)


def test_a_fanout_reaches_all_and_a_topic_those_who_asked(
    server: InProcessServer, connection: Connection, prefix: str
) -> None:
    """Bindings are those of all connections."""
    fanout = Exchange("all", type="fanout")
    topic = Exchange("some", type="topic")
    with connect(server, prefix) as publisher:
        got: list[tuple[str, object]] = []

        def taken(message: Message) -> None:
            info = message.delivery_info
            got.append((info["exchange"], info["routing_key"]))
            message.ack()

        queues = [
            Queue("f1", fanout, auto_delete=True),
            Queue("f2", fanout, auto_delete=True),
            Queue("t1", topic, routing_key="a.*", auto_delete=True),
        ]
        with connection.Consumer(queues, on_message=taken):
            with publisher.Producer() as producer:
                producer.publish("x", exchange=fanout, declare=[fanout])
                producer.publish("y", exchange=topic, routing_key="a.b", declare=[topic])
                producer.publish("z", exchange=topic, routing_key="b.b")
            while len(got) < 3:
                connection.drain_events(timeout=PATIENCE_S)
        assert sorted(got) == [("all", ""), ("all", ""), ("some", "a.b")]


def test_queues_of_a_connection_go_with_it(
    server: InProcessServer, client: Client, prefix: str
) -> None:
    """Those that are exclusive or delete themselves; also when it has just disappeared."""
    with connect(server, prefix) as first:
        channel = first.channel()
        Queue("kept", channel=channel).declare()
        Queue("own", exclusive=True, channel=channel).declare()
        assert {each.name for each in client.list_queues(prefix)} == {
            f"{prefix}kept",
            f"{prefix}own",
        }
    assert [each.name for each in client.list_queues(prefix)] == [f"{prefix}kept"]
    with connect(server, prefix) as second:
        Queue("own", auto_delete=True, channel=second.channel()).declare()
        session = second.transport.link.session.id
        client.end_session(session)
        with connect(server, prefix) as third:
            Queue("mine", exclusive=True, channel=third.channel()).declare()
            names = {each.name for each in client.list_queues(prefix)}
            assert names == {f"{prefix}kept", f"{prefix}mine"}


def test_a_purge_leaves_what_is_worked_on(
    connection: Connection, client: Client, prefix: str
) -> None:
    """It takes what waits, also for its time."""
    with connection.SimpleQueue("q") as queue:
        for number in range(3):
            queue.put(number)
        message = queue.get_nowait()
        queue.put(3, headers={"eta": "2999-01-01T00:00:00Z"})
        assert client.queue(f"{prefix}q").counts().delayed == 1
        assert queue.clear() == 3
        message.ack()
        assert len(queue) == 0


def test_a_queue_that_was_declared_is_created_again(
    connection: Connection, client: Client, prefix: str
) -> None:
    """A message for one that was not is dropped, as in AMQP."""
    channel = connection.channel()
    producer = Producer(channel)
    producer.publish("a", routing_key="q", declare=[Queue("q", routing_key="q")])
    client.queue(f"{prefix}q").delete()
    producer.publish("b", routing_key="q")
    producer.publish("c", routing_key="nobody")
    assert client.queue(f"{prefix}q").counts().visible == 1
    assert [each.name for each in client.list_queues(prefix)] == [f"{prefix}q"]


def test_a_passive_declaration_creates_nothing(connection: Connection) -> None:
    """It is refused if there is no such queue."""
    channel = connection.channel()
    with pytest.raises(ChannelError):
        channel.queue_declare("nobody", passive=True)
    channel.queue_declare("q")
    assert channel.queue_declare("q", passive=True).message_count == 0


def test_settings_of_queues_that_are_created(
    server: InProcessServer, client: Client, prefix: str
) -> None:
    """Queues that are there keep theirs."""
    client.queue(f"{prefix}old").create()
    policy = {"failure_policy": {"max_failures": 1}}
    with connect(server, prefix, queue_settings=policy) as made:
        for name in ("old", "new"):
            with made.SimpleQueue(name) as queue:
                queue.put("a")
        queue = made.SimpleQueue("new")
        queue.get(timeout=PATIENCE_S).reject(requeue=True)
        queue.close()
    assert client.queue(f"{prefix}old").info().settings.failure_policy is None
    assert client.queue(f"{prefix}new-poison").counts().visible == 1, "its budget is used up"


def test_a_rejected_message_is_set_aside(
    connection: Connection, client: Client, prefix: str
) -> None:
    """Without requeue, whatever the budget."""
    with connection.SimpleQueue("q") as queue:
        queue.put("a")
        queue.get_nowait().reject()
        with pytest.raises(queue.Empty):
            queue.get_nowait()
    assert client.queue(f"{prefix}q-poison").counts().visible == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_has_a_link_of_its_own(connection: Connection, client: Client, prefix: str) -> None:
    """And closing it there leaves the session of the parent alone."""
    with connection.SimpleQueue("q") as queue:
        queue.put("a")
        message = queue.get(timeout=PATIENCE_S)
        parent = connection.transport.link
        child = os.fork()
        if child == 0:
            try:
                done = connection.transport.link is not parent
                with connection.clone() as own:
                    own.SimpleQueue("other").put("b")
                connection.collect()
                os._exit(0 if done else 1)
            except BaseException:  # noqa: BLE001 - it must not go on as a second pytest
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert client.get_session(parent.session.id).state == "live"
        message.ack()
        assert len(queue) == 0
    assert client.queue(f"{prefix}other").counts().visible == 1
