"""How a worker is doing, for people: a progress bar on a terminal, lines in a log elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TextIO

from leasehold.worker.outcomes import Kind
from leasehold.worker.timing import Rounds, Time

if TYPE_CHECKING:
    from rich.progress import Progress


_log: Final = logging.getLogger("leasehold.worker")
BAR_INTERVAL_S: Final = 0.5
_NAME_CHARS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A worker at one moment."""

    done: int
    """Messages completed so far."""
    failed: int
    """Messages given back after a failure, or set aside."""
    lost: int
    """Messages whose lease was lost."""
    concurrency: int
    prefetch: int
    """How many may be in the buffer."""
    lag_s: float
    """How late the last round of renewals began, in seconds."""
    renewals: int
    oldest_s: float | None
    """Age of the work that began first, in seconds; None if there is none."""
    oldest_id: str | None
    """The message of that."""
    in_work_by_queue: Mapping[str, int]
    buffered_by_queue: Mapping[str, int]

    @property
    def in_work(self) -> int:
        """Messages with a handler."""
        return sum(self.in_work_by_queue.values())

    @property
    def buffered(self) -> int:
        """Messages that wait for one."""
        return sum(self.buffered_by_queue.values())


def line_of(snapshot: Snapshot, rate: float) -> str:
    """Say in one line how a worker is doing.

    Args:
        snapshot: How it is.
        rate: Messages done in each second since the last time.
    """
    text = (
        f"{snapshot.done:,} done, {snapshot.failed:,} failed, {snapshot.in_work} in work,"
        f" {snapshot.buffered} buffered, {rate:,.1f}/s"
    )
    if snapshot.lost:
        text += f", {snapshot.lost:,} lost"
    if snapshot.oldest_s is not None:
        text += f", oldest in work {length(snapshot.oldest_s)} ({snapshot.oldest_id})"
    return f"{text}, renewals {length(snapshot.lag_s)} late"


def brief(snapshot: Snapshot, rate: float) -> str:
    """Say what fits beside a bar on a terminal of 80 columns."""
    parts = [f"{snapshot.done:,} done"]
    parts += [f"{snapshot.failed:,} failed"] if snapshot.failed else []
    parts += [f"{snapshot.lost:,} lost"] if snapshot.lost else []
    parts += [f"{snapshot.buffered:,} wait"] if snapshot.buffered else []
    return ", ".join([*parts, f"{rate:,.1f}/s"])


def length(seconds: float) -> str:
    """Write a length of time briefly: ``0.2 s``, ``75 s``, ``12 min``, ``3.1 h``."""
    if seconds < 10:  # noqa: PLR2004 - where a decimal stops to matter
        return f"{seconds:.1f} s"
    if seconds < 120:  # noqa: PLR2004 - as above, for seconds
        return f"{seconds:.0f} s"
    if seconds < 7200:  # noqa: PLR2004 - as above, for minutes
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class _Face(Protocol):
    """Where reports are shown."""

    def show(self, snapshot: Snapshot, rate: float) -> None:
        """Show how it is."""
        ...


class Reporter:
    """Reports at intervals, in a thread of its own.

    Args:
        name: Of the worker.
        look: Tells how the worker is doing.
        time: That it goes by.
        interval_s: Seconds from one line to the next; a bar moves twice a second.
        stream: Where a bar is drawn if it is a terminal and ``rich`` is installed.
    """

    def __init__(
        self,
        name: str,
        look: Callable[[], Snapshot],
        time: Time,
        *,
        interval_s: float,
        stream: TextIO | None = None,
    ) -> None:
        self._name = name
        self._look = look
        self._time = time
        self._stream = sys.stderr if stream is None else stream
        self._has_bar = self._stream.isatty() and find_spec("rich") is not None
        interval_s = BAR_INTERVAL_S if self._has_bar else interval_s
        self._rounds = Rounds("leasehold-report", time, interval_s)

    def start(self) -> None:
        """Begin."""
        self._rounds.start(self._run)

    def close(self) -> None:
        """Report once more, and end."""
        self._rounds.close()

    def _run(self) -> None:
        before_s, before = self._time.monotonic_s(), self._look().done
        with ExitStack() as stack:
            face: _Face = _Lines(self._name)
            if self._has_bar:
                bar = _Bar(self._name, self._stream)
                stack.enter_context(bar.progress)
                face = bar
            is_last = False
            while not is_last:
                is_last = not self._rounds.wait()
                snapshot, now_s = self._look(), self._time.monotonic_s()
                passed_s = now_s - before_s
                rate = (snapshot.done - before) / passed_s if passed_s > 0 else 0.0
                face.show(snapshot, rate)
                before_s, before = now_s, snapshot.done


