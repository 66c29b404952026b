"""A dialect between a fake store and a fake authenticator, and requests to put to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar
from xml.etree import ElementTree as ET

from leasehold.auth.authenticator import CredentialKind, Grant
from leasehold.auth.types import Account, AuthError, SignedRequest, Target
from leasehold.domain.command import AnyCommand
from leasehold.domain.commands import (
    DONE,
    AccountDocument,
    Clear,
    Complete,
    CreateQueue,
    DeleteQueue,
    GetAccountDocument,
    GetQueue,
    ListQueues,
    Peek,
    Put,
    QueueCreated,
    QueueInfo,
    QueuePage,
    Receive,
    Renew,
    Result,
    SetAccountDocument,
    SetQueueMetadata,
    SetQueuePolicies,
)
from leasehold.domain.model import Lease, Message, Queue
from leasehold.http.azure import AzureDialect
from leasehold.http.requests import Request, Response
from leasehold.http.xml import PORTION_BYTES
from leasehold.testing import ManualClock

ACCOUNT = "devstoreaccount1"
ACTOR = "oidc:user"
"""Who asks, as the event log calls it."""
VERSION = "2026-10-06"
BOM = b"\xef\xbb\xbf"
MESSAGE_ID = "00000000-0001-8abc-8def-0123456789ab"
RECEIPT = "A" * 36
MESSAGES = f"/{ACCOUNT}/orders/messages"
MESSAGE = f"{MESSAGES}/{MESSAGE_ID}"

_T = TypeVar("_T")


def run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never waits, without the cost of an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: _T = end.value
        return value
    raise AssertionError("the coroutine waits for something")


def message_xml(text: str) -> bytes:
    """Write a request body; *text* is XML already."""
    return f"<QueueMessage><MessageText>{text}</MessageText></QueueMessage>".encode()


def make_request(
    method: str,
    path: str,
    query: str = "",
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    version: str | None = VERSION,
    too_large: bool = False,
    https: bool = False,
) -> Request:
    """Build a request as the server hands it over; a body gets its length."""
    sent = {"host": "127.0.0.1:10001"}
    if version is not None:
        sent["x-ms-version"] = version
    if body or method in ("PUT", "POST"):
        sent["content-length"] = str(len(body))
    sent.update(headers or {})
    return Request(
        method=method,
        raw_path=path,
        raw_query=query,
        headers=sent,
        body=body,
        body_too_large=too_large,
        client_ip="127.0.0.1",
        https=https,
        has_body=bool(body),
    )


class FakeAuthenticator:
    """Lets everything pass, unless told what to raise."""

    def __init__(self) -> None:
        self.refusal: AuthError | None = None
        self.seen: list[tuple[SignedRequest, Target]] = []
        self.grant = Grant(
            kind=CredentialKind.BEARER, account=ACCOUNT, object_id="user", tenant_id="tenant"
        )
        self.bearer_calls = 0

    def check(self, request: SignedRequest, target: Target, *, now_ms: int) -> Grant:
        """See :class:`leasehold.http.app.SignatureAuthorizer`."""
        self.seen.append((request, target))
        if self.refusal is not None:
            raise self.refusal
        return self.grant

    async def check_bearer(self, request: SignedRequest, target: Target, *, now_ms: int) -> Grant:
        """See :class:`leasehold.http.app.SignatureAuthorizer`."""
        self.bearer_calls += 1
        return self.check(request, target, now_ms=now_ms)


class Harness:
    """The dialect under test, and what went in and out of it."""

    def __init__(self, *, accepts_late: bool = False) -> None:
        self.clock = ManualClock()
        self.authenticator = FakeAuthenticator()
        self.commands: list[AnyCommand] = []
        self.documents: dict[str, str] = {}
        self.document_reads = 0
        self.observed: list[tuple[str, int]] = []
        self.results: dict[type, Result | Exception] = {}
        names = (ACCOUNT, "other", "with-secondary")
        self.dialect = AzureDialect(
            perform=self.perform,
            authenticator=self.authenticator,
            clock=self.clock,
            accounts={
                name: Account(name=name, keys=(b"key of " + name.encode(),)) for name in names
            },
            accepts_late=accepts_late,
            authorization_uri="https://login.example/common/oauth2/authorize",
            observe=lambda operation, status: self.observed.append((operation, status)),
        )

    async def perform(self, command: AnyCommand) -> Any:
        """Stand for the engine: give the result told for the command's type, or a plain one."""
        if isinstance(command, GetAccountDocument | SetAccountDocument):
            return self._document(command)
        self.commands.append(command)
        result = self.results.get(type(command))
        if result is None:
            result = _ANSWERS[type(command)](self)
        if isinstance(result, Exception):
            raise result
        return result

    def _document(self, command: GetAccountDocument | SetAccountDocument) -> Result:
        told = self.results.get(type(command))
        if isinstance(told, Exception):
            raise told
        if isinstance(command, SetAccountDocument):
            self.documents[command.account] = command.content
            return DONE
        self.document_reads += 1
        return AccountDocument(self.documents.get(command.account))

    @property
    def command(self) -> AnyCommand:
        """The one command that was performed."""
        [command] = self.commands
        return command

    def message(self, body: bytes = b"text", **fields: Any) -> Message:
        """Build a message put now, leased for 30 s, that lives for an hour."""
        now_ms = self.clock.now_ms()
        values: dict[str, Any] = {
            "message_id": MESSAGE_ID,
            "inserted_at_ms": now_ms,
            "expires_at_ms": now_ms + 3_600_000,
            "visible_at_ms": now_ms + 30_000,
            "dequeue_count": 1,
        }
        return Message(body=body, **{**values, **fields})

    def lease(self, body: bytes = b"text", **fields: Any) -> Lease:
        """Build a lease of such a message."""
        return Lease(message=self.message(body, **fields), receipt=RECEIPT)

    def handle(self, request: Request) -> Response:
        """Put a request to the dialect; long bodies are read in portions, between others' turns."""
        handling = self.dialect.handle(request)
        return asyncio.run(handling) if len(request.body) > PORTION_BYTES else run(handling)

    def send(self, method: str, path: str, query: str = "", **options: Any) -> Response:
        """Build a request (see :func:`make_request`) and put it to the dialect."""
        return self.handle(make_request(method, path, query, **options))


