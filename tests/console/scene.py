"""What there is to see: the queues of a shop, with all that a console shows of them.

The same scene serves the tests of whole pages and the pictures in the documentation.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from leasehold.client.models import ErrorReport, NewMessage

if TYPE_CHECKING:
    from leasehold.client import Client

ORDERS: Final = {
    "failure_policy": {"max_failures": 2},
    "visibility_timeout_s": 600,
    "timeouts_by_type": {"refund": {"visibility_timeout_s": 60}},
}
"""Settings of the queue of orders."""
QUIET: Final = ("emails", "exports", "invoices", "refunds", "search-index", "thumbnails")


@dataclass(slots=True)
class Scene:
    """What was made, for tests that look for it."""

    holders: dict[str, str] = field(default_factory=dict)
    """Ids of sessions by holder."""
    ids: dict[str, str] = field(default_factory=dict)
    """Ids of messages by what they are."""


def order(number: int) -> NewMessage:
    """Return a message about an order."""
    tenants = ("acme", "acme", "acme", "globex", "initech", "umbrella")
    tenant = tenants[number % len(tenants)]
    body = {"order": number, "customer": tenant, "items": number % 5 + 1, "total": number * 7 % 900}
    return NewMessage(
        json.dumps(body),
        type="order.placed" if number % 4 else "order.changed",
        properties={"region": "eu" if number % 2 else "us", "tenant": tenant},
    )


@contextlib.contextmanager
def shop(client: Client, *, pause: Callable[[], None] = lambda: None) -> Iterator[Scene]:
    """Fill a server; sessions live as long as the context.

    Args:
        client: Of the server, which has no queues yet.
        pause: Called now and then: for pictures, time passes there.
    """
    scene = Scene()
    with contextlib.ExitStack() as open_things:
        _fill_quiet(client)
        _fill_orders(client, scene, open_things, pause)
        _fill_tenants(client, scene)
        _fill_videos(client, scene, open_things)
        _fill_stream(client)
        yield scene


def _fill_quiet(client: Client) -> None:
    for place, name in enumerate(QUIET):
        queue = client.queue(name)
        queue.create()
        queue.put_many([f"{name} {number}" for number in range(place * 3)])
    client.queue("refunds").pause(reason="the bank is closed until Monday")


def _fill_orders(
    client: Client, scene: Scene, open_things: contextlib.ExitStack, pause: Callable[[], None]
) -> None:
    """Orders: some held by workers, some failed, some on their way to another try."""
    queue = client.queue("orders")
    queue.create(settings=ORDERS)
    sent = queue.put_many([order(number) for number in range(4700, 4760)])
    scene.ids |= {f"order {4700 + place}": _id(each) for place, each in enumerate(sent)}
    for holder, count in (("worker-eu-1", 12), ("worker-eu-2", 3), ("worker-us-1", 5)):
        session = client.session(holder, timeout_s=3600, heartbeat=None)
        open_things.enter_context(session)
        scene.holders[holder] = session.id
        held = queue.receive(count, session=session)
        for place, message in enumerate(held):
            session.progress(message, place / count, f"step {place + 1} of {count}")
        session.beat()
        pause()
    for text, count in (("timeout calling payments", 14), ("no such customer", 3)):
        for message in queue.receive(count, holder="worker-us-2"):
            queue.bury(message, text)
    pause()
    for message in queue.receive(4, holder="worker-us-2"):
        report = ErrorReport(text="503 from stock", type="StockError", fingerprint="a1b2c3")
        queue.release(message, outcome="failed", delay_s=900, error=report)
        scene.ids["retried"] = message.id
    for message in queue.receive(5, holder="worker-us-2"):
        queue.complete(message)
        scene.ids["completed"] = message.id
    scene.ids["delayed"] = _id(queue.put("remind the customer", delay_s=7_200, priority=3))
    scene.ids["binary"] = _id(queue.put(bytes(range(256)), type="blob"))


def _fill_tenants(client: Client, scene: Scene) -> None:
    """Messages in groups, one of which has by far the most."""
    queue = client.queue("reports")
    queue.create(settings={"groups": {"order": "fifo"}})
    wanted = {"acme": 120, "globex": 6, "initech": 4, "umbrella": 2}
    queue.put_many(
        NewMessage(f"report {number} of {tenant}", group_id=tenant)
        for tenant, count in wanted.items()
        for number in range(count)
    )
    queue.halt_group("umbrella", "asked for by the customer")


def _fill_videos(client: Client, scene: Scene, open_things: contextlib.ExitStack) -> None:
    """One worker that is alive and gets nowhere."""
    queue = client.queue("videos")
    queue.create(settings={"visibility_timeout_s": 3600})
    queue.put_many([f'{{"video": "clip-{number}.mp4"}}' for number in range(9)])
    session = client.session("encoder-7", timeout_s=3600, heartbeat=None)
    open_things.enter_context(session)
    scene.holders["encoder-7"] = session.id
    (message,) = queue.receive(1, session=session)
    session.progress(message, 0.35, "pass 1 of 2")
    session.beat()
    scene.ids["stuck"] = message.id


def _fill_stream(client: Client) -> None:
    """A consumer with two claims open, and a transaction that is not published."""
    queue = client.queue("clicks")
    queue.create()
    queue.put_many([f"click {number}" for number in range(500)])
    stream = queue.stream("hourly-counts")
    stream.attach()
    stream.open(1, limit=100, lease_s=3600, holder="executor-1")
    stream.settle(1)
    stream.open(2, limit=150, lease_s=3600, holder="executor-1")
    stream.open(3, limit=50, lease_s=3600, holder="executor-2")
    client.transaction("nightly-export").stage(
        [f"row {number}" for number in range(20)], queue="exports", part="part-0"
    )


def _id(sent: Any) -> str:
    assert hasattr(sent, "id"), sent
    return str(sent.id)


def addresses(scene: Scene) -> dict[str, str]:
    """Return the addresses of all pages of the scene, by a name for each."""
    message = scene.ids
    return {
        "overview": "#/",
        "queue": "#/queues/orders",
        **{
            f"queue-{tab}": f"#/queues/{queue}?tab={tab}"
            for tab, queue in (
                ("messages", "orders"),
                ("groups", "reports"),
                ("streams", "clicks"),
                ("advice", "orders"),
                ("settings", "orders"),
            )
        },
        "message": f"#/messages/orders/{message['order 4700']}",
        "message-held": f"#/messages/videos/{message['stuck']}",
        "message-failed": f"#/messages/orders/{message['retried']}",
        "message-binary": f"#/messages/orders/{message['binary']}",
        "group": "#/groups/reports/acme",
        "workers": "#/workers",
        "worker": f"#/workers/{scene.holders['worker-eu-1']}",
        "streams": "#/streams",
        "stream": "#/streams/clicks/hourly-counts",
        "transactions": "#/transactions",
        "jobs": "#/jobs",
        "events": "#/events",
        "pipelines": "#/pipelines",
        "server": "#/server",
    }
