"""One request on its way through the dialect, what it may use, and the answers made for it."""

from __future__ import annotations

import os
from asyncio import Lock
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from leasehold.auth.types import Operation, Pairs
from leasehold.domain.admin import Job
from leasehold.domain.claims import OpenClaim, Opened
from leasehold.domain.command import Perform
from leasehold.domain.model import Queue
from leasehold.engine.long_poll import Gone
from leasehold.engine.stats import QueueActivity
from leasehold.http.admission import LongReceive
from leasehold.http.app import BaseCall, RequestIds
from leasehold.http.native.errors import Refused, document
from leasehold.http.requests import Header, Response
from leasehold.http.test_mode import Controls

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
            gone: Done when the client has gone.

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
    settings_lock: Lock = field(default_factory=Lock)
    """Held by what reads settings, changes them and writes them back."""


def request_ids() -> RequestIds:
    """Return ids that are not used twice: drawn once per process, and counted."""
    return RequestIds(os.urandom(8).hex().encode("ascii") + b"-%08x")


class Call(BaseCall):
    """What is known so far about a request. The dialect fills it in, stage by stage."""

    __slots__ = (
        "authorize",
        "item",
        "number",
        "pairs",
        "params",
        "queue",
        "route",
        "services",
    )
    route: Route
    """Set once the address has been read."""

    def __init__(self, services: Services, authorize: Authorize) -> None:
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

    def reply_fault(self, fault: Refused) -> Response:
        """Return an error."""
        problem = fault.problem
        headers = [_PROBLEM, (b"request-id", self.request_id), *fault.headers]
        if problem.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % problem.retry_after_s))
        body = b"" if self.request.method == "HEAD" else _ENCODE(document(problem))
        return Response(problem.status, headers, body)


# --- operations --------------------------------------------------------------------------------


Handler: TypeAlias = Callable[[Call], Awaitable[Response]]

_MEMBERS: Final = {
    "account": "account",
    "queue": "queue",
    "id": "item",
    "job_id": "item",
    "code": "item",
    "session_id": "item",
    "stream": "item",
    "number": "number",
    "name": "item",
}
"""Where a call keeps what stands for a part of the path."""


class Route(NamedTuple):
    """One operation."""

    name: str
    """For the metrics and the document."""
    method: str
    path: str
    operations: tuple[Operation, ...]
    """All of them must be allowed; none is asked for if there is none."""
    handler: Handler
    params: frozenset[str] = frozenset()
    """Parameters of the query."""
    instead: Operation | None = None
    """Whoever is allowed this one may pass as well."""

    def members(self) -> tuple[str, ...]:
        """Return where a call keeps the variable parts of the path, in their order."""
        return tuple(_MEMBERS[part[1:-1]] for part in self.path.split("/") if part[:1] == "{")
