"""Where the requests of the fuzz test of MNS come from: good ones, and all ways to spoil them."""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar
from urllib.parse import quote

from leasehold.auth.mns import MnsRequest, sign_v2, string_to_sign_v2
from leasehold.auth.sharedkey import format_http_date
from tests.reliability.fuzz_grammar import ABSURD_NUMBERS, BAD_XML, endless
from tests.reliability.running import CLOCK, serialize

T = TypeVar("T")

BAD_NAMES: Final = (
    *("-a", "a_b", "a.b", "..", "%2e%2e", "a%00b", "%20a", "%ff", "%zz", "%", "x" * 257, "a%2fb"),
    *("é", "a;b", "a&b", "~root", "$x", "%E2%91%A0", "a%0d%0aX:y", "{a}", ""),
)
"""None of them names a queue."""

DOCUMENTS: Final = (
    "<Message><MessageBody>{}</MessageBody><DelaySeconds>{}</DelaySeconds></Message>",
    "<Message><MessageBody>{}</MessageBody><Priority>{}</Priority></Message>",
    (
        "<Message><MessageBody>b</MessageBody><UserProperties><PropertyValue><Name>{}</Name>"
        "<Value>{}</Value><Type>STRING</Type></PropertyValue></UserProperties></Message>"
    ),
    (
        "<Message><MessageBody>b</MessageBody><UserProperties><PropertyValue><Name>n</Name>"
        "<Value>{}</Value><Type>{}</Type></PropertyValue></UserProperties></Message>"
    ),
    (
        "<Message><MessageBody>b</MessageBody><SystemProperties><SystemPropertyValue><Name>{}</Name>"
        "<Value>{}</Value><Type>STRING</Type></SystemPropertyValue></SystemProperties></Message>"
    ),
    "<Message><MessageBody>b</MessageBody><MessageGroupId>{}</MessageGroupId><New>{}</New></Message>",
    "<Messages><Message><MessageBody>{}</MessageBody></Message><Message>{}</Message></Messages>",
    (
        "<ReceiptHandles><ReceiptHandle>{}</ReceiptHandle><ReceiptHandle>{}</ReceiptHandle>"
        "</ReceiptHandles>"
    ),
    "<Queue><VisibilityTimeout>{}</VisibilityTimeout><DelaySeconds>{}</DelaySeconds></Queue>",
    "<Queue><LoggingEnabled>{}</LoggingEnabled><QueueType>{}</QueueType></Queue>",
    (
        "<Queue><MaximumMessageSize>{}</MaximumMessageSize><PollingWaitSeconds>{}</PollingWaitSeconds>"
        "</Queue>"
    ),
    "<Account><LoggingBucket>{}</LoggingBucket>{}</Account>",
)
"""Documents that are right but for what is written into them."""
TEXTS: Final = (
    *(
        "",
        "x",
        "0",
        "1",
        "8",
        "17",
        "60",
        "-1",
        "1e5",
        "true",
        "STRING",
        "NUMBER",
        "BINARY",
        "fifo",
    ),
    *("traceparent", "baggage", "&amp;", "&#65;", "&#13;", "<![CDATA[<&>]]>", "<!-- c -->", "é"),
    *("\U0001f600", "\r\n\t ", "A" * 3000, "A" * 70_000, "<a/>", "&#x1F600;", "QUJD", "nan"),
)
HEADERS: Final = (
    *(("x-mns-version", "2016-01-01"), ("x-mns-version", ""), ("content-md5", "x")),
    *(("content-md5", "AAAAAAAAAAAAAAAAAAAAAA=="), ("x-mns-date", "yesterday"), ("date", "x")),
    *(("date", "Sat, 21 Nov 2020 00:00:00 GMT"), ("authorization", "MNS"), ("authorization", "")),
    *(("authorization", "MNS playground:AAAA"), ("authorization", "MNS4-HMAC-SHA256 Credential=")),
    *(("authorization", "MNS nobody:AAAA"), ("host", "sentinel.mns.localhost")),
)
"""Each of them makes any request wrong."""
ODD_HEADERS: Final = (
    *(("content-type", "multipart/form-data"), ("security-token", "é" * 100), ("host", "[::1]:80")),
    *(("x-mns-user-request-id", "a  b"), ("x-mns-marker", "no marker"), ("x-mns-ret-number", "-1")),
    *(("x-mns-prefix", "%"), ("x-mns-with-meta", "true"), ("expect", "100-continue")),
    *(("accept-encoding", "gzip"), ("host", "x y"), ("x-mns-", "x"), ("connection", "close")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MnsShot:
    """One request, and what must come of it."""

    kind: str
    method: str
    target: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    """In place of what is sent otherwise."""
    account: str = "playground"
    must_be_refused: bool = True
    is_signed_after: bool = True
    """Whether the odd headers are there when it is signed."""
    spoil: Callable[[bytes], bytes] | None = field(default=None, repr=False)

    def raw(self, secret: bytes) -> bytes:
        """Return it as it goes over the wire."""
        usual = {
            "host": "127.0.0.1",
            "date": format_http_date(CLOCK.now_ms()),
            "x-mns-version": "2015-06-06",
        }
        odd = dict(self.headers)
        signed = usual | odd if self.is_signed_after else usual
        path, _, query = self.target.partition("?")
        text = string_to_sign_v2(MnsRequest(self.method, path, query, signed))
        signature = sign_v2(secret, text).decode()
        headers = {"authorization": f"MNS {self.account}:{signature}"} | usual | odd
        if self.body or self.method in {"PUT", "POST"}:
            headers["content-length"] = str(len(self.body))
        whole = serialize(self.method, self.target, headers, self.body)
        return self.spoil(whole) if self.spoil else whole


class MnsGrammar:
    """Draws shots; the same seed draws the same ones."""

    def __init__(self, seed: int, queues: Sequence[str]) -> None:
        self.rng = random.Random(seed)
        self._queues = queues

    def pick(self, choices: Sequence[T]) -> T:
        """Draw one of several."""
        return self.rng.choice(choices)

    def shots(self) -> Iterator[MnsShot]:
        """Yield shots without end."""
        kinds: list[Callable[[], MnsShot]] = [
            *(self.anything, self.anything, self.documents, self.documents),
            *(self.bad_number, self.bad_xml, self.bad_name, self.bad_header, self.odd_header),
            *(self.bad_address, self.bad_handle, self.forged, self.too_large, self.ruined),
        ]
        for kind in endless(kinds, self.rng):
            yield kind()

    def genuine(self) -> MnsShot:
        """Return a request that is right, or nearly: the handle is nobody's."""
        queue = f"/queues/{self.pick(self._queues)}"
        messages, handle = f"{queue}/messages", f"ReceiptHandle={self.handle()}"
        body = f"<Message><MessageBody>{self.rng.random()}</MessageBody></Message>".encode()
        handles = b"<ReceiptHandles><ReceiptHandle>%b</ReceiptHandle></ReceiptHandles>"
        method, target, content = self.pick(
            (
                ("GET", "/queues", b""),
                ("GET", "/?accountmeta=true", b""),
                ("PUT", queue, b"<Queue/>"),
                ("PUT", f"{queue}?metaoverride=true", b"<Queue/>"),
                ("GET", queue, b""),
                ("DELETE", queue, b""),
                ("POST", messages, body),
                ("POST", messages, b"<Messages>" + body * self.rng.randint(1, 16) + b"</Messages>"),
                ("GET", messages, b""),
                ("GET", f"{messages}?waitseconds=0&numOfMessages=16", b""),
                ("GET", f"{messages}?peekonly=true", b""),
                ("GET", f"{messages}?numOfMessages=3&peekonly=true", b""),
                ("DELETE", f"{messages}?{handle}", b""),
                ("DELETE", messages, handles % self.handle().encode()),
                ("PUT", f"{messages}?{handle}&VisibilityTimeout=5", b""),
            )
        )
        return MnsShot(
            kind="anything", method=method, target=target, body=content, must_be_refused=False
        )

    def anything(self) -> MnsShot:
        """Return a request that may be right."""
        shot = self.genuine()
        if self.rng.random() < 0.2:
            digest = hashlib.md5(shot.body, usedforsecurity=False)
            form = self.pick((digest.digest(), digest.hexdigest().encode()))
            shot = replace(shot, headers=(("content-md5", base64.b64encode(form).decode()),))
        return shot

    def documents(self) -> MnsShot:
        """Return a request with a document of any kind, anything in it, to any place."""
        shot, form = self.genuine(), self.pick(DOCUMENTS)
        text = form.format(self.pick(TEXTS), self.pick(TEXTS))
        return replace(shot, kind="documents", body=text.encode())

    def handle(self) -> str:
        """Return a handle in the right form, or nearly."""
        forged = "".join(self.rng.choices("ABCabc012-_", k=36))
        digits = f"{self.rng.getrandbits(128):032X}"
        return self.pick((f"{digits}-{forged}", digits, f"{digits}-{forged}A", "1-QUJD==", "%00"))

    def bad_handle(self) -> MnsShot:
        """Return a request with a handle that nobody has given out."""
        messages = f"/queues/{self.pick(self._queues)}/messages"
        query = f"ReceiptHandle={self.handle()}"
        method, query = self.pick(
            (
                ("DELETE", query),
                ("PUT", f"{query}&visibilityTimeout=5"),
                ("DELETE", ""),
                ("PUT", ""),
            )
        )
        return MnsShot(kind="bad handle", method=method, target=f"{messages}?{query}".rstrip("?"))

    def bad_number(self) -> MnsShot:
        """Return a request with a number that it cannot take."""
        messages = f"/queues/{self.pick(self._queues)}/messages"
        text = quote(self.pick(ABSURD_NUMBERS), safe="")
        method, query = self.pick(
            (
                ("GET", f"waitseconds={text}"),
                ("GET", f"numOfMessages={text}"),
                ("GET", f"peekonly=true&numOfMessages={text}"),
                ("PUT", f"ReceiptHandle={'0' * 32}-{'A' * 36}&VisibilityTimeout={text}"),
            )
        )
        return MnsShot(kind="bad number", method=method, target=f"{messages}?{query}")

    def bad_xml(self) -> MnsShot:
        """Return a request with a body that is no document, or the wrong one."""
        queue = f"/queues/{self.pick(self._queues)}"
        method, target = self.pick(
            (
                ("POST", f"{queue}/messages"),
                ("DELETE", f"{queue}/messages"),
                ("PUT", f"{queue}?metaoverride=true"),
                ("PUT", "/?accountmeta=true"),
            )
        )
        return MnsShot(kind="bad XML", method=method, target=target, body=self.pick(BAD_XML))

    def too_large(self) -> MnsShot:
        """Return a send of more than a message, or a batch, may hold."""
        size = self.pick((65_537, 100_000, 458_752, 600_000))
        one = b"<Message><MessageBody>%b</MessageBody></Message>"
        body = self.pick(
            (one % (b"x" * size), b"<Messages>" + one % (b"x" * size) + b"</Messages>")
        )
        target = f"/queues/{self.pick(self._queues)}/messages"
        return MnsShot(kind="too large", method="POST", target=target, body=body)

    def bad_name(self) -> MnsShot:
        """Return a request for a queue that cannot be."""
        target = f"/queues/{self.pick(BAD_NAMES)}{self.pick(('/messages', '/messages/'))}"
        return MnsShot(kind="bad name", method=self.pick(("GET", "POST", "PUT")), target=target)

    def bad_address(self) -> MnsShot:
        """Return a request that names no operation."""
        queue = self.pick(self._queues)
        method, target = self.pick(
            (
                *(("GET", "/topics"), ("PUT", "/topics/t"), ("GET", "/"), ("POST", "/queues")),
                *(("PATCH", f"/queues/{queue}"), ("POST", f"/queues/{queue}"), ("PUT", "/x")),
                *(("GET", f"/queues/{queue}/messages/1"), ("GET", f"//queues/{queue}")),
                *(("GET", f"/queues/{queue}?a=%zz"), ("OPTIONS", "/queues"), ("GET", "/v1/x")),
            )
        )
        return MnsShot(kind="bad address", method=method, target=target)

    def bad_header(self) -> MnsShot:
        """Return a request with a header that makes it wrong."""
        header = self.pick(HEADERS)
        return replace(self.genuine(), kind="bad header", headers=(header,), must_be_refused=True)

    def odd_header(self) -> MnsShot:
        """Return a request with a header that does not matter, or does."""
        name, value = self.pick(ODD_HEADERS)
        latin = value.encode().decode("latin-1")
        return replace(self.genuine(), kind="odd header", headers=((name, latin),))

    def forged(self) -> MnsShot:
        """Return a request to the other account that its owner has not signed."""
        shot = replace(self.genuine(), kind="forged", account="sentinel", must_be_refused=True)
        if self.rng.random() < 0.5:  # signed by somebody else, for the name of the host
            host = (("host", "sentinel.mns.localhost"),)
            return replace(shot, account="playground", headers=host)
        return shot

    def ruined(self) -> MnsShot:
        """Return a request some bytes of which are others."""
        rng = self.rng

        def spoil(raw: bytes) -> bytes:
            ruin = bytearray(raw)
            for _ in range(rng.randint(1, 6)):
                at = rng.randrange(len(ruin))
                ruin[at : at + rng.randint(0, 4)] = rng.randbytes(rng.randint(0, 4))
            return bytes(ruin)

        return replace(self.genuine(), kind="ruined", spoil=spoil)
