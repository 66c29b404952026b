"""Leases of messages that expire: as long as the message lives, and no longer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from leasehold.worker.adapters.protocol import Outgoing, Saved, Unreachable
from leasehold.worker.errors import LeaseLost, MessageExpired
from leasehold.worker.leases import Held, HeldState, LeaseSettings
from tests.unit.worker.leases.support import START_S, Bench

EIGHT = LeaseSettings.of(8)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(EIGHT)
    yield made
    made.close()


def keep(bench: Bench, life_s: int, *, told: bool = True) -> Held:
    """Put a message that lives so long, receive it and keep its lease."""
    bench.queue.put([Outgoing(body="x", time_to_live_s=life_s)])
    lease_s = bench.manager.settings.visibility_timeout_s
    [delivery] = bench.queue.receive(1, visibility_timeout_s=lease_s)
    assert delivery.expires_in_s == life_s
    if not told:
        delivery = replace(delivery, expires_in_s=None)
    held = bench.manager.keep(bench.queue, delivery, asked_at_s=bench.time.monotonic_s())
    held.on_loss(bench.losses.append)
    return held


def pass_time(bench: Bench, until_s: float) -> None:
    """Let time pass in small steps, as it does."""
    while (left_s := START_S + until_s - bench.time.monotonic_s()) > 1e-9:
        bench.time.advance(min(0.1, left_s))


def test_work_that_ends_before_its_message_expires_is_done(bench: Bench) -> None:
    """14 s to live, leases of 8 s, 12 s of work: no renewal asks for more than there is."""
    held = keep(bench, 14)
    pass_time(bench, 12)
    assert held.state is HeldState.HELD
    assert bench.complete(held)
    assert bench.told.losses == []
    assert bench.told.failures == []
    assert all(sent.at_s + sent.visibility_timeout_s <= START_S + 14 for sent in bench.queue.sent)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("life_s", [2, 5, 8, 9, 11, 14, 16, 25, 60])
@pytest.mark.parametrize("lease_s", [3, 8, 30])
def test_work_of_any_length_that_fits(lease_s: int, life_s: int, told: bool) -> None:
    """It has all of the message's life but for half a second, and a lease to the end."""
    bench = Bench(LeaseSettings.of(lease_s))
    try:
        held = keep(bench, life_s, told=told)
        # Where the service does not say when it expires, that has to be found out.
        pass_time(bench, life_s - 0.5 if told else life_s - 1.1)
        assert held.state is HeldState.HELD
        assert bench.queue.receive(1, visibility_timeout_s=1) == []
        assert bench.complete(held)
        assert bench.told.losses == []
        assert len(bench.queue.sent) < 12 + 5 * life_s / lease_s
    finally:
        bench.close()


@pytest.mark.parametrize(
    ("life_s", "told"), [(3, True), (8, True), (14, True), (9, False), (14, False)]
)
def test_it_ends_as_expired_when_it_is(bench: Bench, life_s: int, told: bool) -> None:
    """The work is told so, with an error of its own; nothing is settled."""
    held = keep(bench, life_s, told=told)
    pass_time(bench, life_s + (0.1 if told else EIGHT.timer_interval_s))
    assert [loss.kind for loss in bench.losses] == ["expired"]
    assert bench.told.losses == [(held.delivery.message_id, "expired")]
    assert bench.manager.counts.losses == {"expired": 1}
    for call in (held.check, held.begin_settling):
        with pytest.raises(MessageExpired, match="time to live") as caught:
            call()
        assert caught.value.kind == "expired"


def test_the_answer_to_a_renewal_may_come_late(bench: Bench) -> None:
    """One that reached the service too late for its length is sent again, shorter."""
    held = keep(bench, 14)
    bench.queue.faults.slow(0.6, calls=3, method="renew")
    pass_time(bench, 12.4)
    assert bench.complete(held)


