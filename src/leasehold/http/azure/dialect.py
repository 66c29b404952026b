"""The Azure Queue Storage dialect: from a request to an answer.

The order of checks: the version, the address, the credentials, the parameters, the body. Nothing
that depends on what the store holds is told to anybody who has not shown credentials for it.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from leasehold.auth.authenticator import Grant
from leasehold.auth.types import (
    Account,
    AuthError,
    ForeignPage,
    NoCredentials,
    Operation,
    Target,
)
from leasehold.clock import Clock
from leasehold.domain.command import Perform
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.limits import check_azure_queue_name
from leasehold.domain.model import Queue
from leasehold.http.admission import LongReceive
from leasehold.http.app import (
    BaseDialect,
    Handler,
    SignatureAuthorizer,
    authorize,
    carry_out,
    find_no_queue,
    observe_nothing,
)
from leasehold.http.azure import messages, queues
from leasehold.http.azure.call import (
    ACL_SINCE,
    DELEGATION_KEY_SINCE,
    OLDEST,
    STATS_SINCE,
    UNREADABLE,
    UNSTATED,
    UPDATE_MESSAGE_SINCE,
    Call,
    Router,
    choose_version,
    operation_of,
    parse_query,
    request_ids,
    timeout_s,
)
from leasehold.http.azure.errors import Fault, body_too_large, fault_of
from leasehold.http.azure.service import (
    AccountService,
    CorsRule,
    add_headers,
    get_delegation_key,
    preflight_headers,
)
from leasehold.http.requests import Response, md5_digest
from leasehold.http.xml import PORTION_BYTES

MAX_REQUEST_BODY_BYTES: Final = 131_584
"""Largest body of a request: 128 KiB and 512 bytes, the service's own limit for messages."""
_AROUND_TEXT_BYTES: Final = 512
_ESCAPED: Final = 2
"""How much longer than the text its XML may be: the service's own ratio."""

DEFAULT_AUTHORIZATION_URI: Final = (
    "https://leasehold.invalid/00000000-0000-0000-0000-000000000000/oauth2/authorize"
)
"""A placeholder. Clients take its first segment for a tenant, and some insist that it is a UUID."""
DEFAULT_RESOURCE_ID: Final = "https://storage.azure.com"

_MD5_BYTES: Final = 16
_BRING_BODIES: Final = frozenset({Operation.PUT_MESSAGE, Operation.UPDATE_MESSAGE})
# Remembers which names have passed: the same few are used over and over.
_check_queue_name = lru_cache(maxsize=1024)(check_azure_queue_name)


@lru_cache(maxsize=1024)
def _target_of(account: str, operation: Operation, queue: str, secondary: bool) -> Target:
    return Target(account=account, operation=operation, queue=queue or None, secondary=secondary)


