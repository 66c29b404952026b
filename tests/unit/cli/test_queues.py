"""``leasehold queue``, its settings, and ``leasehold stats``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasehold.cli import main
from leasehold.domain.model import NEVER_MS
from leasehold.testing import InProcessServer
from leasehold.testing.time import START_MS
from tests.unit.cli.support import COUNTS, QUEUE, Shell
from tests.unit.client.support import answer, problem

SETTINGS = {
    "visibility_timeout_s": 30,
    "lapsed_receipts": "strict",
    "failure_policy": {
        "max_deliveries": 5,
        "max_failures": 3,
        "backoff": {"kind": "exponential", "initial_s": 2, "cap_s": 600},
    },
    "priority_ageing_s": 60,
    "max_receives_per_s": 2.5,
    "paused_until_ms": NEVER_MS,
    "pause_reason": "upgrade",
    "adaptive": {"floor_s": 5, "cap_s": 3600},
    "adapted": {"visibility_timeout_s": 94, "because": "work takes 40 s", "at_ms": START_MS},
}
POLICY = (
    "--backoff exponential --backoff-initial 1 --backoff-cap 10m --backoff-factor 3 "
    "--backoff-jitter 0.5 --max-deliveries 4 --poison-queue bad --poison-time-to-live 7d"
)
ACTIVITY = {
    "since_ms": START_MS - 60_000,
    "last_send_ms": START_MS - 1_000,
    "last_receiver": "worker-7",
    "last_receive_ms": START_MS - 1_000,
    "sent": 1240,
    "received": 7,
}


def whole_queue(**members: Any) -> dict[str, Any]:
    """Return a queue with its counts and activity."""
    return QUEUE | {"counts": COUNTS, "activity": ACTIVITY} | members


def test_list(shell: Shell) -> None:
    """One line for each queue; columns in which nothing stands are left out."""
    pages = (
        answer({"queues": [QUEUE], "next_after": "orders"}),
        answer({"queues": [QUEUE | {"name": "x", "metadata": {}}], "next_after": None}),
    )
    shell.server.on("GET", "/queues", *pages)
    assert shell("queue", "list").output.splitlines() == [
        "QUEUE   LEASE  METADATA",
        "────────────────────────────",
        "orders   30 s  team=shipping",
        "x        30 s",
    ]


def test_advice_is_shown_with_the_settings(shell: Shell) -> None:
    """What it replaced, why, and when."""
    advised = {"before_s": 30, "because": "1 % takes longer than 94 s", "at_ms": START_MS}
    settings = {"visibility_timeout_s": 94, "advised": advised}
    shell.server.on("GET", "/queues/orders", whole_queue(settings=settings))
    output = " ".join(shell("queue", "show", "orders").output.split())
    assert "advised in place of 30 s; 1 % takes longer than 94 s; 2026-01-01T" in output


def test_timeouts_by_type_are_shown_with_the_settings(shell: Shell) -> None:
    """Those set, those chosen by the server with its reason, and advice."""
    settings = {
        "timeouts_by_type": {
            "b": {"adaptive": {"floor_s": 5, "cap_s": 60}},
            "a*": {"visibility_timeout_s": 600},
        },
        "adapted_by_type": {"b": {"visibility_timeout_s": 44, "because": "slow", "at_ms": 1}},
        "advised_by_type": {"a*": {"because": "1 % takes longer"}},
        "max_message_timeout_s": 60,
    }
    shell.server.on("GET", "/queues/orders", whole_queue(settings=settings))
    lines = [
        " ".join(each.split()) for each in shell("queue", "show", "orders").output.splitlines()
    ]
    assert "type a* 10 min; advised: 1 % takes longer" in lines
    assert "type b 44 s (slow), adaptive, 5 s to 1 min" in lines
    assert "of a message at most 1 min" in lines


def test_list_as_json(shell: Shell) -> None:
    """One line of JSON for each queue, with the names of the wire."""
    shell.server.on("GET", "/queues", {"queues": [QUEUE | {"counts": COUNTS}], "next_after": None})
    result = shell("queue", "list", "--counts", "--prefix", "or", "--json")
    (line,) = result.output.splitlines()
    assert json.loads(line)["counts"]["visible"] == 1234
    assert dict(shell.server.requests[-1].url.params) == {
        "limit": "1000",
        "prefix": "or",
        "counts": "true",
    }


def test_no_queues(shell: Shell) -> None:
    """Nothing is said in a sentence, and in JSON with nothing."""
    shell.server.on("GET", "/queues", {"queues": [], "next_after": None})
    assert shell("queue", "list").output == "There are no queues.\n"
    assert shell("queue", "list", "--json").output == ""


def test_counts(shell: Shell) -> None:
    """States one below the other, with a sum of those that are in the queue itself."""
    shell.server.on("GET", "/queues/orders/counts", COUNTS)
    assert shell("queue", "counts", "orders").output.splitlines() == [
        "STATE         MESSAGES  OLDEST",
        "──────────────────────────────",
        "visible          1,234    95 s",
        "leased               2",
        "delayed              0",
        "deferred             0",
        "poisoned             5",
        "──────────────────────────────",
        "in the queue     1,236",
    ]
    assert json.loads(shell("queue", "counts", "orders", "--json").output) == COUNTS


def test_counts_of_what_is_hidden(shell: Shell) -> None:
    """Expired and staged messages, and those in claims, have a line where there are any."""
    hidden = {"staged": 7, "claimed": 2, "expired": 3}
    shell.server.on("GET", "/queues/orders/counts", COUNTS | hidden)
    lines = shell("queue", "counts", "orders").output.splitlines()
    assert lines[6:10] == [
        "poisoned                 5",
        "expired                  3",
        "staged                   7",
        "leased in claims         2",
    ]


def test_counts_that_are_not_exact(shell: Shell) -> None:
    """They are marked."""
    shell.server.on("GET", "/queues/orders/counts", COUNTS | {"exact": False})
    assert "~1,234" in shell("queue", "counts", "orders").output


def test_show(shell: Shell) -> None:
    """Settings, counts and activity in words."""
    shell.server.on(
        "GET", "/queues/orders", whole_queue(settings=SETTINGS, visibility_timeout_s=94)
    )
    text = shell("queue", "show", "orders").output
    for line in (
        "  created   2025-12-31T22:00:00Z (2 h ago)",
        "  metadata  team=shipping",
        "  visibility timeout  1 min 34 s (work takes 40 s; set: 30 s)",
        "  adaptive            5 s to 1 h",
        "  lapsed receipts     strict",
        "  poisoned after      5 deliveries or 3 failures",
        "  poison queue        orders-poison, kept for ever",
        "  backoff             exponential, 2 s times 2 each time, at most 10 min, ±10%",
        "  priority ageing     one step every 1 min",
        "  rate                2.5 messages/s",
        "  paused              until resumed: upgrade",
        "  last received   2025-12-31T23:59:59Z (1 s ago) by worker-7",
        "  last completed  never",
        "  so far          1,240 put, 7 received",
    ):
        assert line in text.splitlines(), line


def test_create(shell: Shell) -> None:
    """Metadata and settings go along; without any, what is there will do."""
    shell.server.on("PUT", "/queues/orders", QUEUE)
    words = ("queue", "create", "orders")
    assert shell(*words).output == "Queue orders is ready.\n"
    assert shell.server.sent == {}
    shell(*words, "--metadata", "team=shipping", "--rate", "2", "--paused")
    settings = {"max_receives_per_s": 2.0, "paused_until_ms": NEVER_MS}
    assert shell.server.sent == {"metadata": {"team": "shipping"}, "settings": settings}


def test_create_with_other_settings() -> None:
    """A queue that is there and set otherwise is left as it is, which ends in a refusal."""
    with InProcessServer() as server:
        words = ("queue", "create", "orders")
        line = {"AZURE_STORAGE_CONNECTION_STRING": server.connection_string}

        def run(*options: str) -> Result:
            return CliRunner().invoke(main, [*words, *options], env=line)

        assert run("--visibility-timeout", "30s").exit_code == 0
        other = run("--visibility-timeout", "2m")
        assert other.exit_code == 1
        told = " ".join(other.output.split())
        assert "different settings: visibility_timeout_s is 30, not 120." in told
        assert "change them: leasehold queue set orders" in told
        assert "Traceback" not in told
        # What stands as it is given, and what names no settings, will do.
        assert run("--visibility-timeout", "30s").exit_code == 0
        assert run().exit_code == 0
        with server.client() as client:
            assert client.queue("orders").info().visibility_timeout_s == 30


def test_help_names_what_there_is(shell: Shell) -> None:
    """Queues are emptied with purge; there is no command called clear."""
    words = shell("queue", "--help").output
    for name in ("create", "list", "show", "set", "pause", "resume", "purge", "redrive", "delete"):
        assert f"\n  {name} " in words
    assert "clear" not in words.lower()
    assert shell("queue", "clear", "orders").exit_code == 2


TYPES = (
    "--type-timeout encode.*=10m --type-timeout b=5 --type-adaptive b=5s:1h "
    "--no-type-timeout c --max-message-timeout 1h"
)


@pytest.mark.parametrize(
    ("words", "patch"),
    [
        ("--visibility-timeout 2m --strict", [("visibility_timeout_s", 120), "strict"]),
        ("--until-retaken", ["until-retaken"]),
        ("--max-failures 5", [("failure_policy", {"max_failures": 5})]),
        (
            POLICY,
            [
                (
                    "failure_policy",
                    {
                        "max_deliveries": 4,
                        "poison_queue": "bad",
                        "poison_time_to_live_s": 604_800,
                        "backoff": {
                            "kind": "exponential",
                            "initial_s": 1,
                            "cap_s": 600,
                            "factor": 3,
                            "jitter": 0.5,
                        },
                    },
                )
            ],
        ),
        (
            "--dedup-window 0 --priority-ageing 1m",
            [("dedup_window_s", 0), ("priority_ageing_s", 60)],
        ),
        ("--adaptive 5:1h", [("adaptive", {"floor_s": 5, "cap_s": 3600})]),
        ("--no-adaptive", [("adaptive", None)]),
        (
            TYPES,
            [
                (
                    "timeouts_by_type",
                    {
                        "encode.*": {"visibility_timeout_s": 600},
                        "b": {
                            "visibility_timeout_s": 5,
                            "adaptive": {"floor_s": 5, "cap_s": 3600},
                        },
                        "c": None,
                    },
                ),
                ("max_message_timeout_s", 3600),
            ],
        ),
        ("--not-paused --pause-reason x", [("paused_until_ms", None), ("pause_reason", "x")]),
        (
            "--reset rate --reset backoff",
            [("max_receives_per_s", None), ("failure_policy", {"backoff": None})],
        ),
        ("--reset lapsed-receipts", [("lapsed_receipts", None)]),
        (
            "--reset backoff --backoff-cap 9",
            [
                (
                    "failure_policy",
                    {
                        "backoff": {
                            "kind": None,
                            "initial_s": None,
                            "factor": None,
                            "jitter": None,
                            "cap_s": 9,
                        }
                    },
                )
            ],
        ),
    ],
)
def test_set(shell: Shell, words: str, patch: list[Any]) -> None:
    """Each option becomes a member of the patch; what is not named is not sent."""
    shell.server.on("PATCH", "/queues/orders", QUEUE)
    result = shell("queue", "set", "orders", *words.split())
    assert result.exit_code == 0, result.output
    pairs = [("lapsed_receipts", each) if isinstance(each, str) else each for each in patch]
    assert shell.server.sent["settings"] == dict(pairs)


def test_reset_all(shell: Shell) -> None:
    """Every setting goes back to its default, but for those named beside it."""
    shell.server.on("PATCH", "/queues/orders", QUEUE)
    shell("queue", "set", "orders", "--reset", "all", "--rate", "3", "--max-failures", "2")
    patch = shell.server.sent["settings"]
    assert patch["max_receives_per_s"] == 3
    assert patch["visibility_timeout_s"] is None
    policy = patch["failure_policy"]
    assert policy.pop("max_failures") == 2
    assert set(policy.values()) == {None}
    assert "backoff" in policy


@pytest.mark.parametrize(
    "words",
    [
        *("", "--adaptive 5:9 --no-adaptive", "--reset rate --rate 3", "--reset nonsense"),
        *("--type-timeout a=soon", "--type-adaptive a=5", "--type-timeout a=5 --no-type-timeout a"),
        "--type-timeout a=5 --reset type-timeout",
    ],
)
def test_set_mistakes(shell: Shell, words: str) -> None:
    """Nothing to change, and what contradicts itself, is refused before anything is sent."""
    assert shell("queue", "set", "orders", *words.split()).exit_code == 2
    assert shell.server.requests == []


def test_pause_and_resume(shell: Shell) -> None:
    """The answer says until when."""
    paused = {"paused_until_ms": START_MS + 1_800_000, "pause_reason": "upgrade"}
    shell.server.on("POST", "/queues/orders/pause", QUEUE | {"settings": SETTINGS | paused})
    result = shell("queue", "pause", "orders", "--for", "30m", "--reason", "upgrade")
    assert shell.server.sent == {"for_s": 1800, "reason": "upgrade"}
    until = "until 2026-01-01T00:30:00Z (in 30 min): upgrade"
    assert result.output == f"Queue orders is paused {until}.\n"
    shell.server.on("POST", "/queues/orders/resume", QUEUE)
    assert shell("queue", "resume", "orders").output == "Queue orders is resumed.\n"


def test_explain(shell: Shell) -> None:
    """A sentence, and facts whose numbers have their meaning."""
    explanation = {
        "sentence": "Queue orders is empty.",
        "code": "empty",
        "evidence": {
            "visible": 1234,
            "exact": True,
            "next_due_ms": START_MS + 5_000,
            "limit_per_s": 3,
            "longest_s": 95,
            "last_receiver": None,
            "progress": {"fraction": 0.4, "at_ms": START_MS},
        },
    }
    shell.server.on("GET", "/queues/orders/explain", explanation)
    for words in (("queue", "explain", "orders"), ("explain", "orders")):
        assert shell(*words).output.splitlines() == [
            "Queue orders is empty.",
            "",
            "  visible        1,234",
            "  exact          yes",
            "  next due       2026-01-01T00:00:05Z (in 5 s)",
            "  limit          3/s",
            "  longest        1 min 35 s",
            "  last receiver  none",
            "  progress       fraction 0.4, at 2026-01-01T00:00:00Z",
        ]
    assert json.loads(shell("explain", "orders", "--json").output) == explanation


def test_delete_asks_and_says_how_much(shell: Shell) -> None:
    """Only yes is yes."""
    shell.is_interactive = True
    shell.server.on("GET", "/queues/orders/counts", COUNTS)
    shell.server.on("DELETE", "/queues/orders", answer({}, 204))
    refused = shell("queue", "delete", "orders", stdin="\n")
    assert refused.exit_code == 1
    assert "Delete queue orders and its 1,236 messages for good? [y/N]" in refused.stderr
    assert shell.server.asked == ["GET /queues/orders/counts"]
    assert shell("queue", "delete", "orders", stdin="y\n").exit_code == 0
    assert shell.server.asked[-1] == "DELETE /queues/orders"


def test_delete_without_a_terminal(shell: Shell) -> None:
    """Nobody is taken to have said yes; --yes says it."""
    shell.server.on("GET", "/queues/orders/counts", COUNTS)
    shell.server.on("DELETE", "/queues/orders", answer({}, 204))
    refused = shell("queue", "delete", "orders", stdin="y\n")
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert json.loads(shell("queue", "delete", "orders", "-y", "--json").output) == {
        "deleted": "orders"
    }


def test_watch_goes_on_until_interrupted(shell: Shell) -> None:
    """It looks again after each pause, until Ctrl+C."""
    shell.server.on("GET", "/queues/orders/counts", COUNTS, COUNTS | {"visible": 9})
    pauses: list[float] = []

    def sleep(length_s: float) -> None:
        pauses.append(length_s)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    shell.on_sleep = sleep
    result = shell("queue", "counts", "orders", "--json", "--watch=5")
    assert result.exit_code == 130
    seen = [json.loads(line)["visible"] for line in result.output.splitlines()]
    assert (seen, pauses) == ([1234, 9], [5, 5])


# --- stats ---------------------------------------------------------------------------------------


def listed(*names: str) -> dict[str, Any]:
    """Return a page of queues."""
    return {"queues": [QUEUE | {"name": name} for name in names], "next_after": None}


def test_stats(shell: Shell) -> None:
    """Counts, the oldest age, and rates between two looks; sums below."""
    paused = {"settings": SETTINGS, "name": "b", "counts": COUNTS | {"expired": 1200}}
    later = whole_queue(activity=ACTIVITY | {"sent": 1260, "received": 17})
    shell.server.on("GET", "/queues", listed("a", "b"))
    shell.server.on("GET", "/queues/a", whole_queue(name="a"), later | {"name": "a"})
    shell.server.on("GET", "/queues/b", whole_queue(**paused), later | paused)
    text = shell("stats", "--sample", "2").output.splitlines()
    assert text[0].split() == [
        *("QUEUE", "VISIBLE", "LEASED", "DELAYED", "DEFERRED", "POISONED", "OLDEST"),
        *("IN/S", "OUT/S", "DONE/S", "NOTE"),
    ]
    assert text[2].split() == ["a", "1,234", "2", "0", "0", "5", "95", "s", "10.0", "5.00", "0"]
    assert text[3].endswith("paused until resumed: upgrade, 1,200 expired")
    assert text[5].split() == ["2", "queues", "2,468", "4", "0", "0", "10", "20.0", "10.0", "0"]


def test_stats_after_a_restart(shell: Shell) -> None:
    """Counters that began anew make no rates."""
    later = whole_queue(activity={"since_ms": START_MS, "sent": 1})
    shell.server.on("GET", "/queues", listed("orders"))
    shell.server.on("GET", "/queues/orders", whole_queue(), later)
    assert json.loads(shell("stats", "--json").output)["rates_per_s"] is None


def test_stats_without_a_sample(shell: Shell) -> None:
    """One look is enough for counts."""
    shell.server.on("GET", "/queues", listed("orders"))
    shell.server.on("GET", "/queues/orders", whole_queue())
    assert "IN/S" not in shell("stats", "--sample", "0").output
    assert shell.server.asked == ["GET /queues", "GET /queues/orders"]


def test_a_wrong_key_is_said_in_a_line(shell: Shell) -> None:
    """What was signed helps those who write clients, and no operator."""
    detail = "The signature is not that of this string to sign: 'GET x-ms-date:Wed'"
    refusal = problem("unauthenticated", 401, detail=detail, remedy="Sign the request.")
    shell.server.on("GET", "/queues", refusal)
    result = shell("queue", "list")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0].startswith("Refused: The key is not that of the account. Check --account")
    assert lines[-1] == "Code: unauthenticated (401)"
