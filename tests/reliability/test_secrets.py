"""No key, signature, token, receipt or message text is in the log, the metrics or /readyz."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote
from xml.etree import ElementTree as ET

import pytest

import leasehold
from leasehold.auth.delegation import DelegationScope, UserDelegationKey
from leasehold.auth.sas import SasTerms, make_service_sas, make_user_delegation_sas
from leasehold.auth.sharedkey import format_http_date
from leasehold.auth.types import format_iso_time
from leasehold.http.logs import mask
from tests.e2e.identity import AUDIENCE, ISSUER, IdentityProvider
from tests.patience import PATIENCE_S
from tests.reliability.fuzz_shots import KEYS, Shooter
from tests.reliability.fuzzing import AnswersOfBytes, Shot, shoot
from tests.reliability.running import (
    CLOCK,
    VERSION,
    Answer,
    Asked,
    Connection,
    Delivery,
    KillableServer,
    deliveries,
    message,
    page,
    sas_of,
    serialize,
)

ACCOUNT: Final = "marked"
FIRST: Final = b"first-secret-key-of-the-marked-account-0123456789"
SECOND: Final = b"second-secret-key-of-the-marked-account-987654321"
TEXT: Final = "confidential-message-text"
QUEUE: Final = "secrets"
MESSAGES: Final = f"/{ACCOUNT}/{QUEUE}/messages"
_WINDOW: Final = 16
"""Even so many characters of a secret are too many."""
_SIGNATURES: Final = re.compile(
    rb"(?:sharedkey(?:lite)? \w+:|[?&]sig=)([A-Za-z0-9+/%=]{40,})", re.IGNORECASE
)
Signer = Callable[[Asked], bytes]


def pieces(secret: str) -> set[str]:
    """Return overlapping pieces of a secret, as it is and percent-encoded."""
    texts = {secret, quote(secret, safe=""), quote(secret, safe="").lower()}
    return {
        text[at : at + _WINDOW]
        for text in texts
        for at in (*range(0, len(text) - _WINDOW, _WINDOW // 2), max(0, len(text) - _WINDOW))
    }


@dataclass(slots=True)
class Session:
    """Talks to a server and keeps what was sent that is secret, and what errors showed."""

    port: int
    keys: set[str] = field(default_factory=set)
    signatures: set[str] = field(default_factory=set)
    unsent: set[str] = field(default_factory=set)
    """Signatures that were never sent, and would have been right."""
    receipts: set[str] = field(default_factory=set)
    tokens: set[str] = field(default_factory=set)
    errors: list[tuple[bytes, str]] = field(default_factory=list)
    """What was sent, and the error that came back."""
    statuses: set[int] = field(default_factory=set)

    def ask(self, raw: bytes) -> list[Answer]:
        """Send some bytes and return the answers."""
        for found in _SIGNATURES.findall(raw):
            if len(set(found)) > _WINDOW // 2:  # not the zeros that some wrong ones are made of
                self.signatures.add(unquote(found.decode("latin-1")))
        answers = AnswersOfBytes(shoot(self.port, Shot(kind="", raw=raw))).all_answers(
            head=raw.startswith(b"HEAD ")
        )
        for answer in answers:
            self.statuses.add(answer.status)
            if answer.status >= 400:
                text = f"{answer.headers}\n{answer.body.decode('utf-8', 'replace')}"
                self.errors.append((raw, text))
        return answers

    def do(self, raw: bytes, status: int) -> Answer:
        """Send a request that must have one answer of this status."""
        (answer,) = self.ask(raw)
        assert answer.status == status, answer
        if "x-ms-popreceipt" in answer.headers:
            self.receipts.add(answer.headers["x-ms-popreceipt"])
        return answer

    def take(self, raw: bytes, status: int) -> tuple[Delivery, ...]:
        """Send a request whose answer holds messages."""
        taken = deliveries(self.do(raw, status))
        self.receipts |= {each.receipt for each in taken}
        return taken

    def hidden(self) -> set[str]:
        """Return pieces of all that may be in no log."""
        # A receipt begins with numbers that are no secret; the rest of it is.
        seals = {receipt[_WINDOW:] for receipt in self.receipts if receipt}
        whole = self.keys | self.signatures | self.unsent | self.tokens | seals
        return {TEXT} | {piece for secret in whole for piece in pieces(secret)}


@contextmanager
def marked_server(
    folder: Path, log_format: str
) -> Iterator[tuple[KillableServer, IdentityProvider]]:
    """Run a server that logs all it can."""
    identity = IdentityProvider(folder / "identity")
    settings = {
        "log_level": "debug",
        "log_format": log_format,
        "tls_terminated": True,  # so that bearer tokens are taken
        "oidc_issuer": (ISSUER,),
        "oidc_audience": [AUDIENCE],
        "oidc_jwks": (str(identity.jwks_file),),
        "header_timeout_s": 0.5,
        "body_timeout_s": 0.5,
        "disk_reserve_mib": 4,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    lines += [f"[accounts.{ACCOUNT}]", f'key1 = "{_base64(FIRST)}"', f'key2 = "{_base64(SECOND)}"']
    for name, key in KEYS.items():
        lines += [f"[accounts.{name}]", f'key1 = "{key}"']
    config = folder / "leasehold.toml"
    config.write_text("\n".join(lines))
    server = KillableServer(folder / "data", options={"--config": str(config)})
    with server:
        yield server, identity


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def ask_for(method: str, path: str, query: str = "", body: bytes = b"") -> Asked:
    """Return a request."""
    return Asked(method=method, path=path, query=query, body=body)


def all_signers(session: Session, identity: IdentityProvider) -> list[Signer]:
    """Return every way to sign a request that is on a queue's messages."""
    token = identity.token()
    session.tokens.add(token)
    sas = sas_of(ACCOUNT, FIRST)
    terms = SasTerms(permission="raup", expiry="2099-01-01", version=VERSION)
    queue_sas = make_service_sas(ACCOUNT, SECOND, QUEUE, terms)
    key = delegation_key(session, token)
    user_sas = make_user_delegation_sas(ACCOUNT, key, QUEUE, terms)
    return [
        lambda asked: asked.signed(FIRST, ACCOUNT),
        lambda asked: asked.signed(SECOND, ACCOUNT),
        lambda asked: asked.with_sas(sas).unsigned(),
        lambda asked: asked.with_sas(queue_sas).unsigned(),
        lambda asked: asked.with_sas(user_sas).unsigned(),
        lambda asked: with_bearer(asked, token),
    ]


