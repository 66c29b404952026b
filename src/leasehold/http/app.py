"""The application: makes a request of what arrived, and an answer of what the dialect says."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

import structlog

from leasehold.clock import Clock
from leasehold.http.request_cycle import PROVE, RAW_NAMES, Receive
from leasehold.http.requests import MAX_HOST_CHARS, Request, Response

NATIVE_PREFIX: Final = "/v1/"
"""What paths of the native dialect begin with; no account or queue of Azure's has so short a name.
"""

_CLOSE: Final = (b"connection", b"close")
_READING: Final = frozenset({"GET", "HEAD"})
_WITHOUT_LENGTH: Final = frozenset({204, 304})

_log = structlog.get_logger(__name__)


class _ClientGoneError(Exception):
    """Half a body is no request: whatever it asks for, the client has not finished asking."""


_CallT = TypeVar("_CallT")


class Dialect(Protocol[_CallT]):
    """What speaks a protocol over HTTP. The body of a request is read between its two steps.

    So no client makes the server hold a body before having shown, in the header, its right to send
    it.
    """

    def begin(self, request: Request) -> _CallT:
        """Take a request of which only the header has come."""
        ...

    async def enter(self, call: _CallT) -> Response | None:
        """Check all that the header says; None if the body may be read. Raises nothing."""
        ...

    def longest_body(self, call: _CallT) -> int:
        """Return how many bytes of the body of a request that has entered are to be read."""
        ...

    async def answer(self, call: _CallT) -> Response:
        """Answer a request that has entered, once its body is there. Raises nothing."""
        ...


class AddressedDialect(Dialect[_CallT], Protocol[_CallT]):
    """A dialect that has addresses of its own: a port, or names of hosts."""

    def is_addressed_by(self, host: str) -> bool:
        """Tell whether a request to *host* is of this dialect, on a port that others share."""
        ...


class Pages(Protocol):
    """The server's own addresses; see :class:`leasehold.server.admin.AdminPages`."""

    paths: frozenset[str]

    async def answer(self, path: str) -> Response:
        """Answer a GET of one of *paths*."""
        ...


class Timings(Protocol):
    """Where the time that requests took is counted."""

    def took(self, duration_s: float) -> None:
        """Count the request that the dialect has just answered."""
        ...


