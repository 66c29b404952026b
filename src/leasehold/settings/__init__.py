"""What can be set about a server, where it is read from, and its reference page."""

from leasehold.settings.fields import Settings, all_settings
from leasehold.settings.meta import Kind, Meta, bounds_text
from leasehold.settings.reference import option_of, settings_markdown, show_value
from leasehold.settings.sources import Loaded, load_settings
from leasehold.settings.values import (
    DEV_ACCOUNT,
    AccessKeyPair,
    AccountKeys,
    AccountStore,
    Problem,
    Secret,
    SettingsError,
    StoreUrl,
    uses_public_key,
)

__all__ = [
    "DEV_ACCOUNT",
    "AccessKeyPair",
    "AccountKeys",
    "AccountStore",
    "Kind",
    "Loaded",
    "Meta",
    "Problem",
    "Secret",
    "Settings",
    "SettingsError",
    "StoreUrl",
    "all_settings",
    "bounds_text",
    "load_settings",
    "option_of",
    "settings_markdown",
    "show_value",
    "uses_public_key",
]
