"""``leasehold job``, and the purges, redrives and changes that are such jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from leasehold.cli.output import (
    Cell,
    Column,
    Listing,
    age,
    clean,
    counted,
    facts,
    moment,
    number,
    sections,
    state,
)
from leasehold.cli.remote import WATCH, YES, ExitCode, Session, remote
from leasehold.cli.root import OrderedGroup
from leasehold.cli.values import LENGTH, TIME_TO_LIVE, filter_of, filter_options, how_many
from leasehold.client import QueueHandle
from leasehold.client.models import Filter, Job

_FIRST_WAIT_S = 1.0
"""The server is asked to wait so long, so that small jobs are over with their first answer."""
_LOOK_S = 10.0
_DONE_OF = {
    "purge": "removed",
    "redrive": "brought back",
    "amend": "changed",
    "end-lease": "taken back",
    "extend-lease": "given more time",
}

_NO_WAIT = click.Option(
    ["--no-wait"], is_flag=True, help="Return without waiting for the job's end."
)
_RATE = click.option(
    "--rate",
    "rate_per_s",
    metavar="NUMBER",
    type=click.FloatRange(min=0, min_open=True),
    help="Limit the job to this many messages per second.",
)
_DRY_RUN = click.Option(
    ["--dry-run"], is_flag=True, help="Count the matching messages, and change nothing."
)


@click.group("job", cls=OrderedGroup)
def job() -> None:
    """Follow and stop purges, redrives and changes. The server runs them in the background."""


@remote("list", WATCH, add_to=job)
@click.option("--queue", metavar="QUEUE", help="Select jobs of this queue.")
@how_many
def list_jobs(session: Session, queue: str | None, limit: int, every_s: float | None) -> None:
    """List purges, redrives and changes, newest first.

    Example: leasehold job list --queue orders
    """
    session.present(
        lambda: session.client.list_jobs(queue, limit=limit),
        lambda found: _job_table(found, session.now_ms),
        lambda found: found,
        every_s,
    )


@remote("show", add_to=job)
@click.argument("job_id", metavar="JOB")
def show(session: Session, job_id: str) -> None:
    """Show the progress of a job.

    Example: leasehold job show 4f0c1d2e3a4b5c6d7e8f9a0b
    """
    session.present(
        lambda: session.client.get_job(job_id), lambda found: _whole_job(found, session.now_ms)
    )


@remote("watch", add_to=job)
@click.argument("job_id", metavar="JOB")
def watch(session: Session, job_id: str) -> None:
    """Watch the progress of a job until it ends. Ctrl+C ends the watch, not the job.

    Example: leasehold job watch 4f0c1d2e3a4b5c6d7e8f9a0b
    """
    _finish(session, session.client.get_job(job_id), wait=True)


@remote("stop", add_to=job)
@click.argument("job_id", metavar="JOB")
def stop(session: Session, job_id: str) -> None:
    """Stop a job. Messages that it has moved stay moved.

    Example: leasehold job stop 4f0c1d2e3a4b5c6d7e8f9a0b
    """
    stopped = session.client.stop_job(job_id)
    session.screen.result(stopped, _told(stopped))


@remote("purge", _DRY_RUN, _NO_WAIT, YES)
@filter_options()
@click.argument("queue", metavar="QUEUE")
def purge(
    session: Session, queue: str, dry_run: bool, no_wait: bool, yes: bool, **given: Any
) -> None:
    """Remove messages of a queue for good, also hidden ones, after confirmation.

    Without a filter: all messages but those in the poison queue. For these: --state poisoned.

    Example: leasehold queue purge orders --state delayed --older-than 7d
    """
    handle, wanted = session.queue(queue), filter_of(given)
    if not dry_run and not yes:
        session.confirm(
            f"Remove {_meant(session, handle, wanted, handle.purge)} of queue {queue} for good?",
            yes=yes,
        )
    begun = handle.purge(wanted, dry_run=dry_run, wait_s=0 if no_wait else _FIRST_WAIT_S)
    _finish(session, begun, wait=not no_wait)


@remote("redrive", _DRY_RUN, _NO_WAIT, YES)
@_RATE
@click.option(
    "--canary",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Move N messages first, and continue when all of them are completed.",
)
@click.option(
    "--target",
    metavar="QUEUE",
    help="Move the messages to this queue, instead of the one they failed in.",
)
@filter_options(states=False)
@click.argument("queue", metavar="QUEUE")
def redrive(
    session: Session, queue: str, dry_run: bool, no_wait: bool, yes: bool, **given: Any
) -> None:
    """Move messages from the poison queue back to their queue.

    QUEUE is the queue in which they failed. The command asks for confirmation.

    Example: leasehold redrive orders --error TimeoutError --canary 5 --rate 10
    """
    how = {name: given.pop(name) for name in ("rate_per_s", "canary", "target")}
    handle, wanted = session.queue(queue), filter_of(given)
    if not dry_run and not yes:
        meant = _meant(session, handle, wanted, handle.redrive)
        session.confirm(f"Move {meant} back to queue {how['target'] or queue}?", yes=yes)
    wait_s = 0 if no_wait else _FIRST_WAIT_S
    begun = handle.redrive(wanted, **how, dry_run=dry_run, wait_s=wait_s)
    _finish(session, begun, wait=not no_wait)


@remote("change", _DRY_RUN, _NO_WAIT, YES)
@click.option(
    "--delay",
    "delay_s",
    type=LENGTH,
    help="Time until the messages are visible; 0 makes them visible now. Also with --end-lease.",
)
@click.option(
    "--time-to-live",
    "time_to_live_s",
    type=TIME_TO_LIVE,
    help="Time from now until the messages expire, or never.",
)
@click.option(
    "--priority",
    type=click.IntRange(1, 16),
    metavar="N",
    help="Priority: 1 is received first, 16 last.",
)
@click.option("--force", is_flag=True, help="Change leased messages as well, and end their leases.")
@click.option(
    "--extend-lease",
    "extend_s",
    type=LENGTH,
    help="Extend the leases to this time from now. Receipts stay valid.",
)
@click.option("--end-lease", "ends", is_flag=True, help="End the leases.")
@click.option(
    "--note", metavar="TEXT", help="With --end-lease: note, shown with the messages later."
)
@_RATE
@filter_options()
@click.argument("queue", metavar="QUEUE")
def change(
    session: Session, queue: str, dry_run: bool, no_wait: bool, yes: bool, **given: Any
) -> None:
    """Change messages that match a filter, or their leases, after confirmation.

    For one message: leasehold message amend, extend or end-lease. Without a filter: all messages.

    Example: leasehold message change orders --group acme --priority 1

    Example: leasehold message change orders --holder worker-7 --extend-lease 1h
    """
    action, how = _change_of(given)
    handle, wanted = session.queue(queue), filter_of(given)
    start: Callable[..., Job] = partial(handle.change, action, **how)
    if not dry_run and not yes:
        meant = _meant(session, handle, wanted, start)
        session.confirm(f"{_QUESTIONS[action]} {meant} of queue {queue}?", yes=yes)
    begun = start(wanted, dry_run=dry_run, wait_s=0 if no_wait else _FIRST_WAIT_S)
    _finish(session, begun, wait=not no_wait)


_QUESTIONS = {
    "amend": "Change",
    "end-lease": "End the leases of",
    "extend-lease": "Extend the leases of",
}


def _change_of(given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Take out of the options which action they mean, and what it is told."""
    extend_s, ends, note = (given.pop(name) for name in ("extend_s", "ends", "note"))
    rate = {"rate_per_s": given.pop("rate_per_s")}
    members = {name: given.pop(name) for name in ("delay_s", "time_to_live_s", "priority")}
    force = given.pop("force")
    named = {name for name, value in members.items() if value is not None}
    if extend_s is not None:
        if ends or named or force or note is not None:
            raise click.UsageError("--extend-lease excludes all other changes.")
        return "extend-lease", rate | {"visibility_timeout_s": extend_s}
    if ends:
        if named - {"delay_s"} or force:
            raise click.UsageError("--end-lease can have --delay and --note only.")
        return "end-lease", rate | {"delay_s": members["delay_s"], "reason": note}
    if note is not None:
        raise click.UsageError("--note needs --end-lease.")
    if not named:
        raise click.UsageError(
            "There is nothing to change. Type: leasehold message change --help, for a list."
        )
    return "amend", rate | members | {"force": force}


