"""Pages of what there is besides queues: streams, transactions, jobs, the server, advice."""

from __future__ import annotations

import random
import re
import time
from dataclasses import asdict
from typing import Any, Final

import pytest
from msgspec import structs

from leasehold.advisor.apply import Current, undo_for
from leasehold.client import Client
from leasehold.domain.queue_settings import Adaptive, Advised
from leasehold.wire import queues as wire
from leasehold.wire.flows import ExecutorReport, PipelineReport, StageReport
from tests.console.harness import Visit, World

_UNDO: Final = """async (settings) => {
  const { undoOfAdvice } = await import("/console/static/lib/advice.js");
  return settings.map((each) => undoOfAdvice(each));
}"""
_TROUBLES: Final = """async (change) => {
  const { troublesOf } = await import("/console/static/pages/server.js");
  const answer = await (await fetch("/console/api/server")).json();
  for (const [path, value] of Object.entries(change)) {
    const names = path.split(".");
    names.slice(0, -1).reduce((at, name) => at[name], answer)[names.at(-1)] = value;
  }
  return troublesOf(answer, 0).map(({ tone, what, remedy }) => [tone, what, remedy]);
}"""


def claimed(client: Client, messages: int) -> None:
    """Have a stream of the queue ``clicks`` claim some messages."""
    queue = client.queue("clicks")
    queue.create()
    queue.put_many([f"click {number}" for number in range(messages)])
    stream = queue.stream("totals")
    info = stream.attach()
    stream.open(info.last_settled + 1, limit=messages, lease_s=3_600, holder="driver-1")


def test_claim_is_given_back(world: World, operator: Visit) -> None:
    """Its messages are visible again, and the page has it no more."""
    claimed(world.client, 3)
    operator.open("#/streams").settle()
    operator.link("totals").click()
    operator.sees("totals holds 1 claim with 3 messages.")
    operator.button("Release claim 1").click()
    operator.sees("the server refuses to settle the claim", within="dialog")
    operator.button("Release", within="dialog").click()
    operator.sees("Claim 1 was released: 3 messages can be received again.")
    operator.sees("No claim is open")
    assert world.client.queue("clicks").counts().visible == 3


def test_stream_is_deleted_by_its_name(world: World, operator: Visit) -> None:
    """The name must be typed; then the queue has no stream."""
    claimed(world.client, 2)
    operator.open("#/streams/clicks/totals").settle()
    operator.button("Delete stream").click()
    delete = operator.button("Delete", within="dialog")
    assert delete.is_disabled()
    operator.page.locator("dialog input").fill("totals")
    delete.click()
    operator.sees("No stream reads this queue")
    assert world.client.queue("clicks").streams() == []


@pytest.mark.parametrize("action", ["Publish", "Discard"])
def test_staged_messages(world: World, operator: Visit, action: str) -> None:
    """What is staged is told first, then published or dropped."""
    queue = world.client.queue("results")
    queue.create()
    world.client.transaction("import").stage(["1", "2"], queue="results", part="file-a")
    operator.open("#/transactions").settle()
    operator.link("import").click()
    operator.button(action).click()
    if action == "Discard":
        operator.page.locator("dialog input").fill("import")
    operator.button("Preview", within="dialog").click()
    operator.sees("It has 2 messages in 1 part", within="dialog .preview")
    operator.button(action, within="dialog").click()
    if action == "Publish":
        operator.sees("2 messages published.")
        operator.sees("It was published: 2 messages in all.")
    else:
        operator.sees("2 messages dropped.")
        operator.sees("No transaction is staged")
    counts = queue.counts()
    assert (counts.visible, counts.staged) == ((2, 0) if action == "Publish" else (0, 0))


def test_job_is_stopped(world: World, operator: Visit) -> None:
    """A redrive that is slow shows how far it is, and does no more once it is stopped."""
    queue = world.client.queue("orders")
    queue.create(settings={"failure_policy": {"max_failures": 1}})
    queue.put_many([str(number) for number in range(20)])
    for message in queue.receive(20):
        queue.release(message, outcome="failed", error="no")
    job = queue.redrive(rate_per_s=0.01)
    operator.open("#/jobs").settle()
    operator.link(re.compile("Redrive of orders")).click()
    operator.sees("Redrive of orders")
    operator.button("Stop").click()
    operator.button("Stop", within="dialog").click()
    operator.sees("It was stopped")
    assert world.client.get_job(job.job_id).state == "stopped"


