"""From an address to a resource and an operation; nothing here is secret.

Source: MNS, "Endpoint" and the pages of the operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from leasehold.http.mns.errors import Fault
from leasehold.http.percent import percent_decode

_HOST_CHARS: Final = 300
"""Longer than any host with a port (RFC 1035, section 2.3.4); what is longer is not remembered."""
_PATH_CHARS: Final = 300
"""As long as the path of the longest name; what is longer is not remembered."""


class Kind(Enum):
    """What an address names."""

    ACCOUNT = "account"
    QUEUES = "queues"
    QUEUE = "queue"
    MESSAGES = "messages"


class Operation(StrEnum):
    """What a request wants to do; also its name in the metrics."""

    CREATE_QUEUE = "mns-create-queue"
    SET_QUEUE_ATTRIBUTES = "mns-set-queue-attributes"
    GET_QUEUE_ATTRIBUTES = "mns-get-queue-attributes"
    DELETE_QUEUE = "mns-delete-queue"
    LIST_QUEUE = "mns-list-queue"
    SEND_MESSAGE = "mns-send-message"
    BATCH_SEND_MESSAGE = "mns-batch-send-message"
    RECEIVE_MESSAGE = "mns-receive-message"
    BATCH_RECEIVE_MESSAGE = "mns-batch-receive-message"
    PEEK_MESSAGE = "mns-peek-message"
    BATCH_PEEK_MESSAGE = "mns-batch-peek-message"
    DELETE_MESSAGE = "mns-delete-message"
    BATCH_DELETE_MESSAGE = "mns-batch-delete-message"
    CHANGE_MESSAGE_VISIBILITY = "mns-change-message-visibility"
    GET_ACCOUNT_ATTRIBUTES = "mns-get-account-attributes"
    SET_ACCOUNT_ATTRIBUTES = "mns-set-account-attributes"


class Route(NamedTuple):
    """What an address names, percent-decoded once. The name is not checked yet."""

    kind: Kind
    queue: str = ""


_ACCOUNT: Final = Route(Kind.ACCOUNT)
_QUEUES: Final = Route(Kind.QUEUES)
_PARTS: Final = {
    Kind.QUEUE: 3,
    Kind.MESSAGES: 4,
}


def find_route(raw_path: str) -> Route:
    """Find what *raw_path*, still percent-encoded, names. One slash at its end does not matter.

    Raises:
        Fault: It is no address of this protocol, or its encoding is broken.
    """
    return _known_route(raw_path) if len(raw_path) <= _PATH_CHARS else _find_route(raw_path)


def _find_route(raw_path: str) -> Route:
    parts = raw_path.split("/")
    if "%" in raw_path or not raw_path.isascii():
        try:
            parts = [percent_decode(part) for part in parts]
        except ValueError:
            raise Fault("InvalidRequestURL") from None
    if len(parts) > 1 and not parts[-1]:
        del parts[-1]
    length = len(parts)
    if parts == [""]:
        return _ACCOUNT
    if not parts[0] and length > 1 and parts[1] == "queues":
        if length == _PARTS[Kind.MESSAGES] and parts[3] == "messages":
            return Route(Kind.MESSAGES, parts[2])
        if length == _PARTS[Kind.QUEUE]:
            return Route(Kind.QUEUE, parts[2])
        if length == 2:  # noqa: PLR2004 - the queues themselves
            return _QUEUES
    raise Fault("InvalidRequestURL")


# Clients name the same few places over and over.
_known_route = lru_cache(maxsize=1024)(_find_route)


def operation_of(
    kind: Kind, method: str, params: Mapping[str, str], *, has_body: bool
) -> Operation:
    """Return the operation that a request asks for.

    Whether a send is one of a batch shows in its body only; SEND_MESSAGE stands for both here.

    Raises:
        Fault: The resource has no such operation.
    """
    if kind is Kind.MESSAGES:
        operation = _on_messages(method, params, has_body=has_body)
    elif kind is Kind.QUEUE:
        operation = _on_queue(method, params)
    elif kind is Kind.QUEUES:
        operation = Operation.LIST_QUEUE if method == "GET" else None
    else:
        operation = _on_account(method) if "accountmeta" in params else None
    if operation is None:
        raise Fault("InvalidRequestURL")
    return operation


def _on_messages(method: str, params: Mapping[str, str], *, has_body: bool) -> Operation | None:
    if method == "GET":
        is_batch = "numofmessages" in params
        if params.get("peekonly", "").lower() == "true":
            return Operation.BATCH_PEEK_MESSAGE if is_batch else Operation.PEEK_MESSAGE
        return Operation.BATCH_RECEIVE_MESSAGE if is_batch else Operation.RECEIVE_MESSAGE
    if method == "POST":
        return Operation.SEND_MESSAGE
    if method == "DELETE":
        is_batch = has_body and "receipthandle" not in params
        return Operation.BATCH_DELETE_MESSAGE if is_batch else Operation.DELETE_MESSAGE
    return Operation.CHANGE_MESSAGE_VISIBILITY if method == "PUT" else None


def _on_queue(method: str, params: Mapping[str, str]) -> Operation | None:
    if method == "PUT":
        overrides = params.get("metaoverride", "").lower() == "true"
        return Operation.SET_QUEUE_ATTRIBUTES if overrides else Operation.CREATE_QUEUE
    if method == "GET":
        return Operation.GET_QUEUE_ATTRIBUTES
    return Operation.DELETE_QUEUE if method == "DELETE" else None


def _on_account(method: str) -> Operation | None:
    if method == "GET":
        return Operation.GET_ACCOUNT_ATTRIBUTES
    return Operation.SET_ACCOUNT_ATTRIBUTES if method == "PUT" else None


def account_of_host(host: str) -> str:
    """Return what may be an account in a host ``{account}.mns.{anything}``, or nothing."""
    return _account_of_host(host) if len(host) <= _HOST_CHARS else ""


@lru_cache(maxsize=256)
def _account_of_host(host: str) -> str:
    label, _, suffix = host.lower().partition(".")
    return label if suffix.partition(".")[0].partition(":")[0] == "mns" else ""
