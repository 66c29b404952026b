"""The feedback query is killed around each of its writes; each timeout is applied and told once."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from leasehold.client import Client
from leasehold.spark.feedback import NOTICES
from tests.patience import PROGRAM_S
from tests.reliability.proxy import Proxy, _message
from tests.reliability.running import KillableServer

RUNS: Final = 4
"""Of the query at most, until it ends well."""
MESSAGES: Final = 40
_CHANGE: Final = re.compile(rb"PATCH \S+/queues/[^/ ]+ ")
_NOTICE: Final = re.compile(rb"POST \S+/queues/[^/ ]+" + NOTICES.encode() + rb"/messages ")
POINTS: Final = {
    "before the change": (_CHANGE, False),
    "after the change": (_CHANGE, True),
    "before the notice": (_NOTICE, False),
    "after the notice": (_NOTICE, True),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KillableServer]:
    """Return a server that is not started yet; it is stopped in the end."""
    made = KillableServer(tmp_path / "data", options={"--disk-reserve-mib": "4"})
    yield made
    made.stop()


class Campaign(Proxy):
    """Stands between the query and the server, and kills one of them at a chosen request."""

    def __init__(self, server: KillableServer, root: Path) -> None:
        super().__init__(server.port)
        self._target = server
        self._root = root
        self._armed: tuple[str, re.Pattern[bytes], bool] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.struck = 0

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await _message(reader)
        if self._strikes(request, answered=False):
            return False
        try:
            answer = await self._ask(request)
        except (OSError, EOFError):
            return False
        if self._strikes(request, answered=True):
            return False
        writer.write(answer)
        await writer.drain()
        return b"\r\nconnection: close\r\n" not in answer.lower()

    def _strikes(self, request: bytes, *, answered: bool) -> bool:
        if self._armed is None:
            return False
        victim, form, when = self._armed
        if when is not answered or not form.match(request.split(b"\r\n", 1)[0]):
            return False
        self._armed = None
        self.struck += 1
        if victim == "server":
            self._target.strike()
            threading.Thread(target=self._bring_back, daemon=True).start()
        else:
            self._kill_driver()
        return True

    def _bring_back(self) -> None:
        self._target.kill()
        self._target.start()
        self._upstream = self._target.port

    def _kill_driver(self) -> None:
        assert self._process is not None
        driver = psutil.Process(self._process.pid)
        for each in [driver, *driver.children(recursive=True)]:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue

    def strike(self, victim: str, point: str, connection_string: str, queue: str) -> int:
        """Run the query until it ends well, with one kill on the way; return how often it ran."""
        self._armed = (victim, *POINTS[point])
        through = connection_string.replace(f":{self._target.port}/", f":{self.port}/")
        command = (sys.executable, "-m", "tests.reliability.feedback_query", through, queue)
        for run in range(1, RUNS + 1):
            log = self._root / f"{queue}-{run}.log"
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    (*command, str(self._root / "checkpoint")),
                    stdout=output,
                    stderr=output,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
                )
                code = self._process.wait(PROGRAM_S)
            if code == 0:
                return run
        pytest.fail(f"it does not end well; see\n{log.read_text()[-2_000:]}")


def work_late(client: Client, queue: str) -> None:
    """Do work for longer than its lease lasts."""
    handle = client.queue(queue)
    handle.create(settings={"visibility_timeout_s": 1})
    for number in range(MESSAGES):
        handle.put(b"x", type=f"kind-{number % 2}")
    taken = handle.receive(MESSAGES)
    assert len(taken) == MESSAGES
    time.sleep(1.5)  # the lease has to run out on the server's own clock
    for each in taken:
        handle.complete(each)


def changes_of(client: Client, queue: str) -> list[str]:
    """Return what was set, each time that the timeout was."""
    told = [each.reason or "" for each in client.events() if each.queue == queue]
    return [text for text in told if text.startswith("visibility_timeout_s")]


def check(server: KillableServer, root: Path, kills: list[tuple[str, str]]) -> None:
    """Strike once in each round, with work in a queue of its own and one checkpoint for all."""
    endpoint = server.start()
    root.mkdir()
    runs = 0
    with Campaign(server, root) as campaign:
        for number, (victim, point) in enumerate(kills):
            queue = f"round-{number}"
            connection_string = endpoint.connection_string.replace(
                f":{endpoint.port}/", f":{server.port}/"
            )
            with Client.from_connection_string(connection_string) as client:
                work_late(client, queue)
            runs += campaign.strike(victim, point, connection_string, queue)
            assert campaign.struck == number + 1
            connection_string = endpoint.connection_string.replace(
                f":{endpoint.port}/", f":{server.port}/"
            )
            with Client.from_connection_string(connection_string) as client:
                changes = changes_of(client, queue)
                assert len(changes) == 1, changes
                assert changes[0].startswith("visibility_timeout_s: 1 -> 2;"), changes
                notices = [json.loads(each.body) for each in client.queue(queue + NOTICES).peek()]
                assert [(each["old_s"], each["new_s"]) for each in notices] == [(1, 2)]
    print(f"{len(kills)} kills, {runs} runs")  # noqa: T201 - for a person who runs it with -s


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_each_timeout_is_applied_and_told_once(server: KillableServer, tmp_path: Path) -> None:
    """Driver and server, before and after each write; replays are in the tests of the loop."""
    kills = [(victim, point) for point in POINTS for victim in ("driver", "server")]
    check(server, tmp_path / "query", kills)
