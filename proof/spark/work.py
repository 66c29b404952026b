"""The messages of the queries that are killed: what is put, what must come out, and what did."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from tests.reliability.spark_query import is_bad

from leasehold.client import Client, QueueHandle
from leasehold.client.errors import QueueNotFound
from leasehold.client.models import Completion
from leasehold.spark.feedback import NOTICES

QUEUE: Final = "kills"
LEASE_S: Final = 1
"""Of the work that comes too late."""
_LATE_S: Final = 1.5
_DRAIN_S: Final = 600
_PART: Final = 40
"""Messages that are put at once."""
_BEGIN: Final = datetime(2026, 2, 3, tzinfo=UTC)
_FAR: Final = timedelta(days=30)
"""So much later than all others is the event that makes the watermark pass them."""


class Work(ABC):
    """Gives a query something to do, and knows what must become of it.

    Calls must not be interrupted by a kill of the server; between them it may be gone.

    Args:
        root: Folder of the query.
    """

    queues: Sequence[str] = (QUEUE,)
    """From which the query reads."""
    has_state: ClassVar = False
    """Whether Spark keeps state. It does not start a query again that was killed before the first
    micro-batch was in its log, as it finds state that it knows nothing of."""

    def __init__(self, root: Path) -> None:
        self.expected: Counter[str] = Counter()
        self.put = 0
        """Messages."""
        self._root = root
        self._parts = 0

    def prepare(self, client: Client) -> None:
        """Create the queues."""
        for name in (*self.queues, *self.targets):
            client.queue(name).create()

    @property
    def targets(self) -> Sequence[str]:
        """Queues to which the query writes."""
        return ()

    def feed(self, client: Client) -> None:
        """Put more, if there is little left to do."""
        if self._waiting(client) < self._least():
            self._add(client, self._parts)
            self._parts += 1

    def finish(self, client: Client) -> None:
        """Put what is needed for all results to come; most need nothing."""
        del client

    def is_done(self, client: Client) -> bool:
        """Tell whether nothing is left to be done."""
        return self._waiting(client) == 0

    @abstractmethod
    def found(self, client: Client) -> Counter[str]:
        """Return what has come out."""

    @abstractmethod
    def _add(self, client: Client, part: int) -> None:
        """Put one part."""

    def left(self, client: Client) -> int:
        """Return how many messages are in the queues that were read, and how many are staged."""
        counts = [client.queue(name).counts() for name in (*self.queues, *self.targets)]
        return self._waiting(client) + sum(each.staged for each in counts)

    def _least(self) -> int:
        return _PART

    def _waiting(self, client: Client) -> int:
        return sum(client.queue(name).counts().total for name in self.queues)

    def _send(self, queue: QueueHandle, bodies: Sequence[str]) -> None:
        queue.put_many(bodies)
        self.put += len(bodies)


class IntoTable(Work):
    """Each message is a row."""

    def _add(self, client: Client, part: int) -> None:
        bodies = [f"message {part * _PART + number}" for number in range(_PART)]
        self._send(client.queue(QUEUE), bodies)
        self.expected.update(bodies)

    def found(self, client: Client) -> Counter[str]:
        """Return the rows of the files that belong to the table, as the sink's log says."""
        del client
        return Counter(rows_of(self._root / "table"))


class IntoDelta(IntoTable):
    """As before; the table's own log says what belongs to it."""

    def prepare(self, client: Client) -> None:
        """Create the table, too."""
        super().prepare(client)
        write_deltalake(self._root / "table", pa.table({"told": pa.array([], pa.string())}))

    def found(self, client: Client) -> Counter[str]:
        """Return the rows of the table."""
        del client
        rows = DeltaTable(self._root / "table").to_pyarrow_table(columns=["told"])
        return Counter(rows["told"].to_pylist())


class IntoPlainTable(IntoTable):
    """As before, by a sink without a log."""

    def found(self, client: Client) -> Counter[str]:
        """Return the rows of all files."""
        del client
        paths = (self._root / "table").glob("*.parquet")
        return Counter(told for path in paths for told in _told(path))


class IntoQueue(IntoTable):
    """Each message is sent on."""

    @property
    def targets(self) -> Sequence[str]:
        """The one that it sends to."""
        return (f"{QUEUE}-out",)

    def found(self, client: Client) -> Counter[str]:
        """Return the messages that can be received."""
        return Counter(each.text for each in received(client.queue(self.targets[0])))


