"""Marketing at Coho Winery: makes the videos, uploads them, and puts one message per video."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from azure.storage.queue import QueueClient
from examples.video_pipeline import signatures, videos
from examples.video_pipeline.journal import Journal
from examples.video_pipeline.videos import Rendition
from examples.video_pipeline.work import Job

TIME_TO_LIVE_S: Final = 3 * 86_400
"""A message that nobody has processed three days later is of no use to anybody."""
FORMATS: Final = (
    Rendition(name="mp4", video_codec="libx264", audio_codec="aac", kbit_s=400, height=240),
    Rendition(name="webm", video_codec="libvpx", audio_codec="libopus", kbit_s=400, height=240),
)
COMPRESSED: Final = Rendition(
    name="small.mp4", video_codec="libx264", audio_codec="aac", kbit_s=80, height=120
)


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
CLIPS: Final = (
    Clip(video="harvest-tour", picture="testsrc2", tone_hz=262, fate=Fate.KILLED),
    Clip(video="vineyard-film", picture="sierpinski", tone_hz=330, fate=Fate.LONG),
    Clip(video="free-tickets", picture="", tone_hz=0, fate=Fate.INFECTED),
    Clip(video="broken-upload", picture="smptehdbars", tone_hz=349, fate=Fate.CORRUPT),
    Clip(video="cellar-walk", picture="mandelbrot", tone_hz=294, fate=Fate.SUSPENDED),
    Clip(video="spring-release", picture="life", tone_hz=392, delay_s=4),
    Clip(video="tasting-room", picture="cellauto", tone_hz=440),
    Clip(video="barrel-making", picture="zoneplate", tone_hz=494),
    Clip(video="club-news", picture="gradients", tone_hz=523, delay_s=8),
)
FEWEST: Final = 6
"""The first six clips have every fate and one delay among them."""


def make(clip: Clip, root: Path, seconds: float) -> None:
    """Make the file of *clip* under *root*, as if it had been uploaded there."""
    path = root / _path(clip)
    if clip.fate is Fate.INFECTED:
        path.write_bytes(signatures.eicar())
        return
    videos.make_video(path, picture=clip.picture, tone_hz=clip.tone_hz, seconds=seconds)
    if clip.fate is Fate.CORRUPT:
        videos.break_off(path)


def send(clip: Clip, queue: QueueClient, journal: Journal, *, seconds: float, lease_s: int) -> None:
    """Put the message for *clip*, with everything a worker must know to process it.

    A paced clip takes about one lease per format, however fast the machine is.
    """
    job = Job(
        video=clip.video,
        input=_path(clip),
        formats=FORMATS,
        compressed=COMPRESSED,
        pace=seconds / lease_s if clip.paced else None,
    )
    journal.note("sent", video=clip.video, delay_s=clip.delay_s)
    sent = queue.send_message(
        job.to_text(), visibility_timeout=clip.delay_s, time_to_live=TIME_TO_LIVE_S
    )
    journal.note("queued", video=clip.video, message_id=sent.id)


def expected_outputs(clips: tuple[Clip, ...]) -> set[str]:
    """Return the names of the files that must be there in the end, and no others."""
    return {
        f"{clip.video}.{rendition.name}"
        for clip in clips
        if clip.fate not in BAD
        for rendition in (*FORMATS, COMPRESSED)
    }


def _path(clip: Clip) -> str:
    return f"videos/{clip.video}.mp4"
