"""Where a holder begins, whatever version of the code has saved the progress."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.worker.adapters import Saved
from leasehold.worker.errors import Poison, Retry
from leasehold.worker.stages import COMPLETED, Stages
from leasehold.worker.stages.declared import Layout, split_label
from tests.unit.worker.stages.support import Bench, Diary

NAMES = ("scan", "encode", "compress")


def layout(**settings: Any) -> Layout:
    made = Layout(names=NAMES, weights=(1, 2, 1), **settings)
    made.check()
    return made


def test_new_messages_begin_at_the_first_stage() -> None:
    """Without progress the first stage is next; a state without a stage is given to it."""
    assert layout().begin(None)[:3] == (0, None, False)
    assert layout().begin(Saved(state={"a": 1}))[:3] == (0, {"a": 1}, False)


def test_saved_stages_are_found() -> None:
    """A holder begins at the saved stage with the saved state; there may be nothing left."""
    assert layout().begin(Saved(stage="encode", state=7)) == (1, 7, True, None)
    assert layout().begin(Saved(stage=COMPLETED, state=7))[:2] == (3, None)


def test_an_unknown_stage_is_poison() -> None:
    """A stage that is no longer there sets the message aside, and the reason says what is there."""
    with pytest.raises(Poison, match="'upload' is unknown; the stages are scan, encode, compress"):
        layout().begin(Saved(stage="upload"))


def test_renamed_stages_are_found() -> None:
    """A stage may be saved under the name that it had before; also one that is no longer needed."""
    made = layout(renamed={"virus": "scan", "publish": COMPLETED})
    assert made.begin(Saved(stage="virus"))[0] == 0
    assert made.begin(Saved(stage="publish"))[0] == 3


@pytest.mark.parametrize("version", [1, 2, 10])
def test_what_is_saved_is_found(version: int) -> None:
    """Each version finds what it has saved; version 1 saves the bare name."""
    made = layout(version=version)
    saved = made.saved(1, {"a": 1}, 0.5)
    assert saved.stage == ("encode" if version == 1 else f"encode@{version}")
    assert made.begin(saved) == (1, {"a": 1}, True, None)
    assert made.begin(made.saved(3, None, 0))[0] == 3


def test_newer_progress_is_left_to_newer_workers() -> None:
    """In a rolling deployment the old workers do not touch what the new ones have begun."""
    with pytest.raises(Retry, match=r"version 3 .* runs version 2"):
        layout(version=2).begin(Saved(stage="encode@3"))


def test_older_progress_is_migrated() -> None:
    """Migrations are applied one after the other, and then renames."""
    made = layout(
        version=3,
        migrations={
            1: lambda stage, state: (stage, {"frame": state}),
            2: lambda stage, state: ("packing" if stage == "pack" else stage, state),
        },
        renamed={"packing": "compress"},
    )
    assert made.begin(Saved(stage="encode", state=7))[:2] == (1, {"frame": 7})
    assert made.begin(Saved(stage="pack@2", state=7))[:2] == (2, 7)


def test_older_progress_without_a_migration() -> None:
    """It is dropped, kept or refused, as declared."""
    old = Saved(stage="encode", state=7)
    begin = layout(version=2).begin(old)
    assert begin[:3] == (0, None, False)
    assert begin.dropped is not None
    assert "version 1" in begin.dropped
    assert layout(version=2, older="keep").begin(old) == (1, 7, True, None)
    with pytest.raises(Poison, match="version 1"):
        layout(version=2, older="poison").begin(old)


def test_dropped_progress_is_reported() -> None:
    """Who watches hears that the work begins anew."""
    bench = Bench()
    old = Stages()
    old.stage("a")(lambda message, state: None)
    old.stage("b")(lambda message, state: None)
    old(bench.receive())
    diary = Diary()
    new = Stages(version=2, hooks=[diary], time=bench.time)
    new.stage("a")(lambda message, state: None)
    new(bench.receive())
    assert diary.lines[0].startswith("restarted: version 1")
    assert diary.lines[1] == "begun a"


def test_migrations_are_declared() -> None:
    """The decorator's function is applied to what the older version has saved."""
    bench = Bench()
    old = Stages()
    old.stage("a")(lambda message, state: 7)
    old.stage("b")(lambda message, state: None)
    old(bench.receive())
    new = Stages(version=2)
    seen: list[Any] = []
    new.stage("a")(lambda message, state: pytest.fail("a was done"))
    new.stage("bee")(lambda message, state: seen.append(state))

    @new.migration(1)
    def one(stage: str, state: Any) -> tuple[str, Any]:
        return ("bee" if stage == "b" else stage), [state]

    new(bench.receive())
    assert seen == [[7]]


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("encode", ("encode", 1)),
        ("encode@2", ("encode", 2)),
        ("encode@", ("encode@", 1)),
        ("encode@x", ("encode@x", 1)),
        ("encode@\u0662", ("encode@\u0662", 1)),
        ("a@2@3", ("a@2", 3)),
    ],
)
def test_labels(label: str, found: tuple[str, int]) -> None:
    """The version follows the last @, if it is a number."""
    assert split_label(label) == found


def test_fractions() -> None:
    """What is done of the whole lies between 0 and 1, whatever a stage claims."""
    made = layout()
    assert made.fraction(0, 0) == 0
    assert made.fraction(1, 0.5) == 0.5
    assert made.fraction(1, 7) == 0.75
    assert made.fraction(1, -7) == 0.25
    assert made.fraction(3, 0) == 1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"names": (), "weights": ()}, "no stage"),
        ({"version": 0}, "version is 0"),
        ({"renamed": {"scan": "encode"}}, "there is a stage 'scan' still"),
        ({"renamed": {"old": "new"}}, "there is no stage 'new'"),
        ({"version": 2, "migrations": {2: lambda stage, state: (stage, state)}}, "version 2"),
    ],
)
def test_what_leads_nowhere_is_refused(settings: dict[str, Any], problem: str) -> None:
    """A layout that cannot be right says so before the first message."""
    with pytest.raises(ValueError, match=problem):
        Layout(**{"names": NAMES, "weights": (1, 1, 1), **settings}).check()
