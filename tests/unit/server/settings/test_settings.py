"""Values, their bounds, and the pairs that depend on each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leasehold.server.settings import (
    AccountKeys,
    Secret,
    Settings,
    SettingsError,
    all_settings,
    uses_public_key,
    validate,
)

KEY = Secret(b"k" * 32)
OWN = AccountKeys(name="orders", keys=(KEY,))
READER = AccountKeys(name="orders", keys=(Secret(b"r" * 32),))
DEV = "devstoreaccount1"


def problems(settings: Settings) -> list[str]:
    """Return the problems of *settings*, one text each."""
    with pytest.raises(SettingsError) as refusal:
        validate(settings)
    return str(refusal.value).split("\n")


def test_defaults_are_valid() -> None:
    """A server can be started without setting anything."""
    validate(Settings())


def test_every_setting_describes_itself() -> None:
    """Each has a meaning, and each number a range that holds its default."""
    for name, (meta, default) in all_settings().items():
        assert meta.meaning.endswith("."), name
        assert not meta.special or meta.special.endswith("."), name
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert meta.bounds is not None, name
            assert meta.bounds[0] <= default <= meta.bounds[1], name


BOUNDED = [(name, meta.bounds) for name, (meta, _) in all_settings().items() if meta.bounds]


@pytest.mark.parametrize(("name", "bounds"), BOUNDED, ids=[name for name, _ in BOUNDED])
def test_bounds_are_allowed_and_nothing_beyond(name: str, bounds: tuple[float, float]) -> None:
    """Both ends of a range are allowed values; one step beyond is refused by name and bound."""
    kind = type(getattr(Settings(), name))
    for bound in bounds:
        validate(replace(Settings(), **{name: kind(bound)}))
    for value in (bounds[0] - 1, bounds[1] + 1):
        (text,) = problems(replace(Settings(), **{name: kind(value)}))
        assert text.startswith(f"{name}: is {kind(value)}; it must be ")
        assert f"{bounds[1]:,}" in text


@pytest.mark.parametrize("name", ["dev_account", "log_format", "log_level"])
def test_choices(name: str) -> None:
    """A value that is none of the choices is refused, and the choices are named."""
    wrong: dict[str, Any] = {name: "sometimes"}
    (text,) = problems(replace(Settings(accounts=(OWN,)), **wrong))
    assert text.startswith(f"{name}: is 'sometimes'; it must be ")
    assert " or " in text


def test_all_problems_are_told_at_once() -> None:
    """Nobody should have to start a server as often as there are mistakes."""
    assert len(problems(Settings(port=-1, idle_timeout_s=5, log_level="loud"))) == 3


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "::1", "[::1]", "localhost", "127.0.0.1, ::1", "127.9.9.9"]
)
def test_development_account_is_on_where_only_this_machine_connects(host: str) -> None:
    """On loopback addresses the emulators' account works without being configured."""
    settings = Settings(host=host)
    validate(settings)
    assert settings.dev_account_on()
    (account,) = settings.effective_accounts()
    assert account.name == DEV
    assert uses_public_key(account)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.0.2.1", "127.0.0.1,0.0.0.0", "example.test"]
)
def test_development_account_is_off_everywhere_else(host: str) -> None:
    """A key that everybody knows must not open a door to other machines."""
    settings = Settings(host=host, accounts=(OWN,))
    validate(settings)
    assert not settings.dev_account_on()
    assert settings.effective_accounts() == (OWN,)


def test_development_account_cannot_be_forced_onto_the_network() -> None:
    """Asking for it on another address is an error that says what to do."""
    (text,) = problems(Settings(host="0.0.0.0", dev_account="on"))
    assert "dev_account: is 'on', but host '0.0.0.0' lets other machines connect" in text
    assert "127.0.0.1" in text


def test_development_account_on_the_network_needs_a_plain_word() -> None:
    """A container's port is published on the host's loopback address, which it cannot see."""
    settings = Settings(host="0.0.0.0", dev_account="insecure")
    validate(settings)
    assert settings.dev_account_on()
    assert settings.dev_account_exposed()
    assert not Settings(dev_account="on").dev_account_exposed()
    mine = AccountKeys(name=DEV, keys=(KEY,))
    (text,) = problems(replace(settings, accounts=(mine,)))
    assert text.startswith("dev_account: is 'insecure', but accounts already has")


def test_proxy_lets_the_network_in() -> None:
    """Behind a proxy that ends TLS a loopback address does not mean that nobody else connects."""
    settings = Settings(tls_terminated=True, accounts=(OWN,))
    validate(settings)
    assert settings.effective_accounts() == (OWN,)
    (text,) = problems(Settings(tls_terminated=True, dev_account="on"))
    assert "a proxy in front lets other machines connect" in text


