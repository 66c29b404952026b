"""Keeps leases by a process of its own, which nothing that a handler does can hold up."""

from __future__ import annotations

import logging
import os
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeAlias

from leasehold.worker.adapters.protocol import QueueClient, Unreachable
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.leases._renewer import (
    BEAT_S,
    Ask,
    Asked,
    Beat,
    Begin,
    Broken,
    Drop,
    GiveBack,
    Keep,
    Kept,
    Late,
    Learned,
    Lost,
    Missed,
    Open,
    Pipe,
    Ready,
    Stop,
    Take,
    Taken,
    ToRenewer,
)
from leasehold.worker.leases.base import BaseLeaseManager, RenewerStopped, lapse_of
from leasehold.worker.leases.decisions import look_again_s
from leasehold.worker.leases.held import Flight, Held, HeldState, LeaseHooks
from leasehold.worker.leases.learning import LeaseLearner
from leasehold.worker.leases.settings import LeaseSettings
from leasehold.worker.timing import ScaledTime, SystemTime

_log: Final = logging.getLogger("leasehold.worker.leases")
_START_S: Final = 60.0
_END_S: Final = 5.0
_SILENT_BEATS: Final = 40
"""After so many that did not come the process is given up; ten seconds."""
_LATE_BEATS: Final = 4
"""After so many this process looks itself which leases are over."""
_OURS: Final = (HeldState.HELD, HeldState.SETTLING)
_MAX_KINDS: Final = 1000
_CODE: Final = "from leasehold.worker.leases._renewer import main; main()"
_SpecKey: TypeAlias = tuple[str, str, str, tuple[tuple[str, str], ...]]


