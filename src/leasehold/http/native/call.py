"""One request on its way through the dialect, what it may use, and the answers made for it."""

from __future__ import annotations

import os
from asyncio import Lock
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

from leasehold.auth.types import Operation
from leasehold.domain.admin import Job
from leasehold.domain.claims import OpenClaim, Opened
from leasehold.domain.command import Perform
from leasehold.domain.model import Queue
from leasehold.engine.long_poll import Gone
from leasehold.engine.stats import QueueActivity
from leasehold.http.admission import LongReceive
from leasehold.http.native.errors import Header, Problem, document
from leasehold.http.requests import Request, Response
from leasehold.http.test_mode import Controls

if TYPE_CHECKING:
    from leasehold.http.native.routes import Route

Pairs: TypeAlias = tuple[tuple[str, str], ...]

_ENCODE: Final = msgspec.json.Encoder().encode
_JSON: Final = (b"content-type", b"application/json")
_PROBLEM: Final = (b"content-type", b"application/problem+json")
_NO_STORE: Final = (b"cache-control", b"no-store")


class WaitForJob(Protocol):
    """Waits for a job that the engine carries on in the background."""

    async def __call__(self, account: str, job_id: str, wait_s: float) -> Job:
        """Return the job when it is over, or as it is after *wait_s* seconds.

        Raises:
            JobNotFound: There is no such job.
        """
        ...


class OpenWholeClaim(Protocol):
    """Opens a claim of any size, and waits for messages if there are none."""

    async def __call__(self, command: OpenClaim, wait_s: float, gone: Gone | None = None) -> Opened:
        """Open a claim, step by step, until it takes no more.

        Args:
            command: The claim.
            wait_s: Longest wait for a first message, 0 to 60 seconds.
            gone: Done when nobody wants the answer any more.

        Raises:
            LeaseholdError: As for :class:`~leasehold.domain.claims.OpenClaim`.
        """
        ...


class Authorize(Protocol):
    """Lets a request do something more than its route asks for."""

    async def __call__(self, call: Call, operation: Operation, queue: str | None) -> object:
        """Return if the sender may do *operation* to *queue*, or to the account if it is None.

        Raises:
            AuthError: The sender may not.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the operations of the dialect lean on."""

    perform: Perform
    """Carries a command out durably; raises LeaseholdError where it is refused."""
    receive: LongReceive
    """Carries a receive out, and waits for a message."""
    find_queue: Callable[[str, str], Queue | None]
    """Returns a queue of an account as the last batch left it."""
    activity: Callable[[str, str], QueueActivity]
    """Says what has happened in a queue of an account since the server started."""
    wait_for_job: WaitForJob
    open_claim: OpenWholeClaim | None = None
    """Opens a claim; without it, it is opened by ``perform`` and never waits for messages."""
    controls: Controls | None = None
    """What tests may do to the server; None outside test mode."""
    accepts_late: bool = False
    """Whether leases may be renewed beyond their message's expiry."""
    settings_lock: Lock = field(default_factory=Lock)
    """Held by what reads settings, changes them and writes them back."""


class RequestIds:
    """Ids that are not used twice: drawn once per process, and counted."""

    def __init__(self) -> None:
        self._head = os.urandom(8).hex().encode("ascii")
        self._count = count()

    def draw(self) -> bytes:
        """Return the next id."""
        return b"%b-%08x" % (self._head, next(self._count))


class Call:
    """What is known so far about a request. The dialect fills it in, stage by stage."""

    __slots__ = (
        "account",
        "authorize",
        "item",
        "now_ms",
        "number",
        "operation",
        "pairs",
        "params",
        "queue",
        "request",
        "request_id",
        "route",
        "services",
    )
    route: Route
    """Set once the credentials have been found good."""

    def __init__(
        self,
        request: Request,
        request_id: bytes,
        now_ms: int,
        services: Services,
        authorize: Authorize,
    ) -> None:
        self.request = request
        self.request_id = request_id
        self.now_ms = now_ms
        self.services = services
        self.authorize = authorize
        self.operation = "native-unknown"
        self.pairs: Pairs = ()
        self.params: Mapping[str, str] = {}
        """The parameters of the query without those of a signature."""
        self.account = ""
        self.queue = ""
        self.item = ""
        """A message's id, a job's, a session's, the name of a stream or transaction, or a code."""
        self.number = ""
        """Of a claim, as it stands in the path."""

    def reply(self, content: object, status: int = 200, *extra: Header) -> Response:
        """Return an answer with a JSON body."""
        headers = [_JSON, (b"request-id", self.request_id), *extra]
        if self.request.method == "GET":
            headers.append(_NO_STORE)
        return Response(status, headers, _ENCODE(content))

    def reply_bytes(self, kind: bytes, content: bytes, *extra: Header) -> Response:
        """Return an answer whose body is no JSON; *kind* is its content type."""
        headers = [(b"content-type", kind), (b"request-id", self.request_id), *extra]
        if self.request.method == "GET":
            headers.append(_NO_STORE)
        return Response(200, headers, content)

    def reply_nothing(self) -> Response:
        """Return an answer without a body."""
        return Response(204, [(b"request-id", self.request_id)])

    def reply_problem(self, problem: Problem, *extra: Header) -> Response:
        """Return an error."""
        headers = [_PROBLEM, (b"request-id", self.request_id), *extra]
        if problem.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % problem.retry_after_s))
        body = b"" if self.request.method == "HEAD" else _ENCODE(document(problem))
        return Response(problem.status, headers, body)
