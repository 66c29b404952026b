"""Health and metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from leasehold import __version__
from leasehold.domain.admin import CountGroups, Counts, GroupPage
from leasehold.domain.claims import ClaimState
from leasehold.domain.events import Extent
from leasehold.domain.model import GroupFigures, MessageState
from leasehold.domain.sessions import SessionState
from leasehold.engine.account_router import ServerEngine
from leasehold.engine.engine import Counted, Served
from leasehold.engine.stats import CLAIM_STATES, NOTHING, EngineStats, QueueStats, Totals
from leasehold.http.admission import Admission
from leasehold.http.app import RequestStats
from leasehold.http.guard import ConnectionLimits, Guard
from leasehold.http.requests import Response
from leasehold.server.admin import AdminPages
from leasehold.server.metrics import Metrics
from leasehold.stores.base import StoreHealth
from leasehold.testing import ManualClock

LEASED = MessageState.LEASED


class StubEngine:
    """What the pages ask of an engine."""

    def __init__(self) -> None:
        self.stats = EngineStats()
        self.failed = asyncio.Event()
        self.writable = True
        self.counted: list[Counted] = []
        self.totals_taken = NOTHING
        self.exporter: Any = None
        self.bodies: Any = None
        self.unreachable: set[int] = set()
        self.relocated: set[str] = set()
        self.asked_groups: dict[str, GroupFigures] = {}

    async def counts(self) -> list[Counted]:
        """See ``Engine.counts``."""
        return self.counted

    async def totals(self) -> Totals:
        """See ``Engine.totals``."""
        return self.totals_taken

    def health(self) -> StoreHealth:
        """See ``Engine.health``."""
        return StoreHealth(
            kind="stub", durable=True, writable=self.writable, details={"synchronous": 2}
        )

    def stores(self) -> list[Served]:
        """See ``AccountRouter.stores``."""
        failed = self.failed.is_set()
        return [
            Served(accounts, self.health(), failed and not at, at not in self.unreachable)
            for at, accounts in enumerate([(), ("shop", "till"), ("bank",)])
        ]

    def is_relocated(self, account: str) -> bool:
        """See ``Engine.is_relocated``."""
        return account in self.relocated

    async def perform(self, command: Any) -> Any:
        """See ``Engine.perform``."""
        assert isinstance(command, CountGroups)
        assert self.asked_groups
        return GroupPage(self.asked_groups, None, {})


class World:
    """Pages over a stub engine."""

    def __init__(
        self, *, max_queues: int = 1_000, groups: int = 0, old_names: bool = False
    ) -> None:
        self.engine = StubEngine()
        self.requests = RequestStats()
        self.guard = Guard(ConnectionLimits(), ManualClock())
        self.draining = False
        self.metrics = Metrics(
            requests=self.requests,
            engine=cast("ServerEngine", self.engine),
            admission=Admission(self.engine.perform, limit=1),
            guard=self.guard,
            clock=ManualClock(),
            max_queues=max_queues,
            groups=groups,
            old_names=old_names,
        )
        self.pages = AdminPages(
            engine=cast("ServerEngine", self.engine),
            guard=self.guard,
            clock=ManualClock(),
            draining=lambda: self.draining,
            metrics=self.metrics,
            accounts=["till", "shop", "bank", "mine"],
        )

    def answer(self, path: str) -> Response:
        """Return the answer to a GET."""
        return asyncio.run(self.pages.answer(path))

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Return what a scraper would read from the metrics."""
        text = self.answer("/metrics").body.decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
def world() -> World:
    """Pages of a healthy server."""
    return World()


def fail(world: World) -> None:
    """Let the store fail."""
    world.engine.failed.set()


def drain(world: World) -> None:
    """Let the server stop."""
    world.draining = True


def fill(world: World) -> None:
    """Let the disk be full."""
    world.engine.writable = False


def test_process_is_up(world: World) -> None:
    """/healthz says that the process answers, whatever the store is like."""
    fail(world)
    assert world.answer("/healthz")[::2] == (200, b"ok\n")


def test_readiness_says_how_the_store_is(world: World) -> None:
    """/readyz repeats what the store says of itself, and the version."""
    answer = world.answer("/readyz")
    assert answer.status == 200
    store = {
        "kind": "stub",
        "failed": False,
        "reachable": True,
        "bodies_known": True,
        "durable": True,
        "writable": True,
        "details": {"synchronous": 2},
    }
    assert json.loads(answer.body) == {
        "ready": True,
        "draining": False,
        "version": __version__,
        "store": store,
        "account_stores": [
            {"accounts": ["shop", "till"], "ready": True, **store},
            {"accounts": ["bank"], "ready": True, **store},
        ],
        "accounts_away": [],
        "load": {
            "crowded": False,
            "connections": 0,
            "max_connections": 4_096,
            "buffered_bytes": 0,
            "max_buffered_bytes": 134_217_728,
            "unproved_bytes": 0,
            "max_unproved_bytes": 33_554_432,
        },
        "clock": {"wall_drift_s": 0.0},
    }


