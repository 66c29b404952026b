"""What the console shows without being asked again: server-sent events.

One sampler looks for an account, however many consoles are open, and what it finds is written out
once for all of them. With none open it sleeps and costs nothing.

Source of the form: HTML Living Standard, "Server-sent events".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, TypeAlias

import msgspec

from leasehold.auth.console import ConsoleSession, ConsoleSessions, SignInKind
from leasehold.auth.types import (
    AuthError,
    NoCredentials,
    Operation,
    Pairs,
    SignedRequest,
    Target,
)
from leasehold.clock import Clock
from leasehold.engine.account_router import ServerEngine
from leasehold.http.console.figures import ORDERS, Overview, Row, ServerFigures, page_of
from leasehold.http.native.call import Call, param_int, param_switch
from leasehold.http.native.dialect import cookie_request
from leasehold.http.native.errors import RETRY_AFTER_S, Refused, invalid, problem
from leasehold.http.requests import Header, Response

INTERVAL_S: Final = 2.0
"""Seconds between two looks at the queues."""
INTERVAL_PER_QUEUE_S: Final = 0.0005
"""Seconds between two looks for each queue there is, if that is more: 10,000 take 10 to 20 ms of
processor time, of which an open console shall take well under a hundredth."""
SERVER_INTERVAL_S: Final = 5.0
SPARK_EVERY_S: Final = 10
"""Seconds that each value of a sparkline is of."""
KEEP_ALIVE_S: Final = 15.0
"""Longest silence: proxies close connections on which nothing happens."""
MAX_CONSOLES: Final = 256
"""Streams of events at once; each is an open connection, and some kB."""
MAX_UNREAD: Final = 8
"""Events that may wait for a reader; one that is further behind begins anew."""
RETRY_MS: Final = 2_000
"""After so long a browser connects again."""

_EARLY_S: Final = 1.0
"""By so much the server may be told of early, as looks come at their own pace."""
_MOST: Final = 10_000
_PAGE: Final = 1_000
_ENCODE: Final = msgspec.json.Encoder().encode
_HEADERS: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events first
    (b"connection", b"close"),
)
_KEEP_ALIVE: Final = b": keep-alive\n\n"


Credential: TypeAlias = tuple[str, SignInKind, int, Pairs, str]
"""Account, kind, number of the key, fields of a signature, name: callers who share them are one."""


class Reader:
    """One open console.

    Args:
        credential: What its user signed in with.
        now_s: Monotonic seconds.
    """

    def __init__(self, credential: Credential, now_s: float) -> None:
        self.credential = credential
        self.read_at_s = now_s
        """When the connection last took something, monotonic seconds."""
        self.unread: deque[tuple[str, bytes]] = deque()
        self.ending: str | None = None
        """Why the stream is over, once it is."""
        self._news = asyncio.Event()

    def tell(self, event: str, content: bytes) -> None:
        """Have an event sent, unless too many wait already: then the stream ends."""
        if len(self.unread) >= MAX_UNREAD:
            self.end("too-slow")
        elif self.ending is None:
            self.unread.append((event, content))
            self._news.set()

    def end(self, reason: str) -> None:
        """Have the stream end, without what waits to be sent."""
        if self.ending is None:
            self.ending = reason
            self.unread.clear()
        self._news.set()

    def wake(self, _: object = None) -> None:
        """Have whoever waits look again."""
        self._news.set()

    async def wait(self, longest_s: float) -> bool:
        """Wait *longest_s* seconds for something to send or look at; tell whether there is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._news.wait()
        is_news = self._news.is_set()
        self._news.clear()
        return is_news


