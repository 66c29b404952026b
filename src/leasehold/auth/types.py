"""What signing and checking speak about: requests, accounts, operations, refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Account:
    """An account and the keys that sign for it. It has no repr, so that no log can show a key."""

    name: str
    keys: tuple[bytes, ...]
    """One or two decoded keys; each signs as well as the other, so that they can be rotated."""


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
    query: tuple[tuple[str, str], ...]
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
    """The bearer token is expired, not yet valid, wrongly signed, or meant for somebody else."""


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
        super().__init__("A web page of another origin may not do this without a rule for it.")


class UnknownAccount(AuthError):
    """There is no such account."""
