"""What ``leasehold analyze`` does: read the log, find out, show, write, apply."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import httpx
import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from leasehold.advisor import Bounds, Growth, Prices
from leasehold.advisor.apply import (
    Change,
    Current,
    change_for,
    current_of,
    settings_of,
    undo_for,
)
from leasehold.advisor.findings import Finding, Findings, QueueFindings, Weight, analyze
from leasehold.advisor.recommendation import (
    Account,
    Asked,
    Recommendation,
    Today,
    WhatIf,
    today_in,
)
from leasehold.advisor.summaries import (
    OTHERS,
    LogSummary,
    UnreadableSummary,
    load,
    queue_in,
    save,
)
from leasehold.cli.output import Column, Listing, clean, counted, facts, number, rough, sections
from leasehold.cli.remote import ExitCode, Session, error_members
from leasehold.cli.values import Moment
from leasehold.client.errors import ServerProblem
from leasehold.client.models import QueueInfo
from leasehold.domain.wording import count_of, time_of

_PAGE_S: Final = 10.0
"""How long a page of the server's own may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeOptions:
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
    by_type: bool
    dry_run: bool
    allow_old: bool
    yes: bool
    cores: int | None
    memory: str


def run(session: Session, given: Mapping[str, Any], options: AnalyzeOptions) -> None:
    """Do all that was asked for.

    Raises:
        click.ClickException: The log cannot be read, or a file not be written.
        click.exceptions.Exit: The server refused a change, or the caller said no.
    """
    screen = session.screen
    write_report = _writer() if options.report is not None else None
    summary = _summary(session, given, options)
    if options.save is not None:
        _write(options.save, lambda: save(summary, _made(options.save)))
    asked = _asked(session, options, summary)
    with screen.progress() as progress:
        bar = progress.add_task("Weighing", total=max(1, len(summary.queues)), note="")

        def on_queue(name: str) -> None:
            progress.update(bar, advance=1, note=name)

        findings = analyze(summary, asked, on_queue)
    written: list[Path] = []
    if options.report is not None and write_report is not None:
        folder = options.report
        with screen.progress(total_known=False) as progress:
            progress.add_task("Drawing", total=None, note=str(folder))
            written = _write(folder, lambda: write_report(findings, folder, session.now_ms))
    if not screen.as_json:
        screen.show(page(findings, named=bool(options.queues)))
    made: list[Made] = []
    if options.apply:
        made = apply(
            session,
            advice_in(findings, by_type=options.by_type),
            floor_s=options.floor_s,
            cap_s=options.cap_s,
            at_once=options.at_once,
            dry_run=options.dry_run,
            yes=options.yes,
        )
    _tell(session, findings, written, made, options)
    finish(made)


def _tell(
    session: Session,
    findings: Findings,
    written: list[Path],
    made: list[Made],
    options: AnalyzeOptions,
) -> None:
    screen = session.screen
    if screen.as_json:
        document = analysis_document(findings)
        if written:
            document["report"] = [str(each) for each in written]
        if options.apply:
            document["changes"] = changes_document(made)
        screen.document(document)
        return
    if made:
        screen.say("")
        screen.show(shown(made))
        if any(each.state == "done" for each in made):
            screen.hint("Undo it with leasehold analyze --undo.")
    if written:
        screen.hint(f"Wrote {written[0]} and {counted(len(written) - 1, 'file')} beside it.")


def _summary(session: Session, given: Mapping[str, Any], options: AnalyzeOptions) -> LogSummary:
    now_ms = session.now_ms
    account = session.client.account if options.apply else given["account"]
    if options.summary is not None:
        try:
            found = load(options.summary)
        except (UnreadableSummary, OSError) as error:
            raise click.UsageError(f"{options.summary} cannot be used: {error}.") from None
        if options.apply and not options.allow_old:
            check_age(found, now_ms)
        if account is not None:
            found = of_account(found, account, unknown=options.allow_old)
    else:
        # Late: it takes Spark a while to load.
        from leasehold.cli.analyze_input import Source, read  # noqa: PLC0415

        is_server = options.log is None and options.tables is None
        if is_server:
            # Also, a server that cannot be reached is told before Spark takes its time to begin.
            now_ms = _server_now_ms(session, now_ms)
        source = Source(
            log=options.log,
            tables=options.tables,
            details=options.details,
            account=account,
            queues=options.queues,
            since_ms=options.since.resolve(now_ms),
            until_ms=now_ms if options.until is None else options.until.resolve(now_ms),
            cores=options.cores,
            memory=options.memory,
            is_past=options.until is not None,
        )
        if source.since_ms >= source.until_ms:
            raise click.UsageError("--since must be before --until.")
        found = read(session.screen, given, source)
        if is_server or account is not None:
            # The server tells of the caller's account only.
            found = replace(found, accounts=(account or session.client.account,))
    return only(found, options.queues)


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


