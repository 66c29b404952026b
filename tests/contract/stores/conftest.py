"""The stores that the contract holds for, and shorthand for asking them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain import sessions as s
from leasehold.domain import transactions as sg
from leasehold.domain.command import AnyCommand
from leasehold.domain.filters import MessageFilter
from leasehold.domain.model import ErrorReport, Lease, Message, MessageState, Outcome
from leasehold.domain.queue_settings import FailurePolicy, LapsedReceipts, QueueSettings
from leasehold.stores.base import Store
from leasehold.stores.memory import MemoryStore
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock
from tests.postgres import open_empty
from tests.sqlite import as_new, folder_in_memory

ACCOUNT = "coho"
QUEUE = "videos"
POISON = "videos-poison"
STREAM = "nightly"
STEPS = 100
"""More steps or pages than any test needs; one that needs them all does not end."""


class Asker:
    """One store and one clock; each call is a batch of its own unless said otherwise."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self._drawn = 0

    def batch(self, *commands: AnyCommand) -> list[c.Result]:
        results = self.store.execute(commands, now_ms=self.clock.now_ms())
        self.store.commit()
        return results

    def ask(self, command: AnyCommand) -> Any:
        return self.batch(command)[0]

    def put_command(self, body: bytes | str = b"work", **fields: Any) -> c.Put:
        self._drawn += 1
        settings: dict[str, Any] = {
            "account": ACCOUNT,
            "queue": QUEUE,
            "delay_s": 0,
            "time_to_live_s": 604_800,
            "entropy": self._drawn.to_bytes(10, "big"),
        }
        return c.Put(body=body.encode() if isinstance(body, str) else body, **(settings | fields))

    def create(self, queue: str = QUEUE, account: str = ACCOUNT, **metadata: str) -> Any:
        return self.ask(c.CreateQueue(account, queue, metadata))

    def create_strict(self) -> None:
        """Put a queue under the strict rule in place of the one that is there."""
        self.ask(c.DeleteQueue(ACCOUNT, QUEUE))
        strict = QueueSettings(lapsed_receipts=LapsedReceipts.STRICT)
        created = self.ask(c.CreateQueue(ACCOUNT, QUEUE, {}, strict))
        assert created == c.QueueCreated(created=True)

    def put(self, body: bytes | str = b"work", **fields: Any) -> Any:
        return self.ask(self.put_command(body, **fields))

    def govern(self, queue: str = QUEUE, **settings: Any) -> None:
        """Give a queue these settings, and the defaults for all others."""
        command = c.SetQueueSettings(ACCOUNT, queue, QueueSettings(**settings))
        assert self.ask(command) == c.DONE

    def limit_failures(self, **policy: Any) -> None:
        """Give the queue a failure policy."""
        self.govern(failure_policy=FailurePolicy(**policy))

    def receive(
        self,
        limit: int = 1,
        lease_s: int | None = 30,
        queue: str = QUEUE,
        holder: str | None = None,
    ) -> Any:
        return self.ask(c.Receive(ACCOUNT, queue, limit, lease_s, holder))

    def receive_one(
        self, lease_s: int | None = 30, queue: str = QUEUE, holder: str | None = None
    ) -> Lease:
        (lease,) = self.receive(1, lease_s, queue, holder)
        assert isinstance(lease, Lease)
        return lease

    def received(self, limit: int = 32, queue: str = QUEUE) -> list[bytes]:
        """Receive, and return the bodies."""
        return [lease.message.body for lease in self.receive(limit, queue=queue)]

    def peek(self, limit: int = 32, queue: str = QUEUE) -> Any:
        return self.ask(c.Peek(ACCOUNT, queue, limit))

    def bodies(self, limit: int = 32) -> list[bytes]:
        return [message.body for message in self.peek(limit)]

    def renew_command(
        self, lease: Lease, s: int, body: bytes | None = None, queue: str = QUEUE
    ) -> c.Renew:
        return c.Renew(ACCOUNT, queue, lease.message.message_id, lease.receipt, s, body)

    def renew(self, lease: Lease, s: int, body: bytes | None = None) -> Any:
        return self.ask(self.renew_command(lease, s, body))

    def complete_command(self, lease: Lease, queue: str = QUEUE) -> c.Complete:
        return c.Complete(ACCOUNT, queue, lease.message.message_id, lease.receipt)

    def complete(self, lease: Lease, queue: str = QUEUE) -> Any:
        return self.ask(self.complete_command(lease, queue))

    def release_command(
        self, lease: Lease, outcome: Outcome = Outcome.RETURNED, queue: str = QUEUE, **more: Any
    ) -> c.Release:
        named = (ACCOUNT, queue, lease.message.message_id, lease.receipt)
        return c.Release(*named, outcome, **more)

    def release(self, lease: Lease, outcome: Outcome = Outcome.RETURNED, **more: Any) -> Any:
        return self.ask(self.release_command(lease, outcome, **more))

    def fail(self, lease: Lease, text: str = "no such codec", **more: Any) -> Any:
        """Give a message back as failed, with an error report."""
        return self.release(lease, Outcome.FAILED, error=ErrorReport(text=text), **more)

    def bury(self, body: bytes | str, queue: str = QUEUE, **fields: Any) -> Lease:
        """Put a message and send it to the poison queue; return its last lease."""
        put = self.put(body, queue=queue, **fields)
        released = self.release(put, Outcome.BURIED, queue=queue)
        assert released.poisoned == "buried"
        assert isinstance(put, Lease)
        return put

    # --- looking -----------------------------------------------------------------------------

    def inspect(
        self, after: str = "", limit: int = 1000, queue: str = QUEUE, **wanted: Any
    ) -> o.MessagePage:
        """Return one page of the messages that a filter means."""
        states = wanted.pop("states", None)
        states = None if states is None else frozenset(map(MessageState, states))
        wanted_filter = MessageFilter(states=states, **wanted)
        page = self.ask(o.Inspect(ACCOUNT, queue, wanted_filter, after, limit))
        assert isinstance(page, o.MessagePage)
        return page

    def inspected(
        self, limit: int = 1000, queue: str = QUEUE, **wanted: Any
    ) -> list[tuple[bytes, str]]:
        """Return body and state of the messages on all pages."""
        found: list[tuple[bytes, str]] = []
        after = ""
        for _ in range(STEPS):
            page = self.inspect(after, limit, queue, **wanted)
            assert len(page.messages) <= limit
            found += [(seen.message.body, str(seen.state)) for seen in page.messages]
            if page.next_after is None:
                return found
            after = page.next_after
        raise AssertionError("the listing does not end")

    def find(self, lease: Lease, queue: str = QUEUE) -> Any:
        return self.ask(o.FindMessage(ACCOUNT, queue, lease.message.message_id))

    def counts(self, queue: str = QUEUE) -> o.Counts:
        counts = self.ask(o.CountMessages(ACCOUNT, queue))
        assert isinstance(counts, o.Counts)
        assert counts.exact
        return counts

    def split(self, queue: str = QUEUE) -> tuple[int, int, int, int, int]:
        """Return how many are visible, leased, delayed, deferred and poisoned."""
        return self.counts(queue)[:5]

    def due_ms(self, queue: str = QUEUE) -> int | None:
        """Return when a receive may next get something, in milliseconds from now."""
        due = self.ask(o.NextDue(ACCOUNT, queue))
        assert isinstance(due, o.Due)
        return None if due.at_ms is None else due.at_ms - self.clock.now_ms()

    # --- moving ------------------------------------------------------------------------------

    def amend(self, lease: Lease, queue: str = QUEUE, **change: Any) -> Any:
        return self.ask(o.Amend(ACCOUNT, queue, lease.message.message_id, **change))

    def remove(self, lease: Lease, *, force: bool = False) -> Any:
        return self.ask(o.Remove(ACCOUNT, QUEUE, lease.message.message_id, force))

    def end_lease(self, lease: Lease, delay_s: int = 0, reason: str | None = None) -> Any:
        return self.ask(o.EndLease(ACCOUNT, QUEUE, lease.message.message_id, delay_s, reason))

    def start_job(self, kind: o.JobKind, job_id: str = "job", **plan: Any) -> o.Job:
        """Start a job; ``queue`` among *plan* is where, the rest is what."""
        queue = plan.pop("queue", QUEUE)
        job = self.ask(o.StartJob(ACCOUNT, queue, job_id, o.JobPlan(kind=kind, **plan)))
        assert isinstance(job, o.Job)
        return job

    def step(self, limit: int = 100, job_id: str = "job") -> o.Job:
        job = self.ask(o.StepJob(job_id, limit))
        assert isinstance(job, o.Job)
        return job

    def run_job(self, kind: o.JobKind, limit: int = 100, job_id: str = "job", **plan: Any) -> o.Job:
        """Start a job and carry it on until it is over."""
        job = self.start_job(kind, job_id, **plan)
        for _ in range(STEPS):
            if job.state in {o.JobState.DONE, o.JobState.STOPPED}:
                return job
            job = self.step(limit, job_id)
        raise AssertionError("the job does not end")

    # --- claims ------------------------------------------------------------------------------

    def attach(self, stream: str = STREAM, queue: str = QUEUE) -> cl.Stream:
        attached = self.ask(cl.AttachStream(ACCOUNT, queue, stream))
        assert isinstance(attached, cl.Stream)
        return attached

    def stream(self, stream: str = STREAM, queue: str = QUEUE) -> Any:
        return self.ask(cl.GetStream(ACCOUNT, queue, stream))

    def open(self, number: int = 1, limit: int = 100, lease_s: int = 60, **more: Any) -> Any:
        """Open a claim of the stream with its current token, unless another one is given."""
        stream, queue = more.pop("stream", STREAM), more.pop("queue", QUEUE)
        token = more.pop("token", None) or self.stream(stream, queue).token
        return self.ask(cl.OpenClaim(ACCOUNT, queue, stream, token, number, limit, lease_s, **more))

    def claim(self, number: int = 1, limit: int = 100, lease_s: int = 60, **more: Any) -> cl.Claim:
        """Open a claim, and return it."""
        opened = self.open(number, limit, lease_s, **more)
        assert isinstance(opened, cl.Opened), opened
        assert opened.claim is not None
        return opened.claim

    def read_claim(
        self, number: int = 1, part: int = 0, parts: int = 1, limit: int = 1000, **more: Any
    ) -> Any:
        """Return the members of a part, of all its pages, or the error."""
        named = ACCOUNT, more.pop("queue", QUEUE), more.pop("stream", STREAM)
        messages: list[Message] = []
        after = ""
        for _ in range(STEPS):
            page = self.ask(cl.ReadClaim(*named, number, part, parts, after, limit, **more))
            if not isinstance(page, cl.MemberPage):
                return page
            assert len(page.messages) <= limit
            messages += page.messages
            if page.next_after is None:
                return messages
            after = page.next_after
        raise AssertionError("the part does not end")

    def claimed(self, number: int = 1, part: int = 0, parts: int = 1, **more: Any) -> list[bytes]:
        """Return the bodies of the members of a part."""
        return [message.body for message in self.read_claim(number, part, parts, **more)]

    def extend(self, number: int = 1, lease_s: int = 60, **more: Any) -> Any:
        stream, queue = more.pop("stream", STREAM), more.pop("queue", QUEUE)
        token = more.pop("token", None) or self.stream(stream, queue).token
        return self.ask(cl.ExtendClaim(ACCOUNT, queue, stream, token, number, lease_s, **more))

    def settle(self, upto: int = 1, **more: Any) -> Any:
        stream, queue = more.pop("stream", STREAM), more.pop("queue", QUEUE)
        token = more.pop("token", None) or self.stream(stream, queue).token
        return self.ask(cl.SettleClaims(ACCOUNT, queue, stream, token, upto, **more))

    def exempt(self, *exemptions: cl.Exemption, number: int = 1, **more: Any) -> Any:
        """Note exemptions of members of a claim."""
        stream, queue = more.pop("stream", STREAM), more.pop("queue", QUEUE)
        token = more.pop("token", None) or self.stream(stream, queue).token
        anew = more.pop("replace", False)
        return self.ask(cl.ExemptMembers(ACCOUNT, queue, stream, token, number, exemptions, anew))

    def bind(self, number: int = 1, transaction: str = "tx", **more: Any) -> Any:
        stream, queue = more.pop("stream", STREAM), more.pop("queue", QUEUE)
        token = more.pop("token", None) or self.stream(stream, queue).token
        return self.ask(cl.BindClaim(ACCOUNT, queue, stream, token, number, transaction))

    def exemption(self, body: bytes, number: int = 1, **how: Any) -> cl.Exemption:
        """Return an exemption of the member with that body."""
        (member,) = [each for each in self.read_claim(number) if each.body == body]
        outcome = how.pop("outcome", Outcome.RETURNED)
        return cl.Exemption(number, member.message_id, outcome, **how)

    def give_claim_back(self, number: int = 1, **more: Any) -> Any:
        stream, queue = more.pop("stream", STREAM), more.pop("queue", QUEUE)
        token = more.pop("token", None) or self.stream(stream, queue).token
        return self.ask(cl.GiveBackClaim(ACCOUNT, queue, stream, token, number))

    # --- staging -----------------------------------------------------------------------------

    def stage(
        self, *bodies: bytes | str, name: str = "tx", part: str = "", chunk: int = 0, **more: Any
    ) -> Any:
        """Stage messages with these bodies; what is said besides is for all of them."""
        timeout_s = more.pop("timeout_s", 3_600)
        puts = tuple(self.put_command(body, **more) for body in bodies)
        return self.ask(sg.Stage(ACCOUNT, name, part, chunk, puts, timeout_s))

    def publish(self, name: str = "tx", parts: tuple[str, ...] | None = None) -> Any:
        return self.ask(sg.Publish(ACCOUNT, name, parts))

    def discard(self, name: str = "tx", parts: tuple[str, ...] | None = None) -> Any:
        return self.ask(sg.Discard(ACCOUNT, name, parts))

    def transaction(self, name: str = "tx") -> Any:
        return self.ask(sg.GetTransaction(ACCOUNT, name))

    # --- sessions ----------------------------------------------------------------------------

    def open_session(self, holder: str = "w1", timeout_s: int = 10, **more: Any) -> s.Session:
        self._drawn += 1
        entropy = self._drawn.to_bytes(10, "big")
        session = self.ask(s.OpenSession(ACCOUNT, holder, entropy, timeout_s, **more))
        assert isinstance(session, s.Session)
        return session

    def session(self, session: s.Session) -> Any:
        return self.ask(s.GetSession(ACCOUNT, session.session_id))

    def beat(self, session: s.Session, **progress: Any) -> Any:
        told = progress.get("progress")
        return self.ask(s.Heartbeat(ACCOUNT, session.session_id, told))

    def receive_in(
        self, session: s.Session, limit: int = 1, lease_s: int = 3_600, queue: str = QUEUE
    ) -> Any:
        return self.ask(c.Receive(ACCOUNT, queue, limit, lease_s, None, session.session_id))

    def lose(self, limit: int = 100) -> int:
        swept = self.ask(s.LoseSessions(limit))
        assert isinstance(swept, c.Swept)
        return swept.count

    # --- events ------------------------------------------------------------------------------

    def events(self, after_seq: int = 0, limit: int = 1000, **wanted: Any) -> list[e.Event]:
        """Return the events of all pages."""
        found: list[e.Event] = []
        for _ in range(10_000):
            page = self.ask(e.ReadEvents(after_seq, limit, **wanted))
            assert isinstance(page, e.EventPage)
            found += page.events
            if page.finished:
                return found
            after_seq = page.last_seq
        raise AssertionError("the log does not end")

    def last_seq(self) -> int:
        extent = self.ask(e.LogExtent())
        assert isinstance(extent, e.Extent)
        return extent.last_seq

    def count(self, queue: str = QUEUE) -> int:
        info = self.ask(c.GetQueue(ACCOUNT, queue))
        assert isinstance(info, c.QueueInfo)
        return info.message_count


Opener = Callable[[Path], Store]
STORES: dict[str, Opener] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(as_new(folder), cache_mib=2),
    "postgres": lambda _: open_empty(),
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with folder_in_memory() as folder, closing(STORES[request.param](folder)) as opened:
        yield opened


@pytest.fixture
def empty(store: Store, clock: ManualClock) -> Asker:
    """A store without a queue."""
    return Asker(store, clock)


@pytest.fixture
def asker(empty: Asker) -> Asker:
    """A store with one queue."""
    assert empty.create() == c.QueueCreated(created=True)
    return empty


@pytest.fixture
def claimer(asker: Asker) -> Asker:
    """A store with one queue of five messages, and a stream."""
    for number in range(5):
        asker.put(f"{number}")
    asker.attach()
    return asker
