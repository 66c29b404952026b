"""The end of a short stage may wait before it is saved, and how long."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from leasehold.testing import ManualTime
from leasehold.worker.adapters import Saved, Unreachable
from leasehold.worker.errors import GiveBack, LeaseLost
from leasehold.worker.stages import StageMessage, Stages
from leasehold.worker.stages.run import ENOUGH, Durations
from tests.patience import PATIENCE_S
from tests.unit.worker.stages.support import Bench, Diary, Died

WITHIN_S = 0.1
NAMES = ("a", "b", "c")


class Act:
    """What the stages of a pipeline do; a test may change it. It knows the queue at work."""

    def __init__(self, time: ManualTime) -> None:
        self.time = time
        self.bench = Bench(time=time)
        self.does: dict[str, Any] = {}
        self.log: list[tuple[str, float]] = []
        """Stages that have ended, and when they were begun."""

    def __call__(self, message: StageMessage, state: Any) -> str:
        began_s = self.time.monotonic_s()
        does = self.does.get(message.stage)
        if does is not None:
            does(message)
        self.log.append((message.stage, began_s))
        return f"after {message.stage}"


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def act(time: ManualTime) -> Act:
    return Act(time)


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def pipeline(time: ManualTime, act: Act, diary: Diary) -> Iterator[Stages]:
    """A pipeline whose stages are known to take no time."""
    made = made_of(act, diary, save_within_s=WITHIN_S)
    learn(made, act)
    yield made
    made.close()


def made_of(act: Act, *hooks: Diary, must_save: str = "", **settings: Any) -> Stages:
    pipeline = Stages(hooks=hooks, time=act.time, **settings)
    for name in NAMES:
        pipeline.stage(name, must_save=name == must_save)(act)
    return pipeline


def learn(pipeline: Stages, act: Act) -> None:
    """Have it done ten messages, each saved after each stage since nothing is known."""
    for _ in range(ENOUGH):
        bench = Bench(time=act.time)
        pipeline(bench.receive())
        assert [stage for stage, _ in bench.saves] == ["b", "c"]
    act.log.clear()


def test_short_stages_need_no_save_once_they_are_known(pipeline: Stages, act: Act) -> None:
    """All is done before a save is due; what the handler sees is what would have been saved."""
    seen: list[Saved | None] = []
    act.does["c"] = lambda message: seen.append(message.saved)
    message = act.bench.receive()
    pipeline(message)
    assert act.bench.saves == []
    assert seen == [Saved(stage="c", state="after b", fraction=2 / 3)]
    act.time.advance(WITHIN_S)
    assert act.bench.saves == []
    act.bench.complete(message)


@pytest.mark.parametrize(
    ("settings", "saves"),
    [
        ({"save_within_s": 0}, ["b", "c"]),
        ({"must_save": "a"}, ["b"]),
        ({"must_save": "b"}, ["c"]),
        ({"save_end": True}, ["(completed)"]),
    ],
)
def test_what_must_be_saved_is_saved_at_once(
    act: Act, settings: dict[str, Any], saves: list[str]
) -> None:
    """Whatever is known of the stages."""
    pipeline = made_of(act, **settings)
    for _ in range(ENOUGH):
        pipeline(Bench(time=act.time).receive())
    pipeline(act.bench.receive())
    assert [stage for stage, _ in act.bench.saves] == saves
    pipeline.close()


def test_a_negative_time_is_refused() -> None:
    """So is one that never ends."""
    for value in (-1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="save_within_s"):
            Stages(save_within_s=value)


def test_a_stage_that_took_longer_is_saved_when_it_ends(pipeline: Stages, act: Act) -> None:
    """Stages before it count as well: what is not saved is never older than that."""
    act.does["a"] = lambda message: act.time.advance(WITHIN_S)
    pipeline(act.bench.receive())
    assert act.bench.saves == [("b", "after a")]
    act.bench = Bench(time=act.time)
    act.does = dict.fromkeys("ab", lambda message: act.time.advance(WITHIN_S / 2))
    pipeline(act.bench.receive())
    # The thread that saves while a stage runs is due at the same moment, and may be first.
    assert act.bench.saves in ([("c", "after b")], [("b", "after a"), ("c", "after b")])


def test_before_a_stage_that_takes_long_all_is_saved(pipeline: Stages, act: Act) -> None:
    """As soon as more than one of ten attempts at it took long."""
    act.does["c"] = lambda message: act.time.advance(1)
    for _ in range(ENOUGH):
        pipeline(Bench(time=act.time).receive())
    act.does["c"] = lambda message: act.bench.saves == [("c", "after b")] or pytest.fail("unsaved")
    pipeline(act.bench.receive())
    assert act.bench.saves == [("c", "after b")]


def test_when_a_short_stage_takes_long_a_thread_saves(pipeline: Stages, act: Act) -> None:
    """So its holder's death does not cost the work before it."""

    def long(message: StageMessage) -> None:
        act.time.settle(waiting=1)
        act.time.advance(WITHIN_S * 0.9)
        assert act.bench.saves == []
        act.time.advance(WITHIN_S * 0.1)
        assert act.bench.saves == [("c", "after b")]
        raise Died

    act.does["c"] = long
    with pytest.raises(Died):
        pipeline(act.bench.receive())
    act.does, act.log = {}, []
    pipeline(act.bench.receive())
    assert [name for name, _ in act.log] == ["c"]


