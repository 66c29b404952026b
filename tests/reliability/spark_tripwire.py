"""A proxy that tells of each request of a Spark query, for those who kill at that moment."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Final

from tests.reliability.proxy import Proxy, _message


class Step(StrEnum):
    """What a request means for a query."""

    OPEN = "open"
    """The next claim is opened, or found again; the driver looks for events."""
    READ = "read"
    """An executor reads a page of a claim, or of events."""
    STAGE = "stage"
    PUBLISH = "publish"
    SETTLE = "settle"
    EXEMPT = "exempt"
    """The sink notes which messages of a claim are not to be completed with it."""
    OTHER = "other"


_STEPS: Final = (
    (Step.OPEN, re.compile(rb"PUT \S+/streams/[^/ ]+/claims/\d+[ ?]")),
    (Step.READ, re.compile(rb"GET \S+/streams/[^/ ]+/claims/\d+/messages")),
    (Step.PUBLISH, re.compile(rb"POST \S+/transactions/[^/ ]+/publish")),
    (Step.STAGE, re.compile(rb"(POST|PUT) \S+/transactions/[^/ ]+")),
    # A task asks for a thousand events at least; the driver for what a micro-batch may have.
    (Step.READ, re.compile(rb"GET \S+/events\?after=\d+&limit=\d{4,}[ &]")),
    (Step.OPEN, re.compile(rb"GET \S+/events\?")),
    (Step.SETTLE, re.compile(rb"POST \S+/streams/[^/ ]+/settle")),
    (Step.EXEMPT, re.compile(rb"POST \S+/streams/[^/ ]+/claims/\d+/exemptions")),
)

Watcher = Callable[[Step, bool], None]
"""Told of a step, and whether it was answered (True) or is about to be carried out."""


def step_of(request: bytes) -> Step:
    """Return what a request means."""
    line = request.split(b"\r\n", 1)[0]
    return next((step for step, form in _STEPS if form.match(line)), Step.OTHER)


class Tripwire(Proxy):
    """Stands between a query and its server.

    Args:
        upstream: Port of the server.
        watch: Called in the proxy's thread, before a request goes on and after its answer came.
    """

    def __init__(self, upstream: int, watch: Watcher) -> None:
        super().__init__(upstream)
        self.seen: Counter[Step] = Counter()
        """Requests of each kind that were answered."""
        self._watch = watch

    def lead_to(self, port: int) -> None:
        """Send what comes from now on to another port: the server was started again."""
        self._upstream = port

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await _message(reader)
        step = step_of(request)
        self._watch(step, False)
        with suppress(OSError, asyncio.IncompleteReadError):
            answer = await self._ask(request)
            self.seen[step] += 1
            self._watch(step, True)
            writer.write(answer)
            await writer.drain()
            return b"\r\nconnection: close\r\n" not in answer.lower()
        return False  # the server is away: the client sees a broken connection
