"""Streams and claims without I/O: requests and answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

from leasehold.client._answers import Answer, decoded
from leasehold.client._calls import (
    ARROW,
    JSON,
    Call,
    delete,
    get,
    outgoing,
    path_segment,
    plain_report,
    send,
)
from leasehold.client.models import ClaimInfo, Exemption, Outgoing, Settled, StreamInfo

_NOTED_AT_ONCE: Final = 1_000
"""Exemptions in one request."""


class _Streams(Struct):
    streams: list[StreamInfo]


class _Opened(Struct):
    claim: ClaimInfo | None = None
    replayed: bool = False


_STREAM = msgspec.json.Decoder(StreamInfo)
_STREAMS = msgspec.json.Decoder(_Streams)
_OPENED = msgspec.json.Decoder(_Opened)
_CLAIM = msgspec.json.Decoder(ClaimInfo)
_SETTLED = msgspec.json.Decoder(Settled)


def stream_path(queue: str, stream: str) -> str:
    """Return a stream's path, given its queue's."""
    return f"{queue}/streams/{path_segment('stream', stream)}"


def claim_path(stream: str, number: int) -> str:
    """Return a claim's path, given its stream's."""
    return f"{stream}/claims/{number:d}"


def attach(path: str) -> Call:
    """Return a call that takes a stream over. Twice gives a newer token to the same caller."""
    return send("PUT", path, {}, repeatable=True)


def open_claim(path: str, wait_s: float, members: dict[str, Any]) -> Call:
    """Return a call that opens a claim, or finds it again."""
    given = {**members, "wait_s": wait_s or None}
    return send("PUT", path, given, repeatable=True, wait_s=wait_s)


def read(
    path: str, part: tuple[int, int], after: str | None, page_size: int, *, arrow: bool
) -> Call:
    """Return a call for one page of the members of a part of a claim."""
    place, parts = part
    query = [("part", str(place)), ("parts", str(parts)), ("limit", str(page_size))]
    query += [("after", after)] if after else []
    return get(f"{path}/messages", tuple(query), ARROW if arrow else JSON)


def extend(path: str, token: int, lease_s: int, *, park: bool) -> Call:
    """Return a call that moves the end of a claim's lease."""
    members = {"token": token, "lease_s": lease_s, "park": park or None}
    return send("POST", f"{path}/extend", members, repeatable=True)


def give_back(path: str, token: int) -> Call:
    """Return a call that dissolves a claim; that it is gone after a lost answer is success."""
    call = send("POST", f"{path}/give-back", {"token": token}, repeatable=True)
    return dataclasses.replace(call, done_if="claim-not-found")


def exempt(path: str, token: int, number: int, exemptions: Iterable[Exemption]) -> Iterator[Call]:
    """Yield calls that note exemptions, some at a time; a repeated note changes nothing.

    Raises:
        ValueError: One is of another claim, or there is none.
    """
    given = iter(exemptions)
    slice_ = list(islice(given, _NOTED_AT_ONCE))
    if not slice_:
        raise ValueError("there is nothing to exempt")
    while slice_:
        for each in slice_:
            if each.number != number:
                raise ValueError(f"the exemption is of claim {each.number}, not of {number}")
        members = [_exemption(each) for each in slice_]
        for member in members:
            del member["number"]
        shown = {"token": token, "exemptions": members}
        yield send("POST", f"{path}/exemptions", shown, repeatable=True)
        slice_ = list(islice(given, _NOTED_AT_ONCE))


def bind(path: str, token: int, transaction: str) -> Call:
    """Return a call that binds a claim to a transaction; a second time it changes nothing."""
    members = {"token": token, "transaction": transaction}
    return send("POST", f"{path}/bind", members, repeatable=True)


def settle(
    path: str,
    members: dict[str, Any],
    exemptions: Iterable[Exemption],
    sends: Iterable[Outgoing],
) -> Call:
    """Return a call that settles claims. What was settled is not looked at a second time.

    Raises:
        TypeError: A message to be sent does not say for which queue, or has no proper body.
    """
    given = {
        **members,
        "exemptions": [_exemption(each) for each in exemptions] or None,
        "sends": [outgoing(each) for each in sends] or None,
    }
    return send("POST", f"{path}/settle", given, repeatable=True)


def delete_stream(path: str) -> Call:
    """Return a call that forgets a stream."""
    return delete(path, (), "stream-not-found")


def stream(answer: Answer) -> StreamInfo:
    """Return a stream."""
    return decoded(_STREAM, answer)


def streams(answer: Answer) -> list[StreamInfo]:
    """Return streams."""
    return decoded(_STREAMS, answer).streams


def opened(answer: Answer) -> ClaimInfo | None:
    """Return a claim that was opened, None if there was nothing to claim."""
    found = decoded(_OPENED, answer)
    if found.claim is None:
        return None
    return msgspec.structs.replace(found.claim, replayed=found.replayed)


def claim(answer: Answer) -> ClaimInfo:
    """Return a claim."""
    return decoded(_CLAIM, answer)


def settled(answer: Answer) -> Settled:
    """Return what settling did."""
    return decoded(_SETTLED, answer)


def _exemption(given: Exemption) -> dict[str, Any]:
    members = {
        "number": given.number,
        "id": given.id,
        "outcome": given.outcome,
        "delay_s": given.delay_s,
        "error": plain_report(given.error),
    }
    return {name: value for name, value in members.items() if value is not None}
