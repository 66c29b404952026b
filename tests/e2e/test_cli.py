"""The command line against a real server."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasehold.cli import main
from tests.e2e.identity import IdentityProvider
from tests.e2e.server import Endpoint, Server


class Shell:
    """Runs ``leasehold`` with the server in the usual variable of the environment."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.environment = {"AZURE_STORAGE_CONNECTION_STRING": endpoint.connection_string}

    def __call__(self, *words: str, code: int = 0, stdin: str = "", **environment: str) -> Result:
        """Run a command within this process, and fail unless it ends with *code*."""
        done = CliRunner().invoke(main, words, input=stdin, env=self.environment | environment)
        assert done.exit_code == code, done.output
        return done

    def json(self, *words: str, **options: Any) -> Any:
        """Return the one document that a command prints."""
        return json.loads(self(*words, "--json", **options).stdout)

    def lines(self, *words: str, **options: Any) -> list[Any]:
        """Return what a command prints line by line."""
        return [json.loads(each) for each in self(*words, "--json", **options).stdout.splitlines()]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """The command line, and a server for all tests of this module."""
    with Server(tmp_path_factory.mktemp("cli") / "data") as endpoint:
        yield Shell(endpoint)


def test_the_life_of_a_message(shell: Shell) -> None:
    """Put, received, renewed, given back, received again, completed."""
    shell("queue", "create", "life", "--visibility-timeout", "2m")
    put = shell.json("send", "life", '{"order": 17}', "--type", "order")
    (received,) = shell.lines("message", "receive", "life", "--holder", "worker-7")
    assert (received["id"], received["body"]) == (put["id"], '{"order": 17}')
    text = shell("inspect", "life").stdout
    assert put["id"] in text
    assert "It is leased to worker-7 until" in text
    names = (put["id"], received["receipt"])
    renewed = shell.json("message", "renew", "life", *names, "--for", "5m", "--progress", "0.4")
    refused = shell("message", "complete", "life", *names, code=1)
    assert "Code: lease-lost (409)" in refused.stderr
    names = (put["id"], renewed["receipt"])
    shell("message", "release", "life", *names, "--outcome", "failed", "--error", "no such file")
    shown = shell("message", "show", "life", put["id"]).stdout
    assert "no such file" in shown
    received = shell("message", "receive", "life", "--complete")
    assert "1 message completed." in received.stderr
    assert shell.json("queue", "counts", "life")["total"] == 0
    empty = shell("message", "receive", "life")
    assert "is empty" in empty.stderr


def test_many_messages(shell: Shell, tmp_path: Path) -> None:
    """From a file, out again as lines, into another queue, and away."""
    path = tmp_path / "lines"
    path.write_text("\n".join(f"line {place}" for place in range(2_500)))
    shell("queue", "create", "many")
    shell("queue", "create", "copy")
    assert shell("send", "many", "--file", str(path)).stdout == "2,500 messages put.\n"
    listed = shell("message", "list", "many", "--json").stdout
    assert len(listed.splitlines()) == 2_500
    shell("send", "copy", "--file", "-", "--items", stdin=listed)
    bodies = [each["body"] for each in shell.lines("message", "list", "copy")]
    assert bodies == [f"line {place}" for place in range(2_500)]
    taken = shell("message", "receive", "copy", "--max", "100", "--json").stdout
    shell("message", "complete", "copy", "--file", "-", stdin=taken)
    stats = {each["name"]: each["counts"]["visible"] for each in shell.lines("stats")}
    assert (stats["many"], stats["copy"]) == (2_500, 2_400)
    assert shell("queue", "purge", "copy", code=2).stdout == ""
    purged = shell("queue", "purge", "copy", "--yes", "--text", "line 249")
    assert purged.stdout == "11 messages removed, of 2,400 examined.\n"
    shell("queue", "delete", "copy", "--yes")
    assert "queue-not-found" in shell("queue", "show", "copy", code=1).stderr


