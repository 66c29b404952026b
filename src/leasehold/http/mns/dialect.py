"""The MNS dialect: from a request to an answer.

The order of checks: the address, the credentials, the version, the size and the digest of the body,
the name of the queue, the parameters, the document. Nothing that depends on what the store holds is
told to anybody who has not shown credentials for it.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Container, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from leasehold.auth.mns import MnsRequest
from leasehold.auth.types import AuthError, ForeignPage
from leasehold.clock import Clock
from leasehold.domain.command import AnyCommand, Perform
from leasehold.domain.commands import Receive
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.limits import check_queue_name
from leasehold.domain.model import Queue
from leasehold.domain.queue_settings import LapsedReceipts
from leasehold.http.admission import LongReceive
from leasehold.http.logs import log_internal_error
from leasehold.http.mns import messages, queues
from leasehold.http.mns import messages as batches
from leasehold.http.mns.call import (
    VERSION,
    Call,
    Kind,
    Operation,
    RequestIds,
    account_of_host,
    find_route,
    operation_of,
    parse_query,
)
from leasehold.http.mns.errors import Fault, fault_of, invalid_argument
from leasehold.http.mns.xml import read_long_root
from leasehold.http.requests import Request, Response, digesting, md5_of
from leasehold.http.xml import PORTION_BYTES

MAX_REQUEST_BODY_BYTES: Final = 458_752
"""Largest body of a request: 64 KiB of text in which each character is escaped, and as much again
for what a batch has besides."""
_ESCAPED: Final = 2
"""How much longer than the text its XML may be, where a queue takes larger ones."""
_MD5_BYTES: Final = 16
_MD5_DIGITS: Final = 32

_BRING_DOCUMENTS: Final = frozenset(
    {
        Operation.CREATE_QUEUE,
        Operation.SET_QUEUE_ATTRIBUTES,
        Operation.SEND_MESSAGE,
        Operation.BATCH_DELETE_MESSAGE,
    }
)
_WITH_NAME: Final = frozenset({Kind.QUEUE, Kind.MESSAGES})
_check_queue_name = lru_cache(maxsize=1024)(check_queue_name)


class Authorizer(Protocol):
    """What the dialect asks of :class:`~leasehold.auth.mns.MnsAuthenticator`."""

    def check(self, request: MnsRequest, *, now_ms: int, named: str = "") -> str:
        """Return the account that a request is signed for, or raise AuthError."""
        ...


class Handler(NamedTuple):
    """An operation that is one command."""

    read: Callable[[Call], AnyCommand]
    write: Callable[[Call, Any], Response]
    wait_s: Callable[[Call], int] | None = None
    """Reads how many seconds it may wait for a result that is not empty; then it is a Receive."""


_RECEIVE: Final = Handler(messages.parse_receive, messages.render_received, messages.wait_s)
_PEEK: Final = Handler(messages.parse_peek, messages.render_peeked)

HANDLERS: Final[Mapping[Operation, Handler]] = {
    Operation.GET_QUEUE_ATTRIBUTES: Handler(queues.parse_get_attributes, queues.render_attributes),
    Operation.DELETE_QUEUE: Handler(queues.parse_delete, messages.render_done),
    Operation.RECEIVE_MESSAGE: _RECEIVE,
    Operation.BATCH_RECEIVE_MESSAGE: _RECEIVE,
    Operation.PEEK_MESSAGE: _PEEK,
    Operation.BATCH_PEEK_MESSAGE: _PEEK,
    Operation.CHANGE_MESSAGE_VISIBILITY: Handler(messages.parse_change, messages.render_changed),
    Operation.DELETE_MESSAGE: Handler(messages.parse_delete, messages.render_done),
}
ACTIONS: Final[Mapping[Operation, queues.Action]] = {
    Operation.CREATE_QUEUE: queues.create,
    Operation.SET_QUEUE_ATTRIBUTES: queues.set_attributes,
    Operation.LIST_QUEUE: queues.list_queues,
    Operation.GET_ACCOUNT_ATTRIBUTES: queues.get_account,
    Operation.SET_ACCOUNT_ATTRIBUTES: queues.set_account,
    Operation.SEND_MESSAGE: lambda call, services: batches.send(call, services.perform),
    Operation.BATCH_DELETE_MESSAGE: lambda call, services: batches.delete(call, services.perform),
}
"""Operations that are more than one command, or of which the document says which one it is."""


def _find_none(account: str, queue: str) -> Queue | None:
    del account, queue
    return None


def _observe_nothing(operation: str, status: int) -> None:
    del operation, status


class MnsDialect:
    """Speaks the queue API of MNS.

    Args:
        perform: Carries a command out durably; raises LeaseholdError where it is refused.
        authenticator: Says who has signed.
        clock: Source of the time that messages go by.
        signing_clock: Source of the time that signatures go by.
        accounts: Names of accounts; one in the host must be the signer's.
        receive: Receives messages, and waits for some; without it nothing waits.
        find_queue: Returns a queue, for its attributes; None if nobody knows any.
        receipts: The rule of queues that are made.
        accepts_late: Whether a message may be hidden beyond its expiry.
        observe: Called once per request with the name of the operation and the status.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a collaborator of its own
        self,
        *,
        perform: Perform,
        authenticator: Authorizer,
        clock: Clock,
        signing_clock: Clock,
        accounts: Container[str],
        receive: LongReceive | None = None,
        find_queue: Callable[[str, str], Queue | None] = _find_none,
        receipts: LapsedReceipts = LapsedReceipts.STRICT,
        accepts_late: bool = False,
        observe: Callable[[str, int], None] = _observe_nothing,
    ) -> None:
        self._perform = perform
        self._receive = receive
        self._authenticator = authenticator
        self._clock = clock
        self._signing_clock = signing_clock
        self._accounts = accounts
        self._find_queue = find_queue
        self._accepts_late = accepts_late
        self._observe = observe
        self._services = queues.Services(perform, find_queue, receipts)
        self._request_ids = RequestIds()

    def is_addressed_by(self, host: str) -> bool:
        """Tell whether a request to *host* is of this dialect, on a port that others share."""
        account = account_of_host(host)
        return account != "" and account in self._accounts

    async def handle(self, request: Request) -> Response:
        """Answer a request whose body is there. Raises nothing, whatever the request holds."""
        call = self.begin(request)
        return await self.enter(call) or await self.answer(call)

    def begin(self, request: Request) -> Call:
        """See :class:`leasehold.http.app.Dialect`."""
        call = Call(request, self._request_ids.draw(), self._clock.now_ms())
        call.accepts_late = self._accepts_late
        return call

    async def enter(self, call: Call) -> Response | None:
        """See :class:`leasehold.http.app.Dialect`."""
        try:
            self._enter(call)
        except Exception as error:  # noqa: BLE001 - the client gets an answer, the log the rest
            return self._refuse(call, error)
        return None

    def longest_body(self, call: Call) -> int:
        """See :class:`leasehold.http.app.Dialect`.

        That is more than usual only for a queue that takes larger messages.
        """
        return _longest_body(call)

    async def answer(self, call: Call) -> Response:
        """See :class:`leasehold.http.app.Dialect`."""
        try:
            response = await self._answer(call)
        except Exception as error:  # noqa: BLE001 - the client gets an answer, the log the rest
            return self._refuse(call, error)
        self._observe(call.operation, response.status)
        return response

    def _refuse(self, call: Call, error: Exception) -> Response:
        if isinstance(error, Fault):
            response = call.reply_fault(error)
        elif isinstance(error, LeaseholdError | AuthError):
            response = call.reply_fault(fault_of(error))
        else:
            _log_failure(call, error)
            response = call.reply_fault(Fault("InternalError"))
        self._observe(call.operation, response.status)
        return response

    async def _answer(self, call: Call) -> Response:
        operation = call.entered
        await _check_body(call)
        if len(call.request.body) > PORTION_BYTES and operation in _BRING_DOCUMENTS:
            call.root = await read_long_root(call.request.body)
        handler = HANDLERS.get(operation)
        if handler is None:
            return await ACTIONS[operation](call, self._services)
        command = handler.read(call)
        wait_s = 0 if handler.wait_s is None else handler.wait_s(call)
        if wait_s and self._receive is not None and type(command) is Receive:
            shown: Any = await self._receive(command, wait_s, call.request.gone)
        else:
            shown = await self._perform(command)
        if handler is _RECEIVE or handler is _PEEK:
            return await digesting(messages.bytes_of(shown), handler.write, call, shown)
        return handler.write(call, shown)

    def _enter(self, call: Call) -> None:
        """Find what a request wants, and whether it may."""
        request = call.request
        headers = request.headers
        call.params = parse_query(request.raw_query)
        route = call.route = find_route(request.raw_path)
        operation = operation_of(route.kind, request.method, call.params, has_body=request.has_body)
        call.operation = call.entered = operation
        if request.is_foreign:
            raise ForeignPage
        signed = MnsRequest(request.method, request.raw_path, request.raw_query, headers)
        named = account_of_host(headers.get("host", ""))
        account = self._authenticator.check(
            signed,
            now_ms=self._signing_clock.now_ms(),
            named=named if named in self._accounts else "",
        )
        call.account = account
        version = headers.get("x-mns-version")
        if version != VERSION:
            raise Fault("InvalidVersionHeader" if version else "MissingVersionHeader")
        if route.kind in _WITH_NAME:
            _check_queue_name(route.queue)
            call.found = self._find_queue(account, route.queue)


