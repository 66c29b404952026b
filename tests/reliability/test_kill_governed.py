"""SIGKILL under load leaves moves to the poison queue, redrives, keys and purges whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.reliability.governed_history import Audit, Deed, Found, Judge
from tests.reliability.governing import GovernedCampaign
from tests.reliability.killing import FILES, OPTIONS, record_folder
from tests.reliability.running import KillableServer


def campaign_in(folder: Path, seed: int) -> GovernedCampaign:
    """Return a campaign with its data in *folder*."""
    data = folder / "data"
    return GovernedCampaign(KillableServer(data, options=OPTIONS), data, seed)


def run_campaign(campaign: GovernedCampaign, rounds: int) -> None:
    """Play a campaign and print what came of it."""
    try:
        with record_folder() as records:
            campaign.play(rounds, records)
    finally:
        campaign.server.stop()
    print(campaign.summary())  # noqa: T201 - figures for a person who runs it with -s


@pytest.mark.long
def test_kills_leave_every_move_whole(tmp_path: Path) -> None:
    """The quick part: three kills under load, then every message and job is accounted for."""
    campaign = campaign_in(tmp_path, seed=20_261_121)
    run_campaign(campaign, 3)
    assert campaign.violations == []
    assert campaign.broken == []
    moved = {job["kind"] for job in campaign.audit.jobs if job["moved"]}
    assert moved == {"redrive", "purge"}
    assert sum(bool(deed.poisoned) for deed in campaign.deeds) > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 6])
def test_many_kills_leave_every_move_whole(tmp_path: Path, seed: int) -> None:
    """The slow part: thirty kills under load."""
    campaign = campaign_in(tmp_path, seed)
    run_campaign(campaign, 30)
    assert campaign.violations == []
    assert campaign.broken == []
    assert campaign.cut_jobs > 0
    assert any(not deed.answered for deed in campaign.deeds)


INJURIES = (
    # A message leaves the poison queue half-way: it is back, and still says that it is poison.
    """UPDATE message SET partition = (SELECT partition FROM queue WHERE name = 'governed-a')
       WHERE row_key IN (
           SELECT row_key FROM message WHERE partition =
               (SELECT partition FROM queue WHERE name = 'governed-a-poison') LIMIT 1)""",
    # A message is in neither queue.
    """DELETE FROM message WHERE row_key IN (
           SELECT row_key FROM message WHERE CAST(body AS TEXT) LIKE '%"stay"%' AND partition =
               (SELECT partition FROM queue WHERE name = 'governed-b-poison') LIMIT 1)""",
    # Keys are forgotten.
    "DELETE FROM dedup_key",
    # Jobs have counted a move that was not made.
    """UPDATE job SET content =
           json_set(content, '$.moved', ifnull(json_extract(content, '$.moved'), 0) + 1)""",
)


@pytest.mark.long
def test_a_store_that_was_injured_is_found_out(tmp_path: Path) -> None:
    """Positive control: each injury done to the data after a kill is seen."""
    campaign = campaign_in(tmp_path, seed=3)
    campaign.answers = (400, 500)

    def injure(kill: int) -> None:
        if kill == 1:
            connection = apsw.Connection(str(campaign.data / FILES[0]))
            for statement in INJURIES:
                connection.execute(statement)
                assert connection.changes() > 0
            connection.close()

    campaign.after_kill = injure
    run_campaign(campaign, 2)
    kinds = {found.kind for found in campaign.violations}
    assert {"half moved", "lost", "doubled", "job", "count"} <= kinds


# The checks themselves, on a record made by hand.

A, P = "governed-a", "governed-a-poison"


def sent(root: str, message_id: str) -> Deed:
    return Deed(act="send", queue=A, root=root, message_id=message_id, answered=True, done=True)


def settled(act: Any, root: str, message_id: str, *, poisoned: str = "") -> Deed:
    return replace(sent(root, message_id), act=act, poisoned=poisoned)


def poison(root: str, message_id: str, reason: str) -> Found:
    return Found(queue=P, message_id=message_id, root=root, poisoned_in=A, reason=reason)


DEEDS = (
    sent("stay-1", "id1"),
    sent("stay-1", "id1"),
    sent("stay-2", "id2"),
    sent("stay-3", "id3"),
    sent("again-4", "id4"),
    sent("sweep-5", "id5"),
    Deed(act="send", queue=A, root="stay-6"),
    sent("stay-6", "id6"),
    settled("release", "stay-1", "id1", poisoned="buried"),
    settled("complete", "stay-2", "id2"),
    Deed(act="complete", queue=A, root="stay-6", message_id="id6"),
    Deed(act="job", queue=A, root="redrive", message_id="j1", answered=True, done=True),
)
FOUND = (
    poison("stay-1", "id1", "buried"),
    Found(queue=A, message_id="id3", root="stay-3"),
    Found(queue=A, message_id="id4", root="again-4", redriven=1),
)
JOBS = (
    {"job_id": "j1", "kind": "redrive", "state": "done", "matched": 1, "moved": 1},
    {"job_id": "j2", "kind": "purge", "state": "done", "matched": 1, "moved": 1},
)
AUDIT = Audit(found=FOUND, jobs=JOBS, counted={A: 2, P: 1})
Doctored = Callable[[], tuple[tuple[Deed, ...], Audit]]


def kinds_of(deeds: tuple[Deed, ...], audit: Audit) -> set[str]:
    return {found.kind for found in Judge(deeds, audit).judged()}


def test_an_honest_record_passes() -> None:
    """What is unknown may be either way, and an audit amid jobs does not ask what they moved."""
    assert kinds_of(DEEDS, AUDIT) == set()
    still_there = (*FOUND, Found(queue=A, message_id="id6", root="stay-6"))
    assert kinds_of(DEEDS, replace(AUDIT, found=still_there, counted={A: 3})) == set()
    moving = (*FOUND, replace(FOUND[2], queue=P, poisoned_in=A, reason="buried"))
    assert kinds_of(DEEDS, Audit(found=moving, final=False)) == set()
    assert kinds_of(DEEDS, Audit(found=FOUND[:2], final=False)) == set()


def with_found(number: int, found: Found | None) -> tuple[tuple[Deed, ...], Audit]:
    """Find something else, or nothing, in one place."""
    instead = [] if found is None else [found]
    return DEEDS, replace(AUDIT, found=(*FOUND[:number], *instead, *FOUND[number + 1 :]))


def with_more(found: Found) -> tuple[tuple[Deed, ...], Audit]:
    """Find one more."""
    return DEEDS, replace(AUDIT, found=(*FOUND, found))


def with_job(number: int, **fields: object) -> tuple[tuple[Deed, ...], Audit]:
    """Change one job."""
    jobs = [*JOBS]
    jobs[number] = {**jobs[number], **fields}
    return DEEDS, replace(AUDIT, jobs=jobs)


DOCTORED: dict[str, tuple[str, Doctored]] = {
    "in neither queue": ("lost", lambda: with_found(1, None)),
    "redriven into nothing": ("lost", lambda: with_found(2, None)),
    "in both queues": ("in two places", lambda: with_more(poison("stay-3", "id3", "buried"))),
    "acknowledged poison is in its queue": (
        "not in the poison queue",
        lambda: with_found(0, Found(queue=A, message_id="id1", root="stay-1")),
    ),
    "poison for another reason": (
        "not in the poison queue",
        lambda: with_found(0, poison("stay-1", "id1", "max_failures")),
    ),
    "moved without a reason": ("half moved", lambda: with_found(1, replace(FOUND[1], queue=P))),
    "brought back as poison": ("half moved", lambda: with_found(0, replace(FOUND[0], queue=A))),
    "redriven though it was to stay": (
        "outside the filter",
        lambda: with_found(1, replace(FOUND[1], redriven=1)),
    ),
    "purged though it was to stay": ("lost", lambda: with_found(1, None)),
    "completed and there": (
        "resurrected",
        lambda: with_more(Found(queue=A, message_id="id2", root="stay-2")),
    ),
    "one key, two ids answered": ("doubled", lambda: ((*DEEDS, sent("stay-1", "id9")), AUDIT)),
    "one key, another id there": (
        "doubled",
        lambda: with_found(1, replace(FOUND[1], message_id="?")),
    ),
    "message nobody sent": (
        "unexpected",
        lambda: with_more(Found(queue=A, message_id="?", root="stay-9")),
    ),
    "a job that does not end": ("job", lambda: with_job(0, state="running")),
    "a job that found more than it moved": ("job", lambda: with_job(0, matched=2)),
    "a job that was forgotten": ("job lost", lambda: (DEEDS, replace(AUDIT, jobs=JOBS[1:]))),
    "a redrive that counts too much": ("job count", lambda: with_job(0, moved=2, matched=2)),
    "a redrive that was counted twice": (
        "job count",
        lambda: with_found(2, replace(FOUND[2], redriven=2)),
    ),
    "a purge that counts too little": ("job count", lambda: with_job(1, moved=0, matched=0)),
    "a count that is off": ("count", lambda: (DEEDS, replace(AUDIT, counted={A: 3}))),
}


@pytest.mark.parametrize("doctored", DOCTORED)
def test_every_doctored_record_is_found(doctored: str) -> None:
    """Positive control: each kind of violation is found when it is planted."""
    kind, story = DOCTORED[doctored]
    assert kind in kinds_of(*story())
