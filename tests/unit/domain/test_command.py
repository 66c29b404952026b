"""Every command declares its traits, and the tables made of them say what they are to say.

The tables are written out here once more, by name: a trait that is changed by mistake is then seen
where it matters, and one that is new is given on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, get_args

import pytest

from leasehold.domain import commands as c
from leasehold.domain.admin import Amend, JobKind, JobPlan, StartJob
from leasehold.domain.claims import Exemption, ExemptMembers, SettleClaims
from leasehold.domain.command import (
    MAX_BATCH,
    Answer,
    AnyCommand,
    Command,
    Effect,
    Lock,
    Rank,
    Refresh,
    Traits,
    always,
    never,
    one,
    quarter,
)
from leasehold.domain.events import ReadEvents
from leasehold.domain.model import BodyRef, Outcome
from leasehold.domain.sessions import Heartbeat
from leasehold.domain.transactions import CommitTogether, Publish, Stage
from leasehold.engine import body_reading, commit_policy
from leasehold.engine.listeners import QueueListeners
from leasehold.http import admission
from leasehold.stores.base import COMMANDS
from leasehold.testing import ManualClock

BY_NAME = {kind.__name__: kind for kind in COMMANDS}
PUT = c.Put("a", "queue", b"x", 0, None, b"e")
RENEW = c.Renew("a", "queue", "id", "receipt", 30)
COMPLETE = c.Complete("a", "queue", "id", "receipt")
EXEMPTION = Exemption(1, "id", Outcome.FAILED)
REF = BodyRef(key="k", size_bytes=1, sha256="0")

LOOKING = """
    GetQueue ListQueues GetAccountDocument Peek Inspect FindMessage LookAtGroup CountMessages
    CountGroups NextDue GetJob ListJobs GetSession ListSessions ReadClaim GetStream ListStreams
    GetTransaction ListTransactions ReadEvents LogExtent ReadNote ReadBodyGarbage ReadBodyPlace
    KnownBodies TailEvents ListLeases
"""
UPKEEP = """
    RetireExpired RemoveRetired ReapDropped ForgetKeys NoteTime SetAdapted StepJob LoseSessions
    LapseClaims ExpireStaged TrimEvents KeepNote ForgetBodyGarbage MarkBodyPlace CatchUp
"""
RANKS = """
    Put | Stage | Complete | Renew | Release | Batch | ExemptMembers | BindClaim | CommitTogether |
    Publish | Discard | Heartbeat | ExtendClaim | SettleClaims | GiveBackClaim | EndSession |
    LoseSessions | LapseClaims | Receive OpenClaim HoldGroup | Peek | ReadClaim | NextDue
"""
"""All others go before these."""
HEAVY = """
    Receive Peek Batch Inspect CountGroups StepJob Heartbeat EndSession OpenClaim ReadClaim
    SettleClaims ExemptMembers GiveBackClaim DeleteStream LapseClaims Stage Publish Discard
    CommitTogether ReadEvents TailEvents
"""
"""All others have the weight of a put."""
SHARING = """
    Put Receive Peek Renew Complete Release Batch Heartbeat
    GetQueue ListQueues GetAccountDocument FindMessage LookAtGroup NextDue ReadNote GetJob ListJobs
    GetSession ListSessions ReadClaim GetStream ListStreams GetTransaction ListTransactions
    ReadBodyGarbage ReadBodyPlace CountGroups HoldGroup SaveGroupState ListLeases
"""
ALONE_THOUGH_LOOKING = "Inspect CountMessages ReadEvents TailEvents LogExtent KnownBodies"
"""What must be of one instant, or must not miss what another server is about to commit."""
GROWING = """
    Put Renew CreateQueue SetQueueMetadata SetQueuePolicies SetAccountDocument Amend StartJob Stage
    CommitTogether ExemptMembers SettleClaims KeepNote HoldGroup SaveGroupState
"""
FINISHING = """
    Complete Renew Release Heartbeat EndSession ExtendClaim ExemptMembers BindClaim SettleClaims
    GiveBackClaim Discard Batch CommitTogether
"""
WAKING = """
    Put Renew Receive Complete Release Batch SetQueueSettings DeleteQueue Amend Remove EndLease
    StartJob StepJob LoseSessions EndSession AttachStream OpenClaim ExtendClaim SettleClaims
    GiveBackClaim DeleteStream LapseClaims Publish CommitTogether ResumeGroup ReleaseGroup
