"""The story: videos are uploaded, a crew processes them, and accidents happen on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from azure.core.exceptions import ResourceExistsError
from azure.storage.queue import QueueClient
from examples.video_pipeline import producer, videos
from examples.video_pipeline.accidents import Accidents
from examples.video_pipeline.catalogue import Catalogue
from examples.video_pipeline.checks import Evidence
from examples.video_pipeline.crew import Crew, WorkerCrew
from examples.video_pipeline.journal import Event, Journal, JournalReader
from examples.video_pipeline.ledger import Ledger
from examples.video_pipeline.loop import Loop, LoopOutcome
from examples.video_pipeline.poisoned import buried
from examples.video_pipeline.producer import Clip, Fate
from examples.video_pipeline.screen import Screen
from examples.video_pipeline.server_log import ServerLog, as_events

from leasehold.client import Client
from leasehold.client.errors import LeaseholdClientError
from leasehold.clock import SystemClock

LOOK_EVERY_S: Final = 0.1
DISMISS_WITHIN_S: Final = 300.0
LOOP: Final = "-posters"
"""What follows the queue's name in that of the feedback loop."""
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
    on: Literal["spark", "workers"]
    """Who does the work."""
    clips: tuple[Clip, ...]
    seconds: float
    """Footage per video."""
    lease_s: int
    workers: int
    timeout_s: float
    """How long nothing may happen until the story gives up."""
    tidy: bool
    """Whether to delete, in the end, the queues that the story has created."""


@dataclass(slots=True, kw_only=True)
class _Stage:
    """What the story plays on."""

    setting: Setting
    crew: Crew
    log: ServerLog | None
    """None: the service keeps no event log, as Azure."""
    screen: Screen
    began_s: float = 0.0
    began_ms: int = 0
    ended_s: float = 0.0

    @property
    def journals(self) -> Path:
        return self.setting.root / "journals"


def play(setting: Setting, screen: Screen) -> Evidence:
    """Play the whole story and return what is left of it.

    Raises:
        QueueInUse: One of the queues holds messages already.
    """
    for folder in ("videos", "scratch", "outputs", "journals", "logs"):
        (setting.root / folder).mkdir(exist_ok=True)
    with (
        _own_queue(setting, "") as queue,
        _own_queue(setting, "-poison") as poison,
        Client.from_connection_string(setting.connection_string) as client,
    ):
        with _loop(setting) as loop, _crew(setting) as crew:
            stage = _Stage(setting=setting, crew=crew, log=_log(setting, client), screen=screen)
            _prepare(stage)
            troubles = _process(stage, queue)
            report = crew.report()
            if setting.on == "spark":
                screen.say("Asking Spark SQL for the results …")
            results = None if troubles else crew.results()
            came_of_it = _outcome(loop, stage)
        screen.say("Looking at what is left …")
        changes = [] if stage.log is None else stage.log.changes
        ledger = _whole_ledger(stage)
        catalogue = Catalogue(setting.root)
        return Evidence(
            on=setting.on,
            clips=setting.clips,
            ledger=ledger,
            lease_s=setting.lease_s,
            outputs=_play_outputs(setting.root / "outputs"),
            catalogue=tuple(catalogue.entries()),
            late_write=_write_late(setting, ledger, catalogue),
            poison=tuple(buried(setting.on, client, poison, setting.queue, ledger)),
            left_in_queue=queue.get_queue_properties().approximate_message_count or 0,
            troubles=tuple(troubles),
            report=tuple(report),
            changes=tuple(changes),
            results=results,
            began_ms=stage.began_ms,
            ended_s=stage.ended_s,
            loop=came_of_it,
        )


@contextmanager
def _loop(setting: Setting) -> Iterator[Loop | None]:
    """Run the feedback loop beside the story; it needs Spark, and a server with an event log."""
    if setting.on != "spark":
        yield None
        return
    loop = Loop(setting.root, setting.connection_string, f"{setting.queue}{LOOP}")
    try:
        with loop:
            yield loop
    finally:
        if setting.tidy:
            loop.delete_queues()


def _outcome(loop: Loop | None, stage: _Stage) -> LoopOutcome | None:
    """Wait until enough was deleted under a new timeout, and return what came of it."""
    if loop is None:
        return None
    stage.screen.say("Looking at what the new timeout has changed …")
    loop.wait(stage.setting.timeout_s)
    return loop.outcome()


def _crew(setting: Setting) -> Crew:
    make: Callable[..., Crew] = WorkerCrew
    if setting.on == "spark":
        # Late: who lets workers do it needs no Spark.
        from examples.video_pipeline.spark_crew import SparkCrew  # noqa: PLC0415

        make = SparkCrew
    return make(
        setting.root,
        connection_string=setting.connection_string,
        queue=setting.queue,
        lease_s=setting.lease_s,
        workers=setting.workers,
    )


