"""The addresses under ``/v1/test/``, on the wire, held against the OpenAPI document."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from leasehold.http.native.dialect import ROUTES, Router, routes_for
from leasehold.http.requests import Response
from leasehold.http.test_mode import LATEST_MS, TEST_PREFIX
from leasehold.testing import InProcessServer
from leasehold.testing.time import START_MS
from leasehold.wire.flows import MAX_ADVANCE_S, MAX_DELAY_S, MAX_FAULTS
from tests.unit.http.native import checking
from tests.unit.http.native.support import Native

NOTHING = {"fail_commits": 0, "drop_answers": 0, "delay_answers_s": 0.0}
PATHS = sorted({route.path for route in ROUTES if route.path.startswith(TEST_PREFIX)})


class Wire:
    """A connection without credentials; every answer is checked against the document."""

    def __init__(self, server: InProcessServer) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=30)

    def send(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return the status of an answer, and what its JSON says."""
        text = None if body is None else json.dumps(body)
        self.connection.request(method, TEST_PREFIX + path, text)
        answer = self.connection.getresponse()
        content = answer.read()
        headers = [(name.lower().encode(), value.encode()) for name, value in answer.getheaders()]
        checking.check_answer(method, TEST_PREFIX + path, Response(answer.status, headers, content))
        return answer.status, json.loads(content) if content else None


@pytest.fixture
def wire(leasehold_server: InProcessServer) -> Iterator[Wire]:
    """Give a connection to a server with a virtual clock."""
    opened = Wire(leasehold_server)
    yield opened
    opened.connection.close()


def test_the_clock(wire: Wire, leasehold_server: InProcessServer) -> None:
    """It is told, and moved, and what is told is what messages go by."""
    shown = {"now_ms": START_MS, "virtual": True, "waiting": 0}
    assert wire.send("GET", "clock") == (200, shown)
    shown["now_ms"] = START_MS + 90_500
    assert wire.send("POST", "advance", {"seconds": 90.5}) == (200, shown)
    assert leasehold_server.now_ms() == START_MS + 90_500
    assert wire.send("POST", "advance", {"seconds": 0}) == (200, shown)


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"seconds": -1}, "out-of-range", "$.seconds"),
        ({"seconds": MAX_ADVANCE_S + 1}, "out-of-range", "$.seconds"),
        ({}, "invalid-request", "$.seconds"),
        ({"seconds": "1"}, "invalid-request", "$.seconds"),
        ({"seconds": 1, "minutes": 1}, "invalid-request", "$.minutes"),
        (None, "invalid-request", "$.seconds"),
    ],
)
def test_steps_that_cannot_be_made(wire: Wire, body: object, code: str, field: str) -> None:
    """The clock stays where it is, and the answer says what is wrong."""
    status, problem = wire.send("POST", "advance", body)
    assert (status, problem["code"], problem["field"]) == (400, code, field)
    assert wire.send("GET", "clock")[1]["now_ms"] == START_MS


def test_time_ends_in_the_year_3000(wire: Wire) -> None:
    """A step beyond it is refused with the longest that is left."""
    status = 200
    while status == 200:
        status, answer = wire.send("POST", "advance", {"seconds": MAX_ADVANCE_S})
    now_ms = wire.send("GET", "clock")[1]["now_ms"]
    assert answer["maximum"] == (LATEST_MS - now_ms) // 1000 < MAX_ADVANCE_S
    assert wire.send("POST", "advance", {"seconds": answer["maximum"]})[0] == 200


def test_faults(wire: Wire, leasehold_server: InProcessServer) -> None:
    """Said, told, replaced as a whole, and taken back."""
    assert wire.send("GET", "faults") == (200, NOTHING)
    wanted = {"fail_commits": 2, "drop_answers": 3, "delay_answers_s": 0.001}
    assert wire.send("PUT", "faults", wanted) == (200, wanted)
    assert wire.send("GET", "faults") == (200, wanted)
    assert wire.send("PUT", "faults", {"fail_commits": None}) == (200, NOTHING)
    assert wire.send("PUT", "faults", {"fail_commits": 1}) == (200, {**NOTHING, "fail_commits": 1})
    assert leasehold_server.faults.left().fail_commits == 1
    assert wire.send("DELETE", "faults") == (204, None)
    assert wire.send("GET", "faults") == (200, NOTHING)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fail_commits", -1),
        ("fail_commits", MAX_FAULTS + 1),
        ("drop_answers", -1),
        ("drop_answers", MAX_FAULTS + 1),
        ("delay_answers_s", -0.1),
        ("delay_answers_s", MAX_DELAY_S + 1),
    ],
)
def test_faults_out_of_range(wire: Wire, name: str, value: float) -> None:
    """All is refused, also what would have been fine."""
    status, problem = wire.send("PUT", "faults", {"fail_commits": 1, name: value})
    assert (status, problem["code"], problem["field"]) == (400, "out-of-range", f"$.{name}")
    assert wire.send("GET", "faults") == (200, NOTHING)


def test_the_switches_themselves_do_not_fail(wire: Wire) -> None:
    """Or nobody could turn a failure off."""
    wire.send("PUT", "faults", {"fail_commits": 5, "drop_answers": 5, "delay_answers_s": 60})
    assert wire.send("POST", "advance", {"seconds": 1})[0] == 200
    assert wire.send("DELETE", "faults")[0] == 204


def test_a_server_by_the_clock_of_the_system() -> None:
    """It fails on demand, and says why its clock cannot be moved."""
    with InProcessServer(clock="system") as server:
        wire = Wire(server)
        assert wire.send("GET", "clock")[1]["virtual"] is False
        status, problem = wire.send("POST", "advance", {"seconds": 1})
        assert (status, problem["code"]) == (404, "no-such-route")
        assert "--clock virtual" in problem["remedy"]
        assert wire.send("PUT", "faults", {"drop_answers": 1})[0] == 200
        wire.connection.close()


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_there_outside_of_test_mode(path: str) -> None:
    """Whoever asks a real server is told that there is no such address."""
    native = Native()
    with native.runner:
        for method in ("GET", "POST", "PUT", "DELETE"):
            answer = native.send(method, path, {}, key=None)
            assert (answer.status, answer.code) == (404, "no-such-route")


def test_the_limits_of_the_document() -> None:
    """Its figures are those of the code."""
    schemas = checking.document()["components"]["schemas"]
    assert schemas["AdvanceRequest"]["properties"]["seconds"]["maximum"] == MAX_ADVANCE_S
    faults = schemas["FaultsRequest"]["properties"]
    assert {name: each["maximum"] for name, each in faults.items()} == {
        "fail_commits": MAX_FAULTS,
        "drop_answers": MAX_FAULTS,
        "delay_answers_s": MAX_DELAY_S,
    }


def test_routes_for_tests_only() -> None:
    """They are the only ones that a real server lacks."""
    missing = set(routes_for(test_mode=True)) - set(routes_for(test_mode=False))
    assert {route.path for route in missing} == set(PATHS)
    assert all(not route.operations for route in missing)
    Router(routes_for(test_mode=False))
