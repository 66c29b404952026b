"""Messages as Arrow: members of a claim written, messages to stage read.

This module alone needs pyarrow, which is an extra, and is loaded when it is first asked for. What
is read comes from clients: nothing of it is looked at before Arrow has validated it in full, and
forms are refused in which few bytes can stand for many.

Source of the format: "Arrow Columnar Format", section "IPC Streaming Format".
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise, repeat
from typing import Any, Final, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.domain.claims import MemberColumns, MemberPage
from leasehold.domain.commands import Put
from leasehold.domain.limits import MAX_GROUP_ID, MAX_ITEMS, NATIVE, NEVER, PRIORITIES, WEEK_S
from leasehold.domain.model import (
    DEFAULT_PRIORITY,
    ENTROPY_BYTES,
    NEVER_MS,
    NO_DETAIL,
    Detail,
    Message,
)
from leasehold.domain.transactions import AlikePuts
from leasehold.http.native.call import MAX_SINGLE_BYTES, short_text, too_many, within
from leasehold.http.native.errors import Refused, invalid, shown, too_large
from leasehold.http.native.items import PutReader, check_trace, read_properties

_MS: Final = pa.timestamp("ms", "UTC")
_US: Final = pa.timestamp("us", "UTC")
_PROPERTIES: Final = pa.map_(pa.string(), pa.string())
_PROPERTIES_OF_ENTRY: Final = (_PROPERTIES.key_field, _PROPERTIES.item_field)

MEMBERS: Final = pa.schema(
    [
        ("message_id", pa.string()),
        ("body", pa.binary()),
        ("inserted_at", _US),
        ("expires_at", _US),
        ("visible_since", _US),
        ("dequeue_count", pa.int32()),
        ("fence", pa.int64()),
        ("priority", pa.int8()),
        ("message_type", pa.string()),
        ("traceparent", pa.string()),
        ("properties", _PROPERTIES),
        ("group_id", pa.string()),
    ]
)
"""Columns of the members of a claim. ``expires_at`` is null for messages that never expire."""

MAX_BATCHES: Final = 1_000
"""Record batches of one request."""
MAX_PROPERTIES: Final = 250_000
"""Properties of all messages of one request together."""

_SCHEMA: Final = MEMBERS.serialize()
_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""What a stream begins and ends with."""


# --- writing -------------------------------------------------------------------------------------


def write_members(pages: Sequence[MemberPage | MemberColumns]) -> memoryview:
    """Return members of a claim as an Arrow stream of one record batch, with columns of MEMBERS."""
    columns = [page for page in pages if isinstance(page, MemberColumns)]
    if len(columns) == len(pages):
        batch = _batch_of_columns(columns[0] if len(columns) == 1 else _joined(columns))
    else:
        batches = [
            _batch_of_columns(page) if isinstance(page, MemberColumns) else _batch_of_messages(page)
            for page in pages
        ]
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    # Memory of the library's pool, which it keeps: what the system gives anew for each answer
    # costs as much as reading the members did.
    content = pa.allocate_buffer(len(_SCHEMA) + pa.ipc.get_record_batch_size(batch) + len(_END))
    with pa.FixedSizeBufferWriter(content) as sink, pa.ipc.new_stream(sink, MEMBERS) as stream:
        stream.write_batch(batch)
    return memoryview(content)


def _joined(pages: Sequence[MemberColumns]) -> MemberColumns:
    """Return pages as one, before bodies are copied."""
    counts = [len(page.sizes) for page in pages]
    by_column = zip(*[page[_FIRST_NUMBER:_END_OF_NUMBERS] for page in pages], strict=True)
    numbers = [_joined_numbers(columns, counts) for columns in by_column]
    ids = b"".join([page.message_ids for page in pages])
    sizes = [*chain.from_iterable(page.sizes for page in pages)]
    bodies = [*chain.from_iterable(page.bodies for page in pages)]
    return MemberColumns._make([ids, sizes, bodies, *numbers, None])


def _joined_numbers(columns: Sequence[Any], counts: Sequence[int]) -> int | array[int]:
    """Return one column of several pages; one number if it is that of all of them."""
    first = columns[0]
    if isinstance(first, int) and columns.count(first) == len(columns):
        return first
    whole = array("q")
    for column, count in zip(columns, counts, strict=True):
        whole.extend(_times(column, count) if isinstance(column, int) else column)
    return whole


def _times(number: int, count: int) -> array[int]:
    return array("q", (number,)) * count


