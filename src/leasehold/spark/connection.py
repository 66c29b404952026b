"""From options to a client of the server; made anew in each process, as connections are."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import UNSET

from leasehold import spans
from leasehold.client import Client, QueueNotFound, RetryPolicy
from leasehold.extras import install
from leasehold.garbage import spare_collecting
from leasehold.spark.options import BadOption, Place

SERVICE: Final = "leasehold-spark"
"""Name of the service in spans, unless OTEL_SERVICE_NAME says another."""
_DEVELOPMENT_ACCOUNT: Final = "devstoreaccount1"
_MANY: Final = 1_000_000
"""More tries than any patience allows: it is the patience that ends them."""


def connection_string(place: Place) -> str | None:
    """Return the connection string that the options lead to; None: the client's own default.

    Raises:
        BadOption: The variable or the file is not there on this machine.
    """
    if place.connection_string_variable is not None:
        try:
            return os.environ[place.connection_string_variable]
        except KeyError:
            raise BadOption(
                f"option connectionStringVariable: {place.connection_string_variable} is not set "
                "on this machine; executors need it too (spark.executorEnv)"
            ) from None
    if place.connection_string_file is not None:
        try:
            return Path(place.connection_string_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise BadOption(f"option connectionStringFile: {error.strerror}") from None
    return place.connection_string


def is_signature(credential: str) -> bool:
    """Tell whether a credential is a shared access signature; otherwise it is an account key."""
    # A signature is the query part of an address, and has a part of this name.
    return "sig=" in credential


def patient(patience_s: float) -> RetryPolicy:
    """Return a policy that goes on trying for so many seconds, for calls that can be repeated."""
    return RetryPolicy(attempts=_MANY, patience_s=patience_s)


@cache
def spare_worker(pid: int) -> None:
    """Have the process *pid*, this one, not look for garbage in what it has loaded by now.

    Spark has its Python workers look for garbage after each task, 30 ms of processor for what is
    loaded and stays: with small micro-batches that was more than all else.
    """
    del pid
    spare_collecting(seldom=False)


def connect(place: Place, retries: RetryPolicy | None = None, *, timeout_s: float = 30.0) -> Client:
    """Return a client. No request is made.

    Args:
        place: Where the server is.
        retries: How often and how patiently to try again.
        timeout_s: Seconds without a byte from the server after which a try has failed, above 0.

    Raises:
        BadOption: What the options say is malformed, or tracing needs a library that is not there;
            the text shows no secret.
    """
    if place.tracing:
        _start_spans()
    policy = retries or RetryPolicy()
    try:
        if place.endpoint is None:
            given = connection_string(place)
            return Client.from_connection_string(
                UNSET if given is None else given, timeout_s=timeout_s, retries=policy
            )
        key, sas = _credential(place.credential)
        account = place.account or _DEVELOPMENT_ACCOUNT
        return Client(
            place.endpoint, account, key=key, sas=sas, timeout_s=timeout_s, retries=policy
        )
    except ValueError as error:
        raise BadOption(f"the connection options are wrong: {error}") from None


def _start_spans() -> None:
    """Have this process send spans, if it does not yet: before the client is made, which asks.

    Raises:
        BadOption: The extra for it is not installed on this machine.
    """
    try:
        spans.start(SERVICE)
    except ImportError as error:
        raise BadOption(
            f"option tracing needs the library {error.name} on this machine: {install('otel')}"
        ) from None


@contextlib.contextmanager
def missing_queue_named(queue: str | None, client: Client) -> Iterator[None]:
    """Say which queue is missing, and where, if the server says that one is.

    Args:
        queue: The only one that is spoken of; None: there may be others.
        client: Of the server.

    Raises:
        BadOption: There is no such queue.
    """
    try:
        yield
    except QueueNotFound:
        if queue is None:
            raise
        raise missing_queue(queue, client) from None


def missing_queue(queue: str, client: Client) -> BadOption:
    """Return what to say of a queue that the server has not."""
    return BadOption(
        f"option queueName: there is no queue {queue} at {client.url}, account {client.account}"
    )


def _credential(given: str | None) -> tuple[str | None, str | None]:
    """Return the key or the signature that was given."""
    return (None, given) if given is not None and is_signature(given) else (given, None)


# --- errors ------------------------------------------------------------------------------------
#
# Spark shows an error of a Python source as all lines of code that led to it, and the sentence that
# says what to do as the last of them, above thousands of characters of Java's.


_Class = TypeVar("_Class", bound=type)
_OF_WORKERS: Final = "SPARK_BUFFER_SIZE"
"""A variable that Spark sets for each Python process that it starts."""
_HIDES_CODE: Final = "SPARK_HIDE_TRACEBACK"
"""The variable that PySpark reads when it has caught an error: the error alone is passed on."""


@contextlib.contextmanager
def _hidden_code() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # An error of ours says what was wrong; of any other the lines of code say it. A process
        # of Spark's ends with an error that reaches it, so that nothing else is hidden.
        if _OF_WORKERS in os.environ and type(error).__module__.startswith("leasehold."):
            os.environ[_HIDES_CODE] = "1"
        raise


def show_sentences(part: _Class) -> _Class:
    """Have Spark pass on errors of ours without lines of code; for classes whose methods it calls.

    Only functions without an underscore that the class itself defines are covered.
    """
    for name, method in list(vars(part).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(part, name, _showing_sentences(method))
    return part


def _showing_sentences(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _hidden_code():
            return method(*args, **kwargs)

    @wraps(method)
    def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with _hidden_code():
            yield from method(*args, **kwargs)

    return generate if inspect.isgeneratorfunction(method) else call


# --- naming ------------------------------------------------------------------------------------
#
# Names that the source and the sink of one query must agree on.


FORMAT_NAME: Final = "leasehold"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._:~-]")


def transaction_name(query_id: str, batch_id: str | int) -> str:
    """Return under which name a micro-batch stages what it sends.

    It is the same at a replay: Spark keeps both ids in the checkpoint.

    Args:
        query_id: Of the streaming query, or what the user gave as ``txnAppId``.
        batch_id: Of the micro-batch.
    """
    return f"spark.{_NOT_IN_NAMES.sub('-', query_id)}.{batch_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIdentity:
    """Who a task is: which query and batch it works for, and which attempt at it this is."""

    query_id: str | None
    """None in a batch job."""
    batch_id: int | None
    run_id: str
    """New at each start of the query, unlike the others, as attempts are numbered anew then."""
    partition: int
    attempt: int
    """0 for the first attempt at this partition in this run."""
    task: int
    """Number of the attempt among all of the application."""

    @property
    def part(self) -> str:
        """Name of what this attempt stages within its transaction."""
        return f"{self.partition}.{self.run_id}.{self.task}"

    @property
    def transaction(self) -> str | None:
        """Name of the micro-batch's transaction; None in a batch job."""
        if self.query_id is None or self.batch_id is None:
            return None
        return transaction_name(self.query_id, self.batch_id)


def current_task() -> TaskIdentity:
    """Return who the running task is.

    Raises:
        RuntimeError: This is not a task of Spark.
    """
    from pyspark import TaskContext  # noqa: PLC0415 - names are used where Spark is not

    context: Any = TaskContext.get()
    if context is None:
        raise RuntimeError("there is no task here: this runs on executors only")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    return TaskIdentity(
        query_id=context.getLocalProperty("sql.streaming.queryId"),
        batch_id=None if batch_id is None else int(batch_id),
        run_id=context.getLocalProperty("spark.jobGroup.id") or "",
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
        task=context.taskAttemptId(),
    )
