"""What groups cost, and how fast peers are with theirs.

``python -m benchmarks.groups_speed --out benchmarks/results/groups_speed.json`` measures, in rounds
with all in turn:

- ``store``: the SQLite store alone, a command and eight of a kind at a time, each time with a
  commit, with a million messages waiting (``--messages 10000000`` for more). ``plain`` has no
  groups, ``named`` has 100,000 and a queue without the setting, ``grouped`` the same with order,
  fairness and a limit;
- ``http``: two servers on those stores, ``plain`` and ``grouped``, and eight connections, all of
  which put messages, one each, or receive them, or complete them, or do each in turn (``cycle``):
  requests a second, processor time of the server for each, its memory;
- ``ungrouped``: the same for a queue without groups, of this source (``plain``) and of another
  (``before``) whose checkout ``--before`` names: that of the last commit that knew no groups;
- ``pgmq``: its grouped reads (1.8 and newer) beside the PostgreSQL store on the same PostgreSQL,
  with 10,000 groups in order: one client with a message at a time, one with ten, and eight at once.
  The eight of pgmq have a connection each; those of Leasehold are one batch, as a server makes it;
- ``sqs``: FIFO queues of moto beside the store in memory, both in this process. It stands for
  ElasticMQ, a program for the JVM that neither PyPI nor npm nor Debian has.

``--parts`` chooses; what is not installed is reported as absent.
"""

from __future__ import annotations

import argparse
import http.client
import importlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.fill import format_digest
from benchmarks.load.job import EMULATOR_KEY
from benchmarks.load.process import ServerProcesses
from benchmarks.peers.base import Absent, Subject, SubjectFailed
from benchmarks.peers.postgres import Pgmq, PostgresPlace, published_script
from benchmarks.single import Record
from benchmarks.workspace import DEFAULT, REPOSITORY, Workspace, copy_folder, python
from leasehold.clock import SystemClock
from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.model import ENTROPY_BYTES, NO_DETAIL, Detail, Lease
from leasehold.domain.queue_settings import GroupOrder, GroupSettings, QueueSettings
from leasehold.stores.base import Store
from leasehold.stores.memory.store import MemoryStore
from leasehold.stores.sqlite import SqliteStore

ACCOUNT: Final = "devstoreaccount1"
QUEUE: Final = "bench"
GROUPS: Final = 100_000
PGMQ_GROUPS: Final = 10_000
PGMQ_BACKLOG: Final = 10_000
SQS_GROUPS: Final = 20
SQS_BACKLOG: Final = 200
CONNECTIONS: Final = 8
BODY: Final = b"x" * 200
VERBS: Final = ("put", "receive", "complete", "cycle")
PARTS: Final = ("store", "http", "ungrouped", "pgmq", "sqs")
GROUPED: Final = GroupSettings(order=GroupOrder.FIFO, fair=True, max_in_flight=5)
_CLOCK: Final = SystemClock()
_FILL: Final = 5_000
_PER_S: Final = 2_000
"""About as many requests as a server answers, whatever they are."""
_FILL_THERE: Final = f"""
import sys
from pathlib import Path
from benchmarks.fill import Fill, fill_store
from leasehold.stores.sqlite import SqliteStore
store, messages = SqliteStore(Path(sys.argv[1])), int(sys.argv[2])
fill_store(store, Fill(messages=messages, body_bytes={len(BODY)}, progress=lambda done: None))
store.close()
"""
"""Run with the source of another commit, whose store it fills."""
_LEASE_S: Final = 3_600
_AGE_MS: Final = 3_600_000
_PAIRS: Final = 15
"""Measurements of a verb on either server in a round."""


