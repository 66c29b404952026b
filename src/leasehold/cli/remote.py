"""What a command that speaks to a server works with: the client, the screen, the time."""

from __future__ import annotations

import inspect
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from leasehold.cli.mistakes import refuse_swapped
from leasehold.cli.output import Screen, clean
from leasehold.cli.values import PATHS
from leasehold.client import Client, QueueHandle
from leasehold.client._connection import DEFAULT_URL, DEVELOPMENT_ACCOUNT
from leasehold.client.errors import (
    ConnectionFailed,
    LeaseholdClientError,
    ServerProblem,
    UnexpectedAnswer,
)
from leasehold.client.retries import RetryPolicy
from leasehold.clock import Clock, SystemClock

if TYPE_CHECKING:
    import httpx

_T = TypeVar("_T")


_QUEUE_METAVARS: Final = frozenset({"QUEUE", "QUEUE[=WEIGHT]"})
_COMPLETION_S: Final = 1.0
"""For an answer of the server while a command line is typed."""
_COMPLETIONS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What tests replace: click hands it on as ``obj``."""

    clock: Clock
    sleep: Callable[[float], None] = time.sleep
    transport: httpx.BaseTransport | None = None
    is_interactive: bool | None = None
    """Whether an operator can be asked; None: if standard input and error are a terminal."""


class Session:
    """Handed to every command that speaks to a server."""

    def __init__(
        self,
        client: Client,
        screen: Screen,
        around: Surroundings,
        ca_file: str | None = None,
    ) -> None:
        self.client = client
        self.screen = screen
        self._around = around
        self._ca_file = ca_file

    @property
    def now_ms(self) -> int:
        """This machine's time of day, Unix milliseconds."""
        return self._around.clock.now_ms()

    @property
    def is_interactive(self) -> bool:
        """Whether an operator can be asked."""
        if self._around.is_interactive is not None:
            return self._around.is_interactive
        return can_ask()

    def web(self, timeout_s: float) -> httpx.Client:
        """Return what fetches the server's own pages, which need no credential."""
        import httpx  # noqa: PLC0415 - few commands need it, and all would load it

        trusted = (
            None if self._ca_file is None else ssl.create_default_context(cafile=self._ca_file)
        )
        return httpx.Client(
            transport=self._around.transport,
            verify=True if trusted is None else trusted,
            timeout=timeout_s,
        )

    def queue(self, name: str) -> QueueHandle:
        """Return the handle of a queue."""
        return self.client.queue(name)

    def sleep(self, length_s: float) -> None:
        """Wait."""
        self._around.sleep(length_s)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Go on only if the caller has said so, beforehand or now.

        Raises:
            click.UsageError: No operator can be asked.
            click.exceptions.Exit: They said no.
        """
        if not yes:
            confirm(self.screen, question, is_interactive=self.is_interactive)

    def present(
        self,
        fetch: Callable[[], _T],
        render: Callable[[_T], RenderableType],
        lines: Callable[[_T], Iterable[object]] | None = None,
        every_s: float | None = None,
    ) -> None:
        """Show what *fetch* gives, once or again and again.

        Args:
            fetch: Asks the server.
            render: Shows it to people.
            lines: Makes one line of JSON of each part; None: it is one document.
            every_s: Seconds between two looks, until Ctrl+C; None: look once.
        """
        screen = self.screen

        def write(found: _T) -> None:
            if not screen.as_json:
                screen.show(render(found))
            elif lines is not None:
                for each in lines(found):
                    screen.line(each)
            elif every_s is None:
                screen.document(found)
            else:
                screen.line(found)

        if every_s is None:
            write(fetch())
            return
        if screen.is_terminal and not screen.as_json:
            self._refresh(fetch, render, every_s)
        while True:
            write(fetch())
            self.sleep(every_s)

    def _refresh(
        self, fetch: Callable[[], _T], render: Callable[[_T], RenderableType], every_s: float
    ) -> NoReturn:
        first = render(fetch())
        with Live(first, console=self.screen.out, auto_refresh=False) as live:
            while True:
                self.sleep(every_s)
                live.update(render(fetch()), refresh=True)


def open_session(given: dict[str, Any], around: Surroundings | None) -> Session:
    """Make a session from the options that all commands share.

    Raises:
        click.UsageError: They do not go together, or a connection string is malformed.
    """
    around = around or Surroundings(clock=SystemClock())
    screen = Screen(as_json=given["as_json"], no_color=given["no_color"])
    try:
        client = _client(given, around.transport)
    except (ValueError, OSError) as error:
        raise click.UsageError(f"The options for the connection cannot be used: {error}.") from None
    return Session(client, screen, around, given["ca_file"])


class QueueName(click.types.StringParamType):
    """The name of a queue. Completion in a shell asks the server for it."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin so; none if the server does not answer at once."""
        del param
        given = {str(option.name): ctx.params.get(str(option.name)) for option in _SHARED}
        around = ctx.find_object(Surroundings)
        transport = None if around is None else around.transport
        once = {"timeout_s": _COMPLETION_S, "retries": RetryPolicy(attempts=1)}
        try:
            with _client(given, transport, **once) as client:
                queues = islice(client.list_queues(incomplete), _COMPLETIONS)
                return [CompletionItem(queue.name) for queue in queues]
        except Exception:  # noqa: BLE001 - what goes wrong has no place in a line that is typed
            return []


