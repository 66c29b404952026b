"""The root of the command line. Groups of commands are named here and imported when used."""

from __future__ import annotations

import importlib
import json
import platform
import signal
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import get_completion_class

from leasehold import __version__, form
from leasehold.cli.mistakes import PROGRAM, explained
from leasehold.cli.server import health, serve, show_settings

# --- lazy --------------------------------------------------------------------------------------
#
# A group whose commands are imported when they are needed, and not to list them.


_WHOLE: Final = 200
"""Characters of a summary that are shown: more than any has."""
_INTERRUPTED: Final = 128 + signal.SIGINT
"""Exit code after Ctrl+C, as shells count it."""
_WORDS: Final = f"{__name__}.words"
"""Under which a context keeps the words of the command line."""


class Late(NamedTuple):
    """Where a command is, and what the list of commands says about it."""

    module: str
    name: str
    """Of the command's object in its module."""
    summary: str
    section: str


class _Commands(MutableMapping[str, click.Command]):
    """Commands by name; one that is late is imported when it is looked up."""

    def __init__(self, late: Mapping[str, Late]) -> None:
        self.late = late
        self._loaded: dict[str, click.Command | None] = dict.fromkeys(late)

    def __getitem__(self, name: str) -> click.Command:
        command = self._loaded[name]
        if command is None:
            command = self._loaded[name] = _load(self.late[name])
        return command

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)


class OrderedGroup(click.Group):
    """Lists its commands in the order in which they were added, each with a whole sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See :class:`click.Group`."""
        del ctx
        return list(self.commands)

    def describe(self, name: str) -> tuple[str, str]:
        """Return the heading under which a command is listed, and what it does."""
        return "Commands", self.commands[name].get_short_help_str(limit=_WHOLE)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, by headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            heading, summary = self.describe(name)
            sections.setdefault(heading, []).append((name, summary))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


class LazyGroup(OrderedGroup):
    """A group most of whose commands are late. The others are listed first."""

    def __init__(self, *, late: Mapping[str, Late], **settings: object) -> None:
        super().__init__(commands=_Commands(late), **settings)  # type: ignore[arg-type]  # click's
        self._late = late

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See :class:`click.Group`."""
        return sorted(super().list_commands(ctx), key=lambda name: name in self._late)

    def describe(self, name: str) -> tuple[str, str]:
        """See :class:`OrderedGroup`. Nothing is imported."""
        late = self._late.get(name)
        if late is None:
            return "Server", super().describe(name)[1]
        return late.section, late.summary


class Program(LazyGroup):
    """All commands.

    It answers each mistake on the command line with what to type instead, and ends a command that
    Ctrl+C interrupts without a word.
    """

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        """See :class:`click.Command`."""
        words = list(arguments[1] if len(arguments) > 1 else settings["args"])
        try:
            ctx = super().make_context(*arguments, **settings)
        except click.UsageError as error:
            raise explained(error, words, self) from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(_INTERRUPTED) from None
        ctx.meta[_WORDS] = words
        return ctx

    def invoke(self, ctx: click.Context) -> Any:
        """See :class:`click.Command`."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise explained(error, ctx.meta[_WORDS], self) from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except click.Abort as abort:
            # At a question, click takes it for an end of the input.
            if isinstance(abort.__context__, KeyboardInterrupt):
                raise click.exceptions.Exit(_INTERRUPTED) from None
            raise


def _load(late: Late) -> click.Command:
    command = getattr(importlib.import_module(late.module), late.name)
    assert isinstance(command, click.Command)
    return command


# --- root --------------------------------------------------------------------------------------


_THINGS: Final = "Queues and messages"
_WORK: Final = "Workers"
_SHORT: Final = "Short forms"

