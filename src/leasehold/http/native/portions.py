"""Work on many things, in portions between which others have a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

AT_ONCE: Final = 100
"""Things worked on in one turn; to show a message takes some twenty microseconds."""

_T = TypeVar("_T")
_R = TypeVar("_R")


async def in_portions(work: Callable[[_T], _R], things: Sequence[_T]) -> list[_R]:
    """Return what *work* makes of each thing, in their order."""
    if len(things) <= AT_ONCE:
        return [work(each) for each in things]
    made: list[_R] = []
    for start in range(0, len(things), AT_ONCE):
        if start:
            await asyncio.sleep(0)
        made += [work(each) for each in things[start : start + AT_ONCE]]
    return made
