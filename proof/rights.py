"""Who may do what: every operation by every kind of credential, asked of a running server.

``rights.csv`` is the table of rights, written out. A row is an operation; its cells say what each
kind of credential must grant:

- ``keys``: how a key of the account opens it: ``signed`` with SharedKey or SharedKeyLite,
  ``itself`` as a bearer token or to sign in to the console with, ``mns`` with a signature of MNS,
  by an account key or an access key.
- ``account_sas``: resource type and permissions of an account signature. ``o:p`` is permission
  ``p`` on messages, ``c:cw`` is ``c`` or ``w`` on queues; ``&`` joins what is needed together,
  ``|`` separates alternatives, ``-`` is never.
- ``queue_sas``: permissions of a service or user delegation signature on the queue, likewise.
- ``roles``: the roles of which one opens it to a bearer token.
- ``inspector``: whether an inspector key and a viewer of the console may.

Operations that are ``open`` need no credentials.

Rows of the interface ``sealed`` are sealed or signed things that the server takes back: ``path``
says what one asserts, ``method`` how it is sent, the other cells which holders may have one. What
the others make themselves with what they know must open nothing; see ``forged.py``.

An operation counts as refused if the answer is 401 or 403, or has a code that tells of credentials
alone. Requests name things that do not exist, so that what is allowed is mostly answered by 404 or
400. Afterwards the things are made, and all that was refused is asked again: the answers must be
the same to the byte, or strangers could find out what is there.
"""

from __future__ import annotations

import csv
import io
import json
import re
import socket
import ssl
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from leasehold.auth.delegation import DelegationScope, UserDelegationKey
from leasehold.auth.mns import MnsHeader, MnsRequest, sign_v2, sign_v4, string_to_sign
from leasehold.auth.sas import (
    SasTerms,
    make_account_sas,
    make_service_sas,
    make_user_delegation_sas,
)
from leasehold.auth.sharedkey import format_http_date, sign
from leasehold.auth.types import SignedRequest, format_iso_time
from leasehold.http.native.call import read_query

if TYPE_CHECKING:
    from tests.e2e.identity import IdentityProvider

TABLE: Final = Path(__file__).with_name("rights.csv")
QUEUE: Final = "wanted-queue"
NAME: Final = "x"
"""Of everything else that a path names."""
OTHER_QUEUE: Final = "another-queue"
VERSION: Final = "2026-10-06"
MNS_VERSION: Final = "2015-06-06"
REFUSED: Final = frozenset({401, 403})
REFUSALS: Final = frozenset(
    {
        "InvalidAuthenticationInfo",
        *("MissingAuthorizationHeader", "InvalidAuthorizationHeader"),
        *("MissingDateHeader", "InvalidDateHeader", "TimeExpired"),
    }
)
"""Codes of refusals for the credentials' sake that have another status."""

INTERFACES: Final = ("azure", "native", "mns")
KEY_FORMS: Final = ("signed", "itself", "mns")

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
_SEALED: Final = "sealed"
_NEVER: Final = "-"
_MINUTE_MS: Final = 60 * 1000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS
_LATE_MS: Final = 16 * _MINUTE_MS
"""A minute more than a date may be off."""
_BODIES: Final[Mapping[str, bytes]] = {
    "mns-batch-send-message": b"<Messages/>",
    "mns-batch-delete-message": b"<ReceiptHandles/>",
}
"""Bodies by which an operation is known; others get one that is none."""


class Right(NamedTuple):
    """A row of the table: an operation, and what opens it."""

    interface: str
    operation: str
    method: str
    path: str
    keys: str
    account_sas: str
    queue_sas: str
    roles: str
    inspector: str

    @property
    def is_open(self) -> bool:
        """Whether it needs no credentials."""
        return self.keys == _OPEN

    @property
    def body(self) -> bytes:
        """What is sent with it."""
        return _BODIES.get(self.operation, b"" if self.method in {"GET", "DELETE"} else b"?")


def read_table(path: Path = TABLE) -> list[Right]:
    """Read the operations of the table of rights."""
    return [right for right in _read_rows(path) if right.interface != _SEALED]


