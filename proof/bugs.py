"""Bugs to plant in a real server, each by its name, so that it can be seen who finds them.

``python -m proof.bugs NAME serve ...`` runs the command line of a server with a bug in it, and
``with planted(NAME):`` plants one in this process: a server that is started within has it. They
are in the code that SQLite and PostgreSQL share, or in the statements of both. Nothing of this is
in what is shipped.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from leasehold.domain import failures, sessions, visibility
from leasehold.domain.claims import Claim, ClaimState
from leasehold.domain.commands import DONE
from leasehold.domain.errors import LeaseholdError, LeaseLost
from leasehold.domain.events import EventType
from leasehold.domain.groups import is_ordered
from leasehold.domain.model import Message, Phase, id_from_blob, row_key_of
from leasehold.domain.queue_settings import FailurePolicy, GroupSettings
from leasehold.domain.transactions import StreamSettled
from leasehold.stores.postgres import store as postgres_store
from leasehold.stores.sql import claims, messages, scanning, settle, transactions
from leasehold.stores.sql import sessions as sql_sessions
from leasehold.stores.sql.catalog import lanes_of, number_of
from leasehold.stores.sql.failures import FailureHandlers
from leasehold.stores.sql.rows import Cell
from leasehold.stores.sqlite import store as sqlite_store

_Undo: TypeAlias = Callable[[], None]
_EARLY_MS: Final = 5_000
_LONG_MS: Final = 3_600_000


class _Ground:
    """Where a bug is planted; takes it out again."""

    def __init__(self) -> None:
        self._undo: list[_Undo] = []

    def clear(self) -> None:
        """Have everything be as it was."""
        while self._undo:
            self._undo.pop()()

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Give a class or a module another member."""
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))

    def everywhere(self, function: Any, wrong: Any) -> None:
        """Replace a function of the domain in all modules that have imported it by name."""
        for module in tuple(sys.modules.values()):
            if not getattr(module, "__name__", "").startswith("leasehold."):
                continue
            name: str = function.__name__
            if getattr(module, name, None) is function:
                self.put(module, name, wrong)

    def statements(self, names: Sequence[str], pattern: str, wrong: str) -> None:
        """Rewrite statements of SQLite and PostgreSQL, those that there are of these names."""
        found = False
        for queries in (sqlite_store.QUERIES, postgres_store._QUERIES):  # noqa: SLF001 - to break it
            for name in names:
                before = queries.get(name)
                if before is None:
                    continue
                after, count = re.subn(pattern, wrong, before, flags=re.MULTILINE)
                found = found or bool(count)
                queries[name] = after
                self._undo.append(lambda q=queries, n=name, b=before: q.__setitem__(n, b))  # type: ignore[misc]
        if not found:
            raise LookupError(f"no statement has {pattern}")


