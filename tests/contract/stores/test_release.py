"""Contract: giving a message back, waiting, and the move to the poison queue."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseLost, MessageNotFound, VisibilityPastExpiry
from leasehold.domain.model import NEVER_MS, Attempt, ErrorReport, Message, Outcome
from leasehold.domain.queue_settings import Backoff, BackoffKind, FailurePolicy, QueueSettings

from .conftest import ACCOUNT, POISON, QUEUE, Asker

BACK = [Outcome.FAILED, Outcome.INTERRUPTED, Outcome.RETURNED]


def poisoned_one(asker: Asker, queue: str = POISON) -> Message:
    """Return the only message of a poison queue."""
    (seen,) = asker.inspect(queue=queue).messages
    return seen.message


@pytest.mark.parametrize("outcome", BACK)
def test_a_released_message_is_visible_at_once(asker: Asker, outcome: Outcome) -> None:
    """Without a delay and a policy, whoever asks next receives it."""
    asker.put()
    lease = asker.receive_one(lease_s=3600)
    released = asker.release(lease, outcome)
    assert released == c.Released(lease.message.message_id, asker.clock.now_ms())
    assert asker.receive_one().message.dequeue_count == 2


@pytest.mark.parametrize("outcome", BACK)
def test_a_released_message_keeps_its_delay(asker: Asker, outcome: Outcome) -> None:
    """The delay is counted from the release, and holds to the millisecond."""
    asker.put()
    lease = asker.receive_one(lease_s=1)
    released = asker.release(lease, outcome, delay_s=10)
    assert released.visible_at_ms == asker.clock.now_ms() + 10_000
    asker.clock.advance(ms=9_999)
    assert asker.receive() == ()
    asker.clock.advance(ms=1)
    assert asker.receive_one().message.message_id == lease.message.message_id


@pytest.mark.parametrize("outcome", [*BACK, Outcome.BURIED])
def test_a_released_message_has_no_holder(asker: Asker, outcome: Outcome) -> None:
    """The receipt is dead from the answer on, in the queue and in the poison queue."""
    asker.put()
    lease = asker.receive_one()
    asker.release(lease, outcome)
    queue = POISON if outcome is Outcome.BURIED else QUEUE
    for refused in (
        asker.complete(lease, queue),
        asker.ask(asker.renew_command(lease, 30, queue=queue)),
        asker.release(lease, queue=queue),
    ):
        assert isinstance(refused, LeaseLost)
        assert refused.reason == "superseded"


def test_an_old_receipt_cannot_release(asker: Asker) -> None:
    """A worker that lost its lease cannot give away another one's, nor bury the message."""
    asker.put()
    late = asker.receive_one(lease_s=1)
    asker.clock.advance(s=1)
    asker.receive_one()
    for outcome in (*BACK, Outcome.BURIED):
        assert isinstance(asker.release(late, outcome), LeaseLost)
    assert asker.split() == (0, 1, 0, 0, 0)


def test_a_release_past_expiry_is_refused(asker: Asker) -> None:
    """A delay after which nobody can receive the message is refused, and the lease goes on."""
    asker.put(time_to_live_s=100)
    lease = asker.receive_one()
    refused = asker.release(lease, delay_s=100)
    assert isinstance(refused, VisibilityPastExpiry)
    assert refused.verb == "release"
    assert asker.release(lease, delay_s=99).visible_at_ms == asker.clock.now_ms() + 99_000


def test_an_expired_message_cannot_be_released(asker: Asker) -> None:
    """Expiry wins over a lease, and over burying."""
    asker.put(time_to_live_s=10)
    lease = asker.receive_one(lease_s=60)
    asker.clock.advance(s=10)
    for outcome in (Outcome.FAILED, Outcome.BURIED):
        assert isinstance(asker.release(lease, outcome), MessageNotFound)
    assert asker.store.find_queue(ACCOUNT, POISON) is None


@pytest.mark.parametrize(
    ("backoff", "waits_ms"),
    [
        (Backoff(kind=BackoffKind.FIXED, initial_s=2.5, jitter=0), [2_500] * 4),
        (Backoff(kind=BackoffKind.LINEAR, initial_s=2, cap_s=7, jitter=0), [2e3, 4e3, 6e3, 7e3]),
        (Backoff(initial_s=1, factor=3, cap_s=20, jitter=0), [1e3, 3e3, 9e3, 20e3]),
    ],
    ids=["fixed", "linear", "exponential"],
)
def test_failures_back_off(asker: Asker, backoff: Backoff, waits_ms: list[float]) -> None:
    """Each failure in a row waits by the queue's rule, from the release on."""
    asker.limit_failures(backoff=backoff)
    asker.put()
    for wait_ms in waits_ms:
        released = asker.fail(asker.receive_one())
        assert released.visible_at_ms - asker.clock.now_ms() == wait_ms
        asker.clock.advance(ms=int(wait_ms) - 1)
        assert asker.receive() == ()
        asker.clock.advance(ms=1)