class Queue:
    """One queue of a store, asked past any server.

    Args:
        store: What it is in.
        groups: How many groups messages that are put name; 0 for none.
    """

    def __init__(self, store: Store, groups: int) -> None:
        self._store, self._groups = store, groups
        self._numbers = itertools.count()
        self._taken = 0

    def create(self) -> None:
        """Create it."""
        self.ask(c.CreateQueue(ACCOUNT, QUEUE, {}))

    def set_groups(self, groups: GroupSettings | None) -> None:
        """Change its settings."""
        self.ask(c.SetQueueSettings(ACCOUNT, QUEUE, QueueSettings(groups=groups)))

    def fill(self, messages: int) -> None:
        """Put messages, an hour old."""
        now_ms = _CLOCK.now_ms() - _AGE_MS
        for number, at in enumerate(range(0, messages, _FILL)):
            batch = [self._put() for _ in range(min(_FILL, messages - at))]
            self.ask(*batch, now_ms=now_ms + number)

    def put(self) -> None:
        """Put one message."""
        self.ask(self._put())

    def cycle(self, clients: int = 1, limit: int = 1) -> int:
        """Let so many clients receive so many each, and complete these; return how many."""
        answers = self.ask(*[c.Receive(ACCOUNT, QUEUE, limit, _LEASE_S)] * clients)
        leases: list[Lease] = [lease for answer in answers for lease in answer]
        self.ask(
            *(
                c.Complete(ACCOUNT, QUEUE, lease.message.message_id, lease.receipt)
                for lease in leases
            )
        )
        self._taken += len(leases)
        return len(leases)

    def timed_cycle(self, clients: int) -> dict[str, float]:
        """Let so many clients put, receive and complete a message; return processor seconds."""
        puts = [self._put() for _ in range(clients)]
        times_s = [time.process_time()]
        self.ask(*puts)
        times_s.append(time.process_time())
        answers = self.ask(*[c.Receive(ACCOUNT, QUEUE, 1, _LEASE_S)] * clients)
        times_s.append(time.process_time())
        leases: list[Lease] = [lease for answer in answers for lease in answer]
        if len(leases) != clients:
            raise SubjectFailed("there are no messages left")
        self.ask(
            *(
                c.Complete(ACCOUNT, QUEUE, lease.message.message_id, lease.receipt)
                for lease in leases
            )
        )
        times_s.append(time.process_time())
        verbs = ("put", "receive", "complete")
        return {verb: times_s[at + 1] - times_s[at] for at, verb in enumerate(verbs)}

    def top_up(self) -> None:
        """Put as many messages as were received."""
        missing, self._taken = self._taken, 0
        self.fill(missing)

    def ask(self, *commands: Any, now_ms: int | None = None) -> list[Any]:
        """Carry commands out as one batch."""
        results = self._store.execute(commands, now_ms=now_ms or _CLOCK.now_ms())
        self._store.commit()
        for each in results:
            if isinstance(each, LeaseholdError):
                raise each
        return list(results)

    def _put(self) -> c.Put:
        number = next(self._numbers)
        detail = Detail(group_id=f"group-{number % self._groups}") if self._groups else NO_DETAIL
        entropy = os.urandom(ENTROPY_BYTES)
        return c.Put(ACCOUNT, QUEUE, BODY, 0, 10**9, entropy, detail)


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each figure, over the rounds that have it."""
    return {
        name: statistics.median(each[name] for each in rounds if name in each) for name in rounds[0]
    }


# --- our own -----------------------------------------------------------------------------------


def fill(folder: Path, messages: int, groups: int) -> None:
    """Make a store with a backlog."""
    store = SqliteStore(folder)
    try:
        queue = Queue(store, groups)
        queue.create()
        queue.fill(messages)
    finally:
        store.close()


def filled(workspace: Workspace, messages: int, groups: int) -> Path:
    """Return the folder of a store with a backlog, made now if no run has left one."""
    folder = workspace.fills / f"groups-{messages}-{groups}-{format_digest()}"
    if not folder.with_suffix(".done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        fill(folder, messages, groups)
        folder.with_suffix(".done").touch()
    return folder


def measure_store(workspace: Workspace, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the store alone: processor time for each message, and that beside ``plain``."""
    rounds: list[dict[str, float]] = []
    kinds = {"plain": (0, None), "named": (GROUPS, None), "grouped": (GROUPS, GROUPED)}
    with ExitStack() as stack:
        queues: dict[str, Queue] = {}
        for name, (groups, settings) in kinds.items():
            folder = workspace.run / f"store-{name}"
            copy_folder(filled(workspace, options.messages, groups), folder)
            store = SqliteStore(folder)
            stack.callback(store.close)
            queues[name] = queue = Queue(store, groups)
            queue.set_groups(settings)
            queue.cycle()  # the first one finds out whose turn it is
        for _ in range(options.rounds):
            found: dict[str, float] = {}
            for clients in (1, CONNECTIONS):
                spent: dict[str, list[float]] = {}
                until_s = time.perf_counter() + options.seconds * len(kinds)
                while time.perf_counter() < until_s:
                    for name, queue in queues.items():
                        for _ in range(_PAIRS):
                            for verb, cpu_s in queue.timed_cycle(clients).items():
                                each = f"{name}_{verb}_of_{clients}"
                                spent.setdefault(each, []).append(cpu_s / clients * 1e6)
                middle = {name: statistics.median(each) for name, each in spent.items()}
                for name, cpu_us in middle.items():
                    kind, _, verb = name.partition("_")
                    found[f"{name}_cpu_us"] = cpu_us
                    if kind != "plain":
                        found[f"{name}_ratio"] = cpu_us / middle[f"plain_{verb}"]
            rounds.append(found)
            say("store", found)
    return {"rounds": rounds, "summary": medians(rounds)}


