"""A real server and real workers under the autoscaler of Kubernetes, as KEDA sets it up.

What KEDA and the autoscaler do follows their documentation: KEDA asks the server for a number,
takes the deployment from 0 to 1 while it is above 0, and to 0 after a cooldown; in between the
autoscaler wants one replica for each target, tolerates a tenth, at most doubles or adds four, and
does not know which workers are busy. It takes away at once here, where it would wait five minutes.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

import leasehold
from leasehold.client import Client, QueueHandle
from tests.e2e.server import DEV_ACCOUNT, Endpoint, Server
from tests.patience import PATIENCE_S, PROGRAM_S

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/howto/count-and-scale.md"
"""It has the ScaledObject that the chart makes, too."""
INSPECTOR: Final = b64encode(b"the key of an autoscaler, no more").decode()
MESSAGES: Final = 45
MAX_REPLICAS: Final = 5
COOLDOWN: Final = 3
"""Looks at an idle queue before the last worker goes."""
TOLERANCE: Final = 0.1
LOOK_EACH_S: Final = 0.25
HANDLED: Final = "handled.log"
HANDLER: Final = f"""
import time

def handle(message):
    with open({HANDLED!r}, "a") as log:
        log.write(message.id + "\\n")
    time.sleep(float(message.text))
"""


def desired_replicas(replicas: int, value: float, target: float) -> int:
    """Return what the autoscaler wants of a metric of type AverageValue, 1 replica at least."""
    if abs(1 - value / (target * replicas)) <= TOLERANCE:
        return replicas
    highest = min(max(2 * replicas, replicas + 4), MAX_REPLICAS)
    return min(max(1, math.ceil(value / target)), highest)


class Autoscaler:
    """KEDA and the autoscaler, over processes in place of pods.

    Args:
        endpoint: Of the server.
        folder: With the module of the handler.
        stop_with: The signal for a worker that is taken away.
    """

    def __init__(self, endpoint: Endpoint, folder: Path, stop_with: signal.Signals) -> None:
        self._endpoint = endpoint
        self._folder = folder
        self._stop_with = stop_with
        shown = PAGE.read_text(encoding="utf-8").partition("```yaml\n")[2].partition("```")[0]
        self._trigger = yaml.safe_load(shown)["spec"]["triggers"][0]["metadata"]
        self._dice = random.Random(1)
        self._idle = 0
        self.started: list[subprocess.Popen[bytes]] = []
        self.running: list[subprocess.Popen[bytes]] = []
        self.most = 0
        self.busy_when_taken = 0.0
        """Leases that there were when workers were taken away, added up."""

    def look(self) -> None:
        """Ask for the number once, and do what follows."""
        told = self._ask()
        replicas = len(self.running)
        value = float(told[self._trigger["valueLocation"]])
        self._idle = 0 if value > float(self._trigger["activationTargetValue"]) else self._idle + 1
        if replicas == 0:
            wanted = 0 if self._idle else 1
        elif self._idle > COOLDOWN:
            wanted = 0
        else:
            wanted = desired_replicas(replicas, value, float(self._trigger["targetValue"]))
        if wanted < replicas:
            self.busy_when_taken += told["leased"]
        self._scale(wanted)
        self.most = max(self.most, wanted)

    def log_of(self, worker: int) -> Path:
        """Return the file of what a worker printed, by its number from 0 in the order of starts."""
        return self._folder / f"worker-{worker}.log"

    def _ask(self) -> dict[str, float]:
        asked = self._trigger["url"].partition("/queues/")[2]
        url = f"{self._endpoint.origin}/v1/accounts/{DEV_ACCOUNT}/queues/{asked}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {INSPECTOR}"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            found: dict[str, float] = json.load(answer)
        return found

    def _scale(self, wanted: int) -> None:
        while len(self.running) < wanted:
            self.started.append(self._start())
            self.running.append(self.started[-1])
        while len(self.running) > wanted:
            taken = self.running.pop(self._dice.randrange(len(self.running)))
            taken.send_signal(self._stop_with)

    def _start(self) -> subprocess.Popen[bytes]:
        words = ("worker", "run", "handlers:handle", "--queue", "jobs", "--no-progress")
        tight = ("--concurrency", "1", "--prefetch", "0", "--lease", "20s", "--grace", "60s")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LEASEHOLD_")}
        environment["PYTHONPATH"] = str(Path(leasehold.__file__).parents[1])
        environment["AZURE_STORAGE_CONNECTION_STRING"] = self._endpoint.connection_string
        with self.log_of(len(self.started)).open("wb") as log:
            return subprocess.Popen(
                (sys.executable, "-m", "leasehold.cli", *words, *tight),
                cwd=self._folder,
                env=environment,
                stdout=log,
                stderr=log,
            )


def run(queue: QueueHandle, autoscaler: Autoscaler) -> None:
    """Send a burst with a few long jobs in it, and look until all is done and all are gone."""
    queue.create()
    queue.put_many(["4" if number % 12 == 0 else "0.2" for number in range(MESSAGES)])
    ends = time.monotonic() + PROGRAM_S
    while queue.counts().total or autoscaler.running:
        assert time.monotonic() < ends, f"{queue.counts()}, {len(autoscaler.running)} workers"
        autoscaler.look()
        time.sleep(LOOK_EACH_S)


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    """A server with a key for the autoscaler, and the module of the handler."""
    settings = f'[inspectors.{DEV_ACCOUNT}]\nkey1 = "{INSPECTOR}"\n'
    (tmp_path / "settings.toml").write_text(settings)
    (tmp_path / "handlers.py").write_text(HANDLER)
    options = {"--config": str(tmp_path / "settings.toml")}
    with Server(tmp_path / "data", options=options) as started:
        yield started


@pytest.fixture
def queue(endpoint: Endpoint) -> Iterator[QueueHandle]:
    """The queue of the workers."""
    with Client.from_connection_string(endpoint.connection_string) as client:
        yield client.queue("jobs")


@pytest.mark.long
def test_scaling_in_breaks_no_lease(endpoint: Endpoint, queue: QueueHandle, tmp_path: Path) -> None:
    """Workers are taken away while they work; each message is handled once, by whoever took it."""
    autoscaler = Autoscaler(endpoint, tmp_path, signal.SIGTERM)
    try:
        run(queue, autoscaler)
        codes = [each.wait(timeout=PATIENCE_S) for each in autoscaler.started]
    finally:
        _kill(autoscaler)
    assert autoscaler.most == MAX_REPLICAS
    assert autoscaler.busy_when_taken > 0
    for number, code in enumerate(codes):
        printed = autoscaler.log_of(number).read_text()
        # One that was taken away before it had begun does not know of signals yet.
        assert code == 0 or (code == -signal.SIGTERM and not printed), printed
    handled = (tmp_path / HANDLED).read_text().split()
    assert len(handled) == len(set(handled)) == MESSAGES
    activity = queue.info().activity
    assert activity is not None
    assert (activity.sent, activity.completed) == (MESSAGES, MESSAGES)
    # What a receive brings to a worker that stops already goes back unseen, and at once.
    assert activity.received == MESSAGES + activity.released
    assert activity.released <= len(codes)
    assert activity.rejected_receipts == 0


@pytest.mark.long
def test_the_control_sees_leases_break(
    endpoint: Endpoint, queue: QueueHandle, tmp_path: Path
) -> None:
    """With SIGKILL in place of SIGTERM the same run handles messages again."""
    autoscaler = Autoscaler(endpoint, tmp_path, signal.SIGKILL)
    try:
        run(queue, autoscaler)
    finally:
        _kill(autoscaler)
    handled = (tmp_path / HANDLED).read_text().split()
    assert autoscaler.busy_when_taken > 0
    assert len(handled) > len(set(handled)) == MESSAGES
    activity = queue.info().activity
    assert activity is not None
    assert activity.redelivered > activity.released
    assert activity.completed == activity.sent


def _kill(autoscaler: Autoscaler) -> None:
    for each in autoscaler.started:
        each.kill()
        each.wait()
