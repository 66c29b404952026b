"""The driver's side of a stream of claims: which comes next, which are settled, which are kept.

Nothing here is of Spark; :mod:`leasehold.spark.stream.reader` calls it in Spark's order.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from leasehold.client import Client, LeaseholdClientError, QueueHandle, QueueNotFound, RetryPolicy
from leasehold.client.errors import (
    ClaimBroken,
    ClaimNotFound,
    ClaimOutOfTurn,
    ClaimSettled,
    StaleToken,
    StreamNotFound,
)
from leasehold.client.handles import Stream
from leasehold.client.models import ClaimInfo, Counts, Settled
from leasehold.clock import Clock, SystemClock
from leasehold.domain.wording import count_of, form_of
from leasehold.spark.connection import connect, missing_queue, patient
from leasehold.spark.options import (
    DataLost,
    ReadOptions,
    log,
    report_loss,
    report_new_checkpoint,
    taken,
)
from leasehold.spark.stream.keeper import Keeper

_BRISK: Final = RetryPolicy(attempts=2, initial_s=0.1, patience_s=1.0)
"""For calls that come again by themselves, or that must not hold up a stop."""
_BRISK_TIMEOUT_S: Final = 5.0
_LEAVE_S: Final = 2.0
"""How long a stop waits for what is under way."""
_NOT_OURS: Final = (ClaimBroken, ClaimNotFound, ClaimSettled, QueueNotFound, StaleToken)
"""Refusals of a claim that is over, or another's."""
_HIDING: Final = frozenset({"opening", "open", "parked"})
"""States in which the members of a claim are not visible."""


class Adopted(NamedTuple):
    """The claim of a micro-batch that Spark plans."""

    number: int
    rows: int
    is_fresh: bool = False
    """This process has opened it for Spark: it was never planned before."""
    is_gone: bool = False
    """It is not there any more, and the options accept that."""
    is_bound: bool = False
    """It has been bound to a transaction, which settles it when it is published."""
    opened_at_ms: int = 0
    """When it was opened first, by the server's clock."""
    settled_with: str | None = None
    """It was settled by the publishing of this transaction."""


