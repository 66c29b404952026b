"""``Worker(ordered=True)`` in a process of its own: to be killed or stopped at any moment.

The process calls :func:`run`. What the worker asks for and settles is noted as in
:mod:`tests.reliability.group_history`; what its handlers do is in the record, which refuses whoever
comes with a fence that is not the newest, as a store of one's own would.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple, Self

from leasehold.worker.adapters.protocol import (
    Around,
    Delivery,
    Fault,
    Lease,
    QueueClient,
    QueueError,
    Release,
    WorkerSession,
)
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.errors import LeaseLost
from leasehold.worker.message import Message
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.worker import Worker
from tests.reliability.group_history import Act, Effect, Name, Notes, Receive, Settle
from tests.reliability.group_worker import name_of

VARIABLE: Final = "ORDERED_WORKER"
QUEUE: Final = "ordered"
_SKEW_S: Final = 0.1
_MOST_FAILURES: Final = 1000
"""A message is not poison because its workers were killed: each has to be done in the end."""
_ORPHANED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker's process is to do."""

    name: str
    connection: str = dataclasses.field(repr=False)
    folder: str
    seed: int
    lease_s: int
    runner: Literal["threads", "processes"] = "threads"
    concurrency: int = 4
    prefetch: int | None = 12
    session: bool = False
    ordered: bool = True
    """False: messages of one group are worked on side by side; a fault to be found."""
    handler_s: float = 0.02
    """The longest that a handler takes, but for some."""

    @classmethod
    def of_environment(cls) -> Self:
        """Return that of this process."""
        return cls(**json.loads(os.environ[VARIABLE]))

    def environment(self) -> dict[str, str]:
        """Return what a process is told by."""
        return {VARIABLE: json.dumps(dataclasses.asdict(self))}


# --- the record --------------------------------------------------------------------------------


class Line(NamedTuple):
    """One line of the record of a group."""

    what: Literal["begun", "effect", "refused"]
    number: int
    fence: int
    worker: str


