"""Handlers for rehearsals. What they are to do is told by the environment of their process."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Self

from leasehold.worker.adapters.protocol import Lease, QueueClient, Release, Saved
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.errors import Stopped
from leasehold.worker.message import Message
from tests.reliability.worker_ledger import Journal, Ledger
from tests.reliability.worker_time import MachineTime, SharedTime

VARIABLE: Final = "REHEARSAL"
STEPS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a worker's process does."""

    worker: str
    """Its name."""
    queue: str
    connection: str = field(repr=False)
    """A connection string."""
    service: Literal["leasehold", "azure"] = "leasehold"
    folder: str
    """Where ledger and journal are."""
    clock: str | None
    """File of the shared time; None: the time of the machine."""
    slot: int | None = None
    lease_s: int = 5
    handler_s: float = 30
    concurrency: int = 16
    prefetch: int | None = 32
    runner: Literal["threads", "asyncio", "processes"] = "threads"
    renewer: Literal["thread", "process"] = "thread"
    session: bool = True
    handler: str = "fenced"
    renews: bool = True
    """False: renewals are not sent, as if they had been forgotten."""
    grace_s: float = 30
    wait_s: float = 20

    @classmethod
    def of_environment(cls) -> Self:
        """Return that of this process."""
        return cls(**json.loads(os.environ[VARIABLE]))

    def environment(self) -> dict[str, str]:
        """Return what a process is told by."""
        return {VARIABLE: json.dumps(dataclasses.asdict(self))}

    @property
    def spec(self) -> QueueSpec:
        """How the queue is opened."""
        return QueueSpec(service=self.service, queue=self.queue, connection=self.connection)


class Stage:
    """What the handlers of one process share."""

    def __init__(self, rehearsal: Rehearsal, time: SharedTime | None = None) -> None:
        folder = Path(rehearsal.folder)
        self.rehearsal = rehearsal
        self.time: SharedTime | MachineTime = time or (
            MachineTime() if rehearsal.clock is None else SharedTime(rehearsal.clock)
        )
        self.ledger = Ledger(folder, rehearsal.worker)
        self.journal = Journal(folder, rehearsal.worker)
        self.client: QueueClient = rehearsal.spec.open()
        """Beside that of the worker."""

    def note(self, what: str, message: Message, told: str = "") -> None:
        """Write into the journal."""
        self.journal.note(
            what,
            name=message.text,
            fence=message.fence,
            dequeue_count=message.dequeue_count,
            at_s=self.time.monotonic_s(),
            told=told,
        )

    def shares(self, message: Message) -> tuple[float, float]:
        """Return the seconds of work before and after the effect; the same at each delivery."""
        share = random.Random(message.text).random()
        whole_s = self.rehearsal.handler_s
        return share * whole_s, (1 - share) * whole_s


@cache
def stage() -> Stage:
    """Return that of this process."""
    return Stage(Rehearsal.of_environment())


def _act(message: Message, do: Callable[[Message], bool]) -> None:
    """Write the effect, and whether it was the first."""
    stage().note("effect" if do(message) else "repeated", message)


def fenced(message: Message) -> None:
    """Work, do the effect at some moment in between, and work on."""
    here = stage()
    before_s, after_s = here.shares(message)
    here.note("begun", message)
    here.ledger.begin(message)
    here.time.sleep(before_s, message.check)
    _act(message, here.ledger.effect_once)
    here.time.sleep(after_s, message.check)
    here.note("ended", message)


async def afenced(message: Message) -> None:
    """Do the same in a task."""
    here = stage()
    before_s, after_s = here.shares(message)
    here.note("begun", message)
    here.ledger.begin(message)
    await here.time.asleep(before_s)
    _act(message, here.ledger.effect_once)
    await here.time.asleep(after_s)
    here.note("ended", message)


def unfenced(message: Message) -> None:
    """Do the effect as people do who believe that each message is delivered once."""
    here = stage()
    before_s, after_s = here.shares(message)
    here.note("begun", message)
    here.time.sleep(before_s, message.check)
    _act(message, here.ledger.effect)
    here.time.sleep(after_s, message.check)
    here.note("ended", message)


def resuming(message: Message) -> None:
    """Work in steps, save each, go on where the last holder came to, and do the effect."""
    here = stage()
    here.note("begun", message)
    here.ledger.begin(message)
    step = 0 if message.saved is None else int(message.saved.state["step"])
    here.note("resumed", message, str(step))
    while step < STEPS:
        here.time.sleep(here.rehearsal.handler_s / STEPS, message.check)
        step += 1
        message.checkpoint({"step": step}, fraction=step / STEPS)
        here.note("saved", message, str(step))
    _act(message, here.ledger.effect_once)
    here.note("ended", message)


def zombie(message: Message) -> None:
    """Work until the lease is lost, and then try all that a holder can do."""
    here = stage()
    here.note("begun", message)
    here.ledger.begin(message)
    here.note("waits", message)  # who is stopped before that may hold a lock of the ledger
    try:
        here.time.sleep(here.rehearsal.handler_s, message.check, every_s=0.2)
    except Stopped as stopped:
        here.note("cancelled", message, type(stopped).__name__)
        haunt(here, message)
        raise


async def azombie(message: Message) -> None:
    """Do the same in a task, which is cancelled."""
    here = stage()
    here.note("begun", message)
    here.ledger.begin(message)
    here.note("waits", message)  # who is stopped before that may hold a lock of the ledger
    try:
        await here.time.asleep(here.rehearsal.handler_s)
    except BaseException as stopped:
        here.note("cancelled", message, type(stopped).__name__)
        haunt(here, message)
        raise


def haunt(here: Stage, message: Message) -> None:
    """Make the calls of a holder with a lease that is lost, and write down what they say."""
    receipt = (
        message._holding.receipt
        if hasattr(message._holding, "receipt")
        else message.delivery.receipt
    )
    lease = Lease(message.id, receipt)
    lease_s = here.rehearsal.lease_s
    release = Release(lease=lease, outcome="failed")
    tries: dict[str, Callable[[], Any]] = {
        "check": message.check,
        "checkpoint": lambda: message.checkpoint({"zombie": True}),
        "extend": lambda: message.extend(60),
        "renew": lambda: here.client.renew([lease], lease_s)[0],
        "save": lambda: here.client.save(message.delivery, receipt, Saved(stage="x"), lease_s),
        "release": lambda: here.client.release([release])[0],
        "complete": lambda: here.client.complete([lease])[0],
        "write": lambda: here.ledger.begin(message),
        "effect": lambda: here.ledger.effect_once(message),
    }
    for name, attempt in tries.items():
        try:
            came = attempt()
        except Exception as error:  # noqa: BLE001 - whatever is said is written down
            came = error
        here.note(f"tried {name}", message, type(came).__name__)


HANDLERS: Final[dict[str, Callable[[Message], Any]]] = {
    "fenced": fenced,
    "afenced": afenced,
    "unfenced": unfenced,
    "resuming": resuming,
    "zombie": zombie,
    "azombie": azombie,
}
