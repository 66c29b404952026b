"""The console of a real server: its pages, a session, and the stream of events."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.server import DEV_ACCOUNT, Endpoint, Server
from tests.postgres import empty, shared_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

SESSION = "/console/api/session"
QUEUE = f"/v1/accounts/{DEV_ACCOUNT}/queues/seen-by-console"


@pytest.fixture
def connection(endpoint: Endpoint, on_azurite: bool) -> Iterator[http.client.HTTPConnection]:
    """Give a connection to the server."""
    if on_azurite:
        pytest.skip("Azurite has no console")
    made = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=20)
    yield made
    made.close()


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    content: object = None,
    headers: dict[str, str] | None = None,
) -> tuple[http.client.HTTPResponse, bytes]:
    """Ask on a connection that is kept, and read the answer."""
    body = None if content is None else json.dumps(content)
    fields = {"content-type": "application/json", **(headers or {})}
    connection.request(method, path, body, fields)
    answer = connection.getresponse()
    return answer, answer.read()


def enter(connection: http.client.HTTPConnection) -> dict[str, str]:
    """Sign in with one click."""
    asked = {"kind": "development"}
    answer, body = ask(connection, "POST", "/console/api/session", asked)
    assert answer.status == 200, body
    cookie = answer.headers["set-cookie"].partition(";")[0]
    return {"cookie": cookie, "x-leasehold-csrf": json.loads(body)["csrf"]}


def next_event(stream: http.client.HTTPResponse) -> tuple[str, Any]:
    """Read one event of a stream."""
    name = ""
    while True:
        line = stream.readline().decode().rstrip("\n")
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            return name, json.loads(line[6:])


def test_browser_is_led_to_the_page(connection: http.client.HTTPConnection) -> None:
    """From the root, where clients of Azure get what they got before."""
    answer, _ = ask(connection, "GET", "/", headers={"accept": "text/html"})
    assert (answer.status, answer.headers["location"]) == (302, "/console/")
    answer, _ = ask(connection, "GET", "/")
    assert answer.status != 302
    answer, page = ask(connection, "GET", "/console/")
    assert answer.status == 200
    assert page.lstrip().lower().startswith(b"<!doctype html>")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    name = {"if-none-match": answer.headers["etag"]}
    answer, page = ask(connection, "GET", "/console/", headers=name)
    assert (answer.status, page) == (304, b"")
    answer, _ = ask(connection, "GET", "/console/static/..%2f..%2fpages.py")
    assert answer.status == 404


def test_events_tell_what_happens(
    endpoint: Endpoint, connection: http.client.HTTPConnection
) -> None:
    """First everything, then the queue that something has happened in; the session acts."""
    fields = enter(connection)
    assert ask(connection, "PUT", QUEUE, headers=fields)[0].status in {200, 201}
    watching = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=20)
    watching.request("GET", "/console/api/live", headers={"cookie": fields["cookie"]})
    stream = watching.getresponse()
    assert stream.headers["content-type"].startswith("text/event-stream")
    name, whole = next_event(stream)
    assert (name, whole["full"]) == ("overview", True)
    assert "seen-by-console" in {row["name"] for row in whole["queues"]}
    assert next_event(stream)[0] == "server"
    put = {"messages": [{"body": "one"}]}
    assert ask(connection, "POST", f"{QUEUE}/messages", put, fields)[0].status in {200, 201}
    rows: dict[str, Any] = {}
    while rows.get("seen-by-console", {}).get("visible") != 1:
        name, change = next_event(stream)
        if name == "overview":
            assert change["full"] is False
            rows |= {row["name"]: row for row in change["queues"]}
    watching.close()
    assert ask(connection, "DELETE", QUEUE, headers=fields)[0].status in {200, 204}


def test_stop_ends_the_streams(tmp_path: Path) -> None:
    """An open console does not hold up the server's end, and is told of it."""
    with Server(tmp_path / "data") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        fields = enter(connection)
        connection.close()
        watching = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        watching.request("GET", "/console/api/live", headers={"cookie": fields["cookie"]})
        stream = watching.getresponse()
        assert next_event(stream)[0] == "overview"
    name, content = next_event(stream)
    while name != "end":
        name, content = next_event(stream)
    assert content == {"reason": "stopping"}
    assert stream.read() == b"\n"
    watching.close()


