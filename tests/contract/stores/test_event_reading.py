"""Contract: the event log is read, forgotten, and kept small."""

from __future__ import annotations

from typing import Any

from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain.errors import LeaseLost, ReceiptMalformed
from leasehold.domain.events import Event, EventType
from leasehold.domain.model import NO_DETAIL, Detail, Message, Phase

from .conftest import ACCOUNT, QUEUE, Asker


def told(asker: Asker, after_seq: int) -> list[tuple[Any, ...]]:
    """Return type, queue, reason and target of the events since."""
    return [
        (str(event.type.name), event.queue, event.reason, event.target)
        for event in asker.events(after_seq)
    ]


def last_event(asker: Asker) -> Event:
    return asker.events()[-1]


def test_an_event_tells_the_message_as_it_is_after_the_change(asker: Asker) -> None:
    """With everything but what was sent."""
    put = asker.put(delay_s=5, priority=3)
    asker.clock.advance(s=5)
    session = asker.open_session("w1")
    (lease,) = asker.receive_in(session, lease_s=60)
    event = last_event(asker)
    message = lease.message
    assert event == Event(
        seq=event.seq,
        place=0,
        at_ms=asker.clock.now_ms(),
        type=EventType.RECEIVED,
        account=ACCOUNT,
        queue=QUEUE,
        message_id=put.message.message_id,
        inserted_at_ms=message.inserted_at_ms,
        expires_at_ms=message.expires_at_ms,
        visible_at_ms=message.visible_at_ms,
        dequeue_count=1,
        fence=1,
        phase=int(Phase.LEASED),
        since_ms=asker.clock.now_ms(),
        visible_since_ms=put.message.visible_at_ms,
        renewals=0,
        holder="w1",
        priority=3,
        session=session.session_id,
    )


def test_the_events_of_one_batch_have_one_number(asker: Asker) -> None:
    """And places from 0; a batch that changes nothing has none, and refused commands no event."""
    after = asker.last_seq()
    asker.batch(*(asker.put_command() for _ in range(3)))
    asker.peek()
    asker.put(queue="no")
    asker.batch(c.Receive(ACCOUNT, QUEUE, 2, 30), asker.put_command())
    events = asker.events(after)
    first, second = events[0].seq, events[-1].seq
    assert after < first < second
    assert [(event.seq, event.place) for event in events] == [
        *((first, place) for place in range(3)),
        *((second, place) for place in range(3)),
    ]
    assert asker.last_seq() == second


def test_events_of_a_batch_are_there_after_it(asker: Asker) -> None:
    """Not while it is carried out."""
    after = asker.last_seq()
    _, page = asker.batch(asker.put_command(), e.ReadEvents(after, 10))
    assert page == e.EventPage((), after, finished=True)
    assert len(asker.events(after)) == 1


def test_a_page_ends_with_a_whole_batch(asker: Asker) -> None:
    """So that one can go on behind it."""
    after = asker.last_seq()
    for _ in range(3):
        asker.batch(*(asker.put_command() for _ in range(3)))
    whole = asker.events(after)
    assert len(whole) == 9
    for limit, size in ((1, 3), (3, 3), (4, 6), (9, 9), (100, 9)):
        page = asker.ask(e.ReadEvents(after, limit))
        assert page == e.EventPage(tuple(whole[:size]), whole[size - 1].seq, finished=size == 9)
        assert asker.events(after, limit) == whole
    end = asker.ask(e.ReadEvents(whole[-1].seq, 5))
    assert end == e.EventPage((), whole[-1].seq, finished=True)


def test_the_events_of_one_message(asker: Asker) -> None:
    """Its trace, among those of others; or the events of one account."""
    asker.create(account="other")
    asker.ask(asker.put_command(account="other"))
    for _ in range(3):
        asker.batch(asker.put_command(), asker.put_command())
    lease = asker.receive(3)[2]
    asker.complete(lease)
    trace = asker.events(message_id=lease.message.message_id)
    assert [event.type for event in trace] == [
        EventType.PUT,
        EventType.RECEIVED,
        EventType.COMPLETED,
    ]
    assert {event.message_id for event in trace} == {lease.message.message_id}
    of_other = asker.events(account="other")
    assert [event.type for event in of_other] == [EventType.QUEUE_CREATED, EventType.PUT]
    assert asker.events(message_id="no") == []


def test_old_batches_can_be_forgotten(asker: Asker) -> None:
    """A few at a time, but never the last one."""
    start_ms = asker.clock.now_ms()
    for _ in range(5):
        asker.clock.advance(s=1)
        asker.put()
    extent = asker.ask(e.LogExtent())
    assert extent.oldest_at_ms == start_ms
    assert extent.bytes > 0
    numbers = sorted({event.seq for event in asker.events()})
    assert (extent.first_seq, extent.last_seq) == (numbers[0], numbers[-1])
    assert asker.ask(e.TrimEvents(numbers[3], 2)) == c.Swept(2)
    assert asker.ask(e.TrimEvents(numbers[3], 20)) == c.Swept(2)
    trimmed = asker.ask(e.LogExtent())
    assert (trimmed.first_seq, trimmed.last_seq) == (numbers[4], numbers[5])
    assert trimmed.oldest_at_ms == start_ms + 4_000
    assert 0 < trimmed.bytes < extent.bytes
    assert asker.ask(e.TrimEvents(numbers[5] + 100, 20)) == c.Swept(1)
    assert [event.seq for event in asker.events()] == [numbers[5]]
    asker.put()
    assert asker.last_seq() > numbers[5]


