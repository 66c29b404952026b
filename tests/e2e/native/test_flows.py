"""Sessions, claims, transactions and events with both clients on a real server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from leasehold.client import LeaseLost, errors
from leasehold.client.models import Exemption, GiveBack, LeaseRef, Outgoing, Renewal
from leasehold.client.retries import RetryPolicy
from tests.e2e.server import Endpoint, Server
from tests.unit.client.support import Driver

HOUR_S = 3_600
LATER = 20


@pytest.fixture(scope="module")
def timeless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Address of a server whose time stands still until it is told to pass."""
    options = {"--test-mode": "--clock=virtual"}
    with Server(tmp_path_factory.mktemp("timeless") / "data", options=options) as started:
        yield started


@pytest.fixture
def still(driver: Driver, timeless: Endpoint) -> Any:
    """A client of the server whose time stands still."""
    return driver.real(timeless.url, timeless.account, key=timeless.key)


@pytest.fixture
def still_queue(driver: Driver, still: Any) -> Iterator[Any]:
    """A queue there."""
    made = still.queue(f"q-{uuid4().hex}")
    driver.do(made.create())
    yield made
    driver.do(made.delete())


def fill(driver: Driver, queue: Any, count: int) -> None:
    """Put messages that say 0, 1, 2 and so on."""
    driver.do(queue.put_many(str(number) for number in range(count)))


def texts(found: list[Any]) -> list[int]:
    """Return what messages say."""
    return [int(message.text) for message in found]


def name() -> str:
    """Return a name that nobody else uses."""
    return f"n-{uuid4().hex}"


# --- sessions ------------------------------------------------------------------------------------


def test_a_wish_to_stop_reaches_the_worker(driver: Driver, client: Any, queue: Any) -> None:
    """By a heartbeat from the background, and by a renewal."""
    asked = threading.Event()
    session = client.session("me", timeout_s=2, on_cancel=lambda _: asked.set())
    driver.do(session.open())
    fill(driver, queue, 1)
    (message,) = driver.do(queue.receive(visibility_timeout_s=HOUR_S, session=session))
    assert message.session == session.id
    view = driver.do(queue.cancel(message.id, "wrong"))
    assert (view.lease.holder, view.session, view.cancel.reason) == ("me", session.id, "wrong")
    driver.wait(asked)
    assert session.cancelled(message).reason == "wrong"
    assert driver.do(queue.renew(message, HOUR_S)).cancel.reason == "wrong"
    driver.do(driver.named(session, "close")())
    assert driver.do(client.get_session(session.id)).state == "ended"
    view = driver.do(queue.get(message.id))
    assert (view.state, view.attempts[-1].outcome) == ("visible", "interrupted")


def test_a_session_that_an_operator_ends(driver: Driver, client: Any, queue: Any) -> None:
    """The worker hears of it in the background, and its messages are free."""
    over = threading.Event()
    session = client.session("me", timeout_s=2, on_lost=lambda _: over.set())
    driver.do(session.open())
    fill(driver, queue, 1)
    driver.do(queue.receive(visibility_timeout_s=HOUR_S, session=session))
    assert driver.do(client.end_session(session.id, "upgrade")).reason == "upgrade"
    driver.wait(over)
    with pytest.raises(errors.SessionOver) as caught:
        driver.do(queue.receive(session=session))
    assert caught.value.state == "ended"
    assert len(driver.do(queue.receive())) == 1
    driver.do(driver.named(session, "close")())


def test_a_session_that_is_silent_is_lost(driver: Driver, still: Any, still_queue: Any) -> None:
    """All its leases end, however long they are; a late heartbeat is refused."""
    session = driver.do(still.session("me", heartbeat=None).open())
    fill(driver, still_queue, 3)
    held = driver.do(still_queue.receive(3, visibility_timeout_s=HOUR_S, session=session))
    driver.do(still.test.advance(10))
    session.progress(held[0], 0.5, "half way")
    assert driver.do(session.beat()).lost == ()
    view = driver.do(still_queue.get(held[0].id))
    assert view.lease.progress.note == "half way"
    driver.do(still.test.advance(10))
    assert driver.do(still_queue.counts()).leased == 3
    driver.do(still.test.advance(LATER))
    assert driver.do(still_queue.counts()).visible == 3
    assert driver.do(still.get_session(session.id)).state == "lost"
    with pytest.raises(LeaseLost):
        driver.do(still_queue.complete(held[0]))
    with pytest.raises(errors.SessionOver):
        driver.do(session.beat())
    assert session.is_lost


