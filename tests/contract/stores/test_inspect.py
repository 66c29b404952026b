"""Contract: looking at messages, by filter and by id, without touching them."""

from __future__ import annotations

import base64
from collections import Counter
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.errors import InvalidMarker, MessageNotFound, QueueNotFound
from leasehold.domain.filters import EVERYTHING, MessageFilter
from leasehold.domain.model import Detail, ErrorReport, Lease, MessageState, Outcome, Progress

from .conftest import ACCOUNT, POISON, QUEUE, Asker

STATES = ("visible", "leased", "delayed", "deferred", "expired", "poisoned")


def put_one_in_each_state(asker: Asker) -> dict[str, Lease]:
    """Put a message into each state, named by it."""
    leases = {"leased": asker.put("leased"), "deferred": asker.put("deferred")}
    leased, deferred = asker.receive(2, lease_s=3600)
    asker.release(deferred, delay_s=3600)
    leases["expired"] = asker.put("expired", time_to_live_s=5)
    asker.clock.advance(s=5)
    leases["delayed"] = asker.put("delayed", delay_s=3600)
    leases["poisoned"] = asker.bury("poisoned")
    leases["visible"] = asker.put("visible")
    return leases | {"leased": leased}


# --- states ------------------------------------------------------------------------------------


def test_every_state_is_listed_oldest_first_and_poison_last(asker: Asker) -> None:
    """Without a filter a listing leaves nothing out that can still be had."""
    put_one_in_each_state(asker)
    names = ["leased", "deferred", "expired", "delayed", "visible", "poisoned"]
    assert asker.inspected() == [(name.encode(), name) for name in names]


@pytest.mark.parametrize("state", STATES)
def test_one_state_can_be_asked_for(asker: Asker, state: str) -> None:
    """The message in it is listed, whole, with its state and its queue."""
    lease = put_one_in_each_state(asker)[state]
    (seen,) = asker.inspect(states=[state]).messages
    assert (seen.message.body, seen.state) == (state.encode(), state)
    assert seen.message.message_id == lease.message.message_id
    assert seen.queue == (POISON if state == "poisoned" else QUEUE)
    assert seen == asker.find(lease)


def test_several_states_can_be_asked_for(asker: Asker) -> None:
    """Each message that is in one of them is listed."""
    put_one_in_each_state(asker)
    assert asker.inspected(states=["delayed", "leased"]) == [
        (b"leased", "leased"),
        (b"delayed", "delayed"),
    ]
    assert [body for body, _ in asker.inspected(states=["poisoned", "visible"])] == [
        b"visible",
        b"poisoned",
    ]


def test_states_go_with_time(asker: Asker) -> None:
    """A state ends at its moment, without anybody touching the message."""
    asker.put("delayed", delay_s=10)
    asker.put("leased", priority=1)
    asker.receive_one(lease_s=20)
    asker.clock.advance(ms=9_999)
    assert dict(asker.inspected()) == {b"delayed": "delayed", b"leased": "leased"}
    asker.clock.advance(ms=1)
    assert asker.inspected(states=["delayed"]) == []
    assert dict(asker.inspected()) == {b"delayed": "visible", b"leased": "leased"}
    asker.clock.advance(s=10)
    assert dict(asker.inspected(states=["visible"])) == {
        b"delayed": "visible",
        b"leased": "visible",
    }


def test_a_message_hidden_by_a_clock_set_back_is_delayed(asker: Asker) -> None:
    """It is found among the delayed ones, where it counts."""
    asker.put()
    asker.clock.advance(s=-60)
    assert asker.split() == (0, 0, 1, 0, 0)
    assert asker.inspected() == [(b"work", "delayed")]
    assert asker.inspected(states=["delayed"]) == [(b"work", "delayed")]
    assert asker.inspected(states=["delayed", "leased"]) == [(b"work", "delayed")]


def test_expired_messages_are_seen_until_they_are_removed(asker: Asker) -> None:
    """Also when the sweep has set them aside, which a clock set back does not undo."""
    put = asker.put("gone", time_to_live_s=10)
    asker.clock.advance(s=10)
    for _ in range(2):
        assert asker.inspected() == [(b"gone", "expired")]
        assert asker.inspected(states=["expired"]) == [(b"gone", "expired")]
        assert asker.find(put).state is MessageState.EXPIRED
        asker.ask(c.RetireExpired(10))
    asker.clock.advance(s=100)
    asker.ask(c.RemoveRetired(asker.clock.now_ms(), 10))
    assert asker.inspected() == []
    assert isinstance(asker.find(put), MessageNotFound)


