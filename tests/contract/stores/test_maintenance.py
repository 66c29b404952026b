"""Contract: expiry and the sweeps."""

from __future__ import annotations

from leasehold.domain import commands as c
from leasehold.domain.errors import MessageNotFound
from leasehold.domain.model import Detail
from leasehold.domain.queue_settings import GroupOrder, GroupSettings

from .conftest import ACCOUNT, QUEUE, Asker


def test_expired_messages_stop_counting_once_retired(asker: Asker) -> None:
    """The sweep takes what has expired, no more than asked at a time, and counts it."""
    for _ in range(5):
        asker.put(time_to_live_s=10)
    asker.put(time_to_live_s=11)
    asker.clock.advance(s=10)
    assert asker.ask(c.RetireExpired(3)) == c.Swept(3)
    assert asker.count() == 3
    assert asker.ask(c.RetireExpired(3)) == c.Swept(2)
    assert asker.ask(c.RetireExpired(3)) == c.Swept(0)
    assert asker.count() == 1


def test_retired_message_never_comes_back_even_if_the_clock_does(asker: Asker) -> None:
    """What the sweep has set aside stays expired when the clock is set back."""
    asker.put(time_to_live_s=10)
    lease = asker.receive_one(lease_s=1)
    asker.clock.advance(s=10)
    asker.ask(c.RetireExpired(10))
    asker.clock.advance(s=-9)
    assert asker.peek() == ()
    assert asker.receive() == ()
    assert isinstance(asker.complete(lease), MessageNotFound)
    assert isinstance(asker.renew(lease, 1), MessageNotFound)
    assert asker.count() == 0


def test_sweep_goes_on_after_the_clock_was_set_back(asker: Asker) -> None:
    """Messages that expire before a time once reached are swept all the same."""
    asker.clock.advance(s=1000)
    asker.ask(c.RetireExpired(10))
    asker.clock.advance(s=-900)
    asker.put(time_to_live_s=10)
    asker.clock.advance(s=11)
    assert asker.ask(c.RetireExpired(10)) == c.Swept(1)


def test_expired_message_not_yet_swept_is_visible_again_if_the_clock_goes_back(
    asker: Asker,
) -> None:
    """Nothing is lost by a clock that was wrong for a moment."""
    asker.put(time_to_live_s=10)
    asker.clock.advance(s=10)
    assert asker.peek() == ()
    asker.clock.advance(s=-1)
    assert len(asker.peek()) == 1


def test_retired_rows_are_removed_after_their_grace(asker: Asker) -> None:
    """Removal takes retired rows that expired before the moment given, in slices."""
    for ttl in (10, 10, 20):
        asker.put(time_to_live_s=ttl)
    expiry_ms = asker.clock.now_ms() + 10_000
    asker.clock.advance(s=30)
    asker.ask(c.RetireExpired(10))
    assert asker.ask(c.RemoveRetired(expiry_ms, 10)) == c.Swept(0)
    assert asker.ask(c.RemoveRetired(expiry_ms + 1, 1)) == c.Swept(1)
    assert asker.ask(c.RemoveRetired(expiry_ms + 1, 10)) == c.Swept(1)
    assert asker.ask(c.RemoveRetired(expiry_ms + 60_000, 10)) == c.Swept(1)


def test_removal_leaves_expired_rows_that_are_not_retired(asker: Asker) -> None:
    """Only the sweep decides that a message has expired for good."""
    asker.put(time_to_live_s=10)
    asker.clock.advance(s=60)
    assert asker.ask(c.RemoveRetired(asker.clock.now_ms(), 10)) == c.Swept(0)
    asker.clock.advance(s=-55)
    assert len(asker.peek()) == 1


