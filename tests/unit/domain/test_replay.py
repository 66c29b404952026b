"""From events to messages."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain.events import REMOVING, Event, EventType, ReplayedMessage, replay
from leasehold.domain.model import Phase


def event(kind: EventType, message_id: str | None = "m", **fields: Any) -> Event:
    """Return an event of a message, or of something else with None."""
    place = fields.pop("place", 0)
    plain = Event(1, place, 5, kind, "coho", fields.pop("queue", "videos"))
    if message_id is not None:
        fields = {
            "message_id": message_id,
            "inserted_at_ms": 1,
            "expires_at_ms": 90,
            "visible_at_ms": 2,
            "dequeue_count": 0,
            "fence": 0,
            "phase": 0,
            "since_ms": 1,
            "visible_since_ms": 0,
            "renewals": 0,
            "priority": 8,
        } | fields
    return plain._replace(**fields)


PUT = event(EventType.PUT)
CLAIMED = event(EventType.CLAIMED, visible_at_ms=50, target="s/1", phase=2, dequeue_count=1)


def of_claim(kind: EventType, until_ms: int) -> Event:
    return event(kind, None, visible_at_ms=until_ms, target="s/1")


def test_nothing() -> None:
    """No events, no messages."""
    assert replay([]) == {}


def test_a_message_is_as_its_last_event_tells() -> None:
    """All of it."""
    received = event(
        EventType.RECEIVED,
        visible_at_ms=40,
        dequeue_count=1,
        fence=1,
        phase=2,
        since_ms=5,
        visible_since_ms=2,
        holder="w1",
        session="5e55",
    )
    assert replay([PUT, received]) == {
        "m": ReplayedMessage(
            "coho", "videos", 1, 90, 40, 1, 1, Phase.LEASED, 5, 2, 0, "w1", 8, "5e55"
        )
    }


@pytest.mark.parametrize("kind", sorted(REMOVING))
def test_what_removes_removes(kind: EventType) -> None:
    """The message, and no other."""
    events = [PUT, event(EventType.PUT, "n"), event(kind)]
    assert replay(events).keys() == {"n"}
    assert replay([event(kind)]) == {}


@pytest.mark.parametrize("kind", [EventType.POISONED, EventType.REDRIVEN])
def test_what_moves_moves(kind: EventType) -> None:
    """To the queue that the event names."""
    events = [PUT, event(kind, target="elsewhere")]
    assert replay(events)["m"].queue == "elsewhere"
    cleared = event(EventType.QUEUE_CLEARED, None)
    assert "m" in replay([*events, cleared])
    assert replay([*events, cleared._replace(queue="elsewhere")]) == {}


def test_a_refused_complete_changes_nothing() -> None:
    """It tells of a lease of before."""
    refused = event(EventType.REFUSED, since_ms=77)
    assert replay([PUT, refused]) == replay([PUT])
    assert replay([refused]) == {}


def test_sessions_and_new_queues_change_nothing() -> None:
    """There is no message in them."""
    others = [
        event(EventType.SESSION_LOST, None, queue=None, session="5e55"),
        event(EventType.QUEUE_CREATED, None),
    ]
    assert replay([PUT, *others]) == replay([PUT])


def test_staged() -> None:
    """Under its transaction until it is published; clearing its queue leaves it alone."""
    staged = event(EventType.STAGED, target="tx")
    assert replay([staged])["m"].staged == "tx"
    assert replay([staged, event(EventType.QUEUE_DELETED, None)])["m"].staged == "tx"
    published = event(EventType.PUBLISHED, target="tx", inserted_at_ms=7)
    assert replay([staged, published])["m"][2:16:12] == (7, None)
    assert replay([staged, published, event(EventType.QUEUE_DELETED, None)]) == {}


def test_members_follow_their_claim() -> None:
    """An extension is one event for all of them, and so are lapses."""
    extended = of_claim(EventType.CLAIM_EXTENDED, 70)
    member = replay([PUT, CLAIMED, extended])["m"]
    assert (member.visible_at_ms, member.claim, member.phase) == (70, "s/1", Phase.LEASED)
    lapsed = of_claim(EventType.CLAIM_LAPSED, 70)
    member = replay([PUT, CLAIMED, extended, lapsed])["m"]
    assert (member.visible_at_ms, member.claim) == (70, None)
    reopened = of_claim(EventType.CLAIM_REOPENED, 95)
    member = replay([PUT, CLAIMED, extended, lapsed, reopened])["m"]
    assert (member.visible_at_ms, member.claim) == (95, "s/1")


def test_a_later_step_of_opening_moves_the_end() -> None:
    """Of the members taken before, too."""
    later = CLAIMED._replace(message_id="n", visible_at_ms=60)
    messages = replay([CLAIMED, later])
    assert [messages[each].visible_at_ms for each in "mn"] == [60, 60]


@pytest.mark.parametrize(
    "kind", [EventType.UNCLAIMED, EventType.RELEASED, EventType.RECEIVED, EventType.AMENDED]
)
def test_what_leaves_a_claim_has_left_it(kind: EventType) -> None:
    """Later extensions are nothing to it."""
    left = event(kind, visible_at_ms=33)
    extended = of_claim(EventType.CLAIM_EXTENDED, 99)
    message = replay([CLAIMED, left, extended])["m"]
    assert (message.visible_at_ms, message.claim) == (33, None)


def test_asked_to_stop_it_is_still_in_its_claim() -> None:
    """Nothing but a wish has changed."""
    asked = event(EventType.CANCEL_ASKED, visible_at_ms=50, phase=2, dequeue_count=1)
    extended = of_claim(EventType.CLAIM_EXTENDED, 99)
    message = replay([CLAIMED, asked, extended])["m"]
    assert (message.visible_at_ms, message.claim) == (99, "s/1")