def _client(given: dict[str, Any], transport: httpx.BaseTransport | None, **more: Any) -> Client:
    connection, key_file = given["connection_string"], given["key_file"]
    common: dict[str, Any] = {"send_key": bool(given["send_key"]), "transport": transport, **more}
    if given["ca_file"] is not None:
        common["ssl_context"] = ssl.create_default_context(cafile=given["ca_file"])
    if given["url"] is given["account"] is key_file is None:
        if connection is None:
            return _from("AZURE_STORAGE_CONNECTION_STRING", **common)
        return _from("--connection-string", connection, **common)
    check_options(given)
    if key_file is not None:
        common["key"] = Path(key_file).read_text("utf-8").strip()
    account = given["account"] or DEVELOPMENT_ACCOUNT
    try:
        return Client(given["url"] or DEFAULT_URL, account, **common)
    except ValueError as error:
        if key_file is not None and "key" in str(error):
            text = f"--key-file: {error}. Put the account's key in the file, as base64."
            raise click.UsageError(text) from None
        raise click.UsageError(f"--url: {error}.") from None


def _from(what: str, *connection: str, **common: Any) -> Client:
    try:
        return Client.from_connection_string(*connection, **common)
    except ValueError as error:
        raise click.UsageError(f"{what}: {error}.") from None


def check_options(given: Mapping[str, Any]) -> None:
    """Refuse options for a connection of which one excludes or needs another.

    Raises:
        click.UsageError: They do, or the address is none. The text shows no secret.
    """
    url, account, key_file = given["url"], given["account"], given["key_file"]
    own = {"--url": url, "--account": account, "--key-file": key_file}
    named = [name for name, value in own.items() if value is not None]
    if given["connection_string"] is not None:
        raise click.UsageError(
            f"--connection-string and {' and '.join(named)} exclude each other. Type one of them."
        )
    if url is not None and "://" not in url:
        if "=" in url or "@" in url:
            raise click.UsageError("--url is no address. Type: --connection-string TEXT")
        raise click.UsageError(
            f"--url is {url!r}; it must begin with http:// or https://. Type: --url http://{url}"
        )
    if key_file is None and account not in {None, DEVELOPMENT_ACCOUNT}:
        raise click.UsageError(
            f"Account {account!r} needs a key. Type: --key-file FILE, with the account's key in "
            "base64 in the file"
        )


# --- remote ------------------------------------------------------------------------------------
#
# Commands that speak to a server: the options they share, and how they end.


