"""Errors of ours reach the user as their sentence, and a stream that is refused keeps it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from leasehold.client.errors import LeaseholdClientError
from leasehold.spark.connection import show_sentences
from leasehold.spark.options import BadOption
from leasehold.spark.source import LeaseholdDataSource

HIDES = "SPARK_HIDE_TRACEBACK"
BODY = StructType([StructField("body", BinaryType())])


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process look like one that Spark has started, and forget it afterwards."""
    monkeypatch.setenv("SPARK_BUFFER_SIZE", "65536")
    monkeypatch.setenv(HIDES, "")


@show_sentences
class Part:
    """What Spark calls."""

    def partitions(self, error: Exception) -> None:
        """Fail at once."""
        raise error

    def read(self, error: Exception) -> Iterator[int]:
        """Fail after the first row."""
        yield 1
        raise error

    @classmethod
    def name(cls) -> str:
        """Return a name, as sources do."""
        return "part"


def partitions(error: Exception) -> None:
    Part().partitions(error)


def read(error: Exception) -> None:
    list(Part().read(error))


@pytest.mark.parametrize("call", [partitions, read])
@pytest.mark.parametrize("error", [BadOption("no"), LeaseholdClientError("no")])
def test_lines_of_code_are_hidden(call: Callable[[Exception], None], error: Exception) -> None:
    """PySpark reads the variable when it has caught the error, and then ends the process."""
    with pytest.raises(type(error), match="no"):
        call(error)
    assert os.environ[HIDES] == "1"
    assert Part.name() == "part"


@pytest.mark.parametrize("call", [partitions, read])
def test_of_other_errors_they_are_shown(call: Callable[[Exception], None]) -> None:
    """The lines of code say what a mistake is."""
    with pytest.raises(ValueError, match="odd"):
        call(ValueError("odd"))
    assert os.environ[HIDES] == ""


def test_elsewhere_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's own process goes on, and starts others."""
    monkeypatch.delenv("SPARK_BUFFER_SIZE")
    with pytest.raises(BadOption):
        partitions(BadOption("no"))
    assert os.environ[HIDES] == ""


FIRST_CALLS: dict[str, Callable[[Any], object]] = {
    "new": lambda reader: reader.initialOffset(),
    "restarted": lambda reader: reader.partitions({"claim": 1}, {"claim": 2}),
    "4.1": lambda reader: reader.latestOffset(),
    "read": lambda reader: reader.read(None),
}


@pytest.mark.parametrize("first", FIRST_CALLS.values(), ids=FIRST_CALLS)
def test_a_refused_stream_raises_when_it_is_asked(first: Callable[[Any], object]) -> None:
    """PySpark shows an UnboundLocalError where a source raises in place of returning a reader."""
    reader = LeaseholdDataSource({"queueName": "orders"}).streamReader(BODY)
    reader = pickle.loads(pickle.dumps(reader))
    with pytest.raises(BadOption, match="option streamId is missing"):
        first(reader)
    reader.stop()