class AzureDialect(BaseDialect[Call, Fault]):
    """Speaks the REST protocol of Azure Queue Storage.

    Args:
        perform: Carries a command out durably; raises LeaseholdError where it is refused.
        authenticator: Decides who may do what.
        clock: Source of all time.
        accounts: Accounts by name, as the authenticator has them; read at each request.
        authorization_uri: Where clients without credentials are sent for a token.
        resource_id: For what they ask a token there.
        receive: Receives messages, and waits for some; without it nothing waits.
        find_queue: Returns a queue, for the size of body that is set for it; None if there is none.
        accepts_late: Whether leases may be renewed beyond their message's expiry in every version.
        observe: Called once per request with the name of the operation and the status. A request
            that names no operation is ``unknown``, a CORS preflight is ``preflight``.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a collaborator of its own
        self,
        *,
        perform: Perform,
        authenticator: SignatureAuthorizer,
        clock: Clock,
        accounts: Mapping[str, Account],
        authorization_uri: str = DEFAULT_AUTHORIZATION_URI,
        resource_id: str = DEFAULT_RESOURCE_ID,
        receive: LongReceive | None = None,
        find_queue: Callable[[str, str], Queue | None] = find_no_queue,
        accepts_late: bool = False,
        observe: Callable[[str, int], None] = observe_nothing,
    ) -> None:
        super().__init__(
            action="azure.internal_error",
            faults=Fault,
            new_call=Call,
            request_ids=request_ids(),
            clock=clock,
            accepts_late=accepts_late,
            observe=observe,
            add_headers=self._add_rules,
        )
        self._perform = perform
        self._receive = receive
        self._authenticator = authenticator
        self._accounts = accounts
        self._find_queue = find_queue
        self._router = Router(accounts)
        self._service = AccountService(perform)
        challenge = f"Bearer authorization_uri={authorization_uri} resource_id={resource_id}"
        self._challenge = (b"www-authenticate", challenge.encode("ascii"))

    def longest_body(self, call: Call) -> int:
        """See :class:`leasehold.http.app.BaseDialect`.

        That is more than the service's own limit for messages of a queue that takes larger ones.
        """
        if call.max_body_bytes is None:
            return MAX_REQUEST_BODY_BYTES
        return max(MAX_REQUEST_BODY_BYTES, _ESCAPED * call.max_body_bytes + _AROUND_TEXT_BYTES)

    async def _answer(self, call: Call) -> Response:
        request = call.request
        operation, grant = call.entered
        rules = RULES[operation]
        _check_rules(call, rules)
        if call.route.queue:
            _check_queue_name(call.route.queue)
        await self._check_body(call, rules)
        if len(request.body) > PORTION_BYTES and operation in _BRING_BODIES:
            call.text = await messages.long_message_text(request.body)
        handler = HANDLERS.get(operation)
        if handler is not None:
            result = await carry_out(handler, call, self._perform, self._receive)
            return handler.write(call, result)
        return await self._answer_for_account(call, operation, grant)

    async def _enter(self, call: Call) -> Response | None:
        """Find what a request wants, and whether it may; a preflight is answered here."""
        request = call.request
        if request.method == "OPTIONS":
            return await self._preflight(call)
        headers = request.headers
        call.pairs, call.params = parse_query(request.raw_query)
        call.version = choose_version(headers, call.params)
        route = call.route = self._router.find(request.raw_path, headers.get("host", ""))
        call.account = route.place.account
        operation = operation_of(route.kind, request.method, call.params)
        call.operation = operation
        if request.is_foreign:
            await self._check_page(call)
        place = route.place
        target = _target_of(place.account, operation, route.queue, place.secondary)
        grant = await authorize(
            self._authenticator, request, target, call.pairs, call.version.text, call.now_ms
        )
        if operation in _BRING_BODIES:
            queue = self._find_queue(call.account, route.queue)
            if queue is not None:
                call.max_body_bytes = queue.settings.max_body_bytes
        call.entered = operation, grant
        return None

    async def _answer_for_account(self, call: Call, operation: Operation, grant: Grant) -> Response:
        if operation is Operation.GET_SERVICE_PROPERTIES:
            return await self._service.get_properties(call)
        if operation is Operation.SET_SERVICE_PROPERTIES:
            return await self._service.set_properties(call)
        if operation is Operation.GET_SERVICE_STATS:
            return await self._service.get_stats(call)
        assert operation is Operation.GET_USER_DELEGATION_KEY
        return get_delegation_key(call, self._accounts[call.account], grant)

    async def _check_page(self, call: Call) -> None:
        """Let a web page of another origin do what the rules of the account let it do."""
        headers = call.request.headers
        rules = await self._rules(call.account, call.now_ms)
        origin, method = headers.get("origin"), call.request.method
        if not any(rule.admits(origin, method) for rule in rules):
            raise ForeignPage

    async def _preflight(self, call: Call) -> Response:
        request = call.request
        call.pairs, call.params = parse_query(request.raw_query)
        version = choose_version(request.headers, call.params)
        call.version = UNREADABLE if version is UNSTATED else version
        call.operation = "preflight"
        place = self._router.find_place(request.raw_path, request.headers.get("host", ""))
        rules = await self._rules(place.account, call.now_ms)
        return call.reply(200, *preflight_headers(rules, request.headers))

    async def _add_rules(self, call: Call, response: Response) -> None:
        """Tell browsers what the account's rules let a page of another origin see."""
        if call.account:
            known = self._service.known_rules.get(call.account)
            if known is None or known[0] or call.now_ms >= known[1]:
                await self._add_cors_headers(call, response)

    async def _add_cors_headers(self, call: Call, response: Response) -> None:
        try:
            rules = await self._rules(call.account, call.now_ms)
        except Exception as error:  # noqa: BLE001 - what was done is done, and must be told
            self._log_failure(call, error)
            return
        if rules:
            origin = call.request.headers.get("origin")
            add_headers(rules, call.request.method, origin, response.headers)

    async def _rules(self, account: str, now_ms: int) -> tuple[CorsRule, ...]:
        if account not in self._accounts:
            return ()
        return await self._service.current_rules(account, now_ms)

    def _fault_of(self, call: Call, error: LeaseholdError | AuthError) -> Fault:
        """Return the fault for an error; early versions hid what they refused."""
        hidden = isinstance(error, NoCredentials) and not call.version.challenges
        if isinstance(error, AuthError) and "sig" in call.params:
            hidden = hidden or not call.version.sas_forbidden
        fault = Fault("ResourceNotFound") if hidden else fault_of(error)
        if fault.status == 401:  # noqa: PLR2004 - RFC 9110, section 15.5.2, asks for a challenge
            fault.headers += (self._challenge,)
        return fault

    async def _check_body(self, call: Call, rules: Rules) -> None:
        """Check the size of the body, and that it arrived whole."""
        request = call.request
        body = request.body
        headers = request.headers
        longest = self.longest_body(call)
        if request.body_too_large or len(body) > longest:
            raise body_too_large(longest)
        if (
            rules.needs_length
            and not body
            and "content-length" not in headers
            and "transfer-encoding" not in headers
        ):
            raise Fault("MissingContentLengthHeader")
        md5 = headers.get("content-md5")
        if md5:
            try:
                expected = b64decode(md5, validate=True)
            except (binascii.Error, ValueError):
                raise Fault("InvalidMd5") from None
            if len(expected) != _MD5_BYTES:
                raise Fault("InvalidMd5")
            if await md5_digest(body) != expected:
                raise Fault("Md5Mismatch")


