"""The operations on queues, and on the account.

Source: MNS, "Queue API", operations on queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from leasehold.domain.command import Perform
from leasehold.domain.commands import (
    CreateQueue,
    DeleteQueue,
    GetAccountDocument,
    GetQueue,
    ListQueues,
    QueueInfo,
    SetAccountDocument,
    SetQueueSettings,
)
from leasehold.domain.errors import InvalidMarker, InvalidQueueName, QueueExists, QueueNotFound
from leasehold.domain.limits import MNS, check_queue_name
from leasehold.domain.model import Queue
from leasehold.domain.queue_settings import LapsedReceipts, MnsAttributes, QueueSettings
from leasehold.http.mns.call import Call, whole_number
from leasehold.http.mns.errors import invalid_argument
from leasehold.http.mns.messages import DEFAULTS, WAIT_S
from leasehold.http.mns.xml import (
    check_root,
    document,
    element,
    elements,
    fields_of,
    parent,
    read_root,
    text_of,
)
from leasehold.http.requests import Response
from leasehold.http.xml import Element

MAX_RESULTS: Final = 1_000
LOGGING_BUCKET: Final = "LoggingBucket"

_DOCUMENT: Final = "mns-logging-bucket"
_MAX_BUCKET_CHARS: Final = 256
_AT_ONCE: Final = 64
"""Queues that a list with attributes looks at together."""


class Services(NamedTuple):
    """What operations that are more than one command need."""

    perform: Perform
    find_queue: Callable[[str, str], Queue | None]
    receipts: LapsedReceipts
    """The rule of queues that are made."""


Action: TypeAlias = Callable[[Call, Services], Awaitable[Response]]


def _sent_attributes(call: Call) -> dict[str, Any]:
    if not call.request.body:
        return {}
    root = call.root or read_root(call.request.body)
    check_root(root, "Queue")
    return read_attributes(root)


def _actor(call: Call) -> str:
    """Return who asks, for the event log: all that is known is that it has the account's key."""
    return f"key:{call.account}"


async def create(call: Call, services: Services) -> Response:
    """Answer CreateQueue: a queue that is there must have the attributes that are sent."""
    sent = _sent_attributes(call)
    account, name = call.account, call.route.queue
    location = (b"Location", f"{call.origin}/queues/{name}".encode("ascii"))
    found = call.found
    if found is None:
        settings = new_settings(sent, services.receipts)
        made = await services.perform(CreateQueue(account, name, {}, settings, actor=_actor(call)))
        if made.created:
            return call.reply(201, location)
        found = services.find_queue(account, name)  # another request was faster
    if found is None or not has_attributes(found, sent):
        raise QueueExists
    return call.reply(204, location)


async def set_attributes(call: Call, services: Services) -> Response:
    """Answer SetQueueAttributes: what is not sent stays."""
    sent = _sent_attributes(call)
    found = call.found
    if found is None:
        raise QueueNotFound
    settings = with_attributes(found.settings, sent, call.now_ms)
    await services.perform(SetQueueSettings(call.account, call.route.queue, settings, _actor(call)))
    return call.reply(204)


def parse_get_attributes(call: Call) -> GetQueue:
    """Read GetQueueAttributes."""
    return GetQueue(call.account, call.route.queue, with_counts=True)


def render_attributes(call: Call, info: QueueInfo) -> Response:
    """Write the answer to GetQueueAttributes."""
    return call.reply_xml(200, document(b"Queue", elements(shown_attributes(info))))


def parse_delete(call: Call) -> DeleteQueue:
    """Read DeleteQueue."""
    return DeleteQueue(call.account, call.route.queue, _actor(call))