def test_a_new_store_has_no_log(empty: Asker) -> None:
    """Nothing to read, nothing to forget."""
    assert empty.ask(e.LogExtent()) == e.Extent(0, 0, 0, None)
    assert empty.events() == []
    assert empty.ask(e.TrimEvents(10, 10)) == c.Swept(0)


def test_notes_are_kept(empty: Asker) -> None:
    """By name, the last one of each."""
    assert empty.ask(e.ReadNote("export")) == e.Note(None)
    for content in ("1", "2"):
        assert empty.ask(e.KeepNote("export", content)) == c.DONE
    empty.ask(e.KeepNote("other", "3"))
    assert empty.ask(e.ReadNote("export")) == e.Note("2")
    assert empty.events() == []


def test_a_queue_can_be_kept_out_of_the_log(asker: Asker) -> None:
    """Nothing is told of it from then on."""
    asker.govern(event_log=False)
    after = asker.last_seq()
    asker.put()
    asker.complete(asker.receive_one())
    asker.stage("a")
    asker.publish()
    asker.stage("b", name="dropped")
    asker.discard("dropped")
    asker.attach()
    asker.claim()
    asker.clock.advance(s=60)
    asker.settle()
    asker.ask(c.Clear(ACCOUNT, QUEUE))
    asker.ask(c.DeleteQueue(ACCOUNT, QUEUE))
    assert asker.events(after) == []


def said_of(event: Event) -> tuple[Any, ...]:
    """Return what an event says, without where it stands in the log."""
    return (event.type, *event[5:])


def as_told(kind: EventType, message: Message, actor: str | None = None) -> tuple[Any, ...]:
    """Return what an event of a message without a detail says."""
    event = Event(
        0,
        0,
        0,
        kind,
        ACCOUNT,
        QUEUE,
        message.message_id,
        *message[2:12],
        message.priority,
        message.session,
        message_type=message.detail.message_type,
        actor=actor,
    )
    return said_of(event)


def test_events_of_many_messages_at_once(asker: Asker) -> None:
    """Each says what is its own, whatever it shares with the others."""
    after = asker.last_seq()
    puts = tuple(asker.put_command(str(n), delay_s=n % 2, time_to_live_s=60 + n) for n in range(12))
    sent = asker.ask(c.Batch(puts, actor="key:shop/1"))
    asker.clock.advance(s=1)
    leases = asker.receive(12, holder="w1")
    assert len(leases) == len(puts)
    moved = asker.renew(leases[3], 50)
    leases = [*leases[:3], moved, *leases[4:]]
    asker.batch(*map(asker.complete_command, leases))
    events = [said_of(event) for event in asker.events(after)]
    assert events[:12] == [as_told(EventType.PUT, put.message, "key:shop/1") for put in sent]
    assert {event[0] for event in events[12:24]} == {EventType.RECEIVED}
    assert events[13] == as_told(EventType.RECEIVED, leases[1].message)
    assert events[24] == as_told(EventType.RENEWED, moved.message)
    assert events[25:] == [as_told(EventType.COMPLETED, lease.message) for lease in leases]
    places = [(event.seq, event.place) for event in asker.events(after)]
    assert len(set(places)) == len(places)
    assert places == sorted(places)
    found = asker.ask(e.ReadEvents(after, 100, moved.message.message_id)).events
    kinds = [EventType.PUT, EventType.RECEIVED, EventType.RENEWED, EventType.COMPLETED]
    assert [event.type for event in found] == kinds


def test_events_of_many_messages_that_differ(asker: Asker) -> None:
    """In what was sent along, in who holds them, and in what came of the work."""
    after = asker.last_seq()
    details = [Detail(message_type=f"t{n}") if n % 3 else NO_DETAIL for n in range(12)]
    sent: list[Any] = asker.batch(
        *[asker.put_command(str(n), detail=d) for n, d in enumerate(details)]
    )
    leases = [*asker.receive(5, holder="w1"), *asker.receive(7, holder="w2")]
    asker.batch(
        *[
            asker.complete_command(lease)._replace(result=f"{n}" if n > 6 else None)
            for n, lease in enumerate(leases)
        ]
    )
    events = asker.events(after)
    assert [event.message_type for event in events] == [d.message_type for d in details] * 3
    assert [event.message_id for event in events[:12]] == [put.message.message_id for put in sent]
    assert [event.holder for event in events[24:]] == ["w1"] * 5 + ["w2"] * 7
    assert [event.result for event in events[24:]] == [None] * 7 + [f"{n}" for n in range(7, 12)]


def test_events_of_completes_some_of_which_are_refused(asker: Asker) -> None:
    """Whatever is wrong with a receipt of a run, the others act, and their order is kept."""
    asker.batch(*[asker.put_command(str(n)) for n in range(12)])
    leases = asker.receive(12)
    completes = [asker.complete_command(lease) for lease in leases]
    asker.renew(leases[2], 40)
    wrong = {
        2: completes[2],
        4: completes[4]._replace(receipt="x" * 36),
        6: completes[6]._replace(receipt=completes[6].receipt[:-1] + "+"),
        7: completes[7]._replace(receipt="\u0660" * 36),
        9: completes[9]._replace(receipt=completes[8].receipt),
    }
    after = asker.last_seq()
    results = asker.batch(*[wrong.get(n, each) for n, each in enumerate(completes)])
    refused = {n: type(result) for n, result in enumerate(results) if result != c.DONE}
    assert refused.keys() == wrong.keys()
    assert refused[6] is refused[7] is ReceiptMalformed
    assert refused[2] is refused[4] is LeaseLost
    completed = [event for event in asker.events(after) if event.type is EventType.COMPLETED]
    done = [lease.message.message_id for n, lease in enumerate(leases) if n not in wrong]
    assert [event.message_id for event in completed] == done
