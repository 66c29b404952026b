"""``leasehold serve`` and ``leasehold settings``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from leasehold.cli.options import load, settings_options
from leasehold.settings import settings_markdown, show_value


@click.command()
@settings_options
def serve(config: Path | None, **options: str | bool | None) -> None:
    """Run a server until it is told to stop.

    SIGTERM or Ctrl+C stops it once it has answered what had arrived; a second one ends it at once.

    \b
    Exit codes:
      0   stopped as told
      2   an option that does not exist
      69  the address cannot be listened on
      70  the store cannot be opened, or failed
      75  the data folder is in use by another server
      78  a setting cannot be used
    """  # noqa: D301 - the escape tells click to keep the lines of the list
    loaded = load(config, options)
    # Late: the server's libraries take a while to load, and --help needs none of them.
    from leasehold.http.server import serve as run  # noqa: PLC0415

    sys.exit(run(loaded.settings))


@click.command("settings")
@settings_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--reference", is_flag=True, help="Print the reference page of all settings.")
def show_settings(
    config: Path | None, as_json: bool, reference: bool, **options: str | bool | None
) -> None:
    """Show the settings in force and where each came from; keys are masked.

    Takes the options of ``serve``, so that a command line can be tried without running a server.
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
