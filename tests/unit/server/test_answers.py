"""Room for large answers: given before they are made, in turn, and taken back once sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import Overloaded
from leasehold.domain.filters import MessageFilter
from leasehold.domain.limits import LOOK_BYTES
from leasehold.domain.model import Lease, Message, Phase
from leasehold.http import admission as a
from leasehold.http.admission import Admission
from leasehold.http.request_cycle import PORTION_BYTES
from leasehold.testing import ManualClock
from tests.unit.server.support import Harness

MIB = 1024 * 1024
PEEK = c.Peek("account", "queue", 1_000)


class Tried:
    """Room of 16 MiB; one caller may have 4 of them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.counted = 0
        self.answers = a.Answers(16 * MIB, self._count, self.clock)

    def _count(self, change: int) -> None:
        self.counted += change

    def ask(self, caller: str, size: int = MIB) -> tuple[a.Holding, asyncio.Task[None]]:
        """Begin to wait for room."""
        holding = a.Holding(caller)
        return holding, asyncio.create_task(self.answers.enter(holding, size))


def run(scenario: Callable[[Tried], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario(Tried()))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_answers_are_made_one_after_the_other() -> None:
    """No more is in the making at once than one large answer, however many are asked for."""

    async def scenario(tried: Tried) -> None:
        asked = [tried.ask(str(number), LOOK_BYTES) for number in range(40)]
        for _ in range(40):
            await turns()
            begun = [holding for holding, _ in asked if holding.making]
            assert len(begun) == 1
            tried.answers.leave(begun[0])
        await asyncio.gather(*(task for _, task in asked))
        assert tried.answers.most_making == tried.answers.most_held == LOOK_BYTES

    run(scenario)


def test_small_ones_are_made_together() -> None:
    """What has room beside others does not wait for them."""

    async def scenario(tried: Tried) -> None:
        asked = [tried.ask(str(number), MIB) for number in range(5)]
        await turns()
        assert [task.done() for _, task in asked] == [True] * 4 + [False]
        tried.answers.leave(asked[0][0])
        await asked[4][1]

    run(scenario)


def test_all_that_is_held_is_counted_before_it_is_made_and_until_it_is_sent() -> None:
    """The guard hears of each change, and at the end nothing is left over."""

    async def scenario(tried: Tried) -> None:
        holding, task = tried.ask("one")
        await task
        assert tried.counted == tried.answers.held == MIB
        tried.answers.resize(holding, 100)
        assert tried.counted == MIB + 100
        tried.answers.made(holding, 500)
        assert (tried.counted, tried.answers.making) == (500, 0)
        tried.answers.leave(holding)
        tried.answers.leave(holding)
        assert (tried.counted, tried.answers.held, tried.answers.by_caller) == (0, 0, {})

    run(scenario)


def test_one_caller_gets_its_share_and_the_others_pass_it() -> None:
    """Who never reads what was asked for waits for itself alone."""

    async def scenario(tried: Tried) -> None:
        unread = []
        for _ in range(4):
            holding, task = tried.ask("greedy")
            await task
            tried.answers.made(holding, MIB)
            unread.append(holding)
        _, fifth = tried.ask("greedy")
        other, task = tried.ask("other", 3 * MIB)
        await task
        tried.answers.leave(other)
        await turns()
        assert not fifth.done()
        assert tried.answers.held == tried.answers.share_bytes == 4 * MIB
        tried.answers.leave(unread[0])
        await fifth

    run(scenario)


def test_callers_take_turns() -> None:
    """Who has many requests does not come before who has a single one."""

    async def scenario(tried: Tried) -> None:
        first, task = tried.ask("many", LOOK_BYTES)
        await task
        many = [tried.ask("many", LOOK_BYTES) for _ in range(3)]
        await turns()
        single, done = tried.ask("single", LOOK_BYTES)
        await turns()
        tried.answers.leave(first)
        await many[0][1]
        tried.answers.leave(many[0][0])
        await done
        assert not many[1][1].done()
        tried.answers.leave(single)
        await many[1][1]

    run(scenario)


def test_who_waits_too_long_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait has an end; nothing is left behind of it."""

    async def scenario(tried: Tried) -> None:
        holding, task = tried.ask("one", LOOK_BYTES)
        await task
        with pytest.raises(Overloaded):
            await tried.answers.enter(a.Holding("two"), MIB)
        assert (tried.answers.refused, tried.answers.is_waited_for) == (1, False)
        tried.answers.leave(holding)
        assert tried.answers.held == 0

    monkeypatch.setattr(a, "WAIT_S", 0.001)
    run(scenario)


def test_who_is_gone_waits_no_more() -> None:
    """Room is given to nobody whose client has gone, or whose task was cancelled."""

    async def scenario(tried: Tried) -> None:
        first, task = tried.ask("one", LOOK_BYTES)
        await task
        gone, waiting = tried.ask("two", LOOK_BYTES)
        _, cancelled = tried.ask("three", LOOK_BYTES)
        await turns()
        gone.give_up()
        cancelled.cancel()
        assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], Overloaded)
        await asyncio.gather(cancelled, return_exceptions=True)
        assert not tried.answers.is_waited_for
        tried.answers.leave(first)
        assert tried.answers.held == tried.answers.making == 0

    run(scenario)


def test_what_takes_long_to_make_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that waits for an object store keeps its room, but not its turn."""

    async def scenario(tried: Tried) -> None:
        slow, task = tried.ask("one", LOOK_BYTES)
        await task
        _, next_one = tried.ask("two", LOOK_BYTES)
        await next_one
        assert slow.held == LOOK_BYTES

    monkeypatch.setattr(a, "MAKING_S", 0.001)
    run(scenario)


def test_others_have_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an answer that took long beside other requests the next one waits for as long."""
    monkeypatch.setattr(a, "MAX_REST_S", 0.001)

    async def scenario(tried: Tried) -> None:
        first, task = tried.ask("one", LOOK_BYTES)
        await task
        tried.answers.others += 1
        tried.clock.advance(s=1)
        tried.answers.leave(first)
        second, resting = tried.ask("two", LOOK_BYTES)
        assert not tried.answers.making
        await resting
        tried.clock.advance(s=1)
        tried.answers.leave(second)
        third, at_once = tried.ask("three", LOOK_BYTES)
        await turns(1)
        assert third.making
        await at_once

    run(scenario)


def message(size: int) -> Message:
    """Return a message with a body."""
    return Message("id", b"x" * size, 0, 1, 0, 0, 0, Phase.WAITING, 0)


def test_what_is_small_needs_no_room() -> None:
    """Once a queue was seen to have small messages, looks at it go past the others."""
    sizes = a.Sizes()
    assert sizes.guess(PEEK) == LOOK_BYTES
    assert sizes.learn(PEEK, (message(10), message(20))) == 30
    assert sizes.guess(PEEK) == 15_000 < a.SMALL_BYTES
    assert sizes.learn(PEEK, (message(65_536),)) == 65_536
    assert sizes.guess(PEEK) == LOOK_BYTES
    sizes.learn(PEEK, ())
    assert sizes.guess(PEEK._replace(limit=1)) == 57_344
    assert sizes.guess(c.Peek("account", "other", 1)) == 65_536


def test_each_answer_is_measured() -> None:
    """All commands that show messages are known, and so is what they show."""
    one = message(100)
    seen = o.Seen(one, None, "queue")  # type: ignore[arg-type]  # nothing looks at its state
    columns = k.MemberColumns(b"i" * 16, (100,), (b"x" * 100,), 0, 0, 0, 0, 0, 0, None)
    claim = ("account", "queue", "stream", 1, 0, 1, "", 10)
    for command, result, size in (
        (c.Receive("account", "queue", 2, 30), (Lease(one, "r"),) * 2, 200),
        (
            o.Inspect("account", "queue", MessageFilter(), "", 9),
            o.MessagePage((seen,), None),
            100,
        ),
        (o.FindMessage("account", "queue", "id"), seen, 100),
        (k.ReadClaim(*claim), k.MemberPage((one,), None), 100),
        (k.ReadClaim(*claim), columns, 100),
        (e.ReadEvents(0, 10), e.EventPage((), 0, finished=True), 0),
    ):
        assert a.Sizes().learn(command, result) == size
        assert type(command) in a.SHOWING
        assert a.Sizes().guess(command) > 0


class Request:
    """A request under way."""

    def __init__(self) -> None:
        self.holding = a.Holding("one")

    def hold(self) -> a.Holding:
        """See ``Holder``."""
        return self.holding


def test_room_is_asked_for_before_the_engine() -> None:
    """A command that may have a large answer is not begun before there is room for that."""

    async def scenario(tried: Tried) -> None:
        begun: list[AnyCommand] = []

        async def perform(command: AnyCommand) -> Any:
            begun.append(command)
            return (message(65_536),)

        admission = Admission(perform, limit=100, answers=tried.answers)
        holding, task = tried.ask("other", LOOK_BYTES)
        await task
        request = Request()
        a.UNDER_WAY.set(request)
        looking = asyncio.create_task(admission.perform(PEEK))
        await turns()
        assert not begun
        await admission.perform(c.Complete("account", "queue", "id", "receipt"))
        tried.answers.leave(holding)
        await looking
        assert begun[-1] is PEEK
        assert request.holding.held == 65_536
        assert tried.answers.most_held == LOOK_BYTES

    run(scenario)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"headers": [(b"authorization", b"SharedKey a:1")]}, {"query_string": b"sig=x"}),
        ({"query_string": b"sig=x%3D&se=1"}, {"query_string": b"sig=y%3D&se=1"}),
        ({"client": ("10.0.0.1", 1)}, {"client": ("10.0.0.2", 1)}),
        ({"headers": [(b"authorization", b"Bearer a")]}, {"headers": []}),
    ],
)
def test_callers_that_differ(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Address and credentials tell callers apart."""
    scope = {"client": ("127.0.0.1", 1), "headers": [], "query_string": b""}
    assert a.caller_of(scope | one) != a.caller_of(scope | other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            {"headers": [(b"authorization", b"SharedKey a:1")]},
            {"headers": [(b"authorization", b"SharedKey  a:2")], "query_string": b"x=1"},
        ),
        ({"query_string": b"sig=x%3D&se=1"}, {"query_string": b"y=2&sig=x%3d"}),
        ({"client": ("127.0.0.1", 1)}, {"client": ("127.0.0.1", 2)}),
    ],
)
def test_callers_that_are_one(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Nobody becomes another caller by writing the same in another way, or from another port."""
    scope = {"client": ("127.0.0.1", 1), "headers": [], "query_string": b""}
    assert a.caller_of(scope | one) == a.caller_of(scope | other)


def test_large_answer_is_handed_over_in_portions() -> None:
    """The connection holds one portion at a time of what its reader does not take."""
    with Harness() as server, server.connect(receive_buffer=4_096) as slow:
        slow.send(b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n")
        server.wait_for(lambda: server.guard.answers.held == 4 * MIB)
        server.wait_for(lambda: slow.peer.transport.get_write_buffer_size() > 0)
        unsent = server.call(slow.peer.transport.get_write_buffer_size)
        assert unsent <= 2 * PORTION_BYTES
        assert server.call(lambda: server.guard.buffered) == 4 * MIB
        assert slow.answer()[2] == b"x" * 4 * MIB
        server.wait_for(lambda: server.guard.buffered == 0)


def test_stalled_reader_makes_way_for_those_who_wait() -> None:
    """Who takes nothing of a large answer keeps it only as long as nobody waits for the room."""
    with Harness() as server, server.connect(receive_buffer=4_096) as stalled:
        answers = server.guard.answers
        stalled.send(b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n")
        server.wait_for(lambda: answers.held == 4 * MIB)
        server.wait_for(lambda: stalled.peer.transport.get_write_buffer_size() > 0)

        def sweep_later() -> None:
            server.guard.sweep()
            server.clock.advance(s=a.STALLED_S + 2)
            server.guard.sweep()

        server.call(sweep_later)
        assert server.call(lambda: answers.held) == 4 * MIB
        waiting: list[asyncio.Task[None]] = []

        def wait(size: int) -> None:
            waiting.append(asyncio.ensure_future(answers.enter(a.Holding("another"), size)))

        server.call(lambda: wait(answers.limit_bytes))
        server.wait_for(lambda: answers.is_waited_for)
        server.call(sweep_later)
        server.wait_for(lambda: [*answers.by_caller] == ["another"])
        assert server.call(lambda: server.guard.refused["slow_reader"]) == 1


def test_who_waits_for_a_turn_lacks_no_room() -> None:
    """A reader is in the way of those who lack what it holds, not of those whose turn will come."""

    async def scenario(tried: Tried) -> None:
        unread, task = tried.ask("reader", 3 * MIB)
        await task
        tried.answers.made(unread, 3 * MIB)
        _, task = tried.ask("other", LOOK_BYTES)
        await task
        _, turn = tried.ask("third", LOOK_BYTES)
        await turns()
        assert tried.answers.is_waited_for
        assert not tried.answers.is_short_of("reader")
        _, share = tried.ask("reader", 2 * MIB)
        await turns()
        assert tried.answers.is_short_of("reader")
        assert not tried.answers.is_short_of("other")
        turn.cancel()
        share.cancel()

    run(scenario)
