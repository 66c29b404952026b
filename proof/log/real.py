"""Logs of real servers, checked whole: one on SQLite, and two on one PostgreSQL.

The processes are those that ``leasehold serve`` starts. They are killed now and then, and the log
is checked three times: from the first server with its queues, from the files that it has exported,
and in parts, as if its messages did not fit into memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.e2e.server import DEV_ACCOUNT, Endpoint
from tests.postgres import Cluster, find_programs
from tests.reliability.running import KillableServer, eventually

from leasehold.client import Client
from proof.log import workload

_EXPORT_S: Final = 60
_EXPORT_INTERVAL_S: Final = 5
"""Nobody waits for the end of a minute, and the log is still exported in several files."""
_LEAST_AT_ONCE: Final = 1_000
_PARTS: Final = 20
"""Events for each message that is in memory at once, where there are many."""


class Judged(NamedTuple):
    """What ``leasehold events check`` says of a log."""

    how: str
    code: int
    """Its exit code."""
    report: dict[str, Any]


def judge(how: str, *words: str) -> Judged:
    """Run ``leasehold events check``."""
    program = [sys.executable, "-m", "leasehold.cli", "events", "check", "--json", *words]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    return Judged(how, done.returncode, json.loads(done.stdout))


def sqlite(folder: Path, seed: int, seconds: float, kills: int = 2) -> Iterator[Judged]:
    """Check the log of a server on SQLite that is killed so often."""
    yield from _play(folder, [{}], seed, seconds, kills)


def postgres(folder: Path, seed: int, seconds: float, kills: int = 2) -> Iterator[Judged]:
    """Check the log of two servers on one PostgreSQL.

    Raises:
        FileNotFoundError: No PostgreSQL is installed.
    """
    if find_programs() is None:
        raise FileNotFoundError("no PostgreSQL is installed")
    with tempfile.TemporaryDirectory(prefix="lhpl") as short:
        Path(short).chmod(0o755)
        cluster = Cluster(Path(short) / "pg", max_connections="50")
        cluster.make()
        cluster.start()
        try:
            options = {"--store-url": cluster.url}
            yield from _play(folder, [options, options], seed, seconds, kills)
        finally:
            cluster.stop("immediate")


def _play(
    folder: Path, servers: list[dict[str, str]], seed: int, seconds: float, kills: int
) -> Iterator[Judged]:
    exported = folder / "events"
    with ExitStack() as stack:
        running = []
        for number, options in enumerate(servers):
            # Each has the folder: the one that leads exports, and a kill may make that another one.
            how = {
                **options,
                "--events-folder": str(exported),
                "--events-export-interval-s": str(_EXPORT_INTERVAL_S),
            }
            server = KillableServer(folder / f"data{number}", options=how)
            server.start()
            stack.callback(_end, server)
            running.append(server)
        for part in range(kills + 1):
            texts = [_text_of(server.port) for server in running]
            with Client.from_connection_string(texts[0]) as client:
                if not part:
                    workload.prepare(client)
            workload.run(texts, seed * 10 + part, seconds / (kills + 1))
            if part < kills:
                victim = running[part % len(running)]
                victim.kill()
                victim.start()
        text = _text_of(running[0].port)
        yield judge("with its queues", "--live", "--connection-string", text)
        with Client.from_connection_string(text) as client:
            last = client.event_page(0, limit=1).last_seq or 0
        eventually(lambda: _exported(exported) >= last, "the log is exported", _EXPORT_S)
    whole = judge("exported files", "--from", str(exported))
    yield whole
    # A quick machine makes ten times as many events, and each part reads all of the log.
    at_once = max(_LEAST_AT_ONCE, whole.report["events"] // _PARTS)
    yield judge("in parts", "--from", str(exported), "--at-once", str(at_once))


def _exported(folder: Path) -> int:
    files = folder.glob("date=*/hour=*/events-*.parquet")
    return max((int(path.stem.rsplit("-", 1)[1]) for path in files), default=0)


def _text_of(port: int) -> str:
    return Endpoint(url=f"http://127.0.0.1:{port}/{DEV_ACCOUNT}").connection_string


def _end(server: KillableServer) -> None:
    server.kill()
