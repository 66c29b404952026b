"""The nouns: queues, messages, leases.

Times are Unix milliseconds (``*_ms``) and lengths of time are seconds (``*_s``) everywhere. The
words are those of ``docs/glossary.md``.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import sys
from array import array
from binascii import Error as BinasciiError
from binascii import a2b_base64, b2a_base64
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

from leasehold.domain.errors import (
    InvalidMarker,
    LeaseholdError,
    OutOfRange,
    ReceiptMalformed,
    VisibilityPastExpiry,
)
from leasehold.domain.queue_settings import DEFAULT_SETTINGS, Adapted, QueueSettings

QueueKey: TypeAlias = tuple[str, str]
"""An account and the name of one of its queues."""

NEVER_MS = 253_402_300_799_000
"""Expiry of a message that never expires: 9999-12-31T23:59:59Z, which dialects show as such."""


class MessageState(StrEnum):
    """Why a message can or cannot be received; decided by :func:`visibility.state_of`."""

    VISIBLE = "visible"
    DELAYED = "delayed"
    LEASED = "leased"
    DEFERRED = "deferred"
    EXPIRED = "expired"
    POISONED = "poisoned"
    STAGED = "staged"
    """Put under the name of a transaction that is not published yet."""


class Phase(IntEnum):
    """What last happened to a message. With the time it gives the state; stores keep the number."""

    WAITING = 0
    """Put without a delay, or made visible by an operator."""
    DELAYED = 1
    """Put with a delay."""
    LEASED = 2
    """Received; the lease may have run out since."""
    DEFERRED = 3
    """Given back, with a delay or without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """A stored access policy of a queue; a field left out is ``None``, as the owner sent it."""

    policy_id: str
    """Name that a shared access signature refers to, 1 to 64 characters."""
    start: str | None = None
    """ISO 8601 time as sent, or None."""
    expiry: str | None = None
    """ISO 8601 time as sent, or None."""
    permission: str | None = None
    """Letters out of ``raup``, or None."""
    complete: bool = True
    """False when the owner sent the name alone, with no policy beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One queue of one account."""

    account: str
    name: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    """User's names and values; the case of a name is kept."""
    policies: tuple[AccessPolicy, ...] = ()
    settings: QueueSettings = DEFAULT_SETTINGS
    created_at_ms: int = 0


class Outcome(StrEnum):
    """How an attempt to work on a message ended, other than by completing it."""

    FAILED = "failed"
    """Given back because the work went wrong. Counts against the budget of failures."""
    INTERRUPTED = "interrupted"
    """Given back because the worker had to stop. Not a delivery that the queue's limit counts."""
    RETURNED = "returned"
    """Given back without a reason."""
    LAPSED = "lapsed"
    """The lease ran out; noticed when the message is received again."""
    ENDED = "ended"
    """An operator ended the lease."""
    BURIED = "buried"
    """The worker sent the message to the poison queue."""
    LOST = "lost"
    """The worker's session was lost. Counts as a lapse: the message may have killed it."""
    STUCK = "stuck"
    """The worker lives and reported no progress for too long. Counts as a lapse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """What a worker says about a failure."""

    text: str
    type: str | None = None
    """Name of the exception, for example."""
    fingerprint: str | None = None
    """A hash of the stack trace, so that like failures can be counted together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One lease of a message that has ended without completing it."""

    number: int
    """The dequeue count of the lease."""
    leased_at_ms: int
    ended_at_ms: int
    """For a lapse, the moment at which the lease ran out."""
    outcome: Outcome
    holder: str | None = None
    renewals: int = 0
    error: ErrorReport | None = None
    fence: int = 0
    """Number of its newest receipt, each renewal having raised it by one; 0 where an older version
    wrote this down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the holder of a lease says it has come."""

    at_ms: int
    fraction: float | None = None
    """0 to 1."""
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """An operator's wish that the work on a message be stopped."""

    at_ms: int
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyRef:
    """Where a large body is kept, outside the store of messages."""

    key: str
    """Name within the body store."""
    size_bytes: int
    sha256: str
    """Of the body, in hexadecimal."""
    problem: str | None = None
    """In an answer without the body, why that is: ``missing``, ``corrupt``, ``unreachable``, or
    ``left-out`` to keep the answer small. Never kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisoning:
    """Why and when a message was moved to the poison queue."""

    queue: str
    """Name of the queue that it failed in."""
    reason: str
    """Which budget was used up, ``buried``, or what an operator gave as the reason."""
    at_ms: int
    time_to_live_ms: int | None = None
    """What the message had to live when it was put, for its return; None for ever."""
    deliveries: int = 0
    """Those that counted by then, and so on: in the poison queue the budgets begin anew."""
    failures: int = 0
    interruptions: int = 0
    lapses: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What few messages have: what was sent along with the body, and what went wrong."""

    properties: Mapping[str, str] = field(default_factory=dict)
    """User's names and values, as with HTTP headers."""
    property_types: Mapping[str, str] = field(default_factory=dict)
    """By name, what a property is for those who send it through MNS; without one it is a text."""
    message_type: str | None = None
    traceparent: str | None = None
    """W3C trace context of the send, ``00-...``."""
    dedup_key: str | None = None
    group_id: str | None = None
    """Messages of one group belong together: a tenant, an order, a device; 1 to
    :data:`leasehold.domain.limits.MAX_GROUP_ID` characters."""
    visibility_timeout_s: int | None = None
    """Lease of a receive that names none, as the producer asked; see
    :meth:`leasehold.domain.queue_settings.QueueSettings.timeout_of`."""
    progress: Progress | None = None
    failures: int = 0
    interruptions: int = 0
    lapses: int = 0
    first_visible_at_ms: int | None = None
    """Set once the message has been received for the second time; until then it follows from the
    other times."""
    attempts: tuple[Attempt, ...] = ()
    """The first one and the latest ones; :data:`MAX_ATTEMPTS` at most."""
    poisoning: Poisoning | None = None
    redriven: int = 0
    """How often the message was brought back from the poison queue."""
    cancel: CancelRequest | None = None
    """Set by an operator, gone with the lease."""
    body_ref: BodyRef | None = None
    """Set if the body is in the body store; ``Message.body`` is empty then."""
    saved: str | None = None
    """JSON that a holder saved for whoever has the message next. Stores keep it apart from the
    rest, which changes with every lease."""


