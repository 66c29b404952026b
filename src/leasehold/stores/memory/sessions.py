"""Sessions in memory: live workers, and the end of the leases of those that are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from leasehold.domain import commands as c
from leasehold.domain import sessions as rules
from leasehold.domain import sessions as s
from leasehold.domain.errors import MessageNotLeased, SessionNotFound
from leasehold.domain.events import EventType
from leasehold.domain.failures import newest_error, release_reason
from leasehold.domain.groups import NOW, HoldGroup, ReleaseGroup, SaveGroupState, check_hold
from leasehold.domain.model import CancelRequest, GroupHold, Message, MessageState, Progress
from leasehold.domain.visibility import after_release
from leasehold.stores.memory.tables import QueueTable, Tables, Taking, grouped


@dataclass(slots=True)
class _Desk:
    """A session, and what its worker has told."""

    session: s.Session
    told: dict[str, int] = field(default_factory=dict)
    """By message id: when the worker last renewed the lease or spoke of it."""


class Sessions:
    """Which workers live."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.desks: dict[str, _Desk] = {}

    # --- groups --------------------------------------------------------------------------------

    def hold(self, table: QueueTable, session_id: str, group_id: str) -> GroupHold:
        """Give a group to a session alone, unless it has it already."""
        hold = table.holds.get(group_id)
        if hold is None:
            self._tables.last_token += 1
            hold = GroupHold(group_id, session_id, self._tables.last_token, self._tables.now_ms)
            table.holds[group_id] = hold
            self._note_hold(EventType.GROUP_HELD, table, hold)
        return hold._replace(state=table.group_states.get(group_id, b""))

    def let_go(self, table: QueueTable, hold: GroupHold) -> None:
        """End a hold."""
        del table.holds[hold.group_id]
        self._note_hold(EventType.GROUP_RELEASED, table, hold)
        if table.turns is not None:
            table.turns.call(hold.group_id, NOW)

    def _note_hold(self, kind: EventType, table: QueueTable, hold: GroupHold) -> None:
        by = hold.session, self.desks[hold.session].session.holder
        self._tables.note_group(kind, table, hold.group_id, by=by)

    def let_all_go(self, session: s.Session) -> None:
        """End all holds of a session that is over."""
        for table in self._tables.queues.values():
            for hold in sorted(table.holds.values()):
                if hold.session == session.session_id:
                    self.let_go(table, hold)

    def find(self, account: str, session_id: str) -> _Desk:
        """Return a session, or raise SessionNotFound."""
        desk = self.desks.get(session_id)
        if desk is None or desk.session.account != account:
            raise SessionNotFound
        return desk

    def beat(self, account: str, session_id: str) -> _Desk:
        """Note that a worker lives, or raise SessionNotFound or SessionOver."""
        desk = self.find(account, session_id)
        refusal = rules.over_refusal(desk.session)
        if refusal:
            raise refusal
        desk.session = replace(desk.session, last_heartbeat_ms=self._tables.now_ms)
        return desk

    def receive(self, account: str, session_id: str) -> str:
        """Note that a worker asks for messages; return its name."""
        return self.beat(account, session_id).session.holder

    def hear_of(self, message: Message) -> None:
        """Note that the holder of a lease has renewed it."""
        desk = self.desks.get(message.session or "")
        if desk is not None:
            desk.told[message.message_id] = self._tables.now_ms

    def leases(self, session: s.Session) -> Iterator[tuple[QueueTable, int, Message]]:
        """Go over the leases of a session, the oldest message first."""
        now_ms = self._tables.now_ms
        held = [
            (table, row_key, message)
            for table, row_key, message in self._tables.everything()
            if rules.holds(message, session.session_id, now_ms)
        ]
        yield from sorted(held, key=lambda each: each[1])

    def view(self, desk: _Desk) -> s.Session:
        """Return a session as others see it."""
        return replace(desk.session, leases=len(list(self.leases(desk.session))))


