"""``leasehold queue``: create, show, configure, pause and purge queues."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import click
from rich.console import RenderableType
from rich.text import Text

from leasehold.cli.jobs import purge, redrive
from leasehold.cli.output import (
    Cell,
    Column,
    Listing,
    clean,
    counted,
    explanation_text,
    facts,
    length,
    moment,
    number,
    pairs,
    rough,
    sections,
    size,
    state,
)
from leasehold.cli.remote import WATCH, YES, Session, remote
from leasehold.cli.root import OrderedGroup
from leasehold.cli.values import BACKOFF, FRACTIONAL, LENGTH, PATHS, QUEUE, Bounds, Pair
from leasehold.client.models import (
    Activity,
    Backoff,
    Counts,
    FailurePolicy,
    GroupSettings,
    QueueInfo,
    Settings,
)
from leasehold.domain.errors import InvalidQueueName
from leasehold.domain.limits import check_azure_queue_name
from leasehold.domain.model import NEVER_MS
from leasehold.domain.queue_settings import DEFAULT_MAX_MESSAGE_TIMEOUT_S
from leasehold.domain.wording import form_of

# --- queue settings ----------------------------------------------------------------------------
#
# A queue's settings as options, as a patch, and as lines to read.


_Function = TypeVar("_Function", bound=Callable[..., Any])

_BODY_BYTES: Final = 65_536
"""What a queue takes for which nothing else is set."""
_BUDGET: Final = click.IntRange(min=1)
_OPTIONS: Final = (
    click.option(
        "--visibility-timeout",
        type=LENGTH,
        help="Length of leases for receives that set none: seconds, or 90s, 5m, 2h. Default: 30 s.",
    ),
    click.option(
        "--strict/--until-retaken",
        "strict",
        default=None,
        help="When a receipt becomes invalid: when its lease ends, or when another consumer "
        "receives the message (default, as in Azure).",
    ),
    click.option(
        "--max-deliveries",
        type=_BUDGET,
        metavar="N",
        help="Move a message to the poison queue after N deliveries.",
    ),
    click.option(
        "--max-failures",
        type=_BUDGET,
        metavar="N",
        help="Move a message to the poison queue after N reported failures.",
    ),
    click.option(
        "--max-interruptions",
        type=_BUDGET,
        metavar="N",
        help="Move a message to the poison queue after N interruptions of its worker.",
    ),
    click.option(
        "--max-lapses",
        type=_BUDGET,
        metavar="N",
        help="Move a message to the poison queue after N lapsed leases.",
    ),
    click.option(
        "--backoff",
        type=click.Choice(["fixed", "linear", "exponential"]),
        help="Growth of the wait after a failure.",
    ),
    click.option(
        "--backoff-initial", type=FRACTIONAL, help="Length of the wait after the first failure."
    ),
    click.option(
        "--backoff-factor",
        type=click.FloatRange(1, 10),
        metavar="NUMBER",
        help="Factor of exponential growth, 1 to 10.",
    ),
    click.option("--backoff-cap", type=FRACTIONAL, help="Maximum wait after a failure."),
    click.option(
        "--backoff-jitter",
        type=click.FloatRange(0, 1),
        metavar="NUMBER",
        help="Random share of the wait, 0 to 1.",
    ),
    click.option(
        "--poison-queue",
        metavar="QUEUE",
        help="Queue for poisoned messages. Default: the queue's name with -poison.",
    ),
    click.option(
        "--poison-time-to-live",
        type=LENGTH,
        help="Time that messages stay in the poison queue. Default: for ever.",
    ),
    click.option(
        "--dedup-window",
        type=LENGTH,
        help="Time that deduplication keys are remembered; 0 turns deduplication off.",
    ),
    click.option(
        "--priority-ageing",
        type=LENGTH,
        help="Waiting time that raises a message by one step of priority.",
    ),
    click.option(
        "--rate",
        type=click.FloatRange(min=0, min_open=True),
        metavar="NUMBER",
        help="Maximum number of messages received per second.",
    ),
    click.option(
        "--group-order",
        type=click.Choice(["none", "fifo"]),
        help="Order of the messages of a group: none, or the order of their puts.",
    ),
    click.option(
        "--group-fair/--no-group-fair",
        "group_fair",
        default=None,
        help="Serve message groups in turn, or the oldest message first.",
    ),
    click.option(
        "--group-limit-noisy/--no-group-limit-noisy",
        "group_limit_noisy",
        default=None,
        help="Limit noisy groups so that consumers stay free for other groups, or do not.",
    ),
    click.option(
        "--group-weight",
        type=Pair(),
        multiple=True,
        metavar="GROUP=N",
        help="Serve this group N messages for each message of another group. Can be repeated.",
    ),
    click.option(
        "--group-in-flight",
        type=click.IntRange(1, 1_000_000),
        metavar="N",
        help="Maximum number of leased messages per group.",
    ),
    click.option(
        "--group-in-flight-of",
        type=Pair(),
        multiple=True,
        metavar="GROUP=N",
        help="Set this limit for one group. Can be repeated.",
    ),
    click.option(
        "--group-rate",
        type=float,
        metavar="N",
        help="Maximum number of messages per second and group.",
    ),
    click.option(
        "--group-rate-of",
        type=Pair(),
        multiple=True,
        metavar="GROUP=N",
        help="Set this limit for one group. Can be repeated.",
    ),
    click.option(
        "--group-burst",
        type=click.IntRange(1, 1_000_000),
        metavar="N",
        help="Maximum number of messages of a group delivered at once after a quiet time.",
    ),
    click.option(
        "--group-burst-of",
        type=Pair(),
        multiple=True,
        metavar="GROUP=N",
        help="Set this limit for one group. Can be repeated.",
    ),
    click.option(
        "--group-poison",
        type=click.Choice(["continue", "halt"]),
        help="What an ordered group does when one of its messages is poisoned.",
    ),
    click.option(
        "--adaptive",
        type=Bounds(),
        metavar="FLOOR:CAP",
        help="Let the server adapt leases to the work, within these bounds, such as 5s:1h.",
    ),
    click.option("--no-adaptive", is_flag=True, help="Turn adaptive leases off."),
    click.option(
        "--type-timeout",
        type=Pair(),
        multiple=True,
        metavar="TYPE=TIME",
        help="Length of leases for messages of a type, or of all types with a prefix, as in "
        "encode.*; for receives that set none. Can be repeated.",
    ),
    click.option(
        "--type-adaptive",
        type=Pair(),
        multiple=True,
        metavar="TYPE=FLOOR:CAP",
        help="Let the server adapt the leases of a type to the work. Can be repeated.",
    ),
    click.option(
        "--no-type-timeout",
        multiple=True,
        metavar="TYPE",
        help="Remove the settings of a type or a prefix. Can be repeated.",
    ),
    click.option(
        "--max-message-timeout",
        type=LENGTH,
        help="Maximum lease that a producer can set for a message; 0 allows none. Default: 12h.",
    ),
    click.option(
        "--paused/--not-paused",
        "paused",
        default=None,
        help="Pause the queue until it is resumed, or resume it. For a limited time: leasehold "
        "queue pause.",
    ),
    click.option("--pause-reason", metavar="TEXT", help="Reason, shown to operators."),
    click.option(
        "--max-body-bytes",
        type=click.IntRange(1, 67_108_864),
        metavar="N",
        help="Maximum size of a body in bytes, 1 to 67108864. Default: 65536.",
    ),
    click.option(
        "--event-log/--no-event-log",
        "event_log",
        default=None,
        help="Record events of its messages, or do not.",
    ),
)
METADATA: Final = click.Option(
    ["--metadata"],
    type=Pair(),
    multiple=True,
    metavar="NAME=VALUE",
    help="Set metadata, and remove all other metadata. Can be repeated.",
)
RESET: Final = click.Option(
    ["--reset"],
    type=click.Choice([*PATHS, "all"]),
    multiple=True,
    metavar="NAME",
    help="Reset a setting to its default. Can be repeated. One of: " + ", ".join(PATHS) + ", all.",
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
            raise click.UsageError(
                "--adaptive and --no-adaptive exclude each other. Type one of them."
            )
        values["adaptive"] = None
    elif "adaptive" in values:
        floor_s, cap_s = values["adaptive"]
        values["adaptive"] = {"floor_s": floor_s, "cap_s": cap_s}
    for name in ("group-weight", "group-in-flight-of", "group-rate-of", "group-burst-of"):
        pairs = values.pop(name, ())
        if pairs:
            read = _fraction if name == "group-rate-of" else _whole
            values[name] = {group: read(name, text) for group, text in pairs}
    rules = _rules_of(values)
    if rules:
        values["type-timeout"] = rules
    if "backoff" in values:
        values["backoff"] = {"kind": values["backoff"]}
    return _assembled(values, reset)


def _rules_of(values: dict[str, Any]) -> dict[str, Any]:
    """Take what is set by message type out of the options, as a patch of the rules."""
    rules: dict[str, Any] = {}
    for name, text in values.pop("type-timeout", ()):
        rules.setdefault(name, {})["visibility_timeout_s"] = LENGTH.convert(text, None, None)
    for name, text in values.pop("type-adaptive", ()):
        floor_s, cap_s = Bounds().convert(text, None, None)
        rules.setdefault(name, {})["adaptive"] = {"floor_s": floor_s, "cap_s": cap_s}
    for name in values.pop("no-type-timeout", ()):
        if name in rules:
            raise click.UsageError(
                f"--no-type-timeout {name} excludes --type-timeout and --type-adaptive {name}."
            )
        rules[name] = None
    return rules


def _whole(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.UsageError(f"--{option} is {text!r}; it must be a whole number.") from None


def _fraction(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.UsageError(f"--{option} is {text!r}; it must be a number.") from None


def _assembled(values: Mapping[str, Any], reset: Iterable[str]) -> dict[str, Any]:
    names = [path[0] for path in PATHS.values()] if "all" in reset else []
    patch: dict[str, Any] = dict.fromkeys(names)
    for name in reset:
        if name in values:
            raise click.UsageError(f"--reset {name} and --{name} exclude each other.")
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
            inner |= {"kind": None} if path[:depth] == BACKOFF else {}
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
        *_by_type(settings),
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
        ("groups", _groups(settings.groups)),
        ("paused", paused_text(settings, now_ms) or "no"),
        ("largest body", size(settings.max_body_bytes or _BODY_BYTES)),
        ("event log", "on" if settings.event_log else "off"),
    ]


def _groups(groups: GroupSettings | None) -> str:
    """Return how message groups share a queue."""
    if groups is None:
        return "make no difference"
    told = ["in order" if groups.order == "fifo" else "in no order"]
    if groups.fair:
        told.append("served in turn")
        told += [f"{clean(name)} with weight {n}" for name, n in groups.weights.items()]
    if groups.limit_noisy:
        told.append("noisy ones limited")
    if groups.max_in_flight is not None:
        told.append(f"{number(groups.max_in_flight)} of each in flight at most")
    told += [f"{number(n)} of {clean(name)}" for name, n in groups.max_in_flight_of.items()]
    if groups.rate_per_s is not None:
        told.append(f"{groups.rate_per_s:g}/s of each, {number(groups.burst)} at once")
    told += [f"{rate:g}/s of {clean(name)}" for name, rate in groups.rate_per_s_of.items()]
    if groups.on_poison == "halt":
        told.append("halted by poison")
    return ", ".join(told)


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


def _by_type(settings: Settings) -> list[tuple[str, str]]:
    """Return the visibility timeouts that are set by message type."""
    lines = []
    for name, rule in sorted(settings.timeouts_by_type.items()):
        adapted = settings.adapted_by_type.get(name)
        set_s = rule.visibility_timeout_s
        told = "as the queue" if set_s is None else length(set_s)
        if rule.adaptive is not None:
            if adapted is not None:
                told = f"{length(adapted.visibility_timeout_s)} ({clean(adapted.because)})"
            told += f", adaptive, {length(rule.adaptive.floor_s)} to {length(rule.adaptive.cap_s)}"
        advised = settings.advised_by_type.get(name)
        if advised is not None:
            told += f"; advised: {clean(advised.because or 'no reason was given')}"
        lines.append((f"type {clean(name)}", told))
    longest_s = settings.max_message_timeout_s
    if longest_s != DEFAULT_MAX_MESSAGE_TIMEOUT_S:
        told = f"at most {length(longest_s)}" if longest_s else "none"
        lines.append(("of a message", told))
    return lines


def _policy_lines(queue: QueueInfo) -> list[tuple[str, str]]:
    policy = queue.settings.failure_policy
    if policy is None:
        return [
            ("poisoned after", "never"),
            ("backoff", "none: failed messages are visible at once"),
        ]
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
        return "none: failed messages are visible at once"
    text = f"{backoff.kind}, {length(backoff.initial_s)}"
    if backoff.kind == "exponential":
        text += f" times {number(backoff.factor)} each time"
    if backoff.kind != "fixed":
        text += f", at most {length(backoff.cap_s)}"
    return f"{text}, ±{backoff.jitter:.0%}" if backoff.jitter else text


# --- queues ------------------------------------------------------------------------------------


OWN_STATES: Final = ("visible", "leased", "delayed", "deferred")
"""States of messages that are in the queue itself."""
_LISTED: Final = (*OWN_STATES, "poisoned", "expired")


@click.group("queue", cls=OrderedGroup)
def queue() -> None:
    """Create, show, configure, pause and purge queues."""


@remote("list", WATCH, add_to=queue)
@click.option(
    "--prefix", default="", metavar="TEXT", help="Select queues whose names begin with this text."
)
@click.option("--counts", is_flag=True, help="Count the messages of each queue. This takes longer.")
def list_queues(session: Session, prefix: str, counts: bool, every_s: float | None) -> None:
    """List queues by name.

    Example: leasehold queue list --counts
    """
    session.present(
        lambda: list(session.client.list_queues(prefix, counts=counts)),
        lambda found: _queue_table(found, session.now_ms, counts=counts),
        lambda found: found,
        every_s,
    )


@remote("create", METADATA, add_to=queue)
@settings_options
@QUEUE
def create(
    session: Session, queue: str, metadata: tuple[tuple[str, str], ...], **given: Any
) -> None:
    """Create a queue, unless it exists. An existing queue must have the given settings.

    Example: leasehold queue create orders --visibility-timeout 2m --max-deliveries 5
    """
    settings = patch_of(given)
    made = session.queue(queue).create(metadata=dict(metadata) or None, settings=settings or None)
    session.screen.result(made, f"Queue {made.name} is ready.")
    try:
        check_azure_queue_name(queue)
    except InvalidQueueName:
        session.screen.hint(_azure_hint(queue))


def _azure_hint(name: str) -> str:
    """Return what to say of a queue whose name not every protocol takes."""
    text = (
        f"Clients of Azure cannot use the name {name!r}: they take 3 to 63 of a-z, 0-9 and single "
        "dashes between them."
    )
    plain = re.sub("-+", "-", name.lower()).strip("-")
    try:
        check_azure_queue_name(plain)
    except InvalidQueueName:
        return text
    return f"{text} Type: leasehold queue create {plain}"


@remote("delete", YES, add_to=queue)
@QUEUE
def delete(session: Session, queue: str, yes: bool) -> None:
    """Delete a queue and its messages, after confirmation. Its poison queue stays.

    Example: leasehold queue delete orders
    """
    handle = session.queue(queue)
    if not yes:
        total = handle.counts().total
        session.confirm(f"Delete queue {queue} and its {_messages(total)} for good?", yes=yes)
    handle.delete()
    session.screen.result({"deleted": queue}, f"Queue {queue} is deleted.")


@remote("show", WATCH, add_to=queue)
@QUEUE
def show(session: Session, queue: str, every_s: float | None) -> None:
    """Show a queue: its messages by state, its settings and its activity.

    Example: leasehold queue show orders
    """
    session.present(
        session.queue(queue).info,
        lambda found: _whole_queue(found, session.now_ms),
        every_s=every_s,
    )


@remote("set", METADATA, RESET, add_to=queue)
@settings_options
@QUEUE
def set_queue(
    session: Session,
    queue: str,
    metadata: tuple[tuple[str, str], ...],
    reset: tuple[str, ...],
    **given: Any,
) -> None:
    """Change settings of a queue. Other settings stay as they are.

    Example: leasehold queue set orders --max-failures 5 --backoff exponential --backoff-cap 10m
    """
    patch = patch_of(given, reset)
    if not patch and not metadata:
        raise click.UsageError(
            "There is no setting to change. Type: leasehold queue set --help, for a list."
        )
    changed = session.queue(queue).update(dict(metadata) or None, patch or None)
    _reply_queue(session, changed)


@remote("counts", WATCH, add_to=queue)
@QUEUE
def counts(session: Session, queue: str, every_s: float | None) -> None:
    """Count the messages of a queue by state, at one instant.

    Example: leasehold queue counts orders --watch
    """
    session.present(session.queue(queue).counts, counts_table, every_s=every_s)


@remote("pause", add_to=queue)
@click.option(
    "--for",
    "for_s",
    type=FRACTIONAL,
    help="Length of the pause: seconds, or 90s, 5m, 2h. Default: until resumed.",
)
@click.option("--reason", metavar="TEXT", help="Reason, shown to operators.")
@QUEUE
def pause(session: Session, queue: str, for_s: float | None, reason: str | None) -> None:
    """Pause a queue: it delivers no messages. Leased messages can be completed and renewed.

    Example: leasehold queue pause orders --for 30m --reason "database upgrade"
    """
    changed = session.queue(queue).pause(for_s, reason)
    if session.screen.as_json:
        session.screen.document(changed)
        return
    until = paused_text(changed.settings, session.now_ms) or "no longer"
    session.screen.say(f"Queue {changed.name} is paused {until}.")


@remote("resume", add_to=queue)
@QUEUE
def resume(session: Session, queue: str) -> None:
    """Resume a paused queue.

    Example: leasehold queue resume orders
    """
    changed = session.queue(queue).resume()
    session.screen.result(changed, f"Queue {changed.name} is resumed.")


@remote("explain", WATCH, add_to=queue)
@QUEUE
def explain_queue(session: Session, queue: str, every_s: float | None) -> None:
    """Explain in a sentence why a queue delivers messages, or none.

    Example: leasehold queue explain orders
    """
    session.present(
        session.queue(queue).explain,
        lambda found: explanation_text(found, session.now_ms),
        every_s=every_s,
    )


queue.add_command(purge)
queue.add_command(redrive)


def counts_table(found: Counts) -> RenderableType:
    """Return counts, one state a line."""
    columns = (Column("STATE"), Column("MESSAGES", right=True), Column("OLDEST", right=True))
    rows: list[tuple[Cell, ...]] = [
        (state(name), _count(found, name), _oldest(found, name)) for name in OWN_STATES
    ]
    rows += [(state("poisoned"), _count(found, "poisoned"), _oldest(found, "poisoned"))]
    if found.expired:
        rows.append((state("expired"), _count(found, "expired"), ""))
    if found.staged:
        rows.append((state("staged"), _count(found, "staged"), _oldest(found, "staged")))
    if found.claimed:
        rows.append(("leased in claims", _count(found, "claimed"), ""))
    return Listing(columns, rows, foot=("in the queue", _about(found.total, found), ""))


def _queue_table(found: Iterable[QueueInfo], now_ms: int, *, counts: bool) -> RenderableType:
    columns = [Column("QUEUE")]
    if counts:
        columns += [Column(name.upper(), right=True) for name in _LISTED]
    columns += [Column("LEASE", right=True, drop=1), Column("PAUSED"), Column("METADATA", cut=True)]
    rows = []
    for each in found:
        row: list[Cell] = [each.name]
        if counts and each.counts is not None:
            row += [_count(each.counts, name) for name in _LISTED]
        elif counts:
            row += ["" for _ in _LISTED]
        paused = "yes" if paused_text(each.settings, now_ms) else ""
        rows.append([*row, length(each.visibility_timeout_s), paused, pairs(each.metadata)])
    return Listing(columns, rows) if rows else Text("There are no queues.")


def _whole_queue(found: QueueInfo, now_ms: int) -> RenderableType:
    about: list[tuple[str, Cell]] = [("created", moment(found.created_at_ms, now_ms))]
    if found.metadata:
        about.append(("metadata", pairs(found.metadata)))
    parts: list[tuple[str, RenderableType]] = [(found.name, facts(about))]
    if found.counts is not None:
        parts.append(("Messages", counts_table(found.counts)))
    parts.append(("Settings", facts(settings_lines(found, now_ms))))
    if found.activity is not None:
        parts.append(
            ("Activity since the server started", facts(_activity(found.activity, now_ms)))
        )
    return sections(*parts)


def _activity(found: Activity, now_ms: int) -> Iterable[tuple[str, str]]:
    yield "since", moment(found.since_ms, now_ms)
    yield "last put", moment(found.last_send_ms, now_ms)
    receiver = f" by {clean(found.last_receiver)}" if found.last_receiver else ""
    yield "last received", moment(found.last_receive_ms, now_ms) + receiver
    yield "last completed", moment(found.last_complete_ms, now_ms)
    counted = (
        (found.sent, "put"),
        (found.received, "received"),
        (found.redelivered, "received again"),
        (found.completed, "completed"),
        (found.released, "given back"),
        (found.poisoned, "poisoned"),
        (found.rejected_receipts, f"{form_of(found.rejected_receipts, 'receipt')} refused"),
    )
    told = ", ".join(f"{number(many)} {what}" for many, what in counted if many)
    yield "so far", told or "nothing"


def _reply_queue(session: Session, changed: QueueInfo) -> None:
    if session.screen.as_json:
        session.screen.document(changed)
        return
    lines = facts(settings_lines(changed, session.now_ms))
    session.screen.show(sections((changed.name, lines)))


def _count(found: Counts, name: str) -> Text:
    many: int = getattr(found, name)
    return Text(_about(many, found), style="" if many else "dim")


def _about(many: int, found: Counts) -> str:
    return number(many) if found.exact else f"~{number(many)}"


def _oldest(found: Counts, name: str) -> str:
    age_s = found.oldest_age_s.get(name)
    return "" if age_s is None else rough(age_s)


def _messages(many: int) -> str:
    return counted(many, "message")
