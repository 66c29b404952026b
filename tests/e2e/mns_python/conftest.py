"""A server on a clock that the tests move, and the SDK aimed at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from mns.account import Account
from mns.queue import QueueMeta

from leasehold.server.settings import AccessKeyPair, Secret
from leasehold.testing import InProcessServer

KEY_ID = "LTAI5tExampleExample1234"
SECRET = "a-secret-of-thirty-characters-"


@pytest.fixture(scope="session")
def server() -> Iterator[InProcessServer]:
    """A server whose clock stands still."""
    keys = AccessKeyPair(key_id=KEY_ID, secret=Secret(SECRET.encode()), account="devstoreaccount1")
    with InProcessServer(mns_keys=(keys,)) as started:
        yield started


@pytest.fixture
def account(server: InProcessServer) -> Iterator[Any]:
    """The SDK's object for the development account."""
    made = Account(server.mns_url, server.account, server.key)
    yield made
    made.get_client().close_connection()


@pytest.fixture
def second(server: InProcessServer) -> Iterator[Any]:
    """Another one, with a connection of its own for another thread."""
    made = Account(server.mns_url, server.account, server.key)
    yield made
    made.get_client().close_connection()


@pytest.fixture
def new_queue(account: Any) -> Callable[..., Any]:
    """Makes a queue with a name of its own; the arguments are attributes."""

    def make(**attributes: object) -> Any:
        queue = account.get_queue(f"q-{uuid4().hex}")
        queue.create(meta(**attributes))
        return queue

    return make


@pytest.fixture
def queue(new_queue: Callable[..., Any]) -> Any:
    """A queue with all defaults."""
    return new_queue()


def meta(**attributes: object) -> Any:
    """Return the SDK's object for attributes of a queue, with some of them set."""
    made = QueueMeta()
    for name, value in attributes.items():
        assert hasattr(made, name), name
        setattr(made, name, value)
    return made
