"""The envelope in which progress travels in the text of a message."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.worker.adapters import Saved
from leasehold.worker.adapters.envelope import (
    MARKER,
    VERSION,
    EnvelopeForm,
    UnreadableEnvelope,
    looks_wrapped,
    overhead_bytes,
    unwrap,
    wrap,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # The text of any code point that UTF-8 has, those that XML lacks included.
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
SAVED = st.builds(
    Saved,
    stage=st.none() | st.text(max_size=20),
    state=JSON,
    fraction=st.none() | st.floats(0, 1),
)
BODIES = st.binary(max_size=200) | st.text(max_size=200).map(str.encode)
LOOK_ALIKES = [
    '{"leasehold.envelope": 1}',
    '{"leasehold.envelope": 1, "body": 7}',
    '{"leasehold.envelope": 1, "body": "a", "body_base64": "YQ=="}',
    '{"leasehold.envelope": 1, "body": "a", "more": 1}',
    '{"leasehold.envelope": 1, "body": "\\ud800"}',
    '{"leasehold.envelope": 1, "body_base64": "***"}',
    '{"leasehold.envelope": 1, "body": "a", "saved": null}',
    '{"leasehold.envelope": 1, "body": "a", "saved": {"stage": 5}}',
    '{"leasehold.envelope": 1, "body": "a", "saved": {"fraction": 1.5}}',
    '{"leasehold.envelope": 1, "body": "a", "saved": {"fraction": true}}',
    '{"leasehold.envelope": 1, "body": "a", "saved": {"state": NaN}}',
    '{"leasehold.envelope": 1, "body": "a", "saved": {"more": 1}}',
    '{"leasehold.envelope": true, "body": "a"}',
    '{"leasehold.envelope": "1", "body": "a"}',
    '{"leasehold.envelope": 0, "body": "a"}',
    '["leasehold.envelope"]',
    '{"leasehold.envelope": 1, "body": "a"',
    "leasehold.envelope",
    "[" * 30_000 + '"leasehold.envelope"',
]


@given(BODIES, SAVED)
def test_what_is_wrapped_comes_back(body: bytes, saved: Saved) -> None:
    """Body and progress come out of an envelope as they went in."""
    assert unwrap(wrap(body, saved)) == (body, saved)


@given(BODIES, SAVED)
def test_an_envelope_survives_xml(body: bytes, saved: Saved) -> None:
    """The text may go through the XML of the service."""
    text = wrap(body, saved)
    element = ET.Element("MessageText")
    element.text = text
    assert ET.fromstring(ET.tostring(element, encoding="utf-8")).text == text


@given(BODIES, SAVED, SAVED)
def test_a_body_may_be_an_envelope(body: bytes, inner: Saved, outer: Saved) -> None:
    """An envelope that was sent as a body comes back as that body, once opened."""
    sent = wrap(body, inner).encode()
    assert unwrap(wrap(sent, outer)) == (sent, outer)
    assert unwrap(EnvelopeForm().fresh(sent)) == (sent, None)


@given(st.text(max_size=200))
def test_text_of_others_is_the_body(text: str) -> None:
    """What is no envelope is the body, with nothing saved."""
    assert unwrap(text) == (text.encode(), None)


@given(BODIES)
def test_new_messages_come_back(body: bytes) -> None:
    """A new message gives its body back, with nothing saved."""
    assert unwrap(EnvelopeForm().fresh(body)) == (body, None)


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_look_alikes_are_bodies(text: str) -> None:
    """What only looks like an envelope is a body, and needs no envelope to be sent."""
    assert unwrap(text) == (text.encode(), None)
    assert not looks_wrapped(text)
    assert EnvelopeForm().fresh(text.encode()) == text
    assert unwrap(wrap(text.encode(), Saved(stage="b"))) == (text.encode(), Saved(stage="b"))


def test_text_goes_without_an_envelope() -> None:
    """A new message of ordinary text is that text."""
    assert EnvelopeForm().fresh("käse\n\t".encode()) == "käse\n\t"


@pytest.mark.parametrize("body", [b"\xff", b"\x00", b"a\r\nb", "\ufffe".encode()])
def test_what_xml_cannot_carry_goes_in_an_envelope(body: bytes) -> None:
    """A body that would not survive XML is sent in an envelope without progress."""
    text = EnvelopeForm().fresh(body)
    assert looks_wrapped(text)
    assert "saved" not in json.loads(text)
    assert unwrap(text) == (body, None)


def test_the_form_is_as_documented() -> None:
    """Other SDKs can rely on the members' names."""
    text = wrap(b"hello", Saved(stage="encode", state={"frame": 7}, fraction=0.5))
    assert json.loads(text) == {
        "leasehold.envelope": 1,
        "saved": {"stage": "encode", "state": {"frame": 7}, "fraction": 0.5},
        "body": "hello",
    }
    assert json.loads(wrap(b"\xff\x00", Saved())) == {
        "leasehold.envelope": 1,
        "saved": {},
        "body_base64": "/wA=",
    }


def test_others_may_write_it_their_way() -> None:
    """Order of members, white space and escapes do not matter."""
    text = '\n{ "body": "h\\u00e4",\t"saved": {"stage": "x"}, "leasehold.envelope": 1 }\n'
    assert unwrap(text) == ("hä".encode(), Saved(stage="x"))


def test_a_later_version_is_refused() -> None:
    """A version above ours is a clear error, and is not sent as it is by accident."""
    text = json.dumps({MARKER: VERSION + 1, "whatever": True})
    with pytest.raises(UnreadableEnvelope, match=r"version 2 .* up to version 1"):
        unwrap(text)
    assert unwrap(EnvelopeForm().fresh(text.encode())) == (text.encode(), None)


@pytest.mark.parametrize("state", [{1, 2}, float("nan"), b"bytes", object()])
def test_states_that_json_cannot_say_are_refused(state: Any) -> None:
    """What JSON has no form for is refused, not guessed at."""
    with pytest.raises(TypeError, match="representable in JSON"):
        wrap(b"", Saved(state=state))


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_fractions_are_fractions(fraction: float) -> None:
    """A fraction is within 0 to 1."""
    with pytest.raises(ValueError, match="within 0 to 1"):
        wrap(b"", Saved(fraction=fraction))


@given(BODIES, SAVED)
def test_the_overhead_is_what_the_envelope_adds(body: bytes, saved: Saved) -> None:
    """The overhead is the difference between the envelope and the body, in bytes of UTF-8."""
    assert overhead_bytes(body, saved) == len(EnvelopeForm().wrap(body, saved).encode()) - len(body)


def test_the_overhead_of_plain_text_is_small() -> None:
    """The figures in the documentation hold."""
    assert overhead_bytes(b"x" * 1000, None) == 34
    assert overhead_bytes(b"x" * 1000, Saved(stage="encode")) == 34 + len(
        '"saved":{"stage":"encode"},'
    )
    assert overhead_bytes(b'"' * 1000, None) == 1034
    assert overhead_bytes(b"\xff" * 999, None) == 34 + len("_base64") + 333
