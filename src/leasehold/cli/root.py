"""The root of the command line. Groups of commands register themselves here."""

from __future__ import annotations

import click

from leasehold import __version__
from leasehold.cli.server import serve, show_settings


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="leasehold")
def main() -> None:
    """Run and look after a Leasehold server: a durable queue in which work is held on leases."""


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"leasehold {__version__}")


main.add_command(serve)
main.add_command(show_settings)
main.add_command(version)
