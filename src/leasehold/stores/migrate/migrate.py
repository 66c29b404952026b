"""Moving a store, or one account of it, to another store.

No client is served from either while it goes on. At any moment at most one of the two can be
served:

1. An empty target is marked as arriving. Until the end a server refuses it.
2. Rows are copied as they are, ids, fences and all, in one transaction of the target. What the
   target has then is compared with what was read: counts and digests.
3. The source is marked as moved, and committed. From here on a server refuses it.
4. The target is committed. With that its mark is gone, and it says which move has arrived.
5. With an account: it is taken out of the source, whose mark then goes too.

A process that is killed in 1 or 2 leaves the source as it was; killed between 3 and 4 it leaves two
stores that refuse, and the source has everything; between 4 and 5 the target has. The same move,
made again, goes on from there.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from leasehold.stores.migrate.ends import (
    MESSAGE,
    QUEUE,
    Digester,
    Digests,
    End,
    LargeBody,
    MoveRefused,
    Rows,
    Table,
    highest,
    tables_of,
)
from leasehold.stores.migrate.marks import ARRIVED, AWAY, MARK, Mark, mark_in

_WAY_OUT: Final = (
    "move the account into a store of its own: append ?schema=NAME, with an unused name, to a "
    "PostgreSQL URL"
)
KEPT: Final = ("receipt_key", "epoch", "retired_until_ms", "last_seen_ms")
"""Values that go with the rows, into an empty store."""


class Teller(Protocol):
    """Who is told how far a move is."""

    def __call__(self, step: str, done: int, total: int) -> None:
        """Take that *done* of *total* rows are through a step, which may have a new name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What was moved.

    Attributes:
        move_id: Of the move; the target keeps it.
        queues: Account, name and number of messages of each queue, as the source had counted.
        rows: Rows of each table.
        large_bodies: How many bodies are not in the database.
        receipts_kept: Whether receipts that clients hold stay good.
        went_on: Whether an earlier run had done all but the end.
    """

    move_id: str
    queues: Sequence[tuple[str, str, int]]
    rows: dict[str, int]
    large_bodies: int
    receipts_kept: bool
    went_on: bool = False


@dataclass(slots=True, kw_only=True)
class Wanted:
    """A move to be made.

    Attributes:
        account: The account to move; None for all that is in the store.
        now_ms: The time, Unix ms.
        tell: Is told how far it is.
        new_receipts: Whether the receipts of the account may die.
        carry_bodies: Copies large bodies, before anything is committed; None if they
            stay where they are.
    """

    account: str | None
    now_ms: int
    tell: Teller
    new_receipts: bool = False
    carry_bodies: Callable[[Sequence[LargeBody]], None] | None = None


def move(source: End, target: End, wanted: Wanted) -> Moved:
    """Move everything, or one account, from *source* to *target*.

    Raises:
        MoveRefused: It cannot be made; nothing was changed.
        Exception: Of either database. What was not told to be done can be made again.
    """
    try:
        return _move(source, target, wanted)
    finally:
        source.roll_back()
        target.roll_back()


def _move(source: End, target: End, wanted: Wanted) -> Moved:
    account = wanted.account
    if source.shown == target.shown:
        raise MoveRefused("both are the same store")
    source.lock()
    target.lock()
    move_id = _look_at_marks(source, target, account)
    if ARRIVED + move_id in target.meta():
        return _finish(source, target, wanted, move_id)
    source.select(account)
    target.select(None)
    tables = tables_of(account)
    totals = {table.name: source.count(table) for table in tables}
    if account is not None and not sum(totals.values()):
        raise MoveRefused(f"{source.shown} has nothing of account {account}")
    empty = not any(target.count(table) for table in tables)
    receipts_kept = empty or source.meta()["receipt_key"] == target.meta()["receipt_key"]
    if not empty:
        _look_for_clashes(source, target, wanted, receipts_kept=receipts_kept)
    large = source.large_bodies()
    if large and account is not None:
        if wanted.carry_bodies is None:
            raise MoveRefused(
                f"{len(large)} bodies of the account are not in the database but in the body "
                "store of the source. Two stores must not share a body store, because each "
                "removes the bodies that it does not reference: name both with --bodies-from and "
                "--bodies-to, and the bodies are copied"
            )
        wanted.carry_bodies(large)
    if empty:
        _mark_arriving(target, source, wanted, move_id)
    target.prepare_bulk()
    read = dict(copy_rows(source, target, tables, wanted.tell, sum(totals.values())))
    target.finish_bulk()
    target.select(account)
    compare_rows(target, tables, read, wanted.tell)
    _settle_target(source, target, wanted, move_id, empty=empty)
    queues = _queues(source)
    mark = _mark("moved", move_id, target.shown, wanted)
    source.set_meta(MARK, mark.text())
    source.commit()
    target.commit()
    if account is not None:
        _take_out(source, target, account, wanted.now_ms)
    return Moved(
        move_id=move_id,
        queues=queues,
        rows=totals,
        large_bodies=len(large),
        receipts_kept=receipts_kept,
    )


def _look_at_marks(source: End, target: End, account: str | None) -> str:
    """Return the id of the move: a new one, or that of one that was not finished."""
    move_id = secrets.token_hex(16)
    mark = mark_in(source.meta())
    if mark is not None:
        if mark.role == "arriving" or mark.account != account:
            raise MoveRefused(f"{source.shown} cannot be moved: {mark.reason()}")
        move_id = mark.move_id
        if mark.other != target.shown and ARRIVED + move_id not in target.meta():
            raise MoveRefused(f"{source.shown} cannot be moved: {mark.reason()}")
    mark = mark_in(target.meta())
    if mark is not None and (
        mark.role == "moved" or mark.account != account or mark.other != source.shown
    ):
        raise MoveRefused(f"{target.shown} cannot be moved to: {mark.reason()}")
    return move_id


def _look_for_clashes(source: End, target: End, wanted: Wanted, *, receipts_kept: bool) -> None:
    """Refuse what would not fit into a store that is in use."""
    account = wanted.account
    if account is None:
        raise MoveRefused(
            f"{target.shown} is not empty: a whole store can only be moved into an empty one. "
            "In a PostgreSQL URL, ?schema=NAME selects another schema"
        )
    target.select(account)
    if target.count(QUEUE):
        raise MoveRefused(f"{target.shown} has queues of account {account} already")
    target.select(None)
    clash = source.selected_partitions() & target.partitions()
    if clash:
        raise MoveRefused(
            f"{len(clash)} partitions of account {account} have numbers that {target.shown} uses "
            f"already, and message ids depend on such numbers; {_WAY_OUT}. (If the account has "
            "just left that store, its old rows may not be deleted yet: serve the store for a "
            "while, then try again.)"
        )
    if not receipts_kept and not wanted.new_receipts:
        raise MoveRefused(
            f"{target.shown} seals receipts with another key, so all receipts that clients of "
            f"account {account} hold would become invalid, and their messages would be delivered "
            f"again when their leases end; {_WAY_OUT}, or accept that with --new-receipts"
        )


def _mark(role: Any, move_id: str, other: str, wanted: Wanted) -> Mark:
    return Mark(
        role=role, move_id=move_id, other=other, account=wanted.account, at_ms=wanted.now_ms
    )


def _mark_arriving(target: End, source: End, wanted: Wanted, move_id: str) -> None:
    mark = _mark("arriving", move_id, source.shown, wanted)
    target.set_meta(MARK, mark.text())
    target.commit()
    target.lock()


def copy_rows(
    source: End, target: End, tables: Sequence[Table], tell: Teller, total: int
) -> Iterator[tuple[str, Digests]]:
    """Copy the rows; return what they add up to, by table."""
    done = 0

    def passing(table: Table, digester: Digester) -> Iterator[Rows]:
        nonlocal done
        for rows in source.read(table):
            digester.add(rows)
            yield rows
            done += len(rows)
            tell("Copying", done, total)

    for table in tables:
        digester = Digester(table)
        target.write(table, passing(table, digester))
        yield table.name, digester.result()


def compare_rows(
    target: End, tables: Sequence[Table], read: dict[str, Digests], tell: Teller
) -> None:
    """Compare what the target has now with what was read."""
    total = sum(count for digests in read.values() for count, _ in digests.values())
    done = 0
    for table in tables:
        tell("Comparing", done, total)
        found, wanted = target.digests(table), read[table.name]
        if found != wanted:
            groups = {group for group in found | wanted if found.get(group) != wanted.get(group)}
            raise MoveRefused(
                f"table {table.name} in {target.shown} differs from what was read, in "
                f"{len(groups)} of its parts; nothing was moved"
            )
        done += sum(count for count, _ in wanted.values())
    tell("Comparing", done, total)


def _settle_target(source: End, target: End, wanted: Wanted, move_id: str, *, empty: bool) -> None:
    """Let the target go on where the source was."""
    there, here = source.meta(), target.meta()
    target.raise_to(highest(source.high_water(), target.high_water()))
    if empty:
        for name in KEPT:
            target.set_meta(name, there[name])
    else:
        # What expired before that and came from the source has not been dealt with.
        reached_ms = min(there["retired_until_ms"], here["retired_until_ms"])
        target.set_meta("retired_until_ms", reached_ms)
    target.set_meta(MARK, None)
    arrived = {"from": source.shown, "account": wanted.account, "at_ms": wanted.now_ms}
    target.set_meta(ARRIVED + move_id, json.dumps(arrived))
    if wanted.account is not None:
        target.set_meta(AWAY + wanted.account, None)


def _queues(source: End) -> list[tuple[str, str, int]]:
    names = QUEUE.columns
    account, name, count = (names.index(each) for each in ("account", "name", "message_count"))
    return [(row[account], row[name], row[count]) for rows in source.read(QUEUE) for row in rows]


def _take_out(source: End, target: End, account: str, now_ms: int) -> None:
    """Take an account that has arrived elsewhere out of its store, and let that be served again."""
    source.lock()
    source.select(account)
    source.drop_selected()
    source.set_meta(AWAY + account, json.dumps({"to": target.shown, "at_ms": now_ms}))
    source.set_meta(MARK, None)
    source.commit()


def _finish(source: End, target: End, wanted: Wanted, move_id: str) -> Moved:
    """Do what is left of a move that has arrived."""
    source.select(wanted.account)
    queues = _queues(source)
    rows = {table.name: source.count(table) for table in tables_of(wanted.account)}
    large = len(source.large_bodies())
    source.roll_back()
    if wanted.account is not None:
        _take_out(source, target, wanted.account, wanted.now_ms)
    return Moved(
        move_id=move_id,
        queues=queues,
        rows=rows,
        large_bodies=large,
        receipts_kept=source.meta()["receipt_key"] == target.meta()["receipt_key"],
        went_on=True,
    )


def undo(store: End, copy: End | None, now_ms: int) -> str:
    """Let a store that is marked be served again; return what was done, for people.

    Args:
        store: The one that is marked.
        copy: The other store of the move. If everything has arrived there, it is marked in turn.
        now_ms: The time, Unix ms.

    Raises:
        MoveRefused: That cannot be done.
    """
    try:
        return _undo(store, copy, now_ms)
    finally:
        store.roll_back()
        if copy is not None:
            copy.roll_back()


def _undo(store: End, copy: End | None, now_ms: int) -> str:
    store.lock()
    mark = mark_in(store.meta())
    if mark is None:
        raise MoveRefused(f"{store.shown} is not marked: it can be served as it is")
    if mark.role == "arriving":
        store.set_meta(MARK, None)
        store.commit()
        return f"{store.shown} is empty, and can be used again. {mark.other} was not changed."
    if copy is None:
        raise MoveRefused(
            f"{store.shown} was moved to {mark.other}: name that store too, with --copy, so that "
            "it cannot be served at the same time"
        )
    copy.lock()
    has_arrived = ARRIVED + mark.move_id in copy.meta()
    if has_arrived and mark.account is not None:
        raise MoveRefused(
            f"account {mark.account} has been copied to {copy.shown}: run the same move-account "
            "again to finish the move, then move the account back"
        )
    if has_arrived:
        move_id = secrets.token_hex(16)
        back = Mark(role="moved", move_id=move_id, other=store.shown, account=None, at_ms=now_ms)
        copy.set_meta(MARK, back.text())
        store.set_meta(ARRIVED + move_id, json.dumps({"undone": mark.move_id, "at_ms": now_ms}))
    else:
        if copy.shown != mark.other:
            raise MoveRefused(f"the store was moved to {mark.other}, not to {copy.shown}")
        copy.set_meta(MARK, None)
    copy.commit()
    store.set_meta(MARK, None)
    store.commit()
    if has_arrived:
        return (
            f"{store.shown} can be served again, as it was when it was moved. {copy.shown} cannot: "
            "later changes remain there."
        )
    return f"{store.shown} can be served again; nothing had arrived in {copy.shown}."


def message_rows(moved: Moved) -> int:
    """Return how many messages were moved, in whatever state."""
    return moved.rows[MESSAGE.name]
