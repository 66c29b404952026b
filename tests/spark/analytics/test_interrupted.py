"""Whatever ends an update that uses late files, the next one makes of them what was to be made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from leasehold.advisor.tables import incremental
from leasehold.advisor.tables.incremental import STATE, Folder, Tables, read_tables, update
from leasehold.advisor.tables.sources import ExportedFiles
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain.events import Event, EventType, ReadEvents
from leasehold.domain.queue_settings import QueueSettings
from leasehold.stores.memory import MemoryStore
from tests.spark.analytics.comparing import ATTEMPT, MESSAGE, found
from tests.spark.analytics.exported import export

_BEGIN_MS = 1_763_712_000_000


def _log() -> tuple[list[Event], list[Event]]:
    """Return a log in which all messages are done, and the mark of a lost session before it all."""
    store, now_ms = MemoryStore(), _BEGIN_MS

    def do(command: Any) -> Any:
        [reply] = store.execute((command,), now_ms=now_ms)
        store.commit()
        return reply

    do(c.CreateQueue("acme", "orders", {}, QueueSettings(visibility_timeout_s=20)))
    for number in range(6):
        do(c.Put("acme", "orders", b"a", 0, None, number.to_bytes(10, "big")))
    session = do(s.OpenSession("acme", "w3", b"0" * 10, 10, None)).session_id
    do(c.Receive("acme", "orders", 2, 600, None, session))
    others = do(c.Receive("acme", "orders", 2, 600, "w1", None))
    now_ms += 12_000
    do(s.LoseSessions())
    again = do(c.Receive("acme", "orders", 32, 600, "w2", None))
    now_ms += 1_000
    for lease in (*others, *again):
        do(c.Complete("acme", "orders", lease.message.message_id, lease.receipt))
    events = do(ReadEvents(0, 10**9)).events
    [mark] = [each for each in events if each.type is EventType.SESSION_LOST]
    rest = [each._replace(seq=each.seq + 1) for each in events if each is not mark]
    return rest, [mark._replace(seq=1, place=0)]


def _rows(tables: Tables) -> tuple[list[Any], list[Any]]:
    return found(tables.attempts, ATTEMPT), found(tables.messages, MESSAGE)


def _as_format_1(tables: Path) -> None:
    state = json.loads((tables / STATE).read_text())
    state.pop("runs", None)
    (tables / STATE).write_text(json.dumps({**state, "format": 1}))


class _Killed(BaseException):
    pass


def _killed(*_: Any, **__: Any) -> Any:
    raise _Killed


@pytest.mark.slow
def test_a_late_file_is_used_whole_whatever_interrupts_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is lost or there twice, in tables that the version before has written."""
    rest, late = _log()
    log, kept = ExportedFiles(tmp_path / "log"), tmp_path / "tables"
    export(log.folder, rest)
    update(spark, log, kept, partitions=1)
    _as_format_1(kept)
    before = _rows(read_tables(spark, kept))
    export(log.folder, late)

    def interrupted(place: object, name: str, how: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, how)
            with pytest.raises(_Killed):
                update(spark, log, kept, partitions=1)

    # Before anything of the run is written.
    interrupted(incremental, "staged", _killed)
    assert _rows(read_tables(spark, kept)) == before
    # When a part of what it has written is in its place.
    whole = Folder.place

    def one(self: Folder, tables: Any, run: int) -> None:
        whole(self, [*tables][:1], run)
        raise _Killed

    interrupted(Folder, "place", one)
    assert _rows(read_tables(spark, kept)) == before
    # When it counts, and what counts no more is still there.
    tidy = Folder.tidy
    calls = []

    def once(self: Folder, *of: Any) -> None:
        calls.append(of)
        if len(calls) > 1:
            raise _Killed
        tidy(self, *of)

    interrupted(Folder, "tidy", once)
    assert [run for _, run in Folder(kept).runs("attempts")] == [1, 2]
    anew = tmp_path / "anew"
    update(spark, log, anew, partitions=1)
    expected = _rows(read_tables(spark, anew))
    assert expected != before
    assert [*map(len, expected)] == [8, 6]
    assert _rows(read_tables(spark, kept)) == expected
    # And the next update takes it away.
    assert update(spark, log, kept, partitions=1).runs == 0
    assert [run for _, run in Folder(kept).runs("attempts")] == [2]
    assert _rows(read_tables(spark, kept)) == expected
