"""Headers that carry an effect to another service, and what that service makes of them.

``Idempotency-Key``
    The same for each delivery of a message, made of queue, message id and step: a service that
    knows the header does the same request once. It is a quoted string
    (draft-ietf-httpapi-idempotency-key-header-07, section 2.1).
``Leasehold-Fence``
    The fence of the delivery, and of which message: ``7;of="videos/8d0c"``, an integer with a
    parameter as in RFC 9651. A service that remembers the newest refuses an older one.

A receiver has to know who sends: anybody whose fence is believed can shut out the real workers with
a high one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from leasehold.worker.idempotency.errors import HeaderProblem
from leasehold.worker.idempotency.fencing import FenceStore
from leasehold.worker.idempotency.history import Delivered, check_fence_number, join_key

KEY_HEADER: Final = "Idempotency-Key"
FENCE_HEADER: Final = "Leasehold-Fence"
MAX_KEY_BYTES: Final = 255
"""Services that tell a limit for the key tell this one."""

_KEY: Final = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"', re.ASCII)
_FENCE: Final = re.compile(r'([0-9]{1,15});\x20*of="([\x21\x23-\x5b\x5d-\x7e]{1,255})"', re.ASCII)
_NAMES: Final = (KEY_HEADER.lower(), FENCE_HEADER.lower())

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str] | tuple[bytes, bytes]]
"""A mapping, or pairs as ASGI gives them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedRequest:
    """A request that came with both headers.

    ``once`` takes it for a message: with ``once(request, request.key)`` a receiver does the work of
    a key once.
    """

    key: str
    """The Idempotency-Key, unquoted."""
    of: str
    """Which message it is about."""
    fence: int

    @property
    def id(self) -> str:
        """The same as :attr:`of`."""
        return self.of

    @property
    def queue(self) -> str:
        """A name that no queue has."""
        return ":http"

    def check(self) -> None:
        """Do nothing: who sent the request holds the message."""


def fence_headers(message: Delivered, step: str = "", *, key: str | None = None) -> dict[str, str]:
    """Return the headers of a request that a handler sends, for any HTTP library.

    Args:
        message: As the handler got it.
        step: Name of the request, for handlers that send several; each has a key of its own.
        key: Used instead of queue, id and step: an order number, say. Printable ASCII, at most 255
            characters.

    Raises:
        ValueError: The key has other characters, or is too long.
    """
    check_fence_number(message.fence)
    of = join_key(message.queue, message.id)
    if key is None:
        parts = (message.queue, message.id, step) if step else (message.queue, message.id)
        key = join_key(*parts)
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if not key or len(key) > MAX_KEY_BYTES or not _KEY.fullmatch(quoted):
        raise ValueError(
            f"a key is 1 to {MAX_KEY_BYTES} characters of printable ASCII; this one has {len(key)}"
        )
    return {KEY_HEADER: quoted, FENCE_HEADER: f'{message.fence};of="{of}"'}


def read_headers(headers: Headers) -> FencedRequest | None:
    """Return what the two headers of a request say; None if there is neither.

    Raises:
        HeaderProblem: Only one is there, one is repeated, or one cannot be read.
    """
    found: dict[str, str] = {}
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    for raw_name, raw_value in pairs:
        name = _text(raw_name).lower()
        if name not in _NAMES:
            continue
        if name in found:
            raise HeaderProblem(f"{name} is repeated")
        found[name] = _text(raw_value).strip()
    if not found:
        return None
    missing = [name for name in (KEY_HEADER, FENCE_HEADER) if name.lower() not in found]
    if missing:
        raise HeaderProblem(f"{missing[0]} is missing")
    key = _KEY.fullmatch(found[KEY_HEADER.lower()])
    if key is None or not 1 <= len(key[1]) <= MAX_KEY_BYTES:
        raise HeaderProblem(
            f"{KEY_HEADER} is not a quoted string of 1 to {MAX_KEY_BYTES} characters"
        )
    fence = _FENCE.fullmatch(found[FENCE_HEADER.lower()])
    if fence is None:
        raise HeaderProblem(f'{FENCE_HEADER} is not of the form 7;of="queue/message"')
    plain = re.sub(r"\\(.)", r"\1", key[1])
    return FencedRequest(key=plain, of=fence[2], fence=int(fence[1]))


def check_fence(
    headers: Headers, store: FenceStore, *, required: bool = True
) -> FencedRequest | None:
    """Let a request in unless a newer delivery of its message was here.

    For receivers, whatever their framework is. The answer to Fenced is 409 Conflict, to
    HeaderProblem 400; the sender of either must not send it again.

    The fence is remembered before the work is done, and the key is not: a request that is let in
    twice is the same request, or a retry after a failure. To do it once, see
    :class:`FencedRequest`.

    Args:
        headers: Of the request. Only those of an authenticated sender.
        store: Where fences are remembered.
        required: Refuse requests without the headers.

    Returns:
        What the headers say; None if there are none and none are required.

    Raises:
        Fenced: The request is too old.
        HeaderProblem: A header is missing, or cannot be read.
    """
    request = read_headers(headers)
    if request is None:
        if required:
            raise HeaderProblem(f"{KEY_HEADER} and {FENCE_HEADER} are missing")
        return None
    store.admit(request.of, request.fence)
    return request


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
