"""What has to be done now and then: expiry, reaping, noticing that a full disk has room again.

Each step is a command with a limit and goes through the batcher like any other, so that it never
holds up clients for longer than a slice takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import structlog

from leasehold.clock import Clock
from leasehold.domain import commands as c
from leasehold.domain.clock_rules import may_retire
from leasehold.stores.base import Store

SLICE_ROWS: Final = 500
"""Rows one step may take, some two milliseconds' worth."""

_log = structlog.get_logger(__name__)


Perform: TypeAlias = Callable[[c.Command], Awaitable[c.Result]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePlan:
    """How often and with how much patience."""

    interval_s: float = 1.0
    note_time_interval_s: float = 60.0
    adapt_interval_s: float = 10.0
    """Between looks at timeouts that adapt, and at deduplication keys that can be forgotten."""
    expiry_grace_s: int = 86_400
    """Seconds that an expired message is kept out of reach before its row is removed."""


class Maintenance:
    """Runs the sweeps of one engine."""

    def __init__(  # noqa: PLR0913 - each is a collaborator of its own
        self,
        store: Store,
        clock: Clock,
        plan: MaintenancePlan,
        *,
        perform: Perform,
        relieve: Callable[[], Awaitable[bool]],
        adapt: Callable[[Perform, int], Awaitable[None]],
    ) -> None:
        self.retired = 0
        """Messages retired since the start."""
        self._store = store
        self._clock = clock
        self._perform = perform
        self._relieve = relieve
        self._adapt = adapt
        self._plan = plan
        self._started_at_ms = clock.now_ms()
        self._started_s = clock.monotonic_s()
        self._last_seen_ms = store.last_seen_ms()
        self._next_note_s = self._started_s
        self._next_adapt_s = self._started_s
        self._waiting_for_clock = False

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            try:
                await self.sweep()
            except Exception as error:  # noqa: BLE001 - tomorrow's sweep may go better
                _log.warning("maintenance.failed", error=str(error) or type(error).__name__)
            await asyncio.sleep(self._plan.interval_s)

    async def sweep(self) -> None:
        """Do all that is due now."""
        if not self._store.health().writable:
            await self._relieve()
        if self._clock.monotonic_s() >= self._next_note_s:
            self._next_note_s = self._clock.monotonic_s() + self._plan.note_time_interval_s
            await self._perform(c.NoteTime())
        if self._clock_is_believed():
            self.retired += await self._to_the_end(c.RetireExpired(SLICE_ROWS))
            before_ms = self._clock.now_ms() - self._plan.expiry_grace_s * 1000
            await self._to_the_end(c.RemoveRetired(before_ms, SLICE_ROWS))
        await self._to_the_end(c.ReapDropped(SLICE_ROWS))
        if self._clock.monotonic_s() >= self._next_adapt_s:
            self._next_adapt_s = self._clock.monotonic_s() + self._plan.adapt_interval_s
            if not self._waiting_for_clock:
                await self._to_the_end(c.ForgetKeys(SLICE_ROWS))
            await self._adapt(self._perform, self._clock.now_ms())

    async def _to_the_end(
        self, command: c.RetireExpired | c.RemoveRetired | c.ReapDropped | c.ForgetKeys
    ) -> int:
        total = 0
        while True:
            swept = await self._perform(command)
            assert isinstance(swept, c.Swept)
            total += swept.count
            if swept.count < command.limit:
                return total

    def _clock_is_believed(self) -> bool:
        believed = may_retire(
            last_seen_ms=self._last_seen_ms,
            started_at_ms=self._started_at_ms,
            running_s=self._clock.monotonic_s() - self._started_s,
            wall_drift_s=self._clock.wall_drift_s(),
        )
        if believed == self._waiting_for_clock:
            self._waiting_for_clock = not believed
            if believed:
                _log.info("clock.believed")
            else:
                _log.warning(
                    "clock.doubted",
                    last_seen_ms=self._last_seen_ms,
                    started_at_ms=self._started_at_ms,
                    wall_drift_s=round(self._clock.wall_drift_s(), 3),
                    consequence="expired messages are hidden but not removed until it is confirmed",
                )
        return believed
