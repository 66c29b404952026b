"""What can be said in SQL alone, and what is refused there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from leasehold.client import Client
from leasehold.spark import LeaseholdDataSource
from leasehold.testing import InProcessServer


class Sql:
    """Statements about the queue "orders" of a server of its own."""

    def __init__(self, spark: SparkSession, client: Client, connection: str) -> None:
        self.spark = spark
        self.orders = client.queue("orders")
        self.at = f"queueName '{self.orders.name}', connectionString '{connection}'"
        self.given = f"queueName = '{self.orders.name}', connectionString = '{connection}'"

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in self.spark.sql(statement).collect()]


@pytest.fixture
def sql(spark: SparkSession) -> Iterator[Sql]:
    """Statements; what they make is dropped at the end."""
    spark.dataSource.register(LeaseholdDataSource)
    with InProcessServer() as server, server.client() as client:
        client.queue("orders").create()
        yield Sql(spark, client, server.connection_string)
    for name in ("outbox", "seen", "waiting"):
        spark.sql(f"DROP VIEW IF EXISTS {name}")
    spark.sql("DROP TABLE IF EXISTS made")


@pytest.mark.long
def test_temporary_views_are_read_and_written(sql: Sql) -> None:
    """A view with columns takes rows, another shows what is there."""
    sql.rows(f"CREATE TEMPORARY VIEW outbox (body STRING) USING leasehold OPTIONS ({sql.at})")
    sql.rows("INSERT INTO outbox VALUES ('one'), ('two')")
    sql.rows(f"CREATE TEMPORARY VIEW seen USING leasehold OPTIONS ({sql.at}, read 'snapshot')")
    assert sql.rows("SELECT string(body), state FROM seen ORDER BY 1") == [
        ("one", "visible"),
        ("two", "visible"),
    ]


def test_a_table_without_columns_is_refused_when_it_is_made(sql: Sql) -> None:
    """The sentence says what to do instead, and shows no secret."""
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW") as refused:
        sql.rows(f"CREATE TABLE made USING leasehold OPTIONS ({sql.at}, read 'snapshot')")
    assert "AccountKey" not in str(refused.value)


@pytest.mark.parametrize("statement", ["SELECT * FROM made", "INSERT INTO made VALUES ('one')"])
def test_a_table_with_columns_goes_to_no_server(sql: Sql, statement: str) -> None:
    """Spark has dropped its options: nothing is taken from or sent to the development server."""
    sql.rows(f"CREATE TABLE made (body STRING) USING leasehold OPTIONS ({sql.at})")
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW"):
        sql.rows(statement)


def test_options_can_be_named_in_each_statement(sql: Sql) -> None:
    """WITH brings them to a table that has none."""
    sql.rows("CREATE TABLE made (body STRING) USING leasehold")
    sql.rows(f"INSERT INTO made WITH ({sql.given}) VALUES ('one')")
    assert sql.orders.counts().visible == 1


def test_a_permanent_view_keeps_the_options_of_its_statement(sql: Sql) -> None:
    """One table without options serves views of any queue, also of other sessions."""
    sql.orders.put("one")
    sql.rows("CREATE TABLE made (body BINARY, state STRING) USING leasehold")
    sql.rows(
        "CREATE VIEW waiting AS SELECT string(body), state "
        f"FROM made WITH ({sql.given}, read = 'snapshot')"
    )
    other = sql.spark.newSession()
    assert [tuple(row) for row in other.table("waiting").collect()] == [("one", "visible")]


def test_a_missing_queue_is_named(sql: Sql) -> None:
    """By reads and by writes, with the server that was asked."""
    place = sql.at.replace("orders", "ordres")
    sql.rows(f"CREATE TEMPORARY VIEW outbox (body STRING) USING leasehold OPTIONS ({place})")
    with pytest.raises(PySparkException, match="there is no queue ordres at http"):
        sql.rows("INSERT INTO outbox VALUES ('one')")
    sql.rows(f"CREATE TEMPORARY VIEW seen USING leasehold OPTIONS ({place}, read 'snapshot')")
    with pytest.raises(PySparkException, match="there is no queue ordres at http"):
        sql.rows("SELECT * FROM seen")
