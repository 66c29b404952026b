"""Each setting of a queue does what it says, whichever way the store came to have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest

from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain.model import NEVER_MS, NO_DETAIL, Detail, Lease
from leasehold.domain.queue_settings import (
    Adaptive,
    Advised,
    FailurePolicy,
    GroupOrder,
    GroupSettings,
    LapsedReceipts,
    MnsAttributes,
    QueueSettings,
    TypeTimeout,
)
from leasehold.engine.maintenance import AdaptiveTimeouts
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, Asker

from .support import Place, move_between


def _settings(asker: Asker, queue: str) -> QueueSettings:
    found = asker.store.find_queue(ACCOUNT, queue)
    assert found is not None
    return found.settings


def _lease_s(asker: Asker, queue: str, *, sent: Detail = NO_DETAIL) -> float | None:
    if not isinstance(asker.put(queue=queue, detail=sent), Lease):
        return None
    lease = asker.receive_one(None, queue)
    return (lease.message.visible_at_ms - asker.clock.now_ms()) / 1000


def _takes_lapsed(asker: Asker, queue: str) -> bool:
    asker.put(queue=queue)
    lease = asker.receive_one(1, queue)
    asker.clock.advance(s=2)
    return bool(asker.complete(lease, queue) == c.DONE)


def _deliveries(asker: Asker, queue: str) -> int:
    asker.put(queue=queue)
    for number in range(3):
        if not asker.receive(1, 1, queue):
            return number
        asker.clock.advance(s=2)
    return 3


def _with_one_key(asker: Asker, queue: str) -> int:
    for _ in range(2):
        asker.put(queue=queue, detail=Detail(dedup_key="key"))
    return len(asker.receive(32, queue=queue))


def _first_of_two(asker: Asker, queue: str) -> bytes:
    asker.put("old", queue=queue, priority=9)
    asker.clock.advance(s=600)
    asker.put("urgent", queue=queue, priority=1)
    return asker.received(1, queue)[0]


def _handed_out(asker: Asker, queue: str) -> int:
    for _ in range(9):
        asker.put(queue=queue)
    return len(asker.receive(9, queue=queue))


def _is_watched(asker: Asker, queue: str) -> bool:
    found = asker.store.find_queue(ACCOUNT, queue)
    assert found is not None
    adaptive = AdaptiveTimeouts(asker.store.find_queue)
    adaptive.watch([found])
    return bool(adaptive.watched)


def _is_logged(asker: Asker, queue: str) -> bool:
    before = asker.ask(e.LogExtent()).last_seq
    asker.put(queue=queue)
    return bool(asker.ask(e.LogExtent()).last_seq > before)


Probe = Callable[[Asker, str], Any]


def _of_one_group(asker: Asker, queue: str) -> int:
    """Return how many messages of one group can be had one by one."""
    for _ in range(2):
        asker.put(queue=queue, detail=Detail(group_id="a"))
    return sum(len(asker.receive(1, queue=queue)) for _ in range(2))


CASES: Final[dict[str, tuple[dict[str, Any], Probe, Any]]] = {
    "visibility_timeout_s": ({"visibility_timeout_s": 77}, _lease_s, 77),
    "lapsed_receipts": ({"lapsed_receipts": LapsedReceipts.STRICT}, _takes_lapsed, False),
    "failure_policy": ({"failure_policy": FailurePolicy(max_lapses=1)}, _deliveries, 1),
    "dedup_window_s": ({"dedup_window_s": 0}, _with_one_key, 2),
    "priority_ageing_s": ({"priority_ageing_s": 1}, _first_of_two, b"old"),
    "paused_until_ms": ({"paused_until_ms": NEVER_MS}, _handed_out, 0),
    "pause_reason": ({"pause_reason": "x"}, lambda *of: _settings(*of).pause_reason, "x"),
    "max_receives_per_s": ({"max_receives_per_s": 4}, _handed_out, 4),
    "adaptive": ({"adaptive": Adaptive()}, _is_watched, True),
    "advised": (
        {"advised": Advised(batch=7)},
        lambda *of: _settings(*of).advised,
        Advised(batch=7),
    ),
    "max_body_bytes": (
        {"max_body_bytes": 99},
        lambda *of: _settings(*of).max_body_bytes,
        99,
    ),
    "event_log": ({"event_log": False}, _is_logged, False),
    "mns": (
        {"mns": MnsAttributes(delay_s=5)},
        lambda *of: _settings(*of).mns,
        MnsAttributes(delay_s=5),
    ),
    "groups": ({"groups": GroupSettings(order=GroupOrder.FIFO)}, _of_one_group, 1),
    "timeouts_by_type": (
        {"timeouts_by_type": {"a*": TypeTimeout(visibility_timeout_s=77, adaptive=Adaptive())}},
        lambda *of: _lease_s(*of, sent=Detail(message_type="ab")),
        77,
    ),
    "advised_by_type": (
        {"advised_by_type": {"a*": Advised(batch=7)}},
        lambda *of: _settings(*of).advised_by_type,
        {"a*": Advised(batch=7)},
    ),
    "max_message_timeout_s": (
        {"max_message_timeout_s": 77_000},
        lambda *of: _lease_s(*of, sent=Detail(visibility_timeout_s=77_000)),
        77_000,
    ),
}
"""What sets each setting to something that is not its default, how it shows, and what shows."""
PLACES: Final = ("sqlite", "postgres")


def _name(setting: str) -> str:
    return setting.replace("_", "-")


def _create(asker: Asker, *, with_them: bool) -> Asker:
    """Create a queue for each setting, with it or without."""
    for name, (members, *_) in CASES.items():
        settings = QueueSettings(**members) if with_them else QueueSettings()
        asker.ask(c.CreateQueue(ACCOUNT, _name(name), {}, settings))
    return asker


def _set(asker: Asker) -> Asker:
    for name, (members, *_) in CASES.items():
        command = c.SetQueueSettings(ACCOUNT, _name(name), QueueSettings(**members))
        assert asker.ask(command) == c.DONE
    return asker


class Ways:
    """The ways by which a store may come to have settings."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.other = "postgres" if kind == "sqlite" else "sqlite"
        self.opened: list[Asker] = []

    def open(self, kind: str, name: str) -> Asker:
        store = MemoryStore() if kind == "memory" else Place(kind, self.folder, name).open()
        self.opened.append(Asker(store, ManualClock()))
        return self.opened[-1]

    def close(self) -> None:
        for asker in self.opened:
            asker.store.close()
        self.opened.clear()

    def created(self) -> Asker:
        return _create(self.open(self.kind, "one"), with_them=True)

    def set_later(self) -> Asker:
        return _set(_create(self.open(self.kind, "one"), with_them=False))

    def restarted(self) -> Asker:
        self.created()
        self.close()
        return self.open(self.kind, "one")

    def moved(self, account: str | None = None) -> Asker:
        self.created()
        if account is not None:
            self.open(self.other, "two")
        self.close()
        ends = Place(self.kind, self.folder, "one"), Place(self.other, self.folder, "two")
        move_between(*ends, account)
        return self.open(self.other, "two")

    def moved_account(self) -> Asker:
        return self.moved(ACCOUNT)

    def second_server(self) -> Asker:
        asker = self.open(self.kind, "one")
        _set(_create(self.open(self.kind, "one"), with_them=False))
        asker.ask(c.ListQueues(ACCOUNT, "", "", 1))
        return asker


