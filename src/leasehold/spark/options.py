"""The options of reads and writes: one table, read by name without regard to case.

Spark hands options over as text, with lower-case names. What is unknown, malformed or does not fit
is refused with the nearest name that exists, before anything is read or written. The errors that
end a query are here too, as the options say which of them do.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias

from leasehold.spark.option_values import (
    choice,
    names,
    plain,
    position,
    seconds,
    size_bytes,
    truth,
    whole,
    whole_seconds,
)

# --- options -----------------------------------------------------------------------------------


Delivery: TypeAlias = Literal["exactlyOnce", "atLeastOnce", "atMostOnce"]
BadRecords: TypeAlias = Literal["poison", "keep", "fail"]
Encoding: TypeAlias = Literal["none", "base64", "auto"]
BodyFormat: TypeAlias = Literal["raw", "json"]
Service: TypeAlias = Literal["leasehold", "azure"]
Content: TypeAlias = Literal["messages", "snapshot", "events", "results"]
OF_LOG: Final[frozenset[str | None]] = frozenset({"events", "results"})
"""Contents that are read from the event log, once or as a stream."""


class BadOption(ValueError):
    """An option of a read or a write is unknown, malformed, or does not fit the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option as users write it."""

    name: str
    """In the spelling of the documentation."""
    read: Callable[[str], Any]
    """Makes the value of the text; raises ValueError with what it should have been."""
    default: Any
    text: str
    """For people, one line."""
    kinds: frozenset[str]
    """Where it can be given: "read", "write"."""
    is_secret: bool = False
    aliases: tuple[str, ...] = ()


# --- the table ---------------------------------------------------------------------------------

_BOTH: Final = frozenset({"read", "write"})
_READ: Final = frozenset({"read"})
_WRITE: Final = frozenset({"write"})
_WEEK_S: Final = 604_800


def _option(  # noqa: PLR0913 - keyword-only, one line of the table
    name: str,
    read: Callable[[str], Any],
    default: Any,
    text: str,
    *,
    kinds: frozenset[str] = _READ,
    is_secret: bool = False,
    aliases: tuple[str, ...] = (),
) -> Option:
    return Option(
        name=name,
        read=read,
        default=default,
        text=text,
        kinds=kinds,
        is_secret=is_secret,
        aliases=aliases,
    )


OPTIONS: Final = (
    # Where
    _option(
        "queueName",
        plain,
        None,
        "The queue.",
        kinds=_BOTH,
        aliases=("queue", "path", "topic", "subscribe"),
    ),
    _option(
        "connectionString",
        plain,
        None,
        "As the Azure SDKs take it. Without any: the variable AZURE_STORAGE_CONNECTION_STRING, "
        "else the development server on this machine.",
        kinds=_BOTH,
        is_secret=True,
    ),
    _option(
        "connectionStringVariable",
        plain,
        None,
        "Environment variable that holds it, on the driver and on the executors.",
        kinds=_BOTH,
    ),
    _option(
        "connectionStringFile",
        plain,
        None,
        "File that holds it, on the driver and on the executors.",
        kinds=_BOTH,
    ),
    _option("endpoint", plain, None, "Address of the server.", kinds=_BOTH, aliases=("url",)),
    _option("account", plain, None, "Name of the account at the endpoint.", kinds=_BOTH),
    _option(
        "credential",
        plain,
        None,
        "Account key or shared access signature for the account.",
        kinds=_BOTH,
        is_secret=True,
    ),
    _option(
        "service",
        choice("leasehold", "azure"),
        "leasehold",
        "azure: read through the official SDK from any Azure Queue Storage, at least once.",
    ),
    # What
    _option(
        "read",
        choice("messages", "snapshot", "events", "results"),
        None,
        "messages: receive them, as a stream. snapshot: inspect a queue without leasing. events: "
        "the event log of the account, or of the named queue, once or as a stream. results: what "
        "became of each message, once or as a stream.",
        aliases=("content", "view"),
    ),
    # Admission
    _option("streamId", plain, None, "Name of the consumer; one running query for each."),
    _option(
        "maxMessagesPerTrigger",
        whole(1, 1_000_000),
        50_000,
        "Maximum number of messages in a micro-batch.",
        aliases=("maxOffsetsPerTrigger",),
    ),
    _option(
        "maxBytesPerTrigger",
        size_bytes,
        None,
        "Total size of bodies at which a micro-batch ends. Default: 256m, so that a few large "
        "messages do not fill the memory of a task.",
    ),
    _option(
        "minMessagesPerTrigger",
        whole(0, 1_000_000),
        0,
        "Wait for this many messages, but no longer than maxTriggerDelay.",
        aliases=("minOffsetsPerTrigger",),
    ),
    _option(
        "maxTriggerDelay", seconds(0, 86_400), 900.0, "Longest wait for minMessagesPerTrigger."
    ),
    _option(
        "waitSeconds",
        seconds(0, 60),
        1.0,
        "How long the server waits for a first message, or a stream of events for a first event.",
    ),
    _option(
        "numPartitions",
        whole(1, 10_000),
        None,
        "In how many parts a micro-batch is read. Default: one for each 5,000 messages, at most "
        "the driver's processors, 2 to 16.",
        aliases=("minPartitions",),
    ),
    _option(
        "wholeGroups",
        truth,
        False,
        "Put all messages of a group in a micro-batch into one task.",
    ),
    _option("prefetchClaim", truth, True, "Open the next claim while this one is processed."),
    _option(
        "maxEventsPerTrigger",
        whole(1, 10_000_000),
        100_000,
        "Streams of events: maximum number of events in a micro-batch, but for the rest of the "
        "last one's batch.",
    ),
    # Leases
    _option(
        "visibilityTimeout",
        whole_seconds(2, _WEEK_S),
        60,
        "Lease of a claim. It is extended in time however long a batch takes.",
    ),
    _option(
        "replayWindow",
        whole_seconds(1, _WEEK_S),
        6 * 3600,
        "How long a stopped query's unfinished claim is kept for its restart.",
    ),
    _option(
        "delivery",
        choice("exactlyOnce", "atLeastOnce", "atMostOnce"),
        "exactlyOnce",
        "exactlyOnce, atLeastOnce or atMostOnce: the guarantee when something fails.",
    ),
    _option(
        "settleWithSink",
        truth,
        False,
        "Settle a claim with the publishing of the batch, if the sink is this server. Only for "
        "stateless queries.",
    ),
    _option(
        "failOnDataLoss",
        truth,
        True,
        "Fail when a claim has lost messages to others, to a purge or to the end of its window; "
        "a stream of events, when events were deleted before it has read them.",
    ),
    _option(
        "allowNewCheckpoint",
        truth,
        False,
        "Let a query without a checkpoint continue at the stream's position on the server. Only "
        "with a sink that has no batch numbers of the old checkpoint.",
    ),
    _option(
        "retryPatience",
        seconds(0, 86_400),
        300.0,
        "How long the driver keeps retrying while the server does not respond. Tasks that write "
        "retry for a fifth of it, and Spark repeats them.",
        kinds=_BOTH,
    ),
    _option(
        "tracing",
        truth,
        False,
        "Send spans of OpenTelemetry by OTLP, from the driver and the executors. Needs the extra "
        "otel, and OpenTelemetry's own variables wherever these run.",
        kinds=_BOTH,
    ),
    # Bodies
    _option(
        "messageEncoding",
        choice("none", "base64", "auto"),
        "none",
        "none, base64 or auto: how bodies are encoded in the queue. auto guesses.",
    ),
    _option(
        "format",
        choice("raw", "json"),
        "raw",
        "raw or json: bodies as they are, or parsed into the columns of the schema given.",
        aliases=("bodyFormat",),
    ),
    _option(
        "onBadRecord",
        choice("poison", "keep", "fail", deadletter="poison"),
        "poison",
        "poison, keep or fail: what becomes of messages that cannot be decoded. With keep the row "
        "has nulls.",
    ),
    _option(
        "columnNameOfCorruptRecord",
        plain,
        "_corrupt_record",
        "Column for the text of what could not be parsed, with onBadRecord=keep.",
    ),
    _option("columns", names, None, "Only these columns, in this order.", kinds=_READ),
    # Batch reads
    _option("state", names, None, "Snapshot: only messages in one of these states."),
    _option("limit", whole(1, 1_000_000_000), None, "Batch reads: maximum number of rows."),
    _option("pushdown", truth, False, "Batch reads: let Spark push filters down."),
    # Events
    _option("startingSeq", whole(0, 1 << 62), None, "Events: after the batch with this number."),
    _option(
        "startingOffsets",
        position,
        None,
        "Events: earliest, latest (streams only) or the number of a batch, which is startingSeq. "
        "Default: earliest, of streams too. A stream with a checkpoint goes on where it was. "
        "Messages: earliest only, as a queue has no offsets.",
    ),
    _option(
        "startingTime",
        plain,
        None,
        "Events: from this time on, ISO 8601, or milliseconds since 1970.",
        aliases=("startingTimestamp",),
    ),
    _option(
        "endingTime",
        plain,
        None,
        "Events: before this time, ISO 8601, or milliseconds since 1970. Batch reads only.",
        aliases=("endingTimestamp",),
    ),
    _option(
        "eventLog",
        plain,
        None,
        "Events: folder of the exported log, read instead of the server's own.",
    ),
    # Writes
    _option("txnAppId", plain, None, "Streams: replaces the query's id.", kinds=_WRITE),
    _option("txnId", plain, None, "Batch: publish at most once under this name.", kinds=_WRITE),
    _option(
        "stageRows",
        whole(1, 10_000),
        10_000,
        "Maximum number of rows in one staging request.",
        kinds=_WRITE,
    ),
    _option(
        "stagingTimeout",
        whole_seconds(60, _WEEK_S),
        86_400,
        "When unpublished staged rows are removed.",
        kinds=_WRITE,
    ),
    _option(
        "delay",
        whole_seconds(0, 315_360_000),
        0,
        "Delay of rows without the column delay_s.",
        kinds=_WRITE,
        aliases=("visibilityDelay",),
    ),
    _option(
        "timeToLive",
        whole_seconds(1, 2_147_483_647),
        None,
        "Time to live of rows without the column time_to_live_s.",
        kinds=_WRITE,
    ),
    _option(
        "priority",
        whole(1, 16),
        None,
        "Priority of rows without the column priority.",
        kinds=_WRITE,
    ),
)
"""All there are, in the order of the documentation."""

_ELSEWHERE: Final = {
    "fetchparallelism": "numPartitions",
    "maxfilespertrigger": "maxMessagesPerTrigger",
    "groupidprefix": "streamId",
    "kafka.bootstrap.servers": "endpoint",
    "kafka.group.id": "streamId",
    "queueurl": "queueName",
    "sqslongpollingwaittimeseconds": "waitSeconds",
    "sqsurl": "queueName",
    "subscribepattern": "queueName",
}
"""What sources and sinks of Kafka, SQS and abs-aqs call an option, in lower case, and its name
here."""

# Spark adds options of its own to those of the user.
_OF_SPARK: Final = frozenset({"checkpointlocation", "query name", "queryname"})

_OF_BATCHES: Final = frozenset({"state", "limit", "pushdown", "endingTime", "eventLog"})
"""Of reads, those that say something of batch reads only."""
_OF_EVENTS: Final = frozenset({"maxEventsPerTrigger", "startingSeq", "startingTime"})
"""Of streams, those that say something of the event log only."""
_OF_MESSAGES: Final = frozenset(
    {
        "service",
        "streamId",
        "maxMessagesPerTrigger",
        "maxBytesPerTrigger",
        "minMessagesPerTrigger",
        "maxTriggerDelay",
        "wholeGroups",
        "prefetchClaim",
        "visibilityTimeout",
        "replayWindow",
        "delivery",
        "settleWithSink",
        "allowNewCheckpoint",
        "messageEncoding",
        "format",
        "onBadRecord",
        "columnNameOfCorruptRecord",
    }
)
"""Of streams, those that say something of messages only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the queue is. Its representation shows no secret."""

    queue: str | None
    connection_string: str | None = None
    connection_string_variable: str | None = None
    connection_string_file: str | None = None
    endpoint: str | None = None
    account: str | None = None
    credential: str | None = None
    tracing: bool = False
    """Whether processes that connect send spans."""

    def __repr__(self) -> str:
        # An address with a signature in it is refused later, and must not be shown before.
        address = None if self.endpoint is None else re.sub(r"\?.*|//[^/]*@", "…", self.endpoint)
        return f"Place(queue={self.queue!r}, endpoint={address!r}, account={self.account!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a read; see :data:`OPTIONS` for what each means. Times are seconds."""

    place: Place
    service: Service
    read: Content | None
    stream_id: str | None
    max_messages_per_trigger: int
    max_bytes_per_trigger: int | None
    min_messages_per_trigger: int
    max_trigger_delay: float
    wait_seconds: float
    num_partitions: int | None
    max_events_per_trigger: int
    whole_groups: bool
    prefetch_claim: bool
    visibility_timeout: int
    replay_window: int
    delivery: Delivery
    settle_with_sink: bool
    fail_on_data_loss: bool
    allow_new_checkpoint: bool
    retry_patience: float
    message_encoding: Encoding
    format: BodyFormat
    on_bad_record: BadRecords
    column_name_of_corrupt_record: str
    columns: tuple[str, ...] | None
    state: tuple[str, ...] | None
    limit: int | None
    pushdown: bool
    starting_seq: int | None
    starting_offsets: str | int | None
    starting_time: str | None
    ending_time: str | None
    event_log: str | None

    @property
    def queue(self) -> str:
        """The queue's name.

        Raises:
            BadOption: None was given.
        """
        if self.place.queue is None:
            raise BadOption("option queueName is missing: name the queue")
        return self.place.queue


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of a write; see :data:`OPTIONS` for what each means. Times are seconds."""

    place: Place
    retry_patience: float
    txn_app_id: str | None
    txn_id: str | None
    stage_rows: int
    staging_timeout: int
    delay: int
    time_to_live: int | None
    priority: int | None


def read_options(given: Mapping[str, Any]) -> ReadOptions:
    """Return the options of a read.

    Args:
        given: By name, as text; numbers and truth values are taken as Spark takes them.

    Raises:
        BadOption: One is unknown, malformed, or does not fit the others.
    """
    values = _values(given, "read")
    begins = [
        name
        for name in ("startingSeq", "startingOffsets", "startingTime")
        if values[name] is not None
    ]
    if "startingOffsets" in begins and len(begins) > 1:
        raise BadOption(f"options {' and '.join(begins)} exclude each other")
    return ReadOptions(place=_place(values), **_of(ReadOptions, values))


def write_options(given: Mapping[str, Any]) -> WriteOptions:
    """Return the options of a write; see :func:`read_options`."""
    values = _values(given, "write")
    return WriteOptions(place=_place(values), **_of(WriteOptions, values))


def nearest(name: str, known: list[str]) -> str:
    """Return `` Did you mean X?`` for the name most like *name*, or an empty text."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=1)
    return f" Did you mean {by_lower[near[0]]}?" if near else ""


