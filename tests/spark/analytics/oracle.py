"""What became of attempts and messages, told event by event: the oracle of the tables.

One pass over the log with the state of each message in a variable. It shares nothing with the SQL
but the words of the outcomes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from leasehold.domain.events import Event, EventType
from leasehold.domain.model import NEVER_MS, Phase

T = EventType
Row = dict[str, Any]


@dataclass
class Lease:
    """One attempt."""

    row: Row
    until_ms: int
    worked_until_ms: int | None = None

    def end(self, at_ms: int, outcome: str, reason: str | None = None) -> None:
        self.row.update(ended_at_ms=at_ms, outcome=outcome, reason=reason)
        self.worked_until_ms = at_ms

    def finished_row(self) -> Row:
        row, until_ms = self.row, self.worked_until_ms
        row["lease_s"] = max(0, self.until_ms - row["leased_at_ms"]) / 1000
        row["finished"] = row["outcome"] in {"completed", "completed_late"}
        if until_ms is not None:
            row["seconds"] = max(0, until_ms - row["leased_at_ms"]) / 1000
        return row


@dataclass
class Stay:
    """A message in a queue."""

    row: Row
    base: int
    leases: list[Lease] = field(default_factory=list)
    lease: Lease | None = None
    lapsed: Lease | None = None
    """The lease that was noticed to have lapsed by the very event before."""


class Oracle:
    """Tells the lifecycle."""

    def __init__(self) -> None:
        self.stays: dict[str, Stay] = {}
        self.past: dict[str, list[Stay]] = defaultdict(list)
        self.refused: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.attempts: list[Row] = []
        self.messages: list[Row] = []
        self.sessions: dict[str, tuple[str, int, int | None]] = {}

    def run(self, events: Iterable[Event]) -> Oracle:
        for event in events:
            self._add(event)
        return self

    def open(self) -> tuple[list[Row], list[Row]]:
        """Return attempts and messages of the stays that go on; the oracle is used up."""
        ended = len(self.attempts), len(self.messages)
        for message_id, stay in [*self.stays.items()]:
            if stay.lease is not None:
                late = [
                    at
                    for since, at in self.refused[message_id]
                    if since == stay.lease.row["leased_at_ms"] and at >= stay.lease.until_ms
                ]
                if late:
                    self._late(stay, stay.lease)
                stay.leases.append(stay.lease)
            for each in (*self.past[message_id], stay):
                self._file(each)
        return self.attempts[ended[0] :], self.messages[ended[1] :]

    # --- events ------------------------------------------------------------------------------

    def _add(self, event: Event) -> None:
        kind = event.type
        if kind in {T.QUEUE_CLEARED, T.QUEUE_DELETED}:
            self._clear(event)
        elif kind in {T.SESSION_LOST, T.SESSION_ENDED}:
            silent = re.match(r"no heartbeat for (\d+) s", event.reason or "")
            how = "session_lost" if kind is T.SESSION_LOST else "interrupted"
            seconds = int(silent[1]) if silent else None
            self.sessions[event.session or ""] = (how, event.at_ms, seconds)
        elif event.message_id and kind not in {T.STAGED, T.DISCARDED}:
            self._of_message(event, event.message_id)

    def _clear(self, event: Event) -> None:
        for message_id, stay in [*self.stays.items()]:
            if (stay.row["account"], stay.row["queue"]) == (event.account, event.queue):
                why = "queue-cleared" if event.type is T.QUEUE_CLEARED else "queue-deleted"
                self._cut(stay, event.at_ms, "removed", why)
                self._leave(message_id, event.at_ms, "removed", why)

    def _of_message(self, event: Event, message_id: str) -> None:
        kind = event.type
        if kind in {T.PUT, T.PUBLISHED}:
            self._enter(event, message_id, event.queue, event.inserted_at_ms, 0)
            return
        stay = self.stays[message_id]
        if kind is not T.POISONED:
            stay.lapsed = None
        never = event.expires_at_ms == NEVER_MS
        if kind not in {T.POISONED, T.REDRIVEN}:
            stay.row["expires_at_ms"] = None if never else event.expires_at_ms
        if kind in {T.RECEIVED, T.CLAIMED}:
            assert stay.lease is None
            stay.row["deliveries"] += 1
            if stay.row["deliveries"] == 1:
                stay.row["first_leased_at_ms"] = event.at_ms
                stay.row["wait_s"] = max(0, event.at_ms - (event.visible_since_ms or 0)) / 1000
            self._begin(stay, event)
        elif kind is T.RENEWED:
            if stay.lease is None and event.phase == Phase.LEASED:
                self._begin(stay, event)
            elif stay.lease is not None:
                stay.lease.until_ms = event.visible_at_ms or 0
                stay.lease.row["renewals"] = event.renewals
        elif kind in {T.REFUSED, T.CANCEL_ASKED}:
            if kind is T.REFUSED:
                self.refused[message_id].append((event.since_ms or 0, event.at_ms))
            if stay.lease is not None:
                # A claim may have been extended, which its members have no events for.
                stay.lease.until_ms = event.visible_at_ms or 0
        else:
            self._ending(event, message_id, stay)

    def _ending(self, event: Event, message_id: str, stay: Stay) -> None:
        kind, at_ms, reason = event.type, event.at_ms, event.reason
        lease = stay.lease
        error = {
            "error_type": event.error_type,
            "error_fingerprint": event.error_fingerprint,
        }
        if lease is not None:
            lease.row.update(error)
        if kind is T.POISONED:
            stay.row.update(error)
        as_is = {T.COMPLETED, T.SETTLED, T.EXPIRED, T.REMOVED, T.LAPSED}
        if lease is not None and kind in as_is:
            assert event.phase == Phase.LEASED
            lease.until_ms = event.visible_at_ms or 0
        if kind in {T.COMPLETED, T.SETTLED}:
            if lease is not None:
                late = lease.until_ms <= at_ms
                self._close(stay, at_ms, "completed_late" if late else "completed")
                stay.row["handling_s"] = max(0, at_ms - lease.row["leased_at_ms"]) / 1000
            self._leave(message_id, at_ms, "completed", None)
        elif kind is T.LAPSED and lease is not None:
            self._close(stay, min(at_ms, lease.until_ms), "lapsed")
            stay.lapsed = lease
        elif kind is T.RELEASED:
            self._close(stay, at_ms, reason or "")
        elif kind is T.LEASE_ENDED:
            words = {"session lost": "session_lost", "no progress": "lapsed"}
            self._close(stay, at_ms, words.get(reason or "", "interrupted"), reason)
        elif kind is T.UNCLAIMED and event.phase != Phase.LEASED:
            self._close(stay, at_ms, "returned")
        elif kind is T.AMENDED and event.phase != Phase.LEASED:
            self._cut(stay, at_ms, "interrupted", "operator", why="operator")
        elif kind is T.EXPIRED:
            over_ms = min(at_ms, event.expires_at_ms or 0)
            self._cut(stay, over_ms, "removed", "expired", why="expired")
            self._leave(message_id, over_ms, "expired", None)
        elif kind is T.REMOVED:
            self._cut(stay, at_ms, "removed", reason, why=reason)
            self._leave(message_id, at_ms, "removed", reason)
        elif kind is T.REDRIVEN:
            self._cut(stay, at_ms, "removed", "redriven", why="redriven")
            self._leave(message_id, at_ms, "removed", "redriven", for_good=False)
            self._enter(event, message_id, event.target, at_ms, 0)
        elif kind is T.POISONED:
            if stay.lapsed is not None:
                stay.lapsed.row["reason"] = reason
            self._close(stay, at_ms, self._given_up(event, stay), reason)
            self._leave(message_id, at_ms, "poisoned", reason, for_good=False)
            self._enter(event, message_id, event.target, at_ms, event.dequeue_count or 0)

    def _given_up(self, event: Event, stay: Stay) -> str:
        known = {"buried": "buried", "max_failures": "failed", "max_interruptions": "interrupted"}
        if event.reason in known:
            return known[event.reason]
        session = None if stay.lease is None else stay.lease.row["session_id"]
        if session in self.sessions:
            return self.sessions[session][0]
        return "lapsed" if event.reason == "max_lapses" else "failed"

    # --- stays -------------------------------------------------------------------------------

    def _enter(
        self, event: Event, message_id: str, queue: str | None, at_ms: int | None, base: int
    ) -> None:
        never = event.expires_at_ms == NEVER_MS
        row = {
            "account": event.account,
            "queue": queue,
            "message_id": message_id,
            "inserted_at_ms": at_ms,
            "first_leased_at_ms": None,
            "ended_at_ms": None,
            "outcome": "open",
            "reason": None,
            "deliveries": 0,
            "wait_s": None,
            "handling_s": None,
            "total_s": None,
            "expires_at_ms": None if never else event.expires_at_ms,
            "message_type": event.message_type,
            "error_type": None,
            "error_fingerprint": None,
            "group_id": event.group_id,
        }
        self.stays[message_id] = Stay(row, base)

    def _leave(
        self,
        message_id: str,
        at_ms: int,
        outcome: str,
        reason: str | None,
        *,
        for_good: bool = True,
    ) -> None:
        stay = self.stays.pop(message_id)
        row = stay.row
        row.update(ended_at_ms=at_ms, outcome=outcome, reason=reason)
        row["total_s"] = max(0, at_ms - row["inserted_at_ms"]) / 1000
        self.past[message_id].append(stay)
        if for_good:
            # As long as it is somewhere, a completion of any of its leases may still be refused.
            for each in self.past.pop(message_id):
                self._file(each)

    def _file(self, stay: Stay) -> None:
        for lease in stay.leases:
            if lease.row["outcome"] in {"lapsed", "session_lost"}:
                self._late(stay, lease)
            self.attempts.append(lease.finished_row())
        stay.row["redeliveries"] = max(0, stay.row["deliveries"] - 1)
        self.messages.append(stay.row)

    def _late(self, stay: Stay, lease: Lease) -> None:
        refused = self.refused[stay.row["message_id"]]
        found = [at for since, at in refused if since == lease.row["leased_at_ms"]]
        if found:
            lease.end(min(found), "completed_late", "refused")

    # --- leases ------------------------------------------------------------------------------

    def _begin(self, stay: Stay, event: Event) -> None:
        assert event.since_ms is not None
        assert event.visible_at_ms is not None
        row = {
            "account": event.account,
            "queue": stay.row["queue"],
            "message_id": event.message_id,
            "attempt": event.dequeue_count,
            "holder": event.holder,
            "session_id": event.session,
            "claim": event.target,
            "leased_at_ms": event.since_ms,
            "ended_at_ms": None,
            "seconds": None,
            "first_lease_s": (event.visible_at_ms - event.since_ms) / 1000,
            "outcome": "open",
            "reason": None,
            "renewals": event.renewals,
            "message_type": event.message_type,
            "error_type": None,
            "error_fingerprint": None,
        }
        stay.lease = Lease(row, event.visible_at_ms)

    def _close(self, stay: Stay, at_ms: int, outcome: str, reason: str | None = None) -> None:
        lease, stay.lease = stay.lease, None
        if lease is None:
            return
        lease.end(at_ms, outcome, reason)
        stay.leases.append(lease)
        if outcome == "session_lost":
            _, lost_ms, silent_s = self.sessions[lease.row["session_id"]]
            assert silent_s is not None
            lease.worked_until_ms = min(at_ms, lost_ms - silent_s * 1000)

    def _cut(
        self, stay: Stay, at_ms: int, outcome: str, reason: str | None, why: str | None = None
    ) -> None:
        """End a lease from outside; it may have run out before."""
        lease = stay.lease
        if lease is None:
            return
        if lease.until_ms <= at_ms:
            self._close(stay, lease.until_ms, "lapsed", why)
        else:
            self._close(stay, at_ms, outcome, reason)