def _check_rules(call: Call, rules: Rules) -> None:
    """Check what can be said about a request before its parameters are read."""
    if call.version.text < rules.since:
        raise Fault("FeatureVersionMismatch")
    if call.route.place.secondary and not rules.on_secondary:
        raise Fault("InsufficientAccountPermissions")
    headers = call.request.headers
    if (
        "if-match" in headers
        or "if-none-match" in headers
        or "if-modified-since" in headers
        or "if-unmodified-since" in headers
    ):
        raise Fault("ConditionHeadersNotSupported")
    if "timeout" in call.params:
        timeout_s(call.params)


# --- operations --------------------------------------------------------------------------------
#
# The table of operations: how each is read, written, and what it asks of a request.


class Rules(NamedTuple):
    """What holds for an operation before it is looked at more closely."""

    since: str = OLDEST
    """First version that has it."""
    on_secondary: bool = False
    """Whether the secondary address serves it; that one is read-only, and Get Messages writes."""
    needs_length: bool = False
    """Whether the request must say how long its body is, or send it in chunks."""


HANDLERS: Final[Mapping[Operation, Handler[Call]]] = {
    Operation.LIST_QUEUES: Handler(queues.parse_list, queues.render_list),
    Operation.CREATE_QUEUE: Handler(queues.parse_create, queues.render_create),
    Operation.DELETE_QUEUE: Handler(queues.parse_delete, messages.render_done),
    Operation.GET_QUEUE_METADATA: Handler(queues.parse_get_metadata, queues.render_metadata),
    Operation.SET_QUEUE_METADATA: Handler(queues.parse_set_metadata, messages.render_done),
    Operation.GET_QUEUE_ACL: Handler(queues.parse_get_acl, queues.render_acl),
    Operation.SET_QUEUE_ACL: Handler(queues.parse_set_acl, messages.render_done),
    Operation.PUT_MESSAGE: Handler(messages.parse_put, messages.render_put),
    Operation.GET_MESSAGES: Handler(messages.parse_get, messages.render_get, messages.wait_s),
    Operation.PEEK_MESSAGES: Handler(messages.parse_peek, messages.render_peek),
    Operation.UPDATE_MESSAGE: Handler(messages.parse_update, messages.render_update),
    Operation.DELETE_MESSAGE: Handler(messages.parse_delete, messages.render_done),
    Operation.CLEAR_MESSAGES: Handler(messages.parse_clear, messages.render_done),
}
"""Operations that are one command each; the others are those of ``service`` and ``delegation``."""

RULES: Final[Mapping[Operation, Rules]] = {
    **dict.fromkeys(Operation, Rules()),
    Operation.LIST_QUEUES: Rules(on_secondary=True),
    Operation.GET_SERVICE_PROPERTIES: Rules(on_secondary=True),
    Operation.SET_SERVICE_PROPERTIES: Rules(needs_length=True),
    Operation.GET_SERVICE_STATS: Rules(since=STATS_SINCE, on_secondary=True),
    Operation.GET_USER_DELEGATION_KEY: Rules(
        since=DELEGATION_KEY_SINCE, on_secondary=True, needs_length=True
    ),
    Operation.GET_QUEUE_METADATA: Rules(on_secondary=True),
    Operation.GET_QUEUE_ACL: Rules(since=ACL_SINCE, on_secondary=True),
    Operation.SET_QUEUE_ACL: Rules(since=ACL_SINCE, needs_length=True),
    Operation.PUT_MESSAGE: Rules(needs_length=True),
    Operation.PEEK_MESSAGES: Rules(on_secondary=True),
    Operation.UPDATE_MESSAGE: Rules(since=UPDATE_MESSAGE_SINCE),
}
