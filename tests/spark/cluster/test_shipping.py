"""How code reaches executors: each way on a cluster, with the stream source where it matters.

The jobs run in an environment that has every library but Leasehold itself, unless they are to find
it installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import leasehold
from leasehold.client import Client
from leasehold.spark.cluster import Cluster, running_cluster, spark_home
from leasehold.spark.session import QUICK_JAVA, prepare
from tests.e2e.server import Endpoint, Server
from tests.patience import PROGRAM_S

pytestmark = pytest.mark.slow

HERE: Final = Path(__file__).parent
SOURCE: Final = Path(leasehold.__file__).parents[1]
BODIES: Final = [f"body {number}" for number in range(10)]


@dataclass(frozen=True)
class Place:
    """Where the jobs run."""

    cluster: Cluster
    endpoint: Endpoint
    folder: Path
    bare: str
    """An interpreter without Leasehold."""
    archive: Path
    """Leasehold as a zip."""

    def submit(
        self, job: str, *arguments: str, python: str, options: tuple[str, ...] = (), **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a job by spark-submit."""
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environ |= {
            "PYSPARK_PYTHON": python,
            "AZURE_STORAGE_CONNECTION_STRING": self.endpoint.connection_string,
            **env,
        }
        prepare(environ)
        conf = {
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.executor.extraJavaOptions": QUICK_JAVA,
        }
        settings = [word for item in conf.items() for word in ("--conf", "=".join(item))]
        submit = str(spark_home() / "bin" / "spark-submit")
        master = ("--master", self.cluster.master)
        return subprocess.run(
            (submit, *master, *settings, *options, str(HERE / job), *arguments),
            env=environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROGRAM_S,
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A cluster, a server, an environment without Leasehold, and Leasehold as an archive."""
    folder = tmp_path_factory.mktemp("shipping")
    subprocess.run((sys.executable, "-m", "venv", "--without-pip", folder / "bare"), check=True)
    libraries = sysconfig.get_path("purelib", vars={"base": str(folder / "bare")})
    # Files of this kind are read in an environment's own folder only, so that the one by which
    # Leasehold is installed here is not.
    (Path(libraries) / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    archive = folder / "leasehold.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for file in [SOURCE / "pyspark_leasehold.py", *SOURCE.glob("leasehold/**/*.py")]:
            made.write(file, file.relative_to(SOURCE))
    bare = str(folder / "bare" / "bin" / "python")
    has_none = subprocess.run((bare, "-c", "import leasehold"), capture_output=True, check=False)
    assert has_none.returncode == 1, "Leasehold must be installed as -e here, not as a copy"
    with Server(folder / "data") as endpoint, running_cluster() as cluster:
        yield Place(cluster, endpoint, folder, bare, archive)


@pytest.fixture(autouse=True)
def filled(place: Place) -> Iterator[None]:
    """The queue has ten messages, and nothing of an earlier test."""
    with Client.from_connection_string(place.endpoint.connection_string) as client:
        queue = client.queue("shipped")
        queue.create()
        queue.put_many(BODIES)
        yield
        client.delete_queue("shipped")


def told(done: subprocess.CompletedProcess[str]) -> Any:
    """Return what a job has told."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("told ")]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) == 1
    return json.loads(lines[0].removeprefix("told "))


def test_installed_in_the_environment(place: Place) -> None:
    """Where PYSPARK_PYTHON's environment has it, the source is found by its name."""
    done = place.submit("shipped_job.py", "by-name", "one", python=sys.executable)
    assert told(done) == {"rows": BODIES, "files": [leasehold.__file__]}


def test_archive_on_both_paths(place: Place) -> None:
    """As an archive it works when the driver has it on PYTHONPATH and executors by --py-files."""
    done = place.submit(
        "shipped_job.py",
        *("registered", "two"),
        python=place.bare,
        options=("--py-files", str(place.archive)),
        PYTHONPATH=str(place.archive),
    )
    found = told(done)
    assert found["rows"] == BODIES
    assert all("leasehold.zip" in file for file in found["files"])


def test_archive_by_py_files_alone(place: Place) -> None:
    """By --py-files alone the process that runs the source does not find it."""
    done = place.submit(
        "shipped_job.py",
        *("registered", "three"),
        python=place.bare,
        options=("--py-files", str(place.archive)),
    )
    assert done.returncode != 0
    assert "No module named 'leasehold'" in done.stdout + done.stderr


def test_folder_that_all_machines_have(place: Place) -> None:
    """PYTHONPATH for the driver, and executorEnv.PYTHONPATH for executors, name a folder."""
    done = place.submit(
        "shipped_job.py",
        *("by-name", "four"),
        python=place.bare,
        options=("--conf", f"spark.executorEnv.PYTHONPATH={SOURCE}"),
        PYTHONPATH=str(SOURCE),
    )
    assert told(done) == {"rows": BODIES, "files": [leasehold.__file__]}


def test_executors_do_not_inherit_the_path(place: Place) -> None:
    """PYTHONPATH of the driver alone does not reach executors."""
    done = place.submit(
        "shipped_job.py", *("by-name", "five"), python=place.bare, PYTHONPATH=str(SOURCE)
    )
    assert done.returncode != 0
    assert "No module named 'leasehold'" in done.stdout + done.stderr


@pytest.mark.parametrize(("how", "works"), [("by-value", True), ("by-reference", False)])
def test_own_module_by_value(place: Place, how: str, works: bool) -> None:
    """A module of one's own that only the driver has travels by value, and not otherwise."""
    modules = place.folder / "modules"
    modules.mkdir(exist_ok=True)
    (modules / "only_here.py").write_text("def double(number):\n    return 2 * number\n")
    done = place.submit("by_value_job.py", how, python=sys.executable, PYTHONPATH=str(modules))
    if works:
        assert told(done) == {"rows": [0, 2, 4, 6]}
    else:
        assert done.returncode != 0
        assert "No module named 'only_here'" in done.stdout + done.stderr
