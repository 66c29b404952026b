"""What is wrong with a set of settings: bounds, and pairs that depend on each other."""

from __future__ import annotations

import os
from collections.abc import Iterator

from leasehold.server.settings.fields import (
    AUTO,
    MAX_PORT,
    OFF,
    SHARED,
    Settings,
    all_settings,
)
from leasehold.server.settings.values import DEV_ACCOUNT, Problem, SettingsError, bounds_text


def validate(settings: Settings) -> None:
    """Check every value and the pairs that depend on each other.

    Raises:
        SettingsError: Names each field, its value, and the bound it breaks.
    """
    problems = (
        *_check_bounds(settings),
        *_check_listening(settings),
        *_check_accounts(settings),
        *_check_dev_account(settings),
        *_check_inspectors(settings),
        *_check_tokens(settings),
        *_check_account_stores(settings),
        *_check_mns(settings),
        *_check_test_mode(settings),
    )
    if problems:
        raise SettingsError(problems)


def missing_files(settings: Settings) -> Iterator[Problem]:
    """Yield a problem for each file of TLS that the process of a server could not read."""
    for name, path in (("tls_cert", settings.tls_cert), ("tls_key", settings.tls_key)):
        if path is not None and not os.access(path, os.R_OK):
            yield Problem(name, f"is {str(path)!r}, which does not exist or cannot be read")


def _check_bounds(settings: Settings) -> Iterator[Problem]:
    for name, (meta, _) in all_settings().items():
        value = getattr(settings, name)
        if meta.choices and value not in meta.choices:
            yield Problem(name, f"is {value!r}; it must be {bounds_text(meta)}")
        elif meta.bounds is not None and not meta.bounds[0] <= value <= meta.bounds[1]:
            unit = f" {meta.unit}" if meta.unit else ""
            yield Problem(name, f"is {value}; it must be {bounds_text(meta)}{unit}")


def _check_listening(settings: Settings) -> Iterator[Problem]:
    if not settings.addresses():
        yield Problem("host", f"{settings.host!r} names no address")
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "tls_cert" if settings.tls_cert is None else "tls_key"
        yield Problem(missing, "is missing; tls_cert and tls_key go together")
    if settings.tls_terminated and settings.tls_cert is not None:
        yield Problem(
            "tls_terminated", "is true, but tls_cert is set: only one of them may terminate TLS"
        )


def _check_accounts(settings: Settings) -> Iterator[Problem]:
    names = settings.account_names()
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem("accounts", f"{name!r} is repeated")
    if not settings.accounts and not settings.dev_account_on():
        yield Problem(
            "accounts",
            f"there is none, and {DEV_ACCOUNT!r} is off (dev_account is "
            f"{settings.dev_account!r}, host is {settings.host!r}): no client could sign in",
        )


def _check_dev_account(settings: Settings) -> Iterator[Problem]:
    if settings.dev_account not in {"on", "insecure"}:
        return
    if not settings.is_private() and not settings.dev_account_exposed():
        where = "a proxy in front" if settings.tls_terminated else f"host {settings.host!r}"
        yield Problem(
            "dev_account",
            f"is 'on', but {where} lets other machines connect: an account whose key is public "
            "must not be reachable from there. Listen on 127.0.0.1 without a proxy, define "
            "your own accounts in accounts, or set 'insecure' in a container whose port is "
            "published on "
            "127.0.0.1 only",
        )
    if DEV_ACCOUNT in settings.account_names():
        yield Problem(
            "dev_account",
            f"is {settings.dev_account!r}, but accounts already has {DEV_ACCOUNT!r}",
        )


def _check_inspectors(settings: Settings) -> Iterator[Problem]:
    accounts = {account.name: account for account in settings.effective_accounts()}
    names = [inspector.name for inspector in settings.inspectors]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem("inspectors", f"{name!r} is repeated")
    for inspector in settings.inspectors:
        account = accounts.get(inspector.name)
        if account is None:
            yield Problem("inspectors", f"{inspector.name!r} is not an account of this server")
        elif set(inspector.keys) & set(account.keys):
            yield Problem(
                "inspectors",
                f"a key of {inspector.name!r} is a key of the account itself, which may do "
                "everything",
            )


