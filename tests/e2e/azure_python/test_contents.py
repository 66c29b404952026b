"""What is in a message comes out as it went in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
from azure.core.exceptions import DecodeError
from azure.storage.queue import (
    BinaryBase64DecodePolicy,
    BinaryBase64EncodePolicy,
    TextBase64DecodePolicy,
    TextBase64EncodePolicy,
)
from cryptography.hazmat.primitives import keywrap

from tests.e2e.azure_python.covers import covers
from tests.e2e.azure_python.refusals import refused

if TYPE_CHECKING:
    from tests.e2e.azure_python.sdk import Sdk

LIMIT: Final = 65_536
TEXTS: Final = {
    "letters": "hello",
    "one space": " ",
    "outer white space": " \t\n text \n\t ",
    "lines": "one\ntwo\n\nthree\n",
    "markup": "<MessageText>&amp;</MessageText><!-- ]]> -->",
    "quotes": "\"double\" 'single' `back`",
    "entity look-alikes": "&lt; &#x41; &#65; &nbsp; %3C %41 +",
    "escapes": "\\n \\u0041 \\x41 \\",
    "latin": "Größe façade ñandú",
    "scripts": "中文 日本語 한국어 العربية עברית हिन्दी ไทย",
    "emoji": "🎉👩‍👩‍👧‍👦🏳️‍🌈𝄞",
    "combining": "e\u0301 é \u200f\u202e\u2066",
    "edges of XML": "\t\n\x7f\x85\u2028\ud7ff\ue000\ufffd\U00010000\U0010ffff",
    "byte order mark": "\ufeffmarked\ufeff",
    "json": '{"a": [1, 2.5, null, true], "b": "\\u00e9\\n"}',
    "digits": "0012345678901234567890",
    "base64": "AAECAwQ+/w==",
    "boolean": "true",
}
TOO_FULL: Final = "RequestBodyTooLarge"


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_text_survives(sdk: Sdk, text: str) -> None:
    """By sending and by updating, seen by peeking and by receiving."""
    queue = await sdk.new_queue()
    sent = await queue.send_message(text)
    [peeked] = await queue.peek_messages()
    assert peeked.content == text
    updated = await queue.update_message(sent, content=f"{text}!{text}", visibility_timeout=0)
    assert (await queue.receive_message()).content == f"{text}!{text}"
    assert updated.id == sent.id


async def test_an_empty_text_is_a_text(sdk: Sdk) -> None:
    """It can be sent, and a text can be updated to it."""
    queue = await sdk.new_queue()
    await queue.send_message("")
    await queue.send_message("full")
    empty, full = await queue.receive_messages(messages_per_page=2).all()
    assert not empty.content
    assert full.content == "full"
    await queue.update_message(full.id, full.pop_receipt, content="", visibility_timeout=0)
    [peeked] = await queue.peek_messages()
    assert not peeked.content


@pytest.mark.differs_on_azurite("keeps a carriage return that no XML parser would")
async def test_a_raw_carriage_return_becomes_a_line_feed(sdk: Sdk) -> None:
    """The Python SDK sends it unescaped, and XML says what becomes of it."""
    queue = await sdk.new_queue()
    await queue.send_message("a\r\nb\rc")
    assert (await queue.receive_message()).content == "a\nb\nc"


_SPLITS = pytest.mark.differs_on_azurite("breaks characters at chunk boundaries", run=False)


@pytest.mark.parametrize(
    ("unit", "share"),
    [pytest.param(wide, 1.0, marks=_SPLITS) for wide in "é中🎉"]
    # Escaped, these are several times as long, and the whole body has its limit too.
    + [("x", 1.0), ("\n", 1.0), ("&", 0.2), ("<>", 0.3), ('"', 1.0), ("]]>", 0.3)],
    ids=ascii,
)
async def test_a_text_of_64_kib_fits_and_no_more(sdk: Sdk, unit: str, share: float) -> None:
    """65,536 bytes of UTF-8 before escaping, when sent and when updated."""
    text = unit * int(LIMIT * share / len(unit.encode()))
    text += "x" * (LIMIT - len(text.encode()))
    queue = await sdk.new_queue()
    sent = await queue.send_message(text)
    [peeked] = await queue.peek_messages()
    assert peeked.content == text
    with refused(413, TOO_FULL) as refusal:
        await queue.send_message(f"{text}x")
    assert refusal.details["maxlimit"] == str(LIMIT)
    updated = await queue.update_message(sent, content=text[::-1])
    with refused(413, TOO_FULL) as refusal:
        await queue.update_message(updated, content=f"{text}x")
    assert refusal.details["maxlimit"] == str(LIMIT)
    assert (await queue.receive_message()).content == text[::-1]


@pytest.mark.differs_on_azurite("has no limit on the body")
async def test_a_body_has_a_limit_of_its_own(sdk: Sdk) -> None:
    """128 KiB and 512 bytes with everything escaped, even if the text itself would fit."""
    queue = await sdk.new_queue()
    with refused(413, TOO_FULL) as refusal:
        await queue.send_message("&" * (LIMIT // 2))
    assert refusal.details["maxlimit"] == "131584"


@pytest.mark.parametrize("size", [140_000, 1_000_000])
async def test_a_body_far_too_large_is_refused(sdk: Sdk, size: int) -> None:
    """With the same code, and the connection is good for the next call."""
    queue = await sdk.new_queue()
    with refused(413, TOO_FULL):
        await queue.send_message("x" * size)
    await queue.send_message("next")
    assert (await queue.receive_message()).content == "next"


@pytest.mark.differs_on_azurite("stores what no XML parser would accept")
@pytest.mark.parametrize("character", ["\x00", "\x08", "\x1f", "\ufffe", "\uffff"], ids=ascii)
async def test_a_character_that_xml_lacks_is_refused(sdk: Sdk, character: str) -> None:
    """The body is then no XML document; nothing is stored."""
    queue = await sdk.new_queue()
    with refused(400, "InvalidXmlDocument"):
        await queue.send_message(f"a{character}b")
    assert await queue.peek_messages() == []


async def test_bytes_need_a_policy(sdk: Sdk) -> None:
    """The client says so before it asks the server."""
    with pytest.raises(TypeError, match="must not be bytes"):
        await sdk.queue("not-there").send_message(b"bytes")


@covers(
    "TextBase64EncodePolicy",
    "TextBase64DecodePolicy",
    "QueueClient.__init__:message_encode_policy,message_decode_policy",
)
async def test_text_in_base64(sdk: Sdk) -> None:
    """Every text survives, even what XML has no characters for."""
    encoding = {
        "message_encode_policy": TextBase64EncodePolicy(),
        "message_decode_policy": TextBase64DecodePolicy(),
    }
    queue = await sdk.new_queue(**encoding)
    text = "\x00\r\n\uffff " + "".join(TEXTS.values())
    await queue.send_message(text)
    [peeked] = await queue.peek_messages()
    received = await queue.receive_message()
    assert peeked.content == received.content == text
    await queue.update_message(received, content="\x01", visibility_timeout=0)
    assert (await queue.receive_message()).content == "\x01"
    with pytest.raises(TypeError, match="must be text"):
        await queue.send_message(b"bytes")


@covers("BinaryBase64EncodePolicy", "BinaryBase64DecodePolicy")
async def test_bytes_in_base64(sdk: Sdk) -> None:
    """48 KiB of any bytes fill a message exactly."""
    queue = await sdk.new_queue(
        message_encode_policy=BinaryBase64EncodePolicy(),
        message_decode_policy=BinaryBase64DecodePolicy(),
    )
    full = bytes(range(256)) * 192
    await queue.send_message(full)
    assert (await queue.receive_message()).content == full
    with refused(413, TOO_FULL):
        await queue.send_message(full + b"x")
    with pytest.raises(TypeError, match="must be bytes"):
        await queue.send_message("text")


async def test_what_is_not_base64_cannot_be_decoded(sdk: Sdk) -> None:
    """The client raises; the message stays in the queue."""
    plain = await sdk.new_queue()
    await plain.send_message("é: not base64")
    queue = sdk.queue(plain.queue_name, message_decode_policy=BinaryBase64DecodePolicy())
    with pytest.raises(DecodeError):
        await queue.peek_messages()
    assert [m.content for m in await plain.peek_messages()] == ["é: not base64"]


class _KeyEncryptionKey:
    """A key that wraps keys, as the SDK's encryption on the client's side wants it."""

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def get_kid(self) -> str:
        return "test-key"

    def get_key_wrap_algorithm(self) -> str:
        return "A256KW"

    def wrap_key(self, key: bytes) -> bytes:
        return keywrap.aes_key_wrap_with_padding(self._key, key)

    def unwrap_key(self, key: bytes, algorithm: str) -> bytes:
        assert algorithm == self.get_key_wrap_algorithm()
        return keywrap.aes_key_unwrap_with_padding(self._key, key)


async def test_encryption_by_the_client(sdk: Sdk) -> None:
    """The server stores what only the client can read."""
    options = {
        "require_encryption": True,
        "encryption_version": "2.0",
        "key_encryption_key": _KeyEncryptionKey(),
    }
    queue = await sdk.new_queue(**options)
    await queue.send_message("secret €")
    [stored] = await sdk.queue(queue.queue_name).peek_messages()
    assert "secret" not in stored.content
    received = await queue.receive_message()
    assert received.content == "secret €"
    await queue.update_message(received, content="other secret", visibility_timeout=0)
    assert [m.content for m in await queue.peek_messages()] == ["other secret"]
