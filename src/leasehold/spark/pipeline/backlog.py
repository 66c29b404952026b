"""What a queue knows of a run: what is left to do, what has expired, who has completed what."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self, TypeVar

from leasehold.client import Client
from leasehold.client.errors import LeaseholdClientError
from leasehold.client.models import Event, ExecutorReport, MessageView, PipelineReport, StageReport
from leasehold.spark.pipeline.report import Expired, Progress, Row, Who
from leasehold.worker.adapters import QueueClient, QueueError
from leasehold.worker.adapters.native import queue_error
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.outcomes import Kind

T = TypeVar("T")


class Left(NamedTuple):
    """What is in a queue."""

    visible: int | None
    """Messages that no worker has, and that can be received now; None: the service does not say."""
    unsettled: int
    """Messages that a run which empties the queue still has to wait for: those that are visible or
    leased, and those that wait to be tried again. What the sender has delayed is not waited for,
    where the service tells them apart."""


class Backlog:
    """Counts the messages of a queue; a context manager.

    Args:
        spec: The queue.
        before: Names of others from which messages go on in it.
    """

    def __init__(self, spec: QueueSpec, before: Sequence[str] = ()) -> None:
        self._spec = spec
        self._before = before
        self._native: Client | None = None
        self._other: QueueClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def look(self) -> Left:
        """Count.

        Raises:
            QueueError: The service does not answer, or refuses.
        """
        if self._spec.service != "leasehold":
            self._other = self._other or self._spec.open()
            depth = self._other.depth()
            return Left(depth.visible, depth.total or 0)
        return self._look_at(self._spec.queue)

    def is_drained(self) -> bool:
        """Return whether nothing is left, whoever has it, nor will come from other queues.

        Raises:
            QueueError: As for :meth:`look`.
        """
        # In the order in which messages go on, or one could pass unseen; they may lead back here.
        looks = (self._look_at(name) for name in (self._spec.queue, *self._before))
        if any(left.unsettled for left in (looks if self._before else ())):
            return False
        return not self.look().unsettled

    def _look_at(self, queue: str) -> Left:
        if self._native is None:
            self._native = Client.from_connection_string(self._spec.given_connection)
        try:
            counts = self._native.queue(queue).counts()
        except (LeaseholdClientError, RuntimeError) as error:
            raise queue_error(error) from None
        return Left(counts.visible, counts.visible + counts.leased + counts.deferred)

    def visible(self) -> int | None:
        """Return how many messages could be received now; None: it is unknown."""
        try:
            return self.look().visible
        except QueueError:
            return None

    def close(self) -> None:
        """Let go of connections."""
        for each in (self._native, self._other):
            if each is not None:
                each.close()


# --- telling -----------------------------------------------------------------------------------
#
# How a run is doing, told to the queue's server for those who watch in its console.


REPORT_EVERY_S: Final = 2.0
_NAME: Final = re.compile(r"[^A-Za-z0-9._:~-]")
_NAME_CHARS: Final = 256


class Teller:
    """Reports how a run is doing, in a thread, until it is told to end. It never fails a run.

    Args:
        spec: The queue; only Leasehold's own service is told.
        name: Of the pipeline.
        began_ms: When the run began, by the server's time; None if that is not known.
        look: Returns how it is doing.
    """

    def __init__(
        self,
        spec: QueueSpec,
        name: str,
        began_ms: int | None,
        look: Callable[[], Progress],
    ) -> None:
        self._spec = spec
        self._name = _NAME.sub("-", name).strip(".")[:_NAME_CHARS] or "pipeline"
        self._began_ms = began_ms
        self._look = look
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._last: tuple[str, str | None, Progress] | None = None

    def start(self) -> None:
        """Begin, if there is anybody to tell."""
        if self._spec.service == "leasehold" and self._began_ms is not None:
            self._thread = threading.Thread(target=self._tell, name="leasehold-teller", daemon=True)
            self._thread.start()

    def end(self, state: str, failure: str | None, last: Progress) -> None:
        """Tell how it has ended, and end; wait for that a little."""
        self._last = state, failure, last
        self._over.set()
        if self._thread is not None:
            self._thread.join(2 * REPORT_EVERY_S)

    def _tell(self) -> None:
        try:
            with Client.from_connection_string(self._spec.given_connection) as client:
                while True:
                    client.report_pipeline(self._name, self._report("running", None, self._look()))
                    if self._over.wait(REPORT_EVERY_S):
                        break
                if self._last is not None:
                    client.report_pipeline(self._name, self._report(*self._last))
        except Exception as error:  # noqa: BLE001 - whoever watches is no reason for work to fail
            _log.info("the progress of the pipeline does not reach the server: %s", error)

    def _report(self, state: str, failure: str | None, now: Progress) -> PipelineReport:
        return PipelineReport(
            queue=self._spec.queue,
            state=state,
            began_at_ms=self._began_ms or 0,
            stages=tuple(
                StageReport(
                    name,
                    working=each.working,
                    done=each.done,
                    failed=each.failed,
                    skipped=each.skipped,
                    overdue=each.overdue,
                    mean_s=round(each.seconds / each.done, 6) if each.done else None,
                )
                for name, each in now.stages.items()
            ),
            executors=tuple(
                ExecutorReport(name, each.tasks, each.in_work, each.done)
                for name, each in now.crew.items()
            ),
            done=now.done,
            failed=now.failed,
            poisoned=now.poisoned,
            lost=now.lost,
            in_work=now.in_work,
            waiting=now.waiting,
            backlog=now.backlog,
            per_s=round(now.per_s, 3),
            failure=None if failure is None else failure[:_NAME_CHARS],
        )


# --- expiring ----------------------------------------------------------------------------------
#
# What expired in a queue while a run was at work on it: the queue itself knows it.


_log: Final = logging.getLogger("leasehold.spark.pipeline")
MOST_LISTED: Final = 10_000
"""Expired messages that a report names; all are counted."""
_PAGE: Final = 1_000
_TEXT_CHARS: Final = 200


class Expiries(NamedTuple):
    """What expired during a run."""

    number: int | None = None
    """None: the service does not tell, or could not be asked."""
    listed: Sequence[Expired] = ()
    """The oldest messages of them, 10,000 at most."""


def _asked(spec: QueueSpec, missing: str, ask: Callable[[Client], T]) -> T | None:
    """Return what a client of the queue's server is told; None: the service has none of it."""
    if spec.service != "leasehold":
        return None
    try:
        with Client.from_connection_string(spec.given_connection) as client:
            return ask(client)
    except LeaseholdClientError as error:
        _log.warning("%s: %s", missing, error)
        return None


