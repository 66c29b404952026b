"""Commands that speak to a server: the options they share, and how they end."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import click

from leasehold.cli.exit_codes import EPILOG, ExitCode
from leasehold.cli.failures import report
from leasehold.cli.session import Surroundings, open_session
from leasehold.client.errors import LeaseholdClientError

CONNECTION: Final = (
    click.Option(
        ["--connection-string"],
        metavar="TEXT",
        help="As the Azure SDKs take it. A key in it can be read by other users of this machine: "
        "better set the environment variable AZURE_STORAGE_CONNECTION_STRING, which is used "
        "without this option. Default: the development account on this machine.",
    ),
    click.Option(
        ["--url"],
        metavar="URL",
        help="Address of the server, in place of a connection string. "
        "Default: http://127.0.0.1:10001.",
    ),
    click.Option(
        ["--account"],
        metavar="NAME",
        help="Account, in place of a connection string. Default: devstoreaccount1.",
    ),
    click.Option(
        ["--key-file"],
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="File that holds the account's key, in base64, in place of a connection string.",
    ),
    click.Option(
        ["--send-key"],
        is_flag=True,
        help="Send the key itself and sign nothing, as an inspector's key needs. Over https or to "
        "this machine only.",
    ),
    click.Option(
        ["--ca-file"],
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Certificates to trust in place of the system's.",
    ),
)
OUTPUT: Final = (
    click.Option(
        ["--json", "as_json"],
        is_flag=True,
        help="Write JSON: one document, or for a list one line for each thing in it.",
    ),
    click.Option(
        ["--no-color"],
        is_flag=True,
        help="Write no colours. So does the environment variable NO_COLOR.",
    ),
)
WATCH: Final = click.Option(
    ["--watch", "every_s"],
    is_flag=False,
    flag_value="2",
    type=click.FloatRange(min=0.1),
    metavar="[SECONDS]",
    help="Look again every so many seconds, 2 unless told, until Ctrl+C. Put it last, or write "
    "--watch=SECONDS.",
)
YES: Final = click.Option(["-y", "--yes"], is_flag=True, help="Do not ask for confirmation.")

_SHARED: Final = (*CONNECTION, *OUTPUT)


class RemoteCommand(click.Command):
    """A command whose function is handed a session in place of the shared options."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params += _SHARED
        self.epilog = EPILOG

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those that every command has after its own."""
        groups: dict[str, list[tuple[str, str]]] = {"Options": [], "Output": [], "Connection": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            group = "Options"
            if parameter in OUTPUT or parameter is WATCH:
                group = "Output"
            elif parameter in CONNECTION:
                group = "Connection"
            groups[group].append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description, and its examples unbroken, so that they can be copied."""
        del ctx
        text, *examples = inspect.cleandoc(self.help or "").split("Example: ")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text.strip())
        if examples:
            with formatter.section("Example" if len(examples) == 1 else "Examples"):
                for example in examples:
                    formatter.write(f"{'':{formatter.current_indent}}{' '.join(example.split())}\n")

    def invoke(self, ctx: click.Context) -> Any:
        """Open a session, run the function, and turn its errors into exit codes."""
        given = {str(each.name): ctx.params.pop(str(each.name)) for each in _SHARED}
        session = open_session(given, ctx.find_object(Surroundings))
        with session.client:
            ctx.params["session"] = session
            try:
                return super().invoke(ctx)
            except LeaseholdClientError as error:
                raise click.exceptions.Exit(report(error, session.screen)) from None
            except ValueError as error:
                # The client refuses what cannot be part of an address.
                raise click.UsageError(f"{error}.") from None
            except KeyboardInterrupt:
                raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None


def remote(
    name: str, *options: click.Option, add_to: click.Group | None = None
) -> Callable[[Callable[..., object]], click.Command]:
    """Make a command of a function whose first argument is the session.

    Args:
        name: Of the command.
        options: Further options, listed after those of decorators.
        add_to: The group that has it.
    """

    def make(function: Callable[..., object]) -> click.Command:
        command = click.command(name, cls=RemoteCommand)(function)
        # Before the shared ones, which the class has put at the end.
        command.params[-len(_SHARED) : -len(_SHARED)] = options
        if add_to is not None:
            add_to.add_command(command)
        return command

    return make


def own_options(command: click.Command) -> list[click.Parameter]:
    """Return the parameters of a command that not every such command has."""
    return [each for each in command.params if each not in _SHARED]
