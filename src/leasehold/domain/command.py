"""What every command declares once: the type of its result, and its traits.

How a command is batched, locked, admitted and counted depends on a few properties of its kind. They
stand on its class, and every table of them is made from there when a module is imported, so that
the hot path looks up a type in a dictionary or a set and asks nothing else. A class that leaves one
out cannot be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Any, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

R = TypeVar("R")
_R_co = TypeVar("_R_co", covariant=True)


class Effect(Enum):
    """What a command does to the store."""

    LOOKS = auto()
    """It changes nothing that anybody could miss, so it may be done again."""
    CHANGES = auto()
    """A client asks for a change."""
    UPKEEP = auto()
    """The server itself asks for a change, and no client waits for it."""


class Rank(IntEnum):
    """The order in which the commands of one batch are carried out.

    Any order is allowed, as none of them has been answered when the last one arrives. Alike
    commands share statements, and what finishes work goes before what takes new work: so a
    heartbeat also comes before the sweep that would find its session silent. Those of one rank take
    their turns as they came.
    """

    FIRST = 0
    PUT = auto()
    STAGE = auto()
    COMPLETE = auto()
    RENEW = auto()
    RELEASE = auto()
    BATCH = auto()
    EXEMPT = auto()
    BIND = auto()
    COMMIT = auto()
    PUBLISH = auto()
    DISCARD = auto()
    HEARTBEAT = auto()
    EXTEND = auto()
    SETTLE = auto()
    GIVE_BACK = auto()
    END_SESSION = auto()
    LOSE_SESSIONS = auto()
    LAPSE = auto()
    TAKE = auto()
    """Receives and claims."""
    PEEK = auto()
    READ_CLAIM = auto()
    NEXT_DUE = auto()


class Lock(Enum):
    """Which lock a batch with it takes where several servers share a database.

    See decisions 34 and 48.
    """

    SHARED = auto()
    """It does well while other servers write. If one turns out not to, its batch is undone and
    carried out again alone."""
    ALONE = auto()
    """No other server may write meanwhile."""


class Answer(Enum):
    """What its answer shows."""

    PLAIN = auto()
    """No message, and little of anything."""
    MESSAGE = auto()
    """The one message that it was about, whose body may be in the body store."""
    MESSAGES = auto()
    """Messages, whose bodies may be in the body store. The answer may be large."""
    EVENTS = auto()
    """Events, perhaps very many."""


class Refresh(Enum):
    """What a server of several reads anew before it carries the command out."""

    NOTHING = auto()
    COUNTS = auto()
    """How many messages its queue has."""
    LOG = auto()
    """Where the event log ends, and how large it is."""


Weigh: TypeAlias = Callable[[Any], int]
"""How many puts a command costs as much as, at least 1."""
NeedsRoom: TypeAlias = Callable[[Any], bool]
"""Whether a command makes the store larger, so that it is refused while the disk is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is the same for all commands of one class. Nothing has a default."""

    effect: Effect
    rank: Rank
    weight: Weigh
    lock: Lock
    room: NeedsRoom
    """:func:`never` for those that are carried out however full the disk is."""
    finishes: bool
    """Whether it finishes work, and so heals an overload; one that is made of others, if all do."""
    wakes: bool
    """Whether those who wait for messages have to hear of its result."""
    answer: Answer
    refresh: Refresh


def looks(rank: Rank, weight: Weigh, lock: Lock, answer: Answer, refresh: Refresh) -> Traits:
    """Return the traits of a command that changes nothing: it needs no room, and wakes nobody."""
    return Traits(
        effect=Effect.LOOKS,
        rank=rank,
        weight=weight,
        lock=lock,
        room=never,
        answer=answer,
        refresh=refresh,
        finishes=False,
        wakes=False,
    )


def changes(  # noqa: PLR0913 - a trait each
    rank: Rank,
    weight: Weigh,
    lock: Lock,
    room: NeedsRoom,
    answer: Answer,
    *,
    finishes: bool,
    wakes: bool,
    refresh: Refresh = Refresh.NOTHING,
) -> Traits:
    """Return the traits of a command with which a client changes something."""
    return Traits(
        effect=Effect.CHANGES,
        rank=rank,
        weight=weight,
        lock=lock,
        room=room,
        answer=answer,
        refresh=refresh,
        finishes=finishes,
        wakes=wakes,
    )


def upkeep(rank: Rank, weight: Weigh, room: NeedsRoom, refresh: Refresh, *, wakes: bool) -> Traits:
    """Return the traits of a command that the server gives itself: no other server may write."""
    return Traits(
        effect=Effect.UPKEEP,
        rank=rank,
        weight=weight,
        lock=Lock.ALONE,
        room=room,
        answer=Answer.PLAIN,
        refresh=refresh,
        finishes=False,
        wakes=wakes,
    )


class Command(Generic[_R_co]):
    """Something asked of a store. A refusal is an error, whatever the type of the result is.

    Each class declares its ``traits`` in its own body.
    """

    __slots__ = ()

    traits: ClassVar[Traits]

    def __init_subclass__(cls, **named: Any) -> None:
        """Remember the class.

        Raises:
            TypeError: It declares no traits.
        """
        super().__init_subclass__(**named)
        if not isinstance(cls.__dict__.get("traits"), Traits):
            raise TypeError(f"{cls.__qualname__} declares no traits")
        # A dataclass with slots is a second class in the place of the first.
        _kinds[cls.__module__, cls.__qualname__] = cls

    def subcommands(self) -> Sequence[AnyCommand]:
        """Return the commands that it is made of, each with a result of its own."""
        return ()

    def carried(self) -> Sequence[AnyCommand]:
        """Return the commands inside it whose bodies it brings: of what it is made, or its puts."""
        return self.subcommands()

    def carrying(self, commands: tuple[Any, ...]) -> AnyCommand:
        """Return the same with others in the place of those that are ``carried``."""
        assert not commands
        return self


AnyCommand: TypeAlias = Command[Any]
"""A command whose result may be anything."""

_kinds: dict[tuple[str, str], type[AnyCommand]] = {}


def kinds_in(*modules: str) -> tuple[type[AnyCommand], ...]:
    """Return the classes of commands that some modules have, in the order of their definition."""
    return tuple(kind for (module, _), kind in _kinds.items() if module in modules)


@dataclass(frozen=True, slots=True)
class Swept:
    """How many rows the maintenance step took; as many as its limit means that more may wait."""

    count: int


@dataclass(frozen=True, slots=True)
class Done:
    """It is done."""


DONE: Final = Done()


class Perform(Protocol):
    """Carries a command out."""

    async def __call__(self, command: Command[R], /) -> R:
        """Return its result once that is durable.

        Raises:
            LeaseholdError: The command was refused.
        """
        ...


# --- weighing ----------------------------------------------------------------------------------
#
# What commands cost, roughly. A batch holds the event loop while its statements run, so it is
# bounded by weight: one is the weight of a put. A command is never cut; what works on very many
# messages comes in steps instead, and has a batch to itself.


MAX_BATCH: Final = 512
"""Weight of one transaction: bounds how long the event loop is held and what an undo costs."""
BYTES_PER_COMMAND: Final = 16 * 1024
"""Bytes of bodies that cost as much to write as one small put, roughly."""
TAKEN_PER_COMMAND: Final = 8
"""Messages of one receive, claim or read that cost as much as one put, roughly."""


def one(_: Any) -> int:
    """As much as a put."""
    return 1


def by_limit(command: Any) -> int:
    """By the number of messages, or events, that it may take or show."""
    return int(command.limit // TAKEN_PER_COMMAND or 1)


def by_subcommands(command: AnyCommand) -> int:
    """As much as the commands that it is made of, of which each has the weight of a put."""
    return len(command.subcommands()) or 1


def quarter(_: Any) -> int:
    """What goes over many messages holds the loop for tens of milliseconds."""
    return MAX_BATCH // 4


def whole(_: Any) -> int:
    """What is of unknown size goes alone."""
    return MAX_BATCH


# --- room --------------------------------------------------------------------------------------


def never(_: Any) -> bool:
    """It frees room, or needs none worth speaking of."""
    return False


def always(_: Any) -> bool:
    """It makes the store larger."""
    return True


def if_subcommands_do(command: AnyCommand) -> bool:
    """It makes the store larger if a command that it is made of does."""
    return any(each.traits.room(each) for each in command.subcommands())
