"""Random event logs, made by playing random commands on a store in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain import transactions as sg
from leasehold.domain.events import Event, EventPage, ReadEvents
from leasehold.domain.groups import HoldGroup, ResumeGroup
from leasehold.domain.model import NO_DETAIL, Detail, ErrorReport, Lease, Message, Outcome
from leasehold.domain.queue_settings import (
    FailurePolicy,
    GroupOrder,
    GroupPoison,
    GroupSettings,
    LapsedReceipts,
    QueueSettings,
)
from leasehold.events.parquet import batch_of
from leasehold.spark.schemas import EVENTS
from leasehold.stores.memory import MemoryStore

ACCOUNT: Final = "acme"
BEGIN_MS: Final = 1_763_712_000_000
_ALL: Final = 10**9
_POLICIES: Final = (
    None,
    FailurePolicy(max_deliveries=2),
    FailurePolicy(max_failures=1, max_lapses=2, poison_time_to_live_s=900),
    FailurePolicy(max_interruptions=1, max_lapses=1),
)
_OUTCOMES: Final = (Outcome.FAILED, Outcome.RETURNED, Outcome.INTERRUPTED, Outcome.BURIED)
_QUEUES: Final = ("videos", "audio")
_DETAILS: Final = (
    NO_DETAIL,
    Detail(message_type="clip", group_id="a"),
    Detail(message_type="film"),
    Detail(group_id="a"),
    Detail(message_type="film", group_id="b"),
)
_ERRORS: Final = (
    ErrorReport(text="no such codec", type="KeyError", fingerprint="f00d"),
    ErrorReport(text="too large"),
    None,
)
_OFTEN: Final = {
    "put": 10,
    "receive": 9,
    "complete": 8,
    "wait": 10,
    "release": 4,
    "renew": 4,
    "receive_in_session": 4,
    "heartbeat": 2,
    "claim": 2,
    "settle": 2,
    "watch": 2,
}


class Play:
    """One store, and somebody who does all that can be done, at random.

    Args:
        number: Of the play; the same one always makes the same log.
    """

    def __init__(self, number: int) -> None:
        self._dice = random.Random(number)
        self._store = MemoryStore()
        self._now_ms = BEGIN_MS + number * 86_400_000
        self._leases: list[tuple[str, Lease]] = []
        self._sessions: list[str] = []
        self._counter = 0
        self._jobs = 0
        rules = list(LapsedReceipts)
        for name in _QUEUES:
            settings = QueueSettings(
                visibility_timeout_s=20,
                lapsed_receipts=self._dice.choice(rules),
                failure_policy=self._dice.choice(_POLICIES),
            )
            self._do(c.CreateQueue(ACCOUNT, name, {}, settings))
        halting = GroupSettings(order=GroupOrder.FIFO, on_poison=GroupPoison.HALT)
        self._do(c.CreateQueue(ACCOUNT, "grouped", {}, QueueSettings(groups=halting)))
        self._stream("videos")

    def run(self, steps: int) -> None:
        """Do so many things."""
        names = [name[4:] for name in dir(self) if name.startswith("can_")]
        weights = [_OFTEN.get(name, 1) for name in names]
        for name in self._dice.choices(names, weights, k=steps):
            action: Callable[[], None] = getattr(self, f"can_{name}")
            action()
        self._stop_a_group()
        self._change_a_queue()

    def events(self) -> tuple[Event, ...]:
        page = self._do(ReadEvents(0, _ALL))
        assert isinstance(page, EventPage)
        return page.events

    def messages(self) -> list[Message]:
        """Return the messages that are there."""
        return [each[2] for each in self._store._tables.everything()]

    def _change_a_queue(self) -> None:
        """Change its settings, pause it and have it go on: events that are of no message."""
        settings = QueueSettings(visibility_timeout_s=21)
        until_ms = self._now_ms + 60_000
        for changed in (settings, replace(settings, paused_until_ms=until_ms), settings):
            self._do(c.SetQueueSettings(ACCOUNT, _QUEUES[0], changed))

    # --- what can be done --------------------------------------------------------------------

    def can_put(self) -> None:
        self._do(*(self._put() for _ in range(self._dice.randint(1, 4))))

    def can_receive(self) -> None:
        holder = self._dice.choice([None, "w1", "w2"])
        self._receive(self._any_queue(), holder, None)

    def can_receive_in_session(self) -> None:
        if self._sessions:
            self._receive(self._any_queue(), None, self._dice.choice(self._sessions[-3:]))

    def can_complete(self) -> None:
        for queue, lease in self._some():
            self._do(c.Complete(ACCOUNT, queue, lease.message.message_id, lease.receipt))

    def can_release(self) -> None:
        outcome, delay_s = self._dice.choice(_OUTCOMES), self._dice.choice([None, 0, 5])
        for queue, lease in self._some():
            named = ACCOUNT, queue, lease.message.message_id, lease.receipt
            error = _ERRORS[lease.message.fence % len(_ERRORS)]
            self._do(c.Release(*named, outcome, delay_s, error))

    def can_renew(self) -> None:
        for queue, lease in self._some():
            named = ACCOUNT, queue, lease.message.message_id, lease.receipt
            found = self._do(c.Renew(*named, self._dice.choice([0, 10, 30, 60])))
            if isinstance(found, Lease):
                self._leases.append((queue, found))

    def can_wait(self) -> None:
        self._now_ms += self._dice.choice([1, 500, 2_000, 9_000, 20_000, 45_000])

    def can_open_session(self) -> None:
        self._counter += 1
        entropy = self._counter.to_bytes(10, "big")
        stuck_s = self._dice.choice([None, 15])
        found = self._do(s.OpenSession(ACCOUNT, "w3", entropy, 10, stuck_s))
        self._sessions.append(found.session_id)

    def can_heartbeat(self) -> None:
        for session in self._sessions[-2:]:
            self._do(s.Heartbeat(ACCOUNT, session))

    def can_watch(self) -> None:
        self._do(s.LoseSessions(), cl.LapseClaims(), sg.ExpireStaged(10))
        if self._dice.random() < 0.3:
            self._do(c.RetireExpired(10), c.RemoveRetired(self._now_ms, 10))

    def can_end_session(self) -> None:
        if self._sessions:
            self._do(s.EndSession(ACCOUNT, self._sessions.pop(), "deploy"))

    def can_cancel(self) -> None:
        for queue, lease in self._some():
            self._do(s.RequestCancel(ACCOUNT, queue, lease.message.message_id, "enough"))

    def can_amend(self) -> None:
        for queue, lease in self._some():
            named = ACCOUNT, queue, lease.message.message_id
            delay_s, live_s = self._dice.choice([None, 0, 10]), self._dice.choice([None, 600])
            self._do(o.Amend(*named, delay_s=delay_s, time_to_live_s=live_s, force=True))

    def can_remove(self) -> None:
        for queue, lease in self._some():
            self._do(o.Remove(ACCOUNT, queue, lease.message.message_id, force=True))

    def can_end_lease(self) -> None:
        for queue, lease in self._some():
            self._do(o.EndLease(ACCOUNT, queue, lease.message.message_id, 0, "too long"))

    def can_move(self) -> None:
        kind = self._dice.choice([o.JobKind.REDRIVE, o.JobKind.REDRIVE, o.JobKind.PURGE])
        if kind is o.JobKind.PURGE and self._dice.random() < 0.7:
            return
        self._jobs += 1
        job = f"job{self._jobs}"
        self._do(o.StartJob(ACCOUNT, self._any_queue(), job, o.JobPlan(kind=kind)))
        self._do(o.StepJob(job, 5))

    def can_empty(self) -> None:
        if self._dice.random() < 0.1:
            self._do(c.Clear(ACCOUNT, "audio"))
        elif self._dice.random() < 0.1:
            self._do(c.DeleteQueue(ACCOUNT, "audio"), c.CreateQueue(ACCOUNT, "audio", {}))

    def can_claim(self) -> None:
        stream, number = self._stream("videos"), self._number
        seconds = self._dice.choice([5, 60])
        self._do(cl.OpenClaim(ACCOUNT, "videos", "s", stream, number, 3, seconds, "spark"))
        if self._dice.random() < 0.3:
            self._do(cl.ExtendClaim(ACCOUNT, "videos", "s", stream, number, 60))

    def can_settle(self) -> None:
        token = self._stream("videos")
        self._do(cl.SettleClaims(ACCOUNT, "videos", "s", token, self._number - 1))

    def can_give_claim_back(self) -> None:
        token = self._stream("videos")
        self._do(cl.GiveBackClaim(ACCOUNT, "videos", "s", token, self._number - 1))

    def can_exempt(self) -> None:
        token, number = self._stream("videos"), self._number - 1
        page = self._do(cl.ReadClaim(ACCOUNT, "videos", "s", number, 0, 1, "", 10))
        if isinstance(page, cl.MemberPage) and page.messages:
            found = self._dice.choice(page.messages).message_id
            exempt = cl.Exemption(number, found, self._dice.choice(_OUTCOMES))
            self._do(cl.ExemptMembers(ACCOUNT, "videos", "s", token, number, (exempt,)))

    def can_stage(self) -> None:
        self._counter += 1
        name = f"t{self._counter}"
        self._do(sg.Stage(ACCOUNT, name, "p", 0, (self._put(), self._put()), 30))
        chosen = self._dice.random()
        if chosen < 0.5:
            self._now_ms += 2_000
            self._do(sg.Publish(ACCOUNT, name))
        elif chosen < 0.7:
            self._do(sg.Discard(ACCOUNT, name))

    def _stop_a_group(self) -> None:
        """Have a message poisoned, so that its group stands still, and go on."""
        put = c.Put(ACCOUNT, "grouped", b"a", 0, None, bytes(10), Detail(group_id="a"))
        lease = self._do(put)
        (taken,) = self._do(c.Receive(ACCOUNT, "grouped", 1, 10))
        named = taken.message.message_id, taken.receipt
        self._do(c.Release(ACCOUNT, "grouped", *named, Outcome.BURIED))
        self._do(ResumeGroup(ACCOUNT, "grouped", "a"))
        entropy = bytes(10)
        session = self._do(s.OpenSession(ACCOUNT, "w1", entropy)).session_id
        self._do(HoldGroup(ACCOUNT, "grouped", session, "a"))
        self._do(s.EndSession(ACCOUNT, session))
        assert lease.message.message_id == taken.message.message_id

    # --- parts -------------------------------------------------------------------------------

    def _do(self, *batch: Any) -> Any:
        results = self._store.execute(batch, now_ms=self._now_ms)
        self._store.commit()
        return results[0]

    def _put(self) -> c.Put:
        self._counter += 1
        delay_s, live_s = self._dice.choice([0, 0, 5]), self._dice.choice([None, 60, 900])
        entropy = self._counter.to_bytes(10, "big")
        queue, detail = self._dice.choice(_QUEUES), _DETAILS[self._counter % len(_DETAILS)]
        return c.Put(ACCOUNT, queue, b"a", delay_s, live_s, entropy, detail)

    def _any_queue(self) -> str:
        return self._dice.choice([*_QUEUES, *_QUEUES, "videos-poison"])

    def _receive(self, queue: str, holder: str | None, session: str | None) -> None:
        lease_s = 120 if session else self._dice.choice([None, 1, 10, 60])
        found = self._do(c.Receive(ACCOUNT, queue, 3, lease_s, holder, session))
        if isinstance(found, tuple):
            self._leases += [(queue, each) for each in found]

    def _some(self) -> list[tuple[str, Lease]]:
        """Return one or two of the latest leases, live or stale."""
        latest = self._leases[-8:]
        return self._dice.sample(latest, min(len(latest), self._dice.randint(1, 2)))

    def _stream(self, queue: str) -> int:
        found = self._do(cl.AttachStream(ACCOUNT, queue, "s"))
        self._number = max((each.number for each in found.claims), default=found.last_settled) + 1
        return int(found.token)


def made(plays: int, steps: int, first: int = 1) -> tuple[list[Event], list[Message]]:
    """Return several logs as one, and the messages that were left at the end of each.

    Their numbers follow each other, and accounts, messages and sessions have names of their own.
    """
    events: list[Event] = []
    messages: list[Message] = []
    for number in range(first, first + plays):
        play = Play(number)
        play.run(steps)
        mark, behind = f"p{number}-", events[-1].seq if events else 0
        events += [
            each._replace(
                seq=each.seq + behind,
                account=mark + each.account,
                message_id=each.message_id and mark + each.message_id,
                session=each.session and mark + each.session,
            )
            for each in play.events()
        ]
        messages += [each._replace(message_id=mark + each.message_id) for each in play.messages()]
    return events, messages


def table_of(events: Sequence[Event]) -> pa.Table:
    """Return events as they are exported."""
    return pa.Table.from_batches([batch_of(events)])


def frame_of(spark: SparkSession, events: Sequence[Event]) -> DataFrame:
    """Return events as Spark reads them."""
    return spark.createDataFrame(table_of(events), EVENTS)