def test_work_that_does_not_get_on_is_taken_away(
    driver: Driver, still: Any, still_queue: Any
) -> None:
    """From a worker that lives; the heartbeat says which lease is gone."""
    gone: list[str] = []
    session = still.session(
        "me", timeout_s=HOUR_S, progress_timeout_s=60, heartbeat=None, on_lease_lost=gone.append
    )
    driver.do(session.open())
    fill(driver, still_queue, 2)
    first, second = driver.do(still_queue.receive(2, visibility_timeout_s=HOUR_S, session=session))
    driver.do(still.test.advance(50))
    session.progress(first)
    driver.do(session.beat())
    driver.do(still.test.advance(LATER))
    session.progress(first)
    session.progress(second)
    driver.do(session.beat())
    assert gone == [second.id]
    driver.do(still_queue.complete(first))
    driver.do(driver.named(session, "close")())


def test_answers_that_are_lost(driver: Driver, still: Any, still_queue: Any) -> None:
    """The background goes on, and what is safe to repeat is repeated."""
    asked = threading.Event()
    session = still.session("me", timeout_s=2, on_cancel=lambda _: asked.set())
    driver.do(session.open())
    fill(driver, still_queue, 1)
    (message,) = driver.do(still_queue.receive(visibility_timeout_s=60, session=session))
    driver.do(still_queue.cancel(message.id))
    driver.do(still.test.faults(drop_answers=2))
    driver.wait(asked)
    driver.do(still.test.clear_faults())
    driver.do(driver.named(session, "close")())


# --- claims --------------------------------------------------------------------------------------


def test_a_claim_from_its_opening_to_its_end(driver: Driver, queue: Any) -> None:
    """It can be opened and read again and again; settled once, and no more."""
    fill(driver, queue, 10)
    stream = queue.stream("totals")
    assert driver.do(stream.attach()).last_settled == 0
    claim = driver.do(stream.open(1, limit=7, lease_s=60, holder="me"))
    assert (claim.size, claim.state, claim.replayed) == (7, "open", False)
    assert driver.do(stream.open(1, limit=9, lease_s=60)).replayed
    assert texts(driver.do(stream.read(1, page_size=2))) == list(range(7))
    parts = [driver.do(stream.read(1, part, 3)) for part in range(3)]
    assert [number for part in parts for number in texts(part)] == list(range(7))
    assert parts[0][0].under == "totals/1"
    counts = driver.do(queue.counts())
    assert (counts.visible, counts.leased, counts.claimed) == (3, 7, 7)
    extended = driver.do(stream.extend(1, 120))
    assert extended.until_ms > claim.until_ms
    assert driver.do(stream.park(1, HOUR_S)).state == "parked"
    settled = driver.do(stream.settle(1))
    assert (settled.completed, settled.already) == (7, False)
    assert driver.do(stream.settle(1)).already
    with pytest.raises(errors.ClaimSettled):
        driver.do(stream.open(1, limit=1, lease_s=60))
    assert driver.do(stream.open(2, limit=10, lease_s=60)).size == 3
    driver.do(stream.give_back(2))
    assert driver.do(queue.counts()).visible == 3
    (listed,) = driver.do(queue.streams())
    assert (listed.stream, listed.last_settled, listed.claims) == ("totals", 1, ())
    driver.do(stream.delete())
    with pytest.raises(errors.StreamNotFound):
        driver.do(stream.get())


def test_a_claim_as_record_batches(driver: Driver, queue: Any) -> None:
    """The same messages in the same order, in as many pages as it takes."""
    fill(driver, queue, 100)
    stream = queue.stream("totals")
    driver.do(stream.attach())
    driver.do(stream.open(1, limit=100, lease_s=60))
    batches = driver.do(stream.read_arrow(1, page_size=30))
    assert [batch.num_rows for batch in batches] == [30, 30, 30, 10]
    table = pa.Table.from_batches(batches)
    assert [int(body) for body in table.column("body").to_pylist()] == list(range(100))
    ids = [message.id for message in driver.do(stream.read(1))]
    assert table.column("message_id").to_pylist() == ids
    assert driver.do(stream.read_arrow(1, 0, 200)) == []


def test_nothing_to_claim(driver: Driver, queue: Any) -> None:
    """No claim is made, and the number stays free."""
    stream = queue.stream("totals")
    driver.do(stream.attach())
    assert driver.do(stream.open(1, limit=7, lease_s=60)) is None
    with pytest.raises(errors.ClaimNotFound):
        driver.do(stream.get_claim(1))
    with pytest.raises(errors.ClaimOutOfTurn) as caught:
        driver.do(stream.open(2, limit=7, lease_s=60))
    assert caught.value.expected == 1


