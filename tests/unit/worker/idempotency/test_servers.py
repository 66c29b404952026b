"""What only PostgreSQL and only Redis do."""

from __future__ import annotations

import pickle
import socket
from typing import Any

import pytest

import leasehold.worker.idempotency as package
from tests.patience import PATIENCE_S
from tests.unit.worker.idempotency.support import Absent, holder, redis_server, run_killing


def _postgres(conninfo: str, table: str, **options: Any) -> Any:
    from leasehold.worker.idempotency import PostgresProcessed  # noqa: PLC0415 - optional

    return PostgresProcessed(conninfo, table=table, **options)


def _redis(url: str, table: str, **options: Any) -> Any:
    from leasehold.worker.idempotency import RedisProcessed  # noqa: PLC0415 - optional

    return RedisProcessed(url, prefix=f"{table}:", **options)


def test_unknown_names_are_errors() -> None:
    """Names that are imported late do not hide those that do not exist."""
    with pytest.raises(AttributeError, match="Nowhere"):
        package.Nowhere  # noqa: B018 - the look is the test
    assert all(getattr(package, name) is not None for name in package.__all__)


def test_database_clock(postgres: str, table: str) -> None:
    """Without a clock the time is the database's, and the window goes by it."""
    import psycopg  # noqa: PLC0415 - optional

    store = _postgres(postgres, table, window_s=60)
    me = holder()
    assert store.begin("k", me) is None
    with psycopg.connect(postgres) as link:
        now = link.execute("SELECT extract(epoch FROM clock_timestamp()) * 1000").fetchone()
        found = store.look("k")
        assert now is not None
        assert abs(found.since_ms - float(now[0])) < 10_000
        assert found.expires_at_ms - found.since_ms == pytest.approx(60_000, abs=50)
        store.finish("k", me, "1")
        assert store.begin("k", holder(2)).is_done
        link.execute(f"UPDATE {table} SET expires_at_ms = 1".encode())
    assert store.begin("k", holder(2)) is None
    assert store.sweep() == 0
    store.close()


def test_broken_connection_is_replaced(postgres: str, table: str) -> None:
    """A server that ended the connection is asked again over a new one."""
    import psycopg  # noqa: PLC0415 - optional

    store = _postgres(postgres, table)
    me = holder()
    store.begin("k", me)
    with psycopg.connect(postgres, autocommit=True) as link:
        link.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> "
            "pg_backend_pid() AND usename = 'test'"
        )
    store.finish("k", me, "1")
    assert store.look("k").is_done
    store.close()


def test_absent_server_is_an_error(table: str) -> None:
    """A server that is not there is said so at the first call."""
    psycopg = pytest.importorskip("psycopg")
    store = _postgres("host=/nowhere dbname=x", table)
    with pytest.raises(psycopg.OperationalError):
        store.look("k")
    store.close()


def test_refused_statement_is_not_repeated(postgres: str, table: str) -> None:
    """An error that another connection would not mend is raised, and the connection kept."""
    import psycopg  # noqa: PLC0415 - optional

    opened = []

    def connect() -> Any:
        opened.append(1)
        return psycopg.connect(postgres)

    store = _postgres("", table, connect=connect)
    store.begin("k", holder())
    with pytest.raises(psycopg.DataError):
        store.begin("nul\0", holder())
    store.look("k")
    assert len(opened) == 1
    store.close()


def test_postgres_store_after_a_fork(postgres: str, table: str) -> None:
    """A child opens connections of its own."""
    run_killing("fork_a_postgres_store", postgres, table)


def test_postgres_store_can_be_sent_to_another_process(postgres: str, table: str) -> None:
    """A copy made by pickle goes to the same table."""
    store = _postgres(postgres, table, window_s=77)
    store.begin("k", holder())
    copy = pickle.loads(pickle.dumps(store))
    assert copy.window_s == 77
    assert copy.look("k") == store.look("k")
    copy.close()
    store.close()


def test_schema_of_the_table(postgres: str, table: str) -> None:
    """The table can be in a schema, and many may create it at once."""
    import psycopg  # noqa: PLC0415 - optional

    with psycopg.connect(postgres) as link:
        link.execute(f"CREATE SCHEMA s_{table}".encode())
    stores = [_postgres(postgres, f"s_{table}.history") for _ in range(3)]
    assert [store.look("k") for store in stores] == [None] * 3
    for store in stores:
        store.close()


def test_killed_in_a_transaction_of_postgres(postgres: str) -> None:
    """A process killed between effect and record leaves neither; killed after, both."""
    run_killing("kill_in_postgres_transactions", postgres)


