"""Watches how long leases are worked on, for queues whose visibility timeout adapts.

Only leases of the default length are followed: one whose length a worker chose says nothing about
the default. What is known is forgotten with the process; the timeout chosen last is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import structlog

from leasehold.domain import commands as c
from leasehold.domain.adaptive import Window, decide
from leasehold.domain.command import AnyCommand, Perform
from leasehold.domain.errors import LeaseholdError, LeaseLost, MessageNotFound
from leasehold.domain.model import Lease, Outcome, Queue, QueueKey
from leasehold.domain.transactions import Committed, CommitTogether

MAX_FOLLOWED: Final = 100_000
"""Leases followed at once, some 30 MiB; with more, the oldest are lost sight of."""
_MS: Final = 1000

_log = structlog.get_logger(__name__)


class Adapting:
    """Windows of observation by queue, and what they lead to.

    Args:
        find_queue: The store's.
    """

    def __init__(self, find_queue: Callable[[str, str], Queue | None]) -> None:
        self.windows: dict[QueueKey, Window] = {}
        """Queues that adapt; while there are none, nothing here costs anything."""
        self._find_queue = find_queue
        self._followed: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """By receipt: when the lease began, and when it was last renewed."""

    def watch(self, queues: list[Queue]) -> None:
        """Watch those of *queues* that adapt, and no others."""
        keys = {(queue.account, queue.name) for queue in queues if queue.settings.adaptive}
        for key in list(self.windows):
            if key not in keys:
                del self.windows[key]
        for key in keys:
            self.windows.setdefault(key, Window())
        if not keys:
            self._followed.clear()

    def watch_one(self, account: str, queue: str) -> None:
        """Look again whether a queue adapts."""
        found = self._find_queue(account, queue)
        if found is not None and found.settings.adaptive is not None:
            self.windows.setdefault((account, queue), Window())
        else:
            self.windows.pop((account, queue), None)

    def note(self, command: AnyCommand, result: c.Result, now_ms: int) -> None:
        """Hear of the result of a command."""
        if isinstance(command, c.Batch | CommitTogether):
            # What was refused as a whole has another answer, what was done before has none.
            results: Any = result.results if type(result) is Committed else result
            if type(results) is tuple and results:
                for part, its_result in zip(command.commands, results, strict=True):
                    self.note(part, its_result, now_ms)
            return
        observe = _OBSERVERS.get(type(command))
        if observe is not None:
            asked: Any = command
            window = self.windows.get(asked[:2])
            if window is not None:
                observe(self, window, asked, result, now_ms)

    def _received(self, _: Window, command: c.Receive, result: Any, now_ms: int) -> None:
        if command.visibility_timeout_s is None and type(result) is tuple:
            for lease in result:
                self._follow(lease.receipt, now_ms, now_ms)

    def _renewed(self, window: Window, command: c.Renew, result: Any, now_ms: int) -> None:
        times = self._followed.pop(command.receipt, None)
        if times is None:
            return
        if type(result) is not Lease:
            self._refused(window, times, result, now_ms)
        elif command.visibility_timeout_s:
            window.observe_renewed((now_ms - times[1]) / _MS)
            self._follow(result.receipt, times[0], now_ms)

    def _completed(self, window: Window, command: c.Complete, result: Any, now_ms: int) -> None:
        times = self._followed.pop(command.receipt, None)
        if type(result) is c.Done:
            if times is not None:
                window.observe_completed((now_ms - times[0]) / _MS)
        else:
            self._refused(window, times, result, now_ms)

    def _released(self, window: Window, command: c.Release, result: Any, now_ms: int) -> None:
        times = self._followed.pop(command.receipt, None)
        if type(result) is not c.Released:
            self._refused(window, times, result, now_ms)
        elif command.outcome in {Outcome.FAILED, Outcome.BURIED}:
            window.observe_failed()

    def _refused(
        self, window: Window, times: tuple[int, int] | None, result: Any, now_ms: int
    ) -> None:
        # A receipt that this process never gave out with the default length is not counted: it may
        # be anybody's, and the lease may have been of any length.
        # One that has left the queue was worked on for too long as well, such as by the last of as
        # many deliveries as its budget allows.
        is_late = type(result) is LeaseLost or (type(result) is MessageNotFound and result.late)
        if is_late and times is not None:
            window.observe_late((now_ms - times[0]) / _MS)

    def _follow(self, receipt: str, since_ms: int, renewed_ms: int) -> None:
        self._followed[receipt] = since_ms, renewed_ms
        if len(self._followed) > MAX_FOLLOWED:
            self._followed.popitem(last=False)

    async def adapt(self, perform: Perform, now_ms: int) -> None:
        """Choose a new timeout where there is a reason to."""
        for (account, name), window in list(self.windows.items()):
            queue = self._find_queue(account, name)
            if queue is None or queue.settings.adaptive is None:
                del self.windows[account, name]
                continue
            current_s = queue.settings.lease_s()
            adapted = decide(window, queue.settings.adaptive, current_s, now_ms)
            if adapted is None:
                continue
            try:
                await perform(c.SetAdapted(account, name, adapted))
            except LeaseholdError as error:
                _log.warning("queue.not_adapted", account=account, queue=name, reason=str(error))
                continue
            _log.info(
                "queue.adapted",
                account=account,
                queue=name,
                visibility_timeout_s=adapted.visibility_timeout_s,
                before_s=current_s,
                because=adapted.because,
            )


_OBSERVERS: Final[dict[type, Callable[[Adapting, Window, Any, Any, int], None]]] = {
    c.Receive: Adapting._received,  # noqa: SLF001 - one table instead of a chain of ifs
    c.Renew: Adapting._renewed,  # noqa: SLF001
    c.Complete: Adapting._completed,  # noqa: SLF001
    c.Release: Adapting._released,  # noqa: SLF001
}