def refuse_for_streams(options: ReadOptions) -> None:
    """Refuse options that a stream would pass over.

    Raises:
        BadOption: One is given that is for batch reads, or for streams of another kind.
    """
    of_log = options.read in OF_LOG
    given = [
        option.name
        for option in OPTIONS
        if "read" in option.kinds
        and option.name in (_OF_BATCHES | _OF_EVENTS | _OF_MESSAGES)
        and getattr(options, _snake(option.name)) != option.default
    ]
    for name in given:
        if name in _OF_BATCHES:
            raise BadOption(
                f"option {name} is for batch reads (read=snapshot, read=events, read=results); a "
                f"stream takes {'all that follows' if of_log else 'every message of its queue'}"
            )
        if of_log and name in _OF_MESSAGES:
            instead = {
                "streamId": ": its checkpoint says where it is",
                "maxMessagesPerTrigger": ": use maxEventsPerTrigger",
            }.get(name, "")
            raise BadOption(f"option {name} is not for a stream of read={options.read}{instead}")
        if not of_log and name in _OF_EVENTS:
            raise BadOption(
                f"option {name} is for the event log (read=events, read=results); a stream of "
                "messages takes every message of its queue"
            )
    if not of_log and options.starting_offsets not in {None, "earliest"}:
        raise BadOption(
            f"option startingOffsets is {options.starting_offsets!r} and can only be earliest: a "
            "queue has no offsets to begin at, and a stream takes every message that is there. To "
            "take only what comes from now on, purge the queue before the first start"
        )


