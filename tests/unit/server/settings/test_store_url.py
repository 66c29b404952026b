"""The address of a database: what is taken, and that its password is never shown."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from leasehold.server.settings import Settings, SettingsError, StoreUrl, load_settings, show_value

SECRET = "geheim"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://db/queues", "postgresql://db/queues"),
        ("postgres://u@db/queues", "postgres://u@db/queues"),
        (f"postgresql://u:{SECRET}@db:5432/queues", "postgresql://u:***@db:5432/queues"),
        (f"postgresql://u:{SECRET}@a:1,b:2/q?schema=s", "postgresql://u:***@a:1,b:2/q?schema=s"),
        (f"postgresql://u:x@{SECRET}@db/q", "postgresql://u:***@db/q"),
        (f"postgresql://:{SECRET}@db/q", "postgresql://:***@db/q"),
        (
            f"postgresql://db/q?password={SECRET}&schema=s",
            "postgresql://db/q?password=***&schema=s",
        ),
        (
            f"postgresql:///q?host=/run&sslpassword={SECRET}",
            "postgresql:///q?host=/run&sslpassword=***",
        ),
        (f"postgresql://u:{SECRET}@[::1]:5432/q", "postgresql://u:***@[::1]:5432/q"),
        (f"postgresql://u:{SECRET}@[::1]/q", "postgresql://u:***@[::1]/q"),
    ],
)
def test_the_password_is_masked(text: str, shown: str) -> None:
    """Wherever it stands; the rest is shown, and the whole can be had on purpose."""
    url = StoreUrl(text)
    assert (str(url), repr(url), show_value(url), f"{url}") == (shown,) * 4
    assert url.reveal() == text
    assert SECRET not in repr(Settings(store_url=url))


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        f"mysql://u:{SECRET}@db/q",
        f"postgresql:u:{SECRET}@db/q",
        f"postgresql://u:{SECRET}/more@db/q",
        f"postgresql://u:{SECRET}?more@db/q",
        f"postgresql://u@db:{SECRET}/q",
    ],
)
@pytest.mark.parametrize("source", ["option", "environment", "file"])
def test_what_is_refused_is_not_shown(text: str, source: str, tmp_path: Path) -> None:
    """An address that cannot be used may have a password in any place of it."""
    file = tmp_path / "leasehold.toml"
    file.write_text(f'store_url = "{text}"' if source == "file" else "")
    environment = {"LEASEHOLD_STORE_URL": text} if source == "environment" else {}
    flags: dict[str, str | bool] = {"store_url": text} if source == "option" else {}
    with pytest.raises(SettingsError) as refusal:
        load_settings(flags, file=file, environment=environment)
    assert "store_url: " in str(refusal.value)
    assert SECRET not in str(refusal.value)


def test_without_it_the_store_is_a_folder() -> None:
    """Also where a variable is there and has nothing in it."""
    assert Settings().store_url is None
    assert load_settings({}, environment={"LEASEHOLD_STORE_URL": ""}).settings.store_url is None


def test_equal_addresses_are_equal() -> None:
    """Two of them are alike if the whole text is."""
    url = StoreUrl(f"postgresql://u:{SECRET}@db/q")
    assert url == copy.copy(url)
    assert hash(url) == hash(copy.copy(url))
    assert url != StoreUrl("postgresql://u:other@db/q")
    assert url != url.reveal()
