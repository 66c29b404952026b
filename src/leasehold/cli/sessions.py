"""``leasehold session``: who works, and is still alive."""

from __future__ import annotations

from collections.abc import Iterable

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
    length,
    moment,
    number,
    sections,
    state,
)
from leasehold.cli.remote import WATCH, YES, Session, remote
from leasehold.cli.root import OrderedGroup
from leasehold.client.models import SessionInfo

_SESSION = click.argument("session_id", metavar="SESSION")


@click.group("session", cls=OrderedGroup)
def group() -> None:
    """List, show and end sessions of workers."""


@remote("list", WATCH, add_to=group)
@click.option("--live", is_flag=True, help="Select live sessions.")
def list_sessions(session: Session, live: bool, every_s: float | None) -> None:
    """List sessions, newest first. Ended ones are listed for an hour.

    Example: leasehold session list --live
    """

    def fetch() -> list[SessionInfo]:
        found = session.client.list_sessions()
        return [each for each in found if each.state == "live" or not live]

    session.present(
        fetch,
        lambda found: _session_table(found, session.now_ms),
        lambda found: found,
        every_s,
    )


@remote("show", WATCH, add_to=group)
@_SESSION
def show(session: Session, session_id: str, every_s: float | None) -> None:
    """Show a session: its holder, its last heartbeat, its end.

    Example: leasehold session show 9da7f9393e29912d6f01
    """
    session.present(
        lambda: session.client.get_session(session_id),
        lambda found: _whole_session(found, session.now_ms),
        every_s=every_s,
    )


@remote("end", YES, add_to=group)
@click.option("--reason", metavar="TEXT", help="Reason, shown to the worker and with the session.")
@_SESSION
def end(session: Session, session_id: str, reason: str | None, yes: bool) -> None:
    """End a session and its leases, after confirmation. Its worker is notified and stops.

    Example: leasehold session end 9da7f9393e29912d6f01 --reason "wrong version"
    """
    if not yes:
        found = session.client.get_session(session_id)
        session.confirm(
            f"End the session of {clean(found.holder)} and its {_leases(found.leases)}?", yes=yes
        )
    ended = session.client.end_session(session_id, reason)
    if session.screen.as_json:
        session.screen.document(ended)
    else:
        why = f" ({clean(ended.reason)})" if ended.reason else ""
        session.screen.say(f"The session of {clean(ended.holder)} is over: {ended.state}{why}.")


def _session_table(found: Iterable[SessionInfo], now_ms: int) -> RenderableType:
    columns = (
        Column("SESSION"),
        Column("HOLDER", cut=True),
        Column("STATE"),
        Column("AGE", right=True, drop=1),
        Column("HEARD", right=True, drop=3),
        Column("TIMEOUT", right=True, drop=2),
        Column("LEASES", right=True),
        Column("REASON", cut=True, least=8),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            each.session_id,
            clean(each.holder),
            state(each.state),
            age(each.started_at_ms, now_ms),
            f"{age(each.last_heartbeat_ms, now_ms)} ago",
            length(each.timeout_s),
            number(each.leases),
            clean(each.reason or ""),
        )
        for each in found
    ]
    return Listing(columns, rows) if rows else Text("There are no sessions.")


def _whole_session(found: SessionInfo, now_ms: int) -> RenderableType:
    rows: list[tuple[str, Cell]] = [
        ("holder", clean(found.holder)),
        ("state", state(found.state)),
        ("started", moment(found.started_at_ms, now_ms)),
        ("last heartbeat", moment(found.last_heartbeat_ms, now_ms)),
        ("lost after", f"{length(found.timeout_s)} without a heartbeat"),
    ]
    if found.progress_timeout_s is not None:
        rows.append(("watchdog", f"ends a lease after {length(found.progress_timeout_s)}"))
    if found.ended_at_ms is not None:
        rows.append(("over", moment(found.ended_at_ms, now_ms)))
    if found.reason:
        rows.append(("reason", clean(found.reason)))
    rows.append(("leases", number(found.leases)))
    return sections((found.session_id, facts(rows)))


def _leases(many: int) -> str:
    return counted(many, "lease")
