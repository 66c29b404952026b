"""The application: makes a request of what arrived, and an answer of what its dialect says."""

from __future__ import annotations

import ipaddress
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from functools import lru_cache
from itertools import count
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import structlog

from leasehold.auth.authenticator import Grant
from leasehold.auth.types import BEARER, AuthError, Pairs, SignedRequest, Target
from leasehold.clock import Clock
from leasehold.domain import errors
from leasehold.domain.command import AnyCommand, Perform
from leasehold.domain.commands import Receive
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.limits import check_queue_name
from leasehold.domain.model import Queue
from leasehold.engine.stats import Histogram
from leasehold.http.admission import LongReceive
from leasehold.http.logs import log_internal_error
from leasehold.http.request_cycle import PROVE, RAW_NAMES
from leasehold.http.request_cycle import Receive as ReceiveBody
from leasehold.http.requests import MAX_HOST_CHARS, Request, Response

NATIVE_PREFIX: Final = "/v1/"
"""What paths of the native dialect begin with; no account or queue of Azure's has so short a name.
"""

_CONSOLE: Final = "/console"
"""What all paths of the console begin with but the root, which it takes from browsers."""

_CLOSE: Final = (b"connection", b"close")
_READING: Final = frozenset({"GET", "HEAD"})
_WITHOUT_LENGTH: Final = frozenset({204, 304})

_log = structlog.get_logger(__name__)


class _ClientGoneError(Exception):
    """Half a body is no request: whatever it asks for, the client has not finished asking."""


class Pages(Protocol):
    """The server's own addresses; see :class:`leasehold.server.admin.AdminPages`."""

    paths: frozenset[str]

    async def answer(self, path: str) -> Response:
        """Answer a GET of one of *paths*."""
        ...


class _Verb:
    """Counters of one operation."""

    __slots__ = ("seconds", "statuses")

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.seconds = Histogram()


class RequestStats:
    """Requests by operation and status, and how long they took.

    A dialect calls :meth:`answered` as the last thing it does with a request, and the application
    :meth:`took` before anything else can run, so that both speak of the same request.
    """

    def __init__(self) -> None:
        self.verbs: dict[str, _Verb] = {}
        self._last = _Verb()

    def answered(self, operation: str, status: int) -> None:
        """Count a request; *operation* is one of a fixed set of names."""
        verb = self.verbs.get(operation)
        if verb is None:
            verb = self.verbs[operation] = _Verb()
        verb.statuses[status] += 1
        self._last = verb

    def took(self, duration_s: float) -> None:
        """Count how long the last request took."""
        self._last.seconds.observe(duration_s)


class Dialect(Protocol):
    """What the application asks of a dialect; see :class:`BaseDialect`."""

    def begin(self, request: Request, /) -> Any:
        """Return a call of which only the header has come."""
        ...

    async def enter(self, call: Any, /) -> Response | None:
        """Return a refusal, or None."""
        ...

    def longest_body(self, call: Any, /) -> int:
        """Return how many bytes of the body to read."""
        ...

    async def answer(self, call: Any, /) -> Response:
        """Answer a call that has entered."""
        ...


