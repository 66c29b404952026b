"""Transactions and commits: chunks, parts, and what happens when a call fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pyarrow as pa
import pytest

from leasehold.client import LeaseLost, NewMessage
from leasehold.client import _calls as calls
from leasehold.client import _streams as streams_module
from leasehold.client.errors import (
    ConnectionFailed,
    LeaseholdClientError,
    NotDone,
    QueueNotFound,
    UnexpectedAnswer,
)
from leasehold.client.models import GiveBack, LeaseRef, Outgoing, Renewal, Staged
from leasehold.client.retries import NO_RETRIES
from tests.unit.client.support import (
    ID,
    PUT_RESULT,
    TRANSACTION,
    Driver,
    Script,
    answer,
    problem,
    refused,
)

LOST = httpx.ReadTimeout("")
NO_BODY: Any = 7
HELD = LeaseRef(ID, "r1", queue="jobs")


def staged(chunks: int, *, duplicate: bool = False) -> httpx.Response:
    """Return the answer to a stage."""
    return answer({"rows": chunks, "chunks": chunks, "duplicate": duplicate})


def transaction(driver: Driver, script: Script, **options: Any) -> Any:
    """Return a handle on a transaction."""
    return driver.client(script, **options).transaction("import")


def chunks(script: Script) -> list[tuple[str, int]]:
    """Return part and chunk of each request."""
    sent = [json.loads(request.content) for request in script.requests]
    return [(each["part"], each["chunk"]) for each in sent]


def test_chunks_are_counted_for_each_part(driver: Driver) -> None:
    """Each request is the next chunk of its part; a number that is given begins anew there."""
    script = Script(staged(1))
    handle = transaction(driver, script)
    for part in ("a", "a", "b", "a"):
        driver.do(handle.stage(["x"], queue="jobs", part=part))
    driver.do(handle.stage(["x"], queue="jobs", part="b", chunk=7))
    driver.do(handle.stage(["x"], queue="jobs", part="b"))
    assert chunks(script) == [("a", 0), ("a", 1), ("b", 0), ("a", 2), ("b", 7), ("b", 8)]


def test_many_messages_are_many_chunks(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has so many at most; all were there already only if each chunk was."""
    monkeypatch.setattr(calls, "MAX_ITEMS", 2)
    script = Script(staged(1, duplicate=True), staged(2, duplicate=True), staged(3))
    done = driver.do(transaction(driver, script).stage(map(str, range(5)), queue="jobs"))
    assert done == Staged(3, 3)
    assert chunks(script) == [("", 0), ("", 1), ("", 2)]
    script = Script(staged(1, duplicate=True))
    done = driver.do(transaction(driver, script).stage(["x"] * 3, queue="jobs"))
    assert done.duplicate


def test_a_stage_without_an_answer_is_tried_again(driver: Driver) -> None:
    """The number of the chunk makes that safe."""
    script = Script(LOST, staged(1, duplicate=True))
    driver.do(transaction(driver, script).stage(["x"], queue="jobs"))
    assert chunks(script) == [("", 0), ("", 0)]


