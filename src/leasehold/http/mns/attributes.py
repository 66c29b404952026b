"""Attributes of a queue, in the protocol's words and in the settings of the queue.

Source: MNS, "CreateQueue" and "GetQueueAttributes", tables of attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from leasehold.domain.commands import QueueInfo
from leasehold.domain.limits import MNS
from leasehold.domain.queue_settings import LapsedReceipts, MnsAttributes, QueueSettings
from leasehold.domain.types import Queue
from leasehold.http.mns.errors import invalid_argument
from leasehold.http.mns.messages import DEFAULTS, WAIT_S
from leasehold.http.mns.parameters import whole_number
from leasehold.http.mns.xml_in import fields_of, text_of
from leasehold.http.xml_tree import Element

VISIBILITY: Final = "VisibilityTimeout"
SIZE: Final = "MaximumMessageSize"
RETENTION: Final = "MessageRetentionPeriod"
DELAY: Final = "DelaySeconds"
WAIT: Final = "PollingWaitSeconds"
LOGGING: Final = "LoggingEnabled"

RANGES: Final[Mapping[str, tuple[int, int]]] = {
    VISIBILITY: MNS.lease_s,
    SIZE: (1_024, MNS.body_bytes),
    RETENTION: MNS.time_to_live_s,
    DELAY: MNS.delay_s,
    WAIT: WAIT_S,
}
"""What can be set, in seconds or bytes."""

_IN_MNS: Final = {DELAY: "delay_s", RETENTION: "time_to_live_s", WAIT: "wait_s"}
_SWITCH: Final = {"true": True, "false": False}
_FIFO: Final = "fifo"


def read_attributes(root: Element) -> dict[str, Any]:
    """Return the attributes that a document sets, by name; what it does not name stays.

    Raises:
        Fault: A value cannot be read, or asks for a queue that keeps an order.
        OutOfRange: A value is outside its range.
    """
    fields = fields_of(root)
    sent: dict[str, Any] = {
        name: whole_number(name, text_of(fields[name]), bounds)
        for name, bounds in RANGES.items()
        if name in fields
    }
    if LOGGING in fields:
        text = text_of(fields[LOGGING]).lower()
        if text not in _SWITCH:
            raise invalid_argument(f"The value of {LOGGING} must be True or False.")
        sent[LOGGING] = _SWITCH[text]
    for name in ("QueueType", "MessageType"):
        if name in fields and text_of(fields[name]).lower() == _FIFO:
            raise invalid_argument("There are no queues here that keep the order of messages.")
    return sent


def new_settings(sent: Mapping[str, Any], rule: LapsedReceipts) -> QueueSettings:
    """Return the settings of a queue that is made with these attributes.

    Raises:
        Fault: Every message would expire before it can be received.
    """
    settings = QueueSettings(lapsed_receipts=rule, mns=DEFAULTS)
    return with_attributes(settings, sent, None)


def with_attributes(
    settings: QueueSettings, sent: Mapping[str, Any], now_ms: int | None
) -> QueueSettings:
    """Return settings with some attributes changed, at *now_ms*.

    Raises:
        Fault: Every message would expire before it can be received.
    """
    changes = {field: sent[name] for name, field in _IN_MNS.items() if name in sent}
    if LOGGING in sent:
        changes["logging_enabled"] = sent[LOGGING]
    attributes = replace(settings.mns or DEFAULTS, **changes, modified_at_ms=now_ms)
    if (DELAY in sent or RETENTION in sent) and attributes.delays_past_expiry():
        raise invalid_argument(
            f"The {DELAY}, {attributes.delay_s}, must be less than the {RETENTION}, "
            f"{attributes.time_to_live_s}: messages would expire before they can be received."
        )
    return replace(
        settings,
        visibility_timeout_s=sent.get(VISIBILITY, settings.visibility_timeout_s),
        max_body_bytes=sent.get(SIZE, settings.max_body_bytes),
        mns=attributes,
    )


def has_attributes(queue: Queue, sent: Mapping[str, Any]) -> bool:
    """Tell whether a queue that is there has all attributes that were sent for it."""
    own = _values(queue.settings)
    return all(own[name] == value for name, value in sent.items())


def _values(settings: QueueSettings) -> dict[str, Any]:
    attributes = settings.mns or DEFAULTS
    return {
        VISIBILITY: settings.lease_s(),
        SIZE: settings.max_body_bytes or MNS.body_bytes,
        RETENTION: attributes.time_to_live_s,
        DELAY: attributes.delay_s,
        WAIT: attributes.wait_s,
        LOGGING: attributes.logging_enabled,
    }


def shown_attributes(info: QueueInfo) -> Iterable[tuple[str, str]]:
    """Return all attributes of a queue, in the order of the service.

    A message that waits for its next try is among the inactive ones, as it was received before.
    """
    queue, counts = info.queue, info.counts
    assert counts is not None
    values = _values(queue.settings)
    attributes: MnsAttributes = queue.settings.mns or DEFAULTS
    modified_ms = attributes.modified_at_ms or queue.created_at_ms
    return (
        ("QueueName", queue.name),
        (DELAY, str(values[DELAY])),
        (SIZE, str(values[SIZE])),
        (RETENTION, str(values[RETENTION])),
        (VISIBILITY, str(values[VISIBILITY])),
        ("CreateTime", str(queue.created_at_ms // 1000)),
        ("LastModifyTime", str(modified_ms // 1000)),
        (WAIT, str(values[WAIT])),
        ("ActiveMessages", str(counts.visible)),
        ("InactiveMessages", str(counts.leased + counts.deferred)),
        ("DelayMessages", str(counts.delayed)),
        (LOGGING, str(values[LOGGING])),
        ("MessageType", "0"),
        ("EnableSSE", "False"),
    )
