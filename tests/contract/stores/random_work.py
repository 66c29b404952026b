"""Random operations of every kind on one store, and its log replayed beside its live state."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain import sessions as s
from leasehold.domain import transactions as sg
from leasehold.domain.claims import Exemption
from leasehold.domain.command import AnyCommand
from leasehold.domain.events import EventType, Replay, ReplayedMessage
from leasehold.domain.filters import EVERYTHING, MessageFilter
from leasehold.domain.groups import HoldGroup, ResumeGroup
from leasehold.domain.model import (
    NEVER_MS,
    NO_DETAIL,
    Detail,
    ErrorReport,
    Lease,
    MessageState,
    Outcome,
    Progress,
)
from leasehold.domain.queue_settings import (
    FailurePolicy,
    GroupOrder,
    GroupPoison,
    GroupSettings,
    LapsedReceipts,
    QueueSettings,
)

from .conftest import ACCOUNT, QUEUE, Asker

QUEUES = (QUEUE, "audio")
STREAMS = ("nightly", "hourly")
OUTCOMES = (Outcome.FAILED, Outcome.INTERRUPTED, Outcome.RETURNED, Outcome.BURIED)
DETAILS = (NO_DETAIL, NO_DETAIL, Detail(message_type="clip"), Detail(properties={"a": "b"}))
ERRORS = (None, ErrorReport(text="no such codec", type="KeyError", fingerprint="f00d"))
SETTINGS = (
    QueueSettings(),
    QueueSettings(lapsed_receipts=LapsedReceipts.STRICT),
    QueueSettings(failure_policy=FailurePolicy(max_failures=2, max_lapses=3)),
    QueueSettings(failure_policy=FailurePolicy(max_deliveries=3, poison_time_to_live_s=60)),
)


GROUPED: Final = "grouped"
HALTING: Final = GroupSettings(order=GroupOrder.FIFO, on_poison=GroupPoison.HALT)


class RandomWork:
    """Plays operations, most of which mean something.

    Args:
        asker: A store with the queue QUEUE.
        rng: Draws everything.
        size: How many messages are put, received or claimed at once, at most.
        groups: Whether a message group stands still and goes on, in a queue of its own.
    """

    def __init__(
        self, asker: Asker, rng: random.Random, size: int = 4, *, groups: bool = False
    ) -> None:
        self._asker = asker
        self._rng = rng
        self._size = size
        self._held: list[tuple[str, Lease]] = []
        self._sessions: list[s.Session] = []
        self._tokens: dict[tuple[str, str], int] = {}
        self._names = 0
        self.alike = 0.0
        """The share of staged chunks whose messages differ by their bodies alone."""
        self.operations = 0
        """Messages put, leased, given back, staged and so on, and other commands."""
        self._queues = (*QUEUES, *(f"{name}-poison" for name in QUEUES))
        self.rare = {EventType.REFUSED, EventType.CLAIM_REOPENED}
        self.rare |= {EventType.QUEUE_PAUSED, EventType.QUEUE_RESUMED}  # which would stop it all
        """Types of events that a short play may be without."""
        asker.create("audio")
        self._with_groups = groups
        if groups:
            asker.create(GROUPED)
            asker.govern(GROUPED, groups=HALTING)
        self._acts: list[tuple[int, Callable[[], None]]] = [
            (20, self._put),
            (20, self._receive),
            (20, self._settle_leases),
            (6, self._claim),
            (5, self._settle_claims),
            (4, self._tend_claim),
            (6, self._stage),
            (4, self._publish),
            (4, self._work_in_session),
            (4, self._operate),
            (2, self._run_job),
            (6, self._sweep),
            (1, self._settings),
        ]
        self._weights = [weight for weight, _ in self._acts]

    def play(self, steps: int) -> None:
        """Play so many steps."""
        if self._with_groups:
            self._stop_a_group()
        for _ in range(steps):
            (act,) = self._rng.choices([act for _, act in self._acts], self._weights)
            act()
            if self._rng.random() < 0.3:
                move_ms = self._rng.choice([1, 999, 1_000, 5_000, 30_000, -400])
                self._asker.clock.advance(ms=move_ms)
        draw = self._rng.random()
        if draw < 0.3:
            self._asker.ask(c.Clear(ACCOUNT, self._queue()))
        elif draw < 0.6:
            queue = self._queue()
            self._asker.ask(c.DeleteQueue(ACCOUNT, queue))
            self._asker.create(queue)
            self._tokens = {key: value for key, value in self._tokens.items() if key[0] != queue}

    def _queue(self) -> str:
        return self._rng.choice(QUEUES)

    def _ask(self, command: AnyCommand, operations: int = 1) -> Any:
        self.operations += operations
        return self._asker.ask(command)

    def _put_commands(self) -> list[c.Put]:
        rng = self._rng
        return [
            self._asker.put_command(
                rng.choice(["a", "b" * 300]),
                queue=self._queue(),
                delay_s=rng.choice([0, 0, 0, 5]),
                time_to_live_s=rng.choice([20, 600, None]),
                priority=rng.choice([8, 8, 3]),
                detail=rng.choice(DETAILS),
            )
            for _ in range(rng.randint(1, self._size))
        ]

    # --- workers -----------------------------------------------------------------------------

    def _put(self) -> None:
        puts = self._put_commands()
        self.operations += len(puts)
        leases = self._asker.batch(*puts)
        if self._rng.random() < 0.2:
            self._held += [
                (put.queue, lease)
                for put, lease in zip(puts, leases, strict=True)
                if isinstance(lease, Lease)
            ]

    def _receive(self) -> None:
        queue = self._rng.choice(self._queues)
        limit, lease_s = self._rng.randint(1, self._size), self._rng.choice([1, 10, 60])
        self._take(queue, c.Receive(ACCOUNT, queue, limit, lease_s, "w1"))

    def _take(self, queue: str, command: c.Receive) -> None:
        leases = self._ask(command, 0)
        if isinstance(leases, tuple):
            self.operations += len(leases)
            self._held += [(queue, lease) for lease in leases]

    def _settle_leases(self) -> None:
        count = min(len(self._held), self._rng.randint(1, self._size))
        commands = []
        for _ in range(count):
            at = self._rng.randrange(len(self._held))
            self._held[at], self._held[-1] = self._held[-1], self._held[at]
            commands.append(self._settle_command(*self._held.pop()))
        self.operations += count
        for command, result in zip(commands, self._asker.batch(*commands), strict=True):
            if isinstance(result, Lease):
                self._held.append((command.queue, result))

    def _settle_command(self, queue: str, lease: Lease) -> c.Complete | c.Release | c.Renew:
        named = (ACCOUNT, queue, lease.message.message_id, lease.receipt)
        draw = self._rng.random()
        if draw < 0.5:
            return c.Complete(*named)
        if draw < 0.8:
            how = self._rng.choice(OUTCOMES), self._rng.choice([None, 5]), self._rng.choice(ERRORS)
            return c.Release(*named, *how)
        saved = self._rng.choice([None, None, "[1]", "[2]", c.REMOVE_SAVED])
        renew = c.Renew(*named, self._rng.choice([0, 10, 60]), saved=saved)
        if self._rng.random() < 0.3:  # the answer to it gets lost
            self._held.append((queue, lease))
        return renew._replace(may_repeat=self._rng.random() < 0.7)

    def _work_in_session(self) -> None:
        rng = self._rng
        if len(self._sessions) < 2:
            watchdog_s = rng.choice([None, 5])
            session = self._asker.open_session(timeout_s=10, progress_timeout_s=watchdog_s)
            self._sessions.append(session)
        session = rng.choice(self._sessions)
        queue = self._queue()
        command = c.Receive(ACCOUNT, queue, self._size, 3_600, None, session.session_id)
        self._take(queue, command)
        told = [lease.message.message_id for _, lease in self._held[-2:]]
        progress = Progress(at_ms=self._asker.clock.now_ms(), fraction=0.5)
        self._asker.beat(session, progress=dict.fromkeys(told, progress))
        if rng.random() < 0.2:
            self._ask(s.EndSession(ACCOUNT, session.session_id, "deploy"))
        if not isinstance(self._asker.beat(session), s.Beat):
            self._sessions.remove(session)

    # --- claims and staged sends -------------------------------------------------------------

    def _stream(self) -> cl.Stream:
        queue, name = self._queue(), self._rng.choice(STREAMS)
        if (queue, name) not in self._tokens or self._rng.random() < 0.05:
            self._tokens[queue, name] = self._asker.attach(name, queue).token
        stream = self._asker.stream(name, queue)
        assert isinstance(stream, cl.Stream)
        return stream

    def _claim(self) -> None:
        stream = self._stream()
        numbers = [claim.number for claim in stream.claims]
        number = max([stream.last_settled, *numbers]) + 1
        if numbers and self._rng.random() < 0.4:
            number = self._rng.choice(numbers)
        limit, lease_s = self._rng.randint(1, 2 * self._size), self._rng.choice([2, 20, 100])
        named = (ACCOUNT, stream.queue, stream.stream, stream.token)
        accept_loss = self._rng.random() < 0.5
        opened = self._ask(
            cl.OpenClaim(*named, number, limit, lease_s, "driver", accept_loss=accept_loss)
        )
        if isinstance(opened, cl.Opened) and opened.claim is not None:
            self.operations += opened.claim.size

    def _settle_claims(self) -> None:
        stream = self._stream()
        if not stream.claims:
            return
        claim = self._rng.choice(stream.claims)
        named = (ACCOUNT, stream.queue, stream.stream)
        exemptions: list[Exemption] = []
        page = self._ask(cl.ReadClaim(*named, claim.number, 0, 1, "", 2))
        if isinstance(page, cl.MemberPage):
            exemptions = [
                Exemption(claim.number, each.message_id, self._rng.choice(OUTCOMES))
                for each in page.messages[: self._rng.randint(0, 2)]
            ]
        sends = tuple(self._put_commands()) if self._rng.random() < 0.3 else ()
        if self._rng.random() < 0.4:
            self._publish_bound(stream, claim, tuple(exemptions))
            return
        command = cl.SettleClaims(
            *named, stream.token, claim.number, tuple(exemptions), sends=sends
        )
        self._ask(command, claim.remaining + len(sends))

    def _publish_bound(
        self, stream: cl.Stream, claim: cl.Claim, exemptions: tuple[Exemption, ...]
    ) -> None:
        """Note exemptions and bind a claim, and publish that; now and then it is fenced before."""
        named = (ACCOUNT, stream.queue, stream.stream, stream.token, claim.number)
        self._ask(cl.ExemptMembers(*named, exemptions))
        if self._rng.random() < 0.2:
            self._ask(cl.ExemptMembers(*named, exemptions[1:], True))
        name = f"t{self._names}"
        self._ask(cl.BindClaim(*named, name))
        if self._rng.random() < 0.2:
            self._asker.attach(stream.stream, stream.queue)
            self._tokens.pop((stream.queue, stream.stream), None)
        self._names += 1
        self._ask(sg.Publish(ACCOUNT, name), claim.remaining)

    def _tend_claim(self) -> None:
        stream = self._stream()
        if not stream.claims:
            return
        claim = self._rng.choice(stream.claims)
        named = (ACCOUNT, stream.queue, stream.stream, stream.token, claim.number)
        draw = self._rng.random()
        if draw < 0.5:
            self._ask(cl.ExtendClaim(*named, 20, park=draw < 0.1))
        elif draw < 0.9:
            self._ask(cl.GiveBackClaim(*named), claim.remaining)
        else:
            self._ask(cl.DeleteStream(*named[:3]))
            del self._tokens[stream.queue, stream.stream]

    def _stage(self) -> None:
        self._names += self._rng.random() < 0.5
        puts: Sequence[c.Put] = tuple(self._put_commands())
        if self.alike and self._rng.random() < self.alike:
            count = self._rng.randint(1, 20)
            bodies = [self._rng.randbytes(self._rng.randint(257, 600)) for _ in range(count)]
            drawn, queue = self._rng.randbytes(10 * count), self._queue()
            puts = sg.AlikePuts(ACCOUNT, queue, bodies, drawn, 0, 600, NO_DETAIL, 8)
        part = self._rng.choice(["p", "q"])
        command = sg.Stage(ACCOUNT, f"t{self._names}", part, 0, puts, self._rng.choice([5, 600]))
        self._ask(command, len(puts))

    def _publish(self) -> None:
        rng = self._rng
        name = f"t{rng.randint(max(0, self._names - 3), self._names)}"
        parts = rng.choice([None, None, ("p",), ()])
        draw = rng.random()
        if draw < 0.5:
            self._ask(sg.Publish(ACCOUNT, name, parts))
        elif draw < 0.7:
            self._ask(sg.Discard(ACCOUNT, name, parts))
        else:
            held = self._held.pop() if self._held else None
            commands = [] if held is None else [self._settle_command(*held)]
            command = sg.CommitTogether(ACCOUNT, tuple(commands), (name,), f"{name}!")
            self._ask(command)

    # --- those who look after queues ---------------------------------------------------------

    def _operate(self) -> None:
        rng = self._rng
        queue = rng.choice(self._queues)
        page = self._ask(o.Inspect(ACCOUNT, queue, EVERYTHING, "", 20))
        if not isinstance(page, o.MessagePage) or not page.messages:
            return
        leased = [seen for seen in page.messages if seen.state is MessageState.LEASED]
        chosen = rng.choice(leased if leased and rng.random() < 0.7 else page.messages)
        named = (ACCOUNT, queue, chosen.message.message_id)
        commands: list[AnyCommand] = [
            o.Amend(*named, delay_s=5, priority=3, force=rng.random() < 0.5),
            o.Remove(*named, force=rng.random() < 0.5),
            o.EndLease(*named),
            s.RequestCancel(*named, "stop"),
        ]
        self._ask(rng.choice(commands))

    def _run_job(self) -> None:
        rng = self._rng
        self._names += 1
        kind = rng.choice([o.JobKind.REDRIVE, o.JobKind.REDRIVE, o.JobKind.PURGE])
        text = "b" if kind is o.JobKind.PURGE else None
        plan = o.JobPlan(kind=kind, filter=MessageFilter(text=text))
        job_id = f"job{self._names}"
        self._ask(o.StartJob(ACCOUNT, self._queue(), job_id, plan))
        self._ask(o.StepJob(job_id, self._size), self._size)

    def _sweep(self) -> None:
        now_ms = self._asker.clock.now_ms()
        self._asker.batch(
            c.RetireExpired(self._size),
            c.RemoveRetired(now_ms, self._size),
            cl.LapseClaims(self._size),
            sg.ExpireStaged(1),
            s.LoseSessions(self._size),
            c.ReapDropped(100 * self._size),
        )

    def _stop_a_group(self) -> None:
        """Have a message poisoned, so that its group stands still, and go on."""
        queue = GROUPED
        self._asker.put(queue=queue, detail=Detail(group_id="a"))
        lease = self._asker.receive_one(queue=queue)
        self._asker.release(lease, Outcome.BURIED, queue=queue)
        self._asker.ask(ResumeGroup(ACCOUNT, queue, "a"))
        session = self._asker.open_session().session_id
        self._asker.ask(HoldGroup(ACCOUNT, queue, session, "a"))
        self._asker.ask(s.EndSession(ACCOUNT, session))

    def _settings(self) -> None:
        command = c.SetQueueSettings(ACCOUNT, self._queue(), self._rng.choice(SETTINGS))
        self._ask(command)


def replayed_and_live(
    asker: Asker, replay: Replay | None = None, after_seq: int = 0
) -> tuple[dict[str, ReplayedMessage], dict[str, ReplayedMessage]]:
    """Return all messages by id, as their events tell, and as the store does.

    What has expired is left out: when it is swept is nobody's business.

    Args:
        asker: The store.
        replay: What is known of the events up to *after_seq*.
        after_seq: Where to read on.
    """
    asker.ask(c.RemoveRetired(NEVER_MS, 1_000_000))
    now_ms = asker.clock.now_ms()
    replay = replay or Replay()
    for event in asker.events(after_seq, 10_000):
        replay.add(event)
    live: dict[str, ReplayedMessage] = {}
    for queue in asker.ask(c.ListQueues(ACCOUNT, "", "", 1_000)).queues:
        page: Any = o.MessagePage((), "")
        while page.next_after is not None:
            page = asker.ask(o.Inspect(ACCOUNT, queue.name, _OWN, page.next_after, 10_000))
            live |= {seen.message.message_id: _live(seen) for seen in page.messages}
    replayed = {
        message_id: message
        for message_id, message in replay.messages().items()
        if message_id in live or message.expires_at_ms > now_ms
    }
    return replayed, live


_OWN = MessageFilter(states=frozenset(MessageState) - {MessageState.EXPIRED, MessageState.POISONED})


def _live(seen: o.Seen) -> ReplayedMessage:
    message = seen.message
    staged = seen.under if seen.state is MessageState.STAGED else None
    return ReplayedMessage(
        ACCOUNT,
        seen.queue,
        *e.core_of(message)[:5],
        message.phase,
        *e.core_of(message)[6:],
        message.priority,
        message.session,
        staged,
        None if staged else seen.under,
    )