async def list_queues(call: Call, services: Services) -> Response:
    """Answer ListQueue; with attributes each queue is looked at by itself."""
    headers = call.request.headers
    limit = whole_number(
        "x-mns-ret-number", headers.get("x-mns-ret-number") or str(MAX_RESULTS), (1, MAX_RESULTS)
    )
    start = headers.get("x-mns-marker", "")
    if start:
        try:
            check_queue_name(start)
        except InvalidQueueName:
            raise InvalidMarker from None
    prefix = headers.get("x-mns-prefix", "")
    page = await services.perform(ListQueues(call.account, prefix, start, limit))
    if headers.get("x-mns-with-meta", "").lower() == "true":
        infos = await _looked_at(page.queues, services)
        entries = [_entry(call, info.queue.name, info) for info in infos]
    else:
        entries = [_entry(call, queue.name) for queue in page.queues]
    if page.next_start is not None:
        entries.append(element("NextMarker", page.next_start))
    return call.reply_xml(200, document(b"Queues", *entries))


async def _looked_at(queues: tuple[Queue, ...], services: Services) -> list[QueueInfo]:
    """Look at queues, without those that are deleted meanwhile."""
    infos: list[QueueInfo] = []
    for start in range(0, len(queues), _AT_ONCE):
        asked = [
            services.perform(GetQueue(queue.account, queue.name, with_counts=True))
            for queue in queues[start : start + _AT_ONCE]
        ]
        for result in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(result, QueueNotFound):
                continue
            if isinstance(result, BaseException):
                raise result
            infos.append(result)
    return infos


def _entry(call: Call, name: str, info: QueueInfo | None = None) -> bytes:
    fields = element("QueueURL", f"{call.origin}/queues/{name}", b"    ")
    if info is not None:
        fields += elements(shown_attributes(info), b"    ")
    return parent("Queue", fields)


# --- the account ---------------------------------------------------------------------------------


async def get_account(call: Call, services: Services) -> Response:
    """Answer GetAccountAttributes."""
    kept = await services.perform(GetAccountDocument(call.account, _DOCUMENT))
    bucket = kept.content or ""
    return call.reply_xml(200, document(b"Account", element(LOGGING_BUCKET, bucket)))


async def set_account(call: Call, services: Services) -> Response:
    """Answer SetAccountAttributes: the name of a bucket is kept, and nothing is written there."""
    root = call.root or read_root(call.request.body)
    check_root(root, "Account")
    fields = fields_of(root)
    if LOGGING_BUCKET in fields:
        bucket = text_of(fields[LOGGING_BUCKET])
        if len(bucket) > _MAX_BUCKET_CHARS:
            raise invalid_argument(
                f"The {LOGGING_BUCKET} has more than {_MAX_BUCKET_CHARS} characters."
            )
        await services.perform(SetAccountDocument(call.account, _DOCUMENT, bucket))
    return call.reply(204)


# --- attributes --------------------------------------------------------------------------------
#
# Attributes of a queue, in the protocol's words and in the settings of the queue.
#
# Source: MNS, "CreateQueue" and "GetQueueAttributes", tables of attributes.


VISIBILITY: Final = "VisibilityTimeout"
SIZE: Final = "MaximumMessageSize"
RETENTION: Final = "MessageRetentionPeriod"
DELAY: Final = "DelaySeconds"
WAIT: Final = "PollingWaitSeconds"
LOGGING: Final = "LoggingEnabled"

RANGES: Final[Mapping[str, tuple[int, int]]] = {
    VISIBILITY: MNS.lease_s,
    SIZE: (1_024, MNS.body_bytes),
    RETENTION: MNS.time_to_live_s,
    DELAY: MNS.delay_s,
    WAIT: WAIT_S,
}
"""What can be set, in seconds or bytes."""

_IN_MNS: Final = {DELAY: "delay_s", RETENTION: "time_to_live_s", WAIT: "wait_s"}
_SWITCH: Final = {"true": True, "false": False}
_FIFO: Final = "fifo"


