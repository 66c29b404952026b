"""What others can have done at the turns of a worker's life."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from leasehold.worker.adapters.protocol import Delivery
from leasehold.worker.errors import GiveBack, Poison, Retry
from leasehold.worker.message import Message
from leasehold.worker.outcomes import Outcome

_log: Final = logging.getLogger("leasehold.worker")


class StopMessage(Exception):
    """Raised by :meth:`Hooks.before`: the handler is not called.

    Args:
        instead: What the handler would have raised; None: the message is completed, as when its
            work is known to be done.
    """

    def __init__(self, instead: Retry | Poison | GiveBack | None = None) -> None:
        super().__init__(str(instead) if instead is not None else "complete it without work")
        self.instead = instead


class Hooks:
    """Override what you want to hear of; all methods here do nothing.

    A *worker* is the :class:`leasehold.worker.Worker` that calls them.

    They are called from the worker's threads, several at once, and should be quick. What one raises
    is logged and counted, and changes nothing; the exception is :class:`StopMessage` in
    :meth:`before`.
    """

    def starting(self, worker: Any) -> None:
        """The worker begins, before anything is received."""

    def received(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Messages were received, and wait to be worked on."""

    def before(self, message: Message) -> None:
        """The handler is about to be called, in this thread or task.

        With processes it is called in the worker, not in the process that does the work.

        Raises:
            StopMessage: Do not call it.
        """

    def after(self, message: Message, outcome: Outcome, seconds: float, /) -> None:
        """The handler came to an end, or was not called because a hook stopped the message.

        Called in the same thread or task as :meth:`before`; the hooks' order is reversed.
        """

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        """The service has taken note of an outcome, be it with work or without."""

    def lost(self, delivery: Delivery, why: str) -> None:
        """The message is not settled, and is delivered again, unless it has expired.

        Its lease was lost before that, or the service did not settle it; *why* says so.
        """

    def expired(self, delivery: Delivery, why: str) -> None:
        """The message's time to live ended before it was settled: it does not come again.

        :meth:`lost` is called for it as well, right before.
        """

    def stopping(self, worker: Any) -> None:
        """Nothing more is received; what is in work may finish."""

    def stopped(self, worker: Any) -> None:
        """The worker is at its end."""


class HookCalls:
    """Calls hooks, and minds their failures.

    Methods that a hook does not override are not called at all.
    """

    def __init__(self, hooks: Iterable[Hooks]) -> None:
        self.every = every = tuple(hooks)
        self.failures = 0
        self.starting = _overridden(every, "starting")
        self.received = _overridden(every, "received")
        self.before = _overridden(every, "before")
        self.after = _overridden(every[::-1], "after")
        self.settled = _overridden(every, "settled")
        self.lost = _overridden(every, "lost")
        self.expired = _overridden(every, "expired")
        self.stopping = _overridden(every, "stopping")
        self.stopped = _overridden(every[::-1], "stopped")

    def call(self, hooks: Iterable[Callable[..., object]], *args: Any) -> None:
        """Call hooks of one kind with *args*.

        Raises:
            StopMessage: One of them says so; the rest is not called.
        """
        for hook in hooks:
            try:
                hook(*args)
            except StopMessage:
                raise
            except Exception:  # noqa: BLE001 - hooks change nothing
                self.failures += 1
                _log.exception("a hook failed: %s", getattr(hook, "__qualname__", hook))

    def quietly(self, hooks: Iterable[Callable[..., object]], *args: Any) -> None:
        """Call hooks that cannot stop anything."""
        try:
            self.call(hooks, *args)
        except StopMessage:
            self.failures += 1
            _log.warning("StopMessage is for Hooks.before only")


def _overridden(hooks: Iterable[Hooks], name: str) -> tuple[Callable[..., object], ...]:
    plain = getattr(Hooks, name)
    return tuple(
        getattr(each, name) for each in hooks if getattr(type(each), name, plain) is not plain
    )
