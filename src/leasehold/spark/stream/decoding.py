"""From what the server sends to what Spark takes: columns of Arrow, and what cannot be decoded.

A page is decoded as a whole where that is possible, and row by row only to find what is bad.
"""

from __future__ import annotations

import binascii
import datetime as dt
import decimal
from collections.abc import Callable, Mapping, Sequence
from types import GenericAlias
from typing import Annotated, Any, Final, NamedTuple, Required, TypedDict

import msgspec
import pyarrow as pa
from msgspec import Meta
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from leasehold.spark.options import BadOption, ReadOptions, nearest
from leasehold.spark.schemas import CLAIM_TOKEN, MESSAGE, arrow_schema

_BODY: Final = "body"
_BESIDE: Final = "_"
"""With format=json, columns of the message stand beside those of the body under this and theirs."""


class Bad(NamedTuple):
    """A message that cannot be decoded."""

    message_id: str
    error: str
    """What is wrong. It shows nothing of the body."""


class Decoded(NamedTuple):
    """A page as Spark takes it."""

    batch: pa.RecordBatch
    """Without the bad rows, unless they are kept."""
    bad: tuple[Bad, ...]


class Decoder:
    """Turns pages of a claim into batches of the columns asked for. It can be pickled.

    Args:
        options: Of the read.
        schema: What Spark expects.

    Raises:
        BadOption: There are columns that messages do not have.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._keeps = options.on_bad_record == "keep"
        self._corrupt = options.column_name_of_corrupt_record
        self._json: JsonRows | None = None
        plan = self._plan_json if options.format == "json" else self._plan_raw
        self._columns = [plan(field.name, field.dataType) for field in schema.fields]
        """What each column is filled with: a column of the page, "body", "json" or "corrupt"."""
        if CLAIM_TOKEN.name in self._columns:
            self._check_own_exemptions()
        if self._keeps and options.format == "json":
            self._refuse_not_null()
        self._target: pa.Schema | None = None
        self._fields: StructType | None = None
        if options.format == "json":
            parsed = zip(schema.fields, self._columns, strict=True)
            self._fields = StructType([field for field, kind in parsed if kind == "json"])
            JsonRows(self._fields)  # refuses types that JSON cannot give

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_target": None, "_json": None}

    def decode(self, page: pa.RecordBatch, number: int, token: int = 0) -> Decoded:
        """Return a page in the columns asked for.

        Args:
            page: As the server sends it.
            number: Of the claim.
            token: Of the stream.
        """
        if self._target is None:
            self._target = arrow_schema(self._schema)
            self._json = None if self._fields is None else JsonRows(self._fields)
        bodies, errors = self._bodies(page.column(_BODY))
        parsed: dict[str, pa.Array] = {}
        if self._json is not None:
            values = bodies if isinstance(bodies, list) else bodies.to_pylist()
            parsed = self._json.columns(values, errors)
        elif any(kind == "text" for kind in self._columns):
            parsed = {_BODY: _texts(bodies, errors)}
        if not isinstance(bodies, pa.Array):
            bodies = pa.array(bodies, pa.binary())
        claim = {"claim": number, CLAIM_TOKEN.name: token}
        batch = self._batch(page, claim, bodies, parsed, errors)
        if not errors:
            return Decoded(batch, ())
        ids = page.column("message_id")
        bad = tuple(Bad(ids[row].as_py(), errors[row]) for row in sorted(errors))
        if not self._keeps:
            good = [row for row in range(page.num_rows) if row not in errors]
            batch = batch.take(pa.array(good, pa.int64()))  # of none, Arrow would not know the type
        return Decoded(batch, bad)

    # --- planning ------------------------------------------------------------------------------

    def _plan_raw(self, name: str, kind: DataType) -> str:
        lower = name.lower()
        if lower == self._corrupt.lower() and isinstance(kind, StringType):
            return "corrupt"
        known = {field.name: field for field in (*MESSAGE.fields, CLAIM_TOKEN)}
        if lower not in known:
            hint = nearest(name, [*known])
            raise BadOption(f"messages have no column {name}.{hint} Or is it format=json?")
        if lower == _BODY and isinstance(kind, StringType):
            return "text"
        if kind != known[lower].dataType:
            wanted = known[lower].dataType.simpleString()
            raise BadOption(f"column {name} is {wanted}, not {kind.simpleString()}")
        return lower

    def _plan_json(self, name: str, kind: DataType) -> str:
        lower = name.lower()
        if lower == self._corrupt.lower() and isinstance(kind, StringType):
            return "corrupt"
        for field in (*MESSAGE.fields, CLAIM_TOKEN):
            if lower == _BESIDE + field.name and kind == field.dataType:
                return field.name
        return "json"

    def _check_own_exemptions(self) -> None:
        """Refuse exemptions of two parties: those of the sink replace those of the reader."""
        options = self._options
        if options.service == "azure":
            raise BadOption(f"service=azure has no claims, so no column {CLAIM_TOKEN.name}")
        can_be_bad = options.message_encoding == "base64" or {"json", "text"} & {*self._columns}
        if can_be_bad and options.on_bad_record == "poison":
            raise BadOption(
                f"with the column {CLAIM_TOKEN.name} the query settles single messages itself: say "
                "onBadRecord=keep, and set those aside that have nulls; or fail"
            )

    def _refuse_not_null(self) -> None:
        for field, kind in zip(self._schema.fields, self._columns, strict=True):
            if kind == "json" and not field.nullable:
                raise BadOption(
                    f"column {field.name} must be nullable with onBadRecord=keep: it is null where "
                    "a body cannot be parsed"
                )

    # --- bodies --------------------------------------------------------------------------------

    def _bodies(self, column: pa.Array) -> tuple[Any, dict[int, str]]:
        """Return the bodies out of their encoding, and what is wrong with some, by row."""
        encoding = self._options.message_encoding
        if encoding == "none":
            return column, {}
        given = column.to_pylist()
        if encoding == "auto":
            return [_guessed(body) for body in given], {}
        try:
            return [binascii.a2b_base64(body, strict_mode=True) for body in given], {}
        except binascii.Error:
            return _each(given, _from_base64)

    # --- columns -------------------------------------------------------------------------------

    def _batch(
        self,
        page: pa.RecordBatch,
        claim: Mapping[str, int],
        bodies: pa.Array,
        parsed: dict[str, pa.Array],
        errors: dict[int, str],
    ) -> pa.RecordBatch:
        assert self._target is not None
        columns = []
        for field, kind in zip(self._target, self._columns, strict=True):
            if kind == "json":
                column = parsed[field.name]
            elif kind == "text":
                column = parsed[_BODY]
            elif kind == _BODY:
                column = bodies
            elif kind == "corrupt":
                column = self._corrupt_texts(page, errors)
            elif kind == "queue":
                column = pa.repeat(pa.scalar(self._options.place.queue, pa.string()), page.num_rows)
            elif kind in claim:
                column = pa.repeat(pa.scalar(claim[kind], pa.int64()), page.num_rows)
            elif kind not in page.schema.names:  # of a server that has not heard of it
                column = pa.nulls(page.num_rows, field.type)
            else:
                column = page.column(kind)
            columns.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._target)

    def _corrupt_texts(self, page: pa.RecordBatch, errors: dict[int, str]) -> pa.Array:
        if not errors:
            return pa.nulls(page.num_rows, pa.string())
        given = page.column(_BODY)
        return pa.array(
            [
                given[row].as_py().decode("utf-8", "replace") if row in errors else None
                for row in range(page.num_rows)
            ],
            pa.string(),
        )


def _each(given: Sequence[Any], decode: Callable[[Any], Any]) -> tuple[list[Any], dict[int, str]]:
    """Decode one by one; what cannot be is None, and has a text that says why."""
    values: list[Any] = []
    errors: dict[int, str] = {}
    for row, each in enumerate(given):
        try:
            values.append(None if each is None else decode(each))
        except ValueError as error:
            values.append(None)
            errors[row] = str(error)
    return values, errors


def _from_base64(body: bytes) -> bytes:
    try:
        return binascii.a2b_base64(body, strict_mode=True)
    except binascii.Error as error:
        raise ValueError(f"the body is not base64: {error}") from None


def _guessed(body: bytes) -> bytes:
    from leasehold.worker.adapters.texts import detect_base64  # noqa: PLC0415 - as needed

    if len(body) % 4 or not body.isascii():
        return body
    found = detect_base64(body.decode("ascii"))
    return body if found is None else found


def _from_utf8(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"the body is not UTF-8: {error.reason} at {error.start}") from None


def _texts(bodies: Any, errors: dict[int, str]) -> pa.Array:
    """Return bodies as text; notes in *errors* which are not."""
    column = bodies if isinstance(bodies, pa.Array) else pa.array(bodies, pa.binary())
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        values, bad = _each(column.to_pylist(), _from_utf8)
        errors.update(bad)
        return pa.array(values, pa.string())


# --- jsonrows ----------------------------------------------------------------------------------
#
# Bodies that are JSON, as columns of the types that a user has named.
#
# Each body is parsed by itself, so that one that is bad says so and spoils no other. A value that
# is not of its column's type makes the body bad; members that no column names are passed over.


def _whole(bits: int) -> Any:
    most = (1 << (bits - 1)) - 1
    return Annotated[int, Meta(ge=-most - 1, le=most)]


_PLAIN: Final[dict[type[DataType], Any]] = {
    StringType: str,
    BooleanType: bool,
    ByteType: _whole(8),
    ShortType: _whole(16),
    IntegerType: _whole(32),
    LongType: _whole(64),
    FloatType: float,
    DoubleType: float,
    DecimalType: decimal.Decimal,
    DateType: dt.date,
    TimestampType: dt.datetime,
    TimestampNTZType: dt.datetime,
    BinaryType: bytes,
}


class JsonRows:
    """Parses bodies into columns.

    Args:
        fields: The columns, by the names that the members of the bodies have.

    Raises:
        BadOption: A column has a type that JSON cannot give.
    """

    def __init__(self, fields: StructType) -> None:
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(_record(fields, "")).decode
        self._kind = pa.struct(list(arrow_schema(fields)))

    def columns(
        self, bodies: Sequence[bytes | None], errors: dict[int, str]
    ) -> dict[str, pa.Array]:
        """Return the columns by name.

        Args:
            bodies: One for each row; None for what is bad already.
            errors: By row; what is found to be bad is added. Bad rows are null in all columns.
        """
        decode = self._decode
        rows: list[dict[str, Any]] = []
        for row, body in enumerate(bodies):
            if body is None:
                rows.append({})
                continue
            try:
                rows.append(decode(body))
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                rows.append({})
                errors[row] = f"the body does not fit the columns: {error}"
        try:
            return self._arrays(rows)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            self._find_unfit(rows, errors)
            return self._arrays(rows)

    def _arrays(self, rows: list[dict[str, Any]]) -> dict[str, pa.Array]:
        table = pa.array(rows, self._kind)
        return {field.name: table.field(place) for place, field in enumerate(self._kind)}

    def _find_unfit(self, rows: list[dict[str, Any]], errors: dict[int, str]) -> None:
        """Empty the rows that have values outside their columns' types, such as long decimals."""
        for row, values in enumerate(rows):
            try:
                pa.array([values], self._kind)
            except (pa.ArrowException, OverflowError, TypeError, ValueError):
                rows[row] = {}
                errors[row] = "the body has a value that does not fit its column"


def _record(fields: StructType, path: str) -> Any:
    """Return the type of an object."""
    members = {
        field.name: _member(field.dataType, nullable=field.nullable, path=f"{path}{field.name}")
        if field.nullable
        else Required[_member(field.dataType, nullable=False, path=f"{path}{field.name}")]
        for field in fields.fields
    }
    return TypedDict("Record", members, total=False)  # type: ignore[operator]


def _member(kind: DataType, *, nullable: bool, path: str) -> Any:
    found = _type_of(kind, path)
    return found | None if nullable else found


def _type_of(kind: DataType, path: str) -> Any:
    if isinstance(kind, StructType):
        return _record(kind, f"{path}.")
    if isinstance(kind, ArrayType):
        element = _member(kind.elementType, nullable=kind.containsNull, path=f"{path}[]")
        return GenericAlias(list, (element,))
    if isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            raise BadOption(f"column {path}: the keys of a map in JSON are strings")
        value = _member(kind.valueType, nullable=kind.valueContainsNull, path=f"{path}{{}}")
        return GenericAlias(dict, (str, value))
    for known, made in _PLAIN.items():
        if isinstance(kind, known):
            return made
    raise BadOption(f"column {path}: {kind.simpleString()} cannot be read from JSON")
