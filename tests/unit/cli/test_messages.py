"""``leasehold message``, ``inspect``, ``explain``: looking at messages, and mending them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from leasehold.testing.time import START_MS
from tests.unit.cli.support import ID, MESSAGE, VIEW, Shell
from tests.unit.client.support import answer, problem

PATH = f"/queues/orders/messages/{ID}"


def page(*views: dict[str, Any], after: str | None = None) -> dict[str, Any]:
    """Return a page of messages."""
    return {"messages": list(views), "next_after": after}


def test_list(shell: Shell) -> None:
    """Id, state, age, deliveries, time left, holder, and the body on one line."""
    encoded = base64.b64encode(b"hello there").decode()
    visible = VIEW | {"state": "visible", "lease": None, "body": encoded}
    shell.server.on("GET", "/queues/orders/messages", page(VIEW, visible))
    assert shell("message", "list", "orders").output.splitlines() == [
        "ID                                    STATE     AGE  TIMES  LEFT  HOLDER    BODY",
        "─" * 96,
        f'{ID}  leased   90 s      2  60 s  worker-7  {{"order": 17}}',
        f"{ID}  visible  90 s      2                  [base64] hello there",
    ]


def test_hostile_bodies(shell: Shell) -> None:
    """A body can neither move the cursor nor be taken for markup."""
    hostile = VIEW | {"body": "\x1b[2J[bold red]\u202ex", "why": "\x1b]0;t\x07"}
    shell.server.on("GET", "/queues/orders/messages", page(hostile))
    for words in (("message", "list"), ("inspect",)):
        text = shell(*words, "orders", FORCE_COLOR="1", TERM="xterm-256color").output
        assert "\x1b[2J" not in text
        assert "\x1b]" not in text
        assert "\u202e" not in text
    assert r"\x1b[2J[bold red]\u202ex" in shell("message", "list", "orders").output


def test_inspect_says_why(shell: Shell) -> None:
    """A sentence under each message, and bodies are not even fetched."""
    shell.server.on("GET", "/queues/orders/messages", page(VIEW))
    for words in (("inspect", "orders"), ("message", "list", "orders", "--why")):
        text = shell(*words).output
        assert text.splitlines()[3] == "    It is leased to worker-7."
        assert "order" not in text
        assert shell.server.requests[-1].url.params["body"] == "false"


def test_filters(shell: Shell) -> None:
    """Every option of a filter reaches the server under its name."""
    shell.server.on("GET", "/queues/orders/messages", page())
    words = (
        "--state leased --state expired --older-than 2h --newer-than 7d --min-dequeue-count 2 "
        "--max-dequeue-count 5 --holder w --type t --group g --reason failures --error Timeout "
        "--text x --json-path a.b --json-value 4"
    )
    result = shell("message", "list", "orders", *words.split())
    assert result.output == "There are no such messages.\n"
    assert dict(shell.server.requests[-1].url.params) == {
        "limit": "100",
        "state": "leased,expired",
        "min_age_s": "7200",
        "max_age_s": "604800",
        "min_dequeue_count": "2",
        "max_dequeue_count": "5",
        "holder": "w",
        "type": "t",
        "group": "g",
        "reason": "failures",
        "error": "Timeout",
        "text": "x",
        "json_path": "a.b",
        "json_value": "4",
    }


def test_a_value_needs_a_path(shell: Shell) -> None:
    """Else nobody knows where it should stand."""
    assert shell("message", "list", "orders", "--json-value", "4").exit_code == 2


def test_limits(shell: Shell) -> None:
    """People get a hundred unless they say; scripts get all, page after page."""
    shell.server.on("GET", "/queues/orders/messages", page(*[VIEW] * 120))
    for words, lines in (((), 102), (("--limit", "3"), 5), (("--limit", "0"), 122)):
        result = shell("message", "list", "orders", *words)
        assert len(result.stdout.splitlines()) == lines
        assert ("--limit 0" in result.stderr) == (lines < 122)
    shell.server.on("GET", "/queues/orders/messages", page(*[VIEW] * 120, after="x"), page(VIEW))
    listed = shell("message", "list", "orders", "--json").output.splitlines()
    assert len(listed) == 121
    assert json.loads(listed[0])["lease"]["holder"] == "worker-7"


def test_peek(shell: Shell) -> None:
    """The messages that would come next."""
    shell.server.on("POST", "/queues/orders/messages/peek", page(MESSAGE))
    assert '{"order": 17}' in shell("message", "peek", "orders", "--max", "5").output
    assert shell.server.sent == {"max_messages": 5}
    shell.server.on("POST", "/queues/orders/messages/peek", page())
    assert shell("message", "peek", "orders").output == "No message is visible.\n"


def test_show(shell: Shell) -> None:
    """All there is to know, the body spread out."""
    attempt = {
        "number": 1,
        "leased_at_ms": START_MS - 80_000,
        "ended_at_ms": START_MS - 40_000,
        "outcome": "failed",
        "holder": "worker-3",
        "renewals": 1,
        "error": {"text": "no such file", "type": "OSError"},
    }
    lease = {
        "holder": None,
        "since_ms": START_MS - 10_000,
        "until_ms": START_MS + 60_000,
        "renewals": 1,
        "progress": {"fraction": 0.4, "note": "stage 2"},
    }
    shell.server.on(
        "GET",
        PATH,
        VIEW
        | {
            "lease": lease,
            "attempts": [attempt],
            "last_error": attempt["error"],
            "failures": 1,
            "poisoned": {"queue": "orders", "reason": "failures", "at_ms": START_MS},
            "redriven": 1,
            "properties": {"a": "b"},
            "dedup_key": "k",
            "priority": 1,
        },
    )
    text = shell("message", "show", "orders", ID).output.splitlines()
    for line in (
        ID,
        "  state       leased",
        "  why         It is leased to worker-7.",
        "  expires     never",
        "  received    twice, 1 failure",
        "  poisoned    2026-01-01T00:00:00Z, because of failures in queue orders",
        "  redriven    once",
        "  priority    1",
        "  dedup key   k",
        "  properties  a=b",
        "  holder    unnamed",
        "  until     2026-01-01T00:01:00Z (in 1 min), renewed once",
        "  progress  40% stage 2",
        "  text  no such file",
        "  1  failed   40 s ago    40 s        1  worker-3  no such file",
        "Body (JSON, 13 bytes)",
        '    "order": 17',
    ):
        assert line in text, (line, text)


@pytest.mark.parametrize("why", ["missing", "corrupt", "unreachable", "left-out", "of-tomorrow"])
def test_a_body_that_cannot_be_shown(shell: Shell, why: str) -> None:
    """It is not shown as an empty one, neither to people nor to scripts."""
    lacking = {name: value for name, value in VIEW.items() if name != "body"}
    lacking |= {"body_problem": why, "body_bytes": 300_000}
    shell.server.on("GET", PATH, lacking)
    shell.server.on("GET", "/queues/orders/messages", page(lacking))
    shell.server.on("POST", "/queues/orders/messages/peek", {"messages": [lacking]})
    text = shell("message", "show", "orders", ID).output
    assert f"Body ({why}, 293 KiB)" in text.splitlines()
    shown = json.loads(shell("message", "show", "orders", ID, "--json").output)
    assert (shown["body_problem"], shown["body_bytes"]) == (why, 300_000)
    assert "body" not in shown
    for words in (("list",), ("peek",)):
        assert f"[{why}, 293 KiB]" in shell("message", *words, "orders").output


def test_an_empty_body(shell: Shell) -> None:
    """There is nothing under its heading."""
    shell.server.on("GET", PATH, VIEW | {"body": "", "body_bytes": 0})
    assert shell("message", "show", "orders", ID).output.endswith("\nBody (empty, 0 bytes)\n")
    assert json.loads(shell("message", "show", "orders", ID, "--json").output)["body"] == ""


def test_a_body_as_it_is(shell: Shell, tmp_path: Path) -> None:
    """To standard output, or into a file; nothing is made if there is no such message."""
    shell.server.on("GET", f"{PATH}/body", httpx.Response(200, content=b"\xff\x00\n"))
    assert shell("message", "body", "orders", ID).stdout_bytes == b"\xff\x00\n"
    path = tmp_path / "scan"
    words = ("message", "body", "orders", ID, "--output", str(path))
    assert shell(*words).output == ""
    assert path.read_bytes() == b"\xff\x00\n"
    path.unlink()
    shell.server.on("GET", f"{PATH}/body", problem("message-not-found", 404))
    assert shell(*words).exit_code == 1
    assert not path.exists()


def test_show_as_json(shell: Shell) -> None:
    """Bodies as on the wire: text, or base64 if they are not."""
    shell.server.on("GET", PATH, VIEW)
    assert json.loads(shell("message", "show", "orders", ID, "--json").output)["body"] == (
        '{"order": 17}'
    )
    shell.server.on("GET", PATH, VIEW | {"body": None, "body_base64": "/wA="})
    shown = json.loads(shell("message", "show", "orders", ID, "--json").output)
    assert (shown["body_base64"], "body" in shown) == ("/wA=", False)


@pytest.mark.parametrize("words", [("message", "explain"), ("explain",)])
def test_explain(shell: Shell, words: tuple[str, ...]) -> None:
    """One sentence."""
    shell.server.on("GET", f"{PATH}/explain", {"sentence": "It waits.", "code": "visible"})
    assert shell(*words, "orders", ID).output == "It waits.\n"


def test_amend(shell: Shell) -> None:
    """Only what is named is sent."""
    shell.server.on("PATCH", PATH, VIEW)
    result = shell("message", "amend", "orders", ID, "--delay", "0", "--priority", "1")
    assert result.output == "It is leased to worker-7.\n"
    assert shell.server.sent == {"delay_s": 0, "priority": 1}
    words = ("--body", "-", "--base64", "--time-to-live", "never", "--property", "a=b", "--force")
    shell("message", "amend", "orders", ID, *words, stdin="new\n")
    assert shell.server.sent == {
        "body": base64.b64encode(b"new").decode(),
        "time_to_live_s": -1,
        "properties": {"a": "b"},
        "force": True,
    }
    assert shell("message", "amend", "orders", ID, "--force").exit_code == 2


def test_remove(shell: Shell) -> None:
    """It asks first; force goes along."""
    shell.server.on("DELETE", PATH, answer({}, 204))
    assert shell("message", "remove", "orders", ID).exit_code == 2
    result = shell("message", "remove", "orders", ID, "--yes", "--force")
    assert result.output == f"Message {ID} is removed.\n"
    assert shell.server.requests[-1].url.params["force"] == "true"
    shell.server.on("DELETE", PATH, problem("message-leased", 409, holder="worker-7"))
    result = shell("message", "remove", "orders", ID, "--yes")
    assert result.exit_code == 1
    assert "--force" in result.stderr


def test_extend(shell: Shell) -> None:
    """No receipt is needed; how the message is then is said."""
    shell.server.on("POST", f"/queues/orders/messages/{ID}/extend-lease", VIEW)
    result = shell("message", "extend", "orders", ID, "--for", "1h")
    assert (result.exit_code, result.output) == (0, "It is leased to worker-7.\n")
    assert shell.server.sent == {"visibility_timeout_s": 3_600}
    assert json.loads(shell("message", "extend", "orders", ID, "--for", "9", "--json").output)
    assert shell("message", "extend", "orders", ID).exit_code == 2


def test_end_lease(shell: Shell) -> None:
    """With a delay and a reason."""
    shell.server.on("POST", f"{PATH}/end-lease", VIEW | {"state": "visible", "why": ""})
    words = ("--delay", "1m", "--reason", "stuck")
    text = shell("message", "end-lease", "orders", ID, *words).output
    assert shell.server.sent == {"delay_s": 60, "reason": "stuck"}
    assert text == f"Message {ID} is visible, visible 2026-01-01T00:01:00Z (in 1 min).\n"