class ProcessLeaseManager(BaseLeaseManager):
    """Keeps the leases of this process by threads of another one.

    A handler that holds the lock of the interpreter for minutes loses no lease. The other process
    opens the queues by itself, so each client needs a ``spec``; other queues than those that are
    named here are opened with their first message. It goes on while this process is
    stopped or busy, up to ``message_timeout_s``, and ends with it, however that ends. If it is the
    other process that ends, all leases are lost at once; see :meth:`LeaseHooks.stopped`.

    Args:
        settings: When leases are renewed, and for how long.
        time: The machine's, or a scaled one.
        parallel: Most requests under way at a time, 1 or more.
        hooks: Told what happens, by a thread of this process.
        learner: Asked how long leases should be, in place of the settings.
        queues: Of which leases will be kept: the other process has opened them before it is ready.

    Raises:
        UnsafeSettings: Leases could not be kept with them.
        RenewerStopped: The process could not be started, or could not open a queue.
        TypeError: A queue has no ``spec``.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        settings: LeaseSettings,
        *,
        time: SystemTime | ScaledTime | None = None,
        parallel: int = 16,
        hooks: LeaseHooks | None = None,
        learner: LeaseLearner | None = None,
        queues: Iterable[QueueClient] = (),
    ) -> None:
        time = time or SystemTime()
        super().__init__(settings, time=time, hooks=hooks, learner=learner)
        if parallel < 1:
            raise ValueError(f"parallel is {parallel}; it must be 1 or more")
        self._keys = count(1)
        self._by_key: dict[int, Held] = {}
        self._queues: dict[_SpecKey, int] = {}
        self._opened: set[int] = set()
        self._told: dict[tuple[int, str | None], LeaseSettings] = {}
        self._waiting: Counter[int] = Counter()
        self._questions = count(1)
        self._answered_to = 0
        self._sending = threading.Lock()
        self._is_deaf = False
        self._hearers: dict[type, Callable[[Any], None]] = {
            Beat: self._hear_beat,
            Kept: self._hear_kept,
            Missed: self._hear_missed,
            Lost: self._hear_lost,
            Taken: self._hear_taken,
            Asked: self._hear_asked,
            Late: self._hear_late,
            Broken: self._hear_broken,
        }
        known = [Open(self._number_of(spec), spec) for spec in map(_spec_of, queues)]
        self._opened.update(each.queue_number for each in known)
        self._process, self._pipe = _start()
        self._begin_with(Begin(settings, time, parallel, known))
        self._reader = threading.Thread(
            target=self._read, name="leasehold-renewer-read", daemon=True
        )
        self._reader.start()

    def close(self) -> None:
        """Renew nothing more; what is still held runs out."""
        with self._lock:
            self._closed = True
            self._quiet.notify_all()
        self._send(Stop())
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._reader is not threading.current_thread():
            self._reader.join()
        with self._sending:
            self._pipe.close()

    # --- the pipe ----------------------------------------------------------------------------

    def _begin_with(self, begin: Begin) -> None:
        try:
            self._pipe.send(begin)
            answer = self._pipe.recv() if self._pipe.poll(_START_S) else None
        except (OSError, EOFError):
            answer = None
        if not isinstance(answer, Ready):
            self._process.kill()
            self._process.wait()
            self._pipe.close()
            why = answer.text if isinstance(answer, Broken) else "it does not respond"
            raise RenewerStopped(f"the process that renews leases did not start: {why}")

    def _send(self, *messages: ToRenewer) -> None:
        """Send at once: when a handler begins, its lease has to be known over there.

        That the process is not there any more is for the reader to find out.
        """
        with self._sending:
            try:
                for message in messages:
                    self._pipe.send(message)
            except BlockingIOError:
                # It does not read. Whoever sends may hold the lock that the reader needs to see
                # that it does not answer either.
                self._is_deaf = True
                self._process.kill()
            except OSError:
                pass

    def _read(self) -> None:
        silent = 0
        try:
            while silent < _SILENT_BEATS:
                if self._pipe.poll(BEAT_S):
                    silent = 0
                    message = self._pipe.recv()
                    self._hearers[type(message)](message)
                    continue
                silent += 1
                if silent >= _LATE_BEATS:
                    self._look()
            self._process.kill()
            self._fail(RenewerStopped("the process that renews leases does not respond"))
        except (EOFError, OSError):
            what = "does not respond" if self._is_deaf else "has ended"
            self._fail(RenewerStopped(f"the process that renews leases {what}"))
        except BaseException as error:  # noqa: BLE001 - whatever it is, leases are not kept
            self._process.kill()
            self._fail(error)

    def _look(self) -> None:
        """See which leases are over, as the renewer does not say so."""
        now_s = self._now_s()
        with self._lock:
            over = [held for held in self._ledger.held if now_s >= held.deadline_s]
        for held in over:
            self.lose(held, lapse_of(held))

    def _hear_beat(self, beat: Beat) -> None:
        self.lag_s, self.worst_lag_s = beat.lag_s, beat.worst_lag_s
        self.counts.late_ticks = beat.late_ticks

    def _hear_lost(self, lost: Lost) -> None:
        held = self._by_key.get(lost.key)
        if held is not None:
            self.lose(held, lost.loss)

    def _hear_asked(self, asked: Asked) -> None:
        with self._lock:
            self._answered_to = asked.number
            self._quiet.notify_all()

    def _hear_late(self, late: Late) -> None:
        self._call(self._hooks.late, late.lag_s)

    def _hear_broken(self, broken: Broken) -> None:
        raise RenewerStopped(f"the process that renews leases has failed: {broken.text}")

    def _hear_kept(self, kept: Kept) -> None:
        renewed = []
        with self._lock:
            for key, receipt, deadline_s in kept.leases:
                held = self._by_key.get(key)
                if held is not None and held.state in _OURS:
                    held.receipt, held.deadline_s = receipt, deadline_s
                    held.is_ambiguous = False
                    held.renewals += 1
                    renewed.append(held)
            self.counts.requests += 1
            self.counts.renewals += len(kept.leases)
        if self._learner is not None:
            self._learner.renewal_took(kept.took_s)
            self._tell_learned()
        if renewed:
            self._call(self._hooks.renewed, renewed, kept.took_s)

    def _hear_missed(self, missed: Missed) -> None:
        with self._lock:
            failed = [held for key in missed.keys if (held := self._by_key.get(key)) is not None]
            for key in missed.unsure:
                if key in self._by_key:
                    self._by_key[key].is_ambiguous = True
            self.counts.requests += 1
            self.counts.failures += len(missed.keys)
        if self._learner is not None:
            self._learner.renewal_took(missed.took_s, failed=True)
            self._tell_learned()
        self._call(self._hooks.failed, failed, Unreachable(missed.text))

    def _hear_taken(self, taken: Taken) -> None:
        key, receipt, deadline_s = taken
        with self._lock:
            held = self._by_key.get(key)
            if held is None:
                return
            held.receipt, held.deadline_s = receipt, deadline_s
            if held.state is HeldState.HELD and not self._waiting[key]:
                # Whoever wanted it has given up.
                held.flight = Flight.NONE
                self._send(GiveBack(key, receipt, deadline_s))
            else:
                held.flight = Flight.OFFERED
                self._quiet.notify_all()

    def _tell_learned(self) -> None:
        with self._lock:
            for (number, kind), told in [*self._told.items()]:
                settings = self._settings_of(kind)
                if settings is not told:
                    self._told[number, kind] = settings
                    self._send(Learned(number, kind, settings))

    # --- see Keeping -------------------------------------------------------------------------

    def _begin(self, held: Held) -> None:
        number = self._number_of(_spec_of(held.client))
        if self._learner is not None:
            if len(self._told) >= _MAX_KINDS:
                self._told.clear()
            self._told[number, held.delivery.type] = held.settings
        held.key = next(self._keys)
        self._by_key[held.key] = held

    def _begun(self, held: Held) -> None:
        spec = _spec_of(held.client)
        number, delivery = self._number_of(spec), held.delivery
        settings = None if held.settings is self.settings else held.settings
        keep = Keep(
            held.key,
            number,
            delivery.queue,
            delivery.message_id,
            delivery.receipt,
            delivery.type,
            settings,
            held.registered_s,
            held.deadline_s,
            held.early_s,
            held.expires_s,
        )
        if number not in self._opened:
            with self._lock:
                if number not in self._opened:
                    self._send(Open(number, spec))
                    self._opened.add(number)
        self._send(keep)

    def _forget(self, held: Held) -> None:
        if held.state is HeldState.SETTLING and not held.is_quiet:
            return  # the newest receipt is still to come
        if self._by_key.pop(held.key, None) is not None:
            self._send(Drop(held.key))
        if held.is_in_flight:
            self._quiet.notify_all()

    def _take(self, held: Held, timeout_s: float, state: HeldState) -> bool:
        with self._lock:
            until_s = self._now_s() + timeout_s
            self._waiting[held.key] += 1
            try:
                while held.state is state:
                    now_s = self._now_s()
                    if held.flight is Flight.OFFERED or self._is_at_rest(held, now_s):
                        held.flight = Flight.TAKEN
                        return True
                    if held.flight is Flight.NONE:
                        held.flight = Flight.SENT
                        self._send(Take(held.key))
                    if now_s >= until_s or self._closed:
                        return False
                    self._time.wait(self._quiet, until_s - now_s)
                return False
            finally:
                self._waiting[held.key] -= 1
                if not self._waiting[held.key]:
                    del self._waiting[held.key]

    def _is_at_rest(self, held: Held, now_s: float) -> bool:
        """Return whether it is settled long before it would be renewed, so that nobody need ask."""
        if held.state is not HeldState.SETTLING or held.flight is not Flight.NONE:
            return False
        settings = held.settings
        return now_s < look_again_s(held, settings, now_s) - settings.allowed_lag_s

    def _give_back(self, held: Held) -> None:
        with self._lock:
            if held.state is HeldState.HELD:
                held.flight = Flight.NONE
                self._send(GiveBack(held.key, held.receipt, held.deadline_s))
            else:
                held.flight = Flight.OFFERED
            self._quiet.notify_all()

    def _refresh(self, held: Held) -> None:
        """Hear what the renewer has said so far: this process may not have run for long."""
        with self._lock:
            until_s = self._now_s() + held.settings.call_timeout_s
            number = next(self._questions)
            self._send(Ask(number))
            while self._answered_to < number and not self._closed and self.failure is None:
                left_s = until_s - self._now_s()
                if left_s <= 0:
                    return
                self._time.wait(self._quiet, left_s)

    def _number_of(self, spec: QueueSpec) -> int:
        key = (spec.service, spec.queue, spec.connection, tuple(sorted(spec.options.items())))
        return self._queues.setdefault(key, len(self._queues))


def _spec_of(client: QueueClient) -> QueueSpec:
    spec = getattr(client, "spec", None)
    if not isinstance(spec, QueueSpec):
        raise TypeError(
            f"another process cannot open {client.name}: make the client from a QueueSpec or"
            " a connection string"
        )
    return spec


def _start() -> tuple[subprocess.Popen[bytes], Pipe]:
    own, other = socket.socketpair()
    seconds, rest_s = divmod(_SILENT_BEATS * BEAT_S, 1)
    patience = struct.pack("@ll", int(seconds), int(rest_s * 1e6))  # a timeval, as sockets take it
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
    with other:
        paths = [str(Path(path).resolve()) for path in sys.path]
        process = subprocess.Popen(  # noqa: S603 - this Python, with arguments of our own
            [sys.executable, "-P", "-c", _CODE, str(other.fileno()), str(os.getpid())],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return process, Connection(own.detach())
