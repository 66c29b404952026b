"""Numbers, times and bodies as people read them."""

from __future__ import annotations

import base64

import pytest

from leasehold.cli.output import (
    age,
    clean,
    clean_lines,
    length,
    moment,
    pairs,
    per_second,
    recognise,
    rough,
    size,
    times,
)
from leasehold.domain.model import NEVER_MS
from leasehold.testing.time import START_MS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("two\nlines\tand a tab", "two lines and a tab"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("naïve 東京", "naïve 東京"),
        ("\x9b2J", r"\x9b2J"),
    ],
)
def test_clean(text: str, shown: str) -> None:
    """Nothing that others wrote can move the cursor, ring, or turn the direction of writing."""
    assert clean(text) == shown
    assert clean(text).isprintable()


def test_clean_lines_keeps_lines() -> None:
    """The same, where line breaks are wanted."""
    assert clean_lines("a\tb\n\x1bc\r\nd") == "a   b\n\\x1bc\nd"


@pytest.mark.parametrize(
    ("length_s", "shown"),
    [
        (0, "0 s"),
        (0.04, "<0.1 s"),
        (0.4, "0.4 s"),
        (3, "3 s"),
        (12.7, "12 s"),
        (185, "3 min 5 s"),
        (7_200, "2 h"),
        (180_000, "2 d 2 h"),
    ],
)
def test_length(length_s: float, shown: str) -> None:
    """At most two units."""
    assert length(length_s) == shown


@pytest.mark.parametrize(
    ("length_s", "shown"),
    [
        (-3, "0 s"),
        (1.25, "1.2 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (172800, "2 d"),
        (200000000, "2,314 d"),
    ],
)
def test_rough(length_s: float, shown: str) -> None:
    """One unit, for tables."""
    assert rough(length_s) == shown


def test_clocks_that_differ() -> None:
    """What another clock says is yet to come is no less than nothing old."""
    assert age(START_MS + 5_000, START_MS) == "0 s"


def test_moment() -> None:
    """A moment says how far away it is, unless it is now or never."""
    assert moment(START_MS - 65_000, START_MS) == "2025-12-31T23:58:55Z (1 min 5 s ago)"
    assert moment(START_MS + 65_000, START_MS) == "2026-01-01T00:01:05Z (in 1 min 5 s)"
    assert moment(START_MS, START_MS) == "2026-01-01T00:00:00Z"
    assert moment(None, START_MS) == moment(NEVER_MS, START_MS) == "never"


def test_small_things() -> None:
    """Sizes, rates, counts of times, names with values."""
    assert [size(1), size(812), size(3_500)] == ["1 byte", "812 bytes", "3.4 KiB"]
    assert [size(65_536), size(300_000), size(16 << 20)] == ["64 KiB", "293 KiB", "16 MiB"]
    assert [per_second(rate) for rate in (0, 0.004, 0.25, 31.25, 1240.4)] == [
        *("0", "<0.01", "0.25", "31.2", "1,240"),
    ]
    assert [times(many) for many in (0, 1, 2, 1200)] == ["never", "once", "twice", "1,200 times"]
    assert pairs({"a": "b", "c": "\x1b"}) == r"a=b, c=\x1b"


@pytest.mark.parametrize(
    ("body", "kind", "line"),
    [
        (b"", "empty", ""),
        (b"hello there", "text", "hello there"),
        (b'{"a": 1}', "JSON", '{"a": 1}'),
        (b"{a: 1}", "text", "{a: 1}"),
        (b"17", "text", "17"),
        (base64.b64encode(b'{"a": 1}'), "base64 of JSON", '{"a": 1}'),
        (base64.b64encode(b"hello there"), "base64 of text", "hello there"),
        (b"testtest", "text", "testtest"),
        (b"deadbeefdeadbeef", "text", "deadbeefdeadbeef"),
        (b"aGk=", "text", "aGk="),
        (b"\x00\x01\xff", "binary", "00 01 ff"),
        (b"\xff" * 40, "binary", " ".join(["ff"] * 32) + " …"),
        (b"[" * 100_000, "text", "[" * 300 + "…"),
    ],
)
def test_bodies_are_recognised(body: bytes, kind: str, line: str) -> None:
    """Base64 of something readable is said to be that; words that look like it are left alone."""
    found = recognise(body)
    assert (found.kind, found.line()) == (kind, line)


def test_pretty_bodies() -> None:
    """JSON is indented and stays printable."""
    assert recognise('{"a": "é\\u001b"}'.encode()).pretty() == '{\n  "a": "é\\u001b"\n}'
    assert recognise(b"one\ntwo\x1b").pretty() == "one\ntwo\\x1b"
