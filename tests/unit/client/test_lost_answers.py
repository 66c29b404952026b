"""What is known after a call that failed: every operation, sequences of failed tries."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import httpx
import pyarrow as pa
import pytest

from leasehold.client import LeaseholdClientError, RetryPolicy
from tests.unit.client.support import CLAIM, Driver, Reply, Script, answer, problem
from tests.unit.client.test_retries import SAFE, UNSAFE

TRIES: Final = 3
POLICY: Final = RetryPolicy(attempts=TRIES, initial_s=0)
UNCLEAR: Final[dict[str, Reply]] = {
    "lost answer": httpx.ReadTimeout(""),
    "reset": httpx.ReadError("reset"),
    "half an answer": httpx.RemoteProtocolError("closed"),
    "store failed": problem("store-failed", 503, retry_after_s=0),
    "gateway": httpx.Response(502, text="Bad Gateway"),
    "server's fault": problem("internal-error", 500),
    "not Leasehold's": httpx.Response(200, text="<html>"),
}
"""After them nobody can tell whether the call was carried out."""
CLEAR: Final[dict[str, Reply]] = {
    "refused": httpx.ConnectError("[Errno 111] Connection refused"),
    "no connection in time": httpx.ConnectTimeout(""),
    "overloaded": problem("overloaded", 503, retry_after_s=0),
    "limited": httpx.Response(429),
    "bad request": problem("bad-request", 400),
}
"""After them it is certain that this try did nothing."""
KINDS: Final = UNCLEAR | CLEAR
OK: Final = "ok"
BATCH: Final = pa.record_batch({"body": ["a"]})
PUBLISHED: Final = {"published": 1, "rows": 1, "duplicates": 0, "already": False}
STAGED: Final = {"rows": 1, "chunks": 1, "duplicate": False}
COMMITTED: Final = {"already": False, "published": 0}

Operation = tuple[Callable[[Any], Any], object]


def _on_queue(method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return lambda client: getattr(client.queue("jobs"), method)(*arguments, **named)


def _on_stream(method: str, *arguments: Any, **named: Any) -> Any:
    def call(client: Any) -> Any:
        stream = client.queue("jobs").stream("totals", token=7)
        return getattr(stream, method)(*arguments, **named)

    return call


def _on_transaction(method: str, *arguments: Any, **named: Any) -> Any:
    return lambda client: getattr(client.transaction("t"), method)(*arguments, **named)


OPERATIONS: Final[dict[str, Operation]] = {
    **{
        name: (_on_queue(method, arguments, named), content)
        for name, (method, arguments, named, content) in (SAFE | UNSAFE).items()
    },
    "open a claim": (_on_stream("open", 4, limit=10, lease_s=60), CLAIM),
    "extend a claim": (_on_stream("extend", 4, 60), CLAIM),
    "bind a claim": (_on_stream("bind", 4, "t"), CLAIM),
    "settle": (_on_stream("settle", 4), {"last_settled": 4}),
    "stage": (_on_transaction("stage", ["x"], queue="jobs"), STAGED),
    "stage Arrow": (_on_transaction("stage_arrow", BATCH, queue="jobs"), STAGED),
    "publish": (_on_transaction("publish"), PUBLISHED),
    "discard": (_on_transaction("discard"), {"parts": 1, "rows": 1}),
    "commit with a name": (
        lambda client: client.commit(publish=["t"], name="c"),
        COMMITTED,
    ),
    "commit": (lambda client: client.commit(publish=["t"]), COMMITTED),
}


WHOLE: Final = {"put", "complete", "settle", "stage", "stage Arrow", "commit"}
"""Operations that are tried with all kinds of failures; what a failure says is not up to them."""
COMMON: Final = ("lost answer", "store failed", "refused", "overloaded", "bad request")


def sequences(kinds: Iterable[str] = KINDS) -> Iterator[tuple[str, ...]]:
    """The ways in which the tries of a call may end: all pairs, and threes of the commonest."""
    pairs = itertools.product((*kinds, OK), repeat=2)
    yield from ((*pair, OK) for pair in pairs)
    yield from itertools.product(("lost answer", "refused", "overloaded"), repeat=TRIES)


def scripted(sequence: tuple[str, ...], content: object) -> Script:
    """Return a server whose answers to one call are these."""
    return Script(*(KINDS.get(each) or answer(content) for each in sequence))


class _Servers:
    """One server after the other."""

    now = Script()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        return self.now(request)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_error_tells_of_every_try(driver: Driver, name: str) -> None:
    """Its outcome is unknown exactly if that of one try was, however the last one ended."""
    call, content = OPERATIONS[name]
    servers = _Servers()
    client = driver.client(servers, retries=POLICY)
    wrong = []
    for sequence in sequences(KINDS if name in WHOLE else COMMON):
        servers.now = scripted(sequence, content)
        try:
            driver.do(call(client))
        except LeaseholdClientError as error:
            tried = sequence[: len(servers.now.requests)]
            expected = any(each in UNCLEAR for each in tried)
            if error.outcome_unknown is not expected:
                wrong.append((*tried, error.outcome_unknown))
    assert not wrong


STAGINGS: Final[dict[str, Callable[[Any], Any]]] = {
    "stage": lambda transaction: transaction.stage(["x"], queue="jobs"),
    "stage Arrow": lambda transaction: transaction.stage_arrow(BATCH, queue="jobs"),
}


@pytest.mark.parametrize("name", STAGINGS)
def test_a_chunks_number_is_used_again_only_if_nothing_was_staged(
    driver: Driver, name: str
) -> None:
    """Else other rows would be taken for a repetition of those whose answer was lost."""
    stage = STAGINGS[name]
    servers = _Servers()
    client = driver.client(servers, retries=POLICY)
    wrong = []
    for sequence in sequences():
        script, after = scripted(sequence, STAGED), Script(answer(STAGED))
        servers.now = script
        transaction = client.transaction("t")
        expected = "1"
        try:
            driver.do(stage(transaction))
        except LeaseholdClientError:
            tried = sequence[: len(script.requests)]
            expected = "asks" if any(each in UNCLEAR for each in tried) else "0"
        servers.now = after
        try:
            driver.do(stage(transaction))
        except RuntimeError:
            found = "asks"
        else:
            found = _chunk(after.last)
        if found != expected:
            wrong.append((sequence, found, expected))
    assert not wrong


def _chunk(request: httpx.Request) -> str:
    """Return the number of the chunk that a request stages."""
    asked = request.url.params.get("chunk")
    return str(json.loads(request.content)["chunk"]) if asked is None else str(asked)


def test_the_texts_tell_of_earlier_tries(driver: Driver) -> None:
    """Who reads "cannot be reached" alone would think that nothing was done."""
    for last in ("refused", "limited", "overloaded"):
        script = scripted(("lost answer", last, last), STAGED)
        with pytest.raises(LeaseholdClientError, match=r"earlier attempt .* may have succeeded"):
            driver.do(_on_transaction("publish")(driver.client(script, retries=POLICY)))


@pytest.mark.parametrize("last", ["refused", "limited", "lost answer", "overloaded"])
def test_what_is_known_survives_the_way_to_another_process(driver: Driver, last: str) -> None:
    """Errors of Spark's tasks are pickled."""
    script = scripted(("lost answer", last, last), STAGED)
    with pytest.raises(LeaseholdClientError) as caught:
        driver.do(_on_transaction("publish")(driver.client(script, retries=POLICY)))
    error = caught.value
    again = pickle.loads(pickle.dumps(error))
    assert again.outcome_unknown
    assert str(again) == str(error)
