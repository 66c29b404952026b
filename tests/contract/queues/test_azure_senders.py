"""Messages of the official SDK in all its encodings, and what its users see of ours."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.storage.queue import (
    AccountSasPermissions,
    BinaryBase64DecodePolicy,
    BinaryBase64EncodePolicy,
    QueueClient,
    QueueServiceClient,
    ResourceTypes,
    TextBase64DecodePolicy,
    TextBase64EncodePolicy,
    generate_account_sas,
)

from leasehold.worker.adapters.azure import AzureQueue
from leasehold.worker.adapters.protocol import Delivery, Fault, Lease, Outgoing, Saved
from tests.contract.queues.azurite import ON_AZURITE

TEXT: Final = '{"order": 7, "to": "Zoë & <Bob>"}'
SENDERS: Final[dict[str, tuple[Any, str | bytes]]] = {
    "plain": (None, TEXT),
    "text-base64": (TextBase64EncodePolicy(), TEXT),
    "binary-base64": (BinaryBase64EncodePolicy(), TEXT.encode()),
}
READERS: Final[dict[str, Any]] = {
    "plain": None,
    "text-base64": TextBase64DecodePolicy(),
    "binary-base64": BinaryBase64DecodePolicy(),
}


class Place:
    """A queue that the SDK and our adapter share."""

    def __init__(self, connection: str) -> None:
        self._connection = connection
        self._name = f"q{uuid4().hex}"
        self.adapter("auto").create()

    def sdk(self, name: str = "", **policies: Any) -> QueueClient:
        """Return the SDK's client."""
        return QueueClient.from_connection_string(self._connection, name or self._name, **policies)

    def adapter(self, encoding: Any, **policies: Any) -> AzureQueue:
        """Return ours."""
        return AzureQueue(self.sdk(**policies), encoding=encoding)

    def receive(self, encoding: Any = "auto", lease_s: int = 1) -> Delivery:
        """Receive the only message."""
        (delivery,) = self.adapter(encoding).receive(2, visibility_timeout_s=lease_s)
        return delivery

    def give_back(self, delivery: Delivery, receipt: str) -> None:
        """Make a message visible."""
        self.sdk().update_message(delivery.message_id, receipt, visibility_timeout=0)


@pytest.fixture(params=["server", pytest.param("azurite", marks=ON_AZURITE)])
def place(request: pytest.FixtureRequest) -> Place:
    """A queue on Leasehold, and one on Azurite."""
    return Place(request.getfixturevalue(request.param).connection_string)


@pytest.mark.parametrize("sender", SENDERS)
def test_the_encoding_is_found_out(place: Place, sender: str) -> None:
    """Whichever policy the sender had, the body is the same."""
    policy, content = SENDERS[sender]
    place.sdk(message_encode_policy=policy).send_message(content)
    assert place.receive().body == TEXT.encode()


@pytest.mark.parametrize("sender", SENDERS)
def test_an_encoding_that_is_said_is_kept_to(place: Place, sender: str) -> None:
    """With "base64" a text that is none is a problem and no guess."""
    policy, content = SENDERS[sender]
    place.sdk(message_encode_policy=policy).send_message(content)
    delivery = place.receive("base64")
    if sender == "plain":
        assert delivery.body == b""
        assert delivery.body_problem is not None
        assert delivery.body_problem.startswith("encoding: ")
    else:
        assert delivery.body == TEXT.encode()
        assert delivery.body_problem is None


def test_what_cannot_be_read_is_buried_as_it_is(place: Place) -> None:
    """The copy of a message with a bad encoding has its text, and the reason."""
    place.sdk().send_message("no base64 at all!")
    adapter = place.adapter("base64")
    delivery = place.receive("base64", 30)
    assert delivery.body_problem is not None
    adapter.bury(delivery, delivery.receipt, Fault(text=delivery.body_problem))
    poison = place.sdk(f"{adapter.name}-poison", message_decode_policy=TextBase64DecodePolicy())
    (copy,) = poison.receive_messages(max_messages=1)
    said = json.loads(copy.content)
    assert said["text"] == "no base64 at all!"
    assert said["reason"].startswith("encoding: ")
    assert said["id"] == delivery.message_id


