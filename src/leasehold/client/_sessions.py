"""Sessions without I/O: requests, answers, and what is known about one's own session."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from leasehold.client._answers import Answer, decoded
from leasehold.client._calls import (
    Call,
    Leased,
    account_path,
    get,
    message_path,
    path_segment,
    send,
)
from leasehold.client.errors import (
    LeaseholdClientError,
    Problem,
    ServerProblem,
    SessionNotFound,
    SessionOver,
    usual_status,
)
from leasehold.client.models import Beat, CancelNotice, EventPage, Faults, Progress, SessionInfo
from leasehold.clock import Clock, SystemClock
from leasehold.domain.limits import MAX_PROGRESS
from leasehold.wire import flows as wire
from leasehold.wire.messages import ProgressReport

BEATS_PER_TIMEOUT: Final = 4
MAX_PROGRESS_BYTES: Final = 4_000_000
"""Bytes of progress that one heartbeat can tell of; the server refuses more."""

_MAX_NOTE: Final = 1_024
_LONGEST_CHAR: Final = 6
"""Bytes of a character in JSON, at most."""
_AROUND: Final = 100
"""Bytes of JSON around a name and a note."""
_LONGEST_RETRY_S: Final = 1.0
_SHORTEST_TRY_S: Final = 1.0
_NOT_TO_BE_TOLD: Final = frozenset({400, 413})

OnCancel = Callable[[CancelNotice], object]
OnLost = Callable[[SessionOver], object]
OnLeaseLost = Callable[[str], object]
Told = Mapping[str, Progress | None]
"""Progress by message id; None: only that it gets on."""

_T = TypeVar("_T")
_log: Final = logging.getLogger("leasehold.client")


_SESSION = msgspec.json.Decoder(SessionInfo)
_SESSIONS = msgspec.json.Decoder(wire.Sessions)
_BEAT = msgspec.json.Decoder(Beat)


# --- requests and answers ------------------------------------------------------------------------


def sessions_path(account: str) -> str:
    """Return the path that all sessions of an account lie under."""
    return f"{account_path(account)}/sessions"


def session_path(account: str, session_id: str) -> str:
    """Return a session's path."""
    return f"{sessions_path(account)}/{path_segment('session id', session_id)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a session is opened with."""

    account: str
    holder: str
    timeout_s: int | None
    """None: what the server has as its default."""
    progress_timeout_s: int | None

    def call(self) -> Call:
        """Return the call. It is not repeated: a second session would belong to no worker."""
        request = wire.OpenSessionRequest(self.holder, self.timeout_s, self.progress_timeout_s)
        return send("POST", sessions_path(self.account), request, repeatable=False)


def heartbeat(path: str, told: Told, try_s: float | None) -> Call:
    """Return a call that says that the worker lives, with the progress of its messages."""
    reports = {
        name: None if each is None else ProgressReport(each.fraction, each.note)
        for name, each in told.items()
    }
    request = wire.HeartbeatRequest(reports or None)
    call = send("POST", f"{path}/heartbeat", request, repeatable=True)
    return dataclasses.replace(call, try_s=try_s)


def end_session(path: str, reason: str | None, try_s: float | None = None) -> Call:
    """Return a call that ends a session; one that is over stays as it is."""
    call = send("POST", f"{path}/end", wire.EndSessionRequest(reason), repeatable=True)
    return dataclasses.replace(call, try_s=try_s)


def session(answer: Answer) -> SessionInfo:
    """Return a session."""
    return decoded(_SESSION, answer)


def sessions(answer: Answer) -> list[SessionInfo]:
    """Return sessions."""
    return decoded(_SESSIONS, answer).sessions


def beat(answer: Answer) -> Beat:
    """Return what the server says to a heartbeat."""
    return decoded(_BEAT, answer)


# --- one's own session ---------------------------------------------------------------------------


