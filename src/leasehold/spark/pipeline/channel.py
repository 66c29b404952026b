"""How executors and the driver speak: lines of JSON over one TCP connection for each task.

The driver begins with a number that is used once, and whoever connects proves with it that they
know the run's secret, which is never sent. Then the task says who it is, and sends rows and
figures; the driver answers with the number of the last row that it has, and with the wish to stop.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Self

import msgspec
from msgspec import Struct

from leasehold.spark.pipeline.report import Board, Figures, Progress, Row, Spool, StageFigures, Who
from leasehold.worker.timing import Time

MOST_BYTES: Final = 32 * 1024 * 1024
"""Of one line; more is none of ours."""
ROWS_AT_ONCE: Final = 2_000


class Address(Struct, frozen=True):
    """Where the driver listens."""

    host: str
    port: int
    secret: str = ""

    def __repr__(self) -> str:
        return f"Address({self.host}:{self.port})"


class Greeting(Struct):
    """The first line of the driver."""

    nonce: str


class Hello(Struct):
    """The first line of a task."""

    who: Who
    proof: str


class Told(Struct, omit_defaults=True):
    """Any other line of a task."""

    first: int = 0
    """Number of the first of the rows, from 1."""
    rows: list[Row] = []
    figures: Figures | None = None
    bye: bool = False
    """Nothing comes after this."""


class Answer(Struct, omit_defaults=True):
    """Any other line of the driver."""

    have: int = 0
    """Rows up to this number are safe."""
    stop_s: float | None = None
    """Stop; messages in work may go on for so many seconds."""
    hurry: bool = False
    """Do not wait for them any longer."""
    leave: bool = False
    """The executor goes: hand over what is in work, and end. Others go on."""


class TaskResult(Struct):
    """What a task hands to Spark in the end: the rows that the driver has not confirmed."""

    who: Who
    first: int
    rows: list[Row]
    figures: Figures
    failure: str | None = None
    """Why it could not go on; None: it came to its end."""


def new_secret() -> str:
    """Return a secret for one run."""
    return secrets.token_hex(32)


def new_nonce() -> str:
    """Return a number that is used once."""
    return secrets.token_hex(16)


def proof(secret: str, nonce: str, link: str) -> str:
    """Return what shows that the other side knows the secret."""
    return hmac.new(secret.encode(), f"{nonce} {link}".encode(), hashlib.sha256).hexdigest()


def is_proven(hello: Hello, secret: str, nonce: str) -> bool:
    """Return whether whoever said *hello* knows the secret."""
    return hmac.compare_digest(hello.proof, proof(secret, nonce, hello.who.link))


class Lines:
    """A connection as lines of JSON.

    Args:
        connection: It has a time-out, which bounds each read and write.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """Return the number of the connection, for select."""
        return self._connection.fileno()

    def send(self, value: Any) -> None:
        """Send a line. From any thread.

        Raises:
            OSError: The connection is of no use any more.
        """
        line = msgspec.json.encode(value) + b"\n"
        with self._sending:
            self._connection.sendall(line)

    def receive(self, most: int = MOST_BYTES) -> bytes | None:
        """Return the next line; None: the other side has closed the connection.

        Raises:
            OSError: The connection is of no use any more, or nothing came in time.
            ValueError: The line is longer than *most*.
        """
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > most:
                raise ValueError(f"a line of more than {most} bytes")
            found = self._connection.recv(1 << 18)
            if not found:
                return None
            self._buffer += found
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    @property
    def has_line(self) -> bool:
        """Whether a line is here already."""
        return b"\n" in self._buffer

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


# --- link --------------------------------------------------------------------------------------
#
# A task's side of the connection to the driver. To lose it costs no work.


_log: Final = logging.getLogger("leasehold.spark.pipeline")
_INTERVAL_S: Final = 0.25
_CALL_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 5.0
MOST_ROWS: Final = 100_000
"""Rows that are kept while they are not taken; then the oldest are dropped."""