_FIRST_NUMBER, _END_OF_NUMBERS = 3, 9
"""The places of the columns that are numbers."""


def _numbers_in(page: MemberColumns) -> list[Sequence[int]]:
    columns: Sequence[Any] = page[_FIRST_NUMBER:_END_OF_NUMBERS]
    count = len(page.sizes)
    return [_times(each, count) if isinstance(each, int) else each for each in columns]


def _batch_of_columns(page: MemberColumns) -> pa.RecordBatch:
    count, bodies = len(page.sizes), _binary(page.sizes, page.bodies)
    return _batch(_ids(page.message_ids, count), bodies, _numbers_in(page), _nothing_along(count))


def _batch_of_messages(page: MemberPage) -> pa.RecordBatch:
    messages = page.messages
    # Turned on their side once: columns are made at the pace of the library.
    values = tuple(zip(*messages, strict=True)) if messages else ((),) * len(Message._fields)
    columns = dict(zip(Message._fields, values, strict=True))
    plain = tuple(columns[name] for name in _PLAIN)
    ids = pa.array(columns["message_id"], pa.string())
    bodies = columns["body"]
    along = _sent_along(columns["detail"])
    return _batch(ids, _binary([*map(len, bodies)], [b"".join(bodies)]), plain, along)


_PLAIN: Final = (
    "inserted_at_ms",
    "expires_at_ms",
    "visible_since_ms",
    "dequeue_count",
    "fence",
    "priority",
)
"""What is written as it is, in the order of the columns."""
_NEVER: Final = pa.scalar(NEVER_MS, pa.int64()).cast(_MS)


def _batch(
    ids: pa.Array, bodies: pa.Array, plain: Sequence[Sequence[int]], along: tuple[pa.Array, ...]
) -> pa.RecordBatch:
    inserted, expires_ms, visible, counts, fences, priorities = plain
    expires = _whole(expires_ms, _MS)
    return pa.RecordBatch.from_arrays(
        [
            ids,
            bodies,
            _whole(inserted, _MS).cast(_US),
            pc.if_else(pc.less(expires, _NEVER), expires, None).cast(_US),
            _whole(visible, _MS).cast(_US),
            _whole(counts).cast(pa.int32()),
            _whole(fences),
            _whole(priorities).cast(pa.int8()),
            *along,
        ],
        schema=MEMBERS,
    )


def _whole(values: Sequence[int], kind: pa.DataType | None = None) -> pa.Array:
    """Return numbers as a column, of 64 bits each."""
    content = values if isinstance(values, array) else array("q", values)
    return pa.Array.from_buffers(kind or pa.int64(), len(values), [None, pa.py_buffer(content)])


def _binary(sizes: Sequence[int], pieces: Sequence[bytes]) -> pa.Array:
    """Return bytes as a column, in one copy.

    Args:
        sizes: Of each value.
        pieces: The values in their order, any number of them in each.
    """
    ends = array("i", accumulate(sizes, initial=0))
    content = pa.allocate_buffer(ends[-1])
    with pa.FixedSizeBufferWriter(content) as sink:
        for piece in pieces:
            sink.write(piece)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(ends), content])


def _ids(blobs: bytes, count: int) -> pa.Array:
    """Return ids of 16 bytes as text, all at once: one character of every id after the other."""
    digits = blobs.hex().encode("ascii")
    text = bytearray(b"-") * (_ID_CHARS * count)
    for digit, place in enumerate(_ID_DIGITS):
        text[place::_ID_CHARS] = digits[digit :: len(_ID_DIGITS)]
    offsets = array("i", range(0, _ID_CHARS * count + 1, _ID_CHARS))
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


_ID_CHARS: Final = 36
_ID_DIGITS: Final = tuple(place for place in range(_ID_CHARS) if place not in {8, 13, 18, 23})


def _sent_along(details: Sequence[Detail]) -> tuple[pa.Array, ...]:
    """Return types, trace contexts, properties and groups; mostly there are none."""
    if all(detail is NO_DETAIL for detail in details):
        return _nothing_along(len(details))
    return (
        pa.array([detail.message_type for detail in details], pa.string()),
        pa.array([detail.traceparent for detail in details], pa.string()),
        pa.array([[*detail.properties.items()] for detail in details], _PROPERTIES),
        pa.array([detail.group_id for detail in details], pa.string()),
    )


