"""Results of long campaigns, in pieces that add up: each has a seed, and is kept when over."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Totals = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]]
"""Adds pieces up."""


def read(out: Path) -> list[dict[str, Any]]:
    """Return the pieces of a file; none if it is not there."""
    if not out.exists():
        return []
    pieces: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["pieces"]
    return pieces


def add(out: Path, piece: dict[str, Any], totals: Totals) -> None:
    """Add a piece to a file of them."""
    pieces = [*read(out), piece]
    whole = {"totals": totals(pieces), "pieces": pieces}
    fresh = out.with_suffix(".new")
    fresh.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    fresh.replace(out)


def next_seed(out: Path) -> int:
    """Return a seed that no piece of a file has had."""
    return 1 + max((each["seed"] for each in read(out)), default=0)


def commit() -> str:
    """Return the commit that is checked out, in short."""
    said = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True
    )
    return said.stdout.strip()
