"""Streams and their claims: attach, open, read, extend, settle, give back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias, cast

import msgspec

from leasehold.auth.types import Operation
from leasehold.domain.admin import Seen
from leasehold.domain.claims import (
    AttachStream,
    BindClaim,
    Claim,
    ClaimState,
    DeleteStream,
    Exemption,
    ExemptMembers,
    ExtendClaim,
    GetStream,
    GiveBackClaim,
    ListStreams,
    MemberColumns,
    MemberPage,
    OpenClaim,
    Opened,
    ReadClaim,
    SettleClaims,
    Stream,
)
from leasehold.domain.commands import Put
from leasehold.domain.errors import ClaimNotFound, ClaimSettled, Unavailable
from leasehold.domain.limits import MAX_CLAIM, MAX_ITEMS, MAX_WAIT_S, NATIVE
from leasehold.domain.model import MessageState, fitting
from leasehold.domain.transactions import StreamSettled
from leasehold.http.native.admin import show_message
from leasehold.http.native.call import (
    ARROW,
    BatchReader,
    Call,
    apart,
    arrow_module,
    checked_name,
    in_portions,
    number_of,
    param_int,
    param_switch,
    published_names,
    read_body,
    short_text,
    too_many,
    within,
)
from leasehold.http.native.items import PutReader
from leasehold.http.native.messages import (
    ANSWER_BYTES,
    OUTCOMES,
    draw_jitter,
    read_error,
)
from leasehold.http.requests import Response
from leasehold.wire import flows as wire
from leasehold.wire.admin import Views
from leasehold.wire.messages import QueuedPut
from leasehold.wire.parts import NUMBERS, NoRequest

DEFAULT_MEMBERS: Final = 1_000
MAX_MEMBERS: Final = 20_000
"""Members that one request may ask for."""
MAX_JSON_MEMBERS: Final = 1_000
"""Members that an answer in JSON holds; more would take long to write."""
MAX_PARTS: Final = 1_000_000
NEXT_AFTER: Final = b"leasehold-next-after"
"""Header of an Arrow answer that is not the last one of its part."""

ARROW_BYTES: Final = 2 * ANSWER_BYTES
"""Bodies of an answer in Arrow, which takes a third of the work."""

WriteMembers: TypeAlias = Callable[[Sequence[MemberPage | MemberColumns]], memoryview]

_ARROW: Final = ARROW.decode("ascii")
_FIRST_STEP: Final = 2_000
_LONGEST_STEP: Final = 8_000
"""Members that one command reads, so that those with large bodies are not all read at once."""

_NOTHING: Final = msgspec.json.Decoder(NoRequest)
_OPEN: Final = msgspec.json.Decoder(wire.OpenClaimRequest)
_EXTEND: Final = msgspec.json.Decoder(wire.ExtendClaimRequest)
_TOKEN: Final = msgspec.json.Decoder(wire.TokenRequest)
_BIND: Final = msgspec.json.Decoder(wire.BindRequest)
_EXEMPT: Final = BatchReader(wire.ExemptRequest, exemptions=wire.NotedExemption)
_SETTLE: Final = BatchReader(
    wire.SettleRequest,
    exemptions=wire.Exemption,
    sends=QueuedPut,
)


# --- what is shown -------------------------------------------------------------------------------


def _show_stream(stream: Stream) -> wire.Stream:
    return msgspec.convert(stream, wire.Stream, from_attributes=True)


def _show_claim(claim: Claim) -> wire.Claim:
    return msgspec.convert(claim, wire.Claim, from_attributes=True)


def show_settled(streams: Sequence[StreamSettled]) -> tuple[wire.StreamSettled, ...]:
    """Return the streams that were settled by a publishing as JSON shows them."""
    return tuple(wire.StreamSettled(**each._asdict()) for each in streams)


def _reply_stream(call: Call, stream: Stream) -> Response:
    return call.reply(_show_stream(stream))


def _reply_claim(call: Call, claim: Claim) -> Response:
    return call.reply(_show_claim(claim))


def _stream_of(call: Call) -> tuple[str, str, str]:
    """Return account, queue and stream of a request."""
    return call.account, call.queue, checked_name("stream", call.item)


# --- streams -------------------------------------------------------------------------------------


async def attach(call: Call) -> Response:
    """Take a stream over, and create it if need be."""
    read_body(_NOTHING, call)
    return _reply_stream(call, await call.services.perform(AttachStream(*_stream_of(call))))


async def list_streams(call: Call) -> Response:
    """List the streams of a queue by name."""
    streams = await call.services.perform(ListStreams(call.account, call.queue))
    return call.reply(wire.Streams([*map(_show_stream, streams)]))


async def get(call: Call) -> Response:
    """Look at a stream."""
    return _reply_stream(call, await call.services.perform(GetStream(*_stream_of(call))))


async def delete(call: Call) -> Response:
    """Forget a stream, and give its claims back."""
    await call.services.perform(DeleteStream(*_stream_of(call), call.console_actor))
    return call.reply_nothing()


# --- opening, extending, giving back --------------------------------------------------------------


async def open_claim(call: Call) -> Response:
    """Open a claim, or find it again."""
    request = read_body(_OPEN, call)
    within("$.limit", request.limit, (1, MAX_CLAIM))
    within("$.lease_s", request.lease_s, NATIVE.lease_s)
    max_bytes, wait_s = request.max_bytes, request.wait_s or 0
    if max_bytes is not None:
        within("$.max_bytes", max_bytes, NUMBERS)
    within("$.wait_s", wait_s, (0, MAX_WAIT_S))
    command = OpenClaim(
        *_stream_of(call),
        within("$.token", request.token, NUMBERS),
        number_of(call),
        request.limit,
        request.lease_s,
        short_text("$.holder", request.holder),
        max_bytes,
        bool(request.accept_loss),
    )
    opened = await _open(call, command, wait_s)
    shown = None if opened.claim is None else _show_claim(opened.claim)
    return call.reply(wire.Opened(shown, opened.replayed))


async def _open(call: Call, command: OpenClaim, wait_s: float) -> Opened:
    if call.services.open_claim is not None:
        return await call.services.open_claim(command, wait_s, call.request.gone)
    while True:
        opened = await call.services.perform(command)
        if opened.claim is None or opened.claim.state is not ClaimState.OPENING:
            return opened


async def get_claim(call: Call) -> Response:
    """Look at a claim."""
    number = number_of(call)
    stream = await call.services.perform(GetStream(*_stream_of(call)))
    for claim in stream.claims:
        if claim.number == number:
            return _reply_claim(call, claim)
    if number <= stream.last_settled:
        raise ClaimSettled(stream.last_settled, stream.settled_with)
    raise ClaimNotFound


async def extend(call: Call) -> Response:
    """Move the end of a claim's lease, or park the claim."""
    request = read_body(_EXTEND, call)
    command = ExtendClaim(
        *_stream_of(call),
        within("$.token", request.token, NUMBERS),
        number_of(call),
        within("$.lease_s", request.lease_s, NATIVE.lease_s),
        bool(request.park),
    )
    return _reply_claim(call, await call.services.perform(command))


