"""The time that all servers of one database share, and whether this server's is close to it.

The database's clock is the only one that all servers see, and anybody may set it. Each server has a
clock that only counts. So the shared time is the database's clock and a correction, which is kept
in the database: whoever finds that the clock was set corrects it, and time goes on as before, for
servers that are started later, too. Each batch reads both inside its transaction; a server whose
own time is not close to them does nothing until it is known who is wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import structlog

from leasehold.clock import (
    AGREED_WITHIN_S,
    CONFIRMED_AFTER_S,
    FRESH_S,
    RemoteClock,
    Verdict,
    judge,
)
from leasehold.domain.errors import Unavailable
from leasehold.stores.postgres.connection import Address, connect, migrate
from leasehold.stores.sql.statements import load_queries

_SQL: Final = load_queries("leasehold.stores.postgres", "shared_time.sql")
_US: Final = 1_000_000
_ACT_WITHIN_US: Final = _US
"""What was decided by a look at the clock is done within so long, by the same clock, or not."""
_READ_WITHIN_NS: Final = 250_000_000
"""A reading that took longer is not good enough to correct anything by."""
LATE_S: Final = 5.0
"""A batch that finds itself later than this is not carried out: its server was stopped."""
WORKED_OFF: Final = 0.01
"""How much of the time that passes goes into taking a correction back."""
_JOINING_S: Final = 5.0
"""How long a server that is started waits for the others to say that the shared time is right."""
_JOINING_PAUSE_S: Final = 0.1
_TRIES: Final = 3

_log = structlog.get_logger(__name__)


class Run(Protocol):
    """Runs one statement, which is a transaction of its own, and returns its rows."""

    def __call__(self, statement: str, *bounds: object) -> list[tuple[Any, ...]]:
        """Do so."""
        ...


class NotTheTime(Exception):
    """The batch has a time by which it must not be carried out."""


class SharedTime:
    """What one server knows of the time that all share. All threads may use it.

    Args:
        run: On a connection of any kind; for the first look.
        sleep: Waits for some seconds.
        boot_ns: See :class:`~leasehold.clock.RemoteClock`; None for the system's.
    """

    def __init__(
        self,
        run: Run,
        sleep: Callable[[float], None] = time.sleep,
        boot_ns: Callable[[], int] | None = None,
    ) -> None:
        self.slot = 0
        """Of this server, once it has one."""
        self._lock = threading.Lock()
        self._doubted_since_ns: int | None = None
        self._generation = self._join(run, sleep)

        def ask() -> int:
            return now_us(run)

        self.clock = RemoteClock(ask) if boot_ns is None else RemoteClock(ask, boot_ns)
        """This server's own."""
        self._correction_us = 0
        self.look(run)

    def _join(self, run: Run, sleep: Callable[[float], None]) -> int:
        """Wait until the shared time is known to be right; return the number of its correction."""
        for _ in range(round(_JOINING_S / _JOINING_PAUSE_S)):
            _, correction_us, generation, is_fresh = run(_SQL["look"], 0, round(FRESH_S * _US))[0]
            if is_fresh:
                break
            if not run(_SQL["count_alive"])[0][0]:
                if correction_us:
                    run(_SQL["begin_anew"], generation)
                break
            sleep(_JOINING_PAUSE_S)
        return int(generation)

    # --- in every batch ----------------------------------------------------------------------

    def check(self, now_ms: int, reading: Sequence[int], before_ns: int) -> None:
        """Let a batch go on only if this server's time is the shared one.

        Args:
            now_ms: The time of the batch.
            reading: The database's clock as the batch has read it, the correction, its number.
            before_ns: The boot clock before that was asked for.

        Raises:
            NotTheTime: It is not.
            Unavailable: The batch comes too late.
        """
        raw_us, correction_us, generation = reading
        shared_us = raw_us + correction_us
        gap_s = self.clock.gap_s(shared_us, before_ns)
        if not -AGREED_WITHIN_S <= gap_s <= AGREED_WITHIN_S:
            raise NotTheTime
        if shared_us - now_ms * 1000 > LATE_S * _US:
            raise Unavailable
        self._generation = generation

    # --- now and then, and in doubt ----------------------------------------------------------

    def look(self, run: Run) -> Verdict:
        """Look who is right if the times differ, and do what follows from it.

        Returns:
            AGREES if this server's time is the shared one now, and was before.
        """
        with self._lock:
            for _ in range(_TRIES):
                verdict = self._look(run)
                if verdict is not Verdict.CORRECT:
                    break
            if verdict is Verdict.DOUBT:
                self._doubted_since_ns = self._doubted_since_ns or self.clock.boot_ns()
            elif verdict is not Verdict.CORRECT:
                self._doubted_since_ns = None
            return verdict

    def _look(self, run: Run) -> Verdict:
        before_ns = self.clock.boot_ns()
        found = run(_SQL["look"], self.slot, round(FRESH_S * _US))
        raw_us, correction_us, generation, is_fresh = found[0]
        after_ns = self.clock.boot_ns()
        gap_s = self.clock.gap_s(raw_us + correction_us, before_ns)
        self._correction_us = correction_us
        self.clock.drift_s = -correction_us / _US
        verdict = judge(
            gap_s=gap_s,
            is_known=generation == self._generation,
            is_fresh=is_fresh,
            doubted_for_s=self._doubted_for_s(after_ns),
        )
        if verdict is Verdict.AGREES:
            self._generation = generation
            if self.slot:
                run(_SQL["agree"], self.slot, generation, raw_us, _ACT_WITHIN_US)
        elif verdict is Verdict.CORRECT and after_ns - before_ns <= _READ_WITHIN_NS:
            # Our time is that of the middle of the way there and back.
            ours_us = (
                self.clock.now_us() - (self.clock.boot_ns() - (before_ns + after_ns) // 2) // 1000
            )
            bounds = ours_us - raw_us, generation, raw_us, _ACT_WITHIN_US, self.slot
            if run(_SQL["correct"], *bounds):
                self._generation = generation + 1
                _log.warning(
                    "clock.corrected",
                    database_set_by_s=round(gap_s, 3),
                    correction_s=round(bounds[0] / _US, 3),
                    meaning="the database's clock was set; servers continue with their own time",
                )
        elif verdict is Verdict.FOLLOW:
            self.clock.set_to(lambda: now_us(run))
            self._generation = generation
            _log.warning("clock.followed", behind_s=round(gap_s, 3))
        return verdict

    def _doubted_for_s(self, now_ns: int) -> float:
        since_ns = self._doubted_since_ns
        return 0.0 if since_ns is None else (now_ns - since_ns) / 1e9

    def measure(self, run: Run) -> None:
        """Follow small differences."""
        with self._lock:
            self.clock.measure(lambda: now_us(run), AGREED_WITHIN_S)

    def work_off(self, run: Run, elapsed_s: float) -> None:
        """Take back a correction that has stood for long, by what *elapsed_s* allow for.

        Whoever leads does it.
        """
        if self._correction_us:
            step_us = round(elapsed_s * WORKED_OFF * _US)
            run(_SQL["work_off"], step_us, round(CONFIRMED_AFTER_S * _US))


def now_us(run: Run) -> int:
    """Return the shared time, Unix microseconds."""
    return int(run(_SQL["now"])[0][0])


def open_time(address: Address) -> SharedTime:
    """Return the time of a store, which is made if there is none yet.

    Raises:
        psycopg.Error: It cannot be reached.
        StoreFailed: It is not ours.
    """
    connection = connect(address)
    try:
        migrate(connection, address.schema)

        def run(statement: str, *bounds: object) -> list[tuple[Any, ...]]:
            cursor = connection.execute(statement, bounds)
            return cursor.fetchall() if cursor.description else []

        return SharedTime(run)
    finally:
        connection.close()