CONNECTION: Final = (
    click.Option(
        ["--connection-string"],
        metavar="TEXT",
        help="Connection string, as the Azure SDKs take it. Other users of this machine can read "
        "a key in it: set the environment variable AZURE_STORAGE_CONNECTION_STRING instead, "
        "which is the default. Without both: the development account on this machine.",
    ),
    click.Option(
        ["--url"],
        metavar="URL",
        help="Address of the server, instead of a connection string. Default: "
        "http://127.0.0.1:10001.",
    ),
    click.Option(
        ["--account"],
        metavar="NAME",
        help="Name of the account, instead of a connection string. Default: devstoreaccount1.",
    ),
    click.Option(
        ["--key-file"],
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="File with the account's key in base64, instead of a connection string.",
    ),
    click.Option(
        ["--send-key"],
        is_flag=True,
        help="Send the key itself instead of signatures. An inspector's key needs this. Works "
        "over https or to this machine only.",
    ),
    click.Option(
        ["--ca-file"],
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="File with the certificates to trust, instead of the system's.",
    ),
)
OUTPUT: Final = (
    click.Option(
        ["--json", "as_json"],
        is_flag=True,
        help="Write JSON: one document, or one line per entry of a list.",
    ),
    click.Option(
        ["--no-color"],
        is_flag=True,
        help="Write without colours. The environment variable NO_COLOR does the same.",
    ),
)
WATCH: Final = click.Option(
    ["--watch", "every_s"],
    is_flag=False,
    flag_value="2",
    type=click.FloatRange(min=0.1),
    metavar="[SECONDS]",
    help="Update every SECONDS until Ctrl+C. Default: 2. Write --watch last on the line, or as "
    "--watch=SECONDS.",
)
YES: Final = click.Option(["-y", "--yes"], is_flag=True, help="Do not ask for confirmation.")

_SHARED: Final = (*CONNECTION, *OUTPUT)


class RemoteCommand(click.Command):
    """A command whose function is handed a session in place of the shared options."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        for parameter in self.params:
            if parameter.metavar in _QUEUE_METAVARS:
                parameter.type = QueueName()
        self.params += _SHARED
        self.epilog = self.epilog or EPILOG

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
        refuse_swapped(ctx)
        session = open_session(given, ctx.find_object(Surroundings))
        with session.client:
            ctx.params["session"] = session
            try:
                return super().invoke(ctx)
            except LeaseholdClientError as error:
                raise click.exceptions.Exit(report(error, session.screen)) from None
            except ValueError as error:
                # The client refuses what cannot be part of an address.
                raise click.UsageError(f"{error}.", ctx) from None
            except OSError as error:
                if error.filename is None:  # no file that the caller has named
                    raise
                raise click.FileError(str(error.filename), error.strerror) from None
            except KeyboardInterrupt:
                raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None


class LocalCommand(click.Command):
    """A command that speaks to no server; its help looks like that of the others."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params += OUTPUT

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See :class:`RemoteCommand`."""
        RemoteCommand.format_help_text(self, ctx, formatter)  # type: ignore[arg-type]  # only help


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


# --- exit codes --------------------------------------------------------------------------------
#
# How a command that speaks to a server ends.


class ExitCode(IntEnum):
    """Exit codes; those of ``leasehold serve`` are its own."""

    DONE = 0
    REFUSED = 1
    """The server refused it, or part of it; a job was stopped; or the caller said no."""
    USAGE = 2
    """The command line is wrong, or there was no terminal to confirm at."""
    NO_CONNECTION = 3
    """No Leasehold server answers at the address."""
    INTERRUPTED = 130
    """Ctrl+C, as shells count it."""


WARNED: Final = 4
"""Exit code of checks: it works, and may not go on to."""

_LEVELS: Final = {
    "ok": (ExitCode.DONE, "green"),
    "warn": (WARNED, "yellow"),
    "fail": (ExitCode.REFUSED, "bold red"),
}
"""How bad what a check has found can be: the exit code, and how it looks."""

EPILOG: Final = """\b
Exit codes:
  0    success
  1    the server refused, the job was stopped, or you answered no
  2    a mistake on the command line, or confirmation needs a terminal or --yes
  3    no Leasehold server answers at the address
  130  Ctrl+C
