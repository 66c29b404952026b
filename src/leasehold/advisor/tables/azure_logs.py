"""Diagnostic logs of Azure Queue Storage, told as attempts and messages.

What Azure logs of a request is its operation, its address, its status and its caller. The address
names the message for ``UpdateMessage`` and ``DeleteMessage``, and for no other operation: the log
does not say which messages a ``GetMessages`` handed out, nor which one a ``PutMessage`` made. So a
lease is told by what its holder did with the message, and its beginning is that of the caller's
last ``GetMessages`` on that queue before it. What that means for the tables is said in
``docs/reference/analytics-tables.md``.

Source: Azure Monitor, resource logs of Azure Storage, category of the queue service
(https://learn.microsoft.com/azure/azure-monitor/reference/tables/storagequeuelogs), and the
addresses of the Queue Storage REST API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import StringType, StructField, StructType

from leasehold.advisor.tables.derive import REFUSED, day_of, shaped
from leasehold.advisor.tables.schemas import ATTEMPTS, MESSAGES, Ending, Fate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_LEASE_S: Final = 30
"""Where ``GetMessages`` does not say how long (REST API, "Get Messages")."""
_STRING: Final = StringType()
_GETTING: Final = "('GetMessages', 'GetMessage')"
_PATH: Final = "^(?:/[^/]+)?/([^/]+)/messages(?:/([^/]+))?/?$"
"""Queue and message; with the account before them, where it is not a part of the host's name."""

LINES: Final = StructType(
    [
        StructField("time", _STRING),
        StructField("operationName", _STRING),
        StructField("statusCode", _STRING),
        StructField("statusText", _STRING),
        StructField("callerIpAddress", _STRING),
        StructField("uri", _STRING),
        StructField(
            "properties",
            StructType(
                [StructField("accountName", _STRING), StructField("userAgentHeader", _STRING)]
            ),
        ),
    ]
)
"""What is used of a line; the rest is passed over."""


class AzureTables(NamedTuple):
    """What can be told of the messages of a log."""

    attempts: DataFrame
    messages: DataFrame


def read_lines(spark: SparkSession, path: str) -> DataFrame:
    """Return the lines of log files, as Azure puts them into a storage account.

    Args:
        spark: The session.
        path: A file or folder of JSON lines; folders below are read as well.
    """
    return spark.read.schema(LINES).option("recursiveFileLookup", "true").json(path)


def tables(lines: DataFrame) -> AzureTables:
    """Return attempts and messages.

    Args:
        lines: With the columns of :data:`LINES`. Lines that are there twice are used once.
    """
    requests = _requests(lines)
    attempts = _attempts(_with_the_get(requests))
    return AzureTables(shaped(attempts, ATTEMPTS), shaped(_messages(attempts), MESSAGES))


def _requests(lines: DataFrame) -> DataFrame:
    """Return one row for each request: who, which queue and message, when."""
    path = "parse_url(uri, 'PATH')"
    # A port of its own for each connection says nothing about who it is.
    caller = "regexp_replace(callerIpAddress, ':[0-9]+$', '')"
    return (
        lines.where("uri IS NOT NULL AND time IS NOT NULL")
        .selectExpr(
            "operationName AS operation",
            "unix_millis(to_timestamp(time)) AS at",
            "try_cast(statusCode AS int) AS status",
            "statusText AS said",
            "properties.accountName AS account",
            f"regexp_extract({path}, '{_PATH}', 1) AS queue",
            f"nullif(regexp_extract({path}, '{_PATH}', 2), '') AS message_id",
            "try_cast(parse_url(uri, 'QUERY', 'visibilitytimeout') AS double) AS timeout_s",
            f"concat_ws(' ', {caller}, properties.userAgentHeader) AS holder",
        )
        .where("queue <> ''")
        .distinct()
    )


