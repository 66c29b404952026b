"""A task's side of the connection to the driver. To lose it costs no work."""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

import msgspec

from leasehold.spark.pipeline.rows import Figures, Row, Who
from leasehold.spark.pipeline.wire import (
    ROWS_AT_ONCE,
    Address,
    Answer,
    Greeting,
    Hello,
    Lines,
    Told,
    proof,
)
from leasehold.worker.timing import Time

_log: Final = logging.getLogger("leasehold.spark.pipeline")
_INTERVAL_S: Final = 0.25
_CALL_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 5.0
MOST_ROWS: Final = 100_000
"""Rows that are kept while nobody takes them; then the oldest are dropped."""


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
        """How many rows nobody has taken."""
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
        """Tell what is left, say good-bye, and return the rows that nobody has confirmed.

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
        _log.log(level, "the driver is not told of the progress; the work goes on: %s", error)
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
        if answer.stop_s is not None or answer.hurry:
            self._heard(answer)
