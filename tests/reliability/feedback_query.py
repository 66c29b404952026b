"""One run of the feedback query over what the log has now, as a process made to be killed.

``python -m tests.reliability.feedback_query CONNECTION_STRING QUEUE CHECKPOINT``
"""

from __future__ import annotations

import sys

from leasehold.spark import feedback
from leasehold.spark.session import local_session


def main() -> None:
    """Read to the end of the log, apply what is to be applied, and end."""
    connection_string, queue, checkpoint = sys.argv[1:]
    options = {"connectionString": connection_string, "waitSeconds": "0.2"}
    with local_session(
        cores=1, name="feedback-kills", quick=True, spark_driver_memory="512m"
    ) as spark:
        query = feedback.start(
            spark, options, checkpoint=checkpoint, every=None, queues=[queue], notices=True
        )
        query.awaitTermination()


if __name__ == "__main__":
    main()
