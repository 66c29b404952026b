"""Random interleavings with claims, sessions and staged sends: nobody waits for what is there."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain import transactions as t
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import (
    ClaimBroken,
    ClaimOutOfTurn,
    ClaimSettled,
    LeaseholdError,
    QueueNotFound,
    StaleToken,
    StreamNotFound,
)
from leasehold.domain.model import Outcome
from tests.unit.engine.support import World, claim, put
from tests.unit.engine.test_waiting_races import QUEUES, Storm

STREAMS: Final = ("s", "t")
ENDS: Final = (
    QueueNotFound,
    StreamNotFound,
    StaleToken,
    ClaimOutOfTurn,
    ClaimSettled,
    ClaimBroken,
)
"""Errors that may end the wait for a claim."""


class ClaimStorm(Storm):
    """The same storm, with more to blow about."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.tokens: dict[tuple[str, str], int] = {}
        self.numbers: dict[tuple[str, str], int] = {}
        """Of the claim opened last, by queue and stream."""
        self.sessions: list[str] = []
        self.members: list[tuple[str, str, int, str]] = []
        """Queue, stream, number and message id of members that were seen."""

    def begin_wait(self) -> None:
        """Begin a receive that waits, or a claim."""
        if self.random.random() < 0.5:
            super().begin_wait()
            return
        command = self.claim()
        task = self.world.begin_claim(command, wait_s=3600)
        task.add_done_callback(lambda task: self.claim_ended(command, task))

    def claim(self) -> k.OpenClaim:
        """Return a claim that may be the next one, or another."""
        roll = self.random
        queue, stream = roll.choice(QUEUES), roll.choice(STREAMS)
        key = queue, stream
        return claim(
            number=max(1, self.numbers.get(key, 0) + roll.choice((0, 1, 1, 1, 2))),
            limit=roll.choice((1, 3, 7, 100)),
            lease_s=roll.choice((1, 5, 30)),
            stream=stream,
            token=self.tokens.get(key, 1) - (roll.random() < 0.1),
            queue=queue,
        )

    def claim_ended(self, command: k.OpenClaim, task: asyncio.Task[k.Opened]) -> None:
        """Remember what was opened; only some errors end a wait."""
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            assert isinstance(error, ENDS), error
            return
        opened = task.result().claim
        assert opened is not None, "an hour has not passed"
        assert opened.state is not k.ClaimState.OPENING
        self.numbers[command.queue, command.stream] = command.number

    async def perform(self, command: AnyCommand) -> None:
        """Have a command carried out, and remember what later ones can use."""
        try:
            result = await self.world.engine.perform(command)
        except LeaseholdError as error:
            if isinstance(error, ClaimOutOfTurn) and isinstance(command, k.OpenClaim):
                self.numbers[command.queue, command.stream] = error.expected - 1
            return
        if isinstance(command, c.Put):
            self.keep(command.queue, (result,))
        elif isinstance(command, c.Receive):
            self.keep(command.queue, result)
        elif isinstance(result, k.Stream):
            key = result.queue, result.stream
            self.tokens[key], self.numbers[key] = result.token, result.last_settled
            for each in result.claims:
                self.numbers[key] = max(self.numbers[key], each.number)
        elif isinstance(command, k.OpenClaim) and isinstance(result, k.Opened) and result.claim:
            self.numbers[command.queue, command.stream] = command.number
        elif isinstance(command, k.ReadClaim) and isinstance(result, k.MemberPage):
            for message in result.messages:
                named = command.queue, command.stream, command.number, message.message_id
                self.members.append(named)
        elif isinstance(result, s.Session):
            self.sessions.append(result.session_id)

    def command(self) -> AnyCommand:
        """Return a random command, often one of those that this storm adds."""
        roll = self.random
        if roll.random() < 0.4:
            return super().command()
        queue, stream = roll.choice(QUEUES), roll.choice(STREAMS)
        of = "a", queue, stream
        token, number = self.tokens.get((queue, stream), 1), self.numbers.get((queue, stream), 1)
        lease_s = roll.choice((1, 5, 30))
        session = roll.choice(self.sessions[-4:]) if self.sessions else "none"
        name = f"t{roll.randrange(3)}.{len(self.world.store.batches) // 50}"
        send = put(queue=roll.choice(QUEUES), delay_s=roll.choice((0, 0, 5)))
        weighted: list[tuple[int, AnyCommand]] = [
            (4, k.AttachStream(*of)),
            (8, self.claim()),
            (4, k.ReadClaim(*of, number, 0, 1, "", 10)),
            (5, k.ExtendClaim(*of, token, number, lease_s, park=roll.random() < 0.3)),
            (8, self.settling()),
            (4, k.GiveBackClaim(*of, token, number)),
            (1, k.DeleteStream(*of)),
            (3, k.LapseClaims(5)),
            (6, t.Stage("a", name, "p", 0, (send,) * roll.randrange(1, 4))),
            (6, t.Publish("a", name)),
            (2, t.Discard("a", name)),
            (6, t.CommitTogether("a", (send,), (name,) if roll.random() < 0.3 else ())),
            (3, s.OpenSession("a", "w", roll.randbytes(10), 2, roll.choice((None, 5)))),
            (6, c.Receive("a", queue, 3, roll.choice((5, 60)), None, session)),
            (2, s.Heartbeat("a", session)),
            (4, s.LoseSessions(2)),
            (1, s.EndSession("a", session)),
        ]
        return roll.choices(weighted, [weight for weight, _ in weighted])[0][1]

    def settling(self) -> k.SettleClaims:
        """Return a command that settles a claim, perhaps but for a member that was seen."""
        roll = self.random
        seen = roll.choice(self.members[-5:]) if self.members and roll.random() < 0.5 else None
        queue, stream = seen[:2] if seen else (roll.choice(QUEUES), roll.choice(STREAMS))
        key = queue, stream
        exemptions: tuple[k.Exemption, ...] = ()
        if seen:
            outcome = roll.choice((Outcome.RETURNED, Outcome.FAILED, Outcome.BURIED))
            exemptions = (k.Exemption(seen[2], seen[3], outcome, roll.choice((None, 0, 5))),)
        sends = (put(queue=roll.choice(QUEUES)),) * roll.randrange(2)
        token, upto = self.tokens.get(key, 1), self.numbers.get(key, 1)
        return k.SettleClaims("a", *key, token, upto, exemptions, (), sends)


@pytest.mark.parametrize("on_thread", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_nobody_waits_while_there_is_something(
    seed: int, on_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever claims, sessions and commits do, no queue that is waited for has a message."""
    monkeypatch.setattr(k, "CLAIM_STEP", 3)

    async def scenario() -> None:
        async with World(on_thread=on_thread) as world:
            await world.do(c.CreateQueue("a", "queue-poison", {}))
            storm = ClaimStorm(world, seed)
            for queue in QUEUES:
                for stream in STREAMS:
                    storm.tokens[queue, stream] = await world.attach(stream, queue)
            await storm.blow(rounds=25)

    asyncio.run(scenario())