async def give_back(call: Call) -> Response:
    """Dissolve a claim."""
    token = within("$.token", read_body(_TOKEN, call).token, NUMBERS)
    number = number_of(call)
    await call.services.perform(GiveBackClaim(*_stream_of(call), token, number, call.console_actor))
    return call.reply_nothing()


# --- reading -------------------------------------------------------------------------------------


async def read(call: Call) -> Response:
    """Read members of a claim, as JSON or Arrow."""
    write = await _arrow_writer(call)
    most = MAX_JSON_MEMBERS if write is None else MAX_MEMBERS
    limit = min(param_int(call, "limit", (1, MAX_MEMBERS)) or DEFAULT_MEMBERS, most)
    parts = param_int(call, "parts", (1, MAX_PARTS)) or 1
    part = param_int(call, "part", (0, parts - 1)) or 0
    stream, number = _stream_of(call), number_of(call)
    after = call.params.get("after", "")
    whole = param_switch(call, "whole_groups", default=False)
    command = ReadClaim(*stream, number, part, parts, after, limit, whole_groups=whole)
    room = ANSWER_BYTES if write is None else ARROW_BYTES
    pages = await _read_pages(call, replace(command, columns=write is not None), room)
    next_after = pages[-1].next_after
    if write is None:
        under = f"{call.item}/{number}"
        seen = [
            Seen(message, MessageState.LEASED, call.queue, under)
            for page in pages
            if isinstance(page, MemberPage)
            for message in page.messages
        ]
        shown = await in_portions(lambda each: show_message(each, call.now_ms), seen)
        return call.reply(Views(shown, next_after))
    content = write(pages)
    if next_after is None:
        return call.reply_bytes(ARROW, content)
    place = (NEXT_AFTER, next_after.encode("ascii"))
    return call.reply_bytes(ARROW, content, place)


async def _arrow_writer(call: Call) -> WriteMembers | None:
    """Return what writes an Arrow stream if a request asks for one; all others get JSON."""
    if _ARROW not in call.request.headers.get("accept", "").lower():
        return None
    return cast("WriteMembers", (await arrow_module("arrow-not-installed")).write_members)


