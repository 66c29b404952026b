"""Small workloads, each of which a bug of :mod:`proof.bugs` does something wrong in.

They run against a server in this process with a clock that only moves when told, so that each
takes a moment and always does the same. What a call answers does not matter here: only what is in
the log, and in the queues, at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from azure.storage.queue import QueueClient

from leasehold.client import Client
from leasehold.client.errors import LeaseholdClientError
from leasehold.client.models import Exemption
from leasehold.events.check import Checker, Report, Rule
from leasehold.events.check_input import compare, found_in_queue, rows_of
from leasehold.testing import InProcessServer

QUEUE: Final = "work"
_LEASE_S: Final = 30
_STATES: Final = ("visible", "leased", "delayed", "deferred", "expired")


class Scene(NamedTuple):
    """A server with a queue."""

    server: InProcessServer
    client: Client

    @property
    def queue(self) -> Any:
        """The queue."""
        return self.client.queue(QUEUE)

    def put(self, many: int = 1, **how: Any) -> None:
        """Put some messages."""
        for number in range(many):
            self.queue.put(f"m{number}", **how)

    def take(self, many: int = 1, lease_s: int = _LEASE_S, **how: Any) -> list[Any]:
        """Receive some."""
        taken: list[Any] = self.queue.receive(many, visibility_timeout_s=lease_s, **how)
        return taken


@contextlib.contextmanager
def tolerant() -> Iterator[None]:
    """Go on where a right server refuses what a wrong one does."""
    with contextlib.suppress(LeaseholdClientError, IndexError):
        yield


def leases(scene: Scene) -> None:
    """Two workers, and the first one is slow: a lease runs out, and both do something."""
    scene.put(3)
    first = scene.take(3, 10)
    scene.server.advance(4)
    scene.take(3)
    scene.server.advance(2)
    scene.take(3, 10)
    scene.server.advance(20)
    again = scene.take(3)
    with tolerant():
        scene.queue.complete(first[0])
    with tolerant():
        scene.queue.renew(first[1], 60)
    for message in again:
        with tolerant():
            scene.queue.complete(message)
    scene.server.advance(40)
    for message in scene.take(3):
        scene.queue.complete(message)


def givings_back(scene: Scene) -> None:
    """Messages are given back, and whoever did that acts once more."""
    scene.put(4)
    one, two, three, four = scene.take(4)
    for message in (one, two, three):
        scene.queue.release(message, outcome="failed", delay_s=5)
    with tolerant():
        scene.queue.renew(one, 60)
    with tolerant():
        scene.queue.complete(two)
    scene.queue.complete(four)
    scene.server.advance(120)
    for message in scene.take(4):
        scene.queue.complete(message)


def renewals(scene: Scene) -> None:
    """A lease is renewed, and then renewed with the newest receipt again."""
    scene.put()
    (message,) = scene.take()
    renewed = scene.queue.renew(message, 60)
    scene.server.advance(1)
    scene.queue.complete(scene.queue.renew(renewed, 60))


def delays(scene: Scene) -> None:
    """A message has a delay, and somebody asks before it is over."""
    scene.put(delay_s=60)
    scene.server.advance(1)
    scene.take()
    scene.server.advance(90)
    for message in scene.take():
        scene.queue.complete(message)


def lapses(scene: Scene) -> None:
    """A lease runs out, and nobody comes back for a while."""
    scene.put(2)
    scene.take(2, 10)
    scene.server.advance(60)
    for message in scene.take(1):
        scene.queue.complete(message)
    scene.take(1)


def completes(scene: Scene) -> None:
    """Messages are completed, one by one and together, and more are asked for."""
    scene.put(20)
    scene.queue.complete_many(scene.take(19))
    scene.queue.complete(scene.take()[0])
    scene.server.advance(120)
    scene.take(20)


def claims(scene: Scene) -> None:
    """A claim is read twice, and settled twice."""
    stream = scene.queue.stream("s")
    stream.attach()
    scene.put(6)
    stream.open(1, limit=3, lease_s=60)
    scene.server.advance(2)
    stream.open(1, limit=3, lease_s=60)
    scene.server.advance(2)
    stream.settle(1)
    with tolerant():
        stream.settle(1)
    scene.server.advance(120)
    for message in scene.take(6):
        scene.queue.complete(message)


def exemptions(scene: Scene) -> None:
    """A member of a claim is exempted when it is settled."""
    stream = scene.queue.stream("s")
    stream.attach()
    scene.put(3)
    stream.open(1, limit=3, lease_s=60)
    spared = next(iter(stream.read(1)))
    stream.settle(1, exemptions=[Exemption(1, spared.id, "failed")])


def transactions(scene: Scene) -> None:
    """Messages are staged, somebody looks for some, and then they are published."""
    transaction = scene.client.transaction("t")
    transaction.stage(["a", "b", "c"], queue=QUEUE)
    scene.server.advance(1)
    scene.take(3)
    with tolerant():
        transaction.publish()
    scene.server.advance(60)
    with tolerant():
        scene.queue.complete_many(scene.take(3))


def sessions(scene: Scene) -> None:
    """A worker falls silent, another says good-bye, and both leave work behind."""
    silent = scene.client.session("silent", timeout_s=5, heartbeat=None).open()
    scene.put(4)
    scene.take(2, 3_600, session=silent)
    for _ in range(30):
        scene.server.advance(5)
        scene.put()
    with tolerant():
        scene.take(1, 3_600, session=silent.id)


def groups(scene: Scene) -> None:
    """Of ordered groups some messages each, and more is asked for than may be given."""
    scene.queue.update(settings={"groups": {"order": "fifo"}})
    for number in range(4):
        scene.queue.put(str(number), group_id="a")
        scene.server.advance(1)
    (first,) = scene.take(1)
    scene.server.advance(1)
    scene.put(group_id="a")  # whoever arrives has the group looked at again
    scene.take(3)
    scene.server.advance(1)
    with tolerant():
        scene.queue.complete(first)
    scene.take(1)


def caps(scene: Scene) -> None:
    """Groups may have two messages in flight each, and more is asked for."""
    scene.queue.update(settings={"groups": {"max_in_flight": 2}})
    scene.put(5, group_id="a")
    scene.server.advance(1)
    for _ in range(4):
        scene.take(1)
        scene.server.advance(1)


def poison(scene: Scene) -> None:
    """A message lapses more often than it may be delivered."""
    scene.queue.update(settings={"failure_policy": {"max_deliveries": 2}})
    scene.put()
    for _ in range(4):
        scene.take(1, 5)
        scene.server.advance(10)


def expiry(scene: Scene) -> None:
    """A message expires, and somebody asks for it."""
    scene.put(time_to_live_s=10)
    scene.server.advance(20)
    scene.take()


WORK: Final[dict[str, Callable[[Scene], None]]] = {
    "two-leases": leases,
    "stale-complete": givings_back,
    "stale-renew": givings_back,
    "receipt-kept": renewals,
    "early-delayed": delays,
    "early-lapse": leases,
    "lost-on-release": givings_back,
    "lost-on-lapse": lapses,
    "complete-kept": completes,
    "fence-stays": lapses,
    "claim-changed": claims,
    "settled-twice": claims,
    "exemption-lost": exemptions,
    "staged-visible": transactions,
    "staged-lost": transactions,
    "session-kept": sessions,
    "session-stale": sessions,
    "count-off": completes,
    "group-overtaken": groups,
    "cap-exceeded": caps,
    "poison-late": poison,
    "expired-delivered": expiry,
}
"""By bug: the workload that shows it."""


class Seen(NamedTuple):
    """What was found after a workload."""

    log: Report
    """From the log alone."""
    with_queues: Report
    """With what the queues say they have."""


def play(work: Callable[[Scene], None], store: str = "sqlite") -> Seen:
    """Run a workload against a server of its own, and check its log, alone and with its queues.

    A server that breaks down under its bug is judged by the log up to there.
    """
    with InProcessServer(store=store) as server, server.client() as client:
        client.queue(QUEUE).create()
        scene = Scene(server, client)
        with contextlib.suppress(LeaseholdClientError):
            work(scene)
        # The clock stands, so nothing happens while this looks.
        events = list(rows_of(client.events(0), client.account))
        alone, both = Checker(), Checker()
        alone.feed(events)
        both.feed(events)
        log, report = alone.end(), both.end()
        for info in client.list_queues(counts=True):
            place = client.account, info.name
            ids = both.live_ids(place)
            views = list(client.queue(info.name).inspect(states=_STATES, body=False))
            expired = {view.id for view in views if view.state == "expired"}
            live = {view.id for view in views} - expired
            found_in_queue(both, place, compare(ids, live, expired))
            told = {"the Azure face": _azure_count(server, info.name)}
            if info.counts is not None and not info.counts.expired:
                told["the native API"] = info.counts.total
            for who, many in told.items():
                if many != report.counts.get(place):
                    sentence = f"{who} says {many} messages, the log {report.counts.get(place)}"
                    found_in_queue(both, place, [(Rule.EXACT_COUNT, None, sentence)])
        return Seen(log, report)


def _azure_count(server: InProcessServer, name: str) -> int:
    """Return the count that a queue keeps of itself."""
    text = server.connection_string
    with QueueClient.from_connection_string(text, name) as queue:
        return int(queue.get_queue_properties().approximate_message_count or 0)
