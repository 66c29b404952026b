"""The parts between the connections and the engine, put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from leasehold.auth.authenticator import Authenticator
from leasehold.auth.mns import AccessKey, MnsAuthenticator, keys_of_accounts
from leasehold.auth.types import Account
from leasehold.clock import Clock, LoopTimers, Timers, VirtualClock
from leasehold.domain.command import Perform
from leasehold.domain.model import AccessPolicy
from leasehold.domain.queue_settings import LapsedReceipts
from leasehold.engine.account_router import ServerEngine
from leasehold.http.admission import Admission, LongClaim, LongReceive
from leasehold.http.app import Application, Authorizer, Hosts, RequestStats
from leasehold.http.azure import AzureDialect
from leasehold.http.guard import Guard
from leasehold.http.mns import MnsDialect
from leasehold.http.native import NativeDialect, Services
from leasehold.http.test_mode import Controls, SigningTime
from leasehold.server.admin import AdminPages
from leasehold.server.metrics import Metrics
from leasehold.server.settings import Settings, uses_public_key
from leasehold.server.startup import bearer_verifier

_SECOND_MS: Final = 1_000


class Times(NamedTuple):
    """The clocks of a server; all are the system's unless it is in test mode."""

    system: Clock
    """What connections, signatures and the log go by."""
    engine: Clock
    """What messages, leases and waits go by."""
    timers: Timers

    @classmethod
    def chosen(
        cls, settings: Settings, system: Clock, last_seen_ms: int, engine: Clock | None = None
    ) -> Times:
        """Return what the settings ask for; a virtual clock begins now, at a whole second.

        Args:
            settings: Whose ``clock`` it is.
            system: The system's clock.
            last_seen_ms: When the store was last in use. Time does not go back behind that, however
                far a virtual clock was moved then.
            engine: What messages go by unless that is a virtual clock; None for *system*.
        """
        if settings.clock != "virtual":
            return cls(system, engine or system, LoopTimers())
        now_ms = system.now_ms() // _SECOND_MS * _SECOND_MS
        clock = VirtualClock(max(now_ms, last_seen_ms))
        return cls(system, clock, clock)


def build_application(  # noqa: PLR0913 - each is a collaborator of its own
    settings: Settings,
    times: Times,
    engine: ServerEngine,
    guard: Guard,
    controls: Controls | None = None,
    *,
    draining: Callable[[], bool],
    mns_ports: frozenset[int] = frozenset(),
) -> Application:
    """Put the parts between the connections and the engine together.

    *draining* tells whether the server is about to stop; only requests of MNS come to *mns_ports*.

    Raises:
        StartFailed: A file that a setting names cannot be used.
    """
    accounts = _accounts(settings)
    authenticator = _authorizer(settings, times, accounts, engine)
    requests = RequestStats()
    admission = Admission(
        engine.perform,
        limit=settings.max_pending_requests,
        receive=engine.receive,
        open_claim=engine.open_claim,
        answers=guard.answers,
    )
    services = _services(engine, admission, controls)
    dialect = AzureDialect(
        perform=services.perform,
        receive=services.receive,
        authenticator=authenticator,
        clock=times.engine,
        accounts=accounts,
        find_queue=engine.find_queue,
        accepts_late=settings.accepts_late_renewals(),
        observe=requests.answered,
    )
    native = NativeDialect(
        services=services,
        authenticator=authenticator,
        clock=times.engine,
        accepts_late=settings.accepts_late_renewals(),
        observe=requests.answered,
    )
    mns = _mns_dialect(settings, times, services, accounts, requests.answered)
    pages = AdminPages(
        engine=engine,
        guard=guard,
        clock=times.engine,
        draining=draining,
        metrics=_metrics(settings, times, engine, guard, admission, requests),
        accounts=accounts,
    )
    return Application(
        dialect=dialect,
        native=native,
        pages=pages,
        clock=times.system,
        timings=requests,
        mns=mns,
        mns_ports=mns_ports,
        mns_accounts=accounts,
        https=settings.tls_terminated,
        hosts=hosts_of(settings),
        log_requests=settings.log_level == "debug",
    )


def _metrics(  # noqa: PLR0913, PLR0917 - each is where some of the figures come from
    settings: Settings,
    times: Times,
    engine: ServerEngine,
    guard: Guard,
    admission: Admission,
    requests: RequestStats,
) -> Metrics | None:
    if not settings.metrics_enabled:
        return None
    return Metrics(
        requests=requests,
        engine=engine,
        admission=admission,
        guard=guard,
        clock=times.engine,
        max_queues=settings.metrics_max_queues,
        groups=settings.metrics_groups,
    )


def hosts_of(settings: Settings) -> Hosts | None:
    """Return the names that the server is addressed by; None unless anybody here can sign."""
    public = any(uses_public_key(account) for account in settings.effective_accounts())
    if not settings.is_private() or not (public or settings.test_mode):
        return None
    return Hosts((*settings.allowed_hosts, *settings.addresses()))


def _accounts(settings: Settings) -> dict[str, Account]:
    return {
        each.name: Account(name=each.name, keys=tuple(key.reveal() for key in each.keys))
        for each in settings.effective_accounts()
    }


def _authorizer(
    settings: Settings, times: Times, accounts: Mapping[str, Account], engine: ServerEngine
) -> Authorizer:
    """Return who lets requests pass, by the system's clock."""
    authenticator = _authenticator(settings, accounts, engine)
    if times.engine is times.system:
        return authenticator
    return SigningTime(authenticator, times.system)


def _mns_dialect(
    settings: Settings,
    times: Times,
    services: Services,
    accounts: Mapping[str, Account],
    observe: Callable[[str, int], None],
) -> MnsDialect | None:
    """Return the dialect, or None if it is turned off."""
    if not settings.speaks_mns():
        return None
    return MnsDialect(
        perform=services.perform,
        receive=services.receive,
        authenticator=MnsAuthenticator(_access_keys(settings, accounts)),
        clock=times.engine,
        signing_clock=times.system,
        accounts=accounts,
        find_queue=services.find_queue,
        receipts=LapsedReceipts(settings.mns_receipts),
        accepts_late=settings.accepts_late_renewals(),
        observe=observe,
    )


def _access_keys(settings: Settings, accounts: Mapping[str, Account]) -> dict[str, AccessKey]:
    keys = keys_of_accounts(accounts.values())
    for each in settings.mns_keys:
        keys[each.key_id] = AccessKey(each.account, (each.secret.reveal(),))
    return keys


def _services(engine: ServerEngine, admission: Admission, controls: Controls | None) -> Services:
    perform: Perform = admission.perform
    receive: LongReceive = admission.receive
    open_claim: LongClaim = admission.open_claim
    if controls is not None:
        perform, receive = controls.watched(perform), controls.watched_wait(receive)
        open_claim = controls.watched_wait(open_claim)
    return Services(
        perform=perform,
        receive=receive,
        open_claim=open_claim,
        find_queue=engine.find_queue,
        activity=engine.activity,
        wait_for_job=engine.wait_for_job,
        controls=controls,
    )


def _authenticator(
    settings: Settings, accounts: Mapping[str, Account], engine: ServerEngine
) -> Authenticator:
    def find_policy(account: str, queue: str, policy_id: str) -> AccessPolicy | None:
        found = engine.find_queue(account, queue)
        policies = found.policies if found else ()
        return next((policy for policy in policies if policy.policy_id == policy_id), None)

    return Authenticator(
        accounts,
        find_policy,
        bearer_verifier(settings),
        inspectors={
            each.name: tuple(key.reveal() for key in each.keys) for each in settings.inspectors
        },
    )