async def _read_pages(
    call: Call, command: ReadClaim, most_bytes: int
) -> list[MemberPage | MemberColumns]:
    """Read in steps until there are enough, no more, or too many bytes for one answer.

    The steps are so long that what they bring has room if it is like what came before.
    """
    pages: list[MemberPage | MemberColumns] = []
    step, left, room = _FIRST_STEP, command.limit, most_bytes
    after: str | None = command.after
    while after is not None and left and room > 0:
        wanted = replace(command, after=after, limit=min(step, left))
        try:
            page = await _page(call, wanted)
        except Unavailable:
            if pages:
                break  # there is no room for more large bodies, but for those it had there is
            raise
        sizes = _sizes(page)
        fits = fitting(sizes, room, at_least=not pages)
        if fits < len(sizes):
            if fits:
                pages.append(await _page(call, replace(wanted, limit=fits)))
            break
        pages.append(page)
        left -= len(sizes)
        room -= sum(sizes)
        average = (most_bytes - room) // max(1, command.limit - left)
        step = max(1, min(_LONGEST_STEP, room // max(1, average)))
        after = page.next_after
    return pages


async def _page(call: Call, command: ReadClaim) -> MemberPage | MemberColumns:
    return await call.services.perform(command)


def _sizes(page: MemberPage | MemberColumns) -> list[int]:
    """Return the sizes of all bodies."""
    if isinstance(page, MemberColumns):
        return [*page.sizes]
    return [len(message.body) for message in page.messages]


# --- exempting and binding -----------------------------------------------------------------------


async def exempt(call: Call) -> Response:
    """Note what becomes of members when their claim is settled."""
    request = await apart(len(call.request.body), _EXEMPT.read, call)
    anew = bool(request.replace)
    if not (0 if anew else 1) <= len(request.exemptions) <= MAX_ITEMS:
        raise too_many("$.exemptions", len(request.exemptions))
    number = number_of(call)
    exemptions = [
        _exemption(f"$.exemptions[{place}]", number, each)
        for place, each in enumerate(request.exemptions)
    ]
    token = within("$.token", request.token, NUMBERS)
    command = ExemptMembers(*_stream_of(call), token, number, tuple(exemptions), anew)
    return _reply_claim(call, await call.services.perform(command))


async def bind(call: Call) -> Response:
    """Have the publishing of a transaction settle the stream up to a claim."""
    request = read_body(_BIND, call)
    await call.authorize(call, Operation.PUT_MESSAGE, None)  # the name is one of the account's
    command = BindClaim(
        *_stream_of(call),
        within("$.token", request.token, NUMBERS),
        number_of(call),
        checked_name("$.transaction", request.transaction),
    )
    return _reply_claim(call, await call.services.perform(command))


# --- settling ------------------------------------------------------------------------------------


async def settle(call: Call) -> Response:
    """Complete all members of all claims up to a number, but for the exemptions."""
    size = len(call.request.body)
    request = await apart(size, _SETTLE.read, call)
    exemptions, sends = request.exemptions or (), request.sends or ()
    for path, given in (("$.exemptions", exemptions), ("$.sends", sends)):
        if len(given) > MAX_ITEMS:
            raise too_many(path, len(given))
    publish = published_names(request.publish)
    puts = await apart(size, PutReader(call).read, "$.sends", sends) if sends else ()
    await _authorize_settling(call, puts, publish)
    command = SettleClaims(
        *_stream_of(call),
        within("$.token", request.token, NUMBERS),
        within("$.upto", request.upto, NUMBERS),
        tuple(
            _exemption(f"$.exemptions[{place}]", each.number, each)
            for place, each in enumerate(exemptions)
        ),
        publish,
        puts,
    )
    settled = await call.services.perform(command)
    return call.reply(
        wire.Settled(
            last_settled=settled.last_settled,
            completed=settled.completed,
            exempted=settled.exempted,
            lost=settled.lost,
            published=settled.published,
            duplicates=settled.duplicates,
            already=settled.already,
            beside=show_settled(settled.beside),
        )
    )


async def _authorize_settling(call: Call, puts: Sequence[Put], publish: Sequence[str]) -> None:
    for queue in {put.queue for put in puts}:
        await call.authorize(call, Operation.PUT_MESSAGE, queue)
    if publish:
        await call.authorize(call, Operation.PUT_MESSAGE, None)


def _exemption(path: str, number: int, given: wire.NotedExemption) -> Exemption:
    delay_s = given.delay_s
    if delay_s is not None:
        within(f"{path}.delay_s", delay_s, NATIVE.delay_s)
    return Exemption(
        within(f"{path}.number", number, NUMBERS),
        given.id,
        OUTCOMES[given.outcome],
        delay_s,
        None if given.error is None else read_error(given.error),
        draw_jitter(),
    )