@pytest.mark.parametrize(("jitter", "wait_ms"), [(0.0, 5_000), (0.5, 10_000), (1.0, 15_000)])
def test_back_off_is_spread_by_its_jitter(asker: Asker, jitter: float, wait_ms: int) -> None:
    """The number drawn shortens or lengthens the wait by the share set, in the middle not."""
    asker.limit_failures(backoff=Backoff(kind=BackoffKind.FIXED, initial_s=10, jitter=0.5))
    asker.put()
    released = asker.fail(asker.receive_one(), jitter=jitter)
    assert released.visible_at_ms - asker.clock.now_ms() == wait_ms


@pytest.mark.parametrize("outcome", [Outcome.RETURNED, Outcome.INTERRUPTED])
def test_only_failures_back_off(asker: Asker, outcome: Outcome) -> None:
    """What was merely given back is visible at once."""
    asker.limit_failures(backoff=Backoff())
    asker.put()
    released = asker.release(asker.receive_one(), outcome)
    assert released.visible_at_ms == asker.clock.now_ms()


def test_a_worker_that_says_when_overrules_the_back_off(asker: Asker) -> None:
    """Its delay counts, 0 as well."""
    asker.limit_failures(backoff=Backoff(kind=BackoffKind.FIXED, initial_s=60))
    asker.put()
    assert asker.fail(asker.receive_one(), delay_s=0).visible_at_ms == asker.clock.now_ms()
    released = asker.fail(asker.receive_one(), delay_s=5)
    assert released.visible_at_ms == asker.clock.now_ms() + 5_000


# --- budgets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "outcome"),
    [("max_failures", Outcome.FAILED), ("max_interruptions", Outcome.INTERRUPTED)],
)
def test_the_last_of_a_budget_moves_the_message_at_once(
    asker: Asker, budget: str, outcome: Outcome
) -> None:
    """The release that uses a budget up says so; the message is not received once more."""
    asker.limit_failures(**{budget: 2})
    put = asker.put()
    assert asker.release(asker.receive_one(), outcome).poisoned is None
    released = asker.release(asker.receive_one(), outcome)
    assert released.poisoned == budget
    assert asker.receive() == ()
    assert asker.split() == (0, 0, 0, 0, 1)
    assert poisoned_one(asker).message_id == put.message.message_id


def test_deliveries_are_a_budget(asker: Asker) -> None:
    """However they end, the last allowed delivery that is given back is the last."""
    asker.limit_failures(max_deliveries=2)
    asker.put()
    assert asker.release(asker.receive_one()).poisoned is None
    assert asker.release(asker.receive_one()).poisoned == "max_deliveries"


def test_interruptions_are_not_deliveries_that_count(asker: Asker) -> None:
    """A restart of the workers does not use up the tries of a message."""
    asker.limit_failures(max_deliveries=2)
    asker.put()
    for _ in range(5):
        assert asker.release(asker.receive_one(), Outcome.INTERRUPTED).poisoned is None
    assert asker.fail(asker.receive_one()).poisoned is None
    assert asker.fail(asker.receive_one()).poisoned == "max_deliveries"


@pytest.mark.parametrize("budget", ["max_deliveries", "max_lapses"])
def test_a_lapse_is_noticed_by_the_next_receive(asker: Asker, budget: str) -> None:
    """A message whose last lease ran out is moved by the receive that would have got it."""
    asker.limit_failures(**{budget: 2})
    asker.put("bad")
    asker.put("good", delay_s=61)
    for _ in range(2):
        assert asker.received() == [b"bad"]
        asker.clock.advance(s=30)
    asker.clock.advance(s=1)
    assert asker.bodies() == [b"good"]
    assert asker.split()[4] == 0
    assert asker.received(1) == [b"good"]
    poisoned = poisoned_one(asker)
    assert poisoned.detail.poisoning is not None
    assert poisoned.detail.poisoning.reason == budget
    assert [attempt.outcome for attempt in poisoned.detail.attempts] == [Outcome.LAPSED] * 2
    assert [attempt.ended_at_ms % 60_000 for attempt in poisoned.detail.attempts] == [30_000, 0]


