"""Opening the next claim while Spark works on this one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from leasehold.client import LeaseholdClientError
from leasehold.client.models import ClaimInfo
from leasehold.spark.stream.problems import log


class Ahead:
    """At most one claim, opened in a thread of its own and not yet given to Spark.

    Args:
        open_claim: Opens a claim by its number; called in the thread.
    """

    def __init__(self, open_claim: Callable[[int], ClaimInfo | None]) -> None:
        self._open = open_claim
        self._thread: threading.Thread | None = None
        self._number = 0
        self._claim: ClaimInfo | None = None

    def begin(self, number: int) -> None:
        """Start opening claim *number*, unless one is being opened or kept already."""
        if self._thread is not None:
            return
        self._number, self._claim = number, None
        self._thread = threading.Thread(
            target=self._work, name="leasehold-claim-ahead", daemon=True
        )
        self._thread.start()

    def take(self, number: int) -> ClaimInfo | None:
        """Return claim *number* if it was opened ahead; waits while it is being opened."""
        if self._thread is None or self._number != number:
            return None
        return self.leave()

    @property
    def under_way(self) -> int | None:
        """Number of the claim that is being opened just now, if any."""
        thread = self._thread
        return self._number if thread is not None and thread.is_alive() else None

    def leave(self, patience_s: float | None = None) -> ClaimInfo | None:
        """Return the claim that was opened and never taken, and forget it.

        Args:
            patience_s: Seconds to wait while it is being opened; None: until it is.
        """
        thread = self._thread
        if thread is None:
            return None
        thread.join(patience_s)
        if thread.is_alive():
            return None
        self._thread = None
        claim, self._claim = self._claim, None
        return claim

    def _work(self) -> None:
        try:
            self._claim = self._open(self._number)
        except LeaseholdClientError as error:
            # Whoever asks for the claim next opens it again, and is told.
            log.debug("claim %d could not be opened ahead: %s", self._number, error)
        except RuntimeError as error:  # the client was closed under it
            log.debug("claim %d was not opened ahead: %s", self._number, error)
