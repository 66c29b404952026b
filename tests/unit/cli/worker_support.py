"""``leasehold worker`` in a folder with modules of the user's, on queues in memory."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from leasehold.cli import main
from leasehold.cli.worker_setup import WorkerSurroundings
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker.adapters import Outgoing, QueueClient
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.hooks import Hooks

PREFIX = "w6_"
"""Of the modules that tests write, so that none stays imported."""


class Folder:
    """The current directory of a user, and the queues that there are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.queues: dict[str, QueueClient] = {}
        self.specs: list[QueueSpec] = []
        self.hooks: tuple[Hooks, ...] = ()

    def write(self, name: str, text: str) -> None:
        """Write a module."""
        (self.path / f"{PREFIX}{name}.py").write_text(textwrap.dedent(text))

    def module(self, name: str) -> Any:
        """Return a module that the command has imported."""
        return sys.modules[f"{PREFIX}{name}"]

    def queue(self, name: str, *bodies: str) -> MemoryQueue:
        """Make a queue with messages in it."""
        made = self.queues[name] = MemoryQueue(name)
        made.put([Outgoing(body=body) for body in bodies])
        return made

    def open(self, spec: QueueSpec) -> QueueClient:
        """Open a queue by its name, wherever it is said to be."""
        self.specs.append(spec)
        return self.queues[spec.queue]

    def __call__(self, *arguments: str, stdin: str | None = None, **env: str) -> Result:
        """Run ``leasehold worker``; ``name:`` at the start of a word stands for a module here."""
        around = WorkerSurroundings(open_spec=self.open, hooks=self.hooks)
        unset: dict[str, str | None] = {"AZURE_STORAGE_CONNECTION_STRING": None, "COLUMNS": "120"}
        return CliRunner().invoke(
            main, ["worker", *arguments], input=stdin, obj=around, env=unset | env
        )


@contextmanager
def clean_modules() -> Iterator[None]:
    """Forget the modules of a test, and the folder that they were found in."""
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before
        for name in [each for each in sys.modules if each.startswith(PREFIX)]:
            del sys.modules[name]
