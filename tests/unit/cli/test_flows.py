"""``leasehold session``, ``stream``, ``claim``, ``transaction``, and what shows them elsewhere."""

from __future__ import annotations

import json

import pytest

from leasehold.testing.time import START_MS
from tests.unit.cli.support import ID, QUEUE, VIEW, Shell
from tests.unit.client.support import answer, problem

SESSION = {
    "session_id": ID,
    "holder": "worker-7",
    "state": "live",
    "timeout_s": 16,
    "progress_timeout_s": 600,
    "started_at_ms": START_MS - 7_200_000,
    "last_heartbeat_ms": START_MS - 3_000,
    "leases": 12,
}
LOST = SESSION | {
    "session_id": "other",
    "holder": "worker-8\x1b[2J",
    "state": "lost",
    "ended_at_ms": START_MS - 60_000,
    "reason": "no heartbeat for 16 s",
    "leases": 0,
}
CLAIM = {
    "number": 17,
    "state": "open",
    "size": 1_000,
    "lost": 0,
    "remaining": 1_000,
    "limit": 5_000,
    "opened_at_ms": START_MS - 30_000,
    "until_ms": START_MS + 30_000,
    "extensions": 3,
    "holder": "driver",
}
BROKEN = CLAIM | {
    "number": 18,
    "state": "broken",
    "lost": 10,
    "remaining": 990,
    "max_bytes": 2_048,
    "extensions": 0,
    "holder": None,
}
STREAM = {
    "stream": "totals",
    "token": 7,
    "last_settled": 16,
    "attached_at_ms": START_MS - 60_000,
    "claims": [CLAIM, BROKEN],
}
TRANSACTION = {
    "name": "import-1",
    "state": "staged",
    "created_at_ms": START_MS - 60_000,
    "until_ms": START_MS + 86_400_000,
    "rows": 1_500,
    "parts": [{"part": "", "rows": 1_000, "chunks": 1}, {"part": "p", "rows": 500, "chunks": 1}],
}
DONE = TRANSACTION | {"name": "import-0", "state": "published", "parts": [], "rows": 3}
AT = "/queues/orders/streams/totals"


def test_sessions(shell: Shell) -> None:
    """One a line, with when it was heard of and how many leases it has."""
    shell.server.on("GET", "/sessions", {"sessions": [SESSION, LOST]})
    lines = shell("session", "list").output.splitlines()
    assert lines[0].split() == [
        *("SESSION", "HOLDER", "STATE", "AGE", "HEARD", "TIMEOUT", "LEASES", "REASON"),
    ]
    assert lines[2].split() == [ID, "worker-7", "live", "2", "h", "3", "s", "ago", "16", "s", "12"]
    assert r"worker-8\x1b[2J" in lines[3]
    assert lines[3].endswith("no heartbeat for 16 s")
    assert len(shell("session", "list", "--live").output.splitlines()) == 3
    (line,) = shell("session", "list", "--live", "--json").output.splitlines()
    assert json.loads(line)["leases"] == 12
    shell.server.on("GET", "/sessions", {"sessions": []})
    assert shell("session", "list").output == "There are no sessions.\n"


def test_a_session(shell: Shell) -> None:
    """All that is known about it."""
    shell.server.on("GET", f"/sessions/{ID}", SESSION)
    shell.server.on("GET", "/sessions/other", LOST)
    text = shell("session", "show", ID).output
    for line in (
        "  last heartbeat  2025-12-31T23:59:57Z (3 s ago)",
        "  lost after      16 s without a heartbeat",
        "  watchdog        ends a lease after 10 min",
        "  leases          12",
    ):
        assert line in text.splitlines(), line
    text = shell("session", "show", "other").output
    assert "  over            2025-12-31T23:59:00Z (1 min ago)" in text.splitlines()
    assert "  reason          no heartbeat for 16 s" in text.splitlines()


def test_a_session_is_ended(shell: Shell) -> None:
    """It asks first, with the number of leases that end."""
    shell.server.on("GET", f"/sessions/{ID}", SESSION)
    shell.server.on("POST", f"/sessions/{ID}/end", SESSION | {"state": "ended"})
    shell.is_interactive = True
    result = shell("session", "end", ID, stdin="n\n")
    assert "End the session of worker-7 and its 12 leases?" in result.stderr
    assert shell.server.asked == [f"GET /sessions/{ID}"]
    result = shell("session", "end", ID, "--reason", "wrong", "-y")
    assert result.output == "The session of worker-7 is over: ended.\n"
    assert shell.server.sent == {"reason": "wrong"}
    assert json.loads(shell("session", "end", ID, "-y", "--json").output)["state"] == "ended"