class Connection:
    """One connection to a server, which puts, receives and completes a message at a time."""

    def __init__(self, port: int, groups: int, number: int) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._groups, self._next = groups, number * 7_919
        self._leased: list[dict[str, Any]] = []

    def close(self) -> None:
        """Close it."""
        self._link.close()

    def put(self) -> None:
        """Put one message."""
        message: dict[str, Any] = {"body": BODY.decode()}
        if self._groups:
            self._next += 31
            message["group_id"] = f"group-{self._next % self._groups}"
        self._ask("", {"messages": [message]})

    def receive(self) -> None:
        """Receive one message; there must be one."""
        (taken,) = self._ask("/receive", {"max_messages": 1})["messages"]
        self._leased.append({"id": taken["id"], "receipt": taken["receipt"]})

    def complete(self) -> None:
        """Complete the message that was received first."""
        self._ask("/complete", {"items": [self._leased.pop(0)]})

    def cycle(self) -> None:
        """Put, receive and complete."""
        self.put()
        self.receive()
        self.complete()

    def _ask(self, path: str, content: Any) -> Any:
        base = f"/v1/accounts/{ACCOUNT}/queues/{QUEUE}/messages"
        headers = {"content-type": "application/json", "authorization": f"Bearer {EMULATOR_KEY}"}
        self._link.request("POST", base + path, json.dumps(content), headers)
        answer = self._link.getresponse()
        body = answer.read()
        if answer.status >= 300:
            raise SubjectFailed(f"{answer.status}: {body!r}")
        return json.loads(body) if body else None


