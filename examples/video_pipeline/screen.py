"""What can be seen while the story runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from examples.video_pipeline.journal import Event
from examples.video_pipeline.ledger import Ledger, Record
from examples.video_pipeline.work import STAGES
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_SENTENCES: Final = {
    "sent": ("message for {video} sent", "dim"),
    "sent hidden": ("message for {video} sent, hidden for {delay_s} s", "dim"),
    "received": ("{who} received {video}", ""),
    "received again": ("{who} received {video}, delivery {dequeue_count}, at {state}", "cyan"),
    "killed": ("{worker} KILLED at {percent} % of the {stage} of {video}", "bold red"),
    "suspended": ("{worker} SUSPENDED at {percent} % of the {stage} of {video}", "bold red"),
    "woken": ("{worker} wakes up and believes that it still has {video}", "yellow"),
    "abandoned": ("{who} stopped its work on {video}: {reason}", "yellow"),
    "failed": ("{who} failed in the {stage} of {video}: {reason}", "red"),
    "poisoned": ("{who} moved {video} to the poison queue", "magenta"),
    "completed": ("{who} completed {video}", "green"),
    "changed": ("Marketing wants {video} smaller: its message is changed", "yellow"),
    "cancelled": ("Marketing takes {video} back: its message is removed", "yellow"),
}
"""What a reader of the story wants to know, with its style; other events are not shown."""


class Screen:
    """Shows events and the state of all messages; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = (
            Live(console=console, refresh_per_second=8, transient=True)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """Print one line; on a terminal it goes above the live table."""
        self.console.print(Text(text, style), soft_wrap=True)

    def show(self, event: Event) -> None:
        """Print the event if it is one that a reader of the story wants to know."""
        kind = event["event"]
        if kind == "received" and event["dequeue_count"] > 1:
            kind = "received again"
        elif kind == "sent" and event["delay_s"]:
            kind = "sent hidden"
        if kind in _SENTENCES:
            sentence, style = _SENTENCES[kind]
            self.say(f"{event['at_s']:6.1f} s  {sentence.format(**event)}", style)

    def update(self, ledger: Ledger) -> None:
        """Draw the live table anew."""
        if self._live is not None:
            self._live.update(_live_table(ledger))


def _live_table(ledger: Ledger) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("Video", "Held by", "Stage", "Progress", "Renewed"):
        table.add_column(heading)
    for record in ledger.records.values():
        table.add_row(record.video, *_live_row(record))
    return table


def _live_row(record: Record) -> tuple[RenderableType, ...]:
    renewed = str(record.renewals or "")
    if record.result:
        style = "green" if record.result == "completed" else "magenta"
        return "", Text(record.result, style), _bar(100), renewed
    running = next((each for each in record.attempts if each.ended_s is None), None)
    if running is not None:
        before = STAGES.index(running.stage)
        percent = (100 * before + record.percent) / len(STAGES)
        return running.worker, running.stage, _bar(percent), renewed
    waiting = "hidden" if record.delay_s and not record.deliveries else "waiting"
    return "", Text(waiting, "dim"), _bar(0), renewed


def _bar(percent: float) -> ProgressBar:
    return ProgressBar(total=100, completed=percent, width=30)
