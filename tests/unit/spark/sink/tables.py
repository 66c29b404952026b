"""Schemas without a session, which alone can read them from text."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)

_KINDS: Final[dict[str, DataType]] = {
    "binary": BinaryType(),
    "string": StringType(),
    "tinyint": ByteType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "void": NullType(),
    "map<string,int>": MapType(StringType(), IntegerType()),
    "map<string,string>": MapType(StringType(), StringType()),
}


def table_of(ddl: str) -> StructType:
    """Return a schema: names and types, with ``, `` between columns."""
    columns = [column.split(" ") for column in ddl.split(", ")]
    return StructType([StructField(name, _KINDS[kind]) for name, kind in columns])
