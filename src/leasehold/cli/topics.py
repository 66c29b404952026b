"""``leasehold help``: the help of a command, and pages of the documentation by topics."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.markdown import Markdown

_PACKED: Final = Path(__file__).resolve().parent.parent / "help_pages"
"""Where the wheel has the pages, compressed; pyproject.toml lists them."""
_SOURCE: Final = Path(__file__).resolve().parents[3] / "docs"
"""Where they are in a checkout."""
_WIDTH: Final = 100
"""Columns at most: longer lines are hard to read."""


class Topic(NamedTuple):
    """What can be read about."""

    summary: str
    page: str
    """Of the documentation."""
    sections: tuple[str, ...] = ()
    """Headings; none: the whole page."""


_CLI: Final = "reference/cli.md"
TOPICS: Final = {
    "connection": Topic(
        "Which server a command uses, and with which credentials.", _CLI, ("Which server",)
    ),
    "output": Topic(
        "Tables, JSON for scripts, colours, lengths of time.", _CLI, ("What they print",)
    ),
    "filters": Topic("How a command selects messages.", _CLI, ("Filters",)),
    "exit-codes": Topic("The exit codes of commands.", _CLI, ("How they end", "Exit codes")),
    "environment": Topic("Variables that commands and the server read.", _CLI, ("Environment",)),
    "states": Topic(
        "The states of a message, and why it may be invisible.",
        "explanation/visibility.md",
        ("States", "Why a message cannot be seen"),
    ),
    "receipts": Topic(
        "How a lease is proved, and when a receipt is refused.",
        "explanation/visibility.md",
        ("Receipts", "Rules for a lapsed receipt"),
    ),
    "timeouts": Topic(
        "How long a lease lasts, and what determines that.",
        "explanation/visibility.md",
        ("Choosing a visibility timeout",),
    ),
    "priorities": Topic("Which message comes next.", "howto/priorities.md"),
    "groups": Topic("Order, fairness and limits by tenant or order.", "howto/message-groups.md"),
    "poison": Topic("What happens to messages that fail too often.", "howto/poison-messages.md"),
    "sessions": Topic("How dead workers are noticed.", "explanation/sessions.md"),
    "settings": Topic("Settings of a server.", "reference/settings.md"),
    "queue-settings": Topic("Settings of a queue.", "reference/queue-settings.md"),
    "problems": Topic("Error codes, and what to do.", "reference/native-problems.md"),
    "log-events": Topic("What the server logs.", "reference/log-events.md"),
    "metrics": Topic("What the server counts.", "reference/metrics.md"),
    "glossary": Topic("The words used here.", "glossary.md"),
}
"""By name, in the order in which they are listed."""


def text_of(topic: Topic) -> str:
    """Return what the documentation says about a topic, in Markdown.

    Raises:
        click.ClickException: The page is not there: an installation that lacks files.
    """
    try:
        if _PACKED.is_dir():
            page = gzip.decompress((_PACKED / f"{topic.page}.gz").read_bytes()).decode()
        else:
            page = (_SOURCE / topic.page).read_text(encoding="utf-8")
    except OSError as error:
        raise click.ClickException(
            f"The page {topic.page} is missing from this installation: {error.strerror}."
        ) from None
    if topic.sections:
        page = "\n".join(_section(page, heading) for heading in topic.sections)
    return _without_links(page)


def _section(page: str, heading: str) -> str:
    """Return a section with those below it."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", page, re.MULTILINE)
    assert found is not None, f"a test finds every heading: {heading}"
    after = re.search(rf"^#{{1,{len(found[1])}}} ", page[found.end() :], re.MULTILINE)
    end = len(page) if after is None else found.end() + after.start()
    return page[found.start() : end]


def _without_links(page: str) -> str:
    """Return a page as it is read where no link can be followed."""
    page = re.sub(r"<!--.*?-->\n*|<a id=[^>]*></a>", "", page, flags=re.DOTALL)
    page = re.sub(r"^!\[[^\]]*\]\([^)]*\)(\{[^}]*\})?\n*", "", page, flags=re.MULTILINE)
    page = re.sub(r"\[([^\]]+)\]\([^)\s]+\)", r"\1", page)
    page = re.sub(r"\[([^\]]+)\]\[[^\]]*\]", r"\1", page)
    return re.sub(r"^\[[^\]]+\]: \S+\n", "", page, flags=re.MULTILINE).strip() + "\n"


class _Words(click.ParamType[str]):
    """A topic, or the words of a command."""

    name = "topic"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """See :class:`click.ParamType`."""
        del param
        before: Sequence[str] = ctx.params.get("words") or ()
        group = _command_of(ctx.find_root(), before)
        found = {name: topic.summary for name, topic in TOPICS.items()} if not before else {}
        if isinstance(group, click.Group):
            found |= dict.fromkeys(group.list_commands(ctx), "")
        return [
            CompletionItem(name, help=summary or None)
            for name, summary in found.items()
            if name.startswith(incomplete)
        ]


@click.command("help")
@click.argument("words", metavar="[TOPIC|COMMAND...]", type=_Words(), nargs=-1)
@click.pass_context
def show_help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Explain a topic or a command. Without either, list the topics.

    The topics are pages of the documentation; in a pipe they are Markdown. Of a topic and a command
    of the same name the topic is shown.
    """
    if not words:
        _list(ctx)
    elif len(words) == 1 and words[0] in TOPICS:
        _show(text_of(TOPICS[words[0]]))
    else:
        _show_command(ctx.find_root(), words)


def _list(ctx: click.Context) -> None:
    formatter = ctx.make_formatter()
    formatter.write_usage("leasehold help", "[TOPIC|COMMAND...]")
    with formatter.section("Topics"):
        formatter.write_dl([(name, topic.summary) for name, topic in TOPICS.items()])
    formatter.write_paragraph()
    formatter.write_text("Commands are listed by leasehold --help.")
    click.echo(formatter.getvalue(), nl=False)


def _show(text: str) -> None:
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        click.echo(text, nl=False)
        return
    console.width = min(console.width, _WIDTH)
    with console.capture() as written:
        console.print(Markdown(text, hyperlinks=False))
    shown = written.get()
    if shown.count("\n") < console.height:
        click.echo(shown, nl=False)
    else:
        click.echo_via_pager(shown, color=True)


def _show_command(root: click.Context, words: Sequence[str]) -> None:
    command = _command_of(root, words)
    if command is None:
        wanted = " ".join(words)
        raise click.UsageError(
            f"There is no topic and no command {wanted!r}. leasehold help lists the topics, "
            "leasehold --help the commands."
        )
    context = root
    for name, each in _path(root.command, words):
        context = click.Context(each, parent=context, info_name=name)
    click.echo(command.get_help(context))


def _command_of(root: click.Context, words: Sequence[str]) -> click.Command | None:
    """Return the command that words name; the root for none; None where there is no such one."""
    found = list(_path(root.command, words))
    if len(found) < len(words):
        return None
    return found[-1][1] if found else root.command


def _path(command: click.Command, words: Sequence[str]) -> Iterator[tuple[str, click.Command]]:
    for word in words:
        below: Any = command.commands.get(word) if isinstance(command, click.Group) else None
        if below is None:
            return
        command = below
        yield word, command
