"""What a holder saves beside the body, as JSON."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain.limits import MAX_SAVED_BYTES
from tests.unit.http.native.support import BASE, MESSAGES, Native, errors_of_items


def _renew(native: Native, message: dict[str, Any], **members: Any) -> dict[str, Any]:
    item = {"id": message["id"], "receipt": message["receipt"], "visibility_timeout_s": 0}
    answer = native.post(f"{MESSAGES}/renew", {"items": [item | members]})
    return {**message, **answer["results"][0]}


@pytest.fixture
def message(native: Native) -> dict[str, Any]:
    """A message on a lease."""
    native.put_bodies("x")
    return native.receive_one()


@pytest.mark.parametrize("saved", [{"page": [3, None]}, [], "\u1234", 0, False, 1e300, 10**25])
def test_any_json_comes_back(native: Native, message: dict[str, Any], saved: Any) -> None:
    """With the next receive, and for those who look; the renewal itself does not repeat it."""
    assert "saved" not in message
    renewed = _renew(native, message, saved=saved)
    assert "saved" not in renewed
    assert native.get(f"{MESSAGES}/{message['id']}")["saved"] == saved
    assert native.get(MESSAGES)["messages"][0]["saved"] == saved
    assert "saved" not in native.get(MESSAGES, "body=false")["messages"][0]
    assert "saved" not in native.post(f"{MESSAGES}/peek")["messages"][0]
    assert native.receive_one()["saved"] == saved


def test_null_removes_it(native: Native, message: dict[str, Any]) -> None:
    """A renewal that says nothing leaves it."""
    message = _renew(native, message, saved={"page": 1})
    message = _renew(native, message)
    assert native.get(f"{MESSAGES}/{message['id']}")["saved"] == {"page": 1}
    message = _renew(native, message, saved=None)
    assert "saved" not in native.get(f"{MESSAGES}/{message['id']}")
    assert "saved" not in native.receive_one()


def test_the_limit_is_on_json_without_blanks(native: Native, message: dict[str, Any]) -> None:
    """One byte more is refused with both figures, and nothing is done."""
    longest = "x" * (MAX_SAVED_BYTES - 4)
    message = _renew(native, message, saved=[longest])
    refused = _renew(native, message, saved=[longest + "y"])["error"]
    assert (refused["code"], refused["field"]) == ("out-of-range", "$.items[0].saved")
    assert (refused["value"], refused["maximum"]) == (MAX_SAVED_BYTES + 1, MAX_SAVED_BYTES)
    assert "elsewhere" in refused["remedy"]
    assert native.receive_one()["saved"] == [longest]
    item = f'{{"id":"{message["id"]}","receipt":"x","visibility_timeout_s":0,"saved":[%s]}}'
    body = f'{{"items":[{item % (" " * MAX_SAVED_BYTES)}]}}'.encode()
    answer = native.send("POST", f"{MESSAGES}/renew", body)
    assert errors_of_items(answer.json) == [("receipt-malformed", "$.items[0].receipt")]


@pytest.mark.parametrize(
    "saved",
    [b'"\\ud800"', b'"\xff"', b"1e999", b"[" * 900 + b"]" * 900],
    ids=["surrogate", "bytes", "number", "depth"],
)
def test_what_a_reader_could_not_read_is_refused(
    native: Native, message: dict[str, Any], saved: bytes
) -> None:
    """It would spoil every receive that brings it."""
    named = f'"id":"{message["id"]}","receipt":"{message["receipt"]}"'.encode()
    body = b'{"items":[{%b,"visibility_timeout_s":0,"saved":%b}]}' % (named, saved)
    answer = native.send("POST", f"{MESSAGES}/renew", body)
    found = answer.json if answer.status == 400 else answer.json["results"][0]["error"]
    assert found["code"] == "invalid-request"
    assert "saved" not in native.get(f"{MESSAGES}/{message['id']}")


def test_brackets_in_texts_are_no_depth(native: Native, message: dict[str, Any]) -> None:
    """Nor is a long list of lists."""
    saved = [["[" * 900, '"' + "{" * 900], *([[]] * 900)]
    _renew(native, message, saved=saved)
    assert native.get(f"{MESSAGES}/{message['id']}")["saved"] == saved


def test_a_commit_saves_as_well(native: Native, message: dict[str, Any]) -> None:
    """Together with the rest; what is too large keeps everything from being done."""
    named = {"queue": "orders", "id": message["id"], "receipt": message["receipt"]}
    renewal = {**named, "visibility_timeout_s": 0}
    large = {"renew": [renewal | {"saved": "x" * MAX_SAVED_BYTES}]}
    refused = native.post(f"{BASE}/commit", large)["renew"][0]["error"]
    assert (refused["code"], refused["field"]) == ("out-of-range", "$.renew[0].saved")
    done = native.post(f"{BASE}/commit", {"renew": [renewal | {"saved": {"page": 2}}]})
    assert done["failed"] == 0
    assert native.receive_one()["saved"] == {"page": 2}
