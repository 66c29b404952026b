"""Shots: requests of the grammar, signed well or badly, broken on the wire, or no requests at all.

Everything aimed at the sentinel's account must be refused. The playground is another account,
where requests may be right.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias
from urllib.parse import quote, unquote_to_bytes

from leasehold.auth.sas import SasTerms, make_account_sas, make_service_sas
from leasehold.auth.sharedkey import MAX_SKEW_MS, format_http_date
from tests.reliability.fuzz_grammar import REFUSABLE, Grammar, endless
from tests.reliability.fuzzing import Sentinel, Shot
from tests.reliability.running import CLOCK, VERSION, Asked, message, sas_of, serialize

SENTINEL: Final = "sentinel"
PLAYGROUND: Final = "playground"
KEYS: Final = {
    name: base64.b64encode(name.encode().ljust(64, b"#")).decode()
    for name in (SENTINEL, PLAYGROUND)
}
"""The accounts of the server under test, as its settings want them."""

_SIGNED_FIELDS: Final = frozenset(
    (
        *("authorization", "content-encoding", "content-language", "content-length"),
        *("content-md5", "content-type", "if-modified-since", "if-match", "if-none-match"),
        *("if-unmodified-since", "range"),
    )
)
_SAS_FIELDS: Final = frozenset(
    ("sv", "ss", "srt", "sp", "st", "se", "sip", "spr", "ses", "sig", "si")
)
_ONE: Final = Sentinel.QUEUES[0]

Meaning: TypeAlias = tuple[object, ...] | None


@dataclass(frozen=True, slots=True)
class Shooter:
    """Draws shots from a seed."""

    rng: random.Random
    at_sentinel: Grammar
    at_playground: Grammar

    @classmethod
    def of_seed(cls, seed: int) -> Shooter:
        """Return the shooter of one seed."""
        rng = random.Random(seed)
        return cls(
            rng,
            Grammar(rng, SENTINEL, Sentinel.QUEUES),
            Grammar(rng, PLAYGROUND, ("play-one", "play-two")),
        )

    def shots(self) -> Iterator[Shot]:
        """Yield shots without end."""
        kinds: list[Callable[[Shooter], Shot]] = [
            *(_refusable(each.kind, each.draw) for each in REFUSABLE),
            *(Shooter.credentials,) * 3,
            *(Shooter.forged_key, Shooter.forged_sas),
            *(Shooter.framing,) * 2,
            Shooter.garbage,
            *(Shooter.anything,) * 6,
        ]
        for kind in endless(kinds, self.rng):
            yield kind(self)

    def forgeries(self) -> Iterator[Shot]:
        """Yield changed copies of rightly signed requests without end."""
        while True:
            yield self.forged_key()
            yield self.forged_sas()

    def anything(self) -> Shot:
        """Return a signed request to the playground that may be right."""
        asked = self.at_playground.anything()
        if self.rng.random() < 0.3:
            raw = asked.with_sas(sas_of(PLAYGROUND, _key(PLAYGROUND))).unsigned()
        else:
            raw = _signed(asked)
        return Shot(
            kind="anything",
            raw=raw,
            must_be_refused=False,
            # A request whose length its fields do not tell may be waited for until the end.
            must_be_answered="?" not in asked.path,
            head=asked.method == "HEAD",
        )

    def credentials(self) -> Shot:
        """Return a request that would be right if another had signed it, or at another time."""
        draw = self.rng.choice(_CREDENTIALS)
        asked = self.at_sentinel.genuine()
        return Shot(kind="credentials", raw=draw(self, asked), head=asked.method == "HEAD")

    def forged_key(self) -> Shot:
        """Return a request that was changed after it was signed with the key."""
        genuine = _signed(self.at_sentinel.genuine())
        raw = self._changed(genuine, genuine.index(b"\r\n\r\n") + 4, key_meaning)
        return Shot(kind="forged key", raw=raw, must_be_answered=False)

    def forged_sas(self) -> Shot:
        """Return a request with a shared access signature that was changed."""
        kind = self.rng.choice(("account", "queue", "future"))
        if kind == "queue":
            sas = _queue_sas(permission="raup")
        else:
            start = "2026-01-01" if kind == "account" else "2098-01-01T00:00:00Z"
            sas = _account_sas(start=start)
        genuine = self.at_sentinel.genuine().with_sas(sas).unsigned()
        raw = self._changed(
            genuine, genuine.index(b" HTTP/1.1\r\n"), sas_meaning, genuine.index(b"sv=")
        )
        return Shot(kind="forged SAS", raw=raw, must_be_answered=False)

    def framing(self) -> Shot:
        """Return a rightly signed request whose end, or form, is in doubt."""
        draw = self.rng.choice(_FRAMINGS)
        return Shot(kind="framing", raw=draw(self), must_be_answered=False)

    def garbage(self) -> Shot:
        """Return bytes that are no request, or a request in ruins."""
        rng = self.rng
        raw = rng.choice(_GARBAGE) or rng.randbytes(rng.choice((1, 10, 100, 5_000, 100_000)))
        if rng.random() < 0.4:
            ruin = bytearray(self.at_sentinel.genuine().unsigned())
            for _ in range(rng.randint(1, 30)):
                at = rng.randrange(len(ruin))
                ruin[at : at + rng.randint(0, 9)] = rng.randbytes(rng.randint(0, 9))
            raw = bytes(ruin)
        return Shot(kind="garbage", raw=raw, must_be_answered=False)

    def incomplete(self) -> Shot:
        """Return the beginning of a request."""
        whole = _signed(replace(self.at_sentinel.genuine(), body=message("x" * 99)))
        cut = self.rng.randrange(1, len(whole))
        return Shot(kind="incomplete", raw=whole[:cut], must_be_answered=False)

    def _changed(
        self, raw: bytes, end: int, meaning: Callable[[bytes], Meaning], start: int = 0
    ) -> bytes:
        """Change *raw* somewhere between two places until it says something else."""
        rng = self.rng
        before = meaning(raw)
        while True:
            at = rng.randrange(start, end)
            one = raw[at : at + 1]
            new = rng.choice(
                (
                    bytes((one[0] ^ (1 << rng.randrange(7)),)),
                    one.swapcase(),
                    b"",
                    one * 2,
                    b"%%%02x" % one[0],
                    bytes((rng.randrange(33, 127),)),
                    one + bytes((rng.randrange(33, 127),)),
                )
            )
            changed = raw[:at] + new + raw[at + 1 :]
            if meaning(changed) != before:
                return changed


def _refusable(kind: str, draw: Callable[[Grammar], Asked]) -> Callable[[Shooter], Shot]:
    def shot(shooter: Shooter) -> Shot:
        asked = draw(shooter.at_sentinel)
        return Shot(kind=kind, raw=_signed(asked), head=asked.method == "HEAD")

    return shot


def _key(account: str) -> bytes:
    return base64.b64decode(KEYS[account])


def _signed(asked: Asked) -> bytes:
    account = asked.path.split("/")[1] if asked.path.count("/") > 1 else SENTINEL
    account = account if account in KEYS else SENTINEL
    return asked.signed(_key(account), account)


# What a request says; two requests that say the same are signed alike.


def _parts(raw: bytes) -> tuple[bytes, bytes, list[tuple[bytes, bytes]], dict[str, bytes]] | None:
    """Return method, path, query pairs and fields of a request; None where it has no such form."""
    head, mark, _ = raw.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    words = first.split()  # blanks between the words may be repeated: RFC 9112, section 3
    if not mark or len(words) != 3 or not words[1].startswith(b"/"):
        return None
    path, _, query = words[1].partition(b"?")
    pairs = [part.partition(b"=") for part in query.replace(b"+", b" ").split(b"&")]
    fields: dict[str, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            return None
        fields[name.decode("latin-1").lower()] = value.strip(b" \t")
    decoded = [(unquote_to_bytes(n).lower(), unquote_to_bytes(v)) for n, _, v in pairs if n or v]
    return words[0], path, sorted(decoded), fields


def key_meaning(raw: bytes) -> Meaning:
    """Return what of a request the account key signs; None where it has no form."""
    parts = _parts(raw)
    if parts is None:
        return None
    method, path, pairs, fields = parts
    signed = {
        name: value
        for name, value in fields.items()
        if name.startswith("x-ms-") or name in _SIGNED_FIELDS
    }
    if signed.get("content-length") == b"0":
        del signed["content-length"]
    return method, path, pairs, sorted(signed.items())


def sas_meaning(raw: bytes) -> Meaning:
    """Return the fields of a shared access signature in a request; None where it has no form."""
    parts = _parts(raw)
    if parts is None:
        return None
    return tuple((name, value) for name, value in parts[2] if name.decode("latin-1") in _SAS_FIELDS)


# Credentials.


def _account_sas(**terms: str) -> str:
    services, types = terms.pop("services", "q"), terms.pop("types", "sco")
    given = {
        "permission": "rwdlacup",
        "expiry": "2099-01-01T00:00:00Z",
        "version": VERSION,
        **terms,
    }
    key = _key(terms.pop("signer", SENTINEL))
    given.pop("signer", None)
    return make_account_sas(
        SENTINEL, key, SasTerms(**given), resource_types=types, services=services
    )


def _queue_sas(queue: str = _ONE, policy: str = "", signer: str = SENTINEL, **terms: str) -> str:
    given = {"expiry": "2099-01-01T00:00:00Z", "version": VERSION, **terms}
    return make_service_sas(SENTINEL, _key(signer), queue, SasTerms(**given), policy_id=policy)


def _with_sas(**terms: str) -> Callable[[Shooter, Asked], bytes]:
    return lambda _, asked: asked.with_sas(_account_sas(**terms)).unsigned()


def _with_queue_sas(**terms: str) -> Callable[[Shooter, Asked], bytes]:
    def raw(_: Shooter, asked: Asked) -> bytes:
        return (
            replace(asked, path=f"/{SENTINEL}/{_ONE}/messages", method="DELETE")
            .with_sas(_queue_sas(**terms))
            .unsigned()
        )

    return raw


def _with_header(value: Callable[[Shooter, str], str]) -> Callable[[Shooter, Asked], bytes]:
    """Sign a request rightly and then put another value into its Authorization header."""

    def raw(shooter: Shooter, asked: Asked) -> bytes:
        headers = asked.all_headers() | {"x-ms-date": format_http_date(CLOCK.now_ms())}
        genuine = asked.authorization(headers, _key(SENTINEL), SENTINEL)
        headers["authorization"] = value(shooter, genuine)
        return serialize(asked.method, asked.target, headers, asked.body)

    return raw


def _dated(date: str | int) -> Callable[[Shooter, Asked], bytes]:
    """Sign with a date, or so many milliseconds off the time."""

    def raw(_: Shooter, asked: Asked) -> bytes:
        text = format_http_date(CLOCK.now_ms() + date) if isinstance(date, int) else date
        return _signed(replace(asked, headers=(*asked.headers, ("x-ms-date", text))))

    return raw


def _signature(text: str) -> str:
    return text.rpartition(":")[2]


_CREDENTIALS: Final[tuple[Callable[[Shooter, Asked], bytes], ...]] = (
    lambda _, asked: asked.unsigned(),
    lambda _, asked: asked.signed(_key(PLAYGROUND), SENTINEL),
    lambda _, asked: asked.signed(_key(PLAYGROUND), PLAYGROUND),
    lambda _, asked: asked.signed(_key(SENTINEL), PLAYGROUND),
    lambda _, asked: asked.signed(b"", SENTINEL),
    lambda _, asked: asked.signed(KEYS[SENTINEL].encode(), SENTINEL),
    _with_header(lambda _, text: text[:-1]),
    _with_header(lambda _, text: text + "="),
    _with_header(lambda _, text: text.replace("SharedKey", "SharedKeyLite")),
    _with_header(lambda _, text: text.lower()),
    _with_header(lambda _, text: _signature(text)),
    _with_header(lambda _, text: f"Basic {_signature(text)}"),
    _with_header(lambda _, text: f"Bearer {_signature(text)}"),
    _with_header(lambda _, text: f"SharedKey :{_signature(text)}"),
    _with_header(lambda _, text: f"SharedKey {SENTINEL}:"),
    _with_header(lambda _, text: f"SharedKey {SENTINEL}:" + "A" * 20_000),
    _with_header(lambda _, text: f"{text},{text}"),
    _with_header(lambda _, text: ""),
    _with_header(
        lambda shooter, _: (
            f"SharedKey {SENTINEL}:{base64.b64encode(shooter.rng.randbytes(32)).decode()}"
        )
    ),
    _with_header(lambda shooter, _: "\xff" * shooter.rng.randint(1, 99)),
    _dated(-MAX_SKEW_MS - 60_000),
    _dated(MAX_SKEW_MS + 60_000),
    _dated("yesterday"),
    _dated("Sat, 21 Nov 2026 25:00:00 GMT"),
    _dated("Sun, 06 Nov 1994 08:49:37 GMT"),
    _dated("2026-11-21T00:00:00Z"),
    _dated("Fri, 31 Dec 9999 23:59:59 GMT"),
    _dated(""),
    _with_sas(expiry="2020-01-01T00:00:00Z"),
    _with_sas(start="2098-01-01T00:00:00Z"),
    _with_sas(expiry="never"),
    _with_sas(expiry=""),
    _with_sas(permission=""),
    _with_sas(services="b"),
    _with_sas(types="b"),
    _with_sas(protocol="https"),
    _with_sas(addresses="10.0.0.1"),
    _with_sas(addresses="127.0.0.1-"),
    _with_sas(signer=PLAYGROUND),
    _with_sas(version="2015-02-21"),
    _with_sas(version="99999"),
    _with_queue_sas(permission="raup"),  # which never allows to clear
    _with_queue_sas(permission="rwdlacup"),
    _with_queue_sas(permission="raup", queue="sentinel-two"),
    _with_queue_sas(permission="raup", signer=PLAYGROUND),
    _with_queue_sas(expiry="", policy="readers"),
    _with_queue_sas(expiry="", policy="nobody"),
    _with_queue_sas(policy="readers", permission="raup"),
    lambda _, asked: asked.with_sas(_account_sas()).signed(_key(SENTINEL), SENTINEL),
    lambda _, asked: asked.with_sas(_account_sas() + "&" + _account_sas()).unsigned(),
    lambda _, asked: asked.with_sas(_account_sas() + "&sig=AAAA").unsigned(),
    lambda _, asked: asked.with_sas("sig=" + quote(base64.b64encode(bytes(32)))).unsigned(),
)


# The wire.


def _split_signed(asked: Asked) -> tuple[list[bytes], bytes]:
    """Return the head of a signed request, line by line, and its body."""
    head, _, body = _signed(asked).partition(b"\r\n\r\n")
    return head.split(b"\r\n"), body


def _wire(
    change: Callable[[list[bytes]], list[bytes]], body: Callable[[bytes], bytes] = lambda same: same
) -> Callable[[Shooter], bytes]:
    """Return a way to draw a rightly signed put to the sentinel with its head or body changed."""

    def raw(shooter: Shooter) -> bytes:
        lines, content = _split_signed(shooter.at_sentinel.put(f"{_ONE}/messages"))
        return b"\r\n".join((*change(lines), b"", b"")) + body(content)

    return raw


def _adding(*more: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [*lines, *more]


def _length(value: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [
        b"content-length:" + value if line.startswith(b"content-length") else line for line in lines
    ]


def _without_length(*more: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [*(each for each in lines if b"content-length" not in each), *more]


def _first_line(old: bytes, new: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [lines[0].replace(old, new), *lines[1:]]


def _smuggling(field: bytes) -> Callable[[Shooter], bytes]:
    """Hide a rightly signed request to clear the queue where another reading would see it."""

    def raw(shooter: Shooter) -> bytes:
        hidden = _signed(shooter.at_sentinel.ask("DELETE", f"{_ONE}/messages"))
        lines, _ = _split_signed(shooter.at_sentinel.put(f"{_ONE}/messages"))
        lines = [line for line in lines if not line.startswith(b"content-length")]
        body = b"0\r\n\r\n" + hidden
        return b"\r\n".join((*lines, b"content-length: %d" % len(body), field, b"", b"")) + body

    return raw


_CHUNKED: Final = b"transfer-encoding: chunked"
_FRAMINGS: Final[tuple[Callable[[Shooter], bytes], ...]] = (
    *(
        _smuggling(field)
        for field in (
            _CHUNKED,
            *(b"Transfer-Encoding: Chunked", b"transfer-encoding : chunked"),
            *(b"transfer-encoding: xchunked", b"transfer-encoding: chunked, identity"),
            *(b"transfer-encoding:\tchunked", b"transfer-encoding: identity, chunked"),
            *(b"transfer-encoding: gzip, chunked", b" transfer-encoding: chunked"),
            *(b"transfer-encoding\x00: chunked", b"transfer-encoding: chunked\r\nhost: other"),
            *(b"x: y\n" + _CHUNKED, b"x: y\r" + _CHUNKED, b"content-length: 5"),
            *(b"content-length: 0", b"content-length: +5", b"transfer-encoding: chunked\x0b"),
        )
    ),
    *(
        _wire(_length(value))
        for value in (
            *(b" +9", b" -1", b" 0x20", b" 1e2", b" 9 9", b" 9,9", b" \xd9\xa7", b"", b" 9" * 40),
            *(b" 9" + b"9" * 30, b" 18446744073709551616", b" 0", b" 1", b" 40"),
        )
    ),
    _wire(_without_length(_CHUNKED), lambda body: b"%x\r\n%b" % (len(body), body)),
    _wire(_without_length(_CHUNKED), lambda body: b"-1\r\n%b\r\n0\r\n\r\n" % body),
    _wire(_without_length(_CHUNKED), lambda body: b"fffffffffffffffff\r\n" + body),
    _wire(_without_length(_CHUNKED), lambda body: b"zz\r\n" + body),
    _wire(_without_length(_CHUNKED), lambda body: b"5;\n\r\n" + body),
    _wire(_without_length(_CHUNKED), lambda body: b"%x \r\n%b0\r\n\r\n" % (len(body), body)),
    _wire(_without_length(_CHUNKED), lambda body: b"1\r\n" + body * 3),
    _wire(_without_length(_CHUNKED), lambda _: b"30000\r\n" + b"x" * 0x30000 + b"\r\n0\r\n\r\n"),
    _wire(_without_length()),
    _wire(_adding(b"host: elsewhere")),
    _wire(lambda lines: [line for line in lines if not line.startswith(b"host")]),
    _wire(_adding(b"no colon here")),
    _wire(_adding(b"space : before")),
    _wire(_adding(b": no name")),
    _wire(_adding(b"a: b\x00c")),
    _wire(_adding(b"a: b", b" folded")),
    _wire(_adding(b"a\xff: b")),
    _wire(_adding(*(b"x-%d: y" % number for number in range(500)))),
    _wire(_adding(b"x: " + b"y" * 40_000)),
    _wire(_adding(b"x" * 40_000 + b": y")),
    _wire(_adding(b"x-ms-date: Sat, 21 Nov 2026 00:00:00 GMT")),
    _wire(_adding(b"x-ms-version: 2026-10-06")),
    _wire(_adding(b"authorization: SharedKey sentinel:AAAA")),
    _wire(_adding(b"x-ms-meta-added: later")),
    _wire(_first_line(b"HTTP/1.1", b"HTTP/3.7")),
    _wire(_first_line(b"HTTP/1.1", b"HTTP/1.2")),
    _wire(_first_line(b"HTTP/1.1", b"HTTP/1.1 x")),
    _wire(_first_line(b"HTTP/1.1", b"http/1.1")),
    _wire(_first_line(b"POST ", b"POST http://elsewhere.example")),
    _wire(_first_line(b"POST ", b"POST //elsewhere.example")),
    _wire(_first_line(b"POST ", b"post ")),
    _wire(_first_line(b"POST ", b"BREW ")),
    _wire(_first_line(b"POST ", b"CONNECT ")),
    _wire(_first_line(b"/messages", b"/messages#")),
    _wire(_first_line(b"/messages", b"/mess\xc3\xa9ages")),
    _wire(_first_line(b"/messages", b"/messages?" + b"a" * 9_000)),
    _wire(_first_line(b"/messages", b"/mess\x00ages")),
)
_GARBAGE: Final = (
    *(b"", b"", b"", b"\r\n\r\n", b"\x00" * 5_000, b"GET", b"GET / HTTP/1.1", b"\r\n" * 3_000),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(99),
    b"GET /" + b"a" * 100_000,
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
    b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 300,
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"EHLO example.com\r\nMAIL FROM:<a@example.com>\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b'{"jsonrpc": "2.0"}\n',
)
