"""What a session begins with, without starting one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leasehold.spark import session
from leasehold.spark.session import Java


@pytest.fixture(autouse=True)
def some_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java is found without looking for it."""
    found = Java(home=Path("/some/java"), major=17, source="PATH")
    monkeypatch.setattr(session, "find_java", lambda environ: found)


def test_environment_is_completed() -> None:
    """What Spark reads from the environment is set where it was not."""
    environ: dict[str, str] = {}
    session.prepare(environ)
    assert environ == {
        "JAVA_HOME": "/some/java",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(session.QUIET),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def test_what_the_user_has_set_stays() -> None:
    """Only JAVA_HOME is replaced, which may lead nowhere; it was looked at before."""
    mine = {"PYSPARK_PYTHON": "/my/python", "SPARK_CONF_DIR": "/my/conf", "SPARK_LOCAL_IP": "::1"}
    environ = {**mine, "JAVA_HOME": "/bad"}
    session.prepare(environ)
    assert environ == {**mine, "JAVA_HOME": "/some/java"}


def test_a_driver_of_a_cluster_keeps_its_address() -> None:
    """Executors elsewhere must reach the driver: its address is not this machine's own."""
    environ: dict[str, str] = {}
    session.prepare(environ, is_local=False)
    assert "SPARK_LOCAL_IP" not in environ


def test_underscores_stand_for_full_stops() -> None:
    """Settings can be given as Python names; a name with a full stop is taken as it is."""
    given = {"spark_driver_memory": "2g", "spark.a_b.c": True}
    assert session.settings(given) == {"spark.driver.memory": "2g", "spark.a_b.c": True}


def test_logging_is_in_the_package() -> None:
    """The folder of SPARK_CONF_DIR has settings that let errors through only."""
    text = (session.QUIET / "log4j2.properties").read_text()
    assert "rootLogger.level = error" in text


def test_settings_of_the_user_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """A local session has its defaults, a shuffle as wide as its cores, and what the user says."""
    seen: dict[str, Any] = {}

    def opened(master: str, name: str, conf: dict[str, object]) -> None:
        seen.update(conf, master=master, name=name)

    monkeypatch.setattr(session, "open_session", opened)
    session.local_session(cores=3, name="n", attempts=2, spark_driver_memory="2g")
    assert (seen["master"], seen["name"]) == ("local[3,2]", "n")
    assert seen["spark.sql.shuffle.partitions"] == 3
    assert seen["spark.driver.memory"] == "2g"
    assert seen["spark.sql.session.timeZone"] == "UTC"


def test_settings_for_one_machine_are_not_for_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints of a cluster may be in an object store, where a rename is no commit."""
    seen: dict[str, object] = {}
    monkeypatch.setattr(session, "open_session", lambda master, name, conf: seen.update(conf))
    session.cluster_session("spark://somewhere:7077")
    assert "spark.sql.streaming.checkpointFileManagerClass" not in seen
    assert "spark.driver.host" not in seen
    assert seen["spark.sql.session.timeZone"] == "UTC"


def test_importing_needs_no_spark() -> None:
    """The module is imported by commands that may find Spark missing."""
    code = "import sys, leasehold.spark.session; print('pyspark' in sys.modules)"
    told = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