def server_time_ms(spec: QueueSpec) -> int | None:
    """Return the time by the queue's server, Unix milliseconds; None: it is unknown."""
    missing = "the queue's messages cannot be counted"
    return _asked(spec, missing, lambda client: client.queue(spec.queue).counts().at_ms)


def expired_since(spec: QueueSpec, began_ms: int | None) -> Expiries:
    """Return what has expired since a moment and is not removed yet.

    Args:
        spec: The queue.
        began_ms: The moment by the server's time; None: it was not told.
    """
    if began_ms is None:
        return Expiries()

    def ask(client: Client) -> Expiries:
        listed: list[Expired] = []
        count = 0
        for each in client.queue(spec.queue).inspect(states=["expired"], page_size=_PAGE):
            if each.expires_at_ms is not None and each.expires_at_ms > began_ms:
                count += 1
                if count <= MOST_LISTED:
                    listed.append(_of(each, each.expires_at_ms))
        return Expiries(count, listed)

    return _asked(spec, "what has expired is not in the report", ask) or Expiries()


def _of(view: MessageView, expired_at_ms: int) -> Expired:
    text = view.body.decode(errors="replace") if view.body_problem is None else ""
    return Expired(
        view.id, text[:_TEXT_CHARS], view.inserted_at_ms, expired_at_ms, view.dequeue_count
    )


# --- reconciling -------------------------------------------------------------------------------
#
# What tasks have done that died before they could tell: the server's event log knows it.


_EVENTS_PAGE: Final = 10_000
WHY: Final = "its executor died before it could report; the event log has it"


def newest_event(spec: QueueSpec) -> int | None:
    """Return the number of the newest event of the account; None: it is unknown."""
    missing = "the event log cannot be read"
    return _asked(spec, missing, lambda client: client.event_page(limit=1).last_seq)


def unreported(
    spec: QueueSpec, after: int, dead: Collection[Who], reported: Collection[str]
) -> list[tuple[Who, Row]]:
    """Return the deliveries that dead tasks have completed and not reported.

    Args:
        spec: The queue.
        after: The newest event from before the run.
        dead: The tasks.
        reported: Ids of messages that are known to be done.
    """

    def ask(client: Client) -> list[tuple[Who, Row]]:
        events = client.events(after, page_size=_EVENTS_PAGE)
        return list(completed_by(events, spec, dead, reported))

    return _asked(spec, "what dead executors have done last is not in the report", ask) or []


def completed_by(
    events: Iterable[Event], spec: QueueSpec, dead: Collection[Who], reported: Collection[str]
) -> Iterator[tuple[Who, Row]]:
    """Yield a row for each completion by one of *dead* that is not among *reported*."""
    for event in events:
        message_id, holder = event.message_id, event.holder
        if event.type != "completed" or event.queue != spec.queue or holder is None:
            continue
        if message_id is None or message_id in reported:
            continue
        who = next((each for each in dead if each.link in holder), None)
        if who is None:
            continue
        yield (
            who,
            Row(
                message_id=message_id,
                queue=spec.queue,
                delivery=event.dequeue_count or 1,
                fence=event.fence or 0,
                outcome=Kind.DONE.value,
                reason=WHY,
                resumed_at=None,
                began_at_ms=event.since_ms or event.at_ms,
                ended_at_ms=event.at_ms,
                stages=[],
            ),
        )
