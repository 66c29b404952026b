"""Several servers on one database in one process, each loaded by a thread of its own."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from leasehold.clock import SystemClock
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import transactions as sg
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError, Unavailable
from leasehold.domain.events import Replay, ReplayedMessage
from leasehold.domain.model import Lease, Message, Outcome
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.connection import Address, connect
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, Asker
from tests.contract.stores.random_work import replayed_and_live
from tests.reliability.postgres_ledger import Ledger
from tests.time_limited import TimeLimitedStore

QUEUES: Final = ("two-a", "two-b", "two-c")
CLAIMED: Final = "two-claimed"
_ALL: Final = (*QUEUES, CLAIMED)
SYSTEM: Final = SystemClock()
_BACK_OFF_S: Final = 0.02
"""Clients wait so long before they ask again for want of an answer."""
_OLD_MS: Final = 20_000
"""Leases that somebody holds are of no use after so long."""


class Clock:
    """The time of all servers."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """Return the time."""
        with self._lock:
            return self._clock.now_ms()

    def advance(self, ms: int) -> None:
        """Let time go by."""
        with self._lock:
            self._clock.advance(ms=ms)

    @property
    def manual(self) -> ManualClock:
        """The clock, for when nobody else looks."""
        return self._clock


@dataclass(slots=True)
class Server(threading.Thread):
    """One store and what its clients do, until *wanted* messages were put by all servers."""

    number: int
    url: str
    seed: int
    clock: Clock
    ledger: Ledger
    wanted: int
    size: int
    """Messages of one batch, at most."""
    broken: list[BaseException] = field(default_factory=list)
    answered_s: float = 0.0
    """When the last batch was answered, on the monotonic clock."""
    store: PostgresStore = field(init=False)
    _rng: random.Random = field(init=False)
    _pause: threading.Event = field(default_factory=threading.Event)
    _names: int = 0
    _held: list[tuple[str, Lease]] = field(default_factory=list)
    _claims: int = 0
    _token: int = 0

    def __post_init__(self) -> None:
        threading.Thread.__init__(self, daemon=True)
        self.store = TimeLimitedStore(self.url, name=f"server{self.number}")
        self._rng = random.Random(f"{self.seed}/{self.number}")

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        """Do a bit of everything; see :class:`threading.Thread`."""
        acts: list[tuple[int, Callable[[], None]]] = [
            (80, self._mixed_batch),
            (3, self._claim),
            (3, self._stage),
            (1, self._sweep),
        ]
        weights = [weight for weight, _ in acts]
        try:
            while self.ledger.counts["put"] < self.wanted:
                (act,) = self._rng.choices([act for _, act in acts], weights)
                act()
                self.clock.advance(self._rng.choice((0, 1, 5, 40)))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.broken.append(error)

    def _ask(self, commands: Sequence[AnyCommand]) -> tuple[list[Any] | None, int]:
        """Return the results, None if there is no answer, and the time."""
        now_ms = self.clock.now_ms()
        try:
            results = self.store.execute(commands, now_ms=now_ms)
            self.store.commit()
        except Unavailable:
            self.ledger.note("no answer")
            self._pause.wait(_BACK_OFF_S)
            return None, now_ms
        self.answered_s = SYSTEM.monotonic_s()
        return results, now_ms

    def _bodies(self, count: int) -> list[bytes]:
        self._names += count
        padding = self._rng.choice((b"", b"", b"", b"x" * 300))
        first = self._names - count
        return [b"%d-%d %s" % (self.number, first + at, padding) for at in range(count)]

    def _put_commands(self, bodies: list[bytes]) -> list[c.Put]:
        queue = self._rng.choice(_ALL)
        delay_s = self._rng.choice((0, 0, 0, 1))
        entropy = self._rng.randbytes
        return [c.Put(ACCOUNT, queue, body, delay_s, 604_800, entropy(10)) for body in bodies]

    # --- queues ------------------------------------------------------------------------------

    def _mixed_batch(self) -> None:
        """Put, receive and settle in one batch, as many clients of one server do."""
        rng = self._rng
        bodies = self._bodies(rng.randint(0, self.size))
        receives = [
            c.Receive(
                ACCOUNT, rng.choice(QUEUES), rng.randint(1, self.size), rng.choice((1, 2, 10))
            )
            for _ in range(rng.randint(0, 3))
        ]
        rng.shuffle(self._held)
        taken = self._held[: rng.randint(0, 2 * self.size)]
        del self._held[: len(taken)]
        settles = [self._settle_command(*each) for each in taken]
        results, now_ms = self._ask([*self._put_commands(bodies), *receives, *settles])
        if results is None:
            self.ledger.put(bodies, known=False)
            completes = [
                lease.message.body
                for (_, lease), command in zip(taken, settles, strict=True)
                if isinstance(command, c.Complete)
            ]
            self.ledger.done(completes, known=False)
            return
        self.ledger.put(bodies)
        rest = results[len(bodies) :]
        for receive, leases in zip(receives, rest, strict=False):
            self.ledger.leased(leases, now_ms)
            # Some are never heard of again: their leases lapse.
            self._held += [(receive.queue, lease) for lease in leases if rng.random() < 0.97]
        settled = zip(taken, settles, rest[len(receives) :], strict=True)
        for (queue, lease), command, result in settled:
            self._note(queue, lease.message, command, result, now_ms)

    def _settle_command(self, queue: str, lease: Lease) -> c.Complete | c.Release | c.Renew:
        named = (ACCOUNT, queue, lease.message.message_id, lease.receipt)
        draw = self._rng.random()
        if draw < 0.85:
            return c.Complete(*named)
        if draw < 0.92:
            return c.Release(*named, Outcome.RETURNED)
        return c.Renew(*named, 5)

    def _note(
        self, queue: str, message: Message, command: AnyCommand, result: Any, now_ms: int
    ) -> None:
        if isinstance(result, LeaseholdError):
            self.ledger.note(type(result).__name__)
        elif isinstance(command, c.Complete):
            self.ledger.done([message.body])
        elif isinstance(command, c.Release):
            self.ledger.released(message.body, message.fence, now_ms)
        else:
            self.ledger.granted(result.message._replace(body=message.body), now_ms, renewed=True)
            self._held.append((queue, result))

    # --- claims and staged sends -------------------------------------------------------------

    def _claim(self) -> None:
        """Open a claim, read it, and settle it, give it back, or let it lapse."""
        stream = f"server{self.number}"
        if not self._token or self._rng.random() < 0.05:
            results, _ = self._ask([cl.AttachStream(ACCOUNT, CLAIMED, stream)])
            if results is None:
                return
            self._token = results[0].token
        results, _ = self._ask([cl.GetStream(ACCOUNT, CLAIMED, stream)])
        if results is None:
            return
        known: cl.Stream = results[0]
        named = (ACCOUNT, CLAIMED, stream, self._token)
        for claim in known.claims:  # of before an answer got lost
            self._ask([cl.GiveBackClaim(*named, claim.number)])
        number = known.last_settled + 1
        results, now_ms = self._ask([cl.OpenClaim(*named, number, 2 * self.size, 5)])
        if results is None or not isinstance(results[0], cl.Opened) or not results[0].claim:
            return
        read = cl.ReadClaim(ACCOUNT, CLAIMED, stream, number, 0, 1, "", 1_000)
        results, _ = self._ask([read])
        if results is None or not isinstance(results[0], cl.MemberPage):
            return
        members = results[0].messages
        for member in members:
            self.ledger.granted(member, now_ms)
        draw = self._rng.random()
        if draw < 0.7:
            self._settle(named, number, members)
        elif draw < 0.9:
            self._ask([cl.GiveBackClaim(*named, number)])

    def _settle(
        self, named: tuple[str, str, str, int], number: int, members: Sequence[Message]
    ) -> None:
        exempt = [each for each in members if self._rng.random() < 0.1]
        exemptions = tuple(
            cl.Exemption(number, each.message_id, Outcome.RETURNED) for each in exempt
        )
        done = [each.body for each in members if each not in exempt]
        results, _ = self._ask([cl.SettleClaims(*named, number, exemptions)])
        if results is None or not isinstance(results[0], LeaseholdError):
            self.ledger.done(done, known=results is not None)
            self.ledger.note("claims settled")

    def _stage(self) -> None:
        """Stage messages; publish them, with or without completing others, or discard them."""
        bodies = self._bodies(self._rng.randint(1, self.size))
        name = f"{self.number}/{self._names}"
        puts = tuple(self._put_commands(bodies))
        results, _ = self._ask([sg.Stage(ACCOUNT, name, "", 0, puts)])
        if results is None:
            return
        draw = self._rng.random()
        if draw < 0.2:
            self._ask([sg.Discard(ACCOUNT, name, None)])
        elif draw < 0.6 or not self._held:
            results, _ = self._ask([sg.Publish(ACCOUNT, name, None)])
            self.ledger.put(bodies, known=results is not None)
        else:
            queue, lease = self._held.pop()
            complete = c.Complete(ACCOUNT, queue, lease.message.message_id, lease.receipt)
            together = sg.CommitTogether(ACCOUNT, (complete,), (name,), f"{name}!")
            results, _ = self._ask([together])
            if results is None:
                self.ledger.put(bodies, known=False)
                self.ledger.done([lease.message.body], known=False)
            elif _was_done(results[0]):
                self.ledger.put(bodies)
                self.ledger.done([lease.message.body])
                self.ledger.note("committed together")

    def _sweep(self) -> None:
        self._ask([cl.LapseClaims(100), c.ReapDropped(10_000), c.RetireExpired(100)])


def _was_done(result: Any) -> bool:
    """Tell whether what was to be committed together was."""
    return isinstance(result, sg.Committed) and result.results == (c.DONE,)


class Load:
    """Several servers on one database, whose connections end now and then.

    Args:
        url: Of the database, with a schema in which there is nothing.
        seed: Of everything that is drawn.
        wanted: Messages to put.
        size: Of batches.
        servers: How many.
    """

    def __init__(self, url: str, seed: int, wanted: int, size: int, servers: int = 3) -> None:
        self.url = url
        self.clock = Clock()
        self.ledger = Ledger()
        self._rng = random.Random(seed)
        self.servers = [
            Server(number, url, seed, self.clock, self.ledger, wanted, size)
            for number in range(servers)
        ]
        self.asker = Asker(self.servers[0].store, self.clock.manual)
        for queue in _ALL:
            assert self.asker.create(queue) == c.QueueCreated(created=True)

    def play(self, kill_every_s: tuple[float, float]) -> None:
        """Load the servers, and end their backends at random, the last one's most often."""
        pause = threading.Event()
        self.start()
        with connect(Address.parse(self.url)) as raw:
            while any(server.is_alive() for server in self.servers):
                pause.wait(self._rng.uniform(*kill_every_s))
                (server,) = self._rng.choices(self.servers, range(1, len(self.servers) + 1))
                writer = server.store._primary.writer
                assert writer is not None
                raw.execute("SELECT pg_terminate_backend($1::int)", (writer.pid,))
                self.ledger.note("backends ended")
        self.join()

    def start(self) -> None:
        """Begin."""
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        """Let no more be put, and wait."""
        for server in self.servers:
            server.wanted = 0
        self.join()

    def join(self) -> None:
        """Wait until all messages were put."""
        for server in self.servers:
            server.join()

    def finish(self) -> list[str]:
        """Return what must not be."""
        found = [repr(error) for server in self.servers for error in server.broken]
        self.clock.advance(_OLD_MS)
        asker = self.asker
        for server in self.servers:
            asker.ask(cl.DeleteStream(ACCOUNT, CLAIMED, f"server{server.number}"))
        staged = sg.ListTransactions(ACCOUNT, sg.TransactionState.STAGED, 10_000)
        for transaction in asker.ask(staged):
            asker.discard(transaction.name)
        asker.ask(c.ReapDropped(10_000_000))
        left = Counter(body for queue in _ALL for body, _ in asker.inspected(10_000, queue))
        found += self.ledger.check(left)
        found += self._miscounted()
        return found

    def _miscounted(self) -> list[str]:
        with connect(Address.parse(self.url)) as raw:
            row = raw.execute("SELECT count(*) FROM message").fetchone()
            assert row is not None
            rows = int(row[0])
        found = []
        for server in self.servers:
            asker = Asker(server.store, self.clock.manual)
            counted = sum(asker.count(queue) for queue in _ALL)
            exact = sum(asker.counts(queue).total for queue in _ALL)
            if counted != rows or exact != rows:
                found.append(f"server {server.number} counts {counted} and {exact} of {rows}")
        return found

    def replayed(self) -> tuple[dict[str, ReplayedMessage], dict[str, ReplayedMessage]]:
        """Return all messages as the log of all servers tells, and as they are."""
        return replayed_and_live(self.asker, Replay())

    def close(self) -> None:
        """Close the stores."""
        for server in self.servers:
            server.store.close()