class Link:
    """Tells the driver what happens, and hears from it when to stop.

    Args:
        address: Where the driver listens; None: there is nobody to tell.
        who: Which task this is.
        figures: Gives the figures of the moment.
        heard: Called with each wish of the driver, in the link's thread; must not block.
        time: That it goes by.
    """

    def __init__(
        self,
        address: Address | None,
        who: Who,
        *,
        figures: Callable[[], Figures],
        heard: Callable[[Answer], None],
        time: Time,
    ) -> None:
        self._address = address
        self._who = who
        self._figures = figures
        self._heard = heard
        self._time = time
        self._lock = threading.Lock()
        self._rows: deque[Row] = deque()
        self._first = 1
        """Number of the first row that is kept."""
        self.dropped = 0
        """How many rows are not taken yet."""
        self._sent = 0
        self._lines: Lines | None = None
        self._pause_s = 0.0
        self._next_s = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        if self._address is not None:
            self._thread = threading.Thread(target=self._run, name="leasehold-link", daemon=True)
            self._thread.start()

    def tell(self, row: Row) -> None:
        """Have the driver told of a delivery that has ended. From any thread; never waits."""
        with self._lock:
            self._rows.append(row)
            if len(self._rows) > MOST_ROWS:
                self._rows.popleft()
                self._first += 1
                self.dropped += 1

    def close(self) -> tuple[int, list[Row]]:
        """Tell what is left, say good-bye, and return the rows that are not confirmed.

        Returns:
            The number of the first one, and the rows.
        """
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        return self._first, list(self._rows)

    # --- inside ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                if self._lines is not None or self._connect():
                    self._exchange()
                    continue
            except (OSError, ValueError, msgspec.DecodeError) as error:
                self._lost(error)
            self._ended.wait(_INTERVAL_S)
        try:
            if self._lines is not None or self._rows:
                self._take_leave()
        except (OSError, ValueError, msgspec.DecodeError) as error:
            self._lost(error)

    def _connect(self) -> bool:
        """Connect, unless it is too early for another try; return whether there is a connection."""
        address = self._address
        if address is None or self._time.monotonic_s() < self._next_s:
            return False
        connection = socket.create_connection((address.host, address.port), _CALL_S)
        lines = Lines(connection)
        try:
            greeting = msgspec.json.decode(lines.receive() or b"", type=Greeting)
            link = self._who.link
            lines.send(Hello(self._who, proof(address.secret, greeting.nonce, link)))
            self._answered(lines)
        except BaseException:
            lines.close()
            raise
        self._lines, self._pause_s = lines, 0.0
        self._sent = self._first - 1
        return True

    def _lost(self, error: Exception) -> None:
        level = logging.DEBUG if self._pause_s else logging.WARNING
        _log.log(level, "the progress does not reach the driver; the work goes on: %s", error)
        if self._lines is not None:
            self._lines.close()
            self._lines = None
        self._pause_s = min(_LONGEST_PAUSE_S, max(_INTERVAL_S, 2 * self._pause_s))
        self._next_s = self._time.monotonic_s() + self._pause_s

    def _exchange(self) -> None:
        """Hear what there is to hear for a moment, then tell what there is to tell."""
        lines = self._lines
        assert lines is not None
        if lines.has_line or select.select([lines], [], [], _INTERVAL_S)[0]:
            self._answered(lines)
            if lines.has_line:
                return
        self._send(lines, bye=False)

    def _take_leave(self) -> None:
        if self._lines is None:
            self._next_s = 0.0
            self._connect()
        lines = self._lines
        assert lines is not None
        self._send(lines, bye=True)
        while self._rows and self._sent >= self._first:
            self._answered(lines)
        # The driver closes the connection when it has shown what this task has done.
        while lines.receive() is not None:
            pass
        lines.close()
        self._lines = None

    def _send(self, lines: Lines, *, bye: bool) -> None:
        """Send the rows that were not sent yet, and the figures."""
        while True:
            with self._lock:
                skip = max(self._sent + 1 - self._first, 0)
                first = self._first + skip
                rows = list(islice(self._rows, skip, skip + ROWS_AT_ONCE))
            is_last = len(rows) < ROWS_AT_ONCE
            lines.send(Told(first, rows, self._figures() if is_last else None, bye and is_last))
            self._sent = first + len(rows) - 1
            if is_last:
                return

    def _answered(self, lines: Lines) -> None:
        line = lines.receive()
        if line is None:
            raise ConnectionError("the driver has closed the connection")
        answer = msgspec.json.decode(line, type=Answer)
        with self._lock:
            while self._rows and self._first <= answer.have:
                self._rows.popleft()
                self._first += 1
        if answer.stop_s is not None or answer.hurry or answer.leave:
            self._heard(answer)


