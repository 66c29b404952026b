"""What is counted of commands that do several things."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import transactions as t
from leasehold.domain.command import AnyCommand
from leasehold.domain.model import Outcome
from leasehold.engine.stats import EngineStats
from leasehold.stores.memory import MemoryStore

NOW_MS = 1_767_225_600_000
ENTROPY = b"0" * 10


def put(queue: str = "queue") -> c.Put:
    return c.Put("a", queue, b"work", 0, 60, ENTROPY)


class Counted:
    """A store whose commands are counted."""

    def __init__(self) -> None:
        self.stats = EngineStats(NOW_MS)
        self._store = MemoryStore()

    def ask(self, command: AnyCommand) -> Any:
        (result,) = self._store.execute([command], now_ms=NOW_MS)
        self._store.commit()
        self.stats.count(command, result)
        return result

    def sent(self) -> dict[str, int]:
        """Return how many were sent to each queue."""
        return {queue: each.sent for (_, queue), each in self.stats.queues.items()}


@pytest.mark.parametrize("how", ["publish", "commit", "settle"])
def test_what_is_published_is_sent(how: str) -> None:
    """By queue and once, whoever publishes; what is sent along counts beside it."""
    counted = Counted()
    ask = counted.ask
    ask(c.CreateQueue("a", "queue", {}))
    ask(c.CreateQueue("a", "audio", {}))
    ask(t.Stage("a", "tx", "", 0, (put(), put(), put("audio"))))
    ask(t.Stage("a", "other", "", 0, (put("audio"),)))
    assert counted.sent() == {}
    stream = ask(k.AttachStream("a", "queue", "s"))
    ask(put())
    ask(k.OpenClaim("a", "queue", "s", stream.token, 1, 10, 60))
    command: AnyCommand = t.Publish("a", "tx")
    along = {"queue": 0, "audio": 0}
    if how == "commit":
        command = t.CommitTogether("a", (put(),), ("tx",), "run")
        along = {"queue": 1, "audio": 0}
    elif how == "settle":
        sends = (put("audio"),)
        command = k.SettleClaims("a", "queue", "s", stream.token, 1, (), ("tx",), sends)
        along = {"queue": 0, "audio": 1}
    counted.stats.now_ms = NOW_MS + 1
    for _ in range(2):  # the second time nothing is done
        ask(command)
        ask(t.Publish("a", "tx"))
        assert counted.sent() == {"queue": 3 + along["queue"], "audio": 1 + along["audio"]}
    assert counted.stats.queues["a", "audio"].last_send_ms == NOW_MS + 1
    ask(t.Discard("a", "other"))
    assert counted.sent()["audio"] == 1 + along["audio"]


@pytest.mark.parametrize("how", ["publish", "commit", "settle"])
def test_what_is_settled_by_publishing_is_completed(how: str) -> None:
    """In the queue of its claim; what is exempted is given back there."""
    counted = Counted()
    ask = counted.ask
    for queue in ("queue", "audio"):
        ask(c.CreateQueue("a", queue, {}))
    token = ask(k.AttachStream("a", "audio", "s")).token
    lease = ask(put("audio"))
    ask(put("audio"))
    ask(put("queue"))
    ask(k.OpenClaim("a", "audio", "s", token, 1, 10, 60))
    noted = k.Exemption(1, lease.message.message_id, Outcome.BURIED)
    ask(k.ExemptMembers("a", "audio", "s", token, 1, (noted,)))
    ask(k.BindClaim("a", "audio", "s", token, 1, "tx"))
    command: AnyCommand = t.Publish("a", "tx")
    if how == "commit":
        command = t.CommitTogether("a", (), ("tx",))
    elif how == "settle":
        other = ask(k.AttachStream("a", "queue", "s")).token
        ask(k.OpenClaim("a", "queue", "s", other, 1, 10, 60))
        command = k.SettleClaims("a", "queue", "s", other, 1, publish=("tx",))
    counted.stats.now_ms = NOW_MS + 1
    for _ in range(2):  # the second time nothing is done
        ask(command)
        audio = counted.stats.queues["a", "audio"]
        assert (audio.completed, audio.released, audio.failed) == (1, 1, 1)
        assert audio.last_complete_ms == NOW_MS + 1
    assert counted.stats.queues["a", "queue"].completed == (how == "settle")


def test_a_commit_that_is_refused_sends_nothing() -> None:
    """All or nothing, what it would publish included."""
    counted = Counted()
    counted.ask(c.CreateQueue("a", "queue", {}))
    counted.ask(t.Stage("a", "tx", "", 0, (put(),)))
    lost = c.Complete("a", "queue", "no", "no")
    committed = counted.ask(t.CommitTogether("a", (put(), lost), ("tx",)))
    assert committed.by_queue == ()
    assert counted.sent().get("queue", 0) == 0
