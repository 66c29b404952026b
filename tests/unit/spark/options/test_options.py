"""Options as users write them: names in any case, values as text, and what is refused."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from leasehold.spark.connection import connect
from leasehold.spark.options import (
    OPTIONS,
    BadOption,
    read_options,
    refuse_for_streams,
    write_options,
)
from leasehold.spark.source import LeaseholdDataSource

SECRET = "c2VjcmV0LWtleS1zZWNyZXQta2V5"


def reading(**options: Any) -> Any:
    return read_options({"queueName": "orders", **options})


# --- names ---------------------------------------------------------------------------------------


def test_names_are_read_without_regard_to_case() -> None:
    """Spark hands them over in lower case; users write them as they like."""
    assert reading(MAXMESSAGESPERTRIGGER="7").max_messages_per_trigger == 7
    assert reading(maxmessagespertrigger="8").max_messages_per_trigger == 8


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("maxMesagesPerTrigger", "Did you mean maxMessagesPerTrigger?"),
        ("stream_id", "Did you mean streamId?"),
        ("visibilitytimout", "Did you mean visibilityTimeout?"),
        ("kafka.group.id", "Did you mean streamId?"),
        ("subscribePattern", "Did you mean queueName?"),
        ("txnId", "It is an option of a write."),
        ("zzz", "there is no option zzz for a read.$"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, text: str) -> None:
    """A misspelt option is never passed over."""
    with pytest.raises(BadOption, match=text):
        reading(**{name: "1"})


def test_a_name_of_a_read_is_refused_for_a_write() -> None:
    """And the text says so."""
    with pytest.raises(BadOption, match="It is an option of a read"):
        write_options({"queueName": "orders", "streamId": "x"})


def test_one_option_by_two_names_is_refused() -> None:
    """Which of them counts would be a guess."""
    with pytest.raises(BadOption, match="queueName is given twice, once as path"):
        reading(path="other")


@pytest.mark.parametrize("name", ["checkpointLocation", "queryName"])
def test_options_of_spark_itself_are_passed_over(name: str) -> None:
    """A sink is handed those too."""
    assert write_options({"queueName": "orders", name: "x"}).place.queue == "orders"


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "member", "read"),
    [
        ("maxTriggerDelay", "5m", "max_trigger_delay", 300.0),
        ("waitSeconds", "500 ms", "wait_seconds", 0.5),
        ("visibilityTimeout", "1h", "visibility_timeout", 3_600),
        ("replayWindow", "2 days", "replay_window", 172_800),
        ("maxBytesPerTrigger", "64m", "max_bytes_per_trigger", 64 << 20),
        ("maxMessagesPerTrigger", "100_000", "max_messages_per_trigger", 100_000),
        ("delivery", "ATMOSTONCE", "delivery", "atMostOnce"),
        ("onBadRecord", "deadletter", "on_bad_record", "poison"),
        ("wholeGroups", "true", "whole_groups", True),
        ("prefetchClaim", "False", "prefetch_claim", False),
        ("columns", "body, claim", "columns", ("body", "claim")),
        ("maxMessagesPerTrigger", 7, "max_messages_per_trigger", 7),
        ("failOnDataLoss", False, "fail_on_data_loss", False),
        ("numPartitions", None, "num_partitions", None),
    ],
)
def test_values_are_read(option: str, value: object, member: str, read: object) -> None:
    """With units, in any case; what Spark would make a text of is taken as that."""
    assert getattr(reading(**{option: value}), member) == read


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("maxMessagesPerTrigger", "0", "'0' is not a whole number from 1 to 1,000,000"),
        ("maxMessagesPerTrigger", "many", "'many' is not a whole number"),
        ("visibilityTimeout", "1500ms", "of whole seconds, 2 to 604800"),
        ("visibilityTimeout", "1s", "of whole seconds, 2 to 604800"),
        ("waitSeconds", "61", "from 0 to 60 seconds"),
        ("waitSeconds", "5 parsecs", "a length of time"),
        ("maxBytesPerTrigger", "0", "a size such as"),
        ("delivery", "twice", "one of exactlyOnce, atLeastOnce, atMostOnce"),
        ("prefetchClaim", "yes", "true or false"),
        ("columns", ",", "names between commas"),
        ("queueName", " ", "a text that is not empty"),
    ],
)
def test_a_malformed_value_is_refused(option: str, value: str, text: str) -> None:
    """The text names the option and what it should have been."""
    with pytest.raises(BadOption, match=rf"option {option}: .*{text}"):
        read_options({option: value})


@pytest.mark.parametrize(
    "option", ["connectionString", "connectionStringVariable", "connectionStringFile", "endpoint"]
)
def test_none_leads_to_no_server(option: str) -> None:
    """A setting that is missing does not stand for the environment or the development account."""
    with pytest.raises(BadOption, match=f"option {option} is None"):
        reading(**{option: None})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"connectionString": "x", "endpoint": "http://a"}, "exclude each other"),
        ({"account": "a"}, "account needs the option endpoint"),
        ({"credential": "a"}, "credential needs the option endpoint"),
    ],
)
def test_ways_to_the_server_exclude_each_other(options: dict[str, str], text: str) -> None:
    """There is one place, and one way to say it."""
    with pytest.raises(BadOption, match=text):
        reading(**options)


# --- what does not fit the read ------------------------------------------------------------------

BODY = StructType([StructField("body", BinaryType())])
STREAM = {"queueName": "orders", "streamId": "totals"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("limit", "10"),
        ("state", "visible"),
        ("pushdown", "true"),
        ("endingTime", "2026-01-01"),
        ("eventLog", "/data"),
    ],
)
def test_a_stream_refuses_what_it_would_pass_over(option: str, value: str) -> None:
    """Whoever limits a stream to ten rows must not get all of them without a word."""
    source = LeaseholdDataSource({**STREAM, option: value})
    with pytest.raises(BadOption, match=f"option {option} is for batch reads"):
        source.streamReader(BODY).initialOffset()


@pytest.mark.parametrize("read", ["messages", "snapshot"])
def test_columns_and_a_schema_that_differ_are_refused(read: str) -> None:
    """One of the two would be passed over."""
    text = StructType([StructField("body", StringType()), StructField("message_id", StringType())])
    source = LeaseholdDataSource({**STREAM, "columns": "body", "read": read})
    make: Callable[[StructType], Any] = source.reader if read == "snapshot" else source.streamReader
    with pytest.raises(BadOption, match="name different columns"):
        make(text).initialOffset()
    assert source.schema().names == ["body"]
    assert type(make(source.schema())).__name__ in {"ClaimReader", "SnapshotReader"}


# --- secrets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"connectionString": f"AccountKey={SECRET};QueueEndpoint=ftp://x/a"},
        {"connectionString": SECRET},
        {"connectionString": f"QueueEndpoint=http://x/a?sig={SECRET};AccountName=a;AccountKey=a"},
        {"endpoint": "http://127.0.0.1:1", "account": "a", "credential": f"{SECRET}!"},
        {"endpoint": f"http://127.0.0.1:1/a?sig={SECRET}", "account": "a"},
        {"endpoint": f"http://me:{SECRET}@127.0.0.1:1", "account": "a"},
    ],
)
def test_errors_show_no_secret(options: dict[str, str]) -> None:
    """Neither does what an object looks like in a log."""
    parsed = reading(**options)
    assert SECRET not in repr(parsed)
    with pytest.raises(BadOption) as refusal:
        connect(parsed.place)
    assert SECRET not in str(refusal.value)


def test_options_can_be_pickled() -> None:
    """They travel to executors."""
    parsed = reading(connectionString="UseDevelopmentStorage=true")
    assert pickle.loads(pickle.dumps(parsed)) == parsed
    assert {each.name for each in OPTIONS if each.is_secret} == {"connectionString", "credential"}
    assert dataclasses.is_dataclass(parsed)


def test_options_of_kafka_are_known() -> None:
    """Those that mean the same have Kafka's name as well."""
    options = read_options(
        {
            "subscribe": "orders",
            "maxOffsetsPerTrigger": "10",
            "minOffsetsPerTrigger": "5",
            "minPartitions": "4",
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
        }
    )
    assert options.queue == "orders"
    assert options.max_messages_per_trigger == 10
    assert options.min_messages_per_trigger == 5
    assert options.num_partitions == 4
    assert not options.fail_on_data_loss
    assert write_options({"topic": "orders"}).place.queue == "orders"


@pytest.mark.parametrize("text", ["latest", "23"])
def test_a_stream_begins_with_what_is_there(text: str) -> None:
    """A queue has no other place to begin at, and the error says what to do."""
    options = read_options({"queueName": "orders", "startingOffsets": text})
    with pytest.raises(BadOption, match="purge the queue"):
        refuse_for_streams(options)
