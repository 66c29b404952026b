"""Sessions: heartbeats in the background, what they tell, and what becomes of one that is lost."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from leasehold.client import _sessions as sessions
from leasehold.client.errors import (
    ConnectionFailed,
    OutOfRange,
    Problem,
    SessionNotFound,
    SessionOver,
    problem_error,
)
from leasehold.client.models import Beat, CancelNotice, LeaseRef, SessionInfo
from leasehold.client.retries import NO_RETRIES
from leasehold.testing.time import ManualClock
from tests.unit.client.support import ID, SESSION, Driver, answer, problem

BEAT = {"until_ms": 17_000, "cancels": [], "lost": []}
CANCEL = {"id": ID, "queue": "jobs", "reason": "wrong", "at_ms": 9}
NOTICE = CancelNotice(ID, "jobs", "wrong", 9)
OVER = problem("session-over", 409, state="lost")
LOST = httpx.ReadTimeout("")


class Server:
    """Opens sessions; answers heartbeats in turn, and with the last answer from then on."""

    def __init__(self, *beats: httpx.Response | Exception) -> None:
        self._beats = list(beats) or [answer(BEAT)]
        self._awaited: list[tuple[int, threading.Event]] = []
        self.requests: list[httpx.Request] = []
        self.receive: httpx.Response = answer({"messages": []})
        self.end: httpx.Response | Exception = answer(SESSION | {"state": "ended"})

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        self.requests.append(request)
        for count, event in self._awaited:
            if len(self.told) >= count:
                event.set()
        reply = self._reply(request.url.path.rpartition("/")[2])
        if isinstance(reply, Exception):
            raise reply
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)

    def _reply(self, verb: str) -> httpx.Response | Exception:
        if verb == "heartbeat":
            return self._beats.pop(0) if len(self._beats) > 1 else self._beats[0]
        known = {"sessions": answer(SESSION, 201), "end": self.end, "receive": self.receive}
        return known[verb]

    def after(self, count: int) -> threading.Event:
        """Return an event that is set once so many heartbeats have come."""
        event = threading.Event()
        self._awaited.append((count, event))
        return event

    @property
    def asked(self) -> list[str]:
        """The last part of each path."""
        return [request.url.path.rpartition("/")[2] for request in self.requests]

    @property
    def told(self) -> list[Any]:
        """The JSON of each heartbeat."""
        return [
            json.loads(request.content)
            for request in list(self.requests)
            if request.url.path.endswith("/heartbeat")
        ]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats every two milliseconds."""
    monkeypatch.setattr(sessions, "BEATS_PER_TIMEOUT", 8_000)


@contextmanager
def opened(driver: Driver, server: Server, **options: Any) -> Iterator[Any]:
    """Yield an open session of a client that does not repeat calls."""
    client = driver.client(server, retries=NO_RETRIES)
    session = client.session("me", **options)
    driver.do(driver.named(session, "__enter__")())
    try:
        yield session
    finally:
        driver.do(driver.named(session, "__exit__")(None, None, None))


def beat_by_hand(driver: Driver, server: Server, **options: Any) -> Any:
    """Return an open session that sends no heartbeats by itself."""
    client = driver.client(server, retries=NO_RETRIES)
    return driver.do(client.session("me", heartbeat=None, **options).open())


def test_a_session_is_opened_and_ended(driver: Driver) -> None:
    """To enter it opens it, to leave it ends it; what it is told goes along."""
    server = Server()
    options = {"timeout_s": 20, "progress_timeout_s": 60, "heartbeat": None}
    with opened(driver, server, **options) as session:
        assert (session.id, session.holder) == ("s1", "me")
        assert session.info.timeout_s == 16
        assert not session.is_lost
        assert not session.is_overdue
        assert repr(session).endswith("Session s1 holder='me'>")
    assert server.asked == ["sessions", "end"]
    assert json.loads(server.requests[0].content) == {
        "holder": "me",
        "timeout_s": 20,
        "progress_timeout_s": 60,
    }
    driver.do(driver.named(session, "close")())
    assert server.asked == ["sessions", "end"]


