"""A server with a fault that a harness must find: ``planted_server.py FAULT serve ...``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from leasehold.command import main
from leasehold.domain.queue_settings import GroupRate, GroupSettings
from leasehold.stores.sql import groups


def _one_too_many() -> None:
    """Have the limit of what is in flight be one more than was set."""
    limit_of = GroupSettings.limit_of

    def wrong(self: GroupSettings, group_id: str) -> int | None:
        limit = limit_of(self, group_id)
        return None if limit is None else limit + 1

    GroupSettings.limit_of = wrong  # type: ignore[method-assign]


def _past_the_first() -> None:
    """Have a group go on while its first message is on a lease."""
    groups.is_ordered = lambda settings, group: False  # type: ignore[attr-defined]


def _twice_the_rate() -> None:
    """Hand groups out twice as fast as was set."""
    rate_of = GroupSettings.rate_of

    def wrong(self: GroupSettings, group_id: str) -> GroupRate | None:
        rate = rate_of(self, group_id)
        return None if rate is None else GroupRate(2 * rate.per_s, rate.burst)

    GroupSettings.rate_of = wrong  # type: ignore[method-assign]


def _no_halt() -> None:
    """Have a group go on when a message of it was poisoned."""
    GroupSettings.halts = lambda self, group_id: False  # type: ignore[method-assign]


FAULTS: Final[dict[str, Callable[[], None]]] = {
    "one-too-many": _one_too_many,
    "past-the-first": _past_the_first,
    "twice-the-rate": _twice_the_rate,
    "no-halt": _no_halt,
}

if __name__ == "__main__":
    FAULTS[sys.argv.pop(1)]()
    main()