def _with_the_get(requests: DataFrame) -> DataFrame:
    """Put beside each act on a message when its caller last got messages before, for how long."""
    order = (
        Window.partitionBy("account", "queue", "holder")
        .orderBy("at", F.expr(f"operation NOT IN {_GETTING}"))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    got = f"IF(operation IN {_GETTING} AND status < 300, struct(at, timeout_s), NULL)"
    beside = requests.withColumn("got", F.last(F.expr(got), ignorenulls=True).over(order))
    return beside.where(
        "message_id IS NOT NULL AND operation IN ('UpdateMessage', 'DeleteMessage')"
    )


_FIRST_S: Final = f"coalesce(got.timeout_s, {DEFAULT_LEASE_S})"
_FIRST_UNTIL: Final = f"got.at + 1000 * {_FIRST_S}"
_GIVEN_BACK: Final = "operation = 'UpdateMessage' AND status < 300 AND timeout_s = 0"
_REFUSED: Final = "operation = 'DeleteMessage' AND status IN (400, 404) AND said <> 'QueueNotFound'"


def _with_parts(acts: DataFrame) -> DataFrame:
    """Add ``part``: acts of one holder on one message that have the same one are of one lease."""
    of_holder = Window.partitionBy("account", "queue", "message_id", "holder").orderBy("at")
    before = of_holder.rowsBetween(Window.unboundedPreceding, -1)
    # Renewals follow the receive that came before the first of them, whatever was received since.
    # But what was received when the lease, as it was known, had run out is another delivery; unless
    # a delete shows by its refusal that the receipt was still the old one.
    acts = acts.withColumns(
        {
            "was_given_back": F.lag(F.expr(_GIVEN_BACK), 1, False).over(of_holder),
            "had": F.lag("got").over(of_holder),
            "had_until": F.coalesce(
                F.lag("renewed_ms").over(of_holder),
                F.greatest(
                    F.last("renewed_ms", ignorenulls=True).over(before),
                    F.lag(F.expr(_FIRST_UNTIL)).over(of_holder),
                ),
            ),
        }
    )
    again = f"got.at > had.at AND got.at >= had_until AND NOT ({_REFUSED} AND at <= {_FIRST_UNTIL})"
    begins = f"was_given_back OR coalesce({again}, FALSE)"
    return acts.withColumn("part", F.sum(F.expr(f"IF({begins}, 1, 0)")).over(of_holder))


def _attempts(acts: DataFrame) -> DataFrame:
    """Return one row for each holder of each message and each of its leases that left a trace."""
    done = "operation = 'DeleteMessage' AND status < 300"
    renewed = "operation = 'UpdateMessage' AND status < 300 AND timeout_s > 0"
    leases = (
        _with_parts(
            acts.withColumn("renewed_ms", F.expr(f"IF({renewed}, at + 1000 * timeout_s, NULL)"))
        )
        .groupBy("account", "queue", "message_id", "holder", "part")
        .agg(
            F.expr("min_by(got, at)").alias("got"),
            F.expr(f"min(IF({done}, at, NULL))").alias("done_ms"),
            F.expr(f"min(IF({_REFUSED}, at, NULL))").alias("late_ms"),
            F.max(F.expr(f"IF({_GIVEN_BACK}, at, NULL)")).alias("back_ms"),
            F.count("renewed_ms").alias("renewals"),
            F.max("renewed_ms").alias("renewed_ms"),
        )
        .where("got IS NOT NULL")
    )
    leases = leases.withColumn("leased_at_ms", F.expr("got.at")).withColumn(
        "first_lease_s", F.expr(_FIRST_S)
    )
    until = "greatest(leased_at_ms + 1000 * first_lease_s, renewed_ms)"
    outcome = f"""
    CASE WHEN done_ms > {until} THEN '{Ending.COMPLETED_LATE}'
         WHEN done_ms IS NOT NULL THEN '{Ending.COMPLETED}'
         WHEN late_ms IS NOT NULL THEN '{Ending.COMPLETED_LATE}'
         WHEN back_ms IS NOT NULL THEN '{Ending.RETURNED}' ELSE '{Ending.OPEN}' END
    """
    turn = Window.partitionBy("account", "queue", "message_id").orderBy("leased_at_ms", "part")
    ended = "coalesce(done_ms, late_ms, back_ms)"
    return leases.withColumn("attempt", F.row_number().over(turn)).selectExpr(
        "account",
        "queue",
        "message_id",
        "cast(NULL AS string) AS message_type",
        "attempt",
        "holder",
        "cast(NULL AS string) AS session_id",
        "cast(NULL AS string) AS claim",
        "leased_at_ms",
        f"{ended} AS ended_at_ms",
        f"({ended} - leased_at_ms) / 1000 AS seconds",
        f"({until} - leased_at_ms) / 1000 AS lease_s",
        "first_lease_s",
        f"{outcome} AS outcome",
        f"IF(done_ms IS NULL AND late_ms IS NOT NULL, '{REFUSED}', NULL) AS reason",
        "coalesce(done_ms, late_ms) IS NOT NULL AS finished",
        "renewals",
        "cast(NULL AS string) AS error_type",
        "cast(NULL AS string) AS error_fingerprint",
        f"{day_of(f'coalesce({ended}, leased_at_ms)')} AS day",
        "done_ms",
    )


def _messages(attempts: DataFrame) -> DataFrame:
    return (
        attempts.groupBy("account", "queue", "message_id")
        .agg(
            F.min("leased_at_ms").alias("first_leased_at_ms"),
            F.max("done_ms").alias("ended_at_ms"),
            F.count("*").alias("deliveries"),
            F.max(F.when(F.col("done_ms").isNotNull(), F.col("seconds"))).alias("handling_s"),
        )
        .selectExpr(
            "*",
            # When a message was put is in no line that names it.
            "first_leased_at_ms AS inserted_at_ms",
            f"IF(ended_at_ms IS NULL, '{Fate.OPEN}', '{Fate.COMPLETED}') AS outcome",
            "deliveries - 1 AS redeliveries",
            f"{day_of('coalesce(ended_at_ms, first_leased_at_ms)')} AS day",
            *(
                f"cast(NULL AS string) AS {name}"
                for name in (
                    "message_type",
                    "reason",
                    "error_type",
                    "error_fingerprint",
                    "group_id",
                )
            ),
            *(f"cast(NULL AS double) AS {name}" for name in ("wait_s", "total_s")),
            "cast(NULL AS long) AS expires_at_ms",
        )
    )
