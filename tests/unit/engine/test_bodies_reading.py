"""Large bodies on their way out: filled in for readers, as many as there is memory for."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from leasehold.domain import admin as o
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain.errors import (
    BodyUnreadable,
    MessageNotFound,
    Overloaded,
    Unavailable,
)
from leasehold.domain.filters import EVERYTHING
from leasehold.domain.model import Outcome, Queue
from leasehold.domain.queue_settings import FailurePolicy, QueueSettings
from leasehold.engine.body_reading import UNREACHABLE_DELAY_S, UNREADABLE_DELAY_S, Portions
from leasehold.http.logs import mask_event
from tests.unit.engine.bodies_support import (
    BUDGET,
    LARGE,
    LARGER,
    QUEUE,
    SMALL,
    World,
    body_of,
    play,
    until,
)

# --- reading -------------------------------------------------------------------------------------


def test_everybody_who_looks_sees_the_body() -> None:
    """Peeking, listing, finding and reading a claim give the body like a receive."""

    async def scenario(world: World) -> None:
        message_id = (await world.put()).message.message_id
        (peeked,) = await world.do(c.Peek(*QUEUE, 32))
        page = await world.do(o.Inspect(*QUEUE, EVERYTHING, "", 10))
        found = await world.find(message_id)
        stream = await world.do(k.AttachStream(*QUEUE, "s"))
        await world.do(k.OpenClaim(*QUEUE, "s", stream.token, 1, 10, 60))
        members = await world.do(k.ReadClaim(*QUEUE, "s", 1, 0, 1, "", 10))
        seen = [peeked, page.messages[0].message, found.message, *members.messages]
        assert [body_of(message) for message in seen] == [LARGE] * 4

    play(scenario)


def test_a_look_without_bodies_reads_none() -> None:
    """Whoever counts or lists does not wait for the body store."""

    async def scenario(world: World) -> None:
        message_id = (await world.put()).message.message_id
        await world.do(c.Peek(*QUEUE, 32, with_bodies=False))
        await world.do(o.Inspect(*QUEUE, EVERYTHING, "", 10, with_bodies=False))
        await world.do(o.FindMessage(*QUEUE, message_id, with_bodies=False))
        assert world.kept.count("get") == 0

    play(scenario)


def test_a_receive_that_waited_has_the_body() -> None:
    """A worker that waits for messages gets large ones whole."""

    async def scenario(world: World) -> None:
        waiting = asyncio.create_task(world.engine.receive(c.Receive(*QUEUE, 1, 30), 60))
        await until(lambda: world.engine.waiting.by_queue)
        await world.put()
        (lease,) = await waiting
        assert body_of(lease.message) == LARGE

    play(scenario)


def test_the_log_says_which_body_is_missing() -> None:
    """The key is not taken for a secret, and masked."""

    async def scenario(world: World) -> None:
        message_id = (await world.put()).message.message_id
        (key,) = world.kept.kept
        del world.kept.kept[key]
        with structlog.testing.capture_logs(processors=[mask_event]) as logged:
            await world.receive()
        found = [each for each in logged if each["event"] == "body.unreadable"]
        assert found
        assert (found[0]["message_id"], found[0]["body_key"]) == (message_id, key)

    play(scenario)


@pytest.mark.parametrize("how", ["missing", "corrupt", "cut short"])
def test_a_message_without_its_body_stands_in_nobodys_way(how: str) -> None:
    """It is given back as failed, with the reason, and the next one is delivered."""

    async def scenario(world: World) -> None:
        message_id = (await world.put()).message.message_id
        (key,) = world.kept.kept
        if how == "missing":
            del world.kept.kept[key]
        else:
            world.kept.kept[key] = LARGE[:-1] + (b"?" if how == "corrupt" else b"")
        await world.put(LARGER)
        bodies = [body_of(lease.message) for lease in await world.receive()]
        assert bodies == [LARGER]
        broken = (await world.find(message_id)).message
        problem = "missing" if how == "missing" else "corrupt"
        assert broken.detail.body_ref is not None
        assert broken.detail.body_ref.problem == problem
        assert broken.body == b""
        attempt = broken.detail.attempts[-1]
        assert attempt.outcome is Outcome.FAILED
        assert attempt.error is not None
        assert problem in attempt.error.text
        assert broken.visible_at_ms == world.clock.now_ms() + UNREADABLE_DELAY_S * 1000
        assert world.bodies.reader.unreadable >= 1

    play(scenario)


def test_a_message_without_its_body_ends_in_the_poison_queue() -> None:
    """Where failures are limited, one that can never be delivered is set aside."""

    async def scenario(world: World) -> None:
        policy = FailurePolicy(max_failures=1)
        await world.do(c.SetQueueSettings(*QUEUE, QueueSettings(failure_policy=policy)))
        message_id = (await world.put()).message.message_id
        world.kept.kept.clear()
        assert await world.receive() == ()
        assert (await world.find(message_id)).queue == "queue-poison"

    play(scenario)


def test_a_body_store_that_does_not_answer_is_no_empty_queue() -> None:
    """Workers are told to come back, and the messages have not failed."""

    async def scenario(world: World) -> None:
        message_id = (await world.put()).message.message_id
        world.kept.get_error = Unavailable()
        with pytest.raises(Unavailable):
            await world.receive()
        found = (await world.find(message_id)).message
        assert found.detail.failures == 0
        assert found.detail.interruptions == 1
        assert found.visible_at_ms == world.clock.now_ms() + UNREACHABLE_DELAY_S * 1000
        assert found.detail.body_ref is not None
        assert found.detail.body_ref.problem == "unreachable"
        world.kept.get_error = None
        world.clock.advance(s=UNREACHABLE_DELAY_S)
        (lease,) = await world.receive()
        assert body_of(lease.message) == LARGE

    play(scenario)


def test_a_list_shows_what_has_no_body() -> None:
    """A missing body does not keep a message from being looked at, or the others."""

    async def scenario(world: World) -> None:
        await world.put()
        world.kept.kept.clear()
        await world.put(LARGER)
        page = await world.do(o.Inspect(*QUEUE, EVERYTHING, "", 10))
        first, second = (seen.message for seen in page.messages)
        assert first.body == b""
        assert first.detail.body_ref.problem == "missing"
        assert body_of(second) == LARGER
        peeked = await world.do(c.Peek(*QUEUE, 10))
        assert [message.body for message in peeked] == [b"", LARGER]

    play(scenario)


def test_a_claim_is_read_whole_or_not_at_all() -> None:
    """A consumer of claims is told that a member has no body: it must not take it for empty."""

    async def scenario(world: World) -> None:
        message_id = (await world.put()).message.message_id
        stream = await world.do(k.AttachStream(*QUEUE, "s"))
        await world.do(k.OpenClaim(*QUEUE, "s", stream.token, 1, 10, 60))
        read = k.ReadClaim(*QUEUE, "s", 1, 0, 1, "", 10)
        world.kept.get_error = Unavailable()
        with pytest.raises(Unavailable):
            await world.do(read)
        world.kept.get_error = None
        world.kept.kept.clear()
        with pytest.raises(BodyUnreadable) as found:
            await world.do(read)
        assert (found.value.message_id, found.value.reason) == (message_id, "missing")

    play(scenario)


def test_a_message_completed_while_it_is_read_is_gone_and_not_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever looks at a message whose work is done meanwhile hears that it is not there."""

    async def scenario(world: World) -> None:
        message_id = (await world.put()).message.message_id
        (lease,) = await world.receive()
        world.kept.gate = asyncio.Event()
        looking = asyncio.create_task(world.find(message_id))
        listing = asyncio.create_task(world.do(o.Inspect(*QUEUE, EVERYTHING, "", 10)))
        await until(lambda: world.kept.waiting == 2)
        await world.do(c.Complete(*QUEUE, message_id, lease.receipt))
        await world.engine.sweep()
        world.kept.gate.set()
        with pytest.raises(MessageNotFound):
            await looking
        assert (await listing).messages == ()
        assert world.bodies.reader.unreadable == 0

    play(scenario)


