"""Which group is next: what is remembered of groups that are not ready."""

from __future__ import annotations

import pytest

from leasehold.domain.groups import Turns
from leasehold.domain.queue_settings import GroupSettings


@pytest.mark.parametrize("fair", [False, True])
def test_a_group_is_looked_at_however_often_its_moment_moved(fair: bool) -> None:
    """Also by the call at which moments that are out of date are forgotten."""
    for moves in (1, 1_001, 1_002, 1_003, 1_004, 2_500):
        turns = Turns(GroupSettings(fair=fair))
        for move in range(moves):
            turns.call("a", 10_000 - move)
        turns.call_due(10_000)
        found = turns.next()
        assert found is not None, moves
        assert found[0] == "a"
