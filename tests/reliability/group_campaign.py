"""Workers and servers that are killed and stopped while they share a queue with groups.

``python -m tests.reliability.group_campaign --store sqlite --kills 1000 --out FILE`` runs a long
one; ``--store postgres`` has two servers on one PostgreSQL.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from leasehold.client import Client
from leasehold.client.errors import LeaseholdClientError
from leasehold.client.models import Event, FailurePolicy, NewMessage
from tests.e2e.server import DEV_ACCOUNT, port_is_free
from tests.patience import PATIENCE_S
from tests.postgres import empty, shared_cluster
from tests.reliability.group_history import (
    HANDED_OUT,
    Name,
    Notes,
    Promise,
    Put,
    Resume,
    above_rate,
    check,
    figures,
    logged_past_a_halt,
    read_notes,
)
from tests.reliability.group_worker import RETRIES, Job, body_of, name_of, names, work
from tests.reliability.running import KillableServer, eventually

PROMISES: Final = {
    "ordered": Promise(max_in_flight=3),
    "limited": Promise(in_order=False, max_in_flight=2),
    "rated": Promise(in_order=False, rate_per_s=8.0, burst=3),
    "halting": Promise(halts=True),
}
"""By queue: what it is to keep."""
SCHEMA: Final = "grouped"
_BACKLOG: Final = 150
"""Producers wait while more messages than that are visible."""
_LEASE_S: Final = 2
_RESUME_S: Final = 0.2
"""A group stands still for as long, at least."""
_DRAIN_S: Final = 120.0
_CLIENT_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Where Linux keeps which ports it gives to clients."""
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.reliability.group_worker"])


class Producer(threading.Thread):
    """Puts messages through one server, those of a group one after the other.

    A put without an answer is repeated with its key until there is one, so that the order of the
    puts is known.
    """

    def __init__(self, url: str, number: int, groups: int, notes: Notes, fill: int) -> None:
        super().__init__(daemon=True)
        self._url, self.notes = url, notes
        self._groups, self._number = groups, number
        self._names = names(list(PROMISES), groups, number, since=fill)
        self._fill = fill
        self._rng = Random(number)
        self.stopping = threading.Event()
        self.broken: list[str] = []

    def fill(self) -> None:
        """Put some messages at once, before anybody works."""
        with Client(self._url, DEV_ACCOUNT) as client:
            for name in PROMISES:
                puts = [
                    Put(group=group, number=number, sent_s=time.monotonic())
                    for group, number in names([name], self._groups, self._number, upto=self._fill)
                ]
                for put in puts:
                    self.notes.add(put)
                client.queue(name).put_many(
                    NewMessage(body_of(str(p.group), p.number), group_id=group_id_of(p))
                    for p in puts
                )

    def run(self) -> None:
        """Put until told to stop."""
        with Client(self._url, DEV_ACCOUNT, retries=RETRIES, timeout_s=5.0) as client:
            for turn, (group, number) in enumerate(self._names):
                if self.stopping.is_set():
                    return
                lives_s = 4 if self._rng.random() < 0.02 else None
                put = Put(
                    group=group,
                    number=number,
                    sent_s=time.monotonic(),
                    time_to_live_s=lives_s,
                    acknowledged=False,
                )
                self.notes.add(put)
                queue = client.queue(group.split(":")[0])
                while not self._try_to_put(queue, put):
                    time.sleep(0.05)
                self.notes.add(replace(put, acknowledged=True))
                while turn % 11 == 0 and not self.stopping.is_set() and self._is_full(queue):
                    time.sleep(0.05)

    @staticmethod
    def _try_to_put(queue: Any, put: Put) -> bool:
        more = {} if put.time_to_live_s is None else {"time_to_live_s": int(put.time_to_live_s)}
        key = f"{put.group}/{put.number}"
        body = body_of(str(put.group), put.number)
        try:
            queue.put(body, group_id=group_id_of(put), dedup_key=key, **more)
        except LeaseholdClientError:
            return False
        return True

    @staticmethod
    def _is_full(queue: Any) -> bool:
        try:
            return bool(queue.counts().visible > _BACKLOG)
        except LeaseholdClientError:
            return True


class Operator(threading.Thread):
    """Resumes groups that stand still, some time after they have begun to.

    Args:
        url: Of a server.
        queues: Whose groups.
        notes: Where it writes what it does.
    """

    def __init__(self, url: str, queues: Sequence[str], notes: Notes) -> None:
        super().__init__(daemon=True)
        self._url, self._queues, self.notes = url, queues, notes
        self.stopping = threading.Event()

    def run(self) -> None:
        """Look, wait for consumers to try, and resume, until told to stop."""
        with Client(self._url, DEV_ACCOUNT, retries=RETRIES, timeout_s=5.0) as client:
            while not self.stopping.wait(_RESUME_S):
                for name in self._queues:
                    # The server may be dead, or stopped.
                    with suppress(LeaseholdClientError):
                        self._resume_all(client.queue(name))

    def _resume_all(self, queue: Any) -> None:
        halted = queue.groups(halted=True).groups
        if halted:
            self.stopping.wait(_RESUME_S)
        for group in halted:
            resume = Resume(group=f"{queue.name}:{group.group_id}", sent_s=time.monotonic())
            self.notes.add(resume)
            queue.resume_group(group.group_id)
            self.notes.add(replace(resume, answered_s=time.monotonic()))


