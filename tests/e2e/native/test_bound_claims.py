"""Claims that are settled by publishing, with both clients on a real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from leasehold.client import errors
from leasehold.client.models import (
    BoundClaim,
    ErrorReport,
    Exemption,
    Outgoing,
    StreamSettled,
)
from tests.unit.client.support import Driver


@pytest.fixture
def name() -> str:
    """Name of a transaction that nobody else uses."""
    return f"n-{uuid4().hex}"


@pytest.fixture
def stream(driver: Driver, queue: Any) -> Any:
    """A stream with a claim of five messages."""
    driver.do(queue.put_many(str(number) for number in range(5)))
    made = queue.stream("totals")
    driver.do(made.attach())
    driver.do(made.open(1, limit=5, lease_s=60))
    return made


def test_publishing_settles_a_claim(
    driver: Driver, client: Any, queue: Any, stream: Any, name: str
) -> None:
    """With what was noted of its members, by whoever read them."""
    (_, bad, *_) = driver.do(stream.read(1))
    error = ErrorReport(type="ValueError", text="no such customer")
    noted = driver.do(stream.exempt(1, [Exemption(1, bad.id, "buried", error=error)]))
    assert noted.noted == 1
    assert driver.do(stream.bind(1, name)).transaction == name
    transaction = client.transaction(name)
    driver.do(transaction.stage(["result"], queue=queue.name))
    assert driver.do(transaction.get()).claims == (BoundClaim(queue.name, "totals", 1),)
    published = driver.do(transaction.publish())
    done = StreamSettled(queue=queue.name, stream="totals", last_settled=1, completed=4, exempted=1)
    assert (published.rows, published.already, published.settled) == (1, False, (done,))
    counts = driver.do(queue.counts())
    assert (counts.visible, counts.leased, counts.poisoned) == (1, 0, 1)
    assert driver.do(stream.get()).settled_with == name
    again = driver.do(transaction.publish())
    assert (again.rows, again.already, again.settled) == (1, True, ())
    calls: list[Callable[[], Any]] = [
        lambda: stream.read(1),
        lambda: stream.bind(1, name),
        lambda: stream.open(1, limit=5, lease_s=60),
    ]
    for call in calls:
        with pytest.raises(errors.ClaimSettled) as caught:
            driver.do(call())
        assert (caught.value.last_settled, caught.value.settled_with) == (1, name)


def test_who_is_fenced_publishes_nothing(
    driver: Driver, client: Any, queue: Any, stream: Any, name: str
) -> None:
    """Somebody else has attached; what they do goes on undisturbed."""
    driver.do(stream.bind(1, name))
    transaction = client.transaction(name)
    driver.do(transaction.stage(["result"], queue=queue.name))
    successor = queue.stream("totals")
    driver.do(successor.attach())
    with pytest.raises(errors.StaleToken) as caught:
        driver.do(transaction.publish())
    assert caught.value.token == successor.token
    with pytest.raises(errors.StaleToken):
        driver.do(client.commit(name=name, send=[Outgoing("sent", queue=queue.name)]))
    with pytest.raises(errors.StaleToken):
        driver.do(stream.bind(1, name))
    with pytest.raises(errors.StaleToken):
        driver.do(stream.exempt(1, [Exemption(1, "nobody")]))
    counts = driver.do(queue.counts())
    assert (counts.visible, counts.leased, counts.staged) == (0, 5, 1)
    driver.do(successor.bind(1, name))
    assert driver.do(transaction.publish()).settled[0].completed == 5


def test_a_commit_settles_what_is_bound_to_its_name(
    driver: Driver, client: Any, queue: Any, stream: Any, name: str
) -> None:
    """Nothing has to be staged for it."""
    driver.do(stream.bind(1, name))
    done = driver.do(client.commit(name=name, send=[Outgoing("sent", queue=queue.name)]))
    assert [each.completed for each in done.settled] == [5]
    assert driver.do(queue.counts()).total == 1


def test_a_settling_tells_of_other_streams(
    driver: Driver, client: Any, queue: Any, stream: Any, name: str
) -> None:
    """Those of which claims were bound to what it has published."""
    driver.do(stream.bind(1, name))
    driver.do(queue.put("more"))
    other = queue.stream("other")
    driver.do(other.attach())
    driver.do(other.open(1, limit=1, lease_s=60))
    settled = driver.do(other.settle(1, publish=[name]))
    assert (settled.completed, [each.stream for each in settled.beside]) == (1, ["totals"])
    assert driver.do(client.transaction(name).get()).state == "published"


def test_what_was_noted_can_be_replaced(driver: Driver, stream: Any) -> None:
    """By other notes, or by none."""
    [first, *_] = driver.do(stream.read(1))
    driver.do(stream.exempt(1, [Exemption(1, first.id)]))
    assert driver.do(stream.exempt(1, [], replace=True)).noted == 0
    assert driver.do(stream.settle(1)).exempted == 0


def test_what_cannot_be_noted_or_bound(driver: Driver, stream: Any, name: str) -> None:
    """Each says why."""
    with pytest.raises(errors.MemberNotFound):
        driver.do(stream.exempt(1, [Exemption(1, "nobody", "buried")]))
    with pytest.raises(errors.ClaimNotFound):
        driver.do(stream.bind(2, name))
    with pytest.raises(errors.ServerProblem, match="transaction"):
        driver.do(stream.bind(1, "no name"))
    for exemptions in ([], [Exemption(2, "nobody")]):
        with pytest.raises(ValueError, match="exempt"):
            driver.do(stream.exempt(1, exemptions))