def _check_tokens(settings: Settings) -> Iterator[Problem]:
    known = {account.name for account in settings.effective_accounts()}
    for name in settings.oidc_accounts:
        if name not in known:
            yield Problem("oidc_accounts", f"{name!r} is not an account of this server")
    if settings.oidc_issuer:
        for name in ("oidc_audience", "oidc_jwks"):
            if not getattr(settings, name):
                yield Problem(name, "is empty, but oidc_issuer is set")
    elif settings.console_oidc_client_id:
        yield Problem("oidc_issuer", "is empty, but console_oidc_client_id is set")
    elif settings.oidc_audience or settings.oidc_jwks:
        yield Problem("oidc_issuer", "is empty, but other settings for tokens are set")
    yield from _check_issuers(settings.oidc_issuer, settings.oidc_jwks)


def _check_issuers(names: tuple[str, ...], sources: tuple[str, ...]) -> Iterator[Problem]:
    if names and sources and len(names) != len(sources):
        yield Problem(
            "oidc_jwks",
            f"has {len(sources)} and oidc_issuer has {len(names)}: each issuer needs its own keys",
        )
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem("oidc_issuer", f"{name!r} is repeated")
    for source in sources:
        if "://" in source and not source.startswith("https://"):
            yield Problem("oidc_jwks", f"is {source!r}; an address must begin with https://")


def _check_account_stores(settings: Settings) -> Iterator[Problem]:
    known = {account.name for account in settings.effective_accounts()}
    names = [each.account for each in settings.account_stores]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem("account_stores", f"{name!r} is repeated")
    for name in names:
        if name not in known:
            yield Problem("account_stores", f"{name!r} is not an account of this server")
    for each in settings.account_stores:
        if each.url == settings.store_url:
            yield Problem(
                "account_stores", f"{each.account!r} has the same store as the other accounts"
            )
    if names and settings.test_mode:
        yield Problem("account_stores", "test_mode supports only one store")


def _check_mns(settings: Settings) -> Iterator[Problem]:
    port = settings.mns_port
    if port not in {AUTO, SHARED, OFF}:
        if not (port.isascii() and port.isdigit() and int(port[:6]) <= MAX_PORT):
            yield Problem(
                "mns_port", f"is {port!r}; it must be auto, shared, off, or 0 to {MAX_PORT:,}"
            )
        elif settings.port and int(port) == settings.port:
            yield Problem(
                "mns_port", f"is {port}, the same as port: to share one port, set {SHARED!r}"
            )
    accounts = {account.name for account in settings.effective_accounts()}
    ids = [each.key_id for each in settings.mns_keys]
    for key_id in sorted({each for each in ids if ids.count(each) > 1}):
        yield Problem("mns_keys", f"{key_id!r} is repeated")
    for each in settings.mns_keys:
        if each.account not in accounts:
            yield Problem("mns_keys", f"{each.account!r} is not an account of this server")
        if each.key_id in accounts:
            yield Problem("mns_keys", f"{each.key_id!r} is an account, which has keys of its own")


def _check_test_mode(settings: Settings) -> Iterator[Problem]:
    if settings.clock == "virtual" and not settings.test_mode:
        yield Problem(
            "clock",
            "is 'virtual', so no lease would end by itself; a virtual clock is for tests only and "
            "needs test_mode (--test-mode)",
        )
    if settings.test_mode and not settings.is_private():
        where = "a proxy in front" if settings.tls_terminated else f"host {settings.host!r}"
        yield Problem(
            "test_mode",
            f"is true, but {where} lets other machines connect, which could then make requests "
            "fail and move the clock without credentials. Listen on 127.0.0.1 without a proxy",
        )