class ThroughPipeline(IntoQueue):
    """Each message is sent on, or set aside; some only when they are tried again."""

    def _add(self, client: Client, part: int) -> None:
        bodies = [f"message {part * _PART + number}" for number in range(_PART)]
        self._send(client.queue(QUEUE), bodies)
        self.expected.update(f"aside: {each}" if is_bad(each) else each for each in bodies)

    def found(self, client: Client) -> Counter[str]:
        """Return what was sent on, and what is in the poison queue."""
        out = Counter(each.json() for each in received(client.queue(self.targets[0])))
        aside = client.queue(f"{QUEUE}-poison").inspect(body=True)
        with suppress(QueueNotFound):  # as long as none was set aside
            out.update(f"aside: {each.text}" for each in aside)
        return out


class Results(IntoTable):
    """Messages are completed or set aside here; each outcome is a row."""

    def _add(self, client: Client, part: int) -> None:
        queue = client.queue(QUEUE)
        super()._add(client, part)
        taken = queue.receive(_PART, visibility_timeout_s=_DRAIN_S)
        queue.complete_many(
            [
                Completion(each, {"output": each.text})
                for place, each in enumerate(taken)
                if place % 4
            ]
        )
        for each in taken[::4]:
            queue.bury(each, error=each.text)

    def feed(self, client: Client) -> None:
        """Go on as long as the table is not far behind."""
        if (self.expected - self.found(client)).total() < 2 * _PART:
            super().feed(client)

    def is_done(self, client: Client) -> bool:
        """Tell whether the table has as many rows as there must be."""
        return self.found(client).total() >= self.expected.total()


class LateWork(Work):
    """Work that takes longer than its lease, in one queue after another; the timeouts are doubled.

    What must come out is one change of each queue, and one notice of it.
    """

    queues = ()
    has_state = True

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._taken: list[Any] = []
        self._due_s = 0.0
        self._names: list[str] = []

    def feed(self, client: Client) -> None:
        """End the work that was begun, when it is late; begin some in another queue."""
        if self._taken and time.monotonic() > self._due_s:
            handle = client.queue(self._names[-1])
            for each in self._taken:
                handle.complete(each)
            self._taken = []
            told = {f"{handle.name}: {LEASE_S} -> {2 * LEASE_S}", f"{handle.name}: told"}
            self.expected.update(told)
        elif not self._taken and len(self._names) - self._changed(client) < 2:
            self._add(client, len(self._names))

    def _add(self, client: Client, part: int) -> None:
        handle = client.queue(f"round-{part}")
        handle.create(settings={"visibility_timeout_s": LEASE_S})
        self._names.append(handle.name)
        for number in range(_PART):
            handle.put(b"x", type=f"kind-{number % 2}")
        self.put += _PART
        self._taken = handle.receive(_PART)
        self._due_s = time.monotonic() + _LATE_S

    def finish(self, client: Client) -> None:
        """End the work that was begun."""
        while self._taken:
            time.sleep(_LATE_S / 10)
            self.feed(client)

    def is_done(self, client: Client) -> bool:
        """Tell whether everything that must come is there."""
        return self.found(client).total() >= self.expected.total()

    def _changed(self, client: Client) -> int:
        return sum(client.queue(name).info().settings.advised is not None for name in self._names)

    def found(self, client: Client) -> Counter[str]:
        """Return the changes, and those that were told."""
        found: Counter[str] = Counter()
        for each in client.events():
            # Changes by people would be of another form; the rest is why.
            name, _, change = (each.reason or "").partition(";")[0].partition(": ")
            if name == "visibility_timeout_s":
                found[f"{each.queue}: {change}"] += 1
        for queue in self._names:
            try:
                notices = client.queue(queue + NOTICES).peek(32)
            except QueueNotFound:
                continue
            for notice in notices:
                told = json.loads(notice.body)
                right = (told["old_s"], told["new_s"]) == (LEASE_S, 2 * LEASE_S)
                found[f"{queue}: told" if right else f"{queue}: {notice.text}"] += 1
        return found


# --- with state ----------------------------------------------------------------------------------


class Stateful(Work):
    """Of an example that keeps state: the results go to a queue."""

    has_state = True
    name: ClassVar[str]

    @property
    def targets(self) -> Sequence[str]:
        """The queue of the results."""
        return (f"{self.name}-results",)

    def found(self, client: Client) -> Counter[str]:
        """Return the results, each in one form of JSON."""
        out = client.queue(self.targets[0])
        return Counter(_line(json.loads(each.text)) for each in received(out))

    def is_done(self, client: Client) -> bool:
        """Tell whether as many results are there as must be, and all is completed."""
        there = client.queue(self.targets[0]).counts().total
        return super().is_done(client) and there >= self.expected.total()

    def _least(self) -> int:
        return 1  # later parts would make those late that are not done

    def _expect(self, *results: dict[str, Any]) -> None:
        self.expected.update(map(_line, results))

    def _send_json(self, client: Client, queue: str, *bodies: dict[str, Any]) -> None:
        self._send(client.queue(queue), [json.dumps(body) for body in bodies])


