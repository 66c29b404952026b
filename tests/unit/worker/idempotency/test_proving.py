"""The proof: handlers that are harmless pass, and each kind of harm is found out by name."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasehold.testing.fencing_proof import CannotProve, ProofReport, Verdict, prove
from leasehold.testing.fencing_runs import Draft, Shelf, chosen, source_of
from leasehold.worker.adapters.protocol import Saved
from tests.unit.worker.idempotency import rehearsed

PATIENCE_S = 0.02
AGAIN, TWICE, AFTER, LATER, MIDDLE, CRASH = (
    "delivered again after success",
    "same lease run twice",
    "zombie after the next holder",
    "zombie after later work",
    "zombie in the middle",
    "crash before completion",
)


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rehearsed.PATH, str(tmp_path / "effects.db"))
    rehearsed.reset()


def _prove(handler: Any, **options: Any) -> ProofReport:
    options.setdefault("reset", rehearsed.reset)
    options.setdefault("max_places", 10)
    return prove(handler, rehearsed.probe, body=b"url", patience_s=PATIENCE_S, **options)


def _verdicts(report: ProofReport) -> dict[str, str]:
    return {scenario.name: scenario.verdict.value for scenario in report.scenarios}


def test_unfenced_handler_is_found_out() -> None:
    """The positive control: a handler that just writes fails every scenario."""
    report = _prove(rehearsed.unfenced)
    assert _verdicts(report) == {
        AGAIN: "NOT IDEMPOTENT",
        TWICE: "NOT IDEMPOTENT",
        AFTER: "NOT FENCED",
        MIDDLE: "NOT FENCED",
        CRASH: "NOT IDEMPOTENT",
    }
    assert not report.holds
    assert "rehearsal" in report.scenarios[0].detail


def test_unfenced_handler_is_found_out_without_reset() -> None:
    """Where the state cannot be put back, all but the crash is still seen."""
    assert _verdicts(_prove(rehearsed.unfenced, reset=None)) == {
        AGAIN: "NOT IDEMPOTENT",
        TWICE: "NOT IDEMPOTENT",
        AFTER: "NOT FENCED",
        MIDDLE: "NOT FENCED",
        CRASH: "UNDECIDED",
    }


def test_effect_and_record_in_one_transaction_pass() -> None:
    """Exactly once: wherever a worker stops or dies, the effect is there once."""
    report = _prove(rehearsed.transactional)
    assert report.holds, str(report)
    assert all(scenario.tried > 4 for scenario in report.scenarios[3:])


def test_fenced_writes_pass() -> None:
    """A late worker cannot take back what was written after it, not even after later work."""
    report = _prove(rehearsed.fenced, later=rehearsed.later)
    assert report.holds, str(report)
    assert LATER in _verdicts(report)


@pytest.mark.slow
def test_lost_update_is_found_out_by_later_work() -> None:
    """A handler that writes the same again looks harmless until somebody else has written."""
    assert _prove(rehearsed.overwriting).holds
    report = _prove(rehearsed.overwriting, later=rehearsed.later)
    assert _verdicts(report)[LATER] == "NOT FENCED"
    assert not report.holds


def test_history_alone_has_its_known_gap() -> None:
    """Repeats are skipped; who is stopped or dies between effect and record is found out."""
    report = _prove(rehearsed.remembered)
    assert _verdicts(report) == {
        AGAIN: "IDEMPOTENT",
        TWICE: "IDEMPOTENT",
        AFTER: "FENCED",
        MIDDLE: "NOT FENCED",
        CRASH: "NOT IDEMPOTENT",
    }
    for scenario in report.scenarios[3:]:
        assert 0 < len(scenario.places) < scenario.tried
        assert all(place.startswith("rehearsed.py:") for place in scenario.places)


@pytest.mark.parametrize(
    "handler",
    [rehearsed.decorated, pytest.param(rehearsed.decorated_async, marks=pytest.mark.slow)],
)
def test_gap_behind_the_last_line_is_seen(handler: Any) -> None:
    """A crash between the end of a decorated handler and its record is played too."""
    crash = _prove(handler).scenarios[-1]
    assert crash.verdict is Verdict.NOT_IDEMPOTENT
    assert any("(its end)" in place for place in crash.places)


def test_ledger_keeps_late_workers_out_and_no_more() -> None:
    """The words of the report tell fences from idempotence."""
    report = _prove(rehearsed.guarded)
    found = _verdicts(report)
    assert found[AFTER] == "FENCED"
    assert found[AGAIN] == "NOT IDEMPOTENT"


def test_effect_that_a_crash_loses_is_found_out() -> None:
    """A handler that is marked as done too early loses its effect."""
    report = _prove(rehearsed.flag_first)
    crash = report.scenarios[-1]
    assert crash.verdict is Verdict.NOT_IDEMPOTENT
    assert "the effect is lost" in crash.detail


def test_asynchronous_handler() -> None:
    """A coroutine is stopped and killed line by line as well."""
    report = _prove(rehearsed.transactional_async)
    assert report.holds, str(report)
    assert report.scenarios[3].tried > 1


def test_progress_is_passed_on() -> None:
    """What the newest holder saved reaches the next delivery; a late worker saves nothing."""
    assert _prove(rehearsed.resuming).holds
    shelf = Shelf(Draft(), "m")
    late, newer = shelf.deliver(1), shelf.deliver(2)
    newer.checkpoint("new")
    late.checkpoint("old")
    assert shelf.deliver(3).saved == Saved(state="new")


def test_killed_in_a_process_of_its_own() -> None:
    """A handler killed for real, with nothing cleaned up, is judged in the same way."""
    report = _prove(rehearsed.transactional, death="kill", max_places=2)
    assert report.holds, str(report)
    assert report.scenarios[-1].tried == 2
    report = _prove(rehearsed.flag_first, death="kill", max_places=3)
    assert report.scenarios[-1].verdict is Verdict.NOT_IDEMPOTENT


def test_killed_process_passes_its_progress_on() -> None:
    """What was saved before the kill reaches the next delivery."""
    report = _prove(rehearsed.resuming, death="kill", max_places=2)
    assert report.holds, str(report)


def test_only_named_handlers_can_be_killed() -> None:
    """What another process cannot import is refused at once."""
    with pytest.raises(ValueError, match="no name"):
        _prove(partial(rehearsed.unfenced), death="kill")
    with pytest.raises(ValueError, match="decode"):
        _prove(rehearsed.unfenced, death="kill", decode=bytes)


def test_failing_handler_proves_nothing() -> None:
    """A handler that fails at a plain delivery is no proof of anything."""
    with pytest.raises(CannotProve, match="Retry"):
        _prove(rehearsed.asking_again)


def test_blind_probe_proves_nothing() -> None:
    """A probe that does not see the effect is found out, also one that shows a live object."""
    with pytest.raises(CannotProve, match="does not see"):
        prove(rehearsed.unfenced, lambda: 7)
    live: list[str] = []
    report = prove(lambda message: live.append(message.id), lambda: live, reset=live.clear)
    assert not report.holds


def test_restless_probe_proves_nothing() -> None:
    """A probe that shows a time or a random number would call everybody guilty."""
    chance = random.Random(1)
    noise: list[int] = []
    with pytest.raises(CannotProve, match="each time"):
        prove(rehearsed.unfenced, chance.random)
    with pytest.raises(CannotProve, match="two states"):
        prove(
            rehearsed.unfenced,
            lambda: (rehearsed.probe(), len(noise)),
            reset=lambda: noise.append(0),
        )


def test_handler_without_lines() -> None:
    """What has no Python of its own cannot be stopped in the middle, and the report says so."""
    seen: list[Any] = []
    report = prove(partial(map_into, seen), lambda: len(seen), files=["nowhere.py"])
    assert _verdicts(report)[MIDDLE] == "UNDECIDED"
    assert "no lines" in report.scenarios[3].detail


def map_into(seen: list[Any], message: Any) -> None:
    if message.id not in seen:
        seen.append(message.id)


def test_no_delivery_that_ends_well_is_undecided() -> None:
    """If the deliveries after a crash all fail, nobody knows, and the report says why."""
    state = {"done": 0, "begun": 0}

    def handle(message: Any) -> None:
        state["begun"] += 1
        if state["begun"] > 1:
            raise ValueError("poisoned by the first")
        state["done"] = 1

    report = prove(handle, lambda: state["done"], reset=lambda: state.update(done=0, begun=0))
    crash = report.scenarios[-1]
    assert crash.verdict is Verdict.UNDECIDED
    assert "poisoned by the first" in crash.detail


def test_message_is_the_one_described() -> None:
    """The handler gets body, queue, type, properties and payload as they were given."""
    seen: list[Any] = []

    def handle(message: Any) -> None:
        seen.append(
            (message.queue, message.text, message.type, message.properties, message.payload)
        )

    prove(
        handle,
        lambda: len(seen),
        body=b'{"a":1}',
        queue="videos",
        message_type="cut",
        properties={"k": "v"},
        decode=json.loads,
    )
    assert set(map(repr, seen)) == {repr(("videos", '{"a":1}', "cut", {"k": "v"}, {"a": 1}))}


def test_report_for_people_and_programs() -> None:
    """The table has a line for each scenario, and says where it went wrong."""
    report = _prove(rehearsed.flag_first)
    table = str(report)
    assert table.splitlines()[0] == "tests.unit.worker.idempotency.rehearsed:flag_first:"
    assert f"  {CRASH:29}  NOT IDEMPOTENT  tried at " in table
    assert "    at rehearsed.py:" in table
    said = json.loads(json.dumps(report.to_json()))
    assert said["holds"] is False
    assert said["scenarios"][-1]["verdict"] == "NOT IDEMPOTENT"
    assert said["scenarios"][-1]["places"]


def test_long_lists_of_places_are_cut() -> None:
    """The table names some places and counts the others; JSON has them all."""
    report = _prove(rehearsed.unfenced, max_places=40)
    middle = report.scenarios[3]
    assert len(middle.places) > 6
    assert f" and {len(middle.places) - 6} more" in str(report)
    assert report.to_json()["scenarios"][3]["places"] == list(middle.places)


def test_places_are_spread_evenly() -> None:
    """Of many lines the first, the last and some between are tried."""
    assert chosen(3, 40) == [1, 2, 3]
    assert chosen(100, 5) == [1, 26, 50, 75, 100] or chosen(100, 5) == [1, 26, 51, 75, 100]
    assert chosen(0, 5) == []
    assert chosen(9, 1) == [1]


def test_source_is_that_of_the_user() -> None:
    """Decorators, partials, methods and objects are looked through."""

    class Callable:
        def __call__(self, message: Any) -> None: ...

        def method(self, message: Any) -> None: ...

    decorated = rehearsed.once.handler(map_into)
    for handler in (map_into, decorated, partial(map_into, []), Callable(), Callable().method):
        assert source_of(handler) == __file__
    assert source_of([].append) is None
