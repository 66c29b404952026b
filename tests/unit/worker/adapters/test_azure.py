"""How the official Azure SDK is used: what goes out, and what its errors mean."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
import urllib3
from azure.core.exceptions import (
    AzureError,
    DecodeError,
    HttpResponseError,
    ServiceRequestError,
    ServiceRequestTimeoutError,
    ServiceResponseError,
    ServiceResponseTimeoutError,
)
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.queue import QueueClient
from requests.adapters import BaseAdapter

from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker.adapters.azure import AzureQueue, queue_error
from leasehold.worker.adapters.protocol import (
    BodyTooLarge,
    Delivery,
    Denied,
    Fault,
    Lease,
    LeaseGone,
    NotSupported,
    Outgoing,
    QueueError,
    QueueMissing,
    Release,
    Saved,
    Unauthenticated,
    Unreachable,
)

KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I="
CONNECTION = f"AccountName=coho;AccountKey={KEY};QueueEndpoint=http://queues.example/coho;"
LEASE = Lease("m1", "receipt+/=")
DELIVERY = Delivery(queue="orders", message_id="m1", receipt="receipt+/=", body=b"work")
EMPTY = '<?xml version="1.0" encoding="utf-8"?><QueueMessagesList />'
Answer = tuple[int, dict[str, str], str] | Exception


class Recorder(BaseAdapter):
    """Notes what would go out, and plays answers."""

    def __init__(self, answer: Callable[[Any], Answer] | None = None) -> None:
        super().__init__()
        self.sent: list[requests.PreparedRequest] = []
        self.timeouts: list[Any] = []
        self.is_closed = False
        self._answer = answer or _usual

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:  # type: ignore[override]
        """Note the request, and return the answer to it."""
        self.sent.append(request)
        self.timeouts.append(options["timeout"])
        answer = self._answer(request)
        if isinstance(answer, Exception):
            raise answer
        status, headers, text = answer
        made = requests.Response()
        made.status_code = status
        made.headers.update(headers)
        made.url = str(request.url)
        made.raw = urllib3.HTTPResponse(
            io.BytesIO(text.encode()), headers=headers, status=status, preload_content=False
        )
        return made

    def close(self) -> None:
        """Note that nothing more is to come."""
        self.is_closed = True

    @property
    def queries(self) -> list[dict[str, list[str]]]:
        """The query parameters of all requests."""
        return [parse_qs(urlsplit(str(each.url)).query) for each in self.sent]


def _usual(request: Any) -> Answer:
    headers = {"Content-Type": "application/xml", "x-ms-request-id": "1"}
    if request.method == "GET":
        return 200, headers, EMPTY
    moved = {"x-ms-popreceipt": "next", "x-ms-time-next-visible": "Thu, 01 Jan 2026 00:00:00 GMT"}
    return 204, headers | moved, ""


def refused(status: int, code: str, **headers: str) -> Callable[[Any], Answer]:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>secret text</Message></Error>"
    given = {"Content-Type": "application/xml", "x-ms-error-code": code, **headers}
    return lambda _: (status, given, body)


def made(recorder: Recorder, **options: Any) -> AzureQueue:
    session = requests.Session()
    session.mount("http://", recorder)
    transport = RequestsTransport(session=session, session_owner=False)
    sdk = QueueClient.from_connection_string(CONNECTION, "orders", transport=transport)
    return AzureQueue(sdk, **options)


def caught(queue: AzureQueue, call: Callable[[AzureQueue], object] | None = None) -> QueueError:
    with pytest.raises(QueueError) as found:
        (call or (lambda each: each.receive(1, visibility_timeout_s=30)))(queue)
    return found.value


# --- what goes out -------------------------------------------------------------------------------


def test_a_receive_is_one_request() -> None:
    """Page after page would lease the whole queue to a worker that asked for a few."""
    recorder = Recorder()
    made(recorder).receive(100, visibility_timeout_s=45)
    (query,) = recorder.queries
    assert query["numofmessages"] == ["32"]
    assert query["visibilitytimeout"] == ["45"]
    assert "wait" not in query


def test_a_receive_waits_where_the_server_can() -> None:
    """The wait goes out in whole seconds, and the answer may take so much longer."""
    recorder = Recorder()
    queue = made(recorder, max_wait_s=20, call_timeout_s=9)
    assert queue.capabilities.max_wait_s == 20
    queue.receive(1, visibility_timeout_s=30, wait_s=15.7)
    queue.receive(1, visibility_timeout_s=30, wait_s=600)
    assert [each["wait"] for each in recorder.queries] == [["15"], ["20"]]
    assert [read_s for _, read_s in recorder.timeouts] == [21, 26]


def test_a_renewal_sends_no_text() -> None:
    """Without a body the service keeps the text; the lease is in whole seconds."""
    recorder = Recorder()
    (renewed,) = made(recorder).renew([LEASE], 30, timeout_s=1.5)
    assert not isinstance(renewed, QueueError)
    assert renewed.receipt == "next"
    (request,) = recorder.sent
    assert request.method == "PUT"
    assert not request.body
    assert recorder.queries[0]["visibilitytimeout"] == ["30"]


def test_a_renewal_has_the_time_that_it_is_given() -> None:
    """Connecting and reading together take no longer, and the service is told."""
    recorder = Recorder()
    made(recorder).renew([LEASE], 30, timeout_s=1.5)
    ((connect_s, read_s),) = recorder.timeouts
    assert connect_s + read_s == pytest.approx(1.5)
    assert recorder.queries[0]["timeout"] == ["2"]


def test_a_save_leaves_time_to_renew_its_lease() -> None:
    """A service that does not answer a save is waited for during a part of the lease only."""
    recorder = Recorder()
    made(recorder).save(DELIVERY, LEASE.receipt, Saved(state=1), 30)
    ((connect_s, read_s),) = recorder.timeouts
    assert connect_s + read_s == pytest.approx(10)


def test_what_settles_has_the_time_that_it_is_given() -> None:
    """So that a worker can send it once more; never longer than the adapter allows."""
    recorder = Recorder()
    queue = made(recorder, call_timeout_s=9)
    queue.complete([LEASE], timeout_s=3)
    queue.release([Release(lease=LEASE, outcome="returned")], timeout_s=3)
    queue.complete([LEASE], timeout_s=20)
    with contextlib.suppress(Unreachable):  # at the second of its requests
        queue.bury(DELIVERY, LEASE.receipt, Fault(text="no"), timeout_s=3)
    assert [round(sum(each), 6) for each in recorder.timeouts] == [3, 3, 9, 3, 3]


def test_other_calls_have_the_time_of_the_adapter() -> None:
    """The limit that the adapter was given holds for all of them."""
    recorder = Recorder()
    made(recorder, call_timeout_s=6).complete([LEASE])
    assert recorder.timeouts == [(2, 4)]


CALLS: dict[str, Callable[[AzureQueue], object]] = {
    "receive": lambda queue: queue.receive(1, visibility_timeout_s=30),
    "renew": lambda queue: queue.renew([LEASE], 30),
    "complete": lambda queue: queue.complete([LEASE]),
    "save": lambda queue: queue.save(DELIVERY, "r", Saved(stage="two"), 30),
    "put": lambda queue: queue.put([Outgoing(body="work")]),
    "bury": lambda queue: queue.bury(DELIVERY, "r", Fault(text="bad")),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_sent_twice(name: str) -> None:
    """The SDK would wait and try again, three times by default, longer than any lease."""
    recorder = Recorder(refused(503, "ServerBusy"))
    failure = caught(made(recorder), CALLS[name])
    assert isinstance(failure, Unreachable)
    assert len(recorder.sent) == 1


def test_a_burial_makes_sure_of_the_lease_first() -> None:
    """Lease, copy, deletion, in this order, the last with the newest receipt."""
    recorder = Recorder(
        lambda request: (
            (201, {"Content-Type": "application/xml"}, _sent())
            if request.method == "POST"
            else _usual(request)
        )
    )
    made(recorder).bury(DELIVERY, "old", Fault(text="bad"))
    assert [each.method for each in recorder.sent] == ["PUT", "POST", "DELETE"]
    assert [urlsplit(str(each.url)).path for each in recorder.sent] == [
        "/coho/orders/messages/m1",
        "/coho/orders-poison/messages",
        "/coho/orders/messages/m1",
    ]
    receipts = [each.get("popreceipt") for each in recorder.queries]
    assert receipts == [["old"], None, ["next"]]
    assert recorder.queries[1]["messagettl"] == ["-1"]


def _sent() -> str:
    day = "Thu, 01 Jan 2026 00:00:00 GMT"
    return (
        "<QueueMessagesList><QueueMessage><MessageId>m2</MessageId>"
        f"<InsertionTime>{day}</InsertionTime><ExpirationTime>{day}</ExpirationTime>"
        f"<PopReceipt>p</PopReceipt><TimeNextVisible>{day}</TimeNextVisible>"
        "</QueueMessage></QueueMessagesList>"
    )


def test_the_users_client_stays_open() -> None:
    """Only a client of its own is closed with the adapter."""
    recorder = Recorder()
    queue = made(recorder)
    queue.close()
    queue.receive(1, visibility_timeout_s=30)
    assert len(recorder.sent) == 1
    assert not recorder.is_closed


def test_a_wait_that_no_server_has_is_refused() -> None:
    """More than a minute cannot be configured."""
    with pytest.raises(ValueError, match="max_wait_s"):
        made(Recorder(), max_wait_s=61)


def test_there_are_no_sessions() -> None:
    """A session of another service is refused, and not ignored."""
    session = MemoryQueue().open_session("worker", 15)
    with pytest.raises(NotSupported):
        made(Recorder()).receive(1, visibility_timeout_s=30, session=session)


# --- what errors mean ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "meaning"),
    [
        (404, "MessageNotFound", LeaseGone),
        (400, "PopReceiptMismatch", LeaseGone),
        (404, "QueueNotFound", QueueMissing),
        (409, "QueueBeingDeleted", QueueMissing),
        (409, "QueueDisabled", QueueMissing),
        (413, "RequestBodyTooLarge", BodyTooLarge),
        (400, "MessageTooLarge", BodyTooLarge),
        (413, "Whatever", BodyTooLarge),
        (401, "NoAuthenticationInformation", Unauthenticated),
        (403, "AuthenticationFailed", Unauthenticated),
        (403, "AuthorizationPermissionMismatch", Denied),
        (400, "OutOfRangeQueryParameterValue", Denied),
        (409, "InsufficientAccountPermissions", Denied),
        (408, "Whatever", Unreachable),
        (429, "Whatever", Unreachable),
        (500, "InternalError", Unreachable),
        (500, "OperationTimedOut", Unreachable),
        (503, "ServerBusy", Unreachable),
        (504, "Whatever", Unreachable),
    ],
)
def test_every_refusal_has_a_meaning(status: int, code: str, meaning: type[QueueError]) -> None:
    """The code decides, then the status; the text of the service is not passed on."""
    failure = caught(made(Recorder(refused(status, code))))
    assert type(failure) is meaning
    assert "secret text" not in f"{failure} {failure.__cause__}"


@pytest.mark.parametrize(
    ("status", "code", "unknown"),
    [
        (408, "Whatever", False),
        (429, "Whatever", False),
        (503, "ServerBusy", False),
        (503, "Whatever", True),
        (500, "InternalError", True),
    ],
)
def test_whether_it_was_carried_out(status: int, code: str, unknown: bool) -> None:
    """A service that is busy did nothing; one that failed may have done it."""
    failure = caught(made(Recorder(refused(status, code))))
    assert isinstance(failure, Unreachable)
    assert failure.outcome_unknown is unknown


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("soon", None), ("", None)])
def test_how_long_the_service_asks_to_be_left_alone(header: str, seconds: float | None) -> None:
    """A number of seconds is passed on, anything else is not."""
    given = {"Retry-After": header} if header else {}
    failure = caught(made(Recorder(refused(503, "ServerBusy", **given))))
    assert isinstance(failure, Unreachable)
    assert failure.retry_after_s == seconds


def _chained(cause: Exception) -> ServiceRequestError:
    return ServiceRequestError(cause, error=cause)


@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (ServiceRequestTimeoutError("connecting"), False),
        (_chained(urllib3.exceptions.NewConnectionError(None, "refused")), False),  # type: ignore[arg-type]
        (
            _chained(
                requests.ConnectionError(
                    urllib3.exceptions.MaxRetryError(
                        None,  # type: ignore[arg-type]
                        "/?popreceipt=secret",
                        urllib3.exceptions.NewConnectionError(None, "refused"),  # type: ignore[arg-type]
                    )
                )
            ),
            False,
        ),
        (_chained(requests.ConnectionError("connection reset")), True),
        (ServiceResponseError("broken"), True),
        (ServiceResponseTimeoutError("reading"), True),
        (AzureError("whatever"), True),
    ],
)
def test_whether_it_left(error: AzureError, unknown: bool) -> None:
    """Only where no connection was made it is certain that nothing was done."""
    failure = queue_error(error)
    assert isinstance(failure, Unreachable)
    assert failure.outcome_unknown is unknown
    assert "secret" not in str(failure)


@pytest.mark.parametrize("text", ["<not xml", "plain text"])
def test_an_answer_that_cannot_be_read(text: str) -> None:
    """A proxy's page in place of an answer does not say what was done."""
    recorder = Recorder(lambda _: (200, {"Content-Type": "application/xml"}, text))
    failure = caught(made(recorder))
    assert isinstance(failure, Unreachable)
    assert failure.outcome_unknown


def test_an_error_without_an_answer() -> None:
    """An error of the SDK that has no response is one without an outcome."""
    for error in (HttpResponseError("odd"), DecodeError("odd")):
        failure = queue_error(error)
        assert isinstance(failure, Unreachable)
        assert failure.outcome_unknown


def test_a_queue_that_goes_is_not_taken_for_one_that_is_there() -> None:
    """Only that it exists is no error of a creation."""
    made(Recorder(refused(409, "QueueAlreadyExists"))).create()
    failure = caught(made(Recorder(refused(409, "QueueBeingDeleted"))), lambda each: each.create())
    assert isinstance(failure, QueueMissing)
