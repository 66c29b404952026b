"""Texts and bodies: base64, envelopes and copies."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from leasehold.worker.adapters.envelope import EnvelopeForm, StagePrefixForm
from leasehold.worker.adapters.fallbacks import unwrap_poison, wrap_poison
from leasehold.worker.adapters.protocol import Delivery, Fault, Saved
from leasehold.worker.adapters.texts import TextDelivery, Texts

JSON = '{"order": 7}'
BINARY = bytes(range(256))
FAULT = Fault(text="bad", type="ValueError")


def texts(policy: Any = "auto", form: Any = "envelope", reads: Any = None) -> Texts:
    chosen = EnvelopeForm() if form == "envelope" else form
    return Texts("orders", policy, reads, chosen)


def delivered(kept: Texts, stored: str) -> TextDelivery:
    opened = kept.open(stored)
    return TextDelivery(
        queue="orders",
        message_id="m1",
        receipt="r",
        body=opened.body,
        body_problem=opened.body_problem,
        saved=opened.saved,
        content=opened.content,
        was_base64=opened.was_base64,
    )


def b64(content: str | bytes) -> str:
    return base64.b64encode(content.encode() if isinstance(content, str) else content).decode()


SENDERS = {
    "text": (JSON, JSON.encode()),
    "base64 of text": (b64(JSON), JSON.encode()),
    "base64 of bytes": (b64(BINARY), BINARY),
    "a lone word": ("word", b"word"),
    "base64 with a line break": (b64(JSON) + "\n", JSON.encode()),
}
PROBLEM = object()
EXPECTED: dict[str, dict[str, object]] = {
    "auto": {
        "text": JSON.encode(),
        "base64 of text": JSON.encode(),
        "base64 of bytes": b64(BINARY).encode(),
        "a lone word": b"word",
        "base64 with a line break": (b64(JSON) + "\n").encode(),
    },
    "none": {name: stored.encode() for name, (stored, _) in SENDERS.items()},
    "base64": {
        "text": PROBLEM,
        "base64 of text": JSON.encode(),
        "base64 of bytes": BINARY,
        "a lone word": base64.b64decode("word"),
        "base64 with a line break": PROBLEM,
    },
}


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("policy", EXPECTED)
def test_five_senders_and_three_settings(policy: str, sender: str) -> None:
    """Each setting reads each sender as it says it does, or has a problem that names encoding."""
    opened = texts(policy).open(SENDERS[sender][0])
    expected = EXPECTED[policy][sender]
    if expected is PROBLEM:
        assert opened.body == b""
        assert opened.body_problem is not None
        assert opened.body_problem.startswith("encoding")
    else:
        assert opened.body == expected
        assert opened.body_problem is None


@pytest.mark.parametrize("policy", ["auto", "none", "base64"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"text",
        b"abcd",
        b64(JSON).encode(),
        BINARY,
        b"a\r\nb",
        EnvelopeForm().wrap(b"x", Saved(state=1)).encode(),
    ],
)
def test_what_is_put_is_read_back(policy: str, body: bytes) -> None:
    """Whatever the setting, a body goes around unchanged, with nothing saved."""
    kept = texts(policy)
    opened = kept.open(kept.fresh(body))
    assert (opened.body, opened.saved, opened.body_problem) == (body, None, None)


@pytest.mark.parametrize("policy", ["auto", "none", "base64"])
@pytest.mark.parametrize("body", [b"text", BINARY, b"\xc2\x85 and \xc2\x80"])
@pytest.mark.parametrize("state", [1, "\x85", {"é": "\x00"}])
def test_what_is_saved_is_read_back(policy: str, body: bytes, state: object) -> None:
    """Also where the text in base64 would not be found to be base64 again."""
    kept = texts(policy)
    for stored in (kept.fresh(body), b64(body)):
        delivery = delivered(kept, stored)
        opened = kept.open(kept.wrapped(delivery, Saved(stage="two", state=state)))
        assert opened.saved == Saved(stage="two", state=state)
        assert opened.body == delivery.body


def test_what_reads_bodies_need_not_read_envelopes() -> None:
    """A check that only bodies pass does not hide what was saved."""

    def reads(body: bytes) -> None:
        if json.loads(body).keys() != {"order"}:
            raise ValueError

    kept = texts(reads=reads)
    delivery = delivered(kept, b64(JSON))
    assert delivery.was_base64
    stored = kept.wrapped(delivery, Saved(stage="two"))
    assert stored.isalnum() or stored.endswith("=")
    opened = kept.open(stored)
    assert opened.body == JSON.encode()
    assert opened.saved == Saved(stage="two")


def test_a_newer_envelope_is_a_problem() -> None:
    """What a newer worker has saved is not taken for a body."""
    opened = texts().open('{"leasehold.envelope":99,"body":"x"}')
    assert opened.body == b""
    assert opened.body_problem is not None
    assert "version 99" in opened.body_problem


def test_the_form_of_two_digits() -> None:
    """With the old form the text is two digits and the content, in base64 if it came so."""
    kept = texts(form=StagePrefixForm({0: "scan", 1: "encode"}))
    assert kept.fresh(b"clip.mp4") == "00clip.mp4"
    delivery = delivered(kept, b64("00clip.mp4"))
    assert (delivery.body, delivery.saved) == (b"clip.mp4", Saved(stage="scan"))
    assert kept.wrapped(delivery, Saved(stage="encode")) == b64("01clip.mp4")
    assert kept.open("no digits").body_problem is not None


def test_a_service_without_progress_leaves_envelopes_alone() -> None:
    """Where no progress is kept, a body that looks like an envelope is a body."""
    text = EnvelopeForm().wrap(b"x", Saved(stage="two"))
    assert texts(form=None).open(text).body == text.encode()


@pytest.mark.parametrize("policy", ["auto", "none", "base64"])
@pytest.mark.parametrize(
    "stored", [JSON, b64(JSON), b64(BINARY), EnvelopeForm().wrap(b"x", Saved(stage="two"))]
)
def test_a_copy_is_what_was_copied(policy: Any, stored: str) -> None:
    """A reader of the poison queue has the body, what was saved, and where it came from."""
    kept, poison = texts(policy), Texts("orders-poison", policy, None, EnvelopeForm())
    delivery = delivered(kept, stored)
    opened = poison.open(kept.copy(delivery, FAULT))
    assert opened.properties["original-id"] == "m1"
    assert opened.properties["poison-reason"] == "bad"
    if delivery.body_problem is None:
        assert (opened.body, opened.saved) == (delivery.body, delivery.saved)
    else:
        assert opened.body == texts("none").open(stored).body


def test_a_copy_without_a_note_is_the_text_as_it_was() -> None:
    """Where the note has no room the copy is letter by letter the message."""
    for policy, stored in (("auto", b64(JSON)), ("auto", JSON), ("base64", "no base64!")):
        kept = texts(policy)
        assert kept.plain_copy(delivered(kept, stored)) == stored


def test_a_delivery_of_somebody_else_can_be_copied() -> None:
    """A delivery that does not know how it was kept is written as a new message would be."""
    kept, poison = texts("base64"), Texts("orders-poison", "base64", None, EnvelopeForm())
    plain = Delivery(queue="orders", message_id="m1", receipt="r", body=BINARY)
    opened = poison.open(kept.copy(plain, FAULT))
    assert opened.body == BINARY
    assert kept.plain_copy(plain) == b64(BINARY)


def test_copies_are_taken_apart_in_poison_queues_only() -> None:
    """Elsewhere a body that looks like a copy is a body."""
    copy = texts("none").copy(delivered(texts("none"), JSON), FAULT)
    assert texts("none").open(copy).body == copy.encode()


@pytest.mark.parametrize(
    "text",
    [
        "leasehold.poison",
        '["leasehold.poison"]',
        '{"leasehold.poison": 2, "text": "x"}',
        '{"leasehold.poison": 1}',
        '{"leasehold.poison": 1, "text": 5}',
        '{"leasehold.poison": 1, "base64": "!"}',
        "[" * 100_000 + '"leasehold.poison"',
    ],
)
def test_what_only_looks_like_a_copy_is_a_body(text: str) -> None:
    """Nothing that somebody puts into a poison queue makes a receive fail."""
    opened = Texts("orders-poison", "none", None, EnvelopeForm()).open(text)
    assert opened.body == text.encode() or opened.body_problem is not None


def test_a_copy_fits_into_xml() -> None:
    """Characters that XML has no place for are written in another way."""
    delivery = Delivery(queue="orders", message_id="m1", receipt="r")
    copy = wrap_poison("\x00 \ufffe", delivery, Fault(text="x" * 5000 + "\ud800"))
    assert not any(char in copy for char in ("\x00", "\ufffe", "\ud800"))
    found = unwrap_poison(copy)
    assert found is not None
    assert found.content.decode() == "\x00 \ufffe"
    assert found.properties["poison-reason"] == "x" * 1024
