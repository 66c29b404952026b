"""Moves whose process is killed: the store that was moved is whole, the other is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leasehold.stores.migrate.marks import StoreMoved
from tests.contract.migrate.support import Place, all_of, move_between, worked_on

_PROGRAM = """
import os, signal, sys
from leasehold.stores.migrate.migrate import Wanted, move
from leasehold.stores.migrate.postgres import PostgresEnd
from leasehold.stores.migrate.sqlite import SqliteEnd
from pathlib import Path

def end(named):
    return PostgresEnd(named) if "://" in named else SqliteEnd(Path(named))

def tell(step, done, total):
    if step == sys.argv[3] and done >= total * float(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)

move(end(sys.argv[1]), end(sys.argv[2]), Wanted(account=None, now_ms=5, tell=tell))
"""


@pytest.mark.parametrize(
    ("here", "there"), [("sqlite", "postgres"), ("postgres", "sqlite"), ("sqlite", "sqlite")]
)
@pytest.mark.parametrize(
    ("step", "share"),
    [("Copying", "0"), ("Copying", "0.5"), ("Comparing", "0"), ("Comparing", "1")],
)
def test_a_move_is_killed(tmp_path: Path, here: str, there: str, step: str, share: str) -> None:
    """The old store goes on as if nothing had been; the new one says that it is not whole."""
    source, target = Place(here, tmp_path, "a"), Place(there, tmp_path, "b")
    asker, _ = worked_on(source, steps=80)
    told = all_of(asker)
    asker.store.close()
    arguments = [sys.executable, "-c", _PROGRAM, source.named, target.named, step, share]
    done = subprocess.run(arguments, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()

    with pytest.raises(StoreMoved, match="not finished"):
        target.open()
    asker.store = source.open()
    assert all_of(asker) == told
    asker.store.close()
    assert source.problems() == []

    move_between(source, target)
    asker.store = target.open()
    assert all_of(asker) == told
    asker.store.close()
    assert target.problems() == []
