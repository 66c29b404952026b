"""Events, and what they never show."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable

import pytest
import structlog

from leasehold.http.logs import MASK, configure_logs, mask
from leasehold.testing import ManualClock

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
SIGNATURE = "psjAKWpysM2ScELsSPxjpsfOVCppIml84/PsqT/svUw="
TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl"
SECRETS = {
    "signature in a query": f"/acct/q?sv=2026-10-06&sig={SIGNATURE}&sp=raup",
    "encoded signature in a query": "/a/q?sig=psjAKWpysM2ScELsSPxjpsfOVCppIml84%2FPsqT%2FsvUw%3D",
    "encoded parameter": "url=http%3A%2F%2Fh%2Fq%3Fsig%3DpsjAKWpysM2ScELsSPxjpsfOVCppIml84",
    "signature at the end": "sv=1&SIG=psjAKWpysM2ScELsSPxjpsfOVCppIml84",
    "shared key": f"SharedKey devstoreaccount1:{SIGNATURE}",
    "shared key lite": "SharedKeyLite acct:psjAKWpysM2ScELsSPxjpsfOVCppIml84",
    "header": "Authorization: SharedKey acct:psjAKWpysM2ScELsSPxjpsfOVCppIml84",
    "header in a dictionary": "{'authorization': 'psjAKWpysM2ScELsSPxjpsfOVCppIml84'}",
    "connection string": f"AccountName=a;AccountKey={KEY};EndpointSuffix=x",
    "connection string with a SAS": "SharedAccessSignature=psjAKWpysM2ScELsSPxjpsfOVCppIml84",
    "bearer token": "Bearer psjAKWpysM2ScELsSPxjpsfOVCppIml84",
    "token alone": f"got {TOKEN} instead",
    "key alone": f"the key {KEY} is wrong",
    "signature alone": f"'{SIGNATURE}'",
}
PARTS = ("psjAKWpy", "Eby8vdM0", "c2lnbmF0")


@pytest.mark.parametrize("text", SECRETS.values(), ids=SECRETS.keys())
def test_secret_is_masked(text: str) -> None:
    """Whatever looks like a key, a signature or a token is not shown."""
    masked = mask(text)
    assert MASK in masked
    assert not any(part in masked for part in PARTS)


@pytest.mark.parametrize(
    "text",
    [
        "/devstoreaccount1/orders/messages/2f1a9a7e-5bb0-4f5c-8a52-9d5a3c3a1b11?timeout=30",
        "http://127.0.0.1:10001",
        "database is locked",
        "/var/lib/leasehold/some/rather/long/path/that/is/not/secret/at/all/leasehold.db",
        "AccountName=devstoreaccount1;EndpointSuffix=core.example.net",
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    """Ids, paths and messages stay readable."""
    assert mask(text) == text


def test_rest_of_the_text_stays() -> None:
    """Only the secret itself goes, so that the event is still of use."""
    assert mask(SECRETS["signature in a query"]) == "/acct/q?sv=2026-10-06&sig=***&sp=raup"
    assert mask(SECRETS["connection string"]) == "AccountName=a;AccountKey=***;EndpointSuffix=x"


@pytest.fixture
def read_log(log_put_back: None) -> Callable[[str, str], io.StringIO]:
    """Configures the log to write to memory."""
    del log_put_back

    def configure(log_format: str, log_level: str) -> io.StringIO:
        stream = io.StringIO()
        configure_logs(
            log_format=log_format, log_level=log_level, clock=ManualClock(), stream=stream
        )
        return stream

    return configure


def test_json_events(read_log: Callable[[str, str], io.StringIO]) -> None:
    """One object a line: time, level, event, fields."""
    stream = read_log("json", "info")
    structlog.get_logger().info("server.ready", url="http://127.0.0.1:10001")
    assert json.loads(stream.getvalue()) == {
        "timestamp": "2026-01-01T00:00:00.000Z",
        "level": "info",
        "event": "server.ready",
        "url": "http://127.0.0.1:10001",
    }


def test_console_events(read_log: Callable[[str, str], io.StringIO]) -> None:
    """A line for people has the same, without colours where nobody looks."""
    stream = read_log("console", "info")
    structlog.get_logger().info("server.ready", url="http://127.0.0.1:10001")
    line = stream.getvalue()
    assert "server.ready" in line
    assert "url=http://127.0.0.1:10001" in line
    assert "\x1b" not in line


def test_less_important_events_are_left_out(read_log: Callable[[str, str], io.StringIO]) -> None:
    """The level is a lower bound."""
    stream = read_log("json", "warning")
    structlog.get_logger().info("server.ready")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_field_shows_a_secret(
    read_log: Callable[[str, str], io.StringIO], log_format: str
) -> None:
    """Event text, values, nested values, bytes and tracebacks all pass through the mask."""
    stream = read_log(log_format, "info")
    log = structlog.get_logger()
    log.info(
        SECRETS["signature at the end"], url=f"http://h/q?sig={SIGNATURE}", nested={"list": [KEY]}
    )
    log.info("raw", data=KEY.encode(), thing=ValueError(KEY), authorization="plain", key1="plain")
    try:
        int(KEY)
    except ValueError:
        log.exception("failed")
    text = stream.getvalue()
    assert "ValueError" in text
    assert "Traceback" in text
    assert not any(part in text for part in (*PARTS, "plain"))


def test_standard_logging_is_forwarded(read_log: Callable[[str, str], io.StringIO]) -> None:
    """What libraries log becomes events, masked like all others."""
    stream = read_log("json", "info")
    logging.getLogger("asyncio").warning("look: %s", f"sig={SIGNATURE}")
    logging.getLogger("asyncio").info("not important")
    event = json.loads(stream.getvalue())
    assert (event["event"], event["logger"]) == ("log.forwarded", "asyncio")
    assert event["message"] == "look: sig=***"