def test_pipeline_with_the_life_of_its_messages(world: World, operator: Visit) -> None:
    """What its driver reports, and from the event log who held each message, named by its body."""
    queue = world.client.queue("videos")
    queue.create()
    queue.put_many(['{"video": "harvest-tour"}', '{"video": "broken"}', '{"video": "late"}'])
    first, second = queue.receive(2, holder="executor-1")
    queue.complete(first)
    report = PipelineReport(
        queue="videos",
        state="running",
        began_at_ms=1,
        stages=(StageReport(name="scan", done=2), StageReport(name="encode", working=1, done=1)),
        executors=(ExecutorReport(name="host/123", tasks=1, in_work=1, done=1),),
        done=1,
        in_work=1,
        backlog=1,
    )
    world.client.report_pipeline("films", report)
    operator.open("#/pipelines").settle()
    operator.link("films").click()
    operator.sees("It is running: 1 of 3 messages finished, 1 in progress.")
    stages = operator.page.locator("ol.stages > li")
    assert [each.split("\n")[0] for each in stages.all_inner_texts()] == ["scan", "encode"]
    operator.sees("host/123")
    picture = operator.page.locator(".timeline svg")
    operator.sees("completed", within=".timeline svg")
    operator.sees("broken", within=".timeline svg")
    bars = [bar.text_content() or "" for bar in picture.locator("rect title").all()]
    held = [bar for bar in bars if "leased by executor-1" in bar]
    assert len(held) == 2
    assert picture.get_by_role("link").count() == 3
    queue.complete(second)
    world.client.report_pipeline("films", structs.replace(report, state="failed", failure="no"))
    operator.sees("It failed: no.")


@pytest.mark.parametrize(
    ("change", "tone", "beginning"),
    [
        ({"store.writable": False}, "bad", "The store takes no new messages"),
        ({"store.failed": True}, "bad", "The store has failed"),
        ({"store.reachable": False}, "bad", "The database cannot be reached"),
        ({"load.crowded": True}, "bad", "The server refuses clients"),
        (
            {"load.connections": 4_000, "load.max_connections": 4_096},
            "warning",
            "Connections: 4,000",
        ),
        ({"disk.free_bytes": 1, "disk.reserve_bytes": 1_000}, "warning", "Only 1 B are free"),
        ({"commits.p95_s": 0.5}, "warning", "Commits are slow"),
        ({"event_log.lag_s": 90.0}, "warning", "The export of the event log is 1 min 30 s behind"),
        ({"clock.wall_drift_s": -5.0}, "warning", "The machine's clock has moved"),
    ],
)
def test_what_is_wrong_with_the_server(
    operator: Visit, change: dict[str, Any], tone: str, beginning: str
) -> None:
    """A sentence says what is wrong, and another what to do; without it there is none."""
    operator.open()
    fine = {"disk.free_bytes": 10**12, "commits.p95_s": None}
    assert operator.page.evaluate(_TROUBLES, fine) == []
    ((found, what, remedy),) = operator.page.evaluate(_TROUBLES, fine | change)
    assert found == tone
    assert what.startswith(beginning)
    assert remedy.endswith(".")


def test_advice_is_applied_and_taken_back(world: World, operator: Visit) -> None:
    """For work that outlasts its leases: the differences are shown first, and it can be undone."""
    queue = world.client.queue("pictures")
    queue.create(settings={"visibility_timeout_s": 1})
    operator.open("#/queues/pictures?tab=advice").settle()
    operator.sees("Not enough data for advice: 0 attempts finished")
    queue.put_many([str(number) for number in range(60)])
    held = queue.receive(60)
    time.sleep(1.2)  # this is the work
    for message in held:
        queue.complete(message)
    # Advice is kept for a minute, unless the settings change.
    queue.update(settings={"dedup_window_s": 60})
    operator.page.reload()
    operator.sees("The visibility timeout should be lengthened from 1.0 s to 2.0 s")
    operator.page.locator(".plot canvas").nth(1).wait_for()
    operator.button("Apply…").click()
    changes = operator.page.locator("dialog tbody tr").all_inner_texts()
    assert changes[0].split() == ["Visibility", "timeout,", "s", "1", "2"]
    operator.button("Apply", within="dialog").click()
    operator.sees("The advice is in force.")
    assert queue.info().visibility_timeout_s == 2
    operator.button("Undo").click()
    operator.sees("Undone.")
    assert queue.info().visibility_timeout_s == 1
    assert queue.info().settings.advised is None

    operator.button("Apply…").click()
    operator.button("Apply", within="dialog").click()
    operator.sees("Advice in force")
    operator.button("Undo…").click()
    operator.button("Undo", within="dialog").click()
    operator.sees("The settings from before the advice are restored.")
    assert queue.info().visibility_timeout_s == 1
    assert queue.info().settings.advised is None


