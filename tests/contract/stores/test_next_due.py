"""Contract: when a receive may next get something."""

from __future__ import annotations

import pytest

from leasehold.domain import admin as o
from leasehold.domain.errors import QueueNotFound
from leasehold.domain.model import NEVER_MS

from .conftest import ACCOUNT, Asker


def test_an_empty_queue_has_nothing_due(asker: Asker) -> None:
    """Not ever, as far as is known."""
    assert asker.due_ms() is None
    assert isinstance(asker.ask(o.NextDue(ACCOUNT, "no")), QueueNotFound)


def test_a_visible_message_is_due_now(asker: Asker) -> None:
    """However long it has been visible."""
    asker.put()
    assert asker.due_ms() == 0
    asker.clock.advance(s=100)
    assert asker.due_ms() == 0


@pytest.mark.parametrize("priority", [8, 1, 16])
def test_the_earliest_that_becomes_visible_is_due(asker: Asker, priority: int) -> None:
    """Delayed, leased and deferred messages are due at their time, of whatever priority."""
    asker.put(delay_s=60)
    assert asker.due_ms() == 60_000
    asker.put(priority=priority)
    lease = asker.receive_one(lease_s=30)
    assert asker.due_ms() == 30_000
    asker.clock.advance(ms=1)
    assert asker.due_ms() == 29_999
    lease = asker.renew(lease, 40)
    assert asker.due_ms() == 40_000
    asker.release(lease, delay_s=20)
    assert asker.due_ms() == 20_000
    asker.clock.advance(s=20)
    assert asker.due_ms() == 0


def test_what_expires_before_it_is_visible_is_never_due(asker: Asker) -> None:
    """A lease may outlast its message; then nothing comes of it."""
    asker.put(time_to_live_s=10)
    asker.receive(lease_s=60)
    assert asker.due_ms() is None
    asker.put(delay_s=90)
    assert asker.due_ms() == 90_000


def test_what_has_expired_is_not_due(asker: Asker) -> None:
    """Swept or not."""
    asker.put(time_to_live_s=10)
    asker.clock.advance(s=10)
    assert asker.due_ms() is None


def test_a_pause_puts_it_off(asker: Asker) -> None:
    """Nothing is due before its end, and nothing at all of an empty queue."""
    until_ms = asker.clock.now_ms() + 45_000
    asker.govern(paused_until_ms=until_ms)
    assert asker.due_ms() is None
    asker.put()
    assert asker.due_ms() == 45_000
    asker.govern(paused_until_ms=NEVER_MS)
    assert asker.ask(o.NextDue(ACCOUNT, "videos")).at_ms == NEVER_MS
    asker.govern()
    assert asker.due_ms() == 0


def test_a_rate_puts_it_off(asker: Asker) -> None:
    """The answer is the moment at which a receive is allowed one, and then gets it."""
    asker.govern(max_receives_per_s=0.5)
    for _ in range(2):
        asker.put()
    assert asker.due_ms() == 0
    assert len(asker.receive(2)) == 1
    assert asker.due_ms() == 2_000
    asker.clock.advance(ms=1_999)
    assert asker.receive() == ()
    assert asker.due_ms() == 1
    asker.clock.advance(ms=1)
    assert len(asker.receive()) == 1


def test_what_is_put_back_is_due(asker: Asker) -> None:
    """Ending a lease or amending a delay changes the answer at once."""
    put = asker.put(delay_s=600)
    asker.amend(put, delay_s=5)
    assert asker.due_ms() == 5_000
    asker.clock.advance(s=5)
    lease = asker.receive_one(lease_s=3600)
    asker.end_lease(lease)
    assert asker.due_ms() == 0
    asker.remove(put)
    assert asker.due_ms() is None


def test_a_clock_set_back_finds_what_was_visible(asker: Asker) -> None:
    """A message put later than now becomes visible at its own time."""
    asker.clock.advance(s=100)
    asker.put()
    assert asker.due_ms() == 0
    asker.clock.advance(s=-40)
    assert asker.due_ms() == 40_000
