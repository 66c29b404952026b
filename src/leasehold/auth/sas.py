"""Shared access signatures: what they sign, and making them.

A signature is a set of query parameters. There are three kinds: account signatures (``ss``,
``srt``), service signatures on one queue (possibly with a stored policy, ``si``), and user
delegation signatures on one queue (``skoid`` and its companions). The fields are signed as text,
joined by line breaks, so a value is used exactly as sent. Checking them is the business of
:mod:`leasehold.auth.sas`.

Sources: Azure Storage, "Create an account SAS", "Create a service SAS", "Create a user
delegation SAS".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

from leasehold.auth.delegation import DelegationScope, UserDelegationKey, derive_value
from leasehold.auth.sharedkey import compute_signature
from leasehold.auth.types import (
    BadSignature,
    MalformedCredentials,
    NotAllowed,
    Operation,
    Pairs,
    PermissionMissing,
    ProtocolMismatch,
    ResourceTypeMismatch,
    ServiceMismatch,
    SignedRequest,
    SourceAddressMismatch,
    Target,
    parse_iso_time,
)
from leasehold.domain.model import AccessPolicy

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
    :mod:`leasehold.auth.sas`. Empty when a stored policy gives them."""
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


# --- addresses ---------------------------------------------------------------------------------
#
# Client addresses and the ranges that a shared access signature can be limited to.


class AddressRange(NamedTuple):
    """Addresses from *first* to *last*, both included, of one IP version."""

    first: IPv4Address | IPv6Address
    last: IPv4Address | IPv6Address


def parse_address_range(text: str) -> AddressRange | None:
    """Read one address, or two joined by a dash; None when it is neither.

    Source: Azure Storage, "Create a service SAS", field ``sip``. That page speaks of IPv4 only;
    IPv6 is taken as well.
    """
    first_text, dash, last_text = text.partition("-")
    first = _address(first_text)
    last = _address(last_text) if dash else first
    if first is None or last is None or first.version != last.version:
        return None
    return AddressRange(first, last) if int(first) <= int(last) else None


def address_within(addresses: AddressRange, client_ip: str) -> bool:
    """Tell whether *client_ip* lies in the range; an address that cannot be read does not."""
    client = _address(client_ip)
    if client is None or client.version != addresses.first.version:
        return False
    return int(addresses.first) <= int(client) <= int(addresses.last)


@lru_cache(maxsize=1024)
def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    # A server that listens on IPv6 sees IPv4 clients as ::ffff:a.b.c.d.
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


# --- rights ------------------------------------------------------------------------------------
#
# Which permission a shared access signature needs for which operation: data, no code.
#
# An operation that a table does not name is never allowed by that kind of signature.


class AccountRight(NamedTuple):
    """What an account signature must grant."""

    resource_type: str
    """Letter that ``srt`` must contain: ``s`` service, ``c`` queue, ``o`` message."""
    letters: str
    """Letters of which ``sp`` must contain at least one."""


ACCOUNT_RIGHTS: Final[Mapping[Operation, AccountRight]] = MappingProxyType(
    # Source: Azure Storage, "Create an account SAS", table for queues. Reading and writing
    # stored policies and asking for a delegation key are beyond every account signature.
    {
        Operation.LIST_QUEUES: AccountRight("s", "l"),
        Operation.GET_SERVICE_PROPERTIES: AccountRight("s", "r"),
        Operation.SET_SERVICE_PROPERTIES: AccountRight("s", "w"),
        Operation.GET_SERVICE_STATS: AccountRight("s", "r"),
        Operation.CREATE_QUEUE: AccountRight("c", "cw"),
        Operation.DELETE_QUEUE: AccountRight("c", "d"),
        Operation.GET_QUEUE_METADATA: AccountRight("c", "r"),
        Operation.SET_QUEUE_METADATA: AccountRight("c", "w"),
        Operation.PUT_MESSAGE: AccountRight("o", "a"),
        Operation.GET_MESSAGES: AccountRight("o", "p"),
        Operation.PEEK_MESSAGES: AccountRight("o", "r"),
        Operation.UPDATE_MESSAGE: AccountRight("o", "u"),
        Operation.DELETE_MESSAGE: AccountRight("o", "p"),
        Operation.CLEAR_MESSAGES: AccountRight("o", "d"),
    }
)