MAX_ATTEMPTS = 20
NO_DETAIL = Detail()
DEFAULT_PRIORITY = 8
"""Of 1 (first) to 16 (last), as in MNS."""


class Message(NamedTuple):
    """A message as the store holds it. A tuple, because every answer is made of new ones."""

    message_id: str
    """Lower-case UUID; see :mod:`leasehold.domain.model`."""
    body: bytes
    inserted_at_ms: int
    expires_at_ms: int
    """From this moment on the message can be neither received nor acted on; NEVER_MS for never."""
    visible_at_ms: int
    """From this moment on it can be received (again)."""
    dequeue_count: int = 0
    """How often it was received."""
    fence: int = 0
    """Rises with every new receipt, so of two holders the later one has the higher number."""
    phase: Phase = Phase.WAITING
    since_ms: int = 0
    """When the phase began: put, received, or given back."""
    visible_since_ms: int = 0
    """When it became visible before the current or last lease; 0 if never received."""
    renewals: int = 0
    """Renewals of the current or last lease."""
    holder: str | None = None
    """Who received it last, as far as they said."""
    priority: int = DEFAULT_PRIORITY
    detail: Detail = NO_DETAIL
    session: str | None = None
    """Id of the session that the current or last lease belongs to."""


class Lease(NamedTuple):
    """A message together with the one receipt that acts on it now."""

    message: Message
    receipt: str


def body_problem(message: Message) -> str | None:
    """Return why a message comes without its body, see :class:`BodyRef`; None if it does not."""
    ref = message.detail.body_ref
    return None if ref is None else ref.problem


# --- ids ---------------------------------------------------------------------------------------
#
# Message ids: UUIDs that carry the key of their row.
#
# An id is a UUID of version 8 (RFC 9562, section 5.8): 48 bits of row key, then 74 random bits. A
# look-up by id therefore needs no index of its own, which would cost every put and every delete a
# tree operation. Row keys rise and are never used twice in a store.


ENTROPY_BYTES = 10
MAX_ROW_KEY = (1 << 48) - 1

_BITS: Final = (8 << 76) | (2 << 62)
"""Version 8, and the variant of RFC 9562."""
_DRAWN: Final = (1 << 80) - 1 - (0xF << 76) - (3 << 62)
_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def make_message_id(row_key: int, entropy: bytes) -> str:
    """Return the id of the message in row *row_key* (1 to 2**48 - 1), with 10 random bytes."""
    return id_from_blob(make_id_blob(row_key, entropy))


