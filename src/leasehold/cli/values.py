"""Values of options that people write: lengths of time, names with values, budgets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

import click

from leasehold.client.models import Filter

_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LENGTH: Final = re.compile(r"(\d+(?:\.\d+)?) ?(s|m|min|h|d|w|)")


class Length(click.ParamType[float | int]):
    """A length of time: seconds, or a number with s, m, h, d or w behind it.

    Args:
        whole: Whether the server takes whole seconds only.
        special: Words that stand for a number.
    """

    name = "length"

    def __init__(self, *, whole: bool = True, special: Mapping[str, int] | None = None) -> None:
        self._whole = whole
        self._special = special or {}

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """See :class:`click.ParamType`."""
        del param, ctx
        return "|".join(["LENGTH", *self._special])

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | int:
        """See :class:`click.ParamType`."""
        if not isinstance(value, str):
            assert isinstance(value, int | float)
            return value
        if value in self._special:
            return self._special[value]
        if value.lstrip("-") == "1" and -1 in self._special.values():
            return int(value)
        found = _LENGTH.fullmatch(value.strip().lower())
        if found is None:
            words = "".join(f", or {word!r}" for word in self._special)
            self.fail(
                f"{value!r} is no length of time: write seconds, or 90s, 5m, 2h, 7d{words}.",
                param,
                ctx,
            )
        length_s = float(found[1]) * _UNITS_S[found[2]]
        if length_s == int(length_s):
            return int(length_s)
        if self._whole:
            self.fail(f"{value!r} is not a whole number of seconds.", param, ctx)
        return length_s


class Pair(click.ParamType[tuple[str, str]]):
    """A name with a value: ``NAME=VALUE``."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """See :class:`click.ParamType`."""
        name, equals, text = str(value).partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not of the form NAME=VALUE.", param, ctx)
        return name, text


class Bounds(click.ParamType[tuple[int, int]]):
    """Two lengths of time: ``FLOOR:CAP``."""

    name = "floor:cap"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """See :class:`click.ParamType`."""
        floor, colon, cap = str(value).partition(":")
        if not colon:
            self.fail(f"{value!r} is not of the form FLOOR:CAP, such as 5s:1h.", param, ctx)
        read = Length()
        return int(read.convert(floor, param, ctx)), int(read.convert(cap, param, ctx))


class When(click.ParamType["Moment"]):
    """A moment, or how long ago: ``2026-01-31T12:00``, ``2026-01-31``, ``7d``. UTC by default."""

    name = "when"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """See :class:`click.ParamType`."""
        del param, ctx
        return "MOMENT|LENGTH"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Moment:
        """See :class:`click.ParamType`."""
        if isinstance(value, Moment):
            return value
        text = str(value).strip()
        if _LENGTH.fullmatch(text.lower()):
            return Moment(at_ms=None, ago_s=float(FRACTIONAL.convert(text, param, ctx)))
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"{text!r} is no moment: write 2026-01-31T12:00, or how long ago, such as 7d.",
                param,
                ctx,
            )
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return Moment(at_ms=int(at.timestamp() * 1000), ago_s=0.0)


class Moment(NamedTuple):
    """A moment as it was given: by the clock, or before now."""

    at_ms: int | None
    ago_s: float

    def resolve(self, now_ms: int) -> int:
        """Return it as Unix milliseconds."""
        return now_ms - int(self.ago_s * 1000) if self.at_ms is None else self.at_ms


class JsonValue(click.ParamType[tuple[Any]]):
    """A value in JSON; what is not JSON is taken as a text, so that it needs no quotes."""

    name = "json"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any]:
        """Return the value in a tuple, as it may itself be nothing (``null``)."""
        del param, ctx
        try:
            return (json.loads(value),)
        except ValueError:
            return (value,)


LENGTH: Final = Length()
FRACTIONAL: Final = Length(whole=False)
TIME_TO_LIVE: Final = Length(special={"never": -1})
QUEUE: Final = click.argument("queue", metavar="QUEUE")
GUARD: Final = click.option(
    "--guard",
    "guard_s",
    type=FRACTIONAL,
    default="5",
    show_default=True,
    help="Renew a lease this long before it ends.",
)


how_many: Final = click.option(
    "--limit",
    type=click.IntRange(1, 1_000),
    metavar="N",
    default=100,
    show_default=True,
    help="Maximum number of entries.",
)
"""Of lists that the server gives in one page."""


# --- settings of queues ------------------------------------------------------------------------


_POLICY: Final = "failure_policy"
BACKOFF: Final = ("failure_policy", "backoff")

PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "visibility-timeout": ("visibility_timeout_s",),
    "lapsed-receipts": ("lapsed_receipts",),
    "max-deliveries": (_POLICY, "max_deliveries"),
    "max-failures": (_POLICY, "max_failures"),
    "max-interruptions": (_POLICY, "max_interruptions"),
    "max-lapses": (_POLICY, "max_lapses"),
    "backoff": BACKOFF,
    "backoff-initial": (*BACKOFF, "initial_s"),
    "backoff-factor": (*BACKOFF, "factor"),
    "backoff-cap": (*BACKOFF, "cap_s"),
    "backoff-jitter": (*BACKOFF, "jitter"),
    "poison-queue": (_POLICY, "poison_queue"),
    "poison-time-to-live": (_POLICY, "poison_time_to_live_s"),
    "failure-policy": (_POLICY,),
    "dedup-window": ("dedup_window_s",),
    "priority-ageing": ("priority_ageing_s",),
    "rate": ("max_receives_per_s",),
    "group-order": ("groups", "order"),
    "group-fair": ("groups", "fair"),
    "group-limit-noisy": ("groups", "limit_noisy"),
    "group-weight": ("groups", "weights"),
    "group-in-flight": ("groups", "max_in_flight"),
    "group-in-flight-of": ("groups", "max_in_flight_of"),
    "group-rate": ("groups", "rate_per_s"),
    "group-rate-of": ("groups", "rate_per_s_of"),
    "group-burst": ("groups", "burst"),
    "group-burst-of": ("groups", "burst_of"),
    "group-poison": ("groups", "on_poison"),
    "groups": ("groups",),
    "type-timeout": ("timeouts_by_type",),
    "max-message-timeout": ("max_message_timeout_s",),
    "adaptive": ("adaptive",),
    "advised": ("advised",),
    "advised-by-type": ("advised_by_type",),
    "paused": ("paused_until_ms",),
    "pause-reason": ("pause_reason",),
    "max-body-bytes": ("max_body_bytes",),
    "event-log": ("event_log",),
}
"""By the name that ``--reset`` takes: where the setting stands."""


# --- filters -----------------------------------------------------------------------------------
#
# Options that say which messages are meant.


_Function = TypeVar("_Function", bound=Callable[..., Any])

STATES: Final = ("visible", "leased", "delayed", "deferred", "expired", "poisoned", "staged")
_STATE: Final = click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    help="Select messages in this state. Can be repeated.",
)
_OPTIONS: Final = (
    click.option(
        "--older-than",
        "min_age_s",
        type=FRACTIONAL,
        help="Select messages put at least this long ago: seconds, or 90s, 5m, 2h, 7d.",
    ),
    click.option(
        "--newer-than",
        "max_age_s",
        type=FRACTIONAL,
        help="Select messages put at most this long ago.",
    ),
    click.option(
        "--failed-within",
        "max_error_age_s",
        type=FRACTIONAL,
        help="Select messages whose last error is at most this old.",
    ),
    click.option(
        "--min-dequeue-count",
        type=click.IntRange(min=0),
        metavar="N",
        help="Select messages received at least N times.",
    ),
    click.option(
        "--max-dequeue-count",
        type=click.IntRange(min=0),
        metavar="N",
        help="Select messages received at most N times.",
    ),
    click.option("--holder", metavar="NAME", help="Select messages that this worker holds."),
    click.option("--type", "message_type", metavar="TYPE", help="Select messages of this type."),
    click.option("--group", "group_id", metavar="GROUP", help="Select messages of this group."),
    click.option(
        "--reason",
        metavar="REASON",
        help="Select messages poisoned for this reason, such as failures.",
    ),
    click.option(
        "--error",
        metavar="TEXT",
        help="Select messages whose last error has this text, type or fingerprint.",
    ),
    click.option("--text", metavar="TEXT", help="Select messages whose body contains this text."),
    click.option(
        "--json-path",
        metavar="PATH",
        help="Select messages whose body is JSON with this path, such as order.lines[0].sku.",
    ),
    click.option(
        "--json-value",
        type=JsonValue(),
        metavar="VALUE",
        help="With --json-path: select messages with this value at the path. JSON, or else text.",
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
            raise click.UsageError("--json-value needs --json-path. Type: --json-path PATH")
        (values["json_value"],) = values["json_value"]
    return Filter(**values)
