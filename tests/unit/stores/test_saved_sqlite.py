"""What holders save has a table of its own in SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.commands import REMOVE_SAVED
from leasehold.domain.model import Lease, Outcome
from leasehold.stores.sql import statements
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, QUEUE, Asker

SAVED = '{"page":"' + "x" * 60_000 + '"}'


class Tried(Asker):
    """A store of which the tables are looked at."""

    def __init__(self, folder: Path) -> None:
        self.sqlite = SqliteStore(folder, cache_mib=2)
        super().__init__(self.sqlite, ManualClock())
        self.create()

    def saved(self, count: int = 1) -> list[Lease]:
        """Return leases of so many new messages, each with something saved."""
        for _ in range(count):
            self.put()
        return [
            self.ask(self.renew_command(lease, 60)._replace(saved=SAVED))
            for lease in self.receive(count)
        ]

    def rows(self) -> list[Any]:
        """Return all that is saved."""
        sql = "SELECT content FROM message_saved"
        return [content for (content,) in self.sqlite._state.cursor.execute(sql)]

    def sizes(self) -> list[int]:
        """Return the sizes of the rows that change with every lease."""
        sql = "SELECT length(coalesce(detail, '')) + length(body) FROM message"
        return [size for (size,) in self.sqlite._state.cursor.execute(sql)]


@pytest.fixture
def tried(tmp_path: Path) -> Iterator[Tried]:
    made = Tried(tmp_path)
    yield made
    made.sqlite.close()


def test_a_lease_does_not_write_it_again(tried: Tried) -> None:
    """The row of the message stays small, whatever becomes of its leases."""
    (lease,) = tried.saved()
    tried.fail(lease)
    lease = tried.receive_one()
    tried.clock.advance(s=60)
    tried.release(tried.receive_one(), Outcome.BURIED)
    assert tried.rows() == [SAVED]
    assert max(tried.sizes()) < 1_000


@pytest.mark.parametrize("set_wise", [1, 1_000])
@pytest.mark.parametrize("how", ["complete", "remove", "clear", "claim", "expire", "saved nothing"])
def test_nothing_is_left_over(
    tried: Tried, monkeypatch: pytest.MonkeyPatch, how: str, set_wise: int
) -> None:
    """Whatever removes messages, one or many at once."""
    monkeypatch.setattr(statements, "SET_WISE", set_wise)
    leases = tried.saved(3)
    assert len(tried.rows()) == 3
    if how == "complete":
        tried.batch(*map(tried.complete_command, leases))
    elif how == "remove":
        for lease in leases:
            tried.remove(lease, force=True)
    elif how == "clear":
        tried.ask(c.Clear(ACCOUNT, QUEUE))
    elif how == "claim":
        tried.batch(*map(tried.release_command, leases))
        tried.attach()
        tried.claim()
        tried.settle()
    elif how == "expire":
        tried.clock.advance(s=604_800)
        tried.ask(c.RetireExpired(10))
        assert len(tried.rows()) == 3  # a clock that was wrong is put right within the grace
        tried.ask(c.RemoveRetired(tried.clock.now_ms() + 1, 10))
    else:
        for lease in leases:
            tried.ask(tried.renew_command(lease, 60)._replace(saved=REMOVE_SAVED))
    tried.ask(c.ReapDropped(100))
    assert tried.rows() == []


def test_an_undone_batch_saves_nothing(tried: Tried) -> None:
    """Neither what is new nor what it took the place of is lost."""
    (lease,) = tried.saved()
    command = tried.renew_command(lease, 60)._replace(saved="2")
    tried.sqlite.execute([command], now_ms=tried.clock.now_ms())
    tried.sqlite._roll_back()
    assert tried.rows() == [SAVED]
    assert tried.find(lease).message == lease.message
