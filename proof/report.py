"""What the parts of the proof say, and how it is shown."""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

_MARK: Final = ".proof"
"""A file that says that the folder may be emptied by the next run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was checked."""

    name: str
    passed: bool
    said: str
    """What was seen, in a few words and figures."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is asked of a part."""

    long: bool
    """Whether it may take hours; else its share of ten minutes."""
    folder: Path
    """For its files: absolute, empty, and there when the part begins."""
    seed: int = 1
    """Of all that is drawn."""


def empty_folder(folder: Path) -> Path:
    """Return the absolute path of a folder that is there and empty.

    Raises:
        FileExistsError: Something is in it that no run of the proof has left.
    """
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARK).exists():
            raise FileExistsError(f"{folder} is not empty and not from an earlier run")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).touch()
    return folder


def shown(part: str, checks: Iterable[Check], order: Order) -> Iterator[dict[str, object]]:
    """Print what a part says, and yield it for programs, with the seconds that each check took.

    A part that ends with an error has failed in that, and the others can go on.
    """
    since_s = time.monotonic()
    for check in _whole(checks):
        seconds = time.monotonic() - since_s
        verdict = "ok    " if check.passed else "FAILED"
        print(f"{verdict} {part}: {check.name}: {check.said} ({seconds:.1f} s)", flush=True)
        if not check.passed:
            print(f"       again: make proof SEED={order.seed} PARTS={part}", flush=True)
        yield {"part": part, "seed": order.seed, "seconds": round(seconds, 1)} | asdict(check)
        since_s = time.monotonic()


def _whole(checks: Iterable[Check]) -> Iterator[Check]:
    try:
        yield from checks
    except Exception as error:  # noqa: BLE001 - it is told, and fails the proof
        told = "".join(traceback.format_exception(error))
        yield Check(name="the part ended early", passed=False, said=told)


def concluded(found: list[dict[str, object]], out: Path) -> int:
    """Write what was found to ``report.json`` in a folder; return 1 if a check has failed."""
    (out / "report.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    passed = sum(bool(check["passed"]) for check in found)
    seconds = sum(float(str(check["seconds"])) for check in found)
    print(f"{passed} passed, {len(found) - passed} failed, in {seconds:.0f} s")
    return int(passed < len(found) or not found)
