"""What takes long to commit goes to the thread, however quick the commits before it were."""

from __future__ import annotations

import threading

import pytest

from leasehold.domain import commands as c
from leasehold.domain.command import MAX_BATCH
from leasehold.domain.transactions import Stage
from leasehold.engine.commit_policy import weight_of
from tests.unit.engine.support import World, play, put


def stage(count: int, size: int) -> Stage:
    """Return a command that stages messages."""
    return Stage("a", "t", "p", 0, tuple([put(b"x" * size)] * count))


def test_staged_messages_weigh_by_number_and_by_bytes() -> None:
    """A few large messages are as much work as many small ones."""
    assert [weight_of(stage(*each)) for each in ((0, 0), (10, 100), (100, 655_360))] == [
        1,
        10,
        4_000,
    ]


@pytest.mark.parametrize(("count", "apart"), [(10, False), (MAX_BATCH + 1, True)])
def test_heavy_commands_are_committed_on_the_thread(
    monkeypatch: pytest.MonkeyPatch, count: int, apart: bool
) -> None:
    """The loop goes on while they are written."""

    async def scenario(world: World) -> None:
        threads: list[threading.Thread] = []
        commit = world.store.commit

        def recording() -> bool:
            threads.append(threading.current_thread())
            return commit()

        monkeypatch.setattr(world.store, "commit", recording)
        result = await world.do(stage(count, 1))
        assert not isinstance(result[0], Exception)
        assert [each.name == "commit" for each in threads] == [apart]
        assert await world.do(c.GetQueue("a", "queue"))

    play(scenario)
