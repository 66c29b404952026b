"""The ASGI application: makes a request of what arrived, and an answer of what the dialect says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import structlog

from leasehold.clock import Clock
from leasehold.http.messages import Request, Response
from leasehold.http.protocol import RAW_NAMES

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

NATIVE_PREFIX: Final = "/v1/"
"""What paths of the native dialect begin with; no account or queue of Azure's has so short a name.
"""
NATIVE_MAX_BODY_BYTES: Final = 64 * 1024 * 1024

_CLOSE: Final = (b"connection", b"close")
_READING: Final = frozenset({"GET", "HEAD"})
_WITHOUT_LENGTH: Final = frozenset({204, 304})

_log = structlog.get_logger(__name__)


class _ClientGoneError(Exception):
    """Half a body is no request: whatever it asks for, the client has not finished asking."""


class Dialect(Protocol):
    """What speaks a protocol over HTTP."""

    async def handle(self, request: Request) -> Response:
        """Answer one request. Raises nothing."""
        ...


class LargeDialect(Dialect, Protocol):
    """A dialect with bodies so large that not everybody may send one."""

    async def admit(self, request: Request) -> Response | None:
        """Say from the head of a request why it is refused; None to read its body."""
        ...


class AddressedDialect(Dialect, Protocol):
    """A dialect that has addresses of its own: a port, or names of hosts."""

    def is_addressed_by(self, host: str) -> bool:
        """Tell whether a request to *host* is of this dialect, on a port that others share."""
        ...

    async def longest_body(self, request: Request) -> int:
        """Say from the head of a request how long a body may be read."""
        ...


class Pages(Protocol):
    """The server's own addresses; see :class:`leasehold.http.admin.AdminPages`."""

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
    """Serves the dialects and the server's own pages. A plain ASGI callable.

    Args:
        dialect: Answers everything but the pages, and what goes to *native*.
        pages: Health and metrics. A queue of the same name stays reachable in addresses with the
            account in the host name: requests of the protocol that read carry ``comp``.
        clock: For the durations counted.
        timings: Where they are counted.
        max_body_bytes: Bodies above this are not read; the dialect says so and the connection ends.
        longest_body: Says from the head of a request to *dialect* that a longer body may be read.
        native: Answers what is under NATIVE_PREFIX; None for *dialect*.
        native_max_body_bytes: As max_body_bytes, for *native*.
        mns: Answers what comes to *mns_ports*, and to hosts of its own on other ports.
        mns_ports: Where nobody but *mns* and the pages answer.
        mns_max_body_bytes: As max_body_bytes, for *mns*.
        https: Whether a proxy has ended TLS, so that every request counts as safe.
        log_requests: Whether to log each request, at level debug.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a collaborator of its own
        self,
        *,
        dialect: Dialect,
        pages: Pages,
        clock: Clock,
        timings: Timings,
        max_body_bytes: int,
        longest_body: Callable[[Request], Awaitable[int]] | None = None,
        native: LargeDialect | None = None,
        native_max_body_bytes: int = NATIVE_MAX_BODY_BYTES,
        mns: AddressedDialect | None = None,
        mns_ports: frozenset[int] = frozenset(),
        mns_max_body_bytes: int = 0,
        https: bool = False,
        log_requests: bool = False,
    ) -> None:
        self._handle = dialect.handle
        self._pages = pages
        self._paths = pages.paths
        self._monotonic_s = clock.monotonic_s
        self._took = timings.took
        self._max_body_bytes = max_body_bytes
        self._longest_body = longest_body
        self._native = native
        self._native_max_body_bytes = native_max_body_bytes if native else max_body_bytes
        self._mns = mns
        self._mns_ports = mns_ports
        self._mns_max_body_bytes = mns_max_body_bytes
        self._https = https
        self._log_requests = log_requests

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """See ASGI. Only requests over HTTP are known here."""
        started_s = self._monotonic_s()
        method: str = scope["method"]
        raw_path = scope["raw_path"].decode("ascii")
        if raw_path in self._paths and method in _READING and b"comp=" not in scope["query_string"]:
            response = await self._pages.answer(raw_path)
            await send(_start(method, response, close=False))
            await send({"type": "http.response.body", "body": response.body})
            return
        handle, limit = self._handle, self._max_body_bytes
        longest_body = self._longest_body
        headers = _headers(scope["headers"])
        body: bytes | None = b""
        length = headers.get("content-length", "0")
        has_body = length != "0" or "transfer-encoding" in headers
        if self._mns is not None and self._is_for(self._mns, scope, headers):
            handle, limit = self._mns.handle, self._mns_max_body_bytes
            longest_body = self._mns.longest_body
        elif self._native is not None and raw_path.startswith(NATIVE_PREFIX):
            handle, limit, longest_body = self._native.handle, self._native_max_body_bytes, None
            if has_body and (int(length) > self._max_body_bytes or "transfer-encoding" in headers):
                refusal = await self._native.admit(self._request(scope, raw_path, headers, receive))
                if refusal is not None:
                    await send(_start(method, refusal, close=True))
                    await send({"type": "http.response.body", "body": refusal.body})
                    return
        if longest_body is not None and int(length) > limit:
            limit = await longest_body(self._request(scope, raw_path, headers, receive))
        if has_body:
            try:
                body = await _read(int(length), limit, receive)
            except _ClientGoneError:
                return
        request = self._request(scope, raw_path, headers, receive)
        request.body, request.body_too_large = body or b"", body is None
        response = await handle(request)
        # Before anything else can run: the dialect has told the timings what request this was.
        duration_s = self._monotonic_s() - started_s
        self._took(duration_s)
        await send(_start(method, response, close=body is None))
        await send({"type": "http.response.body", "body": response.body})
        if self._log_requests:
            # The query is left out: it may hold a signature.
            _log.debug(
                "http.request",
                method=method,
                path=raw_path,
                status=response.status,
                duration_ms=round(duration_s * 1000, 3),
            )

    def _is_for(
        self, mns: AddressedDialect, scope: dict[str, Any], headers: dict[str, str]
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
            client_ip=client[0] if client else "",
            https=self._https or scope["scheme"] == "https",
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


def _start(method: str, response: Response, *, close: bool) -> dict[str, Any]:
    status, headers, body = response
    if body or (method != "HEAD" and status not in _WITHOUT_LENGTH):
        headers = [*headers, (b"content-length", b"%d" % len(body))]
    if close:
        headers = [*headers, _CLOSE]
    return {"type": "http.response.start", "status": status, "headers": headers}
