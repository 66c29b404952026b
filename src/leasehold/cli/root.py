"""The root of the command line. Groups of commands are named here and imported when used."""

from __future__ import annotations

from typing import Final

import click

from leasehold import __version__
from leasehold.cli.lazy import Late, LazyGroup
from leasehold.cli.server import serve, show_settings

_THINGS: Final = "Queues, messages and what concerns them"
_WORK: Final = "Workers"
_SHORT: Final = "Short forms"

LATE: Final = {
    "queue": Late(
        "leasehold.cli.queues", "queue", "Create, look at, set, pause and purge queues.", _THINGS
    ),
    "message": Late(
        "leasehold.cli.messages", "message", "Send, receive, inspect and mend messages.", _THINGS
    ),
    "job": Late("leasehold.cli.jobs", "job", "Follow and stop purges and redrives.", _THINGS),
    "store": Late(
        "leasehold.cli.store",
        "group",
        "Check a store; move it, or an account of it, to another; tell it that it was restored.",
        _THINGS,
    ),
    "session": Late(
        "leasehold.cli.sessions", "group", "Look at the sessions of workers, and end them.", _THINGS
    ),
    "stream": Late(
        "leasehold.cli.streams",
        "stream",
        "Look at streams of claims; settle, park and give back claims.",
        _THINGS,
    ),
    "claim": Late(
        "leasehold.cli.claims", "claim", "Look at a claim, and read its messages.", _THINGS
    ),
    "transaction": Late(
        "leasehold.cli.transactions",
        "transaction",
        "Look at staged messages; publish and discard them.",
        _THINGS,
    ),
    "events": Late("leasehold.cli.events", "events", "Read the event log.", _THINGS),
    "trace": Late("leasehold.cli.events", "trace", "Tell what has happened to a message.", _THINGS),
    "stats": Late(
        "leasehold.cli.stats",
        "stats",
        "Show every queue at a glance: counts, ages, rates.",
        _THINGS,
    ),
    "worker": Late(
        "leasehold.cli.worker",
        "worker",
        "Run handlers, try how they bear late workers, describe their stages.",
        _WORK,
    ),
    "spark": Late(
        "leasehold.cli.spark",
        "group",
        "Run a small Spark cluster on this machine, to try things.",
        _WORK,
    ),
    "doctor": Late(
        "leasehold.cli.doctor",
        "doctor",
        "Look for what is wrong, say what it means and what to do about it.",
        _WORK,
    ),
    "pipeline": Late(
        "leasehold.cli.pipeline",
        "pipeline",
        "Run stages on Spark executors, each message on a lease of its own.",
        _WORK,
    ),
    "simulate": Late(
        "leasehold.cli.simulate",
        "simulate",
        "Try settings of a queue before making them.",
        _WORK,
    ),
    "analyze": Late(
        "leasehold.cli.analyze",
        "analyze",
        "Find out from the event log which timeouts would have been better, and what is going "
        "wrong.",
        _WORK,
    ),
    "send": Late("leasehold.cli.sending", "send", "Put one message, or many from a file.", _SHORT),
    "inspect": Late(
        "leasehold.cli.messages",
        "inspect",
        "List messages in whatever state, and say why each is there.",
        _SHORT,
    ),
    "explain": Late(
        "leasehold.cli.messages",
        "explain",
        "Say in a sentence why a queue or a message is as it is.",
        _SHORT,
    ),
    "redrive": Late(
        "leasehold.cli.jobs", "redrive", "Bring messages back from the poison queue.", _SHORT
    ),
}
"""Commands that speak to a server, whose libraries take a while to load."""


@click.group(cls=LazyGroup, late=LATE, context_settings={"help_option_names": ["-h", "--help"]})
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