@pytest.mark.parametrize("sender", SENDERS)
def test_progress_can_be_read_with_the_senders_own_sdk(place: Place, sender: str) -> None:
    """After a save, who reads with the policy that matches the sender's sees body and progress."""
    policy, content = SENDERS[sender]
    place.sdk(message_encode_policy=policy).send_message(content)
    delivery = place.receive(lease_s=30)
    saved = Saved(stage="two", state={"é": "\x85"}, fraction=0.5)
    renewed = place.adapter("auto").save(delivery, delivery.receipt, saved, 30)
    place.give_back(delivery, renewed.receipt)
    if sender == "plain":
        (seen,) = place.sdk(message_decode_policy=READERS[sender]).peek_messages()
        envelope = json.loads(seen.content)
        assert envelope["body"] == TEXT
        assert envelope["saved"]["stage"] == "two"
    again = place.receive()
    assert again.body == TEXT.encode()
    assert again.saved == saved


@pytest.mark.parametrize("sender", ["text-base64", "binary-base64"])
def test_progress_stays_in_base64(place: Place, sender: str) -> None:
    """A message that came in base64 is one after a save, so that its readers do not fail."""
    policy, content = SENDERS[sender]
    place.sdk(message_encode_policy=policy).send_message(content)
    delivery = place.receive(lease_s=30)
    renewed = place.adapter("auto").save(delivery, delivery.receipt, Saved(stage="two"), 30)
    place.give_back(delivery, renewed.receipt)
    (seen,) = place.sdk(message_decode_policy=READERS[sender]).peek_messages()
    assert json.loads(seen.content)["body"] == TEXT


def test_a_client_with_a_decoding_policy_does_no_harm(place: Place) -> None:
    """One text that the user's policy cannot read does not make the receive of others fail."""
    plain = place.sdk()
    plain.send_message("no base64 at all!")
    place.sdk(message_encode_policy=TextBase64EncodePolicy()).send_message("second")
    adapter = place.adapter("auto", message_decode_policy=TextBase64DecodePolicy())
    found = adapter.receive(10, visibility_timeout_s=30)
    assert {each.body for each in found} == {b"no base64 at all!", b"second"}


def test_what_was_put_can_be_read_with_the_plain_sdk(place: Place) -> None:
    """Text goes out as it is, so that a reader without any policy has it."""
    adapter = place.adapter("none")
    adapter.put([Outgoing(body=TEXT)])
    (message,) = place.sdk().receive_messages(max_messages=1)
    assert message.content == TEXT
    assert adapter.complete([Lease(message.id, message.pop_receipt or "")]) == [None]


def test_base64_can_be_chosen_for_what_is_put(place: Place) -> None:
    """With "base64" a reader with the SDK's policy has the text."""
    place.adapter("base64").put([Outgoing(body=TEXT)])
    sdk = place.sdk(message_decode_policy=TextBase64DecodePolicy())
    (message,) = sdk.receive_messages(max_messages=1)
    assert message.content == TEXT


def _clients(connection: str, name: str) -> dict[str, QueueClient]:
    """Return the ways in which users come by a client."""
    service = QueueServiceClient.from_connection_string(connection)
    key = service.credential.account_key
    until = datetime(2099, 1, 1, tzinfo=UTC)
    sas = generate_account_sas(
        str(service.account_name),
        key,
        ResourceTypes(container=True, object=True),
        AccountSasPermissions(
            read=True, write=True, delete=True, add=True, create=True, update=True, process=True
        ),
        until,
    )
    url = service.url.partition("?")[0].rstrip("/")
    named = AzureNamedKeyCredential(str(service.account_name), key)
    return {
        "service": service.get_queue_client(name),
        "sas in the address": QueueClient(f"{url}?{sas}", name),
        "sas beside it": QueueClient(url, name, credential=AzureSasCredential(sas)),
        "named key": QueueClient(url, name, credential=named),
        "queue address": QueueClient.from_queue_url(f"{url}/{name}", credential=key),
    }


@pytest.mark.parametrize(
    "way", ["service", "sas in the address", "sas beside it", "named key", "queue address"]
)
def test_whatever_way_the_client_was_made(way: str, request: pytest.FixtureRequest) -> None:
    """Its credentials serve for the queue and, in the same account, for the poison queue."""
    connection = request.getfixturevalue("server").connection_string
    client = _clients(connection, f"q{uuid4().hex}")[way]
    with client:
        adapter = AzureQueue(client)
        adapter.create()
        assert adapter.put([Outgoing(body=TEXT)]) == [None]
        (delivery,) = adapter.receive(1, visibility_timeout_s=30)
        adapter.bury(delivery, delivery.receipt, Fault(text="bad"))
    poison = QueueClient.from_connection_string(connection, f"{adapter.name}-poison")
    assert len(poison.peek_messages()) == 1
