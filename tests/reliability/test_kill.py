"""SIGKILL at any moment under load loses nothing that was acknowledged, and undoes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reliability.history import Drain, Event, History
from tests.reliability.killing import FILES, OPTIONS, Campaign, record_folder
from tests.reliability.running import Delivery, KillableServer


def run_campaign(campaign: Campaign, rounds: int) -> History:
    """Play a campaign on a server of its own and print what came of it."""
    try:
        with record_folder() as records:
            history = campaign.play(rounds, records)
    finally:
        campaign.server.stop()
    print(f"{campaign.kills} kills under load, {campaign.kills_while_starting} while starting")  # noqa: T201 - figures for a person who runs it with -s
    print(history.summary())  # noqa: T201
    return history


def campaign_in(folder: Path, seed: int) -> Campaign:
    """Return a campaign with its data in *folder*."""
    data = folder / "data"
    return Campaign(KillableServer(data, options=OPTIONS), data, seed)


def test_kills_lose_nothing_and_undo_nothing(tmp_path: Path) -> None:
    """The quick part: three kills under load, then everything on record is accounted for."""
    campaign = campaign_in(tmp_path, seed=20_261_121)
    history = run_campaign(campaign, 3)
    assert history.violations == []
    assert campaign.broken == []
    assert history.acknowledged("put") > 100
    assert history.acknowledged("delete") > 50
    assert history.unanswered() > 0


@pytest.mark.slow
def test_many_kills_lose_nothing_and_undo_nothing(tmp_path: Path) -> None:
    """The slow part: fifty kills under load."""
    campaign = campaign_in(tmp_path, seed=7)
    history = run_campaign(campaign, 50)
    assert history.violations == []
    assert campaign.broken == []
    assert campaign.kills == 50
    assert campaign.kills_while_starting > 0
    assert history.recovered() > 0


def test_a_server_that_forgets_is_found_out(tmp_path: Path) -> None:
    """Positive control: data restored to an earlier kill is seen as loss and as resurrection."""
    campaign = campaign_in(tmp_path, seed=3)
    backup = tmp_path / "backup"

    def forget(kill: int) -> None:
        if kill == 1:
            shutil.copytree(campaign.data, backup)
        else:
            for name in FILES:
                shutil.copy(backup / name, campaign.data)

    campaign.after_kill = forget
    campaign.answers = (500, 600)
    history = run_campaign(campaign, 2)
    assert {"lost", "resurrected"} <= {found.kind for found in history.violations}


# The checks themselves, on a record made by hand.

A, B, C = "id-a", "id-b", "id-c"


def told(begun: int, verb: str, **fields: object) -> Event:
    """Return an event that lasted from one number, and second, to the next."""
    times = {"begun": begun, "begun_s": begun, "ended": begun + 1, "ended_s": begun + 1}
    return Event(**{"queue": "q", "verb": verb, "status": 204, **times, **fields})  # type: ignore[arg-type]


def got(message_id: str, text: str, dequeue_count: int, receipt: str) -> Delivery:
    """Return a delivery."""
    return Delivery(message_id=message_id, receipt=receipt, dequeue_count=dequeue_count, text=text)


def put(begun: int, text: str, message_id: str, receipt: str) -> Event:
    """Return an answered put."""
    taken = (got(message_id, "", 0, receipt),)
    return told(begun, "put", text=text, status=201, new_receipt=receipt, taken=taken)


LAST = (got(A, "a/2", 2, "a3"), got(C, "c/1", 1, "c1"))
EVENTS = (
    put(1, "a/1", A, "a0"),
    put(3, "b/1", B, "b0"),
    told(5, "put", text="c/1", status=None),
    told(7, "get", status=200, hidden_s=2, taken=(got(A, "a/1", 1, "a1"), got(B, "b/1", 1, "b1"))),
    told(9, "update", message_id=A, receipt="a1", text="a/2", new_receipt="a2", hidden_s=2),
    told(11, "delete", message_id=B, receipt="b1"),
    told(13, "delete", message_id=B, receipt="b1", status=404),
    told(15, "get", status=200, hidden_s=600, taken=LAST),
)
DRAIN = Drain(counted=2, taken=LAST, counted_after=0)
Story = tuple[tuple[Event, ...], Drain]


def test_an_honest_record_passes() -> None:
    """Calls whose outcome is unknown, and receipts that were refused, are no violations."""
    assert History.checked(EVENTS, DRAIN).violations == []
    refused_update = told(9, "update", message_id=A, receipt="a1", text="a/2", status=None)
    branches = (*EVENTS[:4], refused_update, *EVENTS[5:])
    assert History.checked(branches, DRAIN).violations == []
    either = (got(A, "a/1", 2, "a3"), LAST[1])
    events = (*branches[:7], replace(branches[7], taken=either))
    assert History.checked(events, replace(DRAIN, taken=either)).violations == []


def with_last(*last: Delivery) -> Story:
    """Let the last get deliver something else."""
    return (*EVENTS[:7], replace(EVENTS[7], taken=last)), replace(
        DRAIN, counted=len(last), taken=last
    )


def with_change(number: int, **fields: object) -> Story:
    """Change one call."""
    changed = replace(EVENTS[number], **fields)  # type: ignore[arg-type]
    return (*EVENTS[:number], changed, *EVENTS[number + 1 :]), DRAIN


def with_call(event: Event) -> Story:
    """Add a call."""
    return tuple(sorted((*EVENTS, event), key=lambda each: each.begun)), DRAIN


DOCTORED: dict[str, tuple[str, Callable[[], Story]]] = {
    "acknowledged put is gone": ("lost", lambda: with_last(LAST[1])),
    "put that was delivered is gone": (
        "lost",
        lambda: (
            with_change(3, taken=(*EVENTS[3].taken, got(C, "c/1", 1, "c1")))[0][:7],
            replace(DRAIN, counted=1, taken=LAST[:1]),
        ),
    ),
    "deleted message comes back": (
        "resurrected",
        lambda: with_last(*LAST, got(B, "b/1", 2, "b2")),
    ),
    "deleted message is updated": (
        "resurrected",
        lambda: with_call(
            told(14, "update", message_id=B, receipt="b1", new_receipt="b2", hidden_s=1)
        ),
    ),
    "message is deleted twice": ("deleted twice", lambda: with_change(6, status=204)),
    "text of before the update": ("stale text", lambda: with_last(got(A, "a/1", 2, "a3"), LAST[1])),
    "text nobody wrote": ("unexpected", lambda: with_last(got(A, "a/9", 2, "a3"), LAST[1])),
    "message nobody put": ("unexpected", lambda: with_last(*LAST, got("id-z", "z/1", 1, "z1"))),
    "one put, two messages": ("doubled", lambda: with_last(*LAST, got("id-d", "c/1", 1, "d1"))),
    "id of another message": ("id reused", lambda: with_last(LAST[0], got(B, "c/1", 1, "c1"))),
    "dequeue count stays": ("dequeue count", lambda: with_last(got(A, "a/2", 1, "a3"), LAST[1])),
    "dequeue count leaps": ("dequeue count", lambda: with_last(got(A, "a/2", 4, "a3"), LAST[1])),
    "receipt given twice": ("receipt reused", lambda: with_last(got(A, "a/2", 2, "a1"), LAST[1])),
    "superseded receipt acts": (
        "stale receipt",
        lambda: with_call(told(17, "delete", message_id=A, receipt="a1")),
    ),
    "current receipt is refused": (
        "refused",
        lambda: with_call(told(17, "delete", message_id=A, receipt="a3", status=404)),
    ),
    "delivered during a lease": ("too early", lambda: with_change(4, hidden_s=60)),
    "delivered to two at once": (
        "too early",
        lambda: with_call(
            told(8, "get", status=200, hidden_s=1, taken=(got(A, "a/1", 2, "a9"),), ended_s=8)
        ),
    ),
    "delivered before its delay": ("too early", lambda: with_change(0, hidden_s=30)),
    "an answer of 500": ("status", lambda: with_change(2, status=500)),
    "more counted than there": ("count", lambda: (EVENTS, replace(DRAIN, counted=3))),
    "empty but not counted so": ("count", lambda: (EVENTS, replace(DRAIN, counted_after=1))),
}


@pytest.mark.parametrize("doctored", DOCTORED)
def test_every_doctored_record_is_found(doctored: str) -> None:
    """Positive control: each kind of violation is found when it is planted."""
    kind, story = DOCTORED[doctored]
    events, drain = story()
    assert kind in {found.kind for found in History.checked(events, drain).violations}
