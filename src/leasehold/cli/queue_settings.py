"""A queue's settings as options, as a patch, and as lines to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import click

from leasehold.cli.texts import clean, counted, length, moment, number, size
from leasehold.cli.values import FRACTIONAL, LENGTH, Bounds, Pair
from leasehold.client.models import Backoff, FailurePolicy, QueueInfo, Settings
from leasehold.domain.types import NEVER_MS

_Function = TypeVar("_Function", bound=Callable[..., Any])

_BODY_BYTES: Final = 65_536
"""What a queue takes for which nothing else is set."""
_BUDGET: Final = click.IntRange(min=1)
_POLICY: Final = "failure_policy"
_BACKOFF: Final = ("failure_policy", "backoff")

PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "visibility-timeout": ("visibility_timeout_s",),
    "lapsed-receipts": ("lapsed_receipts",),
    "max-deliveries": (_POLICY, "max_deliveries"),
    "max-failures": (_POLICY, "max_failures"),
    "max-interruptions": (_POLICY, "max_interruptions"),
    "max-lapses": (_POLICY, "max_lapses"),
    "backoff": _BACKOFF,
    "backoff-initial": (*_BACKOFF, "initial_s"),
    "backoff-factor": (*_BACKOFF, "factor"),
    "backoff-cap": (*_BACKOFF, "cap_s"),
    "backoff-jitter": (*_BACKOFF, "jitter"),
    "poison-queue": (_POLICY, "poison_queue"),
    "poison-time-to-live": (_POLICY, "poison_time_to_live_s"),
    "failure-policy": (_POLICY,),
    "dedup-window": ("dedup_window_s",),
    "priority-ageing": ("priority_ageing_s",),
    "rate": ("max_receives_per_s",),
    "adaptive": ("adaptive",),
    "advised": ("advised",),
    "paused": ("paused_until_ms",),
    "pause-reason": ("pause_reason",),
    "max-body-bytes": ("max_body_bytes",),
    "event-log": ("event_log",),
}
"""By the name that ``--reset`` takes: where the setting stands."""

_OPTIONS: Final = (
    click.option(
        "--visibility-timeout",
        type=LENGTH,
        help="Lease of a receive that names none: seconds, or 90s, 5m, 2h. 30 s unless set.",
    ),
    click.option(
        "--strict/--until-retaken",
        "strict",
        default=None,
        help="What a receipt is worth once its lease has run out: nothing, or as much as before "
        "until somebody else takes the message (the default, as in Azure).",
    ),
    click.option(
        "--max-deliveries",
        type=_BUDGET,
        metavar="N",
        help="Deliveries after which a message goes to the poison queue.",
    ),
    click.option(
        "--max-failures", type=_BUDGET, metavar="N", help="The same for reported failures."
    ),
    click.option(
        "--max-interruptions", type=_BUDGET, metavar="N", help="The same for workers that stopped."
    ),
    click.option(
        "--max-lapses", type=_BUDGET, metavar="N", help="The same for leases that ran out."
    ),
    click.option(
        "--backoff",
        type=click.Choice(["fixed", "linear", "exponential"]),
        help="How the wait after a failure grows.",
    ),
    click.option("--backoff-initial", type=FRACTIONAL, help="Wait after the first failure."),
    click.option(
        "--backoff-factor",
        type=click.FloatRange(1, 10),
        metavar="NUMBER",
        help="Of exponential growth, 1 to 10.",
    ),
    click.option("--backoff-cap", type=FRACTIONAL, help="Longest wait after a failure."),
    click.option(
        "--backoff-jitter",
        type=click.FloatRange(0, 1),
        metavar="NUMBER",
        help="Share of the wait by which chance moves it, 0 to 1.",
    ),
    click.option(
        "--poison-queue",
        metavar="QUEUE",
        help="Where poisoned messages go; unless set, the queue's name and -poison.",
    ),
    click.option(
        "--poison-time-to-live",
        type=LENGTH,
        help="How long they stay there; unless set, for ever.",
    ),
    click.option(
        "--dedup-window",
        type=LENGTH,
        help="How long deduplication keys are remembered; 0: not at all.",
    ),
    click.option(
        "--priority-ageing",
        type=LENGTH,
        help="Waiting time that counts as one step of priority, so that nothing waits for ever.",
    ),
    click.option(
        "--rate",
        type=click.FloatRange(min=0, min_open=True),
        metavar="NUMBER",
        help="Messages that may be received each second.",
    ),
    click.option(
        "--adaptive",
        type=Bounds(),
        metavar="FLOOR:CAP",
        help="Let the server fit the lease to the work, within these bounds: 5s:1h.",
    ),
    click.option("--no-adaptive", is_flag=True, help="Let the lease be what is set."),
    click.option(
        "--paused/--not-paused",
        "paused",
        default=None,
        help="Give out no messages until resumed, or go on. For a while: leasehold queue pause.",
    ),
    click.option("--pause-reason", metavar="TEXT", help="For those who wonder."),
    click.option(
        "--max-body-bytes",
        type=click.IntRange(1, 67_108_864),
        metavar="N",
        help="Largest body of a message, 1 to 67108864; 65536 unless set.",
    ),
    click.option(
        "--event-log/--no-event-log",
        "event_log",
        default=None,
        help="Record what happens to its messages, or do not.",
    ),
)
METADATA: Final = click.Option(
    ["--metadata"],
    type=Pair(),
    multiple=True,
    metavar="NAME=VALUE",
    help="Metadata; may be given more than once, and replaces all there is.",
)
RESET: Final = click.Option(
    ["--reset"],
    type=click.Choice([*PATHS, "all"]),
    multiple=True,
    metavar="NAME",
    help="Bring a setting back to its default; may be given more than once. Of: "
    + ", ".join(PATHS)
    + ", all.",
)


def settings_options(function: _Function) -> _Function:
    """Give a command one option for each setting of a queue."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def patch_of(given: Mapping[str, Any], reset: Iterable[str] = ()) -> dict[str, Any]:
    """Return the merge patch that the options make, empty if none was given.

    Raises:
        click.UsageError: Two options contradict each other.
    """
    values = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
    if "strict" in values:
        values["lapsed-receipts"] = "strict" if values.pop("strict") else "until-retaken"
    if "paused" in values:
        values["paused"] = NEVER_MS if values["paused"] else None
    if values.pop("no-adaptive", False):
        if "adaptive" in values:
            raise click.UsageError("Give --adaptive or --no-adaptive, not both.")
        values["adaptive"] = None
    elif "adaptive" in values:
        floor_s, cap_s = values["adaptive"]
        values["adaptive"] = {"floor_s": floor_s, "cap_s": cap_s}
    if "backoff" in values:
        values["backoff"] = {"kind": values["backoff"]}
    return _assembled(values, reset)


