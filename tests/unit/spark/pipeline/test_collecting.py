"""Tasks tell, the driver listens; connections may come and go."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from leasehold.spark.pipeline.channel import (
    Address,
    Answer,
    Collector,
    Greeting,
    Hello,
    Lines,
    Link,
    TaskResult,
    Told,
    proof,
)
from leasehold.spark.pipeline.report import Figures, Spool, Who
from leasehold.worker.timing import SystemTime
from tests.patience import PATIENCE_S
from tests.unit.spark.pipeline.support import row, who

_TIME = SystemTime()


@contextmanager
def collector() -> Iterator[tuple[Collector, Spool]]:
    """Return a driver that listens."""
    spool = Spool()
    made = Collector("127.0.0.1", "127.0.0.1", stages=["scan"], spool=spool, time=_TIME)
    try:
        with made:
            yield made, spool
    finally:
        spool.close()


def link_to(
    address: Address | None,
    of: Who,
    heard: Callable[[Answer], None] = lambda _: None,
    figures: Callable[[], Figures] = Figures,
) -> Link:
    """Return a task's side, not begun."""
    return Link(address, of, figures=figures, heard=heard, time=_TIME)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for another thread; the test's time-out bounds it."""
    pause = threading.Event()
    while not is_so():
        pause.wait(0.002)


def ids(spool: Spool) -> list[str]:
    """Return the messages of all rows."""
    return [each.message_id for _, each in spool.read()]


def test_rows_and_figures_reach_the_driver_and_none_is_left() -> None:
    """What the driver has confirmed a task does not hand to Spark once more."""
    with collector() as (driver, spool):
        told = Figures(outcomes={"done": 3}, in_work=2)
        link = link_to(driver.address, who(), figures=lambda: told)
        link.start()
        for number in range(3):
            link.tell(row(f"m{number}"))
        wait_until(lambda: len(ids(spool)) == 3)
        wait_until(lambda: driver.progress(now_ms=0, backlog=None).done == 3)
        assert driver.progress(now_ms=0, backlog=None).in_work == 2
        assert link.close() == (4, [])
        wait_until(lambda: not driver.vanished())


def test_who_does_not_know_the_secret_is_not_heard() -> None:
    """A stranger's rows are not taken, and those of the task stay with it."""
    with collector() as (driver, spool):
        real = driver.address
        link = link_to(Address(real.host, real.port, "guessed"), who())
        link.tell(row("m1"))
        link.start()
        wait_until(lambda: link._pause_s > 0)
        first, rows = link.close()
        assert (first, [each.message_id for each in rows]) == (1, ["m1"])
        assert ids(spool) == []
        assert driver.progress(now_ms=0, backlog=None).tasks == 0


def test_nonsense_from_the_network_does_no_harm() -> None:
    """A port scanner does not end the listening."""
    with collector() as (driver, spool):
        address = driver.address.host, driver.address.port
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"\n", b"{}\n", b""):
            with socket.create_connection(address, 5) as stranger:
                stranger.recv(100)
                stranger.sendall(said)
        link = link_to(driver.address, who())
        link.start()
        link.tell(row("m1"))
        wait_until(lambda: ids(spool) == ["m1"])
        link.close()


def test_a_lost_connection_is_made_again_and_no_row_counts_twice() -> None:
    """Rows whose confirmation was lost are sent again, and known by their numbers."""
    with collector() as (driver, spool):
        link = link_to(driver.address, who())
        link.start()
        link.tell(row("m1"))
        wait_until(lambda: link._first == 2)
        # The confirmation is forgotten, and the connection breaks.
        with link._lock:
            link._rows.appendleft(row("m1"))
            link._first = 1
        lines = link._lines
        assert lines is not None
        lines._connection.shutdown(socket.SHUT_RDWR)
        link.tell(row("m2"))
        wait_until(lambda: ids(spool) == ["m1", "m2"])
        wait_until(lambda: not link._rows)
        assert link.close() == (3, [])


def test_what_spark_brings_in_the_end_is_taken_once() -> None:
    """Of the rows a task returns only those count that had not come before."""
    with collector() as (driver, spool):
        with speaking(driver, who()) as lines:
            lines.send(Told(1, [row("m1"), row("m2")]))
            assert msgspec.json.decode(lines.receive() or b"", type=Answer).have == 2
        left = [row("m1"), row("m2"), row("m3")]
        driver.take(TaskResult(who(), 1, left, Figures(outcomes={"done": 3})))
        assert ids(spool) == ["m1", "m2", "m3"]
        assert driver.progress(now_ms=0, backlog=None).done == 3


