"""Orders come in by a queue, are kept in a table, and those to be looked at leave by another."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in Spark

ORDERS = os.environ.get("ORDERS_QUEUE", "orders")
REVIEWS = os.environ.get("REVIEWS_QUEUE", "reviews")

spark = SparkSession.active()

# The name of a variable, not its content, which would be in the plans: this one is set for the
# driver and the executors.
connection = {"connectionStringVariable": "QUEUES"}


@dp.table(comment="Every order that has come in, once.")
def orders() -> DataFrame:
    """Read the queue as a stream: each run takes what has come since the one before."""
    return (
        spark.readStream.format("leasehold")
        .options(**connection, queueName=ORDERS, streamId="bronze-orders", format="json")
        .schema("customer STRING, amount DOUBLE, _message_id STRING, _inserted_at TIMESTAMP")
        .load()
    )


@dp.materialized_view(comment="What each customer has ordered.")
def totals() -> DataFrame:
    """Sum up the table; computed anew in each run."""
    return spark.table("orders").groupBy("customer").agg(F.sum("amount").alias("amount"))


dp.create_sink("reviews", "leasehold", {**connection, "queueName": REVIEWS})


@dp.append_flow(target="reviews", name="large_orders")
def large_orders() -> DataFrame:
    """Send large orders on, each once."""
    large = spark.readStream.table("orders").where("amount >= 1000")
    return large.select(
        F.to_json(F.struct("customer", "amount")).alias("body"),
        F.lit("review").alias("message_type"),
    )
