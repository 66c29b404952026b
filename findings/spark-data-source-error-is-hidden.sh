#!/usr/bin/env bash
# PySpark: an error that a Python data source raises in streamReader() is hidden by another one.
#
# Packages: pyspark 4.3.0 (PyPI), and a Java runtime 17 or newer
# Expected: the reason that `DataSource.streamReader` raises is the last line of what users see.
# Seen: the process that makes the reader goes on after it has reported the error and fails once
#   more, so an UnboundLocalError stands below the reason.
# Whom it bites: authors of data sources, who check options there, and their users.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'pyspark==4.3.0' 'pyarrow>=18'
cd "$folder"
cat > run.py <<'PYTHON'
import sys

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource


class Picky(DataSource):
    @classmethod
    def name(cls):
        return "picky"

    def schema(self):
        return "value string"

    def streamReader(self, schema):
        raise ValueError("the option 'queue' is missing")


spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.dataSource.register(Picky)
try:
    query = spark.readStream.format("picky").load().writeStream.format("noop").start()
    query.processAllAvailable()
    text = ""
except Exception as error:
    text = str(error)
reason, hiding = text.find("the option 'queue' is missing"), text.find("UnboundLocalError")
print("reason:", "there" if reason >= 0 else "missing", "- UnboundLocalError:", "there" if hiding >= 0 else "missing")
sys.stdout.flush()
import os

os._exit(not (hiding >= 0))
PYTHON
PYSPARK_PYTHON="$folder/venv/bin/python" "$folder/venv/bin/python" run.py 2>/dev/null