def read_sealed(path: Path = TABLE) -> list[Right]:
    """Read the sealed things of the table of rights."""
    return [right for right in _read_rows(path) if right.interface == _SEALED]


def _read_rows(path: Path) -> list[Right]:
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
    interfaces: tuple[str, ...] = INTERFACES
    """Where it is shown."""
    on_main_port: bool = False
    """Whether operations of MNS are asked for on the port of the other interfaces."""
    of_another: bool = False
    """Whether it is another account's, which is let in there, and must see nothing of this one."""


def nothing(_: Right) -> bool:
    """Open no operation."""
    return False


def _to_keys(form: str) -> Callable[[Right], bool]:
    return lambda right: form in right.keys.split(",")


def in_query(token: str) -> Callable[[str, str, Mapping[str, str]], Sent]:
    """Return what shows a signature in the query."""
    return lambda *_: Sent(query=token)


def with_headers(**headers: str) -> Callable[[str, str, Mapping[str, str]], Sent]:
    """Return what shows a credential in headers."""
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
            in_query(make_account_sas(name, key, terms, resource_types=kinds)),
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
            in_query(make(QUEUE, terms)),
            lambda right, letters=letters: is_granted(  # type: ignore[misc]
                right.queue_sas, letters.__contains__
            ),
        )
    terms = SasTerms(permission=QUEUE_LETTERS, expiry=_LATER)
    yield Credential(f"{kind} SAS on another queue", in_query(make(OTHER_QUEUE, terms)), nothing)


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


class Holder(NamedTuple):
    """An account, and everything that opens it."""

    name: str
    keys: tuple[str, str]
    """Both keys, in base64."""
    inspector: str
    """Its inspector key, in base64."""
    access_key: tuple[str, str]
    """An access key of MNS that belongs to it, with its secret."""
    other: tuple[str, str]
    """Name of another account, and its key in base64."""


def credentials(holder: Holder, tokens: IdentityProvider, now_ms: int) -> list[Credential]:
    """Return every credential that is tried, but for those that the server itself has to make.

    Args:
        holder: The account.
        tokens: An issuer that the server trusts.
        now_ms: The time, Unix milliseconds. Signed requests are good for 15 minutes from it.
    """
    name = holder.name
    first, second = map(b64decode, holder.keys)
    other, others_key = holder.other[0], b64decode(holder.other[1])
    signed, itself = _to_keys("signed"), _to_keys("itself")

    def by_key(queue: str, terms: SasTerms) -> str:
        return make_service_sas(name, first, queue, terms)

    return [
        Credential("no credentials", with_headers(), nothing),
        Credential("key 1, signed", _shared_key(name, first, now_ms), signed),
        Credential("key 2, signed", _shared_key(name, second, now_ms), signed),
        Credential("key 1, SharedKeyLite", _shared_key(name, first, now_ms, lite=True), signed),
        Credential("signed with no key of it", _shared_key(name, _STRANGER, now_ms), nothing),
        Credential("signed by another account", _shared_key(other, others_key, now_ms), nothing),
        Credential("signed 16 minutes ago", _shared_key(name, first, now_ms - _LATE_MS), nothing),
        Credential("signed 16 minutes on", _shared_key(name, first, now_ms + _LATE_MS), nothing),
        *account_signatures(name, first),
        *_refused_signatures(name, first, others_key),
        *queue_signatures("service", by_key),
        *_bearer_tokens(tokens, now_ms),
        # Keys as they are, which the native interface alone takes.
        Credential("key 1, itself", _bearer(holder.keys[0]), itself),
        Credential("key 2, itself", _bearer(holder.keys[1]), itself),
        Credential("inspector key, itself", _bearer(holder.inspector), _to_inspectors),
        Credential("no key of it, itself", _bearer(b64encode(_STRANGER).decode()), nothing),
        Credential("another account's key, itself", _bearer(holder.other[1]), nothing),
        *mns_signatures(holder, now_ms),
    ]


def _bearer(token: str) -> Callable[[str, str, Mapping[str, str]], Sent]:
    return with_headers(authorization=f"Bearer {token}")


