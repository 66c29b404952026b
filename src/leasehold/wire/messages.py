"""What producers and workers send and get: put, receive, peek, renew, complete, release.

What there can be thousands of is hidden from the garbage collector (``gc=False``): it holds no
references in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Generic, Literal, TypeAlias, TypeVar

from msgspec import UNSET, Struct

from leasehold.domain.limits import MAX_ITEMS, MAX_SAVED_BYTES, MAX_WAIT_S, NATIVE, PRIORITIES
from leasehold.domain.model import DEFAULT_PRIORITY
from leasehold.wire.parts import (
    AnyJson,
    Delay,
    GroupId,
    ItemProblem,
    LeaseS,
    Ms,
    Priority,
    Properties,
    QueueName,
    Request,
    ShortText,
    TimeToLive,
    WithBody,
    between,
    one_of,
    said,
)

MAX_PEEK: Final = 1_000
"""Messages that one peek shows."""
DEFAULT_PEEK: Final = 32
MAX_PROPERTIES_BYTES: Final = 8_192
"""Names and values together, as for the metadata of a queue."""

_ITEMS: Final = said(minItems=1, maxItems=MAX_ITEMS)
Outcome: TypeAlias = Literal["failed", "interrupted", "returned", "buried"]
"""Why a message is given back: the work went wrong; the worker had to stop; no reason; or the
message is to go to the poison queue at once."""


class _Batch(Request):
    """Items, each of which is carried out or refused by itself."""

    atomic: bool | None = None
    """Whether one refused item keeps all others from being carried out; those then have the code
    ``not-done``. Otherwise each item stands for itself."""


# --- put -----------------------------------------------------------------------------------------


class PutItem(WithBody, gc=False):
    """A message to put. It has exactly one of ``body``, ``body_base64`` and ``json``."""

    delay_s: Delay | None = None
    time_to_live_s: TimeToLive | None = None
    priority: Priority | None = None
    dedup_key: ShortText | None = None
    """A key put again within the queue's window is the same message."""
    type: ShortText | None = None
    properties: Properties | None = None
    traceparent: (
        Annotated[str, said(pattern="^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")] | None
    ) = None
    """W3C trace context."""
    group_id: GroupId | None = None
    """The message group that it belongs to: a tenant, an order, a device."""
    visibility_timeout_s: LeaseS | None = None
    """Lease of receives that name none, at most what the queue's ``max_message_timeout_s`` says;
    what is set for its type or the queue if left out."""


class QueuedPut(PutItem, kw_only=True, gc=False):
    """A message to put, and the queue that it is for.

    It has exactly one of ``body``, ``body_base64`` and ``json``.
    """

    queue: QueueName


class PutRequest(_Batch, kw_only=True):
    """Messages to put."""

    messages: Annotated[list[PutItem], _ITEMS]


class PutResult(Struct, frozen=True, omit_defaults=True, gc=False):
    """A message that was put."""

    id: str
    inserted_at_ms: Ms
    expires_at_ms: Ms | None
    """Unix milliseconds; None for never."""
    visible_at_ms: Ms
    receipt: str
    """Acts on the message until it is first received."""
    duplicate: Annotated[bool, said(const=True)] = False
    """Nothing was put: the values are those of the message put before with the same key."""


# --- receive and peek ----------------------------------------------------------------------------


class ReceiveRequest(Request):
    """How many messages to receive, and for how long."""

    max_messages: Annotated[int, between(NATIVE.receive_count, default=1)] | None = None
    visibility_timeout_s: LeaseS | None = None
    """Length of the leases; if left out, each message has its own: what its producer asked for,
    what is set for its type, or what is set for the queue."""
    wait_s: Annotated[float, between((0, MAX_WAIT_S), default=0)] | None = None
    """How long to wait for a message if there is none."""
    holder: ShortText | None = None
    """Who receives, for those who look at the message meanwhile."""
    session: ShortText | None = None
    """A live session, with which the leases end; the holder is then the session's."""
    group_id: GroupId | None = None
    """Only messages of this group, which the session holds from then on. It needs a session."""
    next_group: bool = False
    """The same of whichever group has its turn, which the messages name."""


class PeekRequest(Request):
    """How many messages to look at."""

    max_messages: Annotated[int, between((1, MAX_PEEK), default=DEFAULT_PEEK)] | None = None


class Received(Struct, omit_defaults=True, gc=False):
    """A message with the receipt that acts on it.

    It has ``body`` if its bytes are UTF-8, else ``body_base64``.
    """

    id: str
    inserted_at_ms: Ms
    expires_at_ms: Ms | None
    """Unix milliseconds; None for never."""
    visible_at_ms: Ms
    """End of the lease, Unix milliseconds."""
    dequeue_count: int
    """How often it was received."""
    fence: int
    """Rises with every receipt; pass it on where a late writer must be kept out."""
    receipt: str
    """Proves the lease; each renewal gives a new one."""
    body: str | None = None
    body_base64: bytes | None = None
    priority: Annotated[int, between(PRIORITIES)] = DEFAULT_PRIORITY
    """Left out if it is 8."""
    type: str | None = None
    properties: dict[str, str] | None = None
    traceparent: str | None = None
    dedup_key: str | None = None
    session: str | None = None
    """Id of the session that the lease belongs to."""
    saved: AnyJson = UNSET
    """What a holder saved with a renewal: any JSON but null. Left out if there is nothing."""
    group_id: str | None = None
    """The message group that it belongs to."""
    lease_s: int | None = None
    """Length of the lease, in seconds, if the receive named none."""


