"""The operations on queues, and on the account.

Source: MNS, "Queue API", operations on queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias, cast

from leasehold.domain.commands import (
    AccountDocument,
    Command,
    CreateQueue,
    DeleteQueue,
    GetAccountDocument,
    GetQueue,
    ListQueues,
    QueueCreated,
    QueueInfo,
    QueuePage,
    Result,
    SetAccountDocument,
    SetQueueSettings,
)
from leasehold.domain.errors import InvalidMarker, InvalidQueueName, QueueExists, QueueNotFound
from leasehold.domain.limits import check_queue_name
from leasehold.domain.queue_settings import LapsedReceipts
from leasehold.domain.types import Queue
from leasehold.http.messages import Response
from leasehold.http.mns.attributes import (
    has_attributes,
    new_settings,
    read_attributes,
    shown_attributes,
    with_attributes,
)
from leasehold.http.mns.call import Call
from leasehold.http.mns.errors import invalid_argument
from leasehold.http.mns.parameters import whole_number
from leasehold.http.mns.xml_in import check_root, fields_of, read_root, text_of
from leasehold.http.mns.xml_out import document, element, elements, parent

MAX_RESULTS: Final = 1_000
LOGGING_BUCKET: Final = "LoggingBucket"

_DOCUMENT: Final = "mns-logging-bucket"
_MAX_BUCKET_CHARS: Final = 256
_AT_ONCE: Final = 64
"""Queues that a list with attributes looks at together."""


class Services(NamedTuple):
    """What operations that are more than one command need."""

    perform: Callable[[Command], Awaitable[Result]]
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


async def create(call: Call, services: Services) -> Response:
    """Answer CreateQueue: a queue that is there must have the attributes that are sent."""
    sent = _sent_attributes(call)
    account, name = call.account, call.route.queue
    location = (b"Location", f"{call.origin}/queues/{name}".encode("ascii"))
    found = call.found
    if found is None:
        settings = new_settings(sent, services.receipts)
        made = await services.perform(CreateQueue(account, name, {}, settings))
        if cast("QueueCreated", made).created:
            return call.reply(201, location)
        found = services.find_queue(account, name)  # somebody else was faster
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
    await services.perform(SetQueueSettings(call.account, call.route.queue, settings))
    return call.reply(204)


def parse_get_attributes(call: Call) -> GetQueue:
    """Read GetQueueAttributes."""
    return GetQueue(call.account, call.route.queue, with_counts=True)


def render_attributes(call: Call, info: QueueInfo) -> Response:
    """Write the answer to GetQueueAttributes."""
    return call.reply_xml(200, document(b"Queue", elements(shown_attributes(info))))


def parse_delete(call: Call) -> DeleteQueue:
    """Read DeleteQueue."""
    return DeleteQueue(call.account, call.route.queue)


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
    page = cast("QueuePage", await services.perform(ListQueues(call.account, prefix, start, limit)))
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
            infos.append(cast("QueueInfo", result))
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
    bucket = cast("AccountDocument", kept).content or ""
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