# --- collecting --------------------------------------------------------------------------------
#
# The driver's side: listens to the tasks, keeps what they tell, and passes wishes on to them.


_SILENT_S: Final = 60.0
"""After so long without a word a connection is closed; tasks speak four times a second."""
_HELLO_BYTES: Final = 16_384


@dataclass(slots=True)
class _Known:
    """What the driver has of one task."""

    who: Who
    have: int = 0
    """Rows up to this number are in the spool."""
    lines: Lines | None = None
    said_bye: bool = False
    is_leaving: bool = False
    """Whether it was told to hand over."""


class Collector:
    """Listens for the tasks of one run, from entering to leaving; a context manager.

    Args:
        host: At which executors reach the driver.
        bind: At which it listens.
        stages: Names of the stages, in order.
        spool: Takes the rows.
        time: That it goes by.
    """

    def __init__(
        self, host: str, bind: str, *, stages: Sequence[str], spool: Spool, time: Time
    ) -> None:
        self._listener = socket.create_server((bind, 0))
        self.address = Address(host, self._listener.getsockname()[1], new_secret())
        """For the tasks."""
        self._spool = spool
        self._time = time
        self._lock = threading.Lock()
        self._board = Board(stages, time.monotonic_s())
        self._known: dict[str, _Known] = {}
        self._wish: Answer | None = None
        self.went: Callable[[], None] | None = None
        """Called when a task has told all it has to tell, before Spark hears of its end."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen, name="leasehold-collect", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Listen no longer."""
        with self._lock:
            self._is_closed = True
            known = [each.lines for each in self._known.values() if each.lines is not None]
        for lines in known:
            lines.close()
        with suppress(OSError):
            # Closing alone does not end an accept that is under way.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._thread.is_alive():
            self._thread.join()

    def progress(self, *, now_ms: int, backlog: int | None) -> Progress:
        """Return how the run is doing."""
        now_s = self._time.monotonic_s()
        with self._lock:
            return self._board.progress(now_ms=now_ms, now_s=now_s, backlog=backlog)

    def stop(self, grace_s: float) -> None:
        """Have all tasks stop, those included that come later."""
        self._ask(Answer(stop_s=grace_s))

    def hurry(self) -> None:
        """Have all tasks stop without waiting for messages in work."""
        self._ask(Answer(stop_s=0.0, hurry=True))

    def leave(self, link: str) -> None:
        """Have one task hand over what it has in work, and end."""
        with self._lock:
            known = self._known[link]
            known.is_leaving = True
        self._send(known, Answer(known.have, leave=True))

    def stages(self) -> dict[str, StageFigures]:
        """Return what the stages have done so far."""
        with self._lock:
            return self._board.stages()

    def connected(self) -> list[Who]:
        """Return the tasks that are connected now, but those that were told to leave."""
        with self._lock:
            found = self._known.values()
            return [each.who for each in found if each.lines is not None and not each.is_leaving]

    def known(self) -> list[Who]:
        """Return all tasks that have ever connected."""
        with self._lock:
            return [each.who for each in self._known.values()]

    @property
    def is_deserted(self) -> bool:
        """Whether no task is connected now."""
        with self._lock:
            return all(each.lines is None for each in self._known.values())

    def idle(self) -> list[Who]:
        """Return the tasks among the connected ones that have nothing in hand."""
        here = self.connected()
        with self._lock:
            return [each for each in here if self._board.is_idle(each.link)]

    def over(self, job: int) -> int:
        """Return how many tasks of a job have ended, or are about to since they were told to."""
        with self._lock:
            # Of several attempts at a task the last one counts.
            last = {each.who.task: each for each in self._known.values() if each.who.job == job}
        return sum(each.said_bye or each.is_leaving for each in last.values())

    def take(self, left: TaskResult) -> None:
        """Take in what a task has handed to Spark in the end."""
        with self._lock:
            known = self._known.setdefault(left.who.link, _Known(left.who))
            self._board.came(left.who)
            self._keep(known, left.first, left.rows)
            self._board.told(left.who.link, left.figures)
            self._board.went(left.who.link)
            known.said_bye = True

    def add(self, who: Who, row: Row) -> None:
        """Take in what somebody else knows of a task that can tell nothing any more."""
        with self._lock:
            self._spool.add(who, [row])
            self._board.add(who.link, row.outcome)

    def vanished(self) -> list[Who]:
        """Return the tasks that have not said good-bye; to be asked when all have ended."""
        with self._lock:
            return [each.who for each in self._known.values() if not each.said_bye]

    # --- inside ------------------------------------------------------------------------------

    def _ask(self, wish: Answer) -> None:
        with self._lock:
            self._wish = wish
            known = [each for each in self._known.values() if each.lines is not None]
        for each in known:
            self._send(each, wish)

    def _send(self, known: _Known, answer: Answer) -> None:
        lines = known.lines
        if lines is not None:
            with suppress(OSError):  # its own thread notices that too
                lines.send(answer)

    def _listen(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                _log.exception("the driver cannot take connections of executors")
                return
            connection.settimeout(_SILENT_S)
            threading.Thread(
                target=self._serve, args=(connection,), name="leasehold-task", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        lines = Lines(connection)
        known: _Known | None = None
        try:
            known = self._greeted(lines)
            while known is not None and (line := lines.receive()) is not None:
                if self._heard(known, line):
                    break
        except (OSError, ValueError, msgspec.DecodeError) as error:
            if not self._is_closed:
                _log.debug("the connection to a task has ended: %s", error)
        finally:
            lines.close()
            with self._lock:
                if known is not None and known.lines is lines:
                    known.lines = None
                    self._board.went(known.who.link)

    def _greeted(self, lines: Lines) -> _Known | None:
        """Let a task say who it is; None: it is none of ours."""
        nonce = new_nonce()
        lines.send(Greeting(nonce))
        hello = msgspec.json.decode(lines.receive(_HELLO_BYTES) or b"", type=Hello)
        if not is_proven(hello, self.address.secret, nonce):
            _log.warning("a process has connected that does not know the secret of this run")
            return None
        with self._lock:
            if self._is_closed:
                return None
            known = self._known.setdefault(hello.who.link, _Known(hello.who))
            known.lines = lines
            self._board.came(hello.who)
            wish = self._wish or Answer()
            lines.send(Answer(known.have, wish.stop_s, wish.hurry, known.is_leaving))
        return known

    def _heard(self, known: _Known, line: bytes) -> bool:
        """Take in what a task has said, and confirm it; return whether it was the last."""
        told = msgspec.json.decode(line, type=Told)
        with self._lock:
            self._keep(known, told.first, told.rows)
            if told.figures is not None:
                self._board.told(known.who.link, told.figures)
            known.said_bye = known.said_bye or told.bye
            have = known.have
        if told.rows:
            self._send(known, Answer(have))
        if told.bye and self.went is not None:
            self.went()
        return told.bye

    def _keep(self, known: _Known, first: int, rows: Sequence[object]) -> None:
        """Keep those rows that are not kept yet. They come in order, some perhaps twice."""
        new = rows[max(known.have + 1 - first, 0) :]
        if new:
            self._spool.add(known.who, new)
            known.have = first + len(rows) - 1
