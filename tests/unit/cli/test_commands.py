"""The tree of commands: help, laziness, exit codes, connection options."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import httpx
import pytest
from click.testing import CliRunner

from leasehold.cli import main
from leasehold.cli.remote import RemoteCommand
from leasehold.cli.root import LATE
from tests.unit.cli.support import COUNTS, Shell
from tests.unit.client.support import problem

QUEUES: dict[str, object] = {"queues": [], "next_after": None}


def leaves(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that is no group, with its full name."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path} {name}")
        else:
            yield f"{path} {name}".strip(), command


REMOTE = {name: command for name, command in leaves(main) if isinstance(command, RemoteCommand)}


@pytest.mark.parametrize("name", LATE)
def test_the_list_says_what_the_command_says(name: str) -> None:
    """The summary in the list, which needs no import, is the first sentence of the help."""
    assert LATE[name].summary == main.commands[name].get_short_help_str(limit=200)


def test_the_help_of_queue_promises_no_command_that_it_lacks() -> None:
    """Each verb of its summary is a command; to configure is ``set``."""
    group = main.commands["queue"]
    assert isinstance(group, click.Group)
    verbs = set(re.findall(r"\w+", LATE["queue"].summary.lower())) - {"and", "queues"}
    assert verbs - {"configure"} <= set(group.commands)


@pytest.mark.parametrize("words", [(), ("queue",), ("queue", "create"), ("no-such-command",)])
def test_help_is_the_help_of_the_command(words: tuple[str, ...]) -> None:
    """With the words before it as after it."""
    before, after = (
        CliRunner().invoke(main, typed, prog_name="leasehold")
        for typed in (("help", *words), (*words, "--help"))
    )
    assert (before.exit_code, before.output) == (after.exit_code, after.output)


def test_help_and_serve_need_none_of_the_client_libraries() -> None:
    """Listing the commands, and the help of the server, load neither tables nor HTTP.

    Nor anything of the server but its settings.
    """
    code = (
        "import sys; from click.testing import CliRunner; from leasehold.cli import main\n"
        "for words in (['--help'], ['serve', '--help']):\n"
        "    assert CliRunner().invoke(main, words).exit_code == 0\n"
        "late = {'rich', 'httpx', 'msgspec', 'apsw', 'structlog', 'asyncio', 'urllib.request'}\n"
        "print(late & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("name", REMOTE)
def test_every_command_explains_itself(shell: Shell, name: str) -> None:
    """A sentence, an example that names the command, every exit code, every shared option."""
    result = shell(*name.split(), "--help")
    assert result.exit_code == 0
    text = result.output
    summary = REMOTE[name].get_short_help_str(limit=200)
    assert summary.endswith("."), summary
    assert not summary.endswith("..."), summary
    example = text.split("Example:\n")[1] if "Example:\n" in text else text.split("Examples:\n")[1]
    last = name.rsplit(maxsplit=1)[-1]
    assert last in example.split("\n\n")[0], example
    described = text.split("\nExample")[0].splitlines()[1:]
    assert all(line[:2] == "  " and "  " not in line[2:] for line in described if line), described
    assert "--connection-string" in text.split("\nConnection:\n")[1]
    for word in ("--json", "Exit codes:", "  3    no Leasehold server"):
        assert word in text
    for parameter in REMOTE[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert parameter.help.endswith("."), parameter.name


def test_a_refusal_is_exit_code_1(shell: Shell) -> None:
    """What is wrong and what to do, and then its code, on standard error."""
    shell.server.on("GET", "/queues/orders/counts", problem("out-of-range", 400, remedy="Do it."))
    result = shell("queue", "counts", "orders")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Refused: D Do it.\nCode: out-of-range (400)\n"


def test_remedies_speak_of_commands(shell: Shell) -> None:
    """Where the server would say which request to send, a person is told which command."""
    refusal = problem("queue-not-found", 404, remedy="PUT /v1/...")
    shell.server.on("GET", "/queues/orders/counts", refusal)
    result = shell("queue", "counts", "orders")
    assert "Create it: leasehold queue create orders\n" in result.stderr
    assert "PUT" not in result.stderr


def test_a_refusal_as_json(shell: Shell) -> None:
    """Scripts get it as one line on standard error."""
    refusal = problem("queue-not-found", 404, remedy="R")
    shell.server.on("GET", "/queues/orders/counts", refusal)
    result = shell("queue", "counts", "orders", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    error = json.loads(result.stderr)["error"]
    assert (error["code"], error["status"], error["remedy"]) == ("queue-not-found", 404, "R")


@pytest.mark.parametrize(
    "reply", [httpx.ConnectError("refused"), httpx.Response(200, content="<html>")]
)
def test_no_server_is_exit_code_3(shell: Shell, reply: httpx.Response | Exception) -> None:
    """Also if something else answers there."""
    shell.server.on("GET", "/queues/orders/counts", reply)
    result = shell("queue", "counts", "orders")
    assert result.exit_code == 3
    assert "http://127.0.0.1:10001" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("queue", "counts"),
        ("queue", "counts", "orders", "--nonsense"),
        ("queue", "counts", "."),
        ("queue", "counts", "orders", "--connection-string", "AccountName"),
        ("queue", "counts", "orders", "--connection-string", "a=b", "--account", "c"),
        ("queue", "counts", "orders", "--account", "other"),
        ("queue", "counts", "orders", "--key-file", "/does/not/exist"),
        ("queue", "counts", "orders", "--watch", "0"),
        ("nonsense",),
    ],
)
def test_mistakes_are_exit_code_2(shell: Shell, words: tuple[str, ...]) -> None:
    """Nothing is asked of the server."""
    result = shell(*words)
    assert result.exit_code == 2, result.output
    assert shell.server.requests == []


def test_the_usual_variable_names_the_server(shell: Shell) -> None:
    """AZURE_STORAGE_CONNECTION_STRING is used when nothing is typed."""
    shell.server.on("GET", "/queues", QUEUES)
    text = "AccountName=devstoreaccount1;AccountKey=a2V5;QueueEndpoint=http://127.0.0.1:7/"
    assert shell("queue", "list", AZURE_STORAGE_CONNECTION_STRING=text).exit_code == 0
    assert shell.server.requests[-1].url.port == 7


def test_options_win_over_the_variable(shell: Shell, tmp_path: Path) -> None:
    """Address, account and key can be given one by one, the key in a file."""
    shell.server.on("GET", "/queues", QUEUES)
    key = tmp_path / "key"
    key.write_text("a2V5\n")
    words = ("--url", "http://127.0.0.1:8", "--key-file", str(key), "--send-key")
    result = shell("queue", "list", *words, AZURE_STORAGE_CONNECTION_STRING="nonsense")
    assert result.exit_code == 0, result.output
    request = shell.server.requests[-1]
    assert (request.url.port, request.headers["authorization"]) == (8, "Bearer a2V5")


def test_no_key_is_shown(shell: Shell) -> None:
    """A malformed connection string is refused without being printed."""
    secret = "c2VjcmV0LXNlY3JldC1zZWNyZXQ"
    result = shell("queue", "list", "--connection-string", f"AccountKey={secret};{secret}")
    assert result.exit_code == 2
    assert secret not in result.output


def test_colours(shell: Shell) -> None:
    """They can be switched off, also by the variable that many programs know."""
    shell.server.on("GET", "/queues/orders/counts", COUNTS)
    words = ("queue", "counts", "orders")
    colours = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    green = "\x1b[32m"
    assert green in shell(*words, **colours).output
    assert green not in shell(*words, "--no-color", **colours).output
    assert green not in shell(*words, NO_COLOR="1", **colours).output
    assert green not in shell(*words).output