_Plant: TypeAlias = Callable[[_Ground], None]


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug."""

    name: str
    meaning: str
    """What the server does wrong, in a sentence."""
    plant: _Plant


_NEXT: Final = ("next_visible", "next_visible_to_take", "next_visible_without_bodies")
_VISIBLE_NOW: Final = r"visible_at_ms <= ([?$])5"
"""The fifth parameter is the time, or without a bound; the second is always the time."""


def _two_leases(ground: _Ground) -> None:
    ground.statements(
        _NEXT,
        _VISIBLE_NOW,
        rf"(visible_at_ms <= \g<1>5 OR phase = 2 AND visible_at_ms <= \g<1>2 + {_LONG_MS})",
    )


def _accept(ground: _Ground, *, renewals: bool) -> None:
    """Have superseded receipts do something."""
    asked = visibility.receipt_refusal

    def wrong(*arguments: Any) -> LeaseholdError | None:
        refusal = asked(*arguments)
        *_, renew = arguments
        if isinstance(refusal, LeaseLost) and refusal.reason == "superseded":
            return None if (renew is not None) is renewals else refusal
        return refusal

    ground.everywhere(asked, wrong)


def _stale_complete(ground: _Ground) -> None:
    _accept(ground, renewals=False)


def _stale_renew(ground: _Ground) -> None:
    _accept(ground, renewals=True)


def _receipt_kept(ground: _Ground) -> None:
    rule = visibility.after_renew

    def wrong(message: Message, *arguments: Any) -> Message:
        return rule(message, *arguments)._replace(fence=message.fence)

    ground.everywhere(rule, wrong)


def _early_delayed(ground: _Ground) -> None:
    ground.statements(
        _NEXT,
        _VISIBLE_NOW,
        rf"(visible_at_ms <= \g<1>5 OR phase = 1 AND visible_at_ms <= \g<1>2 + {_LONG_MS})",
    )


def _early_lapse(ground: _Ground) -> None:
    ground.statements(
        _NEXT,
        _VISIBLE_NOW,
        rf"(visible_at_ms <= \g<1>5 OR phase = 2 AND visible_at_ms <= \g<1>2 + {_EARLY_MS})",
    )
    rule = failures.has_lapsed

    def wrong(message: Message, now_ms: int) -> bool:
        return rule(message, now_ms + _EARLY_MS)

    ground.everywhere(rule, wrong)


def _lost_on_release(ground: _Ground) -> None:
    give_back = FailureHandlers.give_back

    def wrong(self: Any, kept: Any, command: Any, now_ms: int) -> Any:
        released = give_back(self, kept, command, now_ms)
        if kept.held is None:
            self._state.cursor.execute(self._state.sql["remove"], (kept.row_key,))
        return released

    ground.put(FailureHandlers, "give_back", wrong)


def _lost_on_lapse(ground: _Ground) -> None:
    found = scanning.Search.next_visible

    def wrong(self: Any, *arguments: Any, **more: Any) -> Any:
        rows = found(self, *arguments, **more)
        lapsed = [row for row in rows if Cell.phase(row) == Phase.LEASED]
        for row in lapsed:
            self._state.cursor.execute(self._state.sql["remove"], (Cell.row_key(row),))
        return [row for row in rows if row not in lapsed]

    ground.put(scanning.Search, "next_visible", wrong)


def _complete_kept(ground: _Ground) -> None:
    ground.statements(
        ("complete", "complete_run", "remove_many"),
        r"^DELETE FROM message\b",
        "UPDATE message SET phase = phase",
    )


def _fence_stays(ground: _Ground) -> None:
    rule = visibility.after_receive

    def wrong(message: Message, *arguments: Any) -> Message:
        return rule(message, *arguments)._replace(fence=message.fence)

    ground.everywhere(rule, wrong)


def _claim_changed(ground: _Ground) -> None:
    opened = claims.ClaimHandlers.open

    def wrong(self: Any, command: Any, now_ms: int) -> Any:
        held = self._stream(command).claims.get(command.number)
        if held is not None and not held.is_opening:
            claim: Claim = held.claim
            limit = claim.limit + command.limit
            held.claim = replace(claim, state=ClaimState.OPENING, limit=limit)
        return opened(self, command, now_ms)

    ground.put(claims.ClaimHandlers, "open", wrong)


def _settled_twice(ground: _Ground) -> None:
    def wrong(self: Any, plan: Any, given: Any, _now_ms: int) -> StreamSettled:
        stream, completed = plan.stream, 0
        for held in plan.chosen:
            completed += held.claim.remaining
            self._record(EventType.SETTLED, held)
        queue = stream.entry.queue.name
        return StreamSettled(queue, stream.name, plan.upto, completed, len(given), 0)

    ground.put(settle.Settling, "carry_out", wrong)


def _exemption_lost(ground: _Ground) -> None:
    exempt = settle.Settling._exempt  # noqa: SLF001 - to break it

    def wrong(self: Any, held: Any, given: Any, now_ms: int) -> int:
        count = exempt(self, held, given, now_ms)
        for kept, _ in given:
            self._state.cursor.execute(self._state.sql["remove"], (kept.row_key,))
        return count

    ground.put(settle.Settling, "_exempt", wrong)


def _staged_visible(ground: _Ground) -> None:
    stage = transactions.TransactionHandlers.stage

    def wrong(self: Any, command: Any, now_ms: int) -> Any:
        staged, state = stage(self, command, now_ms), self._state
        for slot in self._book.slots(command.account, command.name):
            entry = state.catalog.get(slot.account, slot.queue)
            for lane in lanes_of(slot.partition, slot.lanes_used):
                own = state.open_lane(entry, number_of(lane))
                state.cursor.execute(state.sql["publish_lane"], (lane, now_ms, entry.partition))
                own.live_from_ms = min(own.live_from_ms, now_ms)
        return staged

    ground.put(transactions.TransactionHandlers, "stage", wrong)


def _staged_lost(ground: _Ground) -> None:
    move = transactions.TransactionHandlers._move  # noqa: SLF001 - to break it

    def wrong(self: Any, slot: Any, now_ms: int) -> None:
        state = self._state
        for lane in lanes_of(slot.partition, slot.lanes_used):
            rows = list(state.cursor.execute(state.sql["cores_of_lane"], (lane,)))
            state.cursor.execute(state.sql["remove"], (row_key_of(id_from_blob(rows[-1][0])),))
        slot.rows -= 1
        move(self, slot, now_ms)

    ground.put(transactions.TransactionHandlers, "_move", wrong)


def _session_kept(ground: _Ground) -> None:
    end = sql_sessions.SessionHandlers._end_leases  # noqa: SLF001 - to break it

    def wrong(self: Any, known: Any, limit: int, now_ms: int) -> int:
        if known.is_live:
            return end(self, known, limit, now_ms)
        known.signs, known.may_hold = {}, False
        known.plan()
        return 0

    ground.put(sql_sessions.SessionHandlers, "_end_leases", wrong)


def _session_stale(ground: _Ground) -> None:
    ground.everywhere(sessions.over_refusal, lambda _session: None)


def _count_off(ground: _Ground) -> None:
    complete = messages.CompleteVerb.complete

    def wrong(self: Any, run: Any, now_ms: int) -> Any:
        results = complete(self, run, now_ms)
        for command, result in zip(run, results, strict=True):
            entry = self._state.catalog.find(command.account, command.queue)
            if result is DONE and entry is not None:
                entry.message_count += 1
        return results

    ground.put(messages.CompleteVerb, "complete", wrong)


def _group_overtaken(ground: _Ground) -> None:
    ground.everywhere(is_ordered, lambda _settings, _group: False)


def _cap_exceeded(ground: _Ground) -> None:
    limit_of = GroupSettings.limit_of

    def wrong(self: GroupSettings, group_id: str) -> int | None:
        limit = limit_of(self, group_id)
        return None if limit is None else limit + 1

    ground.put(GroupSettings, "limit_of", wrong)


def _poison_late(ground: _Ground) -> None:
    rule = failures.exhausted_on_receive

    def wrong(message: Message, policy: FailurePolicy) -> str | None:
        budgets = ("max_deliveries", "max_failures", "max_interruptions", "max_lapses")
        more = {
            name: budget + 1 for name in budgets if (budget := getattr(policy, name)) is not None
        }
        return rule(message, replace(policy, **more))

    ground.everywhere(rule, wrong)


def _expired_delivered(ground: _Ground) -> None:
    ground.statements(_NEXT, r"expires_at_ms > ([?$]2)", rf"expires_at_ms > \1 - {_LONG_MS}")
    ground.statements(
        ("expired",), r"expires_at_ms <= ([?$]2)", rf"expires_at_ms <= \1 - {_LONG_MS}"
    )


BUGS: Final = {
    bug.name: bug
    for bug in (
        Bug("two-leases", "a message on a lease is handed out once more", _two_leases),
        Bug("stale-complete", "a superseded receipt completes or gives back", _stale_complete),
        Bug("stale-renew", "a superseded receipt renews", _stale_renew),
        Bug("receipt-kept", "a renewal leaves the old receipt alive", _receipt_kept),
        Bug("early-delayed", "a message is handed out before its delay is over", _early_delayed),
        Bug("early-lapse", "a lease counts as lapsed 5 seconds before it has", _early_lapse),
        Bug("lost-on-release", "a message that is given back is gone", _lost_on_release),
        Bug("lost-on-lapse", "a message whose lease has lapsed is gone", _lost_on_lapse),
        Bug("complete-kept", "a completed message stays", _complete_kept),
        Bug("fence-stays", "a redelivery does not raise the fence", _fence_stays),
        Bug("claim-changed", "a claim that is opened again gets more members", _claim_changed),
        Bug("settled-twice", "a settled claim stays, and can be settled again", _settled_twice),
        Bug("exemption-lost", "members exempted from settling are gone", _exemption_lost),
        Bug("staged-visible", "staged messages are received before publishing", _staged_visible),
        Bug("staged-lost", "publishing leaves out one message of each lane", _staged_lost),
        Bug("session-kept", "leases go on when their session is over", _session_kept),
        Bug("session-stale", "a session that is over still receives", _session_stale),
        Bug("count-off", "completes are not taken off the count of messages", _count_off),
        Bug("group-overtaken", "an ordered group goes on past its first message", _group_overtaken),
        Bug("cap-exceeded", "a group has one more in flight than its limit", _cap_exceeded),
        Bug("poison-late", "messages get one delivery more than their budgets", _poison_late),
        Bug("expired-delivered", "expired messages are handed out", _expired_delivered),
    )
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[Bug]:
    """Plant a bug for as long as the context lasts; servers started within it have it.

    Raises:
        KeyError: There is no bug of that name.
    """
    bug, ground = BUGS[name], _Ground()
    try:
        bug.plant(ground)
        yield bug
    finally:
        ground.clear()


def main() -> None:
    """Run the program ``leasehold`` with a bug: ``python -m proof.bugs NAME serve ...``."""
    from leasehold.command import main as run  # noqa: PLC0415 - after the planting

    with planted(sys.argv.pop(1)):
        run()


if __name__ == "__main__":
    main()
