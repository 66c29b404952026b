"""Clients that load a server while it is killed again and again.

The server runs as a process of its own and is ended with SIGKILL at moments nobody has chosen;
the clients, and the records that tell what was acknowledged, live here.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import apsw

from tests.reliability.history import Drain, Event, History, Record, Verb, read_records, root_of
from tests.reliability.running import (
    Answer,
    Client,
    Delivery,
    KillableServer,
    eventually,
)

QUEUES: Final = ("killing-a", "killing-b")
RECORDS: Final = Path("/dev/shm")  # memory: another file system than any disk the data is on
FILES: Final = ("leasehold.db", "leasehold.db-wal")
OPTIONS: Final = {"--disk-reserve-mib": "4"}
_LEASE_S: Final = (1, 2)
_DRAIN_LEASE_S: Final = 600
_PAGE: Final = 32


class Target:
    """Where the clients find the server, and whether it is meant to be up."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._port: int | None = None
        self._closed = False

    def up(self, port: int) -> None:
        """Send the clients to *port*."""
        with self._changed:
            self._port = port
            self._changed.notify_all()

    def down(self) -> None:
        """Say that the server is about to be killed."""
        with self._changed:
            self._port = None

    def close(self) -> None:
        """Let the clients end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether the clients are to end."""
        return self._closed

    def is_up(self, port: int) -> bool:
        """Tell whether the server at *port* is meant to be up."""
        with self._changed:
            return self._port == port

    def wait(self) -> int | None:
        """Return the port once there is one; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._port is not None)
            return None if self._closed else self._port


@dataclass(frozen=True, slots=True)
class Held:
    """A receipt that its holder believes in, or knows to be stale."""

    message_id: str
    receipt: str
    text: str


class Caller:
    """Makes calls and writes them down."""

    def __init__(self, record: Record, queue: str) -> None:
        self._record = record
        self.queue = queue

    def put(self, client: Client, text: str, delay_s: int) -> Event:
        """Put a message."""
        asked = {"text": text, "hidden_s": delay_s}
        query = f"visibilitytimeout={delay_s}" if delay_s else ""
        return self._call("put", lambda: client.put(self.queue, text, query), **asked)

    def get(self, client: Client, limit: int, lease_s: int) -> Event:
        """Get messages."""
        return self._call("get", lambda: client.get(self.queue, limit, lease_s), hidden_s=lease_s)

    def update(self, client: Client, held: Held, lease_s: int, text: str | None) -> Event:
        """Update a message."""
        return self._call(
            "update",
            lambda: client.update(self.queue, held.message_id, held.receipt, lease_s, text),
            message_id=held.message_id,
            receipt=held.receipt,
            hidden_s=lease_s,
            text=text,
        )

    def delete(self, client: Client, held: Held) -> Event:
        """Delete a message."""
        return self._call(
            "delete",
            lambda: client.delete(self.queue, held.message_id, held.receipt),
            message_id=held.message_id,
            receipt=held.receipt,
        )

    def _call(self, verb: Verb, call: Any, **asked: Any) -> Event:
        begun = self._record.intent(queue=self.queue, verb=verb, **asked)
        answer: Answer | None = None
        try:
            answer = call()
        except OSError:
            self._record.answer(begun, verb, None)
            raise
        return self._record.answer(begun, verb, answer)


class Worker:
    """One client, which does a bit of everything until told to end.

    It goes on using receipts that may be stale, those of before a kill among them.
    """

    def __init__(self, number: int, seed: int, target: Target, record: Record) -> None:
        self.thread = threading.Thread(target=self._run, name=f"worker-{number}", daemon=True)
        self.answered = 0
        self.broken: list[str] = []
        """Calls that failed while the server was meant to be up."""
        self._number = number
        self._rng = random.Random(f"{seed}/{number}")
        self._target = target
        self._caller = Caller(record, QUEUES[number % len(QUEUES)])
        self._held: list[Held] = []
        self._stale: list[Held] = []
        self._texts = count()

    def _run(self) -> None:
        while (port := self._target.wait()) is not None:
            client = Client(port)
            try:
                while not self._target.closed:
                    self._step(client)
                    self.answered += 1
            except OSError as error:
                if self._target.is_up(port):
                    self.broken.append(repr(error))
            finally:
                client.close()

    def _step(self, client: Client) -> None:
        draw = self._rng.random()
        if draw < 0.36:
            self._caller.put(client, self._text(), self._rng.choice((0, 0, 0, 1)))
        elif draw < 0.58 or not (self._held or self._stale):
            self._get(client)
        elif draw < 0.74:
            self._update(client)
        else:
            self._delete(client)

    def _get(self, client: Client) -> None:
        limit = self._rng.randint(1, 4)
        taken = self._caller.get(client, limit, self._rng.choice(_LEASE_S)).taken
        self._held += [Held(each.message_id, each.receipt, each.text) for each in taken]

    def _update(self, client: Client) -> None:
        held = self._pick()
        text = None
        if self._rng.random() < 0.5:
            text = self._text(root_of(held.text))
        lease_s = self._rng.choice((0, *_LEASE_S))
        event = self._caller.update(client, held, lease_s, text)
        self._drop(held)
        if event.acknowledged and lease_s:
            self._held.append(Held(held.message_id, event.new_receipt, text or held.text))

    def _delete(self, client: Client) -> None:
        held = self._pick()
        self._caller.delete(client, held)
        self._drop(held)

    def _pick(self) -> Held:
        """Choose a receipt to use, mostly one that should be good."""
        stale = self._stale and (not self._held or self._rng.random() < 0.1)
        return self._rng.choice(self._stale if stale else self._held)

    def _drop(self, held: Held) -> None:
        """Note that a receipt is used up; after a call without an answer this is not reached."""
        if held in self._held:
            self._held.remove(held)
        self._stale = [*self._stale[-7:], held]

    def _text(self, root: str = "") -> str:
        """Return a text that nobody else writes."""
        number = next(self._texts)
        padding = self._rng.choice((0, 0, 0, 200, 5_000)) * "x"
        return f"{root or f'{self._number}-{number}'}/{self._number}.{number} {padding}"


@dataclass(slots=True)
class Campaign:
    """Rounds of load and SIGKILL on one data folder."""

    server: KillableServer
    data: Path
    seed: int
    clients: int = 6
    answers: tuple[int, int] = (50, 900)
    """Fewest and most answers of a round before the kill."""
    after_kill: Callable[[int], None] = lambda _: None
    """Called with the number of the kill while nothing runs."""
    kills: int = 0
    kills_while_starting: int = 0
    broken: list[str] = field(default_factory=list)
    """Calls that failed although the server was up, and data found damaged."""

    def play(self, rounds: int, records: Path) -> History:
        """Load and kill so many times, drain, and check."""
        numbers = count(1)
        target = Target()
        files = [Record(records / f"{number}.jsonl", numbers) for number in range(self.clients)]
        workers = [Worker(n, self.seed, target, file) for n, file in enumerate(files)]
        port = self._start()
        client = Client(port)
        assert all(client.create(queue).status in {201, 204} for queue in QUEUES)
        client.close()
        for worker in workers:
            worker.thread.start()
        rng = random.Random(self.seed)
        for _ in range(rounds):
            target.up(port)
            wanted = sum(worker.answered for worker in workers) + rng.randint(*self.answers)
            eventually(
                lambda least=wanted: sum(worker.answered for worker in workers) >= least,  # type: ignore[misc]
                f"{wanted} answers",
            )
            target.down()
            self._kill()
            if rng.random() < 0.2:
                self.server.kill_while_starting(rng.uniform(0.0, 0.4))
                self.kills_while_starting += 1
                self._look_into(self.data)
            port = self._start()
        target.up(port)
        target.close()
        for worker in workers:
            worker.thread.join()
            self.broken += worker.broken
        for file in files:
            file.close()
        return finish(port, records, numbers)

    def _start(self) -> int:
        port = self.server.start().port
        self._ask_for_integrity(self.data)
        return port

    def _kill(self) -> None:
        self.server.kill()
        self.kills += 1
        self._look_into(self.data)
        self.after_kill(self.kills)

    def _look_into(self, data: Path) -> None:
        """Recover a copy of what a kill has left: the data itself is the server's to recover."""
        with tempfile.TemporaryDirectory(dir=RECORDS) as folder:
            for name in FILES:
                if (data / name).exists():
                    shutil.copy(data / name, folder)
            self._ask_for_integrity(Path(folder))

    def _ask_for_integrity(self, data: Path) -> None:
        verdict = integrity(data / FILES[0])
        if verdict != "ok":
            self.broken.append(f"after {self.kills} kills: {verdict}")


