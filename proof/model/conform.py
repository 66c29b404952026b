"""Whether the model does what the code does: walks of the model, done over again by a store.

Each step of a walk becomes the command that it stands for, with the receipt that the step has
shown, made up where no store has issued it. The event logs must be the same in every column.

One message is enough: messages of no group and no claim have nothing to do with each other. The
walk ends where it is brought back from the poison queue, which in the store is a job.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from leasehold.domain.command import AnyCommand
from leasehold.domain.commands import (
    Complete,
    CreateQueue,
    Put,
    Receive,
    Release,
    Renew,
    RetireExpired,
)
from leasehold.domain.events import Event, EventPage, ReadEvents
from leasehold.domain.model import ENTROPY_BYTES, NEVER_MS, Outcome, issue_receipt, make_message_id
from leasehold.domain.queue_settings import FailurePolicy, LapsedReceipts, QueueSettings
from leasehold.events.names import PHASE_NAMES, TYPE_NAMES
from leasehold.stores.memory import MemoryStore
from proof.model.bounds import MODELS
from proof.model.tlc import Model, simulate
from proof.model.traces import START_MS, TICK_MS, WALK_STEPS, trace_of
from proof.model.values import State, read_states

_KEY: Final = b"proof"
_ENTROPY: Final = bytes(ENTROPY_BYTES)
_ID: Final = make_message_id(1, _ENTROPY)
_OF: Final = ("model", "q")


class Compared(NamedTuple):
    """One walk, done by the model and by the store."""

    model: Sequence[Mapping[str, Any]]
    store: Sequence[Mapping[str, Any]]


def walks(rule: str, number: int, *, seed: int = 1, other: str | None = None) -> Iterator[Compared]:
    """Yield walks of the model of leases, with the log of each and of the store.

    Args:
        rule: For lapsed receipts.
        number: How many walks.
        seed: Of the first random number.
        other: The rule of the store, if that is to be another one, to see that it makes a
            difference.

    Raises:
        NoTlc: There is nothing to run the model with.
        RuntimeError: TLC has failed.
    """
    walk = MODELS["Leases"].walk
    model = replace(walk, constants={**walk.constants, "Count": 1})
    steps = number * WALK_STEPS
    with tempfile.TemporaryDirectory() as folder:
        keep = Path(folder)
        simulate(model, rule=rule, steps=steps, depth=WALK_STEPS, seed=seed, keep=keep, workers=1)
        for path in sorted(keep.iterdir()):
            states = _before_redrive(list(read_states(path.read_text(encoding="utf-8"))))
            trace = trace_of(path.name, model, states, rule=rule)
            yield Compared(trace.events, by_store(model, states, other or rule))


def _before_redrive(states: list[State]) -> list[State]:
    for place, state in enumerate(states):
        if any(event["type"] == "redriven" for event in state.variables["log"]):
            return states[:place]
    return states


def by_store(model: Model, states: Sequence[State], rule: str) -> list[dict[str, Any]]:
    """Return the event log of a store that does what happens in a behaviour."""
    store, now_ms = MemoryStore(receipt_key=_KEY), START_MS
    policy = FailurePolicy(max_deliveries=int(str(model.constants["MaxDeliveries"])))
    settings = QueueSettings(lapsed_receipts=LapsedReceipts(rule), failure_policy=policy)
    store.execute([CreateQueue(*_OF, metadata={}, settings=settings)], now_ms=now_ms)
    for state in states[1:]:
        event = state.variables["log"][-1]
        if event["type"] == "tick":
            now_ms += TICK_MS
        else:
            store.execute([_command(model, event)], now_ms=now_ms)
    (page,) = store.execute([ReadEvents(after_seq=0, limit=1_000)], now_ms=now_ms)
    assert isinstance(page, EventPage)
    return [_columns(event) for event in page.events]


def _command(model: Model, event: Mapping[str, Any]) -> AnyCommand:
    """Return the command that a step stands for, of the last event that it wrote."""
    kind, row, why = event["type"], event["row"], event["why"]
    shown = (*_OF, _ID, issue_receipt(_KEY, 1, event["by"]))
    if kind == "put":
        life_s = None if row["life"] == model.constants["Never"] else row["life"]
        return Put(*_OF, b"", row["hidden"], life_s, _ENTROPY)
    if kind == "received" or (kind == "poisoned" and event["by"] == row["fence"]):
        return Receive(*_OF, 1, int(str(model.constants["Lease"])))
    if kind == "expired":
        return RetireExpired(1)
    if kind in {"completed", "refused"}:
        return Complete(*shown)
    if kind == "renewed" or why == "returned":
        return Renew(*shown, row["hidden"])
    outcome = Outcome.BURIED if why == "buried" else Outcome.FAILED
    return Release(*shown, outcome=outcome, delay_s=row["hidden"])


def _columns(event: Event) -> dict[str, Any]:
    told = {name: value for name, value in event._asdict().items() if value is not None}
    told["type"] = TYPE_NAMES[event.type]
    if event.message_id is not None:
        told |= {"message_id": "m1", "phase": PHASE_NAMES[told["phase"]]}
    for name, nothing in (("expires_at_ms", NEVER_MS), ("visible_since_ms", 0)):
        if told.get(name) == nothing:
            del told[name]
    return told
