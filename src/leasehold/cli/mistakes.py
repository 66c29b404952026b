"""What a mistake on the command line is answered with: what is wrong, and what to type instead."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Final

import click

PROGRAM: Final = "leasehold"

_RECEIVE: Final = "receive pop dequeue take consume fetch poll pull lease claim-message"
_SEND: Final = "put publish push enqueue add post produce write"
_REMOVE: Final = "rm remove del delete drop destroy"
_FINISH: Final = (
    "message complete: its work is done",
    "message remove: for good, without a receipt",
)
_GIVE_BACK: Final = (
    "message release: give back a message that is leased",
    "redrive: bring messages back from the poison queue",
)

_OF_ROOT: Final[Mapping[str, tuple[str, ...]]] = {
    f"{_RECEIVE} get read": ("message receive",),
    f"{_SEND} msg": ("send",),
    "peek browse": ("message peek",),
    "ls list queues list-queues": ("queue list",),
    "messages list-messages": ("message list",),
    "create declare new make mk create-queue": ("queue create",),
    _REMOVE: ("queue delete: a queue with its messages", *_FINISH),
    "delete-queue": ("queue delete",),
    "purge clear empty flush": ("queue purge",),
    "pause suspend": ("queue pause",),
    "unpause": ("queue resume",),
    "resume": ("queue resume: a queue that is paused", "group resume: a group that is halted"),
    "count counts depth size length len": ("queue counts",),
    "stat stat-queues metrics": ("stats",),
    "status": ("stats: all queues", "health: the server on this machine"),
    "show describe info": ("queue show: a queue", "message show: a message"),
    "ack acknowledge complete done finish": ("message complete",),
    "nack release return abandon requeue": _GIVE_BACK,
    "reject": (
        "message release: another worker gets it",
        "message bury: it goes to the poison queue",
    ),
    "bury": ("message bury",),
    "dlq dead-letter deadletter dead-letters poison poisoned": ("message list --state poisoned",),
    "replay retry reprocess": ("redrive",),
    "renew touch heartbeat keepalive": ("message renew",),
    "extend": ("message extend",),
    "amend update edit modify": ("queue set: a queue", "message amend: a message"),
    "change": ("message change",),
    "cancel": ("message cancel",),
    "body": ("message body",),
    "tail follow log logs": ("events tail",),
    "history": ("trace",),
    "sessions workers": ("session list",),
    "jobs": ("job list",),
    "groups": ("group list",),
    "streams": ("stream list",),
    "transactions": ("transaction list",),
    "export": ("definitions export",),
    "import": ("definitions import",),
    "migrate": ("store migrate",),
    "check": ("store check: a store", "events check: the event log"),
    "config set-config": ("settings",),
    "start server up daemon": ("serve",),
    "run": ("serve: a server", "worker run: a worker"),
    "work": ("worker run",),
    "dashboard monitor": ("top",),
}
_OF_QUEUE: Final[Mapping[str, tuple[str, ...]]] = {
    "ls": ("queue list",),
    _REMOVE: ("queue delete",),
    "add new make mk declare": ("queue create",),
    "info describe status stat": ("queue show",),
    "get": ("queue show: a queue", "message receive: a message"),
    "stats count size length len depth": ("queue counts",),
    "clear empty flush": ("queue purge",),
    "update edit modify alter configure config change": ("queue set",),
    "suspend stop": ("queue pause",),
    "unpause start": ("queue resume",),
    "send put publish push enqueue post produce": ("send",),
    _RECEIVE: ("message receive",),
    "peek browse": ("message peek",),
    "messages inspect": ("message list",),
    "dlq dead-letter deadletter poison poisoned": ("message list --state poisoned",),
    "replay retry": ("queue redrive",),
    "groups": ("group list",),
    "top watch": ("top",),
}
_OF_MESSAGE: Final[Mapping[str, tuple[str, ...]]] = {
    f"{_SEND} create new": ("message send",),
    _RECEIVE: ("message receive",),
    "get read": ("message receive: the next message", "message show: a message by its ID"),
    "browse": ("message peek",),
    "ls inspect": ("message list",),
    "info describe": ("message show",),
    _REMOVE: _FINISH,
    "ack acknowledge done finish": ("message complete",),
    "nack return abandon requeue": _GIVE_BACK,
    "reject": (
        "message release: another worker gets it",
        "message bury: it goes to the poison queue",
    ),
    "purge clear empty flush": ("queue purge",),
    "touch heartbeat keepalive": ("message renew",),
    "update edit modify": ("message amend",),
    "count counts": ("queue counts",),
    "history trace": ("trace",),
    "dlq dead-letter deadletter poison poisoned": ("message list --state poisoned",),
    "redrive replay retry": ("redrive",),
}
_OF_SESSION: Final[Mapping[str, tuple[str, ...]]] = {
    "ls": ("session list",),
    "get info describe": ("session show",),
    "kill close stop delete remove rm": ("session end",),
}
_OF_JOB: Final[Mapping[str, tuple[str, ...]]] = {
    "ls": ("job list",),
    "get info describe status": ("job show",),
    "kill cancel": ("job stop",),
    "follow tail": ("job watch",),
}
_OF_EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "follow log logs list ls show": ("events tail",),
    "verify": ("events check",),
    "trace history": ("trace",),
}
_OF_WORKER: Final[Mapping[str, tuple[str, ...]]] = {
    "start serve": ("worker run",),
    "list ls": ("session list",),
}


def _by_word(table: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    return {word: commands for words, commands in table.items() for word in words.split()}


COMMANDS_BY_WORD: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "": _by_word(_OF_ROOT),
    "queue": _by_word(_OF_QUEUE),
    "message": _by_word(_OF_MESSAGE),
    "session": _by_word(_OF_SESSION),
    "job": _by_word(_OF_JOB),
    "events": _by_word(_OF_EVENTS),
    "worker": _by_word(_OF_WORKER),
}
"""By group and typed word: the commands that are meant. Several are distinguished by
what stands behind the colon. No word leads to a command that does more than the word says."""

_OPTIONS_BY_WORD: Final[Mapping[str, tuple[str, ...]]] = _by_word(
    {
        "--max-messages --max-number --number --num --count -n --batch --batch-size --limit": (
            "--max",
            "--limit",
            "--last",
        ),
        "--max": ("--limit", "--last"),
        "--ttl --expiry --expires --expiration --retention": ("--time-to-live",),
        "--timeout --lease --visibility --invisible": ("--visibility-timeout", "--for"),
        "--endpoint --server --host --address --port": ("--url",),
        "--key --account-key --access-key --secret --password": ("--key-file",),
        "--wait-time --long-poll --poll": ("--wait",),
        "--format --output -o": ("--json",),
        "--force -f --assume-yes --no-confirm": ("--yes",),
        "--follow -F --tail --live": ("--watch", "--follow"),
        "--watch": ("--follow",),
        "--retries --max-retries --max-receive-count --max-attempts": ("--max-deliveries",),
        "--dead-letter-queue --dlq": ("--poison-queue",),
        "--properties --header --attribute --metadata": ("--property",),
        "--message-group-id --group-id": ("--group",),
        "--message-deduplication-id --dedup --id": ("--dedup-key",),
        "--interval --every": ("--watch", "--every"),
    }
)
_AS_ARGUMENTS: Final = ("--queue", "-q", "--queue-name", "--name", "--body", "--message", "--text")
"""Options that are arguments here."""
_SECRET: Final = "--connection-string"  # noqa: S105 - the name of the option
_UNIT: Final = re.compile(r"-(s|sec|secs|seconds|ms)$")
_VALUE: Final = re.compile(r"^'?(?P<value>.*?)'? is not ", re.DOTALL)
_ONE_SLIP_FROM: Final = 4
"""Words that are shorter differ too much by one letter."""


class Mistake(click.UsageError):
    """A mistake on the command line, what is wrong with it in the first line."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it, and below it how the command is used."""
        click.echo(f"Error: {self.message}", file=file, err=file is None)
        if self.ctx is None:
            return
        click.echo(self.ctx.get_usage(), file=file, err=file is None)
        if self.ctx.command.get_help_option(self.ctx) is not None:
            click.echo(f"Help: {self.ctx.command_path} --help", file=file, err=file is None)


