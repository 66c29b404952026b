"""Sends and deletes of several messages in one request.

Each entry is carried out or refused by itself. If any is refused, the answer has the status of the
first refusal: clients take every answer with a status below 400 for full success. What concerns the
request as a whole is told as a plain error.

Source: MNS, "BatchSendMessage" and "BatchDeleteMessage".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias, cast

from leasehold.domain.commands import Batch, Command, Complete, Duplicate, Put, Result
from leasehold.domain.errors import LeaseholdError, QueueNotFound, ReceiptMalformed, Unavailable
from leasehold.domain.limits import MNS
from leasehold.domain.types import Lease
from leasehold.http.digests import digesting
from leasehold.http.messages import Response
from leasehold.http.mns.call import Call
from leasehold.http.mns.errors import Fault, fault_of, invalid_argument
from leasehold.http.mns.handles import read_handle
from leasehold.http.mns.messages import read_put, render_sent, sent_fields
from leasehold.http.mns.routing import Operation
from leasehold.http.mns.xml_in import check_root, children_named, read_root, text_of
from leasehold.http.mns.xml_out import document, elements, parent
from leasehold.http.xml_tree import Element

MAX_ENTRIES: Final = MNS.receive_count[1]

Perform: TypeAlias = Callable[[Command], Awaitable[Result]]
_Entry: TypeAlias = Put | Complete | Fault


async def send(call: Call, perform: Perform) -> Response:
    """Answer SendMessage or BatchSendMessage; the root of the document says which it is."""
    entries = _read_send(call)
    if isinstance(entries, Put):
        body, sent = entries.body, cast("Lease | Duplicate", await perform(entries))
        return await digesting(len(body), render_sent, call, sent, body)
    results = await _carry_out(call, entries, perform)
    failed = _first_failure(results)
    if failed is None:
        written = [_sent(result, entry) for result, entry in zip(results, entries, strict=True)]
        return call.reply_xml(201, document(b"Messages", *written))
    # Clients insist on exactly two elements for each message here.
    written = [
        parent("Message", elements(_told(result), b"    "))
        if isinstance(result, Fault)
        else _sent(result, entry, brief=True)
        for result, entry in zip(results, entries, strict=True)
    ]
    return call.reply_xml(failed.status, document(b"Messages", *written), *failed.headers)


def _read_send(call: Call) -> Put | list[_Entry]:
    """Read a send; the tree of its document is not kept while the send is carried out."""
    root = call.root or read_root(call.request.body)
    if check_root(root, "Message", "Messages") == "Message":
        return read_put(call, root)
    call.operation = Operation.BATCH_SEND_MESSAGE
    entries: list[_Entry] = [_entry(call, node) for node in _nodes(root, "Message")]
    _check_size(call, entries)
    return entries


async def delete(call: Call, perform: Perform) -> Response:
    """Answer BatchDeleteMessage."""
    handles = _read_handles(call)
    results = await _carry_out(call, [_completion(call, each) for each in handles], perform)
    failed = _first_failure(results)
    if failed is None:
        return call.reply(204)
    written = [
        parent("Error", elements((*_told(result), ("ReceiptHandle", handle)), b"    "))
        for result, handle in zip(results, handles, strict=True)
        if isinstance(result, Fault)
    ]
    return call.reply_xml(failed.status, document(b"Errors", *written), *failed.headers)


def _read_handles(call: Call) -> list[str]:
    root = call.root or read_root(call.request.body)
    check_root(root, "ReceiptHandles")
    return [text_of(node) for node in _nodes(root, "ReceiptHandle")]


def _nodes(root: Element, name: str) -> Sequence[Element]:
    nodes = children_named(root, name)
    if not 1 <= len(nodes) <= MAX_ENTRIES:
        raise invalid_argument(f"A batch has 1 to {MAX_ENTRIES} entries.")
    return nodes


def _entry(call: Call, node: Element) -> Put | Fault:
    try:
        return read_put(call, node)
    except Fault as fault:
        return fault
    except LeaseholdError as error:
        return fault_of(error)


def _check_size(call: Call, entries: Sequence[_Entry]) -> None:
    """Refuse a batch whose bodies together are larger than the largest single one."""
    largest = None if call.found is None else call.found.settings.max_body_bytes
    limit = max(MNS.body_bytes, largest or 0)
    if sum(len(each.body) for each in entries if isinstance(each, Put)) > limit:
        raise invalid_argument(f"The bodies of the batch have more than {limit} bytes.")


def _completion(call: Call, handle: str) -> Complete | Fault:
    try:
        return Complete(call.account, call.route.queue, *read_handle(handle))
    except ReceiptMalformed as error:
        return fault_of(error)


async def _carry_out(
    call: Call, entries: Sequence[_Entry], perform: Perform
) -> list[Result | Fault]:
    """Carry out the entries that can be read; return a result or a fault for each.

    Raises:
        LeaseholdError: Something that has nothing to do with single entries.
    """
    commands = tuple(each for each in entries if not isinstance(each, Fault))
    done = cast("tuple[Result, ...]", await perform(Batch(commands))) if commands else ()
    if not commands and call.found is None:
        raise QueueNotFound
    for result in done:
        if isinstance(result, QueueNotFound):
            raise result
    if done and all(isinstance(each, Unavailable) for each in done):
        raise cast("Unavailable", done[0])
    left = iter(done)
    results: list[Result | Fault] = []
    for entry in entries:
        if isinstance(entry, Fault):
            results.append(entry)
            continue
        result = next(left)
        results.append(fault_of(result) if isinstance(result, LeaseholdError) else result)
    return results


def _first_failure(results: Sequence[Result | Fault]) -> Fault | None:
    return next((each for each in results if isinstance(each, Fault)), None)


def _told(fault: Fault) -> tuple[tuple[str, str], ...]:
    return (("ErrorCode", fault.code), ("ErrorMessage", fault.message))


def _sent(result: Result | Fault, entry: _Entry, *, brief: bool = False) -> bytes:
    assert isinstance(result, Lease | Duplicate)
    assert isinstance(entry, Put)
    fields = sent_fields(result, entry.body, "    ", with_handle=not brief)
    return b"  <Message>\n%b  </Message>\n" % fields
