"""What every manager of leases does for the messages it holds, however it renews them."""

from __future__ import annotations

import logging
import math
import random
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Final, TypeAlias, TypeVar

from leasehold.domain.wording import count_of
from leasehold.worker.adapters.protocol import (
    Capabilities,
    Delivery,
    Lease,
    PastExpiry,
    QueueClient,
    QueueError,
    Renewed,
    Saved,
    Unreachable,
)
from leasehold.worker.errors import LeaseLost, MessageExpired
from leasehold.worker.leases.decisions import (
    Verdict,
    call_timeout_s,
    fitting_s,
    is_ambiguous,
    is_at_expiry,
    judge,
    leased_from_s,
    shorter_s,
)
from leasehold.worker.leases.held import (
    AlreadySettled,
    Held,
    HeldState,
    LeaseCounts,
    LeaseHooks,
    Loss,
)
from leasehold.worker.leases.learning import LeaseLearner
from leasehold.worker.leases.settings import LeaseSettings
from leasehold.worker.timing import SystemTime, Time

_log: Final = logging.getLogger("leasehold.worker.leases")

_STOPPED: Final = Loss("renewer", "leases are no longer renewed")
_LOUD: Final = frozenset({"denied", "renewer"})
_Ask: TypeAlias = Callable[[Lease, int, float], Renewed]
"""Renews a lease: with it, for so many seconds, by a request that may take so many."""
_MAX_LEARNED: Final = 1000
"""Different settings that are kept ready."""


class RenewerStopped(RuntimeError):
    """Leases are not renewed any more: the manager is closed, or its thread has failed."""


