"""The listener that settles as soon as a micro-batch is in Spark's log."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from leasehold.client import QueueHandle
from leasehold.spark import BadOption, SettleListener
from tests.unit.spark.stream.driving import ByHand, Driving, claims_of, fill


@pytest.fixture
def listener(driving: Driving) -> Iterator[SettleListener]:
    """A listener for the stream "totals"."""
    made = SettleListener(driving.options())
    yield made
    made.close()


def progress(query: ByHand, end: Any, **changes: Any) -> Any:
    """Return what Spark tells after a micro-batch."""
    report = {**(query.reader.reportLatestOffset() or {}), **changes}
    source = SimpleNamespace(endOffset=json.dumps(end), latestOffset=json.dumps(report))
    return SimpleNamespace(progress=SimpleNamespace(sources=[source]))


def test_it_settles_what_is_in_the_log(
    driving: Driving, queue: QueueHandle, listener: SettleListener
) -> None:
    """Nothing is leased between a micro-batch and the next trigger, nor after a stop."""
    fill(queue, 3)
    query = driving.query()
    end = query.trigger(query.begin())
    query.bodies({"claim": 0}, end)
    listener.onQueryProgress(progress(query, end))
    assert queue.counts().total == 0
    assert query.trigger(end) is end


def test_it_leaves_other_streams_alone(
    driving: Driving, queue: QueueHandle, listener: SettleListener
) -> None:
    """It hears of all queries of the session, also of such with other sources."""
    fill(queue, 3)
    query = driving.query()
    end = query.trigger(query.begin())
    listener.onQueryProgress(progress(query, end, stream="http://elsewhere/a/orders/totals"))
    listener.settle_after('{"claim": 1}', None)
    listener.settle_after('{"claim": 1}', "7")
    listener.settle_after("null", '{"stream": "x"}')
    listener.settle_after(None, None)
    assert queue.counts().leased == 3


def test_it_settles_for_its_own_run_only(
    driving: Driving,
    queue: QueueHandle,
    listener: SettleListener,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A late word of a query that was overtaken changes nothing."""
    fill(queue, 3)
    first = driving.query()
    end = first.trigger(first.begin())
    late = progress(first, end)
    second = driving.query()
    second.trigger(second.begin())
    listener.onQueryProgress(late)
    assert "not settled at once" in caplog.text
    assert claims_of(queue.stream("totals")) == [(1, "open")]


def test_it_can_travel(driving: Driving, queue: QueueHandle, listener: SettleListener) -> None:
    """Spark Connect sends listeners to its server, in whatever state they are."""
    fill(queue, 1)
    query = driving.query()
    end = query.trigger(query.begin())
    listener.onQueryProgress(progress(query, end))
    copy = pickle.loads(pickle.dumps(listener))
    assert query.trigger(end) is end
    copy.onQueryProgress(progress(query, end))
    copy.close()


def test_it_needs_to_know_the_stream(driving: Driving) -> None:
    """As the read does."""
    with pytest.raises(BadOption, match="streamId"):
        SettleListener({"queueName": "orders"})
