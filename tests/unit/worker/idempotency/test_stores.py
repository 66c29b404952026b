"""One suite for every history: the rules, the window, the result."""

from __future__ import annotations

import threading

import pytest

from leasehold.worker.idempotency import Entry, Fenced
from tests.unit.worker.idempotency.conftest import WINDOW_S, Harness
from tests.unit.worker.idempotency.support import holder


def test_first_holder_begins(harness: Harness) -> None:
    """A key that nobody has heard of is free, and then held."""
    store = harness.store
    me = holder(fence=3)
    assert store.begin("k", me) is None
    entry = store.look("k")
    assert entry is not None
    assert (entry.source, entry.fence, entry.run) == (me.source, 3, me.run)
    assert not entry.is_done
    assert entry.held_until_ms - entry.since_ms == WINDOW_S * 1000
    assert abs(entry.expires_at_ms - entry.since_ms - WINDOW_S * 1000) < 5000


def test_finished_key_is_repeated(harness: Harness) -> None:
    """After success the key stands in the way of everybody, with the result."""
    store = harness.store
    me = holder()
    store.begin("k", me)
    store.finish("k", me, '{"paid":7}')
    for other in (holder(2), holder(1), holder(1, "orders/m2")):
        found = store.begin("k", other)
        assert found is not None
        assert found.is_done
        assert found.result == '{"paid":7}'


def test_no_result_is_none(harness: Harness) -> None:
    """A key that is done without a result has none, also if a run before it left one."""
    store = harness.store
    me = holder()
    store.begin("k", me)
    store.finish("k", me, '""')
    store.finish("k", me, None)
    found = store.look("k")
    assert found is not None
    assert found.result is None


def test_newer_fence_takes_over(harness: Harness) -> None:
    """A newer delivery of the message begins at once, although the older one has not ended."""
    store = harness.store
    old, new = holder(1), holder(2)
    store.begin("k", old)
    assert store.begin("k", new) is None
    found = store.look("k")
    assert found is not None
    assert found.run == new.run


def test_older_fence_never_overtakes(harness: Harness) -> None:
    """An older delivery does not begin, and what the newer one began stays."""
    store = harness.store
    new = holder(2)
    store.begin("k", new)
    found = store.begin("k", holder(1))
    assert found is not None
    assert (found.fence, found.run) == (2, new.run)


def test_older_fence_cannot_finish_what_was_taken_over(harness: Harness) -> None:
    """The end of a late worker is refused, and says who was there."""
    store = harness.store
    old, new = holder(1), holder(2)
    store.begin("k", old)
    store.begin("k", new)
    with pytest.raises(Fenced) as caught:
        store.finish("k", old, "1")
    assert (caught.value.fence, caught.value.newest) == (1, 2)
    store.finish("k", new, "2")
    with pytest.raises(Fenced):
        store.finish("k", old, "1")
    found = store.look("k")
    assert found is not None
    assert found.result == "2"


def test_fences_are_numbers_and_not_texts(harness: Harness) -> None:
    """Fence 10 is newer than fence 9, and the largest is kept exactly."""
    store = harness.store
    store.begin("k", holder(9))
    assert store.begin("k", holder(10)) is None
    assert store.begin("k", holder(9)) is not None
    assert store.begin("k", holder(10**15 - 2)) is None
    assert store.begin("k", holder(10**15 - 3)) is not None
    found = store.look("k")
    assert found is not None
    assert found.fence == 10**15 - 2


def test_same_fence_of_another_run_is_busy(harness: Harness) -> None:
    """One lease that is run twice at the same time begins once."""
    store = harness.store
    first = holder(4)
    store.begin("k", first)
    found = store.begin("k", holder(4))
    assert found is not None
    assert found.run == first.run
    assert not found.is_done


def test_same_run_may_ask_again(harness: Harness) -> None:
    """A request whose answer was lost can be repeated."""
    store = harness.store
    me = holder()
    assert store.begin("k", me) is None
    assert store.begin("k", me) is None
    store.finish("k", me, "1")
    store.finish("k", me, "1")
    found = store.begin("k", me)
    assert found is not None
    assert found.is_done


def test_another_message_waits_whatever_its_fence(harness: Harness) -> None:
    """Fences of two messages say nothing about each other."""
    store = harness.store
    first = holder(1, "orders/m1")
    store.begin("k", first)
    found = store.begin("k", holder(99, "orders/m2"))
    assert found is not None
    assert found.run == first.run


def test_hold_ends_for_another_message(harness: Harness) -> None:
    """When the hold has run out another message takes over, and the first cannot finish."""
    store = harness.store
    first, other = holder(5, "orders/m1"), holder(1, "orders/m2")
    store.begin("k", first, hold_s=30)
    harness.advance(29)
    assert store.begin("k", other) is not None
    harness.advance(2)
    assert store.begin("k", other) is None
    with pytest.raises(Fenced) as caught:
        store.finish("k", first, None)
    assert caught.value.newest is None


