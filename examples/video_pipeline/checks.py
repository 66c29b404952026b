"""Whether everything came out as promised. Each check looks at evidence, not at intentions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from examples.video_pipeline.catalogue import Entry
from examples.video_pipeline.ledger import Ledger, Record
from examples.video_pipeline.loop import AFTER, LoopOutcome
from examples.video_pipeline.producer import SMALLER, UNUSED, Clip, Fate, expected_outputs
from examples.video_pipeline.results import Results
from examples.video_pipeline.worker import MAX_DELIVERIES

from leasehold.client.models import Event as Change

_FALL: Final = 0.9
"""By so much late deletes have to fall, of what they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise, and whether it was kept."""

    name: str
    ok: bool
    detail: str
    """What was found, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is left when all who worked have gone."""

    on: str
    """Who worked: ``spark`` or ``workers``."""
    clips: tuple[Clip, ...]
    ledger: Ledger
    """Made anew from everything that was written."""
    lease_s: int
    outputs: dict[str, str]
    """Per file in the output folder why it cannot be played; empty text if it can."""
    catalogue: tuple[Entry, ...]
    """What the table of published outputs says."""
    late_write: str
    """How a write in the name of who was suspended was refused; empty text if it was not."""
    poison: tuple[dict[str, Any], ...]
    """Messages in the poison queue, with their reasons."""
    left_in_queue: int
    """Messages in the working queue, visible or not."""
    troubles: tuple[str, ...]
    """What went wrong with the crew or the time."""
    report: tuple[dict[str, Any], ...]
    """What the pipeline on Spark says of each delivery."""
    changes: tuple[Change, ...]
    """The server's event log of the queue; empty where the service keeps none."""
    results: Results | None
    """What Spark made of the results of the pipeline; None where plain workers work."""
    began_ms: int
    """When the story began, Unix milliseconds."""
    ended_s: float
    """When the last message was settled, seconds since then."""
    loop: LoopOutcome | None = None
    """What the feedback loop has changed; None where there was none."""


def check_all(evidence: Evidence) -> list[Check]:
    """Return every check with its outcome."""
    fates = {clip.fate: evidence.ledger.records[clip.video] for clip in evidence.clips}
    checks = [
        _completed(evidence),
        _exactly_once(evidence),
        _playable(evidence),
        _resumed(fates[Fate.KILLED]),
        _stepped_back(fates[Fate.SUSPENDED], evidence.late_write),
        _renewed(fates[Fate.LONG], evidence.lease_s),
        _delayed(evidence.ledger),
        _poisoned(fates[Fate.CORRUPT], evidence),
        _caught(fates[Fate.INFECTED], evidence),
        Check(
            name="the queue is empty",
            ok=evidence.left_in_queue == 0,
            detail=f"{evidence.left_in_queue} messages left",
        ),
        Check(
            name="everybody ended as they should",
            ok=not evidence.troubles,
            detail="; ".join(evidence.troubles) or "no complaints",
        ),
    ]
    if evidence.changes:
        checks += [
            _changed_mind(evidence, clip)
            for clip in evidence.clips
            if clip.fate in {Fate.CHANGED, Fate.CANCELLED}
        ]
    if evidence.on == "spark":
        checks.append(_reported(evidence))
    if evidence.results is not None:
        checks += [_tabled(evidence, evidence.results), _added_up(evidence.results)]
    return checks if evidence.loop is None else [*checks, *_of_loop(evidence.loop)]


def _completed(evidence: Evidence) -> Check:
    good = [clip.video for clip in evidence.clips if clip.fate not in UNUSED]
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
        holders = {(each.worker, each.fence) for each in record.deliveries}
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
        name="another resumed where the killed one was",
        ok=len(killed) == 1
        and scans == 1
        and states[:2] == ["scan", "encode"]
        and heir != killed[0].worker,
        detail=f"{record.video}: deliveries at {', '.join(states)}; scans: {scans}; "
        f"from {killed[0].worker if killed else 'nobody'} to {heir}",
    )


