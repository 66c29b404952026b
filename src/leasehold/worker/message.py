"""What a handler gets: the message, and how to say how far the work has come."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from leasehold.domain.limits import MAX_RESULT_BYTES
from leasehold.worker.adapters.protocol import Delivery, Forward, Saved, WorkerSession
from leasehold.worker.errors import Cancelled, Poison
from leasehold.worker.timing import Time

ORIGIN: Final = "leasehold.origin"
"""Property of a message that a stage has sent on: see :attr:`Message.origin`."""
FORWARDED: Final = "leasehold.forwarded_to"
"""First member of the result of such a message where it was completed: it has not come to its end.
"""
KEEP: Final[Any] = object()
"""Stands for the state that was saved last."""
_making: Final = threading.Lock()


class Holding(Protocol):
    """The lease on a message, as its handler needs it; a ``Held`` of the lease manager is one."""

    @property
    def deadline_s(self) -> float:
        """When it ends unless it is renewed, in monotonic seconds."""
        ...

    def check(self) -> None:
        """Raise LeaseLost unless it is held."""
        ...

    def extend(self, visibility_timeout_s: int) -> None:
        """Keep it for so long without renewals."""
        ...

    def save(self, saved: Saved) -> None:
        """Save progress with the message."""
        ...


class CancelToken:
    """Tells a handler that it is to stop. Safe to use from any thread."""

    __slots__ = ("_event", "_reason")

    def __init__(self) -> None:
        self._reason: str | None = None
        self._event: threading.Event | None = None

    @property
    def reason(self) -> str | None:
        """Why; None while the handler is not to stop."""
        return self._reason

    def is_set(self) -> bool:
        """Return whether the handler is to stop."""
        return self._reason is not None

    def set(self, reason: str) -> None:
        """Ask the handler to stop; only the first reason is kept."""
        with _making:
            if self._reason is None:
                self._reason = reason
            event = self._event
        if event is not None:
            event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the handler is to stop; return whether it is.

        Good in place of a sleep between two looks at something.

        Args:
            timeout_s: Seconds of the machine's time; None: no end.
        """
        with _making:
            if self._reason is not None:
                return True
            # Most messages are done without anybody waiting here.
            event = self._event = self._event or threading.Event()
        return event.wait(timeout_s)


