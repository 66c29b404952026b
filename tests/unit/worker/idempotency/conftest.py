"""Histories of all kinds, and a way to let time pass for each."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasehold.testing import ManualClock
from leasehold.worker.idempotency import MemoryProcessed, Processed, SqliteProcessed
from tests.unit.worker.idempotency.support import Absent, postgres_server, redis_server

WINDOW_S = 600.0


@dataclass(slots=True)
class Harness:
    """A history, and what lets time pass for it."""

    kind: str
    store: Processed
    advance: Callable[[float], None]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    try:
        with postgres_server() as conninfo:
            yield conninfo
    except Absent as why:
        pytest.skip(f"PostgreSQL: {why}")


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    try:
        with redis_server() as url:
            yield url
    except Absent as why:
        pytest.skip(f"Redis: {why}")


@pytest.fixture
def table() -> str:
    """A name that no other test uses."""
    return f"processed_{secrets.token_hex(4)}"


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def harness(request: pytest.FixtureRequest, tmp_path: Path, table: str) -> Iterator[Harness]:
    clock = ManualClock()
    advance: Callable[[float], None] = lambda seconds: clock.advance(s=seconds)  # noqa: E731
    kind = request.param
    store: Any
    if kind == "memory":
        store = MemoryProcessed(WINDOW_S, clock=clock)
    elif kind == "sqlite":
        store = SqliteProcessed(tmp_path / "history.db", WINDOW_S, clock=clock)
    elif kind == "postgres":
        from leasehold.worker.idempotency import PostgresProcessed  # noqa: PLC0415 - optional

        conninfo = request.getfixturevalue("postgres")
        store = PostgresProcessed(conninfo, WINDOW_S, clock=clock, table=table)
    else:
        store, advance = _redis(request.getfixturevalue("redis_url"), table)
    yield Harness(kind, store, advance)
    store.close()


def _redis(url: str, table: str) -> tuple[Processed, Callable[[float], None]]:
    """The clock is the server's: time passes by moving what it has written."""
    import redis  # noqa: PLC0415 - optional

    from leasehold.worker.idempotency import RedisProcessed  # noqa: PLC0415 - optional

    prefix = f"{table}:"

    def advance(seconds: float) -> None:
        ms = round(seconds * 1000)
        with redis.Redis.from_url(url) as client:
            for key in client.scan_iter(f"{prefix}*"):
                for name in ("held_until_ms", "since_ms"):
                    client.hincrby(key, name, -ms)
                client.pexpire(key, int(client.pttl(key)) - ms)

    return RedisProcessed(url, WINDOW_S, prefix=prefix), advance
