"""Odd requests of the native protocol: well-formed ones with something nasty put into them.

The requests lean on what earlier answers gave out (ids, receipts, jobs), so that the oddities get
past the doors and into the rooms.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

from tests.reliability.fuzz_shots import PLAYGROUND, SENTINEL
from tests.reliability.native_watch import Sent

T = TypeVar("T")
QUEUES: Final = ("native-one", "native-two", "native-two-poison")
ACCOUNT_PATH: Final = f"/v1/accounts/{PLAYGROUND}"

TEXTS: Final = (
    *(
        "",
        " ",
        "\x00",
        "a\x00b",
        "".join(map(chr, range(1, 32))),
        "\x7f\x80\x85\x9f",
        "\u2028\u2029",
    ),
    *("\ufeff", "\ufffe\uffff", "\U0010ffff", "\U0001f600" * 1024, "\U0001f600" * 1025, "é" * 1024),
    *("\ud800", "\udc00", "\udc00\ud800", "x\udfff", "a\ud83d", "\u202egnp.exe", "\u0301" * 60),
    *("x" * 1024, "x" * 1025, "x" * 8192, "x" * 8193, "x" * 200_000, "İ" * 400, "ß" * 1024),
    *(
        "\r\nX-Injected: 1",
        "<&>\"'",
        "]]>",
        "'; DROP TABLE messages; --",
        "%00",
        "%s%n",
        "{}",
        "\\",
    ),
    *("\\ud800", "\\u0000", "null", "NaN", "-1", "*", "$", "..", "a" * 36, "A" * 36, "=" * 36),
    *("00000000-0001-8a84-afc8-09158aa09ecb", "ffffffff-ffff-8fff-bfff-ffffffffffff"),
    *("00-" + "0" * 32 + "-" + "0" * 16 + "-00", "00-" + "G" * 32 + "-" + "0" * 16 + "-00"),
    *("00-" + "0" * 32 + "-" + "0" * 16 + "-00\n", "٣" * 36, "a[" * 500, "$[-1]", '["\\ud800"]'),
    *("native-two", "native-one", "sentinel-one", "native-one-poison", "Upper", "a--b", "a" * 63),
)
NUMBERS: Final = (
    *(
        "-1",
        "0",
        "1",
        "16",
        "17",
        "-0",
        "-0.0",
        "0.0",
        "1.0",
        "0.5",
        "1e2",
        "1E+2",
        "1e400",
        "-1e400",
    ),
    *("5e-324", "1e-400", "604800", "604801", "315360000", "315360001", "2147483647", "2147483648"),
    *("4294967296", str(2**53 + 1), str(2**63 - 1), str(2**63), str(2**64), str(-(2**63) - 1)),
    *("1.7976931348623157e308", "9" * 300, "9" * 310, "9" * 4000, "-" + "9" * 4000, "9" * 5000),
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "0x10",
        "01",
        "+1",
        "1_0",
        ".5",
        "1.",
        "--1",
        "253402300799001",
    ),
)
OTHERS: Final = (
    *("null", "true", "false", "[]", "{}", "[[]]", "[{}]", '""', '"1"', "[1,2]", '{"":null}'),
    *('{"a":1,"a":2}', '{"__proto__":{}}', '{"\\u0000":"\\u0000"}', '["\\ud83d\\ude00"]'),
    *("[" * depth + "]" * depth for depth in (100, 500, 940, 980, 1_100, 60_000)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (100, 500, 940, 980, 1_100, 60_000)),
    *("[" + "0," * 20_000 + "0]", '{"' + "k" * 300_000 + '":1}', "[" * 1_000, '{"a"'),
    json.dumps({f"k{n}": "v" for n in range(2_000)}),
)


class Written:
    """JSON as it is written, which need not be JSON."""

    def __init__(self, text: str) -> None:
        self.text = text


Path: TypeAlias = tuple[str | int, ...]


def write(value: Any) -> str:
    """Write JSON; a dict is also a list of pairs in a tuple, which may name a member twice."""
    if isinstance(value, Written):
        return value.text
    if isinstance(value, dict):
        value = tuple(value.items())
    if isinstance(value, tuple):
        return "{" + ",".join(f"{json.dumps(name)}:{write(part)}" for name, part in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write, value)) + "]"
    return json.dumps(value)


class Pool:
    """What answers have given out lately."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._held: deque[tuple[str, str]] = deque(maxlen=200)
        self._jobs: deque[str] = deque(maxlen=20)
        self._places: deque[str] = deque(["q1"], maxlen=20)

    def take_from(self, body: bytes) -> None:
        """Remember what an answer gives out."""
        try:
            answer = json.loads(body)
        except ValueError:
            return
        if not isinstance(answer, dict):
            return
        for entry in (*answer.get("messages", ())[:30], *answer.get("results", ())[:30], answer):
            if "id" in entry and "receipt" in entry:
                self._held.append((entry["id"], entry["receipt"]))
        if "job_id" in answer:
            self._jobs.append(answer["job_id"])
        if answer.get("next_after"):
            self._places.append(answer["next_after"])

    def held(self) -> tuple[str, str]:
        """Return an id and its receipt, or those of two messages."""
        if not self._held:
            return "00000000-0001-8a84-afc8-09158aa09ecb", "A" * 36
        one = self._rng.choice(self._held)
        return one if self._rng.random() < 0.9 else (one[0], self._rng.choice(self._held)[1])

    def job(self) -> str:
        """Return the id of a job."""
        return self._rng.choice(self._jobs) if self._jobs else "0" * 24

    def place(self) -> str:
        """Return where a listing goes on."""
        return self._rng.choice(self._places)


