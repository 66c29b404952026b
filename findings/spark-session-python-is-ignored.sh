#!/usr/bin/env bash
# PySpark: `spark.pyspark.python` given to the builder of a session has no effect.
#
# Packages: pyspark 4.3.0 (PyPI), and a Java runtime 17 or newer
# Expected: `SparkSession.builder.config("spark.pyspark.python", path)` decides which Python runs
#   functions, as the configuration reference says of the property.
# Seen: it is read by spark-submit alone. In a script or a notebook the workers run PYSPARK_PYTHON,
#   or the `python3` of the PATH, while the session reports the value that was set.
# Whom it bites: who runs Spark from a virtual environment that is not activated.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'pyspark==4.3.0'
mkdir "$folder/path"
# What the PATH gives: the same interpreter under a name of its own, which shows who was started.
cat > "$folder/path/python3" <<SHELL
#!/bin/sh
STARTED_BY=path exec "$folder/venv/bin/python" "\$@"
SHELL
cat > "$folder/wanted" <<SHELL
#!/bin/sh
STARTED_BY=property exec "$folder/venv/bin/python" "\$@"
SHELL
chmod +x "$folder/path/python3" "$folder/wanted"
cd "$folder"
cat > run.py <<'PYTHON'
import os
import sys

from pyspark.sql import SparkSession

wanted = sys.argv[1]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.pyspark.python", wanted).getOrCreate()
seen = spark.sparkContext.parallelize([1], 1).map(lambda _: os.environ.get("STARTED_BY")).first()
print("the session says:", spark.conf.get("spark.pyspark.python") == wanted and "the property")
print("functions run in: the one of the", seen)
sys.stdout.flush()
os._exit(seen != "path")
PYTHON
env -u PYSPARK_PYTHON -u PYSPARK_DRIVER_PYTHON PATH="$folder/path:$PATH" \
  "$folder/venv/bin/python" run.py "$folder/wanted" 2>/dev/null
