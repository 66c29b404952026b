"""Accounts with a store of their own: where it is written, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasehold.server.settings import Settings, SettingsError, load_settings, show_value

KEY = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="
ACCOUNTS = f"shop:{KEY};bank:{KEY}"
URL = "postgresql://db/queues?schema=shop"


def loaded(stores: str, **more: str) -> Settings:
    """Return settings from the environment."""
    given = {"LEASEHOLD_ACCOUNTS": ACCOUNTS, "LEASEHOLD_ACCOUNT_STORES": stores}
    return load_settings({}, environment={**given, **more}).settings


def test_both_ways_to_write_them_are_alike(tmp_path: Path) -> None:
    """In the environment and in the file; passwords are not shown."""
    settings = loaded(f" shop={URL} ;bank=postgresql://u:secret@db/q;")
    assert [(each.account, each.url.reveal()) for each in settings.account_stores] == [
        ("shop", URL),
        ("bank", "postgresql://u:secret@db/q"),
    ]
    assert show_value(settings.account_stores) == (
        f"shop in {URL}, bank in postgresql://u:***@db/q"
    )
    file = tmp_path / "settings.toml"
    file.write_text(f'[accounts.shop]\nkey1 = "{KEY}"\n[account_stores]\nshop = "{URL}"\n')
    written = load_settings({}, environment={}, file=file).settings
    assert written.account_stores == settings.account_stores[:1]


@pytest.mark.parametrize(
    ("stores", "more", "said"),
    [
        (f"nobody={URL}", {}, "'nobody' is not an account"),
        (f"shop={URL};shop={URL}", {}, "'shop' is repeated"),
        (f"shop={URL}", {"LEASEHOLD_STORE_URL": URL}, "the same store as the other accounts"),
        ("shop", {}, "must begin with postgresql://"),
        ("shop=./data", {}, "must begin with postgresql://"),
        (f"shop={URL}", {"LEASEHOLD_TEST_MODE": "true"}, "only one store"),
    ],
)
def test_what_cannot_be(stores: str, more: dict[str, str], said: str) -> None:
    """Unknown accounts, two stores of one, the same store twice, and what is no URL."""
    with pytest.raises(SettingsError, match=said):
        loaded(stores, **more)


def test_a_file_with_something_else_in_it(tmp_path: Path) -> None:
    """What is no text is refused."""
    file = tmp_path / "settings.toml"
    file.write_text(f'[accounts.shop]\nkey1 = "{KEY}"\n[account_stores]\nshop = 5\n')
    with pytest.raises(SettingsError, match="text in quotes"):
        load_settings({}, environment={}, file=file)