class Server(Subject):
    """``leasehold serve`` on a folder, and connections to it."""

    def __init__(
        self,
        name: str,
        workspace: Workspace,
        folder: Path,
        groups: int,
        checkout: Path = REPOSITORY,
    ) -> None:
        super().__init__(name, f"Leasehold, {name}", workspace)
        self._data = folder
        self._source = checkout / "src"
        self._groups = groups
        self._connections: list[Connection] = []

    def prepare(self) -> None:
        """See :class:`Subject`."""

    def command(self) -> list[str]:
        """See :class:`Subject`."""
        return [
            *("env", f"PYTHONPATH={self._source}"),
            *python("-m", "leasehold.cli", "serve", "--host", "127.0.0.1"),
            *("--port", str(self.port), "--mns-port", "0", "--data", str(self._data)),
        ]

    def is_ready(self) -> bool:
        """See :class:`Subject`."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            link.request("GET", "/readyz")
            return link.getresponse().status == 200
        except (http.client.HTTPException, OSError):
            return False
        finally:
            link.close()

    def connect(self) -> None:
        """Open the connections, and let the server find out whose turn it is."""
        self._connections = [
            Connection(self.port, self._groups, number) for number in range(CONNECTIONS)
        ]
        self.do("cycle", 20)

    def disconnect(self) -> None:
        """Close them."""
        for each in self._connections:
            each.close()

    def do(self, verb: str, times: int) -> tuple[float, float]:
        """Let each connection do a verb so many times; return processor and other seconds."""
        process = ServerProcesses(self.pids)

        def run(connection: Connection) -> None:
            for _ in range(times):
                getattr(connection, verb)()

        cpu_s, began_s = process.cpu_s(), time.perf_counter()
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for job in [pool.submit(run, each) for each in self._connections]:
                job.result()
        return process.cpu_s() - cpu_s, time.perf_counter() - began_s

    def resident_mb(self) -> float:
        """Return how much memory the server has."""
        memory = ServerProcesses(self.pids).memory()
        assert memory is not None
        return memory.resident / 1e6


def measure_http(workspace: Workspace, options: argparse.Namespace) -> dict[str, Any]:
    """Measure servers."""
    with ExitStack() as stack:
        servers: list[Server] = []
        for name, groups in (("plain", 0), ("grouped", GROUPS)):
            folder = workspace.run / f"http-{name}"
            copy_folder(filled(workspace, options.messages, groups), folder)
            store = SqliteStore(folder)
            Queue(store, groups).set_groups(GROUPED if groups else None)
            store.close()
            servers.append(started(stack, Server(name, workspace, folder, groups)))
        return compare(options, *servers)


def measure_ungrouped(workspace: Workspace, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a queue without groups, with the source of before and with this one."""
    if options.before is None:
        raise Absent("no other source was given (--before FOLDER)")
    with ExitStack() as stack:
        servers: list[Server] = []
        for name, checkout in (("before", options.before.resolve()), ("plain", REPOSITORY)):
            folder = workspace.run / f"ungrouped-{name}"
            server = Server(name, workspace, folder, 0, checkout)
            paths = os.pathsep.join(map(str, (checkout, checkout / "src")))
            subprocess.run(
                python("-c", _FILL_THERE, str(folder), str(options.messages)),
                check=True,
                cwd=checkout,
                env={**os.environ, "PYTHONPATH": paths},
            )
            servers.append(started(stack, server))
        return compare(options, *servers)


def started(stack: ExitStack, server: Server) -> Server:
    """Start a server and connect to it, until the stack is left."""
    stack.callback(server.stop)
    server.start()
    stack.callback(server.disconnect)
    server.connect()
    return server


def compare(options: argparse.Namespace, first: Server, second: Server) -> dict[str, Any]:
    """Measure each verb on two servers by turns.

    A ratio is that of the second to the first, the median of those of short pairs: what else the
    machine does changes from one second to the next, and meets both of a pair alike.
    """
    rounds: list[dict[str, float]] = []
    times = max(1, round(options.seconds * _PER_S / CONNECTIONS / _PAIRS))
    for _ in range(options.rounds):
        found: dict[str, float] = {}
        for verb in VERBS:
            asked = times * CONNECTIONS * (3 if verb == "cycle" else 1)
            cpu_us: dict[str, list[float]] = {first.name: [], second.name: []}
            wall_s: dict[str, list[float]] = {first.name: [], second.name: []}
            for number in range(_PAIRS):
                for server in (first, second) if number % 2 else (second, first):
                    spent_s, took_s = server.do(verb, times)
                    cpu_us[server.name].append(spent_s / asked * 1e6)
                    wall_s[server.name].append(took_s)
            for name in (first.name, second.name):
                found[f"{name}_{verb}_cpu_us"] = statistics.median(cpu_us[name])
                found[f"{name}_{verb}_per_s"] = asked / statistics.median(wall_s[name])
            for figure, spent in (("cpu", cpu_us), ("wall", wall_s)):
                pairs = zip(spent[first.name], spent[second.name], strict=True)
                ratio = statistics.median(two / one for one, two in pairs)
                found[f"{verb}_{figure}_ratio"] = ratio
        for server in (first, second):
            found[f"{server.name}_resident_mb"] = server.resident_mb()
        rounds.append(found)
        say("http", found)
    return {"rounds": rounds, "summary": medians(rounds)}


# --- beside pgmq -------------------------------------------------------------------------------


