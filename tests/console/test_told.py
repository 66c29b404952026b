"""What pages say of a message by themselves: what comes next, what its body is, what an event is.

The modules are asked in the browser; what the server's own rules say is what they must say.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
from typing import Any, Final

import msgspec

from leasehold.domain.admin import Seen
from leasehold.domain.failures import (
    backoff_ms,
    close_attempt,
    exhausted_on_receive,
    release_reason,
)
from leasehold.domain.model import Detail, Message, MessageState, Outcome, Phase
from leasehold.domain.queue_settings import Backoff, BackoffKind, FailurePolicy
from leasehold.events.trace import known_types
from leasehold.http.native.admin import show_message
from tests.console.harness import Visit

NOW_MS: Final = 1_764_000_000_000
DRAWN: Final = 300
_NEXT: Final = """async (cases) => {
  const { whatNext } = await import("/console/static/lib/next.js");
  return cases.map((facts) => whatNext(facts));
}"""
_BACKOFF: Final = """async (cases) => {
  const { backoffRange } = await import("/console/static/lib/next.js");
  return cases.map(([backoff, failures]) => backoffRange(backoff, failures));
}"""
_RECOGNISE: Final = """async (bodies) => {
  const { recognise } = await import("/console/static/lib/decode.js");
  return bodies.map((body) => {
    const found = recognise(Uint8Array.from(atob(body), (letter) => letter.charCodeAt(0)));
    return [found.kind, found.label];
  });
}"""
_BEGINNINGS: Final = """async (texts) => {
  const { recognise } = await import("/console/static/lib/decode.js");
  const bytes = (text) => new TextEncoder().encode(text);
  const look = ([text, most]) => recognise(bytes(text).subarray(0, most), { isWhole: false });
  return texts.map((text) => look(text).label);
}"""
_INDENT: Final = """async (texts) => {
  const { indent } = await import("/console/static/lib/decode.js");
  return texts.map((text) => indent(text));
}"""
_TELL: Final = """async (events) => {
  const { tell } = await import("/console/static/lib/story.js");
  return events.map((event) => tell(event));
}"""
PNG: Final = b"\x89PNG\r\n\x1a\n" + bytes(20)


def leased(draw: random.Random) -> Message:
    """Return a message on a lease, with counts drawn at random."""
    interruptions = draw.randint(0, 3)
    return Message(
        message_id="00000000-0000-8000-8000-000000000001",
        body=b"",
        inserted_at_ms=NOW_MS - 90_000,
        expires_at_ms=NOW_MS + 900_000,
        visible_at_ms=NOW_MS + 60_000,
        dequeue_count=interruptions + draw.randint(1, 6),
        phase=Phase.LEASED,
        since_ms=NOW_MS - 1_000,
        holder="w1",
        detail=Detail(
            failures=draw.randint(0, 3), interruptions=interruptions, lapses=draw.randint(0, 3)
        ),
    )


def policy(draw: random.Random) -> FailurePolicy:
    """Return a failure policy drawn at random."""
    budget = [None, 1, 2, 3, 4]
    return FailurePolicy(
        max_deliveries=draw.choice(budget),
        max_failures=draw.choice(budget),
        max_interruptions=draw.choice(budget),
        max_lapses=draw.choice(budget),
    )


def view_of(message: Message, state: MessageState = MessageState.LEASED) -> Any:
    """Return what the API shows of a message."""
    return msgspec.to_builtins(show_message(Seen(message, state, "q"), NOW_MS))


def test_what_comes_next_is_what_the_server_would_do(operator: Visit) -> None:
    """Whether a failure, or a lapse, sends a message to the poison queue, for 300 drawn ones."""
    operator.open()
    draw = random.Random(20)
    drawn = [(leased(draw), policy(draw)) for _ in range(DRAWN)]
    cases = [
        {
            "message": view_of(message),
            "settings": {"failure_policy": msgspec.to_builtins(rules)},
            "nowMs": NOW_MS,
        }
        for message, rules in drawn
    ]
    sent = 0
    for (message, rules), told in zip(drawn, operator.page.evaluate(_NEXT, cases), strict=True):
        failed = close_attempt(message, Outcome.FAILED, NOW_MS, None)
        lapsed = close_attempt(message, Outcome.LAPSED, message.visible_at_ms, None)
        (of_failure,) = [each["text"] for each in told if each["text"].startswith("If it fails")]
        (of_lapse,) = [each for each in told if each["text"].startswith("The lease ends, unless")]
        fails = release_reason(failed, rules, Outcome.FAILED) is not None
        assert ("it goes to q-poison" in of_failure) is fails, (of_failure, message, rules)
        lapses = exhausted_on_receive(lapsed, rules) is not None
        assert ("moves it to q-poison" in of_lapse["text"]) is lapses, (of_lapse, message, rules)
        assert of_lapse["at_ms"] == message.visible_at_ms
        sent += fails + lapses
    assert 0 < sent < 2 * DRAWN


def test_the_wait_after_a_failure_is_that_of_the_server(operator: Visit) -> None:
    """The shortest and the longest, of each kind of back-off."""
    operator.open()
    cases = [
        (Backoff(kind=kind, initial_s=3, factor=2.5, cap_s=70, jitter=0.25), failures)
        for kind in BackoffKind
        for failures in (1, 2, 3, 9)
    ]
    given = [[msgspec.to_builtins(backoff), failures] for backoff, failures in cases]
    for (backoff, failures), told in zip(
        cases, operator.page.evaluate(_BACKOFF, given), strict=True
    ):
        ends = [backoff_ms(backoff, failures, jitter) for jitter in (0.0, 1.0)]
        assert [round(seconds * 1000) for seconds in told] == ends


def test_what_a_body_is(operator: Visit) -> None:
    """By its bytes alone; a picture of vectors or a page is text, whatever it says it is."""
    operator.open()
    bodies = [
        (b"", ["empty", "empty"]),
        (b'{"a": [1]}', ["json", "JSON"]),
        (b"[]", ["json", "JSON"]),
        (b'{"a": ', ["text", "text"]),
        ("grün".encode(), ["text", "text"]),
        (b"orders42abcd", ["text", "text"]),
        (b"<svg onload='alert(1)'/>", ["text", "text"]),
        (b"<!doctype html><script>alert(1)</script>", ["text", "text"]),
        (base64.b64encode(b'{"sku": 12}'), ["text", "base64 of JSON"]),
        (base64.b64encode("für Kunde 7".encode()), ["text", "base64 of text"]),
        (base64.b64encode(PNG), ["text", "base64 of PNG"]),
        (PNG, ["image", "PNG"]),
        (b"\xff\xd8\xff\xe0", ["image", "JPEG"]),
        (b"GIF89a" + bytes(8), ["image", "GIF"]),
        (b"RIFF\0\0\0\0WEBPVP8 ", ["image", "WebP"]),
        (gzip.compress(b"x"), ["bytes", "gzip"]),
        (b"\xff\xfe\x00\x01", ["bytes", "bytes"]),
        (b"a\x00b", ["bytes", "bytes"]),
    ]
    given = [base64.b64encode(body).decode() for body, _ in bodies]
    found = operator.page.evaluate(_RECOGNISE, given)
    assert found == [expected for _, expected in bodies]


def test_arrow_is_recognised(operator: Visit) -> None:
    """A stream as pyarrow writes it, whatever its columns."""
    import pyarrow as pa  # noqa: PLC0415 - only this test needs it

    operator.open()
    given = []
    for table in (pa.table({"a": [1]}), pa.table({"text": ["x"] * 50, "b": [1.5] * 50})):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        given.append(base64.b64encode(sink.getvalue().to_pybytes()).decode())
    found = operator.page.evaluate(_RECOGNISE, given)
    assert found == [["bytes", "Arrow IPC stream"]] * 2


def test_the_beginning_of_a_body_tells_as_well(operator: Visit) -> None:
    """Also where it ends within a letter, or within base64."""
    operator.open()
    whole = base64.b64encode(b"one long line of text, and more").decode()
    given = [["grün und blau", 3], ['{"a": "bbbbbbb"}', 9], [whole, 22]]
    assert operator.page.evaluate(_BEGINNINGS, given) == ["text", "JSON", "base64 of text"]


def test_json_is_indented_as_it_was_written(operator: Visit) -> None:
    """As Python indents it, and with large numbers as they are."""
    operator.open()
    values: list[Any] = [
        {"a": [1, {"b": []}], "c,": 'x: [1, 2] \\" }', "d": {}},
        [],
        [[]],
        [None, True],
    ]
    texts = [json.dumps(value, separators=(",", ":")) for value in values]
    assert operator.page.evaluate(_INDENT, texts) == [
        json.dumps(value, indent=2) for value in values
    ]
    number = '{"n":12345678901234567890.000}'
    assert "12345678901234567890.000" in operator.page.evaluate(_INDENT, [number])[0]


def test_deep_json_does_not_grow_without_bounds(operator: Visit) -> None:
    """Each of 20,000 levels is one line further, and not two signs longer than the one before."""
    operator.open()
    levels = 20_000
    (shown,) = operator.page.evaluate(_INDENT, ["[" * levels + "]" * levels])
    assert shown.count("\n") == 2 * levels - 2
    assert len(shown) < 80 * 2 * levels


def test_each_type_of_event_has_a_sentence(operator: Visit) -> None:
    """All that are told on a terminal are told in the console, and the unknown by their name."""
    operator.open()
    facts: dict[str, Any] = {
        "at_ms": NOW_MS,
        "queue": "q",
        "holder": "w1",
        "target": "t",
        "group_id": "g",
    }
    facts |= {"dequeue_count": 1, "visible_at_ms": NOW_MS + 1_000}
    told = operator.page.evaluate(_TELL, [{"type": kind} | facts for kind in known_types()])
    for kind, line in zip(known_types(), told, strict=True):
        assert line["text"] not in {kind, ""}
        assert "undefined" not in line["text"], line
        assert line["text"][0].isupper() or line["text"].startswith("w1"), line
    (unknown,) = operator.page.evaluate(_TELL, [{"type": "moved-house", "reason": "x"} | facts])
    assert unknown == {"text": "moved-house: x", "tone": ""}