def _log_failure(call: Call, error: Exception) -> None:
    log_internal_error(
        error,
        action="mns.internal_error",
        operation=call.operation,
        request_id=call.request_id,
    )


def _longest_body(call: Call) -> int:
    largest = None if call.found is None else call.found.settings.max_body_bytes
    return max(MAX_REQUEST_BODY_BYTES, _ESCAPED * (largest or 0) + MAX_REQUEST_BODY_BYTES // 2)


async def _check_body(call: Call) -> None:
    """Check the size of the body, and that it arrived whole."""
    request = call.request
    body = request.body
    longest = _longest_body(call)
    if request.body_too_large or len(body) > longest:
        raise invalid_argument(f"The body of the request has more than {longest} bytes.")
    sent = request.headers.get("content-md5")
    if sent and not _is_md5(await md5_of(body), sent):
        raise Fault("InvalidDegist")


def _is_md5(digest: bytes, sent: str) -> bool:
    """Tell whether *sent* is *digest*, in one of the two forms that SDKs send.

    Most send the base64 of the hexadecimal digits, one that of the digest itself.
    """
    try:
        given = b64decode(sent, validate=True)
    except (binascii.Error, ValueError):
        return False
    if len(given) == _MD5_DIGITS:
        return given.lower() == digest.hex().encode("ascii")
    return len(given) == _MD5_BYTES and given == digest
