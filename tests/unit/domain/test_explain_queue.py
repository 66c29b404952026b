"""Why nothing of a queue is being worked on, or what is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from leasehold.domain.claims import Claim, ClaimState
from leasehold.domain.explain import Activity, explain_queue
from leasehold.domain.model import NEVER_MS, MessageState
from tests.unit.domain.queue_facts import BUSY, MIN, NOW, STARTED, S, around


def test_queue_empty() -> None:
    """An empty queue says when something was last put."""
    answer = explain_queue(
        around(counts={"poisoned": 1}, activity=replace(BUSY, last_send_ms=NOW - 50 * MIN))
    )
    assert answer.code == "empty"
    assert answer.sentence == (
        "Queue orders is empty; the last message was put at 2026-11-21T11:10:00Z (50 min ago); "
        "1 message is in its poison queue."
    )
    assert explain_queue(around(counts={"staged": 2})).sentence.endswith(
        "; 2 messages are staged for it and not published yet."
    )
    assert explain_queue(around()).sentence == (
        "Queue orders is empty; nothing was put since the server started at "
        "2026-11-21T10:00:00Z (2 h ago)."
    )


def test_queue_paused() -> None:
    """A paused queue says until when, and what waits meanwhile."""
    counts = {"visible": 3, "leased": 1, "since": {MessageState.VISIBLE: NOW - 3 * MIN}}
    answer = explain_queue(around(counts=counts, paused_until_ms=NEVER_MS))
    assert answer.code == "paused"
    assert answer.sentence == (
        "Queue orders is paused until it is resumed; 3 messages are visible, the oldest for 3 min."
    )
    assert answer.evidence["paused_until_ms"] == NEVER_MS
    none = explain_queue(around(paused_until_ms=NOW + S))
    assert none.sentence == (
        "Queue orders is paused until 2026-11-21T12:00:01Z (in 1 s); no message is visible."
    )


@pytest.mark.parametrize(
    ("counts", "code", "sentence"),
    [
        (
            {"leased": 5},
            "all-leased",
            (
                "All 5 messages of queue orders are leased; the next becomes visible at "
                "2026-11-21T12:00:20Z (in 20 s), unless its lease is renewed."
            ),
        ),
        (
            {"delayed": 1},
            "all-delayed",
            (
                "The only message of queue orders is delayed; it becomes visible at "
                "2026-11-21T12:00:20Z (in 20 s)."
            ),
        ),
        (
            {"deferred": 2},
            "all-deferred",
            (
                "All 2 messages of queue orders are deferred; the next becomes visible at "
                "2026-11-21T12:00:20Z (in 20 s)."
            ),
        ),
        (
            {"leased": 1, "delayed": 4, "deferred": 2},
            "none-visible",
            (
                "None of the 7 messages of queue orders is visible: 1 is leased, 4 are delayed "
                "and 2 are deferred; the next becomes visible at 2026-11-21T12:00:20Z (in 20 s), "
                "unless its lease is renewed."
            ),
        ),
    ],
)
def test_queue_with_nothing_visible(counts: dict[str, int], code: str, sentence: str) -> None:
    """A queue whose messages are all hidden says how, and when the next comes out."""
    answer = explain_queue(around(counts=counts, next_due_ms=NOW + 20 * S))
    assert (answer.code, answer.sentence) == (code, sentence)
    assert answer.evidence["next_due_ms"] == NOW + 20 * S


def test_queue_with_nothing_visible_ever() -> None:
    """Without a moment to name, as when all expire first, none is named."""
    answer = explain_queue(around(counts={"leased": 2}))
    assert answer.sentence == "All 2 messages of queue orders are leased."


def test_queue_without_receiver() -> None:
    """A backlog that nobody reads says so."""
    counts = {"visible": 1, "since": {MessageState.VISIBLE: NOW - 3 * MIN}}
    answer = explain_queue(around(counts=counts, activity=Activity(since_ms=STARTED)))
    assert answer.code == "no-receiver"
    assert answer.sentence == (
        "In queue orders 1 message is visible, for 3 min, but no worker has asked queue orders for "
        "messages since the server started at 2026-11-21T10:00:00Z (2 h ago)."
    )


def test_queue_rate_limited() -> None:
    """A backlog behind a limit names the limit."""
    counts = {"visible": 9, "since": {MessageState.VISIBLE: NOW - 3 * MIN}}
    answer = explain_queue(around(counts=counts, max_receives_per_s=2.0, next_due_ms=NOW + 400))
    assert answer.code == "rate-limited"
    assert answer.sentence == (
        "In queue orders 9 messages are visible, the oldest for 3 min, but queue orders is "
        "limited to 2 per second; the next message is due at 2026-11-21T12:00:00Z (in less than 1 "
        "s)."
    )


def test_queue_being_read() -> None:
    """A backlog that is being read says by whom last."""
    answer = explain_queue(around(counts={"visible": 9, "poisoned": 2}))
    assert answer.code == "visible"
    assert answer.sentence == (
        "In queue orders 9 messages are visible; the last receive was at "
        "2026-11-21T11:59:58Z (2 s ago) by worker-3."
    )
    json.dumps(answer.evidence)
    assert answer.evidence["poisoned"] == 2
    waiting = Activity(since_ms=STARTED, waiting=1)
    assert explain_queue(around(counts={"visible": 1}, activity=waiting)).sentence == (
        "In queue orders 1 message is visible."
    )


def claim(number: int, until_ms: int, holder: str | None = None) -> Claim:
    return Claim(
        account="a",
        queue="orders",
        stream="nightly",
        number=number,
        state=ClaimState.OPEN,
        size=3,
        limit=3,
        opened_at_ms=NOW,
        until_ms=until_ms,
        holder=holder,
    )


@pytest.mark.parametrize(
    ("claims", "sentence"),
    [
        (
            (claim(7, NOW + 20 * S, "job-1"),),
            "are in claim 7 of stream nightly, held by job-1, until 2026-11-21T12:00:20Z (in 20 s)",
        ),
        (
            (claim(8, NOW + 60 * S), claim(7, NOW + 20 * S)),
            (
                "are in 2 claims; claim 7 of stream nightly is the first to end, at "
                "2026-11-21T12:00:20Z (in 20 s)"
            ),
        ),
    ],
)
def test_everything_is_in_claims(claims: tuple[Claim, ...], sentence: str) -> None:
    """The stream, its holder and the end are named: nobody need look for a worker."""
    counts = {"leased": 6, "claimed": 6}
    answer = explain_queue(replace(around(counts=counts), claims=claims))
    assert answer.code == "all-claimed"
    assert answer.sentence == f"All 6 messages of queue orders {sentence}, unless it is extended."
    some = explain_queue(replace(around(counts=counts | {"leased": 7}), claims=claims))
    assert some.code == "all-leased"
    single = {"leased": 1, "claimed": 1}
    answer = explain_queue(replace(around(counts=single), claims=claims[-1:]))
    assert answer.sentence.startswith("The only message of queue orders is in claim 7 of stream")


def test_a_queue_whose_messages_have_expired_says_so() -> None:
    """It is empty, and not because the work was done."""
    answer = explain_queue(around(counts={"expired": 3}))
    assert answer.code == "empty"
    assert answer.sentence.endswith("; 3 messages have expired without being completed.")
    assert answer.evidence["expired"] == 3
    one = explain_queue(around(counts={"expired": 1}))
    assert one.sentence.endswith("; 1 message has expired without being completed.")