class Consumer:
    """One stream of claims, as the one process sees it that drives a query.

    Any method raises StreamTaken if another query has attached, DataLost if the stream is gone, and
    BadOption if the queue is. Connections that fail are tried again for as long as the options say.

    Args:
        options: Of the read; a streamId must be among them.
        clock: Tells how long it has waited for enough messages.
    """

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        assert options.stream_id is not None
        self._options = options
        self._client = connect(options.place, patient(options.retry_patience))
        self._brisk = connect(options.place, _BRISK, timeout_s=_BRISK_TIMEOUT_S)
        self._queue = self._client.queue(options.queue)
        self._stream = self._queue.stream(options.stream_id)
        self._brisk_stream = self._brisk.queue(options.queue).stream(options.stream_id)
        self._opener = Opener(self._queue, self._stream, options, clock or SystemClock())
        self._keeper = Keeper(self._extend, options.visibility_timeout, self.stop)
        self._ahead = Ahead(self._open_ahead)
        self._ahead_taking = Taking(0)
        self._settled = 0
        """Highest number that is settled, as far as known."""
        self._settled_with: str | None = None
        """The transaction that settled it, as it was when this process attached."""
        self._before: dict[int, int] = {}
        """Claims that were there when this process attached: number, and when it was opened."""
        self._claims: dict[int, ClaimInfo] = {}
        """Those that Spark has and that are not settled."""
        self._fresh: set[int] = set()
        """Of these, those that this process has opened."""
        self._current = 0
        self._scope: Scope | None = None
        self._totals = Totals()
        self._report: dict[str, Any] | None = None
        self._stopping = threading.Lock()
        self._is_stopped = False

    # --- what Spark asks -----------------------------------------------------------------------

    def begin(self) -> int:
        """Return the number after which a query without a checkpoint begins. Changes nothing.

        Raises:
            NewCheckpoint: Another checkpoint has been at the stream, and the options do not accept
                that.
        """
        with self._worded():
            try:
                settled = self._stream.get().last_settled
            except StreamNotFound:
                return 0
            if settled:
                report_new_checkpoint(self._options, settled)
            return settled

    def limit_to_now(self) -> None:
        """Take from now on only as much as there is now."""
        with self._worded():
            try:
                claims = self._stream.get().claims
            except StreamNotFound:
                claims = ()
            held = [claim.number for claim in claims if claim.state in _HIDING]
            self._scope = Scope(self._queue.counts().visible, held)

    def next(self, start: int, taking: Taking) -> int | None:
        """Settle all claims up to *start*, and open the next one.

        Spark asks for what comes after *start* only when the micro-batch that ends there is in its
        commit log, so that it can never be read again.

        Args:
            start: Number of the last claim that Spark has.
            taking: How much the next one may have.

        Returns:
            The number of the next one; None: there is nothing to take now.

        Raises:
            DataLost: What Spark has, or is to have, is not there any more.
        """
        with self._worded():
            self._attach()
            number = self._settle(start) + 1
            taking = self._within_scope(number, taking)
            if not taking.messages:
                return None
            claim = self._take_ahead(number, taking) or self._open_next(number, taking)
            if claim is None:
                return None
            if self._scope is not None:
                self._scope.take(number, claim.size)
            self._fresh.add(number)
            self._keep(claim)
            return number

    def adopt(self, number: int) -> Adopted:
        """Return the claim of a micro-batch that Spark plans, opened again if need be.

        Raises:
            DataLost: It is not there any more, or has lost members.
        """
        with self._worded():
            self._attach()
            claim = self._claims.get(number)
            if claim is None:
                found = self._open_again(number)
                if isinstance(found, Adopted):
                    return found
                claim = found
                self._keep(claim)
            self._current = number
            return Adopted(
                number,
                claim.remaining,
                is_fresh=number in self._fresh,
                is_bound=claim.transaction is not None,
                opened_at_ms=claim.opened_at_ms,
            )

    def prepare_next(self, taking: Taking) -> None:
        """Begin opening the claim after the current one, if there probably is one."""
        claim = self._claims.get(self._current)
        if not self._options.prefetch_claim or claim is None:
            return
        if not is_full(claim, self._options):
            return
        taking = self._within_scope(claim.number + 1, taking)
        if taking.messages:
            self._ahead_taking = taking
            self._ahead.begin(claim.number + 1)

    def settle(self, upto: int) -> None:
        """Settle all claims up to a number that is durable in Spark. Harmless if they are."""
        with self._worded():
            self._attach()
            if upto > self._settled:
                self._settle(upto)

    def parts(self, rows: int) -> int:
        """Return in how many parts a micro-batch is read."""
        return part_count(rows, self._options.num_partitions, os.cpu_count() or 1)

    @property
    def token(self) -> int:
        """What proves that no other consumer has attached since this process has."""
        assert self._stream.token is not None
        return self._stream.token

    def report(self) -> dict[str, Any] | None:
        """Return the backlog and what this query has done; as it was before if no server
        answers.
        """
        try:
            counts = self._brisk.queue(self._options.queue).counts()
        except LeaseholdClientError as error:
            log.debug("no numbers for the progress report: %s", error)
            return self._report
        claim = self._claims.get(self._current)
        self._report = {
            **self.identity(),
            "claim": self._current,
            "size": 0 if claim is None else claim.size,
            **backlog(counts),
            **self._totals.as_numbers(),
        }
        return self._report

    def identity(self) -> dict[str, Any]:
        """Return what tells this consumer from all others, which shows no secret."""
        address = stream_address(self._client, self._options)
        return {"stream": address, "token": self._stream.token}

    def stop(self) -> None:
        """Give back what Spark never had, and park the rest for a restart. Once is enough."""
        with self._stopping:
            if self._is_stopped:
                return
            self._is_stopped = True
            self._keeper.end(_LEAVE_S)
            ahead = self._ahead.leave(_LEAVE_S)
            spare = {self._opener.opening, self._ahead.under_way}
            spare = (spare | {None if ahead is None else ahead.number}) - {None}
            if self._stream.token is not None and self._keeper.failure is None:
                self._let_go(spare)
            self._client.close()
            self._brisk.close()

    # --- attaching and settling ----------------------------------------------------------------

    def _attach(self) -> None:
        if self._keeper.failure is not None:
            raise self._keeper.failure
        if self._stream.token is None:
            info = self._stream.attach()
            self._brisk_stream.token = info.token
            self._settled = info.last_settled
            self._settled_with = info.settled_with
            self._before = {claim.number: claim.opened_at_ms for claim in info.claims}

    def _settle(self, upto: int) -> int:
        """Settle up to a number; return the one after which to go on."""
        if upto == self._settled:
            return upto
        if upto < self._settled:
            report_loss(
                self._options,
                f"the checkpoint is at claim {upto}, and all up to {self._settled} are settled. "
                "The checkpoint was restored to an earlier state, or claims were settled by hand",
            )
            return self._settled
        try:
            done = self._stream.settle(upto)
        except ClaimOutOfTurn as error:
            last = (error.expected or 1) - 1
            report_loss(
                self._options,
                f"the checkpoint is at claim {upto}, and the server's last one is {last}. The "
                "stream was deleted, or the server's data were restored to an earlier state",
            )
            return last
        self._totals.add(done)
        self._settled = upto
        self._keeper.drop_upto(upto)
        self._fresh = {number for number in self._fresh if number > upto}
        self._claims = {number: self._claims[number] for number in self._claims if number > upto}
        if done.lost:
            log.warning(
                "%s up to claim %d gone when their micro-batch was done: another consumer has "
                "received them too, or an operator has removed them",
                count_of(done.lost, "message"),
                upto,
            )
        return upto

    # --- opening -------------------------------------------------------------------------------

    def _within_scope(self, number: int, taking: Taking) -> Taking:
        if self._scope is None:
            return taking
        return taking._replace(messages=self._scope.most(number, taking.messages))

    def _take_ahead(self, number: int, taking: Taking) -> ClaimInfo | None:
        claim = self._ahead.take(number)
        if claim is None or number in self._keeper.held:
            return claim
        # It has lapsed, and others have taken members. Spark never had it, so the rest will do.
        return self._opener.open(number, taking)

    def _open_next(self, number: int, taking: Taking) -> ClaimInfo | None:
        if number in self._before:
            return self._opener.open(number, taking)
        if self._scope is not None:
            return self._opener.open_what_is_there(number, taking)
        return self._opener.open_when_due(number, taking)

    def _open_ahead(self, number: int) -> ClaimInfo | None:
        """Open the claim after the current one; called from a thread of its own."""
        all_there = self._scope is not None
        claim = self._opener.open_ahead(number, self._ahead_taking, all_there=all_there)
        if claim is not None:
            self._keeper.hold(number)
        return claim

    def _open_again(self, number: int) -> ClaimInfo | Adopted:
        """Open a claim that an earlier process had given to Spark."""
        if number <= self._settled:
            return self._adopt_settled(number, self._settled_with)
        claim = None
        if number in self._before:
            try:
                claim = self._opener.open_again(number)
            except ClaimSettled as error:
                return self._adopt_settled(number, error.settled_with)
        if claim is not None and claim.opened_at_ms != self._before[number]:
            self._stream.give_back(number)  # what was there went away just now: this is a new one
            claim = None
        if claim is None:
            report_loss(
                self._options,
                f"claim {number} is not there any more: it was given back by hand, or lapsed and "
                "was forgotten. Its messages come again in another claim",
            )
            return Adopted(number, 0, is_gone=True)
        if claim.noted:
            log.warning(
                "claim %d: an earlier run of this micro-batch has marked %s as bad; that goes to "
                "the poison queue even if it can be decoded now",
                number,
                count_of(claim.noted, "message"),
            )
        return claim

    def _adopt_settled(self, number: int, settled_with: str | None) -> Adopted:
        """Return a micro-batch whose claim is settled although Spark plans it again."""
        if settled_with is None or number < self._settled:
            report_loss(
                self._options,
                f"claim {number} is settled although Spark reads it again. The checkpoint was "
                "restored to an earlier state, or claims were settled by hand",
            )
            return Adopted(number, 0, is_gone=True)
        return Adopted(number, 0, settled_with=settled_with)

    # --- keeping and letting go ----------------------------------------------------------------

    def _keep(self, claim: ClaimInfo) -> None:
        self._claims[claim.number] = claim
        self._current = claim.number
        self._keeper.hold(claim.number)
        self._keeper.start()

    def _extend(self, number: int) -> None:
        self._brisk_stream.extend(number, self._options.visibility_timeout)

    def _let_go(self, spare: set[int | None]) -> None:
        for number in sorted({*self._keeper.held, *filter(None, spare)}, reverse=True):
            try:
                if number in spare:
                    self._brisk_stream.give_back(number)
                else:
                    self._brisk_stream.park(number, self._options.replay_window)
            except _NOT_OURS as error:
                log.debug("claim %d needs no letting go: %s", number, error)
            except LeaseholdClientError as error:
                log.warning("claim %d was not released, and lapses later: %s", number, error)

    @contextlib.contextmanager
    def _worded(self) -> Iterator[None]:
        """Say in the words of the options what the server refuses."""
        options = self._options
        try:
            yield
        except QueueNotFound:
            raise missing_queue(options.queue, self._client) from None
        except StaleToken:
            raise taken(options) from None
        except StreamNotFound:
            raise DataLost(
                f"stream {options.stream_id} of queue {options.queue} was deleted meanwhile"
            ) from None


