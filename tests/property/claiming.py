"""The comparison, with claims, staged sends and sessions, and with all that the log tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import invariant, rule

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain import sessions as s
from leasehold.domain import transactions as sg
from leasehold.domain.command import AnyCommand
from leasehold.domain.filters import EVERYTHING, MessageFilter
from leasehold.domain.model import Message, MessageState, Outcome, Progress
from leasehold.domain.queue_settings import QueueSettings
from leasehold.stores.base import Store
from leasehold.stores.memory import MemoryStore

from .comparison import (
    ACCOUNT,
    BODIES,
    DELAYS,
    LIMITS,
    QUEUES,
    TTLS,
    OracleComparison,
    Pair,
    shape,
)
from .governed import SETTINGS

CLAIMED_QUEUES = st.sampled_from([*["videos"] * 6, "audio", "videos-poison"])
STREAMS = st.sampled_from(["s1", "s1", "s1", "s2"])
UNEXPIRED = MessageFilter(states=frozenset(MessageState) - {MessageState.EXPIRED})
NAMES = st.sampled_from(["t1", "t2", "t3"])
PARTS = st.none() | st.lists(st.sampled_from(["p", "q"]), max_size=2).map(tuple)
PUTS = st.lists(st.tuples(QUEUES, DELAYS, TTLS, BODIES), max_size=3)
OUTCOMES = st.sampled_from([Outcome.FAILED, Outcome.INTERRUPTED, Outcome.RETURNED, Outcome.BURIED])
BACK = st.sampled_from([0, 0, 0, 1, -1])
"""How far the number of a claim is from the one that makes sense."""

Named = tuple[str, str, str]


class Told(dict[str, int]):
    """What a store that was closed and opened again remembers of signs: that all came just now."""

    def __init__(self, now_ms: int) -> None:
        super().__init__()
        self._now_ms = now_ms

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, self._now_ms)


def forget_signs(oracle: MemoryStore, now_ms: int) -> None:
    """Have the oracle take all live sessions for heard of now, as a store does that was closed."""
    for desk in oracle._sessions.desks.values():
        desk.told = Told(now_ms)
        if desk.session.state is s.SessionState.LIVE:
            desk.session = replace(desk.session, last_heartbeat_ms=now_ms)


class ClaimingComparison(OracleComparison):
    """Claims, staged sends, sessions; after each step both logs tell the same."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[str] = []
        self.read_up_to = [0, 0]

    # --- the rest of life, in less detail ----------------------------------------------------

    peek = mixed_batch = clear = delete_and_create = None  # type: ignore[assignment]

    @rule(move_ms=st.sampled_from([1, 999, 1_000, 1_000, 4_000, 4_000, 30_000, 100_000, -2_500]))
    def move_clock(self, move_ms: int) -> None:
        self.clock.advance(ms=move_ms)

    @rule(queue=QUEUES, how=st.sampled_from(["clear", "delete", *["spare"] * 8]))
    def ruin(self, queue: str, how: str) -> None:
        if how == "clear":
            self.both([c.Clear(ACCOUNT, queue)])
        elif how == "delete":
            self.both([c.DeleteQueue(ACCOUNT, queue)])
            self.both([c.CreateQueue(ACCOUNT, queue, {})])

    @rule(queue=QUEUES, chosen=SETTINGS | st.just(QueueSettings(event_log=False)))
    def set_settings(self, queue: str, chosen: QueueSettings) -> None:
        self.both([c.SetQueueSettings(ACCOUNT, queue, chosen)])

    @rule(
        pair=OracleComparison.leases,
        outcome=OUTCOMES,
        delay_s=st.sampled_from([None, 0, 3]),
    )
    def release(self, pair: Pair, outcome: Outcome, delay_s: int | None) -> None:
        named = [
            (ACCOUNT, pair.queue, lease.message.message_id, lease.receipt)
            for lease in (pair.oracle, pair.tested)
        ]
        commands = [c.Release(*each, outcome, delay_s) for each in named]
        self.both(commands[:1], commands[1:])

    @rule(
        queue=CLAIMED_QUEUES,
        act=st.sampled_from(["amend", "remove", "end", "cancel", "purge", "redrive"]),
        force=st.booleans(),
        place=st.integers(0, 20),
    )
    def operate(self, queue: str, act: str, force: bool, place: int) -> None:
        """Do something to a message that there is."""
        listed = [self.listing(store, queue) for store in self.stores()]
        if act in {"purge", "redrive"}:
            self.drawn += 1
            plan = o.JobPlan(kind=o.JobKind(act), filter=MessageFilter(text="a"))
            job_id = f"job{self.drawn}"
            if act == "redrive":
                plan = replace(plan, filter=EVERYTHING)
            self.both([o.StartJob(ACCOUNT, queue, job_id, plan), o.StepJob(job_id, 1 + place)])
            return
        batches: list[list[AnyCommand]] = []
        for found in listed:
            message_id = found[place % len(found)].message.message_id if found else "nobody"
            named = ACCOUNT, queue, message_id
            commands: dict[str, AnyCommand] = {
                "amend": o.Amend(*named, delay_s=3, time_to_live_s=100, force=force),
                "remove": o.Remove(*named, force),
                "end": o.EndLease(*named, reason="stuck"),
                "cancel": s.RequestCancel(*named, "stop"),
            }
            batches.append([commands[act]])
        self.both(*batches)

    def listing(self, store: Store, queue: str) -> list[o.Seen]:
        """Return all messages of a queue, from all pages, as one store has them."""
        found: list[o.Seen] = []
        after: str | None = ""
        while after is not None:
            (page,) = self._run(store, [o.Inspect(ACCOUNT, queue, UNEXPIRED, after, 1_000)])
            if not isinstance(page, o.MessagePage):
                return []
            found += page.messages
            after = page.next_after
        return found

    def stores(self) -> tuple[Store, Store]:
        return self.oracle, self.tested

    # --- streams and claims ------------------------------------------------------------------

    def stream_of(self, queue: str, stream: str) -> cl.Stream | None:
        """Return a stream as the oracle has it, or None."""
        found = self.both([cl.GetStream(ACCOUNT, queue, stream)])[0][0]
        return found if isinstance(found, cl.Stream) else None

    def numbered(self, queue: str, stream: str, back: int) -> tuple[Named, int, int]:
        """Return the stream, a token and the number of a claim, nearly always good ones."""
        found = self.stream_of(queue, stream)
        named = ACCOUNT, queue, stream
        if found is None:
            return named, 1, 1
        numbers = [claim.number for claim in found.claims]
        token = found.token - (back == -1 and len(numbers) > 1)
        return named, token, max([found.last_settled, *numbers]) - back

    @rule(queue=CLAIMED_QUEUES, stream=STREAMS)
    def attach(self, queue: str, stream: str) -> None:
        self.both([cl.AttachStream(ACCOUNT, queue, stream)])

    @rule(
        queue=CLAIMED_QUEUES,
        stream=STREAMS,
        back=BACK,
        again=st.booleans(),
        limit=st.sampled_from([1, 3, 40]),
        lease_s=st.sampled_from([1, 5, 60]),
        holder=st.sampled_from([None, "w1"]),
        max_bytes=st.sampled_from([None, None, 1, 400]),
        accept_loss=st.booleans(),
        puts=st.lists(st.tuples(DELAYS, TTLS, BODIES), max_size=3),
    )
    def open_claim(
        self, queue: str, stream: str, back: int, again: bool, limit: int, **fields: Any
    ) -> None:
        """Open a claim; there is a stream nearly always, and something to claim."""
        if self.stream_of(queue, stream) is None:
            self.both([cl.AttachStream(ACCOUNT, queue, stream)])
        for put in fields.pop("puts"):
            self.both([self.put_command(queue, *put)])
        named, token, number = self.numbered(queue, stream, back)
        number += not again
        self.both([cl.OpenClaim(*named, token, number, limit, **fields)])
        self.compare_members(named, number)

    @rule(
        queue=CLAIMED_QUEUES,
        stream=STREAMS,
        back=BACK,
        parts=st.sampled_from([1, 2, 5]),
        limit=LIMITS,
        whole_groups=st.booleans(),
    )
    def read_claim(
        self, queue: str, stream: str, back: int, parts: int, limit: int, whole_groups: bool
    ) -> None:
        named, _, number = self.numbered(queue, stream, back)
        self.compare_members(named, number, parts, limit, whole_groups=whole_groups)

    def compare_members(
        self,
        named: Named,
        number: int,
        parts: int = 1,
        limit: int = 1000,
        *,
        whole_groups: bool = False,
    ) -> tuple[list[Message], list[Message]]:
        """Read a claim from both stores, all pages of all parts, and return its members."""
        members: tuple[list[Message], list[Message]] = ([], [])
        read: list[list[Any]] = []
        for side, store in enumerate(self.stores()):
            read.append([])
            for part in range(parts):
                command = cl.ReadClaim(
                    *named, number, part, parts, "", limit, whole_groups=whole_groups
                )
                while True:
                    (page,) = self._run(store, [command])
                    if not isinstance(page, cl.MemberPage):
                        read[-1].append(page)
                        break
                    assert len(page.messages) <= limit
                    members[side].extend(page.messages)
                    read[-1] += page.messages
                    if page.next_after is None:
                        break
                    command = replace(command, after=page.next_after)
        told = self.shapes(read[0], "oracle"), self.shapes(read[1], "tested")
        if whole_groups:
            # The part of a message without a group hangs on its id, which each store draws itself.
            told = _apart(told[0]), _apart(told[1])
        assert told[0] == told[1]
        return members

    @rule(
        queue=CLAIMED_QUEUES,
        stream=STREAMS,
        back=BACK,
        lease_s=st.sampled_from([1, 5, 60]),
        park=st.booleans(),
    )
    def extend_claim(self, queue: str, stream: str, back: int, lease_s: int, park: bool) -> None:
        named, token, number = self.numbered(queue, stream, back)
        self.both([cl.ExtendClaim(*named, token, number, lease_s, park)])

    @rule(
        queue=CLAIMED_QUEUES,
        stream=STREAMS,
        back=BACK,
        exempt=st.lists(
            st.tuples(OUTCOMES, st.sampled_from([None, 0, 3, 200]), st.booleans()), max_size=3
        ),
        publish=st.lists(NAMES, max_size=1),
        puts=PUTS,
        data=st.data(),
    )
    def settle(
        self,
        queue: str,
        stream: str,
        back: int,
        exempt: list[tuple[Outcome, int | None, bool]],
        publish: list[str],
        puts: list[tuple[str, int, int | None, bytes]],
        data: st.DataObject,
    ) -> None:
        """Settle claims; what is exempted is a member of the last of them, as far as it has any."""
        named, token, number = self.numbered(queue, stream, back)
        members = self.compare_members(named, number)
        places = [
            data.draw(st.integers(0, max(0, len(members[0]) - 1)), label="member") for _ in exempt
        ]
        sends = tuple(self.put_command(*put) for put in puts)
        commands = []
        for found in members:
            exemptions = tuple(
                cl.Exemption(
                    number - other,
                    found[place].message_id if found else "nobody",
                    outcome,
                    delay_s,
                )
                for place, (outcome, delay_s, other) in zip(places, exempt, strict=True)
            )
            commands.append(
                cl.SettleClaims(*named, token, number, exemptions, tuple(publish), sends)
            )
        self.both([commands[0]], [commands[1]])

    @rule(queue=CLAIMED_QUEUES, stream=STREAMS, back=BACK)
    def give_claim_back(self, queue: str, stream: str, back: int) -> None:
        named, token, number = self.numbered(queue, stream, back)
        self.both([cl.GiveBackClaim(*named, token, number)])

    @rule(queue=CLAIMED_QUEUES, stream=STREAMS)
    def delete_stream(self, queue: str, stream: str) -> None:
        self.both([cl.DeleteStream(ACCOUNT, queue, stream)])

    @rule()
    def lapse_claims(self) -> None:
        self.both([cl.LapseClaims(1_000)])

    # --- staged sends ------------------------------------------------------------------------

    @rule(
        name=NAMES,
        part=st.sampled_from(["p", "p", "q"]),
        chunk=st.sampled_from([0, 0, 1]),
        puts=PUTS,
        timeout_s=st.sampled_from([1, 60]),
    )
    def stage(
        self,
        name: str,
        part: str,
        chunk: int,
        puts: list[tuple[str, int, int | None, bytes]],
        timeout_s: int,
    ) -> None:
        commands = tuple(self.put_command(*put) for put in puts)
        self.both([sg.Stage(ACCOUNT, name, part, chunk, commands, timeout_s)])

    @rule(name=NAMES, parts=PARTS)
    def publish(self, name: str, parts: tuple[str, ...] | None) -> None:
        self.both([sg.Publish(ACCOUNT, name, parts)])

    @rule(name=NAMES, parts=PARTS)
    def discard(self, name: str, parts: tuple[str, ...] | None) -> None:
        self.both([sg.Discard(ACCOUNT, name, parts)])

    @rule(limit=LIMITS)
    def expire_staged(self, limit: int) -> None:
        self.both([sg.ExpireStaged(limit)])

    @rule(
        pairs=st.lists(OracleComparison.leases, max_size=2),
        puts=PUTS,
        publish=st.lists(NAMES, max_size=2),
        name=st.none() | NAMES,
    )
    def commit_together(
        self,
        pairs: list[Pair],
        puts: list[tuple[str, int, int | None, bytes]],
        publish: list[str],
        name: str | None,
    ) -> None:
        sends = [self.put_command(*put) for put in puts]
        commands = []
        for side in ("oracle", "tested"):
            completes = [
                c.Complete(ACCOUNT, pair.queue, lease.message.message_id, lease.receipt)
                for pair in pairs
                for lease in [getattr(pair, side)]
            ]
            commands.append(sg.CommitTogether(ACCOUNT, (*completes, *sends), tuple(publish), name))
        self.both([commands[0]], [commands[1]])

    # --- sessions ----------------------------------------------------------------------------

    @rule(
        holder=st.sampled_from(["w1", "w2"]),
        timeout_s=st.sampled_from([2, 60]),
        progress_timeout_s=st.sampled_from([None, 1, 40]),
    )
    def open_session(self, holder: str, **timeouts: Any) -> None:
        self.drawn += 1
        entropy = self.drawn.to_bytes(10, "big")
        session = self.both([s.OpenSession(ACCOUNT, holder, entropy, **timeouts)])[0][0]
        self.sessions.append(session.session_id)

    def a_session(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([*self.sessions[-2:], "nobody"]), label="session")

    @rule(
        target=OracleComparison.leases,
        queue=CLAIMED_QUEUES,
        limit=LIMITS,
        lease_s=st.sampled_from([None, 1, 60]),
        data=st.data(),
    )
    def receive_in_session(
        self, queue: str, limit: int, lease_s: int | None, data: st.DataObject
    ) -> Any:
        session = self.a_session(data)
        receive = c.Receive(ACCOUNT, queue, limit, lease_s, None, session)
        return self.keep(self.both([receive]), [queue])

    @rule(pairs=st.lists(OracleComparison.leases, max_size=3), told=st.booleans(), data=st.data())
    def heartbeat(self, pairs: list[Pair], told: bool, data: st.DataObject) -> None:
        session = self.a_session(data)
        progress = Progress(at_ms=self.clock.now_ms(), fraction=0.5) if told else None
        oracle, tested = (
            s.Heartbeat(
                ACCOUNT,
                session,
                {getattr(pair, side).message.message_id: progress for pair in pairs},
            )
            for side in ("oracle", "tested")
        )
        self.both([oracle], [tested])

    @rule(data=st.data(), reason=st.none() | st.just("deploy"))
    def end_session(self, data: st.DataObject, reason: str | None) -> None:
        self.both([s.EndSession(ACCOUNT, self.a_session(data), reason)])

    @rule(limit=LIMITS)
    def lose_sessions(self, limit: int) -> None:
        self.both([s.LoseSessions(limit)])

    @rule()
    def reopen(self) -> None:
        """Closing and opening the store again changes nothing but when sessions were heard of."""
        super().reopen()
        self.both([s.ListSessions(ACCOUNT)])

    def forget(self) -> None:
        """When sessions were heard of is forgotten as well."""
        super().forget()
        forget_signs(self.oracle, self.clock.now_ms())

    # --- always ------------------------------------------------------------------------------

    @invariant()
    def streams_and_transactions_agree(self) -> None:
        self.both(
            [
                cl.ListStreams(ACCOUNT, "videos"),
                cl.ListStreams(ACCOUNT, "audio"),
                cl.ListStreams(ACCOUNT, "videos-poison"),
                sg.ListTransactions(ACCOUNT),
                s.ListSessions(ACCOUNT),
                *(o.CountMessages(ACCOUNT, name) for name in ("videos", "audio", "videos-poison")),
                *(o.NextDue(ACCOUNT, name) for name in self.ungrouped("videos", "audio")),
            ]
        )

    @invariant()
    def listings_agree(self) -> None:
        for queue in ("videos", "audio"):
            oracle, tested = (self.listing(store, queue) for store in self.stores())
            assert self.shapes(tested, "tested") == self.shapes(oracle, "oracle")

    @invariant()
    def events_agree(self) -> None:
        """Batch by batch, and within a batch message by message."""
        told = []
        for place, numbers in enumerate((self.oracle_numbers, self.tested_numbers)):
            (page,) = self._run(
                self.stores()[place], [e.ReadEvents(self.read_up_to[place], 1_000_000)]
            )
            assert isinstance(page, e.EventPage)
            assert page.finished
            self.read_up_to[place] = page.last_seq
            told.append(
                [
                    told_by_batch(batch, numbers)
                    for _, batch in groupby(page.events, key=lambda event: event.seq)
                ]
            )
        assert told[1] == told[0]

    def shapes(self, listed: Iterable[Any], side: str) -> Any:
        return shape(tuple(listed), getattr(self, f"{side}_numbers"))