class Application:
    """Serves the dialects and the server's own pages.

    Args:
        dialect: Answers everything but the pages, and what goes to *native*.
        pages: Health and metrics. A queue of the same name stays reachable in addresses with the
            account in the host name: requests of the protocol that read carry ``comp``.
        clock: For the durations counted.
        timings: Where they are counted.
        native: Answers what is under NATIVE_PREFIX; None for *dialect*.
        mns: Answers what comes to *mns_ports*, and to hosts of *mns_accounts* on other ports.
        mns_ports: Where only *mns* and the pages answer.
        console: Answers browsers, at the addresses that *is_of_console* picks; None for no console.
        is_of_console: Tells whether a request is the console's, by method, path, query and header.
        mns_accounts: Names of accounts that have hosts of their own with MNS; looked at for each
            request.
        https: Whether a proxy has ended TLS, so that every request counts as safe.
        hosts: Knows the names that the server is addressed by; None if requests are not looked at
            for what web pages may send.
        log_requests: Whether to log each request, at level debug.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a collaborator of its own
        self,
        *,
        dialect: Dialect,
        pages: Pages,
        clock: Clock,
        timings: RequestStats,
        native: Dialect | None = None,
        mns: Dialect | None = None,
        mns_ports: frozenset[int] = frozenset(),
        mns_accounts: Container[str] = (),
        console: BaseDialect[Any, Any] | None = None,
        is_of_console: Callable[[str, str, bytes, Mapping[str, str]], bool] = lambda *_: False,
        https: bool = False,
        hosts: Hosts | None = None,
        log_requests: bool = False,
    ) -> None:
        self._dialect = dialect
        self._pages = pages
        self._paths = pages.paths
        self._monotonic_s = clock.monotonic_s
        self._took = timings.took
        self._native = native
        self._mns = mns
        self._mns_ports = mns_ports
        self._mns_accounts = mns_accounts
        self._console = console
        self._is_of_console = is_of_console
        self._https = https
        self._hosts = hosts
        self._log_requests = log_requests

    def drain(self) -> None:
        """End what would go on for as long as its client likes: the server stops."""
        if self._console is not None:
            self._console.drain()

    async def __call__(self, scope: dict[str, Any], receive: ReceiveBody) -> Response | None:
        """Answer one request; see :data:`leasehold.http.request_cycle.App`."""
        started_s = self._monotonic_s()
        method: str = scope["method"]
        raw_path = scope["raw_path"].decode("ascii")
        headers = _headers(scope["headers"])
        if self._hosts is not None and not self._hosts.knows(headers.get("host", "")):
            return _whole(method, self._hosts.refusal(headers.get("host", "")), close=False)
        if raw_path in self._paths and method in _READING and b"comp=" not in scope["query_string"]:
            return _whole(method, await self._pages.answer(raw_path), close=False)
        dialect = self._dialect_of(scope["server"], headers.get("host", ""), raw_path)
        if (
            (raw_path == "/" or raw_path.startswith(_CONSOLE))
            and self._console is not None
            and dialect is self._dialect
            and self._is_of_console(method, raw_path, scope["query_string"], headers)
        ):
            dialect = self._console
        request = self._request(scope, raw_path, headers, receive)
        call = dialect.begin(request)
        refusal = await dialect.enter(call)
        if refusal is not None:
            response = refusal
        else:
            if PROVE in scope:
                scope[PROVE]()
            if request.has_body:
                length = int(headers.get("content-length", "0"))
                try:
                    body = await _read(length, dialect.longest_body(call), receive)
                except _ClientGoneError:
                    return None
                request.body, request.body_too_large = body or b"", body is None
            response = await dialect.answer(call)
        # Before anything else can run: the dialect has told the timings what request this was.
        duration_s = self._monotonic_s() - started_s
        self._took(duration_s)
        if self._log_requests:
            # The query is left out: it may hold a signature.
            _log.debug(
                "http.request",
                method=method,
                path=raw_path,
                status=response.status,
                duration_ms=round(duration_s * 1000, 3),
            )
        return _whole(method, response, close=request.body_too_large)

    def _dialect_of(self, server: tuple[str, int] | None, host: str, raw_path: str) -> Dialect:
        """Return who speaks at an address: the port counts first, then the host, then the path."""
        if self._mns is not None and (
            (server is not None and server[1] in self._mns_ports)
            or mns_account_of(host) in self._mns_accounts
        ):
            return self._mns
        if self._native is not None and raw_path.startswith(NATIVE_PREFIX):
            return self._native
        return self._dialect

    def _request(
        self, scope: dict[str, Any], raw_path: str, headers: dict[str, str], receive: ReceiveBody
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
            has_body=headers.get("content-length", "0") != "0" or "transfer-encoding" in headers,
            client_ip=client[0] if client else "",
            https=self._https or scope["scheme"] == "https",
            is_foreign=self._hosts is not None and is_foreign(headers),
            raw_header_names=scope.get(RAW_NAMES),
            receive=receive,
        )


def mns_account_of(host: str) -> str:
    """Return what may be an account in a host ``{account}.mns.{anything}``, or nothing."""
    label, _, suffix = host.lower().partition(".")
    is_of_mns = suffix.partition(".")[0].partition(":")[0] == "mns"
    return label if is_of_mns and len(host) <= MAX_HOST_CHARS else ""


async def _read(length: int, limit: int, receive: ReceiveBody) -> bytes | None:
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


def _whole(method: str, response: Response, *, close: bool) -> Response:
    """Return an answer with the fields that have to do with its length and the connection."""
    status, headers, body, stream = response
    if stream is not None:
        return response
    if body or (method != "HEAD" and status not in _WITHOUT_LENGTH):
        headers = [*headers, (b"content-length", b"%d" % len(body))]
    if close:
        headers = [*headers, _CLOSE]
    return Response(status, headers, body)


# --- dialects ----------------------------------------------------------------------------------
#
# What the dialects have in common: the steps of a request, its id, its sender, its refusal. A
# dialect reads requests, writes answers and has a table of errors; the rest is here.


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
_T = TypeVar("_T")

AddHeaders = Callable[[_CallT, Response], Awaitable[None]]


class BaseDialect(ABC, Generic[_CallT, _FaultT]):
    """What speaks a protocol over HTTP. The body of a request is read between its two steps.

    So no client makes the server hold a body before having shown, in the header, its right to send
    it.

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
        """Take a request of which only the header has come."""
        call = self._new_call()
        call.request = request
        call.request_id = self._request_ids.draw()
        call.now_ms = self._clock.now_ms()
        call.accepts_late = self._accepts_late
        return call

    async def enter(self, call: _CallT) -> Response | None:
        """Check all that the header says; None if the body may be read. Raises nothing."""
        try:
            response = await self._enter(call)
        except Exception as error:  # noqa: BLE001 - the client gets an answer, the log the rest
            response = self._refusal(call, await self._specified(call, error))
        return None if response is None else await self._finish(call, response)

    @abstractmethod
    def longest_body(self, call: _CallT) -> int:
        """Return how many bytes of the body of a request that has entered are to be read."""

    async def answer(self, call: _CallT) -> Response:
        """Answer a request that has entered, once its body is there. Raises nothing."""
        try:
            response = await self._answer(call)
        except Exception as error:  # noqa: BLE001 - the client gets an answer, the log the rest
            response = self._refusal(call, await self._specified(call, error))
        return await self._finish(call, response)

    async def _finish(self, call: _CallT, response: Response) -> Response:
        if self._add_headers is not None:
            await self._add_headers(call, response)
        self._observe(call.operation, response.status)
        return response

    def drain(self) -> None:
        """End answers that would go on for as long as their clients like; here there are none."""

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

    async def _specified(
        self,
        call: _CallT,  # noqa: ARG002 - dialects need it; mypyc deletes no argument of a coroutine
        error: Exception,
    ) -> Exception:
        """Return an error that says more about the call, or the same. Raises nothing."""
        return error

    def _internal_error(self) -> _FaultT:
        """Return what the dialect calls an error of the server's own."""
        return self._faults("InternalError")

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


