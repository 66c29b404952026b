"""The server's side of one HTTP connection, strict and bounded.

httptools' parser takes a request apart, :mod:`leasehold.http.request_cycle` answers it. What is
here: limits on the size of a header, deadlines for header, body, reader and idle time, a bound on
connections, refusal of every request whose end could be read in two ways (RFC 9112 section 11.2,
"Request Smuggling"), and answers that come in the order of the requests even if a later one is
malformed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Final, NamedTuple, NoReturn

import httptools

from leasehold.auth.sharedkey import format_http_date
from leasehold.clock import Clock
from leasehold.http import guard as g
from leasehold.http.admission import STALLED_S
from leasehold.http.guard import Unfinished
from leasehold.http.request_cycle import App, RequestCycle, scope_of

# --- framing -----------------------------------------------------------------------------------
#
# Where a request ends: the one question a server and the proxies before it must agree on.
#
# Rules: RFC 9112 sections 3.2 (target), 6.1 and 6.3 (length), 11.2 (what happens where two
# programs read them differently). The parser in front has already refused most of what breaks
# them; here are the ones it lets pass.


Field = tuple[bytes, bytes]

FRAMING_FIELDS: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect"})
_VERSIONS: Final = frozenset({"1.0", "1.1"})
"""The parser takes others for one of these, and a request without a version for 0.9."""
_FIELD_OVERHEAD_BYTES: Final = 3  # a colon and a line break


class Framing(NamedTuple):
    """What the header says of the body."""

    has_body: bool
    expects_continue: bool
    """Whether the client waits for "100 Continue" before it sends the body."""


def read_framing(fields: Iterable[Field], version: str) -> Framing | None:
    """Read those *fields* that are in FRAMING_FIELDS; None if they are ambiguous.

    Args:
        fields: Names in lower case.
        version: Of HTTP, such as "1.1".
    """
    if version not in _VERSIONS:
        return None
    hosts, has_body, expects = 0, False, False
    for name, value in fields:
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            has_body = int(value) > 0
        elif name == b"transfer-encoding":
            if version != "1.1" or value.lower() != b"chunked":
                return None
            has_body = True
        else:
            expects = value.lower() == b"100-continue"
    if hosts != 1 and (hosts or version != "1.0"):
        return None
    return Framing(has_body, expects)


def read_target(target: bytes, method: bytes, fields: Iterable[Field]) -> bytes | None:
    """Return path and query of a request; None if the target will not do.

    An absolute address is taken if it agrees with the Host field.
    """
    if b"#" in target:
        return None
    if target[:1] == b"/" or (target == b"*" and method == b"OPTIONS"):
        return target
    scheme, _, rest = target.partition(b"://")
    authority, slash, rest = rest.partition(b"/")
    hosts = [value.lower() for name, value in fields if name == b"host"]
    if scheme.lower() not in (b"http", b"https") or not slash or hosts != [authority.lower()]:
        return None
    return slash + rest


def header_size(fields: Iterable[Field]) -> int:
    """Return how many bytes *fields* take on the wire, optional spaces not counted."""
    return sum(len(name) + len(value) + _FIELD_OVERHEAD_BYTES for name, value in fields)


def without_upgrade(method: bytes, target: bytes, fields: Iterable[Field]) -> bytes:
    """Return a header as it would be without its Upgrade field."""
    lines = [b"%b %b HTTP/1.1" % (method, target)]
    lines += [b"%b: %b" % field for field in fields if field[0] != b"upgrade"]
    return b"\r\n".join((*lines, b"", b""))


# --- phases ------------------------------------------------------------------------------------
#
# What the reading side of a connection is at.


class Phase(IntEnum):
    """See the module."""

    IDLE = 0
    """Between requests."""
    HEAD = 1
    BODY = 2
    REFUSED = 3
    """What comes is thrown away; answers to earlier requests are still to be written."""
    LINGERING = 4
    """The last answer was written; what comes is thrown away."""


# --- protocol ----------------------------------------------------------------------------------


_MAX_UNREAD_BYTES: Final = 65_536
"""Of a body, what may wait for the application before the client has to."""
_PIECE_BYTES: Final = 16_384
"""The parser is fed pieces of this size, so that limits are checked this often."""
_MAX_PIPELINED: Final = 32
"""Requests that may wait behind the one being answered; SDKs send none."""
_LINGERING: Final = 256
"""Connections above the limit that are told so; more are reset without a word."""
_GOODBYE_S: Final = 0.2
_METADATA: Final = b"x-ms-meta-"


# Class attributes are faster to reach than members of an enumeration.
_IDLE, _HEAD, _BODY, _REFUSED, _LINGER = Phase


class _RefusedError(Exception):
    """Stops the parser in the middle of a request."""


class ServerState:
    """What the connections of one server share.

    Args:
        guard: Knows their limits.
        clock: What answers are dated by, the clock that messages go by.
    """

    def __init__(self, guard: g.Guard, clock: Clock) -> None:
        self.guard = guard
        self.connections: set[HttpConnection] = set()
        """The open ones, without those that had to make way for others."""
        self.tasks: set[asyncio.Task[None]] = set()
        """One for each request that is being answered."""
        self.is_draining = False
        """Whether the server is about to stop: each connection ends with its next answer."""
        self._clock = clock
        self._second = -1
        self._head = b""

    def default_head(self) -> bytes:
        """Return the fields of every answer as they are written: Date, of this very second.

        Asked for each answer. A date that a timer renews is late whenever the loop is busy, and
        clients take the times of messages for later than they are.
        """
        second = self._clock.now_ms() // 1000
        if second != self._second:
            self._second = second
            self._head = b"date: %b\r\n" % format_http_date(second * 1000).encode("ascii")
        return self._head


class HttpConnection(asyncio.Protocol):
    """One connection.

    Args:
        app: Answers requests.
        state: What it shares with the others of its server.
        loop: The event loop that it belongs to; None for the one that runs.
    """

    def __init__(
        self, app: App, state: ServerState, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.app = app
        self.state = state
        self.guard = state.guard
        self.loop = asyncio.get_running_loop() if loop is None else loop
        self.parser = _parser_of(self)
        self.transport: asyncio.Transport
        self.server: tuple[str, int] | None = None
        """Address and port on this side."""
        self.client: tuple[str, int] | None = None
        """Address and port on the other side; None if it has gone already."""
        self.scheme = "http"
        self.url = b""
        """Of the request that is being read, as far as it has come."""
        self.headers: list[Field] = []
        """The same; names in lower case."""
        self.limits = self.guard.limits
        self.active: RequestCycle | None = None
        """The request whose answer comes next."""
        self.queued: deque[RequestCycle] = deque()
        self.newest: RequestCycle | None = None
        """The request that was last begun."""
        self.half_closed = False
        """Whether the client has said that it will send no more."""
        self.read_paused = False
        self.write_paused = False
        """Whether the client is to take some of the answers before more is written."""
        self._writable = asyncio.Event()
        self._phase = _IDLE
        self._since_s = self.guard.now_s
        """When the phase began, give or take a sweep."""
        self._fed = 0
        """Bytes fed since the header began, without the piece it began in."""
        self._piece = 0
        self._body_bytes = 0
        self._discarded = 0
        self._unsent_since_s: float | None = None
        self._unsent = 0
        """Bytes of answers that the guard counts as buffered: large ones, until they are taken."""
        self._taken_s = self._since_s
        """When the client was last seen to take some of them, give or take a sweep."""
        self._rest = b""
        """What has come of a body whose credentials are looked at, behind its first piece."""
        self._held = g.Held(self.guard)
        self._is_proved = False
        """Whether credentials were shown on this connection."""
        self._refusal: g.Refusal | None = None
        self._raw_names: dict[str, str] | None = None
        self._framing: list[tuple[bytes, bytes]] = []

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take or refuse a new connection."""
        self.transport = transport
        self.server, self.client = _addresses_of(transport)
        if transport.get_extra_info("sslcontext"):
            self.scheme = "https"
        self.state.connections.add(self)
        self.guard.connections.add(self)
        self.guard.strangers[self] = None
        self._held.address = self.client[0] if self.client else ""
        self.guard.accepted += 1
        self._since_s = self.guard.now_s
        if self.state.is_draining:
            # Accepted before the listener closed; over TLS that may be long ago.
            self.loop.call_later(_GOODBYE_S, self.shutdown)
        excess = len(self.state.connections) - self.limits.max_connections
        if excess > 0 and self.guard.turn_out_stranger(self):
            excess -= 1
        if excess > 0:
            self.guard.note_crowded()
        if excess > _LINGERING:
            self.guard.refused[g.TOO_MANY_CONNECTIONS.reason] += 1
            transport.abort()
        elif excess > 0:
            self._refuse(g.TOO_MANY_CONNECTIONS)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Tell the requests under way that nobody waits for their answers any more."""
        self.state.connections.discard(self)
        self.guard.connections.discard(self)
        self.guard.strangers.pop(self, None)
        self._held.clear()
        for cycle in (self.active, *self.queued):
            if cycle is not None:
                self._drop(cycle)
        self.active = None
        self.queued.clear()
        self.guard.buffered -= self._unsent
        self._unsent = 0
        self._rest = b""
        self._let_write()
        self.parser = None  # breaks a reference cycle

    def eof_received(self) -> bool | None:
        """Go on answering a client that only closed its sending side.

        See ``RequestCycle.receive``, too.
        """
        self.half_closed = True
        active = self.active
        if active is None or active.more_body or active.is_watching or self.scheme == "https":
            return None
        (self.newest or active).keep_alive = False
        return True

    def shutdown(self) -> None:
        """Close after what is being answered: the server stops."""
        if self.active is not None:
            (self.newest or self.active).keep_alive = False
        elif not self.transport.is_closing():
            self.transport.close()
            self.loop.call_later(_GOODBYE_S, self._end_goodbye)

    def _end_goodbye(self) -> None:
        """End a connection over TLS whose idle client does not return our goodbye."""
        if self in self.guard.connections and self.transport.get_write_buffer_size() == 0:
            self.transport.abort()

    # Reading

    def data_received(self, data: bytes) -> None:
        """Feed the parser, in pieces."""
        phase = self._phase
        if phase >= _REFUSED:
            self._discard(len(data))
            return
        if self._rest:
            self._rest += data
            return
        if phase is _IDLE:
            self._phase = _HEAD
            self._since_s = self.guard.now_s
            self._fed = 0
        if len(data) <= _PIECE_BYTES:
            self._feed(data)
        else:
            self._feed_pieces(data)

    def _feed_pieces(self, data: bytes) -> None:
        """Feed much at once, but of a body only the beginning before its credentials are good."""
        for start in range(0, len(data), _PIECE_BYTES):
            active = self.active if start and self._phase is _BODY else None
            if active is not None and active is self.newest and not active.proved:
                self._rest = data[start:]
                self._held.add(len(self._rest))
                self.pause_reading()
                return
            self._feed(data[start : start + _PIECE_BYTES])
            if self._phase >= _REFUSED:
                return

    def _feed_rest(self) -> None:
        rest, self._rest = self._rest, b""
        self.data_received(rest)

    def _feed(self, data: bytes) -> None:
        self._piece = len(data)
        begun = self._phase is _HEAD
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._after_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self._refuse(self._refusal or g.MALFORMED)
            return
        if begun and self._phase is _HEAD:
            self._fed += len(data)
            self._held.add(len(data))
            if self._fed > self.limits.max_header_bytes + self.limits.max_request_line_bytes:
                self._refuse(g.HEADER_TOO_LARGE)

    def _after_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1, as RFC 9110 section 7.8 lets a server do.

        The parser takes the bytes after such a header for another protocol, also where the header
        announces a body. Then the header is parsed once more without its Upgrade field: else the
        body would be read as the next request.
        """
        if self._phase is _HEAD:
            head = without_upgrade(self.parser.get_method(), self.url, self.headers)
            self.parser = _parser_of(self)
            rest = head + rest
        if rest:
            self._feed(rest)

    # What the parser finds

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self._phase is not _HEAD:
            self._phase = _HEAD
            self._since_s = self.guard.now_s
            self._fed = 0
        self.url = b""
        self.headers = []
        self._framing = []
        self._raw_names = None

    def on_url(self, url: bytes) -> None:
        """Take a part of the address."""
        self.url += url
        if len(self.url) > self.limits.max_request_line_bytes:
            self._stop_parsing(g.ADDRESS_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one field."""
        lower = name.lower()
        headers = self.headers
        headers.append((lower, value))
        if lower in FRAMING_FIELDS:
            self._framing.append((lower, value))
        if len(headers) > self.limits.max_header_fields:
            self._stop_parsing(g.HEADER_TOO_LARGE)
        if lower != name and lower.startswith(_METADATA):
            if self._raw_names is None:
                self._raw_names = {}
            self._raw_names[lower.decode("latin-1")] = name.decode("latin-1")
        if self._phase is _BODY:  # a trailer: nothing it could say is wanted that late
            self._stop_parsing(g.MALFORMED)

    def on_headers_complete(self) -> None:
        """Check what frames the request, and start or queue it."""
        parser = self.parser
        version = parser.get_http_version()
        method = parser.get_method()
        framing = read_framing(self._framing, version)
        target = read_target(self.url, method, self._framing)
        upgrade = parser.should_upgrade()
        if framing is None or target is None or (upgrade and method == b"CONNECT"):
            self._stop_parsing(g.MALFORMED)
        limit = self.limits.max_header_bytes
        if self._fed + self._piece > limit and header_size(self.headers) > limit:
            self._stop_parsing(g.HEADER_TOO_LARGE)
        if upgrade and framing.has_body:
            return  # it is parsed again, see _after_upgrade
        self._phase = _BODY
        self._since_s = self.guard.now_s
        self._body_bytes = 0
        self._begin(
            RequestCycle(
                self,
                scope_of(self, method.decode("ascii"), target, self._raw_names),
                keep_alive=version == "1.1" and parser.should_keep_alive(),
                expects_continue=framing.expects_continue,
            )
        )

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body_bytes += len(body)
        newest = self.newest
        assert newest is not None
        guard = self.guard
        newest.size += len(body)
        guard.buffered += len(body)
        if guard.buffered > guard.limits.max_buffered_bytes and not guard.make_room(self):
            guard.note_crowded()
            self._stop_parsing(g.TOO_MUCH_BUFFERED)
        if not newest.proved and (newest.begun or newest is not self.active):
            self._held.add(len(body))
        newest.add_body(body)
        if len(newest.body) > _MAX_UNREAD_BYTES:
            self.pause_reading()

    def on_message_complete(self) -> None:
        """End a request."""
        newest = self.newest
        if self._phase is _HEAD or newest is None:
            return  # it is parsed again, see _after_upgrade
        self._phase = _IDLE
        self._since_s = self.guard.now_s
        newest.more_body = False
        newest.wake()

    def _stop_parsing(self, refusal: g.Refusal) -> NoReturn:
        self._refusal = refusal
        raise _RefusedError

    # Credentials

    def prove(self) -> None:
        """Note that the request whose answer comes next has shown good credentials."""
        if self.active is not None:
            self.active.proved = True
        if self._held.size:
            self._held.clear()
        if self._rest:
            # At once: whatever the loop reads next, the end of the stream for one, comes after it.
            self._feed_rest()
        if not self._is_proved:
            self._is_proved = True
            self.guard.strangers.pop(self, None)

    def unproved(self, now_s: float) -> Unfinished[g.Swept] | None:
        """See :class:`leasehold.http.guard.Swept`."""
        active = self.active
        held = self._held
        if not held.size or (active is not None and not active.begun):
            return None
        return Unfinished(self, held.address, held.size, now_s - self._since_s)

    def unfinished(self, now_s: float) -> Unfinished[g.Swept] | None:
        """See :class:`leasehold.http.guard.Swept`."""
        newest = self.newest
        if self._phase is not _BODY or newest is None or self.queued:
            return None
        return Unfinished(self, self._held.address, newest.size, now_s - self._since_s)

    def crowd_out(self, *, at_once: bool) -> None:
        """See :class:`leasehold.http.guard.Swept`."""
        if self._phase is _BODY and not self.queued and not at_once:
            self._refuse(g.CROWDED_OUT)
            return
        self.guard.refused[g.CROWDED_OUT.reason] += 1
        self.state.connections.discard(self)
        self._held.clear()
        self.transport.abort()

    def let_go_of_unread(self, now_s: float) -> None:
        """See :class:`leasehold.http.guard.Swept`."""
        since_s = max(self._taken_s, self._since_s)
        if self._unsent and now_s - self.guard.interval_s - since_s > STALLED_S:
            self.guard.buffered -= self._unsent
            self._unsent = 0
            self._reset_reader()

    def _reset_reader(self) -> None:
        self.guard.refused[g.SLOW_READER.reason] += 1
        self.transport.abort()

    # Flow

    def pause_reading(self) -> None:
        """Let what the client sends wait in its hands."""
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Take what the client sends."""
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Note that the client does not take its answers as fast as they are written."""
        self.write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        """Note that the client has taken most of an answer."""
        self._let_write()
        self._count_unsent()

    def _let_write(self) -> None:
        self.write_paused = False
        self._writable.set()

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written, or is gone."""
        if self.write_paused:
            await self._writable.wait()

    # Answering

    def _count_unsent(self) -> None:
        """Let the guard count what waits to be sent: a large answer is memory, like a request."""
        size = self.transport.get_write_buffer_size()
        if self.active is not None and self.active.held:
            size = 0  # all of the answer is counted as long as a part of it is held back
        self.guard.buffered += size - self._unsent
        self._unsent = size

    def default_head(self) -> bytes:
        """Return the field that every answer has: Date."""
        return self.state.default_head()

    def answered(self, cycle: RequestCycle) -> None:
        """Go on after *cycle* has written its answer."""
        self.guard.buffered -= cycle.size
        if self.write_paused:
            self._count_unsent()
        self.active = None
        if self._held.size and not self.queued:
            self._held.clear()
        if self.transport.is_closing():
            return
        self._since_s = self.guard.now_s
        self._unsent_since_s = None  # each answer has its own time
        if not cycle.keep_alive:
            if self._phase is _IDLE:
                self.transport.close()
            else:
                self._linger()
            return
        if self.queued:
            self._start(self.queued.popleft())
        elif self._phase is _REFUSED:
            self._say_refusal()
        if not self.queued:
            self.resume_reading()

    def _begin(self, cycle: RequestCycle) -> None:
        self.newest = cycle
        if self.state.is_draining:
            cycle.keep_alive = False
        if self.active is None:
            self._start(cycle)
            return
        self.queued.append(cycle)
        self.pause_reading()
        if len(self.queued) > _MAX_PIPELINED:
            self._stop_parsing(g.TOO_MANY_PIPELINED)

    def _start(self, cycle: RequestCycle) -> None:
        self.active = cycle
        task = self.loop.create_task(cycle.run(self.app))
        self.state.tasks.add(task)
        task.add_done_callback(self.state.tasks.discard)

    def _drop(self, cycle: RequestCycle) -> None:
        self.guard.buffered -= cycle.size
        cycle.disconnect()

    # Refusing

    def _refuse(self, refusal: g.Refusal) -> None:
        """Take no further request; say why, after the answers that are still owed."""
        self.guard.refused[refusal.reason] += 1
        self._refusal = refusal
        self._rest = b""
        self._held.clear()
        refused = self.newest if self._phase is _BODY else None
        self._phase = _REFUSED
        if refused is not None:
            self._drop(refused)
            if self.queued:
                self.queued.pop()
            else:
                self.active = None
        if self.active is None:
            self._say_refusal()
        else:
            self.pause_reading()

    def _say_refusal(self) -> None:
        assert self._refusal is not None
        self.transport.write(self._refusal.response)
        self._linger()

    def _linger(self) -> None:
        self._phase = _LINGER
        self._rest = b""
        self._held.clear()
        self._since_s = self.guard.now_s
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.resume_reading()
        else:
            self.transport.close()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > g.LINGER_BYTES:
            self.transport.abort()

    # Deadlines

    def check(self, now_s: float) -> None:
        """Act on the deadlines that have passed; see :class:`leasehold.http.guard.Guard`."""
        limits, transport = self.limits, self.transport
        late_s = now_s - self.guard.interval_s
        if self._unsent:
            before = self._unsent
            self._count_unsent()
            if self._unsent != before:
                self._taken_s = now_s
        if transport.get_write_buffer_size() == 0:
            self._unsent_since_s = None
        elif self._unsent_since_s is None:
            self._unsent_since_s = now_s
        elif late_s - self._unsent_since_s > limits.write_timeout_s or (
            self.active is not None and self.active.is_in_the_way(now_s)
        ):
            self._reset_reader()
            return
        waited_s = late_s - self._since_s
        if self._phase is _LINGER or transport.is_closing():
            # Over TLS closing waits for the client to say goodbye, too, and it may never do so.
            said = self._phase is _LINGER or self._unsent_since_s is None
            if said and waited_s > g.LINGER_S:
                transport.abort()
        elif self.active is None or (self._phase is _BODY and not self.queued):
            self._check_client(waited_s)

    def _check_client(self, waited_s: float) -> None:
        """Act if the client, whose turn it is, has let us wait too long."""
        limits = self.limits
        match self._phase:
            case Phase.IDLE:
                if waited_s > limits.idle_timeout_s:
                    self.transport.close()
            case Phase.HEAD:
                if waited_s > limits.header_timeout_s:
                    self._refuse(g.HEADER_TIMEOUT)
            case Phase.BODY:
                earned_s = self._body_bytes / limits.body_min_bytes_per_s
                if waited_s > limits.body_timeout_s + earned_s:
                    self._refuse(g.BODY_TIMEOUT)


def _parser_of(connection: HttpConnection) -> Any:
    """Return a parser that calls *connection* with what it finds."""
    parser = httptools.HttpRequestParser(connection)
    # What follows a request that ends the connection is thrown away, and is no reason to refuse it.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _addresses_of(
    transport: asyncio.Transport,
) -> tuple[tuple[str, int] | None, tuple[str, int] | None]:
    """Return address and port of both sides, ours first; None for one that has gone already."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return None, None
    ours = sock.getsockname()[:2]
    try:
        return ours, sock.getpeername()[:2]
    except OSError:
        return ours, None
