"""Types of messages: as many of a queue as somebody may look at, and all others as one.

Each type is an observation of its own, with lengths by day that come to the driver. There are few
types as they are meant; but whoever takes an id for a type makes one for each message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

MOST_TYPES: Final = 200
OTHER_TYPES: Final = "other"
"""What all types of messages but the largest of a queue are put together as."""


def looked_over(messages: DataFrame) -> tuple[set[str | None], bool]:
    """Return whose messages these are, and whether a queue has too many types."""
    types = messages.groupBy("account", "queue", "message_type").agg(F.lit(1).alias("one"))
    rows = types.groupBy("account", "queue").agg(F.count("*").alias("types")).collect()
    return {row.account for row in rows}, any(row.types > MOST_TYPES for row in rows)


def largest_types(messages: DataFrame) -> list[Row]:
    """Return queues and types: of each queue those of the most messages."""
    order = Window.partitionBy("queue").orderBy(F.desc("found"), "message_type")
    return (
        messages.where("message_type IS NOT NULL")
        .groupBy("queue", "message_type")
        .agg(F.count("*").alias("found"))
        .withColumn("n", F.row_number().over(order))
        .where(F.col("n") <= MOST_TYPES)
        .select("queue", "message_type")
        .collect()
    )


def of_types(table: DataFrame, largest: Sequence[Row]) -> DataFrame:
    """Put all types but the largest of each queue together; what has none stays so."""
    schema = "k_queue string, k_type string"
    kept = table.sparkSession.createDataFrame([tuple(row) for row in largest], schema)
    joined = table.join(
        F.broadcast(kept), F.expr("queue = k_queue AND message_type = k_type"), "left"
    )
    known = F.col("message_type").isNull() | F.col("k_type").isNotNull()
    of_type = F.when(known, F.col("message_type")).otherwise(F.lit(OTHER_TYPES))
    return joined.withColumn("message_type", of_type).drop("k_queue", "k_type")
