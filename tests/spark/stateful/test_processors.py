"""What the processors of the stateful examples decide, without a query."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pandas as pd
import pytest
from examples.stateful.processors import FirstOfEach, Payments, Sessions, joined

testers = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="PySpark 4.2 has it")


def at(minute: int) -> pd.Timestamp:
    """Return a time of the events' day."""
    return pd.Timestamp(dt.datetime(2026, 2, 3, tzinfo=dt.UTC) + dt.timedelta(minutes=minute))


def ms(minute: int) -> int:
    """Return the same in Unix milliseconds."""
    return int(at(minute).timestamp() * 1000)


def rows(frame: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a frame."""
    return [*frame.itertuples(index=False, name=None)]


def by_event_time(processor: Any) -> Any:
    """Return a tester whose time is the watermark."""
    return testers.TwsTester(
        processor, timeMode="EventTime", eventTimeExtractor=lambda row: row["at"].timestamp() * 1000
    )


def test_the_first_of_each_key_goes_on() -> None:
    """In one micro-batch and in later ones; another key has its own first."""
    tester = testers.TwsTester(FirstOfEach(keep_s=3600), timeMode="ProcessingTime")
    first = pd.DataFrame({"body": ["a1", "a2"]})
    assert rows(tester.testInPandas("a", first)) == [("a", "a1")]
    assert rows(tester.testInPandas("a", pd.DataFrame({"body": ["a3"]}))) == []
    assert rows(tester.testInPandas("b", pd.DataFrame({"body": ["b1"]}))) == [("b", "b1")]


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([], []),
        ([(5, 5, 1), (0, 0, 1)], [(0, 5, 2)]),
        ([(0, 0, 1), (10, 10, 1)], [(0, 0, 1), (10, 10, 1)]),
        ([(0, 0, 1), (12, 12, 1), (6, 6, 1)], [(0, 12, 3)]),
        ([(0, 20, 3), (5, 5, 1)], [(0, 20, 4)]),
    ],
)
def test_parts_of_sessions(
    parts: list[tuple[int, int, int]], whole: list[tuple[int, int, int]]
) -> None:
    """Less than a gap of 10 between them makes them one, whatever their order."""
    assert joined(parts, 10) == whole


def test_a_session_is_told_when_it_is_over() -> None:
    """An event between two makes one of them; nothing is told twice."""
    tester = by_event_time(Sessions(gap_s=600))
    for minutes in ((0, 15), (8,)):
        frame = pd.DataFrame({"at": [at(minute) for minute in minutes]})
        assert rows(tester.testInPandas("ada", frame)) == []
    assert rows(tester.setWatermark(ms(24))) == []
    assert rows(tester.setWatermark(ms(25))) == [("ada", ms(0), ms(15), 3)]
    assert rows(tester.setWatermark(ms(90))) == []


def test_an_event_after_the_end_begins_another_session() -> None:
    """Also where both come to light in the same micro-batch."""
    tester = by_event_time(Sessions(gap_s=600))
    tester.testInPandas("ada", pd.DataFrame({"at": [at(0)]}))
    # As Spark does: the watermark has moved, and rows come before timers.
    tester.handle.setWatermark(ms(30))
    tester._currentWatermarkMs = ms(30)
    told = tester.testInPandas("ada", pd.DataFrame({"at": [at(40)]}))
    assert rows(told) == [("ada", ms(0), ms(0), 1)]
    assert rows(tester.setWatermark(ms(50))) == [("ada", ms(40), ms(40), 1)]


def side(name: str, amount: float, minute: int) -> pd.DataFrame:
    """Return a row of one of the two streams."""
    return pd.DataFrame({"side": [name], "amount": [amount], "at": [at(minute)]})


@pytest.mark.parametrize("names", [("order", "payment"), ("payment", "order")])
def test_both_sides_meet(names: tuple[str, str]) -> None:
    """Whichever comes first; afterwards nothing is waited for."""
    tester = by_event_time(Payments(wait_s=3600))
    amounts = {"order": 9.0, "payment": 8.0}
    assert rows(tester.testInPandas("7", side(names[0], amounts[names[0]], 0))) == []
    told = rows(tester.testInPandas("7", side(names[1], amounts[names[1]], 30)))
    assert told == [("7", "paid", 9.0, 8.0)]
    assert rows(tester.setWatermark(ms(600))) == []


@pytest.mark.parametrize(("name", "status"), [("order", "unpaid"), ("payment", "unexpected")])
def test_one_side_alone_is_told_in_the_end(name: str, status: str) -> None:
    """When its time is over, and once."""
    tester = by_event_time(Payments(wait_s=3600))
    tester.testInPandas("7", side(name, 9.0, 0))
    assert rows(tester.setWatermark(ms(59))) == []
    [told] = rows(tester.setWatermark(ms(60)))
    assert told[:2] == ("7", status)
    assert rows(tester.setWatermark(ms(600))) == []
