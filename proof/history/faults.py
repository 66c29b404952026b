"""Faults that are done to a system under test, each with a beginning and an end.

A fault begins with :meth:`Fault.start` and ends with :meth:`Fault.stop`; in between others may
begin. The campaign writes both moments into the history. What a fault cannot do with a system, it
is not made for: :func:`faults_for` gives those that a system allows.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from proof.history.adapters import Restart, System
from proof.history.relay import Relay
from proof.history.shim import Damage, Shim

NO_RESTART: Final = Restart()
_LEFT_BYTES: Final = 65_536
_STEPS_S: Final = (-3_600.0, -60.0, -1.5, 1.5, 60.0, 3_600.0)
_SMALL_STEPS_S: Final = (-2.0, -1.0, 1.0, 2.0)
_FARTHEST_S: Final = 2.0
"""What the clock is set to while nobody runs is no farther from the true time."""


class Fault(Protocol):
    """One kind of fault, on one system."""

    name: str
    longest_s: float
    """How long it lasts at most, seconds."""
    is_alone: bool
    """Whether no other fault may overlap with it."""

    def start(self, rng: random.Random) -> str:
        """Begin; return what exactly, for the record."""
        ...

    def stop(self) -> Restart:
        """End, and have the system serve again; return what its start was, if there was one."""
        ...


class Kill:
    """SIGKILL for all servers, and a start; now and then one that is killed as well."""

    name = "kill"
    longest_s = 0.0
    is_alone = False

    def __init__(
        self, system: System, *, power: Shim | None = None, damage: Damage | None = None
    ) -> None:
        self._system = system
        self.power = power
        self._damage = damage
        if power is not None:
            self.name = "power cut"

    def start(self, rng: random.Random) -> str:
        """Kill; with a power cut take away what was not synced."""
        self._system.kill()
        return self.power.cut_power(rng, self._damage) if self.power else ""

    def stop(self) -> Restart:
        """Start again."""
        return self._system.restart()


class Pause:
    """SIGSTOP for all servers, SIGCONT after a while."""

    name = "pause"
    longest_s = 2.5
    is_alone = False

    def __init__(self, system: System) -> None:
        self._system = system
        self._stopped: list[int] = []

    def start(self, rng: random.Random) -> str:
        """Stop them."""
        del rng
        self._stopped = list(self._system.pids())
        for pid in self._stopped:
            os.kill(pid, signal.SIGSTOP)
        return ""

    def stop(self) -> Restart:
        """Let them go on."""
        for pid in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return NO_RESTART


class Network:
    """A relay that is cut, held up one way or both, or slow."""

    longest_s = 2.0

    def __init__(self, name: str, relays: Sequence[Relay], *, is_alone: bool = False) -> None:
        self.name = name
        self.is_alone = is_alone
        self._relays = relays

    def start(self, rng: random.Random) -> str:
        """Choose what to do, and do it to all relays or to one."""
        kind = rng.choice(("cut", "stall", "stall requests", "stall answers", "slow"))
        chosen = self._relays if rng.random() < 0.5 else [rng.choice(self._relays)]
        for relay in chosen:
            if kind == "cut":
                relay.cut()
            elif kind == "slow":
                relay.slow_down(rng.uniform(0.005, 0.1))
            else:
                relay.stall(requests=kind != "stall answers", answers=kind != "stall requests")
        return f"{kind}, {len(chosen)} of {len(self._relays)}"

    def stop(self) -> Restart:
        """Heal it."""
        for relay in self._relays:
            relay.heal()
        return NO_RESTART


class DiskError:
    """Writes, or syncs, fail with EIO; the server may end, and is started again."""

    name = "disk error"
    longest_s = 0.5
    is_alone = False

    def __init__(self, system: System, shim: Shim) -> None:
        self._system = system
        self._shim = shim

    def start(self, rng: random.Random) -> str:
        """Have the next one fail, or all of them for a while."""
        count = rng.choice((1, 1, -1))
        syncs = rng.random() < 0.5
        self._shim.fail(writes=0 if syncs else count, number=errno.EIO, syncs=count if syncs else 0)
        return f"{'syncs' if syncs else 'writes'}, {'all' if count < 0 else count}"

    def stop(self) -> Restart:
        """Start the server again if it has ended, as it should after that."""
        self._shim.fail()
        return self._system.restart()


class FullDisk:
    """The file system with the data is filled by somebody else."""

    name = "disk full"
    longest_s = 1.5
    is_alone = False

    def __init__(self, system: System, mount: Path) -> None:
        self._system = system
        self._mount = mount
        self._filler = mount / "filler"

    def start(self, rng: random.Random) -> str:
        """Leave next to nothing, or nothing at all."""
        left = rng.choice((0, _LEFT_BYTES, 16 * _LEFT_BYTES))
        size = max(0, shutil.disk_usage(self._mount).free - left)
        with self._filler.open("wb") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(1, size))
        return f"{left} bytes left"

    def stop(self) -> Restart:
        """Make room; the server need not, but may, have ended."""
        self._filler.unlink()
        return self._system.restart()


class ClockStep:
    """The wall clock of the servers is set while they run, which they promise not to notice."""

    name = "clock step"
    longest_s = 0.5
    is_alone = True  # a server that started meanwhile would have another time

    def __init__(self, shim: Shim) -> None:
        self._shim = shim
        self._step_s = 0.0

    def start(self, rng: random.Random) -> str:
        """Set it."""
        self._step_s = rng.choice(_STEPS_S)
        self._shim.step_clock(self._step_s)
        return f"{self._step_s:+g} s"

    def stop(self) -> Restart:
        """Set it back, so that a start later on does not see it."""
        self._shim.step_clock(-self._step_s)
        return NO_RESTART


class ClockStepWhileDown:
    """The wall clock is set between a kill and the start: the servers' time moves by as much."""

    name = "clock step while down"
    longest_s = 0.0
    is_alone = False

    def __init__(self, system: System, shim: Shim) -> None:
        self.system = system
        self.shim = shim

    def start(self, rng: random.Random) -> str:
        """Kill and set."""
        self.system.kill()
        offset_s = self.shim.clock_offset_s
        possible = [step for step in _SMALL_STEPS_S if abs(offset_s + step) <= _FARTHEST_S]
        step_s = rng.choice(possible)
        self.shim.step_clock(step_s)
        return f"{step_s:+g} s"

    def stop(self) -> Restart:
        """Start again; the clock stays so."""
        return self.system.restart()


