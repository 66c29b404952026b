"""Which Python a session is given, and what is said if it cannot load the format."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pyspark.sql import SparkSession

from leasehold.spark import FormatNotLoaded, register
from leasehold.spark.session import choose_python, refusal_text

NOT_FOUND = """An error occurred while calling o32.load.
: org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find it.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.dataSourceNotFoundError(Errors.scala:770)
"""
NOT_INSTALLED = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Trace:
  File "serializers.py", line 483, in loads
    return cloudpickle.loads(obj, encoding=encoding)
ModuleNotFoundError: No module named 'leasehold'
 SQLSTATE: 38000
"""


@pytest.mark.parametrize(
    ("environ", "conf", "python"),
    [
        ({}, {}, sys.executable),
        ({"PYSPARK_PYTHON": "python3.12"}, {"spark.pyspark.python": "other"}, "python3.12"),
        ({}, {"spark.pyspark.python": "other"}, "other"),
        ({"PYSPARK_PYTHON": ""}, {}, sys.executable),
    ],
)
def test_python_of_a_session(environ: dict[str, str], conf: dict[str, str], python: str) -> None:
    """What the user names is taken; otherwise the interpreter that runs the program."""
    assert choose_python(environ, conf) == python


@pytest.mark.parametrize("python", ["/usr/bin/python3", None])
def test_one_sentence_in_place_of_a_trace(python: str | None) -> None:
    """It names the Python, the reason and the cure, on one line."""
    text = refusal_text(python, NOT_INSTALLED)
    assert (python or "the Spark Connect server") in text
    assert "ModuleNotFoundError: No module named 'leasehold'. Install Leasehold there" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (NOT_FOUND, "SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find it"),
        ("crashed\nat somewhere", ": crashed."),
        (
            'An error occurred.\n: java.io.IOException: Cannot run program "no": error=2, No such',
            'java.io.IOException: Cannot run program "no": error=2, No such',
        ),
    ],
)
def test_reasons(refusal: str, reason: str) -> None:
    """Of Java's errors the first line is taken; of others whatever comes first."""
    assert reason in refusal_text("python3", refusal)


class FakeSession:
    """A session whose answers to a read are given; without a context, as in Spark Connect."""

    def __init__(self, *refusals: str) -> None:
        self.refusals = list(refusals)
        self.registered: list[type] = []
        self.read = self.dataSource = self

    def format(self, _: str) -> FakeSession:
        return self

    def option(self, _name: str, _value: str) -> FakeSession:
        return self

    def load(self) -> FakeSession:
        return self

    @property
    def schema(self) -> list[str]:
        if self.refusals:
            raise RuntimeError(self.refusals.pop(0))
        return []

    def register(self, source: type) -> None:
        self.registered.append(source)


def as_session(fake: Any) -> SparkSession:
    """Pass a fake where a session is expected."""
    return fake  # type: ignore[no-any-return]


def test_nothing_is_changed_where_the_format_is_found() -> None:
    """A cluster whose ``python3`` has Leasehold keeps it."""
    session = FakeSession()
    assert register(as_session(session)) is as_session(session)
    assert session.registered == []


def test_registered_where_it_is_not_found() -> None:
    """Once is enough."""
    session = FakeSession(NOT_FOUND)
    assert register(as_session(session)) is as_session(session)
    assert [source.__name__ for source in session.registered] == ["LeaseholdDataSource"]


def test_refused_where_the_server_has_no_leasehold() -> None:
    """The error comes at once, and not from the first read."""
    session = FakeSession(NOT_FOUND, NOT_INSTALLED)
    with pytest.raises(FormatNotLoaded, match=r"^the Python of the Spark Connect server cannot"):
        register(as_session(session))
