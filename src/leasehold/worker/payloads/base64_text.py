"""Whether the text of a message is base64: the SDKs of Azure disagree, and a message does not say.

The SDKs for .NET up to version 11, WebJobs and Azure Functions send base64; those for Python,
JavaScript and .NET from version 12 send the text itself unless they are told otherwise. A service
can only pass on what it got, so the reader has to know, or to guess.

Guessing (policy "auto") takes a text for base64 only if all of this holds:

* it is exactly what an encoder would write: the standard alphabet, full padding, no line breaks, no
  stray bits in the last character;
* it decodes to UTF-8 without control characters other than tab and line break;
* if it is known what bodies look like (*reads*), what was decoded can be read and the text itself
  cannot.

How often a text of random characters that is not base64 is taken for it, without *reads*, in
percent (100,000 texts for each figure; a length that is no multiple of four never is):

==================  ======  ======  ======  ======  ======
Characters          4       8       12      16      24
==================  ======  ======  ======  ======  ======
letters and digits  9.0     0.94    0.10    0.011   0.000
lower-case letters  5.1     0.47    0.05    0.002   0.001
hexadecimal         11.1    1.24    0.14    0.015   0.000
digits              12.9    1.64    0.21    0.034   0.000
==================  ======  ======  ======  ======  ======

Where bodies are short words or numbers, say "none" or "base64". With a *reads* for JSON the error
needs a text that is not JSON and whose decoded form is: a lone number is the shortest of those.
Base64 of bytes that are not text is never guessed: say "base64" for these.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

Base64Policy: TypeAlias = Literal["auto", "none", "base64"]
"""Guess; the text is the body; the text is base64 of the body."""

_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_GROUP: Final = 4


class EncodingProblem(ValueError):
    """A body is not in the encoding that it should be in."""


def detect_base64(text: str, reads: Callable[[bytes], object] | None = None) -> bytes | None:
    """Return what *text* decodes to if it is taken for base64, otherwise None.

    Args:
        text: As the service gave it.
        reads: Reads a body, or raises ValueError. Leave it out where any text is a body.
    """
    if not text or len(text) % _GROUP:
        return None
    try:
        decoded = base64.b64decode(text, validate=True)
        shown = decoded.decode()
    except ValueError:  # of either; text with characters outside ASCII is one as well
        return None
    if base64.b64encode(decoded) != text.encode() or _CONTROL.search(shown):
        return None
    if reads is not None and (not _can(reads, decoded) or _can(reads, text.encode())):
        return None
    return decoded


def decode_text(
    text: str, policy: Base64Policy = "auto", reads: Callable[[bytes], object] | None = None
) -> bytes:
    """Return the body that *text* stands for.

    Args:
        text: As the service gave it.
        policy: How to take it.
        reads: See :func:`detect_base64`; used by "auto" only.

    Raises:
        EncodingProblem: The policy is "base64", and the text is not.
    """
    if policy == "none":
        return text.encode()
    if policy == "auto":
        found = detect_base64(text, reads)
        return text.encode() if found is None else found
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise EncodingProblem(f"encoding: the body is not base64: {error}") from error


def encode_text(body: bytes, policy: Base64Policy = "auto") -> str:
    """Return the text to be sent for *body*.

    With "auto" it is the text itself, unless a reader with "auto" would take that for base64: then
    it is base64, and the reader gives the body back.

    Raises:
        EncodingProblem: The policy is not "base64", and the body is not UTF-8.
    """
    if policy == "base64":
        return base64.b64encode(body).decode()
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise EncodingProblem(f"encoding: the body is not UTF-8: {error.reason}") from error
    if policy == "auto" and detect_base64(text) is not None:
        return base64.b64encode(body).decode()
    return text


def _can(reads: Callable[[bytes], object], body: bytes) -> bool:
    try:
        reads(body)
    except ValueError:
        return False
    return True