# --- opening -----------------------------------------------------------------------------------
#
# How claims are opened: anew, again after a crash, or when there are enough messages.


_LOOK_S: Final = 0.2
"""Between two looks at whether there are enough messages."""


class Taking(NamedTuple):
    """How much a micro-batch may have."""

    messages: int
    bytes: int | None = None
    """Of bodies; None: any number."""


class Opener:
    """Opens the claims of one stream.

    Args:
        queue: The queue.
        stream: The stream; it must be attached before a claim is opened.
        options: Of the read.
        clock: Tells how long it has waited for enough messages.
    """

    def __init__(
        self, queue: QueueHandle, stream: Stream, options: ReadOptions, clock: Clock
    ) -> None:
        self._queue = queue
        self._stream = stream
        self._options = options
        self._clock = clock
        self._holder = f"Spark stream {options.stream_id} ({socket.gethostname()}:{os.getpid()})"
        self.opening: int | None = None
        """Number of a claim that may have been opened, without anybody knowing yet."""

    def open_when_due(self, number: int, taking: Taking) -> ClaimInfo | None:
        """Open a claim, and wait a while for messages; None if there are not enough."""
        if not self._options.min_messages_per_trigger:
            return self.open(number, taking, self._options.wait_seconds)
        return self.open(number, taking) if self._await_enough() else None

    def open_what_is_there(self, number: int, taking: Taking) -> ClaimInfo | None:
        """Open a claim of what is there now, however little; None if there is nothing."""
        found = self.open(number, taking)
        if found is None and self._queue.counts().visible:
            # A limit of the queue may hold them back for a moment.
            found = self.open(number, taking, self._options.wait_seconds)
        return found

    def open(self, number: int, taking: Taking, wait_s: float = 0) -> ClaimInfo | None:
        """Open a claim that Spark has never had; None if there is nothing to claim.

        It may have been opened by an earlier process. What it has lost since was no consumer's.

        Args:
            number: Of the claim.
            taking: How much it may have, if it is new.
            wait_s: Seconds to wait for a first message.
        """
        self.opening = number
        claim = self._call(number, taking, wait_s, accept_loss=True)
        self.opening = None
        return claim

    def open_again(self, number: int) -> ClaimInfo | None:
        """Open a claim that Spark has had, with the same members; None if it is not there.

        Raises:
            DataLost: It has lost members, and the options do not accept that.
        """
        # How much it may have was said when it was opened first.
        taking = Taking(1)
        try:
            return self._call(number, taking)
        except ClaimBroken as error:
            report_loss(
                self._options,
                f"claim {number} has lost {error.lost} of its {error.size} "
                f"{form_of(error.size or 0, 'message')}. Either it "
                "lapsed, and others have taken them or they have expired: then visibilityTimeout "
                "or replayWindow was too short for the time that the query or the server was away. "
                "Or an operator has removed them",
            )
        return self._call(number, taking, accept_loss=True)

    def open_ahead(self, number: int, taking: Taking, *, all_there: bool) -> ClaimInfo | None:
        """Open a claim before anybody asks for it.

        Args:
            number: Of the claim.
            taking: How much it may have.
            all_there: Whether it may be smaller than is usually waited for.
        """
        if self._options.min_messages_per_trigger and not all_there and not self._is_enough():
            return None
        return self._call(number, taking)

    def _await_enough(self) -> bool:
        """Wait until there are enough messages, but no longer than ``waitSeconds``."""
        until_s = self._clock.monotonic_s() + self._options.wait_seconds
        pause = threading.Event()
        while not self._is_enough():
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                return False
            pause.wait(min(left_s, _LOOK_S))
        return True

    def _is_enough(self) -> bool:
        options = self._options
        counts = self._queue.counts()
        return is_due(counts, options.min_messages_per_trigger, options.max_trigger_delay)

    def _call(
        self, number: int, taking: Taking, wait_s: float = 0, *, accept_loss: bool = False
    ) -> ClaimInfo | None:
        return self._stream.open(
            number,
            limit=taking.messages,
            lease_s=self._options.visibility_timeout,
            wait_s=wait_s,
            max_bytes=taking.bytes,
            holder=self._holder,
            accept_loss=accept_loss,
        )