class Record:
    """What was done to each group, in a file of the group's own that processes share.

    A line is read and written under a lock of the file, so the lines stand in the order in which
    things happened. A process that is stopped there holds up its group, and one that is killed lets
    go of the lock.

    Args:
        folder: Where the files are.
        worker: Who writes.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        self._folder, self._worker = folder, worker

    def enter(self, group: str, number: int, fence: int, what: Literal["begun", "effect"]) -> bool:
        """Write a line, unless a newer holder of the message was there; return whether it was."""
        file = os.open(path_of(self._folder, group), os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            newest = max((e.fence for e in _lines(file) if e.number == number), default=0)
            may = fence >= newest
            line = Line(what if may else "refused", number, fence, self._worker)
            os.write(file, f"{json.dumps(line)}\n".encode())
        finally:
            os.close(file)
        return may


def path_of(folder: Path, group: str) -> Path:
    """Return the file of a group."""
    return folder / f"record-{group.replace(':', '-')}"


def _lines(file: int) -> Iterator[Line]:
    for text in os.pread(file, os.fstat(file).st_size, 0).splitlines():
        yield Line(*json.loads(text))


def read_record(folder: Path, group: str) -> list[Line]:
    """Return all that was done to a group, in its order."""
    path = path_of(folder, group)
    return [Line(*json.loads(line)) for line in path.read_text().splitlines()]


def faults_of_record(lines: Iterable[Line], group: str, numbers: Iterable[int]) -> list[str]:
    """Return what may not be in the record of a group.

    The same effect may be there again, if a worker died before it could complete the message; but
    not after one of a later message.

    Args:
        lines: Of the record.
        group: For people.
        numbers: Of the messages that were put, all of which are done.
    """
    faults: list[str] = []
    fences: dict[int, int] = defaultdict(int)
    latest = -1
    done: set[int] = set()
    for line in lines:
        if line.what == "refused":
            continue
        if line.fence < fences[line.number]:
            faults.append(f"{group}: past a newer fence: {line}")
        fences[line.number] = max(fences[line.number], line.fence)
        if line.what == "effect":
            if line.number < latest:
                faults.append(f"{group}: an effect after that of {latest}: {line}")
            latest = max(latest, line.number)
            done.add(line.number)
    return faults + [f"{group}: no effect of {number}" for number in sorted({*numbers} - done)]


# --- the worker --------------------------------------------------------------------------------


class Noting(Around):
    """A queue that notes what it was asked and what came of it.

    Args:
        client: The queue.
        job: Of this process.
    """

    def __init__(self, client: QueueClient, job: Job) -> None:
        super().__init__(client)
        self._job = job
        self._notes = Notes(Path(job.folder) / f"{job.name}.jsonl")
        self._lock = threading.Lock()
        self._answers = count()
        self._leases: dict[str, tuple[Name, int]] = {}
        """By message id: its name and its newest fence here."""

    def receive(
        self,
        max_messages: int,
        *,
        visibility_timeout_s: int,
        wait_s: float = 0,
        holder: str | None = None,
        session: WorkerSession | None = None,
    ) -> list[Delivery]:
        """See :class:`QueueClient`. A session may end a lease early, so nothing is sure with it."""
        sent_s = time.monotonic()
        found = self.client.receive(
            max_messages,
            visibility_timeout_s=visibility_timeout_s,
            wait_s=wait_s,
            holder=holder,
            session=session,
        )
        got_s = time.monotonic()
        lasts_s = sent_s + visibility_timeout_s - _SKEW_S if session is None else sent_s
        with self._lock:
            answer = f"{self._job.name}-{next(self._answers)}"
            for place, each in enumerate(found):
                group, number = name_of(each)
                self._leases[each.message_id] = (group, number), each.fence
                self._notes.add(
                    Receive(
                        group=group,
                        number=number,
                        answer=answer,
                        place=place,
                        fence=each.fence,
                        count=each.dequeue_count,
                        sent_s=sent_s,
                        got_s=got_s,
                        ends_s=lasts_s,
                    )
                )
        return found

    def complete(
        self, leases: Sequence[Lease], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """See :class:`QueueClient`."""
        settles = self._note([each.message_id for each in leases], "complete")
        try:
            results = self.client.complete(leases, timeout_s=timeout_s)
        except QueueError as error:
            self._note_answers(settles, [error] * len(settles))
            raise
        self._note_answers(settles, results)
        return results

    def release(
        self, releases: Sequence[Release], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """See :class:`QueueClient`."""
        settles = self._note([each.lease.message_id for each in releases], "return")
        try:
            results = self.client.release(releases, timeout_s=timeout_s)
        except QueueError as error:
            self._note_answers(settles, [error] * len(settles))
            raise
        self._note_answers(settles, results)
        return results

    def bury(
        self, delivery: Delivery, receipt: str, fault: Fault, *, timeout_s: float | None = None
    ) -> None:
        """See :class:`QueueClient`. No message is ever to be, so it is noted only."""
        self._note([delivery.message_id], "poison")
        self.client.bury(delivery, receipt, fault, timeout_s=timeout_s)

    def _note(self, message_ids: Sequence[str], act: Act) -> list[Settle]:
        with self._lock:
            sent_s = time.monotonic()
            named = [self._leases[each] for each in message_ids]
            settles = [
                Settle(group=name[0], number=name[1], fence=fence, act=act, sent_s=sent_s)
                for name, fence in named
            ]
            for each in settles:
                self._notes.add(each)
        return settles

    def _note_answers(
        self, settles: Sequence[Settle], results: Sequence[QueueError | None]
    ) -> None:
        with self._lock:
            answered_s = time.monotonic()
            for settle, error in zip(settles, results, strict=True):
                if error is None or not error.outcome_unknown:
                    outcome: Literal["done", "refused"] = "done" if error is None else "refused"
                    self._notes.add(
                        dataclasses.replace(settle, answered_s=answered_s, outcome=outcome)
                    )


class Hands:
    """What the handlers of one process share."""

    def __init__(self) -> None:
        self.job = Job.of_environment()
        folder = Path(self.job.folder)
        self.record = Record(folder, self.job.name)
        self._notes = Notes(folder / f"{self.job.name}-{os.getpid()}.jsonl")
        self._lock = threading.Lock()

    def note(self, effect: Effect) -> None:
        """Write into the notes of the process."""
        with self._lock:
            self._notes.add(effect)


@cache
def hands() -> Hands:
    """Return those of this process."""
    return Hands()


def handle(message: Message) -> None:
    """Work on a message, at a fence: some fail, and some take longer than a lease."""
    here = hands()
    job, fence = here.job, message.fence
    group, number = name_of(message)
    dice = Random(f"{job.seed} {message.text} {fence}")
    if not here.record.enter(group, number, fence, "begun"):
        raise LeaseLost("a newer holder was there")
    draw = dice.random()
    if draw < 0.03:
        raise OSError("not now")
    time.sleep(job.lease_s * 1.3 if draw < 0.04 else dice.uniform(0, job.handler_s))
    at_s = time.monotonic()
    if not here.record.enter(group, number, fence, "effect"):
        raise LeaseLost("a newer holder was there")
    here.note(Effect(group=group, number=number, fence=fence, at_s=at_s))


def _end_with(parent: int) -> None:
    """End when the test is gone: nobody else would end this process."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(_ORPHANED)


def run() -> None:
    """Work until the process is killed."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    job = Job.of_environment()
    queue = QueueSpec(service="leasehold", queue=QUEUE, connection=job.connection).open()
    Worker(
        handle,
        Noting(queue, job),
        concurrency=job.concurrency,
        runner=job.runner,
        lease=job.lease_s,
        prefetch=job.prefetch,
        ordered=job.ordered,
        retries=RetryRule(initial_s=0),
        poison=PoisonRule(max_failures=_MOST_FAILURES),
        session=job.session,
        name=job.name,
        wait_s=1.0,
        tracing=False,
    ).run(install_signals=False)