def test_a_newer_consumer_fences_the_older_one(driver: Driver, queue: Any) -> None:
    """Which can still read, and nothing else."""
    fill(driver, queue, 1)
    older, newer = queue.stream("totals"), queue.stream("totals")
    driver.do(older.attach())
    driver.do(older.open(1, limit=1, lease_s=60))
    driver.do(newer.attach())
    uses: tuple[Callable[[], Any], ...] = (
        lambda: older.open(1, limit=1, lease_s=60),
        lambda: older.extend(1, 60),
        lambda: older.give_back(1),
        lambda: older.settle(1),
    )
    for use in uses:
        with pytest.raises(errors.StaleToken) as caught:
            driver.do(use())
        assert caught.value.token == newer.token
    assert len(driver.do(older.read(1))) == 1
    assert driver.do(newer.open(1, limit=1, lease_s=60)).replayed


def test_settling_sends_publishes_and_exempts(driver: Driver, client: Any, queue: Any) -> None:
    """In one transaction: an exemption that is wrong keeps all of it from happening."""
    fill(driver, queue, 5)
    stream = queue.stream("totals")
    driver.do(stream.attach())
    driver.do(stream.open(1, limit=5, lease_s=60))
    members = driver.do(stream.read(1))
    transaction = client.transaction(name())
    driver.do(transaction.stage(["staged"], queue=queue.name))
    along = {"publish": [transaction.name], "sends": [Outgoing("sent", queue=queue.name)]}
    with pytest.raises(errors.MemberNotFound):
        driver.do(stream.settle(1, exemptions=[Exemption(1, str(uuid4()))], **along))
    assert driver.do(queue.counts()).total == 5
    bad = [Exemption(1, members[0].id, "failed", delay_s=HOUR_S), Exemption(1, members[1].id)]
    settled = driver.do(stream.settle(1, exemptions=bad, **along))
    assert (settled.completed, settled.exempted, settled.published) == (3, 2, 1)
    found = {view.text: view.state for view in driver.do(queue.inspect())}
    assert found == {"0": "deferred", "1": "visible", "staged": "visible", "sent": "visible"}


def test_a_claim_that_nobody_extends_lapses(driver: Driver, still: Any, still_queue: Any) -> None:
    """It opens again while it is whole; once others have its members it must be said."""
    fill(driver, still_queue, 4)
    stream = still_queue.stream("totals")
    driver.do(stream.attach())
    driver.do(stream.open(1, limit=4, lease_s=60))
    driver.do(still.test.advance(61))
    with pytest.raises(errors.ClaimLapsed):
        driver.do(stream.read(1))
    assert driver.do(stream.open(1, limit=4, lease_s=60)).state == "open"
    assert texts(driver.do(stream.read(1))) == [0, 1, 2, 3]
    driver.do(still.test.advance(61))
    (taken,) = driver.do(still_queue.receive(visibility_timeout_s=HOUR_S))
    with pytest.raises(errors.ClaimBroken) as caught:
        driver.do(stream.open(1, limit=4, lease_s=60))
    assert (caught.value.size, caught.value.lost) == (4, 1)
    claim = driver.do(stream.open(1, limit=4, lease_s=60, accept_loss=True))
    assert (claim.remaining, claim.lost) == (3, 1)
    settled = driver.do(stream.settle(1))
    assert (settled.completed, settled.lost) == (3, 1)
    driver.do(still_queue.complete(taken))


# --- transactions --------------------------------------------------------------------------------


def test_staged_messages_are_seen_when_they_are_published(
    driver: Driver, client: Any, queue: Any
) -> None:
    """All at once; a second time changes nothing, and nothing can be added."""
    transaction = client.transaction(name())
    driver.do(transaction.stage(["a", "b"], queue=queue.name))
    again = client.transaction(transaction.name)
    assert driver.do(again.stage(["a", "b"], queue=queue.name)).duplicate
    driver.do(again.stage([Outgoing("c", queue=queue.name)]))
    counts = driver.do(queue.counts())
    assert (counts.visible, counts.staged) == (0, 3)
    (first, *_) = driver.do(queue.inspect(states=["staged"]))
    assert (first.state, first.under) == ("staged", transaction.name)
    found = driver.do(transaction.get())
    assert (found.state, found.rows, found.parts[0].chunks) == ("staged", 3, 2)
    published = driver.do(transaction.publish())
    assert (published.rows, published.already) == (3, False)
    assert driver.do(transaction.publish()).already
    assert driver.do(queue.counts()).visible == 3
    with pytest.raises(errors.AlreadyPublished):
        driver.do(transaction.stage(["d"], queue=queue.name, chunk=0))
    assert driver.do(transaction.discard()).published
    names = [each.name for each in driver.do(client.transactions("published", limit=1_000))]
    assert transaction.name in names


