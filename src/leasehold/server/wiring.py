"""The parts between the connections and the engine, put together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from leasehold.auth.authenticator import Authenticator
from leasehold.auth.console import ConsoleSessions
from leasehold.auth.mns import AccessKey, MnsAuthenticator, keys_of_accounts
from leasehold.auth.sas import FindPolicy
from leasehold.auth.types import Account
from leasehold.clock import Clock, LoopTimers, Timers, VirtualClock
from leasehold.domain.command import Perform
from leasehold.domain.model import AccessPolicy
from leasehold.domain.queue_settings import LapsedReceipts
from leasehold.engine.account_router import ServerEngine
from leasehold.extras import install
from leasehold.http.admission import Admission, LongClaim, LongReceive
from leasehold.http.app import Application, Authorizer, Hosts, RequestStats
from leasehold.http.azure import AzureDialect
from leasehold.http.console import ConsoleDialect, is_of_console
from leasehold.http.console.figures import ServerFigures
from leasehold.http.console.history import History
from leasehold.http.console.live import Live
from leasehold.http.console.oidc import Issuer, OidcSignIn
from leasehold.http.console.pages import StaticFiles
from leasehold.http.console.sign_in import SignIn
from leasehold.http.console.workers import Workers
from leasehold.http.guard import Guard
from leasehold.http.mns import MnsDialect
from leasehold.http.native import NativeDialect, Services
from leasehold.http.test_mode import Controls, SigningTime
from leasehold.server.admin import AdminPages
from leasehold.server.metrics import Metrics
from leasehold.server.settings import DEV_ACCOUNT, Settings, uses_public_key
from leasehold.server.startup import (
    ExitCode,
    StartFailed,
    bearer_verifier,
    console_verifier,
)
from leasehold.spans import start as start_spans

if TYPE_CHECKING:
    from leasehold.server.spans import ServerTracer

_SECOND_MS: Final = 1_000
_MIB: Final = 1024 * 1024


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
    accounts = _accounts(settings, engine)
    checks = _authenticator(settings, accounts, engine)
    authenticator: Authorizer = checks
    if times.engine is not times.system:
        authenticator = SigningTime(checks, times.system)  # clients sign by the system's clock
    requests = RequestStats()
    admission = _admission(settings, engine, guard)
    tracer = _tracer(settings)
    observe = requests.answered if tracer is None else tracer.observing(requests.answered)
    services = _services(engine, admission, controls, tracer)
    dialect = AzureDialect(
        perform=services.perform,
        receive=services.receive,
        authenticator=authenticator,
        clock=times.engine,
        accounts=accounts,
        find_queue=engine.find_queue,
        accepts_late=settings.accepts_late_renewals(),
        observe=observe,
    )
    sessions = _sessions(settings, times, accounts, engine, checks)
    figures = _figures(settings, times, engine, guard, admission, draining)
    console = _console(settings, times, sessions, services, engine, figures, observe)
    native = NativeDialect(
        services=services,
        authenticator=authenticator,
        clock=times.engine,
        accepts_late=settings.accepts_late_renewals(),
        sessions=sessions,
        observe=observe,
    )
    return (Application if tracer is None else tracer.application)(
        dialect=dialect,
        native=native,
        pages=AdminPages(
            engine=engine,
            guard=guard,
            clock=times.engine,
            draining=draining,
            metrics=_metrics(settings, times, engine, guard, admission, requests),
            accounts=accounts,
        ),
        clock=times.system,
        timings=requests,
        mns=_mns_dialect(settings, times, services, accounts, observe),
        mns_ports=mns_ports,
        mns_accounts=accounts,
        console=console,
        is_of_console=is_of_console,
        https=settings.tls_terminated,
        hosts=hosts_of(settings),
        log_requests=settings.log_level == "debug",
    )


def _admission(settings: Settings, engine: ServerEngine, guard: Guard) -> Admission:
    return Admission(
        engine.perform,
        limit=settings.max_pending_requests,
        receive=engine.receive,
        open_claim=engine.open_claim,
        answers=guard.answers,
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
        old_names=settings.metrics_old_names,
    )


def hosts_of(settings: Settings) -> Hosts | None:
    """Return the names that the server is addressed by; None unless anybody here can sign."""
    public = any(uses_public_key(account) for account in settings.effective_accounts())
    reachable = settings.is_private() or settings.dev_account_exposed()
    if not reachable or not (public or settings.test_mode):
        return None
    return Hosts((*settings.allowed_hosts, *settings.addresses()))


def _accounts(settings: Settings, engine: ServerEngine) -> dict[str, Account]:
    return {
        account.name: Account(
            name=account.name,
            keys=tuple(key.reveal() for key in account.keys),
            sealing_key=partial(engine.sealing_key, account.name),
        )
        for account in settings.effective_accounts()
    }


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


def _tracer(settings: Settings) -> ServerTracer | None:
    """Return what makes spans; None if that is turned off.

    Raises:
        StartFailed: The extra for it is not installed.
    """
    if not settings.tracing:
        return None  # then nothing of it is called, and nothing of it is imported
    try:
        start_spans("leasehold")
    except ImportError as error:
        reason = f"the setting tracing needs the library {error.name}: {install('otel')}"
        raise StartFailed(ExitCode.SETTINGS, reason) from None
    from leasehold.server.spans import ServerTracer  # noqa: PLC0415 - only where it is used

    return ServerTracer()


def _services(
    engine: ServerEngine,
    admission: Admission,
    controls: Controls | None,
    tracer: ServerTracer | None,
) -> Services:
    perform: Perform = admission.perform
    receive: LongReceive = admission.receive
    open_claim: LongClaim = admission.open_claim
    if controls is not None:
        perform, receive = controls.watched(perform), controls.watched_wait(receive)
        open_claim = controls.watched_wait(open_claim)
    if tracer is not None:
        perform, receive = tracer.performing(perform), tracer.receiving(receive)
        open_claim = tracer.claiming(open_claim)
    return Services(
        perform=perform,
        receive=receive,
        open_claim=open_claim,
        find_queue=engine.find_queue,
        activity=engine.activity,
        wait_for_job=engine.wait_for_job,
        controls=controls,
    )


def _policies(engine: ServerEngine) -> FindPolicy:
    def find_policy(account: str, queue: str, policy_id: str) -> AccessPolicy | None:
        found = engine.find_queue(account, queue)
        policies = found.policies if found else ()
        return next((policy for policy in policies if policy.policy_id == policy_id), None)

    return find_policy


def _authenticator(
    settings: Settings, accounts: Mapping[str, Account], engine: ServerEngine
) -> Authenticator:
    return Authenticator(
        accounts,
        _policies(engine),
        bearer_verifier(settings),
        inspectors=_inspectors(settings),
    )


def _inspectors(settings: Settings) -> dict[str, tuple[bytes, ...]]:
    return {each.name: tuple(key.reveal() for key in each.keys) for each in settings.inspectors}


# --- console -----------------------------------------------------------------------------------


def _sessions(
    settings: Settings,
    times: Times,
    accounts: Mapping[str, Account],
    engine: ServerEngine,
    authenticator: Authenticator,
) -> ConsoleSessions | None:
    """Return what knows who has signed in to the console; None if it is turned off."""
    if not settings.console:
        return None
    return ConsoleSessions(
        authenticator,
        accounts,
        _policies(engine),
        times.system.now_ms,
        inspectors=_inspectors(settings),
        development=DEV_ACCOUNT if settings.dev_account_on() else None,
        issuers=_console_issuers(settings, accounts),
    )


def _console_issuers(settings: Settings, accounts: Iterable[str]) -> dict[str, str]:
    """Return, by account, the issuer of the console's users, with the server's id at it."""
    if not settings.console_oidc_client_id or not settings.oidc_issuer:
        return {}
    issuer = json.dumps([settings.oidc_issuer[0], settings.console_oidc_client_id])
    return dict.fromkeys(settings.oidc_accounts or accounts, issuer)


def _sign_in(
    settings: Settings, times: Times, sessions: ConsoleSessions
) -> tuple[SignIn, OidcSignIn | None]:
    """Return what signs people in, and what does it by an issuer, if one is set."""
    verifier = console_verifier(settings)
    development = DEV_ACCOUNT if settings.dev_account_on() else None
    sign_in = SignIn(
        sessions,
        times.system,
        development,
        exposed=settings.dev_account_exposed(),
        by_issuer=verifier is not None,
    )
    if verifier is None:
        return sign_in, None
    from leasehold.auth.bearer import nonce_of  # noqa: PLC0415 - only where tokens are taken

    issuer = Issuer(settings.oidc_issuer[0], settings.console_oidc_client_id, verifier, nonce_of)
    return sign_in, OidcSignIn(issuer, sessions, sign_in, times.system)


def _console(  # noqa: PLR0913, PLR0917 - each is a collaborator of its own
    settings: Settings,
    times: Times,
    sessions: ConsoleSessions | None,
    services: Services,
    engine: ServerEngine,
    figures: ServerFigures,
    observe: Callable[[str, int], None],
) -> ConsoleDialect | None:
    """Return what answers browsers, or None if it is turned off."""
    if sessions is None:
        return None
    sign_in, oidc = _sign_in(settings, times, sessions)
    return ConsoleDialect(
        services=services,
        clock=times.system,
        files=StaticFiles(),
        sign_in=sign_in,
        live=Live(sessions, engine, figures, times.engine),
        history=History(sessions, times.engine),
        workers=Workers(sessions, times.engine),
        oidc=oidc,
        observe=observe,
    )


def _figures(  # noqa: PLR0913, PLR0917 - each is where some of the figures come from
    settings: Settings,
    times: Times,
    engine: ServerEngine,
    guard: Guard,
    admission: Admission,
    draining: Callable[[], bool],
) -> ServerFigures:
    local = settings.store_url is None
    return ServerFigures(
        engine=engine,
        guard=guard,
        admission=admission,
        clock=times.engine,
        draining=draining,
        max_pending=settings.max_pending_requests,
        data=settings.data if local else None,
        reserve_bytes=settings.disk_reserve_mib * _MIB if local else None,
    )