def group_id_of(put: Put) -> str | None:
    """Return the group as the server is told it."""
    return str(put.group).split(":")[1] or None


@dataclass(slots=True)
class GroupCampaign:
    """Rounds of load, kills and pauses.

    Args:
        servers: All on the same messages; started and stopped by the campaign.
        folder: For what is noted.
        seed: Of all that is random.
        promises: By queue: what it is to keep; also its settings.
        more: Further settings of the groups.
    """

    servers: Sequence[KillableServer]
    folder: Path
    seed: int
    promises: Mapping[str, Promise] = field(default_factory=lambda: PROMISES)
    more: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 6
    groups: int = 3
    """Of each queue, for each server."""
    fill: int = 20
    """Messages of each group at the start."""
    done: Counter[str] = field(default_factory=Counter)
    """Kills and pauses."""
    rated: Counter[str] = field(default_factory=Counter)
    """Messages handed out of groups with a rate, by receives and by claims."""
    faults: list[str] = field(default_factory=list)
    _rng: Random = field(init=False)
    _processes: list[Any] = field(default_factory=list)
    _paused: list[tuple[float, int]] = field(default_factory=list)
    """Until when, on the monotonic clock, and who."""
    _started: int = 0

    def play(self, kills: int) -> None:
        """Kill so often, then let all be worked off, and check."""
        self._rng = Random(self.seed)
        for server in self.servers:
            server.start()
        with self._client() as client:
            for name, promise in self.promises.items():
                client.queue(f"{name}-poison").create()
                client.queue(name).create(settings=self._settings(promise))
        producers = [self._producer(number) for number in range(len(self.servers))]
        for producer in producers:
            producer.fill()
        operator = self._operator()
        try:
            operator.start()
            self._processes = [self._worker(number) for number in range(self.workers)]
            for producer in producers:
                producer.start()
            while self._kills() < kills:
                time.sleep(self._rng.uniform(0.01, 0.25))
                self._wake()
                self._strike()
            self._wake(at_once=True)
            for producer in producers:
                producer.stopping.set()
            for producer in producers:
                producer.join(PATIENCE_S)
            left = self._drain()
        finally:
            self._wake(at_once=True)
            for process in self._processes:
                process.kill()
                process.join()
            operator.stopping.set()
            operator.join(PATIENCE_S)
            for notes in (*(producer.notes for producer in producers), operator.notes):
                notes.close()
        self._judge(left)

    def report(self) -> dict[str, Any]:
        """Return figures."""
        return {
            **dict(self.done),
            "kills": self._kills(),
            "pauses": self.done["workers_paused"] + self.done["servers_paused"],
            **figures(read_notes(self.folder)),
            "rated": dict(self.rated),
            "violations": len(self.faults),
        }

    def _judge(self, left: Sequence[Name]) -> None:
        """Look for what the notes, and the log of the server, have against the promises."""
        entries = read_notes(self.folder)
        with self._client() as client:
            events = list(client.events())
        for name, promise in self.promises.items():
            own = [each for each in entries if str(each.group).startswith(f"{name}:")]
            self.faults += check(own, promise, left)
            if promise.rate_per_s is not None:
                self.faults += self._above_rate(events, name, promise.rate_per_s, promise.burst)
            if promise.halts:
                self.faults += logged_past_a_halt(events, name)

    def _producer(self, number: int) -> Producer:
        url = f"http://127.0.0.1:{self.servers[number].port}"
        return Producer(url, number, self.groups, Notes(self._notes(f"p{number}")), self.fill)

    def _operator(self) -> Operator:
        url = f"http://127.0.0.1:{self.servers[-1].port}"
        halting = [name for name, promise in self.promises.items() if promise.halts]
        return Operator(url, halting, Notes(self._notes("operator")))

    def _kills(self) -> int:
        return self.done["workers_killed"] + self.done["servers_killed"]

    def _settings(self, promise: Promise) -> dict[str, Any]:
        groups: dict[str, Any] = {"fair": True, **self.more}
        groups["order"] = "fifo" if promise.in_order else "none"
        groups["limit_noisy"] = not promise.in_order
        if promise.max_in_flight is not None:
            groups["max_in_flight"] = promise.max_in_flight
        if promise.rate_per_s is not None:
            groups |= {"rate_per_s": promise.rate_per_s, "burst": promise.burst}
        if promise.halts:
            groups["on_poison"] = "halt"
        policy = FailurePolicy(max_failures=1 if promise.halts else 2)
        return {"groups": groups, "failure_policy": policy}

    def _client(self) -> Client:
        return Client(f"http://127.0.0.1:{self.servers[0].port}", DEV_ACCOUNT)

    def _notes(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def _worker(self, number: int) -> Any:
        self._started += 1
        job = Job(
            name=f"w{number}-{self._started}",
            urls=[f"http://127.0.0.1:{server.port}" for server in self.servers],
            queues=list(self.promises),
            folder=self.folder,
            seed=self.seed * 100_000 + self._started,
            lease_s=_LEASE_S,
            claims=[name for name, each in self.promises.items() if each.rate_per_s is not None],
            fragile=[name for name, each in self.promises.items() if each.halts],
            with_session=number % 3 == 0,
        )
        process = _CONTEXT.Process(target=work, args=(job,), daemon=True)
        process.start()
        return process

    def _strike(self) -> None:
        """Kill, or stop, one worker or server."""
        draw = self._rng.random()
        if draw < 0.55:
            number = self._rng.randrange(self.workers)
            self._processes[number].kill()
            self._processes[number].join()
            self._processes[number] = self._worker(number)
            self.done["workers_killed"] += 1
        elif draw < 0.7:
            pid = self._rng.choice(self._processes).pid
            self._pause(pid, self._rng.uniform(0.1, 2.5 * _LEASE_S))
            self.done["workers_paused"] += 1
        elif draw < 0.9:
            server = self._rng.choice(self.servers)
            server.kill()
            server.start()
            self.done["servers_killed"] += 1
        else:
            self._pause(self._rng.choice(self.servers).pid, self._rng.uniform(0.05, 1.5))
            self.done["servers_paused"] += 1

    def _pause(self, pid: int, for_s: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._paused.append((time.monotonic() + for_s, pid))

    def _wake(self, *, at_once: bool = False) -> None:
        """Let those go on whose pause is over, if they are there still."""
        now_s = time.monotonic()
        ready = [each for each in self._paused if at_once or each[0] <= now_s]
        alive = {each.pid for each in (*self._processes, *self.servers)}
        for each in ready:
            self._paused.remove(each)
            if each[1] in alive:
                os.kill(each[1], signal.SIGCONT)

    def _drain(self) -> list[Name]:
        """Wait until workers have done all there is; return what is left, poison included."""
        with self._client() as client:
            queues = [client.queue(name) for name in self.promises]
            try:
                eventually(
                    lambda: all(queue.counts().total == 0 for queue in queues),
                    "all is worked off",
                    _DRAIN_S,
                )
            except AssertionError as error:
                self.faults.append(f"stuck: {error}")
            queues += [client.queue(f"{queue.name}-poison") for queue in queues]
            return [name_of(view) for queue in queues for view in queue.inspect(body=True)]

    def _above_rate(
        self, events: Iterable[Event], queue: str, rate_per_s: float, burst: int
    ) -> list[str]:
        """Return the messages that a group was given too early, by the clock of the server."""
        times_ms: dict[str, list[int]] = defaultdict(list)
        for event in events:
            if event.type in HANDED_OUT and event.queue == queue and event.group_id:
                times_ms[event.group_id].append(event.at_ms)
                self.rated[event.type] += 1
        return [
            f"{group}: {fault}"
            for group, found in times_ms.items()
            for fault in above_rate([(each - found[0]) / 1000 for each in found], rate_per_s, burst)
        ]


def free_port(chance: Random) -> int:
    """Return a port that is free, and stays so while a server is dead: no client is given it."""
    lowest_of_clients = int(_CLIENT_PORTS.read_text().split()[0])
    while True:
        port = chance.randrange(10_000, lowest_of_clients)
        if port_is_free(port):
            return port


def servers_on(store: str, folder: Path, program: Sequence[str] = ()) -> list[KillableServer]:
    """Return servers that are not started yet: one on SQLite, or two on one PostgreSQL."""
    options = {"--mns-port": "off"}
    count = 1
    if store == "postgres":
        empty(SCHEMA)
        options["--store-url"] = f"{shared_cluster().url}&schema={SCHEMA}"
        count = 2
    else:
        options["--disk-reserve-mib"] = "4"
    ports = Random(str(folder))
    servers = [
        KillableServer(folder / f"data{number}", port=free_port(ports), options=options)
        for number in range(count)
    ]
    for server in servers:
        server.program = program or server.program
    return servers


def run(store: str, folder: Path, kills: int, seed: int, **more: Any) -> GroupCampaign:
    """Run a campaign and return it; *more* as for :class:`GroupCampaign` and ``program``."""
    servers = servers_on(store, folder, more.pop("program", ()))
    notes = Path(tempfile.mkdtemp(prefix="notes", dir=folder))
    campaign = GroupCampaign(servers, notes, seed, **more)
    with ExitStack() as stack:  # each is stopped, whatever is wrong with another
        for server in servers:
            stack.callback(server.stop)
        campaign.play(kills)
    return campaign


def main() -> None:
    """Run a long one, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lhgroups"))
    began_s = time.monotonic()
    campaign = run(options.store, folder, options.kills, options.seed)
    found = {"store": options.store, "seed": options.seed, **campaign.report()}
    found["seconds"] = round(time.monotonic() - began_s)
    print(json.dumps(found, indent=1))  # noqa: T201 - told to who runs it
    print(*campaign.faults[:20], sep="\n")  # noqa: T201
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    if campaign.faults:
        sys.exit(f"what was noted is in {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
