"""Odd requests of the native protocol: well-formed ones with something nasty put into them.

The requests lean on what earlier answers gave out (ids, receipts, jobs), so that the oddities get
past the doors and into the rooms.
"""

from __future__ import annotations

import base64
import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

from tests.reliability.fuzz_grammar import endless
from tests.reliability.fuzz_shots import PLAYGROUND, SENTINEL
from tests.reliability.native_flows import ARROW, ARROWS, FLOWS, QUEUES, STREAMS, TRANSACTIONS
from tests.reliability.native_nasty import (
    NUMBERS,
    OTHERS,
    TEXTS,
    Written,
    changed,
    part_of,
    places_of,
    tamed,
    write,
)
from tests.reliability.native_watch import Sent

T = TypeVar("T")
ACCOUNT_PATH: Final = f"/v1/accounts/{PLAYGROUND}"


class Pool:
    """What answers have given out lately."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._held: deque[tuple[str, str]] = deque(maxlen=200)
        self._jobs: deque[str] = deque(maxlen=20)
        self._sessions: deque[str] = deque(maxlen=20)
        self._tokens: deque[int] = deque([1], maxlen=4)
        self._claims: deque[int] = deque([1], maxlen=6)
        self._places: deque[str] = deque(["q1"], maxlen=20)

    def take_from(self, body: bytes) -> None:
        """Remember what an answer gives out."""
        try:
            answer = json.loads(body)
        except ValueError:
            return
        if not isinstance(answer, dict):
            return
        lists = (answer.get(name, ()) for name in ("messages", "results", "send", "renew"))
        for entry in (*(each for part in lists for each in part[:30]), answer):
            if "id" in entry and "receipt" in entry:
                self._held.append((entry["id"], entry["receipt"]))
        if "job_id" in answer:
            self._jobs.append(answer["job_id"])
        if "session_id" in answer:
            self._sessions.append(answer["session_id"])
        if "token" in answer and "stream" in answer:
            self._tokens.append(answer["token"])
        claim = answer.get("claim")
        if isinstance(claim, dict):
            self._claims += (claim["number"], claim["number"] + 1)
        if answer.get("next_after"):
            self._places.append(str(answer["next_after"]))

    def held(self) -> tuple[str, str]:
        """Return an id and its receipt, or those of two messages."""
        if not self._held:
            return "00000000-0001-8a84-afc8-09158aa09ecb", "A" * 36
        one = self._rng.choice(self._held)
        return one if self._rng.random() < 0.9 else (one[0], self._rng.choice(self._held)[1])

    def job(self) -> str:
        """Return the id of a job."""
        return self._rng.choice(self._jobs) if self._jobs else "0" * 24

    def session(self) -> str:
        """Return the id of a session, which may be over."""
        return self._rng.choice(self._sessions) if self._sessions else "0" * 20

    def token(self) -> int:
        """Return the token of a stream, mostly the last one given."""
        return self._tokens[-1] if self._rng.random() < 0.7 else self._rng.choice(self._tokens)

    def claim(self) -> int:
        """Return the number of a claim, or of the one after it."""
        return self._rng.choice(self._claims)

    def place(self) -> str:
        """Return where a listing goes on."""
        return self._rng.choice(self._places)


class NativeGrammar:
    """Draws requests; the same seed and the same answers draw the same ones."""

    def __init__(self, seed: int) -> None:
        self.rng: random.Random = random.Random(seed)
        self.pool: Pool = Pool(self.rng)

    def requests(self) -> Iterator[Sent]:
        """Yield requests without end; each text goes into each text member before long."""
        kinds: tuple[Callable[[], Sent], ...] = (
            *(partial(next, self.sweep()),) * 12,
            *(self.odd_bytes, self.odd_member) * 2,
            self.odd_arrow,
            *(self.odd_query,) * 3,
            *(self.odd_path, self.odd_header, self.genuine),
        )
        for kind in endless(kinds, self.rng):
            yield kind()

    def sweep(self) -> Iterator[Sent]:
        """Yield requests with one odd value each: all values in all places, in some order."""
        spots = []
        for name in TEMPLATES:
            for place in places_of(self._body_of(name)):
                old = part_of(self._body_of(name), place)
                values: list[str | Written] = [Written(text) for text in OTHERS]
                values += [*TEXTS] if isinstance(old, str) else [Written(text) for text in NUMBERS]
                spots += [(name, place, value) for value in values]
        for name, place, value in endless(spots, self.rng):
            body = changed(self._body_of(name), place, lambda _, value=value: value)
            yield self._sent("one odd value", name, _encoded(write(body)))

    def genuine(self) -> Sent:
        """Return a request that is right."""
        name = self.pick(tuple(TEMPLATES))
        return self._sent("genuine", name, _encoded(write(self._body_of(name))))

    def odd_member(self) -> Sent:
        """Return a request with several odd values, or members that are new or there twice."""
        name = self.pick(tuple(TEMPLATES))
        body = self._body_of(name)
        for _ in range(self.rng.randint(1, 3)):
            place = self.pick(tuple(places_of(body)))
            body = changed(body, place, self._spoil)
        return self._sent("odd members", name, _encoded(write(body)))

    def odd_bytes(self) -> Sent:
        """Return a request whose body is hardly JSON."""
        name = self.pick(tuple(TEMPLATES))
        return self._sent("odd bytes", name, self._ruined(_encoded(write(self._body_of(name)))))

    def odd_arrow(self) -> Sent:
        """Return messages to stage as an Arrow stream, whole or damaged."""
        rng = self.rng
        content = bytearray(self.pick(ARROWS))
        for _ in range(rng.choice((0, 0, 1, 1, 2, 9))):
            content[rng.randrange(len(content))] = self.pick((0, 1, 0x7F, 0x80, 0xFF))
        query = f"part={rng.randint(0, 9)}&chunk={self.pick((0, 0, 1))}&queue={self.pick(QUEUES)}"
        return Sent(
            kind="odd Arrow",
            method="POST",
            path=f"{ACCOUNT_PATH}/transactions/{self.pick(TRANSACTIONS)}/stage",
            query=query,
            body=bytes(content),
            headers=(("content-type", ARROW),),
        )

    def odd_header(self) -> Sent:
        """Return a request with a header field that hardly belongs there."""
        return replace(self.genuine(), kind="odd header", headers=(self.pick(_HEADERS),))

    def odd_query(self) -> Sent:
        """Return a request with odd values in its query."""
        rng = self.rng
        name = self.pick(tuple(_PARAMS))
        method, path = self._address_of(name)
        pairs = []
        for param in rng.sample(_PARAMS[name], rng.randint(1, min(3, len(_PARAMS[name])))):
            text = self.pick((*(TEXTS,) * 3, NUMBERS, OTHERS, _RIGHT, _RIGHT, (self.pool.place(),)))
            value = self.pick(text)[:2_000]
            pairs.append(f"{param}={quote(value, safe='', errors='surrogatepass')}")
        if rng.random() < 0.1:
            pairs.append(self.pick(("%", "%zz=1", "a=%ff", "=", "&&", "x" * 3000, pairs[0])))
        return Sent(kind="odd query", method=method, path=path, query="&".join(pairs))

    def odd_path(self) -> Sent:
        """Return a request to an odd place, or with an odd method."""
        rng = self.rng
        sent = self.genuine()
        parts = sent.path.split("/")
        at = rng.randrange(3, len(parts))
        text = quote(self.pick(TEXTS)[:900], safe="", errors="surrogatepass")
        parts[at] = self.pick((text, text, SENTINEL, "", ".", "%2e%2e", "%2F", "%zz", "%ff", "*"))
        method = self.pick((*(sent.method,) * 9, *_METHODS))
        return replace(sent, kind="odd path", method=method, path="/".join(parts))

    def pick(self, choices: Sequence[T]) -> T:
        """Draw one of several."""
        return self.rng.choice(choices)

    def put_item(self) -> dict[str, Any]:
        """Return a message to put, with some of what can be sent along."""
        rng = self.rng
        item = self.whole_item()
        for name in ("priority", "delay_s", "time_to_live_s", "type", "properties", "dedup_key"):
            if rng.random() < 0.5:
                del item[name]
        if rng.random() < 0.7:
            del item["body"]
            octets = base64.b64encode(rng.randbytes(rng.randint(0, 60))).decode()
            item |= self.pick(({"body_base64": octets}, {"json": {"order": [1, 2.5, {"x": "ÿ"}]}}))
        return item

    def whole_item(self) -> dict[str, Any]:
        """Return a message to put, with all that can be sent along."""
        return {
            "body": self.pick(_PLAIN),
            "priority": self.rng.randint(1, 16),
            "delay_s": self.pick((0, 0, 0, 1, 3600)),
            "time_to_live_s": self.pick((-1, 60, 604_800)),
            "type": self.text(),
            "properties": {"name": self.text()},
            "dedup_key": f"{self.rng.random()}",
            "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
        }

    def staged_item(self) -> dict[str, Any]:
        """Return a message to stage."""
        item = self.queued_item()
        del item["dedup_key"]
        return item

    def queued_item(self) -> dict[str, Any]:
        """Return a message with the queue that it is for."""
        return {"queue": self.pick(QUEUES), **self.whole_item()}

    def text(self) -> str:
        """Return a text that may be sent along."""
        return self.pick(("a", "order-7", "\U0001f600\x00é", "x" * 100, "\x01\x1f", "TimeoutError"))

    def _body_of(self, name: str) -> Any:
        message_id, receipt = self.pool.held()
        return TEMPLATES[name](self, {"id": message_id, "receipt": receipt})

    def _address_of(self, name: str) -> tuple[str, str]:
        method, path = name.split(" ", 1)
        path = path.format(
            account=ACCOUNT_PATH,
            queue=f"{ACCOUNT_PATH}/queues/{self.pick(QUEUES)}",
            id=quote(self.pool.held()[0], safe=""),
            job=self.pool.job(),
            session=self.pool.session(),
            stream=f"{ACCOUNT_PATH}/queues/{self.pick(QUEUES)}/streams/{self.pick(STREAMS)}",
            claim=self.pool.claim(),
            transaction=f"{ACCOUNT_PATH}/transactions/{self.pick(TRANSACTIONS)}",
        )
        return method, path

    def _sent(self, kind: str, name: str, body: bytes) -> Sent:
        method, path = self._address_of(name)
        return Sent(kind=kind, method=method, path=path, body=body)

    def _spoil(self, old: Any) -> Any:
        draw = self.rng.random()
        if isinstance(old, dict | tuple) and draw < 0.6:
            pairs = list(old.items()) if isinstance(old, dict) else list(old)
            name = self.pick(pairs)[0] if pairs and draw < 0.3 else self.pick(TEXTS)
            return (*pairs, (name, self._odd_value()))
        if isinstance(old, list) and old and draw < 0.4:
            return old * self.pick((0, 2, 30))
        return self._odd_value()

    def _odd_value(self) -> Any:
        texts = self.pick((TEXTS, NUMBERS, OTHERS))
        text = self.pick(texts)
        return text if texts is TEXTS else Written(text)

    def _ruined(self, raw: bytes) -> bytes:
        rng = self.rng
        text = raw.decode()
        ruin = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(ruin) + 1)
            ruin[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        return self.pick(
            (
                *(bytes(ruin),) * 4,
                raw[: rng.randrange(len(raw) + 1)],
                raw + raw,
                b"\xef\xbb\xbf" + raw,
                text.encode("utf-16"),
                text.encode("utf-32-le"),
                *(
                    raw.replace(b'"', b'"' + octets, rng.randint(1, 9))
                    for octets in (
                        b"\xff",
                        b"\xed\xa0\x80",
                        b"\xc0\x80",
                        b"\xf5\x80\x80\x80",
                        b"\x00",
                    )
                ),
                raw.replace(b":", b":\x00"),
                b"\x1f\x8b" + raw,
                rng.randbytes(50),
            )
        )


_PLAIN: Final = ("hello", "", "\x00\x01\x02", "\U0001f600" * 9, '{"order": {"id": 7}}', "aGVsbG8=")
_FILTER: Final = {
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
TEMPLATES: Final[dict[str, Callable[[NativeGrammar, dict[str, str]], Any]]] = {
    "PUT {queue}": lambda *_: {"metadata": _METADATA, "settings": _SETTINGS},
    "PATCH {queue}": lambda *_: {"metadata": _METADATA, "settings": _SETTINGS},
    "GET {queue}": lambda *_: {},
    "GET {queue}/explain": lambda *_: {},
    "GET {queue}/messages/{id}": lambda *_: {},
    "GET {queue}/messages/{id}/explain": lambda *_: {},
    "GET {queue}/messages": lambda *_: {},
    "POST {queue}/pause": lambda grammar, _: {"for_s": 0.001, "reason": grammar.text()},
    "POST {queue}/resume": lambda *_: {},
    "POST {queue}/purge": lambda *_: {"filter": _FILTER, "dry_run": False, "wait_s": 0.01},
    "POST {queue}/redrive": lambda *_: {
        "filter": _FILTER,
        "rate_per_s": 1e6,
        "canary": 1,
        "wait_s": 0.01,
        "target": "native-two",
        "dry_run": False,
    },
    "POST {account}/jobs/{job}/stop": lambda *_: {},
    "GET {account}/jobs/{job}": lambda *_: {},
    "POST {queue}/messages": lambda grammar, _: {
        "messages": [grammar.whole_item(), {"json": _FILTER}, {"body_base64": "AAH/"}],
        "atomic": False,
    },
    "POST {queue}/messages/receive": lambda grammar, _: {
        "max_messages": 3,
        "visibility_timeout_s": 60,
        "holder": grammar.text(),
        "wait_s": 0.001,
    },
    "POST {queue}/messages/peek": lambda *_: {"max_messages": 30},
    "POST {queue}/messages/renew": lambda grammar, item: {
        "items": [
            {
                **item,
                "visibility_timeout_s": 60,
                "body": grammar.text(),
                "progress": {"fraction": 0.5, "note": grammar.text()},
            }
        ]
    },
    "POST {queue}/messages/complete": lambda _, item: {"items": [item], "atomic": True},
    "POST {queue}/messages/release": lambda grammar, item: {
        "items": [
            {
                **item,
                "outcome": grammar.pick(("failed", "interrupted", "returned", "buried")),
                "delay_s": 0,
                "error": {name: grammar.text() for name in ("text", "type", "fingerprint")},
            }
        ],
    },
    "PATCH {queue}/messages/{id}": lambda grammar, _: {
        "delay_s": 0,
        "time_to_live_s": 60,
        "priority": 2,
        "force": True,
        "properties": {"name": grammar.text()},
        "json": {"a": grammar.text()},
    },
    "POST {queue}/messages/{id}/end-lease": lambda grammar, _: {
        "delay_s": 0,
        "reason": grammar.text(),
    },
    **FLOWS,
}
"""Requests that are right, each made by a function of the grammar and a message's receipt."""

