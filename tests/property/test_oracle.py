"""Random commands and clock moves, played on the memory store and on SQLite: equal answers."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from leasehold.domain import claims
from leasehold.stores.sql import statements
from leasehold.stores.sqlite import store as sqlite_store

from .binding import BindingComparison
from .comparison import OracleComparison
from .governed import GovernedComparison, KeyedComparison
from .holding import HoldingComparison
from .staged_keys import StagedKeysComparison


def compare(machine: type[RuleBasedStateMachine], examples: int, *, fault: bool = False) -> None:
    """Play that many random scripts of 50 steps; to find a fault, the same ones each time.

    The first that fails is shown as it is. To make it shorter takes more minutes than a test has,
    and then nobody learns what failed: add `Phase.shrink` for that, and take off the timeout.
    """
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            phases=[Phase.generate] if fault else [Phase.reuse, Phase.generate],
            print_blob=True,
            derandomize=fault,
            suppress_health_check=list(HealthCheck),
        ),
    )


COMPARED = [
    OracleComparison,
    GovernedComparison,
    BindingComparison,
    StagedKeysComparison,
    HoldingComparison,
]
"""What clients do, what those do who look after a queue, claims and sessions, staged keys, groups
that sessions hold."""


def often(few: int, many: int) -> pytest.MarkDecorator:
    """Have a test play few scripts whenever tests run, and many of them in CI."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.long)])


@often(25, 120)
@pytest.mark.parametrize("machine", COMPARED)
def test_sqlite_answers_like_the_oracle(
    machine: type[RuleBasedStateMachine], examples: int
) -> None:
    """Whatever is asked in whatever order, SQLite answers as the pure rules do."""
    compare(machine, examples)


class OpenedInSteps(BindingComparison):
    """The same with a clock that is never set back.

    The store counts how long members have been leased from when their claim was opened, the oracle
    from when each was taken. They only differ if the clock goes back between two steps of opening.
    """

    @rule(move_ms=st.sampled_from([1, 999, 1_000, 4_000, 30_000, 100_000]))
    def move_clock(self, move_ms: int) -> None:
        self.clock.advance(ms=move_ms)


@often(15, 60)
def test_claims_in_steps_are_like_the_oracle(
    examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a claim is opened in steps, and where lapsed claims are dissolved."""
    monkeypatch.setattr(claims, "CLAIM_STEP", 2)
    monkeypatch.setattr(claims, "MAX_LAPSED", 1)
    compare(OpenedInSteps, examples)


@often(15, 60)
@pytest.mark.parametrize("machine", COMPARED[:3])
def test_many_at_once_are_answered_like_one_by_one(
    machine: type[RuleBasedStateMachine], examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements for many messages do what those for one do."""
    monkeypatch.setattr(statements, "SET_WISE", 1)
    monkeypatch.setattr(statements, "ROWS_AT_ONCE", 2)
    compare(machine, examples)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("machine", COMPARED)
def test_sqlite_answers_like_the_oracle_for_long(machine: type[RuleBasedStateMachine]) -> None:
    """The slow part: some 200,000 steps."""
    compare(machine, 2500)


PLANTED = {
    "receives by age": ("next_visible", "ORDER BY visible_at_ms, row_key", "ORDER BY row_key"),
    "hands out the expired": ("next_visible", "AND expires_at_ms > ?2", ""),
    "completes without looking at the fence": ("complete", "AND fence = ?3", "AND ?3 >= 0"),
    "completes the expired": ("complete", "expires_at_ms > ?5", "?5 > 0"),
    "completes in any queue": ("complete", "AND partition & 1099511627775 = ?2", "AND ?2 >= 0"),
    "keeps the receipt on renewal": ("renew", "fence = ?2", "fence = ?2 - 1"),
    "does not count the delivery": ("lease", "dequeue_count = ?2", "dequeue_count = ?2 - 1"),
    "retires for a while": ("retire", "visible_at_ms = NULL", "visible_at_ms = 0"),
}
PLANTED_IN_KEYS = {
    "remembers a key for ever": ("find_key", "AND until_ms > ?", "AND ? > 0"),
    "forgets keys too soon": ("forget_keys", "until_ms <= ?1", "?1 > 0"),
}
PLANTED_IN_ADMIN = {
    "loses the holder": ("lease", "holder = ?5", "holder = iif(?5 IS NULL, NULL, '')"),
    "forgets when it was visible": ("lease", "visible_since_ms = visible_at_ms", "since_ms = ?4"),
    "leaves poison where it was": ("rewrite", "partition = ?8", "renewals = iif(?8, ?6, 0)"),
    "counts the running second whole": ("this_second", "visible_at_ms > ?2", "?2 > 0"),
    "takes the newest for the oldest": ("oldest_in_phase", "BY since_ms", "BY -since_ms"),
    "counts what has expired": ("not_yet_retired", "expires_at_ms <= ?2", "?2 < 0"),
}


PLANTED_IN_BINDINGS = {
    "forgets what is noted": ("get_exemptions", "partition = ?", "partition = -?"),
    "loses what a stream was settled with": ("set_stream", "= ?5", "= iif(?5 IS NULL, NULL, '')"),
}
PLANTED_IN_STAGED_KEYS = {
    "publishes the last of two": ("keep_staged_keys", "BY row_key", "BY -row_key"),
    "hands a key on": ("keep_staged_keys", "WHERE until_ms <= ?2", "WHERE ?2 > 0"),
    "keeps the times of staging": ("keep_staged_keys", "message_id, ?2,", "message_id, ?2 - 1,"),
}
MACHINES = (
    (OracleComparison, PLANTED),
    (KeyedComparison, PLANTED_IN_KEYS),
    (GovernedComparison, PLANTED_IN_ADMIN),
    (BindingComparison, PLANTED_IN_BINDINGS),
    (StagedKeysComparison, PLANTED_IN_STAGED_KEYS),
)


FOUND_LATE = {
    "completes the expired",
    "forgets keys too soon",
    "forgets what is noted",
    "keeps the receipt on renewal",
    "receives by age",
    "remembers a key for ever",
    "takes the newest for the oldest",
}
"""Faults that take more than ten seconds to be found."""


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.slow if fault in FOUND_LATE else pytest.mark.long)
        for _, faults in MACHINES
        for fault in faults
    ],
)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive controls: the comparison sees each of these mistakes."""
    ((machine, (name, right, wrong)),) = [
        (machine, faults[fault]) for machine, faults in MACHINES if fault in faults
    ]
    sql = sqlite_store.QUERIES[name]
    assert right in sql
    monkeypatch.setitem(sqlite_store.QUERIES, name, sql.replace(right, wrong))
    with pytest.raises((AssertionError, ExceptionGroup)):
        compare(machine, 2000, fault=True)  # ends with the first difference
