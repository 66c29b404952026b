"""Contract: several commands as one, each for itself or all or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.errors import (
    LeaseLost,
    NamedTwice,
    NotDone,
    QueueNotFound,
    VisibilityPastExpiry,
)
from leasehold.domain.model import Lease, Outcome
from leasehold.domain.queue_settings import LapsedReceipts

from .conftest import ACCOUNT, POISON, QUEUE, Asker


def together(asker: Asker, *commands: Any, atomic: bool = True) -> tuple[Any, ...]:
    """Carry commands out as one batch."""
    results = asker.ask(c.Batch(commands, atomic))
    assert isinstance(results, tuple)
    assert len(results) == len(commands)
    return results


def kinds(results: tuple[Any, ...]) -> list[str]:
    return [type(result).__name__ for result in results]


def held(asker: Asker, number: int) -> list[Lease]:
    """Put and receive some messages."""
    asker.batch(*(asker.put_command(f"{index}") for index in range(number)))
    leases = asker.receive(number)
    assert len(leases) == number
    return list(leases)


@pytest.mark.parametrize("atomic", [False, True])
def test_a_batch_of_everything_that_may_be_done(asker: Asker, atomic: bool) -> None:
    """Commands of all kinds and queues, mixed; each has its own result, in order."""
    asker.create("other")
    one, two, three, four = held(asker, 4)
    results = together(
        asker,
        asker.put_command("new"),
        asker.complete_command(one),
        asker.put_command("elsewhere", queue="other"),
        asker.renew_command(two, 60),
        asker.release_command(three),
        asker.release_command(four, Outcome.BURIED),
        asker.put_command("newer", delay_s=5),
        atomic=atomic,
    )
    assert kinds(results) == ["Lease", "Done", "Lease", "Lease", "Released", "Released", "Lease"]
    assert results[5].poisoned == "buried"
    assert asker.split() == (2, 1, 1, 0, 1)
    assert asker.received(queue="other") == [b"elsewhere"]
    assert asker.complete(results[3]) == c.DONE
    assert asker.complete(results[0]) == c.DONE


def test_an_empty_batch_is_done(asker: Asker) -> None:
    """There is nothing to refuse."""
    assert together(asker) == ()
    assert together(asker, atomic=False) == ()


def refusals(asker: Asker) -> tuple[list[Any], list[str]]:
    """Return commands of which each is refused, and the names of the refusals."""
    asker.put("late")
    late = asker.receive_one(lease_s=1)
    asker.clock.advance(s=1)
    good = asker.receive_one(lease_s=3600)
    return [
        asker.complete_command(late),
        asker.complete_command(good._replace(receipt="?")),
        asker.renew_command(good, 700_000),
        asker.put_command(delay_s=10, time_to_live_s=10),
        asker.put_command(queue="missing"),
        asker.release_command(good, queue="missing"),
        asker.release_command(good._replace(message=good.message._replace(message_id="x"))),
        asker.release_command(good, delay_s=700_000),
    ], [
        "LeaseLost",
        "ReceiptMalformed",
        "VisibilityPastExpiry",
        "VisibilityPastExpiry",
        "QueueNotFound",
        "QueueNotFound",
        "MessageNotFound",
        "VisibilityPastExpiry",
    ]


def test_each_for_itself_means_that_the_good_ones_are_done(asker: Asker) -> None:
    """The refused ones have their errors."""
    commands, expected = refusals(asker)
    good = held(asker, 2)
    results = together(
        asker,
        asker.complete_command(good[0]),
        *commands,
        asker.put_command("new"),
        asker.complete_command(good[1]),
        atomic=False,
    )
    assert kinds(results) == ["Done", *expected, "Lease", "Done"]
    assert asker.split() == (1, 1, 0, 0, 0)


@pytest.mark.parametrize("index", range(8))
def test_all_or_nothing_means_nothing_if_any_is_refused(asker: Asker, index: int) -> None:
    """The refused one has its error, the others say that nothing was done, and nothing was."""
    commands, expected = refusals(asker)
    leases = held(asker, 3)
    before = asker.inspect().messages
    results = together(
        asker,
        asker.put_command("new"),
        asker.complete_command(leases[0]),
        commands[index],
        asker.renew_command(leases[1], 60),
        asker.release_command(leases[2], Outcome.BURIED),
    )
    assert kinds(results) == ["NotDone", "NotDone", expected[index], "NotDone", "NotDone"]
    assert asker.inspect().messages == before
    assert asker.count() == 4
    assert asker.store.find_queue(ACCOUNT, POISON) is None
    assert asker.complete(leases[0]) == c.DONE


def test_all_that_are_refused_are_told(asker: Asker) -> None:
    """One try shows every error of an all-or-nothing batch."""
    commands, expected = refusals(asker)
    results = together(asker, asker.put_command("new"), *commands)
    assert kinds(results) == ["NotDone", *expected]


@pytest.mark.parametrize("first", ["complete", "renew", "release"])
@pytest.mark.parametrize("second", ["complete", "renew", "release"])
def test_a_message_named_twice_is_refused_in_all_or_nothing(
    asker: Asker, first: str, second: str
) -> None:
    """What the first does would decide on the second, so neither is done."""
    (lease,) = held(asker, 1)
    commands: dict[str, Any] = {
        "complete": asker.complete_command(lease),
        "renew": asker.renew_command(lease, 60),
        "release": asker.release_command(lease),
    }
    results = together(asker, commands[first], commands[second])
    assert kinds(results) == ["NotDone", "NamedTwice"]
    assert isinstance(results[0], NotDone)
    assert isinstance(results[1], NamedTwice)
    assert asker.find(lease).message == lease.message
    assert not isinstance(asker.ask(commands[first]), Exception)


def test_of_two_in_a_plain_batch_the_first_decides(asker: Asker) -> None:
    """Each is judged when its turn comes."""
    (lease,) = held(asker, 1)
    results = together(
        asker,
        asker.renew_command(lease, 60),
        asker.complete_command(lease),
        asker.complete_command(lease),
        atomic=False,
    )
    assert kinds(results) == ["Lease", "LeaseLost", "LeaseLost"]
    assert isinstance(results[1], LeaseLost)
    assert asker.complete(results[0]) == c.DONE


def test_all_or_nothing_takes_a_lapsed_lease_as_the_queue_does(asker: Asker) -> None:
    """Until somebody takes the message its receipt acts; under the strict rule it does not."""
    one, two = held(asker, 2)
    asker.clock.advance(s=30)
    asker.govern(lapsed_receipts=LapsedReceipts.STRICT)
    two = asker.renew(asker.receive(2)[1], 60)
    asker.clock.advance(s=30)
    commands = asker.complete_command(one), asker.complete_command(two)
    assert kinds(together(asker, *commands)) == ["LeaseLost", "NotDone"]
    (one,) = asker.receive(lease_s=1)
    asker.clock.advance(s=1)
    commands = asker.complete_command(one), asker.complete_command(two)
    refused = together(asker, *commands)
    assert kinds(refused) == ["LeaseLost", "NotDone"]
    assert refused[0].reason == "lapsed"
    asker.govern()
    assert together(asker, *commands) == (c.DONE, c.DONE)


def test_batches_of_one_transaction_do_not_disturb_each_other(asker: Asker) -> None:
    """One that is refused leaves the commands around it alone."""
    one, two = held(asker, 2)
    bad = asker.complete_command(two._replace(receipt="?"))
    put, refused, done, count = asker.batch(
        asker.put_command("before"),
        c.Batch((asker.complete_command(one), bad), atomic=True),
        c.Batch((asker.complete_command(one), asker.complete_command(two)), atomic=True),
        o.CountMessages(ACCOUNT, QUEUE),
    )
    assert isinstance(put, Lease)
    assert isinstance(refused, tuple)
    assert kinds(refused) == ["NotDone", "ReceiptMalformed"]
    assert done == (c.DONE, c.DONE)
    assert isinstance(count, o.Counts)
    assert count[:2] == (1, 0)


def test_a_batch_of_refused_puts_says_why(asker: Asker) -> None:
    """The errors are those that each put would have had alone."""
    results = together(
        asker,
        asker.put_command(queue="missing"),
        asker.put_command(delay_s=5, time_to_live_s=5),
        atomic=False,
    )
    assert isinstance(results[0], QueueNotFound)
    assert isinstance(results[1], VisibilityPastExpiry)
    assert asker.count() == 0


def test_a_large_batch_is_one(asker: Asker) -> None:
    """A thousand at once, and one bad one among them undoes all."""
    leases = held(asker, 1000)
    commands = [asker.complete_command(lease) for lease in leases]
    bad = asker.complete_command(leases[500]._replace(receipt=leases[0].receipt))
    results = together(asker, *commands[:500], bad, *commands[501:])
    assert kinds(results).count("NotDone") == 999
    assert asker.count() == 1000
    assert together(asker, *commands) == (c.DONE,) * 1000
    assert asker.count() == 0