def test_hold_says_nothing_to_deliveries_of_the_message(harness: Harness) -> None:
    """An older delivery does not begin when the hold of a newer one has run out."""
    store = harness.store
    store.begin("k", holder(2), hold_s=1)
    harness.advance(5)
    assert store.begin("k", holder(1)) is not None


def test_abandoned_key_is_free(harness: Harness) -> None:
    """After a failure anybody may begin, also another message."""
    store = harness.store
    me = holder()
    store.begin("k", me)
    store.abandon("k", me)
    assert store.look("k") is None
    assert store.begin("k", holder(1, "orders/m2")) is None


def test_only_the_holder_abandons(harness: Harness) -> None:
    """A late worker that fails does not set free what was taken over, nor what is done."""
    store = harness.store
    old, new = holder(1), holder(2)
    store.begin("k", old)
    store.begin("k", new)
    store.abandon("k", old)
    assert store.begin("k", old) is not None
    store.finish("k", new, None)
    store.abandon("k", new)
    found = store.look("k")
    assert found is not None
    assert found.is_done


def test_window_begins_when_it_is_done(harness: Harness) -> None:
    """A key is remembered for the window after its end, and not a moment longer."""
    store = harness.store
    me = holder()
    store.begin("k", me)
    harness.advance(WINDOW_S - 10)
    store.finish("k", me, "1")
    harness.advance(WINDOW_S - 10)
    assert store.begin("k", holder(2)) is not None
    harness.advance(15)
    assert store.look("k") is None
    assert store.begin("k", holder(2)) is None


def test_effect_is_recorded_when_the_entry_expired_meanwhile(harness: Harness) -> None:
    """A run that took longer than the window still says that it is done."""
    store = harness.store
    me = holder()
    store.begin("k", me)
    harness.advance(WINDOW_S + 1)
    store.finish("k", me, "1")
    found = store.begin("k", holder(2))
    assert found is not None
    assert found.is_done


def test_newer_run_records_over_an_older_one_that_slipped_in(harness: Harness) -> None:
    """If the history forgot a holder and an older one began, the newer one still finishes."""
    store = harness.store
    new = holder(2)
    store.begin("k", new)
    store.forget("k")
    store.begin("k", holder(1))
    store.finish("k", new, "2")
    found = store.look("k")
    assert found is not None
    assert (found.fence, found.result) == (2, "2")


def test_forget_frees_what_is_done(harness: Harness) -> None:
    """A person can have a key done again."""
    store = harness.store
    me = holder()
    store.begin("k", me)
    store.finish("k", me, None)
    assert store.forget("k")
    assert not store.forget("k")
    assert store.begin("k", holder(1, "orders/m2")) is None


def test_keys_do_not_meet(harness: Harness) -> None:
    """What is done under one key says nothing about another, however alike."""
    store = harness.store
    keys = ["a", "A", "a/", "a%2F", "ä", "a'b\"c", "{a}", ":a", "%s"]
    for key in keys:
        me = holder()
        assert store.begin(key, me) is None
        store.finish(key, me, f'"{len(key)}"')
    for key in keys:
        found = store.look(key)
        assert found is not None
        assert found.result == f'"{len(key)}"'


def test_one_of_many_begins(harness: Harness) -> None:
    """Of threads that begin at the same moment with one fence, one is let in."""
    store = harness.store
    start = threading.Barrier(8)
    found: list[Entry | None] = []

    def begin() -> None:
        me = holder()
        start.wait()
        found.append(store.begin("k", me))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert found.count(None) == 1


def test_newest_of_many_holds_the_key(harness: Harness) -> None:
    """Of threads with rising fences, the newest holds the key in the end, whoever came first."""
    store = harness.store
    start = threading.Barrier(8)

    def begin(fence: int) -> None:
        start.wait()
        store.begin("k", holder(fence))

    threads = [threading.Thread(target=begin, args=(fence,)) for fence in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.look("k")
    assert found is not None
    assert found.fence == 8


def test_sweep_goes_in_steps(harness: Harness) -> None:
    """A sweep removes at most so many expired keys, and none that is still remembered."""
    store = harness.store
    if harness.kind == "redis":
        assert store.sweep() == 0, "the server removes them"
        return
    for number in range(5):
        store.begin(f"old{number}", holder())
    harness.advance(WINDOW_S + 1)
    if harness.kind == "memory":
        assert store.sweep(2) == 2
        assert store.sweep(9) == 3
        return
    store.begin("new", holder())
    assert store.sweep(2) == 2
    assert store.sweep(9) == 3
    assert store.sweep() == 0
    assert store.look("new") is not None


def test_store_does_not_grow_by_itself(harness: Harness) -> None:
    """Expired keys go as new ones come, without anybody who sweeps."""
    store = harness.store
    if harness.kind == "redis":
        pytest.skip("the server removes expired keys by itself")
    for number in range(100):
        me = holder()
        store.begin(f"old{number}", me)
        store.finish(f"old{number}", me, None)
    harness.advance(WINDOW_S + 1)
    for number in range(130):
        me = holder()
        store.begin(f"new{number}", me)
        store.finish(f"new{number}", me, None)
    assert store.sweep() == 0
