"""One question for a dialect to ask: may this request do this, and who is asking?"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from leasehold.auth.roles import (
    BEARER_SINCE,
    INSPECTOR_OPERATIONS,
    OPERATION_SINCE,
    Recent,
    operations_of,
)
from leasehold.auth.sas import (
    FindPolicy,
    Sas,
    SasKind,
    check_conditions,
    expected_signature,
    parse_sas,
    sas_fields,
    string_to_sign,
)
from leasehold.auth.sharedkey import SharedKeyHeader, check_shared_key, parse_authorization
from leasehold.auth.types import (
    BEARER,
    Account,
    BadSignature,
    MalformedCredentials,
    NoCredentials,
    NotAllowed,
    Operation,
    Pairs,
    PermissionMissing,
    ProtocolMismatch,
    ResourceTypeMismatch,
    SignedRequest,
    Target,
    UnknownAccount,
)

if TYPE_CHECKING:
    # At run time it comes from the caller: without it the standard library is enough.
    from leasehold.auth.bearer import BearerToken, BearerVerifier, IssuersVerifier

_REMEMBERED_SIGNATURES: Final = 4_096
_NO_INSPECTORS: Final[Mapping[str, tuple[bytes, ...]]] = MappingProxyType({})
_NOBODY: Final = Account(name="", keys=(b"\0" * 64,))


class CredentialKind(StrEnum):
    """How a request has proved its right."""

    SHARED_KEY = "shared-key"
    SHARED_KEY_LITE = "shared-key-lite"
    ACCOUNT_SAS = SasKind.ACCOUNT.value
    SERVICE_SAS = SasKind.SERVICE.value
    USER_DELEGATION_SAS = SasKind.USER_DELEGATION.value
    BEARER = "bearer"
    ACCOUNT_KEY = "account-key"
    """The key itself was sent."""
    INSPECTOR_KEY = "inspector-key"
    """As with an account's key, but it only reads."""
    CONSOLE_SESSION = "console-session"
    """See :mod:`leasehold.auth.console`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Who is asking. It holds no secrets, so it may be logged."""

    kind: CredentialKind
    account: str
    key_number: int | None = None
    """Which of the account's keys has signed or was sent, 1 or 2; None for bearer tokens."""
    policy_id: str | None = None
    """Stored policy that a service signature leans on."""
    object_id: str | None = None
    """User behind a bearer token, a delegation key or a session of the console."""
    tenant_id: str | None = None
    """Directory of that user."""

    @property
    def actor(self) -> str:
        """Who it is, for the event log: what was shown, and whose that is."""
        if self.kind is CredentialKind.CONSOLE_SESSION:
            return f"console:{self.object_id}"
        if self.kind is CredentialKind.BEARER:
            return f"oidc:{self.object_id}"
        if self.kind in _KEYS:
            return f"{_KEYS[self.kind]}:{self.account}/{self.key_number}"
        if self.object_id is not None:
            return f"sas:user {self.object_id}"
        if self.policy_id is not None:
            return f"sas:policy {self.policy_id}"
        return f"sas:key {self.key_number}"


