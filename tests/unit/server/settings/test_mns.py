"""The settings of the MNS dialect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leasehold.server.settings import (
    AccessKeyPair,
    Secret,
    Settings,
    SettingsError,
    load_settings,
    validate,
)

PAIR = AccessKeyPair(
    key_id="LTAI5tExample", secret=Secret(b"thirty-characters-of-a-secret-"), account="orders"
)
ACCOUNTS = "orders:a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="


def load(**environment: str) -> Settings:
    """Load settings from variables."""
    return load_settings({}, environment=environment).settings


@pytest.mark.parametrize(
    ("mns_port", "port", "expected"),
    [
        ("auto", 10_001, 10_011),
        ("auto", 0, 0),
        ("auto", 65_530, 0),
        ("0", 10_001, 0),
        ("8080", 10_001, 8_080),
        ("shared", 10_001, None),
        ("off", 10_001, None),
    ],
)
def test_the_port(mns_port: str, port: int, expected: int | None) -> None:
    """It follows that of the others unless it is given; two servers then do not meet."""
    settings = Settings(port=port, mns_port=mns_port)
    validate(settings)
    assert settings.port_of_mns(port) == expected
    assert settings.speaks_mns() == (mns_port != "off")


@pytest.mark.parametrize("text", ["", "-1", "65536", "1e3", "on", "٣", "9" * 40, "10001"])
def test_ports_that_are_none(text: str) -> None:
    """And the port of the others, for which there is a word."""
    with pytest.raises(SettingsError, match="mns_port: is"):
        validate(Settings(mns_port=text))


def test_keys_in_the_environment() -> None:
    """One line holds all keys."""
    text = "LTAI5tExample:thirty-characters-of-a-secret-:orders; b:sixteen-letters.:orders;"
    found = load(LEASEHOLD_ACCOUNTS=ACCOUNTS, LEASEHOLD_MNS_KEYS=text).mns_keys
    assert found[0] == PAIR
    assert [each.key_id for each in found] == ["LTAI5tExample", "b"]


def test_keys_in_the_file(tmp_path: Path) -> None:
    """A table for each."""
    file = tmp_path / "leasehold.toml"
    file.write_text(
        '[mns_keys.LTAI5tExample]\nsecret = "thirty-characters-of-a-secret-"\naccount = "orders"\n'
    )
    settings = load_settings({}, file=file, environment={"LEASEHOLD_ACCOUNTS": ACCOUNTS}).settings
    assert settings.mns_keys == (PAIR,)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("mns_keys = 'x'", "must be a table"),
        ("[mns_keys]\na = 'x'", "must be a table with secret and account"),
        ("[mns_keys.a]\nsecret = 'sixteen-or-more-1'", "with secret and account"),
        ("[mns_keys.a]\nsecret = 5\naccount = 'orders'", "with secret and account"),
        ("[mns_keys.a]\nsecret = 'short-one'\naccount = 'orders'", "at least 16 characters"),
        (
            "[mns_keys.'a b']\nsecret = 'sixteen-or-more-1'\naccount = 'x'",
            "is not a valid AccessKeyId",
        ),
    ],
)
def test_keys_that_are_none(tmp_path: Path, table: str, text: str) -> None:
    """The reason is told, and never the secret."""
    file = tmp_path / "leasehold.toml"
    file.write_text(table)
    with pytest.raises(SettingsError, match=text) as caught:
        load_settings({}, file=file, environment={})
    assert "sixteen" not in str(caught.value)
    assert "short-one" not in str(caught.value)


@pytest.mark.parametrize("text", ["a", "a:sixteen-or-more-1", "a:b:c:d", "a:short:orders"])
def test_keys_in_the_environment_that_are_none(text: str) -> None:
    """Whatever is in the wrong place may be a secret."""
    with pytest.raises(SettingsError) as caught:
        load(LEASEHOLD_MNS_KEYS=text)
    assert "sixteen" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"account": "nobody"}, "'nobody' is not an account"),
        ({"key_id": "devstoreaccount1", "account": "devstoreaccount1"}, "has keys of its own"),
    ],
)
def test_keys_that_do_not_go_with_the_accounts(change: dict[str, Any], text: str) -> None:
    """They open an account of the server, and are not called like one."""
    pair = replace(PAIR, account="devstoreaccount1")
    with pytest.raises(SettingsError, match=text):
        validate(Settings(mns_keys=(replace(pair, **change),)))
    with pytest.raises(SettingsError, match="is repeated"):
        validate(Settings(mns_keys=(pair, pair)))
    validate(Settings(mns_keys=(pair,)))


def test_secrets_are_masked() -> None:
    """Whatever shows a key does not show its secret."""
    assert "secret-" not in repr(PAIR)
