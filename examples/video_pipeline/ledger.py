"""What has happened to each message so far, put together from the journals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from examples.video_pipeline.journal import Event

_ENDS: Final = {
    "stage-done": "done",
    "failed": "failed",
    "killed": "killed",
    "abandoned": "lease lost",
    "poisoned": "failed",
}
"""Events that end a try at a stage, and what is said of the try then."""
_EXTRAORDINARY: Final = {
    "failed": "{worker}: {reason}",
    "killed": "{worker} killed at {percent} % of the {stage}",
    "suspended": "{worker} suspended at {percent} % of the {stage}",
    "abandoned": "{worker} stepped back: {reason}",
    "changed": "changed while it was hidden",
    "cancelled": "taken back while it was hidden",
}


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One try of one worker at one stage."""

    stage: str
    worker: str
    began_s: float
    outcome: str = "under way"
    """``done``, ``failed``, ``killed`` or ``lease lost`` once it is over."""
    ended_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Delivery:
    """One time the message was received."""

    worker: str
    at_s: float
    state: str
    """The stage that the message said came next."""
    dequeue_count: int
    fence: int


@dataclass(slots=True, kw_only=True)
class Record:
    """Everything about one message."""

    video: str
    sent_s: float
    """When the request was made, so that a delay is not measured too short."""
    delay_s: int
    message_id: str = ""
    deliveries: list[Delivery] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    """Outputs in the order of their publication; twice the same would be a fault."""
    renewals: int = 0
    events: list[str] = field(default_factory=list)
    """What was out of the ordinary, one sentence each."""
    percent: int = 0
    """How much of the stage under way is done."""
    result: str = ""
    """``completed``, ``poisoned`` or ``cancelled`` once the message is settled."""
    reason: str = ""
    ended_s: float | None = None

    @property
    def workers(self) -> list[str]:
        """Everybody who held the message, in order, each once."""
        return list(dict.fromkeys(each.worker for each in self.deliveries))

    @property
    def seconds(self) -> float:
        """From the first delivery to the end; 0 while either is missing."""
        if self.ended_s is None or not self.deliveries:
            return 0.0
        return self.ended_s - self.deliveries[0].at_s

    def tries(self, stage: str) -> list[Attempt]:
        """Return the tries at one stage, in order."""
        return [each for each in self.attempts if each.stage == stage]

    def running(self, worker: str) -> Attempt | None:
        """Return what *worker* is doing with the message, if anything."""
        mine = (each for each in self.attempts if each.worker == worker and each.ended_s is None)
        return next(mine, None)


class Ledger:
    """Takes events and keeps one record per video, in the order of sending."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}

    @property
    def settled(self) -> bool:
        """Whether every message has come to its end."""
        return all(record.result for record in self.records.values())

    def apply(self, event: Event) -> None:
        """Take note of one event; those that tell nothing about a message change nothing."""
        if event["event"] == "sent":
            self.records[event["video"]] = Record(
                video=event["video"], sent_s=event["at_s"], delay_s=event["delay_s"]
            )
        elif event.get("video") in self.records:
            _apply(self.records[event["video"]], event)


def _apply(record: Record, event: Event) -> None:
    who, at_s, kind = event["who"], event["at_s"], event["event"]
    # The story, not the worker itself, tells of accidents.
    worker = str(event.get("worker", who))
    if kind in _ENDS and (attempt := record.running(worker)) is not None:
        attempt.outcome, attempt.ended_s = _ENDS[kind], at_s
    if kind in _EXTRAORDINARY:
        record.events.append(_EXTRAORDINARY[kind].format(**{"worker": worker, **event}))
    match kind:
        case "queued":
            record.message_id = event["message_id"]
        case "received":
            _received(record, event)
        case "stage-began":
            record.percent = 0
            record.attempts.append(Attempt(stage=event["stage"], worker=who, began_s=at_s))
        case "progress":
            record.percent = event["percent"]
        case "renewed":
            record.renewals += 1
        case "published":
            record.published.append(event["output"])
        case "completed" | "poisoned" | "cancelled":
            record.result, record.reason, record.ended_s = kind, event.get("reason", ""), at_s


def _received(record: Record, event: Event) -> None:
    delivery = Delivery(
        worker=event["who"],
        at_s=event["at_s"],
        state=event["state"],
        dequeue_count=event["dequeue_count"],
        fence=event["fence"],
    )
    if any(each.outcome in {"killed", "under way"} for each in record.attempts):
        record.events.append(f"{delivery.worker} resumed at {delivery.state}")
    record.deliveries.append(delivery)