def test_streams(shell: Shell) -> None:
    """Up to where each is settled, and what it holds."""
    shell.server.on("GET", "/queues/orders/streams", {"streams": [STREAM]})
    lines = shell("stream", "list", "orders").output.splitlines()
    assert lines[0].split() == [
        *("STREAM", "SETTLED", "CLAIMS", "MESSAGES", "STATES", "ATTACHED"),
    ]
    assert lines[2].split() == ["totals", "16", "2", "1,990", "open,", "broken", "60", "s", "ago"]
    shell.server.on("GET", "/queues/orders/streams", {"streams": []})
    assert shell("stream", "list", "orders").output == "The queue has no streams.\n"
    assert shell("stream", "list", "orders", "--json").output == ""


def test_a_stream(shell: Shell) -> None:
    """Its claims one below the other."""
    shell.server.on("GET", AT, STREAM)
    text = shell("stream", "show", "orders", "totals").output.splitlines()
    assert text[:3] == [
        "totals",
        "  settled up to  16",
        "  attached       2025-12-31T23:59:00Z (1 min ago)",
    ]
    assert [line.split() for line in text[6:]] == [
        ["CLAIM", "STATE", "MESSAGES", "LOST", "AGE", "LEFT", "EXTENDED", "HOLDER"],
        ["─" * (len(text[7]) - 2)],
        ["17", "open", "1,000", "30", "s", "30", "s", "3", "times", "driver"],
        ["18", "broken", "990", "10", "30", "s", "never"],
    ]
    assert json.loads(shell("stream", "show", "orders", "totals", "--json").output)["token"] == 7
    shell.server.on("GET", AT, STREAM | {"claims": []})
    text = shell("stream", "show", "orders", "totals").output.splitlines()
    assert text[-2:] == ["Claims", "  none"]


def test_a_stream_with_claims_that_are_bound(shell: Shell) -> None:
    """What settled it last, and what will; notes and names are shown where there are any."""
    claims = [CLAIM | {"noted": 3, "transaction": "spark.q.17"}, BROKEN]
    settled = {"settled_with": "spark.q.16", "claims": claims}
    shell.server.on("GET", AT, STREAM | settled)
    text = shell("stream", "show", "orders", "totals").output.splitlines()
    assert text[1] == "  settled up to  16, with transaction spark.q.16"
    assert text[6].split()[6:] == ["EXTENDED", "EXEMPTED", "SETTLED", "WITH", "HOLDER"]
    assert text[8].split()[-5:] == ["3", "times", "3", "spark.q.17", "driver"]
    assert text[9].split()[-1] == "never"


def test_settle(shell: Shell) -> None:
    """With the current token, so that the consumer is not disturbed; it says how much first."""
    shell.server.on("GET", AT, STREAM)
    done = {"last_settled": 18, "completed": 1_990, "lost": 10, "published": 5}
    again = {"last_settled": 18, "already": True}
    shell.server.on("POST", f"{AT}/settle", answer(done), answer(again))
    shell.is_interactive = True
    words = ("stream", "settle", "orders", "totals", "18", "--publish", "import-1")
    result = shell(*words, stdin="n\n")
    assert "Complete the 1,990 messages of the claims up to 18 of stream totals" in result.stderr
    assert shell.server.asked == [f"GET {AT}"]
    result = shell(*words, "--yes")
    assert result.output == (
        "Settled up to 18: 1,990 messages completed, 10 had been lost to others, 5 published.\n"
    )
    assert shell.server.sent == {"token": 7, "upto": 18, "publish": ["import-1"]}
    assert shell(*words, "-y").output == "It was settled before, up to 18.\n"
    assert json.loads(shell(*words, "-y", "--json", "--token", "3").output)["already"]
    assert shell.server.sent["token"] == 3


def test_settle_tells_of_other_streams(shell: Shell) -> None:
    """Those that were settled with what was published."""
    shell.server.on("GET", AT, STREAM)
    beside = {"queue": "audio", "stream": "daily", "last_settled": 4, "completed": 1}
    done = {"last_settled": 18, "completed": 5, "exempted": 2, "beside": [beside]}
    shell.server.on("POST", f"{AT}/settle", done)
    assert shell("stream", "settle", "orders", "totals", "18", "-y").output == (
        "Settled up to 18: 5 messages completed, 2 exempted. "
        "Stream daily of queue audio is settled up to 4: 1 message completed.\n"
    )