def explained(error: click.UsageError, typed: Sequence[str], root: click.Group) -> click.UsageError:
    """Return the error with what to type instead in its first line.

    Args:
        error: What the parser, or a command, has found.
        typed: The words behind ``leasehold``.
        root: Where all commands are.
    """
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error
    ctx = error.ctx
    if ctx is None and isinstance(error, click.BadOptionUsage):
        ctx = _context_of(typed, root)  # the parser knows none
    if ctx is None:
        message = error.format_message()
    elif isinstance(error, click.exceptions.NoSuchCommand):
        message = _no_such_command(error.command_name, ctx, typed, root)
    elif isinstance(error, click.NoSuchOption):
        message = _no_such_option(error.option_name, ctx, typed, root)
    elif isinstance(error, click.MissingParameter):
        message = _missing_parameter(error, ctx)
    elif isinstance(error, click.BadParameter) and error.param is not None:
        message = _bad_parameter(error, error.param, ctx, typed)
    elif isinstance(error, click.BadOptionUsage):
        message = _bad_option(error, ctx)
    elif error.message.startswith("Got unexpected extra argument"):
        message = _extra_argument(error, ctx, typed)
    else:
        message = error.format_message()
    return Mistake(message, ctx)


def _context_of(typed: Sequence[str], root: click.Group) -> click.Context:
    """Return the context of the command that a command line names."""
    ctx = click.Context(root, info_name=PROGRAM)
    for word in typed:
        group = ctx.command
        if not isinstance(group, click.Group) or word not in group.commands:
            break
        ctx = click.Context(group.commands[word], info_name=word, parent=ctx)
    return ctx


