"""Whose turn it is, found out from the rows of a database that was closed."""

from __future__ import annotations

from pathlib import Path

from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.model import Detail
from leasehold.domain.queue_settings import GroupOrder, GroupSettings, QueueSettings
from leasehold.stores.sqlite import SqliteStore

NOW_MS = 1_767_225_600_000


def test_groups_after_a_restart(tmp_path: Path) -> None:
    """What waits, what is on a lease, and what is in claims comes in its order."""
    settings = QueueSettings(groups=GroupSettings(order=GroupOrder.FIFO))
    puts = [
        c.Put("a", "q", body.encode(), 0, None, b"e" * 10, Detail(group_id=body[0]))
        for body in ("a1", "b1", "c1", "a2", "b2", "c2")
    ]

    def ask(store: SqliteStore, *commands: AnyCommand, s: int = 0) -> list[c.Result]:
        results = store.execute(commands, now_ms=NOW_MS + s * 1000)
        store.commit()
        return results

    def bodies(store: SqliteStore, s: int) -> list[bytes]:
        (leases,) = ask(store, c.Receive("a", "q", 10, 100), s=s)
        assert isinstance(leases, tuple)
        return [lease.message.body for lease in leases]

    store = SqliteStore(tmp_path)
    ask(store, c.CreateQueue("a", "q", {}, settings), *puts)
    ask(store, c.Receive("a", "q", 1, 20))
    (stream,) = ask(store, cl.AttachStream("a", "q", "s"))
    assert isinstance(stream, cl.Stream)
    ask(store, cl.OpenClaim("a", "q", "s", stream.token, 1, 1, 30))
    store.close()

    store = SqliteStore(tmp_path)
    assert bodies(store, 1) == [b"c1", b"c2"]
    assert bodies(store, 19) == []
    assert bodies(store, 20) == [b"a1", b"a2"]
    store.close()

    store = SqliteStore(tmp_path)
    assert bodies(store, 30) == [b"b1", b"b2"]
    store.close()