def test_poisoned_messages_are_listed_with_their_own_queue_only(asker: Asker) -> None:
    """Two queues may share a poison queue; that one itself lists all, in their plain states."""
    asker.create("audio")
    asker.create("aside")
    mine = asker.bury("mine")
    other = asker.bury("other", queue="audio")
    assert asker.inspected(states=["poisoned"]) == [(b"mine", "poisoned")]
    assert asker.inspected(states=["poisoned"], queue="audio") == [(b"other", "poisoned")]
    assert asker.inspected(queue=POISON) == [(b"mine", "visible")]
    assert isinstance(asker.find(other), MessageNotFound)
    assert asker.find(other, "audio").queue == "audio-poison"
    assert asker.find(mine, POISON).state is MessageState.VISIBLE
    assert asker.inspected(states=["poisoned"], queue=POISON) == []


def test_poison_that_has_expired_is_not_poison_any_more(asker: Asker) -> None:
    """The queue that it failed in does not list it then."""
    asker.limit_failures(poison_time_to_live_s=10)
    bad = asker.bury("bad")
    asker.clock.advance(s=10)
    assert asker.inspected() == []
    assert isinstance(asker.find(bad), MessageNotFound)
    assert asker.inspected(queue=POISON) == [(b"bad", "expired")]


def test_cleared_and_deleted_messages_are_not_seen(asker: Asker) -> None:
    """Not even while their rows wait for the reaper."""
    put = asker.put()
    asker.ask(c.Clear(ACCOUNT, QUEUE))
    assert asker.inspected() == []
    assert isinstance(asker.find(put), MessageNotFound)
    asker.ask(c.DeleteQueue(ACCOUNT, QUEUE))
    for answer in (
        asker.ask(o.Inspect(ACCOUNT, QUEUE, EVERYTHING, "", 1)),
        asker.find(put),
    ):
        assert isinstance(answer, QueueNotFound)


@pytest.mark.parametrize("message_id", ["", "nonsense", "00000000-0000-8000-8000-000000000000"])
def test_an_unknown_id_is_not_found(asker: Asker, message_id: str) -> None:
    """Whatever it looks like; the row of another message is not enough."""
    put = asker.put(entropy=b"\xff" * 10)
    wrong = put.message.message_id[:-1] + ("0" if put.message.message_id[-1] != "0" else "1")
    for unknown in (message_id, wrong, put.message.message_id.upper()):
        assert isinstance(asker.ask(o.FindMessage(ACCOUNT, QUEUE, unknown)), MessageNotFound)


# --- nothing is touched ------------------------------------------------------------------------


def test_looking_touches_nothing(asker: Asker) -> None:
    """Dequeue counts, receipts, the order and the poison of a queue stay as they are."""
    asker.limit_failures(max_deliveries=1)
    asker.put("lapsed")
    lease = asker.receive_one(lease_s=1)
    asker.put("waiting")
    asker.clock.advance(s=1)
    before = asker.inspect().messages
    for _ in range(3):
        assert asker.inspect().messages == before
        assert asker.find(lease) == before[0]
        asker.counts()
    assert [seen.message.dequeue_count for seen in before] == [1, 0]
    assert [str(seen.state) for seen in before] == ["visible", "visible"]
    assert asker.split() == (2, 0, 0, 0, 0)
    assert asker.complete(lease) == c.DONE


def test_a_lease_is_shown_with_holder_renewals_and_progress(asker: Asker) -> None:
    """All that its holder has told is there."""
    start_ms = asker.clock.now_ms()
    asker.put()
    asker.clock.advance(s=1)
    lease = asker.receive_one(holder="w1")
    asker.clock.advance(s=1)
    progress = Progress(at_ms=asker.clock.now_ms(), fraction=0.5, note="half of it")
    renewal = asker.renew_command(lease, 60)._replace(progress=progress)
    lease = asker.ask(renewal)
    message = asker.find(lease).message
    assert message == lease.message
    assert (message.holder, message.renewals, message.detail.progress) == ("w1", 1, progress)
    assert message.since_ms == start_ms + 1_000
    assert message.visible_since_ms == start_ms
    assert message.visible_at_ms == start_ms + 62_000


