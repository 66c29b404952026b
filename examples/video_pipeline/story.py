"""The story: videos are uploaded, workers process them, and accidents happen on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from azure.core.exceptions import ResourceExistsError
from azure.storage.queue import QueueClient
from examples.video_pipeline import producer, videos
from examples.video_pipeline.catalogue import Catalogue
from examples.video_pipeline.checks import Evidence
from examples.video_pipeline.crew import Crew
from examples.video_pipeline.journal import Event, Journal, JournalReader
from examples.video_pipeline.ledger import Ledger
from examples.video_pipeline.producer import Clip, Fate
from examples.video_pipeline.screen import Screen

from leasehold.worker.once import Fenced
from leasehold.worker.stages import EnvelopeForm

LOOK_EVERY_S: Final = 0.05
DISMISS_WITHIN_S: Final = 15.0
STRIKE_AT_PERCENT: Final = 20
"""How far an encode must have come when the accident happens."""
_AT_ONCE: Final = 2
"""Videos made or checked at the same time."""


class QueueInUse(Exception):
    """The story would mix its messages with somebody else's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How big the story is, and where it plays."""

    root: Path
    connection_string: str
    queue: str
    clips: tuple[Clip, ...]
    seconds: float
    """Footage per video."""
    lease_s: int
    workers: int
    timeout_s: float
    tidy: bool
    """Whether to delete, in the end, the queues that the story has created."""


class Accidents:
    """Kills one worker and suspends another, each in the middle of an encode.

    Not the clock but the journals say when: the encode of the chosen video has to be under way.
    """

    def __init__(self, crew: Crew, journal: Journal, clips: tuple[Clip, ...]) -> None:
        self._crew = crew
        self._journal = journal
        self._fates = {clip.video: clip.fate for clip in clips}
        self._struck: dict[Fate, str] = {}
        self._asleep = False

    def watch(self, event: Event) -> None:
        """Let happen what is to happen on this event."""
        fate = self._fates.get(event.get("video", ""), Fate.ORDINARY)
        if fate not in {Fate.KILLED, Fate.SUSPENDED}:
            return
        who = event["who"]
        under_way = event["event"] == "progress" and event["percent"] >= STRIKE_AT_PERCENT
        if under_way and fate not in self._struck:
            self._struck[fate] = who
            facts = {each: event[each] for each in ("video", "stage", "percent")}
            if fate is Fate.KILLED:
                self._crew.kill(who)
                self._journal.note("killed", worker=who, **facts)
                self._crew.start()  # as a supervisor would
            else:
                self._crew.suspend(who)
                self._asleep = True
                self._journal.note("suspended", worker=who, **facts)
        elif event["event"] == "received" and self._asleep and fate is Fate.SUSPENDED:
            sleeper = self._struck[fate]
            self._crew.wake(sleeper)
            self._asleep = False
            self._journal.note("woken", worker=sleeper, video=event["video"])


def play(setting: Setting, screen: Screen) -> Evidence:
    """Play the whole story and return what is left of it.

    Raises:
        QueueInUse: One of the queues holds messages already.
    """
    with _own_queue(setting, "") as queue, _own_queue(setting, "-poison") as poison:
        for folder in ("videos", "scratch", "outputs", "journals", "logs"):
            (setting.root / folder).mkdir(exist_ok=True)
        screen.say(f"Making {len(setting.clips)} videos of {setting.seconds:g} s each …")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            make = partial(producer.make, root=setting.root, seconds=setting.seconds)
            list(pool.map(make, setting.clips))
        troubles = _process(setting, queue, screen)
        screen.say("Looking at what is left …")
        ledger = Ledger()
        for event in JournalReader(setting.root / "journals").news():
            ledger.apply(event)
        catalogue = Catalogue(setting.root)
        return Evidence(
            clips=setting.clips,
            ledger=ledger,
            lease_s=setting.lease_s,
            outputs=_play_outputs(setting.root / "outputs"),
            catalogue=tuple(catalogue.entries()),
            late_write=_write_late(setting, ledger, catalogue),
            poison=tuple(_buried(poison)),
            left_in_queue=queue.get_queue_properties().approximate_message_count or 0,
            troubles=tuple(troubles),
        )


