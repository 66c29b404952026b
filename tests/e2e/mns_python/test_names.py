"""Names of queues that Azure does not allow, through every door."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.queue import QueueClient, QueueServiceClient
from click.testing import CliRunner
from mns.queue import Message

from leasehold.cli import main
from leasehold.client import Client
from leasehold.testing import InProcessServer
from leasehold.worker.adapters import Fault
from leasehold.worker.adapters.specs import QueueSpec
from tests.e2e.mns_python.conftest import meta

NAMES: Final = ("My-Queue-1", "X", "two--dashes", "Behind-", "Long" + "x" * 252)


@pytest.fixture(params=NAMES)
def odd(request: pytest.FixtureRequest, account: Any) -> Any:
    """A queue of a name that Azure's protocol does not take."""
    queue = account.get_queue(request.param)
    queue.create(meta(visibility_timeout=60))
    yield queue
    queue.delete()


@pytest.fixture
def client(server: InProcessServer) -> Any:
    """The native client."""
    with server.client() as made:
        yield made


@pytest.fixture
def shell(server: InProcessServer) -> Callable[..., list[Any]]:
    """Runs a command and returns the documents that it prints."""

    def run(*words: str) -> list[Any]:
        environment = {"AZURE_STORAGE_CONNECTION_STRING": server.connection_string}
        done = CliRunner().invoke(main, (*words, "--json"), env=environment)
        assert done.exit_code == 0, done.output
        text = done.stdout.lstrip()
        found = []
        while text:  # one document, perhaps in several lines, or one a line
            document, end = json.JSONDecoder().raw_decode(text)
            found.append(document)
            text = text[end:].lstrip()
        return found

    return run


def visible(client: Client, queue: str) -> int:
    """Return how many messages can be received."""
    counts = client.queue(queue).info().counts
    assert counts is not None
    return counts.visible


def poisoned_by(queue: str, client: Client) -> str:
    """Let a message fail into the poison queue; return that queue's name."""
    native = client.queue(queue)
    poison = "Poison-" + queue[:30].rstrip("-")
    policy = {"max_failures": 1, "poison_queue": poison}
    native.update(settings={"failure_policy": policy})
    [leased] = native.receive()
    native.release(leased, outcome="failed", error="no such order")
    return poison


def test_native(odd: Any, client: Client) -> None:
    """Received, seen, explained, poisoned and brought back; then received through MNS again."""
    sent = odd.send_message(Message("x"))
    name = odd.queue_name
    assert name in [each.name for each in client.list_queues()]
    native = client.queue(name)
    assert visible(client, name) == 1
    [seen] = native.inspect()
    assert seen.id.replace("-", "").upper() == sent.message_id
    assert native.explain_message(seen.id).code
    assert native.explain().sentence
    poison = poisoned_by(name, client)
    assert [each.id for each in client.queue(poison).inspect()] == [seen.id]
    assert "poisoned" in [each.type for each in native.trace(seen.id)]
    native.redrive(wait_s=10)
    got = odd.receive_message()
    assert (got.message_id, got.message_body) == (sent.message_id, b"x")
    odd.delete_message(got.receipt_handle)
    client.queue(poison).delete()


def test_command_line(odd: Any, client: Client, shell: Callable[..., list[Any]]) -> None:
    """Every command takes the name as it is."""
    name = odd.queue_name
    shell("send", name, "eA==")
    [shown] = [each for each in shell("queue", "list") if each["name"] == name]
    assert shown["name"] == name
    [info] = shell("queue", "show", name)
    assert info["counts"]["visible"] == 1
    [received] = shell("message", "receive", name)
    [seen] = shell("inspect", name)
    assert (seen["id"], seen["state"]) == (received["id"], "leased")
    [why] = shell("explain", name, seen["id"])
    assert why["code"]
    assert shell("trace", name, seen["id"])
    shell("message", "release", name, received["id"], received["receipt"])
    poison = poisoned_by(name, client)
    shell("redrive", name, "--yes")
    assert odd.receive_message().message_id == seen["id"].replace("-", "").upper()
    shell("queue", "pause", name)
    shell("queue", "resume", name)
    client.queue(poison).delete()


def test_made_and_deleted_natively(client: Client, account: Any) -> None:
    """One rule for all that is not Azure's."""
    client.queue("Made-Here").create()
    account.get_queue("Made-Here").send_message(Message("x"))
    client.queue("Made-Here").delete()


def test_a_poison_queue_without_a_name(odd: Any, client: Client) -> None:
    """It is the name of the queue and a suffix, unless that would be too long."""
    native = client.queue(odd.queue_name)
    if len(odd.queue_name) == 256:
        with pytest.raises(Exception, match="too long for '-poison'"):
            native.update(settings={"failure_policy": {"max_failures": 1}})
        return
    native.update(settings={"failure_policy": {"max_failures": 1}})
    odd.send_message(Message("x"))
    [leased] = native.receive()
    native.release(leased, outcome="failed")
    assert visible(client, f"{odd.queue_name}-poison") == 1
    client.queue(f"{odd.queue_name}-poison").delete()


@pytest.mark.parametrize("service", ["leasehold", "mns"])
def test_workers(odd: Any, server: InProcessServer, service: str, client: Client) -> None:
    """A worker's address of a queue keeps the name, and there is a poison queue for it."""
    odd.send_message(Message("x"))
    url = server.mns_url if service == "mns" else server.client().url
    scheme, _, host = url.partition("://")
    secret = server.key.replace("/", "%2F").replace("+", "%2B").replace("=", "%3D")
    spec = QueueSpec.parse(
        f"{service}+{scheme}://{server.account}:{secret}@{host}/{odd.queue_name}", {}
    )
    queue = spec.open()
    try:
        assert queue.name == odd.queue_name
        [delivery] = queue.receive(1, visibility_timeout_s=60, wait_s=0)
        assert delivery.dequeue_count == 1
        queue.bury(delivery, delivery.receipt, Fault(text="no such order"))
    finally:
        queue.close()
    poison = [each.name for each in client.list_queues() if each.name.endswith("-poison")]
    assert len(poison) == 1
    assert odd.queue_name[:200].startswith(poison[0].removesuffix("-poison")[:200])
    client.queue(poison[0]).delete()


def test_azure_keeps_its_rule(odd: Any, server: InProcessServer) -> None:
    """There the name is refused, and not listed: what is listed can be used."""
    code = "InvalidResourceName" if 3 <= len(odd.queue_name) <= 63 else "OutOfRangeInput"
    with QueueClient.from_connection_string(server.connection_string, odd.queue_name) as queue:
        for ask in (queue.receive_message, queue.get_queue_properties, queue.delete_queue):
            with pytest.raises(HttpResponseError) as caught:
                ask()
            assert caught.value.status_code == 400
            assert getattr(caught.value, "error_code", None) == code
    with QueueServiceClient.from_connection_string(server.connection_string) as service:
        service.create_queue("zz-fine")
        listed = [each.name for each in service.list_queues(results_per_page=1)]
        service.delete_queue("zz-fine")
    assert "zz-fine" in listed
    assert odd.queue_name not in listed
