"""Limits are data: which values a dialect allows, with the source of each number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from leasehold.domain.errors import BodyTooLarge, InvalidQueueName, OutOfRange

DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S

LOOK_BYTES: Final = 4 * 1024 * 1024
"""Bytes of bodies after which a peek or a page ends, however many messages were asked for: some ten
milliseconds of work. Enough for 32 messages of 64 KiB, the most that Azure and MNS know."""

MAX_QUEUE_NAME: Final = 256
"""Characters of the longest name of a queue."""
MAX_AZURE_QUEUE_NAME: Final = 63
"""Characters of the longest name that Azure's clients can use."""

_QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")
_AZURE_QUEUE_NAME = re.compile(r"[a-z0-9](?:-?[a-z0-9])*")
_AZURE_QUEUE_NAME_MIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The ranges in force for one request; both ends are allowed values."""

    body_bytes: int
    """Largest body, in bytes of the body itself, for queues that set no ``max_body_bytes``."""
    delay_s: tuple[int, int]
    """Seconds a message may be hidden when put."""
    lease_s: tuple[int, int]
    """Seconds a receive may lease for."""
    renew_s: tuple[int, int]
    """Seconds a renewal may lease for; 0 gives the message back."""
    time_to_live_s: tuple[int, int]
    """Seconds a message may live."""
    unlimited_time_to_live: bool
    """Whether a message may never expire."""
    receive_count: tuple[int, int]
    """Messages one receive or peek may ask for."""


AZURE: Final = Limits(
    # Put Message and Update Message, versions from 2017-07-29 on. A message may live for any
    # positive number of seconds; what ends after the year 9999 is the same as never.
    body_bytes=65_536,
    delay_s=(0, WEEK_S),
    lease_s=(1, WEEK_S),
    renew_s=(0, WEEK_S),
    time_to_live_s=(1, 2**63 - 1),
    unlimited_time_to_live=True,
    receive_count=(1, 32),
)
AZURE_BEFORE_2017_07_29: Final = Limits(
    # messagettl was at most seven days and could not be -1.
    body_bytes=65_536,
    delay_s=(0, WEEK_S),
    lease_s=(1, WEEK_S),
    renew_s=(0, WEEK_S),
    time_to_live_s=(1, WEEK_S),
    unlimited_time_to_live=False,
    receive_count=(1, 32),
)
AZURE_BEFORE_2011_08_18: Final = Limits(
    # 8 KiB messages, leases of at most two hours, neither delays nor Update Message.
    body_bytes=8_192,
    delay_s=(0, 0),
    lease_s=(1, 7_200),
    renew_s=(0, 0),
    time_to_live_s=(1, WEEK_S),
    unlimited_time_to_live=False,
    receive_count=(1, 32),
)
MNS: Final = Limits(
    # "CreateQueue" and "SendMessage". Older pages and the Go client let a message live for 15 days.
    body_bytes=65_536,
    delay_s=(0, WEEK_S),
    lease_s=(1, 43_200),
    renew_s=(1, 43_200),
    time_to_live_s=(60, 15 * DAY_S),
    unlimited_time_to_live=False,
    receive_count=(1, 16),
)
NATIVE: Final = Limits(
    # Our own: Azure's sizes, so that both dialects can read each other's messages, but times that
    # reach ten years ahead and as many messages as fit one answer.
    body_bytes=65_536,
    delay_s=(0, 10 * 365 * DAY_S),
    lease_s=(1, WEEK_S),
    renew_s=(0, WEEK_S),
    time_to_live_s=(1, 2**31 - 1),
    unlimited_time_to_live=True,
    receive_count=(1, 10_000),
)


MAX_GROUP_STATE_BYTES: Final = 65_536
"""Of what is saved for a message group."""
MAX_SAVED_BYTES: Final = 65_536
"""Largest JSON that a holder saves with a message; our own, that of a body."""
MAX_RESULT_BYTES: Final = 16_384
"""Largest JSON that a holder gives as the result of its work; it stays in the event log."""

# Our own, for the sizes of requests of the native API, which its clients keep to as well.
MAX_WAIT_S: Final = 60
"""Longest wait for messages or a job that the dialects take, seconds."""
MAX_ITEMS: Final = 10_000
"""Items that one request may hold."""
MAX_PROGRESS: Final = 10_000
"""Messages whose progress one heartbeat tells."""
MAX_CLAIM: Final = 1_000_000
"""Members of one claim."""
MAX_NOTED: Final = 10_000
"""Members of one claim whose exemption is noted: when it is settled each is given back by itself,
some half a second's worth, and no other command has a turn meanwhile."""
MAX_PUBLISHED_PARTS: Final = 10_000
"""Parts that one publish or discard names."""
DEFAULT_SESSION_TIMEOUT_S: Final = 16
"""With a heartbeat every quarter of it, a stall of 10 s loses nothing, and a dead worker is noticed
within 17 s."""
SESSION_TIMEOUTS_S: Final = (2, 3_600)
PROGRESS_TIMEOUTS_S: Final = (5, WEEK_S)
DEFAULT_STAGING_TIMEOUT_S: Final = DAY_S
STAGING_TIMEOUTS_S: Final = (1, WEEK_S)
MAX_GROUP_ID: Final = 128
"""Characters of the longest name of a message group, as in SQS."""
PRIORITIES: Final = (1, 16)
"""As in MNS, 1 being the most urgent."""
NEVER: Final = -1
"""The time-to-live of a message that never expires, in requests."""

