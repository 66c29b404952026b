"""The checker of histories finds each kind of fault, and none where there is an explanation."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from proof.history.checker import COLUMNS, check
from proof.history.records import (
    ClockReading,
    FaultRecord,
    History,
    Outcome,
    Verb,
    body_of,
    message_of,
)
from proof.history.written import (
    ALL,
    EXPLAINED,
    FAULTS,
    LEASE_S,
    Script,
    Write,
    doubled,
    got,
    late,
    late_after_a_lease,
    lost,
    out_of_order,
    unknown_receive,
)


@pytest.mark.parametrize(
    ("rule", "write"), FAULTS.items(), ids=[write.__name__ for write in FAULTS.values()]
)
def test_each_fault_is_found(rule: str, write: Write) -> None:
    """By its own rule, and by no other one."""
    script = Script()
    write(script)
    assert script.found() == [rule.strip()]


def test_every_column_has_a_fault_that_it_finds() -> None:
    """The scripts above are the positive control of all columns."""
    found = set()
    for write in FAULTS.values():
        script = Script()
        write(script)
        found |= {each.column for each in check(script.history, ALL).violations}
    assert found == set(COLUMNS)


def test_nothing_is_found_in_a_history_with_nothing_wrong() -> None:
    """A full life: delays, leases that end, renewals, releases, counts, peeks."""
    script = Script()
    script.put(0, hidden_s=2.0)
    script.receive(1)
    script.add(1.5, Verb.COUNT, count=1)
    script.receive(3, got("t1", 1))
    script.act(4, Verb.RENEW, "t1", new_token="t2", hidden_s=LEASE_S, saved="page 7")
    script.act(5, Verb.RENEW, "t1", new_token="t2", hidden_s=LEASE_S, saved="page 7")
    script.receive(14)
    script.receive(16, got("t3", 2, saved="page 7"))
    script.complete(17, "t2", outcome=Outcome.REFUSED, reason="lost")
    script.act(18, Verb.RELEASE, "t3", hidden_s=1.0)
    script.receive(18.5)
    script.add(20, Verb.PEEK, delivered=(got(""),))
    script.receive(21, got("t4", 3, saved="page 7"))
    script.complete(22, "t4")
    script.add(23, Verb.COUNT, count=0)
    assert script.found() == []


@pytest.mark.parametrize("write", EXPLAINED, ids=lambda each: each.__name__)
def test_what_may_have_been_is_not_reported(write: Write) -> None:
    """Unknown outcomes and calls at once leave room for more than one explanation."""
    script = Script()
    write(script)
    assert script.found() == []


def test_a_barrier_ends_what_is_unknown() -> None:
    """After it, and after the lease, a receive that is unknown explains nothing any more."""
    script = Script()
    unknown_receive(script)
    script.receive(11.5)
    assert script.found() == []
    script.history.barriers.append(1.2)
    assert script.found() == ["T1"]


def test_a_step_of_the_clock_excuses_by_its_own_length() -> None:
    """Forward steps end leases early, backward ones late, and no more than that."""
    script = Script()
    doubled(script)  # by 6 s
    script.history.faults = [FaultRecord(name="step", begun_s=2, ended_s=3, step_s=5.0)]
    assert script.found() == ["D1"]
    script.history.faults = [FaultRecord(name="step", begun_s=2, ended_s=3, step_s=7.0)]
    assert script.found() == []
    script = Script()
    late_after_a_lease(script)  # by 2 s
    script.history.faults = [FaultRecord(name="step", begun_s=2, ended_s=3, step_s=-1.0)]
    assert script.found() == ["T1"]
    script.history.faults = [FaultRecord(name="step", begun_s=2, ended_s=3, step_s=-3.0)]
    assert script.found() == []


def test_a_step_back_hides_what_was_visible_already() -> None:
    """For as long as the time comes twice, and no longer."""
    script = Script()
    late(script)  # put at 0, not received at 1
    script.history.faults = [FaultRecord(name="step", begun_s=0.5, ended_s=0.6, step_s=-2.0)]
    assert script.found() == []
    script.history.faults = [FaultRecord(name="step", begun_s=0.5, ended_s=0.6, step_s=-0.7)]
    assert script.found() == ["T1"]


def test_the_drift_of_the_clocks_on_record_is_the_margin() -> None:
    """The wall clock was seen to lose half a second against the monotonic one."""
    script = Script()
    script.put(0)
    script.receive(1, got("t1"))
    script.receive(10.7, got("t2"))
    script.complete(12, "t2")
    assert script.found() == ["D1"]
    script.history.drifts = [ClockReading(0, 0.0), ClockReading(20, -0.5)]
    assert script.found() == []


def test_what_is_not_promised_is_not_checked() -> None:
    """Columns of such promises have no figure."""
    script = Script()
    out_of_order(script)
    assert script.found(replace(ALL, ordered=False)) == []
    assert check(script.history, replace(ALL, ordered=False)).row()["order"] is None


def test_nothing_is_lost_before_all_was_drained() -> None:
    """A history that ends early does not say where the messages are."""
    script = Script(History())
    lost(script)
    assert script.found() == []


def test_a_call_of_a_killed_client_is_unknown() -> None:
    """Its end is never on record."""
    script = Script()
    script.put(0, completed_s=inf, outcome=Outcome.UNKNOWN)
    assert script.found() == []


@pytest.mark.parametrize("size", [0, 1, 16, 1_000])
def test_bodies_tell_their_message_if_they_are_whole(size: int) -> None:
    """A cut or changed body has no name."""
    body = body_of("m-1", size)
    assert message_of(body) == "m-1"
    assert message_of(body + "0") == ""
    assert message_of(body[:-1]) == ""