def _process(setting: Setting, queue: QueueClient, screen: Screen) -> list[str]:
    """Send the messages, let the crew work until all are settled, and return what went wrong."""
    began_s = time.monotonic()
    journal = Journal(setting.root / "journals", "story", began_s)
    news, ledger, troubles = JournalReader(setting.root / "journals"), Ledger(), []
    crew = Crew(
        setting.root,
        connection_string=setting.connection_string,
        queue=setting.queue,
        lease_s=setting.lease_s,
        began_s=began_s,
    )
    with crew, screen:
        for clip in setting.clips:
            producer.send(clip, queue, journal, seconds=setting.seconds, lease_s=setting.lease_s)
        for _ in range(setting.workers):
            crew.start()
        accidents = Accidents(crew, journal, setting.clips)
        while not (ledger.records and ledger.settled):
            for event in news.news():
                ledger.apply(event)
                accidents.watch(event)
                screen.show(event)
            screen.update(ledger)
            if time.monotonic() - began_s > setting.timeout_s:
                troubles.append(f"not done within {setting.timeout_s:g} s")
                break
            if vanished := crew.vanished():
                troubles.append(f"{', '.join(vanished)} ended early, see logs/{vanished[0]}.log")
                break
            time.sleep(LOOK_EVERY_S)
        ended_badly = crew.dismiss(0 if troubles else DISMISS_WITHIN_S)
    return troubles or ended_badly


@contextmanager
def _own_queue(setting: Setting, suffix: str) -> Iterator[QueueClient]:
    """Create a queue; one that exists may be used if there is nothing in it."""
    name = setting.queue + suffix
    queue = QueueClient.from_connection_string(setting.connection_string, name)
    created = True
    try:
        queue.create_queue()
    except ResourceExistsError:
        created = False
        if queue.get_queue_properties().approximate_message_count:
            raise QueueInUse(f"queue {name} holds messages already; name another one") from None
    try:
        yield queue
    finally:
        if created and setting.tidy:
            queue.delete_queue()


def _buried(poison: QueueClient) -> Iterator[dict[str, object]]:
    """Yield what is in the poison queue, the reasons of earlier tries taken out of the progress."""
    for message in poison.peek_messages(max_messages=32):
        copy = json.loads(message.content)
        _, saved = EnvelopeForm().unwrap(copy["text"])
        yield {**copy, "earlier": saved.state["failures"] if saved else []}


def _write_late(setting: Setting, ledger: Ledger, catalogue: Catalogue) -> str:
    """Write what a worker would write that never notices the loss of its lease.

    Returns:
        How that was refused; empty text if it was not, or if there was nothing to be spoilt.
    """
    (victim,) = (clip.video for clip in setting.clips if clip.fate is Fate.SUSPENDED)
    name = f"{victim}.{producer.FORMATS[0].name}"
    if not catalogue.has(name):
        return ""
    first = ledger.records[victim].deliveries[0]
    scratch = setting.root / "scratch" / f"{name}.late"
    scratch.write_text("half a video")
    try:
        catalogue.publish(scratch, name, first.worker, first.dequeue_count)
    except Fenced as error:
        return f"fence {error.fence} is too old, {error.newest} was here"
    return ""


def _play_outputs(folder: Path) -> dict[str, str]:
    """Decode every output; returns per file the first complaint, or an empty text."""

    def complaint(path: Path) -> str:
        try:
            videos.decode(path)
        except videos.BadVideo as error:
            return str(error)
        return ""

    paths = sorted(folder.iterdir())
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip((path.name for path in paths), pool.map(complaint, paths), strict=True))