def test_a_wish_to_stop_reaches_those_who_are_there_and_those_who_come() -> None:
    """Also a task that begins after the signal stops."""
    heard: dict[str, threading.Event] = {"early": threading.Event(), "late": threading.Event()}
    grace: list[float | None] = []

    def hear(name: str) -> Callable[[Answer], None]:
        def note(answer: Answer) -> None:
            grace.append(answer.stop_s)
            heard[name].set()

        return note

    with collector() as (driver, _):
        early = link_to(driver.address, who("early"), hear("early"))
        early.start()
        wait_until(lambda: driver.progress(now_ms=0, backlog=None).tasks == 1)
        driver.stop(7.0)
        assert heard["early"].wait(PATIENCE_S)
        late = link_to(driver.address, who("late"), hear("late"))
        late.start()
        assert heard["late"].wait(PATIENCE_S)
        early.close()
        late.close()
    assert grace[0] == 7.0
    assert set(grace) == {7.0}


def test_a_task_that_dies_without_a_word_is_known() -> None:
    """Its figures of the moment are not counted any more, its outcomes are."""
    with collector() as (driver, _):
        with speaking(driver, who("dead")) as lines:
            figures = Figures(outcomes={"done": 5}, in_work=3)
            lines.send(Told(figures=figures))
            wait_until(lambda: driver.progress(now_ms=0, backlog=None).in_work == 3)
        wait_until(lambda: driver.progress(now_ms=0, backlog=None).tasks == 0)
        progress = driver.progress(now_ms=0, backlog=None)
        assert (progress.in_work, progress.done) == (0, 5)
        assert [each.link for each in driver.vanished()] == ["dead"]


def test_without_a_driver_rows_stay_up_to_a_limit() -> None:
    """Whoever cannot tell does not run out of memory, and says how much is missing."""
    link = link_to(None, who())
    link.start()
    for number in range(100_003):
        link.tell(row(f"m{number}"))
    first, rows = link.close()
    assert (first, len(rows), link.dropped) == (4, 100_000, 3)


@contextmanager
def speaking(driver: Collector, of: Who) -> Iterator[Lines]:
    """Connect as a task does."""
    connection = socket.create_connection((driver.address.host, driver.address.port), 10)
    lines = Lines(connection)
    try:
        greeting = msgspec.json.decode(lines.receive() or b"", type=Greeting)
        lines.send(Hello(of, proof(driver.address.secret, greeting.nonce, of.link)))
        assert msgspec.json.decode(lines.receive() or b"", type=Answer).have == 0
        yield lines
    finally:
        lines.close()


def test_the_secret_is_not_shown() -> None:
    """Logs that have an address in them do not give it away."""
    assert "hush" not in repr(Address("vm", 1, "hush"))


def test_one_task_can_be_told_to_leave_and_counts_as_over_from_then_on() -> None:
    """The others are not told; a new attempt at the task counts again."""
    with collector() as (driver, _):
        heard: dict[str, list[Answer]] = {"a": [], "b": []}
        links = [
            link_to(driver.address, Who(name, "vm:1", "vm", 7, place, 0, job=1), heard[name].append)
            for place, name in enumerate(heard)
        ]
        for each in links:
            each.start()
        wait_until(lambda: len(driver.connected()) == 2)
        assert driver.over(1) == 0
        driver.leave("a")
        wait_until(lambda: bool(heard["a"]))
        assert heard["a"][0].leave
        assert [each.link for each in driver.connected()] == ["b"]
        assert (driver.over(1), driver.over(2)) == (1, 0)
        for each in links:
            each.close()
        wait_until(lambda: driver.is_deserted)
        assert heard["b"] == []
        assert driver.over(1) == 2
        again = link_to(driver.address, Who("c", "vm:1", "vm", 7, 0, 1, job=1))
        again.start()
        wait_until(lambda: driver.over(1) == 1)
        again.close()


def test_a_task_is_idle_as_long_as_it_has_nothing_in_hand() -> None:
    """Whether it works or only holds messages that wait."""
    with collector() as (driver, _):
        figures = Figures()
        link = link_to(driver.address, who("a"), figures=lambda: figures)
        link.start()
        wait_until(lambda: [each.link for each in driver.idle()] == ["a"])
        figures.waiting = 1
        wait_until(lambda: not driver.idle())
        link.close()
