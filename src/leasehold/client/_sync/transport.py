# Made by tools/make_sync.py from ../_async: change that, and run the tool.
"""Sending: one call in, its answer out, with authorisation, time-outs and retries."""

from __future__ import annotations

import logging
import random
import ssl
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

import httpcore

from leasehold import __version__
from leasehold.client._answers import Answer, Reply, Tries, failure_of, is_done, root_of
from leasehold.client._calls import Call, Credential, Request, Unsigned, bearer, target_of
from leasehold.client._connection import Endpoint
from leasehold.client._spans import CallTracer
from leasehold.client.errors import ConnectionFailed, LeaseholdClientError
from leasehold.client.retries import RetryPolicy

if TYPE_CHECKING:
    import httpx

_IDLE_S: Final = 50.0
"""How long an idle connection is kept: less than servers and proxies usually do (60 s and more),
so that a request does not meet a connection that is being closed."""
_CONNECT_S: Final = 10.0
_NEXT_AFTER: Final = "leasehold-next-after"
_PORTS: Final = {"http": 80, "https": 443}
_WITH_CONTENT: Final = frozenset({"POST", "PUT"})
"""Methods that say how long their content is although there is none."""
_NEVER_SENT: Final = (
    httpcore.ConnectError,
    httpcore.ConnectTimeout,
    httpcore.PoolTimeout,
    httpcore.ProxyError,
    httpcore.UnsupportedProtocol,
)
_FAILURES: Final = (
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.UnsupportedProtocol,
)
"""What httpcore raises; its exceptions have no class in common."""
_KINDS: Final[dict[str, type[Exception]]] = {
    name: kind
    for name, kind in vars(httpcore).items()
    if isinstance(kind, type) and issubclass(kind, _FAILURES)
}
_log: Final = logging.getLogger("leasehold.client")
_random: Final = random.SystemRandom()


class Connections(Protocol):
    """What sends requests to one server. It raises what httpcore does."""

    def send(self, request: Request) -> Reply:
        """Send a request and wait for the whole answer."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class Pool:
    """Connections of httpcore, without httpx, which takes a quarter of a small call's time."""

    def __init__(self, endpoint: Endpoint, ssl_context: ssl.SSLContext | None) -> None:
        parts = urlsplit(endpoint.url)
        host = (parts.hostname or "").encode()
        port = None if parts.port == _PORTS[parts.scheme] else parts.port
        self._scheme, self._host, self._port = parts.scheme.encode(), host, port
        shown = b"[%b]" % host if b":" in host else host
        self._host_header = (b"Host", shown if port is None else b"%b:%d" % (shown, port))
        self._is_closed = False
        self._pool = httpcore.ConnectionPool(
            # The system's certificates; httpcore would take those of certifi.
            ssl_context=ssl_context
            or (ssl.create_default_context() if endpoint.is_https else None),
            # A connection per call under way: with a ceiling, receives that wait could keep a
            # renewal waiting until its lease has run out. httpcore counts busy connections when it
            # limits idle ones, so that limit is off as well.
            max_connections=None,
            max_keepalive_connections=None,
            keepalive_expiry=_IDLE_S,
        )

    def send(self, request: Request) -> Reply:
        """See :class:`Connections`."""
        headers = [(name.encode(), value.encode()) for name, value in request.headers.items()]
        target = request.target.encode()
        made = httpcore.Request(
            request.method,
            httpcore.URL(scheme=self._scheme, host=self._host, port=self._port, target=target),
            headers=[self._host_header, *headers],
            content=request.content,
            extensions={"timeout": request.timeouts},
        )
        try:
            response = self._pool.handle_request(made)
            # Also after an interrupt: a half-read connection cannot be used again.
            try:
                content = response.read()
            finally:
                response.close()
        finally:
            if self._is_closed:
                # Closed meanwhile: a connection that was made after that is this call's to close.
                self._pool.close()
        heard = {name.decode().lower(): value.decode("latin-1") for name, value in response.headers}
        return Reply(response.status, heard, content)

    def close(self) -> None:
        """See :class:`Connections`."""
        self._is_closed = True
        self._pool.close()


class GivenTransport:
    """A transport of httpx that the caller gave, in place of the connections.

    Its transport is used and not its client, because that one logs every address, and an address
    may hold a shared access signature.

    Raises:
        ValueError: httpx does not take the address for one.
    """

    def __init__(self, endpoint: Endpoint, transport: httpx.BaseTransport) -> None:
        import httpx  # noqa: PLC0415 - only for who gives one: it takes 50 ms to load

        try:
            httpx.URL(endpoint.url)
        except httpx.InvalidURL:
            raise ValueError("the url is malformed") from None
        self._url = endpoint.url
        self._transport = transport
        self._request = httpx.Request
        self._failures = httpx.RequestError

    def send(self, request: Request) -> Reply:
        """See :class:`Connections`."""
        made = self._request(
            request.method,
            self._url + request.target,
            headers=request.headers,
            content=request.content or None,
            extensions={"timeout": request.timeouts},
        )
        try:
            response = self._transport.handle_request(made)
            try:
                content = response.read()
            finally:
                response.close()
        except self._failures as error:
            raise _as_httpcore(error) from error
        return Reply(response.status_code, response.headers, content)

    def close(self) -> None:
        """See :class:`Connections`."""
        self._transport.close()


