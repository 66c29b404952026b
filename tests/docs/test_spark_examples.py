"""Examples that start Spark, one page after another in one process: Spark starts once."""

from __future__ import annotations

import json
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import page_id
from tests.docs.test_examples import (
    CONNECTION_VARIABLE,
    DEVELOPMENT,
    FILES,
    IN_A_HURRY,
    SPARK,
    check_output,
    examples,
    run,
    script_of,
)
from tests.e2e.server import Server

PAGE: Final = "==== page {} ===="
FAILED: Final = "==== failed ===="
TIMEOUT_S: Final = 550
QUICK: Final = {"local_session(cores=2)": "local_session(cores=2, quick=True)"}
RUNNER: Final = f"""
import json, os, runpy, shutil, traceback
from pathlib import Path

from pyspark.sql import SparkSession

SparkSession.stop = lambda _: None  # a new one would start all of Spark's own processes again
here = Path.cwd()
for number, environment in enumerate(json.loads(Path("pages.json").read_text())):
    print({PAGE!r}.format(number))
    os.environ.update(environment)
    before = set(here.iterdir())
    try:
        runpy.run_path(str(here / f"{{number}}.py"), run_name="__main__")
    except BaseException:
        print({FAILED!r})
        print(traceback.format_exc())
    for query in SparkSession.active().streams.active:
        query.stop()
    for path in set(here.iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
"""


@pytest.mark.long
def test_spark_examples(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each page can be followed from its first block to its last."""
    assert not set(SPARK) & set(FILES)
    environments = []
    with ExitStack() as servers:
        for number, page in enumerate(SPARK):
            address = servers.enter_context(Server(tmp_path / f"server{number}")).connection_string
            changes = {**IN_A_HURRY, **QUICK, DEVELOPMENT: address}
            (tmp_path / f"{number}.py").write_text(script_of(page, changes), encoding="utf-8")
            environments.append({CONNECTION_VARIABLE: address, "COLUMNS": "100"})
        (tmp_path / "pages.json").write_text(json.dumps(environments))
        printed = run([sys.executable, "-u", "-c", RUNNER], tmp_path, {}, TIMEOUT_S)
    parts = re.split(re.escape(PAGE).replace(r"\{\}", r"\d+") + "\n", printed)[1:]
    assert len(parts) == len(SPARK)
    for page, part in zip(SPARK, parts, strict=True):
        with subtests.test(page_id(page)):
            assert FAILED not in part, part
            check_output(page, examples(page, "python"), part)
