"""The native dialect: JSON over HTTP, from a request to an answer, and the table of operations.

The order of checks: the address, the credentials, the query, the body. Nothing that depends on what
the store holds is told to anybody who has not shown credentials for it.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import re
from collections.abc import Awaitable, Callable
from functools import cache, partial
from importlib import resources
from typing import Any, Final

import msgspec

from leasehold import __version__
from leasehold.auth.authenticator import Grant, is_signed
from leasehold.auth.console import ConsoleSessions, has_session
from leasehold.auth.types import (
    BEARER,
    AuthError,
    ForeignPage,
    NotAllowed,
    Operation,
    PermissionMissing,
    SignedRequest,
    Target,
)
from leasehold.clock import Clock
from leasehold.domain.admin import FindMessage
from leasehold.domain.commands import Batch, Duplicate, ListQueues, Put
from leasehold.domain.errors import BodyUnreadable, LeaseholdError, QueueNotFound, Unavailable
from leasehold.domain.limits import MAX_GROUP_ID, NATIVE, NEVER, PRIORITIES, WEEK_S
from leasehold.domain.model import DEFAULT_PRIORITY, ENTROPY_BYTES, Detail, Lease
from leasehold.domain.wording import near_names
from leasehold.http.app import (
    Authorizer,
    BaseDialect,
    authorize,
    check_known_queue_name,
    is_foreign,
    observe_nothing,
)
from leasehold.http.native import account, admin, groups, messages, queues, streams, transactions
from leasehold.http.native import transactions as commits
from leasehold.http.native.call import (
    Call,
    Route,
    Services,
    param_int,
    percent_decode,
    read_params,
    read_query,
    request_ids,
    short_text,
)
from leasehold.http.native.errors import (
    CODES,
    PROBLEMS,
    Refused,
    missing_queue,
    out_of_range,
    problem,
    problem_of,
    too_large,
)
from leasehold.http.native.items import body_limit, show_put, trace_of
from leasehold.http.requests import Response
from leasehold.http.test_mode import TEST_PREFIX
from leasehold.wire.parts import CodePage
from leasehold.wire.schemas import REF, make_schemas

MAX_REQUEST_BODY_BYTES: Final = 64 * 1024 * 1024
"""Largest body of a request: a thousand of the largest messages."""

_SIGNING_VERSION: Final = "2026-10-06"
"""Rules by which a request is signed that names no version."""
_UNAUTHENTICATED: Final = 401
_COMPARED_QUEUES: Final = 200
"""Queues, for each case of the first letter, whose names are compared with one that is missing."""
_CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="leasehold"')


class NativeDialect(BaseDialect[Call, Refused]):
    """Speaks the native protocol, which ``openapi.yaml`` describes.

    Args:
        services: What the operations lean on.
        authenticator: Decides who may do what.
        clock: Source of all time.
        accepts_late: Whether leases may be renewed beyond their message's expiry.
        sessions: Lets requests pass that carry a session of the console and nothing else; None
            where there is no console.
        observe: Called once per request with ``native-`` and the name of the route, and the
            status. A request that names no route is ``native-unknown``.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a collaborator of its own
        self,
        *,
        services: Services,
        authenticator: Authorizer,
        clock: Clock,
        accepts_late: bool = False,
        sessions: ConsoleSessions | None = None,
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
        self._sessions = sessions
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
                call.grant = await self._authorize(call, operation, queue)
        else:
            call.grant = await self._authorize_either(
                call, (*route.operations, route.instead), queue
            )
        call.params = read_params(pairs, route.params) if pairs else {}
        if call.queue:
            check_known_queue_name(call.queue)
        if route.handler is put:
            check_length(call)

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

    async def _specified(self, call: Call, error: Exception) -> Exception:
        """Name the queue that is missing, unless the error is about another one."""
        if not (isinstance(error, QueueNotFound) and call.queue):
            return error
        if call.services.find_queue(call.account, call.queue) is not None:
            return error
        near = await self._near_queues(call)
        return Refused(missing_queue(call.account, call.queue, near))

    async def _near_queues(self, call: Call) -> list[str]:
        """Return the queues that the caller may have meant; none if it may not list queues."""
        first = call.queue[:1]
        try:
            await self._authorize(call, Operation.LIST_QUEUES, None)
            pages = [
                await call.services.perform(ListQueues(call.account, letter, "", _COMPARED_QUEUES))
                for letter in sorted({first.lower(), first.upper()})
            ]
        except (AuthError, LeaseholdError):
            return []
        return near_names(call.queue, [queue.name for page in pages for queue in page.queues])

    def _internal_error(self) -> Refused:
        return Refused(problem("internal-error"))

    async def _authorize_either(
        self, call: Call, operations: tuple[Operation, ...], queue: str | None
    ) -> Grant:
        """Let a request pass that may do one of several operations."""
        for operation in operations[:-1]:
            try:
                return await self._authorize(call, operation, queue)
            except (NotAllowed, PermissionMissing):
                continue
        return await self._authorize(call, operations[-1], queue)

    async def _authorize(self, call: Call, operation: Operation, queue: str | None) -> Grant:
        target = Target(account=call.account, operation=operation, queue=queue)
        request = call.request
        header = request.headers.get("authorization", "")
        if header[: len(BEARER)].lower() == BEARER and "." not in header:
            # An issuer's token has dots in it, base64 has none.
            safe = request.https or is_loopback(request.client_ip)
            key = header[len(BEARER) :].strip()
            return self._authenticator.check_key(key, target, safe=safe)
        if (
            self._sessions is not None
            and not header
            and has_session(request.headers)
            and not is_signed(call.pairs)
        ):
            return self._sessions.check(cookie_request(call), target)
        version = request.headers.get("x-ms-version", _SIGNING_VERSION)
        return await authorize(
            self._authenticator, request, target, call.pairs, version, call.now_ms
        )


