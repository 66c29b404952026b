"""When each message was delayed, visible and leased, and by whom: from the server's event log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from leasehold.client.models import Event as Change

Kind: TypeAlias = Literal["delayed", "visible", "leased", "waiting"]
"""Waiting: released, for the next attempt."""

_OVER: Final = {
    "completed": "completed",
    "poisoned": "moved to the poison queue",
    "lapsed": "the lease ran out",
    "lease-ended": "the server ended the lease",
    "released": "released",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a message's life."""

    kind: Kind
    begin_s: float
    """Seconds since the story began."""
    end_s: float
    delivery: int = 0
    """The number of the delivery that a lease belongs to."""
    fence: int = 0
    holder: str = ""
    renewals: tuple[float, ...] = ()
    """When the lease was renewed, or progress was saved with it."""
    how: str = ""
    """How a lease came to its end; empty if it has not."""


@dataclass(slots=True)
class _Life:
    """A message while its events are read."""

    began_ms: int
    holders: Mapping[tuple[str, int], str]
    spans: list[Span] = field(default_factory=list)
    free_s: float | None = None
    """Since when it is visible, or will be; None: it is leased, or gone."""
    lease: Change | None = None
    renewals: list[float] = field(default_factory=list)

    def seconds(self, moment_ms: int) -> float:
        return (moment_ms - self.began_ms) / 1000

    def read(self, change: Change) -> None:
        at_s = self.seconds(change.at_ms)
        visible_s = at_s if change.visible_at_ms is None else self.seconds(change.visible_at_ms)
        if change.type == "put":
            self._hide("delayed", at_s, visible_s)
        elif change.type == "received":
            self._show_until(at_s)
            self.lease, self.free_s = change, None
        elif change.type == "renewed" and self.lease is not None:
            self.renewals.append(at_s)
        elif change.type == "removed":
            self._remove(at_s)
        elif change.type in _OVER:
            ended_s = min(visible_s, at_s) if change.type == "lapsed" else at_s
            reason = f": {change.reason}" if change.reason else ""
            self._end_lease(ended_s, _OVER[change.type] + reason)
            if change.type in {"lapsed", "lease-ended"}:
                self.free_s = ended_s
            elif change.type == "released":
                self._hide("waiting", at_s, visible_s)

    def close(self, at_s: float) -> None:
        self._end_lease(at_s, "")
        self._show_until(at_s)

    def _hide(self, kind: Kind, at_s: float, until_s: float) -> None:
        if until_s > at_s:
            self.spans.append(Span(kind=kind, begin_s=at_s, end_s=until_s))
        self.free_s = max(at_s, until_s)

    def _remove(self, at_s: float) -> None:
        """End what its sender took back, which most often is hidden still."""
        last = self.spans[-1] if self.spans else None
        if last is not None and last.kind == "delayed" and last.end_s > at_s:
            self.spans[-1] = replace(last, end_s=at_s)
            self.free_s = None
        self._show_until(at_s)

    def _show_until(self, at_s: float) -> None:
        if self.free_s is not None and at_s > self.free_s:
            self.spans.append(Span(kind="visible", begin_s=self.free_s, end_s=at_s))
        self.free_s = None

    def _end_lease(self, at_s: float, how: str) -> None:
        if self.lease is None:
            return
        lease, count = self.lease, self.lease.dequeue_count or 0
        self.spans.append(
            Span(
                kind="leased",
                begin_s=self.seconds(lease.at_ms),
                end_s=at_s,
                delivery=count,
                fence=lease.fence or 0,
                holder=self.holders.get((lease.message_id or "", count)) or lease.holder or "",
                renewals=tuple(self.renewals),
                how=how,
            )
        )
        self.lease, self.renewals = None, []


def spans(
    changes: Iterable[Change],
    *,
    began_ms: int,
    until_s: float,
    holders: Mapping[tuple[str, int], str],
) -> dict[str, list[Span]]:
    """Return the stretches of each message's life, by message id.

    Args:
        changes: Events of the server, in their order.
        began_ms: When the story began, Unix milliseconds.
        until_s: When it ended, seconds after that: where stretches end that are still open.
        holders: Names for people of who held a message, by its id and dequeue count.
    """
    lives: dict[str, _Life] = {}
    for change in changes:
        if change.message_id is not None:
            life = lives.setdefault(change.message_id, _Life(began_ms, holders))
            life.read(change)
    for life in lives.values():
        life.close(until_s)
    return {message_id: life.spans for message_id, life in lives.items()}
