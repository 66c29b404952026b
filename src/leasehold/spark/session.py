"""A Spark session that works on one machine as it should: Java found, logging quiet, UTC.

::

    with local_session(cores=2) as spark:
        spark.readStream.format("leasehold").options(queueName="orders", streamId="totals").load()
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leasehold.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS: Final = 4
"""How often a task is tried. On a cluster that is the default; ``local[2]`` tries only once."""
QUIET: Final = Path(__file__).with_name("conf")
"""A folder for ``SPARK_CONF_DIR`` with settings for logging: errors only."""

QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for a Java that lives for minutes: it spends half the processor time on starting and on
compiling its own code, and the code is slower in the long run."""

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