class SessionHandlers:
    """Each method carries out one command; refusals are raised."""

    def __init__(self, tables: Tables, sessions: Sessions, taking: Taking) -> None:
        self._tables = tables
        self._sessions = sessions
        self._taking = taking

    def open(self, command: s.OpenSession) -> c.Result:
        """Begin a session."""
        session = rules.begin(command, self._tables.now_ms)
        self._sessions.desks[session.session_id] = _Desk(session)
        self._tables.log.add_of_session(EventType.SESSION_STARTED, session)
        return session

    def get(self, command: s.GetSession) -> c.Result:
        """Look at a session."""
        sessions = self._sessions
        return sessions.view(sessions.find(command.account, command.session_id))

    def list(self, command: s.ListSessions) -> c.Result:
        """List sessions, the newest first."""
        sessions = self._sessions
        found = [
            desk for desk in sessions.desks.values() if desk.session.account == command.account
        ]
        found.sort(key=lambda desk: (-desk.session.started_at_ms, desk.session.session_id))
        return tuple(sessions.view(desk) for desk in found[: command.limit])

    def leases(self, command: s.ListLeases) -> c.Result:
        """List what is on the leases of a session."""
        desk = self._sessions.find(command.account, command.session_id)
        held = islice(self._sessions.leases(desk.session), command.limit)
        return tuple(
            s.HeldMessage(
                table.queue.name,
                message._replace(body=b""),
                rules.last_sign_ms(message, desk.told.get(message.message_id)),
            )
            for table, _, message in held
        )

    # --- heartbeats --------------------------------------------------------------------------

    def heartbeat(self, command: s.Heartbeat) -> c.Result:
        """Note that a worker lives, and what it tells of its messages."""
        desk = self._sessions.beat(command.account, command.session_id)
        held = {each[2].message_id: each for each in self._sessions.leases(desk.session)}
        lost: list[str] = []
        for message_id, progress in (command.progress or {}).items():
            if message_id not in held:
                lost.append(message_id)
                continue
            desk.told[message_id] = self._tables.now_ms
            if progress is not None:
                self._report(*held[message_id][:2], progress)
        cancels = [
            s.CancelNotice(message_id, table.queue.name, cancel.reason, cancel.at_ms)
            for message_id, (table, _, message) in held.items()
            if (cancel := message.detail.cancel) is not None
        ]
        return s.Beat(rules.until_ms(desk.session), tuple(cancels), tuple(lost))

    def _report(self, table: QueueTable, row_key: int, progress: Progress) -> None:
        message = table.rows[row_key]
        detail = replace(message.detail, progress=progress)
        table.rows[row_key] = message._replace(detail=detail)

    def request_cancel(self, command: s.RequestCancel) -> c.Result:
        """Ask the holder of a lease to stop."""
        tables = self._tables
        table = tables.get(command.account, command.queue)
        row_key, message = tables.live(table, command.message_id)
        if table.state_of(row_key, tables.now_ms) is not MessageState.LEASED:
            raise MessageNotLeased
        cancel = CancelRequest(at_ms=tables.now_ms, reason=command.reason)
        asked = message._replace(detail=replace(message.detail, cancel=cancel))
        table.rows[row_key] = asked  # which leaves it in its claim
        tables.note(EventType.CANCEL_ASKED, table, asked, command.reason)
        return table.seen(row_key, tables.now_ms)

    # --- ends --------------------------------------------------------------------------------

    def end(self, command: s.EndSession) -> c.Result:
        """End a session, and the first of its leases; one that is over stays as it is."""
        desk = self._sessions.find(command.account, command.session_id)
        if desk.session.state is s.SessionState.LIVE:
            desk.session = rules.after_end(desk.session, self._tables.now_ms, command.reason)
            self._tables.log.add_of_session(EventType.SESSION_ENDED, desk.session)
            self._sessions.let_all_go(desk.session)
            self._end_leases(desk, s.LOST_STEP)
        return self._sessions.view(desk)

    def lose(self, command: s.LoseSessions) -> c.Result:
        """End what has gone silent or stuck."""
        now_ms, desks = self._tables.now_ms, self._sessions.desks
        in_order = [desks[session_id] for session_id in sorted(desks)]
        for desk in in_order:
            if desk.session.state is s.SessionState.LIVE and s.is_silent(desk.session, now_ms):
                desk.session = rules.after_silence(desk.session, now_ms)
                self._tables.log.add_of_session(EventType.SESSION_LOST, desk.session)
                self._sessions.let_all_go(desk.session)
        ended = 0
        for is_live in (False, True):
            for desk in in_order:
                if (desk.session.state is s.SessionState.LIVE) is is_live:
                    ended += self._end_leases(desk, command.limit - ended)
        for desk in in_order:
            if rules.is_forgotten(self._sessions.view(desk), now_ms):
                del desks[desk.session.session_id]
        return c.Swept(ended)

    # --- groups --------------------------------------------------------------------------------

    def hold_group(self, command: HoldGroup) -> c.Result:
        """Give a group to a session alone."""
        table = grouped(self._tables, command)
        self._sessions.beat(command.account, command.session)
        group = command.group_id
        if group is None:
            turns = self._tables.turns_of(table)
            assert turns is not None
            is_paused = table.queue.settings.is_paused(self._tables.now_ms)
            group = None if is_paused else self._taking.next_group(table, turns)
        if group is None:
            return None
        hold = table.holds.get(group)
        if hold is not None and hold.session != command.session:
            return None
        return self._sessions.hold(table, command.session, group)

    def save_group_state(self, command: SaveGroupState) -> c.Result:
        """Keep some bytes for a group."""
        table = grouped(self._tables, command)
        check_hold(table.holds.get(command.group_id), command.session, command.fence)
        table.group_states[command.group_id] = command.state
        return c.DONE

    def release_group(self, command: ReleaseGroup) -> c.Result:
        """End a hold."""
        table = grouped(self._tables, command)
        hold = table.holds.get(command.group_id)
        if command.session is not None:
            check_hold(hold, command.session)
        if hold is not None:
            self._sessions.let_go(table, hold)
        return hold is not None

    def _end_leases(self, desk: _Desk, limit: int) -> int:
        """End up to *limit* leases of a session: all if it is over, or those that are stuck."""
        session, now_ms = desk.session, self._tables.now_ms
        due = [
            (table, row_key, message)
            for table, row_key, message in self._sessions.leases(session)
            if session.state is not s.SessionState.LIVE
            or rules.is_stuck(session, message, desk.told.get(message.message_id), now_ms)
        ]
        for table, row_key, message in due[:limit]:
            self._end_lease(table, row_key, rules.closed_by(message, session, now_ms), session)
        return min(len(due), limit)

    def _end_lease(
        self, table: QueueTable, row_key: int, closed: Message, session: s.Session
    ) -> None:
        outcome, told, _ = rules.ending_of(session)
        reason = release_reason(closed, table.queue.settings.failure_policy, outcome)
        if reason is not None:
            self._taking.poison(table, row_key, closed, reason)
            return
        ended = after_release(closed, self._tables.now_ms, 0)
        self._tables.keep(table, row_key, ended)
        error = newest_error(ended)
        self._tables.note(EventType.LEASE_ENDED, table, ended, told, error=error)