def _refused_signatures(name: str, key: bytes, others_key: bytes) -> Iterator[Credential]:
    everything = SasTerms(permission=ACCOUNT_LETTERS, expiry=_LATER)
    for what, token in {
        "of no key": make_account_sas(name, _STRANGER, everything),
        "of another account's key": make_account_sas(name, others_key, everything),
        "that is expired": make_account_sas(name, key, replace(everything, expiry=_EARLIER)),
        "that is not yet good": make_account_sas(name, key, replace(everything, start=_LATER)),
        "for another address": make_account_sas(
            name, key, replace(everything, addresses="192.0.2.7")
        ),
        "for blobs": make_account_sas(name, key, everything, services="b"),
    }.items():
        yield Credential(f"account SAS {what}", in_query(token), nothing)


def by_user(name: str, key: UserDelegationKey) -> Callable[[str, SasTerms], str]:
    """Return what signs for queues of an account with a delegation key."""
    return lambda queue, terms: make_user_delegation_sas(
        name, key, queue, replace(terms, expiry=key.scope.expiry)
    )


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
        yield Credential(f"token {what}", _bearer(token), nothing)


def _to_inspectors(right: Right) -> bool:
    return right.inspector == "yes"


# --- MNS -----------------------------------------------------------------------------------------

_V4: Final = "MNS4-HMAC-SHA256"
_TERMINATORS: Final = {_V4: "aliyun_v4_request", f"APSARA-{_V4}": "apsara_v4_request"}
_MNS_ONLY: Final = ("mns",)


@dataclass(frozen=True, slots=True, kw_only=True)
class MnsSigner:
    """Signs requests as the SDKs of MNS do, or with something wrong about them."""

    key_id: str
    secret: bytes
    date_ms: int
    """Unix milliseconds."""
    algorithm: str = ""
    """Of version 4; empty for version 2."""
    day: str = ""
    """In the scope of version 4, ``yyyymmdd``; empty for that of the date."""
    sent: Mapping[str, str] = field(default_factory=dict)
    """Headers that are signed, where they are of those that are."""
    added: Mapping[str, str | None] = field(default_factory=dict)
    """Headers that are put in after the request was signed; those that are None are taken out."""
    changed: Callable[[MnsRequest], MnsRequest] = lambda request: request
    """What is signed in the place of a request."""

    def __call__(self, method: str, target: str, headers: Mapping[str, str]) -> Sent:
        """Return what is added to a request."""
        dated = {"x-mns-version": MNS_VERSION, "date": format_http_date(self.date_ms), **self.sent}
        path, _, query = target.partition("?")
        request = self.changed(MnsRequest(method, path, query, {**headers, **dated}))
        if self.algorithm:
            day = self.day or format_iso_time(self.date_ms)[:10].replace("-", "")
            header = MnsHeader(self.key_id, "", self.algorithm, day, "region")
            signature = sign_v4(self.secret, header, string_to_sign(request, header, self.date_ms))
            scope = f"{self.key_id}/{day}/region/mns/{_TERMINATORS[self.algorithm]}"
            authorization = f"{self.algorithm} Credential={scope},Signature={signature}"
        else:
            header = MnsHeader(self.key_id, "")
            text = string_to_sign(request, header, self.date_ms)
            authorization = f"MNS {self.key_id}:{sign_v2(self.secret, text).decode()}"
        given = {**dated, "authorization": authorization, **self.added}
        return Sent(headers={name: text for name, text in given.items() if text is not None})


