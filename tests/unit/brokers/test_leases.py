"""Leases of a connection, with a client that the test plays."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, cast

import pytest

from leasehold.brokers.leases import Held, Inbox, LeaseKeeper, Prefetch, Receiver
from leasehold.client import Client, ConnectionFailed
from leasehold.client.errors import (
    LeaseLost,
    MessageNotFound,
    Problem,
    QueueNotFound,
    ServerProblem,
)
from leasehold.client.models import ReceivedMessage
from leasehold.testing import ManualClock
from tests.patience import PATIENCE_S


def message(name: str, receipt: str = "r0", fence: int = 1) -> ReceivedMessage:
    """Return a message on a lease."""
    return ReceivedMessage(id=name, receipt=receipt, fence=fence, body=b"")


class PlayedQueue:
    """Notes what it is asked, and answers as it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.answers: list[Any] = []
        self.renewal: ServerProblem | None = None
        """What renewals are answered with, if they are refused."""
        self.called = threading.Condition()

    def queue(self, _name: str) -> PlayedQueue:
        return self

    def complete_many(self, messages: Iterable[ReceivedMessage]) -> list[object]:
        return self._note("complete", messages)

    def release_many(self, messages: Iterable[ReceivedMessage], *, outcome: str) -> list[object]:
        return self._note(outcome, messages)

    def renew_many(self, messages: Iterable[ReceivedMessage], length_s: int) -> list[object]:
        kept = list(messages)
        answers = self._note(f"renew {length_s}", kept, self.renewal)
        return [
            message(each.id, f"{each.receipt}+") if answer is None else answer
            for each, answer in zip(kept, answers, strict=True)
        ]

    def wait_for(self, count: int) -> list[tuple[str, list[str]]]:
        """Wait for so many calls in all."""
        with self.called:
            assert self.called.wait_for(lambda: len(self.calls) >= count, PATIENCE_S)
            return self.calls

    def _note(
        self, verb: str, messages: Iterable[ReceivedMessage], answer: object = None
    ) -> list[object]:
        kept = list(messages)
        with self.called:
            self.calls.append((verb, [f"{each.id}:{each.receipt}" for each in kept]))
            if self.answers:
                answer = self.answers.pop(0)
            self.called.notify_all()
        if isinstance(answer, ConnectionFailed | QueueNotFound):
            raise answer
        return [answer] * len(kept)


@pytest.fixture
def server() -> PlayedQueue:
    return PlayedQueue()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def keeper(server: PlayedQueue, clock: ManualClock) -> LeaseKeeper:
    return LeaseKeeper(cast("Client", server), clock)


def hold(keeper: LeaseKeeper, *names: str, prefetch: Prefetch | None = None) -> list[Held]:
    """Hold messages for 30 s."""
    return keeper.hold("q", [message(name) for name in names], prefetch, 30)


def wake(
    keeper: LeaseKeeper,
    server: PlayedQueue,
    clock: ManualClock,
    answer: ServerProblem | None = None,
) -> None:
    """Let ten seconds pass, and wait for the renewal; the thread itself waits by the real clock."""
    made = len(server.calls)
    server.renewal = answer
    clock.advance(s=10)
    keeper.settle(hold(keeper, "wake")[0].tag, "returned")
    verbs = [verb for verb, _ in server.wait_for(made + 2)[made:]]
    assert sorted(verbs) == ["renew 30", "returned"]
    assert keeper.flush(PATIENCE_S)


def test_settled_messages_share_a_request(keeper: LeaseKeeper, server: PlayedQueue) -> None:
    """One for each way in which they end."""
    first, second, third = hold(keeper, "a", "b", "c")
    keeper.settle(first.tag, "complete")
    keeper.settle(second.tag, "complete")
    keeper.settle(third.tag, "failed")
    keeper.settle(third.tag, "complete")
    assert keeper.flush(PATIENCE_S)
    told = [(verb, name) for verb, names in server.calls for name in names]
    assert sorted(told) == [("complete", "a:r0"), ("complete", "b:r0"), ("failed", "c:r0")]
    assert len(server.calls) == 2


def test_a_lease_is_renewed_at_a_third(
    keeper: LeaseKeeper, server: PlayedQueue, clock: ManualClock
) -> None:
    """And goes on with the receipt that the server has given."""
    (held,) = hold(keeper, "a")
    clock.advance(s=10)
    keeper.settle(hold(keeper, "wake")[0].tag, "returned")  # its thread waits by the real clock
    assert ("renew 30", ["a:r0"]) in server.wait_for(2)
    keeper.settle(held.tag, "complete")
    assert keeper.flush(PATIENCE_S)
    assert server.calls[-1] == ("complete", ["a:r0+"])


