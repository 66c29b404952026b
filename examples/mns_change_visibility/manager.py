"""The manager of the sample: it changes the visibility of messages that are being worked on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from leasehold.worker.adapters import Delivery
from leasehold.worker.adapters.mns import MNS, MnsQueue
from leasehold.worker.errors import LeaseLost
from leasehold.worker.leases import Held, LeaseManager, LeaseSettings
from leasehold.worker.timing import SystemTime

NAMES: Final = {
    "message_minimal_life_s": "MessageMinimalLife",
    "timer_interval_s": "TimerInterval",
    "visibility_timeout_s": "QueueMessageVisibilityTimeout",
    "message_timeout_s": "MessageTimeout",
    "call_timeout_s": "0.6 MessageMinimalLife",
}
"""What the sample calls the settings of the library; a call may take 0.6 of the minimal life."""


_NAME: Final = re.compile("|".join(NAMES))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSettings:
    """The settings of the sample by their own names; seconds."""

    message_minimal_life: float
    """Remaining life that a registered message must keep until its visibility is changed."""
    timer_interval: float
    """Period of the manager's timer."""
    queue_message_visibility_timeout: int
    """VisibilityTimeout of the queue, and the value that each change sets. It must be greater than
    the other two together."""
    message_timeout: float
    """So long after it was registered a message is given up: its worker is taken for stuck."""

    def as_lease_settings(self) -> LeaseSettings:
        """Return the same in the words of the library, which checks them."""
        return LeaseSettings(
            visibility_timeout_s=self.queue_message_visibility_timeout,
            timer_interval_s=self.timer_interval,
            message_minimal_life_s=self.message_minimal_life,
            message_timeout_s=self.message_timeout,
            call_timeout_s=self.message_minimal_life * 0.6,
        )

    def __str__(self) -> str:
        of = self.as_lease_settings()
        shown = [f"{NAMES[name]} {getattr(of, name):g} s" for name in list(NAMES)[:4]]
        return ", ".join(shown)

    def problems(self) -> list[str]:
        """Say what cannot be safe, in the words of the sample; nothing if all is well."""
        found = self.as_lease_settings().problems(MNS)
        return [_NAME.sub(lambda name: NAMES[name[0]], str(each)) for each in found]


class Manager:
    """Registers messages, keeps them invisible, and deletes them when their work is done.

    Args:
        queue: The queue, which has the visibility timeout of the settings.
        settings: Of the sample.

    Raises:
        leasehold.worker.leases.UnsafeSettings: Messages could not be kept with them.
    """

    def __init__(self, queue: MnsQueue, settings: SampleSettings) -> None:
        self._queue = queue
        self._settings = settings
        self._time = SystemTime()
        self._leases = LeaseManager(settings.as_lease_settings())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leases.close()

    @property
    def changes(self) -> int:
        """How often a visibility was changed so far."""
        return self._leases.counts.renewals

    def receive(self, wait_seconds: int) -> Held | None:
        """Receive a message and register it before anything else is done; None if none comes.

        The lease counts from the answer: most of a long poll is over before the message comes. One
        that comes too late to be kept is left to the next receive.
        """
        asked_at_s = self._time.monotonic_s()
        found: list[Delivery] = self._queue.receive(
            1,
            visibility_timeout_s=self._settings.queue_message_visibility_timeout,
            wait_s=wait_seconds,
        )
        if not found:
            return None
        try:
            return self._leases.keep(
                self._queue, found[0], asked_at_s=asked_at_s, wait_s=wait_seconds
            )
        except LeaseLost:
            return None

    def delete_message(self, message: Held) -> bool:
        """Delete a message whose work is done; False if it is not ours any more."""
        try:
            lease = message.begin_settling()
        except LeaseLost:
            return False
        (result,) = self._queue.complete([lease])
        return message.settled(result, completing=True)
