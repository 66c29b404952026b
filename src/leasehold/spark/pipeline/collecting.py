"""The driver's side: listens to the tasks, keeps what they tell, and passes wishes on to them."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

import msgspec

from leasehold.spark.pipeline.figures import Board, Progress
from leasehold.spark.pipeline.report import Spool
from leasehold.spark.pipeline.rows import Row, Who
from leasehold.spark.pipeline.wire import (
    Address,
    Answer,
    Greeting,
    Hello,
    Left,
    Lines,
    Told,
    is_proven,
    new_nonce,
    new_secret,
)
from leasehold.worker.timing import Time

_log: Final = logging.getLogger("leasehold.spark.pipeline")
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

    def take(self, left: Left) -> None:
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
        """Let a task say who it is; None: it is nobody of ours."""
        nonce = new_nonce()
        lines.send(Greeting(nonce))
        hello = msgspec.json.decode(lines.receive(_HELLO_BYTES) or b"", type=Hello)
        if not is_proven(hello, self.address.secret, nonce):
            _log.warning("somebody has connected who does not know the secret of this run")
            return None
        with self._lock:
            if self._is_closed:
                return None
            known = self._known.setdefault(hello.who.link, _Known(hello.who))
            known.lines = lines
            self._board.came(hello.who)
            wish = self._wish or Answer()
            lines.send(Answer(known.have, wish.stop_s, wish.hurry))
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
        return told.bye and not told.rows

    def _keep(self, known: _Known, first: int, rows: Sequence[object]) -> None:
        """Keep those rows that are not kept yet. They come in order, some perhaps twice."""
        new = rows[max(known.have + 1 - first, 0) :]
        if new:
            self._spool.add(known.who, new)
            known.have = first + len(rows) - 1
