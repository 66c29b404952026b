"""The work order inside a message, and the three stages that carry it out.

The text of a message is ``[2 digits of state][the job as JSON]``. Whoever receives it sees from
the first two characters which stage comes next, and in the job what earlier stages found out.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from examples.video_pipeline import videos
from examples.video_pipeline.videos import Rendition


class State(IntEnum):
    """What is to be done next."""

    SCAN = 1
    ENCODE = 2
    COMPRESS = 3
    COMPLETED = 4

    @property
    def stage(self) -> str:
        """The name of the stage, as the journals and the final table show it."""
        return self.name.lower()


class BadMessage(Exception):
    """The text of the message is not a work order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the scan found out; later stages use it and never ask again."""

    sha256: str
    size_bytes: int
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The instructions for one video, and what has come of them so far."""

    video: str
    """Name of the video; the names of all its outputs are made from it."""
    input: str
    """Path of the uploaded file, relative to the folder of the run."""
    formats: tuple[Rendition, ...]
    compressed: Rendition
    pace: float | None = None
    """Seconds of footage an encoder may read per second; None is no limit."""
    found: Found | None = None
    failures: tuple[str, ...] = ()
    """Why earlier attempts failed, oldest first."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the files that this job leaves behind."""
        return tuple(f"{self.video}.{each.name}" for each in (*self.formats, self.compressed))


def to_text(state: State, job: Job) -> str:
    """Return the text of the message."""
    return f"{state:02d}{json.dumps(asdict(job), separators=(',', ':'))}"


def from_text(text: str) -> tuple[State, Job]:
    """Read the text of a message; raises BadMessage if it is not a work order."""
    try:
        facts: dict[str, Any] = json.loads(text[2:])
        facts["formats"] = tuple(Rendition(**each) for each in facts["formats"])
        facts["compressed"] = Rendition(**facts["compressed"])
        facts["found"] = facts["found"] and Found(**facts["found"])
        facts["failures"] = tuple(facts["failures"])
        return State(int(text[:2])), Job(**facts)
    except (ValueError, KeyError, TypeError) as error:
        raise BadMessage(f"not a work order: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Where the stages work, and how they speak to whoever runs them."""

    root: Path
    """Folder of the run, with ``videos``, ``scratch`` and ``outputs`` in it."""
    worker: str
    """Name of the worker; keeps its scratch files apart from those of others."""
    cancelled: threading.Event
    """Set when the work is no longer wanted, because the message is no longer ours."""
    confirm: Callable[[], None]
    """Called before an output is published; raises if the message is no longer ours."""
    note: Callable[..., None]
    """Writes an event and its facts to the journal."""


def run_stage(state: State, job: Job, shop: Workshop) -> Job:
    """Do what *state* asks for and return the job with what was found out.

    Raises:
        BadVideo: The file cannot be processed.
        Cancelled: The work is no longer wanted.
    """
    source = shop.root / job.input
    if state is State.SCAN:
        return replace(job, found=_scan(source, shop))
    if state is State.ENCODE:
        for number, rendition in enumerate(job.formats):
            _produce(job, source, rendition, shop, share=(number, len(job.formats)))
    elif state is State.COMPRESS:
        encoded = shop.root / "outputs" / job.outputs[0]
        _produce(replace(job, pace=None), encoded, job.compressed, shop, share=(0, 1))
    return job


def _scan(source: Path, shop: Workshop) -> Found:
    """Read every byte and decode every frame."""
    if not source.is_file():
        raise videos.BadVideo(f"{source.name} does not exist")
    with source.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        duration_s = videos.decode(source, videos.Control(cancelled=shop.cancelled))
    except videos.BadVideo as error:
        raise videos.BadVideo(f"unreadable: {error}") from error
    return Found(sha256=sha256, size_bytes=source.stat().st_size, duration_s=duration_s)


def _produce(
    job: Job, source: Path, rendition: Rendition, shop: Workshop, *, share: tuple[int, int]
) -> None:
    """Make one output unless it is there already: a message may be delivered more than once.

    *share* says which output of how many this is, for the progress.
    """
    final = shop.root / "outputs" / f"{job.video}.{rendition.name}"
    if final.exists():
        shop.note("already-there", output=final.name)
        return
    scratch = shop.root / "scratch" / f"{final.name}.{shop.worker}"
    duration_s = job.found.duration_s if job.found else 0.0
    told = 0

    def on_time(written_s: float) -> None:
        nonlocal told
        fraction = min(written_s / duration_s, 1.0) if duration_s else 0.0
        percent = round(100 * (share[0] + fraction) / share[1])
        if percent > told:
            told = percent
            shop.note("progress", percent=percent)

    control = videos.Control(cancelled=shop.cancelled, on_time=on_time)
    videos.encode(source, scratch, rendition, pace=job.pace, control=control)
    shop.confirm()
    published = _publish(scratch, final)
    shop.note("published" if published else "already-there", output=final.name)


def _publish(scratch: Path, final: Path) -> bool:
    """Give the finished file its name, whole and once; return whether this call did it.

    A link fails where a rename would replace what somebody else has published meanwhile.
    """
    with scratch.open("rb") as file:
        os.fsync(file.fileno())
    published = False
    with suppress(FileExistsError):
        os.link(scratch, final)
        published = True
    scratch.unlink()
    return published
