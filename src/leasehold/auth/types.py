"""What signing and checking speak about: requests, accounts, operations, refusals."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeAlias


class Operation(StrEnum):
    """What a request wants to do; rights are granted per operation."""

    LIST_QUEUES = "list-queues"
    GET_SERVICE_PROPERTIES = "get-service-properties"
    SET_SERVICE_PROPERTIES = "set-service-properties"
    GET_SERVICE_STATS = "get-service-stats"
    GET_USER_DELEGATION_KEY = "get-user-delegation-key"
    CREATE_QUEUE = "create-queue"
    DELETE_QUEUE = "delete-queue"
    GET_QUEUE_METADATA = "get-queue-metadata"
    SET_QUEUE_METADATA = "set-queue-metadata"
    GET_QUEUE_ACL = "get-queue-acl"
    SET_QUEUE_ACL = "set-queue-acl"
    PUT_MESSAGE = "put-message"
    GET_MESSAGES = "get-messages"
    PEEK_MESSAGES = "peek-messages"
    UPDATE_MESSAGE = "update-message"
    DELETE_MESSAGE = "delete-message"
    CLEAR_MESSAGES = "clear-messages"


Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""A query: names and values in the order sent."""

_SEALING_KEY: Final = secrets.token_bytes(32)
"""Of this process, for accounts that no store stands behind."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Account:
    """An account and the keys that sign for it. It has no repr, so that no log can show a key."""

    name: str
    keys: tuple[bytes, ...]
    """One or two decoded keys; each signs as well as the other, so that they can be rotated."""
    sealing_key: Callable[[], bytes] = lambda: _SEALING_KEY
    """Returns the server's secret for what it seals and takes back; no holder of a key knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a request is aimed at, as the dialect has understood it."""

    account: str
    """Name without the ``-secondary`` suffix."""
    operation: Operation
    queue: str | None = None
    secondary: bool = False
    """Whether the request came to the account's secondary address."""


@dataclass(slots=True, kw_only=True)  # to freeze one for each request would take twice as long
class SignedRequest:
    """The parts of an HTTP request that signatures cover."""

    method: str
    path: str
    """The path as sent, still percent-encoded; in path style it begins with the account."""
    query: Pairs
    """Names and values in the order sent, percent-decoded once, ``+`` read as a space."""
    headers: Mapping[str, str]
    """Lower-case names; the values of a repeated header are joined with a comma."""
    version: str
    """The protocol version in force for this request, ``YYYY-MM-DD``."""
    client_ip: str
    https: bool


class AuthError(Exception):
    """A request that may not pass. ``detail`` is safe to show to the client."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or (type(self).__doc__ or "").split("\n", 1)[0])
        self.detail = detail


class NoCredentials(AuthError):
    """The request carries neither an Authorization header nor a signature in its query."""


class MalformedCredentials(AuthError):
    """The Authorization header, or the set of SAS parameters, is not of a known form."""


class BadToken(AuthError):
    """The bearer token is expired, not yet valid, wrongly signed, or meant for another audience."""


class BadSignature(AuthError):
    """The signature is wrong, too old, or outside its time window."""


class NotAllowed(AuthError):
    """The signer is known but this kind of credential never allows the operation."""


class PermissionMissing(AuthError):
    """The credential could allow the operation but lacks the permission for it."""


class ProtocolMismatch(AuthError):
    """The signature is for https only."""


class SourceAddressMismatch(AuthError):
    """The signature is for another client address."""


class ServiceMismatch(AuthError):
    """The account signature is not for queues."""


class ResourceTypeMismatch(AuthError):
    """The account signature is not for this type of resource."""


class ForeignPage(NotAllowed):
    """A web page of another origin has sent the request, and anybody could have signed it."""

    def __init__(self) -> None:
        super().__init__("A web page of another origin needs a CORS rule that allows this request.")


class CsrfTokenMissing(NotAllowed):
    """A session of the console changes things only with its CSRF token in x-leasehold-csrf."""


class UnknownAccount(AuthError):
    """There is no such account."""


# --- times -------------------------------------------------------------------------------------
#
# Times in ISO 8601, as shared access signatures, stored policies and delegation keys have them, as
# Unix milliseconds. Dates in headers are another notation; see :mod:`leasehold.auth.sharedkey`.


_ISO_CHARS_MAX: Final = 40
BEARER: Final = "bearer "
"""What the ``Authorization`` of a request with a token begins with, in small letters."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_ISO: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:T([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?"
    r"(?:Z|([+-])([0-9]{2}):([0-5][0-9])))?"
)
_OFFSET_HOURS_MAX: Final = 23


def parse_iso_time(text: str) -> int | None:
    """Return the moment an ISO 8601 time names, or None when it is not of a known form.

    The forms are ``YYYY-MM-DD`` (midnight UTC), ``YYYY-MM-DDThh:mmTZD`` and
    ``YYYY-MM-DDThh:mm:ssTZD``, the last also with up to nine digits of a second; TZD is ``Z`` or
    an offset such as ``+02:00``. Source: Azure Storage, "Create a service SAS", accepted formats.
    """
    return _parse_iso_time(text) if len(text) <= _ISO_CHARS_MAX else None


@lru_cache(maxsize=1024)
def _parse_iso_time(text: str) -> int | None:
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, off_hours, off_minutes = match.groups()
    try:
        moment = datetime(
            int(year),
            int(month),
            int(day),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            tzinfo=UTC,
        )
    except ValueError:
        return None
    at_ms = (moment - EPOCH) // _MS + int((fraction or "").ljust(3, "0")[:3])
    if sign is None:
        return at_ms
    if int(off_hours) > _OFFSET_HOURS_MAX:
        return None
    offset_ms = (int(off_hours) * 60 + int(off_minutes)) * 60_000
    return at_ms - offset_ms if sign == "+" else at_ms + offset_ms


def format_iso_time(at_ms: int) -> str:
    """Return *at_ms* as ``YYYY-MM-DDThh:mm:ssZ``, cut to the second."""
    at = EPOCH + timedelta(milliseconds=at_ms)
    return f"{at.year:04}-{at.month:02}-{at.day:02}T{at.hour:02}:{at.minute:02}:{at.second:02}Z"
