"""What a quorum queue of RabbitMQ has after a kill, by how many messages were got and not settled.

``python -m proof.history.peers.quorum_replay 20 32 33 60``

No clients at work and no faults but one kill, long after the last call: 100 messages are put and
confirmed; some are got, and their channel is closed; 20 are got and acknowledged; the node is
killed and started, and the queue is drained. The other 80 should be there, and no one of the 20.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from proof.history.adapters import Queue
from proof.history.peers.rabbitmq import rabbitmq

_PUT: Final = 100
_ACKNOWLEDGED: Final = 20
_SETTLED_S: Final = 1.0
_DRAIN_S: Final = 20.0


class Seen(NamedTuple):
    """How many messages were missing in the end, and how many had been acknowledged."""

    missing: int
    back: int


def seen_after(got: int, *, kind: str = "quorum") -> Seen:
    """Do it once; *got* is how many were got by the channel that is closed."""
    with tempfile.TemporaryDirectory(prefix="lhpeer", dir="/var/tmp") as name:
        server = rabbitmq(Path(name), kind, pushed=False)
        try:
            server.start(["one"], [])
            queue = server.connector(0).open("one")
            for number in range(_PUT):
                queue.put(str(number), delay_s=0, group="")
            closed = server.connector(0).open("one")
            closed.receive(got, 1)
            closed.close()
            time.sleep(_SETTLED_S)
            acknowledged = set()
            for delivery in queue.receive(_ACKNOWLEDGED, 1):
                queue.complete(delivery)
                acknowledged.add(delivery.body)
            time.sleep(_SETTLED_S)
            server.kill()
            server.restart()
            left = _drained(server.connector(0).open("one"), _PUT - len(acknowledged))
        finally:
            server.stop()
    wanted = {str(number) for number in range(_PUT)} - acknowledged
    return Seen(len(wanted - left), len(acknowledged & left))


def _drained(queue: Queue, count: int) -> set[str]:
    """Take until so many were taken, or for as long as it may take."""
    bodies: list[str] = []
    end_s = time.monotonic() + _DRAIN_S
    while len(bodies) < count and time.monotonic() < end_s:
        for delivery in queue.receive(count, 1):
            queue.complete(delivery)
            bodies.append(delivery.body)
    return set(bodies)


def main() -> None:
    """Do it for each number that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("got", type=int, nargs="+", help="how many are got and not settled")
    parser.add_argument("--kind", choices=("quorum", "classic"), default="quorum")
    options = parser.parse_args()
    for got in options.got:
        seen = seen_after(got, kind=options.kind)
        print(f"{options.kind}, {got} got: {seen.missing} missing, {seen.back} back", flush=True)


if __name__ == "__main__":
    main()
