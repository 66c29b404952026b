"""Contract: events say what a message is, why work on it failed, and how long late work took."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain.claims import Exemption
from leasehold.domain.event_recorder import late
from leasehold.domain.events import Event, EventType
from leasehold.domain.model import (
    MAX_ATTEMPTS,
    NO_DETAIL,
    Attempt,
    Detail,
    ErrorReport,
    Outcome,
    ReceiptParts,
)

from .conftest import ACCOUNT, Asker

# --- completes that came too late --------------------------------------------------------------


def test_a_complete_two_leases_late(asker: Asker) -> None:
    """Each receipt has a lease of its own, and its renewals belong to that."""
    asker.put()
    began, leases, renewed = [], [], []
    for _ in range(3):
        began.append(asker.clock.now_ms())
        leases.append(asker.receive_one(lease_s=10))
        asker.clock.advance(s=2)
        renewed.append(asker.renew(leases[-1], 10))
        asker.clock.advance(s=15)
    after = asker.last_seq()
    for lease in (*leases, *renewed[:2]):
        asker.complete(lease)
    assert {event.reason for event in asker.events(after)} == {"superseded"}
    assert [event.since_ms for event in asker.events(after)] == [*began, *began[:2]]
    assert asker.complete(renewed[2]) == c.DONE


def test_a_late_complete_of_no_lease_or_of_a_forgotten_one(asker: Asker) -> None:
    """Nobody can tell how long the work took."""
    put = asker.put()
    start_ms = asker.clock.now_ms()
    leases = []
    for _ in range(MAX_ATTEMPTS + 2):
        leases.append(asker.receive_one(lease_s=1))
        asker.clock.advance(s=1)
    given_back = asker.renew(leases[-1], 0)
    asker.receive_one()
    after = asker.last_seq()
    for lease in (put, leases[0], leases[1], leases[2], leases[3], given_back):
        asker.complete(lease)
    known = [start_ms, None, None, start_ms + 3_000]
    assert [event.since_ms for event in asker.events(after)] == [None, *known, None]


def test_an_attempt_of_an_older_version_has_no_receipts(asker: Asker) -> None:
    """It was written down without them; a receipt of before belongs to none that is known."""
    put = asker.put()
    asker.receive_one()
    message = asker.find(put).message
    old = Attempt(number=1, leased_at_ms=5, ended_at_ms=6, outcome=Outcome.LAPSED, renewals=1)
    message = message._replace(detail=Detail(attempts=(old,)), fence=9)
    assert [late(message, ReceiptParts(1, fence, True)).since_ms for fence in (0, 1, 8)] == [0] * 3
    assert late(message, ReceiptParts(1, 9, True)).since_ms == message.since_ms


# --- what messages are, and why work on them failed --------------------------------------------

REPORT = ErrorReport(text="no such codec", type="KeyError", fingerprint="f00d")


def told(event: Event) -> tuple[str | None, str | None, str | None]:
    """Return type, fingerprint and text of the error."""
    return event.error_type, event.error_fingerprint, event.error


def errors(asker: Asker, after: int) -> list[tuple[Any, ...]]:
    """Return the type, and the error, of the messages' events since."""
    events = [event for event in asker.events(after) if event.message_id]
    return [(event.type.name, *told(event)) for event in events]


TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


def traceparent(trace_id: str) -> str:
    """Return a trace context of W3C."""
    return f"00-{trace_id}-00f067aa0ba902b7-01"


