"""From the rows of a table to the messages that they are: which columns, of which types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
)

from leasehold.spark.options import WriteOptions, nearest

_TEXT: Final = (StringType,)
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)

COLUMNS: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "body": (BinaryType, StringType),
    "queue": _TEXT,
    "delay_s": _WHOLE,
    "time_to_live_s": _WHOLE,
    "priority": _WHOLE,
    "message_type": _TEXT,
    "traceparent": _TEXT,
    "properties": (MapType,),
    "dedup_key": _TEXT,
}
"""What a row may say of its message, and in which types of Spark."""

_PROPERTIES: Final = pa.map_(pa.string(), pa.string())
_WORDS: Final = {
    BinaryType: "binary",
    StringType: "string",
    ByteType: "a whole number",
    MapType: "map<string,string>",
}


class BadColumns(ValueError):
    """The table cannot be sent: it has columns that are no part of a message, or lacks some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """How the rows of one table become messages. It can be pickled."""

    names: tuple[str, ...]
    """Names of the columns, in the order of the table."""
    defaults: tuple[tuple[str, int], ...]
    """For rows that do not say it themselves."""

    @classmethod
    def of(cls, options: WriteOptions, schema: StructType) -> Rows:
        """Return how to send a table with these columns.

        Raises:
            BadColumns: It has one that is unknown or of a wrong type, or one is missing.
        """
        names = tuple(field.name.lower() for field in schema.fields)
        for field, name in zip(schema.fields, names, strict=True):
            _check(field.name, name, field.dataType)
        if len(set(names)) < len(names):
            raise BadColumns("two columns have the same name, but for upper and lower case")
        if "body" not in names:
            raise BadColumns(
                "the column body is missing: it is the message; "
                "for JSON of whole rows select to_json(struct(*)) AS body"
            )
        if "queue" not in names and options.place.queue is None:
            raise BadColumns("name the queue: by the option queueName, or in a column queue")
        given = {
            "delay_s": options.delay or None,
            "time_to_live_s": options.time_to_live,
            "priority": options.priority,
        }
        defaults = tuple((name, value) for name, value in given.items() if value is not None)
        return cls(names=names, defaults=defaults)

    def messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch as the server takes it.

        Raises:
            BadColumns: A row has no body.
        """
        columns = dict(zip(self.names, batch.columns, strict=True))
        if columns["body"].null_count:
            raise BadColumns("a row has null for its body; filter such rows out first")
        for name, value in self.defaults:
            found = columns.get(name)
            columns[name] = (
                pa.repeat(pa.scalar(value, pa.int64()), batch.num_rows)
                if found is None or pa.types.is_null(found.type)
                else pc.fill_null(found.cast(pa.int64()), value)
            )
        given = {
            name: _plain(name, column)
            for name, column in columns.items()
            if not pa.types.is_null(column.type)
        }
        return pa.RecordBatch.from_arrays(list(given.values()), names=list(given))


def _plain(name: str, column: Any) -> Any:
    """Return a column in a type that the server takes."""
    # Spark names the members of a map's entries as it likes.
    return column.cast(_PROPERTIES) if name == "properties" else column


def _check(shown: str, name: str, kind: DataType) -> None:
    kinds = COLUMNS.get(name)
    if kinds is None:
        raise BadColumns(
            f"a message has no {shown}.{nearest(name, [*COLUMNS])} Its columns are "
            f"{', '.join(COLUMNS)}; to send whole rows select to_json(struct(*)) AS body"
        )
    fits = isinstance(kind, kinds) or (isinstance(kind, NullType) and name != "body")
    if isinstance(kind, MapType):
        fits = fits and isinstance(kind.keyType, StringType)
        fits = fits and isinstance(kind.valueType, StringType)
    if not fits:
        wanted = " or ".join(_WORDS[each] for each in kinds if each in _WORDS)
        raise BadColumns(f"the column {shown} is {kind.simpleString()}, and has to be {wanted}")
