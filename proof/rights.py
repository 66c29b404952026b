"""Who may do what: every operation by every kind of credential, asked of a running server.

``rights.csv`` is the table of rights, written out. A row is an operation; its cells say what each
kind of credential must grant:

- ``account_sas``: resource type and permissions of an account signature. ``o:p`` is permission
  ``p`` on messages, ``c:cw`` is ``c`` or ``w`` on queues; ``&`` joins what is needed together,
  ``|`` separates alternatives, ``-`` is never.
- ``queue_sas``: permissions of a service or user delegation signature on the queue, likewise.
- ``roles``: the roles of which one opens it to a bearer token.
- ``reads``: whether it changes nothing, so that an inspector key and a viewer of the console may.

Either key of the account opens everything, except ``get-user-delegation-key``, which only a
token can ask for. Operations that are ``open`` need no credentials.

An operation counts as allowed unless it is answered by 401 or 403. Requests name things that do
not exist, so that what is allowed is mostly answered by 404 or 400.
"""

from __future__ import annotations

import csv
import http.client
import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from leasehold.auth.delegation import DelegationRequest, issue_user_delegation_key
from leasehold.auth.sas import (
    SasTerms,
    make_account_sas,
    make_service_sas,
    make_user_delegation_sas,
)
from leasehold.auth.sharedkey import format_http_date, sign
from leasehold.auth.types import Account, SignedRequest, format_iso_time
from leasehold.http.native.call import read_query

if TYPE_CHECKING:
    from tests.e2e.identity import IdentityProvider

TABLE: Final = Path(__file__).with_name("rights.csv")
QUEUE: Final = "absent-queue"
OTHER_QUEUE: Final = "another-queue"
VERSION: Final = "2026-10-06"
REFUSED: Final = frozenset({401, 403})

ACCOUNT_LETTERS: Final = "rwdxlacupytfi"
QUEUE_LETTERS: Final = "raup"
ROLES: Final[Mapping[str, str]] = {
    "contributor": "Storage Queue Data Contributor",
    "reader": "Storage Queue Data Reader",
    "processor": "Storage Queue Data Message Processor",
    "sender": "Storage Queue Data Message Sender",
    "account-contributor": "Storage Account Contributor",
}
_EARLIER: Final = "2020-01-01T00:00:00Z"
_LATER: Final = "2099-01-01T00:00:00Z"
_STRANGER: Final = b"s" * 64
"""A key that no account has."""
_OPEN: Final = "open"
_NEVER: Final = "-"
_DAY_MS: Final = 24 * 60 * 60 * 1000


class Right(NamedTuple):
    """A row of the table: an operation, and what opens it."""

    interface: str
    operation: str
    method: str
    path: str
    account_sas: str
    queue_sas: str
    roles: str
    reads: str

    @property
    def is_open(self) -> bool:
        """Whether it needs no credentials."""
        return self.reads == _OPEN


def read_table(path: Path = TABLE) -> list[Right]:
    """Read the table of rights."""
    with path.open(newline="") as file:
        return [Right(**row) for row in csv.DictReader(file)]


def is_granted(cell: str, holds: Callable[[str], bool]) -> bool:
    """Tell whether a cell's condition is met.

    Args:
        cell: As in the table.
        holds: Tells whether the credential grants one term of it, such as ``o:p``.
    """
    if cell == _NEVER:
        return False
    return any(
        all(holds(term.strip()) for term in alternative.split("&"))
        for alternative in cell.split("|")
    )


class Sent(NamedTuple):
    """What a credential adds to a request."""

    query: str = ""
    headers: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Credential:
    """Something to show to the server, and what the table says that it opens."""

    name: str
    show: Callable[[str, str, Mapping[str, str]], Sent]
    """From method, target and headers to what is added."""
    opens: Callable[[Right], bool]
    on_console: bool = False
    """Whether it is a session of the console, which the native interface alone takes."""


def _nothing(_: Right) -> bool:
    return False


def _is_for_keys(right: Right) -> bool:
    return right.operation != "get-user-delegation-key"


def _in_query(token: str) -> Callable[[str, str, Mapping[str, str]], Sent]:
    return lambda *_: Sent(query=token)


