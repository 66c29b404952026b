"""What the tests of this folder share: messages, and servers of PostgreSQL and Redis."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from leasehold.worker.errors import LeaseLost
from leasehold.worker.idempotency import Holder

_runs = count(1)


class Absent(Exception):
    """A server is not on this machine; says which."""


@dataclass(slots=True)
class Told:
    """A message as ``once`` sees it."""

    id: str = "m1"
    fence: int = 1
    queue: str = "orders"
    is_lost: bool = False

    def check(self) -> None:
        if self.is_lost:
            raise LeaseLost("the test says so")


def holder(fence: int = 1, source: str = "orders/m1", run: str | None = None) -> Holder:
    return Holder(source=source, fence=fence, run=run or f"run-{next(_runs)}")


def run_killing(name: str, *arguments: str) -> None:
    """Run a function of ``killing.py`` in a process of its own, which may fork."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.worker.idempotency.killing", name, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[4],
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run PostgreSQL on a unix socket; give what libpq needs to reach it."""
    if importlib.util.find_spec("psycopg") is None:
        raise Absent("psycopg is not installed")
    initdb = shutil.which("initdb")
    if initdb is None:
        raise Absent("there is no initdb in the PATH, so no PostgreSQL to test with")
    programs = Path(initdb).resolve().parent
    as_user = _other_user()
    folder = Path(tempfile.mkdtemp(prefix="leasehold-pg-", dir="/tmp"))
    try:
        if as_user:
            shutil.chown(folder, _account().pw_uid, _account().pw_gid)
        data = folder / "data"
        subprocess.run(
            [
                *(*as_user, str(programs / "initdb"), "--no-sync", "--auth=trust"),
                *("--username=test", "--encoding=UTF8", "--locale=C", "-D", str(data)),
            ],
            check=True,
            capture_output=True,
            cwd="/",
        )
        with _started(
            [
                *(*as_user, str(programs / "postgres"), "-D", str(data), "-k", str(folder)),
                *("-p", "5432", "-c", "listen_addresses=", "-c", "fsync=off"),
            ],
            ready="ready to accept connections",
            stop=signal.SIGQUIT,
        ):
            yield f"host={folder} port=5432 user=test dbname=postgres"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def redis_server(*options: str) -> Iterator[str]:
    """Run the machine's Redis server on a Unix socket; yield its URL."""
    program = shutil.which("redis-server")
    if program is None:
        raise Absent("there is no redis-server in the PATH")
    with tempfile.TemporaryDirectory(prefix="leasehold-redis-", dir="/tmp") as folder:
        socket = f"{folder}/redis.sock"
        command = [
            program,
            "--port",
            "0",
            "--unixsocket",
            socket,
            "--save",
            "",
            "--dir",
            folder,
        ]
        with _started([*command, *options], ready="eady to accept", stop=signal.SIGKILL):
            yield f"unix://{socket}"


@contextmanager
def _started(command: list[str], *, ready: str, stop: signal.Signals) -> Iterator[None]:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
    ) as process:
        assert process.stdout is not None
        try:
            said = []
            for line in process.stdout:
                said.append(line)
                if ready in line:
                    break
            else:
                raise Absent(f"{command[0]} ended: {''.join(said[-3:])}")
            yield
        finally:
            process.send_signal(stop)
            # What it still has to say would hold it up otherwise.
            process.stdout.read()


def _other_user() -> list[str]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        raise Absent("PostgreSQL refuses to run as root, and there is no setpriv")
    account = _account()
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]


def _account() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise Absent("PostgreSQL refuses to run as root, and there is no user to run it as")
