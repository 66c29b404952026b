"""What the check of an event log says of message groups: their order and their limits.

Part of :mod:`leasehold.events.check`. Only groups of queues are looked at whose settings are known
to have an order or a limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from leasehold.domain.model import Phase, row_key_of
from leasehold.domain.queue_settings import GroupOrder

_Place: TypeAlias = tuple[str, str]
_Row: TypeAlias = tuple[Any, ...]
_ORDER: Final = "group-order"
_LIMIT: Final = "group-limit"
_MOVED: Final = -1


class _Claim(Protocol):
    hides: bool
    until: int


class Member(Protocol):
    """A message of a group."""

    claim: Any
    count: int
    expires: int
    group: str | None
    phase: int
    queue: _Place
    visible: int


class Queue(Protocol):
    """Its queue."""

    settings: dict[str, Any]
    halted: set[str]
    held: dict[str, str | None]


class _Group:
    """The messages of one group."""

    __slots__ = ("firsts", "order", "out", "seq")

    def __init__(self) -> None:
        self.out: dict[str, Member] = {}
        """What was received before and is still there."""
        self.firsts: list[tuple[int, int, str, Member]] = []
        """A heap of what was not, by place; entries may be out of date."""
        self.order: dict[str, int] = {}
        """Of all that is there: what comes first of those that are visible since the same time."""
        self.seq: dict[str, int] = {}
        """In which batch a message was received last."""


class GroupRules:
    """Judges deliveries by what else there is of their group.

    Args:
        violate: Called with the name of a rule and a sentence.
    """

    def __init__(self, violate: Callable[[str, str], None]) -> None:
        self._violate = violate
        self._groups: dict[tuple[_Place, str], _Group] = {}
        self._arrived = 0

    def arrived(
        self, queue: Queue, place: _Place, message_id: str, message: Member, *, is_new: bool
    ) -> None:
        """Take a message into account that comes into a queue.

        One that was somewhere else before has its place by a time that is not known here.
        """
        settings = queue.settings.get("groups")
        if settings is None or not _matters(settings) or message.group is None:
            return
        group = self._groups.setdefault((place, message.group), _Group())
        order = row_key_of(message_id) if is_new else _MOVED
        self._arrived += 1
        group.order[message_id] = self._arrived if order is None else order
        if message.count:
            group.out[message_id] = message
        elif is_new:
            entry = (message.visible, group.order[message_id], message_id, message)
            heapq.heappush(group.firsts, entry)

    def left(self, place: _Place, message_id: str, message: Member) -> None:
        """Take into account that a message is in its queue no more."""
        key = place, message.group or ""
        group = self._groups.get(key)
        if group is None:
            return
        group.out.pop(message_id, None)
        group.seq.pop(message_id, None)
        group.order.pop(message_id, None)
        if not group.order:
            del self._groups[key]

    def forget(self, place: _Place) -> None:
        """Know nothing of the groups of a queue any more."""
        for key in [key for key in self._groups if key[0] == place]:
            del self._groups[key]

    def delivered(self, queue: Queue, row: _Row, message: Member) -> None:
        """Judge a delivery, before the message is as it says."""
        seq, at_ms, message_id, session = row[0], row[2], row[6], row[15]
        name = message.group or ""
        if name in queue.halted:
            self._violate(_LIMIT, f"group {name} stands still")
        if name in queue.held and queue.held[name] != session:
            self._violate(_LIMIT, f"session {queue.held[name]} has group {name} to itself")
        settings = queue.settings.get("groups")
        if settings is None or not _matters(settings):
            return
        group = self._groups.setdefault((message.queue, name), _Group())
        others = {key: each for key, each in group.out.items() if key != message_id}
        if settings.get("order") == GroupOrder.FIFO:
            self._check_order(group, others, row, message)
        limit = (settings.get("max_in_flight_of") or {}).get(name, settings.get("max_in_flight"))
        if limit is not None:
            leased = sum(_is_leased(each, at_ms) for each in others.values())
            if leased >= limit:
                self._violate(_LIMIT, f"group {name} has {leased} in flight of {limit}")
        group.out[message_id] = message
        group.seq[message_id] = seq

    def _check_order(
        self, group: _Group, others: Mapping[str, Member], row: _Row, message: Member
    ) -> None:
        seq, at_ms, message_id = row[0], row[2], row[6]
        for key, each in others.items():
            # One receive takes several of a group.
            if group.seq.get(key) != seq and _is_hidden(each, at_ms):
                self._violate(_ORDER, f"message {key} of its group is out")
                break
        own = group.order.get(message_id)
        if message.count or own is None or own == _MOVED:
            return
        firsts = group.firsts
        while firsts:
            place_ms, order, key, first = firsts[0]
            if first.count or group.order.get(key) != order:
                heapq.heappop(firsts)
            elif first.visible != place_ms:  # its delay was changed
                heapq.heapreplace(firsts, (first.visible, order, key, first))
            else:
                is_ready = first.visible <= at_ms < first.expires
                if is_ready and (place_ms, order) < (message.visible, own):
                    self._violate(_ORDER, f"message {key} of its group waits before it")
                return


def _matters(settings: Mapping[str, Any]) -> bool:
    """Tell whether there is anything to judge."""
    return (
        settings.get("order") == GroupOrder.FIFO
        or settings.get("max_in_flight") is not None
        or bool(settings.get("max_in_flight_of"))
    )


def _is_hidden(message: Member, at_ms: int) -> bool:
    claim: _Claim | None = message.claim
    if claim is not None:
        return claim.hides
    return message.visible > at_ms and message.expires > at_ms


def _is_leased(message: Member, at_ms: int) -> bool:
    return message.phase == Phase.LEASED and _is_hidden(message, at_ms)