def is_one_slip(typed: str, word: str) -> bool:
    """Tell whether one letter is wrong, missing or too many, or two are swapped; not the first."""
    if typed[:1] != word[:1] or max(len(typed), len(word)) < _ONE_SLIP_FROM:
        return False
    start = 0
    while start < min(len(typed), len(word)) and typed[start] == word[start]:
        start += 1
    left, right = typed[start:], word[start:]
    return (
        left[1:] == right[1:]
        or left[1:] == right
        or left == right[1:]
        or (left[:2] == right[1::-1] and left[2:] == right[2:])
    )


# --- commands ----------------------------------------------------------------------------------


def _no_such_command(name: str, ctx: click.Context, typed: Sequence[str], root: click.Group) -> str:
    group = ctx.command
    assert isinstance(group, click.Group)
    path = ctx.command_path.split()[1:]
    place = typed.index(name) if name in typed else len(typed)
    rest = typed[place + 1 :]
    head = f"There is no command {' '.join([*path, name])!r}."
    forms = _meant(name, path, group)
    if forms is None and rest and (forms := _meant(rest[0], path, group, is_exact=True)):
        # The name of a queue stood where the command belongs.
        rest = [name, *rest[1:]]
    if forms is None:
        known = ", ".join(group.list_commands(ctx))
        within = f" It has: {known}." if path else ""
        return f"{head} Type: {ctx.command_path} --help, for a list of all.{within}"
    if len(forms) == 1:
        return f"{head} Type: {_line(forms[0], rest, root)}"
    choices = [form.partition(": ") for form in forms]
    shown = [f"{_line(command, (), root)} ({gloss})" for command, _, gloss in choices]
    return f"{head} Type one of: {', '.join(shown)}"


def _meant(
    word: str, path: Sequence[str], group: click.Group, *, is_exact: bool = False
) -> Sequence[str] | None:
    """Return the commands that a word means in a group, None if it is none that is known."""
    own = [*path, word]
    if word in group.commands:
        return [" ".join(own)]
    known = COMMANDS_BY_WORD.get(" ".join(path), {}).get(word.lower())
    if known is not None:
        return known
    if is_exact:
        return None
    near = [name for name in group.commands if is_one_slip(word.lower(), name)]
    return [" ".join([*path, near[0]])] if len(near) == 1 else None


