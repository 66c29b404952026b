"""Random work, played on PostgreSQL and on the memory store at once: equal answers, equal logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from hypothesis.stateful import RuleBasedStateMachine

from leasehold.domain import claims as cl
from leasehold.stores.postgres import store as postgres_store
from leasehold.stores.postgres.command_handlers import SharedSessionHandlers

from .on_postgres import (
    BindingOnPostgres,
    GovernedOnPostgres,
    HoldingOnPostgres,
    PlainOnPostgres,
    PostgresTwins,
    StagedKeysOnPostgres,
)
from .test_oracle import compare
from .test_twins import play

MACHINES = [
    PlainOnPostgres,
    GovernedOnPostgres,
    BindingOnPostgres,
    StagedKeysOnPostgres,
    HoldingOnPostgres,
]


@pytest.mark.parametrize("machine", MACHINES)
def test_postgres_answers_like_the_oracle(machine: type[RuleBasedStateMachine]) -> None:
    """Whatever is asked in whatever order, PostgreSQL answers as the pure rules do."""
    compare(machine, 5)


@pytest.fixture
def twins(seed: int) -> Iterator[PostgresTwins]:
    both = PostgresTwins(seed)
    both.create()
    yield both
    both.tested.close()


@pytest.mark.parametrize("seed", range(2))
def test_two_servers_do_the_same_as_the_oracle(twins: PostgresTwins, seed: int) -> None:
    """Operations of every kind on two servers in turn are those of one store."""
    play(twins, seed, 12)


@pytest.mark.parametrize("seed", [100])
def test_two_servers_do_the_same_in_steps(
    twins: PostgresTwins, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where claims are opened in steps of few messages, and dissolved soon and in steps."""
    in_steps(monkeypatch)
    play(twins, seed, 12)


def in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cl, "CLAIM_STEP", 3)
    monkeypatch.setattr(cl, "AGAIN_STEP", 2)
    monkeypatch.setattr(cl, "FOLD_STEP", 2)
    monkeypatch.setattr(cl, "MAX_LAPSED", 1)


PLANTED = {
    "keeps what others have changed": ("raise_version", "version + 1", "version"),
    "keeps the fence of a member": ("claim_many", "fence = fence + 1", "fence = fence"),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive controls: the comparison sees each of these mistakes."""
    name, right, wrong = PLANTED[fault]
    sql = postgres_store._QUERIES[name]
    assert right in sql
    monkeypatch.setitem(postgres_store._QUERIES, name, sql.replace(right, wrong))
    with pytest.raises(AssertionError):
        play_many(range(1, 40), 40)


@pytest.mark.long
def test_a_server_that_hears_no_other_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As well as one that does not read what other servers have heard of sessions."""
    monkeypatch.setattr(SharedSessionHandlers, "_refresh", lambda _: None)
    with pytest.raises(AssertionError):
        play_many(range(1, 40), 40)


def play_many(seeds: Iterable[int], rounds: int) -> None:
    """Play on databases of their own."""
    for seed in seeds:
        both = PostgresTwins(seed)
        try:
            both.create()
            play(both, seed, rounds)
        finally:
            both.tested.close()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("machine", MACHINES)
def test_postgres_answers_like_the_oracle_for_long(machine: type[RuleBasedStateMachine]) -> None:
    """The slow part."""
    compare(machine, 300)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1_000, 1_010))
def test_two_servers_do_the_same_for_very_long(twins: PostgresTwins, seed: int) -> None:
    """The slow part."""
    play(twins, seed, 300)