def test_of_two_tries_one_part_is_published(driver: Driver, client: Any, queue: Any) -> None:
    """The others are dropped."""
    transaction = client.transaction(name())
    for part in ("task-1-try-1", "task-1-try-2", "task-2-try-1"):
        driver.do(transaction.stage([part], queue=queue.name, part=part))
    with pytest.raises(errors.StagedNotFound):
        driver.do(transaction.publish(["task-3-try-1"]))
    assert driver.do(transaction.publish(["task-1-try-2", "task-2-try-1"])).rows == 2
    found = sorted(message.text for message in driver.do(queue.receive(10)))
    assert found == ["task-1-try-2", "task-2-try-1"]
    dropped = client.transaction(name())
    driver.do(dropped.stage(["x"], queue=queue.name))
    assert driver.do(dropped.discard()).rows == 1
    with pytest.raises(errors.StagedNotFound):
        driver.do(dropped.get())


def test_record_batches_are_staged(driver: Driver, client: Any, queue: Any) -> None:
    """In chunks of 10,000 rows, which a second run stages no second time."""
    bodies = [str(number) for number in range(12_000)]
    batch = pa.record_batch({"body": bodies, "priority": pa.array([3] * 12_000, pa.int8())})
    transaction = client.transaction(name())
    staged = driver.do(transaction.stage_arrow(batch, queue=queue.name))
    assert (staged.rows, staged.chunks, staged.duplicate) == (12_000, 2, False)
    again = client.transaction(transaction.name)
    assert driver.do(again.stage_arrow(batch, queue=queue.name)).duplicate
    assert driver.do(transaction.publish()).rows == 12_000
    first, second = driver.do(queue.receive(2))
    assert (first.text, second.text, first.priority) == ("0", "1", 3)


def test_staged_keys(driver: Driver, client: Any, queue: Any) -> None:
    """What was sent before under its key is dropped and counted, in JSON and in Arrow."""
    driver.do(queue.put("first", dedup_key="one"))
    keyed = [Outgoing(key, queue=queue.name, dedup_key=key) for key in ("one", "two", "two")]
    transaction = client.transaction(name())
    driver.do(transaction.stage(keyed))
    batch = pa.record_batch({"body": ["two", "three", "none"], "dedup_key": ["two", "three", None]})
    driver.do(transaction.stage_arrow(batch, queue=queue.name))
    for already in (False, True):
        published = driver.do(transaction.publish())
        assert (published.rows, published.duplicates, published.already) == (3, 3, already)
    assert driver.do(transaction.get()).duplicates == 3
    assert driver.do(queue.put("again", dedup_key="three")).duplicate
    received = driver.do(queue.receive(9))
    assert [message.text for message in received] == ["first", "two", "three", "none"]


def test_mistakes_of_staging(driver: Driver, client: Any, queue: Any) -> None:
    """Nothing is staged, and the reason has a class of its own."""
    transaction = client.transaction(name())
    with pytest.raises(errors.ChunkOutOfTurn) as caught:
        driver.do(transaction.stage(["x"], queue=queue.name, chunk=5))
    assert caught.value.expected == 0
    with pytest.raises(errors.QueueNotFound):
        driver.do(transaction.stage(["x"], queue="there-is-no-such-queue", chunk=0))
    with pytest.raises(errors.StagedNotFound):
        driver.do(transaction.publish())
    assert driver.do(transaction.publish([])).rows == 0


def test_a_commit_is_all_or_nothing(driver: Driver, client: Any, queue: Any) -> None:
    """Over several queues; with a name it is done once, however often it is sent."""
    other = client.queue(f"q-{uuid4().hex}")
    driver.do(other.create())
    fill(driver, queue, 3)
    done, given, kept = driver.do(queue.receive(3, visibility_timeout_s=60))
    dead = LeaseRef(done.id, "A" * 36, queue=queue.name)
    parts = {
        "send": [Outgoing("x", queue=other.name)],
        "release": [GiveBack(given, "failed", HOUR_S)],
        "renew": [Renewal(kept, HOUR_S)],
    }
    with pytest.raises((LeaseLost, errors.ServerProblem)):
        driver.do(client.commit(complete=[dead], **parts))
    assert driver.do(other.counts()).total == 0
    commit = name()
    committed = driver.do(client.commit(complete=[done], **parts, name=commit))
    assert (len(committed.sent), len(committed.released)) == (1, 1)
    assert committed.renewed[0].receipt != kept.receipt
    assert driver.do(client.commit(complete=[done], **parts, name=commit)).already
    assert driver.do(other.counts()).total == 1
    counts = driver.do(queue.counts())
    assert (counts.leased, counts.deferred, counts.total) == (1, 1, 2)
    driver.do(queue.complete(committed.renewed[0]))
    driver.do(other.delete())


