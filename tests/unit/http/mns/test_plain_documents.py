"""The short way of reading a document, compared with the parser."""

from __future__ import annotations

from typing import Any, Final
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.http.mns.errors import Fault
from leasehold.http.mns.xml import local_name, plain_root
from leasehold.http.xml import PROLOGS, Element, parse_tree

_SPACES: Final = (
    "",
    ' xmlns="http://mns.aliyuncs.com/doc/v1/"',
    ' xmlns="http://mns.aliyuncs.com/doc/v1"',
)
_FRAGMENTS: Final = [
    b"<", b">", b"/", b"&", b"]]>", b"]]", b"&amp;", b"&lt;", b"&gt;", b"&quot;", b"&#34;",
    b"&#39;", b"&#xD;", b"&#13;", b"&amp;#34;", b"&nbsp;", b"\r", b"\n", b" ", b"\t", b"\0",
    b"\x7f", b"\xc3\xa9", b"\xc3", b"\xef\xbf\xbe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"x", b"1",
    b"<!--", b"-->", b"<![CDATA[", b"<?x ?>", b"<Message/>", b"<Message", b"<Message a='b'>",
    b"<Message>", b"</Message>", b"<MessageBody>", b"</MessageBody>", b"</ MessageBody>",
    b"</MessageBody >", b"<DelaySeconds>5</DelaySeconds>", b"<Priority>3</Priority>",
    b"<Messages>", b"</Messages>", b"<ReceiptHandle>x</ReceiptHandle>", b"<Other>x</Other>",
    b"<m:Message>", b'<Message xmlns="http://mns.aliyuncs.com/doc/v1/">',
    b"<UserProperties><PropertyValue><Name>a</Name></PropertyValue></UserProperties>",
]  # fmt: skip
_LEGAL: Final = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="\ufffe\uffff")
)


def tree(element: Element) -> Any:
    """Return names and texts; the parser may give one text in several pieces."""
    found: list[Any] = []
    for part in element.content:
        if not isinstance(part, str):
            found.append(tree(part))
        elif found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return local_name(element), found


def same_as_parsed(body: bytes) -> bool:
    """Compare, if there is a short way at all; tell whether there was."""
    short = plain_root(body)
    if short is None:
        return False
    assert tree(short) == tree(parse_tree(body))
    return True


@given(
    st.sampled_from([*sorted(PROLOGS), b"\n", b"x", b"<?xml?>", b"\xef\xbb\xbf", b"<!DOCTYPE a>"]),
    st.sampled_from([b"Message", b"Messages", b"ReceiptHandles"]),
    st.sampled_from([*_SPACES, " a='b'", "/", " "]),
    st.lists(st.sampled_from(_FRAGMENTS) | st.binary(max_size=3), max_size=10).map(b"".join),
    st.sampled_from([b"", b"\n", b" ", b"x", b"<a/>", b"</Message>"]),
)
def test_whatever_is_taken_is_the_parsers_answer(
    prolog: bytes, name: bytes, space: str, inner: bytes, end: bytes
) -> None:
    """Names and texts are those of the parser, which refuses nothing that is taken."""
    body = prolog + b"<%b%b>%b</%b>" % (name, space.encode(), inner, name) + end
    same_as_parsed(body)


@given(st.lists(st.sampled_from(_FRAGMENTS), max_size=14).map(b"".join))
def test_anything(body: bytes) -> None:
    """No bytes make the short way fail, or take what the parser refuses."""
    try:
        same_as_parsed(body)
    except Fault as fault:
        pytest.fail(f"taken, but {fault.message}: {body!r}")


@given(
    st.lists(
        st.tuples(
            _LEGAL.filter(bool), st.none() | st.integers(0, 604_800), st.none() | st.integers(1, 16)
        ),
        min_size=1,
        max_size=16,
    ),
    st.sampled_from(sorted(PROLOGS)),
    st.sampled_from(_SPACES),
    st.booleans(),
)
def test_what_sdks_send_needs_no_parser(
    messages: list[tuple[str, int | None, int | None]], prolog: bytes, space: str, is_go: bool
) -> None:
    """Messages one by one and in batches, with either namespace, escaped as Python or Go does."""
    quotes = {'"': "&#34;", "'": "&#39;"} if is_go else {'"': "&quot;"}
    entries = [
        f"<MessageBody>{escape(body, quotes)}</MessageBody>"
        + ("" if delay_s is None else f"<DelaySeconds>{delay_s}</DelaySeconds>")
        + ("" if priority is None else f"<Priority>{priority}</Priority>")
        for body, delay_s, priority in messages
    ]
    batch = "".join(f"<Message>{each}</Message>" for each in entries)
    for document in (
        f"<Message{space}>{entries[0]}</Message>",
        f"<Messages{space}>{batch}</Messages>",
    ):
        assert same_as_parsed(prolog + document.encode())


def test_handles_need_no_parser() -> None:
    """A delete of several messages."""
    handles = "".join(f"<ReceiptHandle>{'A' * 69}</ReceiptHandle>" for _ in range(16))
    assert same_as_parsed(f"<ReceiptHandles>{handles}</ReceiptHandles>".encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"<",
        b"<Message",
        b"<Message<MessageBody>x</MessageBody></Message>",
        b"<Message></Message></Message>",
        b"<Message></Message>x",
        b"<Message></Messages>",
        b"<Message>" * 40 + b"</Message>" * 40,
        b"<Messages>" + b"<Message></Message>" * 300 + b"</Messages>",
        b"<Message><MessageBody>]]></MessageBody></Message>",
        b"<Message><MessageBody>\r</MessageBody></Message>",
        b"<Message><MessageBody>\xff</MessageBody></Message>",
        b"<Message><MessageBody>&#65;</MessageBody></Message>",
        b"<Message><Other>x</Other></Message>",
        b"<Queue><DelaySeconds>1</DelaySeconds></Queue>",
    ],
)
def test_what_is_unusual_is_left_to_the_parser(body: bytes) -> None:
    """Also what the parser would take: nothing here is an answer."""
    assert plain_root(body) is None
