"""What goes wrong with leases, case by case, and what the manager does about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from leasehold.testing.memory_queue import MEMORY
from leasehold.worker.adapters.protocol import (
    BodyTooLarge,
    Denied,
    Lease,
    LeaseGone,
    Outgoing,
    QueueMissing,
    Unreachable,
)
from leasehold.worker.leases import AlreadySettled, HeldState, LeaseHooks, LeaseLost
from leasehold.worker.leases.held import Flight
from leasehold.worker.leases.manager import Batch
from tests.unit.worker.leases.support import START_S, Aside, Bench, Queue


def test_a_renewal_fails_on_the_network(bench: Bench) -> None:
    """The deadline stays, and the same receipt is tried again soon: a lenient server takes it."""
    held = bench.keep_one()
    receipt = held.receipt
    bench.queue.faults.fail(2, method="renew", error=Unreachable("timed out"))
    bench.time.advance(15)
    assert (held.deadline_s, held.receipt, held.is_ambiguous) == (START_S + 30, receipt, True)
    bench.time.advance(5)
    assert bench.queue.moments_s == [15, 17.5, 20]
    assert {sent.leases for sent in bench.queue.sent} == {(held.delivery.lease,)}
    assert (held.deadline_s, held.is_ambiguous) == (START_S + 50, False)
    assert (bench.losses, held.state) == ([], HeldState.HELD)


def test_a_renewal_that_was_surely_not_sent(bench: Bench) -> None:
    """Without doubt about the receipt nothing is ambiguous."""
    held = bench.keep_one()
    bench.queue.faults.fail(method="renew", error=Unreachable("no route", outcome_unknown=False))
    bench.time.advance(15)
    assert not held.is_ambiguous


def test_a_renewal_whose_answer_is_lost(bench: Bench) -> None:
    """A strict server has forgotten the old receipt: the lease is lost, and comes back later."""
    held = bench.keep_one()
    bench.queue.faults.fail(method="renew", carried_out=True)
    bench.time.advance(18)
    assert held.state is HeldState.LOST
    assert [loss.kind for loss in bench.losses] == ["gone"]
    assert bench.queue.receive(1, visibility_timeout_s=30) == []
    bench.time.advance(27)
    assert len(bench.queue.receive(1, visibility_timeout_s=30)) == 1


def test_the_network_stays_away(bench: Bench) -> None:
    """Renewals are tried until the deadline, and at the deadline the work is told."""
    held = bench.keep_one()
    bench.queue.faults.fail(100, method="renew", error=Unreachable("no route"))
    bench.time.advance(29)
    assert held.state is HeldState.HELD
    bench.time.advance(1)
    assert [loss.kind for loss in bench.losses] == ["lapsed"]
    sent = len(bench.queue.sent)
    bench.time.advance(30)
    assert len(bench.queue.sent) == sent
    assert sent > 3


@pytest.mark.parametrize("error", [LeaseGone("gone"), QueueMissing("deleted")])
def test_the_message_is_gone_while_it_is_worked_on(bench: Bench, error: Exception) -> None:
    """The work is told at once, and may neither go on nor settle."""
    held, other = bench.keep(2)
    bench.queue.faults.refuse(held.delivery.message_id, error)  # type: ignore[arg-type]
    bench.time.advance(15)
    assert [loss.kind for loss in bench.losses] == ["gone"]
    for call in (held.check, held.begin_settling, lambda: held.extend(60)):
        with pytest.raises(LeaseLost, match=str(error)):
            call()
    assert other.renewals == 1


@pytest.mark.parametrize("error", [Denied("403 AccessDenied")])
def test_no_lease_can_be_kept(
    bench: Bench, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """What is refused for good is said loudly, and not asked for again."""
    held = bench.keep_one()
    bench.queue.faults.fail(method="renew", error=error)  # type: ignore[arg-type]
    bench.time.advance(29)
    assert held.state is HeldState.DENIED
    assert [(loss.kind, loss.text) for loss in bench.losses] == [("denied", str(error))]
    assert len(bench.queue.sent) == 1
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "403 AccessDenied" in record.getMessage()
    with pytest.raises(LeaseLost):
        held.begin_settling()


def test_completing_waits_for_a_renewal_in_flight(bench: Bench) -> None:
    """It is completed with the receipt that the renewal brings; no further one is sent."""
    held = bench.keep_one()
    gate = bench.queue.faults.hold(method="renew", after=True)
    bench.time.advance(15)
    settling = Aside(held.begin_settling)
    bench.time.settle(waiting=3)
    assert not settling.is_over
    assert held.state is HeldState.SETTLING
    gate.open()
    lease = settling.result()
    assert lease != held.delivery.lease
    assert bench.queue.complete([lease]) == [None]
    assert held.settled(None)
    bench.time.advance(60)
    assert len(bench.queue.sent) == 1


def test_completing_does_not_wait_for_ever(bench: Bench) -> None:
    """After call_timeout_s the known receipt is tried; if that is gone, the new one, once."""
    held = bench.keep_one()
    gate = bench.queue.faults.hold(method="renew", after=True)
    bench.time.advance(15)
    settling = Aside(held.begin_settling)
    bench.time.settle(waiting=3)
    bench.time.advance(5.9)
    assert not settling.is_over
    bench.time.advance(0.1)
    assert settling.result() == held.delivery.lease
    (gone,) = bench.queue.complete([held.delivery.lease])
    assert isinstance(gone, LeaseGone)
    assert not held.settled(gone, completing=True)
    retrying = Aside(held.retry_lease)
    bench.time.settle(waiting=3)
    gate.open()
    lease = retrying.result()
    assert bench.queue.complete([lease]) == [None]
    assert held.settled(None, completing=True)
    assert not bench.manager.was_done("work", held.delivery.message_id)


def test_there_is_one_more_try_only(bench: Bench) -> None:
    """If the newest receipt is gone as well, the lease is."""
    held = bench.keep_one()
    gate = bench.queue.faults.hold(method="renew", after=True)
    bench.time.advance(15)
    settling = Aside(held.begin_settling)
    bench.time.settle(waiting=3)
    bench.time.advance(6)
    settling.result()
    gate.open()
    bench.time.settle()
    assert not held.settled(LeaseGone("gone"))
    assert held.retry_lease() is not None
    assert not held.settled(LeaseGone("gone again"))
    assert held.retry_lease() is None
    assert held.state is HeldState.LOST


def test_no_second_try_where_no_renewal_was_in_flight(bench: Bench) -> None:
    """The receipt was the newest one: gone is gone."""
    held = bench.keep_one()
    held.begin_settling()
    assert not held.settled(LeaseGone("gone"))
    assert (held.state, held.retry_lease()) == (HeldState.LOST, None)


def test_a_completion_without_an_answer_is_tried_again(bench: Bench) -> None:
    """With the same lease, for as long as it lasts."""
    held = bench.keep_one()
    lease = held.begin_settling()
    for _ in range(3):
        assert not held.settled(Unreachable("503"))
        assert held.retry_lease() == lease
    bench.time.advance(30)
    assert not held.settled(Unreachable("503"))
    assert held.retry_lease() is None
    assert held.state is HeldState.LOST


@pytest.mark.parametrize("error", [Denied("403"), BodyTooLarge("the copy is too large")])
def test_what_is_refused_can_be_settled_otherwise(bench: Bench, error: Exception) -> None:
    """It makes no sense to repeat it; but a message that cannot be buried can be given back."""
    held = bench.keep_one()
    held.begin_settling()
    assert not held.settled(error)  # type: ignore[arg-type]
    assert held.retry_lease() is None
    assert held.settled(None)
    assert held.state is HeldState.DONE


def test_the_new_receipt_is_lost_for_good(bench: Bench) -> None:
    """What is done is remembered: when it comes again it is completed without work."""
    held = bench.keep_one()
    bench.queue.faults.fail(method="renew", carried_out=True)
    bench.time.advance(15)
    (result,) = bench.queue.complete([held.begin_settling()])
    assert isinstance(result, LeaseGone)
    assert not held.settled(result, completing=True)
    assert held.retry_lease() is None
    bench.time.advance(31)
    (again,) = bench.queue.receive(1, visibility_timeout_s=30)
    assert bench.manager.was_done(again.queue, again.message_id)
    held = bench.manager.keep(bench.queue, again, asked_at_s=bench.time.monotonic_s())
    assert bench.complete(held)
    assert not bench.manager.was_done(again.queue, again.message_id)


def test_what_was_given_back_is_not_taken_for_done(bench: Bench) -> None:
    """A release that cannot be confirmed must not cost the message its work."""
    held = bench.keep_one()
    held.begin_settling()
    assert not held.settled(Unreachable("503"))
    assert not bench.manager.was_done("work", held.delivery.message_id)


def test_done_messages_are_forgotten_in_the_end(bench: Bench) -> None:
    """They are remembered for longer than a lease, and not for ever."""
    held = bench.keep_one()
    held.begin_settling()
    held.settled(Unreachable("503"), completing=True)
    bench.time.jump(599)
    assert bench.manager.was_done("work", held.delivery.message_id)
    assert not bench.manager.was_done("other", held.delivery.message_id)
    bench.time.jump(2)
    assert not bench.manager.was_done("work", held.delivery.message_id)


def test_the_process_is_killed(bench: Bench) -> None:
    """Nothing is left to do: the message comes back within a lease of its last renewal."""
    bench.keep_one()
    bench.time.advance(46)
    assert bench.queue.moments_s == [15, 30, 45]
    bench.close()
    bench.time.jump(28)
    assert bench.queue.receive(1, visibility_timeout_s=30) == []
    bench.time.jump(1)
    assert len(bench.queue.receive(1, visibility_timeout_s=30)) == 1


def test_the_worker_hangs(bench: Bench) -> None:
    """After message_timeout_s nothing is renewed; a late end finds out and deletes nothing."""
    held = bench.keep_one()
    bench.time.advance(119)
    assert bench.losses == []
    bench.time.advance(1)
    assert [loss.kind for loss in bench.losses] == ["timed out"]
    assert held.state is HeldState.ABANDONED
    renewed = len(bench.queue.sent)
    bench.time.advance(30)
    assert len(bench.queue.sent) == renewed
    assert len(bench.queue.receive(1, visibility_timeout_s=30)) == 1
    with pytest.raises(LeaseLost, match="longer than message_timeout_s, 120 s"):
        held.begin_settling()


def test_what_is_abandoned_is_not_made_visible_early(bench: Bench) -> None:
    """The work may still go on for a while: the lease runs out by itself."""
    bench.keep_one()
    bench.time.advance(120)
    bench.time.advance(14)
    assert bench.queue.receive(1, visibility_timeout_s=30) == []
    bench.time.advance(1)
    assert len(bench.queue.receive(1, visibility_timeout_s=30)) == 1


def test_the_manager_stalls(bench: Bench) -> None:
    """After a stall the lost leases are lost, the others renewed, and the lag is told."""
    first = bench.keep_one()
    bench.time.advance(10)
    second = bench.keep_one()
    bench.time.jump(23)
    bench.time.settle()
    assert first.state is HeldState.LOST
    assert [sent.leases for sent in bench.queue.sent] == [(second.delivery.lease,)]
    assert second.state is HeldState.HELD
    assert bench.manager.lag_s == bench.manager.worst_lag_s == 18
    assert (bench.told.lags_s, bench.manager.counts.late_ticks) == ([18], 1)
    bench.time.advance(30)
    assert (bench.manager.lag_s, bench.manager.worst_lag_s) == (0, 18)


def test_stalls_without_anybody_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so once, and again only after a minute without any."""
    bench = Bench()
    bench.manager._hooks = LeaseHooks()
    bench.keep_one()
    for _ in range(3):
        bench.time.jump(19)
        bench.time.settle()
    said = [each for each in caplog.messages if "s late" in each]
    assert (len(said), bench.manager.counts.late_ticks) == (1, 3)
    bench.time.advance(61)
    bench.time.jump(19)
    bench.time.settle()
    bench.close()
    assert len([each for each in caplog.messages if "s late" in each]) == 2