# --- ahead -------------------------------------------------------------------------------------
#
# Opening the next claim while Spark works on this one.


class Ahead:
    """At most one claim, opened in a thread of its own and not yet given to Spark.

    Args:
        open_claim: Opens a claim by its number; called in the thread.
    """

    def __init__(self, open_claim: Callable[[int], ClaimInfo | None]) -> None:
        self._open = open_claim
        self._thread: threading.Thread | None = None
        self._number = 0
        self._claim: ClaimInfo | None = None

    def begin(self, number: int) -> None:
        """Start opening claim *number*, unless one is being opened or kept already."""
        if self._thread is not None:
            return
        self._number, self._claim = number, None
        self._thread = threading.Thread(
            target=self._work, name="leasehold-claim-ahead", daemon=True
        )
        self._thread.start()

    def take(self, number: int) -> ClaimInfo | None:
        """Return claim *number* if it was opened ahead; waits while it is being opened."""
        if self._thread is None or self._number != number:
            return None
        return self.leave()

    @property
    def under_way(self) -> int | None:
        """Number of the claim that is being opened just now, if any."""
        thread = self._thread
        return self._number if thread is not None and thread.is_alive() else None

    def leave(self, patience_s: float | None = None) -> ClaimInfo | None:
        """Return the claim that was opened and never taken, and forget it.

        Args:
            patience_s: Seconds to wait while it is being opened; None: until it is.
        """
        thread = self._thread
        if thread is None:
            return None
        thread.join(patience_s)
        if thread.is_alive():
            return None
        self._thread = None
        claim, self._claim = self._claim, None
        return claim

    def _work(self) -> None:
        try:
            self._claim = self._open(self._number)
        except LeaseholdClientError as error:
            # Whoever asks for the claim next opens it again, and is told.
            log.debug("claim %d could not be opened ahead: %s", self._number, error)
        except RuntimeError as error:  # the client was closed under it
            log.debug("claim %d was not opened ahead: %s", self._number, error)