def integrity(path: Path) -> str:
    """Return what SQLite says of a database that another process may have open."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(10_000)
        return str(connection.pragma("integrity_check"))
    except apsw.Error as error:
        return repr(error)
    finally:
        connection.close()


def finish(port: int, records: Path, numbers: count[int]) -> History:
    """Drain all queues and check everything that is on record."""
    record = Record(records / "drain.jsonl", numbers)
    client = Client(port)
    counted = sum(client.count(queue) for queue in QUEUES)
    taken: list[Delivery] = []

    def drained() -> bool:
        for queue in QUEUES:
            caller = Caller(record, queue)
            while batch := caller.get(client, _PAGE, _DRAIN_LEASE_S).taken:
                taken.extend(batch)
                for each in batch:
                    client.delete(queue, each.message_id, each.receipt)
        return len(taken) >= counted

    # Until the leases of the load have ended. If that is never, the history says it better.
    with suppress(AssertionError):
        eventually(drained, "all that is counted comes out")
    after = sum(client.count(queue) for queue in QUEUES)
    client.close()
    record.close()
    events = read_records(sorted(records.glob("*.jsonl")))
    return History.checked(events, Drain(counted=counted, taken=taken, counted_after=after))


@contextmanager
def record_folder() -> Iterator[Path]:
    """Return a folder for records; it goes away in the end."""
    folder = Path(tempfile.mkdtemp(dir=RECORDS, prefix="leasehold-records-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
