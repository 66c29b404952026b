"""The timer that keeps received messages leased while their work goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from azure.core.exceptions import AzureError
from examples.video_pipeline.leases import Lease, LeaseLost


class LeaseKeeper:
    """One timer thread that renews every message in hand.

    Args:
        every_s: Seconds between two looks at the messages.
        renew_below_s: A lease with less than this left, in seconds, is renewed. It must be longer
            than *every_s* plus the time that a renewal may take.
        at_most_s: Seconds a message may be held in all. After that it is given up: a worker that
            is stuck must not keep its message for ever.
        on_renewed: Called after each renewal.
    """

    def __init__(
        self,
        *,
        every_s: float,
        renew_below_s: float,
        at_most_s: float,
        on_renewed: Callable[[Lease], None],
    ) -> None:
        self._every_s = every_s
        self._renew_below_s = renew_below_s
        self._at_most_s = at_most_s
        self._on_renewed = on_renewed
        self._in_hand: dict[str, Lease] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="lease-keeper", daemon=True).start()

    @contextmanager
    def hold(self, lease: Lease) -> Iterator[None]:
        """Keep *lease* renewed while the block runs."""
        with self._lock:
            self._in_hand[lease.id] = lease
        try:
            yield
        finally:
            with self._lock:
                del self._in_hand[lease.id]

    def _run(self) -> None:
        timer = threading.Event()
        while not timer.wait(self._every_s):
            with self._lock:
                in_hand = tuple(self._in_hand.values())
            for lease in in_hand:
                self._look_after(lease)

    def _look_after(self, lease: Lease) -> None:
        """Renew one lease if it is time; a renewal refused cancels the work on the message."""
        if lease.lost.is_set() or lease.remaining_s() > self._renew_below_s:
            return
        if time.monotonic() - lease.received_at_s > self._at_most_s:
            lease.lose(f"held for more than {self._at_most_s:g} s")
            return
        try:
            if lease.renew():
                self._on_renewed(lease)
        except LeaseLost:
            pass  # the lease has said so itself, and whoever works on it stops
        except AzureError as error:
            # The server did not answer. As long as the lease lasts, the next look tries again.
            if lease.remaining_s() <= 0:
                lease.lose(f"could not be renewed: {type(error).__name__}")
