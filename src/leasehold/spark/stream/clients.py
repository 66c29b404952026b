"""Clients of this process: one for each place, kept between tasks."""

from __future__ import annotations

import os
from typing import Final

from leasehold.client import Client
from leasehold.spark.connecting import connect, patient
from leasehold.spark.options import Place, ReadOptions

_clients: Final[dict[tuple[int, Place, float], Client]] = {}


def shared_client(options: ReadOptions) -> Client:
    """Return this process's client for where the options point to, made when first asked for.

    Python workers of executors live longer than their tasks, so a connection serves many.
    """
    # A process that was forked must not use the connections of the one before.
    key = (os.getpid(), options.place, options.retry_patience)
    found = _clients.get(key)
    if found is None:
        found = _clients[key] = connect(options.place, patient(options.retry_patience))
    return found


def close_shared() -> None:
    """Close this process's clients. Tasks that come later make new ones."""
    while _clients:
        (pid, _, _), client = _clients.popitem()
        if pid == os.getpid():
            client.close()