def test_after_a_failure_the_caller_must_say_where_to_go_on(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else other messages could be taken for a repetition and be dropped."""
    monkeypatch.setattr(calls, "MAX_ITEMS", 1)
    script = Script(staged(1), staged(2), LOST, staged(2, duplicate=True), staged(3))
    handle = transaction(driver, script, retries=NO_RETRIES)
    driver.do(handle.stage(["first"], queue="jobs"))
    with pytest.raises(ConnectionFailed):
        driver.do(handle.stage(["a", "b"], queue="jobs"))
    with pytest.raises(RuntimeError, match="chunk=1"):
        driver.do(handle.stage(["other"], queue="jobs"))
    driver.do(handle.stage(["a", "b"], queue="jobs", chunk=1))
    driver.do(handle.stage(["other"], queue="jobs"))
    assert chunks(script) == [("", each) for each in (0, 1, 2, 1, 2, 3)]


def test_after_a_refusal_nothing_was_staged(driver: Driver) -> None:
    """The same number is used for what comes next."""
    script = Script(problem("queue-not-found", 404), staged(1))
    handle = transaction(driver, script)
    with pytest.raises(QueueNotFound):
        driver.do(handle.stage([NewMessage("x", dedup_key="k")], queue="nowhere"))
    driver.do(handle.stage(["x"], queue="jobs"))
    assert chunks(script) == [("", 0), ("", 0)]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ("abc", "not one text"),
        (["a"], "names no queue"),
        ([Outgoing(NO_BODY, queue="q")], "not int"),
    ],
)
def test_mistakes_are_refused_before_sending(driver: Driver, messages: Any, text: str) -> None:
    """And the next call begins where this one would have."""
    script = Script(staged(1))
    handle = transaction(driver, script)
    with pytest.raises(TypeError, match=text):
        driver.do(handle.stage(messages))
    assert not script.requests


def test_one_text_is_no_list_of_parts(driver: Driver) -> None:
    """A part called like its first letter would be published."""
    for verb in ("publish", "discard"):
        with pytest.raises(TypeError, match="not one text"):
            driver.do(getattr(transaction(driver, Script()), verb)("part"))


def rows_of(request: httpx.Request) -> list[Any]:
    """Return what a record batch on its way to the server holds."""
    with pa.ipc.open_stream(request.content) as reader:
        rows: list[Any] = reader.read_all().column("body").to_pylist()
        return rows


def test_record_batches_are_staged(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one in slices, each a chunk; what is not in columns is in the query."""
    monkeypatch.setattr(streams_module, "MAX_ITEMS", 2)
    script = Script(staged(1), LOST, staged(2), staged(3))
    handle = transaction(driver, script)
    batch = pa.record_batch({"body": ["a", "b", "c", "d", "e"]})
    done = driver.do(handle.stage_arrow(batch, queue="jobs", part="p/1", timeout_s=60))
    assert done == Staged(3, 3)
    assert [dict(request.url.params) for request in script.requests] == [
        {"part": "p/1", "chunk": chunk, "timeout_s": "60", "queue": "jobs"}
        for chunk in ("0", "1", "1", "2")
    ]
    assert script.last.headers["content-type"] == "application/vnd.apache.arrow.stream"
    assert [rows_of(request) for request in script.requests] == [
        *(["a"], ["b", "c"], ["b", "c"], ["d", "e"]),
    ]
    driver.do(handle.stage_arrow(batch.slice(0, 0), part="p/1"))
    assert dict(script.last.url.params) == {"part": "p/1", "chunk": "3"}
    assert rows_of(script.last) == []


def test_large_rows_are_more_slices(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has so many bytes at most, roughly; a row is never parted."""
    monkeypatch.setattr(streams_module, "MAX_REQUEST_BYTES", 100)
    script = Script(staged(1))
    batch = pa.record_batch({"body": ["x" * 90] * 3})
    driver.do(transaction(driver, script).stage_arrow(batch))
    assert len(script.requests) == 3
    script = Script(staged(1))
    driver.do(transaction(driver, script).stage_arrow(pa.record_batch({"body": ["x" * 900]})))
    assert len(script.requests) == 1


def test_a_record_batch_that_failed_is_gone_on_with(driver: Driver) -> None:
    """As with messages."""
    script = Script(LOST, staged(1))
    handle = transaction(driver, script, retries=NO_RETRIES)
    batch = pa.record_batch({"body": ["a"]})
    with pytest.raises(ConnectionFailed):
        driver.do(handle.stage_arrow(batch))
    with pytest.raises(RuntimeError, match="chunk=0"):
        driver.do(handle.stage_arrow(batch))
    assert driver.do(handle.stage_arrow(batch, chunk=0)) == Staged(1, 1)


SAFE: dict[str, tuple[Callable[[Any], Any], object]] = {
    "publish": (lambda client: client.transaction("t").publish(), {"rows": 1, "already": True}),
    "discard": (lambda client: client.transaction("t").discard(), {"rows": 1}),
    "get": (lambda client: client.transaction("t").get(), TRANSACTION),
    "commit": (
        lambda client: client.commit(complete=[HELD], name="c"),
        {"already": True, "published": 0},
    ),
}


@pytest.mark.parametrize("name", SAFE)
def test_what_can_be_repeated_is_tried_again(driver: Driver, name: str) -> None:
    """Publishing, discarding, and a commit that has a name."""
    use, content = SAFE[name]
    script = Script(LOST, answer(content))
    driver.do(use(driver.client(script)))
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.commit(complete=[HELD]),
        lambda client: client.commit(send=[Outgoing("x", queue="out")]),
        lambda client: client.test.advance(1),
    ],
)
def test_what_may_have_been_done_is_not_done_twice(
    driver: Driver, use: Callable[[Any], Any]
) -> None:
    """A commit without a name, and a step of the clock."""
    script = Script(LOST, answer({}))
    with pytest.raises(LeaseholdClientError):
        driver.do(use(driver.client(script)))
    assert len(script.requests) == 1


def test_a_commit_that_is_refused_raises_the_reason(driver: Driver) -> None:
    """Not that of the others, which only were not done."""
    content = {
        "already": False,
        "published": 0,
        "send": [refused("not-done")],
        "complete": [refused("lease-lost", field="$.complete[0]", reason="superseded")],
    }
    with pytest.raises(LeaseLost) as caught:
        driver.do(
            driver.client(Script(answer(content))).commit(
                send=[Outgoing("x", queue="out")], complete=[HELD]
            )
        )
    assert (caught.value.field, caught.value.status) == ("$.complete[0]", 409)
    content = {"send": [refused("not-done")]}
    with pytest.raises(NotDone):
        driver.do(driver.client(Script(answer(content))).commit(send=[Outgoing("x", queue="out")]))


def test_a_commit_needs_queues(driver: Driver) -> None:
    """Of what is sent and of what is held."""
    client = driver.client(Script())
    nowhere = LeaseRef(ID, "r")
    for wrong in (
        {"complete": [nowhere]},
        {"release": [GiveBack(nowhere)]},
        {"renew": [Renewal(nowhere, 5)]},
    ):
        with pytest.raises(ValueError, match="names no queue"):
            driver.do(client.commit(**wrong))
    with pytest.raises(TypeError, match="Outgoing"):
        driver.do(client.commit(send=["x"]))


def test_results_that_do_not_fit_are_not_taken(driver: Driver) -> None:
    """Nobody could say what was done."""
    script = Script(answer({"already": False, "published": 0, "send": [PUT_RESULT]}))
    with pytest.raises(UnexpectedAnswer, match="1 results for 0 items"):
        driver.do(driver.client(script).commit(complete=[HELD]))


def test_events_are_read_to_the_end(driver: Driver) -> None:
    """Page after page, also over pages without events, until there is nothing later."""

    def page(*seqs: int, after: int, finished: bool) -> httpx.Response:
        events = [{"seq": seq, "place": 0, "at_ms": 1, "type": "put"} for seq in seqs]
        return answer({"events": events, "next_after": after, "finished": finished})

    pages = [
        page(1, 2, after=2, finished=False),
        page(after=9, finished=False),
        page(12, after=12, finished=True),
    ]
    reads: tuple[Callable[[Any], Any], ...] = (
        lambda client: client.events(),
        lambda client: client.queue("jobs").trace(ID),
    )
    for read in reads:
        script = Script(*pages)
        found = driver.do(read(driver.client(script)))
        assert [event.seq for event in found] == [1, 2, 12]
        assert [request.url.params["after"] for request in script.requests] == ["0", "2", "9"]