def test_a_receive_passes_over_any_number_of_poisoned_messages(asker: Asker) -> None:
    """What may not be delivered again does not take the place of what may."""
    asker.limit_failures(max_deliveries=1)
    for index in range(40):
        asker.put(f"bad{index}")
    assert len(asker.received(40)) == 40
    asker.clock.advance(s=30)
    for index in range(3):
        asker.put(f"good{index}")
    assert asker.received(2) == [b"good0", b"good1"]
    assert asker.split() == (1, 2, 0, 0, 40)


def test_a_policy_holds_for_what_is_there_when_it_is_set(asker: Asker) -> None:
    """Budgets count what happened before them."""
    asker.put()
    for _ in range(3):
        asker.fail(asker.receive_one())
    asker.limit_failures(max_failures=3)
    assert asker.peek() == ()
    assert asker.receive() == ()
    assert asker.split() == (0, 0, 0, 0, 1)


def test_without_a_policy_nothing_is_moved(asker: Asker) -> None:
    """A plain queue redelivers for ever, unless a worker buries the message."""
    asker.put()
    for _ in range(30):
        assert asker.fail(asker.receive_one()).poisoned is None
    assert asker.store.find_queue(ACCOUNT, POISON) is None
    assert asker.release(asker.receive_one(), Outcome.BURIED).poisoned == "buried"
    assert asker.split() == (0, 0, 0, 0, 1)


# --- the move ----------------------------------------------------------------------------------


def test_a_poisoned_message_keeps_what_it_was_and_every_attempt(asker: Asker) -> None:
    """Id, body, times and count are those of before; the reason and all attempts are with it."""
    asker.limit_failures(max_failures=2)
    start_ms = asker.clock.now_ms()
    put = asker.put("body", priority=3)
    asker.clock.advance(s=1)
    lease = asker.receive_one(holder="w1")
    asker.clock.advance(s=1)
    lease = asker.renew(lease, 30)
    asker.clock.advance(s=1)
    asker.fail(lease, "first")
    lease = asker.receive_one(lease_s=1, holder="w2")
    asker.clock.advance(s=2)
    lease = asker.receive_one(holder="w3")
    asker.clock.advance(s=1)
    error = ErrorReport(text="last", type="CodecError", fingerprint="f1")
    assert asker.release(lease, Outcome.FAILED, error=error).poisoned == "max_failures"

    message = poisoned_one(asker)
    assert message.message_id == put.message.message_id
    assert (message.body, message.priority) == (b"body", 3)
    assert message.inserted_at_ms == start_ms
    assert message.dequeue_count == 3
    poisoning = message.detail.poisoning
    assert poisoning is not None
    assert (poisoning.queue, poisoning.reason) == (QUEUE, "max_failures")
    assert poisoning.at_ms == message.visible_at_ms == asker.clock.now_ms()
    assert message.detail.attempts == (
        Attempt(
            number=1,
            leased_at_ms=start_ms + 1_000,
            ended_at_ms=start_ms + 3_000,
            outcome=Outcome.FAILED,
            holder="w1",
            renewals=1,
            error=ErrorReport(text="first"),
            fence=2,
        ),
        Attempt(
            number=2,
            leased_at_ms=start_ms + 3_000,
            ended_at_ms=start_ms + 4_000,
            outcome=Outcome.LAPSED,
            holder="w2",
            fence=4,
        ),
        Attempt(
            number=3,
            leased_at_ms=start_ms + 5_000,
            ended_at_ms=start_ms + 6_000,
            outcome=Outcome.FAILED,
            holder="w3",
            error=error,
            fence=5,
        ),
    )


def test_the_move_is_of_one_piece_with_the_rest_of_its_batch(asker: Asker) -> None:
    """At no point is the message in both queues or in neither."""
    asker.put()
    lease = asker.receive_one()
    asker.create(POISON)
    before, _, after, gone = asker.batch(
        c.GetQueue(ACCOUNT, POISON),
        asker.release_command(lease, Outcome.BURIED),
        c.GetQueue(ACCOUNT, POISON),
        c.GetQueue(ACCOUNT, QUEUE),
    )
    counts = [result.message_count for result in (before, after, gone)]  # type: ignore[attr-defined]
    assert counts == [0, 1, 0]


