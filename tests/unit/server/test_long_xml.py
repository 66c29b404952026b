"""Long documents are parsed in portions, between which others have their turn; or refused early."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from leasehold.http.azure.errors import Fault as AzureFault
from leasehold.http.azure.messages import long_message_text, message_text
from leasehold.http.mns.errors import Fault as MnsFault
from leasehold.http.mns.xml import raw_text, read_long_root, read_root
from leasehold.http.xml import MAX_TAG_BYTES, PORTION_BYTES, XmlError, parse_long_tree, parse_tree

MIB = 1024 * 1024

LONG_TAGS = {
    "one attribute": b'<a b="%b">' % (b"x" * MIB),
    "an attribute of references": b'<a b="%b">' % (b"&#65;" * (MIB // 5)),
    "an attribute with brackets": b'<a b="%b">' % (b">" * MIB),
    "many attributes": b"<a %b>" % b" ".join(b'a%d=""' % number for number in range(MIB // 12)),
    "a name": b"<%b>" % (b"x" * MIB),
    "blanks": b"<a%b>" % (b" " * MIB),
    "a comment": b"<a><!--%b-->" % (b"x" * MIB),
    "an instruction": b"<a><?x %b?>" % (b"x" * MIB),
}


def turns(start: Callable[[], Awaitable[object]]) -> tuple[object, int]:
    """Await something; return what it returns, and how often others had their turn meanwhile."""

    async def scenario() -> tuple[object, int]:
        task = asyncio.ensure_future(start())
        count = 0
        while not task.done():
            await asyncio.sleep(0)
            count += 1
        return task.result(), count

    return asyncio.run(scenario())


@pytest.mark.parametrize("document", LONG_TAGS.values(), ids=LONG_TAGS.keys())
def test_a_long_tag_is_refused_where_it_begins(document: bytes) -> None:
    """After two portions and with little memory, however long it goes on."""
    tracemalloc.start()
    try:
        with pytest.raises(XmlError, match="too long"):
            asyncio.run(_limited_to_two_turns(document))
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
    with pytest.raises(XmlError, match="too long"):
        parse_tree(document)


async def _limited_to_two_turns(document: bytes) -> None:
    parsing = asyncio.ensure_future(parse_long_tree(document))
    for _ in range(4):
        await asyncio.sleep(0)
    assert parsing.done()
    await parsing


def test_longest_tag_is_taken() -> None:
    """A tag of the limit is no matter, wherever it lies."""
    for before in (0, PORTION_BYTES - 100, PORTION_BYTES):
        tag = b'<b c="%b"/>' % (b"x" * (MAX_TAG_BYTES - 20))
        document = b"<a>%b%b%b</a>" % (b"x" * before, tag, b"y" * PORTION_BYTES)
        assert len(parse_tree(document).text()) == before + PORTION_BYTES


@pytest.mark.parametrize(
    "text",
    [b"x", b"&#65;", b"&amp;", b"\r", "é€😀".encode(), b"<![CDATA[x]]>", b"a<i>b</i>c<!---->"],
    ids=repr,
)
def test_a_long_document_means_the_same(text: bytes) -> None:
    """In portions that end anywhere, for both protocols, and others have their turn."""
    inside = text * (400 if b"<i>" in text else 40 * PORTION_BYTES // len(text) // 10)
    inside += b"z" * 4 * PORTION_BYTES
    document = b"<QueueMessage><MessageText>%b</MessageText></QueueMessage>" % inside
    found, count = turns(lambda: long_message_text(document))
    assert found == message_text(document)
    if text not in {b"x", b"&amp;", "é€😀".encode()}:  # for these there is a shortcut
        assert count >= len(document) // PORTION_BYTES
    if b"<i>" not in text:
        document = b"<Message><MessageBody>%b</MessageBody></Message>" % inside
        tree, _ = turns(lambda: read_long_root(document))
        ((of_long,), (of_short,)) = (each.children() for each in (tree, read_root(document)))  # type: ignore[attr-defined]
        assert raw_text(of_long) == raw_text(of_short)


def test_what_is_longer_than_a_shortcut_takes_turns() -> None:
    """Plain text of megabytes is parsed in portions as well."""
    document = b"<QueueMessage><MessageText>%b</MessageText></QueueMessage>" % (b"x" * 3 * MIB)
    found, count = turns(lambda: long_message_text(document))
    assert found == b"x" * 3 * MIB
    assert count > 3 * MIB // PORTION_BYTES


@pytest.mark.parametrize("end", [b"", b"</b>", b"\xff</a>", b"</a><b/>"])
def test_a_long_document_is_refused_like_a_short_one(end: bytes) -> None:
    """With the dialect's own error, and where it is wrong."""
    document = b"<a>\n%b" % (b"x" * 2 * PORTION_BYTES) + end
    with pytest.raises(AzureFault) as azure:
        asyncio.run(long_message_text(document))
    assert azure.value.code == "InvalidXmlDocument"
    with pytest.raises(MnsFault) as mns:
        asyncio.run(read_long_root(document))
    assert "line 2" in mns.value.message
