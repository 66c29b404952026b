"""What the event log tells a page: the newest events with a filter, and the figures of a queue.

Both go from the newest event back, and no further than takes a few dozen milliseconds: they say how
far that was.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from leasehold.auth.console import ConsoleSessions
from leasehold.auth.types import Operation
from leasehold.clock import Clock
from leasehold.domain.errors import QueueNotFound
from leasehold.domain.event_recorder import SERVER
from leasehold.domain.events import NEWEST, Event, EventTail, EventType, TailEvents
from leasehold.domain.model import Queue
from leasehold.domain.queue_settings import QueueSettings
from leasehold.events.names import TYPE_NAMES
from leasehold.http.app import check_known_queue_name
from leasehold.http.console.live import session_of
from leasehold.http.native.account import show_event
from leasehold.http.native.call import Call, in_portions, param_int, short_text
from leasehold.http.native.errors import invalid
from leasehold.http.requests import Response

MOST_LOOKS: Final = 4
"""Looks at the log for one page: 30 ms each where all that is read has to be decoded."""
MOST_EVENTS: Final = 20_000
"""Events of a queue that its figures are made of."""
ENOUGH: Final = 1_000
"""So many completions are enough for percentiles, once the time shown is covered."""
MOST_SHOWN: Final = 1_000
KEPT_S: Final = 5.0
"""Figures are made anew no sooner."""
ADVISED_S: Final = 60.0
"""The same for advice, unless the settings change."""
ADVISED_OF_S: Final = 86_400
"""Advice is from events of so long, if the log is not too large for one page."""
ADVISED_FROM: Final = 10_000
"""And of so many: of twice as many it takes longer than a page may, and is much the same."""
MOST_KEPT: Final = 100
"""Queues whose figures are kept so long."""

_BUCKETS: Final = (1, 360)
_BUCKET_S: Final = (1, 3_600)
_MS: Final = 1000
_PLACE: Final = re.compile(r"([0-9]{1,19})\.([0-9]{1,9})")
_ENDED: Final = frozenset({"failed", "interrupted"})
_SHARES: Final = (50, 90, 99)
_ANYBODY: Final = "*"


class Covered(NamedTuple):
    """Some events, the newest first, and how far back they were looked for."""

    events: list[Event]
    reached_ms: int | None
    """Nothing is missing that is newer than this; None where there is no log."""
    complete: bool
    """There is nothing earlier."""
    next_seq: int

    def newest(self, most: int) -> Covered:
        """Return so many of them at most."""
        if len(self.events) <= most:
            return self
        events = self.events[:most]
        return self._replace(events=events, reached_ms=events[-1].at_ms, complete=False)


class History:
    """Answers what the event log can tell.

    Args:
        sessions: Know who has signed in.
        clock: The engine's.
    """

    EVENTS: Final = frozenset(
        {
            *("queue", "type", "message", "group", "actor", "session", "holder"),
            *("limit", "before", "after"),
        }
    )
    FIGURES: Final = frozenset({"bucket_s", "buckets"})

    def __init__(self, sessions: ConsoleSessions, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        self._kept: dict[tuple[str, str, int, int], tuple[float, dict[str, Any]]] = {}
        self._advised: dict[tuple[str, str], _Advised] = {}
        self._advising = asyncio.Lock()

    # --- events ------------------------------------------------------------------------------

    async def events(self, call: Call) -> Response:
        """Show events, the newest first."""
        queue = call.params.get("queue") or None
        session_of(self._sessions, call, Operation.PEEK_MESSAGES, queue)
        limit = param_int(call, "limit", (1, MOST_SHOWN)) or 100
        before = _place_of(call, "before") or (NEWEST, 0)
        after = _place_of(call, "after") or (0, -1)
        is_wanted = _filter_of(call)
        message_id = short_text("message", call.params.get("message") or None)
        found: list[Event] = []
        seq, reached_ms, finished, looks = before[0], None, False, 0
        cut: tuple[int, int] | None = None
        while not finished and looks < MOST_LOOKS and cut is None:
            looks += 1
            command = TailEvents(call.account, seq, queue, message_id)
            tail = await call.services.perform(command)
            reached_ms = tail.oldest_at_ms or reached_ms
            for event in tail.events:
                place = (event.seq, event.place)
                if place <= after:
                    finished = True
                    break
                if place < before and is_wanted(event):
                    if len(found) == limit:
                        cut = (found[-1].seq, found[-1].place)
                        break
                    found.append(event)
            seq = tail.next_seq
            finished = finished or not seq or seq < after[0]
        finished = finished and cut is None
        on = cut or (seq + 1, 0)
        return call.reply(
            {
                "events": await in_portions(show_event, found),
                "newest": f"{found[0].seq}.{found[0].place}" if found else None,
                "next_before": None if finished else f"{on[0]}.{on[1]}",
                "finished": finished,
                "reached_ms": reached_ms,
            }
        )

    # --- figures -----------------------------------------------------------------------------

    async def figures(self, call: Call) -> Response:
        """Show how fast a queue was, and how long its messages took."""
        queue = _queue_of(self._sessions, call)
        bucket_s = param_int(call, "bucket_s", _BUCKET_S) or 60
        buckets = param_int(call, "buckets", _BUCKETS) or 60
        key = (call.account, queue.name, bucket_s, buckets)
        now_s = self._clock.monotonic_s()
        kept = self._kept.get(key)
        if kept is not None and now_s - kept[0] < KEPT_S:
            return call.reply(kept[1])
        now_ms = self._clock.now_ms()
        first_ms = (now_ms // _MS // bucket_s - buckets + 1) * bucket_s * _MS
        covered = await covering(call, queue.name, first_ms)
        shown = {
            "queue": queue.name,
            "now_ms": now_ms,
            "logged": queue.settings.event_log,
            "reached_ms": covered.reached_ms,
            "complete": covered.complete,
            "events": len(covered.events),
            "bucket_s": bucket_s,
            "buckets": rates_of(covered, first_ms, bucket_s, buckets, now_ms),
            **lengths_of(covered.events),
            "adaptive": _adaptive(queue, covered.events),
        }
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        self._kept[key] = now_s, shown
        return call.reply(shown)

    # --- advice ------------------------------------------------------------------------------

    async def advice(self, call: Call) -> Response:
        """Show what the statistics make of how long work took."""
        queue = _queue_of(self._sessions, call)
        key = call.account, queue.name
        now_s = self._clock.monotonic_s()
        kept = self._advised.get(key)
        if kept is None or kept.is_over(now_s, queue.settings):
            if len(self._advised) >= MOST_KEPT:
                self._advised.clear()
            making = asyncio.create_task(self._advise(call, queue))
            kept = self._advised[key] = _Advised(now_s, queue.settings, making)
        # Others may wait for the same; and who left the page may come back to it.
        return call.reply(await asyncio.shield(kept.making))

    async def _advise(self, call: Call, queue: Queue) -> dict[str, Any]:
        now_ms = self._clock.now_ms()
        shown: dict[str, Any] = {"queue": queue.name, "now_ms": now_ms}
        since_ms = now_ms - ADVISED_OF_S * _MS
        covered = (await covering(call, queue.name, since_ms, ADVISED_FROM)).newest(ADVISED_FROM)
        async with self._advising:  # one at a time: each takes its share of the processor
            try:
                made = await asyncio.to_thread(
                    _advice_from, covered.events[::-1], queue.settings.lease_s(), now_ms
                )
            except ImportError:
                why = "The server lacks numpy and scipy: install the extra `tuning`."
                return {**shown, "available": False, "why": why, "extra": "tuning"}
        shown |= {"available": True, "logged": queue.settings.event_log}
        shown |= {"events": len(covered.events), "reached_ms": covered.reached_ms}
        shown |= {"complete": covered.complete, **made}
        shown["adaptive"] = queue.settings.adaptive is not None
        advised_s, changed = made["advised_s"], made["advised_s"] != made["today_s"]
        shown["apply"] = {"settings": {"visibility_timeout_s": advised_s}} if changed else None
        return shown


class _Advised(NamedTuple):
    """Advice that is there, or is being made."""

    at_s: float
    settings: QueueSettings
    making: asyncio.Task[dict[str, Any]]

    def is_over(self, now_s: float, settings: QueueSettings) -> bool:
        """Tell whether it has to be made anew."""
        if self.making.done() and (self.making.cancelled() or self.making.exception()):
            return True
        return now_s - self.at_s >= ADVISED_S or self.settings != settings


def _advice_from(events: list[Event], today_s: int, now_ms: int) -> dict[str, Any]:
    """Load the statistics, which takes a moment the first time, and ask them."""
    # Their matrices are tiny. With a thread for each core, which wait for each other by spinning,
    # a fit takes twice to six times the processor time, most beside other work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    module: Any = importlib.import_module("leasehold.advisor.recent")
    made: dict[str, Any] = module.advice_from(events, today_s, now_ms)
    return made


def _queue_of(sessions: ConsoleSessions, call: Call) -> Queue:
    """Return the queue in the path, if the session may look at it.

    Raises:
        QueueNotFound: There is none.
    """
    check_known_queue_name(call.queue)
    session_of(sessions, call, Operation.PEEK_MESSAGES, call.queue)
    queue = call.services.find_queue(call.account, call.queue)
    if queue is None:
        raise QueueNotFound
    return queue


async def covering(call: Call, queue: str, since_ms: int, enough: int = MOST_EVENTS) -> Covered:
    """Read the events of a queue back to a moment, and further for enough that were completed."""
    events: list[Event] = []
    seq, reached_ms, done = NEWEST, None, 0
    for _ in range(MOST_LOOKS):
        tail: EventTail = await call.services.perform(TailEvents(call.account, seq, queue))
        events += tail.events
        done += sum(event.type in _COMPLETED for event in tail.events)
        reached_ms = tail.oldest_at_ms or reached_ms
        seq = tail.next_seq
        covers = reached_ms is None or reached_ms < since_ms
        if not seq or len(events) >= enough or (covers and done >= ENOUGH):
            break
        await asyncio.sleep(0)
    return Covered(events, reached_ms, not seq, seq)


# --- filters -----------------------------------------------------------------------------------


def _place_of(call: Call, name: str) -> tuple[int, int] | None:
    text = call.params.get(name)
    if not text:
        return None
    found = _PLACE.fullmatch(text)
    if found is None or int(found[1]) > NEWEST:
        raise invalid(name, f"`{name}` must be a position in the log, such as 812.3.", value=text)
    return int(found[1]), int(found[2])


def _filter_of(call: Call) -> Callable[[Event], bool]:
    """Return what tells whether an event is asked for."""
    params = call.params
    types: frozenset[int] | None = None
    if params.get("type"):
        numbers = {name: number for number, name in TYPE_NAMES.items()}
        names = params["type"].split(",")
        for name in names:
            if name not in numbers:
                raise invalid("type", f"`type` must be one of {', '.join(numbers)}.", value=name)
        types = frozenset(numbers[name] for name in names)
    wanted = {
        member: text
        for member, name in (
            ("group_id", "group"),
            ("actor", "actor"),
            ("session", "session"),
            ("holder", "holder"),
        )
        if (text := short_text(name, params.get(name) or None)) is not None
    }

    def is_wanted(event: Event) -> bool:
        if types is not None and event.type not in types:
            return False
        return all(_agrees(getattr(event, name), text) for name, text in wanted.items())

    return is_wanted


def _agrees(value: str | None, wanted: str) -> bool:
    return value is not None if wanted == _ANYBODY else value == wanted


# --- figures of events -------------------------------------------------------------------------
#
# Pure functions.

_PUT: Final = frozenset({EventType.PUT, EventType.PUBLISHED})
_RECEIVED: Final = frozenset({EventType.RECEIVED, EventType.CLAIMED})
_COMPLETED: Final = frozenset({EventType.COMPLETED, EventType.SETTLED})
_FAILED: Final = frozenset({EventType.LAPSED, EventType.LEASE_ENDED, EventType.POISONED})


def kind_of(event: Event) -> str | None:
    """Return which rate an event counts for: put, received, completed or failed."""
    kind = event.type
    if kind in _PUT:
        return "put"
    if kind in _RECEIVED:
        return "received"
    if kind in _COMPLETED:
        return "completed"
    is_failed = kind in _FAILED or (kind is EventType.RELEASED and event.reason in _ENDED)
    return "failed" if is_failed else None


_KINDS: Final = ("put", "received", "completed", "failed")


def rates_of(
    covered: Covered, first_ms: int, bucket_s: int, buckets: int, now_ms: int
) -> list[dict[str, Any]]:
    """Return messages per second in each bucket, the oldest first.

    A bucket that was not looked at as a whole has None; the last one counts for as long as it has
    lasted.
    """
    counts = [dict.fromkeys(_KINDS, 0) for _ in range(buckets)]
    for event in covered.events:
        number = (event.at_ms - first_ms) // (bucket_s * _MS)
        kind = kind_of(event)
        if kind is not None and 0 <= number < buckets:
            counts[number][kind] += 1
    reached_ms = covered.reached_ms
    known_from_ms = 0 if covered.complete or reached_ms is None else reached_ms
    shown: list[dict[str, Any]] = []
    for number, counted in enumerate(counts):
        at_ms = first_ms + number * bucket_s * _MS
        lasted_s = min(bucket_s, max(1.0, (now_ms - at_ms) / _MS))
        is_known = at_ms >= known_from_ms
        rates = {
            kind: round(count / lasted_s, 3) if is_known else None
            for kind, count in counted.items()
        }
        shown.append({"at_ms": at_ms, **rates})
    return shown


def lengths_of(events: Iterable[Event]) -> dict[str, Any]:
    """Return how long messages waited to be received, and took from there to completion."""
    dwell: list[int] = []
    handling: list[int] = []
    for event in events:
        if event.type is EventType.RECEIVED and event.visible_since_ms:
            dwell.append(max(0, event.at_ms - event.visible_since_ms))
        elif event.type is EventType.COMPLETED and event.since_ms:
            handling.append(max(0, event.at_ms - event.since_ms))
    return {"dwell_s": percentiles(dwell), "handling_s": percentiles(handling)}


def percentiles(lengths_ms: Sequence[int]) -> dict[str, Any] | None:
    """Return percentiles by nearest rank, in seconds; None of nothing."""
    if not lengths_ms:
        return None
    ordered = sorted(lengths_ms)
    told: dict[str, Any] = {"count": len(ordered)}
    for share in _SHARES:
        told[f"p{share}"] = ordered[-(-share * len(ordered) // 100) - 1] / _MS
    told["max"] = ordered[-1] / _MS
    return told


def _adaptive(queue: Queue, events: Iterable[Event]) -> dict[str, Any]:
    """Return how the timeout follows the work, as far as the events go back."""
    settings = queue.settings
    adapted = settings.adapted
    history = [change for event in events if (change := _adapted_in(event)) is not None]
    return {
        "enabled": settings.adaptive is not None,
        "timeout_s": settings.lease_s(),
        "changed_at_ms": None if adapted is None else adapted.at_ms,
        "because": None if adapted is None else adapted.because,
        "history": history[::-1],
    }


class _Adapted(msgspec.Struct):
    visibility_timeout_s: int
    because: str = ""


_ADAPTED: Final = re.compile(r"adapted: .* -> (\{.*\})")


def _adapted_in(event: Event) -> Mapping[str, Any] | None:
    """Return the timeout that the server has chosen with an event of it."""
    if event.type is not EventType.QUEUE_UPDATED or event.actor != SERVER:
        return None
    found = _ADAPTED.fullmatch(event.reason or "")
    if found is None:  # it was turned off, or its reason was too long to be kept whole
        return None
    try:
        made = msgspec.json.decode(found[1], type=_Adapted)
    except msgspec.DecodeError:
        return None
    return {
        "at_ms": event.at_ms,
        "timeout_s": made.visibility_timeout_s,
        "because": made.because,
    }
