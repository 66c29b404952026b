"""The server that is shot at, with the accounts of the shots."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.reliability.fuzz_shots import KEYS
from tests.reliability.running import Client, KillableServer

SHORT_DEADLINES: Final = MappingProxyType({"--header-timeout-s": "1", "--body-timeout-s": "1"})


@contextmanager
def serving(folder: Path, **options: str) -> Iterator[KillableServer]:
    """Have a server with two accounts run, its data in a folder; *options* are further ones."""
    config = folder / "leasehold.toml"
    config.write_text("".join(f'[accounts.{name}]\nkey1 = "{KEYS[name]}"\n' for name in KEYS))
    # Connections of this test may rest for as long as a busy machine takes over the others.
    idle = {"--idle-timeout-s": "3600"}
    given = {"--config": str(config), "--disk-reserve-mib": "4", **idle, **options}
    server = KillableServer(folder / "data", options=given)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def client_of(server: KillableServer, account: str) -> Client:
    """Return a client of one account."""
    return Client(server.port, account=account, key=base64.b64decode(KEYS[account]))
