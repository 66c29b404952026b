"""PostgreSQL with a queue in it: pgmq, or the plain pattern with SKIP LOCKED."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.load.job import Dialect
from benchmarks.peers.base import Absent, Subject, SubjectFailed
from benchmarks.workspace import Workspace

_USER: Final = "bench"
"""PostgreSQL's own user; it has no password, and only the unix socket leads there."""
_SERVERS: Final = ("postgres", "nobody")
"""Users of the system to run it as, when the harness runs as root: PostgreSQL refuses to."""
_PLACES: Final = (Path("/var/tmp"), Path("/tmp"))
_DEBIAN: Final = Path("/usr/lib/postgresql")
"""Where Debian has the programs of each version, which it leaves out of the PATH."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPlace:
    """Where PostgreSQL and pgmq are."""

    bin: Path | None = None
    """Folder with ``initdb`` and ``postgres``; None for the one that the PATH leads to, else for
    the newest of Debian's."""
    pgmq_sql: Path | None = None
    """The script of the extension pgmq, as its project publishes it."""


def published_script() -> Path | None:
    """Return pgmq's script as the package of its client carries it; None without that."""
    found = importlib.util.find_spec("pgmq")
    folders = found.submodule_search_locations if found else None
    return Path(folders[0]) / "sql" / "pgmq.sql" if folders else None


