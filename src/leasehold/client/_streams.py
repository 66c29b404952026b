"""Streams and claims without I/O: requests and answers."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

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
    MAX_REQUEST_BYTES,
    Call,
    account_path,
    completion,
    delete,
    get,
    giving_back,
    in_parts,
    outgoing,
    path_segment,
    renewal,
    reported,
    send,
)
from leasehold.client.errors import NotDone, ServerProblem, UnexpectedAnswer
from leasehold.client.models import (
    ClaimInfo,
    Committed,
    Completion,
    Discarded,
    Exemption,
    GiveBack,
    LeaseRef,
    NewMessage,
    Outgoing,
    Published,
    ReceivedMessage,
    Renewal,
    Settled,
    Staged,
    StreamInfo,
    TransactionInfo,
)
from leasehold.domain.limits import MAX_ITEMS
from leasehold.extras import install
from leasehold.wire import flows as wire
from leasehold.wire.flows import OpenClaimRequest, SettleRequest
from leasehold.wire.messages import QueuedComplete, QueuedRelease, QueuedRenew
from leasehold.wire.parts import NoRequest

_Q = TypeVar("_Q", QueuedComplete, QueuedRelease, QueuedRenew)

_NOTED_AT_ONCE: Final = 1_000
"""Exemptions in one request."""


class _Streams(wire.Streams):
    streams: Sequence[StreamInfo]


class _Opened(wire.Opened):
    claim: ClaimInfo | None = None


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
    return send("PUT", path, NoRequest(), repeatable=True)


def open_claim(path: str, request: OpenClaimRequest) -> Call:
    """Return a call that opens a claim, or finds it again."""
    return send("PUT", path, request, repeatable=True, wait_s=request.wait_s or 0)


class Part(NamedTuple):
    """Which members of a claim are read."""

    part: int
    parts: int
    whole_groups: bool


def read(path: str, part: Part, after: str | None, page_size: int, *, arrow: bool) -> Call:
    """Return a call for one page of the members of a part of a claim."""
    query = [("part", str(part.part)), ("parts", str(part.parts)), ("limit", str(page_size))]
    query += [("whole_groups", "true")] if part.whole_groups else []
    query += [("after", after)] if after else []
    return get(f"{path}/messages", tuple(query), ARROW if arrow else JSON)


def extend(path: str, token: int, lease_s: int, *, park: bool) -> Call:
    """Return a call that moves the end of a claim's lease."""
    request = wire.ExtendClaimRequest(token=token, lease_s=lease_s, park=park or None)
    return send("POST", f"{path}/extend", request, repeatable=True)


def give_back(path: str, token: int) -> Call:
    """Return a call that dissolves a claim; that it is gone after a lost answer is success."""
    call = send("POST", f"{path}/give-back", wire.TokenRequest(token), repeatable=True)
    return dataclasses.replace(call, done_if="claim-not-found")


def exempt(
    path: str, token: int, number: int, exemptions: Iterable[Exemption], *, replace: bool
) -> Iterator[Call]:
    """Yield calls that note exemptions, some at a time; a repeated note changes nothing.

    Raises:
        ValueError: One is of another claim, or there is none and nothing to replace.
    """
    given = iter(exemptions)
    slice_ = list(islice(given, _NOTED_AT_ONCE))
    if not slice_ and not replace:
        raise ValueError("there are no messages to exempt")
    while slice_ or replace:
        for each in slice_:
            if each.number != number:
                raise ValueError(f"the exemption is of claim {each.number}, not of {number}")
        noted = [_noted(each) for each in slice_]
        request = wire.ExemptRequest(token=token, exemptions=noted, replace=replace or None)
        yield send("POST", f"{path}/exemptions", request, repeatable=True)
        replace = False  # the rest is added to the first ones
        slice_ = list(islice(given, _NOTED_AT_ONCE))


def bind(path: str, token: int, transaction: str) -> Call:
    """Return a call that binds a claim to a transaction; a second time it changes nothing."""
    request = wire.BindRequest(token=token, transaction=transaction)
    return send("POST", f"{path}/bind", request, repeatable=True)


def settle(
    path: str,
    request: SettleRequest,
    exemptions: Iterable[Exemption],
    sends: Iterable[Outgoing],
) -> Call:
    """Return a call that settles claims. What was settled is not looked at a second time.

    Raises:
        TypeError: A message to be sent does not say for which queue, or has no proper body.
    """
    request.exemptions = [_exemption(each) for each in exemptions] or None
    request.sends = [outgoing(each) for each in sends] or None
    return send("POST", f"{path}/settle", request, repeatable=True)


def delete_stream(path: str) -> Call:
    """Return a call that forgets a stream."""
    return delete(path, (), "stream-not-found")


