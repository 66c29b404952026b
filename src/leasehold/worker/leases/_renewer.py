"""The process that renews leases for a worker, whatever the worker is busy with.

It ends when its worker does, however that ends, and renews nothing for a dead one: a lease that
outlives its worker would hide the message.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final, NamedTuple, NoReturn, TypeAlias

from leasehold.garbage import spare_collecting
from leasehold.worker.adapters.protocol import Delivery, QueueClient, QueueError, Renewed
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.leases.held import Flight, Held, HeldState, LeaseHooks, Loss
from leasehold.worker.leases.manager import Batch, LeaseManager
from leasehold.worker.leases.settings import LeaseSettings
from leasehold.worker.timing import SystemTime, Time

BEAT_S: Final = 0.25
"""Of the machine's time: so often it says that it is alive, and looks whether its worker is."""
_log: Final = logging.getLogger("leasehold.worker.leases")


class Outbox:
    """Sends in a thread of its own, so that nothing here waits for a worker that does not read."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._waiting: deque[FromRenewer] = deque()
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="leasehold-renewer-send", daemon=True).start()

    def put(self, message: FromRenewer) -> None:
        """Send a message, after those before it."""
        with self._changed:
            self._waiting.append(message)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                message = self._waiting.popleft()
            try:
                self._pipe.send(message)
            except OSError:
                os._exit(0)  # the worker is gone
            if isinstance(message, Broken):
                os._exit(1)


class Reports(LeaseHooks):
    """Tells the worker what happens."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def renewed(self, helds: Sequence[Held], took_s: float) -> None:
        """Tell the new receipts."""
        leases = [(held.key, held.receipt, held.deadline_s) for held in helds]
        self._outbox.put(Kept(took_s, leases))

    def lost(self, held: Held, loss: Loss) -> None:
        """Tell of a loss."""
        self._outbox.put(Lost(held.key, loss))

    def late(self, lag_s: float) -> None:
        """Tell of a lag."""
        self._outbox.put(Late(lag_s))

    def stopped(self, error: BaseException) -> None:
        """End: the worker has to know, and does by that as well."""
        self._outbox.put(Broken(f"{type(error).__name__}: {error}"))


class Renewer(LeaseManager):
    """A manager whose leases are settled by another process."""

    def __init__(self, begin: Begin, outbox: Outbox, worker: int) -> None:
        self._outbox = outbox
        self._worker = worker
        self._by_key: dict[int, Held] = {}
        self._wanted: set[Held] = set()
        self._queues: dict[int, QueueClient] = {}
        self._by_type: dict[tuple[int, str | None], LeaseSettings] = {}
        super().__init__(
            begin.settings, time=begin.time, parallel=begin.parallel, hooks=Reports(outbox)
        )

    def obey(self, message: ToRenewer) -> None:
        """Do what the worker wants."""
        match message:
            case Keep():
                self._keep(message)
            case Drop(key):
                self._drop_key(key)
            case Take(key):
                self._offer(key)
            case GiveBack(key, receipt, deadline_s):
                self._resume(key, receipt, deadline_s)
            case Ask(number):
                self._outbox.put(Asked(number))
            case Open(number, spec):
                self._queues[number] = spec.open()
            case Learned(number, kind, settings):
                if number in self._queues:
                    self._by_type[id(self._queues[number]), kind] = settings
            case Stop():
                os._exit(0)

    def end_if_alone(self) -> None:
        """End if the worker is dead.

        The pipe alone does not say so: a process that the worker has forked may hold its end.
        """
        if os.getppid() != self._worker:
            os._exit(0)

    def beat(self) -> None:
        """Say that this process is alive."""
        self._outbox.put(Beat(self.lag_s, self.worst_lag_s, self.counts.late_ticks))

    def _keep(self, message: Keep) -> None:
        delivery = Delivery(
            queue=message.queue,
            message_id=message.message_id,
            receipt=message.receipt,
            type=message.type,
        )
        held = Held(
            self,
            self._queues[message.queue_number],
            delivery,
            message.settings or self.settings,
            registered_s=message.registered_s,
            deadline_s=message.deadline_s,
            early_s=message.early_s,
            expires_s=message.expires_s,
        )
        held.key = message.key
        self._add(held)
        self._by_key[message.key] = held

    def _drop_key(self, key: int) -> None:
        held = self._by_key.pop(key, None)
        if held is not None:
            with self._lock:
                held.state = HeldState.DONE
                self._wanted.discard(held)
                self._ledger.drop(held)
                self._forget(held)

    def _offer(self, key: int) -> None:
        """Let go of a lease as soon as nothing is in flight for it."""
        held = self._by_key.get(key)
        if held is not None:
            with self._lock:
                self._wanted.add(held)
            self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            for held in [*self._wanted]:
                if held.flight is not Flight.SENT:
                    held.flight = Flight.TAKEN
                    self._wanted.discard(held)
                    self._outbox.put(Taken(held.key, held.receipt, held.deadline_s))

    def _resume(self, key: int, receipt: str, deadline_s: float) -> None:
        held = self._by_key.get(key)
        if held is not None:
            with self._lock:
                held.receipt, held.deadline_s = receipt, deadline_s
            self._give_back(held)

    # --- see LeaseManager --------------------------------------------------------------------

    def _settings_now(self, held: Held) -> LeaseSettings:
        return self._by_type.get((id(held.client), held.delivery.type), held.settings)

    def _renew(self, batch: Batch) -> None:
        self.end_if_alone()
        super()._renew(batch)

    def _answered(
        self,
        batch: Batch,
        helds: list[Held],
        answers: Sequence[Renewed | QueueError],
        sent_at_s: float,
    ) -> None:
        super()._answered(batch, helds, answers, sent_at_s)
        if self._wanted:
            self._let_go()

    def _tell(
        self, renewed: list[Held], failed: list[Held], failure: QueueError | None, took_s: float
    ) -> None:
        super()._tell(renewed, failed, failure, took_s)
        if failure is not None:
            keys = [held.key for held in failed]
            unsure = [held.key for held in failed if held.is_ambiguous]
            self._outbox.put(Missed(keys, unsure, str(failure), took_s))


