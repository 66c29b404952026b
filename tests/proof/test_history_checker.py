"""The checker of histories finds each kind of fault, and none where there is an explanation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

import pytest
from proof.history.adapters import Promise
from proof.history.checker import COLUMNS, check
from proof.history.records import (
    ClockReading,
    Delivery,
    FaultRecord,
    History,
    Operation,
    Outcome,
    Verb,
    body_of,
    message_of,
)

ALL = Promise(ordered=True, saves=True, counts=True, fills=True, renews_again=True, margin_s=0.001)
LEASE_S = 10.0


@dataclass
class Script:
    """A history that is written by hand: each call takes a tenth of a second."""

    history: History = field(default_factory=lambda: History(drained_s=1_000.0))

    def add(self, at_s: float, verb: Verb, outcome: Outcome = Outcome.OK, **more: object) -> None:
        number = len(self.history.operations)
        times = {"invoked_s": at_s, "completed_s": at_s + 0.1, **more}
        self.history.operations.append(
            Operation(client="c", number=number, verb=verb, queue="q", outcome=outcome, **times)  # type: ignore[arg-type]
        )

    def put(self, at_s: float, message: str = "m", **more: object) -> None:
        self.add(at_s, Verb.PUT, message=message, **more)

    def receive(self, at_s: float, *taken: Delivery, **more: object) -> None:
        asked: dict[str, object] = {"hidden_s": LEASE_S, "limit": max(1, len(taken)), **more}
        self.add(at_s, Verb.RECEIVE, delivered=taken, **asked)

    def act(self, at_s: float, verb: Verb, token: str, **more: object) -> None:
        self.add(at_s, verb, token=token, **{"message": "m", **more})

    def complete(self, at_s: float, token: str, **more: object) -> None:
        self.act(at_s, Verb.COMPLETE, token, **more)

    def found(self, promise: Promise = ALL) -> list[str]:
        """Return the rules that were broken."""
        self.history.operations.sort(key=lambda each: each.invoked_s)
        return [each.rule for each in check(self.history, promise).violations]


def got(token: str, attempt: int | None = None, message: str = "m", **more: str) -> Delivery:
    return Delivery(body=body_of(message), token=token, attempt=attempt, **more)


def lived(script: Script) -> None:
    """Add a put, a receive and a completion with nothing wrong."""
    script.put(0)
    script.receive(1, got("t1"))
    script.complete(2, "t1")


def lost(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))


def lost_that_was_unknown(script: Script) -> None:
    script.put(0, outcome=Outcome.UNKNOWN)
    script.receive(1, got("t1"))


def lost_what_was_saved(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.act(2, Verb.RENEW, "t1", new_token="t2", hidden_s=LEASE_S, saved="page 7")
    script.receive(20, got("t3"))
    script.complete(21, "t3")


def back(script: Script) -> None:
    lived(script)
    script.receive(20, got("t2"))


def back_in_a_peek(script: Script) -> None:
    lived(script)
    script.add(20, Verb.PEEK, delivered=(got(""),))


def doubled(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.receive(5, got("t2"))
    script.complete(6, "t2")


def doubled_at_once(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.receive(1.05, got("t2"))
    script.complete(6, "t2")


def doubled_message(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1", message_id="one"))
    script.receive(20, got("t2", message_id="two"))
    script.complete(21, "t2")


def doubled_receipt(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.receive(20, got("t1"))
    script.complete(21, "t1")


def doubled_number(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1", 1))
    script.receive(20, got("t2", 1))
    script.complete(21, "t2")


def doubled_after_a_renewal(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.act(9, Verb.RENEW, "t1", new_token="t2", hidden_s=LEASE_S)
    script.receive(15, got("t3"))
    script.complete(16, "t3")


def early(script: Script) -> None:
    script.put(0, hidden_s=5.0)
    script.receive(3, got("t1"))
    script.complete(4, "t1")


def early_after_a_release(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.act(2, Verb.RELEASE, "t1", hidden_s=5.0)
    script.receive(4, got("t2"))
    script.complete(5, "t2")


def late(script: Script) -> None:
    script.put(0)
    script.receive(1)
    script.receive(2, got("t1"))
    script.complete(3, "t1")


def late_after_a_lease(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.receive(13)
    script.receive(14, got("t2"))
    script.complete(15, "t2")


def stale_by_another(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.receive(12, got("t2"))
    script.complete(13, "t1")


def stale_by_number(script: Script) -> None:
    script.put(0)
    script.receive(11.95, got("t1", 1), hidden_s=0.0)
    script.receive(12, got("t2", 2))
    script.complete(13, "t1")


def stale_by_renewal(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.act(2, Verb.RENEW, "t1", new_token="t2", hidden_s=LEASE_S)
    script.complete(3, "t1")


def stale_by_release(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.act(2, Verb.RELEASE, "t1")
    script.complete(3, "t1")


def stale_by_completion(script: Script) -> None:
    lived(script)
    script.complete(3, "t1")


def refused(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.complete(2, "t1", outcome=Outcome.REFUSED, reason="lost")
    script.receive(12, got("t2"))
    script.complete(13, "t2")


def out_of_order(script: Script) -> None:
    script.put(0, "m", group="g")
    script.put(1, "n", group="g")
    script.receive(2, got("t1", message="n"))
    script.complete(3, "t1", message="n")
    script.receive(4, got("t2"))
    script.complete(5, "t2")


def miscounted(script: Script) -> None:
    script.put(0)
    script.add(1, Verb.COUNT, count=0)
    script.receive(2, got("t1"))
    script.complete(3, "t1")


def miscounted_after(script: Script) -> None:
    lived(script)
    script.add(4, Verb.COUNT, count=1)


def foreign(script: Script) -> None:
    script.receive(0, got("t1"))


def foreign_body(script: Script) -> None:
    lived(script)
    script.receive(3, Delivery(body=body_of("m", 40)[:-1], token="t9"))


def foreign_as_refused(script: Script) -> None:
    script.put(0, outcome=Outcome.REFUSED)
    script.receive(1, got("t1"))
    script.complete(2, "t1")


FAULTS = {
    "L1": lost,
    "L2": lost_that_was_unknown,
    "L3": lost_what_was_saved,
    "B1": back,
    "B1 ": back_in_a_peek,
    "D1": doubled,
    "D1 ": doubled_at_once,
    "D2": doubled_message,
    "D3": doubled_receipt,
    "D4": doubled_number,
    "D5": doubled_after_a_renewal,
    "E1": early,
    "E2": early_after_a_release,
    "T1": late,
    "T1 ": late_after_a_lease,
    "S1": stale_by_another,
    "S1 ": stale_by_number,
    "S2": stale_by_renewal,
    "S3": stale_by_release,
    "S4": stale_by_completion,
    "R1": refused,
    "O1": out_of_order,
    "C1": miscounted,
    "C1 ": miscounted_after,
    "F1": foreign,
    "F1 ": foreign_body,
    "F3": foreign_as_refused,
}


@pytest.mark.parametrize(("rule", "write"), FAULTS.items(), ids=lambda each: str(each).strip())
def test_each_fault_is_found(rule: str, write: object) -> None:
    """By its own rule, and by no other one."""
    script = Script()
    write(script)  # type: ignore[operator]
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


def unknown_completion(script: Script) -> None:
    """It is done, or not."""
    script.put(0)
    script.receive(1, got("t1"))
    script.complete(2, "t1", outcome=Outcome.UNKNOWN)
    script.receive(14)
    script.add(15, Verb.COUNT, count=0)


def unknown_completion_that_was_not_done(script: Script) -> None:
    """The message comes again."""
    unknown_completion(script)
    del script.history.operations[-2:]
    script.receive(14, got("t2"))
    script.complete(15, "t2")


def unknown_receive(script: Script) -> None:
    """It has taken the message, and nobody got the answer."""
    script.put(0)
    script.receive(1, outcome=Outcome.UNKNOWN)
    script.receive(2)
    script.receive(12, got("t1"))
    script.complete(13, "t1")


def unknown_release(script: Script) -> None:
    """The next one may have the message at once."""
    script.put(0)
    script.receive(1, got("t1"))
    script.act(2, Verb.RELEASE, "t1", outcome=Outcome.UNKNOWN, hidden_s=1.0)
    script.receive(3.5, got("t2"))
    script.complete(4, "t2")


def unknown_renewal_much_later(script: Script) -> None:
    """Nothing says that it does not take effect when the lease is nearly over."""
    script.put(0)
    script.receive(1, got("t1"))
    script.act(2, Verb.RENEW, "t1", outcome=Outcome.UNKNOWN, hidden_s=LEASE_S)
    script.receive(15)
    script.receive(22, got("t2"))
    script.complete(23, "t2")


def calls_at_once(script: Script) -> None:
    """A receive may come before or after what goes on meanwhile."""
    script.put(0)
    script.receive(0.05)
    script.receive(1, got("t1"))
    script.receive(11.05, got("t2"))
    script.receive(11.08)
    script.complete(11.1, "t1")
    script.receive(11.15)


@pytest.mark.parametrize(
    "write",
    [
        unknown_completion,
        unknown_completion_that_was_not_done,
        unknown_receive,
        unknown_release,
        unknown_renewal_much_later,
        calls_at_once,
    ],
)
def test_what_may_have_been_is_not_reported(write: object) -> None:
    """Unknown outcomes and calls at once leave room for more than one explanation."""
    script = Script()
    write(script)  # type: ignore[operator]
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