class Descriptors:
    """The servers can open no more files or connections for a while."""

    name = "no file descriptors"
    longest_s = 1.5
    is_alone = False

    def __init__(self, system: System, relays: Sequence[Relay]) -> None:
        self._system = system
        self._relays = relays
        self._before: Mapping[int, tuple[int, int]] = {}

    def start(self, rng: random.Random) -> str:
        """Set the limit to what is open, and end some connections so that others are wanted."""
        self._before = {pid: resource.prlimit(pid, _FILES) for pid in self._system.pids()}
        for pid, (_, hard) in self._before.items():
            count = len(list(Path(f"/proc/{pid}/fd").iterdir())) + rng.choice((-4, 0, 1, 2))
            resource.prlimit(pid, _FILES, (count, hard))
        if rng.random() < 0.5:
            for relay in self._relays:
                relay.reset()
        return ""

    def stop(self) -> Restart:
        """Lift the limit; a server that has ended is started."""
        for pid, limits in self._before.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, _FILES, limits)
        return self._system.restart()


_FILES: Final = resource.RLIMIT_NOFILE


def faults_for(
    system: System,
    *,
    relays: Sequence[Relay] = (),
    shim: Shim | None = None,
    mount: Path | None = None,
    database: Sequence[Relay] = (),
) -> list[Fault]:
    """Return the faults that can be done to a system.

    Args:
        system: The system; each can be killed and stopped.
        relays: Between the clients and the servers.
        shim: What the servers are started under.
        mount: A small file system that the data is on.
        database: Relays between the servers and their database.
    """
    faults: list[Fault] = [Kill(system), Pause(system), Descriptors(system, relays)]
    if relays:
        faults.append(Network("network to servers", relays))
    if shim is not None:
        faults += [ClockStep(shim), ClockStepWhileDown(system, shim)]
        faults += [DiskError(system, shim)]
        if shim.notes_writes:
            faults.append(Kill(system, power=shim))
    if mount is not None:
        faults.append(FullDisk(system, mount))
    if database:  # without it a server cannot start
        faults.append(Network("network to database", database, is_alone=True))
    return faults


def wait(fault: Fault, rng: random.Random) -> None:
    """Let a fault last for a while, at random and no longer than it may."""
    if fault.longest_s:
        time.sleep(rng.uniform(0.05, fault.longest_s))