def _meant(
    session: Session,
    handle: QueueHandle,
    wanted: Filter | None,
    start: Callable[..., Job],
) -> str:
    """Return how many messages a job would touch, for the question whether it is to."""
    if not session.is_interactive:
        return "messages"  # no confirmation will be asked for
    if wanted is None and start in {handle.purge, handle.redrive}:
        found = handle.counts()
        return _messages(found.poisoned if start == handle.redrive else found.total)
    counted = start(wanted, dry_run=True, wait_s=_LOOK_S)
    return ("" if counted.is_over else "at least ") + _messages(counted.matched)


def _finish(session: Session, begun: Job, *, wait: bool) -> None:
    """Follow a job to its end, and print how it ended."""
    screen = session.screen
    over = _follow(session, begun) if wait else begun
    screen.result(over, _told(over))
    if not over.is_over:
        screen.hint(f"Follow it: leasehold job watch {over.job_id}")
    if over.state == "stopped" and wait:
        raise click.exceptions.Exit(ExitCode.REFUSED)


def _follow(session: Session, begun: Job) -> Job:
    if begun.is_over:
        return begun
    with session.screen.progress() as bar:
        task = bar.add_task(f"{begun.kind} of {begun.queue}", total=None, note="")

        def draw(now: Job) -> None:
            note = f"{number(now.matched if now.dry_run else now.moved)} {_verb(now)}"
            if now.state == "canary":
                note += ", waiting until they are completed"
            bar.update(task, total=now.expected or None, completed=now.examined, note=note)

        draw(begun)
        try:
            return session.client.wait_for_job(begun.job_id, on_progress=draw)
        except KeyboardInterrupt:
            session.screen.hint(
                "The job continues. Follow it: leasehold job watch "
                f"{begun.job_id}. Stop it: leasehold job stop {begun.job_id}"
            )
            raise


