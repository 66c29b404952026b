"""Findings as tables for people, and as a document for scripts."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from leasehold.analysis.advising import Account, Recommendation
from leasehold.analysis.findings import Finding, Findings, QueueFindings, Weight
from leasehold.analysis.whatif import WhatIf
from leasehold.cli.listing import Column, Listing
from leasehold.cli.rendering import facts, sections
from leasehold.cli.texts import clean, counted, number, rough
from leasehold.domain.wording import time_of

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
    # Of tables nobody knows how many events they were made of.
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
    told = (
        f"{account.redeliveries:,} redeliveries in the log, {account.modelled:,.0f} calculated for "
        "the same messages with today's timeout"
    )
    if account.never_done >= 1:
        told += f", {account.never_done:,.0f} of them never done"
    if account.because is None:
        return f"{told}."
    return f"{told}, {account.apart:.0%} apart: {account.because}."


def _choice(each: WhatIf) -> tuple[str, ...]:
    return (
        "today, calculated" if each.name == "today" else each.name,
        rough(each.timeout_s),
        _many(each.redeliveries),
        rough(each.wasted_work_s),
        rough(each.worst_recovery_s),
        _many(each.given_up),
        f"{each.cost:,.3g} s",
    )


def document(findings: Findings) -> dict[str, Any]:
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
