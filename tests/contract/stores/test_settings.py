"""Contract: what can be set for a queue takes effect."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseLost, QueueNotFound
from leasehold.domain.model import NEVER_MS
from leasehold.domain.queue_settings import (
    DEFAULT_SETTINGS,
    Adapted,
    Adaptive,
    Backoff,
    BackoffKind,
    FailurePolicy,
    LapsedReceipts,
    QueueSettings,
)

from .conftest import ACCOUNT, QUEUE, Asker

ALL_SET = QueueSettings(
    visibility_timeout_s=7,
    lapsed_receipts=LapsedReceipts.STRICT,
    failure_policy=FailurePolicy(
        max_deliveries=1,
        max_failures=2,
        max_interruptions=3,
        max_lapses=4,
        backoff=Backoff(kind=BackoffKind.LINEAR, initial_s=0.5, factor=3, cap_s=9, jitter=0.2),
        poison_queue="put-aside",
        poison_time_to_live_s=60,
    ),
    dedup_window_s=0,
    priority_ageing_s=5,
    paused_until_ms=NEVER_MS,
    pause_reason="ünterhalt",
    max_receives_per_s=0.25,
    adaptive=Adaptive(floor_s=1, cap_s=2),
)


def settings_of(asker: Asker) -> QueueSettings:
    """Return the settings as the store tells them in both ways."""
    found = asker.store.find_queue(ACCOUNT, QUEUE)
    assert found is not None
    settings = asker.ask(c.GetQueue(ACCOUNT, QUEUE)).queue.settings
    assert isinstance(settings, QueueSettings)
    assert settings == found.settings
    return settings


def test_settings_are_replaced_whole(asker: Asker) -> None:
    """Every setting comes back as it was set, and nothing is left of those before."""
    assert settings_of(asker) == DEFAULT_SETTINGS
    assert asker.ask(c.SetQueueSettings(ACCOUNT, QUEUE, ALL_SET)) == c.DONE
    assert settings_of(asker) == ALL_SET
    asker.govern(dedup_window_s=1)
    assert settings_of(asker) == QueueSettings(dedup_window_s=1)
    assert isinstance(asker.ask(c.SetQueueSettings(ACCOUNT, "no", ALL_SET)), QueueNotFound)


def test_settings_of_a_queue_that_is_there_are_left_alone(empty: Asker) -> None:
    """Those of a create are for a new queue only; metadata and messages do not touch them."""
    empty.ask(c.CreateQueue(ACCOUNT, QUEUE, {}, QueueSettings(dedup_window_s=9)))
    empty.ask(c.CreateQueue(ACCOUNT, QUEUE, {}, ALL_SET))
    empty.ask(c.SetQueueMetadata(ACCOUNT, QUEUE, {"a": "b"}))
    empty.ask(c.SetQueuePolicies(ACCOUNT, QUEUE, ()))
    empty.put()
    empty.ask(c.Clear(ACCOUNT, QUEUE))
    assert settings_of(empty) == QueueSettings(dedup_window_s=9)


# --- the default lease -------------------------------------------------------------------------


def test_a_receive_without_a_length_takes_the_queues(asker: Asker) -> None:
    """One that names a length gets that, in the same batch too."""
    asker.govern(visibility_timeout_s=7)
    for _ in range(3):
        asker.put()
    now_ms = asker.clock.now_ms()
    default, named = asker.batch(
        c.Receive(ACCOUNT, QUEUE, 2, None), c.Receive(ACCOUNT, QUEUE, 1, 60)
    )
    leases: list[Any] = [*default, *named]  # type: ignore[misc]
    assert [lease.message.visible_at_ms - now_ms for lease in leases] == [7_000, 7_000, 60_000]


def test_what_the_server_has_adapted_counts_while_it_is_asked_to_adapt(asker: Asker) -> None:
    """It is kept apart from the settings: setting those neither sets nor loses it."""
    adapted = Adapted(visibility_timeout_s=11, because="99 % took 7 s", at_ms=5)
    asker.put()

    def lease_s() -> float:
        lease = asker.receive_one(lease_s=None)
        asker.release(lease)
        return (lease.message.visible_at_ms - asker.clock.now_ms()) / 1000

    asker.govern(visibility_timeout_s=7, adaptive=Adaptive())
    assert asker.ask(c.SetAdapted(ACCOUNT, QUEUE, adapted)) == c.DONE
    assert settings_of(asker).adapted == adapted
    assert lease_s() == 11
    other = Adapted(visibility_timeout_s=99, because="a client says so", at_ms=6)
    asker.govern(visibility_timeout_s=8, adaptive=Adaptive(cap_s=60), adapted=other)
    assert settings_of(asker).adapted == adapted
    assert lease_s() == 11
    asker.govern(visibility_timeout_s=8)
    assert settings_of(asker).adapted is None
    assert lease_s() == 8
    assert isinstance(asker.ask(c.SetAdapted(ACCOUNT, "no", adapted)), QueueNotFound)


# --- pause -------------------------------------------------------------------------------------


def test_a_paused_queue_takes_and_shows_but_gives_nothing(asker: Asker) -> None:
    """Sends, peeks and the holders of leases go on; nobody receives."""
    asker.put("one")
    asker.put("two")
    lease = asker.receive_one()
    asker.govern(paused_until_ms=NEVER_MS, pause_reason="repair")
    asker.put("three")
    asker.clock.advance(s=10_000)
    assert asker.receive(10) == ()
    assert asker.bodies() == [b"two", b"three", b"one"]
    assert asker.complete(asker.renew(lease, 30)) == c.DONE
    asker.govern()
    assert asker.received() == [b"two", b"three"]


def test_a_pause_ends_by_itself(asker: Asker) -> None:
    """To the millisecond, without anybody resuming the queue."""
    asker.put()
    asker.govern(paused_until_ms=asker.clock.now_ms() + 5_000)
    asker.clock.advance(ms=4_999)
    assert asker.receive() == ()
    asker.clock.advance(ms=1)
    assert len(asker.receive()) == 1


def test_a_paused_queue_poisons_nothing(asker: Asker) -> None:
    """Only a receive that may give something moves what is used up."""
    asker.put()
    asker.receive()
    asker.clock.advance(s=30)
    policy = FailurePolicy(max_deliveries=1)
    asker.govern(failure_policy=policy, paused_until_ms=NEVER_MS)
    assert asker.receive() == ()
    assert asker.split() == (1, 0, 0, 0, 0)
    asker.govern(failure_policy=policy)
    assert asker.receive() == ()
    assert asker.split() == (0, 0, 0, 0, 1)


# --- rate --------------------------------------------------------------------------------------


def test_no_more_is_received_than_the_rate_allows(asker: Asker) -> None:
    """One second's worth can go at once; from then on messages go at the rate."""
    asker.govern(max_receives_per_s=4)
    for _ in range(20):
        asker.put()
    assert len(asker.receive(3)) == 3
    assert len(asker.receive(20)) == 1
    assert asker.receive() == ()
    asker.clock.advance(ms=249)
    assert asker.receive() == ()
    asker.clock.advance(ms=1)
    assert len(asker.receive(20)) == 1
    asker.clock.advance(s=3600)
    assert len(asker.receive(20)) == 4


