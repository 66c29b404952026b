"""A primary dies, its synchronous standby takes over, and nothing that was acknowledged is lost."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.postgres import find_programs
from tests.reliability.postgres_clients import QUEUE, HttpClient
from tests.reliability.postgres_ledger import Ledger
from tests.reliability.postgres_load import SYSTEM, Load
from tests.reliability.postgres_pair import Pair
from tests.reliability.postgres_rig import short_folder
from tests.reliability.running import Client, KillableServer, eventually
from tests.reliability.test_postgres_kill import drained

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed"),
]

_log = logging.getLogger(__name__)
_ROUNDS = 6
_PUT_PER_ROUND = 3_000
_SERVING_AGAIN_S = 10.0
"""After the promotion."""


def test_a_primary_killed_under_load() -> None:
    """Again and again; all servers go on by themselves."""
    with ExitStack() as stack:
        pair = Pair(*(stack.enter_context(short_folder()) for _ in range(2)))
        stack.callback(pair.stop)
        pair.follow()
        load = Load(f"{pair.url}&schema=failover", 1, sys.maxsize, 20, servers=2)
        stack.callback(load.close)
        load.start()
        for number in range(1, _ROUNDS + 1):
            put = load.ledger.counts["put"] + _PUT_PER_ROUND
            eventually(lambda put=put: load.ledger.counts["put"] >= put, "messages are put", 120)  # type: ignore[misc]
            refused = load.ledger.counts["no answer"]
            pair.kill_primary()
            if number % 2:  # else it is over before anybody is refused
                eventually(
                    lambda refused=refused: load.ledger.counts["no answer"] > refused + 10,  # type: ignore[misc]
                    "clients are refused",
                )
            pair.promote()
            promoted_s = SYSTEM.monotonic_s()
            for server in load.servers:
                eventually(
                    lambda server=server, since_s=promoted_s: server.answered_s > since_s,  # type: ignore[misc]
                    "it serves again",
                )
                took_s = server.answered_s - promoted_s
                _log.info("round %d: server %d serves after %.2f s", number, server.number, took_s)
                assert took_s < _SERVING_AGAIN_S
            pair.follow()
        load.stop()
        assert load.finish() == []
        replayed, live = load.replayed()
        assert replayed == live
        _log.info("%s", dict(load.ledger.counts))


def test_the_checks_find_what_is_lost() -> None:
    """A standby that has fallen behind takes over: puts are lost, and deletes undone."""
    with ExitStack() as stack:
        pair = Pair(*(stack.enter_context(short_folder()) for _ in range(2)))
        stack.callback(pair.stop)
        pair.follow()
        load = Load(f"{pair.url}&schema=failover", 1, sys.maxsize, 20, servers=2)
        stack.callback(load.close)
        load.start()
        eventually(lambda: load.ledger.counts["put"] >= _PUT_PER_ROUND, "messages are put", 120)
        pair.detach()
        put = load.ledger.counts["put"] + _PUT_PER_ROUND
        eventually(lambda: load.ledger.counts["put"] >= put, "messages are put", 120)
        load.stop()
        pair.kill_primary()
        pair.promote()
        found = load.finish()
        assert any(fault.startswith("lost") for fault in found)
        assert any(fault.startswith("back again") for fault in found)


def test_real_servers_go_on_without_a_restart(tmp_path: Path) -> None:
    """Two of them, seen by clients over HTTP."""
    with ExitStack() as stack:
        pair = Pair(*(stack.enter_context(short_folder()) for _ in range(2)))
        stack.callback(pair.stop)
        pair.follow()
        servers = [
            KillableServer(tmp_path / name, options={"--store-url": pair.url})
            for name in ("one", "two")
        ]
        for server in servers:
            stack.enter_context(server)
        first = Client(servers[0].port)
        assert first.create(QUEUE).status == 201
        ledger = Ledger()
        clients = [HttpClient(servers[at % 2].port, at, ledger) for at in range(8)]
        for client in clients:
            client.start()
        for number in range(1, _ROUNDS + 1):
            _fail_over(pair, clients, ledger, number)
        for client in clients:
            client.is_stopping = True
        for client in clients:
            client.join()
            assert client.broken == []
        left: Counter[bytes] = Counter()
        eventually(lambda: drained(first, left), "all comes out")
        assert ledger.check(left) == []
        first.close()
        _log.info("%s", dict(ledger.counts))


def _fail_over(pair: Pair, clients: list[HttpClient], ledger: Ledger, number: int) -> None:
    """Let the primary die under load, and measure until all clients are served again."""
    put = ledger.counts["put"] + _PUT_PER_ROUND // 3
    eventually(lambda: ledger.counts["put"] >= put, "messages are put", 120)
    refused = ledger.counts["refused"]
    pair.kill_primary()
    if number % 2:
        eventually(lambda: ledger.counts["refused"] > refused + 10, "clients are refused")
    pair.promote()
    promoted_s = SYSTEM.monotonic_s()
    eventually(
        lambda: min(client.answered_s for client in clients) > promoted_s, "all are served again"
    )
    took_s = max(client.answered_s for client in clients) - promoted_s
    _log.info("round %d: all clients are served after %.2f s", number, took_s)
    assert took_s < _SERVING_AGAIN_S
    pair.follow()