@pytest.mark.parametrize("decode", [False, True])
def test_clients_that_decode_and_that_do_not(redis_url: str, table: str, decode: bool) -> None:
    """The client of the user may give text or bytes; it is not closed with the store."""
    import redis  # noqa: PLC0415 - optional

    client = redis.Redis.from_url(redis_url, decode_responses=decode)
    store = package.RedisProcessed(client, prefix=f"{table}:")
    me = holder(3)
    store.begin("k", me)
    store.finish("k", me, '"ü"')
    for found in (store.look("k"), store.begin("k", holder(4))):
        assert found is not None
        assert (found.source, found.fence, found.result) == ("orders/m1", 3, '"ü"')
    store.close()
    assert client.ping()
    client.close()


def test_keys_expire_at_the_server(redis_url: str, table: str) -> None:
    """Begun or done, each key has an end that the server sees to."""
    import redis  # noqa: PLC0415 - optional

    store = _redis(redis_url, table, window_s=60)
    me = holder()
    with redis.Redis.from_url(redis_url) as client:
        store.begin("k", me)
        assert 0 < int(client.pttl(f"{table}:k")) <= 60_000
        client.pexpire(f"{table}:k", 10_000)
        store.finish("k", me, None)
        assert 10_000 < int(client.pttl(f"{table}:k")) <= 60_000
    store.close()


def test_scripts_are_loaded_again(redis_url: str, table: str) -> None:
    """A server that was restarted, and lost the scripts, is given them again."""
    import redis  # noqa: PLC0415 - optional

    store = _redis(redis_url, table)
    me = holder()
    store.begin("k", me)
    with redis.Redis.from_url(redis_url) as client:
        client.script_flush()
    store.finish("k", me, None)
    assert store.look("k").is_done
    store.close()


# A client of redis-py reads for 5 s by itself; the wait must not end as a lost connection.
@pytest.mark.parametrize("wait_s", [0.01, pytest.param(6, marks=pytest.mark.long)])
def test_replicas_that_must_have_it(redis_url: str, table: str, wait_s: float) -> None:
    """Without a replica, wait_replicas is an error, and the key is done all the same."""
    store = _redis(redis_url, table, wait_replicas=1, wait_s=wait_s)
    me = holder()
    store.begin("k", me)
    with pytest.raises(TimeoutError, match="only 0 of 1 replicas"):
        store.finish("k", me, "1")
    assert store.look("k").is_done
    with pytest.raises(package.Fenced):
        store.finish("k", holder(0), "2")
    store.close()


def test_weaknesses_of_a_server(redis_url: str, table: str) -> None:
    """The server is asked what may make it forget."""
    import redis  # noqa: PLC0415 - optional

    store = _redis(redis_url, table)
    with redis.Redis.from_url(redis_url) as client:
        assert store.weaknesses() == [
            "appendonly is off: the server loses all keys when it crashes"
        ]
        client.config_set("appendonly", "yes")
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        found = store.weaknesses()
        client.config_set("appendonly", "no")
        client.config_set("maxmemory", "0")
        client.config_set("maxmemory-policy", "noeviction")
    assert [text.split(":")[0] for text in found] == [
        "appendfsync is everysec",
        "maxmemory-policy is allkeys-lru",
    ]
    store.close()


def test_replica_is_seen(table: str) -> None:
    """With a replica that nobody waits for there is one more; with wait_replicas it has the key."""
    try:
        with redis_server() as first, redis_server() as second:
            _follow(first, second, table)
    except Absent as why:
        pytest.skip(f"Redis: {why}")


def _follow(first: str, second: str, table: str) -> None:
    import redis  # noqa: PLC0415 - optional

    # Redis replicates over TCP only.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    primary, replica = redis.Redis.from_url(first), redis.Redis.from_url(second)
    try:
        primary.config_set("port", port)
        primary.config_set("repl-diskless-sync-delay", 0)  # it waits 5 s for more replicas
    except redis.ResponseError:
        pytest.skip("this Redis cannot open a port while it runs")
    replica.replicaof("127.0.0.1", port)
    store = _redis(first, table, wait_replicas=1, wait_s=PATIENCE_S)
    me = holder()
    store.begin("k", me)
    store.finish("k", me, "1")
    assert replica.hget(f"{table}:k", "done") == b"1"
    assert not any("failover" in text for text in store.weaknesses())
    careless = _redis(first, table)
    assert any("failover" in text for text in careless.weaknesses())
    for each in (store, careless, primary, replica):
        each.close()
