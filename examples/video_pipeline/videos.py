"""What is done to video files, through ffmpeg. Nothing in this module knows of queues."""

from __future__ import annotations

import os
import re
import select
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import imageio_ffmpeg

FFMPEG: Final[str] = imageio_ffmpeg.get_ffmpeg_exe()
CHECK_EVERY_S: Final = 0.1
"""How often it is asked whether a running ffmpeg should stop, in seconds."""
_SPEED: Final = {
    "libx264": ("-preset", "veryfast"),
    "libvpx": ("-deadline", "realtime", "-cpu-used", "8"),
}
_SOURCE_HEIGHT: Final = 240


class BadVideo(Exception):
    """ffmpeg could not read or write the file; the text is its first complaint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendition:
    """One form in which a video is wanted."""

    name: str
    """End of the file's name, such as ``small.mp4``; the last part names the container."""
    video_codec: str
    audio_codec: str
    kbit_s: int
    """Bits of picture per second of footage, in thousands."""
    height: int
    """Lines of the picture; its width follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """How a running ffmpeg is watched and stopped."""

    check: Callable[[], None] | None = None
    """Called about ten times a second; ffmpeg is killed if it raises."""
    on_time: Callable[[float], None] | None = None
    """Called about five times a second with the seconds of footage put out so far."""


def make_video(path: Path, *, picture: str, tone_hz: int, seconds: float) -> None:
    """Draw a test picture with a tone; *picture* is one of ffmpeg's lavfi video sources."""
    source = f"{picture}=size={_SOURCE_HEIGHT * 16 // 9 // 2 * 2}x{_SOURCE_HEIGHT}:rate=25"
    tone = f"sine=frequency={tone_hz}"
    sources = ("-f", "lavfi", "-i", source, "-f", "lavfi", "-i", tone, "-t", str(seconds))
    codecs = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac")
    run_ffmpeg((*sources, *codecs, "-y", str(path)))


def break_off(path: Path) -> None:
    """Cut the file in half, as an upload does whose connection broke."""
    os.truncate(path, path.stat().st_size // 2)


def decode(path: Path, control: Control | None = None) -> float:
    """Decode the whole file and return the seconds of footage in it.

    Raises:
        BadVideo: The file cannot be decoded from its first to its last frame.
        Exception: What *control* raises.
    """
    return run_ffmpeg(("-xerror", "-i", str(path), "-f", "null", "-"), control)


def encode(
    source: Path,
    target: Path,
    rendition: Rendition,
    *,
    pace: float | None = None,
    control: Control | None = None,
) -> None:
    """Write *source* to *target* in the form of *rendition*; a failure leaves no *target*.

    *pace* is the footage read per second, in seconds, at most; None is as fast as it goes.

    Raises:
        BadVideo: ffmpeg failed.
        Exception: What *control* raises.
    """
    reading = () if pace is None else ("-readrate", f"{pace:.3f}")
    picture = ("-vf", f"scale=-2:{rendition.height}", "-c:v", rendition.video_codec)
    rate = ("-b:v", f"{rendition.kbit_s}k", *_SPEED.get(rendition.video_codec, ()))
    container = rendition.name.rpartition(".")[2]
    # One thread per ffmpeg: the workers are the parallelism, as on a farm of small machines.
    writing = ("-c:a", rendition.audio_codec, "-threads", "1", "-f", container, "-y", str(target))
    try:
        run_ffmpeg((*reading, "-i", str(source), *picture, *rate, *writing), control)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def run_ffmpeg(arguments: tuple[str, ...], control: Control | None = None) -> float:
    """Run ffmpeg to its end and return the seconds of footage it put out."""
    reports = ("-stats_period", "0.2", "-progress", "pipe:1")
    command = (FFMPEG, "-nostdin", "-hide_banner", "-v", "error", *reports, *arguments)
    # Complaints go to a file: a full pipe that nobody reads would stop ffmpeg.
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints
        ) as process,
    ):
        try:
            written_s = _follow(process, control or Control())
        except BaseException:
            process.kill()
            raise
        if process.wait() != 0:
            complaints.seek(0)
            raise BadVideo(_first_complaint(complaints.read().decode(errors="replace")))
    return written_s


def _follow(process: subprocess.Popen[bytes], control: Control) -> float:
    """Read ffmpeg's progress until it ends."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    unread, written_s = b"", 0.0
    while True:
        if control.check is not None:
            control.check()
        if not select.select([pipe], [], [], CHECK_EVERY_S)[0]:
            continue
        chunk = os.read(pipe, 65_536)
        if not chunk:
            return written_s
        *lines, unread = (unread + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.partition(b"=")
            if name == b"out_time_us" and value.isdigit():
                written_s = int(value) / 1e6
                if control.on_time is not None:
                    control.on_time(written_s)


def _first_complaint(text: str) -> str:
    """Return ffmpeg's first line without the address of the part that wrote it."""
    lines = text.strip().splitlines() or ["ffmpeg failed without a word"]
    return re.sub(r"^\[[^\]]*\] ", "", lines[0])