@pytest.mark.parametrize("failure", [OSError("disk full"), GiveBack()])
def test_a_message_that_goes_back_is_saved(pipeline: Stages, act: Act, failure: Exception) -> None:
    """The next holder begins with the stage that failed, as ever."""

    def fail(message: StageMessage) -> None:
        raise failure

    act.does["c"] = fail
    with pytest.raises(type(failure)):
        pipeline(act.bench.receive())
    assert act.bench.saves == [("c", "after b")]
    act.does, act.log = {}, []
    pipeline(act.bench.receive())
    assert [name for name, _ in act.log] == ["c"]


def test_a_cancelled_task_is_saved(pipeline: Stages, act: Act) -> None:
    """As when a worker with an event loop stops."""

    async def cancelled() -> None:
        message, begun, ended = act.bench.receive(), asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def wait(_: StageMessage) -> None:
            loop.call_soon_threadsafe(begun.set)
            ended.wait(PATIENCE_S)

        act.does["c"] = wait
        task = asyncio.ensure_future(pipeline.acall(message))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        ended.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert act.bench.saves == [("c", "after b")]


def test_nothing_is_saved_of_a_message_that_is_lost(pipeline: Stages, act: Act) -> None:
    """Another holder has it: neither when the work ends, nor from the thread."""

    def lose(message: StageMessage) -> None:
        act.bench.holding.lost = "taken"
        act.time.settle(waiting=1)
        act.time.advance(WITHIN_S)
        message.check()

    act.does["c"] = lose
    with pytest.raises(LeaseLost):
        pipeline(act.bench.receive())
    assert act.bench.saves == []


def test_a_checkpoint_takes_along_what_waits(pipeline: Stages, act: Act) -> None:
    """Nothing is saved twice."""

    def checkpoint(message: StageMessage) -> None:
        message.checkpoint("half", fraction=0.5)
        act.time.advance(WITHIN_S)

    act.does["c"] = checkpoint
    pipeline(act.bench.receive())
    assert act.bench.saves == [("c", "half")]


def test_a_save_that_fails_is_told_and_made_up_for(
    pipeline: Stages, act: Act, diary: Diary
) -> None:
    """The work goes on, and the next save has it all."""
    diary.lines.clear()

    def fail_to_save(message: StageMessage) -> None:
        act.bench.holding.failures = [Unreachable("no answer")]
        act.time.settle(waiting=1)
        act.time.advance(WITHIN_S)

    act.does["b"] = fail_to_save
    pipeline(act.bench.receive())
    assert [line for line in diary.lines if "not" in line] == ["not saved b: no answer"]
    assert act.bench.saves == [("c", "after b")]


def test_no_more_is_repeated_than_promised(act: Act) -> None:
    """Whatever stages take and wherever a holder dies: a stage is done again only if it was at
    work, or begun within the time after which it is saved."""
    pipeline = made_of(act, save_within_s=WITHIN_S)
    dice, repeated, saved = random.Random(7), 0, 0
    for _ in range(300):
        act.bench, act.does, act.log = Bench(time=act.time), {}, []
        took = {name: dice.choice([0, 0, 0.01, 0.03, 0.07, 0.2]) for name in NAMES}
        dies = dice.choice([*NAMES, None])

        def do(
            message: StageMessage, took: dict[str, float] = took, dies: str | None = dies
        ) -> None:
            if message.message.is_deferred:
                act.time.settle(waiting=1)  # the thread that saves may be a new one
            if took[message.stage]:
                act.time.advance(took[message.stage])
            if message.stage == dies and message.dequeue_count == 1:
                raise Died

        act.does = dict.fromkeys(NAMES, do)
        message = act.bench.receive()
        if dies is None:
            pipeline(message)
            continue
        with pytest.raises(Died):
            pipeline(message)
        died_s, done, act.log = act.time.monotonic_s(), dict(act.log), []
        saved += len(act.bench.saves)
        pipeline(act.bench.receive())
        again = [began_s for name, began_s in done.items() if name in dict(act.log)]
        assert all(died_s - began_s < WITHIN_S + 1e-6 for began_s in again)
        repeated += len(again)
    assert repeated
    assert saved
    pipeline.close()


def test_what_counts_as_short() -> None:
    """Nine of ten attempts of the latest fifty, once there are ten."""
    durations = Durations()
    for _ in range(ENOUGH - 1):
        durations.add("a", 0.01)
    assert not durations.is_short("a", 0.1)
    durations.add("a", 5)
    assert durations.is_short("a", 0.1)
    durations.add("a", 5)
    assert not durations.is_short("a", 0.1)
    for _ in range(50):
        durations.add("a", 0.01)
    assert durations.is_short("a", 0.1)
    assert not durations.is_short("b", 0.1)
