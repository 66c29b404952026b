"""Random work in queues that groups share, checked by what was promised them.

Whose turn it is may differ between stores where several have the same claim to it, so each store is
held to the promises by itself: nobody gets more than its limit, or out of order; nothing that could
be received is withheld; and groups that wait are served by their weights.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain import groups as turns
from leasehold.domain import sessions as s
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.model import ENTROPY_BYTES, Detail, Lease, Outcome
from leasehold.domain.queue_settings import GroupOrder, GroupSettings, QueueSettings
from leasehold.stores.base import Store
from leasehold.stores.memory.store import MemoryStore
from leasehold.stores.sqlite import SqliteStore
from tests.postgres import find_programs, open_empty

ACCOUNT, QUEUE = "coho", "videos"
GROUPS = ("a", "b", "c")
LEASE_S = 30
LONG_S = 2_000
"""After it no group is remembered for what it had in work."""

POLICIES = st.builds(
    GroupSettings,
    order=st.sampled_from(GroupOrder),
    fair=st.just(True),
    weights=st.dictionaries(st.sampled_from(GROUPS), st.integers(1, 4), max_size=2),
    max_in_flight=st.sampled_from([None, 1, 3]),
    max_in_flight_of=st.dictionaries(st.sampled_from(GROUPS), st.integers(1, 2), max_size=1),
    limit_noisy=st.booleans(),
)


@dataclass(slots=True)
class Waits:
    """A message that is not completed, as far as is known outside."""

    group: str
    place: tuple[int, int]
    """In its group."""
    visible_at_ms: int
    was_received: bool = False


class Held(NamedTuple):
    """A message on a lease, as far as is known outside."""

    lease: Lease
    until_ms: int
    session: str | None


class FairGroups(RuleBasedStateMachine):
    """What consumers do, and what they were promised."""

    folder: Path | None = None
    """Of a store that can be closed and opened again."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_800_000_000_000
        self.store = self.open()
        self.drawn = 0
        self.waiting: dict[str, Waits] = {}
        self.places: list[str] = []
        """All messages, in the order of their puts."""
        self.held: dict[str, Held] = {}
        self.sessions: list[str] = []

    def open(self) -> Store:
        """Return an empty store."""
        return MemoryStore()

    def teardown(self) -> None:
        self.store.close()

    def ask(self, *commands: Any) -> Any:
        results = self.store.execute(commands, now_ms=self.now_ms)
        self.store.commit()
        return list(results)

    def entropy(self) -> bytes:
        self.drawn += 1
        return self.drawn.to_bytes(ENTROPY_BYTES, "big")

    @initialize(policy=POLICIES)
    def create(self, policy: GroupSettings) -> None:
        self.policy = policy
        self.ask(c.CreateQueue(ACCOUNT, QUEUE, {}))
        self.govern(policy)
        self.open_session()

    def govern(self, policy: GroupSettings) -> None:
        self.ask(c.SetQueueSettings(ACCOUNT, QUEUE, QueueSettings(groups=policy)))

    @rule(policy=POLICIES)
    def change(self, policy: GroupSettings) -> None:
        """Weights and limits change, and the order; what is on leases stays."""
        self.policy = policy
        self.govern(policy)

    @rule()
    def open_session(self) -> None:
        (session,) = self.ask(s.OpenSession(ACCOUNT, "worker", self.entropy(), 60))
        self.sessions.append(session.session_id)

    @rule(groups=st.lists(st.sampled_from(GROUPS), min_size=1, max_size=6))
    def put(self, groups: list[str]) -> None:
        puts = [
            c.Put(ACCOUNT, QUEUE, b"x", 0, None, self.entropy(), Detail(group_id=group))
            for group in groups
        ]
        for group, lease in zip(groups, self.ask(*puts), strict=True):
            place = self.now_ms, len(self.places)
            self.places.append(lease.message.message_id)
            self.waiting[lease.message.message_id] = Waits(group, place, self.now_ms)

    def in_flight(self) -> dict[str, Held]:
        """Return what is on leases now."""
        return {key: held for key, held in self.held.items() if held.until_ms > self.now_ms}

    @rule(limit=st.integers(1, 6), in_session=st.booleans())
    def receive(self, limit: int, in_session: bool) -> None:
        """Nobody gets more than its limit, or out of order; what could be received is."""
        session = self.sessions[-1] if in_session else None
        before = self.in_flight()
        standing = {
            each.group
            for each in self.waiting.values()
            if each.was_received and each.visible_at_ms > self.now_ms
        }
        (leases,) = self.ask(c.Receive(ACCOUNT, QUEUE, limit, LEASE_S, None, session))
        if isinstance(leases, LeaseholdError):
            assert session is not None  # it is over
            return
        for lease in leases:
            key = lease.message.message_id
            assert key not in before
            assert self.waiting[key].visible_at_ms <= self.now_ms
        if self.policy.order is GroupOrder.FIFO:
            self.check_order(standing, [lease.message.message_id for lease in leases])
        for lease in leases:
            key, until_ms = lease.message.message_id, self.now_ms + LEASE_S * 1_000
            self.held[key] = Held(lease, until_ms, session)
            self.waiting[key].visible_at_ms, self.waiting[key].was_received = until_ms, True
        counts = Counter(self.waiting[key].group for key in self.in_flight())
        for group in {self.waiting[lease.message.message_id].group for lease in leases}:
            assert counts[group] <= (self.policy.limit_of(group) or counts[group])
        if len(leases) < limit:
            self.check_nothing_withheld(standing, counts)

    def check_order(self, standing: set[str], keys: list[str]) -> None:
        for group in GROUPS:
            given = [key for key in keys if self.waiting[key].group == group]
            assert not given or group not in standing
            own = sorted(
                (each.place, key)
                for key, each in self.waiting.items()
                if each.group == group and each.visible_at_ms <= self.now_ms
            )
            assert given == [key for _, key in own][: len(given)]

    def check_nothing_withheld(self, standing: set[str], counts: Counter[str]) -> None:
        is_ordered = self.policy.order is GroupOrder.FIFO
        visible = {e.group for e in self.waiting.values() if e.visible_at_ms <= self.now_ms}
        for group in visible:
            limit = self.policy.limit_of(group)
            is_full = limit is not None and counts[group] >= limit
            if is_full or (is_ordered and (group in standing or counts[group])):
                continue
            (look,) = self.ask(o.LookAtGroup(ACCOUNT, QUEUE, group))
            assert counts[group] >= (look.noisy_limit or 1_000), group

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["complete", "complete", "fail"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        """Settle one; what has lapsed may be settled until another consumer has it."""
        key = data.draw(st.sampled_from(sorted(self.held)), label="message")
        lease = self.held.pop(key).lease
        named = ACCOUNT, QUEUE, key, lease.receipt
        if how == "complete":
            (result,) = self.ask(c.Complete(*named))
            if not isinstance(result, LeaseholdError):
                del self.waiting[key]
        else:
            (result,) = self.ask(c.Release(*named, Outcome.FAILED, 0))
            if not isinstance(result, LeaseholdError):
                self.waiting[key].visible_at_ms = self.now_ms

    @rule(seconds=st.sampled_from([0.3, 2, 31, 70]))
    def pass_time(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1_000)

    @rule(seconds=st.sampled_from([0.5, 5, 40]))
    def set_the_clock_back(self, seconds: float) -> None:
        """What became visible since is so no more, and leases last longer."""
        self.now_ms -= round(seconds * 1_000)

    @rule()
    def kill_a_worker(self) -> None:
        """All its leases end, and whoever is next gets its messages."""
        session = self.sessions[-1]
        self.ask(s.EndSession(ACCOUNT, session))
        for key, held in list(self.held.items()):
            if held.session == session:
                del self.held[key]
                if held.until_ms > self.now_ms:
                    self.waiting[key].visible_at_ms = self.now_ms
        self.open_session()

    @rule()
    def restart(self) -> None:
        """A server that is killed knows only what stands in its rows."""
        if self.folder is not None:
            self.store.close()
            self.store = SqliteStore(self.folder)

    @rule()
    def serve(self) -> None:
        """Those that wait all the time are served by their weights, whatever was before."""
        for key in list(self.held):
            lease = self.held.pop(key).lease
            (result,) = self.ask(c.Complete(ACCOUNT, QUEUE, key, lease.receipt))
            if not isinstance(result, LeaseholdError):
                del self.waiting[key]
        for _ in range(2):
            self.now_ms += LONG_S * 1_000
            self.open_session()
            self.serve_one()
        self.put([group for group in GROUPS for _ in range(30)])
        for _ in range(15):  # by then a turn that cost more is made up for
            self.serve_one()
        counts = Counter(self.serve_one() for _ in range(15))
        shares = {group: counts[group] / self.policy.weights.get(group, 1) for group in GROUPS}
        most = max(GROUPS, key=lambda group: shares[group])
        for group in GROUPS:
            weights = (self.policy.weights.get(each, 1) for each in (most, group))
            assert shares[most] - shares[group] <= sum(1 / weight for weight in weights) + 1e-6

    def serve_one(self) -> str | None:
        """Receive and complete one message; return its group."""
        (leases,) = self.ask(c.Receive(ACCOUNT, QUEUE, 1, LEASE_S))
        for lease in leases:
            key = lease.message.message_id
            self.ask(c.Complete(ACCOUNT, QUEUE, key, lease.receipt))
            self.held.pop(key, None)
            return self.waiting.pop(key).group
        return None


class FairGroupsOnSqlite(FairGroups):
    """The same on SQLite, whose server is killed now and then."""

    def open(self) -> Store:
        place = Path("/dev/shm")
        parent = place if place.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="lhfair", dir=parent))
        return SqliteStore(self.folder)

    def teardown(self) -> None:
        super().teardown()
        assert self.folder is not None
        shutil.rmtree(self.folder)


