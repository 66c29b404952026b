"""The feedback loop beside the story: a timeout that is too short, and what makes it fit.

Marketing also wants posters and trailers. Their producers write the articles' form, two digits of
state before the content, and their workers are a receive, the work and a delete with Azure's SDK:
nobody renews anything. The queue's timeout is too short for either, so deletes come late, and work
is done twice. A streaming query counts that in the event log, and sets a timeout that fits.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from azure.core.exceptions import HttpResponseError, ServiceRequestError
from azure.storage.queue import QueueClient
from examples.video_pipeline.crew import REPOSITORY
from examples.video_pipeline.worker import CONNECTION_VARIABLE

from leasehold.client import Client, QueueNotFound
from leasehold.client.models import Event
from leasehold.worker.adapters.envelope import StagePrefixForm

LEASE_S: Final = 1
"""The queue's timeout to begin with."""
KINDS: Final[Mapping[str, tuple[float, float]]] = {"poster": (1.2, 1.8), "trailer": (1.5, 2.4)}
"""Seconds that work of a type takes, at least and at most."""
FORM: Final = StagePrefixForm({1: "draw", 2: "publish"})
"""New messages begin with ``01``."""
WORKERS: Final = 8
AFTER: Final = 60
"""Deletes under the new timeout that are waited for, to see what came of it."""
_BACKLOG: Final = 20
_LOOK_S: Final = 0.2
_IDLE_S: Final = 0.1
_STOP_S: Final = 60.0
_TYPE_HEADER: Final = "x-ms-leasehold-type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletes:
    """Deletes of one type of message, by the timeout that their lease began with."""

    kind: str
    before: int
    late_before: int
    after: int
    late_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOutcome:
    """What the event log says of the loop when it is over."""

    queue: str
    old_s: int
    new_s: int | None
    """None if no timeout was applied."""
    applied_after_s: float | None
    """Seconds from the first message."""
    deletes: tuple[Deletes, ...]
    leases_across: int
    """Leases that were in force when the timeout was changed."""
    broken: tuple[str, ...]
    """Those of them that ended otherwise than they were granted."""
    notice: Mapping[str, Any] | None
    """What producers were told."""
    troubles: tuple[str, ...] = ()

    @property
    def share_before(self) -> float:
        """Late deletes under the old timeout, 0 to 1."""
        return _share(sum(each.late_before for each in self.deletes), self.total_before)

    @property
    def share_after(self) -> float:
        """Late deletes of leases that began after the change, 0 to 1."""
        return _share(sum(each.late_after for each in self.deletes), self.total_after)

    @property
    def total_before(self) -> int:
        """Deletes under the old timeout."""
        return sum(each.before for each in self.deletes)

    @property
    def total_after(self) -> int:
        """Deletes of leases that began after the change."""
        return sum(each.after for each in self.deletes)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


