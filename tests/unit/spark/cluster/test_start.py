"""A cluster that starts is waited for as long as its processes live and write to their logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from leasehold.spark import cluster
from leasehold.spark.cluster import QUIET_S, ClusterFailed, ClusterSettings, Daemons, LogGrowth
from leasehold.spark.session import Java
from leasehold.testing import ManualClock

_WAIT_S = QUIET_S * 0.9
_LOOKS = 20
"""With so much time between any two, longer than every deadline that there might be."""


class SlowMachine(Daemons):
    """Masters and workers that sleep, and a master's page that is made up.

    The more often one looks, the later it is. With the look number ``_LOOKS`` a worker registers.
    """

    looks = 0
    silent = False
    last_worker = True

    def _state(self) -> dict[str, Any] | None:
        self.looks += 1
        cast("ManualClock", self._clock).advance(s=_WAIT_S)
        if not self.silent:
            with (self.folder / "logs" / "worker-1.log").open("a") as log:
                log.write("still starting\n")
        hosts = [daemon.host for daemon in self.daemons[1:]]
        registered = hosts if self.looks > _LOOKS and self.last_worker else hosts[:1]
        return {"workers": [{"host": host, "state": "ALIVE"} for host in registered]}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SlowMachine]:
    """Return what makes a cluster of two workers whose program does what *script* says."""

    def make(script: str = "exec sleep 600") -> SlowMachine:
        program = tmp_path / "bin" / "spark-class"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        java = Java(home=tmp_path, major=17, source="PATH")
        monkeypatch.setattr(cluster, "spark_home", lambda: tmp_path)
        monkeypatch.setattr(cluster, "find_java", lambda: java)
        monkeypatch.setattr(cluster, "_DAEMON_LOOK_EVERY_S", 0)
        folder = tmp_path / "cluster"
        folder.mkdir()
        return SlowMachine(ClusterSettings(workers=2), folder, ManualClock())

    return make


def test_slow_workers_are_waited_for(machine: Callable[..., SlowMachine]) -> None:
    """However long it takes: they are alive, and their logs grow."""
    with machine() as daemons:
        assert daemons.looks > _LOOKS


def test_workers_that_stand_still_are_named(machine: Callable[..., SlowMachine]) -> None:
    """With the end of the log of one that is missing, not of one that is there."""
    daemons = machine()
    daemons.silent, daemons.last_worker = True, False
    failed = pytest.raises(ClusterFailed, match=r"(?s)^worker-2: not registered.*worker-2\.log")
    with failed, daemons:
        pass


def test_workers_that_end_are_named(machine: Callable[..., SlowMachine]) -> None:
    """At once, with what they said."""
    daemons = machine('case "$*" in *worker-2*) echo no such class; exit 1;; esac; exec sleep 600')
    daemons.last_worker = False
    failed = pytest.raises(ClusterFailed, match=r"(?s)worker-2 has ended.*no such class")
    with failed, daemons:
        pass


def test_growth_begins_anew(tmp_path: Path) -> None:
    """With each line in any of the logs."""
    clock = ManualClock()
    growth = LogGrowth(tmp_path, clock)
    assert growth.still_s() == 0
    clock.advance(s=5)
    assert growth.still_s() == 5
    (tmp_path / "other.log").write_text("line")
    assert growth.still_s() == 0