# --- refusals ----------------------------------------------------------------------------------


class Meaning(NamedTuple):
    """The status and the message that belong to a code of a protocol."""

    status: int
    message: str


NATIVE_ONLY: Final = (
    errors.MessageLeased,
    errors.MessageNotLeased,
    errors.JobNotFound,
    errors.NamedTwice,
    errors.NotDone,
    errors.SettingsDiffer,
    errors.StreamNotFound,
    errors.StaleToken,
    errors.ClaimNotFound,
    errors.ClaimOutOfTurn,
    errors.ClaimSettled,
    errors.ClaimLapsed,
    errors.ClaimBroken,
    errors.MemberNotFound,
    errors.NoGroups,
    errors.GroupNotHeld,
    errors.StagedNotFound,
    errors.AlreadyPublished,
    errors.ChunkOutOfTurn,
)
"""Errors of what only the native API can ask for."""


def translate(error: Exception, table: Mapping[type[Exception], Callable[[Any], _T]]) -> _T:
    """Return what a dialect calls an error; one that is not in its table is like its parent."""
    for kind in type(error).__mro__:
        to_fault = table.get(kind)
        if to_fault is not None:
            return to_fault(error)
    raise AssertionError(error)


# --- what is not given --------------------------------------------------------------------------


def find_no_queue(account: str, queue: str) -> Queue | None:
    """Know no queue; for dialects that are told of none."""
    del account, queue
    return None


def observe_nothing(operation: str, status: int) -> None:
    """Count nothing."""
    del operation, status


# --- browsers ----------------------------------------------------------------------------------
#
# What a browser on this machine may send to a server on whose requests anybody can sign.
#
# A web page can make the browser that shows it send requests to a loopback address, and with a
# public key it can sign them. Two things give it away. A page whose own name was made to mean this
# machine ("DNS rebinding") has that name in the Host field. A page of another origin cannot keep
# the browser from saying so in Origin, or in Sec-Fetch-Site where there is no Origin.
#
# Sources: RFC 6454, section 7 (Origin); "Fetch Metadata Request Headers" of the W3C; RFC 9110,
# section 15.5.20 (421).


_REMEMBERED: Final = 256
_TOLD: Final = 16
"""Names of strangers that are logged, each once."""
_OWN_SITES: Final = frozenset({"same-origin", "none"})
"""``none`` is what the user has typed, or a bookmark."""
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_MISDIRECTED: Final = 421


class Hosts:
    """Knows the names that this server is addressed by.

    Args:
        allowed: Names besides addresses in figures, ``localhost`` and what is under it; ``*.NAME``
            for all under one, ``*`` for all there are.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        names = {name.lower().rstrip(".") for name in allowed}
        self._names = frozenset(names) | {"localhost", ""}
        self._suffixes = (".localhost", *(name[1:] for name in names if name[:2] == "*."))
        self._any = "*" in names
        self._known: set[str] = set()
        self._told: set[str] = set()

    def knows(self, host: str) -> bool:
        """Tell whether a request with this Host field, "" if it has none, is meant for us."""
        if host in self._known:
            return True
        known = self._any or self._knows(_name_of(host))
        if known and len(self._known) < _REMEMBERED and len(host) <= MAX_HOST_CHARS:
            self._known.add(host)
        return known

    def _knows(self, name: str) -> bool:
        if name in self._names or name.endswith(self._suffixes):
            return True
        try:
            # A page that was loaded from an address in figures is where it says it is.
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def refusal(self, host: str) -> Response:
        """Return the answer to a request with another host, and log it the first time."""
        name = _name_of(host)[:MAX_HOST_CHARS]
        if name not in self._told and len(self._told) < _TOLD:
            self._told.add(name)
            _log.warning("server.unknown_host", host=name, setting="allowed_hosts")
        text = b"This server is not known by the host name of the request; see allowed_hosts.\n"
        return Response(_MISDIRECTED, [_TEXT], text)


def _name_of(host: str) -> str:
    """Return the name in a Host field, without the port, in lower case."""
    name = host.lower()
    if name[:1] == "[":
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Tell whether a request comes from a web page that is not one of this server's own."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in _OWN_SITES
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "")