QUEUE_RIGHTS: Final[Mapping[Operation, str]] = MappingProxyType(
    # Source: Azure Storage, "Create a service SAS", permissions for a queue. The same letters
    # serve user delegation signatures.
    {
        Operation.GET_QUEUE_METADATA: "r",
        Operation.PEEK_MESSAGES: "r",
        Operation.PUT_MESSAGE: "a",
        Operation.UPDATE_MESSAGE: "u",
        Operation.GET_MESSAGES: "p",
        Operation.DELETE_MESSAGE: "p",
    }
)
QUEUE_LETTERS: Final = frozenset("raup")


# --- sas rules ---------------------------------------------------------------------------------
#
# Shared access signatures: reading them, and what they are good for.
#
# Sources: those of :mod:`leasehold.auth.sas`, and Azure Storage, "Define a stored access policy".
# A field that is missing or not well-formed is answered as the service does, like a signature that
# does not match; a set of fields that makes no sense is malformed.


FindPolicy: TypeAlias = Callable[[str, str, str], AccessPolicy | None]
"""Looks a stored policy up by account, queue and id."""

_COMMON: Final = ("sv", "sp", "st", "se", "sip", "spr", "sig")
_FIELDS_OF: Final[Mapping[SasKind, frozenset[str]]] = {
    SasKind.ACCOUNT: frozenset((*_COMMON, "ss", "srt", "ses")),
    SasKind.SERVICE: frozenset((*_COMMON, "si")),
    SasKind.USER_DELEGATION: frozenset(
        (*_COMMON, "skoid", "sktid", "skt", "ske", "sks", "skv", "skdutid", "sduoid")
    ),
}
FIELD_NAMES: Final = frozenset().union(*_FIELDS_OF.values())
"""Every query parameter that takes part in a signature, ``sig`` included."""

_MANDATORY: Final[Mapping[SasKind, tuple[str, ...]]] = {
    SasKind.ACCOUNT: ("sp", "se", "ss", "srt"),
    SasKind.SERVICE: (),  # "sp" and "se" may come from a stored policy instead
    SasKind.USER_DELEGATION: ("sp", "se", "skoid", "sktid", "skt", "ske", "sks", "skv"),
}
_KIND_SINCE: Final[Mapping[SasKind, str]] = {
    SasKind.ACCOUNT: "2015-04-05",
    SasKind.SERVICE: "2012-02-12",
    SasKind.USER_DELEGATION: "2026-02-06",
}
_VERSION_CHARS: Final = 10
_SERVICES: Final = frozenset("bfqt")
_RESOURCE_TYPES: Final = frozenset("sco")
_PROTOCOLS: Final = ("https", "https,http")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sas:
    """A signature whose fields are well-formed; whether it is genuine is another matter."""

    kind: SasKind
    values: Mapping[str, str] = field(repr=False)
    """Fields as sent, without empty ones."""
    letters: str | None
    """Permissions, or None when a stored policy must give them."""
    starts_at_ms: int | None
    expires_at_ms: int | None
    policy_id: str | None
    addresses: AddressRange | None
    https_only: bool
    delegation: DelegationScope | None
    delegation_window_ms: tuple[int, int]
    """Start and end of the delegation key; (0, 0) without one."""
    presenter_id: str | None
    """Object id of the only user that may present the signature (``sduoid``)."""


def sas_fields(query: Pairs) -> Pairs:
    """Return those query parameters that can take part in a signature, in the order sent."""
    return tuple([pair for pair in query if pair[0] in FIELD_NAMES])