_KEYS: Final[Mapping[CredentialKind, str]] = {
    CredentialKind.SHARED_KEY: "key",
    CredentialKind.SHARED_KEY_LITE: "key",
    CredentialKind.ACCOUNT_KEY: "key",
    CredentialKind.INSPECTOR_KEY: "inspector",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verified:
    """A signature found genuine, and what that depended on."""

    sas: Sas
    key: bytes = field(repr=False)
    sealing_key: bytes | None = field(repr=False)
    """The server's secret, where a user's delegation depended on it."""
    queue: str | None
    """None for an account signature, which is of no one queue."""
    grant: Grant


class Authenticator:
    """Checks requests against accounts, stored policies and, if given, an issuer of tokens.

    Args:
        accounts: Accounts by name. It is read at each request: a key taken out of it is dead from
            then on, with all signatures and delegation keys made from it.
        find_policy: Looks a stored policy up; called at each use of a signature that names one.
        bearer: Checks bearer tokens; None to take none.
        inspectors: Keys by account that read and change nothing; read at each request, too.
    """

    def __init__(
        self,
        accounts: Mapping[str, Account],
        find_policy: FindPolicy,
        bearer: BearerVerifier | IssuersVerifier | None = None,
        inspectors: Mapping[str, tuple[bytes, ...]] = _NO_INSPECTORS,
    ) -> None:
        self._accounts = accounts
        self._inspectors = inspectors
        self._find_policy = find_policy
        self._bearer = bearer
        self._verified: Recent[tuple[str, Pairs], _Verified] = Recent(_REMEMBERED_SIGNATURES)

    def check(self, request: SignedRequest, target: Target, *, now_ms: int) -> Grant:
        """Let a request with a SharedKey header or a shared access signature pass.

        Args:
            request: The request as it arrived.
            target: What it wants, as the dialect has understood it.
            now_ms: The time, Unix milliseconds.

        Raises:
            AuthError: It may not pass; each subclass says why.
        """
        header = request.headers.get("authorization")
        if header is None:
            return self._check_sas(request, target, None, now_ms)
        if is_signed(request.query):
            raise MalformedCredentials("The request carries a header and a signature in its query.")
        return self._check_header(request, target, header, now_ms)

    async def check_bearer(self, request: SignedRequest, target: Target, *, now_ms: int) -> Grant:
        """Let a request with a bearer token pass; it may have to wait for the issuer's keys.

        Arguments and errors are those of :meth:`check`. A user delegation signature that is for
        one user alone is checked here too, since that user must present it with a token.
        """
        if self._bearer is None:
            raise MalformedCredentials("Bearer tokens are not accepted here.")
        if not request.https:
            raise BadSignature("A bearer token may be sent over https only.")
        if request.version < BEARER_SINCE:
            raise MalformedCredentials(
                f"Bearer tokens are accepted from version {BEARER_SINCE} on."
            )
        text = request.headers.get("authorization", "")[len(BEARER) :].strip()
        token = await self._bearer.verify(text, account=target.account, now_ms=now_ms)
        if target.account not in self._accounts:
            raise UnknownAccount
        if not self._bearer.may_use(target.account):
            raise NotAllowed
        if is_signed(request.query):
            return self._check_sas(request, target, token, now_ms)
        if request.version < OPERATION_SINCE.get(target.operation, BEARER_SINCE):
            raise NotAllowed
        if target.operation not in operations_of(token.roles):
            raise PermissionMissing
        return Grant(
            kind=CredentialKind.BEARER,
            account=target.account,
            object_id=token.object_id,
            tenant_id=token.tenant_id,
        )

    def check_key(self, key: str, target: Target, *, safe: bool) -> Grant:
        """Let a request pass that carries a key itself, an account's or an inspector's.

        Args:
            key: The key in base64, as in a connection string.
            target: What the request wants.
            safe: Whether no third party can have read it: it came over https, or from this machine.

        Raises:
            ProtocolMismatch: It was not safe.
            MalformedCredentials: It is not base64.
            BadSignature: It is no key of the account, or there is no such account.
            PermissionMissing: It is an inspector's, and the operation does not only read.
        """
        if not safe:
            raise ProtocolMismatch("A key may be sent over https, or from the server's own host.")
        try:
            given = b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            raise MalformedCredentials("The bearer token is not a key in base64.") from None
        account = self._accounts.get(target.account)
        number = _equal_key(_NOBODY.keys if account is None else account.keys, given)
        if account is not None:
            if number is not None:
                return _grant_of(CredentialKind.ACCOUNT_KEY, target.account, number)
            number = _equal_key(self._inspectors.get(target.account, ()), given)
            if number is not None:
                if target.operation not in INSPECTOR_OPERATIONS:
                    raise PermissionMissing("An inspector key is read-only.")
                return _grant_of(CredentialKind.INSPECTOR_KEY, target.account, number)
        raise BadSignature(
            "The key does not belong to this account, or the account does not exist."
        )

    def check_sas_itself(
        self, request: SignedRequest, target: Target, *, now_ms: int
    ) -> tuple[Sas, Grant]:
        """Let a shared access signature pass that is genuine and in force, whatever it allows.

        Raises:
            AuthError: It is neither, or may be presented with its user's token only.
        """
        fields = sas_fields(request.query)
        found = self._verify_sas(fields, target, self._accounts.get(target.account))
        _check_presenter(found.sas, None)
        # What it allows is looked at last.
        with suppress(NotAllowed, PermissionMissing, ResourceTypeMismatch):
            check_conditions(found.sas, request, target, self._find_policy, now_ms=now_ms)
        return found.sas, found.grant

    def _check_header(
        self, request: SignedRequest, target: Target, header: str, now_ms: int
    ) -> Grant:
        signed = parse_authorization(header)
        account = self._accounts.get(target.account)
        if account is None:
            _spend_as_much(request, target, signed, now_ms)
            raise UnknownAccount
        number = check_shared_key(request, target, account, signed, now_ms=now_ms)
        if target.operation is Operation.GET_USER_DELEGATION_KEY:
            raise NotAllowed
        kind = CredentialKind.SHARED_KEY_LITE if signed.lite else CredentialKind.SHARED_KEY
        return _grant_of(kind, target.account, number)

    def _check_sas(
        self,
        request: SignedRequest,
        target: Target,
        presenter: BearerToken | None,
        now_ms: int,
    ) -> Grant:
        fields = sas_fields(request.query)
        known = self._verified.get((target.account, fields))
        account = self._accounts.get(target.account)
        if (
            known is None
            or account is None
            or known.key not in account.keys
            or (known.queue is not None and known.queue != target.queue)
            or (known.sealing_key is not None and known.sealing_key != account.sealing_key())
        ):
            known = self._verify_sas(fields, target, account)
        _check_presenter(known.sas, presenter)
        check_conditions(known.sas, request, target, self._find_policy, now_ms=now_ms)
        return known.grant

    def _verify_sas(self, fields: Pairs, target: Target, account: Account | None) -> _Verified:
        if not is_signed(fields):
            raise NoCredentials
        sas = parse_sas(fields)
        queue = None if sas.kind is SasKind.ACCOUNT else target.queue
        if queue is None and sas.kind is not SasKind.ACCOUNT:
            # A signature on a queue never opens the account, genuine or not; which queue it is
            # on cannot be told from here.
            raise NotAllowed
        given = sas.values.get("sig", "").encode("utf-8", "surrogatepass")
        number = _signing_key_number(sas, account or _NOBODY, target.account, queue, given)
        if account is None:
            raise UnknownAccount
        if number is None:
            text = string_to_sign(sas.kind, sas.values, target.account, queue)
            raise BadSignature(f"The signature is not that of this string to sign: '{text}'")
        delegation = sas.delegation
        grant = Grant(
            kind=CredentialKind(sas.kind.value),
            account=target.account,
            key_number=number + 1,
            policy_id=sas.policy_id,
            object_id=delegation.object_id if delegation else None,
            tenant_id=delegation.tenant_id if delegation else None,
        )
        verified = _Verified(
            sas=sas,
            key=account.keys[number],
            sealing_key=account.sealing_key() if delegation else None,
            queue=queue,
            grant=grant,
        )
        self._verified.keep((target.account, fields), verified)
        return verified


# To make one takes long, and the same few keys sign over and over.
@lru_cache(maxsize=256)
def _grant_of(kind: CredentialKind, account: str, number: int) -> Grant:
    return Grant(kind=kind, account=account, key_number=number + 1)


def is_signed(query: Pairs) -> bool:
    """Tell whether the query carries a signature at all."""
    return any(name == "sig" for name, _ in query)


def _equal_key(keys: tuple[bytes, ...], given: bytes) -> int | None:
    for number, key in enumerate(keys):
        # An empty key would be everybody's.
        if key and hmac.compare_digest(key, given):
            return number
    return None


def _signing_key_number(
    sas: Sas, account: Account, name: str, queue: str | None, given: bytes
) -> int | None:
    sealing_key = b"" if sas.delegation is None else account.sealing_key()
    for number, key in enumerate(account.keys):
        # An empty key would let everybody sign.
        if not key:
            continue
        expected = expected_signature(sas, name, key, queue, sealing_key)
        if hmac.compare_digest(expected, given):
            return number
    return None


def _spend_as_much(
    request: SignedRequest, target: Target, header: SharedKeyHeader, now_ms: int
) -> None:
    """Do for an account that does not exist what is done for one that does."""
    with suppress(BadSignature):
        check_shared_key(request, target, _NOBODY, header, now_ms=now_ms)


def _check_presenter(sas: Sas, presenter: BearerToken | None) -> None:
    """Check that a signature for one user comes with that user's token, and no other does."""
    if sas.presenter_id is None:
        if presenter is not None:
            raise MalformedCredentials(
                "The request carries both a token and a signature that is not bound to a user."
            )
        return
    if presenter is None:
        raise BadSignature("The signature must be presented with its user's bearer token.")
    assert sas.delegation is not None
    tenant_id = sas.delegation.delegated_tenant_id or sas.delegation.tenant_id
    if (presenter.object_id, presenter.tenant_id) != (sas.presenter_id, tenant_id):
        raise BadSignature("The signature is for a different user than the bearer of the token.")