def _nothing_along(count: int) -> tuple[pa.Array, ...]:
    # Maps are empty and not null, so that readers need not tell the two apart.
    offsets = pa.py_buffer(array("i", bytes(4 * (count + 1))))
    entries = pa.StructArray.from_arrays(
        [pa.array([], pa.string()), pa.array([], pa.string())], fields=list(_PROPERTIES_OF_ENTRY)
    )
    properties = pa.Array.from_buffers(_PROPERTIES, count, [None, offsets], children=[entries])
    none = pa.nulls(count, pa.string())
    return none, none, properties, none


# --- reading -------------------------------------------------------------------------------------

_T = TypeVar("_T")

_BINARY: Final = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())
_TEXT: Final = (pa.string(), pa.large_string())
_WHOLE: Final = tuple(
    kind() for kind in (pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32)
)
_MAPS: Final = "properties"
_OF_ALL: Final = frozenset({"body", "delay_s", "time_to_live_s", "priority"})
"""Columns that can be the same in all rows, but for the body."""
_COLUMNS: Final = {
    "body": _BINARY,
    "queue": _TEXT,
    "delay_s": _WHOLE,
    "time_to_live_s": _WHOLE,
    "priority": _WHOLE,
    "message_type": _TEXT,
    "traceparent": _TEXT,
    _MAPS: (_PROPERTIES,),
    "dedup_key": _TEXT,
    "group_id": _TEXT,
    "visibility_timeout_s": _WHOLE,
}
"""Columns that are taken, and their types. Views, dictionaries and runs are not among them: with
these a small request could stand for a large one."""


def read_puts(content: bytes, reader: PutReader, queue: str | None) -> Sequence[Put]:
    """Return the messages of an Arrow stream, in one record batch or up to MAX_BATCHES.

    Args:
        content: The stream, uncompressed.
        reader: Knows the account and the limits of its queues.
        queue: Where messages go that name no queue; None if each must.

    Raises:
        Refused: It is no such stream, or a message in it will not do. Fields are named
            ``column[row]``.
    """
    parts: list[Sequence[Put]] = []
    rows = properties = 0
    for batch in _batches(content):
        if rows + batch.num_rows > MAX_ITEMS:
            raise too_many("rows", rows + batch.num_rows)
        try:
            batch.validate(full=True)
        except pa.ArrowException as error:
            raise _unreadable(error) from None
        properties += _properties_in(batch)
        if properties > MAX_PROPERTIES:
            raise invalid(_MAPS, f"There are more than {MAX_PROPERTIES:,} properties in all.")
        parts.append(_Rows(batch, rows).puts(reader, queue))
        rows += batch.num_rows
    return parts[0] if len(parts) == 1 else tuple(chain.from_iterable(parts))


def _batches(content: bytes) -> Iterator[pa.RecordBatch]:
    schema: pa.Schema | None = None
    try:
        for number, message in enumerate(pa.ipc.MessageReader.open_stream(content)):
            if number > MAX_BATCHES or message.metadata.size > MAX_SINGLE_BYTES:
                raise invalid(
                    None,
                    "The Arrow stream has too many batches, or metadata that are too large.",
                    remedy=f"Write it as one record batch, or at most {MAX_BATCHES:,}.",
                )
            if schema is None:
                if message.type != "schema":  # the library would take anything for one
                    raise invalid(None, "The Arrow stream does not begin with its schema.")
                schema = pa.ipc.read_schema(message)
                _check_columns(schema)
            elif message.type != "record batch" or _is_compressed(message.metadata):
                raise invalid(
                    None,
                    "The Arrow stream is compressed, or has dictionaries; neither is supported.",
                    remedy="Write it without compression and without dictionary encoding.",
                )
            else:
                yield pa.ipc.read_record_batch(message, schema)
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error) as error:
        raise _unreadable(error) from None
    if schema is None:
        raise invalid(None, "The body is empty and not an Arrow stream.")


def _unreadable(error: Exception) -> Refused:
    text = shown(str(error).partition("\n")[0])
    return invalid(None, f"The body cannot be read as an Arrow stream: {text}.")


