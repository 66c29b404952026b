"""What mistakes on the command line lead to; sixty whole ones are in the end-to-end tests."""

from __future__ import annotations

from typing import Final

import click
import pytest

from leasehold.cli import main
from leasehold.cli.mistakes import COMMANDS_BY_WORD, is_one_slip, quoted
from tests.unit.cli.support import Shell

_ENDING: Final = {
    *("queue delete", "queue purge", "message remove", "message bury", "message complete"),
    *("session end", "job stop", "stream delete", "transaction discard", "store undo"),
}
"""Commands that end something."""
_WORDS_FOR_AN_END: Final = {
    *(
        [
            "purge",
            "clear",
            "empty",
            "flush",
            "delete-queue",
            "rm",
            "remove",
            "del",
            "delete",
            "drop",
            "destroy",
        ]
    ),
    *(
        [
            "bury",
            "ack",
            "acknowledge",
            "complete",
            "done",
            "finish",
            "kill",
            "close",
            "stop",
            "cancel",
        ]
    ),
}
_FORMS: Final = [
    (group, word, form.partition(": ")[0])
    for group, table in COMMANDS_BY_WORD.items()
    for word, forms in table.items()
    for form in forms
]


@pytest.mark.parametrize("command", sorted({command for _, _, command in _FORMS}))
def test_words_lead_to_commands(command: str) -> None:
    """Each word means a command that there is."""
    place: click.Command = main
    for part in command.partition(" --")[0].split():
        assert isinstance(place, click.Group)
        place = place.commands[part]
    assert not isinstance(place, click.Group)


def test_nothing_ends_that_was_not_meant_to() -> None:
    """Only words that mean an end lead to commands that end something."""
    ending = {word for _, word, command in _FORMS if command in _ENDING}
    assert ending - _WORDS_FOR_AN_END == {"reject"}  # which is told both of its meanings
    several = COMMANDS_BY_WORD["message"]["delete"]
    assert len(several) == 2


@pytest.mark.parametrize(
    "word",
    [
        "receive",
        "get",
        "put",
        "publish",
        "delete",
        "remove",
        "purge",
        "pause",
        "list",
        "ls",
        "create",
        "peek",
        "ack",
        "nack",
        "dlq",
        "requeue",
        "consume",
    ],
)
def test_words_of_other_queues(shell: Shell, word: str) -> None:
    """What users of other queues type first is answered with the command here."""
    result = shell(word, "orders")
    first_line = result.output.splitlines()[0]
    assert result.exit_code == 2
    assert first_line.startswith(f"Error: There is no command '{word}'. Type")
    assert "leasehold --help" not in first_line


@pytest.mark.parametrize(
    ("typed", "word", "is_near"),
    [
        ("quue", "queue", True),
        ("recieve", "receive", True),
        ("sendd", "send", True),
        ("lost", "list", True),
        ("delete", "release", False),
        ("receive", "redrive", False),
        ("ack", "backup", False),
        ("create", "restore", False),
        ("stop", "top", False),
        ("st", "set", False),
        ("status", "stats", True),
    ],
)
def test_one_slip(typed: str, word: str, is_near: bool) -> None:
    """One letter wrong, missing, too many, or two swapped is a slip; more is another word."""
    assert is_one_slip(typed, word) == is_near


def test_an_unknown_word(shell: Shell) -> None:
    """What is like nothing leads to the list of commands, not to some command."""
    result = shell("message", "frobnicate", "orders")
    assert result.output.startswith(
        "Error: There is no command 'message frobnicate'. Type: leasehold message --help, for"
    )


def test_no_secret_is_repeated(shell: Shell) -> None:
    """A suggestion shows no connection string."""
    words = ("receive", "orders", "--connection-string", "AccountKey=secret")
    assert "secret" not in shell(*words).output
    assert "secret" not in shell(*words[2:], "queue", "list").output
    assert quoted(["--connection-string=AccountKey=secret"]) == "--connection-string=TEXT"


@pytest.mark.parametrize(
    ("line", "first_line"),
    [
        ("message receive", "leasehold message receive needs QUEUE. Type: leasehold message rec"),
        ("message receive orders --max", "--max has no value. Type: --max N"),
        ("message receive orders 5", "leasehold message receive takes QUEUE, and '5' is one too"),
        ("message renew orders a b", "leasehold message renew needs --for. Type: --for LENGTH"),
        ("queue set orders --rate fast", "--rate is 'fast'; it must be a number above 0. Type"),
        ("send orders x --queue y", "leasehold send has no option '--queue'. Type: leasehold send"),
        ("send orders x --delay-s 5", "leasehold send has no option '--delay-s'. Type: leasehold"),
        ("completion", "leasehold completion needs {bash|zsh|fish}. Type: leasehold completion"),
        ("queue list --frob", "leasehold queue list has no option '--frob'. Type: leasehold queue"),
        ("queue create ''", "'' cannot be the queue."),
    ],
)
def test_other_mistakes(shell: Shell, line: str, first_line: str) -> None:
    """The first line says what is wrong, and the usage stands below it."""
    words = [word.strip("'") for word in line.split()]
    result = shell(*words)
    lines = result.output.splitlines()
    assert result.exit_code == 2
    assert lines[0].startswith(f"Error: {first_line}")
    assert lines[1].startswith("Usage: leasehold ")
    assert lines[-1].startswith("Help: leasehold ")