def test_a_stall_longer_than_the_lease(bench: Bench) -> None:
    """No request is sent with a receipt that is somebody else's by now."""
    held = bench.keep_one()
    bench.time.jump(60)
    (other,) = bench.queue.receive(1, visibility_timeout_s=30)
    bench.time.settle()
    assert bench.queue.sent == []
    assert [loss.kind for loss in bench.losses] == ["lapsed"]
    with pytest.raises(LeaseLost):
        held.begin_settling()
    assert bench.queue.complete([other.lease]) == [None]


def test_a_stall_between_queueing_and_sending(make_bench: Callable[..., Bench]) -> None:
    """A renewal that had to wait for a thread until its lease was over is not sent."""
    bench = make_bench(parallel=1)
    first = bench.keep_one()
    gate = bench.queue.faults.hold(method="renew")
    bench.time.advance(5)
    second = bench.keep_one()
    bench.time.advance(25)
    assert len(bench.queue.sent) == 1
    bench.time.jump(10)
    gate.open()
    bench.time.settle()
    assert len(bench.queue.sent) == 1
    assert (first.state, second.state) == (HeldState.LOST, HeldState.LOST)
    bench.close()


def test_a_thread_that_sends_looks_at_the_clock_itself(bench: Bench) -> None:
    """Even if the timer has not come to see it, nothing is sent after the deadline."""
    held = bench.keep_one()
    held.flight = Flight.QUEUED
    bench.time._now_s += 30
    bench.manager._renew(Batch(bench.queue, held.settings, [held], 30))
    assert bench.queue.sent == []
    assert held.flight is Flight.NONE
    bench.time.jump(0)
    bench.time.settle()
    assert [loss.kind for loss in bench.losses] == ["lapsed"]


