"""What remembers that something was done, and the part of a message that it needs."""

from __future__ import annotations

import hashlib
import heapq
import json
import threading
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Final, Protocol, runtime_checkable
from urllib.parse import quote

from leasehold.clock import Clock, SystemClock
from leasehold.worker.idempotency.errors import Fenced, UncheckedRun, UnstorableResult

DEFAULT_WINDOW_S: Final = 7 * 86_400.0
"""A week: the time that a message of Azure Queue Storage lives unless its sender says otherwise."""
SWEEP_STEP: Final = 256
"""Expired keys that one step removes."""
_LASTING: Final = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


class Delivered(Protocol):
    """A delivered message; see :class:`leasehold.worker.message.Message`."""

    @property
    def id(self) -> str:
        """Its id, the same at each delivery."""
        ...

    @property
    def queue(self) -> str:
        """Name of its queue."""
        ...

    @property
    def fence(self) -> int:
        """Rises with each delivery of the message."""
        ...

    def check(self) -> None:
        """Raise LeaseLost if the message is not held any more."""
        ...


class Processed(Protocol):
    """A history table: which keys were done, and by whom the others are being done.

    All methods block, may be called from any thread, and act in one step: of several that call at
    the same time, one is first.
    """

    @property
    def window_s(self) -> float:
        """How long a key is remembered after it was done, in seconds."""
        ...

    def begin(self, key: str, holder: Holder, hold_s: float | None = None) -> Entry | None:
        """Enter *holder* as the one that works under *key*.

        Args:
            key: See :func:`~leasehold.worker.idempotency.history.join_key`.
            holder: Who asks.
            hold_s: How long other messages with that key are kept away, in seconds; None: as long
                as the window.

        Returns:
            None if the holder may go ahead; otherwise what stands in its way, which was left as
            it is (see :func:`~leasehold.worker.idempotency.history.may_begin`).
        """
        ...

    def finish(self, key: str, holder: Holder, result: str | None) -> None:
        """Record that *holder* has done it, with a result in JSON; the window begins.

        Raises:
            Fenced: Another worker took over.
        """
        ...

    def abandon(self, key: str, holder: Holder) -> None:
        """Forget that *holder* began, if it is still the one; others may begin at once."""
        ...

    def look(self, key: str) -> Entry | None:
        """Return what is remembered under *key*."""
        ...

    def forget(self, key: str) -> bool:
        """Forget *key*, done or not; return whether there was anything.

        For people, who know that whoever began will never come back.
        """
        ...

    def sweep(self, limit: int = SWEEP_STEP) -> int:
        """Remove up to *limit* expired keys, those that expired first; return how many.

        Stores do it by themselves now and then, so that they do not grow; a store that serves many
        keys in bursts may be helped along.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


@runtime_checkable
class KnowsItsErrors(Protocol):
    """What a history may have besides, to say which of its errors another try may mend.

    Of one that has not, :func:`may_pass` is believed.
    """

    def may_pass(self, error: Exception) -> bool:
        """Tell whether what failed with *error* may succeed a moment later."""
        ...


def may_pass(error: Exception) -> bool:
    """Tell whether an error of the machine or the network may be gone a moment later."""
    return isinstance(error, OSError) and not isinstance(error, _LASTING)


def check_window(window_s: float) -> float:
    """Return *window_s* if it can be one.

    Raises:
        ValueError: It is not above 0.
    """
    if not window_s > 0:
        raise ValueError(f"window_s is {window_s}; it must be above 0")
    return window_s


def milliseconds(seconds: float) -> int:
    """Return *seconds* as whole milliseconds, at least 1."""
    return max(1, round(seconds * 1000))


# --- rules -------------------------------------------------------------------------------------
#
# Who may begin, and who may say that it is done.
#
# The same rules are in ``queries.sql`` for the SQL stores and in ``begin.lua`` and ``finish.lua``
# for Redis, where they act in one step; one suite of tests runs over all of them.
#
# Fences order the deliveries of one message. Those of two messages under one key say nothing about
# each other: there, whoever came first goes on until it ends or its hold runs out.


MAX_FENCE: Final = 10**15 - 1
"""The largest integer of an HTTP structured field (RFC 9651, section 3.3.1). Redis counts in
doubles, which are exact that far."""


def check_fence_number(fence: int) -> None:
    """Refuse what cannot be a fence.

    Raises:
        ValueError: It is not from 0 to :data:`MAX_FENCE`.
    """
    if not 0 <= fence <= MAX_FENCE:
        raise ValueError(f"the fence is {fence}; it must be from 0 to {MAX_FENCE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who wants to do something once."""

    source: str
    """The message, queue included."""
    fence: int
    """Of the delivery; rises with each delivery of the message."""
    run: str = field(repr=False)
    """Drawn anew for each run, so that a repeated request is known as one's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is remembered under a key."""

    source: str
    fence: int
    run: str = field(repr=False)
    is_done: bool
    result: str | None
    """JSON; None if there was no result."""
    since_ms: int
    """When it was begun or done, Unix milliseconds."""
    held_until_ms: int
    """From then on another message may take over what is not done."""
    expires_at_ms: int
    """From then on it counts as forgotten."""


