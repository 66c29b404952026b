"""Documents that are read: what is taken, and what is not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from xml.sax.saxutils import escape

import pytest

from leasehold.domain.commands import SetQueueSettings
from leasehold.domain.queue_settings import (
    LapsedReceipts,
    MnsAttributes,
    QueueSettings,
    TypeTimeout,
)
from tests.unit.http.mns.forward_reader import read_forward
from tests.unit.http.mns.support import (
    ACCOUNT,
    MESSAGES,
    SPACE,
    Whole,
    error_of,
    header,
    message_xml,
    root_of,
    run,
    texts,
)

PROPERTY = "<PropertyValue><Name>{}</Name><Value>{}</Value><Type>{}</Type></PropertyValue>"


def properties(*entries: str) -> dict[str, object]:
    """Return the element of user properties."""
    return {"UserProperties": "".join(entries)}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"<Message>",
        b"<!DOCTYPE Message [<!ENTITY a 'b'>]>" + message_xml("&a;"),
        message_xml("&undefined;"),
        message_xml("\x01"),
        message_xml().decode().encode("utf-16"),
        message_xml("<a>" * 100 + "</a>" * 100),
        b"\xff",
    ],
)
def test_no_document(mns: Whole, body: bytes) -> None:
    """Whatever is no XML that is taken from strangers has the code for that."""
    assert error_of(mns.ask("POST", MESSAGES, body)) == (400, "MalformedXML")


@pytest.mark.parametrize(
    "body",
    [
        b"<Messages/>",
        b"<Queue/>",
        b"<Message/>",
        b"<Message><MessageBody/></Message>",
        b"<Message><MessageBody><a/></MessageBody></Message>",
        b"<Message><MessageBody>x<a/></MessageBody></Message>",
        b"<Message><MessageBody>a</MessageBody><MessageBody>b</MessageBody></Message>",
        b"<Messages><Message/><Other/></Messages>",
        message_xml(Priority=17),
        message_xml(Priority=-1),
        message_xml(Priority=""),
        message_xml(Priority="8.0"),
        message_xml(DelaySeconds=-1),
        message_xml(DelaySeconds="\u0665"),
        message_xml("x" * 65_537),
        message_xml(UserProperties="<Other/>"),
        message_xml(**properties(PROPERTY.format("a", "x", "DATE"))),
        message_xml(**properties(PROPERTY.format("a", "one", "NUMBER"))),
        message_xml(**properties(PROPERTY.format("leasehold-visibility-timeout", "0", "NUMBER"))),
        message_xml(**properties(PROPERTY.format("leasehold-visibility-timeout", "1.5", "NUMBER"))),
        message_xml(**properties(PROPERTY.format("leasehold-type", "t" * 1025, "STRING"))),
        message_xml(**properties(PROPERTY.format("a", "nan", "NUMBER"))),
        message_xml(**properties(PROPERTY.format("a", "1", "BOOLEAN"))),
        message_xml(**properties(PROPERTY.format("a", "*", "BINARY"))),
        message_xml(**properties(PROPERTY.format("", "x", "STRING"))),
        message_xml(**properties("<PropertyValue><Name>a</Name></PropertyValue>")),
        message_xml(**properties(*[PROPERTY.format("a", "x", "STRING")] * 2)),
        message_xml(**properties(PROPERTY.format("a", "x" * 8_192, "STRING"))),
        message_xml(
            SystemProperties=PROPERTY.replace("PropertyValue", "SystemPropertyValue").format(
                "unknown", "x", "STRING"
            )
        ),
    ],
)
def test_documents_with_values_that_are_wrong(mns: Whole, body: bytes) -> None:
    """They are well-formed, and nothing is sent."""
    assert error_of(mns.ask("POST", MESSAGES, body)) == (400, "InvalidArgument")
    assert error_of(mns.ask("GET", MESSAGES))[1] == "MessageNotExist"


@pytest.mark.parametrize(
    ("sent", "priority"),
    [("", "8"), ("<Priority>0</Priority>", "8"), ("<Priority>3</Priority>", "3")],
)
def test_a_priority_that_is_not_set(mns: Whole, sent: str, priority: str) -> None:
    """The Go SDK says 0 for it."""
    body = f"<Message><MessageBody>x</MessageBody>{sent}</Message>".encode()
    assert mns.ask("POST", MESSAGES, body).status == 201
    assert mns.receive()["Priority"] == priority


def test_values_of_every_type(mns: Whole) -> None:
    """Those of user properties come back as they were sent."""
    sent = {"STRING": "one", "NUMBER": "-1.5", "BOOLEAN": "True", "BINARY": "AAE="}
    entries = [PROPERTY.format(kind, value, kind) for kind, value in sent.items()]
    sent_all = mns.ask("POST", MESSAGES, message_xml(**properties(*entries)))
    assert sent_all.status == 201
    [shown] = root_of(mns.ask("GET", MESSAGES)).iter(f"{SPACE}UserProperties")
    found = [texts(each) for each in shown]
    assert {each["Type"]: each["Value"] for each in found} == sent


def test_when_a_message_was_first_received(mns: Whole) -> None:
    """Before that it is when it was sent, and a second delivery does not change it."""

    def first_s(query: str) -> float:
        return (int(mns.receive(query)["FirstDequeueTime"]) - sent_ms) / 1_000

    sent_ms = mns.clock.now_ms()
    mns.send()
    mns.clock.advance(s=3)
    assert first_s("?peekonly=true") == 0
    assert first_s("") == 3
    mns.clock.advance(s=60)
    assert first_s("") == 3


@pytest.mark.parametrize("text", ["a&b<c>\"'", "a\rb", " \n x \t", "\U0001f600", "]]>", "é"])
def test_any_text_comes_back(mns: Whole, text: str) -> None:
    """White space and carriage returns too, if the client has escaped these."""
    sent = escape(text, {"\r": "&#13;"})
    assert mns.send(sent).status == 201
    assert mns.receive()["MessageBody"] == text


def test_a_parameter_may_have_any_case(mns: Whole) -> None:
    """And a plus in it is a plus."""
    mns.send()
    handle = mns.receive()["ReceiptHandle"]
    for names in ("receiptHandle={}&visibilityTimeout=9", "RECEIPTHANDLE={}&VISIBILITYTIMEOUT=9"):
        response = mns.ask("PUT", f"{MESSAGES}?{names.format(handle)}")
        assert response.status == 200
        handle = texts(root_of(response))["ReceiptHandle"]
    encoded = handle.replace("-", "%2D")
    assert mns.ask("DELETE", f"{MESSAGES}?ReceiptHandle={encoded}").status == 204
    assert error_of(mns.ask("DELETE", f"{MESSAGES}?ReceiptHandle=a+b"))[1] == "ReceiptHandleError"


def test_handles_need_no_escaping(mns: Whole) -> None:
    """They are made of letters, digits, dash and underscore only."""
    for _ in range(20):
        mns.send()
        handle = mns.receive()["ReceiptHandle"]
        assert handle.replace("-", "").replace("_", "").isalnum()
        assert handle.isascii()


@pytest.mark.parametrize(
    "body",
    [
        b"<Queues/>",
        b"<Queue><VisibilityTimeout>0</VisibilityTimeout></Queue>",
        b"<Queue><LoggingEnabled>yes</LoggingEnabled></Queue>",
        b"<Queue><QueueType>FIFO</QueueType></Queue>",
        b"<Queue><DelaySeconds/></Queue>",
    ],
)
def test_attributes_that_are_wrong(mns: Whole, body: bytes) -> None:
    """Neither is a queue made with them, nor changed."""
    assert error_of(mns.ask("PUT", "/queues/r", body)) == (400, "InvalidArgument")
    assert error_of(mns.ask("PUT", "/queues/q?metaoverride=true", body))[1] == "InvalidArgument"
    assert error_of(mns.ask("GET", "/queues/r"))[1] == "QueueNotExist"


@pytest.mark.parametrize("text", ["True", "true", "TRUE"])
def test_a_switch_may_have_any_case(mns: Whole, text: str) -> None:
    """What is shown has a capital."""
    body = f"<Queue><LoggingEnabled>{text}</LoggingEnabled><New>1</New></Queue>".encode()
    assert mns.ask("PUT", "/queues/q?metaoverride=true", body).status == 204
    assert texts(root_of(mns.ask("GET", "/queues/q")))["LoggingEnabled"] == "True"


def test_a_slash_at_the_end_does_not_matter(mns: Whole) -> None:
    """One of them."""
    assert mns.ask("GET", "/queues/q/").status == 200
    assert mns.ask("GET", "/queues/").status == 200


def test_a_queue_that_somebody_else_makes_meanwhile(mns: Whole) -> None:
    """What was not there when the request came may be there when it is carried out."""
    hidden = mns.store.find_queue
    calls = iter([None])
    mns.dialect._find_queue = lambda account, name: next(calls, hidden(account, name))
    response = mns.ask("PUT", "/queues/q")
    assert (response.status, header(response, "Location")) == (
        204,
        "http://127.0.0.1:10011/queues/q",
    )


@pytest.mark.parametrize("rule", list(LapsedReceipts))
def test_the_rule_of_new_queues(rule: LapsedReceipts) -> None:
    """It is what the server was told."""
    mns = Whole(receipts=rule)
    found = mns.store.find_queue("orders", "q")
    assert found is not None
    assert found.settings.lapsed_receipts is rule


@pytest.mark.parametrize("limit", ["0", "1001", "x"])
def test_how_many_queues_are_listed(mns: Whole, limit: str) -> None:
    """1 to 1,000."""
    response = mns.ask("GET", "/queues", headers={"x-mns-ret-number": limit})
    assert error_of(response) == (400, "InvalidArgument")


def test_how_long_a_body_may_be(mns: Whole) -> None:
    """Longer for a queue that takes larger ones, if it is asked for by somebody who may."""

    def longest(headers: dict[str, str | None] | None = None) -> int:
        call = mns.dialect.begin(mns.request("POST", MESSAGES, headers=headers or {}))
        run(mns.dialect.enter(call))
        return mns.dialect.longest_body(call)

    assert longest() == 458_752
    found = mns.store.find_queue("orders", "q")
    assert found is not None
    settings = replace(found.settings, max_body_bytes=1_000_000)
    run(mns.perform(SetQueueSettings("orders", "q", settings)))
    assert longest() > 2_000_000
    assert longest({"authorization": None}) == 458_752
    request = mns.request("POST", MESSAGES, message_xml("x" * 900_000))
    assert asyncio.run(mns.dialect.handle(request)).status == 201


@pytest.mark.parametrize("query", ["?peekonly=true", ""])
def test_nothing_comes_behind_the_user_properties(mns: Whole, query: str) -> None:
    """Who reads forward only, and takes them for the last, finds everything else all the same."""
    system = PROPERTY.replace("PropertyValue", "SystemPropertyValue")
    mns.send(
        UserProperties=PROPERTY.format("colour", "red", "STRING"),
        SystemProperties=system.format("traceparent", "00-1-2-01", "STRING")
        + system.format("baggage", "a=b", "STRING"),
        MessageGroupId="group",
    )
    found = read_forward(mns.ask("GET", MESSAGES + query).body)
    assert found["UserProperties"] == {"colour": "red"}
    assert found["SystemProperties"] == {"traceparent": "00-1-2-01", "baggage": "a=b"}
    assert found["MessageGroupId"] == "group"


def attributes_xml(**attributes: object) -> bytes:
    """Write the attributes of a queue."""
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in attributes.items())
    return f"<Queue>{inner}</Queue>".encode()


@pytest.mark.parametrize("delay_s", [60, 61, 604_800])
def test_a_delay_to_the_end_of_the_retention(mns: Whole, delay_s: int) -> None:
    """A queue on which every message would expire unseen is not made, and none becomes one."""
    together = attributes_xml(DelaySeconds=delay_s, MessageRetentionPeriod=60)
    assert error_of(mns.ask("PUT", "/queues/r", together)) == (400, "InvalidArgument")
    assert error_of(mns.ask("GET", "/queues/r"))[1] == "QueueNotExist"
    change = "/queues/q?metaoverride=true"
    assert error_of(mns.ask("PUT", change, together)) == (400, "InvalidArgument")
    longest = attributes_xml(MessageRetentionPeriod=604_801, DelaySeconds=delay_s)
    assert mns.ask("PUT", change, longest).status == 204
    shorter = attributes_xml(MessageRetentionPeriod=60)
    assert error_of(mns.ask("PUT", change, shorter)) == (400, "InvalidArgument")
    assert mns.send().status == 201


def test_the_longest_delay_that_a_queue_can_have(mns: Whole) -> None:
    """A second before the end of the retention its messages can be received."""
    body = attributes_xml(DelaySeconds=59, MessageRetentionPeriod=60)
    assert mns.ask("PUT", "/queues/q?metaoverride=true", body).status == 204
    assert mns.send().status == 201
    mns.clock.advance(s=59)
    assert mns.receive()["MessageBody"] == "x"


def test_other_attributes_of_a_queue_whose_delay_is_too_long(mns: Whole) -> None:
    """Such a queue, made before this was refused, can be changed in other ways, and mended."""
    settings = QueueSettings(mns=MnsAttributes(delay_s=60, time_to_live_s=60))
    run(mns.perform(SetQueueSettings(ACCOUNT, "q", settings)))
    change = "/queues/q?metaoverride=true"
    assert mns.ask("PUT", change, attributes_xml(VisibilityTimeout=5)).status == 204
    assert error_of(mns.send()) == (400, "InvalidArgument")
    assert mns.ask("PUT", change, attributes_xml(DelaySeconds=0)).status == 204
    assert mns.send().status == 201


@pytest.mark.parametrize(("own_s", "waits_s"), [(None, 10), (0, 10), (1, 1)])
def test_the_delay_of_the_queue(mns: Whole, own_s: int | None, waits_s: int) -> None:
    """It holds for messages that have none of their own, and 0 is none."""
    change = attributes_xml(DelaySeconds=10)
    assert mns.ask("PUT", "/queues/q?metaoverride=true", change).status == 204
    own = "" if own_s is None else f"<DelaySeconds>{own_s}</DelaySeconds>"
    body = f"<Message><MessageBody>x</MessageBody>{own}</Message>"
    assert mns.ask("POST", MESSAGES, body.encode()).status == 201
    mns.clock.advance(ms=waits_s * 1000 - 1)
    assert error_of(mns.ask("GET", MESSAGES))[1] == "MessageNotExist"
    mns.clock.advance(ms=1)
    assert mns.receive()["MessageBody"] == "x"


def test_each_message_has_its_own_timeout(mns: Whole) -> None:
    """A property has its type, for which the queue has a rule, or the timeout of the message alone.

    The queue's limit for these holds here too.
    """
    rules = {"encode*": TypeTimeout(visibility_timeout_s=600)}
    settings = QueueSettings(timeouts_by_type=rules, max_message_timeout_s=100)
    run(mns.perform(SetQueueSettings(ACCOUNT, "q", settings)))
    kind = PROPERTY.format("leasehold-type", "encode.x", "STRING")
    own = PROPERTY.format("leasehold-visibility-timeout", "{}", "NUMBER")
    for entries in ((kind,), (kind, own.format(90)), ()):
        assert mns.send("x", **properties(*entries)).status == 201
    for seconds in (600, 90, 30):
        found = mns.receive()
        assert int(found["NextVisibleTime"]) == mns.clock.now_ms() + seconds * 1000
    refused = mns.send("x", **properties(own.format(101)))
    assert error_of(refused)[0] == 400
