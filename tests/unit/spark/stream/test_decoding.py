"""Bodies out of their encoding and into columns, and what cannot be decoded."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from leasehold.spark.options import BadOption
from leasehold.spark.schemas import MESSAGE
from leasehold.spark.stream.decoding import Decoded, Decoder
from tests.unit.spark.stream.driving import parsed

UTC = dt.UTC
NOW = dt.datetime(2026, 1, 1, tzinfo=UTC)


def page_of(bodies: list[bytes]) -> pa.RecordBatch:
    """Return a page as the server sends it."""
    count = len(bodies)
    time = pa.timestamp("us", "UTC")
    return pa.RecordBatch.from_pydict(
        {
            "message_id": [f"m{number}" for number in range(count)],
            "body": pa.array(bodies, pa.binary()),
            "inserted_at": pa.array([NOW] * count, time),
            "expires_at": pa.array([None] * count, time),
            "visible_since": pa.array([NOW] * count, time),
            "dequeue_count": pa.array([1] * count, pa.int32()),
            "fence": pa.array([1] * count, pa.int64()),
            "priority": pa.array([8] * count, pa.int8()),
            "message_type": pa.nulls(count, pa.string()),
            "traceparent": pa.nulls(count, pa.string()),
            "properties": pa.array([[]] * count, pa.map_(pa.string(), pa.string())),
        }
    )


def decoded(bodies: list[bytes], schema: StructType = MESSAGE, **options: str) -> Decoded:
    """Decode a page of such bodies with a decoder that has travelled."""
    decoder = pickle.loads(pickle.dumps(Decoder(parsed(**options), schema)))
    found: Decoded = decoder.decode(page_of(bodies), 7)
    assert decoder.decode(page_of(bodies), 7).batch.equals(found.batch)
    return found


def values(found: Decoded, name: str = "body") -> list[Any]:
    """Return the values of a column."""
    return list(found.batch.column(name).to_pylist())


# --- raw bodies --------------------------------------------------------------------------------


def test_plain_bodies_are_taken_as_they_are() -> None:
    """Any bytes, without a copy of their own."""
    found = decoded([b"\xff\x00", b""])
    assert values(found) == [b"\xff\x00", b""]
    assert found.bad == ()


def test_base64_is_decoded() -> None:
    """Bodies as the SDK for .NET sends them."""
    bodies = [b"hello", b"", b"\xff" * 100]
    found = decoded([base64.b64encode(body) for body in bodies], messageEncoding="base64")
    assert values(found) == bodies
    assert found.bad == ()


def test_what_is_not_base64_is_bad() -> None:
    """Only that is left out, and it is said which and why."""
    given = [base64.b64encode(b"one"), b"no base64!", base64.b64encode(b"two"), b"YQ"]
    found = decoded(given, messageEncoding="base64")
    assert values(found) == [b"one", b"two"]
    assert [each.message_id for each in found.bad] == ["m1", "m3"]
    assert "not base64" in found.bad[0].error


def test_base64_can_be_guessed() -> None:
    """With auto a body is decoded if it is base64 of text, and left alone otherwise."""
    found = decoded([base64.b64encode(b"hello world"), b"hello", b"{}"], messageEncoding="auto")
    assert values(found) == [b"hello world", b"hello", b"{}"]


def test_bad_rows_can_be_kept() -> None:
    """Then their body is null, and a column has what was sent."""
    schema = StructType().add("body", "binary").add("_corrupt_record", "string")
    given = [base64.b64encode(b"one"), b"no base64!"]
    found = decoded(given, schema, messageEncoding="base64", onBadRecord="keep")
    assert values(found) == [b"one", None]
    assert values(found, "_corrupt_record") == [None, "no base64!"]
    assert len(found.bad) == 1


def test_bodies_can_be_text() -> None:
    """A column of text takes UTF-8 and nothing else."""
    schema = StructType().add("message_id", "string", nullable=False).add("body", "string")
    found = decoded(["grün".encode(), b"\xff", b"x"], schema)
    assert values(found) == ["grün", "x"]
    assert found.bad[0].message_id == "m1"
    assert "not UTF-8" in found.bad[0].error


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (StructType().add("bodi", "binary"), "no column bodi. Did you mean body?"),
        (StructType().add("claim", "string"), "column claim is bigint, not string"),
    ],
)
def test_columns_that_messages_do_not_have_are_refused(schema: StructType, text: str) -> None:
    """With the nearest name, before anything is read."""
    with pytest.raises(BadOption, match=text.replace("?", "[?]")):
        Decoder(parsed(), schema)


def test_the_token_of_the_claim_is_a_column_where_it_is_asked_for() -> None:
    """Then the query settles single messages, and bad ones must be left to it."""
    schema = StructType().add("claim", "long", nullable=False).add("claim_token", "long")
    assert "claim_token" not in MESSAGE.names
    found = Decoder(parsed(), schema).decode(page_of([b"1", b"2"]), 7, 3)
    assert (values(found, "claim"), values(found, "claim_token")) == ([7, 7], [3, 3])
    with pytest.raises(BadOption, match="say onBadRecord=keep"):
        Decoder(parsed(messageEncoding="base64"), schema)
    with pytest.raises(BadOption, match="say onBadRecord=keep"):
        Decoder(parsed(), schema.add("body", "string"))
    with pytest.raises(BadOption, match="service=azure has no claims"):
        Decoder(parsed(service="azure"), schema)


# --- JSON --------------------------------------------------------------------------------------

ORDER = StructType().add("id", "long").add("name", "string").add("amount", "double")


def as_json(rows: list[Any], schema: StructType, **options: str) -> Decoded:
    """Decode bodies that say these values."""
    bodies = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    return decoded(bodies, schema, format="json", **options)


def test_json_becomes_columns() -> None:
    """By name; what is missing is null, what no column names is passed over."""
    rows = [{"id": 1, "name": "a", "amount": 1.5, "more": [1]}, {"name": None, "id": 2}]
    found = as_json(rows, ORDER)
    assert found.batch.to_pylist() == [
        {"id": 1, "name": "a", "amount": 1.5},
        {"id": 2, "name": None, "amount": None},
    ]


def test_the_message_stands_beside_json() -> None:
    """Its columns have a dash before their names."""
    schema = StructType().add("id", "long").add("_message_id", "string").add("_claim", "long")
    schema = schema.add("_inserted_at", "timestamp").add("_queue", "string")
    found = as_json([{"id": 1}], schema)
    assert found.batch.to_pylist() == [
        {"id": 1, "_message_id": "m0", "_claim": 7, "_inserted_at": NOW, "_queue": "orders"}
    ]


def test_all_types_of_json() -> None:
    """Numbers of all sizes, times, decimals, bytes, and what is nested."""
    inner = StructType().add("x", "string").add("n", "integer")
    schema = StructType().add("b", "byte").add("s", "short").add("i", "integer").add("f", "float")
    schema = schema.add("ok", "boolean").add("d", "date").add("t", "timestamp")
    schema = schema.add("local", "timestamp_ntz").add("price", "decimal(10,2)")
    schema = schema.add("raw", "binary").add("inner", inner)
    row = {
        "b": -128,
        "s": 32767,
        "i": -1,
        "f": 1,
        "ok": True,
        "d": "2026-02-03",
        "t": "2026-02-03T04:05:06+02:00",
        "local": "2026-02-03T04:05:06",
        "price": "12.50",
        "raw": "AAE=",
        "inner": {"x": "y", "n": 3, "z": 4},
    }
    (found,) = as_json([row], schema).batch.to_pylist()
    assert found == {
        "b": -128,
        "s": 32767,
        "i": -1,
        "f": 1.0,
        "ok": True,
        "d": dt.date(2026, 2, 3),
        "t": dt.datetime(2026, 2, 3, 2, 5, 6, tzinfo=UTC),
        "local": dt.datetime(2026, 2, 3, 4, 5, 6),  # noqa: DTZ001 - such is the type
        "price": decimal.Decimal("12.50"),
        "raw": b"\x00\x01",
        "inner": {"x": "y", "n": 3},
    }


def test_lists_and_maps_of_json() -> None:
    """Of any depth; null where the columns allow it."""
    lists = ArrayType(ArrayType(LongType()))
    maps = MapType(StringType(), ArrayType(StringType()))
    schema = StructType().add("lists", lists).add("maps", maps)
    (found,) = as_json(
        [{"lists": [[1, None], None], "maps": {"a": ["b"]}}], schema
    ).batch.to_pylist()
    assert found == {"lists": [[1, None], None], "maps": [("a", ["b"])]}


BAD = [
    b"",
    b"not json",
    b'{"id": 1',
    b'{"id": 1} {"id": 2}',
    b"[1]",
    b"null",
    {"id": "1"},
    {"id": 1.5},
    {"id": 1 << 63},
    {"name": 5},
    b'{"name": "\xff"}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("body", BAD, ids=lambda body: str(body)[:20])
def test_bad_json_spoils_no_other(body: Any) -> None:
    """A body that is no JSON, or does not fit, is the only one left out."""
    found = as_json([{"id": 1}, body, {"id": 2}], ORDER)
    assert values(found, "id") == [1, 2]
    assert [each.message_id for each in found.bad] == ["m1"]
    assert "does not fit the columns" in found.bad[0].error


def test_two_halves_of_an_object_are_two_bad_rows() -> None:
    """Bodies are parsed one by one: together they could be taken for one that is good."""
    found = as_json([b'{"id": 1', b', "name": "a"} {"id": 3}'], ORDER)
    assert (found.batch.num_rows, len(found.bad)) == (0, 2)


def test_values_that_arrow_refuses_are_bad() -> None:
    """A decimal too long for its column is found, and its text is not shown."""
    schema = StructType().add("price", "decimal(5,2)")
    rows = [b'{"price": "1.25"}', b'{"price": "99999.123"}', b'{"price": "2"}']
    found = as_json(rows, schema)
    assert values(found, "price") == [decimal.Decimal("1.25"), decimal.Decimal("2.00")]
    assert [each.message_id for each in found.bad] == ["m1"]
    assert "99999" not in found.bad[0].error


def test_bad_json_can_be_kept() -> None:
    """Its row has nulls, and the text in a column of the name that the user chose."""
    schema = StructType().add("id", "long").add("broken", "string").add("_message_id", "string")
    options = {"onBadRecord": "keep", "columnNameOfCorruptRecord": "broken"}
    found = as_json([{"id": 1}, b"\xff no"], schema, **options)
    assert found.batch.to_pylist() == [
        {"id": 1, "broken": None, "_message_id": "m0"},
        {"id": None, "broken": "\ufffd no", "_message_id": "m1"},
    ]


def test_required_columns_are_required() -> None:
    """A body without one, or with null there, is bad."""
    schema = StructType().add("id", "long", nullable=False).add("name", "string")
    found = as_json([{"id": 1}, {"name": "x"}, {"id": None}], schema)
    assert values(found, "id") == [1]
    assert len(found.bad) == 2


def test_required_columns_cannot_be_kept_null() -> None:
    """Both together have no answer for a bad body."""
    schema = StructType().add("id", "long", nullable=False)
    with pytest.raises(BadOption, match="column id must be nullable"):
        Decoder(parsed(format="json", onBadRecord="keep"), schema)


@pytest.mark.parametrize("kind", [DayTimeIntervalType(), MapType(LongType(), LongType())])
def test_types_that_json_has_not_are_refused(kind: DataType) -> None:
    """Before anything is read."""
    with pytest.raises(BadOption, match="column odd"):
        Decoder(parsed(format="json"), StructType().add("odd", kind))


def test_json_in_base64() -> None:
    """The two go together."""
    body = base64.b64encode(b'{"id": 5}')
    found = as_json([body, b"{}"], ORDER, messageEncoding="base64")
    assert values(found, "id") == [5]
    assert len(found.bad) == 1


def test_guessed_base64_of_json() -> None:
    """With auto, plain and encoded bodies can be mixed."""
    body = base64.b64encode(b'{"id": 5}')
    found = as_json([body, {"id": 6}], ORDER, messageEncoding="auto")
    assert values(found, "id") == [5, 6]