def make_id_blob(row_key: int, entropy: bytes) -> bytes:
    """Return the 16 bytes of the id of the message in row *row_key*."""
    # Six of the random bits give way to the version and the variant.
    drawn = int.from_bytes(entropy, "big") & _DRAWN
    return (row_key << 80 | drawn | _BITS).to_bytes(16, "big")


def make_id_blobs(first_key: int, entropy: bytes) -> bytes:
    """Return what :func:`make_id_blob` gives for row keys that follow each other, joined.

    Byte by byte of all of them: in a tenth of the time.
    """
    count = len(entropy) // ENTROPY_BYTES
    keys = b"".join([key.to_bytes(6, "big") for key in range(first_key, first_key + count)])
    ids = bytearray(16 * count)
    for place in range(6):
        ids[place::16] = keys[place::6]
    for place in range(ENTROPY_BYTES):
        ids[6 + place :: 16] = entropy[place::ENTROPY_BYTES]
    ids[6::16] = ids[6::16].translate(_VERSION)
    ids[8::16] = ids[8::16].translate(_VARIANT)
    return bytes(ids)


_VERSION: Final = bytes(0x80 | each & 0x0F for each in range(256))
_VARIANT: Final = bytes(0x80 | each & 0x3F for each in range(256))


def row_key_in(blob: bytes) -> int:
    """Return the row key inside the 16 bytes of an id."""
    return int.from_bytes(blob[:6], "big")


def row_keys_in(ids: bytes) -> array[int]:
    """Return the row keys inside ids of 16 bytes that are joined."""
    count = len(ids) // 16
    numbers = bytearray(8 * count)
    for place in range(6):
        numbers[2 + place :: 8] = ids[place::16]
    keys = array("q", bytes(numbers))
    if sys.byteorder == "little":
        keys.byteswap()
    return keys


def id_from_blob(blob: bytes) -> str:
    """Return an id of 16 bytes as text."""
    text = blob.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def id_to_blob(message_id: str) -> bytes:
    """Return an id as 16 bytes.

    Raises:
        ValueError: It is not spelled as an id is: lower case, with dashes.
    """
    blob = bytes.fromhex(message_id.replace("-", ""))
    if id_from_blob(blob) != message_id:
        raise ValueError(message_id)
    return blob


def row_key_of(message_id: str) -> int | None:
    """Return the row key inside *message_id*, or None when it is not an id of ours."""
    if _CANONICAL.fullmatch(message_id) is None:
        return None
    return int(message_id[:8] + message_id[9:13], 16)


# --- life --------------------------------------------------------------------------------------


def expiry_of(now_ms: int, time_to_live_s: int | None) -> int:
    """Return when a message put now expires; None as time to live means never."""
    if time_to_live_s is None:
        return NEVER_MS
    return min(now_ms + time_to_live_s * 1000, NEVER_MS)


def put_refusal(now_ms: int, delay_s: int, expires_at_ms: int) -> LeaseholdError | None:
    """Refuse a message that would expire before it can be received even once."""
    if now_ms + delay_s * 1000 >= expires_at_ms:
        return VisibilityPastExpiry("put", delay_s)
    return None


def own_timeout_refusal(own_s: int | None, settings: QueueSettings) -> LeaseholdError | None:
    """Refuse a visibility timeout that a producer may not name.

    It is not cut: leases that are shorter than the producer asked for end in the middle of the
    work, and neither side would know why.
    """
    longest_s = settings.max_message_timeout_s
    if own_s is None or own_s <= longest_s:
        return None
    least_s = min(1, longest_s)
    return OutOfRange(field="visibility_timeout_s", value=own_s, minimum=least_s, maximum=longest_s)


# --- receipts ----------------------------------------------------------------------------------
#
# Receipts: the tokens that prove a lease.
#
# A receipt names one message (by row key) and one lease of it (by fence) and is sealed with a key
# that never leaves the store, so none can be made up. It is 36 characters of ``[A-Za-z0-9_-]``,
# safe in a URL without escaping: clients are known to mangle ``+`` and ``/``.
#
# A receipt acts only while its fence equals the message's: equality is the safety device, time
# plays no part in it. The one exception changes nothing but the end of the same lease; see
# :func:`leasehold.domain.visibility.is_repeat`.


