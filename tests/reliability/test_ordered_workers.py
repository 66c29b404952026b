"""SIGKILL and SIGSTOP of workers with ``ordered=True`` leave the order of each group whole.

Workers with threads and with processes, whose buffers hold runs of messages of a group, share a
queue over HTTP. What their handlers did is in a record outside, behind a fence.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability.ordered_campaign import KINDS, run
from tests.reliability.ordered_worker import Line, Record, faults_of_record, read_record


def test_a_kill_and_a_pause(tmp_path: Path) -> None:
    """The quick part: one worker is killed, and one stopped until others have its messages."""
    campaign = run(tmp_path, 3, kills=1, pauses=1, kinds=(KINDS[0], KINDS[2]), lease_s=1)
    assert campaign.faults == []
    assert (campaign.done["killed"], campaign.done["stopped"]) == (1, 1)
    assert campaign.report()["received_again"] > 0


@pytest.mark.long
def test_many_kills_and_pauses(tmp_path: Path) -> None:
    """The longer part, with a worker of each kind."""
    campaign = run(tmp_path, 5, kills=14, pauses=7)
    assert campaign.faults == []
    assert campaign.done["overtaken"] > 0
    assert campaign.report()["received_again"] > 0


def test_work_that_is_not_in_order_is_found(tmp_path: Path) -> None:
    """Positive control: without ``ordered`` the threads of one worker overtake each other."""
    campaign = run(tmp_path, 3, kills=0, pauses=0, kinds=KINDS[:1], job={"ordered": False})
    assert [each for each in campaign.faults if "effects out of order" in each]


# The record itself, and what is found in one that was made by hand.


def test_the_record_lets_nobody_past_a_newer_holder(tmp_path: Path) -> None:
    """Whoever has the older lease of a message is refused, from the newer one's beginning on."""
    old, new = Record(tmp_path, "old"), Record(tmp_path, "new")
    assert old.enter("q:a", 1, 4, "begun")
    assert old.enter("q:a", 1, 4, "effect")
    assert new.enter("q:a", 1, 5, "begun")
    assert not old.enter("q:a", 1, 4, "effect")
    assert old.enter("q:a", 2, 1, "begun")
    assert [line.what for line in read_record(tmp_path, "q:a")] == [
        *("begun", "effect", "begun", "refused", "begun")
    ]


def lines(*entries: str) -> list[Line]:
    """Return lines such as ``effect 1 2``: what, the number of the message, and the fence."""
    found = []
    for entry in entries:
        what, number, fence = entry.split()
        found.append(Line(what, int(number), int(fence), "w"))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        (("effect 1 1", "effect 1 2", "effect 2 1"), None),
        (("begun 1 1", "effect 1 1", "begun 2 1", "refused 1 1", "effect 2 1"), None),
        (("effect 2 1", "effect 1 1"), "an effect after that of 2"),
        (("effect 1 1", "effect 2 1", "effect 1 2"), "an effect after that of 2"),
        (("begun 1 2", "effect 1 1", "effect 2 1"), "past a newer fence"),
        (("begun 1 1", "effect 2 1"), "no effect of 1"),
        (("refused 1 1", "effect 2 1"), "no effect of 1"),
    ],
)
def test_what_may_not_be_in_a_record_is_found(entries: tuple[str, ...], fault: str | None) -> None:
    """The same effect may be repeated, with a newer fence, until the next one has begun."""
    found = faults_of_record(lines(*entries), "a", (1, 2))
    assert [fault in each for each in found if fault] == [True] * (fault is not None)
    assert bool(found) == (fault is not None)