class Sampler:
    """Looks at the queues of one account as long as anybody reads.

    Args:
        overview: Of the account.
        figures: Of the server.
        clock: For when the server is to be told of.
        interval_s: Seconds between two looks at least; see INTERVAL_PER_QUEUE_S.
    """

    def __init__(
        self,
        overview: Overview,
        figures: Callable[[], bytes],
        clock: Clock,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.overview = overview
        self.readers: set[Reader] = set()
        self._figures = figures
        self._clock = clock
        self._interval_s = interval_s
        self._server_due_s = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_awake(self) -> bool:
        """Whether it looks by itself."""
        return self._task is not None

    @property
    def interval_s(self) -> float:
        """Seconds between two looks."""
        return max(self._interval_s, INTERVAL_PER_QUEUE_S * len(self.overview.rows))

    async def fresh(self) -> None:
        """Have figures that are not old. While the sampler is awake they never are.

        Only it looks then: what it has not found itself, its readers would not be told.
        """
        if self._task is None or self.overview.taken_s is None:
            await self.overview.fresh(self.interval_s)

    async def enter(self, reader: Reader, *, full: bool) -> None:
        """Tell a reader everything, or without *full* only the sums; from then on what changes."""
        await self.fresh()
        rows = list(self.overview.rows.values()) if full else []
        reader.tell("overview", self._written(rows, None if full else []))
        reader.tell("server", self._figures())
        reader.tell("spark", _ENCODE(self._all_moves()))
        self.readers.add(reader)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="console-sampler")

    def leave(self, reader: Reader) -> None:
        """Tell a reader no more."""
        self.readers.discard(reader)
        if not self.readers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            await self.look()

    async def look(self) -> None:
        """Look once, and tell all readers."""
        before = self.overview.moves[-1] if self.overview.moves else None
        changed, removed = await self.overview.sample()
        if changed or removed:
            self._tell("overview", self._written(changed, removed))
        newest = self.overview.moves[-1] if self.overview.moves else None
        if newest is not None and newest is not before:
            told = {"full": False, "every_s": SPARK_EVERY_S, "at_ms": newest.at_ms}
            self._tell("spark", _ENCODE({**told, "queues": newest.rates}))
        now_s = self._clock.monotonic_s()
        if now_s >= self._server_due_s:
            self._server_due_s = now_s + SERVER_INTERVAL_S - _EARLY_S
            self._tell("server", self._figures())

    def _all_moves(self) -> dict[str, Any]:
        moves = self.overview.moves
        names = {name for each in moves for name in each.rates}
        at_ms = moves[-1].at_ms if moves else None
        told = {name: self.overview.movement(name) for name in names}
        return {"full": True, "every_s": SPARK_EVERY_S, "at_ms": at_ms, "queues": told}

    def _tell(self, event: str, content: bytes) -> None:
        for reader in self.readers:
            reader.tell(event, content)

    def _written(self, rows: list[Row], removed: list[str] | None) -> bytes:
        content: dict[str, Any] = {
            "full": removed is None,
            "now_ms": self._clock.now_ms(),
            "interval_s": self.interval_s,
            "account": self.overview.account,
            "totals": self.overview.totals(),
            "queues": rows,
        }
        if removed is not None:
            content["removed"] = removed
        return _ENCODE(content)


