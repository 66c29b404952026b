"""How many workers a queue needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leasehold.domain.admin import Workload, desired_workers

_SOME = st.integers(0, 10_000)
_PER_WORKER = st.integers(1, 100)
_WAITING_S = st.floats(0, 1e6)
_MAX_WAIT_S = st.none() | st.integers(1, 604_800)


@given(_SOME, _SOME, _WAITING_S, _PER_WORKER, _PER_WORKER, _MAX_WAIT_S)
def test_bounds(
    visible: int,
    leased: int,
    waiting_s: float,
    per_worker: int,
    at_once: int,
    max_wait_s: int | None,
) -> None:
    """There are workers for all that is in work and all that waits, and none without either."""
    workers = desired_workers(
        Workload(visible, leased, waiting_s),
        messages_per_worker=per_worker,
        leases_per_worker=at_once,
        max_wait_s=max_wait_s,
    )
    assert workers * at_once >= leased
    assert workers * per_worker >= visible + leased
    assert (workers == 0) == (visible + leased == 0)


@given(_SOME, _SOME, _WAITING_S, _PER_WORKER, st.integers(1, 604_800))
def test_waiting_longer_never_asks_for_less(
    visible: int, leased: int, waiting_s: float, per_worker: int, max_wait_s: int
) -> None:
    """A limit to the wait can only add workers, and more after a longer wait."""

    def asked(seconds: float, limit_s: int | None) -> int:
        work = Workload(visible, leased, seconds)
        return desired_workers(work, messages_per_worker=per_worker, max_wait_s=limit_s)

    assert (
        asked(waiting_s, None) <= asked(waiting_s, max_wait_s) <= asked(2 * waiting_s, max_wait_s)
    )


def test_figures() -> None:
    """The backlog is what counts, unless there are more leases than it takes workers for it."""
    assert desired_workers(Workload(95, 0, 0), messages_per_worker=10) == 10
    assert desired_workers(Workload(85, 10, 0), messages_per_worker=10) == 10
    assert desired_workers(Workload(0, 4, 0), messages_per_worker=10) == 4
    assert desired_workers(Workload(0, 40, 0), messages_per_worker=10, leases_per_worker=20) == 4
    assert desired_workers(Workload(1, 0, 900), messages_per_worker=10, max_wait_s=300) == 1
    assert desired_workers(Workload(10, 10, 900), messages_per_worker=10, max_wait_s=300) == 10
    assert desired_workers(Workload(40, 10, 900), messages_per_worker=10, max_wait_s=300) == 13