def _line(command: str, rest: Sequence[str], root: click.Group) -> str:
    """Return a whole command line; with the names of its arguments if there are no others."""
    if rest:
        return f"{PROGRAM} {command} {quoted(rest)}"
    target: click.Command = root
    for word in command.split():
        if not isinstance(target, click.Group) or word.startswith("-"):
            break
        target = target.commands[word]
    return " ".join([PROGRAM, command, *_arguments(target)])


def _arguments(command: click.Command) -> Iterator[str]:
    ctx = click.Context(command)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            yield parameter.make_metavar(ctx)


def quoted(words: Sequence[str]) -> str:
    """Return words as a shell takes them, without what a connection string says."""
    shown = []
    for before, word in zip(["", *words], words, strict=False):
        is_secret = before == _SECRET
        hidden = word.startswith(f"{_SECRET}=")
        shown.append("TEXT" if is_secret else f"{_SECRET}=TEXT" if hidden else shlex.quote(word))
    return " ".join(shown)


# --- order -------------------------------------------------------------------------------------


_MESSAGE_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def refuse_swapped(ctx: click.Context) -> None:
    """Refuse arguments of which two stand in each other's place: an id is known by its form.

    Raises:
        click.UsageError: Two do.
    """
    given = ctx.params
    message_id = given.get("message_id")
    if not isinstance(message_id, str) or _MESSAGE_ID.fullmatch(message_id):
        return
    for name, shown in (("queue", "The QUEUE and the ID"), ("receipt", "The ID and the RECEIPT")):
        other = given.get(name)
        if isinstance(other, str) and _MESSAGE_ID.fullmatch(other):
            swapped = {**given, name: message_id, "message_id": other}
            words = [
                str(swapped[parameter.name])
                for parameter in ctx.command.params
                if isinstance(parameter, click.Argument) and swapped.get(str(parameter.name))
            ]
            what = f"{shown} are in the wrong order."
            raise click.UsageError(f"{what} Type: {ctx.command_path} {quoted(words)}", ctx)


# --- options -----------------------------------------------------------------------------------


def _no_such_option(name: str, ctx: click.Context, typed: Sequence[str], root: click.Group) -> str:
    if ctx.parent is None:
        first = next((at for at, word in enumerate(typed) if word in root.commands), None)
        if first:
            moved = [*typed[first:], *typed[:first]]
            return f"Options stand behind the command. Type: {PROGRAM} {quoted(moved)}"
    head = f"{ctx.command_path} has no option {name!r}."
    known = _option_names(ctx)
    near = _option_meant(name, known)
    if near is not None:
        return f"{head} Type: {PROGRAM} {quoted(_replaced(typed, name, near))}"
    arguments = list(_arguments(ctx.command))
    if name in _AS_ARGUMENTS and arguments:
        return f"{head} Type: {ctx.command_path} {' '.join(arguments)}"
    return f"{head} Type: {ctx.command_path} --help, for a list of all."


def _option_names(ctx: click.Context) -> list[str]:
    return [
        name
        for parameter in ctx.command.get_params(ctx)
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    ]


def _option_meant(typed: str, known: Sequence[str]) -> str | None:
    plain = typed.replace("_", "-").lower()
    plain = plain if plain.startswith("--") else typed
    for candidate in (plain, _UNIT.sub("", plain), f"-{plain}"):
        if candidate in known:
            return candidate
    for candidate in _OPTIONS_BY_WORD.get(plain, ()):
        if candidate in known:
            return candidate
    near = [name for name in known if name.startswith(plain) or is_one_slip(plain[2:], name[2:])]
    return near[0] if len(near) == 1 and len(plain) > _ONE_SLIP_FROM else None


def _replaced(typed: Sequence[str], name: str, instead: str) -> list[str]:
    replaced = []
    for word in typed:
        option, equals, value = word.partition("=")
        replaced.append(f"{instead}{equals}{value}" if option == name else word)
    return replaced


