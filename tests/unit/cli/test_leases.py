"""Commands that give out receipts or take them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leasehold.testing.time import START_MS
from tests.unit.cli.support import ID, MESSAGE, RECEIPT, Shell
from tests.unit.client.support import problem, refused, results

MESSAGES = "/queues/orders/messages"
RECEIVED = {"messages": [MESSAGE | {"receipt": RECEIPT, "fence": 2, "properties": {"a": "b"}}]}


def test_receive_prints_what_complete_takes(shell: Shell) -> None:
    """The hint is a command that completes the message."""
    shell.server.on("POST", f"{MESSAGES}/receive", RECEIVED)
    shell.server.on("POST", f"{MESSAGES}/complete", results({"id": ID}))
    words = ("--max", "5", "--visibility-timeout", "2m", "--wait", "0.5", "--holder", "me")
    result = shell("message", "receive", "orders", *words)
    assert shell.server.sent == {
        "max_messages": 5,
        "visibility_timeout_s": 120,
        "wait_s": 0.5,
        "holder": "me",
    }
    assert result.stdout.splitlines() == [
        ID,
        f"  receipt     {RECEIPT}",
        "  leased      until 2026-01-01T00:01:00Z (in 1 min)",
        "  received    twice",
        "  fence       2",
        "  properties  a=b",
        "  body        JSON, 13 bytes",
        *("  {", '    "order": 17', "  }", ""),
    ]
    command = result.stderr.split(": leasehold ")[1].split()
    assert command == ["message", "complete", "orders", ID, RECEIPT]
    assert shell(*command).output == f"Message {ID} is completed.\n"
    assert shell.server.sent == {"items": [{"id": ID, "receipt": RECEIPT}]}


def test_receive_and_complete_at_once(shell: Shell) -> None:
    """In JSON mode the messages are printed first: they are gone afterwards."""
    shell.server.on("POST", f"{MESSAGES}/receive", RECEIVED)
    shell.server.on("POST", f"{MESSAGES}/complete", results({"id": ID}))
    result = shell("message", "receive", "orders", "--complete")
    assert (result.exit_code, result.stderr) == (0, "1 message completed.\n")
    shell.server.on("POST", f"{MESSAGES}/complete", results(refused("lease-lost")))
    result = shell("message", "receive", "orders", "--complete", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["receipt"] == RECEIPT
    assert json.loads(result.stderr)["error"]["code"] == "lease-lost"


def test_receive_in_a_session(shell: Shell) -> None:
    """The leases belong to it, and end with it."""
    message = RECEIVED["messages"][0] | {"session": "9da7"}
    shell.server.on("POST", f"{MESSAGES}/receive", {"messages": [message]})
    result = shell("message", "receive", "orders", "--session", "9da7")
    assert shell.server.sent == {"max_messages": 1, "session": "9da7"}
    assert "  session     9da7" in result.stdout.splitlines()


def test_nothing_to_receive(shell: Shell) -> None:
    """People are told why; scripts get nothing; callers who may not ask are not bothered."""
    shell.server.on("POST", f"{MESSAGES}/receive", {"messages": []})
    explanation = {"sentence": "Queue orders is paused.", "code": "paused"}
    shell.server.on("GET", "/queues/orders/explain", explanation)
    result = shell("message", "receive", "orders")
    assert result.stdout == "There is nothing to receive.\n"
    assert result.stderr == "Queue orders is paused.\n"
    assert shell("message", "receive", "orders", "--json").output == ""
    shell.server.on("GET", "/queues/orders/explain", problem("forbidden", 403))
    result = shell("message", "receive", "orders")
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("code", ["stopping", "store-full"])
def test_a_wait_that_the_server_ends_by_stopping(shell: Shell, code: str) -> None:
    """Nobody knows whether there is something: only the failure is told."""
    shell.server.on("POST", f"{MESSAGES}/receive", {"messages": []})
    shell.server.on("GET", "/queues/orders/explain", problem(code, 503))
    result = shell("message", "receive", "orders", "--wait", "1")
    assert result.exit_code != 0
    assert result.stdout == ""
    assert result.stderr != ""


def test_complete_from_a_file(shell: Shell) -> None:
    """What receive prints is what complete reads; one refusal does not hide the others."""
    second = {"id": "other", "receipt": "r2"}
    lines = "\n".join(json.dumps(each) for each in (RECEIVED["messages"][0], second))
    shell.server.on("POST", f"{MESSAGES}/complete", results({"id": ID}, refused("lease-lost")))
    result = shell("message", "complete", "orders", "--file", "-", stdin=f"{lines}\n\n")
    assert shell.server.sent == {"items": [{"id": ID, "receipt": RECEIPT}, second]}
    assert result.exit_code == 1
    assert "other\nRefused: D\nCode: lease-lost (409)\n" in result.stderr
    assert "1 message completed.\n" in result.stderr


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        ((), None),
        ((ID,), None),
        ((ID, RECEIPT, "--file", "-"), "{}"),
        (("--file", "-"), "no json"),
        (("--file", "-"), '{"id": "a"}'),
        (("--file", "-"), "[1]"),
    ],
)
def test_complete_mistakes(shell: Shell, words: tuple[str, ...], stdin: str | None) -> None:
    """Nothing is completed unless all is understood."""
    assert shell("message", "complete", "orders", *words, stdin=stdin).exit_code == 2
    assert shell.server.requests == []


def test_renew(shell: Shell) -> None:
    """The new receipt is printed, and progress goes along."""
    renewed = {"id": ID, "receipt": "new", "visible_at_ms": START_MS + 600_000}
    shell.server.on("POST", f"{MESSAGES}/renew", results(renewed))
    words = ("message", "renew", "orders", ID, RECEIPT, "--for", "10m")
    assert shell(*words).output.splitlines() == [
        f"id            {ID}",
        "receipt       new",
        "leased until  2026-01-01T00:10:00Z (in 10 min)",
    ]
    shell(*words, "--progress", "0.4", "--note", "stage 2")
    (item,) = shell.server.sent["items"]
    assert item["progress"] == {"fraction": 0.4, "note": "stage 2"}
    assert json.loads(shell(*words, "--json").output)["receipt"] == "new"


@pytest.mark.parametrize(
    ("words", "item", "result", "told"),
    [
        (
            ("release", "--outcome", "failed", "--delay", "1m", "--error", "boom"),
            {"outcome": "failed", "delay_s": 60, "error": {"text": "boom"}},
            {"visible_at_ms": START_MS + 60_000},
            "can be received from 2026-01-01T00:01:00Z (in 1 min) on.",
        ),
        (
            ("release",),
            {},
            {"visible_at_ms": START_MS, "poisoned": "max_deliveries"},
            "went to the poison queue, because of max_deliveries.",
        ),
        (
            ("bury", "--error", "not an order"),
            {"outcome": "buried", "error": {"text": "not an order"}},
            {"visible_at_ms": START_MS, "poisoned": "buried"},
            "went to the poison queue, because of buried.",
        ),
    ],
)
def test_giving_back(
    shell: Shell,
    words: tuple[str, ...],
    item: dict[str, Any],
    result: dict[str, Any],
    told: str,
) -> None:
    """With the reason, and said what has become of it."""
    shell.server.on("POST", f"{MESSAGES}/release", results({"id": ID} | result))
    verb, *options = words
    assert shell("message", verb, "orders", ID, RECEIPT, *options).output == (
        f"Message {ID} {told}\n"
    )
    assert shell.server.sent == {"items": [{"id": ID, "receipt": RECEIPT} | item]}
