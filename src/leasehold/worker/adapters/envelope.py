"""How progress travels in the text of a message, where a service has no other place for it.

The envelope is one JSON object, for any SDK to read::

    {"leasehold.envelope": 1,
     "saved": {"stage": "encode", "state": {"frame": 1200}, "fraction": 0.4},
     "body": "the body as it was sent"}

``leasehold.envelope`` is the version of the form. In ``saved`` each member may be left out. The
body is in ``body`` if it is UTF-8, otherwise as base64 in ``body_base64``. Without ``saved`` nobody
has saved anything: the envelope is there only because the body could not have gone without it.

What is not exactly of that form is a body like any other, also when it looks much like it. A body
that *is* of that form has to be sent in an envelope of its own: :meth:`EnvelopeForm.fresh` sees to
it. A version above ours is an error, since a worker must not take what it cannot read for a body.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from leasehold.worker.adapters.protocol import Saved

MARKER: Final = "leasehold.envelope"
VERSION: Final = 1

# XML 1.0 has no place for these (https://www.w3.org/TR/xml/#charsets), and a lone surrogate has no
# UTF-8. JSON escapes what is below U+0020 by itself.
_NOT_IN_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# A parser of XML makes a line feed of it.
_CHANGED_BY_XML: Final = "\r"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)


class UnreadableEnvelope(ValueError):
    """Progress is kept in a form that this version cannot read; the message can only be buried."""


class ProgressForm(Protocol):
    """A form in which progress travels in the text of a message."""

    def fresh(self, body: bytes) -> str:
        """Return the text of a new message, with nothing saved yet."""
        ...

    def wrap(self, body: bytes, saved: Saved) -> str:
        """Return the text that keeps *saved* with *body*.

        Raises:
            TypeError: The state is not what JSON can say.
            ValueError: The form has no place for it.
        """
        ...

    def unwrap(self, text: str) -> tuple[bytes, Saved | None]:
        """Return the body of a text, and what was saved.

        Raises:
            UnreadableEnvelope: It cannot be read.
        """
        ...


class EnvelopeForm:
    """The envelope of this module; one object serves all."""

    def fresh(self, body: bytes) -> str:
        """Return *body* as text, in an envelope only if it could not go without one."""
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return wrap(body, None)
        if _CHANGED_BY_XML in text or _NOT_IN_XML.search(text) or looks_wrapped(text):
            return wrap(body, None)
        return text

    def wrap(self, body: bytes, saved: Saved) -> str:
        """See :func:`wrap`."""
        return wrap(body, saved)

    def unwrap(self, text: str) -> tuple[bytes, Saved | None]:
        """See :func:`unwrap`."""
        return unwrap(text)


def wrap(body: bytes, saved: Saved | None) -> str:
    """Return the envelope of *body* and *saved*; the text fits into XML as it is.

    Args:
        body: Any bytes.
        saved: None: nothing was saved.

    Raises:
        TypeError: The state is not what JSON can say.
        ValueError: The fraction is not within 0 to 1.
    """
    envelope: dict[str, Any] = {MARKER: VERSION}
    if saved is not None:
        envelope["saved"] = members_of(saved)
    try:
        envelope["body"] = body.decode()
    except UnicodeDecodeError:
        envelope["body_base64"] = base64.b64encode(body).decode()
    try:
        text = json.dumps(envelope, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"a state must be representable in JSON: {error}") from error
    return _NOT_IN_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def unwrap(text: str) -> tuple[bytes, Saved | None]:
    """Return the body in *text*, and what was saved; text that is no envelope is the body.

    Raises:
        UnreadableEnvelope: It is an envelope of a version above :data:`VERSION`.
    """
    envelope = _parse(text)
    if envelope is None:
        return text.encode(), None
    version = envelope[MARKER]
    if version > VERSION:
        raise UnreadableEnvelope(
            f"progress is saved in version {version} of the envelope; "
            f"this worker reads up to version {VERSION}"
        )
    return _opened(envelope) or (text.encode(), None)


def looks_wrapped(text: str) -> bool:
    """Return whether :func:`unwrap` would not return *text* as it is."""
    envelope = _parse(text)
    return envelope is not None and (envelope[MARKER] > VERSION or _opened(envelope) is not None)


def overhead_bytes(body: bytes, saved: Saved | None) -> int:
    """Return how many bytes longer the envelope is, as UTF-8, than *body*.

    It is 34 bytes and the length of ``"saved":{...},``. To that come a byte for each quote,
    backslash, tab and line break of a text and five for each other control character, or a third of
    the length, and seven bytes, of a body that is not UTF-8.
    """
    return len(wrap(body, saved).encode()) - len(body)


def members_of(saved: Saved) -> dict[str, Any]:
    """Return what is kept of *saved*; what is None is left out.

    Raises:
        ValueError: The fraction is not within 0 to 1.
    """
    members: dict[str, Any] = {}
    if saved.stage is not None:
        members["stage"] = saved.stage
    if saved.state is not None:
        members["state"] = saved.state
    if saved.fraction is not None:
        if not 0 <= saved.fraction <= 1:
            raise ValueError(f"the fraction is {saved.fraction}; it must be within 0 to 1")
        members["fraction"] = saved.fraction
    return members


def _parse(text: str) -> dict[str, Any] | None:
    # Nearly all bodies end here: a search costs less than to parse each as JSON.
    if MARKER not in text:
        return None
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    version = found.get(MARKER)
    if type(version) is not int or version < 1:  # True is an int as well
        return None
    return found


def _opened(envelope: dict[str, Any]) -> tuple[bytes, Saved | None] | None:
    """Return what a version 1 envelope holds; None if it only looks like one."""
    members = dict(envelope)
    del members[MARKER]
    saved = _saved(members.pop("saved")) if "saved" in members else None
    if saved is None and "saved" in envelope:
        return None
    match members:
        case {"body": str(body), **others} if not others:
            try:
                return body.encode(), saved
            except UnicodeEncodeError:
                return None
        case {"body_base64": str(encoded), **others} if not others:
            try:
                return base64.b64decode(encoded, validate=True), saved
            except (binascii.Error, ValueError):
                return None
    return None


def _saved(members: Any) -> Saved | None:
    if not isinstance(members, dict) or members.keys() - {"stage", "state", "fraction"}:
        return None
    stage = members.get("stage")
    fraction = members.get("fraction")
    if not (stage is None or isinstance(stage, str)):
        return None
    if fraction is not None and not (
        isinstance(fraction, int | float) and 0 <= fraction <= 1 and fraction is not True
    ):
        return None
    return Saved(stage=stage, state=members.get("state"), fraction=fraction)


# --- saved beside ------------------------------------------------------------------------------


SAVED_MARKER: Final = "leasehold.saved"
"""The JSON in which a Leasehold server keeps progress beside the body.