def _stepped_back(record: Record, late_write: str) -> Check:
    lost = [each for each in record.attempts if each.outcome == "lease lost"]
    finisher = record.deliveries[-1].worker if record.deliveries else "nobody"
    why = next((each for each in record.events if "stepped back" in each), "nobody did")
    return Check(
        name="who woke up too late stepped back",
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
    found = [each for each in evidence.poison if each["video"] == record.video]
    reasons = [reason for each in found for reason in each["reasons"]]
    counts = [each["dequeue_count"] for each in found]
    return Check(
        name="the corrupt video is in the poison queue",
        ok=record.result == "poisoned" and len(reasons) > 0 and counts == [MAX_DELIVERIES],
        detail=f"{record.video}: {reasons[-1] if reasons else 'not there'} "
        f"after {len(record.deliveries)} deliveries",
    )


def _caught(record: Record, evidence: Evidence) -> Check:
    found = [each for each in evidence.poison if each["video"] == record.video]
    reasons = [reason for each in found for reason in each["reasons"]]
    caught = [reason for reason in reasons if "eicar_test_file" in reason]
    produced = [name for name in evidence.outputs if name.startswith(f"{record.video}.")]
    return Check(
        name="the infected upload was caught at once",
        ok=record.result == "poisoned"
        and bool(caught)
        and len(record.deliveries) == 1
        and not produced,
        detail=f"{record.video}: {caught[0] if caught else 'not caught'}; "
        f"{len(record.deliveries)} delivery, {len(produced)} outputs",
    )


def _reported(evidence: Evidence) -> Check:
    """Compare two accounts of the same deliveries, which were written by different processes."""
    records = {record.message_id: record for record in evidence.ledger.records.values()}
    received = {
        (change.message_id, change.dequeue_count)
        for change in evidence.changes
        if change.type == "received" and change.message_id in records
    }
    reported = Counter((row["message_id"], row["delivery"]) for row in evidence.report)
    faults = [f"{key} is reported {count} times" for key, count in reported.items() if count > 1]
    faults += [f"{key} is not in the event log" for key in reported.keys() - received]
    killed = {
        (record.message_id, delivery.dequeue_count)
        for record in records.values()
        for delivery in record.deliveries
        if any(
            each.outcome == "killed" and each.worker == delivery.worker for each in record.attempts
        )
    }
    # Who is killed reports nothing.
    faults += [f"{key} is not in the report" for key in received - reported.keys() - killed]
    done = Counter(row["message_id"] for row in evidence.report if row["outcome"] == "done")
    completed = [each.message_id for each in records.values() if each.result == "completed"]
    faults += [f"{key} was done {done[key]} times" for key in completed if done[key] != 1]
    return Check(
        name="report and event log tell the same",
        ok=not faults and bool(reported),
        detail="; ".join(faults)
        or f"{len(received)} deliveries, {len(reported)} reported, {len(killed)} killed",
    )


def _changed_mind(evidence: Evidence, clip: Clip) -> Check:
    """Look into the event log: the change came before the first delivery, or kept it away."""
    record = evidence.ledger.records[clip.video]
    told = [each.type for each in evidence.changes if each.message_id == record.message_id]
    if clip.fate is Fate.CANCELLED:
        left = [name for name in evidence.outputs if name.startswith(f"{clip.video}.")]
        return Check(
            name="what was taken back in time was never delivered",
            ok=told == ["put", "removed"] and not left,
            detail=f"{clip.video}: {', '.join(told)}; {len(left)} outputs",
        )
    heights = {
        row["output"].get("small_height")
        for row in (evidence.results.rows if evidence.results else ())
        if row["message_id"] == record.message_id and row["output"]
    }
    is_so = told[:3] == ["put", "amended", "received"]
    if evidence.results is not None:
        is_so = is_so and heights == {SMALLER.height}
    return Check(
        name="what was changed in time was done as changed",
        ok=is_so,
        detail=f"{clip.video}: {', '.join(told[:3])}; height {', '.join(map(str, heights))}",
    )


def _tabled(evidence: Evidence, results: Results) -> Check:
    """Compare the Parquet table with what the journals and the event log say of each message."""
    expected = {
        record.message_id: _OUTCOMES.get(record.result, record.result)
        for record in evidence.ledger.records.values()
    }
    counts = Counter(row["message_id"] for row in results.rows)
    found = {row["message_id"]: row["outcome"] for row in results.rows}
    faults = [f"{key} is there {count} times" for key, count in counts.items() if count > 1]
    faults += [
        f"{key} is {found.get(key, 'not there')}, not {outcome}"
        for key, outcome in expected.items()
        if found.get(key) != outcome
    ]
    faults += [f"{key} is unknown" for key in found.keys() - expected.keys()]
    incomplete = [
        row["message_id"]
        for row in results.rows
        if row["outcome"] == "done" and (not row["stages"] or not row["output"])
    ]
    faults += [f"{key} has no stages or no output" for key in incomplete]
    stages = sum(len(row["stages"] or ()) for row in results.rows)
    return Check(
        name="the streamed results are each message's, once",
        ok=not faults and bool(found),
        detail="; ".join(faults) or f"{len(found)} rows in Parquet, {stages} stage times",
    )


_OUTCOMES = {"completed": "done", "cancelled": "removed"}
"""What the results call what the ledger calls otherwise."""


def _added_up(results: Results) -> Check:
    """Compare the aggregates that were made as the rows came with those made of the table."""
    streamed: Counter[tuple[str, str]] = Counter()
    for window in results.windows:
        streamed[window["stage"], window["outcome"]] += window["messages"]
    queried = {(row["stage"], row["outcome"]): row["messages"] for row in results.summary}
    total = sum(queried.values())
    return Check(
        name="streamed aggregates and SQL agree",
        ok=bool(queried) and dict(streamed) == queried,
        detail=f"{len(results.windows)} windows, {len(queried)} groups, {total} stages and ends"
        if dict(streamed) == queried
        else f"{dict(streamed)} against {queried}",
    )


def _of_loop(loop: LoopOutcome) -> list[Check]:
    told = loop.notice
    fell = 1 - loop.share_after / loop.share_before if loop.share_before else 0.0
    change = f"{loop.old_s} s to {loop.new_s} s"
    return [
        Check(
            name="the feedback loop set a timeout, and told producers",
            ok=told is not None and told["new_s"] == loop.new_s and not loop.troubles,
            detail="; ".join(loop.troubles) or f"{loop.queue}: {change}",
        ),
        Check(
            name="late deletes fell by at least 90 %",
            ok=fell >= _FALL and loop.total_after >= AFTER,
            detail=f"{loop.share_before:.1%} of {loop.total_before} deletes before it, "
            f"{loop.share_after:.1%} of {loop.total_after} after",
        ),
        Check(
            name="the new timeout broke no lease",
            ok=loop.leases_across > 0 and not loop.broken,
            detail="; ".join(loop.broken)
            or f"{loop.leases_across} leases went on as they were granted",
        ),
    ]
