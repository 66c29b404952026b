"""The native dialect: JSON over HTTP, from a request to an answer.

The order of checks: the address, the credentials, the query, the body. Nothing that depends on what
the store holds is told to anybody who has not shown credentials for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

from leasehold.auth.authenticator import Grant, is_bearer
from leasehold.auth.types import (
    AuthError,
    ForeignPage,
    NotAllowed,
    Operation,
    PermissionMissing,
    SignedRequest,
    Target,
)
from leasehold.clock import Clock
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.limits import check_queue_name
from leasehold.http.logs import log_internal_error
from leasehold.http.native import routes
from leasehold.http.native.call import Call, RequestIds, Services
from leasehold.http.native.errors import Problem, Refused, problem, problem_of
from leasehold.http.native.reading import percent_decode, read_params, read_query
from leasehold.http.native.routes import Route, Router, routes_for
from leasehold.http.requests import Request, Response

MAX_REQUEST_BODY_BYTES: Final = 64 * 1024 * 1024
"""Largest body of a request: a thousand of the largest messages."""

_SIGNING_VERSION: Final = "2026-10-06"
"""Rules by which a request is signed that names no version."""
_BEARER_CHARS: Final = len("Bearer ")
_UNAUTHENTICATED: Final = 401
_CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="leasehold"')

_check_queue_name = lru_cache(maxsize=1024)(check_queue_name)


class Authorizer(Protocol):
    """What the dialect asks of :class:`~leasehold.auth.authenticator.Authenticator`."""

    def check(self, request: SignedRequest, target: Target, *, now_ms: int) -> Grant:
        """Let a signed request pass, or raise AuthError."""
        ...

    async def check_bearer(self, request: SignedRequest, target: Target, *, now_ms: int) -> Grant:
        """Let a request with an issuer's token pass, or raise AuthError."""
        ...

    def check_key(self, key: str, target: Target, *, safe: bool) -> Grant:
        """Let a request that carries a key itself pass, or raise AuthError."""
        ...


def _observe_nothing(operation: str, status: int) -> None:
    del operation, status


class NativeDialect:
    """Speaks the native protocol, which ``openapi.yaml`` describes.

    Args:
        services: What the operations lean on.
        authenticator: Decides who may do what.
        clock: Source of all time.
        observe: Called once per request with ``native-`` and the name of the route, and the
            status. A request that names no route is ``native-unknown``.
    """

    def __init__(
        self,
        *,
        services: Services,
        authenticator: Authorizer,
        clock: Clock,
        observe: Callable[[str, int], None] = _observe_nothing,
    ) -> None:
        self._services = services
        self._authenticator = authenticator
        self._clock = clock
        self._observe = observe
        self._router = Router(routes_for(test_mode=services.controls is not None))
        self._request_ids = RequestIds()

    async def handle(self, request: Request) -> Response:
        """Answer a request whose body is there. Raises nothing, whatever the request holds."""
        call = self.begin(request)
        return await self.enter(call) or await self.answer(call)

    def begin(self, request: Request) -> Call:
        """See :class:`leasehold.http.app.Dialect`."""
        return Call(
            request,
            self._request_ids.draw(),
            self._clock.now_ms(),
            self._services,
            self._authorize,
        )

    async def enter(self, call: Call) -> Response | None:
        """See :class:`leasehold.http.app.Dialect`."""
        try:
            route = call.route = await self._enter(call)
            if route.handler is routes.put:
                routes.check_length(call)
        except Exception as error:  # noqa: BLE001 - the client gets an answer, the log the rest
            return self._refuse(call, error)
        return None

    def longest_body(self, call: Call) -> int:
        """See :class:`leasehold.http.app.Dialect`."""
        del call
        return MAX_REQUEST_BODY_BYTES

    async def answer(self, call: Call) -> Response:
        """See :class:`leasehold.http.app.Dialect`."""
        try:
            _check_size(call.request)
            response = await call.route.handler(call)
        except Exception as error:  # noqa: BLE001 - the client gets an answer, the log the rest
            return self._refuse(call, error)
        self._observe(call.operation, response.status)
        return response

    def _refuse(self, call: Call, error: Exception) -> Response:
        if isinstance(error, Refused):
            response = call.reply_problem(error.problem, *error.headers)
        elif isinstance(error, LeaseholdError | AuthError):
            response = _reply_error(call, problem_of(error))
        else:
            _log_failure(call, error)
            response = call.reply_problem(problem("internal-error"))
        self._observe(call.operation, response.status)
        return response

    async def _enter(self, call: Call) -> Route:
        """Find what a request wants, and whether it may."""
        request = call.request
        parts = request.raw_path.split("/")
        if "%" in request.raw_path or not request.raw_path.isascii():
            parts = [percent_decode(part, "the path") for part in parts]
        route = self._router.find(call, parts)
        call.operation = "native-" + route.name
        if request.is_foreign:
            raise ForeignPage
        pairs = read_query(request.raw_query)
        call.pairs = pairs
        queue = call.queue or None
        if route.instead is None:
            for operation in route.operations:
                await self._authorize(call, operation, queue)
        else:
            await self._authorize_either(call, (*route.operations, route.instead), queue)
        call.params = read_params(pairs, route.params) if pairs else {}
        if call.queue:
            _check_queue_name(call.queue)
        return route

    async def _authorize_either(
        self, call: Call, operations: tuple[Operation, ...], queue: str | None
    ) -> None:
        """Let a request pass that may do one of several operations."""
        for operation in operations[:-1]:
            try:
                await self._authorize(call, operation, queue)
            except (NotAllowed, PermissionMissing):
                continue
            return
        await self._authorize(call, operations[-1], queue)

    async def _authorize(self, call: Call, operation: Operation, queue: str | None) -> Grant:
        target = Target(account=call.account, operation=operation, queue=queue)
        request = call.request
        header = request.headers.get("authorization", "")
        if header[:_BEARER_CHARS].lower() == "bearer " and "." not in header:
            # An issuer's token has dots in it, base64 has none.
            safe = request.https or is_loopback(request.client_ip)
            key = header[_BEARER_CHARS:].strip()
            return self._authenticator.check_key(key, target, safe=safe)
        signed = SignedRequest(
            method=request.method,
            path=request.raw_path,
            query=call.pairs,
            headers=request.headers,
            version=request.headers.get("x-ms-version", _SIGNING_VERSION),
            client_ip=request.client_ip,
            https=request.https,
        )
        if is_bearer(signed):
            return await self._authenticator.check_bearer(signed, target, now_ms=call.now_ms)
        return self._authenticator.check(signed, target, now_ms=call.now_ms)


def _check_size(request: Request) -> None:
    if request.body_too_large or len(request.body) > MAX_REQUEST_BODY_BYTES:
        raise Refused(problem("request-too-large", limit=MAX_REQUEST_BODY_BYTES))


def is_loopback(client_ip: str) -> bool:
    """Tell whether a client is on this machine; the address is the one that the socket knows."""
    return client_ip.startswith("127.") or client_ip in {"::1", "::ffff:127.0.0.1"}


def _reply_error(call: Call, found: Problem) -> Response:
    if found.status == _UNAUTHENTICATED:
        return call.reply_problem(found, _CHALLENGE)
    return call.reply_problem(found)


def _log_failure(call: Call, error: Exception) -> None:
    log_internal_error(
        error,
        action="native.internal_error",
        operation=call.operation,
        request_id=call.request_id,
    )
