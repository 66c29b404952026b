"""Whatever is sent to the MNS dialect, it answers in its own form and goes on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from xml.etree import ElementTree as ET

import pytest

from leasehold.http.mns.errors import CODES
from tests.reliability.fuzz_server import SHORT_DEADLINES, client_of, serving
from tests.reliability.fuzz_shots import KEYS, PLAYGROUND, SENTINEL
from tests.reliability.fuzzing import AnswersOfBytes, Sentinel, Shot, shoot
from tests.reliability.mns_grammar import MnsGrammar, MnsShot
from tests.reliability.running import Answer, KillableServer, UnansweredError

QUEUES = ("play-one", "Play-Two")
SECRET = KEYS[PLAYGROUND].encode()
_SPACE = "{http://mns.aliyuncs.com/doc/v1}"
_WARM_UP = 300
_MEMORY_BYTES = 64 * 1024 * 1024
_OF_THE_CONNECTION = frozenset({400, 408, 413, 414, 421, 431})
"""What is told as plain text before anybody knows which protocol it is."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableServer]:
    """A server with two accounts."""
    with serving(tmp_path_factory.mktemp("mns-fuzz"), **SHORT_DEADLINES) as server:
        yield server


@pytest.fixture(scope="module")
def port(server: KillableServer) -> int:
    """The port of the dialect."""
    found = re.search(r"url_mns=http://127\.0\.0\.1:(\d+)", server.log)
    assert found is not None, server.log
    return int(found[1])


@pytest.fixture(scope="module")
def sentinel(server: KillableServer) -> Iterator[Sentinel]:
    """The account that must not change."""
    with client_of(server, SENTINEL) as client:
        yield Sentinel(client)


def fire(port: int, shot: MnsShot) -> bytes:
    """Send a shot; return all that comes back."""
    return shoot(port, Shot(kind=shot.kind, raw=shot.raw(SECRET)))


def complaints(shot: MnsShot, came: bytes) -> Iterator[str]:
    """Say what is wrong with what came back."""
    if not came:
        if shot.spoil is None:
            yield "closed without an answer"
        return
    try:
        answers = AnswersOfBytes(came).all_answers(head=shot.method == "HEAD")
    except (UnansweredError, ValueError):
        yield "not HTTP"
        return
    for answer in answers:
        if answer.status >= 500 and answer.status != 503:
            yield f"answered {answer.status}"
        if answer.status < 400 and shot.must_be_refused:
            yield f"accepted with {answer.status}"
        yield from problems(answer)


def problems(answer: Answer) -> Iterator[str]:
    """Say what is wrong with the form of an answer."""
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/plain"):
        if answer.status not in _OF_THE_CONNECTION:
            yield f"plain text with status {answer.status}"
        return
    if re.fullmatch("[0-9A-F]{24}", answer.headers.get("x-mns-request-id", "")) is None:
        yield "no id of the request"
    if not answer.body:
        if answer.status not in {201, 204}:
            yield f"no body with status {answer.status}"
        return
    if kind != "text/xml;charset=utf-8":
        yield f"a body of type {kind}"
    try:
        root = ET.fromstring(answer.body)
    except ET.ParseError:
        yield "a body that is no XML"
        return
    if answer.status >= 400:
        yield from error_problems(answer, root)


def error_problems(answer: Answer, root: ET.Element) -> Iterator[str]:
    """Say what is wrong with an error, or with a batch that failed in part."""
    name = root.tag.removeprefix(_SPACE)
    if name == "Error":
        fields = {each.tag.removeprefix(_SPACE): each.text or "" for each in root}
        if list(fields) != ["Code", "Message", "RequestId", "HostId"] or not all(fields.values()):
            yield "an error without its four elements"
            return
        if CODES.get(fields["Code"], (0,))[0] != answer.status:
            yield f"{fields['Code']} with status {answer.status}"
    elif name not in {"Messages", "Errors"}:
        yield f"an error called {name}"


def run(
    server: KillableServer, port: int, sentinel: Sentinel, seed: int, number: int
) -> Counter[str]:
    """Fire so many shots, and look at the server before and after."""
    before, memory = sentinel.state(), 0
    found: list[str] = []
    statuses: Counter[str] = Counter()
    for fired, shot in enumerate(islice(MnsGrammar(seed, QUEUES).shots(), number)):
        if fired == _WARM_UP:
            memory = server.rss_bytes()
        came = fire(port, shot)
        statuses[came[9:12].decode("latin-1")] += 1
        found += [f"{shot.kind}: {each}\n  {shot!r:.700}" for each in complaints(shot, came)]
    grown = server.rss_bytes() - memory
    print(statuses)  # noqa: T201 - figures for a person who runs it with -s
    assert found == [], "\n".join(found[:20])
    assert sentinel.state() == before
    assert grown < _MEMORY_BYTES
    for word in ("mns.internal_error", "http.application_failed", "Traceback"):
        assert word not in server.log
    return statuses


def test_requests_of_all_kinds_are_answered_in_form(
    server: KillableServer, port: int, sentinel: Sentinel
) -> None:
    """The quick part: 3,000 of them; no 500, and what is refused is not done."""
    statuses = run(server, port, sentinel, 20_261_121, 3_000)
    assert statuses["200"] > 30
    assert {"201", "204", "400", "403", "404", "408"} <= set(statuses)


@pytest.mark.slow
def test_many_requests_are_answered_in_form(
    server: KillableServer, port: int, sentinel: Sentinel
) -> None:
    """The slow part: 25,000."""
    run(server, port, sentinel, 2, 25_000)


@pytest.mark.parametrize(
    ("came", "complaint"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", "accepted with 204"),
        (b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n", "answered 500"),
        (b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n", "no body with status 404"),
        (b"nonsense\r\n\r\n", "not HTTP"),
        (b"", "closed without an answer"),
        (
            (
                b"HTTP/1.1 404 No\r\ncontent-type: text/xml;charset=utf-8\r\n"
                b"content-length: 29\r\n\r\n<Error><Code>x</Code></Error>"
            ),
            "an error without its four elements",
        ),
    ],
)
def test_a_wrong_answer_is_seen(came: bytes, complaint: str) -> None:
    """Positive control: whatever must not come back is complained of."""
    shot = MnsShot(kind="control", method="GET", target="/queues")
    assert complaint in list(complaints(shot, came))


def test_what_was_leased_before_is_still_held(sentinel: Sentinel) -> None:
    """After all of that the receipts given out before still act."""
    assert sentinel.still_held()
