"""How a pipeline is declared, and described to people."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from leasehold.worker.adapters import Saved
from leasehold.worker.stages import COMPLETED, StageMessage, Stages
from tests.unit.worker.stages.support import Bench

pipeline = Stages(version=2)


@pipeline.stage("scan", timeout_s=60, exhausted="poison", retries=1)
def scan(message: StageMessage, state: Any) -> str:
    return "clean"


@pipeline.stage("encode", retries=2, retry_delay_s=0.5, timeout_s="learned", must_save=True)
def encode(message: StageMessage, state: Any) -> str:
    return f"{state} and encoded"


@pipeline.stage("compress", when=lambda message, state: False)
def compress(message: StageMessage, state: Any) -> None:
    pytest.fail("compress was done")


def test_the_decorator_leaves_the_function_alone() -> None:
    """A stage can be called, and tested, without its pipeline."""
    assert encode(None, "x") == "x and encoded"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("", {}, "not a valid name"),
        ("1st", {}, "not a valid name"),
        ("a@2", {}, "not a valid name"),
        (COMPLETED, {}, "not a valid name"),
        ("a" * 65, {}, "not a valid name"),
        ("a", {"retries": -1}, "retries"),
        ("a", {"retry_delay_s": float("nan")}, "retry_delay_s"),
        ("a", {"timeout_s": 0}, "timeout_s"),
        ("a", {"timeout_s": "guess"}, "'guess'"),
        ("a", {"weight": 0}, "weight"),
    ],
)
def test_settings_out_of_range_are_refused(
    name: str, settings: dict[str, Any], problem: str
) -> None:
    """A stage that cannot be right says so where it is declared."""
    with pytest.raises(ValueError, match=problem):
        Stages().stage(name, **settings)(print)


def test_names_are_taken_once() -> None:
    """Two stages of one name could not be told apart when they are saved."""
    made = Stages()
    made.stage("a")(print)
    with pytest.raises(ValueError, match="'a' already"):
        made.stage("a")(print)


def test_migrations_are_declared_once() -> None:
    """There is one way from a version to the next."""
    made = Stages(version=2)
    made.migration(1)(lambda stage, state: (stage, state))
    with pytest.raises(ValueError, match="from version 1 already"):
        made.migration(1)(lambda stage, state: (stage, state))


def test_a_pipeline_in_use_does_not_change() -> None:
    """Whatever is declared after the first message is an error."""
    made = Stages()
    made.stage("a")(lambda message, state: None)
    made(Bench().receive())
    with pytest.raises(RuntimeError, match="'b' cannot be added"):
        made.stage("b")(print)
    with pytest.raises(RuntimeError, match="cannot be added"):
        made.migration(1)(lambda stage, state: (stage, state))


def test_a_pipeline_needs_a_stage() -> None:
    """An empty one is an error at the first message, and when a worker asks."""
    with pytest.raises(ValueError, match="no stage"):
        Stages()(Bench().receive())
    with pytest.raises(ValueError, match="no stage"):
        Stages().check_queue(Bench().client)


def test_the_text_has_a_line_for_each_stage() -> None:
    """People see the order, and what is special about each stage."""
    assert pipeline.describe().splitlines() == [
        "3 stages, version 2",
        "  1. scan      retries 1; then poison; at most 60 s",
        "  2. encode    retries 2, 0.5 s apart; reported if unusually long; must be saved",
        "  3. compress  may be skipped",
    ]


def test_the_diagram_has_a_box_for_each_stage() -> None:
    """The flowchart leads through all stages; those that may be skipped are dashed."""
    assert pipeline.describe("mermaid").splitlines() == [
        "flowchart LR",
        "    received([received])",
        '    s1["scan<br/>retries 1<br/>then poison<br/>at most 60 s"]',
        (
            '    s2["encode<br/>retries 2, 0.5 s apart<br/>reported if unusually long'
            '<br/>must be saved"]'
        ),
        '    s3["compress<br/>may be skipped"]',
        "    completed([completed])",
        "    received --> s1",
        "    s1 --> s2",
        "    s2 --> s3",
        "    s3 --> completed",
        "    classDef optional stroke-dasharray: 4 3",
        "    class s3 optional",
    ]


@pytest.mark.parametrize(
    ("saved", "text"),
    [
        (None, "stage 1 of 3, scan"),
        (Saved(stage="encode@2", fraction=0.414), "stage 2 of 3, encode; 41 % of all"),
        (Saved(stage=COMPLETED, fraction=1), "completed"),
        (Saved(stage="upload", fraction=0.5), "stage upload, which is unknown; 50 % of all"),
    ],
)
def test_progress_for_people(saved: Saved | None, text: str) -> None:
    """Saved progress reads as a place in the sequence."""
    assert pipeline.where(saved) == text


def test_a_pipeline_can_go_to_another_process() -> None:
    """A pipeline whose stages are functions of a module can be pickled, and works there."""
    made = Stages()
    made.stage("scan")(scan)
    made.stage("encode")(encode)
    bench = Bench()
    made(bench.receive())
    there = pickle.loads(pickle.dumps(made))
    there(bench.receive())
    assert bench.saves == []
    assert there.describe() == made.describe()
