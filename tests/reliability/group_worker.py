"""A worker on a queue with groups, in a process of its own: to be killed or stopped at any moment.

It writes down all that it does before it goes on, see :mod:`tests.reliability.group_history`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

from leasehold.client import Client
from leasehold.client.errors import LeaseholdClientError
from leasehold.client.models import ReceivedMessage
from leasehold.client.retries import RetryPolicy
from leasehold.clock import SystemClock
from tests.e2e.server import DEV_ACCOUNT
from tests.reliability.group_history import (
    Act,
    Close,
    Effect,
    Hold,
    Notes,
    Receive,
    Save,
    Settle,
    is_free,
)

CLOCK: Final = SystemClock()
_SKEW_S: Final = 0.1
"""Leases may end so much earlier than is said, as clocks are read in turn."""
_SESSION_S: Final = 3
_SESSION_LEASE_S: Final = 20
"""Longer than a session lives: what a dead worker held comes back with its session."""
RETRIES: Final = RetryPolicy(attempts=2, initial_s=0.05)
_HOLDING: Final = 0.4
"""How often a worker with a session holds groups."""
_HOLDS: Final = 6
_FAILING: Final = 0.05
"""Share of the messages that fail."""
_FAILING_OFTEN: Final = 0.15
_SLOW: Final = 0.01
"""Share of those that take longer than a lease."""
_CLAIMING: Final = 0.5
"""How often a worker claims before it serves a queue that it may claim from."""
_CLAIMS: Final = 4
_TURNS: Final = 20
"""Receives before a worker goes to another queue or server, perhaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker is to do."""

    name: str
    urls: Sequence[str]
    queues: Sequence[str]
    folder: Path
    seed: int
    lease_s: int
    with_session: bool
    claims: Sequence[str] = ()
    """Queues of which it claims messages now and then, to give them back."""
    fragile: Sequence[str] = ()
    """Queues whose messages fail often."""


class _Worker:
    """The worker in its process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rng = Random(job.seed)
        self._notes = Notes(job.folder / f"{job.name}.jsonl")
        self._answers = count()
        self._clients = [
            Client(url, DEV_ACCOUNT, retries=RETRIES, timeout_s=5.0) for url in job.urls
        ]

    def run(self) -> None:
        """Work until the process is killed."""
        while True:
            client = self._rng.choice(self._clients)
            try:
                self._serve(client)
            except LeaseholdClientError:
                time.sleep(0.05)

    def _serve(self, client: Client) -> None:
        """Receive and handle from one server for a while."""
        queue = client.queue(self._rng.choice(self._job.queues))
        if queue.name in self._job.claims and self._rng.random() < _CLAIMING:
            self._claim(queue)
        opened: AbstractContextManager[Any] = nullcontext()
        if self._job.with_session:
            opened = client.session(self._job.name, timeout_s=_SESSION_S, heartbeat=None)
        with opened as session:
            try:
                self._serve_from(queue, session)
            finally:
                # An error ends it too, long before its leases would end by time.
                if session is not None:
                    self._notes.add(Close(worker=self._job.name, sent_s=time.monotonic()))

    def _serve_from(self, queue: Any, session: Any) -> None:
        """Receive and handle, or hold groups, perhaps in a session."""
        if session is not None and self._rng.random() < _HOLDING:
            self._serve_groups(queue, session)
            return
        for _ in range(_TURNS):
            lives_s = float("inf")
            if session is not None:
                lives_s = time.monotonic() + _SESSION_S - _SKEW_S
                session.beat()
            sent_s = time.monotonic()
            messages = queue.receive(
                self._rng.choice((1, 2, 5, 5)),
                visibility_timeout_s=_SESSION_LEASE_S if session else self._job.lease_s,
                wait_s=0.3,
                session=session,
            )
            self._note(messages, sent_s, lives_s)
            self._handle(queue, messages)
            if not messages:
                return

    def _claim(self, queue: Any) -> None:
        """Claim some messages, and give them back: handed out by another way, and nothing else."""
        stream = queue.stream(f"{self._job.name}-{next(self._answers)}")
        stream.attach()
        for _ in range(_CLAIMS):
            if stream.open(1, limit=self._rng.randint(1, 5), lease_s=self._job.lease_s) is not None:
                time.sleep(self._rng.uniform(0.0, 0.05))
                stream.give_back(1)
        stream.delete()

    def _serve_groups(self, queue: Any, session: Any) -> None:
        """Hold groups one after the other, and count in their state."""
        for _ in range(_HOLDS):
            held = queue.hold_group(session=session)
            if held is None:
                time.sleep(0.05)
                continue
            group, got_s = f"{queue.name}:{held.group_id}", time.monotonic()
            state = int(held.state or b"0")
            noted = Hold(
                group=group,
                worker=self._job.name,
                fence=held.fence,
                found=state,
                got_s=got_s,
                ends_s=got_s,
            )
            self._notes.add(noted)
            for _ in range(self._rng.randint(1, 5)):
                lives_s = time.monotonic() + _SESSION_S - _SKEW_S
                session.beat()
                noted = replace(noted, ends_s=lives_s)
                self._notes.add(noted)
                sent_s = time.monotonic()
                messages = held.receive(
                    self._rng.choice((1, 2, 5)), visibility_timeout_s=_SESSION_LEASE_S, wait_s=0.1
                )
                self._note(messages, sent_s, lives_s)
                self._handle(queue, messages)
                state += 1
                save = Save(group=group, fence=held.fence, state=state)
                self._notes.add(save)
                held.save(str(state).encode())
                self._notes.add(replace(save, answered_s=time.monotonic()))
            self._notes.add(replace(noted, ends_s=time.monotonic()))
            held.release()

    def _note(self, messages: Sequence[ReceivedMessage], sent_s: float, lives_s: float) -> None:
        """Note what a receive brought, and until when it surely lasts."""
        got_s = time.monotonic()
        now_s = CLOCK.now_ms() / 1000
        answer = f"{self._job.name}-{next(self._answers)}"
        for place, each in enumerate(messages):
            until_ms = min(each.visible_at_ms, each.expires_at_ms or each.visible_at_ms)
            lasts_s = until_ms / 1000 - now_s - _SKEW_S
            group, number = name_of(each)
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
                    ends_s=min(lives_s, got_s + lasts_s),
                )
            )

    def _handle(self, queue: Any, messages: Sequence[ReceivedMessage]) -> None:
        """Work on what one receive brought, group by group in order."""
        stopped: set[str] = set()
        failing = _FAILING_OFTEN if queue.name in self._job.fragile else _FAILING
        for each in messages:
            draw = self._rng.random()
            group, number = name_of(each)
            if group in stopped and not is_free(group):
                self._settle(each, "return", lambda m=each: queue.release(m))
            elif draw < failing:
                stopped.add(group)
                self._settle(each, "poison", lambda m=each: queue.release(m, outcome="failed"))
            else:
                if draw < failing + _SLOW:
                    time.sleep(self._job.lease_s * 1.3)
                time.sleep(self._rng.uniform(0.0, 0.02))
                at_s = time.monotonic()
                self._notes.add(Effect(group=group, number=number, fence=each.fence, at_s=at_s))
                if self._settle(each, "complete", lambda m=each: queue.complete(m)) != "done":
                    stopped.add(group)

    def _settle(self, message: ReceivedMessage, act: Act, call: Any) -> str:
        """Give a lease up, and return how that ended."""
        group, number = name_of(message)
        sent_s = time.monotonic()
        noted = Settle(group=group, number=number, fence=message.fence, act=act, sent_s=sent_s)
        self._notes.add(noted)
        try:
            answer = call()
        except LeaseholdClientError as error:
            if error.outcome_unknown:
                return "unknown"
            self._notes.add(replace(noted, answered_s=time.monotonic(), outcome="refused"))
            return "refused"
        if act == "poison" and answer.poisoned is None:
            act = "return"
        self._notes.add(replace(noted, act=act, answered_s=time.monotonic(), outcome="done"))
        return "done"


def name_of(message: Any) -> tuple[str, int]:
    """Return the name of a message's group, with the queue in front, and its number."""
    said = json.loads(message.body)
    return said["group"], said["number"]


def body_of(group: str, number: int) -> str:
    """Return what a message says."""
    return json.dumps({"group": group, "number": number})


def names(
    queues: Sequence[str], groups: int, producer: int, since: int = 0, upto: int = sys.maxsize
) -> Iterator[tuple[str, int]]:
    """Go round groups, with numbers of each that rise, and one message without a group a round."""
    for number in range(since, upto):
        for queue in queues:
            for group in range(groups):
                yield f"{queue}:g{producer}.{group}", number
            yield f"{queue}:", producer * 1_000_000 + number


def work(job: Job) -> None:
    """Run the worker; for a new process."""
    _Worker(job).run()