def _asked(session: Session, options: AnalyzeOptions, summary: LogSummary) -> Asked:
    today: dict[str, Today] = {}
    files = (options.log, options.tables, options.summary)
    if options.apply or not any(files):
        today = _today(session, summary)
    return Asked(
        prices=Prices(duplicate=options.duplicate_s),
        bounds=Bounds(floor_s=options.floor_s, cap_s=options.cap_s),
        growth=Growth(factor=options.growth, cap_s=float(options.cap_s)),
        guard_s=options.guard_s,
        late_share=options.late_share,
        today=today,
        at_once=options.at_once,
    )


def _today(session: Session, summary: LogSummary) -> dict[str, Today]:
    """Ask the server how the queues are set; those that are gone are left out."""
    found = {}
    for each in summary.queues:
        try:
            info = session.queue(each.queue).info()
        except ServerProblem:
            continue
        kinds = [work.message_type for work in each.works]
        found[each.queue] = today_in(settings_of(info), kinds)
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
"""A saved summary that ends longer ago is not applied by default."""
ALLOW_OLD: Final = "--allow-old"

_MOST_NAMES: Final = 5


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
        replace(each, queue=queue_in(each.queue))
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
    return name in {queue, queue_in(queue)}


def _list(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    return ", ".join(known[:_MOST_NAMES]) + more


# --- what people see ---------------------------------------------------------------------------
#
# Findings as tables for people, and as a document for scripts.


_STYLES: Final = {Weight.ACT: "bold red", Weight.LOOK: "yellow", Weight.NOTE: "dim"}
_QUEUES: Final = (
    Column("QUEUE", cut=True, least=12),
    Column("MESSAGES", right=True, drop=3),
    Column("TODAY", right=True),
    Column("ADVICE", right=True),
    Column("BEST", right=True, drop=5),
    Column("RENEWAL", right=True, drop=4),
    Column("REDELIVERED", right=True),
    Column("WORST", right=True, drop=2),
    Column("WASTED WORK", right=True, drop=1),
)
_CHOICES: Final = (
    Column("CHOICE", cut=True, least=14),
    Column("TIMEOUT", right=True),
    Column("REDELIVERIES", right=True),
    Column("DONE TWICE", right=True, drop=3),
    Column("WORST", right=True),
    Column("NEVER DONE", right=True, drop=2),
    Column("COST/MESSAGE", right=True, drop=4),
)
_TYPES: Final = (
    Column("TYPE", cut=True, least=10),
    Column("MESSAGES", right=True),
    Column("HALF TAKES", right=True, drop=1),
    Column("99 % TAKE", right=True, drop=2),
    Column("BEST ALONE", right=True),
    Column("RENEWAL", right=True, drop=3),
)
_HEAVY: Final = ("curve", "survival")
_MOST_IN_FULL: Final = 3
"""Of more queues only what was found is shown, unless some were named."""


def page(findings: Findings, *, named: bool) -> RenderableType:
    """Return what a person reads: an overview, then each queue.

    Args:
        findings: What to show.
        named: Whether the caller has named queues, and so wants to see all of them.
    """
    # Of tables it is unknown how many events they were made of.
    head = f"{counted(findings.events, 'event')} from" if findings.events else "From"
    head += f" {time_of(findings.since_ms)} to {time_of(findings.until_ms)}"
    if not findings.queues:
        return Text(f"{head}: no queue is in them.")
    parts: list[tuple[str, RenderableType]] = [
        (head, Listing(_QUEUES, [_row(each.whole) for each in findings.queues]))
    ]
    in_full = named or len(findings.queues) <= _MOST_IN_FULL
    for each in findings.queues:
        shown: list[RenderableType] = [_said(one) for one in each.findings]
        if in_full:
            shown += _tables(each)
        if shown:
            parts.append((clean(each.queue), Group(*shown)))
    return sections(*parts)


def _row(found: Recommendation) -> tuple[str, ...]:
    today, advice = found.choice("today"), found.choice("advice")

    def change(read: Any, write: Any) -> str:
        if today is None or advice is None:
            return ""
        return f"{write(read(today))} → {write(read(advice))}"

    return (
        clean(found.queue),
        number(found.seen.messages),
        "" if found.today_s is None else rough(found.today_s),
        rough(found.timeout_s) if found.is_enough else f"({rough(found.timeout_s)})",
        rough(found.wanted_s) if found.is_enough else "",
        _plan(found),
        change(lambda each: each.redeliveries, _many),
        change(lambda each: each.worst_recovery_s, rough),
        change(lambda each: each.wasted_work_s, rough),
    )


def _plan(found: Recommendation) -> str:
    plan = found.renewal
    return "" if plan is None else f"{plan.first_s:.0f} s, every {plan.every_s:.0f} s"


def _many(value: float) -> str:
    return f"{value:,.0f}"


def _said(one: Finding) -> RenderableType:
    text = Text(f"{one.weight.upper():5}", style=_STYLES[one.weight])
    kind = f"{clean(one.message_type)}: " if one.message_type else ""
    text.append(f"{kind}{clean(one.sentence)}", style="default not bold")
    return text


def _tables(found: QueueFindings) -> list[RenderableType]:
    whole = found.whole
    shown: list[RenderableType] = []
    if whole.is_enough:
        seen = whole.seen
        as_it_was = ("in the log", "", number(seen.redeliveries), rough(seen.wasted_work_s))
        hidden = rough(seen.worst_hidden_s) if seen.worst_hidden_s else ""
        rows = [(*as_it_was, hidden, "", ""), *(_choice(each) for each in whole.choices)]
        shown += [Text(), Listing(_CHOICES, rows)]
    if found.types:
        rows = [
            (
                clean(each.message_type or "(none)"),
                number(each.seen.messages),
                "" if each.median_s is None else rough(each.median_s),
                "" if each.p99_s is None else rough(each.p99_s),
                rough(each.wanted_s) if each.is_enough else "not enough data yet",
                _plan(each),
            )
            for each in found.types
        ]
        shown += [Text(), Listing(_TYPES, rows)]
    account = whole.account
    told = [("log and model", _account(account))] if account is not None else []
    told += [("why", f"{clean(whole.because)}."), ("promise", f"{whole.promise}.")]
    if whole.as_good_s is not None:
        low, high = whole.as_good_s
        told.append(
            ("as good", f"{rough(low)} to {rough(high)} cost at most 5 % more, as estimated.")
        )
    if whole.is_enough and not whole.renews:
        told.append(("batch", f"at most {whole.batch} at once, without renewal."))
    if found.split is not None:
        told.append(("queues", f"{clean(found.split.because)}."))
    if found.forecast.is_enough:
        told.append(("backlog", f"{clean(found.forecast.because)}."))
    shown += [Text(), Padding(facts(told), (0, 0, 1, 0))]
    return shown


def _account(account: Account) -> str:
    low, high = account.between
    workers = account.workers
    how = "calculated" if workers is None else f"played with {count_of(workers, 'worker')}"
    told = (
        f"{account.redeliveries:,} redeliveries in the log, {account.modelled:,.0f} "
        f"({low:,.0f} to {high:,.0f} in nine of ten such logs) {how} for the same messages with "
        "today's timeout"
    )
    if account.never_done >= 1:
        told += f", {account.never_done:,.0f} of them never done"
    if account.because is None:
        return f"{told}."
    return f"{told}, {account.apart:.0%} apart: {account.because}."


def _bar(between: tuple[float, float] | None) -> str:
    return "" if between is None else f" ({between[0]:,.2g} to {between[1]:,.2g})"


def _choice(each: WhatIf) -> tuple[str, ...]:
    return (
        "today, modelled" if each.name == "today" else each.name,
        rough(each.timeout_s),
        _many(each.redeliveries),
        rough(each.wasted_work_s),
        rough(each.worst_recovery_s),
        _many(each.given_up),
        f"{each.cost:,.3g} s{_bar(each.cost_between)}",
    )


def analysis_document(findings: Findings) -> dict[str, Any]:
    """Return the findings for scripts, without curves, hours and timelines.

    Those are in the report's own JSON.
    """
    plain: dict[str, Any] = msgspec.to_builtins(findings)
    for queue in plain["queues"]:
        for name in ("hours", "timelines"):
            del queue[name]
        for each in (queue["whole"], *queue["types"]):
            for name in _HEAVY:
                del each[name]
    return plain


# --- analyze applying --------------------------------------------------------------------------
#
# Advice into the settings of queues, and back.


_SINCE: Final = "Its settings changed meanwhile, so nothing was applied. Run the command again."
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
    kind: str | None = None
    """The type of message that it is for; None for the queue."""
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
        kind = None if each.of_queue else each.message_type
        try:
            current = current_of(settings_of(session.queue(each.queue).info()), kind)
            planned.append(_Planned(change(current), change, kind))
        except ServerProblem as problem:
            # The log may know queues that are gone.
            nothing = Change(queue=each.queue, patch=None, sentence=str(problem))
            planned.append(_Planned(nothing, change, kind, error_members(problem)))
    return _make(session, planned, "Write the advice into", dry_run=dry_run, yes=yes)


def undo(session: Session, names: Sequence[str], *, dry_run: bool, yes: bool) -> None:
    """Set queues back to what they were before advice, and print what was done.

    Args:
        session: With the server.
        names: Of the queues; none for all that have advice.
        dry_run: Whether to say only what would be done.
        yes: Whether to ask for no confirmation.

    Raises:
        click.exceptions.Exit: The caller said no, or the server did.
    """
    if names:
        infos = [session.queue(name).info() for name in names]
    else:
        infos = [each for each in session.client.list_queues() if _is_advised(each)]
    planned = []
    for each in infos:
        change, settings = partial(undo_for, each.name), settings_of(each)
        kinds: list[str | None] = [*sorted(settings.advised_by_type)]
        if settings.advised is not None or not kinds:
            kinds.insert(0, None)
        planned += [_Planned(change(current_of(settings, kind)), change, kind) for kind in kinds]
    made = _make(session, planned, "Undo the advice of", dry_run=dry_run, yes=yes)
    if session.screen.as_json:
        session.screen.document({"changes": changes_document(made)})
    elif made:
        session.screen.show(shown(made))
    else:
        session.screen.say("There is no advice for any queue.")
    finish(made)


def _is_advised(info: QueueInfo) -> bool:
    return info.settings.advised is not None or bool(info.settings.advised_by_type)


def advice_in(findings: Findings, *, by_type: bool) -> list[Recommendation]:
    """Return what is to be applied: for each queue one recommendation, or one for each type.

    Args:
        findings: Of the log.
        by_type: Whether queues with several types get timeouts by type. The advice for messages
            without a type is then that of the queue, which stays as it is if there are none. Types
            that were counted together, as others, get nothing of their own.
    """
    found: list[Recommendation] = []
    for queue in findings.queues:
        typed = [each for each in queue.types if each.message_type not in {"", OTHERS}]
        found += typed if by_type and typed else [queue.whole]
    return found


def shown(made: Sequence[Made]) -> RenderableType:
    """Return what became of changes, for people."""
    rows = [(_name_of(each.change), each.state) for each in made]
    return Listing(_COLUMNS, rows, under=[clean(each.change.sentence) for each in made])


def _name_of(change: Change) -> str:
    kind = change.message_type
    return clean(change.queue) + ("" if kind is None else f": {clean(kind)}")


def changes_document(made: Iterable[Made]) -> list[dict[str, Any]]:
    """Return the same for scripts."""
    found = []
    for each in made:
        row: dict[str, Any] = {
            "queue": each.change.queue,
            "state": each.state,
            "sentence": each.change.sentence,
            "settings": each.change.patch,
        }
        if each.change.message_type is not None:
            row["message_type"] = each.change.message_type
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
        names = ", ".join(map(_name_of, wanted[:5]))
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

    It may have been set while the operator was being asked. What was agreed to would then be
    something else, and the way back would lead to what was there before.
    """
    change, queue = plan.change, session.queue(plan.change.queue)
    try:
        if plan.again(current_of(settings_of(queue.info()), plan.kind)).patch != change.patch:
            since = replace(change, sentence=_SINCE)
            return Made(
                change=since, state="refused", error={"code": "changed-meanwhile", "detail": _SINCE}
            )
        queue.update(settings=change.patch)
    except ServerProblem as problem:
        return Made(change=change, state="refused", error=error_members(problem))
    return Made(change=change, state="done")
