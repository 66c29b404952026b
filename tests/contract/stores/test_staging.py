"""Contract: messages are staged, and published together or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import transactions as sg
from leasehold.domain.errors import (
    AlreadyPublished,
    ChunkOutOfTurn,
    LeaseLost,
    MessageNotFound,
    NotDone,
    QueueNotFound,
    StagedNotFound,
    VisibilityPastExpiry,
)
from leasehold.domain.events import EventType, replay
from leasehold.domain.filters import MessageFilter
from leasehold.domain.model import NEVER_MS, NO_DETAIL, Detail, MessageState, Outcome, Phase
from leasehold.domain.transactions import StagedPart, TransactionState

from .conftest import ACCOUNT, QUEUE, STREAM, Asker


def published(**queues: int) -> sg.Published:
    """Return the answer for so many messages to each of these queues."""
    return sg.Published(sum(queues.values()), by_queue=tuple(sorted(queues.items())))


# --- staging -----------------------------------------------------------------------------------


def test_staged_messages_are_seen_by_nobody(asker: Asker) -> None:
    """Neither received nor counted with the others, but listed for those who look."""
    assert asker.stage("a", "b") == sg.Staged(2, 1)
    assert asker.received() == []
    assert asker.bodies() == []
    assert asker.count() == 0
    counts = asker.counts()
    assert (counts.total, counts.staged, counts.since) == (0, 2, {})
    assert asker.due_ms() is None
    page = asker.inspect()
    assert [(seen.message.body, str(seen.state), seen.under) for seen in page.messages] == [
        (b"a", "staged", "tx"),
        (b"b", "staged", "tx"),
    ]
    assert asker.inspected(states=["staged"]) == [(b"a", "staged"), (b"b", "staged")]
    assert asker.inspected(states=["visible", "delayed"]) == []
    message_id = page.messages[0].message.message_id
    assert asker.ask(o.FindMessage(ACCOUNT, QUEUE, message_id)) == page.messages[0]


@pytest.mark.parametrize("detail", [NO_DETAIL, Detail(message_type="t")], ids=["plain", "typed"])
@pytest.mark.parametrize("delay_s", [0, 7])
def test_messages_that_are_alike_are_as_others(asker: Asker, delay_s: int, detail: Detail) -> None:
    """What is staged as messages that differ by their bodies alone is what puts would be."""
    bodies = [b"", b"small", b"\x00" * 256, b"x" * 257, b"y" * 2_000]
    drawn = bytes(range(10 * len(bodies)))
    alike = sg.AlikePuts(ACCOUNT, QUEUE, bodies, drawn, delay_s, 60, detail, 3)
    assert asker.ask(sg.Stage(ACCOUNT, "tx", "one", 0, alike)) == sg.Staged(5, 1)
    assert asker.ask(sg.Stage(ACCOUNT, "tx", "two", 0, alike[:])) == sg.Staged(5, 1)
    asker.clock.advance(s=1)
    assert asker.publish() == published(videos=10)
    asker.clock.advance(s=delay_s)
    leases = asker.ask(c.Receive(ACCOUNT, QUEUE, 20, 30))
    messages = [lease.message for lease in leases]
    assert [message.body for message in messages] == bodies * 2
    assert len({message.message_id for message in messages}) == len(messages)
    for one, two in zip(messages[:5], messages[5:], strict=True):
        assert one == two._replace(message_id=one.message_id)
        assert (one.priority, one.detail) == (3, detail)
        assert one.message_id[13:] == two.message_id[13:]  # what was drawn, marked as an id
    for kind in (EventType.STAGED, EventType.PUBLISHED):
        told = [event for event in asker.events() if event.type is kind]
        assert [event.message_id for event in told] == [message.message_id for message in messages]
        assert {(each.priority, each.message_type) for each in told} == {(3, detail.message_type)}
        times = {(each.inserted_at_ms, each.expires_at_ms, each.visible_at_ms) for each in told}
        assert len(times) == 1
    assert times == {
        (one.inserted_at_ms, one.expires_at_ms, one.visible_since_ms) for one in messages
    }


def stage_bodies(asker: Asker, bodies: list[bytes], chunk: int = 0) -> None:
    """Stage messages that differ by their bodies alone."""
    drawn = bytes(number % 251 for number in range(10 * len(bodies)))
    alike = sg.AlikePuts(ACCOUNT, QUEUE, bodies, drawn, 0, 600, NO_DETAIL, 8)
    assert asker.ask(sg.Stage(ACCOUNT, "tx", "", chunk, alike)).chunks == chunk + 1


def middling(count: int, first: int = 0) -> list[bytes]:
    """Return bodies that are too large for a row and too small for pages of their own."""
    return [b"%04d" % number + b"." * (300 + number * 97 % 3500) for number in range(first, count)]


@pytest.mark.parametrize("count", [1, 16, 17, 40])
def test_many_bodies_that_are_alike_are_as_others(asker: Asker, count: int) -> None:
    """Each message has its own body, whichever of them go first, and can be given another."""
    bodies = middling(count)
    stage_bodies(asker, bodies)
    asker.put("before")
    assert asker.publish() == published(videos=count)
    assert sorted(asker.bodies(100)) == sorted([b"before", *bodies])
    messages = [seen.message for seen in asker.inspect(limit=100).messages]
    assert sorted(message.body for message in messages) == sorted([b"before", *bodies])
    leases = [lease for lease in asker.receive(100) if lease.message.body != b"before"]
    assert [lease.message.body for lease in leases] == bodies
    for lease in leases[1::3]:
        asker.complete(lease)
    changed = b"another" * 100
    renewed = asker.renew(leases[0], 10, changed)
    assert renewed.message.body == changed
    asker.clock.advance(s=30)
    left = [changed, *(body for place, body in enumerate(bodies) if place and place % 3 != 1)]
    leases = [lease for lease in asker.receive(100) if lease.message.body != b"before"]
    assert sorted(lease.message.body for lease in leases) == sorted(left)
    for lease in leases:
        asker.complete(lease)
    assert asker.inspected(100) == [(b"before", "leased")]


@pytest.mark.parametrize("limit", [3, 100])
@pytest.mark.parametrize("columns", [True, False])
def test_a_claim_of_many_bodies_that_are_alike(asker: Asker, limit: int, columns: bool) -> None:
    """They are read in their order, in parts and pages, and count for a bound of bytes."""
    bodies = middling(60)
    stage_bodies(asker, bodies[:45])
    stage_bodies(asker, bodies[45:], 1)
    asker.publish()
    asker.attach()
    bound = sum(map(len, bodies[:50]))
    asker.claim(1, 100, max_bytes=bound)
    found, after = [], ""
    for part in range(2):
        while True:
            command = cl.ReadClaim(ACCOUNT, QUEUE, STREAM, 1, part, 2, after, limit, columns)
            page = asker.ask(command)
            if isinstance(page, cl.MemberPage):
                found += [message.body for message in page.messages]
            else:
                joined, at = b"".join(page.bodies), 0
                for size in page.sizes:
                    found.append(joined[at : at + size])
                    at += size
            if page.next_after is None:
                break
            after = page.next_after
        after = ""
    assert found == bodies[:50]
    asker.settle()
    assert asker.bodies(100) == bodies[50:]


def test_a_listing_mixes_staged_messages_in(asker: Asker) -> None:
    """In the order in which they were put; on as many pages as it takes."""
    asker.put("1")
    asker.stage("2", "3")
    asker.put("4")
    for limit in (1, 2, 10):
        assert [body for body, _ in asker.inspected(limit)] == [b"1", b"2", b"3", b"4"]
    assert [body for body, _ in asker.inspected(text="3")] == [b"3"]


def test_staged_messages_are_out_of_reach(asker: Asker) -> None:
    """Of operators, jobs and sweeps, and of clearing: they are not in the queue yet."""
    asker.stage("a", time_to_live_s=10)
    message_id = asker.inspect().messages[0].message.message_id
    named = (ACCOUNT, QUEUE, message_id)
    for command in (
        o.Amend(*named, body=b"b", force=True),
        o.Remove(*named, force=True),
        o.EndLease(*named),
    ):
        assert isinstance(asker.ask(command), MessageNotFound)
    everything = MessageFilter(states=frozenset(MessageState))
    assert asker.run_job(o.JobKind.PURGE, filter=everything).moved == 0
    asker.ask(c.Clear(ACCOUNT, QUEUE))
    asker.clock.advance(s=20)
    assert asker.ask(c.RetireExpired(10)) == c.Swept(0)
    assert asker.inspected() == [(b"a", "staged")]
    assert asker.publish() == published(videos=1)
    assert asker.received() == [b"a"]


def test_a_transaction_can_be_looked_at(asker: Asker) -> None:
    """Its parts by name, and when it vanishes: so long after the last that was staged."""
    start_ms = asker.clock.now_ms()
    asker.stage("a", "b", part="p2", timeout_s=100)
    asker.clock.advance(s=5)
    asker.stage("c", part="p1", timeout_s=10)
    asker.stage(part="p2", chunk=1, timeout_s=20)
    expected = sg.Transaction(
        account=ACCOUNT,
        name="tx",
        state=TransactionState.STAGED,
        created_at_ms=start_ms,
        until_ms=start_ms + 100_000,
        rows=3,
        parts=(
            StagedPart(part="p1", rows=1, chunks=1),
            StagedPart(part="p2", rows=2, chunks=2),
        ),
    )
    assert asker.transaction() == expected
    asker.stage("d", part="p1", chunk=1, timeout_s=100)
    assert asker.transaction().until_ms == start_ms + 105_000
    assert isinstance(asker.transaction("no"), StagedNotFound)


def test_chunks_come_in_turn(asker: Asker) -> None:
    """A repeated one is not staged twice, and one that comes too early is refused."""
    assert asker.stage("a", chunk=0) == sg.Staged(1, 1)
    assert asker.stage("b", "c", chunk=1) == sg.Staged(3, 2)
    for chunk in (0, 1):
        assert asker.stage("again", chunk=chunk) == sg.Staged(3, 2, duplicate=True)
    refused = asker.stage("d", chunk=3)
    assert isinstance(refused, ChunkOutOfTurn)
    assert refused.expected == 2
    assert isinstance(asker.stage("e", part="new", chunk=1), ChunkOutOfTurn)
    assert [part.part for part in asker.transaction().parts] == [""]
    assert asker.publish() == published(videos=3)
    assert asker.received() == [b"a", b"b", b"c"]


def test_a_chunk_may_be_empty_after_a_purge_began(asker: Asker) -> None:
    """A purge sets an end to the row keys in use; a chunk without messages needs none."""
    asker.put("before")
    asker.start_job(o.JobKind.PURGE)
    assert asker.stage() == sg.Staged(0, 1)
    assert asker.stage("a", chunk=1) == sg.Staged(1, 2)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"queue": "no"}, QueueNotFound),
        ({"delay_s": 5, "time_to_live_s": 5}, VisibilityPastExpiry),
    ],
)
def test_one_that_is_refused_keeps_all_from_being_staged(
    asker: Asker, wrong: dict[str, Any], error: type[Exception]
) -> None:
    """The transaction is as it was, or not there at all."""
    for known in (False, True):
        puts = (asker.put_command("fine"), asker.put_command("wrong", **wrong))
        refused = asker.ask(sg.Stage(ACCOUNT, "tx", "p", 0, puts, 10))
        assert isinstance(refused, error)
        if known:
            assert asker.transaction().parts == (StagedPart(part="", rows=1, chunks=1),)
        else:
            assert isinstance(asker.transaction(), StagedNotFound)
        assert asker.stage("before") == sg.Staged(1, 1, duplicate=known)
    assert asker.counts().staged == 1


# --- publishing --------------------------------------------------------------------------------


def test_delays_and_times_to_live_begin_with_publishing(asker: Asker) -> None:
    """The message is as if it had been put then, with the id that it had."""
    asker.stage("a", delay_s=5, time_to_live_s=100, priority=3, detail=Detail(message_type="t"))
    asker.stage("b", chunk=1, time_to_live_s=None)
    staged = [seen.message for seen in asker.inspect().messages]
    asker.clock.advance(s=50)
    assert asker.publish() == published(videos=2)
    now_ms = asker.clock.now_ms()
    delayed, plain = (seen.message for seen in asker.inspect().messages)
    assert delayed == staged[0]._replace(
        inserted_at_ms=now_ms,
        visible_at_ms=now_ms + 5_000,
        expires_at_ms=now_ms + 100_000,
        phase=Phase.DELAYED,
        since_ms=now_ms,
    )
    assert plain == staged[1]._replace(
        inserted_at_ms=now_ms,
        visible_at_ms=now_ms,
        expires_at_ms=NEVER_MS,
        phase=Phase.WAITING,
        since_ms=now_ms,
    )
    assert asker.split() == (1, 0, 1, 0, 0)
    assert asker.counts().staged == 0
    asker.clock.advance(s=5)
    assert asker.received() == [b"a", b"b"]


def test_what_never_expires_does_not_when_the_clock_was_set_back(asker: Asker) -> None:
    """Its time to live is not reckoned from then."""
    asker.stage("a", time_to_live_s=None)
    asker.clock.advance(s=-50)
    asker.publish()
    (seen,) = asker.inspect().messages
    assert seen.message.expires_at_ms == NEVER_MS


def test_messages_for_several_queues_are_published_at_once(asker: Asker) -> None:
    """Each to its queue."""
    asker.create("audio")
    asker.stage("a")
    asker.stage("b", chunk=1, queue="audio")
    assert asker.counts("audio").staged == 1
    assert asker.publish() == published(videos=1, audio=1)
    assert (asker.received(), asker.received(queue="audio")) == ([b"a"], [b"b"])


def test_publishing_again_is_harmless(asker: Asker) -> None:
    """It says how many messages it were; nothing can be added any more."""
    asker.stage("a", "b")
    assert asker.publish() == published(videos=2)
    for parts in (None, (), ("no",)):
        assert asker.publish(parts=parts) == sg.Published(2, already=True)
    for chunk in (0, 1, 7):
        assert isinstance(asker.stage("c", chunk=chunk), AlreadyPublished)
    assert asker.count() == 2
    now_ms = asker.clock.now_ms()
    assert asker.transaction() == sg.Transaction(
        account=ACCOUNT,
        name="tx",
        state=TransactionState.PUBLISHED,
        created_at_ms=now_ms,
        until_ms=now_ms + sg.REMEMBER_S * 1000,
        rows=2,
    )


def test_some_parts_are_published_and_the_others_dropped(asker: Asker) -> None:
    """Of two attempts of one task only one counts."""
    for part in ("0-a", "0-b", "1-a"):
        asker.stage(part, f"{part}!", part=part)
    refused = asker.publish(parts=("0-b", "2-a"))
    assert isinstance(refused, StagedNotFound)
    assert (refused.name, refused.part) == ("tx", "2-a")
    assert asker.counts().staged == 6
    assert asker.publish(parts=("0-b", "1-a")) == published(videos=4)
    assert asker.received() == [b"0-b", b"0-b!", b"1-a", b"1-a!"]
    assert asker.counts().staged == 0
    assert asker.publish() == sg.Published(4, already=True)


def test_publishing_no_parts_drops_all_and_is_remembered(asker: Asker) -> None:
    """Also where nothing was staged: a batch without output is a batch."""
    asker.stage("a")
    for name in ("tx", "empty"):
        assert asker.publish(name, ()) == sg.Published(0)
        assert asker.publish(name) == sg.Published(0, already=True)
        assert isinstance(asker.stage("late", name=name), AlreadyPublished)
    assert (asker.count(), asker.counts().staged) == (0, 0)


def test_an_unknown_transaction_cannot_be_published(asker: Asker) -> None:
    """Whole or in part."""
    for parts in (None, ("p",)):
        refused = asker.publish("no", parts)
        assert isinstance(refused, StagedNotFound)
        assert (refused.name, refused.part) == ("no", None)


def test_a_queue_that_is_gone_keeps_all_from_being_published(asker: Asker) -> None:
    """Unless its part is dropped; once it is there again, they are published to it."""
    asker.create("audio")
    asker.stage("a")
    asker.stage("b", part="p", queue="audio")
    asker.ask(c.DeleteQueue(ACCOUNT, "audio"))
    assert isinstance(asker.publish(), QueueNotFound)
    assert asker.count() == 0
    asker.create("audio")
    assert asker.counts("audio").staged == 1
    assert asker.publish() == published(videos=1, audio=1)
    assert asker.received(queue="audio") == [b"b"]


def test_a_part_for_a_queue_that_is_gone_can_be_dropped(asker: Asker) -> None:
    """The others are published."""
    asker.create("audio")
    asker.stage("a", part="p")
    asker.stage("b", part="lost", queue="audio")
    asker.ask(c.DeleteQueue(ACCOUNT, "audio"))
    assert asker.publish(parts=("p",)) == published(videos=1)
    assert asker.received() == [b"a"]


def test_the_log_tells_the_end_of_what_was_staged_for_a_queue_that_is_gone(asker: Asker) -> None:
    """Or whoever follows it would have the messages for ever, in a queue made anew as well."""
    asker.create("audio")
    asker.stage("a", "b", queue="audio")
    asker.ask(c.DeleteQueue(ACCOUNT, "audio"))
    assert asker.discard() == sg.Discarded(2)
    asker.create("audio")
    assert asker.counts("audio").staged == 0
    assert replay(asker.events()) == {}


# --- discarding and expiring -------------------------------------------------------------------


def test_what_is_discarded_is_gone(asker: Asker) -> None:
    """Some parts or all; a name without parts is as if it had never been used."""
    for part in ("a", "b", "c"):
        asker.stage(part, part=part)
    assert asker.discard(parts=("a", "no")) == sg.Discarded(1)
    assert [part.part for part in asker.transaction().parts] == ["b", "c"]
    assert asker.stage("a", part="a") == sg.Staged(1, 1)
    assert asker.discard() == sg.Discarded(3)
    assert isinstance(asker.transaction(), StagedNotFound)
    assert asker.discard() == sg.Discarded(0)
    asker.stage("d", part="d")
    assert asker.discard(parts=("d",)) == sg.Discarded(1)
    assert isinstance(asker.transaction(), StagedNotFound)
    assert (asker.inspected(), asker.counts().staged) == ([], 0)


def test_what_is_published_cannot_be_discarded(asker: Asker) -> None:
    """The messages stay."""
    asker.stage("a")
    asker.publish()
    assert asker.discard() == sg.Discarded(0, published=True)
    assert asker.received() == [b"a"]


def test_what_nobody_publishes_vanishes(asker: Asker) -> None:
    """With its time-out; until the sweep comes by, it can still be published."""
    asker.stage("a", name="a", timeout_s=10)
    asker.stage("b", name="b", timeout_s=20)
    asker.stage("c", name="c", timeout_s=10)
    asker.clock.advance(ms=9_999)
    assert asker.ask(sg.ExpireStaged(10)) == c.Swept(0)
    asker.clock.advance(ms=1)
    assert asker.publish("c") == published(videos=1)
    assert asker.ask(sg.ExpireStaged(10)) == c.Swept(1)
    assert isinstance(asker.transaction("a"), StagedNotFound)
    assert asker.counts().staged == 1
    assert asker.stage("new", name="a") == sg.Staged(1, 1)


def test_the_sweep_takes_a_few_at_a_time(asker: Asker) -> None:
    """Those that are due first."""
    for number in range(3):
        asker.stage(f"{number}", name=f"t{number}", timeout_s=10 - number)
    asker.clock.advance(s=10)
    assert asker.ask(sg.ExpireStaged(2)) == c.Swept(2)
    assert [each.name for each in asker.ask(sg.ListTransactions(ACCOUNT))] == ["t0"]
    assert asker.ask(sg.ExpireStaged(2)) == c.Swept(1)


def test_a_published_name_is_forgotten_at_last(asker: Asker) -> None:
    """After a week; the messages stay."""
    asker.stage("a", time_to_live_s=None)
    asker.publish()
    asker.clock.advance(s=sg.REMEMBER_S - 1)
    assert asker.ask(sg.ExpireStaged(10)) == c.Swept(0)
    asker.clock.advance(s=1)
    assert asker.ask(sg.ExpireStaged(10)) == c.Swept(1)
    assert isinstance(asker.transaction(), StagedNotFound)
    assert asker.received() == [b"a"]


def test_transactions_are_listed_by_name(asker: Asker) -> None:
    """Those of the account, in one state if so asked."""
    for name in ("b", "a", "c"):
        asker.stage("m", name=name)
    asker.publish("b")

    def names(*wanted: Any) -> list[str]:
        return [each.name for each in asker.ask(sg.ListTransactions(ACCOUNT, *wanted))]

    assert names() == ["a", "b", "c"]
    assert names(None, 2) == ["a", "b"]
    assert names(TransactionState.STAGED) == ["a", "c"]
    assert names(TransactionState.PUBLISHED) == ["b"]
    assert asker.ask(sg.ListTransactions("other")) == ()


# --- committing together -----------------------------------------------------------------------


def together(asker: Asker, *commands: Any, **more: Any) -> Any:
    return asker.ask(sg.CommitTogether(ACCOUNT, commands, **more))


def test_work_and_its_results_are_committed_together(asker: Asker) -> None:
    """Completes, releases, puts and staged messages of several queues, as one."""
    asker.create("audio")
    for number in range(3):
        asker.put(f"{number}")
    done, failed, slow = asker.receive(3)
    asker.stage("staged", queue="audio")
    committed = together(
        asker,
        asker.complete_command(done),
        asker.release_command(failed, Outcome.FAILED, delay_s=5),
        asker.renew_command(slow, 60),
        asker.put_command("sent", queue="audio"),
        publish=("tx",),
    )
    assert (committed.published, committed.already) == (1, False)
    completed, released, renewed, sent = committed.results
    assert completed == c.DONE
    assert released.visible_at_ms == asker.clock.now_ms() + 5_000
    assert renewed.message.renewals == 1
    assert sent.message.body == b"sent"
    assert sorted(asker.received(queue="audio")) == [b"sent", b"staged"]
    assert asker.split() == (0, 1, 0, 1, 0)


def test_if_one_is_refused_nothing_is_done(asker: Asker) -> None:
    """Neither the others, nor the publishing; the name can be used again."""
    asker.put()
    lease = asker.receive_one()
    asker.complete(lease)
    asker.stage("staged")
    batch = (asker.put_command("sent"), asker.complete_command(lease))
    for _ in range(2):
        refused = together(asker, *batch, publish=("tx",), name="run-1")
        assert [type(each) for each in refused.results] == [NotDone, MessageNotFound]
        assert (refused.published, refused.already) == (0, False)
    assert asker.count() == 0
    assert asker.transaction().state is TransactionState.STAGED
    assert isinstance(asker.transaction("run-1"), StagedNotFound)


def test_an_unknown_transaction_keeps_all_from_being_done(asker: Asker) -> None:
    """And so does one for a queue that is gone."""
    asker.create("audio")
    asker.stage("lost", name="lost", queue="audio")
    asker.ask(c.DeleteQueue(ACCOUNT, "audio"))
    put = asker.put_command("sent")
    assert isinstance(together(asker, put, publish=("no",)), StagedNotFound)
    assert isinstance(together(asker, put, publish=("lost",)), QueueNotFound)
    assert asker.count() == 0


def test_a_name_is_used_once(asker: Asker) -> None:
    """The same commit again does nothing, however its receipts fare meanwhile."""
    asker.put()
    commands = (asker.complete_command(asker.receive_one()), asker.put_command("sent"))
    first = together(asker, *commands, name="run-1")
    assert len(first.results) == 2
    assert together(asker, *commands, name="run-1") == sg.Committed((), already=True)
    assert together(asker, name="run-1", publish=("no",)) == sg.Committed((), already=True)
    assert asker.received() == [b"sent"]
    assert asker.transaction("run-1").state is TransactionState.PUBLISHED
    assert isinstance(asker.stage("x", name="run-1"), AlreadyPublished)


def test_a_name_can_be_that_of_what_is_published(asker: Asker) -> None:
    """Its rows are remembered; what is staged under a name that publishes others is dropped."""
    asker.stage("a", "b")
    assert together(asker, publish=("tx",), name="tx") == sg.Committed(
        (), 2, by_queue=((QUEUE, 2),)
    )
    assert asker.transaction().rows == 2
    asker.stage("dropped", name="mine")
    asker.stage("c", name="other")
    assert together(asker, publish=("other",), name="mine").by_queue == ((QUEUE, 1),)
    assert sorted(asker.received()) == [b"a", b"b", b"c"]
    assert asker.counts().staged == 0
    assert together(asker, publish=("other",)) == sg.Committed((), 0)


def test_nothing_can_be_committed_under_a_name(asker: Asker) -> None:
    """A batch without output is remembered too."""
    assert together(asker, name="run-1") == sg.Committed(())
    assert asker.transaction("run-1").rows == 0
    assert together(asker) == sg.Committed(())


def test_a_published_message_has_no_receipt_yet(asker: Asker) -> None:
    """Its first receipt is that of its first lease."""
    asker.stage("a")
    asker.publish()
    lease = asker.receive_one()
    assert (lease.message.dequeue_count, lease.message.fence) == (1, 1)
    asker.clock.advance(s=60)
    asker.receive_one()
    assert isinstance(asker.complete(lease), LeaseLost)