def _with(**headers: str) -> Callable[[str, str, Mapping[str, str]], Sent]:
    return lambda *_: Sent(headers=headers)


def account_signatures(name: str, key: bytes) -> Iterator[Credential]:
    """Each permission at each resource type, all but one permission, and all of them."""
    every = [(letter, kind) for letter in ACCOUNT_LETTERS for kind in "sco"]
    without = [(ACCOUNT_LETTERS.replace(letter, ""), "sco") for letter in ACCOUNT_LETTERS]
    for letters, kinds in (*every, *without, (ACCOUNT_LETTERS, "sco")):
        terms = SasTerms(permission=letters, expiry=_LATER)

        def holds(term: str, letters: str = letters, kinds: str = kinds) -> bool:
            kind, _, any_of = term.partition(":")
            return kind in kinds and any(letter in letters for letter in any_of)

        yield Credential(
            f"account SAS srt={kinds} sp={letters}",
            _in_query(make_account_sas(name, key, terms, resource_types=kinds)),
            lambda right, holds=holds: is_granted(right.account_sas, holds),  # type: ignore[misc]
        )


def queue_signatures(kind: str, make: Callable[[str, SasTerms], str]) -> Iterator[Credential]:
    """Every set of permissions on the queue that is asked for, and all of them on another."""
    for chosen in range(1, 1 << len(QUEUE_LETTERS)):
        letters = "".join(
            letter for place, letter in enumerate(QUEUE_LETTERS) if chosen >> place & 1
        )
        terms = SasTerms(permission=letters, expiry=_LATER)
        yield Credential(
            f"{kind} SAS sp={letters}",
            _in_query(make(QUEUE, terms)),
            lambda right, letters=letters: is_granted(  # type: ignore[misc]
                right.queue_sas, letters.__contains__
            ),
        )
    terms = SasTerms(permission=QUEUE_LETTERS, expiry=_LATER)
    yield Credential(f"{kind} SAS on another queue", _in_query(make(OTHER_QUEUE, terms)), _nothing)


def _shared_key(
    name: str, key: bytes, now_ms: int, *, lite: bool = False
) -> Callable[[str, str, Mapping[str, str]], Sent]:
    def show(method: str, target: str, headers: Mapping[str, str]) -> Sent:
        dated = {**headers, "x-ms-date": format_http_date(now_ms)}
        parts = urlsplit(target)
        request = SignedRequest(
            method=method,
            path=parts.path,
            query=tuple(read_query(parts.query)),
            headers=dated,
            version=VERSION,
            client_ip="127.0.0.1",
            https=True,
        )
        authorization = sign(request, name, key, lite=lite)
        return Sent(headers={"x-ms-date": dated["x-ms-date"], "authorization": authorization})

    return show


def credentials(
    *, name: str, keys: tuple[str, str], inspector: str, tokens: IdentityProvider, now_ms: int
) -> list[Credential]:
    """Return every credential that is tried, but for sessions of the console.

    Args:
        name: The account's.
        keys: Both keys of the account, in base64.
        inspector: Its inspector key.
        tokens: An issuer that the server trusts.
        now_ms: The time, Unix milliseconds. Signed requests are good for 15 minutes from it.
    """
    first, second = map(b64decode, keys)
    account = Account(name=name, keys=(first, second))

    def by_key(queue: str, terms: SasTerms) -> str:
        return make_service_sas(name, first, queue, terms)

    return [
        Credential("no credentials", _with(), _nothing),
        Credential("key 1, signed", _shared_key(name, first, now_ms), _is_for_keys),
        Credential("key 2, signed", _shared_key(name, second, now_ms), _is_for_keys),
        Credential(
            "key 1, SharedKeyLite", _shared_key(name, first, now_ms, lite=True), _is_for_keys
        ),
        Credential("signed with no key of it", _shared_key(name, _STRANGER, now_ms), _nothing),
        *account_signatures(name, first),
        *_refused_signatures(name, first),
        *queue_signatures("service", by_key),
        *queue_signatures("user delegation", _by_user(account, now_ms)),
        *_bearer_tokens(tokens, now_ms),
        # Keys as they are, which the native interface alone takes.
        Credential("key 1, itself", _bearer(keys[0]), _is_native),
        Credential("key 2, itself", _bearer(keys[1]), _is_native),
        Credential("inspector key, itself", _bearer(inspector), _is_native_and_reads),
        Credential("no key of it, itself", _bearer(b64encode(_STRANGER).decode()), _nothing),
    ]


