"""Which store a server opens, and how it says that it cannot."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from leasehold.clock import SystemClock
from leasehold.server.settings import Settings, StoreUrl
from leasehold.server.startup import ExitCode, StartFailed, data_lock, large_bodies, open_store
from leasehold.stores.sqlite import SqliteStore

AWAY = StoreUrl("postgresql://leasehold:geheim@127.0.0.1:1/postgres")


def refusal(settings: Settings, patience_s: float = 0.0) -> StartFailed:
    """Return why a server cannot open its store."""
    with pytest.raises(StartFailed) as refused:
        asyncio.run(open_store(settings, SystemClock(), patience_s=patience_s))
    return refused.value


def test_a_folder_is_this_servers_alone(tmp_path: Path) -> None:
    """It goes by the system's clock and has no others to speak to."""
    system = SystemClock()
    opened = asyncio.run(open_store(Settings(data=tmp_path), system))
    assert opened.clock is system
    assert opened.peers is None
    assert isinstance(opened.store, SqliteStore)
    opened.store.close()


def test_a_reserve_that_does_not_fit_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the setting, and how much room there is."""

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with capture_logs() as logs:
        opened = asyncio.run(open_store(Settings(data=tmp_path), SystemClock()))
    opened.store.close()
    (told,) = [each for each in logs if each["event"] == "store.reserve_does_not_fit"]
    assert told["disk_reserve_mib"] == Settings().disk_reserve_mib
    assert told["free_mib"] > 0


def test_a_database_that_stays_away_ends_the_start() -> None:
    """The reason is given, and the password is not."""
    refused = refusal(Settings(store_url=AWAY))
    assert refused.code is ExitCode.STORE_FAILED
    assert "127.0.0.1" in str(refused)
    assert "geheim" not in str(refused)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has not installed the extra is told which one it is."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    refused = refusal(Settings(store_url=AWAY))
    assert refused.code is ExitCode.SETTINGS
    assert "'.[postgres]'" in str(refused)


def test_a_start_loads_no_library_that_is_optional() -> None:
    """Nor those of the client: whoever starts a server waits for what it loads."""
    program = (
        "import sys, leasehold.cli.root, leasehold.server.main\n"
        "from leasehold.extras import LIBRARIES\n"
        "print(({*LIBRARIES, 'httpx', 'httpcore', 'leasehold.client'}) & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("rest", ["u:ge%zzheim@db/q", "u:geheim@db/q?what=1"])
def test_an_address_that_the_library_refuses_is_not_shown(rest: str) -> None:
    """Its own words about it may have the password."""
    refused = refusal(Settings(store_url=StoreUrl(f"postgresql://{rest}")))
    assert refused.code is ExitCode.SETTINGS
    assert "postgresql://u:***@db/q" in str(refused)
    assert "heim" not in str(refused)


def test_the_data_folder_is_not_touched_for_a_database(tmp_path: Path) -> None:
    """Several servers on one machine need no folders of their own for it."""
    folder = tmp_path / "data"
    with data_lock(Settings(data=folder, store_url=AWAY)):
        assert not folder.exists()
    with data_lock(Settings(data=folder)):
        assert folder.exists()


def test_large_bodies_stay_in_a_shared_database() -> None:
    """Unless a place is named: a folder of this machine would be of no use to other servers."""
    assert large_bodies(Settings(store_url=AWAY), SystemClock(), lambda: 0, durable=True) is None


@pytest.mark.parametrize(
    ("bodies", "warned"), [("/srv/bodies", ["bodies"]), ("s3://bucket/bodies", []), ("", [])]
)
def test_a_folder_beside_a_database_is_warned_about(bodies: str, warned: list[str]) -> None:
    """It must be one that all servers share, which this server cannot see."""
    with capture_logs() as logs:
        refusal(Settings(store_url=AWAY, bodies=bodies))
    found = [each["setting"] for each in logs if each["event"] == "server.local_folder"]
    assert found == warned
