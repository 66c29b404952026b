"""Sending requests of the native protocol to a real server, and judging what comes back.

Whatever is sent, the answer must be one that the OpenAPI document has for that operation, and what
the document does not allow to be sent must not be done.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from leasehold.http.requests import Response
from tests.reliability.fuzz_shots import KEYS, PLAYGROUND, SENTINEL
from tests.reliability.fuzzing import BELOW_THE_PROTOCOL, TIMEOUT_S, Sentinel
from tests.reliability.running import Answer, Client, Connection, serialize
from tests.unit.http.native.checking import check_answer, errors_of, find_operation

MAX_PROBLEM_CHARS: Final = 2_500
"""A problem that is longer gives back what was sent, instead of saying what is wrong with it."""
_SHOWN: Final = 600
_LOOKED_AT: Final = 50
"""Of long lists in an answer the first and the last ones are checked."""
_MAX_DIGITS: Final = 4_000
_JSON: Final = "application/json"
_VANISHING: Final = frozenset({"why", "counts", "activity"})
"""What changes by itself, with the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request of the native protocol."""

    kind: str
    """What is odd about it."""
    method: str
    path: str
    """Percent-encoded."""
    query: str = ""
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    account: str = PLAYGROUND
    """Whose key it carries."""

    def raw(self) -> bytes:
        """Return the request as it goes over the wire."""
        target = f"{self.path}?{self.query}" if self.query else self.path
        headers = {
            "host": "127.0.0.1",
            "authorization": f"Bearer {KEYS[self.account]}",
            "content-type": "application/json",
            **dict(self.headers),
        }
        if self.body or self.method != "GET":
            headers["content-length"] = str(len(self.body))
        return serialize(self.method, target, headers, self.body)


class NativeClient:
    """One connection, opened when it is needed."""

    def __init__(self, port: int, timeout_s: float = TIMEOUT_S) -> None:
        self._port = port
        self._timeout_s = timeout_s
        self._connection: Connection | None = None

    def send(self, sent: Sent) -> Answer:
        """Send a request and return the answer.

        Raises:
            OSError: The connection broke, or nothing came in time.
        """
        if self._connection is None:
            self._connection = Connection(self._port, self._timeout_s)
        try:
            self._connection.send(sent.raw())
            answer = self._connection.read_answer(head=sent.method == "HEAD")
        except OSError:
            self.close()
            raise
        if answer.headers.get("connection") == "close":
            self.close()
        return answer

    def ask(self, method: str, path: str, body: object = None, *, account: str = PLAYGROUND) -> Any:
        """Ask for something that must be granted and return the JSON of the answer."""
        content = b"" if body is None else json.dumps(body).encode()
        path, _, query = path.partition("?")
        answer = self.send(
            Sent(
                kind="plain",
                method=method,
                path=f"/v1/accounts/{account}/{path}",
                query=query,
                body=content,
                account=account,
            )
        )
        assert answer.status < 300, answer
        return json.loads(answer.body) if answer.body else None

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class Judgement:
    """What a number of requests came to."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    """By operation and status."""
    codes: Counter[str] = field(default_factory=Counter)
    """Problems of whole requests, and of items."""
    complaints: list[str] = field(default_factory=list)

    def judge(self, sent: Sent, answer: Answer) -> None:
        """Note what is wrong with an answer."""
        self.kinds[sent.kind] += 1
        found = find_operation(sent.method, sent.path)
        name = found[1]["operationId"] if found else "none"
        self.statuses[f"{name} {answer.status}"] += 1
        try:
            problems = self._problems_of(sent, answer, found and found[1])
        except (AssertionError, KeyError, ValueError) as error:
            problems = [f"not as documented: {error!r}"[:_SHOWN]]
        for problem in problems:
            self.complain(sent, problem, answer.body)

    def complain(self, sent: Sent, problem: str, came: bytes = b"") -> None:
        """Note that something is wrong."""
        self.complaints.append(
            f"{sent.kind}: {problem}\n  {sent.method} {sent.path}?{sent.query}"
            f" {sent.body[: 2 * _SHOWN]!r}\n  {came[:_SHOWN]!r}"
        )

    def summary(self) -> str:
        """Return the totals in a few lines."""
        lines = (self.kinds, self.codes, self.statuses)
        return "\n".join(
            ", ".join(f"{what} {n}" for what, n in line.most_common()) for line in lines
        )

    def _problems_of(
        self, sent: Sent, answer: Answer, operation: Mapping[str, Any] | None
    ) -> list[str]:
        if answer.headers.get("content-type", "").startswith("text/plain"):
            self.codes[str(answer.status)] += 1
            below = answer.status in BELOW_THE_PROTOCOL
            return [] if below else [f"plain text with status {answer.status}"]
        if answer.status >= 500:
            return [f"answered {answer.status}"]
        headers = [(name.encode(), text.encode()) for name, text in answer.headers.items()]
        value, body = None, answer.body
        if answer.body and answer.headers.get("content-type", "").endswith("json"):
            value = _thinned(json.loads(answer.body))
            body = json.dumps(value).encode()
        if sent.method != "HEAD":
            check_answer(sent.method, sent.path, Response(answer.status, headers, body))
        problems = []
        for each in _problems_in(value):
            self.codes[each["code"]] += 1
            if len(json.dumps(each, ensure_ascii=False)) > MAX_PROBLEM_CHARS:
                problems.append("a problem that is as long as what was sent")
        if operation is not None and answer.status < 300 and not is_allowed(operation, sent):
            done = value is None or "failed" not in value or not value["failed"]
            if done:
                problems.append("the document does not allow this, and it was done")
        return problems


def is_allowed(operation: Mapping[str, Any], sent: Sent) -> bool:
    """Tell whether the document allows a body; none at all where it names none."""
    if "requestBody" not in operation:
        return True  # what comes along with a GET is not looked at
    content, body = operation["requestBody"]["content"], sent.body
    kind = dict(sent.headers).get("content-type", _JSON)
    if _JSON not in content or (kind in content and kind != _JSON):
        return True  # any bytes will do
    schema = content[_JSON]["schema"]
    if not body:
        return not operation["requestBody"].get("required")
    try:
        value = json.loads(body, parse_constant=_refuse, parse_int=_whole_number)
    except (ValueError, RecursionError):
        return False
    try:
        return errors_of(schema, _thinned(value)) == []
    except (RecursionError, OverflowError):
        return True  # it is deeper, or larger, than the checker can look


def _whole_number(text: str) -> int:
    return int(text[:_MAX_DIGITS])  # Python reads no more, but JSON has no limit


def _refuse(name: str) -> float:
    raise ValueError(name)


def _thinned(value: Any) -> Any:
    """Leave the middle out of the long lists of a request or an answer."""
    if not isinstance(value, dict):
        return value
    return {
        name: part[:_LOOKED_AT] + part[-_LOOKED_AT:]
        if isinstance(part, list) and 2 * _LOOKED_AT < len(part) <= 10_000
        else part
        for name, part in value.items()
    }


def _problems_in(value: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, dict):
        return ()
    if "code" in value and "title" in value and "detail" in value:
        return (value,)
    results = (value.get(name, ()) for name in ("results", "send", "complete", "release", "renew"))
    return [each["error"] for part in results for each in part if "error" in each]


class NativeSentinel:
    """An account with a bit of everything in it, as both protocols put it and show it."""

    def __init__(self, azure: Client, native: NativeClient, account: str = SENTINEL) -> None:
        self._azure = Sentinel(azure)
        self._native = native
        self._account = account
        one = f"queues/{Sentinel.QUEUES[0]}"
        self._ask(
            "POST",
            f"{one}/messages",
            {
                "messages": [
                    {"body": "dear", "priority": 3, "type": "a", "dedup_key": "k"},
                    {"body_base64": base64.b64encode(bytes(range(256))).decode(), "delay_s": 9_999},
                ]
            },
        )
        self._ask("PATCH", one, {"settings": {"failure_policy": {"max_failures": 1}}})

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        return self._native.ask(method, path, body, account=self._account)

    def state(self) -> dict[str, object]:
        """Return everything that can be seen of the account and does not change by itself."""
        seen = self._azure.state()
        seen["native queues"] = _lasting(self._ask("GET", "queues")["queues"])
        seen["jobs"] = self._ask("GET", "jobs")
        for queue in Sentinel.QUEUES:
            listed = self._ask("GET", f"queues/{queue}/messages?limit=1000")
            seen[f"{queue} listed"] = _lasting(listed["messages"])
            activity = self._ask("GET", f"queues/{queue}")["activity"]
            seen[f"{queue} activity"] = activity
        return seen

    def still_held(self) -> bool:
        """Complete what was leased; tell whether all receipts were still good."""
        return self._azure.still_held()


def _lasting(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in entry.items() if name not in _VANISHING}
        for entry in entries
    ]