class _Lines:
    """One line of the log for each report."""

    def __init__(self, name: str) -> None:
        self._name = name

    def show(self, snapshot: Snapshot, rate: float) -> None:
        """See :class:`_Face`."""
        _log.info("%s: %s", self._name, line_of(snapshot, rate))


class _Bar:
    """A bar that shows how many hands are busy, and the figures beside it."""

    def __init__(self, name: str, stream: TextIO) -> None:
        from rich.console import Console  # noqa: PLC0415 - optional
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn  # noqa: PLC0415

        self.progress: Progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[line]}"),
            console=Console(file=stream),
        )
        shown = name if len(name) <= _NAME_CHARS else f"{name[: _NAME_CHARS - 1]}…"
        self._task = self.progress.add_task(shown, total=1, line="")

    def show(self, snapshot: Snapshot, rate: float) -> None:
        """See :class:`_Face`."""
        self.progress.update(
            self._task,
            total=snapshot.concurrency,
            completed=snapshot.in_work,
            line=brief(snapshot, rate),
        )


# --- stats -------------------------------------------------------------------------------------
#
# What a worker has done so far, counted where it costs little: once for each batch.


BOUNDS_S: Final = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0),
)
"""Upper bounds of the histogram of handling times, seconds."""


@dataclass(slots=True)
class QueueStats:
    """Of one queue. Written under the lock of :class:`Stats`, and read without it."""

    queue: str
    received: int = 0
    outcomes: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    """By how they ended, settled ones only, except for those that were lost."""
    handled: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    """Handlers by how long they took; see :data:`BOUNDS_S`, the last is for longer ones."""
    handling_s: float = 0.0
    """Time that handlers took, all together."""
    receive_errors: int = 0
    settle_errors: int = 0
    """Messages that could not be settled: their lease ends, and they are delivered again."""
    redone: int = 0
    """Messages that came again although they were done, and were completed without work."""

    @property
    def settled(self) -> int:
        """How many messages have come to an end here."""
        return sum(self.outcomes.values())


class Ended(NamedTuple):
    """A message that has come to an end."""

    kind: Kind
    handling_s: float | None
    """None: its handler was not called."""


class Stats:
    """Of all queues of a worker."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.queues = [QueueStats(queue) for queue in queues]
        self.lost_sessions = 0
        self.dead_processes = 0
        self.late_renewals = 0
        """How often renewals were so late that leases were in danger."""
        self._lock = threading.Lock()

    def note_received(self, queue: int, count: int) -> None:
        """Count messages that were received."""
        with self._lock:
            self.queues[queue].received += count

    def note_receive_error(self, queue: int) -> None:
        """Count a receive that failed."""
        with self._lock:
            self.queues[queue].receive_errors += 1

    def note_settle_errors(self, queue: int, count: int = 1) -> None:
        """Count messages that could not be settled."""
        with self._lock:
            self.queues[queue].settle_errors += count

    def note_redone(self, queue: int) -> None:
        """Count a message that was done already."""
        with self._lock:
            self.queues[queue].redone += 1

    def note_dead_process(self) -> None:
        """Count a process that died with a message in work."""
        with self._lock:
            self.dead_processes += 1

    def note_lost_session(self) -> None:
        """Count a session that was lost."""
        with self._lock:
            self.lost_sessions += 1

    def note_late_renewals(self) -> None:
        """Count a round of renewals that was late."""
        with self._lock:
            self.late_renewals += 1

    def note_ended(self, queue: int, ended: Sequence[Ended]) -> None:
        """Count messages that have come to an end."""
        with self._lock:
            stats = self.queues[queue]
            outcomes, handled = stats.outcomes, stats.handled
            for kind, handling_s in ended:
                outcomes[kind] += 1
                if handling_s is not None:
                    handled[bisect_left(BOUNDS_S, handling_s)] += 1
                    stats.handling_s += handling_s

    def count(self, kind: Kind) -> int:
        """Return how many messages of all queues ended like that."""
        return sum(each.outcomes[kind] for each in self.queues)
