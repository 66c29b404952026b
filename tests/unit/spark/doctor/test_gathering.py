"""What the doctor reads from settings, folders and programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pytest

from leasehold.spark import doctor as facts
from leasehold.spark.doctor import Level, check_program

GOOD_PROGRAM: Final = """
stream = spark.readStream.format("leasehold").options(queueName="q", streamId="s").load()
stream.writeStream.format("parquet").option("checkpointLocation", "/keep").trigger(
    availableNow=True
).start("/out")
"""


def test_arguments_of_spark_submit_are_read() -> None:
    """Settings are found in both spellings of an option."""
    text = "--master local[2] --conf a.b=c=d --conf=e.f=g --py-files x.zip,y.zip pyspark-shell"
    assert facts.submitted(text) == {
        "spark.master": "local[2]",
        "a.b": "c=d",
        "e.f": "g",
        "spark.submit.pyFiles": "x.zip,y.zip",
    }
    assert facts.submitted("") == {}
    assert facts.submitted("--conf 'open") == {}


def test_file_of_defaults_is_read(tmp_path: Path) -> None:
    """The file is looked for where Spark would, and comments are left out."""
    (tmp_path / "spark-defaults.conf").write_text("# c\nspark.master  local[2]\na.b=c d\n\n")
    expected = {"spark.master": "local[2]", "a.b": "c d"}
    assert facts.defaults({"SPARK_CONF_DIR": str(tmp_path)}) == expected
    assert facts.defaults({"SPARK_CONF_DIR": str(tmp_path / "none")}) == {}
    assert facts.defaults({}) == {}


def test_modules_that_spark_imports_are_found(tmp_path: Path) -> None:
    """Modules and packages of the name count, other files and missing folders do not."""
    (tmp_path / "pyspark_one.py").touch()
    (tmp_path / "pyspark_two").mkdir()
    (tmp_path / "pyspark_two" / "__init__.py").touch()
    (tmp_path / "pyspark_three-1.0.dist-info").mkdir()
    (tmp_path / "pyspark.py").touch()
    found = facts.discovered_names([str(tmp_path), str(tmp_path / "none"), "/some/lib.zip"])
    assert found == ["pyspark_one", "pyspark_two"]


def test_version_of_another_spark(tmp_path: Path) -> None:
    """The version is in the name of Spark's core."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    assert facts.home_version(tmp_path) == "3.5.1"
    assert facts.home_version(tmp_path / "none") is None


def test_interpreter_of_executors_is_asked() -> None:
    """This interpreter can import everything; one that is not there cannot be asked."""
    found = facts.look_at_worker({"PYSPARK_PYTHON": sys.executable}, {})
    assert (found.is_chosen, found.missing, found.prefix) == (True, {}, sys.prefix)
    gone = facts.look_at_worker({"PYSPARK_PYTHON": "/no/python"}, {})
    assert (gone.python, gone.command) == (None, "/no/python")


@pytest.mark.parametrize(
    ("environ", "error"),
    [
        ({"PYSPARK_PYTHON": sys.executable}, None),
        ({"PATH": str(Path(sys.executable).parent)}, None),
        ({"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": "no-jupyter"}, "no-jupyter"),
        ({"PATH": "/no/folder"}, "python3"),
    ],
)
def test_formats_are_looked_for_as_spark_does(environ: dict[str, str], error: str | None) -> None:
    """The driver's Python comes first, then that of the workers, then the one on the path."""
    environ = {"PATH": os.environ["PATH"], **environ}
    found = facts.gather_spark(environ, {}).discovered["pyspark_leasehold"]
    assert found == (error and f"{error} does not run")


def test_setting_wins_over_the_variable() -> None:
    """spark.pyspark.python names the interpreter before PYSPARK_PYTHON does."""
    environ = {"PYSPARK_PYTHON": "/no/python"}
    found = facts.look_at_worker(environ, {"spark.pyspark.python": sys.executable})
    assert found.prefix == sys.prefix


def test_what_executors_cannot_import_is_told(tmp_path: Path) -> None:
    """The error of an import is kept under the name of the module."""
    (tmp_path / "pyarrow.py").write_text("raise RuntimeError('broken here')")
    settings = {"spark.executorEnv.PYTHONPATH": str(tmp_path)}
    found = facts.look_at_worker({"PYSPARK_PYTHON": sys.executable}, settings)
    assert "broken here" in found.missing["pyarrow"]


@pytest.mark.parametrize(
    ("program", "check", "level"),
    [
        ("w.trigger(once=True)", "trigger", Level.WARN),
        ('w.trigger(continuous="1 second")', "trigger", Level.FAIL),
        ('w.trigger(realTime="5 seconds")', "trigger", Level.FAIL),
        ('w.option("asyncProgressTrackingEnabled", "true")', "async-progress", Level.FAIL),
        ("w.options(asyncProgressTrackingEnabled=True)", "async-progress", Level.FAIL),
        ('b.master("local[2]")', "task-retries", Level.WARN),
        ('r.format("leasehold").load().writeStream.start()', "checkpoint", Level.WARN),
        ("def", "program", Level.FAIL),
    ],
)
def test_traps_in_programs(program: str, check: str, level: Level) -> None:
    """Calls that go badly with a queue are found, with their line."""
    (found,) = check_program("job.py", f"import x\n{program}\n")
    assert (found.check, found.level) == (check, level)
    assert found.found.startswith("job.py:2: ")


@pytest.mark.parametrize("program", [GOOD_PROGRAM, 'b.master("local[2,4]")', "x = 1"])
def test_good_programs(program: str) -> None:
    """A program without traps gives one good finding."""
    (found,) = check_program("job.py", program)
    assert found.level is Level.OK
