"""A server, and workers of Celery that come and go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import kombu
import pytest
from celery import Celery

import leasehold.brokers.kombu  # noqa: F401 - kombu alone does not look for it
from leasehold.client import Client
from tests.e2e.server import Server
from tests.patience import PATIENCE_S

ROOT: Final = Path(__file__).parents[3]
_LOOK_S: Final = 0.1
_READY: Final = " ready."


def wait_until(is_so: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {patience_s} s: {what}"
        time.sleep(_LOOK_S)


class Application:
    """The application of the tests on one server: publishes, and starts workers."""

    def __init__(self, url: str, folder: Path, options: Mapping[str, Any]) -> None:
        self.url = url
        self.options = dict(options)
        self._folder = folder
        self._effects = folder / "effects.log"
        self._workers: list[Worker] = []
        self.celery = Celery("app", broker=url, set_as_current=False)
        self.celery.conf.update(broker_transport_options=self.options)

    def send(self, task: str, *arguments: object, **options: Any) -> str:
        """Publish a task and return its id."""
        return str(self.celery.send_task(f"benchmarks.celery_app.{task}", arguments, **options))

    def worker(self, *arguments: str, **environment: str) -> Worker:
        """Start a worker and wait until it is ready."""
        number = len(self._workers)
        made = Worker(
            [*arguments, "--hostname", f"w{number}@test"],
            self._folder / f"worker-{number}.log",
            {
                "BROKER_URL": self.url,
                "EFFECTS": str(self._effects),
                "TRANSPORT_OPTIONS": json.dumps(self.options),
                **environment,
            },
        )
        self._workers.append(made)
        made.wait_for(_READY)
        return made

    def effects(self) -> Counter[str]:
        """Return how often each line was left."""
        if not self._effects.exists():
            return Counter()
        return Counter(line.split()[0] for line in self._effects.read_text().splitlines())

    def wait_for_effects(self, *wanted: object) -> None:
        """Wait until each line was left at least once."""
        lines = {str(each) for each in wanted}
        wait_until(lambda: lines <= set(self.effects()), f"{lines - set(self.effects())}")

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            worker.stop()
        self.celery.close()


class Worker:
    """A worker in a process group of its own."""

    def __init__(self, arguments: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "benchmarks.celery_app", "worker"),
                    *("--loglevel", "info", "--concurrency", "2", *arguments),
                ],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """What it has written."""
        return self._log.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Wait until it has written *text*."""
        wait_until(lambda: text in self.log or self.process.poll() is not None, f"{text!r}")
        assert text in self.log, f"the worker has ended:\n{self.log}"

    def kill(self) -> None:
        """End it and the processes of its pool at once, as a crash of the machine does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Have it finish what it has begun."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"the worker does not stop:\n{self.log}") from None


class Broker:
    """A server that keeps its port when it is killed and started again."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._server = Server(data)
        self.origin = self._server.start().origin

    def kill(self) -> None:
        """End it as a crash does."""
        process = self._server._process
        assert process is not None
        process.kill()
        process.wait()

    def start(self) -> None:
        """Start it again, on the same data."""
        self._server = Server(self._data, port=int(self.origin.rsplit(":", 1)[1]))
        self._server.start()

    def stop(self) -> None:
        """Stop it in order."""
        self._server.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give a server for the tests of a module."""
    made = Broker(tmp_path_factory.mktemp("broker") / "data")
    yield made
    made.stop()


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    """Give a client of that server."""
    with Client(broker.origin) as made:
        yield made


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Name of the test, for queues of its own."""
    name = request.node.name.removeprefix("test_").split("[")[0]
    return f"{name.replace('_', '-')}-"


@pytest.fixture
def application(
    broker: Broker, prefix: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Application]:
    """Give an application whose leases are shorter than its tasks."""
    options = {"visibility_timeout": 3, "session_timeout": 4, "queue_name_prefix": prefix}
    options |= getattr(request, "param", {})
    made = Application(f"leasehold+{broker.origin}", tmp_path, options)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def connection(broker: Broker, prefix: str) -> Iterator[kombu.Connection]:
    """Give a connection of kombu."""
    options = {"queue_name_prefix": prefix, "visibility_timeout": 3, "session_timeout": 4}
    with kombu.Connection(f"leasehold+{broker.origin}", transport_options=options) as made:
        yield made
