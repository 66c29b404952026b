"""Purges and redrives."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain.admin import JobKind, StartJob
from leasehold.domain.model import MessageState
from tests.unit.http.native.support import BASE, MESSAGES, QUEUE, Native


def _poison(native: Native, *bodies: str) -> None:
    native.put_bodies(*bodies)
    for message in native.post(f"{MESSAGES}/receive", {"max_messages": len(bodies)})["messages"]:
        item = {"id": message["id"], "receipt": message["receipt"], "outcome": "buried"}
        native.post(f"{MESSAGES}/release", {"items": [item]})


def test_purge_in_the_background(native: Native) -> None:
    """A job that goes on is accepted and can be looked at."""
    native.put_bodies("one", "two")
    answer = native.send("POST", f"{QUEUE}/purge")
    job = answer.json
    assert (answer.status, job["state"], job["kind"]) == (202, "running", "purge")
    assert (job["expected"], job["dry_run"], job["note"]) == (2, False, None)
    assert answer.headers["location"] == f"{BASE}/jobs/{job['job_id']}"
    assert native.get(answer.headers["location"]) == job
    assert native.waits == []


def test_purge_and_wait(native: Native) -> None:
    """A job that is over in time is answered as such."""
    native.put_bodies("one", "two")
    job = native.post(f"{QUEUE}/purge", {"wait_s": 5})
    assert native.waits == [5]
    assert (job["state"], job["matched"], job["moved"]) == ("done", 2, 2)
    assert native.get(f"{QUEUE}/counts")["total"] == 0


def test_purge_by_filter(native: Native) -> None:
    """A purge takes what its filter means, and a dry run takes nothing."""
    native.post(MESSAGES, {"messages": [{"json": {"a": 1}}, {"json": {"a": 2}}]})
    wanted = {"json_path": "a", "json_value": 2, "states": ["visible"], "min_age_s": 0}
    job = native.post(f"{QUEUE}/purge", {"filter": wanted, "dry_run": True, "wait_s": 1})
    assert (job["matched"], job["moved"], job["dry_run"]) == (1, 0, True)
    job = native.post(f"{QUEUE}/purge", {"filter": wanted, "wait_s": 1})
    assert (job["examined"], job["matched"], job["moved"]) == (2, 1, 1)
    [view] = native.get(MESSAGES)["messages"]
    assert view["body"] == '{"a":1}'
    command = next(each for each in native.commands if isinstance(each, StartJob))
    assert command.plan.filter.states == frozenset({MessageState.VISIBLE})
    assert command.plan.filter.json_value == "2"


def test_redrive(native: Native) -> None:
    """A redrive brings poisoned messages back, or into another queue."""
    _poison(native, "one", "two")
    request = {"filter": {"text": "one"}, "rate_per_s": 10, "canary": 0, "wait_s": 1}
    job = native.post(f"{QUEUE}/redrive", request)
    assert (job["kind"], job["state"], job["moved"]) == ("redrive", "done", 1)
    assert native.receive_one()["body"] == "one"
    native.send("PUT", f"{BASE}/queues/others")
    assert native.post(f"{QUEUE}/redrive", {"target": "others", "wait_s": 1})["moved"] == 1
    plans = [each.plan for each in native.commands if isinstance(each, StartJob)]
    assert [(plan.kind, plan.rate_per_s, plan.target) for plan in plans] == [
        (JobKind.REDRIVE, 10, None),
        (JobKind.REDRIVE, None, "others"),
    ]
    assert native.get(f"{BASE}/queues/others/counts")["visible"] == 1


@pytest.mark.parametrize(
    ("path", "body", "code", "field"),
    [
        ("purge", {"wait_s": 61}, "out-of-range", "$.wait_s"),
        ("purge", {"filter": {"states": []}}, "invalid-request", "$.filter.states"),
        ("purge", {"filter": {"states": ["gone"]}}, "invalid-request", "$.filter.states"),
        ("purge", {"filter": {"min_age_s": -1}}, "out-of-range", "$.filter.min_age_s"),
        ("purge", {"filter": {"state": ["x"]}}, "invalid-request", "$.filter.state"),
        ("purge", {"filter": {"json_path": ""}}, "out-of-range", "$.filter.json_path"),
        ("purge", {"filter": {"json_path": "["}}, "invalid-request", "$.filter.json_path"),
        ("purge", {"canary": 1}, "invalid-request", "$.canary"),
        ("redrive", {"canary": -1}, "out-of-range", "$.canary"),
        ("redrive", {"rate_per_s": 0}, "out-of-range", "$.rate_per_s"),
        ("redrive", {"target": "A_"}, "invalid-queue-name", "$.target"),
        ("redrive", {"target": "orders-poison"}, "invalid-request", "$.target"),
    ],
)
def test_refused_jobs(
    native: Native, path: str, body: dict[str, Any], code: str, field: str | None
) -> None:
    """A job that makes no sense is not begun."""
    answer = native.send("POST", f"{QUEUE}/{path}", body)
    assert (answer.code, answer.json.get("field")) == (code, field)
    assert native.get(f"{BASE}/jobs")["jobs"] == []


def test_list_and_stop(native: Native) -> None:
    """Jobs are listed, also by queue, and can be stopped."""
    native.send("PUT", f"{BASE}/queues/others")
    first = native.send("POST", f"{QUEUE}/purge").json["job_id"]
    native.clock.advance(s=1)
    second = native.send("POST", f"{BASE}/queues/others/purge").json["job_id"]
    assert [job["job_id"] for job in native.get(f"{BASE}/jobs")["jobs"]] == [second, first]
    [job] = native.get(f"{BASE}/jobs", "queue=orders&limit=5")["jobs"]
    assert job["job_id"] == first
    stopped = native.post(f"{BASE}/jobs/{first}/stop")
    assert stopped["state"] == "stopped"
    assert stopped["note"]
    assert native.send("GET", f"{BASE}/jobs/none").code == "job-not-found"
    assert native.send("POST", f"{BASE}/jobs/none/stop").code == "job-not-found"


def test_change(native: Native) -> None:
    """Changes of many messages are jobs like others, and say who started them."""
    native.put_bodies("one", "two", "three")
    native.receive_one(holder="w", visibility_timeout_s=30)
    request = {"action": "amend", "delay_s": 60, "priority": 2, "wait_s": 1}
    job = native.post(f"{QUEUE}/change", request | {"dry_run": True})
    assert (job["kind"], job["matched"], job["moved"]) == ("amend", 2, 0)
    assert native.post(f"{QUEUE}/change", request)["moved"] == 2
    assert native.get(f"{QUEUE}/counts")["delayed"] == 2
    held = {"filter": {"holder": "w"}, "wait_s": 1}
    longer = {"action": "extend-lease", "visibility_timeout_s": 600}
    assert native.post(f"{QUEUE}/change", held | longer)["moved"] == 1
    back = {"action": "end-lease", "reason": "it hangs", "delay_s": 0}
    job = native.post(f"{QUEUE}/change", held | back)
    assert (job["moved"], job["actor"]) == (1, "key:devstoreaccount1/1")
    assert native.get(f"{QUEUE}/counts")["visible"] == 1


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"action": "explode"}, "invalid-request", "$.action"),
        ({}, "invalid-request", "$.action"),
        ({"action": "amend"}, "invalid-request", "$"),
        ({"action": "amend", "force": True}, "invalid-request", "$"),
        ({"action": "amend", "priority": 17}, "out-of-range", "$.priority"),
        ({"action": "amend", "delay_s": -1}, "out-of-range", "$.delay_s"),
        ({"action": "amend", "time_to_live_s": 0}, "out-of-range", "$.time_to_live_s"),
        ({"action": "amend", "delay_s": 1, "reason": "x"}, "invalid-request", "$.reason"),
        ({"action": "extend-lease"}, "invalid-request", "$.visibility_timeout_s"),
        (
            {"action": "extend-lease", "visibility_timeout_s": 0},
            "out-of-range",
            "$.visibility_timeout_s",
        ),
        ({"action": "end-lease", "rate_per_s": 0}, "out-of-range", "$.rate_per_s"),
        ({"action": "end-lease", "priority": 1}, "invalid-request", "$.priority"),
    ],
)
def test_changes_that_make_no_sense(native: Native, body: object, code: str, field: str) -> None:
    """What an action does not know is refused, and so is one that would change nothing."""
    answer = native.send("POST", f"{QUEUE}/change", body)
    assert (answer.code, answer.json.get("field")) == (code, field)
