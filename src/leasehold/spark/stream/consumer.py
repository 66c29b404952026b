"""The driver's side of a stream of claims: which comes next, which are settled, which are kept.

Nothing here is of Spark; :mod:`leasehold.spark.stream.reader` calls it in Spark's order.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from leasehold.client import LeaseholdClientError, QueueNotFound, RetryPolicy
from leasehold.client.errors import (
    ClaimBroken,
    ClaimNotFound,
    ClaimOutOfTurn,
    ClaimSettled,
    StaleToken,
    StreamNotFound,
)
from leasehold.client.models import ClaimInfo
from leasehold.clock import Clock, SystemClock
from leasehold.spark.connecting import connect, missing_queue_named, patient
from leasehold.spark.options import ReadOptions
from leasehold.spark.stream import admission
from leasehold.spark.stream.ahead import Ahead
from leasehold.spark.stream.keeping import Keeper
from leasehold.spark.stream.numbers import Totals, backlog, stream_address
from leasehold.spark.stream.opening import Opener, Taking
from leasehold.spark.stream.problems import (
    DataLost,
    log,
    report_loss,
    report_new_checkpoint,
    taken,
)

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
        self._scope: admission.Scope | None = None
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
            self._scope = admission.Scope(self._queue.counts().visible, held)

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
        if not admission.is_full(claim, self._options):
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
        return admission.part_count(rows, self._options.num_partitions, os.cpu_count() or 1)

    @property
    def token(self) -> int:
        """What proves that nobody else has attached since this process has."""
        assert self._stream.token is not None
        return self._stream.token

    def report(self) -> dict[str, Any] | None:
        """Return the backlog and what this query has done; as it was before if nobody answers."""
        try:
            counts = self._brisk.queue(self._options.queue).counts()
        except LeaseholdClientError as error:
            log.debug("no numbers for the progress report: %s", error)
            return self._report
        claim = self._claims.get(self._current)
        self._report = {
            "stream": stream_address(self._client, self._options),
            "token": self._stream.token,
            "claim": self._current,
            "size": 0 if claim is None else claim.size,
            **backlog(counts),
            **self._totals.as_numbers(),
        }
        return self._report

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
                "The checkpoint was put back to an earlier state, or somebody has settled by hand",
            )
            return self._settled
        try:
            done = self._stream.settle(upto)
        except ClaimOutOfTurn as error:
            last = (error.expected or 1) - 1
            report_loss(
                self._options,
                f"the checkpoint is at claim {upto}, and the server's last one is {last}. The "
                "stream was deleted, or the server's data were put back to an earlier state",
            )
            return last
        self._totals.add(done)
        self._settled = upto
        self._keeper.drop_upto(upto)
        self._fresh = {number for number in self._fresh if number > upto}
        self._claims = {number: self._claims[number] for number in self._claims if number > upto}
        if done.lost:
            log.warning(
                "%d messages up to claim %d were gone when their micro-batch was done: others had "
                "taken them too, or somebody has removed them",
                done.lost,
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
                "claim %d: an earlier run of this micro-batch has set %d messages aside. They go "
                "to the poison queue even if they can be decoded now",
                number,
                claim.noted,
            )
        return claim

    def _adopt_settled(self, number: int, settled_with: str | None) -> Adopted:
        """Return a micro-batch whose claim is settled although Spark plans it again."""
        if settled_with is None or number < self._settled:
            report_loss(
                self._options,
                f"claim {number} is settled although Spark reads it again. The checkpoint was put "
                "back to an earlier state, or somebody has settled by hand",
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
                log.warning("claim %d lapses in time, as it could not be let go: %s", number, error)

    @contextlib.contextmanager
    def _worded(self) -> Iterator[None]:
        """Say in the words of the options what the server refuses."""
        options = self._options
        try:
            with missing_queue_named(options.queue, self._client):
                yield
        except StaleToken:
            raise taken(options) from None
        except StreamNotFound:
            raise DataLost(
                f"stream {options.stream_id} of queue {options.queue} was deleted meanwhile"
            ) from None
