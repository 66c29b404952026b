"""One Spark session for all tests of a process, and servers for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from leasehold.spark.session import local_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return the session: two cores, four attempts at each task."""
    # Tests run in several processes, and each session keeps files in its working directory.
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    session = local_session(
        cores=2, name="leasehold-tests", quick=True, spark_sql_warehouse_dir=warehouse
    )
    # Queries that are stopped, or meant to fail, leave long traces.
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