class Duplicates(Stateful):
    """Ten clicks, each three times; half of them came in the part before."""

    name = "unique"
    queues = ("clicks",)

    def _add(self, client: Client, part: int) -> None:
        numbers = range(5 * part, 5 * part + 10)
        clicks = [{"id": f"click-{number}", "page": "/"} for number in numbers]
        self._send_json(client, "clicks", *clicks * 3)
        self._expect(*(clicks[5:] if part else clicks))

    def _least(self) -> int:
        return _PART


class Sessions(Stateful):
    """A session of three visits for each of five users, an hour after the one before."""

    name = "sessions"
    queues = ("visits",)

    def _add(self, client: Client, part: int) -> None:
        begin = _BEGIN + timedelta(hours=part)
        times = [begin + timedelta(minutes=each) for each in (0, 4, 8)]
        users = [f"user-{number}" for number in range(5)]
        for time_of in times:
            self._send_json(client, "visits", *({"user": u, "at": _at(time_of)} for u in users))
        told = {"first_ms": _ms(times[0]), "last_ms": _ms(times[-1]), "events": len(times)}
        self._expect(*({"user": user, **told} for user in users))

    def finish(self, client: Client) -> None:
        """Let the time pass: the session that this begins is never over."""
        self._send_json(client, "visits", {"user": "last", "at": _at(_BEGIN + _FAR)})


class Join(Stateful):
    """Ten orders and the payments of nine, half an hour after those before."""

    name = "payments"
    queues = ("orders", "payments")

    def _add(self, client: Client, part: int) -> None:
        now = _BEGIN + timedelta(minutes=30 * part)
        ids = [f"{part}-{number}" for number in range(10)]
        self._send_json(client, "orders", *({**_of(each), "at": _at(now)} for each in ids))
        paid = _at(now + timedelta(minutes=1))
        self._send_json(client, "payments", *({**_of(each), "at": paid} for each in ids[1:]))
        self._expect({"order_id": ids[0], "status": "unpaid", "ordered": 5.0})
        amounts = {"ordered": 5.0, "paid": 5.0}
        self._expect(*({"order_id": each, "status": "paid", **amounts} for each in ids[1:]))

    def finish(self, client: Client) -> None:
        """Let the time pass: what this begins waits for ever."""
        for queue in self.queues:
            self._send_json(client, queue, {**_of(f"last of {queue}"), "at": _at(_BEGIN + _FAR)})


def _of(order: str) -> dict[str, Any]:
    return {"order_id": order, "amount": 5}


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _ms(moment: datetime) -> int:
    return round(1000 * moment.timestamp())


def _line(result: dict[str, Any]) -> str:
    return json.dumps(result, sort_keys=True)


# --- reading -------------------------------------------------------------------------------------


def received(queue: QueueHandle) -> Iterator[Any]:
    """Yield all messages that a worker would get."""
    while taken := queue.receive(1_000, visibility_timeout_s=_DRAIN_S):
        yield from taken


def rows_of(table: Path) -> Iterator[str]:
    """Yield the rows of the files that the log of Spark's sink says belong to the table."""
    names: set[str] = set()
    for path in (table / "_spark_metadata").glob("[0-9]*"):
        entries = path.read_text().splitlines()[1:]
        names |= {json.loads(entry)["path"].rpartition("/")[2] for entry in entries}
    for name in sorted(names):
        yield from _told(table / name)


def _told(path: Path) -> list[str]:
    told: list[str] = pq.ParquetFile(path).read(["told"])["told"].to_pylist()
    return told


WORK: Final[dict[str, Callable[[Path], Work]]] = {
    "queue to Parquet": IntoTable,
    "queue to Delta": IntoDelta,
    "queue to queue": IntoQueue,
    "results stream": Results,
    "feedback": LateWork,
    "DataFrame form": ThroughPipeline,
    "duplicates": Duplicates,
    "sessions": Sessions,
    "join": Join,
}
PLANTED: Final[dict[str, Callable[[Path], Work]]] = {
    "planted: appends again": IntoPlainTable,
    "planted: notes too early": IntoPlainTable,
}