class Standing(Enum):
    """What an entry means to a worker that could not begin because of it."""

    REPEATED = auto()
    """It is done: skip."""
    BUSY = auto()
    """Another worker is at it."""
    FENCED = auto()
    """A newer delivery of the same message is at it, or has done it."""


def may_begin(entry: Entry | None, holder: Holder, now_ms: int) -> bool:
    """Tell whether *holder* begins in place of *entry*.

    A newer fence takes over at once what an older delivery of the message has not finished; an
    older one never does. The same fence does so only if it is the same run, whose answer was lost.
    """
    if entry is None or entry.expires_at_ms <= now_ms:
        return True
    if entry.is_done:
        return False
    if entry.source != holder.source:
        return entry.held_until_ms <= now_ms
    return entry.fence < holder.fence or entry.run == holder.run


def may_finish(entry: Entry | None, holder: Holder, now_ms: int) -> bool:
    """Tell whether *holder*, whose effect has happened, may record it in place of *entry*."""
    if entry is None or entry.expires_at_ms <= now_ms or entry.run == holder.run:
        return True
    return not entry.is_done and entry.source == holder.source and entry.fence < holder.fence


def standing(entry: Entry, holder: Holder) -> Standing:
    """Say what *entry* means to a holder that may not begin."""
    if entry.source == holder.source and entry.fence > holder.fence:
        return Standing.FENCED
    return Standing.REPEATED if entry.is_done else Standing.BUSY


def newest_of(entry: Entry, holder: Holder) -> int | None:
    """Return the fence that *holder* lost to, if it can be compared."""
    return entry.fence if entry.source == holder.source else None


# --- results -----------------------------------------------------------------------------------
#
# What came of a run, as it is kept.


MAX_RESULT_BYTES: Final = 65_536
"""A result is an answer to be given again, no place for data; those belong beside it."""


