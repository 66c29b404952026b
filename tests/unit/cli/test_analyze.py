"""``leasehold analyze``, as far as it needs no Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from leasehold.advisor.summaries import OTHERS, save
from leasehold.cli.analyze_run import advice_in
from leasehold.testing.time import START_MS
from tests.unit.advisor.support import full_log
from tests.unit.cli.support import QUEUE, Shell
from tests.unit.client.support import problem

ADVISED = {"visibility_timeout_s": 60, "before_s": 30, "at_ms": START_MS, "because": "slow"}


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """Return the path of a summary of two queues."""
    path = tmp_path / "summary.json"
    save(full_log(), path)
    return str(path)


def a_queue(name: str, **settings: Any) -> dict[str, Any]:
    """Return a queue as the server tells of it."""
    known = {"visibility_timeout_s": 30, **settings}
    lease_s = known["visibility_timeout_s"]
    return {**QUEUE, "name": name, "settings": known, "visibility_timeout_s": lease_s}


def test_a_summary_is_shown(shell: Shell, saved: str) -> None:
    """An overview, what was found, and the choices of each queue; no server is asked."""
    result = shell("analyze", "--summary", saved)
    assert result.exit_code == 0
    doubled = "99th percentile, doubled"
    for text in ("media", "2,884 → 1,263", "ACT", doubled, "thumbnail", "(15 s)"):
        assert text in result.output
    told = " ".join(result.output.split())
    assert "718 of them never done, 86% apart: the model assumes that" in told
    assert "backlog messages per hour of the last day: 58 came" in told
    assert shell.server.requests == []


def test_queues_can_be_chosen(shell: Shell, saved: str) -> None:
    """Only those named; one that is not in the log is told."""
    result = shell("analyze", "--summary", saved, "--queue", "rare")
    assert "media" not in result.output
    missing = shell("analyze", "--summary", saved, "--queue", "no")
    assert missing.exit_code == 1
    assert "There is nothing in this log of: no." in missing.output


def test_json_has_figures_and_no_curves(shell: Shell, saved: str) -> None:
    """One document; what is long stands in the report."""
    told = json.loads(shell("analyze", "--summary", saved, "--json").output)
    whole = told["queues"][0]["whole"]
    assert (whole["timeout_s"], whole["basis"]) == (60, "model")
    assert whole["choices"][0]["name"] == "advice"
    assert "curve" not in whole
    assert "changes" not in told


def test_bounds_and_growth_are_weighed(shell: Shell, saved: str) -> None:
    """A cap holds for all that is advised; workers that double need less."""

    def best(*arguments: str) -> float:
        told = json.loads(shell("analyze", "--summary", saved, "--json", *arguments).output)
        return float(told["queues"][0]["whole"]["wanted_s"])

    assert best("--cap", "100s") == 100
    assert best("--growth", "2") < 600  # without it 627


def test_a_report_is_written(shell: Shell, saved: str, tmp_path: Path) -> None:
    """The page and the files beside it; where they cannot be, that is told."""
    folder = tmp_path / "report"
    result = shell("analyze", "--summary", saved, "--queue", "rare", "--report", str(folder))
    assert result.exit_code == 0
    assert f"Wrote {folder / 'report.html'}" in " ".join(result.output.split())
    assert (folder / "findings.json").exists()
    saved_file = shell("analyze", "--summary", saved, "--report", f"{saved}/sub")
    assert saved_file.exit_code == 1
    assert "cannot be written" in saved_file.output


def test_a_summary_is_saved_again(shell: Shell, saved: str, tmp_path: Path) -> None:
    """Only of the queues named."""
    other = tmp_path / "new" / "rare.json"
    assert (
        shell("analyze", "--summary", saved, "--queue", "rare", "--save", str(other)).exit_code == 0
    )
    assert "media" not in other.read_text()


def test_advice_is_applied(shell: Shell, saved: str) -> None:
    """Once agreed to: the timeout with what it replaced, in one patch; few data change nothing."""
    for name in ("media", "rare"):
        shell.server.on("GET", f"/queues/{name}", a_queue(name))
        shell.server.on("PATCH", f"/queues/{name}", a_queue(name))
    result = shell("analyze", "--summary", saved, "--apply", "--yes", "--json")
    assert result.exit_code == 0
    assert shell.server.asked.count("PATCH /queues/media") == 1
    assert "PATCH /queues/rare" not in shell.server.asked
    settings = shell.server.sent["settings"]
    assert settings["visibility_timeout_s"] == 60
    assert settings["advised"]["before_s"] == 30
    assert settings["advised"]["at_ms"] == START_MS
    changes = json.loads(result.output)["changes"]
    assert [each["state"] for each in changes] == ["done", "nothing to do"]


def test_applying_asks_first(shell: Shell, saved: str) -> None:
    """Where nobody can be asked it needs --yes; a dry run changes nothing and needs no yes."""
    shell.server.on("GET", "/queues/media", a_queue("media"))
    arguments = ("analyze", "--summary", saved, "--queue", "media", "--apply")
    refused = shell(*arguments)
    assert refused.exit_code == 2
    assert "Type: --yes, to confirm" in refused.output
    dry = shell(*arguments, "--dry-run")
    assert dry.exit_code == 0
    assert "not done" in dry.output
    assert all(each.startswith("GET") for each in shell.server.asked)


def test_settings_that_somebody_changed_meanwhile_are_left(shell: Shell, saved: str) -> None:
    """Between the look at a queue and the change somebody has set it: nothing is overwritten."""
    looks = [a_queue("media", visibility_timeout_s=each) for each in (30, 30, 45)]
    shell.server.on("GET", "/queues/media", *looks)
    arguments = ("--queue", "media", "--apply", "--yes", "--json")
    result = shell("analyze", "--summary", saved, *arguments)
    assert result.exit_code == 1
    assert "PATCH /queues/media" not in shell.server.asked
    change = json.loads(result.output)["changes"][0]
    assert (change["state"], change["error"]["code"]) == ("refused", "changed-meanwhile")


def test_queues_that_are_gone_are_told(shell: Shell, saved: str) -> None:
    """The others are changed all the same, and the exit code says that one was not."""
    shell.server.on("GET", "/queues/media", a_queue("media"))
    shell.server.on("PATCH", "/queues/media", a_queue("media"))
    shell.server.on("GET", "/queues/rare", problem("queue-not-found", 404))
    result = shell("analyze", "--summary", saved, "--apply", "--yes", "--json")
    assert result.exit_code == 1
    changes = json.loads(result.output)["changes"]
    assert [each["state"] for each in changes] == ["done", "refused"]
    assert changes[1]["error"]["code"] == "queue-not-found"


def test_advice_is_applied_by_type(shell: Shell, saved: str) -> None:
    """Each type with data enough gets its timeout; the queue keeps its own."""
    for name in ("media", "rare"):
        shell.server.on("GET", f"/queues/{name}", a_queue(name))
        shell.server.on("PATCH", f"/queues/{name}", a_queue(name))
    result = shell("analyze", "--summary", saved, "--apply", "--by-type", "--yes", "--json")
    assert result.exit_code == 0, result.output
    made = json.loads(result.output)["changes"]
    states = {(each["queue"], each.get("message_type")): each["state"] for each in made}
    assert states == {
        ("media", "video"): "done",
        ("media", "thumbnail"): "nothing to do",
        ("rare", None): "nothing to do",
    }
    settings = shell.server.sent["settings"]
    assert settings.keys() == {"timeouts_by_type", "advised_by_type"}
    timeout_s = settings["timeouts_by_type"]["video"]["visibility_timeout_s"]
    advised = settings["advised_by_type"]["video"]
    assert advised["visibility_timeout_s"] == timeout_s
    assert advised["before_s"] is None
    assert shell.server.asked.count("PATCH /queues/media") == 1


def test_advice_for_messages_without_a_type_is_for_the_queue() -> None:
    """It is their timeout; types that were counted together as others get nothing of their own."""
    some, none, rest = (
        SimpleNamespace(message_type=name, of_queue=False) for name in ("a", None, OTHERS)
    )
    whole = SimpleNamespace(message_type=None, of_queue=True)
    typed = SimpleNamespace(whole=whole, types=(some, none, rest))
    alone = SimpleNamespace(whole=whole, types=())
    findings: Any = SimpleNamespace(queues=(typed, alone))
    assert advice_in(findings, by_type=True) == [some, none, whole]
    assert advice_in(findings, by_type=False) == [whole, whole]


def test_advice_by_type_is_undone(shell: Shell) -> None:
    """With that of the queue, each in a patch of its own."""
    rules = {"t": {"visibility_timeout_s": 60}}
    by_type = {"t": {"visibility_timeout_s": 60, "before_s": None}}
    queue = a_queue("a", timeouts_by_type=rules, advised_by_type=by_type)
    shell.server.on("GET", "/queues", {"queues": [queue, a_queue("b")]})
    shell.server.on("GET", "/queues/a", queue)
    shell.server.on("PATCH", "/queues/a", a_queue("a"))
    result = shell("analyze", "--undo", "--yes")
    assert result.exit_code == 0, result.output
    expected = {"timeouts_by_type": {"t": None}, "advised_by_type": {"t": None}}
    assert shell.server.sent == {"settings": expected}
    assert "a: t" in result.output


def test_adaptive_queues_get_bounds(shell: Shell, saved: str) -> None:
    """Around the advice, within the caller's own."""
    adaptive = a_queue("media", adaptive={"floor_s": 5, "cap_s": 3_600})
    shell.server.on("GET", "/queues/media", adaptive)
    shell.server.on("PATCH", "/queues/media", adaptive)
    arguments = ("--queue", "media", "--apply", "--yes", "--at-once", "--cap", "15m")
    assert shell("analyze", "--summary", saved, *arguments).exit_code == 0
    settings = shell.server.sent["settings"]
    assert settings["adaptive"]["floor_s"] < settings["visibility_timeout_s"]
    assert settings["adaptive"]["cap_s"] == 900
    assert settings["advised"]["before_floor_s"] == 5


