"""From a recommendation to a change of a queue's settings, and back.

What was replaced is kept in the settings themselves, in ``advised``: so the change and the way back
are one step of the server, and anybody who may set the queue can undo it from anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from leasehold.domain.limits import NATIVE
from leasehold.domain.queue_settings import Adaptive, Advised

if TYPE_CHECKING:
    # It needs numpy, and undoing does not.
    from leasehold.advisor.recommendation import Recommendation

_MOST_BECAUSE: Final = 1_024
_NEAR: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """What of a queue's settings matters here."""

    visibility_timeout_s: int
    adaptive: Adaptive | None = None
    advised: Advised | None = None


def current_of(info: Any) -> Current:
    """Return what of a queue's settings matters, in the words of the domain.

    Args:
        info: The client's :class:`~leasehold.client.models.QueueInfo`.
    """
    settings = info.settings
    adaptive, advised = settings.adaptive, settings.advised
    return Current(
        visibility_timeout_s=settings.visibility_timeout_s,
        adaptive=None
        if adaptive is None
        else Adaptive(floor_s=adaptive.floor_s, cap_s=adaptive.cap_s),
        advised=None
        if advised is None
        else Advised(**{name: getattr(advised, name) for name in Advised.__dataclass_fields__}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to send, and what it does in words."""

    queue: str
    patch: Mapping[str, Any] | None
    """A merge patch of the settings (RFC 7396); None for nothing to do."""
    sentence: str


def change_for(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
    recommendation: Recommendation,
    current: Current,
    *,
    now_ms: int,
    floor_s: int | None = None,
    cap_s: int | None = None,
    at_once: bool = False,
) -> Change:
    """Return the change that a recommendation for a whole queue asks for.

    A queue that adapts by itself gets bounds around the advice: the timeouts that cost at most 5 %
    more; step by step, see :func:`stepped`. One whose workers renew gets the plan for them, and
    keeps its timeout. Any other gets the timeout.

    Args:
        recommendation: With data enough; without, there is nothing to do.
        current: The settings in force.
        now_ms: Unix milliseconds.
        floor_s: No timeout and no bound shorter than this; None for no such limit.
        cap_s: The same for longer.
        at_once: Whether the bounds go where they should be in one step.
    """
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
        return Change(queue=queue, patch=None, sentence=f"{kept}, which is as good.")
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
        f"Its workers renew, so the visibility timeout stays at {current.visibility_timeout_s} s"
    )
    if plan is None:
        return Change(queue=queue, patch=None, sentence=f"{stays}.")
    advised = _advised(
        recommendation, current, current.visibility_timeout_s, current.adaptive, now_ms
    )
    told = (
        f"a first lease of {advised.first_lease_s} s, renewed every {advised.renew_every_s} s, is "
        "told to those who ask"
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
    if advised is None:
        return Change(queue=queue, patch=None, sentence="There is no advice to undo.")
    patch: dict[str, Any] = {"advised": None}
    bounds, told = _undone_bounds(advised, current)
    if bounds != current.adaptive and bounds is not None:
        patch["adaptive"] = {"floor_s": bounds.floor_s, "cap_s": bounds.cap_s}
    now_s, before_s = current.visibility_timeout_s, advised.before_s
    if before_s == now_s:
        said = [f"the visibility timeout stays at {now_s} s, as it was before"]
    elif before_s is None or advised.visibility_timeout_s != now_s:
        said = [f"the visibility timeout stays at {now_s} s, which was set since"]
    else:
        fits_s = before_s
        if bounds is not None:
            fits_s = min(max(before_s, bounds.floor_s), bounds.cap_s)
        said = [f"visibility timeout {now_s} s to {fits_s} s"]
        if fits_s != before_s:
            said = [f"{said[0]}: {before_s} s, as before, is outside of the bounds"]
        if fits_s != now_s:
            patch["visibility_timeout_s"] = fits_s
    text = "; ".join([*said, *told])
    return Change(queue=queue, patch=patch, sentence=f"{text[:1].upper()}{text[1:]}.")


def _undone_bounds(advised: Advised, current: Current) -> tuple[Adaptive | None, list[str]]:
    """Return the bounds once advice is taken back, and what there is to say of them."""
    written = _adaptive(advised.floor_s, advised.cap_s)
    if written is None:
        return current.adaptive, []
    if current.adaptive is None:
        return None, ["it no longer adapts, as was set since"]
    if written != current.adaptive:
        return current.adaptive, ["the bounds within which it adapts stay, which were set since"]
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
