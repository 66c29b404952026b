"""Shared access signatures: what they sign, and making them.

A signature is a set of query parameters. There are three kinds: account signatures (``ss``,
``srt``), service signatures on one queue (possibly with a stored policy, ``si``), and user
delegation signatures on one queue (``skoid`` and its companions). The fields are signed as text,
joined by line breaks, so a value is used exactly as sent. Checking them is the business of
:mod:`leasehold.auth.sas_rules`.

Sources: Azure Storage, "Create an account SAS", "Create a service SAS", "Create a user
delegation SAS".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from leasehold.auth.delegation import UserDelegationKey
from leasehold.auth.sharedkey import compute_signature

LATEST_VERSION: Final = "2026-10-06"
"""Version that a new signature carries unless another one is asked for."""

FIELD_SINCE: Final[Mapping[str, str]] = {
    "sip": "2015-04-05",
    "spr": "2015-04-05",
    "ses": "2020-12-06",
    "sduoid": "2025-07-05",
    "skdutid": "2026-04-06",
}
"""Versions from which on a field exists; those not named exist in all of them."""
_QUEUE_PREFIX_SINCE: Final = "2015-02-21"


class SasKind(StrEnum):
    """The three kinds of signature."""

    ACCOUNT = "account-sas"
    SERVICE = "service-sas"
    USER_DELEGATION = "user-delegation-sas"


@dataclass(frozen=True, slots=True, kw_only=True)
class SasTerms:
    """What a signature grants, and to whom. An empty field is left out."""

    permission: str = ""
    """Letters out of ``raup`` for a queue, more for an account; see
    :mod:`leasehold.auth.rights`. Empty when a stored policy gives them."""
    expiry: str = ""
    """ISO 8601 time at which it ends; empty when a stored policy gives it."""
    start: str = ""
    """ISO 8601 time from which it is good; empty for at once."""
    addresses: str = ""
    """One client address, or two joined by a dash; empty for any. Since 2015-04-05."""
    protocol: str = ""
    """``https`` or ``https,http``; empty for both. Since 2015-04-05."""
    version: str = LATEST_VERSION
    """``YYYY-MM-DD``: 2012-02-12 or later for a queue, 2015-04-05 for an account, 2026-02-06 for
    user delegation."""


def string_to_sign(
    kind: SasKind, values: Mapping[str, str], account: str, queue: str | None
) -> str:
    """Return the text a signature covers.

    Args:
        kind: Which of the three forms.
        values: The fields; ``sv`` chooses the form's version.
        account: Name of the account.
        queue: Name of the queue; of no account for account signatures.
    """
    version = values["sv"]
    get = values.get
    if kind is SasKind.ACCOUNT:
        names = ["sp", "ss", "srt", "st", "se", "sip", "spr", "sv"]
        if version >= FIELD_SINCE["ses"]:
            names.append("ses")
        return "\n".join([account, *[get(name, "") for name in names], ""])
    prefix = "/queue" if version >= _QUEUE_PREFIX_SINCE else ""
    parts = [get("sp", ""), get("st", ""), get("se", ""), f"{prefix}/{account}/{queue}"]
    if kind is SasKind.SERVICE:
        names = ["si", "sip", "spr"] if version >= FIELD_SINCE["sip"] else ["si"]
    else:
        names = ["skoid", "sktid", "skt", "ske", "sks", "skv", "skdutid", "sduoid", "sip", "spr"]
    return "\n".join([*parts, *[get(name, "") for name in names], version])


def make_account_sas(
    account: str, key: bytes, terms: SasTerms, *, resource_types: str = "sco", services: str = "q"
) -> str:
    """Return an account signature as a query string, without a question mark.

    Args:
        account: Name of the account.
        key: The decoded account key.
        terms: What it grants.
        resource_types: Letters out of ``sco``: service, queues, messages.
        services: Letters out of ``bfqt``; ``q`` is queues.
    """
    values = {**_common(terms), "ss": services, "srt": resource_types}
    return _finish(SasKind.ACCOUNT, values, account, None, key)


def make_service_sas(
    account: str, key: bytes, queue: str, terms: SasTerms, *, policy_id: str = ""
) -> str:
    """Return a service signature on one queue as a query string, without a question mark.

    Args:
        account: Name of the account.
        key: The decoded account key.
        queue: Name of the queue.
        terms: What it grants beyond the stored policy.
        policy_id: Id of a stored policy, or empty.
    """
    values = {**_common(terms), "si": policy_id}
    return _finish(SasKind.SERVICE, values, account, queue, key)


def make_user_delegation_sas(
    account: str, key: UserDelegationKey, queue: str, terms: SasTerms, *, presenter_id: str = ""
) -> str:
    """Return a user delegation signature on one queue as a query string.

    Args:
        account: Name of the account that issued the key.
        key: The delegation key.
        queue: Name of the queue.
        terms: What it grants.
        presenter_id: Object id of the only user that may present it, who must do so with a bearer
            token; empty for anybody.
    """
    scope = key.scope
    values = {
        **_common(terms),
        "skoid": scope.object_id,
        "sktid": scope.tenant_id,
        "skt": scope.start,
        "ske": scope.expiry,
        "sks": scope.service,
        "skv": scope.version,
        "skdutid": scope.delegated_tenant_id,
        "sduoid": presenter_id,
    }
    return _finish(SasKind.USER_DELEGATION, values, account, queue, key.value)


def _common(terms: SasTerms) -> dict[str, str]:
    return {
        "sv": terms.version,
        "sp": terms.permission,
        "st": terms.start,
        "se": terms.expiry,
        "sip": terms.addresses,
        "spr": terms.protocol,
    }


def _finish(
    kind: SasKind, values: dict[str, str], account: str, queue: str | None, key: bytes
) -> str:
    text = string_to_sign(kind, values, account, queue)
    values["sig"] = compute_signature(key, text).decode("ascii")
    return "&".join([f"{name}={quote(value, safe='')}" for name, value in values.items() if value])
