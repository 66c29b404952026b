"""What is fuzzed: one function for each parser, from bytes to nothing.

A target raises when something is wrong: an error that the parser does not declare, an answer of
500, two readings of the same bytes that differ, or credentials that nobody has made and that are
let in all the same. Everything else, a refusal included, is fine.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import cache
from typing import Any, Final, cast

from tests.unit.auth.bearer_support import CONFIG
from tests.unit.auth.support import NAME, NOON_MS, no_policies, request, target
from tests.unit.http.native import support as native
from tests.unit.server.support import HastyApplication, NoPages, StubDialect

from leasehold.auth.authenticator import Authenticator
from leasehold.auth.bearer import BearerVerifier
from leasehold.auth.mns import AccessKey, MnsAuthenticator, MnsRequest
from leasehold.auth.types import Account, AuthError, Operation
from leasehold.http.app import RequestStats
from leasehold.http.connection import HttpConnection, ServerState
from leasehold.http.guard import ConnectionLimits, Guard
from leasehold.http.mns.xml import plain_root
from leasehold.http.native.call import read_query
from leasehold.http.native.dialect import routes_for
from leasehold.http.native.errors import Refused
from leasehold.http.xml import Element, XmlError, parse_tree
from leasehold.testing import ManualClock

Target = Callable[[bytes], None]

_SERVES: Final = 500
"""Requests until a server is replaced, so that what they left behind does not pile up."""
_ROUTES: Final = tuple(route for route in routes_for(test_mode=False) if route.method != "GET")
_ARROW: Final = "application/vnd.apache.arrow.stream"


class Wrong(AssertionError):
    """A parser did what it must not."""


# --- documents ---------------------------------------------------------------------------------


def xml(data: bytes) -> None:
    """Parse a document. What the quick reader of MNS takes, the parser reads alike."""
    quick = plain_root(data)
    try:
        root = parse_tree(data)
    except XmlError:
        if quick is not None:
            raise Wrong("the quick reader takes what the parser refuses") from None
        return
    if quick is not None and _shape(quick) != _shape(root):
        raise Wrong("the quick reader and the parser differ")


def _shape(element: Element) -> tuple[str, list[object]]:
    parts: list[object] = []
    for part in element.content:
        if isinstance(part, Element):
            parts.append(_shape(part))
        elif parts and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    return element.name, parts


class _Native:
    """The native dialect on the store that is the oracle; made anew every so often."""

    def __init__(self) -> None:
        self._left = 0
        self._server: native.Native

    def send(self, *args: Any, **options: Any) -> int:
        """Send one request; return the status."""
        if not self._left:
            self._left = _SERVES
            self._server = native.Native()
            self._server.send("PUT", native.QUEUE, {})
        self._left -= 1
        return self._server.send(*args, **options).status


@cache
def _native() -> _Native:
    return _Native()


def _check_status(status: int) -> None:
    if status >= 500:
        raise Wrong(f"answered {status}")


def json(data: bytes) -> None:
    """Send a body to a route of the native interface; the first byte chooses which."""
    if data:
        route = _ROUTES[data[0] % len(_ROUTES)]
        _check_status(_native().send(route.method, native.path_of(route.path), data[1:]))


def arrow(data: bytes) -> None:
    """Put messages as an Arrow stream."""
    headers = {"content-type": _ARROW}
    _check_status(_native().send("POST", native.MESSAGES, data, headers=headers))


def query(data: bytes) -> None:
    """Read the query of a request, and list messages by it."""
    text = data.decode("latin-1")
    try:
        read_query(text)
    except Refused:
        return
    _check_status(_native().send("GET", native.MESSAGES, query=text))


# --- credentials -------------------------------------------------------------------------------
#
# The keys are drawn when the process begins, so that no input can be signed by one of them.


@cache
def _authenticator() -> Authenticator:
    keys = (secrets.token_bytes(64), secrets.token_bytes(64))
    return Authenticator({NAME: Account(name=NAME, keys=keys)}, no_policies)


def sas(data: bytes) -> None:
    """Show a shared access signature: the query of a request."""
    signed = request(query=data.decode("latin-1"))
    try:
        _authenticator().check(signed, target(Operation.PEEK_MESSAGES), now_ms=NOON_MS)
    except AuthError:
        return
    raise Wrong("a signature of nobody is let in")


def header(data: bytes) -> None:
    """Show an Authorization header, with a date before it, to the Azure dialect and to MNS."""
    date, _, shown = data.decode("latin-1").partition("\n")
    sent = {"x-ms-date": date, "date": date, "authorization": shown}
    try:
        _authenticator().check(
            request(headers=sent), target(Operation.PEEK_MESSAGES), now_ms=NOON_MS
        )
    except AuthError:
        pass
    else:
        raise Wrong("a signature of nobody is let in")
    try:
        _mns().check(MnsRequest("GET", "/queues/q", "", sent), now_ms=NOON_MS)
    except AuthError:
        return
    raise Wrong("MNS lets a signature of nobody in")


@cache
def _mns() -> MnsAuthenticator:
    return MnsAuthenticator({NAME: AccessKey(NAME, (secrets.token_bytes(32),))})


def token(data: bytes) -> None:
    """Show a bearer token."""
    checking = _verifier().verify(data.decode("latin-1"), account=NAME, now_ms=NOON_MS)
    try:
        _loop().run_until_complete(checking)
    except AuthError:
        return
    raise Wrong("a token of nobody is let in")


@cache
def _verifier() -> BearerVerifier:
    return BearerVerifier(CONFIG)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


# --- http --------------------------------------------------------------------------------------


class _Wire(asyncio.Transport):
    """The other end of a connection: keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def http(data: bytes) -> None:
    """Send bytes to a connection, all at once and one by one: it must make the same of them."""
    at_once = _loop().run_until_complete(_talk([data]))
    in_bytes = _loop().run_until_complete(_talk([bytes([each]) for each in data]))
    if at_once != in_bytes:
        raise Wrong(f"read at once {at_once}, in bytes {in_bytes}")


async def _talk(pieces: list[bytes]) -> tuple[list[tuple[str, str, bytes]], list[bytes]]:
    """Return the requests that arrived, and the status lines of the answers."""
    clock = ManualClock()
    dialect = StubDialect()
    app = HastyApplication(
        dialect=cast("Any", dialect), pages=NoPages(), clock=clock, timings=RequestStats()
    )
    state = ServerState(Guard(ConnectionLimits(), clock), clock)
    connection = HttpConnection(app, state)
    wire = _Wire()
    connection.connection_made(wire)
    for piece in pieces:
        if wire.is_closing():
            break
        connection.data_received(piece)
        await _settle(state)
    await _settle(state)
    connection.connection_lost(None)
    for task in list(state.tasks):
        task.cancel()
    arrived = [(each.method, each.raw_path, each.body) for each in dialect.requests]
    statuses = [line for line in wire.written.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    return arrived, [bytes(line) for line in statuses]


async def _settle(state: ServerState) -> None:
    for _ in range(20):
        if not state.tasks:
            return
        await asyncio.sleep(0)


TARGETS: Final[dict[str, Target]] = {
    each.__name__: each for each in (arrow, header, http, json, query, sas, token, xml)
}
