"""The feedback loop: a streaming query of a few lines, with a driver of its own.

It needs a slot all the time, and those of the cluster are taken by long work. So it may run on any
machine that reaches the server; here it is a process beside the cluster.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

from examples.video_pipeline.worker import CONNECTION_VARIABLE

from leasehold.spark import feedback
from leasehold.spark.session import local_session

EVERY: Final = "1 second"
CAP_S: Final = 60


def main() -> None:
    """Run the query until the standard input ends, and end between two micro-batches."""
    queue, checkpoint = sys.argv[1:]
    # Of the environment, for an executor to find it there; a key has no business in options.
    options = {"connectionStringVariable": CONNECTION_VARIABLE, "waitSeconds": "0.2"}
    session = local_session(cores=1, name="feedback loop", quick=True, spark_driver_memory="512m")
    with session as spark:
        # At once, since it is shown in a minute; without it a timeout is doubled at most.
        query = feedback.start(
            spark, options, checkpoint=checkpoint, every=EVERY,
            queues=[queue], cap_s=CAP_S, at_once=True,
        )  # fmt: skip

        def follow() -> None:
            sys.stdin.read()  # it ends with the process that started this one
            feedback.stop(query)

        follower = threading.Thread(target=follow, name="follow-the-story", daemon=True)
        follower.start()
        query.awaitTermination()
        follower.join()  # it is not done with Spark yet


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    main()
