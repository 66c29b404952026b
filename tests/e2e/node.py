"""Packages from npm for tests that run in Node."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import exclusive


def install_packages(folder: Path) -> None:
    """Install what the lock file of a folder names, unless that is what is installed.

    Where that cannot be, the test is skipped at home, and fails where everything has to be there.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        _missing("Node.js is not installed")
    digest = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()
    stamp = folder / "node_modules" / ".installed-lock-sha256"  # ignored by git
    with exclusive(f"npm-{folder.name}"):
        if stamp.exists() and stamp.read_text() == digest:
            return
        done = subprocess.run(
            ["npm", "ci", "--prefer-offline"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            _missing(f"npm cannot install the packages:\n{done.stderr}")
        stamp.write_text(digest)


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)
