"""The comparison, with staged messages whose deduplication keys come again soon."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import initialize, rule

from leasehold.domain import commands as c
from leasehold.domain import transactions as sg
from leasehold.domain.queue_settings import QueueSettings

from .binding import BindingComparison
from .comparison import ACCOUNT, BODIES, DELAYS, PRIORITIES, QUEUES, TTLS

KEYED_PUTS = st.lists(
    st.tuples(
        QUEUES,
        DELAYS,
        TTLS,
        BODIES,
        st.sampled_from([None, "one", "two", "three", "a\0", '"']),
        PRIORITIES,
    ),
    min_size=1,
    max_size=5,
)


class StagedKeysComparison(BindingComparison):
    """Keys are soon forgotten, and many are staged and published at once."""

    @initialize()
    def forget_soon(self) -> None:
        for queue in ("videos", "audio"):
            self.set_window(queue, 2)

    @rule(queue=QUEUES, window_s=st.sampled_from([0, 2, 300]))
    def set_window(self, queue: str, window_s: int) -> None:
        settings = QueueSettings(dedup_window_s=window_s)
        self.both([c.SetQueueSettings(ACCOUNT, queue, settings)])

    @rule(
        parts=st.lists(st.tuples(st.sampled_from(["p", "q", "r"]), KEYED_PUTS), max_size=3),
        then=st.sampled_from(["publish", "publish", "some", "commit", None]),
        move_ms=st.sampled_from([0, 0, 1000, 3000]),
        windowless=st.sampled_from([None, None, None, "videos"]),
    )
    def stage_keys(
        self,
        parts: list[tuple[str, list[tuple[str, int, int | None, bytes, str | None, int]]]],
        then: str | None,
        move_ms: int,
        windowless: str | None,
    ) -> None:
        """Stage parts, several chunks each perhaps, and mostly publish them."""
        name = f"keys-{self.drawn}"
        chunks: dict[str, int] = {}
        for part, puts in parts:
            chunk = chunks[part] = chunks.get(part, -1) + 1
            commands = tuple(
                self.put_command(*put[:4], key=put[4], priority=put[5]) for put in puts
            )
            self.both([sg.Stage(ACCOUNT, name, part, chunk, commands, 60)])
        self.clock.advance(ms=move_ms)
        if windowless:
            self.set_window(windowless, 0)
        if then == "commit":
            put = self.put_command("videos", 0, None, b"", key="one")
            self.both([sg.CommitTogether(ACCOUNT, (put,), (name,))])
        elif then is not None:
            self.both([sg.Publish(ACCOUNT, name, ("p", "q") if then == "some" else None)])
        self.both([sg.GetTransaction(ACCOUNT, name)])
        if windowless:
            self.set_window(windowless, 2)

    @rule(queue=QUEUES, key=st.sampled_from(["one", "two", "a\0"]))
    def put_again(self, queue: str, key: str) -> None:
        self.both([self.put_command(queue, 0, None, b"", key=key)])
