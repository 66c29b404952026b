"""From a recommendation to a change of a queue's settings, and back.

What was replaced is kept in the settings themselves, in ``advised``: so the change and the way back
are one step of the server, and anybody who may set the queue can undo it from anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from leasehold.domain.limits import NATIVE
from leasehold.domain.queue_settings import Adaptive, Advised, QueueSettings, TypeTimeout

if TYPE_CHECKING:
    # It needs numpy, and undoing does not.
    from leasehold.advisor.recommendation import Recommendation

_MOST_BECAUSE: Final = 1_024
_NEAR: Final = 0.1
_NO_ADVICE: Final = "There is no advice to undo."


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """What of a queue's settings matters here."""

    visibility_timeout_s: int
    adaptive: Adaptive | None = None
    advised: Advised | None = None
    message_type: str | None = None
    """For which type of message; None for the queue."""
    rule: TypeTimeout | None = None
    """What is set for that type by its name; without, a prefix or the queue has set the above."""


def current_of(settings: QueueSettings, message_type: str | None = None) -> Current:
    """Return what of a queue's settings matters for itself, or for one type of its messages."""
    if message_type is None:
        return Current(
            visibility_timeout_s=settings.visibility_timeout_s,
            adaptive=settings.adaptive,
            advised=settings.advised,
        )
    rules = settings.timeouts_by_type
    in_force = rules.get(settings.rule_of(message_type) or "", TypeTimeout())
    timeout_s, adaptive = in_force.visibility_timeout_s, in_force.adaptive
    if timeout_s is None and adaptive is None:
        adaptive = settings.adaptive
    return Current(
        visibility_timeout_s=settings.visibility_timeout_s if timeout_s is None else timeout_s,
        adaptive=adaptive,
        advised=settings.advised_by_type.get(message_type),
        message_type=message_type,
        rule=rules.get(message_type),
    )


