"""The small interface between a worker and a queue service.

All calls block, and may be made from several threads at once. Each acts on one queue. A call for
many leases returns one result for each, in their order: an item that failed is a QueueError in the
list, a call that failed as a whole raises one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

GivenBack: TypeAlias = Literal["failed", "interrupted", "returned"]
"""Why a message is given back: the work went wrong; the worker has to stop; nobody began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a service can do. What it cannot is done on the client side where that is possible."""

    service: str
    """Its name, for people."""
    max_receive: int
    """Most messages of one receive."""
    max_settle: int
    """Most leases that one request renews, completes or gives back; with 1, each is a request of
    its own, and the adapter sends them one after the other."""
    min_lease_s: int
    max_lease_s: int
    """Shortest and longest visibility timeout."""
    max_wait_s: int
    """Longest wait of a receive for a first message; 0 if the service does not wait."""
    max_body_bytes: int | None
    """Largest body as the service stores it; None if it is set for each queue."""
    fences: bool
    """Leases come with a fence that the service draws. Otherwise the dequeue count stands in, which
    rises with each delivery."""
    sessions: bool
    """Leases can belong to a session that ends all of them soon after the worker is dead."""
    claims: bool
    """Batches can be named, read again and settled once."""
    server_poison: bool
    """``bury`` moves the message in one step. Otherwise it is copied and then deleted: whoever dies
    in between leaves both, and the next delivery is buried again."""
    saves: Literal["beside", "in_body", "no"]
    """Where ``save`` keeps progress: beside the body, in an envelope in its place, or nowhere."""
    counts_returns: bool
    """A message given back as "returned" or "interrupted" has one more on its dequeue count all the
    same."""
    counts_failures: bool = False
    """The service knows how often a message failed, apart from how often it was delivered: the
    client has a method ``tried``, see :class:`CountsFailures`."""
    groups: bool = True
    """Deliveries name the message group. Otherwise nothing can be done group by group."""
    tells_order: bool = False
    """The service says whether it hands groups out in order: the client has a method
    ``group_order``, see :class:`TellsOrder`."""
    tells_lengths: bool = False
    """A receive may ask for leases :data:`AS_SET`; each delivery tells how long its lease is."""
    forwards: bool = False
    """Messages can go on to another queue in one step, see :class:`Forwards`."""


AS_SET: Final = -1
"""In place of the length of leases: what the service has set for each message."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What proves the right to a message."""

    message_id: str
    receipt: str = field(repr=False)
    result: Any = field(default=None, repr=False)
    """For :meth:`QueueClient.complete`: what came of the work, for services that keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message as it came from a receive."""

    queue: str
    message_id: str
    receipt: str = field(repr=False)
    body: bytes = b""
    """As it was put; text is UTF-8. Without the envelope in which progress is kept."""
    body_problem: str | None = None
    """Why there is no body: the stored form cannot be read. Such a message can only be buried."""
    dequeue_count: int = 1
    """How often it was delivered, this time included."""
    fence: int = 1
    """Rises with each delivery of the message; see :attr:`Capabilities.fences`."""
    inserted_at_ms: int | None = None
    expires_at_ms: int | None = None
    """None: never, or the service does not say."""
    expires_in_s: float | None = None
    """Seconds from the moment it was leased until it expires, by the service's own clock; rounded
    down where that tells whole seconds. None as for ``expires_at_ms``."""
    type: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    traceparent: str | None = None
    """W3C trace context of the sender."""
    group_id: str | None = None
    """The message group that it belongs to."""
    saved: Saved | None = None
    """What the last holder saved."""
    lease_s: int | None = None
    """Length of the lease, where it was the service that chose it."""

    @property
    def lease(self) -> Lease:
        """The lease as it was received; renewals replace its receipt."""
        return Lease(self.message_id, self.receipt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """How far a holder came, for the next one to go on from."""

    stage: str | None = None
    """The stage to be done next; None where there are no stages."""
    state: Any = None
    """Whatever JSON can say."""
    fraction: float | None = None
    """0 to 1, for people."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """A lease that was renewed. The receipt takes the place of the one before."""

    receipt: str = field(repr=False)
    cancel: str | None = None
    """Why an operator wants the work to stop; None if no operator does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What went wrong with a message, as it is kept for people."""

    text: str
    type: str | None = None
    """Name of the exception."""
    fingerprint: str | None = None
    """The same for like failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A message to be given back."""

    lease: Lease
    outcome: GivenBack
    delay_s: int | None = None
    """Until it can be received again; None: what the service would do by itself, which is at once
    where it has no back-off. A service that cannot make a message visible at once takes its
    shortest timeout."""
    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to be put."""

    body: bytes | str
    delay_s: int = 0
    time_to_live_s: int | None = None
    """None: what the service does by itself; -1: never expires."""
    type: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    dedup_key: str | None = None
    traceparent: str | None = None
    group_id: str | None = None
    """What a service has no place for (see its adapter) is refused with NotSupported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Where a message goes on when the work on it here is done."""

    queue: str
    """Name of another queue of the account."""
    outgoing: Outgoing
    """What takes the place of the message."""
    saved: Saved
    """Travels in its body."""


@dataclass(frozen=True, slots=True)
class Tried:
    """How the deliveries of a message have ended before this one."""

    failures: int
    """Given back as "failed"."""
    lapses: int
    """Ended without a word: the worker died or was too slow, or had not even begun."""


@dataclass(frozen=True, slots=True)
class Depth:
    """How many messages there are; None for what the service does not tell."""

    visible: int | None
    leased: int | None
    delayed: int | None
    total: int | None


class WorkerSession(Protocol):
    """A session that sends its heartbeats by itself."""

    @property
    def session_id(self) -> str:
        """Its id."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether all its leases have ended."""
        ...

    def cancelled(self, message_id: str) -> str | None:
        """Return why an operator wants the work on a message to stop, or None."""
        ...

    def progressed(self, message_id: str) -> None:
        """Say that the work on a message goes on, for the watchdog of the server."""
        ...

    def close(self) -> None:
        """End it, and all leases that it still has."""
        ...


class QueueClient(Protocol):
    """One queue of one service."""

    @property
    def name(self) -> str:
        """Name of the queue."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What the service can do."""
        ...

    def receive(
        self,
        max_messages: int,
        *,
        visibility_timeout_s: int,
        wait_s: float = 0,
        holder: str | None = None,
        session: WorkerSession | None = None,
    ) -> list[Delivery]:
        """Lease up to *max_messages*; more than one request gives is cut to that.

        Args:
            max_messages: 1 or more.
            visibility_timeout_s: Whole seconds, within the capabilities; or :data:`AS_SET`.
            wait_s: For a first message; cut to what the service can wait.
            holder: Who receives, for people who look at the queue; may be ignored.
            session: That the leases belong to, where there are sessions.
        """
        ...

    def renew(
        self, leases: Sequence[Lease], visibility_timeout_s: int, *, timeout_s: float | None = None
    ) -> list[Renewed | QueueError]:
        """Move the end of leases to *visibility_timeout_s* from now. The body stays as it is.

        Args:
            leases: With the newest receipts.
            visibility_timeout_s: Whole seconds.
            timeout_s: How long each request may take, if the library underneath lets that be said.
        """
        ...

    def complete(
        self, leases: Sequence[Lease], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """Remove messages whose work is done. *timeout_s* as for :meth:`renew`."""
        ...

    def release(
        self, releases: Sequence[Release], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """Give messages back. *timeout_s* as for :meth:`renew`."""
        ...

    def save(
        self, delivery: Delivery, receipt: str, saved: Saved, visibility_timeout_s: int
    ) -> Renewed:
        """Keep how far the work has come, with the message; the lease is renewed with it.

        Args:
            delivery: The message as it was received.
            receipt: The newest.
            saved: Takes the place of what was saved before.
            visibility_timeout_s: Whole seconds.

        Raises:
            LeaseGone: Nothing was saved.
            BodyTooLarge: Body and progress together are over the limit of the service.
            NotSupported: The service cannot; see :attr:`Capabilities.saves`.
        """
        ...

    def bury(
        self, delivery: Delivery, receipt: str, fault: Fault, *, timeout_s: float | None = None
    ) -> None:
        """Move a message to the poison queue, which is created if need be.

        *timeout_s* as for :meth:`renew`.
        Where that takes several requests, see :attr:`Capabilities.server_poison`, a call after no
        answer with the same receipt goes on with it.

        Raises:
            LeaseGone: The message may still be there, unless it moves in one step and an earlier
                call got no answer.
        """
        ...

    def put(self, messages: Sequence[Outgoing]) -> list[QueueError | None]:
        """Put messages."""
        ...

    def depth(self) -> Depth:
        """Count the messages, as exactly as the service does."""
        ...

    def create(self) -> None:
        """Create the queue, unless it is there."""
        ...

    def open_session(self, holder: str, timeout_s: float) -> WorkerSession:
        """Open a session that is lost when it was silent for *timeout_s*.

        Raises:
            NotSupported: The service has none.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class CountsFailures(Protocol):
    """What a client has besides if its capabilities say ``counts_failures``."""

    def tried(self, delivery: Delivery) -> Tried:
        """Return how the deliveries of a message have ended before this one.

        Costs a request; workers ask only about messages that were delivered often.

        Raises:
            LeaseGone: The message is not there any more.
            Denied: The worker's key has no right to that.
        """
        ...


class Forwards(Protocol):
    """What a client has besides if its capabilities say ``forwards``."""

    def forward(
        self, given: Sequence[tuple[Lease, Forward]], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """Complete messages, and put those that take their places; of each both or neither.

        *timeout_s* as for :meth:`QueueClient.renew`.
        """
        ...


class TellsOrder(Protocol):
    """What a client has besides if its capabilities say ``tells_order``."""

    def group_order(self) -> str:
        """Return ``fifo`` if the queue hands each message group out in order, or ``none``.

        Costs a request; workers ask once, and only those that work group by group.

        Raises:
            Denied: The worker's key has no right to that.
        """
        ...


# --- errors ------------------------------------------------------------------------------------
#
# What can go wrong between a worker and its queue, whatever the service.
#
# ::
#
#     QueueError
#     ├── LeaseGone       the lease is lost for good: stop working on the message
#     │   └── SetAside    the message is in the poison queue by now
#     ├── Unreachable     no server answered, or not now: try again
#     ├── Denied          the request will never be granted as it is: a key, a right, an argument
#     │   ├── PastExpiry  the lease, or the delay, would end after the message expires
#     │   └── Unauthenticated  the service does not accept the key, signature or token
#     ├── QueueMissing    there is no such queue
#     ├── BodyTooLarge    the service takes no body of that size
#     └── NotSupported    the service has no such thing; see Capabilities


class QueueError(Exception):
    """A call did not do what was asked. No text of it shows a key, a signature or a receipt."""

    outcome_unknown: bool = False
    """Whether the request may have been carried out all the same, by this try or an earlier one."""


class LeaseGone(QueueError):
    """Another worker has the message, or it is completed, removed or expired.

    Azure says MessageNotFound or PopReceiptMismatch, MNS MessageNotExist or ReceiptHandleError.
    """


class SetAside(LeaseGone):
    """The message was moved to the poison queue while the work went on, for too many deliveries.

    It was not completed. Where the service cannot tell, it is a plain LeaseGone.
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


class Unauthenticated(Denied):
    """The service does not accept the key, the signature or the token, whatever is asked for."""


class QueueMissing(QueueError):
    """The queue does not exist, or is being deleted."""


class BodyTooLarge(QueueError):
    """The body is over the limit of the service; see ``leasehold.worker.payloads``."""


class NotSupported(QueueError):
    """The service cannot do it; :class:`Capabilities` says so."""


# --- around ------------------------------------------------------------------------------------
#
# A queue client around another one, to change some of what it does.


class Around:
    """Passes everything on to *client*; what it has beside the protocol can be asked for as well.

    Args:
        client: The client inside.
    """

    def __init__(self, client: QueueClient) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        if name == "client":  # asked for by copy, before there is one
            raise AttributeError(name)
        return getattr(self.client, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.client!r})"

    @property
    def name(self) -> str:
        """See :class:`~leasehold.worker.adapters.QueueClient`; the same goes for all methods."""
        return self.client.name

    @property
    def capabilities(self) -> Capabilities:
        """What the service can do, with what was added to it."""
        return self.client.capabilities

    def receive(
        self,
        max_messages: int,
        *,
        visibility_timeout_s: int,
        wait_s: float = 0,
        holder: str | None = None,
        session: WorkerSession | None = None,
    ) -> list[Delivery]:
        """Lease messages."""
        return self._received(
            self.client.receive(
                max_messages,
                visibility_timeout_s=visibility_timeout_s,
                wait_s=wait_s,
                holder=holder,
                session=session,
            )
        )

    def renew(
        self, leases: Sequence[Lease], visibility_timeout_s: int, *, timeout_s: float | None = None
    ) -> list[Renewed | QueueError]:
        """Renew leases."""
        return self.client.renew(leases, visibility_timeout_s, timeout_s=timeout_s)

    def complete(
        self, leases: Sequence[Lease], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """Remove messages whose work is done."""
        results = self.client.complete(leases, timeout_s=timeout_s)
        done = [
            lease.message_id
            for lease, result in zip(leases, results, strict=True)
            if result is None
        ]
        if done:
            self._completed(done)
        return results

    def release(
        self, releases: Sequence[Release], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """Give messages back."""
        return self.client.release(releases, timeout_s=timeout_s)

    def save(
        self, delivery: Delivery, receipt: str, saved: Saved, visibility_timeout_s: int
    ) -> Renewed:
        """Keep how far the work has come."""
        return self.client.save(delivery, receipt, saved, visibility_timeout_s)

    def bury(
        self, delivery: Delivery, receipt: str, fault: Fault, *, timeout_s: float | None = None
    ) -> None:
        """Move a message to the poison queue."""
        self.client.bury(delivery, receipt, fault, timeout_s=timeout_s)
        self._buried(delivery.message_id)

    def put(self, messages: Sequence[Outgoing]) -> list[QueueError | None]:
        """Put messages."""
        return self.client.put(messages)

    def depth(self) -> Depth:
        """Count the messages."""
        return self.client.depth()

    def create(self) -> None:
        """Create the queue, unless it is there."""
        self.client.create()

    def open_session(self, holder: str, timeout_s: float) -> WorkerSession:
        """Open a session."""
        return self.client.open_session(holder, timeout_s)

    def close(self) -> None:
        """Let go of connections."""
        self.client.close()

    # --- what may be done besides ------------------------------------------------------------

    def _received(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Return what is to be handed out of what was leased."""
        return deliveries

    def _completed(self, message_ids: Sequence[str]) -> None:
        """Take note that messages were completed."""

    def _buried(self, message_id: str) -> None:
        """Take note that a message was moved to the poison queue."""
