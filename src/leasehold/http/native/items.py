"""Many items in one request: which are refused, which are carried out, and what is said of each.

All or nothing is one command of the engine. Otherwise the items go in parts, so that no single
command holds the engine for long.
"""

from __future__ import annotations

import binascii
import os
import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

import msgspec

from leasehold.domain.commands import REMOVE_SAVED, Batch, Complete, Duplicate, Put, Release, Renew
from leasehold.domain.errors import LeaseholdError, NotDone, QueueNotFound, Unavailable
from leasehold.domain.limits import (
    MAX_GROUP_ID,
    MAX_ITEMS,
    MAX_RESULT_BYTES,
    MAX_SAVED_BYTES,
    NATIVE,
    NEVER,
    PRIORITIES,
    WEEK_S,
)
from leasehold.domain.model import (
    DEFAULT_PRIORITY,
    ENTROPY_BYTES,
    NEVER_MS,
    NO_DETAIL,
    Detail,
    Lease,
)
from leasehold.http.native.call import (
    Call,
    queue_name,
    short_text,
    too_many,
    why_unreadable,
    within,
)
from leasehold.http.native.errors import Refused, invalid, item_problem, out_of_range, too_large
from leasehold.http.requests import Response
from leasehold.wire.messages import (
    MAX_PROPERTIES_BYTES,
    ItemResult,
    PutItem,
    PutResult,
    QueuedPut,
    Results,
)
from leasehold.wire.parts import ItemProblem, WithBody

PART: Final = 1_000
"""Items that go to the engine as one command."""

ItemCommand: TypeAlias = Put | Renew | Complete | Release


class Items:
    """The items of one request as they are read.

    Args:
        path: Place of the list in the request, such as ``$.messages``.
        given: The list.
        least: Items that it must have.

    Raises:
        Refused: There are too few, or more than MAX_ITEMS.
    """

    def __init__(self, path: str, given: Sequence[object], least: int = 1) -> None:
        self.path = path
        self.commands: list[ItemCommand] = []
        self.refused: dict[int, ItemProblem] = {}
        """The items that are no commands, by their number."""
        if not least <= len(given) <= MAX_ITEMS:
            raise too_many(path, len(given))

    def refuse(self, number: int, refused: Refused) -> None:
        """Note that an item is not carried out; fields are named as within the item."""
        field = refused.problem.field
        refused.problem.field = f"{self.path}[{number}]{'.' + field if field else ''}"
        self.refused[number] = ItemProblem(refused.problem)

    async def answer(
        self, call: Call, render: Callable[[Any, Any], ItemResult], *, atomic: bool | None
    ) -> Response:
        """Carry the items out and say what became of each.

        Args:
            call: The request.
            render: Makes an item's answer of its command and result.
            atomic: Whether one refused item keeps all others from being carried out.

        Raises:
            LeaseholdError: What is wrong with all of them, and not their own fault.
        """
        commands = self.commands
        if atomic and self.refused:
            results: Sequence[object] = [NotDone()] * len(commands)
        elif commands:
            results = await _perform(call, commands, atomic=bool(atomic))
            _raise_shared(results)
        else:
            results = ()
        return call.reply(Results(*self.shown(results, render)))

    def shown(
        self, results: Sequence[object], render: Callable[[Any, Any], ItemResult]
    ) -> tuple[list[ItemResult], int]:
        """Return what became of each item, and how many were refused.

        Args:
            results: Those of the commands.
            render: As for :meth:`answer`.
        """
        answers: list[ItemResult] = []
        for command, result in zip(self.commands, results, strict=True):
            if isinstance(result, LeaseholdError):
                # Its place is set below, when what was refused before has been put in between.
                answers.append(ItemProblem(item_problem(result)))
            else:
                answers.append(render(command, result))
        for number in sorted(self.refused):
            answers.insert(number, self.refused[number])
        failed = 0
        for number, answer in enumerate(answers):
            if type(answer) is ItemProblem:
                failed += 1
                if number not in self.refused:
                    answer.error.field = f"{self.path}[{number}]{answer.error.field}"
        return answers, failed