def _bad_option(error: click.BadOptionUsage, ctx: click.Context) -> str:
    for parameter in ctx.command.get_params(ctx):
        if isinstance(parameter, click.Option) and error.option_name in parameter.opts:
            value = parameter.make_metavar(ctx)
            if "requires an argument" in error.message:
                name = error.option_name
                return f"{name} has no value. Type: {name} {value}"
    return error.format_message()


# --- values ------------------------------------------------------------------------------------


def _name_of(parameter: click.Parameter, ctx: click.Context) -> str:
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return parameter.make_metavar(ctx)


def _missing_parameter(error: click.MissingParameter, ctx: click.Context) -> str:
    if error.param is None:
        return error.format_message()
    name = _name_of(error.param, ctx)
    if isinstance(error.param, click.Option):
        return f"{ctx.command_path} needs {name}. Type: {name} {error.param.make_metavar(ctx)}"
    arguments = " ".join(_arguments(ctx.command))
    return f"{ctx.command_path} needs {name}. Type: {ctx.command_path} {arguments}"


def _bad_parameter(
    error: click.BadParameter, parameter: click.Parameter, ctx: click.Context, typed: Sequence[str]
) -> str:
    name = _name_of(parameter, ctx)
    match = _VALUE.match(error.message)
    value = match["value"] if match else ""
    kind = parameter.type
    takes_none = isinstance(parameter, click.Option) and not parameter.is_flag
    if takes_none and getattr(parameter, "_flag_needs_value", False):
        moved = [word for word in typed if word != name]
        what = f"{name} is {value!r}; it must be a number of seconds."
        return f"{what} Type: {PROGRAM} {quoted([*moved, name])}"
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        example = getattr(kind, "min", None)
        example = 1 if example is None or getattr(kind, "min_open", False) else example
        return f"{name} is {value!r}; it must be {_range_of(kind)}. Type: {name} {example:.15g}"
    if isinstance(kind, click.Choice):
        return _bad_choice(name, value, [str(choice) for choice in kind.choices])
    if isinstance(kind, click.Path | click.File):
        return f"{name}: {error.message} Type the path of a file that can be used."
    return f"{name}: {error.message}"


def _range_of(kind: click.ParamType[Any]) -> str:
    is_whole = isinstance(kind, click.types.IntParamType)
    noun = "a whole number" if is_whole else "a number"
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if low is not None and high is not None:
        return f"{noun} from {low:,} to {high:,}"
    if low is not None:
        return f"{noun} {'above' if getattr(kind, 'min_open', False) else 'from'} {low:,}"
    return noun


def _bad_choice(name: str, value: str, choices: Sequence[str]) -> str:
    plain = value.replace("_", "-").lower()
    near = [choice for choice in choices if choice == plain or is_one_slip(plain, choice)]
    if near:
        return f"{name} is {value!r}. Type: {name} {near[0]}"
    return f"{name} is {value!r}; it must be one of {', '.join(choices)}. Type: {name} {choices[0]}"


def _extra_argument(error: click.UsageError, ctx: click.Context, typed: Sequence[str]) -> str:
    extra = error.message.partition("(")[2].removesuffix(")").split()
    arguments = list(_arguments(ctx.command))
    takes = f"takes {' '.join(arguments)}" if arguments else "takes no arguments"
    count = len(extra)
    many = "is one too many" if count == 1 else f"are {count} too many"
    head = f"{ctx.command_path} {takes}, and {' '.join(extra)!r} {many}."
    place = len(typed) - 1
    while place >= 0 and typed[place] != extra[-1]:
        place -= 1
    before, behind = list(typed[: place - count + 1]), list(typed[place + 1 :])
    known = _option_names(ctx)
    if "[BODY|-]" in arguments:
        body = " ".join([before.pop(), *extra])
        return f"{head} Type: {PROGRAM} {quoted([*before, body, *behind])}"
    if "--prefix" in known and not arguments:
        before += ["--prefix", *extra[:1]]
    elif extra[0].isdecimal() and (option := _option_meant("--max-messages", known)):
        before += [option, extra[0]]
    return f"{head} Type: {PROGRAM} {quoted([*before, *behind])}"