def mns_signatures(holder: Holder, now_ms: int) -> Iterator[Credential]:
    """Each key in each form that SDKs of MNS sign in, and each way to be refused."""
    good = MnsSigner(key_id=holder.name, secret=holder.keys[0].encode(), date_ms=now_ms)
    access = replace(good, key_id=holder.access_key[0], secret=holder.access_key[1].encode())
    another = replace(good, key_id=holder.other[0], secret=holder.other[1].encode())
    opens, own_host = _to_keys("mns"), {"host": f"{holder.name}.mns.localhost"}
    stated = {"x-mns-date": format_http_date(now_ms), "date": "today"}
    for what, signer in {
        "key 1": good,
        "key 2": replace(good, secret=holder.keys[1].encode()),
        "access key": access,
        "key 1, version 4": replace(good, algorithm=_V4),
        "key 2, version 4": replace(good, secret=holder.keys[1].encode(), algorithm=_V4),
        "access key, version 4": replace(access, algorithm=_V4),
        "key 1, version 4 of private clouds": replace(good, algorithm=f"APSARA-{_V4}"),
        "key 1, x-mns-date": replace(good, sent=stated),
        "key 1, spelled by the .NET SDK": replace(good, changed=_decoded),
        "key 1, security token": replace(good, added={"security-token": "token"}),
    }.items():
        yield Credential(f"MNS, {what}", signer, opens)
    for what, signer in _refused_signers(holder, good).items():
        yield Credential(f"MNS, {what}", signer, nothing)
    yield Credential("MNS, in the query", _mns_in_query(good), nothing)
    yield Credential("MNS, another account's key", another, opens, of_another=True)
    # Hosts, which on the main port also say that a request is of MNS.
    by_host = replace(good, sent=own_host)
    for what, show, opened in (
        ("key 1", by_host, opens),
        ("another account's key", replace(another, sent=own_host), nothing),
        ("no key", replace(by_host, secret=b"no key"), nothing),
        ("nothing signed", with_headers(**own_host), nothing),
    ):
        yield Credential(f"MNS, host of the account, {what}", show, opened, _MNS_ONLY)
        yield Credential(f"MNS, main port, {what}", show, opened, _MNS_ONLY, on_main_port=True)
    elsewhere = replace(good, sent={"host": "nobody.mns.localhost"})
    yield Credential("MNS, host of no account, key 1", elsewhere, opens, _MNS_ONLY)
    elsewhere = replace(good, sent={"host": f"{holder.other[0]}.mns.localhost"})
    yield Credential("MNS, host of another account, key 1", elsewhere, nothing, _MNS_ONLY)


def _refused_signers(holder: Holder, good: MnsSigner) -> dict[str, MnsSigner]:
    now_ms = good.date_ms
    version_4 = replace(good, algorithm=_V4)
    yesterday = format_iso_time(now_ms - _DAY_MS)[:10].replace("-", "")
    wrong_secrets = {
        "no key of it": _STRANGER,
        "key 1 as bytes": b64decode(holder.keys[0]),
        "inspector key": holder.inspector.encode(),
        "another account's key under its name": holder.other[1].encode(),
        "an empty key": b"",
    }
    wrong_ids = {
        "key 1 under another account's name": holder.other[0],
        "key 1 under the name of no account": "nobody",
        "key 1 under the name in capitals": holder.name.upper(),
        "key 1 under the id of the access key": holder.access_key[0],
        "key 1 under a temporary id": "STS.temporary",
    }
    others: dict[str, Callable[[MnsRequest], MnsRequest]] = {
        "for another method": lambda request: request._replace(method="HEAD"),
        "for another path": lambda request: request._replace(path=f"{request.path}x"),
        "for another query": lambda request: request._replace(query=f"{request.query}&x=y"),
    }
    return {
        **{what: replace(good, secret=secret) for what, secret in wrong_secrets.items()},
        **{f"{what}, v4": replace(version_4, secret=key) for what, key in wrong_secrets.items()},
        **{what: replace(good, key_id=key_id) for what, key_id in wrong_ids.items()},
        **{what: replace(good, changed=change) for what, change in others.items()},
        **{f"{what}, v4": replace(version_4, changed=change) for what, change in others.items()},
        "16 minutes ago": replace(good, date_ms=now_ms - _LATE_MS),
        "16 minutes on": replace(good, date_ms=now_ms + _LATE_MS),
        "16 minutes ago, v4": replace(version_4, date_ms=now_ms - _LATE_MS),
        "16 minutes on, v4": replace(version_4, date_ms=now_ms + _LATE_MS),
        "by the key of another day, v4": replace(version_4, day=yesterday),
        "without a date": replace(good, added={"date": None}),
        "with a date that is none": replace(good, sent={"date": "today"}),
        "with a header put in": replace(good, added={"x-mns-put-in": "x"}),
        "with a type put in": replace(good, added={"content-type": "text/xml"}),
        "of a temporary key": replace(
            good, key_id="STS.temporary", secret=b"secret", added={"security-token": "token"}
        ),
    }


