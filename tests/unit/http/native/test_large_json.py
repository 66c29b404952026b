"""Large requests in JSON: what is not wanted of them is not made."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from leasehold.http.native.items import read_put
from tests.unit.http.native.support import MESSAGES, Native


def of_megabytes(*items: str) -> bytes:
    """Return a put of more than can be read without counting, which ends in some items."""
    long = ['{"body":"%s"}' % ("x" * 60_000)] * 20
    return ('{"messages":[' + ",".join([*long, *items]) + "]}").encode()


def test_a_table_of_many_properties_is_not_made(native: Native) -> None:
    """It is refused by its length: to make it would take seconds, and gigabytes."""
    many = ",".join(f'"{number}":""' for number in range(20_000))
    answer = native.send("POST", MESSAGES, of_megabytes(f'{{"body":"a","properties":{{{many}}}}}'))
    assert (answer.status, answer.code) == (400, "out-of-range")
    assert answer.json["field"] == "$.messages[20].properties"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ('{"a":1}', "$.messages[20].properties[...]"),
        ("[]", "$.messages[20].properties"),
        ('{"a":"b"', "$"),
    ],
)
def test_properties_of_a_large_request_are_checked(native: Native, given: str, field: str) -> None:
    """What is wrong with them is told as for a small one."""
    answer = native.send("POST", MESSAGES, of_megabytes(f'{{"body":"a","properties":{given}}}'))
    assert (answer.status, answer.json["field"]) == (400, field)


def test_properties_of_a_large_request_are_kept(native: Native) -> None:
    """They arrive like those of a small one."""
    items = (
        '{"body":"a","properties":{"k":"v"}}',
        '{"body":"b","properties":null}',
        '{"body":"c"}',
    )
    assert native.send("POST", MESSAGES, of_megabytes(*items)).status == 200
    found = native.post(f"{MESSAGES}/receive", {"max_messages": 30})["messages"][20:]
    assert [each.get("properties") for each in found] == [{"k": "v"}, None, None]


@pytest.mark.parametrize("is_large", [False, True])
def test_a_large_request_is_read_on_a_thread(
    native: Native, monkeypatch: pytest.MonkeyPatch, *, is_large: bool
) -> None:
    """There it holds up nobody; a small one is read at once."""
    threads: set[str] = set()

    def recording(*given: Any) -> Any:
        threads.add(threading.current_thread().name)
        return read_put(*given)

    monkeypatch.setattr("leasehold.http.native.messages.read_put", recording)
    body = of_megabytes() if is_large else b'{"messages":[{"body":"a"}]}'
    assert native.send("POST", MESSAGES, body).status == 200
    (name,) = threads
    assert name.startswith("bodies") is is_large
