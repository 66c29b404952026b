"""SIGKILL at any moment: each event is in the exported files exactly once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from leasehold import events as eventlog
from leasehold.domain.events import Event
from leasehold.events.names import range_of
from leasehold.events.parquet import events_of
from tests.patience import PROGRAM_S
from tests.reliability.exporter_process import EPOCH_MS, POINTS, read_log
from tests.reliability.running import CLOCK
from tests.unit.events.make_sample import events as sample

ROOT: Final = Path(__file__).resolve().parents[2]
QUICK: Final = (*(f"{point}:1" for point in POINTS if point != "trimmed"), "synced:2")


class Campaign:
    """Runs the exporter's process again and again on the same data."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.kills = 0
        self._environment = {**os.environ, **environment}
        (folder / EPOCH_MS).write_text(str(CLOCK.now_ms()))

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Start a process; return it once it works or has ended."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.exporter_process", str(self.folder)],
            cwd=ROOT,
            env={**self._environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def die_at(self, point: str, **environment: str) -> None:
        """Let it kill itself at a point."""
        process = self.start(EXPORT_KILL_AT=point, **environment)
        self._await(process, -signal.SIGKILL)
        self.kills += 1

    def kill_after(self, length_s: float) -> None:
        """Kill it a moment after it has begun to work."""
        process = self.start()
        time.sleep(length_s)
        process.kill()
        self._await(process, -signal.SIGKILL)
        self.kills += 1

    def finish(self) -> None:
        """Let it export everything and end by itself."""
        process = self.start(EXPORT_TO_THE_END="1")
        assert process.stdin is not None
        process.stdin.close()
        self._await(process, 0)

    def _await(self, process: subprocess.Popen[str], code: int) -> None:
        try:
            ended = process.wait(PROGRAM_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            assert process.stdout is not None
            log = process.stdout.read()
            process.stdout.close()
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
        assert ended == code, log
        assert "Traceback" not in log, log
        assert "events.failed" not in log, log

    def exported(self) -> list[Event]:
        """Return what is in the files."""
        return list(events_of(eventlog.read(self.folder / "events")))

    def leftovers(self) -> list[Path]:
        """Return files of the export that are no files of events."""
        return [
            path
            for path in (self.folder / "events").rglob("*")
            if path.is_file() and range_of(path.name) is None and path.suffix != ".json"
        ]


def problems(exported: Sequence[Event], kept: Sequence[Event], *, trimmed: bool) -> list[str]:
    """Return what is wrong with an export, in words.

    Args:
        exported: What is in the files, ordered.
        kept: What the store still has.
        trimmed: Whether it has forgotten older events; their numbers must be whole all the same,
            because this store's have no gaps.
    """
    found = []
    names = [(event.seq, event.place) for event in exported]
    if len(set(names)) < len(names):
        found.append(f"{len(names) - len(set(names))} events are there twice")
    seqs = {seq for seq, _ in names}
    missing = set(range(1, max(seqs, default=0) + 1)) - seqs
    if missing:
        found.append(f"{len(missing)} batches are missing, the first is {min(missing)}")
    places: dict[int, set[int]] = {}
    for seq, place in set(names):
        places.setdefault(seq, set()).add(place)
    found += [
        f"batch {seq} is not whole"
        for seq, of_batch in places.items()
        if of_batch != set(range(len(of_batch)))
    ]
    begin = kept[0].seq if kept and trimmed else 0
    if [event for event in exported if event.seq >= begin] != list(kept):
        found.append("they are not the events of the log")
    return found


def checked(campaign: Campaign, *, trimmed: bool = False) -> list[Event]:
    """Finish a campaign, and check that every event was exported once."""
    campaign.finish()
    exported, kept = campaign.exported(), list(read_log(campaign.folder))
    assert problems(exported, kept, trimmed=trimmed) == []
    assert campaign.leftovers() == []
    assert (kept[0].seq > 1) == trimmed
    return exported


@pytest.mark.long
def test_each_event_once_whatever_kills_the_exporter(tmp_path: Path) -> None:
    """The quick part: once at every point between two steps, and twice at any moment."""
    campaign = Campaign(tmp_path)
    for point in QUICK:
        campaign.die_at(point)
    for length_s in (0.05, 0.2):
        campaign.kill_after(length_s)
    exported = checked(campaign)
    assert campaign.kills == len(QUICK) + 2
    assert len(exported) > 100  # several times as many on a machine that has nothing else to do


@pytest.mark.long
def test_each_event_once_while_the_log_is_trimmed(tmp_path: Path) -> None:
    """What was exported goes from the store meanwhile; nothing goes before it was exported."""
    campaign = Campaign(tmp_path, EXPORT_RETENTION_S="600")
    for point in ("trimmed:1", "named:3", "trimmed:4"):
        campaign.die_at(point)
    checked(campaign, trimmed=True)


@pytest.mark.slow
@pytest.mark.parametrize("retention_s", [0, 1_800])
def test_each_event_once_after_many_kills(tmp_path: Path, retention_s: int) -> None:
    """The slow part: fifty kills, half of them at chosen points."""
    rng = random.Random(retention_s)
    campaign = Campaign(tmp_path, EXPORT_RETENTION_S=str(retention_s))
    points = POINTS if retention_s else POINTS[:-1]
    for turn in range(50):
        if turn % 2:
            campaign.kill_after(rng.uniform(0, 0.6))
        else:
            point = f"{rng.choice(points)}:{rng.randint(1, 6)}"
            campaign.die_at(point, EXPORT_MAX_ROWS=str(rng.choice((100, 400))))
    exported = checked(campaign, trimmed=bool(retention_s))
    assert campaign.kills == 50
    print(f"{len(exported)} events of {exported[-1].seq} batches")  # noqa: T201 - for who runs it with -s


@pytest.mark.long
def test_an_exporter_without_plans_is_found_out(tmp_path: Path) -> None:
    """Positive control: without the plan, a kill at the wrong moment doubles events."""
    campaign = Campaign(tmp_path, EXPORT_WITHOUT_PLANS="1")
    campaign.die_at("named:1", EXPORT_MAX_ROWS="40")
    campaign.finish()
    found = problems(campaign.exported(), list(read_log(tmp_path)), trimmed=False)
    assert any("there twice" in problem for problem in found), found


@pytest.mark.parametrize(
    ("lost", "found"),
    [
        (set(), []),
        ({2}, ["1 batches are missing, the first is 2"]),
        ({4}, []),
        ({1}, ["1 batches are missing, the first is 1"]),
    ],
)
def test_a_missing_batch_is_found_out(lost: set[int], found: list[str]) -> None:
    """Positive control: a batch that is in no file is seen, also the last one."""
    kept = sample()
    exported = [event for event in kept if event.seq not in lost]
    expected = [*found, "they are not the events of the log"] if lost else []
    assert problems(exported, kept, trimmed=False) == expected


def test_a_missing_event_is_found_out() -> None:
    """Positive control: so is part of a batch, even if the store has forgotten it."""
    events = sample()
    exported = [event for event in events if (event.seq, event.place) != (1, 0)]
    kept = [event for event in events if event.seq > 2]
    assert problems(exported, kept, trimmed=True) == ["batch 1 is not whole"]
    assert problems(events, kept, trimmed=True) == []