def _decoded(request: MnsRequest) -> MnsRequest:
    """Return a request as the .NET SDK signs it: decoded, sorted by name, blanks folded."""
    query = "&".join(sorted(unquote(part) for part in request.query.split("&")))
    return request._replace(path=unquote(request.path), query=query)


def _mns_in_query(signer: MnsSigner) -> Callable[[str, str, Mapping[str, str]], Sent]:
    """Sign in the query, as for other services of the same cloud; MNS has no such thing."""

    def show(method: str, target: str, headers: Mapping[str, str]) -> Sent:
        shown = dict(signer(method, target, headers).headers)
        signature = quote(shown.pop("authorization").partition(":")[2], safe="")
        query = f"AccessKeyId={signer.key_id}&Expires=4070908800&Signature={signature}"
        return Sent(query, shown)

    return show


# --- asking --------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def is_refusal(self) -> bool:
        """Whether the credentials do not open the operation."""
        found = _CODE.search(self.body)
        return self.status in REFUSED or (found is not None and found[1].decode() in REFUSALS)

    def without_ids(self) -> Answer:
        """Return it without what differs for other reasons: ids, times, when the body arrived."""
        kept = tuple(
            (name, text) for name, text in self.headers if _IS_OF_ONE_ANSWER.search(name) is None
        )
        return Answer(self.status, kept, _OF_ONE_ANSWER.sub(b"", self.body))


_CODE: Final = re.compile(rb"<Code>(\w+)</Code>")
_IS_OF_ONE_ANSWER: Final = re.compile("^date$|^connection$|request-id")
_OF_ONE_ANSWER: Final = re.compile(
    rb"RequestId:\S+\s+Time:\S+|<RequestId>\w+</RequestId>|\"request_id\":\s*\"[^\"]+\""
)


def _read_answer(answers: io.BufferedRWPair) -> Answer | None:
    """Read one answer; None if the connection was closed before it."""
    status, headers = answers.readline(), []
    if not status:
        return None
    while line := answers.readline().decode("latin-1").strip():
        name, _, text = line.partition(":")
        headers.append((name.lower(), text.strip()))
    body = answers.read(int(dict(headers).get("content-length", "0")))
    return Answer(int(status.split()[1]), tuple(headers), body)