# --- paging ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_list_each_message_once(asker: Asker, limit: int) -> None:
    """With poison behind, across priorities, whatever the size of a page."""
    for index in range(10):
        asker.put(f"{index}", priority=1 + index % 3, delay_s=index % 2)
    for index in range(4):
        asker.bury(f"p{index}")
    expected = [f"{index}".encode() for index in range(10)] + [b"p0", b"p1", b"p2", b"p3"]
    assert [body for body, _ in asker.inspected(limit)] == expected


def test_pages_list_each_once_while_messages_move(asker: Asker) -> None:
    """What is there from the first page to the last is listed once, however it moves."""
    leases = [asker.put(f"{index:02}", priority=1 + index % 4) for index in range(24)]
    listed: Counter[bytes] = Counter()
    after, page_number = "", 0
    while True:
        page = asker.inspect(after, 2)
        listed.update(seen.message.body for seen in page.messages)
        if page.next_after is None:
            break
        after = page.next_after
        asker.clock.advance(s=20)
        asker.receive(3, lease_s=30)
        asker.amend(leases[page_number], priority=9, force=True)
        asker.amend(leases[-1 - page_number], delay_s=5, force=True)
        asker.put(f"new{page_number}")
        page_number += 1
    assert page_number >= 12
    assert all(listed[f"{index:02}".encode()] == 1 for index in range(24))
    assert set(listed.values()) == {1}


def test_a_page_goes_on_where_its_last_message_was_removed(asker: Asker) -> None:
    """The place is behind it, there or not."""
    leases = [asker.put(f"{index}") for index in range(6)]
    page = asker.inspect(limit=3)
    for lease in leases[1:4]:
        asker.remove(lease)
    assert page.next_after is not None
    rest = asker.inspect(page.next_after).messages
    assert [seen.message.body for seen in rest] == [b"4", b"5"]


@pytest.mark.parametrize("after", ["x", "q", "qg", "q1 ", "Q1", "q" + "f" * 13, "1"])
def test_a_marker_of_nobody_is_refused(asker: Asker, after: str) -> None:
    """Only what a page gave out is taken."""
    answer = asker.ask(o.Inspect(ACCOUNT, QUEUE, EVERYTHING, after, 1))
    assert isinstance(answer, InvalidMarker)


# --- filters -----------------------------------------------------------------------------------


def bodies(asker: Asker, **wanted: Any) -> list[bytes]:
    return [body for body, _ in asker.inspected(**wanted)]


def test_filter_by_age(asker: Asker) -> None:
    """Age is since the put, both ends included."""
    asker.put("old")
    asker.clock.advance(s=10)
    asker.put("young")
    asker.clock.advance(s=5)
    assert bodies(asker, min_age_s=15) == [b"old"]
    assert bodies(asker, min_age_s=15.001) == []
    assert bodies(asker, max_age_s=5) == [b"young"]
    assert bodies(asker, min_age_s=5, max_age_s=15) == [b"old", b"young"]


def test_filter_by_dequeue_count(asker: Asker) -> None:
    """Both ends included."""
    for count in range(3):
        put = asker.put(f"{count}", priority=1)
        for _ in range(count):
            asker.release(asker.receive_one())
        asker.amend(put, priority=16)
    assert bodies(asker, min_dequeue_count=1) == [b"1", b"2"]
    assert bodies(asker, max_dequeue_count=1) == [b"0", b"1"]
    assert bodies(asker, min_dequeue_count=1, max_dequeue_count=1) == [b"1"]


def test_filter_by_holder(asker: Asker) -> None:
    """The holder of the lease or, without one, of the last."""
    for holder in ("w1", "w2", None):
        asker.put(str(holder))
        asker.receive_one(holder=holder)
    assert bodies(asker, holder="w1") == [b"w1"]
    assert bodies(asker, holder="w") == []
    asker.clock.advance(s=30)
    assert bodies(asker, holder="w2", states=["visible"]) == [b"w2"]


def test_filter_by_type(asker: Asker) -> None:
    """The type is what the sender said."""
    asker.put("plain")
    asker.put("order", detail=Detail(message_type="order.placed"))
    assert bodies(asker, message_type="order.placed") == [b"order"]
    assert bodies(asker, message_type="order") == []


def test_filter_by_group(asker: Asker) -> None:
    """Its whole name, in whatever state the message is; also what is in the poison queue."""
    asker.limit_failures(max_failures=3)
    asker.bury("buried", detail=Detail(group_id="a"))
    for group in ("a", "ab", None):
        asker.put(str(group), detail=Detail(group_id=group))
    asker.put("delayed", detail=Detail(group_id="a"), delay_s=60)
    assert bodies(asker, group_id="a") == [b"a", b"delayed", b"buried"]
    assert bodies(asker, group_id="a", states=["poisoned"]) == [b"buried"]
    assert bodies(asker, group_id="b") == []


