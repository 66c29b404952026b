"""Queues and the account: what is made, listed and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from leasehold.domain.commands import GetQueue
from leasehold.domain.errors import QueueNotFound, StoreFailed
from leasehold.http.requests import Response
from tests.unit.http.mns.support import SPACE, Whole, error_of, root_of, texts

TIMEOUT = b"<Queue><VisibilityTimeout>%d</VisibilityTimeout></Queue>"


def listed(mns: Whole) -> Response:
    """List queues with their attributes, several of which are asked for at once."""
    request = mns.request("GET", "/queues", headers={"x-mns-with-meta": "true"})
    return asyncio.run(mns.dialect.handle(request))


def test_a_queue_is_made_again_as_it_is(mns: Whole) -> None:
    """What is sent must be what it has; what is not sent may be anything."""
    assert mns.ask("PUT", "/queues/r", TIMEOUT % 5).status == 201
    assert mns.ask("PUT", "/queues/r", TIMEOUT % 5).status == 204
    assert mns.ask("PUT", "/queues/r").status == 204
    assert error_of(mns.ask("PUT", "/queues/r", TIMEOUT % 6)) == (409, "QueueAlreadyExist")
    assert texts(root_of(mns.ask("GET", "/queues/r")))["VisibilityTimeout"] == "5"


def test_queues_are_listed_with_their_attributes(mns: Whole) -> None:
    """Where they are asked for; a name that no queue can have is no place to go on from."""
    mns.ask("PUT", "/queues/r", TIMEOUT % 5)
    whole = [texts(each) for each in root_of(listed(mns))]
    assert [(each["QueueName"], each["VisibilityTimeout"]) for each in whole] == [
        ("q", "30"),
        ("r", "5"),
    ]
    assert all(each["QueueURL"].endswith(f"/queues/{each['QueueName']}") for each in whole)
    plain = root_of(mns.ask("GET", "/queues", headers={"x-mns-marker": "r"}))
    assert [[*texts(each)] for each in plain] == [["QueueURL"]]
    refused = mns.ask("GET", "/queues", headers={"x-mns-marker": "a/b"})
    assert error_of(refused) == (400, "InvalidArgument")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (QueueNotFound(), lambda response: [*root_of(response)] == []),
        (StoreFailed(), lambda response: error_of(response) == (500, "InternalServerError")),
    ],
)
def test_a_queue_that_cannot_be_looked_at(
    mns: Whole, error: Exception, told: Callable[[Response], bool]
) -> None:
    """One that was deleted meanwhile is left out; what else goes wrong is told."""
    mns.refusal, mns.refused = error, GetQueue
    assert told(listed(mns))


def test_the_account_keeps_the_name_of_a_bucket(mns: Whole) -> None:
    """It stays if it is not sent, and has a longest."""
    path = "/?accountmeta=true"

    def bucket() -> str:
        response = mns.ask("GET", path)
        root = root_of(response)
        assert (response.status, root.tag) == (200, f"{SPACE}Account")
        return texts(root)["LoggingBucket"]

    def keep(inner: str) -> Response:
        return mns.ask("PUT", path, f"<Account>{inner}</Account>".encode())

    assert bucket() == ""
    assert keep("<LoggingBucket>logs</LoggingBucket>").status == 204
    assert keep("").status == 204
    assert bucket() == "logs"
    assert keep(f"<LoggingBucket>{'x' * 256}</LoggingBucket>").status == 204
    too_long = keep(f"<LoggingBucket>{'y' * 257}</LoggingBucket>")
    assert error_of(too_long) == (400, "InvalidArgument")
    assert bucket() == "x" * 256
