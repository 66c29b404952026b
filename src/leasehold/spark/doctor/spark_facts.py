"""Looks at what Spark will meet on this machine. No session is started."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from leasehold.spark.java import Candidate, candidates

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
    """Whether somebody has said so; otherwise it is what the path has."""
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
