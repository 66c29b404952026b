"""What ``leasehold store migrate``, ``move-account``, ``undo`` and ``restored`` do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text

from leasehold.bodies import open_bodies
from leasehold.bodies.base import BodyMissing
from leasehold.cli.asking import can_ask, confirm
from leasehold.cli.exit_codes import ExitCode
from leasehold.cli.rendering import Screen, facts
from leasehold.cli.store_opening import NoStore, open_end, telling
from leasehold.cli.texts import clean, counted, number
from leasehold.clock import SystemClock
from leasehold.stores.moving.ends import End
from leasehold.stores.moving.moving import Moved, Teller, Wanted, message_rows, move
from leasehold.stores.moving.moving import undo as undo_move
from leasehold.stores.moving.restored import begin_epoch

_AT_ONCE: Final = 16
"""Bodies that are copied at a time."""
_SHOWN: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The arguments and options of the commands; see their help."""

    source: str
    target: str
    account: str | None
    new_receipts: bool = False
    bodies_from: str | None = None
    bodies_to: str | None = None


def run(wishes: Wishes, *, as_json: bool, no_color: bool) -> int:
    """Move a store or an account; return the exit code."""
    screen = Screen(as_json=as_json, no_color=no_color)
    return telling(screen, lambda: _run(wishes, screen))


def _run(wishes: Wishes, screen: Screen) -> int:
    clock = SystemClock()
    if wishes.bodies_from is not None and wishes.bodies_from == wishes.bodies_to:
        raise NoStore("--bodies-from and --bodies-to are the same place: each store needs its own")
    with ExitStack() as opened:
        source = opened.enter_context(open_end(wishes.source, new=False))
        target = opened.enter_context(open_end(wishes.target, new=True))
        progress = opened.enter_context(screen.progress())
        begun_s = clock.monotonic_s()
        wanted = Wanted(
            account=wishes.account,
            now_ms=clock.now_ms(),
            tell=_teller(progress),
            new_receipts=wishes.new_receipts,
            carry_bodies=_carrier(wishes, progress),
        )
        moved = move(source, target, wanted)
        took_s = clock.monotonic_s() - begun_s
        names = source.shown, target.shown
    if screen.as_json:
        screen.document(_plain(moved, names, wishes, took_s))
    else:
        _show(screen, moved, names, wishes, took_s)
    return ExitCode.DONE


def undo(store: str, copy: str | None, *, yes: bool, as_json: bool, no_color: bool) -> int:
    """Let a store that is marked be served again; return the exit code."""
    screen = Screen(as_json=as_json, no_color=no_color)
    if copy is not None and not yes:
        text = f"Serve {clean(store)} again, and lose what was done in {clean(copy)} since?"
        confirm(screen, text, is_interactive=can_ask())
    return telling(screen, partial(_undo, store, copy, screen))


def _undo(store: str, copy: str | None, screen: Screen) -> int:
    with ExitStack() as opened:
        end: End = opened.enter_context(open_end(store, new=False))
        other = None if copy is None else opened.enter_context(open_end(copy, new=False))
        done = undo_move(end, other, SystemClock().now_ms())
    if screen.as_json:
        screen.document({"done": done})
    else:
        screen.say(done)
    return ExitCode.DONE


def restored(store: str, *, yes: bool, as_json: bool, no_color: bool) -> int:
    """Have a store begin a new epoch; return the exit code."""
    screen = Screen(as_json=as_json, no_color=no_color)
    if not yes:
        text = f"Make all receipts that workers hold of {clean(store)} void?"
        confirm(screen, text, is_interactive=can_ask())
    return telling(screen, partial(_restored, store, screen))


def _restored(store: str, screen: Screen) -> int:
    with open_end(store, new=False) as end:
        epoch, shown = begin_epoch(end), end.shown
    if screen.as_json:
        screen.document({"store": shown, "epoch": epoch})
    else:
        screen.say(f"{shown} is in epoch {epoch} now: receipts from before are void.")
    return ExitCode.DONE


def _teller(progress: Progress) -> Teller:
    bars: dict[str, TaskID] = {}

    def tell(step: str, done: int, total: int) -> None:
        if step not in bars:
            bars[step] = progress.add_task(step, total=max(1, total), note="")
        note = f"{number(done)} of {counted(total, 'row')}"
        progress.update(bars[step], completed=done, note=note)

    return tell


def _carrier(wishes: Wishes, progress: Progress) -> Callable[[Sequence[str]], None] | None:
    places = wishes.bodies_from, wishes.bodies_to
    if places[0] is None or places[1] is None:
        return None
    return partial(_carry_bodies, places[0], places[1], progress)


def _carry_bodies(place: str, other: str, progress: Progress, keys: Sequence[str]) -> None:
    """Copy bodies; those that a run before this one copied are written again."""
    bar = progress.add_task("Copying bodies", total=len(keys), note="")

    async def carry() -> None:
        source, target = open_bodies(place), open_bodies(other)
        try:
            for start in range(0, len(keys), _AT_ONCE):
                part = keys[start : start + _AT_ONCE]
                bodies = await asyncio.gather(*map(source.get, part))
                await asyncio.gather(*map(target.put, part, bodies))
                progress.update(bar, advance=len(part))
        finally:
            await source.close()
            await target.close()

    try:
        asyncio.run(carry())
    except (ValueError, BodyMissing) as error:
        raise NoStore(f"bodies in {place}: {error}") from error


def _plain(
    moved: Moved, names: tuple[str, str], wishes: Wishes, took_s: float
) -> dict[str, object]:
    return {
        "from": names[0],
        "to": names[1],
        "account": wishes.account,
        "move_id": moved.move_id,
        "went_on": moved.went_on,
        "messages": message_rows(moved),
        "rows": moved.rows,
        "queues": [
            {"account": account, "queue": queue, "message_count": count}
            for account, queue, count in moved.queues
        ],
        "large_bodies": moved.large_bodies,
        "receipts_kept": moved.receipts_kept,
        "pause_s": round(took_s, 3),
    }


def _show(
    screen: Screen, moved: Moved, names: tuple[str, str], wishes: Wishes, took_s: float
) -> None:
    if moved.queues:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("account")
        table.add_column("queue")
        table.add_column("messages", justify="right")
        for account, queue, count in moved.queues[:_SHOWN]:
            table.add_row(Text(account), Text(queue), Text(number(count)))
        screen.show(table)
        if len(moved.queues) > _SHOWN:
            screen.say(f"... and {number(len(moved.queues) - _SHOWN)} more queues")
    rows = [
        ("messages", f"{number(message_rows(moved))} in all states"),
        ("rows", f"{number(sum(moved.rows.values()))}, the same in both by counts and digests"),
        ("receipts", "stay good" if moved.receipts_kept else "of before are void"),
        ("pause", f"{took_s:.1f} s"),
    ]
    if moved.large_bodies:
        where = (
            "stay in the body store: give the new server the same place in bodies"
            if wishes.account is None
            else f"were copied to {wishes.bodies_to}"
        )
        rows.insert(2, ("large bodies", f"{number(moved.large_bodies)} {where}"))
    screen.show(facts(rows))
    if moved.went_on:
        screen.hint("An earlier run had copied and compared everything; this one has ended it.")
    if wishes.account is None:
        screen.hint(
            f"Serve {names[1]} now. {names[0]} is marked as moved, and no server opens it; to come "
            "back: leasehold store undo."
        )
    else:
        screen.hint(
            f"Account {wishes.account} is in {names[1]} now, and gone from {names[0]}, whose "
            "server removes the old rows by and by."
        )