WAYS: Final = [
    *(("memory", way) for way in ("created", "set_later")),
    *(
        (kind, way)
        for kind in PLACES
        for way in ("created", "set_later", "restarted", "moved", "moved_account")
    ),
    ("postgres", "second_server"),
]


@pytest.fixture
def ways(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ways]:
    """The ways of a kind of store; what they open is closed in the end."""
    ways = Ways(request.param, tmp_path)
    yield ways
    ways.close()


def test_every_setting_is_here() -> None:
    """A setting that is added is to be tried, too; what the server chooses nobody sets."""
    chosen = {"adapted", "adapted_by_type"}
    assert {each.name for each in fields(QueueSettings)} == {*CASES, *chosen}


@pytest.mark.parametrize("ways", ["memory"], indirect=True)
def test_every_setting_shows(ways: Ways) -> None:
    """With its default each probe answers something else."""
    asker = _create(ways.open("memory", "one"), with_them=False)
    same = [
        name
        for name, (_, probe, expected) in CASES.items()
        if probe(asker, _name(name)) == expected
    ]
    assert not same


@pytest.mark.parametrize(("ways", "way"), WAYS, indirect=["ways"], ids=str)
def test_settings_hold(ways: Ways, way: str) -> None:
    """Each does what it says, set at creation or later, after a restart, a move, or elsewhere."""
    asker = getattr(ways, way)()
    found = {name: probe(asker, _name(name)) for name, (_, probe, _) in CASES.items()}
    assert found == {name: expected for name, (*_, expected) in CASES.items()}
