"""Celery on Leasehold's own transport, with late acknowledgement unless told ``early``.

A plain text that ``leasehold certify`` has put is made a call of the task as it is received;
``raw`` as an argument leaves it as it is.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from leasehold.brokers.kombu import transport
from leasehold.brokers.kombu.messages import ENVELOPE, Raw, from_received
from proof.workers.celery_task import call_of, make_app, run
from proof.workers.work import CONNECTION_STRING, LEASE_S

if TYPE_CHECKING:
    from leasehold.client import ReceivedMessage


def _read(message: ReceivedMessage, tag: str) -> Raw:
    raw = from_received(message, tag)
    if ENVELOPE in message.properties:
        return raw
    call = call_of(message.text, encodes=False)
    call["properties"] |= raw["properties"]
    call["properties"]["delivery_info"] |= {"exchange": "", "routing_key": ""}
    return call


def main() -> None:
    """Work until asked to stop."""
    if "raw" not in sys.argv:
        transport.from_received = _read  # type: ignore[attr-defined]  # imported there
    options = {"connection_string": CONNECTION_STRING, "visibility_timeout": LEASE_S}
    run(make_app("leasehold://", **options))


if __name__ == "__main__":
    main()
