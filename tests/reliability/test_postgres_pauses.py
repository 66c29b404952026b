"""One of two servers is stopped again and again under mixed load; the other goes on answering."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from leasehold.client import Client, errors
from leasehold.client.retries import RetryPolicy
from tests.e2e.server import Endpoint, Server
from tests.postgres import find_programs, open_empty, shared_cluster

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")

SCHEMA: Final = "pausing"
PAUSES: Final = 12
PAUSED_S: Final = 6.0
"""The others are to have their answers long before that."""
BODY: Final = "x" * 2_000


class Clients(threading.Thread):
    """What a server is asked, by one client: puts, receives, removals, and what needs all alone."""

    def __init__(self, endpoint: Endpoint, number: int) -> None:
        super().__init__(daemon=True)
        self._endpoint = endpoint
        self._random = Random(number)
        self._number = number
        self.stopping = False
        self.answers: list[tuple[float, float, str]] = []
        """When each question was asked and answered, on the monotonic clock, and what came."""

    def run(self) -> None:
        with Client.from_connection_string(
            self._endpoint.connection_string, retries=RetryPolicy(attempts=1), timeout_s=60
        ) as client:
            queue = client.queue("orders")
            while not self.stopping:
                self._work(client, queue)

    def _work(self, client: Any, queue: Any) -> None:
        what = self._random.random()
        if what < 0.45:
            self._ask(lambda: queue.put_many([BODY] * 20))
        elif what < 0.9:
            messages = self._ask(lambda: queue.receive(20))
            if messages:
                self._ask(lambda: queue.complete_many(messages))
        else:
            other = client.queue(f"other-{self._number}")
            self._ask(other.create)
            self._ask(other.delete)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Make one request."""
        asked_s, told, answer = time.monotonic(), "done", None
        try:
            answer = question()
        except errors.LeaseholdClientError as error:
            told = str(error)
        self.answers.append((asked_s, time.monotonic(), told))
        return answer


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, Server, tuple[Endpoint, Endpoint]]]:
    """Two servers on one database."""
    open_empty(SCHEMA).close()
    url = f"{shared_cluster().url}&schema={SCHEMA}"
    first, second = (
        Server(tmp_path / name, options={"--store-url": url, "--log-format": "json"})
        for name in ("first", "second")
    )
    with first as one, second as two:
        yield first, second, (one, two)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_pauses_do_not_silence_the_other_server(
    servers: tuple[Server, Server, tuple[Endpoint, Endpoint]],
) -> None:
    """Whoever asks the healthy one is answered while the other is stopped, and nobody is refused.

    How long the longest answer took in each pause is written to the output.
    """
    first, _, (one, two) = servers
    with Client.from_connection_string(two.connection_string) as client:
        client.queue("orders").create()
    of_stopped = [Clients(one, number) for number in range(6)]
    of_healthy = [Clients(two, 10 + number) for number in range(4)]
    for each in (*of_stopped, *of_healthy):
        each.start()
    random = Random(1)
    longest: list[float] = []
    unanswered: list[Clients] = []
    try:
        for _ in range(PAUSES):
            time.sleep(random.uniform(0.5, 1.5))
            began_s = time.monotonic()
            os.kill(first.pid, signal.SIGSTOP)
            time.sleep(PAUSED_S)
            ended_s = time.monotonic()
            os.kill(first.pid, signal.SIGCONT)
            time.sleep(1)
            longest.append(_longest_s(of_healthy, began_s, ended_s))
            unanswered += [each for each in of_healthy if not _is_answered(each, began_s, ended_s)]
    finally:
        os.kill(first.pid, signal.SIGCONT)
        for each in (*of_stopped, *of_healthy):
            each.stopping = True
    told = [told for each in of_healthy for *_, told in each.answers if told != "done"]
    sys.stdout.write(json.dumps({"longest_s": [round(s, 2) for s in longest], "refused": told}))
    assert not told
    assert not unanswered


def _is_answered(client: Clients, began_s: float, ended_s: float) -> bool:
    """Tell whether a question that was asked after one time was answered before another."""
    return any(
        began_s <= asked_s and answered_s <= ended_s for asked_s, answered_s, _ in client.answers
    )


def _longest_s(clients: list[Clients], began_s: float, ended_s: float) -> float:
    """Return the longest that a question was open which touches a time."""
    spans = [
        answered_s - asked_s
        for each in clients
        for asked_s, answered_s, _ in each.answers
        if answered_s >= began_s and asked_s <= ended_s
    ]
    return max(spans, default=ended_s - began_s)