async def _perform(call: Call, commands: list[ItemCommand], *, atomic: bool) -> Sequence[object]:
    perform = call.services.perform
    actor = call.console_actor
    if len(commands) == 1 and actor is None:
        # As a command of its own it shares its statement with those of other requests.
        try:
            return [await perform(commands[0])]
        except LeaseholdError as error:
            return [error]
    results: list[object] = []
    step = len(commands) if atomic else PART
    for start in range(0, len(commands), step):
        part = tuple(commands[start : start + step])
        try:
            done = await perform(Batch(part, atomic, actor))
        except LeaseholdError as error:
            if not results:
                raise
            # What went before is done, and must be told.
            results += [error] * len(part)
        else:
            results += done
    return results


def _raise_shared(results: Sequence[object]) -> None:
    """Raise what has nothing to do with the single items, if all of them met it."""
    first = results[0]
    if isinstance(first, QueueNotFound | Unavailable) and all(
        type(result) is type(first) for result in results
    ):
        raise first


# --- puts --------------------------------------------------------------------------------------
#
# Messages to put, as JSON brings them; in requests of several kinds.


_READERS_DEPTH: Final = 200
"""How much deeper than here a reader of what was saved may be in its stack."""
_SHALLOW: Final = 100
"""So deep every reader reads, however deep it is in its stack."""
_MAX_DEPTH: Final = 700
"""How deep what is saved may be nested: Python 3.11 reads 1,000 levels, later ones many more."""
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_SURE: Final = 4
"""No character has more bytes."""
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def read_properties(field: str, properties: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the properties of a message.

    Raises:
        Refused: Together they are larger than MAX_PROPERTIES_BYTES.
    """
    if not properties:
        return {}
    size = 0
    for name, value in properties.items():
        size += len(name.encode()) + len(value.encode())
    if size > MAX_PROPERTIES_BYTES:
        raise out_of_range(
            field,
            size,
            (0, MAX_PROPERTIES_BYTES),
            "The limit is the number of bytes of all names and values: shorten them, or move them "
            "to the body.",
        )
    return properties


def body_limit(call: Call, queue: str) -> int:
    """Return how many bytes the body of a message in a queue of the account may have."""
    found = call.services.find_queue(call.account, queue)
    limit = None if found is None else found.settings.max_body_bytes
    return NATIVE.body_bytes if limit is None else limit


def trace_of(call: Call) -> Detail:
    """Return what is sent along with messages that bring nothing: the trace of the request."""
    header = call.request.headers.get("traceparent")
    # The header is another party's business, so a wrong one is ignored.
    if header and _TRACEPARENT.fullmatch(header):
        return Detail(traceparent=header)
    return NO_DETAIL


def body_of(item: WithBody, prefix: str = "", limit_bytes: int = NATIVE.body_bytes) -> bytes | None:
    """Return the body that *item* brings, None if it brings none.

    Args:
        item: What may bring one.
        prefix: What goes before the name of a member in a refusal.
        limit_bytes: Largest body in bytes, 1 or more; see :func:`body_limit`.

    Raises:
        Refused: It brings two, one that is not base64, or one that is too large.
    """
    text, encoded = item.body, item.body_base64
    raw = bytes(item.json) if item.json else b""
    if raw == b"null":
        raw = b""
    if (text is not None) + (encoded is not None) + bool(raw) > 1:
        raise invalid(None, "Send only one of `body`, `body_base64` and `json`.")
    if text is not None:
        name, body = "body", text.encode()
    elif encoded is not None:
        name, body = "body_base64", _decode_base64(prefix, encoded)
    elif raw:
        name, body = "json", _compact(prefix, raw)
    else:
        return None
    if len(body) > limit_bytes:
        raise too_large(prefix + name, len(body), limit_bytes)
    return body


def _is_too_deep(text: bytes, at_most: int) -> bool:
    """Return whether *text* is too deep; *at_most* is how deep it can be."""
    if at_most <= _MAX_DEPTH:
        return False
    steps = ((each in b"[{") - (each in b"]}") for each in _STRING.sub(b"", text))
    return max(accumulate(steps)) > _MAX_DEPTH


def saved_of(field: str, raw: msgspec.Raw) -> str:
    """Return what a holder wants saved, without blanks; REMOVE_SAVED for ``null``.

    Raises:
        Refused: It cannot be read as JSON, also by readers deeper in their stack, or is too large.
    """
    text = _plain_json(
        field, raw, MAX_SAVED_BYTES, "save less, or store it elsewhere and save its location"
    )
    return REMOVE_SAVED if text is None else text


def result_of(field: str, raw: msgspec.Raw | msgspec.UnsetType) -> str | None:
    """Return what a holder says came of its work, without blanks; None for nothing.

    Raises:
        Refused: As for :func:`saved_of`.
    """
    if not raw:
        return None
    hint = "send less, or store it elsewhere and send its location"
    return _plain_json(field, raw, MAX_RESULT_BYTES, hint)


def _plain_json(field: str, raw: msgspec.Raw, most: int, hint: str) -> str | None:
    text = bytes(raw)
    if text == b"null":
        return None
    at_most = text.count(b"[") + text.count(b"{")
    if _is_too_deep(text, at_most):
        raise invalid(field, f"`{field}` cannot be read as JSON: it is nested too deeply.")
    try:
        if at_most > _SHALLOW:  # to try it takes ten times as long as to read what is usual
            msgspec.json.decode(b"[" * _READERS_DEPTH + text + b"]" * _READERS_DEPTH)
        else:
            msgspec.json.decode(text)
        compact = msgspec.json.format(text, indent=-1).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(
            field, f"`{field}` cannot be read as JSON: {why_unreadable(error)}."
        ) from None
    size = len(compact.encode())
    if size > most:
        raise out_of_range(
            field,
            size,
            (0, most),
            f"The limit is a number of bytes of JSON without blanks: {hint}.",
        )
    return compact


def _decode_base64(prefix: str, encoded: str) -> bytes:
    try:
        return b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"{prefix}body_base64", "`body_base64` is not base64.") from None


def _compact(prefix: str, raw: bytes) -> bytes:
    """Return JSON without the blanks around its parts; numbers stay as they were written."""
    try:
        raw.decode()
        return msgspec.json.format(raw, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = why_unreadable(error)
        raise invalid(f"{prefix}json", f"`json` cannot be read as JSON: {reason}.") from None


def read_put(
    item: PutItem, along: Detail, limit_bytes: int
) -> tuple[bytes, int, int | None, Detail, int]:
    """Return body, delay, time to live, what is sent along and priority of one message.

    Args:
        item: The message.
        along: What is sent along if it brings nothing; see :func:`trace_of`.
        limit_bytes: Largest body.

    Raises:
        Refused: Something about it will not do. The field is named as within the item.
    """
    text = item.body
    if text is None or item.body_base64 is not None or item.json or len(text) * _SURE > limit_bytes:
        body = _required_body(item, limit_bytes)
    else:
        body = text.encode()
    life_s = item.time_to_live_s
    if life_s is None:
        life_s = WEEK_S
    elif life_s == NEVER:
        life_s = None
    else:
        within("time_to_live_s", life_s, NATIVE.time_to_live_s)
    delay_s, priority = item.delay_s, item.priority
    if delay_s is None:
        delay_s = 0
    else:
        within("delay_s", delay_s, NATIVE.delay_s)
    if priority is None:
        priority = DEFAULT_PRIORITY
    else:
        within("priority", priority, PRIORITIES)
    if (
        item.dedup_key is not None
        or item.type is not None
        or item.properties
        or item.traceparent is not None
        or item.group_id is not None
        or item.visibility_timeout_s is not None
    ):
        along = _detail_of(item, along.traceparent)
    return body, delay_s, life_s, along, priority


def _required_body(item: PutItem, limit_bytes: int) -> bytes:
    body = body_of(item, limit_bytes=limit_bytes)
    if body is None:
        raise invalid(None, "The message has none of `body`, `body_base64` and `json`.")
    return body


def _detail_of(item: PutItem, trace: str | None) -> Detail:
    own = item.traceparent
    if own is not None:
        check_trace("traceparent", own)
    return Detail(
        properties=read_properties("properties", item.properties),
        message_type=short_text("type", item.type),
        traceparent=own or trace,
        dedup_key=short_text("dedup_key", item.dedup_key),
        group_id=short_text("group_id", item.group_id, MAX_GROUP_ID),
        visibility_timeout_s=own_timeout(item.visibility_timeout_s),
    )


def own_timeout(seconds: int | None) -> int | None:
    """Return the visibility timeout that a producer asks for; what is too much the store says.

    Raises:
        Refused: No lease is so long or so short.
    """
    if seconds is None:
        return None
    return within("visibility_timeout_s", seconds, NATIVE.lease_s)


def check_trace(field: str, trace: str) -> None:
    """Check a trace context that a message brings.

    Raises:
        Refused: It is none of W3C's.
    """
    if _TRACEPARENT.fullmatch(trace) is None:
        raise invalid(field, f"`{field}` is not a W3C trace context.", value=trace)


class PutReader:
    """Reads messages that each name their queue.

    Args:
        call: The request.
    """

    def __init__(self, call: Call) -> None:
        self.account = call.account
        self.along = trace_of(call)
        """What is sent along with a message that brings nothing."""
        self._call = call
        self._limits: dict[str, int] = {}

    def read(self, path: str, given: Sequence[QueuedPut]) -> tuple[Put, ...]:
        """Return the commands of all messages.

        Args:
            path: Place of the list in the request, such as ``$.sends``.
            given: The list.

        Raises:
            Refused: One of them will not do.
        """
        entropy = os.urandom(ENTROPY_BYTES * len(given))
        puts = []
        for place, item in enumerate(given):
            at = place * ENTROPY_BYTES
            try:
                puts.append(self.read_one(item, entropy[at : at + ENTROPY_BYTES]))
            except Refused as refused:
                field = refused.problem.field
                refused.problem.field = f"{path}[{place}]{'.' + field if field else ''}"
                raise
        return tuple(puts)

    def read_one(self, item: QueuedPut, entropy: bytes) -> Put:
        """Return the command of one message.

        Raises:
            Refused: It will not do. The field is named as within the item.
        """
        queue = item.queue
        limit_bytes = self.limit_of(queue)
        body, delay_s, life_s, detail, priority = read_put(item, self.along, limit_bytes)
        return Put(self.account, queue, body, delay_s, life_s, entropy, detail, priority)

    def limit_of(self, queue: str) -> int:
        """Return how many bytes a body may have.

        Raises:
            Refused: No queue can be called so.
        """
        limit_bytes = self._limits.get(queue)
        if limit_bytes is None:
            limit_bytes = body_limit(self._call, queue_name("queue", queue))
            self._limits[queue] = limit_bytes
        return limit_bytes


def expiry(expires_at_ms: int) -> int | None:
    """Return when a message expires, None for never."""
    return None if expires_at_ms >= NEVER_MS else expires_at_ms


def show_put(_: Put, result: Lease | Duplicate) -> PutResult:
    """Return what a put tells of a message."""
    if type(result) is Lease:
        message, receipt = result
        return PutResult(
            message.message_id,
            message.inserted_at_ms,
            expiry(message.expires_at_ms),
            message.visible_at_ms,
            receipt,
        )
    assert isinstance(result, Duplicate)
    return PutResult(
        result.message_id,
        result.inserted_at_ms,
        expiry(result.expires_at_ms),
        result.visible_at_ms,
        result.receipt,
        duplicate=True,
    )
