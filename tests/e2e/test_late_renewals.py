"""Renewals that would end after their message expires, in each protocol and by what is set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import QueueClient as AzureQueueClient
from mns.account import Account
from mns.mns_exception import MNSServerException

from leasehold.client.errors import ServerProblem
from leasehold.client.models import Renewal
from leasehold.testing import InProcessServer


class Holder(NamedTuple):
    """Who holds a message of 100 seconds, by one protocol."""

    renew: Callable[[int], Any]
    """Seconds; returns what completes the message from then on."""
    complete: Callable[[Any], object]
    codes: tuple[str, str]
    """Of the refusal of a renewal, and of a message that is gone."""


@contextmanager
def by_native(server: InProcessServer) -> Iterator[Holder]:
    """Through the native API."""
    with server.client() as client:
        queue = client.queue("orders")
        [lease] = queue.receive(visibility_timeout_s=30)
        codes = ("visibility-past-expiry", "message-not-found")
        yield Holder(lambda s: queue.renew(lease, s), queue.complete, codes)


@contextmanager
def by_commit(server: InProcessServer) -> Iterator[Holder]:
    """Through the native API, as part of a commit."""
    with server.client() as client:
        queue = client.queue("orders")
        [lease] = queue.receive(visibility_timeout_s=30)
        codes = ("visibility-past-expiry", "message-not-found")

        def renew(seconds: int) -> Any:
            [renewed] = client.commit(renew=[Renewal(lease, seconds)]).renewed
            return renewed

        yield Holder(renew, queue.complete, codes)


@contextmanager
def by_azure(server: InProcessServer) -> Iterator[Holder]:
    """Through the official SDK, which speaks a later version than 2011-08-18."""
    with AzureQueueClient.from_connection_string(server.connection_string, "orders") as queue:
        lease = queue.receive_message(visibility_timeout=30)
        assert lease is not None
        yield Holder(
            lambda s: queue.update_message(lease, visibility_timeout=s),
            queue.delete_message,
            ("InvalidQueryParameterValue", "MessageNotFound"),
        )


@contextmanager
def by_mns(server: InProcessServer) -> Iterator[Holder]:
    """Through the SDK of Alibaba Cloud."""
    account = Account(server.mns_url, server.account, server.key)
    queue = account.get_queue("orders")
    lease = queue.receive_message()
    yield Holder(
        lambda s: queue.change_message_visibility(lease.receipt_handle, s),
        lambda changed: queue.delete_message(changed.receipt_handle),
        ("InvalidArgument", "MessageNotExist"),
    )
    account.get_client().close_connection()


each_protocol = pytest.mark.parametrize("hold", [by_native, by_commit, by_azure, by_mns])


def refused(act: Callable[[Any], object], argument: object) -> str:
    """Return the code with which something is refused."""
    try:
        act(argument)
    except ServerProblem as error:
        return error.code
    except HttpResponseError as error:
        return str(error.response.headers["x-ms-error-code"])  # type: ignore[union-attr]
    except MNSServerException as error:
        return str(error.type)
    return "done"


@contextmanager
def held(hold: Any, **settings: Any) -> Iterator[tuple[InProcessServer, Holder]]:
    """Start a server with a message that lives for 100 s, and receive it."""
    with InProcessServer(**settings) as server:
        with server.client() as client:
            client.queue("orders").create()
            client.queue("orders").put("d29yaw==", time_to_live_s=100)  # MNS reads base64
        with hold(server) as holder:
            yield server, holder


@each_protocol
def test_a_renewal_past_expiry_is_refused_unless_set(hold: Any) -> None:
    """It changes nothing: the lease goes on, and can be renewed to the expiry itself."""
    with held(hold) as (_, holder):
        assert refused(holder.renew, 101) == holder.codes[0]
        assert refused(holder.complete, holder.renew(100)) == "done"


@each_protocol
def test_an_option_accepts_it_and_the_expiry_wins(hold: Any) -> None:
    """Until then the message is its holder's, and from then on nobody's."""
    with held(hold, renewals_past_expiry="accept") as (server, holder):
        renewed = holder.renew(500)
        with server.client() as client:
            queue = client.queue("orders")
            server.advance(99)
            assert queue.receive() == []
            server.advance(1)
            assert queue.receive() == []
            assert queue.counts().expired == 1
        assert refused(holder.complete, renewed) == holder.codes[1]


@each_protocol
def test_what_was_renewed_past_expiry_can_be_completed_before(hold: Any) -> None:
    """The receipt of such a renewal is one like any other."""
    with held(hold, renewals_past_expiry="accept") as (server, holder):
        renewed = holder.renew(500)
        server.advance(99)
        assert refused(holder.complete, renewed) == "done"
