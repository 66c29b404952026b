"""The engine: one door to the store for all dialects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, Final, NamedTuple, NoReturn, cast

import structlog

from leasehold.clock import Clock, LoopTimers, Timers
from leasehold.domain import admin as o
from leasehold.domain import claims
from leasehold.domain import commands as c
from leasehold.domain.claims import ClaimState, Dissolving, OpenClaim, Opened
from leasehold.domain.command import AnyCommand, Command, Perform, R
from leasehold.domain.errors import AccountMoved, LeaseholdError, Stopping
from leasehold.domain.groups import HoldGroup, ReleaseGroup
from leasehold.domain.model import NEXT_GROUP, Lease, Queue, QueueKey
from leasehold.engine.batcher import Batcher
from leasehold.engine.body_reading import WITH_BODIES
from leasehold.engine.commit_policy import INLINE_BELOW_S
from leasehold.engine.event_export import EventLogPlan, Exporter
from leasehold.engine.jobs import JobRunner
from leasehold.engine.large_bodies import LargeBodies
from leasehold.engine.listeners import ReceiveOrClaim
from leasehold.engine.long_poll import Gone, LongPolls
from leasehold.engine.maintenance import AdaptiveTimeouts, Maintenance, MaintenancePlan, always
from leasehold.engine.peers import RECHECK_S, PeerNotifier, Peers
from leasehold.engine.stats import (
    COUNTED,
    NOTHING,
    EngineStats,
    QueueActivity,
    Totals,
    TotalsCounter,
)
from leasehold.stores.base import Store, StoreHealth

_COUNTED_AT_ONCE: Final = 128
_LOOK_AGAIN_S: Final = 0.25
"""Until a consumer that waits for a group looks again without having heard anything."""


class Counted(NamedTuple):
    """The messages of one queue by state, and its visibility timeout in seconds."""

    account: str
    queue: str
    counts: o.Counts
    visibility_timeout_s: int
    has_groups: bool = False
    """Whether its settings speak of message groups."""


class Served(NamedTuple):
    """A store that is served, and how it is."""

    accounts: tuple[str, ...]
    """Those that are kept in it; none for the store of all that have none of their own."""
    health: StoreHealth
    failed: bool
    reachable: bool
    has_bodies: bool = True
    """Whether the place for large bodies is the one that the store knows."""

    @property
    def is_ready(self) -> bool:
        """Tell whether requests that need it can be answered."""
        return self.reachable and self.has_bodies and not self.failed


class Engine:
    """Performs commands against one store, durably.

    Args:
        store: Store that the engine owns from now on; it is closed with the engine.
        clock: Source of all time.
        plan: Pace of the maintenance; None for none (tests call :meth:`sweep` themselves).
        inline_below_s: Commits that typically take less run in the event loop, others on a thread.
        timers: What ends waits and paces jobs; None for the loop's. A virtual clock has its own.
        bodies: Keeps large bodies outside the store, and is closed with the engine; None to keep
            all in the store.
        events: What becomes of the event log; None to leave it as it is.
        peers: The link to other servers on the same store; None if there can be none.
        beside: The engine of another store of this server. Their counters are the same, and each
            tells of a failure through ``failed`` of both.
    """

    def __init__(  # noqa: PLR0913 - each is a collaborator of its own
        self,
        store: Store,
        clock: Clock,
        *,
        plan: MaintenancePlan | None = None,
        inline_below_s: float = INLINE_BELOW_S,
        timers: Timers | None = None,
        bodies: LargeBodies | None = None,
        events: EventLogPlan | None = None,
        peers: Peers | None = None,
        beside: Engine | None = None,
    ) -> None:
        timers = timers or LoopTimers()
        self.stats: EngineStats = (
            EngineStats(since_ms=clock.now_ms()) if beside is None else beside.stats
        )
        self.failed: asyncio.Event = asyncio.Event() if beside is None else beside.failed
        """Set when the store has failed: the process must end and start again from the file."""
        self.has_failed = False
        """Whether it was this engine's store, where several engines share ``failed``."""
        self._totals = TotalsCounter(self.stats.since_ms)
        self.waiting = LongPolls(clock, store.find_queue, timers, peers)
        """Who waits for messages. ``wake`` is for news from outside, ``check`` for moved clocks."""
        self._store = store
        self._moved = MovedAccounts(store)
        self._clock = clock
        self._plan = plan
        self._inline_below_s = inline_below_s
        self._peers = peers
        self._leads = always if peers is None else peers.leads
        self.jobs = JobRunner(self.perform, timers.sleep, timers, self._leads)
        """Purges and redrives under way."""
        self.adaptive = AdaptiveTimeouts(store.find_queue)
        """Queues whose visibility timeout follows the work."""
        self._then: dict[type, Callable[[Any, Any], None]] = {
            o.StartJob: lambda _, job: self._start_job(job),
            c.CreateQueue: self._set,
            c.SetQueueSettings: self._set,
            **dict.fromkeys(COUNTED, self._totals.note),
            c.DeleteQueue: self._deleted,
        }
        """What is to be done once a command was carried out."""
        self.bodies = bodies
        """Where large bodies go to and come from."""
        if bodies is not None:
            bodies.attach(
                self._carry_out,
                find_queue=store.find_queue,
                is_writable=lambda: store.health().writable,
                leads=self._leads,
            )
        self.exporter: Exporter | None = None
        """Exports and trims the event log."""
        if events is not None:
            self.exporter = Exporter(
                self._carry_out,
                clock,
                events,
                leads=self._leads,
                trusts_clock=lambda: self._maintenance is None or self._maintenance.trusts_clock,
            )
        self._batcher: Batcher | None = None
        self._maintenance: Maintenance | None = None
        self._helpers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to take commands; call it in the event loop that will use the engine."""
        notifier = None
        if self._peers is not None:
            notifier = PeerNotifier(self._clock, self._store.find_queue, self._peers)
            self._meet(self._peers, notifier)
        self._batcher = Batcher(
            self._store,
            self._clock,
            self.stats,
            self._fail,
            polls=self.waiting,
            adaptive=self.adaptive,
            notifier=notifier,
            inline_below_s=self._inline_below_s,
        )
        self._maintenance = Maintenance(
            self._store,
            self._clock,
            self._plan or MaintenancePlan(),
            perform=self.perform,
            wait_for_idle=self._batcher.wait_for_idle,
            relieve=self._relieve,
            adapt=self._adapt,
            leads=None if self._peers is None else self._peers.leads,
        )
        self._watch_adaptive()
        if self._plan is not None:
            await self.jobs.resume()
            self._begin(self._maintenance.run(), "maintenance")
            if self.bodies is not None:
                await self.bodies.begin()
                self.bodies.start(self._plan.interval_s)
        if self.exporter is not None:
            self.exporter.start()

    async def stop(self) -> None:
        """Finish what was taken, refuse what is new, close the store."""
        self.drain()
        await self.jobs.stop()
        for helper in self._helpers:
            helper.cancel()
        await asyncio.gather(*self._helpers, return_exceptions=True)
        if self.bodies is not None:
            await self.bodies.stop()
        if self.exporter is not None:
            await self.exporter.stop()
        if self._batcher is not None:
            await self._batcher.stop()
            self._batcher = None
        if self.bodies is not None:
            await self.bodies.close()
        if self._peers is not None:
            await asyncio.to_thread(self._peers.stop)
        self._store.close()

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._helpers.append(asyncio.create_task(work, name=name))

    # --- other servers -----------------------------------------------------------------------

    def _meet(self, peers: Peers, notifier: PeerNotifier) -> None:
        """Hear from other servers what concerns those who wait here."""
        peers.start(hear=self._hear, renew=notifier.renew, work=self._resume_jobs)
        self._begin(self._look_again(), "look-again")

    def _hear(self, keys: Collection[QueueKey]) -> None:
        """Hear from another server that there may be something in some queues, or in any."""
        for key in keys:
            self.waiting.wake(*key)
        if not keys:
            self.waiting.wake_all()

    async def _look_again(self) -> NoReturn:
        """Look now and then at what a lost word would have told."""
        while True:
            await asyncio.sleep(RECHECK_S)
            self.waiting.wake_all()
            await self.jobs.resume()

    def _resume_jobs(self) -> None:
        if self._batcher is not None:
            task = asyncio.create_task(self.jobs.resume())
            self._helpers.append(task)
            task.add_done_callback(self._helpers.remove)

    def _start_job(self, job: o.Job) -> None:
        if self._peers is not None and not self._leads():
            self._peers.call_leader()
        self.jobs.run(job)

    def _set(self, command: c.CreateQueue | c.SetQueueSettings, _: c.Result) -> None:
        self.adaptive.watch_one(command.account, command.queue)

    def _deleted(self, command: c.DeleteQueue, result: c.Result) -> None:
        self.adaptive.watch_one(command.account, command.queue)
        self._totals.note(command, result)

    def _watch_adaptive(self) -> None:
        """Watch the queues that adapt by the settings that are stored, whoever has set them."""
        counts = self._store.message_counts()
        found = [self._store.find_queue(account, name) for account, name, _ in counts]
        self.adaptive.watch([queue for queue in found if queue is not None])

    async def _adapt(self, perform: Perform, now_ms: int) -> None:
        # Of many servers the one that leads decides, from what it sees itself: a load balancer
        # gives each a sample of the same work, and two that decide would undo each other's choice.
        self._watch_adaptive()
        await self.adaptive.adapt(perform, now_ms)

    async def perform(self, command: Command[R]) -> R:
        """Carry out *command* and return its result once that is durable.

        Raises:
            LeaseholdError: The command was refused; see :mod:`leasehold.domain.commands`.
        """
        command = self._admitted(command)
        bodies = self.bodies
        kind = type(command)
        if bodies is None or kind not in WITH_BODIES:
            return await self._carry_out(command)
        if kind is c.Put and len(cast("c.Put", command).body) <= bodies.inline_bytes:
            return await self._carry_out(command)  # the most frequent; its answer shows no body
        if bodies.is_large(command):
            result = await bodies.put_away(command)
        else:
            result = await self._carry_out(command)
        if bodies.lacks(command, result):
            result = await bodies.fill_in(command, result)
        return result

    def _admitted(self, command: Command[R]) -> Command[R]:
        """Return a command as it goes to the store, if its account is there."""
        if self._store.relocated_accounts:
            self._moved.refuse(account_of(command))
        if self.bodies is not None and type(command) is c.Receive:
            return cast("Command[R]", self.bodies.limited(command))
        return command

    def _answered(self, command: AnyCommand, result: R | LeaseholdError) -> R:
        """Return what the store has answered, unless that is a refusal."""
        if self._store.relocated_accounts:
            self._moved.refuse(account_of(command))
        if isinstance(result, LeaseholdError):
            raise result
        return result

    async def _carry_out(self, command: Command[R]) -> R:
        """Perform *command*, whose bodies are where they belong."""
        if self._batcher is None:
            raise Stopping
        result = self._answered(command, await self._batcher.submit(command))
        then = self._then.get(type(command))
        if then is not None:
            then(command, result)
        if type(result) is Dissolving:
            await self._dissolve()
            return cast("R", c.DONE)
        return result

    async def _dissolve(self) -> None:
        """Carry out step by step what was given back, so that all is visible before the answer.

        Others have their turn in between. Should it be cut short, the maintenance goes on.
        """
        step = claims.LapseClaims(claims.FOLD_STEP, fold=False)
        with contextlib.suppress(LeaseholdError):
            while True:
                swept = await self._carry_out(step)
                if swept.count < step.limit:
                    break

    async def receive(
        self, command: c.Receive, wait_s: float, gone: Gone | None = None
    ) -> tuple[Lease, ...]:
        """Receive messages; if there are none, wait until there are.

        Those who came first are served first. The wait also ends, with nothing, when the engine
        drains, and with an error when the queue is deleted.

        Args:
            command: What to receive. Of a group, its session holds that from then on; of
                ``groups.NEXT_GROUP``, the group whose turn it is.
            wait_s: Longest wait, 0 to ``limits.MAX_WAIT_S`` seconds; 0 to answer at once.
            gone: Called once the wait has begun. When what it returns is done, the client does not
                want the answer any more and the wait ends. Cancelling this call has the same
                effect.

        Raises:
            LeaseholdError: As for :meth:`perform`.
        """
        if command.group is not None:
            return await self._receive_of_group(command, wait_s, gone)
        leases: tuple[Lease, ...] = await self._take(command, wait_s, gone)
        return leases

    async def _receive_of_group(
        self, command: c.Receive, wait_s: float, gone: Gone | None
    ) -> tuple[Lease, ...]:
        """Have the session hold a group, or the next one, and receive messages of it.

        What becomes visible because time passes, or by another server, is seen at the next look,
        a quarter of a second later at most.
        """
        self.stats.is_received(command, self._clock.now_ms())
        ends_s = self._clock.monotonic_s() + wait_s
        watch = asyncio.ensure_future(gone()) if gone is not None and wait_s else None
        try:
            while True:
                leases = await self._try_group(command)
                left_s = ends_s - self._clock.monotonic_s()
                if watch is not None and watch.done():
                    self.waiting.give_back(command, leases)
                    return ()
                if leases or left_s <= 0 or self.waiting.is_draining:
                    return leases
                key = command.account, command.queue
                await self.waiting.news(key, min(left_s, _LOOK_AGAIN_S), watch)
        finally:
            if watch is not None:
                watch.cancel()

    async def _try_group(self, command: c.Receive) -> tuple[Lease, ...]:
        """Hold a group, or find the hold again, and receive what it has."""
        named = command.account, command.queue
        session = command.session or ""
        hold = await self.perform(HoldGroup(*named, session, command.group or None))
        if hold is None:
            return ()
        leases = await self.perform(command._replace(group=hold.group_id))
        if not leases and command.group == NEXT_GROUP:  # poison was all it had
            await self.perform(ReleaseGroup(*named, hold.group_id, session))
        return leases

    async def open_claim(
        self, command: OpenClaim, wait_s: float = 0, gone: Gone | None = None
    ) -> Opened:
        """Open a claim whole, or find it again; if there is nothing to claim, wait until there is.

        A large claim is opened in steps, between which others have their turn. The wait ends as for
        :meth:`receive`. A claim that was opened for a client that has gone stays open: whoever asks
        for it again finds it; otherwise it lapses.

        Args:
            command: What to claim.
            wait_s: As for :meth:`receive`. Only the wait is meant, not the steps.
            gone: As for :meth:`receive`.

        Raises:
            LeaseholdError: As for :meth:`perform`.
        """
        opened: Opened = await self._take(command, wait_s, gone)
        while opened.claim is not None and opened.claim.state is ClaimState.OPENING:
            opened = await self.perform(command)
        return opened

    async def _take(self, command: ReceiveOrClaim, wait_s: float, gone: Gone | None) -> Any:
        """Carry out what takes messages; if there are none, wait until there are."""
        self.stats.is_received(command, self._clock.now_ms())
        if wait_s <= 0 or self.waiting.is_draining or self._batcher is None:
            return await self.perform(command)
        command = cast("ReceiveOrClaim", self._admitted(command))
        waiter = self.waiting.enter(command, wait_s, gone)
        try:
            result: Any = self._answered(command, await waiter.future)
        finally:
            waiter.leave()
        if self.bodies is not None and self.bodies.lacks(command, result):
            return await self.bodies.fill_in(command, result)
        return result

    def drain(self) -> None:
        """End all waits for messages with nothing; from now on no consumer waits."""
        self.waiting.drain()

    def _fail(self) -> None:
        self.has_failed = True
        self.failed.set()
        self.waiting.fail()

    async def sweep(self) -> None:
        """Do all maintenance that is due now."""
        assert self._maintenance is not None
        await self._maintenance.sweep()
        if self.bodies is not None:
            await self.bodies.collect()

    async def _relieve(self) -> bool:
        if self._batcher is None:
            raise Stopping
        relieved = await self._batcher.between_batches(self._store.relieve)
        if not relieved and self.exporter is not None:
            await self.exporter.give_way()
        return relieved

    async def settle(self) -> None:
        """Wait until what was asked for by now is done, and what follows from it at once.

        Under a load that never pauses it gives up waiting after a while.
        """
        if self._batcher is not None:
            await self._batcher.settle()

    def find_queue(self, account: str, queue: str) -> Queue | None:
        """Return a queue as the last batch left it, without waiting.

        Raises:
            AccountMoved: There is none, as the account is in another store now.
        """
        found = self._store.find_queue(account, queue)
        if found is None:
            self._moved.refuse(account)
        return found

    def sealing_key(self, account: str) -> bytes:  # noqa: ARG002 - one store has one
        """Return the secret for what is sealed for an account; see :attr:`Store.sealing_key`."""
        return self._store.sealing_key

    def is_relocated(self, account: str) -> bool:
        """Tell whether an account was moved to another store."""
        return account in self._store.relocated_accounts

    def activity(self, account: str, queue: str) -> QueueActivity:
        """Return what happened in a queue since the engine was made."""
        waiters = self.waiting.by_queue.get((account, queue))
        activity = self.stats.activity(account, queue)
        return activity if waiters is None else activity._replace(waiting=waiters.count)

    async def wait_for_job(self, account: str, job_id: str, wait_s: float) -> o.Job:
        """See :meth:`leasehold.engine.jobs.JobRunner.wait`."""
        return await self.jobs.wait(account, job_id, wait_s)

    def message_counts(self) -> list[tuple[str, str, int]]:
        """Return account, queue and message count of every queue."""
        return self._store.message_counts()

    def queues_of(self, account: str) -> list[tuple[str, int]]:
        """Return name and message count of every queue of an account, without waiting."""
        counts = self._store.message_counts()
        return [(queue, number) for of, queue, number in counts if of == account]

    async def counts(self) -> list[Counted]:
        """Count the messages of every queue by state, each queue at one instant.

        Queues that cannot be counted now, or are deleted meanwhile, are left out.
        """
        names = [(account, queue) for account, queue, _ in self._store.message_counts()]
        counted: list[Counted] = []
        for start in range(0, len(names), _COUNTED_AT_ONCE):
            part = names[start : start + _COUNTED_AT_ONCE]
            results = await asyncio.gather(
                *(self.perform(o.CountMessages(*name)) for name in part), return_exceptions=True
            )
            for name, counts in zip(part, results, strict=True):
                found = self._store.find_queue(*name)
                if found is not None and isinstance(counts, o.Counts):
                    settings = found.settings
                    has_groups = settings.groups is not None
                    counted.append(Counted(*name, counts, settings.lease_s(), has_groups))
        return counted

    async def totals(self) -> Totals:
        """Count sessions and claims, and say how much event log there is."""
        queues = [(account, queue) for account, queue, _ in self._store.message_counts()]
        return await self._totals.take(self.perform, queues) if self._batcher else NOTHING

    def health(self) -> StoreHealth:
        """Say how the store is."""
        health = self._store.health()
        if self._peers is None:
            return health
        return replace(health, details={**health.details, **self._peers.about()})

    def stores(self) -> list[Served]:
        """Say how the store is that this engine serves to all accounts."""
        return [self.served(())]

    def served(self, accounts: tuple[str, ...]) -> Served:
        """Say how the store is, which is that of some *accounts*; see :class:`Served`."""
        health = self.health()
        reachable = bool(health.details.get("connected", True))
        has_bodies = self.bodies is None or self.bodies.is_known
        return Served(accounts, health, self.has_failed, reachable, has_bodies)


# --- moved -------------------------------------------------------------------------------------
#
# Accounts that were moved to another store while a server goes on to look for them in this one.


_log = structlog.get_logger(__name__)


class MovedAccounts:
    """Refuses what is asked of accounts that have left the store.

    A store learns of it with its next batch, so requests are looked at before they are carried out
    and again after that: what is not there any more must not be taken for something that never was.

    Args:
        store: Its ``relocated_accounts`` names the accounts.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: set[str] = set()

    def refuse(self, account: str) -> None:
        """Refuse what is asked of an account that has left.

        Raises:
            AccountMoved: It has.
        """
        if account not in self._store.relocated_accounts:
            return
        if account not in self._told:
            self._told.add(account)
            _log.error(
                "account.moved_away",
                account=account,
                meaning="its requests get 503: set account_stores to the account's new store and "
                "restart the server; leasehold store check names that store",
            )
        raise AccountMoved(account)


def account_of(command: AnyCommand) -> str:
    """Return the account that a command is about; empty if it is about none."""
    account: str | None = getattr(command, "account", None)
    if account is None:
        first = next(iter(command.subcommands()), None)
        account = "" if first is None else account_of(first)
    return account
