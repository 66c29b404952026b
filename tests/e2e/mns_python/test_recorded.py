"""Answers byte for byte: what the service is known to send, with our ids and times in it."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from leasehold.auth.mns import MnsRequest, sign_v2, string_to_sign_v2
from leasehold.auth.sharedkey import format_http_date
from leasehold.clock import SystemClock
from leasehold.testing import InProcessServer
from tests.contract.queues.mns_player import ANSWERS
from tests.e2e.mns_python.conftest import KEY_ID, SECRET

_OPEN: Final = re.compile(r"\\\$([a-z0-9_]+)")
_MESSAGES: Final = "/messages"


class Wire:
    """Signs requests and shows answers as they come."""

    def __init__(self, server: InProcessServer) -> None:
        self.host = server.mns_url.removeprefix("http://")
        self.connection = http.client.HTTPConnection(self.host, timeout=30)

    def ask(
        self, method: str, target: str, body: str = "", **more: str
    ) -> tuple[http.client.HTTPResponse, str]:
        """Send a request and return the answer and its text."""
        headers = {
            "date": format_http_date(SystemClock().now_ms()),
            "x-mns-version": "2015-06-06",
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        path, _, query = target.partition("?")
        text = string_to_sign_v2(MnsRequest(method, path, query, headers))
        signature = sign_v2(SECRET.encode(), text).decode()
        headers["authorization"] = f"MNS {KEY_ID}:{signature}"
        self.connection.request(method, target, body or None, headers)
        answer = self.connection.getresponse()
        return answer, answer.read().decode()


@pytest.fixture
def wire(server: InProcessServer) -> Iterator[Wire]:
    """A connection of its own."""
    made = Wire(server)
    yield made
    made.connection.close()


@pytest.fixture
def at(queue: Any) -> str:
    """The path of a queue."""
    return f"/queues/{queue.queue_name}"


def played(text: str, answer: str, **inner: str) -> dict[str, str]:
    """Compare with a recorded answer and return what stands in its open places."""
    template = ANSWERS[answer].template
    for name, value in inner.items():
        template = template.replace(f"${name}", value)
    pattern = _OPEN.sub(r"(?P<\1>[^<]*)", re.escape(template.rstrip("\n")))
    found = re.fullmatch(pattern, text.rstrip("\n"))
    assert found is not None, text
    return found.groupdict()


def one_message(properties: str = "") -> str:
    """Return the entry of a message as recorded."""
    return ANSWERS["received_message"].template.replace("$properties", properties).rstrip("\n")


MESSAGE: Final = "<Message><MessageBody>work</MessageBody></Message>"


def test_every_answer_has_the_headers_of_the_service(wire: Wire, at: str) -> None:
    """Spelled as clients look them up, on success, on failure and without a body."""
    for method, target, status in (
        ("GET", at, 200),
        ("GET", f"{at}/messages", 404),
        ("PUT", f"{at}?metaoverride=true", 204),
    ):
        answer, text = wire.ask(method, target)
        assert answer.status == status
        headers = dict(answer.getheaders())
        assert headers["x-mns-version"] == "2015-06-06"
        assert re.fullmatch("[0-9A-F]{24}", headers["x-mns-request-id"])
        if status != 204:
            assert headers["Content-Type"] == "text/xml;charset=utf-8"
            assert text.startswith('<?xml version="1.0" ?>\n<')
        else:
            assert text == ""


def test_an_error(wire: Wire, at: str) -> None:
    """All four elements, and the id of the request is that of the header."""
    answer, text = wire.ask("GET", f"{at}/messages")
    found = played(text, "error")
    assert (found["code"], found["text"]) == ("MessageNotExist", "Message not exist.")
    assert found["request"] == answer.getheader("x-mns-request-id")
    assert found["host"] == f"http://{wire.host}"


def test_attributes(wire: Wire, at: str, server: InProcessServer) -> None:
    """All fourteen, in order."""
    wire.ask("POST", f"{at}/messages", MESSAGE)
    answer, text = wire.ask("GET", at)
    seconds = str(server.now_ms() // 1000)
    text = text.replace(f"Time>{seconds}<", "Time>1767225600<")
    found = played(text, "attributes")
    assert answer.status == 200
    assert (found["lease_s"], found["visible"], found["leased"]) == ("30", "1", "0")


def test_a_queue_that_is_made(wire: Wire) -> None:
    """201 and 204, both with the address."""
    for status in (201, 204):
        answer, text = wire.ask("PUT", "/queues/recorded", "<Queue/>")
        assert (answer.status, text) == (status, "")
        assert dict(answer.getheaders())["Location"] == f"http://{wire.host}/queues/recorded"


def test_a_message_from_send_to_delete(wire: Wire, at: str) -> None:
    """Sent, received and changed as recorded; the delete has no body."""
    answer, text = wire.ask("POST", f"{at}/messages", MESSAGE)
    sent = played(text, "sent")
    assert answer.status == 201
    assert sent["md5"] == "67E92C8765A9BC7FB2D335C459DE9EB5"
    answer, text = wire.ask("GET", f"{at}/messages?waitseconds=0")
    assert answer.status == 200
    whole = (
        text.replace("\n  <", "\n    <")
        .replace('<Message xmlns="http://mns.aliyuncs.com/doc/v1">', "  <Message>")
        .replace("</Message>", "  </Message>")
        .partition("\n")[2]
    )
    ANSWERS["one"] = type(ANSWERS["sent"])(one_message())
    got = played(whole, "one")
    assert got["id"] == sent["id"]
    answer, text = wire.ask(
        "PUT", f"{at}/messages?receiptHandle={got['handle']}&visibilityTimeout=60"
    )
    changed = played(text, "visibility")
    assert answer.status == 200
    answer, text = wire.ask("DELETE", f"{at}/messages?ReceiptHandle={changed['handle']}")
    assert (answer.status, text) == (204, "")


def test_a_batch_that_is_received(wire: Wire, at: str) -> None:
    """Also one of a single message has the root of a batch."""
    wire.ask("POST", f"{at}/messages", MESSAGE)
    _, text = wire.ask("GET", f"{at}/messages?numOfMessages=1")
    played(text, "received", messages=one_message() + "\n")


def test_a_batch_that_is_deleted_in_part(wire: Wire, at: str) -> None:
    """Each failure with its handle, and nothing else."""
    body = "<ReceiptHandles><ReceiptHandle>a</ReceiptHandle></ReceiptHandles>"
    answer, text = wire.ask("DELETE", f"{at}/messages", body)
    assert answer.status == 400
    found = played(text, "errors", errors=ANSWERS["errors_entry"].template)
    assert (found["code"], found["handle"]) == ("ReceiptHandleError", "a")


def test_a_list_of_queues(wire: Wire, at: str) -> None:
    """Addresses; with attributes, these as well."""
    name = at.rpartition("/")[2]
    _, text = wire.ask("GET", "/queues", x_mns_prefix=name)
    url = f"    <QueueURL>http://{wire.host}{at}</QueueURL>\n"
    head = '<?xml version="1.0" ?>\n<Queues xmlns="http://mns.aliyuncs.com/doc/v1">\n'
    assert text == f"{head}  <Queue>\n{url}  </Queue>\n</Queues>\n"
    _, text = wire.ask("GET", "/queues", x_mns_prefix=name, x_mns_with_meta="true")
    assert text.startswith(f"{head}  <Queue>\n{url}    <QueueName>{name}</QueueName>\n")
    assert "<ActiveMessages>0</ActiveMessages>" in text


@pytest.mark.parametrize(
    "body",
    [
        MESSAGE,
        f'<?xml version="1.0" encoding="UTF-8"?>\n{MESSAGE}',
        MESSAGE.replace("<Message>", '<Message xmlns="http://mns.aliyuncs.com/doc/v1">'),
        MESSAGE.replace("<Message>", '<Message xmlns="http://mns.aliyuncs.com/doc/v1/">'),
        '<m:Message xmlns:m="a"><m:MessageBody>work</m:MessageBody></m:Message>',
        "<Message><MessageBody><![CDATA[wo]]>rk</MessageBody><New>1</New></Message>",
        "<Message>\n <MessageBody>work</MessageBody>\n <Priority> 8 </Priority>\n</Message>",
    ],
)
def test_documents_of_all_clients(wire: Wire, at: str, body: str) -> None:
    """With either namespace or none, with a prologue or without."""
    answer, _ = wire.ask("POST", f"{at}/messages", body)
    assert answer.status == 201
    _, text = wire.ask("GET", f"{at}/messages")
    assert "<MessageBody>work</MessageBody>" in text