def settings_of(info: Any) -> QueueSettings:
    """Return a queue's settings in the words of the domain.

    Args:
        info: The client's :class:`~leasehold.client.models.QueueInfo`.
    """
    return msgspec.convert(info.settings, QueueSettings, from_attributes=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to send, and what it does in words."""

    queue: str
    patch: Mapping[str, Any] | None
    """A merge patch of the settings (RFC 7396); None for nothing to do."""
    sentence: str
    message_type: str | None = None
    """The type of message whose timeout is changed; None for that of the queue."""


def change_for(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
    recommendation: Recommendation,
    current: Current,
    *,
    now_ms: int,
    floor_s: int | None = None,
    cap_s: int | None = None,
    at_once: bool = False,
) -> Change:
    """Return the change that a recommendation for a whole queue, or a type of messages, asks for.

    For a type it is the rule by its name, whatever prefix it has had its timeout from: other types
    with that prefix keep theirs.

    A queue that adapts by itself gets bounds around the advice: the timeouts that cost at most 5 %
    more; step by step, see :func:`stepped`. One whose workers renew gets the plan for them, and
    keeps its timeout. Any other gets the timeout.

    Args:
        recommendation: With data enough; without, there is nothing to do.
        current: The settings in force, of the same type or queue.
        now_ms: Unix milliseconds.
        floor_s: No timeout and no bound shorter than this; None for no such limit.
        cap_s: The same for longer.
        at_once: Whether the bounds go where they should be in one step.
    """
    if current.message_type is not None:
        assert current.message_type == recommendation.message_type
        alike = replace(current, message_type=None)
        limits = {"floor_s": floor_s, "cap_s": cap_s}
        made = change_for(recommendation, alike, now_ms=now_ms, at_once=at_once, **limits)
        return _of_type(made, current)
    queue = recommendation.queue
    if not recommendation.is_enough:
        return Change(
            queue=queue, patch=None, sentence=f"Not enough data yet: {recommendation.because}."
        )
    if recommendation.renews:
        return _plan_for(recommendation, current, now_ms)
    low = max(floor_s or 0, NATIVE.lease_s[0])
    high = min(cap_s or NATIVE.lease_s[1], NATIVE.lease_s[1])
    timeout = min(max(recommendation.timeout_s, low), high)
    if current.adaptive is not None:
        wanted = _bounds(recommendation, timeout, low, high)
        today = timeout if at_once else _today(recommendation, current)
        bounds = wanted if at_once else stepped(current.adaptive, wanted, today, timeout)
        return _bounds_for(recommendation, current, timeout, (wanted, bounds), now_ms)
    if timeout == current.visibility_timeout_s:
        return Change(queue=queue, patch=None, sentence=f"Already at {timeout} s.")
    advised = _advised(recommendation, current, timeout, None, now_ms)
    return Change(
        queue=queue,
        patch={"visibility_timeout_s": timeout, "advised": _plain(advised)},
        sentence=f"Visibility timeout {current.visibility_timeout_s} s to {timeout} s: "
        f"{recommendation.because}.",
    )


def _of_type(made: Change, current: Current) -> Change:
    """Return a change of a queue's settings as one of the rule of a type."""
    name, patch = current.message_type, made.patch
    assert name is not None
    sentence = f"Type {name}: {made.sentence[:1].lower()}{made.sentence[1:]}"
    if patch is None:
        return replace(made, sentence=sentence, message_type=name)
    advised = patch["advised"]
    if advised is not None:
        advised = {**advised, **_before_rule(current)}
    changed: dict[str, Any] = {"advised_by_type": {name: advised}}
    rule = {member: each for member, each in patch.items() if member != "advised"}
    if rule:
        changed["timeouts_by_type"] = {name: rule}
    return replace(made, patch=changed, sentence=sentence, message_type=name)


def _before_rule(current: Current) -> dict[str, int | None]:
    """Return what the way back of a type leads to: what its rule said before all advice, if any."""
    rule, older = current.rule or TypeTimeout(), current.advised
    before_s, bounds = rule.visibility_timeout_s, rule.adaptive
    if older is not None and older.visibility_timeout_s == before_s:
        before_s = older.before_s
    if older is not None and _adaptive(older.floor_s, older.cap_s) == bounds:
        bounds = _adaptive(older.before_floor_s, older.before_cap_s)
    return {
        "before_s": before_s,
        "before_floor_s": None if bounds is None else bounds.floor_s,
        "before_cap_s": None if bounds is None else bounds.cap_s,
    }


def _bounds_for(
    recommendation: Recommendation,
    current: Current,
    timeout: int,
    wanted_and_next: tuple[Adaptive, Adaptive],
    now_ms: int,
) -> Change:
    """Return the change for a queue that adapts by itself.

    Advice has the last word on the bounds, and the server on what lies between them. So bounds that
    have hardly moved are left: else each run would move them a little, by noise.
    """
    queue, before = recommendation.queue, current.adaptive
    assert before is not None
    wanted, bounds = wanted_and_next
    told = f"it adapts between {bounds.floor_s} s and {bounds.cap_s} s"
    if bounds != wanted:
        told += f" (the best are {wanted.floor_s} s and {wanted.cap_s} s)"
    fits = wanted.floor_s <= current.visibility_timeout_s <= wanted.cap_s
    near = _is_near(before.floor_s, wanted.floor_s) and _is_near(before.cap_s, wanted.cap_s)
    kept = f"Already adapts between {before.floor_s} s and {before.cap_s} s"
    if fits and near:
        return Change(queue=queue, patch=None, sentence=f"{kept}, which is equally good.")
    if bounds == before and timeout == current.visibility_timeout_s:
        return Change(queue=queue, patch=None, sentence=f"{kept}.")
    advised = _advised(recommendation, current, timeout, bounds, now_ms)
    return Change(
        queue=queue,
        patch={
            "visibility_timeout_s": timeout,
            "adaptive": {"floor_s": bounds.floor_s, "cap_s": bounds.cap_s},
            "advised": _plain(advised),
        },
        sentence=f"Visibility timeout {current.visibility_timeout_s} s to {timeout} s, and {told}: "
        f"{recommendation.because}.",
    )


def _plan_for(recommendation: Recommendation, current: Current, now_ms: int) -> Change:
    """Return the change for a queue whose workers renew: they are told a plan, and no more.

    The timeout that is best without renewal is long, and would be the first lease of workers that
    do renew: so long would the messages of those stay hidden that die.
    """
    queue, plan, older = recommendation.queue, recommendation.renewal, current.advised
    stays = (
        f"The workers renew, so the visibility timeout stays at {current.visibility_timeout_s} s"
    )
    if plan is None:
        return Change(queue=queue, patch=None, sentence=f"{stays}.")
    advised = _advised(
        recommendation, current, current.visibility_timeout_s, current.adaptive, now_ms
    )
    told = (
        f"a first lease of {advised.first_lease_s} s, renewed every {advised.renew_every_s} s, is "
        "advised to workers"
    )
    known = older is not None and (
        _is_near(older.first_lease_s, advised.first_lease_s)
        and _is_near(older.renew_every_s, advised.renew_every_s)
    )
    if known:
        return Change(queue=queue, patch=None, sentence=f"{stays}; {told} already.")
    return Change(
        queue=queue,
        patch={"advised": _plain(advised)},
        sentence=f"{stays}; {told}: {recommendation.because}.",
    )


def _is_near(one: int | None, other: int | None) -> bool:
    """Tell whether a change is not worth making: less than a tenth, or a second."""
    if one is None or other is None:
        return one is other
    return abs(one - other) <= max(1.0, _NEAR * other)


def undo_for(queue: str, current: Current) -> Change:
    """Return the change that takes advice back.

    What an operator has set otherwise since stays as it is.

    Args:
        queue: Its name.
        current: The settings in force.
    """
    advised = current.advised
    if current.message_type is not None:
        return _undo_type(queue, current)
    if advised is None:
        return Change(queue=queue, patch=None, sentence=_NO_ADVICE)
    patch: dict[str, Any] = {"advised": None}
    bounds, told = _undone_bounds(advised, current)
    if bounds != current.adaptive and bounds is not None:
        patch["adaptive"] = {"floor_s": bounds.floor_s, "cap_s": bounds.cap_s}
    now_s, before_s = current.visibility_timeout_s, advised.before_s
    if before_s == now_s:
        said = [f"the visibility timeout stays at {now_s} s, as it was before"]
    elif before_s is None or advised.visibility_timeout_s != now_s:
        said = [f"the visibility timeout stays at {now_s} s, which was set after the advice"]
    else:
        fits_s = before_s
        if bounds is not None:
            fits_s = min(max(before_s, bounds.floor_s), bounds.cap_s)
        said = [f"visibility timeout {now_s} s to {fits_s} s"]
        if fits_s != before_s:
            said = [f"{said[0]}: {before_s} s, as before, is outside the bounds"]
        if fits_s != now_s:
            patch["visibility_timeout_s"] = fits_s
    text = "; ".join([*said, *told])
    return Change(queue=queue, patch=patch, sentence=f"{text[:1].upper()}{text[1:]}.")


def _undo_type(queue: str, current: Current) -> Change:
    """Return the change that takes the advice for a type back."""
    advised, rule, name = current.advised, current.rule, current.message_type
    alike = replace(current, message_type=None)
    if advised is None:
        made = Change(queue=queue, patch=None, sentence=_NO_ADVICE)
    elif rule is None:
        sentence = "It no longer has its own timeout or an advised plan."
        made = Change(queue=queue, patch={"advised": None}, sentence=sentence)
    elif advised.before_s is not None or rule.visibility_timeout_s != advised.visibility_timeout_s:
        made = undo_for(queue, alike)
    else:
        bounds, told = _undone_bounds(advised, alike)
        if rule.adaptive == _adaptive(advised.floor_s, advised.cap_s):
            bounds = _adaptive(advised.before_floor_s, advised.before_cap_s)
        sentence = f"Its own visibility timeout of {rule.visibility_timeout_s} s is taken back"
        sentence = "; ".join([sentence, *told]) + "."
        if bounds is None:
            changed = {"advised_by_type": {name: None}, "timeouts_by_type": {name: None}}
            made = Change(queue=queue, patch=changed, sentence=f"Type {name}: {sentence}")
            return replace(made, message_type=name)
        plain = {"floor_s": bounds.floor_s, "cap_s": bounds.cap_s}
        patch = {"advised": None, "visibility_timeout_s": None, "adaptive": plain}
        made = Change(queue=queue, patch=patch, sentence=sentence)
    return _of_type(made, current)


def _undone_bounds(advised: Advised, current: Current) -> tuple[Adaptive | None, list[str]]:
    """Return the bounds once advice is taken back, and what there is to say of them."""
    written = _adaptive(advised.floor_s, advised.cap_s)
    if written is None:
        return current.adaptive, []
    if current.adaptive is None:
        return None, ["it no longer adapts, as set after the advice"]
    if written != current.adaptive:
        return current.adaptive, [
            "the bounds of the adaptive timeout stay, as set after the advice"
        ]
    before = _adaptive(advised.before_floor_s, advised.before_cap_s)
    if before is None or before == written:
        return current.adaptive, []
    return before, [f"it adapts between {before.floor_s} s and {before.cap_s} s again"]


def stepped(before: Adaptive, wanted: Adaptive, today_s: int, timeout_s: int) -> Adaptive:
    """Return the next bounds on the way to those that are wanted.

    Where they get wider, the server may go to twice or half of today's timeout by itself, or as far
    as before. Where they get narrower, it is not driven from today's timeout, unless that is at the
    bound: then by twice or half. So no run changes a timeout by more, and the next one sees what
    came of it.

    Args:
        before: The bounds in force.
        wanted: Those that are best.
        today_s: The timeout in force.
        timeout_s: The timeout that is set now; the bounds have room for it.
    """
    half, twice = max(1, today_s // 2), 2 * today_s
    if wanted.floor_s < before.floor_s:
        floor = max(wanted.floor_s, min(before.floor_s, half))
    else:
        floor = min(
            wanted.floor_s, max(before.floor_s, today_s if today_s > before.floor_s else twice)
        )
    if wanted.cap_s > before.cap_s:
        cap = min(wanted.cap_s, max(before.cap_s, twice))
    else:
        cap = max(wanted.cap_s, min(before.cap_s, today_s if today_s < before.cap_s else half))
    return Adaptive(floor_s=min(floor, timeout_s), cap_s=max(cap, timeout_s))


def _today(recommendation: Recommendation, current: Current) -> int:
    """Return the timeout in force: as set, or as the server has chosen."""
    today_s = recommendation.today_s
    return current.visibility_timeout_s if today_s is None else max(1, round(today_s))


def _bounds(recommendation: Recommendation, timeout: int, low: int, high: int) -> Adaptive:
    good = recommendation.as_good_s or (float(timeout), float(timeout))
    floor = min(max(math.floor(good[0]), low), timeout)
    cap = max(min(math.ceil(good[1]), high), timeout)
    return Adaptive(floor_s=floor, cap_s=cap)


def _advised(
    recommendation: Recommendation,
    current: Current,
    timeout: int,
    adaptive: Adaptive | None,
    now_ms: int,
) -> Advised:
    older, plan = current.advised, recommendation.renewal
    before_s: int | None = current.visibility_timeout_s
    before = current.adaptive
    # Advice upon advice: the way back leads to what a person had set, the timeout and the bounds
    # each for itself.
    if older is not None and older.visibility_timeout_s == current.visibility_timeout_s:
        before_s = before_s if older.before_s is None else older.before_s
    if older is not None and _adaptive(older.floor_s, older.cap_s) == current.adaptive:
        before = _adaptive(older.before_floor_s, older.before_cap_s)
    return Advised(
        visibility_timeout_s=timeout,
        first_lease_s=None if plan is None else max(1, math.ceil(plan.first_s)),
        renew_every_s=None if plan is None else max(1, math.floor(plan.every_s)),
        batch=recommendation.batch,
        floor_s=None if adaptive is None else adaptive.floor_s,
        cap_s=None if adaptive is None else adaptive.cap_s,
        because=recommendation.because[:_MOST_BECAUSE],
        at_ms=now_ms,
        before_s=before_s,
        before_floor_s=None if before is None else before.floor_s,
        before_cap_s=None if before is None else before.cap_s,
    )


def _plain(advised: Advised) -> dict[str, Any]:
    return {name: getattr(advised, name) for name in Advised.__dataclass_fields__}


def _adaptive(floor_s: int | None, cap_s: int | None) -> Adaptive | None:
    return None if floor_s is None or cap_s is None else Adaptive(floor_s=floor_s, cap_s=cap_s)
