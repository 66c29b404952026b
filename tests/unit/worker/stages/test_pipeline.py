"""A message on its way through the stages, and through the hands of several holders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasehold.worker.errors import Cancelled, LeaseLost, Poison
from leasehold.worker.stages import COMPLETED, Done, Goto, StageMessage, Stages
from tests.unit.worker.stages.support import Bench, Died


def three(log: list[Any], **settings: Any) -> Stages:
    """Return a pipeline of three stages that append their names to the state."""
    pipeline = Stages(**settings)

    def add(name: str) -> None:
        @pipeline.stage(name)
        def run(message: Any, state: Any) -> Any:
            log.append((name, state))
            return [*(state or []), name]

    for name in ("scan", "encode", "compress"):
        add(name)
    return pipeline


def dying(stage: str, pipeline: Stages) -> Stages:
    """Return *pipeline* with *stage* dying at its begin, once."""
    place = [each.name for each in pipeline._stages].index(stage)
    declared = pipeline._stages[place]
    lives = iter([True])

    def run(message: Any, state: Any) -> Any:
        if next(lives, False):
            raise Died
        return declared.run(message, state)

    again = Stages()
    for each in pipeline._stages:
        again.stage(each.name)(run if each is declared else each.run)
    return again


def test_stages_run_in_their_order() -> None:
    """Each stage gets what the one before has returned; the first gets None."""
    log: list[Any] = []
    three(log)(Bench().receive())
    assert log == [
        ("scan", None),
        ("encode", ["scan"]),
        ("compress", ["scan", "encode"]),
    ]


def test_the_end_of_each_stage_but_the_last_is_saved() -> None:
    """The next stage is saved with its state; after the last the message is completed instead."""
    bench = Bench()
    three([])(bench.receive())
    assert bench.saves == [("encode", ["scan"]), ("compress", ["scan", "encode"])]


@pytest.mark.parametrize("stage", ["scan", "encode", "compress"])
def test_the_next_holder_begins_at_the_saved_stage(stage: str) -> None:
    """After a crash in any stage, the stages before it are not done again."""
    log: list[Any] = []
    bench = Bench()
    pipeline = dying(stage, three(log))
    with pytest.raises(Died):
        pipeline(bench.receive())
    pipeline(bench.receive())
    assert log == [
        ("scan", None),
        ("encode", ["scan"]),
        ("compress", ["scan", "encode"]),
    ]


def test_a_stage_goes_on_where_its_checkpoint_was() -> None:
    """What a stage saves within itself is what it gets from the next holder."""
    bench = Bench()
    done: list[int] = []
    pipeline = Stages()

    @pipeline.stage("scan")
    def scan(message: StageMessage, state: Any) -> Any:
        return {"frame": 0}

    @pipeline.stage("encode")
    def encode(message: StageMessage, state: Any) -> Any:
        for frame in range(state["frame"], 10):
            if frame == 6 and message.dequeue_count == 1:
                raise Died
            done.append(frame)
            message.checkpoint({"frame": frame + 1}, fraction=(frame + 1) / 10)
        return None

    with pytest.raises(Died):
        pipeline(bench.receive())
    message = bench.receive()
    assert message.saved is not None
    assert (message.saved.stage, message.saved.state) == ("encode", {"frame": 6})
    assert message.saved.fraction == pytest.approx(0.5 + 0.6 / 2)
    pipeline(message)
    assert done == list(range(10))


def test_a_checkpoint_keeps_what_is_left_out() -> None:
    """State and fraction stay as they were if a checkpoint does not name them."""
    bench = Bench()
    pipeline = Stages()

    @pipeline.stage("only")
    def only(message: StageMessage, state: Any) -> None:
        message.checkpoint({"a": 1}, fraction=0.25)
        message.checkpoint(fraction=0.5)
        message.checkpoint({"a": 2})

    pipeline(bench.receive())
    assert [(each.state, each.fraction) for each in bench.holding.saves] == [
        ({"a": 1}, 0.25),
        ({"a": 1}, 0.5),
        ({"a": 2}, 0.5),
    ]


def test_a_checkpoint_can_lead_elsewhere() -> None:
    """A checkpoint that names a stage sends the next holder there; unknown names are refused."""
    bench = Bench()
    pipeline = three([])

    @pipeline.stage("last")
    def last(message: StageMessage, state: Any) -> None:
        message.checkpoint("anew", stage="scan")
        with pytest.raises(ValueError, match="'upload' is not a stage"):
            message.checkpoint(stage="upload")

    pipeline(bench.receive())
    assert bench.saves[-1] == ("scan", "anew")
    assert bench.holding.saves[-1].fraction == 0


def test_the_fraction_goes_by_the_weights() -> None:
    """What is done of the whole counts each stage with its weight."""
    bench = Bench()
    pipeline = Stages()

    @pipeline.stage("short")
    def short(message: StageMessage, state: Any) -> None:
        message.checkpoint(fraction=0.5)

    @pipeline.stage("long", weight=9)
    def long_(message: StageMessage, state: Any) -> None:
        message.checkpoint(fraction=0.5)

    pipeline(bench.receive())
    assert [each.fraction for each in bench.holding.saves] == pytest.approx([0.05, 0.1, 0.55])


def test_stages_can_be_skipped() -> None:
    """A stage whose condition does not hold is left out, at the begin, within and at the end."""
    bench = Bench()
    log: list[str] = []
    pipeline = Stages()
    for name, wanted in [("a", False), ("b", True), ("c", False), ("d", True), ("e", False)]:

        def run(message: Any, state: Any, name: str = name) -> str:
            log.append(f"{name} after {state}")
            return name

        def when(message: Any, state: Any, wanted: bool = wanted) -> bool:
            return wanted

        pipeline.stage(name, when=when)(run)
    pipeline(bench.receive())
    assert log == ["b after None", "d after b"]
    assert bench.saves == [("d", "b")]


def test_a_saved_stage_is_done_whatever_its_condition_says_now() -> None:
    """The condition is asked when the stage before has ended, not again by the next holder."""
    bench = Bench()
    log: list[str] = []
    answers = iter([True, False])
    pipeline = Stages()
    pipeline.stage("a")(lambda message, state: None)

    @pipeline.stage("b", when=lambda message, state: next(answers))
    def b(message: StageMessage, state: Any) -> None:
        log.append("b")
        if message.dequeue_count == 1:
            raise Died

    with pytest.raises(Died):
        pipeline(bench.receive())
    pipeline(bench.receive())
    assert log == ["b", "b"]


@pytest.mark.parametrize("done", [Done(), Done])
def test_a_stage_can_end_the_work(done: object) -> None:
    """After Done the stages that are left are not done, and nothing more is saved."""
    bench = Bench()
    pipeline = Stages()
    pipeline.stage("a")(lambda message, state: done)
    pipeline.stage("b")(lambda message, state: pytest.fail("b was done"))
    pipeline(bench.receive())
    assert bench.saves == []


def test_a_stage_can_go_elsewhere() -> None:
    """Goto leads forward and back, with a state, and is saved like any stage."""
    bench = Bench()
    log: list[str] = []
    pipeline = Stages()

    @pipeline.stage("ask")
    def ask(message: Any, state: Any) -> Any:
        log.append(f"ask {state}")
        return Goto("end", "yes") if state == "sure" else "maybe"

    @pipeline.stage("think")
    def think(message: Any, state: Any) -> Any:
        log.append(f"think {state}")
        return Goto("ask", "sure")

    @pipeline.stage("end")
    def end(message: Any, state: Any) -> None:
        log.append(f"end {state}")

    pipeline(bench.receive())
    assert log == ["ask None", "think maybe", "ask sure", "end yes"]
    assert bench.saves == [("think", "maybe"), ("ask", "sure"), ("end", "yes")]


def test_goto_nowhere_is_a_failure() -> None:
    """A name that leads to no stage fails the message, and the error lists the names."""
    pipeline = Stages()
    pipeline.stage("a")(lambda message, state: Goto("z"))
    with pytest.raises(ValueError, match="'z' is not a stage; the stages are a"):
        pipeline(Bench().receive())


def test_circles_end() -> None:
    """Stages that send each other back for ever set the message aside."""
    pipeline = Stages()
    pipeline.stage("a")(lambda message, state: Goto("a"))
    with pytest.raises(Poison, match="form a loop"):
        pipeline(Bench().receive())


def test_the_end_is_saved_if_asked() -> None:
    """With save_end, a holder that dies before the message is completed leaves nothing to do."""
    log: list[Any] = []
    bench = Bench()
    pipeline = three(log, save_end=True)
    pipeline(bench.receive())
    assert bench.saves[-1][0] == COMPLETED
    assert bench.holding.saves[-1].fraction == 1
    pipeline(bench.receive())
    assert len(log) == 3


def test_a_stage_sees_its_state_as_the_next_holder_would() -> None:
    """States go through JSON also between stages of one holder: tuples are lists, keys are text."""
    seen: list[Any] = []
    pipeline = Stages()
    pipeline.stage("a")(lambda message, state: {1: (2, 3)})
    pipeline.stage("b")(lambda message, state: seen.append(state))
    pipeline(Bench().receive())
    assert seen == [{"1": [2, 3]}]


@pytest.mark.parametrize("state", [{1, 2}, float("nan"), b"x"])
def test_states_that_cannot_be_saved_are_refused(state: Any) -> None:
    """What JSON cannot say fails the stage that returned it, and the error names it."""
    pipeline = Stages()
    pipeline.stage("a")(lambda message, given: state)
    with pytest.raises(TypeError, match="representable in JSON") as caught:
        pipeline(Bench().receive())
    assert caught.value.__notes__ == ["after stage 'a'"]


def test_a_stage_knows_whether_it_was_begun_before() -> None:
    """Only the first stage of a message that was delivered before may have been begun."""
    bench = Bench()
    seen: list[tuple[str, bool]] = []
    pipeline = Stages()

    def look(message: StageMessage, state: Any) -> None:
        seen.append((message.stage, message.resumed))

    pipeline.stage("a")(look)
    pipeline.stage("b")(look)
    pipeline(bench.receive())
    pipeline(bench.receive())
    assert seen == [("a", False), ("b", False), ("b", True)]


def test_a_stage_has_all_of_the_message() -> None:
    """What a message has is there for its stages as well."""
    bench = Bench()
    message = bench.receive()
    pipeline = Stages()

    @pipeline.stage("a")
    def a(seen: StageMessage, state: Any) -> None:
        assert seen.id == message.id
        assert seen.body == b"clip"
        assert seen.text == "clip"
        assert seen.fence == message.fence
        assert seen.cancel_token is message.cancel_token
        assert seen.seconds_left == message.seconds_left
        assert not seen.cancelled
        assert not hasattr(seen, "no_such_thing")

    pipeline(message)


def lose(bench: Bench) -> Callable[[], None]:
    return lambda: setattr(bench.holding, "lost", "gone")


def test_a_lost_lease_ends_the_work() -> None:
    """No stage is begun once the lease is lost, and nothing is saved."""
    bench = Bench()
    message = bench.receive()
    pipeline = Stages()
    pipeline.stage("a", retries=5)(lambda message, state: lose(bench)())
    pipeline.stage("b")(lambda message, state: pytest.fail("b was done"))
    with pytest.raises(LeaseLost, match="gone"):
        pipeline(message)
    assert bench.saves == []


def test_a_cancelled_message_ends_between_stages() -> None:
    """When somebody wants the work to stop, the stage that has ended is saved before it does."""
    bench = Bench()
    message = bench.receive()
    pipeline = Stages()
    pipeline.stage("a")(lambda message, state: message.cancel_token.set("shutdown"))
    pipeline.stage("b")(lambda message, state: pytest.fail("b was done"))
    with pytest.raises(Cancelled, match="shutdown"):
        pipeline(message)
    assert bench.saves == [("b", None)]