def test_the_poison_queue_is_made_when_it_is_needed(asker: Asker) -> None:
    """It is a queue like any other, from which workers can receive."""
    asker.limit_failures(max_failures=1)
    assert asker.store.find_queue(ACCOUNT, POISON) is None
    asker.put("bad")
    asker.fail(asker.receive_one())
    made = asker.store.find_queue(ACCOUNT, POISON)
    assert made is not None
    assert made.created_at_ms == asker.clock.now_ms()
    lease = asker.receive_one(queue=POISON)
    assert lease.message.dequeue_count == 2
    assert asker.complete(lease, POISON) == c.DONE


def test_another_poison_queue_can_be_named(asker: Asker) -> None:
    """It may be there already, with settings of its own, and serve several queues."""
    asker.create("audio")
    asker.create("aside")
    policy = FailurePolicy(max_failures=1, poison_queue="aside")
    for queue in (QUEUE, "audio"):
        asker.govern(queue, failure_policy=policy)
        asker.put(queue, queue=queue)
        asker.fail(asker.receive_one(queue=queue), queue=queue)
    assert asker.store.find_queue(ACCOUNT, POISON) is None
    assert sorted(asker.received(queue="aside")) == [b"audio", b"videos"]
    assert asker.counts().poisoned == asker.counts("audio").poisoned == 2


@pytest.mark.parametrize(("time_to_live_s", "lives"), [(None, None), (50, 50), (5_000, 5_000)])
def test_time_to_live_in_the_poison_queue_is_the_policys(
    asker: Asker, time_to_live_s: int | None, lives: int | None
) -> None:
    """It begins with the move, whatever the message had left to live."""
    asker.limit_failures(max_failures=1, poison_time_to_live_s=time_to_live_s)
    asker.put(time_to_live_s=100)
    asker.clock.advance(s=40)
    asker.fail(asker.receive_one())
    expires_at_ms = poisoned_one(asker).expires_at_ms
    if lives is None:
        assert expires_at_ms == NEVER_MS
        return
    assert expires_at_ms == asker.clock.now_ms() + lives * 1000
    asker.clock.advance(ms=lives * 1000 - 1)
    assert asker.counts().poisoned == 1
    asker.clock.advance(ms=1)
    assert asker.counts().poisoned == 0
    assert asker.receive(queue=POISON) == ()
    assert asker.ask(c.RetireExpired(10)) == c.Swept(1)
    assert asker.count(POISON) == 0


def test_attempts_are_kept_first_and_latest(asker: Asker) -> None:
    """Of very many, the first and the latest are kept, 20 in all, and the counters count all."""
    asker.put()
    for index in range(30):
        asker.fail(asker.receive_one(), f"error {index}")
    detail = asker.peek()[0].detail
    numbers = [attempt.number for attempt in detail.attempts]
    assert numbers == [1, *range(12, 31)]
    assert detail.failures == 30


@pytest.mark.parametrize("more", [{}, {"delay_s": 3}, {"error": ErrorReport(text="ü" * 5000)}])
def test_what_a_worker_says_is_with_the_message(asker: Asker, more: dict[str, Any]) -> None:
    """The next one who receives it sees the attempt before."""
    asker.put()
    asker.release(asker.receive_one(holder="w1"), Outcome.FAILED, **more)
    asker.clock.advance(s=3)
    (attempt,) = asker.receive_one().message.detail.attempts
    assert (attempt.holder, attempt.outcome) == ("w1", Outcome.FAILED)
    assert attempt.error == more.get("error")


def test_budgets_begin_anew_in_the_poison_queue(asker: Asker) -> None:
    """A poison queue with a policy of its own delivers what was moved there."""
    asker.limit_failures(max_failures=1)
    asker.put()
    asker.fail(asker.receive_one())
    asker.ask(
        c.SetQueueSettings(
            ACCOUNT, POISON, QueueSettings(failure_policy=FailurePolicy(max_failures=2))
        )
    )
    first = asker.receive_one(queue=POISON)
    assert asker.fail(first, queue=POISON).poisoned is None
    again = asker.receive_one(queue=POISON)
    assert asker.fail(again, queue=POISON).poisoned == "max_failures"


def test_the_text_of_an_old_error_is_shortened(asker: Asker) -> None:
    """The last one is kept whole; the history stays small."""
    asker.put()
    for _ in range(3):
        asker.fail(asker.receive_one(), "x" * 5000)
    (seen,) = asker.inspect().messages
    assert [len(each.error.text) for each in seen.message.detail.attempts if each.error] == [
        259,
        259,
        5000,
    ]
