"""How much one command may do at once, so that nobody waits long for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.filters import EVERYTHING, MessageFilter
from leasehold.domain.queue_settings import FailurePolicy, QueueSettings
from leasehold.stores.base import Store
from leasehold.stores.memory import MemoryStore, tables
from leasehold.stores.sql import messages as sqlite_messages
from leasehold.stores.sql import scanning
from leasehold.stores.sqlite import SqliteStore

NOW_MS = 1_767_225_600_000
LATER_MS = NOW_MS + 10_000
ONCE = QueueSettings(failure_policy=FailurePolicy(max_deliveries=1))


def ask_all(store: Store, commands: list[AnyCommand], now_ms: int = NOW_MS) -> list[Any]:
    """Carry commands out as one batch."""
    results = store.execute(commands, now_ms=now_ms)
    store.commit()
    return results


def ask(store: Store, command: AnyCommand, now_ms: int = NOW_MS) -> Any:
    """Carry one command out."""
    return ask_all(store, [command], now_ms)[0]


def put(store: Store, number: int, body: bytes = b"x", ttl_s: int | None = None) -> None:
    """Put some messages."""
    puts = [c.Put("a", "queue", body, 0, ttl_s, bytes([each] * 10)) for each in range(number)]
    ask_all(store, [*puts])


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteStore]:
    """Return a store with a queue."""
    store = SqliteStore(tmp_path, cache_mib=2)
    ask(store, c.CreateQueue("a", "queue", {}))
    yield store
    store.close()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest) -> Store:
    """Return each store in turn, with a queue."""
    if request.param == "sqlite":
        found: SqliteStore = request.getfixturevalue("sqlite")
        return found
    memory = MemoryStore()
    ask(memory, c.CreateQueue("a", "queue", {}))
    return memory


def test_a_receive_moves_some_poison_and_the_next_one_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue full of messages that are given up is moved in parts, and nothing is lost."""
    monkeypatch.setattr(tables, "POISONED_AT_ONCE", 10)
    monkeypatch.setattr(scanning, "POISONED_AT_ONCE", 10)
    put(store, 25)
    assert len(ask(store, c.Receive("a", "queue", 25, 1))) == 25
    ask(store, c.SetQueueSettings("a", "queue", ONCE))
    put(store, 1, b"new")
    given, poisoned = [], []
    for _ in range(4):
        leases = ask(store, c.Receive("a", "queue", 3, 30), LATER_MS)
        given.append([lease.message.body for lease in leases])
        poisoned.append(ask(store, o.CountMessages("a", "queue"), LATER_MS).poisoned)
    # The new one was visible before those that lapsed.
    assert given == [[b"new"], [], [], []]
    assert poisoned == [10, 20, 25, 25]


def test_a_peek_gives_up_among_poison(sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind very many messages that are given up, a peek finds nothing; it moves none."""
    monkeypatch.setattr(sqlite_messages, "_PEEKED_AT_ONCE", 8)
    put(sqlite, 40)
    ask(sqlite, c.Receive("a", "queue", 20, 1))
    ask_all(sqlite, [c.SetQueueSettings("a", "queue", ONCE), c.Receive("a", "queue", 20, 2)])
    ask(sqlite, c.SetQueueSettings("a", "queue", QueueSettings()))
    assert len(ask(sqlite, c.Peek("a", "queue", 1), LATER_MS)) == 1
    ask(sqlite, c.SetQueueSettings("a", "queue", ONCE))
    assert ask(sqlite, c.Peek("a", "queue", 1), LATER_MS) == ()
    assert ask(sqlite, o.CountMessages("a", "queue"), LATER_MS).visible == 40


@pytest.mark.parametrize("wanted", [{"json_path": "number"}, {}], ids=["searched", "listed"])
def test_a_look_ends_with_its_bytes(
    wanted: dict[str, Any], sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large bodies make short pages, and each message is on one of them."""
    monkeypatch.setattr(scanning, "SEARCHED_BYTES" if wanted else "READ_BYTES", 1000)
    puts = [
        c.Put(
            "a",
            "queue",
            json.dumps({"number": each, "rest": "x" * 300}).encode(),
            *(0, None, bytes([each] * 10)),
        )
        for each in range(21)
    ]
    ask_all(sqlite, [*puts])
    pages: list[list[int]] = []
    after: str | None = ""
    while after is not None:
        found = ask(sqlite, o.Inspect("a", "queue", MessageFilter(**wanted), after, 100))
        pages.append([json.loads(seen.message.body)["number"] for seen in found.messages])
        after = found.next_after
    assert [number for page in pages for number in page] == list(range(21))
    assert max(map(len, pages)) == 4


def test_a_job_goes_on_behind_large_bodies(
    sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that ends with its bytes skips nothing and does nothing twice."""
    monkeypatch.setattr(scanning, "SEARCHED_BYTES", 1000)
    put(sqlite, 21, b"x" * 300)
    plan = o.JobPlan(kind=o.JobKind.PURGE, filter=MessageFilter(text="xx"))
    job = ask(sqlite, o.StartJob("a", "queue", "job", plan))
    steps = 0
    while job.state is o.JobState.RUNNING:
        job = ask(sqlite, o.StepJob("job", 100))
        steps += 1
        assert steps < 20
    assert (job.examined, job.matched, job.moved) == (21, 21, 21)
    assert steps > 3
    assert ask(sqlite, o.CountMessages("a", "queue")).total == 0


def test_what_has_expired_is_not_sorted_either(
    sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small queue in which very many messages have expired is gone over as a large one is."""
    monkeypatch.setattr(scanning, "SORTED_UP_TO", 10)
    sorted_keys: list[str] = []
    fetch = sqlite._state.fetch

    def watch(query: str, bounds: tuple[object, ...] = ()) -> list[Any]:
        sorted_keys.append(query)
        return fetch(query, bounds)

    monkeypatch.setattr(sqlite._state, "fetch", watch)
    put(sqlite, 6, ttl_s=1)
    put(sqlite, 5)
    ask(sqlite, c.RetireExpired(100), LATER_MS)
    for limit, expected in ((10, "keys_by_age"), (11, "keys_by_visibility")):
        monkeypatch.setattr(scanning, "SORTED_UP_TO", limit)
        sorted_keys.clear()
        page = ask(sqlite, o.Inspect("a", "queue", EVERYTHING, "", 100), LATER_MS)
        assert len(page.messages) == 11
        assert expected in sorted_keys
