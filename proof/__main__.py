"""The public proof: ``python -m proof [PART ...] [--long]``. ``make proof`` calls it.

A part is a function from an :class:`~proof.report.Order` to the checks that it makes, one after the
other. Each says by itself what it looks for and shows that it would find it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Final, TypeAlias

from proof.report import Check, Order

Part: TypeAlias = Callable[[Order], Iterable[Check]]
PARTS: Final = {
    "model": "proof.model.prove",
    "log": "proof.log.prove",
    "history": "proof.history.prove",
}
"""By name: the module with the part's function ``prove``."""


def run(names: Sequence[str], order: Order) -> list[dict[str, object]]:
    """Run parts and say what they find; return it, with the seconds that each check took."""
    found: list[dict[str, object]] = []
    for name in names:
        part: Part = import_module(PARTS[name]).prove
        folder = order.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        since = time.monotonic()
        for check in part(Order(long=order.long, folder=folder)):
            seconds = time.monotonic() - since
            verdict = "ok    " if check.passed else "FAILED"
            print(f"{verdict} {name}: {check.name}: {check.said} ({seconds:.1f} s)", flush=True)
            found.append({"part": name, "seconds": round(seconds, 1)} | asdict(check))
            since = time.monotonic()
    return found


def main() -> int:
    """See the module; return 1 if a check has failed."""
    parser = argparse.ArgumentParser(prog="python -m proof", description="Run the public proof.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--long", action="store_true", help="what takes hours")
    parser.add_argument("--out", type=Path, default=Path("build/proof"), help="folder for reports")
    options = parser.parse_args()
    unknown = set(options.parts) - PARTS.keys()
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    found = run(options.parts or list(PARTS), Order(long=options.long, folder=options.out))
    report = options.out / "report.json"
    report.write_text(json.dumps(found, indent=1), encoding="utf-8")
    passed = sum(bool(check["passed"]) for check in found)
    print(f"{passed} passed, {len(found) - passed} failed")
    return int(passed < len(found) or not found)


if __name__ == "__main__":
    sys.exit(main())
