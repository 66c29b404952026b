"""Queues as a file: written from one server, made on another."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasehold.cli import main
from leasehold.client import Client
from leasehold.client.models import Policy
from leasehold.server.settings.values import DEV_KEY, account_of
from leasehold.testing import InProcessServer

POLICY = {"max_failures": 3, "backoff": {"kind": "exponential", "initial_s": 2, "cap_s": 60}}


class Place:
    """A server, and the command line for it."""

    def __init__(self, server: InProcessServer, client: Client) -> None:
        self.client = client
        self._environment = {"AZURE_STORAGE_CONNECTION_STRING": server.connection_string}

    def __call__(self, *words: str | Path, code: int = 0, stdin: str = "") -> Result:
        """Run ``leasehold definitions``."""
        arguments = ["definitions", *map(str, words)]
        done = CliRunner().invoke(main, arguments, input=stdin, env=self._environment)
        assert done.exit_code == code, done.output
        return done

    def settings(self, name: str) -> Any:
        """Return the settings of a queue."""
        return self.client.queue(name).info().settings


@pytest.fixture
def places() -> Iterator[tuple[Place, Place]]:
    """Two servers."""
    with (
        InProcessServer() as one,
        InProcessServer() as two,
        one.client() as first,
        two.client() as second,
    ):
        yield Place(one, first), Place(two, second)


def test_queues_are_as_they_were_elsewhere(places: tuple[Place, Place], tmp_path: Path) -> None:
    """Settings and metadata, and no state: what is paused there goes on here."""
    here, there = places
    file = tmp_path / "queues.json"
    groups = {"order": "fifo", "weights": {"acme": 3}}
    orders = here.client.queue("orders")
    orders.create(
        metadata={"team": "shop"},
        settings={"visibility_timeout_s": 90, "failure_policy": POLICY, "groups": groups},
    )
    orders.pause(reason="stocktaking")
    here.client.queue("plain").create()
    assert "has 2 queues" in here("export", file).output
    there("import", file, "--yes")
    for name in ("orders", "plain"):
        mine, theirs = here.settings(name), there.settings(name)
        for member in ("visibility_timeout_s", "failure_policy", "groups", "event_log"):
            assert getattr(mine, member) == getattr(theirs, member)
    assert there.settings("orders").paused_until_ms is None
    assert dict(there.client.queue("orders").info().metadata) == {"team": "shop"}
    assert "All queues are as in the file." in there("import", file, "--yes").output
    assert here("export", "-").output == there("export", "-").output


def test_stored_access_policies_go_along(places: tuple[Place, Place], tmp_path: Path) -> None:
    """They are made, found the same, changed and taken away; a file without them leaves them."""
    here, there = places
    file = tmp_path / "queues.json"
    readers = Policy("readers", "2026-01-01", "2027-01-01T00:00Z", "rp")
    adders = Policy("adders", permission="a")
    orders = here.client.queue("orders")
    orders.create()
    orders.set_policies([readers, adders])
    here("export", file)
    assert DEV_KEY not in file.read_text()
    there("import", file, "--yes")
    found = there.client.queue("orders")
    assert sorted(found.policies(), key=lambda each: each.id) == [adders, readers]
    orders.set_policies([adders, readers])  # the order says nothing
    here("export", file)
    assert "All queues are as in the file." in there("import", file, "--yes").output
    orders.set_policies([adders])
    here("export", file)
    assert "orders: changes\n  policies: [" in there("import", file, "--dry-run").output
    assert len(found.policies()) == 2
    there("import", file, "--yes")
    assert found.policies() == [adders]
    there("import", "-", "--yes", stdin='{"queues": [{"name": "orders"}]}')
    assert found.policies() == [adders]
    none = '{"queues": [{"name": "orders", "policies": []}]}'
    there("import", "-", "--yes", stdin=none)
    assert found.policies() == []


def test_policies_that_may_not_be_seen_are_left_out(tmp_path: Path) -> None:
    """It is said; the rest is written."""
    key = base64.b64encode(b"i" * 32).decode()
    inspector = account_of("devstoreaccount1", [key])
    with InProcessServer(inspectors=(inspector,)) as server, server.client() as client:
        client.queue("orders").create()
        client.queue("orders").set_policies([Policy("adders", permission="a")])
        (tmp_path / "key").write_text(key)
        words = ("definitions", "export", "-", "--url", server.url, "--send-key")
        done = CliRunner().invoke(main, [*words, "--key-file", str(tmp_path / "key")])
    assert done.exit_code == 0, done.output
    assert "Stored access policies are not exported" in done.stderr
    (queue,) = json.loads(done.stdout)["queues"]
    assert (queue["name"], queue["policies"]) == ("orders", None)


def test_differences_are_shown_before_they_are_made(places: tuple[Place, Place]) -> None:
    """A dry run does nothing; what the file does not name stays."""
    here, _ = places
    here.client.queue("orders").create(
        settings={"visibility_timeout_s": 90, "failure_policy": POLICY, "dedup_window_s": 60}
    )
    wanted = {"max_failures": 5, "backoff": None}
    settings = {"visibility_timeout_s": 45, "failure_policy": wanted}
    text = json.dumps({"queues": [{"name": "orders", "settings": settings}, {"name": "new"}]})
    said = here("import", "-", "--dry-run", stdin=text).output
    assert "orders: changes" in said
    assert "visibility_timeout_s: 90 -> 45" in said
    assert "new: new" in said
    assert "2 queues would be created or changed." in said
    assert here.settings("orders").visibility_timeout_s == 90
    here("import", "-", "--yes", stdin=text)
    found = here.settings("orders")
    assert (found.visibility_timeout_s, found.dedup_window_s) == (45, 60)
    assert (found.failure_policy.max_failures, found.failure_policy.backoff) == (5, None)
    assert here.client.queue("new").info().name == "new"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[]", "is no list of definitions"),
        ("{", "is no list of definitions"),
        ('{"queues": [{"name": "a"}, {"name": "a"}]}', "names twice: a"),
        (
            '{"queues": [{"name": "a", "settings": {"paused_until_ms": 5}}]}',
            "no definitions: paused",
        ),
        ('{"queues": [{"name": "a", "colour": "red"}]}', "colour"),
    ],
)
def test_files_that_are_none(places: tuple[Place, Place], text: str, part: str) -> None:
    """Are refused before anything is done."""
    here, _ = places
    assert part in here("import", "-", "--yes", code=2, stdin=text).output


def test_a_setting_that_is_wrong_is_the_servers_to_refuse(places: tuple[Place, Place]) -> None:
    """With the name of the setting."""
    here, _ = places
    text = json.dumps({"queues": [{"name": "a", "settings": {"visibility_timeout_s": 0}}]})
    assert "visibility_timeout_s" in here("import", "-", "--yes", code=1, stdin=text).output


def test_a_file_that_cannot_be_written(places: tuple[Place, Place], tmp_path: Path) -> None:
    """One line with its name, and no traceback."""
    here, _ = places
    here.client.queue("orders").create()
    said = here("export", tmp_path / "no" / "such.json", code=1).output
    assert (
        said == f"Error: Could not open file '{tmp_path}/no/such.json': No such file or directory\n"
    )
