"""Between the bytes of a body and the text that a service keeps, and the adapters that need it."""

from __future__ import annotations

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from leasehold.worker.adapters.envelope import (
    MARKER,
    EnvelopeForm,
    ProgressForm,
    UnreadableEnvelope,
    looks_wrapped,
    wrap,
)
from leasehold.worker.adapters.fallbacks import (
    Adapter,
    Burials,
    is_poison_name,
    one_by_one,
    unwrap_poison,
    wrap_poison,
)
from leasehold.worker.adapters.protocol import (
    AS_SET,
    BodyTooLarge,
    Capabilities,
    Delivery,
    Denied,
    Fault,
    Lease,
    NotSupported,
    Outgoing,
    QueueError,
    Release,
    Renewed,
    Saved,
    WorkerSession,
)
from leasehold.worker.timing import Time


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelivery(Delivery):
    """A delivery that remembers how it was kept, so that others find the same form again."""

    content: bytes | None = field(default=None, repr=False)
    """The text as the service had it, out of its base64."""
    was_base64: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a text stands for; the members are those of a TextDelivery."""

    body: bytes = b""
    body_problem: str | None = None
    saved: Saved | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    was_base64: bool = False


class Texts:
    """How the bodies of one queue are written.

    Args:
        queue: Its name; copies in a poison queue are taken apart.
        policy: Whether texts are base64.
        reads: Reads a body, or raises ValueError; helps to guess.
        form: How progress is kept in texts; None: the service keeps none there.
    """

    def __init__(
        self,
        queue: str,
        policy: Base64Policy,
        reads: Callable[[bytes], object] | None,
        form: ProgressForm | None,
    ) -> None:
        self._policy: Base64Policy = policy
        self._reads = reads
        self._form = form
        self._has_copies = is_poison_name(queue)

    # --- reading -----------------------------------------------------------------------------

    def open(self, stored: str) -> Opened:
        """Return what a text of the service stands for; one that cannot be read has a problem."""
        try:
            content = self._decoded(stored)
        except EncodingProblem as error:
            return Opened(body_problem=str(error), content=stored.encode())
        was_base64 = content != stored.encode()
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return Opened(body=content, content=content, was_base64=was_base64)
        body, properties = content, dict[str, str]()
        if self._has_copies and (copy := unwrap_poison(text)) is not None:
            body, properties = copy.content, dict(copy.properties)
            if not copy.is_text:
                return Opened(
                    body=body, content=content, was_base64=was_base64, properties=properties
                )
            text = body.decode(errors="replace")
        problem, saved = None, None
        if self._form is not None and not self._is_plain(text):
            try:
                body, saved = self._form.unwrap(text)
            except UnreadableEnvelope as error:
                body, problem = b"", str(error)
        return Opened(
            body=body,
            body_problem=problem,
            saved=saved,
            properties=properties,
            content=content,
            was_base64=was_base64,
        )

    def _decoded(self, stored: str) -> bytes:
        content = decode_text(stored, self._policy, self._reads)
        if self._reads is not None and self._policy == "auto":
            # What reads bodies need not be able to read envelopes and copies.
            guessed = detect_base64(stored)
            if guessed is not None and b'{"leasehold.' in guessed:
                return guessed
        return content

    def _is_plain(self, text: str) -> bool:
        return isinstance(self._form, EnvelopeForm) and MARKER not in text

    # --- writing -----------------------------------------------------------------------------

    def fresh(self, body: bytes | str) -> str:
        """Return the text of a new message.

        Raises:
            ValueError: The policy, or the form, has no place for such a body.
        """
        content = body.encode() if isinstance(body, str) else bytes(body)
        return encode_text(self._fresh(content), self._policy)

    def _fresh(self, body: bytes) -> bytes:
        if self._form is None:
            return body
        if self._policy == "base64" and isinstance(self._form, EnvelopeForm):
            # Base64 carries anything, except what would be taken for an envelope.
            text = body.decode(errors="replace")
            return wrap(body, None).encode() if looks_wrapped(text) else body
        return self._form.fresh(body).encode()

    def wrapped(self, delivery: Delivery, saved: Saved) -> str:
        """Return the text that keeps progress with a message, in base64 if the message was.

        Raises:
            TypeError: The state is not what JSON can say.
            ValueError: The form has no place for it.
        """
        assert self._form is not None
        return self._encoded(delivery, self._form.wrap(delivery.body, saved).encode())

    def copy(self, delivery: Delivery, fault: Fault) -> str:
        """Return the text of the copy in the poison queue, in base64 if the message was."""
        content = self._content(delivery)
        try:
            copy = wrap_poison(content.decode(), delivery, fault)
        except UnicodeDecodeError:
            text = base64.b64encode(content).decode()
            copy = wrap_poison(text, delivery, fault, is_base64=True)
        return self._encoded(delivery, copy.encode())

    def plain_copy(self, delivery: Delivery) -> str:
        """Return the text as it was, for a copy that has no room for more."""
        content = self._content(delivery)
        if delivery.body_problem is not None:
            return content.decode()
        return self._encoded(delivery, content)

    def _content(self, delivery: Delivery) -> bytes:
        if isinstance(delivery, TextDelivery) and delivery.content is not None:
            return delivery.content
        return self._fresh(delivery.body)

    def _encoded(self, delivery: Delivery, content: bytes) -> str:
        if self._policy == "auto" and getattr(delivery, "was_base64", False):
            text = encode_text(content, "base64")
            # It must be found to be base64 again; there are texts that are not.
            if detect_base64(text) is not None:
                return text
        return encode_text(content, self._policy)


# --- base64 text -------------------------------------------------------------------------------
#
# Whether the text of a message is base64: the SDKs of Azure disagree, and a message does not say.
#
# The SDKs for .NET up to version 11, WebJobs and Azure Functions send base64; those for Python,
# JavaScript and .NET from version 12 send the text itself unless they are told otherwise. A
# service can only pass on what it got, so the reader has to know, or to guess.
#
# Guessing (policy "auto") takes a text for base64 only if all of this holds:
#
# * it is exactly what an encoder would write: the standard alphabet, full padding, no line breaks,
#   no stray bits in the last character;
# * it decodes to UTF-8 without control characters other than tab and line break;
# * if it is known what bodies look like (*reads*), what was decoded can be read and the text
#   itself cannot.
#
# How often a text of random characters that is not base64 is taken for it, without *reads*, in
# percent (100,000 texts for each figure; a length that is no multiple of four never is):
#
# ==================  ======  ======  ======  ======  ======
# Characters          4       8       12      16      24
# ==================  ======  ======  ======  ======  ======
# letters and digits  9.0     0.94    0.10    0.011   0.000
# lower-case letters  5.1     0.47    0.05    0.002   0.001
# hexadecimal         11.1    1.24    0.14    0.015   0.000
# digits              12.9    1.64    0.21    0.034   0.000
# ==================  ======  ======  ======  ======  ======
#
# Where bodies are short words or numbers, say "none" or "base64". With a *reads* for JSON the
# error needs a text that is not JSON and whose decoded form is: a lone number is the shortest of
# those. Base64 of bytes that are not text is never guessed: say "base64" for these.


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


# --- adapters ----------------------------------------------------------------------------------


class TextAdapter(Adapter, ABC):
    """What adapters begin with whose service keeps a text for a message, and does all one by one.

    Args:
        name: Of the queue.
        capabilities: What the service can do.
        texts: How bodies are written.
        call_timeout_s: Seconds that a request may take.
        time: What leases go by.
    """

    def __init__(
        self, name: str, capabilities: Capabilities, texts: Texts, call_timeout_s: float, time: Time
    ) -> None:
        super().__init__(name, capabilities)
        self._texts = texts
        self._call_timeout_s = call_timeout_s
        self._burials = Burials(
            renew=self._renew,
            copy=self._copy,
            delete=lambda *given: self._delete(*given),  # noqa: PLW0108 - looked up when it is called
            time=time,
        )

    def renew(
        self, leases: Sequence[Lease], visibility_timeout_s: int, *, timeout_s: float | None = None
    ) -> list[Renewed | QueueError]:
        """See :class:`QueueClient`. The text stays as it is."""
        self._check_lease(visibility_timeout_s)
        return one_by_one(leases, lambda lease: self._renew(lease, visibility_timeout_s, timeout_s))

    def complete(
        self, leases: Sequence[Lease], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """See :class:`QueueClient`."""
        return one_by_one(leases, lambda lease: self._delete(lease, timeout_s))

    def release(
        self, releases: Sequence[Release], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """See :class:`QueueClient`. There is no back-off by itself, and no place for a fault."""
        return one_by_one(releases, lambda release: self._give_back(release, timeout_s))

    def bury(
        self, delivery: Delivery, receipt: str, fault: Fault, *, timeout_s: float | None = None
    ) -> None:
        """See :class:`QueueClient`. After no answer, another call for the same lease goes on."""
        self._burials.bury(delivery, receipt, fault, timeout_s=timeout_s)

    def put(self, messages: Sequence[Outgoing]) -> list[QueueError | None]:
        """See :class:`QueueClient`."""
        return one_by_one(messages, self._put)

    def _check_receive(self, visibility_timeout_s: int, session: WorkerSession | None) -> None:
        if session is not None:
            raise NotSupported(f"{self._capabilities.service} has no sessions")
        if visibility_timeout_s != AS_SET:
            self._check_lease(visibility_timeout_s)

    def _copy(self, delivery: Delivery, fault: Fault, timeout_s: float | None) -> None:
        try:
            self._send_copy(self._texts.copy(delivery, fault), delivery, timeout_s)
        except BodyTooLarge:
            self._send_copy(self._texts.plain_copy(delivery), delivery, timeout_s)

    def _fresh(self, outgoing: Outgoing) -> str:
        try:
            return self._texts.fresh(outgoing.body)
        except ValueError as error:
            raise Denied(str(error)) from None

    def _limit_s(self, timeout_s: float | None) -> float:
        return min(self._call_timeout_s, timeout_s or self._call_timeout_s)

    @abstractmethod
    def _renew(
        self, lease: Lease, visibility_timeout_s: int, timeout_s: float | None = None
    ) -> Renewed: ...

    @abstractmethod
    def _delete(self, lease: Lease, timeout_s: float | None) -> None: ...

    @abstractmethod
    def _give_back(self, release: Release, timeout_s: float | None) -> None: ...

    @abstractmethod
    def _put(self, outgoing: Outgoing) -> None: ...

    @abstractmethod
    def _send_copy(self, text: str, delivery: Delivery, timeout_s: float | None) -> None: ...
