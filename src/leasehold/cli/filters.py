"""Options that say which messages are meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from leasehold.cli.values import FRACTIONAL, JsonValue
from leasehold.client.models import Filter

_Function = TypeVar("_Function", bound=Callable[..., Any])

STATES: Final = ("visible", "leased", "delayed", "deferred", "expired", "poisoned", "staged")
_STATE: Final = click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    help="Only messages in this state; may be given more than once.",
)
_OPTIONS: Final = (
    click.option(
        "--older-than",
        "min_age_s",
        type=FRACTIONAL,
        help="Only messages put at least so long ago: seconds, or 90s, 5m, 2h, 7d.",
    ),
    click.option(
        "--newer-than",
        "max_age_s",
        type=FRACTIONAL,
        help="Only messages put at most so long ago.",
    ),
    click.option(
        "--min-dequeue-count",
        type=click.IntRange(min=0),
        metavar="N",
        help="Only messages received at least so often.",
    ),
    click.option(
        "--max-dequeue-count",
        type=click.IntRange(min=0),
        metavar="N",
        help="Only messages received at most so often.",
    ),
    click.option("--holder", metavar="NAME", help="Only messages that this worker holds."),
    click.option("--type", "message_type", metavar="TYPE", help="Only messages of this type."),
    click.option(
        "--reason", metavar="REASON", help="Only messages poisoned for this reason: failures, ..."
    ),
    click.option(
        "--error",
        metavar="TEXT",
        help="Only messages whose last error has this in its text, or this type or fingerprint.",
    ),
    click.option("--text", metavar="TEXT", help="Only messages with this in their body."),
    click.option(
        "--json-path",
        metavar="PATH",
        help="Only messages whose body is JSON and has this path, such as order.lines[0].sku.",
    ),
    click.option(
        "--json-value",
        type=JsonValue(),
        metavar="VALUE",
        help="With --json-path: only where this value stands there; JSON, or else a text.",
    ),
)


def filter_options(*, states: bool = True) -> Callable[[_Function], _Function]:
    """Give a command the options of a filter; without *states* for what is poisoned anyway."""

    def decorate(function: _Function) -> _Function:
        for option in reversed(_OPTIONS):
            function = option(function)
        return _STATE(function) if states else function

    return decorate


def filter_of(given: Mapping[str, Any]) -> Filter | None:
    """Return the filter that the options make, None if none was given."""
    values = {name: value for name, value in given.items() if value not in {None, ()}}
    if not values:
        return None
    if "json_value" in values:
        if "json_path" not in values:
            raise click.UsageError("--json-value needs --json-path, which says where to look.")
        (values["json_value"],) = values["json_value"]
    return Filter(**values)
