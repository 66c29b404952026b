"""Transactions that fail when they are told to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.claims import Claim, ClaimState, OpenClaim, Opened
from leasehold.domain.errors import MessageNotFound, NotDone, QueueNotFound, Unavailable
from leasehold.engine import faults as f
from leasehold.engine.faults import Faults, has_changed, writes
from leasehold.stores.base import COMMANDS
from tests.unit.testing.support import ENTROPY, World, play, refused

PUT = c.Put("a", "queue", b"x", 0, None, ENTROPY)


def test_a_failed_transaction_does_nothing() -> None:
    """As many fail as were asked for; the store goes on, and the next one succeeds."""

    async def scenario(world: World) -> None:
        world.faults.fail_commits = 2
        assert await refused(world.put(b"1")) is Unavailable
        assert await refused(world.put(b"2")) is Unavailable
        assert world.faults.fail_commits == 0
        await world.put(b"3")
        (lease,) = await world.receive(limit=8)
        assert lease.message.body == b"3"
        assert not world.engine.failed.is_set()

    play(scenario)


def test_all_that_share_a_transaction_fail_together() -> None:
    """One failure is one transaction, however many clients are in it."""

    async def scenario(world: World) -> None:
        world.faults.fail_commits = 1
        results = await asyncio.gather(*(refused(world.put()) for _ in range(5)))
        assert results == [Unavailable] * 5

    play(scenario)


def test_a_lease_of_a_failed_transaction_was_never_given() -> None:
    """A worker whose completion fails still holds its message and can try again."""

    async def scenario(world: World) -> None:
        await world.put()
        (lease,) = await world.receive()
        world.faults.fail_commits = 1
        assert await refused(world.complete(lease)) is Unavailable
        await world.complete(lease)
        assert await refused(world.complete(lease)) is MessageNotFound

    play(scenario)


def test_reading_and_maintenance_do_not_fail() -> None:
    """They use up no failure either, or tests could not count on them."""

    async def scenario(world: World) -> None:
        await world.put(time_to_live_s=5)
        world.faults.fail_commits = 1
        await world.engine.perform(c.Peek("a", "queue", 1))
        await world.engine.perform(o.CountMessages("a", "queue"))
        await world.pass_s(10)
        assert world.inner.message_counts() == [("a", "queue", 0)]
        assert world.faults.fail_commits == 1
        assert await refused(world.receive()) is Unavailable

    play(scenario)


def test_a_journey_outlives_a_failure_on_the_way() -> None:
    """The clock arrives, whatever the transactions that it shared."""

    async def scenario(world: World) -> None:
        world.faults.fail_commits = 1
        _, failed = await asyncio.gather(world.pass_s(3600), refused(world.put()))
        assert failed is Unavailable
        assert world.now_s == 3600

    play(scenario)


def test_every_command_has_a_side() -> None:
    """What is new is told apart on purpose: a client's change, or something else."""
    changes = {kind.__name__ for kind in COMMANDS if kind in f._CHANGING}
    assert changes == {
        *("CreateQueue", "DeleteQueue", "SetQueueMetadata", "SetQueuePolicies"),
        *("SetQueueSettings", "SetAccountDocument", "Put", "Receive", "Renew", "Complete"),
        *(
            "Release",
            "Batch",
            "Clear",
            "Amend",
            "Remove",
            "EndLease",
            "ExtendLease",
            "StartJob",
            "StopJob",
        ),
        *("OpenSession", "Heartbeat", "EndSession", "RequestCancel", "AttachStream", "OpenClaim"),
        *("ExtendClaim", "SettleClaims", "GiveBackClaim", "DeleteStream", "Stage", "Publish"),
        *("Discard", "CommitTogether", "ExemptMembers", "BindClaim", "HaltGroup", "ResumeGroup"),
        *("HoldGroup", "SaveGroupState", "ReleaseGroup"),
    }


CLAIM = Claim(
    account="a",
    queue="queue",
    stream="s",
    number=1,
    state=ClaimState.OPEN,
    size=1,
    limit=1,
    opened_at_ms=0,
    until_ms=1,
)
OPEN = OpenClaim("a", "queue", "s", 1, 1, 1, 30)


@pytest.mark.parametrize(
    ("command", "result", "changed"),
    [
        (PUT, c.Duplicate("id", "receipt", 0, 0, 0), True),
        (PUT, QueueNotFound(), False),
        (c.Receive("a", "q", 1, 30), (), False),
        (c.Receive("a", "q", 1, 30), ("lease",), True),
        (c.Batch((PUT, PUT)), (QueueNotFound(), c.DONE), True),
        (c.Batch((PUT, PUT)), (QueueNotFound(), NotDone()), False),
        (c.Peek("a", "q", 1), ("message",), False),
        (c.RetireExpired(1), c.Swept(1), False),
        (c.Clear("a", "q"), c.DONE, True),
    ],
)
def test_what_has_changed_something(command: Any, result: Any, changed: bool) -> None:
    """Answers are dropped only where there was something to lose."""
    assert has_changed(command, result) is changed
    assert writes(command) or not changed


def test_a_claim_that_claims_nothing_changes_nothing() -> None:
    """An opened one does."""
    assert not has_changed(OPEN, Opened(None))
    assert has_changed(OPEN, Opened(CLAIM))


@pytest.mark.parametrize("name", ["fail_commits", "drop_answers", "delay_answers_s"])
def test_less_than_nothing_is_refused(name: str) -> None:
    """A negative number would count down for ever."""
    with pytest.raises(ValueError, match="least"):
        Faults(**{name: -1})