def test_it_beats_until_it_is_closed(driver: Driver, fast: None) -> None:
    """Heartbeats come by themselves, and none after the end."""
    server = Server()
    third = server.after(3)
    with opened(driver, server) as session:
        driver.wait(third)
        assert session.until_ms == 17_000
    assert server.asked[-1] == "end"
    assert server.told[:3] == [{}, {}, {}]
    driver.do(driver.client(server).session("other", heartbeat=None).open())
    assert server.asked[-2:] == ["end", "sessions"]


@pytest.mark.parametrize(
    "failure",
    [
        LOST,
        httpx.ConnectError("refused"),
        problem("overloaded", 503, retry_after_s=0),
        problem("store-failed", 503),
        problem("unauthenticated", 401),
        problem("out-of-range", 400),
        httpx.Response(502, text="Bad Gateway"),
    ],
)
def test_a_failed_heartbeat_is_tried_again(
    driver: Driver, fast: None, failure: httpx.Response | Exception
) -> None:
    """A stall, a lost answer and a refusal raise nothing; the session goes on."""
    server = Server(failure, failure, answer(BEAT))
    fourth = server.after(4)
    with opened(driver, server) as session:
        driver.wait(fourth)
        session.check()
        assert session.until_ms == 17_000


def test_a_lost_session_is_noticed(driver: Driver, fast: None) -> None:
    """Its heartbeats stop, whoever uses it hears why, and it is not ended once more."""
    server = Server(answer(BEAT), OVER)
    heard: list[SessionOver] = []
    called = threading.Event()

    def on_lost(error: SessionOver) -> None:
        heard.append(error)
        called.set()

    with opened(driver, server, on_lost=on_lost) as session:
        driver.wait(called)
        assert session.is_lost
        asked = len(server.requests)
        queue = driver.client(server).queue("jobs")
        for use in (
            lambda: session.progress(ID, 0.5),
            lambda: session.cancelled(ID),
            session.check,
            lambda: driver.do(queue.receive(session=session)),
            lambda: driver.do(session.beat()),
        ):
            with pytest.raises(SessionOver) as caught:
                use()
            assert (caught.value.state, caught.value.status) == ("lost", 409)
        assert len(server.requests) == asked
    assert "end" not in server.asked
    assert [error.state for error in heard] == ["lost"]


def test_a_receive_names_its_session(driver: Driver) -> None:
    """So what it brings goes back to the queue when the session is lost."""
    server = Server()
    session = beat_by_hand(driver, server)
    driver.do(driver.client(server).queue("jobs").receive(session=session))
    assert json.loads(server.requests[-1].content)["session"] == "s1"


def test_a_heartbeat_by_hand_is_repeated_like_any_call(driver: Driver) -> None:
    """Those that come by themselves are not: the next one is as good."""
    server = Server(LOST, answer(BEAT))
    session = driver.do(driver.client(server).session("me", heartbeat=None).open())
    driver.do(session.beat())
    assert len(server.told) == 2


def test_a_receive_that_is_refused_is_noticed(driver: Driver) -> None:
    """The session is known to be over from then on, also where it is not known any more."""
    for refusal in (OVER, problem("session-not-found", 404)):
        server = Server()
        heard: list[SessionOver] = []
        session = beat_by_hand(driver, server, on_lost=heard.append)
        server.receive = refusal
        queue = driver.client(server).queue("jobs")
        with pytest.raises(SessionOver):
            driver.do(queue.receive(session=session))
        assert session.is_lost
        assert len(heard) == 1
    with pytest.raises(SessionNotFound):
        driver.do(queue.receive(session="s1"))


def test_progress_is_told_with_the_next_heartbeat(driver: Driver) -> None:
    """Once, the latest of each message; without figures it is only a sign."""
    server = Server()
    session = beat_by_hand(driver, server)
    session.progress(LeaseRef("a", "r"), 0.25, "x" * 2_000)
    session.progress("b", 0.5)
    session.progress("b", 0.75)
    session.progress("c")
    assert driver.do(session.beat()) == Beat(17_000)
    driver.do(session.beat())
    told = {"a": {"fraction": 0.25, "note": "x" * 1_024}, "b": {"fraction": 0.75}, "c": None}
    assert server.told == [{"progress": told}, {}]
    with pytest.raises(ValueError, match=r"0 to 1, not 1\.5"):
        session.progress("a", 1.5)


