"""Reading XML that strangers sent."""

from __future__ import annotations

from xml.sax.saxutils import escape

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leasehold.http.azure.errors import Fault
from leasehold.http.azure.messages import message_text, plain_message_text, text_element
from leasehold.http.azure.xml import parse_tree
from leasehold.http.xml import MAX_DEPTH, MAX_NODES, escape_bytes
from tests.unit.http.azure.support import BOM, message_xml

_PYTHON = b"<?xml version='1.0' encoding='utf-8'?>\n"
_JAVASCRIPT = b'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
_LEGAL = st.text(
    st.characters(
        exclude_categories=["Cs"],
        exclude_characters=[chr(n) for n in range(32) if n not in (9, 10, 13)]
        + ["\ufffe", "\uffff"],
    )
)


def _refusal(body: bytes) -> dict[str, str]:
    with pytest.raises(Fault) as caught:
        message_text(body)
    assert caught.value.code == "InvalidXmlDocument"
    return dict(caught.value.details)


@pytest.mark.parametrize("prolog", [b"", _PYTHON, _JAVASCRIPT, BOM, BOM + _PYTHON])
@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b"<QueueMessage><MessageText>hi</MessageText></QueueMessage>", b"hi"),
        (b"<QueueMessage><MessageText></MessageText></QueueMessage>", b""),
        (b"<QueueMessage><MessageText/></QueueMessage>", b""),
        (b"<QueueMessage><MessageText /></QueueMessage>\n", b""),
        (b"<QueueMessage>\n  <MessageText>hi</MessageText>\n</QueueMessage>", b"hi"),
        (b"<QueueMessage a='b'><MessageText xml:space='x'>hi</MessageText></QueueMessage>", b"hi"),
        (b"<QueueMessage><MessageText>a&amp;lt;&lt;&#65;</MessageText></QueueMessage>", b"a&lt;<A"),
        (b"<QueueMessage><MessageText><![CDATA[<&]]></MessageText></QueueMessage>", b"<&"),
        (b"<QueueMessage><MessageText>a<b>c<d/></b>e</MessageText></QueueMessage>", b"ace"),
        (b"<QueueMessage><MessageText>a<!-- b --><?c d?>e</MessageText></QueueMessage>", b"ae"),
    ],
)
def test_message_documents(prolog: bytes, document: bytes, expected: bytes) -> None:
    """Every prolog and every spelling of a document gives its text."""
    assert message_text(prolog + document) == expected


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("  both ends  ", "  both ends  "),
        ("\n\tlines\n", "\n\tlines\n"),
        ("a\rb\r\nc", "a\nb\nc"),  # XML 1.0, section 2.11: line ends become a line feed
        ("a&#xD;b&#13;&#10;c", "a\rb\r\nc"),
        (" ", " "),
        ("\ufffd\U0001fffe\U0010ffff", "\ufffd\U0001fffe\U0010ffff"),
        ("\x7f\x85\u2028", "\x7f\x85\u2028"),
    ],
)
def test_white_space_is_payload(sent: str, kept: str) -> None:
    """Nothing is trimmed; a carriage return survives as a reference only."""
    assert message_text(message_xml(sent)).decode() == kept


@given(_LEGAL)
@example("\r")
@example("]]>")
def test_text_survives_the_way_out_and_in(text: str) -> None:
    """What the answers write, the parser reads back unchanged."""
    assert message_text(message_xml(escape_bytes(text.encode()).decode())) == text.encode()


_FRAGMENTS = [
    b"<", b">", b"&", b"]]>", b"&amp;", b"&lt;", b"&gt;", b"&quot;", b"&apos;", b"&#13;",
    b"&#xFFFE;", b"&nbsp;", b"&amp", b"\r", b"\n", b"\t", b"\0", b"\x1f", b"\x7f", b"\xc3\xa9",
    b"\xc3", b"\xa9", b"\xef\xbf\xbd", b"\xef\xbf\xbe", b"\xef\xbf\xbf", b"\xed\xa0\x80",
    b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xf0\x9f\xbf\xbe", b"<b>", b"</b>",
    b"<!--", b"-->", b"<![CDATA[", b"</MessageText></QueueMessage>",
    b"<QueueMessage><MessageText>", b"a", b" ",
]  # fmt: skip


@given(
    st.sampled_from(
        [b"", _PYTHON, _JAVASCRIPT, BOM, b"\n", b"x", b"<a>", b"\n" + _PYTHON, b"<!DOCTYPE a>"]
    ),
    st.lists(st.sampled_from(_FRAGMENTS) | st.binary(max_size=4), max_size=8).map(b"".join),
    st.sampled_from([b"", b"\n", b"x"]),
)
def test_short_way_is_the_parsers_answer(prolog: bytes, text: bytes, end: bytes) -> None:
    """Whatever the short way accepts, the parser reads as the same text."""
    body = prolog + b"<QueueMessage><MessageText>" + text + b"</MessageText></QueueMessage>" + end
    short = plain_message_text(body)
    if short is not None:
        assert short == text_element(parse_tree(body)).text().encode()


@given(_LEGAL, st.sampled_from([b"", _PYTHON, _JAVASCRIPT]))
def test_short_way_takes_what_clients_send(text: str, prolog: bytes) -> None:
    """Text that was escaped by a client, without carriage returns, never needs the parser."""
    text = text.replace("\r", "")
    body = prolog + message_xml(escape(text, {'"': "&quot;", "'": "&apos;"}))
    assert plain_message_text(body) == text.encode()


