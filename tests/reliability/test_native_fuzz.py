"""Whatever is sent natively, the answer is one of the document's, and both protocols go on."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Final
from xml.etree import ElementTree as ET

import pytest

from tests.reliability.fuzz_server import client_of, serving
from tests.reliability.fuzz_shots import PLAYGROUND, SENTINEL
from tests.reliability.fuzzing import Sentinel
from tests.reliability.native_cases import fire_cases
from tests.reliability.native_flows import QUEUES, STREAMS
from tests.reliability.native_grammar import ACCOUNT_PATH, NativeGrammar
from tests.reliability.native_watch import Judgement, NativeClient, NativeSentinel, Sent
from tests.reliability.running import Answer, KillableServer, deliveries, message

_MEMORY_BYTES = 64 * 1024 * 1024
_TEND = 40
_FAILURES = ("internal_error", "http.application_failed", "Traceback")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableServer]:
    """A server with two accounts."""
    with serving(tmp_path_factory.mktemp("native-fuzz")) as server:
        yield server


@pytest.fixture(scope="module")
def sentinel(server: KillableServer) -> Iterator[NativeSentinel]:
    """The account that must not change."""
    with client_of(server, SENTINEL) as azure, NativeClient(server.port) as native:
        yield NativeSentinel(azure, native)


class Range:
    """A playground to shoot in, and the judge who stands beside it."""

    def __init__(
        self, server: KillableServer, client: NativeClient, grammar: NativeGrammar
    ) -> None:
        self.server = server
        self.client = client
        self.grammar = grammar
        self.judgement = Judgement()
        self._fired = 0

    def fire(self, sent: Sent) -> None:
        """Send a request, judge the answer, and take what it gives out."""
        if self._fired % _TEND == 0:
            self.tend()
        self._fired += 1
        try:
            answer = self.client.send(sent)
        except TimeoutError:
            self.judgement.complain(sent, "hangs")
        except OSError as error:
            self.judgement.complain(sent, f"no answer: {error!r}")
        else:
            self.judgement.judge(sent, answer)
            self.grammar.pool.take_from(answer.body)

    def tend(self) -> None:
        """See that there are queues, and messages in all states in them."""
        ask = self.client.ask
        for queue in QUEUES:
            ask("PUT", f"queues/{queue}", {})
            ask("PATCH", f"queues/{queue}", {"settings": {"paused_until_ms": None}})
            messages = [self.grammar.put_item() for _ in range(6)]
            ask("POST", f"queues/{queue}/messages", {"messages": messages})
            leased = ask(
                "POST",
                f"queues/{queue}/messages/receive",
                {"max_messages": 3, "visibility_timeout_s": 600, "holder": "h"},
            )
            for lease in leased["messages"][1:]:
                item = {"id": lease["id"], "receipt": lease["receipt"]}
                if lease["fence"] % 2:
                    item |= {"outcome": "buried", "error": {"text": "tended"}}
                ask("POST", f"queues/{queue}/messages/release", {"items": [item]})
        self.tend_flows()

    def tend_flows(self) -> None:
        """See that there are a session, streams with a claim each, and a staged transaction."""
        ask, pool = self.client.ask, self.grammar.pool
        session = ask("POST", "sessions", {"holder": "tended", "timeout_s": 600})
        pool.take_from(json.dumps(session).encode())
        for queue, stream in zip(QUEUES, STREAMS, strict=False):
            path = f"queues/{queue}/streams/{stream}"
            attached = ask("PUT", path)
            number = max([attached["last_settled"], *(c["number"] for c in attached["claims"])])
            body = {"token": attached["token"], "limit": 2, "lease_s": 600, "accept_loss": True}
            opened = ask("PUT", f"{path}/claims/{number + 1}", body)
            for answer in (attached, opened):
                pool.take_from(json.dumps(answer).encode())
        messages = [{"queue": queue, "body": "tended"} for queue in QUEUES]
        name = f"tended-{self._fired}"
        staged = {"part": "a", "chunk": 0, "messages": messages, "timeout_s": 60}
        ask("POST", f"transactions/{name}/stage", staged)

    def look_through_azure(self) -> None:
        """Read all that is there through the other protocol."""
        with client_of(self.server, PLAYGROUND) as azure:
            for query in ("comp=list", "comp=list&include=metadata"):
                answer = azure.call(azure.asked("GET", "", query))
                assert answer.status == 200, answer
                names = [each.text or "" for each in ET.fromstring(answer.body).iter("Name")]
            assert names
            for queue in names:
                reads = (
                    azure.asked("GET", queue, "comp=metadata"),
                    azure.asked("GET", f"{queue}/messages", "peekonly=true&numofmessages=32"),
                    *(
                        azure.asked(
                            "GET",
                            f"{queue}/messages",
                            f"peekonly=true&include=invisible&numofmessages=32&marker={marker}",
                        )
                        for marker in ("", "q20", "q200")
                    ),
                    azure.asked("GET", f"{queue}/messages", "numofmessages=32"),
                )
                for asked in reads:
                    answer = azure.call(asked)
                    assert answer.status == 200, (asked, answer)
                    if answer.body:
                        ET.fromstring(answer.body)


@pytest.fixture
def ground(server: KillableServer) -> Iterator[Range]:
    """A playground."""
    with NativeClient(server.port) as client:
        yield Range(server, client, NativeGrammar(1))


def run(ground: Range, sentinel: NativeSentinel, *, examples: int, odd: int) -> Judgement:
    """Fire requests of both sources; look at the server before, in between and after."""
    server, grammar = ground.server, ground.grammar
    before = sentinel.state()
    ground.tend()
    ground.fire(grammar.odd_arrow())  # its library takes memory once
    memory = server.rss_bytes()
    fire_cases(ground.fire, grammar.pool, grammar.rng, examples=examples, number=1)
    ground.look_through_azure()
    requests = grammar.requests()
    for number in range(odd):
        ground.fire(next(requests))
        if number % 500 == 499:
            ground.look_through_azure()
    ground.tend()
    ground.look_through_azure()
    grown = server.rss_bytes() - memory
    judgement = ground.judgement
    print(judgement.summary())  # noqa: T201 - figures for a person who runs it with -s
    print(f"memory grew by {grown / 2**20:.1f} MiB")  # noqa: T201
    assert judgement.complaints == [], "\n".join(judgement.complaints[:20])
    assert sentinel.state() == before
    assert grown < _MEMORY_BYTES
    assert not any(word in server.log for word in _FAILURES), server.log[-3000:]
    return judgement


@pytest.mark.long
def test_odd_requests_are_answered_as_documented(ground: Range, sentinel: NativeSentinel) -> None:
    """The quick part: some hundred requests of the document, and as many nasty ones."""
    judgement = run(ground, sentinel, examples=4, odd=500)
    assert judgement.kinds["schema, positive"] > 80
    assert judgement.kinds["schema, negative"] > 80
    assert judgement.kinds["one odd value"] > 200
    assert len(judgement.codes) > 10


@pytest.mark.slow
def test_many_odd_requests_are_answered_as_documented(
    server: KillableServer, sentinel: NativeSentinel
) -> None:
    """The slow part: the same at length, from other seeds."""
    for seed in (2, 3):
        with NativeClient(server.port) as client:
            ground = Range(server, client, NativeGrammar(seed))
            run(ground, sentinel, examples=40, odd=10_000)


def test_whole_batches_are_taken_and_larger_ones_are_not(ground: Range) -> None:
    """Ten thousand messages go all the way in single requests; one more is refused."""
    ask, messages = ground.client.ask, f"{ACCOUNT_PATH}/queues/native-batch/messages"
    ask("PUT", "queues/native-batch", {})
    bodies = [{"body": "\U0001f600"}] * 10_001
    ground.fire(_batch(messages, messages=bodies))
    ground.fire(_batch(messages, messages=bodies[1:]))
    received = ask("POST", "queues/native-batch/messages/receive", {"max_messages": 10_000})
    items = [{name: each[name] for name in ("id", "receipt")} for each in received["messages"]]
    assert len(items) == 10_000
    renewed = ask(
        "POST",
        "queues/native-batch/messages/renew",
        {"items": [{**item, "visibility_timeout_s": 60} for item in items], "atomic": True},
    )
    items = [{name: each[name] for name in ("id", "receipt")} for each in renewed["results"]]
    ground.fire(_batch(f"{messages}/release", items=items[:5_000]))
    ground.fire(_batch(f"{messages}/complete", items=[*items[5_000:], *items[5_000:]]))
    judgement = ground.judgement
    assert judgement.complaints == []
    assert judgement.codes["out-of-range"] == 1
    counts = ask("GET", "queues/native-batch/counts")
    assert (counts["visible"], counts["leased"]) == (5_000, 0)


@pytest.mark.parametrize("path", ["messages", "messages/complete", "pause"])
def test_a_request_of_nothing_but_brackets_takes_no_memory(ground: Range, path: str) -> None:
    """Objects that take many times their text in memory are refused before all are made."""
    ground.tend()
    name = "items" if path.endswith("complete") else "messages"
    item = '{"id":"","receipt":""}' if name == "items" else "{}"
    number = 20_000_000 // len(item)
    body = f'{{"{name}":[{",".join([item] * number)}]}}'.encode()
    memory = ground.server.rss_bytes()
    ground.fire(_post(f"{ACCOUNT_PATH}/queues/{QUEUES[0]}/{path}", body))
    assert ground.judgement.complaints == []
    assert ground.judgement.codes.keys() <= {"out-of-range", "request-too-large"}
    assert ground.server.rss_bytes() - memory < 4 * len(body)


def _post(path: str, body: bytes) -> Sent:
    return Sent(kind="large", method="POST", path=path, body=body)


def _batch(path: str, **members: object) -> Sent:
    return _post(path, json.dumps(members).encode())


def test_requests_of_megabytes_are_answered_soon(ground: Range) -> None:
    """Neither a long name, nor a deep one, nor a long text makes the server think for long."""
    ground.tend()
    messages = f"{ACCOUNT_PATH}/queues/{QUEUES[0]}/messages"
    long = "k" * 8_000_000
    for body in (
        f'{{"{long}":1}}',
        f'{{"messages":[{{"body":"a","{long}":1}}]}}',
        f'{{"messages":[{{"body":"{long}"}}]}}',
        f'{{"messages":[{{"body":"a","type":"{long}","dedup_key":"{long}"}}]}}',
        f'{{"messages":[{{"body_base64":"{long}"}}]}}',
        f'{{"messages":[{{"body":"a","priority":{"9" * 1_000_000}}}]}}',
        f'{{"messages":[{{"json":{"[" * 4_000_000}}}]}}',
        f'{{"messages":{"[" * 4_000_000}}}',
        f'{{"messages":[{{"body":"a","properties":{{"{long}":"{long}"}}}}]}}',
        "{" * 8_000_000,
        '"' + "\\u00e9" * 1_000_000,
    ):
        ground.fire(_post(messages, body.encode()))
    assert ground.judgement.complaints == []


def test_what_one_protocol_takes_the_other_one_shows(ground: Range) -> None:
    """Metadata, bodies and what is sent along are the same seen from either side."""
    ask = ground.client.ask
    metadata = {"Latin": "é\xa0ÿ", "_x1": "tab\there", "empty": ""}
    ask("PUT", "queues/native-both", {"metadata": metadata})
    bodies = [bytes(range(256)), b"\x00", b"\xff\xfe", "\U0001f600\x0b".encode(), b"]]>&<\r", b""]
    items = [{"body_base64": base64.b64encode(body).decode()} for body in bodies]
    ask("POST", "queues/native-both/messages", {"messages": items})
    with client_of(ground.server, PLAYGROUND) as azure:
        answer = azure.call(azure.asked("GET", "native-both", "comp=metadata"))
        for name, value in metadata.items():
            assert answer.headers[f"x-ms-meta-{name.lower()}"] == value
        texts = [each.text for each in deliveries(azure.peek("native-both"))]
        headers = (
            ("x-ms-leasehold-type", "\x80ÿ"),
            ("x-ms-leasehold-properties", '{"\\u0000":"\\ud83d\\ude00"}'),
            ("traceparent", "no trace"),
        )
        put = azure.asked("POST", "native-both/messages", headers=headers, body=message("x"))
        assert azure.call(put).status == 201
    for body, text in zip(bodies, texts, strict=True):
        assert text.encode() == body or base64.b64decode(text) == body
    *_, last = ask("GET", "queues/native-both/messages")["messages"]
    assert last["type"] == "\x80ÿ"
    assert last["properties"] == {"\x00": "\U0001f600"}
    ground.look_through_azure()


class Stub(BaseHTTPRequestHandler):
    """Answers every request in the same way."""

    protocol_version = "HTTP/1.1"
    wbufsize = 65_536
    answer: tuple[int, str, bytes]

    def handle_one_request(self) -> None:
        """Read a request, and answer it."""
        self.raw_requestline = self.rfile.readline(65_537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self.rfile.read(int(self.headers.get("content-length", "0")))
        status, kind, body = self.answer
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Request-Id", "1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


_JSON: Final = "application/json"
_PROBLEM: Final = "application/problem+json"
_NOT_FOUND: Final = {"type": "/v1/problems/queue-not-found", "title": "t", "detail": "d"}


@pytest.fixture(scope="module")
def cases() -> list[Sent]:
    """Requests of the document, right and wrong: to draw them takes longer than all else."""
    drawn: list[Sent] = []
    grammar = NativeGrammar(1)
    fire_cases(drawn.append, grammar.pool, grammar.rng, examples=1, number=1)
    return drawn


@pytest.mark.long
@pytest.mark.parametrize(
    ("status", "kind", "value", "complaint"),
    [
        (500, _PROBLEM, {**_NOT_FOUND, "code": "internal-error", "status": 500}, "answered 500"),
        (418, _PROBLEM, {**_NOT_FOUND, "code": "queue-not-found", "status": 418}, "documented"),
        (404, _JSON, {**_NOT_FOUND, "code": "queue-not-found", "status": 404}, "documented"),
        (404, _PROBLEM, {**_NOT_FOUND, "code": "no-such-code", "status": 404}, "documented"),
        (400, _PROBLEM, {**_NOT_FOUND, "code": "queue-not-found", "status": 404}, "documented"),
        (404, _PROBLEM, {"code": "queue-not-found", "status": 404}, "documented"),
        (
            404,
            _PROBLEM,
            {**_NOT_FOUND, "code": "queue-not-found", "status": 404, "value": "x" * 9_999},
            "as long as what was sent",
        ),
        (200, _JSON, {}, "documented"),
        (404, "text/plain", "no", "plain text with status 404"),
    ],
)
def test_a_planted_fault_is_found(
    cases: list[Sent], status: int, kind: str, value: object, complaint: str
) -> None:
    """Positive control: a server that answers otherwise than documented is complained of."""
    content = json.dumps(value).encode()

    class Faulty(Stub):
        answer = (status, kind, content)

    judgement = Judgement()
    with ThreadingHTTPServer(("127.0.0.1", 0), Faulty) as stub:
        stub.daemon_threads = True
        thread = Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with NativeClient(stub.server_port) as client:
            for sent in cases:
                judgement.judge(sent, client.send(sent))
        stub.shutdown()
        thread.join()
    assert sum(complaint in each for each in judgement.complaints) > 20


def test_what_is_done_and_should_not_have_been_is_found() -> None:
    """Positive control: an answer as documented to a request that is not is complained of."""
    judgement = Judgement()
    sent = _batch(f"{ACCOUNT_PATH}/queues/abc/messages/receive", max_messages=0)
    fine = Answer(
        status=200,
        headers={"content-type": _JSON, "request-id": "1"},
        body=b'{"messages":[]}',
    )
    judgement.judge(sent, fine)
    assert "it was done" in judgement.complaints[0]
    judgement.judge(_batch(sent.path, max_messages=1), fine)
    assert len(judgement.complaints) == 1


def test_a_change_of_the_sentinel_is_seen(server: KillableServer) -> None:
    """Positive control: what only the native protocol can change shows."""
    with client_of(server, PLAYGROUND) as azure, NativeClient(server.port) as native:
        for queue in QUEUES:
            native.ask("PUT", f"queues/{queue}", {})
        sentinel = NativeSentinel(azure, native, account=PLAYGROUND)
        one = Sentinel.QUEUES[0]
        listed = native.ask("GET", f"queues/{one}/messages?state=visible")["messages"]
        message_id = listed[0]["id"]
        changes: tuple[tuple[str, str, object], ...] = (
            ("PATCH", f"queues/{one}", {"settings": {"visibility_timeout_s": 7}}),
            ("POST", f"queues/{one}/pause", {}),
            ("PATCH", f"queues/{one}/messages/{message_id}", {"priority": 1}),
            ("POST", f"queues/{one}/purge", {"dry_run": True}),
            ("DELETE", f"queues/{one}/messages/{message_id}", None),
        )
        before = sentinel.state()
        for method, path, body in changes:
            native.ask(method, path, body)
            after = sentinel.state()
            assert after != before
            before = after


def test_what_was_leased_before_is_still_held(sentinel: NativeSentinel) -> None:
    """After all of that the receipts given out before still act."""
    assert sentinel.still_held()
