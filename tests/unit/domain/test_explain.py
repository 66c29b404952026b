"""Why a message is not being worked on: a sentence for every situation."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from leasehold.domain.admin import GroupStanding, Seen
from leasehold.domain.explain import (
    Activity,
    Explanation,
    MessageFacts,
    QueueFacts,
    explain_message,
    why,
)
from leasehold.domain.failures import close_attempt
from leasehold.domain.model import (
    NEVER_MS,
    CancelRequest,
    Detail,
    ErrorReport,
    Message,
    MessageState,
    Outcome,
    Phase,
    Poisoning,
    Progress,
    make_message_id,
)
from leasehold.domain.queue_settings import FailurePolicy, GroupOrder, GroupSettings
from leasehold.domain.visibility import state_of
from tests.unit.domain.queue_facts import BUSY, MIN, NOW, STARTED, D, H, S, around

MESSAGE_ID = make_message_id(7, bytes(10))

WAITING = Message(
    message_id=MESSAGE_ID,
    body=b"work",
    inserted_at_ms=NOW - H,
    expires_at_ms=NOW + 7 * D - H,
    visible_at_ms=NOW - 5 * MIN,
    phase=Phase.WAITING,
    since_ms=NOW - H,
)
LEASED = WAITING._replace(
    visible_at_ms=NOW + 27 * S,
    dequeue_count=2,
    phase=Phase.LEASED,
    since_ms=NOW - 3 * MIN,
    renewals=14,
    holder="worker-7",
    detail=Detail(progress=Progress(at_ms=NOW - 12 * S, fraction=0.61, note="resizing")),
)
LAPSED = LEASED._replace(visible_at_ms=NOW - 90 * S)
BAD_ORDER = ErrorReport(text="no such order:\n  4711", type="KeyError", fingerprint="f00d")


def given_back(outcome: Outcome, until_ms: int, error: ErrorReport | None = None) -> Message:
    ended_ms = NOW - MIN
    return close_attempt(LEASED, outcome, ended_ms, error)._replace(
        phase=Phase.DEFERRED, since_ms=ended_ms, visible_at_ms=until_ms
    )


def explain(
    message: Message,
    facts: QueueFacts | None = None,
    *,
    state: MessageState | None = None,
    queue: str = "orders",
    under: str | None = None,
    ahead: int | None = None,
    more_urgent: int = 0,
    group: GroupStanding | None = None,
) -> Explanation:
    seen = Seen(message, state or state_of(message, NOW), queue, under)
    answer = explain_message(
        MessageFacts(
            queue=facts or around(),
            message_id=message.message_id,
            seen=seen,
            ahead=ahead,
            more_urgent=more_urgent,
            group=group,
        )
    )
    json.dumps(answer.evidence)
    return answer


def test_delayed() -> None:
    """A delayed message says until when."""
    answer = explain(
        WAITING._replace(visible_at_ms=NOW + 3 * H + 12 * MIN + 9 * S, phase=Phase.DELAYED)
    )
    assert answer.code == "delayed"
    assert answer.sentence == "It is delayed until 2026-11-21T15:12:09Z (in 3 h 12 min)."
    assert answer.evidence["visible_at_ms"] == NOW + 3 * H + 12 * MIN + 9 * S
    assert answer.evidence["expires_at_ms"] == NOW + 7 * D - H
    for_ever = explain(WAITING._replace(expires_at_ms=NEVER_MS))
    assert for_ever.evidence["expires_at_ms"] is None


def test_delayed_in_a_paused_queue() -> None:
    """What will keep it afterwards is said at once."""
    answer = explain(
        WAITING._replace(visible_at_ms=NOW + S, phase=Phase.DELAYED),
        around(paused_until_ms=NEVER_MS, pause_reason="deploy"),
    )
    assert answer.sentence == (
        "It is delayed until 2026-11-21T12:00:01Z (in 1 s); queue orders is paused as well, until "
        'it is resumed for the reason "deploy".'
    )


def test_leased() -> None:
    """A leased message says by whom, since when and until when, renewals and progress."""
    answer = explain(LEASED, around(failure_policy=FailurePolicy(max_deliveries=5)))
    assert answer.code == "leased"
    assert answer.sentence == (
        "It is leased to worker-7 until 2026-11-21T12:00:27Z (in 27 s): attempt 2 of 5, since "
        "2026-11-21T11:57:00Z (3 min ago), renewed 14 times, last progress 61 %, "
        '"resizing" 12 s ago.'
    )
    assert answer.evidence["holder"] == "worker-7"
    assert answer.evidence["renewals"] == 14
    assert answer.evidence["progress"] == {
        "fraction": 0.61,
        "note": "resizing",
        "at_ms": NOW - 12 * S,
    }


def test_leased_to_somebody_without_a_name() -> None:
    """What the holder did not say is said to be missing."""
    mute = LEASED._replace(holder=None, renewals=0, detail=Detail())
    assert why(mute, MessageState.LEASED, NOW) == (
        "It is leased to an unnamed receiver until 2026-11-21T12:00:27Z (in 27 s): "
        "attempt 2, since 2026-11-21T11:57:00Z (3 min ago), not renewed, no progress reported."
    )


def test_leased_long_without_progress() -> None:
    """A lease that is held by renewals alone for long is pointed out, with the way to end it."""
    stuck = LEASED._replace(since_ms=NOW - 2 * H, renewals=1, detail=Detail())
    answer = explain(stuck)
    assert answer.code == "leased-without-progress"
    assert answer.sentence == (
        "It is leased to worker-7 until 2026-11-21T12:00:27Z (in 27 s): attempt 2, since "
        "2026-11-21T10:00:00Z (2 h ago), renewed once, no progress reported; if the worker is "
        "stuck, end the lease: 2 h without progress."
    )
    assert answer.evidence["without_progress_s"] == 7_200
    assert explain(stuck, around(visibility_timeout_s=3_600)).code == "leased"
    after_s = [explain(stuck._replace(since_ms=NOW - s * S)).code for s in (599, 600)]
    assert after_s == ["leased", "leased-without-progress"]
    longer = around(visibility_timeout_s=2_400)
    assert explain(stuck, longer).code == "leased-without-progress"
    assert explain(LEASED._replace(since_ms=NOW - 2 * H)).code == "leased"


def test_lapsed() -> None:
    """A lease that ran out is told apart from a message that was never received."""
    answer = explain(LAPSED, around(failure_policy=FailurePolicy(max_lapses=3)))
    assert answer.code == "lapsed"
    assert answer.sentence == (
        "It has been visible since 2026-11-21T11:58:30Z (1 min 30 s ago), when the lease of "
        "worker-7 ran out in attempt 2, and waits to be received again."
    )


def test_deferred_after_a_failure() -> None:
    """A failed message says which attempt, what went wrong, and when the next may begin."""
    failed = given_back(Outcome.FAILED, NOW + 4 * MIN, BAD_ORDER)
    answer = explain(failed, around(failure_policy=FailurePolicy(max_deliveries=5)))
    assert answer.code == "deferred-after-failure"
    assert answer.sentence == (
        "It failed at 2026-11-21T11:59:00Z (1 min ago) in attempt 2 of 5 with KeyError: "
        '"no such order: 4711"; the next attempt can begin at 2026-11-21T12:04:00Z (in 4 min).'
    )
    assert answer.evidence["last_error"] == {
        "text": "no such order:\n  4711",
        "type": "KeyError",
        "fingerprint": "f00d",
        "at_ms": NOW - MIN,
    }


def test_deferred_with_a_budget_of_failures() -> None:
    """Where failures are what is limited, they are what is counted."""
    failed = given_back(Outcome.FAILED, NOW + 4 * MIN)
    answer = explain(failed, around(failure_policy=FailurePolicy(max_failures=3)))
    assert answer.sentence == (
        "It failed at 2026-11-21T11:59:00Z (1 min ago) in attempt 2 (failure 1 of 3); the next "
        "attempt can begin at 2026-11-21T12:04:00Z (in 4 min)."
    )


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (Outcome.RETURNED, "released by worker-7"),
        (Outcome.INTERRUPTED, "released when worker-7 was interrupted"),
        (Outcome.ENDED, "taken from worker-7 by an operator"),
    ],
)
def test_deferred(outcome: Outcome, told: str) -> None:
    """A message given back says how that came, while it is put off and when it is visible."""
    answer = explain(given_back(outcome, NOW + D + H))
    assert answer.code == "deferred"
    assert answer.sentence == (
        f"It was {told} at 2026-11-21T11:59:00Z (1 min ago) and is deferred until "
        "2026-11-22T13:00:00Z (in 1 d 1 h)."
    )
    assert explain(given_back(outcome, NOW - 30 * S)).sentence == (
        f"It has been visible since 2026-11-21T11:59:30Z (30 s ago), after it was {told}."
    )


def test_put_off_by_an_operator() -> None:
    """A new delay without a new attempt is not put down to the last attempt."""
    amended = given_back(Outcome.FAILED, NOW + MIN)._replace(since_ms=NOW - S)
    answer = explain(amended)
    assert answer.code == "deferred"
    assert answer.sentence == (
        "It was deferred at 2026-11-21T11:59:59Z (1 s ago) until 2026-11-21T12:01:00Z (in 1 min)."
    )


def test_expired() -> None:
    """An expired message says when, and after what life."""
    answer = explain(WAITING._replace(inserted_at_ms=NOW - 8 * D, expires_at_ms=NOW - D))
    assert answer.code == "expired"
    assert answer.sentence == (
        "It expired at 2026-11-20T12:00:00Z (1 d ago): its time to live ended 7 d after it was put."
    )
    held = LEASED._replace(expires_at_ms=NOW - 500)
    assert explain(held).sentence == (
        "It expired at 2026-11-21T11:59:59Z (less than 1 s ago), while it was leased to worker-7: "
        "its time to live ended 59 min 59 s after it was put."
    )


def test_paused() -> None:
    """A message in a paused queue says until when, and why."""
    answer = explain(WAITING, around(paused_until_ms=NOW + H, pause_reason="database upgrade"))
    assert answer.code == "paused"
    assert answer.sentence == (
        "It has not been received since it became visible at 2026-11-21T11:55:00Z (5 min ago), "
        "but queue orders is paused until 2026-11-21T13:00:00Z (in 1 h) for the reason "
        '"database upgrade".'
    )
    assert answer.evidence["paused_until_ms"] == NOW + H
    assert answer.evidence["pause_reason"] == "database upgrade"


@pytest.mark.parametrize(
    ("reason", "because"),
    [
        ("max_deliveries", "it was delivered 4 times without being completed"),
        ("max_failures", "it failed 3 times"),
        ("max_interruptions", "its workers were interrupted twice"),
        ("max_lapses", "its lease ran out once"),
        ("buried", "worker-7 buried it"),
        ("looks wrong", 'of "looks wrong"'),
    ],
)
def test_poisoned(reason: str, because: str) -> None:
    """A poisoned message says why, what went wrong last, and how to bring it back."""
    counted = LEASED._replace(dequeue_count=6, detail=Detail(failures=2, interruptions=2, lapses=1))
    poisoned = close_attempt(counted, Outcome.FAILED, NOW - MIN, BAD_ORDER)
    detail = replace(
        poisoned.detail, poisoning=Poisoning(queue="orders", reason=reason, at_ms=NOW - MIN)
    )
    poisoned = poisoned._replace(detail=detail, phase=Phase.WAITING, visible_at_ms=NOW - MIN)
    answer = explain(poisoned, state=MessageState.POISONED, queue="orders-poison")
    assert answer.code == "poisoned"
    assert answer.sentence == (
        f"It was moved to the poison queue at 2026-11-21T11:59:00Z (1 min ago) because {because} "
        '(last error: KeyError: "no such order: 4711"); to bring it back, redrive the poisoned '
        "messages of queue orders."
    )
    assert answer.evidence["poison_queue"] == "orders-poison"
    assert answer.evidence["reason"] == reason
    assert explain(poisoned).sentence == (
        "It has been visible since 2026-11-21T11:59:00Z (1 min ago), moved here from queue orders "
        f"because {because}."
    )


def test_put_into_the_poison_queue_by_hand() -> None:
    """A message of the poison queue that came from nowhere says so."""
    assert why(WAITING, MessageState.POISONED, NOW) == (
        "It was put directly into the poison queue at 2026-11-21T11:00:00Z (1 h ago)."
    )


def test_poisoned_at_the_next_receive() -> None:
    """A message whose lapse used up a budget says what the next receive will do with it."""
    used_up = LAPSED._replace(detail=Detail(lapses=2))
    answer = explain(used_up, around(failure_policy=FailurePolicy(max_lapses=3)))
    assert answer.code == "poisoned-at-next-receive"
    assert answer.sentence == (
        "It has been visible since 2026-11-21T11:58:30Z (1 min 30 s ago), when the lease of "
        "worker-7 ran out in attempt 2, but the next receive moves it to queue orders-poison, "
        "because its lease ran out 3 times."
    )
    assert answer.evidence["reason"] == "max_lapses"


def test_no_receiver_since_the_start() -> None:
    """A queue that nobody reads says since when that is known."""
    answer = explain(WAITING, around(activity=Activity(since_ms=STARTED)))
    assert answer.code == "no-receiver"
    assert answer.sentence == (
        "It has not been received since it became visible at 2026-11-21T11:55:00Z (5 min ago), "
        "but no worker has asked queue orders for messages since the server started at "
        "2026-11-21T10:00:00Z (2 h ago)."
    )
    assert answer.evidence["server_since_ms"] == STARTED


def test_no_receiver_for_long() -> None:
    """A queue whose readers went away says who was the last and when."""
    gone = replace(BUSY, last_receive_ms=NOW - 2 * MIN)
    assert explain(WAITING, around(activity=gone)).code == "no-receiver"
    assert explain(WAITING, around(activity=gone)).sentence == (
        "It has not been received since it became visible at 2026-11-21T11:55:00Z (5 min ago), "
        "but no worker has asked queue orders for messages since worker-3 did at "
        "2026-11-21T11:58:00Z (2 min ago)."
    )
    nameless = explain(WAITING, around(activity=replace(gone, last_receiver=None)))
    assert "since the last receive at 2026-11-21T11:58:00Z" in nameless.sentence
    assert explain(WAITING, around(activity=replace(gone, waiting=1))).code == "visible"
    soon = replace(gone, last_receive_ms=NOW - 2 * MIN + 1)
    assert explain(WAITING, around(activity=soon)).code == "visible"


def test_rate_limited() -> None:
    """A queue that gives out only so many says so, and when the next may go."""
    answer = explain(WAITING, around(max_receives_per_s=0.5, next_due_ms=NOW + 1_500), ahead=4)
    assert answer.code == "rate-limited"
    assert answer.sentence == (
        "It has not been received since it became visible at 2026-11-21T11:55:00Z (5 min ago), "
        "but queue orders is limited to 0.5 per second; the next message is due at "
        "2026-11-21T12:00:01Z (in 1 s)."
    )
    assert answer.evidence["max_receives_per_s"] == 0.5
    assert explain(WAITING, around(max_receives_per_s=0.5, next_due_ms=NOW)).code == "visible"


@pytest.mark.parametrize(("ahead", "behind"), [(1, "1 message"), (12, "12 messages")])
def test_waiting_its_turn(ahead: int, behind: str) -> None:
    """A message in a backlog says how many go before it."""
    answer = explain(WAITING, ahead=ahead)
    assert answer.code == "waiting-its-turn"
    assert answer.sentence == (
        "It has not been received since it became visible at 2026-11-21T11:55:00Z (5 min ago), "
        f"and waits its turn behind {behind}."
    )
    assert answer.evidence["ahead"] == ahead


def test_behind_its_group() -> None:
    """In a queue in order the first of its group is named, with its holder and its end."""
    mine = WAITING._replace(detail=Detail(group_id="acme"))
    first = LEASED._replace(message_id="first", holder="w1", visible_at_ms=NOW + 40_000)
    standing = GroupStanding(1, (Seen(first, MessageState.LEASED, "orders"),))
    in_order = around(groups=GroupSettings(order=GroupOrder.FIFO))
    answer = explain(mine, in_order, group=standing)
    assert answer.code == "behind-its-group"
    assert answer.sentence.endswith(
        'but waits behind message first of its group "acme", which is leased to w1 until '
        "2026-11-21T12:00:40Z (in 40 s)."
    )
    assert (answer.evidence["behind"], answer.evidence["behind_holder"]) == ("first", "w1")
    put_off = GroupStanding(0, (Seen(first, MessageState.DEFERRED, "orders"),))
    assert "deferred until" in explain(mine, in_order, group=put_off).sentence
    assert explain(mine, in_order, group=GroupStanding(0, ())).code == "visible"
    assert explain(mine, around(), group=standing).code == "visible"


def test_a_group_that_is_full() -> None:
    """Who holds its share is told."""
    mine = WAITING._replace(detail=Detail(group_id="acme"))
    held = [
        Seen(LEASED._replace(holder=name), MessageState.LEASED, "orders") for name in ("w1", "w2")
    ]
    limited = around(groups=GroupSettings(max_in_flight=5, max_in_flight_of={"acme": 2}))
    answer = explain(mine, limited, group=GroupStanding(2, tuple(held)))
    assert answer.code == "group-is-full"
    assert answer.sentence.endswith('but its group "acme" has 2 of 2 in flight, held by w1 and w2.')
    assert (answer.evidence["in_flight"], answer.evidence["max_in_flight"]) == (2, 2)
    assert explain(mine, limited, group=GroupStanding(1, tuple(held[:1]))).code == "visible"
    more = explain(mine, limited, group=GroupStanding(12, tuple(held)))
    assert more.sentence.endswith("held by w1, w2 and others.")


def test_a_group_that_is_noisy() -> None:
    """It leaves room for others; the lower of its limits is told."""
    mine = WAITING._replace(detail=Detail(group_id="acme"))
    held = Seen(LEASED._replace(holder="w1"), MessageState.LEASED, "orders")
    limited = around(groups=GroupSettings(limit_noisy=True, max_in_flight=5))
    answer = explain(mine, limited, group=GroupStanding(1, (held,), noisy_limit=1))
    assert answer.code == "group-is-noisy"
    assert answer.sentence.endswith('but its group "acme" is noisy: 1 of 1 in flight, held by w1.')
    assert answer.evidence["noisy_limit"] == 1
    full = explain(mine, limited, group=GroupStanding(5, (held,), noisy_limit=9))
    assert full.code == "group-is-full"
    assert explain(mine, limited, group=GroupStanding(1, (held,), noisy_limit=2)).code == "visible"


def test_behind_priorities() -> None:
    """A message that others overtake says by how many, and whether its time will come."""
    low = WAITING._replace(priority=12)
    answer = explain(low, ahead=12, more_urgent=7)
    assert answer.code == "behind-priorities"
    assert answer.sentence == (
        "It has not been received since it became visible at 2026-11-21T11:55:00Z (5 min ago), "
        "and waits behind 12 messages, 7 of them of a more urgent priority than its 12; such "
        "messages are always received first."
    )
    assert answer.evidence["more_urgent"] == 7
    aged = explain(low, around(priority_ageing_s=90), ahead=1, more_urgent=1)
    assert aged.sentence == (
        "It has not been received since it became visible at 2026-11-21T11:55:00Z (5 min ago), "
        "and waits behind 1 message of a more urgent priority than its 12; it gains one step of "
        "priority for every 1 min 30 s of waiting."
    )


def test_next_to_be_received() -> None:
    """Nothing keeps it: the next receive takes it."""
    redriven = WAITING._replace(detail=Detail(redriven=1))
    answer = explain(redriven, ahead=0)
    assert answer.code == "visible"
    assert answer.sentence == (
        "It has not been received since it was redriven at 2026-11-21T11:55:00Z (5 min ago), and "
        "is the next to be received."
    )


def test_a_redriven_message_of_a_group_tells_when_it_was_redriven() -> None:
    """It counts as visible since long before."""
    redriven = WAITING._replace(
        visible_at_ms=NOW - H, since_ms=NOW - 5 * MIN, detail=Detail(redriven=1, group_id="a")
    )
    assert "since it was redriven at 2026-11-21T11:55:00Z" in explain(redriven, ahead=0).sentence


def test_failed_and_visible_at_once() -> None:
    """Without a back-off a failed message waits for its next attempt in plain sight."""
    failed = given_back(Outcome.FAILED, NOW - MIN, ErrorReport(text="x" * 500))
    assert explain(failed).sentence == (
        "It has been visible since 2026-11-21T11:59:00Z (1 min ago), after it failed in attempt 2 "
        f'with "{"x" * 117}...".'
    )


def test_staged() -> None:
    """A message that nobody sees yet names what has to be published."""
    answer = explain(WAITING, state=MessageState.STAGED, under="run-7")
    assert answer.sentence == "It is staged under transaction run-7 and not published yet."
    assert (answer.code, answer.evidence["transaction"]) == ("staged", "run-7")
    assert why(WAITING, MessageState.STAGED, NOW, "run-7") == answer.sentence


@pytest.mark.parametrize("holder", ["driver-1", None])
def test_claimed(holder: str | None) -> None:
    """A member of a claim names the claim, its holder and its end, and no single lease."""
    member = LEASED._replace(holder=holder, since_ms=NOW - 10 * D)
    answer = explain(member, state=MessageState.LEASED, under="nightly/12")
    assert answer.sentence == (
        f"It is in claim 12 of stream nightly, held by {holder or 'an unnamed receiver'}, "
        "until 2026-11-21T12:00:27Z (in 27 s)."
    )
    assert (answer.code, answer.evidence["claim"]) == ("claimed", "nightly/12")


def test_asked_to_stop() -> None:
    """A lease whose holder was asked to stop says so."""
    cancel = CancelRequest(at_ms=NOW - 5 * S, reason="wrong input")
    asked = LEASED._replace(detail=Detail(cancel=cancel), session="5e55")
    answer = explain(asked)
    assert answer.sentence.endswith(
        "no progress reported, asked to stop at 2026-11-21T11:59:55Z (5 s ago)."
    )
    assert answer.evidence["cancel"] == {"at_ms": NOW - 5 * S, "reason": "wrong input"}
    assert answer.evidence["session"] == "5e55"


@pytest.mark.parametrize(
    ("outcome", "how"),
    [
        (Outcome.LOST, "taken from worker-7 because its session was lost"),
        (Outcome.STUCK, "taken from worker-7 because it reported no progress"),
    ],
)
def test_taken_from_a_worker(outcome: Outcome, how: str) -> None:
    """A lease that ended with its session, or with the watchdog, says so."""
    answer = explain(given_back(outcome, NOW - MIN))
    assert (
        answer.sentence
        == f"It has been visible since 2026-11-21T11:59:00Z (1 min ago), after it was {how}."
    )


@pytest.mark.parametrize(
    ("message_id", "code", "sentence"),
    [
        (
            MESSAGE_ID,
            "not-found",
            (
                "Neither queue orders nor its poison queue contains it: it was completed, removed "
                "or purged, expired long ago, or never existed."
            ),
        ),
        (
            "order 7",
            "not-an-id",
            'Queue orders never contained it: "order 7" is not an id that this server issues.',
        ),
    ],
)
def test_not_there(message_id: str, code: str, sentence: str) -> None:
    """A message that is not there says what can have become of it."""
    answer = explain_message(MessageFacts(queue=around(), message_id=message_id, seen=None))
    assert (answer.code, answer.sentence) == (code, sentence)
    assert answer.evidence == {"message_id": message_id, "queue": "orders"}


def test_every_state_has_a_sentence_of_its_own() -> None:
    """No two states of one message are told in the same words."""
    told = {why(LEASED, state, NOW) for state in MessageState}
    assert len(told) == len(MessageState)
    assert all(sentence.startswith("It ") and sentence.endswith(".") for sentence in told)
