"""SIGKILL and SIGSTOP of workers and servers leave what message groups promise whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from leasehold.client.models import Event
from tests.postgres import find_programs
from tests.reliability import planted_server
from tests.reliability.group_campaign import GroupCampaign, run
from tests.reliability.group_history import (
    Act,
    Close,
    Effect,
    Entry,
    Hold,
    Outcome,
    Promise,
    Put,
    Receive,
    Resume,
    Save,
    Settle,
    above_rate,
    check,
    logged_past_a_halt,
)

needs_postgres = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")


def test_some_kills(tmp_path: Path) -> None:
    """The quick part, on SQLite: a few kills and pauses under load."""
    campaign = run("sqlite", tmp_path, kills=6, seed=4, fill=8)
    assert campaign.faults == []
    assert {"workers_killed", "servers_killed"} <= campaign.done.keys()
    assert campaign.report()["completed"] > 50


@pytest.mark.long
def test_many_kills_of_one_server(tmp_path: Path) -> None:
    """The longer part, on SQLite."""
    campaign = run("sqlite", tmp_path, kills=60, seed=5)
    assert campaign.faults == []
    assert campaign.report()["resumes"] > 0
    assert campaign.rated.keys() == {"received", "claimed"}
    assert len(campaign.done) == 4, "each way to strike was used"


@pytest.mark.long
@needs_postgres
def test_many_kills_of_two_servers(tmp_path: Path) -> None:
    """The longer part, with two servers on one PostgreSQL."""
    campaign = run("postgres", tmp_path, kills=60, seed=6)
    assert campaign.faults == []
    assert len(campaign.done) == 4, "each way to strike was used"


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=needs_postgres)])
def test_a_thousand_kills(tmp_path: Path, store: str) -> None:
    """About a quarter of an hour each: one server on SQLite, two servers on one PostgreSQL."""
    campaign = run(store, tmp_path, kills=1_000, seed=11)
    assert campaign.faults == []
    assert len(campaign.done) == 4, "each way to strike was used"
    assert campaign.report()["resumes"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("one-too-many", ("in flight",)),
        ("past-the-first", ("out of order",)),
        ("twice-the-rate", ("above the rate",)),
        ("no-halt", ("received while it stood still", "handed out while its group stood still")),
    ],
)
def test_a_server_with_a_fault_is_found_out(
    tmp_path: Path, fault: str, found: tuple[str, ...]
) -> None:
    """Positive control: limits, order, rates and halts that a server does not keep are seen."""
    campaign = run("sqlite", tmp_path, kills=4, seed=7, program=(planted_server.__file__, fault))
    for each in found:
        assert [fault for fault in campaign.faults if each in fault]


# The checks themselves, on a record made by hand: three messages of a group, one after the other.


def put(number: int, **more: float) -> Put:
    return Put(group="a", number=number, sent_s=float(number) / 10, **more)  # type: ignore[arg-type]


def receive(number: int, at_s: float, fence: int = 1, **more: object) -> Receive:
    given = Receive(
        group="a",
        number=number,
        answer=f"{number}-{fence}",
        place=0,
        fence=fence,
        count=fence,
        sent_s=at_s - 0.1,
        got_s=at_s,
        ends_s=at_s + 5,
    )
    return replace(given, **more)  # type: ignore[arg-type]


def settle(
    number: int,
    sent_s: float,
    fence: int = 1,
    act: Act = "complete",
    outcome: Outcome = "done",
) -> Settle:
    answered_s = None if outcome == "unknown" else sent_s + 0.1
    return Settle(
        group="a",
        number=number,
        fence=fence,
        act=act,
        sent_s=sent_s,
        answered_s=answered_s,
        outcome=outcome,
    )


def effect(number: int, at_s: float, fence: int = 1) -> Effect:
    return Effect(group="a", number=number, fence=fence, at_s=at_s)


PUTS: list[Entry] = [put(1), put(2)]
ONE: list[Entry] = [receive(1, 1.0), effect(1, 1.5), settle(1, 2.0)]
TWO: list[Entry] = [receive(2, 3.0), effect(2, 3.5), settle(2, 4.0)]
PROMISE = Promise(max_in_flight=1)


def faults(*entries: Entry, left: tuple[tuple[str, int], ...] = ()) -> list[str]:
    """Return the first words of what is found."""
    return [found.split(":")[0] for found in check([*PUTS, *entries], PROMISE, left)]


def test_a_record_in_order_has_no_faults() -> None:
    """One after the other, and again after an answer that never came."""
    assert faults(*ONE, *TWO) == []
    again = (settle(1, 2.0, outcome="unknown"), receive(1, 7.0, 2), settle(1, 8.0, 2))
    assert faults(receive(1, 1.0), *again, left=(("a", 2),)) == []


@pytest.mark.parametrize(
    "gone",
    [
        settle(1, 2.0, outcome="unknown"),
        settle(1, 2.0, act="poison"),
        put(1, time_to_live_s=2.0),
    ],
)
def test_an_earlier_one_may_be_gone_in_any_way(gone: Entry) -> None:
    """Completed without an answer, poisoned, or expired: the next one may be received."""
    assert check([*PUTS, receive(1, 1.0, ends_s=2.0), gone, *TWO], PROMISE) == []


def test_one_answer_may_have_several_of_a_group() -> None:
    """In their order, and not in another."""
    run = [receive(n, 1.0, answer="x", place=n) for n in (1, 2)]
    assert check([*PUTS, *run], Promise(max_in_flight=2)) == []
    turned = [receive(n, 1.0, answer="x", place=3 - n) for n in (1, 2)]
    assert len(check([*PUTS, *turned], Promise())) == 1


@pytest.mark.parametrize(
    "done",
    [
        (),
        (settle(1, 3.5),),
        (settle(1, 2.0, outcome="refused"),),
        (settle(1, 2.0, act="return"),),
        (settle(1, 2.0, outcome="unknown"), receive(1, 6.0, 2)),
    ],
    ids=["never", "later", "refused", "given-back", "it-was-not-gone"],
)
def test_a_message_let_past_is_found(done: tuple[Entry, ...]) -> None:
    """The earlier one was there still when the later one was received."""
    first = receive(1, 1.0, ends_s=2.5)
    assert "out of order" in faults(first, *done, *TWO, left=(("a", 1),))


def hold(fence: int, got_s: float, ends_s: float, found: int = 0) -> Hold:
    worker = f"w{fence}"
    return Hold(group="a", worker=worker, fence=fence, found=found, got_s=got_s, ends_s=ends_s)


BOTH = (("a", 1), ("a", 2))
"""What is left where nothing was received."""


def test_holders_one_after_the_other_have_no_faults() -> None:
    """Also where an answer never came, whose state may be there or not."""
    saves = [Save(group="a", fence=1, state=n, answered_s=n) for n in (1, 2)]
    lost = Save(group="a", fence=1, state=3)
    first: list[Entry] = [hold(1, 0.5, 9.0), hold(1, 0.5, 2.0), *saves, lost]
    for found in (2, 3):
        assert faults(*first, hold(2, 3.0, 4.0, found), left=BOTH) == []
    own = receive(1, 1.0, answer="w1-7")
    assert faults(hold(1, 0.5, 2.9), own, *ONE[1:], *TWO) == []


def test_what_a_session_held_ends_with_it() -> None:
    """Whoever closes it, after an error for one, has no leases and groups from then on."""
    mine = receive(1, 1.0, answer="w1-7")
    held: list[Entry] = [hold(1, 0.5, 9.0), mine]
    taken: list[Entry] = [hold(2, 3.0, 9.0), receive(1, 3.5, 2, answer="w2-1")]
    settled = settle(1, 4.0, 2)
    kept = faults(*held, *taken, settled, left=BOTH[1:])
    assert {"two holders of a group", "received past a holder", "two holders at once"} < set(kept)
    closed = Close(worker="w1", sent_s=2.0)
    assert faults(*held, closed, *taken, settled, left=BOTH[1:]) == []
    for other in (replace(closed, sent_s=0.2), replace(closed, worker="w2")):
        assert faults(*held, other, *taken, settled, left=BOTH[1:]) == kept


def test_holds_that_are_broken_are_found() -> None:
    """Two at once, another that receives, and a state that was lost or comes from nowhere."""
    at_once = hold(1, 0.5, 3.5), hold(2, 3.0, 4.0)
    assert faults(*at_once, left=BOTH) == ["two holders of a group"]
    other = receive(1, 1.0, answer="w2-7")
    assert faults(hold(1, 0.5, 2.9), other, *ONE[1:], *TWO) == ["received past a holder"]
    save = Save(group="a", fence=1, state=5, answered_s=1.0)
    for found in (4, 6):
        told = faults(hold(1, 0.5, 2.0), save, hold(2, 3.0, 4.0, found), left=BOTH)
        assert told == [f"a state of {found}, not 5 to 5"]


def test_an_effect_before_its_turn_is_found() -> None:
    """The work on the later one was done while the earlier one could not be gone."""
    early = (receive(2, 3.0), effect(2, 1.7), settle(2, 4.0))
    assert faults(*ONE, *early) == ["effects out of order"]


def test_too_many_in_flight_are_found() -> None:
    """Of leases that surely overlap; one that may have ended does not count."""
    both = [receive(1, 1.0, answer="x", place=1), receive(2, 1.0, answer="x", place=2)]
    left = (("a", 1), ("a", 2))
    assert faults(*both, left=left) == ["2 in flight, 1 allowed, at 1.0"]
    assert faults(both[0], settle(1, 0.9), both[1], left=left[1:]) == []


def test_two_holders_are_found() -> None:
    """A message on a surely valid lease is received by another, or with a fence that is not new."""
    other = receive(1, 2.0, 2)
    assert "two holders at once" in faults(receive(1, 1.0), other, *TWO)
    assert "two leases with one fence" in faults(receive(1, 1.0), replace(other, fence=1), *TWO)
    late = receive(1, 9.0, 1, answer="late")
    assert "a fence that does not rise" in faults(other, late, *TWO)


HALTS = Promise(halts=True)
POISONED: list[Entry] = [receive(1, 1.0), settle(1, 2.0, act="poison")]


def resume(sent_s: float, answered_s: float | None) -> Resume:
    return Resume(group="a", sent_s=sent_s, answered_s=answered_s)


@pytest.mark.parametrize(
    ("resumes", "is_fine"),
    [
        ([resume(2.5, 2.7)], True),
        ([resume(2.5, None)], True),
        ([resume(2.95, None)], True),
        ([resume(1.5, 2.05)], True),
        ([resume(2.5, None), resume(9.0, 9.1)], True),
        ([], False),
        ([resume(1.5, 1.9)], False),
        ([resume(3.1, 3.2)], False),
    ],
)
def test_a_receive_from_a_group_that_stands_still_is_found(
    resumes: list[Resume], is_fine: bool
) -> None:
    """From the answer to the poisoning until a resume that may have come after it was sent."""
    asked = [replace(each, answered_s=None) for each in resumes]
    found = check([*PUTS, *POISONED, *asked, *resumes, *TWO], HALTS)
    assert [each.split(":")[0] for each in found] == ["received while it stood still"] * (
        not is_fine
    )


def test_a_receive_that_may_have_been_before_the_poisoning_is_fine() -> None:
    """It was sent before the answer, or nobody knows whether the message was poisoned."""
    both = [receive(n, 1.0, answer="x", place=n) for n in (1, 2)]
    poison = settle(1, 2.0, act="poison")
    assert check([*PUTS, *both, poison], HALTS) == []
    unknown = settle(1, 2.0, act="poison", outcome="unknown")
    assert check([*PUTS, receive(1, 1.0), unknown, *TWO], HALTS) == []


def event(at_ms: int, kind: str, group: str = "a", queue: str = "q") -> Event:
    return Event(seq=at_ms, place=0, at_ms=at_ms, type=kind, queue=queue, group_id=group)


def test_the_log_is_held_to_the_rate(tmp_path: Path) -> None:
    """Receives and claims count together, each group for itself, whatever the time of day."""
    since_ms = 1_795_000_000_000
    fine = [
        (0, "received", "a"),
        (0, "claimed", "a"),
        (100, "received", "b"),
        (500, "claimed", "a"),
    ]
    more = [(900, "completed", "a"), (999, "received", "a")]
    logs = [
        [event(since_ms + at_ms, kind, group) for at_ms, kind, group in told]
        for told in (fine, [*fine, *more])
    ]
    campaign = GroupCampaign([], tmp_path, 0)
    found = [campaign._above_rate(log, "q", rate_per_s=2.0, burst=2) for log in logs]
    assert found == [[], ["a: above the rate at 0.999"]]


@pytest.mark.parametrize("kind", ["received", "claimed"])
def test_a_log_that_hands_out_of_a_group_that_stands_still_is_found(kind: str) -> None:
    """By receives and claims; other groups and queues go on, and so does the group later."""
    halt = [event(1, "received"), event(2, "poisoned"), event(3, "group-halted")]
    others = [event(4, kind, group="b"), event(5, kind, queue="r"), event(6, "completed")]
    resumed = [event(8, "group-resumed"), event(9, kind)]
    assert logged_past_a_halt([*halt, *others, *resumed], "q") == []
    [found] = logged_past_a_halt([*halt, *others, event(7, kind), *resumed], "q")
    assert "while its group stood still" in found
    assert len(logged_past_a_halt([event(2, "poisoned"), event(7, kind)], "q")) == 1


def test_what_is_lost_or_comes_back_is_found() -> None:
    """Acknowledged and nowhere; completed and received, or there in the end."""
    assert faults(*ONE) == ["lost"]
    assert faults(*ONE, left=(("a", 2),)) == []
    assert faults(*ONE, left=(("a", 1), ("a", 2))) == ["back"]
    assert "back" in faults(*ONE, receive(1, 2.5, 2), *TWO)
    assert "from nowhere" in faults(*ONE, *TWO, receive(3, 6.0))
    assert check([replace(put(1), acknowledged=False)], PROMISE, ()) == []


def test_a_rate_that_is_exceeded_is_found() -> None:
    """A burst at once and then one each half second are allowed, and no more."""
    good = [0.0, 0.0, 0.0, 0.5, 1.0, 1.5, 9.0, 9.0, 9.0]
    assert above_rate(good, rate_per_s=2.0, burst=3.0) == []
    assert above_rate([*good, 9.1], rate_per_s=2.0, burst=3.0) == ["above the rate at 9.1"]
    assert above_rate([0.0, 0.4], rate_per_s=2.0, burst=1.0) == ["above the rate at 0.4"]