class Transport:
    """Carries calls to one server."""

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        *,
        endpoint: Endpoint,
        credential: Credential | None,
        token_provider: Callable[[], str] | None,
        timeout_s: float,
        retries: RetryPolicy,
        ssl_context: ssl.SSLContext | None,
        transport: httpx.BaseTransport | None,
    ) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be above 0, not {timeout_s}")
        self.endpoint = endpoint
        self._credential = credential
        self._token_provider = token_provider
        self._timeout_s = timeout_s
        self._retries = retries
        self._closed = False
        self._connections: Connections = (
            Pool(endpoint, ssl_context)
            if transport is None
            else GivenTransport(endpoint, transport)
        )

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more calls."""
        return self._closed

    def call(self, call: Call, retries: RetryPolicy | None = None) -> Answer:
        """Make a call, again where that is safe, and return what the server answered.

        Args:
            call: What to send.
            retries: In place of the client's.

        Raises:
            LeaseholdClientError: The server refused it, or could not be reached.
            RuntimeError: The client is closed.
        """
        if self._closed:
            raise RuntimeError("the client is closed")
        # What the caller is handling is no cause of what happens here.
        outer = sys.exception()
        tries = Tries(retries or self._retries, repeatable=call.repeatable)
        while True:
            cause: Exception | None = None
            failure: LeaseholdClientError | None
            try:
                answer, failure = self._try(call, repeated=tries.maybe_done)
            except _FAILURES as error:
                root = root_of(error, outer)
                failure = self._connection_failure(call, error, root, repeated=tries.maybe_done)
                cause = error
            else:
                if failure is None or (tries.maybe_done and is_done(failure, call.done_if)):
                    return answer
            pause_s = tries.wait_s(failure, _random.random())
            if pause_s is None or self._closed:
                raise failure from cause
            _log.debug("%s %s: retry in %.2f s: %s", call.method, call.path, pause_s, failure)
            time.sleep(pause_s)
            if self._closed:
                raise failure from cause

    def close(self) -> None:
        """Close all connections; calls from now on are refused."""
        self._closed = True
        self._connections.close()

    def _try(self, call: Call, *, repeated: bool) -> tuple[Answer, LeaseholdClientError | None]:
        request = self._request(call)
        status, headers, content = self._connections.send(request)
        url = self.endpoint.url
        answer = Answer(
            url,
            status,
            headers.get("content-type", ""),
            content,
            repeated,
            headers.get(_NEXT_AFTER),
        )
        return answer, failure_of(url, status, headers, content, repeated=repeated)

    def _request(self, call: Call) -> Request:
        headers = {
            "accept": call.accept,
            "accept-encoding": "identity",  # nothing here would undo another one
            "user-agent": _USER_AGENT,
            **self._context(),
        }
        # What a signature covers besides the x-ms headers.
        signed = {}
        if call.content:
            signed = {
                "content-length": str(len(call.content)),
                "content-type": call.content_type,
            }
        elif call.method in _WITH_CONTENT:
            headers["content-length"] = "0"
        query = call.query
        if self._token_provider is not None:
            headers |= bearer(self._token_provider())
        if self._credential is not None:
            query += self._credential.query
            headers |= self._credential.headers(Unsigned(call.method, call.path, query, signed))
        try_s = self._try_s(call)
        timeouts = {
            "connect": min(try_s, _CONNECT_S),
            "read": try_s + call.wait_s,
            "write": try_s,
            "pool": None,
        }
        target = target_of(call.path, query)
        return Request(call.method, target, headers | signed, call.content, timeouts)

    def _context(self) -> dict[str, str]:
        """Return the headers that tell the server which trace a call belongs to."""
        return {}

    def _try_s(self, call: Call) -> float:
        return self._timeout_s if call.try_s is None else min(self._timeout_s, call.try_s)

    def _connection_failure(
        self, call: Call, error: Exception, root: BaseException, *, repeated: bool
    ) -> ConnectionFailed:
        try_s = self._try_s(call)
        if isinstance(error, httpcore.ConnectTimeout):
            reason = f"no connection within {min(try_s, _CONNECT_S):g} s"
        elif isinstance(error, httpcore.TimeoutException):
            wait = f" besides the wait of {call.wait_s:g} s" if call.wait_s else ""
            reason = f"no response within {try_s:g} s{wait}"
        else:
            reason = str(root) or str(error) or type(error).__name__
        is_untrusted = isinstance(root, ssl.SSLCertVerificationError)
        if isinstance(root, ssl.SSLCertVerificationError):
            reason = getattr(root, "verify_message", None) or reason
        return ConnectionFailed(
            self.endpoint.url,
            reason,
            outcome_unknown=not isinstance(error, _NEVER_SENT),
            repeated=repeated,
            is_untrusted=is_untrusted,
        )


class TracedTransport(Transport):
    """The same with spans; see :mod:`leasehold.client._spans`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._tracer = CallTracer(self.endpoint)

    def call(self, call: Call, retries: RetryPolicy | None = None) -> Answer:
        """See :meth:`Transport.call`."""
        with self._tracer.span(call) as note:
            answer = super().call(call, retries)
            note(answer)
        return answer

    def _context(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        self._tracer.inject(headers)
        return headers


_USER_AGENT: Final = f"leasehold-python/{__version__}"


def _as_httpcore(error: BaseException) -> Exception:
    """Return what httpcore would raise for an exception of httpx: the one of the same name."""
    kinds = (_KINDS[each.__name__] for each in type(error).__mro__ if each.__name__ in _KINDS)
    return next(kinds, httpcore.NetworkError)(str(error))
