"""What everybody did: one file of JSON lines per process, only ever added to.

Times are seconds since the story began. They come from the monotonic clock, which all processes
of one machine share, so that the journals can be laid beside each other.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

Event = dict[str, Any]
"""At least ``at_s``, ``who`` and ``event``; further facts depend on the event."""


class Journal:
    """The journal of one process. A line is one write, so that a kill leaves no half of one."""

    def __init__(self, folder: Path, who: str, began_s: float) -> None:
        self.who = who
        self._began_s = began_s
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(folder / f"{who}.jsonl", flags, 0o644)

    def note(self, event: str, **facts: Any) -> None:
        """Add one line; may be called from any thread."""
        at_s = round(time.monotonic() - self._began_s, 3)
        line: Event = {"at_s": at_s, "who": self.who, "event": event, **facts}
        os.write(self._file, json.dumps(line).encode() + b"\n")


class JournalReader:
    """Reads what is new in all journals of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_to: dict[Path, int] = {}

    def news(self) -> list[Event]:
        """Return the events since the last call, in the order in which they happened."""
        events: list[Event] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read_to.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
                self._read_to[path] = self._read_to.get(path, 0) + len(whole) + len(newline)
            events.extend(json.loads(line) for line in whole.splitlines())
        return sorted(events, key=lambda event: float(event["at_s"]))
