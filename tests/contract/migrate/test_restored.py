"""A store that was restored from a backup, and is told so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseLost, StaleToken
from leasehold.domain.model import Lease
from leasehold.stores.migrate.ends import MoveRefused
from leasehold.stores.migrate.marks import begin_epoch
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, QUEUE, STREAM, Asker

from .support import Place, move_between, worked_on

KINDS = pytest.mark.parametrize("kind", ["sqlite", "postgres"])


def asker_of(place: Place, clock: ManualClock) -> Asker:
    """Return a server of the store that is there."""
    return Asker(place.open(), clock)


def run(place: Place, *statements: str) -> None:
    """Run statements on the database."""
    end: Any = place.end()
    try:
        end.lock()
        for statement in statements:
            end.execute(statement)
        end.commit()
    finally:
        end.close()


def restored(place: Place) -> int:
    """Tell the store that it was restored."""
    end = place.end()
    try:
        return begin_epoch(end)
    finally:
        end.close()


@KINDS
@pytest.mark.parametrize("told", [False, True])
def test_a_lost_future_cannot_act(tmp_path: Path, kind: str, told: bool) -> None:
    """Restored, the same lease is given out again; only a new epoch tells the two apart."""
    place, clock = Place(kind, tmp_path, "a"), ManualClock()
    asker = asker_of(place, clock)
    asker.create()
    asker.put("work")
    asker.store.close()
    run(place, "CREATE TABLE kept AS SELECT * FROM message")

    asker = asker_of(place, clock)
    lost: Lease = asker.receive_one()
    asker.store.close()
    run(place, "DELETE FROM message", "INSERT INTO message SELECT * FROM kept", "DROP TABLE kept")
    if told:
        assert restored(place) == 2

    asker = asker_of(place, clock)
    again: Lease = asker.receive_one()
    assert again.message.message_id == lost.message.message_id
    assert (again.receipt == lost.receipt) is not told
    refusal = asker.complete(lost)
    if told:
        assert isinstance(refusal, LeaseLost)
        assert refusal.reason == "foreign"
        assert asker.complete(again) == c.DONE
    else:
        assert refusal == c.DONE
    asker.store.close()


@KINDS
def test_tokens_of_streams_are_new(tmp_path: Path, kind: str) -> None:
    """A driver of the lost future is not taken for the one that has attached since."""
    place, clock = Place(kind, tmp_path, "a"), ManualClock()
    asker = asker_of(place, clock)
    asker.create()
    tokens = [asker.attach().token]
    asker.store.close()
    for epoch in (2, 3):
        assert restored(place) == epoch
        asker = asker_of(place, clock)
        tokens.append(asker.attach().token)
        old = cl.OpenClaim(ACCOUNT, QUEUE, STREAM, tokens[-2] + 1, 1, 10, 60)
        assert isinstance(asker.ask(old), StaleToken)
        asker.store.close()
    assert tokens[1] > tokens[0] + 1_000_000
    assert tokens[2] > tokens[1] + 1_000_000


@KINDS
def test_sealing_key_outlives_a_restart_and_no_restore(tmp_path: Path, kind: str) -> None:
    """What was sealed by a server holds over its restart; a restored store takes none of it."""
    place, clock = Place(kind, tmp_path, "a"), ManualClock()
    keys = []
    for restore in (False, False, True):
        if restore:
            restored(place)
        asker = asker_of(place, clock)
        asker.create()
        keys.append(asker.store.sealing_key)
        asker.store.close()
    assert keys[0] == keys[1] != keys[2]


def test_servers_of_a_database_seal_alike(tmp_path: Path) -> None:
    """A session that one of them has begun holds on the other, also after a restore."""
    place, clock = Place("postgres", tmp_path, "a"), ManualClock()
    first, second = asker_of(place, clock), asker_of(place, clock)
    first.create()
    before = first.store.sealing_key
    assert second.store.sealing_key == before
    restored(place)
    first.put("work")
    second.put("work")
    assert first.store.sealing_key == second.store.sealing_key != before
    first.store.close()
    second.store.close()


def test_a_running_server_takes_it_up(tmp_path: Path) -> None:
    """What PostgreSQL was told while servers run holds from their next batch on."""
    place, clock = Place("postgres", tmp_path, "a"), ManualClock()
    asker = asker_of(place, clock)
    asker.create()
    asker.put("work")
    before = asker.receive_one()
    restored(place)
    assert isinstance(asker.complete(before), LeaseLost)
    assert asker.store.health().details["epoch"] == 2
    clock.advance(s=31)
    assert asker.complete(asker.receive_one()) == c.DONE
    asker.store.close()


@KINDS
def test_what_is_served_elsewhere_is_left_alone(tmp_path: Path, kind: str) -> None:
    """A store that has moved is not to be used, so it is refused with the reason."""
    source, target = Place(kind, tmp_path, "a"), Place("sqlite", tmp_path, "b")
    asker, _ = worked_on(source, steps=5)
    asker.store.close()
    move_between(source, target)
    with pytest.raises(MoveRefused, match="must not be served"):
        restored(source)
