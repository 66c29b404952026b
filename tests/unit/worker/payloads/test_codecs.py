"""Codecs: what they write, what they read, and what they refuse."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.worker.errors import Poison
from leasehold.worker.message import Message
from leasehold.worker.payloads import (
    BytesCodec,
    Codec,
    CodecProblem,
    JsonCodec,
    TextCodec,
    TypedCodec,
    codec_named,
)
from tests.unit.worker.stages.support import Bench


@dataclass
class Clip:
    name: str
    seconds: int = 0


@pytest.mark.parametrize(
    ("codec", "value", "body", "content_type"),
    [
        (BytesCodec(), b"\xff\x00", b"\xff\x00", "application/octet-stream"),
        (TextCodec(), "käse", "käse".encode(), "text/plain; charset=utf-8"),
        (JsonCodec(), {"a": [1, None, "ä"]}, '{"a":[1,null,"ä"]}'.encode(), "application/json"),
        (TypedCodec(Clip), Clip("a", 7), b'{"name":"a","seconds":7}', "application/json"),
        (
            TypedCodec(list[int], form="msgpack"),
            [1, 2],
            b"\x92\x01\x02",
            "application/msgpack",
        ),
    ],
)
def test_values_come_back(codec: Codec, value: Any, body: bytes, content_type: str) -> None:
    """A value is written as documented, and read as it was."""
    assert codec.encode(value) == body
    assert codec.decode(body) == value
    assert codec.content_type == content_type


@pytest.mark.parametrize(
    ("codec", "body", "problem"),
    [
        (TextCodec(), b"\xff", "not UTF-8"),
        (JsonCodec(), b"", "not JSON"),
        (JsonCodec(), b"{", "not JSON"),
        (JsonCodec(), b"NaN", "NaN"),
        (JsonCodec(), b"\xff", "not JSON"),
        (JsonCodec(), b"[" * 100_000, "not JSON"),
        (TypedCodec(Clip), b'{"seconds": 7}', r"no Clip: .*`name`"),
        (TypedCodec(Clip), b'{"name": "a", "seconds": "7"}', "no Clip"),
        (TypedCodec(Clip), b"[", "no Clip"),
        (TypedCodec(list[int], form="msgpack"), b"\xc1", "list"),
    ],
)
def test_what_cannot_be_read_is_a_problem(codec: Codec, body: bytes, problem: str) -> None:
    """A body of another kind is a CodecProblem that says what is wrong."""
    with pytest.raises(CodecProblem, match=problem):
        codec.decode(body)


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (BytesCodec(), "text"),
        (TextCodec(), b"bytes"),
        (JsonCodec(), {1, 2}),
        (JsonCodec(), float("nan")),
        (TypedCodec(Clip), object()),
    ],
)
def test_what_cannot_be_written_is_refused(codec: Codec, value: Any) -> None:
    """A value of another kind is a TypeError of the sender."""
    with pytest.raises(TypeError):
        codec.encode(value)


def test_types_can_be_lenient() -> None:
    """Without strict, what can be converted is."""
    codec = TypedCodec(Clip, strict=False)
    assert codec.decode(b'{"name": "a", "seconds": "7"}') == Clip("a", 7)


def test_msgspec_is_asked_for_only_by_those_who_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library the other codecs work, and the typed one says what is missing."""
    monkeypatch.setitem(sys.modules, "msgspec", None)
    assert JsonCodec().decode(b"1") == 1
    with pytest.raises(ImportError, match="msgspec"):
        TypedCodec(Clip)


def test_codecs_have_names() -> None:
    """The command line names a codec; an unknown name lists those there are."""
    assert codec_named("json").decode(b"1") == 1
    assert codec_named("text").decode(b"1") == "1"
    assert codec_named("bytes").decode(b"1") == b"1"
    with pytest.raises(ValueError, match="'xml' is not a codec; the codecs are bytes, json, text"):
        codec_named("xml")


def test_a_body_that_cannot_be_read_is_poison() -> None:
    """With a message, the problem of the codec sets it aside, with that reason."""
    bench = Bench()
    delivery = bench.receive().delivery
    message = Message(delivery, bench.holding, bench.time, JsonCodec().decode)
    with pytest.raises(Poison, match="the body is not JSON"):
        _ = message.payload


@given(st.text())
def test_text_comes_back(text: str) -> None:
    """Any text is written and read."""
    assert TextCodec().decode(TextCodec().encode(text)) == text
