"""``leasehold definitions``: queues with their settings as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from leasehold import __version__
from leasehold.cli.output import counted
from leasehold.cli.remote import YES, Session, remote
from leasehold.cli.root import OrderedGroup
from leasehold.client.errors import Forbidden, QueueNotFound, ServerProblem
from leasehold.client.models import QueueInfo
from leasehold.wire.queues import PolicyItem

_STATE: Final = frozenset(
    {"adapted", "advised", "adapted_by_type", "advised_by_type", "paused_until_ms", "pause_reason"}
)
"""Members of settings that say how a queue is at the moment, and not how it is set up."""


class _Definition(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    metadata: dict[str, str] | None = None
    settings: dict[str, Any] = {}
    policies: list[PolicyItem] | None = None
    """Stored access policies; None: those that are there stay."""


class _Definitions(msgspec.Struct, forbid_unknown_fields=True):
    """What a file holds. A setting that is null is to have its default, what is left out stays."""

    queues: list[_Definition]
    leasehold: str = __version__


class Change(NamedTuple):
    """What is to be done about one queue."""

    wanted: _Definition
    is_new: bool
    differs: Mapping[str, tuple[Any, Any]]
    """By member, what it is and what it is to be."""

    def shown(self) -> RenderableType:
        """Return it for people."""
        lines = [Text(f"{self.wanted.name}: {'new' if self.is_new else 'changes'}")]
        lines += [
            Text(f"  {name}: {_compact(now)} -> {_compact(then)}")
            for name, (now, then) in self.differs.items()
        ]
        return Group(*lines)

    def plain(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "name": self.wanted.name,
            "new": self.is_new,
            "changes": {name: {"from": a, "to": b} for name, (a, b) in self.differs.items()},
        }


@click.group("definitions", cls=OrderedGroup)
def definitions() -> None:
    """Export queues and their settings to a file, and import them."""


@remote("export", add_to=definitions)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option(
    "--prefix", default="", metavar="TEXT", help="Select queues whose names begin with this text."
)
def export(session: Session, file: Path, prefix: str) -> None:
    """Export all queues to a JSON file. - means standard output.

    The file has settings, metadata and stored access policies; no messages, no keys and no
    temporary state such as a pause. Policies are omitted if the credential may not read them.

    Example: leasehold definitions export queues.json
    """
    found = [_definition_of(session, each) for each in session.client.list_queues(prefix)]
    if any(each.policies is None for each in found):
        session.screen.hint(
            "Stored access policies are not exported: this credential may not read them, or "
            "the server does not support them."
        )
    text = json.dumps(msgspec.to_builtins(_Definitions(found)), indent=2, sort_keys=True) + "\n"
    if str(file) == "-":
        click.echo(text, nl=False)
        return
    file.write_text(text, encoding="utf-8")
    done = {"file": str(file), "queues": len(found)}
    session.screen.result(done, f"{file} has {counted(len(found), 'queue')}.")


@remote("import", YES, add_to=definitions)
@click.argument("file", type=click.File("rb"))
@click.option("--dry-run", is_flag=True, help="Show the changes, and make none.")
def import_(session: Session, file: Any, *, dry_run: bool, yes: bool) -> None:
    """Create and change queues as in a file. Queues and settings not in the file stay as they are.

    A setting that is null gets its default. Stored access policies in the file replace those of the
    queue. All changes are shown before they are made.

    Example: leasehold definitions import queues.json --dry-run
    """
    changes = list(_changes(session, _read(file.read())))
    screen = session.screen
    if not screen.as_json:
        for change in changes:
            screen.show(change.shown())
    if dry_run or not changes:
        sentence = (
            f"{counted(len(changes), 'queue')} would be created or changed."
            if changes
            else "All queues are as in the file."
        )
        screen.result({"dry_run": dry_run, "queues": [each.plain() for each in changes]}, sentence)
        return
    session.confirm(f"Create or change {counted(len(changes), 'queue')}?", yes=yes)
    for change in changes:
        _carry_out(session, change)
    sentence = f"{counted(len(changes), 'queue')} created or changed."
    screen.result({"dry_run": False, "queues": [each.plain() for each in changes]}, sentence)


def _definition_of(session: Session, info: QueueInfo) -> _Definition:
    policies = None
    try:
        policies = _policies_of(session, info.name)
    except Forbidden:
        pass
    except ServerProblem as error:
        if error.problem.code != "no-such-route":  # a server of before they could be asked for
            raise
    return _Definition(info.name, dict(info.metadata), _settings_of(info), policies)


def _policies_of(session: Session, queue: str) -> list[PolicyItem]:
    """Return the stored access policies, in the order of their names."""
    found = msgspec.convert(session.queue(queue).policies(), list[PolicyItem], from_attributes=True)
    return sorted(found, key=lambda each: each.id)


def _settings_of(info: QueueInfo) -> dict[str, Any]:
    given: dict[str, Any] = msgspec.to_builtins(info.settings)
    return {name: value for name, value in given.items() if name not in _STATE}


def _read(content: bytes) -> list[_Definition]:
    try:
        read = msgspec.json.decode(content, type=_Definitions)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"the file is no list of definitions: {error}") from None
    names = [each.name for each in read.queues]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise click.UsageError(f"the file names twice: {', '.join(twice)}")
    moving = sorted({name for each in read.queues for name in _STATE & each.settings.keys()})
    if moving:
        raise click.UsageError(f"these are no definitions: {', '.join(moving)}")
    return read.queues


def _changes(session: Session, wanted: list[_Definition]) -> Iterator[Change]:
    for each in wanted:
        try:
            info = session.queue(each.name).info()
        except QueueNotFound:
            yield Change(each, is_new=True, differs={})
            continue
        now = _settings_of(info)
        differs = {
            name: (now.get(name), then)
            for name, then in sorted(each.settings.items())
            if not _is_so(now.get(name), then)
        }
        if each.metadata is not None and dict(info.metadata) != each.metadata:
            differs["metadata"] = (dict(info.metadata), each.metadata)
        if each.policies is not None:
            there = _policies_of(session, each.name)
            wanted_ones = sorted(each.policies, key=lambda policy: policy.id)
            if there != wanted_ones:
                differs["policies"] = tuple(map(msgspec.to_builtins, (there, wanted_ones)))
        if differs:
            yield Change(each, is_new=False, differs=differs)


def _is_so(now: Any, wanted: Any) -> bool:
    """Tell whether a setting is as it is to be; of parts, those members that are named."""
    if isinstance(now, dict) and isinstance(wanted, dict):
        return all(_is_so(now.get(name), value) for name, value in wanted.items())
    return bool(now == wanted)


def _carry_out(session: Session, change: Change) -> None:
    wanted, queue = change.wanted, session.queue(change.wanted.name)
    if change.is_new:
        queue.create(metadata=wanted.metadata, settings=wanted.settings)
        if wanted.policies:
            queue.set_policies(wanted.policies)
        return
    others = {"metadata", "policies"}
    settings = {name: then for name, (_, then) in change.differs.items() if name not in others}
    metadata = wanted.metadata if "metadata" in change.differs else None
    if settings or metadata is not None:
        queue.update(metadata=metadata, settings=settings or None)
    if "policies" in change.differs:
        queue.set_policies(wanted.policies or ())


def _compact(value: Any) -> str:
    return "default" if value is None else json.dumps(value, ensure_ascii=False)
