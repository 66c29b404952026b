"""Sending: one call in, its answer out, with authorisation, time-outs and retries."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx

from leasehold import __version__
from leasehold.client._answers import Answer, Tries, failure_of, is_done
from leasehold.client._calls import Call, Credential, Unsigned, bearer, target_of
from leasehold.client._connection import Endpoint
from leasehold.client._spans import CallTracer
from leasehold.client.errors import ConnectionFailed, LeaseholdClientError
from leasehold.client.retries import RetryPolicy

_IDLE_S: Final = 50.0
"""How long an idle connection is kept: less than servers and proxies usually do (60 s and more),
so that a request does not meet a connection that is being closed."""
_CONNECT_S: Final = 10.0
_NEXT_AFTER: Final = "leasehold-next-after"
_NEVER_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)
_log: Final = logging.getLogger("leasehold.client")
_random: Final = random.SystemRandom()


class AsyncTransport:
    """Carries calls to one server.

    It speaks to the transport of httpx, not to its client, because that one logs every address,
    and an address may hold a shared access signature.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        *,
        endpoint: Endpoint,
        credential: Credential | None,
        token_provider: Callable[[], Awaitable[str]] | None,
        timeout_s: float,
        retries: RetryPolicy,
        ssl_context: ssl.SSLContext | None,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be above 0, not {timeout_s}")
        try:
            httpx.URL(endpoint.url)
        except httpx.InvalidURL:
            raise ValueError("the url is malformed") from None
        self.endpoint = endpoint
        self._credential = credential
        self._token_provider = token_provider
        self._timeout_s = timeout_s
        self._retries = retries
        self._closed = False
        self._http = transport or httpx.AsyncHTTPTransport(
            verify=ssl_context or _trust(endpoint),
            # A connection per call under way: with a ceiling, receives that wait could keep a
            # renewal waiting until its lease has run out. httpx counts busy connections when it
            # limits idle ones, so that limit is off as well.
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=_IDLE_S
            ),
        )

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more calls."""
        return self._closed

    async def call(self, call: Call, retries: RetryPolicy | None = None) -> Answer:
        """Make a call, again where that is safe, and return what the server answered.

        Args:
            call: What to send.
            retries: In place of the client's.

        Raises:
            LeaseholdClientError: The server refused it, or could not be reached.
            RuntimeError: The client is closed.
        """
        tries = Tries(retries or self._retries, repeatable=call.repeatable)
        while True:
            cause: Exception | None = None
            failure: LeaseholdClientError | None
            try:
                answer, failure = await self._try(call, repeated=tries.maybe_done)
            except httpx.RequestError as error:
                failure = self._connection_failure(call, error, repeated=tries.maybe_done)
                cause = error
            else:
                if failure is None or (tries.maybe_done and is_done(failure, call.done_if)):
                    return answer
            pause_s = tries.wait_s(failure, _random.random())
            if pause_s is None:
                raise failure from cause
            _log.debug("%s %s: again in %.2f s: %s", call.method, call.path, pause_s, failure)
            await asyncio.sleep(pause_s)

    async def aclose(self) -> None:
        """Close all connections; calls from now on are refused."""
        self._closed = True
        await self._http.aclose()

    async def _try(
        self, call: Call, *, repeated: bool
    ) -> tuple[Answer, LeaseholdClientError | None]:
        if self._closed:
            raise RuntimeError("the client is closed")
        response = await self._http.handle_async_request(await self._request(call))
        # Also when the caller is cancelled: a half-read connection cannot be used again.
        try:
            content = await response.aread()
        finally:
            await response.aclose()
        headers, status, url = response.headers, response.status_code, self.endpoint.url
        answer = Answer(
            url,
            status,
            headers.get("content-type", ""),
            content,
            repeated,
            headers.get(_NEXT_AFTER),
        )
        return answer, failure_of(url, status, headers, content, repeated=repeated)

    async def _request(self, call: Call) -> httpx.Request:
        headers = {"accept": call.accept, "user-agent": _USER_AGENT}
        # What a signature covers besides the x-ms headers.
        signed = {}
        if call.content:
            signed = {
                "content-length": str(len(call.content)),
                "content-type": call.content_type,
            }
        query = call.query
        if self._token_provider is not None:
            headers |= bearer(await self._token_provider())
        if self._credential is not None:
            query += self._credential.query
            headers |= self._credential.headers(Unsigned(call.method, call.path, query, signed))
        try_s = self._try_s(call)
        return httpx.Request(
            call.method,
            self.endpoint.url + target_of(call.path, query),
            headers=headers | signed,
            content=call.content or None,
            extensions={
                "timeout": {
                    "connect": min(try_s, _CONNECT_S),
                    "read": try_s + call.wait_s,
                    "write": try_s,
                    "pool": None,
                }
            },
        )

    def _try_s(self, call: Call) -> float:
        return self._timeout_s if call.try_s is None else min(self._timeout_s, call.try_s)

    def _connection_failure(
        self, call: Call, error: httpx.RequestError, *, repeated: bool
    ) -> ConnectionFailed:
        try_s = self._try_s(call)
        if isinstance(error, httpx.ConnectTimeout):
            reason = f"no connection within {min(try_s, _CONNECT_S):g} s"
        elif isinstance(error, httpx.TimeoutException):
            wait = f" besides the {call.wait_s:g} s asked for" if call.wait_s else ""
            reason = f"nothing came for {try_s:g} s{wait}"
        else:
            reason = str(_root_of(error)) or str(error) or type(error).__name__
        root = _root_of(error)
        is_untrusted = isinstance(root, ssl.SSLCertVerificationError)
        if isinstance(root, ssl.SSLCertVerificationError):
            reason = root.verify_message or reason
        return ConnectionFailed(
            self.endpoint.url,
            reason,
            outcome_unknown=not isinstance(error, _NEVER_SENT),
            repeated=repeated,
            is_untrusted=is_untrusted,
        )


class AsyncTracedTransport(AsyncTransport):
    """The same with spans; see :mod:`leasehold.client._spans`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._tracer = CallTracer(self.endpoint)

    async def call(self, call: Call, retries: RetryPolicy | None = None) -> Answer:
        """See :meth:`AsyncTransport.call`."""
        with self._tracer.span(call) as note:
            answer = await super().call(call, retries)
            note(answer)
        return answer

    async def _request(self, call: Call) -> httpx.Request:
        request = await super()._request(call)
        self._tracer.inject(request.headers)
        return request


_USER_AGENT: Final = f"leasehold-python/{__version__}"


def _root_of(error: BaseException) -> BaseException:
    """Return the error of the operating system or of TLS behind those of the libraries."""
    deeper = error.__cause__ or error.__context__
    return error if deeper is None else _root_of(deeper)


def _trust(endpoint: Endpoint) -> ssl.SSLContext:
    if endpoint.is_https:
        return ssl.create_default_context()
    # Plain http has no use for certificates, and to load them takes 20 ms.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
