"""The comparison, with claims that are settled by publishing, and with notes on their members."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import rule

from leasehold.domain import claims as cl
from leasehold.domain import transactions as sg
from leasehold.domain.model import ErrorReport, Outcome

from .claiming import (
    BACK,
    CLAIMED_QUEUES,
    NAMES,
    OUTCOMES,
    STREAMS,
    ClaimingComparison,
    Named,
)
from .comparison import ACCOUNT


class BindingComparison(ClaimingComparison):
    """All that claims do, and what is noted of them and bound to them."""

    def claimed(self, queue: str, stream: str, back: int) -> tuple[Named, int, int]:
        """Return what ``numbered`` does for a stream that has a claim, as far as possible."""
        found = self.stream_of(queue, stream)
        if found is None:
            self.both([cl.AttachStream(ACCOUNT, queue, stream)])
        if found is None or not found.claims:
            self.both([self.put_command(queue, 0, None, b"a") for _ in range(3)])
            named, token, number = self.numbered(queue, stream, 0)
            self.both([cl.OpenClaim(*named, token, number + 1, 3, 60)])
        return self.numbered(queue, stream, back)

    @rule(
        queue=CLAIMED_QUEUES,
        stream=STREAMS,
        back=BACK,
        exempt=st.lists(
            st.tuples(OUTCOMES, st.sampled_from([None, 0, 3, 200]), st.booleans()),
            min_size=1,
            max_size=3,
        ),
        data=st.data(),
    )
    def exempt(
        self,
        queue: str,
        stream: str,
        back: int,
        exempt: list[tuple[Outcome, int | None, bool]],
        data: st.DataObject,
    ) -> None:
        """Note exemptions of members; now and then of a message that is none."""
        named, token, number = self.claimed(queue, stream, back)
        members = self.compare_members(named, number)
        places = [
            data.draw(st.integers(0, max(0, len(members[0]) - 1)), label="member") for _ in exempt
        ]
        error = ErrorReport(text="no such codec", fingerprint="abc")
        commands = []
        for found in members:
            exemptions = tuple(
                cl.Exemption(
                    number,
                    found[place].message_id if found else "nobody",
                    outcome,
                    delay_s,
                    error if told else None,
                )
                for place, (outcome, delay_s, told) in zip(places, exempt, strict=True)
            )
            commands.append(cl.ExemptMembers(*named, token, number, exemptions))
        self.both([commands[0]], [commands[1]])

    @rule(
        queue=CLAIMED_QUEUES,
        stream=STREAMS,
        back=BACK,
        name=NAMES | st.sampled_from(["t4", "t5", "t6", "t7"]),
        then=st.sampled_from(["publish", "commit", "attach", None, None]),
    )
    def bind_claim(self, queue: str, stream: str, back: int, name: str, then: str | None) -> None:
        """Bind a claim; with nothing in between it can often be published at once."""
        named, token, number = self.claimed(queue, stream, back)
        self.both([cl.BindClaim(*named, token, number, name)])
        if then == "attach":
            self.both([cl.AttachStream(ACCOUNT, queue, stream)])
        if then in {"publish", "attach"}:
            self.both([sg.Publish(ACCOUNT, name)])
        elif then == "commit":
            put = self.put_command("audio", 0, None, b"a")
            self.both([sg.CommitTogether(ACCOUNT, (put,), (), name)])
