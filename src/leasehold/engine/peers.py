"""Tells other servers on the same store when those who wait there may have something.

Who waits where is known to the store's link to the other servers. A batch may have begun after
a consumer there registered and before this server learned of it: the store says with each batch
what it saw, and what came about after a registration that is not known here yet is told of once it
is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from leasehold.clock import Clock
from leasehold.domain import commands as c
from leasehold.domain.claims import Opened
from leasehold.domain.model import Lease, Queue, QueueKey
from leasehold.engine.listeners import Pending, QueueListeners

RECHECK_S: Final = 5.0
"""Whoever waits looks again after so many seconds, should a word have been lost. So what becomes
visible later than that need not be told."""
_TOLD_MS: Final = round(RECHECK_S * 1500)
"""Half more than that, as a look may come late."""
_MOST_UNTOLD: Final = 64
"""Batches kept until it is known who waits; what is beyond is found at the next look."""


class Peers(Protocol):
    """The link to the other servers on the same store. All but ``leads`` is for the loop only."""

    def start(
        self,
        *,
        hear: Callable[[Collection[QueueKey]], None],
        renew: Callable[[], None],
        work: Callable[[], None],
    ) -> None:
        """Begin, in the loop that runs now.

        Args:
            hear: Called when there may be something in some queues; with none, in any.
            renew: Called when it is known anew where other servers wait.
            work: Called when whoever leads is to look for work, if this server does.
        """
        ...

    def stop(self) -> None:
        """Let go of everything that other servers may have."""
        ...

    def leads(self) -> bool:
        """Tell whether this server is the one that does what only one may do."""
        ...

    def begin_waiting(self, key: QueueKey) -> None:
        """Have other servers tell when there may be something in a queue."""
        ...

    def end_waiting(self, key: QueueKey) -> None:
        """No consumer waits for this queue any more; it may be told of for a while yet."""
        ...

    @property
    def waited_for(self) -> tuple[int, Collection[QueueKey]]:
        """Where other servers wait, and the number of the change that this is known by."""
        ...

    @property
    def seen(self) -> int:
        """Number of the last change of where anybody waits, as the last batch saw it."""
        ...

    def look(self) -> None:
        """Find out where other servers wait; ``renew`` is called then."""
        ...

    def tell(self, keys: Collection[QueueKey]) -> None:
        """Tell the servers that wait there that there may be something."""
        ...

    def call_leader(self) -> None:
        """Tell the server that leads that there is work."""
        ...

    def about(self) -> dict[str, str | int]:
        """Return facts for people."""
        ...


class RemoteWaiters:
    """Those who wait for one queue on other servers.

    What a batch makes visible and takes away again is not told of: a consumer that waits here got
    it.
    """

    __slots__ = ("_fresh", "_is_told", "_key", "_notifier")

    def __init__(self, key: QueueKey, notifier: PeerNotifier) -> None:
        self._key = key
        self._notifier = notifier
        self._fresh = 0
        self._is_told = False

    def is_told(self) -> bool:
        """Tell whether others are to hear of the queue, and begin anew."""
        told = self._is_told or self._fresh > 0
        self._is_told, self._fresh = False, 0
        return told

    def distrust(self) -> None:
        """See :class:`~leasehold.engine.listeners.QueueListener`."""
        self._is_told = True
        self._notifier.changed.add(self._key)

    def appears(self, at_ms: int, count: int = 1) -> None:
        """See :class:`~leasehold.engine.listeners.QueueListener`."""
        now_ms = self._notifier.clock.now_ms()
        if at_ms <= now_ms:
            self._fresh += count
            self._notifier.changed.add(self._key)
        elif at_ms <= now_ms + _TOLD_MS:
            self.distrust()

    def taken(self, leases: tuple[Lease, ...]) -> None:
        """See :class:`~leasehold.engine.listeners.QueueListener`."""
        self._fresh -= len(leases)
        self._notifier.changed.add(self._key)
        self.appears(leases[0].message.visible_at_ms, len(leases))

    def claimed(self, opened: Opened) -> None:
        """See :class:`~leasehold.engine.listeners.QueueListener`.

        What streams do is of interest to claims.
        """
        del opened
        self.distrust()

    def call(self, stream: str) -> None:
        """See :class:`~leasehold.engine.listeners.QueueListener`."""
        del stream
        self.distrust()

    def answer_idle(self, error: Callable[[], c.Result] | None = None) -> None:
        """See :class:`~leasehold.engine.listeners.QueueListener`. They find out by a look."""
        del error
        self.distrust()


class PeerNotifier(QueueListeners):
    """Tells other servers of the results of batches. Lives in one event loop.

    Args:
        clock: Says what is visible by now.
        find_queue: The store's.
        peers: Says who waits where, and takes what is to be told.
    """

    def __init__(
        self, clock: Clock, find_queue: Callable[[str, str], Queue | None], peers: Peers
    ) -> None:
        super().__init__(clock, find_queue)
        self.by_queue: dict[QueueKey, RemoteWaiters] = {}
        self._peers = peers
        self._known = 0
        self.changed: set[QueueKey] = set()
        """Queues in which something has happened since others were told."""
        self._untold: list[tuple[Sequence[Pending], Sequence[c.Result]]] = []

    def tell(self, batch: Sequence[Pending], results: Sequence[c.Result]) -> None:
        """Hear of a batch that is durable."""
        if self._peers.seen > self._known:
            if len(self._untold) < _MOST_UNTOLD:
                self._untold.append((batch, results))
            self._peers.look()
        elif self.by_queue:
            self._note_all(batch, results)
            self._hand_over()

    def renew(self) -> None:
        """Take what is known now of where other servers wait."""
        self._known, keys = self._peers.waited_for
        if self._peers.seen > self._known:
            self._peers.look()
            return
        self.by_queue = {key: RemoteWaiters(key, self) for key in keys}
        self.changed.clear()
        untold, self._untold = self._untold, []
        if self.by_queue:
            for batch, results in untold:
                self._note_all(batch, results)
            self._hand_over()

    def _note_all(self, batch: Sequence[Pending], results: Sequence[c.Result]) -> None:
        for (command, _), result in zip(batch, results, strict=True):
            self.note(command, result)

    def _hand_over(self) -> None:
        if self.changed:
            told = [key for key in self.changed if self.by_queue[key].is_told()]
            self.changed.clear()
            if told:
                self._peers.tell(told)
