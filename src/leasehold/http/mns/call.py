"""One request on its way through the dialect, and the answers made for it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import Enum, StrEnum
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from leasehold.domain.limits import check_range
from leasehold.domain.model import Queue
from leasehold.http.app import BaseCall, RequestIds
from leasehold.http.mns.errors import Fault, invalid_argument
from leasehold.http.mns.xml import document, element
from leasehold.http.requests import (
    MAX_INTEGER_CHARS,
    Header,
    Response,
    percent_decode,
)
from leasehold.http.xml import Element

VERSION: Final = "2015-06-06"

_CONTENT_TYPE: Final = (b"Content-Type", b"text/xml;charset=utf-8")
_VERSION: Final = (b"x-mns-version", VERSION.encode())
# Python's SDK looks this one up in lower case, so it must be spelled so.
_REQUEST_ID: Final = b"x-mns-request-id"
_HOST: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")


def request_ids(entropy: bytes | None = None) -> RequestIds:
    """Return ids of the form that the service uses: 24 hexadecimal digits in upper case.

    The first eight digits count, the rest is drawn once per process.
    """
    drawn = (os.urandom(12) if entropy is None else entropy).hex().upper()
    return RequestIds(b"%08X" + drawn[:16].encode(), int(drawn[16:], 16))


class Call(BaseCall):
    """What is known so far about a request. The dialect fills it in, stage by stage."""

    __slots__ = (
        "entered",
        "found",
        "params",
        "root",
        "route",
    )
    route: Route
    """Set before any operation reads its request."""
    entered: Operation
    """What is wanted, once the credentials have been found good."""

    def __init__(self) -> None:
        self.params: Params = {}
        self.account = ""
        self.found: Queue | None = None
        """The queue as it was when the request came, if it was there; for its defaults."""
        self.root: Element | None = None
        """The document in the body, if it was too long to be read at once."""
        self.operation = "mns-unknown"

    @property
    def origin(self) -> str:
        """Scheme, host and port that the client knows the server by."""
        host = self.request.headers.get("host", "")
        scheme = "https" if self.request.https else "http"
        return f"{scheme}://{host if _HOST.fullmatch(host) else 'localhost'}"

    def reply(self, status: int, *extra: Header) -> Response:
        """Return an answer without a body."""
        return Response(status, [(_REQUEST_ID, self.request_id), _VERSION, *extra])

    def reply_xml(self, status: int, content: bytes, *extra: Header) -> Response:
        """Return an answer with a document."""
        headers = [(_REQUEST_ID, self.request_id), _VERSION, _CONTENT_TYPE, *extra]
        return Response(status, headers, content)

    def reply_fault(self, fault: Fault) -> Response:
        """Return an error; clients insist on all four of its elements."""
        content = document(
            b"Error",
            element("Code", fault.code),
            element("Message", fault.message),
            element("RequestId", self.request_id.decode("ascii")),
            element("HostId", self.origin),
        )
        return self.reply_xml(fault.status, content, *fault.headers)


# --- routing -----------------------------------------------------------------------------------
#
# From an address to a resource and an operation; nothing here is secret.
#
# Source: MNS, "Endpoint" and the pages of the operations.


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


# --- parameters --------------------------------------------------------------------------------
#
# The query of a request, and numbers in it or in a document: read strictly.


Params: TypeAlias = Mapping[str, str]


def parse_query(raw: str) -> dict[str, str]:
    """Take a query string apart, by lower-case name: clients differ in the case.

    A plus stays a plus: clients send receipt handles as they are. The values of a repeated name are
    joined with a comma, so that none of them is silently preferred.

    Raises:
        Fault: It is not ASCII, or its percent-encoding is broken.
    """
    params: dict[str, str] = {}
    if not raw:
        return params
    try:
        for part in raw.split("&"):
            name, _, value = part.partition("=")
            if "%" in part or not part.isascii():
                name, value = percent_decode(name), percent_decode(value)
            key = name.lower()
            params[key] = f"{params[key]},{value}" if key in params else value
    except ValueError:
        raise Fault("InvalidQueryString") from None
    return params


def whole_number(name: str, text: str, bounds: tuple[int, int]) -> int:
    """Read a whole number.

    Raises:
        Fault: It is none.
        OutOfRange: It is outside *bounds*.
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(text) <= MAX_INTEGER_CHARS):
        raise invalid_argument(f"The value of {name} must be a whole number.")
    value = int(text)
    check_range(name, value, bounds)
    return value