def test_a_rate_below_one_gives_one_at_a_time(asker: Asker) -> None:
    """Six a minute are one every ten seconds, the first at once."""
    asker.govern(max_receives_per_s=0.1)
    for _ in range(3):
        asker.put()
    taken = 0
    for _ in range(21):
        taken += len(asker.receive(3))
        asker.clock.advance(s=1)
    assert taken == 3


def test_an_empty_receive_costs_nothing(asker: Asker) -> None:
    """The rate is of messages, not of calls; poison is none of them."""
    asker.put("bad")
    asker.receive()
    asker.clock.advance(s=30)
    asker.govern(max_receives_per_s=1, failure_policy=FailurePolicy(max_deliveries=1))
    assert asker.receive(5) == ()
    assert asker.count() == 0
    asker.put("good")
    assert asker.received() == [b"good"]


def test_a_clock_that_goes_back_does_not_open_the_rate(asker: Asker) -> None:
    """It gives nothing more, and time goes on from where it is."""
    asker.govern(max_receives_per_s=1)
    for _ in range(5):
        asker.put()
    asker.clock.advance(s=10)
    assert len(asker.receive(5)) == 1
    asker.clock.advance(s=-5)
    assert asker.receive(5) == ()
    asker.clock.advance(s=1)
    assert len(asker.receive(5)) == 1


# --- the strict rule ---------------------------------------------------------------------------


def test_the_rule_of_lapsed_receipts_can_be_changed(asker: Asker) -> None:
    """The one in force when a receipt is used counts."""
    asker.put()
    asker.put()
    one, two = asker.receive(2)
    asker.clock.advance(s=30)
    asker.govern(lapsed_receipts=LapsedReceipts.STRICT)
    for result in (asker.complete(one), asker.renew(one, 5), asker.release(one)):
        assert isinstance(result, LeaseLost)
        assert result.reason == "lapsed"
    asker.govern()
    assert asker.complete(one) == c.DONE
    assert isinstance(asker.release(two), c.Released)


@pytest.mark.parametrize(
    "settings",
    [
        {"paused_until_ms": NEVER_MS},
        {"max_receives_per_s": 1.0},
        {"failure_policy": FailurePolicy(max_deliveries=1)},
    ],
)
def test_settings_of_one_queue_are_not_those_of_another(
    asker: Asker, settings: dict[str, Any]
) -> None:
    """Receives of two queues in one batch go by their own rules."""
    asker.create("other")
    for queue in (QUEUE, "other"):
        for _ in range(2):
            asker.put(queue=queue)
        asker.receive(2, queue=queue)
    asker.clock.advance(s=30)
    asker.govern(**settings)
    mine, others = asker.batch(c.Receive(ACCOUNT, QUEUE, 2, 30), c.Receive(ACCOUNT, "other", 2, 30))
    assert len(others) == 2  # type: ignore[arg-type]
    assert len(mine) == ("max_receives_per_s" in settings)  # type: ignore[arg-type]
    assert asker.ask(o.CountMessages(ACCOUNT, "other")).poisoned == 0
