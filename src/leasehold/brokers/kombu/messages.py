"""Messages and queues of AMQP as those of Leasehold: pure functions, without kombu."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final

from leasehold.client.models import NEVER, NewMessage, ReceivedMessage
from leasehold.domain.limits import PRIORITIES

ENVELOPE: Final = "kombu"
"""Property of a message that holds all but its body."""
MAX_DELAY_S: Final = 315_360_000
"""Ten years, the longest delay of the native API."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,199}")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9-]+")
_SHOWN_CHARS: Final = 180
_HASH_CHARS: Final = 8
_KEPT: Final = ("content-type", "content-encoding", "headers", "properties")

Raw = MutableMapping[str, Any]
"""A message as kombu's virtual transports hand it on."""


# --- messages ------------------------------------------------------------------------------------


def to_put(
    message: Mapping[str, Any], *, now_ms: int, max_priority: int, time_to_live_s: int | None
) -> NewMessage:
    """Return what is put for a message of kombu's.

    The body stays as it was serialized, so that people can read it; the rest is a property. A time
    before which a task must not run (``eta``, ``countdown``) becomes a delay.

    Args:
        message: As kombu has made it.
        now_ms: Wall clock, Unix milliseconds.
        max_priority: The most urgent priority, 1 or more; AMQP's lowest is 0.
        time_to_live_s: How long messages of the queue live; None: for ever.
    """
    headers, properties = message["headers"], message["properties"]
    delay_s = _delay_s(headers.get("eta"), now_ms)
    expiration = properties.get("expiration")
    if expiration is not None:
        time_to_live_s = ceil(int(expiration) / 1_000)
    task = headers.get("task")
    return NewMessage(
        message["body"],
        delay_s=delay_s,
        # AMQP counts the time in the queue, which begins when the delay is over.
        time_to_live_s=NEVER if time_to_live_s is None else max(1, delay_s + time_to_live_s),
        priority=_priority(properties.get("priority"), max_priority),
        dedup_key=properties.get("MessageDeduplicationId"),
        type=task if isinstance(task, str) else None,
        properties={ENVELOPE: json.dumps({name: message[name] for name in _KEPT})},
        group_id=properties.get("MessageGroupId"),
    )


def from_received(message: ReceivedMessage, tag: str) -> Raw:
    """Return a message for kombu; one that was not put by kombu has a body and nothing else."""
    envelope = message.properties.get(ENVELOPE)
    raw: Raw = json.loads(envelope) if envelope else {"headers": {}, "properties": {}}
    raw["body"] = message.body
    properties = raw["properties"]
    properties["delivery_tag"] = tag
    info = properties.setdefault("delivery_info", {})
    info["redelivered"] = message.dequeue_count > 1
    return raw


def _delay_s(eta: object, now_ms: int) -> int:
    if not isinstance(eta, str):
        return 0
    try:
        moment = datetime.fromisoformat(eta)
    except ValueError:
        return 0  # the worker says what is wrong with it
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    # Rounded up: a worker that gets it early keeps it in its memory until it is time.
    return min(max(0, ceil(aware.timestamp() - now_ms / 1_000)), MAX_DELAY_S)


def _priority(priority: object, max_priority: int) -> int:
    """In AMQP the highest number is the most urgent, here the lowest."""
    first, last = PRIORITIES
    given = priority if isinstance(priority, int) else 0
    urgency = min(max(given, 0), max_priority) / max_priority
    return last - round(urgency * (last - first))


# --- queues --------------------------------------------------------------------------------------


def queue_name(name: str, prefix: str = "") -> str:
    """Return the name on the server: the same if it may be one, else one made of it.

    Dots, @ and the like become dashes, and a hash of the whole name keeps two apart.
    """
    full = prefix + name
    if _NAME.fullmatch(full):
        return full
    shown = _NOT_IN_NAMES.sub("-", full).strip("-")[:_SHOWN_CHARS]
    digest = hashlib.sha256(full.encode()).hexdigest()[:_HASH_CHARS]
    return f"{shown}-{digest}".removeprefix("-")


@dataclass(frozen=True, slots=True)
class Declared:
    """What the metadata of a queue says of it in AMQP's terms."""

    name: str
    """Name in kombu."""
    bindings: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """Exchange and routing key of each."""
    session: str | None = None
    """Id of the session that a queue goes with which is exclusive or deletes itself."""
    message_ttl_s: int | None = None

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> Declared | None:
        """Return what is said; None for a queue that was not declared through kombu."""
        if "kombu_name" not in metadata:
            return None
        ttl = metadata.get("kombu_message_ttl_s")
        return cls(
            json.loads(metadata["kombu_name"]),
            frozenset((exchange, key) for exchange, key in json.loads(metadata["kombu_bindings"])),
            metadata.get("kombu_session"),
            None if ttl is None else int(ttl),
        )

    def write(self, others: Mapping[str, str]) -> dict[str, str]:
        """Return metadata that says this beside what *others* say."""
        metadata = {name: value for name, value in others.items() if name[:6] != "kombu_"}
        metadata["kombu_name"] = json.dumps(self.name)
        metadata["kombu_bindings"] = json.dumps(sorted(self.bindings))
        if self.session is not None:
            metadata["kombu_session"] = self.session
        if self.message_ttl_s is not None:
            metadata["kombu_message_ttl_s"] = str(self.message_ttl_s)
        return metadata


def bound_to(exchange: str, queues: Iterable[Declared]) -> Iterator[tuple[str, Declared]]:
    """Yield routing key and queue of each binding of an exchange."""
    for queue in queues:
        for bound, key in sorted(queue.bindings):
            if bound == exchange:
                yield key, queue