def test_poison_and_back(shell: Shell) -> None:
    """A failing message ends in the poison queue, says why, and comes back."""
    shell("queue", "create", "fragile", "--max-failures", "1")
    message_id = shell.json("send", "fragile", "x")["id"]
    (received,) = shell.lines("message", "receive", "fragile")
    names = (message_id, received["receipt"])
    told = shell("message", "release", "fragile", *names, "--outcome", "failed", "--error", "boom")
    assert "went to the poison queue" in told.stdout
    assert "boom" in shell("explain", "fragile", message_id).stdout
    assert shell.json("redrive", "fragile", "--dry-run", "--error", "boom")["matched"] == 1
    assert shell("redrive", "fragile", "-y").stdout == "1 message brought back, of 1 examined.\n"
    assert shell.json("queue", "counts", "fragile")["visible"] == 1
    states = {each["state"] for each in shell.lines("job", "list", "--queue", "fragile")}
    assert states == {"done"}
    (received,) = shell.lines("message", "receive", "fragile")
    shell("message", "bury", "fragile", message_id, received["receipt"])
    shell("queue", "delete", "fragile", "--yes")
    assert shell.json("queue", "counts", "fragile-poison")["visible"] == 1


def test_settings(shell: Shell) -> None:
    """Set, shown, reset; what is out of range is refused with its bounds."""
    shell("queue", "create", "tuned")
    words = "--backoff linear --backoff-cap 10m --adaptive 5s:1h --rate 5 --strict"
    shell("queue", "set", "tuned", *words.split())
    settings = shell.json("queue", "show", "tuned")["settings"]
    assert settings["failure_policy"]["backoff"]["cap_s"] == 600
    assert (settings["lapsed_receipts"], settings["max_receives_per_s"]) == ("strict", 5)
    refused = shell("queue", "set", "tuned", "--visibility-timeout", "30d", code=1)
    assert "604,800" in refused.stderr
    shell("queue", "pause", "tuned", "--for", "5m", "--reason", "upgrade")
    assert "is paused" in shell("explain", "tuned").stdout
    shell("queue", "resume", "tuned")
    fresh = shell.json("queue", "create", "fresh")["settings"]
    assert shell.json("queue", "set", "tuned", "--reset", "all")["settings"] == fresh


def test_mending_messages(shell: Shell) -> None:
    """Hurry one on, end somebody's lease, remove one."""
    shell("queue", "create", "mended")
    message_id = shell.json("send", "mended", "x", "--delay", "1h")["id"]
    amended = shell.json("message", "amend", "mended", message_id, "--delay", "0", "--body", "y")
    assert (amended["state"], amended["body"]) == ("visible", "y")
    shell("message", "receive", "mended")
    refused = shell("message", "remove", "mended", message_id, "--yes", code=1)
    assert "message-leased" in refused.stderr
    ended = shell.json("message", "end-lease", "mended", message_id, "--reason", "stuck")
    assert ended["state"] == "visible"
    shell("message", "remove", "mended", message_id, "--yes")
    assert shell.lines("message", "list", "mended") == []


def test_as_processes_in_a_pipe(shell: Shell) -> None:
    """What one command prints, the next one reads; a pipe has no colours and nobody to ask."""
    shell("queue", "create", "piped")
    shell("send", "piped", "--file", "-", stdin="a\nb\nc\n")
    leasehold = f"{shlex.quote(sys.executable)} -m leasehold.cli"
    command = (
        f"{leasehold} message receive piped --max 3 --json | "
        f"{leasehold} message complete piped --file - && {leasehold} queue counts piped"
    )
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env=os.environ | shell.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == "3 messages completed.\n"
    assert done.stdout.splitlines()[-1] == "in the queue         0"


def test_nobody_answers(shell: Shell) -> None:
    """Exit code 3, and the address that was tried."""
    # Port 1 is that of tcpmux, which nobody runs.
    text = "AccountName=a;AccountKey=a2V5;QueueEndpoint=http://127.0.0.1:1/a"
    done = shell("queue", "list", code=3, AZURE_STORAGE_CONNECTION_STRING=text)
    assert "http://127.0.0.1:1" in done.stderr


def test_health_is_asked_over_tls_too(tls_endpoint: Endpoint, identity: IdentityProvider) -> None:
    """A health check reads the settings of its server, and so knows that it is https."""
    files = {name: identity.server_options()[name] for name in ("--tls-cert", "--tls-key")}
    words = ("health", "--port", str(tls_endpoint.port), *chain.from_iterable(files.items()))
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert CliRunner().invoke(main, ("health", "--port", str(tls_endpoint.port))).exit_code == 1