class NativeGrammar:
    """Draws requests; the same seed and the same answers draw the same ones."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pool = Pool(self.rng)

    def requests(self) -> Iterator[Sent]:
        """Yield requests without end."""
        while True:
            yield self.odd() if self.rng.random() < 0.85 else self.genuine()

    def genuine(self) -> Sent:
        """Return a request that is right."""
        method, path, body = self._template()
        return Sent(kind="genuine", method=method, path=path, body=_encoded(write(body)))

    def odd(self) -> Sent:
        """Return a request that is right but for some things in it."""
        rng = self.rng
        draw = rng.random()
        if draw < 0.15:
            return self._odd_query()
        if draw < 0.2:
            return self._odd_path()
        method, path, body = self._template()
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            body = self._spoilt(body)
        raw = _encoded(write(body))
        kind = "odd member"
        if draw < 0.35:
            kind, raw = "odd bytes", self._ruined(raw)
        headers: tuple[tuple[str, str], ...] = ()
        if draw > 0.9:
            headers = (self._pick(_HEADERS),)
        return Sent(kind=kind, method=method, path=path, body=raw, headers=headers)

    def _pick(self, choices: Sequence[T]) -> T:
        return self.rng.choice(choices)

    def _template(self) -> tuple[str, str, Any]:
        """Return method, path and body of a request that is right."""
        queue = f"{ACCOUNT_PATH}/queues/{self._pick(QUEUES)}"
        message_id, receipt = self.pool.held()
        item = {"id": message_id, "receipt": receipt}
        text = self._text()
        name, make = self._pick(tuple(_TEMPLATES.items()))
        method, path = name.split(" ", 1)
        path = path.format(queue=queue, id=quote(message_id, safe=""), job=self.pool.job())
        return method, path, make(self, item, text)

    def _text(self) -> str:
        return self._pick(
            ("a", "order-7", "\U0001f600\x00é", "x" * 100, "\x01\x1f", "TimeoutError")
        )

    def put_item(self) -> dict[str, Any]:
        """Return a message to put, with all that can be sent along."""
        rng = self.rng
        item: dict[str, Any] = {
            "priority": rng.randint(1, 16),
            "delay_s": self._pick((0, 0, 0, 1, 3600)),
            "time_to_live_s": self._pick((-1, 60, 604_800)),
            "type": self._text(),
            "properties": {self._text(): self._text()},
            "dedup_key": f"{rng.random()}",
            "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
        }
        for name in list(item):
            if rng.random() < 0.5:
                del item[name]
        whole = self._pick(
            (
                {"body": self._pick(_PLAIN)},
                {"body_base64": base64.b64encode(rng.randbytes(rng.randint(0, 60))).decode()},
                {"json": {"order": [1, 2.5, {"x": self._text()}]}},
            )
        )
        return {**whole, **item}

    def _spoilt(self, body: Any) -> Any:
        """Return *body* with one thing in it changed."""
        places = list(_places_of(body))
        place = self._pick(places)
        return _with(body, place, self._spoil)

    def _spoil(self, old: Any) -> Any:
        draw = self.rng.random()
        if isinstance(old, dict | tuple) and draw < 0.4:
            pairs = list(old.items()) if isinstance(old, dict) else list(old)
            if pairs and draw < 0.2:
                name, value = self._pick(pairs)
                pairs.append((name, self._odd_value(value)))
            else:
                pairs.append((self._pick(TEXTS), self._odd_value("")))
            return tuple(pairs)
        if isinstance(old, list) and old and draw < 0.4:
            return old * self._pick((0, 2, 30))
        return self._odd_value(old)

    def _odd_value(self, old: Any) -> Any:
        draw = self.rng.random()
        if draw < 0.2:
            return Written(self._pick(OTHERS))
        if isinstance(old, str) == (draw < 0.9):
            return self._pick(TEXTS)
        return Written(self._pick(NUMBERS))

    def _ruined(self, raw: bytes) -> bytes:
        rng = self.rng
        text = raw.decode()
        ruin = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(ruin) + 1)
            ruin[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        return self._pick(
            (
                bytes(ruin),
                bytes(ruin),
                raw[: rng.randrange(len(raw) + 1)],
                raw + raw,
                b"\xef\xbb\xbf" + raw,
                text.encode("utf-16"),
                text.encode("utf-32-le"),
                raw.replace(b'"', b'"\xff', 3),
                raw.replace(b'"', b'"\xed\xa0\x80', 4),
                raw.replace(b'"', b'"\xc0\x80', 3),
                raw.replace(b'"', b'"\xf5\x80\x80\x80'),
                raw.replace(b":", b":\x00"),
                b"\x1f\x8b" + raw,
                rng.randbytes(50),
            )
        )

    def _odd_query(self) -> Sent:
        rng = self.rng
        queue = f"{ACCOUNT_PATH}/queues/{self._pick(QUEUES)}"
        path = self._pick((f"{ACCOUNT_PATH}/queues", f"{ACCOUNT_PATH}/jobs", f"{queue}/messages"))
        pairs = []
        for _ in range(rng.randint(1, 3)):
            text = self._pick((self._pick(TEXTS)[:3000], self._pick(NUMBERS)[:3000], "true", "a.b"))
            text = self._pick(
                (text, text, self.pool.place(), "leased,visible", self._pick(OTHERS)[:900])
            )
            value = quote(text, safe="", errors="surrogatepass")
            pairs.append(f"{self._pick(_PARAMS)}={value}")
        if rng.random() < 0.1:
            pairs.append(
                self._pick(("%", "%zz=1", "a=%ff", "=", "&&", "x" * 3000, "limit=1&limit=2"))
            )
        method = "GET"
        if rng.random() < 0.1:
            method, path = "DELETE", f"{queue}/messages/{self.pool.held()[0]}"
            pairs = [f"force={pairs[0].partition('=')[2]}"]
        return Sent(kind="odd query", method=method, path=path, query="&".join(pairs))

    def _odd_path(self) -> Sent:
        rng = self.rng
        method, path, body = self._template()
        parts = path.split("/")
        at = rng.randrange(3, len(parts))
        text = quote(self._pick(TEXTS)[:900], safe="", errors="surrogatepass")
        parts[at] = self._pick((text, text, SENTINEL, "", ".", "%2e%2e", "%2F", "%zz", "%ff", "*"))
        if rng.random() < 0.2:
            method = self._pick(
                ("HEAD", "OPTIONS", "TRACE", "GET", "PUT", "POST", "MERGE", "DELETE")
            )
        path = "/".join(parts)
        return Sent(kind="odd path", method=method, path=path, body=_encoded(write(body)))


_PLAIN: Final = ("hello", "", "\x00\x01\x02", "\U0001f600" * 9, '{"order": {"id": 7}}', "aGVsbG8=")
_PLAIN_FILTER: Final = {
    "states": ["visible", "poisoned"],
    "min_age_s": 0.5,
    "max_dequeue_count": 3,
    "holder": "h",
    "message_type": "t",
    "error": "e",
    "text": "x",
    "json_path": "order.id",
    "json_value": {"a": [7]},
}
_SETTINGS: Final = {
    "visibility_timeout_s": 30,
    "lapsed_receipts": "strict",
    "failure_policy": {
        "max_failures": 2,
        "backoff": {"kind": "linear", "initial_s": 0.1, "factor": 2, "cap_s": 9, "jitter": 0.5},
        "poison_time_to_live_s": 600,
    },
    "dedup_window_s": 60,
    "priority_ageing_s": 5,
    "pause_reason": "r",
    "max_receives_per_s": 1000.5,
    "adaptive": {"floor_s": 5, "cap_s": 60},
}
_METADATA: Final = {"team": "é ÿ", "_a1": " x\t"}
_TEMPLATES: Final[dict[str, Any]] = {
    "PUT {queue}": lambda *_: {"metadata": _METADATA, "settings": _SETTINGS},
    "PATCH {queue}": lambda *_: {"metadata": _METADATA, "settings": _SETTINGS},
    "DELETE {queue}": lambda *_: {},
    "GET {queue}": lambda *_: {},
    "GET {queue}/explain": lambda *_: {},
    "GET {queue}/messages/{id}": lambda *_: {},
    "GET {queue}/messages/{id}/explain": lambda *_: {},
    "GET {queue}/messages": lambda *_: {},
    "POST {queue}/pause": lambda _, __, text: {"for_s": 0.001, "reason": text},
    "POST {queue}/resume": lambda *_: {},
    "POST {queue}/purge": lambda *_: {"filter": _PLAIN_FILTER, "wait_s": 0.01},
    "POST {queue}/redrive": lambda *_: {
        **{"filter": _PLAIN_FILTER, "rate_per_s": 1e6, "canary": 1, "wait_s": 0.01},
        **{"target": "native-two", "dry_run": False},
    },
    "POST " + ACCOUNT_PATH + "/jobs/{job}/stop": lambda *_: {},
    "GET " + ACCOUNT_PATH + "/jobs/{job}": lambda *_: {},
    "POST {queue}/messages": lambda grammar, *_: {
        "messages": [grammar.put_item() for _ in range(4)],
        "atomic": False,
    },
    "POST {queue}/messages/receive": lambda _, __, text: {
        "max_messages": 3,
        "visibility_timeout_s": 60,
        "holder": text,
        "wait_s": 0.001,
    },
    "POST {queue}/messages/peek": lambda *_: {"max_messages": 30},
    "POST {queue}/messages/renew": lambda _, item, text: {
        "items": [
            {
                **item,
                "visibility_timeout_s": 60,
                "body": text,
                "progress": {"fraction": 0.5, "note": text},
            }
        ]
    },
    "POST {queue}/messages/complete": lambda _, item, __: {"items": [item], "atomic": True},
    "POST {queue}/messages/release": lambda grammar, item, text: {
        "items": [
            {
                **item,
                "outcome": grammar.rng.choice(("failed", "interrupted", "returned", "buried")),
                "delay_s": 0,
                "error": {"text": text, "type": text, "fingerprint": text},
            }
        ],
    },
    "PATCH {queue}/messages/{id}": lambda grammar, _, text: {
        **{"delay_s": 0, "time_to_live_s": 60, "priority": 2, "properties": {text: text}},
        **{"force": True, "json": grammar.put_item()},
    },
    "POST {queue}/messages/{id}/end-lease": lambda _, __, text: {"delay_s": 0, "reason": text},
}
"""Requests that are right, each a function of the grammar, an item and a text."""
_LONG_WAIT: Final = re.compile(rb'"wait_s":(?:1|16|17|1\.0|0\.5)(?=[,}])')
_PARAMS: Final = (
    *("state", "after", "limit", "min_age_s", "max_age_s", "min_dequeue_count", "holder", "type"),
    *("reason", "error", "text", "json_path", "json_value", "body", "prefix", "counts", "queue"),
)
_HEADERS: Final = (
    *(("traceparent", "00-" + "c" * 32 + "-" + "d" * 16 + "-01"), ("traceparent", "\xff" * 900)),
    *(("content-type", "text/plain"), ("content-type", "application/json; charset=utf-16")),
    *(("content-encoding", "gzip"), ("x-ms-version", "nonsense"), ("accept", "application/xml")),
    *(("expect", "100-continue"), ("if-match", "*"), ("authorization", "Bearer \xff")),
)


def tamed(body: bytes) -> bytes:
    """Return a body that asks for no long wait, which would only take time."""
    return _LONG_WAIT.sub(b'"wait_s":0.001', body)


def _encoded(text: str) -> bytes:

    return _LONG_WAIT.sub(b'"wait_s":0.001', text.encode("utf-8", "surrogatepass"))


def _places_of(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the place of every part of a body; that of the whole is the empty one."""
    yield path
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _places_of(part, (*path, name))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _places_of(part, (*path, number))


def _with(value: Any, place: Path, change: Any) -> Any:
    """Return a copy of *value* in which one part is changed."""
    if not place:
        return change(value)
    here, *rest = place
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[here] = _with(value[here], tuple(rest), change)
    return copy
