"""Write a database of today's format for the tests of tomorrow.

Run once after a migration was added, and never again for the same format::

    python -m tests.migration.make_format tests/migration/format1.db
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.claims import (
    AttachStream,
    BindClaim,
    Exemption,
    ExemptMembers,
    OpenClaim,
    ReadClaim,
    SettleClaims,
)
from leasehold.domain.command import AnyCommand
from leasehold.domain.commands import ReapDropped
from leasehold.domain.events import KeepNote
from leasehold.domain.model import (
    NO_DETAIL,
    AccessPolicy,
    BodyRef,
    Detail,
    ErrorReport,
    Lease,
    Outcome,
)
from leasehold.domain.queue_settings import Backoff, FailurePolicy, QueueSettings
from leasehold.domain.sessions import OpenSession
from leasehold.domain.transactions import AlikePuts, Publish, Stage
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.store import FILE_NAME

NOW_MS = 1_767_225_600_000


def fill(store: SqliteStore) -> Lease:
    """Put one of everything into a store; return the lease on ``leased``."""

    def ask(command: AnyCommand) -> c.Result:
        (result,) = store.execute([command], now_ms=NOW_MS)
        store.commit()
        return result

    ask(c.CreateQueue("coho", "videos", {"Owner": "Maintainers"}))
    ask(c.CreateQueue("coho", "cleared", {}))
    policy_of_failures = FailurePolicy(max_failures=1, backoff=Backoff(initial_s=5))
    failing = QueueSettings(failure_policy=policy_of_failures)
    ask(c.CreateQueue("coho", "failing", {}, failing))
    policy = AccessPolicy(policy_id="workers", start="2026-01-01", permission="rp")
    ask(c.SetQueuePolicies("coho", "videos", (policy,)))
    ask(c.SetAccountDocument("coho", "azure-service-properties", "{}"))
    for body, delay_s, ttl_s, queue in (
        (b"leased", 0, None, "videos"),
        (b"visible", 0, 604_800, "videos"),
        (b"delayed", 3600, 604_800, "videos"),
        (b"expired", 0, 1, "videos"),
        (b"x" * 20_000, 0, None, "videos"),
        (b"dropped", 0, None, "cleared"),
    ):
        entropy = body[:1] * 10
        ask(c.Put("coho", queue, body, delay_s, ttl_s, entropy))
    leases = ask(c.Receive("coho", "videos", 1, 30))
    assert isinstance(leases, tuple)
    leased = leases[0]
    assert isinstance(leased, Lease)
    renew = c.Renew("coho", "videos", leased.message.message_id, leased.receipt, 30, saved="[3]")
    lease = ask(renew)
    assert isinstance(lease, Lease)
    detail = Detail(dedup_key="once", message_type="clip", properties={"a": "b"})
    ask(c.Put("coho", "failing", b"bad", 0, None, b"f" * 10, detail, 3))
    bad = ask(c.Receive("coho", "failing", 1, 30, "w1"))
    assert isinstance(bad, tuple)
    held = bad[0]
    assert isinstance(held, Lease)
    named = ("coho", "failing", held.message.message_id, held.receipt)
    ask(c.Release(*named, Outcome.FAILED, error=ErrorReport(text="no such codec")))
    ask(o.StartJob("coho", "videos", "job", o.JobPlan(kind=o.JobKind.PURGE, dry_run=True)))
    _fill_flows(ask)
    ask(c.Clear("coho", "cleared"))
    ask(c.NoteTime())
    return lease


def _fill_flows(ask: Callable[[AnyCommand], Any]) -> None:
    """Leave a claim, a lapsed one, a transaction, a session, a large body and notes open."""
    ask(c.CreateQueue("coho", "flows", {}))
    ref = BodyRef(key="0" * 32, size_bytes=70_000, sha256="0" * 64)
    large = c.Put("coho", "flows", b"", 0, None, b"l" * 10, Detail(body_ref=ref))
    ask(large)
    for number in range(3):
        ask(c.Put("coho", "flows", b"x" * 300, 0, None, b"%d" % number * 10))
    session = ask(OpenSession("coho", "w1", b"s" * 10))
    ask(c.Receive("coho", "flows", 1, 3600, session=session.session_id))
    stream = ask(AttachStream("coho", "flows", "nightly"))
    ask(OpenClaim("coho", "flows", "nightly", stream.token, 1, 1, 60, "driver"))
    ask(OpenClaim("coho", "flows", "nightly", stream.token, 2, 1, 60, "driver"))
    ask(SettleClaims("coho", "flows", "nightly", stream.token, 1))
    ask(ReapDropped(100))
    staged = c.Put("coho", "flows", b"staged", 5, 60, b"t" * 10)
    ask(Stage("coho", "job-1", "part-0", 0, (staged,)))
    ask(KeepNote("export", "{}"))
    _fill_bound(ask)


def _fill_bound(ask: Callable[[AnyCommand], Any]) -> None:
    """Leave a claim that is bound to a transaction, with a note, after one settled so."""
    ask(c.CreateQueue("coho", "bound", {}))
    for number in range(3):
        ask(c.Put("coho", "bound", b"%d" % number, 0, None, b"%d" % number * 10))
    stream = ask(AttachStream("coho", "bound", "hourly"))
    named = ("coho", "bound", "hourly", stream.token)
    for number, limit in ((1, 1), (2, 2)):
        ask(OpenClaim(*named, number, limit, 60))
        ask(BindClaim(*named, number, f"step-{number}"))
    ask(Publish("coho", "step-1"))
    ask(ReapDropped(100))
    bad = ask(ReadClaim(*named[:3], 2, 0, 1, "", 10)).messages[0].message_id
    noted = Exemption(2, bad, Outcome.FAILED, 5, ErrorReport(text="no such codec"), 0.25)
    ask(ExemptMembers(*named, 2, (noted,)))
    _fill_keyed(ask)


def _fill_keyed(ask: Callable[[AnyCommand], Any]) -> None:
    """Leave staged messages with keys, after some that were published and dropped."""
    ask(c.CreateQueue("coho", "keyed", {}))
    for name, keys in (("night-1", "aab"), ("night-2", "bcc")):
        puts = [
            c.Put("coho", "keyed", b"%d" % place, 0, None, b"k" * 10, Detail(dedup_key=key))
            for place, key in enumerate(keys)
        ]
        ask(Stage("coho", name, "", 0, tuple(puts)))
    ask(Publish("coho", "night-1"))
    _fill_grouped(ask)


def _fill_grouped(ask: Callable[[AnyCommand], Any]) -> None:
    """Leave messages of two groups and of none, one of them leased and one in a claim."""
    ask(c.CreateQueue("coho", "grouped", {}))
    for place, group_id in enumerate(("acme", None, "blue", "acme")):
        detail = Detail(group_id=group_id)
        ask(c.Put("coho", "grouped", b"%d" % place, 0, None, b"g" * 10, detail))
    ask(c.Receive("coho", "grouped", 1, 3600))
    stream = ask(AttachStream("coho", "grouped", "daily"))
    ask(OpenClaim("coho", "grouped", "daily", stream.token, 1, 1, 3600))
    _fill_alike(ask)


def _fill_alike(ask: Callable[[AnyCommand], Any]) -> None:
    """Leave messages that were staged together, some of them gone and some in a claim."""
    ask(c.CreateQueue("coho", "alike", {}))
    bodies = [b"%02d" % number * 200 for number in range(20)]
    alike = AlikePuts("coho", "alike", bodies, b"a" * 200, 0, None, NO_DETAIL, 8)
    ask(Stage("coho", "many", "", 0, alike))
    ask(Publish("coho", "many"))
    for lease in ask(c.Receive("coho", "alike", 3, 3600)):
        ask(c.Complete("coho", "alike", lease.message.message_id, lease.receipt))
    stream = ask(AttachStream("coho", "alike", "hourly"))
    ask(OpenClaim("coho", "alike", "hourly", stream.token, 1, 10, 3600))


def main(target: Path) -> None:
    """Write the database to *target* and print the receipt a test needs."""
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder))
        lease = fill(store)
        store.close()
        with contextlib.closing(apsw.Connection(str(Path(folder) / FILE_NAME))) as connection:
            # Without marks it does not count as restored, and its receipts go on acting.
            connection.execute("DELETE FROM meta WHERE name IN ('mark', 'last_mark')")
        shutil.copy(Path(folder) / FILE_NAME, target)
    print(lease.message.message_id, lease.receipt)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
