"""Real servers on one PostgreSQL are killed under load, and their backends ended."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from leasehold.stores.postgres.connection import Address, connect
from tests.postgres import empty, find_programs, shared_cluster
from tests.reliability.postgres_clients import QUEUE, HttpClient
from tests.reliability.postgres_ledger import Ledger
from tests.reliability.running import Client, KillableServer, eventually

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")

_SCHEMA = "kill"
_END_BACKENDS = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND state <> 'idle' AND backend_type = 'client backend'
"""


def kill_again_and_again(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Load two servers, kill one or the other so many times, and check; return what happened."""
    rng = random.Random(seed)
    empty(_SCHEMA)
    url = f"{shared_cluster().url}&schema={_SCHEMA}"
    ledger = Ledger()
    with ExitStack() as stack:
        servers = [KillableServer(folder / n, options={"--store-url": url}) for n in ("one", "two")]
        for server in servers:
            stack.enter_context(server)
            server._port = server.port  # from now on
        with Client(servers[0].port) as client:
            assert client.create(QUEUE).status == 201
        clients = [HttpClient(servers[at % 2].port, at, ledger) for at in range(6)]
        for each in clients:
            each.start()
        with connect(Address.parse(url)) as raw:
            for _ in range(kills):
                for _ in range(3):
                    _go_on(ledger, rng)
                    ended = raw.execute(_END_BACKENDS).fetchone()
                    assert ended is not None
                    ledger.counts["backends ended"] += ended[0]
                _go_on(ledger, rng)
                server = rng.choice(servers)
                server.kill()
                _go_on(ledger, rng)  # the other one does
                server.start()
        for each in clients:
            each.is_stopping = True
        for each in clients:
            each.join()
            assert each.broken == []
        left: Counter[bytes] = Counter()
        with Client(servers[0].port) as client:
            eventually(lambda: drained(client, left), "all comes out")
    assert ledger.check(left) == []
    return ledger.counts


def _go_on(ledger: Ledger, rng: random.Random) -> None:
    """Wait until some more messages were put."""
    put = ledger.counts["put"] + rng.randint(1, 200)
    eventually(lambda: ledger.counts["put"] >= put, "messages are put")


def drained(client: Client, left: Counter[bytes]) -> bool:
    """Take out what is visible; tell whether that was all."""
    for taken in client.take_all(QUEUE):
        left[taken.text.encode()] += 1
        client.delete(QUEUE, taken.message_id, taken.receipt)
    return client.count(QUEUE) == 0


@pytest.mark.long
def test_some_kills(tmp_path: Path) -> None:
    """The quick part."""
    counts = kill_again_and_again(tmp_path, 2, seed=1)
    assert counts["no answer"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_forty_kills(tmp_path: Path) -> None:
    """With a hundred moments at which backends are ended in between."""
    counts = kill_again_and_again(tmp_path, 40, seed=2)
    assert counts["no answer"] > 0
    assert counts["backends ended"] > 0
