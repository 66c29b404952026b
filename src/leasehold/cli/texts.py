"""Numbers, times and bodies as people read them in a terminal. Pure functions."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from leasehold.domain.types import NEVER_MS
from leasehold.domain.wording import form_of, future, length_of, past, time_of, times_of

_MS: Final = 1000
_SHORT_S: Final = 10
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))
_KIB: Final = 1024
_MIN_BASE64: Final = 8
_QUAD: Final = 4
_CUT: Final = 300
"""Characters of a body that a line can show at most; terminals cut the rest."""


def clean(text: str) -> str:
    r"""Return somebody else's text on one line, safe to print.

    White space becomes single blanks. What is not printable, such as the codes that move a
    terminal's cursor or turn the direction of writing, is shown as ``\x1b``.
    """
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(map(_visible, line))


def clean_lines(text: str) -> str:
    """Return somebody else's text safe to print, with its line breaks."""
    lines = text.expandtabs(4).splitlines()
    return "\n".join("".join(map(_visible, line)) for line in lines)


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    return " " if char.isspace() else char.encode("unicode_escape").decode("ascii")


def number(value: float) -> str:
    """Return a number with its thousands parted: ``12,345``."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.15g}"


def counted(many: float, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun in the right form: ``1 message``, ``12,345 messages``."""
    return f"{number(many)} {form_of(many, noun, plural)}"


def length(length_s: float) -> str:
    """Return a length of time: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 d 4 h``."""
    if 0 < length_s < _SHORT_S and length_s != int(length_s):
        return f"{length_s:.1f} s" if length_s >= 0.1 else "<0.1 s"  # noqa: PLR2004 - as shown
    return "0 s" if length_s < 1 else length_of(int(length_s) * _MS)


def rough(length_s: float) -> str:
    """Return a length of time in one unit, for tables: ``0.4 s``, ``95 s``, ``12 min``, ``3 d``."""
    if length_s < _SHORT_S:
        return length(max(length_s, 0))
    for unit_s, name in _UNITS:
        if length_s >= 2 * unit_s:
            return f"{int(length_s / unit_s):,} {name}"
    return f"{int(length_s)} s"


def age(since_ms: int, now_ms: int) -> str:
    """Return roughly how long ago it was; clocks that differ make it no less than nothing."""
    return rough(max(0, now_ms - since_ms) // _MS)


def moment(at_ms: int | None, now_ms: int) -> str:
    """Return a moment and how far it is from now: ``2026-11-21T10:59:11Z (3 h 12 min ago)``."""
    if at_ms is None or at_ms >= NEVER_MS:
        return "never"
    if at_ms > now_ms:
        return future(at_ms, now_ms)
    return time_of(at_ms) if now_ms - at_ms < _MS else past(at_ms, now_ms)


def size(size_bytes: int) -> str:
    """Return a size: ``812 bytes``, ``3.4 KiB``, ``16 MiB``."""
    if size_bytes < _KIB:
        return counted(size_bytes, "byte")
    unit_bytes, name = (_KIB, "KiB") if size_bytes < _KIB * _KIB else (_KIB * _KIB, "MiB")
    return f"{size_bytes / unit_bytes:,.1f}".removesuffix(".0") + f" {name}"


def per_second(rate: float) -> str:
    """Return a rate with as many digits as say something: ``0.25``, ``3.1``, ``1,240``."""
    if rate == 0:
        return "0"
    for least, digits in ((100, 0), (10, 1), (0.01, 2)):
        if rate >= least:
            return f"{rate:,.{digits}f}"
    return "<0.01"


def times(many: int) -> str:
    """Return how often something happened: ``never``, ``once``, ``1,200 times``."""
    if many > 2:  # noqa: PLR2004 - for which there are words
        return f"{number(many)} times"
    return times_of(many) if many else "never"


def repeated(many: int, verb: str) -> str:
    """Return how often something was done: ``not renewed``, ``renewed twice``."""
    return f"{verb} {times(many)}" if many else f"not {verb}"


def pairs(values: Mapping[str, str]) -> str:
    """Return names with values: ``team=shipping, tier=2``."""
    return clean(", ".join(f"{name}={value}" for name, value in values.items()))


class Body(NamedTuple):
    """A body, recognised."""

    kind: str
    """``text``, ``JSON``, ``base64 of text``, ``base64 of JSON``, ``binary`` or ``empty``."""
    text: str
    """What it says, decoded; of a binary one its first bytes."""

    @property
    def is_base64(self) -> bool:
        """Whether the text stands in the body as base64."""
        return self.kind.startswith("base64")

    def line(self) -> str:
        """Return it on one line, cut."""
        return clean(self.text[:_CUT]) + ("…" if len(self.text) > _CUT else "")

    def pretty(self) -> str:
        """Return it on as many lines as it has, JSON indented."""
        if self.kind.endswith("JSON"):
            return clean_lines(json.dumps(json.loads(self.text), indent=2, ensure_ascii=False))
        return clean_lines(self.text)


def recognise(body: bytes) -> Body:
    """Tell what a body is.

    Senders differ in whether they encode bodies in base64 (the SDKs for Azure have it as an
    option), so a body that is base64 of readable text is shown as that text.
    """
    if not body:
        return Body("empty", "")
    text = _readable(body)
    if text is None:
        shown = body[:32].hex(" ")
        return Body("binary", f"{shown} …" if len(body) > 32 else shown)  # noqa: PLR2004 - as above
    decoded = _from_base64(body)
    if decoded is not None:
        return Body("base64 of JSON" if _is_json(decoded) else "base64 of text", decoded)
    return Body("JSON" if _is_json(text) else "text", text)


def _readable(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _from_base64(body: bytes) -> str | None:
    stripped = body.strip()
    if len(stripped) < _MIN_BASE64 or len(stripped) % _QUAD:
        return None
    try:
        text = _readable(base64.b64decode(stripped, validate=True))
    except binascii.Error:
        return None
    if text is None or not all(char.isprintable() or char.isspace() for char in text):
        return None
    return text


def _is_json(text: str) -> bool:
    """Tell whether it is an object or a list: numbers and words are text to people."""
    if text.lstrip()[:1] not in {"{", "["}:
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
