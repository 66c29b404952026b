"""The JSON of requests and answers, as far as it goes over the hot path or is shared.

``null`` and a member left out are the same, unless said otherwise. Requests refuse members they do
not know. Ranges are checked where values are used, so that a refusal can name the value and both
ends.

What there can be thousands of is hidden from the garbage collector (``gc=False``): it holds no
references in a circle.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from leasehold.domain.types import DEFAULT_PRIORITY
from leasehold.http.native.problems import Problem
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
