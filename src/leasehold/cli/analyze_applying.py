"""Advice into the settings of queues, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import RenderableType

from leasehold.analysis.applying import Change, Current, change_for, undo_for
from leasehold.cli.exit_codes import ExitCode
from leasehold.cli.failures import error_members
from leasehold.cli.listing import Column, Listing
from leasehold.cli.session import Session
from leasehold.cli.texts import clean
from leasehold.client.errors import ServerProblem
from leasehold.client.models import QueueInfo
from leasehold.domain.queue_settings import Adaptive, Advised

if TYPE_CHECKING:
    # It needs numpy, and undoing does not.
    from leasehold.analysis.advising import Recommendation

_SINCE: Final = "Its settings were changed meanwhile, so nothing was done. Run it again."
_COLUMNS = (Column("QUEUE", cut=True), Column("WHAT"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A change, and what became of it."""

    change: Change
    state: str
    """``done``, ``nothing to do``, ``not done`` (a dry run) or ``refused``."""
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Planned:
    """A change that may be made."""

    change: Change
    again: Callable[[Current], Change]
    """Thinks of it once more, from the settings as they are then."""
    error: dict[str, Any] | None = None
    """Why it cannot be made."""


def apply(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
    session: Session,
    advice: Iterable[Recommendation],
    *,
    floor_s: int,
    cap_s: int,
    at_once: bool,
    dry_run: bool,
    yes: bool,
) -> list[Made]:
    """Write advice into the settings of queues, as they are at that moment.

    Raises:
        click.exceptions.Exit: The caller said no.
    """
    now_ms = session.now_ms
    planned = []
    for each in advice:
        change = partial(
            change_for, each, now_ms=now_ms, floor_s=floor_s, cap_s=cap_s, at_once=at_once
        )
        try:
            planned.append(_Planned(change(current_of(session.queue(each.queue).info())), change))
        except ServerProblem as problem:
            # The log may know queues that are gone.
            nothing = Change(queue=each.queue, patch=None, sentence=str(problem))
            planned.append(_Planned(nothing, change, error_members(problem)))
    return _make(session, planned, "Write the advice into", dry_run=dry_run, yes=yes)


def undo(session: Session, names: Sequence[str], *, dry_run: bool, yes: bool) -> None:
    """Set queues back to what they were before advice, and print what was done.

    Args:
        session: With the server.
        names: Of the queues; none for all that have advice.
        dry_run: Whether to say only what would be done.
        yes: Whether to ask nobody.

    Raises:
        click.exceptions.Exit: The caller said no, or the server did.
    """
    if names:
        infos = [session.queue(name).info() for name in names]
    else:
        infos = [each for each in session.client.list_queues() if each.settings.advised]
    planned = []
    for each in infos:
        change = partial(undo_for, each.name)
        planned.append(_Planned(change(current_of(each)), change))
    made = _make(session, planned, "Undo the advice of", dry_run=dry_run, yes=yes)
    if session.screen.as_json:
        session.screen.document({"changes": document(made)})
    elif made:
        session.screen.show(shown(made))
    else:
        session.screen.say("No queue has advice.")
    finish(made)


def current_of(info: QueueInfo) -> Current:
    """Return what of a queue's settings matters, in the words of the domain."""
    settings = info.settings
    adaptive, advised = settings.adaptive, settings.advised
    return Current(
        visibility_timeout_s=settings.visibility_timeout_s,
        adaptive=None
        if adaptive is None
        else Adaptive(floor_s=adaptive.floor_s, cap_s=adaptive.cap_s),
        advised=None
        if advised is None
        else Advised(**{name: getattr(advised, name) for name in Advised.__dataclass_fields__}),
    )


def shown(made: Sequence[Made]) -> RenderableType:
    """Return what became of changes, for people."""
    rows = [(clean(each.change.queue), each.state) for each in made]
    return Listing(_COLUMNS, rows, under=[clean(each.change.sentence) for each in made])


def document(made: Iterable[Made]) -> list[dict[str, Any]]:
    """Return the same for scripts."""
    found = []
    for each in made:
        row: dict[str, Any] = {
            "queue": each.change.queue,
            "state": each.state,
            "sentence": each.change.sentence,
            "settings": each.change.patch,
        }
        found.append(row if each.error is None else row | {"error": each.error})
    return found


def finish(made: Iterable[Made]) -> None:
    """End with the exit code for what was refused.

    Raises:
        click.exceptions.Exit: Something was.
    """
    if any(each.state == "refused" for each in made):
        raise click.exceptions.Exit(ExitCode.REFUSED)


def _make(
    session: Session,
    planned: Sequence[_Planned],
    question: str,
    *,
    dry_run: bool,
    yes: bool,
) -> list[Made]:
    wanted = [each.change for each in planned if each.change.patch is not None]
    if wanted and not dry_run:
        if not yes:
            for each in wanted:
                session.screen.hint(f"{clean(each.queue)}: {clean(each.sentence)}")
        names = ", ".join(clean(each.queue) for each in wanted[:5])
        more = f" and {len(wanted) - 5} more" if len(wanted) > 5 else ""  # noqa: PLR2004 - as above
        session.confirm(f"{question} {names}{more}?", yes=yes)
    made = []
    for plan in planned:
        change = plan.change
        if plan.error is not None:
            made.append(Made(change=change, state="refused", error=plan.error))
        elif change.patch is None:
            made.append(Made(change=change, state="nothing to do"))
        elif dry_run:
            made.append(Made(change=change, state="not done"))
        else:
            made.append(_send(session, plan))
    return made


def _send(session: Session, plan: _Planned) -> Made:
    """Make a change, if the queue is still as it was when the change was thought of.

    Somebody may have set it while a person was being asked. What was agreed to would then be
    something else, and the way back would lead to what was there before.
    """
    change, queue = plan.change, session.queue(plan.change.queue)
    try:
        if plan.again(current_of(queue.info())).patch != change.patch:
            since = replace(change, sentence=_SINCE)
            return Made(
                change=since, state="refused", error={"code": "changed-meanwhile", "detail": _SINCE}
            )
        queue.update(settings=change.patch)
    except ServerProblem as problem:
        return Made(change=change, state="refused", error=error_members(problem))
    return Made(change=change, state="done")