def with_bearer(asked: Asked, token: str) -> bytes:
    """Return a request with a token."""
    return replace(asked, headers=(("authorization", f"Bearer {token}"),)).unsigned()


def delegation_key(session: Session, token: str) -> UserDelegationKey:
    """Ask for a key that a bearer may sign with."""
    start, end = (format_iso_time(CLOCK.now_ms() + hours * 3_600_000) for hours in (0, 24))
    body = f"<KeyInfo><Start>{start}</Start><Expiry>{end}</Expiry></KeyInfo>".encode()
    query = "restype=service&comp=userdelegationkey"
    answer = session.do(with_bearer(ask_for("POST", f"/{ACCOUNT}/", query, body), token), 200)
    said = {node.tag: node.text or "" for node in ET.fromstring(answer.body)}
    session.keys.add(said["Value"])
    scope = DelegationScope(
        object_id=said["SignedOid"],
        tenant_id=said["SignedTid"],
        start=said["SignedStart"],
        expiry=said["SignedExpiry"],
        service=said["SignedService"],
        version=said["SignedVersion"],
    )
    return UserDelegationKey(scope=scope, value=base64.b64decode(said["Value"]))


def right_requests(session: Session, sign: Signer) -> None:
    """Put, get, peek, update and delete."""
    for number in range(3):
        body = message(f"{TEXT} {number}")
        session.take(sign(ask_for("POST", MESSAGES, "messagettl=600", body)), 201)
    session.take(sign(ask_for("GET", MESSAGES, "peekonly=true")), 200)
    one, two = session.take(sign(ask_for("GET", MESSAGES, "numofmessages=2")), 200)
    shown = f"popreceipt={one.receipt}"
    update = ask_for("PUT", f"{MESSAGES}/{one.message_id}", f"{shown}&visibilitytimeout=60")
    session.do(sign(replace(update, body=message(f"{TEXT} new"))), 204)
    delete = ask_for("DELETE", f"{MESSAGES}/{two.message_id}", f"popreceipt={two.receipt}")
    session.do(sign(delete), 204)
    for stale in (replace(update, body=b""), delete):
        session.do(sign(stale), 404)


