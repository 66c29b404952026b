"""Tables of the documentation, made from kept results: ``python -m proof.history.tables``.

With ``--check`` nothing is written, and it fails if a page says something else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from proof.history.accumulate import RESULTS as RELEASE_FILE
from proof.history.accumulate import totals
from proof.history.peers.run import PEERS, Result
from proof.pieces import read
from proof.spark import results as spark

_ROOT: Final = Path(__file__).resolve().parents[2]
PEERS_FILE: Final = _ROOT / "proof/results/peers.json"
PATRONI_FILE: Final = _ROOT / "proof/results/patroni.json"
"""Pieces of the release tier that need more than is installed elsewhere."""
_END: Final = "<!-- end of table -->\n"
_CONTROL: Final = "lying disk"
_FAULTS: Final = ("kill", "pause", "kill and pause", "power cut", _CONTROL)
_OF_CLIENTS: Final = "client killed"
_SHORT: Final = ("lost", "back", "doubled", "stale")
_WHOLE: Final = ("lost", "back", "doubled", "early", "stale", "refused", "foreign")


def short(results: Sequence[Result]) -> str:
    """Return the table of the explanation: no controls, and the columns that matter most."""
    head = ["Queue", "Faults", "Calls", *_SHORT]
    rows = [
        [_name(runs), _done(runs), f"{_sum(runs, 'calls'):,}", *_counts(runs, _SHORT)]
        for runs in _grouped(results)
        if runs[0]["fault"] != _CONTROL
    ]
    return _table(head, rows, left=2)


def whole(results: Sequence[Result]) -> str:
    """Return the table of the folder's own page: all of it."""
    head = ["Peer", "Faults", "Runs", "Calls", "Deliveries", *_WHOLE]
    rows = [
        [
            f"{runs[0]['peer']} {runs[0]['version']}",
            _done(runs),
            str(len(runs)),
            f"{_sum(runs, 'calls'):,}",
            f"{_sum(runs, 'deliveries'):,}",
            *_counts(runs, _WHOLE),
        ]
        for runs in _grouped(results)
    ]
    return _table(head, rows, left=2)


def release(pieces: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the release tier: what it asks for, and what was done of it."""
    head = ["Of the release tier", "Asked", "Run", "Pieces", "Calls", "Wrong", "Controls missed"]
    rows = [
        [name, *(f"{total[key]:,}" for key in ("asked", "done", "pieces", "calls")), *_bad(total)]
        for name, total in totals(pieces).items()
    ]
    return _table(head, rows, left=1)


def _bad(total: Mapping[str, int]) -> list[str]:
    return [str(total["wrong"]), str(total["controls_missed"])]


class Place(NamedTuple):
    """Where a table is."""

    page: Path
    name: str
    """Of the comment that it follows."""
    read: Callable[[], Sequence[Any]]
    """Returns the results."""
    make: Callable[[Sequence[Any]], str]
    """Makes the table of them."""

    def filled(self, results: Sequence[Any]) -> str:
        """Return the text of the page with the table in its place.

        Raises:
            ValueError: The page has no place for it.
        """
        text = self.page.read_text(encoding="utf-8")
        begin = f"<!-- table of {self.name}, by proof.history.tables -->\n"
        before, found, rest = text.partition(begin)
        _, end, after = rest.partition(_END)
        if not found or not end:
            raise ValueError(f"{self.page} has no place for the table of {self.name}")
        return f"{before}{begin}\n{self.make(results)}\n{end}{after}"


def _peers() -> list[Result]:
    kept: list[Result] = json.loads(PEERS_FILE.read_text(encoding="utf-8"))
    return kept


_EXPLANATION: Final = _ROOT / "docs/explanation/proof.md"
PLACES: Final = (
    Place(_EXPLANATION, "peers", _peers, short),
    Place(_EXPLANATION, "release", lambda: read(PATRONI_FILE) + read(RELEASE_FILE), release),
    Place(_EXPLANATION, "spark", lambda: read(spark.RESULTS), spark.table),
    Place(_ROOT / "proof/history/README.md", "peers", _peers, whole),
)


def _grouped(results: Sequence[Result]) -> list[list[Result]]:
    """Return the runs of each peer with each fault, in the order of :data:`PEERS`."""
    groups = [
        [each for each in results if each["peer"] == peer and each["fault"] == fault]
        for peer in PEERS
        for fault in _FAULTS
    ]
    return [runs for runs in groups if runs]


def _name(runs: Sequence[Result]) -> str:
    return PEERS[runs[0]["peer"]].title.format(version=runs[0]["version"])


def _done(runs: Sequence[Result]) -> str:
    done: Counter[str] = Counter()
    for each in runs:
        done.update(each["done"])
    done.pop(_OF_CLIENTS, None)
    said = ", ".join(f"{count} {fault}s" for fault, count in sorted(done.items(), reverse=True))
    return f"control: {said}, syncs lie" if runs[0]["fault"] == _CONTROL else said


def _sum(runs: Sequence[Result], figure: str) -> int:
    return sum(each["figures"][figure] for each in runs)


def _counts(runs: Sequence[Result], columns: Sequence[str]) -> list[str]:
    return [_count(runs, column) for column in columns]


def _count(runs: Sequence[Result], column: str) -> str:
    founds: list[Mapping[str, Any]] = [each["found"] for each in runs]
    if not all(column in found for found in founds):
        return "-"
    total = sum(found[column] for found in founds)
    is_blamed = column not in PEERS[runs[0]["peer"]].not_promised
    return f"{total:,}" if is_blamed or not total else f"({total:,})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, rule, *rows])


def main() -> int:
    """Write the tables; with ``--check`` return 1 if one is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m proof.history.tables")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    stale = 0
    for place in PLACES:
        fresh = place.filled(place.read())
        if fresh != place.page.read_text(encoding="utf-8"):
            stale += 1
            print(f"{place.page.relative_to(_ROOT)}, {place.name}")
            if not options.check:
                place.page.write_text(fresh, encoding="utf-8")
    return int(options.check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
