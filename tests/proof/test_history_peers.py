"""The adapters of other queues: what their leases explain, and one real run."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from proof.history.accumulate import totals
from proof.history.adapters import Promise
from proof.history.checker import check
from proof.history.peers.run import PEERS, Absent, judged, run
from proof.history.prove import LONG
from proof.history.records import Delivery, FaultRecord, History, Operation, Outcome, Verb, body_of
from proof.history.tables import PLACES, Place, short

PROMISE = Promise(fenced=False, prompt=False)


def call(client: str, verb: Verb, at_s: float, **asked: object) -> Operation:
    """Return a call that took a tenth of a second and was done."""
    made = Operation(
        client=client,
        number=int(at_s * 10),
        verb=verb,
        queue="one",
        invoked_s=at_s,
        completed_s=at_s + 0.1,
        outcome=Outcome.OK,
    )
    return replace(made, **asked)  # type: ignore[arg-type]


def twice(*between: Operation) -> History:
    """Have two clients receive a message within its lease, and other calls in between."""
    put = call("a", Verb.PUT, 0, message="m")
    first = call(
        "a", Verb.RECEIVE, 1, hidden_s=3.0, limit=1, delivered=(Delivery(body_of("m"), "t1"),)
    )
    second = call(
        "b", Verb.RECEIVE, 2, hidden_s=3.0, limit=1, delivered=(Delivery(body_of("m"), "t2"),)
    )
    alive = call("a", Verb.COUNT, 9, count=1)
    return History(operations=[put, first, *between, second, alive])


def doubled(peer: str, history: History) -> int:
    """Return how often a message was found to be with two at once."""
    found: dict[str, int] = judged(PEERS[peer], history, check(history, PROMISE))["found"]
    return found["doubled"]


@pytest.mark.parametrize("peer", PEERS)
def test_a_message_with_two_at_once_is_found(peer: str) -> None:
    """Whatever the leases of a peer are like, when nothing has ended one."""
    other_queue = call("a", Verb.PEEK, 1.5, outcome=Outcome.UNKNOWN, queue="two")
    assert doubled(peer, twice(other_queue)) == 1


def test_a_lease_that_ended_with_its_connection_explains_it() -> None:
    """For a peer whose leases do so, and for no other one."""
    history = twice(call("a", Verb.PEEK, 1.5, outcome=Outcome.UNKNOWN))
    assert doubled("beanstalkd", history) == 0
    assert doubled("pgmq", history) == 1


def test_a_client_that_was_killed_explains_it() -> None:
    """It was never heard of again, or its last call has no end."""
    silent = twice()
    silent.operations.pop()
    assert doubled("beanstalkd", silent) == 0
    killed = twice(call("a", Verb.PEEK, 1.5, outcome=Outcome.UNKNOWN, completed_s=inf))
    assert doubled("beanstalkd", killed) == 0


def test_a_server_that_was_killed_explains_it() -> None:
    """Between the two receives; not before them."""
    history = twice()
    history.faults.append(FaultRecord(name="kill", begun_s=0.2, ended_s=0.4))
    assert doubled("beanstalkd", history) == 1
    history.faults.append(FaultRecord(name="kill", begun_s=1.4, ended_s=1.6))
    assert doubled("beanstalkd", history) == 0


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.page.name}-{place.name}")
def test_a_page_says_what_was_measured(place: Place) -> None:
    """Its table is that of the results: else run ``python -m proof.history.tables``."""
    results = place.read()
    assert place.filled(results) == place.page.read_text(encoding="utf-8")
    assert place.filled(results[1:]) != place.page.read_text(encoding="utf-8")


def test_pieces_of_the_release_tier_add_up() -> None:
    """A control that was missed is told apart from what is wrong."""
    piece = {"name": "failovers", "count": 5, "calls": 70, "seconds": 60.2, "passed": True}
    missed = piece | {"passed": False, "said": ["finds a standby that lags: nothing"]}
    wrong = piece | {"passed": False, "said": ["failovers: lost 1"]}
    total = totals([piece | {"said": []}, missed, wrong])["failovers"]
    assert total["done"] == 15
    assert total["asked"] == LONG.failovers
    assert (total["wrong"], total["controls_missed"]) == (1, 1)


def test_what_is_not_promised_is_in_brackets() -> None:
    """And what is, is not; what was not asked for is no nought."""
    figures = {"calls": 1_200}
    found = {"lost": 3, "back": 0, "doubled": 1}
    row = {"fault": "kill", "version": "1", "figures": figures, "found": found}
    done = {"kill": 20, "client killed": 2}
    results = [row | {"peer": peer, "done": done} for peer in ("azurite", "pgmq")]
    pgmq, azurite = short([*results, *results]).splitlines()[2:]
    assert azurite.endswith("| 40 kills | 2,400 | (6) | 0 | (2) | - |")
    assert pgmq.endswith("| 40 kills | 2,400 | 6 | 0 | 2 | - |")


# A connection that is cut while the relay lets it in may be collected without having been closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "peer",
    [
        pytest.param("beanstalkd", marks=pytest.mark.long),
        pytest.param("redis-always", marks=pytest.mark.slow),
        pytest.param("rabbitmq-quorum", marks=pytest.mark.slow),
    ],
)
def test_a_peer_keeps_its_promise_through_kills(peer: str) -> None:
    """It is started, killed and drained, and messages go through it."""
    for times in (4, 16, 64):  # on a busy machine clients may begin when a few kills are over
        try:
            result = run(peer, "kill", times=times, seed=1)
        except Absent as missing:
            pytest.skip(str(missing))
        assert result["blamed"] == 0, result["first"]
        assert result["done"]["kill"] == times
        if result["figures"]["puts"] > 0:
            return
    pytest.fail("nothing was put")