def cookie_request(call: Call) -> SignedRequest:
    """Return a request that carries a cookie, as what checks sessions of the console sees it.

    Raises:
        ForeignPage: A browser has sent it for a page of another site. Pages of this host at other
            ports are such pages, though browsers send them the same cookies.
    """
    request = call.request
    if request.is_foreign or is_foreign(request.headers):
        raise ForeignPage
    return SignedRequest(
        method=request.method,
        path=request.raw_path,
        query=(),
        headers=request.headers,
        version=_SIGNING_VERSION,
        client_ip=request.client_ip,
        https=request.https,
    )


def is_loopback(client_ip: str) -> bool:
    """Tell whether a client is on this machine; the address is the one that the socket knows."""
    return client_ip.startswith("127.") or client_ip in {"::1", "::ffff:127.0.0.1"}


# --- document ----------------------------------------------------------------------------------
#
# The server's own description: the OpenAPI document, and the pages of the codes.


@cache
def openapi_json() -> bytes:
    """Return the document; to make it takes a moment, so it is done once.

    Paths, examples, and what no member says by itself stand in ``openapi.yaml``, of which
    ``tools/make_openapi.py`` makes the JSON that is read here; the schemas are made of the shapes
    in :mod:`leasehold.wire`.
    """
    packed = resources.files(__package__ or "").joinpath("openapi.json.gz").read_bytes()
    text = gzip.decompress(packed)
    content = msgspec.json.decode(text)
    content["info"]["version"] = __version__
    by_hand = content["components"]["schemas"]
    made = make_schemas({*re.findall(rf"{REF}(\w+)", text.decode())})
    made["Code"] = {"type": "string", "enum": list(CODES)}
    content["components"]["schemas"] = {
        name: {**made.get(name, {}), **by_hand.get(name, {})} for name in sorted({*made, *by_hand})
    }
    account.declare_events(content["components"]["schemas"])
    _mark_needed_bodies(content)
    return msgspec.json.encode(content)


def _mark_needed_bodies(content: dict[str, Any]) -> None:
    """Mark the bodies of requests that have members which must be there."""
    schemas = content["components"]["schemas"]
    for path in content["paths"].values():
        for operation in path.values():
            body = operation.get("requestBody", {}) if isinstance(operation, dict) else {}
            shape = body.get("content", {}).get("application/json", {}).get("schema")
            if shape and "required" in schemas[shape["$ref"].removeprefix(REF)]:
                body["required"] = True


async def openapi(call: Call) -> Response:
    """Show the OpenAPI document."""
    return call.reply(msgspec.Raw(await asyncio.to_thread(openapi_json)))


