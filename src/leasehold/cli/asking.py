"""Asks people before something is done that cannot be taken back."""

from __future__ import annotations

import sys

import click

from leasehold.cli.exit_codes import ExitCode
from leasehold.cli.rendering import Screen


def can_ask() -> bool:
    """Tell whether there is somebody to be asked: standard input and error are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(screen: Screen, question: str, *, is_interactive: bool) -> None:
    """Go on only if somebody agrees.

    Raises:
        click.UsageError: Nobody can be asked.
        click.exceptions.Exit: They said no.
    """
    if not is_interactive:
        raise click.UsageError(f"{question} There is nobody here to ask: add --yes.")
    if not click.confirm(question, default=False, err=True):
        screen.hint("Nothing was done.")
        raise click.exceptions.Exit(ExitCode.REFUSED)
