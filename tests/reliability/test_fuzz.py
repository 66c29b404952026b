"""Whatever is sent, the server answers in its own form and goes on; what it refuses is not done."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

import pytest

from tests.reliability.fuzz_server import SHORT_DEADLINES, client_of, serving
from tests.reliability.fuzz_shots import KEYS, PLAYGROUND, SENTINEL, Shooter
from tests.reliability.fuzzing import (
    TIMEOUT_S,
    AnswersOfBytes,
    Sentinel,
    Shot,
    Verdict,
    error_problems,
    shoot,
)
from tests.reliability.running import Answer, Connection, KillableServer, message

NO_CORS = b"<StorageServiceProperties><Cors/></StorageServiceProperties>"
_WARM_UP = 300
_MEMORY_BYTES = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableServer]:
    """A server with two accounts and short deadlines."""
    with serving(tmp_path_factory.mktemp("fuzz"), **SHORT_DEADLINES) as server:
        yield server


@pytest.fixture(scope="module")
def sentinel(server: KillableServer) -> Iterator[Sentinel]:
    """The account that must not change."""
    with client_of(server, SENTINEL) as client:
        yield Sentinel(client)


def run(server: KillableServer, sentinel: Sentinel, shots: Iterator[Shot], number: int) -> Verdict:
    """Fire so many shots and look at the server before and after."""
    verdict = Verdict()
    before = sentinel.state()
    memory = 0
    for fired, shot in enumerate(islice(shots, number)):
        if fired == _WARM_UP:
            memory = server.rss_bytes()
        try:
            verdict.judge(shot, shoot(server.port, shot))
        except TimeoutError:
            verdict.complaints.append(f"{shot.kind}: hangs\n  {shot.raw[:700]!r}")
    grown = server.rss_bytes() - memory
    print(verdict.summary())  # noqa: T201 - figures for a person who runs it with -s
    print(f"memory grew by {grown / 2**20:.1f} MiB")  # noqa: T201
    assert verdict.complaints == [], "\n".join(verdict.complaints[:20])
    assert sentinel.state() == before
    assert grown < _MEMORY_BYTES
    assert "azure.internal_error" not in server.log
    assert "http.application_failed" not in server.log
    return verdict


def test_bad_requests_are_refused_in_form_and_change_nothing(
    server: KillableServer, sentinel: Sentinel
) -> None:
    """The quick part: 2,000 shots of all kinds."""
    verdict = run(server, sentinel, Shooter.of_seed(20_261_121).shots(), 2_000)
    assert verdict.shots.total() == 2_000
    assert verdict.accepted > 100
    assert len(verdict.refused) > 30


@pytest.mark.slow
def test_many_bad_requests_change_nothing(server: KillableServer, sentinel: Sentinel) -> None:
    """The slow part: 25,000 shots of all kinds."""
    verdict = run(server, sentinel, Shooter.of_seed(1).shots(), 25_000)
    assert verdict.shots.total() == 25_000


@pytest.mark.slow
def test_no_forgery_is_accepted(server: KillableServer, sentinel: Sentinel) -> None:
    """The slow part: 10,000 changed copies of rightly signed requests; none passes."""
    verdict = run(server, sentinel, Shooter.of_seed(2).forgeries(), 10_000)
    assert verdict.accepted == 0


def test_requests_that_never_end_are_ended(server: KillableServer, sentinel: Sentinel) -> None:
    """A client that sends the beginning of a request and waits is told so, or cut off, in time."""
    shooter = Shooter.of_seed(4)
    before = sentinel.state()

    def wait(shot: Shot) -> bytes:
        with Connection(server.port, TIMEOUT_S) as connection:
            connection.send(shot.raw)
            return connection.read_rest()

    with ThreadPoolExecutor(60) as pool:
        ends = list(pool.map(wait, [shooter.incomplete() for _ in range(60)]))
    for end in ends:
        (answer,) = AnswersOfBytes(end).all_answers(head=False)
        assert answer.status == 408
    assert sentinel.state() == before


def test_utf_16_is_refused(server: KillableServer, sentinel: Sentinel) -> None:
    """Bodies are UTF-8: ill-formed UTF-16 would be taken and silently altered."""
    client = sentinel.client
    put = client.asked("POST", f"{Sentinel.QUEUES[0]}/messages")
    for encoding in ("utf-16", "utf-16-be", "utf-16-le"):
        body = message("x").decode().encode(encoding)
        assert client.call_signed(replace(put, body=body)).code == "InvalidXmlDocument"


@pytest.mark.parametrize("version", [b" HTTP/2.0", b" HTTP/0.9", b""])
def test_other_versions_of_http_are_refused(
    server: KillableServer, sentinel: Sentinel, version: bytes
) -> None:
    """A request line that names another version than 1.0 or 1.1 is not answered as if it did."""
    asked = sentinel.client.asked("GET", Sentinel.QUEUES[0], "comp=metadata")
    raw = asked.signed(base64.b64decode(KEYS[SENTINEL]), SENTINEL)
    came = shoot(server.port, Shot(kind="version", raw=raw.replace(b" HTTP/1.1", version, 1)))
    assert b" 200 OK" not in came


def test_genuine_requests_pass(server: KillableServer, sentinel: Sentinel) -> None:
    """Positive control: what the shots change is accepted as long as it is not changed."""
    with client_of(server, PLAYGROUND) as playground:
        assert playground.create("control").status == 201
        assert playground.put("control", "text").status == 201
        assert playground.call_signed(playground.asked("DELETE", "control")).status == 204
    assert sentinel.client.call(sentinel.client.asked("GET", "", "comp=list")).status == 200


def test_a_change_of_the_sentinel_is_seen(server: KillableServer) -> None:
    """Positive control: each thing that a wrongly accepted request could change shows."""
    one, two = Sentinel.QUEUES
    with client_of(server, PLAYGROUND) as client:
        sentinel = Sentinel(client)
        changes = (
            client.asked("PUT", two, "comp=metadata", headers=[("x-ms-meta-a", "b")]),
            client.asked("PUT", one, "comp=acl"),
            client.asked("GET", f"{one}/messages"),
            client.asked("DELETE", f"{one}/messages"),
            client.asked("PUT", "", "restype=service&comp=properties", body=NO_CORS),
            client.asked("PUT", "one-more"),
        )
        before = sentinel.state()
        for change in changes:
            assert client.call_signed(change).status < 300
            after = sentinel.state()
            assert after != before
            before = after


@pytest.mark.parametrize(
    "broken",
    [
        (b"<Error><Code>QueueNotFound</Code></Error>", 404),
        (b"<Error><Code>Odd</Code><Message>m\nRequestId:1\nTime:t</Message></Error>", 400),
        (
            b"<Error><Code>QueueNotFound</Code><Message>m\nRequestId:1\nTime:t</Message></Error>",
            400,
        ),
        (
            b"<Error><Code>QueueNotFound</Code><Message>m\nRequestId:2\nTime:t</Message></Error>",
            404,
        ),
        (b"<Error><Code>QueueNotFound</Code>", 404),
        (b"", 404),
    ],
)
def test_a_malformed_error_is_seen(broken: tuple[bytes, int]) -> None:
    """Positive control: errors of another form than the documented one are complained of."""
    body, status = broken
    headers = {
        "content-type": "application/xml",
        "x-ms-request-id": "1",
        "x-ms-error-code": "QueueNotFound",
    }
    answer = Answer(status=status, headers=headers, body=body)
    assert list(error_problems(answer, code_needed=True))


@pytest.mark.parametrize(
    ("came", "complaint"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", "accepted with 204"),
        (b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n", "answered 500"),
        (b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n", "an error of type None"),
        (b"HTTP/1.1 404 No\r\ncontent-length: 9\r\n\r\ncut", "not HTTP"),
        (b"HTTP/1.1 404 No\r\n\r\n", "not HTTP"),
        (b"nonsense\r\n\r\n", "not HTTP"),
        (b"", "closed without an answer"),
    ],
)
def test_a_wrong_answer_is_seen(came: bytes, complaint: str) -> None:
    """Positive control: whatever must not come back is complained of."""
    verdict = Verdict()
    verdict.judge(Shot(kind="control", raw=b"GET / HTTP/1.1\r\n\r\n"), came)
    assert complaint in verdict.complaints[0]


def test_what_was_leased_before_is_still_held(sentinel: Sentinel) -> None:
    """After all of that the receipts given out before still act."""
    assert sentinel.still_held()
