"""Moving stores and accounts: what was there is there, and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from leasehold.domain import commands as c
from leasehold.domain.errors import StoreFailed, Unavailable
from leasehold.stores.migrate import migrate
from leasehold.stores.migrate.ends import End, MoveRefused
from leasehold.stores.migrate.marks import StoreMoved
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, QUEUE, Asker
from tests.contract.stores.random_work import QUEUES, replayed_and_live

from .support import OTHER, Place, all_of, move_between, undo_between, worked_on

PAIRS = [
    ("sqlite", "postgres"),
    ("postgres", "postgres"),
    ("postgres", "sqlite"),
    ("sqlite", "sqlite"),
]


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_a_store_goes_on_where_it_was_moved_to(tmp_path: Path, here: str, there: str) -> None:
    """All answers are the same, leases and claims go on, and the log still tells the truth."""
    source, target = Place(here, tmp_path, "a"), Place(there, tmp_path, "b")
    asker, work = worked_on(source)
    told = all_of(asker)
    theirs = all_of(asker, OTHER, ("theirs",))
    asker.store.close()
    moved = move_between(source, target)
    assert moved.receipts_kept
    assert moved.rows["message"] > 10
    assert moved.rows["event_batch"] > 50
    asker.store = target.open()
    assert all_of(asker) == told
    assert all_of(asker, OTHER, ("theirs",)) == theirs
    assert target.problems() == []
    work.play(80)
    replayed, live = replayed_and_live(asker)
    assert {key: each for key, each in replayed.items() if each.account == ACCOUNT} == live
    asker.store.close()
    assert target.problems() == []


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_moved_store_is_not_opened(tmp_path: Path, kind: str) -> None:
    """A server says where the messages are; the check says so too."""
    source, target = Place(kind, tmp_path, "a"), Place("sqlite", tmp_path, "b")
    asker, _ = worked_on(source, steps=5)
    asker.store.close()
    move_between(source, target)
    with pytest.raises(StoreMoved, match=r"moved to .*b: serve that store"):
        source.open()
    assert [each.check for each in source.problems()] == ["mark"]
    with pytest.raises(MoveRefused, match=r"not empty|cannot be moved"):
        move_between(source, Place("sqlite", tmp_path, "c"))


def test_a_running_server_stops_when_its_store_was_moved(tmp_path: Path) -> None:
    """One that was still connected to PostgreSQL does nothing more there."""
    source, target = Place("postgres", tmp_path, "a"), Place("sqlite", tmp_path, "b")
    asker, _ = worked_on(source, steps=5)
    move_between(source, target)
    with pytest.raises(StoreFailed):
        asker.put()
    asker.store.close()


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_an_account_moves_alone(tmp_path: Path, here: str, there: str) -> None:
    """It goes on in a store of its own; the others stay, and go on where they are."""
    source, target = Place(here, tmp_path, "a"), Place(there, tmp_path, "b")
    asker, work = worked_on(source)
    told = all_of(asker)
    theirs = all_of(asker, OTHER, ("theirs",))
    asker.store.close()
    assert move_between(source, target, ACCOUNT).receipts_kept

    asker.store = source.open()
    assert all_of(asker, OTHER, ("theirs",)) == theirs
    assert asker.ask(c.ListQueues(ACCOUNT, "", "", 100)).queues == ()
    assert isinstance(asker.create(), Unavailable)
    while asker.ask(c.ReapDropped(100)).count:
        pass
    asker.store.close()
    assert source.problems() == []

    asker.store = target.open()
    assert all_of(asker) == told
    work.play(60)
    asker.store.close()
    assert target.problems() == []


def test_an_account_can_come_back(tmp_path: Path) -> None:
    """Its numbers are free again where it left from, once its old rows are gone."""
    source, target = Place("sqlite", tmp_path, "a"), Place("postgres", tmp_path, "b")
    asker, work = worked_on(source)
    told = all_of(asker)
    asker.store.close()
    move_between(source, target, ACCOUNT)
    with pytest.raises(MoveRefused, match="may not be deleted yet"):
        move_between(target, source, ACCOUNT)
    asker.store = source.open()
    while asker.ask(c.ReapDropped(100)).count:
        pass
    asker.store.close()
    move_between(target, source, ACCOUNT)
    asker.store = source.open()
    assert all_of(asker) == told
    assert not isinstance(asker.create("more"), Unavailable)
    work.play(50)
    asker.store.close()
    assert source.problems() == []


def test_numbers_in_use_refuse_an_account(tmp_path: Path) -> None:
    """Two stores that grew apart use the same numbers; the way out is named, nothing is changed."""
    source, target = Place("sqlite", tmp_path, "a"), Place("postgres", tmp_path, "b")
    asker, _ = worked_on(source, steps=20)
    told = all_of(asker)
    asker.store.close()
    busy, _ = worked_on(target, seed=2, steps=20)
    busy.ask(c.DeleteQueue(ACCOUNT, QUEUE))
    busy.ask(c.DeleteQueue(ACCOUNT, "audio"))
    for name in QUEUES:
        busy.ask(c.DeleteQueue(ACCOUNT, f"{name}-poison"))
    theirs = all_of(busy, OTHER, ("theirs",))
    with pytest.raises(MoveRefused, match=r"\?schema=NAME"):
        move_between(source, target, ACCOUNT)
    assert all_of(busy, OTHER, ("theirs",)) == theirs
    busy.store.close()
    asker.store = source.open()
    assert all_of(asker) == told
    asker.store.close()


def test_a_store_in_use_takes_no_other(tmp_path: Path) -> None:
    """A whole store is moved into an empty one only."""
    source, target = Place("sqlite", tmp_path, "a"), Place("sqlite", tmp_path, "b")
    for place in (source, target):
        asker, _ = worked_on(place, steps=5)
        asker.store.close()
    with pytest.raises(MoveRefused, match="not empty"):
        move_between(source, target)
    assert source.problems() == target.problems() == []


def test_an_account_that_is_not_there(tmp_path: Path) -> None:
    """A name that was mistyped moves nothing."""
    source, target = Place("sqlite", tmp_path, "a"), Place("sqlite", tmp_path, "b")
    asker, _ = worked_on(source, steps=5)
    asker.store.close()
    with pytest.raises(MoveRefused, match="nothing of account nobody"):
        move_between(source, target, "nobody")


def test_a_moved_store_comes_back(tmp_path: Path) -> None:
    """With that the copy is not served, and a second change of mind finds the way again."""
    source, target = Place("sqlite", tmp_path, "a"), Place("postgres", tmp_path, "b")
    asker, _ = worked_on(source, steps=20)
    told = all_of(asker)
    asker.store.close()
    move_between(source, target)
    with pytest.raises(MoveRefused, match="name that store too"):
        undo_between(source, None)
    assert "can be served again" in undo_between(source, target)
    with pytest.raises(StoreMoved, match="serve that store"):
        target.open()
    asker.store = source.open()
    assert all_of(asker) == told
    asker.store.close()
    undo_between(target, source)
    with pytest.raises(StoreMoved):
        source.open()
    asker.store = target.open()
    assert all_of(asker) == told
    asker.store.close()
    with pytest.raises(MoveRefused, match="not marked"):
        undo_between(target, source)


@pytest.mark.parametrize("at", ["target", "out"])
def test_a_move_of_an_account_is_given_up(
    tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it has not arrived; once it has, only the end of the move is left."""
    source, target = Place("sqlite", tmp_path, "a"), Place("postgres", tmp_path, "b")
    asker, _ = worked_on(source, steps=20)
    told = all_of(asker)
    asker.store.close()
    with monkeypatch.context() as patched:
        if at == "out":
            patched.setattr(migrate, "_take_out", _no_end)
        else:
            _cut_commit(patched, at)
        with pytest.raises(Stopped):
            move_between(source, target, ACCOUNT)
    if at == "out":
        with pytest.raises(MoveRefused, match="same move-account again"):
            undo_between(source, target)
        return
    assert "nothing had arrived" in undo_between(source, target)
    asker.store = source.open()
    assert all_of(asker) == told
    asker.store.close()
    target.open().close()


