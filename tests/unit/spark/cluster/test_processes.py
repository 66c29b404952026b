"""Executors are found among processes, with all that came from them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from leasehold.spark.cluster import (
    Process,
    executors_among,
    free_port,
    own_host,
    parse_ps,
    processes,
    signal_all,
    with_descendants,
)
from tests.patience import PATIENCE_S

BACKEND = (
    "java -cp x org.apache.spark.executor.CoarseGrainedExecutorBackend --driver-url spark://d "
    "--executor-id {} --hostname 127.0.0.2 --cores 1 --app-id app-1"
)
SOME = [
    Process(10, 1, "java org.apache.spark.deploy.worker.Worker"),
    Process(21, 10, BACKEND.format(1)),
    Process(20, 10, BACKEND.format(0)),
    Process(30, 20, "python -m pyspark.daemon"),
    Process(31, 30, "python -m pyspark.daemon"),
    Process(32, 31, "ffmpeg -i a.mp4"),
    Process(40, 9, BACKEND.format(7)),
]


def test_executors_are_those_of_the_workers() -> None:
    """An executor of another cluster on this machine is not taken for one of ours."""
    found = executors_among(SOME, [10])
    assert [(each.id, each.pid) for each in found] == [("0", 20), ("1", 21)]
    assert {(each.application, each.host) for each in found} == {("app-1", "127.0.0.2")}


def test_descendants_are_found_at_any_depth() -> None:
    """What an executor's Python workers have started belongs to it."""
    assert with_descendants(SOME, 20) == [20, 30, 31, 32]
    assert with_descendants(SOME, 21) == [21]


def test_own_process_is_listed() -> None:
    """The list has this process, with its parent and how it was called."""
    (own,) = (each for each in processes() if each.pid == os.getpid())
    assert own.parent == os.getppid()
    assert "python" in own.command


def test_listing_of_other_systems_is_read() -> None:
    """Where there is no /proc, ps tells the same."""
    assert parse_ps("   12     1 /bin/sh -c 'a  b'") == Process(12, 1, "/bin/sh -c 'a  b'")


def test_signals_reach_those_that_are_there() -> None:
    """A process that has ended meanwhile does not keep the signal from the others."""
    gone = subprocess.Popen((sys.executable, "-c", ""))
    gone.wait()
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as there:
        signal_all([gone.pid, there.pid], signal.SIGKILL)
        assert there.wait(PATIENCE_S) == -signal.SIGKILL


def test_ports_are_free() -> None:
    """A port that was found can be listened on."""
    assert 1024 <= free_port() <= 65_535


def test_hosts_are_of_this_machine() -> None:
    """Every worker gets an address that can be listened on here."""
    assert own_host(1) == "127.0.0.1"
    assert own_host(2) in {"127.0.0.1", "127.0.0.2"}