NO_TABLES: Final = (
    "In SQL, Spark passes the OPTIONS of CREATE TABLE ... USING leasehold to no statement. "
    "Use CREATE TEMPORARY VIEW ... USING leasehold OPTIONS (...), or name the options in each "
    "statement: SELECT ... FROM t WITH (queueName = '...')"
)


def refuse_tables(given: Mapping[str, Any]) -> None:
    """Refuse to be a table of Spark's catalog, of which Spark keeps no options.

    It makes the source with the table's properties to ask for its columns, and then with none at
    all for each read: that would go to the development server.

    Raises:
        BadOption: They are properties of a table.
    """
    if any(name.lower().startswith("option.") for name in given):
        raise BadOption(NO_TABLES)


_PLACES: Final = frozenset(
    {"connectionstring", "connectionstringvariable", "connectionstringfile", "endpoint"}
)
"""Options that say where the server is. None for one comes from a setting that is missing."""


def _values(given: Mapping[str, Any], kind: str) -> dict[str, Any]:
    known = {each.name.lower(): each for each in OPTIONS if kind in each.kinds}
    for each in list(known.values()):
        known |= {alias.lower(): each for alias in each.aliases}
    values: dict[str, Any] = {}
    for name, value in given.items():
        lower = name.lower()
        if value is None and lower in _PLACES:
            raise BadOption(
                f"option {name} is None: give a text, or leave the option out for "
                "AZURE_STORAGE_CONNECTION_STRING or the development account"
            )
        if lower in _OF_SPARK or value is None:
            continue
        option = known.get(lower)
        if option is None:
            raise BadOption(f"there is no option {name} for a {kind}.{_near(lower, kind)}")
        if option.name in values:
            raise BadOption(f"option {option.name} is given twice, once as {name}")
        text = str(value)  # a listener is given options that Spark has not made texts of
        try:
            values[option.name] = option.read(text)
        except ValueError as error:
            shown = "the value given" if option.is_secret else repr(text)
            raise BadOption(f"option {option.name}: {shown} is not {error}") from None
    return {each.name: values.get(each.name, each.default) for each in known.values()}