KEY_BYTES = 32
RECEIPT_CHARS = 36
_HEAD_BYTES = 11  # row key 7, fence 4
_SEAL_BYTES = 16  # 128 bits
_RECEIPT_BYTES = _HEAD_BYTES + _SEAL_BYTES
_FENCE_BITS = 32
_FENCE_MASK: Final = (1 << _FENCE_BITS) - 1
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_+/", b"+/!!")  # there are no plus and slash in receipts


class ReceiptParts(NamedTuple):
    """What a well-formed receipt says; *genuine* tells whether this store has issued it."""

    row_key: int
    fence: int
    genuine: bool


def issue_receipt(key: bytes, row_key: int, fence: int) -> str:
    """Return the receipt of lease number *fence* of the message in row *row_key*."""
    return issue_receipts(key, ((row_key, fence),))[0]


def issue_receipts(key: bytes, leases: Iterable[tuple[int, int]]) -> list[str]:
    """Return the receipts of leases, of which row key and fence are given."""
    unsealed = _sealer(key).copy  # with the key worked in already, which is half of the work
    parts: list[bytes] = []
    for row_key, fence in leases:
        head = (row_key << _FENCE_BITS | fence).to_bytes(_HEAD_BYTES, "big")
        seal = unsealed()
        seal.update(head)
        parts += head, seal.digest()
    # Each is a multiple of three bytes, so their texts follow each other too.
    text = b2a_base64(b"".join(parts), newline=False).translate(_TO_URL).decode("ascii")
    return [text[at : at + RECEIPT_CHARS] for at in range(0, len(text), RECEIPT_CHARS)]


def read_receipt(key: bytes, receipt: str) -> ReceiptParts:
    """Take *receipt* apart.

    Raises:
        ReceiptMalformed: It does not have the form of a receipt. A receipt of the right form that
            this store never issued is not malformed: it is merely not genuine, and can be one of
            a store since restored from a backup.
    """
    (parts,) = read_receipts(key, (receipt,))
    if parts is None:
        raise ReceiptMalformed(receipt)
    return parts


def read_receipts(key: bytes, receipts: Sequence[str]) -> list[ReceiptParts | None]:
    """Take receipts apart as :func:`read_receipt` does; None for those that are malformed."""
    raw = b""
    text = "".join(receipts)
    if text.isascii() and set(map(len, receipts)) == {RECEIPT_CHARS}:
        # The decoder skips what it does not know; then it returns less.
        with suppress(BinasciiError):
            raw = a2b_base64(text.encode("ascii").translate(_FROM_URL))
    if len(raw) != _RECEIPT_BYTES * len(receipts):
        if len(receipts) <= 1:
            return [None] * len(receipts)
        return [parts for each in receipts for parts in read_receipts(key, (each,))]
    unsealed = _sealer(key).copy
    found: list[ReceiptParts | None] = []
    for at in range(0, len(raw), _RECEIPT_BYTES):
        seal_at = at + _HEAD_BYTES
        head = raw[at:seal_at]
        seal = unsealed()
        seal.update(head)
        genuine = hmac.compare_digest(seal.digest(), raw[seal_at : at + _RECEIPT_BYTES])
        numbers = int.from_bytes(head, "big")
        found.append(ReceiptParts(numbers >> _FENCE_BITS, numbers & _FENCE_MASK, genuine))
    return found


def derive_sealing_key(receipt_key: bytes) -> bytes:
    """Return the secret for what a server hands out sealed besides receipts, 32 bytes.

    It stands and falls with the key of the receipts: a store that was restored has another one.

    Source: RFC 5869, one key for each purpose.
    """
    return hmac.digest(receipt_key, b"leasehold sealing key", hashlib.sha256)


@lru_cache(maxsize=8)
def _sealer(key: bytes) -> Any:
    return hashlib.blake2s(digest_size=_SEAL_BYTES, key=key)


# --- queues ------------------------------------------------------------------------------------
#
# Rules about queues as such.


