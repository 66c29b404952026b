"""Shows how a run is doing: bars for people, lines for logs, JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TextIO, TypeAlias

from leasehold.domain.wording import count_of
from leasehold.spark.pipeline.report import Progress
from leasehold.worker.reporting import length

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Show: TypeAlias = Literal["auto", "bars", "lines", "json"] | None

_log: Final = logging.getLogger("leasehold.spark.pipeline")
_BAR_WIDTH: Final = 28


class Display(ABC):
    """Where progress is shown; a context manager around a run."""

    interval_s = 1.0
    """Seconds from one look to the next."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @abstractmethod
    def update(self, progress: Progress) -> None:
        """Show how it is going."""

    @abstractmethod
    def end(self, progress: Progress) -> None:
        """Show how it has ended."""


def display_for(
    show: Show, name: str, stages: Sequence[str], stream: TextIO | None = None
) -> Display:
    """Return what shows a run.

    Args:
        show: See :class:`~leasehold.spark.pipeline.RunSettings`.
        name: Of the pipeline.
        stages: Names of the stages, in order.
        stream: Where to; None: standard error, and for JSON standard output.
    """
    if show is None:
        return Nothing()
    if show == "json":
        return JsonLines(stream or sys.stdout)
    target = stream or sys.stderr
    has_bars = show == "bars" or (show == "auto" and target.isatty())
    if has_bars and find_spec("rich") is not None:
        return Bars(name, stages, target)
    return TextLines(name)


class Nothing(Display):
    """Shows nothing."""

    def update(self, progress: Progress) -> None:
        """See :class:`Display`."""

    def end(self, progress: Progress) -> None:
        """See :class:`Display`."""


class JsonLines(Display):
    """One JSON object a line: ``{"event": "progress", ...}``, and ``"end"`` in the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def update(self, progress: Progress) -> None:
        """See :class:`Display`."""
        self._write("progress", progress)

    def end(self, progress: Progress) -> None:
        """See :class:`Display`."""
        self._write("end", progress)

    def _write(self, event: str, progress: Progress) -> None:
        members: dict[str, Any] = {"event": event, **progress.members()}
        self._stream.write(json.dumps(members, separators=(",", ":")) + "\n")
        self._stream.flush()


class TextLines(Display):
    """A line of the log every ten seconds."""

    interval_s = 10.0

    def __init__(self, name: str) -> None:
        self._name = name

    def update(self, progress: Progress) -> None:
        """See :class:`Display`."""
        _log.info("%s: %s", self._name, line_of(progress))

    def end(self, progress: Progress) -> None:
        """See :class:`Display`."""
        _log.info("%s: over after %s: %s", self._name, length(progress.seconds), line_of(progress))


def line_of(progress: Progress) -> str:
    """Say in one line how a run is doing."""
    parts = [f"{progress.done:,} done", f"{progress.in_work:,} in work"]
    parts += [f"{progress.waiting:,} wait"] if progress.waiting else []
    parts += [f"{progress.backlog:,} in the queue"] if progress.backlog is not None else []
    parts += [f"{progress.poisoned:,} poisoned"] if progress.poisoned else []
    parts += [f"{progress.failed:,} failed and come again"] if progress.failed else []
    parts += [f"{progress.lost:,} lost"] if progress.lost else []
    parts += [f"{progress.per_s:,.1f}/s"]
    parts += [f"{name} {each.working:,}" for name, each in progress.stages.items() if each.working]
    return ", ".join(parts)


class Bars(Display):
    """A bar for each stage, and the figures of the whole above them.

    Args:
        name: Of the pipeline.
        stages: Names of the stages, in order.
        stream: A terminal, or what is to be treated as one.
    """

    interval_s = 0.5

    def __init__(self, name: str, stages: Sequence[str], stream: TextIO) -> None:
        from rich.console import Console  # noqa: PLC0415 - optional
        from rich.live import Live  # noqa: PLC0415

        self._name = name
        self._stages = tuple(stages)
        self._console: Console = Console(file=stream, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, progress: Progress) -> None:
        """See :class:`Display`."""
        self._live.update(self.picture(progress), refresh=True)

    def end(self, progress: Progress) -> None:
        """See :class:`Display`."""
        self._live.stop()
        self._console.print(self.picture(progress))

    def picture(self, progress: Progress) -> RenderableType:
        """Return what is drawn."""
        from rich.console import Group  # noqa: PLC0415 - optional
        from rich.progress_bar import ProgressBar  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        total = max(progress.expected, 1)
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(width=_BAR_WIDTH)
        for _ in range(2):
            grid.add_column(justify="right", no_wrap=True)
        grid.add_column(no_wrap=True)
        for stage, each in progress.stages.items():
            passed = min(each.done + each.skipped, total)
            notes = Text()
            mean = each.seconds / each.done if each.done else None
            notes.append("" if mean is None else f"{_mean(mean)} each", "dim")
            notes.append(f"  {each.failed:,} failed" if each.failed else "", "yellow")
            notes.append(f"  {each.overdue:,} overdue" if each.overdue else "", "yellow")
            grid.add_row(
                Text(stage),
                ProgressBar(total=total, completed=passed, width=_BAR_WIDTH),
                Text(f"{passed:,}/{total:,}"),
                Text(f"{each.working:,} in it" if each.working else "", "cyan"),
                notes,
            )
        return Group(*self._head(progress), grid)

    def _head(self, progress: Progress) -> list[RenderableType]:
        from rich.text import Text  # noqa: PLC0415 - optional

        first = Text.assemble((self._name, "bold"), f"  {length(progress.seconds)}")
        first.append(f"  {progress.per_s:,.1f}/s", "bold")
        if progress.left_s is not None and progress.backlog:
            first.append(f"  about {length(progress.left_s)} left", "dim")
        first.append(
            f"  {count_of(progress.tasks, 'task')} on {count_of(progress.executors, 'executor')}",
            "dim",
        )
        second = Text(f"{progress.done:,} done", "green")
        second.append(f"  {progress.in_work:,} in work", "cyan")
        if progress.waiting or progress.backlog:
            second.append(f"  {progress.waiting + (progress.backlog or 0):,} wait", "dim")
        for count, text, style in (
            (progress.poisoned, "poisoned", "bold red"),
            (progress.failed, "failed, to be tried again", "yellow"),
            (progress.lost, "lost", "yellow"),
            (progress.resumed, "resumed", "dim"),
        ):
            if count:
                second.append(f"  {count:,} {text}", style)
        return [first, second]


def _mean(seconds: float) -> str:
    """Write a length of time that may be very short."""
    if seconds < 0.1:  # noqa: PLR2004 - where milliseconds are better to read
        return f"{seconds * 1000:.1f} ms"
    return length(seconds)