def test_every_event_of_a_message_has_its_type_and_trace(asker: Asker) -> None:
    """Whatever happens to it, and however many it happens to at once."""
    typed = Detail(message_type="clip", traceparent=traceparent(TRACE_ID), properties={"a": "b"})
    after = asker.last_seq()
    for number in range(4):
        asker.put(f"{number}", detail=typed)
    lease = asker.receive_one(lease_s=5)
    asker.fail(asker.renew(lease, 5), delay_s=0)
    asker.clock.advance(s=1)
    asker.bury("4", detail=typed)
    asker.run_job(o.JobKind.REDRIVE)
    asker.complete(asker.receive_one())
    asker.complete(asker.receive_one(lease_s=1))
    asker.put("5", detail=typed, time_to_live_s=100)
    asker.stage("6", detail=typed)
    asker.publish()
    asker.stage("7", detail=typed, name="x")
    asker.discard("x")
    asker.attach()
    asker.claim(1, 2, 30)
    asker.settle(1)
    asker.claim(2, 9, 30)
    asker.give_claim_back(2)
    asker.clock.advance(s=100)
    asker.ask(c.RetireExpired(10))
    events = [event for event in asker.events(after) if event.message_id]
    assert {(event.message_type, event.trace_id) for event in events} == {("clip", TRACE_ID)}
    names = {event.type.name for event in events}
    assert names > {"COMPLETED", "EXPIRED", "STAGED", "PUBLISHED", "DISCARDED", "SETTLED"}
    assert {"CLAIMED", "UNCLAIMED", "POISONED", "REDRIVEN", "RELEASED"} < names


@pytest.mark.parametrize(
    "sent",
    [
        [("a", None), (None, None), ("b", None), ("a", None), ("ü", None)],
        [(None, f"{number:032x}") for number in range(1, 6)],
        [("a", TRACE_ID), ("b", None), (None, TRACE_ID), (None, None), ("a", "f" * 32)],
        [("a", "f" * 32)] * 5,
    ],
    ids=["types", "traces", "both", "alike"],
)
def test_types_and_traces_of_many_at_once(
    asker: Asker, sent: list[tuple[str | None, str | None]]
) -> None:
    """Alike, different, or there for some only; in completes as well."""
    of = {}
    for kind, trace in sent * 8:
        detail = Detail(message_type=kind, traceparent=trace and traceparent(trace))
        put = asker.put(detail=NO_DETAIL if detail == NO_DETAIL else detail)
        of[put.message.message_id] = kind, trace
    after = asker.last_seq()
    leases = asker.receive(20)
    asker.batch(*(asker.complete_command(lease) for lease in leases))
    asker.attach()
    asker.claim(1, 20, 30)
    member = asker.read_claim()[0]
    asker.settle(1, exemptions=(Exemption(1, member.message_id, Outcome.BURIED, error=REPORT),))
    events = [event for event in asker.events(after) if event.message_id]
    found = [(event.message_type, event.trace_id) for event in events]
    assert found == [of[event.message_id] for event in events]
    counted = Counter(event.type.name for event in events)
    assert counted == {"RECEIVED": 20, "COMPLETED": 20, "CLAIMED": 20, "SETTLED": 19, "POISONED": 1}
    (poisoned,) = [event for event in events if event.type is EventType.POISONED]
    assert told(poisoned) == ("KeyError", "f00d", "no such codec")


def test_the_error_of_the_attempt_that_an_event_ended(asker: Asker) -> None:
    """As the worker told it, on that event alone."""
    asker.limit_failures(max_failures=2)
    asker.put()
    after = asker.last_seq()
    for _ in range(2):
        asker.release(asker.receive_one(), Outcome.FAILED, error=REPORT, delay_s=0)
    report = ("KeyError", "f00d", "no such codec")
    nothing = (None, None, None)
    assert errors(asker, after) == [
        ("RECEIVED", *nothing),
        ("RELEASED", *report),
        ("RECEIVED", *nothing),
        ("POISONED", *report),
    ]


def test_errors_that_the_server_tells(asker: Asker) -> None:
    """Of leases that others ended: the reason. A lapse has none, and what it poisons neither."""
    asker.limit_failures(max_lapses=2)
    asker.put()
    after = asker.last_seq()
    asker.fail(asker.receive_one(), delay_s=0)
    asker.end_lease(asker.receive_one(), reason="stuck")
    session = asker.open_session(timeout_s=60)
    asker.receive_in(session)
    asker.ask(s.EndSession(ACCOUNT, session.session_id, "deploy"))
    for _ in range(2):
        asker.receive_one(lease_s=1)
        asker.clock.advance(s=1)
    assert not asker.receive()
    assert [each for each in errors(asker, after) if each[0] != "RECEIVED"] == [
        ("RELEASED", None, None, "no such codec"),
        ("LEASE_ENDED", None, None, "stuck"),
        ("LEASE_ENDED", None, None, "deploy"),
        ("LAPSED", None, None, None),
        ("LAPSED", None, None, None),
        ("POISONED", None, None, None),
    ]


