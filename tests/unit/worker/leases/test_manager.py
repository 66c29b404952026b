"""Leases are kept: when renewals are sent, in which batches, and what is told of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MEMORY
from leasehold.worker.adapters.protocol import Delivery, LeaseGone, Outgoing, Saved, Unreachable
from leasehold.worker.leases import (
    HeldState,
    LeaseManager,
    LeaseSettings,
    RenewerStopped,
    UnsafeSettings,
)
from tests.patience import PATIENCE_S
from tests.unit.worker.leases.support import ONE_BY_ONE, START_S, THIRTY, Bench, Queue


def test_a_lease_is_renewed_again_and_again(bench: Bench) -> None:
    """It is renewed at the first tick with no more left than timer and minimal life."""
    held = bench.keep_one()
    bench.time.advance(60)
    assert bench.queue.moments_s == [15, 30, 45, 60]
    assert [sent.visibility_timeout_s for sent in bench.queue.sent] == [30] * 4
    assert held.deadline_s == START_S + 90
    assert held.renewals == 4
    assert bench.complete(held)
    assert bench.queue.depth().total == 0


def test_the_deadline_counts_from_before_the_receive_was_sent(bench: Bench) -> None:
    """Whatever the answer took, the lease may have begun when the request was sent."""
    (delivery,) = bench.receive()
    held = bench.manager.keep(bench.queue, delivery, asked_at_s=START_S - 7)
    assert (held.registered_s, held.deadline_s) == (START_S - 7, START_S + 23)


def test_the_deadline_counts_from_before_a_renewal_was_sent(bench: Bench) -> None:
    """An answer that takes 4 s gives no 4 s more."""
    held = bench.keep_one()
    bench.queue.faults.slow(4, method="renew")
    bench.time.advance(20)
    assert bench.queue.moments_s == [15]
    assert held.deadline_s == START_S + 15 + 30


def test_requests_have_their_time(bench: Bench) -> None:
    """Each is given call_timeout_s."""
    bench.keep_one()
    bench.time.advance(15)
    assert [sent.timeout_s for sent in bench.queue.sent] == [6]


def test_a_receive_with_another_lease(bench: Bench) -> None:
    """What was received for longer is renewed later, by the length that is set."""
    (delivery,) = bench.receive()
    held = bench.manager.keep(bench.queue, delivery, asked_at_s=START_S, lease_s=100)
    bench.time.advance(84)
    assert (bench.queue.sent, held.deadline_s) == ([], START_S + 100)


def test_nothing_is_done_for_what_needs_nothing(bench: Bench) -> None:
    """The timer sleeps through ticks at which nothing is due."""
    bench.keep(10)
    bench.time.advance(14)
    assert bench.told == type(bench.told)()
    assert bench.manager.counts.requests == 0


def test_many_leases_go_in_one_request(bench: Bench) -> None:
    """A batch has as many as the service takes."""
    bench.keep(2500)
    bench.time.advance(15)
    assert sorted(bench.told.batches) == [500, 1000, 1000]
    assert bench.manager.counts.requests == 3
    assert bench.manager.counts.renewals == 2500


def test_each_queue_has_requests_of_its_own(bench: Bench) -> None:
    """Leases of two queues are never in one request."""
    other = Queue(bench.time, "other")
    bench.keep(3)
    bench.keep(2, other)
    bench.time.advance(15)
    assert [len(sent.leases) for sent in bench.queue.sent] == [3]
    assert [len(sent.leases) for sent in other.sent] == [2]


def test_single_requests_go_in_parallel(make_bench: Callable[..., Bench]) -> None:
    """Where a request renews one lease there are several at a time, but not more than allowed."""
    bench = make_bench(parallel=4)
    queue = Queue(bench.time, capabilities=ONE_BY_ONE)
    bench.keep(10, queue)
    gate = queue.faults.hold(10, method="renew")
    bench.time.advance(15)
    assert len(queue.sent) == 4
    gate.open()
    bench.time.settle()
    assert len(queue.sent) == 10
    assert all(len(sent.leases) == 1 for sent in queue.sent)
    assert bench.manager.counts.renewals == 10
    bench.close()


def test_a_queue_that_hangs_leaves_threads_for_others(make_bench: Callable[..., Bench]) -> None:
    """However many requests of one queue hang, another finds a thread."""
    bench = make_bench(parallel=3)
    dead = Queue(bench.time, "dead", capabilities=ONE_BY_ONE)
    bench.keep(20, dead)
    first = dead.faults.hold(method="renew")
    bench.time.advance(20)
    assert len(dead.sent) == 20
    held = bench.keep_one()
    others = dead.faults.hold(20, method="renew")
    bench.time.advance(15)
    assert len(dead.sent) == 20 + 1
    assert held.renewals == 1
    first.open()
    others.open()
    bench.close()


def test_threads_are_started_when_they_are_needed(make_bench: Callable[..., Bench]) -> None:
    """One for what comes one by one; more, up to the bound, for what comes together."""
    bench = make_bench(parallel=3)
    queue = Queue(bench.time, capabilities=ONE_BY_ONE)
    bench.keep_one(queue)
    bench.time.advance(60)
    assert (len(queue.sent), len(bench.threads)) == (4, 1 + 1)
    bench.keep(10, queue)
    bench.time.advance(15)
    assert (len(queue.sent), len(bench.threads)) == (4 + 11, 1 + 3)
    bench.close()
    assert bench.threads == []


def test_queues_take_turns(make_bench: Callable[..., Bench]) -> None:
    """A queue with little to send does not wait for one with much."""
    bench, order = make_bench(parallel=1), list[str]()
    for name, count in (("busy", 5), ("quiet", 1)):
        queue = Queue(bench.time, name, capabilities=ONE_BY_ONE)
        queue.before_renew = lambda name=name: order.append(name)
        bench.keep(count, queue)
    bench.time.advance(15)
    assert sorted(order) == ["busy"] * 5 + ["quiet"]
    assert order.index("quiet") <= 1


def test_renewals_are_spread(make_bench: Callable[..., Bench]) -> None:
    """What was received together is not renewed all at once."""
    bench = make_bench(replace(THIRTY, timer_interval_s=0.5))
    bench.manager._random.random = iter([0.0, 0.5, 0.999] * 100).__next__  # type: ignore[method-assign]
    bench.keep(30)
    bench.time.advance(20)
    assert bench.queue.moments_s == [15, 17.5, 19.5]
    assert [len(sent.leases) for sent in bench.queue.sent] == [10, 10, 10]
    bench.close()


def test_settled_messages_are_not_renewed(bench: Bench) -> None:
    """No tick looks at what is done, and nothing keeps it in memory."""
    for held in bench.keep(3):
        assert bench.complete(held)
    bench.time.advance(60)
    assert bench.queue.sent == []
    assert bench.manager.held == 0
    assert bench.manager._wheel._slots == {}


def test_what_is_let_go_runs_out(bench: Bench) -> None:
    """A worker that fails lets the lease go: it is not renewed, and nobody is alarmed."""
    held = bench.keep_one()
    held.let_go()
    bench.time.advance(31)
    assert held.state is HeldState.ABANDONED
    assert (bench.queue.sent, bench.losses, bench.told.losses) == ([], [], [])
    assert len(bench.queue.receive(1, visibility_timeout_s=30)) == 1


def test_a_save_renews(bench: Bench) -> None:
    """Progress is kept with the newest receipt, gives a new one, and moves the deadline."""
    held = bench.keep_one()
    bench.time.advance(16)
    receipt = held.receipt
    held.save(Saved(stage="cut", state={"frame": 7}, fraction=0.5))
    assert held.receipt != receipt
    assert held.deadline_s == START_S + 16 + 30
    bench.time.advance(20)
    assert bench.queue.moments_s == [15, 35]
    held.let_go()
    bench.time.advance(60)
    (again,) = bench.queue.receive(1, visibility_timeout_s=30)
    assert again.saved == Saved(stage="cut", state={"frame": 7}, fraction=0.5)


@pytest.mark.parametrize("seconds", [0, -1, 1.5, True, "5"])
def test_extensions_are_whole_seconds(bench: Bench, seconds: int) -> None:
    """What services do not take is refused before anything is sent."""
    held = bench.keep_one()
    with pytest.raises(ValueError, match="not a whole number of seconds"):
        held.extend(seconds)
    assert bench.queue.sent == []


def test_an_extension_that_fails_changes_nothing(bench: Bench) -> None:
    """The handler hears of it, and renewals go on as before."""
    held = bench.keep_one()
    bench.queue.faults.fail(method="renew", error=Unreachable("503"))
    with pytest.raises(Unreachable):
        held.extend(600)
    assert held.deadline_s == START_S + 30
    bench.time.advance(15)
    assert held.deadline_s == START_S + 45


def test_an_operator_cancels(bench: Bench) -> None:
    """The work is told to stop; the lease is kept, so that the message can be settled."""
    (held,) = bench.keep()
    bench.queue.cancel(held.delivery.message_id, "wrong customer")
    bench.time.advance(15)
    assert [(loss.kind, loss.text) for loss in bench.losses] == [("cancelled", "wrong customer")]
    assert held.cancelled == "wrong customer"
    held.check()
    bench.time.advance(60)
    assert len(bench.losses) == 1
    assert bench.complete(held)


def test_a_cancelled_message_can_be_lost_when_it_is_settled(bench: Bench) -> None:
    """Whoever was told of the wish is told of the loss, once, and so are the hooks and counts."""
    held = bench.keep_one()
    held.cancel("wrong customer")
    held.begin_settling()
    assert not held.settled(LeaseGone("purged"))
    assert held.retry_lease() is None
    assert [(loss.kind, loss.text) for loss in bench.losses] == [
        ("cancelled", "wrong customer"),
        ("gone", "purged"),
    ]
    assert [kind for _, kind in bench.told.losses] == ["cancelled", "gone"]
    assert bench.manager.counts.losses == {"gone": 1}


def test_a_lease_that_ends_while_it_is_settled_is_told(bench: Bench) -> None:
    """If nobody answers until its end, there is no point in more tries, and everybody hears it."""
    held = bench.keep_one()
    held.cancel("wrong customer")
    held.begin_settling()
    bench.time.advance(30)
    assert not held.settled(Unreachable("503"))
    assert held.retry_lease() is None
    assert [loss.kind for loss in bench.losses] == ["cancelled", "lapsed"]


def test_a_cancelled_message_can_still_be_lost(bench: Bench) -> None:
    """Who was told to stop is also told when the lease is gone."""
    held = bench.keep_one()
    held.cancel("wrong customer")
    held.lose("the session is over")
    held.lose("again")
    assert [loss.kind for loss in bench.losses] == ["cancelled", "session"]
    assert held.state is HeldState.LOST


def test_whoever_asks_late_is_told_at_once(bench: Bench) -> None:
    """A callback for what is lost already is called immediately."""
    held = bench.keep_one()
    held.lose("the session is over")
    late: list[str] = []
    held.on_loss(lambda loss: late.append(loss.text))
    assert late == ["the session is over"]


def test_callbacks_that_raise_are_counted(bench: Bench) -> None:
    """The fault of one callback costs no other message."""
    held, other = bench.keep(2)
    held.on_loss(lambda _: 1 / 0)
    bench.queue.faults.fail(20, method="renew")
    bench.time.advance(30)
    assert [loss.kind for loss in bench.losses] == ["lapsed", "lapsed"]
    assert bench.manager.counts.hook_errors == 1
    assert other.state is HeldState.LOST
    assert bench.manager.failure is None


def test_what_hooks_are_told(bench: Bench) -> None:
    """Renewals with their time, failures, and losses."""
    bench.keep(2)
    bench.queue.faults.slow(2, method="renew")
    bench.time.advance(20)
    assert (bench.told.batches, bench.told.took_s) == ([2], [2])
    bench.queue.faults.fail(50, method="renew", error=Unreachable("503"))
    bench.time.advance(40)
    assert bench.manager.counts.failures == 2 * len(bench.told.failures) > 2
    assert [kind for _, kind in bench.told.losses] == ["lapsed", "lapsed"]
    assert bench.manager.counts.losses == {"lapsed": 2}


def test_a_service_with_other_leases_is_refused(bench: Bench) -> None:
    """A message whose lease could not be renewed is refused at once."""
    queue = Queue(bench.time, capabilities=replace(MEMORY, max_lease_s=20))
    delivery = Delivery(queue="work", message_id="m", receipt="r")
    with pytest.raises(UnsafeSettings, match="1 to 20"):
        bench.manager.keep(queue, delivery, asked_at_s=START_S)
    assert bench.manager.held == 0


def test_closing_renews_nothing_more(bench: Bench) -> None:
    """What is still held runs out, and a settled message is settled all the same."""
    first, second = bench.keep(2)
    bench.close()
    bench.time.jump(20)
    assert bench.queue.sent == []
    assert bench.complete(first)
    bench.time.jump(20)
    with pytest.raises(Exception, match="not renewed in time"):
        second.check()
    with pytest.raises(RenewerStopped):
        bench.keep_one()


def test_closing_waits_for_requests_under_way(bench: Bench) -> None:
    """A request that was sent is answered before the threads are gone."""
    held = bench.keep_one()
    gate = bench.queue.faults.hold(method="renew")
    bench.time.advance(15)
    closing = threading.Thread(target=bench.close, daemon=True)
    closing.start()
    gate.open()
    closing.join()
    assert held.renewals == 1


def test_one_manager_has_one_timer(make_bench: Callable[..., Bench]) -> None:
    """However many messages it holds."""
    before = threading.active_count()
    bench = make_bench()
    bench.keep(1000)
    assert threading.active_count() == before + 1
    bench.time.advance(15)
    assert threading.active_count() == before + 2
    bench.close()


def test_it_says_how_long_leases_are(bench: Bench) -> None:
    """Receives ask for what renewals give."""
    assert bench.manager.lease_s() == 30
    assert bench.manager.lease_s("video") == 30


def test_short_leases_of_a_machine_that_runs() -> None:
    """With the time of the machine as well: a lease of 1 s is kept over its end."""
    manager = LeaseManager(LeaseSettings.of(1))
    time = ManualTime(START_S)
    queue = Queue(time)
    renewed = threading.Event()
    queue.before_renew = renewed.set
    queue.put([Outgoing(body="x")])
    (delivery,) = queue.receive(1, visibility_timeout_s=1)
    held = manager.keep(queue, delivery, asked_at_s=manager._time.monotonic_s())
    assert renewed.wait(PATIENCE_S)
    manager.close()
    assert held.renewals == 1
