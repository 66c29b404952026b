"""A mixed workload against real servers: everything that writes into the event log.

What the calls answer is nobody's business here: only the log is judged. Errors are as good as
successes, since a call that gets no answer may have taken effect.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from leasehold.client import Client
from leasehold.client.errors import LeaseholdClientError
from leasehold.client.models import Exemption, NewMessage, Outgoing
from leasehold.client.retries import RetryPolicy
from leasehold.clock import SystemClock

QUEUES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "strict": {"lapsed_receipts": "strict", "failure_policy": {"max_deliveries": 4}},
    "ordered": {"groups": {"order": "fifo", "on_poison": "halt"}},
    "capped": {"groups": {"max_in_flight": 3}, "failure_policy": {"max_failures": 2}},
}
"""By name, with their settings."""
_GROUPS: Final = ("a", "b", "c", "d")
_OUTCOMES: Final = ("failed", "interrupted", "returned", "buried")
_STREAM: Final = "nightly"


def prepare(client: Client) -> None:
    """Make the queues; order, limits and budgets are set afterwards, so that the log tells them."""
    for name, settings in QUEUES.items():
        client.queue(name).create()
        if settings:
            client.queue(name).update(settings=settings)


class Worker(threading.Thread):
    """One client that does things at random until it is told to stop.

    Args:
        url: Connection strings of the servers of one store.
        seed: Of all that it draws.
        stop: When to end.
    """

    def __init__(self, texts: Sequence[str], seed: int, stop: threading.Event) -> None:
        super().__init__(name=f"worker-{seed}", daemon=True)
        self.calls = self.refused = 0
        self.failure: BaseException | None = None
        self._rng = random.Random(seed)
        self._stop_it = stop
        self._seed = seed
        never = RetryPolicy(attempts=1)
        self._clients = [
            Client.from_connection_string(text, retries=never, timeout_s=5) for text in texts
        ]
        self._held: list[tuple[str, Any]] = []
        self._claim = 0
        self._sessions: list[Any] = []
        self._acts: list[tuple[int, Callable[[Client], None]]] = [
            (24, self._put),
            (24, self._receive),
            (24, self._settle),
            (4, self._work_in_session),
            (4, self._transact),
            (3, self._operate),
        ]
        if seed % 4 == 0:  # one consumer of its stream
            self._acts.append((12, self._consume))

    def run(self) -> None:
        """See :class:`threading.Thread`."""
        weights = [weight for weight, _ in self._acts]
        try:
            while not self._stop_it.is_set():
                ((_, act),) = self._rng.choices(self._acts, weights)
                self.calls += 1
                try:
                    act(self._rng.choice(self._clients))
                except LeaseholdClientError:
                    self.refused += 1
                    self._stop_it.wait(0.002)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the thread is told
            self.failure = error
        finally:
            for client in self._clients:
                client.close()

    def _queue(self) -> str:
        return self._rng.choice(tuple(QUEUES))

    def _message(self, queue: str) -> NewMessage:
        rng = self._rng
        return NewMessage(
            "x" * rng.choice((3, 400)),
            delay_s=rng.choice((0, 0, 0, 1)),
            time_to_live_s=rng.choice((3, 600, -1)),
            priority=rng.choice((8, 8, 8, 3)),
            group_id=rng.choice(_GROUPS) if queue in {"ordered", "capped"} else None,
        )

    def _put(self, client: Client) -> None:
        queue = self._queue()
        count = self._rng.randint(1, 8)
        client.queue(queue).put_many([self._message(queue) for _ in range(count)])

    def _receive(self, client: Client) -> None:
        name = self._queue()
        if self._rng.random() < 0.1:
            name = f"{name}-poison"
        lease_s, many = self._rng.choice((1, 1, 2, 20)), self._rng.randint(1, 8)
        taken = client.queue(name).receive(many, visibility_timeout_s=lease_s, holder=self.name)
        self._held += [(name, message) for message in taken]

    def _settle(self, client: Client) -> None:
        rng = self._rng
        for _ in range(min(len(self._held), rng.randint(1, 6))):
            name, message = self._held.pop(rng.randrange(len(self._held)))
            queue, draw = client.queue(name), rng.random()
            if draw < 0.6:
                queue.complete(message)
            elif draw < 0.8:
                outcome, delay_s = rng.choice(_OUTCOMES), rng.choice((None, 1))
                queue.release(message, outcome=outcome, delay_s=delay_s)  # type: ignore[arg-type]
            else:
                self._held.append((name, message))  # the old receipt, too
                renewed = queue.renew(message, rng.choice((0, 1, 5)))
                self._held.append((name, renewed))

    def _work_in_session(self, client: Client) -> None:
        rng = self._rng
        if not self._sessions or rng.random() < 0.2:
            session = client.session(self.name, timeout_s=2, heartbeat=None).open()
            self._sessions.append(session)
        session = rng.choice(self._sessions)
        if rng.random() < 0.3:
            self._sessions.remove(session)  # and its leases end, sooner or later
            if rng.random() < 0.5:
                session.close("enough")
            return
        name = self._queue()
        taken = client.queue(name).receive(3, visibility_timeout_s=60, session=session.id)
        self._held += [(name, message) for message in taken]

    def _transact(self, client: Client) -> None:
        rng = self._rng
        transaction = client.transaction(f"t{self._seed}-{rng.randint(0, 10**9)}")
        for part in rng.choice((("p",), ("p", "q"))):
            queue = self._queue()
            messages = [self._message(queue) for _ in range(rng.randint(1, 5))]
            transaction.stage(messages, queue=queue, part=part)
        draw = rng.random()
        if draw < 0.6:
            transaction.publish()
        elif draw < 0.8:
            transaction.publish(["p"])
        elif draw < 0.9:
            transaction.discard()

    def _consume(self, client: Client) -> None:
        rng = self._rng
        stream = client.queue("plain").stream(f"{_STREAM}{self._seed}")
        info = stream.attach()
        number = info.last_settled + 1
        if stream.open(number, limit=rng.randint(1, 20), lease_s=rng.choice((1, 30))) is None:
            return
        members = list(stream.read(number))
        draw = rng.random()
        if draw < 0.1:
            stream.extend(number, 20)
            stream.open(number, limit=5, lease_s=1, accept_loss=True)
        elif draw < 0.3:
            stream.give_back(number)
            return
        elif draw < 0.4:
            return  # it lapses, and is opened again, or is not
        exemptions = [
            Exemption(number, each.id, rng.choice(_OUTCOMES))
            for each in members[: rng.randint(0, 2)]
        ]
        sends = [Outgoing("sent", queue="strict")] if rng.random() < 0.3 else []
        stream.settle(number, exemptions=exemptions, sends=sends)

    def _operate(self, client: Client) -> None:
        rng = self._rng
        name = self._queue()
        queue = client.queue(name)
        draw = rng.random()
        if draw < 0.1:
            queue.pause(0.05)
        elif draw < 0.15:
            queue.resume()
        elif draw < 0.2:
            queue.update(settings={"failure_policy": {"max_lapses": rng.randint(2, 5)}})
        elif draw < 0.25:
            queue.resume_group(rng.choice(_GROUPS))
        elif draw < 0.35:
            queue.redrive()
        else:
            views, _ = queue.inspect_page(limit=20, body=False)
            if not views:
                return
            view = rng.choice(views)
            acts: list[Callable[[], object]] = [
                lambda: queue.amend(view.id, delay_s=1, priority=4, force=True),
                lambda: queue.remove(view.id, force=rng.random() < 0.5),
                lambda: queue.end_lease(view.id),
                lambda: queue.extend_lease(view.id, 5),
                lambda: queue.cancel(view.id, "stop"),
            ]
            rng.choice(acts)()


def run(texts: Sequence[str], seed: int, seconds: float, workers: int = 4) -> tuple[int, int]:
    """Have workers do things for a while; return how many calls there were, and how many refused.

    Raises:
        RuntimeError: A worker broke down.
    """
    stop = threading.Event()
    crew = [Worker(texts, seed * 100 + number, stop) for number in range(workers)]
    clock = SystemClock()
    until_s = clock.monotonic_s() + seconds
    for worker in crew:
        worker.start()
    with contextlib.suppress(KeyboardInterrupt):
        while clock.monotonic_s() < until_s and all(worker.is_alive() for worker in crew):
            stop.wait(0.1)
    stop.set()
    for worker in crew:
        worker.join(60)
        if worker.failure is not None:
            raise RuntimeError(f"{worker.name} broke down") from worker.failure
    return sum(each.calls for each in crew), sum(each.refused for each in crew)
