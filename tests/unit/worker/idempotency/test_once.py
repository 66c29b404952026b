"""The body runs at the first delivery, is skipped at the others, and knows which it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from leasehold.testing import ManualClock
from leasehold.testing.fencing_runs import Draft, Shelf
from leasehold.worker.errors import LeaseLost, Retry
from leasehold.worker.idempotency import (
    Busy,
    Delivered,
    Entry,
    Fenced,
    Holder,
    MemoryProcessed,
    NotRecorded,
    Once,
    UncheckedRun,
    UnstorableResult,
)
from tests.unit.worker.idempotency.support import Told


class Waits:
    """Time that does something at each wait, and takes none."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self.acts = list(acts)
        self.waited_s: list[float] = []

    def monotonic_s(self) -> float:
        return sum(self.waited_s)

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        assert timeout_s is not None
        self.waited_s.append(timeout_s)
        if self.acts:
            self.acts.pop(0)()


@pytest.fixture
def store() -> MemoryProcessed:
    return MemoryProcessed(clock=ManualClock())


@pytest.fixture
def once(store: MemoryProcessed) -> Once:
    return Once(store, wait_s=0)


def _fail(once: Once, text: str) -> None:
    with once(Told()) as run:
        assert run.first
        raise ValueError(text)


def test_body_runs_once_and_its_result_is_handed_back(once: Once) -> None:
    """A repeated delivery skips the body and finds what the first one set."""
    done = []
    results = []
    for fence in (1, 2, 3):
        with once(Told(fence=fence)) as run:
            if run.first:
                done.append(fence)
                run.result = {"paid": 7}
        results.append(run.result)
    assert done == [1]
    assert results == [{"paid": 7}] * 3


def test_messages_and_queues_are_apart(once: Once) -> None:
    """The same id in another queue is another message."""
    done = []
    for message in (Told("a"), Told("b"), Told("a", queue="other")):
        with once(message) as run:
            if run.first:
                done.append(message.id)
    assert done == ["a", "b", "a"]


def test_key_joins_messages(once: Once) -> None:
    """Two messages about one order have one effect, and a key is no message of that name."""
    done = []
    for message, key in ((Told("a"), "b"), (Told("c"), "b"), (Told("b"), None)):
        with once(message, key) as run:
            if run.first:
                done.append(message.id)
    assert done == ["a", "b"]


def test_steps_are_apart(store: MemoryProcessed) -> None:
    """Each effect of a message has a record of its own."""
    done = []
    for step in ("charge", "ship", "charge"):
        with Once(store, step=step)(Told()) as run:
            if run.first:
                done.append(step)
    assert done == ["charge", "ship"]


def test_failure_frees_the_key(once: Once, store: MemoryProcessed) -> None:
    """A body that raises is not done: the next delivery runs it again."""
    with pytest.raises(ValueError, match="no money"):
        _fail(once, "no money")
    assert len(store) == 0
    with once(Told(fence=2)) as run:
        assert run.first


def test_crash_leaves_the_key_to_the_next_delivery(once: Once) -> None:
    """A holder that never came back is taken over at once by a newer fence."""
    once(Told(fence=1)).__enter__()
    with once(Told(fence=2)) as run:
        assert run.first


def test_zombie_does_not_begin(once: Once) -> None:
    """An older delivery is told that the lease is lost: while the newer works, and after."""
    newer = once(Told(fence=2))
    run = newer.__enter__()
    assert run.first
    with (
        pytest.raises(Fenced, match="fence 1 is too old; the newest fence is 2"),
        once(Told(fence=1)),
    ):
        pytest.fail("the body ran")
    newer.__exit__(None, None, None)
    with pytest.raises(LeaseLost), once(Told(fence=1)):
        pytest.fail("the body ran")


def test_zombie_cannot_record(once: Once) -> None:
    """Who was taken over in the middle learns it at the end, and the result is the newer's."""
    late = once(Told(fence=1))
    old = late.__enter__()
    assert old.first
    old.result = "old"
    assert once.call(Told(fence=2), lambda: "new") == "new"
    with pytest.raises(Fenced):
        late.__exit__(None, None, None)
    with once(Told(fence=3)) as run:
        assert not run.first
    assert run.result == "new"


def test_lost_message_does_not_begin(once: Once, store: MemoryProcessed) -> None:
    """A message that is not held any more leaves no trace."""
    with pytest.raises(LeaseLost, match="the test says so"), once(Told(is_lost=True)):
        pytest.fail("the body ran")
    assert len(store) == 0


def test_second_waits_for_the_first(store: MemoryProcessed) -> None:
    """Another message with the key waits, and then skips with the result of the first."""
    first = Once(store)(Told("a"), "order")
    run = first.__enter__()

    def finish() -> None:
        assert run.first
        run.result = 7
        first.__exit__(None, None, None)

    time = Waits(lambda: None, lambda: None, finish)
    with Once(store, time=time)(Told("b"), "order") as second:
        assert not second.first
    assert second.result == 7
    assert time.waited_s == [0.02, 0.04, 0.08]


def test_second_runs_if_the_first_fails(store: MemoryProcessed) -> None:
    """Who waits is let in when the first gives up."""
    first = Once(store)(Told("a"), "order")
    first.__enter__()
    error = ValueError()
    time = Waits(lambda: first.__exit__(ValueError, error, None))
    with Once(store, time=time)(Told("b"), "order") as second:
        assert second.first