async def explain_code(call: Call) -> Response:
    """Show what a code means."""
    code = CODES.get(call.item)
    if code is None:
        detail = f"{call.item[:100]!r} is not a problem code."
        raise Refused(problem("no-such-route", detail, remedy=f"The codes are {', '.join(CODES)}."))
    return call.reply(CodePage(type=PROBLEMS + call.item, code=call.item, **code._asdict()))


# --- raw ---------------------------------------------------------------------------------------
#
# Bodies as they are: put in one request, read in another, without JSON around them.


OWN_TIMEOUT: Final = "visibility_timeout_s"
PUT_PARAMS: Final = frozenset(
    {"delay_s", "time_to_live_s", "priority", "type", "dedup_key", "group_id", OWN_TIMEOUT}
)

_BYTES: Final = b"application/octet-stream"
_BROKEN: Final = frozenset({"missing", "corrupt"})


def check_length(call: Call) -> None:
    """Look at how long a body is going to be, before it is read.

    Raises:
        Refused: Longer than a message of the queue may be.
    """
    size_bytes = int(call.request.headers.get("content-length", "0"))
    limit_bytes = body_limit(call, call.queue)
    if size_bytes > limit_bytes:
        raise too_large(None, size_bytes, limit_bytes)


async def put(call: Call) -> Response:
    """Put one message whose body is that of the request."""
    body = call.request.body
    limit_bytes = body_limit(call, call.queue)
    if len(body) > limit_bytes:
        raise too_large(None, len(body), limit_bytes)
    delay_s = param_int(call, "delay_s", NATIVE.delay_s)
    priority = param_int(call, "priority", PRIORITIES)
    params = call.params
    kind = short_text("type", params.get("type") or None)
    key = short_text("dedup_key", params.get("dedup_key") or None)
    group = short_text("group_id", params.get("group_id") or None, MAX_GROUP_ID)
    along = trace_of(call)
    own_s = param_int(call, OWN_TIMEOUT, NATIVE.lease_s)
    if any(each is not None for each in (kind, key, group, own_s)):
        along = Detail(
            message_type=kind,
            dedup_key=key,
            traceparent=along.traceparent,
            group_id=group,
            visibility_timeout_s=own_s,
        )
    command = Put(
        call.account,
        call.queue,
        body,
        delay_s or 0,
        _life_s(call),
        os.urandom(ENTROPY_BYTES),
        along,
        DEFAULT_PRIORITY if priority is None else priority,
    )
    actor = call.console_actor
    if actor is None:
        result = await call.services.perform(command)
    else:
        result = await _put_as(call, command, actor)
    return call.reply(show_put(command, result), 201)


async def _put_as(call: Call, command: Put, actor: str) -> Lease | Duplicate:
    """Put a message in the name of who has signed in to the console."""
    (result,) = await call.services.perform(Batch((command,), actor=actor))
    if isinstance(result, LeaseholdError):
        raise result
    assert isinstance(result, Lease | Duplicate)
    return result


def _life_s(call: Call) -> int | None:
    low, high = NATIVE.time_to_live_s
    life_s = param_int(call, "time_to_live_s", (NEVER, high))
    if life_s is None:
        return WEEK_S
    if life_s == NEVER:
        return None
    if life_s < low:
        raise out_of_range("time_to_live_s", life_s, (low, high))
    return life_s


async def get(call: Call) -> Response:
    """Give the body of a message, in whatever state the message is."""
    seen = await call.services.perform(FindMessage(call.account, call.queue, call.item))
    ref = seen.message.detail.body_ref
    if ref is not None and ref.problem is not None:
        if ref.problem in _BROKEN:
            raise BodyUnreadable(seen.message.message_id, ref.problem)
        raise Unavailable
    return call.reply_bytes(_BYTES, seen.message.body)


# --- routes ------------------------------------------------------------------------------------


