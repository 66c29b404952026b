"""``python -m proof.history``: this part of the proof alone, with amounts of one's own."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields, replace
from pathlib import Path

from proof.history.prove import LONG, SHORT, Amounts, prove
from proof.report import Order, concluded, empty_folder, shown


def main() -> int:
    """Run; return 1 if a check has failed."""
    parser = argparse.ArgumentParser(prog="python -m proof.history", description=__doc__)
    parser.add_argument("--long", action="store_true", help="the release tier; takes hours")
    parser.add_argument("--seed", type=int, default=1, help="of all schedules")
    parser.add_argument("--only", action="store_true", help="nothing but what is named below")
    parser.add_argument("--out", type=Path, default=Path("build/proof/history"))
    for field in fields(Amounts):
        kind = float if "seconds" in field.name or "hours" in field.name else int
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind)
    options = parser.parse_args()
    amounts = LONG if options.long else SHORT
    if options.only:
        amounts = Amounts(**dict.fromkeys((field.name for field in fields(Amounts)), 0))
    given = {field.name: getattr(options, field.name) for field in fields(Amounts)}
    amounts = replace(amounts, **{name: n for name, n in given.items() if n is not None})
    folder = empty_folder(options.out)
    order = Order(long=options.long, folder=folder, seed=options.seed)
    return concluded(list(shown("history", prove(order, amounts), order)), folder)


if __name__ == "__main__":
    sys.exit(main())