def test_a_message_that_comes_again_while_it_is_held_goes_on(
    keeper: LeaseKeeper, server: PlayedQueue
) -> None:
    """Its lease ran out; it is no second delivery, and is completed with the new receipt."""
    (held,) = hold(keeper, "a")
    assert keeper.hold("q", [message("a", "r9", 9)], None, 30) == []
    keeper.settle(held.tag, "complete")
    assert keeper.flush(PATIENCE_S)
    assert server.calls == [("complete", ["a:r9"])]
    (again,) = hold(keeper, "a")
    keeper.settle(again.tag, "failed")
    (other,) = keeper.hold("q", [message("a", "r2", 2)], None, 30)
    assert other.tag != again.tag, "what was given back is another delivery"


@pytest.mark.parametrize("refused", [LeaseLost, MessageNotFound])
def test_a_lost_message_is_not_settled(
    keeper: LeaseKeeper, server: PlayedQueue, clock: ManualClock, refused: type[ServerProblem]
) -> None:
    """Its renewal was refused: whoever has it now says how it ends. Back here it is completed."""
    (held,) = hold(keeper, "a")
    wake(keeper, server, clock, answer=refused(Problem(code="lease-lost", status=409)))
    keeper.settle(held.tag, "complete")
    assert keeper.flush(PATIENCE_S)
    assert [verb for verb, names in server.calls if names == ["a:r0"]] == ["renew 30"]

    (again,) = keeper.hold("q", [message("a", "r2", 2)], None, 30)
    keeper.settle(again.tag, "complete")
    assert keeper.flush(PATIENCE_S)
    assert server.calls[-1] == ("complete", ["a:r2"])


def test_a_renewal_that_is_refused_for_now_is_tried_again(
    keeper: LeaseKeeper, server: PlayedQueue, clock: ManualClock
) -> None:
    """Such as by a server that is too busy: nothing is lost by that."""
    (held,) = hold(keeper, "a")
    wake(keeper, server, clock, answer=ServerProblem(Problem(code="busy", status=503)))
    wake(keeper, server, clock)
    keeper.settle(held.tag, "complete")
    assert keeper.flush(PATIENCE_S)
    assert server.calls[-1] == ("complete", ["a:r0+"])


def test_settling_is_tried_again(keeper: LeaseKeeper, server: PlayedQueue) -> None:
    """Nothing is forgotten while the server is away."""
    server.answers = [ConnectionFailed("http://x", "refused", outcome_unknown=False)]
    (held,) = hold(keeper, "a")
    keeper.settle(held.tag, "complete")
    assert server.wait_for(2) == [("complete", ["a:r0"])] * 2
    assert keeper.flush(PATIENCE_S)


@pytest.mark.parametrize("code", ["lease-lost", "queue-not-found"])
def test_what_cannot_be_settled_is_let_go(
    keeper: LeaseKeeper, server: PlayedQueue, code: str
) -> None:
    """Another worker has it, or there is nothing left of it."""
    problem = Problem(code=code, status=404)
    server.answers = [LeaseLost(problem) if code == "lease-lost" else QueueNotFound(problem)]
    (held,) = hold(keeper, "a")
    keeper.settle(held.tag, "complete")
    assert keeper.flush(PATIENCE_S)
    assert len(server.calls) == 1


def test_a_place_is_free_when_its_message_is_settled(keeper: LeaseKeeper) -> None:
    """At once, not when the server has been told."""
    prefetch = Prefetch()
    prefetch.limit = 2
    assert prefetch.take(5, lambda: False) == 2
    first, _ = hold(keeper, "a", "b", prefetch=prefetch)
    assert prefetch.is_full
    assert not prefetch.take_one()
    keeper.settle(first.tag, "complete")
    assert prefetch.take_one()
    assert keeper.settle_all(prefetch, "returned") == 1


def test_who_waits_for_a_place_can_be_stopped() -> None:
    """Without one."""
    prefetch = Prefetch()
    prefetch.limit = 1
    assert prefetch.take_one()
    stopped = threading.Event()
    taken: list[int] = []
    waiting = threading.Thread(target=lambda: taken.append(prefetch.take(1, stopped.is_set)))
    waiting.start()
    stopped.set()
    prefetch.wake()
    waiting.join(PATIENCE_S)
    assert taken == [0]


def test_the_inbox_hands_on_in_order_and_then_the_error() -> None:
    """An error comes first, as what came before is not this connection's any more."""
    inbox = Inbox()
    receiver, other = cast("list[Receiver]", [object(), object()])
    held = [cast("Held", object()) for _ in range(3)]
    inbox.put([(receiver, held[0]), (other, held[1]), (receiver, held[2])])
    assert inbox.get(0) == (receiver, held[0])
    assert inbox.remove(receiver) == [held[2]]
    assert inbox.get(None) == (other, held[1])
    assert inbox.get(0) is None
    inbox.put([(other, held[0])])
    inbox.fail(ConnectionError("lost"))
    with pytest.raises(ConnectionError, match="lost"):
        inbox.get(0)
    inbox.close()