def _near(lower: str, kind: str) -> str:
    own = [each.name for each in OPTIONS if kind in each.kinds]
    if any(lower == each.name.lower() for each in OPTIONS):
        other = "write" if kind == "read" else "read"
        return f" It is an option of a {other}."
    if _ELSEWHERE.get(lower) in own:
        return f" Did you mean {_ELSEWHERE[lower]}?"
    return nearest(lower, own)


def _place(values: Mapping[str, Any]) -> Place:
    ways = ("connectionString", "connectionStringVariable", "connectionStringFile", "endpoint")
    used = [name for name in ways if values[name] is not None]
    if len(used) > 1:
        raise BadOption(f"options {' and '.join(used)} exclude each other")
    if values["endpoint"] is None:
        for name in ("account", "credential"):
            if values[name] is not None:
                raise BadOption(f"option {name} needs the option endpoint")
    return Place(
        queue=values["queueName"],
        connection_string=values["connectionString"],
        connection_string_variable=values["connectionStringVariable"],
        connection_string_file=values["connectionStringFile"],
        endpoint=values["endpoint"],
        account=values["account"],
        credential=values["credential"],
        tracing=values["tracing"],
    )


def _of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {each.name for each in fields(kind)}
    by_field = {_snake(name): value for name, value in values.items()}
    return {name: by_field[name] for name in wanted if name != "place"}


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


