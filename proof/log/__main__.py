"""Runs the part ``log`` by itself: ``python -m proof.log [--long] [--seed N]``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from proof.log.prove import prove
from proof.report import Order


def main() -> int:
    """Return 1 if a check has failed."""
    parser = argparse.ArgumentParser(prog="python -m proof.log", description=__doc__)
    parser.add_argument("--long", action="store_true", help="what takes hours")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn")
    parser.add_argument("--out", type=Path, default=Path("build/proof/log"), help="its folder")
    options = parser.parse_args()
    os.environ["SEED"] = str(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for check in prove(Order(long=options.long, folder=options.out)):
        failed += not check.passed
        verdict = "ok    " if check.passed else "FAILED"
        sys.stdout.write(f"{verdict} {check.name}: {check.said}\n")
        sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
