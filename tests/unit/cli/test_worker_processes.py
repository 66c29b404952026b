"""``leasehold worker run`` with handlers, or renewals, in other processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.testing.server import InProcessServer
from tests.unit.cli.worker_support import Folder, clean_modules

LONG = """
    import os, time
    from pathlib import Path

    def note(message):
        Path(message.text).write_text(str(os.getpid()))

    def outlast(message):
        end_s = time.monotonic() + message.seconds_left
        while time.monotonic() + message.seconds_left < end_s + 0.2:
            message.cancel_token.wait(0.02)
            message.check()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A current directory with the module ``long``."""
    monkeypatch.chdir(tmp_path)
    with clean_modules():
        made = Folder(tmp_path)
        made.write("long", LONG)
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A server of its own."""
    with InProcessServer(clock="system") as made:
        yield made


def test_handlers_in_processes(folder: Folder) -> None:
    """The option is told in the plan, and the handler runs in a process that is not this one."""
    path = folder.path / "pid"
    folder.queue("orders", str(path))
    options = ("--queue", "orders", "--runner", "processes", "--concurrency", "1", "--until-idle")
    result = folder("run", "w6_long:note", *options)
    assert result.exit_code == 0, result.stderr
    assert "  handlers  1 at once, in processes\n" in result.stderr
    assert result.stdout.splitlines()[-1].split()[:2] == ["orders", "1"]
    assert int(path.read_text()) != os.getpid()


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_renewals_in_a_process(folder: Folder, server: InProcessServer, runner: str) -> None:
    """The work takes longer than a lease, and another process renews it."""
    with server.client() as client:
        queue = client.queue("renewed")
        queue.create()
        queue.put("a")
        folder.open = lambda spec: spec.open()  # type: ignore[method-assign]
        options = ("--renewer", "process", "--lease", "2", "--concurrency", "1", "--until-idle")
        result = folder(
            *("run", "w6_long:outlast", "--queue", "renewed", "--runner", runner, *options),
            AZURE_STORAGE_CONNECTION_STRING=server.connection_string,
        )
        assert result.exit_code == 0, result.stderr
        assert "renewed by a process of its own" in result.stderr
        assert result.stdout.splitlines()[-1].split()[:6] == ["renewed", "1", "0", "0", "0", "0"]
        assert queue.counts().total == 0
        queue.delete()


def test_a_queue_that_no_other_process_can_open(folder: Folder) -> None:
    """Is refused before anything is begun, with what to do about it."""
    folder.queue("orders", "a")
    options = ("--queue", "orders", "--renewer", "process")
    result = folder("run", "w6_long:note", *options)
    assert result.exit_code == 2
    assert "needs a way to open orders once more" in result.stderr
