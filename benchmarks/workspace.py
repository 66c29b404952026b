"""Where the harness keeps things: outside the repository, on the disk that is measured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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


def environment() -> dict[str, str]:
    """Return the environment for processes that import this package and Leasehold's source."""
    paths = [str(REPOSITORY), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def python(*arguments: str) -> list[str]:
    """Return the command that runs this Python with *arguments*."""
    return [sys.executable, *arguments]
