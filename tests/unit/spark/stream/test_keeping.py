"""What keeps claims: which are extended, when, and what ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from leasehold.client import ConnectionFailed, LeaseholdClientError
from leasehold.client.errors import Problem, problem_error
from leasehold.client.models import ClaimInfo
from leasehold.spark.stream.consumer import Ahead
from leasehold.spark.stream.keeper import Keeper, end_on_sigterm
from tests.patience import PATIENCE_S


class Server:
    """Notes which claims are extended; can refuse."""

    def __init__(self) -> None:
        self.extended: list[int] = []
        self.refusals: dict[int, Exception] = {}
        self.called = threading.Event()

    def extend(self, number: int) -> None:
        self.extended.append(number)
        self.called.set()
        if number in self.refusals:
            raise self.refusals[number]


def keeper_of(server: Server, lease_s: float = 30) -> Keeper:
    """Return a keeper whose thread does not run."""
    return Keeper(server.extend, lease_s, lambda: None)


def refusal(code: str) -> LeaseholdClientError:
    """Return what the client raises for a code."""
    return problem_error(Problem(code=code, lost=2, size=3))


def test_all_claims_are_extended() -> None:
    """Each beat extends what is held, and comes three times within a lease."""
    server = Server()
    keeper = keeper_of(server)
    keeper.hold(2)
    keeper.hold(1)
    assert keeper.beat() == 10
    assert server.extended == [1, 2]


def test_what_is_dropped_is_extended_no_more() -> None:
    """One, or all up to a number."""
    server = Server()
    keeper = keeper_of(server)
    for number in range(1, 6):
        keeper.hold(number)
    keeper.drop_upto(2)
    keeper.drop(4)
    keeper.beat()
    assert server.extended == [3, 5]


@pytest.mark.parametrize("code", ["claim-settled", "claim-not-found", "claim-broken"])
def test_a_claim_that_is_over_is_dropped(code: str) -> None:
    """Settled by somebody else, or lost: the others are kept on."""
    server = Server()
    keeper = keeper_of(server)
    keeper.hold(1)
    keeper.hold(2)
    server.refusals[1] = refusal(code)
    keeper.beat()
    assert (keeper.held, keeper.failure) == ((2,), None)


@pytest.mark.parametrize("code", ["stale-token", "stream-not-found", "queue-not-found"])
def test_the_end_of_a_stream_is_kept_for_the_query(code: str) -> None:
    """Nothing is extended any more, and the query can learn why."""
    server = Server()
    keeper = keeper_of(server)
    keeper.hold(1)
    keeper.hold(2)
    server.refusals[1] = refusal(code)
    keeper.beat()
    assert keeper.held == ()
    assert keeper.failure is server.refusals[1]


def test_after_a_failure_it_tries_sooner() -> None:
    """A server that does not answer is asked again well within the lease."""
    server = Server()
    keeper = keeper_of(server)
    keeper.hold(1)
    server.refusals[1] = ConnectionFailed("http://there", "gone", outcome_unknown=False)
    assert keeper.beat() == 2.5
    assert keeper.held == (1,)


def test_a_failure_of_its_own_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever goes wrong with one claim, the others are extended, and it is tried again."""
    server = Server()
    keeper = keeper_of(server)
    keeper.hold(1)
    keeper.hold(2)
    server.refusals[1] = RuntimeError("a mistake of ours")
    assert keeper.beat() == 2.5
    assert server.extended == [1, 2]
    assert keeper.held == (1, 2)
    assert "a mistake of ours" in caplog.text


def test_the_thread_extends() -> None:
    """Once started it beats by itself, until it is told to end."""
    server = Server()
    keeper = keeper_of(server, lease_s=0.03)
    keeper.hold(1)
    keeper.start()
    assert server.called.wait(PATIENCE_S)
    keeper.end(10)
    count = len(server.extended)
    assert keeper._thread is not None
    assert not keeper._thread.is_alive()
    keeper.start()
    assert len(server.extended) == count


def test_an_orphan_lets_go() -> None:
    """When the process is gone that started the reader, nothing is extended any more."""
    server, orphaned = Server(), threading.Event()
    parents = iter([1, 1, 99])
    keeper = Keeper(server.extend, 0.03, orphaned.set, lambda: next(parents))
    keeper.hold(1)
    keeper.start()
    assert orphaned.wait(PATIENCE_S)
    keeper.end(10)
    assert server.extended == [1]


def test_sigterm_ends_a_process_in_order() -> None:
    """The first raises SystemExit so that what must be given back is; the second is ignored."""
    program = (
        "import os, signal\n"
        "from leasehold.spark.stream.keeper import end_on_sigterm, outlast_sigterm\n"
        "end_on_sigterm()\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "finally:\n"
        "    outlast_sigterm()\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('stopped')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.stdout, done.returncode) == ("stopped\n", 128 + signal.SIGTERM)


def test_elsewhere_than_in_the_main_thread_signals_are_left_alone() -> None:
    """Python takes handlers in the main thread only."""
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=end_on_sigterm)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before


# --- opening ahead -----------------------------------------------------------------------------


def test_what_was_opened_ahead_can_be_taken_once() -> None:
    """Under its number only."""
    ahead = Ahead(lambda number: ClaimInfo(number=number, state="open", size=1))
    ahead.begin(7)
    assert ahead.take(8) is None
    found = ahead.take(7)
    assert found is not None
    assert found.number == 7
    assert ahead.take(7) is None


def test_a_failure_ahead_is_left_to_who_asks_next() -> None:
    """It is no claim; the next call meets the failure itself."""

    def fail(number: int) -> None:
        raise refusal("stale-token")

    ahead = Ahead(fail)
    ahead.begin(7)
    assert ahead.take(7) is None


def test_leaving_does_not_wait_for_ever() -> None:
    """A stop waits only so long for what is being opened."""
    go_on = threading.Event()

    def slow(number: int) -> ClaimInfo:
        assert go_on.wait(PATIENCE_S)
        return ClaimInfo(number=number, state="open", size=1)

    ahead = Ahead(slow)
    ahead.begin(7)
    assert ahead.leave(0.01) is None
    go_on.set()
    found = ahead.leave()
    assert found is not None
    assert found.number == 7