def read_attributes(root: Element) -> dict[str, Any]:
    """Return the attributes that a document sets, by name; what it does not name stays.

    Raises:
        Fault: A value cannot be read, or asks for a queue that keeps an order.
        OutOfRange: A value is outside its range.
    """
    fields = fields_of(root)
    sent: dict[str, Any] = {
        name: whole_number(name, text_of(fields[name]), bounds)
        for name, bounds in RANGES.items()
        if name in fields
    }
    if LOGGING in fields:
        text = text_of(fields[LOGGING]).lower()
        if text not in _SWITCH:
            raise invalid_argument(f"The value of {LOGGING} must be True or False.")
        sent[LOGGING] = _SWITCH[text]
    for name in ("QueueType", "MessageType"):
        if name in fields and text_of(fields[name]).lower() == _FIFO:
            raise invalid_argument("This server has no queues that keep the order of messages.")
    return sent


def new_settings(sent: Mapping[str, Any], rule: LapsedReceipts) -> QueueSettings:
    """Return the settings of a queue that is made with these attributes.

    Raises:
        Fault: Every message would expire before it can be received.
    """
    settings = QueueSettings(lapsed_receipts=rule, mns=DEFAULTS)
    return with_attributes(settings, sent, None)


def with_attributes(
    settings: QueueSettings, sent: Mapping[str, Any], now_ms: int | None
) -> QueueSettings:
    """Return settings with some attributes changed, at *now_ms*.

    Raises:
        Fault: Every message would expire before it can be received.
    """
    changes = {field: sent[name] for name, field in _IN_MNS.items() if name in sent}
    if LOGGING in sent:
        changes["logging_enabled"] = sent[LOGGING]
    attributes = replace(settings.mns or DEFAULTS, **changes, modified_at_ms=now_ms)
    if (DELAY in sent or RETENTION in sent) and attributes.delays_past_expiry():
        raise invalid_argument(
            f"The {DELAY}, {attributes.delay_s}, must be less than the {RETENTION}, "
            f"{attributes.time_to_live_s}: messages would expire before they can be received."
        )
    return replace(
        settings,
        visibility_timeout_s=sent.get(VISIBILITY, settings.visibility_timeout_s),
        max_body_bytes=sent.get(SIZE, settings.max_body_bytes),
        mns=attributes,
    )


def has_attributes(queue: Queue, sent: Mapping[str, Any]) -> bool:
    """Tell whether a queue that is there has all attributes that were sent for it."""
    own = _values(queue.settings)
    return all(own[name] == value for name, value in sent.items())


def _values(settings: QueueSettings) -> dict[str, Any]:
    attributes = settings.mns or DEFAULTS
    return {
        VISIBILITY: settings.lease_s(),
        SIZE: settings.max_body_bytes or MNS.body_bytes,
        RETENTION: attributes.time_to_live_s,
        DELAY: attributes.delay_s,
        WAIT: attributes.wait_s,
        LOGGING: attributes.logging_enabled,
    }


def shown_attributes(info: QueueInfo) -> Iterable[tuple[str, str]]:
    """Return all attributes of a queue, in the order of the service.

    A message that waits for its next try is among the inactive ones, as it was received before.
    """
    queue, counts = info.queue, info.counts
    assert counts is not None
    values = _values(queue.settings)
    attributes: MnsAttributes = queue.settings.mns or DEFAULTS
    modified_ms = attributes.modified_at_ms or queue.created_at_ms
    return (
        ("QueueName", queue.name),
        (DELAY, str(values[DELAY])),
        (SIZE, str(values[SIZE])),
        (RETENTION, str(values[RETENTION])),
        (VISIBILITY, str(values[VISIBILITY])),
        ("CreateTime", str(queue.created_at_ms // 1000)),
        ("LastModifyTime", str(modified_ms // 1000)),
        (WAIT, str(values[WAIT])),
        ("ActiveMessages", str(counts.visible)),
        ("InactiveMessages", str(counts.leased + counts.deferred)),
        ("DelayMessages", str(counts.delayed)),
        (LOGGING, str(values[LOGGING])),
        ("MessageType", "0"),
        ("EnableSSE", "False"),
    )
