"""Fuzz the parsers: ``python -m proof.fuzz [TARGET ...] --seconds 16``.

Each target starts from its corpus in ``proof/fuzz/corpus``. An input that does wrong is kept in
``proof/fuzz/found`` and its name is printed; ``--replay FILE`` runs it again. ``--keep`` adds
the inputs that reached new code to the corpus.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import click

HERE: Final = Path(__file__).parent
CORPUS: Final = HERE / "corpus"
FOUND: Final = HERE / "found"
TARGETS: Final = (
    *("arrow", "header", "http", "json", "mns", "mns_signature", "query", "sas", "token", "xml"),
)
PLANTED: Final = "planted"
"""A target that is wrong, as a control."""
_LONGEST_BYTES: Final = 4_096
_MEMORY_MB: Final = 2_048
_SLOWEST_S: Final = 20
"""Longer than this for one input is a finding: a parser that a stranger can keep busy."""
_RUNS: Final = re.compile(r"#(\d+)\s+DONE\s+cov: (\d+)|stat::number_of_executed_units: (\d+)")
_KEPT: Final = re.compile(r"Test unit written to (\S+)")


class Round(NamedTuple):
    """What came of fuzzing one target."""

    target: str
    runs: int
    found: Path | None
    log: str


def fuzz(target: str, seconds: int, seed: int, *, new: Path | None = None) -> Round:
    """Fuzz one target for a while.

    Args:
        target: Its name.
        seconds: How long, 1 or more.
        seed: Of libFuzzer; 0 lets it choose.
        new: Folder for inputs that reached new code; None throws them away.
    """
    FOUND.mkdir(exist_ok=True)
    corpus = CORPUS / ("xml" if target == PLANTED else target)
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "proof.fuzz.one", target),
                f"-max_total_time={seconds}",
                f"-max_len={_LONGEST_BYTES}",
                f"-rss_limit_mb={_MEMORY_MB}",
                f"-timeout={_SLOWEST_S}",
                f"-seed={seed}",
                "-print_final_stats=1",
                f"-artifact_prefix={FOUND}/{target}-",
                str(new or scratch),
                *([str(corpus)] if corpus.is_dir() else []),
            ],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    log = done.stdout + done.stderr
    kept = _KEPT.search(log)
    runs = max((int(one or other) for one, _, other in _RUNS.findall(log)), default=0)
    found = Path(kept[1]) if kept else None
    if done.returncode and found is None:
        raise click.ClickException(f"{target} could not be fuzzed:\n{log[-2_000:]}")
    return Round(target, runs, found, log)


@click.command(help=__doc__)
@click.argument("targets", nargs=-1)
@click.option("--seconds", default=16, show_default=True, help="Time for each target.")
@click.option("--seed", default=0, help="Of libFuzzer; 0 lets it choose.")
@click.option("--keep", is_flag=True, help="Add inputs that reached new code to the corpus.")
@click.option("--replay", type=click.Path(path_type=Path, exists=True), help="Run one input again.")
def main(
    targets: tuple[str, ...], seconds: int, seed: int, *, keep: bool, replay: Path | None
) -> None:
    """Fuzz, and end with status 1 if anything was found."""
    if replay is not None:
        from proof.fuzz import targets as all_targets  # noqa: PLC0415 - it loads the server

        all_targets.TARGETS[targets[0]](replay.read_bytes())
        return
    found = 0
    for target in targets or TARGETS:
        with tempfile.TemporaryDirectory() as new:
            done = fuzz(target, seconds, seed, new=Path(new))
            if keep and done.found is None:
                for file in Path(new).iterdir():
                    shutil.copy(file, CORPUS / target / file.name[:16])
        print(f"{target:13} {done.runs:>9,} runs", done.found or "nothing found")
        if done.found is not None:
            found += 1
            print(done.log[-3_000:])
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