def test_settle_without_a_terminal(shell: Shell) -> None:
    """Nobody is taken to have said yes."""
    shell.server.on("GET", AT, STREAM)
    assert shell("stream", "settle", "orders", "totals", "17").exit_code == 2
    assert shell.server.asked == [f"GET {AT}"]


def test_park(shell: Shell) -> None:
    """The answer says until when."""
    shell.server.on("GET", AT, STREAM)
    parked = CLAIM | {"state": "parked", "until_ms": START_MS + 172_800_000}
    shell.server.on("POST", f"{AT}/claims/17/extend", parked)
    words = ("stream", "park", "orders", "totals", "17", "--for", "2d")
    result = shell(*words)
    assert result.output == (
        "Claim 17 of stream totals is kept until 2026-01-03T00:00:00Z (in 2 d).\n"
    )
    assert shell.server.sent == {"token": 7, "lease_s": 172_800, "park": True}
    assert json.loads(shell(*words, "--json").output)["state"] == "parked"


def test_give_back(shell: Shell) -> None:
    """It says how much first."""
    shell.server.on("GET", AT, STREAM)
    shell.server.on("GET", f"{AT}/claims/18", BROKEN)
    shell.server.on("POST", f"{AT}/claims/18/give-back", answer({}, 204))
    words = ("stream", "give-back", "orders", "totals", "18")
    shell.is_interactive = True
    result = shell(*words, stdin="y\n")
    assert "Give the 990 messages of claim 18 of stream totals back" in result.stderr
    assert result.stdout == "Claim 18 of stream totals is dissolved.\n"
    assert shell.server.sent == {"token": 7}
    assert json.loads(shell(*words, "-y", "--json").output) == {"given_back": 18}


def test_a_stream_is_forgotten(shell: Shell) -> None:
    """After asking; what it holds goes back."""
    shell.server.on("GET", AT, STREAM)
    shell.server.on("DELETE", AT, answer({}, 204))
    words = ("stream", "delete", "orders", "totals")
    shell.is_interactive = True
    assert "give 1,990 messages back?" in shell(*words, stdin="n\n").stderr
    assert shell.server.asked == [f"GET {AT}"]
    assert shell(*words, "-y").output == "Stream totals is deleted.\n"
    assert json.loads(shell(*words, "-y", "--json").output) == {"deleted": "totals"}


def test_a_claim(shell: Shell) -> None:
    """What it holds, and what it has lost."""
    shell.server.on("GET", f"{AT}/claims/17", CLAIM)
    shell.server.on("GET", f"{AT}/claims/18", BROKEN)
    assert shell("claim", "show", "orders", "totals", "17").output.splitlines() == [
        "totals/17",
        "  state   open: a consumer works on it",
        "  holds   1,000 of at most 5,000 messages",
        "  opened  2025-12-31T23:59:30Z (30 s ago)",
        "  until   2026-01-01T00:00:30Z (in 30 s), extended 3 times",
        "  holder  driver",
    ]
    noted = CLAIM | {"noted": 3, "transaction": "spark.q.17"}
    shell.server.on("GET", f"{AT}/claims/19", noted)
    assert shell("claim", "show", "orders", "totals", "19").output.splitlines()[-3:] == [
        "  exempted      3 are not completed when it is settled",
        "  settled with  transaction spark.q.17",
        "  holder        driver",
    ]
    text = shell("claim", "show", "orders", "totals", "18").output
    assert "  state   broken: other consumers have received some of its messages. Its" in text
    assert "  holds   990 of at most 5,000 messages or 2 KiB" in text.splitlines()
    assert "  lost    10 of 1,000, to others" in text.splitlines()
    assert json.loads(shell("claim", "show", "orders", "totals", "18", "--json").output)["lost"]


def test_a_claim_is_read(shell: Shell) -> None:
    """As messages are listed, less what all have in common; a part of it, or the first so many."""
    member = VIEW | {"under": "totals/17"}
    shell.server.on(
        "GET", f"{AT}/claims/17/messages", {"messages": [member] * 3, "next_after": None}
    )
    words = ("claim", "read", "orders", "totals", "17")
    lines = shell(*words, "--part", "1", "--parts", "2").output.splitlines()
    assert len(lines) == 5
    assert "totals/17" not in lines[2]
    assert dict(shell.server.requests[-1].url.params)["part"] == "1"
    result = shell(*words, "--limit", "2")
    assert len(result.stdout.splitlines()) == 4
    assert "--limit 0" in result.stderr
    lines = shell(*words, "--json").output.splitlines()
    assert [json.loads(line)["under"] for line in lines] == ["totals/17"] * 3
    assert shell(*words, "--part", "2", "--parts", "2").exit_code == 2


