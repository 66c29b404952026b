"""The example of a declarative pipeline: queue, table, view, queue."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
from pyspark.sql import SparkSession

from leasehold.spark.session import prepare
from leasehold.testing import InProcessServer
from tests.e2e.server import DEV_KEY

EXAMPLE: Final = Path(__file__).parents[3] / "examples" / "declarative_pipeline"
WITHIN_S: Final = 800
"""A run is of seconds on a machine that has nothing else to do."""


def test_what_it_declares_fits_the_format(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flow is a stream with the columns of the bodies, and its sink is a queue."""
    pytest.importorskip("yaml")
    registries = pytest.importorskip("pyspark.pipelines.graph_element_registry")
    monkeypatch.setenv("QUEUES", "UseDevelopmentStorage=true")
    outputs: dict[str, Any] = {}
    flows: dict[str, Any] = {}

    class Kept(registries.GraphElementRegistry):  # type: ignore[misc, name-defined]
        """Keeps what is declared."""

        def register_output(self, output: Any) -> None:
            outputs[output.name] = output

        def register_flow(self, flow: Any) -> None:
            flows[flow.name] = flow

        def register_auto_cdc_flow(self, flow: Any) -> None:
            raise AssertionError

        def register_sql(self, sql_text: str, file_path: Path) -> None:
            raise AssertionError

    with registries.graph_element_registration_context(Kept()):
        [source] = (EXAMPLE / "transformations").glob("*.py")
        exec(compile(source.read_text(encoding="utf-8"), source, "exec"), {"spark": spark})
    assert set(outputs) == {"orders", "totals", "reviews"}
    assert outputs["reviews"].format == "leasehold"
    assert flows["large_orders"].target == "reviews"
    stream = flows["orders"].func()
    assert stream.isStreaming
    assert stream.columns == ["customer", "amount", "_message_id", "_inserted_at"]


def run(folder: Path, connection: str) -> subprocess.CompletedProcess[str]:
    """Run the pipeline as a user would."""
    environ = {**os.environ, "QUEUES": connection}
    environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    prepare(environ)
    settings = (
        *("--conf", "spark.sql.catalogImplementation=hive", "--conf", "spark.ui.enabled=false"),
        *("--conf", "spark.driver.memory=512m", "--conf", "spark.sql.shuffle.partitions=2"),
    )
    command = (str(Path(sys.executable).with_name("spark-pipelines")), "run", *settings)
    return subprocess.run(
        command,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN_S)
def test_each_run_takes_what_has_come_since(tmp_path: Path) -> None:
    """Each order is in the table once, and each large one in the second queue."""
    pytest.importorskip("grpc", reason="Spark Connect needs the extra connect of pyspark")
    folder = shutil.copytree(EXAMPLE, tmp_path / "pipeline")
    spec = folder / "spark-pipeline.yaml"
    text = spec.read_text(encoding="utf-8")
    written = text.replace("file:///tmp/leasehold-declarative-pipeline", f"{tmp_path.as_uri()}/s")
    assert written != text
    spec.write_text(written, encoding="utf-8")
    with InProcessServer() as server, server.client() as client:
        orders, reviews = client.queue("orders"), client.queue("reviews")
        orders.create()
        reviews.create()
        for amount in (1000, 2000):
            large = {"customer": "ada", "amount": float(amount)}
            orders.put_many([json.dumps(large), '{"customer": "ben", "amount": 1}'])
            done = run(folder, server.connection_string)
            assert done.returncode == 0, done.stdout + done.stderr
            assert DEV_KEY not in done.stdout + done.stderr
            assert orders.counts().total == 0
        sent = [json.loads(message.text) for message in reviews.inspect()]
    assert sorted(row["amount"] for row in sent) == [1000.0, 2000.0]
