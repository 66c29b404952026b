"""Stores to move, of both kinds, and everything that can be asked of one."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain import transactions as sg
from leasehold.domain.model import NO_DETAIL, Detail
from leasehold.domain.queue_settings import QueueSettings
from leasehold.stores.base import Store
from leasehold.stores.migrate.checking import Checked, Level, check, read_sqlite
from leasehold.stores.migrate.ends import End
from leasehold.stores.migrate.migrate import Moved, Wanted, move, undo
from leasehold.stores.migrate.postgres import PostgresEnd, read_postgres
from leasehold.stores.migrate.sqlite import SqliteEnd
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.store import FILE_NAME
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, Asker
from tests.contract.stores.random_work import QUEUES, RandomWork
from tests.postgres import shared_cluster

OTHER = "other"


class Place:
    """Where a store is, or will be."""

    def __init__(self, kind: str, folder: Path, name: str) -> None:
        self.kind = kind
        self.folder = folder / name
        self.named = (
            str(self.folder)
            if kind == "sqlite"
            else f"{shared_cluster().url}&schema={folder.name[-20:].lower()}_{name}"
        )

    def open(self) -> Store:
        """Open it as a server does."""
        if self.kind == "sqlite":
            return SqliteStore(self.folder)
        return PostgresStore(self.named, name="tests")

    def end(self) -> End:
        """Open it as one end of a move."""
        return SqliteEnd(self.folder) if self.kind == "sqlite" else PostgresEnd(self.named)

    def check(self) -> list[Checked]:
        """Check it."""
        reading = (
            read_sqlite(self.folder / FILE_NAME)
            if self.kind == "sqlite"
            else read_postgres(self.named)
        )
        with reading as reader:
            return list(check(reader))

    def problems(self) -> list[Checked]:
        """Return what the check finds wrong."""
        return [each for each in self.check() if each.level is not Level.OK]


def move_between(source: Place, target: Place, account: str | None = None, **more: Any) -> Moved:
    """Move a store, or an account of it."""
    with ExitStack() as opened:
        ends = []
        for place in (source, target):
            end = place.end()
            opened.callback(end.close)
            ends.append(end)
        wanted = Wanted(account=account, now_ms=5, tell=lambda *_: None, **more)
        return move(ends[0], ends[1], wanted)


def undo_between(store: Place, copy: Place | None) -> str:
    """Let a store that is marked be served again."""
    with ExitStack() as opened:
        end = store.end()
        opened.callback(end.close)
        other = None
        if copy is not None:
            other = copy.end()
            opened.callback(other.close)
        return undo(end, other, 6)


def worked_on(place: Place, seed: int = 1, steps: int = 250) -> tuple[Asker, RandomWork]:
    """Return a store in which much has happened, and a few things of another account."""
    asker = Asker(place.open(), ManualClock())
    asker.create()
    asker.create("theirs", OTHER)
    for number in range(3):
        asker.put(f"body {number}", account=OTHER, queue="theirs", priority=8 + number)
    asker.put("kept once", detail=Detail(dedup_key="key"), time_to_live_s=None)
    asker.ask(c.SetQueueSettings(OTHER, "theirs", QueueSettings(max_receives_per_s=5)))
    # What PostgreSQL keeps in other words.
    asker.receive(holder="who\0 or \uffff or \xe9")
    # Bodies that SQLite keeps in segments.
    bodies = [b"%d" % number * 400 for number in range(20)]
    alike = sg.AlikePuts(OTHER, "theirs", bodies, bytes(200), 0, 600, NO_DETAIL, 8)
    asker.ask(sg.Stage(OTHER, "alike", "", 0, alike))
    asker.ask(sg.Publish(OTHER, "alike"))
    work = RandomWork(asker, random.Random(seed))
    work.play(steps)
    return asker, work


def all_of(asker: Asker, account: str = ACCOUNT, queues: tuple[str, ...] = QUEUES) -> list[Any]:
    """Return what a store says of an account, in whatever way it can be asked."""
    sessions = [
        (session.session_id, session.state, session.leases, session.ended_at_ms)
        for session in asker.ask(s.ListSessions(account))  # a store in a folder forgets heartbeats
    ]
    return sessions + asker.batch(
        *(c.GetQueue(account, queue, with_counts=True) for queue in queues),
        *(o.CountMessages(account, queue) for queue in queues),
        *(o.NextDue(account, queue) for queue in queues),
        *(cl.ListStreams(account, queue) for queue in queues),
        *(c.Peek(account, queue, 1_000) for queue in queues),
        sg.ListTransactions(account),
        c.ListQueues(account, "", "", 100),
    )