@pytest.mark.parametrize("number", ["0", "x"])
def test_claims_are_numbers(shell: Shell, number: str) -> None:
    """From 1 on."""
    assert shell("claim", "show", "orders", "totals", number).exit_code == 2
    assert shell.server.requests == []


def test_transactions(shell: Shell) -> None:
    """Staged and published ones, by name."""
    shell.server.on("GET", "/transactions", {"transactions": [DONE, TRANSACTION]})
    lines = shell("transaction", "list").output.splitlines()
    assert lines[0].split() == ["TRANSACTION", "STATE", "MESSAGES", "PARTS", "AGE", "LEFT"]
    assert lines[2].split() == ["import-0", "published", "3", "60", "s", "24", "h"]
    assert lines[3].split() == ["import-1", "staged", "1,500", "2", "60", "s", "24", "h"]
    shell("transaction", "list", "--state", "staged", "--limit", "5")
    assert dict(shell.server.requests[-1].url.params) == {"limit": "5", "state": "staged"}
    shell.server.on("GET", "/transactions", {"transactions": []})
    assert shell("transaction", "list").output == "There are no transactions.\n"


def test_a_transaction(shell: Shell) -> None:
    """With its parts; of a published one, until when it is remembered."""
    shell.server.on("GET", "/transactions/import-1", TRANSACTION)
    shell.server.on("GET", "/transactions/import-0", DONE)
    text = shell("transaction", "show", "import-1").output
    assert "  vanishes  2026-01-02T00:00:00Z (in 1 d)" in text.splitlines()
    assert [line.split() for line in text.splitlines()[-2:]] == [
        ["(no", "name)", "1,000", "1"],
        ["p", "500", "1"],
    ]
    text = shell("transaction", "show", "import-0").output
    assert "  forgotten  2026-01-02T00:00:00Z (in 1 d)" in text.splitlines()


def test_a_transaction_that_claims_are_bound_to(shell: Shell) -> None:
    """They are shown, and whoever publishes is asked about them too."""
    bound = {"claims": [{"queue": "orders", "stream": "totals", "number": 17}]}
    shell.server.on("GET", "/transactions/import-1", TRANSACTION | bound)
    text = shell("transaction", "show", "import-1").output.splitlines()
    assert text[-2:] == ["Claims", "  claim 17 of totals in orders"]
    settled = {"queue": "orders", "stream": "totals", "last_settled": 17, "completed": 990}
    done = {"rows": 1_500, "settled": [settled | {"exempted": 10}]}
    shell.server.on("POST", "/transactions/import-1/publish", done)
    shell.is_interactive = True
    result = shell("transaction", "publish", "import-1", stdin="y\n")
    assert (
        "Publish the 1,500 messages of transaction import-1, and settle up to claim 17 of totals "
        "in orders?"
    ) in result.stderr
    assert result.stdout == (
        "1,500 messages are published. "
        "Stream totals of queue orders is settled up to 17: 990 messages completed, 10 exempted.\n"
    )


def test_publish(shell: Shell) -> None:
    """It asks; with parts it says that the others are dropped."""
    path = "/transactions/import-1/publish"
    shell.server.on("GET", "/transactions/import-1", TRANSACTION)
    shell.server.on("POST", path, {"rows": 500}, {"rows": 500, "already": True})
    words = ("transaction", "publish", "import-1", "--part", "p")
    shell.is_interactive = True
    result = shell(*words, stdin="y\n")
    assert (
        "Publish the 500 messages of part p, and drop the 1,000 of other parts, of transaction "
        "import-1?"
    ) in result.stderr
    assert result.stdout == "500 messages are published.\n"
    assert shell.server.sent == {"parts": ["p"]}
    assert shell("transaction", "publish", "import-1", "-y").output == (
        "500 messages were published before.\n"
    )
    assert shell.server.sent == {}
    assert json.loads(shell(*words, "-y", "--json").output)["already"]


