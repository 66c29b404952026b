"""What can go wrong with effects that are to happen once.

::

    LeaseLost
    └── Fenced          a worker with a newer fence was there: stop, and do not settle
    Retry
    └── Busy            another worker is at it right now: try again later
    NotRecorded         the effect is done, but perhaps not recorded
    UnstorableResult    the effect is done and recorded, but its result cannot be kept
    UncheckedRun        a body did not ask whether it is the first
    HeaderProblem       a request comes without the headers, or with headers that cannot be read
"""

from __future__ import annotations

from typing import Final

from leasehold.worker.errors import LeaseLost, Retry


class Fenced(LeaseLost):
    """An older fence came after a newer one. Nothing was written.

    Args:
        what: The key, row or request that the fence guards.
        fence: The one that lost.
        newest: The one it lost to, which is the same if one lease was used twice; None if it
            belongs to another message, whose fences cannot be compared.
    """

    def __init__(self, what: str, fence: int, newest: int | None) -> None:
        if newest is None:
            text = "another message has taken the key over"
        elif newest == fence:
            text = f"the lease with fence {fence} was used twice, and the other use came first"
        else:
            text = f"fence {fence} is too old; the newest fence is {newest}"
        super().__init__(f"{what}: {text}")
        self.what = what
        self.fence = fence
        self.newest = newest

    def __reduce__(self) -> tuple[type[Fenced], tuple[str, int, int | None]]:
        return type(self), (self.what, self.fence, self.newest)


class Busy(Retry):
    """Another worker works under the same key right now, and did not end in time."""


class NotRecorded(Exception):
    """The effect happened, but the history did not take the record, or gave no answer.

    So it may happen again when the message comes again. What the history said last is the cause.

    Args:
        key: As the history knows it.
        why: What it said.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(
            f"{key}: the effect has happened, but it may not be recorded, so it may happen again: "
            f"{why}"
        )
        self.key = key
        self.why = why

    def __reduce__(self) -> tuple[type[NotRecorded], tuple[str, str]]:
        return type(self), (self.key, self.why)


class UnstorableResult(TypeError):
    """The effect happened and is recorded as done, but what came of it cannot be kept.

    It is no JSON, or too long. A repeated delivery skips the body and gets None.
    """


class UncheckedRun(RuntimeError):
    """The body of a ``with once(...) as run`` ended without a look at ``run.first``.

    Python runs the body of a ``with`` in any case. One that does not look runs again at each
    delivery.
    """


class HeaderProblem(ValueError):
    """The headers of a request are missing or cannot be read: answer 400."""

    status: Final = 400