def stream(answer: Answer) -> StreamInfo:
    """Return a stream."""
    return decoded(_STREAM, answer)


def streams(answer: Answer) -> list[StreamInfo]:
    """Return streams."""
    return list(decoded(_STREAMS, answer).streams)


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


def _noted(given: Exemption) -> wire.NotedExemption:
    return wire.NotedExemption(
        id=given.id, outcome=given.outcome, delay_s=given.delay_s, error=reported(given.error)
    )


def _exemption(given: Exemption) -> wire.Exemption:
    return wire.Exemption(
        id=given.id,
        outcome=given.outcome,
        delay_s=given.delay_s,
        error=reported(given.error),
        number=given.number,
    )


def names(given: Iterable[str]) -> msgspec.Raw | msgspec.UnsetType:
    """Return the names of transactions to publish; UNSET for none."""
    found = list(given)
    return msgspec.Raw(_encode(found)) if found else UNSET


# --- record batches --------------------------------------------------------------------------
#
# The library for them is imported only where it is used.


def pyarrow() -> Any:
    """Return the library.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return importlib.import_module("pyarrow")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Record batches need the library pyarrow: {install('arrow')}."
        ) from error


def batches_in(content: bytes) -> Iterator[Any]:
    """Yield the record batches of a stream that have rows."""
    if not content:
        return
    with pyarrow().ipc.open_stream(content) as reader:
        for batch in reader:
            if batch.num_rows:
                yield batch


def stream_of(batch: Any) -> bytes:
    """Return one record batch as a stream."""
    arrow = pyarrow()
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def slices_of(batch: Any) -> Iterator[Any]:
    """Yield parts of a record batch that each fit in a request; always the same ones."""
    rows: int = batch.num_rows
    pieces = max(1, -(-rows // MAX_ITEMS), -(-int(batch.nbytes) // MAX_REQUEST_BYTES))
    for piece in range(pieces):
        start, end = piece * rows // pieces, (piece + 1) * rows // pieces
        if end > start or pieces == 1:
            yield batch.slice(start, end - start)


# --- transactions ------------------------------------------------------------------------------
#
# Transactions and commits without I/O: requests and answers.


Held = ReceivedMessage | LeaseRef
"""A leased message that knows its queue."""


_encode = msgspec.json.Encoder().encode
_STAGED = msgspec.json.Decoder(Staged)
_PUBLISHED = msgspec.json.Decoder(Published)
_DISCARDED = msgspec.json.Decoder(Discarded)
_TRANSACTION = msgspec.json.Decoder(TransactionInfo)
_TRANSACTIONS = msgspec.json.Decoder(wire.Transactions)
_COMMITTED = msgspec.json.Decoder(wire.Committed[Result])


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
    request = wire.PartsRequest(None if parts is None else list(parts))
    return send("POST", f"{path}/{verb}", request, repeatable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What is to be done together."""

    sends: Sequence[Outgoing]
    completes: Sequence[Held | Completion]
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
        request = wire.CommitRequest(
            self.name,
            [outgoing(each) for each in self.sends] or None,
            [_queued(QueuedComplete, completion(each), each) for each in self.completes] or None,
            [_release_item(each) for each in self.releases] or None,
            [_renew_item(each) for each in self.renews] or None,
            names(self.publish),
        )
        path, repeatable = f"{account_path(account)}/commit", self.name is not None
        return send("POST", path, request, repeatable=repeatable)

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
        raise TypeError("a message names no queue: make it an Outgoing, or pass queue")
    return Outgoing(*(getattr(made, name) for name in NewMessage.__struct_fields__), queue=queue)


def _raise_first(refusals: list[ServerProblem]) -> None:
    """Raise what was refused for a reason of its own, if anything was."""
    own = [each for each in refusals if not isinstance(each, NotDone)]
    for each in own or refusals:
        raise each


def _lease_item(held: Held | Completion) -> dict[str, str]:
    if not held.queue:
        raise ValueError(
            f"message {held.id} names no queue: pass a message as received, or a LeaseRef with a "
            "queue"
        )
    return {"queue": held.queue, "id": held.id, "receipt": held.receipt}


def _renew_item(given: Renewal) -> QueuedRenew:
    item = renewal(given.visibility_timeout_s, given.body, given.progress, given.saved)
    return _queued(QueuedRenew, item(given.message), given.message)


def _release_item(given: GiveBack) -> QueuedRelease:
    item = giving_back(given.outcome, given.delay_s, given.error)
    return _queued(QueuedRelease, item(given.message), given.message)


def _queued(kind: type[_Q], item: Struct, held: Held | Completion) -> _Q:
    return kind(**{**msgspec.structs.asdict(item), **_lease_item(held)})


def _bytes_of(body: str | bytes | None) -> bytes | None:
    return body.encode() if isinstance(body, str) else body