class BaseLeaseManager(ABC):
    """Holds, settles, saves; those who inherit renew.

    One lock guards all messages. It is never held while a request is under way, or while a
    callback runs.
    """

    def __init__(
        self,
        settings: LeaseSettings,
        *,
        time: Time | None,
        hooks: LeaseHooks | None,
        learner: LeaseLearner | None,
    ) -> None:
        settings.check()
        self.settings = settings
        self.lag_s = 0.0
        """How late the last tick was."""
        self.worst_lag_s = 0.0
        """How late the latest was."""
        self.failure: BaseException | None = None
        """Why leases are not renewed any more, if that is so."""
        self._time = time or SystemTime()
        self._hooks = hooks or LeaseHooks()
        self._learner = learner
        self._learned: dict[tuple[int, int], LeaseSettings] = {}
        self._lock = threading.Lock()
        self._quiet = threading.Condition(self._lock)
        self._ledger = Ledger()
        self._closed = False
        self._random = random.Random()  # noqa: S311 - it only spreads load

    # --- for workers -------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """How many leases are kept."""
        return len(self._ledger.held)

    @property
    def counts(self) -> LeaseCounts:
        """What was done so far."""
        return self._ledger.counts

    def lease_s(self, message_type: str | None = None) -> int:
        """Return how long leases are now: what was learned, or what is set."""
        return self._settings_of(message_type).visibility_timeout_s

    def keep(
        self,
        client: QueueClient,
        delivery: Delivery,
        *,
        asked_at_s: float,
        lease_s: int | None = None,
        wait_s: float = 0.0,
    ) -> Held:
        """Keep a lease from now on, until it is settled or lost.

        Call it at once for everything that a receive has brought, also for what has to wait. One of
        which less is left than ``message_minimal_life_s`` is renewed at once.

        Args:
            client: Where it came from.
            delivery: The message.
            asked_at_s: Monotonic seconds before the receive was sent.
            lease_s: Which timeout the receive asked for; None: that of the settings. What the
                delivery says itself counts before it, and its renewals are as long.
            wait_s: How long the receive let the service wait for a first message: then the lease
                is counted from the answer, which is now, and not from the request.

        Raises:
            LeaseLost: The lease has ended already; MessageExpired if that is its time to live.
            UnsafeSettings: The service has no such leases.
            RenewerStopped: Leases are not renewed any more.
        """
        capabilities = client.capabilities
        if delivery.lease_s is not None:
            lease_s = delivery.lease_s
            settings = self._of_length(lease_s, 0)
        else:
            settings = self._settings_of(delivery.type, capabilities)
        length_s = settings.visibility_timeout_s
        if not capabilities.min_lease_s <= length_s <= capabilities.max_lease_s:
            settings.check(capabilities)
        now_s = self._now_s()
        from_s = leased_from_s(asked_at_s, now_s, wait_s, settings.allowed_lag_s)
        life_s = math.inf if delivery.expires_in_s is None else delivery.expires_in_s
        ends_s = from_s + (length_s if lease_s is None else lease_s)
        held = Held(
            self,
            client,
            delivery,
            settings,
            registered_s=from_s,
            deadline_s=min(ends_s, from_s + life_s),
            early_s=settings.spread_s * self._random.random(),
            expires_s=from_s + life_s,
        )
        if now_s >= held.deadline_s:
            raise self._too_late(held, now_s)
        self._add(held)
        self._begun(held)
        return held

    def _too_late(self, held: Held, now_s: float) -> LeaseLost:
        """Return why a lease cannot be kept that has ended when it is registered."""
        loss = lapse_of(held)
        with self._lock:
            self.counts.losses[loss.kind] += 1
        if loss.kind == "expired":
            return MessageExpired(loss.text, kind=loss.kind, message_id=held.delivery.message_id)
        why = (
            f"its lease ended {now_s - held.deadline_s:.1f} s before it was registered: register "
            "received messages immediately, and pass the wait of the receive (wait_s)"
        )
        return LeaseLost(why, kind=loss.kind, message_id=held.delivery.message_id)

    def was_done(self, queue: str, message_id: str) -> bool:
        """Return whether a message was done here before, and its queue may not know it.

        Then complete it at once, and do not work on it.
        """
        with self._lock:
            return self._ledger.done.holds(queue, message_id, self._now_s())

    # --- for Held ----------------------------------------------------------------------------

    def check(self, held: Held) -> None:
        """See :meth:`Held.check`."""
        if held.state is HeldState.HELD and self._now_s() >= held.deadline_s:
            self._refresh(held)
            if self._now_s() >= held.deadline_s:
                self.lose(held, lapse_of(held))
        if held.state is not HeldState.HELD:
            raise refusal(held)

    def watch(self, held: Held, callback: Callable[[Loss], object]) -> None:
        """See :meth:`Held.on_loss`."""
        with self._lock:
            loss = held.loss
            if loss is None or loss.kind == "cancelled":
                held.callbacks.append(callback)
        if loss is not None:
            self._call(callback, loss)

    def lose(self, held: Held, loss: Loss) -> None:
        """See :meth:`Held.lose`."""
        with self._lock:
            notices = self._ledger.end(held, loss)
            self._forget_if_over(held)
        self._deliver(notices)

    def extend(self, held: Held, visibility_timeout_s: int) -> None:
        """See :meth:`Held.extend`."""
        if type(visibility_timeout_s) is not int or visibility_timeout_s < 1:
            raise ValueError(f"{visibility_timeout_s!r} is not a whole number of seconds from 1")
        lease_s = min(visibility_timeout_s, held.client.capabilities.max_lease_s)

        self.check(held)
        now_s = self._now_s()
        if held.deadline_s - now_s < fitting_s(held, now_s, lease_s):
            self._change(held, lease_s, _renewal(held))

    def save(self, held: Held, saved: Saved) -> None:
        """See :meth:`Held.save`."""
        self.check(held)
        # Not shorter than what the handler may have asked for itself.
        left_s = math.ceil(held.deadline_s - self._now_s())
        lease_s = max(held.settings.visibility_timeout_s, left_s)
        lease_s = min(lease_s, held.client.capabilities.max_lease_s)

        def ask(_lease: Lease, length_s: int, _timeout_s: float) -> Renewed:
            if held.is_ambiguous:
                learned = self._learn_receipt(held)
                if isinstance(learned, Exception):
                    raise learned
            return held.client.save(held.delivery, held.receipt, saved, length_s)

        self._change(held, lease_s, ask)

    def begin_settling(self, held: Held) -> Lease:
        """See :meth:`Held.begin_settling`."""
        self.check(held)
        with self._lock:
            if held.state is not HeldState.HELD:
                raise refusal(held)
            held.state = HeldState.SETTLING
        held.is_quiet = self._take(held, held.settings.call_timeout_s, HeldState.SETTLING)
        with self._lock:
            notices = self._ledger.begin_settling(held, self._now_s())
            self._forget(held)
        if notices:
            self._deliver(notices)
            raise refusal(held)
        return lease_of(held)

    def settled(self, held: Held, result: QueueError | None, *, completing: bool) -> bool:
        """See :meth:`Held.settled`."""
        now_s = self._now_s()
        with self._lock:
            if held.state is not HeldState.SETTLING:
                return False
            notices = self._ledger.settled(held, result, completing=completing, now_s=now_s)
            self._forget_if_over(held)
        self._deliver(notices)
        if result is not None:
            return False
        if completing and self._learner is not None:
            self._learner.handled(held.delivery.type, now_s - held.registered_s)
        return True

    def retry_lease(self, held: Held) -> Lease | None:
        """See :meth:`Held.retry_lease`."""
        if held.state is not HeldState.SETTLING or held.result is None:
            return None
        if judge(held.result) not in (Verdict.LOST, Verdict.RETRY):
            return None
        if not held.is_quiet:
            timeout_s = held.settings.call_timeout_s
            held.is_quiet = self._take(held, timeout_s, HeldState.SETTLING)
        if held.is_quiet and held.is_ambiguous and judge(held.result) is Verdict.LOST:
            self._learn_receipt(held)
        with self._lock:
            lease, notices = self._ledger.lease_for_retry(held, self._now_s())
            self._forget_if_over(held)
        self._deliver(notices)
        return lease

    # --- for those who renew -----------------------------------------------------------------

    @abstractmethod
    def close(self) -> None:
        """Renew nothing more; what is still held runs out."""

    @abstractmethod
    def _begin(self, held: Held) -> None:
        """Start to renew it; the lock is held."""

    @abstractmethod
    def _begun(self, held: Held) -> None:
        """Start to renew it; the lock is free."""

    @abstractmethod
    def _forget(self, held: Held) -> None:
        """Renew it no more; the lock is held."""

    @abstractmethod
    def _take(self, held: Held, timeout_s: float, state: HeldState) -> bool:
        """Have nothing in flight that changes its receipt, until :meth:`_give_back`.

        Returns:
            False if something is still in flight after *timeout_s*, or when it is not in *state*
            any more. Then it is not taken.
        """

    @abstractmethod
    def _give_back(self, held: Held) -> None:
        """Go on renewing it, from its present receipt and deadline."""

    @abstractmethod
    def _refresh(self, held: Held) -> None:
        """See to it that its deadline is up to date; it has passed, as far as is known here."""

    def _add(self, held: Held) -> None:
        with self._lock:
            if self._closed or self.failure is not None:
                raise RenewerStopped("leases are no longer renewed") from self.failure
            self._begin(held)
            self._ledger.add(held)

    def _now_s(self) -> float:
        return self._time.monotonic_s()

    def _settings_of(
        self, message_type: str | None, capabilities: Capabilities | None = None
    ) -> LeaseSettings:
        learner = self._learner
        if learner is None:
            return self.settings
        lease_s, renewal_s = learner.lease_s(message_type), math.ceil(learner.renewal_s)
        if capabilities is not None:
            lease_s = min(max(lease_s, capabilities.min_lease_s), capabilities.max_lease_s)
        return self._of_length(lease_s, renewal_s)

    def _of_length(self, lease_s: int, renewal_s: int) -> LeaseSettings:
        """Return the settings for leases of another length."""
        key = (lease_s, renewal_s)
        settings = self._learned.get(key)
        if settings is None:
            if len(self._learned) >= _MAX_LEARNED:
                self._learned.clear()
            settings = self._learned[key] = self.settings.with_lease(lease_s, renewal_s)
        return settings

    def _change(self, held: Held, lease_s: int, ask: _Ask) -> None:
        """Have the worker itself renew a lease, while nobody else does."""
        if not self._take(held, held.settings.call_timeout_s, HeldState.HELD):
            self.check(held)
            raise Unreachable("a renewal of it has no response yet", outcome_unknown=False)
        answer: Renewed | Exception
        try:
            self.check(held)  # again: that may have taken its time
            answer = self._ask(held, lease_s, ask)
        finally:
            self._give_back(held)
        if isinstance(answer, PastExpiry):
            return  # the lease is as long as it can be, and nobody will go on from what was saved
        if isinstance(answer, Exception):
            raise refusal(held) if judge(answer) is Verdict.LOST else answer

    def _ask(self, held: Held, lease_s: int, ask: _Ask) -> Renewed | Exception:
        """Send what renews a lease that was taken, and take note of the answer.

        It asks for no more than what is left until the message expires.
        """
        answer: Renewed | Exception = PastExpiry("the message expires within a second")
        while isinstance(answer, PastExpiry):
            length_s = fitting_s(held, self._now_s(), lease_s)
            if not length_s:
                break
            answer = self._ask_once(held, length_s, ask)
        return answer

    def _ask_once(self, held: Held, lease_s: int, ask: _Ask) -> Renewed | Exception:
        answer: Renewed | Exception
        sent_at_s = self._now_s()
        timeout_s = call_timeout_s(sent_at_s, held.deadline_s, held.settings)
        try:
            answer = ask(lease_of(held), lease_s, timeout_s)
        except Exception as error:  # noqa: BLE001 - for the caller to raise
            answer = error
        with self._lock:
            _, notices = self._ledger.answer(held, answer, sent_at_s, lease_s)
            self._forget_if_over(held)
        self._deliver(notices)
        return answer

    def _learn_receipt(self, held: Held) -> Renewed | Exception:
        """Renew a lease that was taken, after a renewal that got no answer.

        If that was carried out its receipt is known to nobody. A service that can repeat renewals
        tells it to who has the one before; others say that the lease is gone.
        """
        lease_s = held.settings.visibility_timeout_s
        return self._ask(held, lease_s, _renewal(held))

    def _forget_if_over(self, held: Held) -> None:
        if held.state is not HeldState.HELD and held.state is not HeldState.SETTLING:
            self._forget(held)

    def _fail(self, error: BaseException) -> None:
        """Give up all leases, and say so: it is worse if it is not known that none are renewed."""
        with self._lock:
            if self.failure is not None or self._closed:
                return
            self.failure = error
            every = [*self._ledger.held]
            notices = [notice for held in every for notice in self._ledger.end(held, _STOPPED)]
            for held in every:
                self._forget(held)
            self._closed = True
            self._quiet.notify_all()
        _log.critical("leases are no longer renewed; %d are lost", len(notices), exc_info=error)
        self._deliver(notices)
        self._call(self._hooks.stopped, error)

    def _deliver(self, notices: list[Notice]) -> None:
        """Tell who wants to know; the lock is free."""
        if not notices:
            return
        notices = [notice for notice in notices if notice.loss.kind != "let go"]
        _log_losses(notices)
        for notice in notices:
            self._call(self._hooks.lost, notice.held, notice.loss)
            for callback in notice.callbacks:
                self._call(callback, notice.loss)

    def _call(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception:  # noqa: BLE001 - a fault of the caller must not cost other leases
            self.counts.hook_errors += 1
            _log.exception("%r has failed", callback)


def _renewal(held: Held) -> _Ask:
    """Return what sends one plain renewal."""

    def ask(lease: Lease, lease_s: int, timeout_s: float) -> Renewed:
        (answer,) = held.client.renew([lease], lease_s, timeout_s=timeout_s)
        if isinstance(answer, QueueError):
            raise answer
        return answer

    return ask


def _log_losses(notices: Iterable[Notice]) -> None:
    losses = Counter((notice.held.delivery.queue, notice.loss) for notice in notices)
    for (queue, loss), count in losses.items():
        level = logging.ERROR if loss.kind in _LOUD else logging.WARNING
        told = count_of(count, "message")
        _log.log(level, "queue %s: %s %s: %s", queue, told, loss.kind, loss.text)


# --- ledger ------------------------------------------------------------------------------------
#
# Which leases are held, and what becomes of them: no threads, no requests, no clock.
#
# Whoever calls holds the lock of the manager.


_LAPSED: Final = Loss("lapsed", "it was not renewed in time")
EXPIRED: Final = Loss(
    "expired", "its time to live has ended, so it is removed and not delivered again"
)
_SETTLED: Final = Loss("let go", "another thread settles it")
_STATE_AFTER: Final = {
    "timed out": HeldState.ABANDONED,
    "let go": HeldState.ABANDONED,
    "denied": HeldState.DENIED,
}


class Notice:
    """Who has to be told of a loss, once the lock is free."""

    __slots__ = ("callbacks", "held", "loss")

    def __init__(self, held: Held, loss: Loss) -> None:
        self.held = held
        self.loss = loss
        self.callbacks = [*held.callbacks]
        if loss.kind != "cancelled":  # which is none yet: the lease is kept
            held.callbacks.clear()


NOBODY: Final[list[Notice]] = []


class Ledger:
    """The leases of one manager."""

    def __init__(self) -> None:
        self.held: set[Held] = set()
        self.counts = LeaseCounts()
        self.done = DoneMemory()
        self._clients: dict[int, int] = {}

    @property
    def clients(self) -> int:
        """How many queues there are leases of."""
        return len(self._clients)

    def add(self, held: Held) -> None:
        """Hold one more."""
        self.held.add(held)
        key = id(held.client)
        self._clients[key] = self._clients.get(key, 0) + 1

    def drop(self, held: Held) -> None:
        """Hold it no more. Harmless if it is not held."""
        if held not in self.held:
            return
        self.held.discard(held)
        key = id(held.client)
        self._clients[key] -= 1
        if not self._clients[key]:
            del self._clients[key]

    def end(self, held: Held, loss: Loss) -> list[Notice]:
        """Let the work stop, unless it is being settled or over already."""
        if held.state is not HeldState.HELD:
            return NOBODY
        if loss.kind != "cancelled":
            return self.over(held, loss)
        if held.cancelled is not None:
            return NOBODY
        held.cancelled, held.loss = loss.text, loss
        return [Notice(held, loss)]

    def over(self, held: Held, loss: Loss) -> list[Notice]:
        """End it, also if it is being settled."""
        held.state, held.loss = _STATE_AFTER.get(loss.kind, HeldState.LOST), loss
        self.counts.losses[loss.kind] += 1
        self.drop(held)
        return [Notice(held, loss)]

    def answer(
        self, held: Held, answer: Renewed | Exception, sent_at_s: float, lease_s: int
    ) -> tuple[Verdict, list[Notice]]:
        """Take note of the answer to a renewal.

        One that comes after the lease was given up changes nothing: whoever has the message by then
        must not lose it to us, and the work was told to stop.

        Args:
            held: The lease.
            answer: What came.
            sent_at_s: Monotonic seconds before the request was sent.
            lease_s: What it asked for.
        """
        verdict = judge(answer)
        if held.state is not HeldState.HELD and held.state is not HeldState.SETTLING:
            return verdict, NOBODY
        if isinstance(answer, Renewed):
            held.receipt = answer.receipt
            held.deadline_s = sent_at_s + lease_s
            held.is_ambiguous = False
            held.renewals += 1
            if answer.cancel is not None:
                return verdict, self.end(held, Loss("cancelled", answer.cancel))
        elif verdict is Verdict.LOST:
            return verdict, self.end(held, _gone(held, answer, sent_at_s))
        elif isinstance(answer, PastExpiry):
            held.longest_s = min(held.longest_s, shorter_s(held, lease_s))
        elif is_ambiguous(answer):
            held.is_ambiguous = True
        return verdict, NOBODY

    def begin_settling(self, held: Held, now_s: float) -> list[Notice]:
        """Say with which receipt it is settled; if its deadline has passed it is over."""
        if now_s >= held.deadline_s:
            return self.over(held, lapse_of(held))
        self.drop(held)
        held.used = held.receipt
        return NOBODY

    def settled(
        self, held: Held, result: QueueError | None, *, completing: bool, now_s: float
    ) -> list[Notice]:
        """Take note of what came of settling it."""
        queue, message_id = held.delivery.queue, held.delivery.message_id
        held.result = result
        if result is None:
            held.state = HeldState.DONE
            self.done.remove(queue, message_id)
            return NOBODY
        if completing:
            # The last renewal may have hidden it for a whole lease from now.
            lease_s = max(held.deadline_s - now_s, held.settings.visibility_timeout_s)
            self.done.add(queue, message_id, now_s, lease_s)
        is_sure = held.is_quiet and not held.is_ambiguous
        if is_sure and judge(result) is Verdict.LOST and held.receipt == held.used:
            return self.over(held, _gone(held, result, now_s))
        return NOBODY

    def lease_for_retry(self, held: Held, now_s: float) -> tuple[Lease | None, list[Notice]]:
        """Return what to settle it with once more; if there is nothing it is over."""
        assert held.result is not None
        if now_s >= held.deadline_s:
            return None, self.over(held, lapse_of(held))
        if judge(held.result) is Verdict.LOST and held.receipt == held.used:
            return None, self.over(held, _gone(held, held.result, now_s))
        held.used = held.receipt
        return lease_of(held), NOBODY


def lease_of(held: Held) -> Lease:
    """Return its newest lease."""
    return Lease(held.delivery.message_id, held.receipt)


def lapse_of(held: Held) -> Loss:
    """Return why its lease has ended."""
    return EXPIRED if is_at_expiry(held) else _LAPSED


def _gone(held: Held, answer: object, now_s: float) -> Loss:
    """Return what it means that the service does not know the lease."""
    return EXPIRED if now_s >= held.expires_s else Loss("gone", str(answer))


def refusal(held: Held) -> LeaseLost:
    """Return why it may not be settled."""
    message_id = held.delivery.message_id
    if held.state is HeldState.SETTLING or held.state is HeldState.DONE:
        return AlreadySettled(_SETTLED.text, kind=_SETTLED.kind, message_id=message_id)
    loss = held.loss or lapse_of(held)
    kind = MessageExpired if loss.kind == "expired" else LeaseLost
    return kind(loss.text, kind=loss.kind, message_id=message_id)


# --- memory ------------------------------------------------------------------------------------
#
# Which messages are done although their queue does not know it.


MAX_REMEMBERED: Final = 100_000
MIN_REMEMBERED_S: Final = 600.0
"""Of monotonic time, and never less than two leases: it may wait in its queue before it is
received again."""


class DoneMemory:
    """Ids of messages whose work is done, and whose completion could not be confirmed."""

    def __init__(self) -> None:
        self._until_s: dict[tuple[str, str], float] = {}

    def add(self, queue: str, message_id: str, now_s: float, lease_s: float) -> None:
        """Remember a message."""
        key = (queue, message_id)
        self._until_s.pop(key, None)
        self._until_s[key] = now_s + max(MIN_REMEMBERED_S, 2 * lease_s)
        while len(self._until_s) > MAX_REMEMBERED or not self._is_first_valid(now_s):
            del self._until_s[next(iter(self._until_s))]

    def holds(self, queue: str, message_id: str, now_s: float) -> bool:
        """Return whether the message was done."""
        return self._until_s.get((queue, message_id), now_s) > now_s

    def remove(self, queue: str, message_id: str) -> None:
        """Forget a message."""
        self._until_s.pop((queue, message_id), None)

    def _is_first_valid(self, now_s: float) -> bool:
        return self._until_s[next(iter(self._until_s))] > now_s


# --- episodes ----------------------------------------------------------------------------------
#
# What is said once, and not again for as long as it goes on.


_T = TypeVar("_T", bound=Hashable)

QUIET_S: Final = 60.0
"""Monotonic seconds without a word of something, after which it begins anew."""


class Episodes:
    """Tells the beginning of something from its going on. Not to be shared by threads."""

    def __init__(self) -> None:
        self._last_s: dict[Hashable, float] = {}

    def new(self, things: Collection[_T], now_s: float) -> list[_T]:
        """Return those of *things*, which happen now, that did not happen a short while ago."""
        self._last_s = {
            thing: last_s for thing, last_s in self._last_s.items() if now_s - last_s < QUIET_S
        }
        found = [thing for thing in things if thing not in self._last_s]
        self._last_s.update(dict.fromkeys(things, now_s))
        return found
