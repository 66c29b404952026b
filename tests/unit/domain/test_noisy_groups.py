"""Which groups are noisy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.domain.model import GroupFigures
from leasehold.domain.noisy_groups import Work, noisy, noisy_among, noisy_limit
from leasehold.domain.queue_settings import GroupSettings

START_MS = 1_800_000_000_000
LIMITED = GroupSettings(limit_noisy=True)


@pytest.mark.parametrize(
    ("own", "all_in_flight", "groups", "is_noisy"),
    [
        (30, 299, 20, True),
        (30, 300, 20, False),
        (29, 40, 20, False),
        (100, 100, 2, True),
        (100, 100, 1, False),
        (50, 100, 2, False),
        (51, 100, 2, True),
        (100, 400, 4, False),
        (101, 400, 4, True),
        (0, 0, 0, False),
    ],
)
def test_share_of_what_is_in_flight(
    own: int, all_in_flight: int, groups: int, is_noisy: bool
) -> None:
    """More than a tenth of all, at least 30, and more than an equal part."""
    assert noisy(own, all_in_flight, 1 / max(groups, 1)) is is_noisy


def test_share_of_the_time_worked() -> None:
    """A group with few but slow messages is noisy as well, unless it is alone."""
    assert noisy(1, 100, 1 / 20, 0.11)
    assert not noisy(1, 100, 1 / 20, 0.1)
    assert not noisy(1, 1, 1.0, 1.0)


def test_chance_makes_no_group_noisy() -> None:
    """Of three that share the time, one has a little more than its part now and then."""
    assert not noisy(2, 5, 1 / 3, 0.4)
    assert noisy(4, 6, 1 / 3, 0.6)


def test_groups_with_nothing_but_delayed_messages_do_not_count() -> None:
    """They want nothing of the consumers."""
    busy, other = GroupFigures(in_flight=40), GroupFigures(delayed=5)
    assert noisy_among({"a": busy, "b": other}) == set()
    assert noisy_among({"a": busy, "b": GroupFigures(waiting=1)}) == {"a"}


def test_weights_and_shares_of_the_list() -> None:
    """Whoever is to have more may have more; long work counts whatever is in flight."""
    figures = {name: GroupFigures(waiting=9, in_flight=n) for name, n in (("a", 60), ("b", 30))}
    assert noisy_among(figures) == {"a"}
    assert noisy_among(figures, weights={"a": 2}) == set()
    few = {name: GroupFigures(waiting=9, in_flight=1) for name in ("a", "b", "c")}
    assert noisy_among(few, {"c": 0.8, "b": 0.2}) == {"c"}


# --- what follows ------------------------------------------------------------------------------


def worked(settings: GroupSettings, seconds: int, consumers: int = 10, **in_flight: int) -> Work:
    """Return what is known after so many seconds with that in flight, of so many consumers."""
    work = Work(settings)
    for second in range(seconds):
        asked = max(0, consumers - sum(in_flight.values()))
        work.note(START_MS + second * 1_000, dict(in_flight.items()), asked)
    return work


def test_turns_of_a_noisy_group_count_for_its_part_of_the_work() -> None:
    """It has six of eight in flight, and three groups are there: that is 2.25 times its part."""
    work = worked(GroupSettings(), 2, long=6, a=1, b=1)
    assert work.costs == {"long": pytest.approx(2.25)}
    assert work.limits == {}
    weighty = worked(GroupSettings(weights={"long": 6}), 2, long=6, a=1, b=1)
    assert weighty.costs == {}


def test_a_limit_leaves_room_for_the_others() -> None:
    """Ten consumers, two in use by others: 2 * sqrt(2) of them are left free beside these."""
    work = worked(LIMITED, 30, long=6, a=1, b=1)
    assert work.limits == {"long": 5}
    assert noisy_limit(10, 2.0, 1.0) == 5
    assert worked(LIMITED, 30, long=6, a=2, b=2).limits == {"long": 3}  # its equal part
    assert worked(LIMITED, 30, long=10).limits == {}
    assert worked(LIMITED, 30, long=5, loud=5).limits == {}


def test_noisy_groups_share_what_is_left() -> None:
    """By weight."""
    weights = {"long": 2}
    settings = GroupSettings(limit_noisy=True, weights=weights)
    work = worked(settings, 30, 81, long=40, loud=36, **{f"q{n}": 1 for n in range(4)})
    assert work.limits == {"long": 48, "loud": 24}


def test_who_keeps_to_its_limit_stays_noisy() -> None:
    """Otherwise it could take all as soon as it has little, and be noisy again."""
    work = worked(LIMITED, 60, long=6, **{f"q{n}": 1 for n in range(4)})
    now_ms = START_MS + 60_000
    (limit,) = work.limits.values()
    for _ in range(300):
        now_ms += 1_000
        work.note(now_ms, {"long": min(limit, 1), **{f"q{n}": 1 for n in range(9)}}, 1)
        limit = work.limits.get("long", 99)
    assert limit == 1
    for _ in range(120):
        now_ms += 1_000
        work.note(now_ms, {f"q{n}": 1 for n in range(9)}, 1)
    assert "long" not in work.limits


def test_consumers_that_are_gone_are_forgotten() -> None:
    """Some minutes later the limit is one for those that are there."""
    work = worked(LIMITED, 30, 70, long=60, a=1, b=1)
    before = work.limits["long"]
    for second in range(30, 300):
        work.note(START_MS + second * 1_000, {"long": 6, "a": 1, "b": 1}, 1)
    assert before > 50
    assert work.limits == {"long": 4}


def test_a_clock_that_is_set_back() -> None:
    """What is in flight is counted again at once, and nothing is divided by nothing."""
    work = worked(LIMITED, 30, long=6, a=1)
    assert work.is_due(START_MS)
    work.note(START_MS, {}, 1)
    work.note(START_MS - 1_000, {"b": 1}, 1)
    assert not work.is_due(START_MS)


def test_seldom_if_much_is_in_flight() -> None:
    """A second, and a thousandth more for each message that was counted."""
    work = Work(GroupSettings())
    assert work.is_due(START_MS)
    work.note(START_MS, {"a": 5_000}, 1)
    assert work.next_ms == START_MS + 6_000


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 50), max_size=3)))
def test_nobody_is_shut_out(moments: list[dict[str, int]]) -> None:
    """Whatever was in flight, each group may have one message, and shares make a whole."""
    work = Work(LIMITED)
    for second, in_flight in enumerate(moments):
        work.note(START_MS + second * 1_700, dict(in_flight.items()), 1)
        assert all(limit >= 1 for limit in work.limits.values())
        assert all(cost >= 1 for cost in work.costs.values())
        assert work.limits.keys() == work.noisy
        assert sum(work.shares().values()) == pytest.approx(1.0 if work.shares() else 0.0)