_ACCOUNT: Final = "/v1/accounts/{account}"
_QUEUE: Final = _ACCOUNT + "/queues/{queue}"
_POLICIES: Final = _QUEUE + "/policies"
_MESSAGES: Final = _QUEUE + "/messages"
_MESSAGE: Final = _MESSAGES + "/{id}"
_JOB: Final = _ACCOUNT + "/jobs/{job_id}"
_SESSION: Final = _ACCOUNT + "/sessions/{session_id}"
_STREAM: Final = _QUEUE + "/streams/{stream}"
_CLAIM: Final = _STREAM + "/claims/{number}"
_TRANSACTION: Final = _ACCOUNT + "/transactions/{name}"
# Rights are granted per operation of Azure's. What needs no receipt asks for the right to clear the
# queue, which is the only one there that does without; what shows a body, for the right to look.
_LIST: Final = (Operation.LIST_QUEUES,)
_LOOK: Final = (Operation.PEEK_MESSAGES,)
_LOOK_AT_QUEUE: Final = (Operation.GET_QUEUE_METADATA,)
_SET_UP: Final = (Operation.SET_QUEUE_METADATA,)
_CLEAR: Final = (Operation.CLEAR_MESSAGES,)
_FINISH: Final = (Operation.DELETE_MESSAGE,)
_CHANGE: Final = (
    Operation.CLEAR_MESSAGES,
    Operation.UPDATE_MESSAGE,
    Operation.PEEK_MESSAGES,
)
_RECEIVE: Final = (Operation.GET_MESSAGES,)
_PUT: Final = (Operation.PUT_MESSAGE,)
_MOVE: Final = (Operation.CLEAR_MESSAGES, Operation.PUT_MESSAGE)


_PAGE: Final = frozenset({"after", "limit"})

# Workers look at what is theirs with the right to receive; others with the right to look.
_PEEK: Final = Operation.PEEK_MESSAGES

_SESSION_ROUTES: Final = (
    Route("open-session", "POST", _ACCOUNT + "/sessions", _RECEIVE, account.open_session),
    Route(
        "list-sessions",
        "GET",
        _ACCOUNT + "/sessions",
        _RECEIVE,
        account.list_sessions,
        frozenset({"limit"}),
        _PEEK,
    ),
    Route("get-session", "GET", _SESSION, _RECEIVE, account.get, instead=_PEEK),
    Route("heartbeat", "POST", _SESSION + "/heartbeat", _RECEIVE, account.heartbeat),
    Route("end-session", "POST", _SESSION + "/end", _RECEIVE, account.end),
)
_STREAM_ROUTES: Final = (
    Route(
        "list-streams",
        "GET",
        _QUEUE + "/streams",
        _RECEIVE,
        streams.list_streams,
        instead=_PEEK,
    ),
    Route("attach-stream", "PUT", _STREAM, _RECEIVE, streams.attach),
    Route("get-stream", "GET", _STREAM, _RECEIVE, streams.get, instead=_PEEK),
    Route("delete-stream", "DELETE", _STREAM, _RECEIVE, streams.delete),
    Route("settle-claims", "POST", _STREAM + "/settle", _FINISH, streams.settle),
    Route("open-claim", "PUT", _CLAIM, _RECEIVE, streams.open_claim),
    Route("get-claim", "GET", _CLAIM, _RECEIVE, streams.get_claim, instead=_PEEK),
    Route(
        "read-claim",
        "GET",
        _CLAIM + "/messages",
        _RECEIVE,
        streams.read,
        _PAGE | {"part", "parts", "whole_groups"},
        _PEEK,
    ),
    Route("extend-claim", "POST", _CLAIM + "/extend", _RECEIVE, streams.extend),
    Route("exempt-members", "POST", _CLAIM + "/exemptions", _FINISH, streams.exempt),
    Route("bind-claim", "POST", _CLAIM + "/bind", _FINISH, streams.bind),
    Route("give-back-claim", "POST", _CLAIM + "/give-back", _RECEIVE, streams.give_back),
)
_TRANSACTION_ROUTES: Final = (
    Route(
        "list-transactions",
        "GET",
        _ACCOUNT + "/transactions",
        _PUT,
        transactions.list_transactions,
        frozenset({"state", "limit"}),
        _PEEK,
    ),
    Route("get-transaction", "GET", _TRANSACTION, _PUT, transactions.get, instead=_PEEK),
    Route(
        "stage",
        "POST",
        _TRANSACTION + "/stage",
        _PUT,
        transactions.stage,
        frozenset({"part", "chunk", "timeout_s", "queue"}),
    ),
    Route("publish", "POST", _TRANSACTION + "/publish", _PUT, transactions.publish),
    Route("discard", "POST", _TRANSACTION + "/discard", _PUT, transactions.discard),
    Route(
        "commit",
        "POST",
        _ACCOUNT + "/commit",
        _FINISH,
        commits.commit,
        instead=Operation.PUT_MESSAGE,
    ),
)