class Asker:
    """Sends the requests, over connections that are opened anew when they were closed.

    Args:
        url: Address of the account, https.
        mns_url: Address of the port of MNS, https.
        ca_file: Certificate to trust.
    """

    def __init__(self, url: str, mns_url: str, ca_file: str) -> None:
        parts = urlsplit(url)
        self._account = parts.path.strip("/")
        self._main, self._mns = parts.netloc, urlsplit(mns_url).netloc
        self._trust = ssl.create_default_context(cafile=ca_file)
        self._connections: dict[str, io.BufferedRWPair] = {}

    def close(self) -> None:
        """Close the connections."""
        while self._connections:
            self._connections.popitem()[1].close()

    def target_of(self, right: Right) -> str:
        """Return the target of a request for an operation."""
        filled = right.path
        for name, value in {"account": self._account, "queue": QUEUE, "number": "1"}.items():
            filled = filled.replace(f"{{{name}}}", value)
        while "{" in filled:
            before, _, rest = filled.partition("{")
            filled = f"{before}{NAME}{rest.partition('}')[2]}"
        return f"/{self._account}{filled}" if right.interface == "azure" else filled

    def ask(self, right: Right, credential: Credential) -> Answer:
        """Ask for an operation with a credential."""
        target, body = self.target_of(right), right.body
        headers = {"x-ms-version": VERSION}
        if body:
            headers["content-length"] = str(len(body))
        sent = credential.show(right.method, target, headers)
        if sent.query:
            target += ("&" if "?" in target else "?") + sent.query
        to_mns = right.interface == "mns" and not credential.on_main_port
        return self.send(
            right.method,
            target,
            {**headers, **sent.headers},
            body,
            host=self._mns if to_mns else "",
        )

    def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        host: str = "",
    ) -> Answer:
        """Send one request; to the main port if no host is given."""
        host = host or self._main
        lines = "".join(f"{name}: {text}\r\n" for name, text in {"host": host, **headers}.items())
        # In one piece: who is refused before the body has come has to connect again.
        sent = f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body
        for _ in range(2):
            answers = self._connections.get(host) or self._connect(host)
            try:
                answers.write(sent)
                answers.flush()
                answer = _read_answer(answers)
            except ConnectionError:
                answer = None
            if answer is None or ("connection", "close") in answer.headers:
                del self._connections[host]
                answers.close()
            if answer is not None:
                return answer
        raise ConnectionError(f"{host} does not answer {method} {target}")

    def _connect(self, host: str) -> io.BufferedRWPair:
        name, _, port = host.partition(":")
        with socket.create_connection((name, int(port)), timeout=30) as plain:
            secured = self._trust.wrap_socket(plain, server_hostname=name)
        with secured:  # which what was made of it keeps open
            made = self._connections[host] = secured.makefile("rwb")
        return made

    def sign_in(self, role: str, key: str, name: str, opens: Callable[[Right], bool]) -> Credential:
        """Sign in to the console with a key; return the session as a credential."""
        wish = {"kind": "key", "account": self._account, "key": key, "role": role}
        body = json.dumps(wish).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        answer = self.send("POST", "/console/api/session", headers, body)
        assert answer.status == 200, answer
        [cookie] = [text for name, text in answer.headers if name == "set-cookie"]
        headers = {
            "cookie": cookie.partition(";")[0],
            "x-leasehold-csrf": json.loads(answer.body)["csrf"],
        }
        return Credential(name, with_headers(**headers), opens)

    def sessions(self, key: str, inspector: str) -> list[Credential]:
        """Sign in to the console in every way that needs no browser; return the sessions."""
        itself = _to_keys("itself")
        operator = self.sign_in("operator", key, "console, operator", itself)
        cookie = operator.show("", "", {}).headers["cookie"]
        return [
            operator,
            self.sign_in("viewer", key, "console, viewer", _to_inspectors),
            # Whoever signs in with an inspector key is a viewer, whatever role it asks for.
            self.sign_in("operator", inspector, "console, inspector", _to_inspectors),
            Credential(
                "console, operator without CSRF token",
                with_headers(cookie=cookie),
                lambda right: right.method == "GET" and itself(right),
            ),
        ]

    def delegated(self, token: str, now_ms: int) -> Iterator[Credential]:
        """Ask for a user delegation key with a contributor's token; return what it signs."""
        expiry = format_iso_time(now_ms + _DAY_MS)
        body = f"<KeyInfo><Expiry>{expiry}</Expiry></KeyInfo>".encode()
        headers = {"authorization": f"Bearer {token}", "x-ms-version": VERSION}
        headers["content-length"] = str(len(body))
        target = f"/{self._account}?restype=service&comp=userdelegationkey"
        answer = self.send("POST", target, headers, body)
        assert answer.status == 200, answer
        fields = dict(re.findall(r"<(\w+)>([^<]+)</", answer.body.decode()))
        scope = DelegationScope(
            object_id=fields["SignedOid"],
            tenant_id=fields["SignedTid"],
            start=fields["SignedStart"],
            expiry=fields["SignedExpiry"],
            service=fields["SignedService"],
            version=fields["SignedVersion"],
        )
        key = UserDelegationKey(scope=scope, value=b64decode(fields["Value"]))
        yield from queue_signatures("user delegation", by_user(self._account, key))

    def make(self, key: str) -> None:
        """Make what the requests name, with a key of the account, so that it is there."""
        queue = f"/v1/accounts/{self._account}/queues/{QUEUE}"
        for method, path, content in (
            ("PUT", queue, {}),
            ("POST", f"{queue}/messages", {"messages": [{"body": "x", "group_id": NAME}]}),
            ("PUT", f"{queue}/streams/{NAME}", {}),
        ):
            answer = self._by_key(method, path, key, content)
            assert answer.status in {200, 201}, (path, answer)

    def state(self, key: str) -> list[Any]:
        """Return what is in the queue, with all that would show if anything had happened to it."""
        queue = f"/v1/accounts/{self._account}/queues/{QUEUE}"
        paths = (queue, f"{queue}/messages", f"{queue}/policies", f"{queue}/streams/{NAME}")
        answers = [self._by_key("GET", path, key) for path in paths]
        assert {answer.status for answer in answers} == {200}, answers
        shown = [json.loads(answer.body) for answer in answers]
        # These tell of the time that passes.
        del shown[0]["counts"]
        for message in shown[1]["messages"]:
            del message["why"]
        return shown

    def _by_key(self, method: str, path: str, key: str, content: object = None) -> Answer:
        body = b"" if content is None else json.dumps(content).encode()
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        return self.send(method, path, {**headers, "content-length": str(len(body))}, body)