# --- numbers -----------------------------------------------------------------------------------
#
# What a query tells of itself and of its queue, in ``progress.sources[i].latestOffset``.


class Totals:
    """What the settling of claims has done since this process began."""

    def __init__(self) -> None:
        self.completed = 0
        self.exempted = 0
        self.lost = 0

    def add(self, done: Settled) -> None:
        """Count what one call has done."""
        self.completed += done.completed
        self.exempted += done.exempted
        self.lost += done.lost

    def as_numbers(self) -> dict[str, int]:
        """Return all three by name."""
        return {"completed": self.completed, "exempted": self.exempted, "lost": self.lost}


def backlog(counts: Counts) -> dict[str, int]:
    """Return how many messages are in which state, and how long the oldest one waits, whole s."""
    return {
        "visible": counts.visible,
        "leased": counts.leased,
        "delayed": counts.delayed,
        "deferred": counts.deferred,
        "poisoned": counts.poisoned,
        "expired": counts.expired,
        "oldest_age_s": int(counts.oldest_age_s.get("visible", 0)),
    }


def stream_address(client: Client, options: ReadOptions) -> str:
    """Return what names a stream among all there are. It shows no secret."""
    return f"{client.url}/{client.account}/{options.queue}/{options.stream_id}"


def claim_in(offset: Any) -> int:
    """Return the number of the claim at which an offset ends.

    Raises:
        ValueError: It is not an offset of this source.
    """
    number = offset.get("claim") if isinstance(offset, dict) else None
    if not isinstance(number, int):
        raise ValueError(  # noqa: TRY004 - it is what a checkpoint says, not what a caller passes
            f"the checkpoint's offset {offset!r} was not written by this source: the checkpoint "
            "belongs to another one"
        )
    return number