def test_wall_clocks_say_nothing(bench: Bench) -> None:
    """Times of the service, however wrong, move no deadline."""
    (delivery,) = bench.receive()
    wrong = replace(delivery, inserted_at_ms=1, expires_at_ms=2)
    held = bench.manager.keep(bench.queue, wrong, asked_at_s=START_S)
    bench.time.advance(45)
    assert bench.queue.moments_s == [15, 30, 45]
    assert held.deadline_s == START_S + 75


def test_messages_wait_in_a_buffer(bench: Bench) -> None:
    """All that one receive brought is kept, and what is lost is known before it is begun."""
    helds = bench.keep(16)
    bench.queue.faults.refuse(helds[15].delivery.message_id, LeaseGone("purged"))
    bench.time.advance(100)
    assert [held.state for held in helds] == [HeldState.HELD] * 15 + [HeldState.LOST]
    with pytest.raises(LeaseLost):
        helds[15].check()
    assert all(bench.complete(held) for held in helds[:15])


def test_shutting_down(bench: Bench) -> None:
    """Leases are kept until the work ends; what is settled then does not need the timer."""
    held = bench.keep_one()
    bench.time.advance(100)
    lease = held.begin_settling()
    bench.close()
    assert bench.queue.complete([lease]) == [None]
    assert held.settled(None)


