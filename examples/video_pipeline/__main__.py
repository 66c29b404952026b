"""Run the demonstration: ``python -m examples.video_pipeline``, from the top of the checkout."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
import webbrowser
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from azure.core.exceptions import AzureError
from azure.storage.queue import QueueClient
from examples.video_pipeline.checks import check_all
from examples.video_pipeline.page import page
from examples.video_pipeline.producer import CLIPS, FEWEST
from examples.video_pipeline.report import Summary, print_summary, write_json
from examples.video_pipeline.screen import Screen
from examples.video_pipeline.server import ServerFailed, console_page, running_server
from examples.video_pipeline.story import QueueInUse, Setting, play
from rich.console import Console
from rich.text import Text

from leasehold.client.errors import LeaseholdClientError
from leasehold.spark.cluster import ClusterFailed
from leasehold.spark.session import NoJava

_MARK: Final = ".video-pipeline"
"""A file that says that the folder may be emptied by the next run."""
_WORKERS: Final = {"spark": 2, "workers": 3}
_SCENE_FAILED: Final = (
    *(ServerFailed, QueueInUse, AzureError, LeaseholdClientError, OSError),
    *(ClusterFailed, NoJava),
)


def main() -> int:
    """Run the story; returns the exit code, 0 only if every check holds."""
    options = _options()
    # Without a terminal there is no width to respect, and the table needs this much.
    console = Console(width=None if sys.stdout.isatty() else 120)
    began_s = time.monotonic()
    # A terminated run must end its workers and its server as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        root = _fresh_folder(options.data_dir)
        given = options.connection_string
        with nullcontext(given) if given else running_server(root) as connection_string:
            if not given:
                _show_console(console, connection_string, options)
            setting = Setting(
                root=root,
                connection_string=connection_string,
                queue=options.queue,
                on=options.on,
                clips=CLIPS[: options.videos],
                seconds=options.seconds,
                lease_s=options.lease,
                workers=options.workers or _WORKERS[options.on],
                timeout_s=options.timeout,
                tidy=bool(given),
            )
            evidence = play(setting, Screen(console))
            url = QueueClient.from_connection_string(connection_string, options.queue).url
    except _SCENE_FAILED as error:
        console.print(Text(f"The story could not be told: {error}", "bold red"), soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("Stopped; nothing is left running.")
        return 130
    summary = Summary(
        endpoint=url,
        seconds=time.monotonic() - began_s,
        evidence=evidence,
        checks=check_all(evidence),
    )
    print_summary(console, summary)
    places = f"The videos are in {root / 'outputs'}, the journals in {root / 'journals'}."
    console.print(places, soft_wrap=True)
    if evidence.changes:
        (root / "index.html").write_text(page(summary), encoding="utf-8")
        console.print(f"The timeline of every message: {root / 'index.html'}", soft_wrap=True)
    if options.json:
        write_json(options.json, summary)
    return 0 if summary.ok else 1


def _show_console(console: Console, connection_string: str, options: argparse.Namespace) -> None:
    """Say where the story can be watched; with ``--open`` let a browser go there."""
    place = "pipelines" if options.on == "spark" else "queues"
    page_of_it = console_page(connection_string, place, options.queue)
    if page_of_it is None:
        return
    console.print(Text(f"console: {page_of_it}"), soft_wrap=True)
    if options.open and not webbrowser.open(page_of_it):
        console.print("No browser could be started.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.video_pipeline", description=__doc__)
    parser.add_argument(
        "--connection-string",
        help="run against this queue service instead of starting leasehold serve",
    )
    parser.add_argument(
        "--on",
        choices=("spark", "workers"),
        default="spark",
        help="who does the work: executors of a Spark cluster, or worker processes (spark)",
    )
    parser.add_argument("--queue", default="videos", help="name of the queue (videos)")
    parser.add_argument(
        "--data-dir", type=Path, default=Path("demo-data"), help="emptied first (demo-data)"
    )
    parser.add_argument(
        "--videos",
        type=int,
        choices=range(FEWEST, len(CLIPS) + 1),
        default=len(CLIPS),
        help=f"how many videos, {FEWEST} to {len(CLIPS)} ({len(CLIPS)})",
        metavar="N",
    )
    parser.add_argument("--seconds", type=float, default=4, help="footage per video (4)")
    parser.add_argument("--lease", type=int, default=3, help="visibility timeout, seconds (3)")
    parser.add_argument(
        "--workers",
        type=int,
        choices=range(2, 9),
        help="Spark workers, or worker processes, 2 to 8 (2 and 3)",
        metavar="N",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=300,
        help="give up when nothing has happened for so many seconds (300)",
    )
    parser.add_argument(
        "--open", action="store_true", help="open the console in a browser, if there is one"
    )
    parser.add_argument("--json", type=Path, help="write a summary for programs to this file")
    return parser.parse_args()


def _fresh_folder(folder: Path) -> Path:
    """Return the folder, empty. Refuses to empty one that this program has not made."""
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARK).exists():
            raise FileExistsError(f"{folder} is not empty and not from an earlier run")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).touch()
    (folder / "logs").mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