def _told(over: Job) -> str:
    """Say in a sentence what a job has done."""
    many = over.matched if over.dry_run else over.moved
    sentence = f"{_messages(many)} {_verb(over)}"
    if over.state == "stopped":
        return f"Stopped after {sentence}." + (f" {clean(over.note)}" if over.note else "")
    if over.state == "done":
        return f"{sentence}, of {number(over.examined)} examined."
    return (
        f"The {over.kind} of queue {over.queue} continues as job {over.job_id}: {sentence} so far."
    )


def _verb(of: Job) -> str:
    return "matched" if of.dry_run else _DONE_OF.get(of.kind, "moved")


def _job_table(found: Iterable[Job], now_ms: int) -> RenderableType:
    columns = (
        Column("JOB"),
        Column("QUEUE"),
        Column("KIND"),
        Column("STATE"),
        Column("AGE", right=True, drop=2),
        Column("EXAMINED", right=True, drop=1),
        Column("MATCHED", right=True),
        Column("MOVED", right=True),
        Column("NOTE", cut=True),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            each.job_id,
            each.queue,
            each.kind + (" (dry run)" if each.dry_run else ""),
            state(each.state),
            age(each.created_at_ms, now_ms),
            f"{number(each.examined)} of {number(each.expected)}",
            number(each.matched),
            number(each.moved),
            clean(each.note or ""),
        )
        for each in found
    ]
    return Listing(columns, rows) if rows else Text("There are no jobs.")


def _whole_job(found: Job, now_ms: int) -> RenderableType:
    rows: list[tuple[str, Cell]] = [
        ("queue", found.queue),
        ("kind", found.kind + (" (dry run)" if found.dry_run else "")),
        ("state", state(found.state)),
        ("begun", moment(found.created_at_ms, now_ms)),
        ("last change", moment(found.updated_at_ms, now_ms)),
        ("examined", f"{number(found.examined)} of {number(found.expected)}"),
        ("matched", number(found.matched)),
        (_DONE_OF.get(found.kind, "moved"), number(found.moved)),
    ]
    if found.note:
        rows.append(("note", clean(found.note)))
    return sections((found.job_id, facts(rows)))


def _messages(many: int) -> str:
    return counted(many, "message")
