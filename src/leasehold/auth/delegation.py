"""User delegation keys: keys that a bearer of a token may sign shared access signatures with.

Nothing is stored: the value of a key is derived from an account key, a secret of the server and
everything the key says of itself, and is derived again when a signature made with it arrives.
Rotating the account key therefore revokes all delegation keys made from it.

Source: Azure Storage, "Get User Delegation Key" and "Create a user delegation SAS".
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass, field
from typing import Final

from leasehold.auth.types import Account, format_iso_time
from leasehold.domain.errors import OutOfRange
from leasehold.domain.limits import WEEK_S

MAX_VALIDITY_MS: Final = WEEK_S * 1000
"""A delegation key is good for at most seven days."""

_LABEL: Final = "leasehold user delegation key 2"


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationScope:
    """What a delegation key says of itself; a signature repeats it as sk* fields."""

    object_id: str
    """Who asked for the key (``skoid``)."""
    tenant_id: str
    """The directory of that user (``sktid``)."""
    start: str
    """ISO 8601 time from which the key is good (``skt``)."""
    expiry: str
    """ISO 8601 time at which it ends (``ske``)."""
    service: str
    """``q`` for queues (``sks``)."""
    version: str
    """Protocol version of the request for the key (``skv``)."""
    delegated_tenant_id: str = ""
    """Directory of the users that may present signatures, or empty (``skdutid``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationRequest:
    """What the bearer of a token asks a delegation key for."""

    object_id: str
    """The bearer, as the grant names it."""
    tenant_id: str
    """The bearer's directory, as the grant names it."""
    version: str
    """Protocol version of the request, ``YYYY-MM-DD``."""
    expires_at_ms: int
    """End of the key: after now and its start, by at most seven days from the later of both."""
    starts_at_ms: int | None = None
    """Start of the key, at most seven days ahead; None for now."""
    delegated_tenant_id: str = ""
    """Directory of those who will present signatures, if that is to be laid down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDelegationKey:
    """A delegation key as it is handed out; its value is not shown by repr."""

    scope: DelegationScope
    value: bytes = field(repr=False)
    """32 bytes; base64 on the wire."""


def derive_value(
    account: str, account_key: bytes, sealing_key: bytes, scope: DelegationScope
) -> bytes:
    """Return the value of the delegation key that two secrets give for *scope*.

    Args:
        account: Name of the account.
        account_key: A key of the account; when it is rotated the delegation key ends.
        sealing_key: The server's own secret. Without it, a holder of the account's key could make
            delegation keys in the name of any user.
        scope: What the key says of itself.
    """
    parts = [
        *(_LABEL, account, scope.object_id, scope.tenant_id, scope.start, scope.expiry),
        *(scope.service, scope.version, scope.delegated_tenant_id),
    ]
    # JSON keeps the borders between fields whatever they hold, and is never a string to sign.
    key = hmac.digest(sealing_key, account_key, "sha256")
    return hmac.digest(key, json.dumps(parts).encode("ascii"), "sha256")


def issue_user_delegation_key(
    account: Account, wish: DelegationRequest, *, now_ms: int
) -> UserDelegationKey:
    """Make a delegation key for the bearer of a token.

    Args:
        account: The account; its first key is the one derived from.
        wish: Who asks, and for which time.
        now_ms: The time, Unix milliseconds.

    Raises:
        OutOfRange: The start or the end is outside its range; ``field`` is ``start`` or
            ``expiry``, value and bounds are Unix milliseconds.
    """
    starts_at_ms = now_ms if wish.starts_at_ms is None else wish.starts_at_ms
    latest_start_ms = now_ms + MAX_VALIDITY_MS
    if not 0 <= starts_at_ms <= latest_start_ms:
        raise OutOfRange(field="start", value=starts_at_ms, minimum=0, maximum=latest_start_ms)
    # Counted from a start in the future if there is one, so that a client whose clock is a little
    # ahead can ask for the full seven days.
    first_ms = max(starts_at_ms, now_ms)
    end_ms, last_ms = wish.expires_at_ms, first_ms + MAX_VALIDITY_MS
    if not first_ms < end_ms <= last_ms:
        raise OutOfRange(field="expiry", value=end_ms, minimum=first_ms + 1, maximum=last_ms)
    scope = DelegationScope(
        object_id=wish.object_id,
        tenant_id=wish.tenant_id,
        start=format_iso_time(starts_at_ms),
        expiry=format_iso_time(end_ms),
        service="q",
        version=wish.version,
        delegated_tenant_id=wish.delegated_tenant_id,
    )
    value = derive_value(account.name, account.keys[0], account.sealing_key(), scope)
    return UserDelegationKey(scope=scope, value=value)
