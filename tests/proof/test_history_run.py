"""A short run of the history checker against real servers, and the faults that it is made of."""

from __future__ import annotations

import errno
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from proof.history.adapters import Promise, Unknown
from proof.history.campaign import Campaign
from proof.history.faults import Kill
from proof.history.leasehold import Leasehold
from proof.history.records import History, Outcome, Recorder, Verb
from proof.history.relay import Relay
from proof.history.shim import Shim, is_available
from proof.history.soak import Soak

from leasehold.clock import SystemClock
from tests.patience import PATIENCE_S

needs_compiler = pytest.mark.skipif(not is_available(), reason="no gcc is installed")


def test_kills_leave_nothing_to_be_found(tmp_path: Path) -> None:
    """Two kills under load, a drain, and zero in every column."""
    records = tmp_path / "records"
    records.mkdir()
    system = Leasehold(tmp_path / "data")
    campaign = Campaign(
        system=system,
        faults_of=lambda _: [Kill(system)],
        folder=records,
        seed=20_261_125,
        clients=2,
        least_pause_s=0.002,
    )
    verdict = campaign.run(faults=2)
    assert verdict.violations == []
    assert system.endings == []
    assert campaign.done["kill"] == 2
    assert verdict.figures["completes"] > 0


class _Deaf:
    """A system, its connector and its queues, where no receive has an answer at first."""

    promise = Promise(leases=False)

    def __init__(self, unanswered: int) -> None:
        self.unanswered = unanswered
        self.opened = 0

    def connector(self, client: int) -> _Deaf:
        del client
        return self

    def open(self, queue: str) -> _Deaf:
        del queue
        self.opened += 1
        return self

    def receive(self, limit: int, lease_s: float) -> tuple[()]:
        del limit, lease_s
        self.unanswered -= 1
        if self.unanswered >= 0:
            raise Unknown("nothing came")
        return ()

    def count(self) -> int:
        return 0

    def close(self) -> None:
        pass


@pytest.mark.parametrize("unanswered", [3, 10**9])
def test_a_system_that_does_not_answer_has_lost_nothing(
    unanswered: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is connected to anew, and drained only when each queue has said that it is empty."""
    monkeypatch.setattr("proof.history.campaign._DRAIN_S", 0.5)
    monkeypatch.setattr("proof.history.campaign.LONGEST_S", 0.0)
    system = _Deaf(unanswered)
    folder = tmp_path
    made: Any = system
    campaign = Campaign(system=made, faults_of=lambda _: [], folder=folder, seed=1)
    with closing(Recorder(folder / "campaign.jsonl")) as recorder:
        if unanswered > 3:
            with pytest.raises(RuntimeError, match="not drained"):
                campaign._drain(recorder)
        else:
            campaign._drain(recorder)
    assert system.opened > len(campaign.queues)
    assert (History.read(folder).drained_s is None) is (unanswered > 3)


def history_of(folder: Path, seed: int) -> tuple[Soak, History]:
    """Run the queue for an hour of its own clock."""
    folder.mkdir()
    soak = Soak(folder, seed)
    assert soak.run(0.1).violations == []
    return soak, History.read(folder / "records")


def test_a_soak_is_repeated_by_its_seed(tmp_path: Path) -> None:
    """The same calls at the same moments, with the same outcomes; another seed makes others."""
    told = []
    for name, seed in (("one", 7), ("two", 7), ("three", 8)):
        _, history = history_of(tmp_path / name, seed)
        calls = [
            (each.client, each.verb, each.queue, each.message, each.invoked_s, each.outcome)
            for each in history.operations
        ]
        told.append(calls)
    assert told[0] == told[1]
    assert told[0] != told[2]
    assert any(verb is Verb.RECEIVE and outcome is Outcome.OK for _, verb, *_, outcome in told[0])


# The faults


@contextmanager
def echo() -> Iterator[int]:
    """Have a server that sends back what it is sent; give its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: socket.socket) -> None:
            with connection:
                while data := connection.recv(1024):
                    connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_a_relay_passes_on_cuts_and_holds_up() -> None:
    """What is held up comes when it is healed; what is cut is told so."""
    with echo() as port, Relay(port) as relay:
        with socket.create_connection(("127.0.0.1", relay.port), 10) as client:
            client.sendall(b"one")
            assert client.recv(10) == b"one"
            relay.stall(answers=False)
            client.sendall(b"two")
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(10)
            relay.heal()
            client.settimeout(PATIENCE_S)
            assert client.recv(10) == b"two"
            relay.cut()
            assert lost(client)
        with socket.create_connection(("127.0.0.1", relay.port), 10) as client:
            assert lost(client)
        relay.heal()
        with socket.create_connection(("127.0.0.1", relay.port), 10) as client:
            client.sendall(b"three")
            assert client.recv(10) == b"three"


def lost(client: socket.socket) -> bool:
    """Tell whether the other side has ended the connection."""
    try:
        return client.recv(10) == b""
    except ConnectionError:
        return True


SCRIPT = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.pwrite(file, b"a" * 2048, 0)
os.fsync(file)
os.pwrite(file, b"b" * 2048, 1024)
print(time.time_ns() // 10**9)
"""


def run_under(shim: Shim, file: Path) -> int:
    """Write to a file, and return what the time is, Unix seconds."""
    command = [sys.executable, "-c", SCRIPT, str(file)]
    environment = {**os.environ, **shim.environment}
    done = subprocess.run(command, env=environment, check=True, capture_output=True)
    return int(done.stdout)


@needs_compiler
def test_a_power_cut_takes_away_what_was_not_synced(tmp_path: Path) -> None:
    """All of it, nothing, or some of it, but never what was synced."""
    file = tmp_path / "data" / "file"
    file.parent.mkdir()
    shim = Shim(tmp_path / "shim", file.parent)
    seen = set()
    for seed in range(20):
        file.unlink(missing_ok=True)
        run_under(shim, file)
        shim.cut_power(random.Random(seed))
        content = file.read_bytes()
        assert content[:1024] == b"a" * 1024
        assert len(content) in {2048, 2560, 3072}
        seen.add(content)
    assert len(seen) >= 3


@needs_compiler
def test_what_a_lying_disk_has_confirmed_is_gone(tmp_path: Path) -> None:
    """The control of power cuts."""
    file = tmp_path / "data" / "file"
    file.parent.mkdir()
    shim = Shim(tmp_path / "shim", file.parent)
    shim.lie()
    run_under(shim, file)
    shim.cut_power(random.Random(1), "none")
    assert file.read_bytes() == b""


@needs_compiler
def test_the_wall_clock_is_moved(tmp_path: Path) -> None:
    """By an hour, for those alone who run under the shim."""
    shim = Shim(tmp_path / "shim", tmp_path)
    shim.step_clock(3600)
    assert 3000 < run_under(shim, tmp_path / "file") - SystemClock().now_ms() / 1000 < 4000


@needs_compiler
def test_writes_fail_as_they_are_told_to(tmp_path: Path) -> None:
    """With the error that was asked for, and for files in the data folder alone."""
    data = tmp_path / "data"
    data.mkdir()
    shim = Shim(tmp_path / "shim", data)
    shim.fail(writes=1, number=errno.ENOSPC)
    run_under(shim, tmp_path / "file")
    with pytest.raises(subprocess.CalledProcessError) as error:
        run_under(shim, data / "file")
    assert b"No space left" in error.value.stderr
    assert shim.failed == 1
