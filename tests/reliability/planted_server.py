"""A server with a fault that a harness must find: ``planted_server.py FAULT serve ...``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from leasehold.command import main
from leasehold.domain.queue_settings import GroupSettings
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


FAULTS: Final[dict[str, Callable[[], None]]] = {
    "one-too-many": _one_too_many,
    "past-the-first": _past_the_first,
}

if __name__ == "__main__":
    FAULTS[sys.argv.pop(1)]()
    main()
