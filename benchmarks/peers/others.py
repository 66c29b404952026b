"""Leasehold's neighbours: beanstalkd, Azurite, and the limit of the HTTP stack itself."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import ClassVar, Final

import uvicorn

import leasehold
from benchmarks.load.job import Dialect
from benchmarks.peers.base import Absent, Subject, accepts
from benchmarks.workspace import Workspace, measured_python

AZURITE: Final = "3.37.0"
_INSTALL_S: Final = 300


class NoOp(Subject):
    """uvicorn with httptools and uvloop, and an application that answers 200 at once."""

    dialect: ClassVar[Dialect] = "noop"

    def prepare(self) -> None:
        """Name the version."""
        self.version = f"uvicorn {uvicorn.__version__}"

    def command(self) -> list[str]:
        """See :class:`Subject`."""
        return measured_python(
            *("-m", "uvicorn", "benchmarks.peers.noop:app", "--host", "127.0.0.1"),
            *("--port", str(self.port), "--loop", "uvloop", "--http", "httptools"),
            *("--ws", "none", "--lifespan", "off", "--no-access-log", "--log-level", "warning"),
        )

    def is_ready(self) -> bool:
        """See :class:`Subject`."""
        return accepts(self.port)


class OwnNoOp(NoOp):
    """Leasehold's own class of connections, with an application that answers 200 at once."""

    def prepare(self) -> None:
        """Name the version."""
        self.version = leasehold.__version__

    def command(self) -> list[str]:
        """See :class:`Subject`."""
        return measured_python("-m", "benchmarks.peers.noop", str(self.port))


class Beanstalkd(Subject):
    """beanstalkd with a log on disk and fsync on every write."""

    dialect: ClassVar[Dialect] = "beanstalkd"

    def prepare(self) -> None:
        """Look for the program."""
        if shutil.which("beanstalkd") is None:
            raise Absent("beanstalkd is not installed (Debian: apt-get install beanstalkd)")
        said = subprocess.run(["beanstalkd", "-v"], capture_output=True, text=True, check=True)
        self.version = said.stdout.strip()

    def command(self) -> list[str]:
        """See :class:`Subject`."""
        return [
            *("beanstalkd", "-l", "127.0.0.1", "-p", str(self.port)),
            *("-b", str(self.folder), "-f", "0"),
        ]

    def is_ready(self) -> bool:
        """See :class:`Subject`."""
        return accepts(self.port)


class Azurite(Subject):
    """The emulator, as its users run it, with its data on disk."""

    dialect: ClassVar[Dialect] = "azure"

    def __init__(
        self, name: str, title: str, workspace: Workspace, *, waiting: int, may_install: bool
    ) -> None:
        super().__init__(name, title, workspace, waiting=waiting)
        self._may_install = may_install
        self._home = workspace.peers / f"azurite-{AZURITE}"
        self._package = self._home / "node_modules" / "azurite"

    def prepare(self) -> None:
        """Install it into the workspace, once."""
        if not (self._package / "package.json").exists():
            self._install()
        self.version = str(json.loads((self._package / "package.json").read_text())["version"])

    def _install(self) -> None:
        if not self._may_install:
            raise Absent("Azurite is not in the cache, and this suite installs nothing")
        for program in ("node", "npm"):
            if shutil.which(program) is None:
                raise Absent(f"Azurite needs {program}, which is not installed")
        self._home.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            subprocess.run(
                [*command, "--prefix", str(self._home), f"azurite@{AZURITE}"],
                check=True,
                capture_output=True,
                timeout=_INSTALL_S,
            )
        except (subprocess.SubprocessError, OSError) as error:
            shutil.rmtree(self._home, ignore_errors=True)
            raise Absent(f"npm could not install Azurite: {error}") from error

    def command(self) -> list[str]:
        """See :class:`Subject`."""
        return [
            *("node", str(self._package / "dist" / "src" / "queue" / "main.js")),
            *("--queueHost", "127.0.0.1", "--queuePort", str(self.port)),
            *("--location", str(self.folder)),
            *("--silent", "--skipApiVersionCheck", "--disableTelemetry"),
        ]

    def is_ready(self) -> bool:
        """See :class:`Subject`."""
        return accepts(self.port)