@pytest.mark.parametrize("trouble", [fail, drain])
def test_server_that_should_get_no_requests_is_not_ready(
    world: World, trouble: Callable[[World], None]
) -> None:
    """A failed store and a stopping server are reasons to go elsewhere."""
    trouble(world)
    answer = world.answer("/readyz")
    assert answer.status == 503
    assert json.loads(answer.body)["ready"] is False


def test_every_store_must_be_there(world: World) -> None:
    """A server is ready when it reaches all its stores; the report names the one that is away."""
    world.engine.unreachable = {2}
    answer = world.answer("/readyz")
    assert answer.status == 503
    report = json.loads(answer.body)
    assert report["ready"] is False
    assert report["store"]["reachable"] is True
    assert [(each["accounts"], each["ready"]) for each in report["account_stores"]] == [
        (["shop", "till"], True),
        (["bank"], False),
    ]
    world.engine.unreachable = {0}
    assert world.answer("/readyz").status == 503


def test_accounts_that_have_moved_are_named(world: World) -> None:
    """The server is ready for the others; an account that it does not serve is of no interest."""
    world.engine.relocated = {"till", "mine", "theirs"}
    answer = world.answer("/readyz")
    assert answer.status == 200
    assert json.loads(answer.body)["accounts_away"] == ["mine", "till"]


def test_full_disk_is_told_but_keeps_the_server_ready(world: World) -> None:
    """Consumers must get through to a server whose disk is full: they alone make room."""
    fill(world)
    answer = world.answer("/readyz")
    assert answer.status == 200
    assert json.loads(answer.body)["store"]["writable"] is False


def test_a_server_without_room_is_not_ready(world: World) -> None:
    """/readyz says 503 while requests are refused for want of room, and what is held."""
    world.guard.buffered = 134_217_728
    world.guard.note_crowded()
    answer = world.answer("/readyz")
    assert answer.status == 503
    load = json.loads(answer.body)["load"]
    assert (load["crowded"], load["buffered_bytes"]) == (True, 134_217_728)
    world.guard.now_s += 5
    assert world.answer("/readyz").status == 200


def test_metrics_can_be_left_out(world: World) -> None:
    """Without metrics there is no such page."""
    pages = AdminPages(
        engine=cast("ServerEngine", world.engine),
        guard=world.guard,
        clock=ManualClock(),
        draining=lambda: False,
        metrics=None,
    )
    assert pages.paths == {"/healthz", "/readyz"}


def test_requests_are_told_by_operation_and_status(world: World) -> None:
    """Requests and durations appear under the operation's name."""
    for status, duration_s in ((200, 0.0003), (200, 0.003), (503, 9.0)):
        world.requests.answered("put-message", status)
        world.requests.took(duration_s)
    samples = world.samples()
    verb = ("verb", "put-message")
    assert samples["leasehold_server_requests_total", (("status", "200"), verb)] == 2
    assert samples["leasehold_server_requests_total", (("status", "503"), verb)] == 1
    assert samples["leasehold_server_request_seconds_bucket", (("le", "0.0005"), verb)] == 1
    assert samples["leasehold_server_request_seconds_bucket", (("le", "0.005"), verb)] == 2
    assert samples["leasehold_server_request_seconds_bucket", (("le", "+Inf"), verb)] == 3
    assert samples["leasehold_server_request_seconds_count", (verb,)] == 3
    assert samples["leasehold_server_request_seconds_sum", (verb,)] == pytest.approx(9.0033)


def test_commits_and_refusals_are_told(world: World) -> None:
    """The wait for the disk, batches, connections and refusals appear."""
    world.engine.stats.batches, world.engine.stats.commands = 2, 7
    world.engine.stats.commit_seconds.observe(0.002)
    world.guard.refused["slow_reader"] += 3
    fill(world)
    samples = world.samples()
    assert samples["leasehold_server_fsync_seconds_bucket", (("le", "0.0025"),)] == 1
    assert samples["leasehold_server_batches_total", ()] == 2
    assert samples["leasehold_server_commands_total", ()] == 7
    assert samples["leasehold_server_refused_connections_total", (("reason", "slow_reader"),)] == 3
    assert samples["leasehold_server_refused_connections_total", (("reason", "malformed"),)] == 0
    assert samples["leasehold_server_store_writable", ()] == 0
    assert samples["leasehold_server_info", (("version", __version__),)] == 1
    assert samples["process_resident_memory_bytes", ()] > 0


