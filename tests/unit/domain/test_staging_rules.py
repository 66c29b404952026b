"""The rules of staged sends, one by one."""

from __future__ import annotations

import pytest

from leasehold.domain import transactions as rules
from leasehold.domain.commands import Put
from leasehold.domain.errors import (
    ChunkOutOfTurn,
    StagedNotFound,
    VisibilityPastExpiry,
)
from leasehold.domain.model import NEVER_MS, Detail, Message, Phase

NOW = 1_000_000
PUT = Put("coho", "videos", b"work", 5, 10, bytes(10))


def test_chunks() -> None:
    """One that is there already, the next one, and one that is too early."""
    assert rules.check_chunk(2, 1)
    assert not rules.check_chunk(2, 2)
    with pytest.raises(ChunkOutOfTurn) as refused:
        rules.check_chunk(2, 3)
    assert refused.value.expected == 2


def test_puts() -> None:
    """Visible before they expire; a key does not matter yet."""
    rules.check_put(PUT, NOW)
    rules.check_put(PUT._replace(detail=Detail(dedup_key="k")), NOW)
    with pytest.raises(VisibilityPastExpiry):
        rules.check_put(PUT._replace(delay_s=10), NOW)


@pytest.mark.parametrize("moved_ms", [0, 50_000, -50_000])
@pytest.mark.parametrize("delay_ms", [0, 5_000])
@pytest.mark.parametrize("lifetime_ms", [10_000, None])
def test_publishing(moved_ms: int, delay_ms: int, lifetime_ms: int | None) -> None:
    """The message is as if it had been put now."""
    expires_at_ms = NEVER_MS if lifetime_ms is None else NOW + lifetime_ms
    phase = Phase.DELAYED if delay_ms else Phase.WAITING
    staged = Message("id", b"", NOW, expires_at_ms, NOW + delay_ms, phase=phase, since_ms=NOW)
    now_ms = NOW + moved_ms
    assert rules.shifted(staged, now_ms) == staged._replace(
        inserted_at_ms=now_ms,
        expires_at_ms=NEVER_MS if lifetime_ms is None else now_ms + lifetime_ms,
        visible_at_ms=now_ms + delay_ms,
        since_ms=now_ms,
    )


def test_parts() -> None:
    """All, those named, or none; what is not there is refused."""
    staged = ["a", "b"]
    assert rules.chosen_parts("tx", staged, None) == {"a", "b"}
    assert rules.chosen_parts("tx", staged, ("b",)) == {"b"}
    assert rules.chosen_parts("tx", staged, ()) == set()
    assert rules.chosen_parts("tx", None, ()) == set()
    for known, parts, part in ((staged, ("a", "c"), "c"), (None, None, None), (None, ("a",), None)):
        with pytest.raises(StagedNotFound) as refused:
            rules.chosen_parts("tx", known, parts)
        assert (refused.value.name, refused.value.part) == ("tx", part)


def test_what_was_published_adds_up() -> None:
    """By queue; queues that nothing went to are left out."""
    first = rules.Moved(rules.rows_by_queue([("b", 2), ("a", 1), ("c", 0), ("b", 3)]), 4)
    assert (first.by_queue, first.rows) == ((("a", 1), ("b", 5)), 6)
    assert first.plus(rules.NOTHING_MOVED) == first
    assert first.plus(rules.Moved((("a", 2),), 1)) == rules.Moved((("a", 3), ("b", 5)), 5)


def test_the_end_of_a_transaction() -> None:
    """It moves on with what is staged, and never back."""
    assert rules.until_after_stage(0, NOW, 10) == NOW + 10_000
    assert rules.until_after_stage(NOW + 50_000, NOW, 10) == NOW + 50_000


def test_until_when_a_binding_keeps_a_transaction() -> None:
    """A day from now, unless half a day is left anyway; never less than it has."""
    half_ms = 43_200_000
    assert rules.until_after_bind(0, NOW) == NOW + 2 * half_ms
    assert rules.until_after_bind(NOW + half_ms, NOW) == NOW + half_ms
    assert rules.until_after_bind(NOW + half_ms - 1, NOW) == NOW + 2 * half_ms
    assert rules.until_after_bind(NOW + 9 * half_ms, NOW) == NOW + 9 * half_ms
