"""No key is where others can look: plans, pages, reports, logs, the event log, checkpoints."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from leasehold.client import Client
from leasehold.spark.cluster import running_cluster, spark_home
from leasehold.spark.session import QUICK_JAVA, prepare
from tests.e2e.server import DEV_KEY, Server
from tests.patience import PROGRAM_S

pytestmark = pytest.mark.slow

JOB: Final = Path(__file__).with_name("secret_job.py")
QUEUES: Final = ("variable", "file", "option")


def with_key(*folders: Path) -> list[str]:
    """Return the files below some folders that have the key in them."""
    files = [each for folder in folders for each in folder.rglob("*") if each.is_file()]
    assert files
    return sorted(str(each) for each in files if DEV_KEY.encode() in each.read_bytes())


def test_no_key_is_left_where_others_look(tmp_path: Path) -> None:
    """By variable, by file and by option, on a cluster with all of Spark's reports turned on."""
    checkpoints, seen, logs, events, secrets = (
        tmp_path / name for name in ("checkpoints", "seen", "logs", "events", "secrets")
    )
    for folder in (checkpoints, seen, logs, events, secrets):
        folder.mkdir()
    file = secrets / "queues"
    conf = {
        "spark.log.level": "INFO",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.sql.redaction.options.regex": "(?i)url|connectionString|credential",
    }
    settings = [word for item in conf.items() for word in ("--conf", "=".join(item))]
    with Server(tmp_path / "data") as endpoint:
        file.write_text(endpoint.connection_string, encoding="utf-8")
        with Client.from_connection_string(endpoint.connection_string) as client:
            for name in (*QUEUES, "sent"):
                client.queue(name).create()
            for name in QUEUES:
                client.queue(name).put_many([f"{name} {number}" for number in range(5)])
        # The executors' machine knows nothing: what they need, they get from Spark.
        with running_cluster(workers=1, folder=tmp_path / "cluster") as cluster:
            environ = {**os.environ, "QUEUES_SECRET": endpoint.connection_string}
            prepare(environ)
            submit = str(spark_home() / "bin" / "spark-submit")
            arguments = (str(JOB), str(checkpoints), str(seen), str(file))
            done = subprocess.run(
                (submit, "--master", cluster.master, *settings, *arguments),
                env=environ,
                cwd=tmp_path,
                capture_output=True,
                check=False,
                timeout=PROGRAM_S,
            )
        (logs / "driver").write_bytes(done.stdout + done.stderr)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()[-3000:]
        with Client.from_connection_string(endpoint.connection_string) as client:
            assert client.queue("sent").counts().visible == 5 * len(QUEUES)

    assert len([*seen.glob("page-*")]) == 11
    assert [*(tmp_path / "cluster").rglob("stderr")], "the executor's log must be among them"
    logged = b"".join(each.read_bytes() for each in events.rglob("*") if each.is_file())
    assert b"SparkListenerJobStart" in logged, "the event log must be readable as text"
    control = checkpoints / "control.txt"
    assert with_key(checkpoints) == [str(control)], "the plan that is not redacted shows the key"
    assert with_key(seen, logs, events, tmp_path / "cluster") == []
