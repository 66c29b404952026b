"""Commits: messages sent, completed, given back and renewed, in any queues, as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

from leasehold.auth.types import Operation
from leasehold.domain.commands import Complete
from leasehold.domain.errors import NotDone, Unavailable
from leasehold.domain.ids import ENTROPY_BYTES
from leasehold.domain.staging import Committed, CommitTogether
from leasehold.http.messages import Response
from leasehold.http.native import flow_shapes
from leasehold.http.native.apart import apart
from leasehold.http.native.call import Call
from leasehold.http.native.items import MAX_ITEMS, BatchReader, ItemCommand, Items, too_many
from leasehold.http.native.messages import (
    read_release,
    read_renew,
    show_completion,
    show_release,
    show_renewal,
)
from leasehold.http.native.names import checked_name, published_names
from leasehold.http.native.problems import Refused, invalid
from leasehold.http.native.puts import PutReader, show_put
from leasehold.http.native.streams import show_settled

_COMMIT: Final = BatchReader(
    flow_shapes.CommitRequest,
    send=flow_shapes.QueuedPut,
    complete=flow_shapes.QueuedComplete,
    release=flow_shapes.QueuedRelease,
    renew=flow_shapes.QueuedRenew,
)
_SHOWN: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "send": show_put,
    "complete": show_completion,
    "release": show_release,
    "renew": show_renewal,
}
"""The lists of a commit, in the order in which they are carried out, and what shows a result."""


async def commit(call: Call) -> Response:
    """Carry everything out in one transaction, or nothing."""
    size = len(call.request.body)
    request = await apart(size, _COMMIT.read, call)
    given: dict[str, Sequence[Any]] = {name: getattr(request, name) or () for name in _SHOWN}
    count = sum(map(len, given.values()))
    if count > MAX_ITEMS:
        raise too_many("$", count)
    publish = published_names(request.publish)
    if not count and not publish:
        raise invalid("$", "There is nothing to commit.")
    name = None if request.name is None else checked_name("$.name", request.name)
    await _authorize(call, given, sends=bool(given["send"] or publish))
    lists = await apart(size, _read, call, given)
    if any(items.refused for items in lists.values()):
        committed = Committed(tuple([NotDone()] * count))
    else:
        commands = tuple(command for items in lists.values() for command in items.commands)
        answer = await call.services.perform(CommitTogether(call.account, commands, publish, name))
        assert isinstance(answer, Committed)
        committed = answer
    return call.reply(_shown(lists, committed))


async def _authorize(call: Call, given: dict[str, Sequence[Any]], *, sends: bool) -> None:
    """Ask for the rights that the parts need: the route asks for one of them only."""
    for needed, operation in (
        (sends, Operation.PUT_MESSAGE),
        (given["complete"] or given["release"], Operation.DELETE_MESSAGE),
        (given["renew"], Operation.UPDATE_MESSAGE),
    ):
        if needed:
            await call.authorize(call, operation, None)


def _read(call: Call, given: dict[str, Sequence[Any]]) -> dict[str, Items]:
    account = call.account
    reader = PutReader(call)

    def read_send(item: flow_shapes.QueuedPut) -> ItemCommand:
        return reader.read_one(item, os.urandom(ENTROPY_BYTES))

    def read_complete(item: flow_shapes.QueuedComplete) -> ItemCommand:
        reader.limit_of(item.queue)
        return Complete(account, item.queue, item.id, item.receipt)

    def read_released(item: flow_shapes.QueuedRelease) -> ItemCommand:
        reader.limit_of(item.queue)
        return read_release(item, account, item.queue)

    def read_renewed(item: flow_shapes.QueuedRenew) -> ItemCommand:
        return read_renew(item, call, item.queue, reader.limit_of(item.queue))

    readers: dict[str, Callable[[Any], ItemCommand]] = {
        "send": read_send,
        "complete": read_complete,
        "release": read_released,
        "renew": read_renewed,
    }
    lists = {}
    for name, read in readers.items():
        items = lists[name] = Items(f"$.{name}", given[name], least=0)
        for number, item in enumerate(given[name]):
            try:
                items.commands.append(read(item))
            except Refused as refused:
                items.refuse(number, refused)
    return lists


def _shown(lists: dict[str, Items], committed: Committed) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "already": committed.already,
        "published": committed.published,
        "duplicates": committed.duplicates,
        "settled": show_settled(committed.settled),
        "failed": 0,
    }
    if committed.already:
        return {**shown, **dict.fromkeys(lists, ())}
    for result in committed.results:
        if isinstance(result, Unavailable):
            raise result  # it has nothing to do with the single items
    results = iter(committed.results)
    for name, items in lists.items():
        own = tuple(islice(results, len(items.commands)))
        shown[name], failed = items.shown(own, _SHOWN[name])
        shown["failed"] += failed
    return shown
