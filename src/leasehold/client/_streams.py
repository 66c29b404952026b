"""Streams and claims without I/O: requests and answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct

from leasehold.client._answers import (
    Answer,
    Result,
    decoded,
    refusal_of,
    released_of,
    renewed_one,
    sent_of,
)
from leasehold.client._calls import (
    ARROW,
    JSON,
    Call,
    account_path,
    body_members,
    delete,
    get,
    in_parts,
    outgoing,
    path_segment,
    plain_report,
    send,
)
from leasehold.client.errors import NotDone, ServerProblem, UnexpectedAnswer
from leasehold.client.models import (
    ClaimInfo,
    Committed,
    Discarded,
    Exemption,
    GiveBack,
    LeaseRef,
    NewMessage,
    Outgoing,
    Progress,
    Published,
    ReceivedMessage,
    Renewal,
    Settled,
    Staged,
    StreamInfo,
    StreamSettled,
    TransactionInfo,
)

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


# --- transactions ------------------------------------------------------------------------------
#
# Transactions and commits without I/O: requests and answers.


Held = ReceivedMessage | LeaseRef
"""A leased message that knows its queue."""


class _Transactions(Struct):
    transactions: list[TransactionInfo]


class _Committed(Struct):
    already: bool = False
    published: int = 0
    duplicates: int = 0
    settled: tuple[StreamSettled, ...] = ()
    send: list[Result] = []
    renew: list[Result] = []
    complete: list[Result] = []
    release: list[Result] = []


_encode = msgspec.json.Encoder().encode
_STAGED = msgspec.json.Decoder(Staged)
_PUBLISHED = msgspec.json.Decoder(Published)
_DISCARDED = msgspec.json.Decoder(Discarded)
_TRANSACTION = msgspec.json.Decoder(TransactionInfo)
_TRANSACTIONS = msgspec.json.Decoder(_Transactions)
_COMMITTED = msgspec.json.Decoder(_Committed)


class Chunks:
    """Which chunk of each part of a transaction comes next."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._broken_off: dict[str, int] = {}

    def first(self, part: str, chunk: int | None) -> int:
        """Return the number to begin with; *chunk* is what the caller has said, if anything.

        Raises:
            RuntimeError: How much was staged last is not known, and the caller says nothing.
        """
        if chunk is not None:
            return chunk
        if part in self._broken_off:
            first = self._broken_off[part]
            raise RuntimeError(
                f"the last call that staged part {part!r} failed: repeat it with the same messages "
                f"and chunk={first}, which stages only what is not there yet"
            )
        return self._next.get(part, 0)

    def is_done(self, part: str, following: int) -> None:
        """Note that all was staged; *following* is the next number."""
        self._broken_off.pop(part, None)
        self._next[part] = following

    def is_broken_off(self, part: str, first: int) -> None:
        """Note that a call failed that began with *first* and may have staged something."""
        self._broken_off[part] = first


# --- requests ------------------------------------------------------------------------------------


def transactions_path(account: str) -> str:
    """Return the path that all transactions of an account lie under."""
    return f"{account_path(account)}/transactions"


def transaction_path(account: str, name: str) -> str:
    """Return a transaction's path."""
    return f"{transactions_path(account)}/{path_segment('transaction', name)}"


def list_transactions(account: str, state: str | None, limit: int) -> Call:
    """Return a call for transactions by name."""
    query = (("limit", str(limit)),) + ((("state", state),) if state else ())
    return get(transactions_path(account), query)


def stage_calls(
    path: str,
    messages: Iterable[Outgoing | NewMessage | str | bytes],
    queue: str | None,
    part: str,
    timeout_s: int | None,
) -> Iterator[Callable[[int], Call]]:
    """Yield what makes calls, given the number of the chunk. Each can be repeated.

    Raises:
        TypeError: *messages* is one text, or one of them does not say for which queue.
    """
    if isinstance(messages, str | bytes):
        raise TypeError("stage takes a list of messages, not one text")
    found = False
    outward = (_for_queue(each, queue) for each in messages)
    for _, pieces in in_parts(outward, outgoing, whole=False):
        found = True
        yield partial(_stage_call, path, part, timeout_s, pieces)
    if not found:
        # A part without messages is a part all the same: it can be named when publishing.
        yield partial(_stage_call, path, part, timeout_s, [])


def stage_arrow(path: str, content: bytes, query: Mapping[str, str | int | None]) -> Call:
    """Return a call that stages the rows of a record batch as a chunk."""
    return Call(
        method="POST",
        path=f"{path}/stage",
        query=tuple((name, str(value)) for name, value in query.items() if value is not None),
        content=content,
        content_type=ARROW,
        repeatable=True,
    )


