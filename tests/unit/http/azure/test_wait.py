"""Get Messages that waits: our own parameter, which the service does not have."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.auth.types import Account
from leasehold.domain.commands import Receive
from leasehold.domain.errors import QueueNotFound
from leasehold.domain.model import Lease
from leasehold.http.azure import AzureDialect
from tests.unit.http.azure.support import (
    ACCOUNT,
    MESSAGES,
    Harness,
    error_of,
    make_request,
    root_of,
)


class Waiting(Harness):
    """A dialect whose receives may wait, and what they were asked."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[Receive, float]] = []
        self.gone: list[Any] = []
        self.answer: tuple[Lease, ...] = ()
        self.error: Exception | None = None
        self.dialect = AzureDialect(
            perform=self.perform,
            receive=self.receive,
            authenticator=self.authenticator,
            clock=self.clock,
            accounts={ACCOUNT: Account(name=ACCOUNT, keys=(b"key",))},
        )

    async def receive(
        self, command: Receive, wait_s: float, gone: object = None
    ) -> tuple[Lease, ...]:
        """Stand for the admission."""
        self.waits.append((command, wait_s))
        self.gone.append(gone)
        if self.error:
            raise self.error
        return self.answer


@pytest.fixture
def harness() -> Waiting:
    """A dialect whose receives may wait."""
    return Waiting()


@pytest.mark.parametrize(
    ("query", "wait_s"),
    [
        ("wait=1", 1),
        ("waitseconds=60", 60),
        ("Wait=60", 60),
        ("WAITSECONDS=5", 5),
        ("wait=20&timeout=5", 5),
        ("wait=5&timeout=20", 5),
        ("wait=60&timeout=90", 30),
        ("wait=3&waitseconds=9", 3),
    ],
)
def test_wait_is_asked_of_the_engine(harness: Waiting, query: str, wait_s: int) -> None:
    """The wait goes to the engine, never longer than the client's own timeout."""
    harness.answer = (harness.lease(),)
    request = make_request("GET", MESSAGES, f"{query}&numofmessages=3&visibilitytimeout=7")
    response = harness.handle(request)
    [(command, waited_s)] = harness.waits
    assert command._replace(holder=None) == Receive(ACCOUNT, "orders", 3, 7)
    assert waited_s == wait_s
    assert harness.gone == [request.gone]
    assert len(root_of(response)) == 1
    assert not [each for each in harness.commands if isinstance(each, Receive)]


@pytest.mark.parametrize(
    "query", ["", "wait=", "wait=0", "waitseconds=0", "wait=9&timeout=0", "wait=0&waitseconds="]
)
def test_without_a_wait_nothing_waits(harness: Waiting, query: str) -> None:
    """As the service: the answer comes at once."""
    assert harness.send("GET", MESSAGES, query).status == 200
    assert harness.waits == []
    assert type(harness.command) is Receive


def test_nothing_came(harness: Waiting) -> None:
    """A wait in vain has the answer of an empty queue."""
    response = harness.send("GET", MESSAGES, "wait=1")
    assert response.status == 200
    assert len(root_of(response)) == 0


def test_the_queue_went_away(harness: Waiting) -> None:
    """What ends the wait with an error is told as ever."""
    harness.error = QueueNotFound()
    assert error_of(harness.send("GET", MESSAGES, "wait=1"))[:2] == (404, "QueueNotFound")


@pytest.mark.parametrize("name", ["wait", "waitseconds"])
@pytest.mark.parametrize("value", ["61", "-1", "600"])
def test_wait_out_of_range(harness: Waiting, name: str, value: str) -> None:
    """0 to 60 seconds; the answer names the parameter and the bounds."""
    status, code, details = error_of(harness.send("GET", MESSAGES, f"{name}={value}"))
    assert (status, code) == (400, "OutOfRangeQueryParameterValue")
    assert details == {
        "QueryParameterName": name,
        "QueryParameterValue": value,
        "MinimumAllowed": "0",
        "MaximumAllowed": "60",
    }
    assert not harness.waits
    assert not harness.commands


@pytest.mark.parametrize("value", ["soon", "1.5", "1,2"])
def test_wait_is_a_whole_number(harness: Waiting, value: str) -> None:
    """Anything else is refused."""
    assert error_of(harness.send("GET", MESSAGES, f"wait={value}"))[1] == (
        "InvalidQueryParameterValue"
    )


def test_peeks_do_not_wait(harness: Waiting) -> None:
    """Only who takes a message can wait for one."""
    assert harness.send("GET", MESSAGES, "peekonly=true&wait=61").status == 200
    assert harness.waits == []


def test_a_dialect_that_cannot_wait_does_not(harness: Waiting) -> None:
    """Without an engine that waits the parameter is one of those that mean nothing."""
    plain = Harness()
    assert plain.send("GET", MESSAGES, "wait=5").status == 200
    assert type(plain.command) is Receive
