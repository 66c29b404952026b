"""The JSON of requests and answers, as far as it goes over the hot path or is shared.

``null`` and a member left out are the same, unless said otherwise. Requests refuse members they do
not know. Ranges are checked where values are used, so that a refusal can name the value and both
ends.

What there can be thousands of is hidden from the garbage collector (``gc=False``): it holds no
references in a circle.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final, Literal, TypeAlias

import msgspec

from leasehold.domain.model import DEFAULT_PRIORITY, NEVER_MS, NO_DETAIL, Lease, Message
from leasehold.http.native.errors import Problem
from leasehold.http.native.reading import WithBody

# --- requests ------------------------------------------------------------------------------------


class PutItem(WithBody, forbid_unknown_fields=True, gc=False):
    """A message to put."""

    delay_s: int | None = None
    time_to_live_s: int | None = None
    priority: int | None = None
    dedup_key: str | None = None
    type: str | None = None
    properties: dict[str, str] | None = None
    traceparent: str | None = None


class PutRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Messages to put."""

    messages: list[PutItem]
    atomic: bool | None = None


class ReceiveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How many messages to receive, and for how long."""

    max_messages: int | None = None
    visibility_timeout_s: int | None = None
    wait_s: float | None = None
    holder: str | None = None
    session: str | None = None


class PeekRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How many messages to look at."""

    max_messages: int | None = None


class ProgressIn(msgspec.Struct, forbid_unknown_fields=True):
    """How far the holder of a lease has come."""

    fraction: float | None = None
    note: str | None = None


