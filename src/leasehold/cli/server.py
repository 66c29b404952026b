"""``leasehold serve``, ``leasehold health`` and ``leasehold settings``."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from leasehold import __version__
from leasehold.server.settings import (
    DEV_ACCOUNT,
    Kind,
    Loaded,
    Meta,
    Settings,
    SettingsError,
    all_settings,
    bounds_text,
    load_settings,
    option_of,
    settings_markdown,
    show_value,
)
from leasehold.server.settings.values import DEV_KEY

# --- options -----------------------------------------------------------------------------------
#
# Options made from the settings, so that both always agree.


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


def load(
    config: Path | None, options: dict[str, str | bool | None], *, to_serve: bool = False
) -> Loaded:
    """Put the settings together from what was typed and from the other sources.

    Args:
        config: The file of settings that was named; None: the one that LEASEHOLD_CONFIG names.
        options: What was typed, by setting; None: it was not.
        to_serve: A server is to run with them.

    Raises:
        click.ClickException: They cannot be used; the text names every reason.
    """
    typed = {name: value for name, value in options.items() if value is not None}
    try:
        return load_settings(typed, file=config, to_serve=to_serve)
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


# --- server ------------------------------------------------------------------------------------


@click.command()
@settings_options
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="For programs: write one line of JSON to standard output when the server listens or "
    "cannot start, with address, version and store. The log is JSON, too.",
)
def serve(config: Path | None, *, as_json: bool, **options: str | bool | None) -> None:
    """Run a server until it is stopped.

    On SIGTERM or Ctrl+C it answers the requests that have arrived, and stops. A second signal stops
    it at once.

    \b
    Exit codes:
      0   stopped as told
      2   an option that does not exist
      69  the address cannot be listened on
      70  the store cannot be opened, or failed
      75  the data folder is in use by another server
      78  a setting cannot be used
    """  # noqa: D301 - the escape tells click to keep the lines of the list
    is_greeted = not as_json and sys.stdout.isatty()
    if as_json and options.get("log_format") is None:
        options["log_format"] = "json"
    try:
        loaded = load(config, options, to_serve=True)
    except BadSettings as error:
        if as_json:
            code = error.exit_code
            failed = {"event": "server.start_failed", "version": __version__}
            _announce(failed | {"reason": error.message, "exit_code": code})
        raise
    # What is loaded stays: to look for garbage meanwhile takes a twelfth of the time.
    gc.disable()
    try:
        # Late: the server's libraries take a while to load, and --help needs none of them.
        from leasehold.server.main import serve as run  # noqa: PLC0415
    finally:
        gc.enable()

    settings = loaded.settings
    if not is_greeted:
        sys.exit(run(settings, _announce if as_json else None))
    own = (loaded.origins["log_format"], loaded.origins["log_level"])
    if sys.stderr.isatty() and set(own) == {"default"}:
        # What goes on as it should is for logs that are kept.
        settings = replace(settings, log_level="warning")
    sys.exit(run(settings, partial(_greet, settings), is_greeted=True))


def _greet(settings: Settings, document: dict[str, Any]) -> None:
    """Tell a person at a terminal where the server is, or why it is not."""
    if "reason" in document:
        click.echo(f"Error: {document['reason']}", err=True)
        return
    console = document["console_url"]
    at = f"{document['url']}{f', its console at {console}' if console else ''}"
    # A terminal that is closed must not stop the server from serving.
    with contextlib.suppress(OSError):
        click.echo(f"Leasehold {__version__} listens at {at}")
        click.echo(f"Connection string: {_connection_string(settings, document['url'])}")
        click.echo("Press Ctrl+C to stop it.")


def _connection_string(settings: Settings, url: str) -> str:
    """Return how clients on this machine reach the server; a key is shown if it is public."""
    url = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    if settings.dev_account_on():
        account, key = DEV_ACCOUNT, DEV_KEY
        if url == f"http://127.0.0.1:{all_settings()['port'][1]}":
            return "UseDevelopmentStorage=true"
    else:
        names = [each.name for each in settings.effective_accounts()]
        account, key = names[0] if names else "ACCOUNT", "KEY"
    return (
        f"DefaultEndpointsProtocol={url.partition(':')[0]};AccountName={account};"
        f"AccountKey={key};QueueEndpoint={url}/{account};"
    )


def _announce(document: dict[str, Any]) -> None:
    # A program that has closed its end must not stop the server from serving.
    with contextlib.suppress(OSError):
        click.echo(json.dumps(document, separators=(",", ":")))


@click.command()
@settings_options
@click.option(
    "--ready",
    is_flag=True,
    help="Check whether the server takes requests, not only whether it runs.",
)
@click.option("--timeout", "timeout_s", default=2.0, metavar="SECONDS", help="Default: 2.")
def health(
    config: Path | None, ready: bool, timeout_s: float, **options: str | bool | None
) -> None:
    """Check the health of a server on this machine.

    For health checks of containers. The exit code is 0 if the server is healthy, otherwise 1. Takes
    the options of serve, to find the server. Certificates are not checked, as they are not issued
    for loopback addresses.
    """
    # Late, as in serve.
    import ssl  # noqa: PLC0415
    from urllib.error import HTTPError  # noqa: PLC0415
    from urllib.request import urlopen  # noqa: PLC0415

    settings = load(config, options).settings
    host = next(iter(settings.addresses()))
    near = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    scheme = "http" if settings.tls_cert is None else "https"
    page = "readyz" if ready else "healthz"
    url = f"{scheme}://{near}:{settings.port}/{page}"
    unchecked = ssl._create_unverified_context() if scheme == "https" else None  # noqa: S323, SLF001
    try:
        with urlopen(url, timeout=timeout_s, context=unchecked) as answer:  # noqa: S310
            click.echo(answer.read().decode("utf-8").strip())
    except HTTPError as error:
        raise click.ClickException(f"{url} answers {error.code}") from None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{url}: {getattr(error, 'reason', error)}") from None


@click.command("settings")
@settings_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--reference", is_flag=True, help="Print the reference page of all settings.")
def show_settings(
    config: Path | None, as_json: bool, reference: bool, **options: str | bool | None
) -> None:
    """Show all settings and the source of each. Keys are masked.

    Takes the options of serve, to check a command line without running a server.
    """
    if reference:
        click.echo(settings_markdown(), nl=False)
        return
    loaded = load(config, options)
    rows = [
        (name, show_value(getattr(loaded.settings, name)), origin)
        for name, origin in loaded.origins.items()
    ]
    if as_json:
        table = {name: {"value": value, "origin": origin} for name, value, origin in rows}
        click.echo(json.dumps(table, indent=2))
        return
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, value, origin in rows:
        click.echo(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")
