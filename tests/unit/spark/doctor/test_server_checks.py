"""What the doctor makes of a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import httpx
import pytest

from leasehold import __version__
from leasehold.client import Client, RetryPolicy
from leasehold.spark.doctor import (
    Finding,
    Level,
    ServerFacts,
    check_server,
    clock_ahead_s,
    gather_server,
    worst,
)

REPORT: Final = {
    "ready": True,
    "draining": False,
    "version": __version__,
    "store": {"kind": "sqlite", "failed": False, "durable": True, "writable": True},
}
GOOD: Final = ServerFacts(url="http://q:10001", report=REPORT, clock_ahead_s=(-0.2, 0.8))
START_MS: Final = 1_767_225_600_000  # Thu, 01 Jan 2026 00:00:00 GMT


def only(facts: ServerFacts) -> Finding:
    """Return the one finding that is not well."""
    (bad,) = (each for each in check_server(facts) if each.level is not Level.OK)
    assert bad.found
    assert bad.meaning
    assert bad.cure
    return bad


def report(**changes: Any) -> dict[str, Any]:
    """Return a report with some members changed; those of the store by their own names."""
    store = {name: changes.pop(name) for name in ("durable", "writable") if name in changes}
    return {**REPORT, **changes, "store": {**REPORT["store"], **store}}  # type: ignore[dict-item]  # a dict in it


def test_all_is_well() -> None:
    """A good server gives one good finding per check."""
    findings = check_server(GOOD)
    assert worst(findings) is Level.OK
    assert len({each.check for each in findings}) == len(findings) == 6


def test_no_server_says_nothing_else() -> None:
    """Where nobody answers there is one thing to do."""
    found = only(ServerFacts(url="http://q:1", unreachable="refused"))
    assert (found.check, found.level) == ("server-reachable", Level.FAIL)


@pytest.mark.parametrize(
    ("changes", "check", "level"),
    [
        ({"refused": "The key is wrong."}, "server-access", Level.FAIL),
        ({"report": None}, "server-report", Level.WARN),
        ({"report": report(ready=False, draining=True)}, "server-ready", Level.FAIL),
        ({"report": report(ready=False)}, "server-ready", Level.FAIL),
        ({"report": report(writable=False)}, "server-writable", Level.FAIL),
        ({"report": report(durable=False)}, "server-writable", Level.WARN),
        ({"report": report(version="9.9")}, "server-version", Level.WARN),
        ({"clock_ahead_s": (29.0, 30.0)}, "clock", Level.WARN),
        ({"clock_ahead_s": (-31.0, -30.0)}, "clock", Level.WARN),
        ({"clock_ahead_s": (3600.0, 3601.0)}, "clock", Level.FAIL),
        ({"clock_ahead_s": None}, "clock", Level.WARN),
    ],
)
def test_trouble_is_found(changes: dict[str, Any], check: str, level: Level) -> None:
    """Each trouble gives one finding, with what it means and what to do."""
    found = only(replace(GOOD, **changes))
    assert (found.check, found.level) == (check, level)


def test_clock_has_bounds() -> None:
    """Whole seconds in the header, and the time of the answer, leave a range."""
    date = "Thu, 01 Jan 2026 00:00:10 GMT"
    assert clock_ahead_s(date, START_MS, START_MS + 500) == (9.5, 11.0)
    assert clock_ahead_s(None, START_MS, START_MS) is None
    assert clock_ahead_s("yesterday", START_MS, START_MS) is None


def asked(answers: dict[str, httpx.Response]) -> ServerFacts:
    """Return what is gathered from a server with these answers; others are refused connections."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path not in answers:
            raise httpx.ConnectError("refused", request=request)
        return answers[request.url.path]

    transport = httpx.MockTransport(answer)
    client = Client("http://q:10001", retries=RetryPolicy(attempts=1), transport=transport)
    with client, httpx.Client(transport=transport) as web:
        return gather_server(client, web, lambda: START_MS)


QUEUES: Final = "/v1/accounts/devstoreaccount1/queues"


def test_server_is_asked() -> None:
    """Report, time and access come from two requests."""
    facts = asked(
        {
            "/readyz": httpx.Response(
                200, json=REPORT, headers={"Date": "Thu, 01 Jan 2026 00:00:00 GMT"}
            ),
            QUEUES: httpx.Response(200, json={"queues": [], "next_after": None}),
        }
    )
    assert facts == ServerFacts(url="http://q:10001", report=REPORT, clock_ahead_s=(0.0, 1.0))


def test_refusal_is_told() -> None:
    """A server that refuses the credentials is there, and what it says is kept."""
    problem = {"code": "unauthenticated", "status": 401, "detail": "The signature is wrong."}
    facts = asked({QUEUES: httpx.Response(401, json=problem)})
    assert facts.refused == "The signature is wrong."
    assert facts.unreachable is None
    assert facts.report is None


def test_nobody_answers() -> None:
    """A refused connection is a fact and no error."""
    facts = asked({})
    assert facts.unreachable is not None
    assert facts.report is None
