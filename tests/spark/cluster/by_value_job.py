"""A job whose function is in a module that only the driver can import; see shipped_job.

Argument: ``by-value``, or anything else for by reference.
"""

import json
import sys

import only_here  # type: ignore[import-not-found]  # the test makes it
from pyspark import cloudpickle
from pyspark.sql import SparkSession


def main() -> None:
    """Call a function of the module on executors."""
    if sys.argv[1] == "by-value":
        cloudpickle.register_pickle_by_value(only_here)  # type: ignore[no-untyped-call]  # Spark's
    spark = SparkSession.builder.getOrCreate()
    rows = spark.sparkContext.parallelize(range(4), 2).map(only_here.double).collect()
    sys.stdout.write(f"told {json.dumps({'rows': rows})}\n")
    spark.stop()


if __name__ == "__main__":
    main()
