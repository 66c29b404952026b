"""Who has signed a request of MNS: access keys, and the accounts that they open."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from leasehold.auth.mns import (
    MAX_SKEW_MS,
    MnsRequest,
    date_of,
    is_signed_by,
    parse_authorization,
    string_to_sign,
)
from leasehold.auth.times import format_iso_time, parse_http_date
from leasehold.auth.types import Account, BadSignature, NoCredentials, NotAllowed, UnknownAccount


class DateProblem(StrEnum):
    """What is wrong with the date of a request."""

    MISSING = "missing"
    INVALID = "invalid"
    SKEWED = "skewed"


class BadDate(BadSignature):
    """The request carries no date, one that is none, or one that is too far off."""

    def __init__(self, problem: DateProblem, detail: str) -> None:
        super().__init__(detail)
        self.problem = problem


class AccessKey(NamedTuple):
    """What an AccessKeyId stands for."""

    account: str
    secrets: tuple[bytes, ...]
    """Each signs as well as the other; the bytes of the AccessKeySecret's text."""


def keys_of_accounts(accounts: Iterable[Account]) -> dict[str, AccessKey]:
    """Return the access keys that accounts have by themselves.

    The id is the account's name, the secret is one of its keys in base64, as in a connection
    string.
    """
    return {
        each.name: AccessKey(each.name, tuple(b64encode(key) for key in each.keys if key))
        for each in accounts
    }


class MnsAuthenticator:
    """Checks requests against access keys.

    Args:
        keys: By AccessKeyId; read at each request.
    """

    def __init__(self, keys: Mapping[str, AccessKey]) -> None:
        self._keys = keys

    def check(self, request: MnsRequest, *, now_ms: int, named: str = "") -> str:
        """Return the account that a request is signed for.

        A security token is taken as sent: the service does not sign it either.

        Args:
            request: As it arrived.
            now_ms: The time, Unix milliseconds.
            named: The account that the host names; empty for none. The service looks at it before
                the signature, as the live tests of its SDK for Node.js show.

        Raises:
            NoCredentials: It is not signed.
            MalformedCredentials: The Authorization header is of another form.
            BadDate: The date is missing, is none, or is more than 15 minutes off.
            UnknownAccount: There is no such access key.
            NotAllowed: It is a key of another account than the one named.
            BadSignature: It was signed with another secret, or is not what was signed.
        """
        authorization = request.headers.get("authorization")
        if not authorization:
            raise NoCredentials("The request has no Authorization header.")
        header = parse_authorization(authorization)
        date_ms = _checked_date(request.headers, now_ms)
        key = self._keys.get(header.key_id)
        if key is None:
            raise UnknownAccount("There is no such AccessKeyId.")
        if named and named != key.account:
            raise NotAllowed
        if header.algorithm and header.day != format_iso_time(date_ms)[:10].replace("-", ""):
            raise BadSignature("The date in the Credential is not the day of the Date header.")
        if not is_signed_by(request, header, key.secrets, date_ms):
            text = string_to_sign(request, header, date_ms)
            raise BadSignature(f"The signature is not that of this string to sign: '{text}'")
        return key.account


def _checked_date(headers: Mapping[str, str], now_ms: int) -> int:
    text = date_of(headers)
    if text is None:
        raise BadDate(DateProblem.MISSING, "The request has neither Date nor x-mns-date.")
    date_ms = parse_http_date(text)
    if date_ms is None:
        raise BadDate(DateProblem.INVALID, "The date is not one of RFC 1123 in GMT.")
    if not -MAX_SKEW_MS <= now_ms - date_ms <= MAX_SKEW_MS:
        raise BadDate(DateProblem.SKEWED, "The date is more than 15 minutes off.")
    return date_ms
