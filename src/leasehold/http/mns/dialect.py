"""The MNS dialect: from a request to an answer.

The order of checks: the address, the credentials, the version, the size and the digest of the body,
the name of the queue, the parameters, the document. Nothing that depends on what the store holds is
told to anybody who has not shown credentials for it.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Container, Mapping
from typing import Final, Protocol

from leasehold.auth.mns import MnsRequest
from leasehold.auth.types import AuthError, ForeignPage
from leasehold.clock import Clock
from leasehold.domain.command import Perform
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.model import Queue
from leasehold.domain.queue_settings import LapsedReceipts
from leasehold.http.admission import LongReceive
from leasehold.http.app import (
    BaseDialect,
    Handler,
    carry_out,
    check_known_queue_name,
    find_no_queue,
    mns_account_of,
    observe_nothing,
)
from leasehold.http.mns import messages, queues
from leasehold.http.mns import messages as batches
from leasehold.http.mns.call import (
    VERSION,
    Call,
    Kind,
    Operation,
    find_route,
    operation_of,
    parse_query,
    request_ids,
)
from leasehold.http.mns.errors import Fault, fault_of, invalid_argument
from leasehold.http.mns.xml import read_long_root
from leasehold.http.requests import Response, digesting, md5_digest
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


class MnsAuthorizer(Protocol):
    """What the dialect asks of :class:`~leasehold.auth.mns.MnsAuthenticator`."""

    def check(self, request: MnsRequest, *, now_ms: int, named: str = "") -> str:
        """Return the account that a request is signed for, or raise AuthError."""
        ...


_RECEIVE: Final[Handler[Call]] = Handler(
    messages.parse_receive, messages.render_received, messages.wait_s
)
_PEEK: Final[Handler[Call]] = Handler(messages.parse_peek, messages.render_peeked)

HANDLERS: Final[Mapping[Operation, Handler[Call]]] = {
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


class MnsDialect(BaseDialect[Call, Fault]):
    """Speaks the queue API of MNS.

    Args:
        perform: Carries a command out durably; raises LeaseholdError where it is refused.
        authenticator: Says who has signed.
        clock: Source of the time that messages go by.
        signing_clock: Source of the time that signatures go by.
        accounts: Names of accounts; one in the host must be the signer's.
        receive: Receives messages, and waits for some; without it nothing waits.
        find_queue: Returns a queue, for its attributes; None if there is none.
        receipts: The rule of queues that are made.
        accepts_late: Whether a message may be hidden beyond its expiry.
        observe: Called once per request with the name of the operation and the status.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a collaborator of its own
        self,
        *,
        perform: Perform,
        authenticator: MnsAuthorizer,
        clock: Clock,
        signing_clock: Clock,
        accounts: Container[str],
        receive: LongReceive | None = None,
        find_queue: Callable[[str, str], Queue | None] = find_no_queue,
        receipts: LapsedReceipts = LapsedReceipts.STRICT,
        accepts_late: bool = False,
        observe: Callable[[str, int], None] = observe_nothing,
    ) -> None:
        super().__init__(
            action="mns.internal_error",
            faults=Fault,
            new_call=Call,
            request_ids=request_ids(),
            clock=clock,
            accepts_late=accepts_late,
            observe=observe,
        )
        self._perform = perform
        self._receive = receive
        self._authenticator = authenticator
        self._signing_clock = signing_clock
        self._accounts = accounts
        self._find_queue = find_queue
        self._services = queues.Services(perform, find_queue, receipts)

    def longest_body(self, call: Call) -> int:
        """See :class:`leasehold.http.app.BaseDialect`.

        That is more than usual only for a queue that takes larger messages.
        """
        largest = None if call.found is None else call.found.settings.max_body_bytes
        return max(MAX_REQUEST_BODY_BYTES, _ESCAPED * (largest or 0) + MAX_REQUEST_BODY_BYTES // 2)

    async def _answer(self, call: Call) -> Response:
        operation, request = call.entered, call.request
        body, longest = request.body, self.longest_body(call)
        if request.body_too_large or len(body) > longest:
            raise invalid_argument(f"The body of the request has more than {longest} bytes.")
        sent = request.headers.get("content-md5")
        if sent and not _is_md5(await md5_digest(body), sent):
            raise Fault("InvalidDegist")
        if len(body) > PORTION_BYTES and operation in _BRING_DOCUMENTS:
            call.root = await read_long_root(body)
        handler = HANDLERS.get(operation)
        if handler is None:
            return await ACTIONS[operation](call, self._services)
        shown = await carry_out(handler, call, self._perform, self._receive)
        if handler is _RECEIVE or handler is _PEEK:
            return await digesting(messages.bytes_of(shown), handler.write, call, shown)
        return handler.write(call, shown)

    async def _enter(self, call: Call) -> None:
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
        named = mns_account_of(headers.get("host", ""))
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
            check_known_queue_name(route.queue)
            call.found = self._find_queue(account, route.queue)

    def _fault_of(self, call: Call, error: LeaseholdError | AuthError) -> Fault:
        del call
        return fault_of(error)


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