class Loop:
    """Producers, workers and the query; a context manager that ends all of them."""

    def __init__(self, root: Path, connection_string: str, queue: str) -> None:
        self._root = root
        self._connection_string = connection_string
        self.queue = queue
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._troubles: list[str] = []
        self._query: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._client() as client:
            settings = {"visibility_timeout_s": LEASE_S}
            client.queue(self.queue).create(settings=settings)
        self._start_query()
        names = ["produce", *(f"loop-worker-{number}" for number in range(WORKERS))]
        for number, name in enumerate(names):
            work = self._produce if number == 0 else self._work
            thread = threading.Thread(target=work, name=name, args=(number,), daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(_STOP_S)
        if self._query is None:
            return
        assert self._query.stdin is not None
        self._query.stdin.close()
        try:
            self._query.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._query.kill()
            self._query.wait()

    def wait(self, quiet_s: float) -> None:
        """Wait until enough was deleted under a new timeout, or nothing was for *quiet_s*."""
        deletes, deleted_at_s = 0, time.monotonic()
        with self._client() as client:
            while time.monotonic() - deleted_at_s < quiet_s:
                so_far = outcome(self.queue, self._events(client), None)
                if so_far.total_after >= AFTER:
                    return
                if so_far.total_after > deletes:
                    deletes, deleted_at_s = so_far.total_after, time.monotonic()
                if self._query is not None and self._query.poll() is not None:
                    self._troubles.append(f"the query ended with {self._query.returncode}")
                    return
                time.sleep(_LOOK_S * 5)
        self._troubles.append(f"nothing was applied, or nothing done after it, in {quiet_s:g} s")

    def outcome(self) -> LoopOutcome:
        """Return what the event log says."""
        with self._client() as client:
            notice = None
            with suppress(QueueNotFound):
                found = client.queue(self._notices).peek(1)
                notice = json.loads(found[0].body) if found else None
            return outcome(self.queue, self._events(client), notice, self._troubles)

    # --- those who use the queue -------------------------------------------------------------

    def _produce(self, number: int) -> None:
        """Keep some work in the queue, as an old producer does it."""
        dice = random.Random(number)
        with self._azure() as queue:
            while not self._over.is_set():
                waiting = queue.get_queue_properties().approximate_message_count or 0
                for _ in range(max(0, _BACKLOG - waiting)):
                    kind = dice.choice([*KINDS])
                    text = FORM.fresh(f"{kind}-{dice.randrange(10_000)}".encode())
                    queue.send_message(text, headers={_TYPE_HEADER: kind})
                self._over.wait(_LOOK_S)

    def _work(self, number: int) -> None:
        """Receive, work, delete; nothing is renewed, and the timeout is the queue's."""
        dice = random.Random(number)
        with self._azure() as queue:
            while not self._over.is_set():
                message = queue.receive_message()
                if message is None:
                    self._over.wait(_IDLE_S)
                    continue
                content, _ = FORM.unwrap(message.content)
                kind = content.decode().partition("-")[0]
                time.sleep(dice.uniform(*KINDS[kind]))
                # Too late, if it fails: another worker has it by now, and does it again.
                with suppress(HttpResponseError):
                    queue.delete_message(message)

    @contextmanager
    def _azure(self) -> Iterator[QueueClient]:
        queue = QueueClient.from_connection_string(self._connection_string, self.queue)
        try:
            with queue:
                yield queue
        except (HttpResponseError, ServiceRequestError) as error:
            self._troubles.append(f"{threading.current_thread().name}: {error}")

    def delete_queues(self) -> None:
        """Delete what the loop has created."""
        with self._client() as client:
            for name in (self.queue, self._notices):
                with suppress(QueueNotFound):
                    client.delete_queue(name)

    @property
    def _notices(self) -> str:
        # Late: a story without Spark imports this module, too.
        from leasehold.spark.feedback import NOTICES  # noqa: PLC0415

        return self.queue + NOTICES

    def _client(self) -> Client:
        return Client.from_connection_string(self._connection_string)

    def _events(self, client: Client) -> list[Event]:
        return [each for each in client.events() if each.queue == self.queue]

    def _start_query(self) -> None:
        checkpoint = self._root / "loop" / "checkpoint"
        checkpoint.parent.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            CONNECTION_VARIABLE: self._connection_string,
            "PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "src"))),
        }
        with (self._root / "logs" / "loop.log").open("wb") as log:
            self._query = subprocess.Popen(
                (
                    *(sys.executable, "-m", "examples.video_pipeline.loop_query"),
                    *(self.queue, str(checkpoint)),
                ),
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.PIPE,  # which breaks when we are gone, whatever the reason
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


# --- what the log says -------------------------------------------------------------------------


def outcome(
    queue: str,
    events: Iterable[Event],
    notice: Mapping[str, Any] | None,
    troubles: Iterable[str] = (),
) -> LoopOutcome:
    """Return what became of deletes before and after the first change of the timeout.

    Args:
        queue: Its name.
        events: Of the queue, from its beginning on.
        notice: What producers were told.
        troubles: What went wrong.
    """
    log = [*events]
    began_ms = next((each.at_ms for each in log if each.type == "put"), 0)
    change = next((each for each in log if _is_change(each)), None)
    changed_ms = change.at_ms if change is not None else None
    counts = {kind: [0, 0, 0, 0] for kind in KINDS}
    granted: dict[str, Event] = {}
    across: dict[tuple[str, int], Event] = {}
    broken: list[str] = []
    for each in log:
        message = each.message_id
        if message is None:
            continue
        late = _late_or_not(each)
        if late is not None and each.message_type in counts:
            is_after = changed_ms is not None and (each.since_ms or 0) > changed_ms
            counts[each.message_type][2 * is_after] += 1
            counts[each.message_type][2 * is_after + 1] += late
        if each.type == "received":
            granted[message] = each
            continue
        lease = granted.get(message)
        if lease is None or changed_ms is None or each.at_ms < changed_ms or each.type == "refused":
            continue
        if lease.at_ms <= changed_ms:
            across[message, lease.dequeue_count or 0] = lease
            if each.type == "lease-ended" or each.visible_at_ms != lease.visible_at_ms:
                broken.append(f"{message}: {each.type}")
        del granted[message]
    return LoopOutcome(
        queue=queue,
        old_s=LEASE_S,
        new_s=None if change is None else _new_s(change),
        applied_after_s=None if changed_ms is None else (changed_ms - began_ms) / 1000,
        deletes=tuple(
            Deletes(
                kind=kind, before=some[0], late_before=some[1], after=some[2], late_after=some[3]
            )
            for kind, some in counts.items()
        ),
        leases_across=len(across),
        broken=tuple(broken),
        notice=notice,
        troubles=tuple(troubles),
    )


def _is_change(event: Event) -> bool:
    return event.type == "queue-updated" and "visibility_timeout_s" in (event.reason or "")


def _new_s(change: Event) -> int:
    """Return the timeout that was set: the reason has ``visibility_timeout_s: 1 -> 4``."""
    told = (change.reason or "").partition("visibility_timeout_s: ")[2]
    return int(told.partition(" -> ")[2].partition(";")[0])


def _late_or_not(event: Event) -> int | None:
    """Return whether a delete came when its lease was over; None for what is no delete."""
    if event.type == "refused":
        return 1 if event.since_ms else None
    if event.type != "completed" or event.phase != "leased" or event.visible_at_ms is None:
        return None
    return int(event.visible_at_ms <= event.at_ms)