"""


# --- failures ----------------------------------------------------------------------------------
#
# What is printed when a call to the server does not succeed.


_SERVER_ERROR: Final = 500
WRONG_KEY: Final = "The signature is not that of this string to sign"
"""How the server begins to say it, for those who write clients."""
_SETTING: Final = "$.settings."
_DETAILS: Final = {
    "message-not-found": "Queue `{queue}` holds no message `{message_id}`: there never was one, or "
    "it was completed, removed or moved, or it expired.",
    "job-not-found": "There is no job `{job_id}`, or the server has forgotten it.",
    "session-not-found": "There is no session `{session_id}`, or it ended more than an hour ago.",
    "stream-not-found": "Queue `{queue}` has no stream `{stream}`.",
}
"""By code: what is wrong, where the command line names what the server only calls this one."""
_REMEDIES: Final = {
    "unauthenticated": "Check --account and --key-file, or the connection string in "
    "AZURE_STORAGE_CONNECTION_STRING.",
    "queue-not-found": "Create it: leasehold queue create {value}",
    "queue-exists": "Leave out --metadata, or change it: leasehold queue set {queue}",
    "settings-differ": "Leave out the settings, or change them: leasehold queue set {queue}",
    "no-groups": "Turn groups on: leasehold queue set {queue} --group-fair",
    "message-not-found": "List its messages: leasehold message list {queue}",
    "message-leased": "Wait until the lease ends, or add --force to end it.",
    "job-not-found": "List the jobs: leasehold job list",
    "session-not-found": "List the sessions: leasehold session list",
    "stream-not-found": "List its streams: leasehold stream list {queue}",
    "claim-not-found": "List the claims: leasehold stream show {queue} {stream}",
    "claim-lapsed": "Its consumer can open it again with the same number. See how many members it "
    "lost: leasehold stream show {queue} {stream}",
    "claim-broken": "Its consumer can open it with what remains. Give it up: leasehold stream "
    "give-back {queue} {stream} {number}",
    "claim-out-of-turn": "List the claims: leasehold stream show {queue} {stream}",
    "claim-settled": "List the claims: leasehold stream show {queue} {stream}",
    "body-unreadable": "Restore the body from a backup, give the message a new one (leasehold "
    "message amend), or remove the message (leasehold message remove).",
    "body-too-large": "Split it, or raise the limit: leasehold queue set {queue} --max-body-bytes "
    "N",
    "staged-not-found": "List the transactions: leasehold transaction list",
    "stale-token": "Another consumer has attached. See leasehold stream show {queue} {stream}, "
    "then try again.",
}
"""By code: what to do, in commands where the server speaks of requests."""


def report(error: LeaseholdClientError, screen: Screen) -> ExitCode:
    """Print why a call did not succeed, to standard error, and return the exit code."""
    unreachable = isinstance(error, ConnectionFailed | UnexpectedAnswer)
    if screen.as_json:
        screen.error_line({"error": error_members(error)})
    elif isinstance(error, ServerProblem):
        print_problem(error, screen)
    else:
        text = clean(str(error))
        if unreachable and "Use http" not in text:
            text += " Type: --url http://HOST:PORT, for a server elsewhere"
        screen.error(Text.assemble(("Error: ", "bold red"), text))
    return ExitCode.NO_CONNECTION if unreachable else ExitCode.REFUSED


def refuse(
    screen: Screen, text: str, code: ExitCode = ExitCode.USAGE, kind: str = "usage"
) -> ExitCode:
    """Print why a command does not go on, to standard error, and return its exit code."""
    if screen.as_json:
        screen.error_line({"error": {"code": kind, "detail": text}})
    else:
        screen.error(Text.assemble(("Error: ", "bold red"), clean(text)))
    return code


def error_members(error: LeaseholdClientError) -> dict[str, Any]:
    """Return an error as JSON has it; those that are not the server's have codes of our own."""
    if isinstance(error, ServerProblem):
        members: dict[str, Any] = msgspec.to_builtins(error.problem)
        return {name: value for name, value in members.items() if value not in {None, "", False}}
    code = "no-connection" if isinstance(error, ConnectionFailed) else "unexpected-answer"
    return {"code": code, "detail": str(error)}


def print_problem(error: ServerProblem, screen: Screen) -> None:
    """Print a refusal: what is wrong and what to do about it, and below that its code."""
    problem = error.problem
    names = _Names(_given())
    names["value"] = problem.value or names["queue"]
    option = None if problem.field is None else _option_of(problem.field)
    detail = problem.detail or problem.title
    if detail.startswith(WRONG_KEY):
        detail = "The key is not that of the account."
    own = _DETAILS.get(problem.code)
    if own is not None and names.has_all(own):
        detail = own.format_map(names)
    if option is not None:
        detail = detail.replace(f"`{problem.field}`", option)
    remedy = _remedy(error, option, names)
    head = Text.assemble(("Refused: ", "bold red"), clean(f"{detail} {remedy}".strip()))
    lines = [head, Text(f"Code: {problem.code}{f' ({problem.status})' if problem.status else ''}")]
    if problem.field is not None and option is None and problem.field not in detail:
        lines.append(Text(f"At: {clean(problem.field)}"))
    if problem.repeated:
        lines.append(Text("An earlier try had no clear answer and may have succeeded."))
    if problem.request_id and problem.status >= _SERVER_ERROR:
        lines.append(Text(f"The server's log has it as request {clean(problem.request_id)}."))
    for line in lines:
        screen.error(line)


