"""The reference page, and values as people see them."""

from __future__ import annotations

import base64
from pathlib import Path

from leasehold.server.settings import (
    AccountKeys,
    Secret,
    all_settings,
    settings_markdown,
    show_value,
)

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "settings.md"


def test_page_is_up_to_date() -> None:
    """The page in the documentation is the one made from the fields.

    ``leasehold settings --reference > docs/reference/settings.md`` writes it.
    """
    assert PAGE.read_text(encoding="utf-8") == settings_markdown()


def test_page_has_every_setting() -> None:
    """Each setting has a heading, its variable, and its option unless it holds secrets."""
    page = settings_markdown()
    for name in all_settings():
        assert f"### `{name}`\n" in page
        assert f"`LEASEHOLD_{name.upper()}`" in page
        is_option = name not in {"accounts", "inspectors", "mns_keys", "account_stores"}
        assert (f"`--{name.replace('_', '-')}" in page) == is_option


def test_values_are_shown_as_they_are_written() -> None:
    """What is shown could be typed again."""
    assert show_value(value=True) == "true"
    assert show_value(86_400) == "86400"
    assert show_value(10.0) == "10"
    assert show_value(0.25) == "0.25"
    assert show_value(("a", "b")) == "a, b"
    assert show_value(Path("a/b")) == "a/b"
    assert [show_value(empty) for empty in ((), "", None)] == ["(none)"] * 3


def test_keys_are_masked() -> None:
    """Accounts are shown by name, with a mask for each key."""
    account = AccountKeys(name="orders", keys=(Secret(b"k" * 32), Secret(b"l" * 32)))
    shown = show_value((account,))
    assert shown == "orders (***, ***)"
    assert base64.b64encode(b"k" * 32).decode() not in shown
