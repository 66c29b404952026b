"""Sessions in a database: live workers, and the end of the leases of those that are not.

A row says that there is a session and how it ended. When it was last heard of is in memory alone,
so that a heartbeat writes nothing, and is kept when a batch is undone. After a restart each session
counts as heard of when the store is first asked for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from leasehold.domain import commands as c
from leasehold.domain import sessions as rules
from leasehold.domain import sessions as s
from leasehold.domain.errors import (
    MessageNotFound,
    MessageNotLeased,
    SessionNotFound,
)
from leasehold.domain.events import EventType
from leasehold.domain.failures import newest_error, release_reason
from leasehold.domain.groups import NOW, HoldGroup, ReleaseGroup, SaveGroupState, check_hold
from leasehold.domain.model import (
    NEVER_MS,
    CancelRequest,
    GroupHold,
    Message,
    MessageState,
    Progress,
    row_key_of,
)
from leasehold.domain.visibility import after_release
from leasehold.stores.sql.catalog import Entry
from leasehold.stores.sql.failures import FailureHandlers, poison
from leasehold.stores.sql.groups import GroupSearch
from leasehold.stores.sql.plain_json import detail_to_json, from_plain, to_plain
from leasehold.stores.sql.rows import Cell, Kept, Row, kept_in, message_of, rewrite
from leasehold.stores.sql.scanning import seen_of
from leasehold.stores.sql.state import State

_MS: Final = 1000
_ALWAYS: Final = -1
_SIGNS_KEPT_MS: Final = 60_000
"""For how long signs of leases are kept that have lapsed or ended: further the clock is hardly ever
set back."""


class Known:
    """A session, and what of it is not on the disk."""

    __slots__ = (
        "cancels",
        "due_ms",
        "heard_ms",
        "may_hold",
        "session",
        "signs",
        "signs_from_ms",
        "watch_ms",
    )

    def __init__(self, session: s.Session, heard_ms: int | None) -> None:
        self.heard_ms = heard_ms
        """When there was last a heartbeat; None after a restart, until it is asked for."""
        self.signs: dict[str, int] = {}
        """For the watchdog, by message id: when a lease was last renewed or spoken of."""
        self.signs_from_ms = 0
        """What was said before this moment is not known, and counts as said then."""
        self.take(session)

    def take(self, session: s.Session) -> None:
        """Take a session as it is now; of its leases nothing is known."""
        self.session = session
        self.cancels: set[int] | None = None
        """Row keys of leases that are to be stopped; None until they are looked for."""
        self.look_again()

    def look_again(self) -> None:
        """Take it that any lease may be due to end."""
        self.may_hold = True
        """Whether the session, if it is over, may have leases left."""
        self.watch_ms = NEVER_MS if self.session.progress_timeout_s is None else _ALWAYS
        """Up to this moment, inclusive, the watchdog finds nothing."""
        self.plan()

    @property
    def is_live(self) -> bool:
        """Tell whether it has not ended."""
        return self.session.state is s.SessionState.LIVE

    def hear(self, now_ms: int) -> None:
        """Note that the worker lives."""
        self.heard_ms = now_ms
        self.plan()

    def watch(self, now_ms: int) -> None:
        """Note that there may be a lease with a last sign of now."""
        timeout_s = self.session.progress_timeout_s
        if timeout_s is not None:
            self.watch_ms = min(self.watch_ms, now_ms + timeout_s * _MS)
            self.plan()

    def plan(self) -> None:
        """Find up to which moment, inclusive, there is nothing to do."""
        ended_at_ms = self.session.ended_at_ms
        if ended_at_ms is not None:
            self.due_ms = _ALWAYS if self.may_hold else ended_at_ms + s.REMEMBER_SESSION_MS - 1
        elif self.heard_ms is None:
            self.due_ms = _ALWAYS
        else:
            self.due_ms = min(self.heard_ms + self.session.timeout_s * _MS, self.watch_ms)

    def told_ms(self, message: Message) -> int:
        """Return when the worker last spoke of a lease, as far as that is known."""
        return self.signs.get(message.message_id, self.signs_from_ms)

    def as_heard(self) -> s.Session:
        """Return the session with its last heartbeat."""
        if self.heard_ms is None or not self.is_live:
            return self.session
        return replace(self.session, last_heartbeat_ms=self.heard_ms)


class SessionHandlers:
    """Each method carries out one command; refusals are raised."""

    def __init__(self, state: State, _failures: FailureHandlers) -> None:
        self._state = state
        self._groups = GroupSearch(state)
        self._known: dict[str, Known] = {}
        self._looked_ms = 0

    def load(self) -> None:
        """Read the rows, at the start and after an undone batch; what was heard stays."""
        before, self._known = self._known, {}
        for session_id, content in self._state.fetch("load_sessions"):
            session = from_plain(s.Session, json.loads(content))
            known = before.get(session_id)
            if known is None:
                known = Known(session, None)
            else:
                known.take(session)
            self._known[session_id] = known

    # --- what the verbs on messages ask ------------------------------------------------------

    def receives(self, command: c.Receive, now_ms: int) -> str:
        """Note that a worker asks for messages; return its name."""
        known = self._beat(command.account, command.session or "", now_ms)
        known.watch(now_ms)
        return known.session.holder

    def renewed(self, message: Message, now_ms: int) -> None:
        """Note that a lease of a session was renewed."""
        known = self._known.get(message.session or "")
        if known is None:
            return
        if not known.is_live:  # its lease had lapsed when the session ended
            known.may_hold = True
            known.plan()
        elif known.session.progress_timeout_s is not None:
            known.signs[message.message_id] = now_ms
            known.watch(now_ms)

    # --- opening and looking -----------------------------------------------------------------

    def open(self, command: s.OpenSession, now_ms: int) -> c.Result:
        """Begin a session."""
        self._state.refuse_moved(command.account)
        session = rules.begin(command, now_ms)
        known = self._known[session.session_id] = Known(session, None)
        self._hear(known, now_ms)
        self._keep(known)
        self._note(EventType.SESSION_STARTED, session)
        return session

    def get(self, command: s.GetSession, now_ms: int) -> c.Result:
        """Look at a session."""
        return self._view(self._find(command.account, command.session_id, now_ms), now_ms)

    def list(self, command: s.ListSessions, now_ms: int) -> c.Result:
        """List sessions, the newest first."""
        found = [
            known for known in self._known.values() if known.session.account == command.account
        ]
        found.sort(key=lambda known: (-known.session.started_at_ms, known.session.session_id))
        return tuple(
            self._view(self._awake(known, now_ms), now_ms) for known in found[: command.limit]
        )

    def leases(self, command: s.ListLeases, now_ms: int) -> c.Result:
        """List what is on the leases of a session."""
        known = self._find(command.account, command.session_id, now_ms)
        kept = islice(self._leases(command.session_id, now_ms), command.limit)
        return tuple(
            s.HeldMessage(
                each.entry.queue.name,
                each.message,
                rules.last_sign_ms(each.message, known.told_ms(each.message)),
            )
            for each in kept
        )

    def _find(self, account: str, session_id: str, now_ms: int) -> Known:
        known = self._known.get(session_id)
        if known is None or known.session.account != account:
            raise SessionNotFound
        return self._awake(known, now_ms)

    def _awake(self, known: Known, now_ms: int) -> Known:
        """Let the time of a session that was there before a restart begin."""
        if known.heard_ms is None:
            known.signs_from_ms = now_ms
            self._hear(known, now_ms)
        return known

    def _hear(self, known: Known, now_ms: int) -> None:
        known.hear(now_ms)

    def _beat(self, account: str, session_id: str, now_ms: int) -> Known:
        known = self._find(account, session_id, now_ms)
        refusal = rules.over_refusal(known.session)
        if refusal:
            raise refusal
        self._hear(known, now_ms)
        return known

    def _view(self, known: Known, now_ms: int) -> s.Session:
        rows = self._state.fetch("count_leases", (known.session.session_id, now_ms))
        of_partition = self._state.catalog.of_partition
        leases = sum(number for lane, number in rows if of_partition(lane) is not None)
        return replace(known.as_heard(), leases=leases)

    def _keep(self, known: Known) -> None:
        session = known.session
        bounds = (session.session_id, json.dumps(to_plain(session)))
        self._state.cursor.execute(self._state.sql["keep_session"], bounds)

    def _note(self, kind: EventType, session: s.Session) -> None:
        told = session.account, session.session_id, session.holder, session.reason
        self._state.log.add_session(kind, *told)

    # --- heartbeats --------------------------------------------------------------------------

    def heartbeat(self, command: s.Heartbeat, now_ms: int) -> c.Result:
        """Note that a worker lives, and what it tells of its messages."""
        known = self._beat(command.account, command.session_id, now_ms)
        lost = self._hear_of(known, command.progress, now_ms) if command.progress else ()
        cancels = self._cancels(known, now_ms)
        return s.Beat(rules.until_ms(known.as_heard()), cancels, lost)

    def _hear_of(
        self, known: Known, progress: Mapping[str, Progress | None], now_ms: int
    ) -> tuple[str, ...]:
        """Note how far the work has come; return what is not on a lease of the session."""
        keys = [key for key in map(row_key_of, progress) if key is not None]
        session_id = known.session.session_id
        held = {
            kept.message.message_id: kept
            for kept in self._rows(keys, "rows_to_report_on")
            if rules.holds(kept.message, session_id, now_ms)
        }
        lost: list[str] = []
        reports: list[tuple[int, str | None]] = []
        for message_id, report in progress.items():
            kept = held.get(message_id)
            if kept is None:
                lost.append(message_id)
                continue
            self.renewed(kept.message, now_ms)
            if report is not None:
                detail = replace(kept.message.detail, progress=report)
                reports.append((kept.row_key, detail_to_json(detail)))
        self._state.cursor.executemany(self._state.sql["set_detail"], reports)
        return tuple(lost)

    def _cancels(self, known: Known, now_ms: int) -> tuple[s.CancelNotice, ...]:
        session_id = known.session.session_id
        if known.cancels is None:
            rows = self._state.fetch("cancels_of_session", (session_id,))
            known.cancels = {row_key for (row_key,) in rows}
        if not known.cancels:
            return ()
        told: list[s.CancelNotice] = []
        wanted = set()
        for kept in self._rows(sorted(known.cancels)):
            message = kept.message
            cancel = message.detail.cancel
            if cancel is None or message.session != session_id:
                continue
            wanted.add(kept.row_key)  # also if it has lapsed: its holder may renew it yet
            if rules.holds(message, session_id, now_ms):
                queue = kept.entry.queue.name
                notice = s.CancelNotice(message.message_id, queue, cancel.reason, cancel.at_ms)
                told.append(notice)
        known.cancels = wanted
        return tuple(told)

    def cancel(self, command: s.RequestCancel, now_ms: int) -> c.Result:
        """Ask the holder of a lease to stop."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        rows = state.fetch("get_message", (row_key_of(command.message_id),))
        kept = kept_in(state, entry, rows[0]) if rows else None
        if kept is None or kept.message.message_id != command.message_id:
            raise MessageNotFound
        seen = seen_of(kept, now_ms)
        if seen.state is MessageState.EXPIRED:
            raise MessageNotFound
        if seen.state is not MessageState.LEASED:
            raise MessageNotLeased
        message = kept.message
        cancel = CancelRequest(at_ms=now_ms, reason=command.reason)
        asked = message._replace(detail=replace(message.detail, cancel=cancel))
        # The rest of the row stays, and with it the place of a member of a claim.
        bounds = (kept.row_key, detail_to_json(asked.detail))
        state.cursor.execute(state.sql["set_detail"], bounds)
        known = self._known.get(message.session or "")
        if known is not None and known.cancels is not None:
            known.cancels.add(kept.row_key)
        state.log.add(EventType.CANCEL_ASKED, entry, asked, command.reason)
        return seen._replace(message=asked)

    # --- leases ------------------------------------------------------------------------------

    def _rows(self, row_keys: Sequence[int], query: str = "rows_without_bodies") -> Iterator[Kept]:
        """Return messages, without their bodies; members of claims have no session."""
        if row_keys:
            keys = self._state.keys_of(row_keys)
            yield from self._kept(self._state.fetch(query, (keys,)))

    def _leases(self, session_id: str, now_ms: int) -> Iterator[Kept]:
        """Go over the leases of a session, the oldest message first, without their bodies."""
        after = 0
        while True:
            bounds = (session_id, now_ms, after, s.LOST_STEP)
            rows = self._state.fetch("leases_of_session", bounds)
            yield from self._kept(rows)
            if len(rows) < s.LOST_STEP:
                return
            after = Cell.row_key(rows[-1])

    def _kept(self, rows: Sequence[Row]) -> Iterator[Kept]:
        for row in rows:
            entry = self._state.catalog.of_partition(Cell.lane(row))
            if entry is not None:  # cleared and deleted queues leave rows behind
                yield Kept(entry, Cell.row_key(row), message_of(row))

    # --- ends --------------------------------------------------------------------------------

    def end(self, command: s.EndSession, now_ms: int) -> c.Result:
        """End a session, and the first of its leases; one that is over stays as it is."""
        known = self._find(command.account, command.session_id, now_ms)
        if known.is_live:
            over = rules.after_end(known.as_heard(), now_ms, command.reason)
            self._close(known, over, EventType.SESSION_ENDED)
            self._end_leases(known, s.LOST_STEP, now_ms)
        return self._view(known, now_ms)

    def lose(self, command: s.LoseSessions, now_ms: int) -> c.Result:
        """End what has gone silent or stuck."""
        if now_ms < self._looked_ms:  # what had lapsed may be on a lease again
            for known in self._known.values():
                known.look_again()
        self._looked_ms = now_ms
        due = [known for known in self._known.values() if known.due_ms < now_ms]
        if not due:
            return c.Swept(0)
        due.sort(key=lambda known: known.session.session_id)
        for known in due:
            self._lose_if_silent(self._awake(known, now_ms), now_ms)
        over = [known for known in due if not known.is_live]
        left = command.limit
        for known in (*over, *(known for known in due if known.is_live)):
            if known.due_ms < now_ms:
                left -= self._end_leases(known, left, now_ms)
        for known in over:
            if known.due_ms < now_ms:
                self._forget(known, now_ms)
        return c.Swept(command.limit - left)

    def _lose_if_silent(self, known: Known, now_ms: int) -> None:
        session = known.as_heard()
        if known.is_live and s.is_silent(session, now_ms):
            self._close(known, rules.after_silence(session, now_ms), EventType.SESSION_LOST)

    def _close(self, known: Known, over: s.Session, event: EventType) -> None:
        known.take(over)
        self._keep(known)
        self._note(event, over)
        held = self._state.fetch("holds_of_session", (over.session_id,))
        if held:
            by_scope = {entry.scope: entry for entry in self._state.catalog.entries()}
            for scope, group in held:
                self._let_go(by_scope[scope], by_scope[scope].holds[group])

    # --- groups --------------------------------------------------------------------------------

    def hold_group(self, command: HoldGroup, now_ms: int) -> c.Result:
        """Give a group to a session alone."""
        state = self._state
        entry = state.catalog.grouped(command.account, command.queue)
        session = self._beat(command.account, command.session, now_ms).session
        group = command.group_id
        if group is None and not entry.queue.settings.is_paused(now_ms):
            group = self._groups.next_group(entry, now_ms)
        if group is None:
            return None
        hold = entry.holds.get(group)
        if hold is None:
            hold = GroupHold(group, session.session_id, state.next_token(), now_ms)
            bounds = (entry.scope, group, hold.session, hold.fence, now_ms, hold.state)
            state.cursor.execute(state.sql["keep_hold"], bounds)
            entry.holds[group] = hold
            by = session.session_id, session.holder
            state.log.add_group(EventType.GROUP_HELD, entry, group, by=by)
        elif hold.session != session.session_id:
            return None
        return hold._replace(state=bytes(state.value("group_state", (entry.scope, group))))

    def save_group_state(self, command: SaveGroupState, _now_ms: int) -> c.Result:
        """Keep some bytes for a group."""
        state = self._state
        entry = state.catalog.grouped(command.account, command.queue)
        check_hold(entry.holds.get(command.group_id), command.session, command.fence)
        bounds = (entry.scope, command.group_id, command.state)
        state.cursor.execute(state.sql["save_group_state"], bounds)
        return c.DONE

    def release_group(self, command: ReleaseGroup, _now_ms: int) -> c.Result:
        """End a hold."""
        entry = self._state.catalog.grouped(command.account, command.queue)
        hold = entry.holds.get(command.group_id)
        if command.session is not None:
            check_hold(hold, command.session)
        if hold is not None:
            self._let_go(entry, hold)
        return hold is not None

    def _let_go(self, entry: Entry, hold: GroupHold) -> None:
        """End a hold; what was saved stays, if there is any."""
        state, place = self._state, (entry.scope, hold.group_id)
        state.cursor.execute(state.sql["end_hold"], place)
        state.cursor.execute(state.sql["forget_empty_hold"], place)
        del entry.holds[hold.group_id]
        known = self._known.get(hold.session)
        by = hold.session, None if known is None else known.session.holder
        state.log.add_group(EventType.GROUP_RELEASED, entry, hold.group_id, by=by)
        if entry.turns is not None:
            entry.turns.call(hold.group_id, NOW)

    def _forget(self, known: Known, now_ms: int) -> None:
        if rules.is_forgotten(self._view(known, now_ms), now_ms):
            session_id = known.session.session_id
            self._state.cursor.execute(self._state.sql["forget_session"], (session_id,))
            del self._known[session_id]

    def _end_leases(self, known: Known, limit: int, now_ms: int) -> int:
        """End up to *limit* leases of a session: all if it is over, or those that are stuck."""
        session, ended = known.session, 0
        # A lease that has lapsed is one again if the clock is set back.
        recently_ms = now_ms - _SIGNS_KEPT_MS
        signs = {each: told for each, told in known.signs.items() if told > recently_ms}
        watch_ms = NEVER_MS
        timeout_ms = (session.progress_timeout_s or 0) * _MS
        for kept in self._leases(session.session_id, now_ms):
            message = kept.message
            if known.is_live:
                told_ms = known.told_ms(message)
                if not rules.is_stuck(session, message, told_ms, now_ms):
                    signs[message.message_id] = told_ms
                    watch_ms = min(watch_ms, rules.last_sign_ms(message, told_ms) + timeout_ms)
                    continue
            if ended == limit:
                return ended  # and the session stays due
            self._end_lease(kept, session, now_ms)
            ended += 1
        known.signs, known.watch_ms, known.may_hold = signs, watch_ms, False
        known.plan()
        return ended

    def _end_lease(self, kept: Kept, session: s.Session, now_ms: int) -> None:
        entry = kept.entry
        closed = rules.closed_by(kept.message, session, now_ms)
        outcome, told, _ = rules.ending_of(session)
        reason = release_reason(closed, entry.queue.settings.failure_policy, outcome)
        if reason is not None:
            poison(self._state, kept, closed, reason, now_ms)
            return
        ended = after_release(closed, now_ms, 0)
        rewrite(self._state, kept, ended)
        error = newest_error(ended)
        self._state.log.add(EventType.LEASE_ENDED, entry, ended, told, None, error)