_PARAMS: Final[dict[str, tuple[str, ...]]] = {
    "GET {account}/queues": ("prefix", "after", "limit", "counts"),
    "GET {account}/jobs": ("queue", "limit"),
    "GET {queue}/messages": (
        *("state", "after", "limit", "min_age_s", "max_age_s", "min_dequeue_count", "holder"),
        *(
            "max_dequeue_count",
            "type",
            "reason",
            "error",
            "text",
            "json_path",
            "json_value",
            "body",
        ),
    ),
    "GET {account}/sessions": ("limit",),
    "GET {account}/sessions/{session}": ("limit",),
    "GET {account}/transactions": ("state", "limit"),
    "GET {transaction}": ("limit",),
    "GET {account}/events": ("after", "limit"),
    "GET {queue}/messages/{id}/trace": ("after", "limit"),
    "GET {queue}/streams": ("limit",),
    "GET {stream}": ("limit",),
    "GET {stream}/claims/{claim}": ("limit",),
    "GET {stream}/claims/{claim}/messages": ("part", "parts", "after", "limit"),
    "POST {transaction}/stage": ("part", "chunk", "timeout_s", "queue"),
    "DELETE {stream}": ("force",),
    "DELETE {queue}/messages/{id}": ("force",),
    "DELETE {queue}": ("force",),
}
_RIGHT: Final = (
    "true",
    "false",
    "1",
    "5",
    "leased,visible",
    "order.id",
    "a",
    "native",
    "0.5",
    '"x"',
)
_METHODS: Final = ("HEAD", "OPTIONS", "TRACE", "GET", "PUT", "POST", "MERGE", "DELETE")
_HEADERS: Final = (
    *(("traceparent", "00-" + "c" * 32 + "-" + "d" * 16 + "-01"), ("traceparent", "\xff" * 900)),
    *(("content-type", "text/plain"), ("content-type", "application/json; charset=utf-16")),
    *(("content-encoding", "gzip"), ("x-ms-version", "nonsense"), ("accept", "application/xml")),
    ("accept", ARROW),
    *(("expect", "100-continue"), ("if-match", "*"), ("authorization", "Bearer \xff")),
)


def _encoded(text: str) -> bytes:
    return tamed(text.encode("utf-8", "surrogatepass"))