class FairGroupsOnPostgres(FairGroups):
    """The same on PostgreSQL."""

    def open(self) -> Store:
        return open_empty()


@contextmanager
def few_kept(patch: pytest.MonkeyPatch, kept: int = 2) -> Iterator[None]:
    """Have what is out of date forgotten after two and not a thousand, or yet sooner."""
    with patch.context() as patched:
        patched.setattr(turns, "_KEPT", kept)
        yield


def play(machine: type[RuleBasedStateMachine], examples: int) -> None:
    """Play scripts until one fails; to make that one shorter would take minutes."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("examples", [15, pytest.param(150, marks=pytest.mark.long)])
@pytest.mark.parametrize("machine", [FairGroups, FairGroupsOnSqlite])
def test_groups_get_what_was_promised(
    machine: type[RuleBasedStateMachine], examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, limits and order hold, and nothing is forgotten, whatever happens."""
    with few_kept(monkeypatch):
        play(machine, examples)


@pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")
def test_groups_get_what_was_promised_on_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with a database for many servers."""
    with few_kept(monkeypatch):
        play(FairGroupsOnPostgres, 5)


def turns_by_count(self: turns.Turns, group: turns.Group, rank: turns.Rank) -> None:
    """Serve groups in turn, whatever their weights."""
    self._virtual = rank[0]
    self._finish[group] = rank[0] + 1


def forget_before(self: turns.Turns) -> None:
    """Forget a moment too many of those at which groups are looked at."""
    self._calls.clear()


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("served", turns_by_count),
        ("_forget_moved", forget_before),
        ("limit_of", lambda *_: None),
        ("free", lambda *_: None),
    ],
)
def test_a_planted_fault_is_found(name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive controls: weights, limits and groups that are not kept to are noticed."""
    monkeypatch.setattr(turns.Turns, name, fault)
    with few_kept(monkeypatch, -8), pytest.raises((AssertionError, ExceptionGroup)):
        play(FairGroups, 400)
