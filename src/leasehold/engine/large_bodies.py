"""Large bodies: written before the commit that names them, removed after the one that lets go.

A message names its body by a key that is used once. So at any moment, also after a crash, a message
that was acknowledged has its body, and a body that no message names is garbage:

* it was written, and the put was refused or never happened: removed at once, or by the search;
* its message is gone: the store has noted the key, and the body is removed within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

import structlog

from leasehold.bodies.base import KEY_BYTES, BodyStore
from leasehold.bodies.copies import digest
from leasehold.clock import Clock
from leasehold.domain.command import AnyCommand, Command, Perform, R
from leasehold.domain.commands import ForgetBodyGarbage, KnownBodies, ReadBodyGarbage
from leasehold.domain.errors import LeaseholdError, OutcomeUnknown, StoreFull, Unavailable
from leasehold.domain.model import BodyRef, Queue
from leasehold.engine.body_place import MarkedBodies
from leasehold.engine.body_reading import (
    AT_ONCE,
    BodyReader,
    Surroundings,
    adopted,
    bodies_of,
    doubtful,
    reason_of,
    swapped,
)

INLINE_BODY_BYTES: Final = 65_536
"""Bodies up to this size stay in the store of messages."""
BUDGET_BYTES: Final = 128 * 1024 * 1024
STEP: Final = 256
"""Keys that one command of the collection is about."""
ORPHAN_AGE_MS: Final = 3_600_000
"""A body that no message names is removed at this age: younger ones may be named any moment."""
SEARCH_INTERVAL_S: Final = 86_400.0

_log = structlog.get_logger(__name__)


class LargeBodies:
    """Moves large bodies between commands and a body store. Lives in one event loop.

    Args:
        store: Owned from now on, and closed with :meth:`close`.
        clock: Source of all time.
        inline_bytes: Larger bodies go to the body store.
        budget_bytes: Bodies in memory, those counted by *buffered* included; more is not read.
        buffered: Returns how many bytes of bodies others hold: requests, and answers on their way.
    """

    def __init__(
        self,
        store: BodyStore,
        clock: Clock,
        *,
        inline_bytes: int = INLINE_BODY_BYTES,
        budget_bytes: int = BUDGET_BYTES,
        buffered: Callable[[], int] = lambda: 0,
    ) -> None:
        self.written = 0
        """Bodies written since the start, and so on."""
        self.removed = 0
        self.orphans = 0
        """Bodies removed that the search found and no message named."""
        self.pending = 0
        """Bodies to be removed, at the last look; STEP means that there may be more."""
        self.write_failures = 0
        """Bodies that could not be written since the start."""
        self.remove_failures = 0
        """Times that a body could not be removed since the start; it is tried again."""
        self._place = MarkedBodies(store)
        self.reader = BodyReader(
            self._place, inline_bytes=inline_bytes, budget_bytes=budget_bytes, buffered=buffered
        )
        self._clock = clock
        self.inline_bytes = inline_bytes
        """Bodies up to this size stay in the store of messages."""
        self._has_complained_of_place = False
        self._has_complained = False
        """Whether the last write failed: then the log knows already."""
        self._writing: set[str] = set()
        """Keys whose command has not ended."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._runner: asyncio.Task[None] | None = None
        self._next_search_s = clock.monotonic_s()
        self._perform: Perform
        self._is_writable: Callable[[], bool]
        self._leads: Callable[[], bool]
        # They are asked on every receive and settling, or nearly so.
        self.is_large = self.reader.is_large
        self.limited = self.reader.limited
        self.lacks = self.reader.lacks
        self.fill_in = self.reader.fill_in

    def attach(
        self,
        perform: Perform,
        *,
        find_queue: Callable[[str, str], Queue | None],
        is_writable: Callable[[], bool],
        leads: Callable[[], bool],
    ) -> None:
        """Learn who carries commands out; comes before everything else.

        Args:
            perform: Carries a command out, without a thought for bodies.
            find_queue: The store's.
            is_writable: Whether the store of messages has room. When it has none, what is left of
                the disk is for consumers.
            leads: Whether this server is the one that removes bodies without a message.
        """
        self._perform = perform
        self._is_writable = is_writable
        self._leads = leads
        self.reader.around = Surroundings(perform, find_queue, self._spawn)

    async def begin(self) -> None:
        """Find out whether the place is the one that the database knows, before bodies are read.

        A folder tells at once. An object store may not answer for minutes: the rounds of the
        collection ask it, and until then requests that need a body are refused.
        """
        self._place.begin()
        if self._place.is_watched:
            await self._recognize()

    async def look(self) -> bool:
        """Look whether the place is the right one, and tell whether bodies may be removed there.

        A folder is looked at each time, an object store while something is wrong with it.
        """
        is_right = self._place.is_known
        if self._place.is_watched or not is_right:
            try:
                await self._place.look()
                is_right = True
            except Unavailable:
                is_right = False
        if not (is_right and self._place.is_recognized):
            await self._recognize()
        return self._place.is_usable

    async def _recognize(self) -> None:
        try:
            await self._place.recognize(self._perform)
        except LeaseholdError as error:
            if self._place.is_known and not self._has_complained_of_place:
                self._has_complained_of_place = True
                _log.warning("body.unreachable", place=self._place.place, reason=reason_of(error))
        else:
            self._has_complained_of_place = False

    @property
    def is_known(self) -> bool:
        """False while the place is not the one that the database knows."""
        return self._place.is_known

    def start(self, interval_s: float) -> None:
        """Collect garbage every so many seconds, and search for orphans now and once a day."""
        self._runner = asyncio.create_task(self._run(interval_s), name="bodies")

    async def stop(self) -> None:
        """End the collection; what is asked for still is answered."""
        if self._runner is not None:
            self._runner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._runner
            self._runner = None

    async def close(self) -> None:
        """Finish removing what was refused, and close the body store."""
        while self._tasks:
            tasks = tuple(self._tasks)
            await asyncio.gather(*tasks, return_exceptions=True)
            # From Python 3.12 on, waiting for tasks that are done gives their callbacks no turn.
            self._tasks.difference_update(tasks)
        await self._place.close()

    # --- writing -----------------------------------------------------------------------------

    async def put_away(self, command: Command[R]) -> R:
        """Write the large bodies of a command, and carry it out without them.

        Raises:
            StoreFull: There is no room for the bodies, or the messages; nothing was done.
            Unavailable: The body store cannot be reached; nothing was done.
            LeaseholdError: The command was refused; its bodies are removed.
        """
        if not self._is_writable():
            raise StoreFull
        keys: list[str] = []
        unused: set[str] = set()
        try:
            bare = await self._bare(command, keys)
            unused.update(keys)
            result = await self._perform(bare)
            unused.difference_update(ref.key for ref in adopted(bare, result))
            unused.update(await self._in_vain(bare, result))
        except (OutcomeUnknown, asyncio.CancelledError):
            unused.clear()  # it may be done all the same: the search will tell
            raise
        except Exception:
            unused.update(keys)
            raise
        finally:
            self._writing.difference_update(keys)
            if unused:
                self._spawn(self._remove(sorted(unused)))
        self.written += len(keys)
        return result

    async def _in_vain(self, command: AnyCommand, result: object) -> set[str]:
        """Return keys of bodies that a command brought and no message was made of."""
        keys = tuple(ref.key for ref in doubtful(command, result))
        if not keys:
            return set()
        try:
            return set(keys).difference(await self._keys(KnownBodies(keys)))
        except LeaseholdError:  # then the search will tell
            return set()

    async def _bare(self, command: Command[R], keys: list[str]) -> Command[R]:
        """Write the large bodies of a command and return it without them.

        The keys are noted in *keys* before anything is written.
        """
        large = [body for body in bodies_of(command) if len(body) > self.inline_bytes]
        keys += [secrets.token_hex(KEY_BYTES) for _ in large]
        self._writing.update(keys)
        refs = await self._write(keys, large)

        def where(body: bytes) -> BodyRef | None:
            return next(refs) if len(body) > self.inline_bytes else None

        return swapped(command, where)

    async def _write(self, keys: Sequence[str], large: Sequence[bytes]) -> Iterator[BodyRef]:
        """Write bodies; return where they are, in their order."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def write(key: str, body: bytes) -> BodyRef:
            async with turns:
                sha256 = await asyncio.to_thread(digest, body)
                await self._place.put(key, body)
                return BodyRef(key=key, size_bytes=len(body), sha256=sha256)

        pairs = zip(keys, large, strict=True)
        done = await asyncio.gather(*(write(*pair) for pair in pairs), return_exceptions=True)
        refs: list[BodyRef] = []
        for each in done:
            if isinstance(each, BaseException):
                self.write_failures += 1
                if not self._has_complained and self._place.is_known:
                    self._has_complained = True
                    reason = reason_of(each)
                    _log.warning("body.not_written", place=self._place.place, reason=reason)
                raise each
            refs.append(each)
        self._has_complained = False
        return iter(refs)

    # --- removing ----------------------------------------------------------------------------

    async def collect(self) -> None:
        """Remove the bodies whose messages are gone."""
        while True:
            garbage = await self._keys(ReadBodyGarbage(STEP))
            self.pending = len(garbage)
            if not garbage:
                return
            # The store says so already; but what is removed by mistake cannot be brought back.
            answer = await self._perform(KnownBodies(garbage))
            if answer.held:
                return  # a backup may name them
            known = set(answer.keys)
            gone = await self._remove([key for key in garbage if key not in known])
            self.removed += len(gone)
            if gone or known:
                await self._perform(ForgetBodyGarbage((*gone, *known)))
            self.pending -= len(gone) + len(known)
            if self.pending:
                return  # some could not be removed: not now, then

    async def search(self) -> None:
        """Remove the bodies that no message names: of puts that never came to their end."""
        before_ms = self._clock.now_ms() - ORPHAN_AGE_MS
        found = 0
        async for page in self._place.pages():
            # A key that is not being written now has been named by now, or never will be.
            old = [
                each.key
                for each in page
                if each.modified_at_ms < before_ms and each.key not in self._writing
            ]
            for start in range(0, len(old), STEP):
                part = tuple(old[start : start + STEP])
                answer = await self._perform(KnownBodies(part))
                if answer.held:
                    continue  # a backup may name what no message does any more
                known = set(answer.keys)
                found += len(await self._remove([key for key in part if key not in known]))
        self.orphans += found
        if found:
            _log.info("body.orphans_removed", place=self._place.place, count=found)

    async def _run(self, interval_s: float) -> None:
        while True:
            try:
                is_usable = await self.look()
                if is_usable and self._leads():
                    await self.collect()
                if is_usable and self._leads() and self._clock.monotonic_s() >= self._next_search_s:
                    self._next_search_s = self._clock.monotonic_s() + SEARCH_INTERVAL_S
                    await self.search()
            except Exception as error:  # noqa: BLE001 - the next round may go better
                _log.warning("body.round_failed", reason=reason_of(error))
            await asyncio.sleep(interval_s)

    async def _keys(self, command: ReadBodyGarbage | KnownBodies) -> tuple[str, ...]:
        return (await self._perform(command)).keys

    async def _remove(self, keys: Sequence[str]) -> list[str]:
        """Remove bodies; return the keys of those that are gone."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def remove(key: str) -> None:
            async with turns:
                await self._place.delete(key)

        done = await asyncio.gather(*map(remove, keys), return_exceptions=True)
        failed = [each for each in done if isinstance(each, BaseException)]
        self.remove_failures += len(failed)
        if failed and self._place.is_known:
            _log.warning(
                "body.not_removed",
                place=self._place.place,
                count=len(failed),
                reason=reason_of(failed[0]),
            )
        pairs = zip(keys, done, strict=True)
        return [key for key, each in pairs if not isinstance(each, BaseException)]

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
