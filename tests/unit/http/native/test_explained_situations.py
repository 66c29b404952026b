"""Situations in which a message is not worked on, made for real, and the sentence for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .support import MESSAGES, QUEUE, Native

Situation = Callable[[Native], str | None]
"""Makes the situation; returns the id of the message to ask about, None for the queue."""


def patch(native: Native, **settings: Any) -> None:
    assert native.send("PATCH", QUEUE, {"settings": settings}).status == 200


def put(native: Native, **members: Any) -> str:
    [sent] = native.put_bodies("work", **members)
    return str(sent["id"])


def release(native: Native, message: dict[str, Any], **members: Any) -> None:
    item = {"id": message["id"], "receipt": message["receipt"], **members}
    assert native.post(f"{MESSAGES}/release", {"items": [item]})["failed"] == 0


def delayed(native: Native) -> str:
    return put(native, delay_s=3600)


def leased(native: Native) -> str:
    message_id = put(native)
    message = native.receive_one(holder="w7", visibility_timeout_s=600)
    native.clock.advance(s=60)
    progress = {"fraction": 0.61}
    item = {"id": message_id, "receipt": message["receipt"], "visibility_timeout_s": 600}
    native.post(f"{MESSAGES}/renew", {"items": [item | {"progress": progress}]})
    native.clock.advance(s=5)
    return message_id


def lapsed(native: Native) -> str:
    message_id = put(native)
    native.receive_one(holder="w7", visibility_timeout_s=30)
    native.clock.advance(s=60)
    return message_id


def deferred(native: Native) -> str:
    patch(native, failure_policy={"max_failures": 5})
    message_id = put(native)
    message = native.receive_one(holder="w7")
    release(native, message, outcome="failed", delay_s=120, error={"text": "no such codec"})
    return message_id


def expired(native: Native) -> str:
    message_id = put(native, time_to_live_s=60)
    native.clock.advance(s=90)
    return message_id


def paused(native: Native) -> str:
    message_id = put(native)
    native.post(f"{QUEUE}/pause", {"for_s": 900, "reason": "database upgrade"})
    return message_id


def poisoned(native: Native) -> str:
    patch(native, failure_policy={"max_failures": 1})
    message_id = put(native)
    release(native, native.receive_one(), outcome="failed", error={"text": "no such codec"})
    return message_id


def nobody(native: Native) -> str:
    message_id = put(native)
    native.clock.advance(s=7200)
    return message_id


def rate_limited(native: Native) -> str:
    patch(native, max_receives_per_s=0.1)
    put(native)
    message_id = put(native)
    native.receive_one()
    return message_id


def doomed(native: Native) -> str:
    patch(native, failure_policy={"max_deliveries": 1})
    message_id = put(native)
    native.receive_one(visibility_timeout_s=1)
    native.clock.advance(s=5)
    return message_id


def gone(native: Native) -> str:
    message_id = put(native)
    message = native.receive_one()
    item = {"id": message_id, "receipt": message["receipt"]}
    native.post(f"{MESSAGES}/complete", {"items": [item]})
    return message_id


def empty_queue(native: Native) -> None:
    native.post(f"{MESSAGES}/receive", {})


def all_leased(native: Native) -> None:
    put(native)
    native.receive_one(holder="w7", visibility_timeout_s=600)


def all_delayed(native: Native) -> None:
    put(native, delay_s=3600)
    native.post(f"{MESSAGES}/receive", {})


def all_claimed(native: Native) -> None:
    put(native)
    token = native.send("PUT", f"{QUEUE}/streams/daily").json["token"]
    claim = {"token": token, "limit": 9, "lease_s": 600, "holder": "driver"}
    native.send("PUT", f"{QUEUE}/streams/daily/claims/1", claim)


EXPECTED: list[tuple[Situation, str, tuple[str, ...]]] = [
    (delayed, "delayed", ("until 2",)),
    (leased, "leased", ("w7", "61 %", "once")),
    (lapsed, "lapsed", ("w7",)),
    (deferred, "deferred-after-failure", ("no such codec", "1 of 5")),
    (expired, "expired", ("1 min after it was put",)),
    (paused, "paused", ("database upgrade",)),
    (poisoned, "poisoned", ("no such codec", "redrive")),
    (nobody, "no-receiver", ("2 h",)),
    (rate_limited, "rate-limited", ("0.1",)),
    (doomed, "poisoned-at-next-receive", ("poison",)),
    (gone, "not-found", ()),
    (empty_queue, "empty", ()),
    (all_leased, "all-leased", ("The only message",)),
    (all_delayed, "all-delayed", ("The only message",)),
    (all_claimed, "all-claimed", ("claim 1 of stream daily", "driver")),
]


@pytest.mark.parametrize(
    ("situation", "code", "parts"), EXPECTED, ids=[each[0].__name__ for each in EXPECTED]
)
def test_the_sentence_fits_the_situation(
    native: Native, situation: Situation, code: str, parts: tuple[str, ...]
) -> None:
    """The code names the reason, and the sentence holds what a person wants to know."""
    message_id = situation(native)
    place = QUEUE if message_id is None else f"{MESSAGES}/{message_id}"
    explanation = native.get(f"{place}/explain")
    assert explanation["code"] == code, explanation
    for part in parts:
        assert part in explanation["sentence"]
    if message_id is not None and code != "not-found":
        assert explanation["evidence"]