def test_a_body_replaced_while_it_is_read_is_read_again() -> None:
    """Whoever looks at a message whose body changes meanwhile sees the new one."""

    async def scenario(world: World) -> None:
        message_id = (await world.put()).message.message_id
        world.kept.gate = asyncio.Event()
        looking = asyncio.create_task(world.find(message_id))
        await until(lambda: world.kept.waiting)
        gate, world.kept.gate = world.kept.gate, None
        await world.do(o.Amend(*QUEUE, message_id, body=LARGER))
        await world.engine.sweep()
        gate.set()
        assert body_of((await looking).message) == LARGER

    play(scenario)


# --- memory --------------------------------------------------------------------------------------


@pytest.fixture
def small_answers(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let an answer hold four of the large bodies."""
    limit = 4 * len(LARGE)
    monkeypatch.setattr("leasehold.engine.body_reading.ANSWER_BYTES", limit)
    return limit


@pytest.mark.usefixtures("small_answers")
def test_a_receive_takes_no_more_than_an_answer_can_hold() -> None:
    """In a queue for large bodies as many are leased as fit, and more when they are small."""

    async def scenario(world: World) -> None:
        settings = QueueSettings(max_body_bytes=2 * len(LARGE))
        await world.do(c.SetQueueSettings(*QUEUE, settings))
        for _ in range(10):
            await world.put(SMALL)
        for _ in range(10):
            await world.put(LARGE)
        sizes = [len(await world.receive(32)) for _ in range(5)]
        assert sizes == [2, 4, 8, 4, 2], "doubled while small; four large ones fit"
        page = await world.do(o.Inspect(*QUEUE, EVERYTHING, "", 100, with_bodies=False))
        back = [seen for seen in page.messages if seen.message.detail.interruptions]
        assert len(back) == 2, "what turned out to be too much was given back"

    play(scenario)


@pytest.mark.usefixtures("small_answers")
def test_a_list_leaves_out_bodies_that_are_too_many() -> None:
    """The first bodies are shown; the others say that they were left out."""

    async def scenario(world: World) -> None:
        for _ in range(6):
            await world.put()
        page = await world.do(o.Inspect(*QUEUE, EVERYTHING, "", 10))
        refs = [seen.message.detail.body_ref for seen in page.messages]
        assert [ref.problem for ref in refs if ref] == [None] * 4 + ["left-out"] * 2
        assert world.kept.count("get") == 4

    play(scenario)


@pytest.mark.usefixtures("small_answers")
def test_a_page_of_a_claim_ends_where_the_answer_is_full() -> None:
    """A claim is read to its end in pages that fit, each body once."""

    async def scenario(world: World) -> None:
        sent = [LARGE + bytes([number]) for number in range(10)]
        for body in sent:
            await world.put(body)
        stream = await world.do(k.AttachStream(*QUEUE, "s"))
        await world.do(k.OpenClaim(*QUEUE, "s", stream.token, 1, 100, 60))
        read: list[bytes] = []
        after: str | None = ""
        pages = 0
        while after is not None:
            page = await world.do(k.ReadClaim(*QUEUE, "s", 1, 0, 1, after, 100))
            read += [body_of(message) for message in page.messages]
            after = page.next_after
            pages += 1
        assert sorted(read) == sent
        assert pages == 4
        assert world.kept.count("get") == 10

    play(scenario)


def test_one_body_is_read_whatever_its_size() -> None:
    """A body larger than the budget is delivered when nobody else has a share of it."""

    async def scenario(world: World) -> None:
        await world.put(b"b" * (BUDGET + 1))
        (lease,) = await world.receive()
        assert len(body_of(lease.message)) == BUDGET + 1

    play(scenario)


def test_bodies_being_read_have_a_budget() -> None:
    """While others read, what does not fit is refused and stays in the queue."""

    async def scenario(world: World) -> None:
        await world.put(b"b" * (BUDGET - 5))
        await world.put()
        world.kept.gate = asyncio.Event()
        first = asyncio.create_task(world.receive())
        await until(lambda: world.kept.waiting)
        with pytest.raises(Overloaded):
            await world.receive()
        world.kept.gate.set()
        (lease,) = await first
        assert len(body_of(lease.message)) == BUDGET - 5
        await world.settle()
        (lease,) = await world.receive()
        assert body_of(lease.message) == LARGE

    play(scenario)


def test_what_others_hold_counts() -> None:
    """With the memory taken by requests and answers, a queue of large bodies gives nothing."""

    async def scenario(world: World) -> None:
        await world.do(c.SetQueueSettings(*QUEUE, QueueSettings(max_body_bytes=100)))
        await world.put()
        world.buffered = BUDGET
        with pytest.raises(Overloaded):
            await world.receive()
        world.buffered = 0
        (lease,) = await world.receive()
        assert lease.message.dequeue_count == 1, "nothing had been leased"

    play(scenario)


def test_messages_leased_for_nobody_are_given_back() -> None:
    """A client that goes while bodies are read leaves the messages to others."""

    async def scenario(world: World) -> None:
        await world.put()
        world.kept.gate = asyncio.Event()
        receiving = asyncio.create_task(world.receive())
        await until(lambda: world.kept.waiting)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        world.kept.gate = None
        await world.settle()
        (lease,) = await world.receive()
        assert body_of(lease.message) == LARGE

    play(scenario)


def test_many_messages_without_bodies_end_in_an_empty_answer() -> None:
    """A receive tries a few times, then comes back with nothing; none of them stays on lease."""

    async def scenario(world: World) -> None:
        for _ in range(8):
            await world.put()
        world.kept.kept.clear()
        assert await world.receive() == ()
        page = await world.do(o.Inspect(*QUEUE, EVERYTHING, "", 10, with_bodies=False))
        states = [str(seen.state) for seen in page.messages]
        assert states.count("deferred") == 4
        assert states.count("leased") == 0

    play(scenario)


def test_a_lease_that_ends_while_its_body_is_read_is_not_given() -> None:
    """A message that an operator removes meanwhile is left out, and is no broken one."""

    async def scenario(world: World) -> None:
        message_id = (await world.put()).message.message_id
        await world.put(LARGER)
        world.kept.gate = asyncio.Event()
        receiving = asyncio.create_task(world.receive(2))
        await until(lambda: world.kept.waiting == 2)
        await world.do(o.Remove(*QUEUE, message_id, force=True))
        await world.engine.sweep()
        world.kept.gate.set()
        assert [body_of(lease.message) for lease in await receiving] == [LARGER]
        assert world.bodies.reader.unreadable == 0

    play(scenario)


def test_a_message_that_cannot_be_given_back_is_left_to_its_lease() -> None:
    """When the store refuses the release, the others are delivered all the same."""

    async def scenario(world: World) -> None:
        await world.put()
        world.kept.kept.clear()
        await world.put(LARGER)
        world.store.answers = {c.Batch: Unavailable()}
        bodies = [body_of(lease.message) for lease in await world.receive(2)]
        assert bodies == [LARGER]

    play(scenario)


def test_portions_of_many_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many queues take large bodies, what is known of them does not grow for ever."""
    monkeypatch.setattr("leasehold.engine.body_reading.MAX_QUEUES", 3)
    portions = Portions(inline_bytes=10, answer_bytes=100)
    settings = QueueSettings(max_body_bytes=20)
    for number in range(10):
        queue = Queue(account="a", name=f"queue{number}", settings=settings)
        assert portions.of(queue) == 5
        assert len(portions.known) <= 3
    large = QueueSettings(max_body_bytes=101)
    assert portions.of(Queue(account="a", name="large", settings=large)) == 1
    assert portions.of(Queue(account="a", name="small")) is None
    inline = QueueSettings(max_body_bytes=10)
    assert portions.of(Queue(account="a", name="inline", settings=inline)) is None
