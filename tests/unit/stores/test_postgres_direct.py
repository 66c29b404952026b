"""Statements straight through libpq say the same as through the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from psycopg import errors

from leasehold.domain.model import Phase
from leasehold.stores.postgres.connection import Address, connect
from leasehold.stores.postgres.cursor import Direct, array_of
from tests.postgres import find_programs, shared_cluster

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")

_NUMBERS = some.integers(-(2**63), 2**63 - 1)
_TEXTS = some.text(some.sampled_from('\0\uffff\ud800"\\{},NULL \n\u00e9\U0001f3a5'), max_size=8)
_MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def connection() -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection as the store has it."""
    with connect(Address.parse(shared_cluster().url)) as connection:
        yield connection


@pytest.fixture(scope="module")
def direct(connection: psycopg.Connection[tuple[Any, ...]]) -> Direct:
    """What is tested."""
    return Direct(connection)


@pytest.mark.parametrize(
    ("kind", "values"),
    [("bigint", _NUMBERS), ("bytea", some.binary(max_size=8)), ("text", _TEXTS)],
    ids=["numbers", "bytes", "texts"],
)
@_MANY
@given(data=some.data())
def test_columns_come_back(
    direct: Direct, kind: str, values: some.SearchStrategy[object], data: some.DataObject
) -> None:
    """Numbers, bytes and texts, those that PostgreSQL cannot hold too, with gaps or without."""
    column = data.draw(some.lists(values | some.none(), max_size=6))
    bounds = (array_of(column),)
    assert direct.takes(bounds)
    rows = direct.execute(f"SELECT v FROM unnest($1::{kind}[]) AS t (v)", bounds)
    assert [value for (value,) in rows] == column


def test_columns_of_phases(direct: Direct) -> None:
    """An enumerated number is a number."""
    rows = direct.execute("SELECT unnest($1::smallint[])", (array_of([Phase.LEASED, 0]),))
    assert rows == [(int(Phase.LEASED),), (0,)]


@pytest.mark.parametrize("column", [[1, "a"], [True], [1.5]])
def test_other_columns_are_left_to_the_driver(direct: Direct, column: Sequence[object]) -> None:
    """Of mixed or unknown kinds."""
    made = array_of(column)
    assert made == column
    assert not direct.takes((made,))


@_MANY
@given(number=_NUMBERS | some.none(), text=_TEXTS | some.none(), content=some.binary(max_size=9))
def test_values_come_back(
    direct: Direct, number: int | None, text: str | None, content: bytes
) -> None:
    """Each as what it was."""
    query = "SELECT $1::bigint, $2::text, $3::bytea"
    assert direct.execute(query, (number, text, content)) == [(number, text, content)]


def test_how_many_rows(direct: Direct) -> None:
    """Found or changed; statements that do neither count none."""
    direct.execute("SELECT generate_series(1, $1)", (3,))
    assert direct.changes == 3
    assert direct.execute("SET lock_timeout = '5s'", ()) == []
    assert direct.changes == 0


def test_errors_are_the_drivers(direct: Direct) -> None:
    """By class, whether they come of preparing, of running, or of several statements."""
    with pytest.raises(errors.UndefinedTable):
        direct.execute("SELECT 1 FROM nowhere", ())
    with pytest.raises(errors.DivisionByZero):
        direct.execute("SELECT 1 / $1", (0,))
    with pytest.raises(errors.SyntaxError):
        direct.run(b"SELECT 1; SELEC 2")
    assert direct.execute("SELECT $1 + 1", (1,)) == [(2,)]


def test_a_connection_that_is_lost() -> None:
    """The first statement says so, and every other."""
    with (
        connect(Address.parse(shared_cluster().url)) as lost,
        connect(Address.parse(shared_cluster().url)) as by,
    ):
        direct = Direct(lost)
        assert direct.execute("SELECT $1 + 1", (1,)) == [(2,)]
        by.execute("SELECT pg_terminate_backend($1::int)", (lost.info.backend_pid,))
        for _ in range(2):
            with pytest.raises(psycopg.OperationalError):
                direct.execute("SELECT $1 + 1", (1,))
            assert lost.closed
        with pytest.raises(psycopg.OperationalError):
            direct.run(b"SELECT 1")