class Live:
    """Answers for what there is now, once or as a stream of events.

    Args:
        sessions: Know who has signed in.
        engine: What is looked at.
        figures: Of the server.
        clock: The engine's.
        interval_s: Seconds between two looks.
    """

    PARAMS: Final = frozenset({"search", "sort", "limit", "after"})
    STREAM_PARAMS: Final = frozenset({"full"})

    def __init__(
        self,
        sessions: ConsoleSessions,
        engine: ServerEngine,
        figures: ServerFigures,
        clock: Clock,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._sessions = sessions
        self._engine = engine
        self._figures = figures
        self._clock = clock
        self._interval_s = interval_s
        self._samplers: dict[str, Sampler] = {}
        self._readers: dict[Reader, None] = {}
        self._is_draining = False

    def sampler(self, account: str) -> Sampler:
        """Return who looks at the queues of an account."""
        found = self._samplers.get(account)
        if found is None:
            overview = Overview(account, self._engine, self._clock)
            found = self._samplers[account] = Sampler(
                overview, lambda: _ENCODE(self._shown_server()), self._clock, self._interval_s
            )
        return found

    def drain(self) -> None:
        """End all streams: the server stops."""
        self._is_draining = True
        for reader in self._readers:
            reader.end("stopping")

    async def overview(self, call: Call) -> Response:
        """Show the queues of the account, or some of them."""
        account = self._account(call)
        params = call.params
        sort = params.get("sort") or "name"
        if sort not in ORDERS:
            raise invalid("sort", f"`sort` is one of {', '.join(ORDERS)}.", value=sort)
        limit = param_int(call, "limit", (1, _MOST)) or _PAGE
        sampler = self.sampler(account)
        overview = sampler.overview
        await sampler.fresh()
        try:
            page = page_of(
                overview.rows.values(),
                params.get("search", ""),
                sort,
                limit,
                params.get("after") or None,
            )
        except ValueError:
            raise invalid("after", "`after` is not the `next` of a page.") from None
        return call.reply(
            {
                "now_ms": self._clock.now_ms(),
                "interval_s": sampler.interval_s,
                "account": account,
                "totals": overview.totals(),
                "queues": [{**row, "spark": overview.movement(row["name"])} for row in page.rows],
                "matched": page.matched,
                "next": page.next,
            }
        )

    async def server(self, call: Call) -> Response:
        """Show how the server is."""
        self._account(call)
        return call.reply(self._shown_server())

    async def stream(self, call: Call) -> Response:
        """Tell what changes, until the client goes, the session ends or the server stops.

        A page that shows some queues of ten thousand asks for those, and here for ``full=false``:
        then the first event has the sums only.
        """
        session = session_of(self._sessions, call, Operation.LIST_QUEUES)
        account = session.account
        full = param_switch(call, "full", default=True)
        if self._is_draining:
            detail = "The server is stopping."
            raise Refused(problem("overloaded", detail, retry_after_s=RETRY_AFTER_S * 5))
        request_id = (b"request-id", call.request_id)
        reader = Reader(credential_of(session), self._clock.monotonic_s())
        events = self._events(reader, cookie_request(call), account, call.request.gone, full=full)
        return Response(200, [*_HEADERS, request_id], b"", events)

    def _account(self, call: Call) -> str:
        """Return the account of the session, if it may look at all its queues."""
        session_of(self._sessions, call, Operation.LIST_QUEUES)
        return call.account

    def _check(self, signed: SignedRequest, account: str) -> None:
        self._sessions.check(signed, Target(account=account, operation=Operation.LIST_QUEUES))

    def _shown_server(self) -> dict[str, Any]:
        return {
            **self._figures.take(),
            "consoles": {"open": len(self._readers), "max": MAX_CONSOLES},
        }

    def _make_room(self) -> None:
        """End a stream if there are as many as there may be.

        It is one of the credential that has the most, and of these the one that has read nothing
        for longest. So a user with one credential cannot keep others out, however many consoles
        that never read it opens.
        """
        while len(self._readers) >= MAX_CONSOLES:
            counts = Counter(reader.credential for reader in self._readers)
            victim = min(
                self._readers,
                key=lambda reader: (-counts[reader.credential], reader.read_at_s),
            )
            victim.end("displaced")
            self.sampler(victim.credential[0]).leave(victim)
            self._readers.pop(victim, None)

    async def _events(
        self,
        reader: Reader,
        signed: SignedRequest,
        account: str,
        gone: Callable[[], Any],
        *,
        full: bool,
    ) -> AsyncGenerator[bytes, None]:
        sampler = self.sampler(account)
        self._make_room()
        self._readers[reader] = None
        watch = asyncio.ensure_future(gone())
        watch.add_done_callback(reader.wake)
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            await sampler.enter(reader, full=full)
            number = 0
            while not watch.done():
                reader.read_at_s = self._clock.monotonic_s()
                try:
                    self._check(signed, account)
                except AuthError:
                    reader.end("session-over")
                if reader.ending is not None:
                    yield _event(number, "end", _ENCODE({"reason": reader.ending}))
                    return
                if reader.unread:
                    number += 1
                    yield _event(number, *reader.unread.popleft())
                    continue
                if not await reader.wait(KEEP_ALIVE_S):
                    yield _KEEP_ALIVE
        finally:
            watch.cancel()
            sampler.leave(reader)
            self._readers.pop(reader, None)


def credential_of(session: ConsoleSession) -> Credential:
    """Return what a session was begun with; the users of an issuer differ by name."""
    return session.account, session.kind, session.key_number, session.sas, session.who


def session_of(
    sessions: ConsoleSessions, call: Call, operation: Operation, queue: str | None = None
) -> ConsoleSession:
    """Return the session of a request, and note its account in the call.

    Raises:
        AuthError: There is none, it is over, or it may not do *operation* to the queue, or to the
            account if that is None.
    """
    signed = cookie_request(call)
    session = sessions.open(signed.headers, https=signed.https)
    if session is None:
        raise NoCredentials("The request has no console session: sign in.")
    call.account = session.account
    sessions.check(signed, Target(account=session.account, operation=operation, queue=queue))
    return session


def _event(number: int, name: str, content: bytes) -> bytes:
    # JSON has no line breaks in it, which would end the field.
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (number, name.encode("ascii"), content)