def test_timeouts_by_type_are_set_in_a_form(world: World, operator: Visit) -> None:
    """A rule is added, changed and removed; the others, and what the server chose, stay."""
    queue = world.client.queue("parts")
    queue.create(settings={"timeouts_by_type": {"encode.*": {"visibility_timeout_s": 600}}})
    operator.open("#/queues/parts?tab=settings").settle()
    form = operator.page.get_by_role("form", name="Timeouts by message type")

    def apply() -> list[str]:
        form.get_by_role("button", name="Review the rules").click()
        operator.button("Apply", within="dialog").wait_for()
        then = operator.page.locator("dialog td.then").all_inner_texts()
        operator.button("Apply", within="dialog").click()
        operator.page.locator("dialog").wait_for(state="detached")
        return then

    form.get_by_role("button", name="Review the rules").click()
    operator.sees("No changes.")
    form.get_by_role("button", name="Add a rule").click()
    added = form.get_by_role("group", name="New rule")
    added.get_by_label("Message type").fill("encode.*")
    form.get_by_role("button", name="Review the rules").click()
    operator.sees("Two rules have the same type.")
    added.get_by_label("Message type").fill("mail")
    added.get_by_label("Adaptive from, seconds").fill("5")
    added.get_by_label("Adaptive to, seconds").fill("90")
    assert apply() == ["5", "90"]
    assert queue.info().settings.timeouts_by_type == {
        "encode.*": wire.TypeTimeout(visibility_timeout_s=600),
        "mail": wire.TypeTimeout(adaptive=wire.Adaptive(floor_s=5, cap_s=90)),
    }

    mail = form.get_by_role("group", name="mail")
    mail.get_by_label("Adaptive from, seconds").fill("")
    mail.get_by_label("Adaptive to, seconds").fill("")
    mail.get_by_label("Timeout, seconds").fill("20")
    form.get_by_role("button", name="Remove the rule for encode.*").click()
    apply()
    left = {"mail": wire.TypeTimeout(visibility_timeout_s=20)}
    assert queue.info().settings.timeouts_by_type == left


def _settings(draw: random.Random) -> Current:
    """Return settings as they may be after advice, and after other changes since."""
    seconds = draw.choice
    bounds = Adaptive(floor_s=seconds([5, 20]), cap_s=seconds([60, 600]))
    adaptive = seconds([None, bounds])
    advised = Advised(
        visibility_timeout_s=seconds([30, 45]),
        floor_s=seconds([None, bounds.floor_s]),
        cap_s=bounds.cap_s,
        before_s=seconds([None, 10, 30, 700]),
        before_floor_s=seconds([None, 5, 20]),
        before_cap_s=seconds([60, 600]),
    )
    return Current(
        visibility_timeout_s=seconds([30, 45, 60]),
        adaptive=adaptive,
        advised=seconds([None, advised, advised, advised]),
    )


def test_advice_is_taken_back_as_by_the_command_line(operator: Visit) -> None:
    """For 400 settings drawn at random the page and ``leasehold analyze --undo`` send the same."""
    draw = random.Random(4)
    drawn = [_settings(draw) for _ in range(400)]
    operator.open()
    found = operator.page.evaluate(_UNDO, [asdict(each) for each in drawn])
    for current, undo in zip(drawn, found, strict=True):
        assert (undo and undo["patch"]) == undo_for("q", current).patch, current