class Message:
    """A message on a lease that is kept while its handler works.

    Args:
        delivery: As it was received.
        holding: The lease.
        time: That deadlines are measured by.
        decode: Makes the payload of the body. A ValueError means that it cannot be read.
        session: That the lease belongs to; it is told when the work gets on.
    """

    __slots__ = (
        "_decode",
        "_holding",
        "_is_deferred",
        "_payload",
        "_result",
        "_saved",
        "_saving",
        "_session",
        "_span_context",
        "_time",
        "cancel_token",
        "delivery",
        "forward",
    )

    _span_context: Any
    """Of the span that it is handled in; not there unless there is one."""

    def __init__(
        self,
        delivery: Delivery,
        holding: Holding,
        time: Time,
        decode: Callable[[bytes], Any] | None = None,
        session: WorkerSession | None = None,
    ) -> None:
        self.delivery = delivery
        self.cancel_token = CancelToken()
        self._holding = holding
        self._time = time
        self._decode = decode
        self._session = session
        self._payload: Any = KEEP
        self._saved = delivery.saved
        self._result: Any = None
        self.forward: Forward | None = None
        """Put into another queue when it is completed, in one step; None: nothing is."""
        self._is_deferred = False
        # A deferred save comes from another thread than those of the handler.
        self._saving = threading.Lock()

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.queue}, delivery {self.dequeue_count}>"

    @property
    def id(self) -> str:
        """Its id, the same at each delivery."""
        return self.delivery.message_id

    @property
    def queue(self) -> str:
        """Name of its queue."""
        return self.delivery.queue

    @property
    def origin(self) -> tuple[str, str]:
        """Queue and id of the message that its producer has put: others than :attr:`queue` and
        :attr:`id` if a stage in another queue has sent it on.
        """
        queue, _, message_id = self.properties.get(ORIGIN, "").partition("/")
        return (queue, message_id) if queue and message_id else (self.queue, self.id)

    @property
    def body(self) -> bytes:
        """What was sent; text is UTF-8."""
        return self.delivery.body

    @property
    def text(self) -> str:
        """The body as text.

        Raises:
            Poison: It is not UTF-8. Unless the handler catches it, the message is set aside.
        """
        try:
            return self.delivery.body.decode()
        except UnicodeDecodeError as error:
            raise Poison(f"encoding: the body is not UTF-8: {error.reason}") from error

    def json(self) -> Any:
        """Return what the body says as JSON.

        Raises:
            Poison: It is not JSON. Unless the handler catches it, the message is set aside.
        """
        try:
            return json.loads(self.delivery.body)
        except ValueError as error:
            raise Poison(f"encoding: the body is not JSON: {error}") from error

    @property
    def payload(self) -> Any:
        """The body as the worker's codec reads it, once; the body itself if there is no codec.

        Raises:
            Poison: It cannot be read. Unless the handler catches it, the message is set aside.
        """
        if self._payload is KEEP:
            self._payload = self._read()
        return self._payload

    async def apayload(self) -> Any:
        """Return :attr:`payload`, for asynchronous handlers: a codec may have to fetch it."""
        return await asyncio.to_thread(self._payload_now)

    def _payload_now(self) -> Any:
        return self.payload

    def _read(self) -> Any:
        if self._decode is None:
            return self.delivery.body
        try:
            return self._decode(self.delivery.body)
        except ValueError as error:
            raise Poison(f"encoding: {error}") from error

    @property
    def dequeue_count(self) -> int:
        """How often it was delivered, this time included."""
        return self.delivery.dequeue_count

    @property
    def fence(self) -> int:
        """A number that rises with each delivery, for fenced writes."""
        return self.delivery.fence

    @property
    def type(self) -> str | None:
        """What kind of work it is, if the sender said so."""
        return self.delivery.type

    @property
    def properties(self) -> Mapping[str, str]:
        """Names and values that travel with the body."""
        return self.delivery.properties

    @property
    def inserted_at_ms(self) -> int | None:
        """When it was sent, Unix milliseconds; None where the service does not say."""
        return self.delivery.inserted_at_ms

    @property
    def expires_at_ms(self) -> int | None:
        """When it expires, Unix milliseconds; None: never, or the service does not say."""
        return self.delivery.expires_at_ms

    @property
    def traceparent(self) -> str | None:
        """W3C trace context of the sender."""
        return self.delivery.traceparent

    @property
    def saved(self) -> Saved | None:
        """What was saved last, by this holder or one before it, or is about to be."""
        return self._saved

    @property
    def cancelled(self) -> bool:
        """Whether the handler is to stop."""
        return self.cancel_token.is_set()

    @property
    def cancel_reason(self) -> str | None:
        """Why the handler is to stop."""
        return self.cancel_token.reason

    @property
    def seconds_left(self) -> float:
        """Seconds until the lease ends unless it is renewed; below 0 when it has ended."""
        return self._holding.deadline_s - self._time.monotonic_s()

    def check(self) -> None:
        """Go on only while the message is held and no operator wants the work to stop.

        To be called between chunks of work. Costs no request.

        Raises:
            LeaseLost: Another worker has the message, or may have it soon.
            Cancelled: An operator, or the end of the worker, wants the work to stop.
        """
        self._holding.check()
        reason = self.cancel_token.reason
        if reason is not None:
            raise Cancelled(reason)

    def checkpoint(
        self, state: Any = KEEP, *, stage: str | None = None, fraction: float | None = None
    ) -> None:
        """Save how far the work has come; the lease is renewed with it.

        The next holder, if there is one, finds it in :attr:`saved`.

        Args:
            state: Whatever JSON can say. If it is left out, the state saved last stays.
            stage: The stage to be done next; None: as saved last.
            fraction: How much is done, 0 to 1, for people; None: as saved last.

        Raises:
            LeaseLost: See :meth:`check`; nothing was saved.
            Cancelled: See :meth:`check`; it was saved.
            BodyTooLarge: Body and progress together are over the limit of the service.
            NotSupported: The service keeps no progress.
            Unreachable: The service did not answer in time; the work may go on.
        """
        self.save(_joined(self._saved, state, stage, fraction))

    def save(self, saved: Saved) -> None:
        """Save *saved* in place of all that was saved before; otherwise as :meth:`checkpoint`."""
        with self._saving:
            self._save(saved)
        self.check()

    def _save(self, saved: Saved) -> None:
        self._holding.check()
        self._holding.save(saved)
        self._saved = saved
        self._is_deferred = False
        if self._session is not None:
            self._session.progressed(self.delivery.message_id)

    @property
    def is_deferred(self) -> bool:
        """Whether what :attr:`saved` says is not saved so far, see :meth:`defer`."""
        return self._is_deferred

    def defer(self, saved: Saved) -> None:
        """Note *saved* without a request: the next save has it, or :meth:`save_deferred` saves it.

        What is deferred when the message is completed is never saved; when its holder dies it is
        lost.
        """
        with self._saving:
            self._saved = saved
            self._is_deferred = True

    def save_deferred(self) -> None:
        """Save what was deferred, if anything is; from any thread.

        Raises:
            LeaseLost, BodyTooLarge, NotSupported, Unreachable: As :meth:`checkpoint`.
        """
        with self._saving:
            if self._is_deferred and self._saved is not None:
                self._save(self._saved)

    async def acheckpoint(
        self, state: Any = KEEP, *, stage: str | None = None, fraction: float | None = None
    ) -> None:
        """Do what :meth:`checkpoint` does, for asynchronous handlers."""
        await asyncio.to_thread(self.checkpoint, state, stage=stage, fraction=fraction)

    async def asave(self, saved: Saved) -> None:
        """Do what :meth:`save` does, for asynchronous handlers."""
        await asyncio.to_thread(self.save, saved)

    @property
    def result(self) -> Any:
        """What came of the work so far, as the event log will have it; None: nothing was said."""
        return self._result

    def set_result(self, output: Any) -> None:
        """Say what came of the work; the event log keeps it when the message is completed.

        Only queues of Leasehold keep it; with others it is dropped.

        Args:
            output: What JSON can say, of some 16,000 bytes at most.

        Raises:
            TypeError: JSON cannot say it.
            ValueError: It is too large.
        """
        result = {"output": output}
        size = size_of(result)
        if size > MAX_RESULT_BYTES:
            raise ValueError(
                f"the result has {size:,} bytes as JSON, and {MAX_RESULT_BYTES:,} are kept: store "
                "it elsewhere, and return its location"
            )
        self._result = result

    def set_stages(self, output: Any, stages: Sequence[Mapping[str, Any]]) -> None:
        """Say what came of the stages of the work, and of the last of them.

        What is too large is left out: first the output, of which the size is kept, then the stages.

        Args:
            output: The last state, which is what JSON can say.
            stages: Name, beginning, seconds, attempts and outcome of each.
        """
        whence = {"origin_id": self.origin[1]} if ORIGIN in self.properties else {}
        result = {**whence, "stages": stages, "output": output}
        if size_of(result) > MAX_RESULT_BYTES:
            result = {**whence, "stages": stages, "output_bytes": size_of(output)}
        if size_of(result) > MAX_RESULT_BYTES:
            del result["stages"]
        self._result = result

    def extend(self, visibility_timeout_s: int) -> None:
        """Ask for a lease of at least that length; renewals that come later do not shorten it.

        Args:
            visibility_timeout_s: Whole seconds from now, within what the service takes.

        Raises:
            LeaseLost: See :meth:`check`.
        """
        self._holding.extend(visibility_timeout_s)


def _joined(before: Saved | None, state: Any, stage: str | None, fraction: float | None) -> Saved:
    before = before or Saved()
    return Saved(
        stage=before.stage if stage is None else stage,
        state=before.state if state is KEEP else state,
        fraction=before.fraction if fraction is None else fraction,
    )


def size_of(value: Any) -> int:
    """Return the bytes of a value as JSON without blanks.

    Raises:
        TypeError: JSON cannot say it.
    """
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
        return len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"a result must be representable in JSON: {error}") from error