def offset_of(number: int) -> dict[str, int]:
    """Return the offset at the end of a claim."""
    return {"claim": number}


# --- admission ----------------------------------------------------------------------------------
#
# When a micro-batch begins, whether there is more, and in how many parts: decisions only.


ROWS_PER_PART: Final = 5_000
"""A task costs some 20 ms before its first row: fewer rows than this are not worth one."""
_LEAST_PARTS: Final = 2
_MOST_PARTS: Final = 16


def is_due(counts: Counts, least: int, delay_s: float) -> bool:
    """Tell whether to begin a micro-batch: there are enough messages, or one has waited enough.

    Args:
        counts: Of the queue, now.
        least: How many are enough.
        delay_s: Seconds that a message may be visible before it is taken even if they are fewer.
    """
    if counts.visible >= least:
        return True
    return counts.visible > 0 and counts.oldest_age_s.get("visible", 0.0) >= delay_s


def is_full(claim: ClaimInfo, options: ReadOptions) -> bool:
    """Tell whether a claim has as much as it may, so that there is probably more to be claimed.

    A claim does not say how many bytes it has. Only a limit that the user has set is taken for
    reached: opened ahead with the few messages that have come since, claims would get small.
    """
    return claim.size >= claim.limit or options.max_bytes_per_trigger is not None


def part_count(rows: int, given: int | None, processors: int) -> int:
    """Return in how many parts a micro-batch is read.

    Args:
        rows: Messages of the claim.
        given: What the options say; None: decide by rows and processors.
        processors: Of this machine.
    """
    if given is not None:
        return given
    most = min(max(processors, _LEAST_PARTS), _MOST_PARTS)
    return max(1, min(most, -(-rows // ROWS_PER_PART)))


class Scope:
    """What a query with Trigger.AvailableNow may still take, so that a busy queue ends too.

    Args:
        visible: Messages that could be claimed when the query began.
        held: Numbers of claims that had leased their members already: these are not among them.
    """

    def __init__(self, visible: int, held: Iterable[int]) -> None:
        self._left = visible
        self._held = frozenset(held)

    def most(self, number: int, most: int) -> int:
        """Return how many messages claim *number* may have, at most *most*; 0: none, the end."""
        return most if number in self._held else max(0, min(most, self._left))

    def take(self, number: int, size: int) -> None:
        """Note that claim *number* was opened with *size* messages."""
        if number not in self._held:
            self._left -= size
