"""Carries events from the store into Parquet files, each exactly once, beside everything else.

One file after the other is gathered from the log, planned in the store, written under a temporary
name, synced, given its name, and noted as done. Wherever the process ends in between, the next one
finds the plan and carries it out again: same batches, same name.

The same task forgets old events, because it knows which of them were exported.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from leasehold.clock import Clock
from leasehold.domain.command import Perform
from leasehold.domain.errors import Stopping
from leasehold.domain.events import (
    Extent,
    KeepNote,
    LogExtent,
    ReadEvents,
    ReadNote,
    TrimEvents,
)
from leasehold.events.files import (
    NOTE,
    ExportNote,
    FilePlan,
    FolderRefused,
    NoteUnreadable,
    prepare,
    read_note,
    remove_before,
)

if TYPE_CHECKING:
    from leasehold.events.parquet import FileBuilder


PAGE_EVENTS: Final = 1_000
"""Events that one look at the store takes, some five milliseconds' worth."""
_FILES_AT_STOP: Final = 2
"""How many files the last export may write: the end of a server does not wait for a long
backlog."""

_LONGEST_REST_S: Final = 1.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogPlan:
    """What becomes of the event log."""

    folder: Path | None = None
    """Where to export to; None: not at all."""
    interval_s: float = 60.0
    """Between two exports, and two looks for what is old."""
    retention_s: int = 259_200
    """How long the store keeps events that were exported, or need not be."""
    max_bytes: int = 1 << 30
    """Bytes of events that the store keeps at most."""
    parquet_retention_s: int | None = None
    """How long exported events are kept, by whole days; None for ever."""


