"""A PostgreSQL with a synchronous standby, either of which may be killed."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from leasehold.stores.postgres.connection import Address, connect
from tests.postgres import PORT, USER, Cluster
from tests.reliability.running import eventually


def kill_postmaster(data: Path) -> None:
    """End all processes of a PostgreSQL with SIGKILL.

    Args:
        data: Its data directory.

    Raises:
        FileNotFoundError: None runs there.
    """
    pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
    if Path(f"/proc/{pid}/cwd").readlink() != data:  # the number is another process's now
        raise FileNotFoundError(pid)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in (pid, *map(int, children)):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "it is gone")


class Pair:
    """Two clusters, one of which follows the other.

    Args:
        folders: A folder for each; their paths must be short.
    """

    def __init__(self, *folders: Path) -> None:
        one, two = (Cluster(folder) for folder in folders)
        self.primary, self.standby = one, two
        self.url = (
            f"postgresql://{USER}@/postgres?host={one.folder},{two.folder}&port={PORT},{PORT}"
        )
        """Where servers are to look for the primary."""
        one.make()
        one.start()

    def follow(self) -> None:
        """Make the standby a copy of the primary, from which each commit waits for it."""
        primary, standby = self.primary, self.standby
        shutil.rmtree(standby.folder / "data", ignore_errors=True)
        where = ("-h", str(primary.folder), "-p", str(PORT), "-U", USER)
        standby.run("pg_basebackup", *where, "--write-recovery-conf", "--checkpoint=fast")
        standby.start()
        with connect(Address.parse(primary.url)) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            state = "SELECT sync_state FROM pg_stat_replication"
            eventually(
                lambda: connection.execute(state).fetchall() == [("sync",)], "commits wait for it"
            )

    def detach(self) -> None:
        """Let the standby fall behind, and commits not wait for it."""
        with connect(Address.parse(self.primary.url)) as connection:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")
        url = f"{self.standby.url}&target_session_attrs=any"
        with connect(Address.parse(url)) as connection:
            connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            connection.execute("SELECT pg_reload_conf()")
            query = "SELECT 1 FROM pg_stat_wal_receiver"
            eventually(lambda: not connection.execute(query).fetchall(), "it hears no more")

    def kill_primary(self) -> None:
        """End all of its processes with SIGKILL."""
        kill_postmaster(self.primary.folder / "data")

    def promote(self) -> None:
        """Make the standby the primary; return when it takes writes."""
        self.primary, self.standby = self.standby, self.primary
        self.primary.run("pg_ctl", "-w", "promote")

    def stop(self) -> None:
        """Stop what runs."""
        for each in (self.primary, self.standby):
            with suppress(RuntimeError):
                each.stop("immediate")
