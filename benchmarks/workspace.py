"""Where the harness keeps things: outside the repository, on the disk that is measured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
DEFAULT: Final = Path.home() / ".cache" / "leasehold-bench"


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder with the installed peers, the filled stores, and this run's data."""

    root: Path
    run: Path
    """Data and logs of this run; gone when it ends."""

    @classmethod
    def open(cls, root: Path) -> Workspace:
        """Create the folders."""
        root.mkdir(parents=True, exist_ok=True)
        return cls(root, Path(tempfile.mkdtemp(prefix="run-", dir=root)))

    @property
    def peers(self) -> Path:
        """Where peers are installed."""
        return self.root / "peers"

    @property
    def fills(self) -> Path:
        """Where filled stores are kept from run to run."""
        return self.root / "fills"

    def close(self) -> None:
        """Remove this run's data."""
        shutil.rmtree(self.run, ignore_errors=True)


def disk_bytes(folder: Path) -> int:
    """Return what the files under *folder* take on disk; files may vanish meanwhile."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(path) / name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def copy_folder(source: Path, target: Path) -> None:
    """Copy *source* to the new folder *target*, as a clone where the file system can do that."""
    subprocess.run(["cp", "-a", "--reflink=auto", source, target], check=True)
    os.sync()  # or its pages would be written during the measurement


def drop_from_page_cache(folder: Path) -> None:
    """Make the next reads of all files under *folder* come from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _measured_python() -> str:
    """Return the interpreter for servers and clients: one built as those that people install are.

    Python optimized by a profile of its own use (PGO) serves the same in 0.87 of the processor
    time. Debian, the images of Docker, python.org and uv build it so, pyenv does not unless told
    to. Where this one was built without, Debian's of the same version runs on its packages.
    """
    given = os.environ.get("MEASURED_PYTHON")
    if given:
        return given
    usual = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    is_optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return sys.executable if is_optimized or not Path(usual).exists() else usual


MEASURED_PYTHON: Final = _measured_python()


def environment() -> dict[str, str]:
    """Return the environment for processes that import this package and Leasehold's source."""
    packages = "" if sys.executable == MEASURED_PYTHON else sysconfig.get_path("platlib")
    own = [str(REPOSITORY), str(REPOSITORY / "src"), packages]
    paths = [*own, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def python(*arguments: str) -> list[str]:
    """Return the command that runs this Python with *arguments*."""
    return [sys.executable, *arguments]


def measured_python(*arguments: str) -> list[str]:
    """Return the command that runs what is measured in Python with *arguments*."""
    return [MEASURED_PYTHON, *arguments]
