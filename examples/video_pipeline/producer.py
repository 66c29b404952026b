"""Marketing at Coho Winery: makes the videos, uploads them, and puts one message per video."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from azure.storage.queue import QueueClient
from examples.video_pipeline import signatures, videos
from examples.video_pipeline.journal import Journal
from examples.video_pipeline.videos import Rendition
from examples.video_pipeline.work import Job

from leasehold.client import QueueHandle

TIME_TO_LIVE_S: Final = 3 * 86_400
"""A message that nobody has processed three days later is of no use to anybody."""
FORMATS: Final = (
    Rendition(name="mp4", video_codec="libx264", audio_codec="aac", kbit_s=400, height=240),
    Rendition(name="webm", video_codec="libvpx", audio_codec="libopus", kbit_s=400, height=240),
)
COMPRESSED: Final = Rendition(
    name="small.mp4", video_codec="libx264", audio_codec="aac", kbit_s=80, height=120
)


SMALLER: Final = replace(COMPRESSED, height=90)
"""What Marketing wants instead, once it has seen the film on a telephone."""


class Fate(StrEnum):
    """What the story has in store for a video."""

    ORDINARY = "ordinary"
    LONG = "long"
    """Its encoding outlasts the lease."""
    KILLED = "killed"
    """The first worker that encodes it is killed."""
    SUSPENDED = "suspended"
    """The first worker that encodes it stands still until another has its message."""
    CORRUPT = "corrupt"
    """Its upload broke off."""
    INFECTED = "infected"
    """It is no video, but what scanners look for."""
    CHANGED = "changed"
    """Its instructions are others before its delay is over."""
    CANCELLED = "cancelled"
    """It is taken back before its delay is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """One video of the story."""

    video: str
    picture: str
    """One of ffmpeg's lavfi video sources."""
    tone_hz: int
    fate: Fate = Fate.ORDINARY
    delay_s: int = 0
    """Seconds that Marketing keeps for changing its mind."""

    @property
    def paced(self) -> bool:
        """Whether the encoders must take their time, so that things can happen meanwhile."""
        return self.fate in {Fate.LONG, Fate.KILLED, Fate.SUSPENDED}


BAD: Final = frozenset({Fate.CORRUPT, Fate.INFECTED})
"""What ends in the poison queue."""
UNUSED: Final = BAD | {Fate.CANCELLED}
"""Of what there are no outputs."""
CLIPS: Final = (
    Clip(video="harvest-tour", picture="testsrc2", tone_hz=262, fate=Fate.KILLED),
    Clip(video="vineyard-film", picture="sierpinski", tone_hz=330, fate=Fate.LONG),
    Clip(video="free-tickets", picture="", tone_hz=0, fate=Fate.INFECTED),
    Clip(video="broken-upload", picture="smptehdbars", tone_hz=349, fate=Fate.CORRUPT),
    Clip(video="cellar-walk", picture="mandelbrot", tone_hz=294, fate=Fate.SUSPENDED),
    Clip(video="spring-release", picture="life", tone_hz=392, delay_s=4, fate=Fate.CHANGED),
    Clip(video="staff-party", picture="rgbtestsrc", tone_hz=587, delay_s=8, fate=Fate.CANCELLED),
    Clip(video="tasting-room", picture="cellauto", tone_hz=440),
    Clip(video="barrel-making", picture="zoneplate", tone_hz=494),
    Clip(video="club-news", picture="gradients", tone_hz=523, delay_s=8),
)
FEWEST: Final = 6
"""The first six clips have every fate but one, and one delay among them."""


def make(clip: Clip, root: Path, seconds: float) -> None:
    """Make the file of *clip* under *root*, as if it had been uploaded there."""
    path = root / _path(clip)
    if clip.fate is Fate.INFECTED:
        path.write_bytes(signatures.eicar())
        return
    videos.make_video(path, picture=clip.picture, tone_hz=clip.tone_hz, seconds=seconds)
    if clip.fate is Fate.CORRUPT:
        videos.break_off(path)


def order(clip: Clip, *, seconds: float, lease_s: int) -> Job:
    """Return everything that a worker must know to process *clip*.

    A paced clip takes about one lease per format, however fast the machine is.
    """
    return Job(
        video=clip.video,
        input=_path(clip),
        formats=FORMATS,
        compressed=COMPRESSED,
        pace=seconds / lease_s if clip.paced else None,
    )


def send(clip: Clip, job: Job, queue: QueueClient, journal: Journal) -> str:
    """Put the message for *clip*, and return its id."""
    journal.note("sent", video=clip.video, delay_s=clip.delay_s)
    sent = queue.send_message(
        job.to_text(), visibility_timeout=clip.delay_s, time_to_live=TIME_TO_LIVE_S
    )
    journal.note("queued", video=clip.video, message_id=sent.id)
    return sent.id


def change_mind(
    clip: Clip, message_id: str, job: Job, queue: QueueHandle, journal: Journal
) -> None:
    """Change or take back a message that is hidden still, as Marketing wants for *clip*.

    Who has sent it needs no receipt for that, only its id.
    """
    if clip.fate is Fate.CHANGED:
        queue.amend(message_id, body=replace(job, compressed=SMALLER).to_text())
        journal.note("changed", video=clip.video, height=SMALLER.height)
    elif clip.fate is Fate.CANCELLED:
        queue.remove(message_id)
        journal.note("cancelled", video=clip.video)


def expected_outputs(clips: tuple[Clip, ...]) -> set[str]:
    """Return the names of the files that must be there in the end, and no others."""
    return {
        f"{clip.video}.{rendition.name}"
        for clip in clips
        if clip.fate not in UNUSED
        for rendition in (*FORMATS, COMPRESSED)
    }


def _path(clip: Clip) -> str:
    return f"videos/{clip.video}.mp4"
