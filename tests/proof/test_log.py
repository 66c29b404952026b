"""The check of event logs finds every bug that is planted in a server, and agrees with the model.

All bugs are driven by ``make proof``, too; here are a few that take no time, and the traces of the
model that were kept.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proof.bugs import BUGS, planted
from proof.log import scenarios, synthetic, traces
from proof.log.prove import NOT_IN_THE_LOG

from leasehold.events.check_input import files_in, rows_of_file
from tests.unit.events.checked import checked

_QUICK = {"two-leases", "complete-kept", "fence-stays", "lost-on-release", "claim-changed"}
_KEPT = Path(__file__).parent / "traces"


def _bugs() -> Iterator[Any]:
    for name in BUGS:
        marks = () if name in _QUICK else (pytest.mark.long,)
        yield pytest.param(name, marks=marks, id=name)


@pytest.mark.parametrize("name", [*_bugs()])
def test_a_planted_bug_is_found(name: str) -> None:
    """And without it, nothing is wrong with the same workload."""
    work = scenarios.WORK[name]
    right = scenarios.play(work)
    assert right.with_queues.violations == []
    assert right.log.consumed == right.log.events
    with planted(name):
        wrong = scenarios.play(work)
    assert wrong.with_queues.total
    assert bool(wrong.log.total) == (name not in NOT_IN_THE_LOG)


def test_every_bug_has_a_workload() -> None:
    """And each is still to be planted in the code as it is."""
    assert scenarios.WORK.keys() == BUGS.keys()
    assert BUGS.keys() >= NOT_IN_THE_LOG
    for name in BUGS:
        with planted(name):
            pass


@pytest.mark.parametrize("name", ["accepted", "rejected"])
def test_the_checker_agrees_with_the_model(name: str, tmp_path: Path) -> None:
    """What the model does is accepted, what it does with a bug is not, if a log can show it."""
    path = tmp_path / f"{name}.jsonl"
    path.write_bytes(gzip.decompress((_KEPT / f"{name}.jsonl.gz").read_bytes()))
    found = list(traces.judge(path))
    assert [trace.name for trace in found if not trace.is_right] == []
    assert {trace.model for trace in found} == {"Leases", "Claims", "Sessions", "Groups"}
    assert {trace.bug for trace in found} >= ({"none"} if name == "accepted" else _SHARED)


_SHARED = BUGS.keys()
"""The model has bugs of the same names."""


def test_a_synthetic_log_is_like_an_exported_one(tmp_path: Path) -> None:
    """Nothing is wrong with it, and the same seed makes the same."""
    for folder in ("a", "b"):
        assert synthetic.write(tmp_path / folder, 20_000, seed=3) > 19_000
    one, two = (
        [row for path in files_in(tmp_path / folder) for row in rows_of_file(path)]
        for folder in ("a", "b")
    )
    assert one == two
    report = checked(one)
    assert report.violations == []
    assert report.consumed == len(one)
    assert report.live == 0


def test_a_trace_says_what_was_wrong_with_it(tmp_path: Path) -> None:
    """A checker that accepts everything would be found out."""
    path = tmp_path / "wrong.jsonl"
    events = [{"seq": 1, "place": 0, "at_ms": 1, "type": "queue-created", "account": "m"}]
    trace = {"name": "x", "model": "Leases", "bug": "two-leases", "visible_in_log": True}
    path.write_text(json.dumps(trace | {"settings": {}, "events": events}))
    assert [each.is_right for each in traces.judge(path)] == [False]
