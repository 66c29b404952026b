"""What is kept for each key, and what becomes of it: three processors for transformWithState.

Nothing here knows of queues. Spark calls them in its Python workers, and keeps their state in
RocksDB. Decisions depend on the rows and the watermark alone, not on the clock, so that a
micro-batch that is repeated after a crash has the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)


class FirstOfEach(StatefulProcessor):
    """Passes the first row of each key on, and drops those that follow within a time.

    Args:
        keep_s: How long a key is remembered after its first row, in seconds by Spark's clock.
    """

    OUTPUT = "id STRING, body STRING"

    def __init__(self, keep_s: float) -> None:
        self._keep_ms = int(keep_s * 1000)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of a partition; Spark removes a key from it when its time is over."""
        self._seen = handle.getValueState("seen", "at_ms LONG", ttlDurationMs=self._keep_ms)

    def handleInputRows(  # noqa: N802 - Spark's names and parameters, here and below
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Return the first row, if there was none before."""
        frames = [*rows]  # all must be taken, whatever is done with them
        if self._seen.exists():
            return
        self._seen.update((timerValues.getCurrentProcessingTimeInMs(),))
        yield pd.DataFrame({"id": [key[0]], "body": [frames[0]["body"].iloc[0]]})


class Sessions(StatefulProcessor):
    """Gathers the events of each key into sessions, which a pause of some length ends.

    Events may come in any order, as long as they are within the watermark: an event between two
    sessions makes one of them.

    Args:
        gap_s: The pause, in seconds of the events' own time.
    """

    OUTPUT = "user STRING, first_ms LONG, last_ms LONG, events INT"

    def __init__(self, gap_s: float) -> None:
        self._gap_ms = int(gap_s * 1000)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of a partition: the sessions that are not over yet."""
        self._handle = handle
        self._open = handle.getListState("open", "first_ms LONG, last_ms LONG, events INT")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Add events to the sessions of a user; return those that were over before."""
        # Their timers are due in this very micro-batch, and would be set a second time below.
        yield from self._close(key, timerValues.getCurrentWatermarkInMs())
        events = [(at_ms, at_ms, 1) for frame in rows for at_ms in milliseconds(frame["at"])]
        self._keep(joined([*self._sessions(), *events], self._gap_ms))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Return the sessions that are over, as the watermark has passed their end and the gap."""
        del timerValues
        yield from self._close(key, expiredTimerInfo.getExpiryTimeInMs())

    def _close(self, key: Any, now_ms: int) -> Iterator[pd.DataFrame]:
        sessions = self._sessions()
        over = [each for each in sessions if each[1] + self._gap_ms <= now_ms]
        if not over:
            return
        self._keep([each for each in sessions if each not in over])
        yield pd.DataFrame(
            [(key[0], *each) for each in over], columns=["user", "first_ms", "last_ms", "events"]
        )

    def _sessions(self) -> list[tuple[int, int, int]]:
        if not self._open.exists():
            return []
        return [(int(first), int(last), int(events)) for first, last, events in self._open.get()]

    def _keep(self, sessions: list[tuple[int, int, int]]) -> None:
        for timer in [*self._handle.listTimers()]:
            self._handle.deleteTimer(timer)
        if not sessions:
            self._open.clear()
            return
        self._open.put(sessions)
        for _, last_ms, _ in sessions:
            self._handle.registerTimer(last_ms + self._gap_ms)


def joined(parts: Iterable[tuple[int, int, int]], gap_ms: int) -> list[tuple[int, int, int]]:
    """Return parts of sessions as sessions: those with less than a gap between them are one."""
    done: list[tuple[int, int, int]] = []
    for first, last, events in sorted(parts):
        if done and first - done[-1][1] < gap_ms:
            begin, end, count = done[-1]
            done[-1] = (begin, max(end, last), count + events)
        else:
            done.append((first, last, events))
    return done


class Payments(StatefulProcessor):
    """Brings orders and their payments together, from two streams, in whatever order they come.

    Spark's own stream-stream join does the first half. This also tells of orders that nobody pays
    and payments that nobody expects, each once, when the time for the other side is over.

    Args:
        wait_s: How long one side waits for the other, in seconds of their own time.
    """

    OUTPUT = "order_id STRING, status STRING, ordered DOUBLE, paid DOUBLE"

    def __init__(self, wait_s: float) -> None:
        self._wait_ms = int(wait_s * 1000)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of a partition: one side of each order, which waits for the other."""
        self._handle = handle
        self._sides = handle.getMapState("sides", "side STRING", "amount DOUBLE")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Return the pair if it is complete, else keep what is there and wait."""
        del timerValues
        latest_ms = 0
        for frame in rows:
            for side, amount, at_ms in zip(
                frame["side"], frame["amount"], milliseconds(frame["at"]), strict=True
            ):
                self._sides.updateValue((side,), (float(amount),))
                latest_ms = max(latest_ms, at_ms)
        if self._sides.containsKey(("order",)) and self._sides.containsKey(("payment",)):
            yield self._told(key, "paid")
        else:
            self._stop_waiting()
            self._handle.registerTimer(latest_ms + self._wait_ms)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Return the side that has waited long enough."""
        del timerValues, expiredTimerInfo
        yield self._told(key, "unpaid" if self._sides.containsKey(("order",)) else "unexpected")

    def _told(self, key: Any, status: str) -> pd.DataFrame:
        """Return the row of an order, and forget it."""
        sides = {side[0]: amount[0] for side, amount in self._sides.iterator()}
        self._sides.clear()
        self._stop_waiting()
        return pd.DataFrame(
            {
                "order_id": [key[0]],
                "status": [status],
                "ordered": pd.Series([sides.get("order")], dtype="float64"),
                "paid": pd.Series([sides.get("payment")], dtype="float64"),
            }
        )

    def _stop_waiting(self) -> None:
        for timer in [*self._handle.listTimers()]:
            self._handle.deleteTimer(timer)


def milliseconds(times: pd.Series[pd.Timestamp]) -> list[int]:
    """Return times of a frame in Unix milliseconds."""
    return [int(time.timestamp() * 1000) for time in times]