ROUTES: Final = (
    Route("openapi", "GET", "/v1/openapi.json", (), openapi),
    Route("problem", "GET", "/v1/problems/{code}", (), explain_code),
    Route(
        "list-queues",
        "GET",
        _ACCOUNT + "/queues",
        _LIST,
        queues.list_queues,
        _PAGE | {"prefix", "counts"},
    ),
    Route("create-queue", "PUT", _QUEUE, (Operation.CREATE_QUEUE,), queues.create),
    Route("get-queue", "GET", _QUEUE, _LOOK_AT_QUEUE, queues.get),
    Route("update-queue", "PATCH", _QUEUE, _SET_UP, queues.update),
    Route("delete-queue", "DELETE", _QUEUE, (Operation.DELETE_QUEUE,), queues.delete),
    Route("count-messages", "GET", _QUEUE + "/counts", _LOOK_AT_QUEUE, queues.counts),
    Route(
        "desired-workers",
        "GET",
        _QUEUE + "/desired-workers",
        _LOOK_AT_QUEUE,
        queues.scaling,
        queues.SCALING_PARAMS,
    ),
    Route("explain-queue", "GET", _QUEUE + "/explain", _LOOK_AT_QUEUE, admin.explain_queue),
    Route(
        "list-groups",
        "GET",
        _QUEUE + "/groups",
        _LOOK_AT_QUEUE,
        groups.list_groups,
        frozenset({"order", "limit", "noisy", "halted"}),
    ),
    Route("get-group", "GET", _QUEUE + "/groups/{group}", _LOOK_AT_QUEUE, groups.look_at_group),
    Route("halt-group", "POST", _QUEUE + "/groups/{group}/halt", _SET_UP, groups.halt_group),
    Route("resume-group", "POST", _QUEUE + "/groups/{group}/resume", _SET_UP, groups.resume_group),
    Route("hold-group", "POST", _QUEUE + "/groups/hold", _RECEIVE, groups.hold_group),
    Route("end-hold", "DELETE", _QUEUE + "/groups/{group}/hold", _SET_UP, groups.end_hold),
    Route(
        "release-group",
        "POST",
        _QUEUE + "/groups/{group}/release",
        _RECEIVE,
        groups.release_group,
    ),
    Route("save-group-state", "PUT", _QUEUE + "/groups/{group}/state", _RECEIVE, groups.save_state),
    Route("pause-queue", "POST", _QUEUE + "/pause", _SET_UP, queues.pause),
    Route("resume-queue", "POST", _QUEUE + "/resume", _SET_UP, queues.resume),
    Route("get-policies", "GET", _POLICIES, (Operation.GET_QUEUE_ACL,), queues.policies),
    Route("set-policies", "PUT", _POLICIES, (Operation.SET_QUEUE_ACL,), queues.set_policies),
    Route("purge", "POST", _QUEUE + "/purge", _CLEAR, admin.purge),
    Route("change-messages", "POST", _QUEUE + "/change", _CHANGE, admin.change),
    Route("redrive", "POST", _QUEUE + "/redrive", _MOVE, admin.redrive),
    Route(
        "list-jobs",
        "GET",
        _ACCOUNT + "/jobs",
        _LIST,
        admin.list_jobs,
        frozenset({"queue", "limit"}),
    ),
    Route("get-job", "GET", _JOB, _LIST, admin.get),
    Route("stop-job", "POST", _JOB + "/stop", _CLEAR, admin.stop),
    Route("put", "POST", _MESSAGES, _PUT, messages.put),
    Route("receive", "POST", _MESSAGES + "/receive", _RECEIVE, messages.receive),
    Route("peek", "POST", _MESSAGES + "/peek", _LOOK, messages.peek),
    Route("renew", "POST", _MESSAGES + "/renew", (Operation.UPDATE_MESSAGE,), messages.renew),
    Route("complete", "POST", _MESSAGES + "/complete", _FINISH, messages.complete),
    Route("release", "POST", _MESSAGES + "/release", _FINISH, messages.release),
    Route(
        "list-messages",
        "GET",
        _MESSAGES,
        _LOOK,
        admin.inspect,
        _PAGE | {"body"} | admin.PARAMS,
    ),
    Route("put-raw", "POST", _MESSAGES + "/raw", _PUT, put, PUT_PARAMS),
    Route("get-body", "GET", _MESSAGE + "/body", _LOOK, get),
    Route("get-message", "GET", _MESSAGE, _LOOK, admin.find, frozenset({"body"})),
    Route("explain-message", "GET", _MESSAGE + "/explain", _LOOK, admin.explain_message),
    Route("amend-message", "PATCH", _MESSAGE, _CHANGE, admin.amend),
    Route("remove-message", "DELETE", _MESSAGE, _CLEAR, admin.remove, frozenset({"force"})),
    Route("end-lease", "POST", _MESSAGE + "/end-lease", _CHANGE, admin.end_lease),
    Route("extend-lease", "POST", _MESSAGE + "/extend-lease", _CHANGE, admin.extend_lease),
    Route("cancel-message", "POST", _MESSAGE + "/cancel", _CHANGE, account.cancel_message),
    Route("trace-message", "GET", _MESSAGE + "/trace", _LOOK, account.trace, _PAGE),
    Route(
        "report-pipeline", "PUT", _ACCOUNT + "/pipelines/{name}", _RECEIVE, account.report_pipeline
    ),
    Route("list-events", "GET", _ACCOUNT + "/events", _LOOK, account.list_events, _PAGE),
    *_SESSION_ROUTES,
    *_STREAM_ROUTES,
    *_TRANSACTION_ROUTES,
    Route("get-clock", "GET", TEST_PREFIX + "clock", (), account.clock),
    Route("advance-clock", "POST", TEST_PREFIX + "advance", (), account.advance),
    Route("get-faults", "GET", TEST_PREFIX + "faults", (), account.faults),
    Route("set-faults", "PUT", TEST_PREFIX + "faults", (), account.set_faults),
    Route("clear-faults", "DELETE", TEST_PREFIX + "faults", (), account.clear_faults),
)


