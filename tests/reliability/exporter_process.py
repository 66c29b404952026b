"""A real engine that works and exports, in a process of its own, to be killed.

Run as ``python -m tests.reliability.exporter_process FOLDER``. It prints ``ready`` once it works,
and ends when its standard input is closed, with everything exported. The environment says how:

- ``EXPORT_KILL_AT=point:n``: end with SIGKILL the n-th time it comes to a point; see ``POINTS``.
- ``EXPORT_RETENTION_S``: trim batches of more than so many (fast) seconds.
- ``EXPORT_MAX_ROWS``: events of one file, which may be others after the next start.
- ``EXPORT_TO_THE_END=1``: at the end, wait until everything is exported.
- ``EXPORT_WITHOUT_PLANS=1``: forget plans, and look at nothing in the folder: a control.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

from leasehold import disk
from leasehold.clock import SystemClock
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.events import Event, EventPage, KeepNote, ReadEvents, TrimEvents
from leasehold.engine import Engine, event_export
from leasehold.engine.event_export import EventLogPlan
from leasehold.events import files, parquet
from leasehold.http.logs import configure_logs
from leasehold.stores.sqlite import SqliteStore

POINTS: Final = (
    "gathered",
    "plan-noted",
    "written",
    "synced",
    "named",
    "done-noted",
    "trimmed",
)
"""Just after it has happened; ``synced`` is each of several syncs."""
START_MS: Final = 1_795_255_200_000
FASTER: Final = 3_600
"""An hour of the log passes each second, so that there are many folders."""
EPOCH_MS: Final = "started_ms"
_WORKERS: Final = 6
_ENTROPY: Final = b"0123456789"


class FastClock(SystemClock):
    """Runs on fast, also from one process to the next."""

    def __init__(self, began_ms: int) -> None:
        super().__init__()
        self._began_ms = began_ms

    def now_ms(self) -> int:
        """See ``Clock``."""
        return START_MS + (super().now_ms() - self._began_ms) * FASTER


class Deadly:
    """Ends the process when it comes to a point for the n-th time."""

    def __init__(self, wanted: str) -> None:
        point, _, number = wanted.partition(":")
        assert not wanted or point in POINTS, wanted
        self._point, self._number = point, int(number or 0)
        self._seen: Counter[str] = Counter()

    def reached(self, point: str) -> None:
        """Say that the process has come to a point."""
        self._seen[point] += 1
        if point == self._point and self._seen[point] == self._number:
            os.kill(os.getpid(), signal.SIGKILL)

    def after(self, point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that comes to a point when it has done its work."""

        def run(*args: Any, **more: Any) -> Any:
            result = function(*args, **more)
            self.reached(point)
            return result

        return run


def lay_traps(deadly: Deadly, engine: Engine) -> None:
    """Let the exporter come to the points."""
    exporter = engine.exporter
    assert exporter is not None
    builder: Any = parquet.FileBuilder
    builder.add = deadly.after("gathered", builder.add)
    builder._write_rows = deadly.after("written", builder._write_rows)
    setattr(parquet, "sync", deadly.after("synced", disk.sync))  # noqa: B010 - mypy would object
    setattr(Path, "replace", deadly.after("named", Path.replace))  # noqa: B010 - as above
    perform = exporter._perform

    async def watched(command: AnyCommand) -> Any:
        result = await perform(command)
        if isinstance(command, KeepNote):
            planned = files.read_note(command.content).plan is not None
            deadly.reached("plan-noted" if planned else "done-noted")
        elif isinstance(command, TrimEvents):
            deadly.reached("trimmed")
        return result

    exporter._perform = watched
    object.__setattr__(exporter._trimmer, "perform", watched)


def forget_plans() -> None:
    """Break what makes each event come once."""
    text = files.ExportNote.text

    def planless(self: files.ExportNote) -> str:
        return text(files.ExportNote(log=self.log, done_seq=self.done_seq))

    setattr(files.ExportNote, "text", planless)  # noqa: B010 - as above
    setattr(event_export, "prepare", lambda root, *_: root.mkdir(exist_ok=True))  # noqa: B010


async def work(engine: Engine, number: int, stopped: asyncio.Event) -> None:
    """Put, receive, complete, again and again."""
    for turn in count():
        if stopped.is_set():
            return
        await engine.perform(c.Put("shop", "orders", b"%d" % turn, 0, None, _ENTROPY))
        received = await engine.perform(c.Receive("shop", "orders", 2, 60 * FASTER, f"w{number}"))
        for lease in received:
            if turn % 5:
                await engine.perform(
                    c.Complete("shop", "orders", lease.message.message_id, lease.receipt)
                )


async def main(folder: Path) -> None:
    """Work until there is no more standard input; then export everything."""
    retention_s = int(os.environ.get("EXPORT_RETENTION_S", "0"))
    store = SqliteStore(folder / "data")
    plan = EventLogPlan(folder=folder / "events", interval_s=0.05, retention_s=retention_s or 10**9)
    clock = FastClock(int((folder / EPOCH_MS).read_text()))
    engine = Engine(store, clock, events=plan)
    if os.environ.get("EXPORT_WITHOUT_PLANS"):
        forget_plans()
    lay_traps(Deadly(os.environ.get("EXPORT_KILL_AT", "")), engine)
    # Small, so that there are many.
    setattr(parquet, "MAX_ROWS", int(os.environ.get("EXPORT_MAX_ROWS", "400")))  # noqa: B010 - as above
    setattr(event_export, "PAGE_EVENTS", 50)  # noqa: B010
    setattr(event_export, "SLICE_BATCHES", 20)  # noqa: B010
    await engine.start()
    if engine.find_queue("shop", "orders") is None:
        await engine.perform(c.CreateQueue("shop", "orders", {}))
    stopped = asyncio.Event()
    workers = [asyncio.create_task(work(engine, n, stopped)) for n in range(_WORKERS)]
    print("ready", flush=True)  # noqa: T201 - told to the test
    await asyncio.to_thread(sys.stdin.read)
    stopped.set()
    await asyncio.gather(*workers)
    exporter = engine.exporter
    assert exporter is not None
    if os.environ.get("EXPORT_TO_THE_END"):
        await exporter.stop()
        while exporter.lag_batches or not exporter.exported:
            await exporter._export(100)
    await engine.stop()


def read_log(folder: Path) -> Iterator[Event]:
    """Yield all events that the store still has; nobody else may use it meanwhile."""
    store = SqliteStore(folder / "data")
    try:
        after_seq, finished = 0, False
        while not finished:
            (page,) = store.execute([ReadEvents(after_seq, 1_000)], now_ms=START_MS)
            store.commit()
            assert isinstance(page, EventPage)
            yield from page.events
            after_seq, finished = page.last_seq, page.finished
    finally:
        store.close()


if __name__ == "__main__":
    configure_logs(log_format="console", log_level="info", clock=SystemClock())
    asyncio.run(main(Path(sys.argv[1])))