def test_queues_are_told_up_to_a_limit() -> None:
    """Queues beyond the limit are added up, so that the page stays bounded."""
    world = World(max_queues=2)
    for number in range(5):
        stats = world.engine.stats.queues["account", f"queue{number}"] = QueueStats()
        stats.sent, stats.completed = 10 + number, 1
    samples = world.samples()
    sent = {
        labels: value
        for (name, labels), value in samples.items()
        if name == "leasehold_queue_sent_total"
    }
    assert sent == {
        (("account", "account"), ("queue", "queue0")): 10,
        (("account", "account"), ("queue", "queue1")): 11,
        (("account", "_other"), ("queue", "_other")): 12 + 13 + 14,
    }
    other = (("account", "_other"), ("queue", "_other"))
    assert samples["leasehold_queue_completed_total", other] == 3


def test_every_counter_of_a_queue_is_told(world: World) -> None:
    """A counter that the engine gets must not be forgotten here."""
    stats = world.engine.stats.queues["account", "queue"] = QueueStats()
    counters = [name for name, value in vars_of(stats).items() if value == 0]
    for number, name in enumerate(counters):
        setattr(stats, name, 100 + number)
    told = {
        value for (name, labels), value in world.samples().items() if ("queue", "queue") in labels
    }
    assert told == {100 + number for number in range(len(counters))}


def vars_of(stats: QueueStats) -> dict[str, object]:
    return {name: getattr(stats, name) for name in dir(stats) if not name.startswith("_")}


def test_messages_waiting_are_told_for_every_queue(world: World) -> None:
    """The gauge has a line per queue, empty ones too, and adds up those above the limit."""
    now_ms = ManualClock().now_ms()
    world.engine.counted = [
        Counted(
            "a",
            f"queue{number}",
            Counts(number, 2, 3, 4, 5, {LEASED: now_ms - 1500}, expired=6),
            30,
        )
        for number in range(3)
    ]
    text = world.answer("/metrics").body.decode()
    for number in range(3):
        labels = f'account="a",queue="queue{number}"'
        assert f'leasehold_queue_messages{{{labels},state="visible"}} {number}.0' in text
        assert f'leasehold_queue_messages{{{labels},state="poisoned"}} 5.0' in text
        assert f'leasehold_queue_messages{{{labels},state="expired"}} 6.0' in text
        assert f'leasehold_queue_oldest_message_seconds{{{labels},state="leased"}} 1.5' in text
        assert f"leasehold_queue_visibility_timeout_seconds{{{labels}}} 30.0" in text


def test_counts_of_queues_above_the_limit_are_added_up() -> None:
    """By state; their ages and timeouts are left out."""
    world = World(max_queues=1)
    counts = Counts(1, 2, 3, 4, 5, {LEASED: 0})
    world.engine.counted = [Counted("a", f"queue{number}", counts, 30) for number in range(4)]
    text = world.answer("/metrics").body.decode()
    assert 'leasehold_queue_messages{account="_other",queue="_other",state="leased"} 6.0' in text
    assert text.count("leasehold_queue_visibility_timeout_seconds{") == 1


def test_groups_are_told() -> None:
    """Those of queues that have any; of most only how many, and of the largest their messages."""
    world = World(groups=2)
    now_ms = ManualClock().now_ms()
    asked = world.engine.asked_groups = {
        "a": GroupFigures(2, 1, 0, 0, now_ms - 1_500),
        "b": GroupFigures(0, 40, 0, 0, None),
        "c": GroupFigures(9, 0, 0, 0, now_ms - 500),
        "d": GroupFigures(0, 0, 3, 0, None),
    }
    counts = Counts(11, 41, 3, 0, 0, {}, halted_groups=3, held_groups=4)
    world.engine.counted = [
        Counted("x", name, counts, 30, has_groups=name == "q") for name in ("q", "plain")
    ]
    samples = world.samples()

    def of_queue(name: str, **labels: str) -> float:
        named = {"account": "x", "queue": "q"} | labels
        return samples[name, tuple(sorted(named.items()))]

    assert [of_queue(f"leasehold_queue_{name}_groups") for name in ("halted", "held")] == [3, 4]
    told = {
        state: of_queue("leasehold_queue_groups", state=state) for state in ("waiting", "in_flight")
    }
    assert told == {"waiting": 2, "in_flight": 2}
    assert of_queue("leasehold_queue_groups", state="noisy") == 1
    assert of_queue("leasehold_queue_groups_age_seconds") == 0
    own = {
        dict(labels)["group"]
        for name, labels in samples
        if name == "leasehold_queue_group_messages"
    }
    assert own == {"c", "a"}
    assert (
        of_queue("leasehold_queue_group_messages", group="a", state="visible") == asked["a"].waiting
    )
    assert of_queue("leasehold_queue_group_messages", group="a", state="leased") == 1
    assert of_queue("leasehold_queue_group_oldest_message_seconds", group="a") == 1.5
    assert not any(
        "plain" in dict(labels).values() for name, labels in samples if "_group_" in name
    )