class Application:
    """Serves the dialects and the server's own pages.

    Args:
        dialect: Answers everything but the pages, and what goes to *native*.
        pages: Health and metrics. A queue of the same name stays reachable in addresses with the
            account in the host name: requests of the protocol that read carry ``comp``.
        clock: For the durations counted.
        timings: Where they are counted.
        native: Answers what is under NATIVE_PREFIX; None for *dialect*.
        mns: Answers what comes to *mns_ports*, and to hosts of its own on other ports.
        mns_ports: Where only *mns* and the pages answer.
        https: Whether a proxy has ended TLS, so that every request counts as safe.
        hosts: Knows the names that the server is addressed by; None if requests are not looked at
            for what web pages may send.
        log_requests: Whether to log each request, at level debug.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a collaborator of its own
        self,
        *,
        dialect: Dialect[Any],
        pages: Pages,
        clock: Clock,
        timings: Timings,
        native: Dialect[Any] | None = None,
        mns: AddressedDialect[Any] | None = None,
        mns_ports: frozenset[int] = frozenset(),
        https: bool = False,
        hosts: Hosts | None = None,
        log_requests: bool = False,
    ) -> None:
        self._dialect = dialect
        self._pages = pages
        self._paths = pages.paths
        self._monotonic_s = clock.monotonic_s
        self._took = timings.took
        self._native = native
        self._mns = mns
        self._mns_ports = mns_ports
        self._https = https
        self._hosts = hosts
        self._log_requests = log_requests

    async def __call__(self, scope: dict[str, Any], receive: Receive) -> Response | None:
        """Answer one request; see :data:`leasehold.http.request_cycle.App`."""
        started_s = self._monotonic_s()
        method: str = scope["method"]
        raw_path = scope["raw_path"].decode("ascii")
        headers = _headers(scope["headers"])
        if self._hosts is not None and not self._hosts.knows(headers.get("host", "")):
            return _whole(method, self._hosts.refusal(headers.get("host", "")), close=False)
        if raw_path in self._paths and method in _READING and b"comp=" not in scope["query_string"]:
            return _whole(method, await self._pages.answer(raw_path), close=False)
        dialect = self._dialect
        if self._mns is not None and self._is_for(self._mns, scope, headers):
            dialect = self._mns
        elif self._native is not None and raw_path.startswith(NATIVE_PREFIX):
            dialect = self._native
        request = self._request(scope, raw_path, headers, receive)
        call = dialect.begin(request)
        refusal = await dialect.enter(call)
        if refusal is not None:
            response = refusal
        else:
            if PROVE in scope:
                scope[PROVE]()
            if request.has_body:
                length = int(headers.get("content-length", "0"))
                try:
                    body = await _read(length, dialect.longest_body(call), receive)
                except _ClientGoneError:
                    return None
                request.body, request.body_too_large = body or b"", body is None
            response = await dialect.answer(call)
        # Before anything else can run: the dialect has told the timings what request this was.
        duration_s = self._monotonic_s() - started_s
        self._took(duration_s)
        if self._log_requests:
            # The query is left out: it may hold a signature.
            _log.debug(
                "http.request",
                method=method,
                path=raw_path,
                status=response.status,
                duration_ms=round(duration_s * 1000, 3),
            )
        return _whole(method, response, close=request.body_too_large)

    def _is_for(
        self, mns: AddressedDialect[Any], scope: dict[str, Any], headers: dict[str, str]
    ) -> bool:
        server = scope["server"]
        if server is not None and server[1] in self._mns_ports:
            return True
        return mns.is_addressed_by(headers.get("host", ""))

    def _request(
        self, scope: dict[str, Any], raw_path: str, headers: dict[str, str], receive: Receive
    ) -> Request:
        """Return a request without its body."""
        client = scope["client"]
        return Request(
            method=scope["method"],
            raw_path=raw_path,
            raw_query=scope["query_string"].decode("ascii"),
            headers=headers,
            body=b"",
            body_too_large=False,
            has_body=headers.get("content-length", "0") != "0" or "transfer-encoding" in headers,
            client_ip=client[0] if client else "",
            https=self._https or scope["scheme"] == "https",
            is_foreign=self._hosts is not None and is_foreign(headers),
            raw_header_names=scope.get(RAW_NAMES),
            receive=receive,
        )


async def _read(length: int, limit: int, receive: Receive) -> bytes | None:
    """Return the body, None if it is larger than *limit*, above which it is not read.

    Raises:
        _ClientGoneError: It did not come whole.
    """
    parts: list[bytes] = []
    size = 0
    more = length <= limit
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise _ClientGoneError
        parts.append(message["body"])
        size += len(message["body"])
        more = message["more_body"] and size <= limit
    if max(size, length) > limit:
        return None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _headers(fields: list[tuple[bytes, bytes]]) -> dict[str, str]:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in fields}
    if len(headers) != len(fields):
        headers.clear()
        for raw_name, raw_value in fields:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def _whole(method: str, response: Response, *, close: bool) -> Response:
    """Return an answer with the fields that have to do with its length and the connection."""
    status, headers, body = response
    if body or (method != "HEAD" and status not in _WITHOUT_LENGTH):
        headers = [*headers, (b"content-length", b"%d" % len(body))]
    if close:
        headers = [*headers, _CLOSE]
    return Response(status, headers, body)


# --- browsers ----------------------------------------------------------------------------------
#
# What a browser on this machine may send to a server on whose requests anybody can sign.
#
# A web page can make the browser that shows it send requests to a loopback address, and with a
# public key it can sign them. Two things give it away. A page whose own name was made to mean this
# machine ("DNS rebinding") has that name in the Host field. A page of another origin cannot keep
# the browser from saying so in Origin, or in Sec-Fetch-Site where there is no Origin.
#
# Sources: RFC 6454, section 7 (Origin); "Fetch Metadata Request Headers" of the W3C; RFC 9110,
# section 15.5.20 (421).


_REMEMBERED: Final = 256
_TOLD: Final = 16
"""Names of strangers that are logged, each once."""
_OWN_SITES: Final = frozenset({"same-origin", "none"})
"""``none`` is what the user has typed, or a bookmark."""
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_MISDIRECTED: Final = 421


class Hosts:
    """Knows the names that this server is addressed by.

    Args:
        allowed: Names besides addresses in figures, ``localhost`` and what is under it; ``*.NAME``
            for all under one, ``*`` for all there are.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        names = {name.lower().rstrip(".") for name in allowed}
        self._names = frozenset(names) | {"localhost", ""}
        self._suffixes = (".localhost", *(name[1:] for name in names if name[:2] == "*."))
        self._any = "*" in names
        self._known: set[str] = set()
        self._told: set[str] = set()

    def knows(self, host: str) -> bool:
        """Tell whether a request with this Host field, "" if it has none, is meant for us."""
        if host in self._known:
            return True
        known = self._any or self._knows(_name_of(host))
        if known and len(self._known) < _REMEMBERED and len(host) <= MAX_HOST_CHARS:
            self._known.add(host)
        return known

    def _knows(self, name: str) -> bool:
        if name in self._names or name.endswith(self._suffixes):
            return True
        try:
            # A page that was loaded from an address in figures is where it says it is.
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def refusal(self, host: str) -> Response:
        """Return the answer to a request with another host, and log it the first time."""
        name = _name_of(host)[:MAX_HOST_CHARS]
        if name not in self._told and len(self._told) < _TOLD:
            self._told.add(name)
            _log.warning("server.unknown_host", host=name, setting="allowed_hosts")
        text = b"This server is not known by the host name of the request; see allowed_hosts.\n"
        return Response(_MISDIRECTED, [_TEXT], text)


def _name_of(host: str) -> str:
    """Return the name in a Host field, without the port, in lower case."""
    name = host.lower()
    if name[:1] == "[":
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Tell whether a request comes from a web page that is not one of this server's own."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in _OWN_SITES
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "")
