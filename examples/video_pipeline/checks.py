"""Whether everything came out as promised. Each check looks at evidence, not at intentions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from examples.video_pipeline.catalogue import Entry
from examples.video_pipeline.ledger import Ledger, Record
from examples.video_pipeline.producer import Clip, Fate, expected_outputs
from examples.video_pipeline.worker import MAX_DELIVERIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise, and whether it was kept."""

    name: str
    ok: bool
    detail: str
    """What was found, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is left when all workers have gone."""

    clips: tuple[Clip, ...]
    ledger: Ledger
    """Made anew from all journals."""
    lease_s: int
    outputs: dict[str, str]
    """Per file in the output folder why it cannot be played; empty text if it can."""
    catalogue: tuple[Entry, ...]
    """What the table of published outputs says."""
    late_write: str
    """How a write in the name of the suspended worker was refused; empty text if it was not."""
    poison: tuple[dict[str, object], ...]
    """Messages in the poison queue."""
    left_in_queue: int
    """Messages in the working queue, visible or not."""
    troubles: tuple[str, ...]
    """What went wrong with the workers or the time."""


def check_all(evidence: Evidence) -> list[Check]:
    """Return every check with its outcome."""
    fates = {clip.fate: evidence.ledger.records[clip.video] for clip in evidence.clips}
    return [
        _completed(evidence),
        _exactly_once(evidence),
        _playable(evidence),
        _resumed(fates[Fate.KILLED]),
        _stepped_back(fates[Fate.SUSPENDED], evidence.late_write),
        _renewed(fates[Fate.LONG], evidence.lease_s),
        _delayed(evidence.ledger),
        _poisoned(fates[Fate.CORRUPT], evidence),
        Check(
            name="the queue is empty",
            ok=evidence.left_in_queue == 0,
            detail=f"{evidence.left_in_queue} messages left",
        ),
        Check(
            name="every worker ended as it should",
            ok=not evidence.troubles,
            detail="; ".join(evidence.troubles) or "no complaints",
        ),
    ]


def _completed(evidence: Evidence) -> Check:
    good = [clip.video for clip in evidence.clips if clip.fate is not Fate.CORRUPT]
    records = evidence.ledger.records
    missing = [video for video in good if records[video].result != "completed"]
    return Check(
        name="every good video was completed",
        ok=not missing,
        detail=f"not completed: {', '.join(missing)}" if missing else f"{len(good)} videos",
    )


def _exactly_once(evidence: Evidence) -> Check:
    expected = expected_outputs(evidence.clips)
    there = set(evidence.outputs)
    records = evidence.ledger.records.values()
    published = Counter(name for record in records for name in record.published)
    faults = [f"{name} missing" for name in sorted(expected - there)]
    faults += [f"{name} unexpected" for name in sorted(there - expected)]
    faults += [f"{name} published {times} times" for name, times in published.items() if times > 1]
    faults += _false_entries(evidence)
    return Check(
        name="every output is there, published once",
        ok=not faults,
        detail="; ".join(faults) or f"{len(there)} files, each under the fence of its delivery",
    )


def _false_entries(evidence: Evidence) -> list[str]:
    """Return what the catalogue says that the journals do not, and the other way round."""
    rows = {each.name: each for each in evidence.catalogue}
    faults = []
    for record in evidence.ledger.records.values():
        holders = {(each.worker, each.dequeue_count) for each in record.deliveries}
        for name in record.published:
            row = rows.pop(name, None)
            if row is None:
                faults.append(f"{name} is not in the catalogue")
            elif (row.worker, row.fence) not in holders:
                faults.append(f"{name} is there under fence {row.fence}, not one of {row.worker}")
    return faults + [f"{name} is in the catalogue, and nobody published it" for name in rows]


def _playable(evidence: Evidence) -> Check:
    faults = [f"{name}: {fault}" for name, fault in sorted(evidence.outputs.items()) if fault]
    return Check(
        name="every output plays from start to end",
        ok=bool(evidence.outputs) and not faults,
        detail="; ".join(faults) or "decoded every frame",
    )


def _resumed(record: Record) -> Check:
    killed = [each for each in record.attempts if each.outcome == "killed"]
    states = [each.state for each in record.deliveries]
    scans = len(record.tries("scan"))
    heir = record.deliveries[-1].worker if record.deliveries else "nobody"
    return Check(
        name="another worker resumed where the killed one was",
        ok=len(killed) == 1
        and scans == 1
        and states[:2] == ["scan", "encode"]
        and heir != killed[0].worker,
        detail=f"{record.video}: deliveries at {', '.join(states)}; scans: {scans}",
    )


def _stepped_back(record: Record, late_write: str) -> Check:
    lost = [each for each in record.attempts if each.outcome == "lease lost"]
    finisher = record.deliveries[-1].worker if record.deliveries else "nobody"
    why = next((each for each in record.events if "stepped back" in each), "nobody did")
    return Check(
        name="a worker that woke up too late stepped back",
        ok=len(lost) == 1 and lost[0].worker != finisher and bool(late_write),
        detail=f"{record.video}: {why}; {finisher} finished it; "
        + (
            f"later writes are refused: {late_write}" if late_write else "a late write went through"
        ),
    )


def _renewed(record: Record, lease_s: int) -> Check:
    longest_s = max(
        (each.ended_s - each.began_s for each in record.attempts if each.ended_s is not None),
        default=0.0,
    )
    return Check(
        name="work longer than a lease kept its lease",
        ok=record.renewals > 0 and longest_s > lease_s,
        detail=f"{record.video}: {longest_s:.1f} s under a lease of {lease_s} s, "
        f"renewed {record.renewals} times",
    )


def _delayed(ledger: Ledger) -> Check:
    waits = {
        record.video: record.deliveries[0].at_s - record.sent_s
        for record in ledger.records.values()
        if record.delay_s and record.deliveries
    }
    early = [video for video, wait_s in waits.items() if wait_s < ledger.records[video].delay_s]
    told = (
        f"{video} {wait_s:.1f} s of {ledger.records[video].delay_s} s"
        for video, wait_s in waits.items()
    )
    return Check(
        name="delayed messages stayed hidden as long as asked",
        ok=bool(waits) and not early,
        detail=", ".join(told) or "no delayed message was delivered",
    )


def _poisoned(record: Record, evidence: Evidence) -> Check:
    reasons = [str(each.get("reason", "")) for each in evidence.poison]
    counts = [each.get("dequeue_count") for each in evidence.poison]
    return Check(
        name="the corrupt video is in the poison queue",
        ok=record.result == "poisoned"
        and len(reasons) == 1
        and bool(reasons[0])
        and counts == [MAX_DELIVERIES],
        detail=f"{record.video}: {'; '.join(reasons) or 'not there'} "
        f"after {len(record.deliveries)} deliveries",
    )
