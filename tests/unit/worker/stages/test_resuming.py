"""Where a holder begins, whatever version of the code has saved the progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from leasehold.worker.adapters import Saved
from leasehold.worker.errors import Poison, Retry
from leasehold.worker.stages import COMPLETED, StageMessage, Stages
from leasehold.worker.stages.declared import Migration
from tests.unit.worker.stages.support import Bench, Diary, Died


def done_after(
    saved: Saved | None, *, migrations: Mapping[int, Migration] | None = None, **settings: Any
) -> list[tuple[str, Any]]:
    """Return which of three stages are done for a message with this progress, and with what."""
    done: list[tuple[str, Any]] = []
    pipeline = Stages(**settings)
    for version, migration in (migrations or {}).items():
        pipeline.migration(version)(migration)
    for name in ("scan", "encode", "compress"):
        pipeline.stage(name)(lambda message, state, name=name: done.append((name, state)))
    bench = Bench()
    message = bench.receive()
    if saved is not None:
        bench.holding.save(saved)
        message = bench.receive()
    pipeline(message)
    return done


def test_new_messages_begin_at_the_first_stage() -> None:
    """Without progress the first stage is next; a state without a stage is given to it."""
    rest = [("encode", None), ("compress", None)]
    assert done_after(None) == [("scan", None), *rest]
    assert done_after(Saved(state={"a": 1})) == [("scan", {"a": 1}), *rest]


def test_saved_stages_are_found() -> None:
    """A holder begins at the saved stage with the saved state; there may be nothing left."""
    assert done_after(Saved(stage="encode", state=7)) == [("encode", 7), ("compress", None)]
    assert done_after(Saved(stage=COMPLETED, state=7)) == []


def test_renamed_stages_are_found() -> None:
    """A stage may be saved under the name that it had before; also one that is no longer needed."""
    renamed = {"virus": "compress", "publish": COMPLETED}
    assert done_after(Saved(stage="virus"), renamed=renamed) == [("compress", None)]
    assert done_after(Saved(stage="publish"), renamed=renamed) == []


@pytest.mark.parametrize("version", [1, 2, 10])
def test_what_is_saved_is_found(version: int) -> None:
    """Each version finds what it has saved; version 1 saves the bare name."""
    bench, begun = Bench(), []
    pipeline = Stages(version=version, save_end=True)
    pipeline.stage("scan")(lambda message, state: begun.append("scan"))

    @pipeline.stage("encode")
    def encode(message: StageMessage, state: Any) -> None:
        begun.append(f"encode with {state}")
        if message.dequeue_count == 1:
            message.checkpoint(7)
            raise Died

    with pytest.raises(Died):
        pipeline(bench.receive())
    for _ in range(2):
        pipeline(bench.receive())
    assert begun == ["scan", "encode with None", "encode with 7"]
    message = bench.receive()
    assert message.saved is not None
    assert message.saved.stage == (COMPLETED if version == 1 else f"{COMPLETED}@{version}")


def test_newer_progress_is_left_to_newer_workers() -> None:
    """In a rolling deployment the old workers do not touch what the new ones have begun."""
    with pytest.raises(Retry, match=r"version 3 .* runs version 2"):
        done_after(Saved(stage="encode@3"), version=2)


def test_older_progress_is_migrated() -> None:
    """Migrations are applied one after the other, and then renames."""
    settings: dict[str, Any] = {
        "version": 3,
        "migrations": {
            1: lambda stage, state: (stage, {"frame": state}),
            2: lambda stage, state: ("packing" if stage == "pack" else stage, state),
        },
        "renamed": {"packing": "compress"},
    }
    assert done_after(Saved(stage="encode", state=7), **settings)[0] == ("encode", {"frame": 7})
    assert done_after(Saved(stage="pack@2", state=7), **settings) == [("compress", 7)]


def test_older_progress_without_a_migration() -> None:
    """It is dropped, kept or refused, as declared."""
    old = Saved(stage="encode", state=7)
    diary = Diary()
    assert done_after(old, version=2, hooks=[diary])[0] == ("scan", None)
    assert diary.lines[0].startswith("restarted: version 1")
    assert done_after(old, version=2, older="keep")[0] == ("encode", 7)
    with pytest.raises(Poison, match="version 1"):
        done_after(old, version=2, older="poison")


def test_what_begins_anew_is_decided_anew() -> None:
    """The condition of the first stage is asked as for a new message."""
    bench, done = Bench(), []
    bench.receive()
    bench.holding.save(Saved(stage="scan"))
    pipeline = Stages(version=2)
    pipeline.stage("scan", when=lambda message, state: False)(lambda *_: done.append("scan"))
    pipeline.stage("encode")(lambda message, state: done.append("encode"))
    pipeline(bench.receive())
    assert done == ["encode"]


@pytest.mark.parametrize(
    ("label", "version", "unknown"),
    [
        ("upload", 1, "upload"),
        ("encode@", 1, "encode@"),
        ("encode@x", 1, "encode@x"),
        ("encode@\u0662", 1, "encode@\u0662"),
        ("encode@2@3", 3, "encode@2"),
    ],
)
def test_an_unknown_stage_is_poison(label: str, version: int, unknown: str) -> None:
    """The reason says what there is; a version is only a number that follows the last @."""
    reason = f"'{unknown}' is unknown; the stages are scan, encode, compress"
    with pytest.raises(Poison, match=reason):
        done_after(Saved(stage=label), version=version)


def test_fractions() -> None:
    """What is done of the whole is within the stage, whatever that claims."""
    bench, pipeline = Bench(), Stages()
    pipeline.stage("scan")(lambda message, state: None)

    @pipeline.stage("encode", weight=2)
    def encode(message: StageMessage, state: Any) -> None:
        for fraction in (0.5, 7, -7):
            message.checkpoint(fraction=fraction)

    pipeline.stage("compress")(lambda message, state: None)
    pipeline(bench.receive())
    assert [each.fraction for each in bench.holding.saves] == [0.25, 0.5, 0.75, 0.25, 0.75]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"version": 0}, "version is 0"),
        ({"renamed": {"scan": "encode"}}, "the stage 'scan' still exists"),
        ({"renamed": {"old": "new"}}, "the stage 'new' does not exist"),
        ({"version": 2, "migrations": {2: lambda stage, state: (stage, state)}}, "version 2"),
        ({"version": 2, "migrations": {0: lambda stage, state: (stage, state)}}, "version 0"),
    ],
)
def test_what_leads_nowhere_is_refused(settings: dict[str, Any], problem: str) -> None:
    """A pipeline that cannot be right says so before the first stage is begun."""
    with pytest.raises(ValueError, match=problem):
        done_after(None, **settings)