def _assembled(values: Mapping[str, Any], reset: Iterable[str]) -> dict[str, Any]:
    names = [path[0] for path in PATHS.values()] if "all" in reset else []
    patch: dict[str, Any] = dict.fromkeys(names)
    for name in reset:
        if name in values:
            raise click.UsageError(f"--reset {name} and --{name} contradict each other.")
        if name != "all":
            _put(patch, PATHS[name], None)
    for name, value in values.items():
        _put(patch, PATHS[name], value)
    return patch


def _put(patch: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    for depth, name in enumerate(path[:-1], start=1):
        inner = patch.get(name)
        if inner is None and name in patch:
            # All of it is to be reset, and then one member set: reset the others one by one.
            inner = {
                each[depth]: None for each in PATHS.values() if each[:depth] == path[:depth] < each
            }
            inner |= {"kind": None} if path[:depth] == _BACKOFF else {}
        patch[name] = inner = {} if inner is None else inner
        patch = inner
    known = patch.get(path[-1])
    if isinstance(known, dict) and isinstance(value, dict):
        known.update(value)
    else:
        patch[path[-1]] = value


def settings_lines(queue: QueueInfo, now_ms: int) -> list[tuple[str, str]]:
    """Return what is set for a queue, named as the options are."""
    settings = queue.settings
    return [
        ("visibility timeout", _lease(queue)),
        ("adaptive", _adaptive(settings)),
        *_advised(settings, now_ms),
        ("lapsed receipts", settings.lapsed_receipts),
        *_policy_lines(queue),
        ("dedup window", length(settings.dedup_window_s) if settings.dedup_window_s else "off"),
        (
            "priority ageing",
            f"one step every {length(settings.priority_ageing_s)}"
            if settings.priority_ageing_s
            else "off: priority is strict",
        ),
        (
            "rate",
            f"{counted(settings.max_receives_per_s, 'message')}/s"
            if settings.max_receives_per_s
            else "no limit",
        ),
        ("paused", paused_text(settings, now_ms) or "no"),
        ("largest body", size(settings.max_body_bytes or _BODY_BYTES)),
        ("event log", "on" if settings.event_log else "off"),
    ]


def paused_text(settings: Settings, now_ms: int) -> str:
    """Return until when a queue is paused, and why; empty if it is not."""
    until_ms = settings.paused_until_ms
    if until_ms is None or until_ms <= now_ms:
        return ""
    until = "until resumed" if until_ms >= NEVER_MS else f"until {moment(until_ms, now_ms)}"
    return until + (f": {clean(settings.pause_reason)}" if settings.pause_reason else "")


def _lease(queue: QueueInfo) -> str:
    set_s, adapted = queue.settings.visibility_timeout_s, queue.settings.adapted
    if queue.settings.adaptive is None or adapted is None:
        return length(set_s)
    return f"{length(queue.visibility_timeout_s)} ({clean(adapted.because)}; set: {length(set_s)})"


def _adaptive(settings: Settings) -> str:
    bounds = settings.adaptive
    return "off" if bounds is None else f"{length(bounds.floor_s)} to {length(bounds.cap_s)}"


def _advised(settings: Settings, now_ms: int) -> list[tuple[str, str]]:
    advised = settings.advised
    if advised is None:
        return []
    told = [clean(advised.because or "no reason was given")]
    if advised.before_s is not None:
        told.insert(0, f"in place of {length(advised.before_s)}")
    if advised.at_ms is not None:
        told.append(moment(advised.at_ms, now_ms))
    return [("advised", "; ".join(told))]


def _policy_lines(queue: QueueInfo) -> list[tuple[str, str]]:
    policy = queue.settings.failure_policy
    if policy is None:
        return [("poisoned after", "never"), ("backoff", "none: failed messages wait for nothing")]
    stays_s = policy.poison_time_to_live_s
    stays = "for ever" if stays_s in {None, -1} else f"for {length(stays_s or 0)}"
    return [
        ("poisoned after", _budgets(policy)),
        ("poison queue", f"{clean(policy.poison_queue or queue.name + '-poison')}, kept {stays}"),
        ("backoff", _backoff(policy.backoff)),
    ]


def _budgets(policy: FailurePolicy) -> str:
    budgets = (
        (policy.max_deliveries, "delivery", "deliveries"),
        (policy.max_failures, "failure", "failures"),
        (policy.max_interruptions, "interruption", "interruptions"),
        (policy.max_lapses, "lapse", "lapses"),
    )
    told = [counted(most, *forms) for most, *forms in budgets if most is not None]
    return " or ".join(told) or "never"


def _backoff(backoff: Backoff | None) -> str:
    if backoff is None:
        return "none: failed messages wait for nothing"
    text = f"{backoff.kind}, {length(backoff.initial_s)}"
    if backoff.kind == "exponential":
        text += f" times {number(backoff.factor)} each time"
    if backoff.kind != "fixed":
        text += f", at most {length(backoff.cap_s)}"
    return f"{text}, ±{backoff.jitter:.0%}" if backoff.jitter else text
