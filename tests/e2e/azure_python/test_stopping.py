"""A server that stops while clients are connected to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.e2e.azure_python.sdk import Flavour, Sdk
from tests.e2e.server import Server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.identity import IdentityProvider


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_idle_clients_do_not_keep_a_server_from_stopping(
    flavour: Flavour, scheme: str, identity: IdentityProvider, tmp_path: Path
) -> None:
    """Pools of clients hold connections open; a server told to stop ends long before they do.

    What was sent is there when a server on the same data starts again.
    """
    options = identity.server_options() if scheme == "https" else {}
    ca_file = identity.certificate_file if scheme == "https" else None
    server = Server(tmp_path / "data", options=options, ca_file=ca_file)
    sdk = Sdk(flavour, server.start())
    async with sdk.queue(sdk.new_name()) as queue:
        await queue.create_queue()
        await queue.send_message("kept")
        await asyncio.to_thread(server.stop)  # fails if it takes long
    with server as endpoint:
        again = Sdk(flavour, endpoint)
        found = await again.queue(queue.queue_name).receive_message()
        assert found.content == "kept"
        await again.aclose()