@given(st.binary(max_size=60) | st.lists(st.sampled_from(_FRAGMENTS), max_size=12).map(b"".join))
def test_any_body_is_a_message_or_refused(body: bytes) -> None:
    """No body makes the reading fail in another way."""
    try:
        text = message_text(body)
    except Fault as fault:
        assert fault.code == "InvalidXmlDocument"  # noqa: PT017 - a refusal is one of two answers
        return
    text.decode("utf-8")


@pytest.mark.parametrize(
    "text",
    [
        "\0", "\x01", "\x08", "\x0b", "\x0c", "\x1f", "\ufffe", "\uffff",
        "&#0;", "&#1;", "&#x1F;", "&#xFFFE;", "&#xFFFF;", "&#xD800;", "&#x110000;", "&undefined;",
    ],
)  # fmt: skip
def test_characters_that_xml_cannot_hold(text: str) -> None:
    """Illegal characters are refused, raw and as references, with their place."""
    details = _refusal(message_xml("ab" + text))
    assert details["Reason"] == "Error parsing Xml content"
    assert details["LineNumber"] == "1"
    assert int(details["LinePosition"]) > len("<QueueMessage><MessageText>")


def test_position_counts_from_one() -> None:
    """The place of an error is a line and a column, both from 1."""
    details = _refusal(b"<QueueMessage>\n<x></y>")
    assert (details["LineNumber"], details["LinePosition"]) == ("2", "6")


@pytest.mark.parametrize(
    "octets", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"]
)
def test_text_that_is_not_utf8(octets: bytes) -> None:
    """A body is UTF-8, whatever it says of itself."""
    document = b"<QueueMessage><MessageText>%b</MessageText></QueueMessage>" % octets
    assert _refusal(document)
    assert _refusal(b'<?xml version="1.0" encoding="iso-8859-1"?>' + document)


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-7", "idna", "rot13", "no-such", "hex", "x" * 500]
)
def test_declared_encoding_is_not_looked_up(encoding: str) -> None:
    """The name of an encoding in a document reaches no codec."""
    body = f'<?xml version="1.0" encoding="{encoding}"?>'.encode() + message_xml("hi")
    assert message_text(body) == b"hi"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"hello",
        b"{}",
        b"<QueueMessage>",
        b"<QueueMessage/>",
        b"<QueueMessage></QueueMessage>",
        b"<MessageText>hi</MessageText>",
        b"<queuemessage><messagetext>hi</messagetext></queuemessage>",
        b"<QueueMessage>hi</QueueMessage>",
        b"<QueueMessage>hi<MessageText/></QueueMessage>",
        b"<QueueMessage><MessageText/><MessageText/></QueueMessage>",
        b"<QueueMessage><MessageText/><Extra/></QueueMessage>",
        b"<QueueMessage><MessageText></QueueMessage>",
        b"<QueueMessage><MessageText/></QueueMessage><QueueMessage/>",
        b"<QueueMessage><MessageText>a]]>b</MessageText></QueueMessage>",
        b"<QueueMessage><MessageText>a & b</MessageText></QueueMessage>",
        b"<QueueMessage a='1' a='2'><MessageText>a</MessageText></QueueMessage>",
        BOM,
    ],
)
def test_other_documents_are_refused(body: bytes) -> None:
    """What is not well-formed, or of another structure, is an invalid document."""
    assert set(_refusal(body)) == {"LineNumber", "LinePosition", "Reason"}


_BOMB = b"".join(
    b'<!ENTITY e%d "%b">' % (level, b"&e%d;" % (level - 1) * 10 if level else b"lol")
    for level in range(10)
)


@pytest.mark.parametrize(
    "declaration",
    [
        b"<!DOCTYPE QueueMessage>",
        b"<!DOCTYPE QueueMessage [" + _BOMB + b"]>",
        b'<!DOCTYPE QueueMessage [<!ENTITY e9 SYSTEM "file:///etc/passwd">]>',
        b'<!DOCTYPE QueueMessage SYSTEM "http://localhost/x.dtd">',
        b'<!DOCTYPE QueueMessage [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]>',
    ],
)
def test_document_types_are_refused(declaration: bytes) -> None:
    """Entities can be neither declared nor fetched, so nothing can grow or leak."""
    details = _refusal(declaration + message_xml("&e9;"))
    assert details["Reason"] == "A document type declaration is not allowed"


def test_deep_nesting_is_refused() -> None:
    """A tree may be so deep and no deeper."""
    inside = MAX_DEPTH - 2
    assert message_text(message_xml("<a>" * inside + "x" + "</a>" * inside)) == b"x"
    details = _refusal(message_xml("<a>" * (inside + 1) + "</a>" * (inside + 1)))
    assert details["Reason"] == "The document is nested too deeply"
    assert _refusal(b"<a>" * 40_000)["Reason"] == "The document is nested too deeply"


def test_many_elements_are_refused() -> None:
    """A tree may have so many elements and no more."""
    inside = MAX_NODES - 2
    assert message_text(message_xml("<a/>" * inside + "x")) == b"x"
    details = _refusal(message_xml("<a/>" * (inside + 1)))
    assert details["Reason"] == "The document has too many elements"


def test_elements_know_their_place_and_contents() -> None:
    """The tree keeps order, text and where an element begins."""
    root = parse_tree(b"<a>\n <b>x<c>y</c>z</b></a>")
    [b] = root.children()
    assert (b.name, b.line, b.column, b.text()) == ("b", 2, 2, "xyz")
    assert b.has_own_text()
    assert not root.has_own_text()