"""
BRINGING = "Put Renew Amend Batch CommitTogether Stage SettleClaims"
ANSWERS = {
    Answer.MESSAGE: "Amend EndLease ExtendLease RequestCancel",
    Answer.MESSAGES: "Receive Peek Inspect FindMessage ReadClaim",
    Answer.EVENTS: "ReadEvents",
}
REFRESHED = {
    Refresh.COUNTS: "GetQueue CountMessages StartJob Inspect",
    Refresh.LOG: "ReadEvents TailEvents LogExtent TrimEvents",
}


def named(text: str) -> set[type[AnyCommand]]:
    """Return commands by their names."""
    names = text.split()
    assert len(set(names)) == len(names)
    return {BY_NAME[name] for name in names}


def those(test: Callable[[Traits], bool]) -> set[type[AnyCommand]]:
    """Return the commands whose traits pass."""
    return {kind for kind in COMMANDS if test(kind.traits)}


# --- declaring ---------------------------------------------------------------------------------


def test_a_command_without_traits_cannot_be_defined() -> None:
    """Neither can one that takes over those of the class that it derives from."""
    with pytest.raises(TypeError, match="declares no traits"):
        type("Forgotten", (Command,), {})
    with pytest.raises(TypeError, match="declares no traits"):
        type("Derived", (c.Peek,), {"__slots__": ()})


@pytest.mark.parametrize("name", [each.name for each in fields(Traits)])
def test_no_trait_has_a_default(name: str) -> None:
    """What is left out is an error at once."""
    given = {each.name: getattr(c.Put.traits, each.name) for each in fields(Traits)}
    assert Traits(**given) == c.Put.traits
    del given[name]
    with pytest.raises(TypeError, match=name):
        Traits(**given)


def test_every_command_is_known_and_names_its_result() -> None:
    """A dataclass with slots is made twice; only the second class counts."""
    assert len(BY_NAME) == len(COMMANDS) == 82
    for kind in COMMANDS:
        assert not hasattr(kind, "__dict__") or "__slots__" in vars(kind), kind
        bases: Iterable[Any] = vars(kind)["__orig_bases__"]
        assert [base for base in bases if get_args(base)], kind


def test_what_changes_nothing_needs_nothing() -> None:
    """What derives from the effect is the same for all of them."""
    for kind in COMMANDS:
        traits = kind.traits
        if traits.effect is Effect.LOOKS:
            assert (traits.room, traits.finishes, traits.wakes) == (never, False, False), kind
        if traits.effect is Effect.UPKEEP:
            assert (traits.lock, traits.finishes) == (Lock.ALONE, False), kind


# --- the tables --------------------------------------------------------------------------------


def test_effects() -> None:
    """What fails on demand, and what a test mode spares."""
    assert those(lambda traits: traits.effect is Effect.LOOKS) == named(LOOKING)
    assert those(lambda traits: traits.effect is Effect.UPKEEP) == named(UPKEEP)


def test_ranks() -> None:
    """The order within a batch."""
    ranked = [named(each) for each in RANKS.split("|")]
    rest = set(COMMANDS).difference(*ranked)
    expected = {kind: rank for rank, kinds in enumerate((rest, *ranked)) for kind in kinds}
    assert {kind: kind.traits.rank for kind in COMMANDS} == expected
    assert len(ranked) + 1 == len(Rank)


def test_locks() -> None:
    """What goes on beside other servers on PostgreSQL."""
    assert those(lambda traits: traits.lock is Lock.SHARED) == named(SHARING)
    assert named(LOOKING) - named(SHARING) == named(ALONE_THOUGH_LOOKING)


def test_room() -> None:
    """What is refused while the disk is full."""
    assert those(lambda traits: traits.room is not never) == named(GROWING)


def test_finishing() -> None:
    """What an overload lets in for longer."""
    assert those(lambda traits: traits.finishes) == named(FINISHING)


def test_waking() -> None:
    """What those who wait have to hear of, and only that, has somebody who tells them."""
    assert those(lambda traits: traits.wakes) == named(WAKING)
    notes = QueueListeners(ManualClock(), lambda _account, _queue: None)
    assert set(notes._notes) == named(WAKING)


def test_answers() -> None:
    """What room is asked for, and whose bodies are filled in."""
    for answer, names in ANSWERS.items():
        assert {kind for kind in COMMANDS if kind.traits.answer is answer} == named(names)
    large = named(ANSWERS[Answer.MESSAGES]) | named(ANSWERS[Answer.EVENTS])
    assert large == admission.SHOWING
    messages = named(ANSWERS[Answer.MESSAGES]) | named(ANSWERS[Answer.MESSAGE])
    assert messages | named(BRINGING) == body_reading.WITH_BODIES


def test_what_is_read_anew() -> None:
    """What a server must know of the work of others first."""
    for refresh, names in REFRESHED.items():
        assert {kind for kind in COMMANDS if kind.traits.refresh is refresh} == named(names)


def test_bodies() -> None:
    """What brings bodies to the store, alone or inside."""
    assert set(body_reading.BRINGING) == named(BRINGING)


# --- weights and room by what a command says ----------------------------------------------------


def weighed() -> Iterator[tuple[AnyCommand, int]]:
    """Return commands, and how many puts they cost as much as."""
    yield PUT, 1
    yield COMPLETE, 1
    for limit, weight in ((1, 1), (8, 1), (16, 2), (5_000, 625)):
        yield c.Receive("a", "queue", limit, 30), weight
        yield c.Peek("a", "queue", limit), weight
        yield ReadEvents(0, limit), weight
    yield c.Batch(()), 1
    yield c.Batch((PUT,) * 3), 3
    yield CommitTogether("a", (PUT, RENEW)), 2
    yield CommitTogether("a", (), ("t",)), MAX_BATCH
    settle = SettleClaims("a", "queue", "s", 1, 1)
    yield settle, 1
    yield replace(settle, exemptions=(EXEMPTION,) * 2, sends=(PUT,)), 4
    yield replace(settle, publish=("t",)), MAX_BATCH
    yield ExemptMembers("a", "queue", "s", 1, 1, ()), 1
    yield ExemptMembers("a", "queue", "s", 1, 1, (EXEMPTION,) * 3), 3
    stage = Stage("a", "t", "", 0, ())
    yield stage, 1
    yield replace(stage, puts=(PUT,) * 2), 2
    yield replace(stage, puts=(PUT._replace(body=bytes(65_536)),)), 4
    yield Heartbeat("a", "s"), 1
    yield Heartbeat("a", "s", dict.fromkeys(map(str, range(20)))), 3
    yield Publish("a", "t"), MAX_BATCH


def test_weights() -> None:
    """A batch is bounded by what its commands cost."""
    assert those(lambda traits: traits.weight is not one) == named(HEAVY)
    assert those(lambda traits: traits.weight is quarter) == named(
        "Inspect CountGroups TailEvents StepJob EndSession GiveBackClaim LapseClaims"
    )
    for command, weight in weighed():
        assert commit_policy.weight_of(command) == weight, command


@pytest.mark.parametrize(
    ("command", "grows"),
    [
        (PUT, True),
        (COMPLETE, False),
        (RENEW, False),
        (RENEW._replace(body=b""), True),
        (RENEW._replace(body=REF), True),
        (RENEW._replace(saved="{}"), True),
        (RENEW._replace(saved=c.REMOVE_SAVED), False),
        (CommitTogether("a", (COMPLETE, RENEW)), False),
        (CommitTogether("a", (COMPLETE, PUT)), True),
        (SettleClaims("a", "queue", "s", 1, 1), False),
        (SettleClaims("a", "queue", "s", 1, 1, sends=(PUT,)), True),
        (Amend("a", "queue", "id"), True),
        (StartJob("a", "queue", "j", JobPlan(kind=JobKind.PURGE)), True),
    ],
)
def test_whether_one_needs_room(command: AnyCommand, grows: bool) -> None:
    """Of some it depends on what they bring."""
    assert command.traits.room(command) is grows
    assert always(command)


def test_what_a_command_carries() -> None:
    """It can be had again with others in its place."""
    other = PUT._replace(body=b"y")
    for command in (
        c.Batch((PUT,)),
        CommitTogether("a", (PUT,)),
        Stage("a", "t", "", 0, (PUT,)),
        SettleClaims("a", "queue", "s", 1, 1, sends=(PUT,)),
    ):
        assert tuple(command.carried()) == (PUT,)
        changed = command.carrying((other,))
        assert type(changed) is type(command)
        assert tuple(changed.carried()) == (other,)
        assert changed.carrying((PUT,)) == command
    assert COMPLETE.carried() == () == COMPLETE.subcommands()
    assert COMPLETE.carrying(()) is COMPLETE
    assert tuple(Stage("a", "t", "", 0, (PUT,)).subcommands()) == ()
