"""``leasehold send``."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from leasehold.testing.time import START_MS
from tests.unit.cli.support import ID, Shell
from tests.unit.client.support import PUT_RESULT, problem, refused, results

PATH = "/queues/orders/messages"
PUT = PUT_RESULT | {"id": ID, "expires_at_ms": START_MS + 60_000}


def test_one_message(shell: Shell) -> None:
    """Only what was said is sent; the answer has the id."""
    shell.server.on("POST", PATH, results(PUT))
    result = shell("send", "orders", '{"order": 17}')
    assert shell.server.sent == {"messages": [{"body": '{"order": 17}'}]}
    assert result.output.splitlines()[:2] == [f"id       {ID}", "queue    orders"]
    words = (
        "message send orders x --delay 5m --time-to-live never --priority 1 --dedup-key k --type t "
        "--property a=b --property c=d --traceparent 00-1-2-01 --base64 --json "
        "--visibility-timeout 10m"
    )
    result = shell(*words.split())
    assert json.loads(result.output)["id"] == ID
    assert shell.server.sent["messages"] == [
        {
            "body": "eA==",
            "delay_s": 300,
            "time_to_live_s": -1,
            "priority": 1,
            "dedup_key": "k",
            "type": "t",
            "properties": {"a": "b", "c": "d"},
            "traceparent": "00-1-2-01",
            "visibility_timeout_s": 600,
        }
    ]


@pytest.mark.parametrize("words", [("-",), ()])
def test_standard_input(shell: Shell, words: tuple[str, ...]) -> None:
    """The body can come through a pipe, less the line break that echo adds."""
    shell.server.on("POST", PATH, results(PUT))
    shell("send", "orders", *words, stdin="two\nlines\n")
    assert shell.server.sent == {"messages": [{"body": "two\nlines"}]}


def test_bytes(shell: Shell) -> None:
    """What is no text goes as base64 on the wire, and is stored as it is."""
    shell.server.on("POST", PATH, results(PUT))
    shell("send", "orders", "-", stdin=b"\xff\x00")
    assert shell.server.sent == {"messages": [{"body_base64": "/wA="}]}


def test_a_large_body_travels_as_it_is(shell: Shell) -> None:
    """Base64 would be longer than a request may be; properties need JSON all the same."""
    shell.server.on("POST", PATH, results(PUT))
    shell.server.on("POST", f"{PATH}/raw", PUT)
    large = b"\xff" * 65_537
    assert shell("send", "orders", "-", "--type", "scan", stdin=large).exit_code == 0
    request = shell.server.requests[-1]
    assert (request.content, dict(request.url.params)) == (large, {"type": "scan"})
    assert shell("send", "orders", "-", "--property", "a=b", stdin=large).exit_code == 0
    assert shell.server.sent["messages"][0]["properties"] == {"a": "b"}


def test_a_duplicate_is_said_to_be_one(shell: Shell) -> None:
    """So that nobody looks for a message that was not put."""
    shell.server.on("POST", PATH, results(PUT | {"duplicate": True}))
    assert "duplicate  yes" in shell("send", "orders", "x", "--dedup-key", "k").output


def numbered(request_items: int, first: int = 0) -> httpx.Response:
    """Return the results of putting so many messages."""
    return results(*(PUT | {"id": str(first + place)} for place in range(request_items)))


def test_a_file_of_lines(shell: Shell, tmp_path: Path) -> None:
    """One message a line, a thousand to a request; empty lines are none."""
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(b"%d" % place for place in range(1_500)) + b"\r\n\n")
    shell.server.on("POST", PATH, numbered(1_000), numbered(500, 1_000))
    result = shell("send", "orders", "--file", str(path), "--type", "t")
    assert (result.exit_code, result.output) == (0, "1,500 messages put.\n")
    assert shell.server.sent["messages"][-1] == {"body": "1499", "type": "t"}


def test_some_are_refused(shell: Shell) -> None:
    """The others are put; the refused are named by their lines, and the exit code says it."""
    shell.server.on("POST", PATH, results(PUT, refused("body-too-large"), PUT))
    result = shell("send", "orders", "--file", "-", stdin="a\n\nb\nc\n")
    assert result.exit_code == 1
    assert result.stdout == "2 messages put, 1 refused.\n"
    assert result.stderr.startswith("Line 3:\nRefused: D Split it, or raise the limit: ")
    shell.server.on("POST", PATH, results(PUT, refused("body-too-large"), PUT))
    lines = shell("send", "orders", "--file", "-", "--json", stdin="a\n\nb\nc\n").output
    told = [json.loads(line) for line in lines.splitlines()]
    assert [each["line"] for each in told] == [1, 3, 4]
    assert told[1]["error"]["code"] == "body-too-large"


def test_a_file_that_could_not_be_sent_to_its_end(shell: Shell) -> None:
    """Where to go on is said."""
    shell.server.on("POST", PATH, numbered(1_000), problem("queue-not-found", 404))
    result = shell("send", "orders", "--file", "-", stdin="x\n" * 1_200)
    assert result.exit_code == 1
    assert "1,000 messages were put; line 1001 is the next." in result.stderr


ITEMS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"body": "x", "priority": 1, "type": None}, {"body": "x", "priority": 1}),
    ({"body_base64": "/wA="}, {"body_base64": "/wA="}),
    ({"json": {"a": [1, "é"]}, "delay_s": 3}, {"body": '{"a":[1,"é"]}', "delay_s": 3}),
    ({"body": "x", "id": ID, "state": "poisoned", "attempts": []}, {"body": "x"}),
]


@pytest.mark.parametrize(("item", "sent"), ITEMS)
def test_a_file_of_items(shell: Shell, item: dict[str, Any], sent: dict[str, Any]) -> None:
    """Each line has its own settings, and what a listing printed can be put again."""
    shell.server.on("POST", PATH, results(PUT))
    result = shell("send", "orders", "--file", "-", "--items", stdin=json.dumps(item))
    assert result.exit_code == 0, result.output
    assert shell.server.sent == {"messages": [sent]}


def test_items_can_be_encoded(shell: Shell) -> None:
    """As single bodies can."""
    shell.server.on("POST", PATH, results(PUT))
    shell("send", "orders", "--file", "-", "--items", "--base64", stdin='{"body": "x"}')
    assert shell.server.sent == {"messages": [{"body": base64.b64encode(b"x").decode()}]}


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (("x", "--file", "-"), "a"),
        (("x", "--items"), None),
        (("--file", "-", "--dedup-key", "k"), "a"),
        (("--file", "-", "--items"), "no json"),
        (("--file", "-", "--items"), "[1]"),
        (("--file", "-", "--items"), "{}"),
        (("--file", "-", "--items"), '{"body": 1}'),
        (("--file", "-", "--items"), '{"body_base64": "?"}'),
        (("--file", "-", "--items"), '{"body": "a", "json": 1}'),
        (("--file", "-", "--items"), '{"body": "a", "prio": 1}'),
        (("x", "--priority", "17"), None),
        (("x", "--property", "a"), None),
    ],
)
def test_mistakes(shell: Shell, words: tuple[str, ...], stdin: str | None) -> None:
    """Nothing is sent."""
    result = shell("send", "orders", *words, stdin=stdin)
    assert result.exit_code == 2, result.output
    assert shell.server.requests == []


@pytest.mark.parametrize("words", [(), ("-",)])
def test_nothing_on_standard_input_is_no_message(shell: Shell, words: tuple[str, ...]) -> None:
    """A command before that failed writes nothing: an empty message is put only when told so."""
    shell.server.on("POST", PATH, results(PUT))
    for given in ("", "\n"):
        result = shell("send", "orders", *words, stdin=given)
        assert result.exit_code == 2
        assert "--allow-empty" in result.stderr
    assert shell.server.asked == []
    assert shell("send", "orders", *words, "--allow-empty", stdin="").exit_code == 0
    assert shell("send", "orders", "").exit_code == 0
    assert len(shell.server.asked) == 2
