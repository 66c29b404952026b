"""Contract: the messages of each group are counted, part by part."""

from __future__ import annotations

import random

import pytest

from leasehold.domain import admin as o
from leasehold.domain.commands import RetireExpired
from leasehold.domain.errors import QueueNotFound
from leasehold.domain.model import Detail, GroupFigures, MessageState, Outcome
from leasehold.domain.queue_settings import GroupSettings

from .conftest import ACCOUNT, QUEUE, Asker


def put(asker: Asker, group: str | None, **fields: int) -> None:
    """Put a message of a group."""
    asker.put(group or "-", detail=Detail(group_id=group), **fields)


def figures(asker: Asker, group: str | None = None, limit: int = 2_000) -> dict[str, GroupFigures]:
    """Return the figures of all pages."""
    found: dict[str, GroupFigures] = {}
    after = None
    for _ in range(10_000):
        page = asker.ask(o.CountGroups(ACCOUNT, QUEUE, group, after, limit))
        assert isinstance(page, o.GroupPage)
        for name, each in page.groups.items():
            found[name] = found.get(name, GroupFigures()).plus(each)
        after = page.next_after
        if after is None:
            return found
    raise AssertionError("the look does not end")


def naive(asker: Asker) -> dict[str, GroupFigures]:
    """Return the same from what an inspection lists."""
    found: dict[str, GroupFigures] = {}
    for seen in asker.inspect(limit=10_000).messages:
        group, visible_at_ms = seen.message.detail.group_id, seen.message.visible_at_ms
        one = {
            MessageState.VISIBLE: GroupFigures(waiting=1, oldest_ms=visible_at_ms),
            MessageState.LEASED: GroupFigures(in_flight=1),
            MessageState.DELAYED: GroupFigures(delayed=1),
            MessageState.DEFERRED: GroupFigures(deferred=1),
        }.get(seen.state)
        if group is not None and one is not None:
            found[group] = found.get(group, GroupFigures()).plus(one)
    return found


def test_each_state_of_a_group_is_counted(asker: Asker) -> None:
    """What waits, is on a lease, is delayed and is deferred; what has no group is not."""
    start_ms = asker.clock.now_ms()
    for _ in range(4):
        put(asker, "a")
    put(asker, "a", delay_s=60)
    put(asker, None)
    put(asker, "b")
    asker.clock.advance(s=1)
    asker.receive_one()
    asker.release(asker.receive_one(), Outcome.FAILED, delay_s=30)
    assert figures(asker) == {
        "a": GroupFigures(2, 1, 1, 1, start_ms),
        "b": GroupFigures(waiting=1, oldest_ms=start_ms),
    }
    assert figures(asker, "b") == {"b": GroupFigures(waiting=1, oldest_ms=start_ms)}
    assert figures(asker, "none") == {}
    assert isinstance(asker.ask(o.CountGroups(ACCOUNT, "none")), QueueNotFound)


def test_members_of_claims_are_in_flight_until_these_lapse(asker: Asker) -> None:
    """Then they wait, since the end of the claim."""
    for _ in range(3):
        put(asker, "a")
    put(asker, "b")
    asker.attach()
    claim = asker.claim(1, limit=2, lease_s=60)
    assert figures(asker)["a"][:2] == (1, 2)
    asker.clock.advance(s=61)
    assert figures(asker) == naive(asker)
    assert figures(asker)["a"][:2] == (3, 0)
    assert claim.until_ms < asker.clock.now_ms()


def test_what_has_expired_is_not_counted(asker: Asker) -> None:
    """Before it is set aside, and after."""
    put(asker, "a", time_to_live_s=10)
    put(asker, "a")
    put(asker, "b", time_to_live_s=10)
    asker.clock.advance(s=11)
    assert {name: each.waiting for name, each in figures(asker).items()} == {"a": 1}
    asker.ask(RetireExpired(100))
    for limit in (1, 2, 100):
        assert {name: each.waiting for name, each in figures(asker, limit=limit).items()} == {
            "a": 1
        }


@pytest.mark.parametrize("limit", [1, 3, 7, 1_000])
def test_pages_add_up(asker: Asker, limit: int) -> None:
    """Whatever their size; with several priorities, claims, leases and retries."""
    asker.govern(groups=GroupSettings(fair=True))
    chance = random.Random(limit)
    for _ in range(60):
        put(
            asker,
            chance.choice(["a", "b", "ba", "ß", "A", None]),
            priority=chance.randint(1, 3),
            delay_s=chance.choice([0, 0, 0, 90]),
            time_to_live_s=chance.choice([20, 500, 500]),
        )
        asker.clock.advance(ms=chance.randint(0, 300))
    for lease in asker.receive(12):
        if chance.random() < 0.5:
            asker.release(lease, Outcome.FAILED, delay_s=chance.choice([0, 40]))
    asker.attach()
    asker.claim(1, limit=8, lease_s=15)
    assert figures(asker, limit=limit) == naive(asker)
    asker.clock.advance(s=25)
    assert figures(asker, limit=limit) == naive(asker)
    for group in ("a", "ß"):
        expected = {name: each for name, each in naive(asker).items() if name == group}
        assert figures(asker, group, limit) == expected