# --- what ends a query --------------------------------------------------------------------------
#
# What ends a query that reads claims, in words for whoever runs the query.


log: Final = logging.getLogger("leasehold.spark")


class StreamTaken(RuntimeError):
    """Another query has attached to the stream: this one must stop."""


class DataLost(RuntimeError):
    """A micro-batch cannot be read as it was, or not at all."""


class NewCheckpoint(RuntimeError):
    """A query without a checkpoint reads a stream that another checkpoint has read."""


class BadRecord(ValueError):
    """A message cannot be decoded, and the options say that the query is to fail then."""


def taken(options: ReadOptions) -> StreamTaken:
    """Return the error of a query that was overtaken."""
    return StreamTaken(
        f"another query with streamId={options.stream_id} has attached to queue {options.queue}, "
        "so this one ends. Give each running query a streamId of its own"
    )


def is_strict(options: ReadOptions) -> bool:
    """Tell whether a micro-batch that has lost messages ends the query."""
    return options.fail_on_data_loss and options.delivery == "exactlyOnce"


def report_loss(options: ReadOptions, what: str) -> None:
    """Tell of a loss: as an error, or in the log if the options accept losses.

    Raises:
        DataLost: Losses are not accepted.
    """
    text = f"stream {options.stream_id} of queue {options.queue}: {what}"
    if is_strict(options):
        raise DataLost(f"{text}. Option failOnDataLoss=false goes on without them")
    log.warning("%s; going on", text)


def report_new_checkpoint(options: ReadOptions, settled: int) -> None:
    """Tell that a query begins anew with a stream that is not new.

    Spark numbers the micro-batches of a new checkpoint from 0. A sink that skips the numbers it
    knows, as files and Delta with ``txnVersion`` do, would write none of the first ones, and the
    source would complete their messages all the same.

    Args:
        options: Of the read.
        settled: Number of the last claim that the earlier checkpoint has settled.

    Raises:
        NewCheckpoint: The options do not accept it.
    """
    text = (
        f"stream {options.stream_id} of queue {options.queue} has settled claims up to {settled}, "
        "and this query has no checkpoint: it was deleted, or is at another location"
    )
    if options.allow_new_checkpoint or options.delivery == "atMostOnce":
        log.warning("%s; going on with claim %d", text, settled + 1)
        return
    raise NewCheckpoint(
        f"{text}. Its micro-batches would be numbered from 0 again, and a sink that skips the "
        "numbers it has written (files, Delta with txnVersion) would drop their rows. Start it "
        "with its own checkpoint; or with a new streamId; or, if the sink's output is new too or "
        "does not go by numbers of batches, with the option allowNewCheckpoint=true"
    )
