"""Behaviours of the models as event logs; ``TRACES.md`` beside this says how they are written.

``python -m proof.model.traces OUT`` writes them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from proof.model.bounds import MODELS, PLANTS, RULES
from proof.model.tlc import Model, Run, check, simulate
from proof.model.values import State, read_states

START_MS: Final = 1_700_000_000_000
TICK_MS: Final = 1_000
WALK_STEPS: Final = 60
_AT_ONCE: Final = 2
"""Runs of TLC, each of which takes one core."""
_REASONS: Final = {"exempted": "returned"}
_MOVES: Final = {
    *("put", "received", "claimed", "renewed", "released", "poisoned", "redriven"),
    *("lease-ended", "published", "staged"),
}
"""What changes the phase, the end of a lease or delay, or the fence."""


@dataclass(slots=True, kw_only=True)
class _Known:
    """What a store keeps of a message beside what the model has."""

    inserted_at_ms: int
    visible_at_ms: int = 0
    expires_at_ms: int | None = None
    since_ms: int = 0
    visible_since_ms: int = 0
    renewals: int = 0
    phase: str = "waiting"
    fence: int = 0
    session: int = 0
    group: int = 0
    attempts: list[tuple[int, int, int]] = field(default_factory=list)
    """Of leases that have ended: the first and the last fence, and when it began."""

    def close(self) -> None:
        """Note that the lease has ended, if it is on one."""
        if self.phase == "leased":
            self.attempts.append((self.fence - self.renewals, self.fence, self.since_ms))

    def start_of(self, fence: int) -> int | None:
        """Return when the lease began that a receipt was of."""
        if self.phase == "leased" and self.fence - self.renewals <= fence <= self.fence:
            return self.since_ms
        for first, last, at_ms in reversed(self.attempts):
            if fence and first <= fence <= last:
                return at_ms
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One behaviour."""

    name: str
    model: str
    bug: str
    law: str | None
    visible_in_log: bool
    settings: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]
    left: Mapping[str, Sequence[str]]
    """By queue: the messages that the store has in the end. ``staged`` is no queue."""
    count: int
    """How many the store says that the queue has."""

    def as_json(self) -> str:
        """Return it as one line."""
        names = self.__slots__
        return json.dumps({name: getattr(self, name) for name in names}, separators=(",", ":"))


