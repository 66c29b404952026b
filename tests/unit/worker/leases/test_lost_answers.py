"""Renewals that were carried out, and whose answers nobody has heard."""

from __future__ import annotations

import pytest

from leasehold.worker.adapters.protocol import Lease, LeaseGone, Renewed, Saved, Unreachable
from leasehold.worker.leases import Held, HeldState, LeaseLost
from tests.unit.worker.leases.support import START_S, Bench, Queue


@pytest.fixture
def lenient(bench: Bench) -> Queue:
    """A queue that tells the newest receipt to who has the one before, as Leasehold does."""
    return Queue(bench.time, strict=False)


def lose_an_answer(bench: Bench, queue: Queue) -> Held:
    """Keep a message whose first renewal is carried out, and not answered."""
    held = bench.keep_one(queue)
    queue.faults.fail(method="renew", carried_out=True)
    bench.time.advance(15)
    assert held.is_ambiguous
    assert held.receipt == held.delivery.receipt
    return held


def test_the_next_renewal_finds_the_receipt(bench: Bench, lenient: Queue) -> None:
    """Nothing is lost, however many answers are, and the message is completed."""
    held = bench.keep_one(lenient)
    lenient.faults.fail(3, method="renew", carried_out=True)
    bench.time.advance(60)
    assert (held.state, held.is_ambiguous, bench.losses) == (HeldState.HELD, False, [])
    assert held.receipt != held.delivery.receipt
    (result,) = lenient.complete([held.begin_settling()])
    assert result is None


def test_a_completion_finds_the_receipt(bench: Bench, lenient: Queue) -> None:
    """It is refused for its old receipt; one renewal tells the new one, and it is tried again."""
    held = lose_an_answer(bench, lenient)
    lease = held.begin_settling()
    (refused,) = lenient.complete([lease])
    assert isinstance(refused, LeaseGone)
    assert not held.settled(refused, completing=True)
    newest = held.retry_lease()
    assert newest is not None
    assert newest != lease
    assert lenient.complete([newest]) == [None]
    assert held.settled(None, completing=True)
    assert bench.losses == []


@pytest.mark.parametrize("strict", [True, False])
def test_a_message_that_is_gone_is_lost_after_one_question(bench: Bench, *, strict: bool) -> None:
    """If the message is gone, or the service repeats nothing, there is no second question."""
    queue = Queue(bench.time, strict=strict)
    held = lose_an_answer(bench, queue)
    lease = held.begin_settling()
    if not strict:
        (newest,) = queue.renew([lease], 30)
        assert isinstance(newest, Renewed)
        assert queue.complete([Lease(lease.message_id, newest.receipt)]) == [None]
    sent = len(queue.sent)
    assert not held.settled(LeaseGone("the receipt is not the newest one"))
    assert held.retry_lease() is None
    assert len(queue.sent) == sent + 1
    assert [loss.kind for loss in bench.losses] == ["gone"]
    assert held.state is HeldState.LOST


def test_nobody_answers_the_question(bench: Bench, lenient: Queue) -> None:
    """Then it is lost, and not asked for again and again."""
    held = lose_an_answer(bench, lenient)
    held.begin_settling()
    lenient.faults.fail(method="renew")
    assert not held.settled(LeaseGone("the receipt is not the newest one"))
    assert held.retry_lease() is None
    assert [loss.kind for loss in bench.losses] == ["gone"]


def test_a_save_finds_the_receipt(bench: Bench, lenient: Queue) -> None:
    """Progress can be saved although the last renewal was not answered."""
    held = lose_an_answer(bench, lenient)
    held.save(Saved(stage="encode"))
    assert (held.is_ambiguous, bench.losses) == (False, [])
    assert held.deadline_s == START_S + 45
    assert lenient.complete([held.begin_settling()]) == [None]


def test_a_save_that_was_not_answered(bench: Bench, lenient: Queue) -> None:
    """The next one is carried out like any other; the lease is not lost for it."""
    held = bench.keep_one(lenient)
    lenient.faults.fail(method="save", carried_out=True)
    with pytest.raises(Unreachable):
        held.save(Saved(stage="encode"))
    held.save(Saved(stage="publish"))
    bench.time.advance(60)
    assert bench.losses == []
    assert lenient.complete([held.begin_settling()]) == [None]


def test_a_save_while_nobody_answers(bench: Bench, lenient: Queue) -> None:
    """The work may go on: the receipt is asked for again with the next renewal."""
    held = lose_an_answer(bench, lenient)
    lenient.faults.fail(method="renew")
    with pytest.raises(Unreachable):
        held.save(Saved(stage="encode"))
    assert lenient.calls["save"] == 0
    bench.time.advance(10)
    assert (held.state, held.is_ambiguous) == (HeldState.HELD, False)


def test_a_save_on_a_service_that_repeats_nothing(bench: Bench) -> None:
    """It is told that the lease is lost, and nothing is saved."""
    held = lose_an_answer(bench, bench.queue)
    with pytest.raises(LeaseLost) as caught:
        held.save(Saved(stage="encode"))
    assert caught.value.kind == "gone"
    assert bench.queue.calls["save"] == 0


def test_without_doubt_nothing_is_asked(bench: Bench, lenient: Queue) -> None:
    """A save costs one request, and a completion that is refused is not asked about."""
    held = bench.keep_one(lenient)
    held.save(Saved(stage="encode"))
    held.begin_settling()
    assert not held.settled(LeaseGone("purged"))
    assert held.retry_lease() is None
    assert lenient.sent == []