def _bearer(token: str) -> Callable[[str, str, Mapping[str, str]], Sent]:
    return _with(authorization=f"Bearer {token}")


def _refused_signatures(name: str, key: bytes) -> Iterator[Credential]:
    everything = SasTerms(permission=ACCOUNT_LETTERS, expiry=_LATER)
    for what, token in {
        "of another key": make_account_sas(name, _STRANGER, everything),
        "that is expired": make_account_sas(name, key, replace(everything, expiry=_EARLIER)),
        "that is not yet good": make_account_sas(name, key, replace(everything, start=_LATER)),
        "for another address": make_account_sas(
            name, key, replace(everything, addresses="192.0.2.7")
        ),
        "for blobs": make_account_sas(name, key, everything, services="b"),
    }.items():
        yield Credential(f"account SAS {what}", _in_query(token), _nothing)


def _by_user(account: Account, now_ms: int) -> Callable[[str, SasTerms], str]:
    expires_at_ms = now_ms + _DAY_MS
    wish = DelegationRequest(
        object_id="user", tenant_id="directory", version=VERSION, expires_at_ms=expires_at_ms
    )
    delegated = issue_user_delegation_key(account, wish, now_ms=now_ms)
    expiry = format_iso_time(expires_at_ms)

    def make(queue: str, terms: SasTerms) -> str:
        shortened = replace(terms, expiry=expiry)
        return make_user_delegation_sas(account.name, delegated, queue, shortened)

    return make


def _bearer_tokens(tokens: IdentityProvider, now_ms: int) -> Iterator[Credential]:
    for short, role in ROLES.items():
        yield Credential(
            f"token, {role}",
            _bearer(tokens.token(roles=[role])),
            lambda right, short=short: short in right.roles.split(","),  # type: ignore[misc]
        )
    everyone = list(ROLES.values())
    past_s = (now_ms - _DAY_MS) // 1000
    for what, token in {
        "of a role that is unknown": tokens.token(roles=["Owner"]),
        "without roles": tokens.token(roles=[]),
        "that is forged": tokens.token(forged=True, roles=everyone),
        "that is expired": tokens.token(roles=everyone, exp=past_s, iat=past_s, nbf=past_s),
        "for another audience": tokens.token(roles=everyone, aud="https://elsewhere.test"),
        "of another issuer": tokens.token(roles=everyone, iss="https://elsewhere.test/"),
    }.items():
        yield Credential(f"token {what}", _bearer(token), _nothing)


def _is_native(right: Right) -> bool:
    return right.interface == "native"


def _is_native_and_reads(right: Right) -> bool:
    return right.interface == "native" and right.reads == "yes"


