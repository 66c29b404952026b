"""Answers with many bytes are written where they hold up nobody."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from leasehold.http.mns.messages import md5_hex
from tests.unit.http.mns.support import MESSAGES, Whole, root_of

_BODY = "x" * 60_000


@pytest.mark.parametrize(("count", "apart"), [(1, False), (5, True)])
@pytest.mark.parametrize("query", ["numOfMessages=16", "numOfMessages=16&peekonly=true"])
def test_many_bytes_are_digested_on_a_thread(
    monkeypatch: pytest.MonkeyPatch, query: str, count: int, *, apart: bool
) -> None:
    """The digest of each message is in the answer; for few bytes no thread is asked."""
    whole = Whole()
    for _ in range(count):
        assert whole.send(_BODY).status == 201
    threads: set[threading.Thread] = set()

    def recording(*given: Any) -> str:
        threads.add(threading.current_thread())
        return md5_hex(*given)

    monkeypatch.setattr("leasehold.http.mns.messages.md5_hex", recording)
    request = whole.request("GET", f"{MESSAGES}?{query}")
    answer = asyncio.run(whole.dialect.handle(request))
    assert len(root_of(answer)) == count
    assert (threading.main_thread() not in threads) is apart