def test_what_was_dropped_for_its_key_is_told(shell: Shell) -> None:
    """When it is published, and by whoever looks later."""
    done = {"rows": 500, "duplicates": 1}
    shell.server.on("POST", "/transactions/import-1/publish", done, done | {"duplicates": 1_200})
    words = ("transaction", "publish", "import-1", "-y")
    assert shell(*words).output == (
        "500 messages are published. 1 message was discarded: its key had been used.\n"
    )
    assert shell(*words).output == (
        "500 messages are published. 1,200 messages were discarded: their keys had been used.\n"
    )
    over = {"state": "published", "rows": 500, "duplicates": 1_200, "parts": []}
    shell.server.on("GET", "/transactions/import-1", TRANSACTION | over)
    lines = shell("transaction", "show", "import-1").output.splitlines()
    assert [line.split() for line in lines if "duplicates" in line] == [
        ["duplicates", "1,200", "discarded"]
    ]


def test_discard(shell: Shell) -> None:
    """It asks; what was published stays."""
    path = "/transactions/import-1/discard"
    shell.server.on("GET", "/transactions/import-1", TRANSACTION)
    shell.server.on("POST", path, {"rows": 1}, {"rows": 0}, {"rows": 0, "published": True})
    words = ("transaction", "discard", "import-1")
    shell.is_interactive = True
    result = shell(*words, stdin="y\n")
    assert "Discard the 1,500 messages of transaction import-1?" in result.stderr
    assert result.stdout == "1 message discarded.\n"
    result = shell(*words, "--part", "", stdin="n\n")
    assert "Discard the 1,000 messages of part (no name), and keep the 500 of" in result.stderr
    assert (
        shell(*words, "-y").output == "Nothing is staged under this name: nothing was discarded.\n"
    )
    assert shell(*words, "-y").output == "The transaction is published: nothing was discarded.\n"
    assert json.loads(shell(*words, "-y", "--json").output)["published"]


def test_remedies(shell: Shell) -> None:
    """What is not there is told with the command that shows what is."""
    shell.server.on("GET", AT, problem("stream-not-found", 404))
    assert "leasehold stream list" in shell("stream", "show", "orders", "totals").stderr


# --- elsewhere -----------------------------------------------------------------------------------


def test_lists_show_claims_and_transactions(shell: Shell) -> None:
    """What a hidden message belongs to stands beside it."""
    views = [
        VIEW | {"under": "totals/17"},
        VIEW | {"state": "staged", "under": "import-1", "lease": None},
    ]
    shell.server.on("GET", "/queues/orders/messages", {"messages": views, "next_after": None})
    lines = shell("message", "list", "orders", "--state", "staged").output.splitlines()
    assert "UNDER" in lines[0]
    assert "totals/17" in lines[2]
    assert lines[3].split()[1:6] == ["staged", "90", "s", "2", "import-1"]
    assert shell.server.requests[-1].url.params["state"] == "staged"


def test_a_message_shows_its_claim_session_and_cancel(shell: Shell) -> None:
    """All that keeps it hidden."""
    path = f"/queues/orders/messages/{ID}"
    wish = {"at_ms": START_MS, "reason": "wrong"}
    shell.server.on("GET", path, VIEW | {"under": "totals/17", "session": "s1", "cancel": wish})
    text = [line.strip() for line in shell("message", "show", "orders", ID).output.splitlines()]
    assert "claim     totals/17" in text
    assert "session        s1" in text
    assert "asked to stop  2026-01-01T00:00:00Z: wrong" in text
    shell.server.on("GET", path, VIEW | {"under": "import-1", "state": "staged", "lease": None})
    text = [line.strip() for line in shell("message", "show", "orders", ID).output.splitlines()]
    assert "transaction  import-1" in text


def test_cancel(shell: Shell) -> None:
    """The holder is named."""
    shell.server.on("POST", f"/queues/orders/messages/{ID}/cancel", VIEW)
    words = ("message", "cancel", "orders", ID)
    result = shell(*words, "--reason", "wrong")
    assert result.output == f"worker-7 is asked to stop work on message {ID}.\n"
    assert shell.server.sent == {"reason": "wrong"}
    assert json.loads(shell(*words, "--json").output)["id"] == ID


def test_settings_of_bodies_and_events(shell: Shell) -> None:
    """How large a body may be, and whether events are recorded."""
    shell.server.on("PATCH", "/queues/orders", QUEUE)
    shell("queue", "set", "orders", "--max-body-bytes", "1048576", "--no-event-log")
    assert shell.server.sent["settings"] == {"max_body_bytes": 1_048_576, "event_log": False}
    settings = {"visibility_timeout_s": 30, "max_body_bytes": 1_048_576, "event_log": False}
    shell.server.on("GET", "/queues/orders", QUEUE | {"settings": settings})
    text = shell("queue", "show", "orders").output.splitlines()
    assert "  largest body        1 MiB" in text
    assert "  event log           off" in text
