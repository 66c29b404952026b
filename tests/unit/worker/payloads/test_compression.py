"""Bodies that are made smaller, and those that are made to fill the memory."""

from __future__ import annotations

import base64
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.worker.payloads import BytesCodec, CodecProblem, Compressed, JsonCodec
from leasehold.worker.payloads.codecs import compress

CODEC = Compressed(BytesCodec(), min_bytes=100, most_bytes=1_000_000)


def form(data: bytes, size: int, version: int = 1) -> bytes:
    encoded = base64.b64encode(data).decode()
    return json.dumps({"leasehold.zlib": version, "size": size, "data": encoded}).encode()


def test_large_bodies_get_smaller() -> None:
    """What can be compressed is, in a form that is text, and comes back."""
    body = b"again and again " * 1000
    packed = CODEC.encode(body)
    assert len(packed) < 300
    assert json.loads(packed)["size"] == len(body)
    assert CODEC.decode(packed) == body


@pytest.mark.parametrize("body", [b"", b"short" * 10, bytes(range(256))])
def test_small_bodies_are_left_alone(body: bytes) -> None:
    """What is small, or would not get smaller, is sent as it is."""
    assert CODEC.encode(body) == body
    assert CODEC.decode(body) == body


@given(st.binary(max_size=2000) | st.binary(max_size=30).map(lambda part: part * 50))
def test_all_bodies_come_back(body: bytes) -> None:
    """Compressed or not, a body comes back as it was."""
    assert CODEC.decode(CODEC.encode(body)) == body


@pytest.mark.parametrize("body", [compress(b"x"), b'{"leasehold.zlib": 2}'])
def test_a_body_that_looks_compressed_comes_back(body: bytes) -> None:
    """A body of the compressed form is wrapped, so that it is not unpacked by mistake."""
    assert CODEC.encode(body) != body
    assert CODEC.decode(CODEC.encode(body)) == body


@pytest.mark.parametrize(
    "body",
    [
        b'{"leasehold.zlib": 1}',
        b'{"leasehold.zlib": 1, "size": true, "data": ""}',
        b'{"leasehold.zlib": "1", "size": 1, "data": ""}',
        b'{"leasehold.zlib": 1, "size": 1, "data": "", "more": 1}',
        b'["leasehold.zlib"]',
        b"leasehold.zlib",
    ],
)
def test_look_alikes_are_bodies(body: bytes) -> None:
    """What is not exactly of the form is a body."""
    assert CODEC.decode(body) == body
    assert CODEC.encode(body) == body


def test_a_bomb_is_not_unpacked() -> None:
    """Neither one that says how large it is, nor one that lies about it."""
    bomb = zlib.compress(bytes(100_000_000))
    with pytest.raises(CodecProblem, match="100000000 bytes; at most 1000000"):
        CODEC.decode(form(bomb, 100_000_000))
    with pytest.raises(CodecProblem, match="does not have the 10 bytes"):
        CODEC.decode(form(bomb, 10))


@pytest.mark.parametrize(
    "body",
    [
        form(b"no zlib", 7),
        form(zlib.compress(b"hello")[:-1], 5),
        form(zlib.compress(b"hello") + b"more", 5),
        form(zlib.compress(b"hello"), 4),
        form(zlib.compress(b"hello"), 6),
        form(zlib.compress(b"hello"), -1),
        form(zlib.compress(b""), 1),
        b'{"leasehold.zlib": 1, "size": 5, "data": "***"}',
        form(zlib.compress(b"hello"), 5, version=2),
    ],
)
def test_damage_is_a_problem(body: bytes) -> None:
    """A damaged or a later form is an error, and no body."""
    with pytest.raises(CodecProblem):
        CODEC.decode(body)


def test_what_is_inside_is_read_by_its_codec() -> None:
    """The codec inside says what bodies mean, and its problems are passed on."""
    codec = Compressed(JsonCodec(), min_bytes=10)
    value = ["x" * 1000]
    assert codec.decode(codec.encode(value)) == value
    assert codec.content_type == "application/json"
    with pytest.raises(CodecProblem, match="not JSON"):
        codec.decode(compress(b"{"))


def test_empty_bodies_can_be_compressed() -> None:
    """An empty body in the compressed form is an empty body."""
    assert CODEC.decode(compress(b"")) == b""
