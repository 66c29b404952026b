"""Every method of both clients does its work on a real server."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from leasehold.client import (
    AsyncClient,
    Filter,
    LeaseLost,
    NewMessage,
    QueueNotFound,
    Unavailable,
    errors,
)
from leasehold.client.models import ErrorReport, LeaseRef, Progress
from tests.e2e.server import Endpoint
from tests.patience import PATIENCE_S
from tests.unit.client.support import Driver

HOUR_S = 3_600


def receive(driver: Driver, queue: Any, **options: Any) -> Any:
    """Return the one message that a receive gives."""
    (message,) = driver.do(queue.receive(visibility_timeout_s=60, **options))
    return message


def test_a_message_is_put_received_and_completed(driver: Driver, queue: Any) -> None:
    """What was sent arrives with all that travels with it, and is gone once completed."""
    trace = f"00-{'1' * 32}-{'2' * 16}-01"
    sent = driver.do(
        queue.put(
            "héllo",
            time_to_live_s=-1,
            priority=3,
            type="greeting",
            properties={"a": "b"},
            traceparent=trace,
        )
    )
    assert sent.expires_at_ms is None
    message = receive(driver, queue, holder="me")
    assert (message.id, message.text, message.dequeue_count) == (sent.id, "héllo", 1)
    assert (message.priority, message.type, message.traceparent) == (3, "greeting", trace)
    assert (message.properties, message.expires_at_ms) == ({"a": "b"}, None)
    assert message.visible_at_ms == pytest.approx(sent.inserted_at_ms + 60_000, abs=30_000)
    driver.do(queue.complete(message))
    assert driver.do(queue.receive()) == []
    with pytest.raises(errors.MessageNotFound):
        driver.do(queue.complete(message))


@pytest.mark.parametrize(
    "body", [b"\xff\x00binary", "", 'a\nb\t"\\ \u2603 \U0001f600', "x" * 65_536]
)
def test_any_body_arrives_as_it_was(driver: Driver, queue: Any, body: str | bytes) -> None:
    """Text and bytes of all kinds up to the limit survive."""
    driver.do(queue.put(body))
    expected = body.encode() if isinstance(body, str) else body
    assert driver.do(queue.peek())[0].body == expected
    assert receive(driver, queue).body == expected


def test_a_body_above_the_limit_is_refused(driver: Driver, queue: Any) -> None:
    """The error says how large it is and how large it may be."""
    with pytest.raises(errors.BodyTooLarge) as caught:
        driver.do(queue.put("x" * 65_537))
    assert (caught.value.value, caught.value.limit) == (65_537, 65_536)


def test_many_messages_at_once(driver: Driver, queue: Any) -> None:
    """Thousands go in and out in the order they were put, in few requests."""
    sent = driver.do(queue.put_many(str(number) for number in range(12_000)))
    assert len({each.id for each in sent}) == 12_000
    assert driver.do(queue.counts()).visible == 12_000
    first = driver.do(queue.receive(10_000, visibility_timeout_s=HOUR_S))
    rest = driver.do(queue.receive(10_000, visibility_timeout_s=HOUR_S))
    assert [message.text for message in first + rest] == [str(n) for n in range(12_000)]
    assert driver.do(queue.complete_many(first + rest)) == [None] * 12_000
    assert driver.do(queue.counts()).total == 0


def test_a_refused_item_does_not_keep_the_others(driver: Driver, queue: Any) -> None:
    """Unless all or none was asked for, good items are done."""
    items = [NewMessage("a"), NewMessage("b", priority=17)]
    good, bad = driver.do(queue.put_many(items))
    assert good.id
    assert isinstance(bad, errors.OutOfRange)
    assert (bad.field, bad.value, bad.maximum) == ("$.messages[1].priority", 17, 16)
    none, bad = driver.do(queue.put_many(items, atomic=True))
    assert isinstance(none, errors.NotDone)
    assert isinstance(bad, errors.OutOfRange)
    assert driver.do(queue.counts()).total == 1


def test_a_key_sent_twice_is_one_message(driver: Driver, queue: Any) -> None:
    """The second put gets the values of the first."""
    first = driver.do(queue.put("x", dedup_key="k"))
    second = driver.do(queue.put("y", dedup_key="k"))
    assert (first.duplicate, second.duplicate) == (False, True)
    assert second.id == first.id
    assert driver.do(queue.counts()).visible == 1


def test_a_lease_is_renewed(driver: Driver, queue: Any) -> None:
    """The new receipt works, with the new body; the old receipt is dead."""
    driver.do(queue.put("old"))
    message = receive(driver, queue)
    renewed = driver.do(
        queue.renew(message, HOUR_S, body="new", progress=Progress(0.5, "half way"))
    )
    assert renewed.receipt != message.receipt
    assert renewed.body == b"new"
    view = driver.do(queue.get(message.id))
    assert (view.body, view.lease.renewals) == (b"new", 1)
    assert (view.lease.progress.fraction, view.lease.progress.note) == (0.5, "half way")
    with pytest.raises(LeaseLost) as caught:
        driver.do(queue.complete(message))
    assert caught.value.reason == "superseded"
    (again,) = driver.do(queue.renew_many([renewed], HOUR_S))
    driver.do(queue.complete(LeaseRef(again.id, again.receipt)))


def test_a_failed_message_comes_back_with_its_story(driver: Driver, queue: Any) -> None:
    """Release keeps the error, and the next receive counts on."""
    driver.do(queue.put("x"))
    message = receive(driver, queue, holder="first")
    try:
        int("y")
    except ValueError as error:
        driver.do(queue.release(message, outcome="failed", error=error, delay_s=0))
    again = receive(driver, queue, holder="second")
    assert (again.dequeue_count, again.fence > message.fence) == (2, True)
    view = driver.do(queue.get(message.id))
    assert view.state == "leased"
    assert view.lease.holder == "second"
    assert view.failures == 1
    assert view.last_error.type == "ValueError"
    assert (view.attempts[0].outcome, view.attempts[0].holder) == ("failed", "first")
    assert view.attempts[0].error.fingerprint == view.last_error.fingerprint
    assert view.why.endswith(".")
    (released,) = driver.do(queue.release_many([again], delay_s=HOUR_S))
    assert released.visible_at_ms > view.inserted_at_ms + 1_000 * (HOUR_S - 60)
    assert driver.do(queue.get(message.id)).state == "deferred"


def test_poisoned_messages_are_seen_and_brought_back(
    driver: Driver, client: Any, queue: Any
) -> None:
    """Buried by a worker, listed with the reason, redriven by an operator."""
    driver.do(queue.put("bad"))
    released = driver.do(queue.bury(receive(driver, queue), ErrorReport("no use", "Bad")))
    assert released.poisoned == "buried"
    (view,) = driver.do(queue.inspect(states="poisoned"))
    assert (view.state, view.poisoned.queue) == ("poisoned", queue.name)
    assert view.queue != queue.name
    assert driver.do(queue.counts()).poisoned == 1
    dry = driver.do(queue.redrive(dry_run=True, wait_s=10))
    assert (dry.kind, dry.state, dry.matched, dry.moved) == ("redrive", "done", 1, 0)
    job = driver.do(client.wait_for_job(driver.do(queue.redrive()).job_id, poll_s=0.01))
    assert (job.state, job.moved) == ("done", 1)
    assert receive(driver, queue).body == b"bad"
    driver.do(client.delete_queue(view.queue))


def test_messages_are_purged_by_filter(driver: Driver, client: Any, queue: Any) -> None:
    """Only what the filter means goes, and progress is reported."""
    driver.do(
        queue.put_many([NewMessage(str(n), type="odd" if n % 2 else "even") for n in range(50)])
    )
    seen: list[str] = []
    job = driver.do(queue.purge(Filter(message_type="odd")))
    job = driver.do(
        client.wait_for_job(
            job.job_id, on_progress=lambda each: seen.append(each.state), poll_s=0.01
        )
    )
    assert (job.state, job.moved, seen[-1]) == ("done", 25, "done")
    assert driver.do(queue.counts()).visible == 25
    assert job.job_id in [each.job_id for each in driver.do(client.list_jobs(queue.name))]
    assert driver.do(client.get_job(job.job_id)).moved == 25
    assert driver.do(client.stop_job(job.job_id)).state == "done"
    with pytest.raises(errors.JobNotFound):
        driver.do(client.get_job("nothing"))


def test_messages_are_inspected_page_by_page(driver: Driver, queue: Any) -> None:
    """All of them come, the oldest first, whatever the size of the page."""
    driver.do(queue.put_many(str(number) for number in range(25)))
    found = driver.do(queue.inspect(page_size=7))
    assert [view.text for view in found] == [str(number) for number in range(25)]
    bare = driver.do(queue.inspect(page_size=25, body=False))
    assert {(view.body, view.body_bytes) for view in bare} == {(b"", 1), (b"", 2)}


def test_filters_find_what_they_mean(driver: Driver, queue: Any) -> None:
    """Each member of the filter reaches the server, with characters that need escaping."""
    driver.do(queue.put('{"order": {"sku": "a b+c&d=ü"}}', type="t 1"))
    driver.do(queue.put("other"))
    message = receive(driver, queue, holder="me & you")
    wanted = [
        Filter(states=("leased",)),
        Filter(message_type="t 1"),
        Filter(holder="me & you"),
        Filter(min_dequeue_count=1, max_dequeue_count=1, min_age_s=0, max_age_s=HOUR_S + 0.5),
        Filter(text="a b+c&d=ü"),
        Filter(json_path="order.sku", json_value="a b+c&d=ü"),
        Filter(json_path="order"),
    ]
    for each in wanted:
        assert [view.id for view in driver.do(queue.inspect(filter=each))] == [message.id], each
    assert driver.do(queue.inspect(filter=Filter(min_age_s=HOUR_S))) == []
    assert driver.do(queue.inspect(filter=Filter(reason="buried"))) == []
    assert driver.do(queue.inspect(filter=Filter(error="boom"))) == []


def test_an_operator_mends_a_message(driver: Driver, queue: Any) -> None:
    """Amend, end a lease and remove work without a receipt, and respect the worker."""
    sent = driver.do(queue.put("x"))
    view = driver.do(queue.amend(sent.id, body=b"\xff", priority=1, properties={"a": "b"}))
    assert (view.body, view.priority, view.properties) == (b"\xff", 1, {"a": "b"})
    view = driver.do(queue.amend(sent.id, delay_s=HOUR_S, time_to_live_s=-1))
    assert (view.state, view.expires_at_ms) == ("delayed", None)
    driver.do(queue.amend(sent.id, delay_s=0))
    message = receive(driver, queue, holder="worker")
    for attempt, options in ((queue.amend, {"priority": 2}), (queue.remove, {})):
        with pytest.raises(errors.MessageLeased) as caught:
            driver.do(attempt(sent.id, **options))
        assert caught.value.holder == "worker"
        assert caught.value.until_ms == message.visible_at_ms
    view = driver.do(queue.end_lease(sent.id, reason="stuck"))
    assert view.state == "visible"
    with pytest.raises(errors.MessageNotLeased):
        driver.do(queue.end_lease(sent.id))
    with pytest.raises(LeaseLost):
        driver.do(queue.complete(message))
    receive(driver, queue)
    driver.do(queue.remove(sent.id, force=True))
    with pytest.raises(errors.MessageNotFound):
        driver.do(queue.get(sent.id))
    with pytest.raises(errors.MessageNotFound):
        driver.do(queue.remove(sent.id))


def test_a_queue_is_set_up_and_changed(driver: Driver, client: Any) -> None:
    """Settings and metadata are kept; a member that is None goes back to its default."""
    name = f"set-{uuid4().hex}"
    queue = client.queue(name)
    with pytest.raises(QueueNotFound):
        driver.do(queue.info())
    settings = {"visibility_timeout_s": 90, "failure_policy": {"max_failures": 3}}
    made = driver.do(client.create_queue(name, metadata={"team": "a"}, settings=settings))
    assert (made.name, made.metadata, made.visibility_timeout_s) == (name, {"team": "a"}, 90)
    assert made.settings.failure_policy.max_failures == 3
    assert driver.do(queue.create()).metadata == {"team": "a"}
    with pytest.raises(errors.QueueExists):
        driver.do(queue.create(metadata={"team": "b"}))
    changed = driver.do(
        queue.update(
            metadata={"x": "y"}, settings={"visibility_timeout_s": None, "dedup_window_s": 9}
        )
    )
    assert (changed.metadata, changed.visibility_timeout_s) == ({"x": "y"}, 30)
    assert changed.settings.dedup_window_s == 9
    assert changed.settings.failure_policy.max_failures == 3
    with pytest.raises(errors.OutOfRange):
        driver.do(queue.update(settings={"visibility_timeout_s": -1}))
    driver.do(queue.put("x"))
    driver.do(queue.receive())
    info = driver.do(queue.info())
    assert (info.counts.leased, info.counts.total) == (1, 1)
    assert (info.activity.sent, info.activity.received) == (1, 1)
    found = driver.do(client.list_queues(name[:12], counts=True))
    assert [(each.name, each.counts.total) for each in found] == [(name, 1)]
    assert driver.do(client.delete_queue(name)) is None
    with pytest.raises(QueueNotFound):
        driver.do(queue.delete())


def test_a_paused_queue_gives_nothing_and_says_so(driver: Driver, queue: Any) -> None:
    """Pause, explanation and resume."""
    sent = driver.do(queue.put("x"))
    paused = driver.do(queue.pause(for_s=HOUR_S, reason="repairs"))
    assert paused.settings.pause_reason == "repairs"
    assert driver.do(queue.receive()) == []
    for explanation in (driver.do(queue.explain()), driver.do(queue.explain_message(sent.id))):
        assert explanation.sentence
        assert explanation.code
    assert driver.do(queue.resume()).settings.paused_until_ms is None
    assert receive(driver, queue).id == sent.id


def test_a_receive_waits_for_a_message(endpoint: Endpoint) -> None:
    """A message that is put while a receive waits is given to it at once."""

    async def use() -> None:
        async with AsyncClient(endpoint.url, endpoint.account, key=endpoint.key) as client:
            queue = client.queue(f"w-{uuid4().hex}")
            await queue.create()
            waiting = asyncio.create_task(queue.receive(wait_s=30, visibility_timeout_s=HOUR_S))
            # Whether the receive or the put arrives first, the receive gets the message.
            sent = await queue.put("x")
            async with asyncio.timeout(PATIENCE_S):
                (message,) = await waiting
            assert message.id == sent.id
            assert await queue.receive(wait_s=0.01) == []
            await queue.delete()

    asyncio.run(use())


def test_a_cancelled_receive_leaves_no_message_behind(endpoint: Endpoint) -> None:
    """A message put after the cancellation goes to the next receive."""

    async def use() -> None:
        async with AsyncClient(endpoint.url, endpoint.account, key=endpoint.key) as client:
            queue = client.queue(f"c-{uuid4().hex}")
            await queue.create()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await queue.receive(wait_s=60)
            await queue.put("x")
            assert len(await queue.receive(wait_s=20)) == 1
            await queue.delete()

    asyncio.run(use())


def test_a_wrong_key_is_refused(driver: Driver, endpoint: Endpoint) -> None:
    """The error is of its own class and shows no key."""
    wrong = "d3Jvbmcga2V5"
    for options in ({}, {"send_key": True}):
        client = driver.real(endpoint.url, endpoint.account, key=wrong, **options)
        with pytest.raises(errors.Unauthenticated) as caught:
            driver.do(client.queue("jobs").info())
        assert wrong not in str(caught.value)
        assert caught.value.request_id


def test_the_key_itself_is_taken_on_this_machine(driver: Driver, endpoint: Endpoint) -> None:
    """A client that sends its key needs no signature."""
    client = driver.real(endpoint.url, endpoint.account, key=endpoint.key, send_key=True)
    assert isinstance(driver.do(client.list_queues("no-such-")), list)


def test_a_connection_string_is_enough(driver: Driver, endpoint: Endpoint) -> None:
    """The string that the Azure SDKs take leads to the native API too."""
    kind = type(driver.real(endpoint.url, endpoint.account, key=endpoint.key))
    client = driver.keep(kind.from_connection_string(endpoint.connection_string))
    name = f"s-{uuid4().hex}"
    driver.do(client.create_queue(name))
    assert [each.name for each in driver.do(client.list_queues(name))] == [name]
    driver.do(client.delete_queue(name))


def test_values_out_of_range_are_explained(driver: Driver, queue: Any) -> None:
    """The server's limits reach the caller as attributes."""
    with pytest.raises(errors.OutOfRange) as caught:
        driver.do(queue.receive(0))
    assert (caught.value.field, caught.value.minimum) == ("$.max_messages", 1)
    with pytest.raises(errors.OutOfRange):
        driver.do(queue.receive(wait_s=61))
    with pytest.raises(errors.OutOfRange):
        driver.do(queue.put("x", delay_s=-1))
    assert not issubclass(errors.OutOfRange, Unavailable)