def test_development_account_can_be_off_on_loopback() -> None:
    """Whoever wants only accounts of their own can have that."""
    settings = Settings(dev_account="off", accounts=(OWN,))
    validate(settings)
    assert settings.effective_accounts() == (OWN,)


def test_configured_account_replaces_the_development_account() -> None:
    """An account of that name with a key of its own is not opened by the public key."""
    mine = AccountKeys(name=DEV, keys=(KEY,))
    settings = Settings(accounts=(mine,))
    validate(settings)
    assert settings.effective_accounts() == (mine,)
    assert not uses_public_key(mine)
    assert problems(replace(settings, dev_account="on")) == [
        f"dev_account: is 'on', but accounts already has '{DEV}'"
    ]


@pytest.mark.parametrize(
    ("changed", "field", "part"),
    [
        ({"host": " , "}, "host", "names no address"),
        ({"test_mode": True, "tls_terminated": True}, "test_mode", "a proxy in front lets other"),
        ({"test_mode": True, "host": "0.0.0.0"}, "test_mode", "host '0.0.0.0' lets other"),
        ({"tls_cert": Path("c")}, "tls_key", "is missing"),
        ({"tls_key": Path("k")}, "tls_cert", "is missing"),
        (
            {"tls_cert": Path("c"), "tls_key": Path("k"), "tls_terminated": True},
            "tls_terminated",
            "only one of them may terminate TLS",
        ),
        ({"accounts": (OWN, OWN)}, "accounts", "'orders' is repeated"),
        ({"dev_account": "off"}, "accounts", "no client could sign in"),
        ({"host": "0.0.0.0"}, "accounts", "no client could sign in"),
        (
            {"accounts": (OWN,), "inspectors": (READER, READER)},
            "inspectors",
            "'orders' is repeated",
        ),
        ({"inspectors": (READER,)}, "inspectors", "'orders' is not an account"),
        (
            {"accounts": (OWN,), "inspectors": (replace(READER, keys=(KEY,)),)},
            "inspectors",
            "is a key of the account itself",
        ),
        ({"oidc_accounts": ("other",)}, "oidc_accounts", "'other' is not an account"),
        ({"oidc_jwks": ("file",)}, "oidc_issuer", "is empty"),
        ({"oidc_issuer": ("i",), "oidc_jwks": ("file",)}, "oidc_audience", "is empty"),
        ({"oidc_issuer": ("i",), "oidc_audience": ("a",)}, "oidc_jwks", "is empty"),
        (
            {"oidc_issuer": ("i",), "oidc_audience": ("a",), "oidc_jwks": ("http://x",)},
            "oidc_jwks",
            "must begin with https://",
        ),
        (
            {"oidc_issuer": ("i", "j"), "oidc_audience": ("a",), "oidc_jwks": ("file",)},
            "oidc_jwks",
            "has 1 and oidc_issuer has 2",
        ),
        (
            {"oidc_issuer": ("i", "i"), "oidc_audience": ("a",), "oidc_jwks": ("f", "g")},
            "oidc_issuer",
            "'i' is repeated",
        ),
    ],
)
def test_settings_that_do_not_go_together(changed: dict[str, Any], field: str, part: str) -> None:
    """Pairs that depend on each other are checked, and the field to change is named."""
    texts = [text for text in problems(Settings(**changed)) if text.startswith(f"{field}: ")]
    assert len(texts) == 1
    assert part in texts[0]


def test_inspector_of_an_account() -> None:
    """An account can have inspectors, the development account as well."""
    validate(Settings(accounts=(OWN,), inspectors=(READER,)))
    validate(Settings(inspectors=(replace(READER, name=DEV),)))


def test_secret_is_shown_nowhere() -> None:
    """No way of turning settings into text shows a key."""
    settings = Settings(accounts=(OWN,), inspectors=(READER,))
    for text in (repr(settings), str(settings), f"{settings.accounts}", f"{KEY}", f"{KEY!r}"):
        assert "kkk" not in text
        assert "rrr" not in text
    assert KEY.reveal() == b"k" * 32


def test_equal_secrets_are_equal() -> None:
    """Secrets compare by value, so that settings do."""
    assert Secret(b"k" * 32) == KEY
    assert hash(Secret(b"k" * 32)) == hash(KEY)
    assert Secret(b"other") != KEY
    assert KEY != b"k" * 32