def encode_result(result: Any) -> str | None:
    """Return *result* as JSON; None if there is none.

    Raises:
        UnstorableResult: It is no JSON, or over :data:`MAX_RESULT_BYTES`.
    """
    if result is None:
        return None
    try:
        # ASCII only: PostgreSQL takes no NUL in a text, and no store takes half a surrogate pair.
        text = json.dumps(result, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UnstorableResult(f"the result cannot be kept as JSON: {error}") from error
    if len(text) > MAX_RESULT_BYTES:
        raise UnstorableResult(
            f"the result has {len(text):,} bytes as JSON; at most {MAX_RESULT_BYTES:,} are kept"
        )
    return text


def decode_result(text: str | None) -> Any:
    """Return what :func:`encode_result` kept."""
    return None if text is None else json.loads(text)


# --- runs --------------------------------------------------------------------------------------
#
# One delivery under one key.


class Run:
    """What the body gets: it looks at :attr:`first`, and may set :attr:`result`.

    Args:
        key: As the history knows it.
        holder: Who runs.
    """

    __slots__ = ("_is_first", "_was_asked", "holder", "key", "result")

    def __init__(self, key: str, holder: Holder) -> None:
        self.key = key
        self.holder = holder
        self.result: Any = None
        """What came of it, as JSON can say it: set by the first run, read by those that skip."""
        self._is_first = True
        self._was_asked = False

    @property
    def first(self) -> bool:
        """Whether the effect is still to happen."""
        self._was_asked = True
        return self._is_first

    @property
    def is_first(self) -> bool:
        """As :attr:`first`, but no look at it: not for bodies."""
        return self._is_first

    def meet(self, entry: Entry) -> bool:
        """Take in what stands in the way; return whether another worker is at it.

        Raises:
            Fenced: It is a newer delivery, at work or done.
        """
        stands = standing(entry, self.holder)
        if stands is Standing.FENCED:
            raise Fenced(self.key, self.holder.fence, entry.fence)
        if stands is Standing.REPEATED:
            self._is_first = False
            self.result = decode_result(entry.result)
        return stands is Standing.BUSY

    def check_asked(self) -> None:
        """Refuse a body that is over and did not look.

        Raises:
            UncheckedRun: It did not.
        """
        if not self._was_asked:
            raise UncheckedRun(f"{self.key}: the block did not check run.first")


# --- keys --------------------------------------------------------------------------------------
#
# Keys under which effects are remembered.


MAX_KEY_LENGTH: Final = 200
"""Characters. Services take 255 for an Idempotency-Key, and Redis prefixes its keys; a longer key
is replaced by its SHA-256."""
_DIGEST_PREFIX: Final = "sha256:"


def join_key(*parts: str) -> str:
    """Return one key made of *parts*, a different one for different parts.

    It is printable ASCII without quotes and spaces. A part may be any text.
    """
    key = "/".join(quote(part, safe="-._~:@") for part in parts)
    if len(key) <= MAX_KEY_LENGTH:
        return key
    return _DIGEST_PREFIX + hashlib.sha256(key.encode()).hexdigest()


# --- memory ------------------------------------------------------------------------------------
#
# A history in memory, for tests and for programs of one process that may forget at its end.


_SWEEP_AT_ONCE = 4
"""More than one step adds, so that what has expired grows less."""


class MemoryProcessed:
    """See :class:`~leasehold.worker.idempotency.history.Processed`. Lives as long as the process.

    Args:
        window_s: How long a key is remembered, in seconds, above 0.
        clock: That the window is measured by.
    """

    def __init__(self, window_s: float = DEFAULT_WINDOW_S, *, clock: Clock | None = None) -> None:
        self.window_s = check_window(window_s)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._expiries: list[tuple[int, str]] = []

    def begin(self, key: str, holder: Holder, hold_s: float | None = None) -> Entry | None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        with self._lock:
            now_ms = self._clock.now_ms()
            self._sweep(now_ms, _SWEEP_AT_ONCE)
            entry = self._entries.get(key)
            if not may_begin(entry, holder, now_ms):
                return entry
            hold_ms = milliseconds(self.window_s if hold_s is None else hold_s)
            self._put(key, self._entry(holder, now_ms, held_until_ms=now_ms + hold_ms))
            return None

    def finish(self, key: str, holder: Holder, result: str | None) -> None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        with self._lock:
            now_ms = self._clock.now_ms()
            entry = self._entries.get(key)
            if not may_finish(entry, holder, now_ms):
                assert entry is not None
                raise Fenced(key, holder.fence, newest_of(entry, holder))
            done = self._entry(holder, now_ms, held_until_ms=now_ms)
            self._put(key, replace(done, is_done=True, result=result))

    def abandon(self, key: str, holder: Holder) -> None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and not entry.is_done and entry.run == holder.run:
                del self._entries[key]

    def look(self, key: str) -> Entry | None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        with self._lock:
            entry = self._entries.get(key)
            expired = entry is not None and entry.expires_at_ms <= self._clock.now_ms()
            return None if expired else entry

    def forget(self, key: str) -> bool:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        with self._lock:
            return self._entries.pop(key, None) is not None

    def sweep(self, limit: int = SWEEP_STEP) -> int:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        with self._lock:
            return self._sweep(self._clock.now_ms(), limit)

    def close(self) -> None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""

    def __len__(self) -> int:
        """How many keys are kept, expired ones included."""
        return len(self._entries)

    def _entry(self, holder: Holder, now_ms: int, *, held_until_ms: int) -> Entry:
        return Entry(
            source=holder.source,
            fence=holder.fence,
            run=holder.run,
            is_done=False,
            result=None,
            since_ms=now_ms,
            held_until_ms=held_until_ms,
            expires_at_ms=now_ms + milliseconds(self.window_s),
        )

    def _put(self, key: str, entry: Entry) -> None:
        self._entries[key] = entry
        heapq.heappush(self._expiries, (entry.expires_at_ms, key))

    def _sweep(self, now_ms: int, limit: int) -> int:
        """Go through the expiries; those of entries that were replaced since cost no step."""
        removed = 0
        while removed < limit and self._expiries and self._expiries[0][0] <= now_ms:
            expires_at_ms, key = heapq.heappop(self._expiries)
            entry = self._entries.get(key)
            if entry is not None and entry.expires_at_ms == expires_at_ms:
                del self._entries[key]
                removed += 1
        return removed