class _Writer:
    """Writes down what the steps of one behaviour put into the log."""

    def __init__(self, model: Model) -> None:
        self._never = model.constants["Never"]
        self._known: dict[int, _Known] = {}
        self._until: dict[int, int] = {}
        self._now_ms = START_MS
        self._seq = 0
        self._has_poison = False
        self.events: list[dict[str, Any]] = []
        self._batch: list[dict[str, Any]] = []
        self._add("queue-created", queue="q")
        self._flush()

    def step(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Write what happened between two states."""
        for event in after["log"]:
            kind, m = event["type"], event["m"]
            if kind == "tick":
                self._now_ms += TICK_MS
            elif m:
                self._message(event, before, after)
            elif "claim" in event:
                self._claim(kind, event["claim"], after)
            elif "session" in event:
                self._session(kind, event["session"])
            elif kind == "group-resumed":  # that one halts is told with the message that did it
                self._add(kind, queue="q", group_id=f"g{event['group']}")
        self._flush()

    def _flush(self) -> None:
        if self._batch:
            self._seq += 1
            for place, event in enumerate(self._batch):
                self.events.append({"seq": self._seq, "place": place} | event)
            self._batch = []

    def _add(self, kind: str, **columns: Any) -> None:
        told = {key: value for key, value in columns.items() if value is not None}
        self._batch.append({"at_ms": self._now_ms, "type": kind, "account": "model"} | told)

    def _claim(self, kind: str, n: int, after: Mapping[str, Any]) -> None:
        claim = after["claim"][n - 1]
        if kind != "claim-lapsed":
            self._until[n] = self._now_ms + claim["left"] * TICK_MS
            for m in claim["members"]:
                self._known[m].visible_at_ms = self._until[n]
        self._add(kind, queue="q", visible_at_ms=self._until[n], target=f"s/{n}")

    def _session(self, kind: str, s: int) -> None:
        self._add(kind, session=f"w{s}", holder=f"w{s}")

    # --- messages ----------------------------------------------------------------------------

    def _message(
        self, event: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> None:
        kind, m, row = event["type"], event["m"], event["row"]
        known = self._known.setdefault(m, _Known(inserted_at_ms=self._now_ms))
        late_ms = known.start_of(event["by"]) if kind == "refused" else None
        if kind == "lapsed":
            known.close()
        elif kind in _MOVES or (kind == "unclaimed" and row["fence"] != known.fence):
            self._move(known, kind, row)
        if kind in {"received", "redriven"} and "holder" in after:
            known.session = after["holder"][m - 1]
        if "group" in after:
            known.group = after["group"][m - 1]
        if kind == "poisoned" and not self._has_poison:
            self._has_poison = True
            self._add("queue-created", queue="q-poison")
        columns = self._columns(m, known, row) | _where(event)
        if kind == "refused":
            columns["since_ms"] = late_ms
        self._add(kind, **columns)
        if kind == "claimed":
            self._until[event["claim"]] = known.visible_at_ms
        self._halt(event, before, after)

    def _halt(
        self, event: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> None:
        if event["type"] == "poisoned" and "halted" in after:
            told = {"target": f"m{event['m']}", "reason": event["why"]}
            for group in set(after["halted"]) - set(before["halted"]):
                self._add("group-halted", queue="q", group_id=f"g{group}", **told)

    def _move(self, known: _Known, kind: str, row: Mapping[str, Any]) -> None:
        """Note a change of phase, of the end of a lease or delay, or of the fence."""
        now_ms = self._now_ms
        lasting = self._expiry(row["life"])
        if kind in {"received", "claimed"}:
            known.visible_since_ms, known.renewals = known.visible_at_ms, 0
        if kind == "renewed":
            if known.phase == "leased":
                known.renewals += 1
            elif row["phase"] == "leased":
                known.renewals, known.since_ms = 0, now_ms
            elif row["phase"] == "deferred":
                known.since_ms = now_ms
        else:
            known.close()
            known.since_ms = now_ms
        if kind in {"put", "published", "staged"}:
            known.inserted_at_ms, known.expires_at_ms = now_ms, lasting
        elif kind in {"poisoned", "redriven"}:
            known.expires_at_ms = lasting
        known.visible_at_ms = now_ms + row["hidden"] * TICK_MS
        known.phase, known.fence = row["phase"], row["fence"]

    def _expiry(self, life: int) -> int | None:
        return None if life == self._never else self._now_ms + life * TICK_MS

    def _columns(self, m: int, known: _Known, row: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "message_id": f"m{m}",
            "inserted_at_ms": known.inserted_at_ms,
            "expires_at_ms": known.expires_at_ms,
            "visible_at_ms": known.visible_at_ms,
            "dequeue_count": row["count"],
            "fence": row["fence"],
            "phase": row["phase"],
            "since_ms": known.since_ms,
            "visible_since_ms": known.visible_since_ms or None,
            "renewals": known.renewals,
            "priority": 8,
            "holder": f"w{known.session}" if known.session else None,
            "session": f"w{known.session}" if known.session else None,
            "group_id": f"g{known.group}" if known.group else None,
        }


def _where(event: Mapping[str, Any]) -> dict[str, str | None]:
    """Return queue, target and reason of an event of a message."""
    kind, target = event["type"], None
    if kind in {"claimed", "settled", "unclaimed"}:
        target = f"s/{event['claim']}"
    elif kind in {"staged", "published", "discarded"}:
        target = f"t{event['claim']}"
    elif kind in {"poisoned", "redriven"}:
        target = "q-poison" if kind == "poisoned" else "q"
    return {
        "queue": "q-poison" if kind == "redriven" else "q",
        "target": target,
        "reason": _REASONS.get(event["why"], event["why"]) or None,
    }


def trace_of(
    name: str, model: Model, states: Sequence[State], *, rule: str, bug: str = "none"
) -> Trace:
    """Return a behaviour, from its first state on, as an event log.

    Args:
        name: Of the trace.
        model: That it is a behaviour of.
        states: From the first one on.
        rule: For lapsed receipts.
        bug: That is planted in the model. Its last step is the one that broke the bug's law.
    """
    writer = _Writer(model)
    for before, after in pairwise(states):
        writer.step(before.variables, after.variables)
    last = states[-1].variables
    left: dict[str, list[str]] = {"q": [], "q-poison": [], "staged": []}
    places = {"queue": "q", "poison": "q-poison", "staged": "staged"}
    for m, row in enumerate(last["msg"], 1):
        if row["place"] in places:
            left[places[row["place"]]].append(f"m{m}")
    plant = PLANTS.get(bug)
    return Trace(
        name=name,
        model=model.module,
        bug=bug,
        law=None if plant is None else plant.law,
        visible_in_log=plant is None or plant.in_log,
        settings={"q": _settings(model, rule)},
        events=writer.events,
        left=left,
        count=last["counted"],
    )


def _settings(model: Model, rule: str) -> dict[str, Any]:
    constants = model.constants
    settings: dict[str, Any] = {"lapsed_receipts": rule}
    if constants["MaxDeliveries"]:
        settings["failure_policy"] = {"max_deliveries": constants["MaxDeliveries"]}
    if model.module == "Groups":
        settings["groups"] = {
            "order": "fifo" if constants["Fifo"] else "none",
            "max_in_flight": constants["Limit"],
            "on_poison": "halt" if constants["Halts"] else "continue",
        }
    return settings


def accepted(walks: int, *, seed: int = 1) -> Iterator[Trace]:
    """Yield random behaviours of the models without bugs.

    Args:
        walks: At least so many of each model, under each rule.
        seed: Of the first random number; TLC's threads make of it what they like.

    Raises:
        RuntimeError: TLC has failed, or a model has broken a law.
    """
    for title, bounded in MODELS.items():
        for rule in RULES:
            with tempfile.TemporaryDirectory() as folder:
                how = partial(simulate, bounded.walk, rule=rule, keep=Path(folder), workers=1)
                run = how(steps=walks * WALK_STEPS, depth=WALK_STEPS, seed=seed)
                if run.broken is not None:
                    raise RuntimeError(f"{title}: {run.broken}")
                for n, path in enumerate(sorted(Path(folder).iterdir())):
                    states = tuple(read_states(path.read_text(encoding="utf-8")))
                    yield trace_of(f"{title}/{rule}/{n}", bounded.walk, states, rule=rule)


def planted(bug: str, rule: str) -> tuple[Model, Run]:
    """Look for a planted bug; return the small model that it is planted in, and what was found."""
    plant = PLANTS[bug]
    model = MODELS[plant.model].short
    model = replace(model, constants={**model.constants, **plant.bounds})
    return model, check(model, rule=rule, bug=bug, workers=1)


def rejected() -> Iterator[Trace]:
    """Yield for each planted bug, and each rule, the shortest behaviour that breaks its law.

    Raises:
        RuntimeError: A bug was not found.
    """
    pairs = [(bug, rule) for bug in PLANTS for rule in RULES]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for (bug, rule), (model, run) in zip(
            pairs, pool.map(lambda pair: planted(*pair), pairs), strict=True
        ):
            if run.broken is None:
                raise RuntimeError(f"{bug} was not found under {rule}")
            yield trace_of(f"{bug}/{rule}", model, run.trace, rule=rule, bug=bug)


def write(folder: Path, walks: int) -> tuple[int, int]:
    """Write both files into a folder; return how many traces each has."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = []
    for name, traces in (("accepted", accepted(walks)), ("rejected", rejected())):
        lines = [trace.as_json() for trace in traces]
        (folder / f"{name}.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
        counts.append(len(lines))
    return counts[0], counts[1]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m proof.model.traces", description=__doc__)
    parser.add_argument("out", type=Path, help="folder for accepted.jsonl and rejected.jsonl")
    parser.add_argument("--walks", type=int, default=20, help="of each model under each rule")
    options = parser.parse_args()
    print("traces: {} to accept, {} to reject".format(*write(options.out, options.walks)))


if __name__ == "__main__":
    main()