One object, for any client to read; each member but the first may be left out::

    {"leasehold.saved": 1, "stage": "encode", "state": {"frame": 1200}, "fraction": 0.4}
"""
_MEMBERS: Final = {SAVED_MARKER, "stage", "state", "fraction"}


def saved_members(saved: Saved) -> dict[str, Any]:
    """Return what is kept of *saved*.

    Raises:
        TypeError: The state is not what JSON can say.
        ValueError: The fraction is not within 0 to 1.
    """
    members = {SAVED_MARKER: VERSION, **members_of(saved)}
    try:
        text = json.dumps(members, ensure_ascii=False, allow_nan=False)
        text.encode()  # half of a character is no text
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"a state must be representable in JSON: {error}") from error
    plain: dict[str, Any] = json.loads(text)
    return plain


def read_saved(plain: Any) -> Saved:
    """Return what :func:`saved_members` has made; what is not of that form is all state.

    Raises:
        UnreadableEnvelope: It is of a version above :data:`VERSION`.
    """
    if not isinstance(plain, dict) or type(plain.get(SAVED_MARKER)) is not int:
        return Saved(state=plain)
    version = plain[SAVED_MARKER]
    if version > VERSION:
        raise UnreadableEnvelope(
            f"progress is saved in version {version} of its form; "
            f"this worker reads up to version {VERSION}"
        )
    stage, fraction = plain.get("stage"), plain.get("fraction")
    if plain.keys() <= _MEMBERS and _is_stage(stage) and _is_fraction(fraction):
        return Saved(stage=stage, state=plain.get("state"), fraction=fraction)
    return Saved(state=plain)


def _is_stage(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_fraction(value: Any) -> bool:
    return value is None or (type(value) in {int, float} and 0 <= value <= 1)


# --- two digits --------------------------------------------------------------------------------
#
# The form in which the Azure team's video workflow keeps its state: two digits, then the content.
#
# ``01clip-7.mp4`` is a message of which stage 1 is to be done next. Whoever works on it replaces
# the digits when a stage is done and leaves the content alone. There is no place for a state, for
# how far a stage has come, or for the version of a pipeline.
#
# Source: "Windows Azure Queues: Improved Leases, Progress Tracking, and Scheduling of Future
# Work", Windows Azure Storage Team, 2011.


_DIGITS: Final = 2
_MOST: Final = 99


class StagePrefixForm:
    """Reads and writes ``[2 digits of state][content]``.

    Args:
        stages: The name of the stage for each number. The number of finished work, if the workflow
            has one, stands for :data:`leasehold.worker.stages.COMPLETED`.
        first: The number that a new message begins with; None: the smallest.

    Raises:
        ValueError: A number is not within 0 to 99, or a name is there twice.
    """

    def __init__(self, stages: Mapping[int, str], *, first: int | None = None) -> None:
        if not stages:
            raise ValueError("name at least one stage")
        for number in stages:
            if not 0 <= number <= _MOST:
                raise ValueError(f"{number} does not have two digits; states are 0 to {_MOST}")
        self._names = dict(stages)
        self._numbers = {name: number for number, name in stages.items()}
        if len(self._numbers) < len(self._names):
            raise ValueError("two numbers stand for the same stage")
        self._first = min(stages) if first is None else first
        if self._first not in self._names:
            raise ValueError(f"the first number, {self._first}, has no stage")

    def fresh(self, body: bytes) -> str:
        """Return the text of a new message: the first stage is to be done.

        Raises:
            ValueError: The body is not UTF-8.
        """
        return self._text(self._first, body)

    def wrap(self, body: bytes, saved: Saved) -> str:
        """Return the text with the number of the stage to be done next. A fraction is not kept.

        Raises:
            ValueError: A state is to be saved, the stage has no number, or the body is not UTF-8.
        """
        if saved.state is not None:
            raise ValueError("two digits cannot hold a state; use the envelope")
        if saved.stage is None:
            return self.fresh(body)
        number = self._numbers.get(saved.stage)
        if number is None:
            raise ValueError(f"no number is assigned to the stage {saved.stage!r}")
        return self._text(number, body)

    def unwrap(self, text: str) -> tuple[bytes, Saved | None]:
        """Return the content, and the stage that the digits stand for.

        Raises:
            UnreadableEnvelope: It does not begin with two digits, or they stand for no stage.
        """
        digits = text[:_DIGITS]
        # Other scripts have digits too, and int() would read them.
        if not (len(digits) == _DIGITS and digits.isascii() and digits.isdigit()):
            raise UnreadableEnvelope("the message does not begin with two digits of state")
        name = self._names.get(int(digits))
        if name is None:
            raise UnreadableEnvelope(f"the message is in state {digits}, which has no stage")
        return text[_DIGITS:].encode(), Saved(stage=name)

    @staticmethod
    def _text(number: int, body: bytes) -> str:
        try:
            return f"{number:02}{body.decode()}"
        except UnicodeDecodeError as error:
            raise ValueError("two digits of state go before text only; the body is not") from error
