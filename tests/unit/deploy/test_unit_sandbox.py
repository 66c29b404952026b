"""The server works within what the systemd unit allows it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from azure.storage.queue import QueueClient

from tests.e2e.server import DEV_ACCOUNT, Endpoint
from tests.unit.deploy.test_deploy import UNIT

_PR_SET_MDWE: Final = 65
"""Of Linux 6.3: no memory that is or was writable is ever executed, in children neither."""
_BY_ROOT: Final = {"fchown"}
"""What SQLite calls if it is root, as tests may be: a new file gets the owner of the database."""
_RESTRICT: Final = f"""
import ctypes, os, sys
if ctypes.CDLL(None).prctl({_PR_SET_MDWE}, 1, 0, 0, 0) != 0:
    sys.exit("this kernel cannot refuse to execute what was written")
sys.argv.pop(0)
os.execv(sys.executable, [sys.executable, *sys.argv])
"""


@cache
def _calls(name: str) -> frozenset[str]:
    """Return the system calls of a group, and of the groups in it."""
    if not name.startswith("@"):
        return frozenset({name})
    command = ("systemd-analyze", "--no-pager", "syscall-filter", name)
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    members = re.findall(r"^ {4}(@?\w[\w-]*)$", said, re.MULTILINE)
    return frozenset().union(*map(_calls, members))


def _allowed() -> frozenset[str]:
    """Return what the filters of the unit let through: those after ~ are taken out again."""
    text = UNIT.read_text(encoding="utf-8")
    calls: frozenset[str] = frozenset()
    for excluded, group in re.findall(r"^SystemCallFilter=(~?)(\S+)$", text, re.MULTILINE):
        calls = calls - _calls(group) if excluded else calls | _calls(group)
    return calls


@pytest.mark.long
def test_the_server_works_within_the_unit(tmp_path: Path) -> None:
    """With its filters of system calls, and without memory that is written and executed."""
    for needed in ("strace", "systemd-analyze"):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed")
    if subprocess.run((sys.executable, "-c", _RESTRICT, "-c", ""), check=False).returncode != 0:
        pytest.skip("this kernel is older than 6.3")
    record = tmp_path / "calls"
    strace = ("strace", "--follow-forks", "--quiet=all", f"--output={record}")
    serve = ("-m", "leasehold.cli", "serve", "--port", "0", "--data", tmp_path / "data")
    command = (*strace, sys.executable, "-c", _RESTRICT, *serve, "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as tracer:
        assert tracer.stdout is not None
        started = json.loads(tracer.stdout.readline())
        try:
            _exchange_message(f"{started['url']}/{DEV_ACCOUNT}")
        finally:
            # The tracer itself ends with the server, and as it does.
            os.kill(int(re.findall(r"^(\d+) ", record.read_text())[0]), signal.SIGTERM)
    assert tracer.returncode == 0
    used = set(re.findall(r"^\d+ +(\w+)\(", record.read_text(), re.MULTILINE))
    assert used >= {"accept4", "execve", "fdatasync"}
    assert used - _allowed() <= _BY_ROOT


def _exchange_message(url: str) -> None:
    endpoint = Endpoint(url=url)
    with QueueClient.from_connection_string(endpoint.connection_string, "unit") as queue:
        queue.create_queue()
        queue.send_message("hello")
        message = queue.receive_message()
        assert message is not None
        queue.delete_message(message)
