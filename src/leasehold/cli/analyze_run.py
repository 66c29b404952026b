"""What ``leasehold analyze`` does: read the log, find out, show, write, apply."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import click
import httpx

from leasehold.advisor import Bounds, Growth, Prices
from leasehold.advisor.findings import Findings, analyze
from leasehold.advisor.recommendation import Asked, Today
from leasehold.advisor.summaries import LogSummary, UnreadableSummary, load, save
from leasehold.cli import analyze_output as applying
from leasehold.cli import analyze_output as views
from leasehold.cli.output import counted
from leasehold.cli.remote import Session
from leasehold.cli.values import Moment
from leasehold.client.errors import ServerProblem

_PAGE_S: Final = 10.0
"""How long a page of the server's own may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options of the command; see its help."""

    log: Path | None
    tables: Path | None
    details: Path | None
    summary: Path | None
    queues: tuple[str, ...]
    since: Moment
    until: Moment | None
    floor_s: int
    cap_s: int
    growth: float
    duplicate_s: float | None
    late_share: float
    guard_s: float
    at_once: bool
    report: Path | None
    save: Path | None
    apply: bool
    dry_run: bool
    allow_old: bool
    yes: bool
    cores: int | None
    memory: str


def run(session: Session, given: Mapping[str, Any], wishes: Wishes) -> None:
    """Do all that was asked for.

    Raises:
        click.ClickException: The log cannot be read, or a file not be written.
        click.exceptions.Exit: The server refused a change, or the caller said no.
    """
    screen = session.screen
    write_report = _writer() if wishes.report is not None else None
    summary = _summary(session, given, wishes)
    if wishes.save is not None:
        _write(wishes.save, lambda: save(summary, _made(wishes.save)))
    asked = _asked(session, wishes, summary)
    with screen.progress() as progress:
        bar = progress.add_task("Weighing", total=max(1, len(summary.queues)), note="")

        def on_queue(name: str) -> None:
            progress.update(bar, advance=1, note=name)

        findings = analyze(summary, asked, on_queue)
    written: list[Path] = []
    if wishes.report is not None and write_report is not None:
        folder = wishes.report
        with screen.progress(total_known=False) as progress:
            progress.add_task("Drawing", total=None, note=str(folder))
            written = _write(folder, lambda: write_report(findings, folder, session.now_ms))
    if not screen.as_json:
        screen.show(views.page(findings, named=bool(wishes.queues)))
    made: list[applying.Made] = []
    if wishes.apply:
        made = applying.apply(
            session,
            [each.whole for each in findings.queues],
            floor_s=wishes.floor_s,
            cap_s=wishes.cap_s,
            at_once=wishes.at_once,
            dry_run=wishes.dry_run,
            yes=wishes.yes,
        )
    _tell(session, findings, written, made, wishes)
    applying.finish(made)


def _tell(
    session: Session,
    findings: Findings,
    written: list[Path],
    made: list[applying.Made],
    wishes: Wishes,
) -> None:
    screen = session.screen
    if screen.as_json:
        document = views.analysis_document(findings)
        if written:
            document["report"] = [str(each) for each in written]
        if wishes.apply:
            document["changes"] = applying.document(made)
        screen.document(document)
        return
    if made:
        screen.say("")
        screen.show(applying.shown(made))
        if any(each.state == "done" for each in made):
            screen.hint("leasehold analyze --undo sets it back.")
    if written:
        screen.hint(f"Wrote {written[0]} and {counted(len(written) - 1, 'file')} beside it.")


def _summary(session: Session, given: Mapping[str, Any], wishes: Wishes) -> LogSummary:
    now_ms = session.now_ms
    account = session.client.account if wishes.apply else given["account"]
    if wishes.summary is not None:
        try:
            found = load(wishes.summary)
        except (UnreadableSummary, OSError) as error:
            raise click.UsageError(f"{wishes.summary} cannot be used: {error}.") from None
        if wishes.apply and not wishes.allow_old:
            check_age(found, now_ms)
        if account is not None:
            found = of_account(found, account, unknown=wishes.allow_old)
    else:
        # Late: it takes Spark a while to load.
        from leasehold.cli.analyze_input import Source, read  # noqa: PLC0415

        is_server = wishes.log is None and wishes.tables is None
        if is_server:
            # Also, a server that cannot be reached is told before Spark takes its time to begin.
            now_ms = _server_now_ms(session, now_ms)
        source = Source(
            log=wishes.log,
            tables=wishes.tables,
            details=wishes.details,
            account=account,
            queues=wishes.queues,
            since_ms=wishes.since.resolve(now_ms),
            until_ms=now_ms if wishes.until is None else wishes.until.resolve(now_ms),
            cores=wishes.cores,
            memory=wishes.memory,
            is_past=wishes.until is not None,
        )
        if source.since_ms >= source.until_ms:
            raise click.UsageError("--since must be before --until.")
        found = read(session.screen, given, source)
        if is_server or account is not None:
            # The server tells of the caller's account only.
            found = replace(found, accounts=(account or session.client.account,))
    return only(found, wishes.queues)


