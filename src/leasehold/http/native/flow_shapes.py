"""The JSON of requests about sessions, claims, transactions and commits.

As in :mod:`leasehold.http.native.shapes`: ``null`` and a member left out are the same, and ranges
are checked where values are used. Lists of names are kept as they came until it is known that they
are short: names read from JSON take many times their text.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from leasehold.http.native.shapes import (
    CompleteItem,
    ErrorIn,
    ProgressIn,
    PutItem,
    ReleaseItem,
    RenewItem,
)

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
    """Proof that nobody else has attached."""

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
