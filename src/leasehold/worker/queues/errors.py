"""What can go wrong between a worker and its queue, whatever the service.

::

    QueueError
    ├── LeaseGone       the lease is lost for good: stop working on the message
    │   └── SetAside    the message is in the poison queue by now
    ├── Unreachable     nobody answered, or not now: try again
    ├── Denied          the request will never be granted as it is: a key, a right, an argument
    │   └── PastExpiry  the lease, or the delay, would end after the message expires
    ├── QueueMissing    there is no such queue
    ├── BodyTooLarge    the service takes no body of that size
    └── NotSupported    the service has no such thing; see Capabilities
"""

from __future__ import annotations


class QueueError(Exception):
    """A call did not do what was asked. No text of it shows a key, a signature or a receipt."""

    outcome_unknown: bool = False
    """Whether the request may have been carried out all the same, by this try or an earlier one."""


class LeaseGone(QueueError):
    """Somebody else has the message, or it is completed, removed or expired.

    Azure says MessageNotFound or PopReceiptMismatch, MNS MessageNotExist or ReceiptHandleError.
    """


class SetAside(LeaseGone):
    """The message was moved to the poison queue while the work went on, for too many deliveries.

    Nobody has completed it. Where the service cannot tell, it is a plain LeaseGone.
    """


class Unreachable(QueueError):
    """No answer came, or one that says "not now" (408, 429, 5xx).

    Args:
        text: What happened.
        outcome_unknown: Whether the request may have been carried out all the same.
        retry_after_s: How long the service asks to be left alone, in seconds; None if it did not.
    """

    def __init__(
        self, text: str, *, outcome_unknown: bool = True, retry_after_s: float | None = None
    ) -> None:
        super().__init__(text)
        self.outcome_unknown = outcome_unknown
        self.retry_after_s = retry_after_s


class Denied(QueueError):
    """The service refuses: 401, 403, or an argument that it does not take."""


class PastExpiry(Denied):
    """The lease, or the delay, would end after the message expires: ask for a shorter one.

    Azure and Leasehold refuse that. The message is leased as before.
    """


class QueueMissing(QueueError):
    """The queue does not exist, or is being deleted."""


class BodyTooLarge(QueueError):
    """The body is over the limit of the service; see ``leasehold.worker.payloads``."""


class NotSupported(QueueError):
    """The service cannot do it; :class:`~leasehold.worker.queues.protocol.Capabilities` says so."""
