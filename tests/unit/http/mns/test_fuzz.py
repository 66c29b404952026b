"""Whatever is asked, there is an answer, and never one about a fault inside."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import hypothesis.strategies as st
from hypothesis import given

from tests.unit.http.mns.support import Whole

WHOLE = Whole()
METHODS = st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "PATCH"])
NAMES = st.sampled_from(["q", "r", "", "a_b", "%71", "x" * 300])
TAILS = st.sampled_from(["", "/", "/messages", "/messages/", "/other", "/messages/x"])
ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
PARAMETERS = st.sampled_from(
    ["ReceiptHandle", "visibilitytimeout", "waitseconds", "numOfMessages", "peekonly"]
)
QUERIES = st.lists(st.tuples(PARAMETERS, ASCII | st.just("1")), max_size=3).map(
    lambda pairs: "&".join(f"{name}={value}" for name, value in pairs)
)
TAGS = st.sampled_from(
    [
        *("Message", "Messages", "MessageBody", "Priority", "DelaySeconds", "Queue", "a:b"),
        *("ReceiptHandles", "ReceiptHandle", "UserProperties", "PropertyValue", "Name", "Value"),
        *("SystemProperties", "SystemPropertyValue", "Type", "MessageGroupId", "Account"),
    ]
)
TREES: Any = st.recursive(
    st.text(max_size=10).map(lambda text: text.replace("<", "&lt;").replace("&", "&amp;")),
    lambda inner: st.builds(
        lambda tag, parts: f"<{tag}>{''.join(parts)}</{tag}>", TAGS, st.lists(inner, max_size=4)
    ),
    max_leaves=12,
)
BODIES = st.binary(max_size=60) | TREES.map(lambda text: text.encode("utf-8", "replace"))


@given(method=METHODS, name=NAMES, tail=TAILS, query=QUERIES, body=BODIES)
def test_there_is_always_an_answer(
    method: str, name: str, tail: str, query: str, body: bytes
) -> None:
    """No status above 499, and every body is a document."""
    response = WHOLE.ask(method, f"/queues/{name}{tail}?{query}", body)
    assert response.status < 500, response
    if response.body:
        ET.fromstring(response.body)
    if method == "DELETE" and name in {"q", "%71"} and response.status == 204:
        WHOLE.ask("PUT", "/queues/q")
