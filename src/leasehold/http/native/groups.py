"""The message groups of a queue: what they have, and who stops, resumes and holds them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from leasehold.domain.admin import LookAtGroup
from leasehold.domain.errors import SessionNotFound
from leasehold.domain.groups import (
    HaltGroup,
    HoldGroup,
    ReleaseGroup,
    ResumeGroup,
    SaveGroupState,
)
from leasehold.domain.limits import MAX_GROUP_ID, MAX_GROUP_STATE_BYTES
from leasehold.domain.model import NEVER_MS, GroupFigures, GroupHalt, GroupHold
from leasehold.domain.sessions import GetSession
from leasehold.engine.stats import CountedGroups, count_groups
from leasehold.http.native.call import Call, param_int, param_switch, read_body, short_text
from leasehold.http.native.errors import invalid, out_of_range, shown
from leasehold.http.native.queues import MAX_PAGE
from leasehold.http.requests import Response
from leasehold.wire import admin as wire
from leasehold.wire.parts import NoRequest

_DEFAULT_GROUPS: Final = 20
_GROUP_ORDERS: Final[Mapping[str, Callable[[tuple[str, GroupFigures]], tuple[int, str]]]] = {
    "backlog": lambda each: (-each[1].waiting, each[0]),
    "oldest": lambda each: (NEVER_MS if each[1].oldest_ms is None else each[1].oldest_ms, each[0]),
    "in_flight": lambda each: (-each[1].in_flight, each[0]),
}
"""By their names: what of a group comes first."""

_HALT: Final = msgspec.json.Decoder(wire.HaltRequest)
_HOLD: Final = msgspec.json.Decoder(wire.HoldRequest)
_STATE: Final = msgspec.json.Decoder(wire.GroupStateRequest)
_RELEASE: Final = msgspec.json.Decoder(wire.ReleaseGroupRequest)
_NOTHING: Final = msgspec.json.Decoder(NoRequest)


async def list_groups(call: Call) -> Response:
    """List the groups of a queue with how many messages they have."""
    limit = param_int(call, "limit", (1, MAX_PAGE)) or _DEFAULT_GROUPS
    order = call.params.get("order") or "backlog"
    if order not in _GROUP_ORDERS:
        known = ", ".join(_GROUP_ORDERS)
        raise invalid(
            "order", f"{shown(order)!r} is not an order; the orders are {known}.", value=order
        )
    only_noisy = param_switch(call, "noisy", default=False)
    only_halted = param_switch(call, "halted", default=False)
    counted = await count_groups(call.services.perform, (call.account, call.queue))
    figures, halts, noisy = counted.figures, counted.halts, counted.noisy
    shown_groups = {name: figures.get(name, GroupFigures()) for name in halts} | dict(figures)
    listed = (
        each
        for each in shown_groups.items()
        if (not only_noisy or each[0] in noisy) and (not only_halted or each[0] in halts)
    )
    first = heapq.nsmallest(limit, listed, key=_GROUP_ORDERS[order])
    return call.reply(
        wire.Groups(
            at_ms=call.now_ms,
            total=len(figures),
            waiting=sum(bool(each.waiting) for each in figures.values()),
            in_flight=sum(bool(each.in_flight) for each in figures.values()),
            noisy=len(noisy),
            halted=len(halts),
            groups=[_show_group(name, counted, halts.get(name)) for name, _ in first],
        )
    )


async def look_at_group(call: Call) -> Response:
    """Look at one group, and at what holds it up."""
    name = call.item
    look = LookAtGroup(call.account, call.queue, name)
    standing = await call.services.perform(look)
    counted = await count_groups(call.services.perform, (call.account, call.queue))
    group = _show_group(name, counted, standing.halt)
    held = [
        wire.HeldMessage(
            id=seen.message.message_id,
            state=seen.state,
            until_ms=seen.message.visible_at_ms,
            dequeue_count=seen.message.dequeue_count,
            holder=seen.message.holder,
            under=seen.under,
        )
        for seen in standing.held
    ]
    view = wire.GroupView(
        at_ms=call.now_ms,
        group=group,
        held=held,
        hold=await _show_hold(call, standing.hold),
        rate_again_ms=standing.again_ms,
        noisy_limit=standing.noisy_limit,
    )
    return call.reply(view)


async def halt_group(call: Call) -> Response:
    """Have a group give nothing until it is resumed."""
    reason = short_text("$.reason", read_body(_HALT, call).reason)
    name = call.item
    halt = await call.services.perform(
        HaltGroup(call.account, call.queue, name, reason, call.actor)
    )
    return call.reply(wire.HaltState(group_id=name, halt=_show_halt(halt)))


async def resume_group(call: Call) -> Response:
    """Have a group go on."""
    read_body(_NOTHING, call)
    await call.services.perform(ResumeGroup(call.account, call.queue, call.item, call.actor))
    return call.reply(wire.HaltState(group_id=call.item))


# --- holding -------------------------------------------------------------------------------------


async def hold_group(call: Call) -> Response:
    """Give a group, or the next one, to a session alone."""
    request = read_body(_HOLD, call)
    session = short_text("$.session", request.session) or ""
    group_id = short_text("$.group_id", request.group_id, MAX_GROUP_ID)
    hold = await call.services.perform(HoldGroup(call.account, call.queue, session, group_id))
    if hold is None:
        return call.reply(wire.HeldGroup())
    shown = await _show_hold(call, hold)
    return call.reply(wire.HeldGroup(hold=shown, state_base64=hold.state))


async def save_state(call: Call) -> Response:
    """Keep some bytes for a group that a session holds."""
    request = read_body(_STATE, call)
    session = short_text("$.session", request.session) or ""
    state = request.state_base64
    if len(state) > MAX_GROUP_STATE_BYTES:
        raise out_of_range(
            "$.state_base64",
            len(state),
            (0, MAX_GROUP_STATE_BYTES),
            "The limit is a number of bytes.",
        )
    named = call.account, call.queue, call.item, session
    await call.services.perform(SaveGroupState(*named, request.fence, state))
    return call.reply_nothing()


async def release_group(call: Call) -> Response:
    """End the hold of a session."""
    session = short_text("$.session", read_body(_RELEASE, call).session) or ""
    await call.services.perform(ReleaseGroup(call.account, call.queue, call.item, session))
    return call.reply_nothing()


async def end_hold(call: Call) -> Response:
    """End the hold of whatever session has the group."""
    await call.services.perform(ReleaseGroup(call.account, call.queue, call.item, None, call.actor))
    return call.reply_nothing()


async def holder_of(call: Call, hold: GroupHold | None) -> str | None:
    """Return what the worker calls itself that holds a group, if that is known."""
    if hold is None:
        return None
    try:
        session = await call.services.perform(GetSession(call.account, hold.session))
    except SessionNotFound:
        return None
    return session.holder


async def _show_hold(call: Call, hold: GroupHold | None) -> wire.GroupHold | None:
    if hold is None:
        return None
    holder = await holder_of(call, hold)
    return wire.GroupHold(
        group_id=hold.group_id,
        session=hold.session,
        holder=holder,
        fence=hold.fence,
        since_ms=hold.since_ms,
    )


# --- what is shown -------------------------------------------------------------------------------


def _show_group(name: str, counted: CountedGroups, halt: GroupHalt | None) -> wire.GroupInfo:
    figures = counted.figures.get(name, GroupFigures())
    return wire.GroupInfo(
        group_id=name,
        time_share=round(counted.shares.get(name, 0.0), 4),
        noisy=name in counted.noisy,
        halt=_show_halt(halt),
        **figures._asdict(),
    )


def _show_halt(halt: GroupHalt | None) -> wire.GroupHalt | None:
    return None if halt is None else wire.GroupHalt(**halt._asdict())
