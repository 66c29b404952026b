"""What hooks can do, and what their failures cannot."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from leasehold.worker.adapters import Delivery
from leasehold.worker.errors import GiveBack, Poison, Retry
from leasehold.worker.hooks import HookCalls, Hooks, StopMessage
from leasehold.worker.message import Message
from leasehold.worker.outcomes import Kind, Outcome
from tests.unit.worker.worker.support import Heard, filled, handle_all, left


class Story(Hooks):
    """Writes down all that it hears of messages."""

    def __init__(self, name: str, story: list[str]) -> None:
        self._name = name
        self._story = story

    def received(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        self._story.append(f"{self._name} received {len(deliveries)} of {queue}")

    def before(self, message: Message) -> None:
        self._story.append(f"{self._name} before {message.text}")

    def after(self, message: Message, outcome: Outcome, seconds: float, /) -> None:
        assert seconds >= 0
        self._story.append(f"{self._name} after {message.text} {outcome.kind.value}")

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        self._story.append(f"{self._name} settled {delivery.body.decode()} {outcome.kind.value}")


def test_hooks_are_called_around_the_handler() -> None:
    """Hooks are called in their order before, and in the reverse order after."""
    story: list[str] = []
    handle_all(
        lambda message: story.append(f"handle {message.text}"),
        filled("x"),
        hooks=[Story("A", story), Story("B", story)],
    )
    assert story == [
        "A received 1 of orders",
        "B received 1 of orders",
        "A before x",
        "B before x",
        "handle x",
        "B after x done",
        "A after x done",
        "A settled x done",
        "B settled x done",
    ]


class Broken(Hooks):
    def received(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        raise ValueError("received")

    def before(self, message: Message) -> None:
        raise ValueError("before")

    def after(self, message: Message, outcome: Outcome, seconds: float, /) -> None:
        raise ValueError("after")

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        raise ValueError("settled")


def test_failure_of_a_hook_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A hook that fails changes nothing for the message, and the other hooks hear all the same."""
    queue, heard = filled("x"), Heard()
    with caplog.at_level(logging.ERROR, "leasehold.worker"):
        worker = handle_all(lambda _: None, queue, hooks=[Broken(), heard])
    assert heard.settlements == [("x", "done")]
    assert left(queue) == []
    assert worker.hook_failures == 4
    assert caplog.text.count("a hook failed: Broken.") == 4


class Stopping(Hooks):
    def __init__(self, instead: Retry | Poison | GiveBack | None) -> None:
        self._instead = instead
        self.after_kinds: list[Kind] = []

    def before(self, message: Message) -> None:
        raise StopMessage(self._instead)

    def after(self, message: Message, outcome: Outcome, seconds: float, /) -> None:
        self.after_kinds.append(outcome.kind)


@pytest.mark.parametrize(
    ("instead", "kind"),
    [(None, Kind.DONE), (Poison("no"), Kind.POISONED), (Retry(600), Kind.FAILED)],
)
def test_hook_can_stop_a_message(instead: Retry | Poison | None, kind: Kind) -> None:
    """A hook that raises StopMessage decides in place of the handler, which is not called."""
    queue, hook = filled("x"), Stopping(instead)
    seen: list[Message] = []
    worker = handle_all(seen.append, queue, hooks=[hook])
    assert seen == []
    assert hook.after_kinds == [kind]
    assert worker.stats.count(kind) == 1
    assert sum(worker.stats.queues[0].handled) == 0


class Late(Hooks):
    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        raise StopMessage


def test_message_can_be_stopped_before_only() -> None:
    """StopMessage from another hook counts as a failure of that hook."""
    queue = filled("x")
    worker = handle_all(lambda _: None, queue, hooks=[Late()])
    assert worker.hook_failures == 1
    assert worker.stats.count(Kind.DONE) == 1


def test_plain_hooks_cost_nothing() -> None:
    """Methods that nobody overrides are not called at all."""
    calls = HookCalls([Hooks(), Heard()])
    assert calls.before == calls.after == calls.received == ()
    assert len(calls.settled) == len(calls.lost) == 1