LATE: Final = {
    "queue": Late(
        "leasehold.cli.queues", "queue", "Create, show, configure, pause and purge queues.", _THINGS
    ),
    "definitions": Late(
        "leasehold.cli.definitions",
        "definitions",
        "Export queues and their settings to a file, and import them.",
        _THINGS,
    ),
    "group": Late(
        "leasehold.cli.groups",
        "group",
        "List, show, halt and resume message groups.",
        _THINGS,
    ),
    "message": Late(
        "leasehold.cli.messages", "message", "Send, receive, inspect and change messages.", _THINGS
    ),
    "job": Late(
        "leasehold.cli.jobs", "job", "Follow and stop purges, redrives and changes.", _THINGS
    ),
    "backup": Late(
        "leasehold.cli.backup",
        "backup",
        "Back up a store while servers use it, and check the backup.",
        _THINGS,
    ),
    "restore": Late(
        "leasehold.cli.backup",
        "restore",
        "Check a backup, and restore a store from it.",
        _THINGS,
    ),
    "store": Late(
        "leasehold.cli.store",
        "group",
        "Check or move a store, move an account, or mark a store as restored.",
        _THINGS,
    ),
    "session": Late(
        "leasehold.cli.sessions", "group", "List, show and end sessions of workers.", _THINGS
    ),
    "stream": Late(
        "leasehold.cli.streams",
        "stream",
        "Show streams of claims; settle, park and release claims.",
        _THINGS,
    ),
    "claim": Late(
        "leasehold.cli.streams", "claim", "Show a claim, and read its messages.", _THINGS
    ),
    "transaction": Late(
        "leasehold.cli.streams",
        "transaction",
        "Show, publish and discard staged messages.",
        _THINGS,
    ),
    "events": Late("leasehold.cli.events", "events", "Read the event log.", _THINGS),
    "trace": Late("leasehold.cli.events", "trace", "Show the history of a message.", _THINGS),
    "stats": Late(
        "leasehold.cli.stats",
        "stats",
        "Show counts, ages and rates of all queues.",
        _THINGS,
    ),
    "top": Late(
        "leasehold.cli.top",
        "top",
        "Watch queues, workers and leases live, busiest first.",
        _THINGS,
    ),
    "worker": Late(
        "leasehold.cli.worker",
        "worker",
        "Run handlers, test them with late workers, and describe their stages.",
        _WORK,
    ),
    "certify": Late(
        "leasehold.cli.certify",
        "certify",
        "Test whether a worker handles its leases correctly.",
        _WORK,
    ),
    "spark": Late(
        "leasehold.cli.spark",
        "group",
        "Run a small Spark cluster on this machine for experiments.",
        _WORK,
    ),
    "doctor": Late(
        "leasehold.cli.spark",
        "doctor",
        "Find common problems, explain them, and suggest fixes.",
        _WORK,
    ),
    "pipeline": Late(
        "leasehold.cli.pipeline",
        "pipeline",
        "Run the stages of a pipeline on Spark executors.",
        _WORK,
    ),
    "simulate": Late(
        "leasehold.cli.simulate",
        "simulate",
        "Simulate a queue with given settings.",
        _WORK,
    ),
    "analyze": Late(
        "leasehold.cli.analyze",
        "analyze",
        "Analyze the event log for better timeouts and for problems.",
        _WORK,
    ),
    "send": Late(
        "leasehold.cli.send_receive", "send", "Send one message, or many from a file.", _SHORT
    ),
    "inspect": Late(
        "leasehold.cli.messages",
        "inspect",
        "List messages in any state, and explain the state of each.",
        _SHORT,
    ),
    "explain": Late(
        "leasehold.cli.messages",
        "explain",
        "Explain the state of a queue or a message in a sentence.",
        _SHORT,
    ),
    "redrive": Late(
        "leasehold.cli.jobs",
        "redrive",
        "Move messages from the poison queue back to their queue.",
        _SHORT,
    ),
}
"""Commands whose libraries take a while to load."""


SHELLS: Final = ("bash", "zsh", "fish")


@click.group(
    PROGRAM,
    cls=Program,
    late=LATE,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--version", "shows_version", is_flag=True, help="Print the version and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --version: print JSON.")
@click.pass_context
def main(ctx: click.Context, *, shows_version: bool, as_json: bool) -> None:
    """Run and operate Leasehold, a durable message queue with leases."""
    if shows_version:
        _print_version(as_json=as_json)
        ctx.exit()
    if as_json:
        raise click.UsageError(
            "--json needs --version here. Commands have their own --json: write it behind the "
            "command"
        )
    if ctx.invoked_subcommand is None:
        raise click.exceptions.NoArgsIsHelpError(ctx)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the version of Python.")
def version(*, as_json: bool) -> None:
    """Print the version."""
    _print_version(as_json=as_json)


def _print_version(*, as_json: bool) -> None:
    if as_json:
        found = {"leasehold": __version__, "form": form(), "python": platform.python_version()}
        click.echo(json.dumps(found))
    else:
        click.echo(f"{PROGRAM} {__version__}")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script for shell completion.

    Load it in the shell's startup file, as in: eval "$(leasehold completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None, f"click completes in {shell}"
    click.echo(kind(main, {}, PROGRAM, "_LEASEHOLD_COMPLETE").source())


@click.command("help")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
def show_help(words: tuple[str, ...]) -> None:
    """Show the help of a command, as its --help does."""
    main([*words, "--help"], prog_name=PROGRAM)


main.add_command(serve)
main.add_command(health)
main.add_command(show_settings)
main.add_command(version)
main.add_command(completion)
main.add_command(show_help)