def test_filter_by_group_finds_what_a_look_at_all_does(asker: Asker) -> None:
    """In every state, also members of claims and what is staged, in pages of any size."""
    for number in range(12):
        fields = {"delay_s": 60 * (number % 4 == 3), "priority": 1 + number % 2}
        life_s = 20 if number % 5 == 4 else 500
        detail = Detail(group_id="ab"[number % 3 % 2])
        if fields["delay_s"] < life_s:
            asker.put(f"{number}", detail=detail, time_to_live_s=life_s, **fields)
    asker.stage("staged", detail=Detail(group_id="a"))
    asker.receive(2)
    asker.attach()
    asker.claim(1, limit=3, lease_s=15)
    for _ in range(3):
        everything = asker.inspect().messages
        for group in ("a", "b"):
            expected = [
                (seen.message.body, str(seen.state))
                for seen in everything
                if seen.message.detail.group_id == group
            ]
            assert expected
            assert asker.inspected(group_id=group) == expected
            assert asker.inspected(2, group_id=group) == expected
            for state in ("leased", "delayed", "expired", "staged", "visible"):
                some = [each for each in expected if each[1] == state]
                assert asker.inspected(group_id=group, states=[state]) == some
        asker.clock.advance(s=18)
        asker.ask(c.RetireExpired(100))


def test_jobs_by_group(asker: Asker) -> None:
    """A purge takes the messages of one group alone."""
    for group in ("a", "b", "a"):
        asker.put(group, detail=Detail(group_id=group))
    job = asker.run_job(o.JobKind.PURGE, filter=MessageFilter(group_id="a"))
    assert (job.matched, job.moved) == (2, 2)
    assert asker.bodies() == [b"b"]


def test_filter_by_reason_and_error(asker: Asker) -> None:
    """Why it is poison, and what its last error said: part of the text, type or fingerprint."""
    asker.limit_failures(max_failures=1)
    asker.bury("buried")
    asker.put("failed")
    error = ErrorReport(text="No such CODEC: x9", type="CodecError", fingerprint="f00d")
    asker.release(asker.receive_one(), Outcome.FAILED, error=error)
    assert bodies(asker, reason="buried") == [b"buried"]
    assert bodies(asker, reason="max_failures", states=["poisoned"]) == [b"failed"]
    for wanted in ("such codec", "CodecError", "f00d"):
        assert bodies(asker, error=wanted) == [b"failed"]
    assert bodies(asker, error="f00") == []


def test_filter_by_body(asker: Asker) -> None:
    """Text is looked for in the body as it is and as base64; JSON by path and value."""
    asker.put('{"order": {"id": 7, "lines": [{"sku": "a-1"}]}}')
    asker.put(base64.b64encode(b'{"order": {"id": 8}}'))
    asker.put(b"\xff\xfe not text")
    plain, encoded, _ = (body for body, _ in asker.inspected())
    assert bodies(asker, text="SKU") == [plain]
    assert bodies(asker, text="order") == [plain, encoded]
    assert bodies(asker, json_path="order.id") == [plain, encoded]
    assert bodies(asker, json_path="$.order.id", json_value="8") == [encoded]
    assert bodies(asker, json_path="order.lines[0].sku", json_value='"a-1"') == [plain]


def test_a_filter_means_all_that_it_says(asker: Asker) -> None:
    """Its parts are joined by and; pages of what it finds go on."""
    for index in range(20):
        asker.put(f"{'even' if index % 2 == 0 else 'odd'} {index}", delay_s=60 * (index % 3))
    found = asker.inspected(limit=2, text="even", states=["visible"])
    assert [body for body, _ in found] == [b"even 0", b"even 6", b"even 12", b"even 18"]


def test_details_are_shown_as_they_were_sent(asker: Asker) -> None:
    """Properties, type, trace and key come back, also from a receive and a peek."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    detail = Detail(
        properties={"Größe": "1 ✓", "b": ""},
        message_type="t",
        traceparent=trace,
        dedup_key="k",
    )
    asker.put(detail=detail)
    assert asker.inspect().messages[0].message.detail == detail
    assert asker.peek()[0].detail == detail
    assert asker.receive_one().message.detail == detail
