"""Random commands and clock moves, played on the memory store and on another."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError, MemberNotFound
from leasehold.domain.model import NO_DETAIL, Detail, GroupHalt, Lease, Message
from leasehold.domain.sessions import Beat, CancelNotice
from leasehold.stores.base import Store
from leasehold.stores.memory import MemoryStore
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock
from tests.sqlite import MEMORY, as_new

ACCOUNT = "coho"
QUEUES = st.sampled_from(["videos", "audio"])
PRIORITIES = st.sampled_from([8, 8, 8, 1, 16])
KEYS = st.sampled_from([None, None, None, "one", "two"])
DELAYS = st.sampled_from([0, 0, 0, 1, 5, 60])
LEASES = st.sampled_from([1, 2, 30])
TTLS = st.sampled_from([2, 10, 100, None])
BODIES = st.sampled_from([b"", b"a", b"b" * 300, b"c" * 5000])
MOVES_MS = st.sampled_from([1, 999, 1000, 2000, 30_000, 86_400_000, -500, -5000, -100_000])
LIMITS = st.sampled_from([1, 2, 32])
GROUPS = (None, "a", None, "b", "a")
"""Of one message after the other."""


class Pair:
    """One lease as each of the stores gave it out."""

    def __init__(self, oracle: Lease, tested: Lease, queue: str) -> None:
        self.oracle = oracle
        self.tested = tested
        self.queue = queue


def shape(result: Any, numbers: dict[str, int]) -> Any:
    """Strip what may differ between stores: ids become numbers of first appearance."""
    if isinstance(result, Lease):
        return ("lease", shape(result.message, numbers))
    if isinstance(result, Message | c.Duplicate | c.Released):
        number = numbers.setdefault(result.message_id, len(numbers))
        plain: Any = result._replace(message_id=str(number))
        return plain._replace(receipt="") if isinstance(result, c.Duplicate) else plain
    if isinstance(result, GroupHalt) and result.message_id is not None:
        result = result._replace(message_id=str(numbers.get(result.message_id)))
    if isinstance(result, c.QueueInfo) and result.counts is not None:
        result = ("info", result.queue, result.message_count, result.counts)
    if isinstance(result, o.Counts):
        result = ("counts", *result)
    if isinstance(result, o.Job):
        canaries = tuple(str(numbers[each]) for each in result.canaries)
        stopped = result.note and result.note.partition(" canary ")[0]
        result = replace(result, canaries=canaries, note=stopped, cursor="", end=0, examined=0)
    if isinstance(result, CancelNotice):
        result = result._replace(message_id=str(numbers[result.message_id]))
    if isinstance(result, Beat):
        lost = tuple(str(numbers.get(each)) for each in result.lost)
        result = ("beat", result.until_ms, shape(result.cancels, numbers), lost)
    if isinstance(result, tuple):
        result = tuple(shape(item, numbers) for item in result)
    if isinstance(result, MemberNotFound):
        result = type(result), numbers.get(result.message_id)
    if isinstance(result, LeaseholdError):
        result = type(result), vars(result)
    return result


class OracleComparison(RuleBasedStateMachine):
    """Every receipt ever given out stays in the bundle, so stale ones are used all the time."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.folder = as_new(Path(tempfile.mkdtemp(prefix="leasehold-oracle-", dir=MEMORY)))
        self.clock = ManualClock()
        self.oracle = MemoryStore()
        self.tested = self.open_tested()
        self.oracle_numbers: dict[str, int] = {}
        self.tested_numbers: dict[str, int] = {}
        self.drawn = 0

    def teardown(self) -> None:
        self.tested.close()
        shutil.rmtree(self.folder)

    def open_tested(self) -> Store:
        """Open the store that is compared with the oracle, for the first time or again."""
        return SqliteStore(self.folder, cache_mib=1)

    def forget(self) -> None:
        """Have the oracle forget what the other store does when it is closed."""
        for shelf in self.oracle._tables.queues.values():
            shelf.bucket = None  # what was received in the last second is not kept

    def ungrouped(self, *queues: str) -> list[str]:
        """Return the queues whose settings say nothing of groups.

        With groups a store may call something due too early: what it remembers of them is a hint.
        """
        tables = self.oracle._tables.queues
        return [
            name
            for name in queues
            if (ACCOUNT, name) not in tables or tables[ACCOUNT, name].queue.settings.groups is None
        ]

    def _run(self, store: Store, batch: Sequence[AnyCommand]) -> list[c.Result]:
        results = store.execute(batch, now_ms=self.clock.now_ms())
        store.commit()
        return results

    def both(
        self, oracle: Sequence[AnyCommand], tested: Sequence[AnyCommand] | None = None
    ) -> list[tuple[Any, Any]]:
        """Play a batch on both stores and compare what they answer."""
        actual = self._run(self.tested, oracle if tested is None else tested)
        expected = self._run(self.oracle, oracle)
        assert shape(tuple(actual), self.tested_numbers) == shape(
            tuple(expected), self.oracle_numbers
        )
        return list(zip(expected, actual, strict=True))

    def keep(self, results: list[tuple[Any, Any]], queues: Sequence[str]) -> Any:
        """Put every lease of the answers into the bundle."""
        pairs = []
        for (expected, actual), queue in zip(results, queues, strict=True):
            if isinstance(expected, Lease):
                pairs.append(Pair(expected, actual, queue))
            elif type(expected) is tuple:
                pairs += [
                    Pair(one, other, queue)
                    for one, other in zip(expected, actual, strict=True)
                    if isinstance(one, Lease)
                ]
        return multiple(*pairs)

    def put_command(
        self,
        queue: str,
        delay_s: int,
        ttl_s: int | None,
        body: bytes,
        *,
        key: str | None = None,
        priority: int = 8,
    ) -> c.Put:
        self.drawn += 1
        entropy = self.drawn.to_bytes(10, "big")
        group_id = GROUPS[self.drawn % len(GROUPS)]
        properties = {"n": "1"} if key else {}
        detail = Detail(dedup_key=key, properties=properties, group_id=group_id)
        detail = NO_DETAIL if detail == NO_DETAIL else detail
        return c.Put(ACCOUNT, queue, body, delay_s, ttl_s, entropy, detail, priority)

    @initialize()
    def queues(self) -> None:
        self.both([c.CreateQueue(ACCOUNT, "videos", {}), c.CreateQueue(ACCOUNT, "audio", {})])

    @rule(
        target=leases,
        queue=QUEUES,
        delay_s=DELAYS,
        ttl_s=TTLS,
        body=BODIES,
        key=KEYS,
        priority=PRIORITIES,
    )
    def put(self, queue: str, **fields: Any) -> Any:
        delay_s, ttl_s, body = (fields.pop(name) for name in ("delay_s", "ttl_s", "body"))
        return self.keep(
            self.both([self.put_command(queue, delay_s, ttl_s, body, **fields)]), [queue]
        )

    @rule(target=leases, queue=QUEUES, limit=LIMITS, lease_s=LEASES)
    def receive(self, queue: str, limit: int, lease_s: int) -> Any:
        return self.keep(self.both([c.Receive(ACCOUNT, queue, limit, lease_s)]), [queue])

    @rule(
        target=leases,
        puts=st.lists(st.tuples(QUEUES, DELAYS, TTLS, BODIES), max_size=4),
        receives=st.lists(st.tuples(QUEUES, LIMITS, LEASES), max_size=4),
    )
    def mixed_batch(
        self,
        puts: list[tuple[str, int, int | None, bytes]],
        receives: list[tuple[str, int, int]],
    ) -> Any:
        batch: list[AnyCommand] = [self.put_command(*put) for put in puts]
        batch += [c.Receive(ACCOUNT, *receive) for receive in receives]
        queues = [put[0] for put in puts] + [receive[0] for receive in receives]
        return self.keep(self.both(batch), queues)

    @rule(queue=QUEUES, limit=LIMITS)
    def peek(self, queue: str, limit: int) -> None:
        self.both([c.Peek(ACCOUNT, queue, limit)])

    @rule(
        target=leases,
        pair=leases,
        timeout_s=st.sampled_from([0, 1, 30, 200]),
        body=st.none() | BODIES,
        may_repeat=st.booleans(),
    )
    def renew(self, pair: Pair, timeout_s: int, body: bytes | None, *, may_repeat: bool) -> Any:
        oracle, tested = (
            c.Renew(
                ACCOUNT,
                pair.queue,
                lease.message.message_id,
                lease.receipt,
                timeout_s,
                body,
                may_repeat=may_repeat,
            )
            for lease in (pair.oracle, pair.tested)
        )
        return self.keep(self.both([oracle], [tested]), [pair.queue])

    @rule(pairs=st.lists(leases, min_size=1, max_size=4), crossed=st.booleans(), queue=QUEUES)
    def complete(self, pairs: list[Pair], crossed: bool, queue: str) -> None:
        """Complete several; crossed, with receipts of the wrong messages or queues."""
        shifted = pairs[1:] + pairs[:1] if crossed else pairs
        batches = [
            [
                c.Complete(
                    ACCOUNT,
                    queue if crossed else pair.queue,
                    getattr(pair, side).message.message_id,
                    getattr(other, side).receipt,
                )
                for pair, other in zip(pairs, shifted, strict=True)
            ]
            for side in ("oracle", "tested")
        ]
        self.both(batches[0], batches[1])

    @rule(queue=QUEUES)
    def clear(self, queue: str) -> None:
        self.both([c.Clear(ACCOUNT, queue)])

    @rule(queue=QUEUES)
    def delete_and_create(self, queue: str) -> None:
        self.both([c.DeleteQueue(ACCOUNT, queue)])
        self.both([c.Peek(ACCOUNT, queue, 1), c.CreateQueue(ACCOUNT, queue, {"again": "yes"})])

    @rule(move_ms=MOVES_MS)
    def move_clock(self, move_ms: int) -> None:
        self.clock.advance(ms=move_ms)

    @rule(limit=LIMITS, grace_ms=st.sampled_from([0, 10_000]))
    def sweep(self, limit: int, grace_ms: int) -> None:
        before_ms = self.clock.now_ms() - grace_ms
        self.both([c.RetireExpired(limit), c.RemoveRetired(before_ms, limit)])
        self.both([c.ReapDropped(limit)])

    @rule()
    def reopen(self) -> None:
        """Closing and opening the store again changes nothing."""
        self.tested.close()
        self.tested = self.open_tested()
        self.forget()

    @invariant()
    def counts_agree(self) -> None:
        self.both([c.GetQueue(ACCOUNT, "videos"), c.GetQueue(ACCOUNT, "audio")])
