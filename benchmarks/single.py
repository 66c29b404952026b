"""What benchmarks that are a program of their own have in common: their bars, and the record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.figures import Bar
from benchmarks.machine import describe_machine, describe_source
from leasehold.clock import SystemClock


class Record:
    """When and where something is measured; to be made before it is.

    Args:
        suite: What is measured.
    """

    def __init__(self, suite: str) -> None:
        started_ms = SystemClock().now_ms()
        with TemporaryDirectory() as folder:
            machine = describe_machine(Path(folder))
        self._head = {"suite": suite, "started_ms": started_ms, "machine": machine}

    def write(self, out: Path, members: Mapping[str, Any], bars: Iterable[Bar] = ()) -> None:
        """Write down what was measured, as JSON, with bars that ``benchmarks bars`` is to show."""
        content = {**self._head, "source": describe_source(), **members}
        if shown := [asdict(bar) for bar in bars]:
            content["bars"] = shown
        out.write_text(json.dumps(content, indent=1) + "\n")


def print_bars(
    summary: Mapping[str, float], bars: Mapping[str, tuple[str, float]], digits: int
) -> list[Bar]:
    """Compare figures with what was promised: ``>=`` or an upper bound, and how much."""
    found = []
    for name, (sign, promised) in bars.items():
        figure = summary[name]
        met = figure >= promised if sign == ">=" else figure <= promised
        word = "met" if met else "FALLS SHORT"
        bound = f"{sign} {promised:,}"
        print(f"{name:32} {figure:>12,.{digits}f}  {bound:<13} {word}")
        found.append(Bar(name=name, bound=bound, value=figure, passed=met, detail=""))
    return found