class Asked(NamedTuple):
    """One request, and what came back."""

    right: Right
    credential: Credential
    allowed: bool
    """Whether it was let in."""
    answer: Answer


def _ask(asker: Asker, right: Right, credential: Credential) -> Asked:
    answer = asker.ask(right, credential)
    return Asked(right, credential, not answer.is_refusal, answer)


def ask_all(asker: Asker, table: Iterable[Right], shown: Iterable[Credential]) -> list[Asked]:
    """Ask for every operation with every credential."""
    credentials_ = list(shown)
    return [
        _ask(asker, right, credential)
        for right in table
        for credential in credentials_
        if right.interface in credential.interfaces
    ]


def must_see_nothing(each: Asked) -> bool:
    """Tell whether a request was refused, or is of another account."""
    return not each.allowed or each.credential.of_another


def ask_again(asker: Asker, asked: Iterable[Asked], chosen: Callable[[Asked], bool]) -> list[Asked]:
    """Ask again for what is chosen."""
    return [_ask(asker, each.right, each.credential) for each in asked if chosen(each)]


def told_apart(before: Iterable[Asked], after: Iterable[Asked]) -> list[str]:
    """Return in words where answers differ, before and after something was made.

    Args:
        before: Requests, of which some were asked again.
        after: Those.
    """
    first = {(each.right, each.credential.name): each.answer for each in before}
    return [
        f"{right.interface} {right.operation} by {credential.name}: {earlier} became {answer}"
        for right, credential, _, answer in after
        if (earlier := first[right, credential.name]).without_ids() != answer.without_ids()
    ]


def differences(asked: Iterable[Asked]) -> list[str]:
    """Return in words where the server did something else than the table says."""
    return [
        f"{right.interface} {right.operation} by {credential.name}: "
        f"{'refused' if allowed else 'allowed'} by the table, not by the server"
        for right, credential, allowed, _ in asked
        if (right.is_open or credential.opens(right)) != allowed
    ]


def spoiled(right: Right) -> Iterator[Right]:
    """Return a row of the table with one cell after the other wrong, for controls."""
    if right.is_open:
        yield Right(*right[:4], _NEVER, _NEVER, _NEVER, _NEVER, "no")
        return
    yield right._replace(inspector="no" if right.inspector == "yes" else "yes")
    for form in KEY_FORMS:
        yield right._replace(keys=_switched(right.keys, form))
    for role in ROLES:
        yield right._replace(roles=_switched(right.roles, role))
    for cell in {_NEVER, *(f"{kind}:{letter}" for kind in "sco" for letter in ACCOUNT_LETTERS)}:
        if cell != right.account_sas:
            yield right._replace(account_sas=cell)
    for cell in {_NEVER, *QUEUE_LETTERS}:
        if cell != right.queue_sas:
            yield right._replace(queue_sas=cell)


def _switched(cell: str, term: str) -> str:
    """Return a cell that lists terms, with one of them added or taken out."""
    return ",".join(sorted(set(cell.split(",")) ^ {term}))
