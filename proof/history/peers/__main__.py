"""``python -m proof.history.peers --peer NAME --kills 10 --seed 1``: one peer, or all."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import get_args

from proof.history.peers.run import PEERS, Absent, Fault, run, version_of


def main() -> int:
    """Run; return 1 if something was found that a peer promises not to do."""
    parser = argparse.ArgumentParser(prog="python -m proof.history.peers", description=__doc__)
    parser.add_argument("--peer", choices=PEERS, action="append", help="one of them; all if not")
    parser.add_argument("--kills", type=int, default=10, help="faults in each run")
    parser.add_argument("--fault", choices=get_args(Fault), default="kill")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=1, help="each with the next seed")
    parser.add_argument("--out", type=Path, help="a JSON file that the results are added to")
    parser.add_argument("--keep", type=Path, help="a folder for the records of what was found")
    options = parser.parse_args()
    blamed = 0
    for name in options.peer or PEERS:
        for seed in range(options.seed, options.seed + options.runs):
            try:
                result = run(name, options.fault, times=options.kills, seed=seed, keep=options.keep)
            except Absent as missing:
                print(f"{name}: left out, {missing}", flush=True)
                break
            peer = PEERS[name]
            result |= {"version": version_of(peer), "settings": peer.settings}
            result["command"] = (
                f"python -m proof.history.peers --peer {name} --kills {options.kills}"
                f" --fault '{options.fault}' --seed {seed}"
            )
            blamed += result["blamed"]
            seen = {column: count for column, count in result["found"].items() if count}
            print(f"{name} seed {seed}: {result['done']}, found {seen}", flush=True)
            print("\n".join(result["first"]), flush=True)
            if options.out is not None:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                kept = json.loads(options.out.read_text()) if options.out.exists() else []
                kept = [each for each in kept if each["command"] != result["command"]]
                options.out.write_text(json.dumps([*kept, result], indent=1) + "\n")
    return int(blamed > 0)


if __name__ == "__main__":
    sys.exit(main())