def routes_for(*, test_mode: bool) -> tuple[Route, ...]:
    """Return the routes of a server: those for tests are there in test mode only."""
    return tuple(each for each in ROUTES if test_mode or not each.path.startswith(TEST_PREFIX))


class _Node:
    """What can follow a part of a path."""

    __slots__ = ("members", "named", "other", "routes")

    def __init__(self) -> None:
        self.named: dict[str, _Node] = {}
        self.other: _Node | None = None
        """For a part that varies."""
        self.routes: dict[str, Route] = {}
        """By method, if a path may end here."""
        self.members: tuple[str, ...] = ()


class Router:
    """Finds routes by path; a fixed part of a path goes before one that varies."""

    def __init__(self, routes: tuple[Route, ...] = ROUTES) -> None:
        self._root = _Node()
        for route in routes:
            node = self._root
            for part in route.path.split("/"):
                if part[:1] == "{":
                    node.other = node = node.other or _Node()
                else:
                    node = node.named.setdefault(part, _Node())
            node.routes[route.method] = route
            node.members = route.members()

    def find(self, call: Call, parts: list[str]) -> Route:
        """Return the route of a path, and note in *call* what its variable parts are.

        Raises:
            Refused: There is no such path, or it does not take the method.
        """
        node = self._root
        values: list[str] = []
        for part in parts:
            following = node.named.get(part)
            if following is None:
                following = node.other
                if following is None or not part:
                    raise Refused(problem("no-such-route"))
                values.append(part)
            node = following
        if not node.routes:
            raise Refused(problem("no-such-route"))
        route = node.routes.get(call.request.method)
        if route is None:
            raise _method_not_allowed(call.request.method, node)
        for member, value in zip(node.members, values, strict=True):
            setattr(call, member, value)
        return route


def _method_not_allowed(method: str, node: _Node) -> Refused:
    allowed = ", ".join(sorted(node.routes))
    return Refused(
        problem(
            "method-not-allowed",
            f"This path does not support {method[:20]}.",
            remedy=f"It takes {allowed}.",
        ),
        (b"allow", allowed.encode("ascii")),
    )
