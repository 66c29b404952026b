"""A job that is given its key in each way there is. Tests look for the key in what it leaves.

Arguments: a folder for checkpoints, a folder for what users can see, and a file with the connection
string. The variable QUEUES_SECRET of the driver has it too.
"""

import contextlib
import io
import os
import sys
import urllib.request
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

REDACTION = "spark.sql.redaction.options.regex"
PAGES = ("environment/", "jobs/", "stages/", "executors/", "SQL/", "StreamingQuery/")
REPORTS = ("environment", "jobs", "stages", "allexecutors", "sql?details=true&length=100")


def explained(frame: DataFrame, mode: bool | str = True) -> str:
    """Return what explain prints."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        frame.explain(mode)
    return told.getvalue()


def main() -> None:
    """Read a queue with each of the ways, and save plans, progress, pages and reports."""
    checkpoints, seen, file = map(Path, sys.argv[1:])
    secret = os.environ["QUEUES_SECRET"]
    # Spark itself redacts the values of settings whose names have "secret" in them.
    builder = SparkSession.builder.config("spark.executorEnv.QUEUES_SECRET", secret)
    spark = builder.getOrCreate()
    ways = {
        "variable": {"connectionStringVariable": "QUEUES_SECRET"},
        "file": {"connectionStringFile": str(file)},
        "option": {"connectionString": secret},
    }
    for name, way in ways.items():
        where = {"queueName": name, **way}
        stream = spark.readStream.format("leasehold").options(**where, streamId=name).load()
        (seen / f"{name}-stream.txt").write_text(explained(stream) + explained(stream, "formatted"))
        query = (
            stream.select("body")
            .writeStream.format("leasehold")
            .options(**{**where, "queueName": "sent"})
            .option("checkpointLocation", str(checkpoints / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        with contextlib.redirect_stdout(io.StringIO()) as told:
            query.explain(True)
        progress = str(query.recentProgress)
        (seen / f"{name}-query.txt").write_text(told.getvalue() + progress, encoding="utf-8")
        table = spark.read.format("leasehold").options(**where, read="snapshot").load()
        table.collect()
        (seen / f"{name}-table.txt").write_text(explained(table) + table._jdf.toString())

    url = spark.sparkContext.uiWebUrl
    application = f"api/v1/applications/{spark.sparkContext.applicationId}"
    for page in (*PAGES, *(f"{application}/{report}" for report in REPORTS)):
        with urllib.request.urlopen(f"{url}/{page}") as answer:  # noqa: S310, RUF100 - our own page
            (seen / f"page-{page.replace('/', '-')}.txt").write_bytes(answer.read())

    # What the tests must find, to show that they would: a plan that nothing is redacted in.
    spark.conf.set(REDACTION, "nothing-at-all")
    shown = spark.readStream.format("leasehold").options(queueName="option", **ways["option"])
    (checkpoints / "control.txt").write_text(explained(shown.option("streamId", "control").load()))
    spark.stop()


if __name__ == "__main__":
    main()