def test_groups_are_not_counted_unless_asked_for(world: World) -> None:
    """It costs time, and names of groups are for those to see who ask for them."""
    world.engine.counted = [Counted("x", "q", Counts(1, 0, 0, 0, 0, {}), 30, has_groups=True)]
    assert not any(name.startswith("leasehold_queue_group") for name, _ in world.samples())


def test_sessions_claims_and_the_log_are_told(world: World) -> None:
    """Gauges by state, and how many sessions were lost since the start."""
    now_ms = ManualClock().now_ms()
    claims = dict.fromkeys(CLAIM_STATES, 0) | {ClaimState.OPEN: 2, ClaimState.BROKEN: 1}
    world.engine.totals_taken = Totals(
        sessions={("a", SessionState.LIVE): 3, ("a", SessionState.LOST): 1},
        lost_sessions=4,
        claims={("a", "queue"): claims},
        log=Extent(11, 20, 4096, now_ms - 90_000),
    )
    counts = Counts(1, 9, 0, 0, 0, {}, staged=7, claimed=8)
    world.engine.counted = [Counted("a", "queue", counts, 30)]
    text = world.answer("/metrics").body.decode()
    of_queue = 'account="a",queue="queue"'
    for line in (
        'leasehold_server_sessions{account="a",state="live"} 3.0',
        'leasehold_server_sessions{account="a",state="lost"} 1.0',
        "leasehold_server_sessions_lost_total 4.0",
        f'leasehold_queue_claims{{{of_queue},state="open"}} 2.0',
        f'leasehold_queue_claims{{{of_queue},state="lapsed"}} 0.0',
        f'leasehold_queue_claims{{{of_queue},state="broken"}} 1.0',
        f"leasehold_queue_claimed_messages{{{of_queue}}} 8.0",
        f"leasehold_queue_staged_messages{{{of_queue}}} 7.0",
        f'leasehold_queue_messages{{{of_queue},state="leased"}} 9.0',
        "leasehold_server_event_batches 10.0",
        "leasehold_server_event_bytes 4096.0",
        "leasehold_server_event_oldest_seconds 90.0",
    ):
        assert f"\n{line}\n" in text


def test_the_export_and_large_bodies_are_told(world: World) -> None:
    """As the engine has counted them; zero where there is neither."""
    names = (
        *("events_exported_total", "event_files_total", "event_batches_forgotten_total"),
        *("event_batches_lost_total", "event_export_lag_batches", "event_export_lag_seconds"),
        *("bodies_written_total", "bodies_read_total", "bodies_removed_total"),
        *("bodies_orphaned_total", "bodies_unreadable_total"),
    )
    samples = world.samples()
    assert [samples[f"leasehold_server_{name}", ()] for name in names] == [0] * len(names)
    world.engine.exporter = SimpleNamespace(
        exported=1, files=2, trimmed=3, lost=4, lag_batches=5, lag_s=lambda: 6.5
    )
    world.engine.bodies = SimpleNamespace(
        written=7, removed=9, orphans=10, reader=SimpleNamespace(read=8, unreadable=11)
    )
    samples = world.samples()
    told = [samples[f"leasehold_server_{name}", ()] for name in names]
    assert told == [1, 2, 3, 4, 5, 6.5, 7, 8, 9, 10, 11]


def test_an_empty_log_has_no_age(world: World) -> None:
    """Numbers go on when everything was forgotten; what is kept is nothing then."""
    world.engine.totals_taken = NOTHING._replace(log=Extent(21, 20, 0, None))
    samples = world.samples()
    for name in ("batches", "bytes", "oldest_seconds"):
        assert samples[f"leasehold_server_event_{name}", ()] == 0


def test_old_names_are_told_beside_the_new_ones(world: World) -> None:
    """For dashboards of 0.1, where they are asked for; the same figures, each once."""
    assert all(name.startswith(("leasehold_", "process_")) for name, _ in world.samples()), (
        "every figure of ours has the prefix"
    )
    told = World(old_names=True).samples()
    new = {key: value for key, value in told.items() if key[0].startswith("leasehold_")}
    old = {key for key in told if not key[0].startswith(("leasehold_", "process_"))}
    assert {(f"leasehold_{name}", labels) for name, labels in old} == set(new)
    assert told["server_store_writable", ()] == new["leasehold_server_store_writable", ()]
