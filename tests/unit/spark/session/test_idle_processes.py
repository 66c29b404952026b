"""Python processes that Spark keeps for later, and lets go after a minute or at the end."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.spark.session import LOCAL
from tests.patience import PATIENCE_S

SECRET = b"secret"
ON_UNIX_SOCKETS = LOCAL["spark.python.unix.domain.socket.enabled"]


def said_when_let_go(folder: Path, on_unix_sockets: str) -> str:
    """Start the parent of Spark's Python processes as Spark does, let one go; return its stderr."""
    env = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": on_unix_sockets,
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
        "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    command = (sys.executable, "-m", "pyspark.daemon", "pyspark.worker")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        (number,) = struct.unpack("!i", parent.stdout.read(4))
        if on_unix_sockets == "true":
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(parent.stdout.read(number).decode())
        else:
            connection = socket.create_connection(("127.0.0.1", number))
        with connection, connection.makefile("rb") as answers:
            (pid,) = struct.unpack("!i", answers.read(4))
            if on_unix_sockets != "true":
                connection.sendall(struct.pack("!i", len(SECRET)) + SECRET)
                assert answers.read(6)[4:] == b"ok"
        wait_for_end(pid)
        _, said = parent.communicate(timeout=PATIENCE_S)
    return said.decode()


def wait_for_end(pid: int) -> None:
    """Return when a process has ended, whose parent is another one."""
    last = time.monotonic() + PATIENCE_S
    while time.monotonic() < last:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("it goes on")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose name is short enough for the address of a socket."""
    with tempfile.TemporaryDirectory(prefix="lh", dir="/tmp") as made:
        yield Path(made)


def test_processes_of_a_local_session_go_without_a_word(folder: Path) -> None:
    """No traceback stands in the terminal of somebody whose session is a minute old."""
    assert said_when_let_go(folder, ON_UNIX_SOCKETS) == ""


def test_on_unix_sockets_they_do_not(folder: Path) -> None:
    """They answer into what is closed; were this mended in Spark, sessions could use them."""
    assert "BrokenPipeError" in said_when_let_go(folder, "true")