class SessionBook:
    """What this process knows about its session. Threads may share it; it waits for nothing."""

    def __init__(
        self,
        *,
        on_cancel: OnCancel | None,
        on_lost: OnLost | None,
        on_lease_lost: OnLeaseLost | None,
        clock: Clock | None = None,
    ) -> None:
        self.info: SessionInfo | None = None
        self.until_ms = 0
        self.is_closed = False
        self.has_more = False
        """Whether not all progress fitted in the latest heartbeat."""
        self._on_cancel = on_cancel
        self._on_lost = on_lost
        self._on_lease_lost = on_lease_lost
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._over: Problem | None = None
        self._heard_s = 0.0
        self._progress: dict[str, Progress | None] = {}
        self._cancels: dict[str, CancelNotice] = {}

    # What the owner asks and tells.

    @property
    def id(self) -> str:
        """The session's id.

        Raises:
            RuntimeError: It is not open yet.
        """
        if self.info is None:
            raise RuntimeError("the session is not open: enter it, or call open()")
        return self.info.session_id

    @property
    def is_over(self) -> bool:
        """Whether the server has said that it is lost or was ended by another client."""
        return self._over is not None

    @property
    def is_overdue(self) -> bool:
        """Whether no heartbeat has been answered for longer than the timeout."""
        if self.info is None:
            return False
        return self._clock.monotonic_s() - self._heard_s > self.info.timeout_s

    @property
    def interval_s(self) -> float:
        """Seconds from one heartbeat to the next."""
        assert self.info is not None
        shortest_s = min(self.info.timeout_s, self.info.progress_timeout_s or self.info.timeout_s)
        return shortest_s / BEATS_PER_TIMEOUT

    @property
    def try_s(self) -> float:
        """Seconds without an answer after which a heartbeat has failed, to leave time for more."""
        return max(self.interval_s, _SHORTEST_TRY_S)

    @property
    def retry_s(self) -> float:
        """Seconds after which a heartbeat that failed is tried again."""
        return min(_LONGEST_RETRY_S, self.interval_s / BEATS_PER_TIMEOUT)

    def check(self) -> None:
        """Refuse to go on with a session that is over or closed.

        Raises:
            SessionOver: It is lost, or another client has ended it.
            RuntimeError: It is closed, or not open yet.
        """
        if self._over is not None:
            raise SessionOver(self._over)
        if self.is_closed:
            raise RuntimeError("the session is closed")
        _ = self.id

    def note_progress(self, message: Leased | str, progress: Progress | None) -> None:
        """Keep what is to be told with the next heartbeat."""
        self.check()
        with self._lock:
            self._progress[_id_of(message)] = progress

    def cancelled(self, message: Leased | str) -> CancelNotice | None:
        """Return an operator's wish that the work be stopped, None if there is none."""
        self.check()
        return self._cancels.get(_id_of(message))

    # What the heartbeats tell.

    def begin(self, info: SessionInfo) -> None:
        """Note that the session is open."""
        self._heard_s = self._clock.monotonic_s()
        self.info = info
        self.until_ms = info.last_heartbeat_ms + info.timeout_s * 1_000

    def now_s(self) -> float:
        """Return the time, for :meth:`heard`."""
        return self._clock.monotonic_s()

    def take_progress(self) -> dict[str, Progress | None]:
        """Return what is to be told now: as much as one heartbeat can tell."""
        with self._lock:
            known = self._progress
            told = {name: known[name] for name in _first_of(known)}
            self._progress = {name: each for name, each in known.items() if name not in told}
            self.has_more = bool(self._progress)
        return told

    def heard(self, told: Told, heard: Beat, began_s: float) -> None:
        """Note the answer to a heartbeat that was begun at *began_s*."""
        if self.is_closed:
            return
        with self._lock:
            self._heard_s = max(self._heard_s, began_s)
            self.until_ms = max(self.until_ms, heard.until_ms)
            known, self._cancels = self._cancels, {each.id: each for each in heard.cancels}
        for notice in heard.cancels:
            if notice != known.get(notice.id):
                _call(self._on_cancel, notice)
        for message_id in heard.lost:
            if message_id in told:
                _call(self._on_lease_lost, message_id)

    def missed(self, told: Told, failure: LeaseholdClientError) -> float | None:
        """Note that a heartbeat failed.

        Returns:
            Seconds until it should be tried again; None if the session is over.
        """
        if isinstance(failure, SessionOver | SessionNotFound):
            self.note_over(failure)
            return None
        refused = isinstance(failure, ServerProblem) and failure.status in _NOT_TO_BE_TOLD
        if told and refused:
            # What cannot be told must not keep the session from living.
            _log.warning("progress was not accepted: %s", failure)
            return 0
        self.keep_progress(told)
        asked_s = failure.problem.retry_after_s if isinstance(failure, ServerProblem) else None
        return max(self.retry_s, min(asked_s or 0, self.interval_s))

    def keep_progress(self, told: Told) -> None:
        """Keep what could not be told for the next time, unless there is newer."""
        with self._lock:
            self._progress = {**told, **self._progress}

    def note_over(self, failure: ServerProblem) -> SessionOver:
        """Note that the server says that the session is over, and return that as an error."""
        problem = failure.problem
        if not isinstance(failure, SessionOver):
            problem = Problem(
                code="session-over",
                status=usual_status("session-over"),
                detail="The session no longer exists at the server.",
                state="lost",
                request_id=problem.request_id,
            )
        with self._lock:
            is_news = self._over is None and not self.is_closed
            if is_news:
                self._over = problem
                self._progress, self._cancels = {}, {}
        if is_news:
            _call(self._on_lost, SessionOver(problem))
        return SessionOver(problem)