def _apart(told: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Return those of a claim that are in groups, as they came, and the others in any order."""
    grouped: list[Any] = []
    others: list[Any] = []
    for each in told:
        is_other = isinstance(each, Message) and each.detail.group_id is None
        (others if is_other else grouped).append(each)
    return grouped, sorted(others, key=repr)


def told_by_batch(batch: Iterable[e.Event], numbers: dict[str, int]) -> list[Any]:
    """Return the events of a batch, those of each message in their order.

    Stores may do to many messages at once what others do one by one. Messages that nobody has seen
    before are numbered in the order in which they were put, which their ids tell.
    """
    events = list(batch)
    for message_id in sorted(each.message_id for each in events if each.message_id):
        numbers.setdefault(message_id, len(numbers))
    plain = [
        (
            -1 if each.message_id is None else numbers[each.message_id],
            each._replace(seq=0, place=0, message_id=None, target=_named(each.target, numbers)),
        )
        for each in events
    ]
    own = [each for each in plain if each[0] == -1]
    return [*sorted(own, key=repr), *sorted((p for p in plain if p[0] >= 0), key=lambda p: p[0])]


def _named(target: str | None, numbers: dict[str, int]) -> str | None:
    """Return a target as both stores call it: where a group halts, it is the id of a message."""
    return f"message {numbers[target]}" if target in numbers else target