def finish(path: str, verb: str, parts: Iterable[str] | None) -> Call:
    """Return a call that publishes or discards parts, None for all. It can be repeated.

    Raises:
        TypeError: *parts* is one text.
    """
    if isinstance(parts, str):
        raise TypeError("parts is a list of names, not one text")
    members = {"parts": None if parts is None else list(parts)}
    return send("POST", f"{path}/{verb}", members, repeatable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What is to be done together."""

    sends: Sequence[Outgoing]
    completes: Sequence[Held]
    releases: Sequence[GiveBack]
    renews: Sequence[Renewal]
    publish: Sequence[str]
    name: str | None

    def call(self, account: str) -> Call:
        """Return the call; it can be repeated if it has a name.

        Raises:
            TypeError: A message to be sent does not say for which queue.
            ValueError: A leased message does not say from which queue.
        """
        members = {
            "name": self.name,
            "send": [outgoing(each) for each in self.sends] or None,
            "renew": [_renew_item(each) for each in self.renews] or None,
            "complete": [_lease_item(each) for each in self.completes] or None,
            "release": [_release_item(each) for each in self.releases] or None,
            "publish": list(self.publish) or None,
        }
        repeatable = self.name is not None
        return send("POST", f"{account_path(account)}/commit", members, repeatable=repeatable)

    def done(self, answer: Answer) -> Committed:
        """Return what was done.

        Raises:
            ServerProblem: A part of it was refused, so nothing was done: why that was.
            UnexpectedAnswer: It is not what a Leasehold server answers.
        """
        found = decoded(_COMMITTED, answer)
        if found.already:
            return Committed(already=True, published=found.published, duplicates=found.duplicates)
        lists = (
            (found.send, self.sends),
            (found.renew, self.renews),
            (found.complete, self.completes),
            (found.release, self.releases),
        )
        refusals = []
        for results, given in lists:
            if len(results) != len(given):
                what = f"{len(results)} results for {len(given)} items"
                raise UnexpectedAnswer(answer.url, answer.status, what)
            refusals += [refusal_of(each, answer) for each in results]
        _raise_first([each for each in refusals if each is not None])
        return Committed(
            published=found.published,
            duplicates=found.duplicates,
            settled=found.settled,
            sent=tuple(map(sent_of, found.send)),
            renewed=tuple(
                renewed_one(each.message, result, _bytes_of(each.body), each.saved)
                for each, result in zip(self.renews, found.renew, strict=True)
            ),
            released=tuple(map(released_of, found.release)),
        )


# --- answers -------------------------------------------------------------------------------------


def staged(answer: Answer) -> Staged:
    """Return how much a part has now."""
    return decoded(_STAGED, answer)


def published(answer: Answer) -> Published:
    """Return what publishing did."""
    return decoded(_PUBLISHED, answer)


def discarded(answer: Answer) -> Discarded:
    """Return what discarding did."""
    return decoded(_DISCARDED, answer)


def transaction(answer: Answer) -> TransactionInfo:
    """Return a transaction."""
    return decoded(_TRANSACTION, answer)


def transactions(answer: Answer) -> list[TransactionInfo]:
    """Return transactions."""
    return decoded(_TRANSACTIONS, answer).transactions


def _stage_call(
    path: str, part: str, timeout_s: int | None, pieces: list[bytes], chunk: int
) -> Call:
    head = {"part": part, "chunk": chunk}
    if timeout_s is not None:
        head["timeout_s"] = timeout_s
    content = b'%b,"messages":[%b]}' % (_encode(head)[:-1], b",".join(pieces))
    return Call(method="POST", path=f"{path}/stage", content=content, repeatable=True)


def _for_queue(message: Outgoing | NewMessage | str | bytes, queue: str | None) -> Outgoing:
    if isinstance(message, Outgoing):
        return message
    made = message if isinstance(message, NewMessage) else NewMessage(message)
    if queue is None:
        raise TypeError("a message does not say for which queue: make it an Outgoing, or say queue")
    return Outgoing(*(getattr(made, name) for name in NewMessage.__struct_fields__), queue=queue)


def _raise_first(refusals: list[ServerProblem]) -> None:
    """Raise what was refused for a reason of its own, if anything was."""
    own = [each for each in refusals if not isinstance(each, NotDone)]
    for each in own or refusals:
        raise each


def _lease_item(held: Held) -> dict[str, Any]:
    if not held.queue:
        raise ValueError(
            f"message {held.id} does not say from which queue it is: give a message as it was "
            "received, or a LeaseRef with a queue"
        )
    return {"queue": held.queue, "id": held.id, "receipt": held.receipt}


def _renew_item(given: Renewal) -> dict[str, Any]:
    progress = given.progress
    if progress is not None and progress.at_ms is not None:
        progress = Progress(progress.fraction, progress.note)
    members = {
        **_lease_item(given.message),
        "visibility_timeout_s": given.visibility_timeout_s,
        **body_members(given.body),
        "progress": progress,
    }
    saved = {} if given.saved is UNSET else {"saved": given.saved}
    return _given(members) | saved


def _release_item(given: GiveBack) -> dict[str, Any]:
    members = {
        **_lease_item(given.message),
        "outcome": given.outcome,
        "delay_s": given.delay_s,
        "error": plain_report(given.error),
    }
    return _given(members)


def _given(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _bytes_of(body: str | bytes | None) -> bytes | None:
    return body.encode() if isinstance(body, str) else body