METADATA_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Azure, "Naming queues and metadata"; all dialects show the same metadata."""
RESERVED_METADATA: Final = "leasehold_"
"""The Azure dialect shows what the server adds under names that begin so; they cannot be set."""


def check_range(field: str, value: int, bounds: tuple[int, int]) -> None:
    """Raise OutOfRange unless *value* lies within *bounds*."""
    if not bounds[0] <= value <= bounds[1]:
        raise OutOfRange(field=field, value=value, minimum=bounds[0], maximum=bounds[1])


def check_body(size_bytes: int, limits: Limits, max_body_bytes: int | None = None) -> None:
    """Raise BodyTooLarge if a body of this size is too large.

    Args:
        size_bytes: Size of the body itself.
        limits: Those of the dialect.
        max_body_bytes: What is set for the queue, in place of the dialect's limit.
    """
    limit_bytes = limits.body_bytes if max_body_bytes is None else max_body_bytes
    if size_bytes > limit_bytes:
        raise BodyTooLarge(size_bytes=size_bytes, limit_bytes=limit_bytes)


def check_queue_name(name: str) -> None:
    """Raise InvalidQueueName unless a queue may be called *name*: what any of the protocols allows.

    1 to 256 of A-Z, a-z, 0-9 and dashes, not beginning with a dash. Source: MNS, "CreateQueue"; its
    newer pages stop at 120 characters, its older ones want a letter at the beginning. All names of
    Azure are among these.
    """
    if not 1 <= len(name) <= MAX_QUEUE_NAME:
        raise InvalidQueueName(name, "length")
    if _QUEUE_NAME.fullmatch(name) is None:
        raise InvalidQueueName(name, "characters")


def check_azure_queue_name(name: str) -> None:
    """Raise InvalidQueueName unless Azure has queues of this name (Azure, "Naming Queues").

    3 to 63 of a-z, 0-9 and single dashes between them.
    """
    if not _AZURE_QUEUE_NAME_MIN <= len(name) <= MAX_AZURE_QUEUE_NAME:
        raise InvalidQueueName(name, "length")
    if _AZURE_QUEUE_NAME.fullmatch(name) is None:
        raise InvalidQueueName(name, "characters")


# --- stored access policies --------------------------------------------------------------------
#
# Source: "Define a stored access policy".


MAX_POLICIES: Final = 5
"""Of one queue."""
MAX_POLICY_ID: Final = 64
"""Characters."""
POLICY_PERMISSIONS: Final = "raup"
"""Letters that a policy may grant: read (peek), add, update, process."""