def test_advice_is_undone(shell: Shell) -> None:
    """Of all queues that have some, without a log."""
    names = [a_queue("a", visibility_timeout_s=60, advised=ADVISED), a_queue("b")]
    shell.server.on("GET", "/queues", {"queues": names})
    shell.server.on("GET", "/queues/a", names[0])
    shell.server.on("PATCH", "/queues/a", a_queue("a"))
    result = shell("analyze", "--undo", "--yes")
    assert result.exit_code == 0
    assert shell.server.sent == {"settings": {"advised": None, "visibility_timeout_s": 30}}
    assert "Visibility timeout 60 s to 30 s." in result.output
    shell.server.on("GET", "/queues", {"queues": names[1:]})
    assert "There is no advice for any queue." in shell("analyze", "--undo").output


def test_undoing_can_be_tried(shell: Shell) -> None:
    """A dry run says what would be done."""
    shell.server.on("GET", "/queues/a", a_queue("a", visibility_timeout_s=60, advised=ADVISED))
    result = shell("analyze", "--undo", "--queue", "a", "--dry-run", "--json")
    assert [each["state"] for each in json.loads(result.output)["changes"]] == ["not done"]
    assert shell.server.asked == ["GET /queues/a"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--apply", "--undo"), "exclude each other"),
        (("--dry-run",), "--dry-run needs"),
        (("--by-type",), "--by-type needs --apply"),
        (("--by-type", "--apply", "--details", "."), "the server does not know the types"),
        (("--floor", "10m", "--cap", "1m"), "--floor"),
        (("--cap", "8d"), "--cap must be at most 7d"),
        (("--guard", "0"), "--guard must be above 0"),
        (("--since", "yesterday"), "no moment"),
        (("--since", "1d", "--until", "2d"), "--since must be before"),
        (("--log", ".", "--tables", "."), "one of"),
        (("--log", "missing"), "does not exist"),
    ],
)
def test_mistakes_are_told(shell: Shell, arguments: tuple[str, ...], said: str) -> None:
    """Before Spark is started."""
    shell.server.on("GET", "/queues", {"queues": [], "next_after": None})
    result = shell("analyze", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_a_file_that_is_no_summary_is_told(shell: Shell, tmp_path: Path) -> None:
    """With what is wrong about it."""
    other = tmp_path / "other.json"
    other.write_text("[]")
    result = shell("analyze", "--summary", str(other))
    assert result.exit_code == 2
    assert "not a summary" in result.output


def test_a_server_that_is_away_is_told_before_spark_starts(shell: Shell) -> None:
    """Starting Spark takes seconds; none of them is lost."""
    shell.server.on("GET", "/queues", httpx.ConnectError("refused"))
    assert shell("analyze").exit_code == 3