class SkipLocked(Subject):
    """A cluster of its own, with a table whose rows are claimed with SKIP LOCKED.

    All settings are PostgreSQL's defaults; ``fsync`` and ``synchronous_commit`` are on.
    """

    dialect: ClassVar[Dialect] = "skip-locked"

    def __init__(self, name: str, title: str, workspace: Workspace, place: PostgresPlace) -> None:
        super().__init__(name, title, workspace)
        self._place = place
        self._bin = Path()
        self._account: pwd.struct_passwd | None = None
        self._sockets = self.folder
        """Folder of the socket, whose path may not be long."""

    @property
    def conninfo(self) -> str:
        """Where it listens, in the words of libpq."""
        return f"host={self._sockets} port={self.port} user={_USER} dbname=postgres"

    def prepare(self) -> None:
        """Find the programs and make a cluster."""
        if importlib.util.find_spec("psycopg") is None:
            raise Absent("psycopg, PostgreSQL's driver, is not installed")
        self._bin = self._find()
        said = subprocess.run(
            [self._bin / "postgres", "--version"], capture_output=True, text=True, check=True
        )
        found = re.search(r"\d[\w.]*", said.stdout)
        self.version = f"PostgreSQL {found[0]}" if found else said.stdout.strip()
        self._account = _find_account()
        self.folder = self._make_folder()
        self._sockets = _owned_folder(Path(tempfile.gettempdir()), self._account)
        command = ["initdb", "--encoding=UTF8", "--locale=C", "--auth=trust", f"--username={_USER}"]
        done = subprocess.run(
            [*self._as_user(), self._bin / command[0], *command[1:], "-D", self.folder / "data"],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        if done.returncode:
            self._remove()
            raise Absent(f"initdb failed: {done.stderr.strip()}")

    def command(self) -> list[str]:
        """See :class:`Subject`."""
        return [
            *(*self._as_user(), str(self._bin / "postgres"), "-D", str(self.folder / "data")),
            *("-p", str(self.port), "-k", str(self._sockets), "-c", "listen_addresses="),
            *("-c", "fsync=on", "-c", "synchronous_commit=on"),
        ]

    def is_ready(self) -> bool:
        """See :class:`Subject`."""
        import psycopg  # noqa: PLC0415 - an optional peer's driver

        try:
            psycopg.connect(self.conninfo, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """End it, clients or not, and remove its data."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
        super().stop()
        self._remove()

    def _remove(self) -> None:
        for folder in {self.folder, self._sockets}:
            shutil.rmtree(folder, ignore_errors=True)

    def _find(self) -> Path:
        """Return the folder of the programs."""
        if self._place.bin is not None:
            found: str | None = str(self._place.bin / "initdb")
        else:
            packaged = [*map(str, sorted(_DEBIAN.glob("*/bin"), reverse=True))]
            found = shutil.which("initdb") or shutil.which("initdb", path=os.pathsep.join(packaged))
        if found is None:
            raise Absent(f"initdb is neither in the PATH nor in {_DEBIAN}/*/bin (--pg-bin)")
        folder = Path(found).resolve().parent
        for program in ("initdb", "postgres"):
            if not os.access(folder / program, os.X_OK):
                raise Absent(f"there is no {program} in {folder}")
        return folder

    def _as_user(self) -> list[str]:
        """Return what makes a command run as another user, where it must."""
        if self._account is None:
            return []
        user, group = self._account.pw_uid, self._account.pw_gid
        return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]

    def _make_folder(self) -> Path:
        """Return a folder on the disk that is measured, which PostgreSQL's user can reach."""
        if self._account is None:
            self.folder.mkdir(exist_ok=True)
            return self.folder
        disk = self.workspace.run.stat().st_dev
        for place in (self.workspace.run, *_PLACES):
            if place.stat().st_dev == disk and _is_open(place):
                return _owned_folder(place, self._account)
        raise Absent(
            f"PostgreSQL refuses to run as root, and {self._account.pw_name} can reach no folder "
            f"on the disk of {self.workspace.root}: choose another with --work, or run as a user"
        )


class Pgmq(SkipLocked):
    """pgmq, from the SQL that its project publishes."""

    dialect: ClassVar[Dialect] = "pgmq"

    def prepare(self) -> None:
        """See :class:`Subject`."""
        path = self._place.pgmq_sql
        if path is None or not path.exists():
            raise Absent("pgmq's SQL was not given (--pgmq-sql PATH)")
        super().prepare()
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        self.version += f", pgmq.sql {digest}"

    def start(self) -> float:
        """Start PostgreSQL and run pgmq's script, as ``CREATE EXTENSION`` would.

        Raises:
            SubjectFailed: It did not start, or did not take the script.
        """
        import psycopg  # noqa: PLC0415 - an optional peer's driver

        taken = super().start()
        assert self._place.pgmq_sql is not None
        try:
            with psycopg.connect(self.conninfo, autocommit=True) as link:
                script = prepare_script(self._place.pgmq_sql.read_text())
                link.execute(script.encode())
        except psycopg.Error as error:
            raise SubjectFailed(f"pgmq's SQL was refused: {error}") from error
        return taken


def prepare_script(script: str) -> str:
    r"""Return an extension's *script* without what only ``CREATE EXTENSION`` understands.

    That is psql's ``\echo`` at its head, the tables it names for dumps, and the schema, which the
    control file declares.
    """
    kept = (
        line
        for line in script.splitlines()
        if not line.startswith("\\") and not _FOR_DUMPS.match(line)
    )
    return "CREATE SCHEMA IF NOT EXISTS pgmq;\n" + "\n".join(kept)


_FOR_DUMPS: Final = re.compile(r"SELECT\s+pg_catalog\.pg_extension_config_dump\(.*\);\s*$")


def _find_account() -> pwd.struct_passwd | None:
    """Return the user to run as; None for the one we are."""
    if os.geteuid() != 0:
        return None
    if shutil.which("setpriv") is None:
        raise Absent("PostgreSQL refuses to run as root, and setpriv (util-linux) is not here")
    for name in _SERVERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise Absent(f"PostgreSQL refuses to run as root, and there is none of {', '.join(_SERVERS)}")


def _owned_folder(place: Path, account: pwd.struct_passwd | None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="leasehold-bench-", dir=place))
    if account is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)
    return folder


def _is_open(place: Path) -> bool:
    """Tell whether every user may pass through *place* and the folders above it."""
    return all(folder.stat().st_mode & 0o001 for folder in (place, *place.parents))