def progress_of(fraction: float | None, note: str | None) -> Progress | None:
    """Return what is to be told, None for only "it gets on".

    Raises:
        ValueError: The fraction is not between 0 and 1.
    """
    if fraction is not None and not 0 <= fraction <= 1:
        raise ValueError(f"a fraction is 0 to 1, not {fraction}")
    if fraction is None and note is None:
        return None
    # Longer notes are cut by the server anyway.
    return Progress(fraction, note and note[:_MAX_NOTE])


def _first_of(known: Told) -> Iterator[str]:
    """Yield names as long as they fit in a heartbeat with their progress."""
    room = MAX_PROGRESS_BYTES
    for count, (name, each) in enumerate(known.items()):
        room -= _LONGEST_CHAR * (len(name) + len((each and each.note) or "")) + _AROUND
        if count >= MAX_PROGRESS or room < 0:
            return
        yield name


def _id_of(message: Leased | str) -> str:
    return message if isinstance(message, str) else message.id


def _call(callback: Callable[[_T], object] | None, value: _T) -> None:
    """Call back; what goes wrong there must not stop the heartbeats."""
    if callback is None:
        return
    try:
        callback(value)
    except Exception:  # noqa: BLE001 - it is logged
        _log.exception("a callback of a session failed")


# --- events ------------------------------------------------------------------------------------
#
# The event log and the test mode without I/O: requests and answers.


CLOCK: Final = "/v1/test/clock"
ADVANCE: Final = "/v1/test/advance"
FAULTS: Final = "/v1/test/faults"


_PAGE = msgspec.json.Decoder(EventPage)
_CLOCK = msgspec.json.Decoder(wire.Clock)
_FAULTS = msgspec.json.Decoder(Faults)


def events(account: str, after: int, limit: int) -> Call:
    """Return a call for one page of the account's events."""
    return get(f"{account_path(account)}/events", _window(after, limit))


def trace(queue: str, message_id: str, after: int, limit: int) -> Call:
    """Return a call for one page of a message's events, given its queue's path."""
    return get(f"{message_path(queue, message_id)}/trace", _window(after, limit))


def advance(length_s: float) -> Call:
    """Return a call that moves the server's clock. Twice moves it twice."""
    return send("POST", ADVANCE, wire.AdvanceRequest(length_s), repeatable=False)


def set_faults(wanted: Faults) -> Call:
    """Return a call that says which failures to make."""
    request = wire.FaultsRequest(wanted.fail_commits, wanted.drop_answers, wanted.delay_answers_s)
    return send("PUT", FAULTS, request, repeatable=True)


def clear_faults() -> Call:
    """Return a call that ends all failures."""
    return Call(method="DELETE", path=FAULTS, repeatable=True)


def page(answer: Answer) -> EventPage:
    """Return a page of events."""
    return decoded(_PAGE, answer)


def now_ms(answer: Answer) -> int:
    """Return the server's time."""
    return decoded(_CLOCK, answer).now_ms


def faults(answer: Answer) -> Faults:
    """Return the failures that are left to make."""
    return decoded(_FAULTS, answer)


def _window(after: int, limit: int) -> tuple[tuple[str, str], ...]:
    return (("after", str(after)), ("limit", str(limit)))
