"""The native dialect: JSON over HTTP, from a request to an answer.

The order of checks: the address, the credentials, the query, the body. Nothing that depends on what
the store holds is told to anybody who has not shown credentials for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from leasehold.auth.authenticator import Grant
from leasehold.auth.types import (
    BEARER,
    AuthError,
    ForeignPage,
    NotAllowed,
    Operation,
    PermissionMissing,
    Target,
)
from leasehold.clock import Clock
from leasehold.domain.errors import LeaseholdError
from leasehold.http.app import (
    Authorizer,
    BaseDialect,
    authorize,
    check_known_queue_name,
    observe_nothing,
)
from leasehold.http.native import routes
from leasehold.http.native.call import Call, Services, request_ids
from leasehold.http.native.errors import Refused, problem, problem_of
from leasehold.http.native.reading import percent_decode, read_params, read_query
from leasehold.http.native.routes import Router, routes_for
from leasehold.http.requests import Response

MAX_REQUEST_BODY_BYTES: Final = 64 * 1024 * 1024
"""Largest body of a request: a thousand of the largest messages."""

_SIGNING_VERSION: Final = "2026-10-06"
"""Rules by which a request is signed that names no version."""
_UNAUTHENTICATED: Final = 401
_CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="leasehold"')


class NativeDialect(BaseDialect[Call, Refused]):
    """Speaks the native protocol, which ``openapi.yaml`` describes.

    Args:
        services: What the operations lean on.
        authenticator: Decides who may do what.
        clock: Source of all time.
        accepts_late: Whether leases may be renewed beyond their message's expiry.
        observe: Called once per request with ``native-`` and the name of the route, and the
            status. A request that names no route is ``native-unknown``.
    """

    def __init__(
        self,
        *,
        services: Services,
        authenticator: Authorizer,
        clock: Clock,
        accepts_late: bool = False,
        observe: Callable[[str, int], None] = observe_nothing,
    ) -> None:
        super().__init__(
            action="native.internal_error",
            faults=Refused,
            new_call=partial(Call, services, self._authorize),
            request_ids=request_ids(),
            clock=clock,
            accepts_late=accepts_late,
            observe=observe,
        )
        self._authenticator = authenticator
        self._router = Router(routes_for(test_mode=services.controls is not None))

    def longest_body(self, call: Call) -> int:
        """See :class:`leasehold.http.app.BaseDialect`."""
        del call
        return MAX_REQUEST_BODY_BYTES

    async def _enter(self, call: Call) -> None:
        """Find what a request wants, and whether it may."""
        request = call.request
        parts = request.raw_path.split("/")
        if "%" in request.raw_path or not request.raw_path.isascii():
            parts = [percent_decode(part, "the path") for part in parts]
        route = call.route = self._router.find(call, parts)
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
            check_known_queue_name(call.queue)
        if route.handler is routes.put:
            routes.check_length(call)

    def _answer(self, call: Call) -> Awaitable[Response]:
        request = call.request
        if request.body_too_large or len(request.body) > MAX_REQUEST_BODY_BYTES:
            raise Refused(problem("request-too-large", limit=MAX_REQUEST_BODY_BYTES))
        return call.route.handler(call)

    def _fault_of(self, call: Call, error: LeaseholdError | AuthError) -> Refused:
        del call
        found = problem_of(error)
        if found.status == _UNAUTHENTICATED:
            return Refused(found, _CHALLENGE)
        return Refused(found)

    def _internal_error(self) -> Refused:
        return Refused(problem("internal-error"))

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
        if header[: len(BEARER)].lower() == BEARER and "." not in header:
            # An issuer's token has dots in it, base64 has none.
            safe = request.https or is_loopback(request.client_ip)
            key = header[len(BEARER) :].strip()
            return self._authenticator.check_key(key, target, safe=safe)
        version = request.headers.get("x-ms-version", _SIGNING_VERSION)
        return await authorize(
            self._authenticator, request, target, call.pairs, version, call.now_ms
        )


def is_loopback(client_ip: str) -> bool:
    """Tell whether a client is on this machine; the address is the one that the socket knows."""
    return client_ip.startswith("127.") or client_ip in {"::1", "::ffff:127.0.0.1"}
