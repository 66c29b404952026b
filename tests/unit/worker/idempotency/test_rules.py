"""The pure rules, and that every history goes by them."""

from __future__ import annotations

import itertools
import pickle
import random

import pytest

from leasehold.worker.idempotency import Busy, Entry, Fenced, Holder, MemoryProcessed
from leasehold.worker.idempotency.history import (
    MAX_FENCE,
    MAX_KEY_LENGTH,
    Standing,
    check_fence_number,
    join_key,
    may_begin,
    may_finish,
    standing,
)
from tests.unit.worker.idempotency.conftest import Harness
from tests.unit.worker.idempotency.support import holder


def _entry(
    fence: int = 5, *, done: bool = False, source: str = "q/a", run: str = "theirs"
) -> Entry:
    return Entry(
        source=source,
        fence=fence,
        run=run,
        is_done=done,
        result=None,
        since_ms=0,
        held_until_ms=100,
        expires_at_ms=1000,
    )


def _me(fence: int, source: str = "q/a", run: str = "mine") -> Holder:
    return Holder(source=source, fence=fence, run=run)


@pytest.mark.parametrize(
    ("entry", "me", "now_ms", "begins", "finishes"),
    [
        (None, _me(1), 0, True, True),
        (_entry(), _me(1), 1000, True, True),
        (_entry(done=True), _me(1), 1000, True, True),
        (_entry(), _me(6), 0, True, True),
        (_entry(), _me(5), 0, False, False),
        (_entry(), _me(4), 0, False, False),
        (_entry(), _me(4), 500, False, False),
        (_entry(run="mine"), _me(5), 0, True, True),
        (_entry(done=True), _me(6), 0, False, False),
        (_entry(done=True), _me(4), 0, False, False),
        (_entry(done=True, run="mine"), _me(5), 0, False, True),
        (_entry(source="q/b"), _me(9), 99, False, False),
        (_entry(source="q/b"), _me(1), 100, True, False),
        (_entry(source="q/b", done=True), _me(9), 500, False, False),
    ],
)
def test_who_begins_and_who_finishes(
    entry: Entry | None, me: Holder, now_ms: int, begins: bool, finishes: bool
) -> None:
    """The table of the rules: expired, newer, same, older, same run, done, another message."""
    assert may_begin(entry, me, now_ms) is begins
    assert may_finish(entry, me, now_ms) is finishes


@pytest.mark.parametrize(
    ("entry", "me", "expected"),
    [
        (_entry(), _me(4), Standing.FENCED),
        (_entry(done=True), _me(4), Standing.FENCED),
        (_entry(), _me(5), Standing.BUSY),
        (_entry(done=True), _me(5), Standing.REPEATED),
        (_entry(done=True), _me(6), Standing.REPEATED),
        (_entry(source="q/b"), _me(4), Standing.BUSY),
        (_entry(source="q/b", done=True), _me(4), Standing.REPEATED),
    ],
)
def test_what_an_entry_says_to_others(entry: Entry, me: Holder, expected: Standing) -> None:
    """Older deliveries are fenced, others skip what is done and wait for what is not."""
    assert standing(entry, me) is expected


@pytest.mark.parametrize("seed", range(6))
def test_every_history_does_as_the_memory_does(harness: Harness, seed: int) -> None:
    """A row of random calls has the same answers from each history as from the pure rules."""
    chance = random.Random(seed)
    oracle, store = MemoryProcessed(), harness.store
    holders = [
        holder(fence, source, run=f"{source}{fence}{run}")
        for fence, source, run in itertools.product((1, 2, 3), ("q/a", "q/b"), "xy")
    ]
    for number in range(60):
        me = chance.choice(holders)
        act = chance.choice(("begin", "begin", "finish", "abandon"))
        if act == "begin":
            expected, found = oracle.begin("k", me), store.begin("k", me)
            assert _facts(found) == _facts(expected), (number, me)
        elif act == "finish":
            assert _ends(store, me, number) == _ends(oracle, me, number), (number, me)
        else:
            store.abandon("k", me)
            oracle.abandon("k", me)
        assert _facts(store.look("k")) == _facts(oracle.look("k")), (number, act, me)
        if number % 10 == 9:
            store.forget("k")
            oracle.forget("k")


def _facts(entry: Entry | None) -> tuple[object, ...] | None:
    if entry is None:
        return None
    return (entry.source, entry.fence, entry.run, entry.is_done, entry.result)


def _ends(store: object, me: Holder, number: int) -> object:
    try:
        store.finish("k", me, str(number))  # type: ignore[attr-defined]
    except Fenced as error:
        return error.newest
    return "done"


def test_keys_tell_their_parts_apart() -> None:
    """Parts that would join to the same text make different keys, all of them printable."""
    parts = [("a", "b"), ("a/b",), ("a", "b", ""), ("ab",), ("a%2Fb",), ("a b\n\0ü", "b")]
    keys = [join_key(*each) for each in parts]
    assert len(set(keys)) == len(keys)
    assert all(key.isascii() and key.isprintable() and '"' not in key for key in keys)


def test_long_keys_are_shortened_and_stay_different() -> None:
    """A key over the limit becomes a digest of the whole."""
    keys = {join_key("x" * MAX_KEY_LENGTH, str(number)) for number in range(5)}
    assert len(keys) == 5
    assert max(map(len, keys)) <= MAX_KEY_LENGTH


@pytest.mark.parametrize("fence", [-1, MAX_FENCE + 1])
def test_fences_have_bounds(fence: int) -> None:
    """What no store and no header can carry is refused."""
    with pytest.raises(ValueError, match="fence"):
        check_fence_number(fence)
    check_fence_number(0)
    check_fence_number(MAX_FENCE)


def test_errors_survive_a_trip_between_processes() -> None:
    """A handler in another process raises the same."""
    fenced = pickle.loads(pickle.dumps(Fenced("k", 1, 2)))
    assert (fenced.what, fenced.fence, fenced.newest) == ("k", 1, 2)
    busy = pickle.loads(pickle.dumps(Busy(3.0, "why")))
    assert (busy.delay_s, busy.reason) == (3.0, "why")