class RenewItem(WithBody, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A lease to renew."""

    id: str
    receipt: str
    visibility_timeout_s: int
    progress: ProgressIn | None = None
    saved: msgspec.Raw = msgspec.Raw()
    """Here ``null`` says something: to remove what was saved."""


class RenewRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Leases to renew."""

    items: list[RenewItem]
    atomic: bool | None = None


class CompleteItem(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message whose work is done."""

    id: str
    receipt: str


class CompleteRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Messages whose work is done."""

    items: list[CompleteItem]
    atomic: bool | None = None


class ErrorIn(msgspec.Struct, forbid_unknown_fields=True):
    """What went wrong."""

    text: str
    type: str | None = None
    fingerprint: str | None = None


class ReleaseItem(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message to give back."""

    id: str
    receipt: str
    outcome: Literal["failed", "interrupted", "returned", "buried"] | None = None
    delay_s: int | None = None
    error: ErrorIn | None = None


class ReleaseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Messages to give back."""

    items: list[ReleaseItem]
    atomic: bool | None = None


class FilterIn(msgspec.Struct, forbid_unknown_fields=True):
    """Which messages are meant."""

    states: list[str] | None = None
    min_age_s: float | None = None
    max_age_s: float | None = None
    min_dequeue_count: int | None = None
    max_dequeue_count: int | None = None
    holder: str | None = None
    message_type: str | None = None
    reason: str | None = None
    error: str | None = None
    text: str | None = None
    json_path: str | None = None
    json_value: Any = None


class PurgeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What to purge."""

    filter: FilterIn | None = None
    dry_run: bool | None = None
    wait_s: float | None = None


class RedriveRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What to redrive, and how."""

    filter: FilterIn | None = None
    rate_per_s: float | None = None
    dry_run: bool | None = None
    canary: int | None = None
    target: str | None = None
    wait_s: float | None = None


class QueueRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A queue's metadata and settings."""

    metadata: dict[str, str] | None = None
    settings: dict[str, Any] | None = None


class PauseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How long to pause, and why."""

    for_s: float | None = None
    reason: str | None = None


class NoRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Nothing: the address says it all."""


class AmendRequest(WithBody, forbid_unknown_fields=True):
    """What to change about a message."""

    delay_s: int | None = None
    time_to_live_s: int | None = None
    priority: int | None = None
    properties: dict[str, str] | None = None
    force: bool | None = None


class EndLeaseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """When the message is visible again, and why its lease ends."""

    delay_s: int | None = None
    reason: str | None = None


class CancelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Why the work on a message is to be stopped."""

    reason: str | None = None


# --- answers -------------------------------------------------------------------------------------


class ItemProblem(msgspec.Struct, gc=False):
    """Why one item of a batch was refused."""

    error: Problem


class PutResult(msgspec.Struct, omit_defaults=True, gc=False):
    """A message as it was put."""

    id: str
    inserted_at_ms: int
    expires_at_ms: int | None
    """None for never."""
    visible_at_ms: int
    receipt: str
    duplicate: bool = False


class Received(msgspec.Struct, omit_defaults=True, gc=False):
    """A message with the receipt that acts on it."""

    id: str
    inserted_at_ms: int
    expires_at_ms: int | None
    visible_at_ms: int
    dequeue_count: int
    fence: int
    receipt: str
    body: str | None = None
    body_base64: str | None = None
    priority: int = DEFAULT_PRIORITY
    type: str | None = None
    properties: dict[str, str] | None = None
    traceparent: str | None = None
    dedup_key: str | None = None
    session: str | None = None
    saved: msgspec.Raw = msgspec.Raw()


class Peeked(msgspec.Struct, omit_defaults=True, gc=False):
    """A message that was only looked at."""

    id: str
    inserted_at_ms: int
    expires_at_ms: int | None
    visible_at_ms: int
    dequeue_count: int
    body: str | None = None
    body_base64: str | None = None
    priority: int = DEFAULT_PRIORITY
    type: str | None = None
    properties: dict[str, str] | None = None
    traceparent: str | None = None
    dedup_key: str | None = None
    body_problem: str | None = None
    """Why there is no body: missing, corrupt, unreachable, or left-out."""
    body_bytes: int | None = None
    """Its size, if there is none."""


class Cancel(msgspec.Struct, omit_defaults=True, gc=False):
    """An operator's wish that the work be stopped."""

    at_ms: int
    reason: str | None = None


class RenewResult(msgspec.Struct, omit_defaults=True, gc=False):
    """A lease as it was renewed."""

    id: str
    receipt: str
    visible_at_ms: int
    cancel: Cancel | None = None


class CompleteResult(msgspec.Struct, gc=False):
    """A message that is done."""

    id: str


class ReleaseResult(msgspec.Struct, omit_defaults=True, gc=False):
    """A message given back, or moved to the poison queue."""

    id: str
    visible_at_ms: int
    poisoned: str | None = None


ItemResult: TypeAlias = PutResult | RenewResult | CompleteResult | ReleaseResult | ItemProblem


class Results(msgspec.Struct):
    """What became of the items, in their order."""

    results: list[ItemResult]
    failed: int
    """How many of them are problems."""


# --- flow shapes -------------------------------------------------------------------------------
#
# The JSON of requests about sessions, claims, transactions and commits.
#
# As in :mod:`leasehold.http.native.shapes`: ``null`` and a member left out are the same, and
# ranges are checked where values are used. Lists of names are kept as they came until it is known
# that they are short: names read from JSON take many times their text.


# --- sessions ------------------------------------------------------------------------------------


class OpenSessionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Who begins a session, and how long it may be silent."""

    holder: str
    timeout_s: int | None = None
    progress_timeout_s: int | None = None


class HeartbeatRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What a worker says besides that it lives."""

    progress: dict[str, ProgressIn | None] | None = None


class EndSessionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Why a session ends."""

    reason: str | None = None


# --- claims --------------------------------------------------------------------------------------


class OpenClaimRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How much to claim, and for how long."""

    token: int
    limit: int
    lease_s: int
    holder: str | None = None
    max_bytes: int | None = None
    accept_loss: bool | None = None
    wait_s: float | None = None


class ExtendClaimRequest(msgspec.Struct, forbid_unknown_fields=True):
    """For how long to keep a claim."""

    token: int
    lease_s: int
    park: bool | None = None


class TokenRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Proof that no other consumer has attached."""

    token: int


class QueuedPut(PutItem, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message to put, and the queue that it is for."""

    queue: str


class NotedItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A member of a claim that is not completed, and what becomes of it."""

    id: str
    outcome: Literal["failed", "interrupted", "returned", "buried"]
    delay_s: int | None = None
    error: ErrorIn | None = None


class ExemptRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What becomes of members when their claim is settled."""

    token: int
    exemptions: list[NotedItem]


class BindRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which transaction settles a claim."""

    token: int
    transaction: str


class ExemptionItem(NotedItem, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The same, of any claim of a stream."""

    number: int


class SettleRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What to settle, and what to do with it in one."""

    token: int
    upto: int
    exemptions: list[ExemptionItem] | None = None
    publish: msgspec.Raw = msgspec.Raw()
    sends: list[QueuedPut] | None = None


# --- transactions --------------------------------------------------------------------------------


class StageRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Messages to stage."""

    part: str
    chunk: int
    messages: list[QueuedPut]
    timeout_s: int | None = None


class PartsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which parts of a transaction are meant."""

    parts: list[str] | None = None


class QueuedComplete(CompleteItem, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message whose work is done, and the queue that it is in."""

    queue: str


class QueuedRelease(ReleaseItem, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message to give back, and the queue that it is in."""

    queue: str


class QueuedRenew(RenewItem, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A lease to renew, and the queue of its message."""

    queue: str


class CommitRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What to do as one."""

    name: str | None = None
    send: list[QueuedPut] | None = None
    complete: list[QueuedComplete] | None = None
    release: list[QueuedRelease] | None = None
    renew: list[QueuedRenew] | None = None
    publish: msgspec.Raw = msgspec.Raw()


# --- bodies ------------------------------------------------------------------------------------
#
# Messages as JSON shows them: bodies, times, and what was sent along.


def expiry(expires_at_ms: int) -> int | None:
    """Return when a message expires, None for never."""
    return None if expires_at_ms >= NEVER_MS else expires_at_ms


def body_members(body: bytes) -> dict[str, str]:
    """Return the body as text, or as base64 if it is none."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode("ascii")}


def shown_body(message: Message) -> dict[str, str]:
    """Return the body of a message, or why it is left out."""
    ref = message.detail.body_ref
    if ref is not None and ref.problem is not None:
        return {"body_problem": ref.problem}
    return body_members(message.body)


def received(lease: Lease) -> Received:
    """Return what a receive tells of a message."""
    message, receipt = lease
    expires_at_ms = message.expires_at_ms
    shown = Received(
        message.message_id,
        message.inserted_at_ms,
        None if expires_at_ms >= NEVER_MS else expires_at_ms,
        message.visible_at_ms,
        message.dequeue_count,
        message.fence,
        receipt,
        session=message.session,
    )
    _add_content(shown, message)
    saved = message.detail.saved
    if saved is not None:
        shown.saved = msgspec.Raw(saved)
    return shown


def peeked(message: Message) -> Peeked:
    """Return what a look at a message tells."""
    shown = Peeked(
        message.message_id,
        message.inserted_at_ms,
        expiry(message.expires_at_ms),
        message.visible_at_ms,
        message.dequeue_count,
    )
    ref = message.detail.body_ref
    if ref is not None and ref.problem is not None:
        shown.body_problem, shown.body_bytes = ref.problem, ref.size_bytes
    _add_content(shown, message)
    if shown.body_problem is not None:
        shown.body = None
    return shown


def _add_content(shown: Received | Peeked, message: Message) -> None:
    try:
        shown.body = message.body.decode()
    except UnicodeDecodeError:
        shown.body_base64 = b64encode(message.body).decode("ascii")
    shown.priority = message.priority
    detail = message.detail
    if detail is not NO_DETAIL:
        shown.type = detail.message_type
        shown.properties = dict(detail.properties) or None
        shown.traceparent = detail.traceparent
        shown.dedup_key = detail.dedup_key


SENT_ALONG: Final = ("type", "properties", "traceparent", "dedup_key")


def sent_along(message: Message) -> dict[str, Any]:
    """Return all that was sent along with a message, also what was not."""
    detail = message.detail
    values = (detail.message_type, detail.properties, detail.traceparent, detail.dedup_key)
    return dict(zip(SENT_ALONG, values, strict=True))
