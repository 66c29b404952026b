"""Putting messages."""

from __future__ import annotations

import pytest

from leasehold.worker.adapters.protocol import BodyTooLarge, Denied, NotSupported, Outgoing
from tests.contract.queues.conftest import Bench

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_body_at_the_limit_is_taken(bench: Bench) -> None:
    """As many bytes as the service has room for, as it stores them."""
    size = 65_536 if bench.kind != "mns" else 49_152  # in base64, by its own default
    assert bench.put_one("x" * size).body == b"x" * size


def test_a_body_over_the_limit_is_refused(bench: Bench) -> None:
    """One that is too large is refused, and spoils no other."""
    if bench.kind == "memory":
        pytest.skip("a queue in memory has no limit")
    results = bench.client.put([Outgoing(body="x" * 70_000), Outgoing(body="small")])
    assert isinstance(results[0], BodyTooLarge)
    assert results[1] is None
    assert bench.one().body == b"small"


def test_what_a_service_has_no_place_for_is_refused(bench: Bench) -> None:
    """Type, properties, trace and key arrive, or the put is refused; nothing is lost silently."""
    extras: list[dict[str, object]] = [
        {"type": "resize"},
        {"properties": {"colour": "grün"}},
        {"traceparent": TRACE},
        {"dedup_key": "k1"},
    ]
    for extra in extras:
        message = Outgoing(body="work", **extra)  # type: ignore[arg-type]
        (result,) = bench.client.put([message])
        if result is not None:
            assert isinstance(result, NotSupported)
            continue
        delivery = bench.one()
        assert delivery.type == message.type
        assert delivery.properties == message.properties
        assert delivery.traceparent == message.traceparent
        bench.complete(delivery.lease)


def test_a_key_is_taken_once(bench: Bench) -> None:
    """Where there are deduplication keys the second message of a key is not put."""
    message = Outgoing(body="work", dedup_key="order-1")
    results = [bench.client.put([message])[0] for _ in range(2)]
    if isinstance(results[0], NotSupported):
        pytest.skip("the service has no deduplication")
    assert results == [None, None]
    assert len(bench.receive()) == 1


def test_an_empty_body(bench: Bench) -> None:
    """It is taken, or refused for what it is."""
    (result,) = [*_tried(bench)]
    if bench.kind == "mns":
        assert isinstance(result, Denied)
    else:
        assert result is None
        assert bench.one().body == b""


def _tried(bench: Bench) -> list[Exception | None]:
    try:
        return list(bench.client.put([Outgoing(body="")]))
    except Denied as error:
        return [error]
