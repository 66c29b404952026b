"""The comparison, with queues that groups share and sessions that hold groups."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import initialize, multiple, rule

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain.errors import NoGroups
from leasehold.domain.groups import HaltGroup, HoldGroup, ReleaseGroup, ResumeGroup, SaveGroupState
from leasehold.domain.model import GroupHold, Outcome
from leasehold.domain.queue_settings import GroupSettings, QueueSettings

from .claiming import forget_signs
from .comparison import ACCOUNT, LIMITS, MOVES_MS, QUEUES, OracleComparison, Pair
from .governed import GROUPED, POLICIES


class HoldingComparison(OracleComparison):
    """What clients do in queues whose settings speak of groups, while sessions hold some."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = 1_000
        self.sessions: list[str] = []
        self.holds: list[tuple[str, GroupHold]] = []
        self.has_rates = False

    @initialize(groups=st.sampled_from(GROUPED))
    def share_queues(self, groups: GroupSettings) -> None:
        """Have groups share the queues, and workers that live."""
        self.has_rates = groups.has_rates
        videos = QueueSettings(groups=groups, failure_policy=POLICIES[1])
        self.both(
            [
                c.CreateQueue(ACCOUNT, "videos", {}),
                c.CreateQueue(ACCOUNT, "audio", {}),
                c.SetQueueSettings(ACCOUNT, "videos", videos),
                c.SetQueueSettings(ACCOUNT, "audio", QueueSettings(groups=groups)),
            ]
        )
        self.open_session("w1", 60)
        self.open_session("w2", 3)

    @rule(move_ms=MOVES_MS)
    def move_clock(self, move_ms: int) -> None:
        """Move the clock, where groups have rates never back.

        Behind a step back the rate of a group begins anew when a receive looks at it, and which
        groups are looked at is a store's own affair.
        """
        super().move_clock(abs(move_ms) if self.has_rates else move_ms)

    @rule(holder=st.sampled_from(["w1", "w2"]), timeout_s=st.sampled_from([2, 60]))
    def open_session(self, holder: str, timeout_s: int) -> None:
        self.drawn += 1
        entropy = self.drawn.to_bytes(10, "big")
        session = self.both([s.OpenSession(ACCOUNT, holder, entropy, timeout_s)])[0][0]
        self.sessions.append(session.session_id)

    def a_session(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([*self.sessions[-2:], self.sessions[-1]]), label="session")

    @rule(data=st.data(), how=st.sampled_from(["beat", "end", "lose"]))
    def tend_session(self, data: st.DataObject, how: str) -> None:
        """Have a worker live, or end, or be found lost."""
        session = self.a_session(data)
        self.both(
            [
                {
                    "beat": s.Heartbeat(ACCOUNT, session),
                    "end": s.EndSession(ACCOUNT, session),
                    "lose": s.LoseSessions(),
                }[how]
            ]
        )

    @rule()
    def reopen(self) -> None:
        """Closing and opening the store again changes nothing but when sessions were heard of."""
        super().reopen()
        self.both([s.ListSessions(ACCOUNT)])

    def forget(self) -> None:
        """When sessions were heard of is forgotten as well."""
        super().forget()
        forget_signs(self.oracle, self.clock.now_ms())

    @rule(pair=OracleComparison.leases, outcome=st.sampled_from([Outcome.FAILED, Outcome.BURIED]))
    def give_back(self, pair: Pair, outcome: Outcome) -> None:
        """Give a message back, or have it poisoned."""
        commands = [
            c.Release(ACCOUNT, pair.queue, lease.message.message_id, lease.receipt, outcome, 1)
            for lease in (pair.oracle, pair.tested)
        ]
        self.both(commands[:1], commands[1:])

    @rule(queue=QUEUES, kind=st.sampled_from([HaltGroup, ResumeGroup]))
    def stop_and_go_on(self, queue: str, kind: type[HaltGroup | ResumeGroup]) -> None:
        """Have a group stand still, or go on."""
        self.both([kind(ACCOUNT, queue, "a")])

    @rule(queue=QUEUES, group=st.sampled_from([None, None, "a", "b"]), data=st.data())
    def hold_group(self, queue: str, group: str | None, data: st.DataObject) -> None:
        """Take a group, or the next one; each hold has a fence of its own."""
        command = HoldGroup(ACCOUNT, queue, self.a_session(data), group)
        found = self.both([command, o.LookAtGroup(ACCOUNT, queue, "a")])[0][0]
        if isinstance(found, NoGroups):  # it was deleted and created again
            self.both([c.SetQueueSettings(ACCOUNT, queue, QueueSettings(groups=GROUPED[0]))])
        if isinstance(found, GroupHold):
            self.holds.append((queue, found))

    @rule(
        target=OracleComparison.leases,
        limit=LIMITS,
        lease_s=st.sampled_from([1, 30]),
        data=st.data(),
    )
    def receive_of_group(self, limit: int, lease_s: int, data: st.DataObject) -> Any:
        """What holders get, also those that hold it no more."""
        if not self.holds:
            return multiple()
        queue, of = data.draw(st.sampled_from(self.holds[-3:]), label="hold")
        receive = c.Receive(ACCOUNT, queue, limit, lease_s, None, of.session, of.group_id)
        return self.keep(self.both([receive]), [queue])

    @rule(
        what=st.sampled_from(["save", "release", "release at once"]),
        state=st.sampled_from([b"", b"1", b"22"]),
        data=st.data(),
    )
    def tend_hold(self, what: str, state: bytes, data: st.DataObject) -> None:
        """Save for a group, or let it go."""
        if not self.holds:
            return
        queue, of = data.draw(st.sampled_from(self.holds[-3:]), label="hold")
        named = ACCOUNT, queue, of.group_id
        if what == "save":
            self.both([SaveGroupState(*named, of.session, of.fence, state)])
        else:
            session = of.session if what == "release" else None
            self.both([ReleaseGroup(*named, session), o.LookAtGroup(*named)])
