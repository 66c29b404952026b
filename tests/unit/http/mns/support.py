"""A dialect before a store in memory, and signed requests to put to it."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar
from xml.etree import ElementTree as ET

from leasehold.auth.mns import AccessKey, MnsAuthenticator, MnsRequest, sign_v2, string_to_sign_v2
from leasehold.auth.sharedkey import format_http_date
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError
from leasehold.http.mns import MnsDialect
from leasehold.http.requests import Request, Response
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock

ACCOUNT = "orders"
SECRET = b"secret"
SPACE = "{http://mns.aliyuncs.com/doc/v1}"
MESSAGES = "/queues/q/messages"

_T = TypeVar("_T")


def run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never waits, without the cost of an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: _T = end.value
        return value
    raise AssertionError("the coroutine waits for something")


def message_xml(body: object = "x", **fields: object) -> bytes:
    """Write a message that is to be sent; *body* is XML already."""
    rest = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
    return f"<Message><MessageBody>{body}</MessageBody>{rest}</Message>".encode()


class Whole:
    """A server without HTTP, on which the queue ``q`` is there."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.refusal: Exception | None = None
        self.refused: type[AnyCommand] | None = None
        """Kind of the commands that are met with the refusal; None for all."""
        self.observed: list[tuple[str, int]] = []
        keys = {ACCOUNT: AccessKey(ACCOUNT, (SECRET,)), "other": AccessKey("other", (SECRET,))}
        options.setdefault("authenticator", MnsAuthenticator(keys))
        self.dialect = MnsDialect(
            perform=self.perform,
            clock=self.clock,
            signing_clock=self.clock,
            accounts=frozenset({ACCOUNT, "other"}),
            find_queue=self.store.find_queue,
            observe=lambda operation, status: self.observed.append((operation, status)),
            **options,
        )
        assert self.ask("PUT", "/queues/q").status == 201

    async def perform(self, command: AnyCommand) -> Any:
        """Carry a command out as the engine would."""
        if self.refusal is not None and self.refused in {None, type(command)}:
            raise self.refusal
        [result] = self.store.execute([command], now_ms=self.clock.now_ms())
        self.store.commit()
        if isinstance(result, LeaseholdError):
            raise result
        return result

    def request(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str | None] | None = None,
    ) -> Request:
        """Return a signed request; a header that is None is left out."""
        path, _, query = target.partition("?")
        sent: dict[str, str | None] = {
            "host": "127.0.0.1:10011",
            "date": format_http_date(self.clock.now_ms()),
            "x-mns-version": "2015-06-06",
            **(headers or {}),
        }
        given = {name: value for name, value in sent.items() if value is not None}
        text = string_to_sign_v2(MnsRequest(method, path, query, given))
        if "authorization" not in sent:
            given["authorization"] = f"MNS {ACCOUNT}:{sign_v2(SECRET, text).decode()}"
        return Request(
            method=method,
            raw_path=path,
            raw_query=query,
            headers=given,
            body=body,
            body_too_large=False,
            client_ip="127.0.0.1",
            https=False,
            has_body=bool(body),
        )

    def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str | None] | None = None,
    ) -> Response:
        """Send a signed request."""
        return run(self.dialect.handle(self.request(method, target, body, headers)))

    def send(self, body: str = "x", **fields: object) -> Response:
        """Send a message."""
        return self.ask("POST", MESSAGES, message_xml(body, **fields))

    def receive(self, query: str = "") -> dict[str, str]:
        """Receive a message; return its elements."""
        response = self.ask("GET", f"{MESSAGES}{query}")
        assert response.status == 200, response
        return texts(root_of(response))


def root_of(response: Response) -> ET.Element:
    """Parse the body of an answer, which must begin as the service's bodies do."""
    assert response.body.startswith(b'<?xml version="1.0" ?>\n<')
    assert header(response, "Content-Type") == "text/xml;charset=utf-8"
    return ET.fromstring(response.body)


def texts(element: ET.Element) -> dict[str, str]:
    """Return the texts of the elements inside by name, all of which are of our namespace."""
    return {each.tag.removeprefix(SPACE): each.text or "" for each in element}


def header(response: Response, name: str) -> str | None:
    """Return a header of an answer, spelled like this; it must not be there twice."""
    values = [value.decode() for key, value in response.headers if key == name.encode()]
    assert len(values) <= 1
    return values[0] if values else None


def error_of(response: Response) -> tuple[int, str]:
    """Return status and code of an error, whose form is checked."""
    root = root_of(response)
    assert root.tag == f"{SPACE}Error"
    assert [each.tag.removeprefix(SPACE) for each in root] == [
        *("Code", "Message", "RequestId", "HostId"),
    ]
    found = texts(root)
    assert all(found.values())
    assert found["RequestId"] == header(response, "x-mns-request-id")
    return response.status, found["Code"]