def _check_columns(schema: pa.Schema) -> None:
    for field in schema:
        kinds = _COLUMNS.get(field.name)
        if kinds is None:
            known = ", ".join(_COLUMNS)
            raise invalid(
                shown(field.name),
                f"{shown(field.name)!r} is not a column; the columns are {known}.",
            )
        if field.type not in kinds:
            told = " or ".join(map(str, kinds))
            raise invalid(
                field.name, f"The column is of type {shown(str(field.type))}, and not {told}."
            )
    if len(set(schema.names)) < len(schema.names):
        raise invalid(None, "Two columns have the same name.")
    if "body" not in schema.names:
        raise invalid("body", "The column `body` is missing.")


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Tell whether the buffers of a record batch are compressed.

    The library does not say so, and would inflate them without a limit. Source: "Message.fbs" in
    the Arrow project: ``header`` is field 2 of a message, ``compression`` field 3 of a batch.
    """
    raw = memoryview(metadata)
    message = struct.unpack_from("<I", raw)[0]
    header = _member(raw, message, 2)
    if header is None:
        raise struct.error("a message has no header")
    batch = header + struct.unpack_from("<I", raw, header)[0]
    return _member(raw, batch, 3) is not None


def _member(raw: memoryview, table: int, number: int) -> int | None:
    """Return the place of a member of a flatbuffer's table, None if it is not there."""
    index = table - struct.unpack_from("<i", raw, table)[0]
    size, at = struct.unpack_from("<H", raw, index)[0], 4 + 2 * number
    offset = struct.unpack_from("<H", raw, index + at)[0] if at < size else 0
    return table + offset if offset else None


class _Rows:
    """The messages of one record batch.

    Args:
        batch: Validated in full.
        first: Number of its first row in the whole request.
    """

    def __init__(self, batch: pa.RecordBatch, first: int) -> None:
        self._batch = batch
        self._first = first
        self._names = frozenset(batch.schema.names)

    def puts(self, reader: PutReader, queue: str | None) -> Sequence[Put]:
        """Return the commands."""
        count = self._batch.num_rows
        entropy = os.urandom(ENTROPY_BYTES * count)
        bodies = _bytes_of(self._plain("body"))
        alike = self._alike(reader, queue, bodies, entropy)
        if alike is not None:
            return alike
        queues = self._queues(queue)
        self._check_sizes(bodies, queues, reader)
        return list(
            map(
                Put,
                repeat(reader.account),
                queues,
                bodies,
                self._numbers("delay_s", NATIVE.delay_s, 0),
                self._lives(),
                [entropy[at : at + ENTROPY_BYTES] for at in range(0, len(entropy), ENTROPY_BYTES)],
                self._details(reader),
                self._numbers("priority", PRIORITIES, DEFAULT_PRIORITY),
            )
        )

    def _alike(
        self, reader: PutReader, queue: str | None, bodies: list[bytes], entropy: bytes
    ) -> AlikePuts | None:
        """Return the commands where only bodies differ; None where there is more to look at."""
        if queue is None or not bodies or not self._names <= _OF_ALL:
            return None
        for name in self._names - {"body"}:
            column = self._batch.column(name)
            if column.null_count or pc.count_distinct(column).as_py() > 1:
                return None
        if max(map(len, bodies)) > reader.limit_of(queue):
            return None  # whoever looks at each says which
        (delay_s, *_), (life_s, *_), (priority, *_) = (
            self._numbers("delay_s", NATIVE.delay_s, 0),
            self._lives(),
            self._numbers("priority", PRIORITIES, DEFAULT_PRIORITY),
        )
        same = delay_s, life_s, reader.along, priority
        return AlikePuts(reader.account, queue, bodies, entropy, *same)

    def _place(self, name: str, row: int) -> str:
        return f"{name}[{self._first + row}]"

    def _plain(self, name: str) -> pa.Array:
        """Return a column that has a value in each row."""
        column = self._batch.column(name)
        if column.null_count:
            row = column.is_null().index(True).as_py()
            raise invalid(self._place(name, row), "The value is missing.")
        return column

    def _values(self, name: str) -> list[Any]:
        return self._batch.column(name).to_pylist() if name in self._names else []

    def _queues(self, queue: str | None) -> list[str]:
        names = self._values("queue") or [None] * self._batch.num_rows
        if None not in names:
            return names
        if queue is None:
            detail = "Neither the message nor the query names a queue."
            raise invalid(self._place("queue", names.index(None)), detail)
        return [queue if name is None else name for name in names]

    def _check_sizes(self, bodies: list[bytes], queues: list[str], reader: PutReader) -> None:
        try:
            limits = {name: reader.limit_of(name) for name in set(queues)}
        except Refused as refused:
            refused.problem.field = "queue"
            raise
        if max(map(len, bodies), default=0) <= min(limits.values(), default=0):
            return
        for row, (body, name) in enumerate(zip(bodies, queues, strict=True)):
            if len(body) > limits[name]:
                raise too_large(self._place("body", row), len(body), limits[name])

    def _numbers(self, name: str, bounds: tuple[int, int], default: int) -> Sequence[int]:
        values = self._values(name)
        self._check(name, values, lambda place, value: within(place, value, bounds))
        return [default if value is None else value for value in values] or self._all(default)

    def _lives(self) -> Sequence[int | None]:
        values = self._values("time_to_live_s")
        self._check("time_to_live_s", values, _check_life)
        lives = {None: WEEK_S, NEVER: None}
        return [lives.get(value, value) for value in values] or self._all(WEEK_S)

    def _check(self, name: str, values: Sequence[Any], check: Callable[[str, Any], object]) -> None:
        """Check each value, but equal ones only once: mostly they are the same in many rows.

        Raises:
            Refused: One of them will not do; the field has the first row that has it.
        """
        for value in dict.fromkeys(values):
            if value is not None:
                try:
                    check(name, value)
                except Refused as refused:
                    refused.problem.field = self._place(name, values.index(value))
                    raise

    def _all(self, value: _T) -> list[_T]:
        return [value] * self._batch.num_rows

    def _details(self, reader: PutReader) -> Sequence[Detail]:
        kinds, traces = self._values("message_type"), self._values("traceparent")
        self._check("message_type", kinds, short_text)
        self._check("traceparent", traces, check_trace)
        keys = self._values("dedup_key")
        self._check("dedup_key", keys, short_text)
        groups = self._values("group_id")
        self._check("group_id", groups, partial(short_text, limit=MAX_GROUP_ID))
        own_s = self._values("visibility_timeout_s")
        self._check("visibility_timeout_s", own_s, _check_timeout)
        properties = self._properties()
        if not (kinds or traces or properties or keys or groups or own_s):
            return self._all(reader.along)
        none = self._all(None)
        made: dict[tuple[str | int | None, ...], Detail] = {(None,) * 4: reader.along}
        details = []
        columns = (each or none for each in (kinds, traces, properties, keys, groups, own_s))
        for kind, trace, named, key, group, timeout_s in zip(*columns, strict=True):
            alone = named or key is not None
            detail = None if alone else made.get((kind, trace, group, timeout_s))
            if detail is None:
                detail = Detail(
                    properties=named or {},
                    message_type=kind,
                    traceparent=trace or reader.along.traceparent,
                    dedup_key=key,
                    group_id=group,
                    visibility_timeout_s=timeout_s,
                )
                if not alone:
                    made[kind, trace, group, timeout_s] = detail
            details.append(detail)
        return details

    def _properties(self) -> list[Any]:
        found: list[Any] = []
        try:
            for pairs in self._values(_MAPS):
                named = _named(pairs) if pairs else None
                found.append(named)
        except Refused as refused:
            refused.problem.field = self._place(_MAPS, len(found))
            raise
        return found


