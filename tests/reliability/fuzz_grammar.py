"""Where the requests of the fuzz test come from: a seeded grammar of good and bad requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from urllib.parse import quote

from tests.reliability.running import Asked, message

T = TypeVar("T")

ABSURD_NUMBERS: Final = (
    *("-1", "604801", "2147483648", "4294967296", str(2**63 - 1), str(2**63), str(2**64), "1e5"),
    *(
        "0x10",
        "1_0",
        "٣",
        "\uff13\uff10",
        "๗",
        "²",
        " 7",
        "7 ",
        "+7",
        "7;8",
        "NaN",
        "inf",
        "--1",
        "-",
        "1.0",
    ),
    *("0.5", "1,2", "\x00", "7\x00", "true", "None", "9" * 400, "-" + "9" * 30, "½", "1\n2", "7é"),
)
"""None of them is a number of seconds, or of messages, that any operation takes."""

NOT_A_NUMBER: Final = tuple(
    text for text in ABSURD_NUMBERS if not text.lstrip("-").isdigit() or not text.isascii()
)
_LAUGHS: Final = "".join(
    f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "lol"}">' for n in range(9)
).encode()
_TREE: Final = b"<QueueMessage><MessageText>%b</MessageText></QueueMessage>"

BAD_XML: Final[tuple[bytes, ...]] = (
    b"<!DOCTYPE QueueMessage [" + _LAUGHS + b"]>" + _TREE % b"&l8;",
    b'<!DOCTYPE QueueMessage SYSTEM "http://127.0.0.1:9/x.dtd">' + _TREE % b"x",
    b'<!DOCTYPE q [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + _TREE % b"&x;",
    b'<!DOCTYPE q [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]>' + _TREE % b"x",
    b"<!DOCTYPE q []>" + _TREE % b"x",
    _TREE % b"&undefined;",
    _TREE % (b"<a>" * 500 + b"</a>" * 500),
    _TREE % (b"<a>" * 20_000),
    _TREE % (b"<a/>" * 5_000),
    (_TREE % b"x")[:-5],
    (_TREE % b"x") * 2,
    (_TREE % b"x") + b"trailing",
    b"leading" + _TREE % b"x",
    _TREE % b"\x01",
    _TREE % b"&#0;",
    _TREE % b"&#xFFFF;",
    _TREE % b"\xef\xbf\xbf",
    _TREE % b"\xff\xfe",
    _TREE % b"\xc0\x80",
    _TREE % b"\xed\xa0\x80",
    _TREE % b"]]>",
    _TREE % b"<![CDATA[open",
    _TREE % b"<!-- -- -->",
    "<QueueMessage><MessageText>x</MessageText></QueueMessage>".encode("utf-32"),
    b'<?xml version="1.0"?><?xml version="1.0"?>' + _TREE % b"x",
    b'<QueueMessage a="1" a="2"><MessageText>x</MessageText></QueueMessage>',
    b"<QueueMessage><MessageText a=<>x</MessageText></QueueMessage>",
    b"<QueueMessage>",
    b"<>",
    b"\x00",
    b"{}",
    b"<Wrong/>",
    b"<Wrong><MessageText>x</MessageText></Wrong>",
    b'<a:QueueMessage xmlns:a="b"><MessageText>x</MessageText></a:QueueMessage>',
)
"""None of them is a document that any operation takes."""

_NAMES: Final = (
    *("QueueMessage", "MessageText", "SignedIdentifiers", "SignedIdentifier", "Id", "AccessPolicy"),
    *("Start", "Expiry", "Permission", "StorageServiceProperties", "Logging", "Version", "Read"),
    *("RetentionPolicy", "Enabled", "Days", "HourMetrics", "MinuteMetrics", "IncludeAPIs", "Cors"),
    *("CorsRule", "AllowedOrigins", "AllowedMethods", "MaxAgeInSeconds", "KeyInfo", "Metrics"),
    *("é", "xml", "a:b", "_"),
)
_TEXTS: Final = (
    *("", "x", "true", "5", "1e5", "raup", "xyz", "2026-01-01T00:00:00Z", "9999-99-99", "*"),
    *("&amp;", "&#65;", "&#x1F600;", "<![CDATA[<&>]]>", "<!-- c -->", "<?pi x?>", "\r\n\t ", "é"),
    *("\U0001f600", "'\"", "&lt;script&gt;", "GET,PUT", "A" * 3000),
)
_LOGGING: Final = (
    "<Logging><Version>{}</Version><Delete>{}</Delete><Read>{}</Read><Write>true</Write>"
    "<RetentionPolicy><Enabled>{}</Enabled><Days>{}</Days></RetentionPolicy></Logging>"
)
_RULE: Final = (
    "<CorsRule><AllowedOrigins>{}</AllowedOrigins><AllowedMethods>{}</AllowedMethods>"
    "<AllowedHeaders>{}</AllowedHeaders><ExposedHeaders>{}</ExposedHeaders>"
    "<MaxAgeInSeconds>{}</MaxAgeInSeconds></CorsRule>"
)
_POLICY: Final = (
    "<SignedIdentifier><Id>{}</Id><AccessPolicy><Start>{}</Start><Expiry>{}</Expiry>"
    "<Permission>{}</Permission></AccessPolicy></SignedIdentifier>"
)
_FORMS: Final = (
    "<QueueMessage><MessageText>{}</MessageText></QueueMessage>",
    f"<SignedIdentifiers>{_POLICY}{_POLICY}</SignedIdentifiers>",
    f"<StorageServiceProperties>{_LOGGING}<Cors>{_RULE}</Cors></StorageServiceProperties>",
    f"<StorageServiceProperties><Cors>{_RULE}{_RULE}</Cors></StorageServiceProperties>",
)
"""Documents that are right but for what is written into them."""
_PROLOGS: Final = (
    *(b"", b"\xef\xbb\xbf", b'<?xml version="1.0"?>', b'<?xml version="1.1"?>', b" \n"),
    *(b'<?xml version="1.0" encoding="utf-16"?>', b'<?xml version="1.0" encoding="latin-1"?>'),
    *(b'<?xml version="1.0" encoding="rot13"?>', b'<?xml version="1.0" standalone="no"?>'),
)

BAD_QUEUES: Final = (
    *(
        "Upper",
        "a",
        "ab",
        "a" * 64,
        "a--b",
        "-ab",
        "ab-",
        "a_b",
        "a.b",
        "..",
        ".",
        "%2e%2e",
        "a%00b",
    ),
    *("sentinel-one%00", "sentinel-one%20", "%20sentinel-one", "SENTINEL-ONE", "a%2fb", "%ff%fe"),
    *(
        "%E2%91%A0bc",
        "se%CC%81ntinel",
        "sentine%D0%86-one",
        "abc%0d%0aX:y",
        "%%",
        "%zz",
        "%4",
        "$logs",
    ),
    *("a" * 4000, "*", "~root", "con|x", "a;b", "a=b", "a&b", "{abc}", "%25%32%65"),
)
"""None of them names a queue; those that break the percent-encoding name nothing."""

BAD_VERBS: Final = ("PATCH", "MERGE", "TRACE", "PROPFIND", "LOCK", "SEARCH", "PURGE", "REPORT")
FIELDS: Final = (
    *(("if-match", "*"), ("if-none-match", '"x"'), ("if-modified-since", "yesterday")),
    *(("if-unmodified-since", "Sat, 21 Nov 2026 00:00:00 GMT"), ("content-md5", "x")),
    *(("content-md5", "AAAAAAAAAAAAAAAAAAAAAA=="), ("content-md5", "1B2M2Y8AsgTpgAmY7PhCf")),
    *(("x-ms-version", "latest"), ("x-ms-version", "2008-10-27"), ("x-ms-version", "2026-13-01")),
    *(("x-ms-version", "20261006"), ("x-ms-version", "2026-10-06T00"), ("x-ms-version", "")),
    *(
        ("x-ms-version", "٢٠٢٦-10-06"),
        ("x-ms-version", "2026-02-30"),
        ("x-ms-version", "0000-00-00"),
    ),
)
"""Each of them makes any request wrong."""

ODD_FIELDS: Final = (
    *(("origin", "http://a.example"), ("expect", "100-continue"), ("expect", "the-unexpected")),
    *(("accept-encoding", "gzip"), ("content-encoding", "gzip"), ("range", "bytes=0-1")),
    *(("x-ms-client-request-id", "a" * 2000), ("x-ms-client-request-id", "é\t")),
    *(("content-type", "multipart/form-data"), ("cookie", "a=b"), ("x-forwarded-proto", "https")),
    *(("forwarded", "for=1.2.3.4"), ("x-ms-", "x"), ("x-ms-meta", "{}"), ("upgrade", "h2c")),
    *(
        ("connection", "upgrade"),
        ("connection", "close, x-ms-date"),
        ("x-http-method-override", "PUT"),
    ),
    *(("host", "sentinel.queue.localhost"), ("host", "[::1]:80"), ("host", "é"), ("date", "today")),
)


_DEEP: Final = 4_000
EXTRAS: Final[tuple[tuple[tuple[str, str], ...], ...]] = (
    (("x-ms-leasehold-dedup-key", "one"), ("x-ms-leasehold-type", "order-placed")),
    (("x-ms-leasehold-dedup-key", "\xff" * 1024), ("x-ms-leasehold-priority", "16")),
    (("x-ms-leasehold-type", "\x80\x85\xa0\xad"), ("traceparent", "not a trace")),
    (("x-ms-leasehold-properties", '{"a":"b","\\u0000":"\\u0001\\ud83d\\ude00","a":"c"}'),),
    (("x-ms-leasehold-properties", "{}"), ("x-ms-leasehold-priority", "")),
    (("x-ms-leasehold-holder", "a put has none"), ("x-ms-leasehold-other", "x")),
)
"""Fields that a put may have."""
BAD_EXTRAS: Final = (
    *(
        ("x-ms-leasehold-priority", text)
        for text in ABSURD_NUMBERS
        if text.isprintable() and text.strip() == text
    ),
    *(("x-ms-leasehold-priority", "0"), ("x-ms-leasehold-priority", "17")),
    *(
        (f"x-ms-leasehold-{name}", "x" * 1025)
        for name in ("dedup-key", "type", "holder", "properties")
    ),
    ("traceparent", "x" * 1025),
    *(
        ("x-ms-leasehold-properties", text)
        for text in (
            *("null", "[]", "1", '"a"', "{", '{"a":1}', '{"a":null}', '{"a":{"b":"c"}}', "NaN"),
            *('{"a":"\\ud800"}', '{"\\udc00":"a"}', '{"a":"b"', "\xff", '{"a":["b"]}', "{'a':'b'}"),
            *("[" * _DEEP, '{"a":' * _DEEP, "[" * 990 + "]" * 990, "9" * 5_000, "-" * 9_000),
            '{"a":"' + "b" * 9_000 + '"}',
        )
    ),
)
"""Each of them makes a put, or a get, wrong."""


class Grammar:
    """Draws requests for one account; the same seed draws the same ones."""

    def __init__(self, rng: random.Random, account: str, queues: Sequence[str]) -> None:
        self.rng = rng
        self._account = account
        self._queues = queues

    def pick(self, choices: Sequence[T]) -> T:
        """Draw one of several."""
        return self.rng.choice(choices)

    def ask(self, method: str, resource: str, query: str = "", body: bytes = b"") -> Asked:
        """Return a request to the account."""
        return Asked(method=method, path=f"/{self._account}/{resource}", query=query, body=body)

    def genuine(self) -> Asked:
        """Return a request that is right but for the receipt it may show."""
        queue = self.pick(self._queues)
        target = f"{queue}/messages"
        one = f"{target}/{self.message_id()}"
        receipt = f"popreceipt={self.receipt()}"
        return self.pick(
            (
                self.ask("GET", "", "comp=list"),
                self.ask("GET", "", "restype=service&comp=properties"),
                self.ask("PUT", queue),
                self.ask("GET", queue, "comp=metadata"),
                self.ask("PUT", queue, "comp=metadata"),
                self.ask("GET", queue, "comp=acl"),
                self.ask("PUT", queue, "comp=acl", b"<SignedIdentifiers/>"),
                self.ask("DELETE", queue),
                self.put(target),
                replace(self.put(target), headers=self.pick(EXTRAS)),
                self.ask("GET", target, "numofmessages=2"),
                self.ask("GET", target, self.pick(("wait=0", "waitseconds=1&timeout=0", "wait="))),
                self.ask("GET", target, "peekonly=true"),
                self.ask("GET", target, "peekonly=true&include=invisible&numofmessages=32"),
                self.ask("DELETE", target),
                self.ask("PUT", one, f"{receipt}&visibilitytimeout=0", message("new")),
                self.ask("DELETE", one, receipt),
            )
        )

    def put(self, target: str) -> Asked:
        """Return a put."""
        return self.ask("POST", target, "messagettl=60", message(f"fuzz {self.rng.random()}"))

    def message_id(self) -> str:
        """Return an id in the right form, or nearly."""
        digits = f"{self.rng.getrandbits(128):032x}"
        parts = (digits[:8], digits[8:12], f"8{digits[13:16]}", f"a{digits[17:20]}", digits[20:])
        return self.pick(("-".join(parts), digits, "x", "%00", "1", "..", "A" * 36))

    def receipt(self) -> str:
        """Return a receipt that nobody has given out."""
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        forged = "".join(self.rng.choices(alphabet, k=36))
        return self.pick((forged, forged[:-1], forged + "A", "%2B/=", "%00" * 36, "AAAA", "%C3%A9"))

    def bad_number(self) -> Asked:
        """Return a request with a number that it cannot take."""
        target = f"{self.pick(self._queues)}/messages"
        update = f"{target}/{self.message_id()}"
        bodies = message("x")
        method, resource, name, others, body = self.pick(
            (
                ("POST", target, "visibilitytimeout", "", bodies),
                ("POST", target, "messagettl", "", bodies),
                ("GET", target, "visibilitytimeout", "", b""),
                ("GET", target, "numofmessages", "", b""),
                ("GET", target, "numofmessages", "peekonly=true", b""),
                ("PUT", update, "visibilitytimeout", f"popreceipt={self.receipt()}", b""),
                ("GET", target, "timeout", "", b""),
                ("GET", target, "wait", "", b""),
                ("GET", target, "waitseconds", "numofmessages=2", b""),
                ("GET", "", "maxresults", "comp=list", b""),
            )
        )
        # A time to live has no upper bound worth the name, and a long time-out is merely cut.
        unbounded = name in {"messagettl", "timeout", "maxresults"}
        text = self.pick(NOT_A_NUMBER if unbounded else ABSURD_NUMBERS)
        pairs = [part for part in (others, f"{name}={quote(text, safe='')}") if part]
        if self.rng.random() < 0.2:  # twice the same name is one value with a comma
            pairs = [part for part in (others, f"{name}=5", f"{name.title()}=6") if part]
        self.rng.shuffle(pairs)
        return self.ask(method, resource, "&".join(pairs), body)

    def bad_extra(self) -> Asked:
        """Return a request with something of ours beyond the protocol that it cannot take."""
        target = f"{self.pick(self._queues)}/messages"
        if self.rng.random() < 0.3:
            text = quote(self.pick(ABSURD_NUMBERS), safe="")
            query = self.pick((f"include={text}", f"include=invisible&marker={text}"))
            return self.ask("GET", target, f"peekonly=true&{query}")
        name, value = self.pick(BAD_EXTRAS)
        if name == "x-ms-leasehold-holder":
            return replace(self.ask("GET", target), headers=((name, value),))
        return replace(self.put(target), headers=((name, _latin(value)),))

    def bad_xml(self) -> Asked:
        """Return a request with a body that is no document, or the wrong one."""
        queue = self.pick(self._queues)
        asked = self.pick(
            (
                self.ask("POST", f"{queue}/messages"),
                self.ask("PUT", queue, "comp=acl"),
                self.ask("PUT", "", "restype=service&comp=properties"),
            )
        )
        return replace(asked, body=self.pick(BAD_XML))

    def too_large(self) -> Asked:
        """Return a put of more than a message may hold."""
        size = self.pick((65_537, 100_000, 131_000, 131_585, 200_000))
        return replace(self.put(f"{self.pick(self._queues)}/messages"), body=message("x" * size))

    def bad_path(self) -> Asked:
        """Return a request to a place that cannot be."""
        genuine = self.genuine()
        name = self.pick(BAD_QUEUES)
        bad = self.pick(
            (
                f"/{self._account}/{name}",
                f"/{self._account}/{name}/messages",
                f"/{self._account}/sentinel-one/messages/1/2",
                f"/{self._account}//sentinel-one",
                f"//{self._account}/sentinel-one",
                f"/{self._account}/sentinel-one//messages",
                f"/{self._account}/sentinel-one/Messages",
                f"/{self._account}x/sentinel-one",
                f"/{self._account}%20/sentinel-one",
                f"/x/{self._account}/sentinel-one",
                "/",
            )
        )
        return replace(genuine, path=bad)

    def bad_verb(self) -> Asked:
        """Return a request with a verb that is of no use here."""
        return replace(self.genuine(), method=self.pick(BAD_VERBS))

    def bad_field(self) -> Asked:
        """Return a request with a header field that spoils it."""
        name, value = self.pick(FIELDS)
        return replace(self.genuine(), headers=((name, _latin(value)),))

    def bad_metadata(self) -> Asked:
        """Return a request to set metadata that cannot be."""
        name, value = self.pick(
            (
                ("x-ms-meta-", "x"),
                ("x-ms-meta-1a", "x"),
                ("x-ms-meta-a-b", "x"),
                ("x-ms-meta-a.b", "x"),
                ("x-ms-meta-a", "x" * 9000),
                ("x-ms-meta-" + "a" * 9000, ""),
                ("x-ms-meta-a", "\x85"),
            )
        )
        asked = self.ask("PUT", self.pick(self._queues), "comp=metadata")
        return replace(asked, headers=((name, value),))

    def anything(self) -> Asked:
        """Return a request that may be right or wrong."""
        asked = self.genuine()
        if self.rng.random() < 0.1:  # so that there is always something to ask of
            return self.ask("PUT", self.pick(self._queues))
        for _ in range(self.rng.randint(0, 3)):
            asked = self.pick(_CHANGES)(self, asked)
        return asked

    def document(self) -> bytes:
        """Return a document of known names in no order."""
        if self.rng.random() < 0.5:
            form = self.pick(_FORMS)
            text = form.format(*(self.pick(_TEXTS) for _ in range(form.count("{}"))))
        else:
            text = self._element(self.rng.randint(0, 5))
        body = self.pick(_PROLOGS) + text.encode("utf-8")
        if self.rng.random() < 0.1:
            return text.encode(self.pick(("utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-7")))
        if self.rng.random() < 0.2:
            at = self.rng.randrange(len(body))
            body = body[:at] + self.rng.randbytes(self.rng.randint(0, 3)) + body[at + 1 :]
        return body

    def _element(self, depth: int) -> str:
        name = self.pick(_NAMES)
        children = range(self.rng.randint(1, 3)) if depth else ()
        inner = "".join(self._element(depth - 1) for _ in children) or self.pick(_TEXTS)
        attribute = self.pick(("", "", "", ' a="b"', ' xmlns="urn:x"', f' a="{"v" * 5000}"'))
        return f"<{name}{attribute}>{inner}</{name}>"


def _latin(text: str) -> str:
    """Return text whose Latin-1 bytes are its UTF-8 bytes, as a header is sent."""
    return text.encode("utf-8").decode("latin-1")


def _other_query(grammar: Grammar, asked: Asked) -> Asked:
    names = (
        *("comp", "restype", "timeout", "numofmessages", "peekonly", "include", "prefix", "x"),
        *("wait", "waitseconds", "marker", "messagettl", "visibilitytimeout"),
    )
    values = (
        *("", "acl", "list", "metadata", "service", "true", "stats", "a%26b", "invisible"),
        *("q1", "p1", "qffffffffffff", "/playground/play-one", *ABSURD_NUMBERS),
    )
    pair = f"{grammar.pick(names)}={quote(grammar.pick(values), safe='%')}"
    return replace(asked, query=f"{asked.query}&{pair}".strip("&"))


def _other_body(grammar: Grammar, asked: Asked) -> Asked:
    queue = asked.path.split("/")[2] or "play-one"
    asked = grammar.pick(
        (
            asked,
            grammar.ask("POST", f"{queue}/messages"),
            grammar.ask("PUT", queue, "comp=acl"),
            grammar.ask("PUT", "", "restype=service&comp=properties"),
        )
    )
    return replace(asked, body=grammar.document())


def _other_method(grammar: Grammar, asked: Asked) -> Asked:
    return replace(asked, method=grammar.pick(("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS")))


def _other_field(grammar: Grammar, asked: Asked) -> Asked:
    name, value = grammar.pick(grammar.pick((ODD_FIELDS, BAD_EXTRAS, *EXTRAS)))
    return replace(asked, headers=(*asked.headers, (name, _latin(value))))


def _other_version(grammar: Grammar, asked: Asked) -> Asked:
    versions = ("2009-09-19", "2011-08-17", "2014-02-14", "2016-05-31", "2017-07-28", "2030-01-01")
    return replace(asked, headers=(*asked.headers, ("x-ms-version", grammar.pick(versions))))


def _other_path(grammar: Grammar, asked: Asked) -> Asked:
    return replace(asked, path=asked.path + grammar.pick(("/", "/x", "%20", "?", ";a=b", "%2F")))


_CHANGES: Final = (
    *(_other_query, _other_body, _other_method, _other_field, _other_version, _other_path),
)


@dataclass(frozen=True, slots=True)
class Refusable:
    """A way to draw a signed request that must be refused for what it asks."""

    kind: str
    draw: Callable[[Grammar], Asked]


REFUSABLE: Final = (
    Refusable("number", Grammar.bad_number),
    Refusable("extra", Grammar.bad_extra),
    Refusable("xml", Grammar.bad_xml),
    Refusable("size", Grammar.too_large),
    Refusable("path", Grammar.bad_path),
    Refusable("verb", Grammar.bad_verb),
    Refusable("field", Grammar.bad_field),
    Refusable("metadata", Grammar.bad_metadata),
)


def endless(choices: Sequence[T], rng: random.Random) -> Iterator[T]:
    """Yield *choices* in ever new orders, each equally often."""
    while True:
        yield from rng.sample(choices, len(choices))
