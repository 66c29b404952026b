"""Servers in the test's own process that share a PostgreSQL database."""

from __future__ import annotations

from typing import Final

import pytest

from leasehold.testing import InProcessServer
from tests.postgres import find_programs, open_empty, shared_cluster

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")

SCHEMA: Final = "in_process"


def test_two_servers_share_a_database() -> None:
    """What one was given the other gives out; both keep it when they end."""
    open_empty(SCHEMA).close()
    url = f"{shared_cluster().url}&schema={SCHEMA}"
    with InProcessServer(store=url, clock="system") as first:
        with (
            InProcessServer(store=url, clock="system") as second,
            first.client() as giving,
            second.client() as taking,
        ):
            giving.queue("orders").create()
            sent = giving.queue("orders").put("one")
            (message,) = taking.queue("orders").receive()
            assert message.id == sent.id
        with first.client() as client:
            assert client.queue("orders").receive() == []


def test_a_virtual_clock_moves_what_a_database_keeps() -> None:
    """A single server over a database can be taken through time like any other."""
    open_empty(SCHEMA).close()
    url = f"{shared_cluster().url}&schema={SCHEMA}"
    with InProcessServer(store=url) as server, server.client() as client:
        queue = client.queue("orders")
        queue.create()
        queue.put("one", delay_s=3600)
        assert list(queue.receive()) == []
        server.advance(3600)
        assert len(list(queue.receive())) == 1