BodyProblem: TypeAlias = Annotated[
    str,
    one_of(
        *("missing", "corrupt", "unreachable", "left-out"),
        description="Why a large body is not shown: it is `missing` or `corrupt` where large "
        "bodies are kept, that place is `unreachable`, or it was `left-out` to keep the answer "
        "small.",
    ),
]


class Peeked(Struct, omit_defaults=True, gc=False):
    """A message that was looked at, not leased.

    It has ``body`` if its bytes are UTF-8, else ``body_base64``; or ``body_problem``.
    """

    id: str
    inserted_at_ms: Ms
    expires_at_ms: Ms | None
    """Unix milliseconds; None for never."""
    visible_at_ms: Ms
    """From this moment on, Unix milliseconds, it can be received (again)."""
    dequeue_count: int
    """How often it was received."""
    body: str | None = None
    body_base64: bytes | None = None
    priority: Annotated[int, between(PRIORITIES)] = DEFAULT_PRIORITY
    """Left out if it is 8."""
    type: str | None = None
    properties: dict[str, str] | None = None
    traceparent: str | None = None
    dedup_key: str | None = None
    body_problem: BodyProblem | None = None
    body_bytes: int | None = None
    """Size of a body that is not shown."""
    group_id: str | None = None
    """The message group that it belongs to."""


class ReceivedMessages(Struct, omit_defaults=True):
    """What a receive has leased."""

    messages: Sequence[Received]
    paused: Annotated[bool, said(const=True)] = False
    """There is nothing because the queue is paused."""


class PeekedMessages(Struct):
    """What a peek has found."""

    messages: Sequence[Peeked]


# --- renew, complete, release --------------------------------------------------------------------


class ProgressReport(Request):
    """How far the holder of a lease has come."""

    fraction: Annotated[float, between((0, 1))] | None = None
    note: str | None = None
    """Cut after 1,024 characters."""


class RenewItem(WithBody, kw_only=True, gc=False):
    """A lease to renew.

    At most one of ``body``, ``body_base64`` and ``json`` replaces the body.
    """

    id: str
    receipt: str
    visibility_timeout_s: Annotated[int, between(NATIVE.renew_s)]
    """Seconds from now; 0 makes the message visible at once."""
    progress: ProgressReport | None = None
    saved: Annotated[AnyJson, said(**{"x-max-bytes": MAX_SAVED_BYTES})] = UNSET
    """Any JSON, of at most 65,536 bytes without blanks, to keep with the message for whoever
    receives it next. It takes the place of what was saved before, and outlives the lease; left out,
    that stays; ``null`` removes it."""


class QueuedRenew(RenewItem, kw_only=True, gc=False):
    """A lease to renew, and the queue of its message."""

    queue: QueueName


class RenewRequest(_Batch, kw_only=True):
    """Leases to renew."""

    items: Annotated[list[RenewItem], _ITEMS]


class CancelRequest(Struct, frozen=True):
    """An operator's wish that the work on a message be stopped."""

    at_ms: Ms
    reason: str | None = None


class CancelAsked(CancelRequest, frozen=True, omit_defaults=True, gc=False):
    """An operator's wish that the work on a message be stopped, as a renewal tells it."""


class RenewResult(Struct, omit_defaults=True, gc=False):
    """A lease as it was renewed."""

    id: str
    receipt: str
    visible_at_ms: Ms
    cancel: CancelAsked | None = None
    """An operator wants the work stopped."""


class CompleteItem(Request, gc=False):
    """A message whose work is done."""

    id: str
    receipt: str


class QueuedComplete(CompleteItem, kw_only=True, gc=False):
    """A message whose work is done, and the queue that it is in."""

    queue: QueueName


class CompleteRequest(_Batch, kw_only=True):
    """Messages whose work is done."""

    items: Annotated[list[CompleteItem], _ITEMS]


class CompleteResult(Struct, gc=False):
    """A message that is done."""

    id: str


class ReportedError(Request):
    """What went wrong with a message."""

    text: str
    """Cut after 8,192 characters."""
    type: str | None = None
    """Name of the exception; cut after 1,024 characters."""
    fingerprint: str | None = None
    """The same for failures that are alike; cut after 1,024 characters."""


class ReleaseItem(Request, gc=False):
    """A message to give back."""

    id: str
    receipt: str
    outcome: Annotated[Outcome, said(default="returned")] | None = None
    """``failed``: the work went wrong. ``interrupted``: the worker had to stop. ``returned``: for
    no reason that counts. ``buried``: to the poison queue, whatever the limits say."""
    delay_s: Delay | None = None
    """Seconds until it can be received again; if left out, the queue's back-off after a failure,
    and at once otherwise."""
    error: ReportedError | None = None


class QueuedRelease(ReleaseItem, kw_only=True, gc=False):
    """A message to give back, and the queue that it is in."""

    queue: QueueName


class ReleaseRequest(_Batch, kw_only=True):
    """Messages to give back."""

    items: Annotated[list[ReleaseItem], _ITEMS]


class ReleaseResult(Struct, frozen=True, omit_defaults=True, gc=False):
    """A message that was given back."""

    id: str
    visible_at_ms: Ms
    """From this moment on, Unix milliseconds, it can be received again."""
    poisoned: str | None = None
    """It went to the poison queue: which budget it had used up, or ``buried``."""


# --- what became of items ------------------------------------------------------------------------

ItemResult: TypeAlias = PutResult | RenewResult | CompleteResult | ReleaseResult | ItemProblem
"""What the server says of one item."""


R = TypeVar("R")


class Results(Struct, Generic[R]):
    """What became of the items, in their order: of ItemResult each."""

    results: list[R]
    failed: int = 0
    """How many of them are problems."""
