"""The check of event logs: no false alarm on what stores write, and every rule on what they do not.

That it finds bugs in the code of a server is shown in ``tests/reliability/test_planted_bugs.py``.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.admin import JobKind
from leasehold.domain.events import Event, EventType
from leasehold.domain.groups import HaltGroup
from leasehold.domain.model import Detail, Outcome
from leasehold.domain.queue_settings import (
    FailurePolicy,
    GroupOrder,
    GroupSettings,
    LapsedReceipts,
    QueueSettings,
)
from leasehold.events.check import FIELDS, Row, Rule
from leasehold.events.check_book import changes_in
from leasehold.events.check_input import (
    check_all,
    files_in,
    rows_of_file,
    rows_of_lines,
    settings_at_start,
)
from leasehold.events.parquet import FileBuilder
from leasehold.stores.memory import MemoryStore
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock
from tests.contract.stores.conftest import ACCOUNT, QUEUE, Asker
from tests.contract.stores.random_work import RandomWork
from tests.unit.events.checked import NO_GRACE_MS, checked, row_of_event


def random_log(kind: str, folder: Path, operations: int, size: int, seed: int) -> tuple[Any, list]:  # type: ignore[type-arg]
    """Play random work, and return the store and its log."""
    store = MemoryStore() if kind == "memory" else SqliteStore(folder, cache_mib=16)
    asker = Asker(store, ManualClock())
    asker.create()
    work = RandomWork(asker, random.Random(seed), size, groups=True)
    while work.operations < operations:
        work.play(100)
    return store, list(asker.events(0, 10_000))


@pytest.mark.parametrize(("kind", "size"), [("memory", 4), ("sqlite", 20)])
def test_nothing_is_wrong_with_what_a_store_writes(kind: str, size: int, tmp_path: Path) -> None:
    """Every event is consumed, the counts are exact, and it is all the same in parts."""
    store, events = random_log(kind, tmp_path, 5_000, size, seed=11)
    rows = [row_of_event(event) for event in events]
    how: dict[str, Any] = {"session_grace_ms": NO_GRACE_MS}
    report = checked(rows, **how)
    assert report.violations == []
    assert report.consumed == report.events == len(rows)
    assert report.whole
    assert not report.known_from
    held = {(account, queue): many for account, queue, many in store.message_counts()}
    assert {place: report.counts[place] for place in held} == held
    in_parts = check_all(lambda: [rows], at_once=30, **how)
    assert (in_parts.counts, in_parts.events) == (report.counts, report.events)
    assert (in_parts.violations, in_parts.live) == ([], report.live)


@pytest.mark.parametrize("group", ["a", None])
def test_redriven_messages_of_groups_have_their_old_places(group: str | None) -> None:
    """They count as visible since they first were; without a group that is as of the redrive."""
    asker = Asker(MemoryStore(), ManualClock())
    asker.create()
    asker.bury("bad", detail=Detail(group_id=group))
    asker.clock.advance(s=60)
    asker.run_job(JobKind.REDRIVE)
    rows = [row_of_event(event) for event in asker.events()]
    assert checked(rows).violations == []
    (redriven,) = [row for row in rows if row.type == EventType.REDRIVEN]
    assert redriven.visible_at_ms == redriven.at_ms - (60_000 if group else 0)
    for by_ms in (-60_000, 1) if group is None else (60_001,):
        wrong = redriven._replace(visible_at_ms=redriven.visible_at_ms + by_ms)
        report = checked(wrong if row is redriven else row for row in rows)
        assert {found.rule for found in report.violations} == {Rule.MESSAGE_STATE}


def test_a_large_group_is_judged_whole() -> None:
    """However few messages may be in memory at once, the log is read a few times only."""
    asker = Asker(MemoryStore(), ManualClock())
    asker.create()
    for number in range(60):
        asker.put(detail=Detail(group_id="large" if number % 3 else None))
    rows = [row_of_event(event) for event in asker.events()]
    parts: list[int] = []
    report = check_all(lambda: [[row] for row in rows], at_once=5, read_again=parts.append)
    assert (report.events, report.live, report.violations) == (len(rows), 60, [])
    assert max(parts) <= 64


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_log_may_begin_anywhere(seed: int, tmp_path: Path) -> None:
    """What was there before is known from its first event on."""
    _, events = random_log("memory", tmp_path, 3_000, 6, seed)
    rows = [row_of_event(event) for event in events]
    seqs = sorted({row.seq for row in rows})
    for part in range(1, 10):
        first = seqs[len(seqs) * part // 10]
        report = checked([row for row in rows if row.seq >= first], session_grace_ms=NO_GRACE_MS)
        assert report.violations == []
        assert not report.whole
        assert report.known_from


def test_a_log_that_was_off_for_a_while_is_no_alarm() -> None:
    """What happened meanwhile is not known, and neither are the messages of before."""
    asker = Asker(MemoryStore(), ManualClock())
    asker.create()
    for _ in range(4):
        asker.put()
    kept = asker.receive_one()
    gone = asker.receive_one()
    asker.ask(c.SetQueueSettings(ACCOUNT, QUEUE, QueueSettings(event_log=False)))
    asker.complete(gone)
    asker.put()
    asker.receive_one()
    asker.ask(c.SetQueueSettings(ACCOUNT, QUEUE, QueueSettings()))
    asker.complete(kept)
    asker.clock.advance(s=100)
    for _ in range(3):
        asker.complete(asker.receive_one())
    report = checked([row_of_event(event) for event in asker.events(0, 1_000)])
    assert report.violations == []
    assert report.known_from == 4
    assert report.counts == {}


def test_a_log_with_a_gap_that_is_told() -> None:
    """After it nothing is known."""
    asker = Asker(MemoryStore(), ManualClock())
    asker.create()
    for _ in range(2):
        asker.put()
    asker.complete(asker.receive_one())
    lease = asker.receive_one()
    asker.complete(lease)
    rows = [row_of_event(event) for event in asker.events(0, 1_000)]
    left = [*rows[:3], *rows[4:]]
    assert checked(left).violations
    report = checked(left, gaps=[rows[2].seq])
    assert report.violations == []
    assert report.known_from == 2
    assert not report.whole


# --- every rule, on a log that was changed by hand ----------------------------------------------


def life(settings: QueueSettings | None = None, **put: Any) -> list[Event]:
    """Return the log of a message that lapses, is renewed, given back, and completed."""
    asker = Asker(MemoryStore(), ManualClock())
    asker.create()
    asker.ask(c.SetQueueSettings(ACCOUNT, QUEUE, settings or QueueSettings(dedup_window_s=5)))
    asker.put(**put)
    asker.clock.advance(s=1)
    asker.receive_one(10)
    asker.clock.advance(s=20)
    lease = asker.receive_one(30)
    asker.clock.advance(s=1)
    renewed = asker.renew(lease, 40)
    asker.release(renewed, Outcome.FAILED)
    asker.clock.advance(s=1)
    asker.complete(asker.receive_one())
    return list(asker.events(0, 1_000))


KINDS = [
    EventType.QUEUE_CREATED, EventType.QUEUE_UPDATED, EventType.PUT, EventType.RECEIVED,
    EventType.LAPSED, EventType.RECEIVED, EventType.RENEWED, EventType.RELEASED,
    EventType.RECEIVED, EventType.COMPLETED,
]  # fmt: skip
_CREATED, _, _PUT, _TAKEN, _LAPSED, _AGAIN, _RENEWED, _RELEASED, _LAST, _DONE = range(10)


def changed(number: int, **fields: Any) -> list[Event]:
    events = life()
    events[number] = events[number]._replace(**fields)
    return events


def without(place: int) -> list[Event]:
    events = life()
    del events[place]
    return events


def twice(place: int) -> list[Event]:
    events = life()
    last = events[-1]
    return [*events, events[place]._replace(seq=last.seq + 1, at_ms=last.at_ms)]


def test_the_life_of_a_message_is_fine() -> None:
    events = life()
    assert [event.type for event in events] == KINDS
    assert checked([row_of_event(event) for event in events]).violations == []


AT_MS = life()[_TAKEN].at_ms


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        (Rule.LOG_ORDER, [*life()[1:4], *life()[2:]]),
        (Rule.LOG_ORDER, changed(_AGAIN, place=2)),
        (Rule.LOG_ORDER, changed(_AGAIN, at_ms=AT_MS + 30_000)),
        (Rule.KNOWN_MESSAGE, without(_PUT)),
        (Rule.KNOWN_MESSAGE, twice(_LAST)),
        (Rule.KNOWN_MESSAGE, twice(_DONE)),
        (Rule.TWO_LEASES, without(_RELEASED)),
        (Rule.TWO_LEASES, without(_LAPSED)),
        (Rule.TOO_EARLY, changed(_TAKEN, visible_at_ms=AT_MS + 60_000)),
        (Rule.TOO_EARLY, changed(_PUT, visible_at_ms=AT_MS + 1, phase=1)),
        (Rule.STALE_ACTION, changed(_LAST, type=EventType.COMPLETED, fence=4, dequeue_count=2)),
        (Rule.STALE_ACTION, changed(_DONE, fence=4)),
        (Rule.EXPIRED_ACTION, changed(_PUT, expires_at_ms=AT_MS)),
        (Rule.EXPIRED_ACTION, changed(_DONE, type=EventType.EXPIRED)),
        (Rule.FENCE_ORDER, changed(_TAKEN, fence=0)),
        (Rule.FENCE_ORDER, changed(_RENEWED, fence=2)),
        (Rule.EXACT_COUNT, changed(_AGAIN, dequeue_count=3)),
        (Rule.EXACT_COUNT, changed(_RELEASED, dequeue_count=1)),
        (Rule.MESSAGE_STATE, changed(_AGAIN, visible_since_ms=AT_MS)),
        (Rule.MESSAGE_STATE, changed(_DONE, since_ms=AT_MS)),
        (Rule.MESSAGE_STATE, changed(_PUT, phase=2)),
        (Rule.STAGED_HIDDEN, changed(_PUT, type=EventType.STAGED, target="t")),
        (Rule.CLAIM_MEMBERS, changed(_DONE, type=EventType.SETTLED, target="s/1")),
    ],
)
def test_a_rule_that_is_broken_is_found(rule: Rule, events: list[Event]) -> None:
    """And the sentence, the place in the log and the message stand with it."""
    report = checked([row_of_event(event) for event in events])
    found = [each for each in report.violations if each.rule is rule]
    assert found, report.violations
    assert found[0].sentence
    assert (found[0].seq, found[0].place) in {(event.seq, event.place) for event in events}


def test_what_settings_ask_for_is_judged_by_them() -> None:
    """They are told by the log, or by whoever checks it."""
    rows = [row_of_event(event) for event in life()]
    place = ACCOUNT, QUEUE
    strict = {place: {"lapsed_receipts": str(LapsedReceipts.STRICT)}}
    assert checked(rows, settings=strict).violations == []
    budget = {place: {"failure_policy": {"max_deliveries": 2}}}
    assert set(checked(rows, settings=budget).found) == {Rule.POISON_BUDGET}
    assert checked(rows, settings={place: {"failure_policy": {"max_lapses": 2}}}).total == 0
    assert checked(rows, settings={place: {"failure_policy": {"max_lapses": 1}}}).total == 2


def grouped_log(*acts: str) -> list[Row]:
    """Return a log of a queue without any settings for groups, in which acts would break some."""
    asker = Asker(MemoryStore(), ManualClock())
    asker.create()
    for act in acts:
        asker.clock.advance(s=1)
        if act == "put":
            asker.put(detail=Detail(group_id="a"))
        else:
            asker.receive_one(100)
    return [row_of_event(event) for event in asker.events(0, 1_000)]


@pytest.mark.parametrize(
    ("groups", "acts", "rules"),
    [
        ({"order": "fifo"}, "put put take take", {Rule.GROUP_ORDER}),
        ({"order": "fifo"}, "put take put", set()),
        ({"max_in_flight": 2}, "put put put take take take", {Rule.GROUP_LIMIT}),
        ({"max_in_flight": 2}, "put put take take", set()),
        ({"max_in_flight_of": {"a": 1}}, "put put take take", {Rule.GROUP_LIMIT}),
    ],
)
def test_groups_keep_their_order_and_their_limits(
    groups: dict[str, Any], acts: str, rules: set[Rule]
) -> None:
    """A log whose queue knew no groups breaks what it is said to have kept."""
    rows = grouped_log(*acts.split())
    report = checked(rows, settings={(ACCOUNT, QUEUE): {"groups": groups}})
    assert set(report.found) == rules


def test_a_group_that_stands_still_gives_nothing() -> None:
    asker = Asker(MemoryStore(), ManualClock())
    asker.create()
    asker.govern(groups=GroupSettings(order=GroupOrder.FIFO))
    asker.put(detail=Detail(group_id="a"))
    asker.receive_one()
    asker.ask(HaltGroup(ACCOUNT, QUEUE, "a", "stop"))
    rows = [row_of_event(event) for event in asker.events(0, 100)]
    assert checked(rows).violations == []
    *first, taken, halted = rows
    swapped = [*first, halted._replace(seq=taken.seq), taken._replace(seq=halted.seq)]
    assert Rule.GROUP_LIMIT in checked(swapped).found


# --- settings -----------------------------------------------------------------------------------


def test_settings_go_back_to_where_the_log_begins() -> None:
    """By what its changes say of before."""
    now = {("shop", "orders"): {"groups": {"order": "fifo", "burst": 3}, "failure_policy": None}}
    reason = 'groups.burst: 1 -> 2; failure_policy: {"max_deliveries": 3} -> null; metadata.a; x'
    assert changes_in(reason) is None
    reason = reason.removesuffix("; x")
    update = Row._make([None] * len(FIELDS))._replace(
        type=EventType.QUEUE_UPDATED, account="shop", queue="orders", reason=reason
    )
    assert settings_at_start(now, [update]) == {
        ("shop", "orders"): {
            "groups": {"order": "fifo", "burst": 1},
            "failure_policy": {"max_deliveries": 3},
        }
    }


def test_what_operators_did_besides_changes_no_setting() -> None:
    """Events of streams and jobs leave the settings known."""
    assert changes_in("stream hourly-counts deleted") == {}
    assert changes_in("job 5f60a1 stopped") == {}


def test_settings_of_a_real_change_are_read() -> None:
    before = QueueSettings()
    after = QueueSettings(
        failure_policy=FailurePolicy(max_deliveries=3),
        groups=GroupSettings(weights={"a; b: 1 -> 2": 5}),
    )
    asker = Asker(MemoryStore(), ManualClock())
    asker.create()
    asker.ask(c.SetQueueSettings(ACCOUNT, QUEUE, before))
    asker.ask(c.SetQueueSettings(ACCOUNT, QUEUE, after))
    (event,) = [each for each in asker.events(0, 10) if each.type is EventType.QUEUE_UPDATED]
    changes = changes_in(event.reason or "")
    assert changes is not None
    assert changes["failure_policy"] == (None, {"max_deliveries": 3})
    assert changes["groups"][1]["weights"] == {"a; b: 1 -> 2": 5}


# --- where events come from ---------------------------------------------------------------------


def test_files_and_lines_say_the_same(tmp_path: Path) -> None:
    """A row is the same wherever it was read."""
    _, events = random_log("memory", tmp_path, 1_000, 6, seed=5)
    rows = [row_of_event(event) for event in events]
    left = events
    while left:
        builder = FileBuilder()
        builder.add(left)
        left = [event for event in left if event.seq > builder.last_seq]
        builder.write(tmp_path)
    from_files = [row for path in files_in(tmp_path) for row in rows_of_file(path)]
    how: dict[str, Any] = {"session_grace_ms": NO_GRACE_MS}
    report = checked(rows, **how)
    for other in (from_files, list(rows_of_lines(map(_line, events), ACCOUNT))):
        again = checked(other, **how)
        assert again.violations == []
        assert (again.counts, again.consumed) == (report.counts, report.consumed)


def _line(event: Event) -> str:
    """Return an event as ``leasehold events tail --json`` shows it."""
    plain = {name: value for name, value in event._asdict().items() if value is not None}
    plain["type"] = EventType(event.type).name.lower().replace("_", "-")
    if plain.get("expires_at_ms", 0) > 2**47:
        del plain["expires_at_ms"]
    return json.dumps(plain)


def test_a_line_that_is_no_event_is_named() -> None:
    with pytest.raises(ValueError, match="line 3 is not an event"):
        list(rows_of_lines(['{"seq": 1, "place": 0, "at_ms": 5, "type": "put"}', "", "{}"]))


def test_a_type_that_is_not_known_is_told() -> None:
    rows = rows_of_lines(['{"seq": 1, "place": 0, "at_ms": 5, "type": "teleported"}'])
    report = checked(list(rows))
    assert (report.events, report.consumed) == (1, 0)
    assert sum(report.not_judged.values()) == 1