def _log(setting: Setting, client: Client) -> ServerLog | None:
    try:
        return ServerLog(client, setting.queue)
    except LeaseholdClientError:
        if setting.on == "spark":
            raise
        return None


def _prepare(stage: _Stage) -> None:
    """Make the videos, and meanwhile whatever the crew needs."""
    setting = stage.setting
    stage.screen.say(f"Making {len(setting.clips)} uploads of {setting.seconds:g} s each …")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        make = partial(producer.make, root=setting.root, seconds=setting.seconds)
        made = [pool.submit(make, clip) for clip in setting.clips]
        stage.crew.prepare(stage.screen.say)
        for each in made:
            each.result()


def _process(stage: _Stage, queue: QueueClient) -> list[str]:
    """Send the messages, let the crew work until all are settled, and return what went wrong."""
    setting = stage.setting
    stage.began_s, stage.began_ms = time.monotonic(), SystemClock().now_ms()
    journal = Journal(stage.journals, "story", stage.began_s)
    with stage.screen:
        jobs = [
            producer.order(clip, seconds=setting.seconds, lease_s=setting.lease_s)
            for clip in setting.clips
        ]
        together = list(zip(setting.clips, jobs, strict=True))
        ids = [producer.send(clip, job, queue, journal) for clip, job in together]
        if stage.log is not None:  # elsewhere nothing but a receipt gives the right to do so
            for (clip, job), message_id in zip(together, ids, strict=True):
                producer.change_mind(clip, message_id, job, stage.log.queue, journal)
        stage.crew.begin(stage.began_s)
        troubles = _follow(stage, Accidents(stage.crew, journal, setting.clips))
        stage.ended_s = time.monotonic() - stage.began_s
        if setting.on == "spark":
            stage.screen.say("Stopping the pipeline …")
        ended_badly = stage.crew.dismiss(0 if troubles else DISMISS_WITHIN_S)
    return troubles or ended_badly


def _follow(stage: _Stage, accidents: Accidents) -> list[str]:
    """Show what happens until every message is settled; return what went wrong."""
    news, ledger = JournalReader(stage.journals), Ledger()
    happened_at_s = time.monotonic()
    while not (ledger.records and ledger.settled):
        for event in _by_time(news.news(), _server_news(stage, ledger)):
            happened_at_s = time.monotonic()
            ledger.apply(event)
            accidents.watch(event)
            stage.screen.show(event)
        stage.screen.update(ledger)
        if time.monotonic() - happened_at_s > stage.setting.timeout_s:
            return [f"nothing has happened for {stage.setting.timeout_s:g} s"]
        if vanished := stage.crew.vanished():
            return [f"{', '.join(vanished)} ended early, see {stage.setting.root / 'logs'}"]
        time.sleep(LOOK_EVERY_S)
    return []


def _server_news(stage: _Stage, ledger: Ledger) -> list[Event]:
    if stage.log is None:
        return []
    changes = stage.log.news()
    # Workers write of renewals and ends in their journals themselves.
    return as_events(changes, ledger, stage.began_ms) if stage.setting.on == "spark" else []


def _whole_ledger(stage: _Stage) -> Ledger:
    """Return the ledger made anew, from everything that was written."""
    noted = JournalReader(stage.journals).news()
    told: list[Event] = []
    if stage.log is not None:
        stage.log.news()
        if stage.setting.on == "spark":
            told = as_events(stage.log.changes, _ledger(noted), stage.began_ms)
    return _ledger(_by_time(noted, told))


def _ledger(events: list[Event]) -> Ledger:
    ledger = Ledger()
    for event in events:
        ledger.apply(event)
    return ledger


def _by_time(*some: list[Event]) -> list[Event]:
    return sorted((event for each in some for event in each), key=lambda event: event["at_s"])


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


def _write_late(setting: Setting, ledger: Ledger, catalogue: Catalogue) -> str:
    """Write what somebody would write who never notices the loss of the lease.

    Returns:
        How that was refused; empty text if it was not, or if there was nothing to be spoilt.
    """
    (victim,) = (clip.video for clip in setting.clips if clip.fate is Fate.SUSPENDED)
    if not ledger.records[victim].deliveries:  # the time was over before it was its turn
        return ""
    first = ledger.records[victim].deliveries[0]
    scratch = setting.root / "scratch" / f"{victim}.late"
    return catalogue.write_late(scratch, victim, first.worker, first.fence)


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
