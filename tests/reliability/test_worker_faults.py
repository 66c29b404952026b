"""Workers that are stopped, cut off, or told to end, and a server that dies under them."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import pytest

from tests.reliability.proxy import Fault, Proxy
from tests.reliability.running import eventually
from tests.reliability.worker_campaign import QUEUE, Rig

LEASE_S: Final = 5
SESSION_S: Final = 15
REFUSED: Final = {
    # By the library, before anything is sent.
    "tried check": "LeaseLost",
    "tried checkpoint": "LeaseLost",
    "tried extend": "LeaseLost",
    "tried effect": "LeaseLost",
    # By the server, for whoever sends it all the same.
    "tried renew": "LeaseGone",
    "tried save": "LeaseGone",
    "tried release": "LeaseGone",
    "tried complete": "LeaseGone",
    # By what the handler writes to.
    "tried write": "Fenced",
}
"""What a zombie tries, and what it is told."""
KINDS: Final[dict[str, dict[str, Any]]] = {
    "LeaseLost": {"handler": "zombie"},
    "CancelledError": {"handler": "azombie", "runner": "asyncio"},
    "LeaseLost, with a process that renews": {"handler": "zombie", "renewer": "process"},
}
"""How handlers of each kind are cancelled."""
EACH: Final = 3
"""Messages of each worker."""


@pytest.mark.parametrize(
    "frozen_s", [2 * LEASE_S, pytest.param(2 * SESSION_S, marks=pytest.mark.slow)]
)
def test_workers_that_were_stopped_past_their_leases(tmp_path: Path, frozen_s: int) -> None:
    """When they go on their handlers are cancelled, and nothing that they can do does anything.

    Meanwhile another worker has the messages, and completes them undisturbed.
    """
    count = EACH * len(KINDS)
    with Rig(tmp_path, concurrency=EACH, prefetch=0) as rig:
        zombies = []
        for slot, settings in enumerate(KINDS.values()):
            rig.send(EACH)
            zombies.append(rig.start(slot, handler_s=10_000, **settings))
            rig.await_noted("waits", EACH * (slot + 1))
        renewers = [zombie.relatives for zombie in zombies]
        assert [len(each) for each in renewers] == [0, 0, 1]
        for zombie, renewer in zip(zombies, renewers, strict=True):
            zombie.freeze(*renewer)
        rig.conductor.let_pass(frozen_s)
        with rig.conductor.slowly():  # what it receives must not lapse on the way to it
            heir = rig.start(len(KINDS), handler_s=30, concurrency=count).rehearsal.worker
            rig.await_noted("begun", 2 * count)
        for zombie, renewer in zip(zombies, renewers, strict=True):
            zombie.thaw(*renewer)
        rig.await_noted("tried effect", count)
        rig.await_noted("lost", count)
        rig.finish(limit_s=120)
        audit = rig.audit()
    assert audit.problems() == []
    noted = Counter((entry.what, entry.told) for entry in audit.accounts.entries)
    assert noted["cancelled", "LeaseLost"] == 2 * EACH
    assert noted["cancelled", "CancelledError"] == EACH
    for what, told in REFUSED.items():
        assert noted[what, told] == count, (what, told, noted)
    assert {entry.worker for entry in audit.accounts.noted("settled")} == {heir}
    assert {worker for _, _, worker in audit.accounts.effects} == {heir}
    deliveries = Counter(event.dequeue_count for event in audit.of("received"))
    assert deliveries == {1: count, 2: count}


@pytest.mark.slow
def test_a_worker_that_was_stopped_briefly(tmp_path: Path) -> None:
    """Shorter than what its leases have left, it costs nothing."""
    with Rig(tmp_path, concurrency=8, prefetch=8, handler_s=20) as rig:
        rig.send(32)
        worker = rig.start(0)
        rig.await_noted("begun", 8)
        for _ in range(5):
            worker.freeze()
            rig.conductor.let_pass(1)
            worker.thaw()
            rig.conductor.let_pass(4)
        rig.finish(limit_s=300)
        audit = rig.audit()
    assert audit.problems() == []
    assert (audit.redelivered, audit.of("lapsed")) == (0, [])


@pytest.mark.long
def test_workers_that_are_told_to_end(tmp_path: Path) -> None:
    """SIGTERM: handlers finish, and what waits is given back without being counted.

    The queue sets aside whatever has failed, was interrupted or has lapsed a single time.
    """
    kinds: list[dict[str, Any]] = [
        {},
        {"runner": "asyncio", "handler": "afenced"},
        {"runner": "processes"},
        {"renewer": "process"},
    ]
    with Rig(tmp_path, concurrency=2, prefetch=16, grace_s=30, handler_s=10) as rig:
        strict = {"max_failures": 1, "max_interruptions": 1, "max_lapses": 1}
        rig.client.queue(QUEUE).update(settings={"failure_policy": strict})
        rig.send(20)
        buffered = []
        for number, kind in enumerate(kinds, start=1):
            starts_more = "processes" in kind.values() or "renewer" in kind
            with rig.conductor.slowly() if starts_more else nullcontext():
                worker = rig.start(0, **kind)
                rig.await_noted("begun", 2 * number)
                rig.conductor.let_pass(LEASE_S / 4)
            worker.stop()
            counts = rig.client.queue(QUEUE).counts()
            assert (counts.leased, counts.visible) == (0, 20 - 2 * number)
            buffered.append(min(16, 20 - 2 * number))
        rig.start(0)
        rig.finish(limit_s=300)
        audit = rig.audit()
    assert audit.problems() == []
    assert {event.reason for event in audit.of("released")} == {"returned"}
    assert len(audit.of("released")) == sum(buffered)
    assert len(audit.accounts.noted("begun")) == 20


def test_a_worker_that_is_told_to_end_now(tmp_path: Path) -> None:
    """Handlers that take longer than the grace are told to stop, and interrupted."""
    with Rig(tmp_path, concurrency=2, prefetch=4, grace_s=1) as rig:
        rig.send(6)
        worker = rig.start(0, handler_s=1000)
        rig.await_noted("begun", 2)
        worker.stop()
        reasons = Counter(event.reason for event in rig.audit().of("released"))
        assert reasons == {"interrupted": 2, "returned": 4}
        rig.start(0, handler_s=5)
        rig.finish(limit_s=100)
        assert rig.audit().problems() == []


@pytest.mark.parametrize("processes", [{"runner": "processes"}, {"renewer": "process"}])
def test_what_a_killed_worker_has_started_ends(tmp_path: Path, processes: Any) -> None:
    """Processes for handlers and for renewals notice that their worker is dead, and end."""
    with Rig(tmp_path, concurrency=2, prefetch=0, handler_s=1000, **processes) as rig:
        rig.send(2)
        worker = rig.start(0)
        with rig.conductor.slowly():  # nobody waits for the processes to start
            rig.await_noted("begun", 2)
        assert worker.relatives != []
        worker.kill()
        eventually(lambda: worker.relatives == [], "all are gone")
        rig.conductor.let_pass(2 * LEASE_S)
        assert rig.client.queue(QUEUE).counts().visible == 2


def test_the_server_is_killed(tmp_path: Path) -> None:
    """Workers that had messages in hand keep them over a short outage.

    But for those whose renewal was carried out and not answered: the receipt in hand is dead then.
    """
    with Rig(tmp_path, concurrency=8, prefetch=8, handler_s=20) as rig:
        rig.send(32)
        for slot in range(2):
            rig.start(slot)
        rig.conductor.until(lambda: rig.client.queue(QUEUE).counts().leased == 32, 60, "all leased")
        for _ in range(2):
            rig.conductor.let_pass(7)
            with rig.conductor.slowly():
                rig.kill_server()
                rig.conductor.let_pass(0.5)
                rig.conductor.pause()
                rig.start_server()
                rig.conductor.resume()
        rig.finish(limit_s=300)
        audit = rig.audit()
    assert audit.problems() == []
    why = [entry.told for entry in audit.accounts.noted("lost")]
    assert [told for told in why if "a later receipt is in force" not in told] == []
    assert len(audit.of("lease-ended")) == 0


@pytest.mark.slow
def test_the_server_is_away_for_longer_than_leases(tmp_path: Path) -> None:
    """Workers give up what they have, and begin anew when it is back."""
    with Rig(tmp_path, concurrency=8, prefetch=8, handler_s=20) as rig:
        rig.send(48)
        for slot in range(2):
            rig.start(slot)
        rig.await_noted("effect", 4)
        rig.kill_server()
        rig.conductor.let_pass(3 * LEASE_S)
        rig.start_server()
        rig.finish(limit_s=600)
        audit = rig.audit()
    assert audit.problems() == []
    assert len(audit.accounts.noted("lost")) >= 16
    assert audit.repeated >= 4


@pytest.mark.slow
def test_workers_and_servers_are_killed(tmp_path: Path) -> None:
    """Ten times a worker dies, and five times the server."""
    dice = random.Random(7)
    with Rig(tmp_path, concurrency=16) as rig:
        rig.send(400)
        for slot in range(4):
            rig.start(slot)
        for _ in range(5):
            rig.kill_now_and_then(2, 20, dice)
            rig.kill_server()
            rig.conductor.let_pass(2 * LEASE_S * dice.random())
            rig.start_server()
        rig.finish(limit_s=1000)
        audit = rig.audit()
    print(audit.summary(kills=rig.deaths.total()))  # noqa: T201 - figures for a person who runs it with -s
    assert audit.problems() == []
    assert audit.repeated > 10


class Line:
    """A connection that can be cut; everything that is asked over it then breaks off."""

    def __init__(self) -> None:
        self.is_cut = False

    def __call__(self) -> Fault:
        return Fault.CUT_BEFORE_REQUEST if self.is_cut else Fault.NONE


def test_the_connection_is_lost_for_ten_seconds(tmp_path: Path) -> None:
    """The worker loses what it has to another one, notices by itself, and works on afterwards."""
    line = Line()
    with (
        Rig(tmp_path, concurrency=8, prefetch=8, handler_s=20) as rig,
        Proxy(rig.port, line) as proxy,
    ):
        rig.send(24)
        cut_off = rig.start(0, port=proxy.port)
        rig.await_noted("effect", 4)
        line.is_cut = True
        rig.start(1)
        rig.conductor.let_pass(10)
        assert len(rig.noted("lost")) == 16
        line.is_cut = False
        rig.finish(limit_s=600)
        audit = rig.audit()
    assert audit.problems() == []
    assert audit.repeated >= 4
    settled = Counter(entry.worker for entry in audit.accounts.noted("settled"))
    assert settled[cut_off.rehearsal.worker] > 0


@pytest.mark.slow
def test_the_connection_is_lost_for_a_moment(tmp_path: Path) -> None:
    """Shorter than what is left of a lease, it costs nothing: renewals are tried again."""
    line = Line()
    with (
        Rig(tmp_path, concurrency=8, prefetch=8, handler_s=20) as rig,
        Proxy(rig.port, line) as proxy,
    ):
        rig.send(16)
        rig.start(0, port=proxy.port)
        rig.conductor.until(lambda: rig.client.queue(QUEUE).counts().leased == 16, 60, "all leased")
        for _ in range(5):
            line.is_cut = True
            rig.conductor.let_pass(1)
            line.is_cut = False
            rig.conductor.let_pass(6)
        rig.finish(limit_s=300)
        audit = rig.audit()
    assert proxy.happened[Fault.CUT_BEFORE_REQUEST] > 0
    assert audit.problems() == []
    assert audit.redelivered == 0
