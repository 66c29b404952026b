"""Splits, forecasts, the league of workers, and what is said of all that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leasehold.advisor import Bounds
from leasehold.advisor.findings import QueueFindings, Weight, analyze, split, standings
from leasehold.advisor.forecast import capacity_of, forecast
from leasehold.advisor.recommendation import Asked, Today
from leasehold.advisor.summaries import (
    QueueSummary,
    UnreadableSummary,
    Work,
    Worker,
    from_json,
    load,
    save,
    to_json,
)
from tests.unit.advisor.support import (
    HOUR_MS,
    UNTIL_MS,
    WEEK_H,
    full_log,
    full_queue,
    log_normal,
    steady_hours,
    work,
)


def two_types(quick: int = 20_000, slow: int = 400, crashes: float = 70) -> QueueSummary:
    """Return a queue of two kinds of work, whose workers die often."""
    return QueueSummary(
        queue="orders",
        works=(
            work(log_normal(1, 0.3, quick), "quick", crashes=crashes),
            work(log_normal(120, 0.3, slow, seed=2), "slow", crashes=0),
        ),
    )


def test_types_that_differ_are_parted() -> None:
    """The quick ones get a short timeout of their own, and that saves what is said."""
    found = split(two_types(), Asked())
    assert found is not None
    assert found.is_worth_it
    assert [each.types for each in found.parts] == [("quick",), ("slow",)]
    assert found.parts[0].timeout_s < 10 < found.parts[1].timeout_s
    apart = sum(each.messages * each.cost for each in found.parts) / found.now.messages
    assert found.saved_s == pytest.approx(found.now.cost - apart)
    assert 0.1 < found.saved_share < 1


def test_types_that_are_alike_stay_together() -> None:
    """Two types of the same work in one queue lose nothing by it."""
    alike = QueueSummary(
        queue="orders",
        works=tuple(work(log_normal(5, 0.5, 800, seed=each), f"t{each}") for each in (1, 2)),
    )
    found = split(alike, Asked())
    assert found is not None
    assert not found.is_worth_it
    assert len(found.parts) == 1
    assert split(QueueSummary(queue="orders", works=alike.works[:1]), Asked()) is None


def test_small_types_are_not_parted() -> None:
    """A type with a handful of messages goes with another one."""
    queue = two_types()
    rare = work(log_normal(9, 0.1, 5), "rare", crashes=0)
    found = split(replace(queue, works=(*queue.works, rare)), Asked())
    assert found is not None
    assert sorted(len(each.types) for each in found.parts) == [1, 2]


def test_the_best_cut_is_found() -> None:
    """No other way to part four types into as many queues costs less."""
    queue = QueueSummary(
        queue="orders",
        works=tuple(
            work(log_normal(median, 0.3, many, seed=place), str(median), crashes=20)
            for place, (median, many) in enumerate(((1, 9_000), (1.2, 9_000), (60, 150), (70, 150)))
        ),
    )
    found = split(queue, Asked())
    assert found is not None
    assert [each.types for each in found.parts] == [("1", "1.2"), ("60", "70")]


def test_a_growing_backlog_expires() -> None:
    """100 come and 60 are done per hour: it grows by 40, and the front gets older."""
    hours = steady_hours(100, 60, backlog=0, many=48)
    grown = tuple(
        replace(each, put=100 + (20, -20)[place // 24], backlog_end=40 * (place + 1))
        for place, each in enumerate(hours)
    )
    queue = QueueSummary(
        queue="orders",
        works=(work([each._replace(seconds=36.0) for each in log_normal(1, 0.1, 500)]),),
        hours=grown,
        open_messages=grown[-1].backlog_end,
        time_to_live_s=30 * 3_600.0,
    )
    found = forecast(queue, UNTIL_MS)
    assert found.is_enough
    assert found.capacity_per_h == 60
    assert found.points[-1].median == pytest.approx(1_920 + 48 * 40, rel=0.05)
    assert found.points[-1].low < found.points[-1].median < found.points[-1].high
    assert found.expiry_chance == 1
    # The front has waited for a day, as 80 came in each hour of it; 60 are done, so it ages by 15
    # minutes in each hour.
    assert found.expires_from_ms is not None
    assert (found.expires_from_ms - UNTIL_MS) / HOUR_MS == pytest.approx(24, abs=2)
    assert found.keep_up_workers == 1
    assert [each.workers for each in found.drains] == [20, 4, 2]


def test_silence_at_the_end_of_the_log_counts() -> None:
    """30 busy hours, then nobody for six days: nothing comes, nothing is done, all gets old."""
    start_ms = UNTIL_MS - (30 + 144) * HOUR_MS
    hours = tuple(
        replace(each, start_ms=start_ms + place * HOUR_MS, backlog_end=40 * (place + 1))
        for place, each in enumerate(steady_hours(100, 60, many=30))
    )
    queue = QueueSummary(
        queue="orders",
        hours=hours,
        open_messages=1_200,
        next_expiry_ms=UNTIL_MS + 12 * HOUR_MS,
        time_to_live_s=7 * 86_400.0,
    )
    until_ms = UNTIL_MS + HOUR_MS // 2
    found = forecast(queue, until_ms)
    assert (found.put_per_h, found.completed_per_h, found.capacity_per_h) == (0, 0, 0)
    assert [found.points[place].at_ms - until_ms for place in (0, -1)] == [HOUR_MS, 48 * HOUR_MS]
    # The oldest were put 12 hours before the silence began.
    assert found.expiry_chance == 1
    assert found.expires_from_ms is not None
    assert (found.expires_from_ms - UNTIL_MS) / HOUR_MS == pytest.approx(12, abs=2)
    assert "the first expires at 2026-01-01T12:00:00Z unless" in found.because
    said = told(analyze(replace(full_log(), until_ms=until_ms, queues=(queue,))).queues[0])
    assert said["backlog"].startswith("Messages will start to expire")


def test_what_came_before_the_log_is_as_old_as_it_is() -> None:
    """A backlog that the hours do not explain was put when its oldest message was."""
    queue = QueueSummary(
        queue="orders",
        hours=steady_hours(0, 0, backlog=90, many=24),
        open_messages=90,
        time_to_live_s=100 * 3_600.0,
    )
    assert forecast(queue, UNTIL_MS).expiry_chance == 0
    older = replace(queue, oldest_open_ms=UNTIL_MS - 90 * HOUR_MS)
    assert forecast(older, UNTIL_MS).expiry_chance == 1


def test_a_backlog_that_nobody_works_on_is_told() -> None:
    """No worker at all is the worst case of workers that do not keep up."""
    hours = tuple(
        replace(each, put=10 + place % 2, backlog_end=10 * place)
        for place, each in enumerate(steady_hours(10, 0, many=48))
    )
    queue = QueueSummary(queue="orders", hours=hours, open_messages=480)
    said = told(analyze(replace(full_log(), queues=(queue,))).queues[0])
    assert "arrive per hour, and 0 can be completed" in said["backlog"]


def test_a_quiet_queue_stays_empty() -> None:
    """Workers that have nothing left to do keep up, and nothing expires."""
    queue = QueueSummary(queue="orders", hours=steady_hours(50, 50, many=72), time_to_live_s=3_600)
    found = forecast(queue, UNTIL_MS)
    assert found.points[-1].high == 0
    assert found.expiry_chance == 0
    assert not forecast(replace(queue, hours=queue.hours[-5:]), UNTIL_MS).is_enough
    assert not forecast(replace(queue, hours=()), UNTIL_MS).is_enough


def test_capacity_comes_from_hours_with_enough_to_do() -> None:
    """An hour that began or ended with nothing waiting says only what came."""
    idle, busy = steady_hours(10, 10, 0, 3), steady_hours(90, 60, 200, 3)
    assert capacity_of([*idle, *busy]) == [60, 60]
    assert capacity_of(idle) == [10]


def test_work_in_hand_is_no_backlog() -> None:
    """Six messages that take half an hour each are always there, and none of them waits."""
    hours = steady_hours(12, 12, 6, 71) + steady_hours(20, 20, 6, 1)
    assert capacity_of(hours, mean_work_s=1_800) == [20]
    night = [*steady_hours(100, 100, 0, 20), *steady_hours(3, 2, 1, 4)]
    assert capacity_of(night, mean_work_s=1) == [100]


def test_a_queue_that_keeps_up_is_not_said_to_grow() -> None:
    """Slow work that is in hand at each full hour once looked like workers that cannot keep up."""
    slow = work(log_normal(1_800, 0.1, 400))
    random = np.random.default_rng(3)
    hours = tuple(
        replace(each, put=many, completed=many)
        for each, many in zip(
            steady_hours(12, 12, 6), random.poisson(12, WEEK_H).tolist(), strict=True
        )
    )
    queue = QueueSummary(queue="orders", works=(slow,), hours=hours, open_messages=6)
    found = analyze(replace(full_log(), queues=(queue,))).queues[0]
    assert "backlog" not in told(found)


def test_a_worker_that_stands_out_is_told_of() -> None:
    """One of five is late far more often and one is slow; the others have nothing said of them."""
    workers = [
        Worker(holder=f"w{each}", attempts=400, completed=390, late=4, p50_s=2.0)
        for each in range(5)
    ]
    workers[1] = replace(workers[1], late=60)
    workers[2] = replace(workers[2], p50_s=9.0)
    found = {each.worker.holder: each.strikes for each in standings("orders", workers)}
    assert "15.0% late, the others 1.0%" in found["w1"][0]
    assert "half of its work takes 9 s" in found["w2"][0]
    assert not found["w0"]
    few = [replace(each, attempts=5, completed=5, late=each.late and 3) for each in workers]
    assert not any(each.strikes for each in standings("orders", few))


def told(found: QueueFindings) -> dict[str, str]:
    """Return the first sentence of each kind."""
    return {each.kind: each.sentence for each in reversed(found.findings)}


def test_what_is_said_of_a_busy_queue() -> None:
    """Each kind of trouble is a sentence, what asks for action first."""
    busy, rare = analyze(full_log()).queues
    assert set(told(busy)) == {"timeout", "waste", "backlog", "poison", "worker", "group"}
    assert told(busy)["timeout"].startswith("Lengthen the visibility timeout from 30 s to 60 s")
    assert "41 of 44" in told(busy)["poison"]
    assert "new, since" in told(busy)["poison"]
    weights = [each.weight for each in busy.findings]
    assert weights == sorted(weights, key=list(Weight).index)
    assert "Not enough data yet" in told(rare)["data"]


def test_queues_are_named_while_they_are_looked_at() -> None:
    """For a progress bar."""
    names: list[str] = []
    analyze(full_log(), Asked(), names.append)
    assert names == ["media", "rare"]


def test_workers_that_renew_are_told_a_plan() -> None:
    """A timeout says little to them."""
    works = tuple(replace(each, renewed=each.deliveries) for each in full_queue().works)
    log = replace(full_log(), queues=(replace(full_queue(), works=works),))
    whole = analyze(log).queues[0].whole
    assert "first lease of" in told(analyze(log).queues[0])["timeout"]
    assert whole.timeout_s == whole.today_s == 30
    assert whole.choice("today") is None
    assert whole.choices[0].name == "renewal"


def test_a_timeout_that_is_right_is_left_alone() -> None:
    """Nothing is said of it."""
    queue = QueueSummary(queue="orders", works=(work(log_normal(20, 0.2, 1_000)),))
    log = replace(full_log(), queues=(queue,))
    best = analyze(log, Asked(at_once=True)).queues[0].whole.timeout_s
    today = {"orders": Today(visibility_timeout_s=best, lease_s=best)}
    assert "timeout" not in told(analyze(log, Asked(today=today)).queues[0])


def test_advice_stays_within_the_bounds() -> None:
    """A floor and a cap hold for the best as well."""
    asked = Asked(bounds=Bounds(floor_s=10, cap_s=100), at_once=True)
    assert analyze(full_log(), asked).queues[0].whole.timeout_s == 100


def test_an_empty_log_has_no_findings() -> None:
    """Neither queues without work nor none at all are an error."""
    empty = replace(full_log(), queues=(QueueSummary(queue="new", works=(Work(),)),))
    found = analyze(empty).queues[0]
    assert not found.whole.is_enough
    assert analyze(replace(empty, queues=())).queues == ()


def test_a_summary_is_read_as_it_was_saved(tmp_path: Path) -> None:
    """Every member of it."""
    log = full_log()
    save(log, tmp_path / "log.json")
    assert load(tmp_path / "log.json") == log
    newer = to_json(log).replace(b'"format":1', b'"format":2')
    for data in (b"[1]", b"no JSON", newer, b'{"format":1,"summary":{"events":"x"}}'):
        with pytest.raises(UnreadableSummary):
            from_json(data)


def test_numbers_are_plain() -> None:
    """No figure is one of numpy's, which JSON does not know."""
    whole = analyze(full_log()).queues[0].whole
    assert not isinstance(whole.curve[0].cost, np.generic)
    assert not isinstance(whole.survival[-1].share, np.generic)