def parse_sas(fields: Pairs) -> Sas:
    """Read the fields of a signature. An empty value counts as left out: both sign the same.

    Raises:
        MalformedCredentials: A field is repeated, or does not belong to this kind of signature.
        BadSignature: A field is missing or its value is not well-formed.
    """
    values = dict(fields)
    if len(values) != len(fields):
        raise MalformedCredentials("A field of the signature is repeated.")
    values = {name: value for name, value in values.items() if value}
    version = values.get("sv", "")
    kind = _kind_of(values)
    _check_version(kind, version)
    for name, value in values.items():
        if name not in _FIELDS_OF[kind] or version < FIELD_SINCE.get(name, ""):
            raise MalformedCredentials(f"'{name}' does not belong to this kind of signature.")
        # A line break would let one field pass for two.
        if not value.isprintable():
            raise _not_well_formed(name)
    for name in _MANDATORY[kind]:
        if name not in values:
            raise BadSignature(f"'{name}' is missing.")
    _check_letters(kind, values)
    return Sas(
        kind=kind,
        values=values,
        letters=values.get("sp"),
        starts_at_ms=_moment(values, "st"),
        expires_at_ms=_moment(values, "se"),
        policy_id=values.get("si"),
        addresses=_addresses(values),
        https_only=_https_only(values),
        delegation=_delegation_scope(values) if kind is SasKind.USER_DELEGATION else None,
        delegation_window_ms=(_moment(values, "skt") or 0, _moment(values, "ske") or 0),
        presenter_id=values.get("sduoid"),
    )


def _kind_of(values: Mapping[str, str]) -> SasKind:
    if "ss" in values or "srt" in values:
        return SasKind.ACCOUNT
    if any(name.startswith("sk") for name in values):
        return SasKind.USER_DELEGATION
    return SasKind.SERVICE


def _check_version(kind: SasKind, version: str) -> None:
    if not version:
        raise BadSignature("'sv' is missing.")
    if len(version) != _VERSION_CHARS or parse_iso_time(version) is None:
        raise _not_well_formed("sv")
    if version < _KIND_SINCE[kind]:
        raise BadSignature(f"'sv' must be {_KIND_SINCE[kind]} or later for this signature.")


def _check_letters(kind: SasKind, values: Mapping[str, str]) -> None:
    letters = values.get("sp", "")
    if kind is not SasKind.ACCOUNT:
        if not QUEUE_LETTERS.issuperset(letters):
            raise _not_well_formed("sp")
        return
    # Letters for other services, and future ones, are no concern of queues.
    if not (letters.isascii() and letters.isalpha()):
        raise _not_well_formed("sp")
    if not _SERVICES.issuperset(values["ss"]):
        raise _not_well_formed("ss")
    if not _RESOURCE_TYPES.issuperset(values["srt"]):
        raise _not_well_formed("srt")


