"""Saves of many handlers on a Leasehold server share requests."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from leasehold.testing import InProcessServer
from leasehold.worker.adapters import BodyTooLarge, LeaseGone, Outgoing, QueueError, Saved
from leasehold.worker.adapters.native import NativeQueue
from tests.patience import PATIENCE_S

_LEASE_S = 30


def test_each_message_keeps_its_own_progress_and_one_refusal_costs_no_other() -> None:
    """Eight saves in two requests: one is too large, one has an old receipt, six are kept."""
    with InProcessServer() as server, server.client() as client:
        handle = client.queue("films")
        handle.create()
        queue = NativeQueue(handle)
        queue.put([Outgoing(body=f"film-{number}") for number in range(8)])
        deliveries = queue.receive(8, visibility_timeout_s=_LEASE_S)
        calls = _count(handle)
        states: dict[int, Any] = {number: {"frame": number} for number in range(8)}
        states[2] = "x" * 70_000
        receipts = {number: each.receipt for number, each in enumerate(deliveries)}
        receipts[5] = receipts[6]

        def save(number: int) -> object:
            saved = Saved(stage="encode", state=states[number], fraction=number / 8)
            try:
                return queue.save(deliveries[number], receipts[number], saved, _LEASE_S)
            except QueueError as error:
                return error

        with ThreadPoolExecutor(8) as pool:
            first = pool.submit(save, 0)
            calls.begun.wait(PATIENCE_S)
            rest = [pool.submit(save, number) for number in range(1, 8)]
            while len(queue._saver._together._waiting) < 7:
                threading.Event().wait(0.001)
            calls.go_on.set()
            results = [first.result(PATIENCE_S), *(each.result(PATIENCE_S) for each in rest)]
        assert isinstance(results[2], BodyTooLarge)
        assert isinstance(results[5], LeaseGone)
        assert calls.sizes == [1, 7]
        kept = {
            number: client.queue("films").get(each.message_id).saved
            for number, each in enumerate(deliveries)
        }
        for number in (0, 1, 3, 4, 6, 7):
            assert kept[number]["state"] == {"frame": number}
        assert kept[2] is None
        assert kept[5] is None


def test_a_server_that_is_gone_is_told_to_each_thread_by_an_error_of_its_own() -> None:
    """Tracebacks of several threads do not end up in one exception."""
    with InProcessServer() as server, server.client() as client:
        handle = client.queue("films")
        handle.create()
        queue = NativeQueue(handle)
        queue.put([Outgoing(body="a")])
        [delivery] = queue.receive(1, visibility_timeout_s=_LEASE_S)
        queue.complete([delivery.lease])
        errors = []
        for _ in range(2):
            with pytest.raises(LeaseGone) as caught:
                queue.save(delivery, delivery.receipt, Saved(state=1), _LEASE_S)
            errors.append(caught.value)
        assert errors[0] is not errors[1]


class _Calls:
    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()


def _count(handle: Any) -> _Calls:
    """Count the renewals of each request, and hold the first one up."""
    calls, real = _Calls(), handle.renew_each

    def renew_each(renewals: Any, **settings: Any) -> Any:
        calls.sizes.append(len(renewals))
        calls.begun.set()
        assert calls.go_on.wait(PATIENCE_S)
        return real(renewals, **settings)

    handle.renew_each = renew_each
    return calls


@pytest.mark.parametrize(("lease_s", "timeout_s"), [(15, 5.0), (3600, 10.0)])
def test_a_save_leaves_time_to_renew_its_lease(
    lease_s: int, timeout_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not answer a save is waited for during a part of the lease only."""
    with InProcessServer() as server, server.client() as client:
        handle = client.queue("films")
        handle.create()
        queue = NativeQueue(handle)
        queue.put([Outgoing(body="a")])
        [delivery] = queue.receive(1, visibility_timeout_s=lease_s)
        real, asked = handle.renew_each, []

        def renew_each(renewals: Any, *, timeout_s: float) -> Any:
            asked.append(timeout_s)
            return real(renewals, timeout_s=timeout_s)

        monkeypatch.setattr(handle, "renew_each", renew_each)
        queue.save(delivery, delivery.receipt, Saved(state=1), lease_s)
    assert asked == [timeout_s]
