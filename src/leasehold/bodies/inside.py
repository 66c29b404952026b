"""Where bodies are inside commands and results: pure functions of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from leasehold.domain import claims, sessions, staging
from leasehold.domain import commands as c
from leasehold.domain import oversight as o
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.types import NO_DETAIL, BodyRef, Lease, Message

Swap: TypeAlias = Callable[[bytes], BodyRef | None]
"""Returns what stands for a body from now on, or None to leave it where it is."""


# --- what a command brings ---------------------------------------------------------------------


def bodies_of(command: c.Command) -> Iterable[bytes]:
    """Return the bodies that a command brings, in the order of :func:`swapped`."""
    find = BRINGING.get(type(command))
    return () if find is None else find(command)


def _in_parts(parts: Iterable[Any]) -> list[bytes]:
    return [body for part in parts for body in bodies_of(part)]


def _in_put(command: c.Put) -> Iterable[bytes]:
    return (command.body,)


def _in_change(command: c.Renew | o.Amend) -> Iterable[bytes]:
    return (command.body,) if isinstance(command.body, bytes) else ()


BRINGING: Final[dict[type, Callable[[Any], Iterable[bytes]]]] = {
    c.Put: _in_put,
    c.Renew: _in_change,
    o.Amend: _in_change,
    c.Batch: lambda command: _in_parts(command.commands),
    staging.CommitTogether: lambda command: _in_parts(command.commands),
    staging.Stage: lambda command: _in_parts(command.puts),
    claims.SettleClaims: lambda command: _in_parts(command.sends),
}
"""The commands that can bring bodies, and what finds them."""


def swapped(command: Any, swap: Swap) -> Any:
    """Return a command with some of its bodies swapped for where they are."""
    change = _SWAPS.get(type(command))
    return command if change is None else change(command, swap)


def _swap_all(commands: Sequence[Any], swap: Swap) -> tuple[Any, ...]:
    return tuple([swapped(each, swap) for each in commands])


def _swap_put(command: c.Put, swap: Swap) -> c.Put:
    ref = swap(command.body)
    if ref is None:
        return command
    return command._replace(body=b"", detail=replace(command.detail, body_ref=ref))


def _swap_renew(command: c.Renew, swap: Swap) -> c.Renew:
    ref = swap(command.body) if isinstance(command.body, bytes) else None
    return command if ref is None else command._replace(body=ref)


def _swap_amend(command: o.Amend, swap: Swap) -> o.Amend:
    ref = swap(command.body) if isinstance(command.body, bytes) else None
    return command if ref is None else replace(command, body=ref)


_SWAPS: Final[dict[type, Callable[[Any, Swap], Any]]] = {
    c.Put: _swap_put,
    c.Renew: _swap_renew,
    o.Amend: _swap_amend,
    c.Batch: lambda command, swap: command._replace(commands=_swap_all(command.commands, swap)),
    staging.CommitTogether: lambda command, swap: replace(
        command, commands=_swap_all(command.commands, swap)
    ),
    staging.Stage: lambda command, swap: replace(command, puts=_swap_all(command.puts, swap)),
    claims.SettleClaims: lambda command, swap: replace(
        command, sends=_swap_all(command.sends, swap)
    ),
}


def refs_of(command: Any) -> list[BodyRef]:
    """Return where the bodies are that a command names and does not bring."""
    if isinstance(command, c.Put):
        ref = command.detail.body_ref
        return [] if ref is None else [ref]
    if isinstance(command, c.Renew | o.Amend):
        return [command.body] if isinstance(command.body, BodyRef) else []
    return [ref for part in _parts_of(command) for ref in refs_of(part)]


def _parts_of(command: Any) -> Sequence[Any]:
    if isinstance(command, c.Batch | staging.CommitTogether):
        return command.commands
    if isinstance(command, staging.Stage):
        return command.puts
    return command.sends if isinstance(command, claims.SettleClaims) else ()


def adopted(command: Any, result: object) -> list[BodyRef]:
    """Return those bodies of :func:`refs_of` that a message refers to after *result*."""
    if isinstance(result, LeaseholdError | c.Duplicate):
        return []
    if isinstance(command, staging.Stage):
        return [] if isinstance(result, staging.Staged) and result.duplicate else refs_of(command)
    if isinstance(result, claims.Settled):
        return [] if result.already else refs_of(command)
    if isinstance(command, c.Batch | staging.CommitTogether):
        results: Any = result.results if isinstance(result, staging.Committed) else result
        if not results:  # it was done before
            return []
        parts = zip(command.commands, results, strict=True)
        return [ref for part, its_result in parts for ref in adopted(part, its_result)]
    return refs_of(command)


def doubtful(command: Any, result: object) -> list[BodyRef]:
    """Return those bodies of :func:`adopted` that may be nobody's: the result does not say.

    A settling does not tell which of the messages sent along had a key that was known already.
    """
    if not isinstance(result, claims.Settled):
        return []
    keyed = [put for put in command.sends if put.detail.dedup_key is not None]
    return [ref for ref in adopted(command, result) if any(ref in refs_of(put) for put in keyed)]


# --- what a result shows -----------------------------------------------------------------------


def lacking(command: c.Command, result: Any) -> bool:
    """Tell whether a result shows messages whose bodies are still to be read."""
    kind = type(command)
    if kind is c.Receive:
        for message, _ in result:
            detail = message.detail
            if detail is not NO_DETAIL and detail.body_ref is not None:
                return True
        return False
    if kind not in _SHOWING or getattr(command, "with_bodies", True) is False:
        return False
    if isinstance(result, claims.MemberColumns):  # of messages without detail
        return False
    return any(message.detail.body_ref is not None for message in shown(result))


_SHOWING: Final = frozenset(
    {
        c.Peek,
        o.FindMessage,
        o.Inspect,
        claims.ReadClaim,
        o.Amend,
        o.EndLease,
        sessions.RequestCancel,
    }
)


def shown(result: Any) -> Sequence[Message]:
    """Return the messages that a result shows, in their order."""
    if isinstance(result, o.Seen):
        return (result.message,)
    if isinstance(result, o.MessagePage):
        return [seen.message for seen in result.messages]
    if isinstance(result, claims.MemberPage):
        return result.messages
    return [each.message if isinstance(each, Lease) else each for each in result]


def with_messages(result: Any, messages: Sequence[Message | None]) -> Any:
    """Return a result with other messages in their places; None leaves one out of a list."""
    if isinstance(result, o.Seen):
        (message,) = messages
        return result if message is None else result._replace(message=message)
    if isinstance(result, o.MessagePage):
        pairs = zip(result.messages, messages, strict=True)
        seen = [each._replace(message=new) for each, new in pairs if new is not None]
        return result._replace(messages=tuple(seen))
    kept = tuple([message for message in messages if message is not None])
    return result._replace(messages=kept) if isinstance(result, claims.MemberPage) else kept
