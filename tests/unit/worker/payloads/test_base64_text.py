"""Whether a text is base64: what senders write, and what readers make of it."""

from __future__ import annotations

import base64
import json
import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.worker.payloads import (
    Base64Policy,
    EncodingProblem,
    decode_text,
    detect_base64,
    encode_text,
)

BODY = '{"video": "käse.mp4"}'.encode()
ENCODED = base64.b64encode(BODY).decode()


def encoded(body: bytes) -> str:
    return base64.b64encode(body).decode()


@pytest.mark.parametrize(
    ("sender", "text", "body"),
    [
        # What each SDK puts into MessageText for the body, at its own settings.
        ("Python v12: NoEncodePolicy", BODY.decode(), BODY),
        ("JavaScript v12", BODY.decode(), BODY),
        (".NET v12: MessageEncoding.None", BODY.decode(), BODY),
        (".NET v11 and WebJobs", ENCODED, BODY),
        ("Python v12: TextBase64EncodePolicy", ENCODED, BODY),
        ("Python v12: BinaryBase64EncodePolicy", encoded(BODY), BODY),
    ],
)
@pytest.mark.parametrize("reads", [None, json.loads])
def test_auto_reads_what_the_sdks_send(sender: str, text: str, body: bytes, reads: object) -> None:
    """With "auto" the body comes out, whichever SDK has sent it."""
    assert decode_text(text, "auto", reads) == body  # type: ignore[arg-type]


def test_the_policies_take_a_text_at_their_word() -> None:
    """ "none" never decodes, "base64" always does."""
    assert decode_text(ENCODED, "none") == ENCODED.encode()
    assert decode_text(ENCODED, "base64") == BODY
    assert decode_text(encoded(b"\xff\x00"), "base64") == b"\xff\x00"
    assert decode_text("", "base64") == b""


@pytest.mark.parametrize("text", [BODY.decode(), "abc", "YQ", "YQ==\n", "Y Q=", "-_-_", "käse"])
def test_what_is_not_base64_is_an_encoding_problem(text: str) -> None:
    """With "base64" anything else is an error that says so."""
    with pytest.raises(EncodingProblem, match="encoding: the body is not base64"):
        decode_text(text, "base64")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "test",  # of the alphabet and of the right length, but its bytes are not UTF-8
        "käse",
        ENCODED + "\n",
        ENCODED.rstrip("="),
        "aGk=aGk=",
        "YR==",  # a stray bit in the last character
        encoded(b"\xff\xfe\xfd"),
        encoded(b"a\x00b"),
        encoded(b"\x1b[31m"),
        encoded("\x85".encode()),
        "-_-_",
        "0" * 32,
        "2024",
    ],
)
def test_what_is_not_surely_base64_is_left_alone(text: str) -> None:
    """Text that no encoder would have written, or that decodes to no text, is itself."""
    assert detect_base64(text) is None
    assert decode_text(text) == text.encode()


def test_a_reader_settles_what_could_be_both() -> None:
    """Where the reader can read the text itself, or not the decoded one, it is not decoded."""
    number = encoded(b"123")
    assert detect_base64(number, json.loads) == b"123"
    assert detect_base64(encoded(b"hello"), json.loads) is None
    both = "MTIz" + "MTIz"
    assert detect_base64(both) == b"123123"
    assert detect_base64(both, lambda body: body) is None
    readable = "12345678"
    assert detect_base64(readable, json.loads) is None


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_base64_of_text_is_found(text: str) -> None:
    """Whatever text an SDK has encoded is decoded."""
    assert detect_base64(encoded(text.encode())) == text.encode()


@given(st.text())
def test_text_that_is_found_was_written_by_an_encoder(text: str) -> None:
    """What is decoded can be encoded to the very same text."""
    found = detect_base64(text)
    assert found is None or encoded(found) == text


@given(st.text() | st.binary(max_size=60).map(encoded), st.sampled_from(["auto", "base64", "none"]))
def test_what_is_encoded_comes_back(text: str, policy: Base64Policy) -> None:
    """A text that was encoded by a policy is decoded by it."""
    body = text.encode()
    assert decode_text(encode_text(body, policy), policy) == body


@given(st.binary())
def test_bytes_come_back_with_base64(body: bytes) -> None:
    """With "base64" any bytes come back."""
    assert decode_text(encode_text(body, "base64"), "base64") == body


@pytest.mark.parametrize("policy", ["auto", "none"])
def test_bytes_cannot_be_text(policy: Base64Policy) -> None:
    """Bytes that are not UTF-8 are an error without base64."""
    with pytest.raises(EncodingProblem, match="not UTF-8"):
        encode_text(b"\xff", policy)


@pytest.mark.parametrize(
    ("characters", "length", "percent"),
    [
        (string.ascii_letters + string.digits, 4, 10),
        (string.ascii_letters + string.digits, 8, 1.2),
        (string.ascii_lowercase, 8, 0.7),
        ("0123456789abcdef", 8, 1.6),
        (string.digits, 8, 2.1),
        ("0123456789abcdef", 32, 0),
    ],
)
def test_the_error_rate_is_as_documented(characters: str, length: int, percent: float) -> None:
    """The figures in the documentation are not too kind."""
    draw = random.Random(7)
    texts = ["".join(draw.choices(characters, k=length)) for _ in range(10_000)]
    wrong = sum(detect_base64(text) is not None for text in texts)
    assert wrong * 100 / len(texts) <= percent