_ANSWERS: dict[type, Callable[[Harness], Result]] = {
    CreateQueue: lambda _: QueueCreated(created=True),
    DeleteQueue: lambda _: DONE,
    GetQueue: lambda _: QueueInfo(queue=Queue(account=ACCOUNT, name="orders"), message_count=3),
    SetQueueMetadata: lambda _: DONE,
    SetQueuePolicies: lambda _: DONE,
    ListQueues: lambda _: QueuePage(queues=(), next_start=None),
    Put: lambda harness: harness.lease(),
    Receive: lambda harness: (harness.lease(),),
    Peek: lambda harness: (harness.message(),),
    Renew: lambda harness: harness.lease(),
    Complete: lambda _: DONE,
    Clear: lambda _: DONE,
}


def header(response: Response, name: str) -> str | None:
    """Return a header of an answer; it must not be there twice."""
    values = [value.decode("latin-1") for key, value in response.headers if key == name.encode()]
    assert len(values) <= 1
    return values[0] if values else None


def root_of(response: Response) -> ET.Element:
    """Parse the body of an answer, which must begin as the service's bodies do."""
    assert response.body.startswith(BOM + b'<?xml version="1.0" encoding="utf-8"?><')
    assert header(response, "content-type") == "application/xml"
    return ET.fromstring(response.body.removeprefix(BOM))


def error_of(response: Response) -> tuple[int, str, dict[str, str]]:
    """Return status, code and details of an error, whose form is checked."""
    root = root_of(response)
    assert root.tag == "Error"
    code, message, *details = root
    assert (code.tag, message.tag) == ("Code", "Message")
    _, request_id, time = (message.text or "").split("\n")
    assert request_id == f"RequestId:{header(response, 'x-ms-request-id')}"
    assert time.startswith("Time:")
    assert time.endswith("0000Z")
    assert header(response, "x-ms-error-code") in (None, code.text)
    return response.status, code.text or "", {node.tag: node.text or "" for node in details}
