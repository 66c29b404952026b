"""The connection over which a store writes, made anew when it is lost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, NamedTuple

import psycopg
import structlog
from psycopg import errors

from leasehold.clock import Clock, SystemClock
from leasehold.domain.errors import NotReplicated, Unavailable
from leasehold.stores.postgres.connection import Address, connect
from leasehold.stores.postgres.cursor import Direct
from leasehold.stores.sql.statements import load_queries

PATIENCE_S: Final = 3.0
"""How long the batch that finds the connection lost tries to connect."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_REPORT_EVERY_S: Final = 10.0
_WAITS: Final = 3
_COMMIT: Final = b"COMMIT"

_log = structlog.get_logger(__name__)


class Primary:
    """A connection to the server that takes writes, whichever of those in the URL that is.

    Args:
        address: Where to look for it.
        on_connect: Called with each new connection.
        clock: For deadlines.
        sleep: Waits for some seconds.

    Raises:
        psycopg.Error: It cannot be reached, or refuses.
    """

    def __init__(
        self,
        address: Address,
        on_connect: Callable[[Direct], None],
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address = address
        self._on_connect = on_connect
        self._clock = clock or SystemClock()
        self.sleep = sleep
        self._pause_s = 0.0
        self._not_before_s = 0.0
        self._warned = False
        self._is_committed = False
        self._reported: dict[str, float] = {}
        """When an error was last named in the log, by its kind."""
        self.writer: Writer | None = None
        """Who runs our transactions."""
        self.has_ended = True
        """Whether nothing is left of who ran them before."""
        self._connect()

    def _connect(self) -> None:
        connection = connect(self._address)
        try:
            connection.add_notice_handler(self._notice)
            # What it has locked stays locked while it believes that we are still there.
            self.has_ended = self.writer is None or end(connection, self.writer, self.sleep)
            self.writer = writer_of(connection)
        except BaseException:
            connection.close()
            raise
        self.connection = connection
        self.direct = Direct(connection, self._clock)
        self._pause_s = 0.0
        self._on_connect(self.direct)

    def _notice(self, said: errors.Diagnostic) -> None:
        self._warned |= said.severity_nonlocalized == "WARNING"

    @property
    def is_lost(self) -> bool:
        """Whether there is no connection."""
        return self.connection.closed

    def drop(self) -> None:
        """Give the connection up."""
        self.connection.close()

    def deadline_s(self) -> float:
        """Return until when a batch that begins now may wait, on the monotonic clock."""
        return self._clock.monotonic_s() + PATIENCE_S

    def ensure(self) -> None:
        """Connect if the connection was lost before; seldom while that does not work.

        Raises:
            Unavailable: That does not work now.
        """
        if self.is_lost:
            if self._clock.monotonic_s() < self._not_before_s:
                raise Unavailable
            self._try_to_connect()

    def renew(self, until_s: float) -> None:
        """Connect anew, trying again and again until a moment on the monotonic clock.

        Raises:
            Unavailable: That did not work in time.
        """
        self.drop()
        while True:
            try:
                self._try_to_connect()
            except Unavailable:
                if self._not_before_s >= until_s:
                    raise
                self.sleep(self._pause_s)
            else:
                return

    def _try_to_connect(self) -> None:
        try:
            self._connect()
        except psycopg.Error as error:
            self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            self._not_before_s = self._clock.monotonic_s() + self._pause_s
            self.report(error)
            raise Unavailable from error

    def report(self, error: psycopg.Error) -> None:
        """Name an error in the log for which clients get 503; each kind once in a while."""
        kind = error.sqlstate or type(error).__name__
        now_s = self._clock.monotonic_s()
        if now_s >= self._reported.get(kind, -math.inf) + _REPORT_EVERY_S:
            self._reported[kind] = now_s
            _log.warning(
                "database.refused",
                reason=" ".join(str(error).split()),
                sqlstate=error.sqlstate,
                meaning="requests get 503",
            )

    def commit(self) -> None:
        """Commit the open transaction, or go on with that where time was too short before.

        Raises:
            NotReplicated: It is committed, but not where it has to be by the settings.
            psycopg.Error: It is not, or that is unknown.
            NotInTime: That is unknown yet.
        """
        if not self._is_committed:
            if not self.direct.owes(_COMMIT):
                self._warned = False
            if self.direct.run(_COMMIT).command_status != _COMMIT:
                raise errors.InFailedSqlTransaction
            if not self._warned:
                return
        # An operator has ended the wait for the standbys: the answer is the same, with a warning.
        self._is_committed = True
        self.direct.take_time()
        self._is_committed = False
        for _ in range(_WAITS):
            self._warned = False
            wait_for_standbys(self.connection)
            if not self._warned:
                return
        _log.warning(
            "database.not_replicated",
            meaning="committed, but the wait for a synchronous standby was cancelled; clients get"
            " 503, as a failover may lose it",
        )
        raise NotReplicated


# --- outcomes ----------------------------------------------------------------------------------
#
# What has become of a transaction whose COMMIT had no answer.
#
# The number of a transaction is not proof enough: a server that crashes, or a standby that takes
# over, may give a number away again that it has never seen. The events that the batch has written
# are proof, as no other server writes the same; so they are looked for first.


_SQL: Final = load_queries("leasehold.stores.postgres", "outcomes.sql")
_ENDING_S: Final = (0.0, 0.01, 0.04, 0.1, 0.2, 0.4, 0.8)
"""Waits for a backend that was told to end."""


class Outcome(Enum):
    """Of a transaction."""

    COMMITTED = auto()
    UNDONE = auto()
    UNKNOWN = auto()


class Writer(NamedTuple):
    """Who ran a transaction: a backend, in one life of one server."""

    pid: int
    started: str
    life: str | None


class Trace(NamedTuple):
    """What a transaction has left behind, if it was committed."""

    seq: int | None = None
    """Number of the events it has written, None if it wrote none."""
    content: bytes = b""
    """Those events."""
    number: str | None = None
    """Of the transaction; None if it has none, as it changed nothing, or was not asked for."""


def writer_of(connection: psycopg.Connection[Any]) -> Writer:
    """Return who runs the transactions of a connection."""
    row = connection.execute(_SQL["writer"]).fetchone()
    assert row is not None
    return Writer(*row)


def number_of(direct: Direct) -> str | None:
    """Return the number of the open transaction, None while it has changed nothing."""
    number: str | None
    ((number,),) = direct.execute(_SQL["transaction"], ())
    return number


def outcome_of(connection: psycopg.Connection[Any], writer: Writer, trace: Trace) -> Outcome:
    """Find out what has become of a transaction.

    Args:
        connection: A new one, to whoever is the primary now.
        writer: Who ran the transaction; must have ended.
        trace: What it has left.

    Raises:
        psycopg.Error: This connection is lost as well, or does not allow to ask.
    """
    if trace.seq is None and trace.number is None:
        return Outcome.COMMITTED  # it has only read
    if trace.seq is not None:
        is_there = _ask(connection, "has_events", trace.seq, trace.content)
        outcome = Outcome.COMMITTED if is_there else Outcome.UNDONE
    elif writer_of(connection).life == writer.life:
        status = _ask(connection, "status", trace.number)
        outcome = _BY_STATUS.get(status, Outcome.UNKNOWN)
    else:
        outcome = Outcome.UNKNOWN
    if outcome is Outcome.COMMITTED:
        wait_for_standbys(connection)
    return outcome


def wait_for_standbys(connection: psycopg.Connection[Any]) -> None:
    """Return when all that was committed before is where a commit has to be, by the settings."""
    connection.execute(_SQL["wait_for_standbys"])


def end(
    connection: psycopg.Connection[Any], writer: Writer, sleep: Callable[[float], None]
) -> bool:
    """End a backend if it is still there, so that what it has begun is committed or undone.

    Returns:
        Whether it is gone.
    """
    for pause_s in _ENDING_S:
        sleep(pause_s)
        if not connection.execute(_SQL["end_writer"], writer[:2]).fetchall():
            return True
    return False


def _ask(connection: psycopg.Connection[Any], query: str, *bounds: object) -> Any:
    ((answer,),) = connection.execute(_SQL[query], bounds).fetchall()
    return answer


_BY_STATUS: Final = {"committed": Outcome.COMMITTED, "aborted": Outcome.UNDONE}
