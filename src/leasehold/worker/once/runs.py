"""One delivery under one key."""

from __future__ import annotations

from typing import Any

from leasehold.worker.once.errors import Fenced, UncheckedRun
from leasehold.worker.once.results import decode_result
from leasehold.worker.once.rules import Entry, Holder, Standing, standing


class Run:
    """What the body gets: it looks at :attr:`first`, and may set :attr:`result`.

    Args:
        key: As the history knows it.
        holder: Who runs.
    """

    __slots__ = ("_is_first", "_was_asked", "holder", "key", "result")

    def __init__(self, key: str, holder: Holder) -> None:
        self.key = key
        self.holder = holder
        self.result: Any = None
        """What came of it, as JSON can say it: set by the first run, read by those that skip."""
        self._is_first = True
        self._was_asked = False

    @property
    def first(self) -> bool:
        """Whether the effect is still to happen."""
        self._was_asked = True
        return self._is_first

    @property
    def is_first(self) -> bool:
        """As :attr:`first`, but no look at it: not for bodies."""
        return self._is_first

    def meet(self, entry: Entry) -> bool:
        """Take in what stands in the way; return whether somebody is at it.

        Raises:
            Fenced: It is a newer delivery, at work or done.
        """
        stands = standing(entry, self.holder)
        if stands is Standing.FENCED:
            raise Fenced(self.key, self.holder.fence, entry.fence)
        if stands is Standing.REPEATED:
            self._is_first = False
            self.result = decode_result(entry.result)
        return stands is Standing.BUSY

    def check_asked(self) -> None:
        """Refuse a body that is over and did not look.

        Raises:
            UncheckedRun: It did not.
        """
        if not self._was_asked:
            raise UncheckedRun(f"{self.key}: the body did not look at run.first")
