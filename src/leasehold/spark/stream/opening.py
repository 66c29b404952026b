"""How claims are opened: anew, again after a crash, or when there are enough messages."""

from __future__ import annotations

import os
import socket
import threading
from typing import Final, NamedTuple

from leasehold.client import QueueHandle
from leasehold.client.errors import ClaimBroken
from leasehold.client.handles import Stream
from leasehold.client.models import ClaimInfo
from leasehold.clock import Clock
from leasehold.domain.wording import form_of
from leasehold.spark.options import ReadOptions
from leasehold.spark.stream.admission import is_due
from leasehold.spark.stream.problems import report_loss

_LOOK_S: Final = 0.2
"""Between two looks at whether there are enough messages."""


class Taking(NamedTuple):
    """How much a micro-batch may have."""

    messages: int
    bytes: int | None = None
    """Of bodies; None: any number."""


class Opener:
    """Opens the claims of one stream.

    Args:
        queue: The queue.
        stream: The stream; it must be attached before a claim is opened.
        options: Of the read.
        clock: Tells how long it has waited for enough messages.
    """

    def __init__(
        self, queue: QueueHandle, stream: Stream, options: ReadOptions, clock: Clock
    ) -> None:
        self._queue = queue
        self._stream = stream
        self._options = options
        self._clock = clock
        self._holder = f"Spark stream {options.stream_id} ({socket.gethostname()}:{os.getpid()})"
        self.opening: int | None = None
        """Number of a claim that may have been opened, without anybody knowing yet."""

    def open_when_due(self, number: int, taking: Taking) -> ClaimInfo | None:
        """Open a claim, and wait a while for messages; None if there are not enough."""
        if not self._options.min_messages_per_trigger:
            return self.open(number, taking, self._options.wait_seconds)
        return self.open(number, taking) if self._await_enough() else None

    def open_what_is_there(self, number: int, taking: Taking) -> ClaimInfo | None:
        """Open a claim of what is there now, however little; None if there is nothing."""
        found = self.open(number, taking)
        if found is None and self._queue.counts().visible:
            # A limit of the queue may hold them back for a moment.
            found = self.open(number, taking, self._options.wait_seconds)
        return found

    def open(self, number: int, taking: Taking, wait_s: float = 0) -> ClaimInfo | None:
        """Open a claim that Spark has never had; None if there is nothing to claim.

        It may have been opened by an earlier process. What it has lost since was nobody's.

        Args:
            number: Of the claim.
            taking: How much it may have, if it is new.
            wait_s: Seconds to wait for a first message.
        """
        self.opening = number
        claim = self._call(number, taking, wait_s, accept_loss=True)
        self.opening = None
        return claim

    def open_again(self, number: int) -> ClaimInfo | None:
        """Open a claim that Spark has had, with the same members; None if it is not there.

        Raises:
            DataLost: It has lost members, and the options do not accept that.
        """
        # How much it may have was said when it was opened first.
        taking = Taking(1)
        try:
            return self._call(number, taking)
        except ClaimBroken as error:
            report_loss(
                self._options,
                f"claim {number} has lost {error.lost} of its {error.size} "
                f"{form_of(error.size or 0, 'message')}. Either it "
                "lapsed, and others have taken them or they have expired: then visibilityTimeout "
                "or replayWindow was too short for the time that the query or the server was away. "
                "Or somebody has removed them",
            )
        return self._call(number, taking, accept_loss=True)

    def open_ahead(self, number: int, taking: Taking, *, all_there: bool) -> ClaimInfo | None:
        """Open a claim before anybody asks for it.

        Args:
            number: Of the claim.
            taking: How much it may have.
            all_there: Whether it may be smaller than is usually waited for.
        """
        if self._options.min_messages_per_trigger and not all_there and not self._is_enough():
            return None
        return self._call(number, taking)

    def _await_enough(self) -> bool:
        """Wait until there are enough messages, but no longer than ``waitSeconds``."""
        until_s = self._clock.monotonic_s() + self._options.wait_seconds
        pause = threading.Event()
        while not self._is_enough():
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                return False
            pause.wait(min(left_s, _LOOK_S))
        return True

    def _is_enough(self) -> bool:
        options = self._options
        counts = self._queue.counts()
        return is_due(counts, options.min_messages_per_trigger, options.max_trigger_delay)

    def _call(
        self, number: int, taking: Taking, wait_s: float = 0, *, accept_loss: bool = False
    ) -> ClaimInfo | None:
        return self._stream.open(
            number,
            limit=taking.messages,
            lease_s=self._options.visibility_timeout,
            wait_s=wait_s,
            max_bytes=taking.bytes,
            holder=self._holder,
            accept_loss=accept_loss,
        )
