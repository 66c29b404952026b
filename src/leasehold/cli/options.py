"""Options made from the settings, so that both always agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from leasehold.settings import (
    Kind,
    Loaded,
    Meta,
    SettingsError,
    all_settings,
    bounds_text,
    load_settings,
    option_of,
    show_value,
)

_Command = TypeVar("_Command", bound=Callable[..., Any])

_METAVARS = {
    Kind.INTEGER: "INTEGER",
    Kind.NUMBER: "NUMBER",
    Kind.PATH: "PATH",
    Kind.LIST: "TEXT,...",
    Kind.TEXT: "TEXT",
}


def settings_options(command: _Command) -> _Command:
    """Give *command* one option per setting, and ``--config``."""
    for name, (meta, default) in reversed(all_settings().items()):
        if option_of(name, meta):
            # No default here: what was not typed must not hide the environment and the file.
            command = click.option(
                option_of(name, meta),
                name,
                default=None,
                metavar=_metavar(meta),
                help=_help(meta, default),
            )(command)
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="TOML file of settings. Default: the file named by LEASEHOLD_CONFIG, if any.",
    )(command)


def load(config: Path | None, options: dict[str, str | bool | None]) -> Loaded:
    """Put the settings together from what was typed and from the other sources.

    Raises:
        click.ClickException: They cannot be used; the text names every reason.
    """
    typed = {name: value for name, value in options.items() if value is not None}
    try:
        return load_settings(typed, file=config)
    except SettingsError as error:
        raise BadSettings(str(error)) from None


class BadSettings(click.ClickException):
    """The settings cannot be used."""

    exit_code = 78  # EX_CONFIG of sysexits.h


def _metavar(meta: Meta) -> str | None:
    if meta.choices:
        return f"[{'|'.join(meta.choices)}]"
    return _METAVARS.get(meta.kind)


def _help(meta: Meta, default: Any) -> str:
    parts = [meta.meaning]
    if meta.bounds is not None:
        parts.append(f"From {bounds_text(meta)}{f' {meta.unit}' if meta.unit else ''}.")
    parts.append(f"Default: {show_value(default)}.")
    return " ".join(parts)