def _check_timeout(place: str, value: int) -> None:
    within(place, value, NATIVE.lease_s)


def _properties_in(batch: pa.RecordBatch) -> int:
    """Return how many properties a batch brings, for all its rows together."""
    return len(batch.column(_MAPS).keys) if _MAPS in batch.schema.names else 0


def _named(pairs: Sequence[tuple[str, str]]) -> Mapping[str, str]:
    """Return the properties of one message.

    Raises:
        Refused: A name is there twice, or they are too large.
    """
    named: dict[str, str] = {}
    for name, value in pairs:
        if name in named:
            raise invalid(_MAPS, f"The property {shown(name)!r} is repeated.")
        named[name] = value
    return read_properties(_MAPS, named)


def _check_life(field: str, life_s: int) -> None:
    if life_s != NEVER:
        within(field, life_s, NATIVE.time_to_live_s)


def _bytes_of(column: pa.Array) -> list[bytes]:
    """Return the bytes of all values, which is faster than to ask for one value after the other."""
    if not len(column):
        return []
    _, places, data = column.buffers()
    form: Literal["i", "q"] = "q" if column.type in {pa.large_binary(), pa.large_string()} else "i"
    width, first = struct.calcsize(form), column.offset
    # A buffer may be longer than its values are, by any number of bytes.
    offsets = memoryview(places)[first * width : (first + len(column) + 1) * width]
    ends = offsets.cast(form).tolist()
    content = memoryview(b"" if data is None else data)
    return [bytes(content[start:end]) for start, end in pairwise(ends)]