# --- events and bodies ---------------------------------------------------------------------------


def test_the_story_of_a_message(driver: Driver, client: Any, queue: Any) -> None:
    """Every change in its order, also when the message is gone; part of the account's log."""
    fill(driver, queue, 1)
    (message,) = driver.do(queue.receive(holder="me"))
    driver.do(queue.release(message, outcome="failed", delay_s=0))
    (message,) = driver.do(queue.receive())
    driver.do(queue.complete(message))
    story = driver.do(queue.trace(message.id, page_size=2))
    types = [event.type for event in story]
    assert types == ["put", "received", "released", "received", "completed"]
    assert (story[1].holder, story[2].reason) == ("me", "failed")
    after = story[0].seq - 1
    log = driver.do(client.events(after, page_size=3))
    own = [event for event in log if event.message_id == message.id]
    assert own == story
    assert driver.do(client.event_page(log[-1].seq)).events == ()
    assert driver.do(client.event_page(limit=1)).last_seq >= log[-1].seq


def test_large_bodies(driver: Driver, queue: Any) -> None:
    """As large as the queue takes, in one request of its own or among others."""
    large = bytes(range(256)) * 8_192
    with pytest.raises(errors.BodyTooLarge):
        driver.do(queue.put_body(large))
    driver.do(queue.update(settings={"max_body_bytes": len(large)}))
    sent = driver.do(queue.put_body(large, type="picture"))
    assert driver.do(queue.get_body(sent.id)) == large
    assert driver.do(queue.get(sent.id)).body_bytes == len(large)
    (message,) = driver.do(queue.receive())
    assert (message.body, message.type) == (large, "picture")
    driver.do(queue.complete(message))
    with pytest.raises(errors.BodyTooLarge):
        driver.do(queue.put_body(large + b"x"))
    empty = driver.do(queue.put_body(b""))
    assert driver.do(queue.get_body(empty.id)) == b""


def test_time_passes_when_it_is_told_to(driver: Driver, still: Any, still_queue: Any) -> None:
    """And messages that are due come."""
    before_ms = driver.do(still.test.now_ms())
    driver.do(still_queue.put("x", delay_s=HOUR_S))
    assert driver.do(still_queue.receive()) == []
    assert driver.do(still.test.advance(HOUR_S)) == before_ms + HOUR_S * 1_000
    assert len(driver.do(still_queue.receive())) == 1


def test_a_put_whose_answer_is_lost(
    driver: Driver, timeless: Endpoint, still: Any, still_queue: Any
) -> None:
    """It is done and not repeated without a key; a transaction is gone on with."""
    driver.do(still.test.faults(drop_answers=1))
    with pytest.raises(errors.ConnectionFailed) as caught:
        driver.do(still_queue.put("x"))
    assert caught.value.outcome_unknown
    assert driver.do(still_queue.counts()).total == 1
    transaction = still.transaction(name())
    driver.do(still.test.faults(drop_answers=1))
    driver.do(transaction.stage(["y"], queue=still_queue.name))
    assert driver.do(transaction.publish()).rows == 1
    once = driver.real(
        timeless.url, timeless.account, key=timeless.key, retries=RetryPolicy(attempts=1)
    )
    driver.do(still.test.faults(drop_answers=1))
    with pytest.raises(errors.ConnectionFailed):
        driver.do(once.commit(send=[Outgoing("z", queue=still_queue.name)], name=transaction.name))
    assert driver.do(still.test.get_faults()).drop_answers == 0


def test_only_a_server_for_tests_takes_orders(driver: Driver, client: Any) -> None:
    """Any other has no such address."""
    uses: tuple[Callable[[], Any], ...] = (
        client.test.now_ms,
        lambda: client.test.advance(1),
        client.test.get_faults,
    )
    for use in uses:
        with pytest.raises(errors.ServerProblem, match="no-such-route"):
            driver.do(use())