def _server_now_ms(session: Session, now_ms: int) -> int:
    """Return the time by the server, whose clock may be a virtual one; events bear its times."""
    first = next(iter(session.client.list_queues()), None)
    if first is not None:
        # Deleted meanwhile, or not for this caller, it raises.
        with suppress(ServerProblem):
            return session.queue(first.name).counts().at_ms
    try:
        with session.web(_PAGE_S) as web:
            date = web.get(f"{session.client.url}/readyz").headers["Date"]
        # It has whole seconds, and the events of this one belong to the log, too.
        return int(parsedate_to_datetime(date).timestamp() + 1) * 1000
    except (httpx.HTTPError, KeyError, ValueError):
        return now_ms


def _asked(session: Session, wishes: Wishes, summary: LogSummary) -> Asked:
    today: dict[str, Today] = {}
    files = (wishes.log, wishes.tables, wishes.summary)
    if wishes.apply or not any(files):
        today = _today(session, summary)
    return Asked(
        prices=Prices(duplicate=wishes.duplicate_s),
        bounds=Bounds(floor_s=wishes.floor_s, cap_s=wishes.cap_s),
        growth=Growth(factor=wishes.growth, cap_s=float(wishes.cap_s)),
        guard_s=wishes.guard_s,
        late_share=wishes.late_share,
        today=today,
        at_once=wishes.at_once,
    )


def _today(session: Session, summary: LogSummary) -> dict[str, Today]:
    """Ask the server how the queues are set; those that are gone are left out."""
    found = {}
    for each in summary.queues:
        try:
            info = session.queue(each.queue).info()
        except ServerProblem:
            continue
        adaptive, advised = info.settings.adaptive, info.settings.advised
        found[each.queue] = Today(
            visibility_timeout_s=info.settings.visibility_timeout_s,
            lease_s=info.visibility_timeout_s,
            adaptive=None if adaptive is None else (adaptive.floor_s, adaptive.cap_s),
            first_lease_s=None if advised is None else advised.first_lease_s,
        )
    return found


def _writer() -> Any:
    """Return what writes reports; asked for before the log is read, so that nothing is lost."""
    # It warns of its caches, with which it would only start faster the next time.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from leasehold.advisor.report import write_report  # noqa: PLC0415 - only if asked for

    return write_report


def _made(path: Path | None) -> Path:
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _write(path: Path, write: Any) -> Any:
    try:
        return write()
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}.") from None


# --- analyze choosing --------------------------------------------------------------------------
#
# Which queues of a summary are meant, and whether a saved one may be applied.


OLDEST_S: Final = 7 * 86_400
"""A saved summary that ends longer ago is not applied unless told."""
ALLOW_OLD: Final = "--allow-old"

_MOST_NAMES: Final = 5


def plain(name: str) -> str:
    """Return the name of a queue without its account, which logs of several put before it."""
    return name.rpartition("/")[2]


def accounts_of(summary: LogSummary) -> tuple[str, ...]:
    """Return whose queues a summary has; none if nothing says."""
    if summary.accounts:
        return summary.accounts
    # Before summaries said whose they are, only those of several accounts told by their names.
    named = {each.queue.rpartition("/")[0] for each in summary.queues}
    return tuple(sorted(named - {""}))


def check_age(summary: LogSummary, now_ms: int) -> None:
    """Check that a saved summary is new enough to be applied.

    Args:
        summary: As it was saved.
        now_ms: Unix milliseconds.

    Raises:
        click.UsageError: It ends more than 7 days ago.
    """
    days = (now_ms - summary.until_ms) / 86_400_000
    if days * 86_400 > OLDEST_S:
        raise click.UsageError(
            f"This summary ends {days:.0f} days ago, and the work may have changed since. Make a "
            f"new one, or add {ALLOW_OLD}."
        )


def of_account(summary: LogSummary, account: str, *, unknown: bool) -> LogSummary:
    """Return the part of a saved summary that is about an account.

    Args:
        summary: As it was saved.
        account: The one that is wanted.
        unknown: Whether a summary that does not say whose it is will do.

    Raises:
        click.UsageError: It is about others, or does not say.
    """
    accounts = accounts_of(summary)
    if not accounts:
        if unknown:
            return summary
        raise click.UsageError(
            "This summary does not say of which account it is, as those of older versions. Make a "
            f"new one, or add {ALLOW_OLD} to apply it to the account {account}."
        )
    if account not in accounts:
        raise click.UsageError(
            f"This summary is of the account {_list(accounts)}, and not of {account}."
        )
    if not any("/" in each.queue for each in summary.queues):
        return summary
    queues = tuple(
        replace(each, queue=plain(each.queue))
        for each in summary.queues
        if each.queue.rpartition("/")[0] == account
    )
    return replace(summary, queues=queues, accounts=(account,))


def only(summary: LogSummary, names: Sequence[str]) -> LogSummary:
    """Return a summary of some queues.

    Args:
        summary: Of the log.
        names: Of the queues, with or without their accounts; none for all.

    Raises:
        click.ClickException: Nothing of one of them is in the log.
    """
    if not names:
        return summary
    missing = {
        name for name in names if not any(_is_meant(each.queue, name) for each in summary.queues)
    }
    if missing:
        raise click.ClickException(f"There is nothing in this log of: {_list(sorted(missing))}.")
    queues = tuple(
        each for each in summary.queues if any(_is_meant(each.queue, name) for name in names)
    )
    return replace(summary, queues=queues)


def _is_meant(queue: str, name: str) -> bool:
    return name in {queue, plain(queue)}


def _list(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    return ", ".join(known[:_MOST_NAMES]) + more
