"""Streams and claims: pages, record batches, tokens, and what is tried again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pyarrow as pa
import pytest

from leasehold.client.errors import ClaimLapsed, ClaimNotFound, ClaimSettled, ConnectionFailed
from leasehold.client.models import Exemption
from tests.unit.client.support import (
    CLAIM,
    ID,
    STREAM,
    VIEW,
    Driver,
    Script,
    answer,
    problem,
)

ARROW = "application/vnd.apache.arrow.stream"
LOST = httpx.ReadTimeout("")
SETTLED = {"last_settled": 4, "already": True}


def stream(driver: Driver, script: Script) -> Any:
    """Return a handle with a token."""
    return driver.client(script).queue("jobs").stream("totals", token=7)


def arrow(*bodies: bytes, after: str | None = None) -> httpx.Response:
    """Return a page as the server writes it in Arrow."""
    batch = pa.record_batch({"body": pa.array(bodies, pa.binary())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    headers = {"content-type": ARROW} | ({"leasehold-next-after": after} if after else {})
    return httpx.Response(200, content=sink.getvalue().to_pybytes(), headers=headers)


def test_a_claim_is_read_page_by_page(driver: Driver) -> None:
    """Where a page ends the next one begins, within the part."""
    script = Script(
        answer({"messages": [VIEW], "next_after": "m 1"}),
        answer({"messages": [VIEW | {"id": "2", "under": "totals/4"}], "next_after": None}),
    )
    found = driver.do(stream(driver, script).read(4, 1, 2))
    assert [view.id for view in found] == [ID, "2"]
    assert found[1].under == "totals/4"
    assert [dict(request.url.params) for request in script.requests] == [
        {"part": "1", "parts": "2", "limit": "1000"},
        {"part": "1", "parts": "2", "limit": "1000", "after": "m 1"},
    ]


def test_a_claim_is_read_as_record_batches(driver: Driver) -> None:
    """One for each page that has rows; the header says where the next page begins."""
    script = Script(arrow(b"a", b"b", after="2"), arrow(after="3"), arrow(b"c"))
    batches = driver.do(stream(driver, script).read_arrow(4, 0, 3))
    assert [batch.column("body").to_pylist() for batch in batches] == [[b"a", b"b"], [b"c"]]
    assert script.last.headers["accept"] == ARROW
    assert [request.url.params.get("after") for request in script.requests] == [None, "2", "3"]
    assert script.last.url.params["limit"] == "20000"


def test_a_refusal_is_json_also_where_arrow_was_asked_for(driver: Driver) -> None:
    """It has the class of its code."""
    script = Script(problem("claim-lapsed", 409, until_ms=5))
    with pytest.raises(ClaimLapsed):
        driver.do(stream(driver, script).read_arrow(4))


def test_without_the_library_nothing_is_asked(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to install; JSON can be read without."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    script = Script(answer({"messages": [], "next_after": None}))
    with pytest.raises(ImportError, match=r"install '\.\[arrow\]'"):
        driver.do(stream(driver, script).read_arrow(4))
    assert not script.requests
    assert driver.do(stream(driver, script).read(4)) == []


def test_a_claim_that_was_there_is_marked(driver: Driver) -> None:
    """Whoever opens it learns that its members may have been worked on before."""
    script = Script(answer({"claim": CLAIM, "replayed": True}))
    claim = driver.do(stream(driver, script).open(4, limit=1, lease_s=60))
    assert claim.replayed


def test_the_server_may_wait_for_a_first_message(driver: Driver) -> None:
    """The call waits as long on top of its own time-out."""
    script = Script(answer({"claim": None}))
    driver.do(stream(driver, script).open(4, limit=1, lease_s=60, wait_s=20))
    assert script.last.extensions["timeout"]["read"] == 50


def test_an_attach_gives_the_handle_its_token(driver: Driver) -> None:
    """Calls that need one are refused before."""
    script = Script(answer(STREAM))
    handle = driver.client(script).queue("jobs").stream("totals")
    uses: tuple[Callable[[], Any], ...] = (
        lambda: handle.open(1, limit=1, lease_s=60),
        lambda: handle.extend(1, 60),
        lambda: handle.park(1, 60),
        lambda: handle.give_back(1),
        lambda: handle.exempt(1, [Exemption(1, ID)]),
        lambda: handle.bind(1, "import:1"),
        lambda: handle.settle(1),
    )
    for use in uses:
        with pytest.raises(RuntimeError, match="attach"):
            driver.do(use())
    assert not script.requests
    driver.do(handle.attach())
    assert handle.token == 7
    assert (handle.name, handle.queue) == ("totals", "jobs")
    assert repr(handle).endswith("Stream 'totals' of queue 'jobs'>")


SAFE: dict[str, tuple[Callable[[Any], Any], object]] = {
    "attach": (lambda handle: handle.attach(), STREAM),
    "get": (lambda handle: handle.get(), STREAM),
    "open": (lambda handle: handle.open(4, limit=1, lease_s=60), {"claim": CLAIM}),
    "read": (lambda handle: handle.read(4), {"messages": []}),
    "extend": (lambda handle: handle.extend(4, 60), CLAIM),
    "park": (lambda handle: handle.park(4, 60), CLAIM),
    "give_back": (lambda handle: handle.give_back(4), {}),
    "exempt": (lambda handle: handle.exempt(4, [Exemption(4, ID)]), CLAIM),
    "bind": (lambda handle: handle.bind(4, "import:1"), CLAIM),
    "settle": (lambda handle: handle.settle(4), SETTLED),
    "delete": (lambda handle: handle.delete(), {}),
}


@pytest.mark.parametrize("name", SAFE)
def test_every_call_is_tried_again(driver: Driver, name: str) -> None:
    """All of them do the same when they are repeated."""
    use, content = SAFE[name]
    script = Script(LOST, problem("store-failed", 503, retry_after_s=0), answer(content))
    driver.do(use(stream(driver, script)))
    assert len({request.content for request in script.requests}) == 1
    assert len(script.requests) == 3


@pytest.mark.parametrize(
    ("name", "code"), [("give_back", "claim-not-found"), ("delete", "stream-not-found")]
)
def test_gone_after_a_lost_answer_is_success(driver: Driver, name: str, code: str) -> None:
    """The try whose answer was lost has done it."""
    use, _ = SAFE[name]
    driver.do(use(stream(driver, Script(LOST, problem(code, 404)))))
    with pytest.raises(Exception, match=code):
        driver.do(use(stream(driver, Script(problem(code, 404)))))


def test_a_message_to_send_needs_a_queue(driver: Driver) -> None:
    """It is refused before anything is sent."""
    script = Script()
    with pytest.raises(TypeError, match="is an Outgoing, not str"):
        driver.do(stream(driver, script).settle(4, sends=["x"]))
    assert not script.requests


def test_many_exemptions_go_in_several_requests(driver: Driver) -> None:
    """A thousand in each; the answer is that to the last one."""
    script = Script(answer({**CLAIM, "noted": 1_000}), answer({**CLAIM, "noted": 1_001}))
    many = (Exemption(4, f"m{number}") for number in range(1_001))
    assert driver.do(stream(driver, script).exempt(4, many)).noted == 1_001
    sent = [json.loads(request.content)["exemptions"] for request in script.requests]
    assert [len(each) for each in sent] == [1_000, 1]
    assert sent[1] == [{"id": "m1000", "outcome": "failed"}]


@pytest.mark.parametrize("count", [0, 1_001])
def test_the_first_request_replaces_what_was_noted(driver: Driver, count: int) -> None:
    """The others add to it; also where there is nothing to note."""
    script = Script(answer({**CLAIM, "noted": 0}), answer({**CLAIM, "noted": count}))
    many = (Exemption(4, f"m{number}") for number in range(count))
    driver.do(stream(driver, script).exempt(4, many, replace=True))
    sent = [json.loads(request.content) for request in script.requests]
    assert [each.get("replace", False) for each in sent] == [True, False][: len(sent)]
    assert sum(len(each["exemptions"]) for each in sent) == count


@pytest.mark.parametrize("exemptions", [[], [Exemption(4, ID), Exemption(5, ID)]])
def test_exemptions_are_of_the_claim(driver: Driver, exemptions: list[Exemption]) -> None:
    """And there are some; else nothing is sent."""
    script = Script()
    with pytest.raises(ValueError, match="exempt"):
        driver.do(stream(driver, script).exempt(4, exemptions))
    assert not script.requests


def test_a_claim_that_was_settled_tells_with_what(driver: Driver) -> None:
    """With nothing, unless the server says so."""
    told = problem("claim-settled", 409, last_settled=4, settled_with="import:1")
    with pytest.raises(ClaimSettled) as caught:
        driver.do(stream(driver, Script(told)).get_claim(4))
    assert (caught.value.last_settled, caught.value.settled_with) == (4, "import:1")
    with pytest.raises(ClaimSettled) as caught:
        driver.do(stream(driver, Script(problem("claim-settled", 409))).get_claim(4))
    assert caught.value.settled_with is None


def test_a_claim_that_is_not_there(driver: Driver) -> None:
    """And a cancel that got no answer is not repeated: it could mean somebody else by now."""
    with pytest.raises(ClaimNotFound):
        driver.do(stream(driver, Script(problem("claim-not-found", 404))).get_claim(4))
    script = Script(LOST, answer(VIEW))
    with pytest.raises(ConnectionFailed):
        driver.do(driver.client(script).queue("jobs").cancel(ID))
    assert len(script.requests) == 1
