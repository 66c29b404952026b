"""What the dialects have in common: the steps of a request, its id, its sender, its refusal.

A dialect reads requests, writes answers and has a table of errors; the rest is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import lru_cache
from itertools import count
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from leasehold.auth.authenticator import Grant
from leasehold.auth.types import BEARER, AuthError, Pairs, SignedRequest, Target
from leasehold.clock import Clock
from leasehold.domain.command import AnyCommand, Perform
from leasehold.domain.commands import Receive
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.limits import check_queue_name
from leasehold.domain.model import Queue
from leasehold.http.admission import LongReceive
from leasehold.http.logs import log_internal_error
from leasehold.http.requests import Request, Response

# Remembers which names have passed: the same few are used over and over.
check_known_queue_name = lru_cache(maxsize=1024)(check_queue_name)


class SignatureAuthorizer(Protocol):
    """Lets requests pass by what they carry in their ``Authorization`` or their query.

    See :class:`~leasehold.auth.authenticator.Authenticator`.
    """

    def check(self, request: SignedRequest, target: Target, *, now_ms: int) -> Grant:
        """Let a signed request pass, or raise AuthError."""
        ...

    async def check_bearer(self, request: SignedRequest, target: Target, *, now_ms: int) -> Grant:
        """Let a request with an issuer's token pass, or raise AuthError."""
        ...


class Authorizer(SignatureAuthorizer, Protocol):
    """The same, also for keys that are sent themselves."""

    def check_key(self, key: str, target: Target, *, safe: bool) -> Grant:
        """Let a request that carries a key itself pass, or raise AuthError."""
        ...


async def authorize(  # noqa: PLR0913, PLR0917 - each is a fact of its own
    authorizer: SignatureAuthorizer,
    request: Request,
    target: Target,
    query: Pairs,
    version: str,
    now_ms: int,
) -> Grant:
    """Let a request pass that is signed, or has an issuer's token.

    Args:
        authorizer: Decides.
        request: As it was sent.
        target: What it is aimed at.
        query: Its query, decoded once.
        version: The protocol version by whose rules it is signed, ``YYYY-MM-DD``.
        now_ms: When it came, Unix milliseconds.

    Raises:
        AuthError: It may not pass.
    """
    signed = SignedRequest(
        method=request.method,
        path=request.raw_path,
        query=query,
        headers=request.headers,
        version=version,
        client_ip=request.client_ip,
        https=request.https,
    )
    if request.headers.get("authorization", "")[: len(BEARER)].lower() == BEARER:
        return await authorizer.check_bearer(signed, target, now_ms=now_ms)
    return authorizer.check(signed, target, now_ms=now_ms)


class RequestIds:
    """Ids that count in eight hexadecimal digits; the rest is the same for a whole process.

    Args:
        form: The id with a ``%08x``, or in capitals, for the number.
        first: The first number, 0 to 2**32 - 1.
    """

    def __init__(self, form: bytes, first: int = 0) -> None:
        self._form = form
        self._numbers = count(first)

    def draw(self) -> bytes:
        """Return the next id; ids repeat after 2**32 requests."""
        return self._form % (next(self._numbers) & 0xFFFF_FFFF)


class BaseCall:
    """What is known so far about a request. The dialect fills it in, stage by stage."""

    __slots__ = ("accepts_late", "account", "now_ms", "operation", "request", "request_id")

    request: Request
    request_id: bytes
    now_ms: int
    """When the header of the request had come, by the clock that messages go by."""
    accepts_late: bool
    """Whether a lease may be renewed beyond its message's expiry, in every version."""
    account: str
    """Empty until it is known."""
    operation: str
    """Its name in metrics and logs."""

    def reply_fault(self, fault: Any) -> Response:
        """Return an error, in the form of the dialect."""
        raise NotImplementedError


_CallT = TypeVar("_CallT", bound=BaseCall)
_FaultT = TypeVar("_FaultT", bound=Exception)

AddHeaders = Callable[[_CallT, Response], Awaitable[None]]