class Asker:
    """Sends the requests, over one connection that is opened anew when it was closed.

    Args:
        url: Address of the account, https.
        ca_file: Certificate to trust.
    """

    def __init__(self, url: str, ca_file: str) -> None:
        parts = urlsplit(url)
        self._account = parts.path.strip("/")
        self._host = parts.netloc
        self._trust = ssl.create_default_context(cafile=ca_file)
        self._connection: http.client.HTTPSConnection | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def target_of(self, right: Right) -> str:
        """Return the target of a request for an operation: all names are of what is not there."""
        filled = right.path
        for name, value in {"account": self._account, "queue": QUEUE, "number": "1"}.items():
            filled = filled.replace(f"{{{name}}}", value)
        while "{" in filled:
            before, _, rest = filled.partition("{")
            filled = f"{before}x{rest.partition('}')[2]}"
        return f"/{self._account}{filled}" if right.interface == "azure" else filled

    def status(self, right: Right, credential: Credential) -> int:
        """Ask for an operation with a credential, and return the status of the answer."""
        target = self.target_of(right)
        body = b"" if right.method in {"GET", "DELETE"} else b"?"
        headers = {"x-ms-version": VERSION}
        if body:
            headers["content-length"] = str(len(body))
        sent = credential.show(right.method, target, headers)
        if sent.query:
            target += ("&" if "?" in target else "?") + sent.query
        return self.send(right.method, target, {**headers, **sent.headers}, body)[0]

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, bytes, list[str]]:
        """Send one request; return status, body, and the cookies that were set."""
        for attempt in (1, 2):
            if self._connection is None:
                self._connection = http.client.HTTPSConnection(
                    self._host, context=self._trust, timeout=30
                )
            try:
                self._connection.request(method, target, body or None, dict(headers))
                answer = self._connection.getresponse()
                cookies = answer.headers.get_all("set-cookie") or []
                return answer.status, answer.read(), cookies
            except (http.client.HTTPException, ConnectionError):
                self.close()
                if attempt == 2:
                    raise
        raise AssertionError

    def sign_in(self, role: str, key: str, name: str, opens: Callable[[Right], bool]) -> Credential:
        """Sign in to the console with a key; return the session as a credential."""
        status, told, cookies = self.send(
            "POST",
            "/console/api/session",
            {"content-type": "application/json"},
            json.dumps(
                {"kind": "key", "account": self._account, "key": key, "role": role}
            ).encode(),
        )
        assert status == 200, told
        headers = {
            "cookie": cookies[0].partition(";")[0],
            "x-leasehold-csrf": json.loads(told)["csrf"],
        }
        return Credential(name, _with(**headers), opens, on_console=True)

    def sessions(self, key: str, inspector: str) -> list[Credential]:
        """Sign in to the console in every way that needs no browser; return the sessions."""
        operator = self.sign_in("operator", key, "console, operator", _is_native)
        cookie = operator.show("", "", {}).headers["cookie"]
        return [
            operator,
            self.sign_in("viewer", key, "console, viewer", _is_native_and_reads),
            # Whoever signs in with an inspector key is a viewer, whatever role it asks for.
            self.sign_in("operator", inspector, "console, inspector", _is_native_and_reads),
            Credential(
                "console, operator without CSRF token", _with(cookie=cookie), _is_read_by_get, True
            ),
        ]


def _is_read_by_get(right: Right) -> bool:
    return right.interface == "native" and right.method == "GET"


class Asked(NamedTuple):
    """One request, and whether it was let in."""

    right: Right
    credential: Credential
    allowed: bool


def ask_all(asker: Asker, table: Iterable[Right], shown: Iterable[Credential]) -> list[Asked]:
    """Ask for every operation with every credential."""
    credentials_ = list(shown)
    return [
        Asked(right, credential, asker.status(right, credential) not in REFUSED)
        for right in table
        for credential in credentials_
        if right.interface == "native" or not credential.on_console
    ]


def differences(asked: Iterable[Asked]) -> list[str]:
    """Return in words where the server did something else than the table says."""
    return [
        f"{right.interface} {right.operation} by {credential.name}: "
        f"{'refused' if allowed else 'allowed'} by the table, not by the server"
        for right, credential, allowed in asked
        if (right.is_open or credential.opens(right)) != allowed
    ]


def spoiled(right: Right) -> Iterator[Right]:
    """Return a row of the table with one cell after the other wrong, for controls."""
    if right.is_open:
        yield right._replace(account_sas=_NEVER, queue_sas=_NEVER, roles=_NEVER, reads="no")
        return
    if right.interface == "native":
        yield right._replace(reads="no" if right.reads == "yes" else "yes")
    for role in ROLES:
        roles = set(right.roles.split(",")) ^ {role}
        yield right._replace(roles=",".join(sorted(roles)))
    for cell in {_NEVER, *(f"{kind}:{letter}" for kind in "sco" for letter in ACCOUNT_LETTERS)}:
        if cell != right.account_sas:
            yield right._replace(account_sas=cell)
    for cell in {_NEVER, *QUEUE_LETTERS}:
        if cell != right.queue_sas:
            yield right._replace(queue_sas=cell)