def test_progress_that_did_not_arrive_is_told_again(driver: Driver) -> None:
    """Unless there is newer; what the server does not take is dropped, and the session lives."""
    refusal = problem("out-of-range", 400)
    server = Server(LOST, answer(BEAT), refusal, answer(BEAT))
    session = beat_by_hand(driver, server)
    session.progress("a", 0.25)
    session.progress("b", 0.5)
    with pytest.raises(ConnectionFailed):
        driver.do(session.beat())
    session.progress("b", 0.75)
    driver.do(session.beat())
    assert server.told[1] == {"progress": {"a": {"fraction": 0.25}, "b": {"fraction": 0.75}}}
    session.progress("a", 0.3)
    with pytest.raises(OutOfRange):
        driver.do(session.beat())
    driver.do(session.beat())
    assert server.told[3] == {}


def test_much_progress_takes_several_heartbeats(
    driver: Driver, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One heartbeat tells as much as the server takes, and the rest follows."""
    monkeypatch.setattr(sessions, "MAX_PROGRESS", 2)
    server = Server()
    session = beat_by_hand(driver, server)
    for number in range(5):
        session.progress(str(number))
    for _ in range(3):
        driver.do(session.beat())
    assert [list(told["progress"]) for told in server.told] == [["0", "1"], ["2", "3"], ["4"]]
    monkeypatch.setattr(sessions, "MAX_PROGRESS_BYTES", 6 * 1_025 + 100)
    session.progress("x", note="é" * 1_024)
    session.progress("y")
    driver.do(session.beat())
    assert list(server.told[-1]["progress"]) == ["x"]


def test_a_wish_to_stop_is_heard(driver: Driver) -> None:
    """The callback comes once for each wish; it is over when the server says it no more."""
    again = CANCEL | {"at_ms": 10}
    bodies = [BEAT | {"cancels": [CANCEL]}] * 2 + [BEAT | {"cancels": [again]}, BEAT]
    server = Server(*map(answer, bodies))
    heard: list[CancelNotice] = []
    session = beat_by_hand(driver, server, on_cancel=heard.append)
    assert session.cancelled(ID) is None
    driver.do(session.beat())
    assert session.cancelled(LeaseRef(ID, "r")) == NOTICE
    driver.do(session.beat())
    assert heard == [NOTICE]
    driver.do(session.beat())
    assert [notice.at_ms for notice in heard] == [9, 10]
    driver.do(session.beat())
    assert session.cancelled(ID) is None


def test_a_lease_that_is_gone_is_heard_of(driver: Driver) -> None:
    """Of the messages whose progress was told."""
    server = Server(answer(BEAT | {"lost": ["a"]}))
    heard: list[str] = []
    session = beat_by_hand(driver, server, on_lease_lost=heard.append)
    session.progress("a")
    driver.do(session.beat())
    assert heard == ["a"]


def test_a_callback_that_fails_does_not_stop_the_heart(
    driver: Driver, fast: None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the heartbeats go on."""
    server = Server(answer(BEAT | {"cancels": [CANCEL]}))
    third = server.after(3)

    def fail(notice: CancelNotice) -> None:
        raise RuntimeError(notice.id)

    with opened(driver, server, on_cancel=fail):
        driver.wait(third)
    assert "a callback of a session failed" in caplog.text


def test_a_closed_client_ends_the_heartbeats(
    driver: Driver, fast: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is raised or logged as an error; the session is left to its timeout."""
    caplog.set_level(logging.INFO, "leasehold.client")
    server = Server()
    second = server.after(2)
    client = driver.client(server)
    session = driver.do(client.session("me").open())
    driver.wait(second)
    driver.do(driver.named(client, "close")())
    driver.do(driver.named(session, "close")())
    assert "end" not in server.asked
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "could not be ended: the client is closed" in caplog.text


def test_an_end_that_fails_is_not_raised(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    """The session is lost by itself then."""
    server = Server()
    server.end = httpx.ConnectError("refused")
    with opened(driver, server, heartbeat=None):
        pass
    assert server.asked.count("end") == 1  # who ends does not wait for more tries
    assert "session s1 could not be ended" in caplog.text


def test_mistakes(driver: Driver) -> None:
    """A session that is not open, is closed, or is opened twice."""
    server = Server()
    client = driver.client(server)
    queue = client.queue("jobs")
    with pytest.raises(ValueError, match="'thread', 'task' or None"):
        client.session("me", heartbeat="process")
    session = client.session("me", heartbeat=None)
    assert session.info is None
    assert "not open" in repr(session)
    driver.do(driver.named(session, "close")())
    for use in (session.check, lambda: session.id, lambda: driver.do(session.beat())):
        with pytest.raises(RuntimeError, match="not open"):
            use()
    assert server.requests == []
    driver.do(session.open())
    with pytest.raises(RuntimeError, match="opened once"):
        driver.do(session.open())
    driver.do(driver.named(session, "close")("enough"))
    assert json.loads(server.requests[-1].content) == {"reason": "enough"}
    with pytest.raises(RuntimeError, match="closed"):
        driver.do(queue.receive(session=session))


def test_opening_that_failed_can_be_repeated(driver: Driver) -> None:
    """Nothing runs in the background until the server has said yes; a lost answer is not tried
    again, for the session would belong to nobody.
    """
    replies: list[Any] = [LOST, answer(SESSION, 201)]

    def handler(request: httpx.Request) -> httpx.Response:
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        assert isinstance(reply, httpx.Response)
        return reply

    session = driver.client(handler).session("me", heartbeat=None)
    with pytest.raises(ConnectionFailed):
        driver.do(session.open())
    assert driver.do(session.open()).id == "s1"


def test_a_heartbeat_does_not_wait_long_for_its_answer(driver: Driver, fast: None) -> None:
    """A stalled connection leaves time for another one; a heartbeat by hand waits as any call."""
    server = Server()
    first = server.after(1)
    with opened(driver, server):
        driver.wait(first)
    beat = next(each for each in server.requests if each.url.path.endswith("/heartbeat"))
    assert beat.extensions["timeout"]["read"] == 1
    assert server.requests[0].extensions["timeout"]["read"] == 30


# --- the book alone ------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    """Time that stands still."""
    return ManualClock()


@pytest.fixture
def book(clock: ManualClock) -> sessions.SessionBook:
    """The book of a session of 16 seconds, begun now."""
    made = sessions.SessionBook(on_cancel=None, on_lost=None, on_lease_lost=None, clock=clock)
    made.begin(SessionInfo(session_id="s", holder="me", state="live", timeout_s=16))
    return made


def test_a_heartbeat_every_quarter(book: sessions.SessionBook) -> None:
    """Of the timeout, or of the time for progress if that is shorter."""
    assert (book.interval_s, book.try_s, book.retry_s) == (4, 4, 1)
    book.begin(
        SessionInfo(session_id="s", holder="me", state="live", timeout_s=16, progress_timeout_s=8)
    )
    assert book.interval_s == 2
    book.begin(SessionInfo(session_id="s", holder="me", state="live", timeout_s=2))
    assert (book.interval_s, book.try_s, book.retry_s) == (0.5, 1, 0.125)


def test_overdue(book: sessions.SessionBook, clock: ManualClock) -> None:
    """Counted from the beginning of the last heartbeat that was answered."""
    began_s = book.now_s()
    clock.advance(s=10)
    book.heard({}, Beat(99), began_s)
    clock.advance(s=6)
    assert not book.is_overdue
    clock.advance(s=0.5)
    assert book.is_overdue
    book.heard({}, Beat(99), book.now_s())
    assert not book.is_overdue


def test_the_servers_wish_to_wait_is_kept_up_to_a_heartbeat(book: sessions.SessionBook) -> None:
    """Longer than that the session cannot wait."""

    def busy(retry_after_s: float) -> Callable[[], float | None]:
        failure = problem_error(Problem(code="overloaded", status=503, retry_after_s=retry_after_s))
        return lambda: book.missed({}, failure)

    assert [busy(each)() for each in (0, 3, 600)] == [1, 3, 4]


def test_an_answer_after_the_end_says_nothing(book: sessions.SessionBook) -> None:
    """A heartbeat that was under way while the session was closed is no loss."""
    book.is_closed = True
    over = problem_error(Problem(code="session-over", status=409, state="ended"))
    assert book.missed({}, over) is None
    book.heard({}, Beat(99), book.now_s())
    assert (book.is_over, book.until_ms) == (False, 16_000)