def test_rows_of_cleared_and_deleted_queues_are_reaped_in_slices(asker: Asker) -> None:
    """Reaping frees what a clear and a delete left behind, and nothing else."""
    asker.create("other")
    for _ in range(5):
        asker.put()
        asker.put(queue="other")
    asker.ask(c.Clear(ACCOUNT, QUEUE))
    asker.ask(c.DeleteQueue(ACCOUNT, "other"))
    asker.put("kept")
    assert asker.ask(c.ReapDropped(7)) == c.Swept(7)
    assert asker.ask(c.ReapDropped(7)) == c.Swept(3)
    assert asker.ask(c.ReapDropped(7)) == c.Swept(0)
    assert asker.bodies() == [b"kept"]


def test_reaping_takes_no_row_that_came_between(asker: Asker) -> None:
    """Whether the rows that were dropped follow each other or not."""
    asker.create("other")
    for place in range(9):
        asker.put(str(place), queue=QUEUE if place in {4, 6} else "other")
    asker.ask(c.DeleteQueue(ACCOUNT, "other"))
    assert [asker.ask(c.ReapDropped(4)).count for _ in range(3)] == [4, 3, 0]
    assert asker.bodies() == [b"4", b"6"]


def test_sweep_passes_over_rows_of_dropped_queues(asker: Asker) -> None:
    """Expired rows that a clear has dropped count nowhere."""
    for _ in range(4):
        asker.put(time_to_live_s=10)
    asker.ask(c.Clear(ACCOUNT, QUEUE))
    asker.put(time_to_live_s=10)
    asker.clock.advance(s=10)
    assert asker.ask(c.RetireExpired(2)) == c.Swept(1)
    assert asker.ask(c.RetireExpired(2)) == c.Swept(0)
    assert asker.count() == 0
    assert asker.ask(c.ReapDropped(10)) == c.Swept(4)


def test_what_was_visible_is_again_when_the_clock_was_set_back(asker: Asker) -> None:
    """But not what is delayed or leased; the rest is in its order, before all that comes later."""
    asker.put("leased")
    asker.receive_one(lease_s=30)
    asker.put("delayed", delay_s=5)
    asker.put("returned")
    asker.release(asker.receive_one(lease_s=30))
    for number in range(3):
        asker.clock.advance(ms=1)
        asker.put(f"put {number}")
    latest_ms = asker.clock.now_ms()
    asker.clock.advance(s=-3600)
    start_ms = asker.clock.now_ms()
    assert asker.peek() == ()
    assert asker.ask(c.CatchUp(start_ms, latest_ms, 3)) == c.Swept(3)
    asker.put("later")
    assert asker.ask(c.CatchUp(start_ms, latest_ms, 3)) == c.Swept(1)
    assert asker.ask(c.CatchUp(start_ms, latest_ms, 3)) == c.Swept(0)
    counts = asker.counts()
    assert (counts.visible, counts.delayed, counts.leased) == (5, 1, 1)
    assert asker.received() == [b"returned", b"put 0", b"put 1", b"put 2", b"later"]
    asker.clock.advance(s=3600 + 30)
    assert min(asker.received()) == b"delayed"


def test_groups_keep_their_order_when_the_clock_was_set_back(asker: Asker) -> None:
    """A group's messages of before the start come before those of after it."""
    asker.govern(groups=GroupSettings(order=GroupOrder.FIFO))
    group = Detail(group_id="a")
    for number in range(3):
        asker.clock.advance(ms=1)
        asker.put(f"{number}", detail=group)
    latest_ms = asker.clock.now_ms()
    asker.clock.advance(s=-3600)
    start_ms = asker.clock.now_ms()
    asker.put("later", detail=group)
    asker.ask(c.CatchUp(start_ms, latest_ms, 10))
    assert asker.received() == [b"0", b"1", b"2", b"later"]


def test_what_comes_after_the_start_stays_as_it_is(asker: Asker) -> None:
    """Also what another server has put, whose time is a little ahead."""
    start_ms = asker.clock.now_ms()
    for number in range(3):
        asker.clock.advance(ms=600)
        asker.put(f"{number}")
    latest_ms = asker.clock.now_ms()
    for back_ms in (0, 1_000):
        asker.clock.advance(ms=-back_ms)
        assert asker.ask(c.CatchUp(start_ms, latest_ms + 60_000, 10)) == c.Swept(0)
