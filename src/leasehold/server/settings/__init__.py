"""What can be set about a server, where it is read from, and its reference page."""

from leasehold.server.settings.checks import validate
from leasehold.server.settings.fields import Settings, all_settings
from leasehold.server.settings.sources import (
    Loaded,
    load_settings,
    option_of,
    settings_markdown,
    show_value,
)
from leasehold.server.settings.values import (
    DEV_ACCOUNT,
    AccessKeyPair,
    AccountKeys,
    AccountStore,
    Kind,
    Meta,
    Problem,
    Secret,
    SettingsError,
    StoreUrl,
    bounds_text,
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
    "validate",
]