PGMQ_READS: Final = ("read_grouped", "read_grouped_rr")
_SLOW: Final = {"read_grouped"}
"""One call takes seconds: it is measured once."""
_PGMQ_FILL: Final = """
    SELECT count(*) FROM (SELECT pgmq.send_batch('bench',
        array_agg(jsonb_build_object('n', n)),
        array_agg(jsonb_build_object('x-pgmq-group', 'group-' || n % {groups})))
        FROM generate_series({first}, {last}) AS n) AS sent"""


def pgmq_cycle(link: Any, read: str, limit: int) -> int:
    """Read from pgmq, and delete that; return how many."""
    query = f"SELECT msg_id FROM pgmq.{read}('bench', {_LEASE_S}, {limit})"
    taken = [number for (number,) in link.execute(query).fetchall()]
    if taken:
        link.execute("SELECT pgmq.delete('bench', %s::bigint[])", (taken,))
    return len(taken)


def top_up(link: Any) -> None:
    """Put into pgmq what is missing of the backlog."""
    ((there,),) = link.execute("SELECT count(*) FROM pgmq.q_bench").fetchall()
    if there < PGMQ_BACKLOG:
        bounds = {"groups": PGMQ_GROUPS, "first": there, "last": PGMQ_BACKLOG - 1}
        link.execute(_PGMQ_FILL.format(**bounds).encode())


@contextmanager
def on_postgres(workspace: Workspace, sql: Path) -> Iterator[tuple[Pgmq, Queue]]:
    """Have pgmq and a store on one PostgreSQL, with the same backlog."""
    import psycopg  # noqa: PLC0415 - an optional peer's driver

    from leasehold.stores.postgres import PostgresStore  # noqa: PLC0415 - needs the driver

    pgmq = Pgmq("pgmq", "pgmq", workspace, PostgresPlace(pgmq_sql=sql))
    pgmq.prepare()
    with ExitStack() as stack:
        stack.callback(pgmq.stop)
        pgmq.start()
        with psycopg.connect(pgmq.conninfo, autocommit=True) as link:
            link.execute("SELECT pgmq.create('bench')")
            link.execute("SELECT pgmq.create_fifo_index('bench')")
            top_up(link)
        host, port, user, _ = (part.split("=", 1)[1] for part in pgmq.conninfo.split())
        store = PostgresStore(f"postgresql://{user}@/postgres?host={host}&port={port}", name="own")
        stack.callback(store.close)
        queue = Queue(store, PGMQ_GROUPS)
        queue.create()
        queue.set_groups(replace(GROUPED, max_in_flight=None))
        queue.fill(PGMQ_BACKLOG)
        with psycopg.connect(pgmq.conninfo, autocommit=True) as link:
            link.execute("VACUUM ANALYZE")
            link.execute("CHECKPOINT")
        queue.cycle()
        yield pgmq, queue


def measure_pgmq(workspace: Workspace, options: argparse.Namespace) -> dict[str, Any]:
    """Measure grouped reads: messages a second, each received and completed."""
    import psycopg  # noqa: PLC0415 - an optional peer's driver

    rounds: list[dict[str, float]] = []
    with on_postgres(workspace, options.pgmq_sql) as (pgmq, queue), ExitStack() as stack:
        links = [
            stack.enter_context(psycopg.connect(pgmq.conninfo, autocommit=True))
            for _ in range(CONNECTIONS)
        ]
        for _ in range(options.rounds):
            found: dict[str, float] = {}
            for name, clients, limit in (("one", 1, 1), ("ten", 1, 10), ("eight", 8, 1)):
                queue.top_up()
                top_up(links[0])
                found[f"leasehold_{name}_per_s"] = rate_of(
                    [partial(queue.cycle, clients, limit)], options.seconds
                )
                for read in PGMQ_READS:
                    if read in _SLOW and (rounds or clients > 1):
                        continue
                    works = [partial(pgmq_cycle, at, read, limit) for at in links[:clients]]
                    found[f"pgmq_{read}_{name}_per_s"] = rate_of(works, options.seconds)
            rounds.append(found)
            say("pgmq", found)
        version = pgmq.version
    return {
        "version": version,
        "script": version_of(options.pgmq_sql),
        "groups": PGMQ_GROUPS,
        "backlog": PGMQ_BACKLOG,
        "rounds": rounds,
        "summary": medians(rounds),
    }


