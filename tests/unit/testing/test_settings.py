"""Where test mode is refused, and what it takes to have a virtual clock."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leasehold.clock import LoopTimers, SystemClock, VirtualClock
from leasehold.server.main import Times
from leasehold.server.settings import Settings, SettingsError, validate
from leasehold.server.startup import StartFailed, listen_on
from leasehold.testing import ManualClock
from tests.e2e.server import Server
from tests.patience import PATIENCE_S


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"clock": "virtual"}, "clock", "--test-mode"),
        ({"clock": "sundial", "test_mode": True}, "clock", "system or virtual"),
        ({"test_mode": True, "host": "0.0.0.0"}, "test_mode", "other machines"),
        ({"test_mode": True, "host": "127.0.0.1,queues.example.net"}, "test_mode", "127.0.0.1"),
        ({"test_mode": True, "tls_terminated": True}, "test_mode", "a proxy in front"),
        ({"test_seed": -1}, "test_seed", "0 to"),
    ],
)
def test_refused(given: dict[str, Any], field: str, says: str) -> None:
    """A server that others depend on cannot be put into test mode by mistake."""
    with pytest.raises(SettingsError) as refused:
        validate(Settings(**given))
    assert says in {each.field: each.text for each in refused.value.problems}[field]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.1,[::1]"])
def test_allowed(host: str) -> None:
    """This machine alone can reach these addresses."""
    validate(Settings(host=host, test_mode=True, clock="virtual"))
    validate(Settings(host=host, test_mode=True))


def test_a_name_that_means_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a name stands for is known when it is listened on, and then it is looked at again."""
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("0.0.0.0", 0))])
    settings = Settings(host="localhost", port=0, dev_account="off", test_mode=True)
    with pytest.raises(StartFailed, match="test_mode: host 'localhost' means 0"):
        listen_on(settings)


def test_the_clock_of_the_system_unless_told_other() -> None:
    """All parts of a server go by the same clock."""
    system = SystemClock()
    times = Times.chosen(Settings(), system, last_seen_ms=0)
    assert times.engine is times.system is system
    assert isinstance(times.timers, LoopTimers)


@pytest.mark.parametrize(("last_seen_ms", "begins_ms"), [(0, 5_000), (5_001, 5_001)])
def test_a_virtual_clock_begins_now(last_seen_ms: int, begins_ms: int) -> None:
    """At a whole second, but never before the store was last in use."""
    settings = Settings(test_mode=True, clock="virtual")
    times = Times.chosen(settings, ManualClock(5_678), last_seen_ms)
    assert isinstance(times.engine, VirtualClock)
    assert times.timers is times.engine is not times.system
    assert times.engine.now_ms() == begins_ms


def test_serve_refuses_a_virtual_clock_by_itself(tmp_path: Path) -> None:
    """The command ends with the code for settings, and says what is missing."""
    command = [sys.executable, "-m", "leasehold.cli", "serve", "--clock", "virtual"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 78
    assert "--test-mode" in done.stderr


def test_serve_with_a_virtual_clock(tmp_path: Path) -> None:
    """A process of its own, which warns of what it lets others do, and stops when told."""
    config = tmp_path / "leasehold.toml"
    config.write_text('test_mode = true\nclock = "virtual"\n', encoding="utf-8")
    server = Server(tmp_path / "data", options={"--config": str(config)})
    with server as endpoint:
        assert re.search(r"server\.test_mode +clock=virtual", server.log)
        assert endpoint.port
    assert signal.SIGTERM.name in server.log
