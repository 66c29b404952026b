"""What a worker and the process that renews for it say to each other.

Messages are pickled tuples of these classes over a pair of sockets that nobody else has. Moments
are monotonic seconds, which all processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple, TypeAlias

from leasehold.worker.leases.held import Loss
from leasehold.worker.leases.settings import LeaseSettings
from leasehold.worker.queues.specs import QueueSpec
from leasehold.worker.timing import Time

Pipe: TypeAlias = Connection


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message to the renewer."""

    settings: LeaseSettings
    time: Time
    parallel: int
    queues: Sequence[Open]
    """Those that are known; they are opened before Ready."""


class Open(NamedTuple):
    """A queue that leases will come from."""

    queue_number: int
    spec: QueueSpec


class Keep(NamedTuple):
    """A lease to be kept from now on."""

    key: int
    queue_number: int
    queue: str
    message_id: str
    receipt: str
    type: str | None
    settings: LeaseSettings | None
    """None: those of the beginning."""
    registered_s: float
    deadline_s: float
    early_s: float
    expires_s: float


class Drop(NamedTuple):
    """A lease not to be kept any more."""

    key: int


class Take(NamedTuple):
    """A lease that is not to be renewed until it is given back; answered by Taken."""

    key: int


class GiveBack(NamedTuple):
    """A lease to be renewed again."""

    key: int
    receipt: str
    deadline_s: float


class Ask(NamedTuple):
    """Answered by Asked, which comes after all that there was to say before."""

    number: int


class Learned(NamedTuple):
    """How leases of one queue and type are renewed from now on."""

    queue_number: int
    type: str | None
    settings: LeaseSettings


class Stop(NamedTuple):
    """The last message."""


class Ready(NamedTuple):
    """The renewer has begun."""


class Beat(NamedTuple):
    """The renewer is alive."""

    lag_s: float
    worst_lag_s: float
    late_ticks: int


class Kept(NamedTuple):
    """Leases that one request has renewed."""

    took_s: float
    leases: list[tuple[int, str, float]]
    """Key, receipt, deadline."""


class Missed(NamedTuple):
    """Renewals that failed, to be tried again."""

    keys: list[int]
    unsure: list[int]
    """Keys of those that may have been carried out all the same."""
    text: str
    took_s: float


class Lost(NamedTuple):
    """The work on a message has to stop."""

    key: int
    loss: Loss


class Taken(NamedTuple):
    """Nothing is in flight for it, and nothing will be."""

    key: int
    receipt: str
    deadline_s: float


class Asked(NamedTuple):
    """See Ask."""

    number: int


class Late(NamedTuple):
    """A tick was later than allowed."""

    lag_s: float


class Broken(NamedTuple):
    """The renewer ends: it cannot keep leases."""

    text: str


ToRenewer: TypeAlias = Open | Keep | Drop | Take | GiveBack | Ask | Learned | Stop
FromRenewer: TypeAlias = Ready | Beat | Kept | Missed | Lost | Taken | Asked | Late | Broken
