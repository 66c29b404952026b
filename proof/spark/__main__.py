"""Kills of Spark queries, in pieces that add up: ``python -m proof.spark --kills 16``.

Each piece is one query with its checkpoint, killed so often, half of the kills by time and half by
requests, and a look at the end: each message once. Pieces are added to a file as soon as they are
over, with a seed of their own, so that the campaign may be ended at any moment and go on another
day. A sink with a planted bug is a piece, too: what it loses or doubles must be found.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pyspark

from proof.pieces import add, commit, next_seed
from proof.report import empty_folder
from proof.spark.campaign import VICTIMS, Campaign
from proof.spark.results import RESULTS, totals
from proof.spark.work import PLANTED, WORK

_SHOWN: Final = 5
"""Messages of each kind that a piece names."""
_DEATHS: Final = 2
"""Of the driver, for a planted bug."""


def play(row: str, kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """Run one piece; return what becomes of it. What failed keeps its files."""
    since_s = time.monotonic()
    campaign = Campaign(row, seed, empty_folder(folder))
    if row in PLANTED:
        seen = campaign.play_planted(_DEATHS)
        passed = bool(seen.lost or seen.doubled) and not seen.said
    else:
        seen = campaign.play([VICTIMS[place % len(VICTIMS)] for place in range(kills)])
        passed = seen.passed
    if passed:
        shutil.rmtree(folder)
    piece: dict[str, Any] = {"row": row, "seed": seed, "passed": passed}
    piece |= {each.name: getattr(seen, each.name) for each in fields(seen)}
    for name in ("lost", "doubled"):
        piece[f"{name}_shown"] = piece[name][:_SHOWN]
        piece[name] = len(piece[name])
    return piece | {
        "seconds": round(time.monotonic() - since_s, 1),
        "pyspark": pyspark.__version__,
        "commit": commit(),
    }


def main() -> int:
    """Do pieces until enough was killed, or the time is over; return 1 if one has failed."""
    parser = argparse.ArgumentParser(prog="python -m proof.spark", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="begin no piece after so many (100)")
    parser.add_argument("--each", type=int, default=12, help="kills of one piece (12)")
    parser.add_argument("--minutes", type=float, default=60, help="begin no piece after that (60)")
    parser.add_argument("--only", choices=[*WORK, *PLANTED], action="append", help="these rows")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file that is added to")
    parser.add_argument("--folder", type=Path, default=Path("build/proof/spark"))
    options = parser.parse_args()
    end_s = time.monotonic() + options.minutes * 60
    killed = failed = 0
    while killed < options.kills and time.monotonic() < end_s:
        for row in options.only or (*WORK, *PLANTED):
            if killed >= options.kills or time.monotonic() >= end_s:
                break
            seed = next_seed(options.out)
            piece = play(row, options.each, seed, options.folder / str(seed))
            add(options.out, piece, totals)
            killed += sum(piece["kills"].values())
            failed += not piece["passed"]
            verdict = "ok    " if piece["passed"] else "FAILED"
            told = ", ".join(f"{count} {name}" for name, count in piece["kills"].items())
            print(
                f"{verdict} {row}: seed {seed}, {told}, {piece['put']} messages, "
                f"{piece['lost']} lost, {piece['doubled']} doubled, "
                f"{piece['seconds']} s {piece['said'] or ''}",
                flush=True,
            )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