def test_waiting_ends_with_busy(store: MemoryProcessed) -> None:
    """After wait_s the message is given back for a while: Busy is a Retry with a delay."""
    Once(store)(Told("a"), "order").__enter__()
    time = Waits()
    once = Once(store, wait_s=3, retry_s=9, time=time)
    with pytest.raises(Busy) as caught, once(Told("b"), "order"):
        pytest.fail("the body ran")
    assert isinstance(caught.value, Retry)
    assert caught.value.delay_s == 9
    assert sum(time.waited_s) == pytest.approx(3)
    assert max(time.waited_s) <= 1


def test_waiting_ends_with_the_lease(store: MemoryProcessed) -> None:
    """Who waits and loses its message stops waiting."""
    Once(store)(Told("a"), "order").__enter__()
    message = Told("b")
    time = Waits(lambda: setattr(message, "is_lost", True))
    with pytest.raises(LeaseLost), Once(store, time=time)(message, "order"):
        pytest.fail("the body ran")
    assert len(time.waited_s) == 1


def test_same_lease_twice_is_busy(once: Once) -> None:
    """One lease that runs twice at the same time has one effect."""
    once(Told(fence=4)).__enter__()
    with pytest.raises(Busy), once(Told(fence=4)):
        pytest.fail("the body ran")


def test_body_that_does_not_ask_is_found_out(once: Once) -> None:
    """A body that never looks at run.first fails the first time it is tried."""
    with pytest.raises(UncheckedRun, match=r"run\.first"), once(Told()):
        pass
    with pytest.raises(UncheckedRun), once(Told(fence=2)):
        pass


@pytest.mark.parametrize("result", [object(), float("nan"), {1: {2, 3}}, "x" * 65_535])
def test_effect_is_recorded_even_if_its_result_cannot_be(once: Once, result: Any) -> None:
    """What is no JSON, or too long, is an error; the effect has happened and is not repeated."""
    with pytest.raises(UnstorableResult):
        once.call(Told(), lambda: result)
    with once(Told(fence=2)) as run:
        assert not run.first
    assert run.result is None


def test_result_may_have_64_kib_as_json(once: Once) -> None:
    """Quotes included."""
    once.call(Told(), lambda: "x" * 65_534)
    assert once.call(Told(fence=2), lambda: "again") == "x" * 65_534


def test_result_may_be_any_text(once: Once) -> None:
    """NUL, quotes and half surrogates come back as they were."""
    text = "\0'\"\ud800 ü"
    assert once.call(Told(), lambda: text) == text
    assert once.call(Told(fence=2), lambda: "other") == text


def test_falsy_results_are_results(once: Once) -> None:
    """0, "" and [] are handed back as they are."""
    for number, result in enumerate((0, "", [], False)):
        message = Told(str(number))
        assert once.call(message, lambda result=result: result) == result  # type: ignore[misc]
        assert once.call(Told(str(number), fence=2), lambda: "again") == result


def test_decorated_handler(once: Once) -> None:
    """The decorator keeps what a handler returns, and its name."""
    done = []

    @once.handler
    def charge(message: Told) -> str:
        done.append(message.fence)
        return f"receipt {message.fence}"

    assert charge(Told()) == charge(Told(fence=2)) == "receipt 1"
    assert done == [1]
    assert charge.__name__ == "charge"


def test_decorated_handler_with_a_key(once: Once) -> None:
    """The key of a decorated handler is made of the message."""
    done = []

    @once.handler(key=lambda message: message.id[0])
    def ship(message: Told) -> None:
        done.append(message.id)

    for name in ("a1", "a2", "b1"):
        ship(Told(name))
    assert done == ["a1", "b1"]


def test_error_of_the_body_stays_in_front(store: MemoryProcessed) -> None:
    """If the history fails too, the error of the body is raised, with a note."""

    class Broken(MemoryProcessed):
        def abandon(self, key: str, holder: Holder) -> None:
            raise ConnectionError("history is down")

    with pytest.raises(ValueError, match="mine") as caught:
        _fail(Once(Broken()), "mine")
    assert "history is down" in caught.value.__notes__[0]


def test_failing_record_fails_the_handler() -> None:
    """If what happened cannot be recorded the handler fails, and says so: the known gap."""

    class Broken(MemoryProcessed):
        def finish(self, key: str, holder: Holder, result: str | None) -> None:
            raise ConnectionError("history is down")

    with pytest.raises(NotRecorded), Once(Broken(), record_s=0)(Told()) as run:
        assert run.first


def test_without_a_store_it_says_so() -> None:
    """A Once for transactions only does not pretend to remember."""
    with pytest.raises(ValueError, match="in_transaction"), Once()(Told()):
        pytest.fail("the body ran")


def test_bad_fence_is_refused(once: Once) -> None:
    """A message whose fence no store can order is refused before the body."""
    with pytest.raises(ValueError, match="fence"):
        once(Told(fence=-1))


def test_hold_is_passed_on() -> None:
    """hold_s reaches the history."""
    seen = []

    class Watching(MemoryProcessed):
        def begin(self, key: str, holder: Holder, hold_s: float | None = None) -> Entry | None:
            seen.append(hold_s)
            return super().begin(key, holder, hold_s)

    with Once(Watching(), hold_s=12)(Told()) as run:
        assert run.first
    assert seen == [12]


def test_message_of_the_worker_will_do() -> None:
    """What the worker hands to handlers is what once needs."""
    message = Shelf(Draft(queue="videos", body=b"x"), "m").deliver(3)
    delivered: Delivered = message
    assert (delivered.queue, delivered.id, delivered.fence) == ("videos", "m", 3)
    assert Once(MemoryProcessed()).call(message, lambda: 7) == 7
