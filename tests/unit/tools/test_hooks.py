"""The hooks of git: what they refuse, and where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
HOOK: Final = ROOT / "tools/hooks/commit-msg"
INSTALL: Final = ROOT / "tools/install_hooks.sh"

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run *command*, away from whatever the user has configured for git."""
    return subprocess.run(
        command,
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("x" * 72, 0),
        ("x" * 73, 1),
        ("ä" * 72, 0),
        ("ä" * 73, 1),
        ("Short\n\n" + "x" * 100, 0),
        ("# " + "x" * 100 + "\n\n" + "Short", 0),
        ("\n" + "x" * 73, 1),
        ("fixup! " + "x" * 72, 0),
        ("Short\n# ------------------------ >8 ------------------------\n" + "x" * 100, 0),
    ],
)
def test_a_subject_has_at_most_72_characters(message: str, status: int, tmp_path: Path) -> None:
    """Characters, not bytes; the body, comments and commits to be joined are not counted."""
    file = tmp_path / "message"
    file.write_text(message + "\n", encoding="utf-8")
    done = run("sh", HOOK, file, cwd=tmp_path)
    assert done.returncode == status
    assert ("at most 72" in done.stderr) == bool(status)


def test_hooks_are_installed_in_the_checkout_itself(tmp_path: Path) -> None:
    """Not in one that an unpacked archive lies in, and not over hooks that are there."""
    assert run("sh", INSTALL, cwd=tmp_path).returncode == 0
    assert run("git", "init", "-q", cwd=tmp_path).returncode == 0
    inner = tmp_path / "archive"
    inner.mkdir()
    assert run("sh", INSTALL, cwd=inner).returncode == 0
    configured = ("git", "config", "core.hooksPath")
    assert run(*configured, cwd=tmp_path).stdout == ""
    assert run("sh", INSTALL, cwd=tmp_path).returncode == 0
    assert run(*configured, cwd=tmp_path).stdout == "tools/hooks\n"
    run(*configured, "mine", cwd=tmp_path)
    done = run("sh", INSTALL, cwd=tmp_path)
    assert (done.returncode, "tools/hooks" in done.stderr) == (0, True)
    assert run(*configured, cwd=tmp_path).stdout == "mine\n"


def test_git_runs_the_hook(tmp_path: Path) -> None:
    """It is executable, and refuses a commit."""
    assert run("git", "init", "-q", cwd=tmp_path).returncode == 0
    run("git", "config", "core.hooksPath", HOOK.parent, cwd=tmp_path)
    commit = ("git", "-c", "user.name=x", "-c", "user.email=x@example.net", "commit")
    assert run(*commit, "--allow-empty", "-qm", "x" * 73, cwd=tmp_path).returncode == 1
    assert run(*commit, "--allow-empty", "-qm", "x" * 72, cwd=tmp_path).returncode == 0
