"""Nasty values, and JSON that can be written in ways that no library writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
TEXTS: Final = (
    *(
        "",
        " ",
        "\x00",
        "a\x00b",
        "".join(map(chr, range(1, 32))),
        "\x7f\x80\x85\x9f",
        "\u2028\u2029",
    ),
    *("\ufeff", "\ufffe\uffff", "\U0010ffff", "\U0001f600" * 1024, "\U0001f600" * 1025, "é" * 1024),
    *("\ud800", "\udc00", "\udc00\ud800", "x\udfff", "a\ud83d", "\u202egnp.exe", "\u0301" * 60),
    *("x" * 1024, "x" * 1025, "x" * 8192, "x" * 8193, "x" * 200_000, "İ" * 400, "ß" * 1024),
    *(
        "\r\nX-Injected: 1",
        "<&>\"'",
        "]]>",
        "'; DROP TABLE messages; --",
        "%00",
        "%s%n",
        "{}",
        "\\",
    ),
    *("\\ud800", "\\u0000", "null", "NaN", "-1", "*", "$", "..", "a" * 36, "A" * 36, "=" * 36),
    *("00000000-0001-8a84-afc8-09158aa09ecb", "ffffffff-ffff-8fff-bfff-ffffffffffff"),
    *("00-" + "0" * 32 + "-" + "0" * 16 + "-00", "00-" + "G" * 32 + "-" + "0" * 16 + "-00"),
    *("00-" + "0" * 32 + "-" + "0" * 16 + "-00\n", "٣" * 36, "a[" * 500, "$[-1]", '["\\ud800"]'),
    *("native-two", "native-one", "sentinel-one", "native-one-poison", "Upper", "a--b", "a" * 63),
)
NUMBERS: Final = (
    *(
        "-1",
        "0",
        "1",
        "16",
        "17",
        "-0",
        "-0.0",
        "0.0",
        "1.0",
        "0.5",
        "1e2",
        "1E+2",
        "1e400",
        "-1e400",
    ),
    *("5e-324", "1e-400", "604800", "604801", "315360000", "315360001", "2147483647", "2147483648"),
    *("4294967296", str(2**53 + 1), str(2**63 - 1), str(2**63), str(2**64), str(-(2**63) - 1)),
    *("1.7976931348623157e308", "9" * 300, "9" * 310, "9" * 4000, "-" + "9" * 4000, "9" * 5000),
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "0x10",
        "01",
        "+1",
        "1_0",
        ".5",
        "1.",
        "--1",
        "253402300799001",
    ),
)
OTHERS: Final = (
    *("null", "true", "false", "[]", "{}", "[[]]", "[{}]", '""', '"1"', "[1,2]", '{"":null}'),
    *('{"a":1,"a":2}', '{"__proto__":{}}', '{"\\u0000":"\\u0000"}', '["\\ud83d\\ude00"]'),
    *("[" * depth + "]" * depth for depth in (100, 500, 940, 980, 1_100, 60_000)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (100, 500, 940, 980, 1_100, 60_000)),
    *("[" + "0," * 20_000 + "0]", '{"' + "k" * 300_000 + '":1}', "[" * 1_000, '{"a"'),
    json.dumps({f"k{n}": "v" for n in range(2_000)}),
)


class Written:
    """JSON as it is written, which need not be JSON."""

    def __init__(self, text: str) -> None:
        self.text = text


def write(value: Any) -> str:
    """Write JSON; a dict is also a list of pairs in a tuple, which may name a member twice."""
    if isinstance(value, Written):
        return value.text
    if isinstance(value, dict):
        value = tuple(value.items())
    if isinstance(value, tuple):
        return "{" + ",".join(f"{json.dumps(name)}:{write(part)}" for name, part in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write, value)) + "]"
    return json.dumps(value)


def places_of(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the place of every part of a body; that of the whole is the empty one."""
    yield path
    if isinstance(value, dict):
        for name, part in value.items():
            yield from places_of(part, (*path, name))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from places_of(part, (*path, number))


def part_of(value: Any, place: Path) -> Any:
    for step in place:
        value = value[step]
    return value


def changed(value: Any, place: Path, change: Any) -> Any:
    """Return a copy of *value* in which one part is changed."""
    if not place:
        return change(value)
    here, *rest = place
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[here] = changed(value[here], tuple(rest), change)
    return copy


_WAIT: Final = re.compile(rb'"wait_s": ?([0-9][0-9.eE+-]*)(?=[,}])')


def tamed(body: bytes) -> bytes:
    """Return a body that asks for no long wait, which would only take time."""
    return _WAIT.sub(_short_wait, body)


def _short_wait(found: re.Match[bytes]) -> bytes:
    return b'"wait_s":0.001' if 0.01 < float(found[1]) <= 60 else found[0]