def run(pipe: Pipe, worker: int) -> NoReturn:
    """Renew leases until the worker ends."""
    begin = pipe.recv()
    outbox = Outbox(pipe)
    renewer = Renewer(begin, outbox, worker)
    for queue in begin.queues:
        # Before any lease: to load the SDK of a service can take longer than a lease lasts.
        renewer.obey(queue)
    outbox.put(Ready())
    spare_collecting()
    time = SystemTime()
    beat_at_s = time.monotonic_s()
    while True:
        if pipe.poll(BEAT_S):
            renewer.obey(pipe.recv())
        now_s = time.monotonic_s()
        if now_s >= beat_at_s:
            beat_at_s = now_s + BEAT_S
            renewer.end_if_alone()
            renewer.beat()


def main() -> None:
    """Run in a process of its own; the arguments are a file descriptor and the worker's id."""
    # Who wants the worker to end signals its whole group, or its container. The worker may take
    # its time then, and its leases have to be kept until it is done.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _log.setLevel(logging.ERROR)  # what is lost the worker says itself
    descriptor, worker = map(int, sys.argv[1:])
    pipe = Connection(descriptor)
    try:
        run(pipe, worker)
    except (EOFError, ConnectionResetError, BrokenPipeError):
        os._exit(0)  # at once: no thread may send another renewal
    except BaseException as error:  # noqa: BLE001 - whatever it is, leases are not kept
        _log.exception("the process that renews leases has failed")
        pipe.send(Broken(f"{type(error).__name__}: {error}"))
        os._exit(1)


# --- wire --------------------------------------------------------------------------------------
#
# What a worker and the process that renews for it say to each other.
#
# Messages are pickled tuples of these classes over a pair of sockets that nobody else has. Moments
# are monotonic seconds, which all processes of a machine share.


Pipe: TypeAlias = Connection


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message to the renewer."""

    settings: LeaseSettings
    time: Time
    parallel: int
    queues: Sequence[Open]
    """Those that are known; they are opened before Ready."""


class Open(NamedTuple):
    """A queue that leases will come from."""

    queue_number: int
    spec: QueueSpec


class Keep(NamedTuple):
    """A lease to be kept from now on."""

    key: int
    queue_number: int
    queue: str
    message_id: str
    receipt: str
    type: str | None
    settings: LeaseSettings | None
    """None: those of the beginning."""
    registered_s: float
    deadline_s: float
    early_s: float
    expires_s: float


class Drop(NamedTuple):
    """A lease not to be kept any more."""

    key: int


class Take(NamedTuple):
    """A lease that is not to be renewed until it is given back; answered by Taken."""

    key: int


class GiveBack(NamedTuple):
    """A lease to be renewed again."""

    key: int
    receipt: str
    deadline_s: float


class Ask(NamedTuple):
    """Answered by Asked, which comes after all that there was to say before."""

    number: int


class Learned(NamedTuple):
    """How leases of one queue and type are renewed from now on."""

    queue_number: int
    type: str | None
    settings: LeaseSettings


class Stop(NamedTuple):
    """The last message."""


class Ready(NamedTuple):
    """The renewer has begun."""


class Beat(NamedTuple):
    """The renewer is alive."""

    lag_s: float
    worst_lag_s: float
    late_ticks: int


class Kept(NamedTuple):
    """Leases that one request has renewed."""

    took_s: float
    leases: list[tuple[int, str, float]]
    """Key, receipt, deadline."""


class Missed(NamedTuple):
    """Renewals that failed, to be tried again."""

    keys: list[int]
    unsure: list[int]
    """Keys of those that may have been carried out all the same."""
    text: str
    took_s: float


class Lost(NamedTuple):
    """The work on a message has to stop."""

    key: int
    loss: Loss


class Taken(NamedTuple):
    """Nothing is in flight for it, and nothing will be."""

    key: int
    receipt: str
    deadline_s: float


class Asked(NamedTuple):
    """See Ask."""

    number: int


class Late(NamedTuple):
    """A tick was later than allowed."""

    lag_s: float


class Broken(NamedTuple):
    """The renewer ends: it cannot keep leases."""

    text: str


ToRenewer: TypeAlias = Open | Keep | Drop | Take | GiveBack | Ask | Learned | Stop
FromRenewer: TypeAlias = Ready | Beat | Kept | Missed | Lost | Taken | Asked | Late | Broken
