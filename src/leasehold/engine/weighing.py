"""What commands cost, roughly, and in which order those of one batch are carried out.

A batch holds the event loop while its statements run, so it is bounded by weight: one is the weight
of a put. A command is never cut; what works on very many messages comes in steps instead, and has
a batch to itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain import oversight as o
from leasehold.domain import sessions as s
from leasehold.domain import staging as t

MAX_BATCH: Final = 512
"""Weight of one transaction: bounds how long the event loop is held and what an undo costs."""

_BYTES_PER_COMMAND: Final = 16 * 1024
"""Bytes of bodies that cost as much to write as one small put, roughly."""
_TAKEN_PER_COMMAND: Final = 8
"""Messages of one receive, claim or read that cost as much as one put, roughly."""

# Within a batch any order is allowed, as none of its commands has been answered when the last one
# arrives. Alike commands share statements, and what finishes work goes before what takes new work:
# so a heartbeat also comes before the sweep that would find its session silent. Receives and claims
# are of one rank and take their turns as they came.
_RANKS: Final[dict[type, int]] = {
    kind: rank
    for rank, kinds in enumerate(
        (
            (c.Put,),
            (t.Stage,),
            (c.Complete,),
            (c.Renew,),
            (c.Release,),
            (c.Batch,),
            (k.ExemptMembers,),
            (k.BindClaim,),
            (t.CommitTogether,),
            (t.Publish,),
            (t.Discard,),
            (s.Heartbeat,),
            (k.ExtendClaim,),
            (k.SettleClaims,),
            (k.GiveBackClaim,),
            (s.EndSession,),
            (s.LoseSessions,),
            (k.LapseClaims,),
            (c.Receive, k.OpenClaim),
            (c.Peek,),
            (k.ReadClaim,),
            (o.NextDue,),
        ),
        start=1,
    )
    for kind in kinds
}


def order_of(command: c.Command) -> int:
    """Return the rank of *command* in its batch; those that are not named go first."""
    return _RANKS.get(type(command), 0)


def weight_of(command: c.Command) -> int:
    """Return how many puts *command* costs as much as."""
    kind = type(command)
    if kind is c.Put:
        return 1
    weigh = _WEIGHTS.get(kind)
    return 1 if weigh is None else weigh(command)


def _taking(command: Any) -> int:
    return command.limit // _TAKEN_PER_COMMAND or 1


def _several(command: Any) -> int:
    return len(command.commands) or 1


def _committing(command: t.CommitTogether) -> int:
    """What is published, and settled with it, may be of any size."""
    return MAX_BATCH if command.publish else _several(command)


def _settling(command: k.SettleClaims) -> int:
    """Completing the members is one small write; what is published may be of any size."""
    return MAX_BATCH if command.publish else 1 + len(command.exemptions) + len(command.sends)


def _staging(command: t.Stage) -> int:
    size_bytes = sum([len(put.body) for put in command.puts])
    return max(len(command.puts), size_bytes // _BYTES_PER_COMMAND) or 1


def _beating(command: s.Heartbeat) -> int:
    return 1 + len(command.progress or ()) // _TAKEN_PER_COMMAND


def _unknown(_: Any) -> int:
    """What is of unknown size goes alone."""
    return MAX_BATCH


def _quarter(_: Any) -> int:
    """What goes over many messages holds the loop for tens of milliseconds."""
    return MAX_BATCH // 4


_WEIGHTS: Final[dict[type, Callable[[Any], int]]] = {
    c.Receive: _taking,
    c.Peek: _taking,
    c.Batch: _several,
    o.Inspect: _quarter,
    o.StepJob: _quarter,
    s.Heartbeat: _beating,
    s.EndSession: _quarter,
    k.OpenClaim: _taking,
    k.ReadClaim: _taking,
    k.SettleClaims: _settling,
    k.ExemptMembers: lambda command: len(command.exemptions) or 1,
    k.GiveBackClaim: _quarter,
    k.DeleteStream: _unknown,
    k.LapseClaims: _quarter,
    t.Stage: _staging,
    t.Publish: _unknown,
    t.Discard: _unknown,
    t.CommitTogether: _committing,
    e.ReadEvents: _taking,
}