def test_a_lapse_long_before_the_expiry_is_a_lapse(bench: Bench) -> None:
    """Nobody says that a message has expired that comes again."""
    keep(bench, 60)
    bench.queue.faults.fail(1000, method="renew", error=Unreachable("down"))
    pass_time(bench, 9)
    assert [loss.kind for loss in bench.losses] == ["lapsed"]


def test_an_extension_is_cut_to_the_expiry(bench: Bench) -> None:
    """A handler that asks for more than there is has what there is."""
    held = keep(bench, 14)
    held.extend(600)
    assert held.deadline_s == pytest.approx(START_S + 13)
    pass_time(bench, 13.4)
    held.extend(600)
    assert bench.complete(held)


@pytest.mark.parametrize("told", [True, False])
def test_a_save_is_cut_to_the_expiry(bench: Bench, told: bool) -> None:
    """Progress can be saved as long as somebody could go on from there."""
    held = keep(bench, 14, told=told)
    pass_time(bench, 10)
    held.save(Saved(stage="encode"))
    [left] = bench.queue.left()
    assert left.saved == Saved(stage="encode")
    pass_time(bench, 13.5 if told else 12.8)
    held.save(Saved(stage="compress"))
    assert bench.complete(held)


def test_a_message_that_expires_before_its_first_lease_ends(bench: Bench) -> None:
    """A receive may ask for more; the work ends with the message all the same."""
    held = keep(bench, 5)
    assert held.deadline_s == START_S + 5
    pass_time(bench, 4.9)
    assert held.state is HeldState.HELD
    pass_time(bench, 5.1)
    assert [loss.kind for loss in bench.losses] == ["expired"]


def test_too_little_left_at_registration_is_renewed_at_once(bench: Bench) -> None:
    """Not at the next tick, which may be too late."""
    [delivery] = bench.receive()
    bench.time.advance(7.5)
    held = bench.manager.keep(bench.queue, delivery, asked_at_s=START_S)
    bench.time.advance(0)
    assert bench.queue.moments_s == [7.5]
    assert held.deadline_s == START_S + 15.5


@pytest.mark.parametrize("late_s", [0, 3])
def test_a_lapsed_lease_is_refused_at_registration(bench: Bench, late_s: float) -> None:
    """The work must not begin; the error says what to do."""
    [delivery] = bench.receive()
    bench.time.advance(8 + late_s)
    with pytest.raises(LeaseLost, match="before it was registered") as caught:
        bench.manager.keep(bench.queue, delivery, asked_at_s=START_S)
    assert (caught.value.kind, caught.value.message_id) == ("lapsed", delivery.message_id)
    assert bench.manager.held == 0
    assert bench.manager.counts.losses == {"lapsed": 1}


def test_an_expired_message_is_refused_at_registration(bench: Bench) -> None:
    """With the error for that."""
    bench.queue.put([Outgoing(body="x", time_to_live_s=5)])
    [delivery] = bench.queue.receive(1, visibility_timeout_s=8)
    bench.time.advance(6)
    with pytest.raises(MessageExpired):
        bench.manager.keep(bench.queue, delivery, asked_at_s=START_S)


def test_after_a_wait_the_lease_is_counted_from_the_answer(bench: Bench) -> None:
    """A message that came late in a long poll has its whole lease, less a little."""
    asked_at_s = bench.time.monotonic_s()
    bench.time.advance(19)
    [delivery] = bench.receive()
    held = bench.manager.keep(bench.queue, delivery, asked_at_s=asked_at_s, wait_s=20)
    assert START_S + 19 + 7 < held.deadline_s <= START_S + 19 + 8


def test_a_wait_cannot_have_been_longer_than_it_was(bench: Bench) -> None:
    """An answer that took much longer than that was late itself."""
    [delivery] = bench.receive()
    bench.time.advance(7)
    held = bench.manager.keep(bench.queue, delivery, asked_at_s=START_S, wait_s=2)
    assert held.deadline_s == START_S + 2 + 8
