"""The work order inside a message, and the three stages that carry it out.

Nothing here knows whether a worker or an executor of Spark runs it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from examples.video_pipeline import signatures, videos
from examples.video_pipeline.catalogue import Catalogue
from examples.video_pipeline.videos import Rendition

from leasehold.worker import Poison
from leasehold.worker.stages import StageHooks, StageMessage, Stages

WEIGHTS: Final = {"scan": 1, "encode": 8, "compress": 1}
"""The stages in their order, with how much of the work each is."""
STAGES: Final = tuple(WEIGHTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The instructions for one video."""

    video: str
    """Name of the video; the names of all its outputs are made from it."""
    input: str
    """Path of the uploaded file, relative to the folder of the run."""
    formats: tuple[Rendition, ...]
    compressed: Rendition
    pace: float | None = None
    """Seconds of footage an encoder may read per second; None is no limit."""

    def to_text(self) -> str:
        """Return the body of the message."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of(cls, message: Any) -> Job:
        """Return the work order in a message.

        Raises:
            Poison: It is none, and will not read any better the next time.
        """
        try:
            return cls.from_body(message.body)
        except ValueError as error:
            raise Poison(str(error)) from error

    @classmethod
    def from_body(cls, body: bytes) -> Job:
        """Read the body of a message.

        Raises:
            ValueError: It is not a work order.
        """
        try:
            facts: dict[str, Any] = json.loads(body)
            facts["formats"] = tuple(Rendition(**each) for each in facts["formats"])
            facts["compressed"] = Rendition(**facts["compressed"])
            return cls(**facts)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a work order: {error!r}") from error


class Workshop:
    """Does the stages of one worker.

    What a stage returns is saved with the message, and is what the next stage gets, whoever that
    is done by.

    Args:
        root: Folder of the run, with ``videos``, ``scratch`` and ``outputs`` in it.
        worker: Name of the worker; keeps its scratch files apart from those of others.
        note: Writes an event and its facts to the journal.
    """

    def __init__(self, root: Path, worker: str, note: Callable[..., None]) -> None:
        self._root = root
        self._worker = worker
        self._note = note
        self._catalogue = Catalogue(root)

    def pipeline(self, *hooks: StageHooks) -> Stages:
        """Return the stages, as a handler for the worker."""
        pipeline = Stages(hooks=hooks)
        for name, weight in WEIGHTS.items():
            pipeline.stage(name, weight=weight)(getattr(self, name))
        return pipeline

    def scan(self, message: StageMessage, state: dict[str, Any] | None) -> dict[str, Any]:
        """Look for signatures and decode every frame; return what was found out."""
        source = self._root / Job.of(message).input
        if found := signatures.scan(source):
            # Nobody shall try again: it would be there the next time too.
            raise Poison(f"signature: {', '.join(found)}")
        try:
            duration_s = videos.decode(source, videos.Control(check=message.check))
        except videos.BadVideo as error:
            # With the message, so that whoever looks at it in the end sees why each try failed.
            failures = [*(state or {}).get("failures", []), f"{self._worker}: {error}"]
            message.checkpoint({"failures": failures})
            raise videos.BadVideo(f"unreadable: {error}") from error
        with source.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return {"sha256": sha256, "size_bytes": source.stat().st_size, "duration_s": duration_s}

    def encode(self, message: StageMessage, found: dict[str, Any]) -> dict[str, Any]:
        """Make the formats that the web site shows."""
        job = Job.of(message)
        for number, rendition in enumerate(job.formats):
            share = (number, len(job.formats))
            self._produce(message, found, rendition, self._root / job.input, share=share)
        return found

    def compress(self, message: StageMessage, found: dict[str, Any]) -> dict[str, Any]:
        """Make the small one, out of the first format; return all that the web site must know."""
        job = Job.of(message)
        encoded = self._root / "outputs" / f"{job.video}.{job.formats[0].name}"
        self._produce(message, found, job.compressed, encoded, share=(0, 1))
        made = [f"{job.video}.{each.name}" for each in (*job.formats, job.compressed)]
        return {**found, "outputs": made, "small_height": job.compressed.height}

    def _produce(
        self,
        message: StageMessage,
        found: dict[str, Any],
        rendition: Rendition,
        source: Path,
        *,
        share: tuple[int, int],
    ) -> None:
        """Make one output unless it is there already: a message may be delivered more than once.

        *share* says which output of how many this is, for the progress.
        """
        job = Job.of(message)
        name = f"{job.video}.{rendition.name}"
        if self._catalogue.has(name):
            self._note("already-there", video=job.video, stage=message.stage, output=name)
            return
        told = 0

        def on_time(written_s: float) -> None:
            nonlocal told
            fraction = min(written_s / found["duration_s"], 1.0)
            percent = round(100 * (share[0] + fraction) / share[1])
            if percent > told:
                told = percent
                self._note("progress", video=job.video, stage=message.stage, percent=percent)

        scratch = self._root / "scratch" / f"{name}.{self._worker}"
        pace = job.pace if message.stage == "encode" else None
        control = videos.Control(check=message.check, on_time=on_time)
        videos.encode(source, scratch, rendition, pace=pace, control=control)
        message.check()
        if self._catalogue.publish(scratch, name, self._worker, message.fence):
            self._note("published", video=job.video, stage=message.stage, output=name)
