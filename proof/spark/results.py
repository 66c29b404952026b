"""The pieces of the campaign of kills, added up, and their table in the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).resolve().parents[1] / "results/spark_kills.json"
ROWS: Final = (
    "queue to Parquet",
    "queue to Delta",
    "queue to queue",
    "results stream",
    "feedback",
    "DataFrame form",
    "duplicates",
    "sessions",
    "join",
)
PLANTED: Final = ("planted: appends again", "planted: notes too early")
VICTIMS: Final = ("driver", "executor", "server", "Python workers")


def totals(pieces: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add up the pieces of each row; of planted bugs, too."""
    summed: dict[str, dict[str, Any]] = {}
    for row in (*ROWS, *PLANTED):
        mine = [each for each in pieces if each["row"] == row]
        kills: Counter[str] = Counter()
        for each in mine:
            kills.update(each["kills"])
        summed[row] = {
            "pieces": len(mine),
            "kills": {victim: kills[victim] for victim in VICTIMS},
            **{key: sum(each[key] for each in mine) for key in _SUMMED},
            "failed": sum(not each["passed"] for each in mine),
        }
    return summed


_SUMMED: Final = ("runs", "put", "results", "lost", "doubled", "left", "events", "wrong_events")


def table(pieces: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the documentation."""
    names = ("Driver", "Executor", "Server", "Python", "Kills", "Messages", "Lost", "Doubled")
    lines = ["| " + " | ".join(("Query", *names)) + " |"]
    lines.append("| --- |" + " --: |" * len(names))
    summed = totals(pieces)
    whole: Counter[str] = Counter()
    for row in ROWS:
        total = summed[row]
        kills = [total["kills"][victim] for victim in VICTIMS]
        cells = [*kills, sum(kills), total["put"], total["lost"], total["doubled"]]
        whole.update(dict(zip(names, cells, strict=True)))
        lines.append(f"| {row} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    lines.append("| all | " + " | ".join(f"{whole[name]:,}" for name in names) + " |")
    return "\n".join(lines) + "\n"