def same_metadata(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Tell whether two sets of metadata are the same: names without regard to case, values with.

    Source: Azure Queue Storage, "Create Queue": creating a queue again with the same metadata is
    harmless, with other metadata a conflict.
    """
    return {name.lower(): value for name, value in one.items()} == {
        name.lower(): value for name, value in other.items()
    }


def differences_where_given(
    one: QueueSettings, other: QueueSettings, given: Iterable[Sequence[str]]
) -> dict[str, tuple[object, object]]:
    """Return in which of the things that some paths of names lead to two settings differ."""
    found = ((".".join(path), (_at(one, path), _at(other, path))) for path in given)
    return {name: pair for name, pair in found if pair[0] != pair[1]}


def _at(settings: QueueSettings, path: Sequence[str]) -> object:
    found: object = settings
    for name in path:
        # Of a part that is not set nothing is.
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
    return found


def with_settings(queue: Queue, settings: QueueSettings) -> Queue:
    """Return *queue* with other settings.

    What the server has adapted is its own business and stays, as long as it is asked to adapt.
    """
    before = queue.settings
    adapted = before.adapted if settings.adaptive is not None else None
    by_type = {
        name: each
        for name, each in before.adapted_by_type.items()
        if name in settings.timeouts_by_type and settings.timeouts_by_type[name].adaptive
    }
    settings = replace(settings, adapted=adapted, adapted_by_type=by_type)
    return replace(queue, settings=settings)


def with_adapted(queue: Queue, adapted: Adapted | None, rule: str | None) -> Queue:
    """Return *queue* with a visibility timeout that the server has chosen.

    Args:
        queue: As it is.
        adapted: The timeout; None for none.
        rule: For which of the rules by type; None for the queue. One that is gone is passed over.
    """
    settings = queue.settings
    if rule is None:
        return replace(queue, settings=replace(settings, adapted=adapted))
    by_type = {name: each for name, each in settings.adapted_by_type.items() if name != rule}
    if adapted is not None and rule in settings.timeouts_by_type:
        by_type[rule] = adapted
    return replace(queue, settings=replace(settings, adapted_by_type=by_type))


# --- pages -------------------------------------------------------------------------------------
#
# How many messages an answer has, where their bodies bound it.


def fitting(sizes: Sequence[int], room: int, *, at_least: bool) -> int:
    """Return how many bodies have room, from the first on.

    Args:
        sizes: Of all of them, in bytes.
        room: Bytes.
        at_least: Whether the first one is let in whatever its size.
    """
    if sum(sizes) <= room:
        return len(sizes)
    count = bisect_right([*accumulate(sizes)], room)
    return count or int(at_least)


# --- cursors -----------------------------------------------------------------------------------
#
# Where a listing of messages goes on: a place that is written into the address of the next page.
#
# Messages are listed by row key, which never changes, so that each is listed once however it moves
# between states meanwhile.


_FORM = re.compile(r"([qp])([0-9a-f]{1,12})")


class Place(NamedTuple):
    """Behind this row. First comes the queue itself, then its poison queue."""

    poison: bool
    row_key: int

    def __str__(self) -> str:
        return f"{'p' if self.poison else 'q'}{self.row_key:x}"


BEGINNING = Place(poison=False, row_key=0)


def read_place(text: str) -> Place:
    """Reverse ``str``; nothing is the beginning.

    Raises:
        InvalidMarker: The text is not one that a listing gave out.
    """
    if not text:
        return BEGINNING
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidMarker
    return Place(poison=found[1] == "p", row_key=int(found[2], 16))


class GroupHalt(NamedTuple):
    """Why a message group gives nothing until an operator has it go on."""

    since_ms: int
    message_id: str | None
    """The message that went to the poison queue; None if an operator stopped the group."""
    reason: str | None


NEXT_GROUP: Final = ""
"""In place of the name of a group: whichever has its turn. No group id is empty."""


class GroupHold(NamedTuple):
    """Which session has a message group to itself."""

    group_id: str
    session: str
    fence: int
    """Higher than that of all holds before, of whatever group: fences writes of earlier holders."""
    since_ms: int
    state: bytes = b""
    """What was saved for the group, if that was asked for."""


class GroupFigures(NamedTuple):
    """How many messages of a group are in each state; expired ones are left out."""

    waiting: int = 0
    """Visible, whether the group lets them be received now or not."""
    in_flight: int = 0
    """On leases, members of claims included."""
    delayed: int = 0
    deferred: int = 0
    oldest_ms: int | None = None
    """Since when the one that waits longest has been visible, Unix milliseconds."""

    def plus(self, other: GroupFigures) -> GroupFigures:
        """Return those of both together."""
        moments = [at_ms for at_ms in (self.oldest_ms, other.oldest_ms) if at_ms is not None]
        return GroupFigures(
            self.waiting + other.waiting,
            self.in_flight + other.in_flight,
            self.delayed + other.delayed,
            self.deferred + other.deferred,
            min(moments, default=None),
        )


def size_of(message: Message) -> int:
    """Return the bytes of a body, wherever it is kept."""
    ref = message.detail.body_ref
    return len(message.body) if ref is None else ref.size_bytes
