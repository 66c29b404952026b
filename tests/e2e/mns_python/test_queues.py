"""Queues and their attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from mns.account import AccountMeta
from mns.queue import Message

from leasehold.testing import InProcessServer
from tests.e2e.mns_python.conftest import meta
from tests.e2e.mns_python.support import refused

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning")
"""The SDK warns of the counts, which its own methods read."""

DEFAULTS = {
    "visibility_timeout": 30,
    "maximum_message_size": 65_536,
    "message_retention_period": 345_600,
    "delay_seconds": 0,
    "polling_wait_seconds": 0,
    "logging_enabled": False,
}
CHOSEN = {
    "visibility_timeout": 100,
    "maximum_message_size": 10_240,
    "message_retention_period": 3_600,
    "delay_seconds": 10,
    "polling_wait_seconds": 20,
    "logging_enabled": True,
}


def shown(queue: Any) -> dict[str, Any]:
    """Return the attributes that can be set."""
    found = queue.get_attributes()
    return {name: getattr(found, name) for name in DEFAULTS}


def counts(queue: Any) -> tuple[int, int, int]:
    """Return how many messages are active, inactive and delayed."""
    found = queue.get_attributes()
    return found._active_messages, found._inactive_messages, found._delay_messages


def test_a_queue_has_the_defaults_of_the_service(queue: Any) -> None:
    """Nothing was sent, so everything is as documented."""
    assert shown(queue) == DEFAULTS


def test_a_queue_has_the_attributes_it_was_made_with(
    new_queue: Callable[..., Any], server: InProcessServer
) -> None:
    """All six are kept; the times are whole seconds."""
    queue = new_queue(**CHOSEN)
    assert shown(queue) == CHOSEN
    found = queue.get_attributes()
    assert found.queue_name == queue.queue_name
    assert found.create_time == found.last_modify_time == server.now_ms() // 1000


def test_creating_gives_the_address(account: Any, server: InProcessServer) -> None:
    """It is where the queue is, and the same the second time."""
    queue = account.get_queue("addressed")
    assert queue.create(meta()) == f"{server.mns_url}/queues/addressed"
    assert queue.create(meta()) == f"{server.mns_url}/queues/addressed"


@pytest.mark.parametrize("name", ["a", "Upper", "9", "a--b", "trailing-", "x" * 256])
def test_names_that_the_service_takes(account: Any, name: str) -> None:
    """More than Azure's: capitals, one character, many, dashes anywhere but at the beginning."""
    queue = account.get_queue(name)
    queue.create(meta())
    queue.send_message(Message("x"))
    assert queue.get_attributes().queue_name == name
    queue.delete()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("x" * 257, "QueueNameLengthError"),
        ("-a", "InvalidQueueName"),
        ("a_b", "InvalidQueueName"),
        ("a.b", "InvalidQueueName"),
    ],
)
def test_names_that_it_does_not_take(account: Any, name: str, code: str) -> None:
    """The length and the characters are told apart."""
    with refused(code):
        account.get_queue(name).create(meta())


def test_creating_again_with_other_attributes_is_a_conflict(
    new_queue: Callable[..., Any],
) -> None:
    """What is sent is compared, and what is left out is not."""
    queue = new_queue(visibility_timeout=60)
    queue.create(meta())
    queue.create(meta(visibility_timeout=60, delay_seconds=0))
    with refused("QueueAlreadyExist"):
        queue.create(meta(visibility_timeout=61))
    assert shown(queue)["visibility_timeout"] == 60


@pytest.mark.parametrize(("name", "value"), CHOSEN.items())
def test_setting_changes_what_is_sent(
    new_queue: Callable[..., Any], server: InProcessServer, name: str, value: object
) -> None:
    """The other attributes stay, and the time of the change shows."""
    queue = new_queue()
    made_s = queue.get_attributes().create_time
    server.advance(5)
    queue.set_attributes(meta(**{name: value}))
    assert shown(queue) == {**DEFAULTS, name: value}
    found = queue.get_attributes()
    assert (found.create_time, found.last_modify_time) == (made_s, made_s + 5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("visibility_timeout", 43_201),
        ("maximum_message_size", 1_023),
        ("maximum_message_size", 65_537),
        ("message_retention_period", 59),
        ("message_retention_period", 1_296_001),
        ("delay_seconds", 604_801),
        ("polling_wait_seconds", 31),
    ],
)
def test_attributes_out_of_range(new_queue: Callable[..., Any], name: str, value: int) -> None:
    """Neither can a queue be made with them, nor can they be set."""
    queue = new_queue()
    with refused("InvalidArgument"):
        new_queue(**{name: value})
    with refused("InvalidArgument"):
        queue.set_attributes(meta(**{name: value}))
    assert shown(queue) == DEFAULTS


def test_deleting_takes_the_messages_along(queue: Any) -> None:
    """A queue of the same name is a new one."""
    queue.send_message(Message("x"))
    queue.delete()
    with refused("QueueNotExist"):
        queue.receive_message()
    queue.create(meta())
    with refused("MessageNotExist"):
        queue.receive_message()


def test_what_is_not_there(account: Any) -> None:
    """Each operation on a queue says that it is missing."""
    queue = account.get_queue("nowhere")
    for ask in (
        queue.get_attributes,
        queue.delete,
        queue.peek_message,
        queue.receive_message,
        lambda: queue.set_attributes(meta()),
        lambda: queue.send_message(Message("x")),
        lambda: queue.batch_send_message([Message("x")]),
        lambda: queue.batch_peek_message(2),
        lambda: queue.batch_receive_message(2),
        lambda: queue.batch_receive_message(2, 1),
        lambda: queue.delete_message(f"{'0' * 32}-{'A' * 36}"),
        lambda: queue.batch_delete_message([f"{'0' * 32}-{'A' * 36}"]),
        lambda: queue.change_message_visibility(f"{'0' * 32}-{'A' * 36}", 5),
    ):
        with refused("QueueNotExist"):
            ask()


def test_listing_goes_page_by_page(account: Any) -> None:
    """By name, those with a prefix, until there is no marker any more."""
    prefix = f"list-{uuid4().hex[:8]}"
    names = [f"{prefix}-{number}" for number in range(5)]
    for name in names:
        account.get_queue(name).create(meta())
    found: list[str] = []
    sizes, marker = [], ""
    while True:
        urls, marker = account.list_queue(prefix, 2, marker)
        sizes.append(len(urls))
        found += [url.rpartition("/")[2] for url in urls]
        if not marker:
            break
    assert found == names
    assert sizes == [2, 2, 1]


def test_a_marker_of_nobody(account: Any) -> None:
    """It is refused, and not taken for the beginning."""
    with refused("InvalidArgument"):
        account.list_queue("", 2, "no marker")


def test_messages_are_counted_by_state(queue: Any, server: InProcessServer) -> None:
    """The figures are exact: active, inactive (leased, or given back with a wait), delayed."""
    for number in range(3):
        queue.send_message(Message(str(number)))
    queue.send_message(Message("later", delay_seconds=60))
    assert counts(queue) == (3, 0, 1)
    received = queue.receive_message()
    queue.receive_message()
    assert counts(queue) == (1, 2, 1)
    queue.delete_message(received.receipt_handle)
    assert counts(queue) == (1, 1, 1)
    server.advance(60)
    assert counts(queue) == (3, 0, 0)


def test_the_bucket_for_logs_is_kept(account: Any) -> None:
    """It is a name and nothing more."""
    account.set_attributes(AccountMeta("logs-of-mine"))
    assert account.get_attributes().logging_bucket == "logs-of-mine"
