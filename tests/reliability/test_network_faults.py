"""A broken connection leaves an outcome that the documented semantics explain, and a retry is safe.

A call whose request did not arrive has no effect. A call whose answer was lost has its effect: a
put that is repeated is there twice, a get hides what it took for the length of its lease, an
update kills the old receipt, a delete that is repeated finds nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from tests.reliability.history import History, Record
from tests.reliability.killing import (
    QUEUES,
    Caller,
    Held,
    Target,
    Worker,
    finish,
    record_folder,
)
from tests.reliability.proxy import AFTER, BEFORE, HARMLESS, Fault, Proxy
from tests.reliability.running import (
    Answer,
    Asked,
    Client,
    Delivery,
    KillableServer,
    deliveries,
    eventually,
)

LONG_S: Final = 600
SHORT_S: Final = 1
NUMBERS: Final = count()
ALL: Final = [*BEFORE, *AFTER, *HARMLESS, Fault.DUPLICATE]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableServer]:
    """A server."""
    data = tmp_path_factory.mktemp("network") / "data"
    with (server := KillableServer(data, options={"--disk-reserve-mib": "4"})):
        yield server


class Scene:
    """A queue, a client at the server, and one that goes through the proxy."""

    def __init__(self, server: KillableServer, proxy: Proxy) -> None:
        self.queue = f"scene-{next(NUMBERS)}"
        self.proxy = proxy
        self.direct = Client(server.port)
        self.behind = Client(proxy.port)
        assert self.direct.create(self.queue).status == 201

    def try_call(self, fault: Fault, asked: Asked) -> Answer | None:
        """Make a call that suffers a fault; None if it brings no answer."""
        self.proxy.plan(fault)
        try:
            return self.behind.call(asked)
        except OSError:
            return None

    def put_asked(self, text: str) -> Asked:
        """Return a put."""
        body = f"<QueueMessage><MessageText>{text}</MessageText></QueueMessage>".encode()
        return self.direct.asked("POST", f"{self.queue}/messages", body=body)

    def get_asked(self, lease_s: int) -> Asked:
        """Return a get."""
        query = f"visibilitytimeout={lease_s}"
        return self.direct.asked("GET", f"{self.queue}/messages", query)

    def take(self, lease_s: int = LONG_S) -> list[Delivery]:
        """Take everything that is visible, without the proxy."""
        return self.direct.take_all(self.queue, lease_s)

    def take_one_when_back(self) -> Delivery:
        """Wait until there is something to take, and take it."""
        taken: list[Delivery] = []
        eventually(lambda: taken.extend(self.take()) or taken, "the message is visible again")  # type: ignore[func-returns-value]
        (one,) = taken
        return one

    def count(self) -> int:
        """Return how many messages there are, visible or not."""
        return self.direct.count(self.queue)


@pytest.fixture
def scene(server: KillableServer) -> Iterator[Scene]:
    """A queue of its own behind a proxy."""
    with Proxy(server.port) as proxy:
        scene = Scene(server, proxy)
        with scene.direct, scene.behind:
            yield scene


@pytest.mark.parametrize("fault", ALL)
def test_put_and_retry(scene: Scene, fault: Fault) -> None:
    """A put whose answer was lost is there, so repeating it puts a second message."""
    answer = scene.try_call(fault, scene.put_asked("text"))
    assert (answer is None) == (fault in {*BEFORE, *AFTER})
    expected = {Fault.DUPLICATE: 2, **dict.fromkeys(HARMLESS, 1)}
    if answer is None:
        retried = scene.try_call(Fault.NONE, scene.put_asked("text"))
        assert retried is not None
        assert retried.status == 201
        expected |= {**dict.fromkeys(BEFORE, 1), **dict.fromkeys(AFTER, 2)}
    taken = scene.take()
    assert [each.text for each in taken] == ["text"] * expected[fault]
    assert len({each.message_id for each in taken}) == len(taken)
    assert scene.proxy.happened[fault] >= 1


@pytest.mark.parametrize("fault", ALL)
def test_get_and_retry(scene: Scene, fault: Fault) -> None:
    """A get whose answer was lost hides the message, so repeating it finds nothing."""
    scene.direct.put(scene.queue, "text")
    answer = scene.try_call(fault, scene.get_asked(LONG_S))
    retried = scene.take()
    if fault in BEFORE:
        assert answer is None
        assert [each.dequeue_count for each in retried] == [1]
        return
    assert retried == []
    assert scene.count() == 1
    if fault in AFTER:
        assert answer is None
    elif fault in HARMLESS:
        assert answer is not None
        assert [each.text for each in deliveries(answer)] == ["text"]
    else:  # of two gets, either may be the one that is heard
        assert answer is not None
        assert len(deliveries(answer)) in {0, 1}


@pytest.mark.parametrize("fault", AFTER)
def test_what_a_lost_get_took_comes_back(scene: Scene, fault: Fault) -> None:
    """When its lease has ended the message is delivered again, and both deliveries count."""
    scene.direct.put(scene.queue, "text")
    assert scene.try_call(fault, scene.get_asked(SHORT_S)) is None
    back = scene.take_one_when_back()
    assert (back.text, back.dequeue_count) == ("text", 2)


@pytest.mark.parametrize("fault", ALL)
def test_update_and_retry(scene: Scene, fault: Fault) -> None:
    """An update whose answer was lost has killed the receipt: the retry is 404, the text is new."""
    scene.direct.put(scene.queue, "old")
    (held,) = scene.take()
    path = f"{scene.queue}/messages/{held.message_id}"
    hidden_s = SHORT_S if fault in AFTER else 0
    query = f"popreceipt={held.receipt}&visibilitytimeout={hidden_s}"
    asked = scene.direct.asked("PUT", path, query, body=scene.put_asked("new").body)
    answer = scene.try_call(fault, asked)
    if fault in HARMLESS:
        assert answer is not None
        assert answer.status == 204
    elif fault is Fault.DUPLICATE:
        assert answer is not None
        assert answer.status in {204, 404}
    else:
        assert answer is None
        retried = scene.try_call(Fault.NONE, asked)
        assert retried is not None
        if fault in BEFORE:
            assert retried.status == 204
        else:
            assert (retried.status, retried.code) == (404, "MessageNotFound")
    back = scene.take_one_when_back()
    assert (back.text, back.dequeue_count) == ("new", 2)


@pytest.mark.parametrize("fault", ALL)
def test_delete_and_retry(scene: Scene, fault: Fault) -> None:
    """A delete whose answer was lost has worked: the retry is 404 and nothing is left."""
    scene.direct.put(scene.queue, "text")
    (held,) = scene.take()
    path = f"{scene.queue}/messages/{held.message_id}"
    asked = scene.direct.asked("DELETE", path, f"popreceipt={held.receipt}")
    answer = scene.try_call(fault, asked)
    if fault in HARMLESS:
        assert answer is not None
        assert answer.status == 204
    elif fault is Fault.DUPLICATE:
        assert answer is not None
        assert answer.status in {204, 404}
    else:
        assert answer is None
        assert scene.count() == (1 if fault in BEFORE else 0)
        retried = scene.try_call(Fault.NONE, asked)
        assert retried is not None
        assert retried.status == (204 if fault in BEFORE else 404)
    assert scene.count() == 0


def random_run(data: Path, seed: int, calls: int, faults: tuple[Fault, ...]) -> History:
    """Let four clients make calls of which a third suffers a fault; drain, and check everything."""
    rng = random.Random(seed)

    def choose() -> Fault:
        return rng.choice(faults) if rng.random() < 0.33 else Fault.NONE

    server = KillableServer(data, options={"--disk-reserve-mib": "4"})
    with server, record_folder() as records, Proxy(server.port, choose) as proxy:
        with Client(server.port) as client:
            assert all(client.create(queue).status == 201 for queue in QUEUES)
        numbers, target = count(1), Target()
        files = [Record(records / f"{number}.jsonl", numbers) for number in range(4)]
        workers = [Worker(n, seed, target, file) for n, file in enumerate(files)]
        for worker in workers:
            worker.thread.start()
        target.up(proxy.port)
        eventually(
            lambda: sum(each.answered + len(each.broken) for each in workers) >= calls,
            f"{calls} calls",
            timeout_s=600,
        )
        target.close()
        for worker in workers:
            worker.thread.join()
        for file in files:
            file.close()
        assert set(proxy.happened) == {*faults, Fault.NONE}
        history = finish(server.port, records, numbers)
    print(history.summary())  # noqa: T201 - figures for a person who runs it with -s
    return history


@pytest.mark.long
def test_random_faults_are_explained(tmp_path: Path) -> None:
    """The quick part: over a bad network nothing is lost, undone, doubled, stale or early."""
    history = random_run(tmp_path / "data", 20_261_121, 1_000, (*BEFORE, *AFTER, *HARMLESS))
    assert history.violations == []
    assert history.unanswered() > 100
    assert history.recovered() > 10


@pytest.mark.slow
def test_many_random_faults_are_explained(tmp_path: Path) -> None:
    """The slow part: 30,000 calls over a bad network."""
    history = random_run(tmp_path / "data", 5, 30_000, (*BEFORE, *AFTER, *HARMLESS))
    assert history.violations == []
    assert history.unanswered() > 3_000


def test_swallowed_deletes_are_found(server: KillableServer, scene: Scene) -> None:
    """Positive control: a delete that was acknowledged and not done is seen as undone."""
    with record_folder() as records:
        numbers = count(1)
        record = Record(records / "0.jsonl", numbers)
        caller = Caller(record, QUEUES[0])
        for queue in QUEUES:
            assert scene.direct.create(queue).status in {201, 204}
        caller.put(scene.direct, "1/1", 0)
        (one,) = caller.get(scene.direct, 1, SHORT_S).taken
        scene.proxy.plan(Fault.SWALLOW)
        caller.delete(scene.behind, Held(one.message_id, one.receipt, one.text))
        record.close()
        history = finish(server.port, records, numbers)
    assert "resurrected" in {found.kind for found in history.violations}