def version_of(script: Path) -> str | None:
    """Return the version of pgmq that a file beside its script names, if there is one."""
    beside = script.with_name(f"{script.name}.version")
    return beside.read_text().strip() if beside.exists() else None


def rate_of(works: Sequence[Callable[[], int]], seconds: float) -> float:
    """Do each of *works* on a thread of its own, again and again; return what all did a second."""
    began_s = time.perf_counter()

    def run(work: Callable[[], int]) -> int:
        done = 0
        while time.perf_counter() - began_s < seconds:
            done += work()
        return done

    with ThreadPoolExecutor(len(works)) as pool:
        done = sum(pool.map(run, works))
    return done / (time.perf_counter() - began_s)


# --- beside moto -------------------------------------------------------------------------------


def measure_sqs(_workspace: Workspace, options: argparse.Namespace) -> dict[str, Any]:
    """Measure FIFO queues in memory: messages a second, each received and completed."""
    try:
        moto = importlib.import_module("moto")
        models = importlib.import_module("moto.sqs.models")
    except ImportError as error:
        raise Absent(f"moto is not installed: {error}") from error
    rounds: list[dict[str, float]] = []
    for _ in range(options.rounds):
        backend = models.SQSBackend("eu-west-1", "123456789012")
        backend.create_queue("bench.fifo", {}, FifoQueue="true", ContentBasedDeduplication="false")
        for n in range(SQS_BACKLOG):
            backend.send_message(
                "bench.fifo", "x", deduplication_id=str(n), group_id=f"g{n % SQS_GROUPS}"
            )
        queue = Queue(MemoryStore(), SQS_GROUPS)
        queue.create()
        queue.set_groups(GROUPED)
        queue.fill(SQS_BACKLOG)

        def moto_cycle(backend: Any = backend) -> int:
            taken = backend.receive_message("bench.fifo", 1, 0, _LEASE_S)
            for each in taken:
                backend.delete_message("bench.fifo", each.receipt_handle)
            return len(taken)

        found = {
            "leasehold_per_s": drain(queue.cycle, SQS_BACKLOG // 2),
            "moto_per_s": drain(moto_cycle, SQS_BACKLOG // 2),
        }
        rounds.append(found)
        say("sqs", found)
    return {"version": f"moto {moto.__version__}", "rounds": rounds, "summary": medians(rounds)}


def drain(work: Callable[[], int], messages: int) -> float:
    """Do *work* until so many messages are done; return how many a second."""
    began_s, done = time.perf_counter(), 0
    while done < messages:
        got = work()
        if not got:
            raise SubjectFailed("it gives nothing")
        done += got
    return done / (time.perf_counter() - began_s)


def say(part: str, found: Mapping[str, float]) -> None:
    """Print one round."""
    print(f"{part}:", ", ".join(f"{key} {value:,.2f}" for key, value in found.items()), flush=True)


def main() -> None:
    """Measure, print, and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    parser.add_argument("--pgmq-sql", type=Path, default=published_script())
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = Record("groups-speed")
    workspace = Workspace.open(DEFAULT)
    measures = dict(
        zip(
            PARTS,
            (measure_store, measure_http, measure_ungrouped, measure_pgmq, measure_sqs),
            strict=True,
        )
    )
    members: dict[str, Any] = {"messages": options.messages, "groups": GROUPS}
    try:
        for part in options.parts:
            try:
                members[part] = measures[part](workspace, options)
            except (Absent, ImportError, subprocess.SubprocessError) as error:
                members[part] = {"absent": str(error)}
                print(f"{part}: absent: {error}")
    finally:
        workspace.close()
    for part in options.parts:
        for name, value in members[part].get("summary", {}).items():
            print(f"{part:6} {name:40} {value:>12,.2f}")
    if options.out is not None:
        record.write(options.out, members)


if __name__ == "__main__":
    main()