class Exporter:
    """Exports and trims the log of one engine.

    Args:
        perform: The engine's.
        clock: Source of all time.
        plan: What to do.
        sleep: Waits so many seconds. By the time of the machine, also where the clock is virtual:
            virtual time should not stop at every interval.
        leads: Whether this server is the one that exports.
        trusts_clock: Whether what is old may be removed: not while the clock is doubted.
        max_rows: Events of one file; None for the default.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a collaborator of its own
        self,
        perform: Perform,
        clock: Clock,
        plan: EventLogPlan,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        leads: Callable[[], bool] = lambda: True,
        trusts_clock: Callable[[], bool] = lambda: True,
        max_rows: int | None = None,
    ) -> None:
        self.exported = 0
        """Events exported since the start; those of a file that was written again count again."""
        self.files = 0
        """Files written since the start."""
        self.trimmed = 0
        """Batches that the store has forgotten since the start."""
        self.lost = 0
        """Of these, batches that were not exported although they should have been."""
        self.lag_batches = 0
        """Batches that were not exported yet at the last look."""
        self.exported_seq = 0
        """Number of the last batch that is exported, as of the last look."""
        self.failures = 0
        """Exports, and times of forgetting, that have failed since the start."""
        self._perform = perform
        self._clock = clock
        self._plan = plan
        self._folder = plan.folder
        self._sleep = sleep
        self._leads = leads
        self._trusts_clock = trusts_clock
        self._max_rows = max_rows
        self._trimmer = Trimmer(
            perform=perform,
            rest=lambda: sleep(0),
            retention_s=plan.retention_s,
            max_bytes=plan.max_bytes,
        )
        self._note: ExportNote | None = None
        """As the store has it; None if that is not known."""
        self._complete_ms = clock.now_ms()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def lag_s(self) -> float:
        """Return for how many seconds there has been no complete export.

        What happened before that is in the folder. It rises up to the interval while all is well.
        """
        if self._folder is None:
            return 0.0
        return max(0, self._clock.now_ms() - self._complete_ms) / 1000

    def start(self) -> None:
        """Begin, in the background."""
        self._task = asyncio.create_task(self._run(), name="exporter")

    async def stop(self) -> None:
        """Export what there is, within limits, and end. The engine must still carry out commands.

        What remains, the next exporter exports.
        """
        self._stopping.set()
        if self._task is not None:
            await self._task
            self._task = None

    async def round(self) -> None:
        """Do all that is due now."""
        await self._surely("export", self._export)
        await self._surely("trim", self._trim)

    async def _run(self) -> None:
        # The clock has not been judged yet, so the first round removes nothing.
        await self._surely("export", self._export)
        while not await self._is_stopped_within(self._plan.interval_s):
            await self.round()
        await self._surely("export", lambda: self._export(_FILES_AT_STOP))

    async def _is_stopped_within(self, length_s: float) -> bool:
        waits = [
            asyncio.ensure_future(self._sleep(length_s)),
            asyncio.create_task(self._stopping.wait()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        return self._stopping.is_set()

    async def _surely(self, step: str, work: Callable[[], Awaitable[None]]) -> None:
        if not self._leads():
            self._note = None  # another server goes on with it
            self._complete_ms = self._clock.now_ms()
            return
        try:
            await work()
        except Stopping:
            return
        except (FolderRefused, NoteUnreadable) as error:
            self.failures += 1
            _log.error("events.export_refused", reason=str(error))
        except Exception as error:  # noqa: BLE001 - the next round may go better
            self.failures += 1
            _log.warning("events.failed", step=step, error=str(error) or type(error).__name__)

    # --- exporting ---------------------------------------------------------------------------

    async def _export(self, max_files: int | None = None) -> None:
        """Export what there is by now, or so many files of it."""
        folder = self._folder
        if folder is None:
            return
        # Whatever goes wrong below, the note has to be read again afterwards.
        note, self._note = self._note, None
        now_ms = self._clock.now_ms()
        extent = await self._perform(LogExtent())
        if note is None:
            note = await self._read_note()
            self._look(note, extent)
            note = await self._take_up(note, folder)
        files = 0
        self._look(note, extent)
        while note.done_seq < extent.last_seq:
            if files == max_files or (max_files is None and self._stopping.is_set()):
                break
            if not self._leads():
                break
            note = await self._export_file(note, folder, extent.last_seq)
            files += 1
            self._look(note, extent)
        else:
            self._complete_ms = now_ms
        self._note = note

    def _look(self, note: ExportNote, extent: Extent) -> None:
        self.exported_seq = note.done_seq
        self.lag_batches = max(0, extent.last_seq - note.done_seq)

    async def _read_note(self) -> ExportNote:
        kept = await self._perform(ReadNote(NOTE))
        if kept.content is None:
            return await self._keep(ExportNote(log=secrets.token_hex(8)))
        return read_note(kept.content)

    async def _take_up(self, note: ExportNote, folder: Path) -> ExportNote:
        """Make the folder ready, and do what was planned; return the note that says so."""
        await asyncio.to_thread(prepare, folder, note.log, note.known_seq())
        return note if note.plan is None else await self._redo(note, note.plan, folder)

    async def _redo(self, note: ExportNote, plan: FilePlan, folder: Path) -> ExportNote:
        """Carry out a plan that may have been carried out in part."""
        # Late, because the library is large and not every server exports.
        from leasehold.events.parquet import FileBuilder, confirm  # noqa: PLC0415

        if not await asyncio.to_thread(confirm, folder, plan.path):
            builder = FileBuilder(upto_seq=plan.last_seq)
            await self._fill(builder, plan.first_seq - 1, plan.last_seq)
            if (builder.first_seq, builder.last_seq) != (plan.first_seq, plan.last_seq):
                # It was trimmed. No file of the plan exists, so what is left can be planned anew.
                _log.warning(
                    "events.lost",
                    first_seq=plan.first_seq,
                    reason="removed before they were exported",
                )
                return await self._keep(replace(note, plan=None))
            await self._write(builder, folder)
        return await self._keep(replace(note, done_seq=plan.last_seq, plan=None))

    async def _export_file(self, note: ExportNote, folder: Path, upto_seq: int) -> ExportNote:
        """Export the next file; return the note that says so."""
        from leasehold.events.parquet import MAX_ROWS, FileBuilder  # noqa: PLC0415 - as above

        builder = FileBuilder(max_rows=self._max_rows or MAX_ROWS)
        reached_seq = await self._fill(builder, note.done_seq, upto_seq)
        if not builder.rows:
            return await self._keep(replace(note, done_seq=max(reached_seq, upto_seq)))
        first_seq, last_seq = builder.first_seq, builder.last_seq
        plan = FilePlan(first_seq=first_seq, last_seq=last_seq, path=builder.path)
        note = await self._keep(replace(note, plan=plan))
        await self._write(builder, folder)
        return await self._keep(replace(note, done_seq=max(reached_seq, last_seq), plan=None))

    async def _fill(self, builder: FileBuilder, after_seq: int, upto_seq: int) -> int:
        """Gather events until the file is full or there are no more; return how far it came."""
        while True:
            began_s = self._clock.monotonic_s()
            page = await self._perform(ReadEvents(after_seq, PAGE_EVENTS))
            if not await asyncio.to_thread(builder.add, page.events):
                return builder.last_seq
            if page.finished or page.last_seq >= upto_seq:
                return page.last_seq
            after_seq = page.last_seq
            if not self._stopping.is_set():
                # A long backlog takes half of the time at most; others have the rest.
                await self._sleep(min(self._clock.monotonic_s() - began_s, _LONGEST_REST_S))

    async def _write(self, builder: FileBuilder, folder: Path) -> None:
        path = builder.path
        size = await asyncio.to_thread(builder.write, folder)
        self.exported += builder.rows
        self.files += 1
        _log.debug("events.exported", file=path, events=builder.rows, bytes=size)

    async def _keep(self, note: ExportNote) -> ExportNote:
        await self._perform(KeepNote(NOTE, note.text()))
        return note

    # --- forgetting --------------------------------------------------------------------------

    async def give_way(self) -> None:
        """Forget old events because the disk is full, if they are a large part of what is on it."""
        self._count(await self._trimmer.give_way(await self._find_exported_seq()), "the disk")

    async def _find_exported_seq(self) -> int | None:
        """Return up to where the log is exported; None if it need not be."""
        if self._folder is None:
            return None
        if self._note is not None:
            return self._note.done_seq
        kept = await self._perform(ReadNote(NOTE))
        return 0 if kept.content is None else read_note(kept.content).done_seq

    def _count(self, trimmed: Trimmed, full: str) -> None:
        self.trimmed += trimmed.batches
        if trimmed.unexported:
            self.lost += trimmed.unexported
            self._note = None  # its plan may have lost what it is made of
            reason = f"{full} is full, and they could not be exported"
            _log.warning("events.lost", batches=trimmed.unexported, reason=reason)

    async def _trim(self) -> None:
        now_ms, trusted = self._clock.now_ms(), self._trusts_clock()
        exported_seq = await self._find_exported_seq()
        trimmed = await self._trimmer.trim(now_ms, exported_seq, by_age=trusted)
        self._count(trimmed, "the log (events_max_bytes)")
        keep_s = self._plan.parquet_retention_s
        if self._folder is not None and keep_s is not None and trusted:
            before_ms = now_ms - keep_s * 1000
            for day in await asyncio.to_thread(remove_before, self._folder, before_ms):
                _log.info("events.day_removed", folder=day)


# --- trimming ----------------------------------------------------------------------------------
#
# Forgetting old events in the store, by their age and by how much room they take.
#
# What was exported, or need not be, goes when it is old. What was not exported yet goes only when
# the log has no room left: when it is as large as it may be, or most of a disk that is full.


FULL_DISK_SHARE: Final = 4
"""While the disk is full, the log may be one in so many parts of what the store has on it."""
SLICE_BATCHES: Final = 200
"""Batches that one step forgets, some milliseconds' worth."""


