"""What a queue in memory is to fail at, for tests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from leasehold.worker.adapters.protocol import QueueError, Unreachable
from leasehold.worker.timing import Time

_PATIENCE_S: Final = 10.0


@dataclass(slots=True)
class _Planned:
    """A fault that waits for its calls."""

    method: str | None
    calls: int
    error: QueueError | None = None
    carried_out: bool = False
    delay_s: float = 0.0
    gate: Gate | None = None


class Gate:
    """Holds calls back until it is opened; see :meth:`Faults.hold`."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._changed = threading.Condition()
        self._arrived = 0
        self._noticed = 0
        self._is_open = False

    def wait_until_entered(self) -> None:
        """Return when one more call has come to it.

        Raises:
            TimeoutError: None came within ten seconds of the machine.
        """
        with self._changed:
            self._noticed += 1
            if not self._changed.wait_for(lambda: self._arrived >= self._noticed, _PATIENCE_S):
                raise TimeoutError("no call came to the gate")

    def open(self) -> None:
        """Let all through that stand here, and all that are still to come."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def pass_through(self) -> None:
        """Wait until it is open."""
        with self._changed:
            self._arrived += 1
            self._changed.notify_all()
            while not self._is_open:
                self._time.wait(self._changed, None)


class Faults:
    """Faults of the calls to come. All methods may be used from any thread.

    What is planned first comes first; a call meets one fault of each kind: a failure, a delay, a
    gate. ``method`` is the name of a method of the client, such as ``"renew"``; None is any.
    """

    def __init__(self, time: Time) -> None:
        self._time = time
        self._lock = threading.Lock()
        self._planned: deque[_Planned] = deque()
        self._refused: dict[str, deque[QueueError]] = {}

    def fail(
        self,
        calls: int = 1,
        *,
        method: str | None = None,
        carried_out: bool = False,
        error: QueueError | None = None,
    ) -> None:
        """Have the next *calls* fail as a whole.

        Args:
            calls: How many.
            method: Of which method.
            carried_out: Whether they do their work all the same, as when the answer gets lost.
            error: What they raise; None: Unreachable with an unknown outcome.
        """
        if error is None:
            error = Unreachable("a planned fault", outcome_unknown=True)
        self._plan(_Planned(method, calls, error=error, carried_out=carried_out))

    def refuse(self, message_id: str, error: QueueError, calls: int = 1) -> None:
        """Have the next *calls* answer *error* for this one message; nothing is done to it."""
        with self._lock:
            self._refused.setdefault(message_id, deque()).extend([error] * calls)

    def slow(self, delay_s: float, calls: int = 1, *, method: str | None = None) -> None:
        """Have the next *calls* take *delay_s* seconds of the queue's time; then they are done."""
        self._plan(_Planned(method, calls, delay_s=delay_s))

    def hold(self, calls: int = 1, *, method: str | None = None, after: bool = False) -> Gate:
        """Hold the next *calls* back until the gate that this returns is opened.

        Args:
            calls: How many.
            method: Of which method.
            after: Whether they do their work before they stand at the gate, so that only their
                answers are late.
        """
        gate = Gate(self._time)
        self._plan(_Planned(method, calls, gate=gate, carried_out=after))
        return gate

    def clear(self) -> None:
        """Plan nothing any more. Gates that hold a call stay as they are."""
        with self._lock:
            self._planned.clear()
            self._refused.clear()

    @contextmanager
    def around(self, method: str) -> Iterator[None]:
        """Do to one call what is planned for it."""
        failure, delay, gate = self._take(method)
        if delay is not None:
            self._pass_time(delay.delay_s)
        if gate is not None and gate.gate is not None and not gate.carried_out:
            gate.gate.pass_through()
        if failure is not None and failure.error is not None and not failure.carried_out:
            raise failure.error
        yield
        if gate is not None and gate.gate is not None and gate.carried_out:
            gate.gate.pass_through()
        if failure is not None and failure.error is not None and failure.carried_out:
            raise failure.error

    def refusal_of(self, message_id: str) -> QueueError | None:
        """Return what is planned for a message, once."""
        if not self._refused:
            return None
        with self._lock:
            planned = self._refused.get(message_id)
            return planned.popleft() if planned else None

    def _plan(self, planned: _Planned) -> None:
        with self._lock:
            self._planned.append(planned)

    def _take(self, method: str) -> tuple[_Planned | None, _Planned | None, _Planned | None]:
        found: list[_Planned | None] = [None, None, None]
        if not self._planned:
            return None, None, None
        with self._lock:
            for planned in list(self._planned):
                if planned.method not in {None, method}:
                    continue
                kind = 0 if planned.error is not None else 1 if planned.gate is None else 2
                if found[kind] is not None:
                    continue
                found[kind] = planned
                planned.calls -= 1
                if planned.calls <= 0:
                    self._planned.remove(planned)
        return found[0], found[1], found[2]

    def _pass_time(self, length_s: float) -> None:
        condition = threading.Condition()
        end_s = self._time.monotonic_s() + length_s
        with condition:
            while (left_s := end_s - self._time.monotonic_s()) > 0:
                self._time.wait(condition, left_s)
