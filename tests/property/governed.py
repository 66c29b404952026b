"""The comparison, with all that those do who look after a queue."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import initialize, invariant, rule

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.filters import MessageFilter
from leasehold.domain.groups import HaltGroup, ResumeGroup
from leasehold.domain.model import NEVER_MS, ErrorReport, MessageState, Outcome, Progress
from leasehold.domain.queue_settings import (
    Adapted,
    Adaptive,
    Backoff,
    BackoffKind,
    FailurePolicy,
    GroupOrder,
    GroupPoison,
    GroupSettings,
    LapsedReceipts,
    QueueSettings,
)

from .comparison import (
    ACCOUNT,
    BODIES,
    DELAYS,
    GROUPS,
    LIMITS,
    QUEUES,
    OracleComparison,
    Pair,
    shape,
)

ALL_QUEUES = st.sampled_from(["videos", "audio", "videos-poison", "put-aside"])
POLICIES = [
    FailurePolicy(max_deliveries=2),
    FailurePolicy(max_failures=1, max_lapses=2, poison_time_to_live_s=60),
    FailurePolicy(max_interruptions=1, poison_queue="put-aside"),
    FailurePolicy(backoff=Backoff(kind=BackoffKind.LINEAR, initial_s=2.5, jitter=0.5)),
]
GROUPED = [
    GroupSettings(order=GroupOrder.FIFO),
    GroupSettings(max_in_flight=1),
    GroupSettings(order=GroupOrder.FIFO, max_in_flight=2, max_in_flight_of={"a": 1}),
    GroupSettings(rate_per_s=0.7, burst=2, rate_per_s_of={"a": 2.5}),
    GroupSettings(
        order=GroupOrder.FIFO, on_poison=GroupPoison.HALT, rate_per_s=3, burst_of={"a": 5}
    ),
]
SETTINGS = st.sampled_from(
    [
        QueueSettings(),
        QueueSettings(visibility_timeout_s=2, lapsed_receipts=LapsedReceipts.STRICT),
        QueueSettings(visibility_timeout_s=2, lapsed_receipts=LapsedReceipts.SAME_LEASE),
        *(QueueSettings(failure_policy=policy) for policy in POLICIES),
        QueueSettings(failure_policy=POLICIES[0], priority_ageing_s=1, dedup_window_s=2),
        QueueSettings(paused_until_ms=NEVER_MS),
        QueueSettings(max_receives_per_s=1.5),
        QueueSettings(adaptive=Adaptive()),
        # Whose turn it is in a fair queue hangs on what was served before a restart.
        *(QueueSettings(groups=groups) for groups in GROUPED),
        QueueSettings(groups=GROUPED[0], failure_policy=POLICIES[0], max_receives_per_s=1.5),
        QueueSettings(groups=GROUPED[-1], failure_policy=POLICIES[0]),
        QueueSettings(groups=GROUPED[-1], failure_policy=POLICIES[1], visibility_timeout_s=2),
        QueueSettings(groups=GROUPED[1], failure_policy=POLICIES[1], priority_ageing_s=1),
    ]
)
STATES = st.none() | st.frozensets(st.sampled_from(MessageState), min_size=1)
FILTERS = st.builds(
    MessageFilter,
    states=STATES,
    min_dequeue_count=st.none() | st.just(1),
    holder=st.none() | st.just("w1"),
    text=st.none() | st.just("b"),
)
HOLDERS = st.sampled_from([None, "w1", "w2"])


class GovernedComparison(OracleComparison):
    """Queues with settings; releases, inspections, amendments and jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[str] = []

    def each(self, pair: Pair, make: Any) -> list[tuple[Any, Any]]:
        """Ask each store the same about its own message."""
        return self.both([make(pair.oracle)], [make(pair.tested)])

    @rule(queue=QUEUES, chosen=SETTINGS)
    def set_settings(self, queue: str, chosen: QueueSettings) -> None:
        self.both([c.SetQueueSettings(ACCOUNT, queue, chosen), c.GetQueue(ACCOUNT, queue)])

    @rule(
        queue=QUEUES, group=st.sampled_from(GROUPS), kind=st.sampled_from([HaltGroup, ResumeGroup])
    )
    def stop_and_go_on(
        self, queue: str, group: str | None, kind: type[HaltGroup | ResumeGroup]
    ) -> None:
        """Have a group stand still, or go on."""
        self.both([kind(ACCOUNT, queue, group or "a"), o.LookAtGroup(ACCOUNT, queue, group or "a")])

    @rule(queue=QUEUES)
    def set_adapted(self, queue: str) -> None:
        adapted = Adapted(visibility_timeout_s=7, because="tests", at_ms=1)
        self.both([c.SetAdapted(ACCOUNT, queue, adapted), c.GetQueue(ACCOUNT, queue)])

    @rule(
        target=OracleComparison.leases,
        queue=ALL_QUEUES,
        limit=LIMITS,
        lease_s=st.sampled_from([None, 1, 30]),
        holder=HOLDERS,
    )
    def receive_as(self, queue: str, limit: int, lease_s: int | None, holder: str | None) -> Any:
        results = self.both([c.Receive(ACCOUNT, queue, limit, lease_s, holder)])
        return self.keep(results, [queue])

    @rule(
        pair=OracleComparison.leases,
        outcome=st.sampled_from(
            [Outcome.FAILED, Outcome.INTERRUPTED, Outcome.RETURNED, Outcome.BURIED]
        ),
        delay_s=st.sampled_from([None, 0, 3, 200]),
        dice=st.sampled_from([0.0, 0.3, 1.0]),
    )
    def release(self, pair: Pair, outcome: Outcome, delay_s: int | None, dice: float) -> None:
        error = ErrorReport(text="no such codec", type="CodecError")
        self.each(
            pair,
            lambda lease: c.Release(
                ACCOUNT,
                pair.queue,
                lease.message.message_id,
                lease.receipt,
                outcome,
                delay_s,
                error if outcome is Outcome.FAILED else None,
                dice,
            ),
        )

    @rule(
        target=OracleComparison.leases,
        pair=OracleComparison.leases,
        fraction=st.floats(0, 1),
        saved=st.sampled_from([None, "[1]", "[2]", c.REMOVE_SAVED]),
    )
    def report_progress(self, pair: Pair, fraction: float, saved: str | None) -> Any:
        progress = Progress(at_ms=self.clock.now_ms(), fraction=fraction)
        results = self.each(
            pair,
            lambda lease: c.Renew(
                ACCOUNT,
                pair.queue,
                lease.message.message_id,
                lease.receipt,
                1,
                None,
                progress,
                saved,
            ),
        )
        return self.keep(results, [pair.queue])

    @rule(
        pairs=st.lists(OracleComparison.leases, min_size=1, max_size=4),
        atomic=st.booleans(),
        data=st.data(),
    )
    def batch(self, pairs: list[Pair], atomic: bool, data: st.DataObject) -> None:
        """A batch of anything that a receipt allows, and a put."""
        kinds = [data.draw(st.sampled_from(["complete", "renew", "release"])) for _ in pairs]
        batches = []
        put = self.put_command(pairs[0].queue, 0, 10, b"batched")
        for side in ("oracle", "tested"):
            commands: list[Any] = [put]
            for kind, pair in zip(kinds, pairs, strict=True):
                lease = getattr(pair, side)
                named = (ACCOUNT, pair.queue, lease.message.message_id, lease.receipt)
                commands.append(
                    {
                        "complete": c.Complete(*named),
                        "renew": c.Renew(*named, 30),
                        "release": c.Release(*named, Outcome.FAILED),
                    }[kind]
                )
            batches.append(c.Batch(tuple(commands), atomic))
        self.both([batches[0]], [batches[1]])

    # --- looking and moving ------------------------------------------------------------------

    @rule(queue=ALL_QUEUES, wanted=FILTERS, limit=st.sampled_from([1, 2, 100]))
    def inspect(self, queue: str, wanted: MessageFilter, limit: int) -> None:
        """All pages together; how much is on a page is each store's own business."""
        listed = []
        for store in (self.oracle, self.tested):
            after, seen = "", []
            while True:
                (page,) = self._run(store, [o.Inspect(ACCOUNT, queue, wanted, after, limit)])
                if not isinstance(page, o.MessagePage):
                    seen.append(page)
                    break
                assert len(page.messages) <= limit
                seen += page.messages
                if page.next_after is None:
                    break
                after = page.next_after
            listed.append(tuple(seen))
        assert shape_of(self, listed[1], "tested") == shape_of(self, listed[0], "oracle")

    @rule(pair=OracleComparison.leases, queue=ALL_QUEUES)
    def find(self, pair: Pair, queue: str) -> None:
        self.each(pair, lambda lease: o.FindMessage(ACCOUNT, queue, lease.message.message_id))

    @rule(queue=ALL_QUEUES)
    def next_due(self, queue: str) -> None:
        self.both([o.NextDue(ACCOUNT, name) for name in self.ungrouped(queue)])

    @rule(
        pair=OracleComparison.leases,
        delay_s=st.none() | DELAYS,
        ttl_s=st.sampled_from([None, None, -1, 5]),
        body=st.none() | BODIES,
        priority=st.sampled_from([None, 3, 8]),
        force=st.booleans(),
    )
    def amend(self, pair: Pair, **fields: Any) -> None:
        fields["time_to_live_s"] = fields.pop("ttl_s")
        self.each(
            pair,
            lambda lease: o.Amend(ACCOUNT, pair.queue, lease.message.message_id, **fields),
        )

    @rule(pair=OracleComparison.leases, force=st.booleans())
    def remove(self, pair: Pair, force: bool) -> None:
        self.each(
            pair, lambda lease: o.Remove(ACCOUNT, pair.queue, lease.message.message_id, force)
        )

    @rule(pair=OracleComparison.leases, delay_s=DELAYS, reason=st.none() | st.just("stuck"))
    def end_lease(self, pair: Pair, delay_s: int, reason: str | None) -> None:
        self.each(
            pair,
            lambda lease: o.EndLease(
                ACCOUNT, pair.queue, lease.message.message_id, delay_s, reason
            ),
        )

    # --- jobs --------------------------------------------------------------------------------

    @rule(
        queue=QUEUES,
        kind=st.sampled_from(o.JobKind),
        wanted=FILTERS,
        dry_run=st.booleans(),
        canary=st.sampled_from([0, 0, 1, 2]),
        goal=st.sampled_from([None, "audio", "nowhere"]),
    )
    def start_job(self, queue: str, wanted: MessageFilter, goal: str | None, **plan: Any) -> None:
        plan["target"] = goal
        job_id = f"job{len(self.jobs)}"
        self.jobs.append(job_id)
        self.both([o.StartJob(ACCOUNT, queue, job_id, o.JobPlan(filter=wanted, **plan))])

    @rule(limit=LIMITS, data=st.data())
    def step_job(self, limit: int, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from([*self.jobs, "nothing"]))
        self.both([o.StepJob(job_id, limit), o.GetJob(ACCOUNT, job_id)])

    @rule(data=st.data())
    def stop_job(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from([*self.jobs, "nothing"]))
        self.both([o.StopJob(ACCOUNT, job_id), o.ListJobs(None), o.ListJobs(ACCOUNT, "videos", 2)])

    @rule(limit=LIMITS)
    def forget_keys(self, limit: int) -> None:
        # How many there are differs: SQLite keeps the keys of a deleted queue until they are due.
        for store in (self.oracle, self.tested):
            self._run(store, [c.ForgetKeys(limit)])

    @invariant()
    def split_counts_agree(self) -> None:
        names = ["videos", "audio", "videos-poison"]
        self.both([o.CountMessages(ACCOUNT, name) for name in names])
        self.both([c.GetQueue(ACCOUNT, "videos", with_counts=True)])


class KeyedComparison(GovernedComparison):
    """Keys come again soon, and are soon forgotten."""

    @initialize()
    def forget_soon(self) -> None:
        for queue in ("videos", "audio"):
            self.set_settings(queue, QueueSettings(dedup_window_s=2))

    @rule(
        queue=st.sampled_from(["videos", "audio"]),
        key=st.sampled_from(["one", "two"]),
        move_ms=st.sampled_from([0, 0, 1000, 3000]),
    )
    def put_again(self, queue: str, key: str, move_ms: int) -> None:
        self.clock.advance(ms=move_ms)
        self.both([self.put_command(queue, 0, None, b"", key=key)])


def shape_of(machine: GovernedComparison, listed: tuple[Any, ...], side: str) -> Any:
    return shape(listed, getattr(machine, f"{side}_numbers"))
