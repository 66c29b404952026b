"""Bodies that are JSON, as columns of the types that a user has named.

Each body is parsed by itself, so that one that is bad says so and spoils no other. A value that is
not of its column's type makes the body bad; members that no column names are passed over.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Annotated, Any, Final, Required, TypedDict

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

from leasehold.spark.options import BadOption
from leasehold.spark.schemas import arrow_schema


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
