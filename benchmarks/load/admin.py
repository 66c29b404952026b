"""The few requests around a measurement: create the queue, count, look."""

from __future__ import annotations

import base64
import http.client
import socket
from email.utils import formatdate

from benchmarks.load import native
from benchmarks.load.job import EMULATOR_ACCOUNT, EMULATOR_KEY, Job
from benchmarks.load.signing import VERSION, Hmac, string_to_sign
from benchmarks.load.workloads import LoadFailed
from leasehold.clock import SystemClock

_CLOCK = SystemClock()
_TIMEOUT_S = 60


def request(
    port: int, method: str, path: str, query: list[tuple[str, str]]
) -> http.client.HTTPResponse:
    """Send one request without a body, signed with the account's key, and read the answer.

    Raises:
        OSError, http.client.HTTPException: Nobody answers.
    """
    path = f"/{EMULATOR_ACCOUNT}{path}"
    headers = [
        ("x-ms-date", formatdate(_CLOCK.now_ms() / 1000, usegmt=True)),
        ("x-ms-version", VERSION),
    ]
    signed = string_to_sign(method, path, query, headers)
    code = Hmac(base64.b64decode(EMULATOR_KEY)).base64(signed.encode()).decode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        target = path + "?" * bool(query) + "&".join(f"{name}={value}" for name, value in query)
        authorization = f"SharedKey {EMULATOR_ACCOUNT}:{code}"
        length = {} if method == "GET" else {"Content-Length": "0"}
        connection.request(
            method, target, headers={**dict(headers), **length, "Authorization": authorization}
        )
        answer = connection.getresponse()
        answer.body = answer.read()  # type: ignore[attr-defined]
        return answer
    finally:
        connection.close()


def create_queue(job: Job) -> None:
    """Create the queue of *job* where it is missing."""
    if job.dialect == "native":
        native.create_queue(job)
    if job.dialect not in {"azure", "mns"}:  # these two share a port
        return
    answer = request(job.port, "PUT", f"/{job.queue}", [])
    if answer.status not in {201, 204, 409}:
        raise LoadFailed(f"creating the queue: {answer.status} {_body(answer)!r}")


def count_messages(job: Job) -> int | None:
    """Return how many messages the queue of *job* holds; None where nobody can say."""
    if job.dialect == "beanstalkd":
        return _count_jobs(job.port)
    if job.dialect == "noop":
        return None
    if job.dialect == "native":
        return native.count_messages(job)
    answer = request(job.port, "GET", f"/{job.queue}", [("comp", "metadata")])
    count = answer.getheader("x-ms-approximate-messages-count")
    if answer.status != 200 or count is None:
        raise LoadFailed(f"counting messages: {answer.status} {_body(answer)!r}")
    return int(count)


def shows_message(port: int, queue: str, *, needed: bool) -> bool:
    """Tell whether a peek is answered, and with a message where one is *needed*."""
    answer = request(
        port, "GET", f"/{queue}/messages", [("numofmessages", "1"), ("peekonly", "true")]
    )
    return answer.status == 200 and (not needed or b"<MessageText" in _body(answer))


def _body(answer: http.client.HTTPResponse) -> bytes:
    body = answer.body  # type: ignore[attr-defined]
    assert isinstance(body, bytes)
    return body


def _count_jobs(port: int) -> int:
    """Ask beanstalkd how many jobs it holds, whatever their state."""
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as link:
        link.sendall(b"stats\r\n")
        text = b""
        while b"current-jobs-buried: " not in text or not text.endswith(b"\r\n"):
            text += link.recv(65_536)
    fields = dict(line.split(": ", 1) for line in text.decode().splitlines() if ": " in line)
    states = ("ready", "reserved", "delayed", "buried")
    return sum(int(fields[f"current-jobs-{state}"]) for state in states)
