"""How events are collected, and what they say."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain.claims import Claim, ClaimState
from leasehold.domain.errors import LeaseLost
from leasehold.domain.event_recorder import Recorder, event_of_renewal, is_recorded
from leasehold.domain.events import REMOVING, Event, EventType, event_of, is_removing
from leasehold.domain.model import Message, Phase
from leasehold.domain.sessions import Session, SessionState

NOW = 1_000_000
MESSAGE = Message(
    "id", b"", NOW, NOW + 9, NOW + 5, 2, 3, Phase.LEASED, NOW + 1, NOW + 2, 4, "w1", 7, session="s"
)
CLAIM = Claim(
    account="coho",
    queue="videos",
    stream="nightly",
    number=3,
    state=ClaimState.OPEN,
    size=1,
    limit=1,
    opened_at_ms=NOW,
    until_ms=NOW + 30,
    holder="driver",
)
SESSION = Session(
    session_id="5e55",
    account="coho",
    holder="w1",
    state=SessionState.LOST,
    timeout_s=10,
    progress_timeout_s=None,
    started_at_ms=NOW,
    last_heartbeat_ms=NOW,
    reason="silent",
)


def taken(recorder: Recorder) -> list[Event]:
    of, events = recorder.take()
    return [event_of(9, place, NOW, of[each[1]], each) for place, each in enumerate(events)]


def test_events_are_collected_in_order() -> None:
    """Each with its queue; a batch begins anew."""
    recorder = Recorder()
    recorder.add(EventType.RECEIVED, "coho", "videos", MESSAGE)
    recorder.add(EventType.POISONED, "coho", "audio", MESSAGE, "buried", "audio-poison")
    recorder.add(EventType.QUEUE_CLEARED, "coho", "videos", None)
    recorder.add_of_claim(EventType.CLAIM_EXTENDED, CLAIM)
    recorder.add_of_session(EventType.SESSION_LOST, SESSION)
    whole = {
        "message_id": "id",
        "inserted_at_ms": NOW,
        "expires_at_ms": NOW + 9,
        "visible_at_ms": NOW + 5,
        "dequeue_count": 2,
        "fence": 3,
        "phase": 2,
        "since_ms": NOW + 1,
        "visible_since_ms": NOW + 2,
        "renewals": 4,
        "holder": "w1",
        "priority": 7,
        "session": "s",
    }
    of_claim = {"visible_at_ms": NOW + 30, "holder": "driver", "target": "nightly/3"}
    of_session = {"session": "5e55", "holder": "w1", "reason": "silent"}
    bare = Event(9, 0, NOW, EventType.RECEIVED, "coho", "videos")
    assert taken(recorder) == [
        bare._replace(**whole),  # type: ignore[arg-type]
        bare._replace(
            place=1,
            type=EventType.POISONED,
            queue="audio",
            reason="buried",
            target="audio-poison",
            **whole,  # type: ignore[arg-type]
        ),
        bare._replace(place=2, type=EventType.QUEUE_CLEARED),
        bare._replace(place=3, type=EventType.CLAIM_EXTENDED, **of_claim),  # type: ignore[arg-type]
        bare._replace(place=4, type=EventType.SESSION_LOST, queue=None, **of_session),  # type: ignore[arg-type]
    ]
    assert recorder.take() == ((), ())


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ((), {}),
        (("clip", None), {"message_type": "clip"}),
        ((None, ("E", "f", "x")), {"error_type": "E", "error_fingerprint": "f", "error": "x"}),
        ((None, None, "1" * 32), {"trace_id": "1" * 32}),
        ((None, None, None, "acme"), {"group_id": "acme"}),
        ((None, None, None, None, "key:shop/1"), {"actor": "key:shop/1"}),
        ((None, None, None, None, None, "{}"), {"result": "{}"}),
        (
            ("clip", None, None, "acme", None, None, "news"),
            {"message_type": "clip", "group_id": "acme"},
        ),
    ],
    ids=["at first", "types", "errors", "traces", "groups", "actors", "results", "newer"],
)
def test_events_of_all_versions(ending: tuple[Any, ...], expected: dict[str, str]) -> None:
    """Each version has more at the end than the one before, and what came later is none."""
    recorder = Recorder()
    recorder.add(EventType.RECEIVED, "coho", "videos", MESSAGE)
    of, (plain,) = recorder.take()
    event = event_of(9, 0, NOW, of[0], (*plain, *ending))
    later = {"message_type", "error_type", "error_fingerprint", "error", "trace_id", "group_id"}
    later |= {"actor", "result"}
    found = {name: getattr(event, name) for name in later}
    nothing: dict[str, Any] = dict.fromkeys(later)
    assert found == {**nothing, **expected}
    assert event._replace(**nothing) == event_of(9, 0, NOW, of[0], plain)


@pytest.mark.parametrize(
    ("phase", "timeout_s", "kind", "reason"),
    [
        (Phase.LEASED, 30, EventType.RENEWED, None),
        (Phase.LEASED, 0, EventType.RELEASED, "returned"),
        (Phase.DEFERRED, 0, EventType.RENEWED, None),
        (Phase.WAITING, 0, EventType.RENEWED, None),
    ],
)
def test_renewals(phase: Phase, timeout_s: int, kind: EventType, reason: str | None) -> None:
    """One for no time gives a lease back, if there was one."""
    assert event_of_renewal(MESSAGE._replace(phase=phase), timeout_s) == (kind, reason)


def test_late_completes() -> None:
    """They are recorded, and mistakes are not."""
    assert is_recorded(LeaseLost("superseded"))
    assert is_recorded(LeaseLost("lapsed"))
    assert not is_recorded(LeaseLost("foreign"))


def test_what_removes() -> None:
    """After these the message is gone, and after no other."""
    assert {kind for kind in EventType if is_removing(kind)} == REMOVING