def wrong_requests(session: Session, sign: Signer) -> None:
    """Show receipts, texts and credentials in requests that are refused."""
    (held,) = session.take(sign(ask_for("GET", MESSAGES)), 200)
    one = f"{MESSAGES}/{held.message_id}"
    shown = f"popreceipt={held.receipt}"
    for asked in (
        ask_for("POST", MESSAGES, body=f"<QueueMessage>{TEXT}".encode()),
        ask_for("POST", MESSAGES, body=f"<!DOCTYPE {TEXT}><x/>".encode()),
        ask_for("POST", MESSAGES, "visibilitytimeout=never", message(TEXT)),
        ask_for("POST", MESSAGES, "messagettl=0", message(TEXT * 4_000)),
        ask_for("POST", MESSAGES, body=message(TEXT * 6_000)),
        ask_for("PUT", one, f"{shown}&visibilitytimeout={2**63}", message(TEXT)),
        ask_for("PUT", one, f"{shown}x&visibilitytimeout=1"),
        ask_for("DELETE", one, f"{shown}%zz"),
        ask_for("DELETE", f"{MESSAGES}/x", shown),
        ask_for("PATCH", one, shown),
        ask_for("POST", f"/{ACCOUNT}/absent/messages", body=message(TEXT)),
        ask_for("POST", f"/nobody/{QUEUE}/messages", body=message(TEXT)),
    ):
        session.ask(sign(asked))
        session.ask(sign(replace(asked, headers=(("x-ms-version", "soon"),))))
        session.ask(sign(asked).replace(b"HTTP/1.1", b"HTTP/7.7"))
        session.ask(sign(asked).replace(b"\r\n\r\n", b"\r\n" + b"x: y\r\n" * 200 + b"\r\n", 1))
        session.ask(sign(replace(asked, query=asked.query + "&a=" + "a" * 9_000)))


def misplaced_credentials(session: Session, token: str) -> None:
    """Send credentials where clients put them by mistake."""
    sas = sas_of(ACCOUNT, FIRST)
    asked = ask_for("GET", f"/{ACCOUNT}/{QUEUE}", "comp=metadata")
    genuine = asked.signed(FIRST, ACCOUNT)
    signature = _SIGNATURES.findall(genuine)[0].decode()
    session.signatures |= {signature, unquote(sas.partition("sig=")[2])}
    key = _base64(FIRST)
    account = f"AccountName={ACCOUNT};AccountKey={key}"
    for path in (f"{asked.path}&{sas}", f"{asked.path};{sas}", f"/{quote(account, safe='=;')}"):
        session.ask(replace(asked, path=path).unsigned())
    for value in (
        *(f"Bearer {token}", f"bearer {token}x", f"Basic {key}", key, account, sas, signature),
        *(f"SharedKey {ACCOUNT}:{key}", f"SharedKey {ACCOUNT}:{signature[:-2]}"),
    ):
        for name in ("authorization", "cookie", "x-ms-version", "x-ms-client-request-id", "host"):
            session.ask(replace(asked, headers=((name, value),)).unsigned())
    session.ask(genuine.replace(b" ", b"\n", 1))
    session.ask(serialize("GET", "/readyz", {"host": "h", "authorization": f"Bearer {token}"}))


def wrong_signatures(session: Session) -> None:
    """Send wrong signatures, of which the server must compute the right ones to tell."""
    headers = {"x-ms-date": format_http_date(CLOCK.now_ms())}
    asked = ask_for("POST", MESSAGES, body=message(TEXT))
    headers |= asked.all_headers()
    for key in (FIRST, SECOND):
        session.unsent.add(asked.authorization(headers, key, ACCOUNT).partition(":")[2])
    headers["authorization"] = f"SharedKey {ACCOUNT}:{_base64(bytes(32))}"
    session.do(serialize("POST", MESSAGES, headers, asked.body), 403)
    terms = SasTerms(permission="raup", expiry="2098-01-01", version=VERSION)
    for key in (FIRST, SECOND):
        right = make_service_sas(ACCOUNT, key, QUEUE, terms).partition("sig=")
        session.unsent.add(unquote(right[2]))
        wrong = right[0] + "sig=" + quote(_base64(bytes(32)), safe="")
        session.do(asked.with_sas(wrong).unsigned(), 403)


