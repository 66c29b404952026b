"""What ``leasehold store check`` does."""

from __future__ import annotations

from typing import Final

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from leasehold.cli.exit_codes import ExitCode
from leasehold.cli.rendering import Screen
from leasehold.cli.store_opening import open_reader, telling
from leasehold.cli.texts import clean
from leasehold.stores.moving.checking import Checked, Level, check

WARNED: Final = 4
"""Exit code: it works, and may not go on to."""
_CODES: Final = {Level.OK: ExitCode.DONE, Level.WARN: WARNED, Level.FAIL: ExitCode.REFUSED}
_STYLES: Final = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def run(store: str, *, as_json: bool, no_color: bool) -> int:
    """Check a store, show what was found, return the exit code."""
    screen = Screen(as_json=as_json, no_color=no_color)
    return telling(screen, lambda: _run(store, screen))


def _run(store: str, screen: Screen) -> int:
    found: list[Checked] = []
    with open_reader(store) as reader, screen.progress(total_known=False) as progress:
        bar = progress.add_task("Checking", total=None, note="")
        for each in check(reader):
            found.append(each)
            progress.update(bar, advance=1, note=each.check)
    worst = max(each.level for each in found)
    if screen.as_json:
        checks = [
            {"check": each.check, "level": each.level.name.lower(), "found": each.found}
            for each in found
        ]
        screen.document({"level": worst.name.lower(), "checks": checks})
        return _CODES[worst]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in found:
        level = Text(each.level.name.lower(), style=_STYLES[each.level])
        table.add_row(level, Text(each.check), Text(clean(each.found)))
    screen.show(table)
    bad = sum(each.level is not Level.OK for each in found)
    verdict = f"{bad} of {len(found)} checks have something to say." if bad else "All is well."
    screen.show(Padding(Text(verdict, style=_STYLES[worst]), (1, 0, 0, 0)))
    return _CODES[worst]