class BaseDialect(ABC, Generic[_CallT, _FaultT]):
    """The way of a request through a dialect; see :class:`leasehold.http.app.Dialect`.

    Args:
        action: Name of the log event of an error of the server's own.
        faults: The exceptions by which a request is refused in the dialect's own words.
        new_call: Returns a call of which nothing is known yet.
        request_ids: Where ids of requests come from.
        clock: The one that messages go by.
        accepts_late: Whether leases may be renewed beyond their message's expiry in every version.
        observe: Called once per request with the name of the operation and the status.
        add_headers: Adds to an answer, errors included, what all answers have; None for nothing.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a collaborator of its own
        self,
        *,
        action: str,
        faults: type[_FaultT],
        new_call: Callable[[], _CallT],
        request_ids: RequestIds,
        clock: Clock,
        accepts_late: bool,
        observe: Callable[[str, int], None],
        add_headers: AddHeaders[_CallT] | None = None,
    ) -> None:
        self._action = action
        self._faults = faults
        self._new_call = new_call
        self._request_ids = request_ids
        self._clock = clock
        self._accepts_late = accepts_late
        self._observe = observe
        self._add_headers = add_headers

    async def handle(self, request: Request) -> Response:
        """Answer a request whose body is there. Raises nothing, whatever the request holds."""
        call = self.begin(request)
        return await self.enter(call) or await self.answer(call)

    def begin(self, request: Request) -> _CallT:
        """See :class:`leasehold.http.app.Dialect`."""
        call = self._new_call()
        call.request = request
        call.request_id = self._request_ids.draw()
        call.now_ms = self._clock.now_ms()
        call.accepts_late = self._accepts_late
        return call

    async def enter(self, call: _CallT) -> Response | None:
        """See :class:`leasehold.http.app.Dialect`."""
        try:
            response = await self._enter(call)
        except Exception as error:  # noqa: BLE001 - the client gets an answer, the log the rest
            response = self._refusal(call, error)
        if response is None:
            return None
        if self._add_headers is not None:
            await self._add_headers(call, response)
        self._observe(call.operation, response.status)
        return response

    @abstractmethod
    def longest_body(self, call: _CallT) -> int:
        """See :class:`leasehold.http.app.Dialect`."""

    async def answer(self, call: _CallT) -> Response:
        """See :class:`leasehold.http.app.Dialect`."""
        try:
            response = await self._answer(call)
        except Exception as error:  # noqa: BLE001 - the client gets an answer, the log the rest
            response = self._refusal(call, error)
        if self._add_headers is not None:
            await self._add_headers(call, response)
        self._observe(call.operation, response.status)
        return response

    # --- what a dialect adds -----------------------------------------------------------------

    @abstractmethod
    async def _enter(self, call: _CallT) -> Response | None:
        """Find what a request wants, and whether it may; return what needs no body at once.

        Raises:
            Exception: One of ``faults``, LeaseholdError or AuthError: the request is refused.
        """

    @abstractmethod
    def _answer(self, call: _CallT) -> Awaitable[Response]:
        """Answer a request whose body is there.

        Raises:
            Exception: As for :meth:`_enter`.
        """

    @abstractmethod
    def _fault_of(self, call: _CallT, error: LeaseholdError | AuthError) -> _FaultT:
        """Return what the dialect calls an error."""

    @abstractmethod
    def _internal_error(self) -> _FaultT:
        """Return what the dialect calls an error of the server's own."""

    def _refusal(self, call: _CallT, error: Exception) -> Response:
        if isinstance(error, self._faults):
            return call.reply_fault(error)
        if isinstance(error, LeaseholdError | AuthError):
            return call.reply_fault(self._fault_of(call, error))
        self._log_failure(call, error)
        return call.reply_fault(self._internal_error())

    def _log_failure(self, call: _CallT, error: Exception) -> None:
        log_internal_error(
            error, action=self._action, operation=call.operation, request_id=call.request_id
        )


# --- operations --------------------------------------------------------------------------------


class Handler(NamedTuple, Generic[_CallT]):
    """An operation that is one command."""

    read: Callable[[_CallT], AnyCommand]
    write: Callable[[_CallT, Any], Response]
    wait_s: Callable[[_CallT], int] | None = None
    """Reads how many seconds it may wait for a result that is not empty; then it is a Receive."""


def carry_out(
    handler: Handler[_CallT],
    call: _CallT,
    perform: Perform,
    receive: LongReceive | None,
) -> Awaitable[Any]:
    """Read a request and begin what it asks for; the result is what its handler writes.

    It is no coroutine, as each one that waits for another is called again when that goes on.

    Args:
        handler: Reads the request.
        call: The request.
        perform: Carries a command out durably.
        receive: Receives messages, and waits for some; without it nothing waits.

    Raises:
        Exception: The request cannot be read; or, from what is returned, LeaseholdError: the
            command was refused.
    """
    command = handler.read(call)
    wait_s = 0 if handler.wait_s is None else handler.wait_s(call)
    if wait_s and receive is not None and type(command) is Receive:
        return receive(command, wait_s, call.request.gone)
    return perform(command)


def find_no_queue(account: str, queue: str) -> Queue | None:
    """Know no queue; for dialects that are told of none."""
    del account, queue
    return None


def observe_nothing(operation: str, status: int) -> None:
    """Count nothing."""
    del operation, status