def _moment(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    at_ms = parse_iso_time(text)
    if at_ms is None:
        raise _not_well_formed(name)
    return at_ms


def _addresses(values: Mapping[str, str]) -> AddressRange | None:
    text = values.get("sip")
    if text is None:
        return None
    addresses = parse_address_range(text)
    if addresses is None:
        raise _not_well_formed("sip")
    return addresses


def _https_only(values: Mapping[str, str]) -> bool:
    protocol = values.get("spr", "https,http")
    if protocol not in _PROTOCOLS:
        raise _not_well_formed("spr")
    return protocol == "https"


def _delegation_scope(values: Mapping[str, str]) -> DelegationScope:
    return DelegationScope(
        object_id=values["skoid"],
        tenant_id=values["sktid"],
        start=values["skt"],
        expiry=values["ske"],
        service=values["sks"],
        version=values["skv"],
        delegated_tenant_id=values.get("skdutid", ""),
    )


def _not_well_formed(name: str) -> BadSignature:
    return BadSignature(f"The value of '{name}' is not well-formed.")


def expected_signature(
    sas: Sas, account: str, account_key: bytes, queue: str | None, sealing_key: bytes
) -> bytes:
    """Return the base64 signature that *account_key* gives for these fields.

    With a user's delegation *sealing_key*, the server's own secret, takes part in it.
    """
    key = account_key
    if sas.delegation is not None:
        key = derive_value(account, account_key, sealing_key, sas.delegation)
    return compute_signature(key, string_to_sign(sas.kind, sas.values, account, queue))


def check_conditions(
    sas: Sas,
    request: SignedRequest,
    target: Target,
    find_policy: FindPolicy,
    *,
    now_ms: int,
) -> None:
    """Check what a genuine signature is good for: now, from here, for this operation.

    The stored policy is looked up each time, so that changing it takes effect at once.

    Raises:
        MalformedCredentials: A field stands both in the signature and in its policy.
        BadSignature: It is outside its time window, or its policy does not exist.
        ProtocolMismatch: It is for https only.
        SourceAddressMismatch: It is for other client addresses.
        ServiceMismatch: It is not for queues.
        ResourceTypeMismatch: It is not for this type of resource.
        NotAllowed: Its kind never allows the operation.
        PermissionMissing: It lacks the permission for the operation.
    """
    letters, starts_at_ms, expires_at_ms = sas.letters, sas.starts_at_ms, sas.expires_at_ms
    if sas.policy_id is not None:
        letters, starts_at_ms, expires_at_ms = _with_policy(
            sas, find_policy(target.account, target.queue or "", sas.policy_id)
        )
    if letters is None or expires_at_ms is None:
        raise BadSignature("'sp' or 'se' is missing.")
    if now_ms >= expires_at_ms:
        raise BadSignature("The signature has expired.")
    if starts_at_ms is not None and now_ms < starts_at_ms:
        raise BadSignature("The signature is not valid yet.")
    if sas.delegation is not None:
        _check_delegation(sas, sas.delegation, now_ms)
    if sas.https_only and not request.https:
        raise ProtocolMismatch
    if sas.addresses is not None and not address_within(sas.addresses, request.client_ip):
        raise SourceAddressMismatch
    _check_rights(sas, letters, target)


def _with_policy(
    sas: Sas, policy: AccessPolicy | None
) -> tuple[str | None, int | None, int | None]:
    """Return permissions, start and end, each from the signature or from its policy."""
    if policy is None:
        raise BadSignature("The queue has no stored policy of this id.")
    own = (sas.letters, sas.starts_at_ms, sas.expires_at_ms)
    stored = (
        policy.permission or None,
        _policy_moment(policy.start),
        _policy_moment(policy.expiry),
    )
    for name, mine, theirs in zip(("sp", "st", "se"), own, stored, strict=True):
        if mine is not None and theirs is not None:
            raise MalformedCredentials(f"'{name}' is in both the signature and its policy.")
    return (
        own[0] if stored[0] is None else stored[0],
        own[1] if stored[1] is None else stored[1],
        own[2] if stored[2] is None else stored[2],
    )


def _policy_moment(text: str | None) -> int | None:
    if not text:
        return None
    at_ms = parse_iso_time(text)
    if at_ms is None:
        raise BadSignature("A time in the stored policy is not well-formed.")
    return at_ms


def _check_delegation(sas: Sas, scope: DelegationScope, now_ms: int) -> None:
    starts_at_ms, ends_at_ms = sas.delegation_window_ms
    if not starts_at_ms <= now_ms < ends_at_ms:
        raise BadSignature("The user delegation key is outside its time window.")
    if scope.service != "q":
        raise ServiceMismatch("The user delegation key is not for queues.")


def _check_rights(sas: Sas, letters: str, target: Target) -> None:
    if sas.kind is not SasKind.ACCOUNT:
        letter = QUEUE_RIGHTS.get(target.operation)
        if letter is None:
            raise NotAllowed
        if letter not in letters:
            raise PermissionMissing
        return
    if "q" not in sas.values["ss"]:
        raise ServiceMismatch
    right = ACCOUNT_RIGHTS.get(target.operation)
    if right is None:
        raise NotAllowed
    if right.resource_type not in sas.values["srt"]:
        raise ResourceTypeMismatch
    for letter in right.letters:
        if letter in letters:
            return
    raise PermissionMissing
