"""``leasehold store``: what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner, Result

from leasehold.bodies import open_bodies
from leasehold.cli import main
from leasehold.domain import commands as c
from leasehold.domain.model import BodyRef, Detail
from leasehold.server.startup import DataLock
from leasehold.stores.migrate.marks import StoreMoved
from leasehold.stores.sqlite import SqliteStore
from leasehold.stores.sqlite.store import FILE_NAME
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, QUEUE, Asker

KEY = "0123456789abcdef" * 2


def run(*arguments: str) -> Result:
    """Run ``leasehold store``."""
    return CliRunner().invoke(main, ["store", *arguments], env={"COLUMNS": "120"})


def filled(folder: Path) -> Path:
    """Make a store of a few messages, one of them with a large body."""
    asker = Asker(SqliteStore(folder), ManualClock())
    asker.create()
    asker.create("theirs", "other")
    for number in range(4):
        asker.put(f"body {number}")
    large = BodyRef(key=KEY, size_bytes=100_000, sha256="00" * 32)
    asker.put(b"", detail=Detail(body_ref=large))
    asker.store.close()
    return folder


def injure(folder: Path, statement: str) -> None:
    """Change a store behind its back."""
    connection = apsw.Connection(str(folder / FILE_NAME))
    connection.execute(statement)
    connection.close()


def test_a_store_moves(tmp_path: Path) -> None:
    """It is told what moved and what to do; the old store refuses, the new one is whole."""
    source, target = filled(tmp_path / "a"), tmp_path / "b"
    done = run("migrate", str(source), str(target))
    assert done.exit_code == 0, done.output
    assert "5 in all states" in done.output
    assert "stay in the body store" in done.output
    with pytest.raises(StoreMoved):
        SqliteStore(source)
    assert run("check", str(target)).exit_code == 0
    assert "moved to" in run("check", str(source)).output
    again = run("migrate", str(source), str(target), "--json")
    assert json.loads(again.output)["went_on"]


def test_a_move_is_undone(tmp_path: Path) -> None:
    """The old store is served again, and then the new one refuses."""
    source, target = filled(tmp_path / "a"), tmp_path / "b"
    assert run("migrate", str(source), str(target)).exit_code == 0
    assert run("undo", str(source), "--yes").exit_code == 1  # the other store must be named
    assert run("undo", str(source), "--copy", str(target)).exit_code == 2
    assert run("undo", str(source), "--copy", str(target), "--yes").exit_code == 0
    SqliteStore(source).close()
    with pytest.raises(StoreMoved):
        SqliteStore(target)
    assert run("undo", str(source), "--yes").exit_code == 1  # it is not marked


def test_large_bodies_of_an_account_are_copied(tmp_path: Path) -> None:
    """Two stores must not share a body store, so the places are asked for."""
    source, target = filled(tmp_path / "a"), tmp_path / "b"
    refused = run("move-account", ACCOUNT, str(source), str(target))
    assert refused.exit_code == 1
    assert "--bodies-from" in refused.output
    places = tmp_path / "bodies-a", tmp_path / "bodies-b"
    options = "--bodies-from", str(places[0]), "--bodies-to", str(places[1])
    missing = run("move-account", ACCOUNT, str(source), str(target), *options)
    assert missing.exit_code == 3
    assert KEY in missing.output
    asyncio.run(open_bodies(str(places[0])).put(KEY, b"large"))
    done = run("move-account", ACCOUNT, str(source), str(target), *options)
    assert done.exit_code == 0, done.output
    assert [each.read_bytes() for each in places[1].rglob(KEY)] == [b"large"]
    asker = Asker(SqliteStore(target), ManualClock())
    assert asker.ask(c.GetQueue(ACCOUNT, QUEUE)).message_count == 5
    asker.store.close()


def test_a_store_that_is_served_is_not_moved(tmp_path: Path) -> None:
    """A server's lock on the folder is respected."""
    source = filled(tmp_path / "a")
    with DataLock(source):
        done = run("migrate", str(source), str(tmp_path / "b"), "--json")
    assert done.exit_code == 3
    assert "in use by another server" in json.loads(done.stderr)["error"]["detail"]


@pytest.mark.parametrize("named", ["nowhere", "mysql://host/name"])
def test_a_store_that_is_not_there(named: str) -> None:
    """Nothing is made by looking for it."""
    for done in (run("check", named), run("migrate", named, named)):
        assert done.exit_code in {1, 3}
        assert named in done.output
    assert not Path(named).exists()


@pytest.mark.parametrize(
    ("statement", "check"),
    [
        ("UPDATE queue SET message_count = 9 WHERE name = 'videos'", "counts"),
        ("UPDATE message SET partition = 77 WHERE row_key = 2", "rows without a queue"),
        ("INSERT INTO message_body VALUES (2, x'00')", "bodies without a message"),
        ("UPDATE message SET place = 1 WHERE row_key = 2", "messages without a body"),
        ("INSERT INTO body_segment VALUES (1, 16, x'00')", "segments without a message"),
        (
            "UPDATE message SET place = 3, body = x'31' WHERE row_key = 2",
            "messages without a segment",
        ),
        ("INSERT INTO message_saved VALUES (2, '{}')", "saved data without a message"),
        ("UPDATE message SET saved = 1 WHERE row_key = 2", "messages without saved data"),
        ("UPDATE meta SET value = 1 WHERE name = 'row_keys_reserved'", "row keys"),
        ("DELETE FROM event_batch WHERE seq = 2", "event log"),
        ("UPDATE event_batch SET size = 1 WHERE seq = 2", "event log"),
        (
            "INSERT INTO stream VALUES (1, 'coho', 'gone', 's', 1, 0, 0, NULL)",
            "streams without a queue",
        ),
    ],
)
def test_what_the_check_finds(tmp_path: Path, statement: str, check: str) -> None:
    """Each kind of damage is found, and told by its name."""
    folder = filled(tmp_path / "a")
    assert run("check", str(folder)).exit_code == 0
    injure(folder, statement)
    done = run("check", str(folder), "--json")
    assert done.exit_code == 1
    found = json.loads(done.output)
    assert check in {each["check"] for each in found["checks"] if each["level"] != "ok"}


def test_a_database_that_is_damaged(tmp_path: Path) -> None:
    """What SQLite finds is told, or that it cannot be read at all."""
    path = filled(tmp_path / "a") / FILE_NAME
    content = bytearray(path.read_bytes())
    content[3 * 8192 : 4 * 8192] = b"\xff" * 8192
    path.write_bytes(content)
    assert run("check", str(path.parent)).exit_code in {1, 3}


def test_a_store_is_told_that_it_was_restored(tmp_path: Path) -> None:
    """It says in which epoch the store is now; without a terminal it wants to hear yes."""
    folder = filled(tmp_path / "a")
    asked = run("restored", str(folder))
    assert asked.exit_code == 2
    assert "Type: --yes, to confirm" in asked.output
    done = run("restored", str(folder), "--yes", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["epoch"] == 2
    again = run("restored", str(folder), "--yes")
    assert "is in epoch 3 now" in again.output
    missing = run("restored", str(tmp_path / "nothing"), "--yes")
    assert missing.exit_code == 3