def test_an_error_told_without_a_lease(asker: Asker) -> None:
    """The sender may give a message back, too; no attempt has ended with that."""
    put = asker.put()
    after = asker.last_seq()
    asker.release(put, Outcome.FAILED, error=REPORT)
    assert errors(asker, after) == [("RELEASED", None, None, None)]


def test_long_and_broken_errors(asker: Asker) -> None:
    """The text is cut, and half a character is no reason to lose the event."""
    asker.put(detail=Detail(message_type="\ud800"))
    after = asker.last_seq()
    asker.fail(asker.receive_one(), "x" * 300 + "\ud800", delay_s=0)
    report = ErrorReport(text="\ud800", type="T\ud800", fingerprint="\ud800")
    asker.release(asker.receive_one(), Outcome.FAILED, error=report, delay_s=0)
    asker.complete(asker.receive_one())
    events = asker.events(after)
    assert {event.message_type for event in events} == {"?"}
    assert events[1].error == "x" * 253 + "..."
    assert told(events[3]) == ("T?", "?", "?")


@pytest.mark.parametrize(
    "sent",
    [
        "00-1-2-01",
        traceparent("0" * 32),
        traceparent(TRACE_ID.upper()),
        traceparent(TRACE_ID)[:-1],
        f"ff{traceparent(TRACE_ID)[2:]}",
        f"{traceparent(TRACE_ID)}-more",
        "\ud800",
        "",
    ],
)
def test_no_trace_in_what_is_no_trace_context(asker: Asker, sent: str) -> None:
    """Protocols that take any text keep it; the log has a trace only where the text is W3C's."""
    after = asker.last_seq()
    asker.put(detail=Detail(traceparent=sent))
    asker.complete(asker.receive_one())
    assert [event.trace_id for event in asker.events(after)] == [None] * 3


def test_a_trace_context_of_a_later_version(asker: Asker) -> None:
    """It begins with the same parts, and more may follow."""
    after = asker.last_seq()
    asker.put(detail=Detail(traceparent=f"01{traceparent(TRACE_ID)[2:]}-more"))
    assert [event.trace_id for event in asker.events(after)] == [TRACE_ID]


def test_a_trace_and_an_error(asker: Asker) -> None:
    """An event has both."""
    asker.put(detail=Detail(traceparent=traceparent(TRACE_ID)))
    after = asker.last_seq()
    asker.release(asker.receive_one(), Outcome.FAILED, error=REPORT, delay_s=0)
    released = asker.events(after)[-1]
    assert (told(released), released.trace_id) == (("KeyError", "f00d", "no such codec"), TRACE_ID)


# --- what came of the work ---------------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 12])
def test_the_result_of_a_complete(asker: Asker, many: int) -> None:
    """The event has it, whichever way a run of completes takes, and nothing else changes."""
    for number in range(many):
        detail = Detail(group_id="g", message_type="clip") if number % 2 else NO_DETAIL
        asker.put(detail=detail)
    leases = asker.receive(many)
    after = asker.last_seq()
    commands = [
        asker.complete_command(each)._replace(result=None if number % 3 else f"[{number}]")
        for number, each in enumerate(leases)
    ]
    assert asker.batch(*commands) == [c.DONE] * many
    events = {event.message_id: event for event in asker.events(after)}
    for number, lease in enumerate(leases):
        event = events[lease.message.message_id]
        assert event.type == EventType.COMPLETED
        assert event.result == (None if number % 3 else f"[{number}]")
        assert event.group_id == lease.message.detail.group_id
        assert event.actor is None


def test_a_refused_complete_has_no_result(asker: Asker) -> None:
    """What another worker does, or has done, again is no result of this one."""
    asker.put()
    lease = asker.receive_one(lease_s=10)
    asker.clock.advance(s=20)
    asker.receive_one()
    after = asker.last_seq()
    asker.ask(asker.complete_command(lease)._replace(result="{}"))
    assert [(event.type, event.result) for event in asker.events(after)] == [
        (EventType.REFUSED, None)
    ]
