"""Calls of many threads that share one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from leasehold.worker.call_batcher import CallBatcher
from tests.patience import PATIENCE_S


class Service:
    """Answers when it is let; keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.error: BaseException | None = None

    def __call__(self, items: Sequence[int]) -> list[int | BaseException]:
        self.calls.append(list(items))
        self.begun.release()
        assert self.go_on.acquire(timeout=PATIENCE_S)
        if self.error is not None:
            raise self.error
        return [ValueError(item) if item < 0 else item * 10 for item in items]


def _wait_until_queued(gathering: CallBatcher[int, int], count: int) -> None:
    end = threading.Event()
    while len(gathering._waiting) < count:
        end.wait(0.001)


def _asked(
    pool: ThreadPoolExecutor, gathering: CallBatcher[int, int], service: Service, items: list[int]
) -> list[Future[int]]:
    """Have the first item served by a call that is under way when the others come."""
    first = pool.submit(gathering.ask, items[0])
    assert service.begun.acquire(timeout=PATIENCE_S)
    rest = []
    for count, item in enumerate(items[1:], start=1):
        rest.append(pool.submit(gathering.ask, item))
        _wait_until_queued(gathering, count)
    return [first, *rest]


def test_what_comes_during_a_call_goes_with_the_next_one() -> None:
    """Two calls serve nine threads, and each gets its own answer."""
    service = Service()
    gathering: CallBatcher[int, int] = CallBatcher(service, most=100)
    with ThreadPoolExecutor(9) as pool:
        asked = _asked(pool, gathering, service, list(range(9)))
        service.go_on.release(2)
        answers = [each.result(PATIENCE_S) for each in asked]
    assert answers == [item * 10 for item in range(9)]
    assert service.calls == [[0], list(range(1, 9))]


def test_a_call_has_no_more_items_than_it_may() -> None:
    """What is over the limit goes with the call after that."""
    service = Service()
    gathering: CallBatcher[int, int] = CallBatcher(service, most=2)
    with ThreadPoolExecutor(4) as pool:
        asked = _asked(pool, gathering, service, [1, 2, 3, 4])
        service.go_on.release(3)
        assert [each.result(PATIENCE_S) for each in asked] == [10, 20, 30, 40]
    assert service.calls == [[1], [2, 3], [4]]


def test_an_item_that_is_refused_costs_no_other() -> None:
    """An exception among the answers is raised in the thread that asked."""
    service = Service()
    gathering: CallBatcher[int, int] = CallBatcher(service, most=100)
    with ThreadPoolExecutor(3) as pool:
        asked = _asked(pool, gathering, service, [1, -2, 3])
        service.go_on.release(2)
        assert asked[0].result(PATIENCE_S) == 10
        assert isinstance(asked[1].exception(PATIENCE_S), ValueError)
        assert asked[2].result(PATIENCE_S) == 30


def test_a_call_that_fails_is_told_to_all_and_the_next_is_made() -> None:
    """Nobody waits for ever after an error."""
    service = Service()
    service.error = OSError("down")
    gathering: CallBatcher[int, int] = CallBatcher(service, most=100)
    with ThreadPoolExecutor(3) as pool:
        asked = _asked(pool, gathering, service, [1, 2, 3])
        service.go_on.release(2)
        assert [str(each.exception(PATIENCE_S)) for each in asked] == ["down"] * 3
        service.error = None
        service.go_on.release()
        assert pool.submit(gathering.ask, 4).result(PATIENCE_S) == 40


def test_who_is_out_of_patience_asks_alone() -> None:
    """A call that hangs does not hold up others for longer than they bear."""
    service = Service()
    gathering: CallBatcher[int, int] = CallBatcher(service, most=100, patience_s=0.01)
    with ThreadPoolExecutor(2) as pool:
        hanging = pool.submit(gathering.ask, 1)
        assert service.begun.acquire(timeout=PATIENCE_S)
        second = pool.submit(gathering.ask, 2)
        # It is made while the first hangs.
        assert service.begun.acquire(timeout=PATIENCE_S)
        service.go_on.release(2)
        assert second.result(PATIENCE_S) == 20
        assert hanging.result(PATIENCE_S) == 10
    assert service.calls == [[1], [2]]


def test_a_call_that_lingers_takes_what_comes_meanwhile_and_ends_the_wait_when_it_is_full() -> None:
    """Whoever asks first waits for the others, and no longer than until the call has all it may."""
    service = Service()
    service.go_on.release(2)
    gathering: CallBatcher[int, int] = CallBatcher(service, most=3, linger_s=1000)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(gathering.ask, item) for item in (1, 2, 3)]
        assert sorted(each.result(PATIENCE_S) for each in asked) == [10, 20, 30]
    assert [sorted(call) for call in service.calls] == [[1, 2, 3]]
    alone: CallBatcher[int, int] = CallBatcher(service, most=3, linger_s=0.001)
    assert alone.ask(4) == 40


def test_wrong_number_of_answers_is_an_error_for_all() -> None:
    """A service that loses an item cannot hand out the answers of others."""
    gathering: CallBatcher[int, int] = CallBatcher(lambda items: [0, 0, *items], most=10)
    with pytest.raises(RuntimeError, match="1 were requested, 3 answered"):
        gathering.ask(1)
