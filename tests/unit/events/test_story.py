"""The story of a message: one sentence for each event."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from leasehold.domain.model import NEVER_MS
from leasehold.events.names import TYPE_NAMES
from leasehold.events.trace import Tone, known_types, lines, tell
from tests.unit.events.support import DAY_MS, TEN_MS

S = 1_000
MIN = 60 * S


def event(kind: str, after_ms: int = 0, **fields: Any) -> dict[str, Any]:
    """Return an event as the native API shows it."""
    return {"seq": 1, "place": 0, "at_ms": TEN_MS + after_ms, "type": kind, **fields}


def sentence(kind: str, after_ms: int = 0, **fields: Any) -> str:
    """Return what is said of one event."""
    (line,) = lines([event(kind, after_ms, **fields)])
    return line.text


LEASE: dict[str, Any] = {
    "holder": "w1",
    "dequeue_count": 1,
    "fence": 1,
    "visible_at_ms": TEN_MS + 31 * S,
}


SAME_DAY = " " * len("2026-11-21 ")
FIRST = "(delivery 1, fence 1)"
LATER = "visible from 10:01:00.000 on (in 57.5 s)"
BECAME = "it became visible"
RECEIVED = f"received by w1 {FIRST}"
AGAIN = "received by w2 (delivery 2, fence 2, session s2)"


def test_a_whole_life() -> None:
    """Put, received, lapsed, received by another, completed; the day stands where it begins."""
    assert tell(
        [
            event("put", 120, queue="orders", expires_at_ms=TEN_MS + 7 * DAY_MS),
            event("received", S, visible_since_ms=TEN_MS + 120, **LEASE),
            event("lapsed", 40 * S, **LEASE),
            event(
                "received",
                40 * S,
                holder="w2",
                dequeue_count=2,
                fence=2,
                session="s2",
                visible_at_ms=TEN_MS + 15 * 60 * MIN,
                visible_since_ms=TEN_MS + 31 * S,
            ),
            event("completed", 14 * 60 * MIN, holder="w2", dequeue_count=2, fence=2),
        ]
    ) == [
        "2026-11-21 10:00:00.120  put into orders, expires 2026-11-28 10:00:00.000",
        f"{SAME_DAY}10:00:01.000  {RECEIVED} until 10:00:31.000, 880 ms after it became visible",
        f"{SAME_DAY}10:00:40.000  the lease of w1 had run out at 10:00:31.000 {FIRST}",
        f"{SAME_DAY}10:00:40.000  {AGAIN} until 2026-11-22 01:00:00.000, 9 s after {BECAME}",
        "2026-11-22 00:00:00.000  completed by w2 after 13 h 59 min (delivery 2, fence 2)",
    ]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "put into orders, never expires"),
        ({"expires_at_ms": NEVER_MS, "priority": 8}, "put into orders, never expires"),
        (
            {"visible_at_ms": TEN_MS + MIN, "priority": 1},
            "put into orders, delayed until 10:01:00.000, priority 1, never expires",
        ),
    ],
)
def test_put(fields: dict[str, Any], text: str) -> None:
    """Delay and priority are told if there is one."""
    assert sentence("put", queue="orders", **fields) == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"visible_at_ms": TEN_MS}, "made visible at once"),
        ({"visible_at_ms": TEN_MS + MIN, "renewals": 0}, "deferred until 10:01:00.000"),
        (
            {"visible_at_ms": TEN_MS + MIN, "renewals": 2, "holder": "w1"},
            "renewed by w1 until 10:01:00.000 (renewal 2)",
        ),
    ],
)
def test_renewed(fields: dict[str, Any], text: str) -> None:
    """A lease that is renewed, a delay that is moved."""
    assert sentence("renewed", **fields) == text


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("failed", f"failed with w1 after 2.5 s; {LATER}"),
        (
            "interrupted",
            f"released after 2.5 s, because w1 was interrupted; {LATER}",
        ),
        ("returned", f"released by w1 after 2.5 s; {LATER}"),
    ],
)
def test_released(reason: str, text: str) -> None:
    """How the attempt ended, how long it took, and when the next one can begin."""
    story = lines(
        [
            event("received", **LEASE),
            event(
                "released",
                2_500,
                holder="w1",
                reason=reason,
                since_ms=TEN_MS + 2_500,
                visible_at_ms=TEN_MS + MIN,
            ),
        ]
    )
    assert story[1].text == text
    assert story[1].tone is Tone.WARNING


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (
            "poisoned",
            {"target": "orders-poison", "reason": "max_failures"},
            "moved to the poison queue orders-poison: too many failures",
        ),
        (
            "poisoned",
            {"target": "orders-poison", "reason": "looks odd"},
            'moved to the poison queue orders-poison: "looks odd"',
        ),
        ("poisoned", {"target": "p"}, "moved to the poison queue p: no reason given"),
        (
            "poisoned",
            {"target": "p", "reason": "buried", "error_type": "KeyError", "error": "no such codec"},
            'moved to the poison queue p: its worker buried it, after KeyError: "no such codec"',
        ),
        (
            "released",
            {"reason": "failed", "holder": "w1", "error": "no\nway"},
            'failed with w1: "no?way"; visible at once',
        ),
        ("put", {"queue": "q", "message_type": "clip"}, 'put into q as "clip", never expires'),
        ("redriven", {"target": "orders"}, "moved back to orders; visible at once"),
        ("amended", {}, "changed by an operator; visible at once, never expires"),
        ("removed", {"reason": "purge"}, "removed by a purge"),
        ("removed", {"reason": "else"}, 'removed: "else"'),
        (
            "lease-ended",
            {"reason": "session lost", "holder": "w1"},
            "the session of w1 was lost, and the lease ended; visible at once",
        ),
        ("lease-ended", {"reason": "else"}, 'the lease ended: "else"; visible at once'),
        ("expired", {}, "removed: its time to live had ended"),
        (
            "cancel-asked",
            {"reason": "wrong\nfile", "holder": "w1"},
            'an operator asked w1 to stop: "wrong?file"',
        ),
        (
            "refused",
            {"reason": "lapsed", "since_ms": TEN_MS - 95 * S},
            "a completion came too late: the lease had run out; the work had taken 1 min 35 s",
        ),
        ("refused", {"reason": "else"}, "a completion came too late: else"),
        (
            "staged",
            {"queue": "orders", "target": "run:7"},
            "staged for orders in transaction run:7",
        ),
        (
            "published",
            {"queue": "orders", "target": "run:7"},
            "published into orders by transaction run:7, never expires",
        ),
        ("discarded", {"target": "run:7"}, "discarded with transaction run:7"),
        (
            "discarded",
            {"target": "run:7", "reason": "duplicate"},
            "dropped by transaction run:7: its deduplication key had been used",
        ),
        (
            "claimed",
            {"target": "etl/4", **LEASE},
            "claimed by etl/4 (delivery 1, fence 1) until 10:00:31.000",
        ),
        ("settled", {"target": "etl/4"}, "completed with claim etl/4"),
        ("unclaimed", {"target": "etl/4"}, "released from claim etl/4; visible at once"),
        ("queue-deleted", {"queue": "orders"}, "queue orders deleted"),
        ("claim-extended", {"target": "etl/4"}, "claim etl/4 extended until an unknown moment"),
        ("claim-lapsed", {"target": "etl/4"}, "claim etl/4 ran out"),
        (
            "claim-reopened",
            {"target": "etl/4", "visible_at_ms": TEN_MS + 2 * DAY_MS},
            "claim etl/4 reopened until 2026-11-23 10:00:00.000",
        ),
        (
            "session-lost",
            {"session": "s1", "holder": "w1", "reason": "no heartbeat"},
            'session s1 of w1 was lost: "no heartbeat"',
        ),
        ("completed", {}, "completed by an unnamed receiver"),
        ("brand-new", {"reason": "news"}, 'brand-new: "news"'),
    ],
)
def test_sentences(kind: str, fields: dict[str, Any], text: str) -> None:
    """Each kind of event has its own; words of others are quoted, on one line."""
    assert sentence(kind, **fields) == text


def test_every_type_has_a_sentence() -> None:
    """So that no event is told by its bare name."""
    assert set(known_types()) == set(TYPE_NAMES.values())


def test_what_a_terminal_would_obey_is_not_shown() -> None:
    """A worker's name cannot move the cursor of who reads the story."""
    assert sentence("completed", holder="w\x1b[2J\n1") == "completed by w?[2J?1"


def test_long_words_are_cut() -> None:
    """What somebody gives as a reason has 120 characters at most."""
    whole, cut = (sentence("removed", reason="x" * length) for length in (120, 121))
    assert whole == f'removed: "{"x" * 120}"'
    assert cut == f'removed: "{"x" * 117}..."'


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (1, "1 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (59_999, "59.9 s"),
        (60_000, "1 min"),
        (DAY_MS + 60_000, "1 d"),
        (2 * DAY_MS + 3 * 60 * MIN, "2 d 3 h"),
    ],
)
def test_lengths(length_ms: int, text: str) -> None:
    """In one or two units, rounded down."""
    assert sentence("settled", length_ms, target="t", since_ms=TEN_MS).endswith(f"after {text}")


def test_the_story_needs_no_library() -> None:
    """The client can tell it without pyarrow, or anything else that has to be installed."""
    script = (
        "import sys, leasehold.events.trace; "
        "print([n for n in ('pyarrow', 'structlog', 'msgspec', 'apsw') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