def test_console_can_be_turned_off(tmp_path: Path) -> None:
    """Then nothing is there, and no session is taken."""
    options = {"--no-console": "--no-test-mode"}
    with Server(tmp_path / "data", options=options) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        assert ask(connection, "GET", "/console/")[0].status != 200
        assert ask(connection, "GET", "/console/api/session")[0].status != 200
        assert ask(connection, "GET", "/", headers={"accept": "text/html"})[0].status != 302
        connection.close()


def _is_signed_in(server: Endpoint, fields: dict[str, str]) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        return bool(json.loads(ask(connection, "GET", SESSION, headers=fields)[1])["signed_in"])
    finally:
        connection.close()


def _begin_session(server: Endpoint) -> dict[str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        return enter(connection)
    finally:
        connection.close()


def test_session_outlives_a_restart_and_opens_no_other_server(tmp_path: Path) -> None:
    """Nobody signs in again after a restart; a server of other data takes no session of it."""
    with Server(tmp_path / "data") as server:
        fields = _begin_session(server)
        assert _is_signed_in(server, fields)
    with Server(tmp_path / "data") as server:
        assert _is_signed_in(server, fields)
    with Server(tmp_path / "other") as server:
        assert not _is_signed_in(server, fields)


def test_session_holds_on_all_servers_of_a_database(tmp_path: Path) -> None:
    """Behind a load balancer each request may come to another one."""
    empty("console")
    options = {"--store-url": f"{shared_cluster().url}&schema=console"}
    with (
        Server(tmp_path / "first", options=options) as first,
        Server(tmp_path / "second", options=options) as second,
    ):
        assert _is_signed_in(second, _begin_session(first))
        assert _is_signed_in(first, _begin_session(second))


def test_what_has_happened_and_who_did_it(connection: http.client.HTTPConnection) -> None:
    """Events from the newest back, figures, workers and pipelines, on a store with a disk."""
    who = enter(connection)
    ask(connection, "PUT", QUEUE, headers=who)
    ask(connection, "POST", f"{QUEUE}/messages", {"messages": [{"body": "x"}]}, who)
    ask(connection, "POST", f"{QUEUE}/pause", {"reason": "try"}, who)
    answer, body = ask(connection, "POST", f"{QUEUE}/resume", {}, who)
    assert json.loads(body)["previous"]["settings"]["pause_reason"] == "try"
    query = "queue=seen-by-console&actor=*&limit=3"
    answer, body = ask(connection, "GET", f"/console/api/events?{query}", headers=who)
    assert answer.status == 200, body
    events = json.loads(body)["events"]
    assert [each["type"] for each in events] == ["queue-resumed", "queue-paused", "put"]
    assert {each["actor"][:8] for each in events} == {"console:"}
    figures = "/console/api/queues/seen-by-console/figures"
    answer, body = ask(connection, "GET", figures, headers=who)
    assert json.loads(body)["buckets"][-1]["put"] is not None
    report = {"queue": "seen-by-console", "state": "running", "began_at_ms": 1}
    path = f"/v1/accounts/{DEV_ACCOUNT}/pipelines/seen"
    answer, body = ask(connection, "PUT", path, report, who)
    assert answer.status == 204, body
    answer, body = ask(connection, "GET", "/console/api/pipelines/seen", headers=who)
    assert [each["state"] for each in json.loads(body)["timeline"]][-1:] == ["waiting"]
    answer, body = ask(connection, "GET", "/console/api/workers", headers=who)
    assert answer.status == 200, body