def broken_connections(session: Session) -> None:
    """Go away in the middle of a request, or keep the server waiting for the rest."""
    whole = ask_for("POST", MESSAGES, body=message(TEXT * 50)).signed(FIRST, ACCOUNT)
    session.signatures |= {found.decode() for found in _SIGNATURES.findall(whole)}
    with ExitStack() as stack:
        waiting = [stack.enter_context(Connection(session.port)) for _ in range(2)]
        for connection, length in zip(waiting, (len(whole) // 3, len(whole) - 10), strict=True):
            connection.send(whole[:length])
            with Connection(session.port) as leaving:
                leaving.send(whole[:length])
        for connection in waiting:
            assert connection.read_rest().startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("log_format", [pytest.param("console", marks=pytest.mark.long), "json"])
def test_nothing_secret_is_shown(tmp_path: Path, log_format: str) -> None:
    """After requests of all kinds, right and wrong, at log_level=debug."""
    with marked_server(tmp_path, log_format) as (server, identity):
        session = Session(server.port)
        for raw in (FIRST, SECOND, *map(base64.b64decode, KEYS.values())):
            session.keys |= {raw.decode(), _base64(raw), raw.hex()}
        session.do(ask_for("PUT", f"/{ACCOUNT}/{QUEUE}").signed(FIRST, ACCOUNT), 201)
        signers = all_signers(session, identity)
        for sign in signers:
            right_requests(session, sign)
        for sign in signers[::2]:
            wrong_requests(session, sign)
        forged, late = identity.token(forged=True), identity.token(exp=1)
        session.tokens |= {forged, late}
        for token in (forged, late):
            session.do(with_bearer(ask_for("GET", MESSAGES), token), 401)
        misplaced_credentials(session, next(iter(session.tokens)))
        wrong_signatures(session)
        broken_connections(session)
        for shot in islice(Shooter.of_seed(3).shots(), 300):
            session.ask(shot.raw)
        pages = [page(server.port, path).body.decode() for path in ("/metrics", "/readyz")]
        whole_log = server.log
    assert whole_log.count("http.request") > 300, "the log says nothing, so it proves nothing"
    assert {200, 201, 204, 400, 401, 403, 404, 405, 413} <= session.statuses
    assert len(session.receipts) > 20
    hidden = session.hidden()
    assert leaks(server.log, hidden) == []
    assert [leak for text in pages for leak in leaks(text, hidden)] == []
    # An error may repeat what its request has said, but tells nothing else.
    never = {piece for secret in session.keys | session.unsent for piece in pieces(secret)}
    for raw, error in session.errors:
        assert leaks(error, {piece for piece in never if piece.encode() not in raw}) == []


def leaks(text: str, hidden: set[str]) -> list[str]:
    """Return the lines of *text* in which something hidden is shown."""
    shown = {piece for piece in hidden if piece in text}
    return [line[:300] for line in text.splitlines() if any(piece in line for piece in shown)]


def test_receipts_in_paths_are_masked(tmp_path: Path) -> None:
    """A client that forgets or encodes the question mark sends its receipt in the path."""
    with marked_server(tmp_path, "console") as (server, _):
        session = Session(server.port)
        session.do(ask_for("PUT", f"/{ACCOUNT}/{QUEUE}").signed(FIRST, ACCOUNT), 201)
        put = ask_for("POST", MESSAGES, body=message("x")).signed(FIRST, ACCOUNT)
        (given,) = session.take(put, 201)
        for mark in ("&", "%3F"):
            path = f"{MESSAGES}/{given.message_id}{mark}popreceipt={given.receipt}"
            session.ask(ask_for("DELETE", path).signed(FIRST, ACCOUNT))
    assert leaks(server.log, session.hidden()) == []


def test_a_leak_is_seen() -> None:
    """Positive control: each kind of secret is found in a line that shows it, whole or in part."""
    session = Session(0, keys={_base64(FIRST)}, tokens={"t" * 40}, receipts={"0" * 16 + "r" * 20})
    session.signatures.add("ab+/" * 10 + "abc=")
    for shown in (
        *(_base64(FIRST), _base64(FIRST)[10:40], quote("ab+/" * 10, safe=""), "ab+/" * 10),
        *("t" * 40, "r" * 20, TEXT),
    ):
        assert leaks(f"action=x\npath={shown} status=1", session.hidden())
    assert leaks("action=http.request path=/marked/secrets status=200", session.hidden()) == []
    assert mask("nothing secret") == "nothing secret"


@pytest.mark.parametrize("command", ["serve", "settings"])
@pytest.mark.parametrize("source", ["file", "environment"])
def test_wrong_settings_do_not_show_keys(tmp_path: Path, command: str, source: str) -> None:
    """A key that cannot be used is complained of without being shown."""
    key = _base64(FIRST)
    environment = {name: text for name, text in os.environ.items() if "LEASEHOLD" not in name}
    environment["PYTHONPATH"] = str(Path(leasehold.__file__).parents[1])
    line = [sys.executable, "-m", "leasehold.cli", command, "--data", str(tmp_path / "data")]
    if source == "file":
        config = tmp_path / "leasehold.toml"
        config.write_text(
            f'[accounts.marked]\nkey1 = "{key}"\nkey2 = "{key[:30]}!"\nkey3 = "{key}"'
        )
        line += ["--config", str(config)]
    else:
        environment["LEASEHOLD_ACCOUNTS"] = f"marked:{key}:{key[:30]}!;{key}"
    done = subprocess.run(
        line, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 78
    assert "account" in done.stderr
    assert leaks(done.stdout + done.stderr, pieces(key)) == []
