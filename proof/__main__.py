"""The public proof: ``python -m proof [PART ...] [--long]``. ``make proof`` calls it.

A part is a function from an :class:`~proof.report.Order` to the checks that it makes, one after the
other. Each says by itself what it looks for and shows that it would find it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Final, TypeAlias

from proof.report import Check, Order, concluded, empty_folder, shown

Part: TypeAlias = Callable[[Order], Iterable[Check]]
PARTS: Final = {
    "model": "proof.model.prove",
    "log": "proof.log.prove",
    "history": "proof.history.prove",
}
"""By name: the module with the part's function ``prove``."""


def main() -> int:
    """See the module; return 1 if a check has failed."""
    parser = argparse.ArgumentParser(prog="python -m proof", description="Run the public proof.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--long", action="store_true", help="what takes hours")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn (1)")
    parser.add_argument("--out", type=Path, default=Path("build/proof"), help="folder for reports")
    options = parser.parse_args()
    unknown = set(options.parts) - PARTS.keys()
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    found: list[dict[str, object]] = []
    for name in options.parts or list(PARTS):
        part: Part = import_module(PARTS[name]).prove
        folder = empty_folder(options.out / name)
        order = Order(long=options.long, folder=folder, seed=options.seed)
        found += shown(name, part(order), order)
    return concluded(found, options.out)


if __name__ == "__main__":
    sys.exit(main())
