"""Which queues of a summary are meant, and whether a saved one may be applied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import click

from leasehold.analysis.summaries import LogSummary

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
