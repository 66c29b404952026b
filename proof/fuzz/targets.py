"""What is fuzzed: one function for each parser, from bytes to nothing.

A target raises when something is wrong: an error that the parser does not declare, an answer of
500 or one that is no document, two readings of the same bytes that differ, credentials that nobody
has made and that are let in all the same, or a signature that is good for another request too.
Everything else, a refusal included, is fine.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import httptools
from tests.unit.auth.bearer_support import CONFIG
from tests.unit.auth.support import NAME, NOON_MS, no_policies, request, target
from tests.unit.http.mns import support as whole_mns
from tests.unit.http.native import support as native
from tests.unit.server.support import HastyApplication, NoPages, StubDialect

from leasehold.auth.authenticator import Authenticator
from leasehold.auth.bearer import BearerVerifier
from leasehold.auth.mns import (
    AccessKey,
    BadDate,
    MnsAuthenticator,
    MnsHeader,
    MnsRequest,
    date_of,
    sign_v2,
    sign_v4,
    string_to_sign_v2,
    string_to_sign_v4,
)
from leasehold.auth.sharedkey import format_http_date, parse_http_date
from leasehold.auth.types import Account, AuthError, Operation, format_iso_time
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
    """Show an Authorization header, with a date before it."""
    date, _, shown = data.decode("latin-1").partition("\n")
    sent = {"x-ms-date": date, "date": date, "authorization": shown}
    try:
        _authenticator().check(
            request(headers=sent), target(Operation.PEEK_MESSAGES), now_ms=NOON_MS
        )
    except AuthError:
        return
    raise Wrong("a signature of nobody is let in")


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


# --- signatures of MNS -------------------------------------------------------------------------
#
# An input is two requests, a blank line between them: a line of method and target each, then its
# header. What is signed for the first must not let the second in.

_SECRET: Final = secrets.token_urlsafe(32).encode("ascii")
_TARGET_CHARS: Final = frozenset(map(chr, range(0x21, 0x7F))) - {"#"}
_NAME_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~")
_ALGORITHMS: Final = {"MNS4-HMAC-SHA256": "aliyun", "APSARA-MNS4-HMAC-SHA256": "apsara"}
_MOST_DECODINGS: Final = 50


def mns_signature(data: bytes) -> None:
    """Sign a request in each way of MNS, and show the signature with another request."""
    first, _, second = data.decode("latin-1").partition("\n\n")
    mine, other = _mns_request_of(first), _mns_request_of(second)
    if mine is None:
        return
    if _lets_in(mine):
        raise Wrong("MNS lets a signature of nobody in")
    for way, shown in _signatures_of(mine):
        if not _lets_in(mine, shown):
            # What is decoded may be signed only where it cannot be read in two ways.
            if way != "decoded":
                raise Wrong(f"what was signed is refused: {way}")
        elif other is not None and _lets_in(other, shown) and _sense(other) != _sense(mine):
            raise Wrong(f"the signature is good for two requests: {way}")


def _mns_request_of(text: str) -> MnsRequest | None:
    """Return a request as a connection would hand it on; None if it would not."""
    line, *fields = text.split("\n")
    method, _, sent = line.partition(" ")
    if not (method.isascii() and method.isalpha() and sent[:1] == "/" and {*sent} <= _TARGET_CHARS):
        return None
    headers = {"date": format_http_date(NOON_MS)}
    for field in fields:
        name, colon, value = field.partition(":")
        if not colon or not name or not {*name} <= _NAME_CHARS or "\r" in value or "\0" in value:
            return None
        headers[name] = value.strip(" \t")
    path, _, query = sent.partition("?")
    return MnsRequest(method.upper(), path, query, headers)


@cache
def _mns_authenticator() -> MnsAuthenticator:
    return MnsAuthenticator({NAME: AccessKey(NAME, (_SECRET,))})


def _lets_in(asked: MnsRequest, shown: str | None = None) -> bool:
    if shown is not None:
        asked = asked._replace(headers={**asked.headers, "authorization": shown})
    try:
        _mns_authenticator().check(asked, now_ms=NOON_MS)
    except AuthError:
        return False
    return True


def _signatures_of(asked: MnsRequest) -> list[tuple[str, str]]:
    """Return what clients would show: version 2 in the ways of two SDKs, version 4 of two clouds.

    Nothing, if the server would not take the date.
    """
    try:
        _mns_authenticator().check(
            asked._replace(headers={**asked.headers, "authorization": "MNS nobody:AAAA"}),
            now_ms=NOON_MS,
        )
    except BadDate:
        return []
    except AuthError:
        pass
    text = string_to_sign_v2(asked)
    ways = [("version 2", f"MNS {NAME}:{sign_v2(_SECRET, text).decode()}")]
    if asked.query:
        pairs = (f"{name}={value}" for name, value in _pairs_of(asked.query, 1))
        plain = asked._replace(path=unquote(asked.path), query="&".join(sorted(pairs)))
        signed = sign_v2(_SECRET, string_to_sign_v2(plain)).decode()
        ways.append(("decoded", f"MNS {NAME}:{signed}"))
    date_ms = parse_http_date(date_of(asked.headers) or "")
    assert date_ms is not None
    day = format_iso_time(date_ms)[:10].replace("-", "")
    for algorithm, prefix in _ALGORITHMS.items():
        shown = MnsHeader(NAME, "", algorithm, day, "here")
        signature = sign_v4(_SECRET, shown, string_to_sign_v4(asked, shown, date_ms))
        scope = f"{NAME}/{day}/here/mns/{prefix}_v4_request"
        ways.append((algorithm, f"{algorithm} Credential={scope},Signature={signature}"))
    return ways


def _sense(asked: MnsRequest) -> tuple[object, ...]:
    """Return what a signature stands for: what the dialect reads the same has the same sense.

    A percent sign is nowhere in what the dialect takes, so that decoding goes on to the end; names
    of parameters are in either case.
    """
    pairs = {(name.lower(), value) for name, value in _pairs_of(asked.query, _MOST_DECODINGS)}
    signed = {
        name: " ".join(value.split())
        for name, value in asked.headers.items()
        if name.startswith("x-mns-")
    }
    given = [
        " ".join(asked.headers.get(name, "").split()) for name in ("content-md5", "content-type")
    ]
    date_ms = parse_http_date(date_of(asked.headers) or "")
    path = _decoded(asked.path, _MOST_DECODINGS)
    return asked.method, path, sorted(pairs - {("", "")}), signed, given, date_ms


def _pairs_of(query: str, times: int) -> list[tuple[str, str]]:
    pairs = [part.partition("=")[::2] for part in query.split("&")]
    return [(_decoded(name, times), _decoded(value, times)) for name, value in pairs]


def _decoded(text: str, times: int) -> str:
    for _ in range(times):
        text = unquote(text)
    return text


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
    at_once = _arrived([data])
    in_bytes = _arrived([bytes([each]) for each in data])
    if at_once != in_bytes:
        raise Wrong(f"read at once {at_once}, in bytes {in_bytes}")


def _arrived(pieces: list[bytes]) -> tuple[list[tuple[str, str, bytes]], list[bytes]]:
    """Return the requests that arrived, and the status lines of the answers."""
    dialect = StubDialect()
    written = _loop().run_until_complete(_talk(dialect, ManualClock(), pieces))
    arrived = [(each.method, each.raw_path, each.body) for each in dialect.requests]
    return arrived, [line for line in written.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


async def _talk(dialect: Any, clock: ManualClock, pieces: list[bytes]) -> bytes:
    """Send pieces to a connection; return what it answers."""
    app = HastyApplication(dialect=dialect, pages=NoPages(), clock=clock, timings=RequestStats())
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
    return bytes(wire.written)


async def _settle(state: ServerState) -> None:
    for _ in range(20):
        if not state.tasks:
            return
        await asyncio.sleep(0)


# --- whole requests of MNS ---------------------------------------------------------------------

_RECEIPT: Final = b"@receipt"
"""Stands for the receipt of a message that has been received."""


class _Signer:
    """Signs whatever arrives, as if its client had: no fuzzer could."""

    def __init__(self) -> None:
        self._checker = MnsAuthenticator(
            {whole_mns.ACCOUNT: AccessKey(whole_mns.ACCOUNT, (whole_mns.SECRET,))}
        )

    def check(self, request: MnsRequest, *, now_ms: int, named: str = "") -> str:
        """See ``MnsAuthorizer``."""
        headers = {"date": format_http_date(now_ms), **request.headers}
        signed = sign_v2(whole_mns.SECRET, string_to_sign_v2(request._replace(headers=headers)))
        headers["authorization"] = f"MNS {whole_mns.ACCOUNT}:{signed.decode()}"
        return self._checker.check(request._replace(headers=headers), now_ms=now_ms, named=named)


class MnsAnswer(NamedTuple):
    """What a request came to."""

    operation: str
    status: int


class _Answers:
    """Takes apart what a connection wrote."""

    def __init__(self, written: bytes) -> None:
        self.statuses: list[int] = []
        self.documents: list[bytes] = []
        self._is_xml = False
        self._parser = httptools.HttpResponseParser(self)
        try:
            self._parser.feed_data(written)
        except httptools.HttpParserError as problem:
            raise Wrong(f"answered with what is no HTTP: {problem}") from None

    def on_message_begin(self) -> None:
        """Begin an answer."""
        self._is_xml = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Read a field."""
        self._is_xml |= name.lower() == b"content-type" and value.startswith(b"text/xml")

    def on_headers_complete(self) -> None:
        """Note the status."""
        self.statuses.append(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        """Note a document; one as small as these comes at once."""
        if self._is_xml:
            self.documents.append(body)


def mns(data: bytes) -> None:
    """Send a request of MNS over a connection: its header, a blank line, and its body."""
    ask_mns(data)


def ask_mns(data: bytes) -> list[MnsAnswer]:
    """Send a request to a server with one queue, one message received and one waiting.

    Its length is filled in, and it is signed when it arrives.

    Raises:
        Wrong: It was answered with 500 or above, or with what is no document.
    """
    server = whole_mns.Whole(authenticator=_Signer())
    server.send("x")
    receipt = server.receive()["ReceiptHandle"]
    server.send("y")
    server.observed.clear()
    head, _, body = data.replace(_RECEIPT, receipt.encode("ascii")).partition(b"\r\n\r\n")
    sent = b"%b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body)
    answers = _Answers(_loop().run_until_complete(_talk(server.dialect, server.clock, [sent])))
    for status in answers.statuses:
        _check_status(status)
    for document in answers.documents:
        try:
            ET.fromstring(document)
        except ET.ParseError:
            raise Wrong(f"answered with what is no document: {document!r}") from None
    names = [operation for operation, _ in server.observed]
    return [MnsAnswer(*pair) for pair in zip(names, answers.statuses, strict=False)]


TARGETS: Final[dict[str, Target]] = {
    each.__name__: each
    for each in (arrow, header, http, json, mns, mns_signature, query, sas, token, xml)
}
