"""The release tier in pieces: ``python -m proof.history.accumulate --minutes 60``.

The tier asks for more kills, crash states and failovers than one sitting has time for. This does
some of each in turn, with seeds that no piece before has had, and adds every piece to a file as
soon as it is over, so that it may be ended at any moment and go on another day.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from proof.history import patroni
from proof.history.prove import LONG, Amounts, prove
from proof.pieces import add, commit, next_seed
from proof.report import Check, Order, empty_folder

RESULTS: Final = Path(__file__).resolve().parents[1] / "results/release.json"
NOTHING: Final = Amounts(**dict.fromkeys((field.name for field in fields(Amounts)), 0))
PIECES: Final[Mapping[str, tuple[str, int]]] = {
    "kills, SQLite": ("kills", 500),
    "crash states": ("crash_states", 30_000),
    "failovers": ("failovers", 25),
    "Patroni": ("patroni", 15),
    "soak": ("soak_hours", 6),
}
"""By the name of their check: what is asked for, and how much of it in one piece."""


def counted(name: str, check: Check) -> int:
    """Return how much of what the tier asks for a piece has done."""
    figures = check.figures
    done = {
        "kills, SQLite": lambda: figures["done"]["kill"],
        "crash states": lambda: figures["states"],
        "failovers": lambda: figures["done"]["failover"],
        "Patroni": lambda: sum(figures["done"].values()) - figures["done"].get("client killed", 0),
        "soak": lambda: figures["hours"],
    }
    return int(done[name]())


def _is_wrong(piece: Mapping[str, Any]) -> bool:
    """Tell whether its check has failed, and not only a control of it."""
    return any(said.startswith(f"{piece['name']}:") for said in piece["said"])


def totals(pieces: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Add up the pieces of each kind: what was asked for by the tier, and what was done."""
    summed: dict[str, dict[str, int]] = {}
    for name, (field, _) in PIECES.items():
        mine = [each for each in pieces if each["name"] == name]
        summed[name] = {
            "asked": int(getattr(LONG, field)),
            "done": sum(each["count"] for each in mine),
            "calls": sum(each["calls"] for each in mine),
            "pieces": len(mine),
            "wrong": sum(_is_wrong(each) for each in mine),
            "controls_missed": sum(not each["passed"] and not _is_wrong(each) for each in mine),
            "seconds": round(sum(each["seconds"] for each in mine)),
        }
    return summed


def play(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Run one piece; return what becomes of it, its controls included."""
    field, amount = PIECES[name]
    order = Order(long=False, folder=empty_folder(folder), seed=seed)
    since_s = time.monotonic()
    checks = list(prove(order, replace(NOTHING, **{field: amount})))
    (main,) = (each for each in checks if each.name == name)
    return {
        "name": name,
        "seed": seed,
        "count": counted(name, main),
        "calls": main.figures.get("calls", 0),
        "silence_s": main.figures.get("silence_s", {}),
        "passed": all(each.passed for each in checks),
        "said": [f"{each.name}: {each.said}" for each in checks if not each.passed],
        "seconds": round(time.monotonic() - since_s, 1),
        "commit": commit(),
    }


def main() -> int:
    """Do pieces until the time is over; return 1 if one has failed."""
    parser = argparse.ArgumentParser(prog="python -m proof.history.accumulate", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="begin no piece after that (60)")
    parser.add_argument("--only", choices=PIECES, action="append", help="pieces of this kind")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file that is added to")
    parser.add_argument("--folder", type=Path, default=Path("build/proof/accumulate"))
    options = parser.parse_args()
    wanted = options.only or [each for each in PIECES if each != "Patroni" or not patroni.missing()]
    end_s = time.monotonic() + options.minutes * 60
    failed = 0
    while time.monotonic() < end_s:
        for name in wanted:
            if time.monotonic() >= end_s:
                break
            seed = next_seed(options.out)
            # What fails keeps its records, in a folder that no later piece empties.
            piece = play(name, seed, options.folder / str(seed))
            add(options.out, piece, totals)
            failed += not piece["passed"]
            print(f"{name}: seed {seed}, {piece['count']} in {piece['seconds']} s", flush=True)
            print("\n".join(piece["said"]), end="\n" * bool(piece["said"]), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