class Stopped(Exception):
    """Stands for the end of the process."""


def _no_end(*_: object) -> NoReturn:
    raise Stopped


@pytest.mark.parametrize(
    ("account", "at"),
    [
        *((None, at) for at in ("compare", "source", "target")),
        *((ACCOUNT, at) for at in ("compare", "source", "target", "out")),
    ],
)
@pytest.mark.parametrize(("here", "there"), PAIRS[:2])
def test_a_move_that_is_cut_short(
    tmp_path: Path,
    here: str,
    there: str,
    at: str,
    account: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever it ends, at most one of the two is served, and the same move made again ends it."""
    source, target = Place(here, tmp_path, "a"), Place(there, tmp_path, "b")
    asker, _ = worked_on(source, steps=60)
    told = all_of(asker)
    asker.store.close()
    with monkeypatch.context() as patched:
        if at == "compare":
            patched.setattr(migrate, "compare_rows", _no_end)
        elif at == "out":
            patched.setattr(migrate, "_take_out", _no_end)
        else:
            _cut_commit(patched, at)
        with pytest.raises(Stopped):
            move_between(source, target, account)
    if at in {"compare", "source"}:
        asker.store = source.open()
        assert all_of(asker) == told
        asker.store.close()
    else:
        with pytest.raises((StoreMoved, Unavailable)):
            source.open()
    if at != "out":
        with pytest.raises(StoreMoved, match="not finished"):
            target.open()
    moved = move_between(source, target, account)
    assert moved.went_on == (at == "out")
    asker.store = target.open()
    assert all_of(asker) == told
    asker.store.close()
    assert target.problems() == []


def _cut_commit(patched: pytest.MonkeyPatch, at: str) -> None:
    """Let the process end where the source, or the target, would be committed for good."""
    settled = migrate._settle_target

    def settling(source: End, target: End, *rest: object, **more: object) -> None:
        settled(source, target, *rest, **more)  # type: ignore[arg-type]  # as they come
        patched.setattr(source if at == "source" else target, "commit", _no_end)

    patched.setattr(migrate, "_settle_target", settling)


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_expired_messages_are_counted_where_they_were_moved_to(
    tmp_path: Path, here: str, there: str
) -> None:
    """Those set aside too, which no count of messages has."""
    source, target = Place(here, tmp_path, "a"), Place(there, tmp_path, "b")
    asker = Asker(source.open(), ManualClock())
    asker.create()
    asker.put(time_to_live_s=1)
    asker.put(time_to_live_s=1)
    asker.put()
    asker.clock.advance(s=1)
    asker.ask(c.RetireExpired(1))
    asker.store.close()
    move_between(source, target)
    moved = Asker(target.open(), asker.clock)
    assert (moved.counts().expired, moved.counts().total) == (2, 1)
    moved.ask(c.RetireExpired(10))
    assert (moved.counts().expired, moved.counts().total) == (2, 1)
    moved.store.close()
