"""The dashboard and the alert rules of ``deploy/monitoring`` against a server that is scraped."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from leasehold.client import Client
from leasehold.testing import InProcessServer
from tests.patience import PATIENCE_S

MONITORING: Final = Path(__file__).resolve().parents[2] / "deploy" / "monitoring"
ALERTS: Final = MONITORING / "alerts.yaml"
VARIABLES: Final = {
    "$account": ".*",
    "$queue": ".*",
    "$__rate_interval": "10s",
}


def dashboard() -> dict[str, Any]:
    """Return what Grafana is to import."""
    text = (MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def expressions() -> dict[str, str]:
    """Return what each curve of the dashboard asks for, by its panel and number."""
    found = {}
    for panel in dashboard()["panels"]:
        for number, target in enumerate(panel.get("targets", ())):
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            found[f"{panel['title']} {panel['id']}.{number}"] = re.sub(r"\[15m\]", "[10s]", text)
    return found


class Prometheus:
    """A Prometheus that scrapes one server each second, with the alert rules."""

    def __init__(self, server: InProcessServer, folder: Path) -> None:
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("prometheus is not installed")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        target = server.url.partition("://")[2].rstrip("/")
        jobs = [{"job_name": "leasehold", "static_configs": [{"targets": [target]}]}]
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                (
                    program,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={self.url.partition('://')[2]}",
                ),
                stdout=log,
                stderr=log,
            )

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(timeout=PATIENCE_S)


def until(check: Callable[[], Any], what: Callable[[], str] = str) -> Any:
    """Return what a check returns once it is true; *what* says in the end what was missing."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        try:
            found = check()
        except OSError:
            found = None
        if found:
            return found
        time.sleep(0.25)
    raise AssertionError(f"it did not become so within {PATIENCE_S} s. {what()}")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InProcessServer]:
    """A server in which everything has happened that the dashboard shows."""
    with InProcessServer(store="sqlite", clock="system", data=tmp_path / "data") as started:
        yield started


def work(client: Client) -> None:
    """Do a little of everything."""
    queue = client.queue("orders")
    poison = {"max_failures": 1}
    queue.create(settings={"groups": {"order": "fifo"}, "failure_policy": poison})
    queue.put_many([f"order {number}" for number in range(20)])
    for message in queue.receive(3):
        queue.complete(message)
    with client.session("worker-1") as session:
        (failed,) = queue.receive(1, session=session)
        queue.release(failed, outcome="failed", error="no such customer")
        queue.receive(2, session=session)
    stream = queue.stream("nightly")
    stream.attach()
    stream.open(1, limit=2, lease_s=60)
    client.transaction("monday").stage(["later"], queue="orders")


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    """A client of it."""
    with server.client() as made:
        yield made


@pytest.mark.long
def test_every_curve_and_every_alert(
    server: InProcessServer, client: Client, tmp_path: Path
) -> None:
    """Each expression of the dashboard finds something, each rule is taken, and one fires."""
    prometheus = Prometheus(server, tmp_path)
    try:
        until(lambda: prometheus.ask("query", query='up{job="leasehold"} == 1')["result"])
        work(client)
        asked = expressions()
        assert len(asked) > 25

        def none_is_silent() -> bool:
            server.faults.fail_commits()  # the client repeats what is answered 503
            work_again(client)
            for title, text in list(asked.items()):
                if prometheus.ask("query", query=text)["result"]:
                    del asked[title]
            return not asked

        until(none_is_silent, lambda: f"silent: {asked}")
        rules = prometheus.ask("rules")["groups"][0]["rules"]
        assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
        firing = until(
            lambda: [
                alert
                for alert in prometheus.ask("alerts")["alerts"]
                if alert["labels"]["alertname"] == "LeaseholdPoison"
            ]
        )
        assert firing[0]["annotations"]["summary"] == "1 poisoned in orders"
    finally:
        prometheus.stop()


def work_again(client: Client) -> None:
    """Have rates something to tell."""
    queue = client.queue("orders")
    queue.put("one more")
    for message in queue.receive(1):
        queue.complete(message)


def test_the_rules_and_the_dashboard_name_metrics_that_there_are(
    server: InProcessServer, client: Client
) -> None:
    """No panel stays empty because of a name."""
    work(client)
    with urllib.request.urlopen(f"{server.url.rstrip('/')}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode("utf-8")
    told = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]
    asked = [*expressions().values(), *(rule["expr"] for rule in rules)]
    named = {
        re.sub(r"_bucket$", "", name)
        for each in asked
        for name in re.findall(r"\b(?:leasehold|process)_\w+", each)
    }
    assert named
    assert named - told == set()


def test_the_rules_are_those_of_the_page() -> None:
    """The how-to names each alert, and no other."""
    page = MONITORING.parents[1] / "docs" / "howto" / "prometheus-metrics.md"
    named = set(re.findall(r"`(Leasehold[A-Z]\w+)`", page.read_text(encoding="utf-8")))
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]
    assert named == {rule["alert"] for rule in rules}
