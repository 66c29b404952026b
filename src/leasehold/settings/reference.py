"""The settings in words: the reference page, and values as people may see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from leasehold.settings.fields import all_settings
from leasehold.settings.meta import Kind, Meta, bounds_text
from leasehold.settings.sources import FILE_VARIABLE, PREFIX
from leasehold.settings.values import AccessKeyPair, AccountKeys, AccountStore, StoreUrl

_HEAD: Final = f"""\
# Settings

<!-- Made from src/leasehold/settings/fields.py by `leasehold settings --reference`. -->

A setting can be given in four places. The first one that has it wins:

1. an option of `leasehold serve`, such as `--port 10001`;
2. a variable of the environment, such as `{PREFIX}PORT=10001`;
3. a TOML file, such as `port = 10001`, named by `--config` or `{FILE_VARIABLE}`;
4. the default.

A name that is not on this page is refused, in the file and, if it begins with `{PREFIX}`, in the
environment. `leasehold settings` shows the values in force and where each came from. In options
and variables a list is separated by commas, and a switch is `true` or `false`.
"""


def option_of(name: str, meta: Meta) -> str:
    """Return the option of a setting as it is typed; empty if there is none."""
    dashed = name.replace("_", "-")
    match meta.kind:
        case Kind.ACCOUNTS | Kind.ACCESS_KEYS | Kind.ACCOUNT_STORES:
            return ""
        case Kind.SWITCH:
            return f"--{dashed}/--no-{dashed}"
        case _:
            return f"--{dashed}"


def show_value(value: Any) -> str:
    """Return a value in words; keys are masked."""
    match value:
        case None | "" | ():
            return "(none)"
        case bool():
            return "true" if value else "false"
        case Path() | str() | StoreUrl():
            return str(value)
        case tuple():
            return ", ".join(_show_item(item) for item in value)
        case _:
            return f"{value:.15g}"


def settings_markdown() -> str:
    """Return the reference page of all settings."""
    groups: dict[str, list[str]] = {}
    for name, (meta, default) in all_settings().items():
        groups.setdefault(meta.group, []).append("\n".join(_entry(name, meta, default)))
    sections = [f"## {group}\n\n" + "\n".join(entries) for group, entries in groups.items()]
    return _HEAD + "\n" + "\n".join(sections)


def _entry(name: str, meta: Meta, default: Any) -> Iterator[str]:
    yield f"### `{name}`\n"
    yield f"{meta.meaning}\n"
    yield f"- Default: {_code(default)}"
    allowed = bounds_text(meta) or str(meta.kind)
    yield f"- Allowed: {allowed}{f' {meta.unit}' if meta.unit else ''}"
    option = option_of(name, meta)
    variable = f"`{PREFIX}{name.upper()}`"
    yield f"- Given as: `{option}`, {variable}" if option else f"- Given as: {variable}"
    if meta.special:
        yield f"- {meta.special}"
    yield ""


def _code(default: Any) -> str:
    shown = show_value(default)
    return "none" if shown == "(none)" else f"`{shown}`"


def _show_item(item: object) -> str:
    if isinstance(item, AccountKeys):
        return f"{item.name} ({', '.join(repr(key) for key in item.keys)})"
    if isinstance(item, AccessKeyPair):
        return f"{item.key_id} for {item.account} ({item.secret!r})"
    if isinstance(item, AccountStore):
        return f"{item.account} in {item.url!r}"
    return str(item)
