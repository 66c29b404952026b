"""What a worker remembers of the messages that come to it again."""

from __future__ import annotations

from leasehold.worker.adapters import Delivery, Fault, Tried
from leasehold.worker.outcomes import Condemned, GivenBackOften, Pause, tried_of
from tests.unit.worker.worker.support import filled


def delivery(count: int, message_id: str = "m") -> Delivery:
    return Delivery(queue="q", message_id=message_id, receipt="r", dequeue_count=count)


def test_pauses_grow_from_nothing_to_seconds() -> None:
    """The first return is at once, short pauses are held, and longer ones are the service's."""
    returns = GivenBackOften()
    pauses = [returns.pause("m", 0.0) for _ in range(10)]
    assert [each.hold_s for each in pauses] == [0, 0.1, 0.2, 0.4, 0, 0, 0, 0, 0, 0]
    assert [each.delay_s for each in pauses] == [None] * 4 + [1, 2, 4, 8, 8, 8]


def test_pauses_are_for_each_message_and_do_not_last() -> None:
    """Another message is given back at once, and so is one that was not heard of for a minute."""
    returns = GivenBackOften()
    for _ in range(5):
        returns.pause("m", 0.0)
    assert returns.pause("other", 0.0) == Pause(0, None)
    assert returns.pause("m", 60.0).delay_s == 2
    assert returns.pause("m", 120.1) == Pause(0, None)


def test_only_so_many_returns_are_remembered() -> None:
    """The oldest is forgotten first."""
    returns = GivenBackOften()
    for number in range(1001):
        returns.pause(str(number), 0.0)
    assert returns.pause("1000", 0.0).hold_s > 0
    assert returns.pause("0", 0.0).hold_s == 0


def test_condemned_message_is_known_again() -> None:
    """It has its reason when it comes again, until it is set aside."""
    condemned, fault = Condemned(), Fault(text="no")
    assert condemned.fault_of(delivery(2)) is None
    condemned.add(delivery(1), fault)
    assert condemned.fault_of(delivery(2)) is fault
    assert condemned.fault_of(delivery(2, "other")) is None
    condemned.forget("m")
    assert condemned.fault_of(delivery(3)) is None


def test_message_that_was_brought_back_is_condemned_no_more() -> None:
    """A count that does not grow says that somebody has given it a fresh start."""
    condemned = Condemned()
    condemned.add(delivery(3), Fault(text="no"))
    assert condemned.fault_of(delivery(1)) is None
    assert condemned.fault_of(delivery(4)) is None


def test_only_so_many_condemned_are_remembered() -> None:
    """The oldest is forgotten first."""
    condemned = Condemned()
    for number in range(1001):
        condemned.add(delivery(1, str(number)), Fault(text="no"))
    assert condemned.fault_of(delivery(2, "0")) is None
    assert condemned.fault_of(delivery(2, "1000")) is not None


def test_client_that_fails_says_nothing() -> None:
    """A fault in a client is no reason not to settle a message."""
    queue = filled("x")
    (found,) = queue.receive(1, visibility_timeout_s=30)
    assert tried_of(queue, found) == Tried(0, 0)
    queue.tried = None  # type: ignore[assignment,method-assign]
    assert tried_of(queue, found) is None