def test_the_longest_lease_of_the_service(bench: Bench) -> None:
    """An extension is cut to it."""
    queue = Queue(bench.time, capabilities=replace(MEMORY, max_lease_s=43_200))
    held = bench.keep_one(queue)
    held.extend(100_000)
    assert [sent.visibility_timeout_s for sent in queue.sent] == [43_200]
    assert held.deadline_s == START_S + 43_200


def test_the_message_expires_while_it_is_worked_on(bench: Bench) -> None:
    """A message at the end of its life is not there any more: the work is told."""
    bench.queue.put([Outgoing(body="short", time_to_live_s=40)])
    (delivery,) = bench.queue.receive(1, visibility_timeout_s=30)
    held = bench.manager.keep(bench.queue, delivery, asked_at_s=START_S)
    bench.time.advance(45)
    assert held.state is HeldState.LOST


def test_a_client_with_a_fault(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """An exception that no client should let through is tried again, and told with its trace."""
    held = bench.keep_one()
    faults = iter([KeyError("PopReceipt"), TypeError("None")])

    def fail() -> None:
        for fault in faults:
            raise fault

    bench.queue.before_renew = fail
    bench.time.advance(21)
    assert held.renewals == 1
    assert [str(error) for error in bench.told.failures] == [
        "KeyError: 'PopReceipt'",
        "TypeError: None",
    ]
    assert [record.exc_info is not None for record in caplog.records if record.levelno > 30] == [
        True,
        True,
    ]


def test_a_client_that_answers_too_little(bench: Bench) -> None:
    """Answers that cannot be told apart are no answers."""
    bench.keep(2)
    answers = iter([[], ["one"]])
    original = bench.queue.renew
    bench.queue.renew = lambda *_, **__: next(answers)  # type: ignore[assignment,method-assign]
    bench.time.advance(15)
    bench.queue.renew = original  # type: ignore[method-assign]
    bench.time.advance(3)
    assert str(bench.told.failures[0]) == "0 answers to 2 renewals"
    assert bench.manager.counts.renewals >= 1


def test_settling_twice(bench: Bench) -> None:
    """Only one caller gets to settle."""
    held = bench.keep_one()
    held.begin_settling()
    with pytest.raises(AlreadySettled):
        held.begin_settling()
    assert held.settled(None)
    with pytest.raises(AlreadySettled):
        held.check()
    assert not held.settled(None)


def test_settling_what_has_lapsed(bench: Bench) -> None:
    """The deadline alone forbids it, whatever the timer has come to."""
    held = bench.keep_one()
    bench.time.jump(30)
    with pytest.raises(LeaseLost, match="not renewed in time"):
        held.begin_settling()
    assert bench.losses[0].kind == "lapsed"


def test_a_lease_that_ends_while_a_renewal_is_waited_for(make_bench: Callable[..., Bench]) -> None:
    """If the wait has used up the lease, nothing is settled."""
    bench = make_bench()
    held = bench.keep_one()
    bench.queue.faults.fail(4, method="renew")
    bench.time.advance(24)
    gate = bench.queue.faults.hold(method="renew")
    bench.time.advance(1.5)
    settling = Aside(held.begin_settling)
    bench.time.settle(waiting=3)
    bench.time.advance(6)
    with pytest.raises(LeaseLost, match="not renewed in time"):
        settling.result()
    gate.open()
    bench.close()


def test_receipts_do_not_show(make_bench: Callable[..., Bench]) -> None:
    """Neither a held message nor its loss shows the receipt."""
    bench = make_bench()
    held = bench.keep_one()
    assert held.receipt not in repr(held)
    assert held.receipt not in repr(Lease("m", held.receipt))
