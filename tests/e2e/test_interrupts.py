"""Ctrl+C at any moment: nothing is printed, and the exit code is that of shells."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from leasehold.client import Client
from tests.e2e.server import Endpoint, Server

_INTERRUPTED: Final = 130
_PROGRAM: Final = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
module = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupt())
from leasehold.command import main
main()
"""
"""Runs a command, and interrupts it when it imports a module."""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A server with a queue and some events."""
    with Server(tmp_path_factory.mktemp("interrupts") / "data") as started:
        with Client.from_connection_string(started.connection_string) as client:
            client.queue("orders").create()
            client.queue("mails").create()
            client.queue("mails").put("hello")
        yield started


def _environment(connection: str) -> dict[str, str]:
    return os.environ | {"AZURE_STORAGE_CONNECTION_STRING": connection, "COLUMNS": "100"}


@pytest.mark.parametrize(
    "module",
    ["leasehold.cli.root", "click", "leasehold.cli.queues", "leasehold.client", "rich.console"],
)
def test_while_modules_are_imported(module: str) -> None:
    """The libraries of a command take a while to load."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, module, "queue", "list"],
        capture_output=True,
        env=_environment("UseDevelopmentStorage=true"),
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (_INTERRUPTED, b"", b"")


@pytest.mark.parametrize(
    "words",
    [
        ("message", "receive", "orders", "--wait", "30"),
        ("queue", "list"),
        ("send", "orders", "hello"),
        ("worker", "run", "builtins:print", "--queue", "orders"),
    ],
)
def test_while_it_waits_for_an_answer(words: tuple[str, ...]) -> None:
    """The server takes its time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        account = f"http://127.0.0.1:{port}/devstoreaccount1"
        with subprocess.Popen(
            [sys.executable, "-m", "leasehold.cli", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(
                f"AccountName=devstoreaccount1;AccountKey=eA==;QueueEndpoint={account}"
            ),
        ) as process:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(65_536)
                process.send_signal(signal.SIGINT)
                out, err = process.communicate()
    assert (process.returncode, out, err) == (_INTERRUPTED, b"", b"")


@pytest.mark.parametrize(
    "words",
    [
        ("events", "tail", "--follow"),
        ("stats", "--watch=0.1"),
        ("queue", "counts", "mails", "--watch=0.1"),
        ("top", "--every", "0.5"),
    ],
)
def test_what_goes_on_until_then(endpoint: Endpoint, words: tuple[str, ...]) -> None:
    """Ctrl+C is the only end of it, and is told from others by the exit code."""
    with subprocess.Popen(
        [sys.executable, "-m", "leasehold.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(endpoint.connection_string) | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err) == (_INTERRUPTED, b"")


def test_an_ignored_interrupt_stays_ignored(endpoint: Endpoint, tmp_path: Path) -> None:
    """As for a command that a script runs in the background."""
    command = [sys.executable, "-c", _PROGRAM, "leasehold.cli.queues", "queue", "list"]
    out = tmp_path / "out"
    with out.open("wb") as file:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            code = subprocess.call(
                command, stdout=file, env=_environment(endpoint.connection_string)
            )
        finally:
            signal.signal(signal.SIGINT, before)
    assert code == 0
    assert b"orders" in out.read_bytes()
