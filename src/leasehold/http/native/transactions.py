"""Staged sends: stage, publish, discard, look."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from leasehold.auth.types import Operation
from leasehold.domain.commands import Put
from leasehold.domain.errors import NotDone, Unavailable
from leasehold.domain.limits import (
    DEFAULT_STAGING_TIMEOUT_S,
    MAX_ITEMS,
    MAX_PUBLISHED_PARTS,
    STAGING_TIMEOUTS_S,
)
from leasehold.domain.model import ENTROPY_BYTES
from leasehold.domain.transactions import (
    Committed,
    CommitTogether,
    Discard,
    GetTransaction,
    ListTransactions,
    Publish,
    Stage,
    Transaction,
    TransactionState,
)
from leasehold.http.native.call import (
    ARROW,
    BatchReader,
    Call,
    apart,
    arrow_module,
    checked_name,
    param_int,
    published_names,
    queue_name,
    read_body,
    too_many,
    within,
)
from leasehold.http.native.errors import Refused, invalid, out_of_range
from leasehold.http.native.items import ItemCommand, Items, PutReader, show_put
from leasehold.http.native.messages import (
    read_complete,
    read_release,
    read_renew,
    show_completion,
    show_release,
    show_renewal,
)
from leasehold.http.native.queues import DEFAULT_PAGE, MAX_PAGE
from leasehold.http.native.streams import show_settled
from leasehold.http.requests import Response
from leasehold.wire import flows as wire
from leasehold.wire import messages
from leasehold.wire.flows import CHUNKS
from leasehold.wire.parts import MAX_NAME

_ARROW: Final = ARROW.decode("ascii")
_ARROW_AT_ONCE_BYTES: Final = 128 * 1024
"""A stream of so many bytes is read in a few milliseconds."""
_STATES: Final = tuple(state.value for state in TransactionState)
_STAGE: Final = BatchReader(wire.StageRequest, messages=messages.QueuedPut)
_PARTS: Final = msgspec.json.Decoder(wire.PartsRequest)


def _show(transaction: Transaction) -> wire.TransactionInfo:
    return wire.TransactionInfo(
        name=transaction.name,
        state=transaction.state,
        created_at_ms=transaction.created_at_ms,
        until_ms=transaction.until_ms,
        rows=transaction.rows,
        duplicates=transaction.duplicates,
        parts=tuple(wire.StagedPart(p.part, p.rows, p.chunks) for p in transaction.parts),
        claims=tuple(wire.BoundClaim(*each) for each in transaction.claims),
    )


# --- staging -------------------------------------------------------------------------------------


async def stage(call: Call) -> Response:
    """Put messages that no consumer sees yet."""
    if _brings_arrow(call):
        command = await _stage_of_arrow(call)
    else:
        _refuse_params(call)
        command = await apart(len(call.request.body), _stage_of_json, call)
    staged = await call.services.perform(command)
    return call.reply(wire.Staged(*staged))


def _brings_arrow(call: Call) -> bool:
    """Tell whether the body of a request is an Arrow stream; anything else is taken as JSON."""
    kind = call.request.headers.get("content-type", "").partition(";")[0]
    return kind.strip().lower() == _ARROW


def _stage_of_json(call: Call) -> Stage:
    request = _STAGE.read(call)
    given = request.messages
    if len(given) > MAX_ITEMS:
        raise too_many("$.messages", len(given))
    puts = PutReader(call).read("$.messages", given)
    return _checked(call, "$.", _Chunk(request.part, request.chunk, request.timeout_s, puts))


async def _stage_of_arrow(call: Call) -> Stage:
    read_puts = (await arrow_module("arrow-not-taken")).read_puts
    params = call.params
    part, chunk = params.get("part"), param_int(call, "chunk", CHUNKS)
    if part is None or chunk is None:
        field = "chunk" if chunk is None else "part"
        raise invalid(field, f"`{field}` is missing in the query.")
    queue = params.get("queue") or None
    if queue is not None:
        queue_name("queue", queue)
    content = call.request.body
    read = partial(read_puts, content, PutReader(call), queue)
    puts = await apart(len(content), read, at_once_bytes=_ARROW_AT_ONCE_BYTES)
    timeout_s = param_int(call, "timeout_s", STAGING_TIMEOUTS_S)
    return _checked(call, "", _Chunk(part, chunk, timeout_s, puts))


class _Chunk(NamedTuple):
    part: str
    chunk: int
    timeout_s: int | None
    puts: Sequence[Put]


def _checked(call: Call, prefix: str, given: _Chunk) -> Stage:
    part, chunk, timeout_s, puts = given
    _check_part(f"{prefix}part", part)
    within(f"{prefix}chunk", chunk, CHUNKS)
    if timeout_s is None:
        timeout_s = DEFAULT_STAGING_TIMEOUT_S
    within(f"{prefix}timeout_s", timeout_s, STAGING_TIMEOUTS_S)
    return Stage(call.account, checked_name("name", call.item), part, chunk, puts, timeout_s)


def _refuse_params(call: Call) -> None:
    """Refuse a query that only Arrow has: in JSON the body says it all."""
    for name in call.params:
        raise invalid(name, f"`{name}` is a member of the body, where that is JSON.")


def _check_part(field: str, part: str) -> None:
    if len(part) > MAX_NAME:
        raise out_of_range(
            field,
            len(part),
            (0, MAX_NAME),
            f"The limit is a number of characters: shorten `{field}`.",
        )


# --- publishing ----------------------------------------------------------------------------------


async def publish(call: Call) -> Response:
    """Make staged messages visible."""
    name = checked_name("name", call.item)
    command = Publish(call.account, name, _parts_of(call), call.console_actor)
    published = await call.services.perform(command)
    settled = show_settled(published.settled)
    return call.reply(
        wire.Published(published.rows, published.duplicates, published.already, settled)
    )


async def discard(call: Call) -> Response:
    """Drop what is staged."""
    name = checked_name("name", call.item)
    command = Discard(call.account, name, _parts_of(call), call.console_actor)
    discarded = await call.services.perform(command)
    return call.reply(wire.Discarded(*discarded))


def _parts_of(call: Call) -> tuple[str, ...] | None:
    """Return the parts that a request names; None for all."""
    parts = read_body(_PARTS, call).parts
    if parts is None:
        return None
    if len(parts) > MAX_PUBLISHED_PARTS:
        raise out_of_range(
            "$.parts",
            len(parts),
            (0, MAX_PUBLISHED_PARTS),
            "The limit is a number of parts: name fewer.",
        )
    for number, part in enumerate(parts):
        _check_part(f"$.parts[{number}]", part)
    return tuple(parts)


# --- looking -------------------------------------------------------------------------------------


async def get(call: Call) -> Response:
    """Look at a transaction."""
    command = GetTransaction(call.account, checked_name("name", call.item))
    transaction = await call.services.perform(command)
    return call.reply(_show(transaction))


async def list_transactions(call: Call) -> Response:
    """List transactions by name."""
    limit = param_int(call, "limit", (1, MAX_PAGE)) or DEFAULT_PAGE
    command = ListTransactions(call.account, _state_of(call), limit)
    transactions = await call.services.perform(command)
    return call.reply(wire.Transactions([*map(_show, transactions)]))


def _state_of(call: Call) -> TransactionState | None:
    text = call.params.get("state")
    if not text:
        return None
    if text not in _STATES:
        raise _no_state(text)
    return TransactionState(text)


def _no_state(text: str) -> Refused:
    return invalid("state", f"`state` is one of {', '.join(_STATES)}.", value=text)


# --- commits -----------------------------------------------------------------------------------
#
# Commits: messages sent, completed, given back and renewed, in any queues, as one.


_COMMIT: Final = BatchReader(
    wire.CommitRequest,
    send=messages.QueuedPut,
    complete=messages.QueuedComplete,
    release=messages.QueuedRelease,
    renew=messages.QueuedRenew,
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
        raise invalid("$", "The request contains nothing to commit.")
    name = None if request.name is None else checked_name("$.name", request.name)
    await _authorize(call, given, sends=bool(given["send"] or publish))
    lists = await apart(size, _read, call, given)
    if any(items.refused for items in lists.values()):
        committed = Committed(tuple([NotDone()] * count))
    else:
        commands = tuple(command for items in lists.values() for command in items.commands)
        answer = await call.services.perform(CommitTogether(call.account, commands, publish, name))
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

    def read_send(item: messages.QueuedPut) -> ItemCommand:
        return reader.read_one(item, os.urandom(ENTROPY_BYTES))

    def read_completed(item: messages.QueuedComplete) -> ItemCommand:
        reader.limit_of(item.queue)
        return read_complete(item, account, item.queue)

    def read_released(item: messages.QueuedRelease) -> ItemCommand:
        reader.limit_of(item.queue)
        return read_release(item, account, item.queue)

    def read_renewed(item: messages.QueuedRenew) -> ItemCommand:
        return read_renew(item, call, item.queue, reader.limit_of(item.queue))

    readers: dict[str, Callable[[Any], ItemCommand]] = {
        "send": read_send,
        "complete": read_completed,
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


def _shown(lists: dict[str, Items], committed: Committed) -> wire.Committed[messages.ItemResult]:
    shown = wire.Committed[messages.ItemResult](
        already=committed.already,
        published=committed.published,
        duplicates=committed.duplicates,
        settled=show_settled(committed.settled),
    )
    if committed.already:
        return shown
    for result in committed.results:
        if isinstance(result, Unavailable):
            raise result  # it has nothing to do with the single items
    results = iter(committed.results)
    for name, items in lists.items():
        own = tuple(islice(results, len(items.commands)))
        answers, failed = items.shown(own, _SHOWN[name])
        setattr(shown, name, answers)
        shown.failed += failed
    return shown