class Trimmed(NamedTuple):
    """Batches forgotten."""

    batches: int = 0
    unexported: int = 0
    """Of these, how many were still to be exported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmer:
    """Trims one log.

    Args:
        perform: The engine's.
        rest: Lets others have their turn between two steps.
        retention_s: How long events are kept, in seconds.
        max_bytes: Most bytes of events.
    """

    perform: Perform
    rest: Callable[[], Awaitable[None]]
    retention_s: int
    max_bytes: int

    async def trim(self, now_ms: int, exported_seq: int | None, *, by_age: bool) -> Trimmed:
        """Forget what is too old or too much.

        Args:
            now_ms: The time, Unix milliseconds.
            exported_seq: Batches up to this number are exported; None if nothing has to be.
            by_age: Whether to go by age as well; not while the clock is doubted.
        """
        old = await self._by_age(now_ms, exported_seq) if by_age else 0
        exported, unexported = await self._by_size(exported_seq, self.max_bytes)
        return Trimmed(old + exported + unexported, unexported)

    async def give_way(self, exported_seq: int | None) -> Trimmed:
        """Forget the oldest events of a disk that is full, if the log is a large part of it.

        Without that, a log that has filled the disk would keep everything else from it for good.
        """
        extent = await self._extent()
        if not extent.store_bytes:
            return Trimmed()
        max_bytes = min(self.max_bytes, extent.store_bytes // FULL_DISK_SHARE)
        exported, unexported = await self._by_size(exported_seq, max_bytes)
        return Trimmed(exported + unexported, unexported)

    async def _by_age(self, now_ms: int, exported_seq: int | None) -> int:
        extent = await self._extent()
        before_ms = now_ms - self.retention_s * 1000
        if extent.oldest_at_ms is None or extent.oldest_at_ms >= before_ms:
            return 0
        upto_seq = await self._last_before(extent, before_ms)
        if exported_seq is not None:
            upto_seq = min(upto_seq, exported_seq)
        total = 0
        while True:
            count = await self._step(upto_seq, SLICE_BATCHES)
            total += count
            if count < SLICE_BATCHES:
                return total

    async def _last_before(self, extent: Extent, before_ms: int) -> int:
        """Return the number of the last batch before a moment, or less than that of the first."""
        low, high = extent.first_seq - 1, extent.last_seq
        while low < high:
            middle = (low + high) // 2
            page = await self.perform(ReadEvents(middle, 1))
            if page.events and page.events[0].at_ms < before_ms:
                low = page.events[0].seq
            else:
                high = middle
        return low

    async def _by_size(self, exported_seq: int | None, max_bytes: int) -> tuple[int, int]:
        """Forget the oldest batches; return how many of them were exported, and were not."""
        exported = unexported = 0
        while (extent := await self._extent()).bytes > max_bytes:
            kept = max(1, extent.last_seq - extent.first_seq + 1)
            share = (extent.bytes - max_bytes) * kept // extent.bytes
            limit = max(1, min(share, SLICE_BATCHES))
            if exported_seq is None or extent.first_seq <= exported_seq:
                count = await self._step(exported_seq or extent.last_seq, limit)
                exported += count
            else:
                count = await self._step(extent.last_seq, limit)
                unexported += count
            if not count:
                break
        return exported, unexported

    async def _extent(self) -> Extent:
        return await self.perform(LogExtent())

    async def _step(self, upto_seq: int, limit: int) -> int:
        swept = await self.perform(TrimEvents(upto_seq, limit))
        await self.rest()
        return swept.count