class _Names(dict[str, Any]):
    """What a template names; a name that nobody gave stands in capital letters, as in usages."""

    def __missing__(self, name: str) -> str:
        return name.upper()

    def has_all(self, template: str) -> bool:
        """Tell whether everything that a template names was given."""
        return all(name in self for _, name, _, _ in Formatter().parse(template) if name)


def _given() -> dict[str, Any]:
    """Return the arguments of the command that runs."""
    ctx = click.get_current_context(silent=True)
    given = {} if ctx is None else ctx.params
    return {name: value for name, value in given.items() if isinstance(value, str | int)}


def _option_of(field: str) -> str | None:
    """Return the option of the command that runs which a field of its request comes from."""
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return None
    member = field.rpartition(".")[2]
    if field.startswith(_SETTING):
        path = tuple(field.removeprefix(_SETTING).split("."))
        member = next((name for name, setting in PATHS.items() if setting == path), member)
    for parameter in ctx.command.params:
        if isinstance(parameter, click.Option) and (
            member == parameter.name or f"--{member}" in parameter.opts
        ):
            return max(parameter.opts, key=len)
    return None


def _remedy(error: ServerProblem, option: str | None, names: _Names) -> str:
    if error.code == "out-of-range" and option and isinstance(error.value, int | float):
        bound = error.maximum if error.value > (error.maximum or 0) else error.minimum
        return f"Type: {option} {bound:.15g}" if isinstance(bound, int | float) else ""
    own = _REMEDIES.get(error.code)
    return (error.remedy or "") if own is None else own.format_map(names)


# --- checks ------------------------------------------------------------------------------------


def tell_checks(screen: Screen, key: str, checks: Sequence[Mapping[str, str]]) -> int:
    """Print what checks have found; return the exit code that the worst of it stands for.

    Args:
        screen: Where to write.
        key: Under which JSON has them.
        checks: Of each the level ("ok", "warn" or "fail"), its name as *check*, what was found,
            and perhaps its meaning and cure.
    """
    levels = [each["level"] for each in checks]
    worst = max(levels, key=[*_LEVELS].index, default="ok")
    code, style = _LEVELS[worst]
    if screen.as_json:
        screen.document({"level": worst, key: checks})
        return code
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in checks:
        told = [Text(clean(each["found"]), style="" if each["level"] == "ok" else "bold")]
        if each.get("meaning"):
            told.append(Text(each["meaning"]))
        if each.get("cure"):
            told.append(Text.assemble(("What to do: ", "bold"), each["cure"]))
        level = Text(each["level"], style=_LEVELS[each["level"]][1])
        table.add_row(level, Text(each["check"]), Group(*told))
    screen.show(table)
    bad = len(levels) - levels.count("ok")
    verdict = f"{bad} of {len(levels)} checks found a problem." if bad else "All checks passed."
    screen.show(Padding(Text(verdict, style=style), (1, 0, 0, 0)))
    return code


# --- asking ------------------------------------------------------------------------------------
#
# Asks people before something is done that cannot be taken back.


def can_ask() -> bool:
    """Tell whether there is an operator to be asked: standard input and error are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(screen: Screen, question: str, *, is_interactive: bool) -> None:
    """Go on only if the operator agrees.

    Raises:
        click.UsageError: No operator can be asked.
        click.exceptions.Exit: They said no.
    """
    if not is_interactive:
        raise click.UsageError(
            f"{question} There is no terminal for the answer. Type: --yes, to confirm"
        )
    if not click.confirm(question, default=False, err=True):
        screen.hint("Nothing was changed.")
        raise click.exceptions.Exit(ExitCode.REFUSED)
