"""A group whose commands are imported when they are needed, and not to list them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Final, NamedTuple

import click

_WHOLE: Final = 200
"""Characters of a summary that are shown: more than any has."""


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


def _load(late: Late) -> click.Command:
    command = getattr(importlib.import_module(late.module), late.name)
    assert isinstance(command, click.Command)
    return command
