"""Leasehold itself, started as its users start it."""

from __future__ import annotations

import http.client
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import ClassVar

import leasehold
from benchmarks.fill import Fill, NoRoom, cached_store, forget_store
from benchmarks.load.job import Dialect
from benchmarks.peers.base import Absent, Subject
from benchmarks.workspace import MEASURED_PYTHON, Workspace, copy_folder, measured_python


class Leasehold(Subject):
    """``leasehold serve`` on a store of its own, empty or filled beforehand."""

    dialect: ClassVar[Dialect] = "azure"

    def __init__(self, name: str, title: str, workspace: Workspace, fill: Fill) -> None:
        super().__init__(name, title, workspace, waiting=fill.messages)
        self._fill = fill

    def prepare(self) -> None:
        """Fill a store, or take a copy of the one an earlier run has filled."""
        if not _program():
            raise Absent("there is no `leasehold serve` here")
        self.version = leasehold.__version__
        if not self.waiting:
            return
        try:
            store, self.fill = cached_store(self.workspace, self._fill)
        except NoRoom as error:
            raise Absent(str(error)) from error
        if shutil.disk_usage(self.workspace.root).free > self._fill.estimate_bytes():
            copy_folder(store, self.folder)
        else:
            # No room for two: this run uses up the one there is.
            forget_store(store)
            store.rename(self.folder)

    def command(self) -> list[str]:
        """See :class:`Subject`."""
        return [
            *(*_program(), "serve", "--host", "127.0.0.1"),
            *("--port", str(self.port), "--mns-port", "0"),
            *("--data", str(self.folder)),
        ]

    def is_ready(self) -> bool:
        """See :class:`Subject`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except http.client.HTTPException:
            return False
        finally:
            connection.close()


def _program() -> list[str]:
    """Return the command of the installed program, or of the source; empty for neither."""
    spec = importlib.util.find_spec("leasehold.cli")
    if spec is None or spec.origin is None:
        return []
    script = Path(sys.executable).with_name("leasehold")
    if sys.executable == MEASURED_PYTHON and script.exists():
        return [str(script)]
    return measured_python("-m", "leasehold.cli")
